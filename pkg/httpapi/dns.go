package httpapi

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

// What the CoreDNS plugin of Nacos asks for: paths of 1.x that no later Nacos
// has (http-api §13).

// domains serves api/allDomNames: the names of all services, without groups, by
// namespace. The plugin asks for instances of the default namespace alone, and
// its first releases do not understand more.
func (s *Server) domains(c *call) error {
	spaces := []string{registry.DefaultNamespace}
	flat := isOldDNS(c)
	if !flat {
		spaces = slices.Sorted(maps.Keys(s.opts.Registry.Namespaces()))
	}
	reg, count, doms := s.opts.Registry, 0, []byte(nil)
	for i, namespace := range spaces {
		if i > 0 {
			doms = append(doms, ',')
		}
		if !flat {
			doms = append(nacos.AppendString(doms, namespace), ':')
		}
		names, groups := []string(nil), reg.Groups(namespace)
		for _, group := range groups {
			names = append(names, reg.Services(namespace, group)...)
		}
		if len(groups) > 1 {
			slices.Sort(names)
			names = slices.Compact(names)
		}
		doms = append(doms, '[')
		for i, name := range names {
			if i > 0 {
				doms = append(doms, ',')
			}
			doms = nacos.AppendString(doms, name)
		}
		doms = append(doms, ']')
		count += len(names)
	}
	head, tail := fmt.Appendf(nil, `{"count":%d,"doms":`, count), []byte{'}'}
	if !flat {
		head, tail = append(head, '{'), []byte("}}")
	}
	return c.answer(head, doms, tail)
}

// isOldDNS knows the plugin by either header: it sends its version beside the
// User-Agent of Go.
func isOldDNS(c *call) bool {
	for _, agent := range []string{c.r.UserAgent(), c.r.Header.Get("Client-Version")} {
		if version, ok := strings.CutPrefix(agent, "Nacos-DNS:v"); ok {
			return version == "1.0.0" || version == "1.0.1" || strings.HasPrefix(version, "0.")
		}
	}
	return false
}

// domain serves api/srvIPXT: the list of v1 with what 1.x had in it.
func (s *Server) domain(c *call) error {
	if c.get("dom") == "" {
		return errMissing("dom")
	}
	c.params["serviceName"] = c.params["dom"]
	key, f, err := s.asked(c)
	if err != nil {
		return err
	}
	snap, lastRefTime := s.opts.Registry.Serve(key)
	return c.answer(nacos.AppendDomain(nil, snap, f, lastRefTime, s.switches().PushCacheMillis))
}
