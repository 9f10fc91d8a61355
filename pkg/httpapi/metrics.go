package httpapi

import (
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics of requests. Routes are those of the table, so no client makes up a
// label. There are some 280 routes, so only counters have one of each, and these
// are no series of the library, which would take half a megabyte; times are by
// version and by whether something is written.
type metrics struct {
	routes  []*routeMetrics // complete before the first request
	seconds *prometheus.HistogramVec
	panics  prometheus.Counter

	forwarded, tookOver, unreachable prometheus.Counter
}

type routeMetrics struct {
	name    string
	classes [5]atomic.Uint64 // requests by the first digit of the status, less one
	seconds prometheus.Observer
}

// classes of statuses that there are; nothing answers with 1xx or 3xx.
var classes = [5]string{1: "2xx", 3: "4xx", 4: "5xx"}

var requestsTotal = prometheus.NewDesc("starling_http_requests_total", "HTTP requests by route and class of the status.", []string{"route", "class"}, nil)

// Describe is of prometheus.Collector.
func (m *metrics) Describe(to chan<- *prometheus.Desc) { to <- requestsTotal }

// Collect makes the series of all routes, so that they exist from the start.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	for _, rm := range m.routes {
		for i, class := range classes {
			if class != "" {
				to <- prometheus.MustNewConstMetric(requestsTotal, prometheus.CounterValue, float64(rm.classes[i].Load()), rm.name, class)
			}
		}
	}
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
		seconds: f.NewHistogramVec(prometheus.HistogramOpts{Namespace: "starling", Subsystem: "http", Name: "request_seconds",
			Help: "Time to answer an HTTP request.", Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .1, .5, 1, 5}}, []string{"api", "kind"}),
		panics: f.NewCounter(opts("panics_total", "Requests whose handler panicked.")),
	}
}

// route adds a route.
func (m *metrics) route(name string, v version) *routeMetrics {
	kind := "write"
	if strings.HasPrefix(name, http.MethodGet+" ") {
		kind = "read"
	}
	rm := &routeMetrics{name: name, seconds: m.seconds.WithLabelValues([]string{"other", "v1", "v2", "v3"}[v], kind)}
	m.routes = append(m.routes, rm)
	return rm
}

func (rm *routeMetrics) observe(status int, took time.Duration) {
	if i := status/100 - 1; i >= 0 && i < len(rm.classes) {
		rm.classes[i].Add(1)
	}
	rm.seconds.Observe(took.Seconds())
}

func (s *Server) metricsHandler() handler {
	h := promhttp.HandlerFor(s.opts.Gatherer, promhttp.HandlerOpts{})
	return func(w http.ResponseWriter, r *http.Request) error {
		h.ServeHTTP(w, r)
		return nil
	}
}
