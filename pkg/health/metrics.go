package health

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
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
