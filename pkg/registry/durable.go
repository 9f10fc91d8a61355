package registry

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
)

// What the log of the cluster (package raftstore) says of services. It reaches
// the registry through [Registry.Commit], in the order of the log.

// A Change is what happened to one service.
type Change struct {
	Service ServiceKey
	// Described: Meta is what holds from now on, nil if nobody describes the
	// service any more.
	Described bool
	Meta      *ServiceMeta
	Instances []PersistentChange
	Overrides []OverrideChange
}

// A PersistentChange is the new state of one persistent instance.
type PersistentChange struct {
	InstanceKey
	Is    *Persistent // nil: it is gone
	Cause Cause
	Clock Stamp  // of the command, the same on all nodes; 0: not known
	By    string // who asked for it; "": not known
}

// A Persistent is an instance that stays until it is deregistered.
type Persistent struct {
	*Instance // its Persistent is set; Healthy is as registered, or as an operator said
	// Since is when it was registered; a change of what is there does not move it.
	Since Stamp
	// Judged is when its health was said by its registration, or by hand:
	// checks made before do not count.
	Judged Stamp
}

// An OverrideChange is the new state of an operator's edit.
type OverrideChange struct {
	InstanceKey
	Is    *Override // nil: it is over
	Cause Cause
	Clock Stamp  // of the command, the same on all nodes; 0: not known
	By    string // who asked for it; "": not known
}

// An Edit names an operator's edit at a revision, of which something is over.
type Edit struct {
	Service ServiceKey
	InstanceKey
	Revision uint64
	Cause    Cause // why it is over
}

// A Check is what the health check of a persistent instance found. The newest
// counts, whoever made it.
type Check struct {
	Service ServiceKey
	InstanceKey
	Healthy bool
	Made    Stamp
	By      Life   // whose record it is
	Reason  string // for people
}

// replaces reports whether it counts rather than an earlier one.
func (c *Check) replaces(o *Check) bool {
	return cmp.Or(cmp.Compare(c.Made, o.Made), c.By.compare(o.By)) > 0
}

// checked is the newest check of an instance; guarded by the shard's lock. The
// Check itself is immutable.
type checked struct {
	is     *Check
	absent Stamp // if the instance is not there: since when, on this node
}

// override is an edit as this node sees it.
type override struct {
	Override
	seen Stamp // when its instance was last there
	over bool  // the instance has said goodbye here; the log does not know yet
	// refused are clients whose registration of an evicted instance is in the
	// history: once for each, and no more than maxRefused.
	refused map[string]struct{}
}

const maxRefused = 32

// evicts reports whether readers do not see the instance. o may be nil.
func (o *override) evicts() bool { return o != nil && o.Evicted }

// healthy is what is shown: by the newest check or, if that is not newer, as
// it was registered.
func (p *Persistent) healthy(c *checked) bool {
	if c != nil && c.is.Made > p.Judged {
		return c.is.Healthy
	}
	return p.Instance.Healthy
}

func (p *Persistent) shown(c *checked) *Shown {
	is := &Shown{Instance: p.Instance, Since: p.Since, Client: p.IP + ":" + strconv.Itoa(p.Port) + "#false"}
	if healthy := p.healthy(c); healthy != is.Healthy {
		i := *p.Instance
		i.Healthy = healthy
		is.Instance = &i
	}
	return is
}

// Commit carries out what the log says, in its order; one goroutine calls it.
// Each service gets one new snapshot and is told of once, however much
// changed. The registry keeps what is handed over.
//
// Stamps in it are not adopted by the clock: that is done, within bounds, by
// whoever reads the log.
func (r *Registry) Commit(changes []Change) {
	if len(changes) == 1 {
		r.commit(changes[0].Service, changes)
		return
	}
	var order []ServiceKey
	of := make(map[ServiceKey][]Change, len(changes))
	for _, c := range changes {
		if of[c.Service] == nil {
			order = append(order, c.Service)
		}
		of[c.Service] = append(of[c.Service], c)
	}
	for _, key := range order {
		r.commit(key, of[key])
	}
}

// commit carries out all changes of one service.
func (r *Registry) commit(key ServiceKey, changes []Change) {
	sh := r.shard(key)
	sh.mu.Lock()
	s := sh.services[key]
	if s == nil {
		if !slices.ContainsFunc(changes, Change.holds) {
			sh.mu.Unlock()
			return
		}
		s = r.serviceLocked(sh, key, 0)
		r.unlistLocked(s) // until there is more than edits
	}
	now := r.opts.Clock.Now()
	s.touched = now
	was, meta := s.presentLocked(), s.meta
	var n news
	var touched []touch
	var by []why
	deleted := false
	touches := func(k InstanceKey, cause Cause, clock Stamp, who string) {
		reason := why{cause: cause, clock: clock} // of the log: the same on all nodes
		if clock == 0 {
			reason = r.ownWhy(cause, "", now)
		}
		if who != "" && reason.byHand() {
			reason.client = "operator " + who
		}
		touched = append(touched, touch{k, len(by)})
		by = append(by, reason)
	}
	for _, c := range changes {
		if c.Described {
			s.meta, deleted = c.Meta, c.Meta == nil
			n.durable = &durableNews{committed: true}
		}
		// What becomes of the instance is the reason, not of the edit with it.
		for _, o := range c.Overrides {
			cause := o.Cause
			was := s.overrides[o.InstanceKey].evicts()
			s.setOverride(o.InstanceKey, o.Is, now)
			switch is := s.overrides[o.InstanceKey].evicts(); {
			case is && !was:
				cause = CauseEvicted
			case was && !is && cause == CauseOverrideEnded:
				cause = CauseEvictionEnded
			case was && !is:
				cause = CauseLifted
			}
			touches(o.InstanceKey, cause, o.Clock, o.By)
		}
		for _, i := range c.Instances {
			if !i.Is.probedAs(s.persistent[i.InstanceKey]) {
				n.durable = &durableNews{committed: true}
			}
			r.persistLocked(s, i.InstanceKey, i.Is, now)
			touches(i.InstanceKey, i.Cause, i.Clock, i.By)
		}
	}
	n.changed = r.showLocked(sh, s, touched, now, by...)
	if !n.changed && s.meta != meta {
		// It says how the list is to be read.
		as := s.snapshot.Load()
		s.publish(as.Instances, as.Evicted, now)
		n.changed = true
	}
	s.refuses = s.kindLocked() == PersistentService
	is := s.presentLocked()
	n.presence = is != was || (meta == nil) != (s.meta == nil)
	if is {
		r.listLocked(s)
	} else if deleted {
		r.unlistLocked(s) // an operator sees it go at once
	}
	sh.mu.Unlock()
	r.tell(key, n)
}

// probedAs reports whether nothing has changed for who checks it. Both may be
// nil.
func (p *Persistent) probedAs(was *Persistent) bool {
	return p != nil && was != nil && p.Since == was.Since && p.Judged == was.Judged && p.Healthy == was.Healthy && p.Cluster == was.Cluster
}

// holds reports whether a change makes something that is to be remembered.
func (c Change) holds() bool {
	return c.Meta != nil || slices.ContainsFunc(c.Instances, func(i PersistentChange) bool { return i.Is != nil }) ||
		slices.ContainsFunc(c.Overrides, func(o OverrideChange) bool { return o.Is != nil })
}

// persistLocked sets the row of an instance.
func (r *Registry) persistLocked(s *service, k InstanceKey, is *Persistent, now Stamp) {
	had := len(s.persistent)
	if is != nil {
		if s.persistent == nil {
			s.persistent = map[InstanceKey]*Persistent{}
		}
		s.persistent[k] = is
	} else {
		delete(s.persistent, k)
		if c := s.checks[k]; c != nil {
			c.absent = now
		}
		s.leftOverride(k, now)
	}
	r.persistent.Add(int64(len(s.persistent) - had))
}

// there reports whether somebody says that the instance is there. What a life
// publishes whose lease is over is kept for its return only. That is as of
// when the service was last shown (publication.dropped), so that an edit never
// finds its instance gone before it knows since when.
func (s *service) there(k InstanceKey) bool {
	return s.persistent[k] != nil || slices.ContainsFunc(s.claims[k], func(c *claim) bool { return !c.pub.dropped })
}

// leftOverride notes for an edit that its instance was there until now, if it
// is not any more.
func (s *service) leftOverride(k InstanceKey, now Stamp) {
	if o := s.overrides[k]; o != nil && !s.there(k) {
		o.seen = now
	}
}

// dropLocked counts a publication as one whose lease is over, or no longer, and
// reports whether it is over just now.
func (s *service) dropLocked(p *publication) (ended bool) {
	over := p.over()
	if p.dropped == over {
		return false
	}
	if p.dropped = over; over {
		s.dropped++
	} else {
		s.dropped--
	}
	return over
}

// leftOverrides is leftOverride for all that a publication names.
func (s *service) leftOverrides(p *publication, now Stamp) {
	if len(s.overrides) == 0 {
		return
	}
	for _, cl := range p.claims {
		s.leftOverride(cl.instance.InstanceKey, now)
	}
}

// setOverride sets an edit to what the log says. One that is over here stays
// so until it is made anew.
func (s *service) setOverride(k InstanceKey, is *Override, now Stamp) {
	if is == nil {
		delete(s.overrides, k)
		return
	}
	next := &override{Override: *is, seen: now}
	if was := s.overrides[k]; was != nil {
		next.over = was.over && was.Revision == is.Revision
		if was.Evicted && is.Evicted { // it is the same eviction
			next.refused = was.refused
		}
	}
	if s.overrides == nil {
		s.overrides = map[InstanceKey]*override{}
	}
	s.overrides[k] = next
}

// endOverride ends the edit of an instance whose client has said goodbye, here
// at once; the log is to be told. The goodbye of a client is not that of a
// persistent instance. An eviction does not end by it, its client would say
// goodbye and come back, nor does what else is set of an evicted instance.
func (s *service) endOverride(n *news, k InstanceKey) {
	o := s.overrides[k]
	if o == nil || o.Sticky || o.Evicted || o.over || s.persistent[k] != nil {
		return
	}
	o.over = true
	if n.durable == nil {
		n.durable = &durableNews{}
	}
	n.durable.over = append(n.durable.over, Edit{s.key, k, o.Revision, CauseOverrideEnded})
}

// durableNews are those that have to do with the log.
type durableNews struct {
	committed bool // instances, or how they are checked
	over      []Edit
	refused   []InstanceKey // that a client registered though they are evicted
	client    string        // which
}

func (r *Registry) tellDurable(key ServiceKey, n *durableNews) {
	if n.committed && r.opts.Durable != nil {
		r.opts.Durable(key)
	}
	if r.opts.OverrideOver != nil {
		for _, e := range n.over {
			r.opts.OverrideOver(e)
		}
	}
	if r.opts.Refused != nil {
		for _, k := range n.refused {
			r.opts.Refused(key, k, n.client)
		}
	}
}

// refuseLocked takes note of evicted instances that an own client has
// registered, and returns [ErrEvicted] if all are. What the client says is
// registered all the same, unseen.
func (r *Registry) refuseLocked(sh *shard, s *service, c *Client, instances []*Instance, n *news) error {
	evicted := 0
	for _, i := range instances {
		k := i.InstanceKey
		o := s.overrides[k]
		if !o.evicts() {
			continue
		}
		evicted++
		if _, told := o.refused[c.id]; told || len(o.refused) >= maxRefused {
			continue
		}
		if o.refused == nil {
			o.refused = map[string]struct{}{}
		}
		o.refused[c.id] = struct{}{}
		now := r.opts.Clock.Now()
		r.record(r.historyLocked(sh, s), []Event{{At: now, Origin: r.opts.Life, Clock: now, Cause: CauseRefused, Client: c.id, Key: k}})
		if n.durable == nil {
			n.durable = &durableNews{client: c.id}
		}
		n.durable.refused = append(n.durable.refused, k)
	}
	if evicted == 0 || evicted < len(instances) {
		return nil
	}
	return ErrEvicted
}

// EndedOverrides are the edits that are over here while the log still has
// them: those of [Options.OverrideOver] of which it has not heard yet.
func (r *Registry) EndedOverrides() []Edit {
	return r.edits(func(s *service, k InstanceKey, o *override, now Stamp) bool { return o.over })
}

// AbsentOverrides are the edits of which something ends with their instance
// ([Override.Lasting]), which has not been there, as this node sees it, for
// [Options.OverrideAge]: the node that leads has the log end that. An instance
// that only dropped lives publish is not there.
func (r *Registry) AbsentOverrides() []Edit {
	return r.edits(func(s *service, k InstanceKey, o *override, now Stamp) bool {
		_, ends := o.Lasting()
		return ends && !s.there(k) && now.Millis()-o.seen.Millis() >= r.opts.OverrideAge
	})
}

func (r *Registry) edits(which func(*service, InstanceKey, *override, Stamp) bool) (found []Edit) {
	for i := range r.shards {
		sh := &r.shards[i]
		sh.mu.Lock()
		now := r.opts.Clock.Now()
		for key, s := range sh.services {
			for k, o := range s.overrides {
				if which(s, k, o, now) {
					found = append(found, Edit{key, k, o.Revision, CauseOverrideEnded})
				}
			}
		}
		sh.mu.Unlock()
	}
	return found
}

// Checked takes note of a health check of this node or of another. The newest
// of an instance counts, in whatever order they come; one of an instance that
// is not there, or not yet, is remembered for [Options.HideAge].
func (r *Registry) Checked(c Check) {
	sh := r.shard(c.Service)
	sh.mu.Lock()
	s := sh.services[c.Service]
	of := sh.checks[c.Service]
	if was := of[c.InstanceKey]; was != nil && !c.replaces(was.is) {
		sh.mu.Unlock()
		return
	}
	if of == nil {
		of = map[InstanceKey]*checked{}
		sh.checks[c.Service] = of
		if s != nil {
			s.checks = of
		}
	}
	now := r.opts.Clock.Now()
	of[c.InstanceKey] = &checked{is: &c, absent: now}
	var n news
	if s != nil && s.persistent[c.InstanceKey] != nil {
		by := why{cause: CauseCheckFailed, origin: c.By, clock: c.Made}
		if c.Healthy {
			by.cause = CauseCheckPassed
		}
		n.changed = r.showLocked(sh, s, []touch{{c.InstanceKey, 0}}, now, by)
	}
	sh.mu.Unlock()
	r.tell(c.Service, n)
}

// sweepChecksLocked forgets checks of instances that have not been there for
// long enough.
func (r *Registry) sweepChecksLocked(sh *shard, now Stamp) {
	for key, of := range sh.checks {
		s := sh.services[key]
		for k, c := range of {
			if (s == nil || s.persistent[k] == nil) && r.tooOld(c.absent, now) {
				delete(of, k)
			}
		}
		if len(of) == 0 {
			delete(sh.checks, key)
			if s != nil {
				s.checks = nil
			}
		}
	}
}

// A Probed is a persistent instance with what there is to know for its health
// check.
type Probed struct {
	Persistent
	Healthy bool         // as it is shown; Instance.Healthy is as registered
	Check   *Check       // the newest, or nil; it may be older than Judged
	Cluster *ClusterMeta // what holds for its cluster
}

// Persistent returns the persistent instances of a service, sorted by key.
func (r *Registry) Persistent(key ServiceKey) []Probed {
	sh := r.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s := sh.services[key]
	if s == nil {
		return nil
	}
	all := make([]Probed, 0, len(s.persistent))
	for k, p := range s.persistent {
		c := s.checks[k]
		one := Probed{Persistent: *p, Healthy: p.healthy(c), Cluster: s.meta.Cluster(k.Cluster)}
		if c != nil {
			one.Check = c.is
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b Probed) int { return a.Compare(b.InstanceKey) })
	return all
}

// PersistentServices returns the services that have persistent instances, in
// no order.
func (r *Registry) PersistentServices() (keys []ServiceKey) {
	for i := range r.shards {
		sh := &r.shards[i]
		sh.mu.Lock()
		for key, s := range sh.services {
			if len(s.persistent) > 0 {
				keys = append(keys, key)
			}
		}
		sh.mu.Unlock()
	}
	return keys
}

// A ServiceKind says which instances a service may have (semantics D12).
type ServiceKind uint8

const (
	Free ServiceKind = iota // whichever comes first
	EphemeralService
	PersistentService
)

// ErrPersistentService says that a client cannot publish in a persistent
// service.
var ErrPersistentService = errors.New("service is persistent")

// ErrEvicted says that all that a client has registered with one call was
// evicted by an operator. It is kept all the same, unseen: lifting shows it.
var ErrEvicted = errors.New("instance was evicted by an operator")

// Kind is what this node knows of a service.
func (r *Registry) Kind(key ServiceKey) ServiceKind {
	sh := r.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if s := sh.services[key]; s != nil {
		return s.kindLocked()
	}
	return Free
}

// kindLocked: what an operator or a persistent instance says comes from the
// log, so it comes first.
func (s *service) kindLocked() ServiceKind {
	switch {
	case len(s.persistent) > 0:
		return PersistentService
	case s.meta != nil && s.meta.Persistent:
		return PersistentService
	case s.meta != nil || s.published():
		return EphemeralService
	}
	return Free
}

// Exists reports whether somebody who asks for the service finds it: it is
// present, or is waiting to be cleaned up.
func (r *Registry) Exists(key ServiceKey) bool {
	sh := r.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s := sh.services[key]
	return s != nil && !s.unlisted
}

// Meta is what an operator says about a service, or nil.
func (r *Registry) Meta(key ServiceKey) *ServiceMeta {
	sh := r.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if s := sh.services[key]; s != nil {
		return s.meta
	}
	return nil
}
