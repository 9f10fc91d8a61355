package grpcapi

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

type metrics struct {
	requests                 map[string]requestMetrics // by type; "other" for what is unknown
	ends                     map[registry.Cause]prometheus.Counter
	refusals                 map[string]prometheus.Counter // by the name of the limit
	detections, resets, kept prometheus.Counter
	overflow                 prometheus.Counter
	transports               atomic.Int64
}

type requestMetrics struct {
	ok, failed prometheus.Counter
	seconds    prometheus.Observer
}

func newMetrics(reg prometheus.Registerer, s *Server) *metrics {
	f := promauto.With(reg)
	opts := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: "starling", Subsystem: "grpc", Name: name, Help: help}
	}
	requests := f.NewCounterVec(opts("requests_total", "Unary requests of SDKs by type; failed ones were answered with an ErrorResponse."), []string{"type", "result"})
	seconds := f.NewHistogramVec(prometheus.HistogramOpts{Namespace: "starling", Subsystem: "grpc", Name: "request_seconds",
		Help: "Time to answer a unary request.", Buckets: []float64{.00001, .000025, .00005, .0001, .00025, .0005, .001, .005, .025, .1, .5, 1, 5}}, []string{"type"})
	ends := f.NewCounterVec(opts("connections_closed_total", "Registered connections that ended, by cause."), []string{"cause"})
	m := &metrics{
		requests:   map[string]requestMetrics{},
		ends:       map[registry.Cause]prometheus.Counter{},
		refusals:   map[string]prometheus.Counter{},
		detections: f.NewCounter(opts("detections_total", "Silent clients asked whether they live.")),
		kept:       f.NewCounter(opts("kept_total", "Lost connections whose instances stayed a while because their client was expected elsewhere.")),
		overflow:   f.NewCounter(opts("kept_overflow_total", "Lost connections whose instances should have stayed a while, but too many did already.")),
		resets:     f.NewCounter(opts("resets_total", "Clients asked to connect to another node.")),
	}
	// Series exist from the start, and no label is made up by a client.
	for typ := range handlers {
		m.requests[typ] = requestMetrics{requests.WithLabelValues(typ, "ok"), requests.WithLabelValues(typ, "failed"), seconds.WithLabelValues(typ)}
	}
	for _, typ := range []string{nacos.TypeServerCheckRequest, "other"} {
		m.requests[typ] = requestMetrics{requests.WithLabelValues(typ, "ok"), requests.WithLabelValues(typ, "failed"), seconds.WithLabelValues(typ)}
	}
	for _, c := range []registry.Cause{registry.CauseConnectionLost, registry.CauseIdle, registry.CauseNoAck, registry.CauseShutdown} {
		m.ends[c] = ends.WithLabelValues(string(c))
	}
	refusals := f.NewCounterVec(opts("refused_total", "Connections and requests refused because of a limit."), []string{"limit"})
	for _, name := range limitNames {
		m.refusals[name] = refusals.WithLabelValues(name)
	}
	gauge := func(name, help string, v func() float64) {
		f.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "starling", Subsystem: "grpc", Name: name, Help: help}, v)
	}
	gauge("transports", "Open transports, registered or not.", func() float64 { return float64(m.transports.Load()) })
	gauge("transports_limit", "How many there may be: --max-connections.", func() float64 { return float64(s.opts.MaxConnections) })
	gauge("moving", "Clients without a connection whose instances stay a while.", func() float64 { return float64(s.Moving()) })
	gauge("connections", "Registered connections.", func() float64 { return float64(s.Connections()) })
	return m
}

func (m *metrics) request(typ string, known, failed bool, took time.Duration) {
	if !known {
		typ = "other"
	}
	r := m.requests[typ]
	if failed {
		r.failed.Inc()
	} else {
		r.ok.Inc()
	}
	r.seconds.Observe(took.Seconds())
}

func (m *metrics) closed(cause registry.Cause) {
	if c := m.ends[cause]; c != nil {
		c.Inc()
	}
}
