package distro

import (
	"fmt"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/starling-registry/starling/pkg/registry"
	pb "github.com/starling-registry/starling/proto"
)

func (l *life) head() *pb.Head {
	return &pb.Head{Life: lifeMessage(l.id), Applied: l.applied, Digest: l.digest, State: uint32(l.state), OwnerClock: uint64(l.ownerClock),
		OwnerVersion: l.ownerVersion, Floor: l.floor, Deadline: l.deadline, Refused: l.state != registry.Living && !l.silent,
		Dropped: uint64(l.dropped), Back: uint64(l.back), Restart: l.restart, Waned: l.waned, Resumed: uint64(l.resumed)}
}

// headsLocked says what this node has. Until it has been ready it speaks only
// of its own life, but to a peer that said it is not ready either (design §6,
// readiness): to others its knowledge could be of yesterday.
func (d *Replicator) headsLocked(to *peer) *pb.Heads {
	now := d.opts.Clock.Now()
	d.own.ownerClock, d.own.ownerVersion = now, d.own.applied
	hs := &pb.Heads{Life: lifeMessage(d.self), Clock: uint64(now), Ready: d.ready, Draining: d.draining,
		Full: d.served || to != nil && to.headsClock != 0 && !to.ready && !to.draining}
	hs.Heads = append(hs.Heads, d.own.head())
	if hs.Full {
		for _, l := range d.lives {
			if l != d.own {
				hs.Heads = append(hs.Heads, l.head())
			}
		}
	}
	return hs
}

func encodeHeads(hs *pb.Heads) []byte {
	return encode(&pb.Message{Body: &pb.Message_Heads{Heads: hs}})
}

// onHeads compares what a peer has with what is here, and pulls what is
// missing. Everything that is merged is a maximum, so that old, late and
// repeated heads do no harm.
func (d *Replicator) onHeads(from string, via Via, hs *pb.Heads) {
	of := readLife(hs.GetLife())
	if !validLife(of) || of.Node != from {
		d.refuse(from, badOwner, fmt.Errorf("heads of %v", of))
		return
	}
	clock := registry.Stamp(hs.GetClock())
	if !d.adopt(from, clock) {
		return
	}
	d.mu.Lock()
	outlived := d.headsLockedMerge(from, via, of, clock, hs)
	d.mu.Unlock()
	if outlived != 0 {
		d.outlived(from, outlived)
	}
	d.carryAll()
}

// headsLockedMerge returns the epoch of a life of this node that it cannot
// have written, or 0.
func (d *Replicator) headsLockedMerge(from string, via Via, of registry.Life, clock registry.Stamp, hs *pb.Heads) (outlived uint64) {
	if of.Epoch < d.epochs[from] {
		d.refuseLocked(from, badEpoch, fmt.Errorf("heads of epoch %d, known is %d", of.Epoch, d.epochs[from]))
		return 0
	}
	if d.earlyLocked(of) {
		d.metrics.refused.WithLabelValues(badEarly).Inc()
		return 0
	}
	p := d.peerLocked(from)
	if of.Epoch > p.epoch {
		p.restart(of.Epoch)
	}
	if clock <= p.headsClock {
		d.metrics.refused.WithLabelValues(badReplayed).Inc() // gossip does that every day
		return 0
	}
	p.headsClock, p.heardAt, p.far = clock, time.Now(), false
	p.clockOff = time.Duration(clock.Millis()-d.opts.Clock.Wall()) * time.Millisecond
	p.ready, p.draining = hs.GetReady(), hs.GetDraining()
	if !p.ready && !p.draining && time.Since(p.headsSent) > 200*time.Millisecond {
		p.headsDue = true // it waits for them
		p.poke()
	}
	if clock > d.sinceStamp { // not of before this process started
		d.adoptEndedLocked(hs)
	}
	now := d.now()
	for _, h := range hs.GetHeads() {
		id := readLife(h.GetLife())
		if !validLife(id) || registry.LifeState(h.GetState()) > registry.Dropped {
			d.refuseLocked(from, badMessage, fmt.Errorf("head of %v", id))
			continue
		}
		if id.Node == d.self.Node && id.Epoch >= d.self.Epoch {
			if id.Epoch > d.self.Epoch || h.GetApplied() > d.own.applied {
				outlived = id.Epoch
			} else {
				d.heardOfOwnLocked(p, h)
			}
			continue
		}
		d.mergeHeadLocked(p, via, id, h, now)
	}
	// A peer that is not ready itself tells all only to whom it has heard to be
	// as far: its first heads are of its own life, and no sign that there is
	// nothing else.
	if d.catchingUp && p.targets == nil && clock > d.sinceStamp && hs.GetFull() {
		p.targets = make(map[registry.Life]uint64, len(hs.GetHeads()))
		for _, h := range hs.GetHeads() {
			if id := readLife(h.GetLife()); d.lives[id] != nil && id != d.self {
				p.targets[id] = h.GetApplied()
			}
		}
	}
	d.readinessLocked(time.Now())
	return outlived
}

func (d *Replicator) heardOfOwnLocked(p *peer, h *pb.Head) {
	p.known = max(p.known, h.GetApplied())
	missed := registry.LifeState(h.GetState()) != registry.Living
	if p.missed && !missed {
		back := min(registry.Stamp(h.GetBack()), p.headsClock)
		if back == 0 { // it does not say
			back = p.headsClock
		}
		d.own.probed, d.own.back = true, max(d.own.back, back)
	}
	p.missed = missed
	if h.GetApplied() == d.own.applied {
		if h.GetDigest() == d.own.digest {
			d.own.digestMatched = d.now()
		} else { // it will see so from the own head, and repair it
			d.mismatchLocked(p.id, d.own)
		}
	}
}

func (d *Replicator) mergeHeadLocked(p *peer, via Via, id registry.Life, h *pb.Head, now int64) {
	ownerClock := registry.Stamp(h.GetOwnerClock())
	wall := d.opts.Clock.Wall()
	if off := d.opts.MaxClockOff.Milliseconds(); ownerClock.Millis()-wall > off || h.GetDeadline()-wall > off {
		d.refuseLocked(p.id, badClock, fmt.Errorf("head of %v has clock %v", id, ownerClock.Time()))
		return
	}
	if d.lives[id] == nil && d.earlyLocked(id) {
		d.metrics.refused.WithLabelValues(badEarly).Inc()
		return
	}
	d.followLocked(ownerClock)
	l := d.hearDropLocked(p, h, d.lives[id])
	if l == nil {
		if registry.LifeState(h.GetState()) == registry.Dropped {
			return // forgotten here, and soon there
		}
		// A life whose member is there has no lease that could be over. Its clock
		// may be old: it was told before a clock that all follow jumped ahead.
		if p.id != id.Node && !d.thereLocked(id) && d.opts.Leases.over(ownerClock, h.GetDeadline(), p.headsClock) {
			return // it has stood still since, and still serves what all others have dropped and forgotten
		}
		if d.fullLocked(id) {
			d.refuseLocked(p.id, badTooMany, fmt.Errorf("head of %v", id))
			return
		}
		l = d.makeLifeLocked(id)
	}
	if ownerClock > l.ownerClock {
		l.ownerClock, l.ownerVersion = ownerClock, max(l.ownerVersion, h.GetOwnerVersion())
		l.spoken = l.probed
	}
	l.resumed = max(l.resumed, min(registry.Stamp(h.GetResumed()), ownerClock))
	if registry.LifeState(h.GetState()) == registry.Orphaned {
		// What a peer gives that has nothing but its snapshot counts where nobody knows
		// better: it will be told by a ready one, as this node was. Nor does an end
		// count of an owner that is there: when it goes, this is told again.
		known := h.GetRestart() && !p.ready && (d.served || d.replaced)
		if !known && (l.state != registry.Living || !d.thereLocked(id)) {
			l.raise(h.GetDeadline(), h.GetRestart())
		}
		l.silent = l.silent && !h.GetRefused()
		if h.GetWaned() {
			d.hearWaneLocked(p, l, now)
		}
	}
	switch applied := h.GetApplied(); {
	case applied > l.applied:
		d.pullLocked(l, p.id, via, now)
	case applied == l.applied && h.GetDigest() == l.digest:
		l.digestMatched = now
	case applied == l.applied:
		d.mismatchLocked(p.id, l)
		if p.id == id.Node || l.state != registry.Living {
			d.repairLocked(l, p.id, now)
		}
	}
	l.noteLag(now)
	d.judgeLocked(l)
}

func (d *Replicator) mismatchLocked(from string, l *life) {
	d.metrics.mismatches.Inc()
	if key := from + " digest " + l.id.String(); !d.logged[key] && len(d.logged) < 10_000 {
		d.logged[key] = true
		d.noteLocked(d.log.Error, "digest differs at the same version", zap.String("peer", from), zap.Stringer("life", l.id), zap.Uint64("version", l.applied))
	}
}

// adopt takes a clock of a peer; false: it is too far off to be believed.
func (d *Replicator) adopt(from string, s registry.Stamp) bool {
	if off := s.Millis() - d.opts.Clock.Wall(); off > d.opts.MaxClockOff.Milliseconds() || -off > d.opts.MaxClockOff.Milliseconds() {
		d.mu.Lock()
		d.refuseLocked(from, badClock, fmt.Errorf("its clock says %v", s.Time()))
		d.peerLocked(from).far = true
		d.mu.Unlock()
		return false
	}
	d.mu.Lock()
	d.followLocked(s)
	d.mu.Unlock()
	return true
}

// followLocked adopts a clock of a peer. If ours jumps by that, nobody had the
// time that is left out: what is left of the leases stays as it was. All
// nodes follow a clock before they read the deadlines that were told by it, so
// each deadline moves once.
func (d *Replicator) followLocked(s registry.Stamp) {
	jump := s.Millis() - d.now()
	d.opts.Clock.Adopt(s)
	if jump <= d.opts.FlagClockOff.Milliseconds() {
		return
	}
	for _, l := range d.lives {
		if l.state == registry.Orphaned {
			l.deadline += jump
			l.skipped += jump
		}
	}
	d.noteLocked(d.log.Warn, "the clock follows that of a node that is ahead", zap.Duration("by", time.Duration(jump)*time.Millisecond))
}

func (d *Replicator) outlived(from string, epoch uint64) {
	d.refuse(from, badAboveOwn, fmt.Errorf("it knows epoch %d of this node above what was written here", epoch))
	d.once.outlived.Do(func() {
		d.log.Error("peers know more of this node's life than it has written; a new epoch is needed", zap.String("peer", from), zap.Uint64("epoch", epoch))
		d.opts.Outlived()
	})
}

// gossipState is what was gossiped; guarded by the replicator's mu.
type gossipState struct {
	news     bool   // worth a head
	applied  uint64 // own version of the last frame
	heads    time.Time
	headsOf  uint64 // own version of the last heads
	tokens   float64
	refilled time.Time
	turn     int // of ended lives, where not all fit
}

func (g *gossipState) take(now time.Time, perSecond int) bool {
	if g.refilled.IsZero() {
		g.tokens = float64(perSecond)
	}
	g.tokens = min(float64(perSecond), g.tokens+now.Sub(g.refilled).Seconds()*float64(perSecond))
	g.refilled = now
	if g.tokens < 1 {
		return false
	}
	g.tokens--
	return true
}

// gossipHeadsLocked returns heads that fit into a packet: the own one and as
// many others as there is room for, in turn.
func (d *Replicator) gossipHeadsLocked() []byte {
	hs := d.headsLocked(nil)
	all := hs.Heads
	size := 0
	for n, h := range all {
		size += proto.Size(h) + 3
		if size > maxGossip-100 && n > 0 {
			rest := all[1:]
			room := n - 1
			hs.Heads = all[:1:1]
			for i := range room {
				hs.Heads = append(hs.Heads, rest[(d.gossip.turn+i)%len(rest)])
			}
			d.gossip.turn += room
			hs.Full = false
			break
		}
	}
	return encodeHeads(hs)
}
