package push

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

var order = registry.ServiceKey{Namespace: "public", Group: "g", Name: "order"}

type bench struct {
	t      *testing.T
	reg    *registry.Registry
	engine *Engine
	client *registry.Client
	n      int
}

func run(t *testing.T, f func(*bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t}
		ropts := registry.DefaultOptions()
		ropts.Changed = func(k registry.ServiceKey) { b.engine.Mark(k) }
		b.reg = registry.New(ropts)
		opts := DefaultOptions()
		opts.Source, opts.Logger, opts.Metrics = b.reg, zap.NewNop(), prometheus.NewRegistry()
		b.engine = New(opts)
		b.engine.Start()
		defer b.engine.Stop()
		b.client = b.reg.Open("provider", registry.Connection)
		f(b)
	})
}

// change makes a visible change of the service.
func (b *bench) change() {
	b.n++
	b.client.Register(order, []*registry.Instance{{InstanceKey: registry.InstanceKey{IP: "1.1.1.1", Port: b.n, Cluster: "DEFAULT"}, Enabled: true}}, false)
}

// A conn sends as grpcapi does: one sender while there is something. A gate
// stands for the stream's flow control.
type conn struct {
	sub     *Subscriber
	cost    time.Duration // of sending one message
	gate    chan struct{} // nil: open
	mu      sync.Mutex
	sending bool
	got     []time.Time
	dropped registry.Cause
}

func (b *bench) attach(edit ...func(*conn)) *conn {
	c := &conn{}
	for _, e := range edit {
		e(c)
	}
	c.sub = b.engine.Attach("c", c)
	return c
}

func (c *conn) Drop(cause registry.Cause) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropped = cause
}

func (c *conn) Wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sending {
		return
	}
	c.sending = true
	go func() {
		for {
			c.mu.Lock()
			if !c.sub.Pending() {
				c.sending = false
				c.mu.Unlock()
				return
			}
			c.mu.Unlock()
			var p *nacos.Payload
			if p = c.sub.Next(); p == nil {
				continue
			}
			if c.gate != nil {
				<-c.gate
			}
			time.Sleep(c.cost)
			c.sub.Sent(true)
			c.mu.Lock()
			c.got = append(c.got, time.Now())
			c.mu.Unlock()
		}
	}()
}

func (c *conn) count() int {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.got)
}

func TestWindowGrowsWithTheFanout(t *testing.T) {
	f := func(cost, wantGap time.Duration) {
		t.Helper()
		run(t, func(b *bench) {
			var conns []*conn
			for range 4 {
				c := b.attach(func(c *conn) { c.cost = cost })
				c.sub.Subscribe(order, "")
				conns = append(conns, c)
			}
			time.Sleep(10 * time.Second)
			before := conns[0].count()
			for range 1000 {
				b.change()
				time.Sleep(10 * time.Millisecond)
			}
			got := conns[0].count() - before
			if want := int(10 * time.Second / wantGap); got < want-1 || got > want+2 {
				t.Errorf("sending takes %v: %d pushes in 10 s, want about %d", cost, got, want)
			}
			time.Sleep(10 * time.Second)
			for _, c := range conns {
				if subs := b.engine.Subscriptions(order); subs[0].Pushed != b.reg.Snapshot(order).Version {
					t.Errorf("%v pushed to %p, want the newest", subs[0].Pushed, c)
				}
				c.sub.Close()
			}
		})
	}
	f(0, 100*time.Millisecond)
	f(10*time.Millisecond, 100*time.Millisecond)
	f(100*time.Millisecond, 600*time.Millisecond) // 3 × 2 × the middle one
	f(time.Second, 2*time.Second)                 // not more than the longest window
}

func TestStuckSubscribers(t *testing.T) {
	run(t, func(b *bench) {
		fast := b.attach()
		fast.sub.Subscribe(order, "")
		var stuck []*conn
		for range 5 {
			c := b.attach(func(c *conn) { c.gate = make(chan struct{}) })
			c.sub.Subscribe(order, "")
			stuck = append(stuck, c)
		}
		time.Sleep(time.Second) // all five hang in their first push
		for n := range 20 {
			before := fast.count()
			b.change()
			if fast.count() != before+1 {
				t.Errorf("change %d was not pushed at once", n)
			}
			time.Sleep(100 * time.Millisecond)
		}
		// The stuck ones have one service to send, not twenty messages; when
		// they get going they send the newest.
		for _, c := range stuck {
			if n := len(c.sub.dirty); n != 1 {
				t.Errorf("%d services dirty, want 1", n)
			}
			close(c.gate)
			if n := c.count(); n != 2 {
				t.Errorf("%d pushes, want the one that hung and the newest", n)
			}
			c.sub.Close()
		}
		fast.sub.Close()
		time.Sleep(2 * time.Second) // a topic goes at the end of its window
		if n := len(b.engine.shards[0].topics) + len(b.engine.subscribers); n != 0 {
			t.Errorf("%d subscribers and topics left", n)
		}
	})
}

func TestAcks(t *testing.T) {
	run(t, func(b *bench) {
		c := b.attach()
		defer c.sub.Close()
		c.sub.Subscribe(order, "")
		time.Sleep(time.Second)
		for range 100 {
			b.change()
			time.Sleep(100 * time.Millisecond)
		}
		synctest.Wait()
		last := b.engine.NextID() - 1
		if c.sub.Acked(last+1, true) || c.sub.Acked(1<<40, true) {
			t.Error("an id that was never given out was taken")
		}
		if n := len(c.sub.pending); n > maxOutstanding {
			t.Errorf("%d pushes are remembered", n)
		}
		if !c.sub.Acked(last, true) {
			t.Error("the ack of the last push was not taken")
		}
		if c.sub.Acked(last, true) || len(c.sub.pending) != 0 {
			t.Error("it was taken twice")
		}
		if s := b.engine.Subscriptions(order)[0]; s.Acked != s.Pushed || s.Acked == 0 {
			t.Errorf("%+v", s)
		}
		time.Sleep(10 * time.Minute)
		if c.dropped != "" {
			t.Errorf("dropped: %s", c.dropped)
		}
		b.change()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if n := testutil.ToFloat64(b.engine.metrics.late); n != 1 {
			t.Errorf("%v late subscribers, want 1", n)
		}
		time.Sleep(40 * time.Second)
		synctest.Wait()
		if c.dropped != registry.CauseNoAck {
			t.Error("a client that does not acknowledge was not dropped")
		}
	})
}

// TestNewestAlwaysArrives is the invariant of the package under random
// subscribing, closing and changing.
func TestNewestAlwaysArrives(t *testing.T) {
	for seed := range uint64(100) {
		run(t, func(b *bench) {
			rng := rand.New(rand.NewPCG(seed, 3))
			var conns []*conn
			for range 300 {
				switch rng.IntN(6) {
				case 0:
					c := b.attach(func(c *conn) { c.cost = time.Duration(rng.IntN(50)) * time.Millisecond })
					c.sub.Subscribe(order, "")
					conns = append(conns, c)
				case 1:
					if len(conns) > 0 {
						n := rng.IntN(len(conns))
						switch rng.IntN(3) {
						case 0:
							conns[n].sub.Unsubscribe(order)
							conns[n].sub.Subscribe(order, "")
						case 1:
							conns[n].sub.Acked(b.engine.ids.Load(), rng.IntN(2) == 0)
						default:
							conns[n].sub.Close()
							conns = append(conns[:n], conns[n+1:]...)
						}
					}
				default:
					b.change()
				}
				time.Sleep(time.Duration(rng.IntN(60)) * time.Millisecond)
			}
			time.Sleep(10 * time.Second)
			synctest.Wait()
			subs := b.engine.Subscriptions(order)
			if len(subs) != len(conns) {
				t.Fatalf("seed %d: %d subscriptions of %d connections", seed, len(subs), len(conns))
			}
			for _, s := range subs {
				if s.Pushed != b.reg.Snapshot(order).Version {
					t.Fatalf("seed %d: %v pushed, the newest is %v", seed, s.Pushed, b.reg.Snapshot(order).Version)
				}
			}
			for _, c := range conns {
				c.sub.Close()
			}
			time.Sleep(2 * time.Second)
			for i := range b.engine.shards {
				if n := len(b.engine.shards[i].topics); n != 0 {
					t.Fatalf("seed %d: %d topics left", seed, n)
				}
			}
		})
	}
}

func BenchmarkFanout(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprint("subscribers=", n), func(b *testing.B) {
			reg := registry.New(registry.DefaultOptions())
			opts := DefaultOptions()
			opts.Source, opts.Logger, opts.Metrics = reg, zap.NewNop(), prometheus.NewRegistry()
			e := New(opts)
			var subs []*subscription
			for range n {
				s := e.Attach("c", sink{})
				s.Subscribe(order, "")
				subs = append(subs, s.subs[order])
			}
			c := reg.Open("p", registry.Connection)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				c.Register(order, []*registry.Instance{{InstanceKey: registry.InstanceKey{IP: "1", Port: i}, Enabled: true}}, false)
				e.flush(order, subs, newFanout(n), time.Now())
				for _, s := range subs {
					for p := s.subscriber.Next(); p != nil; p = s.subscriber.Next() {
						s.subscriber.Sent(true)
					}
					s.subscriber.Acked(e.ids.Load(), true)
				}
			}
		})
	}
}

type sink struct{}

func (sink) Wake()               {}
func (sink) Drop(registry.Cause) {}

func at(cluster string, port int) []*registry.Instance {
	return []*registry.Instance{{InstanceKey: registry.InstanceKey{IP: "1.1.1.1", Port: port, Cluster: cluster}, Enabled: true}}
}

// answer gives the client of a connection the service in an answer, as grpcapi
// does, and returns how many hosts it shows.
func (b *bench) answer(c *conn, key registry.ServiceKey) int {
	snap, _ := b.reg.Serve(key)
	f := registry.Filter{}
	c.sub.Answered(key, snap, snap.Encode(f, nacos.EncodeHosts))
	hosts, _ := snap.Select(f)
	return len(hosts)
}

// Subscribed to c-a: an empty list was pushed. Subscribed again to all: the
// answer shows the instance of c-b. When that goes, the empty list must be
// pushed, though an empty list was the last one pushed.
func TestChangedFilterForgetsWhatWasPushed(t *testing.T) {
	run(t, func(b *bench) {
		b.client.Register(order, at("c-b", 1), false)
		c := b.attach()
		defer c.sub.Close()
		c.sub.Subscribe(order, "c-a")
		time.Sleep(time.Second)
		before := c.count() // the first push, empty
		c.sub.Subscribe(order, "")
		if hosts := b.answer(c, order); hosts != 1 {
			t.Fatalf("the answer shows %d instances", hosts)
		}
		b.client.Deregister(order, registry.InstanceKey{})
		time.Sleep(time.Minute)
		if got := c.count() - before; got < 1 || got > 2 { // the second in case the answer came after the first
			t.Errorf("%d pushes after the only instance went: the client keeps the dead one for ever", got)
		}
	})
}

// The same without another filter: what an answer told the client in between
// is not known, so a change back within the window is taken for no change.
func TestAnswerBetweenTwoPushes(t *testing.T) {
	run(t, func(b *bench) {
		c := b.attach()
		defer c.sub.Close()
		c.sub.Subscribe(order, "")
		time.Sleep(time.Second)
		b.client.Register(order, at("c", 1), false) // pushed at once
		time.Sleep(10 * time.Millisecond)
		before := c.count()
		b.client.Register(order, at("c", 2), false) // waits for the window
		c.sub.Subscribe(order, "")                  // the answer shows port 2
		b.answer(c, order)
		b.client.Register(order, at("c", 1), false) // and back
		time.Sleep(time.Minute)
		if got := c.count() - before; got < 1 || got > 2 {
			t.Errorf("%d pushes: the client holds port 2 of the answer for ever", got)
		}
	})
}

// Who is not concerned by a change is not behind.
func TestBehindIsAQueryNotAGuess(t *testing.T) {
	run(t, func(b *bench) {
		c := b.attach()
		defer c.sub.Close()
		c.sub.Subscribe(order, "c-a")
		b.client.Register(order, at("c-a", 1), false)
		time.Sleep(time.Second)
		synctest.Wait()
		c.sub.Acked(b.engine.ids.Load(), true)
		other := b.reg.Open("other", registry.Connection)
		other.Register(order, at("c-b", 2), false)
		time.Sleep(time.Minute)
		if s := b.engine.Subscriptions(order)[0]; s.Acked < b.reg.Snapshot(order).Version {
			t.Errorf("acked %v of %v: reported behind, but there is nothing to send it", s.Acked, b.reg.Snapshot(order).Version)
		}
	})
}

// A refused push is sent again, once: also the next refused one.
func TestEveryRefusedPushIsSentAgainOnce(t *testing.T) {
	run(t, func(b *bench) {
		c := b.attach()
		defer c.sub.Close()
		c.sub.Subscribe(order, "")
		time.Sleep(time.Second)
		refuse := func() { synctest.Wait(); c.sub.Acked(b.engine.ids.Load(), false) }
		refuse()
		time.Sleep(2 * time.Second)
		refuse() // twice: given up
		time.Sleep(time.Minute)
		b.change()
		before := c.count()
		refuse() // another push; refused once
		time.Sleep(2 * time.Second)
		if got := c.count() - before; got != 1 {
			t.Errorf("sent again %d times, want 1", got)
		}
	})
}

// An ack of a newer push makes a retry of an older one pointless.
func TestNoRetryAfterANewerPushWasTaken(t *testing.T) {
	run(t, func(b *bench) {
		c := b.attach()
		defer c.sub.Close()
		c.sub.Subscribe(order, "")
		time.Sleep(time.Second)
		synctest.Wait()
		c.sub.Acked(b.engine.ids.Load(), false)
		b.change()
		synctest.Wait()
		c.sub.Acked(b.engine.ids.Load(), true)
		before := c.count()
		time.Sleep(time.Minute)
		if got := c.count() - before; got != 0 {
			t.Errorf("%d more pushes of what the client has acknowledged", got)
		}
	})
}

// What was subscribed and ended again must not stay in the dirty set.
func TestDirtySetIsBounded(t *testing.T) {
	run(t, func(b *bench) {
		c := b.attach(func(c *conn) { c.gate = make(chan struct{}) })
		defer func() { c.sub.Close(); close(c.gate) }()
		for range 1000 {
			c.sub.Subscribe(order, "")
			time.Sleep(110 * time.Millisecond)
			c.sub.Unsubscribe(order)
		}
		c.sub.mu.Lock()
		defer c.sub.mu.Unlock()
		if n := len(c.sub.dirty); n > 1 {
			t.Errorf("%d services dirty of a connection without a subscription", n)
		}
	})
}

// stalling stands for a process that is stopped (SIGSTOP) while the ack loop
// looks at the connections: the clock goes on, no ack is read.
type stalling struct{ *conn }

func (s stalling) Drop(c registry.Cause) { time.Sleep(70 * time.Second); s.conn.Drop(c) }

func TestStallInTheMiddleOfTheAckLoop(t *testing.T) {
	run(t, func(b *bench) {
		silent := stalling{&conn{}}
		silent.sub = b.engine.Attach("silent", silent)
		defer silent.sub.Close()
		silent.sub.Subscribe(order, "")
		time.Sleep(59 * time.Second)
		var good []*conn
		for range 50 {
			c := b.attach()
			defer c.sub.Close()
			c.sub.Subscribe(order, "")
			good = append(good, c)
		}
		time.Sleep(76*time.Second + 100*time.Millisecond)
		synctest.Wait()
		n := 0
		for _, c := range good {
			c.mu.Lock()
			if c.dropped != "" {
				n++
			}
			c.mu.Unlock()
		}
		if n != 0 {
			t.Errorf("%d of %d clients dropped: their acks, 6 s late, lie unread", n, len(good))
		}
	})
}

// A client can make up any number of services that it knows.
func TestComparisonIsBounded(t *testing.T) {
	known := []string{strings.Repeat("x", maxKey+1)}
	for n := range maxGone + 100 {
		known = append(known, fmt.Sprint(n))
	}
	syncs, over := compare("p", nacos.Pattern{Namespace: "public", Group: "*", Service: "*"}, nil, known, false, 500)
	n := 0
	for _, s := range syncs {
		n += len(s.Changes)
	}
	if n != maxGone || over {
		t.Errorf("%d services are taken back, over the limit: %v", n, over)
	}
}
