package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-registry/starling/pkg/nacos"
)

// An Option gives a client behaviour, which a [Config] cannot.
type Option func(*options)

type options struct {
	log     *slog.Logger
	dial    func(ctx context.Context, addr string) (net.Conn, error)
	metrics Metrics
	headers func(ctx context.Context) (map[string]string, error)
}

// WithLogger is where the client logs, instead of slog.Default().
func WithLogger(l *slog.Logger) Option { return func(o *options) { o.log = l } }

// WithDialContext opens all connections, of gRPC and HTTP, instead of a
// net.Dialer. The address is resolved already. It is called on several goroutines.
func WithDialContext(dial func(ctx context.Context, addr string) (net.Conn, error)) Option {
	return func(o *options) { o.dial = dial }
}

// WithMetrics has m told what happens.
func WithMetrics(m Metrics) Option { return func(o *options) { o.metrics = m } }

// WithCredentials gives headers for every request, for schemes of access that
// the client does not know itself. It is called for each request on its
// goroutine, by several at a time: what is costly it keeps.
func WithCredentials(headers func(ctx context.Context) (map[string]string, error)) Option {
	return func(o *options) { o.headers = headers }
}

// A Client registers, finds and watches services. Its methods may be called from
// any goroutine. Create it with [New] and end it with Close or Shutdown.
type Client struct {
	// constant
	cfg      Config // with its defaults
	log      *slog.Logger
	metrics  Metrics
	dial     func(ctx context.Context, addr string) (net.Conn, error)
	list     *servers
	login    *login
	disk     *diskCache
	failover *failover
	link     *link
	work     *reconciler
	fuzzy    *fuzzyWatches
	ctx      context.Context // ends all goroutines
	end      context.CancelFunc

	services table
	pubsMu   sync.Mutex // before publication.mu
	pubs     map[ServiceID]*publication
	over     atomic.Pointer[map[ServiceID]*list] // lists of operators; nil while they do not count
	keeper   signal                              // a subscription is due sooner than was known

	shutdown sync.Once
	ended    chan struct{} // closed when Shutdown has done its work; then why is set
	endErr   error

	mu      sync.Mutex
	closing bool // no new calls
	stopped bool // no new goroutines
	wg      sync.WaitGroup
}

// New starts a client. It does not wait for any server: see [Client.WaitReady].
// The error is [ErrInvalid].
func New(cfg Config, opts ...Option) (*Client, error) {
	o := options{log: slog.Default(), metrics: noMetrics{}}
	for _, opt := range opts {
		opt(&o)
	}
	cfg.Namespace = cmp.Or(cfg.Namespace, "public")
	if err := nacos.CheckService(cfg.Namespace, "", ""); err != nil {
		return nil, fmt.Errorf("%w: namespace: %w", ErrInvalid, err)
	}
	cfg.RequestTimeout = cmp.Or(max(cfg.RequestTimeout, 0), 3*time.Second)
	cfg.PollInterval = cmp.Or(cfg.PollInterval, time.Minute)
	cfg.IdleTTL = cmp.Or(cfg.IdleTTL, 30*time.Minute)
	cfg.GRPCPortOffset = cmp.Or(cfg.GRPCPortOffset, 1000)

	list, err := newServers(&cfg, o.dial, nil, o.log)
	if err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, log: o.log, metrics: o.metrics, dial: o.dial, list: list, keeper: newSignal(), pubs: map[ServiceID]*publication{}, ended: make(chan struct{})}
	c.ctx, c.end = context.WithCancel(context.Background())
	c.login = newLogin(&c.cfg, list, o.headers, o.log)
	c.disk = openCache(cfg.CacheDir, cfg.Namespace, o.log)
	c.failover = newFailover(&c.cfg, c.disk, o.log)
	c.link, c.work, c.fuzzy = newLink(c), newReconciler(c), newFuzzyWatches(c)
	if cfg.LoadCacheAtStart {
		c.load(c.disk.load())
	}

	list.start(c.ctx, &c.wg)
	c.login.start(c.ctx, &c.wg)
	c.wg.Go(c.link.run)
	c.wg.Go(c.work.run)
	c.wg.Go(c.keep)
	if c.failover != nil {
		c.wg.Go(func() { c.failover.run(c.ctx, c.setFailover) })
	}
	return c, nil
}

// spawn starts a goroutine that Close waits for, and reports whether it could.
func (c *Client) spawn(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return false
	}
	c.wg.Go(f)
	return true
}

// open says whether calls are still accepted.
func (c *Client) open() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return ErrClosed
	}
	return nil
}

// bound gives a context without a deadline one, so that no call waits for ever
// for a server.
func bound(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d)
}

// WaitReady returns when there is a connection and, with a Username, the login
// has been accepted; without a deadline it waits for ever. The error wraps that of
// the context with [ErrNotConnected], or is [ErrUnauthorized] or [ErrClosed].
func (c *Client) WaitReady(ctx context.Context) error {
	if err := c.open(); err != nil {
		return err
	}
	if _, err := c.link.await(ctx); err != nil {
		return err
	}
	_, err := c.login.headers(ctx)
	return err
}

// State is what the client can do now.
func (c *Client) State() State {
	if c.open() != nil {
		return Closed
	}
	return c.link.state()
}

// Server is the name of the server that the client is connected to, "" if none.
func (c *Client) Server() string {
	if s := c.link.session(); s != nil {
		return s.server.String()
	}
	return ""
}

// identify makes the name of a service, where "group@@name" may stand for it if
// no group is given, and checks it.
func identify(service, group string) (ServiceID, error) {
	id := ServiceID{Group: cmp.Or(group, DefaultGroup), Name: service}
	for i := 1; i+2 < len(service); i++ {
		if service[i:i+2] == "@@" {
			if group != "" && group != service[:i] {
				return id, fmt.Errorf("%w: service %q is not of group %q", ErrInvalid, service, group)
			}
			id = ServiceID{service[:i], service[i+2:]}
			break
		}
	}
	if nacos.Blank(id.Name) || nacos.Blank(id.Group) {
		return id, fmt.Errorf("%w: a service must have a name", ErrInvalid)
	}
	if err := nacos.CheckService("", id.Name, id.Group); err != nil {
		return id, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return id, nil
}

// A signal wakes one goroutine; more than one are one.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

func (s signal) raise() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// isClosed reports whether the error means that this client, or the context, has
// ended rather than that a server failed.
func (c *Client) isOver(ctx context.Context) bool { return ctx.Err() != nil || c.ctx.Err() != nil }

// gaveUp is the error of a call whose context ended while it waited for a server.
func (c *Client) gaveUp(ctx context.Context, last error) error {
	if c.ctx.Err() != nil {
		return ErrClosed
	}
	err := context.Cause(ctx)
	if last != nil && !errors.Is(last, err) {
		return fmt.Errorf("%w: %w (last: %w)", ErrNotConnected, err, last)
	}
	return fmt.Errorf("%w: %w", ErrNotConnected, err)
}
