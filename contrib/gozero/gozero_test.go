package gozero_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zeromicro/go-zero/core/conf"
	"github.com/zeromicro/go-zero/core/logx"
	"github.com/zeromicro/go-zero/zrpc"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"

	"github.com/starling-registry/starling/contrib/gozero"

	"github.com/starling-registry/starling/contrib/internal/testnode"
	"github.com/starling-registry/starling/pkg/client"
	"github.com/starling-registry/starling/pkg/client/grpcresolver"
)

var quiet = slog.New(slog.DiscardHandler)

// go-zero ends the process at a signal, so servers are processes: this program
// with a variable.
func TestMain(m *testing.M) {
	logx.Disable()
	if node := os.Getenv("TEST_SERVE_AT_NODE"); node != "" {
		if err := serve(node); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	grpcresolver.RegisterBalancer()
	m.Run()
}

// serve is a server whose health checks are calls enough.
func serve(node string) error {
	c, err := client.New(client.Config{Addrs: []string{node}, CacheDir: "off", FailoverDir: "off"}, client.WithLogger(quiet))
	if err != nil {
		return err
	}
	defer c.Close()
	var sc zrpc.RpcServerConf
	if err := conf.LoadFromJsonBytes([]byte(os.Getenv("TEST_CONF")), &sc); err != nil {
		return err
	}
	weight, err := strconv.ParseFloat(os.Getenv("TEST_WEIGHT"), 64)
	if err != nil {
		return err
	}
	async := os.Getenv("TEST_ASYNC") != ""
	s, err := zrpc.NewServer(sc, func(*grpc.Server) {
		o := gozero.ServiceOptions{Weight: weight, Metadata: map[string]string{"zone": "z1"}, Async: async, Logger: quiet}
		if err := gozero.RegisterService(c, sc, o); err != nil {
			panic(err)
		}
	})
	if err != nil {
		return err
	}
	s.Start()
	return nil
}

type server struct {
	addr  string
	cmd   *exec.Cmd
	ended chan error
}

// start runs a server at all addresses of the machine.
func start(t *testing.T, node string, weight float64, env ...string) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	s := &server{addr: fmt.Sprintf("127.0.0.1:%d", port), cmd: exec.Command(os.Args[0]), ended: make(chan error, 1)}
	s.cmd.Env = append(os.Environ(), "TEST_SERVE_AT_NODE="+node, fmt.Sprintf("TEST_WEIGHT=%v", weight),
		fmt.Sprintf(`TEST_CONF={"Name":"order","ListenOn":":%d","Log":{"Level":"severe","Stat":false}}`, port))
	s.cmd.Env = append(s.cmd.Env, env...)
	var output strings.Builder
	s.cmd.Stdout, s.cmd.Stderr = io.Discard, &output
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { s.ended <- s.cmd.Wait() }()
	t.Cleanup(func() {
		if s.cmd.ProcessState == nil {
			_ = s.cmd.Process.Kill()
		}
		if t.Failed() {
			t.Logf("a server says: %s", output.String())
		}
	})
	return s
}

// stop ends it by a signal; it ends by itself, before go-zero loses patience.
func (s *server) stop(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-s.ended:
		if err != nil {
			t.Errorf("the server ends with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the server does not end")
	}
}

func dial(t *testing.T, c *client.Client, target, balancer string) *grpc.ClientConn {
	t.Helper()
	var cc zrpc.RpcClientConf
	if err := conf.LoadFromJsonBytes(fmt.Appendf(nil, `{"Target":%q,"BalancerName":%q}`, target, balancer), &cc); err != nil {
		t.Fatal(err)
	}
	cli, err := zrpc.NewClient(cc, gozero.WithResolver(c, grpcresolver.WithLogger(quiet)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cli.Conn().Close() })
	return cli.Conn()
}

func call(conn *grpc.ClientConn) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var p peer.Peer
	if _, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Peer(&p)); err != nil {
		return "", err
	}
	return p.Addr.String(), nil
}

// calls is who answers n of them; none fails.
func calls(t *testing.T, conn *grpc.ClientConn, n int) map[string]int {
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

func TestGoZero(t *testing.T) {
	node := testnode.Start(t)
	a, b := start(t, node.Addr(), 1), start(t, node.Addr(), 3)

	// None of the first three may get calls; go-zero's adapter for Nacos would make
	// some. The last has its gRPC elsewhere, at a.
	other := node.Client()
	_, portOfA, _ := net.SplitHostPort(a.addr)
	for n, r := range []client.Registration{{Unhealthy: true}, {Disabled: true}, {ZeroWeight: true},
		{Metadata: map[string]string{gozero.PortMeta: portOfA}, Cluster: "c"}} {
		r.IP, r.Port = "127.0.0.1", n+1
		if _, err := other.Register(t.Context(), "order", r); err != nil {
			t.Fatal(err)
		}
	}
	left := func(c *client.Client, n int) func() bool {
		return func() bool {
			is, err := c.Select(t.Context(), "order", client.Clusters("DEFAULT"))
			return err == nil && len(is) == n
		}
	}
	testnode.Until(t, "both servers are registered", left(other, 2))

	consumer := node.Client()
	weighted := dial(t, consumer, "starling:///order?cluster=DEFAULT", grpcresolver.BalancerName)
	testnode.Until(t, "calls go to both by weight", func() bool {
		by := calls(t, weighted, 400)
		return len(by) == 2 && by[b.addr] > 250 && by[b.addr] < 350
	})
	p2c := dial(t, consumer, "starling:///order?meta.zone=z1", "p2c_ewma")
	testnode.Until(t, "calls go to both", func() bool { return len(calls(t, p2c, 200)) == 2 })
	elsewhere := dial(t, consumer, "starling:///order?cluster=c", "p2c_ewma")
	if by := calls(t, elsewhere, 10); by[a.addr] != 10 {
		t.Errorf("with gRPC_port, calls are answered by %v", by)
	}

	// The registry goes away: calls go on, on new channels too. It comes back
	// with nothing in memory.
	node.Kill()
	if by := calls(t, weighted, 100); len(by) != 2 {
		t.Errorf("without the registry, calls are answered by %v", by)
	}
	calls(t, dial(t, consumer, "starling:///order?cluster=DEFAULT", "p2c_ewma"), 1)
	node.Restart()
	fresh := node.Client()
	testnode.Until(t, "both servers are registered again", left(fresh, 2))
	calls(t, weighted, 100)

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
				for _, conn := range []*grpc.ClientConn{weighted, p2c} {
					if _, err := call(conn); err != nil && first == nil {
						first = err
					}
				}
			}
		}
	}()
	// Who hears that it leaves finds it still there.
	w, err := fresh.Watch(t.Context(), "order", client.Clusters("DEFAULT"), client.Where(func(i client.Instance) bool { return i.Weight == 3 }))
	if err != nil {
		t.Fatal(err)
	}
	if e, err := w.Next(t.Context()); err != nil || len(e.Snapshot.Instances) != 1 {
		t.Fatalf("%+v, %v", e, err)
	}
	there := make(chan error, 1)
	go func() {
		_, err := w.Next(t.Context())
		if err == nil {
			var conn net.Conn
			if conn, err = net.Dial("tcp", b.addr); err == nil {
				conn.Close()
			}
		}
		there <- err
	}()
	b.stop(t, syscall.SIGTERM)
	if err := <-there; err != nil {
		t.Errorf("it leaves before it is deregistered: %v", err)
	}
	close(stop)
	if err := <-failed; err != nil {
		t.Errorf("a call fails while a server stops: %v", err)
	}
	testnode.Until(t, "one is left", left(fresh, 1))
	if by := calls(t, weighted, 20); by[a.addr] != 20 {
		t.Errorf("after the other has left, calls are answered by %v", by)
	}

	a.stop(t, syscall.SIGINT)
	testnode.Until(t, "none is left", left(fresh, 0))
}

// A server stops also while the registry is away, and starts with Async.
func TestWithoutRegistry(t *testing.T) {
	node := testnode.Start(t)
	node.Kill()
	a := start(t, node.Addr(), 1, "TEST_ASYNC=1", "POD_IP=127.0.0.2")
	node.Restart()
	c := node.Client()
	testnode.Until(t, "it is registered with the address of its pod", func() bool {
		is, err := c.Select(t.Context(), "order")
		return err == nil && len(is) == 1 && is[0].IP == "127.0.0.2"
	})
	node.Kill()
	a.stop(t, syscall.SIGTERM)
}

func TestRegisterRefuses(t *testing.T) {
	c, err := client.New(client.Config{Addrs: []string{"127.0.0.1:1"}, CacheDir: "off", FailoverDir: "off"}, client.WithLogger(quiet))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, listenOn := range []string{"", "127.0.0.1", "127.0.0.1:0", ":http"} {
		sc := zrpc.RpcServerConf{ListenOn: listenOn}
		sc.Name = "order"
		if err := gozero.RegisterService(c, sc, gozero.ServiceOptions{}); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("%q: %v", listenOn, err)
		}
	}
}

func Example() {
	// In main, for conf.BalancerName "starling_weighted".
	grpcresolver.RegisterBalancer()
	c, err := client.New(client.Config{Addrs: []string{"127.0.0.1:8848"}})
	logx.Must(err)
	defer c.Close()

	// A server.
	var serverConf zrpc.RpcServerConf // {Name: order, ListenOn: 0.0.0.0:8080}
	conf.MustLoad("server.yaml", &serverConf)
	s := zrpc.MustNewServer(serverConf, func(s *grpc.Server) {
		// The handlers first; by now it listens.
		logx.Must(gozero.RegisterService(c, serverConf, gozero.ServiceOptions{}))
	})
	s.Start()

	// A client of it.
	var clientConf zrpc.RpcClientConf // {Target: "starling:///order", BalancerName: starling_weighted}
	conf.MustLoad("client.yaml", &clientConf)
	cli := zrpc.MustNewClient(clientConf, gozero.WithResolver(c))
	fmt.Println(cli.Conn().Target())
}
