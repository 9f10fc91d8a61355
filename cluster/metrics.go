package cluster

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	members   [4]prometheus.Gauge // by State
	states    [4]prometheus.Counter
	streams   prometheus.Gauge
	sent      [3]prometheus.Counter // by Via
	sentBytes [3]prometheus.Counter
	received  [3]prometheus.Counter
	recvBytes [3]prometheus.Counter
	dropped   map[string]prometheus.Counter
	refused   map[string]prometheus.Counter
	kept      map[string]prometheus.Counter
	conflicts map[string]prometheus.Counter

	joins, joinFailures, lookupFailures prometheus.Counter
	stalled, held, rotations            prometheus.Counter
}

// Why a message was not taken or not passed on.
const (
	dropFull     = "queue_full" // of gossip that was received
	dropBudget   = "budget"     // no room for more gossip
	dropBig      = "too_big"
	dropStranger = "stranger" // from nobody who is a member
	dropBroken   = "malformed"
	dropStreams  = "too_many_streams" // of gossip, opened by others
	dropFailed   = "failed"           // a stream or a connection broke
)

// Why the Hello of a peer was refused.
const (
	helloBroken   = "malformed"
	helloCluster  = "other_cluster"
	helloWire     = "wire_version"
	helloOwnID    = "own_id"
	helloIdentity = "identity"
	helloOldLife  = "old_life"
	helloTwin     = "twin"
	helloStranger = "stranger"
)

// Why a node was kept out of membership.
const (
	keptCluster = "other_cluster"
	keptWire    = "wire_version"
	keptBroken  = "malformed"
)

func newMetrics(reg prometheus.Registerer, c *Cluster) *metrics {
	f := promauto.With(reg)
	opts := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: "starling", Subsystem: "cluster", Name: name, Help: help}
	}
	gauge := func(name, help string) prometheus.GaugeOpts {
		return prometheus.GaugeOpts{Namespace: "starling", Subsystem: "cluster", Name: name, Help: help}
	}
	labelled := func(name, help, label string, values ...string) map[string]prometheus.Counter {
		v := f.NewCounterVec(opts(name, help), []string{label})
		m := map[string]prometheus.Counter{}
		for _, value := range values {
			m[value] = v.WithLabelValues(value)
		}
		return m
	}
	m := &metrics{
		streams: f.NewGauge(gauge("streams", "Streams to and from other nodes that are up.")),
		dropped: labelled("dropped_messages_total", "Messages that were not taken or not passed on.", "reason",
			dropFull, dropBudget, dropBig, dropStranger, dropBroken, dropStreams, dropFailed),
		refused: labelled("refused_hellos_total", "Peers whose Hello was refused, here or by them.", "reason",
			helloBroken, helloCluster, helloWire, helloOwnID, helloIdentity, helloOldLife, helloTwin, helloStranger),
		kept: labelled("kept_out_total", "News of nodes that were kept out of the cluster.", "reason",
			keptCluster, keptWire, keptBroken),
		conflicts: labelled("conflicts_total", "Signs that two nodes have the same id, address or name.", "kind",
			"id", "address", "name"),
		joins:          f.NewCounter(opts("joins_total", "Exchanges of state with addresses to join.")),
		joinFailures:   f.NewCounter(opts("join_failures_total", "Of them, those that failed.")),
		lookupFailures: f.NewCounter(opts("lookup_failures_total", "Names that could not be resolved.")),
		stalled:        f.NewCounter(opts("stalled_streams_total", "Streams closed because the peer took nothing.")),
		held:           f.NewCounter(opts("held_deaths_total", "Deaths that were not believed at once because this node is ailing.")),
		rotations:      f.NewCounter(opts("key_rotations_total", "Times other keys were set.")),
	}
	members := f.NewGaugeVec(gauge("members", "Members of the cluster, this one included."), []string{"state"})
	states := f.NewCounterVec(opts("member_states_total", "Changes of a member to a state."), []string{"state"})
	for s := Alive; s <= Left; s++ {
		m.members[s] = members.WithLabelValues(s.String())
		m.states[s] = states.WithLabelValues(s.String())
	}
	sent := f.NewCounterVec(opts("sent_messages_total", "Messages sent, by carrier; gossip counts once."), []string{"carrier"})
	sentBytes := f.NewCounterVec(opts("sent_bytes_total", "Bytes of messages sent."), []string{"carrier"})
	received := f.NewCounterVec(opts("received_messages_total", "Messages received."), []string{"carrier"})
	recvBytes := f.NewCounterVec(opts("received_bytes_total", "Bytes of messages received."), []string{"carrier"})
	for via, name := range []string{"stream", "reliable", "gossip"} {
		m.sent[via], m.sentBytes[via] = sent.WithLabelValues(name), sentBytes.WithLabelValues(name)
		m.received[via], m.recvBytes[via] = received.WithLabelValues(name), recvBytes.WithLabelValues(name)
	}
	f.NewGaugeFunc(prometheus.GaugeOpts(gauge("certificate_expiry_timestamp_seconds",
		"When this node's certificate for streams ends: that of --peer-cert, or one made from the secret, which is good until the year 9999. 0: it has none.")),
		func() float64 {
			if i := c.identity.Load(); !i.plain() {
				return float64(i.leaf.Leaf.NotAfter.Unix())
			}
			return 0
		})
	f.NewGaugeFunc(prometheus.GaugeOpts(gauge("health_score", "How badly this node meets the deadlines of failure detection; 0 is well.")),
		func() float64 { return float64(c.HealthScore()) })
	return m
}

func (m *metrics) send(via Via, n int) {
	m.sent[via].Inc()
	m.sentBytes[via].Add(float64(n))
}

func (m *metrics) receive(via Via, n int) {
	m.received[via].Inc()
	m.recvBytes[via].Add(float64(n))
}
