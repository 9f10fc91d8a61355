package registry

import (
	"cmp"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
)

// Options of a registry.
type Options struct {
	Life    Life // the own one, of which Open makes clients
	Clock   *Clock
	History HistoryLimits
	// EmptyServiceAge is how long (milliseconds) a service without a
	// publication stays after its last change (semantics E22).
	EmptyServiceAge int64
	// OverrideAge is how long (milliseconds) an operator's edit waits for an
	// instance that is not there, see [Registry.AbsentOverrides].
	OverrideAge int64
	// MaxPerClient bounds the instances that one client publishes; 0: no bound.
	MaxPerClient int
	// Changed is called after each visible change of a service, when it can
	// be read, on the goroutine of the writer and with none of the
	// registry's locks held. It must not block. May be nil.
	Changed func(ServiceKey)
	// Presence is called in the same way when the first publication or
	// persistent instance of a service appears and when the last one goes, and
	// when a service is described; Present says what holds then.
	Presence func(ServiceKey)
	// Wrote is called in the same way after each change of what an own client
	// publishes, of its hides or its moving mark, whether or not it is
	// visible; Take returns what is to be told to other nodes. May be nil:
	// then there are none.
	Wrote func(RecordKey)
	// Durable is called in the same way after Commit has changed which
	// persistent instances a service has, what was said of their health, or how
	// they are checked. May be nil.
	Durable func(ServiceKey)
	// OverrideOver is called in the same way when an explicit deregistration
	// by an own client has ended an edit: here it does not hold any more, the
	// log is to be told. What gets lost on the way is among EndedOverrides.
	// May be nil.
	OverrideOver func(Edit)
	// Unserved reports whether no reader has been let in yet. What goes until
	// then was seen by nobody and is not for the history: a node that starts
	// has instances of a snapshot until others tell what has become of them.
	// It must not block. Nil: readers are always there.
	Unserved func() bool
	// Refused is called in the same way when an own client has registered an
	// instance that an operator evicted, once for each client and eviction,
	// and for no more than a few clients of one. May be nil.
	Refused func(key ServiceKey, evicted InstanceKey, client string)
	// HideAge is how long (milliseconds) hides and probe results are
	// remembered after they were made, and health checks of instances that
	// are not there; 0: 10 minutes.
	HideAge int64
	// MaxHides bounds their number; beyond it the oldest go. 0: 200,000.
	MaxHides int
}

// DefaultOptions has the ages of Nacos and of design §4.
func DefaultOptions() Options {
	return Options{Clock: NewClock(0, 0), History: DefaultHistoryLimits(), EmptyServiceAge: 60_000, OverrideAge: 60_000}
}

// A Registry holds all services of a node. Its methods may be called from any
// goroutine.
type Registry struct {
	opts   Options
	own    *life
	shards [64]shard

	livesMu sync.Mutex // of who replaces the map; taken last
	lives   atomic.Pointer[map[Life]*life]

	names nameIndex

	services     atomic.Int64
	instances    atomic.Int64 // shown in snapshots
	persistent   atomic.Int64
	publications atomic.Int64
	historyBytes atomic.Int64
	hides        atomic.Int64
	alone        atomic.Bool  // nobody else has anything that could be hidden
	ahead        atomic.Int64 // newest lastRefTime that was ahead of the clock, milliseconds
}

// A shard guards the services whose keys hash to it. Lock order: a Client's
// mutex or that of another life, then a shard's, then the name index's; never
// two of one kind.
type shard struct {
	mu       sync.Mutex
	services map[ServiceKey]*service
	history  map[ServiceKey]*history
	hides    map[ServiceKey]map[InstanceKey]*hides
	checks   map[ServiceKey]map[InstanceKey]*checked
	hidden   int // how many there are in hides
	thinAt   int // how many there must be before some are dropped between two sweeps
	// For Take; both empty without Options.Wrote.
	own      map[ownKey]*publication
	gathered map[RecordKey]*gathered
}

type ownKey struct {
	service *service
	client  string
}

// New makes an empty registry.
func New(opts Options) *Registry {
	opts.HideAge = cmp.Or(opts.HideAge, 600_000)
	opts.MaxHides = cmp.Or(opts.MaxHides, 200_000)
	r := &Registry{opts: opts, own: newLife(opts.Life)}
	r.alone.Store(opts.Wrote == nil)
	r.lives.Store(&map[Life]*life{opts.Life: r.own})
	for i := range r.shards {
		r.shards[i].services = map[ServiceKey]*service{}
		r.shards[i].history = map[ServiceKey]*history{}
		r.shards[i].hides = map[ServiceKey]map[InstanceKey]*hides{}
		r.shards[i].checks = map[ServiceKey]map[InstanceKey]*checked{}
		r.shards[i].own = map[ownKey]*publication{}
		r.shards[i].gathered = map[RecordKey]*gathered{}
	}
	r.names.groups = map[groupKey]*nameSet{}
	return r
}

func (r *Registry) shard(key ServiceKey) *shard {
	return &r.shards[maphash.Comparable(hashSeed, key)%uint64(len(r.shards))]
}

// Stats are counts at one moment.
type Stats struct {
	Services     int64 // empty ones that are not cleaned up yet included
	Instances    int64 // each once, disabled ones included
	Publications int64 // of all lives
	HistoryBytes int64 // estimated
	Hides        int64 // instances of which something is hidden, or did not answer a probe
	// PersistentInstances are those of the log.
	PersistentInstances int64
}

// Stats counts.
func (r *Registry) Stats() Stats {
	return Stats{r.services.Load(), r.instances.Load(), r.publications.Load(), r.historyBytes.Load(), r.hides.Load(), r.persistent.Load()}
}

// Snapshot returns the newest picture of a service. A service that is not
// there has an empty one with Version 0; asking does not create it
// (semantics D4).
func (r *Registry) Snapshot(key ServiceKey) *Snapshot {
	sh := r.shard(key)
	sh.mu.Lock()
	s := sh.services[key]
	sh.mu.Unlock()
	if s == nil {
		return &Snapshot{Service: key}
	}
	return s.snapshot.Load()
}

// Serve returns the newest snapshot together with the lastRefTime (milliseconds)
// to send with it: at least the clock's, and above that of every earlier
// picture of the service, whoever it was served to (semantics V3). A picture
// that was served before keeps its time while the clock stands still, so
// neither reads nor a burst of changes push the times into the future.
func (r *Registry) Serve(key ServiceKey) (snap *Snapshot, lastRefTime int64) {
	// Read before the look-up: "not there" must not get a later time than a
	// service that comes meanwhile.
	now := r.opts.Clock.Millis()
	sh := r.shard(key)
	sh.mu.Lock()
	s := sh.services[key]
	sh.mu.Unlock()
	if s == nil {
		return &Snapshot{Service: key}, now
	}
	s.serve.Lock()
	defer s.serve.Unlock()
	// Read under the lock: an older picture must not get a later time.
	snap = s.snapshot.Load()
	at := s.served
	if snap.Version != s.servedVersion {
		at++
	}
	s.served, s.servedVersion = max(now, at), snap.Version
	if s.served > now {
		r.ahead.Store(max(r.ahead.Load(), s.served)) // rare, and a lower one does no harm
	}
	return snap, s.served
}

// HighWater is above all stamps and served times of this run: what a later one
// has to start from.
func (r *Registry) HighWater() Stamp {
	return max(r.opts.Clock.Now(), StampAt(r.ahead.Load()+1))
}

// Sweep forgets what has been empty for long enough: services without a
// publication of which the log says nothing, checks without an instance,
// histories without a service; and hides that are old enough, or too many.
// The owner of the registry calls it every few seconds.
func (r *Registry) Sweep() {
	for i := range r.shards {
		sh := &r.shards[i]
		sh.mu.Lock()
		now := r.opts.Clock.Now()
		for key, s := range sh.services {
			if len(s.publications) == 0 && s.meta == nil && len(s.persistent) == 0 && len(s.overrides) == 0 &&
				now.Millis()-s.touched.Millis() >= r.opts.EmptyServiceAge && !s.aheadOf(now) {
				delete(sh.services, key)
				r.services.Add(-1)
				if !s.unlisted {
					r.names.remove(key)
				}
				if h := sh.history[key]; h != nil {
					h.gone = now
				}
			} else if !s.presentLocked() && !s.unlisted && now.Millis()-s.touched.Millis() >= r.opts.EmptyServiceAge {
				r.unlistLocked(s) // what a dropped life says is kept for its return only
			}
		}
		r.sweepChecksLocked(sh, now)
		for key, h := range sh.history {
			if h.gone != 0 && now.Millis()-h.gone.Millis() >= r.opts.History.KeepGone {
				r.historyBytes.Add(-h.bytes())
				delete(sh.history, key)
			}
		}
		sh.mu.Unlock()
	}
	r.trimHistory()
	for _, key := range r.sweepHides() {
		r.changed(key)
	}
}

// aheadOf reports whether the service was served with a time that the clock
// has not reached: it would be forgotten with the service.
func (s *service) aheadOf(now Stamp) bool {
	s.serve.Lock()
	defer s.serve.Unlock()
	return s.served > now.Millis()
}

// A news is what a writer has to tell after it has let go of its locks.
type news struct {
	changed, presence bool
	wrote             *Client      // whose record changed, or nil
	durable           *durableNews // or nil: nearly always. A fifth field would not fit into registers
}

func (r *Registry) tell(key ServiceKey, n news) {
	if n.presence && r.opts.Presence != nil {
		r.opts.Presence(key)
	}
	if n.changed && r.opts.Changed != nil {
		r.opts.Changed(key)
	}
	if n.wrote != nil && r.opts.Wrote != nil {
		r.opts.Wrote(RecordKey{n.wrote.id, key})
	}
	if n.durable != nil {
		r.tellDurable(key, n.durable)
	}
}

func (r *Registry) changed(key ServiceKey) { r.tell(key, news{changed: true}) }

// Present reports whether there is something to a service: a client publishes
// it, be it an empty batch, it has persistent instances, or an operator has
// described it. One that is only waiting to be cleaned up is not present.
func (r *Registry) Present(key ServiceKey) bool {
	sh := r.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s := sh.services[key]
	return s != nil && s.presentLocked()
}

// PresentIn returns the keys of the services of a namespace that are present,
// in no order.
func (r *Registry) PresentIn(namespace string) []ServiceKey {
	var keys []ServiceKey
	for i := range r.shards {
		sh := &r.shards[i]
		sh.mu.Lock()
		for key, s := range sh.services {
			if key.Namespace == namespace && s.presentLocked() {
				keys = append(keys, key)
			}
		}
		sh.mu.Unlock()
	}
	return keys
}

func (s *service) presentLocked() bool {
	return s.published() || s.meta != nil || len(s.persistent) > 0
}

// serviceLocked finds a service, or makes it with room for so many
// publications.
func (r *Registry) serviceLocked(sh *shard, key ServiceKey, room int) *service {
	s := sh.services[key]
	if s == nil {
		now := r.opts.Clock.Now()
		s = &service{key: key, publications: make(map[*Client]*publication, room), claims: make(map[InstanceKey][]*claim, room), hides: sh.hides[key], checks: sh.checks[key], touched: now}
		// Somebody may have been told in this very millisecond that the
		// service is not there.
		s.served = now.Millis()
		s.snapshot.Store(&Snapshot{Service: key})
		sh.services[key] = s
		if h := sh.history[key]; h != nil {
			h.gone = 0
		}
		r.services.Add(1)
		r.names.add(key)
	}
	r.listLocked(s)
	return s
}

// listLocked puts a service back into the name index.
func (r *Registry) listLocked(s *service) {
	if s.unlisted {
		s.unlisted = false
		r.names.add(s.key)
	}
}

// unlistLocked takes it out: nobody finds it any more.
func (r *Registry) unlistLocked(s *service) {
	if !s.unlisted {
		s.unlisted = true
		r.names.remove(s.key)
	}
}

// Services returns the names of a group, sorted; empty services that are not
// cleaned up yet are among them. The slice must not be changed.
func (r *Registry) Services(namespace, group string) []string {
	return r.names.list(groupKey{namespace, group})
}

// Namespaces returns how many services each namespace has, of those that have
// any; the same as Services gives. The map belongs to the caller.
func (r *Registry) Namespaces() map[string]int { return r.names.namespaces() }

// Groups returns the groups of a namespace that have services, sorted.
func (r *Registry) Groups(namespace string) []string { return r.names.groupsOf(namespace) }

type groupKey struct{ namespace, group string }

// A nameIndex lists the services of a group, sorted: paging over it shows
// each name once (in Nacos the order changes between two calls).
type nameIndex struct {
	mu     sync.Mutex
	groups map[groupKey]*nameSet
}

type nameSet struct {
	names  map[string]struct{}
	sorted []string // nil: to be made again
}

func (x *nameIndex) add(key ServiceKey) {
	x.mu.Lock()
	defer x.mu.Unlock()
	g := groupKey{key.Namespace, key.Group}
	if x.groups[g] == nil {
		x.groups[g] = &nameSet{names: map[string]struct{}{}}
	}
	x.groups[g].names[key.Name] = struct{}{}
	x.groups[g].sorted = nil
}

func (x *nameIndex) remove(key ServiceKey) {
	x.mu.Lock()
	defer x.mu.Unlock()
	g := groupKey{key.Namespace, key.Group}
	delete(x.groups[g].names, key.Name)
	x.groups[g].sorted = nil
	if len(x.groups[g].names) == 0 {
		delete(x.groups, g)
	}
}

func (x *nameIndex) list(g groupKey) []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	set := x.groups[g]
	if set == nil {
		return nil
	}
	if set.sorted == nil {
		for n := range set.names {
			set.sorted = append(set.sorted, n)
		}
		slices.Sort(set.sorted)
	}
	return set.sorted
}

func (x *nameIndex) namespaces() map[string]int {
	x.mu.Lock()
	defer x.mu.Unlock()
	services := map[string]int{}
	for g, set := range x.groups {
		services[g.namespace] += len(set.names)
	}
	return services
}

func (x *nameIndex) groupsOf(namespace string) (groups []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for g := range x.groups {
		if g.namespace == namespace {
			groups = append(groups, g.group)
		}
	}
	slices.Sort(groups)
	return groups
}
