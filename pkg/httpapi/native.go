package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/api"
	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

// Native is what the native API (api.Path) tells and does. Each function may
// be nil: the node does not have it, and the answer is api.CodeNotOffered. They
// are called from any goroutine, and what they return is not changed
// afterwards. An *api.Error goes to the caller as it is; any other error is
// logged and becomes api.CodeInternal.
type Native struct {
	// Members tells the members as this node sees them.
	Members func() api.Members
	// Cluster tells this node's row of the matrix node × life.
	Cluster func() api.Cluster
	// EndSelfPreservation lets leases run again and tells what is then.
	// Nothing happens if they run.
	EndSelfPreservation func() api.SelfPreservation
	// Hashes tells what every service looks like on the node with the given
	// id; "" is this one. For an id that is no member's: api.CodeNotFound; for
	// one that cannot be asked: api.CodeUnreachable.
	Hashes func(ctx context.Context, node string) (api.Hashes, error)
	// History asks all members that have not left. Those that do not answer
	// while the context lasts are in the result with an error, so it is to
	// return a little before. The name of the service is complete.
	History func(ctx context.Context, s api.Service) ([]api.NodeHistory, error)
	// DrainPlan tells what a drain would do.
	DrainPlan func(ctx context.Context) (api.DrainPlan, error)
	// Drain begins to drain this node, if that is not under way or done, and
	// returns without waiting for it. The node still serves HTTP when it is
	// over, so that DrainProgress can be asked. The context is that of the
	// request only.
	Drain func(ctx context.Context) (api.Drain, error)
	// DrainProgress tells how far it is.
	DrainProgress func() api.Drain
	// Raft tells the log of the cluster as this node sees it.
	Raft func() api.Raft
	// Backup writes the tables of the log to w, if this node leads. What it
	// refuses (api.CodeNotLeader, api.CodeNoLeader) it refuses before it
	// writes; an error after that ends the transfer in a way that no client
	// takes for a whole one.
	Backup func(ctx context.Context, w io.Writer) error
	// Restore gives the log what a backup holds, if this node leads and the
	// tables are empty (else api.CodeNotEmpty), or with force. What can be
	// refused without the backup is refused before it is read. It is called
	// once at a time. An error of the reader is returned as it is, or wrapped.
	Restore func(ctx context.Context, backup io.Reader, force bool) (api.Restored, error)
	// RemoveMember takes a node out of the log, if this one leads; for an id
	// that the log does not know: api.CodeNotFound. Who is alive was refused
	// before.
	RemoveMember func(ctx context.Context, id string) (api.Removed, error)
	// RestoreLimit bounds the bytes of a backup that is restored.
	RestoreLimit int64

	// Edits tells what operators have set, by service and instance: of one
	// service, in one namespace if only that is named, or in all.
	Edits func(of registry.ServiceKey) []InstanceEdit
}

// An InstanceEdit is what operators have set for an instance.
type InstanceEdit struct {
	Service registry.ServiceKey
	registry.InstanceKey
	registry.Override
	Since registry.Stamp // when it was written
}

// Time that a request may take which other nodes are asked for.
const (
	historyTimeout = 5 * time.Second
	hashesTimeout  = 20 * time.Second
	removeTimeout  = 8 * time.Second // the command waits for 10
	writeTimeout   = 8 * time.Second // of an edit, as much
)

// A nativeRoute is one method of one path of the native API.
type nativeRoute struct {
	method, path string // below api.Path
	offered      bool   // by this node
	// answer makes what is sent as JSON. It is for GET, or for POST with a JSON
	// body, from no other site.
	answer func(*http.Request) (any, error)
	// whole does everything itself, in place of answer. Its GET has no HEAD.
	whole handler
}

// nativeTable is the native API. What it has is said nowhere else in the
// server; openapi.json says how to use it.
func (s *Server) nativeTable() []nativeRoute {
	n := &s.opts.Native
	return []nativeRoute{
		{"GET", "/services", true, s.nativeServices, nil},
		{"GET", "/instances", true, s.nativeInstances, nil},
		{"POST", "/instances/edit", n.Edits != nil, s.editInstance, nil},
		{"POST", "/instances/evict", n.Edits != nil, s.evictInstance, nil},
		{"POST", "/instances/lift", n.Edits != nil, s.liftInstance, nil},
		{"GET", "/edits", n.Edits != nil, s.nativeEdits, nil},
		{"GET", "/history", n.History != nil && n.Members != nil, s.history, nil},
		{"GET", "/subscribers", s.opts.Clients != noClients{}, s.nativeSubscribers, nil},
		{"GET", "/namespaces", true, s.nativeNamespaces, nil},
		{"POST", "/namespaces", true, s.makeNamespace, nil},
		{"POST", "/namespaces/remove", true, s.forgetNamespace, nil},

		{"GET", "/members", n.Members != nil, func(r *http.Request) (any, error) {
			_, err := query(r)
			m := n.Members()
			m.Members = listed(m.Members)
			return m, err
		}, nil},
		{"POST", "/members/remove", n.RemoveMember != nil && n.Members != nil, s.removeMember, nil},
		{"GET", "/cluster", n.Cluster != nil, func(r *http.Request) (any, error) {
			_, err := query(r)
			c := n.Cluster()
			c.Lives, c.Peers = listed(c.Lives), listed(c.Peers)
			return c, err
		}, nil},
		{"POST", "/self-preservation/end", n.EndSelfPreservation != nil, s.endSelfPreservation, nil},
		{"GET", "/hashes", n.Hashes != nil, s.hashes, nil},
		{"GET", "/drain", n.DrainProgress != nil, func(r *http.Request) (any, error) {
			_, err := query(r)
			return drained(n.DrainProgress()), err
		}, nil},
		{"POST", "/drain", n.Drain != nil && n.DrainPlan != nil, s.drain, nil},
		{"GET", "/raft", n.Raft != nil, func(r *http.Request) (any, error) {
			_, err := query(r)
			l := n.Raft()
			l.Servers = listed(l.Servers)
			return l, err
		}, nil},
		{"GET", "/backup", n.Backup != nil && n.Raft != nil, nil, s.backup},
		{"POST", "/restore", n.Restore != nil, nil, s.restorer()},
		{"GET", "/openapi.json", true, func(r *http.Request) (any, error) {
			_, err := query(r)
			return json.RawMessage(openAPI), err
		}, nil},
	}
}

// nativeRoutes adds the native API. It answers also while the node is not
// ready: that is when people ask.
//
// There are no accounts, as in the rest of this server. What a browser sends
// on behalf of another site is refused all the same: a page that an operator
// looks at must not drain a node that only the operator reaches.
func (s *Server) nativeRoutes(route func(pattern string, h handler)) {
	methods := map[string][]string{}
	for _, rt := range s.nativeTable() {
		methods[rt.path] = append(methods[rt.path], rt.method)
		if rt.method == http.MethodGet && rt.whole == nil {
			methods[rt.path] = append(methods[rt.path], http.MethodHead)
		}
		route(rt.method+" "+api.Path+rt.path, func(w http.ResponseWriter, r *http.Request) error {
			switch {
			case !rt.offered:
				return errNotInNode
			case rt.whole != nil:
				return rt.whole(w, r)
			}
			if r.Method == http.MethodPost {
				if err := s.checkWrite(r, "application/json"); err != nil {
					return err
				}
				if _, err := query(r); err != nil {
					return err
				}
			}
			answer, err := rt.answer(r)
			if err != nil {
				return nativeError(err)
			}
			return writeNative(w, answer)
		})
	}
	paths := slices.Sorted(maps.Keys(methods))
	for _, path := range paths {
		allowed := strings.Join(methods[path], ", ")
		route(api.Path+path, func(w http.ResponseWriter, r *http.Request) error {
			w.Header().Set("Allow", allowed)
			return errNativeMethod(r, allowed)
		})
	}
	unknown := func(_ http.ResponseWriter, r *http.Request) error { return errNoNative(r, paths) }
	route(api.Path, unknown)
	route(api.Path+"/", unknown)
}

func writeNative(w http.ResponseWriter, answer any) error {
	b, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, http.StatusOK, append(b, '\n'))
	return nil
}

// checkWrite refuses what a browser may send for another site, and what it may
// send without asking first: every type of body but the few of forms.
func (s *Server) checkWrite(r *http.Request, body string) error {
	if err := s.crossOrigin.Check(r); err != nil {
		return errCrossSite
	}
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != body {
		return errContentType(body)
	}
	return nil
}

// readBody reads the one JSON value of a body, strictly: a misspelt field must
// not turn a dry run into a real one.
func (s *Server) readBody(r *http.Request, into any) error {
	limit := int64(s.opts.MaxRequestBytes)
	d := json.NewDecoder(http.MaxBytesReader(nil, r.Body, limit))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if err == nil {
		if _, more := d.Token(); more == io.EOF {
			return nil
		}
		err = errors.New("there is more than one JSON value")
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return errNativeTooLarge(limit)
	}
	return errNative("the body is not what this takes: "+jsonFault(err), "")
}

// jsonFault says what is wrong with a body, without the decoder's words for it:
// they are about types of this program.
func jsonFault(err error) string {
	if err == io.EOF {
		return "it is empty"
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		if e.Field == "" {
			return "it is of the type " + clip(e.Value) + ", not an object"
		}
		// A field of an embedded type comes as Type.field; ours begin in lower case.
		path := slices.DeleteFunc(strings.Split(e.Field, "."), func(name string) bool { return name != "" && name[0] >= 'A' && name[0] <= 'Z' })
		return strconv.Quote(strings.Join(path, ".")) + " cannot be of the type " + clip(e.Value)
	}
	if _, ok := errors.AsType[*json.SyntaxError](err); ok || errors.Is(err, io.ErrUnexpectedEOF) {
		return "it is not JSON"
	}
	return clip(strings.TrimPrefix(err.Error(), "json: ")) // it may repeat a name
}

func (s *Server) endSelfPreservation(r *http.Request) (any, error) {
	if err := s.readBody(r, &struct{}{}); err != nil {
		return nil, err
	}
	s.log.Warn("self-preservation is ended by an operator", zap.String("peer", r.RemoteAddr))
	return s.opts.Native.EndSelfPreservation(), nil
}

func (s *Server) hashes(r *http.Request) (any, error) {
	q, err := query(r, "node")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), hashesTimeout)
	defer cancel()
	h, err := s.opts.Native.Hashes(ctx, q["node"])
	h.Services = listed(h.Services)
	return h, err
}

func (s *Server) history(r *http.Request) (any, error) {
	q, err := query(r, "namespace", "group", "service", "instance")
	if err != nil {
		return nil, err
	}
	key, err := q.nativeService()
	if err != nil {
		return nil, err
	}
	var ip string
	var port int
	if at := q["instance"]; at != "" {
		if ip, port, err = splitInstance(at); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), historyTimeout)
	defer cancel()
	of := nativeKey(key)
	nodes, err := s.opts.Native.History(ctx, of)
	if err != nil {
		return nil, err
	}
	_, names := s.nodeNames()
	return api.NewHistory(of, ip, port, nodes, names), nil
}

// nativeService reads the service that a request of the native API is about.
func (p params) nativeService() (registry.ServiceKey, error) {
	return nativeService(p["namespace"], p["group"], p["service"])
}

// nativeService reads the name of a service, which may be GROUP@@NAME.
func nativeService(namespace, group, name string) (key registry.ServiceKey, err error) {
	if g, n, grouped := strings.Cut(name, "@@"); grouped {
		switch {
		case nacos.Blank(g):
			return key, errNative("service names no group before the @@", "leave out the @@, or name one")
		case group != "" && group != g:
			return key, errNative("service names the group "+clip(g)+", group another", "leave out one of them")
		}
		group, name = g, n
	}
	if nacos.Blank(name) {
		return key, errNative("service is missing", "name one; it may be GROUP@@NAME")
	}
	if err := nacos.CheckService(namespace, name, group); err != nil {
		return key, errNative(err.Error(), "")
	}
	key = registry.ServiceKey{Namespace: registry.DefaultNamespace, Group: registry.DefaultGroup, Name: name}
	if !nacos.Blank(namespace) {
		key.Namespace = namespace
	}
	if !nacos.Blank(group) {
		key.Group = group
	}
	return key, nil
}

func nativeKey(k registry.ServiceKey) api.Service {
	return api.Service{Namespace: k.Namespace, Group: k.Group, Name: k.Name}
}

// nodeNames tells the id of this node, and the names of all members.
func (s *Server) nodeNames() (self string, names map[string]string) {
	names = map[string]string{}
	if s.opts.Native.Members == nil {
		return "", names
	}
	m := s.opts.Native.Members()
	for _, n := range m.Members {
		names[n.ID] = n.Name
	}
	return m.Node, names
}

// splitInstance reads IP:PORT. Nacos takes names for addresses too, and IPv6
// ones in any spelling; here is compared what was registered.
func splitInstance(s string) (ip string, port int, err error) {
	ip, p, err := net.SplitHostPort(s)
	n, err2 := strconv.ParseUint(p, 10, 16)
	if err != nil || err2 != nil || ip == "" {
		return "", 0, errNative("instance is not IP:PORT: "+clip(s), "for example instance=10.0.0.7:8080, or instance=[fd00::7]:8080")
	}
	return ip, int(n), nil
}

func (s *Server) drain(r *http.Request) (any, error) {
	var in api.DrainRequest
	if err := s.readBody(r, &in); err != nil {
		return nil, err
	}
	n := &s.opts.Native
	switch {
	case in.DryRun == nil:
		return nil, errNative(`"dryRun" is missing`, `{"dryRun":true} tells the plan, {"dryRun":false} drains the node`)
	case !*in.DryRun:
		s.log.Info("drain is asked for", zap.String("peer", r.RemoteAddr))
		d, err := n.Drain(r.Context())
		return drained(d), err
	}
	plan, err := n.DrainPlan(r.Context())
	if err != nil {
		return nil, err
	}
	d := api.Drain{State: api.DrainPlanned, Plan: plan, ClientsLeft: plan.Clients, InstancesLeft: plan.Instances}
	if n.Members != nil {
		for _, m := range n.Members().Members {
			if m.Self {
				d.Node, d.Name = m.ID, m.Name
			}
		}
	}
	return drained(d), nil
}

func drained(d api.Drain) api.Drain {
	d.Plan.Targets = listed(d.Plan.Targets)
	return d
}

// listed makes a list of none an empty one, which JSON tells apart.
func listed[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// query reads the parameters of a request, each at most once. Unknown ones are
// refused, and what cannot be read: a misspelt filter would show too much and be
// taken for all there is.
func query(r *http.Request, known ...string) (params, error) {
	all, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, errNative("the query cannot be read: there is a % or a ; that is not escaped", "")
	}
	for name, values := range all {
		if len(values) > 1 {
			return nil, errNative("there is more than one parameter "+clip(name), "")
		}
	}
	p := params{}
	if err := p.addQuery(r.URL.RawQuery); err != nil {
		return nil, errNative(errTooMany.text, "")
	}
	for name := range p {
		if !slices.Contains(known, name) {
			hint := "this takes none"
			if len(known) > 0 {
				hint = "known are " + strings.Join(known, ", ")
			}
			return nil, errNative("there is no parameter "+clip(name), hint)
		}
	}
	return p, nil
}

// nativeFlag reads a parameter that is true or false; without it: false.
func (p params) nativeFlag(name string) (bool, error) {
	switch v, given := p[name]; {
	case v == "true":
		return true, nil
	case given && v != "false":
		return false, errNative(name+" is neither true nor false: "+clip(v), "")
	}
	return false, nil
}

// nativeNumber reads a parameter within bounds; without it: usual.
func (p params) nativeNumber(name string, usual, least, most int) (int, error) {
	v, given := p[name]
	if !given {
		return usual, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < least || n > most {
		return 0, errNative(name+" is no number from "+strconv.Itoa(least)+" to "+strconv.Itoa(most)+": "+clip(v), "")
	}
	return n, nil
}

// nativeError dresses an error of the functions behind the API.
func nativeError(err error) error {
	if e, ok := errors.AsType[*api.Error](err); ok {
		status := e.Status
		if status < 400 || status > 599 {
			status = http.StatusInternalServerError
		}
		return &apiError{status: status, shape: native, text: e.Code + ": " + e.Message, hint: e.Hint, server: e.Server}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return errNativeTimeout
	}
	return err
}
