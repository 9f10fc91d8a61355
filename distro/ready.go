package distro

import (
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/registry"
)

// catchUpLocked begins at a start, after a stall, and when a silent member is
// back. Until it ends no lease does, and views only gain.
func (d *Replicator) catchUpLocked() {
	d.catchingUp, d.since, d.sinceStamp = true, time.Now(), d.opts.Clock.Now()
	for _, p := range d.peers {
		p.targets = nil
		p.headsDue = true
		p.poke()
	}
	d.metrics.catchUps.Inc()
}

// catchUpAgainLocked does not let a member that flaps hold everything up: each
// time has at most CatchUp, and the next begins after it.
func (d *Replicator) catchUpAgainLocked() {
	d.readinessLocked(time.Now()) // its time may be over since the last tick
	if time.Since(d.since) > d.opts.CatchUp {
		d.catchUpLocked()
	}
}

// readinessLocked ends the catching up when all is shown that the living peers
// had when it began, or after its time.
func (d *Replicator) readinessLocked(now time.Time) {
	if !d.catchingUp {
		return
	}
	why, peerReady := d.waitsForLocked(now)
	if why != "" {
		return
	}
	if !d.ready && !peerReady { // clients had nowhere to go
		restart := d.now() + d.opts.Leases.Restart.Milliseconds()
		for _, l := range d.lives {
			if l != d.own && l.state == registry.Orphaned {
				l.raise(restart, true)
			}
		}
	}
	if !d.served && peerReady && !d.replaced {
		// Clients had somewhere to go when this node went. No peer has said yet how
		// long they have for that; all take the longest that is told.
		for _, l := range d.lives {
			if l.id.Node == d.self.Node && l != d.own && l.state == registry.Orphaned && l.restart {
				l.deadline, l.restart = d.now()+d.opts.Leases.lease(false, 0, 1).Milliseconds(), false
			}
		}
	}
	if d.served && !d.ready {
		d.own.probed = true // after a stall
	}
	if !d.served {
		// Nobody has seen anything here yet, and should not see what is over
		// elsewhere. Drops are told, this is not.
		for _, l := range d.lives {
			if l.state == registry.Orphaned && d.verdictLocked(l, d.now()) == wane {
				d.waneLocked(l, true)
			}
		}
	}
	d.catchingUp = false
	d.ready = !d.draining
	d.served = d.served || d.ready
	d.changes++
	d.gossip.news = true
	for _, p := range d.peers { // they may hand out this node now
		p.headsDue = true
		p.poke()
	}
	d.noteLocked(d.log.Info, "caught up", zap.Duration("after", now.Sub(d.since)), zap.Bool("ready", d.ready))
}

// startPatience bounds, in times of CatchUp, how long a start may last while
// pulls make progress: a million instances take seconds.
const startPatience = 6

// waitsForLocked returns "" when this node has caught up.
func (d *Replicator) waitsForLocked(now time.Time) (why string, peerReady bool) {
	anyone := false
	near, far := 0, 0
	for id, m := range d.members {
		if id == d.self.Node || m.State != Alive {
			continue
		}
		anyone = true
		p := d.peers[id]
		peerReady = peerReady || p != nil && p.ready
		if p != nil && p.far {
			far++
		} else if p != nil && p.headsClock != 0 {
			near++
		}
		switch {
		case why != "":
		case p == nil || p.targets == nil:
			why = fmt.Sprintf("heads of %s", m.Name)
		default:
			for life, version := range p.targets {
				if l := d.lives[life]; l != nil && l.shown < version {
					why = fmt.Sprintf("%v: version %d of %d that %s has", life, l.shown, version, m.Name)
					break
				}
			}
		}
	}
	waited := now.Sub(d.since)
	switch {
	case !d.served && near == 0 && far > 1: // it would serve what it has alone
		why = fmt.Sprintf("a clock that is right: %d other nodes are more than %v off", far, d.opts.MaxClockOff)
	case why != "" && !d.served && len(d.pulling) > 0 && waited < startPatience*d.opts.CatchUp:
		// At its start a node does not serve a part of a large registry that is
		// on its way. A pull without progress ends by itself.
	case waited >= d.opts.CatchUp:
		why = ""
	case !anyone && d.opts.Joined && waited < d.opts.JoinAlone:
		why = "the first peer"
	case why == "" && peerReady && !d.served && !d.replaced:
		why = "all heads of a ready peer"
	}
	return why, peerReady
}

// Ready says whether this node takes clients, and else what it waits for.
func (d *Replicator) Ready() (bool, string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.ready:
		return true, ""
	case d.draining:
		return false, "draining"
	case !d.catchingUp:
		return false, "not started"
	}
	why, _ := d.waitsForLocked(time.Now())
	return false, "waits for " + why
}

// Stalled says that this process stood still, after its closed connections
// were handled. It is not ready until it has caught up.
//
// What became of the connections is in the life when it returns: the next head
// makes the life living for the others, who must not show what has gone
// meanwhile (cases F08).
func (d *Replicator) Stalled() {
	resumed := d.opts.Clock.Now()
	for d.writeSome() {
	}
	d.mu.Lock()
	d.own.resumed, d.own.back = resumed, resumed
	d.ready = false
	d.lastTick = time.Now()
	d.catchUpLocked()
	d.mu.Unlock()
	d.log.Warn("this process stood still; catching up")
}

// SetDraining takes the node out of the peers that clients are sent to, or
// puts it back.
func (d *Replicator) SetDraining(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.draining = on
	d.ready = !on && !d.catchingUp
	for _, p := range d.peers {
		p.headsDue = true
		p.poke()
	}
	d.gossip.news = true
}
