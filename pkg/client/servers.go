package client

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	defaultPort   = 8848
	defaultOffset = 1000
	defaultPath   = "/nacos"

	resolveEvery   = 30 * time.Second       // names, and the endpoint (N-4, N-5)
	resolveSpacing = 500 * time.Millisecond // at most so often while no server can be reached
	endpointPause  = 5 * time.Second        // the same of the endpoint
	lookupTimeout  = 5 * time.Second
	goneGrace      = 60 * time.Second // N-4
	steadyAfter    = 5 * time.Second  // a connection that lived less counts as a failure
	maxEndpoint    = 1 << 20          // bytes of its answer
)

// A server is one address that a client can connect to.
type server struct {
	host string // an address, without brackets
	main int    // its HTTP port
	grpc int
	name string // as it was configured: a name, or the address; TLS and HTTP ask for it
	base string // URL of the HTTP API, by name, with the context path and no slash behind it
}

// addr is where HTTP is.
func (s server) addr() string { return net.JoinHostPort(s.host, strconv.Itoa(s.main)) }

func (s server) String() string {
	if s.name == s.host {
		return s.addr()
	}
	return s.name + " (" + s.addr() + ")"
}

// same reports whether both are one process.
func (s server) same(o server) bool { return s.host == o.host && s.main == o.main }

// An entry is one of Config.Addrs, or of the endpoint's answer.
type entry struct {
	name   string // or an address
	port   int    // with srv that of nothing
	scheme string // of the HTTP API
	path   string
	srv    bool // the name has SRV records that name servers
}

// servers is the list of them: what was configured, resolved again and again.
// An answer without any address counts as none: what is known already is kept.
type servers struct {
	// constant
	offset   int
	endpoint string // its URL; "": the entries are constant
	https    bool   // where no scheme is written
	resolver *net.Resolver
	web      *web
	log      *slog.Logger
	kick     chan struct{} // room for one: resolve soon
	ended    chan struct{} // closed when nothing is resolved any more

	mu      sync.Mutex
	entries []entry
	found   map[entry][]server // the last answer for each
	failed  map[string]error   // by what was asked: why the last answer is not new
	list    []server           // those of all entries, of a name the preferred family first
	later   map[netip.AddrPort]bool
	gone    map[netip.AddrPort]time.Time // until when connections may stay to what only DNS has lost
	change  chan struct{}

	round    []server // what is left of this round
	last     server   // that next has returned
	failures int      // since the last connection that held
	up       time.Time
}

// newServers checks the configuration and asks nobody; its errors are
// [ErrInvalid]. Both of resolver and dial may be nil.
func newServers(cfg *Config, dial func(ctx context.Context, addr string) (net.Conn, error), resolver *net.Resolver, log *slog.Logger) (*servers, error) {
	s := &servers{
		offset: cmp.Or(cfg.GRPCPortOffset, defaultOffset), https: cfg.TLS != nil, resolver: cmp.Or(resolver, net.DefaultResolver),
		web: newWeb(cfg, dial), log: log, kick: make(chan struct{}, 1), ended: make(chan struct{}),
		found: make(map[entry][]server), failed: make(map[string]error), gone: make(map[netip.AddrPort]time.Time), change: make(chan struct{}),
	}
	switch {
	case len(cfg.Addrs) > 0 && cfg.Endpoint != "":
		return nil, fmt.Errorf("%w: both Addrs and Endpoint are set", ErrInvalid)
	case cfg.Endpoint != "":
		var err error
		if s.endpoint, err = endpointURL(cfg); err != nil {
			return nil, fmt.Errorf("%w: Endpoint %q: %w", ErrInvalid, cfg.Endpoint, err)
		}
		return s, nil
	}
	for _, addr := range cfg.Addrs {
		entries, err := s.parse(addr)
		if err != nil {
			return nil, fmt.Errorf("%w: server address %q: %w", ErrInvalid, addr, err)
		}
		s.entries = append(s.entries, entries...)
	}
	if len(s.entries) == 0 {
		return nil, fmt.Errorf("%w: neither Addrs nor Endpoint is set", ErrInvalid)
	}
	s.rebuildLocked(time.Now()) // nobody else knows it yet
	return s, nil
}

// endpointURL is what to GET (N-5).
func endpointURL(cfg *Config) (string, error) {
	raw := cfg.Endpoint
	if !strings.Contains(raw, "://") {
		host, port, err := splitPort(raw, 8080)
		if err != nil {
			return "", err
		}
		raw = "http://" + net.JoinHostPort(host, strconv.Itoa(port))
	}
	u, err := url.Parse(raw)
	if err != nil {
		return "", err
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", errors.New("it must be a host, or a URL of http or https")
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/nacos/serverlist"
	}
	if q := u.Query(); cfg.Namespace != "" && !q.Has("namespace") {
		q.Set("namespace", cfg.Namespace)
		u.RawQuery = q.Encode()
	}
	return u.String(), nil
}

// parse reads one or more servers, between commas, semicolons or blanks (N-1).
func (s *servers) parse(addrs string) ([]entry, error) {
	var all []entry
	for _, addr := range strings.FieldsFunc(addrs, func(r rune) bool { return strings.ContainsRune(",; \t\r\n", r) }) {
		e := entry{scheme: "http", path: defaultPath}
		if s.https {
			e.scheme = "https"
		}
		rest := addr
		if scheme, after, ok := strings.Cut(addr, "://"); ok {
			rest = after
			switch strings.ToLower(scheme) {
			case "http", "https":
				e.scheme = strings.ToLower(scheme)
			case "dns+srv":
				e.srv, rest = true, strings.TrimLeft(after, "/")
			default:
				return nil, fmt.Errorf("%s: is not known", scheme)
			}
		}
		rest, path, _ := strings.Cut(rest, "/")
		if path = strings.Trim(path, "/"); path != "" {
			e.path = "/" + path
		}
		if strings.ContainsAny(addr, "?#@") {
			return nil, errors.New("it has more than a host, a port and a path")
		}
		var err error
		if e.name, e.port, err = splitPort(rest, defaultPort); err != nil {
			return nil, err
		}
		if grpc := e.port + s.offset; !e.srv && (grpc < 1 || grpc > 65535) {
			return nil, fmt.Errorf("its gRPC port would be %d", grpc)
		}
		all = append(all, e)
	}
	return all, nil
}

// splitPort reads host, host:port, and addresses of IPv6 with brackets or,
// without a port, without.
func splitPort(s string, missing int) (host string, port int, err error) {
	bare := s
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		bare = s[1 : len(s)-1]
	}
	if a, err := netip.ParseAddr(bare); err == nil {
		return a.Unmap().String(), missing, nil
	}
	host = s
	port = missing
	if strings.Contains(s, ":") {
		var digits string
		if host, digits, err = net.SplitHostPort(s); err != nil {
			return "", 0, err
		}
		n, err := strconv.ParseUint(digits, 10, 16)
		if err != nil || n == 0 {
			return "", 0, fmt.Errorf("%q is not a port", digits)
		}
		port = int(n)
	}
	if a, err := netip.ParseAddr(host); err == nil {
		host = a.Unmap().String()
	}
	if host == "" {
		return "", 0, errors.New("it has no host")
	}
	return host, port, nil
}

// server is one address of an entry.
func (s *servers) server(e entry, a netip.Addr) server {
	return server{
		host: a.String(), main: e.port, grpc: e.port + s.offset, name: e.name,
		base: e.scheme + "://" + strings.ReplaceAll(net.JoinHostPort(e.name, strconv.Itoa(e.port)), "%", "%25") + e.path, // a zone has a %
	}
}

// start resolves names and asks the endpoint, at once and from then on, until
// the context ends.
func (s *servers) start(ctx context.Context, wg *sync.WaitGroup) {
	if s.endpoint == "" && !slices.ContainsFunc(s.entries, entry.moves) {
		return // nothing will ever change
	}
	wg.Go(func() {
		defer close(s.ended)
		s.resolve(ctx)
	})
}

// moves reports whether its addresses have to be asked for.
func (e entry) moves() bool {
	_, err := netip.ParseAddr(e.name)
	return e.srv || err != nil
}

// resolve is the goroutine that asks.
func (s *servers) resolve(ctx context.Context) {
	var asked time.Time // when the endpoint was, last
	misses := 0         // of it, in a row
	for {
		began := time.Now()
		if s.endpoint != "" && (asked.IsZero() || began.Sub(asked) >= endpointPeriod(misses, s.failing())) {
			asked = began
			if s.askEndpoint(ctx) {
				misses = 0
			} else {
				misses++
			}
		}
		s.lookUp(ctx)

		wait := resolveEvery
		if s.endpoint != "" {
			wait = min(wait, endpointPeriod(misses, false)-time.Since(asked))
		}
		if next, ok := s.expire(time.Now()); ok {
			wait = min(wait, next)
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
			continue
		case <-s.kick:
			t.Stop()
		}
		if pause := resolveSpacing - time.Since(began); pause > 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
		}
	}
}

// endpointPeriod is between two questions to the endpoint: 100 ms after the
// first that failed, then twice as much each time, up to the usual 30 s (N-5);
// less than that too while none of its servers can be reached.
func endpointPeriod(misses int, failing bool) time.Duration {
	switch {
	case misses > 0:
		return min(100*time.Millisecond<<min(misses-1, 9), resolveEvery)
	case failing:
		return endpointPause
	}
	return resolveEvery
}

func (s *servers) failing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failures > 0
}

// askEndpoint takes the endpoint's list, if it has one.
func (s *servers) askEndpoint(ctx context.Context) bool {
	entries, err := s.fetch(ctx)
	if ctx.Err() != nil {
		return false
	}
	s.told(s.endpoint, err)
	if err != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries = entries
	// What the endpoint does not name any more goes at once, names included (N-6).
	for e := range s.found {
		if !slices.Contains(entries, e) {
			delete(s.found, e)
		}
	}
	for whom := range s.failed {
		if !slices.ContainsFunc(entries, func(e entry) bool { return e.name == whom }) {
			delete(s.failed, whom)
		}
	}
	s.rebuildLocked(time.Now())
	return true
}

func (s *servers) fetch(ctx context.Context) ([]entry, error) {
	ctx, cancel := context.WithTimeout(ctx, s.web.timeout)
	defer cancel()
	status, body, err := s.web.get(ctx, s.endpoint, maxEndpoint)
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("the endpoint answers with status %d", status)
	}
	var entries []entry
	var bad error
	for line := range bytes.Lines(body) {
		some, err := s.parse(string(bytes.TrimSpace(line)))
		if err != nil {
			bad = fmt.Errorf("line %.100q: %w", bytes.TrimSpace(line), err)
			continue
		}
		for _, e := range some {
			if !slices.Contains(entries, e) {
				entries = append(entries, e)
			}
		}
	}
	if len(entries) == 0 {
		return nil, errors.Join(errors.New("the endpoint names no server"), bad)
	}
	return entries, nil
}

// lookUp asks for the addresses of all names at the same time: one that nobody
// answers for does not delay the others.
func (s *servers) lookUp(ctx context.Context) {
	s.mu.Lock()
	entries := slices.Clone(s.entries)
	s.mu.Unlock()
	bounded, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for _, e := range entries {
		if !e.moves() {
			continue
		}
		wg.Go(func() {
			found, err := s.addresses(bounded, e)
			if ctx.Err() != nil {
				return
			}
			s.told(e.name, err)
			if err != nil {
				return // what is known stays
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if slices.Contains(s.entries, e) {
				s.found[e] = found
				s.rebuildLocked(time.Now())
			}
		})
	}
	wg.Wait()
}

// addresses returns at least one.
func (s *servers) addresses(ctx context.Context, e entry) ([]server, error) {
	targets := []entry{e}
	if e.srv {
		_, records, err := s.resolver.LookupSRV(ctx, "", "", e.name)
		if err != nil {
			return nil, err
		}
		targets = targets[:0]
		for _, r := range records {
			if port := int(r.Port); port > 0 && port+s.offset > 0 && port+s.offset <= 65535 {
				targets = append(targets, entry{name: strings.TrimSuffix(r.Target, "."), port: port, scheme: e.scheme, path: e.path})
			}
		}
	}
	var found []server
	var failed error
	for _, t := range targets {
		addrs, err := s.resolver.LookupNetIP(ctx, "ip", t.name)
		if err != nil {
			failed = err
			continue
		}
		for _, a := range addrs {
			if srv := s.server(t, a.Unmap()); !slices.ContainsFunc(found, srv.same) {
				found = append(found, srv)
			}
		}
	}
	if len(found) == 0 {
		return nil, cmp.Or(failed, fmt.Errorf("%s has no address", e.name))
	}
	return found, nil
}

// told logs a failure when it begins and when it is over.
func (s *servers) told(whom string, err error) {
	s.mu.Lock()
	before := s.failed[whom]
	if err == nil {
		delete(s.failed, whom)
	} else {
		s.failed[whom] = err
	}
	s.mu.Unlock()
	switch {
	case err != nil && before == nil:
		s.log.Warn("servers cannot be asked for; those that are known stay", "at", whom, "error", err)
	case err == nil && before != nil:
		s.log.Info("servers can be asked for again", "at", whom)
	}
}

// rebuildLocked makes the list of what is known.
func (s *servers) rebuildLocked(now time.Time) {
	var list []server
	later := make(map[netip.AddrPort]bool)
	for _, e := range s.entries {
		found := s.found[e]
		if a, err := netip.ParseAddr(e.name); err == nil && !e.srv {
			found = []server{s.server(e, a)}
		}
		for _, srv := range found {
			if slices.ContainsFunc(list, srv.same) {
				continue
			}
			list = append(list, srv)
			// The resolver has put the family first that this machine has a route for.
			if srv.key().Addr().Is4() != found[0].key().Addr().Is4() {
				later[srv.key()] = true
			}
		}
	}
	same := func(a, b server) bool { return a == b }
	if slices.EqualFunc(byAddr(list), byAddr(s.list), same) {
		return
	}
	for _, srv := range list {
		delete(s.gone, srv.key())
	}
	for _, srv := range s.list {
		byDNS := slices.ContainsFunc(s.entries, func(e entry) bool { return e.moves() && (e.srv || e.name == srv.name) })
		if byDNS && !slices.ContainsFunc(list, srv.same) {
			s.gone[srv.key()] = now.Add(goneGrace)
		}
	}
	s.list, s.later, s.round = list, later, nil
	s.signalLocked()
}

func byAddr(list []server) []server {
	return slices.SortedFunc(slices.Values(list), func(a, b server) int {
		return cmp.Or(strings.Compare(a.host, b.host), cmp.Compare(a.main, b.main))
	})
}

func (s server) key() netip.AddrPort {
	a, _ := netip.ParseAddr(s.host) // it was made of one
	return netip.AddrPortFrom(a, uint16(s.main))
}

func (s *servers) signalLocked() {
	close(s.change)
	s.change = make(chan struct{})
}

// expire ends the time of those that DNS has lost; it returns when to do so
// next.
func (s *servers) expire(now time.Time) (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next, any, over := time.Duration(0), false, false
	for key, until := range s.gone {
		left := until.Sub(now)
		switch {
		case left <= 0:
			delete(s.gone, key)
			over = true
		case !any || left < next:
			next, any = left, true
		}
	}
	if over {
		s.signalLocked()
	}
	return next, any
}

// next is the server to try now and what to wait before (0 for the first try
// after a connection that was good for some time). The error says why there is
// none, and is ErrNotConnected; then waiting for changed is worth it.
//
// Each round has all of them once, in another order each time (N-3).
func (s *servers) next() (server, time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.up.IsZero() {
		if time.Since(s.up) >= steadyAfter {
			s.failures = 0
		}
		s.up = time.Time{}
	}
	if s.failures > 0 || len(s.list) == 0 {
		select {
		case s.kick <- struct{}{}:
		default: // is pending
		}
	}
	if len(s.list) == 0 {
		return server{}, time.Second, s.whyNoneLocked()
	}
	wait := backOff(s.failures, len(s.list))
	s.failures++
	if len(s.round) == 0 {
		s.round = s.shuffledLocked()
		if len(s.round) > 1 && s.round[0].same(s.last) {
			s.round[0], s.round[1] = s.round[1], s.round[0]
		}
	}
	s.last, s.round = s.round[0], s.round[1:]
	return s.last, wait, nil
}

func (s *servers) whyNoneLocked() error {
	why := errors.New("the servers are not known yet")
	for whom, err := range s.failed {
		why = fmt.Errorf("%s: %w", whom, err)
	}
	return fmt.Errorf("%w: %w", ErrNotConnected, why)
}

// backOff is what to wait after so many failures: a tenth of a second more for
// each round, five seconds at most, and a fifth more or less (N-14).
func backOff(failures, servers int) time.Duration {
	if failures == 0 {
		return 0
	}
	rounds := (failures - 1) / max(servers, 1)
	d := time.Duration(min(rounds+1, 50)) * 100 * time.Millisecond
	return jitter(d)
}

// jitter is a fifth more or less.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}

func (s *servers) shuffledLocked() []server {
	round := slices.Clone(s.list)
	rand.Shuffle(len(round), func(i, j int) { round[i], round[j] = round[j], round[i] })
	slices.SortStableFunc(round, func(a, b server) int {
		switch la, lb := s.later[a.key()], s.later[b.key()]; {
		case la == lb:
			return 0
		case la:
			return 1
		}
		return -1
	})
	return round
}

// connected says that a server has accepted a connection: delays start anew
// when the next one is asked for 5 s later or more.
func (s *servers) connected() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.up = time.Now()
}

// recommended finds the server that another one has named (N-13): by address or
// name, and with several of one host by the port.
func (s *servers) recommended(host string, port int) (server, bool) {
	if a, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		host = a.Unmap().String()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var found server
	var ok bool
	for _, srv := range s.list {
		if host == "" || srv.host != host && srv.name != host {
			continue
		}
		if srv.main == port {
			return srv, true
		}
		if !ok {
			found, ok = srv, true
		}
	}
	return found, ok
}

// contains reports whether a connection to the server may stay: it is in the
// list (N-6), or only DNS has lost it and that not long ago (N-4).
func (s *servers) contains(srv server) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.list) == 0 || slices.ContainsFunc(s.list, srv.same) {
		return true
	}
	return time.Now().Before(s.gone[srv.key()])
}

// changed is closed when contains or next may answer otherwise than before; ask
// for it before asking them.
func (s *servers) changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.change
}

// forHTTP waits until there are servers, and returns them in the order in which
// to try them; one that is alone three times (N-3).
func (s *servers) forHTTP(ctx context.Context) ([]server, error) {
	for {
		s.mu.Lock()
		list, change, why := s.shuffledLocked(), s.change, s.whyNoneLocked()
		s.mu.Unlock()
		switch len(list) {
		case 0:
		case 1:
			return []server{list[0], list[0], list[0]}, nil
		default:
			return list, nil
		}
		select {
		case <-change:
		case <-s.ended:
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", why, context.Cause(ctx))
		}
	}
}

// A web makes requests over HTTP. They are rare, so that no connection is kept.
type web struct {
	client  *http.Client
	timeout time.Duration // of one request
}

// toServer is the key of the server that a request goes to: URLs have its name,
// which may have other addresses too.
type toServer struct{}

func newWeb(cfg *Config, dial func(ctx context.Context, addr string) (net.Conn, error)) *web {
	if dial == nil {
		dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
	}
	return &web{
		timeout: cmp.Or(cfg.RequestTimeout, 3*time.Second),
		client: &http.Client{
			Transport: &http.Transport{
				DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
					if srv, ok := ctx.Value(toServer{}).(server); ok {
						addr = srv.addr()
					}
					return dial(ctx, addr)
				},
				TLSClientConfig:        cfg.TLS.Clone(),
				DisableKeepAlives:      true,
				MaxResponseHeaderBytes: 64 << 10,
			},
			// A password does not go to where somebody redirects to.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// call asks a server: the query stands in the URL, the form in the body. The
// error is of the transport.
func (w *web) call(ctx context.Context, srv server, method, path string, headers map[string]string, query, form url.Values) (status int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, toServer{}, srv), w.timeout)
	defer cancel()
	target := srv.base + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, strings.NewReader(form.Encode()))
	if err != nil {
		return 0, nil, err
	}
	for k, v := range headers {
		req.Header.Set(k, v)
	}
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	return w.do(req, 1<<20)
}

func (w *web) get(ctx context.Context, target string, limit int64) (status int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return 0, nil, err
	}
	return w.do(req, limit)
}

func (w *web) do(req *http.Request, limit int64) (status int, body []byte, err error) {
	resp, err := w.client.Do(req)
	if err != nil {
		// It has the whole URL, and with that perhaps a token.
		if wrapped, ok := errors.AsType[*url.Error](err); ok {
			err = wrapped.Err
		}
		return 0, nil, fmt.Errorf("%s %s: %w", req.Method, req.URL.Host+req.URL.Path, err)
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(io.LimitReader(resp.Body, limit))
	if err != nil {
		return 0, nil, fmt.Errorf("%s %s: %w", req.Method, req.URL.Host+req.URL.Path, err)
	}
	return resp.StatusCode, body, nil
}
