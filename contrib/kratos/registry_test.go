package kratosregistry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"syscall"
	"testing"
	"time"

	"github.com/go-kratos/kratos/v2"
	"github.com/go-kratos/kratos/v2/log"
	"github.com/go-kratos/kratos/v2/registry"
	"github.com/go-kratos/kratos/v2/transport/grpc"
	"github.com/go-kratos/kratos/v2/transport/http"
	ggrpc "google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"

	kratosregistry "github.com/starling-registry/starling/contrib/kratos"

	"github.com/starling-registry/starling/contrib/internal/testnode"
	"github.com/starling-registry/starling/pkg/client"
)

func TestMain(m *testing.M) {
	log.SetLogger(log.NewStdLogger(io.Discard))
	m.Run()
}

func quiet(o kratosregistry.Options) kratosregistry.Options {
	o.Logger = slog.New(slog.DiscardHandler)
	return o
}

// A running app serves gRPC, where health checks are calls enough, and HTTP.
type running struct {
	*kratos.App
	grpc  string
	ended chan error
}

func run(t *testing.T, c *client.Client, o kratosregistry.Options, meta map[string]string) *running {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	web := http.NewServer(http.Address("127.0.0.1:0"))
	web.Route("/").GET("/who", func(ctx http.Context) error { return ctx.JSON(200, l.Addr().String()) })
	a := &running{grpc: l.Addr().String(), ended: make(chan error, 1)}
	a.App = kratos.New(kratos.Name("order"), kratos.Version("v1"), kratos.Metadata(meta),
		kratos.Server(grpc.NewServer(grpc.Address("127.0.0.1:0"), grpc.Listener(l)), web),
		kratos.Registrar(kratosregistry.New(c, quiet(o))))
	go func() { a.ended <- a.Run() }()
	t.Cleanup(func() { a.Stop() })
	return a
}

func (a *running) end(t *testing.T) {
	t.Helper()
	select {
	case err := <-a.ended:
		if err != nil {
			t.Errorf("the app ends with: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the app does not end")
	}
}

func call(conn *ggrpc.ClientConn) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var p peer.Peer
	_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, ggrpc.Peer(&p))
	if err != nil {
		return "", err
	}
	return p.Addr.String(), nil
}

// calls is who answers n of them; none fails.
func calls(t *testing.T, conn *ggrpc.ClientConn, n int) map[string]int {
	t.Helper()
	by := make(map[string]int)
	for range n {
		who, err := call(conn)
		if err != nil {
			t.Fatal(err)
		}
		by[who]++
	}
	return by
}

func TestKratos(t *testing.T) {
	node := testnode.Start(t)
	meta := map[string]string{"weight": "300", "zone": "z1"}
	a := run(t, node.Client(), kratosregistry.Options{}, nil)
	b := run(t, node.Client(), kratosregistry.Options{}, meta)

	// Neither of these may get calls; kratos' adapter for Nacos would make some.
	other := node.Client()
	for n, r := range []client.Registration{{Unhealthy: true}, {Disabled: true}, {ZeroWeight: true}} {
		r.IP, r.Port = "127.0.0.1", n+1
		if _, err := other.Register(t.Context(), "order.grpc", r); err != nil {
			t.Fatal(err)
		}
	}

	d := kratosregistry.New(node.Client(), quiet(kratosregistry.Options{}))
	var found []*registry.ServiceInstance
	testnode.Until(t, "both apps are found", func() bool {
		var err error
		if found, err = d.GetService(t.Context(), "order.grpc"); err != nil {
			t.Fatal(err)
		}
		return len(found) == 2
	})
	for _, i := range found {
		want := map[string]string{"grpc://" + a.grpc: "100", "grpc://" + b.grpc: "300"}[i.Endpoints[0]]
		if i.Name != "order" || i.Version != "v1" || i.ID == "" || i.Metadata["kind"] != "grpc" || i.Metadata["weight"] != want {
			t.Errorf("found %+v, want weight %s", i, want)
		}
	}
	if len(meta) != 2 {
		t.Errorf("the app's metadata have been changed: %v", meta)
	}

	conn, err := grpc.DialInsecure(t.Context(), grpc.WithEndpoint("discovery:///order.grpc"), grpc.WithDiscovery(d))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	testnode.Until(t, "calls go to both by weight", func() bool {
		by := calls(t, conn, 400)
		return len(by) == 2 && by[b.grpc] > 250 && by[b.grpc] < 350
	})

	web, err := http.NewClient(t.Context(), http.WithEndpoint("discovery:///order.http"), http.WithDiscovery(d), http.WithBlock())
	if err != nil {
		t.Fatal(err)
	}
	defer web.Close()
	webCall := func() (who string, err error) {
		err = web.Invoke(context.Background(), "GET", "/who", nil, &who)
		return who, err
	}
	testnode.Until(t, "both answer over HTTP too", func() bool {
		by := make(map[string]int)
		for range 40 {
			who, err := webCall()
			if err != nil {
				t.Fatal(err)
			}
			by[who]++
		}
		return by[a.grpc] == 10 && by[b.grpc] == 30
	})

	// The registry goes away: calls go on, on new channels too. It comes back
	// with nothing in memory: the apps are registered again.
	node.Kill()
	if by := calls(t, conn, 100); len(by) != 2 {
		t.Errorf("without the registry, calls are answered by %v", by)
	}
	second, err := grpc.DialInsecure(t.Context(), grpc.WithEndpoint("discovery:///order.grpc"), grpc.WithDiscovery(d))
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	calls(t, second, 1)
	node.Restart()
	fresh := node.Client()
	left := func(n int) func() bool {
		return func() bool {
			is, err := fresh.Select(t.Context(), "order.grpc")
			web, webErr := fresh.Select(t.Context(), "order.http")
			return err == nil && webErr == nil && len(is) == n && len(web) == n
		}
	}
	testnode.Until(t, "both apps are registered again", left(2))
	calls(t, conn, 100)

	// One leaves under calls, and none of them fails.
	stop, failed := make(chan struct{}), make(chan error)
	go func() {
		var first error
		for {
			select {
			case <-stop:
				failed <- first
				return
			default:
				_, err := call(conn)
				_, webErr := webCall()
				if err := errors.Join(err, webErr); err != nil && first == nil {
					first = err
				}
			}
		}
	}()
	if err := b.Stop(); err != nil {
		t.Error(err)
	}
	b.end(t)
	close(stop)
	if err := <-failed; err != nil {
		t.Errorf("a call fails while an app stops: %v", err)
	}
	testnode.Until(t, "one is left", left(1))
	if by := calls(t, conn, 20); by[a.grpc] != 20 {
		t.Errorf("after the other has left, calls are answered by %v", by)
	}

	// The last is ended by Ctrl-C; the list is empty then, and Next says so.
	w, err := d.Watch(t.Context(), "order.grpc")
	if err != nil {
		t.Fatal(err)
	}
	if is, err := w.Next(); err != nil || len(is) != 1 {
		t.Errorf("Next: %v, %v", is, err)
	}
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	a.end(t)
	testnode.Until(t, "none is left", left(0))
	if is, err := w.Next(); err != nil || len(is) != 0 {
		t.Errorf("Next: %v, %v", is, err)
	}
	waits := make(chan error, 1)
	go func() { _, err := w.Next(); waits <- err }()
	if err := w.Stop(); err != nil {
		t.Error(err)
	}
	if err := <-waits; !errors.Is(err, context.Canceled) {
		t.Errorf("Next after Stop: %v", err)
	}
}

// An app stops also while the registry is away, and starts with Async.
func TestWithoutRegistry(t *testing.T) {
	node := testnode.Start(t)
	c := node.Client()
	if err := c.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	node.Kill()
	a := run(t, c, kratosregistry.Options{Async: true}, nil)
	d := kratosregistry.New(node.Client(), quiet(kratosregistry.Options{}))
	node.Restart()
	testnode.Until(t, "it is registered", func() bool {
		is, err := d.GetService(t.Context(), "order.grpc")
		return err == nil && len(is) == 1
	})
	node.Kill()
	if err := a.Stop(); err != nil {
		t.Errorf("stop without the registry: %v", err)
	}
	a.end(t)
}

func TestRegisterRefuses(t *testing.T) {
	node := testnode.Start(t)
	c := node.Client()
	r := kratosregistry.New(c, quiet(kratosregistry.Options{}))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, si := range []*registry.ServiceInstance{
		{Endpoints: []string{"grpc://127.0.0.1:80"}},
		{Name: "order", Endpoints: []string{"grpc://127.0.0.1:80", "127.0.0.1"}},
		{Name: "order", Endpoints: []string{"grpc://127.0.0.1:80", "http://127.0.0.1"}},
		{Name: "order", Endpoints: []string{"grpc://127.0.0.1:80"}, Metadata: map[string]string{"weight": "heavy"}},
		{Name: "order", Endpoints: []string{"grpc://127.0.0.1:80"}, Metadata: map[string]string{"weight": "-1"}},
		{Name: "or@@der", Endpoints: []string{"grpc://127.0.0.1:80"}},
	} {
		if err := r.Register(ctx, si); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("%+v: %v", si, err)
		}
	}
	// All or none: what was registered before the mistake is taken back.
	if is, err := node.Client().Instances(ctx, "order.grpc"); err != nil || len(is) != 0 {
		t.Errorf("left: %v, %v", is, err)
	}
	// TLS and IPv6 are in the endpoint.
	if err := r.Register(ctx, &registry.ServiceInstance{Name: "order", Endpoints: []string{"grpcs://[::1]:80"}}); err != nil {
		t.Fatal(err)
	}
	testnode.Until(t, "found", func() bool {
		is, err := r.GetService(ctx, "order.grpcs")
		return err == nil && len(is) == 1 && is[0].Endpoints[0] == "grpcs://[::1]:80" && is[0].Name == "order"
	})
}

func Example() {
	c, err := client.New(client.Config{Addrs: []string{"127.0.0.1:8848"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	r := kratosregistry.New(c, kratosregistry.Options{})

	// A server.
	app := kratos.New(kratos.Name("order"), kratos.Registrar(r), kratos.Server(
		grpc.NewServer(grpc.Endpoint(&url.URL{Scheme: "grpc", Host: "10.0.0.1:9000"}), grpc.Address(":9000"))))
	if err := app.Run(); err != nil {
		fmt.Println(err)
	}

	// A client of it.
	conn, err := grpc.DialInsecure(context.Background(), grpc.WithEndpoint("discovery:///order.grpc"), grpc.WithDiscovery(r))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
}
