package registry

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// past is the history of the service as "cause of client: before → after".
func (w *world) past(want ...string) {
	w.t.Helper()
	var got []string
	for _, e := range w.History(order) {
		is := func(i *Instance) string {
			if i == nil {
				return "-"
			}
			return fmt.Sprint("w", i.Weight)
		}
		got = append(got, fmt.Sprintf("%s %s (%s) %s→%s", e.Key.IP, e.Cause, e.Client, is(e.Before), is(e.After)))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("history (-want +got):\n%s", diff)
	}
}

// evicted checks what is registered and not shown.
func (w *world) evicted(want ...string) {
	w.t.Helper()
	if diff := cmp.Diff(want, lines(&Snapshot{Instances: w.Snapshot(order).Evicted})); diff != "" {
		w.t.Errorf("evicted (-want +got):\n%s", diff)
	}
}

func (w *world) refuses(c *Client, want error, is ...*Instance) {
	w.t.Helper()
	if err := c.Register(order, is, len(is) != 1); !errors.Is(err, want) {
		w.t.Errorf("%v, want %v", err, want)
	}
}

func (w *world) edit(k InstanceKey, o *Override, by string) {
	w.commit(Change{Overrides: []OverrideChange{{InstanceKey: k, Is: o, Cause: CauseOperator, Clock: 5, By: by}}})
}

func TestEviction(t *testing.T) {
	var told []string
	w := newWorld(t, func(o *Options) {
		o.Refused = func(key ServiceKey, k InstanceKey, client string) { told = append(told, fmt.Sprint(key, k.IP, client)) }
		o.OverrideOver = func(e Edit) { t.Errorf("the edit %v is over", e) }
	})
	a, b := w.client("a"), w.client("b")
	one, two := inst("1.1.1.1"), inst("1.1.1.2")
	w.register(a, one)
	w.register(b, two)
	w.changes = 0
	before := w.Snapshot(order)

	w.edit(one.InstanceKey, &Override{Evicted: true, StaysOut: true, Revision: 7}, "10.0.0.5")
	w.shows("1.1.1.2")
	w.evicted("1.1.1.1")
	w.changed(1)
	s := w.Snapshot(order)
	if _, ok := s.Get(one.InstanceKey); ok || s.Version <= before.Version {
		t.Error("it is found, or the picture is not a new one")
	}
	if e, ok := s.Find(one.InstanceKey); !ok || e.Client != "a" {
		t.Errorf("it is not found among the evicted: %+v", e)
	}
	if e, ok := s.Find(two.InstanceKey); !ok || e.Client != "b" {
		t.Errorf("%+v", e)
	}
	if _, ok := s.Find(InstanceKey{"1.1.1.1", 81, DefaultCluster}); ok {
		t.Error("another port is found")
	}
	if n := w.Stats().Instances; n != 1 {
		t.Errorf("%d instances counted", n)
	}
	if got, there := a.Published(order); !there || len(got) != 1 {
		t.Error("its client does not publish it any more")
	}

	// Whoever registers it, and however often, is refused, and nothing is
	// visible. What it says is kept.
	for range 3 {
		w.refuses(a, ErrEvicted, inst("1.1.1.1", weight(2)))
	}
	c := w.client("c")
	for range 3 {
		w.refuses(c, ErrEvicted, inst("1.1.1.1", weight(3)))
	}
	w.evicted("1.1.1.1 w3")
	// A goodbye does not end it, or the client would come right back.
	c.Deregister(order, one.InstanceKey)
	w.evicted()
	a.Close(CauseConnectionLost)
	w.refuses(c, ErrEvicted, inst("1.1.1.1", weight(4)))
	w.shows("1.1.1.2")
	w.evicted("1.1.1.1 w4")
	// Part of a batch: the rest is registered.
	w.refuses(c, nil, inst("1.1.1.1", weight(4)), inst("1.1.1.3"))
	w.shows("1.1.1.2", "1.1.1.3")
	w.changed(1)
	if want := []string{"public/DEFAULT_GROUP/order1.1.1.1a", "public/DEFAULT_GROUP/order1.1.1.1c"}; !slices.Equal(told, want) {
		t.Errorf("told %q", told)
	}
	// An edit of the rest is made to what is unseen.
	w.edit(one.InstanceKey, &Override{Weight: new(9.0), Evicted: true, StaysOut: true, Revision: 8}, "")
	w.evicted("1.1.1.1 w9")
	w.changed(0)
	w.refuses(c, nil, inst("1.1.1.1", weight(5)), inst("1.1.1.3"))
	if len(told) != 2 {
		t.Error("told again, of the same eviction")
	}

	w.edit(one.InstanceKey, &Override{Weight: new(9.0), Sticky: true, Revision: 9}, "10.0.0.6")
	w.shows("1.1.1.1 w9", "1.1.1.2", "1.1.1.3")
	w.evicted()
	if w.Snapshot(order).Evicted != nil {
		t.Error("an empty list")
	}
	w.changed(1)
	w.refuses(c, nil, inst("1.1.1.1", weight(6)))
	w.past(
		"1.1.1.1 registered (a) -→w1", "1.1.1.2 registered (b) -→w1",
		"1.1.1.1 evicted by an operator (operator 10.0.0.5) w1→-",
		"1.1.1.1 registration while evicted (a) -→-", "1.1.1.1 registration while evicted (c) -→-",
		"1.1.1.3 registered (c) -→w1",
		"1.1.1.1 eviction lifted (operator 10.0.0.6) -→w9", "1.1.1.3 replaced (c) w1→-")
	if e := w.History(order)[2]; e.Origin != (Life{}) || e.Clock != 5 { // the same on all nodes
		t.Errorf("%+v", e)
	}
}

// An eviction of what is not there, and one until it is gone.
func TestEvictionOfTheAbsent(t *testing.T) {
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
		w.edit(k, &Override{Evicted: true, Revision: 7}, "")
		if w.Exists(order) {
			t.Error("an eviction makes a service that clients see")
		}
		a := w.client("a")
		w.refuses(a, ErrEvicted, inst("1.1.1.1"))
		if !w.Exists(order) || !w.Present(order) || w.Kind(order) != EphemeralService { // it is registered, after all
			t.Error("the service is not found")
		}
		w.shows()
		w.changed(0)
		a.Deregister(order, k)
		if got := w.EndedOverrides(); len(got) > 0 {
			t.Errorf("%v ended", got)
		}
		time.Sleep(59 * time.Second)
		w.refuses(a, ErrEvicted, inst("1.1.1.1"))
		time.Sleep(time.Hour)
		absent() // it is there, though nobody sees it
		a.Close(CauseConnectionLost)
		time.Sleep(59 * time.Second)
		absent()
		time.Sleep(time.Second)
		absent(Edit{order, k, 7, CauseOverrideEnded})
		w.commit(Change{Overrides: []OverrideChange{{InstanceKey: k, Cause: CauseOverrideEnded, Clock: 9}}})
		w.register(w.client("b"), inst("1.1.1.1"))
		w.shows("1.1.1.1")

		w.edit(k, &Override{Evicted: true, StaysOut: true, Revision: 8}, "")
		w.Open("b", Connection).Close(CauseConnectionLost)
		w.edit(k, nil, "x") // with the service, say
		w.past("1.1.1.1 evicted by an operator () -→-", "1.1.1.1 registration while evicted (a) -→-", "1.1.1.1 eviction ended () -→-",
			"1.1.1.1 registered (b) -→w1", "1.1.1.1 evicted by an operator (b) w1→-", "1.1.1.1 eviction lifted (operator x) -→w1")
	})
}

// Whatever is not to outlast the instance is reported, once the instance has been
// away for long: all of the edit, or a part.
func TestAbsentParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		k := inst("1.1.1.1").InstanceKey
		a := w.client("a")
		revision := uint64(0)
		for _, is := range []struct {
			edit Override
			ends bool
			left string // of the edit, for readers, once it has ended
		}{
			{Override{Evicted: true}, true, "1.1.1.1"},
			{Override{Evicted: true, StaysOut: true}, false, ""},
			{Override{Evicted: true, StaysOut: true, Weight: new(2.0)}, true, ""},
			{Override{Evicted: true, StaysOut: true, Weight: new(2.0), Sticky: true}, false, ""},
			{Override{Evicted: true, Weight: new(2.0)}, true, "1.1.1.1"},
			{Override{Evicted: true, Weight: new(2.0), Sticky: true}, true, "1.1.1.1 w2"},
			{Override{Weight: new(2.0)}, true, "1.1.1.1"},
			{Override{Metadata: NewMetadata(map[string]string{"k": "v"})}, true, "1.1.1.1"},
			{Override{Enabled: new(true)}, true, "1.1.1.1"},
			{Override{Weight: new(2.0), Sticky: true}, false, "1.1.1.1 w2"},
		} {
			revision++
			is.edit.Revision = revision
			w.edit(k, &is.edit, "")
			time.Sleep(time.Minute)
			var want []Edit
			if is.ends {
				want = []Edit{{order, k, revision, CauseOverrideEnded}}
			}
			if diff := cmp.Diff(want, w.AbsentOverrides()); diff != "" {
				t.Errorf("%+v (-want +got):\n%s", is.edit, diff)
			}
			left, ends := is.edit.Lasting()
			if ends != is.ends {
				t.Errorf("%+v ends: %v", is.edit, ends)
			}
			revision++
			left.Revision = revision
			w.edit(k, &left, "")
			time.Sleep(time.Hour)
			if got := w.AbsentOverrides(); got != nil {
				t.Errorf("what is left of %+v ends, too: %v", is.edit, got)
			}
			_ = a.Register(order, []*Instance{inst("1.1.1.1")}, false)
			if is.left == "" {
				w.shows()
			} else {
				w.shows(is.left)
			}
			w.edit(k, nil, "")
			a.Deregister(order, k)
		}
		if got := w.EndedOverrides(); got != nil {
			t.Errorf("%v ended", got)
		}
	})
}

// No more lines of the history than that, however many clients there are.
func TestRefusalsAreBounded(t *testing.T) {
	w := newWorld(t)
	w.edit(inst("1.1.1.1").InstanceKey, &Override{Evicted: true, StaysOut: true}, "")
	for n := range 3 * maxRefused {
		c := w.client(fmt.Sprint("c", n))
		w.refuses(c, ErrEvicted, inst("1.1.1.1"))
		c.Close(CauseConnectionLost)
	}
	if n := len(w.History(order)); n != 1+maxRefused {
		t.Errorf("%d events", n)
	}
}

// A claim of another life comes and goes below an eviction, and is shown at
// once when that is lifted; the owner of a beat client is not told.
func TestEvictedElsewhere(t *testing.T) {
	w := newWorld(t)
	k := inst("1.1.1.1").InstanceKey
	there := Life{"there", 1}
	w.edit(k, &Override{Evicted: true, StaysOut: true, Revision: 1}, "")
	w.Apply(there, []Record{{RecordKey: RecordKey{"c", order}, Clock: 1, Instances: []Published{{inst("1.1.1.1", weight(2)), 1}}}})
	w.evicted("1.1.1.1 w2")
	w.changed(0)
	if n := len(w.History(order)); n != 1 {
		t.Errorf("%d events", n)
	}
	orphans := 0
	w.SetLife(there, Orphaned, 0)
	w.Orphans(there, func(ServiceKey, *Shown) { orphans++ })
	if e := w.Snapshot(order).Evicted[0]; e.State != Orphaned || orphans != 1 {
		t.Errorf("%v, %d orphans", e.State, orphans)
	}
	w.SetLife(there, Dropped, 0)
	w.evicted()
	w.SetLife(there, Living, 9)
	w.evicted("1.1.1.1 w2")
	beat := w.Open("1.1.1.1:80#true", Beat)
	if err := beat.Adopt(order, inst("1.1.1.1", weight(3)), w.opts.Clock.Now()); err != nil {
		t.Errorf("a beat is refused: %v", err)
	}
	w.evicted("1.1.1.1 w3")
	w.changed(0)
	w.edit(k, nil, "")
	w.shows("1.1.1.1 w3")
}

func TestPersistentEviction(t *testing.T) {
	w := newWorld(t)
	a := inst("1.1.1.1")
	w.persist(row(a, 5))
	w.edit(a.InstanceKey, &Override{Evicted: true, Revision: 1}, "")
	w.shows()
	if len(w.Persistent(order)) != 1 || !w.Present(order) || w.Stats().PersistentInstances != 1 {
		t.Error("the row is not there any more")
	}
	w.changes = 0
	w.check(a, false, 20) // goes on
	w.evicted("1.1.1.1 unhealthy")
	w.changed(0)
	meta := &ServiceMeta{Persistent: true, ProtectThreshold: 0.5}
	w.describe(meta) // another picture of what is unseen
	if s := w.Snapshot(order); s.Meta != meta || len(s.Evicted) != 1 || len(s.Instances) != 0 {
		t.Errorf("%+v", s)
	}
	w.edit(a.InstanceKey, nil, "")
	w.shows("1.1.1.1 unhealthy")
	// Deregistered in the same moment: what became of the instance is the reason.
	w.commit(Change{
		Instances: []PersistentChange{{InstanceKey: a.InstanceKey, Cause: CauseDeregistered, Clock: 6}},
		Overrides: []OverrideChange{{InstanceKey: a.InstanceKey, Is: &Override{Evicted: true, Revision: 2}, Cause: CauseOperator, Clock: 6}},
	})
	w.causes(CauseRegistered, CauseEvicted, CauseLifted, CauseDeregistered)
}

// Who asks for an operator's change of health is named as well.
func TestOperatorIsNamed(t *testing.T) {
	w := newWorld(t)
	a := inst("1.1.1.1")
	w.persist(row(a, 5))
	sick := inst("1.1.1.1", unhealthy, persistent)
	w.commit(Change{Instances: []PersistentChange{{InstanceKey: a.InstanceKey, Is: &Persistent{sick, 5, 6}, Cause: CauseOperator, Clock: 6, By: "10.0.0.5"}}})
	w.commit(Change{Instances: []PersistentChange{{InstanceKey: a.InstanceKey, Cause: CauseDeregistered, Clock: 7, By: "10.0.0.6"}}})
	w.past("1.1.1.1 registered (1.1.1.1:80#false) -→w1", "1.1.1.1 operator (operator 10.0.0.5) w1→w1", "1.1.1.1 deregistered (1.1.1.1:80#false) w1→-")
}

func TestHashOfEvicted(t *testing.T) {
	w := newWorld(t)
	w.register(w.client("a"), inst("1.1.1.1"), inst("1.1.1.2"))
	other := newWorld(t)
	other.register(other.client("a"), inst("1.1.1.2"))
	w.edit(inst("1.1.1.1").InstanceKey, &Override{Evicted: true}, "")
	sum := func(w *world) (h Hash) {
		w.Hashes(func(_ ServiceKey, is Hash) { h = is })
		return h
	}
	if a, b := sum(w), sum(other); a.Sum != b.Sum || a.Instances != 1 {
		t.Errorf("%+v and %+v", a, b)
	}
}
