package distro

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/starling-registry/starling/pkg/registry"
)

// A Status is all that this node knows of the replication, for people.
type Status struct {
	Life     registry.Life
	Ready    bool
	WaitsFor string // if it is not ready
	Draining bool
	// CatchingUp: no lease ends.
	CatchingUp       bool
	Lives            []LifeStatus // by node and epoch
	Peers            []PeerStatus // by id
	SelfPreservation SelfPreservation
}

// A LifeStatus is what this node knows of one life.
type LifeStatus struct {
	Life                        registry.Life
	State                       registry.LifeState
	Applied, OwnerVersion       uint64
	LagVersions                 uint64
	Lag                         time.Duration // since it is behind the owner's last head
	Records, Tombstones         int
	Bytes, TombstoneBytes       int
	Floor, Digest               uint64
	DigestMatched               time.Time // zero: never
	Instances                   int       // named by its publications
	Silent                      bool      // of an orphan: its node gives no answer
	Waning                      bool      // of an orphan: only its slow clients have a lease
	OrphanedAt, Dropped, Expire time.Time // zero: not
	LeaseLeft, Paused           time.Duration
	Probing                     bool
}

// A PeerStatus is what this node knows of another.
type PeerStatus struct {
	ID, Name    string
	State       MemberState
	Epoch       uint64
	Ready       bool
	Draining    bool
	Acked       uint64 // version of the own life that it has
	QueuedBytes uint64 // of own records not sent to it
	ClockOff    time.Duration
	ClockBad    bool      // more than a second off this machine's clock
	LastHeard   time.Time // of its last heads; zero: never
}

// SelfPreservation says whether leases stand still because too many members
// are silent.
type SelfPreservation struct {
	Active    bool
	Overruled bool // by an operator
	Since     time.Time
	Left      time.Duration // until the pauses of the life that has had most of them are used up
	Stable    int           // members that count for a majority
}

// Status is made for each call; it costs O(lives + members + tombstones).
func (d *Replicator) Status() Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	s := Status{Life: d.self, Ready: d.ready, Draining: d.draining, CatchingUp: d.catchingUp,
		SelfPreservation: SelfPreservation{Active: d.preserve.active(), Overruled: d.preserve.overruled, Since: d.preserve.since, Stable: len(d.preserve.stable)}}
	if d.catchingUp {
		s.WaitsFor, _ = d.waitsForLocked(time.Now())
	}
	left := d.opts.Leases.PauseBound
	for _, l := range d.lives {
		ls := LifeStatus{Life: l.id, State: l.state, Applied: l.applied, OwnerVersion: max(l.ownerVersion, l.applied), LagVersions: l.lag(),
			Lag: time.Duration(l.lagMillis(now)) * time.Millisecond, Tombstones: l.dead(), Bytes: l.bytes, TombstoneBytes: l.tombstoneBytes,
			Floor: l.floor, Digest: l.digest, Instances: l.instances}
		ls.Records = len(l.records) - ls.Tombstones
		if l.digestMatched != 0 {
			ls.DigestMatched = time.UnixMilli(l.digestMatched)
		}
		switch l.state {
		case registry.Orphaned:
			ls.Silent, ls.OrphanedAt, ls.Expire = l.silent, l.orphanedAt.Time(), time.UnixMilli(l.deadline+l.paused)
			ls.Waning = l.waned
			ls.LeaseLeft = max(0, time.Duration(l.deadline+l.paused-now)*time.Millisecond)
			ls.Paused, ls.Probing = time.Duration(l.paused)*time.Millisecond, l.probing.due
			left = min(left, max(0, d.opts.Leases.PauseBound-ls.Paused))
		case registry.Dropped:
			ls.Dropped = l.dropped.Time()
		}
		s.Lives = append(s.Lives, ls)
	}
	if s.SelfPreservation.Active {
		s.SelfPreservation.Left = left
	}
	for id, m := range d.members {
		if id == d.self.Node {
			continue
		}
		ps := PeerStatus{ID: id, Name: m.Name, State: m.State, Epoch: m.Epoch}
		if p := d.peers[id]; p != nil {
			ps.Ready, ps.Draining, ps.Acked, ps.ClockOff = p.ready, p.draining, p.known, p.clockOff
			ps.ClockBad = p.headsClock != 0 && max(p.clockOff, -p.clockOff) > d.opts.FlagClockOff
			ps.QueuedBytes, ps.LastHeard = d.written-p.sentBytes, p.heardAt
		}
		s.Peers = append(s.Peers, ps)
	}
	slices.SortFunc(s.Lives, func(a, b LifeStatus) int {
		return cmp.Or(cmp.Compare(a.Life.Node, b.Life.Node), cmp.Compare(a.Life.Epoch, b.Life.Epoch))
	})
	slices.SortFunc(s.Peers, func(a, b PeerStatus) int { return cmp.Compare(a.ID, b.ID) })
	return s
}

// Acked returns when the peers that are alive have everything that was written
// here before.
func (d *Replicator) Acked(ctx context.Context) error {
	for !d.dirty.clean() {
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return fmt.Errorf("own changes are not written yet: %w", err)
		}
	}
	d.mu.Lock()
	version := d.own.applied
	d.mu.Unlock()
	for {
		missing := ""
		d.mu.Lock()
		for id, m := range d.members {
			if p := d.peers[id]; id != d.self.Node && m.State == Alive && (p == nil || p.known < version) {
				missing = m.Name
			}
		}
		d.mu.Unlock()
		if missing == "" {
			return nil
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("%s has not acknowledged version %d: %w", missing, version, err)
		}
	}
}

func sleep(ctx context.Context, t time.Duration) error {
	select {
	case <-time.After(t):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
