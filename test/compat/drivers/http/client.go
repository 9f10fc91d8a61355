package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/starling-registry/starling/test/compat/drivers"
	"github.com/starling-registry/starling/test/compat/drivers/bare"
)

const (
	requestTimeout = 3 * time.Second
	pollInterval   = 10 * time.Second // unless the server says another
	// tries of a request if there is one server only; else each is asked once.
	triesOfOne = 3
)

// web is for all clients: what limits them is the server. A connection that failed is not used
// again, and one that is silent costs one time-out.
var web = &http.Client{
	Timeout: requestTimeout,
	Transport: &http.Transport{
		MaxIdleConnsPerHost: 1000, IdleConnTimeout: 30 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
	},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// A client implements bare.Client.
type client struct {
	// constant
	bare.Options
	api    api
	ctx    context.Context // of all requests; ends with the client
	cancel context.CancelFunc

	wg sync.WaitGroup // beaters and pollers

	mu      sync.Mutex
	closed  bool
	beaters map[key]*beater
}

// A key says which instance.
type key struct {
	service bare.Service
	ip      string
	port    int
	cluster string
}

func keyOf(s bare.Service, i drivers.Instance) key { return key{s, i.IP, i.Port, i.Cluster} }

// connect returns when a server answers.
func connect(ctx context.Context, o bare.Options, a api) (bare.Client, error) {
	if o.Namespace == "" {
		o.Namespace = "public"
	}
	c := &client{Options: o, api: a, beaters: map[key]*beater{}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	for {
		err := c.answers(ctx)
		if err == nil {
			return c, nil
		}
		select {
		case <-ctx.Done():
			c.cancel()
			return nil, err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (c *client) answers(ctx context.Context) error {
	body, err := c.do(ctx, c.api.services(c.Namespace, "DEFAULT_GROUP", 1, 1))
	if err == nil {
		_, _, err = c.api.named(body)
	}
	return err
}

// A refusal is the answer of a server that took the request and says no, which the others would
// say too.
type refusal struct {
	status int
	body   string
}

func (e *refusal) Error() string { return fmt.Sprintf("status %d: %s", e.status, e.body) }

// do sends a request to the servers in turn, beginning with any, until one answers it.
func (c *client) do(ctx context.Context, r request) ([]byte, error) {
	tries := len(c.Servers)
	if tries == 1 {
		tries = triesOfOne
	}
	first := rand.IntN(len(c.Servers))
	var failed error
	for n := range tries {
		server := c.Servers[(first+n)%len(c.Servers)]
		body, err := c.ask(ctx, server, r)
		if err == nil {
			return body, nil
		}
		err = fmt.Errorf("%s %s at %s: %w", r.method, r.path, server, err)
		if _, refused := errors.AsType[*refusal](err); refused || ctx.Err() != nil {
			return nil, err
		}
		failed = err
	}
	return nil, failed
}

func (c *client) ask(ctx context.Context, server string, r request) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, r.method, "http://"+server+r.path+"?"+r.query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "Starling-Bare-HTTP") // a name that no server offers pushes over UDP
	res, err := web.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 64<<20))
	switch {
	case err != nil:
		return nil, err
	case res.StatusCode == http.StatusOK:
		return body, nil
	case res.StatusCode >= 500 || res.StatusCode == http.StatusTooManyRequests:
		return nil, fmt.Errorf("status %d: %s", res.StatusCode, body)
	}
	return nil, &refusal{res.StatusCode, string(body)}
}

func (c *client) write(r request) error {
	body, err := c.do(c.ctx, r)
	if err == nil {
		err = c.api.written(body)
	}
	return err
}

func (c *client) Register(s bare.Service, i drivers.Instance) error {
	if err := c.write(c.api.register(c.Namespace, s, i)); err != nil || !i.Ephemeral {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return context.Canceled
	}
	k := keyOf(s, i)
	b := c.beaters[k]
	if b == nil {
		b = &beater{client: c, service: s, stop: make(chan struct{}), stopped: make(chan struct{})}
		c.beaters[k] = b
		c.wg.Go(b.run)
	}
	b.set(i)
	return nil
}

func (c *client) RegisterBatch(bare.Service, []drivers.Instance) error {
	return errors.New("there are no batches over HTTP")
}

// Deregister waits for a beat that is under way: one that comes after it would register again.
func (c *client) Deregister(s bare.Service, i drivers.Instance) error {
	k := keyOf(s, i)
	c.mu.Lock()
	b := c.beaters[k]
	delete(c.beaters, k)
	c.mu.Unlock()
	if b != nil {
		close(b.stop)
		<-b.stopped
	}
	return c.write(c.api.deregister(c.Namespace, s, i))
}

func (c *client) List(s bare.Service, clusters []string) (*bare.Info, error) {
	return c.list(c.ctx, s, clusters)
}

func (c *client) list(ctx context.Context, s bare.Service, clusters []string) (*bare.Info, error) {
	body, err := c.do(ctx, c.api.list(c.Namespace, s, clusters))
	if err != nil {
		return nil, err
	}
	return c.api.listed(body)
}

func (c *client) Services(group string, page, size int) ([]string, int, error) {
	body, err := c.do(c.ctx, c.api.services(c.Namespace, group, page, size))
	if err != nil {
		return nil, 0, err
	}
	return c.api.named(body)
}

// Subscribe fails if no server answers the first question. Later ones that fail change nothing:
// what the client has it keeps.
func (c *client) Subscribe(s bare.Service, clusters []string, told func([]drivers.Instance)) (func(), error) {
	view := bare.NewView(clusters, told)
	info, err := c.List(s, clusters)
	if err != nil {
		return nil, err
	}
	view.Take(info)
	ctx, cancel := context.WithCancel(c.ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		cancel()
		return nil, context.Canceled
	}
	c.wg.Go(func() {
		defer view.Close()
		pause := c.pause(info)
		for wait(ctx, pause) {
			if info, err := c.list(ctx, s, clusters); err == nil {
				view.Take(info)
				pause = c.pause(info)
			}
		}
	})
	return func() { cancel(); view.Close() }, nil
}

func (c *client) pause(info *bare.Info) time.Duration {
	switch {
	case c.Poll > 0:
		return c.Poll
	case info.CacheMillis > 0:
		return time.Duration(info.CacheMillis) * time.Millisecond
	}
	return pollInterval
}

func (c *client) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.wg.Wait()
}

// wait says whether the time has passed before the context ended.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// A beater keeps one instance.
type beater struct {
	// constant
	client        *client
	service       bare.Service
	stop, stopped chan struct{}

	mu       sync.Mutex
	instance drivers.Instance
}

func (b *beater) set(i drivers.Instance) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.instance = i
}

func (b *beater) get() drivers.Instance {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.instance
}

// run beats until the instance is deregistered or the client closed. The first beat comes after an
// interval, as from Java. A beat that fails is not made up for: the next one is due soon.
func (b *beater) run() {
	defer close(b.stopped)
	c := b.client
	light := false
	pause := period(b.get())
	for {
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-b.stop:
			t.Stop()
			return
		case <-c.ctx.Done():
			t.Stop()
			return
		}
		i := b.get()
		body, err := c.do(c.ctx, c.api.beat(c.Namespace, b.service, i, light))
		if err != nil {
			continue
		}
		answer, err := c.api.beaten(body)
		if err != nil {
			continue
		}
		light = answer.light
		if answer.interval > 0 {
			pause = answer.interval
		}
		if answer.unknown {
			_ = c.write(c.api.register(c.Namespace, b.service, b.get())) // else the next beat finds it out again
		}
	}
}

// period is the pause between two beats that the instance asks for.
func period(i drivers.Instance) time.Duration {
	if ms, err := strconv.ParseUint(i.Metadata["preserved.heart.beat.interval"], 10, 32); err == nil && ms > 0 {
		return time.Duration(ms) * time.Millisecond
	}
	return beatInterval
}
