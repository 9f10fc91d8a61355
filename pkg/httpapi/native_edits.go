package httpapi

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"

	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/api"
	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

// nativeEdits serves GET /edits: of one namespace, or of all.
func (s *Server) nativeEdits(r *http.Request) (any, error) {
	q, err := query(r, "namespace")
	if err != nil {
		return nil, err
	}
	if err := nacos.CheckService(q["namespace"], "", ""); err != nil {
		return nil, errNative(err.Error(), "")
	}
	out := api.Edits{Edits: []api.InstanceEdit{}}
	var snap *registry.Snapshot
	for _, e := range s.opts.Native.Edits(registry.ServiceKey{Namespace: q["namespace"]}) {
		if snap == nil || snap.Service != e.Service {
			snap = s.opts.Registry.Snapshot(e.Service)
		}
		_, there := find(snap, e.InstanceKey)
		out.Edits = append(out.Edits, api.InstanceEdit{Service: nativeKey(e.Service), InstanceKey: nativeInstanceKey(e.InstanceKey), Edit: *nativeEdit(&e), There: there})
	}
	return out, nil
}

// find finds an instance of a snapshot, evicted ones too.
func find(snap *registry.Snapshot, k registry.InstanceKey) (seen, bool) {
	if h, ok := snap.Get(k); ok {
		return seen{h, false}, true
	}
	h, ok := snap.Find(k)
	return seen{h, true}, ok
}

// editsOf are the edits of the instances of a service.
func (s *Server) editsOf(key registry.ServiceKey) map[registry.InstanceKey]*InstanceEdit {
	if s.opts.Native.Edits == nil {
		return nil
	}
	var of map[registry.InstanceKey]*InstanceEdit
	for _, e := range s.opts.Native.Edits(key) {
		if of == nil {
			of = map[registry.InstanceKey]*InstanceEdit{}
		}
		of[e.InstanceKey] = &e
	}
	return of
}

// nativeEdit of none is nil.
func nativeEdit(e *InstanceEdit) *api.Edit {
	if e == nil {
		return nil
	}
	out := &api.Edit{Enabled: e.Enabled, Weight: e.Weight, Evicted: e.Evicted, StaysOut: e.StaysOut, Sticky: e.Sticky, Revision: e.Revision}
	if len(e.Metadata) > 0 {
		out.Metadata = nativeMetadata(e.Metadata)
	}
	if e.Since != 0 {
		out.Since = e.Since.Time().UTC()
	}
	return out
}

// editInstance serves POST /instances/edit.
//
// An instance that is neither there nor edited is refused: it is most often a
// mistyped address, and what was set for that would be over in a minute. What is
// sticky has a use: it is there before the instance is.
func (s *Server) editInstance(r *http.Request) (any, error) {
	var in api.EditRequest
	if err := s.readBody(r, &in); err != nil {
		return nil, err
	}
	if !in.Reset && in.Enabled == nil && in.Weight == nil && in.Metadata == nil && in.Sticky == nil {
		return nil, errNative("nothing is to be changed", "give enabled, weight, metadata, sticky or reset")
	}
	if w := in.Weight; w != nil && !(*w >= 0 && *w <= maxWeight) {
		return nil, errNative(fmt.Sprintf("weight is not between 0 and %d: %v", maxWeight, *w), "0 takes no traffic")
	}
	sticky := in.Sticky != nil && *in.Sticky
	e, err := s.target(r, &in.InstanceRef, sticky, "an edit that is sticky (--sticky) may be made before it is there; starling instances shows what is")
	if err != nil {
		return nil, err
	}
	var was registry.Override
	if e.before != nil {
		was = e.before.Override
	}
	edit := registry.Override{Enabled: in.Enabled, Weight: in.Weight, Sticky: sticky}
	anew := in.Reset
	switch {
	case in.Reset:
		was.Metadata = nil
	case in.Sticky != nil && !sticky && was.Sticky:
		// The log keeps what is sticky sticky, unless the edit is made anew.
		anew = true
		edit.Enabled, edit.Weight = cmp.Or(edit.Enabled, was.Enabled), cmp.Or(edit.Weight, was.Weight)
	}
	set := map[string]string{}
	var remove []string
	all := nativeMetadata(was.Metadata)
	for k, v := range in.Metadata {
		if v == nil {
			remove = append(remove, k)
			delete(all, k)
		} else {
			set[k], all[k] = *v, *v
		}
	}
	if err := nacos.CheckMetadata(all); in.Metadata != nil && err != nil {
		return nil, errNative(err.Error(), "take some keys back, with null")
	}
	put := func(ctx context.Context) error { return s.opts.Durable.PutOverride(ctx, e.key, e.at, edit, !anew) }
	// Key by key, so that what another node writes at the same time stays.
	keys := func(ctx context.Context) error {
		return s.opts.Durable.EditMetadata(ctx, e.key, []registry.InstanceKey{e.at}, registry.NewMetadata(set), remove)
	}
	write := put
	switch {
	case anew:
		edit.Metadata = registry.NewMetadata(all)
	case in.Metadata == nil:
	case in.Enabled != nil || in.Weight != nil: // first, or an edit that the last key is taken from would end
		write = both(put, keys)
	case sticky: // what there is nothing of cannot be sticky
		write = both(keys, put)
	default:
		write = keys
	}
	return s.written(r, e, "an instance is edited by an operator", write)
}

// both carries out two writes. What is said of the second alone would not be
// true of both.
func both(first, second func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := first(ctx); err != nil {
			return err
		}
		if err := second(ctx); err != nil {
			return &halfWritten{err}
		}
		return nil
	}
}

// A halfWritten is why the second half of a request was not written.
type halfWritten struct{ why error }

func (h *halfWritten) Error() string { return h.why.Error() }
func (h *halfWritten) Unwrap() error { return h.why }

// evictInstance serves POST /instances/evict.
func (s *Server) evictInstance(r *http.Request) (any, error) {
	var in api.EvictRequest
	if err := s.readBody(r, &in); err != nil {
		return nil, err
	}
	if in.Absent && in.UntilGone {
		return nil, errNative("absent and untilGone exclude each other", "what is not there is gone")
	}
	e, err := s.target(r, &in.InstanceRef, in.Absent, "with absent (--absent) it is kept away when it comes; starling instances shows what is there")
	if err != nil {
		return nil, err
	}
	return s.written(r, e, "an instance is evicted by an operator", func(ctx context.Context) error {
		return s.opts.Durable.Evict(ctx, e.key, e.at, in.UntilGone)
	})
}

// liftInstance serves POST /instances/lift. The instance is mostly not there.
func (s *Server) liftInstance(r *http.Request) (any, error) {
	var in api.InstanceRef
	if err := s.readBody(r, &in); err != nil {
		return nil, err
	}
	key, err := named(&in)
	if err != nil {
		return nil, err
	}
	var evicted []*InstanceEdit
	var clusters []string
	for k, e := range s.editsOf(key) {
		if e.Evicted && names(&in, k) {
			evicted, clusters = append(evicted, e), append(clusters, k.Cluster)
		}
	}
	switch len(evicted) {
	case 0:
		return nil, errNotEvicted(key, in.IP, in.Port)
	case 1:
	default:
		slices.Sort(clusters)
		return nil, errSeveralClusters(in.IP, in.Port, clusters)
	}
	e := &edited{key, evicted[0].InstanceKey, evicted[0]}
	return s.written(r, e, "an instance is not evicted any more", func(ctx context.Context) error {
		return s.opts.Durable.Lift(ctx, e.key, e.at)
	})
}

// An edited is an instance that is to be edited.
type edited struct {
	key    registry.ServiceKey
	at     registry.InstanceKey
	before *InstanceEdit // nil: there is no edit
}

// named checks how a request names an instance, and tells the service.
func named(ref *api.InstanceRef) (registry.ServiceKey, error) {
	key, err := nativeService(ref.Namespace, ref.Group, ref.Service)
	switch {
	case err != nil:
		return key, err
	case nacos.Blank(ref.IP):
		return key, errNative("ip is missing", "name the instance with ip and port")
	case ref.Port < 0 || ref.Port > math.MaxUint16:
		return key, errNative(fmt.Sprintf("port is not between 0 and 65535: %d", ref.Port), "")
	}
	for _, err := range []error{nacos.CheckIP(ref.IP), nacos.CheckCluster(ref.Cluster)} {
		if err != nil {
			return key, errNative(err.Error(), "")
		}
	}
	return key, nil
}

// names reports whether a request may mean an instance.
func names(ref *api.InstanceRef, k registry.InstanceKey) bool {
	return k.IP == ref.IP && k.Port == ref.Port && (ref.Cluster == "" || k.Cluster == ref.Cluster)
}

// target finds the instance that a request names among those that are there,
// or else have an edit; if absent, it is one that may come. hint is for one that
// is none of these.
func (s *Server) target(r *http.Request, ref *api.InstanceRef, absent bool, hint string) (*edited, error) {
	key, err := named(ref)
	if err != nil {
		return nil, err
	}
	edits := s.editsOf(key)
	if !absent && len(edits) == 0 {
		s.soon(r.Context(), func() bool {
			return slices.ContainsFunc(standing(s.opts.Registry.Snapshot(key)), func(h seen) bool { return names(ref, h.InstanceKey) })
		})
	}
	snap := s.opts.Registry.Snapshot(key)
	var clusters []string
	known := func(k registry.InstanceKey) {
		if names(ref, k) && !slices.Contains(clusters, k.Cluster) {
			clusters = append(clusters, k.Cluster)
		}
	}
	for _, h := range standing(snap) {
		known(h.InstanceKey)
	}
	if len(clusters) == 0 {
		for _, k := range slices.SortedFunc(maps.Keys(edits), registry.InstanceKey.Compare) {
			known(k)
		}
	}
	e := &edited{key: key, at: registry.InstanceKey{IP: ref.IP, Port: ref.Port, Cluster: cmp.Or(ref.Cluster, registry.DefaultCluster)}}
	switch {
	case len(clusters) > 1:
		return nil, errSeveralClusters(ref.IP, ref.Port, clusters)
	case len(clusters) == 1:
		e.at.Cluster = clusters[0]
	case !absent:
		return nil, errNoSuchInstance(key, ref.IP, ref.Port, hint)
	case ref.Port == 0: // rather forgotten than meant
		return nil, errNative("port is missing", "name the instance with ip and port")
	}
	e.before = edits[e.at]
	return e, nil
}

// written writes an edit to the log and tells what has become of the instance.
func (s *Server) written(r *http.Request, e *edited, what string, write func(context.Context) error) (any, error) {
	was := s.standingAt(e)
	if _, err := s.operatorWrites(r, write); err != nil {
		return nil, err
	}
	s.log.Info(what, zap.String("peer", r.RemoteAddr), zap.Stringer("service", e.key), zap.String("ip", e.at.IP), zap.Int("port", e.at.Port), zap.String("cluster", e.at.Cluster))
	return api.Edited{Service: nativeKey(e.key), InstanceKey: nativeInstanceKey(e.at), Before: nativeEdit(e.before), After: nativeEdit(s.editsOf(e.key)[e.at]),
		Was: was, Is: s.standingAt(e)}, nil
}

// standingAt is what there is of an instance now, or nil.
func (s *Server) standingAt(e *edited) *api.Standing {
	h, there := find(s.opts.Registry.Snapshot(e.key), e.at)
	if !there {
		return nil
	}
	_, names := s.nodeNames()
	is := nativeStanding(h, s.editsOf(e.key), names)
	return &is
}
