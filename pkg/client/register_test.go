package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/starling-registry/starling/pkg/nacos"
)

func register(t *testing.T, c *Client, ip string, opts ...ServiceOption) *Lease {
	t.Helper()
	l, err := c.Register(t.Context(), "order", Registration{IP: ip, Port: 80}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A client may have several instances of one service (R-6, R-7, G-6, S001-4,
// S003-8), each with its lease.
//
// Row S003-2.
func TestSeveralInstances(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		c := s.client(Config{})
		check := func(want string) {
			t.Helper()
			if got := hostIPs(f.hosts(order)); got != want {
				t.Errorf("the server has %q, want %q", got, want)
			}
		}
		a := register(t, c, "1.1.1.1")
		check("1.1.1.1")
		b := register(t, c, "1.1.1.2")
		d := register(t, c, "1.1.1.3")
		check("1.1.1.1 1.1.1.2 1.1.1.3")
		if err := b.Deregister(t.Context()); err != nil {
			t.Error(err)
		}
		check("1.1.1.1 1.1.1.3")
		if err := errors.Join(a.Deregister(t.Context()), a.Deregister(t.Context())); err != nil {
			t.Error(err)
		}
		check("1.1.1.3")
		if n := f.count(nacos.TypeInstanceRequest, ""); n != 1 {
			t.Errorf("%d requests of one instance after the first: the rest of a batch is a batch", n-1)
		}
		if err := d.Update(t.Context(), func(r *Registration) { r.Weight = 3; r.Metadata["a"] = "b" }); err != nil {
			t.Error(err)
		}
		if h := f.hosts(order); len(h) != 1 || h[0].Weight != 3 || h[0].Metadata["a"] != "b" {
			t.Errorf("%+v", h)
		}

		// One with the same address replaces it; its lease has no say any more.
		d2 := register(t, c, "1.1.1.3")
		if err := d.Deregister(t.Context()); err != nil {
			t.Error(err)
		}
		check("1.1.1.3")
		if err := d.Update(t.Context(), func(*Registration) {}); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		if err := d2.Deregister(t.Context()); err != nil {
			t.Error(err)
		}
		check("")
		if n := f.count(nacos.TypeInstanceRequest, nacos.OpDeregister); n != 1 {
			t.Errorf("%d deregistrations", n)
		}

		set, err := c.RegisterSet(t.Context(), "order", []Registration{{IP: "2.2.2.1", Port: 1}, {IP: "2.2.2.2", Port: 2, Cluster: "c"}})
		if err != nil {
			t.Fatal(err)
		}
		check("2.2.2.1 2.2.2.2")
		if err := set.Update(t.Context(), func(r *Registration) { r.Disabled = true }); err != nil {
			t.Error(err)
		}
		if h := f.hosts(order); len(h) != 2 || h[0].Enabled || h[1].Enabled {
			t.Errorf("%+v", h)
		}
		if err := set.Deregister(t.Context()); err != nil {
			t.Error(err)
		}
		check("")
	})
}

// The zero values are those that most want (G-27, E-5, S003-6). The service is named
// once, for servers that take what an instance says for the whole name.
func TestRegistrationOnTheWire(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		c := s.client(Config{AppName: "app", Namespace: "ns", Labels: map[string]string{"k": "v"}})
		f1 := func(r Registration, want string) {
			t.Helper()
			l, err := c.Register(t.Context(), "order", r, Group("g"))
			if err != nil {
				t.Error(err)
				return
			}
			reqs := f.requests(nacos.TypeInstanceRequest, nacos.OpRegister)
			if got := reqs[len(reqs)-1]; got.body != want || got.headers["app"] != "app" {
				t.Errorf("%s %v\nwant %s", got.body, got.headers, want)
			}
			l.Deregister(t.Context())
		}
		head := `{"namespace":"ns","serviceName":"order","groupName":"g","requestId":"","type":"registerInstance","instance":`
		f1(Registration{IP: "1.1.1.1", Port: 80},
			head+`{"ip":"1.1.1.1","port":80,"weight":1,"healthy":true,"enabled":true,"ephemeral":true,"clusterName":"DEFAULT","metadata":{}}}`)
		f1(Registration{IP: "::1", Port: 0, Cluster: "c", ZeroWeight: true, Disabled: true, Unhealthy: true, Metadata: map[string]string{"a": "b"}},
			head+`{"ip":"::1","port":0,"weight":0,"healthy":false,"enabled":false,"ephemeral":true,"clusterName":"c","metadata":{"a":"b"}}}`)
		setup := string(f.only().setup.Body)
		for _, want := range []string{`"clientVersion":"Starling-Go-Client:v`, `"source":"sdk"`, `"module":"naming"`, `"AppName":"app"`, `"tls.enable":"false"`, `"k":"v"`, `"fuzzyWatch":true`} {
			if !strings.Contains(setup, want) {
				t.Errorf("setup %s lacks %s (N-7)", setup, want)
			}
		}

		// What a name, an address, a port and a cluster may be (S003-3, S003-9).
		for _, r := range [][]Registration{
			nil,
			{{IP: "", Port: 80}},
			{{IP: "1.1.1.1", Port: -1}},
			{{IP: "1.1.1.1", Port: 65536}},
			{{IP: "1.1.1.1", Port: 80, Cluster: "a_b"}},
			{{IP: "1.1.1.1", Port: 80, Weight: -1}},
			{{IP: "1.1.1.1", Port: 80, Metadata: map[string]string{"preserved.heart.beat.timeout": "1"}}}, // S003-4
			{{IP: "1.1.1.1", Port: 80}, {IP: "1.1.1.1", Port: 80}},
			{{IP: "1.1.1.1", Port: 80}, {IP: "1.1.1.2", Port: 80, Persistent: true}},
		} {
			if _, err := c.RegisterSet(t.Context(), "order", r); !errors.Is(err, ErrInvalid) {
				t.Errorf("%+v: %v", r, err)
			}
		}
	})
}

// Register waits for the answer. After an error nothing is registered, also if the
// server had accepted it unseen.
func TestRegisterFails(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		c := s.client(Config{})
		ready(t, c)
		good := register(t, c, "1.1.1.1")

		// Refused: at once, the connection stays (N-11, G-25), others too.
		f.setScript(func(_ *remote, typ string, body []byte) *nacos.Payload {
			if strings.Contains(string(body), "6.6.6.6") {
				return refuse(strings.Replace(typ, "Request", "Response", 1), 400)
			}
			return nil
		})
		start := time.Now()
		_, err := c.Register(t.Context(), "order", Registration{IP: "6.6.6.6", Port: 80})
		if refused, ok := errors.AsType[*ServerError](err); !ok || refused.Code != 400 || !errors.Is(err, ErrInvalid) || time.Since(start) > 0 {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		settle()
		if got := hostIPs(f.hosts(order)); got != "1.1.1.1" || good.Err() != nil {
			t.Error(got, good.Err())
		}
		if err := good.Update(t.Context(), func(r *Registration) { r.IP = "6.6.6.6" }); !errors.Is(err, ErrInvalid) {
			t.Error(err)
		}
		settle()
		if got := hostIPs(f.hosts(order)); got != "1.1.1.1" {
			t.Error("after an update that was refused:", got)
		}

		// The reply is lost: the server has it, and must not.
		f.setScript(func(r *remote, typ string, body []byte) *nacos.Payload {
			if typ == nacos.TypeBatchInstanceRequest && strings.Contains(string(body), "1.1.1.2") {
				r.request(&nacos.Payload{Type: typ, Body: body})
				return hang
			}
			return nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Register(ctx, "order", Registration{IP: "1.1.1.2", Port: 80}); !errors.Is(err, ErrNotConnected) || !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		time.Sleep(5 * time.Second)
		if got := hostIPs(f.hosts(order)); got != "1.1.1.1" {
			t.Error("after a registration that was given up:", got)
		}
		if s.dials != 1 {
			t.Errorf("%d connections", s.dials)
		}
	})
}

// A lost reply is asked for again (R-10, S000-19, S000-20).
func TestLostReply(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		f.set(order, inst("9.9.9.9"))
		var mu sync.Mutex
		lost := map[string]bool{}
		f.setScript(func(r *remote, typ string, body []byte) *nacos.Payload {
			mu.Lock()
			defer mu.Unlock()
			if (typ == nacos.TypeInstanceRequest || typ == nacos.TypeSubscribeServiceRequest) && !lost[typ] {
				lost[typ] = true
				r.request(&nacos.Payload{Type: typ, Body: body})
				return hang
			}
			return nil
		})
		c := s.client(Config{})
		ready(t, c)
		start := time.Now()
		register(t, c, "1.1.1.1")
		next(t, watch(t, c, "order"), 10*time.Second)
		if took := time.Since(start); took > 9*time.Second {
			t.Errorf("after %v", took)
		}
		if n := f.count(nacos.TypeInstanceRequest, ""); n != 2 {
			t.Errorf("%d registrations", n)
		}
		if n := f.count(nacos.TypeSubscribeServiceRequest, ""); n != 2 {
			t.Errorf("%d subscriptions", n)
		}
		time.Sleep(10 * time.Second)
		if n := f.count(nacos.TypeInstanceRequest, "") + f.count(nacos.TypeSubscribeServiceRequest, ""); n != 4 {
			t.Errorf("%d requests later", n)
		}
	})
}

// Async returns at once and keeps trying; the lease tells.
func TestAsync(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		c := s.client(Config{Addrs: []string{"10.0.0.1"}})
		l := register(t, c, "1.1.1.1", Async())
		gone := register(t, c, "1.1.1.2", Async())
		if err := gone.Deregister(t.Context()); err != nil {
			t.Error(err) // nobody has heard of it
		}
		time.Sleep(time.Minute)
		select {
		case <-l.Registered():
			t.Error("registered without a server")
		default:
		}
		f := s.server("10.0.0.1")
		f.setScript(func(_ *remote, typ string, _ []byte) *nacos.Payload {
			if typ == nacos.TypeInstanceRequest {
				return refuse("InstanceResponse", 403)
			}
			return nil
		})
		time.Sleep(7 * time.Second)
		if err := l.Err(); !errors.Is(err, ErrUnauthorized) {
			t.Error(err)
		}
		f.setScript(nil)
		time.Sleep(15 * time.Second)
		if n := f.count(nacos.TypeInstanceRequest, ""); n != 1 {
			t.Errorf("asked %d times what is refused (R-11)", n)
		}
		time.Sleep(25 * time.Second)
		<-l.Registered()
		if got := hostIPs(f.hosts(order)); got != "1.1.1.1" || l.Err() != nil {
			t.Error(got, l.Err())
		}
		c.Close()
		if err := l.Err(); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
}

// All comes back with the next connection, registrations first (R-8, G-5, S003-7),
// within less than a second (R-5 is up to three).
//
// Row S002-4.
func TestReconnect(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		c := s.client(Config{})
		const n = 50
		for i := range n {
			for k := range 1 + i%2 {
				if _, err := c.Register(t.Context(), fmt.Sprint("s", i), Registration{IP: fmt.Sprint("1.1.1.", k), Port: 80}); err != nil {
					t.Fatal(err)
				}
			}
			instances(t, c, fmt.Sprint("s", i))
		}
		register(t, c, "1.1.1.9").Deregister(t.Context())
		for range 5 {
			f.kill()
			settle()
			if c.State() != Connecting {
				t.Error(c.State())
			}
			time.Sleep(time.Second)
			f = s.server("10.0.0.1")
			time.Sleep(2 * time.Second)
			if c.State() != Ready {
				t.Error(c.State())
			}
			pubs, subs, _, _ := f.only().has()
			if len(pubs) != n || len(subs) != n {
				t.Errorf("%d publications, %d subscriptions", len(pubs), len(subs))
			}
			if len(pubs[DefaultGroup+"@@s1"]) != 2 {
				t.Errorf("%+v", pubs[DefaultGroup+"@@s1"])
			}
			subscribed := false
			for _, a := range f.all() {
				switch a.typ {
				case nacos.TypeSubscribeServiceRequest:
					subscribed = true
				case nacos.TypeInstanceRequest, nacos.TypeBatchInstanceRequest:
					if subscribed {
						t.Error("a registration after a subscription")
					}
				}
			}
			time.Sleep(10 * time.Second)
			if got := f.count(nacos.TypeInstanceRequest, "") + f.count(nacos.TypeBatchInstanceRequest, ""); got != n {
				t.Errorf("%d registrations instead of %d", got, n)
			}
		}
	})
}

// What is deregistered while there is no connection is told to the next server:
// the one before it may still have it.
func TestDeregisterWhileAway(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		c := s.client(Config{})
		l := register(t, c, "1.1.1.1")
		f.kill()
		settle()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := l.Deregister(ctx); !errors.Is(err, ErrNotConnected) {
			t.Error(err)
		}
		f = s.server("10.0.0.1")
		time.Sleep(10 * time.Second)
		if n, m := f.count(nacos.TypeInstanceRequest, nacos.OpDeregister), f.count(nacos.TypeInstanceRequest, `"type":"registerInstance"`); n != 1 || m != 0 {
			t.Errorf("%d deregistrations, %d registrations", n, m)
		}
	})
}

// The last call decides, whatever is under way.
func TestRegisterAndDeregisterRace(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		f.setScript(func(_ *remote, typ string, _ []byte) *nacos.Payload { time.Sleep(10 * time.Millisecond); return nil })
		c := s.client(Config{})
		for n := range 20 {
			l := register(t, c, "1.1.1.1", Async())
			time.Sleep(time.Duration(n) * time.Millisecond)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			l.Deregister(ctx)
			if n%2 == 0 {
				register(t, c, "1.1.1.1", Async())
			}
			time.Sleep(100 * time.Millisecond)
			want := ""
			if n%2 == 0 {
				want = "1.1.1.1"
			}
			if got := hostIPs(f.hosts(order)); got != want {
				t.Errorf("%d: %q, want %q", n, got, want)
			}
		}
	})
}

// An ability of the connection decides how persistent instances go (E-1, S003-5);
// nothing tells them again (E-3), and Shutdown leaves them.
func TestPersistent(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		c := s.client(Config{})
		l, err := c.Register(t.Context(), "order", Registration{IP: "1.1.1.1", Port: 80, Persistent: true})
		if err != nil {
			t.Fatal(err)
		}
		if f.count(nacos.TypePersistentInstanceRequest, `"ephemeral":false`) != 1 {
			t.Error(f.requests(nacos.TypePersistentInstanceRequest, ""))
		}
		f.drop()
		time.Sleep(10 * time.Second)
		if f.count(nacos.TypePersistentInstanceRequest, "") != 1 {
			t.Error("told again")
		}
		if err := l.Update(t.Context(), func(r *Registration) { r.IP = "1.1.1.2" }); err != nil {
			t.Error(err)
		}
		if got := hostIPs(f.hosts(order)); got != "1.1.1.2" {
			t.Error(got)
		}
		if _, err := c.Register(t.Context(), "order", Registration{IP: "1.1.1.3", Port: 80, Persistent: true}, Async()); err != nil {
			t.Error(err)
		}
		settle()
		if err := l.Deregister(t.Context()); err != nil {
			t.Error(err)
		}
		c.Close()
		if got := hostIPs(f.hosts(order)); got != "1.1.1.3" {
			t.Error(got)
		}
	})
}

// The address of a listener (L-15, S003-1), if it has a port (S003-3).
func TestRegisterListener(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		c := s.client(Config{})
		f1 := func(addr net.Addr, r Registration, want string) {
			t.Helper()
			l, err := c.RegisterListener(t.Context(), "order", at{addr}, r)
			if want == "" {
				if !errors.Is(err, ErrInvalid) {
					t.Error(err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if h := f.hosts(order); len(h) != 1 || fmt.Sprint(h[0].IP, " ", h[0].Port) != want {
				t.Errorf("%+v", h)
			}
			l.Deregister(t.Context())
		}
		f1(&net.TCPAddr{IP: net.IPv4(1, 2, 3, 4), Port: 5}, Registration{}, "1.2.3.4 5")
		f1(&net.TCPAddr{IP: net.IPv4(1, 2, 3, 4), Port: 5}, Registration{IP: "4.4.4.4", Port: 6}, "4.4.4.4 6")
		f1(&net.TCPAddr{IP: net.IPv6unspecified, Port: 5}, Registration{}, "10.9.9.9 5")
		f1(&net.TCPAddr{Port: 0}, Registration{}, "")                                    // S003-3
		f1(&net.UnixAddr{Name: "x"}, Registration{}, "")
	})
}

type at struct{ addr net.Addr }

func (a at) Addr() net.Addr          { return a.addr }
func (at) Accept() (net.Conn, error) { return nil, net.ErrClosed }
func (at) Close() error              { return nil }

// Drain deregisters first, and waits then (L-14, S001-2).
func TestDrain(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		c := s.client(Config{})
		l := register(t, c, "1.1.1.1")
		start := time.Now()
		time.AfterFunc(time.Millisecond, func() {
			if n := len(f.hosts(order)); n != 0 {
				t.Error("it waits before it deregisters")
			}
		})
		if err := l.Drain(t.Context(), 0); err != nil || time.Since(start) != time.Second { // L-14
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// Shutdown deregisters, within 2 s, and ends all (L-13, S001-2).
//
// Row S003-10.
func TestShutdown(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		c, other := s.client(Config{}), s.client(Config{})
		for n := range 10 {
			c.RegisterSet(t.Context(), fmt.Sprint("s", n), []Registration{{IP: "1.1.1.1", Port: 1}, {IP: "1.1.1.2", Port: 2}})
		}
		register(t, c, "1.1.1.1")
		w := watch(t, other, "order")
		wantEvent(t, w, "first [1.1.1.1] +[1.1.1.1] -[] ~[]")
		sw, err := c.WatchServices(t.Context(), "*")
		if err != nil {
			t.Fatal(err)
		}
		var closed time.Time
		f.setScript(func(_ *remote, typ string, body []byte) *nacos.Payload {
			if typ == nacos.TypeInstanceRequest {
				time.Sleep(500 * time.Millisecond)
				if strings.Contains(string(body), "order") {
					closed = time.Now()
				}
			}
			return nil
		})
		start := time.Now()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if err := c.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(start); took != 500*time.Millisecond {
			t.Errorf("took %v", took)
		}
		wantEvent(t, w, "[] +[] -[1.1.1.1] ~[]")
		if !time.Now().Equal(closed) {
			t.Error("the others heard only of the end of the connection")
		}
		if n := f.count(nacos.TypeInstanceRequest, nacos.OpDeregister); n != 11 {
			t.Errorf("%d deregistrations", n)
		}
		if f.only() == nil || c.State() != Closed {
			t.Error(c.State())
		}
		for _, err := range []error{
			func() error { _, err := c.Instances(t.Context(), "order"); return err }(),
			func() error { _, err := c.Register(t.Context(), "order", Registration{IP: "1.1.1.1"}); return err }(),
			func() error { _, err := c.Watch(t.Context(), "order"); return err }(),
			func() error { _, err := c.WatchServices(t.Context(), "*"); return err }(),
			func() error { _, _, err := c.Services(t.Context(), 1, 1); return err }(),
			func() error { _, err := sw.Next(t.Context()); return err }(),
			c.WaitReady(t.Context()),
		} {
			if !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		}
	})
	// A server that does not answer any more does not hold it up.
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		c := s.client(Config{})
		register(t, c, "1.1.1.1")
		f.setScript(func(*remote, string, []byte) *nacos.Payload { return hang })
		start := time.Now()
		if err := c.Close(); err != nil || time.Since(start) != 2*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
	// Nor one that is away (G-3).
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		c := s.client(Config{})
		register(t, c, "1.1.1.1")
		f.kill()
		settle()
		start := time.Now()
		if err := c.Close(); err != nil || time.Since(start) != 0 {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// All that a registration says is what another client reads, of both kinds
// (S002-9).
func TestFieldsRoundTrip(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		s.server("10.0.0.1")
		c, other := s.client(Config{}), s.client(Config{})
		for _, persistent := range []bool{false, true} {
			r := Registration{IP: "fd00::1", Port: 65535, Cluster: "c-1", Weight: 0.25, Metadata: map[string]string{"k": "v ä", "": "x"}, Disabled: true, Unhealthy: true, Persistent: persistent}
			service := fmt.Sprint("s", persistent)
			if _, err := c.Register(t.Context(), service, r, Group("g")); err != nil {
				t.Fatal(err)
			}
			list, err := other.Instances(t.Context(), service, Group("g"))
			want := Instance{IP: r.IP, Port: r.Port, Cluster: r.Cluster, Weight: r.Weight, Ephemeral: !persistent, Metadata: r.Metadata}
			if err != nil || len(list) != 1 || !sameInstance(list[0], want) {
				t.Errorf("%+v, %v; want %+v", list, err, want)
			}
		}
	})
}

// Without the ability it goes over HTTP, for the same lease (E-1, E-2, S003-5).
func TestPersistentWithoutAbility(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		f.abilities = map[string]bool{}
		web := newOffice(t)
		web.says(200, "ok")
		c := s.client(Config{}, WithDialContext(func(ctx context.Context, addr string) (net.Conn, error) {
			if strings.HasSuffix(addr, ":8848") {
				return web.dial(ctx, addr)
			}
			return s.dial(ctx, addr)
		}))
		l, err := c.Register(t.Context(), "order", Registration{IP: "1.1.1.1", Port: 80, Persistent: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Deregister(t.Context()); err != nil {
			t.Error(err)
		}
		if calls := web.asked(); len(calls) != 2 || !strings.HasPrefix(calls[0], "POST ") || !strings.HasPrefix(calls[1], "DELETE ") {
			t.Errorf("over HTTP: %q", calls)
		}
		if n := f.count(nacos.TypePersistentInstanceRequest, ""); n != 0 {
			t.Errorf("%d requests that the server does not know", n)
		}

		// The ability is that of the connection.
		f.mu.Lock()
		f.abilities = map[string]bool{abilityPersistent: true}
		f.mu.Unlock()
		f.drop()
		settle()
		ready(t, c)
		if _, err := c.Register(t.Context(), "order", Registration{IP: "1.1.1.1", Port: 80, Persistent: true}); err != nil {
			t.Fatal(err)
		}
		if n := f.count(nacos.TypePersistentInstanceRequest, ""); n != 1 || len(web.asked()) != 2 {
			t.Errorf("%d requests over gRPC, %q over HTTP", n, web.asked())
		}
	})
}
