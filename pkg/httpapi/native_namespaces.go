package httpapi

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"unicode/utf8"

	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/api"
	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

// nativeNamespaces serves GET /namespaces: those that somebody has made, those
// that services use, and public.
func (s *Server) nativeNamespaces(r *http.Request) (any, error) {
	if _, err := query(r); err != nil {
		return nil, err
	}
	all := map[string]api.Namespace{}
	services := s.opts.Registry.Namespaces()
	for _, n := range s.opts.Namespaces.Namespaces() {
		all[n.ID] = api.Namespace{ID: n.ID, Name: n.Name, Description: n.Description, InTable: true}
	}
	for id := range services {
		all[id] = cmp.Or(all[id], api.Namespace{ID: id})
	}
	all[registry.DefaultNamespace] = cmp.Or(all[registry.DefaultNamespace], api.Namespace{ID: registry.DefaultNamespace})
	out := api.Namespaces{Namespaces: []api.Namespace{}}
	for _, id := range slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		public := func(id string) int { // first
			if id == registry.DefaultNamespace {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(public(a), public(b)), cmp.Compare(a, b))
	}) {
		n := all[id]
		n.Name, n.Services = cmp.Or(n.Name, id), services[id]
		out.Namespaces = append(out.Namespaces, n)
	}
	return out, nil
}

// makeNamespace serves POST /namespaces.
func (s *Server) makeNamespace(r *http.Request) (any, error) {
	var in api.NamespaceRequest
	if err := s.readBody(r, &in); err != nil {
		return nil, err
	}
	n := api.Namespace{ID: in.ID, Name: in.Name, Description: in.Description, InTable: true}
	if nacos.Blank(n.ID) {
		n.ID = newUUID()
	}
	if err := nacos.CheckService(n.ID, "", ""); err != nil {
		return nil, errNative("id is not up to 64 of A-Z a-z 0-9 _ -: "+clip(n.ID), "without an id one is made up")
	}
	if nacos.Blank(n.Name) {
		n.Name = n.ID
	}
	for what, text := range map[string]struct {
		is   string
		most int
	}{"name": {n.Name, maxNamespaceName}, "description": {n.Description, maxNamespaceDescription}} {
		if utf8.RuneCountInString(text.is) > text.most {
			return nil, errNative(fmt.Sprintf("%s is longer than %d characters", what, text.most), "")
		}
	}
	if s.isMade(n.ID) {
		return nil, errNamespaceIsThere(n.ID)
	}
	refused, err := s.operatorWrites(r, func(ctx context.Context) error {
		return s.opts.Namespaces.PutNamespace(ctx, Namespace{n.ID, n.Name, n.Description}, true)
	})
	if refused == Exists {
		return nil, errNamespaceIsThere(n.ID)
	}
	if err != nil {
		return nil, err
	}
	s.log.Info("a namespace is made by an operator", zap.String("peer", r.RemoteAddr), zap.String("namespace", n.ID))
	n.Services = s.opts.Registry.Namespaces()[n.ID]
	return n, nil
}

// forgetNamespace serves POST /namespaces/remove. What is in the namespace is
// not touched.
func (s *Server) forgetNamespace(r *http.Request) (any, error) {
	var in api.RemoveNamespaceRequest
	if err := s.readBody(r, &in); err != nil {
		return nil, err
	}
	switch {
	case nacos.Blank(in.ID):
		return nil, errNative("id is missing", "starling namespaces shows the ids")
	case in.ID == registry.DefaultNamespace:
		return nil, errPublicStays
	}
	services := s.opts.Registry.Namespaces()[in.ID]
	n := api.Namespace{ID: in.ID, Name: in.ID}
	if was, made := s.opts.Namespaces.Namespace(in.ID); made {
		n.Name, n.Description = was.Name, was.Description
	}
	hint := "starling namespaces shows them"
	if services > 0 {
		hint = "it is there because services are in it, and goes with the last of them"
	}
	refused, err := s.operatorWrites(r, func(ctx context.Context) error { return s.opts.Namespaces.RemoveNamespace(ctx, in.ID) })
	if refused == NotFound {
		return nil, errNoSuchNamespace(in.ID, hint)
	}
	if err != nil {
		return nil, err
	}
	s.log.Warn("a namespace is removed by an operator", zap.String("peer", r.RemoteAddr), zap.String("namespace", in.ID))
	n.Name, n.Services = cmp.Or(n.Name, n.ID), services
	return n, nil
}
