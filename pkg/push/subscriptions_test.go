package push

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/starling-registry/starling/pkg/registry"
)

// Since when a client is behind, whatever the reason.
func TestBehindSince(t *testing.T) {
	run(t, func(b *bench) {
		c := b.attach()
		defer c.sub.Close()
		c.sub.Subscribe(order, "a,b")
		behind := func(what string, d time.Duration) {
			t.Helper()
			synctest.Wait()
			s := b.engine.Subscriptions(order)[0]
			if got := s.BehindFor(time.Now()); got != d || d == 0 && !s.Behind.IsZero() {
				t.Errorf("%s: behind for %v, want %v", what, got, d)
			}
		}
		ack := func(ok bool) { synctest.Wait(); c.sub.Acked(b.engine.ids.Load(), ok) }
		behind("before the first push", 0)
		time.Sleep(b.engine.opts.MinWindow + 3*time.Second)
		behind("the first push is not acknowledged", 3*time.Second)
		ack(true)
		behind("it is", 0)
		s := b.engine.Subscriptions(order)[0]
		if d := time.Since(time.UnixMilli(s.AckedTime)); d < 3*time.Second || d > 4*time.Second {
			t.Errorf("acknowledged a list of %v ago", d)
		}
		if s.Subscriber != "c" || s.Conn != Conn(c) || s.Service != order || s.Clusters != "a,b" {
			t.Errorf("%+v", s)
		}

		b.client.Register(order, at("a", 1), false)
		time.Sleep(5 * time.Second)
		b.client.Register(order, at("a", 2), false)
		time.Sleep(5 * time.Second)
		behind("the older of two counts", 10*time.Second)
		ack(false)
		behind("refused", 10*time.Second)
		time.Sleep(2 * time.Second)
		ack(false)
		time.Sleep(time.Minute)
		behind("refused again", 72*time.Second)
		b.client.Register(order, at("a", 3), false)
		ack(true)
		behind("it has taken something newer", 0)

		// Who does not read is behind since the change.
		c.gate = make(chan struct{})
		time.Sleep(5 * time.Second)
		b.client.Register(order, at("a", 4), false)
		synctest.Wait()
		ack(true) // of a push that is still under way
		b.client.Register(order, at("a", 5), false)
		time.Sleep(7 * time.Second)
		behind("its sender is stuck", 7*time.Second)
		close(c.gate)
		ack(true)
		behind("it reads again", 0)
	})
}

func TestFollowed(t *testing.T) {
	run(t, func(b *bench) {
		c := b.attach()
		other := registry.ServiceKey{Namespace: "other", Group: "g", Name: "order"}
		if got := b.engine.Followed("public"); len(got) != 0 {
			t.Errorf("%v", got)
		}
		c.sub.Subscribe(order, "")
		c.sub.Subscribe(other, "")
		if got := b.engine.Followed("public"); len(got) != 1 || got[0] != order {
			t.Errorf("%v", got)
		}
		if got := c.sub.Subscriptions(); len(got) != 2 {
			t.Errorf("%+v", got)
		}
		// A topic outlives its last subscriber by a window; nobody follows it.
		time.Sleep(b.engine.opts.MinWindow)
		b.change()
		c.sub.Unsubscribe(order)
		if got := b.engine.Followed("public"); len(got) != 0 {
			t.Errorf("%v", got)
		}
		c.sub.Close()
		if got := len(b.engine.Followed("other")) + len(b.engine.Subscriptions(other)) + len(c.sub.Subscriptions()); got != 0 {
			t.Errorf("%d are left", got)
		}
	})
}
