package grpcapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/starling-registry/starling/pkg/registry"
)

// The rows of design §6 that concern the end of a connection.
func TestFate(t *testing.T) {
	for _, c := range []struct {
		situation
		want fate
	}{
		{situation{}, goes},
		{situation{draining: true}, moves},
		{situation{asked: true}, moves},
		{situation{stalled: true}, moves},
		{situation{unsettled: true}, moves},
		{situation{asked: true, unsettled: true, draining: true, stalled: true}, moves},
		{situation{stopped: true}, stays},
		{situation{stopped: true, draining: true, asked: true, stalled: true, unsettled: true}, stays},
	} {
		if got := c.fate(); got != c.want {
			t.Errorf("%+v: %v, want %v", c.situation, got, c.want)
		}
	}
}

func TestMayGo(t *testing.T) {
	const second = time.Second
	for _, c := range []struct {
		away, redo time.Duration
		draining   bool
		want       bool
	}{
		{0, 0, false, true},
		{34 * second, 35 * second, false, false},
		{35 * second, 35 * second, false, true},
		{time.Minute, 0, true, false},
		{drainHold, 0, true, true},
	} {
		if got := (&departed{redo: c.redo}).mayGo(c.away, c.draining); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestRedoSeconds(t *testing.T) {
	for version, want := range map[string]int{
		"Nacos-Python-Client:v3.2.0": 35, "Nacos-Python-Client:v3.0.0b1": 35, "Nacos-Python-Client:3.1": 35, "Nacos-Python-Client:v10": 35,
		"Nacos-Python-Client:v2.0.11": 0, "Nacos-Python-Client:v1.0.0": 0, "Nacos-Python-Client:": 0, "Nacos-Python-Client:vx": 0,
		"Nacos-Java-Client:v3.0.3": 0, "Nacos-Go-Client:v2.3.5": 0, "Nacos-Rust-Client:0.8.0": 0, "": 0,
	} {
		if got := redoSeconds(version); got != want {
			t.Errorf("%q: %d, want %d", version, got, want)
		}
	}
}

// A switchboard is what a node tells its server.
type switchboard struct {
	stalled, silent, keep atomic.Bool
	asked                 atomic.Pointer[[]string] // addresses of the last MovingDone
}

func (s *switchboard) edit(o *Options) {
	o.StalledLately, o.Unsettled = s.stalled.Load, s.silent.Load
	o.MovingDone = func(since time.Time, addrs []string) bool {
		s.asked.Store(&addrs)
		return !s.keep.Load() && time.Since(since) >= 10*time.Second
	}
}

// Whoever is expected elsewhere stays a while; no subscriber sees it go and
// come (F01, F10).
func TestLostButExpectedElsewhere(t *testing.T) {
	for _, why := range []string{"stalled", "silent", "reset"} {
		sw := &switchboard{}
		run(t, func(b *bench) {
			p, s := b.connect(), b.connect()
			defer s.close()
			p.register("order", "1.1.1.1")
			s.subscribe("order", "")
			s.pushed(time.Second)
			lose := func(c *client) {
				switch why {
				case "stalled":
					sw.stalled.Store(true)
				case "silent":
					sw.silent.Store(true)
				case "reset":
					for _, conn := range b.server.registered() {
						if len(conn.client.Services()) > 0 {
							conn.reset("10.0.0.2", 8848)
						}
					}
				}
				c.close()
				sw.stalled.Store(false)
				sw.silent.Store(false)
			}
			lose(p)
			s.quiet(3 * time.Second)
			if n := b.server.Moving(); n != 1 {
				t.Errorf("%s: %d clients are moving, want 1", why, n)
			}
			if !b.reg.Snapshot(orderKey).Instances[0].Moving {
				t.Errorf("%s: it is not marked", why)
			}
			back := b.connect()
			back.register("order", "1.1.1.1")
			s.quiet(time.Minute)
			if n := b.reg.Stats().Publications; n != 1 {
				t.Errorf("%s: %d publications, want that of the new connection", why, n)
			}
			if n := b.server.Moving(); n != 0 {
				t.Errorf("%s: %d clients are moving after a minute", why, n)
			}
			back.close()
			if got := s.pushed(0).ips(); got != "" { // nothing special any more: at once
				t.Errorf("%s: pushed %q", why, got)
			}
			// Who does not come back goes when the others say so.
			p = b.connect()
			p.register("order", "1.1.1.1")
			s.pushed(time.Second)
			sw.keep.Store(true)
			lose(p)
			s.quiet(20 * time.Second)
			if diff := cmp.Diff([]string{"1.1.1.1:80"}, *sw.asked.Load()); diff != "" {
				t.Errorf("%s: asked about (-want +got):\n%s", why, diff)
			}
			sw.keep.Store(false)
			if got := s.pushed(time.Second).ips(); got != "" {
				t.Errorf("%s: pushed %q", why, got)
			}
			h := b.reg.History(orderKey)
			if last := h[len(h)-1]; last.Cause != registry.CauseConnectionLost {
				t.Errorf("%s: cause %q", why, last.Cause)
			}
		}, sw.edit)
	}
}

var orderKey = registry.ServiceKey{Namespace: "public", Group: "DEFAULT_GROUP", Name: "order"}

func TestSlowClientStaysLonger(t *testing.T) {
	sw := &switchboard{}
	sw.stalled.Store(true)
	run(t, func(b *bench) {
		c := b.dial()
		c.open()
		c.send("ConnectionSetupRequest", `{"clientVersion":"Nacos-Python-Client:v3.2.0"}`)
		synctest.Wait()
		c.register("order", "1.1.1.1")
		c.close()
		time.Sleep(34 * time.Second)
		if n := len(b.reg.Snapshot(orderKey).Instances); n != 1 {
			t.Errorf("%d instances after 34 s", n)
		}
		time.Sleep(2 * time.Second)
		if n := len(b.reg.Snapshot(orderKey).Instances); n != 0 {
			t.Errorf("%d instances after 36 s", n)
		}
	}, sw.edit)
}

// There is room for as many as there may be connections.
func TestMovingIsBounded(t *testing.T) {
	sw := &switchboard{}
	sw.silent.Store(true)
	run(t, func(b *bench) {
		for n := range 5 {
			c := b.connect()
			c.register("order", fmt.Sprintf("1.1.1.%d", n))
			c.close()
		}
		if n := b.server.Moving(); n != 3 {
			t.Errorf("%d clients are moving, want 3", n)
		}
		if n := len(b.reg.Snapshot(orderKey).Instances); n != 3 {
			t.Errorf("%d instances, want 3", n)
		}
	}, sw.edit, func(o *Options) { o.MaxConnections = 3 })
}

// Over a stall, silence proves nothing.
func TestNobodyIsJudgedOverAStall(t *testing.T) {
	sw := &switchboard{}
	run(t, func(b *bench) {
		silent, mute := b.connect(), b.connect()
		defer silent.close()
		defer mute.close()
		silent.mute.Store(true)
		mute.mute.Store(true)
		mute.subscribe("order", "")
		sw.stalled.Store(true)
		for range 40 {
			time.Sleep(3 * time.Second)
			mute.call("HealthCheckRequest", `{}`)
		}
		if n := b.server.Connections(); n != 2 {
			t.Errorf("%d connections, want both", n)
		}
		sw.stalled.Store(false)
		for range 10 {
			time.Sleep(3 * time.Second)
			if b.server.Connections() == 0 {
				return
			}
		}
		t.Errorf("%d connections are left", b.server.Connections())
	}, sw.edit)
}

// Awake comes before anything is decided; what it finds counts.
func TestAwake(t *testing.T) {
	sw := &switchboard{}
	var b0 atomic.Pointer[Server]
	var asleep atomic.Bool
	var handled atomic.Int64
	run(t, func(b *bench) {
		b0.Store(b.server)
		gone, here := b.connect(), b.connect()
		defer here.close()
		gone.register("order", "1.1.1.1")
		asleep.Store(true)
		thaw := b.net.freeze()
		defer thaw()
		gone.cc.Close()
		time.Sleep(5 * time.Second)
		if n := b.server.Connections(); n != 2 {
			t.Errorf("%d connections while the process stands still", n)
		}
		here.register("order", "1.1.1.2")
		if n := handled.Load(); n != 1 {
			t.Errorf("%d closed connections handled, want 1", n)
		}
		if n := b.server.Connections(); n != 1 {
			t.Errorf("%d connections", n)
		}
		if n := len(b.reg.Snapshot(orderKey).Instances); n != 2 {
			t.Errorf("%d instances: who left meanwhile stays a while", n)
		}
		time.Sleep(11 * time.Second)
		if n := len(b.reg.Snapshot(orderKey).Instances); n != 1 {
			t.Errorf("%d instances", n)
		}
	}, sw.edit, func(o *Options) {
		o.IdleAfter = time.Hour
		o.Awake = func() {
			if asleep.CompareAndSwap(true, false) {
				handled.Add(int64(b0.Load().HandleClosed()))
			}
		}
		o.IdleScan = time.Hour
	})
}

// A node that finds out with a setup that it stood still does not accept it.
func TestAwakeBeforeASetup(t *testing.T) {
	var asleep, ready atomic.Bool
	ready.Store(true)
	run(t, func(b *bench) {
		c := b.dial()
		defer c.close()
		c.call("ServerCheckRequest", `{}`)
		c.open()
		asleep.Store(true)
		c.send("ConnectionSetupRequest", goSetup)
		synctest.Wait()
		if n := b.server.Connections(); n != 0 || ready.Load() {
			t.Errorf("%d connections", n)
		}
	}, func(o *Options) {
		o.Ready = ready.Load
		o.Awake = func() {
			if asleep.Load() {
				ready.Store(false)
			}
		}
	})
}

// A request that was under way when its connection ended does not take back
// that its client is expected elsewhere.
func TestRegistrationAfterTheEnd(t *testing.T) {
	sw := &switchboard{}
	sw.silent.Store(true)
	run(t, func(b *bench) {
		c := b.connect()
		c.register("order", "1.1.1.1")
		conn := b.server.registered()[0]
		c.close()
		i := *b.reg.Snapshot(orderKey).Instances[0].Instance
		i.Weight++
		if err := conn.register(orderKey, []*registry.Instance{&i}, false); err != nil {
			t.Fatal(err)
		}
		if s := b.reg.Snapshot(orderKey).Instances[0]; !s.Moving {
			t.Errorf("%+v is not moving", s)
		}
		time.Sleep(12 * time.Second)
		if n := len(b.reg.Snapshot(orderKey).Instances); n != 0 {
			t.Errorf("%d instances", n)
		}
	}, sw.edit)
}

// When the node stops for good, nothing is withdrawn or marked.
func TestStopWithdrawsNothing(t *testing.T) {
	run(t, func(b *bench) {
		c := b.connect()
		c.register("order", "1.1.1.1")
		b.server.Stop(context.Background())
		<-c.ended
		c.close()
		if n := len(b.reg.Snapshot(orderKey).Instances); n != 1 {
			t.Errorf("%d instances, want 1", n)
		}
		if n := b.server.Moving(); n != 0 {
			t.Errorf("%d clients are moving", n)
		}
	})
}

// What the socket says (cluster E1: connections are not wrapped).
func TestPeerClosed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, how := range []string{"closed", "reset", "closed with unread data", "by us"} {
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if closed, _ := peerClosed(server); closed {
			t.Errorf("%s: an open connection counts as closed", how)
		}
		switch how {
		case "reset":
			client.(*net.TCPConn).SetLinger(0)
		case "closed with unread data":
			client.Write([]byte("a request"))
		case "by us":
			server.Close()
		}
		client.Close()
		for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
			if closed, _ := peerClosed(server); closed {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: is not seen", how)
			}
		}
		time.Sleep(20 * time.Millisecond)
		if _, ago := peerClosed(server); how == "closed" && (ago < 10*time.Millisecond || ago > time.Minute) {
			t.Errorf("%s: %v ago", how, ago)
		} else if how == "reset" && ago != 0 { // within five seconds it is not known
			t.Errorf("%s: %v ago", how, ago)
		}
		server.Close()
	}
}

func TestDrain(t *testing.T) {
	sw := &switchboard{}
	run(t, func(b *bench) {
		var clients []*client
		for n := range 30 {
			c := b.connect()
			c.register("order", fmt.Sprintf("1.1.1.%d", n))
			clients = append(clients, c)
		}
		want := Plan{Clients: 30, Instances: 30, Targets: []Share{{Target{"10.0.0.2", 8848}, 15}, {Target{"10.0.0.3", 8848}, 15}}, Duration: 5 * time.Second}
		if diff := cmp.Diff(want, b.server.Plan(10, 0)); diff != "" {
			t.Errorf("plan (-want +got):\n%s", diff)
		}
		clients[0].deregister("order", "1.1.1.0")
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		began := time.Now()
		drained := make(chan error)
		go func() { drained <- b.server.Drain(ctx, 10) }()
		time.Sleep(time.Second)
		if p := b.server.Progress(); !p.Draining || p.Asked < 10 || p.Asked > 12 || p.Left != 30 || p.Moved != 0 {
			t.Errorf("progress after a second: %+v", p)
		}
		// Nobody new, and who is here is served: only its own word removes.
		if _, err := b.net.Dial(ctx, ""); err == nil {
			t.Error("a connection is accepted while the node drains")
		}
		clients[29].deregister("order", "1.1.1.29")
		if err := <-drained; err != nil {
			t.Errorf("drain: %v", err)
		}
		if took := time.Since(began); took < 4*time.Second || took > 6*time.Second { // 30 at 10/s, then 2 s
			t.Errorf("drained after %v", took)
		}
		if p := b.server.Progress(); p.Asked != 30 || p.Left != 0 || p.Moved != 30 {
			t.Errorf("progress: %+v", p)
		}
		targets := map[string]int{}
		for _, c := range clients {
			var r struct{ ServerIP string }
			if p := <-c.pushes; p.Type != "ConnectResetRequest" || json.Unmarshal(p.Body, &r) != nil {
				t.Errorf("%s %s", p.Type, p.Body)
			}
			targets[r.ServerIP]++
			c.close()
		}
		if diff := cmp.Diff(map[string]int{"10.0.0.2": 15, "10.0.0.3": 15}, targets); diff != "" {
			t.Errorf("targets (-want +got):\n%s", diff)
		}
		time.Sleep(time.Minute)
		if n := len(b.reg.Snapshot(orderKey).Instances); n != 28 {
			t.Errorf("%d instances, want those that were not deregistered", n)
		}
	}, sw.edit, func(o *Options) {
		o.Redirect = func() ([]Target, bool) {
			return []Target{{"10.0.0.2", 8848}, {"10.0.0.3", 8848}}, true
		}
	})
}

func TestNobodyIsMovedWithoutATarget(t *testing.T) {
	sw := &switchboard{}
	var ready atomic.Bool
	run(t, func(b *bench) {
		c := b.connect()
		c.register("order", "1.1.1.1")
		if p := b.server.Plan(0, time.Minute); p.Clients != 1 || p.Targets != nil {
			t.Errorf("plan %+v", p)
		}
		if err := b.server.Drain(b.t.Context(), 0); err != ErrNoTarget {
			t.Errorf("drain: %v", err)
		}
		if p := b.server.Progress(); p.Asked != 0 || p.Left != 1 {
			t.Errorf("progress %+v", p)
		}
		// One that is ready a moment later will do.
		go func() { time.Sleep(time.Second); ready.Store(true) }()
		if err := b.server.Drain(b.t.Context(), 0); err != nil {
			t.Errorf("drain: %v", err)
		}
		c.close()
	}, sw.edit, func(o *Options) {
		o.Redirect = func() ([]Target, bool) {
			if ready.Load() {
				return []Target{{"10.0.0.2", 8848}}, true
			}
			return nil, true
		}
	})
}

func TestPace(t *testing.T) {
	const second = time.Second
	for _, c := range []struct {
		clients     int
		left, grace time.Duration
		want        int
	}{
		{30, 20 * second, 2 * second, 50},
		{9000, 20 * second, 2 * second, 1000},
		{50, 2 * second, 2 * second, 500}, // no time: all at once
		{0, -second, 2 * second, 50},
	} {
		if got := autoPace(c.clients, c.left, c.grace); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}
