package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/starling-registry/starling/pkg/nacos"
)

// A scene is a network in a bubble of virtual time, with scripted servers and the
// clients of a test. What a client leaves running fails the test: a bubble does
// not end while a goroutine of it is there.
type scene struct {
	t       *testing.T
	mu      sync.Mutex
	servers map[string]*fake // by host
	dials   int
	wrap    func(net.Conn) net.Conn // what the client gets
	logs    strings.Builder
	port    int
}

func run(t *testing.T, f func(*testing.T, *scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &scene{t: t, servers: map[string]*fake{}, port: 40000}
		defer func() {
			for _, f := range s.servers {
				f.kill()
			}
			if t.Failed() {
				t.Log("log of the clients:\n" + s.log())
			}
		}()
		f(t, s)
	})
}

func (s *scene) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.logs.Write(b)
}

func (s *scene) log() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.logs.String()
}

func (s *scene) dial(ctx context.Context, addr string) (net.Conn, error) {
	host, _, _ := net.SplitHostPort(addr)
	s.mu.Lock()
	f := s.servers[host]
	s.dials++
	s.port++
	port, wrap := s.port, s.wrap
	s.mu.Unlock()
	if f == nil {
		return nil, errors.New("connection refused")
	}
	conn, err := f.accept(ctx, port)
	if err == nil && wrap != nil {
		conn = wrap(conn)
	}
	return conn, err
}

// client is closed at the end of the test, if the test has not done so.
func (s *scene) client(cfg Config, opts ...Option) *Client {
	s.t.Helper()
	if cfg.CacheDir == "" {
		cfg.CacheDir = "off"
	}
	if cfg.Addrs == nil {
		for _, host := range slices.Sorted(maps.Keys(s.servers)) {
			cfg.Addrs = append(cfg.Addrs, host+":8848")
		}
	}
	opts = append([]Option{WithDialContext(s.dial), WithLogger(slog.New(slog.NewTextHandler(s, &slog.HandlerOptions{Level: slog.LevelDebug})))}, opts...)
	c, err := New(cfg, opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

// A fake is a server with one service list for all its connections. It does what
// servers of Nacos do, unless a script says otherwise.
type fake struct {
	s    *scene
	host string

	mu        sync.Mutex
	grpc      *grpc.Server
	conns     chan net.Conn
	done      chan struct{} // closed when it does not serve any more
	sessions  map[string]*remote
	abilities map[string]bool
	oldStyle  bool // no negotiation
	lastRef   int64
	fixed     map[string][]host // instances by service that nobody of ours has registered
	asked     []asked
	// script answers instead of the server if it returns something; called under
	// no lock.
	script func(r *remote, typ string, body []byte) *nacos.Payload
	noPush bool
}

type asked struct {
	typ, body, conn string
	headers         map[string]string
	at              time.Time
}

// A remote is a connection as the server has it.
type remote struct {
	f      *fake
	id     string
	stream grpc.ServerStream
	send   sync.Mutex
	end    chan struct{}
	pubs   map[string][]host // by service
	subs   map[string]bool
	fuzzy  map[string]bool
	acks   []asked
	next   int
	setup  nacos.Payload
}

type fakeListener struct{ f *fake }

type fakeAddr string

func (fakeAddr) Network() string  { return "tcp" }
func (a fakeAddr) String() string { return string(a) }

type fakeConn struct {
	net.Conn
	local, remote net.Addr
}

func (c fakeConn) RemoteAddr() net.Addr { return c.remote }
func (c fakeConn) LocalAddr() net.Addr  { return c.local }

func (l fakeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.f.conns:
		return c, nil
	case <-l.f.done:
		return nil, net.ErrClosed
	}
}
func (l fakeListener) Close() error   { return nil }
func (l fakeListener) Addr() net.Addr { return fakeAddr(l.f.host + ":9848") }

// server starts one, after its fields have been set by with. It must not be called
// for a host that is up.
func (s *scene) server(name string, with ...func(*fake)) *fake {
	f := &fake{s: s, host: name, conns: make(chan net.Conn), done: make(chan struct{}), sessions: map[string]*remote{}, fixed: map[string][]host{},
		abilities: map[string]bool{abilityFuzzy: true, abilityPersistent: true}, lastRef: 1_000_000}
	f.grpc = grpc.NewServer(grpc.ForceServerCodecV2(nacos.Codec{}))
	f.grpc.RegisterService(&grpc.ServiceDesc{ServiceName: nacos.RequestService, HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
		MethodName: "request",
		Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			p := new(nacos.Payload)
			if err := decode(p); err != nil {
				return nil, err
			}
			return f.request(ctx, p)
		}}}}, nil)
	f.grpc.RegisterService(&grpc.ServiceDesc{ServiceName: nacos.BiStreamService, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
		StreamName: "requestBiStream", ServerStreams: true, ClientStreams: true,
		Handler: func(_ any, st grpc.ServerStream) error { return f.stream(st) },
	}}}, nil)
	for _, f1 := range with {
		f1(f)
	}
	s.mu.Lock()
	s.servers[name] = f
	s.mu.Unlock()
	go f.grpc.Serve(fakeListener{f})
	return f
}

func (f *fake) accept(ctx context.Context, port int) (net.Conn, error) {
	a, b := net.Pipe()
	us, them := fakeAddr("10.9.9.9:"+strconv.Itoa(port)), fakeAddr(f.host+":9848")
	select {
	case f.conns <- fakeConn{b, them, us}:
		return fakeConn{a, us, them}, nil
	case <-f.done:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// kill ends the server and all connections to it.
func (f *fake) kill() {
	f.s.mu.Lock()
	if f.s.servers[f.host] == f {
		delete(f.s.servers, f.host)
	}
	f.s.mu.Unlock()
	select {
	case <-f.done:
		return
	default:
	}
	close(f.done)
	f.grpc.Stop()
}

func (f *fake) request(ctx context.Context, p *nacos.Payload) (*nacos.Payload, error) {
	from, _ := peer.FromContext(ctx)
	id := from.Addr.String()
	f.mu.Lock()
	f.asked = append(f.asked, asked{p.Type, string(p.Body), id, p.Headers, time.Now()})
	r := f.sessions[id]
	script := f.script
	f.mu.Unlock()
	if script != nil {
		if answer := script(r, p.Type, p.Body); answer == hang {
			<-ctx.Done()
			return nil, ctx.Err()
		} else if answer != nil {
			return answer, nil
		}
	}
	if p.Type == nacos.TypeServerCheckRequest {
		b, _ := json.Marshal(map[string]any{"resultCode": 200, "connectionId": id, "supportAbilityNegotiation": !f.oldStyle})
		return &nacos.Payload{Type: nacos.TypeServerCheckResponse, Body: b}, nil
	}
	if r == nil {
		return nacos.ErrorResponse(500, nacos.CodeUnregistered, nacos.MsgUnregistered), nil
	}
	return r.request(p), nil
}

// hang is the answer of a script that is none.
var hang = &nacos.Payload{Type: "hang"}

func (f *fake) stream(st grpc.ServerStream) error {
	setup := new(nacos.Payload)
	if err := st.RecvMsg(setup); err != nil {
		return err
	}
	from, _ := peer.FromContext(st.Context())
	r := &remote{f: f, id: from.Addr.String(), stream: st, end: make(chan struct{}), pubs: map[string][]host{}, subs: map[string]bool{}, fuzzy: map[string]bool{}, setup: *setup}
	f.mu.Lock()
	f.sessions[r.id] = r
	old, abilities := f.oldStyle, f.abilities
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.sessions, r.id)
		f.mu.Unlock()
		f.mu.Lock()
		pubs := slices.Collect(maps.Keys(r.pubs))
		f.mu.Unlock()
		for _, name := range pubs {
			f.changed(name)
		}
	}()
	if !old {
		b, _ := json.Marshal(map[string]any{"abilityTable": abilities})
		r.push(nacos.TypeSetupAckRequest, b)
	}
	received := make(chan error, 1)
	go func() {
		for {
			p := new(nacos.Payload)
			if err := st.RecvMsg(p); err != nil {
				received <- err
				return
			}
			f.mu.Lock()
			r.acks = append(r.acks, asked{typ: p.Type, body: string(p.Body), at: time.Now()})
			f.mu.Unlock()
		}
	}()
	select {
	case err := <-received:
		return err
	case <-r.end:
		return errors.New("closed by the server")
	}
}

func (r *remote) push(typ string, body []byte) {
	r.send.Lock()
	defer r.send.Unlock()
	r.stream.SendMsg(&nacos.Payload{Type: typ, Body: body})
}

func okay(typ string, more string) *nacos.Payload {
	return &nacos.Payload{Type: typ, Body: []byte(`{"resultCode":200,"errorCode":0,"success":true` + more + `}`)}
}

func refuse(typ string, code int) *nacos.Payload {
	return nacos.Failure(typ, 500, code, "no, "+strconv.Itoa(code))
}

func (r *remote) request(p *nacos.Payload) *nacos.Payload {
	f := r.f
	var m struct {
		Namespace, ServiceName, GroupName, Type string
		Instance                                *host
		Instances                               []host
		Subscribe                               bool
		GroupKeyPattern, WatchType              string
	}
	if err := json.Unmarshal(p.Body, &m); err != nil {
		return refuse(nacos.TypeErrorResponse, 502)
	}
	name := m.GroupName + "@@" + m.ServiceName
	switch p.Type {
	case nacos.TypeHealthCheckRequest:
		return okay(nacos.TypeHealthCheckResponse, "")
	case nacos.TypeInstanceRequest:
		f.mu.Lock()
		if m.Type == nacos.OpRegister {
			r.pubs[name] = []host{*m.Instance}
		} else {
			delete(r.pubs, name)
		}
		f.mu.Unlock()
		f.changed(name)
		return okay(nacos.TypeInstanceResponse, "")
	case nacos.TypeBatchInstanceRequest:
		f.mu.Lock()
		r.pubs[name] = m.Instances
		f.mu.Unlock()
		f.changed(name)
		return okay(nacos.TypeBatchInstanceResponse, "")
	case nacos.TypePersistentInstanceRequest:
		f.mu.Lock()
		f.fixed[name] = slices.DeleteFunc(f.fixed[name], func(h host) bool { return h.IP == m.Instance.IP })
		if m.Type == nacos.OpRegister {
			f.fixed[name] = append(f.fixed[name], *m.Instance)
		}
		f.mu.Unlock()
		f.changed(name)
		return okay(nacos.TypeInstanceResponse, "")
	case nacos.TypeSubscribeServiceRequest:
		f.mu.Lock()
		if delete(r.subs, name); m.Subscribe {
			r.subs[name] = true
		}
		f.mu.Unlock()
		return okay(nacos.TypeSubscribeServiceResponse, `,"serviceInfo":`+f.info(name))
	case nacos.TypeServiceQueryRequest:
		return okay("QueryServiceResponse", `,"serviceInfo":`+f.info(name))
	case nacos.TypeServiceListRequest:
		return okay("ServiceListResponse", `,"count":2,"serviceNames":["a","`+m.GroupName+`@@b"]`)
	case nacos.TypeFuzzyWatchRequest:
		f.mu.Lock()
		if delete(r.fuzzy, m.GroupKeyPattern); m.WatchType == nacos.WatchStart {
			r.fuzzy[m.GroupKeyPattern] = true
		}
		f.mu.Unlock()
		return okay(nacos.TypeFuzzyWatchResponse, "")
	}
	return refuse(nacos.TypeErrorResponse, nacos.CodeNoHandler)
}

// hosts of a service, of all connections.
func (f *fake) hosts(name string) []host {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := slices.Clone(f.fixed[name])
	for _, id := range slices.Sorted(maps.Keys(f.sessions)) {
		out = append(out, f.sessions[id].pubs[name]...)
	}
	return out
}

func (f *fake) info(name string) string {
	hosts := f.hosts(name)
	f.mu.Lock()
	f.lastRef++
	ref := f.lastRef
	f.mu.Unlock()
	return infoOf(name, ref, hosts)
}

func infoOf(name string, ref int64, hosts []host) string {
	group, service, _ := strings.Cut(name, "@@")
	if hosts == nil {
		hosts = []host{}
	}
	b, err := json.Marshal(map[string]any{"name": service, "groupName": group, "hosts": hosts, "lastRefTime": ref, "cacheMillis": 10000})
	if err != nil {
		panic(err)
	}
	return string(b)
}

// set makes the instances of a service that no client has registered.
func (f *fake) set(name string, hosts ...host) {
	f.mu.Lock()
	f.fixed[name] = hosts
	f.mu.Unlock()
	f.changed(name)
}

// changed pushes to all that are subscribed.
func (f *fake) changed(name string) {
	f.mu.Lock()
	var to []*remote
	for _, r := range f.sessions {
		if r.subs[name] && !f.noPush {
			to = append(to, r)
		}
	}
	f.mu.Unlock()
	for _, r := range to {
		r.pushInfo(f.info(name))
	}
}

func (r *remote) pushInfo(info string) string {
	r.f.mu.Lock()
	r.next++
	id := fmt.Sprint(r.id, "-", r.next)
	r.f.mu.Unlock()
	r.push(nacos.TypeNotifySubscriberRequest, []byte(`{"headers":{},"requestId":"`+id+`","serviceInfo":`+info+`}`))
	return id
}

// has is what the server knows of the connection now.
func (r *remote) has() (pubs map[string][]host, subs, fuzzy map[string]bool, acks []asked) {
	settle()
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	return maps.Clone(r.pubs), maps.Clone(r.subs), maps.Clone(r.fuzzy), slices.Clone(r.acks)
}

func (r *remote) subscribed(name string) bool { _, subs, _, _ := r.has(); return subs[name] }

func (r *remote) acked() []asked { _, _, _, acks := r.has(); return acks }

func (f *fake) connections() int {
	settle()
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.sessions)
}

// only is the one connection that there is.
func (f *fake) only() *remote {
	f.s.t.Helper()
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.sessions) != 1 {
		f.s.t.Fatalf("%d connections at %s", len(f.sessions), f.host)
	}
	for _, r := range f.sessions {
		return r
	}
	return nil
}

// drop ends all connections but not the server.
func (f *fake) drop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.sessions {
		close(r.end)
	}
}

func (f *fake) setScript(s func(r *remote, typ string, body []byte) *nacos.Payload) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.script = s
}

func (f *fake) setPush(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.noPush = !on
}

// count is how many requests of a type there were whose body has a text.
func (f *fake) count(typ, text string) int { return len(f.requests(typ, text)) }

func (f *fake) all() []asked {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.asked)
}

func (f *fake) requests(typ, text string) []asked {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []asked
	for _, a := range f.asked {
		if a.typ == typ && strings.Contains(a.body, text) {
			out = append(out, a)
		}
	}
	return out
}

// inst is a healthy instance.
func inst(ip string, more ...func(*host)) host {
	h := host{InstanceID: ip + "#80#DEFAULT#s", IP: ip, Port: 80, Weight: 1, Healthy: true, Enabled: true, Ephemeral: true, ClusterName: DefaultCluster, Metadata: nacos.Metadata{}}
	for _, f := range more {
		f(&h)
	}
	return h
}

// ips are the addresses of a list, in a row.
func ips(list []Instance) string {
	var out []string
	for _, i := range list {
		out = append(out, i.IP)
	}
	return strings.Join(out, " ")
}

func hostIPs(list []host) string {
	var out []string
	for _, h := range list {
		out = append(out, h.IP)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// told is an event in one line.
func told(ev Event) string {
	s := fmt.Sprintf("[%s] +[%s] -[%s] ~[%s]", ips(ev.Snapshot.Instances), ips(ev.Added), ips(ev.Removed), ips(ev.Modified))
	if ev.First {
		s = "first " + s
	}
	return s
}

const order = "DEFAULT_GROUP@@order"

// settle lets everything that can happen now happen.
func settle() { synctest.Wait() }

// next is the next event, which must come within the time.
func next(t *testing.T, w *Watcher, within time.Duration) Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	ev, err := w.Next(ctx)
	if err != nil {
		t.Fatalf("no event within %v: %v", within, err)
	}
	return ev
}

func wantEvent(t *testing.T, w *Watcher, want string) {
	t.Helper()
	if got := told(next(t, w, 10*time.Second)); got != want {
		t.Errorf("event %s\nwant  %s", got, want)
	}
}

// wantNone: no event within this time.
func wantNone(t *testing.T, w *Watcher, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if ev, err := w.Next(ctx); err == nil {
		t.Errorf("event %s", told(ev))
	}
}

func ready(t *testing.T, c *Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := c.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
}
