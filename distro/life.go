package distro

import (
	"slices"
	"time"

	"github.com/starling-registry/starling/pkg/registry"
)

// A life is what this node knows of one run of one node. All of it is guarded
// by the replicator's mu; records themselves do not change.
type life struct {
	id      registry.Life
	records map[string]*record // newest of each key
	// order has the records by version, stale ones among them. Writes append;
	// it is rebuilt when half of it is stale.
	order      []*record
	stale      int
	staleBytes int
	// tombstones are those of order that are gone, oldest first.
	tombstones     []*record
	tombstoneBytes int
	bytes          int
	instances      int            // that its publications name
	redo           map[uint16]int // publications by redo seconds

	applied uint64 // one prefix number
	shown   uint64 // likewise, of what the registry has been told
	floor   uint64 // newest tombstone that this node has forgotten
	digest  uint64 // wrapping sum of the hashes of what is not gone
	// suspect: a head had the same version and another digest. A whole
	// transfer of this version is taken then, too.
	suspect   bool
	repaired  int64          // milliseconds; when the last repair began
	maxRecord registry.Stamp // newest clock of a record

	ownerClock   registry.Stamp // newest head (or record) clock of the owner, merged by max
	ownerVersion uint64         // what the owner had applied then

	state       registry.LifeState
	livingSince int64 // milliseconds; since when it is Living
	orphanedAt  registry.Stamp
	deadline    int64          // milliseconds; merged by max, so that all nodes agree
	silent      bool           // its node gave no answer; false: it refused, restarted or left
	restart     bool           // its deadline is that of a restart, of this node or another
	holds       bool           // its deadline is that of a silence, though its node may refuse by now
	paused      int64          // milliseconds by self-preservation, in all
	skipped     int64          // milliseconds that the clock has jumped over since orphanedAt
	waned       bool           // Orphaned, and only its slow clients have a lease
	dropped     registry.Stamp // clock of the newest drop; 0: never
	back        registry.Stamp // the owner's clock when it came back, last time
	resumed     registry.Stamp // the owner's clock when it went on after a stall, last time

	behindSince   int64 // milliseconds; 0: not behind the owner's head
	digestMatched int64 // milliseconds; last time that a peer's digest was the same
	probing       probing
	probed        bool // there are results of probes, and its owner has not spoken since
	spoken        bool // it has, but what it had then is not here yet
}

func newLife(id registry.Life) *life {
	return &life{id: id, records: map[string]*record{}, redo: map[uint16]int{}}
}

// put makes r the newest record of its key. It must be newer than what is
// there.
func (l *life) put(r *record) {
	if old := l.records[r.key]; old != nil {
		l.remove(old)
	}
	l.records[r.key] = r
	l.order = append(l.order, r)
	l.bytes += len(r.raw)
	l.maxRecord = max(l.maxRecord, r.clock)
	if r.gone {
		l.tombstones = append(l.tombstones, r)
		l.tombstoneBytes += len(r.raw)
		return
	}
	l.digest += r.hash
	l.instances += int(r.shows)
	if r.redo > 0 {
		l.redo[r.redo]++
	}
}

func (l *life) remove(r *record) {
	delete(l.records, r.key)
	r.stale = true
	l.stale++
	l.staleBytes += len(r.raw)
	l.bytes -= len(r.raw)
	if r.gone {
		l.tombstoneBytes -= len(r.raw)
		return
	}
	l.digest -= r.hash
	l.instances -= int(r.shows)
	if r.redo > 0 {
		if l.redo[r.redo]--; l.redo[r.redo] == 0 {
			delete(l.redo, r.redo)
		}
	}
}

// staleBytes that are always kept: not every large batch that is written again
// is worth a look at all records.
const staleBytes = 1 << 20

// compact drops stale entries once they are half of what is there, by number or
// by bytes, so that their cost is spread over the writes that made them.
func (l *life) compact() {
	if (l.stale < 64 || l.stale < len(l.order)/2) && (l.staleBytes < staleBytes || l.staleBytes < l.bytes) {
		return
	}
	fresh := func(rs []*record) []*record {
		return slices.Clip(slices.DeleteFunc(slices.Clone(rs), func(r *record) bool { return r.stale }))
	}
	l.order, l.tombstones, l.stale, l.staleBytes = fresh(l.order), fresh(l.tombstones), 0, 0
}

// above returns the records with versions above from, by version.
func (l *life) above(from uint64) []*record {
	at, _ := slices.BinarySearchFunc(l.order, from+1, func(r *record, v uint64) int {
		if r.version < v {
			return -1
		}
		return 1
	})
	out := make([]*record, 0, len(l.order)-at)
	for _, r := range l.order[at:] {
		if !r.stale {
			out = append(out, r)
		}
	}
	return out
}

// forget drops the tombstones that were made before the given time, and the
// oldest ones until they fit into maxBytes. Who has applied less than the
// floor needs the whole life from then on.
func (l *life) forget(before registry.Stamp, maxBytes int) (forgotten int) {
	for len(l.tombstones) > 0 {
		r := l.tombstones[0]
		if !r.stale {
			if r.clock >= before && l.tombstoneBytes <= maxBytes {
				break
			}
			l.remove(r)
			l.floor = max(l.floor, r.version)
			forgotten++
		}
		l.tombstones[0] = nil
		l.tombstones = l.tombstones[1:]
	}
	l.compact()
	return forgotten
}

func (l *life) redoSeconds() (longest uint16) {
	for s := range l.redo {
		longest = max(longest, s)
	}
	return longest
}

// raise takes a deadline that is later. What it was made of goes with it, since
// the end of the slow clients' lease depends on that: nodes that agree on the one
// must agree on the other.
func (l *life) raise(deadline int64, restart bool) {
	switch {
	case deadline > l.deadline:
		l.deadline, l.restart = deadline, restart
	case deadline == l.deadline:
		l.restart = l.restart || restart
	}
}

// extra is what its slow clients have beyond the lease, in milliseconds.
func (l *life) extra(t Leases) int64 {
	return t.extra(l.silent, l.restart, time.Duration(l.redoSeconds())*time.Second).Milliseconds()
}

// dead says how many of the records are tombstones.
func (l *life) dead() (n int) {
	for _, r := range l.tombstones {
		if !r.stale {
			n++
		}
	}
	return n
}

// outcome of a merge.
type outcome uint8

const (
	merged  outcome = iota
	nothing         // known already
	gap             // it begins above what is applied
)

// merge lays a frame into the life and returns what the registry has to be
// told. It does not matter in which order frames come, how often, or who cut
// them: per key the newest version stands, and applied only moves over what
// is there without a hole.
func (l *life) merge(f *frame) (news []decoded, absent []*record, result outcome) {
	repair := f.whole && l.suspect && f.to >= l.applied // its owner may go on writing
	union := repair && !f.byOwner && f.to == l.applied
	switch {
	case f.to <= l.applied && !repair:
		return nil, nil, nothing
	case f.from > l.applied && !f.whole:
		return nil, nil, gap
	}
	empty := len(l.records) == 0
	if empty {
		l.records = make(map[string]*record, len(f.records))
	}
	l.order = slices.Grow(l.order, len(f.records))
	news = make([]decoded, 0, len(f.records))
	sorted := true
	top := uint64(0)
	if len(l.order) > 0 {
		top = l.order[len(l.order)-1].version
	}
	for _, d := range f.records {
		if old := l.records[d.key]; old != nil && old.version >= d.version {
			// The same version with another content can only be corruption:
			// the owner knows what is right. Of two others both must decide
			// alike, or they would swap for ever.
			if !repair || old.version > d.version || old.hash == d.hash || !f.byOwner && old.hash > d.hash {
				continue
			}
		}
		if d.gone && d.version <= l.floor {
			continue // forgotten here already
		}
		sorted = sorted && d.version > top
		top = max(top, d.version)
		l.put(d.record)
		if l.state == registry.Living {
			// Of an ended life only a head says that the owner is back, and
			// when: what was moving by then counts as before.
			l.ownerClock = max(l.ownerClock, d.clock)
		}
		news = append(news, d)
	}
	l.suspect = l.suspect && !f.whole
	if f.whole && !union { // absent keys are gone, but not what was written after the transfer was cut
		if !empty {
			keep := make(map[string]bool, len(f.records))
			for _, d := range f.records {
				keep[d.key] = true
			}
			for k, r := range l.records {
				if !keep[k] && r.version <= f.to {
					absent = append(absent, r)
					l.remove(r)
				}
			}
		}
		l.floor = max(l.floor, f.floor)
	}
	if !sorted {
		byVersion := func(a, b *record) int {
			if a.version < b.version {
				return -1
			} else if a.version > b.version {
				return 1
			}
			return 0
		}
		slices.SortStableFunc(l.order, byVersion)
		slices.SortStableFunc(l.tombstones, byVersion)
	}
	l.applied = max(l.applied, f.to)
	l.compact()
	return news, absent, merged
}
