package verdict

import (
	"fmt"
	"maps"
)

// A rule of going says how long a dead provider may be shown by the node that
// had it, and where that is written.
type rule struct {
	name string
	why  string
}

// The rules by which the dead go. Which one holds follows from how the provider
// died and from what was made of its node then; the times are in [Limits].
var (
	ruleLeft     = rule{"deregistered", "a deregistration goes at once, always"}
	ruleReset    = rule{"reset", "its process was killed and its node was well: the connection is reset, and it goes at once"}
	ruleMoving   = rule{"moving", "as with a reset, while a node was silent, drained, or a lease ran: 10 s more"}
	rulePath     = rule{"cut off", "its own way to its node was cut: the node notices up to 28 s later"}
	ruleRefused  = rule{"node killed", "its node was killed: 11 s after its last sign of life, Python 35 s"}
	ruleSilent   = rule{"node silent", "its node was silent: 25 s after its last sign of life, Python later"}
	ruleThawed   = rule{"node went on", "its node stood still and went on: 10 s from then, Python 35 s"}
	ruleBeats    = rule{"beats", "without a beat for 15 s, looked at every 5 s; once more where another node took it over"}
	ruleHealed   = rule{"healed", "who could not be told sees it until 2 s after the heal"}
	ruleRestart  = rule{"restarted", "a node that restarts alone shows what its snapshot had, for 30 s"}
	ruleDeaf     = rule{"deaf", "the observer was on its way to another node, or polls"}
	ruleUnheard  = rule{"not deregistered", "the deregistration reached no node"}
	ruleStalling = rule{"stalled", "a node that went on shows half-open connections for up to 10 s"}
)

func (r rule) at(t Millis) Deadline { return Deadline{t, r.name + ": " + r.why} }

func later(a, b Deadline) Deadline {
	if b.By > a.By {
		return b
	}
	return a
}

// gone is by when the observer must not see the dead provider any more.
func (d *derivation) gone(p *Provider, o *Observer) Deadline {
	died := *p.DiedMs
	by := ruleReset.at(died)
	for _, s := range d.paths["o "+o.Name].spells {
		if s.to <= died {
			continue
		}
		// A node that is rid of it before the observer comes shows it to nobody,
		// and one that shows it when the observer leaves no longer.
		at := d.goneAt(p, s.node)
		if at.By < s.from {
			continue
		}
		at.By = min(at.By, s.to)
		by = later(by, at)
	}
	by.By = d.late(by.By)
	if deaf := d.deaf(o, by.By); deaf <= by.By+o.PollsMs {
		by.By = deaf
	} else {
		by = Deadline{deaf, ruleDeaf.at(0).Why + "; before that, " + by.Why}
	}
	return by
}

// goneAt is by when a node must not show it any more.
func (d *derivation) goneAt(p *Provider, m string) Deadline {
	died := *p.DiedMs
	by := ruleReset.at(died)
	for _, s := range d.paths["p "+p.Name].spells {
		if s.from <= died && died < s.to {
			by = later(by, d.goneFrom(p, m, s))
		}
	}
	// What a node has after a restart without others is from before.
	lost := died
	for _, s := range d.paths["p "+p.Name].spells {
		if s.from <= died && died < s.to && s.to < never {
			lost = min(lost, s.lost)
		}
	}
	for _, n := range d.w.nodes {
		for _, r := range d.w.restarts(n) {
			if r.up > lost && r.down < by.By+d.l.Snapshot && (n == m || d.w.together(d.w.at(r.up), m, n)) {
				until, paused := shift(r.up, d.given(p.RedoMs), d.l.Preserved, d.pauses(m, false))
				by = later(by, ruleRestart.at(d.held(m, "", r.up, until, paused)))
			}
		}
	}
	// What the node itself did not see while it stood still.
	for i := d.w.at(died); i < len(d.w.starts) && d.w.starts[i] <= by.By; i++ {
		if d.w.state(i, m) == Frozen && d.w.end(i) < never {
			by = later(by, ruleStalling.at(d.w.end(i)+d.l.Moving))
		}
	}
	return by
}

// goneFrom is by when the node must not show what another one, or it itself,
// had: the sooner of hearing of its removal there and of the lease's end.
func (d *derivation) goneFrom(p *Provider, m string, s spell) Deadline {
	died := *p.DiedMs
	since := died
	var by Deadline
	told := never
	if s.to < never && s.lost <= died && d.w.ended(s.node, s.lost, died) {
		by, since = ruleRefused.at(never), s.lost // only an orphan is left of it
	} else {
		by, told = d.removed(p, s.node)
	}
	told = d.w.hears(m, told)
	if silence, ok := d.w.apartAt(m, s.node, told); ok && by.By < never {
		by = ruleHealed.at(never)
		if silence.to < never && d.w.state(d.w.at(silence.to), s.node) != Starting {
			by.By = silence.to + d.l.Equal
		}
	}
	for _, silence := range d.w.silences(m, s.node) {
		if silence.to <= since || silence.from >= told {
			continue
		}
		over := d.over(p, m, s.node, silence)
		restarted := silence.to < never && d.w.state(d.w.at(silence.to), s.node) == Starting
		if (over.By <= silence.to || restarted || silence.to >= never) && over.By < by.By {
			by = over
		}
	}
	return by
}

// over is when at the latest the lease ends, for a node, of what was on one that
// is silent.
func (d *derivation) over(p *Provider, m, n string, silence stretch) Deadline {
	refused := d.w.refuses(m, n, silence)
	_, need := d.l.leases(refused, p.RedoMs)
	r := ruleSilent
	if refused {
		r = ruleRefused
	}
	until, paused := shift(silence.from, need, d.l.Preserved, d.pauses(m, false))
	until = d.held(m, n, silence.from, until, paused)
	by := r.at(max(until, *p.DiedMs))
	if paused > 0 {
		by.Why += fmt.Sprintf("; self-preservation held it for %v", paused)
	}
	return by
}

// held is when at the latest a lease ends that began at from and would be over:
// silent leases of others put it off.
func (d *derivation) held(m, n string, from, until, paused Millis) Millis {
	for again := true; again; {
		again = false
		for _, k := range d.w.nodes {
			for _, z := range d.w.silences(m, k) {
				if k == m || k == n || z.from >= until || z.to <= from || d.w.refuses(m, k, z) {
					continue
				}
				over, _ := shift(z.from, d.l.LeaseGone, d.l.Preserved, d.pauses(m, false))
				if z.to < never {
					over = min(over, z.to+d.l.Moving) // and it catches up
				}
				if over = min(over, from+paused+d.l.Hold+d.l.Slack); over > until {
					until, again = over, true
				}
			}
		}
	}
	return until
}

// removed is when the owner has removed it, by itself, and from when on nothing
// that becomes of the owner changes that any more; never if its process ended
// before, so that only a lease can.
func (d *derivation) removed(p *Provider, n string) (by Deadline, told Millis) {
	died := *p.DiedMs
	i := d.w.at(died)
	if p.Beats {
		// Whoever takes it over, because nodes come or go, waits as long again; so
		// does one that stood still when it goes on.
		by, detected := died, d.l.LeaseGone-d.l.Lease
		for j := 1; j < len(d.w.starts); j++ {
			at := d.w.starts[j]
			for _, k := range d.w.nodes {
				thawed := d.w.state(j-1, k) == Frozen && d.w.state(j, k) != Frozen && at > died && d.w.starts[j-1] <= died
				if thawed || at > died-detected && at <= by+d.l.BeatLate && (d.w.state(j-1, k) != d.w.state(j, k) || !maps.Equal(d.w.sides[j-1][k], d.w.sides[j][k])) {
					by = max(by, at+detected)
				}
			}
		}
		if d.vouched(n, died, by+d.l.BeatLate) {
			by += d.l.BeatHold
		}
		return ruleBeats.at(by + d.l.BeatLate + d.l.Reset), by + d.l.BeatLate + d.l.Reset
	}
	for j := i; j < len(d.w.starts); j++ {
		at := max(died, d.w.starts[j])
		told := never
		switch state := d.w.state(j, n); {
		case state == Down, state == Starting, state == "":
			// The process that had it is gone: what remains is an orphan.
			return ruleRefused.at(never), never
		case state == Frozen:
			continue // it sees nothing before it goes on
		case j > i && d.w.state(j-1, n) == Frozen:
			by = ruleThawed.at(at + d.l.Moving)
			if d.l.Patience > 0 && p.RedoMs > d.l.Moving {
				by.By = at + p.RedoMs + d.l.Patience
			}
		case !d.w.open(i, p.Group, n):
			by = rulePath.at(died + d.l.NodeNotices)
			if p.Left {
				by = Deadline{by.By, ruleUnheard.at(0).Why + "; " + by.Why}
			}
			if d.unsettled(died, n) || d.unsettled(by.By, n) {
				by.By += d.l.Moving
			}
		case p.Left:
			by, told = ruleLeft.at(died+d.l.Reset), died+d.l.Moment+d.w.drag(died, died)
		case d.unsettled(died, n):
			by = ruleMoving.at(died + d.l.Reset + d.l.Moving)
		default:
			by, told = ruleReset.at(died+d.l.Reset), died+d.l.Moment+d.w.drag(died, died)
		}
		// If the process ends or stands still before, that decides.
		again := false
		told = min(told, by.By)
		for k := j + 1; k < len(d.w.starts) && d.w.starts[k] < told; k++ {
			if s := d.w.state(k, n); s == Down || s == Frozen {
				j, again = k-1, true
				break
			}
		}
		if !again {
			return by, told
		}
	}
	return ruleSilent.at(never), never // its node stands still
}

// vouched: a member is silent for a node meanwhile, or has just been heard of
// again, so that nobody is called dead for want of beats at once.
func (d *derivation) vouched(m string, from, to Millis) bool {
	for _, n := range d.w.nodes {
		for _, z := range d.w.silences(m, n) {
			if n != m && !d.w.refuses(m, n, z) && z.from < to && (z.to >= never || from < z.to+d.l.BeatHold) {
				return true
			}
		}
	}
	return false
}

// unsettled: clients are on their way between nodes, so that a lost connection
// is no sign of death: a node drains, is silent, has just gone on, or the lease
// of one that is gone runs, be that what a restart has of its snapshot.
func (d *derivation) unsettled(t Millis, m string) bool {
	i := d.w.at(t)
	redo := Millis(0)
	for _, p := range d.t.Providers {
		redo = max(redo, p.RedoMs)
	}
	for _, n := range d.w.nodes {
		if d.w.state(i, n) == Stopping {
			return true
		}
		for _, z := range d.w.silences(m, n) {
			_, gone := d.l.leases(d.w.refuses(m, n, z), redo)
			if z.has(t) && (!d.w.refuses(m, n, z) || t < z.from+gone) || z.from <= t && t < max(min(z.to, never-d.l.Moving)+d.l.Moving, z.from+gone) && z.to < never {
				return true
			}
		}
		for j := i; j >= 0 && d.w.end(j) > t-d.l.Moving; j-- {
			if d.w.state(j, n) == Frozen {
				return true
			}
		}
		for _, r := range d.w.restarts(n) {
			if r.up <= t && t < r.up+d.given(redo) && (n == m || d.w.together(d.w.at(r.up), m, n)) {
				return true
			}
		}
	}
	return false
}
