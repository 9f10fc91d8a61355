package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/starling-registry/starling/pkg/nacos"
)

func instances(t *testing.T, c *Client, service string, opts ...QueryOption) string {
	t.Helper()
	list, err := c.Instances(t.Context(), service, opts...)
	if err != nil {
		t.Errorf("instances of %s: %v", service, err)
	}
	return ips(list)
}

// The first read subscribes, later ones touch no network, a direct query
// does each time and leaves nothing behind, and a list of an operator comes
// before both: S000-2, S000-5, S000-6, S000-8.
//
// Row S003-9.
func TestReadOrder(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		f.set(order, inst("1.1.1.1"))
		c := s.client(Config{})
		ready(t, c)

		for range 2 {
			if got := instances(t, c, "order", NoSubscribe()); got != "1.1.1.1" {
				t.Errorf("a direct query: %q", got)
			}
		}
		if n, m := f.count(nacos.TypeServiceQueryRequest, ""), f.count(nacos.TypeSubscribeServiceRequest, ""); n != 2 || m != 0 {
			t.Errorf("%d queries and %d subscriptions", n, m)
		}
		for range 10_000 {
			if got := instances(t, c, "order"); got != "1.1.1.1" {
				t.Fatalf("a read: %q", got)
			}
		}
		if n, m := f.count(nacos.TypeServiceQueryRequest, ""), f.count(nacos.TypeSubscribeServiceRequest, ""); n != 2 || m != 1 {
			t.Errorf("%d queries and %d subscriptions", n, m)
		}

		over := map[ServiceID]stored{{DefaultGroup, "order"}: {instances: []Instance{{IP: "9.9.9.9", Port: 1, Cluster: "x", Metadata: map[string]string{}}}}, {DefaultGroup, "none"}: {}}
		c.setFailover(true, over)
		if got := instances(t, c, "order"); got != "9.9.9.9" {
			t.Errorf("with failover: %q", got)
		}
		if got := instances(t, c, "order", NoSubscribe()); got != "9.9.9.9" {
			t.Errorf("a direct query with failover: %q", got)
		}
		if got := instances(t, c, "order", Clusters("DEFAULT")); got != "1.1.1.1" {
			t.Errorf("failover has nothing in the cluster (Q-1): %q", got)
		}
		if snap, err := c.Snapshot(t.Context(), "order"); err != nil || snap.Source != FromFailover {
			t.Error(snap, err)
		}
		c.setFailover(false, nil)
		if snap, err := c.Snapshot(t.Context(), "order"); err != nil || snap.Source != FromServer || ips(snap.Instances) != "1.1.1.1" {
			t.Error(snap, err)
		}
	})
}

// All first readers share one request, and the polls after it (S000-12); one
// that gives up does not take the others with it.
func TestFirstReadersShare(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		f.set(order, inst("1.1.1.1"))
		f.setScript(func(r *remote, typ string, _ []byte) *nacos.Payload {
			if typ == nacos.TypeSubscribeServiceRequest {
				time.Sleep(time.Second)
			}
			return nil
		})
		c := s.client(Config{})
		ready(t, c)
		var wg sync.WaitGroup
		for n := range 100 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				if n == 0 {
					cancel()
				}
				list, err := c.Instances(ctx, "order")
				if n == 0 {
					if !errors.Is(err, context.Canceled) {
						t.Errorf("cancelled: %v", err)
					}
				} else if err != nil || ips(list) != "1.1.1.1" {
					t.Error(ips(list), err)
				}
			})
		}
		wg.Wait()
		if n := f.count(nacos.TypeSubscribeServiceRequest, ""); n != 1 {
			t.Errorf("%d subscriptions", n)
		}
		time.Sleep(73 * time.Second)
		if n := f.count(nacos.TypeServiceQueryRequest, ""); n != 1 {
			t.Errorf("%d polls in one interval (P-2)", n)
		}
	})
}

// A first read waits for a connection, and no longer than it was told.
func TestColdRead(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		c := s.client(Config{Addrs: []string{"10.0.0.1"}})
		start := time.Now()
		_, err := c.Instances(t.Context(), "order")
		if took := time.Since(start); !errors.Is(err, ErrNotConnected) || !errors.Is(err, context.DeadlineExceeded) || took != 3*time.Second {
			t.Errorf("%v after %v", err, took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := c.Instances(ctx, "order"); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		time.AfterFunc(time.Second, func() { s.server("10.0.0.1").set(order, inst("1.1.1.1")) })
		if got := instances(t, c, "order"); got != "1.1.1.1" {
			t.Errorf("%q", got)
		}
		for _, err := range []error{
			func() error { _, err := c.Instances(t.Context(), " "); return err }(),
			func() error { _, err := c.Pick(t.Context(), "a b"); return err }(),
			func() error { _, err := c.Select(t.Context(), "a", Group("a b")); return err }(),
			func() error { _, err := c.Snapshot(t.Context(), "g@@a", Group("h")); return err }(),
			func() error { _, err := c.Instances(t.Context(), "a", Clusters("a,b")); return err }(),
			func() error { _, _, err := c.Services(t.Context(), 0, 10); return err }(),
			func() error { _, err := c.Watch(t.Context(), "a", NoSubscribe()); return err }(),
		} {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("nonsense: %v", err)
			}
		}
	})
}

// While the servers are away reads are served, and say how old they are.
//
// Row S002-6.
func TestWarmReadDuringAnOutage(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		f.set(order, inst("1.1.1.1"))
		c := s.client(Config{})
		ready(t, c)
		instances(t, c, "order")
		at := time.Now()
		f.kill()
		settle()
		time.Sleep(time.Hour)
		snap, err := c.Snapshot(t.Context(), "order")
		if err != nil || snap.Source != FromStale || !snap.AsOf.Equal(at) || ips(snap.Instances) != "1.1.1.1" {
			t.Errorf("%+v, %v", snap, err)
		}
		if c.State() != Degraded {
			t.Error(c.State())
		}
		f = s.server("10.0.0.1")
		f.set(order, inst("2.2.2.2"))
		time.Sleep(7 * time.Second) // back-off of at most 5 s ±20 %
		snap, err = c.Snapshot(t.Context(), "order")
		if err != nil || snap.Source != FromServer || ips(snap.Instances) != "2.2.2.2" {
			t.Errorf("%+v, %v", snap, err)
		}
	})
}

// A list from the disk is no subscription: the first read makes one (Q-4, G-7),
// and takes what is there if that fails.
//
// Rows S000-5, S002-6.
func TestReadFromDisk(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		dir := t.TempDir()
		f := s.server("10.0.0.1")
		f.set(order, inst("1.1.1.1"))
		c := s.client(Config{CacheDir: dir})
		ready(t, c)
		instances(t, c, "order")
		c.Close()

		f.set(order, inst("2.2.2.2"))
		c = s.client(Config{CacheDir: dir, LoadCacheAtStart: true})
		ready(t, c)
		if got := instances(t, c, "order"); got != "2.2.2.2" {
			t.Errorf("%q", got)
		}
		if n := f.count(nacos.TypeSubscribeServiceRequest, ""); n != 2 {
			t.Errorf("%d subscriptions", n)
		}
		c.Close()
		f.kill()

		c = s.client(Config{CacheDir: dir, LoadCacheAtStart: true, Addrs: []string{"10.0.0.1"}})
		start := time.Now()
		snap, err := c.Snapshot(t.Context(), "order")
		if err != nil || snap.Source != FromDisk || ips(snap.Instances) != "2.2.2.2" || snap.Instances[0].Weight != 1 {
			t.Errorf("%+v, %v", snap, err)
		}
		if took := time.Since(start); took > diskWait {
			t.Errorf("after %v", took)
		}
		w, err := c.Watch(t.Context(), "order")
		if err != nil {
			t.Fatal(err)
		}
		wantNone(t, w, time.Minute) // no server has confirmed it (L-2)
		w2, err := c.Watch(t.Context(), "order", StaleOK(0))
		if err != nil {
			t.Fatal(err)
		}
		wantEvent(t, w2, "first [2.2.2.2] +[2.2.2.2] -[] ~[]")
		s.server("10.0.0.1").set(order, inst("2.2.2.2"))
		if ev := next(t, w, time.Minute); told(ev) != "first [2.2.2.2] +[2.2.2.2] -[] ~[]" || ev.Snapshot.Source != FromServer {
			t.Error(told(ev), ev.Snapshot.Source) // once a server has, also of an equal list
		}
		wantNone(t, w2, time.Minute)
	})
}

// Select is what may be used, whatever its cause (S000-1, S000-7).
func TestSelect(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		var hosts []host
		for n := range 8 {
			hosts = append(hosts, inst(fmt.Sprint("1.1.1.", n), func(h *host) {
				h.Healthy, h.Enabled = n&1 == 0, n&2 == 0
				if n&4 != 0 {
					h.Weight = 0
				}
			}))
		}
		f.set(order, hosts...)
		c := s.client(Config{})
		check := func(want string, opts ...QueryOption) {
			t.Helper()
			list, err := c.Select(t.Context(), "order", opts...)
			if err != nil || ips(list) != want {
				t.Errorf("%q, %v; want %q", ips(list), err, want)
			}
		}
		check("1.1.1.0")
		check("1.1.1.0 1.1.1.1", AllHealth()) // G-15
		check("1.1.1.1", UnhealthyOnly())     // G-15
		check("", Where(func(i Instance) bool { return i.IP == "1.1.1.1" }))
		if list, err := c.Select(t.Context(), "nobody"); err != nil || list == nil || len(list) != 0 {
			t.Error(list, err) // G-14
		}
		if _, err := c.Pick(t.Context(), "nobody"); !errors.Is(err, ErrNoInstances) {
			t.Error(err)
		}
	})
}

// Different clusters are different views of one subscription to all of them
// and no read changes what another one sees (Q-6a, G-17).
//
// Row S000-4.
func TestClustersAndCopies(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		in := func(cluster, k, v string) func(*host) {
			return func(h *host) { h.ClusterName = cluster; h.Metadata = nacos.Metadata{k: v, "zone": "z"} }
		}
		f.set(order, inst("1.1.1.1", in("a", "v", "1")), inst("1.1.1.2", in("b", "v", "2")), inst("1.1.1.3", in("c", "w", "1")))
		c := s.client(Config{})
		for range 2 {
			check := func(want string, opts ...QueryOption) {
				t.Helper()
				if got := instances(t, c, "order", opts...); got != want {
					t.Errorf("%q, want %q", got, want)
				}
			}
			check("1.1.1.1", Clusters("a"))
			check("1.1.1.1 1.1.1.2", Clusters("b", "a"))
			check("1.1.1.1 1.1.1.2 1.1.1.3")
			check("1.1.1.1", MetaAll(map[string]string{"v": "1", "zone": "z"}))
			check("1.1.1.1 1.1.1.3", MetaAny(map[string]string{"v": "1", "w": "1"}))
			check("", MetaAny(map[string]string{"x": "1", "y": "1"}))
			list, _ := c.Instances(t.Context(), "order")
			list[0].Metadata["v"], list[0].IP = "changed", "changed"
			one, _ := c.Pick(t.Context(), "order")
			one.Metadata["v"] = "changed"
		}
		reqs := f.requests(nacos.TypeSubscribeServiceRequest, "")
		if len(reqs) != 1 || f.count(nacos.TypeSubscribeServiceRequest, `"clusters":""`) != 1 {
			t.Errorf("%+v", reqs)
		}
		if got := instances(t, c, "order", NoSubscribe(), Clusters("b", "a", "b")); got == "" || f.count(nacos.TypeServiceQueryRequest, `"cluster":"a,b"`) != 1 {
			t.Error(got, f.requests(nacos.TypeServiceQueryRequest, ""))
		}
	})
}

// The probability of an instance is its share of the weights, whatever they
// are (G-16).
func TestPick(t *testing.T) {
	f := func(weights []float64, want ...float64) {
		t.Helper()
		var list []Instance
		for _, w := range weights {
			list = append(list, Instance{Healthy: true, Enabled: true, Weight: w})
		}
		var p picks
		p.fill(list, new(query).usable)
		got := make([]float64, len(weights))
		const steps = 100_000
		for n := range steps {
			if i := p.pick((float64(n) + 0.5) / steps); i >= 0 {
				got[i] += 1.0 / steps
			}
		}
		for i := range want {
			if math.Abs(got[i]-want[i]) > 1e-4 {
				t.Errorf("%v: %v, want %v", weights, got, want)
				break
			}
		}
		if i := p.pick(math.Nextafter(1, 0)); len(p.index) > 0 && i != p.index[len(p.index)-1] {
			t.Errorf("%v: the last is %d", weights, i)
		}
	}
	f([]float64{1, 3}, 0.25, 0.75)
	f([]float64{0.1, 0.3}, 0.25, 0.75)
	f([]float64{0, 1, math.NaN(), -1}, 0, 1, 0, 0)
	f([]float64{math.Inf(1), 10000}, 0.5, 0.5)
	f([]float64{0, 0}, 0, 0)
	f(nil)
}

// A service that is only read stays subscribed as long as it is read.
//
// Row S000-14.
func TestIdle(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		f.set(order, inst("1.1.1.1"))
		c := s.client(Config{IdleTTL: 10 * time.Minute})
		instances(t, c, "order")
		for range 6 {
			time.Sleep(9 * time.Minute)
			instances(t, c, "order")
		}
		r := f.only()
		if !r.subscribed(order) {
			t.Error("not subscribed while it is read")
		}
		time.Sleep(16 * time.Minute)
		if r.subscribed(order) {
			t.Error("subscribed though nobody reads")
		}
		polls := f.count(nacos.TypeServiceQueryRequest, "")
		f.set(order, inst("2.2.2.2"))
		time.Sleep(time.Hour)
		if n := f.count(nacos.TypeServiceQueryRequest, ""); n != polls {
			t.Errorf("%d polls of what is not subscribed to (P-11)", n-polls)
		}
		if got := instances(t, c, "order"); got != "2.2.2.2" {
			t.Errorf("read again: %q", got)
		}
	})
}

func TestServicesPage(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		c := s.client(Config{})
		names, total, err := c.Services(t.Context(), 2, 5, Group("g"))
		if err != nil || fmt.Sprint(names) != "[a b]" || total != 2 {
			t.Error(names, total, err)
		}
		if f.count(nacos.TypeServiceListRequest, `"groupName":"g"`) != 1 || f.count(nacos.TypeServiceListRequest, `"pageNo":2,"pageSize":5`) != 1 {
			t.Error(f.requests(nacos.TypeServiceListRequest, ""))
		}
	})
}

// A service without a group is of DEFAULT_GROUP (S000-1), and "group@@name" has one.
func TestIdentify(t *testing.T) {
	f := func(service, group, want string) {
		t.Helper()
		id, err := identify(service, group)
		if got := id.String(); err == nil && got != want || err != nil && want != "" {
			t.Errorf("%q in %q: %q, %v", service, group, got, err)
		}
	}
	f("order", "", "DEFAULT_GROUP@@order")
	f("order", "g", "g@@order")
	f("g@@order", "", "g@@order")
	f("g@@order", "g", "g@@order")
	f("g@@order", "h", "")
	f("", "g", "")
	f("@@order", "", "")
	f("g@@", "", "")
	f("a b", "", "")
}

// Reads that are answered by the cache allocate what they hand out.
func TestReadAllocations(t *testing.T) {
	c := &Client{}
	c.ctx, c.end = context.WithCancel(t.Context())
	defer c.end()
	c.link = newLink(c)
	e := c.services.add(ServiceID{DefaultGroup, "order"}, func() *svc { return &svc{} })
	e.list.Store(&list{instances: []Instance{{IP: "1.1.1.1", Port: 1, Weight: 1, Healthy: true, Enabled: true, Metadata: map[string]string{"a": "b"}}}, picks: &picks{}})
	e.wanted.Store(true)
	c.services.each(func(*svc) {})
	f := func(what string, most float64, read func()) {
		t.Helper()
		if got := testing.AllocsPerRun(100, read); got > most {
			t.Errorf("%s: %v allocations", what, got)
		}
	}
	ctx := t.Context()
	f("View", 0, func() { c.View(ctx, "order", func(Snapshot) {}) })
	f("Pick", 2, func() { c.Pick(ctx, "order") })           // the metadata
	f("Instances", 3, func() { c.Instances(ctx, "order") }) // the slice, the metadata
}

// A list of an operator counts only with an instance in it (S000-3, Q-1, F-4):
// the file of a service without any hides nothing.
func TestFailoverWithoutHosts(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		dir := t.TempDir()
		write := func(name, content string) {
			t.Helper()
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		f := s.server("10.0.0.1")
		f.set(order, inst("1.1.1.1"))
		f.set("DEFAULT_GROUP@@other", inst("1.1.1.2"))
		c := s.client(Config{FailoverDir: dir})
		w := watch(t, c, "order")
		wantEvent(t, w, "first [1.1.1.1] +[1.1.1.1] -[] ~[]")
		write(orderFile, `{"name":"order","hosts":[]}`)
		write("DEFAULT_GROUP%40%40other", orderAt("9.9.9.9"))
		write(failoverSwitch, "1")
		wantNone(t, w, 2*failoverEvery)
		if got := instances(t, c, "other"); got != "9.9.9.9" {
			t.Errorf("failover is not on: %q", got)
		}
		check := func() {
			t.Helper()
			if snap, err := c.Snapshot(t.Context(), "order"); err != nil || snap.Source != FromServer || ips(snap.Instances) != "1.1.1.1" {
				t.Errorf("%+v, %v", snap, err)
			}
		}
		check()
		c.setFailover(true, map[ServiceID]stored{orderID: {}}) // whatever the reader of files makes of them
		check()
	})
}

// Who has been told that an instance is gone does not get it any more (S001-7).
func TestPickFollowsEvents(t *testing.T) {
	run(t, func(t *testing.T, s *scene) {
		f := s.server("10.0.0.1")
		f.set(order, inst("1.1.1.1"), inst("1.1.1.2"), inst("1.1.1.3"))
		c := s.client(Config{})
		w := watch(t, c, "order")
		next(t, w, time.Second)
		picked := func() map[string]bool {
			t.Helper()
			got := map[string]bool{}
			for range 1000 {
				one, err := c.Pick(t.Context(), "order")
				if err != nil {
					t.Fatal(err)
				}
				got[one.IP] = true
			}
			return got
		}
		if got := picked(); len(got) != 3 {
			t.Errorf("of three: %v", got)
		}
		f.set(order, inst("1.1.1.1"), inst("1.1.1.2", func(h *host) { h.Healthy = false }))
		wantEvent(t, w, "[1.1.1.1 1.1.1.2] +[] -[1.1.1.3] ~[1.1.1.2]")
		if got := picked(); len(got) != 1 || !got["1.1.1.1"] {
			t.Errorf("of one that is healthy: %v", got)
		}
	})
}
