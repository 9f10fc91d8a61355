package distro

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/starling-registry/starling/pkg/registry"
)

// dirtyKeys are own keys that have changed and were not written yet, and
// results of probes and checks to be written. Sets: their size is bounded by
// what own clients publish and by the persistent instances, and a burst on one
// key is one record.
type dirtyKeys struct {
	mu     sync.Mutex
	keys   map[registry.RecordKey]struct{}
	probes []registry.Probe             // at most one per dial, see ProbeRate
	checks map[checkKey]*registry.Check // nil: it is let go
	busy   bool                         // keys were taken and are being written
	wake   chan struct{}
}

type checkKey struct {
	service registry.ServiceKey
	registry.InstanceKey
}

// Wrote marks a key of an own client as changed; it is registry.Options.Wrote.
// It does not block.
func (d *Replicator) Wrote(k registry.RecordKey) {
	d.dirty.mu.Lock()
	d.dirty.keys[k] = struct{}{}
	d.dirty.mu.Unlock()
	d.pokeWriter()
}

func (d *Replicator) pokeWriter() {
	select {
	case d.dirty.wake <- struct{}{}:
	default:
	}
}

func (d *Replicator) writeProbe(p registry.Probe) {
	d.dirty.mu.Lock()
	d.dirty.probes = append(d.dirty.probes, p)
	d.dirty.mu.Unlock()
	d.pokeWriter()
}

// WriteCheck has other nodes know of a check that this node has made; the own
// registry is the caller's business. It does not block.
func (d *Replicator) WriteCheck(c registry.Check) {
	d.writeCheck(checkKey{c.Service, c.InstanceKey}, &c)
}

// ForgetCheck lets go of the own record of an instance that is not there any
// more. Who has heard of the check goes on to know it for as long as the
// registry remembers it. It does not block.
func (d *Replicator) ForgetCheck(key registry.ServiceKey, ik registry.InstanceKey) {
	d.writeCheck(checkKey{key, ik}, nil)
}

func (d *Replicator) writeCheck(k checkKey, c *registry.Check) {
	d.dirty.mu.Lock()
	if was := d.dirty.checks[k]; c == nil || was == nil || was.Made < c.Made {
		d.dirty.checks[k] = c
	}
	d.dirty.mu.Unlock()
	d.pokeWriter()
}

// A dirty is what the writer takes at a time.
type dirty struct {
	keys   []registry.RecordKey
	probes []registry.Probe
	checks map[checkKey]*registry.Check
}

func (t *dirty) empty() bool { return len(t.keys) == 0 && len(t.probes) == 0 && len(t.checks) == 0 }

// take returns at most n keys and n checks, and the probes.
func (q *dirtyKeys) take(n int) (t dirty) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for k := range q.keys {
		if len(t.keys) == n {
			break
		}
		t.keys = append(t.keys, k)
		delete(q.keys, k)
	}
	for k, c := range q.checks {
		if len(t.checks) == n {
			break
		}
		if t.checks == nil {
			t.checks = map[checkKey]*registry.Check{}
		}
		t.checks[k] = c
		delete(q.checks, k)
	}
	t.probes, q.probes = q.probes, nil
	q.busy = !t.empty()
	return t
}

// clean: all that was marked is in the life.
func (q *dirtyKeys) clean() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.keys) == 0 && len(q.probes) == 0 && len(q.checks) == 0 && !q.busy
}

// writeLoop is the writer of the own life; Stalled writes too.
func (d *Replicator) writeLoop(ctx context.Context) {
	for {
		select {
		case <-d.dirty.wake:
		case <-ctx.Done():
			return
		}
		d.writePending()
	}
}

// writeBatch bounds what one lock of the life takes.
const writeBatch = 512

func (d *Replicator) writePending() {
	for d.writeSome() {
		d.gossipFrame()
	}
}

// writeSome writes a part of what was marked, and reports whether there was
// any. When it has returned false, all that was marked before is in the life.
func (d *Replicator) writeSome() bool {
	d.writing.Lock()
	defer d.writing.Unlock()
	t := d.dirty.take(writeBatch)
	if t.empty() {
		return false
	}
	d.write(t)
	return true
}

// A draft is a record without its version.
type draft struct {
	kind  uint32
	key   []byte
	value []byte
	clock registry.Stamp
	gone  bool
	shows int
	redo  int
	hides bool
}

func (d *Replicator) write(t dirty) {
	encoded := make([][]byte, len(t.keys))
	before := make([]*record, len(t.keys))
	for n, k := range t.keys {
		encoded[n] = encodeKey(k)
	}
	checked := make(map[string]*registry.Check, len(t.checks)) // by encoded key
	for k, c := range t.checks {
		checked[string(encodeCheckKey(k))] = c
	}
	d.mu.Lock()
	version := d.own.applied
	for n := range t.keys {
		before[n] = d.own.records[mapKey(kindPublication, encoded[n])]
	}
	for key, c := range checked {
		was := d.own.records[mapKey(kindCheck, []byte(key))]
		if c == nil && (was == nil || was.gone) || c != nil && was != nil && was.clock >= c.Made {
			delete(checked, key)
		}
	}
	d.mu.Unlock()

	drafts := make([]draft, 0, len(t.keys)+len(t.probes)+len(checked))
	for n, k := range t.keys {
		if dr, changed := d.draft(k, encoded[n], before[n]); changed {
			drafts = append(drafts, dr)
		}
	}
	for key, c := range checked {
		dr := draft{kind: kindCheck, key: []byte(key)}
		if c != nil {
			dr.value, dr.clock = encodeCheck(c), c.Made
		} else {
			dr.gone, dr.clock = true, d.opts.Clock.Now()
			dr.value = encodeCheck(&registry.Check{Made: dr.clock}) // readers do not look at it
		}
		drafts = append(drafts, dr)
	}
	for _, p := range t.probes {
		key, value := encodeProbe(p)
		// As a tombstone it goes by itself after the grace, when it hides
		// nothing any more.
		drafts = append(drafts, draft{kind: kindProbe, key: key, value: value, clock: p.Made, gone: true})
	}
	records := make([]*record, 0, len(drafts))
	for _, dr := range drafts {
		version++
		raw := encodeRecord(dr.kind, string(dr.key), version, dr.clock, dr.gone, dr.value)
		f, err := readFields(raw)
		if err != nil {
			panic("BUG: own record cannot be read: " + err.Error())
		}
		records = append(records, &record{raw: raw, key: mapKey(dr.kind, dr.key), kind: dr.kind, gone: dr.gone, hides: dr.hides,
			redo: uint16(min(max(0, dr.redo), 1<<16-1)), shows: int32(dr.shows), version: version, clock: dr.clock, hash: f.hash})
	}
	d.mu.Lock()
	for _, r := range records {
		d.own.put(r)
		d.written += uint64(len(r.raw))
	}
	d.own.applied = version
	d.own.compact()
	if len(records) > 0 {
		d.changes++
		for _, p := range d.peers {
			p.poke()
		}
	}
	d.mu.Unlock()
	d.dirty.mu.Lock()
	d.dirty.busy = false
	d.dirty.mu.Unlock()
	d.metrics.written.Add(float64(len(records)))
}

// draft asks the registry for the key as it is now, and lays the hides of its
// last record to it, as long as they are remembered.
func (d *Replicator) draft(k registry.RecordKey, key []byte, before *record) (draft, bool) {
	is := d.opts.Registry.Take(k)
	if is.Clock == 0 {
		is.Clock = d.opts.Clock.Now()
	}
	var old fields
	if before != nil {
		old, _ = readFields(before.raw)
		if before.hides {
			if p := readPublication(old, nil); p != nil {
				var cut int
				is.Hides, cut = mergeHides(is.Hides, p.Hides, registry.StampAt(d.now()-d.opts.Grace.Milliseconds()), d.opts.MaxHides)
				d.metrics.hidesCut.Add(float64(cut))
			}
		}
	}
	if is.Gone {
		is.Instances = nil
		if before == nil && len(is.Hides) == 0 {
			return draft{}, false // it came and went, and nobody has seen it
		}
	}
	value := encodePublication(is)
	if before != nil && before.gone == is.Gone && bytes.Equal(old.value, value) {
		return draft{}, false // marked twice
	}
	return draft{kindPublication, key, value, is.Clock, is.Gone, len(is.Instances), is.Redo, len(is.Hides) > 0}, true
}

// mergeHides keeps of every instance the highest hide of each strength, and
// none that was made before the given time. Beyond most the oldest go.
func mergeHides(a, b []registry.Hide, after registry.Stamp, most int) (merged []registry.Hide, cut int) {
	type claim struct {
		registry.InstanceKey
		strong bool
	}
	best := make(map[claim]registry.Hide, len(a)+len(b))
	for _, h := range slices.Concat(a, b) {
		k := claim{h.InstanceKey, h.Strong}
		old, ok := best[k]
		if h.Made >= after && (!ok || h.UpTo > old.UpTo || h.UpTo == old.UpTo && h.Made > old.Made) {
			best[k] = h
		}
	}
	merged = make([]registry.Hide, 0, len(best))
	for _, h := range best {
		merged = append(merged, h)
	}
	// Newest first; the rest of the order makes the bytes the same each time.
	slices.SortFunc(merged, func(a, b registry.Hide) int {
		return cmp.Or(cmp.Compare(b.Made, a.Made), cmp.Compare(b.UpTo, a.UpTo), cmp.Compare(a.IP, b.IP), cmp.Compare(a.Port, b.Port),
			cmp.Compare(a.Cluster, b.Cluster))
	})
	if most > 0 && len(merged) > most {
		cut = len(merged) - most
		merged = merged[:most]
	}
	return merged, cut
}
