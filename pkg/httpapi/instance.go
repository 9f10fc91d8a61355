package httpapi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

// register serves POST instance (http-api §5.1). An ephemeral instance is
// kept by the node that keeps its client, a persistent one by the log.
func (s *Server) register(c *call) error {
	inst, key, ephemeral, err := s.wholeInstance(c)
	if err != nil {
		return err
	}
	if !ephemeral {
		return s.registerPersistent(c, key, inst)
	}
	return s.atOwner(c, inst.IP, inst.Port, func() error {
		if err := s.publish(key, inst); err != nil {
			return err
		}
		return c.ok()
	})
}

// publish registers the instance of an HTTP client that this node keeps.
func (s *Server) publish(key registry.ServiceKey, inst *registry.Instance) error {
	err := s.opts.Beats.Register(key, inst)
	switch {
	case errors.Is(err, registry.ErrPersistentService):
		return errEphemeral(key)
	case errors.Is(err, registry.ErrEvicted):
		return errEvicted(key, inst.InstanceKey)
	}
	return err
}

func (s *Server) registerPersistent(c *call, key registry.ServiceKey, inst *registry.Instance) error {
	// What clients publish is not in the log: this node's view decides.
	if s.opts.Registry.Kind(key) == registry.EphemeralService {
		return errPersistent(key)
	}
	inst.Persistent = true
	refused, err := s.durably(c, func(ctx context.Context, d Durable) error { return d.PutInstance(ctx, key, inst) })
	switch {
	case refused == WrongKind:
		return errPersistent(key)
	case refused == Evicted:
		return errEvicted(key, inst.InstanceKey)
	case err != nil:
		return err
	}
	return c.ok()
}

// registerOrRenew serves POST instance of v3 clients: with heartBeat it is a
// beat, which never registers (http-api §8.1).
func (s *Server) registerOrRenew(c *call) error {
	beat, err := c.flag(false, "heartBeat")
	if err != nil {
		return err
	}
	if !beat {
		return s.register(c)
	}
	key, at, err := c.instance()
	if err != nil {
		return err
	}
	return s.atOwner(c, at.IP, at.Port, func() error {
		if _, known := s.opts.Beats.Beat(key, at.IP, at.Port); !known {
			return errNotRegistered
		}
		return c.ok()
	})
}

// wholeInstance reads a whole instance, with the defaults of http-api §5.1, and
// its kind.
func (s *Server) wholeInstance(c *call) (_ *registry.Instance, key registry.ServiceKey, ephemeral bool, err error) {
	key, at, err := c.instance()
	if err != nil {
		return nil, key, false, err
	}
	a, err := c.attributes()
	if err != nil {
		return nil, key, false, err
	}
	if ephemeral, err = s.ephemeral(c); err != nil {
		return nil, key, false, err
	}
	inst := &nacos.Instance{IP: at.IP, Port: at.Port, ClusterName: at.Cluster, Weight: 1, Enabled: true, Healthy: true, Metadata: a.metadata}
	if a.weight != nil {
		inst.Weight = *a.weight
	}
	if a.enabled != nil {
		inst.Enabled = *a.enabled
	}
	if a.healthy != nil {
		inst.Healthy = *a.healthy
	}
	out, err := publishable(inst, key)
	return out, key, ephemeral, err
}

// ephemeral tells what kind of instance a request is about: by the switch
// defaultInstanceEphemeral, if it does not say so itself. That is decided once,
// whichever node carries it out.
func (s *Server) ephemeral(c *call) (bool, error) {
	if c.get("ephemeral") == "" {
		c.params["ephemeral"] = strconv.FormatBool(s.switches().DefaultEphemeral)
	}
	return c.flag(true, "ephemeral")
}

// publishable is what handlers ask of an instance beyond the parameter check.
func publishable(i *nacos.Instance, key registry.ServiceKey) (*registry.Instance, error) {
	if err := checkWeight(i.Weight); err != nil {
		return nil, err
	}
	if err := nacos.CheckRegister(i, false); err != nil {
		return nil, errInstance(err)
	}
	out, err := i.Registry(key)
	if err != nil {
		return nil, errInstance(err)
	}
	return out, nil
}

// update serves PUT instance: the operator's edit of an instance, replaced as
// a whole; what is not given becomes the default (http-api §5.3). The instance
// need not be there, the service must. The kind does not matter (golden
// scenario 15).
func (s *Server) update(c *call) error {
	inst, key, ephemeral, err := s.wholeInstance(c)
	if err != nil {
		return err
	}
	if !s.soon(c.r.Context(), func() bool { return s.opts.Registry.Exists(key) }) {
		return errNoService(key, ephemeral)
	}
	return s.edit(c, key, inst.InstanceKey, registry.Override{Enabled: &inst.Enabled, Weight: &inst.Weight, Metadata: inst.Metadata}, false)
}

// patch serves PATCH instance, and PUT instance/partial of v3: only what is
// given changes in the edit (http-api §5.4, §15 no. 13). healthy is accepted
// and has no effect.
func (s *Server) patch(c *call) error {
	key, at, err := c.instance()
	if err != nil {
		return err
	}
	a, err := c.attributes()
	if err != nil {
		return err
	}
	s.soon(c.r.Context(), func() bool { _, err := s.find(key, at); return err == nil })
	if _, err := s.find(key, at); err != nil {
		return err
	}
	edit := registry.Override{Enabled: a.enabled, Weight: a.weight}
	if a.metadata != nil {
		edit.Metadata = append(registry.Metadata{}, registry.NewMetadata(a.metadata)...)
	}
	if edit.Enabled == nil && edit.Weight == nil && edit.Metadata == nil {
		return c.ok()
	}
	return s.edit(c, key, at, edit, true)
}

// patchV2 serves PATCH instance of v2, which nobody brought up to that version:
// all attributes must be given, the name grouped, and the answer is that of v1
// (golden scenario 30).
func (s *Server) patchV2(c *call) error {
	for _, name := range []string{"weight", "enabled", "metadata"} {
		if c.get(name) == "" {
			return errMissingDeclared(name)
		}
	}
	if err := c.wantGrouped(); err != nil {
		return err
	}
	c.bareOK = true
	return s.patch(c)
}

// wantGrouped refuses a name without its group; that there is none is not its
// business.
func (c *call) wantGrouped() error {
	if name := c.get("serviceName"); name != "" && !strings.Contains(name, "@@") {
		return errNameNotGrouped
	}
	return nil
}

func (s *Server) edit(c *call, key registry.ServiceKey, at registry.InstanceKey, edit registry.Override, merge bool) error {
	if _, err := s.durably(c, func(ctx context.Context, d Durable) error { return d.PutOverride(ctx, key, at, edit, merge) }); err != nil {
		return err
	}
	return c.ok()
}

// deregister serves DELETE instance: "ok" whatever is there (http-api §5.2).
// Only what an HTTP client registered goes, or a persistent instance, as the
// request says (cases C14).
func (s *Server) deregister(c *call) error {
	key, at, err := c.instance()
	if err != nil {
		return err
	}
	ephemeral, err := s.ephemeral(c)
	if err != nil {
		return err
	}
	if !ephemeral {
		return s.deregisterPersistent(c, key, at)
	}
	return s.atOwner(c, at.IP, at.Port, func() error {
		if !s.opts.Beats.Deregister(key, at) {
			s.logWhyItStays(key, at, true)
		}
		return c.ok()
	})
}

func (s *Server) deregisterPersistent(c *call, key registry.ServiceKey, at registry.InstanceKey) error {
	if s.opts.Registry.Kind(key) == registry.EphemeralService {
		s.logWhyItStays(key, at, false)
		return c.ok()
	}
	// Also if it is not there: another node may have written it just now
	// (semantics D18).
	refused, err := s.durably(c, func(ctx context.Context, d Durable) error { return d.RemoveInstance(ctx, key, at.IP, at.Port) })
	switch {
	case refused == NotFound, refused == WrongKind:
		s.logWhyItStays(key, at, false)
	case err != nil:
		return err
	}
	return c.ok()
}

// logWhyItStays says why an instance that is there did not go.
func (s *Server) logWhyItStays(key registry.ServiceKey, at registry.InstanceKey, ephemeral bool) {
	for _, h := range s.opts.Registry.Snapshot(key).Instances {
		if h.IP == at.IP && h.Port == at.Port {
			why := "an SDK registered it over gRPC: only this client can deregister it, and it goes when the client's connection ends"
			switch {
			case !ephemeral:
				why = "the request is for a persistent instance (ephemeral=false) and this one is ephemeral: leave out ephemeral"
			case h.Persistent:
				why = "it is persistent: say ephemeral=false to deregister it"
			}
			s.log.Warn("the instance stays after a deregistration over HTTP", zap.String("why", why),
				zap.Stringer("service", key), zap.String("ip", at.IP), zap.Int("port", at.Port), zap.String("client", h.Client))
			return
		}
	}
}

// detail serves GET instance (http-api §5.5); disabled ones are found too,
// evicted ones are not there.
func (s *Server) detail(c *call) error {
	key, at, err := c.instance()
	if err != nil {
		return err
	}
	h, err := s.find(key, at)
	if err != nil {
		return err
	}
	switch c.version {
	case v1:
		return c.answer(nacos.AppendDetail(nil, "service", h.Instance, key.Grouped()))
	case v2:
		return c.answer(nacos.AppendDetail(nil, "serviceName", h.Instance, key.Grouped()))
	}
	return c.answer(nacos.AppendInstance(nil, h.Instance, key.Grouped()))
}

func (s *Server) find(key registry.ServiceKey, at registry.InstanceKey) (*registry.Shown, error) {
	snap := s.opts.Registry.Snapshot(key)
	h, ok := snap.Get(at)
	switch {
	case len(snap.Instances) == 0:
		return h, errNoInstances(key, at.Cluster)
	case !ok:
		return h, errNoMatch
	}
	return h, nil
}

// statuses serves instance/statuses with any method: who is there and healthy,
// disabled ones too (http-api §5.8, §7.1). v2 has the key in its path.
func (s *Server) statuses(c *call) error {
	name := c.get("key")
	if c.version == v2 {
		name = strings.TrimSpace(strings.ToValidUTF8(c.r.PathValue("key"), "\uFFFD"))
	}
	if name == "" {
		return errMissingDeclared("key")
	}
	namespace := ""
	if before, after, found := strings.Cut(name, "##"); found {
		namespace, name = before, after
	}
	if !strings.Contains(name, "@@") {
		return errNameNotGrouped
	}
	key, err := params{"namespaceId": namespace, "serviceName": name}.service()
	if err != nil {
		return err
	}
	return c.bare(nacos.AppendStatuses(nil, s.opts.Registry.Snapshot(key).Instances))
}

// list serves GET instance/list of v1 and v2 (http-api §5.6, §7.1).
func (s *Server) list(c *call) error {
	key, f, err := s.asked(c)
	if err != nil {
		return err
	}
	snap, lastRefTime := s.opts.Registry.Serve(key)
	info := nacos.ServiceInfo{
		Name: key.Grouped(), Group: key.Group, Clusters: &f.Clusters, LastRefTime: lastRefTime, CacheMillis: s.switches().PushCacheMillis,
		Hosts: snap.Encode(f, nacos.EncodeHosts).Bytes,
	}
	return c.answer(info.Chunks())
}

// asked reads what a list of v1 or v2 is asked for.
func (s *Server) asked(c *call) (key registry.ServiceKey, f registry.Filter, err error) {
	if key, err = c.service(); err != nil {
		return
	}
	udp := ""
	f.Clusters, udp = c.raw("clusters", "clusterName", "cluster"), c.get("udpPort") // C# sends clusterName
	if c.version == v2 {
		f.Clusters, udp = c.raw("clusterName"), c.get("port")
	}
	if err := nacos.CheckClusters(f.Clusters); err != nil {
		return key, f, errParam(err)
	}
	if key.Name == "" {
		return key, f, errMissing("serviceName")
	}
	if udp != "" {
		port, err := strconv.ParseInt(udp, 10, 32)
		if err != nil {
			return key, f, errNumber(udp)
		}
		if port > 0 {
			c.w.Header().Set(pushHeader, fmt.Sprintf("none; poll every %d s", s.switches().PushCacheMillis/1000))
		}
	}
	f.HealthyOnly, err = c.healthyOnly()
	return key, f, err
}

// A client of 1.x that asks for a push over UDP is told that there is none. It
// polls in any case, as often as cacheMillis says (cases C24).
const pushHeader = "Starling-Push"

// healthyOnly is true in v1 for that word alone: Python and C# write it True.
func (c *call) healthyOnly() (bool, error) {
	if c.version == v1 {
		return strings.EqualFold(c.get("healthyOnly"), "true"), nil
	}
	return c.flag(false, "healthyOnly")
}

// hosts serves GET instance/list of v3 clients: the same as list, without what
// is around it, and of cluster DEFAULT if none is named (http-api §8.1).
func (s *Server) hosts(c *call) error {
	key, clusters, healthyOnly, err := c.listed()
	if err != nil {
		return err
	}
	if nacos.CheckClusters(clusters) != nil { // no instance has such a cluster
		return c.answer([]byte("[]"))
	}
	snap, _ := s.opts.Registry.Serve(key)
	return c.answer(nacos.HostsOf(snap.Encode(registry.Filter{Clusters: clusters, HealthyOnly: healthyOnly}, nacos.EncodeHosts).Bytes))
}

// allHosts serves GET instance/list of v3 operators: the instances of one
// cluster as they are, disabled ones too.
func (s *Server) allHosts(c *call) error {
	key, cluster, healthyOnly, err := c.listed()
	if err != nil {
		return err
	}
	if !s.opts.Registry.Exists(key) {
		return errServiceMissing(key)
	}
	snap := s.opts.Registry.Snapshot(key)
	if !slices.Contains(clustersOf(snap.Instances), cluster) {
		return errClusterMissing(cluster)
	}
	hosts := make([]*registry.Shown, 0, len(snap.Instances))
	for _, h := range snap.Instances {
		if h.Cluster == cluster && (h.Healthy || !healthyOnly) {
			hosts = append(hosts, h)
		}
	}
	return c.answer(nacos.AppendInstances(nil, hosts, key.Grouped()))
}

// listed reads what a list of v3 is asked for.
func (c *call) listed() (key registry.ServiceKey, clusters string, healthyOnly bool, err error) {
	if key, err = c.service(); err != nil {
		return
	}
	if key.Name == "" {
		return key, "", false, errMissing("serviceName")
	}
	if clusters = c.raw("clusterName"); clusters == "" {
		clusters = registry.DefaultCluster
	}
	healthyOnly, err = c.healthyOnly()
	return key, clusters, healthyOnly, err
}
