package httpapi

import (
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics of requests. Routes are those of the table, so no client makes up a
// label. There are some 150 routes, so only counters have one of each; times are
// by version and by whether something is written.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	panics   prometheus.Counter

	forwarded, tookOver, unreachable prometheus.Counter
}

type routeMetrics struct {
	classes [5]prometheus.Counter // by the first digit of the status, less one
	seconds prometheus.Observer
}

func newMetrics(reg prometheus.Registerer, ready func() (bool, string)) *metrics {
	f := promauto.With(reg)
	opts := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: "starling", Subsystem: "http", Name: name, Help: help}
	}
	f.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "starling", Name: "ready", Help: "1 if the node takes requests of clients, as /readyz tells, else 0."}, func() float64 {
		if ok, _ := ready(); ok {
			return 1
		}
		return 0
	})
	forwards := f.NewCounterVec(opts("forwarded_requests_total", "Writes of HTTP clients that another node keeps: answered by it, carried out here because it went meanwhile, or refused because it could not be reached."), []string{"result"})
	return &metrics{
		forwarded: forwards.WithLabelValues("answered"), tookOver: forwards.WithLabelValues("here"), unreachable: forwards.WithLabelValues("unreachable"),
		requests: f.NewCounterVec(opts("requests_total", "HTTP requests by route and class of the status."), []string{"route", "class"}),
		seconds: f.NewHistogramVec(prometheus.HistogramOpts{Namespace: "starling", Subsystem: "http", Name: "request_seconds",
			Help: "Time to answer an HTTP request.", Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .1, .5, 1, 5}}, []string{"api", "kind"}),
		panics: f.NewCounter(opts("panics_total", "Requests whose handler panicked.")),
	}
}

// route makes the series of a route, so that they exist from the start.
func (m *metrics) route(name string, v version) *routeMetrics {
	kind := "write"
	if strings.HasPrefix(name, http.MethodGet+" ") {
		kind = "read"
	}
	rm := &routeMetrics{seconds: m.seconds.WithLabelValues([]string{"other", "v1", "v2", "v3"}[v], kind)}
	for i, class := range []string{"1xx", "2xx", "3xx", "4xx", "5xx"} {
		if class != "1xx" {
			rm.classes[i] = m.requests.WithLabelValues(name, class)
		}
	}
	return rm
}

func (rm *routeMetrics) observe(status int, took time.Duration) {
	if i := status/100 - 1; i >= 1 && i < len(rm.classes) {
		rm.classes[i].Inc()
	}
	rm.seconds.Observe(took.Seconds())
}
