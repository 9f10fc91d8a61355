package grpcresolver

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/starling-registry/starling/pkg/client"
)

// Scheme is what targets begin with.
const Scheme = "starling"

// A Target is what a channel connects to: the instances of a service, or some of
// them.
type Target struct {
	Group    string // "" is client.DefaultGroup
	Service  string
	Clusters []string          // none: all
	Meta     map[string]string // all must match
	// PortMeta is the metadata that has the port, if it is not the instance's own.
	// Instances without it are used with their own port.
	PortMeta string
}

// String is the target for grpc.NewClient, with everything escaped that must be:
// names may come from outside.
func (t Target) String() string {
	u := Scheme + ":///"
	if t.Group != "" {
		u += url.PathEscape(t.Group) + "/"
	}
	u += url.PathEscape(t.Service)
	q := make(url.Values)
	if len(t.Clusters) > 0 {
		q.Set("cluster", strings.Join(t.Clusters, ","))
	}
	for k, v := range t.Meta {
		q.Set("meta."+k, v)
	}
	if t.PortMeta != "" {
		q.Set("port_meta", t.PortMeta)
	}
	if len(q) > 0 {
		u += "?" + q.Encode()
	}
	return u
}

// ParseTarget reads a target of any scheme. The error says what is wrong with it.
func ParseTarget(target string) (Target, error) {
	u, err := url.Parse(target)
	if err != nil {
		return Target{}, fmt.Errorf("target %q: %w", target, err)
	}
	return parseURL(u)
}

// clusterName is what servers accept as one.
var clusterName = regexp.MustCompile(`^[0-9a-zA-Z-]+$`)

func parseURL(u *url.URL) (Target, error) {
	bad := func(format string, args ...any) (Target, error) {
		return Target{}, fmt.Errorf("target %q: %s", u, fmt.Sprintf(format, args...))
	}
	switch {
	case u.Host != "" || u.User != nil:
		// Two slashes make an authority of it, which would be a server.
		return bad("the service stands where a host would: write %s:///%s", u.Scheme, u.Host)
	case u.Opaque != "":
		return bad("write %s:///%s", u.Scheme, u.Opaque)
	case u.Fragment != "":
		return bad("has a fragment; escape # as %%23")
	}

	var t Target
	// The escaped form, in which only the slash that divides is one.
	parts := strings.Split(strings.TrimPrefix(u.EscapedPath(), "/"), "/")
	for i, part := range parts {
		name, err := url.PathUnescape(part)
		if err != nil {
			return bad("%v", err)
		}
		parts[i] = name
	}
	switch len(parts) {
	case 1:
		t.Service = parts[0]
	case 2:
		t.Group, t.Service = parts[0], parts[1]
		if strings.TrimSpace(t.Group) == "" {
			return bad("the group is empty")
		}
	default:
		return bad("has %d parts, not [group/]service; escape a slash in a name as %%2F", len(parts))
	}

	params, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return bad("%v", err)
	}
	for key, values := range params {
		meta, isMeta := strings.CutPrefix(key, "meta.")
		if key == "cluster" || key == "clusters" {
			for _, v := range values {
				t.Clusters = append(t.Clusters, strings.Split(v, ",")...)
			}
			continue
		}
		if len(values) > 1 {
			return bad("parameter %s is given %d times", key, len(values))
		}
		switch {
		case key == "group" && t.Group != "":
			return bad("has a group in its path and another one as parameter")
		case key == "group":
			t.Group = values[0]
			if strings.TrimSpace(t.Group) == "" {
				return bad("the group is empty")
			}
		case key == "port_meta":
			t.PortMeta = values[0]
			if t.PortMeta == "" {
				return bad("port_meta is empty")
			}
		case isMeta && meta != "":
			if t.Meta == nil {
				t.Meta = make(map[string]string)
			}
			t.Meta[meta] = values[0]
		default:
			return bad("unknown parameter %s; there are group, cluster, meta.KEY and port_meta", key)
		}
	}

	switch {
	case strings.TrimSpace(t.Service) == "":
		return bad("names no service")
	case strings.Contains(t.Service, "@@") || strings.Contains(t.Group, "@@"):
		return bad("the group stands before the service, with a slash and not with @@")
	}
	for _, c := range t.Clusters {
		if !clusterName.MatchString(c) {
			return bad("cluster %q is not made of letters, digits and dashes", c)
		}
	}
	slices.Sort(t.Clusters)
	t.Clusters = slices.Compact(t.Clusters)
	return t, nil
}

// id is the service's.
func (t Target) id() client.ServiceID {
	if t.Group == "" {
		return client.ServiceID{Group: client.DefaultGroup, Name: t.Service}
	}
	return client.ServiceID{Group: t.Group, Name: t.Service}
}

func (t Target) query() []client.QueryOption {
	// An old list is better than none while no server can be reached, and grpc
	// leaves out addresses where nobody is any more.
	o := []client.QueryOption{client.Group(t.id().Group), client.StaleOK(0)}
	if len(t.Clusters) > 0 {
		o = append(o, client.Clusters(t.Clusters...))
	}
	if len(t.Meta) > 0 {
		o = append(o, client.MetaAll(t.Meta))
	}
	return o
}
