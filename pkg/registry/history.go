package registry

import (
	"cmp"
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
)

// An Event is one visible change of one instance of a service. Nil Before:
// the instance came; nil After: it went.
type Event struct {
	At            Stamp
	Cause         Cause
	Client        string // whose claim came, changed or went
	Key           InstanceKey
	Before, After *Instance
}

// HistoryLimits bound what the registry remembers of the past.
type HistoryLimits struct {
	PerService int   // events
	Bytes      int64 // of all services together, estimated
	KeepGone   int64 // milliseconds that the history outlives its service
}

// DefaultHistoryLimits are those of design §4: 256 events, 64 MiB, 24 hours.
func DefaultHistoryLimits() HistoryLimits {
	return HistoryLimits{PerService: 256, Bytes: 64 << 20, KeepGone: 24 * 3600 * 1000}
}

// A history is the past of one service; guarded by the shard's lock.
type history struct {
	events []Event // oldest first
	bytes  int64
	gone   Stamp // when its service was cleaned up; 0 while it is there
}

const eventBytes = 160 // an Event, its two slice slots and the allocator's share

func (e *Event) size() int64 {
	n := int64(eventBytes + len(e.Client))
	for _, i := range []*Instance{e.Before, e.After} {
		if i != nil {
			n += 96
			for _, kv := range i.Metadata {
				n += int64(32 + len(kv.Key) + len(kv.Value))
			}
		}
	}
	return n
}

// record appends events, and drops the oldest of the service beyond its limit.
// The budget of all services together is Sweep's business; only when it is
// far exceeded before that comes, whoever records keeps no more than the
// newest event.
func (r *Registry) record(h *history, events []Event) {
	size := int64(0)
	for i := range events {
		size += events[i].size()
	}
	h.events = append(h.events, events...)
	h.bytes += size
	keep := r.opts.History.PerService
	if r.historyBytes.Add(size) > 2*r.opts.History.Bytes {
		keep = 1
	}
	r.keep(h, keep)
}

// keep drops all but the newest n events.
func (r *Registry) keep(h *history, n int) {
	drop := len(h.events) - n
	if drop <= 0 {
		return
	}
	freed := int64(0)
	for i := range drop {
		freed += h.events[i].size()
	}
	h.bytes -= freed
	r.historyBytes.Add(-freed)
	h.events = slices.Delete(h.events, 0, drop)
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
			r.historyBytes.Add(-h.bytes)
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
		return slices.Clone(h.events)
	}
	return nil
}
