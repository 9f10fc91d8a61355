package health

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/starling-registry/starling/pkg/registry"
)

type metrics struct {
	renewed, resumed, unknown prometheus.Counter
	unhealthy, removed        prometheus.Counter
	stalls                    prometheus.Counter
	adopted, restamped        prometheus.Counter
	handedOver                prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, b *Beats) *metrics {
	f := promauto.With(reg)
	opts := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: "starling", Subsystem: "health", Name: name, Help: help}
	}
	beats := f.NewCounterVec(opts("beats_total", "Beats of HTTP clients; resumed ones made their instance healthy again, unknown ones have none."), []string{"result"})
	expirations := f.NewCounterVec(opts("expirations_total", "Instances whose beats stayed away, by what became of them."), []string{"kind"})
	handovers := f.NewCounterVec(opts("handovers_total", "HTTP clients whose node changed: taken over from another one, stamped anew because a newer copy was there, given up to another one."), []string{"kind"})
	f.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "starling", Subsystem: "health", Name: "beat_clients", Help: "HTTP clients of this node."},
		func() float64 { return float64(b.Clients()) })
	return &metrics{
		renewed:    beats.WithLabelValues("renewed"),
		resumed:    beats.WithLabelValues("resumed"),
		unknown:    beats.WithLabelValues("unknown"),
		unhealthy:  expirations.WithLabelValues("unhealthy"),
		removed:    expirations.WithLabelValues("removed"),
		adopted:    handovers.WithLabelValues("adopted"),
		restamped:  handovers.WithLabelValues("restamped"),
		handedOver: handovers.WithLabelValues("given_up"),
		stalls:     f.NewCounter(opts("stalls_total", "Times this node was stalled and all deadlines started anew.")),
	}
}

type probeMetrics struct {
	results                         map[string]*[len(outcomes)]prometheus.Counter // by type of checker
	seconds                         prometheus.Histogram
	healthy, unhealthy              prometheus.Counter
	confirmed, contradicted, nobody prometheus.Counter
	void, asked                     prometheus.Counter
}

func newProbeMetrics(reg prometheus.Registerer, p *Prober) *probeMetrics {
	f := promauto.With(reg)
	opts := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: "starling", Subsystem: "health", Name: name, Help: help}
	}
	m := &probeMetrics{results: map[string]*[len(outcomes)]prometheus.Counter{}}
	probes := f.NewCounterVec(opts("probes_total", "Probes of persistent instances by type of health check; own_error: this node could not probe."), []string{"checker", "result"})
	for _, checker := range []string{registry.CheckTCP, registry.CheckHTTP, registry.CheckMySQL} {
		of := &[len(outcomes)]prometheus.Counter{}
		for o, name := range outcomes {
			of[o] = probes.WithLabelValues(checker, name)
		}
		m.results[checker] = of
	}
	m.seconds = f.NewHistogram(prometheus.HistogramOpts{Namespace: "starling", Subsystem: "health", Name: "probe_seconds", Help: "How long probes took.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5}})
	flips := f.NewCounterVec(opts("probe_flips_total", "Changes of the health of persistent instances by checks of this node."), []string{"to"})
	m.healthy, m.unhealthy = flips.WithLabelValues("healthy"), flips.WithLabelValues("unhealthy")
	confirmations := f.NewCounterVec(opts("probe_confirmations_total", "Instances that were about to become unhealthy, by what a second node said of them."), []string{"result"})
	m.confirmed, m.contradicted, m.nobody = confirmations.WithLabelValues("confirmed"), confirmations.WithLabelValues("contradicted"), confirmations.WithLabelValues("nobody")
	m.void = f.NewCounter(opts("probes_void_total", "Probes that did not count: the instance changed, this node was stalled or is not to check it any more."))
	m.asked = f.NewCounter(opts("probes_asked_total", "Probes that other nodes have asked for."))
	gauge := func(name, help string, is func() float64) {
		f.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "starling", Subsystem: "health", Name: name, Help: help}, is)
	}
	gauge("probe_instances", "Persistent instances with a health check.", func() float64 { n, _ := p.census(); return float64(n) })
	gauge("probe_own_instances", "Those that this node checks.", func() float64 { _, n := p.census(); return float64(n) })
	gauge("probe_waiting", "Probes that are due and wait for the rate limit or a free slot.", func() float64 { n, _, _ := p.load(); return float64(n) })
	gauge("probe_running", "Probes under way.", func() float64 { _, n, _ := p.load(); return float64(n) })
	gauge("probe_late_seconds", "How long the first of the waiting ones has been due.", func() float64 { _, _, d := p.load(); return d.Seconds() })
	return m
}

func (m *probeMetrics) probed(checker string, o outcome, took time.Duration) {
	m.results[checker][o].Inc()
	m.seconds.Observe(took.Seconds())
}
