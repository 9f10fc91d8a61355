package distro

import (
	"context"
	"math"
	"time"

	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/registry"
)

// tickLoop judges everything that depends on time. Its work is O(lives +
// members), not O(clients). Leases end when they are over, not with the next
// tick: a second counts for those who call what is dead.
func (d *Replicator) tickLoop(ctx context.Context) {
	ticker := time.NewTicker(d.opts.Tick)
	defer ticker.Stop()
	for {
		due := time.NewTimer(d.untilDue())
		select {
		case <-ticker.C:
			d.tick()
		case <-due.C:
			d.leases()
		case <-d.leaseDue:
			d.leases()
		case <-ctx.Done():
		}
		due.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// untilDue is the time to the next moment at which the clock alone changes
// what is to become of an orphan.
func (d *Replicator) untilDue() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := d.opts.Tick.Milliseconds()
	if d.catchingUp {
		return d.opts.Tick
	}
	now, early := d.now(), d.opts.ProbeTimeout.Milliseconds()
	for _, l := range d.lives {
		if l.state != registry.Orphaned {
			continue
		}
		end := l.deadline + l.paused
		for _, at := range []int64{end - early, end, end + l.extra(d.opts.Leases) - early, end + l.extra(d.opts.Leases)} {
			if at > now {
				next = min(next, at-now)
			}
		}
	}
	return time.Duration(next) * time.Millisecond
}

func (d *Replicator) leases() {
	d.opts.Awake()
	d.mu.Lock()
	due := d.leasesLocked(0)
	d.mu.Unlock()
	d.drop(due)
	d.carryAll()
}

// mark fills a slot.
func mark(slot chan struct{}) {
	select {
	case slot <- struct{}{}:
	default:
	}
}

func (d *Replicator) tick() {
	d.opts.Awake()
	d.mu.Lock()
	now := time.Now()
	// A stall must not count as a pause, and Awake has seen it.
	passed := min(now.Sub(d.lastTick), 2*d.opts.Tick)
	d.lastTick = now
	d.preserveLocked(now)
	for _, l := range d.lives {
		d.judgeLocked(l)
	}
	d.readinessLocked(now)
	d.ownSpokenLocked()
	due := d.leasesLocked(passed)
	d.forgetLocked()
	for _, p := range d.peers {
		p.headsDue = true
		p.poke()
	}
	d.mu.Unlock()
	d.dialler.forget()
	d.drop(due)
	d.carryAll()
	d.gossipHeads(now)
}

// leasesLocked returns the lives that are to be dropped, in part or as a whole.
func (d *Replicator) leasesLocked(passed time.Duration) (due []registry.Life) {
	if d.catchingUp {
		return nil
	}
	now := d.now()
	for _, l := range d.lives {
		if l.state != registry.Orphaned {
			continue
		}
		switch v := d.verdictLocked(l, now); {
		case v == pause:
			l.paused += passed.Milliseconds()
		case v == dial:
			if !l.probing.due {
				l.probing.due = true
				mark(d.probesDue)
			}
			if l.probing.scanned && l.probing.visible == 0 {
				due = append(due, l.id)
			}
		case v == expire, v == wane && !l.waned:
			due = append(due, l.id)
		case v == wane:
		default:
			// A dial takes a while, so it begins before; it counts when the lease
			// is over.
			early := d.verdictLocked(l, now+d.opts.ProbeTimeout.Milliseconds()) == dial
			if early && !l.probing.early {
				mark(d.probesDue)
			}
			l.probing = probing{early: early} // not due, or not any more: another lease was raised meanwhile
			if now < l.deadline+l.paused {
				d.waneLocked(l, false) // its own was
			}
		}
	}
	return due
}

func (d *Replicator) verdictLocked(l *life, now int64) verdict {
	return d.opts.Leases.judge(orphan{now: now, orphanedAt: l.orphanedAt.Millis() + l.skipped, deadline: l.deadline, paused: l.paused,
		extra: l.extra(d.opts.Leases), silent: l.silent},
		surroundings{preserving: d.preserve.active(), silentLeaseRuns: d.silentLeaseRunsLocked(l, now),
			someoneSilent: d.someoneSilentLocked(), probe: d.opts.ProbeEvery > 0})
}

// drop asks once more whether this process is awake: what it knows may be
// older than the lease.
func (d *Replicator) drop(due []registry.Life) {
	if len(due) == 0 {
		return
	}
	d.opts.Awake()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.catchingUp {
		return
	}
	now := d.now()
	for _, id := range due {
		l := d.lives[id]
		if l == nil || l.state != registry.Orphaned {
			continue
		}
		switch v := d.verdictLocked(l, now); {
		case v == wane:
			d.waneLocked(l, true)
		case v == expire, v == dial && l.probing.visible == 0:
			d.dropLocked(l, d.opts.Clock.Now(), "its lease is over")
		}
	}
}

// forgetLocked lets go what is old: tombstones, drops, parts of frames that
// never came to their end. Who is alone needs no tombstones: whoever comes later
// takes the whole life.
func (d *Replicator) forgetLocked() {
	now := d.now()
	grace := registry.StampAt(max(0, now-d.opts.Grace.Milliseconds()))
	if d.companyLocked(); d.alone {
		grace = math.MaxUint64
	}
	memory := d.opts.DropMemory.Milliseconds()
	for _, l := range d.lives {
		d.metrics.tombstones.Add(float64(l.forget(grace, d.opts.TombstoneBytes)))
		if l.dropped == 0 || now-l.dropped.Millis() <= memory {
			continue
		}
		if l.state == registry.Dropped {
			d.forgetLifeLocked(l)
		} else {
			l.dropped, l.back = 0, 0
		}
	}
	for k, s := range d.staged {
		if now-s.touched > 60_000 {
			d.unstageLocked(k)
		}
	}
}

// Members takes the newest view of the cluster, this node included. It is
// copied.
func (d *Replicator) Members(ms []Member) {
	d.mu.Lock()
	old := d.members
	d.members = make(map[string]Member, len(ms))
	for _, m := range ms {
		d.members[m.ID] = m
	}
	d.members[d.self.Node] = Member{ID: d.self.Node, Epoch: d.self.Epoch, State: Alive, Name: d.members[d.self.Node].Name}
	d.companyLocked()
	for id, m := range d.members {
		if id == d.self.Node {
			continue
		}
		d.epochs[id] = max(d.epochs[id], m.Epoch)
		p := d.peerLocked(id)
		if m.Epoch > p.epoch {
			p.restart(m.Epoch)
		}
		was, known := old[id]
		if m.State != Silent {
			delete(d.silentSince, id)
		} else if d.silentSince[id].IsZero() {
			d.silentSince[id] = time.Now()
		}
		switch {
		case m.State == Alive:
			if known && was.State == Silent || !known && d.saidSilentLocked(id) {
				d.catchUpAgainLocked()
			}
			d.startSenderLocked(p)
		case !known || was.State == Alive:
			d.stopSenderLocked(p)
			p.ready, p.targets = false, nil
			d.noteLocked(d.log.Info, "member is gone", zap.String("peer", m.Name), zap.Stringer("state", m.State))
		}
	}
	for id, p := range d.peers { // membership has forgotten them
		if _, ok := d.members[id]; !ok && old[id].ID != "" {
			d.stopSenderLocked(p)
			p.ready, p.targets = false, nil
		}
	}
	for id := range old {
		if _, ok := d.members[id]; !ok { // dead since long
			delete(d.preserve.stable, id)
			delete(d.silentSince, id)
		}
	}
	d.preserveLocked(time.Now())
	for _, l := range d.lives {
		d.judgeLocked(l)
	}
	d.readinessLocked(time.Now())
	d.mu.Unlock()
	d.carryAll()
}
