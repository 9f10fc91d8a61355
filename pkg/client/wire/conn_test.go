package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/starling-registry/starling/pkg/grpcapi"
	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/push"
	"github.com/starling-registry/starling/pkg/registry"
)

var order = registry.ServiceKey{Namespace: "public", Group: "g", Name: "order"}

// A bench is a real server in a bubble of virtual time.
type bench struct {
	t      *testing.T
	net    *network
	reg    *registry.Registry
	engine *push.Engine
	server *grpcapi.Server
	ready  bool
	move   string // host that clients are asked to move to at the end
}

func run(t *testing.T, f func(*testing.T, *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, net: newNetwork(), ready: true}
		ropts := registry.DefaultOptions()
		ropts.Changed = func(k registry.ServiceKey) { b.engine.Mark(k) }
		b.reg = registry.New(ropts)
		popts := push.DefaultOptions()
		popts.Source, popts.Logger, popts.Metrics = b.reg, zap.NewNop(), prometheus.NewRegistry()
		b.engine = push.New(popts)
		b.engine.Start()
		opts := grpcapi.DefaultOptions()
		opts.Registry, opts.Push, opts.Logger, opts.Metrics = b.reg, b.engine, zap.NewNop(), prometheus.NewRegistry()
		opts.Ready = func() bool { return b.ready }
		opts.Redirect = func() ([]grpcapi.Target, bool) {
			if b.move == "" {
				return nil, true
			}
			return []grpcapi.Target{{Host: b.move, Port: 8848}}, true
		}
		b.server = grpcapi.New(opts)
		served := make(chan error)
		go func() { served <- b.server.Serve(b.net) }()
		defer func() {
			b.engine.Stop()
			b.stop()
			if err := <-served; err != nil {
				t.Error(err)
			}
		}()
		f(t, b)
	})
}

func (b *bench) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	b.server.Stop(ctx)
}

func (b *bench) options() Options { return Options{Addr: "node:8848", DialContext: b.net.Dial} }

func (b *bench) dial(opts Options) *Conn {
	b.t.Helper()
	c, err := Dial(b.t.Context(), opts)
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

const (
	register  = `{"namespace":"public","groupName":"g","serviceName":"order","type":"registerInstance","instance":{"ip":"1.1.1.1","port":80}}`
	subscribe = `{"namespace":"public","groupName":"g","serviceName":"order","subscribe":true,"clusters":""}`
)

func TestRequest(t *testing.T) {
	run(t, func(t *testing.T, b *bench) {
		c := b.dial(b.options())
		defer c.Close()
		if !strings.Contains(c.ID(), "_10.9.9.9_") {
			t.Errorf("id %q is not the server's", c.ID())
		}
		p, err := c.Request(t.Context(), nacos.TypeInstanceRequest, []byte(register))
		if err != nil || p.Type != nacos.TypeInstanceResponse {
			t.Fatal(p, err)
		}
		if n := len(b.reg.Snapshot(order).Instances); n != 1 {
			t.Errorf("%d instances are registered", n)
		}

		// A refusal, be it typed or not, does not harm the connection.
		for _, body := range []string{`{`, `{"serviceName":"a b","groupName":"g"}`} {
			_, err := c.Request(t.Context(), nacos.TypeInstanceRequest, []byte(body))
			if refused, ok := errors.AsType[*Error](err); !ok || refused.Code == 0 || refused.Message == "" {
				t.Errorf("%s: %v", body, err)
			}
		}
		if c.Err() != nil {
			t.Error(c.Err())
		}

		c.Close()
		if _, err := c.Request(t.Context(), nacos.TypeInstanceRequest, []byte(register)); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if !errors.Is(c.Err(), ErrClosed) {
			t.Error(c.Err())
		}
		synctest.Wait()
		if n := len(b.reg.Snapshot(order).Instances); n != 0 {
			t.Errorf("%d instances have survived their connection", n)
		}
	})
}

func TestPushIsAcknowledged(t *testing.T) {
	run(t, func(t *testing.T, b *bench) {
		var mu sync.Mutex
		var got []string
		fail := true
		opts := b.options()
		opts.Push = func(p *nacos.Payload) error {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, string(p.Body))
			if fail {
				fail = false
				return errors.New("cannot take it")
			}
			return nil
		}
		c := b.dial(opts)
		defer c.Close()
		if _, err := c.Request(t.Context(), nacos.TypeSubscribeServiceRequest, []byte(subscribe)); err != nil {
			t.Fatal(err)
		}
		provider := b.reg.Open("provider", registry.Connection)
		provider.Register(order, []*registry.Instance{{InstanceKey: registry.InstanceKey{IP: "1.1.1.1", Port: 80, Cluster: "DEFAULT"}, Enabled: true}}, false)
		time.Sleep(5 * time.Second) // the refused push comes again
		mu.Lock()
		defer mu.Unlock()
		if len(got) < 2 || !strings.Contains(got[len(got)-1], `"ip":"1.1.1.1"`) {
			t.Errorf("pushes: %q", got)
		}
		subs := b.engine.Subscriptions(order)
		if len(subs) != 1 || subs[0].Acked == 0 || subs[0].Acked != subs[0].Pushed {
			t.Errorf("subscriptions: %+v", subs)
		}
	})
}

// Silence is filled by health checks, and the server's question whether the
// client lives is answered.
func TestIdleConnectionLives(t *testing.T) {
	f := func(after time.Duration) {
		t.Helper()
		run(t, func(t *testing.T, b *bench) {
			opts := b.options()
			opts.HealthCheckAfter = after
			c := b.dial(opts)
			defer c.Close()
			time.Sleep(time.Hour)
			if c.Err() != nil || b.server.Connections() != 1 {
				t.Errorf("health checks after %v: %v, %d connections", after, c.Err(), b.server.Connections())
			}
		})
	}
	f(0)
	f(time.Minute)
}

// A mute connection loses what is written to it, from a moment on, as one to a
// process that is stopped does.
type mute struct {
	net.Conn
	lost *atomic.Bool
}

func (m mute) Write(p []byte) (int, error) {
	if m.lost.Load() {
		return len(p), nil
	}
	return m.Conn.Write(p)
}

// A server that leaves a request unanswered, and says nothing else either, is as
// silent as one that does not answer a health check, and is asked once more (N-10,
// N-11). A caller's own short patience proves nothing.
func TestSilentServer(t *testing.T) {
	f := func(request, ends time.Duration) {
		t.Helper()
		run(t, func(t *testing.T, b *bench) {
			opts, lost := b.options(), new(atomic.Bool)
			opts.HealthChecks = 2
			opts.DialContext = func(ctx context.Context, addr string) (net.Conn, error) {
				c, err := b.net.Dial(ctx, addr)
				return mute{c, lost}, err
			}
			c := b.dial(opts)
			defer c.Close()
			if _, err := c.Request(t.Context(), nacos.TypeHealthCheckRequest, healthCheck); err != nil {
				t.Fatal(err)
			}
			lost.Store(true)
			begin := time.Now()
			if request > 0 {
				ctx, cancel := context.WithTimeout(t.Context(), request)
				defer cancel()
				if _, err := c.Request(ctx, nacos.TypeHealthCheckRequest, healthCheck); err == nil {
					t.Fatal("a server that hears nothing has answered")
				}
			}
			<-c.Done()
			if took := time.Since(begin); took != ends {
				t.Errorf("with a request of %v the connection ended after %v, want %v", request, took, ends)
			}
		})
	}
	f(0, 11*time.Second)
	f(3*time.Second, 6*time.Second)
	f(time.Second, 11*time.Second)
}

// One request that takes too long says nothing while the server says other things.
func TestSlowRequest(t *testing.T) {
	run(t, func(t *testing.T, b *bench) {
		opts := b.options()
		opts.HealthChecks = 2
		c := b.dial(opts)
		defer c.Close()
		begin := time.Since(c.start)
		time.Sleep(c.opts.RequestTimeout)
		c.touch()
		c.unanswered(begin)
		time.Sleep(time.Minute)
		if c.Err() != nil {
			t.Error(c.Err())
		}
	})
}

func TestServerEndsTheConnection(t *testing.T) {
	run(t, func(t *testing.T, b *bench) {
		c := b.dial(b.options())
		defer c.Close()
		b.stop()
		select {
		case <-c.Done():
		case <-time.After(time.Second):
			t.Fatal("the connection goes on")
		}
		if err := c.Err(); status.Code(err) != codes.Unavailable || errors.Is(err, ErrClosed) {
			t.Errorf("reason: %v", err)
		}
		if _, err := c.Request(t.Context(), nacos.TypeHealthCheckRequest, healthCheck); !errors.Is(err, c.Err()) {
			t.Errorf("a request says %v instead of the reason %v", err, c.Err())
		}
	})
}

func TestReset(t *testing.T) {
	run(t, func(t *testing.T, b *bench) {
		b.move = "10.0.0.2"
		opts := b.options()
		var to string
		opts.Reset = func(host string, port int) { to = fmt.Sprint(host, ":", port) }
		c := b.dial(opts)
		b.stop()
		c.Close()
		if to != "10.0.0.2:8848" {
			t.Errorf("moved to %q", to)
		}
	})
}

func TestDialFails(t *testing.T) {
	run(t, func(t *testing.T, b *bench) {
		b.ready = false
		_, err := Dial(t.Context(), b.options())
		if refused, ok := errors.AsType[*Error](err); !ok || refused.Code != nacos.CodeInvalidServerStatus {
			t.Errorf("a server that starts: %v", err)
		}

		opts := b.options()
		opts.DialContext = func(context.Context, string) (net.Conn, error) { return nil, errors.New("no route") }
		if _, err := Dial(t.Context(), opts); err == nil || !strings.Contains(err.Error(), "no route") {
			t.Errorf("no server: %v", err)
		}

		// A server that takes the connection and says nothing.
		var silent net.Conn
		defer func() { silent.Close() }()
		opts.DialContext = func(context.Context, string) (net.Conn, error) {
			c, s := net.Pipe()
			silent = s
			go func() {
				for b := make([]byte, 100); ; {
					if _, err := s.Read(b); err != nil {
						return
					}
				}
			}()
			return c, nil
		}
		start := time.Now()
		if _, err := Dial(t.Context(), opts); err == nil || time.Since(start) > 5*time.Second {
			t.Errorf("a silent server: %v after %v", err, time.Since(start))
		}
		for _, addr := range []string{"", "host", "host:x", "host:0", "host:65000"} {
			if _, err := Dial(t.Context(), Options{Addr: addr}); err == nil {
				t.Errorf("address %q was accepted", addr)
			}
		}
	})
}

// An old server knows no negotiation: it neither announces it nor confirms the
// setup.
func TestServerWithoutNegotiation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		begun := time.Now()
		srv := grpc.NewServer(grpc.ForceServerCodecV2(nacos.Codec{}))
		srv.RegisterService(&grpc.ServiceDesc{ServiceName: nacos.RequestService, HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
			MethodName: "request",
			Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				p := new(nacos.Payload)
				if err := decode(p); err != nil {
					return nil, err
				}
				if p.Type == nacos.TypeServerCheckRequest {
					return &nacos.Payload{Type: nacos.TypeServerCheckResponse, Body: []byte(`{"resultCode":200,"connectionId":"7"}`)}, nil
				}
				if time.Since(begun) < 200*time.Millisecond {
					return nacos.ErrorResponse(nacos.ResultFail, nacos.CodeUnregistered, nacos.MsgUnregistered), nil
				}
				return nacos.HealthCheckResponse(), nil
			}}}}, nil)
		srv.RegisterService(&grpc.ServiceDesc{ServiceName: nacos.BiStreamService, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
			StreamName: "requestBiStream", ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, s grpc.ServerStream) error { <-s.Context().Done(); return nil },
		}}}, nil)
		go srv.Serve(n)
		defer srv.Stop()
		c, err := Dial(t.Context(), Options{Addr: "node:8848", DialContext: n.Dial})
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		if time.Since(begun) < 200*time.Millisecond {
			t.Error("did not wait until the server knows the connection")
		}
	})
}

func TestRequestID(t *testing.T) {
	f := func(body, want string) {
		t.Helper()
		if got := requestID([]byte(body)); got != want {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
	}
	f(`{"headers":{},"requestId":"7","module":"naming"}`, "7")
	f(`{"requestId":"7"}`, "7")
	f(`{"requestId":"a\"b"}`, `a"b`)
	f(`{"serviceInfo":{"requestId":"1"},"requestId":"7"}`, "7")
	f(`{"requestId":null}`, "")
	f(`{"requestId":"`, "")
	f(``, "")
}

// What goes with a request, and what the server can do, are known by request and
// by connection.
func TestHeadersAndAbilities(t *testing.T) {
	run(t, func(t *testing.T, b *bench) {
		opts := b.options()
		opts.Headers = map[string]string{"app": "a"}
		opts.Abilities = map[string]bool{"fuzzyWatch": true}
		c := b.dial(opts)
		defer c.Close()
		if !c.Has("fuzzyWatch") || c.Has("of nobody") {
			t.Error("abilities of the server are not known")
		}
		if _, err := c.RequestWith(t.Context(), map[string]string{"app": "b"}, nacos.TypeInstanceRequest, []byte(register)); err != nil {
			t.Error(err)
		}
		if got := c.LocalIP(); got != "" { // a pipe has none
			t.Errorf("local address %q", got)
		}
	})
}

// An answer says whether the client knows the type (N-16), and is sent before
// Pushed is called (L-1).
func TestAnswersToPushes(t *testing.T) {
	f := func(typ string, err error, want string) {
		t.Helper()
		p := acknowledgement(typ, "7", err)
		if got := p.Type + " " + string(p.Body); got != want {
			t.Errorf("%s: %s\nwant %s", typ, got, want)
		}
	}
	f("NotifySubscriberRequest", nil, `NotifySubscriberResponse {"resultCode":200,"errorCode":0,"requestId":"7","success":true}`)
	f("NamingFuzzyWatchSyncRequest", nil, `NamingFuzzyWatchChangeNotifyResponse {"resultCode":200,"errorCode":0,"requestId":"7","success":true}`)
	f("OtherRequest", ErrNoHandler, `ErrorResponse {"resultCode":500,"errorCode":500,"message":"no handler for this type of request","requestId":"7","success":false}`)

	run(t, func(t *testing.T, b *bench) {
		opts := b.options()
		var order []string
		var c *Conn
		opts.Push = func(*nacos.Payload) error { order = append(order, "push"); return nil }
		opts.Pushed = func() {
			order = append(order, "pushed")
			if !c.sendMu.TryLock() {
				t.Error("the acknowledgement is still being sent")
			} else {
				c.sendMu.Unlock()
			}
		}
		c = b.dial(opts)
		defer c.Close()
		if _, err := c.Request(t.Context(), nacos.TypeSubscribeServiceRequest, []byte(subscribe)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(order) < 2 || order[0] != "push" || order[1] != "pushed" {
			t.Errorf("%v", order)
		}
	})
}
