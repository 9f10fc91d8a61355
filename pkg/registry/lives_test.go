package registry

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

	"github.com/google/go-cmp/cmp"
)

// A mesh is several registries that are connected by hand: what would be
// replicated is taken, kept and applied here.
type mesh struct {
	t     *testing.T
	nodes map[string]*peer
}

// A peer is one registry and what it knows of the others.
type peer struct {
	*world
	life    Life
	dirty   map[RecordKey]bool
	records []logged // of the own life, as written
	applied map[Life]int
}

// A logged is a record, with all hides of its key up to then, or a probe, or a
// check.
type logged struct {
	Record
	probe *Probe
	check *Check
}

func newMesh(t *testing.T, names ...string) *mesh {
	c := &mesh{t: t, nodes: map[string]*peer{}}
	for _, n := range names {
		p := &peer{life: Life{n, 1}, dirty: map[RecordKey]bool{}, applied: map[Life]int{}}
		p.world = newWorld(t, func(o *Options) {
			o.Life, o.Clock = p.life, NewClock(0, 0)
			o.Wrote = func(k RecordKey) { p.dirty[k] = true }
		})
		c.nodes[n] = p
	}
	return c
}

// take is what the replicator does: of every key that was written it makes the
// next version of its record, which keeps the hides of the one before.
func (p *peer) take() {
	keys := slices.Collect(maps.Keys(p.dirty))
	slices.SortFunc(keys, func(a, b RecordKey) int { return strings.Compare(a.Client, b.Client) })
	clear(p.dirty)
	for _, k := range keys {
		rec := p.Take(k)
		if rec.Clock == 0 {
			continue
		}
		for _, old := range slices.Backward(p.records) {
			if old.RecordKey == k && old.probe == nil {
				rec.Hides = append(rec.Hides, old.Hides...)
				break
			}
		}
		p.records = append(p.records, logged{Record: rec})
	}
}

// give applies what from has written, up to a version, newest of each key, in
// batches of at most n in any order.
func (p *peer) give(from *peer, to int, n int, rng *rand.Rand) {
	newest := map[RecordKey]logged{}
	probes := []Probe{}
	checks := []Check{}
	for _, l := range from.records[p.applied[from.life]:to] {
		if l.probe != nil {
			probes = append(probes, *l.probe)
		} else if l.check != nil {
			checks = append(checks, *l.check)
		} else {
			newest[l.RecordKey] = l
		}
	}
	p.applied[from.life] = max(to, p.applied[from.life])
	var batch []Record
	for _, l := range newest {
		batch = append(batch, l.Record)
	}
	rng.Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
	for part := range slices.Chunk(batch, n) {
		p.Apply(from.life, part)
	}
	for _, pr := range probes {
		p.Unanswered(pr)
	}
	rng.Shuffle(len(checks), func(i, j int) { checks[i], checks[j] = checks[j], checks[i] })
	for _, c := range checks {
		p.Checked(c)
	}
}

// exchange brings everything to the nodes given.
func (c *mesh) exchange(to ...string) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, f := range c.nodes {
		f.take()
	}
	for _, n := range to {
		for _, f := range c.nodes {
			if p := c.nodes[n]; p != f {
				p.give(f, len(f.records), 3, rng)
			}
		}
	}
	c.sleep()
}

// sleep lets all clocks go on, so that what comes next is newer.
func (c *mesh) sleep() { time.Sleep(5 * time.Millisecond) }

// ends says on all other nodes what became of a node.
func (c *mesh) ends(node string, state LifeState) {
	for n, p := range c.nodes {
		if n != node {
			p.SetLife(Life{node, 1}, state, 0)
		}
	}
}

func (c *mesh) show(nodes string, want ...string) {
	c.t.Helper()
	for n := range strings.SplitSeq(nodes, "") {
		if diff := cmp.Diff(want, lines(c.nodes[n].Snapshot(order))); diff != "" {
			c.t.Errorf("node %s (-want +got):\n%s", n, diff)
		}
	}
}

func inMesh(t *testing.T, f func(*mesh)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(newMesh(t, "A", "B", "C")) })
}

var keyX = InstanceKey{"x", 80, DefaultCluster}

func TestFailoverSchedules(t *testing.T) {
	t.Run("F01", func(t *testing.T) {
		inMesh(t, func(c *mesh) {
			a, b := c.nodes["A"], c.nodes["B"]
			onB := b.client("b")
			b.register(onB, inst("x"))
			c.exchange("A", "B", "C")
			onB.Move()
			c.exchange("A", "B", "C")
			c.show("ABC", "x")
			a.register(a.client("a"), inst("x"))
			c.exchange("B", "C")
			onB.Close(CauseConnectionLost)
			c.exchange("A", "B", "C")
			c.show("ABC", "x")
			c.ends("A", Orphaned)
			c.show("BC", "x")
			c.nodes["C"].register(c.nodes["C"].client("c"), inst("x"))
			c.exchange("B", "C")
			c.ends("A", Dropped)
			c.show("BC", "x")
		})
	})
	t.Run("F01, the removal is heard before the new registration", func(t *testing.T) {
		inMesh(t, func(c *mesh) {
			a, b := c.nodes["A"], c.nodes["B"]
			onB := b.client("b")
			b.register(onB, inst("x"))
			c.exchange("A", "B", "C")
			a.register(a.client("a"), inst("x"))
			c.sleep()
			onB.Close(CauseConnectionLost)
			c.nodes["B"].take()
			c.nodes["C"].give(b, len(b.records), 1, rand.New(rand.NewPCG(1, 1)))
			c.exchange("B", "C")
			c.ends("A", Orphaned)
			c.show("BC", "x")
		})
	})
	t.Run("F02", func(t *testing.T) {
		inMesh(t, func(c *mesh) {
			a, b := c.nodes["A"], c.nodes["B"]
			a.register(a.client("a"), inst("x"), inst("y"))
			c.exchange("B", "C")
			c.ends("A", Orphaned)
			onB := b.client("b")
			b.register(onB, inst("x"), inst("y"))
			c.exchange("C")
			c.show("BC", "x", "y")
			b.register(onB, inst("x"))
			c.exchange("C")
			c.show("BC", "x")
		})
	})
	t.Run("F03", func(t *testing.T) {
		inMesh(t, func(c *mesh) {
			a, b := c.nodes["A"], c.nodes["B"]
			a.register(a.client("a"), inst("x"))
			c.exchange("B", "C")
			c.ends("A", Orphaned)
			onB := b.client("b")
			b.register(onB, inst("x"))
			onB.Deregister(order, keyX)
			b.register(onB, inst("z")) // all in one record
			c.exchange("C")
			c.show("BC", "z")
			if n := len(b.records); n != 1 {
				t.Errorf("%d records", n)
			}
		})
	})
	t.Run("F04", func(t *testing.T) {
		inMesh(t, func(c *mesh) {
			a, b := c.nodes["A"], c.nodes["B"]
			a.register(a.client("a"), inst("x"))
			c.exchange("B", "C")
			c.ends("A", Orphaned)
			onB := b.client("b")
			b.register(onB, inst("x"))
			c.exchange("C")
			onB.Deregister(order, keyX)
			c.exchange("C")
			c.ends("B", Orphaned)
			c.show("C")
			c.ends("B", Dropped)
			c.nodes["C"].Sweep()
			c.nodes["C"].ForgetLife(Life{"B", 1})
			c.show("C")
		})
	})
	for _, state := range []LifeState{Orphaned, Dropped} {
		t.Run("F08, meanwhile "+state.String(), func(t *testing.T) {
			inMesh(t, func(c *mesh) {
				a, b := c.nodes["A"], c.nodes["B"]
				onA := a.client("a")
				a.register(onA, inst("x"))
				c.exchange("B", "C")
				c.ends("A", state) // A freezes
				onB := b.client("b")
				b.register(onB, inst("x"))
				c.exchange("C")
				onB.Close(CauseConnectionLost)
				c.exchange("C")
				c.show("BC")
				onA.Move() // A continues: first of all it handles the closed connection
				at := a.opts.Clock.Now()
				for _, n := range []string{"B", "C"} {
					c.exchange(n)
					c.show(n)
					c.nodes[n].SetLife(a.life, Living, at)
					c.show(n)
				}
				c.exchange("A")
				c.show("ABC")
			})
		})
	}
	t.Run("F08, dead in its node's absence", func(t *testing.T) {
		// Nobody registered it elsewhere, the drop alone has hidden it.
		inMesh(t, func(c *mesh) {
			a := c.nodes["A"]
			onA, stays := a.client("a"), a.client("stays")
			a.register(onA, inst("x"))
			a.register(stays, inst("y"))
			c.exchange("B", "C")
			c.ends("A", Dropped)
			c.show("BC")
			onA.Move()
			c.exchange("B", "C")
			c.show("BC")
			c.nodes["B"].SetLife(a.life, Living, a.opts.Clock.Now())
			c.show("B", "y")
			a.register(onA, inst("x")) // it was there after all
			c.exchange("B", "C")
			c.show("B", "x", "y")
		})
	})
	t.Run("F17", func(t *testing.T) {
		inMesh(t, func(c *mesh) {
			a, b := c.nodes["A"], c.nodes["B"]
			b.register(b.client("b"), inst("x"))
			c.exchange("A", "C")
			onA := a.client("a")
			a.register(onA, inst("x"))
			a.register(onA, inst("x", weight(2)))
			c.exchange("B", "C")
			c.show("ABC", "x w2")
			c.ends("A", Orphaned)
			c.show("BC", "x w2")
		})
	})
	t.Run("F22", func(t *testing.T) {
		inMesh(t, func(c *mesh) {
			a, b := c.nodes["A"], c.nodes["B"]
			a.register(a.client("a"), inst("x"), inst("y"))
			c.exchange("B", "C")
			c.ends("A", Orphaned)
			b.client("b").Deregister(order, InstanceKey{IP: "x", Port: 80})
			c.show("B", "y")
			c.exchange("C")
			c.show("C", "y")
			b.causes(CauseRegistered, CauseRegistered, CauseDeregistered)
		})
	})
	t.Run("F22, before its service was heard of", func(t *testing.T) {
		inMesh(t, func(c *mesh) {
			a, b := c.nodes["A"], c.nodes["B"]
			a.register(a.client("a"), inst("x"))
			a.take()
			c.sleep()
			b.SetLife(a.life, Orphaned, 0)
			b.client("b").Deregister(order, keyX)
			if n := b.Stats().Services; n != 0 {
				t.Errorf("%d services made by deregistering", n)
			}
			c.exchange("B")
			c.show("B")
		})
	})
}

func TestTwoLivingClientsOnTwoNodes(t *testing.T) {
	inMesh(t, func(c *mesh) {
		a, b := c.nodes["A"], c.nodes["B"]
		onA, onB := a.client("a"), b.client("b")
		a.register(onA, inst("x"))
		c.exchange("B", "C")
		b.register(onB, inst("x", weight(2)))
		c.exchange("A", "C")
		c.show("ABC", "x w2")
		onB.Close(CauseConnectionLost) // the end of one must not take away the other's
		c.exchange("A", "C")
		c.show("ABC", "x")
		b.client("c").Deregister(order, keyX) // nor somebody who has nothing to do with it
		c.exchange("A", "C")
		c.show("ABC", "x")
		onB = b.client("d")
		b.register(onB, inst("x", weight(2)))
		c.exchange("A", "C")
		onB.Deregister(order, keyX) // but a goodbye hides the older half-open connection
		c.exchange("A", "C")
		c.show("ABC")
		a.register(onA, inst("x")) // until that registers again
		c.exchange("B", "C")
		c.show("ABC", "x")
	})
}

func TestDeregisteringAnHTTPClientsInstanceHidesAllCopies(t *testing.T) {
	inMesh(t, func(c *mesh) {
		a, b := c.nodes["A"], c.nodes["B"]
		id := "x:80#true"
		a.register(a.Open(id, Beat), inst("x"))
		c.exchange("B", "C")
		b.Open(id, Beat).Deregister(order, keyX) // it never reached the owner
		c.exchange("A", "C")
		c.show("ABC")
	})
}

func TestHandover(t *testing.T) { // F18: publish, then remove; a copy always stands
	inMesh(t, func(c *mesh) {
		a, b := c.nodes["A"], c.nodes["B"]
		id := "x:80#true"
		onA, onB := a.Open(id, Beat), b.Open(id, Beat)
		if _, ok := b.Copy(order, id); ok {
			t.Error("a copy before anything")
		}
		a.register(onA, inst("x"))
		c.exchange("B", "C")
		cp, ok := b.Copy(order, id)
		if !ok || cp.Life != a.life || !cp.Living || cp.Since != a.Snapshot(order).Instances[0].Since || len(cp.Instances) != 1 {
			t.Fatalf("copy %+v, %v", cp, ok)
		}
		adopt := func(since Stamp) Stamp {
			t.Helper()
			b.changes = 0
			if err := onB.Adopt(order, inst("x"), since); err != nil {
				t.Fatal(err)
			}
			b.changed(0) // nobody sees it
			return b.Take(RecordKey{id, order}).Instances[0].Since
		}
		if got := adopt(cp.Since + 1); got != cp.Since+1 {
			t.Errorf("registered at %v, want %v", got, cp.Since+1)
		}
		if got := adopt(cp.Since); got != cp.Since+1 {
			t.Error("the clock went back")
		}
		c.exchange("A", "C")
		onA.Remove(order, CauseReplaced)
		c.exchange("B", "C")
		c.show("ABC", "x")
		c.ends("B", Orphaned)
		c.show("AC", "x")
		if cp, ok := a.Copy(order, id); !ok || cp.Living || cp.Life != b.life {
			t.Errorf("copy %+v, %v", cp, ok)
		}
		c.ends("B", Dropped)
		if _, ok := a.Copy(order, id); ok {
			t.Error("a copy in a dropped life")
		}
		c.sleep()
		if got := adopt(0); got <= cp.Since+1 {
			t.Error("adopting with no clock is not registering now")
		}
	})
}

func TestAdoptionIsRecordedAndNotPushed(t *testing.T) {
	inMesh(t, func(c *mesh) {
		a, b := c.nodes["A"], c.nodes["B"]
		a.register(a.client("a"), inst("x"))
		c.exchange("B", "C")
		b.changes = 0
		version := b.Snapshot(order).Version
		c.ends("A", Orphaned)
		if e := b.Snapshot(order).Instances[0]; e.State != Orphaned || e.Life != a.life || e.Client != "a" {
			t.Errorf("shown as %+v", e)
		}
		var orphans int
		b.Orphans(a.life, func(k ServiceKey, e *Shown) { orphans++ })
		b.register(b.client("b"), inst("x"))
		b.Orphans(a.life, func(k ServiceKey, e *Shown) { orphans += 10 })
		if orphans != 1 {
			t.Errorf("%d orphans", orphans)
		}
		b.changed(0)
		if b.Snapshot(order).Version != version {
			t.Error("a new version without anything to see")
		}
		b.causes(CauseRegistered, CauseAdopted)
		c.exchange("C")
		c.nodes["C"].causes(CauseRegistered, CauseAdopted)
		h, hb := c.nodes["C"].History(order), b.History(order)
		if h[0].Origin != a.life || h[1].Origin != b.life || h[1].Clock != hb[1].Clock || h[1].Client != "b" {
			t.Errorf("history %+v", h)
		}
	})
}

func TestMovingIsRecordedAndEndsWithTheNextRegistration(t *testing.T) {
	inMesh(t, func(c *mesh) {
		a, b := c.nodes["A"], c.nodes["B"]
		onA := a.client("a")
		a.register(onA, inst("x"))
		since := a.Snapshot(order).Instances[0].Since
		c.exchange("B")
		a.changes, b.changes = 0, 0
		onA.Move()
		onA.Move()
		c.exchange("B")
		for _, p := range []*peer{a, b} {
			p.changed(0)
			p.causes(CauseRegistered, CauseMoving)
			if e := p.Snapshot(order).Instances[0]; !e.Moving || e.Since != since {
				t.Errorf("shown as %+v", e)
			}
		}
		if n := len(a.records); n != 2 {
			t.Errorf("%d records", n)
		}
		a.register(onA, inst("x")) // identical, and yet a change
		c.exchange("B")
		for _, p := range []*peer{a, b} {
			if e := p.Snapshot(order).Instances[0]; e.Moving || e.Since <= since {
				t.Errorf("shown as %+v", e)
			}
		}
	})
}

func TestDropIsSeenAndReturns(t *testing.T) {
	inMesh(t, func(c *mesh) {
		a, b := c.nodes["A"], c.nodes["B"]
		presence := 0
		b.opts.Presence = func(ServiceKey) { presence++ }
		a.register(a.client("a"), inst("x"), inst("y"))
		c.exchange("B")
		if presence != 1 || !b.Present(order) {
			t.Error("not present")
		}
		b.changes = 0
		b.SetLife(a.life, Orphaned, 0)
		b.SetLife(a.life, Dropped, 0)
		b.SetLife(a.life, Dropped, 0)
		b.changed(1) // once for both
		if presence != 2 || b.Present(order) {
			t.Error("still present")
		}
		time.Sleep(2 * time.Minute)
		b.Sweep()
		if got := b.Services(DefaultNamespace, DefaultGroup); len(got) != 0 {
			t.Errorf("services %v", got)
		}
		b.SetLife(a.life, Living, a.opts.Clock.Now())
		c.show("B", "x", "y")
		if got := b.Services(DefaultNamespace, DefaultGroup); len(got) != 1 || !b.Present(order) || presence != 3 {
			t.Errorf("services %v, presence %d", got, presence)
		}
		b.causes(CauseRegistered, CauseRegistered, CauseOrphanExpired, CauseOrphanExpired, CauseReturned, CauseReturned)
		b.changed(1)
		b.ForgetLife(a.life)
		b.changed(1)
		if s := b.Stats(); s.Instances != 0 || s.Publications != 0 || presence != 4 {
			t.Errorf("%+v, presence %d", s, presence)
		}
		b.Apply(a.life, []Record{a.records[0].Record}) // it begins anew, living
		c.show("B", "x", "y")
	})
}

// The lease of a life ends for most of its clients before it ends for those
// that are known to register late (design §6, the client's own redo period).
func TestWaningLifeKeepsSlowClients(t *testing.T) {
	m := newMesh(t, "A", "B")
	a, b := m.nodes["A"], m.nodes["B"]
	quick, slow := a.Open("quick", Connection), a.Open("slow", Connection)
	slow.Redo(35)
	for c, ip := range map[*Client]string{quick: "1.1.1.1", slow: "2.2.2.2"} {
		if err := c.Register(order, []*Instance{inst(ip)}, false); err != nil {
			t.Fatal(err)
		}
	}
	m.exchange("B")
	shown := func() (ips []string) {
		for _, e := range b.Snapshot(order).Instances {
			ips = append(ips, e.IP)
		}
		return ips
	}
	steps := []struct {
		to   LifeState
		at   Stamp
		want []string
	}{
		{Orphaned, 0, []string{"1.1.1.1", "2.2.2.2"}},
		{Waning, 0, []string{"2.2.2.2"}},
		{Waning, b.opts.Clock.Now(), []string{"2.2.2.2"}},
		{Living, b.opts.Clock.Now(), []string{"1.1.1.1", "2.2.2.2"}},
		{Waning, 0, []string{"2.2.2.2"}},
		{Dropped, 0, nil},
	}
	for i, s := range steps {
		b.SetLife(a.life, s.to, s.at)
		if got := shown(); !slices.Equal(got, s.want) {
			t.Errorf("step %d, %v: shows %v, want %v", i, s.to, got, s.want)
		}
	}
	if b.Present(order) {
		t.Error("the service is still present")
	}
}

// A slow client was moving when the lease of the others ended. Its own has not:
// the return of its node is no reason to hide it.
func TestReturnOfAWaningLifeKeepsSlowClientsThatMove(t *testing.T) {
	m := newMesh(t, "A", "B")
	a, b := m.nodes["A"], m.nodes["B"]
	quick, slow := a.Open("quick", Connection), a.Open("slow", Connection)
	slow.Redo(35)
	for c, ip := range map[*Client]string{quick: "1.1.1.1", slow: "2.2.2.2"} {
		if err := c.Register(order, []*Instance{inst(ip)}, false); err != nil {
			t.Fatal(err)
		}
		c.Move()
	}
	m.exchange("B")
	b.SetLife(a.life, Orphaned, 0)
	b.SetLife(a.life, Waning, 0)
	b.SetLife(a.life, Living, b.opts.Clock.Now())
	m.show("B", "2.2.2.2")
	b.SetLife(a.life, Dropped, 0)
	b.SetLife(a.life, Living, b.opts.Clock.Now())
	m.show("B")
}

// Who is slow is a matter of the newest records, in whatever order and at
// whatever time they come: of a client that is slow in one service only, of one
// that is quick by now, and when the lease of the quick is over already.
func TestWhoIsSlowIsWhatTheRecordsSay(t *testing.T) {
	other := ServiceKey{Namespace: order.Namespace, Group: order.Group, Name: "other"}
	inMesh(t, func(m *mesh) {
		a, b, c := m.nodes["A"], m.nodes["B"], m.nodes["C"]
		cl := a.Open("1.1.1.1:80#true", Beat)
		publish := func(key ServiceKey, redo int) []Record {
			t.Helper()
			if err := cl.Register(key, []*Instance{inst("1.1.1.1")}, false); err != nil {
				t.Fatal(err)
			}
			cl.RedoOf(key, redo)
			return []Record{a.Take(RecordKey{cl.ID(), key})}
		}
		want := func(n *peer, what string, in ...ServiceKey) {
			t.Helper()
			for _, key := range []ServiceKey{order, other} {
				s := n.Snapshot(key).Instances
				if slices.Contains(in, key) != (len(s) == 1) || n.Present(key) != (len(s) == 1) {
					t.Errorf("%s: %v shows %v of %v, present %v", what, n.life, s, key, n.Present(key))
				}
				for _, e := range s {
					if !e.Slow {
						t.Errorf("%s: %v shows it as quick in %v", what, n.life, key)
					}
				}
			}
		}
		quick, slow := publish(order, 0), publish(other, 25)
		for _, recs := range [][]Record{quick, slow} {
			b.Apply(a.life, recs)
		}
		b.SetLife(a.life, Waning, 0)
		want(b, "in order", other)
		c.Apply(a.life, quick)
		c.SetLife(a.life, Waning, 0)
		c.Apply(a.life, slow)
		want(c, "after the lease", other)

		b.Apply(a.life, publish(order, 25))
		want(b, "slow in both, after the lease", order, other)
		b.Apply(a.life, publish(other, 0))
		want(b, "quick again in one", order)
		b.SetLife(a.life, Living, a.opts.Clock.Now())
		b.SetLife(a.life, Waning, 0)
		want(b, "after a return", order)
		if cl.RedoOf(order, 25); a.Take(RecordKey{cl.ID(), order}).Redo != 25 {
			t.Error("it is forgotten")
		}
		b.Apply(a.life, publish(order, 0))
		want(b, "quick in both")
		if s := b.Stats(); s.Instances != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestProbe(t *testing.T) {
	inMesh(t, func(c *mesh) {
		a, b := c.nodes["A"], c.nodes["B"]
		onA := a.client("a")
		a.register(onA, inst("x"), inst("y"))
		c.exchange("B", "C")
		c.ends("A", Orphaned)
		p := Probe{a.life, order, keyX, b.Snapshot(order).Instances[0].Since, b.opts.Clock.Now()}
		b.changes = 0
		b.Unanswered(p)
		b.Unanswered(p)
		b.changed(1)
		c.show("B", "y")
		b.causes(CauseRegistered, CauseRegistered, CauseProbeFailed)
		c.sleep()
		b.SetLife(a.life, Living, a.opts.Clock.Now())
		c.show("B", "x", "y")
		b.SetLife(a.life, Orphaned, 0) // void for good
		c.show("B", "x", "y")
		// What comes back moving stays hidden: its client had its time.
		cc := c.nodes["C"]
		cc.Unanswered(p)
		onA.Move()
		c.exchange("C")
		cc.SetLife(a.life, Living, a.opts.Clock.Now())
		c.show("C", "y")
		a.register(onA, inst("x"), inst("y"))
		c.exchange("C")
		c.show("C", "x", "y")
		// A result that comes before what it is about counts too.
		a.take()
		d := newMesh(t, "D").nodes["D"]
		d.Unanswered(p)
		d.SetLife(a.life, Orphaned, 0)
		d.Apply(a.life, []Record{a.records[0].Record})
		if diff := cmp.Diff([]string{"y"}, lines(d.Snapshot(order))); diff != "" {
			t.Error(diff)
		}
	})
}

func TestApplyIsOnePictureAndIdempotent(t *testing.T) {
	inMesh(t, func(c *mesh) {
		a, b := c.nodes["A"], c.nodes["B"]
		var recs []Record
		for n := range 100 {
			cl := a.client(fmt.Sprint("c", n))
			cl.Redo(35)
			a.register(cl, inst(fmt.Sprintf("h%02d", n)))
			recs = append(recs, a.Take(RecordKey{cl.ID(), order}))
		}
		if recs[0].Redo != 35 {
			t.Errorf("redo %d", recs[0].Redo)
		}
		b.Apply(a.life, recs)
		b.changed(1)
		snap := b.Snapshot(order)
		if len(snap.Instances) != 100 || b.Stats().Publications != 100 {
			t.Errorf("%d instances, %+v", len(snap.Instances), b.Stats())
		}
		b.Apply(a.life, recs)
		b.Apply(b.life, recs) // a frame never changes what the node owns
		b.changed(0)
		if b.Snapshot(order) != snap {
			t.Error("applying again made another picture")
		}
		for i := range recs {
			recs[i].Gone, recs[i].Cause = true, CauseDeregistered
		}
		b.Apply(a.life, recs)
		b.changed(1)
		if s := b.Stats(); s.Instances != 0 || s.Publications != 0 || len(b.Registry.life(a.life).clients) != 0 || len(b.Registry.life(a.life).services) != 0 {
			t.Errorf("%+v after all have gone", s)
		}
	})
}

func TestTakeTellsWhatWasNamedInBetween(t *testing.T) {
	inMesh(t, func(c *mesh) {
		a := c.nodes["A"]
		cl := a.client("a")
		k := RecordKey{"a", order}
		a.register(cl, inst("x"))
		a.register(cl, inst("y"), inst("z"))
		a.register(cl) // an empty batch is a publication
		rec := a.Take(k)
		var got []string
		for _, h := range rec.Hides {
			got = append(got, fmt.Sprint(h.IP, h.Strong))
		}
		if diff := cmp.Diff([]string{"xfalse", "yfalse", "zfalse"}, got); diff != "" || rec.Gone || !rec.Batch || len(rec.Instances) != 0 {
			t.Errorf("%+v %s", rec, diff)
		}
		if again := a.Take(k); again.Hides != nil || again.Clock != rec.Clock {
			t.Errorf("taken again: %+v", again)
		}
		a.register(cl, inst("x"), inst("y"))
		since := a.Snapshot(order).Instances[0].Since
		cl.Deregister(order, keyX)
		rec = a.Take(k)
		want := []Hide{{keyX, since, rec.Clock, true}, {keyX, rec.Clock, rec.Clock, false}}
		if diff := cmp.Diff(want, rec.Hides); diff != "" || len(rec.Instances) != 1 || rec.Cause != CauseDeregistered {
			t.Errorf("%+v %s", rec, diff)
		}
		cl.Close(CauseConnectionLost)
		if rec = a.Take(k); !rec.Gone || rec.Cause != CauseConnectionLost || len(rec.Hides) != 1 || rec.Hides[0].Strong {
			t.Errorf("%+v", rec)
		}
		if rec = a.Take(k); !rec.Gone || rec.Clock != 0 || rec.Hides != nil {
			t.Errorf("%+v", rec)
		}
	})
}

func TestHidesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(o *Options) { o.Wrote = func(RecordKey) {} })
		other := Life{"other", 1}
		at := w.opts.Clock.Now()
		w.SetLife(other, Orphaned, 0)
		c := w.client("c")
		time.Sleep(time.Second)
		w.register(c, inst("x"))
		c.Deregister(order, keyX)
		w.Apply(other, []Record{{RecordKey: RecordKey{"o", order}, Clock: at, Cause: CauseRegistered, Instances: []Published{{inst("x"), at}}}})
		time.Sleep(10*time.Minute - time.Second)
		w.Sweep()
		w.shows()
		w.changes = 0
		time.Sleep(time.Second)
		w.Sweep()
		w.shows("x") // what is shown depends on what is known
		w.changed(1)
		if n := w.Stats().Hides; n != 0 {
			t.Errorf("%d hides", n)
		}
		// One that comes when it is too old is not remembered at all.
		w.Apply(other, []Record{{RecordKey: RecordKey{"p", order}, Gone: true, Hides: []Hide{{keyX, at, at, true}}}})
		w.Unanswered(Probe{other, order, keyX, at, at})
		w.shows("x")
	})
}

func TestHidesAreBounded(t *testing.T) { // F24
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(o *Options) { o.Wrote, o.MaxHides = func(RecordKey) {}, 1000 })
		c := w.client("c")
		for n := range 20_000 {
			k := ServiceKey{"n", "g", fmt.Sprint(n % 50)}
			c.Deregister(k, InstanceKey{IP: fmt.Sprint(n), Port: 1})
			if n%100 == 0 {
				time.Sleep(20 * time.Millisecond)
			}
			if h := w.Stats().Hides; h > 2*1000+64*256 {
				t.Fatalf("%d hides", h)
			}
			w.Take(RecordKey{"c", k})
		}
		w.Sweep()
		if h := w.Stats().Hides; h > 1000+100 || h < 900 { // those of one stamp stay together
			t.Errorf("%d hides", h)
		}
		for k := 19_999; k > 19_500; k-- { // the newest are left
			key := ServiceKey{"n", "g", fmt.Sprint(k % 50)}
			if w.Registry.shard(key).hides[key][InstanceKey{fmt.Sprint(k), 1, DefaultCluster}] == nil {
				t.Fatalf("%d was forgotten", k)
			}
		}
		time.Sleep(10 * time.Minute)
		w.Sweep()
		for i := range w.shards {
			if n := len(w.shards[i].hides); n != 0 || w.shards[i].hidden != 0 {
				t.Errorf("%d services with hides in a shard, %d counted", n, w.shards[i].hidden)
			}
		}
	})
}

func TestHashes(t *testing.T) {
	inMesh(t, func(c *mesh) {
		hashes := func(n string) map[ServiceKey]Hash {
			m := map[ServiceKey]Hash{}
			c.nodes[n].Hashes(func(k ServiceKey, h Hash) { m[k] = h })
			return m
		}
		a, b := c.nodes["A"], c.nodes["B"]
		onA := a.client("a")
		seen := map[uint64]bool{}
		for _, e := range []func(*Instance){
			func(*Instance) {}, weight(2), unhealthy, disabled, md("k", "v"), md("kv", ""), port(81), cluster("c"),
			func(i *Instance) { i.ID = "id" }, func(i *Instance) { i.IP = "y" },
		} {
			a.register(onA, inst("x", e))
			c.exchange("B")
			ha, hb := hashes("A")[order], hashes("B")[order]
			if ha.Sum != hb.Sum || ha.Instances != 1 || seen[ha.Sum] || ha.Sum == 0 {
				t.Errorf("hashes %+v and %+v", ha, hb)
			}
			seen[ha.Sum] = true
		}
		before := hashes("B")[order]
		onB := b.client("b")
		b.register(onB, inst("y")) // somebody else stands behind it
		if after := hashes("B")[order]; after != before {
			t.Errorf("%+v, then %+v", before, after)
		}
		onA.Close(CauseConnectionLost)
		c.exchange("B")
		onB.Close(CauseConnectionLost)
		if h := hashes("B")[order]; h.Sum != 0 || h.Instances != 0 || h.Changed <= before.Changed {
			t.Errorf("%+v when all have gone", h)
		}
	})
}

func TestLivesInParallel(t *testing.T) {
	opts := DefaultOptions()
	opts.Life, opts.Wrote = Life{"b", 1}, func(RecordKey) {}
	b := New(opts)
	lives := []Life{{"x", 1}, {"y", 1}}
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 3))
			for n := range 300 {
				key := ServiceKey{"n", "g", fmt.Sprint(rng.IntN(3))}
				life := lives[g%2]
				id := fmt.Sprint(rng.IntN(3))
				switch g {
				case 0, 1:
					rec := Record{RecordKey: RecordKey{id, key}, Clock: StampAt(int64(n)), Gone: rng.IntN(2) == 0, Moving: rng.IntN(2) == 0}
					if !rec.Gone {
						rec.Instances = []Published{{inst(id), StampAt(int64(n))}}
					}
					rec.Hides = []Hide{{InstanceKey{fmt.Sprint(rng.IntN(3)), 80, DefaultCluster}, StampAt(int64(rng.IntN(n + 1))), b.opts.Clock.Now(), false}}
					b.Apply(life, []Record{rec, {RecordKey: RecordKey{"other", key}, Gone: true}})
				case 2:
					b.SetLife(lives[rng.IntN(2)], LifeState(rng.IntN(3)), b.opts.Clock.Now())
					b.Unanswered(Probe{life, key, inst(id).InstanceKey, 5, b.opts.Clock.Now()})
				case 3:
					b.Orphans(life, func(ServiceKey, *Shown) {})
					b.Copy(key, id)
					b.Hashes(func(ServiceKey, Hash) {})
					b.Take(RecordKey{id, key})
				case 4:
					c := b.Open(id, Connection)
					c.Register(key, []*Instance{inst(id)}, false)
					c.Move()
					c.Adopt(key, inst(id), 0)
					c.Close(CauseConnectionLost)
				case 5:
					b.Sweep()
					b.History(key)
					if n%50 == 0 {
						b.SetLife(b.opts.Life, Living, b.opts.Clock.Now())
					}
				}
			}
		})
	}
	wg.Wait()
	for _, l := range lives {
		b.ForgetLife(l)
	}
	if s := b.Stats(); s.Instances != 0 || s.Publications != 0 {
		t.Errorf("%+v after all have gone", s)
	}
	for i := range b.shards {
		for k, s := range b.shards[i].services {
			if s.dropped != 0 || len(s.claims) != 0 || len(b.shards[i].own) != 0 {
				t.Errorf("%v: %d dropped, %d claims, %d own", k, s.dropped, len(s.claims), len(b.shards[i].own))
			}
		}
	}
}

// The rule of the view, claim by claim.
func TestPick(t *testing.T) {
	type c struct {
		life         string
		kind         Kind
		since, clock Stamp
		moving       bool
	}
	lives := map[string]*life{}
	for _, l := range []struct {
		name                   string
		state                  LifeState
		back, undropped, spoke Stamp
	}{
		{"living", Living, 0, 0, 0}, {"living2", Living, 0, 0, 0}, {"orphan", Orphaned, 0, 0, 0}, {"dropped", Dropped, 0, 0, 0},
		{"returned", Living, 50, 50, 50}, {"came back", Living, 50, 0, 50}, {"heard", Orphaned, 0, 0, 50},
	} {
		lf := newLife(Life{l.name, 1})
		lf.state.Store(uint32(l.state))
		lf.back.store(l.back)
		lf.undropped.store(l.undropped)
		lf.unwaned.store(l.undropped)
		lf.spoke.store(l.spoke)
		lives[l.name] = lf
	}
	f := func(want int, h *hides, cs ...c) {
		t.Helper()
		for _, reverse := range []bool{false, true} {
			var claims []*claim
			for n, c := range cs {
				p := &publication{client: &Client{life: lives[c.life], id: fmt.Sprint(n), kind: c.kind}, moving: c.moving, clock: c.clock}
				claims = append(claims, &claim{pub: p, since: c.since})
			}
			wanted := (*claim)(nil)
			if want >= 0 {
				wanted = claims[want]
			}
			if reverse {
				slices.Reverse(claims)
			}
			got := pick(claims, h)
			if got != wanted {
				id := "none"
				if got != nil {
					id = got.pub.client.id
				}
				t.Errorf("%s is shown, want %d (reversed: %v)", id, want, reverse)
			}
		}
	}
	weak := func(upTo Stamp) *hides { return &hides{weak: stamps{upTo, 0}} }
	strong := func(upTo Stamp) *hides { return &hides{strong: stamps{upTo, 0}} }
	probe := func(of string, upTo, made Stamp) *hides {
		return &hides{probes: []Probe{{Of: Life{of, 1}, UpTo: upTo, Made: made}}}
	}
	// The newest registration, whoever lives.
	f(1, nil, c{life: "living", since: 1}, c{life: "orphan", since: 2})
	f(0, nil, c{life: "living", since: 2}, c{life: "living2", since: 1})
	// Ties: who lives and is not moving, then the life, then the client.
	f(0, nil, c{life: "living", since: 2}, c{life: "orphan", since: 2})
	f(1, nil, c{life: "living2", since: 2, moving: true}, c{life: "living", since: 2})
	f(1, nil, c{life: "living", since: 2}, c{life: "living2", since: 2})
	f(1, nil, c{life: "living", since: 2}, c{life: "living", since: 2})
	// A weak hide takes away what nobody living stands for.
	f(0, weak(5), c{life: "living", since: 5})
	f(-1, weak(5), c{life: "orphan", since: 5})
	f(-1, weak(5), c{life: "living", since: 5, moving: true})
	f(0, weak(5), c{life: "orphan", since: 6})
	f(0, weak(5), c{life: "orphan", since: 5, kind: Beat}) // another kind of client (C14)
	f(0, weak(5), c{life: "living", since: 3}, c{life: "orphan", since: 5})
	// A strong one everything.
	f(-1, strong(5), c{life: "living", since: 5}, c{life: "orphan", since: 5})
	f(1, strong(5), c{life: "living", since: 5}, c{life: "living2", since: 6})
	f(0, strong(5), c{life: "living", since: 5, kind: Beat})
	// What was dropped is not shown, and older orphans neither.
	f(-1, nil, c{life: "dropped", since: 5})
	f(-1, nil, c{life: "dropped", since: 5}, c{life: "orphan", since: 4})
	f(1, nil, c{life: "dropped", since: 5}, c{life: "orphan", since: 6})
	f(1, nil, c{life: "dropped", since: 5}, c{life: "living", since: 4})
	// What was moving when its life came back from a drop stays away.
	f(-1, nil, c{life: "returned", since: 5, clock: 49, moving: true})
	f(0, nil, c{life: "returned", since: 5, clock: 50, moving: true})
	f(0, nil, c{life: "returned", since: 5, clock: 49})
	f(0, nil, c{life: "came back", since: 5, clock: 49, moving: true})
	f(-1, nil, c{life: "returned", since: 5, clock: 49, moving: true}, c{life: "orphan", since: 4})
	// A probe, for the life that it was about…
	f(-1, probe("orphan", 5, 40), c{life: "orphan", since: 5})
	f(0, probe("orphan", 5, 40), c{life: "orphan", since: 6})
	f(-1, probe("orphan", 5, 40), c{life: "orphan", since: 6, moving: true})
	f(0, probe("heard", 5, 40), c{life: "heard", since: 5})
	f(-1, probe("heard", 5, 50), c{life: "heard", since: 5})
	f(0, probe("came back", 5, 40), c{life: "came back", since: 5})
	f(-1, probe("came back", 5, 40), c{life: "came back", since: 5, clock: 49, moving: true})
	f(0, probe("came back", 5, 40), c{life: "came back", since: 5, clock: 50, moving: true})
	f(-1, probe("came back", 5, 60), c{life: "came back", since: 5, clock: 55, moving: true})
	f(-1, probe("living", 5, 40), c{life: "living", since: 5, clock: 39, moving: true}) // only the prober was cut off
	f(0, probe("living", 5, 40), c{life: "living", since: 5, clock: 41, moving: true})
	// … and for others.
	f(-1, probe("living", 5, 40), c{life: "orphan", since: 5})
	f(0, probe("orphan", 5, 40), c{life: "living", since: 5})
}

func TestGoodbyeHidesNewerOrphansButNotNewerLivingClients(t *testing.T) {
	for _, state := range []LifeState{Living, Orphaned} {
		inMesh(t, func(c *mesh) {
			a, b := c.nodes["A"], c.nodes["B"]
			onB := b.client("b")
			b.register(onB, inst("x"))
			c.exchange("A", "C")
			a.register(a.client("a"), inst("x", weight(2)))
			c.exchange("B", "C")
			c.ends("A", state)
			onB.Deregister(order, keyX)
			c.exchange("C")
			if state == Living {
				c.show("BC", "x w2")
			} else {
				c.show("BC")
			}
		})
	}
}

// F08 for an HTTP client: its node freezes, its beats go elsewhere, and end
// there. The old node's copy, living again, is none to show.
func TestReturnDoesNotBringBackABeatClient(t *testing.T) {
	m := newMesh(t, "A", "B", "C")
	a, b := m.nodes["A"], m.nodes["B"]
	if err := a.Open("x", Beat).Register(order, []*Instance{inst("1.1.1.1")}, false); err != nil {
		t.Fatal(err)
	}
	m.exchange("B", "C")
	copied, ok := b.Copy(order, "x")
	if !ok {
		t.Fatal("no copy")
	}
	for _, n := range []string{"B", "C"} {
		m.nodes[n].SetLife(a.life, Orphaned, 0)
	}
	onB := b.Open("x", Beat)
	if err := onB.Adopt(order, inst("1.1.1.1"), copied.Since+1); err != nil {
		t.Fatal(err)
	}
	m.show("B", "1.1.1.1")
	onB.Remove(order, CauseBeatTimeout)
	m.show("B")
	m.exchange("A", "C")
	for _, n := range []string{"B", "C"} {
		m.nodes[n].SetLife(a.life, Living, b.opts.Clock.Now())
	}
	m.show("B")
	m.show("C")
	m.show("A")
}

// A node was taken for gone, and a client has registered there meanwhile. When
// that comes, before the node is known to be back, it does not take away what
// stands for the client elsewhere.
func TestWhatAppearsInADroppedLifeHidesNothing(t *testing.T) {
	m := newMesh(t, "A", "B")
	a, b := m.nodes["A"], m.nodes["B"]
	on := func(p *peer, id string) *Client {
		c := p.Open(id, Connection)
		if err := c.Register(order, []*Instance{inst("1.1.1.1")}, false); err != nil {
			t.Fatal(err)
		}
		return c
	}
	on(a, "other")
	m.exchange("B")
	onB := on(b, "before")
	b.SetLife(a.life, Orphaned, 0)
	b.SetLife(a.life, Dropped, b.opts.Clock.Now())
	m.show("B", "1.1.1.1")
	a.opts.Clock.Adopt(b.opts.Clock.Now())
	on(a, "after")
	onB.Move()
	m.show("B", "1.1.1.1")
	m.exchange("B")
	m.show("B", "1.1.1.1")
	b.SetLife(a.life, Living, a.opts.Clock.Now())
	m.show("B", "1.1.1.1")
}

// Where nobody else is, only hides of what somebody claims are remembered.
func TestAloneRemembersNoHides(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Wrote = func(RecordKey) {} })
	c := w.client("c")
	goodbye := func(want int64) {
		t.Helper()
		w.register(c, inst("x"))
		w.Take(RecordKey{"c", order})
		c.Deregister(order, keyX)
		if n := w.Stats().Hides; n != want {
			t.Errorf("%d hides, want %d", n, want)
		}
		if n := len(w.Take(RecordKey{"c", order}).Hides); n != int(2*want) { // a strong one and a weak one
			t.Errorf("%d hides are told, want %d", n, 2*want)
		}
	}
	goodbye(1)
	w.SetAlone(true)
	w.Sweep()
	goodbye(0)
	other := Life{"other", 1}
	at := w.opts.Clock.Now()
	w.SetLife(other, Orphaned, 0)
	w.Apply(other, []Record{{RecordKey: RecordKey{"o", order}, Clock: at, Cause: CauseRegistered, Instances: []Published{{inst("x"), at}}}})
	w.shows("x")
	goodbye(1) // that is claimed, whatever was said
	w.Sweep()
	w.shows()
	w.SetAlone(false)
	w.ForgetLife(other)
	w.Sweep()
	goodbye(1)
}

// A node that starts shows what a snapshot has until others tell what has become
// of it. What goes then was seen by nobody: it is not history.
func TestWhatGoesBeforeAnybodyIsServed(t *testing.T) {
	m := newMesh(t, "A", "B")
	a, b := m.nodes["A"], m.nodes["B"]
	unserved := true
	b.opts.Unserved = func() bool { return unserved }
	c := a.Open("c", Connection)
	if err := c.Register(order, []*Instance{inst("1.1.1.1")}, false); err != nil {
		t.Fatal(err)
	}
	m.exchange("B")
	b.SetLife(a.life, Orphaned, 0)
	b.SetLife(a.life, Dropped, 0)
	b.causes(CauseRegistered)
	b.SetLife(a.life, Living, b.opts.Clock.Now())
	unserved = false
	b.SetLife(a.life, Dropped, 0)
	b.causes(CauseRegistered, CauseReturned, CauseOrphanExpired)
}
