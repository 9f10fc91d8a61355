package names

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"

	"github.com/starling-registry/starling/deploy/chaos/nodetest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		nodetest.Remove()
		os.Exit(code)
	}))
}

var errNotYet = errors.New("that was not asked for")

const name = "registry.test"

func serve(t *testing.T) *Server {
	t.Helper()
	s, err := Serve("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// resolver is that of Go programs, over one of the two protocols.
func resolver(s *Server, network string) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, s.Addr())
	}}
}

// lookup asks as the resolver of a node does, for both kinds of addresses.
func lookup(t *testing.T, s *Server, network, host string) ([]string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	addrs, err := resolver(s, network).LookupHost(ctx, host)
	slices.Sort(addrs)
	return addrs, err
}

func set(t *testing.T, s *Server, name string, ips ...string) {
	t.Helper()
	if err := s.Set(name, ips...); err != nil {
		t.Fatal(err)
	}
}

// ask returns the whole answer, which must not be an error.
func ask(t *testing.T, s *Server, network, host string, kind uint16) *dns.Msg {
	t.Helper()
	c := dns.Client{Net: network, Timeout: 10 * time.Second}
	r, _, err := c.Exchange(new(dns.Msg).SetQuestion(dns.Fqdn(host), kind), s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestLookup(t *testing.T) {
	s := serve(t)
	for _, network := range []string{"udp", "tcp"} {
		for _, want := range [][]string{{"10.0.0.1"}, {"10.0.0.1", "10.0.0.2", "10.0.0.3"}, {"10.0.0.4", "fd00::1"}} {
			set(t, s, "Registry.Test.", want...)
			if got, err := lookup(t, s, network, "rEGistry.test"); err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: got %v, %v; want %v", network, got, err, want)
			}
		}
		set(t, s, name)
		_, errNone := lookup(t, s, network, name)
		s.Remove(name)
		_, errGone := lookup(t, s, network, name)
		for _, err := range []error{errNone, errGone} {
			if e, ok := errors.AsType[*net.DNSError](err); !ok || !e.IsNotFound {
				t.Errorf("%s: without addresses and then without the name: %v, %v", network, errNone, errGone)
			}
		}
	}
	if err := s.Set(name, "10.0.0"); err == nil {
		t.Error("an address that is none is taken")
	}
	if err := s.Set("", "10.0.0.1"); err == nil {
		t.Error("a name that is none is taken")
	}
}

func TestCodes(t *testing.T) {
	s := serve(t)
	set(t, s, name, "10.0.0.1")
	set(t, s, "empty.test")
	for _, c := range []struct {
		host    string
		kind    uint16
		any     Any
		rcode   int
		answers string
	}{
		{name, dns.TypeA, AnyNoData, dns.RcodeSuccess, "A"},
		{name, dns.TypeAAAA, AnyNoData, dns.RcodeSuccess, ""},
		{name, dns.TypeSRV, AnyNoData, dns.RcodeSuccess, ""},
		{name, dns.TypeANY, AnyNoData, dns.RcodeSuccess, ""},
		{name, dns.TypeANY, AnyHINFO, dns.RcodeSuccess, "HINFO"},
		{name, dns.TypeANY, AnyAll, dns.RcodeSuccess, "A"},
		{"empty.test", dns.TypeA, AnyNoData, dns.RcodeSuccess, ""},
		{"unknown.test", dns.TypeA, AnyNoData, dns.RcodeNameError, ""},
		{"sub." + name, dns.TypeA, AnyNoData, dns.RcodeNameError, ""},
	} {
		s.AnswerAny(c.any)
		r := ask(t, s, "udp", c.host, c.kind)
		var kinds []string
		for _, a := range r.Answer {
			kinds = append(kinds, dns.TypeToString[a.Header().Rrtype])
		}
		if got := strings.Join(kinds, " "); r.Rcode != c.rcode || got != c.answers {
			t.Errorf("%s %s: %s with %q; want %s with %q", c.host, dns.TypeToString[c.kind], dns.RcodeToString[r.Rcode], got, dns.RcodeToString[c.rcode], c.answers)
		}
	}
}

func TestRotatesAndTTL(t *testing.T) {
	s := serve(t)
	set(t, s, name, "10.0.0.1", "10.0.0.2", "10.0.0.3")
	var first []string
	for range 4 {
		first = append(first, ask(t, s, "udp", name, dns.TypeA).Answer[0].(*dns.A).A.String())
	}
	if want := []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.1"}; !slices.Equal(first, want) {
		t.Errorf("first came %v, want %v", first, want)
	}
	if ttl := ask(t, s, "udp", name, dns.TypeA).Answer[0].Header().Ttl; ttl != 1 {
		t.Errorf("TTL %d", ttl)
	}
	s.SetTTL(30 * time.Second)
	if ttl := ask(t, s, "tcp", name, dns.TypeA).Answer[0].Header().Ttl; ttl != 30 {
		t.Errorf("TTL %d after it was set", ttl)
	}
}

// What does not fit into a packet is asked for again over TCP.
func TestMany(t *testing.T) {
	s := serve(t)
	var want []string
	for i := range 200 {
		want = append(want, fmt.Sprintf("10.0.0.%d", i))
	}
	set(t, s, name, want...)
	if r := ask(t, s, "udp", name, dns.TypeA); !r.Truncated {
		t.Error("200 addresses in a packet of 512 bytes")
	}
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, s.Addr())
	}}
	got, err := r.LookupHost(t.Context(), name)
	if err != nil || len(got) != len(want) {
		t.Errorf("got %d addresses, %v; want %d", len(got), err, len(want))
	}
}

func TestFail(t *testing.T) {
	s := serve(t)
	set(t, s, name, "10.0.0.1")
	for _, network := range []string{"udp", "tcp"} {
		c := dns.Client{Net: network, Timeout: 300 * time.Millisecond}
		question := new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA)
		s.Fail(Silent)
		if r, _, err := c.Exchange(question, s.Addr()); err == nil {
			t.Errorf("%s: silent, it says %v", network, r)
		}
		s.Fail(ServFail)
		if r, _, err := c.Exchange(question, s.Addr()); err != nil || r.Rcode != dns.RcodeServerFailure || len(r.Answer) > 0 {
			t.Errorf("%s: SERVFAIL is %v, %v", network, r, err)
		}
		s.Fail(Slow(200 * time.Millisecond))
		if r, took, err := c.Exchange(question, s.Addr()); err != nil || took < 200*time.Millisecond || len(r.Answer) != 1 {
			t.Errorf("%s: slow, it took %v: %v, %v", network, took, r, err)
		}
		s.Fail(Working)
		if r, took, err := c.Exchange(question, s.Addr()); err != nil || took > 200*time.Millisecond || len(r.Answer) != 1 {
			t.Errorf("%s: mended, it took %v: %v, %v", network, took, r, err)
		}
	}
	// Close must not wait for an answer that is delayed.
	s.Fail(Slow(time.Hour))
	go func() {
		c := dns.Client{Timeout: 100 * time.Millisecond}
		_, _, _ = c.Exchange(new(dns.Msg).SetQuestion("late.test.", dns.TypeA), s.Addr())
	}()
	for deadline := time.Now().Add(10 * time.Second); s.Counts()[Kind{"late.test", "A", netip.MustParseAddr("127.0.0.1")}] == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the query did not arrive")
		}
	}
}

func TestLog(t *testing.T) {
	s := serve(t)
	set(t, s, name, "10.0.0.1", "10.0.0.2")
	start := time.Now()
	ask(t, s, "udp", "Registry.test", dns.TypeA)
	ask(t, s, "tcp", name, dns.TypeAAAA)
	s.Fail(ServFail)
	ask(t, s, "udp", name, dns.TypeA)
	got := s.Queries()
	me := netip.MustParseAddr("127.0.0.1")
	want := []Query{
		{Name: name, Type: "A", Net: "udp", Asker: me, Answer: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}},
		{Name: name, Type: "AAAA", Net: "tcp", Asker: me},
		{Name: name, Type: "A", Net: "udp", Asker: me, Failure: ServFail},
	}
	for i := range got {
		if at := got[i].At; at.Before(start) || at.After(time.Now()) {
			t.Errorf("query %d was at %v", i, at)
		}
		got[i].At = time.Time{}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if c := s.Counts(); len(c) != 2 || c[Kind{name, "A", me}] != 2 || c[Kind{name, "AAAA", me}] != 1 {
		t.Errorf("counts %v", c)
	}
	var l log
	for i := range maxQueries + 3 {
		l.add(Query{Name: fmt.Sprint(i % 7), At: start.Add(time.Duration(i))})
	}
	s.mu.Lock()
	s.log = l
	s.mu.Unlock()
	if q := s.Queries(); len(q) != maxQueries || !q[0].At.Equal(start.Add(3)) || !slices.IsSortedFunc(q, func(a, b Query) int { return a.At.Compare(b.At) }) {
		t.Errorf("of more than are kept, %d are there, from %v on", len(q), q[0].At.Sub(start))
	}
}

// An answer is what one Set has said, whatever else goes on.
func TestChangesInParallel(t *testing.T) {
	s := serve(t)
	block := func(i int) (ips []string) {
		for j := range i%5 + 1 {
			ips = append(ips, fmt.Sprintf("10.%d.0.%d", i, j))
		}
		return ips
	}
	set(t, s, name, block(0)...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := s.Set(name, block(rand.IntN(200))...); err != nil {
					t.Error(err)
				}
				s.SetTTL(time.Duration(rand.IntN(5)) * time.Second)
				s.AnswerAny(Any(rand.IntN(3)))
				s.Set("other.test", "10.0.0.1")
				s.Remove("other.test")
				s.Queries()
				s.Counts()
			}
		})
	}
	for i := range 4 {
		network := []string{"udp", "tcp"}[i%2]
		wg.Go(func() {
			answers := 0
			for ctx.Err() == nil {
				got, err := resolver(s, network).LookupHost(t.Context(), name)
				if err != nil {
					t.Error(err)
					return
				}
				var n, last int
				if _, err := fmt.Sscanf(got[0], "10.%d.0.%d", &n, &last); err != nil {
					t.Error(err)
					return
				}
				want := block(n)
				slices.Sort(got)
				if !slices.Equal(got, want) {
					t.Errorf("got %v, which is not %v", got, want)
				}
				answers++
			}
			if answers == 0 {
				t.Error("no answer at all")
			}
		})
	}
	wg.Wait()
}
