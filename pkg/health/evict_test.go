package health

import (
	"errors"
	"testing"
	"time"

	"github.com/starling-registry/starling/pkg/registry"
)

// The client of an evicted instance is kept and judged as others are: lifting
// shows how it is.
func TestEvicted(t *testing.T) {
	bubble(t, func(f *fixture) {
		k, i := service("s"), instance(80)
		evict := func(evicted bool) {
			var is *registry.Override
			if evicted {
				is = &registry.Override{Evicted: true, StaysOut: true}
			}
			f.registry.Commit([]registry.Change{{Service: k, Overrides: []registry.OverrideChange{{InstanceKey: i.InstanceKey, Is: is, Cause: registry.CauseOperator}}}})
		}
		beat := func(want bool) {
			t.Helper()
			if _, known := f.Beat(k, i.IP, i.Port); known != want {
				t.Fatalf("known: %v, want %v", known, want)
			}
		}
		evict(true)
		beat(false)
		if err := f.Register(k, i); !errors.Is(err, registry.ErrEvicted) {
			t.Fatalf("registered: %v", err)
		}
		since := f.registry.Snapshot(k).Evicted[0].Since
		for range 10 {
			time.Sleep(5 * time.Second)
			beat(true)
		}
		if e := f.registry.Snapshot(k).Evicted[0]; e.Since != since {
			t.Error("its beats register it anew")
		}
		f.want(k, "")
		evict(false)
		shown := f.state(k)
		if shown == "" {
			t.Fatal("nothing is shown after it is lifted")
		}
		evict(true)
		time.Sleep(21 * time.Second)
		evict(false)
		f.want(k, shown+"!") // its client was silent
		evict(true)
		beat(true)
		time.Sleep(time.Minute)
		evict(false)
		f.want(k, "") // and is gone
		if n := f.Clients(); n != 0 {
			t.Errorf("%d clients", n)
		}
	})
}
