package distro

import (
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"
)

// preservation is self-preservation (design §6): when more nodes fell silent at
// once than leave a majority, it is rather this node that is cut off, and no
// lease runs. Guarded by the replicator's mu.
type preservation struct {
	aliveSince map[string]time.Time // of members that are alive now
	stable     map[string]bool      // members that were alive for long enough; leavers drop out at once
	since      time.Time            // zero: not active
	overruled  bool                 // by the operator, until it would end by itself
}

// observe takes the newest states. It must be called now and then, too: members
// become stable by time.
func (p *preservation) observe(now time.Time, members map[string]Member, after time.Duration) {
	for id, m := range members {
		switch m.State {
		case Alive:
			if p.aliveSince[id].IsZero() {
				p.aliveSince[id] = now
			}
			if now.Sub(p.aliveSince[id]) >= after {
				p.stable[id] = true
			}
		case Left:
			delete(p.stable, id)
			delete(p.aliveSince, id)
		default:
			delete(p.aliveSince, id)
		}
	}
	maps.DeleteFunc(p.aliveSince, func(id string, _ time.Time) bool { _, ok := members[id]; return !ok })
	if tooQuiet(p.stable, members) {
		if p.since.IsZero() {
			p.since = now
		}
	} else {
		p.since, p.overruled = time.Time{}, false
	}
}

// tooQuiet: the silent members of the stable set leave no majority of it. A
// node that refuses is accounted for, not silent.
func tooQuiet(stable map[string]bool, members map[string]Member) bool {
	quiet := 0
	for id := range stable {
		if m, ok := members[id]; ok && m.State == Silent {
			quiet++
		}
	}
	return quiet > 0 && quiet > len(stable)-(len(stable)/2+1)
}

func (p *preservation) active() bool { return !p.since.IsZero() && !p.overruled }

// preserveLocked takes the newest states, and says when that begins or ends
// self-preservation.
func (d *Replicator) preserveLocked(now time.Time) {
	was := d.preserve.since
	d.preserve.observe(now, d.members, d.opts.StableAfter)
	switch is := d.preserve.since; {
	case was.IsZero() && !is.IsZero():
		var silent []string
		for id, m := range d.members {
			if m.State == Silent && d.preserve.stable[id] {
				silent = append(silent, m.Name)
			}
		}
		slices.Sort(silent)
		d.noteLocked(d.log.Warn, "self-preservation begins: more nodes are silent than leave a majority, so no lease runs; starling cluster tells for how long, and how to end it",
			zap.Strings("silent", silent), zap.Duration("atMost", d.opts.Leases.PauseBound))
	case !was.IsZero() && is.IsZero():
		d.noteLocked(d.log.Info, "self-preservation ends: a majority answers", zap.Duration("after", now.Sub(was)))
	}
}

// Stable returns the members that the node should remember over a restart: a
// majority is one of them.
func (d *Replicator) Stable() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.preserve.stable))
}

// EndSelfPreservation lets the leases run, by an operator's decision, until
// self-preservation would have ended by itself.
func (d *Replicator) EndSelfPreservation() {
	d.mu.Lock()
	d.preserve.overruled = !d.preserve.since.IsZero()
	ended := d.preserve.overruled
	d.mu.Unlock()
	if ended {
		d.log.Warn("self-preservation was ended by an operator")
	}
}
