package grpcresolver

import (
	"context"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/starling-registry/starling/pkg/client"
	"github.com/starling-registry/starling/test/simnet"
)

// A group is real servers of grpc-go in a bubble of virtual time, and a list of
// them.
type group struct {
	*source
	t    *testing.T
	net  *simnet.Network
	here *simnet.Host
}

// A member is one server of the health service.
type member struct {
	host      *simnet.Host
	srv       *grpc.Server
	conns     atomic.Int32  // accepted
	authority atomic.Value  // of the last call
	held      chan struct{} // not nil: calls wait for it
}

func newGroup(t *testing.T) *group {
	g := &group{source: newSource(), t: t, net: simnet.New(1)}
	g.here = g.net.Host("here", "10.1.0.1")
	return g
}

// Accept counts.
type counted struct {
	net.Listener
	n *atomic.Int32
}

func (c counted) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.n.Add(1)
	}
	return conn, err
}

func (g *group) serve(ip string) *member {
	g.t.Helper()
	m := &member{host: g.net.Host(ip, ip)}
	l, err := m.host.Listen("tcp", net.JoinHostPort(ip, "80"))
	if err != nil {
		g.t.Fatal(err)
	}
	m.srv = grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		m.authority.Store(strings.Join(md[":authority"], " "))
		if m.held != nil {
			<-m.held
		}
		return next(ctx, req)
	}))
	healthpb.RegisterHealthServer(m.srv, health.NewServer())
	served := make(chan struct{})
	go func() { defer close(served); _ = m.srv.Serve(counted{l, &m.conns}) }()
	g.t.Cleanup(func() { m.srv.Stop(); <-served })
	return m
}

func (g *group) dial(where string, opts ...Option) *grpc.ClientConn {
	g.t.Helper()
	conn, err := grpc.NewClient(where, grpc.WithResolvers(newBuilder(g.watch, opts)),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return g.here.Dial(ctx, addr) }))
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { conn.Close() })
	return conn
}

// call is the address of the server that has answered.
func call(ctx context.Context, conn *grpc.ClientConn, opts ...grpc.CallOption) (string, error) {
	var p peer.Peer
	_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, append(opts, grpc.Peer(&p))...)
	if err != nil {
		return "", err
	}
	return p.Addr.(*net.TCPAddr).IP.String(), nil
}

// calls is who answers how many of n calls, none of which may fail.
func (g *group) calls(conn *grpc.ClientConn, n int) map[string]int {
	g.t.Helper()
	by := make(map[string]int)
	for range n {
		who, err := call(g.t.Context(), conn, grpc.WaitForReady(true))
		if err != nil {
			g.t.Fatal(err)
		}
		by[who]++
	}
	return by
}

// share fails when a binomial share of n is further off than once in 10¹⁵ runs:
// eight standard deviations.
func (g *group) share(by map[string]int, who string, n int, p float64) {
	g.t.Helper()
	if off := math.Abs(float64(by[who]) - float64(n)*p); off > 8*math.Sqrt(float64(n)*p*(1-p)) {
		g.t.Errorf("%s has %d of %d, should be about %.0f", who, by[who], n, float64(n)*p)
	}
}

func bubble(t *testing.T, f func(*testing.T, *group)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newGroup(t)) })
}

const one, two, three = "10.0.0.1", "10.0.0.2", "10.0.0.3"

func TestGroupGrowsAndShrinks(t *testing.T) {
	bubble(t, func(t *testing.T, g *group) {
		g.serve(one)
		last := g.serve(two)
		g.tell(at(one, 1))
		conn := g.dial("starling:///order")
		if by := g.calls(conn, 10); by[one] != 10 {
			t.Error(by)
		}
		g.tell(at(one, 1), at(two, 1))
		time.Sleep(time.Second)
		by := g.calls(conn, 2000)
		g.share(by, one, 2000, 0.5)

		// A call that is under way is finished though its server leaves.
		g.tell(at(two, 1))
		time.Sleep(time.Second)
		last.held = make(chan struct{})
		running := make(chan error)
		go func() { _, err := call(t.Context(), conn); running <- err }()
		synctest.Wait()
		g.serve(three)
		g.tell(at(three, 1))
		time.Sleep(time.Second)
		if by := g.calls(conn, 10); by[three] != 10 {
			t.Error(by)
		}
		close(last.held)
		if err := <-running; err != nil {
			t.Error(err)
		}
	})
}

// Weights 1:3:0 (spec of the weighted balancer), then others, over the same
// connections.
func TestWeights(t *testing.T) {
	bubble(t, func(t *testing.T, g *group) {
		const n = 1500
		members := []*member{g.serve(one), g.serve(two), g.serve(three)}
		g.tell(at(one, 1), at(two, 3), at(three, 0))
		conn := g.dial("starling:///order")
		g.calls(conn, 1)
		time.Sleep(time.Second)
		by := g.calls(conn, n)
		g.share(by, one, n, 0.25)
		g.share(by, two, n, 0.75)
		if by[three] != 0 {
			t.Errorf("%d calls of weight 0", by[three])
		}
		if n := members[2].conns.Load(); n != 0 {
			t.Errorf("%d connections to an instance of weight 0", n)
		}

		g.tell(at(one, 8), at(two, 2), at(three, 0))
		time.Sleep(time.Second)
		by = g.calls(conn, n)
		g.share(by, one, n, 0.8)
		g.share(by, two, n, 0.2)

		g.tell(at(one, 0.5), at(two, 0.5), at(three, 1)) // fractions count (G-16)
		time.Sleep(time.Second)
		by = g.calls(conn, n)
		g.share(by, one, n, 0.25)
		g.share(by, three, n, 0.5)
		for i, m := range members {
			if n := m.conns.Load(); n != 1 {
				t.Errorf("%d connections to %d: a new weight costs none", n, i)
			}
		}
	})
}

// An instance whose listener dies has no calls though it is still listed, and
// none are lost; when it comes back it has some again.
func TestListenerDies(t *testing.T) {
	bubble(t, func(t *testing.T, g *group) {
		g.serve(one)
		dying := g.serve(two)
		g.tell(at(one, 1), at(two, 9))
		conn := g.dial("starling:///order")
		g.calls(conn, 1)
		time.Sleep(time.Second)
		dying.host.Crash()
		time.Sleep(time.Second)
		for range 100 {
			if who, err := call(t.Context(), conn); err != nil || who != one {
				t.Fatal(who, err)
			}
		}
		dying.srv.Stop()
		g.serve(two)
		time.Sleep(3 * time.Second) // grpc tries again after about 1 s
		g.share(g.calls(conn, 1000), two, 1000, 0.9)
	})
}

// A server that hangs costs only those calls that it has when the registry says
// so.
func TestServerHangs(t *testing.T) {
	bubble(t, func(t *testing.T, g *group) {
		g.serve(one)
		hanging := g.serve(two)
		g.tell(at(one, 1), at(two, 1))
		conn := g.dial("starling:///order")
		g.calls(conn, 1)
		time.Sleep(time.Second)
		hanging.host.Freeze()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		late := 0
		for range 100 { // a call hangs with probability 1/2
			if _, err := call(ctx, conn); status.Code(err) == codes.DeadlineExceeded {
				late++
				break
			}
		}
		if late == 0 {
			t.Error("no call has hung: this test shows nothing")
		}
		sick := at(two, 1)
		sick.Healthy = false
		g.tell(at(one, 1), sick)
		synctest.Wait()
		for range 100 {
			if who, err := call(t.Context(), conn); err != nil || who != one {
				t.Fatal(who, err)
			}
		}
	})
}

// Without an instance calls fail after the grace and say why; those that wait
// for readiness wait.
func TestGroupGoesAndComesBack(t *testing.T) {
	bubble(t, func(t *testing.T, g *group) {
		m := g.serve(one)
		g.tell(at(one, 1))
		conn := g.dial("starling:///order")
		g.calls(conn, 1)
		g.tell()
		time.Sleep(DefaultGrace - time.Second)
		g.calls(conn, 10)
		time.Sleep(2 * time.Second)
		if s := conn.GetState(); s != connectivity.TransientFailure {
			t.Error(s)
		}
		_, err := call(t.Context(), conn)
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "service DEFAULT_GROUP@@order: no instance to pick: 0 known") {
			t.Error(err)
		}
		waiting := make(chan error)
		go func() { _, err := call(t.Context(), conn, grpc.WaitForReady(true)); waiting <- err }()
		time.Sleep(time.Minute)
		if m.conns.Load() != 1 {
			t.Errorf("%d connections", m.conns.Load())
		}
		g.tell(at(one, 1))
		if err := <-waiting; err != nil {
			t.Error(err)
		}
	})
}

// A service that has never had an instance, no server of the registry, and a
// target with a mistake: each call says what is wrong.
func TestCallsSayWhy(t *testing.T) {
	bubble(t, func(t *testing.T, g *group) {
		say := func(where, why string) {
			t.Helper()
			_, err := call(t.Context(), g.dial(where))
			if err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("%s: %v, want %s", where, err, why)
			}
		}
		say("starling:///order", "no list of its instances within 10s: not connected to any server")
		g.tell()
		say("starling:///order", "no instance to pick")
		g.fail(client.ErrUnauthorized)
		say("starling:///order", "unauthorized")
		say("starling:///order?claster=a", "unknown parameter claster")
		say("starling://order", "write starling:///order")
	})
}

func TestHundredChannels(t *testing.T) {
	bubble(t, func(t *testing.T, g *group) {
		m := g.serve(one)
		g.tell(at(one, 1))
		for range 100 {
			g.calls(g.dial("starling:///order"), 1)
		}
		if n := m.conns.Load(); n != 100 {
			t.Errorf("%d connections", n)
		}
		g.serve(two)
		g.tell(at(two, 1))
		time.Sleep(time.Second)
		if n := g.watching; n != 100 {
			t.Errorf("%d watches", n)
		}
	})
}

// Channels end at any moment of lists that change all the time: what waits for
// what it must not is a deadlock of the bubble.
func TestCloseWhileListsChange(t *testing.T) {
	bubble(t, func(t *testing.T, g *group) {
		g.serve(one)
		g.serve(two)
		lists := [][]client.Instance{{at(one, 1)}, {at(two, 2), at(one, 1)}, nil, {at(two, 1)}}
		for i := range 60 {
			conn := g.dial("starling:///order", WithGrace(0))
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for k := range 50 {
					g.tell(lists[k%len(lists)]...)
					time.Sleep(100 * time.Microsecond)
				}
			}()
			conn.Connect()
			time.Sleep(time.Duration(i) * 83 * time.Microsecond)
			conn.Close()
			<-ended
		}
		synctest.Wait()
		if g.watching != 0 {
			t.Errorf("%d watches are left", g.watching)
		}
	})
}

// What a server sees as :authority is the service's name, not the path of the
// target with its parameters.
func TestAuthority(t *testing.T) {
	bubble(t, func(t *testing.T, g *group) {
		m := g.serve(one)
		g.tell(at(one, 1))
		for in, want := range map[string]string{
			"starling:///order?cluster=a":      "order",
			"starling:///g/order":              "order",
			"starling:///g/a%20%E5%8D%95":      "a%20%E5%8D%95",
			"starling:///g/com.acme:order%2F1": "com.acme:order%2F1",
		} {
			g.calls(g.dial(in), 1)
			if got := m.authority.Load(); got != want {
				t.Errorf("%s: %s", in, got)
			}
		}
	})
}

// TestWithoutBalancer runs itself in a process that does not register it: the
// channel has round_robin, which leaves out weight 0 as well.
func TestWithoutBalancer(t *testing.T) {
	if os.Getenv(withoutBalancer) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestWithoutBalancer$", "-test.v")
		cmd.Env = append(os.Environ(), withoutBalancer+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestWithoutBalancer") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	bubble(t, func(t *testing.T, g *group) {
		for _, ip := range []string{one, two, three} {
			g.serve(ip)
		}
		g.tell(at(one, 1), at(two, 3), at(three, 0))
		conn := g.dial("starling:///order")
		g.calls(conn, 1)
		time.Sleep(time.Second)
		if by := g.calls(conn, 100); by[one] != 50 || by[two] != 50 {
			t.Error(by)
		}
	})
}

// A service config of the user's own, with a timeout beside the balancer.
func TestServiceConfig(t *testing.T) {
	bubble(t, func(t *testing.T, g *group) {
		m := g.serve(one)
		m.held = make(chan struct{})
		defer close(m.held)
		g.tell(at(one, 1))
		conn := g.dial("starling:///order", WithServiceConfig(fmt.Sprintf(
			`{"loadBalancingConfig":[{%q:{}}],"methodConfig":[{"name":[{}],"timeout":"2s"}]}`, BalancerName)))
		begun := time.Now()
		if _, err := call(t.Context(), conn); status.Code(err) != codes.DeadlineExceeded || time.Since(begun) != 2*time.Second {
			t.Error(err, time.Since(begun))
		}
	})
}

func BenchmarkPick(b *testing.B) {
	p := new(picker)
	for i := range 100 {
		p.ready = append(p.ready, nil)
		p.upTo = append(p.upTo, float64(i+1))
	}
	b.ReportAllocs()
	for b.Loop() {
		p.at(0.7)
	}
}
