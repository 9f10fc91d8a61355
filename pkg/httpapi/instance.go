package httpapi

import (
	"net/http"
	"strconv"
	"strings"

	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

// register serves POST instance (http-api §5.1).
func (s *Server) register(w http.ResponseWriter, r *http.Request, p params) error {
	inst, key, err := p.published()
	if err != nil {
		return err
	}
	if !p.flag(true, "ephemeral") {
		return errPersistent
	}
	return s.atOwner(w, r, p, inst.IP, inst.Port, func() error {
		if err := s.opts.Beats.Register(key, inst); err != nil {
			return err
		}
		return writeOK(w, r)
	})
}

// published reads a whole instance, with the defaults of http-api §5.1.
func (p params) published() (*registry.Instance, registry.ServiceKey, error) {
	key, at, err := p.instance()
	if err != nil {
		return nil, key, err
	}
	a, err := p.attributes()
	if err != nil {
		return nil, key, err
	}
	inst := &nacos.Instance{IP: at.IP, Port: at.Port, ClusterName: at.Cluster, Weight: 1, Enabled: true, Healthy: p.flag(true, "healthy"), Metadata: a.metadata}
	if a.weight != nil {
		inst.Weight = *a.weight
	}
	if a.enabled != nil {
		inst.Enabled = *a.enabled
	}
	out, err := publishable(inst, key)
	return out, key, err
}

// publishable is what handlers ask of an instance beyond the parameter check.
func publishable(i *nacos.Instance, key registry.ServiceKey) (*registry.Instance, error) {
	if err := checkWeight(i.Weight); err != nil {
		return nil, err
	}
	if err := nacos.CheckRegister(i, false); err != nil {
		return nil, errValue(err)
	}
	out, err := i.Registry(key)
	if err != nil {
		return nil, errValue(err)
	}
	return out, nil
}

// update serves PUT instance: the operator's edit of an instance, replaced as
// a whole; what is not given becomes the default (http-api §5.3). The instance
// need not be there, the service must. The kind does not matter (golden
// scenario 15).
func (s *Server) update(w http.ResponseWriter, r *http.Request, p params) error {
	inst, key, err := p.published()
	if err != nil {
		return err
	}
	if !s.opts.Registry.Exists(key) {
		return errNoService(key, p.flag(true, "ephemeral"))
	}
	edit := registry.Override{Enabled: &inst.Enabled, Weight: &inst.Weight, Metadata: inst.Metadata}
	if err := s.opts.Edit(r.Context(), key, inst.InstanceKey, edit, false); err != nil {
		return err
	}
	return writeOK(w, r)
}

// patch serves PATCH instance: only what is given changes in the edit
// (http-api §5.4, §15 no. 13). healthy is accepted and has no effect.
func (s *Server) patch(w http.ResponseWriter, r *http.Request, p params) error {
	key, at, err := p.instance()
	if err != nil {
		return err
	}
	a, err := p.attributes()
	if err != nil {
		return err
	}
	if _, err := s.find(key, at); err != nil {
		return err
	}
	edit := registry.Override{Enabled: a.enabled, Weight: a.weight}
	if a.metadata != nil {
		edit.Metadata = append(registry.Metadata{}, registry.NewMetadata(a.metadata)...)
	}
	if edit.Enabled == nil && edit.Weight == nil && edit.Metadata == nil {
		return writeOK(w, r)
	}
	if err := s.opts.Edit(r.Context(), key, at, edit, true); err != nil {
		return err
	}
	return writeOK(w, r)
}

// deregister serves DELETE instance: "ok" whatever is there (http-api §5.2).
// Only what an HTTP client registered goes (cases C14).
func (s *Server) deregister(w http.ResponseWriter, r *http.Request, p params) error {
	key, at, err := p.instance()
	if err != nil {
		return err
	}
	if !p.flag(true, "ephemeral") {
		s.explain(key, at, false)
		return writeOK(w, r)
	}
	return s.atOwner(w, r, p, at.IP, at.Port, func() error {
		if !s.opts.Beats.Deregister(key, at) {
			s.explain(key, at, true)
		}
		return writeOK(w, r)
	})
}

// explain logs why an instance that is there did not go.
func (s *Server) explain(key registry.ServiceKey, at registry.InstanceKey, ephemeral bool) {
	for _, h := range s.opts.Registry.Snapshot(key).Instances {
		if h.IP == at.IP && h.Port == at.Port {
			why := "an SDK registered it over gRPC: only this client can deregister it, and it goes when the client's connection ends"
			if !ephemeral {
				why = "the request is for a persistent instance (ephemeral=false) and this one is ephemeral: leave out ephemeral"
			}
			s.log.Warn("the instance stays after a deregistration over HTTP", zap.String("why", why),
				zap.Stringer("service", key), zap.String("ip", at.IP), zap.Int("port", at.Port), zap.String("client", h.Client))
			return
		}
	}
}

// detail serves GET instance (http-api §5.5); disabled ones are found too.
func (s *Server) detail(w http.ResponseWriter, _ *http.Request, p params) error {
	key, at, err := p.instance()
	if err != nil {
		return err
	}
	h, err := s.find(key, at)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, nacos.AppendDetail(nil, h.Instance, key.Grouped()))
	return nil
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

// list serves GET instance/list (http-api §5.6). udpPort is accepted, but no
// push over UDP is offered: its clients poll as well (cases C24).
func (s *Server) list(w http.ResponseWriter, _ *http.Request, p params) error {
	key, err := p.service()
	if err != nil {
		return err
	}
	clusters := p.raw("clusters", "clusterName", "cluster") // C# sends clusterName
	if err := nacos.CheckClusters(clusters); err != nil {
		return errParam(err)
	}
	if key.Name == "" {
		return errMissing("serviceName")
	}
	if udp := p.get("udpPort"); udp != "" {
		if _, err := strconv.ParseInt(udp, 10, 32); err != nil {
			return errNumber(udp)
		}
	}
	filter := registry.Filter{Clusters: clusters, HealthyOnly: strings.EqualFold(p.get("healthyOnly"), "true")}
	snap, lastRefTime := s.opts.Registry.Serve(key)
	info := nacos.ServiceInfo{
		Name: key.Grouped(), Group: key.Group, Clusters: &clusters, LastRefTime: lastRefTime,
		Hosts: snap.Encode(filter, nacos.EncodeHosts).Bytes,
	}
	head, hosts, tail := info.Chunks()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(head)+len(hosts)+len(tail)))
	w.WriteHeader(http.StatusOK)
	for _, b := range [][]byte{head, hosts, tail} {
		if _, err := w.Write(b); err != nil {
			return nil // the client has gone
		}
	}
	return nil
}
