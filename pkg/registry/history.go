package registry

import "slices"

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

// record appends an event. What is over the limits goes, oldest first; the
// bytes are a budget of all services, and whoever records over it gives up
// events of its own, so that one busy service cannot empty the others.
func (r *Registry) record(h *history, e Event) {
	h.events = append(h.events, e)
	size := e.size()
	h.bytes += size
	total := r.historyBytes.Add(size)
	limit := r.opts.History
	drop := max(0, len(h.events)-limit.PerService)
	for i := 0; i < drop; i++ {
		total -= h.events[i].size()
	}
	for total > limit.Bytes && drop < len(h.events)-1 {
		total -= h.events[drop].size()
		drop++
	}
	if drop == 0 {
		return
	}
	freed := int64(0)
	for i := range drop {
		freed += h.events[i].size()
	}
	h.bytes -= freed
	r.historyBytes.Add(-freed)
	// Dropping a quarter more at a time would save copies; 256 events are
	// one short copy.
	h.events = slices.Delete(h.events, 0, drop)
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
