package distro

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/pprof"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/registry"
)

// Wire is the version of what nodes say to each other. It is raised when an
// older release could no longer read it; peers tell it in their Hello.
const Wire = 1

// MemberState is what membership knows of a node.
type MemberState uint8

const (
	Alive   MemberState = iota
	Silent              // dead for membership, and its ports do not answer
	Refused             // its ports refuse: the process is gone
	Left                // on purpose
)

func (s MemberState) String() string {
	switch s {
	case Alive:
		return "alive"
	case Silent:
		return "silent"
	case Refused:
		return "refused"
	case Left:
		return "left"
	}
	return "unknown"
}

// A Member is a node of the cluster.
type Member struct {
	ID    string // 32 hex digits
	Epoch uint64
	State MemberState
	Name  string // for people
}

// Via is the carrier that brought a message.
type Via uint8

const (
	Stream   Via = iota // in order, as long as it stands
	Reliable            // whole, but in no order; never acknowledged
	Gossip              // perhaps
)

// Peers carries messages to other nodes. What it is given is not changed
// afterwards.
type Peers interface {
	// Broadcast gossips a message to all, best effort; false: there is no room,
	// or it is too big. It must not block.
	Broadcast(msg []byte) bool
	// Send blocks until the stream has credit for the message. Without a
	// stream it goes as a reliable message.
	Send(ctx context.Context, to string, msg []byte) error
	// Pull hands each message of the answer to part, one after the other.
	Pull(ctx context.Context, from string, req []byte, part func([]byte) error) error
}

// A Registry holds what clients see; *registry.Registry is one. Its methods
// are called without the replicator's lock, those for one life one after the
// other. They must not call the replicator, but for Wrote.
type Registry interface {
	Take(registry.RecordKey) registry.Record
	Apply(registry.Life, []registry.Record)
	SetLife(registry.Life, registry.LifeState, registry.Stamp)
	SetAlone(bool)
	ForgetLife(registry.Life)
	Unanswered(registry.Probe)
	Checked(registry.Check)
	Orphans(registry.Life, func(registry.ServiceKey, *registry.Shown))
}

// Options of a [Replicator]; see [DefaultOptions].
type Options struct {
	Registry Registry
	Peers    Peers
	Life     registry.Life // own
	Clock    *registry.Clock
	// Dial connects to the address of an instance and closes again: the expiry
	// probe.
	Dial func(ctx context.Context, addr string) error
	// Awake is called inline and without locks before every drop, head and
	// frame. It notices that this process stood still, and returns when all
	// that follows from it is done, the call of Stalled included; meanwhile
	// other callers wait in it.
	Awake func()
	// Outlived is called once when others know a life of this node that this
	// process cannot have written: it must go on under a new epoch. It is
	// called on a goroutine that delivers messages.
	Outlived func()
	// Load opens the last snapshot; an error that is fs.ErrNotExist: there is
	// none. Save replaces it by what write writes, or not at all. Both may be
	// nil.
	Load func() (io.ReadCloser, error)
	Save func(write func(io.Writer) error) error
	// Joined: other nodes were named at the start.
	Joined bool
	// Known: other nodes were members in an earlier run.
	Known bool
	// Stable are members that were alive for long enough in an earlier run.
	Stable []string

	Leases Leases
	Tick   time.Duration // of heads and of all judging
	// A quiet stream sends at once, a busy one after BusyFor or BusyBytes:
	// busyBurst frames may come faster than the pace.
	BusyFor   time.Duration
	BusyBytes int
	// ReliableFor is the pace where there is no stream.
	ReliableFor     time.Duration
	GossipFrames    bool
	GossipPerSecond int           // messages, heads included
	GossipHeads     time.Duration // heads are gossiped at least as often
	PullDelay       time.Duration // after gossip told of what a stream should bring by itself
	PullTimeout     time.Duration // of one pull without progress

	ProbeEvery   time.Duration // of one address; 0: no expiry probe
	ProbeTimeout time.Duration
	ProbeRate    int // dials a second

	StableAfter    time.Duration // a member counts for majorities; pauses are forgotten
	DropMemory     time.Duration
	Grace          time.Duration // of tombstones and hides; none where nobody else was ever heard of
	TombstoneBytes int           // of each life
	MaxHides       int           // of one record
	MaxLives       int           // besides those of members that are there
	StagedBytes    int           // of frames of which parts are missing

	CatchUp   time.Duration // at most
	JoinAlone time.Duration // nobody is reachable

	SnapshotEvery time.Duration
	SnapshotAge   time.Duration // older ones are not used

	MaxClockOff  time.Duration // beyond it a node is refused
	FlagClockOff time.Duration // beyond it Status says so

	Logger  *zap.Logger
	Metrics prometheus.Registerer
}

// DefaultOptions has the times of design §§5 and 6. Registry, Peers, Life,
// Clock, Dial, Logger and Metrics are the caller's.
func DefaultOptions() Options {
	return Options{
		Awake: func() {}, Outlived: func() {},
		Leases: Leases{Detection: 2500 * time.Millisecond, Heads: time.Second, Refused: 10 * time.Second, Silent: 22500 * time.Millisecond, Cap: time.Minute,
			Restart: 30 * time.Second, RedoRate: 2000, MovingFor: 10 * time.Second, ProbeBound: 3 * time.Minute, PauseBound: 3 * time.Minute},
		Tick: time.Second, BusyFor: 10 * time.Millisecond, BusyBytes: 64 << 10, ReliableFor: 50 * time.Millisecond,
		GossipFrames: true, GossipPerSecond: 20, GossipHeads: 5 * time.Second, PullDelay: 250 * time.Millisecond, PullTimeout: 10 * time.Second,
		ProbeEvery: 5 * time.Second, ProbeTimeout: time.Second, ProbeRate: 1000,
		StableAfter: time.Minute, DropMemory: 10 * time.Minute, Grace: 10 * time.Minute, TombstoneBytes: 64 << 20, MaxHides: 10_000, MaxLives: 1024, StagedBytes: 1 << 30,
		CatchUp: 10 * time.Second, JoinAlone: 5 * time.Second,
		SnapshotEvery: 10 * time.Second, SnapshotAge: 5 * time.Minute,
		MaxClockOff: 24 * time.Hour, FlagClockOff: time.Second,
	}
}

// Validate names the first field that is wrong.
func (o Options) Validate() error {
	switch {
	case o.Registry == nil || o.Peers == nil || o.Clock == nil || o.Dial == nil || o.Awake == nil || o.Outlived == nil || o.Logger == nil || o.Metrics == nil:
		return errors.New("distro: Registry, Peers, Clock, Dial, Awake, Outlived, Logger and Metrics must be given")
	case !validLife(o.Life):
		return fmt.Errorf("distro: Life is %v", o.Life)
	case o.Tick <= 0 || o.BusyFor <= 0 || o.ReliableFor <= 0 || o.PullTimeout <= 0 || o.ProbeTimeout <= 0 || o.SnapshotEvery <= 0:
		return errors.New("distro: Tick, BusyFor, ReliableFor, PullTimeout, ProbeTimeout and SnapshotEvery must be positive")
	case o.DropMemory < o.Leases.PauseBound+o.StableAfter:
		// A node could forget a drop while another still serves the life.
		return fmt.Errorf("distro: DropMemory %v must be at least PauseBound %v and StableAfter %v together", o.DropMemory, o.Leases.PauseBound, o.StableAfter)
	}
	return nil
}

// A Replicator is the replication of one node. Its methods may be called from
// any goroutine.
type Replicator struct {
	opts    Options
	self    registry.Life
	log     *zap.Logger
	metrics *metrics
	ctx     context.Context // ends with Stop
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	once    struct{ outlived sync.Once }

	// Lock order: writing or an outbox's mu, then mu. dirty's mu is a leaf. None
	// is held over a call of Registry, Peers or the callbacks, but for an
	// outbox's, which orders the calls of Registry for one life, and writing,
	// over Take.
	dirty   dirtyKeys
	writing sync.Mutex // by who writes the own life

	dialler   *dialler
	leaseDue  chan struct{} // one slot: look at the leases
	probesDue chan struct{} // one slot: there is something to dial

	mu          sync.Mutex
	stopped     bool
	lives       map[registry.Life]*life
	own         *life
	outboxes    map[registry.Life]*outbox
	epochs      map[string]uint64 // newest known of each node
	members     map[string]Member
	silentSince map[string]time.Time // of the silent ones
	peers       map[string]*peer     // all that were heard of
	preserve    preservation
	written     uint64 // bytes of own records, ever
	staged      map[stageKey]*staged
	stagedBytes int
	pulling     map[registry.Life]*pull
	logged      map[string]bool // peer and reason

	ready, served, catchingUp, draining, replaced bool
	alone                                         bool // as the registry was told

	since      time.Time // catching up
	sinceStamp registry.Stamp
	lastTick   time.Time
	gossip     gossipState
	transfers  uint64
	changes    uint64 // of what a snapshot holds
	notes      []note
}

// New makes a replicator that does nothing yet. It panics if the options are
// not valid.
func New(o Options) *Replicator {
	if err := o.Validate(); err != nil {
		panic("BUG: " + err.Error())
	}
	d := &Replicator{opts: o, self: o.Life, log: o.Logger.Named("distro"), lives: map[registry.Life]*life{}, outboxes: map[registry.Life]*outbox{},
		epochs: map[string]uint64{o.Life.Node: o.Life.Epoch}, members: map[string]Member{}, silentSince: map[string]time.Time{}, peers: map[string]*peer{},
		staged: map[stageKey]*staged{}, pulling: map[registry.Life]*pull{}, logged: map[string]bool{}}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.dialler, d.leaseDue, d.probesDue = newDialler(), make(chan struct{}, 1), make(chan struct{}, 1)
	d.dirty = dirtyKeys{keys: map[registry.RecordKey]struct{}{}, checks: map[checkKey]*registry.Check{}, wake: make(chan struct{}, 1)}
	d.preserve = preservation{aliveSince: map[string]time.Time{}, stable: map[string]bool{}}
	for _, id := range o.Stable {
		d.preserve.stable[id] = true
	}
	d.own = newLife(o.Life)
	d.own.state = registry.Living
	d.lives[o.Life] = d.own
	d.members[o.Life.Node] = Member{ID: o.Life.Node, Epoch: o.Life.Epoch}
	d.metrics = newMetrics(o.Metrics, d)
	return d
}

// Start reads the snapshot and begins to replicate.
func (d *Replicator) Start() {
	d.load()
	d.mu.Lock()
	d.lastTick = time.Now()
	d.companyLocked()
	d.catchUpLocked()
	d.readinessLocked(time.Now())
	d.mu.Unlock()
	d.carryAll()
	d.goLoop("write", d.writeLoop)
	d.goLoop("tick", d.tickLoop)
	d.goLoop("probe", d.probeLoop)
	d.goLoop("dial", d.dialLoop)
	if d.opts.Save != nil {
		d.goLoop("snapshot", d.snapshotLoop)
	}
}

// Stop ends all goroutines, waits for them, and writes the last snapshot.
// Stopping twice is harmless.
func (d *Replicator) Stop() {
	d.mu.Lock()
	stopped := d.stopped
	d.stopped = true
	d.mu.Unlock()
	d.cancel()
	d.wg.Wait()
	d.carryAll()
	if !stopped && d.opts.Save != nil {
		d.writePending()
		d.save()
	}
}

// goLoop starts a goroutine that ends with Stop.
func (d *Replicator) goLoop(name string, loop func(context.Context)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.goLoopLocked(d.ctx, name, loop)
}

func (d *Replicator) goLoopLocked(ctx context.Context, name string, loop func(context.Context)) {
	if d.stopped {
		return
	}
	d.wg.Go(func() { pprof.Do(ctx, pprof.Labels("loop", "distro."+name), loop) })
}

// now is in milliseconds, of the cluster's clock.
func (d *Replicator) now() int64 { return d.opts.Clock.Millis() }

// An outbox has the calls of the registry that were decided for one life and
// not made yet. They are decided under the replicator's mu, and made without
// it, in the same order: whoever decides also carries.
type outbox struct {
	mu    sync.Mutex // held while the calls are made
	calls []func(Registry)
	users int
}

func (d *Replicator) tellLocked(id registry.Life, call func(Registry)) {
	o := d.outboxes[id]
	if o == nil {
		o = &outbox{}
		d.outboxes[id] = o
	}
	o.calls = append(o.calls, call)
}

// carry returns when all calls that were decided before are made.
func (d *Replicator) carry(id registry.Life) {
	d.mu.Lock()
	o := d.outboxes[id]
	if o == nil {
		d.mu.Unlock()
		return
	}
	o.users++
	d.mu.Unlock()

	o.mu.Lock()
	for {
		d.mu.Lock()
		calls := o.calls
		o.calls = nil
		d.mu.Unlock()
		if len(calls) == 0 {
			break
		}
		for _, call := range calls {
			call(d.opts.Registry)
		}
	}
	o.mu.Unlock()

	d.mu.Lock()
	if o.users--; o.users == 0 && len(o.calls) == 0 {
		delete(d.outboxes, id)
	}
	d.mu.Unlock()
}

func (d *Replicator) carryAll() {
	d.mu.Lock()
	var ids []registry.Life
	for id := range d.outboxes {
		ids = append(ids, id)
	}
	notes := d.notes
	d.notes = nil
	d.mu.Unlock()
	for _, n := range notes {
		n.log(n.text, n.fields...)
	}
	for _, id := range ids {
		d.carry(id)
	}
}

// A note is a line for the log, which is written without the lock: with the
// next calls that are carried, at the latest after a tick.
type note struct {
	log    func(string, ...zap.Field)
	text   string
	fields []zap.Field
}

func (d *Replicator) noteLocked(log func(string, ...zap.Field), text string, fields ...zap.Field) {
	d.notes = append(d.notes, note{log, text, fields})
}

// refuse counts what a peer sent, and logs it once per peer and reason.
func (d *Replicator) refuse(from, reason string, err error) {
	d.mu.Lock()
	d.refuseLocked(from, reason, err)
	d.mu.Unlock()
}

func (d *Replicator) refuseLocked(from, reason string, err error) {
	d.metrics.refused.WithLabelValues(reason).Inc()
	if key := from + " " + reason; !d.logged[key] && len(d.logged) < 10_000 {
		d.logged[key] = true
		d.noteLocked(d.log.Warn, "peer sent what is not taken", zap.String("peer", from), zap.String("reason", reason), zap.Error(err))
	}
}
