package push

import (
	"context"
	"hash/maphash"
	"maps"
	"runtime/pprof"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

// A Source has the pictures to push; *registry.Registry is one.
type Source interface {
	Snapshot(registry.ServiceKey) *registry.Snapshot
	// Present and PresentIn are for watches: whether there is a service, and
	// which there are in a namespace.
	Present(registry.ServiceKey) bool
	PresentIn(namespace string) []registry.ServiceKey
	// Serve returns the newest snapshot and the lastRefTime to send with it.
	Serve(registry.ServiceKey) (*registry.Snapshot, int64)
}

// A Conn is the connection of a subscriber.
type Conn interface {
	// Wake says that [Subscriber.Next] has something. It is called on any
	// goroutine and must not block.
	Wake()
	// Drop closes the connection. It must not block.
	Drop(registry.Cause)
}

// Options of an engine. The durations are those of design §7.
type Options struct {
	Source Source
	// MinWindow is the merge window after a push of a service. It grows to
	// three times what the last fan-out took, up to MaxWindow.
	MinWindow, MaxWindow time.Duration
	// RetryAfter is when a push that the client refused is sent again, once.
	RetryAfter time.Duration
	// AckTimeout is how long a client may leave pushes unacknowledged before
	// its connection is dropped, so that it connects and subscribes anew.
	AckTimeout time.Duration
	// MaxPatterns bounds the different patterns watched on this node,
	// MaxMatches the services that a client is told of when it starts to
	// watch one (semantics S10).
	MaxPatterns, MaxMatches int
	// MaxPerSubscriber bounds the services and patterns that one connection
	// follows; 0: no bound.
	MaxPerSubscriber int
	// CacheMillis is what clients are told in the member of that name. It must
	// not block. Nil: [nacos.CacheMillis].
	CacheMillis func() int64
	Logger      *zap.Logger
	Metrics     prometheus.Registerer
}

// DefaultOptions are those of design §7, and Nacos' limits. Source, Logger and Metrics are the
// caller's.
func DefaultOptions() Options {
	return Options{MinWindow: 100 * time.Millisecond, MaxWindow: 2 * time.Second, RetryAfter: time.Second, AckTimeout: time.Minute,
		MaxPatterns: 20, MaxMatches: 500}
}

// An Engine pushes. Its methods may be called from any goroutine.
type Engine struct {
	opts    Options
	metrics *metrics
	ids     atomic.Uint64 // request ids; unique in the process, so on every connection
	held    atomic.Bool   // nothing is pushed at the moment

	shards  [8]shard
	watches watchIndex
	results results

	mu          sync.Mutex
	subscribers map[*Subscriber]struct{}

	stop context.CancelFunc
	wg   sync.WaitGroup
}

// A shard has a goroutine that fans out its topics one after the other.
type shard struct {
	mu     sync.Mutex
	topics map[registry.ServiceKey]*topic
	ready  []*topic      // to be flushed, each once
	wake   chan struct{} // one slot
}

// A topic is a service with subscribers; guarded by its shard's lock.
//
//	quiet ──Mark──► ready ──flush──► cooling ──window over──► quiet
//	                  ▲                  │ dirty
//	                  └──window over─────┘
type topic struct {
	key    registry.ServiceKey
	subs   map[*subscription]struct{}
	state  topicState
	dirty  bool // marked while cooling
	marked time.Time
	fanout *fanout
	timer  *time.Timer
}

type topicState uint8

const (
	quiet topicState = iota
	ready
	cooling
)

// A fanout estimates how long a push takes to be sent to its subscribers, as
// twice the time to the middle one. Subscribers whose sender was busy already
// do not count. So a stuck reader does not slow down the others: at worst,
// where more than half get stuck at once, by one longest window.
type fanout struct {
	start   time.Time
	left    atomic.Int64 // until half of them are sent
	elapsed atomic.Int64 // nanoseconds; 0: not there yet
}

func newFanout(subscribers int) *fanout {
	f := &fanout{start: time.Now()}
	f.left.Store(int64(subscribers+1) / 2)
	if subscribers < 2 { // one: its pace is its own business
		f.elapsed.Store(1)
	}
	return f
}

// done counts a subscriber; each is counted once. A nil fanout is none.
func (f *fanout) done() {
	if f != nil && f.left.Add(-1) == 0 {
		f.elapsed.Store(max(1, 2*int64(time.Since(f.start))))
	}
}

func (f *fanout) duration() time.Duration {
	if e := f.elapsed.Load(); e != 0 {
		return time.Duration(e)
	}
	return 2 * time.Since(f.start)
}

// New makes an engine that does nothing before Start.
func New(opts Options) *Engine {
	if opts.CacheMillis == nil {
		opts.CacheMillis = func() int64 { return nacos.CacheMillis }
	}
	e := &Engine{opts: opts, subscribers: map[*Subscriber]struct{}{}}
	e.watches.patterns = map[nacos.Pattern]map[*watch]struct{}{}
	e.metrics = newMetrics(opts.Metrics, e)
	for i := range e.shards {
		e.shards[i].topics = map[registry.ServiceKey]*topic{}
		e.shards[i].wake = make(chan struct{}, 1)
	}
	return e
}

// Start starts the loops. Stop ends them.
func (e *Engine) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	e.stop = cancel
	for i := range e.shards {
		e.wg.Go(func() {
			pprof.Do(ctx, pprof.Labels("loop", "push.flush"), func(ctx context.Context) { e.flushLoop(ctx, &e.shards[i]) })
		})
	}
	e.wg.Go(func() {
		pprof.Do(ctx, pprof.Labels("loop", "push.acks"), e.ackLoop)
	})
}

// Stop ends the loops and waits for them. Nothing is pushed afterwards.
func (e *Engine) Stop() {
	e.stop()
	e.wg.Wait()
	for i := range e.shards {
		sh := &e.shards[i]
		sh.mu.Lock()
		for _, t := range sh.topics {
			if t.timer != nil {
				t.timer.Stop()
			}
		}
		sh.mu.Unlock()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for s := range e.subscribers {
		s.stopTimers()
	}
}

// Hold keeps back everything that would be pushed, the first push of a
// subscription and what watches have to tell included, as Nacos does while its
// switch pushEnabled is off (semantics E20). Answers stay fresh. What is kept
// back is marks, not messages: when Hold(false) ends it, each client gets the
// newest picture of what has changed for it.
func (e *Engine) Hold(on bool) {
	if e.held.Swap(on) == on || on {
		return
	}
	for _, s := range e.everybody() {
		if s.Pending() {
			s.conn.Wake()
		}
	}
}

// everybody copies the subscribers: none is called under the lock.
func (e *Engine) everybody() []*Subscriber {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Keys(e.subscribers))
}

var seed = maphash.MakeSeed()

func (e *Engine) shard(key registry.ServiceKey) *shard {
	return &e.shards[maphash.Comparable(seed, key)%uint64(len(e.shards))]
}

// Mark says that a service has changed and the change can be read. It only
// sets a mark; a service without subscribers costs a look-up.
func (e *Engine) Mark(key registry.ServiceKey) {
	sh := e.shard(key)
	sh.mu.Lock()
	t := sh.topics[key]
	if t == nil {
		sh.mu.Unlock()
		return
	}
	if t.marked.IsZero() {
		t.marked = time.Now()
	}
	wake := false
	switch t.state {
	case quiet:
		wake = sh.enqueueLocked(t)
	case cooling:
		t.dirty = true
	}
	sh.mu.Unlock()
	if wake {
		sh.poke()
	}
}

func (sh *shard) enqueueLocked(t *topic) bool {
	t.state, t.dirty = ready, false
	sh.ready = append(sh.ready, t)
	return len(sh.ready) == 1
}

func (sh *shard) poke() {
	select {
	case sh.wake <- struct{}{}:
	default:
	}
}

func (e *Engine) flushLoop(ctx context.Context, sh *shard) {
	var subs []*subscription // reused between fan-outs
	for {
		select {
		case <-ctx.Done():
			return
		case <-sh.wake:
		}
		for ctx.Err() == nil {
			sh.mu.Lock()
			if len(sh.ready) == 0 {
				sh.mu.Unlock()
				break
			}
			t := sh.ready[0]
			sh.ready = sh.ready[1:]
			subs = subs[:0]
			for s := range t.subs {
				subs = append(subs, s)
			}
			marked := t.marked
			t.marked = time.Time{}
			t.state = cooling
			f := newFanout(len(subs))
			t.fanout = f
			sh.mu.Unlock()

			e.flush(t.key, subs, f, marked)
			clear(subs)

			sh.mu.Lock()
			e.coolLocked(sh, t)
			sh.mu.Unlock()
		}
	}
}

// flush offers the newest picture of a service to its subscribers; their
// senders take it from there. It is encoded here, once for each filter in use.
func (e *Engine) flush(key registry.ServiceKey, subs []*subscription, f *fanout, marked time.Time) {
	snap := e.opts.Source.Snapshot(key)
	for _, s := range subs {
		s.subscriber.offer(s, offer{snap: snap, fanout: f, marked: marked})
	}
	e.metrics.fanouts.Inc()
}

// coolLocked waits for the end of the window that began with the last
// fan-out, and then lets the topic be marked again, or flushes it if it was
// marked meanwhile.
func (e *Engine) coolLocked(sh *shard, t *topic) {
	window := min(max(e.opts.MinWindow, 3*t.fanout.duration()), e.opts.MaxWindow)
	rest := time.Until(t.fanout.start.Add(window))
	if rest > 0 {
		if t.timer == nil {
			t.timer = time.AfterFunc(rest, func() {
				sh.mu.Lock()
				// While the fan-out is still going on the window has grown
				// since the timer was set.
				e.coolLocked(sh, t)
				sh.mu.Unlock()
			})
		} else {
			t.timer.Reset(rest)
		}
		return
	}
	t.state = quiet
	switch {
	case t.dirty:
		if sh.enqueueLocked(t) {
			sh.poke()
		}
	case len(t.subs) == 0:
		delete(sh.topics, t.key)
	}
}

func (e *Engine) addSubscription(s *subscription) {
	sh := e.shard(s.key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	t := sh.topics[s.key]
	if t == nil {
		t = &topic{key: s.key, subs: map[*subscription]struct{}{}}
		sh.topics[s.key] = t
	}
	t.subs[s] = struct{}{}
	e.metrics.subscriptions.Add(1)
}

func (e *Engine) removeSubscription(s *subscription) {
	sh := e.shard(s.key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	t := sh.topics[s.key]
	if t == nil {
		return
	}
	delete(t.subs, s)
	e.metrics.subscriptions.Add(-1)
	if len(t.subs) == 0 && t.state == quiet {
		delete(sh.topics, s.key)
	}
}

// Subscribed counts the subscriptions on this node.
func (e *Engine) Subscribed() int { return int(e.metrics.subscriptions.Load()) }

// ackLoop drops connections whose client does not acknowledge. A subscriber
// without a push under way costs one look at an empty map.
func (e *Engine) ackLoop(ctx context.Context) {
	period := max(e.opts.AckTimeout/12, time.Millisecond)
	t := time.NewTicker(period)
	defer t.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		// After this process stood still, acks may lie unread in the sockets.
		stalled := time.Since(last) > period+2*time.Second
		last = time.Now()
		if stalled {
			continue
		}
		late := 0
		for _, s := range e.everybody() {
			// As of the tick: a stall in the middle of this loop must not be
			// taken for the clients'.
			if !s.silent(last, period) {
				continue
			}
			late++
			if s.silent(last, e.opts.AckTimeout) {
				e.metrics.dropped.Inc()
				e.results.add(false, -1)
				s.conn.Drop(registry.CauseNoAck)
			}
		}
		e.metrics.late.Set(float64(late))
	}
}
