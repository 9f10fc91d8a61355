package httpapi

import (
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

// targets serves /prometheus and its longer forms: all instances for discovery
// over HTTP, unhealthy and disabled ones too (http-api §12). The answer is
// written as it is made: it may be long.
func (s *Server) targets(c *call) error {
	namespace, service := c.r.PathValue("namespaceId"), c.r.PathValue("service")
	if err := nacos.CheckService(namespace, service, ""); err != nil {
		return errParam(err)
	}
	c.w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	c.w.WriteHeader(http.StatusOK)
	buf, sep := make([]byte, 0, 32<<10), byte('[')
	for key := range s.servicesOf(namespace, service) {
		for _, h := range s.opts.Registry.Snapshot(key).Instances {
			buf = nacos.AppendTarget(append(buf, sep), key, h.Instance)
			sep = ','
			if len(buf) >= 24<<10 {
				if _, err := c.w.Write(buf); err != nil {
					return nil // the client has gone
				}
				buf = buf[:0]
			}
		}
	}
	if sep == '[' {
		buf = append(buf, sep)
	}
	_, _ = c.w.Write(append(buf, ']'))
	return nil
}

// servicesOf yields the services of a namespace, "" of all, with that bare name,
// "" with any; sorted.
func (s *Server) servicesOf(namespace, name string) func(yield func(registry.ServiceKey) bool) {
	return func(yield func(registry.ServiceKey) bool) {
		namespaces := []string{namespace}
		if namespace == "" {
			namespaces = slices.Sorted(maps.Keys(s.opts.Registry.Namespaces()))
		}
		for _, ns := range namespaces {
			for _, group := range s.opts.Registry.Groups(ns) {
				names := []string{name}
				if name == "" {
					names = s.opts.Registry.Services(ns, group)
				}
				for _, n := range names {
					if !yield(registry.ServiceKey{Namespace: ns, Group: group, Name: n}) {
						return
					}
				}
			}
		}
	}
}

// serverList serves /serverlist, as an address server does: the nodes that take
// clients. Some clients split lines at CR LF alone.
func (s *Server) serverList(c *call) error {
	var b strings.Builder
	for _, m := range s.members() {
		if m.State == nacos.StateUp {
			b.WriteString(m.Address() + "\r\n")
		}
	}
	writeText(c.w, c.r, http.StatusOK, b.String())
	return nil
}
