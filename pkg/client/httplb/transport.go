package httplb

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/starling-registry/starling/pkg/client"
)

// A Source is a *client.Client.
type Source interface {
	// Pick chooses by weight.
	Pick(ctx context.Context, service string, opts ...client.QueryOption) (client.Instance, error)
	// Select is all that could be picked.
	Select(ctx context.Context, service string, opts ...client.QueryOption) ([]client.Instance, error)
}

// Options of a transport. The zero value works.
type Options struct {
	// Group is the services' whose URL names none; "": client.DefaultGroup.
	Group string
	// Query are for every pick, such as client.Clusters; not client.Group.
	Query []client.QueryOption
	// Retries is on how many other instances a request is tried when one cannot
	// be reached; 0: 2, negative: none.
	Retries int
	// EjectFor is how long an instance that could not be reached gets no requests;
	// 0: 5 s, negative: not at all.
	EjectFor time.Duration
	// KeepHost sends the host of the URL in the header Host, as it is there;
	// otherwise that is the instance's address. A http.Request.Host that differs
	// from its URL is kept in any case.
	KeepHost bool
	// ServerName is the name that the certificate of a service's instance must be
	// of; nil: what the transport below makes of it, usually the instance's
	// address. It must be a function of its arguments, for each name costs a pool
	// of connections, and needs Base to be a *http.Transport or nil.
	ServerName func(client.ServiceID, client.Instance) string
	// Base makes the requests; nil: like http.DefaultTransport, but it dials for
	// 3 s at most and keeps 32 idle connections to each instance.
	Base http.RoundTripper
}

// A Transport is a http.RoundTripper that sends requests for services to their
// instances. It may be used by several goroutines, and starts none. Connections
// are the base's, by instance.
//
// The response's Request has the URL of the instance that has answered.
type Transport struct {
	source Source
	opts   Options
	base   http.RoundTripper

	mu      sync.Mutex
	ejected map[string]time.Time       // until when, by address
	named   map[string]*http.Transport // by the name in certificates
}

// New makes a transport. The source is not closed by it.
func New(source Source, opts Options) (*Transport, error) {
	if opts.Group == "" {
		opts.Group = client.DefaultGroup
	}
	if opts.Retries == 0 {
		opts.Retries = 2
	}
	if opts.EjectFor == 0 {
		opts.EjectFor = 5 * time.Second
	}
	t := &Transport{source: source, opts: opts, base: opts.Base, ejected: make(map[string]time.Time), named: make(map[string]*http.Transport)}
	if t.base == nil {
		t.base = defaultBase()
	}
	if opts.ServerName != nil {
		switch base, ok := t.base.(*http.Transport); {
		case !ok:
			return nil, fmt.Errorf("%w: ServerName needs a *http.Transport as Base, not a %T", client.ErrInvalid, t.base)
		case base.DialTLSContext != nil:
			return nil, fmt.Errorf("%w: ServerName and a Base that makes TLS connections itself", client.ErrInvalid)
		}
	}
	return t, nil
}

func defaultBase() *http.Transport {
	base, ok := http.DefaultTransport.(*http.Transport)
	if !ok { // the program has replaced it
		base = &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: 90 * time.Second}
	}
	base = base.Clone()
	base.DialContext = (&net.Dialer{Timeout: 3 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	base.MaxIdleConns = 0 // no limit: it is by instance
	base.MaxIdleConnsPerHost = 32
	return base
}

// CloseIdleConnections is what http.Client.CloseIdleConnections calls.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range t.named {
		n.CloseIdleConnections()
	}
}

// RoundTrip sends the request to an instance of the service that its URL names.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	id, ours, err := t.service(req.URL)
	if err != nil {
		closeBody(req)
		return nil, err
	}
	if !ours {
		return t.base.RoundTrip(req)
	}
	var (
		ctx    = req.Context()
		tried  []string // addresses that could not be reached
		failed error    // why, of the last of them
	)
	for {
		instance, err := t.pick(ctx, id, tried)
		if err != nil {
			closeBody(req)
			if failed != nil { // there is no other one: that says more
				return nil, failed
			}
			return nil, fmt.Errorf("service %s: %w", id, err)
		}
		addr := net.JoinHostPort(instance.IP, strconv.Itoa(instance.Port))
		out := t.addressed(req, instance, addr)
		resp, err := t.below(id, instance, out.URL.Scheme).RoundTrip(out) // closes the body
		if err == nil {
			return resp, nil
		}
		// Nor is it the instance's fault that the caller's time is up.
		if ctx.Err() != nil || !neverSent(err) {
			return nil, err
		}
		t.eject(addr)
		tried, failed = append(tried, addr), err
		if len(tried) > t.opts.Retries {
			return nil, err
		}
		if req, err = again(req); err != nil {
			return nil, fmt.Errorf("%w; %w", failed, err)
		}
	}
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

// neverSent says whether an error is that of a connection that could not be
// made. A broken one may have carried the request.
func neverSent(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

// again is the request with a body that has not been read.
func again(req *http.Request) (*http.Request, error) {
	if req.Body == nil || req.Body == http.NoBody {
		return req, nil
	}
	if req.GetBody == nil {
		return nil, errors.New("not tried on another instance: the body can be read once only (set GetBody)")
	}
	body, err := req.GetBody()
	if err != nil {
		return nil, fmt.Errorf("not tried on another instance: %w", err)
	}
	copied := *req
	copied.Body = body
	return &copied, nil
}

const suffix = ".starling"

// service is what a URL names; false: it is an ordinary one.
func (t *Transport) service(u *url.URL) (client.ServiceID, bool, error) {
	host := u.Hostname()
	name, dotted := host, false
	if n := len(host) - len(suffix); n >= 0 && strings.EqualFold(host[n:], suffix) {
		name, dotted = host[:n], true
	}
	switch u.Scheme {
	case "lb":
	case "http", "https":
		if !dotted {
			return client.ServiceID{}, false, nil
		}
	default:
		return client.ServiceID{}, false, nil
	}
	id := client.ServiceID{Group: t.opts.Group, Name: name}
	if i := strings.LastIndexByte(name, '.'); dotted && i >= 0 {
		id = client.ServiceID{Group: name[i+1:], Name: name[:i]}
	}
	switch {
	case id.Name == "" || id.Group == "":
		return id, true, fmt.Errorf("%w: %s://%s names no service", client.ErrInvalid, u.Scheme, u.Host)
	case u.Port() != "":
		return id, true, fmt.Errorf("%w: %s://%s has a port; the port is each instance's own", client.ErrInvalid, u.Scheme, u.Host)
	}
	return id, true, nil
}

// addressed is the request to an instance. It shares headers and body with the
// one that it is made of, which a RoundTripper must not change.
func (t *Transport) addressed(req *http.Request, i client.Instance, addr string) *http.Request {
	out := req.WithContext(req.Context()) // a shallow copy
	u := *req.URL
	out.URL = &u
	u.Host = addr
	if u.Scheme != "https" {
		u.Scheme = "http"
		if strings.EqualFold(i.Metadata["secure"], "true") { // as Spring has it (L-12)
			u.Scheme = "https"
		}
	}
	if req.Host == "" || req.Host == req.URL.Host {
		out.Host = addr
		if t.opts.KeepHost {
			out.Host = req.URL.Host
		}
	}
	return out
}

// below is the transport that makes the request. One of its own for each name in
// certificates: a connection is reused by address, and one that was checked for
// a service must not serve another that has registered the same address.
func (t *Transport) below(id client.ServiceID, i client.Instance, scheme string) http.RoundTripper {
	if t.opts.ServerName == nil || scheme != "https" {
		return t.base
	}
	name := t.opts.ServerName(id, i)
	if name == "" {
		return t.base
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.named[name]
	if n == nil {
		n = t.base.(*http.Transport).Clone()
		if n.TLSClientConfig == nil {
			n.TLSClientConfig = new(tls.Config)
		}
		n.TLSClientConfig.ServerName = name
		t.named[name] = n
	}
	return n
}

// pick is an instance that is not among tried and, if possible, not ejected.
func (t *Transport) pick(ctx context.Context, id client.ServiceID, tried []string) (client.Instance, error) {
	query := append(slices.Clone(t.opts.Query), client.Group(id.Group))
	i, err := t.source.Pick(ctx, id.Name, query...)
	if err != nil {
		return i, err
	}
	ejected := t.ejectedNow()
	if len(tried) == 0 && len(ejected) == 0 {
		return i, nil
	}
	addrOf := func(i client.Instance) string { return net.JoinHostPort(i.IP, strconv.Itoa(i.Port)) }
	if addr := addrOf(i); !slices.Contains(tried, addr) && !ejected[addr] {
		return i, nil
	}
	// Rare, so that it may copy the whole list.
	all, err := t.source.Select(ctx, id.Name, query...)
	if err != nil {
		return i, err
	}
	all = slices.DeleteFunc(all, func(i client.Instance) bool { return slices.Contains(tried, addrOf(i)) })
	good := slices.DeleteFunc(slices.Clone(all), func(i client.Instance) bool { return ejected[addrOf(i)] })
	if len(good) == 0 {
		good = all // an ejected one is better than none
	}
	return byWeight(good)
}

// byWeight is one of them at random, as client.Pick does.
func byWeight(list []client.Instance) (client.Instance, error) {
	const maxWeight = 10_000 // what an infinite one counts as
	upTo := make([]float64, len(list))
	sum := 0.0
	for i, one := range list {
		if one.Weight > 0 { // not NaN
			sum += min(one.Weight, maxWeight)
		}
		upTo[i] = sum
	}
	if sum == 0 {
		return client.Instance{}, client.ErrNoInstances
	}
	point := rand.Float64() * sum
	for i := range list {
		if upTo[i] > point {
			return list[i], nil
		}
	}
	return list[len(list)-1], nil // the product was rounded up to the sum
}

// maxEjected bounds the table; beyond it instances are not ejected.
const maxEjected = 1024

func (t *Transport) eject(addr string) {
	if t.opts.EjectFor < 0 {
		return
	}
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	for a, until := range t.ejected {
		if !until.After(now) {
			delete(t.ejected, a)
		}
	}
	if len(t.ejected) < maxEjected {
		t.ejected[addr] = now.Add(t.opts.EjectFor)
	}
}

// ejectedNow is nil if there is none, as nearly always.
func (t *Transport) ejectedNow() map[string]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.ejected) == 0 {
		return nil
	}
	now := time.Now()
	ejected := make(map[string]bool, len(t.ejected))
	for a, until := range t.ejected {
		if until.After(now) {
			ejected[a] = true
		} else {
			delete(t.ejected, a)
		}
	}
	return ejected
}
