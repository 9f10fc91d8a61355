package health

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"runtime/pprof"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/registry"
)

// Persistents is what the Prober needs of *registry.Registry.
type Persistents interface {
	Persistent(registry.ServiceKey) []registry.Probed
	PersistentServices() []registry.ServiceKey
}

// ProbeOptions are those of a Prober. Its functions are called with no lock
// held, from several goroutines.
type ProbeOptions struct {
	Registry Persistents
	// Owns reports whether this node is to check what is behind the key,
	// "namespace/group/service ip:port", by its view of the cluster; other
	// nodes may see it otherwise for a while. It must not block. Nil: there are
	// no other nodes.
	Owns func(key string) bool
	// Life is the registry's own, Now its clock.
	Life registry.Life
	Now  func() registry.Stamp
	// Report makes a check known here and at all nodes; when it returns, the
	// registry knows it. Forget takes back what was reported in this life of an
	// instance that is gone, or of which another node has found something newer.
	Report func(registry.Check)
	Forget func(registry.ServiceKey, registry.InstanceKey)
	// Confirm asks a second node, within ctx, before an instance becomes
	// unhealthy. asked is false if there is nobody to ask: then our own opinion
	// counts. Nil: never.
	Confirm func(ctx context.Context, key registry.ServiceKey, ik registry.InstanceKey) (healthy, asked bool)
	// Enabled is the switch healthCheckEnabled (semantics H20). Nil: it is on.
	Enabled func() bool
	// Dial connects to an instance. Nil: over the network.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Awake is that of Options: it returns when the node has handled that this
	// process stood still, if it did; for that it calls Stalled. Nil: it never
	// stands still.
	Awake func()

	// Interval is the time between two probes of an instance; each is up to a
	// tenth sooner or later. Retry is the time while results contradict what is
	// shown and are not enough yet to change it.
	Interval, Retry time.Duration
	// Timeout is for connecting, and again for the answer of an HTTP server; a
	// MySQL server has twice as much for each of login and command.
	Timeout time.Duration
	// Strikes is how many equal results in a row change what is shown, unless
	// the first of them says enough (semantics H17). Times is the switch
	// healthCheckTimes, which comes before it; it must not block. Nil: Strikes.
	Strikes int
	Times   func() int
	// Rate bounds the probes that begin in a second, Concurrency those under
	// way. With more instances than Interval·Rate, Interval stretches.
	Rate, Concurrency int

	Logger  *zap.Logger
	Metrics prometheus.Registerer
}

// DefaultProbeOptions has the times of semantics §4.3, with the interval of its
// recommendation. The rest is the caller's.
func DefaultProbeOptions() ProbeOptions {
	return ProbeOptions{Interval: 5 * time.Second, Retry: time.Second, Timeout: 500 * time.Millisecond, Strikes: 3, Rate: 1000, Concurrency: 1024}
}

// Validate names every field that makes no sense.
func (o *ProbeOptions) Validate() error {
	var errs []error
	for _, d := range []struct {
		field string
		is    time.Duration
	}{{"Interval", o.Interval}, {"Retry", o.Retry}, {"Timeout", o.Timeout}} {
		if d.is <= 0 {
			errs = append(errs, fmt.Errorf("%s: %v is not positive", d.field, d.is))
		}
	}
	for _, n := range []struct {
		field string
		is    int
		least int
	}{{"Strikes", o.Strikes, 1}, {"Rate", o.Rate, 1}, {"Concurrency", o.Concurrency, 2}} {
		if n.is < n.least {
			errs = append(errs, fmt.Errorf("%s: %d is below %d", n.field, n.is, n.least))
		}
	}
	for _, f := range []struct {
		field   string
		missing bool
	}{{"Registry", o.Registry == nil}, {"Now", o.Now == nil}, {"Report", o.Report == nil}, {"Forget", o.Forget == nil}} {
		if f.missing {
			errs = append(errs, fmt.Errorf("%s: is missing", f.field))
		}
	}
	return errors.Join(errs...)
}

// A Prober checks the persistent instances that this node is to check. Its
// methods may be called from any goroutine.
type Prober struct {
	opts    ProbeOptions
	checker checker
	metrics *probeMetrics
	start   time.Time
	stalls  atomic.Uint32 // so many so far
	wake    chan struct{} // something may be due
	asking  chan struct{} // slots for the probes that other nodes ask for

	marks   sync.Mutex
	changed map[registry.ServiceKey]bool // to be read again

	mu       sync.Mutex
	services map[registry.ServiceKey]*watched
	due      dueTargets
	lanes    lanes
	doubted  queue // about to be called unhealthy, once a second node was asked
	doubting int   // it is being asked for so many
	news     news

	// Of the loop.
	allowance float64       // probes that may begin
	refilled  time.Duration // when
	told      time.Duration // when news was last logged; changed with mu
	looked    time.Duration // when the loop last looked at what has changed

	ctx    context.Context // ends everything
	cancel context.CancelFunc
	once   sync.Once
	wg     sync.WaitGroup
}

// news is what the log is to be told.
type news struct {
	healthy, unhealthy, own int
	some                    []string
	trouble                 string // the last of our own
}

// A watched service has targets. Guarded by Prober.mu, except key.
type watched struct {
	key      registry.ServiceKey
	read     time.Duration // when its instances were last read, since Prober.start
	round    uint32        // counts that
	targets  map[registry.InstanceKey]*target
	clusters map[string]*registry.ClusterMeta // one for all instances with the same settings
}

// A target is a persistent instance. Guarded by Prober.mu, except of and key.
type target struct {
	of  *watched
	key registry.InstanceKey

	cluster       *registry.ClusterMeta
	since, judged registry.Stamp
	picture       picture
	written       bool // Report had a check of it, so Forget is to have it
	off           bool // it has no health check
	gone          bool // it is no longer registered
	round         uint32
	turn          uint32 // goes up when what was found before does not count any more

	place  place
	owned  bool // when it was last due
	due    time.Duration
	stalls uint32 // tally began after so many
	tally  tally
	urgent bool
	slow   bool // the last probe took all the time it had
	slot   int  // of which speed it has a slot, while it is running
	doubt  job  // while it is doubted
}

// A place is where a target is: in one at a time.
type place uint8

const (
	nowhere place = iota
	waiting       // in due
	queued        // in a lane, or doubted
	running       // a goroutine has it
)

// A job is one probe of a target, and what came of it.
type job struct {
	cluster *registry.ClusterMeta
	turn    uint32
	stalls  uint32
	made    registry.Stamp // when it began: what happens later is newer
	result
}

const (
	// firstDelay lets an instance start that registers itself first
	// (semantics H15).
	firstDelay = 2 * time.Second
	// rereadGap bounds how often the instances of a service are read while
	// they are changed all the time.
	rereadGap = time.Second
	// readPace is how long the loop rests between looks at what has changed:
	// each goes through all services that must not be read yet.
	readPace = 50 * time.Millisecond
	dueBatch = 1024
	// pace is how long the loop rests between probes that wait for the rate.
	pace = 5 * time.Millisecond
	// tellEvery bounds the lines in the log.
	tellEvery = time.Second
)

// NewProber makes a Prober that knows no service. Nothing is probed before
// Start. Options are to be valid.
func NewProber(opts ProbeOptions) *Prober {
	if opts.Owns == nil {
		opts.Owns = func(string) bool { return true }
	}
	if opts.Enabled == nil {
		opts.Enabled = func() bool { return true }
	}
	if opts.Times == nil {
		opts.Times = func() int { return opts.Strikes }
	}
	if opts.Awake == nil {
		opts.Awake = func() {}
	}
	if opts.Dial == nil {
		opts.Dial = (&net.Dialer{KeepAlive: -1}).DialContext
	}
	p := &Prober{
		opts: opts, checker: checker{opts.Dial, opts.Timeout}, start: time.Now(),
		wake: make(chan struct{}, 1), asking: make(chan struct{}, max(1, opts.Concurrency/4)),
		changed: map[registry.ServiceKey]bool{}, services: map[registry.ServiceKey]*watched{},
		lanes: lanes{slots: opts.Concurrency / 2},
	}
	p.metrics = newProbeMetrics(opts.Metrics, p)
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Start reads all services and starts the loop, once; after Stop it does
// nothing. Changes of the registry after the call are to come through Changed.
func (p *Prober) Start() {
	p.once.Do(func() {
		for _, key := range p.opts.Registry.PersistentServices() {
			p.Changed(key)
		}
		p.wg.Go(func() { pprof.Do(p.ctx, pprof.Labels("loop", "health.probes"), p.loop) })
	})
}

// Stop ends all probes and waits for them; what they found is not reported.
func (p *Prober) Stop() {
	p.cancel()
	p.once.Do(func() {})
	p.wg.Wait()
}

// Changed tells that persistent instances of a service, or how they are to be
// checked, have changed. It does not block.
func (p *Prober) Changed(key registry.ServiceKey) {
	p.marks.Lock()
	p.changed[key] = true
	p.marks.Unlock()
	p.wakeUp()
}

// Stalled tells that this process stood still until now. Probes that were
// under way do not count, and all counting starts anew. It does not block.
func (p *Prober) Stalled() { p.Anew() }

// Anew voids the probes under way, and starts all counting anew. It does not
// block.
func (p *Prober) Anew() { p.stalls.Add(1) }

// Ask probes an instance once, now, for another node that is about to call it
// unhealthy. known is false if it is not there or has no health check, and if
// this node is too busy to say.
func (p *Prober) Ask(ctx context.Context, key registry.ServiceKey, ik registry.InstanceKey) (known, healthy bool, reason string) {
	p.mu.Lock()
	var cluster *registry.ClusterMeta
	if w := p.services[key]; w != nil {
		if t := w.targets[ik]; t != nil && !t.gone && !t.off {
			cluster = t.cluster
		}
	}
	p.mu.Unlock()
	switch {
	case cluster == nil:
		return false, false, "it is not known here, or has no health check"
	case p.ctx.Err() != nil:
		return false, false, "this node stops"
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	select {
	case p.asking <- struct{}{}:
		defer func() { <-p.asking }()
	case <-ctx.Done():
		return false, false, "no time"
	}
	p.opts.Awake()
	stalls := p.stalls.Load()
	r := p.checker.check(ctx, ik, cluster)
	p.opts.Awake()
	p.metrics.asked.Inc()
	if r.outcome == own || p.stalls.Load() != stalls {
		return false, false, r.reason
	}
	return true, r.outcome == passed, r.reason
}

func (p *Prober) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *Prober) now() time.Duration { return time.Since(p.start) }

func (p *Prober) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-timer.C:
		}
		p.opts.Awake()
		timer.Reset(p.step(ctx))
	}
}

// step does what is due and returns how long nothing else will be, unless
// something wakes the loop.
func (p *Prober) step(ctx context.Context) time.Duration {
	wait := min(p.readChanged(), time.Minute)
	enabled := p.opts.Enabled()
	p.mu.Lock()
	due := p.due.until(p.now(), dueBatch)
	p.mu.Unlock()
	owns := make([]bool, len(due))
	for i, t := range due {
		owns[i] = p.owns(t)
	}
	p.mu.Lock()
	stale := map[registry.ServiceKey]bool{}
	for i, t := range due {
		if p.admitLocked(t, owns[i], enabled) {
			stale[t.of.key] = true
		}
	}
	p.mu.Unlock()
	for key := range stale {
		p.read(key)
	}
	wait = min(wait, p.tell())
	p.mu.Lock()
	defer p.mu.Unlock()
	wait = min(wait, p.beginLocked(ctx, enabled))
	if len(p.due) > 0 {
		wait = min(wait, p.due[0].due-p.now())
	}
	return max(wait, 0)
}

func (p *Prober) owns(t *target) bool {
	return p.opts.Owns(t.of.key.String() + " " + net.JoinHostPort(t.key.IP, strconv.Itoa(t.key.Port)))
}

// admitLocked puts a target that is due into its lane, if this node is to probe
// it. stale: what is shown of its service is to be read before, or, if we have
// written something of it, for news of the node that is to probe it now.
func (p *Prober) admitLocked(t *target, owned, enabled bool) (stale bool) {
	t.place = nowhere
	switch {
	case t.gone || t.off:
		return false
	case !owned || !enabled:
		t.owned = owned
		t.restart()
		p.scheduleLocked(t, p.opts.Interval)
		return t.written && p.now()-t.of.read >= p.opts.Interval
	}
	stale = !t.owned || p.now()-t.of.read >= p.opts.Interval
	t.owned = true
	t.place = queued
	p.lanes.push(t)
	return stale
}

// restart: what was counted so far does not count.
func (t *target) restart() { t.tally, t.urgent, t.slow = 0, false, false }

// scheduleLocked: the jitter keeps probes apart that began together.
func (p *Prober) scheduleLocked(t *target, after time.Duration) {
	after += time.Duration((rand.Float64() - 0.5) / 5 * float64(after))
	t.place, t.due = waiting, p.now()+after
	heap.Push(&p.due, t)
}

// beginLocked begins what rate and slots allow.
func (p *Prober) beginLocked(ctx context.Context, enabled bool) (wait time.Duration) {
	now := p.now()
	rate := float64(p.opts.Rate)
	burst := max(1, 4*rate*pace.Seconds())
	p.allowance = min(burst, p.allowance+rate*(now-p.refilled).Seconds())
	p.refilled = now
	for p.allowance >= 1 && ctx.Err() == nil {
		t := p.lanes.next()
		if t == nil {
			break
		}
		if t.gone || t.off || !enabled {
			p.lanes.free(t)
			t.place = nowhere
			if !t.gone && !t.off {
				p.scheduleLocked(t, p.opts.Interval)
			}
			continue
		}
		p.allowance--
		t.place = running
		j := job{cluster: t.cluster, turn: t.turn}
		p.wg.Go(func() { p.probe(ctx, t, j) })
	}
	for p.doubting < max(1, p.lanes.slots/2) && p.doubted.len() > 0 && ctx.Err() == nil {
		t := p.doubted.pop()
		t.place = running
		j := t.doubt
		p.doubting++
		p.wg.Go(func() { p.confirm(ctx, t, j) })
	}
	if p.lanes.startable() {
		return max(pace, time.Duration((1-p.allowance)/rate*float64(time.Second)))
	}
	return time.Minute
}

// probe makes one probe and does what follows from it. The target is ours
// until we give it back.
func (p *Prober) probe(ctx context.Context, t *target, j job) {
	p.opts.Awake()
	j.stalls, j.made = p.stalls.Load(), p.opts.Now()
	began := time.Now()
	j.result = p.checker.check(ctx, t.key, j.cluster)
	p.metrics.probed(j.cluster.Checker.Type, j.outcome, time.Since(began))
	p.opts.Awake() // a stall of a moment ago is counted now
	stands := p.stands(ctx, t)

	p.mu.Lock()
	p.lanes.free(t)
	next, forget := p.judgeLocked(t, j, stands), false
	switch next {
	case nothing:
		after := p.opts.Interval
		if t.urgent {
			after = p.opts.Retry
		}
		forget = p.settleLocked(t, after)
	case ask:
		t.place, t.doubt = queued, j
		p.doubted.push(t)
	}
	p.mu.Unlock()
	if next == write {
		p.report(t, j)
	}
	if forget {
		p.opts.Forget(t.of.key, t.key)
	}
	p.wakeUp()
}

// stands reports whether it is still for this node to say what becomes of a
// target.
func (p *Prober) stands(ctx context.Context, t *target) bool {
	return ctx.Err() == nil && p.opts.Enabled() && p.owns(t)
}

// voidLocked reports whether what a job found must not count.
func (p *Prober) voidLocked(t *target, j job, stands bool) bool {
	return !stands || t.gone || t.off || t.turn != j.turn || p.stalls.Load() != j.stalls
}

// judgeLocked counts a result.
func (p *Prober) judgeLocked(t *target, j job, stands bool) deed {
	switch {
	case p.voidLocked(t, j, stands):
		p.metrics.void.Inc()
		t.restart()
		return nothing
	case j.outcome == own:
		p.news.own++
		p.news.trouble = j.reason
		return nothing
	}
	if t.stalls != j.stalls {
		t.stalls, t.tally = j.stalls, 0
	}
	var c conclusion
	t.tally, c = t.tally.after(j.outcome, p.opts.Times())
	t.slow = j.outcome == timedOut
	t.urgent = c == undecided && (j.outcome == passed) != t.picture.healthy
	return t.picture.deed(c, p.opts.Confirm != nil)
}

// confirm asks a second node whether an instance is as bad as we think.
func (p *Prober) confirm(ctx context.Context, t *target, j job) {
	// The other node has as long as we have had, and a moment for the way.
	asking, cancel := context.WithTimeout(ctx, p.checker.longest()+time.Second)
	well, asked := p.opts.Confirm(asking, t.of.key, t.key)
	cancel()
	p.opts.Awake()
	stands := p.stands(ctx, t)

	p.mu.Lock()
	p.doubting--
	void := p.voidLocked(t, j, stands)
	switch {
	case void:
		p.metrics.void.Inc()
	case asked && well:
		p.metrics.contradicted.Inc()
	case asked:
		p.metrics.confirmed.Inc()
	default:
		p.metrics.nobody.Inc()
	}
	keep, forget := void || asked && well, false
	if keep {
		t.restart()
		forget = p.settleLocked(t, p.opts.Interval)
	}
	p.mu.Unlock()
	if !keep {
		p.report(t, j)
	}
	if forget {
		p.opts.Forget(t.of.key, t.key)
	}
	p.wakeUp()
}

// report writes what a job found, and gives the target back.
func (p *Prober) report(t *target, j job) {
	is := j.outcome == passed
	p.opts.Report(registry.Check{Service: t.of.key, InstanceKey: t.key, Healthy: is, Made: j.made, By: p.opts.Life, Reason: j.reason})
	p.mu.Lock()
	t.written = true
	if t.turn == j.turn {
		if t.picture.healthy != is {
			p.flippedLocked(t, is, j.reason)
		}
		t.picture.healthy, t.picture.mine = is, true
	}
	forget := p.settleLocked(t, p.opts.Interval)
	p.mu.Unlock()
	if forget { // it went meanwhile
		p.opts.Forget(t.of.key, t.key)
	}
}

// settleLocked ends what was going on with a target, and has it probed again
// later. If it is gone, it reports whether a check of it is to be taken back.
func (p *Prober) settleLocked(t *target, after time.Duration) (forget bool) {
	t.place = nowhere
	switch {
	case t.gone:
		forget, t.written = t.written, false
		if t.of.targets[t.key] == t {
			delete(t.of.targets, t.key)
			p.tidyLocked(t.of)
		}
	case !t.off:
		p.scheduleLocked(t, after)
	}
	return forget
}

func (p *Prober) tidyLocked(w *watched) {
	if len(w.targets) == 0 && p.services[w.key] == w {
		delete(p.services, w.key)
	}
}

// readChanged reads the services that have changed, those that change all the
// time not each time: they are read after wait.
func (p *Prober) readChanged() (wait time.Duration) {
	wait = time.Minute
	p.marks.Lock()
	var keys []registry.ServiceKey
	if rest := p.looked + readPace - p.now(); len(p.changed) > 0 && rest > 0 {
		wait = rest
	} else if len(p.changed) > 0 {
		keys = slices.AppendSeq(make([]registry.ServiceKey, 0, len(p.changed)), maps.Keys(p.changed))
		p.looked = p.now()
	}
	p.marks.Unlock()
	due := keys[:0]
	p.mu.Lock()
	for _, key := range keys {
		if w := p.services[key]; w != nil {
			if rest := w.read + rereadGap - p.now(); rest > 0 {
				wait = min(wait, rest)
				continue
			}
		}
		due = append(due, key)
	}
	p.mu.Unlock()
	// What changes from now on is another change.
	p.marks.Lock()
	for _, key := range due {
		delete(p.changed, key)
	}
	p.marks.Unlock()
	for _, key := range due {
		p.read(key)
	}
	return wait
}

// read takes over what the registry has of a service. Only the loop calls it.
func (p *Prober) read(key registry.ServiceKey) {
	for _, ik := range p.merge(key, p.opts.Registry.Persistent(key)) {
		p.opts.Forget(key, ik)
	}
}

// merge makes the targets of a service those that the registry has, and
// returns those whose checks are to be taken back.
func (p *Prober) merge(key registry.ServiceKey, all []registry.Probed) (forget []registry.InstanceKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.services[key]
	if w == nil {
		if len(all) == 0 {
			return nil
		}
		w = &watched{key: key, targets: map[registry.InstanceKey]*target{}, clusters: map[string]*registry.ClusterMeta{}}
		p.services[key] = w
	}
	w.read = p.now()
	w.round++
	for i := range all {
		is := &all[i]
		t := w.targets[is.InstanceKey]
		if t == nil {
			t = &target{of: w, key: is.InstanceKey}
			w.targets[t.key] = t
		}
		if c := w.settings(is.Cluster); t.gone || t.cluster != c || t.since != is.Since || t.judged != is.Judged {
			t.cluster, t.since, t.judged = c, is.Since, is.Judged
			t.gone, t.off = false, !checked(c)
			t.turn++
			t.restart()
		}
		t.picture = picture{healthy: is.Healthy, registered: is.Persistent.Healthy, mine: is.Check != nil && is.Check.By == p.opts.Life}
		t.round = w.round
		if t.written && t.place != running && is.Check != nil && is.Check.By != p.opts.Life {
			// Ours is overruled. Left behind, it would be all that a new node
			// hears when the other goes with its life.
			t.written = false
			forget = append(forget, t.key)
		}
		if !t.off && t.place == nowhere {
			most := time.Duration(rand.Float64() * float64(p.opts.Interval))
			p.scheduleLocked(t, min(firstDelay, p.opts.Interval)+time.Duration(rand.Float64()*float64(most)))
		}
	}
	for ik, t := range w.targets {
		if t.round == w.round {
			continue
		}
		t.gone = true
		if t.place == running {
			continue // whoever has it does the rest
		}
		delete(w.targets, ik)
		if t.written {
			t.written = false
			forget = append(forget, ik)
		}
	}
	p.tidyLocked(w)
	return forget
}

// settings returns the one value that stands for all that say the same, so
// that a change is a change of the pointer, and 100,000 instances do not have
// one each.
func (w *watched) settings(c *registry.ClusterMeta) *registry.ClusterMeta {
	if is := w.clusters[c.Name]; is != nil && is.Checker == c.Checker && is.CheckPort == c.CheckPort && is.UseInstancePort == c.UseInstancePort {
		return is
	}
	w.clusters[c.Name] = c
	return c
}

// flippedLocked notes that what is shown of a target has changed.
func (p *Prober) flippedLocked(t *target, is bool, reason string) {
	text := t.of.key.String() + " " + net.JoinHostPort(t.key.IP, strconv.Itoa(t.key.Port)) + ": " + reason
	if is {
		p.metrics.healthy.Inc()
		p.news.healthy++
	} else {
		p.metrics.unhealthy.Inc()
		p.news.unhealthy++
	}
	if len(p.news.some) < 5 {
		p.news.some = append(p.news.some, text)
	}
}

// tell logs the news, not more often than every tellEvery; else it is to be
// called again after wait.
func (p *Prober) tell() (wait time.Duration) {
	p.mu.Lock()
	n, now := p.news, p.now()
	some := n.healthy+n.unhealthy+n.own > 0
	if wait = p.told + tellEvery - now; some && wait <= 0 {
		p.news, p.told = news{}, now
	}
	p.mu.Unlock()
	switch {
	case !some:
		return time.Minute
	case wait > 0:
		return wait
	}
	if n.healthy+n.unhealthy > 0 {
		p.opts.Logger.Info("health checks changed what is shown", zap.Int("healthy", n.healthy), zap.Int("unhealthy", n.unhealthy), zap.Strings("some", n.some))
	}
	if n.own > 0 {
		p.opts.Logger.Warn("this node cannot check instances", zap.Int("probes", n.own), zap.String("last", n.trouble))
	}
	return time.Minute
}

// census counts the targets, for the metrics.
func (p *Prober) census() (known, owned int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.services {
		for _, t := range w.targets {
			if t.gone || t.off {
				continue
			}
			known++
			if t.owned {
				owned++
			}
		}
	}
	return known, owned
}

// load tells of the probes that wait for the rate or a slot, for how long the
// first of them has been due, and of those under way.
func (p *Prober) load() (waiting, running int, late time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if due, some := p.lanes.oldest(); some {
		late = p.now() - due
	}
	return p.lanes.len(), p.lanes.used[0] + p.lanes.used[1], late
}
