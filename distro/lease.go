package distro

import (
	"time"

	"github.com/starling-registry/starling/pkg/registry"
)

// Leases are the times of design §6 that decide when an ended life is dropped.
type Leases struct {
	Detection time.Duration // of a silent death, by memberlist
	Heads     time.Duration // between two heads: a process that is gone is noticed at once, but its last head is as old as that
	Refused   time.Duration // its process is gone, its clients were reset, too
	Silent    time.Duration // its clients may need 20.5 s to notice and register again
	Cap       time.Duration // of a lease, and how long a silent one holds up others
	Restart   time.Duration // of what a snapshot had, and of all where nobody was ready
	// RedoRate is how many registrations a second a survivor is trusted with
	// when the clients of a dead node come.
	RedoRate   int
	MovingFor  time.Duration // how long a moving record stays at least
	ProbeBound time.Duration // how long an orphan that can be dialled stays at most
	PauseBound time.Duration // of self-preservation, in all
}

func (t Leases) base(silent bool) time.Duration {
	if silent {
		return t.Silent
	}
	return t.Refused
}

// lease is the time that the clients of a dead node have.
func (t Leases) lease(silent bool, orphans, survivors int) time.Duration {
	crowd := time.Duration(float64(orphans) / float64(max(1, survivors)*max(1, t.RedoRate)) * float64(time.Second))
	return min(t.base(silent)+crowd, max(t.Cap, t.Refused, t.Silent))
}

// extra is what those of them have beyond it that are known to take so long to
// register again. The others need not wait for them.
func (t Leases) extra(silent, restart bool, redo time.Duration) time.Duration {
	base := t.base(silent)
	switch {
	case restart:
		base = t.Restart
		redo += t.Refused // they have to find a node first
	case !silent:
		base += t.Heads // they were reset when it died
	}
	return max(0, min(redo, t.Cap)-base)
}

// deadline is absolute, so that nodes which hear of a death at different times
// agree on it.
func (t Leases) deadline(owner registry.Stamp, silent bool, lease time.Duration) int64 {
	until := t.Heads
	if silent {
		until = t.Detection
	}
	return owner.Millis() + (until + lease).Milliseconds()
}

// over reports whether no lease can be left of a life: of the longest one, with
// all that may hold it up. All three are by the clock of who tells of it.
func (t Leases) over(owner registry.Stamp, deadline int64, now registry.Stamp) bool {
	if owner != 0 {
		deadline = max(deadline, t.deadline(owner, true, max(t.Cap, t.Refused, t.Silent)))
	}
	return deadline != 0 && now.Millis() > deadline+(t.PauseBound+t.ProbeBound).Milliseconds()
}

// An orphan is what decides about an orphaned life. Times are milliseconds.
type orphan struct {
	now, orphanedAt, deadline, paused int64
	extra                             int64 // that its slow clients have
	silent                            bool  // it, not just someone
}

type surroundings struct {
	preserving      bool // self-preservation is on
	silentLeaseRuns bool // of another life
	someoneSilent   bool
	probe           bool // the expiry probe is not switched off
}

type verdict uint8

const (
	wait   verdict = iota
	pause          // self-preservation holds it
	dial           // drop it as soon as nothing of it is visible that answers
	wane           // all but its slow clients had their time
	expire         // drop it
)

// judge says what is to become of an orphaned life.
func (t Leases) judge(o orphan, s surroundings) verdict {
	start := o.orphanedAt + o.paused
	switch {
	case s.preserving && o.paused < t.PauseBound.Milliseconds():
		return pause
	case o.now < o.deadline+o.paused:
		return wait
	case s.silentLeaseRuns && o.now < start+t.Cap.Milliseconds():
		return wait
	case s.probe && (o.silent || s.someoneSilent) && o.now < start+t.ProbeBound.Milliseconds():
		return dial
	case o.now < o.deadline+o.paused+o.extra:
		return wane
	}
	return expire
}

// moving says what is to become of a record of this node whose client is
// expected elsewhere.
func (t Leases) moving(now, since int64, s surroundings) verdict {
	switch {
	case now < since+t.MovingFor.Milliseconds():
		return wait
	case s.silentLeaseRuns && now < since+t.Cap.Milliseconds():
		return wait
	case s.probe && s.someoneSilent && now < since+t.ProbeBound.Milliseconds():
		return dial
	}
	return expire
}
