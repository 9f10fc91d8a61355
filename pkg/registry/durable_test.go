package registry

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func persistent(i *Instance) { i.Persistent = true }

// at is a row of the log, registered and judged then.
func row(i *Instance, at Stamp) *Persistent {
	i.Persistent = true
	return &Persistent{Instance: i, Since: at, Judged: at}
}

func (w *world) persist(rows ...*Persistent) {
	c := Change{}
	for _, p := range rows {
		c.Instances = append(c.Instances, PersistentChange{InstanceKey: p.InstanceKey, Is: p, Cause: CauseRegistered, Clock: p.Since})
	}
	w.commit(c)
}

func (w *world) remove(is ...*Instance) {
	c := Change{}
	for _, i := range is {
		c.Instances = append(c.Instances, PersistentChange{InstanceKey: i.InstanceKey, Cause: CauseDeregistered, Clock: w.opts.Clock.Now()})
	}
	w.commit(c)
}

func (w *world) check(i *Instance, healthy bool, made Stamp) {
	w.Checked(Check{Service: order, InstanceKey: i.InstanceKey, Healthy: healthy, Made: made, By: Life{"prober", 1}})
}

func TestPersistentInstances(t *testing.T) {
	var durable []ServiceKey
	presence := 0
	w := newWorld(t, func(o *Options) {
		o.Durable = func(k ServiceKey) { durable = append(durable, k) }
		o.Presence = func(ServiceKey) { presence++ }
	})
	a, b := inst("1.1.1.1"), inst("1.1.1.2", weight(2))
	w.persist(row(a, 5), row(b, 6))
	w.shows("1.1.1.1", "1.1.1.2 w2")
	w.changed(1)
	e, _ := w.Snapshot(order).Get(a.InstanceKey)
	want := &Shown{Instance: a, Since: 5, Client: "1.1.1.1:80#false"}
	if diff := cmp.Diff(want, e); diff != "" || !e.stands() {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if presence != 1 || len(durable) != 1 || !w.Present(order) || !w.Exists(order) || w.Kind(order) != PersistentService {
		t.Errorf("presence told %d times, durable %v, present %v, kind %v", presence, durable, w.Present(order), w.Kind(order))
	}
	if got := w.Services(order.Namespace, order.Group); !slices.Equal(got, []string{order.Name}) {
		t.Errorf("services %q", got)
	}
	if s := w.Stats(); s.PersistentInstances != 2 || s.Instances != 2 || s.Services != 1 {
		t.Errorf("%+v", s)
	}
	w.persist(row(inst("1.1.1.1"), 5)) // as it was
	w.changed(0)
	w.commit(Change{Instances: []PersistentChange{ // an address that moves to another cluster: one picture
		{InstanceKey: a.InstanceKey, Cause: CauseChanged, Clock: 7},
		{InstanceKey: InstanceKey{"1.1.1.1", 80, "c"}, Is: row(inst("1.1.1.1", cluster("c")), 5), Cause: CauseChanged, Clock: 7},
	}})
	w.shows("1.1.1.1/c", "1.1.1.2 w2")
	w.changed(1)
	w.remove(b, inst("1.1.1.1", cluster("c")))
	w.shows()
	if presence != 2 || w.Kind(order) != Free || w.Present(order) || !w.Exists(order) { // as an empty one of clients
		t.Errorf("presence told %d times, kind %v, present %v, exists %v", presence, w.Kind(order), w.Present(order), w.Exists(order))
	}
	h := w.History(order)
	for _, e := range h { // the same on all nodes
		if e.Origin != (Life{}) || e.Clock == e.At {
			t.Errorf("%s written by %v at %v", e.Cause, e.Origin, e.Clock)
		}
	}
	if h[0].Clock != 5 || h[1].Clock != 6 || !h[0].After.Persistent {
		t.Errorf("%+v", h[:2])
	}
	w.causes(CauseRegistered, CauseRegistered, CauseChanged, CauseChanged, CauseDeregistered, CauseDeregistered)
}

// A log that does not know when: each node says it for itself.
func TestChangeWithoutAClock(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Life = Life{"own", 1} })
	w.commit(Change{Instances: []PersistentChange{{InstanceKey: inst("x").InstanceKey, Is: row(inst("x"), 1), Cause: CauseRegistered}}})
	if e := w.History(order)[0]; e.Origin != (Life{"own", 1}) || e.Clock != e.At {
		t.Errorf("%+v", e)
	}
}

// What becomes of the instance is the reason, not that its edit went with it.
func TestReasonOfARemovalWithAnEdit(t *testing.T) {
	w := newWorld(t)
	a := inst("1.1.1.1")
	w.persist(row(a, 5))
	w.override(a.InstanceKey, &Override{Weight: new(3.0)})
	w.commit(Change{
		Instances: []PersistentChange{{InstanceKey: a.InstanceKey, Cause: CauseDeregistered}},
		Overrides: []OverrideChange{{InstanceKey: a.InstanceKey, Cause: CauseOverrideEnded}},
	})
	w.causes(CauseRegistered, CauseOperator, CauseDeregistered)
}

func TestKinds(t *testing.T) { // D12, C14
	w := newWorld(t)
	c := w.client("c")
	i := inst("1.1.1.1")
	refused := func(want bool) {
		t.Helper()
		if err := c.Register(order, []*Instance{inst("1.1.1.2")}, false); (err == ErrPersistentService) != want {
			t.Errorf("%v", err)
		}
		beat := w.Open("1.1.1.9:80#true", Beat)
		if err := beat.Adopt(order, inst("1.1.1.9"), 0); (err == ErrPersistentService) != want {
			t.Errorf("adoption: %v", err)
		}
		beat.Close(CauseBeatTimeout)
		if n := len(c.Services()); (n == 0) != want {
			t.Errorf("the client publishes in %d services", n)
		}
		c.Deregister(order, InstanceKey{})
	}
	kind := func(want ServiceKind) {
		t.Helper()
		if got := w.Kind(order); got != want {
			t.Errorf("kind %v, want %v", got, want)
		}
	}
	kind(Free)
	refused(false)
	kind(Free)
	w.persist(row(i, 5))
	kind(PersistentService)
	refused(true)
	w.remove(i)
	kind(Free)
	refused(false)
	w.describe(&ServiceMeta{Persistent: true}) // whether or not there are instances
	kind(PersistentService)
	refused(true)
	w.describe(&ServiceMeta{})
	kind(EphemeralService)
	refused(false)
	w.describe(nil)
	kind(Free)
	w.register(c) // an empty batch
	kind(EphemeralService)
	if m := w.Meta(order); m != nil {
		t.Errorf("%+v", m)
	}
	// Dropped lives do not count.
	c.Deregister(order, InstanceKey{})
	gone := Life{"gone", 1}
	w.Apply(gone, []Record{{RecordKey: RecordKey{"x", order}, Clock: 1, Instances: []Published{{inst("x"), 1}}}})
	kind(EphemeralService)
	w.SetLife(gone, Orphaned, 0)
	kind(EphemeralService)
	w.SetLife(gone, Dropped, 0)
	kind(Free)
}

// Both kinds of an instance, of nodes that did not know of each other.
func TestClashOfKinds(t *testing.T) {
	w := newWorld(t)
	c := w.client("c")
	w.register(c, inst("1.1.1.1", weight(2)))
	w.override(inst("1.1.1.1").InstanceKey, &Override{Metadata: Metadata{{"k", "v"}}})
	w.persist(row(inst("1.1.1.1"), 5))
	w.shows("1.1.1.1 k=v")
	c.Deregister(order, InstanceKey{})
	w.shows("1.1.1.1 k=v") // the client's goodbye is not the persistent one's
	w.remove(inst("1.1.1.1"))
	w.shows()

	w.override(inst("1.1.1.1").InstanceKey, nil)
	w.register(c, inst("1.1.1.1", weight(2)))
	w.persist(row(inst("1.1.1.1"), 5))
	w.remove(inst("1.1.1.1"))
	w.shows("1.1.1.1 w2")
}

func TestDescription(t *testing.T) { // W27
	synctest.Test(t, func(t *testing.T) {
		presence, durable := 0, 0
		w := newWorld(t, func(o *Options) {
			o.Presence = func(ServiceKey) { presence++ }
			o.Durable = func(ServiceKey) { durable++ }
		})
		w.describe(&ServiceMeta{ProtectThreshold: 0.5})
		w.changed(1)
		if presence != 1 || durable != 1 || !w.Present(order) || !w.Exists(order) || w.Meta(order).ProtectThreshold != 0.5 {
			t.Errorf("presence told %d times, durable %d, exists %v", presence, durable, w.Exists(order))
		}
		time.Sleep(time.Hour)
		w.Sweep()
		if !w.Exists(order) {
			t.Error("what an operator has said was forgotten")
		}
		was := w.Snapshot(order)
		w.describe(&ServiceMeta{ProtectThreshold: 1})
		if is := w.Snapshot(order); is.Version <= was.Version || is.Meta.ProtectThreshold != 1 || presence != 1 {
			t.Errorf("version %v after %v, meta %+v, presence told %d times", is.Version, was.Version, is.Meta, presence)
		}
		w.changed(1)
		w.describe(nil)
		w.changed(1)
		if w.Exists(order) || w.Present(order) || presence != 2 || len(w.Services(order.Namespace, order.Group)) != 0 {
			t.Error("a deleted service is found")
		}
		w.describe(&ServiceMeta{}) // made anew at once
		if !w.Exists(order) || len(w.Services(order.Namespace, order.Group)) != 1 {
			t.Error("not found")
		}
		w.describe(nil)
		time.Sleep(time.Minute)
		w.Sweep()
		if s := w.Stats(); s.Services != 0 {
			t.Errorf("%+v", s)
		}
		w.describe(nil) // there is nothing
		if s := w.Stats(); s.Services != 0 {
			t.Errorf("%+v", s)
		}
		// An operator's deletion of one that waits to be cleaned up.
		c := w.client("c")
		w.register(c, inst("x"))
		c.Close(CauseConnectionLost)
		if !w.Exists(order) {
			t.Error("cleaned up at once")
		}
		w.describe(nil)
		if w.Exists(order) {
			t.Error("not deleted")
		}
		w.register(w.client("d"), inst("x"))
		if !w.Exists(order) || len(w.Services(order.Namespace, order.Group)) != 1 {
			t.Error("not found after it came back")
		}
	})
}

func TestChecks(t *testing.T) {
	w := newWorld(t)
	a := inst("1.1.1.1")
	w.persist(row(a, 10))
	w.changes = 0
	w.check(a, false, 9) // of before it was registered
	w.check(a, false, 10)
	w.shows("1.1.1.1")
	w.changed(0)
	w.check(a, false, 20)
	w.shows("1.1.1.1 unhealthy")
	w.changed(1)
	w.check(a, true, 15) // late
	w.check(a, false, 20)
	w.check(a, false, 25)
	w.shows("1.1.1.1 unhealthy")
	w.changed(0)
	w.check(a, true, 30)
	w.shows("1.1.1.1")
	w.changed(1)
	w.causes(CauseRegistered, CauseCheckFailed, CauseCheckPassed)
	if e := w.History(order)[1]; e.Origin != (Life{"prober", 1}) || e.Clock != 20 || e.Client != "1.1.1.1:80#false" {
		t.Errorf("%+v", e)
	}
	w.check(a, false, 35)
	by := a // by hand (H21), or registered again after it was away
	w.commit(Change{Instances: []PersistentChange{{InstanceKey: a.InstanceKey, Is: &Persistent{Instance: by, Since: 10, Judged: 40}, Cause: CauseOperator, Clock: 40}}})
	w.shows("1.1.1.1")
	w.override(a.InstanceKey, &Override{Weight: new(7.0)})
	w.check(a, false, 50)
	w.shows("1.1.1.1 w7 unhealthy")
	p := w.Persistent(order)
	if len(p) != 1 || p[0].Healthy || !p[0].Instance.Healthy || p[0].Check.Made != 50 || p[0].Weight != 1 || p[0].Since != 10 {
		t.Errorf("%+v", p)
	}
	if diff := cmp.Diff(DefaultClusterMeta(DefaultCluster), p[0].Cluster); diff != "" {
		t.Error(diff)
	}
	none := &ClusterMeta{Name: DefaultCluster, Checker: Checker{Type: CheckNone}}
	w.describe(&ServiceMeta{Persistent: true, Clusters: map[string]*ClusterMeta{DefaultCluster: none}})
	if got := w.Persistent(order)[0].Cluster; got != none {
		t.Errorf("%+v", got)
	}
	if got := w.PersistentServices(); !slices.Equal(got, []ServiceKey{order}) {
		t.Errorf("%v", got)
	}
	// Made at the same time by two: all nodes take the same.
	for range 2 {
		w.Checked(Check{Service: order, InstanceKey: a.InstanceKey, Healthy: true, Made: 60, By: Life{"b", 1}})
		w.Checked(Check{Service: order, InstanceKey: a.InstanceKey, Healthy: false, Made: 60, By: Life{"a", 1}})
		w.shows("1.1.1.1 w7")
	}
}

// Checks travel faster than the log, and live longer than what they are about.
func TestChecksOfWhatIsNotThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, gone := inst("1.1.1.1"), inst("1.1.1.2")
		then := w.opts.Clock.Now()
		made := then + 1
		time.Sleep(2 * time.Hour) // an old one, of what has been unhealthy for long
		w.check(a, false, made)
		w.check(gone, false, made)
		w.changed(0)
		if w.Exists(order) {
			t.Error("a check makes a service")
		}
		time.Sleep(9 * time.Minute)
		w.Sweep()
		w.persist(row(a, then))
		w.shows("1.1.1.1 unhealthy")
		time.Sleep(9 * time.Minute)
		w.Sweep()
		w.persist(row(gone, then))
		w.shows("1.1.1.1 unhealthy", "1.1.1.2") // too late
		time.Sleep(time.Hour)
		w.Sweep()
		w.shows("1.1.1.1 unhealthy", "1.1.1.2")
		w.remove(a)
		time.Sleep(9 * time.Minute)
		w.Sweep()
		w.persist(row(a, then)) // a log that is read again
		w.shows("1.1.1.1 unhealthy", "1.1.1.2")
		w.remove(a, gone)
		time.Sleep(10 * time.Minute)
		w.Sweep()
		w.persist(row(a, then))
		w.shows("1.1.1.1")
		w.remove(a)
		w.Sweep()
		for i := range w.shards {
			if n := len(w.shards[i].checks); n > 0 {
				t.Errorf("%d services with checks", n)
			}
		}
	})
}

func TestExplicitGoodbyeEndsAnEdit(t *testing.T) { // C27
	var over []Edit
	w := newWorld(t, func(o *Options) {
		o.OverrideOver = func(e Edit) { over = append(over, e) }
		o.Durable = func(ServiceKey) { t.Error("told of persistent instances") }
	})
	k := inst("1.1.1.1").InstanceKey
	expect := func(want ...Edit) {
		t.Helper()
		if diff := cmp.Diff(want, over); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(want, w.EndedOverrides()); diff != "" {
			t.Errorf("ended (-want +got):\n%s", diff)
		}
		over = nil
	}
	a := w.client("a")
	again := func() { w.register(a, inst("1.1.1.1")) }
	again()
	w.override(k, &Override{Weight: new(3.0), Revision: 7})
	a.Close(CauseConnectionLost) // no goodbye
	expect()
	a = w.client("a")
	again()
	w.shows("1.1.1.1 w3")
	a.Deregister(order, k)
	expect(Edit{order, k, 7, CauseOverrideEnded})
	again()
	w.shows("1.1.1.1")
	w.override(k, &Override{Weight: new(3.0), Revision: 7}) // the log says it once more
	w.shows("1.1.1.1")
	a.Deregister(order, k) // is not told twice
	if len(over) > 0 {
		t.Errorf("told %v again", over)
	}
	again()
	w.override(k, &Override{Weight: new(4.0), Revision: 9}) // anew
	w.shows("1.1.1.1 w4")
	expect()
	a.Deregister(order, k)
	expect(Edit{order, k, 9, CauseOverrideEnded})
	w.override(k, nil) // the log has heard
	expect()

	again()
	w.override(k, &Override{Weight: new(5.0), Revision: 10, Sticky: true})
	a.Deregister(order, k)
	expect()
	again()
	w.shows("1.1.1.1 w5")
	a.Close(CauseConnectionLost)

	// A client that came here, and says goodbye before it has registered again
	// (F22).
	w.override(k, &Override{Weight: new(6.0), Revision: 11})
	w.override(inst("1.1.1.2").InstanceKey, &Override{Weight: new(6.0), Revision: 12})
	there := Life{"there", 1}
	w.Apply(there, []Record{{RecordKey: RecordKey{"c", order}, Clock: 1, Instances: []Published{{inst("1.1.1.1"), 1}, {inst("1.1.1.2"), 1}}}})
	b := w.client("b")
	b.Deregister(order, inst("1.1.1.2").InstanceKey) // somebody living stands for it
	expect()
	w.SetLife(there, Orphaned, 0)
	w.shows("1.1.1.1 w6")
	b.Deregister(order, k)
	w.shows()
	expect(Edit{order, k, 11, CauseOverrideEnded})
}

func TestAbsentOverrides(t *testing.T) { // C13
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := inst("1.1.1.1").InstanceKey
		absent := func(want ...Edit) {
			t.Helper()
			w.Sweep()
			if diff := cmp.Diff(want, w.AbsentOverrides()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		}
		edit := Edit{order, k, 7, CauseOverrideEnded}
		w.override(k, &Override{Weight: new(3.0), Revision: 7}) // over one that is not there yet (V11)
		if w.Exists(order) || len(w.Services(order.Namespace, order.Group)) > 0 {
			t.Error("an edit makes a service that clients see")
		}
		time.Sleep(59 * time.Second)
		absent()
		time.Sleep(time.Second)
		absent(edit)
		a := w.client("a")
		w.register(a, inst("1.1.1.1"), inst("1.1.1.2"))
		w.shows("1.1.1.1 w3", "1.1.1.2") // until the log says so
		if !w.Exists(order) || len(w.Services(order.Namespace, order.Group)) != 1 {
			t.Error("the service is not found")
		}
		time.Sleep(time.Hour)
		absent()
		w.register(a, inst("1.1.1.2"), inst("1.1.1.3")) // its absence begins now, not when the service was touched before
		time.Sleep(59 * time.Second)
		absent()
		w.register(a, inst("1.1.1.1"), inst("1.1.1.2"))
		time.Sleep(time.Hour)
		absent()
		w.shows("1.1.1.1 w3", "1.1.1.2")
		a.Close(CauseConnectionLost)
		time.Sleep(59 * time.Second)
		absent()
		time.Sleep(time.Second)
		absent(edit)
		w.override(k, &Override{Weight: new(3.0), Revision: 8, Sticky: true})
		time.Sleep(time.Hour)
		absent()
		w.register(w.client("b"), inst("1.1.1.1"))
		w.shows("1.1.1.1 w3")
		w.override(k, nil)
		w.shows("1.1.1.1")

		// Of a persistent one.
		other := ServiceKey{DefaultNamespace, DefaultGroup, "other"}
		one := func(p *Persistent, o *Override) Change {
			return Change{Service: other, Instances: []PersistentChange{{InstanceKey: k, Is: p}}, Overrides: []OverrideChange{{InstanceKey: k, Is: o}}}
		}
		w.Commit([]Change{one(row(inst("1.1.1.1"), 1), &Override{Weight: new(3.0), Revision: 9})})
		time.Sleep(time.Hour)
		absent()
		w.Commit([]Change{{Service: other, Instances: []PersistentChange{{InstanceKey: k}}}})
		time.Sleep(59 * time.Second)
		absent()
		time.Sleep(time.Second)
		absent(Edit{other, k, 9, CauseOverrideEnded})
	})
}

// What a dropped life publishes is kept, but nobody sees it: it does not keep
// an edit.
func TestAbsentOverridesOfDroppedLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		i := inst("1.1.1.1")
		k := i.InstanceKey
		edit := Edit{order, k, 7, CauseOverrideEnded}
		absent := func(want ...Edit) {
			t.Helper()
			w.Sweep()
			if diff := cmp.Diff(want, w.AbsentOverrides()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		}
		endsInAMinute := func() {
			t.Helper()
			time.Sleep(59 * time.Second)
			absent()
			time.Sleep(time.Second)
			absent(edit)
		}
		there := Life{"there", 1}
		w.Apply(there, []Record{{RecordKey: RecordKey{"c", order}, Clock: 1, Instances: []Published{{i, 1}}}})
		w.override(k, &Override{Weight: new(3.0), Revision: 7})
		time.Sleep(time.Hour)
		absent()
		w.SetLife(there, Orphaned, 0)
		time.Sleep(time.Hour)
		absent()
		w.shows("1.1.1.1 w3")
		for _, state := range []LifeState{Dropped, Waning} {
			w.SetLife(there, state, 0)
			w.shows()
			endsInAMinute()
			w.SetLife(there, Living, w.opts.Clock.Now())
			w.shows("1.1.1.1 w3")
			absent()
			time.Sleep(time.Hour)
			absent()
		}

		// Somebody else has it, and goes while the dropped one is kept.
		a := w.client("a")
		w.register(a, i)
		w.SetLife(there, Dropped, 0)
		time.Sleep(time.Hour)
		absent()
		a.Close(CauseConnectionLost)
		w.shows()
		endsInAMinute()
		w.ForgetLife(there)
		absent(edit) // it has been gone for long
	})
}

// Of many services each gets one snapshot, whatever the order of the changes.
func TestCommitIsOnePicturePerService(t *testing.T) {
	w := newWorld(t)
	var all []Change
	for n := range 30 {
		i := inst(fmt.Sprint(n))
		all = append(all, Change{Service: ServiceKey{"n", "g", fmt.Sprint(n % 3)},
			Instances: []PersistentChange{{InstanceKey: i.InstanceKey, Is: row(i, Stamp(n+1)), Cause: CauseRegistered, Clock: Stamp(n + 1)}}})
	}
	all = append(all, Change{Service: ServiceKey{"n", "g", "0"}, Described: true, Meta: &ServiceMeta{ProtectThreshold: 1}})
	w.Commit(all)
	w.changed(3)
	for n := range 3 {
		s := w.Snapshot(ServiceKey{"n", "g", fmt.Sprint(n)})
		if len(s.Instances) != 10 || (s.Meta != nil) != (n == 0) {
			t.Errorf("%d instances, meta %v", len(s.Instances), s.Meta)
		}
	}
	w.Commit(nil)
	w.changed(0)
}

func TestPersistentHash(t *testing.T) {
	sum := func(of ...func(*Instance)) (sum uint64) {
		w := newWorld(t)
		if p := inst("x", of...); p.Persistent {
			w.persist(row(p, 1))
		} else {
			w.register(w.client("c"), p)
		}
		w.Hashes(func(_ ServiceKey, h Hash) { sum = h.Sum })
		return sum
	}
	if sum() == sum(persistent) || sum(persistent) == sum(persistent, unhealthy) {
		t.Error("hashes do not tell the kinds apart")
	}
}

func TestPersistentHistoryIsWrittenDown(t *testing.T) {
	w := newWorld(t)
	w.persist(row(inst("1.1.1.1", md("k", "v"), disabled, weight(2)), 5))
	if diff := cmp.Diff(inst("1.1.1.1", md("k", "v"), disabled, weight(2), persistent), w.History(order)[0].After); diff != "" {
		t.Error(diff)
	}
}

// The log, checks, clients and readers at once.
func TestDurableInParallel(t *testing.T) {
	var w *world
	w = newWorld(t, func(o *Options) {
		o.Changed = nil
		o.OverrideOver = func(e Edit) { w.Meta(e.Service) } // no lock is held
		o.Durable = func(key ServiceKey) { w.Persistent(key) }
	})
	keys := []ServiceKey{{"n", "g", "0"}, {"n", "g", "1"}}
	k := func(rng *rand.Rand) InstanceKey { return inst(fmt.Sprint(rng.IntN(3))).InstanceKey }
	var wg sync.WaitGroup
	for n := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(n), 9))
			for range 300 {
				key := keys[rng.IntN(2)]
				switch n {
				case 0:
					ch := Change{Service: key, Instances: []PersistentChange{{InstanceKey: k(rng)}}, Overrides: []OverrideChange{{InstanceKey: k(rng)}}}
					if rng.IntN(2) == 0 {
						p := row(inst(ch.Instances[0].IP), w.opts.Clock.Now())
						ch.Instances[0].Is, ch.Overrides[0].Is = p, &Override{Weight: new(2.0)}
					}
					w.Commit([]Change{ch})
				case 1:
					w.Checked(Check{Service: key, InstanceKey: k(rng), Healthy: rng.IntN(2) == 0, Made: w.opts.Clock.Now()})
				case 2:
					c := w.client("c")
					c.Register(key, []*Instance{inst(k(rng).IP)}, false)
					c.Deregister(key, InstanceKey{})
				case 3:
					w.Serve(key)
					w.Kind(key)
					w.AbsentOverrides()
					w.EndedOverrides()
					w.PersistentServices()
					w.Sweep()
				}
			}
		})
	}
	wg.Wait()
	shown := 0
	for _, key := range keys {
		shown += len(w.Snapshot(key).Instances)
		if got := len(w.Persistent(key)); got != len(w.Snapshot(key).Instances) {
			t.Errorf("%d persistent instances, %d shown", got, len(w.Snapshot(key).Instances))
		}
	}
	if s := w.Stats(); s.Instances != int64(shown) || s.PersistentInstances != int64(shown) {
		t.Errorf("%+v, shown are %d", s, shown)
	}
}
