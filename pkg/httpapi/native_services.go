package httpapi

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/starling-registry/starling/pkg/api"
	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

// A page of services: what is usual, and the most.
const (
	usualServices = 1000
	mostServices  = 10_000
)

// nativeServices serves GET /services. It goes over the names of all services
// that are asked for, which are sorted already, and looks at those of the page
// only.
func (s *Server) nativeServices(r *http.Request) (any, error) {
	q, err := query(r, "namespace", "allNamespaces", "group", "name", "limit", "offset")
	if err != nil {
		return nil, err
	}
	namespace, group, part := q["namespace"], q["group"], q["name"]
	if err := nacos.CheckService(namespace, "", group); err != nil {
		return nil, errNative(err.Error(), "")
	}
	all, err := q.nativeFlag("allNamespaces")
	if err != nil {
		return nil, err
	}
	limit, err := q.nativeNumber("limit", usualServices, 1, mostServices)
	if err != nil {
		return nil, err
	}
	offset, err := q.nativeNumber("offset", 0, 0, 1<<31-1)
	if err != nil {
		return nil, err
	}
	reg := s.opts.Registry
	namespaces := []string{registry.DefaultNamespace}
	switch {
	case all && namespace != "":
		return nil, errNative("allNamespaces and namespace exclude each other", "leave out one of them")
	case all:
		namespaces = slices.Sorted(maps.Keys(reg.Namespaces()))
	case !nacos.Blank(namespace):
		namespaces[0] = namespace
	}
	out := api.Services{At: time.Now().UTC(), Offset: offset, Services: []api.ServiceSummary{}}
	out.Node, _ = s.nodeNames()
	add := func(key registry.ServiceKey) { out.Services = append(out.Services, s.summary(key)) }
	for _, ns := range namespaces {
		groups := []string{group}
		if nacos.Blank(group) {
			groups = reg.Groups(ns)
		}
		for _, g := range groups {
			names := reg.Services(ns, g)
			if part == "" {
				from := min(max(offset-out.Total, 0), len(names))
				for _, name := range names[from:min(from+limit-len(out.Services), len(names))] {
					add(registry.ServiceKey{Namespace: ns, Group: g, Name: name})
				}
				out.Total += len(names)
				continue
			}
			for _, name := range names {
				if !strings.Contains(name, part) {
					continue
				}
				if out.Total >= offset && len(out.Services) < limit {
					add(registry.ServiceKey{Namespace: ns, Group: g, Name: name})
				}
				out.Total++
			}
		}
	}
	return out, nil
}

func (s *Server) summary(key registry.ServiceKey) api.ServiceSummary {
	snap := s.opts.Registry.Snapshot(key)
	out := api.ServiceSummary{Service: nativeKey(key), Kind: s.nativeKind(key), Instances: len(snap.Instances), Evicted: len(snap.Evicted),
		Clusters: clustersOf(snap.Instances)}
	for _, i := range snap.Instances {
		if i.Healthy {
			out.Healthy++
		}
		if i.Enabled {
			out.Enabled++
		}
	}
	if snap.Meta != nil {
		out.Threshold = snap.Meta.ProtectThreshold
		_, out.Protected = snap.Select(registry.Filter{})
	}
	if snap.Version != 0 {
		out.Changed = snap.Version.Time().UTC()
	}
	return out
}

func (s *Server) nativeKind(key registry.ServiceKey) string {
	switch s.opts.Registry.Kind(key) {
	case registry.EphemeralService:
		return api.KindEphemeral
	case registry.PersistentService:
		return api.KindPersistent
	}
	return api.KindFree
}

// nativeInstances serves GET /instances: all that there is to know of the
// instances of a service, disabled and evicted ones too.
func (s *Server) nativeInstances(r *http.Request) (any, error) {
	q, err := query(r, "namespace", "group", "service", "cluster")
	if err != nil {
		return nil, err
	}
	key, err := q.nativeService()
	if err != nil {
		return nil, err
	}
	cluster := q["cluster"]
	if err := nacos.CheckCluster(cluster); err != nil {
		return nil, errNative(err.Error(), "")
	}
	snap := s.opts.Registry.Snapshot(key)
	if snap.Version == 0 && !s.opts.Registry.Exists(key) {
		return nil, errNoSuchService(key)
	}
	out := api.Instances{Service: nativeKey(key), At: time.Now().UTC(), Kind: s.nativeKind(key), Instances: []api.Standing{}}
	if snap.Meta != nil {
		out.Threshold = snap.Meta.ProtectThreshold
		_, out.Protected = snap.Select(registry.Filter{Clusters: cluster})
	}
	self, names := s.nodeNames()
	out.Node = self
	edits := s.editsOf(key)
	for _, h := range standing(snap) {
		if cluster == "" || h.Cluster == cluster {
			out.Instances = append(out.Instances, nativeStanding(h, edits, names))
		}
	}
	return out, nil
}

// A seen is an instance of a snapshot.
type seen struct {
	*registry.Shown
	evicted bool
}

// standing are all instances of a snapshot, evicted ones too, sorted by key.
func standing(snap *registry.Snapshot) []seen {
	all := make([]seen, 0, len(snap.Instances)+len(snap.Evicted))
	for _, h := range snap.Instances {
		all = append(all, seen{h, false})
	}
	for _, h := range snap.Evicted {
		all = append(all, seen{h, true})
	}
	if len(snap.Evicted) > 0 {
		slices.SortFunc(all, func(a, b seen) int { return a.Compare(b.InstanceKey) })
	}
	return all
}

func nativeStanding(h seen, edits map[registry.InstanceKey]*InstanceEdit, names map[string]string) api.Standing {
	out := api.Standing{InstanceKey: nativeInstanceKey(h.InstanceKey), ID: h.ID, Weight: h.Weight, Healthy: h.Healthy, Enabled: h.Enabled, Ephemeral: !h.Persistent,
		Metadata: nativeMetadata(h.Metadata), State: api.StandsLiving, Client: h.Client, Evicted: h.evicted, Edit: nativeEdit(edits[h.InstanceKey])}
	if !h.Persistent {
		out.Node, out.NodeName = h.Life.Node, names[h.Life.Node]
	}
	switch {
	case h.Moving:
		out.State = api.StandsMoving
	case h.State != registry.Living:
		out.State = api.StandsOrphaned
	}
	if h.Since != 0 {
		out.Registered = h.Since.Time().UTC()
	}
	return out
}

func nativeInstanceKey(k registry.InstanceKey) api.InstanceKey {
	return api.InstanceKey{IP: k.IP, Port: k.Port, Cluster: k.Cluster}
}

// nativeMetadata is never nil.
func nativeMetadata(md registry.Metadata) map[string]string {
	m := make(map[string]string, len(md))
	for _, kv := range md {
		m[kv.Key] = kv.Value
	}
	return m
}
