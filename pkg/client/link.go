package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-registry/starling/pkg/client/wire"
	"github.com/starling-registry/starling/pkg/nacos"
)

const (
	// degradedAfter is how long without a connection is more than a change of it.
	degradedAfter = 5 * time.Second
	// retireAfter is how long a connection that is being left stays open for what
	// it has published, until the new one has published it too.
	retireAfter = 5 * time.Second
	// attempts of a request that may be repeated.
	attempts = 3
)

// A session is one connection from beginning to end. A server knows nothing of
// an earlier one, so everything that it has acknowledged is noted with the epoch
// of the session (N-15, R-8).
type session struct {
	epoch  uint64 // from 1
	server server
	conn   *wire.Conn
	// of the goroutine that takes pushes: what Pushed is to tell, and when the
	// push has come
	pushed []pushed
}

type pushed struct {
	tell      func()
	service   ServiceID
	instances int
	at        time.Time
}

func (s *session) live() bool {
	select {
	case <-s.conn.Done():
		return false
	default:
		return true
	}
}

// A link has a connection, or is about to get one. One goroutine, run, makes
// them; all others read the current one.
type link struct {
	c    *Client
	wake signal // a server asks to leave
	last uint64 // epoch; of run
	cur  atomic.Pointer[session]

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when the fields below or cur change
	lost    time.Time     // since when there has been no connection
	tries   int           // how many have failed since
	lastErr error
	leave   *leave
	told    State
}

// leave is what a server has asked for: to go to this server, or to any other.
type leave struct {
	epoch uint64
	host  string
	port  int
}

func newLink(c *Client) *link {
	return &link{c: c, wake: newSignal(), changed: make(chan struct{}), lost: time.Now(), told: -1}
}

// session is the current one, nil if there is none that lives.
func (l *link) session() *session {
	if s := l.cur.Load(); s != nil && s.live() {
		return s
	}
	return nil
}

// epoch is that of the current session, 0 if none.
func (l *link) epoch() uint64 {
	if s := l.session(); s != nil {
		return s.epoch
	}
	return 0
}

func (l *link) state() State {
	if l.session() != nil {
		return Ready
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.lost.IsZero() && time.Since(l.lost) >= degradedAfter {
		return Degraded
	}
	return Connecting
}

// await returns a session as soon as there is one.
func (l *link) await(ctx context.Context) (*session, error) {
	for {
		l.mu.Lock()
		changed, last := l.changed, l.lastErr
		l.mu.Unlock()
		if s := l.session(); s != nil {
			return s, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, l.c.gaveUp(ctx, last)
		case <-l.c.ctx.Done():
			return nil, ErrClosed
		}
	}
}

// failing is closed when an attempt to connect has failed since there was a
// connection, or one has come: a reader that has something to fall back on need
// not wait longer.
func (l *link) failing() (now bool, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tries > 0, l.changed
}

// note changes fields under the lock and tells those who wait.
func (l *link) note(f func()) {
	l.mu.Lock()
	f()
	close(l.changed)
	l.changed = make(chan struct{})
	l.mu.Unlock()
}

func (l *link) tellState(server string) {
	s := l.state()
	l.mu.Lock()
	same := l.told == s
	l.told = s
	l.mu.Unlock()
	if !same {
		l.c.metrics.State(s, server)
	}
}

// run keeps a connection until the client ends. What it wants is a state: a
// connection to a server that is in the list and has not asked us to leave. It
// looks at what there is, does one step and looks again.
func (l *link) run() {
	ctx := l.c.ctx
	var leaving *session // the current one is to be replaced
	var target server    // by one to this server, tried once (N-13)
	var hasTarget bool
	var failed time.Duration // least pause before the next try
	defer func() {
		if s := l.cur.Load(); s != nil {
			s.conn.Close()
		}
		l.note(func() {})
	}()
	for ctx.Err() == nil {
		changed := l.c.list.changed()
		s := l.cur.Load()
		if s != nil && !s.live() {
			l.c.log.Warn("connection lost", "server", s.server, "reason", s.conn.Err())
			l.cur.Store(nil)
			l.note(func() { l.lost, l.tries, l.lastErr = time.Now(), 0, s.conn.Err() })
			l.tellState(s.server.String())
			s.conn.Close()
			leaving, s = nil, nil
		}
		if s != nil && leaving != s {
			l.mu.Lock()
			want := l.leave
			l.mu.Unlock()
			switch {
			case want != nil && want.epoch == s.epoch:
				leaving = s
				target, hasTarget = server{}, false
				if want.host != "" {
					target, hasTarget = l.c.list.recommended(want.host, want.port)
					hasTarget = hasTarget && !target.same(s.server)
				}
				l.c.log.Info("the server asks to leave", "server", s.server, "for", net.JoinHostPort(want.host, strconv.Itoa(want.port)), "known", hasTarget)
			case !l.c.list.contains(s.server):
				leaving = s
				l.c.log.Info("the server is not in the list any more", "server", s.server)
			}
		}
		if s != nil && leaving != s {
			select {
			case <-s.conn.Done():
			case <-l.wake:
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}

		to, wait := target, time.Duration(0)
		if !hasTarget {
			var err error
			to, wait, err = l.c.list.next()
			if err == nil && s != nil && to.same(s.server) { // not the one that we leave, if there are others
				var more time.Duration
				to, more, err = l.c.list.next()
				wait = max(wait, more)
			}
			if err != nil {
				l.note(func() { l.tries++; l.lastErr = err })
				failed = 0
				pause(ctx, jitter(time.Second), changed)
				l.tellState("")
				continue
			}
		}
		hasTarget = false
		if wait = max(wait, failed); wait > 0 {
			pause(ctx, wait, nil)
			l.tellState(to.String())
		}
		failed = 0
		if ctx.Err() != nil {
			return
		}
		next, err := l.connect(to)
		if err != nil {
			l.c.log.Debug("cannot connect", "server", to, "error", err)
			if refused, ok := errors.AsType[*wire.Error](err); ok && refused.Code == nacos.CodeInvalidServerStatus {
				failed = time.Second // it is starting (N-12)
			}
			l.note(func() { l.tries++; l.lastErr = err })
			l.tellState(to.String())
			continue
		}
		l.c.list.connected()
		old := l.cur.Swap(next)
		leaving = nil
		l.note(func() { l.lost, l.tries, l.lastErr = time.Time{}, 0, nil })
		l.tellState(to.String())
		l.c.log.Info("connected", "server", to, "connection", next.conn.ID(), "local", next.conn.LocalIP())
		l.c.work.wake.raise()
		l.c.keeper.raise()
		if old != nil {
			l.retire(old, next)
		}
	}
}

// retire closes a session once what it had published is at the new one, so that
// nothing is absent between the two (N-13).
func (l *link) retire(old, next *session) {
	l.c.spawn(func() {
		defer old.conn.Close()
		ctx, cancel := context.WithTimeout(l.c.ctx, retireAfter)
		defer cancel()
		l.c.work.settled(ctx, next)
	})
}

// pause waits, or until changed or the context ends; it reports whether it was
// changed.
func pause(ctx context.Context, d time.Duration, changed <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	case <-changed:
		return true
	}
	return false
}

// connect makes the next session. Epochs grow; those of failed attempts are not
// used again.
func (l *link) connect(to server) (*session, error) {
	l.last++
	s := &session{server: to, epoch: l.last}
	ctx, cancel := context.WithTimeout(l.c.ctx, l.c.cfg.RequestTimeout+5*time.Second)
	defer cancel()
	cfg := &l.c.cfg
	opts := wire.Options{
		Addr: net.JoinHostPort(to.host, strconv.Itoa(to.main)), GRPCPort: to.grpc,
		TLS: cfg.TLS, Tenant: cfg.Namespace, Abilities: map[string]bool{abilityFuzzy: true},
		Labels:         map[string]string{"AppName": orUnknown(cfg.AppName), "tls.enable": strconv.FormatBool(cfg.TLS != nil)},
		Push:           func(p *nacos.Payload) error { return l.c.takePush(s, p) },
		Pushed:         func() { l.c.tellPushed(s) },
		Reset:          func(host string, port int) { l.reset(s.epoch, host, port) },
		HealthChecks:   2,
		RequestTimeout: cfg.RequestTimeout, DialContext: l.c.dial, Logger: l.c.log,
	}
	maps.Copy(opts.Labels, cfg.Labels)
	if cfg.TLS != nil && cfg.TLS.ServerName == "" {
		opts.TLS = cfg.TLS.Clone()
		opts.TLS.ServerName = to.name
	}
	conn, err := wire.Dial(ctx, opts)
	if err != nil {
		return nil, err
	}
	s.conn = conn
	return s, nil
}

func orUnknown(app string) string {
	if app == "" {
		return "unknown"
	}
	return app
}

// reset is called by a connection's own goroutine.
func (l *link) reset(epoch uint64, host string, port int) {
	l.mu.Lock()
	l.leave = &leave{epoch, host, port}
	l.mu.Unlock()
	l.wake.raise()
}

// request asks the current server, waits for one if there is none, and repeats
// what may be repeated (N-11): what failed on the way, and what a server refuses
// because it is starting, overloaded or does not know us. What it has understood
// and refuses is final and says nothing about the connection.
func (c *Client) request(ctx context.Context, typ string, body any) (*nacos.Payload, *session, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	for n := 1; ; n++ {
		s, err := c.link.await(ctx)
		if err != nil {
			return nil, nil, err
		}
		answer, err := c.ask(ctx, s, typ, raw)
		if err == nil || !repeatable(err) {
			return answer, s, err
		}
		if c.isOver(ctx) {
			return nil, s, c.gaveUp(ctx, err)
		}
		if n == attempts {
			return nil, s, fmt.Errorf("%w: %w", ErrNotConnected, err)
		}
		if s.live() { // it has nothing to do with the connection; let it breathe
			pause(ctx, jitter(100*time.Millisecond<<n), nil)
		}
	}
}

// ask makes one request on a session, and once more with new credentials if
// those it had are refused. A refusal is a *[ServerError].
func (c *Client) ask(ctx context.Context, s *session, typ string, raw []byte) (*nacos.Payload, error) {
	for again := true; ; again = false {
		start := time.Now()
		attempt, cancel := context.WithTimeout(ctx, c.cfg.RequestTimeout)
		headers, err := c.login.headers(attempt)
		if err != nil {
			cancel()
			return nil, err
		}
		answer, err := s.conn.RequestWith(attempt, headers, typ, raw)
		cancel()
		if refused, ok := errors.AsType[*wire.Error](err); ok {
			err = &ServerError{refused.ResultCode, refused.Code, refused.Message}
		}
		c.metrics.Request(typ, time.Since(start), err)
		if again && errors.Is(err, ErrUnauthorized) && c.login.refused(headers) {
			continue
		}
		return answer, err
	}
}

// repeatable reports whether a request may succeed when it is sent again.
func repeatable(err error) bool {
	if refused, ok := errors.AsType[*ServerError](err); ok {
		switch refused.Code {
		case nacos.CodeInvalidServerStatus, nacos.CodeUnregistered, nacos.CodeOverThreshold, nacos.CodeClientDisconnected:
			return true
		}
		return false
	}
	return !errors.Is(err, ErrUnsupported) && !errors.Is(err, ErrUnauthorized) && !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrClosed)
}
