package hertz_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/cloudwego/hertz/pkg/app"
	hclient "github.com/cloudwego/hertz/pkg/app/client"
	"github.com/cloudwego/hertz/pkg/app/client/discovery"
	"github.com/cloudwego/hertz/pkg/app/client/loadbalance"
	"github.com/cloudwego/hertz/pkg/app/middlewares/client/sd"
	"github.com/cloudwego/hertz/pkg/app/server"
	"github.com/cloudwego/hertz/pkg/app/server/registry"
	"github.com/cloudwego/hertz/pkg/common/config"
	"github.com/cloudwego/hertz/pkg/common/hlog"
	"github.com/cloudwego/hertz/pkg/common/utils"

	"github.com/starling-registry/starling/contrib/hertz"

	"github.com/starling-registry/starling/contrib/internal/testnode"
	"github.com/starling-registry/starling/pkg/client"
)

func TestMain(m *testing.M) {
	hlog.SetOutput(io.Discard)
	m.Run()
}

var quiet = slog.New(slog.DiscardHandler)

// A running server says its address.
type running struct {
	*server.Hertz
	addr  string
	ended chan struct{}
}

// run listens at all addresses, so that the registered one is this machine's.
func run(t *testing.T, c *client.Client, o hertz.RegistryOptions, info registry.Info) *running {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	info.ServiceName, info.Addr = "order", utils.NewNetAddr("tcp", fmt.Sprintf(":%d", port))
	o.Logger = quiet
	r := &running{addr: fmt.Sprintf("127.0.0.1:%d", port), ended: make(chan struct{})}
	r.Hertz = server.New(server.WithHostPorts(fmt.Sprintf(":%d", port)), server.WithRegistry(hertz.NewRegistry(c, o), &info))
	r.GET("/who", func(_ context.Context, ctx *app.RequestContext) { ctx.String(200, r.addr) })
	go func() { defer close(r.ended); r.Spin() }()
	t.Cleanup(func() { r.Close() })
	return r
}

func call(cli *hclient.Client, tags map[string]string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	o := []config.RequestOption{config.WithSD(true)}
	for k, v := range tags {
		o = append(o, config.WithTag(k, v))
	}
	status, body, err := cli.Get(ctx, nil, "http://order/who", o...)
	if err == nil && status != 200 {
		err = fmt.Errorf("status %d", status)
	}
	return string(body), err
}

// calls is who answers n of them; none fails.
func calls(t *testing.T, cli *hclient.Client, n int, tags map[string]string) map[string]int {
	t.Helper()
	by := make(map[string]int)
	for range n {
		who, err := call(cli, tags)
		if err != nil {
			t.Fatal(err)
		}
		by[who]++
	}
	return by
}

const refresh = 100 * time.Millisecond

func newCaller(t *testing.T, r discovery.Resolver) *hclient.Client {
	t.Helper()
	cli, err := hclient.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	cli.Use(sd.Discovery(r, sd.WithLoadBalanceOptions(loadbalance.NewWeightedBalancer(), loadbalance.Options{RefreshInterval: refresh})))
	return cli
}

func TestHertz(t *testing.T) {
	node := testnode.Start(t)
	a := run(t, node.Client(), hertz.RegistryOptions{}, registry.Info{})
	b := run(t, node.Client(), hertz.RegistryOptions{}, registry.Info{Weight: 30, Tags: map[string]string{"zone": "z1"}})

	// None of these may get calls.
	other := node.Client()
	for n, r := range []client.Registration{{Unhealthy: true}, {Disabled: true}, {ZeroWeight: true}} {
		r.IP, r.Port = "127.0.0.1", n+1
		if _, err := other.Register(t.Context(), "order", r); err != nil {
			t.Fatal(err)
		}
	}
	left := func(c *client.Client, n int) func() bool {
		return func() bool {
			is, err := c.Select(t.Context(), "order")
			return err == nil && len(is) == n
		}
	}
	testnode.Until(t, "both servers are registered", left(other, 2))
	is, err := other.Select(t.Context(), "order")
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range is {
		if i.IP != "127.0.0.1" || i.Weight != map[string]float64{a.addr: 10, b.addr: 30}[fmt.Sprintf("%s:%d", i.IP, i.Port)] {
			t.Errorf("registered: %+v", i)
		}
	}

	consumer := node.Client()
	cli := newCaller(t, hertz.NewResolver(consumer, hertz.ResolverOptions{}))
	if by := calls(t, cli, 1000, nil); len(by) != 2 || by[b.addr] < 650 || by[b.addr] > 850 {
		t.Errorf("calls are answered by %v", by)
	}
	if by := calls(t, cli, 20, map[string]string{"zone": "z1"}); by[b.addr] != 20 {
		t.Errorf("with a tag, calls are answered by %v", by)
	}
	// A resolver of another registry, or as here another cluster, shares nothing.
	empty := newCaller(t, hertz.NewResolver(consumer, hertz.ResolverOptions{Clusters: []string{"none"}}))
	if who, err := call(empty, nil); err == nil {
		t.Errorf("a cluster without instances is answered by %s", who)
	}

	// The registry goes away: calls go on. It comes back with nothing in memory.
	node.Kill()
	if by := calls(t, cli, 100, nil); len(by) != 2 {
		t.Errorf("without the registry, calls are answered by %v", by)
	}
	node.Restart()
	fresh := node.Client()
	testnode.Until(t, "both servers are registered again", left(fresh, 2))
	// The registry has told the consumer that there was nobody yet, and Hertz may
	// have looked just then.
	testnode.Until(t, "the consumer knows both", left(consumer, 2))
	testnode.Until(t, "calls are answered again", func() bool { _, err := call(cli, nil); return err == nil })
	calls(t, cli, 100, nil)

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
				if _, err := call(cli, nil); err != nil && first == nil {
					first = err
				}
			}
		}
	}()
	if err := b.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	<-b.ended
	close(stop)
	if err := <-failed; err != nil {
		t.Errorf("a call fails while a server stops: %v", err)
	}
	testnode.Until(t, "one is left", left(fresh, 1))
	if by := calls(t, cli, 20, nil); by[a.addr] != 20 {
		t.Errorf("after the other has left, calls are answered by %v", by)
	}

	// The last is ended by Ctrl-C; calls fail then, and are not sent anywhere.
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case <-a.ended:
	case <-time.After(10 * time.Second):
		t.Fatal("the server does not end")
	}
	testnode.Until(t, "none is left", left(fresh, 0))
	testnode.Until(t, "calls find no instance", func() bool {
		_, err := call(cli, nil)
		return err != nil && err.Error() == "instance not found"
	})
}

// A server stops in order also while the registry is away, and starts with Async.
func TestWithoutRegistry(t *testing.T) {
	node := testnode.Start(t)
	c := node.Client()
	if err := c.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	node.Kill()
	a := run(t, c, hertz.RegistryOptions{Async: true}, registry.Info{})
	testnode.Until(t, "it runs", a.IsRunning)
	node.Restart()
	fresh := node.Client()
	testnode.Until(t, "it is registered", func() bool {
		is, err := fresh.Select(t.Context(), "order")
		return err == nil && len(is) == 1
	})
	node.Kill()
	start := time.Now()
	if err := a.Shutdown(t.Context()); err != nil {
		t.Errorf("stop without the registry: %v", err)
	}
	if took := time.Since(start); took > 8*time.Second {
		t.Errorf("stopping takes %v", took)
	}
}

func TestRegisterRefuses(t *testing.T) {
	c, err := client.New(client.Config{Addrs: []string{"127.0.0.1:1"}, CacheDir: "off", FailoverDir: "off"}, client.WithLogger(quiet))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r := hertz.NewRegistry(c, hertz.RegistryOptions{})
	for _, info := range []*registry.Info{
		nil,
		{ServiceName: "order"},
		{Addr: utils.NewNetAddr("tcp", "10.0.0.1:80")},
		{ServiceName: "order", Addr: utils.NewNetAddr("unix", "/tmp/socket")},
		{ServiceName: "order", Addr: utils.NewNetAddr("tcp", ":0")},
		{ServiceName: "order", Addr: utils.NewNetAddr("tcp", "10.0.0.1:80"), Weight: -1},
	} {
		if err := r.Register(info); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("%+v: %v", info, err)
		}
		if err := r.Deregister(info); err != nil {
			t.Errorf("%+v: deregister: %v", info, err)
		}
	}
}

// Targets are keys of a cache: the same for the same request, and none for two.
func TestTargets(t *testing.T) {
	r := hertz.NewResolver(nil, hertz.ResolverOptions{})
	want := "a%3Fb%26c%3D1?k1=%26&k2=v"
	for range 20 {
		got := r.Target(t.Context(), &discovery.TargetInfo{Host: "a?b&c=1", Tags: map[string]string{"k2": "v", "k1": "&"}})
		if got != want {
			t.Fatalf("%q, not %q", got, want)
		}
	}
	if other := hertz.NewResolver(nil, hertz.ResolverOptions{}); other.Name() == r.Name() {
		t.Errorf("two resolvers have the name %s", r.Name())
	}
}

func Example() {
	c, err := client.New(client.Config{Addrs: []string{"127.0.0.1:8848"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	// A server.
	h := server.Default(server.WithHostPorts(":8888"), server.WithRegistry(hertz.NewRegistry(c, hertz.RegistryOptions{}),
		&registry.Info{ServiceName: "order", Addr: utils.NewNetAddr("tcp", ":8888"), Weight: 10}))
	h.Spin()

	// A client of it.
	cli, err := hclient.NewClient()
	if err != nil {
		fmt.Println(err)
		return
	}
	cli.Use(sd.Discovery(hertz.NewResolver(c, hertz.ResolverOptions{}), sd.WithLoadBalanceOptions(
		loadbalance.NewWeightedBalancer(), loadbalance.Options{RefreshInterval: time.Second})))
	_, body, err := cli.Get(context.Background(), nil, "http://order/v1/orders", config.WithSD(true))
	fmt.Println(string(body), err)
}
