package health

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/starling-registry/starling/pkg/registry"
)

type fixture struct {
	*Beats
	t        testing.TB
	registry *registry.Registry
	metrics  *prometheus.Registry
	pause    atomic.Int64 // the next visible change takes so long
	off      atomic.Bool  // the switch healthCheckEnabled
	stopped  atomic.Int64 // until when this process stands still, nanoseconds since begin; 0: it does not
}

// stall stops the process for so long: whoever looks whether it is awake waits.
func (f *fixture) stall(d time.Duration) { f.stopped.Store(int64(time.Since(begin) + d)) }

func (f *fixture) awake() {
	until := f.stopped.Load()
	if until == 0 {
		return
	}
	time.Sleep(time.Duration(until) - time.Since(begin))
	if f.stopped.CompareAndSwap(until, 0) {
		f.Stalled()
	}
}

// newFixture makes Beats with the default times over a registry of their own.
func newFixture(t testing.TB) *fixture {
	f := &fixture{t: t, metrics: prometheus.NewRegistry()}
	ro := registry.DefaultOptions()
	ro.Changed = func(registry.ServiceKey) {
		if d := f.pause.Swap(0); d > 0 {
			f.stall(time.Duration(d))
			time.Sleep(time.Duration(d))
		}
	}
	f.registry = registry.New(ro)
	o := DefaultOptions()
	o.Registry, o.Logger, o.Metrics, o.Awake = f.registry, zaptest.NewLogger(t), f.metrics, f.awake
	o.Enabled = func() bool { return !f.off.Load() }
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	f.Beats = NewBeats(o)
	return f
}

func (f *fixture) register(k registry.ServiceKey, i *registry.Instance) {
	f.t.Helper()
	if err := f.Register(k, i); err != nil {
		f.t.Fatal(err)
	}
}

// state tells what readers see: "ip:port/cluster" of each instance, with "!"
// if it is unhealthy.
func (f *fixture) state(k registry.ServiceKey) string {
	var out []string
	for _, i := range f.registry.Snapshot(k).Instances {
		s := fmt.Sprintf("%s:%d/%s", i.IP, i.Port, i.Cluster)
		if !i.Healthy {
			s += "!"
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

func (f *fixture) want(k registry.ServiceKey, state string) {
	f.t.Helper()
	if is := f.state(k); is != state {
		f.t.Fatalf("%v after %v: registry shows %q, want %q", k, time.Since(begin), is, state)
	}
}

func (f *fixture) causes(k registry.ServiceKey) string {
	var out []string
	for _, e := range f.registry.History(k) {
		out = append(out, string(e.Cause))
	}
	return strings.Join(out, ", ")
}

// count reads a counter or gauge; labels are values in the order of names.
func (f *fixture) count(name string, labels ...string) float64 {
	f.t.Helper()
	all, err := f.metrics.Gather()
	if err != nil {
		f.t.Fatal(err)
	}
	for _, mf := range all {
		for _, m := range mf.Metric {
			var values []string
			for _, l := range m.Label {
				values = append(values, l.GetValue())
			}
			if mf.GetName() == "starling_health_"+name && strings.Join(values, ",") == strings.Join(labels, ",") {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	f.t.Fatalf("no metric %s%v", name, labels)
	return 0
}

// begin is the start of every bubble.
var begin = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func at(d time.Duration) {
	time.Sleep(time.Until(begin.Add(d)))
	synctest.Wait()
}

func service(name string) registry.ServiceKey {
	return registry.ServiceKey{Namespace: registry.DefaultNamespace, Group: registry.DefaultGroup, Name: name}
}

func instance(port int, md ...string) *registry.Instance {
	m := map[string]string{}
	for i := 0; i < len(md); i += 2 {
		m[md[i]] = md[i+1]
	}
	return &registry.Instance{
		InstanceKey: registry.InstanceKey{IP: "10.0.0.1", Port: port, Cluster: registry.DefaultCluster},
		Weight:      1, Healthy: true, Enabled: true, Metadata: registry.NewMetadata(m),
	}
}

// What answers while its beats may be reaching a node that this one does not hear
// stays healthy; what does not answer goes as ever, once that is known; and when
// the nodes hear each other again, beats have the whole time-out to come.
func TestSignOfLife(t *testing.T) {
	bubble(t, func(f *fixture) {
		k := service("order")
		var cut, known atomic.Bool
		cut.Store(true)
		f.opts.SignOfLife = func(since time.Time, addr string, fresh time.Duration) (bool, bool) {
			if want := begin; !since.Equal(want) || fresh != 10*time.Second {
				t.Errorf("asked about %s since %v, fresh %v; its last beat was at %v", addr, since, fresh, want)
			}
			return cut.Load() && known.Load() && addr == "10.0.0.1:80", !cut.Load() || known.Load()
		}
		f.register(k, instance(80))
		f.register(k, instance(81))
		at(24 * time.Second) // looked at at 20 s: nobody has dialled yet
		f.want(k, "10.0.0.1:80/DEFAULT 10.0.0.1:81/DEFAULT")
		known.Store(true)
		at(26 * time.Second)
		f.want(k, "10.0.0.1:80/DEFAULT 10.0.0.1:81/DEFAULT!")
		at(36 * time.Second)
		f.want(k, "10.0.0.1:80/DEFAULT")
		at(71 * time.Second)
		f.want(k, "10.0.0.1:80/DEFAULT")
		cut.Store(false) // the last answer was at 65 s: 15 s later it is not trusted any more
		at(84 * time.Second)
		f.want(k, "10.0.0.1:80/DEFAULT")
		at(86 * time.Second)
		f.want(k, "10.0.0.1:80/DEFAULT!")
		at(101 * time.Second)
		f.want(k, "")
		if causes := f.causes(k); strings.Count(causes, "beat timeout") != 2 {
			t.Errorf("history: %s", causes)
		}
	})
}

// bubble runs a test in virtual time with the loop running.
func bubble(t *testing.T, test func(f *fixture)) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.Start()
		defer f.Stop()
		test(f)
	})
}

func TestSilence(t *testing.T) {
	// Semantics H8: unhealthy after more than 15 s, gone after more than 30.
	bubble(t, func(f *fixture) {
		k := service("a")
		at(time.Second)
		f.register(k, instance(80))
		at(15 * time.Second)
		f.want(k, "10.0.0.1:80/DEFAULT")
		at(21 * time.Second)
		f.want(k, "10.0.0.1:80/DEFAULT!")
		at(30 * time.Second)
		f.want(k, "10.0.0.1:80/DEFAULT!")
		at(36 * time.Second)
		f.want(k, "")
		if _, known := f.Beat(k, "10.0.0.1", 80); known {
			t.Error("a beat of an instance that went is known")
		}
		if got, want := f.causes(k), "registered, beat missed, beat timeout"; got != want {
			t.Errorf("history: %s, want %s", got, want)
		}
		for name, want := range map[string]float64{"expirations_total,unhealthy": 1, "expirations_total,removed": 1, "beats_total,unknown": 1, "beat_clients": 0, "stalls_total": 0} {
			metric := strings.Split(name, ",")
			if got := f.count(metric[0], metric[1:]...); got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
	})
}

func TestBeatsKeepAlive(t *testing.T) {
	bubble(t, func(f *fixture) {
		k := service("a")
		f.register(k, instance(80))
		version := f.registry.Snapshot(k).Version
		for range 100 {
			time.Sleep(5 * time.Second)
			if i, known := f.Beat(k, "10.0.0.1", 80); !known || i.Port != 80 {
				t.Fatalf("beat answers %v, %v", i, known)
			}
		}
		if v := f.registry.Snapshot(k).Version; v != version {
			t.Errorf("beats made %d new snapshots", v-version)
		}
		if n := f.count("beats_total", "renewed"); n != 100 {
			t.Errorf("%v beats counted, want 100", n)
		}
	})
}

func TestBeatResumes(t *testing.T) {
	bubble(t, func(f *fixture) {
		k := service("a")
		f.register(k, instance(80))
		at(22 * time.Second)
		f.want(k, "10.0.0.1:80/DEFAULT!")
		f.Beat(k, "10.0.0.1", 80)
		f.want(k, "10.0.0.1:80/DEFAULT") // at once
		at(41 * time.Second)             // both deadlines count from the beat
		f.want(k, "10.0.0.1:80/DEFAULT!")
		at(51 * time.Second)
		f.want(k, "10.0.0.1:80/DEFAULT!")
		f.register(k, instance(80)) // a registration does as well
		f.want(k, "10.0.0.1:80/DEFAULT")
		if got, want := f.causes(k), "registered, beat missed, beat resumed, beat missed, changed"; got != want {
			t.Errorf("history: %s, want %s", got, want)
		}
	})
}

func TestRegisteredUnhealthy(t *testing.T) {
	bubble(t, func(f *fixture) {
		k := service("a")
		i := instance(80)
		i.Healthy = false
		f.register(k, i)
		f.want(k, "10.0.0.1:80/DEFAULT!")
		f.Beat(k, "10.0.0.1", 80)
		f.want(k, "10.0.0.1:80/DEFAULT")
	})
}

func TestOwnTimes(t *testing.T) {
	// Semantics H9: the operator's metadata, then the client's, then ours.
	bubble(t, func(f *fixture) {
		k := service("a")
		f.register(k, instance(80, "preserved.heart.beat.timeout", "3000", "preserved.ip.delete.timeout", "9000"))
		f.register(k, instance(81, "preserved.heart.beat.timeout", "60000", "preserved.ip.delete.timeout", "99999999999999999999"))
		f.register(k, instance(82, "preserved.heart.beat.timeout", "60000", "preserved.ip.delete.timeout", "9223372036854775807"))
		f.register(k, instance(83))
		edit := &registry.Override{Metadata: registry.Metadata{{Key: "preserved.ip.delete.timeout", Value: "6000"}}}
		f.registry.Commit([]registry.Change{{Service: k, Overrides: []registry.OverrideChange{{InstanceKey: instance(83).InstanceKey, Is: edit, Cause: registry.CauseOperator}}}})
		at(6 * time.Second)
		f.want(k, "10.0.0.1:80/DEFAULT! 10.0.0.1:81/DEFAULT 10.0.0.1:82/DEFAULT 10.0.0.1:83/DEFAULT")
		at(11 * time.Second)
		f.want(k, "10.0.0.1:81/DEFAULT 10.0.0.1:82/DEFAULT")
		at(36 * time.Second) // what is no number counts as missing
		f.want(k, "10.0.0.1:82/DEFAULT")
		at(66 * time.Second)
		f.want(k, "10.0.0.1:82/DEFAULT!")
	})
}

func TestOneClientPerAddress(t *testing.T) {
	bubble(t, func(f *fixture) {
		a, b := service("a"), registry.ServiceKey{Namespace: "other", Group: "g", Name: "a"}
		f.register(a, instance(80))
		f.register(a, instance(81)) // cases C04: both stay
		f.register(b, instance(80))
		f.want(a, "10.0.0.1:80/DEFAULT 10.0.0.1:81/DEFAULT")
		f.want(b, "10.0.0.1:80/DEFAULT")
		if n := f.Clients(); n != 2 {
			t.Errorf("%d clients, want 2", n)
		}
		if id := f.registry.Snapshot(a).Instances[0].Client; id != "10.0.0.1:80#true" {
			t.Errorf("client id is %q", id)
		}
		moved := instance(80)
		moved.Cluster = "c1"
		f.register(a, moved) // http-api §10: replaced
		f.want(a, "10.0.0.1:80/c1 10.0.0.1:81/DEFAULT")
		if i, known := f.Beat(a, "10.0.0.1", 80); !known || i.Cluster != "c1" {
			t.Errorf("beat answers %v, %v", i, known)
		}
		if !f.Deregister(a, instance(80).InstanceKey) || f.Deregister(a, instance(80).InstanceKey) {
			t.Error("deregistering twice was not found, then not found")
		}
		f.want(a, "10.0.0.1:81/DEFAULT")
		f.want(b, "10.0.0.1:80/DEFAULT")
		f.Deregister(b, instance(80).InstanceKey)
		f.Deregister(a, instance(81).InstanceKey)
		if n := f.Clients(); n != 0 {
			t.Errorf("%d clients left", n)
		}
	})
}

func TestOthersStay(t *testing.T) {
	// Cases C14: what a connection owns is not ours, whether we claim it too
	// or not.
	bubble(t, func(f *fixture) {
		k := service("a")
		conn := f.registry.Open("connection", registry.Connection)
		if err := conn.Register(k, []*registry.Instance{instance(80)}, false); err != nil {
			t.Fatal(err)
		}
		if f.Deregister(k, instance(80).InstanceKey) {
			t.Error("an instance of a connection was found")
		}
		if _, known := f.Beat(k, "10.0.0.1", 80); known {
			t.Error("an instance of a connection takes beats")
		}
		f.want(k, "10.0.0.1:80/DEFAULT")
		f.register(k, instance(80))
		f.Deregister(k, instance(80).InstanceKey)
		f.want(k, "10.0.0.1:80/DEFAULT")
		f.register(k, instance(80))
		at(40 * time.Second)
		f.want(k, "10.0.0.1:80/DEFAULT")
	})
}

func TestStall(t *testing.T) {
	// Semantics T20: a process that was stopped must not expel everybody.
	bubble(t, func(f *fixture) {
		k := service("a")
		f.register(k, instance(80))
		f.register(k, instance(81))
		at(time.Second)
		f.stall(40 * time.Second)
		at(55 * time.Second)
		f.want(k, "10.0.0.1:80/DEFAULT 10.0.0.1:81/DEFAULT")
		if n := f.count("stalls_total"); n != 1 {
			t.Errorf("%v stalls, want 1", n)
		}
		at(62 * time.Second)
		f.want(k, "10.0.0.1:80/DEFAULT! 10.0.0.1:81/DEFAULT!") // 15 s after the stall
		at(77 * time.Second)
		f.want(k, "")
	})
}

// H20: with the switch off nothing becomes unhealthy and nothing goes for lack
// of beats. When it is on again, all time-outs start anew.
func TestBeatsSwitchedOff(t *testing.T) {
	bubble(t, func(f *fixture) {
		a, b, c := service("a"), service("b"), service("c")
		f.register(a, instance(80))
		f.register(b, instance(81))
		at(21 * time.Second)
		f.register(c, instance(82))
		f.want(a, "10.0.0.1:80/DEFAULT!")
		f.off.Store(true)
		f.Beat(b, "10.0.0.1", 81) // beats count all the same
		at(5 * time.Minute)
		f.want(a, "10.0.0.1:80/DEFAULT!")
		f.want(b, "10.0.0.1:81/DEFAULT")
		f.want(c, "10.0.0.1:82/DEFAULT")
		f.Anew()
		f.off.Store(false)
		at(5*time.Minute + 15*time.Second)
		f.want(a, "10.0.0.1:80/DEFAULT!")
		f.want(c, "10.0.0.1:82/DEFAULT")
		at(5*time.Minute + 21*time.Second)
		f.want(b, "10.0.0.1:81/DEFAULT!")
		f.want(c, "10.0.0.1:82/DEFAULT!")
		at(5*time.Minute + 30*time.Second)
		f.want(a, "10.0.0.1:80/DEFAULT!")
		at(5*time.Minute + 36*time.Second)
		f.want(a, "")
		f.want(c, "")
		if n := f.count("stalls_total"); n != 0 {
			t.Errorf("%v stalls counted", n)
		}
	})
}

// Also if nobody has looked while it was off.
func TestBeatsSwitchedOffForAMoment(t *testing.T) {
	bubble(t, func(f *fixture) {
		k := service("a")
		f.register(k, instance(80))
		at(14 * time.Second)
		f.off.Store(true)
		time.Sleep(500 * time.Millisecond)
		f.Anew()
		f.off.Store(false)
		at(29 * time.Second)
		f.want(k, "10.0.0.1:80/DEFAULT")
		at(31 * time.Second)
		f.want(k, "10.0.0.1:80/DEFAULT!")
	})
}

func TestStallInsideSweep(t *testing.T) {
	// The node stops while it carries out what it has decided.
	bubble(t, func(f *fixture) {
		early, late := service("early"), service("late")
		f.register(early, instance(80))
		time.Sleep(10 * time.Second)
		f.register(late, instance(81))
		f.pause.Store(int64(time.Minute))
		at(81 * time.Second)
		f.want(early, "10.0.0.1:80/DEFAULT!")
		f.want(late, "10.0.0.1:81/DEFAULT")
		at(90 * time.Second)
		f.want(late, "10.0.0.1:81/DEFAULT")
		at(101 * time.Second)
		f.want(late, "10.0.0.1:81/DEFAULT!")
	})
}

func TestConcurrent(t *testing.T) {
	// Whatever runs at the same time, afterwards the registry shows exactly
	// what has a lease.
	f := newFixture(t)
	f.opts.Timeout, f.opts.DeleteAfter = 0, time.Millisecond
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 300 {
				k := service(fmt.Sprint("s", (g+i)%3))
				switch (g*7 + i) % 5 {
				case 0, 1:
					f.register(k, instance(80+i%2))
				case 2:
					f.Deregister(k, instance(80+i%2).InstanceKey)
				case 3:
					f.Beat(k, "10.0.0.1", 80+i%2)
				case 4:
					f.sweep(t.Context(), time.Now())
				}
			}
		})
	}
	wg.Wait()
	leases := 0
	for _, c := range f.clients {
		if len(c.leases) == 0 {
			t.Error("a client without a lease is left")
		}
		for k, l := range c.leases {
			leases++
			if shown, ok := f.registry.Snapshot(k).Get(l.instance.InstanceKey); !ok || shown.Healthy != l.healthy {
				t.Errorf("%v has a lease and is shown as %v, %v", k, shown, ok)
			}
		}
	}
	if n := f.registry.Stats().Instances; int(n) != leases {
		t.Errorf("%d instances, %d leases", n, leases)
	}
}

func TestStartStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.Stop()
		f.Start()
		f.register(service("a"), instance(80))
		time.Sleep(time.Minute)
		f.want(service("a"), "10.0.0.1:80/DEFAULT") // started after stop: no loop
		f.Stop()

		g := newFixture(t)
		g.Start()
		g.Start()
		g.Stop()
		g.Stop()
	})
}

func TestValidate(t *testing.T) {
	o := Options{Timeout: time.Second}
	err := o.Validate()
	if err == nil {
		t.Fatal("an empty interval passes")
	}
	for _, field := range []string{"Interval", "DeleteAfter", "HandoverGrace", "Registry"} {
		if !strings.Contains(err.Error(), field+":") {
			t.Errorf("%q does not name %s", err, field)
		}
	}
}

func TestBeatDoesNotAllocate(t *testing.T) {
	f := newFixture(t)
	k := service("a")
	f.register(k, instance(80))
	if n := testing.AllocsPerRun(100, func() { f.Beat(k, "10.0.0.1", 80) }); n > 0 {
		t.Errorf("%v allocations per beat", n)
	}
}

func BenchmarkBeat(b *testing.B) {
	f := newFixture(b)
	k := service("a")
	for p := range 1000 {
		f.register(k, instance(p))
	}
	b.ReportAllocs()
	for b.Loop() {
		f.Beat(k, "10.0.0.1", 500)
	}
}

func BenchmarkSweep(b *testing.B) {
	f := newFixture(b)
	for p := range 50000 {
		f.register(service(fmt.Sprint("s", p%1000)), instance(p))
	}
	for b.Loop() {
		f.sweep(b.Context(), time.Now())
	}
}
