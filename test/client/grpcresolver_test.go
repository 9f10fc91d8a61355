package client

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"

	"github.com/starling-registry/starling/pkg/client"
	"github.com/starling-registry/starling/pkg/client/grpcresolver"
	"github.com/starling-registry/starling/pkg/node"
)

// startNode is a real server and clients of it.
func startNode(t *testing.T) (newClient func() *client.Client, stop func()) {
	t.Helper()
	o := node.DefaultOptions()
	o.Name, o.DataDir, o.Logger, o.DrainTimeout = "test", t.TempDir(), zap.NewNop(), 5*time.Second
	l, err := net.Listen("tcp", "127.0.0.1:0") // the gossip port follows from this one
	if err != nil {
		t.Fatal(err)
	}
	o.Port = l.Addr().(*net.TCPAddr).Port
	l.Close()
	o.Listen = func(string, string) (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }
	n, err := node.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	stop = func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := n.Stop(ctx); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	web, rpc := n.HTTPAddr().(*net.TCPAddr), n.GRPCAddr().(*net.TCPAddr)
	return func() *client.Client {
		c, err := client.New(client.Config{
			Addrs: []string{web.String()}, GRPCPortOffset: rpc.Port - web.Port, CacheDir: "off", FailoverDir: "off",
		}, client.WithLogger(slog.New(slog.DiscardHandler)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}, stop
}

// A shop is a real server that counts connections.
type shop struct {
	*grpc.Server
	port  int
	conns atomic.Int32
}

// A counted listener counts what it accepts.
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

func open(t *testing.T) *shop {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &shop{Server: grpc.NewServer(), port: l.Addr().(*net.TCPAddr).Port}
	healthpb.RegisterHealthServer(s, health.NewServer())
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(counted{l, &s.conns}) }()
	t.Cleanup(func() { s.Stop(); <-served })
	return s
}

// ports is who answers n calls.
func ports(t *testing.T, conn *grpc.ClientConn, n int) map[int]int {
	t.Helper()
	by := make(map[int]int)
	for range n {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		var p peer.Peer
		_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true), grpc.Peer(&p))
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		by[p.Addr.(*net.TCPAddr).Port]++
	}
	return by
}

// until waits until calls are answered as they should be.
func until(t *testing.T, conn *grpc.ClientConn, n int, good func(map[int]int) bool) {
	t.Helper()
	var by map[int]int
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if by = ports(t, conn, n); good(by) {
			return
		}
	}
	t.Errorf("answered by %v", by)
}

// The whole chain: servers that register, a node, one client for all channels.
func TestServicesOverGRPC(t *testing.T) {
	grpcresolver.RegisterBalancer()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
	newClient, stop := startNode(t)
	provider, consumer := newClient(), newClient()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	shops := []*shop{open(t), open(t), open(t)}
	register := func(s *shop, r client.Registration) *client.Lease {
		t.Helper()
		r.IP, r.Port = "127.0.0.1", s.port
		l, err := provider.Register(ctx, "order", r, client.Group("shop"))
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	first := register(shops[0], client.Registration{Cluster: "a", Metadata: map[string]string{"zone": "z1"}})
	register(shops[1], client.Registration{Cluster: "b", Weight: 3, Metadata: map[string]string{"zone": "z1"}})
	// It speaks HTTP at the port that nobody listens on, and gRPC at another.
	l, err := provider.Register(ctx, "order", client.Registration{IP: "127.0.0.1", Port: 1, Cluster: "c",
		Metadata: map[string]string{"gRPC_port": fmt.Sprint(shops[2].port)}}, client.Group("shop"))
	if err != nil {
		t.Fatal(err)
	}

	builder := grpcresolver.NewBuilder(consumer, grpcresolver.WithGrace(100*time.Millisecond))
	dial := func(to grpcresolver.Target) *grpc.ClientConn {
		t.Helper()
		to.Group, to.Service = "shop", "order"
		conn, err := grpc.NewClient(to.String(), grpc.WithResolvers(builder), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	only := func(want ...*shop) func(map[int]int) bool {
		return func(by map[int]int) bool {
			n := 0
			for _, s := range want {
				if by[s.port] == 0 {
					return false
				}
				n += by[s.port]
			}
			total := 0
			for _, m := range by {
				total += m
			}
			return n == total
		}
	}
	ab := dial(grpcresolver.Target{Clusters: []string{"a", "b"}})
	until(t, ab, 100, only(shops[0], shops[1]))
	until(t, dial(grpcresolver.Target{Clusters: []string{"b"}}), 10, only(shops[1]))
	until(t, dial(grpcresolver.Target{Meta: map[string]string{"zone": "z1"}}), 100, only(shops[0], shops[1]))
	until(t, dial(grpcresolver.Target{PortMeta: "gRPC_port"}), 200, only(shops...))

	// Weights come through, and changes of them, over the same connections.
	conns := shops[0].conns.Load()
	share := func(by map[int]int) float64 { return float64(by[shops[0].port]) / 1000 }
	until(t, ab, 1000, func(by map[int]int) bool { s := share(by); return s > 0.15 && s < 0.35 })
	if err := first.Update(ctx, func(r *client.Registration) { r.Weight = 27 }); err != nil {
		t.Fatal(err)
	}
	until(t, ab, 1000, func(by map[int]int) bool { s := share(by); return s > 0.8 && s < 0.98 })
	if n := shops[0].conns.Load(); n != conns {
		t.Errorf("%d connections more for a weight", n-conns)
	}

	// A hundred channels with one client.
	for range 100 {
		until(t, dial(grpcresolver.Target{Clusters: []string{"b"}}), 1, only(shops[1]))
	}

	// One leaves, and with it a whole cluster.
	if err := first.Deregister(ctx); err != nil {
		t.Fatal(err)
	}
	until(t, ab, 20, only(shops[1]))
	if err := l.Deregister(ctx); err != nil {
		t.Fatal(err)
	}
	lone := dial(grpcresolver.Target{Clusters: []string{"c"}})
	if _, err := healthpb.NewHealthClient(lone).Check(ctx, &healthpb.HealthCheckRequest{}); err == nil {
		t.Error("a cluster without instances answers")
	}
	register(shops[2], client.Registration{Cluster: "c"})
	until(t, lone, 10, only(shops[2]))

	// Without the registry channels go on, and new ones begin with the list that
	// there is (S002-6).
	stop()
	until(t, lone, 10, only(shops[2]))
	until(t, dial(grpcresolver.Target{Clusters: []string{"c"}}), 10, only(shops[2]))
	// The client of the channels ends before them: they go on.
	if err := consumer.Close(); err != nil {
		t.Fatal(err)
	}
	until(t, lone, 10, only(shops[2]))
}
