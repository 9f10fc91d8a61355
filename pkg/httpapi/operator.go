package httpapi

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Counts are what operator/metrics tells beyond the registry's own.
type Counts struct {
	Subscribers, Connections, BeatClients int
}

// operatorMetrics serves GET operator/metrics: for SDKs a question whether the
// server is up (http-api §5.12). A node that is not ready does not get here.
func (s *Server) operatorMetrics(c *call) error {
	if only := c.get("onlyStatus"); only == "" || strings.EqualFold(only, "true") {
		return c.bare([]byte(`{"status":"UP"}`))
	}
	var n Counts
	if s.opts.Counts != nil {
		n = s.opts.Counts()
	}
	stats := s.opts.Registry.Stats()
	persistent := int(stats.PersistentInstances) // in several services: several clients
	clients := n.Connections + n.BeatClients + persistent
	b, err := json.Marshal(struct {
		Status               string  `json:"status"`
		Services             int64   `json:"serviceCount"`
		Instances            int64   `json:"instanceCount"`
		Subscribers          int     `json:"subscribeCount"`
		ResponsibleInstances int64   `json:"responsibleInstanceCount"`
		Clients              int     `json:"clientCount"`
		Connections          int     `json:"connectionBasedClientCount"`
		BeatClients          int     `json:"ephemeralIpPortClientCount"`
		PersistentClients    int     `json:"persistentIpPortClientCount"`
		ResponsibleClients   int     `json:"responsibleClientCount"`
		CPU                  float64 `json:"cpu"` // negative: not available, as Java puts it
		Load                 float64 `json:"load"`
		Mem                  float64 `json:"mem"`
	}{"UP", stats.Services, stats.Instances, n.Subscribers, stats.Instances, clients, n.Connections, n.BeatClients, persistent, clients, -1, -1, -1})
	if err != nil {
		return err
	}
	return c.bare(b)
}

func (s *Server) livez(w http.ResponseWriter, _ *http.Request) error {
	writeJSON(w, http.StatusOK, []byte(`{"status":"alive"}`))
	return nil
}

func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) error {
	if ready, reason := s.ready(); !ready {
		return &apiError{status: http.StatusServiceUnavailable, shape: native, text: "not_ready: " + reason,
			hint: "the node does not take requests of clients until this is over; they use another one"}
	}
	writeJSON(w, http.StatusOK, []byte(`{"status":"ready"}`))
	return nil
}

// welcome is for a person who opens the server in a browser.
func (s *Server) welcome(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "text/plain;charset=UTF-8")
	_, _ = fmt.Fprintf(w, "%s, a service registry for Nacos clients: API under %s/v1/ns, metrics at /metrics, readiness at /readyz\n",
		strings.TrimSpace("Starling "+s.opts.Version), s.opts.ContextPath)
	return nil
}

func (s *Server) ready() (bool, string) {
	if s.opts.Ready == nil {
		return true, ""
	}
	return s.opts.Ready()
}

func (s *Server) metricsHandler() handler {
	h := promhttp.HandlerFor(s.opts.Gatherer, promhttp.HandlerOpts{})
	return func(w http.ResponseWriter, r *http.Request) error {
		h.ServeHTTP(w, r)
		return nil
	}
}

// profile serves /debug/pprof/ to the machine itself: profiles show memory
// and cost time.
func (s *Server) profile(w http.ResponseWriter, r *http.Request) error {
	if !isLocal(r) {
		return errNotServed
	}
	switch r.URL.Path {
	case "/debug/pprof/cmdline":
		pprof.Cmdline(w, r)
	case "/debug/pprof/profile":
		pprof.Profile(w, r)
	case "/debug/pprof/symbol":
		pprof.Symbol(w, r)
	case "/debug/pprof/trace":
		pprof.Trace(w, r)
	default:
		pprof.Index(w, r)
	}
	return nil
}

// isLocal reports whether a request came over the loopback interface and was
// not passed on by a proxy there.
func isLocal(r *http.Request) bool {
	for _, h := range []string{"Forwarded", "X-Forwarded-For", "X-Real-Ip"} {
		if r.Header.Get(h) != "" {
			return false
		}
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return local != nil && isLoopback(local.String()) && isLoopback(r.RemoteAddr)
}

func isLoopback(hostPort string) bool {
	a, err := netip.ParseAddrPort(hostPort)
	return err == nil && a.Addr().Unmap().IsLoopback()
}
