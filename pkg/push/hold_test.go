package push

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

// Semantics E20: while pushes are held back nothing goes out, the first push of
// a subscription neither; afterwards each client gets the newest, once.
func TestHold(t *testing.T) {
	run(t, func(b *bench) {
		old, other := b.attach(), b.attach()
		defer old.sub.Close()
		defer other.sub.Close()
		old.sub.Subscribe(order, "")
		other.sub.Subscribe(registry.ServiceKey{Namespace: "public", Group: "g", Name: "other"}, "")
		time.Sleep(time.Second)
		before, beforeOther := old.count(), other.count()

		b.engine.Hold(true)
		b.engine.Hold(true)
		late := b.attach()
		defer late.sub.Close()
		late.sub.Subscribe(order, "")
		watching := b.attach()
		defer watching.sub.Close()
		const pattern = "public>>g>>*"
		p, err := nacos.ParsePattern(pattern)
		if err != nil {
			t.Fatal(err)
		}
		if err := watching.sub.Watch(pattern, p, nil, true); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			b.change()
			time.Sleep(time.Second)
		}
		for _, c := range []*conn{late, watching} {
			if n := c.count(); n != 0 {
				t.Errorf("%d messages while pushes are held back", n)
			}
		}
		if n := old.count() - before; n != 0 {
			t.Errorf("%d pushes while they are held back", n)
		}

		b.engine.Hold(false)
		time.Sleep(10 * time.Second)
		for _, c := range []*conn{old, late} {
			want := 1
			if c == old {
				want += before
			}
			if n := c.count(); n != want {
				t.Errorf("%d pushes, want %d: the newest, once", n, want)
			}
		}
		for _, s := range b.engine.Subscriptions(order) {
			if newest := b.reg.Snapshot(order).Version; s.Pushed != newest {
				t.Errorf("pushed %v, want the newest, %v", s.Pushed, newest)
			}
		}
		if n := watching.count(); n == 0 {
			t.Error("the watch has lost what was held back")
		}
		if n := other.count(); n != beforeOther {
			t.Errorf("%d pushes of what has not changed", n-beforeOther)
		}
	})
}

// However often it is held back and let go, the newest arrives.
func TestHoldLosesNothing(t *testing.T) {
	for seed := range uint64(20) {
		run(t, func(b *bench) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			var conns []*conn
			for range 5 {
				c := b.attach(func(c *conn) { c.cost = time.Duration(rnd.IntN(50)) * time.Millisecond })
				conns = append(conns, c)
				c.sub.Subscribe(order, "")
			}
			var wg sync.WaitGroup
			wg.Go(func() {
				for n := range 100 {
					b.engine.Hold(n%2 == 0)
					time.Sleep(time.Duration(rnd.IntN(100)) * time.Millisecond)
				}
			})
			changes := rand.New(rand.NewPCG(seed, 2))
			for range 100 {
				b.change()
				time.Sleep(time.Duration(changes.IntN(100)) * time.Millisecond)
			}
			wg.Wait()
			b.engine.Hold(false)
			time.Sleep(time.Minute)
			synctest.Wait()
			newest := b.reg.Snapshot(order).Version
			for _, s := range b.engine.Subscriptions(order) {
				if s.Pushed != newest {
					t.Errorf("seed %d: pushed %v, want %v", seed, s.Pushed, newest)
				}
			}
			for _, c := range conns {
				c.sub.Close()
			}
		})
	}
}

func TestResults(t *testing.T) {
	run(t, func(b *bench) {
		c := b.attach()
		defer c.sub.Close()
		answer := func(ok bool, after time.Duration) {
			synctest.Wait()
			time.Sleep(after)
			c.sub.Acked(b.engine.ids.Load(), ok)
		}
		c.sub.Subscribe(order, "")
		time.Sleep(b.engine.opts.MinWindow)
		answer(true, 100*time.Millisecond)
		b.change()
		answer(false, 300*time.Millisecond)
		want := Results{Succeeded: 1, Failed: 1, Mean: 200 * time.Millisecond, Longest: 300 * time.Millisecond}
		if is := b.engine.Results(false); is != want {
			t.Errorf("%+v, want %+v", is, want)
		}
		if is := b.engine.Results(true); is != want {
			t.Errorf("asked again: %+v, want %+v", is, want)
		}
		if is := b.engine.Results(false); is != (Results{}) {
			t.Errorf("after a reset: %+v", is)
		}
		time.Sleep(5 * time.Minute) // what was refused is sent again, and never answered
		if is := b.engine.Results(false); is.Failed == 0 || is.Mean != 0 {
			t.Errorf("without an answer: %+v", is)
		}
	})
}
