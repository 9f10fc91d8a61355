package client

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A nameServer answers questions about addresses in memory, so that a resolver
// can live in a bubble.
type nameServer struct {
	mu     sync.Mutex
	names  map[string][]string // without the last dot; SRV records as port:target
	mute   bool                // it takes questions and says nothing
	broken bool                // it refuses them
	asked  int
}

func (n *nameServer) set(name string, addrs ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.names == nil {
		n.names = make(map[string][]string)
	}
	n.names[name] = addrs
}

func (n *nameServer) state(mute, broken bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mute, n.broken = mute, broken
}

func (n *nameServer) questions() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked
}

// Resolvers share a channel, which the first of them makes: not in a bubble.
func init() {
	r := net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("nobody") }}
	_, _ = r.LookupHost(context.Background(), "nobody.test.")
}

func (n *nameServer) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go n.serve(server)
		return client, nil
	}}
}

// serve speaks DNS as over TCP: that is what a resolver does on a connection
// that is no socket for packets.
func (n *nameServer) serve(c net.Conn) {
	defer c.Close()
	for {
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		q := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(c, q); err != nil {
			return
		}
		a := n.answer(q)
		if a == nil {
			continue
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(a))), a...)); err != nil {
			return
		}
	}
}

func (n *nameServer) answer(q []byte) []byte {
	var labels []string
	at := 12
	for q[at] != 0 {
		labels = append(labels, string(q[at+1:at+1+int(q[at])]))
		at += 1 + int(q[at])
	}
	kind := binary.BigEndian.Uint16(q[at+1:])
	question := q[12 : at+5]
	name := strings.Join(labels, ".")

	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked++
	if n.mute {
		return nil
	}
	var records [][]byte
	for _, v := range n.names[name] {
		addr, err := netip.ParseAddr(v)
		switch {
		case err != nil && kind == 33:
			port, target, _ := strings.Cut(v, ":")
			data := []byte{0, 0, 0, 0}
			var p uint16
			fmt.Sscan(port, &p)
			data = binary.BigEndian.AppendUint16(data, p)
			for l := range strings.SplitSeq(target, ".") {
				data = append(append(data, byte(len(l))), l...)
			}
			records = append(records, append(data, 0))
		case err == nil && (kind == 1 && addr.Is4() || kind == 28 && addr.Is6()):
			records = append(records, addr.AsSlice())
		}
	}
	code := uint16(0x8180)
	_, known := n.names[name]
	switch {
	case n.broken:
		code |= 2
	case !known || len(n.names[name]) == 0:
		code |= 3
	}
	a := append([]byte{}, q[:2]...)
	for _, v := range []uint16{code, 1, uint16(len(records)), 0, 0} {
		a = binary.BigEndian.AppendUint16(a, v)
	}
	a = append(a, question...)
	for _, r := range records {
		a = binary.BigEndian.AppendUint16(a, 0xc00c)
		for _, v := range []uint16{kind, 1, 0, 60, uint16(len(r))} {
			a = binary.BigEndian.AppendUint16(a, v)
		}
		a = append(a, r...)
	}
	return a
}

// startServers runs a list; it ends with the test.
func startServers(t *testing.T, cfg Config, dial func(context.Context, string) (net.Conn, error), names *nameServer) (*servers, *logbook) {
	t.Helper()
	log, book := newLogbook()
	s, err := newServers(&cfg, dial, names.resolver(), log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	s.start(ctx, &wg)
	t.Cleanup(func() { cancel(); wg.Wait() })
	return s, book
}

func hosts(s *servers) (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, srv := range s.list {
		list = append(list, srv.addr())
	}
	slices.Sort(list)
	return list
}

func wantHosts(t *testing.T, what string, s *servers, want ...string) {
	t.Helper()
	synctest.Wait()
	if got := hosts(s); !slices.Equal(got, want) {
		t.Errorf("%s: the servers are %q, want %q", what, got, want)
	}
}

// N-1, N-2: what can be written for a server.
func TestAddresses(t *testing.T) {
	for addr, want := range map[string]string{
		"10.0.0.1":                        "10.0.0.1 8848 9848 http://10.0.0.1:8848/nacos",
		"10.0.0.1:80":                     "10.0.0.1 80 1080 http://10.0.0.1:80/nacos",
		"::1":                             "::1 8848 9848 http://[::1]:8848/nacos",
		"[::1]":                           "::1 8848 9848 http://[::1]:8848/nacos",
		"[::1]:80":                        "::1 80 1080 http://[::1]:80/nacos",
		"::ffff:10.0.0.1":                 "10.0.0.1 8848 9848 http://10.0.0.1:8848/nacos",
		"fe80::1%eth0":                    "fe80::1%eth0 8848 9848 http://[fe80::1%25eth0]:8848/nacos",
		"http://10.0.0.1":                 "10.0.0.1 8848 9848 http://10.0.0.1:8848/nacos",
		"https://10.0.0.1:443":            "10.0.0.1 443 1443 https://10.0.0.1:443/nacos",
		"HTTPS://[::1]:443/":              "::1 443 1443 https://[::1]:443/nacos",
		"http://10.0.0.1:80/a/b/":         "10.0.0.1 80 1080 http://10.0.0.1:80/a/b",
		"10.0.0.1:80/ctx":                 "10.0.0.1 80 1080 http://10.0.0.1:80/ctx",
		"10.0.0.1, 10.0.0.2;[::1]:8849 ,": "10.0.0.1 8848 9848 http://10.0.0.1:8848/nacos 10.0.0.2 8848 9848 http://10.0.0.2:8848/nacos ::1 8849 9849 http://[::1]:8849/nacos",
		"10.0.0.1,10.0.0.1:8848":          "10.0.0.1 8848 9848 http://10.0.0.1:8848/nacos",
	} {
		log, _ := newLogbook()
		s, err := newServers(&Config{Addrs: []string{addr}}, nil, nil, log)
		if err != nil {
			t.Errorf("%s: %v", addr, err)
			continue
		}
		var got []string
		for _, srv := range s.list {
			got = append(got, fmt.Sprint(srv.host, " ", srv.main, " ", srv.grpc, " ", srv.base))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s is %q, want %q", addr, got, want)
		}
	}
	for what, cfg := range map[string]Config{
		"nothing":          {},
		"blanks":           {Addrs: []string{" ", ","}},
		"both":             {Addrs: []string{"a"}, Endpoint: "b"},
		"no port":          {Addrs: []string{"a:"}},
		"a word as port":   {Addrs: []string{"a:http"}},
		"port 0":           {Addrs: []string{"a:0"}},
		"port 65536":       {Addrs: []string{"a:65536"}},
		"no room for gRPC": {Addrs: []string{"a:65000"}},
		"negative gRPC":    {Addrs: []string{"a:80"}, GRPCPortOffset: -100},
		"no host":          {Addrs: []string{":80"}},
		"no host in a URL": {Addrs: []string{"http://"}},
		"ftp":              {Addrs: []string{"ftp://a"}},
		"a password":       {Addrs: []string{"http://u:p@a"}},
		"a query":          {Addrs: []string{"http://a?x=1"}},
		"bad IPv6":         {Addrs: []string{"1:2:3"}},
		"bad endpoint":     {Endpoint: "ftp://x"},
		"endpoint's port":  {Endpoint: "x:y"},
	} {
		log, _ := newLogbook()
		if _, err := newServers(&cfg, nil, nil, log); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	log, _ := newLogbook()
	s, err := newServers(&Config{Addrs: []string{"10.0.0.1", "http://10.0.0.2"}, TLS: new(tls.Config), GRPCPortOffset: 1}, nil, nil, log)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.list[0].base + " " + s.list[1].base; got != "https://10.0.0.1:8848/nacos http://10.0.0.2:8848/nacos" || s.list[0].grpc != 8849 {
		t.Errorf("with TLS: %s, gRPC at %d", got, s.list[0].grpc)
	}
}

// N-5: where the endpoint is asked.
func TestEndpointURL(t *testing.T) {
	for endpoint, want := range map[string]string{
		"addr.test":                         "http://addr.test:8080/nacos/serverlist",
		"addr.test:80":                      "http://addr.test:80/nacos/serverlist",
		"[::1]":                             "http://[::1]:8080/nacos/serverlist",
		"https://addr.test":                 "https://addr.test/nacos/serverlist",
		"http://addr.test:80/other?a=b":     "http://addr.test:80/other?a=b",
		"http://addr.test/x?namespace=mine": "http://addr.test/x?namespace=mine",
	} {
		got, err := endpointURL(&Config{Endpoint: endpoint})
		if err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", endpoint, got, err, want)
		}
	}
	if got, _ := endpointURL(&Config{Endpoint: "a", Namespace: "n 1"}); got != "http://a:8080/nacos/serverlist?namespace=n+1" {
		t.Error(got)
	}
	if got, _ := endpointURL(&Config{Endpoint: "http://a/x?namespace=mine", Namespace: "n"}); got != "http://a/x?namespace=mine" {
		t.Error(got)
	}
}

// N-3, N-14: each round has all, in another order, and no server twice in a
// row; delays grow by rounds.
func TestRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		firsts := make(map[string]int)
		orders := make(map[string]int)
		for range 200 {
			log, _ := newLogbook()
			s, err := newServers(&Config{Addrs: []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}}, nil, nil, log)
			if err != nil {
				t.Fatal(err)
			}
			var last server
			for round := range 60 {
				seen := make(map[string]bool)
				var names []string
				for i := range 3 {
					srv, wait, err := s.next()
					if err != nil {
						t.Fatal(err)
					}
					if round+i == 0 {
						firsts[srv.host]++
						if wait != 0 {
							t.Errorf("the first try waits %v", wait)
						}
					} else {
						base := time.Duration(min((round*3+i-1)/3+1, 50)) * 100 * time.Millisecond
						if wait < base*8/10 || wait > base*12/10 {
							t.Fatalf("round %d, try %d waits %v, want about %v", round, i, wait, base)
						}
					}
					if srv == last {
						t.Fatal("twice in a row")
					}
					last, seen[srv.host] = srv, true
					names = append(names, srv.host)
				}
				if len(seen) != 3 {
					t.Fatalf("a round of %v", names)
				}
				orders[strings.Join(names, " ")]++
			}
		}
		if len(firsts) != 3 || len(orders) != 6 {
			t.Errorf("not random: first %v, orders %v", firsts, orders)
		}
	})
}

// N-14: delays start anew after a connection that held, not after one that ended
// at once: a server that accepts and dies is not asked in a loop without pause.
func TestDelaysAfterConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, _ := newLogbook()
		s, err := newServers(&Config{Addrs: []string{"10.0.0.1"}}, nil, nil, log)
		if err != nil {
			t.Fatal(err)
		}
		var last time.Duration
		for range 30 {
			_, last, _ = s.next()
			s.connected()
			time.Sleep(time.Second)
		}
		if last < 2*time.Second {
			t.Errorf("after 30 connections that died at once the delay is %v", last)
		}
		s.connected()
		time.Sleep(steadyAfter)
		if _, wait, _ := s.next(); wait != 0 {
			t.Errorf("after a connection that held the delay is %v", wait)
		}
	})
}

// N-13: the server that another one names.
func TestRecommended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := new(nameServer)
		names.set("nodes.test", "10.1.0.1", "10.1.0.2", "fd00::5")
		s, _ := startServers(t, Config{Addrs: []string{"10.0.0.1:1", "10.0.0.1:2", "nodes.test.:3"}}, nil, names)
		synctest.Wait()
		for _, test := range []struct {
			host string
			port int
			want string
		}{
			{"10.0.0.1", 2, "10.0.0.1:2"}, {"10.0.0.1", 9, "10.0.0.1:1"}, {"10.1.0.2", 0, "10.1.0.2:3"}, {"fd00:0::5", 3, "[fd00::5]:3"},
			{"[fd00::5]", 3, "[fd00::5]:3"}, {"::ffff:10.1.0.1", 3, "10.1.0.1:3"}, {"10.9.9.9", 1, ""}, {"", 1, ""}, {"", 0, ""}, {"garbage\x00", -5, ""},
		} {
			srv, ok := s.recommended(test.host, test.port)
			got := ""
			if ok {
				got = srv.addr()
			}
			if got != test.want {
				t.Errorf("%s:%d is %q, want %q", test.host, test.port, got, test.want)
			}
		}
		if srv, ok := s.recommended("nodes.test.", 3); !ok || srv.name != "nodes.test." {
			t.Errorf("by name: %v, %v", srv, ok)
		}
	})
}

// N-4: names are resolved again: after 30 s, and soon while nobody can be
// reached. What DNS alone has lost may stay for 60 s.
//
// Row S002-5.
func TestNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := new(nameServer)
		s, book := startServers(t, Config{Addrs: []string{"nodes.test.:8848"}}, nil, names)
		wantHosts(t, "a name of nothing", s)
		change := s.changed()
		if _, wait, err := s.next(); !errors.Is(err, ErrNotConnected) || !strings.Contains(err.Error(), "nodes.test") || wait <= 0 {
			t.Errorf("with no server: %v, %v", wait, err)
		}
		if !s.contains(server{host: "10.0.0.9", main: 8848}) {
			t.Error("with an empty list a connection has to go")
		}

		names.set("nodes.test", "10.0.0.1")
		time.Sleep(time.Second) // next has asked for it
		wantHosts(t, "it has one", s, "10.0.0.1:8848")
		select {
		case <-change:
		default:
			t.Error("nobody is told of a change")
		}
		one, _, err := s.next()
		if err != nil || one.name != "nodes.test." || one.base != "http://nodes.test.:8848/nacos" {
			t.Fatal(one, err)
		}
		s.connected()

		names.set("nodes.test", "10.0.0.1", "10.0.0.2")
		time.Sleep(resolveEvery)
		wantHosts(t, "a second one", s, "10.0.0.1:8848", "10.0.0.2:8848")
		asked := names.questions()
		change = s.changed()
		time.Sleep(10 * resolveEvery)
		synctest.Wait()
		if n := names.questions() - asked; n < 20 || n > 22 {
			t.Errorf("%d questions in 300 s, want 20: two for each 30 s", n)
		}
		select {
		case <-change:
			t.Error("a change of nothing")
		default:
		}

		// Scale down: the connection to the first one may stay for a minute.
		names.set("nodes.test", "10.0.0.2")
		time.Sleep(resolveEvery)
		wantHosts(t, "the second one", s, "10.0.0.2:8848")
		if !s.contains(one) {
			t.Error("a connection has to go as soon as DNS has lost it")
		}
		change = s.changed()
		s.mu.Lock()
		left := time.Until(s.gone[one.key()])
		s.mu.Unlock()
		if left < goneGrace-resolveEvery || left > goneGrace {
			t.Errorf("it may stay for %v", left)
		}
		time.Sleep(left - time.Millisecond)
		synctest.Wait()
		select {
		case <-change:
			t.Error("too early")
		default:
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		select {
		case <-change:
		default:
			t.Error("nobody is told when the minute is over")
		}
		if s.contains(one) {
			t.Error("it may stay for longer than a minute")
		}

		// Back, and away for less than a minute each time: it stays.
		for range 5 {
			names.set("nodes.test", "10.0.0.1", "10.0.0.2")
			time.Sleep(resolveEvery + time.Second)
			names.set("nodes.test", "10.0.0.2")
			time.Sleep(resolveEvery + time.Second)
			synctest.Wait()
			if !s.contains(one) {
				t.Error("away for less than a minute")
			}
		}

		// An answer of nothing, and none at all, lose nobody.
		warned := len(book.warnings())
		names.set("nodes.test")
		time.Sleep(time.Hour)
		wantHosts(t, "no such name", s, "10.0.0.2:8848")
		names.state(true, false)
		time.Sleep(time.Hour)
		wantHosts(t, "no answer", s, "10.0.0.2:8848")
		names.state(false, true)
		time.Sleep(time.Hour)
		wantHosts(t, "a refusal", s, "10.0.0.2:8848")
		if n := len(book.warnings()) - warned; n != 1 {
			t.Errorf("%d warnings in three hours without DNS", n)
		}
		names.state(false, false)
		names.set("nodes.test", "10.0.0.3")
		s.next()
		s.next() // a failure: it is asked for at once
		time.Sleep(2 * time.Second)
		wantHosts(t, "all others", s, "10.0.0.3:8848")

		// However often nobody can be reached, names are asked for twice a second.
		asked = names.questions()
		for range 10000 {
			s.next()
			time.Sleep(time.Millisecond)
		}
		if n := names.questions() - asked; n < 20 || n > 44 {
			t.Errorf("%d questions in 10 s without a server", n)
		}
	})
}

// N-4: one name that nobody answers for does not delay the others.
func TestSlowName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := new(nameServer)
		names.set("good.test", "10.0.0.1")
		resolver := names.resolver()
		dial := resolver.Dial
		var mu sync.Mutex
		first := true
		resolver.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			if first {
				first = false
				client, _ := net.Pipe() // nobody reads
				return client, nil
			}
			return dial(ctx, network, addr)
		}
		log, _ := newLogbook()
		s, err := newServers(&Config{Addrs: []string{"good.test.", "10.0.0.2", "other.test."}}, nil, resolver, log)
		if err != nil {
			t.Fatal(err)
		}
		if srv, wait, err := s.next(); err != nil || srv.host != "10.0.0.2" || wait != 0 {
			t.Errorf("before anything is resolved: %v, %v, %v", srv, wait, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		s.start(ctx, &wg)
		time.Sleep(time.Minute)
		wantHosts(t, "later", s, "10.0.0.1:8848", "10.0.0.2:8848")
		cancel()
		wg.Wait()
	})
}

// N-4: addresses of both families; those come first that the resolver puts first.
func TestFamilies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := new(nameServer)
		names.set("nodes.test", "fd00::1", "10.0.0.1", "fd00::2", "10.0.0.2", "10.0.0.1")
		s, _ := startServers(t, Config{Addrs: []string{"nodes.test."}}, nil, names)
		wantHosts(t, "both", s, "10.0.0.1:8848", "10.0.0.2:8848", "[fd00::1]:8848", "[fd00::2]:8848")
		for range 50 {
			var families []bool
			for range 4 {
				srv, _, _ := s.next()
				families = append(families, strings.Contains(srv.host, ":"))
			}
			if families[0] != families[1] || families[1] == families[2] || families[2] != families[3] {
				t.Fatalf("a round with families mixed: %v", families)
			}
		}
	})
}

// dns+srv: the records have names and ports.
func TestSRV(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := new(nameServer)
		names.set("_nacos._tcp.test", "8848:a.test", "9000:b.test", "65000:a.test", "1:gone.test")
		names.set("a.test", "10.0.0.1")
		names.set("b.test", "10.0.0.2")
		s, _ := startServers(t, Config{Addrs: []string{"dns+srv:///_nacos._tcp.test."}}, nil, names)
		wantHosts(t, "start", s, "10.0.0.1:8848", "10.0.0.2:9000")
		a, _ := s.recommended("10.0.0.1", 8848)
		if a.base != "http://a.test:8848/nacos" {
			t.Errorf("base %s", a.base)
		}
		names.set("_nacos._tcp.test", "9000:b.test")
		time.Sleep(resolveEvery)
		wantHosts(t, "one less", s, "10.0.0.2:9000")
		if !s.contains(a) {
			t.Error("DNS has lost it and it has to go at once")
		}
	})
}

// A site is a server of HTTP in memory, at all addresses.
type site struct {
	mu    sync.Mutex
	conns chan net.Conn
	down  bool
	mute  bool
	dials []string
}

func newSite(t *testing.T, handler http.HandlerFunc) *site {
	s := &site{conns: make(chan net.Conn)}
	done := make(chan struct{})
	server := &http.Server{Handler: handler}
	go func() {
		defer close(done)
		server.Serve(s)
	}()
	t.Cleanup(func() { server.Close(); <-done })
	return s
}

func (s *site) set(down, mute bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down, s.mute = down, mute
}

func (s *site) dialled() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.dials)
}

func (s *site) dial(ctx context.Context, addr string) (net.Conn, error) {
	s.mu.Lock()
	s.dials = append(s.dials, addr)
	down, mute := s.down, s.mute
	s.mu.Unlock()
	if down {
		return nil, errors.New("connection refused")
	}
	client, server := net.Pipe()
	if mute {
		go io.Copy(io.Discard, server)
		return client, nil
	}
	select {
	case s.conns <- server:
		return client, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *site) Accept() (net.Conn, error) {
	c, ok := <-s.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (s *site) Close() error { // once, by http.Server
	s.set(true, false)
	close(s.conns)
	return nil
}

func (s *site) Addr() net.Addr { return &net.TCPAddr{} }

// N-5, N-6: the endpoint's list, its back-off, and what becomes of it when the
// endpoint has nothing good to say.
func TestEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		answer, status := "", 500
		var times []time.Time
		var query string
		set := func(a string, s int) { mu.Lock(); defer mu.Unlock(); answer, status = a, s }
		web := newSite(t, func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			times = append(times, time.Now())
			query = r.Host + r.URL.String()
			w.WriteHeader(status)
			io.WriteString(w, answer)
		})
		asked := func() int { mu.Lock(); defer mu.Unlock(); return len(times) }
		names := new(nameServer)
		names.set("node.test", "10.0.0.9")
		s, book := startServers(t, Config{Endpoint: "addr.test", Namespace: "dev"}, web.dial, names)

		// 100, 200, 400 … ms
		time.Sleep(3200 * time.Millisecond)
		synctest.Wait()
		mu.Lock()
		var pauses []time.Duration
		for i := 1; i < len(times); i++ {
			pauses = append(pauses, times[i].Sub(times[i-1]).Round(10*time.Millisecond))
		}
		mu.Unlock()
		if want := []time.Duration{100e6, 200e6, 400e6, 800e6, 1600e6}; !slices.Equal(pauses, want) {
			t.Errorf("pauses %v, want %v", pauses, want)
		}
		if query != "addr.test:8080/nacos/serverlist?namespace=dev" {
			t.Errorf("it is asked for %s", query)
		}
		if _, _, err := s.next(); !errors.Is(err, ErrNotConnected) || !strings.Contains(err.Error(), "status 500") {
			t.Errorf("without a list: %v", err)
		}

		set("10.0.0.1\n\n 10.0.0.2:80 \r\nnode.test.\n://bad\n10.0.0.1:8848\n", 200)
		time.Sleep(time.Minute)
		wantHosts(t, "a list", s, "10.0.0.1:8848", "10.0.0.2:80", "10.0.0.9:8848")
		if w := book.warnings(); len(w) != 1 {
			t.Errorf("warnings: %q", w)
		}
		before := asked()
		time.Sleep(5 * time.Minute)
		if n := asked() - before; n != 10 {
			t.Errorf("it is asked %d times in 5 minutes", n)
		}
		one, _ := s.recommended("10.0.0.1", 0)
		nine, _ := s.recommended("10.0.0.9", 0)

		for what, bad := range map[string]func(){
			"status 500": func() { set("10.9.9.9", 500) },
			"empty":      func() { set("", 200) },
			"garbage":    func() { set("<html>\x00://", 200) },
			"a redirect": func() { set("10.9.9.9", 302) },
			"down":       func() { web.set(true, false) },
			"mute":       func() { web.set(false, true) },
		} {
			web.set(false, false)
			bad()
			time.Sleep(10 * time.Minute)
			wantHosts(t, what, s, "10.0.0.1:8848", "10.0.0.2:80", "10.0.0.9:8848")
		}
		web.set(false, false)
		if n := len(book.warnings()); n > 7 {
			t.Errorf("%d warnings for hours of bad answers", n)
		}

		change := s.changed()
		set("10.0.0.2:80", 200)
		time.Sleep(time.Minute)
		wantHosts(t, "another list", s, "10.0.0.2:80")
		select {
		case <-change:
		default:
			t.Error("nobody is told")
		}
		// N-6: at once, also what was behind a name.
		if s.contains(one) || s.contains(nine) {
			t.Error("what the endpoint has removed may stay")
		}
		set("10.0.0.3", 200)
		s.next()
		s.next()
		time.Sleep(endpointPause + time.Second)
		wantHosts(t, "asked for sooner when nobody can be reached", s, "10.0.0.3:8848")
	})
}

// Constant addresses need no goroutine, and the list of one that is alone is
// tried three times over HTTP (N-3).
func TestConstantServers(t *testing.T) {
	log, _ := newLogbook()
	s, err := newServers(&Config{Addrs: []string{"10.0.0.1"}}, nil, nil, log)
	if err != nil {
		t.Fatal(err)
	}
	s.start(t.Context(), nil) // would panic
	if list, err := s.forHTTP(t.Context()); err != nil || len(list) != 3 || list[0] != list[2] {
		t.Error(list, err)
	}
	s, _ = newServers(&Config{Addrs: []string{"10.0.0.1,10.0.0.2"}}, nil, nil, log)
	seen := make(map[string]bool)
	for range 100 {
		list, err := s.forHTTP(t.Context())
		if err != nil || len(list) != 2 {
			t.Fatal(list, err)
		}
		seen[list[0].host] = true
	}
	if len(seen) != 2 {
		t.Errorf("HTTP begins with %v", slices.Collect(maps.Keys(seen)))
	}
	s, _ = newServers(&Config{Addrs: []string{"nodes.test"}}, nil, nil, log)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.forHTTP(ctx); !errors.Is(err, ErrNotConnected) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func FuzzAddresses(f *testing.F) {
	for _, s := range []string{"10.0.0.1:80", "http://[::1]:8848/nacos", "a,b;c d", "fe80::1%eth0", "dns+srv:///x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, addr string) {
		log, _ := newLogbook()
		s, err := newServers(&Config{Addrs: []string{addr}}, nil, nil, log)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Error(err)
			}
			return
		}
		for _, e := range s.entries {
			if !e.srv && (e.port < 1 || e.port+1000 > 65535) || e.name == "" {
				t.Errorf("%q gives %+v", addr, e)
			}
		}
		for _, srv := range s.list {
			if a, err := netip.ParseAddr(srv.host); err != nil || !srv.key().Addr().IsValid() || a.Is4In6() {
				t.Errorf("%q gives %+v", addr, srv)
			}
		}
	})
}
