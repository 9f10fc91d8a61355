package kitex_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"syscall"
	"testing"
	"time"

	kclient "github.com/cloudwego/kitex/client"
	"github.com/cloudwego/kitex/client/genericclient"
	"github.com/cloudwego/kitex/pkg/discovery"
	"github.com/cloudwego/kitex/pkg/generic"
	"github.com/cloudwego/kitex/pkg/kerrors"
	"github.com/cloudwego/kitex/pkg/klog"
	"github.com/cloudwego/kitex/pkg/loadbalance"
	"github.com/cloudwego/kitex/pkg/loadbalance/lbcache"
	"github.com/cloudwego/kitex/pkg/registry"
	"github.com/cloudwego/kitex/server"
	"github.com/cloudwego/kitex/server/genericserver"

	"github.com/starling-registry/starling/contrib/kitex"

	"github.com/starling-registry/starling/contrib/internal/testnode"
	"github.com/starling-registry/starling/pkg/client"
)

func TestMain(m *testing.M) {
	klog.SetOutput(io.Discard)
	m.Run()
}

var quiet = slog.New(slog.DiscardHandler)

// message is one of Thrift's binary protocol with a text behind its beginning: a
// call (1) or an answer (2) of the method "who".
func message(kind byte, text string) []byte {
	b := []byte{0x80, 1, 0, kind}
	b = binary.BigEndian.AppendUint32(b, 3)
	b = append(b, "who"...)
	b = binary.BigEndian.AppendUint32(b, 1)
	return append(b, text...)
}

const header = 15

// An answerer says its address.
type answerer struct{ addr string }

func (a *answerer) GenericCall(context.Context, string, any) (any, error) {
	return message(2, a.addr), nil
}

type running struct {
	server.Server
	addr  string
	ended chan error
}

// run listens at all addresses, so that the registered one is this machine's.
func run(t *testing.T, c *client.Client, o kitex.RegistryOptions, info registry.Info) *running {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	info.ServiceName = "order"
	o.Logger = quiet
	r := &running{addr: fmt.Sprintf("127.0.0.1:%d", l.Addr().(*net.TCPAddr).Port), ended: make(chan error, 1)}
	r.Server = genericserver.NewServer(&answerer{r.addr}, generic.BinaryThriftGeneric(),
		server.WithListener(l), server.WithRegistry(kitex.NewRegistry(c, o)), server.WithRegistryInfo(&info))
	go func() { r.ended <- r.Run() }()
	t.Cleanup(func() { r.Stop() })
	return r
}

func (r *running) end(t *testing.T) {
	t.Helper()
	select {
	case err := <-r.ended:
		if err != nil {
			t.Errorf("the server ends with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the server does not end")
	}
}

func newCaller(t *testing.T, r discovery.Resolver) genericclient.Client {
	t.Helper()
	cli, err := genericclient.NewClient("order", generic.BinaryThriftGeneric(), kclient.WithResolver(r),
		kclient.WithLoadBalancer(loadbalance.NewWeightedBalancer(), &lbcache.Options{RefreshInterval: 100 * time.Millisecond, Cacheable: true}),
		kclient.WithRPCTimeout(5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cli.Close() })
	return cli
}

func call(cli genericclient.Client) (string, error) {
	answer, err := cli.GenericCall(context.Background(), "who", message(1, "\x00"))
	if err != nil {
		return "", err
	}
	return string(answer.([]byte)[header:]), nil
}

// calls is who answers n of them; none fails.
func calls(t *testing.T, cli genericclient.Client, n int) map[string]int {
	t.Helper()
	by := make(map[string]int)
	for range n {
		who, err := call(cli)
		if err != nil {
			t.Fatal(err)
		}
		by[who]++
	}
	return by
}

func TestKitex(t *testing.T) {
	node := testnode.Start(t)
	a := run(t, node.Client(), kitex.RegistryOptions{}, registry.Info{})
	b := run(t, node.Client(), kitex.RegistryOptions{}, registry.Info{Weight: 30, Tags: map[string]string{"zone": "z1"}})

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
	cli := newCaller(t, kitex.NewResolver(consumer, kitex.ResolverOptions{}))
	if by := calls(t, cli, 1000); len(by) != 2 || by[b.addr] < 650 || by[b.addr] > 850 {
		t.Errorf("calls are answered by %v", by)
	}
	tagged := newCaller(t, kitex.NewResolver(consumer, kitex.ResolverOptions{Meta: map[string]string{"zone": "z1"}}))
	if by := calls(t, tagged, 20); by[b.addr] != 20 {
		t.Errorf("with metadata, calls are answered by %v", by)
	}
	// A resolver of another registry, or as here another cluster, shares nothing.
	empty := newCaller(t, kitex.NewResolver(consumer, kitex.ResolverOptions{Clusters: []string{"none"}}))
	if who, err := call(empty); err == nil {
		t.Errorf("a cluster without instances is answered by %s", who)
	}

	// The registry goes away: calls go on. It comes back with nothing in memory.
	node.Kill()
	if by := calls(t, cli, 100); len(by) != 2 {
		t.Errorf("without the registry, calls are answered by %v", by)
	}
	node.Restart()
	fresh := node.Client()
	testnode.Until(t, "both servers are registered again", left(fresh, 2))
	// The registry has told the consumer that there was nobody yet, and Kitex may
	// have looked just then.
	testnode.Until(t, "the consumer knows both", left(consumer, 2))
	testnode.Until(t, "calls are answered again", func() bool { _, err := call(cli); return err == nil })
	calls(t, cli, 100)

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
				if _, err := call(cli); err != nil && first == nil {
					first = err
				}
			}
		}
	}()
	if err := b.Stop(); err != nil {
		t.Error(err)
	}
	close(stop)
	if err := <-failed; err != nil {
		t.Errorf("a call fails while a server stops: %v", err)
	}
	testnode.Until(t, "one is left", left(fresh, 1))
	if by := calls(t, cli, 20); by[a.addr] != 20 {
		t.Errorf("after the other has left, calls are answered by %v", by)
	}

	// The last is ended by Ctrl-C; calls fail then, and are not sent anywhere.
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	a.end(t)
	testnode.Until(t, "none is left", left(fresh, 0))
	testnode.Until(t, "calls find no instance", func() bool {
		_, err := call(cli)
		return errors.Is(err, kerrors.ErrNoMoreInstance)
	})
}

// A server stops also while the registry is away, and starts with Async.
func TestWithoutRegistry(t *testing.T) {
	node := testnode.Start(t)
	c := node.Client()
	if err := c.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	node.Kill()
	a := run(t, c, kitex.RegistryOptions{Async: true}, registry.Info{})
	node.Restart()
	fresh := node.Client()
	testnode.Until(t, "it is registered", func() bool {
		is, err := fresh.Select(t.Context(), "order")
		return err == nil && len(is) == 1
	})
	node.Kill()
	start := time.Now()
	if err := a.Stop(); err != nil {
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
	r := kitex.NewRegistry(c, kitex.RegistryOptions{})
	addr := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 80}
	for _, info := range []*registry.Info{
		nil,
		{ServiceName: "order"},
		{Addr: addr},
		{ServiceName: "order", Addr: &net.UnixAddr{Name: "/tmp/socket"}},
		{ServiceName: "order", Addr: &net.TCPAddr{IP: net.IPv6zero}},
		{ServiceName: "order", Addr: addr, Weight: -1},
	} {
		if err := r.Register(info); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("%+v: %v", info, err)
		}
		if err := r.Deregister(info); err != nil {
			t.Errorf("%+v: deregister: %v", info, err)
		}
	}
	if one, two := kitex.NewResolver(c, kitex.ResolverOptions{}), kitex.NewResolver(c, kitex.ResolverOptions{}); one.Name() == two.Name() {
		t.Errorf("two resolvers have the name %s", one.Name())
	}
}

func Example() {
	c, err := client.New(client.Config{Addrs: []string{"127.0.0.1:8848"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	// A server; the options are the same for generated ones.
	s := genericserver.NewServer(&answerer{"hello"}, generic.BinaryThriftGeneric(),
		server.WithServiceAddr(&net.TCPAddr{Port: 8888}),
		server.WithRegistry(kitex.NewRegistry(c, kitex.RegistryOptions{})),
		server.WithRegistryInfo(&registry.Info{ServiceName: "order", Weight: 10}))
	if err := s.Run(); err != nil {
		fmt.Println(err)
	}

	// A client of it.
	cli, err := genericclient.NewClient("order", generic.BinaryThriftGeneric(),
		kclient.WithResolver(kitex.NewResolver(c, kitex.ResolverOptions{})),
		kclient.WithLoadBalancer(loadbalance.NewWeightedBalancer(), &lbcache.Options{RefreshInterval: time.Second, Cacheable: true}))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cli.Close()
}
