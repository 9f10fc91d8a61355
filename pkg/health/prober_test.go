package health

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/starling-registry/starling/pkg/registry"
)

// A manner is how an address behaves.
type manner uint8

const (
	accepts manner = iota
	refuses
	hangs // nothing comes back
	busy  // HTTP: answers 503
	vexed // our own sockets have run out
)

// probing is a Prober with a registry and a network of its own.
type probing struct {
	*fixture // only for its registry, metrics and stalls
	*Prober
	key registry.ServiceKey

	mu       sync.Mutex
	manners  map[string]manner
	dialled  map[string][]time.Duration // since begin
	reports  []string
	forgot   []string
	opinion  func(registry.InstanceKey) (healthy, asked bool)
	asked    int
	disowned bool
	off      bool // the switch
	most     int  // probes under way at once
	now      int
}

func newProbing(t testing.TB, change func(*ProbeOptions)) *probing {
	p := &probing{fixture: &fixture{t: t, metrics: prometheus.NewRegistry()}, key: service("p"), manners: map[string]manner{}, dialled: map[string][]time.Duration{}}
	life := registry.Life{Node: "a", Epoch: 1}
	clock := registry.NewClock(0, 0)
	ro := registry.DefaultOptions()
	ro.Life, ro.Clock = life, clock
	ro.Durable = func(k registry.ServiceKey) { p.Prober.Changed(k) }
	p.fixture.registry = registry.New(ro)
	o := DefaultProbeOptions()
	o.Registry, o.Life, o.Now = p.fixture.registry, life, clock.Now
	o.Logger, o.Metrics = zaptest.NewLogger(t), p.metricsOf()
	o.Awake = p.awakeProber
	o.Owns = func(string) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return !p.disowned
	}
	o.Enabled = func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return !p.off
	}
	o.Dial = p.dial
	o.Report = func(c registry.Check) {
		p.fixture.registry.Checked(c)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.reports = append(p.reports, fmt.Sprintf("%d %v", c.Port, c.Healthy))
	}
	o.Forget = func(_ registry.ServiceKey, ik registry.InstanceKey) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.forgot = append(p.forgot, fmt.Sprint(ik.Port))
	}
	if change != nil {
		change(&o)
	}
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	p.Prober = NewProber(o)
	return p
}

func (p *probing) metricsOf() *prometheus.Registry { return p.fixture.metrics }

func (p *probing) awakeProber() {
	until := p.stopped.Load()
	if until == 0 {
		return
	}
	time.Sleep(time.Duration(until) - time.Since(begin))
	if p.stopped.CompareAndSwap(until, 0) {
		p.Prober.Stalled()
	}
}

func (p *probing) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	p.mu.Lock()
	p.dialled[addr] = append(p.dialled[addr], time.Since(begin))
	m := p.manners[addr]
	p.now++
	p.most = max(p.most, p.now)
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.now--
	}()
	switch m {
	case refuses:
		return nil, syscall.ECONNREFUSED
	case vexed:
		return nil, syscall.EMFILE
	case hangs:
		<-ctx.Done()
		return nil, ctx.Err()
	}
	ours, theirs := net.Pipe()
	go func() {
		defer theirs.Close()
		if m == busy {
			b := make([]byte, 4096)
			theirs.Read(b)
			io.WriteString(theirs, "HTTP/1.1 503 x\r\n\r\n")
		}
		io.Copy(io.Discard, theirs)
	}()
	return ours, nil
}

// set says how the address of a port behaves from now on.
func (p *probing) set(port int, m manner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.manners[fmt.Sprintf("10.0.0.1:%d", port)] = m
}

func (p *probing) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// dials are the times at which an address was dialled.
func (p *probing) dials(port int) []time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dialled[fmt.Sprintf("10.0.0.1:%d", port)]
}

func (p *probing) persist(ports ...int) {
	c := registry.Change{Service: p.key}
	for _, port := range ports {
		i := instance(port)
		i.Persistent = true
		now := p.opts.Now()
		c.Instances = append(c.Instances, registry.PersistentChange{InstanceKey: i.InstanceKey, Is: &registry.Persistent{Instance: i, Since: now, Judged: now}})
	}
	p.fixture.registry.Commit([]registry.Change{c})
}

func (p *probing) remove(port int) {
	p.fixture.registry.Commit([]registry.Change{{Service: p.key, Instances: []registry.PersistentChange{{InstanceKey: instance(port).InstanceKey}}}})
}

func (p *probing) describe(c *registry.ClusterMeta) {
	p.fixture.registry.Commit([]registry.Change{{Service: p.key, Described: true, Meta: &registry.ServiceMeta{Persistent: true, Clusters: map[string]*registry.ClusterMeta{c.Name: c}}}})
}

func (p *probing) shown() string {
	var out []string
	for _, i := range p.fixture.registry.Snapshot(p.key).Instances {
		s := fmt.Sprint(i.Port)
		if !i.Healthy {
			s += "!"
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

func (p *probing) wantShown(want string) {
	p.t.Helper()
	if is := p.shown(); is != want {
		p.t.Errorf("after %v: shown is %q, want %q", time.Since(begin), is, want)
	}
}

func (p *probing) wantReports(want string) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if is := strings.Join(p.reports, ", "); is != want {
		p.t.Errorf("after %v: reported is %q, want %q", time.Since(begin), is, want)
	}
}

// until waits for what is shown, and returns how long that took.
func (p *probing) until(want string, most time.Duration) time.Duration {
	p.t.Helper()
	begun := time.Now()
	for p.shown() != want {
		if time.Since(begun) > most {
			p.t.Fatalf("after %v: shown is %q, want %q", time.Since(begin), p.shown(), want)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(begun)
}

func probeTest(t *testing.T, change func(*ProbeOptions), test func(p *probing)) {
	synctest.Test(t, func(t *testing.T) {
		p := newProbing(t, change)
		p.Prober.Start()
		defer p.Prober.Stop()
		test(p)
	})
}

// A healthy instance is left alone: no report, one probe in 5 s.
func TestProbesOfTheHealthy(t *testing.T) {
	probeTest(t, nil, func(p *probing) {
		p.persist(80)
		at(10 * time.Minute)
		p.wantShown("80")
		p.wantReports("")
		times := p.dials(80)
		if n := len(times); n < 110 || n > 130 {
			t.Errorf("%d probes in ten minutes", n)
		}
		if first := times[0]; first < 1800*time.Millisecond || first > 8*time.Second {
			t.Errorf("the first probe after %v (H15)", first)
		}
		for i := range times[1:] {
			if d := times[i+1] - times[i]; d < 4500*time.Millisecond || d > 5550*time.Millisecond {
				t.Fatalf("%v between two probes", d)
			}
		}
		if n := p.count("probe_own_instances"); n != 1 {
			t.Errorf("%v instances in the metrics", n)
		}
	})
}

// H17: refused at once, silence after three, and three to come back.
func TestFlips(t *testing.T) {
	probeTest(t, nil, func(p *probing) {
		p.persist(80)
		at(20 * time.Second)
		p.set(80, refuses)
		if d := p.until("80!", time.Minute); d > 5600*time.Millisecond {
			t.Errorf("refused, and unhealthy after %v", d)
		}
		p.set(80, accepts)
		before := len(p.dials(80))
		if d := p.until("80", time.Minute); d > 8*time.Second {
			t.Errorf("healthy after %v", d)
		}
		if n := len(p.dials(80)) - before; n != 3 {
			t.Errorf("healthy after %d probes, want 3", n)
		}
		at(100 * time.Second)
		p.set(80, hangs)
		before = len(p.dials(80))
		if d := p.until("80!", time.Minute); d > 9500*time.Millisecond {
			t.Errorf("silent, and unhealthy after %v", d)
		}
		if n := len(p.dials(80)) - before; n != 3 {
			t.Errorf("unhealthy after %d probes, want 3", n)
		}
		at(5 * time.Minute)
		p.wantReports("80 false, 80 true, 80 false")
		if up, down := p.count("probe_flips_total", "healthy"), p.count("probe_flips_total", "unhealthy"); up != 1 || down != 2 {
			t.Errorf("%v and %v flips", up, down)
		}
	})
}

// One failure in between is forgotten, so is one success.
func TestFlapsAreNotShown(t *testing.T) {
	probeTest(t, nil, func(p *probing) {
		p.persist(80)
		at(10 * time.Second)
		for range 20 {
			n := len(p.dials(80))
			p.set(80, hangs)
			for len(p.dials(80)) < n+2 {
				time.Sleep(10 * time.Millisecond)
			}
			p.set(80, accepts)
			time.Sleep(3 * time.Second)
		}
		p.wantReports("")
	})
}

func TestHTTPFailuresAreCounted(t *testing.T) {
	probeTest(t, nil, func(p *probing) {
		c := registry.DefaultClusterMeta(registry.DefaultCluster)
		c.Checker = registry.Checker{Type: registry.CheckHTTP, Path: "/"}
		p.describe(c)
		p.persist(80)
		p.set(80, busy)
		p.until("80!", 12*time.Second)
		if n := len(p.dials(80)); n != 3 {
			t.Errorf("unhealthy after %d answers of 503, want 3", n)
		}
	})
}

// H19, H21: whatever the checker is, and when it changes.
func TestCheckerChanges(t *testing.T) {
	probeTest(t, nil, func(p *probing) {
		c := registry.DefaultClusterMeta(registry.DefaultCluster)
		c.Checker.Type = registry.CheckNone
		p.describe(c)
		p.persist(80)
		p.set(80, refuses)
		at(time.Minute)
		if n := len(p.dials(80)); n != 0 {
			t.Errorf("%d probes with no health check", n)
		}
		if known, _, _ := p.Ask(p.t.Context(), p.key, instance(80).InstanceKey); known {
			t.Error("an instance without a health check is known")
		}
		tcp := registry.DefaultClusterMeta(registry.DefaultCluster)
		tcp.UseInstancePort, tcp.CheckPort = false, 9000
		p.describe(tcp)
		at(2 * time.Minute)
		if a, b := len(p.dials(80)), len(p.dials(9000)); a != 0 || b == 0 {
			t.Errorf("%d probes of the instance's port, %d of the other", a, b)
		}
		p.wantShown("80")
		p.set(9000, refuses)
		p.until("80!", 6*time.Second)
		p.describe(c)
		time.Sleep(6 * time.Second)
		n := len(p.dials(9000))
		time.Sleep(time.Minute)
		if m := len(p.dials(9000)); m != n {
			t.Errorf("%d more probes", m-n)
		}
		p.wantShown("80!") // the last result stays
	})
}

// A result that is on its way when the settings change does not count.
func TestChangeDuringAProbe(t *testing.T) {
	probeTest(t, nil, func(p *probing) {
		p.persist(80)
		p.set(80, hangs)
		for range 2 { // the third would be the last
			n := len(p.dials(80))
			for len(p.dials(80)) == n {
				time.Sleep(10 * time.Millisecond)
			}
			time.Sleep(600 * time.Millisecond)
		}
		n := len(p.dials(80))
		for len(p.dials(80)) == n {
			time.Sleep(10 * time.Millisecond)
		}
		c := registry.DefaultClusterMeta(registry.DefaultCluster)
		c.UseInstancePort, c.CheckPort = false, 9000
		p.describe(c)
		time.Sleep(time.Minute)
		p.wantReports("")
		if n := p.count("probes_void_total"); n != 1 {
			t.Errorf("%v void probes", n)
		}
	})
}

func TestRemovedInstance(t *testing.T) {
	probeTest(t, nil, func(p *probing) {
		p.persist(80, 81)
		p.set(80, refuses)
		p.until("80! 81", 10*time.Second)
		p.remove(80)
		p.remove(81)
		time.Sleep(time.Second)
		a, b := len(p.dials(80)), len(p.dials(81))
		time.Sleep(time.Minute)
		if len(p.dials(80)) != a || len(p.dials(81)) != b {
			t.Error("instances that are gone are probed")
		}
		p.change(func() {
			if is := strings.Join(p.forgot, " "); is != "80" {
				t.Errorf("forgotten: %q, want only what was reported", is)
			}
		})
		p.Prober.mu.Lock()
		if n := len(p.services) + len(p.due); n != 0 {
			t.Errorf("%d things stay behind", n)
		}
		p.Prober.mu.Unlock()

		// It comes back: registered healthy, and found out anew.
		p.persist(80)
		p.wantShown("80")
		p.until("80!", 10*time.Second)
	})
}

// An instance goes while its check is being written.
func TestRemovedWhileReporting(t *testing.T) {
	var p *probing
	slow := func(o *ProbeOptions) {
		report := o.Report
		o.Report = func(c registry.Check) {
			time.Sleep(time.Second)
			report(c)
		}
	}
	probeTest(t, slow, func(is *probing) {
		p = is
		p.persist(80)
		p.set(80, refuses)
		for len(p.dials(80)) == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		p.remove(80)
		time.Sleep(time.Minute)
		p.change(func() {
			if len(p.reports) != 1 || len(p.forgot) != 1 {
				t.Errorf("reported %v, forgotten %v", p.reports, p.forgot)
			}
		})
	})
}

func TestConfirm(t *testing.T) {
	opinion := func(p **probing) func(*ProbeOptions) {
		return func(o *ProbeOptions) {
			o.Confirm = func(ctx context.Context, _ registry.ServiceKey, ik registry.InstanceKey) (bool, bool) {
				(*p).mu.Lock()
				(*p).asked++
				f := (*p).opinion
				(*p).mu.Unlock()
				if f == nil { // it does not answer
					<-ctx.Done()
					return false, false
				}
				return f(ik)
			}
		}
	}
	var p *probing
	probeTest(t, opinion(&p), func(is *probing) {
		p = is
		p.opinion = func(registry.InstanceKey) (bool, bool) { return true, true }
		p.persist(80)
		p.set(80, refuses)
		at(time.Minute)
		p.wantShown("80") // only we cannot reach it
		p.change(func() {
			if p.asked < 9 || p.asked > 12 {
				t.Errorf("asked %d times in a minute", p.asked)
			}
			p.opinion = func(registry.InstanceKey) (bool, bool) { return false, true }
		})
		p.until("80!", 6*time.Second)
		p.change(func() { p.asked = 0 })
		time.Sleep(time.Minute)
		p.set(80, accepts)
		p.until("80", 9*time.Second)
		p.change(func() {
			if p.asked != 0 {
				t.Error("a node is asked about what nobody doubts")
			}
			p.opinion = func(registry.InstanceKey) (bool, bool) { return true, false }
		})
		p.set(80, refuses)
		p.until("80!", 6*time.Second) // nobody to ask
		p.set(80, accepts)
		p.until("80", 9*time.Second)
		p.change(func() { p.opinion = nil })
		p.set(80, refuses)
		p.until("80!", 10*time.Second)
		p.wantReports("80 false, 80 true, 80 false, 80 true, 80 false")
	})
}

// It comes back before that is done: then the record is of something that is
// there.
func TestBackWhileReporting(t *testing.T) {
	slow := func(o *ProbeOptions) {
		report := o.Report
		o.Report = func(c registry.Check) {
			time.Sleep(time.Second)
			report(c)
		}
	}
	probeTest(t, slow, func(p *probing) {
		p.persist(80)
		p.set(80, refuses)
		for len(p.dials(80)) == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		p.remove(80)
		time.Sleep(300 * time.Millisecond)
		p.persist(80)
		p.wantReports("")
		time.Sleep(time.Minute)
		p.wantShown("80!")
		p.change(func() {
			if len(p.reports) != 2 || len(p.forgot) != 0 {
				t.Errorf("reported %v, forgotten %v", p.reports, p.forgot)
			}
		})
	})
}

// strike waits until a probe of a silent address has run out of time.
func (p *probing) strike() {
	for n := len(p.dials(80)); len(p.dials(80)) == n; {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(600 * time.Millisecond)
}

// What a probe finds does not count if this node is no longer to say it.
func TestDisownedDuringAProbe(t *testing.T) {
	for name, change := range map[string]func(p *probing){
		"another node is to check it": func(p *probing) { p.disowned = true },
		"the switch is off":           func(p *probing) { p.off = true },
	} {
		probeTest(t, nil, func(p *probing) {
			p.persist(80)
			p.set(80, hangs)
			p.strike()
			p.strike()
			for n := len(p.dials(80)); len(p.dials(80)) == n; {
				time.Sleep(10 * time.Millisecond)
			}
			p.change(func() { change(p) })
			time.Sleep(time.Minute)
			p.change(func() {
				if len(p.reports) != 0 {
					t.Errorf("%s: reported %v", name, p.reports)
				}
			})
		})
	}
}

// A change of responsibility restarts counting, and the last result stays.
func TestResponsibility(t *testing.T) {
	probeTest(t, nil, func(p *probing) {
		other := registry.Life{Node: "b", Epoch: 1}
		p.change(func() { p.disowned = true })
		p.persist(80, 81)
		p.set(80, hangs)
		at(time.Minute)
		if n := len(p.dials(80)); n != 0 {
			t.Errorf("%d probes of another node's instance", n)
		}
		// The other node has found both down; one of them came back unseen.
		for _, port := range []int{80, 81} {
			p.fixture.registry.Checked(registry.Check{Service: p.key, InstanceKey: instance(port).InstanceKey, Made: p.opts.Now(), By: other})
		}
		p.wantShown("80! 81!")
		p.change(func() { p.disowned = false })
		p.until("80! 81", 10*time.Second)
		time.Sleep(20 * time.Second)
		// What the other one found of 80 is ours as well now: its record may go.
		p.wantReports("81 true, 80 false")
		if n := len(p.dials(80)); n < 3 {
			t.Errorf("a conclusion from %d timeouts", n)
		}
		time.Sleep(time.Minute)
		p.wantReports("81 true, 80 false")

		// Two strikes, then it is not ours for a while.
		p.set(81, hangs)
		for n := len(p.dials(81)); len(p.dials(81)) < n+2; {
			time.Sleep(10 * time.Millisecond)
		}
		p.change(func() { p.disowned = true })
		time.Sleep(20 * time.Second)
		n := len(p.dials(81))
		p.change(func() { p.disowned = false })
		p.until("80! 81!", 20*time.Second)
		if n := len(p.dials(81)) - n; n != 3 {
			t.Errorf("unhealthy after %d probes, want 3", n)
		}
	})
}

// What this node has found is taken back when the node that checks the instance
// now has found something newer: when the other's record goes with its life, a
// new node would hear of ours alone.
func TestOverruled(t *testing.T) {
	probeTest(t, nil, func(p *probing) {
		p.persist(1)
		p.set(1, refuses)
		p.until("1!", time.Minute)
		p.change(func() { p.disowned = true })
		time.Sleep(time.Minute)
		if len(p.forgot) > 0 {
			t.Fatalf("forgot %v, and nobody knows better", p.forgot)
		}
		p.fixture.registry.Checked(registry.Check{Service: p.key, InstanceKey: instance(1).InstanceKey, Healthy: true, Made: p.opts.Now(), By: registry.Life{Node: "b", Epoch: 1}})
		time.Sleep(2 * p.opts.Interval)
		p.change(func() {
			if fmt.Sprint(p.forgot) != "[1]" {
				t.Errorf("forgot %v", p.forgot)
			}
			p.disowned = false
		})
		// And when it is ours again it is written anew.
		p.until("1!", time.Minute)
		time.Sleep(time.Minute)
		p.wantReports("1 false, 1 false")
		p.wantShown("1!")
		if len(p.forgot) > 1 {
			t.Errorf("forgot %v", p.forgot)
		}
	})
}

// W25: what was under way while the process stood still does not count.
func TestProbesDuringAStall(t *testing.T) {
	probeTest(t, nil, func(p *probing) {
		p.persist(80)
		p.set(80, hangs)
		for len(p.dials(80)) < 3 {
			time.Sleep(10 * time.Millisecond)
		}
		p.stall(2 * time.Minute) // in the third
		time.Sleep(2*time.Minute + time.Second)
		p.wantReports("")
		n := len(p.dials(80))
		p.until("80!", 20*time.Second)
		if n := len(p.dials(80)) - n; n != 3 {
			t.Errorf("unhealthy after %d probes, want 3", n)
		}
	})
}

// Nor do strikes of before.
func TestStallBetweenProbes(t *testing.T) {
	probeTest(t, nil, func(p *probing) {
		p.persist(80)
		p.set(80, hangs)
		p.strike()
		p.strike()
		p.Prober.Stalled()
		p.strike()
		p.strike()
		p.wantReports("")
		p.strike()
		p.wantReports("80 false")
	})
}

// H20: with the switch off nothing is probed and nothing changes.
func TestSwitchedOff(t *testing.T) {
	probeTest(t, nil, func(p *probing) {
		p.persist(80)
		at(time.Minute)
		p.change(func() { p.off = true })
		p.set(80, refuses)
		n := len(p.dials(80))
		at(2 * time.Minute)
		p.wantShown("80")
		if m := len(p.dials(80)); m != n {
			t.Errorf("%d probes with the switch off", m-n)
		}
		p.change(func() { p.off = false })
		p.until("80!", 6*time.Second)
	})
}

// H17: how many results it takes can be switched while probes go on.
func TestCheckTimes(t *testing.T) {
	var times atomic.Int64
	times.Store(5)
	probeTest(t, func(o *ProbeOptions) { o.Times = func() int { return int(times.Load()) } }, func(p *probing) {
		p.persist(80)
		p.set(80, hangs)
		for range 4 {
			p.strike()
		}
		p.wantReports("")
		times.Store(4) // there are as many already, but none is looked at twice
		p.strike()
		p.wantReports("80 false")
		times.Store(2)
		p.set(80, accepts)
		p.strike()
		p.wantReports("80 false")
		p.strike()
		p.wantReports("80 false, 80 true")
	})
}

// What goes wrong on this node is nobody's fault.
func TestOwnTrouble(t *testing.T) {
	probeTest(t, nil, func(p *probing) {
		p.persist(80)
		p.set(80, vexed)
		at(time.Minute)
		p.wantReports("")
		if n := p.count("probes_total", "TCP", "own_error"); n < 9 {
			t.Errorf("%v errors counted", n)
		}
	})
}

func TestAsk(t *testing.T) {
	probeTest(t, nil, func(p *probing) {
		p.change(func() { p.disowned = true }) // whoever asks is to check it
		p.persist(80, 81, 82, 84)
		p.set(81, refuses)
		p.set(82, hangs)
		p.set(84, vexed)
		at(time.Second)
		for port, want := range map[int]string{80: "true true tcp: connected", 81: "true false tcp: connection refused", 82: "true false tcp: connecting took longer than 500ms", 84: "false false tcp: too many open files", 83: "false false it is not known here, or has no health check"} {
			known, healthy, reason := p.Ask(p.t.Context(), p.key, instance(port).InstanceKey)
			if is := fmt.Sprint(known, healthy, " ", reason); is != want {
				t.Errorf("%d: %s, want %s", port, is, want)
			}
		}
		p.Prober.Stop()
		if known, _, _ := p.Ask(p.t.Context(), p.key, instance(80).InstanceKey); known {
			t.Error("a stopped prober knows")
		}
	})
}

// Thousands of dead addresses do not delay what is found of others, and the
// rate holds.
func TestDeadAddressesDelayNobody(t *testing.T) {
	change := func(o *ProbeOptions) { o.Rate, o.Concurrency = 56, 56 }
	probeTest(t, change, func(p *probing) {
		var ports []int
		for port := range 400 {
			ports = append(ports, port+1)
			if port < 372 {
				p.set(port+1, hangs)
			}
		}
		p.persist(ports...)
		at(3 * time.Minute)
		unhealthy := strings.Count(p.shown(), "!")
		if unhealthy != 372 {
			t.Errorf("%d are unhealthy, want 372", unhealthy)
		}
		// Once they are known, half of the rate is theirs: each is probed every
		// 14 s, but the others every 5 s. At first they are like any others:
		// 400 at 28 a second, since those seen twice have the other half.
		var gaps []time.Duration
		total := 0
		p.mu.Lock()
		for addr, times := range p.dialled {
			total += len(times)
			if m := p.manners[addr]; m == hangs {
				continue
			}
			for i := range times[1:] {
				gap := times[i+1] - times[i]
				if gap > 20*time.Second {
					t.Errorf("%v between two probes of a healthy instance", gap)
				}
				if times[i] > 30*time.Second {
					gaps = append(gaps, gap)
				}
			}
		}
		most := p.most
		p.mu.Unlock()
		for _, g := range gaps {
			if g > 6*time.Second {
				t.Errorf("%v between two probes of a healthy instance", g)
			}
		}
		if most > 56 {
			t.Errorf("%d probes at once", most)
		}
		if total > 180*56 {
			t.Errorf("%d probes in three minutes", total)
		}
		begun := time.Now()
		p.set(390, refuses)
		for {
			if s, ok := p.fixture.registry.Snapshot(p.key).Get(instance(390).InstanceKey); ok && !s.Healthy {
				break
			}
			if time.Since(begun) > 6*time.Second {
				t.Fatal("a refusal is not found")
			}
			time.Sleep(10 * time.Millisecond)
		}
		begun = time.Now()
		p.set(1, accepts)
		for {
			if s, ok := p.fixture.registry.Snapshot(p.key).Get(instance(1).InstanceKey); ok && s.Healthy {
				break
			}
			if time.Since(begun) > 30*time.Second {
				t.Fatal("one that is back is not found")
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}

// Above the rate the interval stretches, for all alike.
func TestRateStretchesTheInterval(t *testing.T) {
	change := func(o *ProbeOptions) { o.Rate = 20 }
	probeTest(t, change, func(p *probing) {
		var ports []int
		for port := range 400 {
			ports = append(ports, port+1)
		}
		p.persist(ports...)
		at(2 * time.Minute)
		p.mu.Lock()
		defer p.mu.Unlock()
		for addr, times := range p.dialled {
			if len(times) < 4 || len(times) > 7 {
				t.Fatalf("%s: %d probes in two minutes", addr, len(times))
			}
		}
	})
}

func TestStopEndsProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProbing(t, nil)
		p.Prober.Start()
		p.persist(80)
		p.set(80, hangs)
		for len(p.dials(80)) < 3 {
			time.Sleep(10 * time.Millisecond)
		}
		begun := time.Now()
		p.Prober.Stop()
		if d := time.Since(begun); d > 0 {
			t.Errorf("stopping takes %v", d)
		}
		p.wantReports("")
		p.Prober.Start()
		p.Prober.Stop()
	})
}

// The same over real sockets, with nothing left behind.
func TestProberOverTheNetwork(t *testing.T) {
	noLeaks(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	p := newProbing(t, func(o *ProbeOptions) {
		o.Dial, o.Interval, o.Retry, o.Timeout = nil, 20*time.Millisecond, 5*time.Millisecond, 5*time.Second
	})
	p.Prober.Start()
	defer p.Prober.Stop()
	k := keyOf(t, l.Addr())
	i := instance(k.Port)
	i.IP, i.Persistent = k.IP, true
	now := p.opts.Now()
	p.fixture.registry.Commit([]registry.Change{{Service: p.key, Instances: []registry.PersistentChange{{InstanceKey: i.InstanceKey, Is: &registry.Persistent{Instance: i, Since: now, Judged: now}}}}})
	for begun := time.Now(); p.count("probes_total", "TCP", "passed") < 5; time.Sleep(time.Millisecond) {
		if time.Since(begun) > 10*time.Second {
			t.Fatal("no probe succeeds")
		}
	}
	p.wantReports("")
	l.Close()
	<-done
	p.until(fmt.Sprint(k.Port, "!"), 10*time.Second)
}

// A service that changes all the time is not read each time.
func TestReadingIsBounded(t *testing.T) {
	var reads atomic.Int64
	count := func(o *ProbeOptions) { o.Registry = counting{o.Registry, &reads} }
	probeTest(t, count, func(p *probing) {
		p.persist(80)
		for range 2000 {
			p.Prober.Changed(p.key)
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		if n := reads.Load(); n > 12 {
			t.Errorf("%d reads in 2 s", n)
		}
		p.persist(81)
		time.Sleep(rereadGap)
		synctest.Wait()
		p.Prober.mu.Lock()
		defer p.Prober.mu.Unlock()
		if n := len(p.services[p.key].targets); n != 2 {
			t.Errorf("%d instances are known", n)
		}
	})
}

type counting struct {
	Persistents
	reads *atomic.Int64
}

func (c counting) Persistent(k registry.ServiceKey) []registry.Probed {
	c.reads.Add(1)
	return c.Persistents.Persistent(k)
}

func TestProbeOptions(t *testing.T) {
	o := ProbeOptions{Concurrency: 1}
	err := o.Validate()
	for _, field := range []string{"Interval", "Retry", "Timeout", "Strikes", "Rate", "Concurrency", "Registry", "Now", "Report", "Forget"} {
		if err == nil || !strings.Contains(err.Error(), field+":") {
			t.Errorf("%s is not named: %v", field, err)
		}
	}
}

// What 100,000 instances cost that another node checks.
func BenchmarkProberAtRest(b *testing.B) {
	p := newProbing(b, nil)
	p.disowned = true
	for s := range 1000 {
		p.key = service(fmt.Sprint("s", s))
		var ports []int
		for i := range 100 {
			ports = append(ports, i+1)
		}
		p.persist(ports...)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	p.readChanged()
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportAllocs()
	for b.Loop() { // one round: all are due once
		p.Prober.start = p.Prober.start.Add(-time.Minute)
		for p.step(b.Context()) == 0 {
		}
	}
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1e5, "B/instance")
}
