package registry

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"
)

// A Cause says why an instance came, changed or went.
type Cause string

const (
	CauseRegistered     Cause = "registered"
	CauseChanged        Cause = "changed"  // its client registered it with other values
	CauseReplaced       Cause = "replaced" // its client published something else instead
	CauseDeregistered   Cause = "deregistered"
	CauseConnectionLost Cause = "connection lost"
	CauseIdle           Cause = "connection idle" // and no answer to the detection request
	CauseNoAck          Cause = "push not acknowledged"
	CauseShutdown       Cause = "node stopped"
	CauseBeatMissed     Cause = "beat missed"  // unhealthy
	CauseBeatResumed    Cause = "beat resumed" // healthy again
	CauseBeatTimeout    Cause = "beat timeout" // removed
	CauseOperator       Cause = "operator"
	CauseOverrideEnded  Cause = "operator's override ended"
	CauseEvicted        Cause = "evicted by an operator"
	CauseLifted         Cause = "eviction lifted"
	CauseEvictionEnded  Cause = "eviction ended"             // its instance was gone for long
	CauseRefused        Cause = "registration while evicted" // by an own client, which was told so
	CauseMoving         Cause = "moving"                     // its client is expected elsewhere; nothing visible
	CauseAdopted        Cause = "orphan adopted"             // somebody living stands behind it again; nothing visible
	CauseOrphaned       Cause = "node gone"                  // it showed what was removed elsewhere meanwhile
	CauseOrphanExpired  Cause = "orphan expired"             // its node did not come back, nor its client
	CauseProbeFailed    Cause = "probe failed"               // an orphan whose address did not answer
	CauseReturned       Cause = "returned"                   // its node came back
	CauseHideEnded      Cause = "no longer hidden"           // what hid it is too old
	CauseCheckFailed    Cause = "check failed"               // of a persistent instance: unhealthy
	CauseCheckPassed    Cause = "check passed"               // healthy
)

// An Event is one change of one instance of a service. Nil Before: the
// instance came; nil After: it went. Of those that only say who stands behind
// it (CauseMoving, CauseAdopted) both are the same: there was nothing to see.
// Those of an eviction may have neither: the instance is not shown.
type Event struct {
	At            Stamp // on this node
	Origin        Life  // who wrote it; zero: the log of the cluster
	Clock         Stamp // and when; with Key this identifies the change in the cluster
	Cause         Cause
	Client        string // whose claim came, changed or went; or the operator who changed it, if known
	Key           InstanceKey
	Before, After *Instance
}

// HistoryLimits bound what the registry remembers of the past.
type HistoryLimits struct {
	PerService int   // events
	Bytes      int64 // of the records of all services together
	KeepGone   int64 // milliseconds that the history outlives its service
}

// DefaultHistoryLimits are those of design §4: 256 events, 64 MiB, 24 hours.
func DefaultHistoryLimits() HistoryLimits {
	return HistoryLimits{PerService: 256, Bytes: 64 << 20, KeepGone: 24 * 3600 * 1000}
}

// A history is the past of one service; guarded by the shard's lock. Its
// events are written down as bytes: a registry remembers many times more
// events than it has instances, and as structs with pointers they were what
// the garbage collector spent nearly all of its time on.
type history struct {
	own     *life  // of the node: who wrote most of it
	log     []byte // records, the oldest at head; each begins with its length
	head    int
	n       int
	dropped bool  // there were older events
	gone    Stamp // when its service was cleaned up; 0 while it is there
}

// bytes is what the records take.
func (h *history) bytes() int64 { return int64(len(h.log) - h.head) }

const lengthBytes = 4

// add writes an event down.
func (h *history) add(e *Event) {
	start := len(h.log)
	b := append(h.log, make([]byte, lengthBytes)...)
	b = binary.LittleEndian.AppendUint64(b, uint64(e.At))
	if h.own != nil && e.Origin == h.own.Life && e.Clock == e.At {
		b = append(b, 0) // our own
	} else {
		b = append(b, 1)
		b = appendText(b, e.Origin.Node)
		b = binary.LittleEndian.AppendUint64(b, e.Origin.Epoch)
		b = binary.LittleEndian.AppendUint64(b, uint64(e.Clock))
	}
	b = appendText(b, string(e.Cause))
	b = appendText(b, e.Client)
	b = appendText(b, e.Key.IP)
	b = binary.AppendVarint(b, int64(e.Key.Port))
	b = appendText(b, e.Key.Cluster)
	for _, i := range []*Instance{e.Before, e.After} { // their key is the event's
		if i == nil {
			b = append(b, 0)
			continue
		}
		flags := byte(1)
		if i.Healthy {
			flags |= 2
		}
		if i.Enabled {
			flags |= 4
		}
		if i.Persistent {
			flags |= 8
		}
		b = append(b, flags)
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(i.Weight))
		b = appendText(b, i.ID)
		b = binary.AppendUvarint(b, uint64(len(i.Metadata)))
		for _, kv := range i.Metadata {
			b = appendText(appendText(b, kv.Key), kv.Value)
		}
	}
	binary.LittleEndian.PutUint32(b[start:], uint32(len(b)-start))
	h.log = b
	h.n++
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// drop forgets the oldest n events.
func (h *history) drop(n int) {
	h.dropped = true
	for range n {
		h.head += int(binary.LittleEndian.Uint32(h.log[h.head:]))
	}
	h.n -= n
	if h.head <= len(h.log)/4 {
		return // moved now and then, not for each event
	}
	rest := h.log[h.head:]
	if cap(h.log) > 2*len(rest) {
		h.log = slices.Clone(rest)
	} else {
		h.log = append(h.log[:0], rest...)
	}
	h.head = 0
}

// events reads all events.
func (h *history) events() []Event {
	r := recordReader(h.log[h.head:]) // one copy, of which all texts are parts
	events := make([]Event, h.n)
	for i := range events {
		e := &events[i]
		r = r[lengthBytes:]
		e.At = Stamp(r.fixed())
		if r.flags() == 0 {
			e.Origin, e.Clock = h.own.Life, e.At
		} else {
			e.Origin = Life{r.text(), r.fixed()}
			e.Clock = Stamp(r.fixed())
		}
		e.Cause, e.Client = Cause(r.text()), r.text()
		e.Key = InstanceKey{IP: r.text(), Port: int(r.varint()), Cluster: r.text()}
		e.Before, e.After = r.instance(e.Key), r.instance(e.Key)
	}
	return events
}

// A recordReader is what is still to be read of what add has written.
type recordReader string

func (r *recordReader) fixed() uint64 {
	v := binary.LittleEndian.Uint64([]byte((*r)[:8]))
	*r = (*r)[8:]
	return v
}

func (r *recordReader) uvarint() uint64 {
	var v uint64
	for i := 0; ; i++ {
		c := (*r)[i]
		v |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			*r = (*r)[i+1:]
			return v
		}
	}
}

// varint undoes binary.AppendVarint: the sign is in the lowest bit.
func (r *recordReader) varint() int64 {
	u := r.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

func (r *recordReader) text() string {
	n := r.uvarint()
	s := string((*r)[:n])
	*r = (*r)[n:]
	return s
}

func (r *recordReader) flags() byte {
	b := (*r)[0]
	*r = (*r)[1:]
	return b
}

func (r *recordReader) instance(key InstanceKey) *Instance {
	flags := r.flags()
	if flags == 0 {
		return nil
	}
	i := &Instance{InstanceKey: key, Healthy: flags&2 != 0, Enabled: flags&4 != 0, Persistent: flags&8 != 0}
	i.Weight = math.Float64frombits(r.fixed())
	i.ID = r.text()
	if n := r.uvarint(); n > 0 {
		i.Metadata = make(Metadata, n)
		for k := range i.Metadata {
			i.Metadata[k] = KV{Key: r.text(), Value: r.text()}
		}
	}
	return i
}

// record appends events, and drops the oldest of the service beyond its limit.
// The budget of all services together is Sweep's business; only when it is
// far exceeded before that comes, whoever records keeps no more than the
// newest event.
func (r *Registry) record(h *history, events []Event) {
	before := h.bytes()
	for i := range events {
		if i == 1 { // the others are about as long
			h.log = slices.Grow(h.log, (len(events)-1)*int(h.bytes()-before))
		}
		h.add(&events[i])
	}
	keep := r.opts.History.PerService
	if r.historyBytes.Add(h.bytes()-before) > 2*r.opts.History.Bytes {
		keep = 1
	}
	r.keep(h, keep)
}

// keep drops all but the newest n events.
func (r *Registry) keep(h *history, n int) {
	if h.n <= n {
		return
	}
	before := h.bytes()
	h.drop(h.n - n)
	r.historyBytes.Add(h.bytes() - before)
}

// trimHistory brings all histories together under their budget: first go
// those of services that are gone, the longest gone first, then the older half
// of the longest ones, until it fits.
func (r *Registry) trimHistory() {
	limit := r.opts.History.Bytes
	if r.historyBytes.Load() <= limit {
		return
	}
	type goner struct {
		key ServiceKey
		at  Stamp
	}
	var gone []goner
	r.eachHistory(func(key ServiceKey, h *history) {
		if h.gone != 0 {
			gone = append(gone, goner{key, h.gone})
		}
	})
	slices.SortFunc(gone, func(a, b goner) int { return cmp.Compare(a.at, b.at) })
	for _, g := range gone {
		if r.historyBytes.Load() <= limit {
			return
		}
		sh := r.shard(g.key)
		sh.mu.Lock()
		if h := sh.history[g.key]; h != nil && h.gone == g.at { // it is not back
			r.historyBytes.Add(-h.bytes())
			delete(sh.history, g.key)
		}
		sh.mu.Unlock()
	}
	for n := r.opts.History.PerService / 2; n > 0 && r.historyBytes.Load() > limit; n /= 2 {
		r.eachHistory(func(_ ServiceKey, h *history) { r.keep(h, n) })
	}
}

// eachHistory calls f for every history, under its shard's lock.
func (r *Registry) eachHistory(f func(ServiceKey, *history)) {
	for i := range r.shards {
		sh := &r.shards[i]
		sh.mu.Lock()
		for key, h := range sh.history {
			f(key, h)
		}
		sh.mu.Unlock()
	}
}

// History returns the events of a service that are still remembered, oldest
// first. It outlives the service for a while.
func (r *Registry) History(key ServiceKey) []Event {
	sh := r.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if h := sh.history[key]; h != nil {
		return h.events()
	}
	return nil
}

// Forgotten reports whether a service had events older than those of History.
func (r *Registry) Forgotten(key ServiceKey) bool {
	sh := r.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	h := sh.history[key]
	return h != nil && h.dropped
}
