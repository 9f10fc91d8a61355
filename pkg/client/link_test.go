package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/starling-registry/starling/pkg/nacos"
)

// New does not wait for a server (N-9); WaitReady does, as long as it may.
func TestWaitReady(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		c := s.client(Config{Addrs: []string{"10.0.0.1", "10.0.0.2"}})
		if c.State() != Connecting {
			t.Error(c.State())
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.WaitReady(ctx); !errors.Is(err, ErrNotConnected) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "refused") {
			t.Error(err)
		}
		time.Sleep(5 * time.Second)
		if c.State() != Degraded {
			t.Error(c.State())
		}
		s.server("10.0.0.2")
		ready(t, c)
		if c.State() != Ready || c.Server() != "10.0.0.2:8848" {
			t.Error(c.State(), c.Server())
		}
		c = s.client(Config{Addrs: []string{"10.0.0.9"}})
		done := make(chan error)
		go func() { done <- c.WaitReady(t.Context()) }()
		settle()
		c.Close()
		if err := <-done; !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
	for _, cfg := range []Config{{}, {Addrs: []string{"a:99999"}}, {Addrs: []string{"a"}, Endpoint: "b"}, {Addrs: []string{"a"}, Namespace: "a b"}} {
		if c, err := New(cfg); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", cfg, err)
			if c != nil {
				c.Close()
			}
		}
	}
}

// The client goes to another server when its own fails, and is ready again within
// less than 2 s (S002-5); what it has registered and subscribed to comes along.
func TestFailoverToAnotherServer(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		fakes := map[string]*fake{}
		for _, host := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"} {
			fakes[host] = s.server(host)
		}
		c := s.client(Config{})
		ready(t, c)
		register(t, c, "1.1.1.1")
		w := watch(t, c, "order")
		wantEvent(t, w, "first [1.1.1.1] +[1.1.1.1] -[] ~[]")
		for range 10 {
			host, _, _ := net.SplitHostPort(c.Server())
			fakes[host].kill()
			start := time.Now()
			settle()
			ready(t, c)
			if took := time.Since(start); took > 2*time.Second {
				t.Errorf("ready after %v", took)
			}
			time.Sleep(time.Second)
			now, _, _ := net.SplitHostPort(c.Server())
			if got := hostIPs(fakes[now].hosts(order)); now == host || got != "1.1.1.1" {
				t.Errorf("at %s after %s: %q", now, host, got)
			}
			if !fakes[now].only().subscribed(order) {
				t.Error("not subscribed")
			}
			fakes[host] = s.server(host)
		}
	})
}

// A server that asks to leave is left for the one it names, or any other, without
// a moment in which nothing is registered (N-13, make before break).
func TestReset(t *testing.T) {
	f := func(body string, servers int, want func(from string) string) {
		t.Helper()
		run(t, func(t *testing.T, s *scene) {
			fakes := map[string]*fake{}
			for n := range servers {
				host := fmt.Sprint("10.0.0.", n+1)
				fakes[host] = s.server(host)
			}
			c := s.client(Config{})
			ready(t, c)
			register(t, c, "1.1.1.1")
			w := watch(t, c, "order")
			next(t, w, time.Second)
			from := hostPart(c.Server())
			old := fakes[from].only()
			others := func() (n int) {
				for host, f := range fakes {
					if host != from {
						n += len(f.hosts(order))
					}
				}
				return n
			}
			gone := make(chan int)
			go func() {
				<-old.stream.Context().Done()
				gone <- others()
			}()
			old.push(nacos.TypeConnectResetRequest, []byte(body))
			if n := <-gone; servers > 1 && n != 1 {
				t.Errorf("%d registrations elsewhere when the old connection ended", n)
			}
			time.Sleep(10 * time.Second)
			if now := hostPart(c.Server()); want(from) != "" && now != want(from) || servers > 1 && now == from || c.State() != Ready {
				t.Errorf("%s: from %s to %s", body, from, now)
			}
			if acks := old.acked(); len(acks) == 0 || acks[0].typ != "ConnectResetResponse" || !strings.Contains(acks[0].body, `"requestId":"7"`) {
				t.Errorf("%+v", acks)
			}
			wantNone(t, w, time.Minute)
			fakes[hostPart(c.Server())].set(order, inst("2.2.2.2"))
			next(t, w, time.Second)
			total := 0
			for _, f := range fakes {
				total += f.connections()
			}
			if total != 1 {
				t.Errorf("%d connections", total)
			}
		})
	}
	any := func(string) string { return "" }
	for range 5 {
		f(`{"requestId":"7"}`, 3, any)
		f(`{"requestId":"7","serverIp":"10.0.0.1","serverPort":"1"}`, 3, func(from string) string {
			if from == "10.0.0.1" {
				return "" // a server that names itself
			}
			return "10.0.0.1"
		})
		f(`{"requestId":"7","serverIp":"99.0.0.1","serverPort":"8848"}`, 3, any) // not in the list
	}
	f(`{"requestId":"7"}`, 1, any) // there is no other: a new connection to the same
}

func hostPart(addr string) string {
	host, _, _ := net.SplitHostPort(addr)
	return host
}

// A dead server that is recommended is tried once (G-26).
func TestResetToADeadServer(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		a, b := s.server("10.0.0.1"), s.server("10.0.0.2")
		dead := 0
		c := s.client(Config{Addrs: []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}}, WithDialContext(func(ctx context.Context, addr string) (net.Conn, error) {
			if strings.HasPrefix(addr, "10.0.0.3") {
				dead++
			}
			return s.dial(ctx, addr)
		}))
		ready(t, c)
		dead = 0
		from := a
		if hostPart(c.Server()) == b.host {
			from = b
		}
		from.only().push(nacos.TypeConnectResetRequest, []byte(`{"serverIp":"10.0.0.3","serverPort":"8848"}`))
		time.Sleep(20 * time.Second)
		if now := hostPart(c.Server()); now == from.host || now == "" || dead < 1 || dead > 2 { // 2: the rotation came by
			t.Errorf("at %s after %s, %d attempts", now, from.host, dead)
		}
	})
}

// Servers that answer wrongly or not at all cost time and nothing else.
func TestBadServers(t *testing.T) {
	bad := map[string]func(c net.Conn){
		"accepts and says nothing": func(c net.Conn) { io.Copy(io.Discard, c) },
		"closes at once":           func(c net.Conn) { c.Close() },
		"garbage": func(c net.Conn) {
			go io.Copy(io.Discard, c)
			c.Write([]byte("HTTP/1.1 200 OK\r\n\r\nhello"))
			io.Copy(io.Discard, c)
		},
		"never reads": func(c net.Conn) { time.Sleep(time.Minute); c.Close() },
	}
	for what, serve := range bad {
		run(t, func(t *testing.T, s *scene) {
			s.server("10.0.0.1").set(order, inst("1.1.1.1"))
			var wg sync.WaitGroup
			var ends []net.Conn
			var mu sync.Mutex
			c := s.client(Config{Addrs: []string{"10.0.0.1", "10.0.0.2"}}, WithDialContext(func(ctx context.Context, addr string) (net.Conn, error) {
				if strings.HasPrefix(addr, "10.0.0.1") {
					return s.dial(ctx, addr)
				}
				a, b := net.Pipe()
				mu.Lock()
				ends = append(ends, b)
				mu.Unlock()
				wg.Go(func() { serve(b) })
				return fakeConn{a, fakeAddr("10.9.9.9:1"), fakeAddr(addr)}, nil
			}))
			start := time.Now()
			ready(t, c)
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("%s: ready after %v", what, took)
			}
			if got := instances(t, c, "order"); got != "1.1.1.1" {
				t.Error(got)
			}
			if err := c.Close(); err != nil {
				t.Error(what, err)
			}
			for _, c := range ends {
				c.Close()
			}
			wg.Wait()
		})
	}
}

// cutConn ends after so many bytes from the server.
type cutConn struct {
	net.Conn
	left int
}

func (c *cutConn) Read(b []byte) (int, error) {
	if c.left <= 0 {
		c.Close()
		return 0, io.EOF
	}
	n, err := c.Conn.Read(b[:min(len(b), c.left)])
	c.left -= n
	return n, err
}

// A connection that ends at any byte is followed by one that works.
func TestCutAtAnyByte(t *testing.T) {
	for cut := 0; cut < 1500; cut += 1 + rand.IntN(40) {
		run(t, func(t *testing.T, s *scene) {
			f := s.server("10.0.0.1")
			f.set(order, inst("1.1.1.1"))
			first := true
			s.wrap = func(c net.Conn) net.Conn {
				if first {
					first = false
					return &cutConn{c, cut}
				}
				return c
			}
			c := s.client(Config{})
			w := watch(t, c, "order")
			ev := next(t, w, 10*time.Second)
			register(t, c, "1.1.1.2")
			for ips(ev.Snapshot.Instances) != "1.1.1.1 1.1.1.2" {
				ev = next(t, w, 20*time.Second)
			}
		})
	}
}

// A server that restarts in a loop: the client follows, and ends with what is
// wanted.
func TestRestartLoop(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		c := s.client(Config{})
		ready(t, c)
		for n := range 20 {
			register(t, c, fmt.Sprint("1.1.1.", n), Async())
		}
		w := watch(t, c, "order")
		for n := range 30 {
			time.Sleep(time.Duration(n*97%1500) * time.Millisecond)
			f.kill()
			time.Sleep(time.Duration(n*53%700) * time.Millisecond)
			f = s.server("10.0.0.1")
		}
		time.Sleep(10 * time.Second)
		if pubs, _, _, _ := f.only().has(); len(pubs[order]) != 20 {
			t.Errorf("%d registrations", len(pubs[order]))
		}
		ev := next(t, w, time.Second)
		for len(ev.Snapshot.Instances) != 20 {
			ev = next(t, w, time.Second)
		}
	})
}

// What is refused, and what is repeated (N-11, N-12).
func TestClassification(t *testing.T) {
	f := func(code, times int, wantErr error, wantRequests, wantDials int) {
		t.Helper()
		run(t, func(t *testing.T, s *scene) {
			f := s.server("10.0.0.1")
			c := s.client(Config{})
			ready(t, c)
			f.setScript(func(r *remote, typ string, _ []byte) *nacos.Payload {
				if typ == nacos.TypeServiceListRequest && times > 0 {
					times--
					if code == 0 {
						close(r.end)
						return hang
					}
					return refuse(nacos.TypeErrorResponse, code)
				}
				return nil
			})
			_, _, err := c.Services(t.Context(), 1, 10)
			if !errors.Is(err, wantErr) || wantErr == nil && err != nil {
				t.Errorf("%d: %v", code, err)
			}
			time.Sleep(10 * time.Second)
			if n := f.count(nacos.TypeServiceListRequest, ""); n != wantRequests || s.dials != wantDials {
				t.Errorf("%d: %d requests, %d connections", code, n, s.dials)
			}
		})
	}
	f(400, 1, ErrInvalid, 1, 1)
	f(403, 1, ErrUnauthorized, 1, 1)
	f(302, 1, ErrUnsupported, 1, 1)
	f(22001, 1, ErrInvalid, 1, 1)
	f(300, 2, nil, 3, 1)
	f(503, 2, nil, 3, 1)
	f(503, 3, ErrNotConnected, 3, 1)
	f(301, 1, nil, 2, 2) // it does not know us: a new connection
	f(0, 1, nil, 2, 2)
}

// A starting server is asked again each second (N-12); an old one is asked until it
// knows the connection (N-8).
func TestHandshake(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		f.setScript(func(*remote, string, []byte) *nacos.Payload {
			return nacos.ErrorResponse(500, nacos.CodeInvalidServerStatus, nacos.MsgStarting)
		})
		c := s.client(Config{})
		time.Sleep(30 * time.Second)
		if n := f.count(nacos.TypeServerCheckRequest, ""); n < 15 || n > 31 {
			t.Errorf("asked %d times in 30 s", n)
		}
		f.setScript(nil)
		ready(t, c)
	})
	run(t, func(t *testing.T, s *scene) {
		s.server("10.0.0.1", func(f *fake) { f.oldStyle = true })
		c := s.client(Config{})
		ready(t, c)
		register(t, c, "1.1.1.1")
		if _, err := c.WatchServices(t.Context(), "*"); !errors.Is(err, ErrUnsupported) {
			t.Error(err)
		}
	})
	run(t, func(t *testing.T, s *scene) { // it never confirms
		f := s.server("10.0.0.1", func(f *fake) {
			f.oldStyle = true
			f.script = func(_ *remote, typ string, _ []byte) *nacos.Payload {
				if typ == nacos.TypeHealthCheckRequest {
					return nacos.ErrorResponse(500, nacos.CodeUnregistered, nacos.MsgUnregistered)
				}
				return nil
			}
		})
		c := s.client(Config{})
		time.Sleep(time.Minute)
		if c.State() != Degraded {
			t.Error(c.State())
		}
		if n := f.count(nacos.TypeServerCheckRequest, ""); n < 8 || n > 14 {
			t.Errorf("%d connections in a minute", n)
		}
	})
}

// A silent server is noticed by health checks (N-10, S002-1), and its silence is
// not the client's.
//
// Row S001-1.
func TestSilentServer(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		a := s.server("10.0.0.1")
		c := s.client(Config{})
		ready(t, c)
		time.Sleep(time.Minute)
		if n := a.count(nacos.TypeHealthCheckRequest, ""); n < 10 || n > 13 {
			t.Errorf("%d health checks in a minute", n)
		}
		for _, r := range a.all() {
			if r.typ != nacos.TypeHealthCheckRequest && r.typ != nacos.TypeServerCheckRequest {
				t.Errorf("idle, the client says %s (E-4)", r.typ)
			}
		}
		a.setScript(func(*remote, string, []byte) *nacos.Payload { return hang })
		start := time.Now()
		for c.State() == Ready {
			time.Sleep(100 * time.Millisecond)
		}
		if took := time.Since(start); took > 12*time.Second {
			t.Errorf("noticed after %v", took)
		}
	})
}

// State and metrics tell what the client can do.
func TestMetricsAndStates(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		m := &recorder{}
		c := s.client(Config{}, WithMetrics(m))
		ready(t, c)
		register(t, c, "1.1.1.1")
		w := watch(t, c, "order")
		next(t, w, time.Second)
		f.set(order, inst("2.2.2.2"))
		next(t, w, time.Second)
		time.Sleep(4 * time.Second)
		f.kill()
		time.Sleep(10 * time.Second)
		c.Close()
		m.mu.Lock()
		defer m.mu.Unlock()
		if got := fmt.Sprint(m.states); got != "[1 0 2 3]" {
			t.Errorf("states %v (A-6)", got)
		}
		if m.requests[nacos.TypeInstanceRequest] != 1 || m.pushes != 1 || m.lags != 1 || m.cached != 1 {
			t.Errorf("%+v", m)
		}
	})
}

type recorder struct {
	NoMetrics
	mu                   sync.Mutex
	states               []State
	requests             map[string]int
	pushes, lags, cached int
}

func (r *recorder) State(s State, _ string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.states = append(r.states, s)
}

func (r *recorder) Request(typ string, _ time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.requests == nil {
		r.requests = map[string]int{}
	}
	if err == nil {
		r.requests[typ]++
	}
}

func (r *recorder) Push(ServiceID, int, time.Duration) { r.mu.Lock(); r.pushes++; r.mu.Unlock() }
func (r *recorder) Watcher(ServiceID, time.Duration)   { r.mu.Lock(); r.lags++; r.mu.Unlock() }
func (r *recorder) Cached(n, _ int)                    { r.mu.Lock(); r.cached = n; r.mu.Unlock() }

// cuttable is a connection that may be cut: nothing comes through in either
// direction, and neither end hears of it.
type cuttable struct {
	net.Conn
	cut *atomic.Bool
}

func (c cuttable) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil || !c.cut.Load() {
			return n, err
		}
	}
}

func (c cuttable) Write(b []byte) (int, error) {
	if c.cut.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// A network that is cut for a minute: reads go on and say what they are worth, and
// all is as before soon after, without a call (S002-8, R-8).
func TestNetworkIsCut(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		var cut atomic.Bool
		s.wrap = func(c net.Conn) net.Conn { return cuttable{c, &cut} }
		c := s.client(Config{})
		register(t, c, "1.1.1.1")
		w := watch(t, c, "order")
		wantEvent(t, w, "first [1.1.1.1] +[1.1.1.1] -[] ~[]")

		start := time.Now()
		cut.Store(true)
		time.Sleep(time.Minute)
		snap, err := c.Snapshot(t.Context(), "order")
		if err != nil || ips(snap.Instances) != "1.1.1.1" || snap.Source != FromStale || snap.AsOf.After(start) || c.State() != Degraded {
			t.Errorf("while it is cut: %+v, %v, state %v", snap, err, c.State())
		}
		if got := f.hosts(order); len(got) != 0 {
			t.Errorf("the server still has %+v", got)
		}

		cut.Store(false)
		ready(t, c)
		time.Sleep(time.Second)
		if got := hostIPs(f.hosts(order)); got != "1.1.1.1" || f.connections() != 1 {
			t.Errorf("the server has %q of %d connections", got, f.connections())
		}
		f.set(order, inst("1.1.1.2"))
		for got := ""; got != "1.1.1.1 1.1.1.2"; {
			got = ips(next(t, w, time.Second).Snapshot.Instances)
		}
	})
}
