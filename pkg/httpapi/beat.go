package httpapi

import (
	"errors"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

// beat serves PUT instance/beat (http-api §5.7). A light beat has no body and
// only renews; a full one registers its instance if it is not there, and
// changes nothing of one that is (cases C33).
//
// Service, group and namespace come from the request, never from the body
// (cases C07). Cluster does not take part in finding the instance.
func (s *Server) beat(c *call) error {
	if c.version == v2 { // golden scenario 30
		if err := c.wantGrouped(); err != nil {
			return err
		}
	}
	key, err := c.service()
	if err != nil {
		return err
	}
	at := registry.InstanceKey{IP: c.raw("ip"), Cluster: c.raw("clusterName", "cluster")}
	if err := nacos.CheckCluster(at.Cluster); err != nil {
		return errParam(err)
	}
	if at.Port, err = checkAddress(at.IP, c.raw("port")); err != nil {
		return err
	}
	full, err := parseBeat(c.get("beat"))
	if err != nil {
		return err
	}
	if key.Name == "" {
		return errMissing("serviceName")
	}
	if full != nil {
		if full.IP != "" { // with its port, even if that is 0
			at.IP, at.Port = full.IP, full.Port
		}
		if full.Cluster != "" {
			at.Cluster = full.Cluster
		}
		if at.IP == "" {
			return errMissing("ip")
		}
	}
	return s.atOwner(c, at.IP, at.Port, func() error { return s.takeBeat(c, key, at, full) })
}

func (s *Server) takeBeat(c *call, key registry.ServiceKey, at registry.InstanceKey, full *nacos.Beat) error {
	code := nacos.CodeBeatOK
	inst, known := s.opts.Beats.Beat(key, at.IP, at.Port)
	switch {
	case known:
	case full == nil:
		code = nacos.CodeBeatUnknown
	default:
		var err error
		inst, err = publishable(&nacos.Instance{IP: at.IP, Port: at.Port, ClusterName: at.Cluster, Weight: full.Weight,
			Healthy: true, Enabled: true, Metadata: full.Metadata}, key)
		if err != nil {
			return err
		}
		// The client of an evicted instance lives. That it stays out it is told
		// when it registers.
		if err := s.opts.Beats.Register(key, inst); errors.Is(err, registry.ErrPersistentService) {
			return errEphemeral(key)
		} else if err != nil && !errors.Is(err, registry.ErrEvicted) {
			return err
		}
	}
	return c.bare(nacos.BeatAnswer(s.interval(key, inst), code, s.switches().LightBeatEnabled))
}

func parseBeat(body string) (*nacos.Beat, error) {
	if body == "" {
		return nil, nil
	}
	b, err := nacos.ParseBeat(body)
	switch {
	case err == nacos.ErrBadBeat, err == nacos.ErrWeight:
		return nil, errValue(err)
	case err != nil:
		return nil, errParam(err)
	case b == nil:
		return nil, nil
	}
	err = nacos.CheckInstance(&nacos.Instance{IP: b.IP, Port: b.Port, ClusterName: b.Cluster, Metadata: b.Metadata})
	if err != nil {
		return nil, errParam(err)
	}
	if nacos.Blank(b.IP) {
		b.IP = ""
	}
	if nacos.Blank(b.Cluster) {
		b.Cluster = ""
	}
	return b, nil
}

// interval is the period that the client is to keep, in milliseconds. An
// operator's edit of the metadata comes first (semantics H9).
func (s *Server) interval(key registry.ServiceKey, inst *registry.Instance) int64 {
	usual := s.switches().ClientBeatInterval
	if inst == nil {
		return usual
	}
	md := inst.Metadata
	if shown, ok := s.opts.Registry.Snapshot(key).Find(inst.InstanceKey); ok {
		md = shown.Metadata
	}
	return nacos.MetadataMillis(md, nacos.KeyBeatInterval, usual)
}
