package grpcresolver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/serviceconfig"

	"github.com/starling-registry/starling/pkg/client"
)

// DefaultGrace is how long the last list is kept when a service has no instance
// to use any more.
const DefaultGrace = 10 * time.Second

const (
	// patience is how long calls wait for the first list before they fail: a
	// caller without a deadline must not hang because no server is there.
	patience = 10 * time.Second
	// complainEvery bounds what a server that refuses can cause.
	complainEvery = time.Second
)

// serviceConfig takes the first balancer that there is.
const serviceConfig = `{"loadBalancingConfig":[{"` + BalancerName + `":{}},{"round_robin":{}}]}`

// An Option changes what NewBuilder makes.
type Option func(*builder)

// WithGrace sets how long the last list is kept when a service has no instance to
// use any more; 0: not at all, negative: for ever. Then calls fail (those that wait
// for readiness wait) until there is one.
func WithGrace(d time.Duration) Option { return func(b *builder) { b.grace = d } }

// WithScheme changes what targets begin with, for programs that have names of
// another kind in their configuration, such as nacos:///order. It is lower case.
func WithScheme(scheme string) Option { return func(b *builder) { b.scheme = scheme } }

// WithServiceConfig replaces the service config that comes with the list, as JSON:
// to have timeouts and retries beside the balancer. "" is none: then
// grpc.WithDefaultServiceConfig applies, and pick_first without that.
func WithServiceConfig(json string) Option { return func(b *builder) { b.config = json } }

// WithLogger sets where complaints about single instances go; default
// slog.Default().
func WithLogger(l *slog.Logger) Option { return func(b *builder) { b.logger = l } }

// NewBuilder makes what grpc.WithResolvers takes. The client is not closed by it
// or by channels; when it is closed, channels go on with their last list.
func NewBuilder(c *client.Client, opts ...Option) resolver.Builder {
	return newBuilder(func(ctx context.Context, t Target) (watcher, error) {
		w, err := c.Watch(ctx, t.Service, t.query()...)
		if err != nil {
			return nil, err // not a nil *client.Watcher
		}
		return w, nil
	}, opts)
}

// A watcher is a *client.Watcher, and a watchFunc does not wait, as Client.Watch.
type watcher interface {
	Next(context.Context) (client.Event, error)
	Close()
}

type watchFunc func(context.Context, Target) (watcher, error)

func newBuilder(watch watchFunc, opts []Option) *builder {
	b := &builder{watch: watch, scheme: Scheme, grace: DefaultGrace, config: serviceConfig, logger: slog.Default()}
	for _, o := range opts {
		o(b)
	}
	return b
}

type builder struct {
	watch  watchFunc
	scheme string
	grace  time.Duration
	config string
	logger *slog.Logger
}

func (b *builder) Scheme() string { return b.scheme }

// OverrideAuthority is the service's name, which servers see as :authority and
// TLS looks for in certificates unless the dial options say something else; by
// default it would be the target's whole path. grpc does not escape it.
func (b *builder) OverrideAuthority(target resolver.Target) string {
	t, err := parseURL(&target.URL)
	if err != nil {
		return target.Endpoint() // Build will refuse it
	}
	return url.PathEscape(t.Service)
}

// Build neither asks nor waits.
func (b *builder) Build(target resolver.Target, cc resolver.ClientConn, opts resolver.BuildOptions) (resolver.Resolver, error) {
	t, err := parseURL(&target.URL)
	if err != nil {
		return nil, err
	}
	r := &watching{builder: b, target: t, cc: cc}
	if b.config != "" && !opts.DisableServiceConfig {
		r.config = cc.ParseServiceConfig(b.config)
		if r.config.Err != nil {
			return nil, fmt.Errorf("service config of %s targets: %w", b.scheme, r.config.Err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	w, err := b.watch(ctx, t)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("service %s: %w", t.id(), err)
	}
	r.cancel = cancel
	words := make(chan told)
	r.done.Go(func() { r.read(ctx, w, words) })
	r.done.Go(func() { r.run(ctx, words) })
	return r, nil
}

// watching is the resolver of one channel.
type watching struct {
	*builder
	target Target
	cc     resolver.ClientConn
	config *serviceconfig.ParseResult // nil: none
	cancel context.CancelFunc
	done   sync.WaitGroup

	// Of run's goroutine.
	sent     []endpoint // what the channel has; none: nothing yet, or an empty list
	everSent bool
	why      error       // there is no instance to use, though some are sent; nil: not so
	timer    *time.Timer // until why is told, or that there is no list; nil: nothing to tell
	old      error       // as why, of an old list that was not believed
	odd      string      // the complaint that was logged last
}

// An endpoint is one instance.
type endpoint struct {
	addr   string
	weight float64
}

// told is one word of the client.
type told struct {
	event client.Event
	err   error // instead
}

// ResolveNow asks nothing: a watch is told what there is to know, and grpc calls
// this for every connection that fails.
func (r *watching) ResolveNow(resolver.ResolveNowOptions) {}

// Close ends the watch and returns when its goroutines have.
func (r *watching) Close() {
	r.cancel()
	r.done.Wait()
}

// run tells the channel what read hears, until Close.
func (r *watching) run(ctx context.Context, words <-chan told) {
	r.timer = time.NewTimer(patience)
	for {
		var late <-chan time.Time
		if r.timer != nil {
			late = r.timer.C
		}
		select {
		case <-ctx.Done():
			r.stopTimer()
			return
		case w := <-words:
			if w.err != nil {
				// With a list the channel goes on with that.
				r.cc.ReportError(fmt.Errorf("service %s: %w", r.target.id(), w.err))
				if r.why == nil {
					r.stopTimer()
				}
				continue
			}
			r.list(w.event.Snapshot)
		case <-late:
			r.timer = nil
			switch {
			case r.why != nil:
				r.giveUp()
			case r.old != nil:
				r.cc.ReportError(r.old)
			default:
				r.cc.ReportError(fmt.Errorf("service %s: no list of its instances within %v: %w", r.target.id(), patience, client.ErrNotConnected))
			}
		}
	}
}

func (r *watching) stopTimer() {
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
}

// list is the service's, complete.
func (r *watching) list(s client.Snapshot) {
	usable := r.usable(s.Instances)
	if len(usable) > 0 {
		r.stopTimer()
		r.why = nil
		if !slices.Equal(usable, r.sent) {
			r.sent = usable
			r.send()
		}
		return
	}
	none := fmt.Errorf("service %s: %w: %d known, none of them enabled, healthy and of a weight above 0", r.target.id(), client.ErrNoInstances, len(s.Instances))
	if s.Source == client.FromDisk || s.Source == client.FromStale {
		// An old list without instances says nothing of today; but a server that
		// finds it still true is no event.
		r.old = none
		return
	}
	first := r.why == nil
	r.why = none
	switch {
	case len(r.sent) == 0 || r.grace == 0: // nothing to keep
		r.stopTimer()
		r.giveUp()
	case first && r.grace > 0:
		r.timer = time.NewTimer(r.grace)
	}
}

// giveUp tells the channel that there is no instance, and why. One that has no
// balancer yet has no use for an empty list, and round_robin would forget why.
func (r *watching) giveUp() {
	r.sent = nil
	if r.everSent {
		r.send()
	}
	r.cc.ReportError(r.why)
}

// send ignores what UpdateState says, as grpc advises resolvers that watch: to
// resolve again would find the same.
func (r *watching) send() {
	r.everSent = true
	s := resolver.State{ServiceConfig: r.config, Endpoints: make([]resolver.Endpoint, 0, len(r.sent))}
	for _, e := range r.sent {
		a := resolver.Address{Addr: e.addr}
		// Balancers that are older than endpoints see the addresses.
		s.Addresses = append(s.Addresses, a)
		s.Endpoints = append(s.Endpoints, withWeight(resolver.Endpoint{Addresses: []resolver.Address{a}}, e.weight))
	}
	_ = r.cc.UpdateState(s)
}

// usable are the instances that may get calls, in the list's order, one for each
// address.
func (r *watching) usable(instances []client.Instance) []endpoint {
	var es []endpoint
	seen := make(map[string]bool, len(instances))
	odd := ""
	for _, i := range instances {
		if !i.Healthy || !i.Enabled || !(i.Weight > 0) { // NaN is neither
			continue
		}
		port := strconv.Itoa(i.Port)
		if meta, ok := i.Metadata[r.target.PortMeta]; ok && r.target.PortMeta != "" {
			// Its own port is another protocol's: rather no calls than those.
			if n, err := strconv.ParseUint(meta, 10, 16); err != nil || n == 0 {
				odd = fmt.Sprintf("%s:%d: metadata %s=%q is no port", i.IP, i.Port, r.target.PortMeta, meta)
				continue
			}
			port = meta
		}
		addr := net.JoinHostPort(i.IP, port)
		if seen[addr] { // the same process, in two clusters
			continue
		}
		seen[addr] = true
		es = append(es, endpoint{addr, i.Weight})
	}
	if odd != "" && odd != r.odd {
		r.logger.Warn("instance left out", "service", r.target.id().String(), "reason", odd)
	}
	r.odd = odd
	return es
}

// read hears what the client says, until Close, or until the client or the watch
// is closed. The client asks again by itself.
func (r *watching) read(ctx context.Context, w watcher, words chan<- told) {
	defer w.Close()
	for {
		e, err := w.Next(ctx)
		if ctx.Err() != nil {
			return
		}
		select {
		case words <- told{e, err}:
		case <-ctx.Done():
			return
		}
		switch {
		case errors.Is(err, client.ErrClosed):
			return
		case err != nil:
			select {
			case <-time.After(complainEvery):
			case <-ctx.Done():
				return
			}
		}
	}
}
