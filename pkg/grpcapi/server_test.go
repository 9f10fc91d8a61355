package grpcapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/push"
	"github.com/starling-registry/starling/pkg/registry"
)

// A bench is a server with its registry and push engine in a bubble.
type bench struct {
	t      *testing.T
	net    *network
	server *Server
	reg    *registry.Registry
	engine *push.Engine
	ready  bool
}

func run(t *testing.T, f func(*bench), edit ...func(*Options)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, net: newNetwork(), ready: true}
		ropts := registry.DefaultOptions()
		ropts.Changed = func(k registry.ServiceKey) { b.engine.Mark(k) }
		ropts.Presence = func(k registry.ServiceKey) { b.engine.MarkPresence(k) }
		opts := DefaultOptions()
		opts.Logger, opts.Metrics = zap.NewNop(), prometheus.NewRegistry()
		opts.Ready = func() bool { return b.ready }
		late := &lateRegistry{}
		opts.Registry = late
		for _, e := range edit {
			e(&opts)
		}
		// As node does: some limits are enforced by others.
		ropts.MaxPerClient = opts.MaxInstances
		b.reg = registry.New(ropts)
		popts := push.DefaultOptions()
		popts.Source, popts.Logger, popts.Metrics, popts.MaxPerSubscriber = b.reg, zap.NewNop(), prometheus.NewRegistry(), opts.MaxSubscriptions
		b.engine = push.New(popts)
		b.engine.Start()
		opts.Push = b.engine
		late.Registry = b.reg
		b.server = New(opts)
		served := make(chan error)
		go func() { served <- b.server.Serve(b.net) }()
		defer func() { // also when f fails: a bubble ends only with its goroutines
			b.engine.Stop()
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			b.server.Stop(ctx)
			if err := <-served; err != nil {
				t.Error(err)
			}
		}()
		f(b)
	})
}

// A lateRegistry can be wrapped before the registry is made.
type lateRegistry struct{ Registry }

// A client speaks the protocol with our codec and nothing else of ours.
type client struct {
	b      *bench
	cc     *grpc.ClientConn
	stream grpc.ClientStream
	cancel context.CancelFunc
	pushes chan *nacos.Payload
	ended  chan error
	mute   atomic.Bool  // acknowledges nothing
	refuse atomic.Int64 // pushes still to be answered with an error

	refuseAll atomic.Int64 // messages of any type
}

func (b *bench) dial() *client {
	cc, err := grpc.NewClient("passthrough:///node", grpc.WithContextDialer(b.net.Dial), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(nacos.Codec{})), grpc.WithDisableServiceConfig())
	if err != nil {
		b.t.Fatal(err)
	}
	return &client{b: b, cc: cc, pushes: make(chan *nacos.Payload, 1000), ended: make(chan error, 1)}
}

const goSetup = `{"requestId":"","clientVersion":"Nacos-Go-Client:v2.3.5","tenant":"","labels":{"source":"sdk","module":"naming"},"clientAbilities":{}}`

// connect sets up a connection as the Go SDK does.
func (b *bench) connect() *client {
	c := b.dial()
	c.call("ServerCheckRequest", `{}`)
	c.open()
	c.send("ConnectionSetupRequest", goSetup)
	synctest.Wait()
	return c
}

func (c *client) open() {
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	var err error
	c.stream, err = c.cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/BiRequestStream/requestBiStream")
	if err != nil {
		c.b.t.Fatal(err)
	}
	go func() {
		for {
			p := new(nacos.Payload)
			if err := c.stream.RecvMsg(p); err != nil {
				c.ended <- err
				return
			}
			c.pushes <- p
			var id struct {
				RequestID string `json:"requestId"`
			}
			json.Unmarshal(p.Body, &id)
			if c.mute.Load() || id.RequestID == "" {
				continue
			}
			code := 200
			if p.Type == "NotifySubscriberRequest" && c.refuse.Add(-1) >= 0 || c.refuseAll.Add(-1) >= 0 {
				code = 500
			}
			c.stream.SendMsg(&nacos.Payload{Type: strings.TrimSuffix(p.Type, "Request") + "Response",
				Body: fmt.Appendf(nil, `{"resultCode":%d,"errorCode":0,"requestId":%q,"success":false}`, code, id.RequestID)})
		}
	}()
}

func (c *client) send(typ, body string) {
	c.b.t.Helper()
	if err := c.stream.SendMsg(&nacos.Payload{Type: typ, Body: []byte(body)}); err != nil {
		c.b.t.Fatal(err)
	}
}

func (c *client) close() {
	if c.cancel != nil {
		c.cancel()
	}
	c.cc.Close()
	synctest.Wait()
}

// call makes a unary call and returns the answer as "Type {json}".
func (c *client) call(typ, body string) string {
	c.b.t.Helper()
	p := new(nacos.Payload)
	if err := c.cc.Invoke(context.Background(), "/Request/request", &nacos.Payload{Type: typ, Body: []byte(body)}, p); err != nil {
		c.b.t.Fatalf("%s %s: %v", typ, body, err)
	}
	noNulls(c.b.t, p)
	return p.Type + " " + string(p.Body)
}

func (c *client) expect(typ, body, want string) {
	c.b.t.Helper()
	if diff := cmp.Diff(want, c.call(typ, body)); diff != "" {
		c.b.t.Errorf("%s %s (-want +got):\n%s", typ, body, diff)
	}
}

// noNulls walks a message: nothing that leaves the server may be null (§0 rule 4).
func noNulls(t *testing.T, p *nacos.Payload) {
	t.Helper()
	var v any
	if err := json.Unmarshal(p.Body, &v); err != nil {
		t.Fatalf("%s: %v in %s", p.Type, err, p.Body)
	}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case nil:
			t.Errorf("null in %s %s", p.Type, p.Body)
		case map[string]any:
			for _, e := range v {
				walk(e)
			}
		case []any:
			for _, e := range v {
				walk(e)
			}
		}
	}
	walk(v)
}

func ref(name string) string {
	return fmt.Sprintf(`"namespace":"public","serviceName":%q,"groupName":"DEFAULT_GROUP"`, name)
}

func (c *client) register(name, ip string, extra ...string) {
	c.b.t.Helper()
	body := fmt.Sprintf(`{%s,"type":"registerInstance","instance":{"ip":%q,"port":80%s}}`, ref(name), ip, strings.Join(extra, ""))
	c.expect("InstanceRequest", body, `InstanceResponse {"resultCode":200,"errorCode":0,"success":true,"type":"registerInstance"}`)
}

func (c *client) deregister(name, ip string) {
	c.b.t.Helper()
	c.expect("InstanceRequest", fmt.Sprintf(`{%s,"type":"deregisterInstance","instance":{"ip":%q,"port":80}}`, ref(name), ip),
		`InstanceResponse {"resultCode":200,"errorCode":0,"success":true,"type":"deregisterInstance"}`)
}

func (c *client) subscribe(name, clusters string) string {
	return c.call("SubscribeServiceRequest", fmt.Sprintf(`{%s,"subscribe":true,"clusters":%q}`, ref(name), clusters))
}

// info is the part of a pushed or answered ServiceInfo that tests look at.
type info struct {
	ServiceInfo struct {
		Name, Clusters string
		LastRefTime    int64
		Hosts          []struct {
			IP      string
			Weight  float64
			Healthy bool
		}
	}
}

func (i *info) ips() string {
	var ips []string
	for _, h := range i.ServiceInfo.Hosts {
		ips = append(ips, h.IP)
	}
	return strings.Join(ips, " ")
}

func parse(t *testing.T, answer string) *info {
	t.Helper()
	_, body, _ := strings.Cut(answer, " ")
	i := new(info)
	if err := json.Unmarshal([]byte(body), i); err != nil {
		t.Fatalf("%v in %s", err, answer)
	}
	return i
}

// pushed returns the next push, which must be there without time passing
// unless a wait is given.
func (c *client) pushed(wait time.Duration) *info {
	c.b.t.Helper()
	if wait == 0 {
		synctest.Wait()
	} else {
		time.Sleep(wait)
		synctest.Wait()
	}
	for {
		select {
		case p := <-c.pushes:
			if p.Type != "NotifySubscriberRequest" {
				continue
			}
			noNulls(c.b.t, p)
			return parse(c.b.t, p.Type+" "+string(p.Body))
		default:
			c.b.t.Fatal("no push")
			return nil
		}
	}
}

func (c *client) quiet(d time.Duration) {
	c.b.t.Helper()
	time.Sleep(d)
	synctest.Wait()
	for len(c.pushes) > 0 {
		if p := <-c.pushes; p.Type == "NotifySubscriberRequest" {
			c.b.t.Errorf("unexpected push %s", p.Body)
		}
	}
}

func TestServerCheckNeedsNoSetup(t *testing.T) {
	run(t, func(b *bench) {
		c := b.dial()
		defer c.close()
		if got := c.call("ServerCheckRequest", `{}`); !strings.HasPrefix(got, `ServerCheckResponse {"resultCode":200,"errorCode":0,"success":true,"connectionId":"`) ||
			!strings.HasSuffix(got, `_10.9.9.9_40001","supportAbilityNegotiation":true}`) {
			t.Error(got)
		}
		began := time.Now()
		c.expect("HealthCheckRequest", `{}`, `ErrorResponse {"resultCode":500,"errorCode":301,"message":"Connection is unregistered.","success":false}`)
		if d := time.Since(began); d != time.Second {
			t.Errorf("301 came after %v", d)
		}
		c.expect("NoSuchRequest", ``, `ErrorResponse {"resultCode":500,"errorCode":302,"message":"RequestHandler Not Found","success":false}`)
		c.expect("DistroDataRequest", ``, `ErrorResponse {"resultCode":500,"errorCode":502,"message":" invoke DistroDataRequest from sdk is forbidden","success":false}`)
	})
}

func TestRequestMayOvertakeItsSetup(t *testing.T) { // C36, §0 rule 15
	run(t, func(b *bench) {
		c := b.dial()
		defer c.close()
		c.open()
		got := make(chan string)
		go func() { got <- c.call("HealthCheckRequest", `{}`) }()
		time.Sleep(500 * time.Millisecond)
		c.send("ConnectionSetupRequest", goSetup)
		if a := <-got; a != `HealthCheckResponse {"resultCode":200,"errorCode":0,"success":true}` {
			t.Error(a)
		}
	})
}

func TestSetupAckOnlyForWhoAsks(t *testing.T) { // §0 rule 6
	f := func(setup string, want bool) {
		t.Helper()
		run(t, func(b *bench) {
			c := b.dial()
			defer c.close()
			c.open()
			c.send("ConnectionSetupRequest", setup)
			synctest.Wait()
			c.expect("HealthCheckRequest", `{}`, `HealthCheckResponse {"resultCode":200,"errorCode":0,"success":true}`)
			if got := len(c.pushes) == 1; got != want {
				t.Fatalf("SetupAck sent: %v, want %v", got, want)
			}
			if want {
				if p := <-c.pushes; p.Type != "SetupAckRequest" || string(p.Body) != `{"headers":{},"abilityTable":{"fuzzyWatch":true},"module":"internal"}` {
					t.Errorf("%s %s", p.Type, p.Body)
				}
			}
		})
	}
	f(`{"abilityTable":{"fuzzyWatch":true,"lock":true},"labels":{"module":"naming"}}`, true)
	f(`{"abilityTable":{}}`, true)
	f(`{"abilityTable":null,"labels":null,"clientVersion":null,"headers":null}`, false)
	f(`{"abilities":{"remoteAbility":{"supportRemoteConnection":true}},"labels":{"module":"config"}}`, false)
	f(goSetup, false)
}

func TestSecondSetupChangesNothing(t *testing.T) {
	run(t, func(b *bench) {
		c := b.connect()
		defer c.close()
		c.register("order", "1.1.1.1")
		c.send("ConnectionSetupRequest", goSetup)
		synctest.Wait()
		if got := parse(t, c.call("ServiceQueryRequest", `{`+ref("order")+`}`)).ips(); got != "1.1.1.1" {
			t.Errorf("hosts %q", got)
		}
	})
}

func TestRegistrationGoesWithItsConnection(t *testing.T) { // H1
	run(t, func(b *bench) {
		p, s := b.connect(), b.connect()
		defer s.close()
		s.subscribe("order", "")
		s.pushed(100 * time.Millisecond)
		p.register("order", "1.1.1.1")
		if got := s.pushed(0).ips(); got != "1.1.1.1" {
			t.Errorf("pushed %q", got)
		}
		p.close()
		if got := s.pushed(100 * time.Millisecond).ips(); got != "" {
			t.Errorf("pushed %q", got)
		}
		h := b.reg.History(registry.ServiceKey{Namespace: "public", Group: "DEFAULT_GROUP", Name: "order"})
		if len(h) != 2 || h[1].Cause != registry.CauseConnectionLost {
			t.Errorf("history %+v", h)
		}
	})
}

func TestQuietServiceIsPushedAtOnce(t *testing.T) { // design §7
	run(t, func(b *bench) {
		p, s := b.connect(), b.connect()
		defer p.close()
		defer s.close()
		answer := parse(t, s.subscribe("order", "c1"))
		first := s.pushed(100 * time.Millisecond) // even of a service that is not there
		if first.ServiceInfo.Clusters != "c1" || first.ServiceInfo.LastRefTime < answer.ServiceInfo.LastRefTime {
			t.Errorf("first push %+v after the answer %+v", first, answer)
		}
		last := first.ServiceInfo.LastRefTime
		s.quiet(time.Second)
		p.register("order", "1.1.1.1", `,"clusterName":"c1"`)
		i := s.pushed(0)
		if i.ips() != "1.1.1.1" || i.ServiceInfo.LastRefTime <= last {
			t.Errorf("pushed %+v", i)
		}
		// Within the window changes wait, and go out merged.
		for n := range 5 {
			p.register("order", "1.1.1.1", fmt.Sprintf(`,"clusterName":"c1","weight":%d`, n+2))
		}
		synctest.Wait()
		if len(s.pushes) != 0 {
			t.Errorf("%d pushes within the window", len(s.pushes))
		}
		i = s.pushed(100 * time.Millisecond)
		if i.ServiceInfo.Hosts[0].Weight != 6 {
			t.Errorf("pushed weight %v, want the newest", i.ServiceInfo.Hosts[0].Weight)
		}
		s.quiet(time.Second)
		// What the subscriber's filter hides is not pushed.
		other := b.connect()
		defer other.close()
		other.register("order", "2.2.2.2", `,"clusterName":"c2"`)
		s.quiet(time.Second)
		// Nor is a registration that changes nothing.
		p.register("order", "1.1.1.1", `,"clusterName":"c1","weight":6`)
		s.quiet(time.Second)
		// Nor anything after the subscription has ended.
		s.call("SubscribeServiceRequest", `{`+ref("order")+`,"subscribe":false,"clusters":"whatever"}`)
		p.deregister("order", "1.1.1.1")
		s.quiet(time.Second)
	})
}

func TestSubscribingAgain(t *testing.T) { // E3
	run(t, func(b *bench) {
		p, s := b.connect(), b.connect()
		defer p.close()
		defer s.close()
		p.register("order", "1.1.1.1", `,"clusterName":"c1"`)
		s.subscribe("order", "")
		s.pushed(100 * time.Millisecond)
		s.subscribe("order", "") // brings no push
		if got := parse(t, s.subscribe("order", "c9")); got.ips() != "" || got.ServiceInfo.Clusters != "c9" {
			t.Errorf("answer %+v", got)
		}
		s.quiet(time.Second)
		p.deregister("order", "1.1.1.1") // the filter has been replaced
		if got := s.pushed(0); got.ips() != "" || got.ServiceInfo.Clusters != "c9" {
			t.Errorf("pushed %+v", got)
		}
	})
}

func TestRefusedPushIsSentAgainOnce(t *testing.T) {
	run(t, func(b *bench) {
		s := b.connect()
		defer s.close()
		s.subscribe("order", "")
		s.refuse.Store(2)
		s.pushed(100 * time.Millisecond)
		s.quiet(900 * time.Millisecond)
		s.pushed(100 * time.Millisecond)
		s.quiet(time.Minute)
		key := registry.ServiceKey{Namespace: "public", Group: "DEFAULT_GROUP", Name: "order"}
		if subs := b.engine.Subscriptions(key); len(subs) != 1 || subs[0].Acked != 0 {
			t.Errorf("subscriptions %+v", subs)
		}
		p := b.connect()
		defer p.close()
		p.register("order", "1.1.1.1")
		s.pushed(0)
		synctest.Wait()
		if subs := b.engine.Subscriptions(key); subs[0].Acked != b.reg.Snapshot(key).Version {
			t.Errorf("acked %v, want the version of the snapshot", subs[0].Acked)
		}
	})
}

func TestWhoNeverAcknowledgesIsDropped(t *testing.T) {
	run(t, func(b *bench) {
		s := b.connect()
		s.mute.Store(true)
		s.subscribe("order", "")
		s.pushed(100 * time.Millisecond)
		for range 11 { // other requests keep it from being idle
			time.Sleep(5 * time.Second)
			s.call("HealthCheckRequest", `{}`)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		select {
		case err := <-s.ended:
			if err == nil {
				t.Error("the stream ended without an error")
			}
		default:
			t.Error("still connected")
		}
		s.close()
	})
}

func TestIdleClient(t *testing.T) { // H3
	run(t, func(b *bench) {
		answers, silent := b.connect(), b.connect()
		defer answers.close()
		defer silent.close()
		silent.mute.Store(true)
		answers.register("order", "1.1.1.1")
		silent.register("order", "2.2.2.2")
		key := registry.ServiceKey{Namespace: "public", Group: "DEFAULT_GROUP", Name: "order"}
		time.Sleep(24 * time.Second)
		if n := len(b.reg.Snapshot(key).Instances); n != 2 {
			t.Errorf("%d instances while both may still answer", n)
		}
		time.Sleep(4 * time.Second) // 20 s idle, 3 s scan, 5 s answer
		synctest.Wait()
		s := b.reg.Snapshot(key)
		if len(s.Instances) != 1 || s.Instances[0].IP != "1.1.1.1" {
			t.Errorf("instances %v", s.Instances)
		}
		if p := <-silent.pushes; p.Type != "ClientDetectionRequest" {
			t.Errorf("%s %s", p.Type, p.Body)
		}
		select {
		case <-silent.ended: // it notices
		default:
			t.Error("the transport of the removed client is open")
		}
		time.Sleep(10 * time.Minute)
		if n := len(b.reg.Snapshot(key).Instances); n != 1 {
			t.Error("a client that answers was dropped")
		}
		h := b.reg.History(key)
		if last := h[len(h)-1]; last.Cause != registry.CauseIdle {
			t.Errorf("cause %q", last.Cause)
		}
	})
}

func TestEndOfTheStreamEndsTheConnection(t *testing.T) {
	run(t, func(b *bench) {
		c := b.connect()
		c.register("order", "1.1.1.1")
		c.cancel()
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if n := b.reg.Stats().Instances; n != 0 {
			t.Errorf("%d instances left", n)
		}
		c.cc.Close()
	})
}

func TestSlowSubscriberDelaysNobody(t *testing.T) { // T11
	run(t, func(b *bench) {
		p, fast := b.connect(), b.connect()
		defer p.close()
		defer fast.close()
		// This one's stream is never read: flow control stops its sender.
		slow := b.dial()
		ctx, cancel := context.WithCancel(context.Background())
		defer slow.close()
		defer cancel()
		slow.stream, _ = slow.cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/BiRequestStream/requestBiStream")
		slow.send("ConnectionSetupRequest", goSetup)
		synctest.Wait()
		slow.subscribe("order", "")
		fast.subscribe("order", "")
		fast.pushed(100 * time.Millisecond)
		big := strings.Repeat("x", 900)
		for n := range 200 {
			p.register("order", fmt.Sprintf("1.1.1.%d", n), fmt.Sprintf(`,"metadata":{"n":"%d%s"}`, n, big))
			time.Sleep(100 * time.Millisecond)
			if got := fast.pushed(0).ips(); got != fmt.Sprintf("1.1.1.%d", n) {
				t.Fatalf("the fast one got %q as push %d", got, n)
			}
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		b.server.mu.Lock()
		left := len(b.server.conns)
		b.server.mu.Unlock()
		if left != 2 {
			t.Errorf("%d connections left: the one that does not read must go", left)
		}
	})
}

func TestNotReady(t *testing.T) { // 300
	run(t, func(b *bench) {
		old := b.connect()
		b.ready = false
		c := b.dial()
		c.expect("ServerCheckRequest", `{}`, `ErrorResponse {"resultCode":500,"errorCode":300,"message":"Server is starting,please try later.","success":false}`)
		c.open()
		c.send("ConnectionSetupRequest", goSetup)
		synctest.Wait()
		if err := <-c.ended; err == nil {
			t.Error("setup accepted")
		}
		c.close()
		old.expect("HealthCheckRequest", `{}`, `HealthCheckResponse {"resultCode":200,"errorCode":0,"success":true}`)
		old.close()
	})
}

func TestStopMovesClients(t *testing.T) {
	run(t, func(b *bench) {
		movers, stays := []*client{b.connect(), b.connect()}, b.connect()
		movers[0].register("order", "1.1.1.1")
		done := make(chan struct{})
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		go func() { b.server.Stop(ctx); close(done) }()
		for _, c := range movers {
			p := <-c.pushes
			var r struct{ ServerIP, ServerPort, ConnectionID string }
			json.Unmarshal(p.Body, &r)
			if p.Type != "ConnectResetRequest" || r.ServerIP != "10.0.0.2" || r.ServerPort != "8848" || r.ConnectionID == "" {
				t.Errorf("%s %s", p.Type, p.Body)
			}
			c.close() // it has moved
		}
		<-done
		<-stays.ended
		stays.close()
		// The node goes; what its clients publish is not withdrawn by that.
		if n := b.reg.Stats().Instances; n != 1 {
			t.Errorf("%d instances, want 1", n)
		}
	}, func(o *Options) {
		o.Redirect = func() ([]Target, bool) { return []Target{{"10.0.0.2", 8848}}, true }
	})
}

func TestAnswers(t *testing.T) {
	run(t, func(b *bench) {
		c := b.connect()
		defer c.close()
		f := c.expect
		bad := func(code int, msg string) string {
			return fmt.Sprintf(`ErrorResponse {"resultCode":%d,"errorCode":%d,"message":%q,"success":false}`, code, code, msg)
		}
		badJSON := `ErrorResponse {"resultCode":500,"errorCode":502,"message":"errCode: 101, errMsg: Nacos deserialize failed.  ","success":false}`
		typed := func(typ, msg string) string {
			return fmt.Sprintf(`%s {"resultCode":500,"errorCode":400,"message":%q,"success":false}`, typ, msg)
		}
		reg := func(ref, instance string) string {
			return `{` + ref + `,"type":"registerInstance","instance":` + instance + `}`
		}
		order := ref("order")

		f("InstanceRequest", ``, badJSON)
		f("InstanceRequest", `{bad`, badJSON)
		f("InstanceRequest", strings.Repeat("[", 20000), badJSON)
		f("InstanceRequest", reg(order, `{"ip":"1.1.1.1","port":"eighty"}`), badJSON)
		f("InstanceRequest", reg(order, `{"ip":"1.1.1.1","port":80,"weight":1e400}`), badJSON)
		f("InstanceRequest", reg(order, `{"ip":"1.1.1.1","port":80,"weight":"NaN"}`), badJSON)
		f("InstanceRequest", reg(order, `{"ip":"1.1.1.1","port":80,"metadata":{"a":{"b":1}}}`), badJSON)
		f("InstanceRequest", `{`+order+`,"type":"nonsense","instance":{"ip":"1.1.1.1","port":80}}`, bad(400, "Unsupported request type nonsense"))
		f("InstanceRequest", `{`+order+`,"type":"registerInstance"}`, bad(400, "Instance can not be null."))
		f("InstanceRequest", reg(`"namespace":"public","groupName":"g"`, `{"ip":"1.1.1.1","port":80}`), bad(500, "Param 'serviceName' is illegal, serviceName is blank"))
		f("InstanceRequest", reg(`"namespace":"public","serviceName":"s"`, `{"ip":"1.1.1.1","port":80}`), bad(500, "Param 'groupName' is illegal, groupName is blank"))
		f("InstanceRequest", reg(ref("a b"), `{"ip":"1.1.1.1","port":80}`), typed("InstanceResponse", "Param check invalid:Param 'serviceName' is illegal, illegal characters should not appear in the param."))
		f("InstanceRequest", reg(ref("@@x"), `{"ip":"1.1.1.1","port":80}`), typed("InstanceResponse", "Param check invalid:Param 'serviceName' is illegal, illegal characters should not appear in the param."))
		f("InstanceRequest", reg(order, `{"ip":"1.1.1.1","port":65536}`), typed("InstanceResponse", "Param check invalid:Param 'port' is illegal, the value should be between 0 and 65535."))
		f("InstanceRequest", reg(order, `{"ip":"1.1.1.1","port":80,"clusterName":"a,b"}`), typed("InstanceResponse", "Param check invalid:Param 'cluster' is illegal, illegal characters should not appear in the param."))
		f("InstanceRequest", reg(order, `{"ip":"1.1.1.1","port":80,"clusterName":"a_b"}`), bad(400, "Instance 'clusterName' should be characters with only 0-9a-zA-Z-. (current: a_b)"))
		f("InstanceRequest", reg(order, `{"ip":" ","port":80}`), typed("InstanceResponse", "Param check invalid:Param 'ip' is illegal, illegal characters should not appear in the param."))
		f("InstanceRequest", reg(order, `{"port":80}`), typed("InstanceResponse", "Required parameter 'ip' type String is not present"))
		f("InstanceRequest", reg(order, `{"ip":"1.1.1.1","port":80,"weight":-1}`), typed("InstanceResponse", "instance format invalid: The weights range from 0.0 to 10000.0"))
		f("InstanceRequest", reg(order, `{"ip":"1.1.1.1","port":80,"metadata":{"preserved.heart.beat.timeout":"1000"}}`), bad(400, "Instance 'heart beat interval' must less than 'heart beat timeout' and 'ip delete timeout'."))
		f("InstanceRequest", reg(order, `{"ip":"1.1.1.1","port":80,"metadata":{"preserved.instance.id.generator":"x"}}`), bad(500, "The InstanceIdGenerator type is not found "))
		f("InstanceRequest", reg(order, fmt.Sprintf(`{"ip":"1.1.1.1","port":80,"metadata":{"k":%q}}`, strings.Repeat("v", 1024))), typed("InstanceResponse", "Param check invalid:Param 'Metadata' is illegal, the param length should not exceed 1024."))
		f("PersistentInstanceRequest", reg(order, `{"ip":"1.1.1.1","port":80}`), `InstanceResponse {"resultCode":500,"errorCode":501,"message":"this server keeps no persistent instances","success":false}`)
		f("BatchInstanceRequest", `{`+order+`,"type":"batchRegisterInstance","instances":null}`, bad(400, "Instances can not be null."))
		f("BatchInstanceRequest", `{`+order+`,"type":"batchRegisterInstance","instances":[null]}`, bad(400, "Instance can not be null."))
		f("SubscribeServiceRequest", `{`+order+`,"subscribe":true,"clusters":"a@b"}`, typed("SubscribeServiceResponse", "Param check invalid:Param 'cluster' is illegal, illegal characters should not appear in the param."))
		f("ServiceQueryRequest", `{`+order+`,"udpPort":70000}`, typed("QueryServiceResponse", "Param check invalid:Param 'port' is illegal, the value should be between 0 and 65535."))
		f("ServiceListRequest", `{`+ref("")+`,"pageNo":1,"pageSize":-1}`, typed("ServiceListResponse", "Param 'pageSize' is illegal, the value should not be negative."))
		f("LockOperationRequest", `{}`, `LockOperationResponse {"resultCode":500,"errorCode":0,"message":"There is no Handler of such operations!","result":false,"success":false}`)
		f("ConfigQueryRequest", `{}`, `ErrorResponse {"resultCode":500,"errorCode":302,"message":"RequestHandler Not Found","success":false}`)
		if s := b.reg.Stats(); s.Services != 0 {
			t.Errorf("%d services after nothing but refusals", s.Services)
		}

		f("InstanceRequest", `{"requestId":"77",`+order+`,"type":"registerInstance","instance":{"ip":"1.1.1.1","port":80,"weight":2.5,"healthy":false,"metadata":{"n":1,"b":true,"z":null,"s":"\u0007é"},"instanceId":null}}`,
			`InstanceResponse {"resultCode":200,"errorCode":0,"success":true,"requestId":"77","type":"registerInstance"}`)
		got, _, _ := strings.Cut(c.call("ServiceQueryRequest", `{`+order+`}`), `"lastRefTime"`)
		want := `QueryServiceResponse {"resultCode":200,"errorCode":0,"success":true,"serviceInfo":{"checksum":"","allIPs":false,"allIps":false,"valid":true,"hosts":[{"instanceId":"1.1.1.1#80#DEFAULT#DEFAULT_GROUP@@order","ip":"1.1.1.1","port":80,"weight":2.5,"healthy":false,"enabled":true,"ephemeral":true,"clusterName":"DEFAULT","serviceName":"DEFAULT_GROUP@@order","metadata":{"b":"true","n":"1","s":"\u0007é"},"instanceHeartBeatInterval":5000,"instanceHeartBeatTimeOut":15000,"ipDeleteTimeout":30000}],"reachProtectionThreshold":false,"name":"order","groupName":"DEFAULT_GROUP","clusters":"",`
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		f("ServiceListRequest", `{`+ref("")+`,"pageNo":0,"pageSize":10}`, `ServiceListResponse {"resultCode":200,"errorCode":0,"success":true,"count":1,"serviceNames":["order"]}`)
		f("ServiceListRequest", `{`+ref("")+`,"pageNo":9,"pageSize":10}`, `ServiceListResponse {"resultCode":200,"errorCode":0,"success":true,"count":1,"serviceNames":[]}`)
		// The default namespace has one name only (C21).
		if got := parse(t, c.call("ServiceQueryRequest", `{"namespace":"","serviceName":"order","groupName":"DEFAULT_GROUP"}`)).ips(); got != "1.1.1.1" {
			t.Errorf("in namespace \"\": %q", got)
		}
	})
}

type fakeStream struct{ grpc.ServerStream }

func (fakeStream) SendMsg(any) error { return nil }

// A transport that ends while its setup is being handled must not stay in the
// table of connections.
func TestSetupRacesWithTheEndOfTheTransport(t *testing.T) {
	var engine *push.Engine
	ropts := registry.DefaultOptions()
	ropts.Changed = func(k registry.ServiceKey) { engine.Mark(k) }
	reg := registry.New(ropts)
	popts := push.DefaultOptions()
	popts.Source, popts.Logger, popts.Metrics = reg, zap.NewNop(), prometheus.NewRegistry()
	engine = push.New(popts)
	engine.Start()
	defer engine.Stop()
	opts := DefaultOptions()
	opts.Registry, opts.Push, opts.Logger, opts.Metrics = reg, engine, zap.NewNop(), prometheus.NewRegistry()
	s := New(opts)
	defer s.Stop(context.Background())
	tagger := connTagger{s}
	stream := fakeStream{}
	// Others use the table, too (a metrics scrape, the idle scan): then the end
	// can get its lock before the setup does.
	var stop atomic.Bool
	var others sync.WaitGroup
	others.Go(func() {
		for !stop.Load() {
			s.mu.Lock()
			for range 2000 {
				_ = stop.Load()
			}
			s.mu.Unlock()
			runtime.Gosched()
		}
	})
	n := 0
	for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline) && s.Connections() == 0; n++ {
		ctx := tagger.TagConn(context.Background(), &stats.ConnTagInfo{RemoteAddr: &net.TCPAddr{IP: net.IPv4(1, 1, 1, 1), Port: 1}})
		c := connOf(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { c.setup(stream, &nacos.ConnectionSetupRequest{}, "") })
		wg.Go(func() {
			for { // the transport ends as soon as the setup has begun
				c.mu.Lock()
				begun := c.stream != nil
				c.mu.Unlock()
				if begun {
					break
				}
				runtime.Gosched()
			}
			tagger.HandleConn(ctx, &stats.ConnEnd{})
		})
		wg.Wait()
	}
	stop.Store(true)
	others.Wait()
	if k := s.Connections(); k != 0 {
		t.Errorf("after %d connections that came and went, %d dead one stays registered for ever", n, k)
	}
}

// Clients leave the cluster out and mean DEFAULT, as in a registration.
func TestDeregisterMemberOfDefaultCluster(t *testing.T) { // C40
	run(t, func(b *bench) {
		c := b.connect()
		defer c.close()
		c.expect("BatchInstanceRequest", `{`+ref("order")+`,"type":"batchRegisterInstance","instances":[{"ip":"1.1.1.1","port":80},{"ip":"1.1.1.1","port":80,"clusterName":"c2"},{"ip":"1.1.1.2","port":80}]}`,
			`BatchInstanceResponse {"resultCode":200,"errorCode":0,"success":true,"type":"batchRegisterInstance"}`)
		c.deregister("order", "1.1.1.1")
		if got := parse(t, c.call("ServiceQueryRequest", `{`+ref("order")+`,"cluster":"DEFAULT"}`)).ips(); got != "1.1.1.2" {
			t.Errorf("hosts of cluster DEFAULT %q, want 1.1.1.2 only", got)
		}
	})
}

// However the stream of a connection ends, the connection ends with it (§0
// rule 12).
func TestEveryEndOfTheStreamEndsTheConnection(t *testing.T) {
	run(t, func(b *bench) {
		c := b.connect()
		c.register("order", "1.1.1.1")
		c.send("ConnectionSetupRequest", `{"clientVersion":1}`)
		<-c.ended
		synctest.Wait()
		if n := b.server.Connections(); n != 0 {
			t.Errorf("the stream has ended, the connection is still registered")
		}
		c.close()
	})
}

// A client that polls besides its subscription (Java with
// asyncQuerySubscribeService, Rust) puts the answer into the same cache. What
// changes back within the window must be pushed all the same.
func TestQueryBetweenTwoPushes(t *testing.T) {
	run(t, func(b *bench) {
		p, s := b.connect(), b.connect()
		defer p.close()
		defer s.close()
		s.subscribe("order", "")
		s.pushed(100 * time.Millisecond)
		time.Sleep(time.Second)
		p.register("order", "1.1.1.1")
		s.pushed(0)
		p.register("order", "1.1.1.2") // waits for the window
		if got := parse(t, s.call("ServiceQueryRequest", `{`+ref("order")+`}`)).ips(); got != "1.1.1.2" {
			t.Fatal(got)
		}
		p.register("order", "1.1.1.1")
		time.Sleep(time.Minute)
		synctest.Wait()
		for len(s.pushes) > 0 {
			if q := <-s.pushes; q.Type == "NotifySubscriberRequest" {
				return
			}
		}
		t.Error("no push: the cache of the client says 1.1.1.2 for ever")
	})
}

// A client that does not read its stream gets nothing any more, also when what
// blocks is a push of a service that it has unsubscribed from meanwhile, and
// it keeps itself busy with requests.
func TestWhoDoesNotReadIsDropped(t *testing.T) {
	run(t, func(b *bench) {
		p, slow := b.connect(), b.dial()
		defer p.close()
		defer slow.close()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		slow.stream, _ = slow.cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/BiRequestStream/requestBiStream")
		slow.send("ConnectionSetupRequest", goSetup)
		synctest.Wait()
		slow.subscribe("order", "")
		for n := range 200 {
			p.register("order", fmt.Sprintf("1.1.1.%d", n), fmt.Sprintf(`,"metadata":{"n":%q}`, strings.Repeat("x", 900)))
			time.Sleep(100 * time.Millisecond)
		}
		slow.call("SubscribeServiceRequest", `{`+ref("order")+`,"subscribe":false}`)
		for range 20 {
			time.Sleep(4 * time.Second)
			if b.server.Connections() == 1 {
				return
			}
			slow.call("HealthCheckRequest", `{}`)
			p.call("HealthCheckRequest", `{}`)
		}
		t.Error("still connected after 80 s")
	})
}

// What a request says is neither repeated nor kept without bound.
func TestLongTexts(t *testing.T) {
	run(t, func(b *bench) {
		c := b.dial()
		defer c.close()
		c.open()
		long := strings.Repeat("x", 1<<20)
		c.send("ConnectionSetupRequest", `{"clientVersion":"`+long+`"}`)
		c.expect("HealthCheckRequest", `{}`, `HealthCheckResponse {"resultCode":200,"errorCode":0,"success":true}`)
		for _, conn := range b.server.registered() {
			if n := len(conn.clientVersion); n > 300 {
				t.Errorf("a version of %d bytes is kept", n)
			}
		}
		blanks := strings.Repeat(" ", 1<<20)
		for _, call := range [][2]string{
			{"InstanceRequest", `{"serviceName":"s","groupName":"g","type":"` + long + `"}`},
			{"BatchInstanceRequest", `{"serviceName":"s","groupName":"g","type":"` + long + `"}`},
			{"NamingFuzzyWatchRequest", `{"watchType":"` + long + `"}`},
			{"NamingFuzzyWatchRequest", `{"watchType":"WATCH","groupKeyPattern":"` + blanks + `>>g>>s"}`},
			{"ServiceListRequest", `{"requestId":"` + long + `"}`},
			{"ServiceQueryRequest", `{"serviceName":"` + blanks + `"}`},
			{"ServiceQueryRequest", `{"serviceName":"s","groupName":"` + blanks + `"}`},
			{"ServiceQueryRequest", `{"serviceName":"s","cluster":"` + blanks + `"}`},
			{"SubscribeServiceRequest", `{"serviceName":"s","groupName":"g","subscribe":true,"clusters":"` + strings.Repeat("a,", 1<<19) + `"}`},
			{"InstanceRequest", `{"serviceName":"s","groupName":"g","type":"registerInstance","instance":{"ip":"1","instanceId":"` + long + `"}}`},
		} {
			if got := c.call(call[0], call[1]); len(got) > 2000 {
				t.Errorf("%s is answered with %d bytes", call[0], len(got))
			}
		}
	})
}

// A connection cannot make the server wait for many unfinished requests, nor
// for long.
func TestRequestsThatDoNotArrive(t *testing.T) {
	run(t, func(b *bench) {
		c := b.connect()
		defer c.close()
		c.register("s", "1.1.1.1")
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		for range maxReceiving - 1 {
			if _, err := c.cc.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, "/Request/request"); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		c.expect("HealthCheckRequest", `{}`, `HealthCheckResponse {"resultCode":200,"errorCode":0,"success":true}`)
		time.Sleep(DefaultOptions().ReceiveTimeout - time.Second)
		c.expect("HealthCheckRequest", `{}`, `HealthCheckResponse {"resultCode":200,"errorCode":0,"success":true}`)
		time.Sleep(time.Second + time.Millisecond)
		synctest.Wait()
		if n := b.server.Connections(); n != 0 {
			t.Errorf("%d connections are left", n)
		}
	})
}
