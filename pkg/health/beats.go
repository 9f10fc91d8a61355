package health

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"runtime/pprof"
	"strconv"
	"sync"
	"sync/atomic"
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
	Copy(key registry.ServiceKey, client string) (registry.Copy, bool)
}

// Options of Beats.
type Options struct {
	Registry Registry
	// Life is the registry's own.
	Life registry.Life
	// Owner reports whether this node is to keep the client of that id, by
	// its view of the cluster; other nodes may see it otherwise for a while.
	// It must not block nor call Beats. Nil: there are no other nodes.
	Owner func(client string) bool
	// Awake is called, with no lock held, before anything is registered or
	// removed. It returns when the node has handled that this process stood
	// still, if it did; for that it calls Stalled. Nil: it never stands still.
	Awake func()
	// Enabled is the switch healthCheckEnabled (semantics H20): while it is off
	// nothing becomes unhealthy and nothing goes for lack of beats. Before it is
	// on again, Anew is to be called. It must not block. Nil: it is on.
	Enabled func() bool
	// Usual is the switch clientBeatInterval: how often clients are told to beat
	// whose metadata does not say, in milliseconds. It must not block. Nil: as
	// in Nacos.
	Usual func() int64
	// SignOfLife is asked before an instance is unhealthy or goes for lack of
	// beats, with the time of the last: whether its address, host:port, answers,
	// which may be known only later. An answer counts as a beat for as long as it
	// is fresh. It must not block. Nil: none does.
	SignOfLife func(since time.Time, addr string, fresh time.Duration) (answered, known bool)
	// Interval is the time between two looks for what is overdue (semantics
	// H7). What is overdue is found at most this much later.
	Interval time.Duration
	// Timeout is the silence after which an instance is unhealthy,
	// DeleteAfter the one after which it goes (semantics H8). Instances may
	// bring their own in their metadata, and an operator's override of that
	// metadata comes first (semantics H9).
	Timeout, DeleteAfter time.Duration
	// HandoverGrace is how long a node keeps its copy of a client beside the
	// newer one of the node that the client's beats go to now (design §6).
	HandoverGrace time.Duration
	Logger        *zap.Logger
	Metrics       prometheus.Registerer
}

// DefaultOptions has the times of Nacos and of design §6. Registry, Logger and
// Metrics are the caller's.
func DefaultOptions() Options {
	return Options{Interval: 5 * time.Second, Timeout: 15 * time.Second, DeleteAfter: 30 * time.Second, HandoverGrace: 10 * time.Second}
}

// Validate names every field that makes no sense.
func (o *Options) Validate() error {
	var errs []error
	for _, d := range []struct {
		field string
		is    time.Duration
	}{{"Interval", o.Interval}, {"Timeout", o.Timeout}, {"HandoverGrace", o.HandoverGrace}} {
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
	alone   bool // there are no other nodes
	metrics *metrics
	floor   atomic.Pointer[time.Time] // deadlines do not start before: the last Anew

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

func (a address) String() string { return net.JoinHostPort(a.ip, strconv.Itoa(a.port)) }

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
	sign     time.Time          // the last other sign of life; zero: there was none
	since    registry.Stamp     // registration clock; 0: not known
	redo     int                // seconds, as the registry was told
	newer    time.Time          // when another node's newer copy was first seen; zero: there is none
}

// NewBeats makes Beats without clients. Nothing is overdue before Start.
// Options are to be valid.
func NewBeats(opts Options) *Beats {
	if opts.Awake == nil {
		opts.Awake = func() {}
	}
	if opts.Enabled == nil {
		opts.Enabled = func() bool { return true }
	}
	if opts.Usual == nil {
		opts.Usual = func() int64 { return nacos.DefaultBeatInterval }
	}
	if opts.SignOfLife == nil {
		opts.SignOfLife = func(time.Time, string, time.Duration) (answered, known bool) { return false, true }
	}
	alone := opts.Owner == nil
	if alone {
		opts.Owner = func(string) bool { return true }
	}
	b := &Beats{opts: opts, alone: alone, clients: map[address]*client{}}
	b.floor.Store(new(time.Time))
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

// Stalled tells that this process stood still until now: beats may lie unread
// in the sockets, and every deadline starts anew. It does not block.
func (b *Beats) Stalled() {
	b.Anew()
	b.metrics.stalls.Inc()
}

// Anew starts every deadline anew, as of now. It does not block.
func (b *Beats) Anew() {
	now := time.Now()
	b.floor.Store(&now)
}

// Clients counts the HTTP clients.
func (b *Beats) Clients() int {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return len(b.clients)
}

// Register publishes the instance as the one of its ip:port in the service: an
// instance in another cluster is replaced. With [registry.ErrEvicted] it is
// published all the same, and its beats are taken: nobody sees it.
func (b *Beats) Register(key registry.ServiceKey, inst *registry.Instance) error {
	b.opts.Awake()
	c := b.lock(address{inst.IP, inst.Port}, true)
	defer b.unlock(c)
	err := c.registry.Register(key, []*registry.Instance{inst}, false)
	if err != nil {
		err = fmt.Errorf("registering %s in %v: %w", c.registry.ID(), key, err)
	}
	if err == nil || errors.Is(err, registry.ErrEvicted) {
		l := &lease{instance: inst, healthy: inst.Healthy, beat: time.Now(), since: b.sinceOf(c, key, inst)}
		if was := c.leases[key]; was != nil {
			l.redo = was.redo
		}
		c.leases[key] = l
		b.slow(c, key, l, b.metadata(c, key, l))
	}
	return err
}

// sinceOf is the registration clock of what the client has just registered.
func (b *Beats) sinceOf(c *client, key registry.ServiceKey, inst *registry.Instance) registry.Stamp {
	shown, ok := b.opts.Registry.Snapshot(key).Find(inst.InstanceKey)
	if !ok || !b.own(c, shown) {
		return 0
	}
	return shown.Since
}

// own reports whether what is shown is what the client registered here.
func (b *Beats) own(c *client, shown *registry.Shown) bool {
	return shown.Client == c.registry.ID() && shown.Life == b.opts.Life
}

// Deregister withdraws the instance of an address from the service, whatever
// its cluster, and reports whether an HTTP client had one there, at this node
// or another: then it is hidden everywhere until it is registered again.
// Instances of other kinds of clients with the same address stay (cases C14).
func (b *Beats) Deregister(key registry.ServiceKey, which registry.InstanceKey) (found bool) {
	b.opts.Awake()
	cp, copied := b.opts.Registry.Copy(key, nacos.BeatClientID(which.IP, which.Port))
	if copied = copied && len(cp.Instances) > 0; copied {
		which = cp.Instances[0].InstanceKey
	}
	c := b.lock(address{which.IP, which.Port}, copied || !b.alone)
	if c == nil {
		return false
	}
	defer b.unlock(c)
	switch l := c.leases[key]; {
	case l != nil:
		c.registry.Deregister(key, l.instance.InstanceKey)
		delete(c.leases, key)
	case !b.alone: // this node may not have heard of it yet
		c.registry.Deregister(key, which)
		return copied
	default:
		return false
	}
	return true
}

// Beat renews the lease of ip:port in the service and returns the instance as
// it was registered; an unhealthy one is healthy at once. If it is another
// node that has the lease, it is taken over. known is false when no HTTP
// client has registered the instance, or when it is not shown any more and
// this node has no lease: then only the client can say that it is still meant.
func (b *Beats) Beat(key registry.ServiceKey, ip string, port int) (inst *registry.Instance, known bool) {
	b.opts.Awake()
	at := address{ip, port}
	c := b.lock(at, false)
	if c == nil {
		if _, copied := b.opts.Registry.Copy(key, nacos.BeatClientID(ip, port)); !copied {
			b.metrics.unknown.Inc()
			return nil, false
		}
		c = b.lock(at, true)
	}
	defer b.unlock(c)
	l := c.leases[key]
	v, newest, md := b.look(c, key, l)
	again, since := v.restamp()
	switch {
	case again && (l != nil || since != 0):
		taken, err := b.adopt(c, key, newest, since)
		if err != nil {
			b.opts.Logger.Warn("a beat cannot register its instance", zap.Stringer("service", key), zap.String("client", c.registry.ID()), zap.Error(err))
			break
		}
		if l == nil {
			b.metrics.adopted.Inc()
		} else {
			b.metrics.restamped.Inc()
		}
		l = taken
	case l == nil:
	case l.healthy:
		b.metrics.renewed.Inc()
	default:
		l.healthy = true
		c.registry.SetHealthy(key, true, registry.CauseBeatResumed)
		b.metrics.resumed.Inc()
	}
	if l == nil {
		b.metrics.unknown.Inc()
		return nil, false
	}
	l.beat = time.Now()
	b.slow(c, key, l, md)
	return l.instance, true
}

// A view is what a beat finds in the registry under its instance.
type view struct {
	owner  bool           // by its view of the cluster, this node is to keep the client
	lease  bool           // it does
	mine   registry.Stamp // with this registration clock; 0: not known
	copied bool           // the client is registered at another node as well
	copy   registry.Stamp // then, the newest registration clock there

	shown  bool           // something is
	own    bool           // it is this node's copy of the client
	theirs bool           // it is another client's, of another kind
	living bool           // whose node is there
	since  registry.Stamp // with this registration clock
}

// restamp decides whether a beat registers the instance anew, and with which
// clock (0: now). It does if readers are not shown, as strictly the newest, a
// copy of the client that takes beats: one step above the newest copy, so that
// no removal of that hides it; now where nothing is shown (design §6).
//
// A client of another kind that is shown has registered later. It stays, and
// the copy below it is kept as if it were shown.
func (v view) restamp() (again bool, since registry.Stamp) {
	switch {
	case !v.shown:
		return true, 0
	case v.own, v.theirs && v.lease:
		return v.owner && v.copied && v.mine != 0 && v.copy >= v.mine, v.copy + 1
	case v.theirs:
		return v.copied, v.copy + 1
	case v.lease && v.living && !v.owner:
		return false, 0
	}
	return true, max(v.since, v.copy) + 1
}

// look fills in a view, and finds the newest that the client has said about
// the instance; nil is a copy that says nothing. The metadata is that of
// Beats.metadata.
func (b *Beats) look(c *client, key registry.ServiceKey, l *lease) (v view, newest *registry.Instance, md registry.Metadata) {
	cp, copied := b.opts.Registry.Copy(key, c.registry.ID())
	if l != nil {
		v.lease, v.mine, newest = true, l.since, l.instance
	}
	if copied && len(cp.Instances) > 0 {
		v.copied, v.copy = true, cp.Since
		if l == nil || l.since != 0 && cp.Since > l.since {
			newest = cp.Instances[0].Instance
		}
	}
	if newest == nil {
		return v, nil, nil
	}
	md = newest.Metadata
	if shown, ok := b.opts.Registry.Snapshot(key).Find(newest.InstanceKey); ok {
		v.shown, v.since, v.living = true, shown.Since, shown.State == registry.Living && !shown.Moving
		v.theirs = shown.Client != c.registry.ID()
		v.own = b.own(c, shown)
		if !v.theirs {
			md = shown.Metadata
		}
	}
	if v.copied || !v.own { // else it makes no difference
		v.owner = b.opts.Owner(c.registry.ID())
	}
	return v, newest, md
}

// redoMargin is what a client that beats seldom may take beyond its interval
// until another node has its beat: a try at the one that is gone, and the next.
const redoMargin = 5 * time.Second

// slow tells the registry how long it may be until another node hears of what
// the client has registered for a service, should this one go: the next beat
// comes when its answer said, by the metadata that readers see; one that does
// not say how often it beats, and may be silent for longer than usual, may use
// all of that. Who beats every 5 s is heard of within every lease; who beats less
// often is known to be slow (design §6, cases C11).
func (b *Beats) slow(c *client, key registry.ServiceKey, l *lease, md registry.Metadata) {
	redo, told := 0, b.opts.Usual()
	if silence := nacos.MetadataMillis(md, nacos.KeyBeatTimeout, 0); silence > nacos.DefaultBeatTimeout {
		told = max(told, silence)
	}
	if every := nacos.MetadataMillis(md, nacos.KeyBeatInterval, told); every > nacos.DefaultBeatInterval {
		redo = int(min(every, math.MaxInt32)/1000 + int64(redoMargin/time.Second))
	}
	if redo != l.redo {
		l.redo = redo
		c.registry.RedoOf(key, redo)
	}
}

// adopt registers the instance with a clock of our choice and starts a whole
// new lease.
func (b *Beats) adopt(c *client, key registry.ServiceKey, inst *registry.Instance, since registry.Stamp) (*lease, error) {
	if !inst.Healthy { // it beats
		healthy := *inst
		healthy.Healthy = true
		inst = &healthy
	}
	if err := c.registry.Adopt(key, inst, since); err != nil {
		return nil, err
	}
	l := &lease{instance: inst, healthy: true, since: since}
	if since == 0 {
		l.since = b.sinceOf(c, key, inst)
	}
	if was := c.leases[key]; was != nil {
		l.redo = was.redo
	}
	c.leases[key] = l
	return l, nil
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
		c = &client{at: at, registry: b.opts.Registry.Open(nacos.BeatClientID(at.ip, at.port), registry.Beat), leases: map[registry.ServiceKey]*lease{}}
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
	t := time.NewTicker(b.opts.Interval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			b.sweep(ctx, time.Now())
		}
	}
}

// sweep decides everything as of now. A stall in the middle of it leads to no
// other decision but those that it has not come to: Awake comes before each.
func (b *Beats) sweep(ctx context.Context, now time.Time) {
	b.mu.RLock()
	clients := make([]*client, 0, len(b.clients))
	for _, c := range b.clients {
		clients = append(clients, c)
	}
	b.mu.RUnlock()
	var unhealthy, removed, handedOver int
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
		b.opts.Awake()
		owner := b.opts.Owner(c.registry.ID())
		enabled := b.opts.Enabled() // before floor, which moves before it is on again
		floor := *b.floor.Load()
		c.mu.Lock()
		if c.gone {
			c.mu.Unlock()
			continue
		}
		for key, l := range c.leases {
			if b.elsewhere(c, key, l, owner, now) {
				if now.Sub(later(l.newer, floor)) >= b.opts.HandoverGrace {
					c.registry.Remove(key, registry.CauseReplaced)
					delete(c.leases, key)
					handedOver++
				}
				continue // its beats go there
			}
			if !enabled {
				continue
			}
			overdue := b.judge(now.Sub(later(later(l.beat, l.sign), floor)), b.metadata(c, key, l))
			if overdue != alive && l.healthy && b.vouched(c, l, floor, now) {
				continue
			}
			switch overdue {
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
	b.metrics.handedOver.Add(float64(handedOver))
	if unhealthy+removed > 0 {
		b.opts.Logger.Info("instances without beats", zap.Int("unhealthy", unhealthy), zap.Int("removed", removed), zap.Strings("some", some))
	}
}

// vouched reports whether something but beats speaks for a client, or whether
// that is not known yet. Its beats may be reaching a node that this one does not
// hear; when the two hear each other again, it has the whole time-out for the
// next one to come here, or to be handed on.
func (b *Beats) vouched(c *client, l *lease, floor, now time.Time) bool {
	answered, known := b.opts.SignOfLife(later(l.beat, floor), c.at.String(), 2*b.opts.Interval)
	if answered {
		l.sign = now
	}
	return answered || !known
}

// elsewhere reports whether another node that is there has a newer copy of the
// client and is to keep it, and remembers since when.
func (b *Beats) elsewhere(c *client, key registry.ServiceKey, l *lease, owner bool, now time.Time) bool {
	if !owner {
		if cp, ok := b.opts.Registry.Copy(key, c.registry.ID()); ok && cp.Living && l.since != 0 && cp.Since > l.since {
			if l.newer.IsZero() {
				l.newer = now
			}
			return true
		}
	}
	l.newer = time.Time{}
	return false
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// metadata is that of the instance as readers see it, with an operator's
// override; or as it was registered, where another client's is shown.
func (b *Beats) metadata(c *client, key registry.ServiceKey, l *lease) registry.Metadata {
	if shown, ok := b.opts.Registry.Snapshot(key).Find(l.instance.InstanceKey); ok && shown.Client == c.registry.ID() {
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
