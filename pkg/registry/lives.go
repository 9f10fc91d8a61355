package registry

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// A life is what the registry knows of a [Life]. The own one is always living,
// and of its clients it knows nothing: they hold their own publications.
type life struct {
	Life
	state     atomic.Uint32
	back      atomicStamp // owner's clock when it was last back to living
	undropped atomicStamp // the same, after a drop
	unwaned   atomicStamp // the same, after a drop or after it was waning
	spoke     atomicStamp // newest of the owner's clocks that we were told

	mu        sync.Mutex
	forgotten bool
	lifting   LifeState          // Dropped or Waning: it was, and its owner's return is not known yet; else Living
	clients   map[string]*Client // that publish something
	services  map[ServiceKey]int // in which: how many publications
}

func newLife(id Life) *life {
	return &life{Life: id, clients: map[string]*Client{}, services: map[ServiceKey]int{}}
}

// is may be called with or without locks: whoever changes the state afterwards
// shows again what depends on it.
func (l *life) is() LifeState { return LifeState(l.state.Load()) }

// An atomicStamp is written under a lock and read without.
type atomicStamp struct{ v atomic.Uint64 }

func (a *atomicStamp) load() Stamp   { return Stamp(a.v.Load()) }
func (a *atomicStamp) store(s Stamp) { a.v.Store(uint64(s)) }

// gained counts a publication, with the life's lock held.
func (l *life) gained(c *Client, key ServiceKey) {
	c.total++
	l.services[key]++
}

// lost counts it off.
func (l *life) lost(c *Client, key ServiceKey) {
	if c.total--; c.total == 0 {
		delete(l.clients, c.id)
	}
	if l.services[key]--; l.services[key] == 0 {
		delete(l.services, key)
	}
}

// life finds what is known of a life, or begins to know it, as living.
func (r *Registry) life(id Life) *life {
	if l := (*r.lives.Load())[id]; l != nil {
		return l
	}
	r.livesMu.Lock()
	defer r.livesMu.Unlock()
	all := *r.lives.Load()
	if l := all[id]; l != nil {
		return l
	}
	l := newLife(id)
	all = maps.Clone(all)
	all[id] = l
	r.lives.Store(&all)
	return l
}

// SetLife says what became of a life, as often as one likes. at is the owner's
// clock: with which it came to live again, if it does; else the newest that
// was heard of it, 0 if that is not known.
//
// What a dropped life says is kept, but not shown, and hides what other lives
// that are gone say from before. After its return it counts again, except for
// what had been moving by then. A waning life is in part the one, in part the
// other.
//
// The own life is always living; at says when it has spoken again after others
// may have missed it.
func (r *Registry) SetLife(id Life, state LifeState, at Stamp) {
	l := r.life(id)
	if l == r.own && state != Living {
		return
	}
	l.mu.Lock()
	was, news := l.is(), at > l.spoke.load()
	if news {
		l.spoke.store(at)
	}
	if state == was && (!news || state != Orphaned && state != Waning && l != r.own) {
		l.mu.Unlock()
		return
	}
	if state == Living {
		l.back.store(at)
	}
	switch {
	case state == Dropped, state == Waning && l.lifting != Dropped:
		l.lifting = state
	case state == Waning:
	case l.lifting != Living && (at > 0 || state == Living):
		l.unwaned.store(at)
		if l.lifting == Dropped {
			l.undropped.store(at)
		}
		l.lifting = Living
	}
	l.state.Store(uint32(state))
	keys := r.servicesOf(l)
	l.mu.Unlock()
	cause := CauseReturned
	switch state {
	case Orphaned:
		cause = CauseOrphaned
	case Dropped, Waning:
		cause = CauseOrphanExpired
	}
	for _, key := range keys {
		r.reshow(l, key, cause)
	}
}

// servicesOf returns the services in which a life may have publications, with
// its lock held.
func (r *Registry) servicesOf(l *life) []ServiceKey {
	if l != r.own {
		return slices.Collect(maps.Keys(l.services))
	}
	var keys []ServiceKey
	for i := range r.shards {
		sh := &r.shards[i]
		sh.mu.Lock()
		keys = slices.AppendSeq(keys, maps.Keys(sh.services))
		sh.mu.Unlock()
	}
	return keys
}

// reshow shows a service again after the state of a life has changed.
func (r *Registry) reshow(l *life, key ServiceKey, cause Cause) {
	sh := r.shard(key)
	sh.mu.Lock()
	s := sh.services[key]
	if s == nil {
		sh.mu.Unlock()
		return
	}
	now := r.opts.Clock.Now()
	by := r.ownWhy(cause, "", now)
	was := s.published()
	// The newest state, not the one that we came for: somebody may have been
	// faster.
	var touched []touch
	var ended []*publication // now
	for c, p := range s.publications {
		if c.life != l {
			continue
		}
		touched = p.touchAll(touched, 0)
		if s.dropLocked(p) {
			ended = append(ended, p)
		}
	}
	for _, p := range ended {
		s.leftOverrides(p, now)
	}
	n := news{presence: s.published() != was}
	if len(touched) > 0 {
		n.changed = r.showLocked(sh, s, touched, now, by)
	}
	if n.presence {
		s.touched = now
		r.listLocked(s)
	}
	sh.mu.Unlock()
	r.tell(key, n)
}

// ForgetLife lets go of all that a life published, as if it had never been
// there. What its clients have hidden stays hidden for as long as it would
// have been. Nothing of the life may be applied at the same time.
func (r *Registry) ForgetLife(id Life) {
	r.livesMu.Lock()
	all := *r.lives.Load()
	l := all[id]
	if l == nil || l == r.own {
		r.livesMu.Unlock()
		return
	}
	all = maps.Clone(all)
	delete(all, id)
	r.lives.Store(&all)
	r.livesMu.Unlock()

	l.mu.Lock()
	l.forgotten = true
	keys := r.servicesOf(l)
	l.mu.Unlock()
	for _, key := range keys {
		sh := r.shard(key)
		sh.mu.Lock()
		s := sh.services[key]
		now := r.opts.Clock.Now()
		by := r.ownWhy(CauseOrphanExpired, "", now)
		was := s.published()
		var touched []touch
		for c, p := range s.publications {
			if c.life != l {
				continue
			}
			touched = p.touchAll(touched, 0)
			for _, cl := range p.claims {
				s.dropClaim(cl, now)
			}
			r.unpublishLocked(sh, s, p)
		}
		n := news{changed: r.showLocked(sh, s, touched, now, by), presence: s.published() != was}
		if n.presence {
			s.touched = now
		}
		sh.mu.Unlock()
		r.tell(key, n)
	}
}

// Orphans visits the instances that are shown on behalf of a life, or would be
// if they were not evicted, in no order of the services. No lock is held
// meanwhile.
func (r *Registry) Orphans(id Life, visit func(ServiceKey, *Shown)) {
	l := (*r.lives.Load())[id]
	if l == nil {
		return
	}
	l.mu.Lock()
	keys := r.servicesOf(l)
	l.mu.Unlock()
	for _, key := range keys {
		snap := r.Snapshot(key)
		for _, list := range [...][]*Shown{snap.Instances, snap.Evicted} {
			for _, e := range list {
				if e.Life == id {
					visit(key, e)
				}
			}
		}
	}
}
