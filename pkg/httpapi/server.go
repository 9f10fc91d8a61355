package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"path"
	"runtime/debug"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/starling-registry/starling/pkg/api"
	"github.com/starling-registry/starling/pkg/registry"
)

// A Registry is what handlers need of *registry.Registry.
type Registry interface {
	Serve(registry.ServiceKey) (*registry.Snapshot, int64)
	Snapshot(registry.ServiceKey) *registry.Snapshot
	Stats() registry.Stats

	Exists(registry.ServiceKey) bool
	Kind(registry.ServiceKey) registry.ServiceKind
	Services(namespace, group string) []string
	Namespaces() map[string]int // services of each
	Groups(namespace string) []string
}

// A Beats keeps the instances of HTTP clients; *health.Beats is one.
type Beats interface {
	Register(registry.ServiceKey, *registry.Instance) error
	Deregister(registry.ServiceKey, registry.InstanceKey) (found bool)
	Beat(key registry.ServiceKey, ip string, port int) (inst *registry.Instance, known bool)
}

// Options of a server.
type Options struct {
	// What clients write and read.
	Registry Registry
	Beats    Beats
	// Router sends what HTTP clients write to the node that keeps them. Nil:
	// there are no other nodes.
	Router *Router

	// The log of the cluster and its tables.
	Durable    Durable
	Namespaces Namespaces
	Accounts   Accounts
	// Explain tells what an error of these means; false: it is none that a
	// caller is told of.
	Explain func(error) (Refusal, bool)

	// What operators see and do: of this node's clients (nil: it has none), of
	// the cluster, of this node, and over the native API.
	Clients  Clients
	Core     Core
	Operator Operator
	Native   Native

	// Ready reports whether clients are served, and if not why: what the
	// node waits for, in words for an operator. Nil: always.
	Ready func() (ready bool, reason string)
	// Awake is called, with no lock held, before a request is accepted. It
	// returns when the node has handled that this process stood still, if it
	// did: then Ready may say something else. Nil: it never stands still.
	Awake func()

	// ContextPath is where the Nacos API is; "" or a path without a slash at
	// its end.
	ContextPath string
	// MaxRequestBytes bounds the body of a request.
	MaxRequestBytes int
	// Version is the release, shown to whoever opens the server in a browser;
	// "" is not known.
	Version string

	Logger   *zap.Logger
	Metrics  prometheus.Registerer
	Gatherer prometheus.Gatherer // what /metrics shows
}

// DefaultOptions has the context path of Nacos. Registry, Beats, Durable,
// Namespaces, Accounts, Explain, Logger, Metrics and Gatherer are the caller's.
func DefaultOptions() Options { return Options{ContextPath: "/nacos", MaxRequestBytes: 1 << 20} }

// Validate names every field that makes no sense.
func (o *Options) Validate() error {
	var errs []error
	if c := o.ContextPath; c != "" && (c[0] != '/' || c == "/" || path.Clean(c) != c || strings.ContainsAny(c, "{}%?# ")) {
		errs = append(errs, fmt.Errorf("ContextPath: %q is not a plain path like /nacos", c))
	}
	if o.MaxRequestBytes <= 0 {
		errs = append(errs, fmt.Errorf("MaxRequestBytes: %d is not positive", o.MaxRequestBytes))
	}
	return errors.Join(errs...)
}

// A Server answers HTTP requests. It is an http.Handler; [NewHTTPServer] wraps
// it for listening.
type Server struct {
	opts    Options
	log     *zap.Logger // throttled: what it says, a client can make it say again
	metrics *metrics
	mux     *http.ServeMux
	other   http.Handler

	// forwardable are the requests that one node carries out for another, as
	// METHOD PATH.
	forwardable map[string]bool

	crossOrigin *http.CrossOriginProtection
	passwords   *passwords
	backups     chan struct{} // one for each that is under way
}

// A handler writes a success, or returns an error and has written nothing. An
// error that is not of the table in errors.go is ours: it is logged, and the
// client is told no more than that.
type handler func(http.ResponseWriter, *http.Request) error

// New makes a server. Options are to be valid.
func New(opts Options) *Server {
	s := &Server{opts: opts, mux: http.NewServeMux(), forwardable: map[string]bool{}, crossOrigin: http.NewCrossOriginProtection(), passwords: newPasswords(), backups: make(chan struct{}, maxBackups)}
	s.log = opts.Logger.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(c, time.Minute, 10, 0)
	}))
	if opts.Clients == nil {
		s.opts.Clients = noClients{}
	}
	s.metrics = newMetrics(opts.Metrics, s.ready)
	route := func(pattern string, h handler) {
		s.mux.Handle(pattern, s.instrument(strings.TrimSuffix(pattern, "{$}"), noVersion, h))
	}

	s.nacosRoutes(route)
	s.nativeRoutes(route)
	route("GET /metrics", s.metricsHandler())
	route("GET /livez", s.livez)
	route("GET /readyz", s.readyz)
	route("/debug/pprof/", s.profile)
	route("GET /{$}", s.welcome)
	if opts.ContextPath != "" {
		route("GET "+opts.ContextPath, s.welcome)
		route("GET "+opts.ContextPath+"/{$}", s.welcome)
		route("GET "+opts.ContextPath+"/index.html", s.welcome)
	}

	s.other = s.instrument("other", noVersion, func(http.ResponseWriter, *http.Request) error { return errNotFound })
	s.mux.Handle("/", s.other)
	opts.Metrics.MustRegister(s.metrics) // all routes are there
	return s
}

// NewHTTPServer makes the server to listen with: bounded in the size of a head
// (with it, of a URL) and in the time that a slow peer may take for anything.
func NewHTTPServer(h http.Handler, log *zap.Logger) *http.Server {
	// Level warn is valid, the only reason to fail.
	errorLog, _ := zap.NewStdLogAt(log, zap.WarnLevel)
	return &http.Server{
		Handler:           h,
		ErrorLog:          errorLog,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      time.Minute, // profiles extend it for themselves
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// The mux would redirect a path that is not clean, and one that lacks
	// the slash of a subtree: no API client expects that.
	p := r.URL.Path
	switch strings.TrimPrefix(p, s.opts.ContextPath) {
	case "/v1/ns", "/debug/pprof":
		s.other.ServeHTTP(w, r)
		return
	}
	if !isClean(p) {
		s.other.ServeHTTP(w, r)
		return
	}
	s.mux.ServeHTTP(w, r)
}

func isClean(p string) bool {
	return p == "/" || p != "//" && p != "" && p[0] == '/' && path.Clean(p) == strings.TrimSuffix(p, "/")
}

// welcome is for a person who opens the server in a browser.
func (s *Server) welcome(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "text/plain;charset=UTF-8")
	_, _ = fmt.Fprintf(w, "%s, a service registry for Nacos clients: API under %s/v1/ns, metrics at /metrics, readiness at /readyz\n",
		strings.TrimSpace("Starling "+s.opts.Version), s.opts.ContextPath)
	return nil
}

// instrument makes a handler an http.Handler: it writes errors as the version
// has them, survives panics and counts.
func (s *Server) instrument(route string, v version, h handler) http.Handler {
	m := s.metrics.route(route, v)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		rec := &recorder{ResponseWriter: w}
		defer func() {
			p := recover()
			if p == nil || p == http.ErrAbortHandler {
				m.observe(rec.status, time.Since(start))
				if p != nil {
					panic(p)
				}
				return
			}
			s.metrics.panics.Inc()
			// Not the query: it may hold a password.
			s.log.Error("handler panicked", zap.String("route", route), zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
			begun := rec.status != 0
			if !begun {
				internal(r).write(rec, r, v)
			}
			m.observe(http.StatusInternalServerError, time.Since(start))
			if begun {
				panic(http.ErrAbortHandler) // the client must not take it for a whole answer
			}
		}()
		err := h(rec, r)
		if err == nil {
			return
		}
		e, ok := errors.AsType[*apiError](err)
		if !ok {
			s.log.Error("request failed", zap.String("route", route), zap.Error(err))
			e = internal(r)
		}
		e.write(rec, r, v)
	})
}

// internal is the error that tells no more than that it is ours.
func internal(r *http.Request) *apiError {
	if strings.HasPrefix(r.URL.Path, api.Path+"/") {
		return errNativeInternal
	}
	return errInternal
}

// A recorder remembers the status of an answer.
type recorder struct {
	http.ResponseWriter
	status int // 0: nothing is written
}

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
