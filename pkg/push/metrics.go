package push

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	sent, acked, refused, unchanged, superseded, dropped, fanouts prometheus.Counter
	patternsRefused, matchesExceeded                              prometheus.Counter
	markToSend, sendToAck                                         prometheus.Histogram
	late                                                          prometheus.Gauge

	subscriptions atomic.Int64
}

func newMetrics(reg prometheus.Registerer, e *Engine) *metrics {
	f := promauto.With(reg)
	count := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Namespace: "starling", Subsystem: "push", Name: name, Help: help})
	}
	latency := func(name, help string) prometheus.Histogram {
		return f.NewHistogram(prometheus.HistogramOpts{Namespace: "starling", Subsystem: "push", Name: name, Help: help,
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60}})
	}
	m := &metrics{
		sent:            count("sent_total", "Pushes handed to the transport."),
		acked:           count("acked_total", "Pushes that clients acknowledged."),
		refused:         count("refused_total", "Pushes that clients answered with an error."),
		unchanged:       count("unchanged_total", "Pushes not sent because the client has this content."),
		superseded:      count("superseded_total", "Changes merged into a push that was still waiting for its connection."),
		dropped:         count("dropped_connections_total", "Connections closed because pushes were not acknowledged."),
		fanouts:         count("fanouts_total", "Times a changed service was offered to its subscribers."),
		patternsRefused: count("fuzzy_watch_refused_total", "Fuzzy watches refused because there are too many different patterns on this node."),
		matchesExceeded: count("fuzzy_watch_truncated_total", "Fuzzy watches whose pattern matches more services than a client is told of."),
		markToSend:      latency("mark_to_send_seconds", "From the change to the push being handed to the transport."),
		sendToAck:       latency("send_to_ack_seconds", "From the push to its acknowledgement."),
		late: f.NewGauge(prometheus.GaugeOpts{Namespace: "starling", Subsystem: "push", Name: "late_subscribers",
			Help: "Connections that had left a push unanswered for more than a twelfth of --push-ack-timeout (5 s) when they were last looked at."}),
	}
	f.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "starling", Subsystem: "push", Name: "subscriptions", Help: "Subscriptions on this node."},
		func() float64 { return float64(m.subscriptions.Load()) })
	f.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "starling", Subsystem: "push", Name: "fuzzy_watch_patterns", Help: "Different patterns watched on this node."},
		func() float64 {
			e.watches.mu.RLock()
			defer e.watches.mu.RUnlock()
			return float64(len(e.watches.patterns))
		})
	return m
}
