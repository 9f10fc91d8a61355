package distro

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/starling-registry/starling/pkg/registry"
)

// Reasons why something of a peer was not taken.
const (
	badMessage     = "malformed"
	badRecord      = "bad_record"
	badUnknown     = "unknown_message"
	badOversized   = "oversized"
	badOwner       = "unknown_owner"
	badEpoch       = "old_epoch"
	badEarly       = "early_epoch" // membership does not know of it yet
	badClock       = "clock"
	badAboveOwn    = "above_own_life"
	badReplayed    = "replayed"
	badGap         = "gap"
	badTooMany     = "too_many_lives"
	badUnreadable  = "unreadable_value" // kept and handed on, but not shown
	badTransmitted = "parts"
)

var reasons = []string{badMessage, badRecord, badUnknown, badOversized, badOwner, badEpoch, badEarly, badClock, badAboveOwn, badReplayed, badGap,
	badTooMany, badUnreadable, badTransmitted}

type metrics struct {
	written, applied, duplicates, relayed              prometheus.Counter
	framesSent, bytesSent, sendsFailed                 prometheus.Counter
	gossiped, gossipSkipped                            prometheus.Counter
	pulls, pullsFailed, repairs, mismatches            prometheus.Counter
	orphaned, returned, dropped, forgotten, tombstones prometheus.Counter
	dialled, unanswered                                prometheus.Counter
	snapshots, snapshotsFailed, hidesCut, catchUps     prometheus.Counter
	refused                                            *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer, d *Replicator) *metrics {
	f := promauto.With(reg)
	count := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Namespace: "starling", Subsystem: "distro", Name: name, Help: help})
	}
	m := &metrics{
		written:         count("written_records_total", "Records of this node's own life that were written."),
		applied:         count("applied_records_total", "Records of other lives that were applied."),
		duplicates:      count("duplicate_frames_total", "Frames that brought nothing new."),
		relayed:         count("relayed_frames_total", "Frames that came by gossip, were applied, and were gossiped once more."),
		framesSent:      count("sent_frames_total", "Frames sent to peers."),
		bytesSent:       count("sent_record_bytes_total", "Bytes of records in frames sent to peers."),
		sendsFailed:     count("failed_sends_total", "Messages that could not be sent to a peer."),
		gossiped:        count("gossiped_total", "Messages given to gossip."),
		gossipSkipped:   count("gossip_skipped_total", "Changes not gossiped: too large, or no room in the budget. The streams carry them."),
		pulls:           count("pulls_total", "Differences pulled from a peer."),
		pullsFailed:     count("failed_pulls_total", "Pulls that failed; tried again with the next head."),
		repairs:         count("repairs_total", "Whole lives pulled because a digest differed."),
		mismatches:      count("digest_mismatches_total", "Heads with the version known here and another digest: a bug, or corruption."),
		orphaned:        count("lives_orphaned_total", "Lives whose node went."),
		returned:        count("lives_returned_total", "Lives whose node was back."),
		dropped:         count("lives_dropped_total", "Lives dropped: their lease ended, or peers had dropped them."),
		forgotten:       count("lives_forgotten_total", "Lives forgotten: the memory of their drop ended, or ready peers did not know them."),
		tombstones:      count("forgotten_tombstones_total", "Tombstones forgotten because of their age or their bytes."),
		dialled:         count("probes_total", "Addresses of orphans dialled after the lease of a silent node."),
		unanswered:      count("probes_unanswered_total", "Addresses of orphans that did not answer."),
		snapshots:       count("snapshots_total", "Snapshots written."),
		snapshotsFailed: count("failed_snapshots_total", "Snapshots that could not be written or read."),
		hidesCut:        count("cut_hides_total", "Hides left out because one key had too many."),
		catchUps:        count("catch_ups_total", "Times that this node caught up with its peers: a start, a stall, a silent member back."),
		refused: f.NewCounterVec(prometheus.CounterOpts{Namespace: "starling", Subsystem: "distro", Name: "refused_total",
			Help: "What peers sent and this node did not take, by reason."}, []string{"reason"}),
	}
	for _, r := range reasons {
		m.refused.WithLabelValues(r)
	}
	gauge := func(name, help string, read func() float64) {
		f.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "starling", Subsystem: "distro", Name: name, Help: help}, func() float64 {
			d.mu.Lock()
			defer d.mu.Unlock()
			return read()
		})
	}
	truth := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	sum := func(of func(*life) float64) func() float64 {
		return func() (n float64) {
			for _, l := range d.lives {
				n += of(l)
			}
			return n
		}
	}
	states := func(s registry.LifeState) func() float64 {
		return sum(func(l *life) float64 { return truth(l.state == s) })
	}
	gauge("living_lives", "Lives that are living, the own one included.", states(registry.Living))
	gauge("orphaned_lives", "Lives served as last seen.", states(registry.Orphaned))
	gauge("dropped_lives", "Lives dropped and still remembered.", states(registry.Dropped))
	gauge("records", "Records kept, tombstones included.", sum(func(l *life) float64 { return float64(len(l.records)) }))
	gauge("record_bytes", "Bytes of these records.", sum(func(l *life) float64 { return float64(l.bytes) }))
	gauge("tombstone_bytes", "Bytes of tombstones among them.", sum(func(l *life) float64 { return float64(l.tombstoneBytes) }))
	gauge("lag_versions", "How far this node is behind the owners' last heads, all lives together.", sum(func(l *life) float64 { return float64(l.lag()) }))
	gauge("lag_seconds", "How long this node has been behind the owner of a life, the longest.", func() (longest float64) {
		now := d.now()
		for _, l := range d.lives {
			longest = max(longest, float64(l.lagMillis(now))/1000)
		}
		return longest
	})
	gauge("queued_bytes", "Bytes of own records not sent yet to an alive peer, the most of any.", func() (most float64) {
		for id, p := range d.peers {
			if m, ok := d.members[id]; ok && m.State == Alive {
				most = max(most, float64(d.written-p.sentBytes))
			}
		}
		return most
	})
	gauge("clock_offset_seconds", "How far this machine's clock is from what other alive nodes stamp with, the furthest. All go on from the clock that was ever ahead, also when that was put right.", func() (furthest float64) {
		for id, p := range d.peers {
			if m, ok := d.members[id]; ok && m.State == Alive {
				furthest = max(furthest, math.Abs(p.clockOff.Seconds()))
			}
		}
		return furthest
	})
	gauge("draining", "1: this node moves its clients to others, or has moved them.", func() float64 { return truth(d.draining) })
	gauge("ready", "1: this node has caught up and takes clients.", func() float64 { return truth(d.ready) })
	gauge("self_preservation", "1: too many members are silent, no lease runs.", func() float64 { return truth(d.preserve.active()) })
	return m
}
