package registry

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// A service is guarded by the lock of its shard, except where a field says
// otherwise.
type service struct {
	key          ServiceKey
	publications map[*Client]*publication
	dropped      int                      // publications of dropped lives: nobody sees them
	claims       map[InstanceKey][]*claim // of all publications, in no order
	hides        map[InstanceKey]*hides   // the shard's, or nil: they outlive the service
	checks       map[InstanceKey]*checked // in the same way
	overrides    map[InstanceKey]*override
	persistent   map[InstanceKey]*Persistent
	meta         *ServiceMeta
	refuses      bool // clients that publish: it is persistent

	history  *history // the shard's, once there is one: it stays for as long as the service does
	touched  Stamp    // last register, deregister or change
	unlisted bool     // not in the name index: nothing but what a dropped life publishes, or edits

	snapshot atomic.Pointer[Snapshot] // read without a lock

	serve         sync.Mutex // guards the next two
	served        int64      // newest lastRefTime handed out, milliseconds
	servedVersion Stamp      // and the picture it went out with
}

// A publication is what one client publishes for one service.
type publication struct {
	client  *Client
	claims  []*claim // each key once
	clock   Stamp    // of the last write
	cause   Cause    // and why it was written
	batch   bool
	moving  bool // see Client.Move
	dropped bool // counted in service.dropped
	redo    int  // seconds until its client has registered again; 0: the usual time
}

// wrote notes that its owner changed it.
func (p *publication) wrote(batch, moving bool, at Stamp, cause Cause) {
	p.batch, p.moving, p.clock, p.cause = batch, moving, at, cause
}

// touchAll appends a touch of each claim.
func (p *publication) touchAll(touched []touch, by int) []touch {
	for _, cl := range p.claims {
		touched = append(touched, touch{cl.instance.InstanceKey, by})
	}
	return touched
}

// A claim is one client's word that an instance is there.
type claim struct {
	pub      *publication
	instance *Instance
	since    Stamp // registration clock
}

// stands reports whether somebody living speaks for the claim. Of those that
// do not, weak hides take away.
func (c *claim) stands() bool { return !c.pub.moving && c.pub.client.life.is() == Living }

// over reports whether the lease of the publication's life is over for it.
func (p *publication) over() bool {
	s := p.client.life.is()
	return s == Dropped || s == Waning && p.redo == 0
}

// suppressed reports whether the claim is not shown whatever its clock: its
// lease is over; or the life is back from that, but the claim had been moving by
// then, and its client had its time to register elsewhere.
func (c *claim) suppressed() bool {
	if c.pub.over() {
		return true
	}
	of := c.pub.client
	back := &of.life.unwaned
	if c.pub.redo > 0 {
		back = &of.life.undropped // slow clients had no end before
	}
	return c.pub.moving && c.pub.clock < back.load()
}

// late reports whether the claim was made after the last that was heard of its
// life before the lease was over: its owner is about to be back.
func (c *claim) late() bool {
	spoke := c.pub.client.life.spoke.load()
	return c.pub.over() && spoke != 0 && c.since > spoke
}

// before reports whether c is shown rather than o: the newest registration. A
// living life only breaks ties; the rest is there to have the same answer
// everywhere.
func (c *claim) before(o *claim) bool {
	if c.since != o.since {
		return c.since > o.since
	}
	if c.stands() != o.stands() {
		return c.stands()
	}
	a, b := c.pub.client, o.pub.client
	return cmp.Or(a.life.compare(b.life.Life), strings.Compare(a.id, b.id)) > 0
}

// winner is the claim that readers see, or nil.
func (s *service) winner(k InstanceKey) *claim { return pick(s.claims[k], s.hides[k]) }

// pick is the rule of the view (design §4): of the claims of one instance the
// newest that nothing hides.
func pick(claims []*claim, h *hides) *claim {
	if len(claims) == 1 && h == nil { // nearly always
		if c := claims[0]; !c.suppressed() {
			return c
		}
		return nil
	}
	var strong, weak stamps
	if h != nil {
		strong, weak = h.strong, h.weak
	}
	for _, c := range claims {
		if c.suppressed() && !c.late() {
			// Who registered before that is not shown in its place.
			weak.raise(c.pub.client.kind, c.since)
		}
	}
	var best *claim
	for _, c := range claims {
		kind := c.pub.client.kind
		if c.suppressed() || c.since <= strong.of(kind) || c.since <= weak.of(kind) && !c.stands() || h != nil && h.unanswered(c) {
			continue
		}
		if best == nil || c.before(best) {
			best = c
		}
	}
	return best
}

func (s *service) addClaim(c *claim) {
	k := c.instance.InstanceKey
	s.claims[k] = append(s.claims[k], c)
}

func (s *service) dropClaim(c *claim, now Stamp) {
	k := c.instance.InstanceKey
	left := slices.DeleteFunc(s.claims[k], func(o *claim) bool { return o == c })
	if len(left) == 0 {
		delete(s.claims, k)
	} else {
		s.claims[k] = left
	}
	if !c.pub.dropped {
		s.leftOverride(k, now)
	}
}

// lastBeat reports whether a client whose claim of an instance has just gone was
// the last that took beats for it. Its address is the id of an HTTP client, so
// older copies are of the same one: that of a node which is gone now must not
// be shown when that is back.
func (s *service) lastBeat(c *Client, k InstanceKey) bool {
	return c.kind == Beat && !slices.ContainsFunc(s.claims[k], func(o *claim) bool { return o.pub.client.kind == Beat && o.stands() })
}

// published reports whether anybody publishes something, be it empty.
func (s *service) published() bool { return len(s.publications) > s.dropped }

// publishLocked adds a publication that has no claims yet.
func (r *Registry) publishLocked(sh *shard, s *service, p *publication) {
	l := p.client.life
	s.publications[p.client] = p
	if p.dropped = p.over(); p.dropped {
		s.dropped++
	}
	if l == r.own && r.opts.Wrote != nil {
		sh.own[ownKey{s, p.client.id}] = p
	}
	r.publications.Add(1)
}

// unpublishLocked removes a publication whose claims are gone.
func (r *Registry) unpublishLocked(sh *shard, s *service, p *publication) {
	delete(s.publications, p.client)
	if p.dropped {
		s.dropped--
	}
	if k := (ownKey{s, p.client.id}); p.client.life == r.own && sh.own[k] == p {
		delete(sh.own, k)
	}
	r.publications.Add(-1)
}

// publish makes the next snapshot readable.
func (s *service) publish(instances, evicted []*Shown, now Stamp) {
	s.snapshot.Store(&Snapshot{Service: s.key, Version: now, Instances: instances, Evicted: evicted, Meta: s.meta})
}

// restate is publish for instances that look the same as before.
func (s *service) restate(instances, evicted []*Shown) {
	old := s.snapshot.Load()
	next := &Snapshot{Service: s.key, Version: old.Version, Instances: instances, Evicted: evicted, Meta: s.meta}
	next.sum.Store(old.sum.Load())
	s.snapshot.Store(next)
}

// A why says what changed an instance, for the history.
type why struct {
	cause  Cause
	client string
	origin Life
	clock  Stamp
}

// ownWhy is of what was written, or decided, on this node.
func (r *Registry) ownWhy(cause Cause, client string, now Stamp) why {
	return why{cause, client, r.opts.Life, now}
}

// byHand reports whether it is an operator's doing.
func (w *why) byHand() bool {
	return w.cause == CauseOperator || w.cause == CauseEvicted || w.cause == CauseLifted
}

// of is whom the history names: the operator, if it is one and known, else the
// client.
func (w *why) of(client string) string {
	if w.byHand() && w.client != "" {
		return w.client
	}
	return client
}

// A touch names an instance whose claims, hides, override, check or row in the
// log changed, and the place of the reason among those given to showLocked.
type touch struct {
	InstanceKey
	by int
}

// showLocked brings the snapshot up to date after something of the touched
// instances changed, and records what became visible with its cause. It reports
// whether anything did. The cost is one pass over the old picture, however many
// instances were touched.
func (r *Registry) showLocked(sh *shard, s *service, touched []touch, now Stamp, by ...why) bool {
	if len(touched) > 1 {
		// Of several reasons the last counts.
		slices.SortFunc(touched, func(a, b touch) int {
			return cmp.Or(a.Compare(b.InstanceKey), cmp.Compare(b.by, a.by))
		})
		touched = slices.CompactFunc(touched, func(a, b touch) bool { return a.InstanceKey == b.InstanceKey })
	}
	snap := s.snapshot.Load()
	old, evicted := snap.Instances, snap.Evicted
	visible := false
	var one [1]Event
	events := one[:0]
	if len(touched) > 1 {
		events = make([]Event, 0, len(touched))
	}
	next := make([]*Shown, 0, len(old)+len(touched))
	rest := old
	for _, t := range touched {
		k, why := t.InstanceKey, &by[t.by]
		i, there := slices.BinarySearchFunc(rest, k, func(e *Shown, k InstanceKey) int { return e.Compare(k) })
		next = append(next, rest[:i]...)
		e := Event{At: now, Origin: why.origin, Clock: why.clock, Cause: why.cause, Client: why.client, Key: k}
		var was *Shown
		if rest = rest[i:]; there {
			was, rest = rest[0], rest[1:]
			e.Before = was.Instance
		}
		is := s.shown(k)
		o := s.overrides[k]
		if is != nil && o != nil && !o.over {
			is.Instance = o.apply(is.Instance)
		}
		if o.evicts() || len(evicted) > 0 {
			var out *Shown
			if o.evicts() {
				if is, out = nil, is; out != nil && there {
					e.Cause = CauseEvicted // whatever else happened in the same moment
				}
			}
			evicted = replaced(evicted, k, out)
		}
		if is == nil {
			switch {
			case there:
				if e.Cause == CauseRegistered {
					e.Cause = CauseReplaced // its client publishes something else
				}
				e.Client = why.of(was.Client)
				events, visible = append(events, e), true
			case why.cause == CauseEvicted, why.cause == CauseLifted, why.cause == CauseEvictionEnded:
				events = append(events, e) // there was nothing to see
			}
			continue
		}
		e.After = is.Instance
		switch {
		case !there || !is.equal(was.Instance):
			if there && why.cause == CauseRegistered {
				e.Cause = CauseChanged
			}
			e.Client = why.of(is.Client)
			events, visible = append(events, e), true
		case is.standsAs(was):
			is = was
		case why.cause == CauseMoving && is.Moving && !was.Moving:
			events = append(events, e)
		case was.stands() || !is.stands() || is.Client == was.Client && is.Life == was.Life:
			// Nothing to see, but something else stands behind it.
		default:
			e.Cause, e.Client = CauseAdopted, is.Client
			events = append(events, e)
		}
		next = append(next, is)
	}
	next = append(next, rest...)
	if visible {
		s.publish(next, evicted, now)
		r.instances.Add(int64(len(next) - len(old)))
	} else if !slices.Equal(old, next) || !slices.Equal(snap.Evicted, evicted) {
		s.restate(next, evicted)
	}
	if len(events) > 0 && r.opts.Unserved != nil && r.opts.Unserved() {
		events = slices.DeleteFunc(events, func(e Event) bool { return e.Before != nil && e.After == nil })
	}
	if len(events) > 0 {
		r.record(r.historyLocked(sh, s), events)
	}
	return visible
}

// historyLocked finds or makes the history of a service.
func (r *Registry) historyLocked(sh *shard, s *service) *history {
	if s.history == nil {
		if s.history = sh.history[s.key]; s.history == nil {
			s.history = &history{own: r.own}
			sh.history[s.key] = s.history
		}
	}
	return s.history
}

// replaced is a list of a snapshot with another line for an instance; nil: with
// none. The list itself is not changed, and returned if nothing is.
func replaced(list []*Shown, k InstanceKey, is *Shown) []*Shown {
	i, there := slices.BinarySearchFunc(list, k, func(e *Shown, k InstanceKey) int { return e.Compare(k) })
	switch {
	case is == nil && !there, is != nil && there && is.equal(list[i].Instance) && is.standsAs(list[i]):
		return list
	case is == nil && len(list) == 1:
		return nil
	case is == nil:
		return slices.Delete(slices.Clone(list), i, i+1)
	case there:
		list = slices.Clone(list)
		list[i] = is
		return list
	}
	return slices.Insert(slices.Clone(list), i, is)
}

// shown is what readers see of an instance, but for an operator's edit, or nil.
// The log comes first: where the kinds of two instances clash, it is the one
// that all nodes agree on.
func (s *service) shown(k InstanceKey) *Shown {
	if len(s.persistent) > 0 && s.persistent[k] != nil {
		return s.persistent[k].shown(s.checks[k])
	}
	return s.winner(k).shown()
}

// shown of no claim is nil.
func (c *claim) shown() *Shown {
	if c == nil {
		return nil
	}
	of := c.pub.client
	return &Shown{Instance: c.instance, Since: c.since, Client: of.id, Life: of.life.Life, State: of.life.is(), Moving: c.pub.moving,
		Slow: c.pub.redo > 0}
}

// stands is claim.stands for what is shown.
func (e *Shown) stands() bool { return e.State == Living && !e.Moving }

// standsAs reports whether the very same stands behind two lines of a view
// that look the same.
func (e *Shown) standsAs(o *Shown) bool {
	return e.Since == o.Since && e.State == o.State && e.Moving == o.Moving && e.Client == o.Client && e.Life == o.Life && e.Slow == o.Slow
}
