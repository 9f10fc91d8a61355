package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

const (
	headerToken = "accessToken"
	headerApp   = "app"

	loginSpacing = 5 * time.Second        // between two logins (N-20)
	retrySpacing = 500 * time.Millisecond // if no server has answered the first

	// Tokens that do not say how long they hold are Nacos's.
	defaultTTL = 5 * time.Hour
	maxTTL     = 365 * 24 * time.Hour
)

// A login has the headers that go with every request. One goroutine logs in,
// whoever waits for it: a login at a time, whatever the number of requests.
type login struct {
	// constant
	name, password, app string
	list                *servers
	extra               func(ctx context.Context) (map[string]string, error)
	log                 *slog.Logger
	wanted              chan struct{} // room for one: log in
	ended               chan struct{} // closed when nobody logs in any more

	old atomic.Bool // the servers know the API of v1 only

	mu      sync.Mutex
	token   string
	expires time.Time
	tried   time.Time     // when the last login ended
	err     error         // of the last login
	turn    chan struct{} // closed when the next login has ended
}

// newLogin: extra is that of WithCredentials, or nil.
func newLogin(cfg *Config, list *servers, extra func(ctx context.Context) (map[string]string, error), log *slog.Logger) *login {
	return &login{
		name: cfg.Username, password: cfg.Password, app: cmp.Or(cfg.AppName, "unknown"), list: list, extra: extra, log: log,
		wanted: make(chan struct{}, 1), ended: make(chan struct{}), turn: make(chan struct{}),
	}
}

// start keeps the token fresh until the context ends.
func (l *login) start(ctx context.Context, wg *sync.WaitGroup) {
	if l.name != "" {
		wg.Go(func() { l.run(ctx) })
	}
}

// run logs in at once, before a token expires, and when somebody asks for it.
func (l *login) run(ctx context.Context) {
	defer close(l.ended)
	for {
		token, ttl, err := l.logIn(ctx)
		if ctx.Err() != nil {
			return
		}
		refresh := time.Duration(float64(loginSpacing) * (1 + 0.2*rand.Float64()))
		if err == nil {
			refresh = refreshAfter(ttl)
		}
		l.told(token, ttl, err)
		t := time.NewTimer(refresh)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-l.wanted:
		case <-t.C:
		}
		t.Stop()
	}
}

// refreshAfter is at 80 to 90 % of the time that a token holds (N-20).
func refreshAfter(ttl time.Duration) time.Duration {
	return max(time.Duration(float64(ttl)*(0.8+0.1*rand.Float64())), time.Second)
}

// told keeps what a login has ended with, and wakes those who wait for it.
func (l *login) told(token string, ttl time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	failedBefore := l.err != nil
	l.tried, l.err = time.Now(), err
	if err == nil {
		l.token, l.expires = token, l.tried.Add(ttl)
	}
	switch {
	case err != nil && !failedBefore:
		l.log.Warn("login failed", "username", l.name, "error", err)
	case err == nil && failedBefore:
		l.log.Info("login succeeded again", "username", l.name)
	}
	close(l.turn)
	l.turn = make(chan struct{})
	select {
	case <-l.wanted: // who wanted it until now has it
	default:
	}
}

// headers are those for a request made now: app, accessToken, and what
// WithCredentials gives. The map belongs to the caller. It waits for a login if
// there is no token: the error is [ErrUnauthorized] if the servers refuse, and
// [ErrNotConnected] if none could be asked, and [ErrClosed] after the end.
func (l *login) headers(ctx context.Context) (map[string]string, error) {
	h := map[string]string{headerApp: l.app}
	if l.name != "" {
		token, err := l.current(ctx)
		if err != nil {
			return nil, err
		}
		h[headerToken] = token
	}
	if l.extra != nil {
		more, err := l.extra(ctx)
		if err != nil {
			return nil, fmt.Errorf("credentials: %w", err)
		}
		maps.Copy(h, more)
	}
	return h, nil
}

func (l *login) current(ctx context.Context) (string, error) {
	for asked := false; ; {
		l.mu.Lock()
		token, err, turn, now := l.token, l.err, l.turn, time.Now()
		valid := token != "" && now.Before(l.expires)
		recent := now.Sub(l.tried) < spacing(err)
		if !valid && !asked && !(err != nil && recent) {
			l.wantLocked()
		}
		l.mu.Unlock()
		switch {
		case valid:
			return token, nil
		case err != nil && (asked || recent):
			return "", err
		}
		asked = true
		select {
		case <-turn:
		case <-l.ended:
			return "", ErrClosed
		case <-ctx.Done():
			return "", fmt.Errorf("%w: waiting for the login: %w", cmp.Or(err, ErrNotConnected), context.Cause(ctx))
		}
	}
}

// spacing is between two logins, the first of which has ended so.
func spacing(err error) time.Duration {
	if err != nil && !errors.Is(err, ErrUnauthorized) {
		return retrySpacing
	}
	return loginSpacing
}

func (l *login) wantLocked() {
	select {
	case l.wanted <- struct{}{}:
	default: // is wanted already
	}
}

// refused says that a request with these headers was answered by 403, and
// reports whether to try once more with what headers then returns: with another
// token, or after a login, of which there is one in 5 s (N-20).
func (l *login) refused(used map[string]string) bool {
	if l.name == "" {
		return l.extra != nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if used[headerToken] != l.token || l.token == "" {
		return true
	}
	if time.Since(l.tried) < loginSpacing {
		return false
	}
	l.token = ""
	l.wantLocked()
	return true
}

// logIn asks one server after the other. A refusal, whatever its status (G-29),
// is ErrUnauthorized, but one that is unavailable counts as no answer.
func (l *login) logIn(ctx context.Context) (token string, ttl time.Duration, err error) {
	bounded, cancel := context.WithTimeout(ctx, l.list.web.timeout)
	list, err := l.list.forHTTP(bounded)
	cancel()
	if err != nil {
		return "", 0, err
	}
	var refused, failed error
	for _, srv := range list {
		status, body, err := l.ask(ctx, srv)
		switch {
		case ctx.Err() != nil:
			return "", 0, ctx.Err()
		case err != nil:
			failed = err
		case unavailable(status):
			failed = fmt.Errorf("%s answers a login with status %d", srv, status)
		case status != http.StatusOK:
			refused = fmt.Errorf("%w: %s refuses the login of %q: %.200q (status %d)", ErrUnauthorized, srv, l.name, body, status)
			if status == http.StatusForbidden || status == http.StatusUnauthorized {
				return "", 0, refused
			}
		default:
			if token, ttl, err = readToken(body); err == nil {
				return token, ttl, nil
			}
			refused = fmt.Errorf("%w: answer of %s to the login: %w", ErrUnauthorized, srv, err)
		}
	}
	if refused != nil {
		return "", 0, refused
	}
	return "", 0, fmt.Errorf("%w: login: %w", ErrNotConnected, failed)
}

// ask tries the API of v3 and, where there is none, that of v1, and remembers
// which it was.
func (l *login) ask(ctx context.Context, srv server) (status int, body []byte, err error) {
	form := url.Values{"password": {l.password}}
	user := url.Values{"username": {l.name}}
	paths := []string{"/v3/auth/user/login", "/v1/auth/users/login"}
	old := l.old.Load()
	if old {
		paths[0], paths[1] = paths[1], paths[0]
	}
	status, body, err = l.list.web.call(ctx, srv, http.MethodPost, paths[0], nil, user, form)
	if err != nil || !missing(status) {
		return status, body, err
	}
	otherStatus, otherBody, err := l.list.web.call(ctx, srv, http.MethodPost, paths[1], nil, user, form)
	if err != nil {
		return 0, nil, err
	}
	if !missing(otherStatus) {
		l.old.Store(!old)
		return otherStatus, otherBody, nil
	}
	return status, body, nil
}

// unavailable reports whether that is how a gateway, or a server that starts,
// says that nobody is there.
func unavailable(status int) bool { return status >= 502 && status <= 504 }

// missing reports whether there is no such API, or not any more.
func missing(status int) bool {
	return status == http.StatusNotFound || status == http.StatusGone || status == http.StatusNotImplemented
}

func readToken(body []byte) (string, time.Duration, error) {
	var answer struct {
		Token string `json:"accessToken"`
		TTL   number `json:"tokenTtl"` // seconds
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return "", 0, err
	}
	if answer.Token == "" {
		return "", 0, errors.New("there is no token in it")
	}
	if !(answer.TTL > 0) {
		return answer.Token, defaultTTL, nil
	}
	return answer.Token, time.Duration(min(float64(answer.TTL), maxTTL.Seconds()) * float64(time.Second)), nil
}
