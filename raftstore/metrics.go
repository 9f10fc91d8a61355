package raftstore

import (
	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Why a connection of another node was not taken, or one to it not used.
const (
	helloOK         = "ok"
	helloBroken     = "malformed"
	helloWire       = "wire_version"
	helloCluster    = "other_cluster"
	helloUnknown    = "cluster_unknown" // own or the other's
	helloGeneration = "generation"
	helloNode       = "other_node" // the address belongs to somebody else
	helloFull       = "too_many"
)

var helloReasons = []string{helloOK, helloBroken, helloWire, helloCluster, helloUnknown, helloGeneration, helloNode, helloFull}

type metrics struct {
	refused     map[string]prometheus.Counter
	implausible prometheus.Counter

	applied       prometheus.Histogram // the whole way of a write that ended well
	committed     prometheus.Histogram // on the leader, from the log to the tables
	forwarded     prometheus.Counter
	noLeader      prometheus.Counter
	unknown       prometheus.Counter
	again         prometheus.Counter
	leaderChanges prometheus.Counter
	changes       map[string]prometheus.Counter

	snapshots        prometheus.Counter
	snapshotFailures prometheus.Counter
	snapshotSeconds  prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer, s *Store) *metrics {
	f := promauto.With(reg)
	opts := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: "starling", Subsystem: "raft", Name: name, Help: help}
	}
	gauge := func(name, help string, value func() float64) {
		f.NewGaugeFunc(prometheus.GaugeOpts(opts(name, help)), func() float64 {
			if !s.log.live.Load() { // the log is still being replayed
				return 0
			}
			return value()
		})
	}
	labelled := func(name, help, label string, values ...string) map[string]prometheus.Counter {
		v := f.NewCounterVec(opts(name, help), []string{label})
		m := map[string]prometheus.Counter{}
		for _, value := range values {
			m[value] = v.WithLabelValues(value)
		}
		return m
	}
	histogram := func(name, help string) prometheus.Histogram {
		return f.NewHistogram(prometheus.HistogramOpts{Namespace: "starling", Subsystem: "raft", Name: name, Help: help,
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15)})
	}
	m := &metrics{
		refused: labelled("refused_hellos_total", "Connections between nodes that were refused, here or there.", "reason",
			helloReasons[1:]...),
		implausible:   f.NewCounter(opts("refused_requests_total", "Requests at the Raft port that no node sends.")),
		applied:       histogram("write_seconds", "Time from the call of a write on this node to its end, if it was carried out."),
		committed:     histogram("commit_seconds", "Time on the leader from the log to the tables."),
		forwarded:     f.NewCounter(opts("forwarded_writes_total", "Tries of writes that were sent to the leader.")),
		noLeader:      f.NewCounter(opts("no_leader_total", "Writes that failed because there was no leader.")),
		unknown:       f.NewCounter(opts("unknown_writes_total", "Writes that failed without it being known whether they were carried out.")),
		again:         f.NewCounter(opts("repeated_tries_total", "Further tries of writes.")),
		leaderChanges: f.NewCounter(opts("leader_changes_total", "Times this node heard of another leader.")),
		changes: labelled("configuration_changes_total", "Changes of the configuration that this node made as leader.", "change",
			string(addNonvoter), string(promote), string(demote), string(remove)),
		snapshots:        f.NewCounter(opts("snapshots_total", "Snapshots that were written or received.")),
		snapshotFailures: f.NewCounter(opts("snapshot_failures_total", "Snapshots that could not be written.")),
		snapshotSeconds:  histogram("snapshot_seconds", "Time to write or receive a snapshot."),
	}
	gauge("leads", "1 if this node leads the group.", func() float64 {
		if s.Leads() {
			return 1
		}
		return 0
	})
	gauge("has_leader", "1 if this node leads or hears from a leader, so that what is written to the log can come to an end.", func() float64 {
		if _, leader := s.raft.LeaderWithID(); leader == "" || s.ended.Load() != nil {
			return 0
		}
		return 1
	})
	gauge("state", "0 follower, 1 candidate, 2 leader, 3 stopped or failed.", func() float64 { return float64(s.raft.State()) })
	gauge("term", "Term of the group, as this node knows it.", func() float64 { return float64(s.raft.CurrentTerm()) })
	gauge("commit_index", "Newest entry that a quorum has.", func() float64 { return float64(s.raft.CommitIndex()) })
	gauge("last_index", "Newest entry of this node.", func() float64 { return float64(s.raft.LastIndex()) })
	gauge("applied_index", "Newest entry that changed the tables.", func() float64 {
		index, _ := s.fsm.digest()
		return float64(index)
	})
	gauge("voters", "Voters of the group.", func() float64 {
		n := 0
		for _, server := range s.configuration().Servers {
			if server.Suffrage == raft.Voter {
				n++
			}
		}
		return float64(n)
	})
	gauge("alive_voters", "Voters of the group that are alive, as this node knows them.", func() float64 { return float64(s.status().AliveVoters) })
	gauge("log_bytes", "Bytes of the entries since the last snapshot.", func() float64 { return float64(s.log.sinceSnapshot()) })
	gauge("db_bytes", "Size of the file of the log.", func() float64 { return float64(s.log.fileBytes()) })
	gauge("snapshot_bytes", "Size of the last snapshot.", func() float64 { return float64(s.snaps.last().size) })
	gauge("snapshot_timestamp_seconds", "When the last snapshot was written; 0: none was.", func() float64 {
		at := s.snaps.last().at
		if at.IsZero() {
			return 0
		}
		return float64(at.UnixMilli()) / 1000
	})
	return m
}
