package health

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/starling-registry/starling/pkg/registry"
)

func TestRestamp(t *testing.T) {
	const (
		old   registry.Stamp = 10
		mine  registry.Stamp = 20
		newer registry.Stamp = 30
	)
	for _, c := range []struct {
		name  string
		v     view
		again bool
		since registry.Stamp
	}{
		{"the usual beat", view{owner: true, lease: true, mine: mine, shown: true, own: true, living: true, since: mine}, false, 0},
		{"an older copy elsewhere", view{owner: true, lease: true, mine: mine, copied: true, copy: old, shown: true, own: true, living: true, since: mine}, false, 0},
		{"a copy as old as ours", view{owner: true, lease: true, mine: mine, copied: true, copy: mine, shown: true, own: true, living: true, since: mine}, true, mine + 1},
		{"the same, not the owner", view{lease: true, mine: mine, copied: true, copy: mine, shown: true, own: true, living: true, since: mine}, false, 0},
		{"a newer copy, we are the owner again", view{owner: true, lease: true, mine: mine, copied: true, copy: newer, shown: true, living: true, since: newer}, true, newer + 1},
		{"a newer copy at the new owner", view{lease: true, mine: mine, copied: true, copy: newer, shown: true, living: true, since: newer}, false, 0},
		{"a newer copy of an orphan", view{lease: true, mine: mine, copied: true, copy: newer, shown: true, since: newer}, true, newer + 1},
		{"no lease, the old owner's copy", view{owner: true, copied: true, copy: old, shown: true, living: true, since: old}, true, old + 1},
		{"the same, not the owner: somebody has sent it here", view{copied: true, copy: old, shown: true, living: true, since: old}, true, old + 1},
		{"ours is hidden", view{owner: true, lease: true, mine: mine}, true, 0},
		{"the copy is hidden", view{owner: true, copied: true, copy: old}, true, 0},
		{"an SDK has registered later", view{owner: true, lease: true, mine: mine, shown: true, theirs: true, living: true, since: newer}, false, 0},
		{"the same, and a newer copy", view{owner: true, lease: true, mine: mine, copied: true, copy: newer - 1, shown: true, theirs: true, living: true, since: newer}, true, newer},
		{"the same, no lease", view{owner: true, copied: true, copy: old, shown: true, theirs: true, living: true, since: newer}, true, old + 1},
	} {
		again, since := c.v.restamp()
		if again != c.again || again && since != c.since {
			t.Errorf("%s: %v %d, want %v %d", c.name, again, since, c.again, c.since)
		}
	}
}

// A node is the part of one that HTTP clients see.
type node struct {
	*Beats
	life     registry.Life
	clock    *registry.Clock
	registry *registry.Registry
	metrics  *prometheus.Registry
	mu       sync.Mutex
	dirty    map[registry.RecordKey]bool
}

// A pair is two nodes whose records are carried by hand.
type pair struct {
	t     *testing.T
	mu    sync.Mutex
	owner string
	a, b  *node
}

func newPair(t *testing.T) *pair {
	p := &pair{t: t, owner: "a"}
	p.a, p.b = p.node("a"), p.node("b")
	return p
}

func (p *pair) node(name string) *node {
	n := &node{life: registry.Life{Node: name, Epoch: 1}, clock: registry.NewClock(0, 0), metrics: prometheus.NewRegistry(), dirty: map[registry.RecordKey]bool{}}
	ro := registry.DefaultOptions()
	ro.Life, ro.Clock = n.life, n.clock
	ro.Wrote = func(k registry.RecordKey) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.dirty[k] = true
	}
	n.registry = registry.New(ro)
	o := DefaultOptions()
	o.Registry, o.Life, o.Logger, o.Metrics = n.registry, n.life, zaptest.NewLogger(p.t), n.metrics
	o.Owner = func(string) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.owner == name
	}
	n.Beats = NewBeats(o)
	return n
}

func (p *pair) own(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.owner = name
}

func (p *pair) ownerNode() *node {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.owner == "a" {
		return p.a
	}
	return p.b
}

// carry brings what one node has written to another.
func (n *node) carry(to *node) {
	n.mu.Lock()
	keys := n.dirty
	n.dirty = map[registry.RecordKey]bool{}
	n.mu.Unlock()
	var records []registry.Record
	for k := range keys {
		r := n.registry.Take(k)
		to.clock.Adopt(r.Clock)
		records = append(records, r)
	}
	to.registry.Apply(n.life, records)
}

func (p *pair) carry() {
	p.a.carry(p.b)
	p.b.carry(p.a)
}

// run runs both loops.
func (p *pair) run(test func()) {
	p.a.Start()
	p.b.Start()
	defer p.a.Stop()
	defer p.b.Stop()
	test()
}

func (n *node) shows(k registry.ServiceKey) string {
	var out []string
	for _, i := range n.registry.Snapshot(k).Instances {
		s := fmt.Sprintf("%d at %s", i.Port, i.Life.Node)
		if !i.Healthy {
			s += "!"
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

func (p *pair) want(k registry.ServiceKey, a, b string) {
	p.t.Helper()
	if is := p.a.shows(k); is != a {
		p.t.Errorf("after %v: a shows %q, want %q", time.Since(begin), is, a)
	}
	if is := p.b.shows(k); is != b {
		p.t.Errorf("after %v: b shows %q, want %q", time.Since(begin), is, b)
	}
}

// events are what subscribers of a node have seen.
func (n *node) events(k registry.ServiceKey) string {
	var out []string
	for _, e := range n.registry.History(k) {
		if e.Before == nil || e.After == nil {
			out = append(out, string(e.Cause))
		}
	}
	return strings.Join(out, ", ")
}

func (n *node) leases() (total int) {
	n.Beats.mu.RLock()
	clients := slices.Collect(maps.Values(n.clients))
	n.Beats.mu.RUnlock()
	for _, c := range clients {
		c.mu.Lock()
		total += len(c.leases)
		c.mu.Unlock()
	}
	return total
}

func pairTest(t *testing.T, test func(p *pair, k registry.ServiceKey)) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.run(func() {
			k := service("s")
			if err := p.a.Register(k, instance(80)); err != nil {
				t.Fatal(err)
			}
			p.carry()
			p.want(k, "80 at a", "80 at a")
			test(p, k)
		})
	})
}

// The owner of an HTTP client changes: the new one publishes, then the old one
// removes, and nobody sees anything.
func TestHandover(t *testing.T) {
	pairTest(t, func(p *pair, k registry.ServiceKey) {
		first := p.a.registry.Snapshot(k).Instances[0].Since
		time.Sleep(12 * time.Second) // ready to be called unhealthy
		p.own("b")
		if i, known := p.b.Beat(k, "10.0.0.1", 80); !known || i.Port != 80 {
			p.t.Fatalf("beat at b: %v, %v", i, known)
		}
		p.want(k, "80 at a", "80 at b")
		if since := p.b.registry.Snapshot(k).Instances[0].Since; since != first+1 {
			p.t.Errorf("adopted with %d, one step above %d", since, first)
		}
		p.carry()
		p.want(k, "80 at b", "80 at b")
		for range 2 { // the copy is seen at 15 s, and stays beyond 20 s
			time.Sleep(5 * time.Second)
			p.b.Beat(k, "10.0.0.1", 80)
			p.carry()
			p.want(k, "80 at b", "80 at b")
			if n := p.a.leases(); n != 1 {
				p.t.Errorf("after %v a has no copy any more", time.Since(begin))
			}
		}
		time.Sleep(5 * time.Second)
		p.b.Beat(k, "10.0.0.1", 80)
		p.carry()
		p.want(k, "80 at b", "80 at b")
		time.Sleep(5 * time.Second)
		p.b.Beat(k, "10.0.0.1", 80)
		p.carry()
		if a, b := p.a.leases(), p.b.leases(); a != 0 || b != 1 {
			p.t.Errorf("%d and %d leases", a, b)
		}
		p.want(k, "80 at b", "80 at b")
		for _, n := range []*node{p.a, p.b} {
			if e := n.events(k); e != "registered" {
				p.t.Errorf("seen at %s: %s", n.life, e)
			}
		}
	})
}

// The old owner is the owner again before its grace is over (F18).
func TestHandoverAndBack(t *testing.T) {
	pairTest(t, func(p *pair, k registry.ServiceKey) {
		p.own("b")
		p.b.Beat(k, "10.0.0.1", 80)
		p.carry()
		at(8 * time.Second)
		p.own("a")
		at(16 * time.Second) // the grace would be over, and no beat has come
		if n := p.a.leases(); n != 1 {
			p.t.Errorf("a has %d leases", n)
		}
		p.a.Beat(k, "10.0.0.1", 80)
		p.want(k, "80 at a", "80 at b")
		p.carry()
		p.want(k, "80 at a", "80 at a")
		for range 6 {
			time.Sleep(5 * time.Second)
			p.a.Beat(k, "10.0.0.1", 80)
			p.carry()
			p.want(k, "80 at a", "80 at a")
		}
		if a, b := p.a.leases(), p.b.leases(); a != 1 || b != 0 {
			p.t.Errorf("%d and %d leases", a, b)
		}
	})
}

// However the owner changes and however late records are, a copy always
// stands while the client beats, and in the end there is one.
func TestHandoverFlaps(t *testing.T) {
	for seed := range uint64(40) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		pairTest(t, func(p *pair, k registry.ServiceKey) {
			late := [2]int{}
			for second := range 600 {
				time.Sleep(time.Second)
				if rnd.IntN(20) == 0 {
					p.own([]string{"a", "b"}[rnd.IntN(2)])
				}
				if second%5 == 0 {
					if _, known := p.ownerNode().Beat(k, "10.0.0.1", 80); !known {
						p.t.Fatalf("seed %d, after %v: a beat is unknown", seed, time.Since(begin))
					}
				}
				// Records are late by up to 3 s.
				for i, from := range []*node{p.a, p.b} {
					if late[i]++; late[i] > 3 || rnd.IntN(3) == 0 {
						from.carry([]*node{p.b, p.a}[i])
						late[i] = 0
					}
				}
				for _, n := range []*node{p.a, p.b} {
					if s := n.shows(k); s != "80 at a" && s != "80 at b" {
						p.t.Fatalf("seed %d, after %v: %v shows %q", seed, time.Since(begin), n.life, s)
					}
				}
			}
			for range 12 {
				time.Sleep(5 * time.Second)
				p.ownerNode().Beat(k, "10.0.0.1", 80)
				p.carry()
			}
			if n := p.a.leases() + p.b.leases(); n != 1 {
				p.t.Errorf("seed %d: %d leases", seed, n)
			}
			for _, n := range []*node{p.a, p.b} {
				if e := n.events(k); e != "registered" {
					p.t.Errorf("seed %d: seen at %s: %s", seed, n.life, e)
				}
			}
		})
		if t.Failed() {
			return
		}
	}
}

// Whoever takes over a client gives it its whole time.
func TestAdoptedLease(t *testing.T) {
	pairTest(t, func(p *pair, k registry.ServiceKey) {
		at(22 * time.Second)
		p.carry()
		p.want(k, "80 at a!", "80 at a!")
		p.own("b")
		p.b.registry.SetLife(p.a.life, registry.Orphaned, 0)
		p.b.Beat(k, "10.0.0.1", 80) // healthy, at once
		p.a.Stop()
		if is := p.b.shows(k); is != "80 at b" {
			p.t.Errorf("b shows %q", is)
		}
		at(36 * time.Second)
		if is := p.b.shows(k); is != "80 at b" {
			p.t.Errorf("after 36 s b shows %q", is)
		}
		at(41 * time.Second)
		if is := p.b.shows(k); is != "80 at b!" {
			p.t.Errorf("after 41 s b shows %q", is)
		}
		at(56 * time.Second)
		if n := p.b.leases(); n != 0 {
			p.t.Errorf("after 56 s there are %d leases", n)
		}
	})
}

// A client is deregistered where there is no lease: it goes everywhere, at
// once, and a beat that was under way does not bring it back.
func TestDeregisterAtTheNewOwner(t *testing.T) {
	pairTest(t, func(p *pair, k registry.ServiceKey) {
		p.own("b")
		if !p.b.Deregister(k, instance(80).InstanceKey) {
			p.t.Error("nothing is found")
		}
		p.want(k, "80 at a", "")
		p.carry()
		p.want(k, "", "")
		if _, known := p.b.Beat(k, "10.0.0.1", 80); known {
			p.t.Error("a late beat is known")
		}
		if n := p.b.Clients(); n != 0 {
			p.t.Errorf("%d clients at b", n)
		}
		time.Sleep(time.Minute) // a's lease ends
		p.carry()
		p.want(k, "", "")
		if err := p.b.Register(k, instance(80)); err != nil {
			p.t.Fatal(err)
		}
		p.carry()
		p.want(k, "80 at b", "80 at b")
	})
}

// The same before the registration has arrived there.
func TestDeregisterOvertakesTheRegistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		k := service("s")
		if err := p.a.Register(k, instance(80)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		p.own("b")
		p.b.Deregister(k, instance(80).InstanceKey)
		p.carry()
		p.want(k, "", "")
	})
}

// Who beats less often than a lease lasts must be known as slow, by every node,
// or it is gone before another node gets its next beat (cases C11): with what
// it is told to beat seldom for, and not with the rest.
func TestSeldomBeatsAreSlow(t *testing.T) {
	pairTest(t, func(p *pair, k registry.ServiceKey) {
		usual := int64(5000)
		p.a.opts.Usual = func() int64 { return usual }
		other := service("other")
		register := func(k registry.ServiceKey, i *registry.Instance) {
			t.Helper()
			if err := p.a.Register(k, i); err != nil {
				t.Fatal(err)
			}
		}
		redo := func(k registry.ServiceKey, want int) {
			t.Helper()
			if is := p.a.registry.Take(registry.RecordKey{Service: k, Client: "10.0.0.1:80#true"}).Redo; is != want {
				t.Errorf("it needs %d s in %v, want %d", is, k, want)
			}
		}
		beat := func(k registry.ServiceKey) {
			t.Helper()
			if _, known := p.a.Beat(k, "10.0.0.1", 80); !known {
				t.Error("the beat finds nothing")
			}
		}
		seldom := instance(80, "preserved.heart.beat.interval", "20000", "preserved.heart.beat.timeout", "50000", "preserved.ip.delete.timeout", "90000")
		register(k, instance(80))
		redo(k, 0)
		register(other, seldom)
		redo(other, 25)
		redo(k, 0) // it beats for each by itself
		register(other, instance(80))
		redo(other, 0)
		register(other, instance(80, "preserved.heart.beat.timeout", "40000", "preserved.ip.delete.timeout", "50000"))
		redo(other, 45)
		register(other, instance(80, "preserved.heart.beat.timeout", "15000"))
		redo(other, 0)
		register(other, seldom)
		p.carry()
		p.b.registry.SetLife(p.a.life, registry.Waning, 0)
		p.want(k, "80 at a", "")
		p.want(other, "80 at a", "80 at a")
		p.b.registry.SetLife(p.a.life, registry.Living, p.a.clock.Now())

		// It beats as its answers say, which operators may change.
		usual = 10_000
		beat(k)
		redo(k, 15)
		edit := func(every string) {
			p.a.registry.Commit([]registry.Change{{Service: k, Overrides: []registry.OverrideChange{{
				InstanceKey: instance(80).InstanceKey, Is: &registry.Override{Metadata: registry.NewMetadata(map[string]string{"preserved.heart.beat.interval": every})}}}}})
		}
		edit("30000")
		beat(k)
		redo(k, 35)
		edit("1000")
		beat(k)
		redo(k, 0)
		edit("12000")
		register(k, instance(80))
		redo(k, 17)
		p.carry()
		p.own("b")
		p.b.registry.SetLife(p.a.life, registry.Waning, 0)
		p.want(k, "80 at a", "80 at a")
		if _, known := p.b.Beat(other, "10.0.0.1", 80); !known {
			t.Error("its next beat finds nothing at the other node")
		}
		p.b.registry.SetLife(p.a.life, registry.Dropped, 0)
		p.want(other, "80 at a", "80 at b")
		p.want(k, "80 at a", "")
	})
}
