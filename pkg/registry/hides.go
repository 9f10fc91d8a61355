package registry

import (
	"math"
	"slices"
)

// stamps are one Stamp for each kind of client: an HTTP call must not remove
// what a gRPC connection stands for, nor the other way round (cases C14).
type stamps [2]Stamp

func (s *stamps) slot(kind Kind) *Stamp {
	if kind == Beat {
		return &s[1]
	}
	return &s[0]
}

func (s *stamps) of(kind Kind) Stamp { return *s.slot(kind) }

// raise reports whether it did.
func (s *stamps) raise(kind Kind, to Stamp) bool {
	at := s.slot(kind)
	if to <= *at {
		return false
	}
	*at = to
	return true
}

// hides are what is remembered of one instance to keep old claims of it from
// being shown (design §4), guarded by the shard's lock. They are maxima, so
// the order in which they arrive does not matter, and neither does hearing of
// one twice.
type hides struct {
	strong stamps // hides every claim registered up to then
	weak   stamps // those that nobody living stands for
	probes []Probe
	made   Stamp // newest of all, from which their age counts
}

// unanswered reports whether a probe hides a claim. It found that the address
// of an orphan did not answer, so it is as good as a weak hide for all other
// lives. For the life of the orphan it ends when the owner has spoken since,
// except for what came back moving: that stays hidden (design §4). Where the
// life was never gone, because only the prober was cut off, what was marked
// after the probe is shown: its client is on its way now.
func (h *hides) unanswered(c *claim) bool {
	l := c.pub.client.life
	for i := range h.probes {
		p := &h.probes[i]
		switch {
		case p.Of != l.Life:
			if c.since <= p.UpTo && !c.stands() {
				return true
			}
		case l.is() != Living && l.spoke.load() <= p.Made:
			if c.since <= p.UpTo || c.pub.moving {
				return true
			}
		case c.pub.moving && c.pub.clock < max(p.Made, l.back.load()):
			return true
		}
	}
	return false
}

func (h *hides) probed(p Probe) (news bool) {
	h.made = max(h.made, p.Made)
	i := slices.IndexFunc(h.probes, func(o Probe) bool { return o.Of == p.Of })
	if i < 0 {
		h.probes = append(h.probes, p)
		return true
	}
	was := &h.probes[i]
	news = p.UpTo > was.UpTo || p.Made > was.Made
	was.UpTo, was.Made = max(was.UpTo, p.UpTo), max(was.Made, p.Made)
	return news
}

// hidesLocked finds or makes the hides of an instance, whether or not its
// service is there.
func (r *Registry) hidesLocked(sh *shard, key ServiceKey, k InstanceKey) *hides {
	if h := sh.hides[key][k]; h != nil {
		return h
	}
	if r.hides.Load() >= 2*int64(r.opts.MaxHides) && sh.hidden >= sh.thinAt {
		// Sweep is late. What might show something again is left to it, which
		// can tell.
		r.dropHidesLocked(sh, newestHides(sh.madeLocked(nil), sh.hidden/2), true)
		sh.thinAt = sh.hidden + 256
	}
	of := sh.hides[key]
	if of == nil {
		of = map[InstanceKey]*hides{}
		sh.hides[key] = of
		if s := sh.services[key]; s != nil {
			s.hides = of
		}
	}
	h := &hides{}
	of[k] = h
	sh.hidden++
	r.hides.Add(1)
	return h
}

// hideLocked remembers a hide and reports whether it hides more than before.
func (r *Registry) hideLocked(sh *shard, key ServiceKey, kind Kind, hide Hide) bool {
	h := r.hidesLocked(sh, key, hide.InstanceKey)
	h.made = max(h.made, hide.Made)
	if hide.Strong {
		return h.strong.raise(kind, hide.UpTo)
	}
	return h.weak.raise(kind, hide.UpTo)
}

// hideOwnLocked remembers what an own client hides, and gathers it for Take;
// it reports whether there was a reason to.
func (r *Registry) hideOwnLocked(sh *shard, key ServiceKey, c *Client, cause Cause, h Hide) bool {
	if r.alone.Load() {
		// Nothing comes from elsewhere: what is not there now is newer when it comes.
		if s := sh.services[key]; s == nil || len(s.claims[h.InstanceKey]) == 0 {
			return false
		}
	}
	r.hideLocked(sh, key, c.kind, h)
	if g := r.gatherLocked(sh, key, c, cause, h.Made); g != nil {
		g.add(h)
	}
	return true
}

// Unanswered takes note that the address of an orphan did not answer a probe
// of this node or of another: it is not shown until the owner of its life has
// spoken again, and nor is what other lives that are gone say of it from
// before. It is remembered for [Options.HideAge].
func (r *Registry) Unanswered(p Probe) {
	now := r.opts.Clock.Now()
	if r.tooOld(p.Made, now) {
		return
	}
	sh := r.shard(p.Service)
	sh.mu.Lock()
	var n news
	if r.hidesLocked(sh, p.Service, p.Instance).probed(p) {
		if s := sh.services[p.Service]; s != nil {
			by := r.ownWhy(CauseProbeFailed, "", now)
			n.changed = r.showLocked(sh, s, []touch{{p.Instance, 0}}, now, by)
		}
	}
	sh.mu.Unlock()
	r.tell(p.Service, n)
}

// SetAlone says whether nobody else can have older claims of what is removed
// here: then only hides of what somebody claims are remembered. Until it is
// called that is so without [Options.Wrote].
func (r *Registry) SetAlone(alone bool) { r.alone.Store(alone) }

func (r *Registry) tooOld(made, now Stamp) bool { return now.Millis()-made.Millis() >= r.opts.HideAge }

// sweepHides forgets the hides that are too old, and the oldest of those that
// are too many, and returns the services in which something is shown again.
func (r *Registry) sweepHides() (changed []ServiceKey) {
	if r.alone.Load() {
		for i := range r.shards {
			sh := &r.shards[i]
			sh.mu.Lock()
			r.dropHidesLocked(sh, math.MaxUint64, true)
			sh.mu.Unlock()
		}
	}
	oldest := StampAt(r.opts.Clock.Millis() - r.opts.HideAge + 1)
	if int(r.hides.Load()) > r.opts.MaxHides {
		var made []Stamp
		for i := range r.shards {
			sh := &r.shards[i]
			sh.mu.Lock()
			made = sh.madeLocked(made)
			sh.mu.Unlock()
		}
		oldest = max(oldest, newestHides(made, r.opts.MaxHides))
	}
	for i := range r.shards {
		sh := &r.shards[i]
		sh.mu.Lock()
		changed = append(changed, r.dropHidesLocked(sh, oldest, false)...)
		sh.mu.Unlock()
	}
	return changed
}

// madeLocked appends when each of the shard's hides was made.
func (sh *shard) madeLocked(made []Stamp) []Stamp {
	for _, of := range sh.hides {
		for _, h := range of {
			made = append(made, h.made)
		}
	}
	return made
}

// newestHides is the stamp from which on there are n of those given, or all.
func newestHides(made []Stamp, n int) Stamp {
	if len(made) <= n {
		return 0
	}
	slices.Sort(made)
	return made[len(made)-n]
}

// dropHidesLocked forgets what was made before the given stamp, and shows what
// that had hidden, so that a view depends on what is known and not on when it
// was made. bare: only hides of instances that nobody claims.
func (r *Registry) dropHidesLocked(sh *shard, oldest Stamp, bare bool) (changed []ServiceKey) {
	for key, of := range sh.hides {
		s := sh.services[key]
		var touched []touch
		var by why
		for k, h := range of {
			claimed := s != nil && len(s.claims[k]) > 0
			if h.made >= oldest || bare && claimed {
				continue
			}
			delete(of, k)
			sh.hidden--
			r.hides.Add(-1)
			if claimed {
				touched = append(touched, touch{k, 0})
			}
		}
		if len(of) == 0 {
			delete(sh.hides, key)
			if s != nil {
				s.hides = nil
			}
		}
		if len(touched) > 0 {
			now := r.opts.Clock.Now()
			by = r.ownWhy(CauseHideEnded, "", now)
			if r.showLocked(sh, s, touched, now, by) {
				changed = append(changed, key)
			}
		}
	}
	return changed
}
