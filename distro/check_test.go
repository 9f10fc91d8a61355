package distro

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/starling-registry/starling/pkg/registry"
)

var checkedAt = registry.InstanceKey{IP: "10.0.0.9", Port: 3306, Cluster: "DEFAULT"}

// persist is what the log of the cluster says to a node.
func (w *world) persist(n int, ports ...int) {
	c := registry.Change{Service: testService}
	for _, port := range ports {
		k := checkedAt
		k.Port = port
		i := &registry.Instance{InstanceKey: k, Weight: 1, Healthy: true, Enabled: true, Persistent: true}
		c.Instances = append(c.Instances, registry.PersistentChange{InstanceKey: k, Is: &registry.Persistent{Instance: i, Since: 1, Judged: 1}, Cause: registry.CauseRegistered})
	}
	w.nodes[n].reg.Commit([]registry.Change{c})
}

// check is what a health check of a node found.
func (nd *node) check(healthy bool) registry.Check {
	return registry.Check{Service: testService, InstanceKey: checkedAt, Healthy: healthy, Made: nd.clock.Now(), By: nd.life, Reason: "refused"}
}

func (nd *node) report(c registry.Check) {
	nd.reg.Checked(c)
	nd.d.WriteCheck(c)
}

func (w *world) expectHealthy(want bool, nodes ...int) {
	w.t.Helper()
	for _, n := range nodes {
		e, ok := w.nodes[n].reg.Snapshot(testService).Get(checkedAt)
		if !ok || e.Healthy != want {
			w.t.Fatalf("node %d shows healthy %v (there: %v), want %v", n, ok && e.Healthy, ok, want)
		}
	}
}

func TestChecks(t *testing.T) {
	run(t, 3, func(w *world) {
		w.startAll()
		for n := range 3 {
			w.persist(n, checkedAt.Port)
		}
		w.expectHealthy(true, 0, 1, 2)
		late := w.nodes[2].check(true) // of before, told after
		time.Sleep(time.Millisecond)
		w.nodes[0].report(w.nodes[0].check(false))
		w.expectHealthy(false, 0)
		time.Sleep(time.Second)
		w.expectHealthy(false, 1, 2)
		w.nodes[2].report(late)
		time.Sleep(time.Second)
		w.expectHealthy(false, 0, 1, 2)
		w.nodes[1].report(w.nodes[1].check(true))
		time.Sleep(time.Second)
		w.expectHealthy(true, 0, 1, 2)
		w.nodes[1].report(w.nodes[1].check(false))
		time.Sleep(time.Second)
		w.expectHealthy(false, 0, 1, 2)
		w.expectEqual(0, 1, 2)

		// It stays when the node goes that made it; who starts later hears of
		// it, and need not know the instance yet.
		w.kill(1)
		w.allSee(1, Refused)
		time.Sleep(time.Second)
		w.kill(0)
		w.see(2, 0, Refused)
		w.start(0)
		w.see(0, 2, Alive)
		w.see(2, 0, Alive)
		time.Sleep(5 * time.Second)
		w.persist(0, checkedAt.Port)
		w.expectHealthy(false, 0, 2)
		time.Sleep(5 * time.Minute)
		w.expectHealthy(false, 0, 2)
		for _, n := range []int{0, 2} {
			if e, _ := w.nodes[n].reg.Snapshot(testService).Get(checkedAt); e.Life != (registry.Life{}) {
				t.Errorf("life %v stands behind it", e.Life)
			}
			h := w.nodes[n].reg.History(testService)
			if last := h[len(h)-1]; n == 2 && (last.Cause != registry.CauseCheckFailed || last.Origin != w.nodes[1].life) {
				t.Errorf("node %d: %s by %v", n, last.Cause, last.Origin)
			}
		}
		w.expectEqual(0, 2)
	})
}

// A node that was stopped serves the checks of its earlier run.
func TestChecksOfTheLastSnapshot(t *testing.T) {
	run(t, 1, func(w *world) {
		w.startAll()
		w.persist(0, checkedAt.Port)
		w.nodes[0].report(w.nodes[0].check(false))
		time.Sleep(time.Second)
		w.stop(0)
		w.start(0)
		time.Sleep(2 * time.Second)
		w.persist(0, checkedAt.Port)
		w.expectHealthy(false, 0)
		if p := w.nodes[0].reg.Persistent(testService); p[0].Check == nil || p[0].Check.By.Epoch != w.nodes[0].life.Epoch-1 || p[0].Check.Reason != "refused" {
			t.Errorf("%+v", p[0].Check)
		}
	})
}

func TestWriteCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := alone(t)
		defer d.Stop()
		d.Members([]Member{{ID: testLife(1, 1).Node, Epoch: 1}})
		nd := &node{clock: d.opts.Clock, life: d.self}
		key := mapKey(kindCheck, encodeCheckKey(checkKey{testService, checkedAt}))
		written := func(versions uint64, tombstones int) *record {
			t.Helper()
			before := d.own.applied
			d.writePending()
			if got := d.own.applied - before; got != versions || d.own.dead() != tombstones || !d.dirty.clean() {
				t.Fatalf("%d versions, want %d; %d tombstones, want %d", got, versions, d.own.dead(), tombstones)
			}
			return d.own.records[key]
		}
		d.ForgetCheck(testService, checkedAt) // nobody knows it
		written(0, 0)
		old := nd.check(true)
		var last registry.Check
		for n := range 100 { // a burst is one record
			last = nd.check(n%2 == 0)
			d.WriteCheck(last)
		}
		d.WriteCheck(old)
		r := written(1, 0)
		if c, err := decodeRecord(r.raw, nil); err != nil || c.check == nil || c.check.Made != last.Made || c.check.Healthy || r.clock != last.Made {
			t.Errorf("%+v, %v", c.check, err)
		}
		d.WriteCheck(old)
		d.WriteCheck(last)
		written(0, 0)
		d.WriteCheck(nd.check(true))
		d.ForgetCheck(testService, checkedAt)
		if r := written(1, 1); !r.gone {
			t.Error("no tombstone")
		}
		d.ForgetCheck(testService, checkedAt)
		written(0, 1)
		d.ForgetCheck(testService, checkedAt)
		d.WriteCheck(nd.check(true)) // it is back
		if r := written(1, 0); r.gone {
			t.Error("it is gone")
		}
		for n := range 2 * writeBatch {
			c := nd.check(false)
			c.Cluster = fmt.Sprint(n)
			d.WriteCheck(c)
		}
		if d.dirty.clean() {
			t.Error("nothing is to be written")
		}
		for range 2 { // one lock of the life after the other
			before := d.own.applied
			if !d.writeSome() || d.own.applied != before+writeBatch {
				t.Errorf("%d checks at once", d.own.applied-before)
			}
		}
		written(0, 0)
	})
}
