package distro

import (
	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/registry"
	pb "github.com/starling-registry/starling/proto"
)

// makeLifeLocked makes what this node does not know yet.
func (d *Replicator) makeLifeLocked(id registry.Life) *life {
	l := newLife(id)
	l.silent = true
	l.livingSince = d.now()
	d.lives[id] = l
	d.companyLocked()
	if d.epochs[id.Node] < id.Epoch {
		d.epochs[id.Node] = id.Epoch
		for _, other := range d.lives { // older lives of the node have ended by that
			if other.id.Node == id.Node && other != l {
				d.judgeLocked(other)
			}
		}
	}
	return l
}

// early: membership does not know of that life yet, and the node is there with
// an earlier one. Whatever is told of it has to wait: a life that never was
// would end the present one for good.
func (d *Replicator) earlyLocked(id registry.Life) bool {
	m, ok := d.members[id.Node]
	return ok && m.State == Alive && m.Epoch != 0 && id.Epoch > m.Epoch
}

// full: there is no room for a life that this node does not know. For those of
// members that are there it always has some.
func (d *Replicator) fullLocked(id registry.Life) bool {
	return len(d.lives) >= d.opts.MaxLives && !d.thereLocked(id)
}

// there: it is the life of a member that is alive.
func (d *Replicator) thereLocked(id registry.Life) bool {
	m, ok := d.members[id.Node]
	return ok && m.State == Alive && id.Epoch == m.Epoch
}

// aloneLocked says whether there is nobody who could have an older copy of
// anything: this node joins nobody, has heard of no other node, not even of one
// that has gone, and knows no other life. A node that has never been
// heard does not count: a client that is at both says goodbye at both.
func (d *Replicator) aloneLocked() bool {
	return !d.opts.Joined && !d.opts.Known && len(d.members) == 1 && len(d.peers) == 0 && len(d.lives) == 1
}

// companyLocked tells the registry when that changes.
func (d *Replicator) companyLocked() {
	if alone := d.aloneLocked(); alone != d.alone {
		d.alone = alone
		d.tellLocked(d.self, func(r Registry) { r.SetAlone(alone) })
	}
}

// ended: a higher epoch of the node is known. Old and new life then stand side
// by side.
func (d *Replicator) endedLocked(id registry.Life) bool { return d.epochs[id.Node] > id.Epoch }

// judgeLocked sets the state of a life. It depends on nothing but what is
// known now, so that it does not matter which news came first, and it is asked
// again with every tick. A head alone never makes a life living: only its
// member alive and the version of its own last head applied.
func (d *Replicator) judgeLocked(l *life) {
	if l == d.own {
		return
	}
	m, known := d.members[l.id.Node]
	ended := d.endedLocked(l.id)
	gone := !known || m.State != Alive || ended
	spoken := l.ownerClock
	caughtUp := l.applied >= l.ownerVersion
	if l.spoken && caughtUp {
		d.spokenLocked(l)
	}
	switch {
	case l.state == registry.Dropped:
		if !gone && spoken > l.dropped && caughtUp {
			d.returnLocked(l)
		}
		return
	case gone && l.state == registry.Living:
		l.orphanedAt, l.silent, l.skipped = d.opts.Clock.Now(), true, 0
		if d.now()-l.livingSince >= d.opts.StableAfter.Milliseconds() {
			l.paused = 0
		}
		l.probing = probing{}
		d.setStateLocked(l, registry.Orphaned, l.ownerClock)
		d.metrics.orphaned.Inc()
		d.noteLocked(d.log.Info, "life is orphaned", zap.Stringer("life", l.id), zap.Stringer("member", m.State), zap.Bool("known", known), zap.Bool("ended", ended))
	case !gone && l.state == registry.Orphaned && spoken > l.orphanedAt && caughtUp:
		d.returnLocked(l)
		return
	}
	if gone {
		l.silent = l.silent && !(known && (m.State == Refused || m.State == Left)) && !ended
		_, living := d.nodesLocked()
		lease := d.opts.Leases.lease(l.silent, l.instances, len(living))
		spoken := l.ownerClock
		if spoken == 0 {
			spoken = l.orphanedAt
		}
		l.raise(d.opts.Leases.deadline(spoken, l.silent, lease), false)
		l.holds = l.holds || l.silent
	}
}

// returnLocked: its owner is back. From when on it counts again decides what is
// shown of what has been moving, so all should say the same: after a stall the
// owner says it, else it is the head that brought it back here.
func (d *Replicator) returnLocked(l *life) {
	gone := l.orphanedAt
	if l.state == registry.Dropped {
		gone = l.dropped
	}
	switch {
	case l.state == registry.Dropped && l.back > l.dropped:
	case l.resumed > gone:
		l.back = l.resumed
	default:
		l.back = l.ownerClock
	}
	// Its next end has a deadline of its own: that of a snapshot, from before the
	// owner was back, would hold for 30 s what dies then.
	l.livingSince, l.probing, l.holds, l.restart, l.deadline = d.now(), probing{}, false, false, 0
	d.setStateLocked(l, registry.Living, l.back)
	d.metrics.returned.Inc()
	d.noteLocked(d.log.Info, "life is living again", zap.Stringer("life", l.id))
}

// setStateLocked tells the registry; at is the owner's clock on its return,
// else the newest one heard.
func (d *Replicator) setStateLocked(l *life, s registry.LifeState, at registry.Stamp) {
	l.state, l.waned = s, false
	d.changes++
	d.gossip.news = true
	d.tellStateLocked(l, at)
}

func (d *Replicator) tellStateLocked(l *life, at registry.Stamp) {
	id, s := l.id, l.state
	if l.waned {
		s = registry.Waning
	}
	d.tellLocked(id, func(r Registry) { r.SetLife(id, s, at) })
}

// spokenLocked: results of probes are void after a later head of the owner, so
// the registry must know of it; but only when what the owner had then is here,
// or what it removed meanwhile would be shown again (cases F23). It costs a look at all services of the life,
// and is left out for those that were never probed.
func (d *Replicator) spokenLocked(l *life) {
	l.spoken = false
	if l.state == registry.Orphaned && l.probed {
		l.probed = false
		d.tellStateLocked(l, l.ownerClock)
	}
}

// waneLocked ends the lease of all but the slow clients of an orphan, or gives
// it back. Others are told nothing of it: they come to it by themselves, by
// the same deadline.
func (d *Replicator) waneLocked(l *life, waned bool) {
	if l.waned != waned {
		l.waned = waned
		d.tellStateLocked(l, l.ownerClock)
	}
}

// ownSpokenLocked does the same for the own life, after others had missed it,
// with the clock that they go by.
func (d *Replicator) ownSpokenLocked() {
	if d.own.probed {
		d.own.probed = false
		id, back := d.self, d.own.back
		d.tellLocked(id, func(r Registry) { r.SetLife(id, registry.Living, back) })
	}
}

// dropLocked lets a life go as a whole. It stays here with its records, which
// go on hiding what they named, until the drop is forgotten.
func (d *Replicator) dropLocked(l *life, at registry.Stamp, why string) {
	l.dropped = max(l.dropped, at)
	d.setStateLocked(l, registry.Dropped, l.ownerClock)
	d.metrics.dropped.Inc()
	d.noteLocked(d.log.Info, "life is dropped", zap.Stringer("life", l.id), zap.String("why", why), zap.Int("records", len(l.records)))
}

func (d *Replicator) forgetLifeLocked(l *life) {
	delete(d.lives, l.id)
	d.changes++
	d.gossip.news = true
	id := l.id
	d.tellLocked(id, func(r Registry) { r.ForgetLife(id) })
	d.metrics.forgotten.Inc()
}

// hearDropLocked merges what a peer says of a drop (DESIGN.md: drops). It
// returns the life if this node knows it then.
func (d *Replicator) hearDropLocked(p *peer, h *pb.Head, l *life) *life {
	at, state := registry.Stamp(h.GetDropped()), registry.LifeState(h.GetState())
	now := d.now()
	if at == 0 || now-at.Millis() > d.opts.DropMemory.Milliseconds() {
		return l // forgotten, or about to be
	}
	if l == nil {
		// Also one that came back meanwhile: what was moving at the drop must
		// be hidden here as it is there.
		id := readLife(h.GetLife())
		if d.fullLocked(id) {
			return nil
		}
		l = d.makeLifeLocked(id)
		if back := registry.Stamp(h.GetBack()); back > at {
			l.back = back
		}
		l.silent = !h.GetRefused()
		l.ownerClock, l.ownerVersion = registry.Stamp(h.GetOwnerClock()), h.GetOwnerVersion()
		d.dropLocked(l, at, "told by a peer")
		return l
	}
	if state != registry.Dropped || at < l.ownerClock && l.state != registry.Dropped {
		return l // its owner has spoken since
	}
	switch l.state {
	case registry.Dropped:
		l.dropped = max(l.dropped, at)
	case registry.Orphaned:
		starting := d.catchingUp && !d.served
		held := d.silentLeaseRunsLocked(l, now) && now < l.orphanedAt.Millis()+d.opts.Leases.Cap.Milliseconds()
		expired := p.ready && !d.catchingUp && !d.preserve.active() && !held && now >= l.deadline+l.extra(d.opts.Leases)
		if starting || expired {
			l.silent = l.silent || starting && !h.GetRefused()
			d.dropLocked(l, at, "a peer has dropped it")
		}
	}
	return l
}

// hearWaneLocked: a peer has ended the lease of all but the slow clients. Who has
// paused longer gives up the rest of that, as with drops: after a partition the
// sides agree at once.
func (d *Replicator) hearWaneLocked(p *peer, l *life, now int64) {
	if l.state == registry.Orphaned && p.ready && !d.catchingUp && !d.preserve.active() && now >= l.deadline && now < l.deadline+l.paused {
		l.paused = now - l.deadline
		mark(d.leaseDue)
	}
}

// adoptEndedLocked: while a node has never been ready, the first ready peer's
// ended lives replace its own, which are from a snapshot. What that peer does
// not know was forgotten by the cluster.
func (d *Replicator) adoptEndedLocked(hs *pb.Heads) {
	if !hs.GetReady() || !hs.GetFull() || d.served || d.replaced {
		return
	}
	d.replaced = true
	theirs := make(map[registry.Life]*pb.Head, len(hs.GetHeads()))
	for _, h := range hs.GetHeads() {
		theirs[readLife(h.GetLife())] = h
	}
	for id, l := range d.lives {
		h, known := theirs[id]
		switch m, member := d.members[id.Node]; {
		case l == d.own:
		case !known && member && m.State == Alive && !d.endedLocked(id):
			// The peer has not heard of a node that is there.
		case !known:
			d.forgetLifeLocked(l)
		case registry.LifeState(h.GetState()) == registry.Orphaned && l.state == registry.Orphaned:
			l.deadline, l.silent, l.restart = h.GetDeadline(), !h.GetRefused(), h.GetRestart()
		case id.Node == d.self.Node && l.state == registry.Orphaned:
			// The peer has not noticed yet that this node was gone. It will come to
			// this deadline, and not to the longer one of the snapshot.
			owner := max(l.ownerClock, registry.Stamp(h.GetOwnerClock()))
			l.deadline, l.restart = d.opts.Leases.deadline(owner, false, d.opts.Leases.lease(false, 0, 1)), false
		}
	}
}

func (l *life) lag() uint64 {
	if l.ownerVersion > l.applied {
		return l.ownerVersion - l.applied
	}
	return 0
}

func (l *life) lagMillis(now int64) int64 {
	if l.behindSince == 0 || l.lag() == 0 {
		return 0
	}
	return now - l.behindSince
}

func (l *life) noteLag(now int64) {
	if l.lag() == 0 {
		l.behindSince = 0
	} else if l.behindSince == 0 {
		l.behindSince = now
	}
}
