package health

import (
	"context"
	"errors"
	"fmt"
	"runtime/pprof"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

// A Registry is what Beats needs of *registry.Registry.
type Registry interface {
	Open(id string, kind registry.Kind) *registry.Client
	Snapshot(registry.ServiceKey) *registry.Snapshot
}

// Options of Beats.
type Options struct {
	Registry Registry
	// Interval is the time between two looks for what is overdue (semantics
	// H7). What is overdue is found at most this much later.
	Interval time.Duration
	// Timeout is the silence after which an instance is unhealthy,
	// DeleteAfter the one after which it goes (semantics H8). Instances may
	// bring their own in their metadata, and an operator's override of that
	// metadata comes first (semantics H9).
	Timeout, DeleteAfter time.Duration
	// Stall is how late the loop may be before the node itself counts as
	// stalled.
	Stall   time.Duration
	Logger  *zap.Logger
	Metrics prometheus.Registerer
}

// DefaultOptions has the times of Nacos and of design §6. Registry, Logger and
// Metrics are the caller's.
func DefaultOptions() Options {
	return Options{Interval: 5 * time.Second, Timeout: 15 * time.Second, DeleteAfter: 30 * time.Second, Stall: 2 * time.Second}
}

// Validate names every field that makes no sense.
func (o *Options) Validate() error {
	var errs []error
	for _, d := range []struct {
		field string
		is    time.Duration
	}{{"Interval", o.Interval}, {"Timeout", o.Timeout}, {"Stall", o.Stall}} {
		if d.is <= 0 {
			errs = append(errs, fmt.Errorf("%s: %v is not positive", d.field, d.is))
		}
	}
	if o.DeleteAfter < o.Timeout {
		errs = append(errs, fmt.Errorf("DeleteAfter: %v is below Timeout %v", o.DeleteAfter, o.Timeout))
	}
	if o.Registry == nil {
		errs = append(errs, errors.New("Registry: is missing"))
	}
	return errors.Join(errs...)
}

// Beats holds the HTTP clients of this node. Each ip:port is one client, in
// all services and namespaces together, with one instance per service
// (http-api §10). Its methods may be called from any goroutine.
type Beats struct {
	opts    Options
	tick    time.Duration // of the loop
	metrics *metrics

	// Owned by the loop.
	due     time.Time // when it is to wake up
	sweepAt time.Time
	floor   time.Time // deadlines do not start before: the end of the last stall

	mu      sync.RWMutex
	clients map[address]*client

	ctx    context.Context // ends the loop
	cancel context.CancelFunc
	once   sync.Once
	wg     sync.WaitGroup
}

type address struct {
	ip   string
	port int
}

// A client has at least one lease, or is gone.
//
// Its lock is held while the registry is told of a change. Else an expiry that
// was decided before a registration could be carried out after it. Lock order:
// client, then whatever the registry locks (and, through registry.Changed,
// pushes); client, then Beats.mu. Different clients do not wait for each
// other, and a beat of a healthy instance does not call the registry.
type client struct {
	at       address
	registry *registry.Client

	mu     sync.Mutex
	gone   bool // no longer in Beats.clients
	leases map[registry.ServiceKey]*lease
}

// A lease is guarded by its client's lock.
type lease struct {
	instance *registry.Instance // as registered
	healthy  bool               // as the registry was told
	beat     time.Time          // the last one; registering counts as one
}

// NewBeats makes Beats without clients. Nothing is overdue before Start.
// Options are to be valid.
func NewBeats(opts Options) *Beats {
	b := &Beats{opts: opts, clients: map[address]*client{}}
	// The loop wakes up more often than it looks for what is overdue: it
	// cannot notice a stall that fits between two wake-ups.
	b.tick = max(min(opts.Interval, opts.Stall/2), time.Millisecond)
	b.metrics = newMetrics(opts.Metrics, b)
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

// Start starts the loop, once; after Stop it does nothing.
func (b *Beats) Start() {
	b.once.Do(func() {
		b.wg.Go(func() { pprof.Do(b.ctx, pprof.Labels("loop", "health.beats"), b.loop) })
	})
}

// Stop ends the loop and waits for it. What is registered stays as it is.
func (b *Beats) Stop() {
	b.cancel()
	b.once.Do(func() {})
	b.wg.Wait()
}

// Clients counts the HTTP clients.
func (b *Beats) Clients() int {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return len(b.clients)
}

// Register publishes the instance as the one of its ip:port in the service: an
// instance in another cluster is replaced.
func (b *Beats) Register(key registry.ServiceKey, inst *registry.Instance) error {
	c := b.lock(address{inst.IP, inst.Port}, true)
	defer b.unlock(c)
	if err := c.registry.Register(key, []*registry.Instance{inst}, false); err != nil {
		return fmt.Errorf("registering %s in %v: %w", c.registry.ID(), key, err)
	}
	c.leases[key] = &lease{instance: inst, healthy: inst.Healthy, beat: time.Now()}
	return nil
}

// Deregister withdraws the instance of ip:port from the service, whatever its
// cluster, and reports whether an HTTP client had one there. Instances of
// other clients with the same address stay (cases C14).
func (b *Beats) Deregister(key registry.ServiceKey, ip string, port int) (found bool) {
	c := b.lock(address{ip, port}, false)
	if c == nil {
		return false
	}
	defer b.unlock(c)
	l := c.leases[key]
	if l == nil {
		return false
	}
	c.registry.Deregister(key, l.instance.InstanceKey)
	delete(c.leases, key)
	return true
}

// Beat renews the lease of ip:port in the service and returns the instance as
// it was registered; an unhealthy one is healthy at once. known is false when
// no HTTP client has registered it here.
func (b *Beats) Beat(key registry.ServiceKey, ip string, port int) (inst *registry.Instance, known bool) {
	c := b.lock(address{ip, port}, false)
	if c == nil {
		b.metrics.unknown.Inc()
		return nil, false
	}
	defer b.unlock(c)
	l := c.leases[key]
	if l == nil {
		b.metrics.unknown.Inc()
		return nil, false
	}
	l.beat = time.Now()
	if l.healthy {
		b.metrics.renewed.Inc()
	} else {
		l.healthy = true
		c.registry.SetHealthy(key, true, registry.CauseBeatResumed)
		b.metrics.resumed.Inc()
	}
	return l.instance, true
}

// lock returns the client of an address, locked; nil if there is none and none
// is wanted.
func (b *Beats) lock(at address, create bool) *client {
	for {
		b.mu.RLock()
		c := b.clients[at]
		b.mu.RUnlock()
		if c == nil && !create {
			return nil
		}
		if c == nil {
			c = b.create(at)
		}
		c.mu.Lock()
		if !c.gone {
			return c
		}
		c.mu.Unlock() // it went meanwhile, and is out of the map
	}
}

func (b *Beats) create(at address) *client {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.clients[at]
	if c == nil {
		id := at.ip + ":" + strconv.Itoa(at.port) + "#true" // as Nacos names it
		c = &client{at: at, registry: b.opts.Registry.Open(id, registry.Beat), leases: map[registry.ServiceKey]*lease{}}
		b.clients[at] = c
	}
	return c
}

// unlock gives a client back; one without a lease ends.
func (b *Beats) unlock(c *client) {
	if len(c.leases) == 0 {
		c.gone = true
		c.registry.Close(registry.CauseDeregistered)
		b.mu.Lock()
		delete(b.clients, c.at)
		b.mu.Unlock()
	}
	c.mu.Unlock()
}

func (b *Beats) loop(ctx context.Context) {
	now := time.Now()
	b.due, b.sweepAt = now.Add(b.tick), now.Add(b.opts.Interval)
	timer := time.NewTimer(b.tick)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		b.step(ctx, time.Now())
		timer.Reset(time.Until(b.due))
	}
}

// step is one turn of the loop. Everything in it is decided as of now, which
// was read by a loop that is not late; a stall in the middle of it leads to no
// other decision.
func (b *Beats) step(ctx context.Context, now time.Time) {
	if late := now.Sub(b.due); late > b.opts.Stall {
		b.floor = now
		b.metrics.stalls.Inc()
		b.opts.Logger.Warn("this node was stalled; the deadlines of all beats start anew", zap.Duration("late", late))
	}
	// From before the sweep: one that takes too long is a stall as well.
	b.due = now.Add(b.tick)
	if now.Before(b.sweepAt) {
		return
	}
	b.sweepAt = now.Add(b.opts.Interval)
	b.sweep(ctx, now)
}

func (b *Beats) sweep(ctx context.Context, now time.Time) {
	b.mu.RLock()
	clients := make([]*client, 0, len(b.clients))
	for _, c := range b.clients {
		clients = append(clients, c)
	}
	b.mu.RUnlock()
	var unhealthy, removed int
	var some []string // for the log
	name := func(c *client, key registry.ServiceKey) {
		if len(some) < 5 {
			some = append(some, key.String()+" "+c.registry.ID())
		}
	}
	for _, c := range clients {
		if ctx.Err() != nil {
			return
		}
		c.mu.Lock()
		if c.gone {
			c.mu.Unlock()
			continue
		}
		for key, l := range c.leases {
			since := l.beat
			if b.floor.After(since) {
				since = b.floor
			}
			switch b.judge(now.Sub(since), b.metadata(c, key, l)) {
			case expired:
				c.registry.Remove(key, registry.CauseBeatTimeout)
				delete(c.leases, key)
				removed++
				name(c, key)
			case silent:
				if l.healthy {
					l.healthy = false
					c.registry.SetHealthy(key, false, registry.CauseBeatMissed)
					unhealthy++
					name(c, key)
				}
			}
		}
		b.unlock(c)
	}
	b.metrics.unhealthy.Add(float64(unhealthy))
	b.metrics.removed.Add(float64(removed))
	if unhealthy+removed > 0 {
		b.opts.Logger.Info("instances without beats", zap.Int("unhealthy", unhealthy), zap.Int("removed", removed), zap.Strings("some", some))
	}
}

// metadata is that of the instance as readers see it, with an operator's
// override; or as it was registered, where another client's is shown.
func (b *Beats) metadata(c *client, key registry.ServiceKey, l *lease) registry.Metadata {
	if shown, ok := b.opts.Registry.Snapshot(key).Get(l.instance.InstanceKey); ok && shown.Client == c.registry.ID() {
		return shown.Metadata
	}
	return l.instance.Metadata
}

type verdict uint8

const (
	alive verdict = iota
	silent
	expired
)

// judge compares milliseconds: metadata may hold more of them than a Duration.
func (b *Beats) judge(silence time.Duration, md registry.Metadata) verdict {
	ms := silence.Milliseconds()
	switch {
	case ms > nacos.MetadataMillis(md, nacos.KeyDeleteAfter, b.opts.DeleteAfter.Milliseconds()):
		return expired
	case ms > nacos.MetadataMillis(md, nacos.KeyBeatTimeout, b.opts.Timeout.Milliseconds()):
		return silent
	}
	return alive
}
