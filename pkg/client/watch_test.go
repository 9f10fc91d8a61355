package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/starling-registry/starling/pkg/nacos"
)

func watch(t *testing.T, c *Client, service string, opts ...QueryOption) *Watcher {
	t.Helper()
	w, err := c.Watch(t.Context(), service, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// A watcher is told once first, be it of nobody, and then what differs (L-2, L-6,
// D-1 … D-5); also a second one of the same service (G-11).
//
// Rows S000-22, S000-24, S000-28, S001-1.
func TestWatch(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		c := s.client(Config{})
		w := watch(t, c, "order")
		wantEvent(t, w, "first [] +[] -[] ~[]")
		wantNone(t, w, time.Second)
		f.set(order, inst("1.1.1.1"), inst("1.1.1.2"))
		wantEvent(t, w, "[1.1.1.1 1.1.1.2] +[1.1.1.1 1.1.1.2] -[] ~[]")
		f.set(order, inst("1.1.1.2"), inst("1.1.1.1")) // the order is not theirs
		wantNone(t, w, time.Second)

		w2 := watch(t, c, "order")
		wantEvent(t, w2, "first [1.1.1.1 1.1.1.2] +[1.1.1.1 1.1.1.2] -[] ~[]")
		for _, change := range []func(*host){
			func(h *host) { h.Weight = 2 },
			func(h *host) { h.Healthy = false },
			func(h *host) { h.Enabled = false },
			func(h *host) { h.Ephemeral = false },
			func(h *host) { h.InstanceID = "x" },
			func(h *host) { h.Metadata = nacos.Metadata{"a": "b"} },
			func(h *host) { h.Metadata = nacos.Metadata{"a": "c"} },
		} {
			f.set(order, inst("1.1.1.1"), inst("1.1.1.2", change))
			for _, w := range []*Watcher{w, w2} {
				wantEvent(t, w, "[1.1.1.1 1.1.1.2] +[] -[] ~[1.1.1.2]")
			}
		}
		f.set(order, inst("1.1.1.3"), inst("1.1.1.1", func(h *host) { h.ClusterName = "other" }))
		wantEvent(t, w, "[1.1.1.3 1.1.1.1] +[1.1.1.3 1.1.1.1] -[1.1.1.1 1.1.1.2] ~[]")
		f.set(order, inst("1.1.1.3"), inst("1.1.1.3", func(h *host) { h.Weight = 5 })) // D-1: the last wins
		if ev := next(t, w, time.Second); told(ev) != "[1.1.1.3] +[] -[1.1.1.1] ~[1.1.1.3]" || ev.Modified[0].Weight != 5 {
			t.Error(told(ev))
		}
		f.set(order)
		wantEvent(t, w, "[] +[] -[1.1.1.3] ~[]") // G-9

		if n := f.count(nacos.TypeSubscribeServiceRequest, ""); n != 1 {
			t.Errorf("%d subscriptions", n)
		}
		w.Close()
		w.Close()
		if _, err := w.Next(t.Context()); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		if settle(); f.count(nacos.TypeSubscribeServiceRequest, `"subscribe":false`) != 0 {
			t.Error("unsubscribed though somebody watches")
		}
		w2.Close()
		if settle(); f.count(nacos.TypeSubscribeServiceRequest, `"subscribe":false`) != 1 {
			t.Error("the last watcher has gone (L-9, S000-14)")
		}
		f.set(order, inst("1.1.1.9"))
		time.Sleep(time.Hour)
		if n := f.count(nacos.TypeServiceQueryRequest, ""); n != 0 {
			t.Errorf("%d polls (P-11)", n)
		}
		f.only()
	})
}

// The list that a watcher first gets of a service that is not subscribed any more
// must not be an old one only: the new one follows.
func TestWatchAgain(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		f.set(order, inst("1.1.1.1"))
		c := s.client(Config{})
		w := watch(t, c, "order")
		wantEvent(t, w, "first [1.1.1.1] +[1.1.1.1] -[] ~[]")
		w.Close()
		settle()
		f.set(order, inst("1.1.1.2"))
		w = watch(t, c, "order")
		ev := next(t, w, time.Second)
		for ips(ev.Snapshot.Instances) != "1.1.1.2" {
			ev = next(t, w, time.Second)
		}
	})
}

// What the query leaves out is no event; who enters it is added, who leaves it is
// removed (L-7).
func TestWatchFiltered(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		c := s.client(Config{})
		in := func(cluster string) func(*host) { return func(h *host) { h.ClusterName = cluster } }
		a := watch(t, c, "order", Clusters("a"))
		b := watch(t, c, "order", Where(func(i Instance) bool { return i.Weight > 1 }))
		other := watch(t, c, "order", Group("other")) // S000-31
		for _, w := range []*Watcher{a, b, other} {
			wantEvent(t, w, "first [] +[] -[] ~[]")
		}
		f.set(order, inst("1.1.1.1", in("a")), inst("1.1.1.2", in("b")))
		wantEvent(t, a, "[1.1.1.1] +[1.1.1.1] -[] ~[]")
		wantNone(t, b, time.Second)
		f.set(order, inst("1.1.1.1", in("a")), inst("1.1.1.2", in("b"), func(h *host) { h.Weight = 2 }))
		wantEvent(t, b, "[1.1.1.2] +[1.1.1.2] -[] ~[]")
		f.set(order, inst("1.1.1.1", in("a"), func(h *host) { h.Weight = 3 }), inst("1.1.1.2", in("b")))
		wantEvent(t, b, "[1.1.1.1] +[1.1.1.1] -[1.1.1.2] ~[]")
		wantEvent(t, a, "[1.1.1.1] +[] -[] ~[1.1.1.1]")
		wantNone(t, other, time.Second)
		if n := f.count(nacos.TypeSubscribeServiceRequest, `"clusters":""`); n != 2 {
			t.Errorf("%d subscriptions for two services (Q-6, S000-4)", n)
		}
	})
}

// A slow watcher gets fewer events, and the difference from what it knows (L-5);
// a burst is not more events than the slow one can take (S000-23).
//
// Row S002-7.
func TestSlowWatcher(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		c := s.client(Config{})
		w, ch := watch(t, c, "order"), watch(t, c, "order").C()
		wantEvent(t, w, "first [] +[] -[] ~[]")
		if ev := <-ch; told(ev) != "first [] +[] -[] ~[]" {
			t.Error(told(ev))
		}
		for n := range 100 {
			f.set(order, inst(fmt.Sprint("1.1.1.", n)))
			settle()
		}
		f.set(order, inst("2.2.2.1"), inst("2.2.2.2"))
		settle()
		want := "[2.2.2.1 2.2.2.2] +[2.2.2.1 2.2.2.2] -[] ~[]"
		wantEvent(t, w, want)
		if ev := <-ch; told(ev) != want {
			t.Error(told(ev))
		}
		f.set(order, inst("3.3.3.3"))
		settle()
		f.set(order, inst("2.2.2.1"), inst("2.2.2.2")) // as it was
		settle()
		wantNone(t, w, time.Second)
		select {
		case ev := <-ch:
			t.Error(told(ev))
		default:
		}
		c.Close()
		if _, ok := <-ch; ok {
			t.Error("the channel is open after Close")
		}
	})
}

// A function that blocks delays neither the acknowledgement nor another watcher
// (L-1, L-3, G-21), and one that panics is called again (L-4).
//
// Rows S000-24, S000-32.
func TestCallbacks(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		c := s.client(Config{})
		block := make(chan struct{})
		var blocked, panicked, fine atomic.Int32
		for _, fn := range []func(Event){
			func(Event) { blocked.Add(1); <-block },
			func(Event) { panicked.Add(1); panic("on purpose") },
			func(Event) { fine.Add(1) },
		} {
			if _, err := c.WatchFunc(t.Context(), "order", fn); err != nil {
				t.Fatal(err)
			}
		}
		stop, err := c.WatchFunc(t.Context(), "order", func(Event) { t.Error("called after stop") }, Clusters("never"))
		if err != nil {
			t.Fatal(err)
		}
		stop()
		ready(t, c)
		settle()
		r := f.only()
		for n := range 3 {
			before := time.Now()
			f.set(order, inst(fmt.Sprint("1.1.1.", n)))
			settle()
			f.mu.Lock()
			if len(r.acks) != n+1 || r.acks[n].at.Sub(before) > 50*time.Millisecond || !strings.Contains(r.acks[n].body, fmt.Sprintf(`"requestId":"%s-%d"`, r.id, n+1)) {
				t.Errorf("acks: %+v", r.acks) // N-17, S000-25
			}
			f.mu.Unlock()
		}
		if blocked.Load() != 1 || panicked.Load() != 4 || fine.Load() != 4 {
			t.Errorf("called %d, %d, %d times", blocked.Load(), panicked.Load(), fine.Load())
		}
		if n := strings.Count(s.log(), "has panicked"); n != 4 {
			t.Errorf("%d panics logged", n)
		}
		start := time.Now()
		if err := c.Close(); err == nil || time.Since(start) != 3*time.Second {
			t.Errorf("Close with a function that does not return: %v after %v", err, time.Since(start))
		}
		close(block)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if blocked.Load() != 1 {
			t.Error("called after Close")
		}
	})
}

// A filter that panics harms nobody else, and is not asked for ever.
func TestFilterPanics(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		f.set(order, inst("1.1.1.1"))
		c := s.client(Config{})
		bad := Where(func(Instance) bool { panic("on purpose") })
		if _, err := c.WatchFunc(t.Context(), "order", func(Event) { t.Error("told") }, bad); err != nil {
			t.Fatal(err)
		}
		ch := watch(t, c, "order", bad).C()
		if _, ok := <-ch; ok {
			t.Error("told")
		}
		w := watch(t, c, "order")
		next(t, w, time.Second)
		f.set(order, inst("1.1.1.2"))
		wantEvent(t, w, "[1.1.1.2] +[1.1.1.2] -[1.1.1.1] ~[]")
		if n := strings.Count(s.log(), "has panicked"); n > 10 {
			t.Errorf("%d panics", n)
		}
	})
}

// An enormous list is a list.
func TestEnormousList(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		c := s.client(Config{})
		w := watch(t, c, "order")
		next(t, w, time.Second)
		var hosts []host
		for n := range 30_000 {
			hosts = append(hosts, inst(fmt.Sprintf("10.%d.%d.%d", n>>16, n>>8&255, n&255)))
		}
		f.set(order, hosts...)
		if ev := next(t, w, 10*time.Second); len(ev.Added) != len(hosts) {
			t.Errorf("%d added", len(ev.Added))
		}
		hosts[7].Weight = 3
		f.set(order, hosts...)
		if ev := next(t, w, 10*time.Second); len(ev.Modified) != 1 || len(ev.Added) != 0 {
			t.Errorf("%d modified", len(ev.Modified))
		}
	})
}

// Watchers of no use must cost nothing: no goroutine waits for events.
func TestWatchersNeedNoGoroutines(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		s.server("10.0.0.1")
		c := s.client(Config{})
		ready(t, c)
		settle()
		before := runtime.NumGoroutine()
		for n := range 100 {
			if _, err := c.WatchFunc(t.Context(), fmt.Sprint("s", n), func(Event) {}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(10 * time.Second)
		settle()
		if n := runtime.NumGoroutine(); n > before+2 {
			t.Errorf("%d goroutines for 100 watchers", n-before)
		}
	})
}

// The end of the context is that of the watcher.
func TestWatchContext(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		c := s.client(Config{})
		ctx, cancel := context.WithCancel(t.Context())
		w, err := c.Watch(ctx, "order")
		if err != nil {
			t.Fatal(err)
		}
		ch := w.C()
		<-ch
		cancel()
		if _, ok := <-ch; ok {
			t.Error("an event after the end")
		}
		if f.only().subscribed(order) {
			t.Error("subscribed after the end")
		}
		if w, err := c.Watch(ctx, "order"); err == nil {
			if _, err := w.Next(t.Context()); !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		}
	})
}

// Who may not subscribe hears of it, and of the list once it may.
func TestWatchIsRefused(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		f.setScript(func(r *remote, typ string, _ []byte) *nacos.Payload {
			if typ == nacos.TypeSubscribeServiceRequest {
				return refuse("SubscribeServiceResponse", 403)
			}
			return nil
		})
		c := s.client(Config{})
		w := watch(t, c, "order")
		if _, err := w.Next(t.Context()); !errors.Is(err, ErrUnauthorized) {
			t.Error(err)
		}
		if _, err := c.Instances(t.Context(), "order"); !errors.Is(err, ErrUnauthorized) {
			t.Error(err)
		}
		f.setScript(nil)
		ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second) // about 30 s later
		defer cancel()
		ev, err := w.Next(ctx)
		if errors.Is(err, ErrUnauthorized) { // of the read
			ev, err = w.Next(ctx)
		}
		if err != nil || !ev.First {
			t.Error(told(ev), err)
		}
		if s.dials != 1 {
			t.Errorf("%d connections because of a refusal (G-25)", s.dials)
		}
	})
}

// Lists of operators are events like others, and hide those of the server while
// they count (F-4, L-10).
//
// Row S000-29.
func TestWatchFailover(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		f.set(order, inst("1.1.1.1"))
		c := s.client(Config{})
		w := watch(t, c, "order")
		wantEvent(t, w, "first [1.1.1.1] +[1.1.1.1] -[] ~[]")
		over := func(ip string) map[ServiceID]stored {
			return map[ServiceID]stored{{DefaultGroup, "order"}: {instances: []Instance{{IP: ip, Port: 80, Cluster: DefaultCluster}}}}
		}
		c.setFailover(true, over("9.9.9.9"))
		if ev := next(t, w, time.Second); told(ev) != "[9.9.9.9] +[9.9.9.9] -[1.1.1.1] ~[]" || ev.Snapshot.Source != FromFailover {
			t.Error(told(ev), ev.Snapshot.Source)
		}
		f.set(order, inst("1.1.1.2"))
		wantNone(t, w, time.Second)
		c.setFailover(true, over("9.9.9.8"))
		wantEvent(t, w, "[9.9.9.8] +[9.9.9.8] -[9.9.9.9] ~[]")
		c.setFailover(false, nil)
		wantEvent(t, w, "[1.1.1.2] +[1.1.1.2] -[9.9.9.8] ~[]")
	})
}

// A file is written for each change and for nothing else, also while lists of an
// operator hide it from watchers (S000-29, C-3, C-7, F-4).
func TestFilesFollowChanges(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		dir := t.TempDir()
		path := filepath.Join(dir, "naming", "public", orderFile)
		written := func() string { // since the last look
			t.Helper()
			time.Sleep(time.Second)
			settle()
			data, err := os.ReadFile(path)
			if errors.Is(err, fs.ErrNotExist) {
				return ""
			}
			if err := errors.Join(err, os.Remove(path)); err != nil {
				t.Fatal(err)
			}
			l, err := decodeList(data)
			if err != nil {
				t.Fatal(err)
			}
			return ips(l.instances)
		}
		check := func(what, want string) {
			t.Helper()
			if got := written(); got != want {
				t.Errorf("%s: the file has %q, want %q", what, got, want)
			}
		}
		f := s.server("10.0.0.1")
		f.set(order, inst("1.1.1.1"))
		c := s.client(Config{CacheDir: dir})
		w := watch(t, c, "order")
		next(t, w, time.Second)
		check("the first list", "1.1.1.1")
		f.set(order, inst("1.1.1.1"))
		check("an equal list", "")
		wantNone(t, w, time.Second)
		f.set(order, inst("1.1.1.2"))
		check("another one", "1.1.1.2")
		next(t, w, time.Second)

		c.setFailover(true, map[ServiceID]stored{orderID: {instances: []Instance{{IP: "9.9.9.9", Port: 80, Cluster: DefaultCluster}}}})
		next(t, w, time.Second)
		check("of an operator", "")
		f.set(order, inst("1.1.1.3"))
		check("behind that of an operator", "1.1.1.3")
		wantNone(t, w, time.Second)
	})
}
