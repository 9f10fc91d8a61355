package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/starling-registry/starling/pkg/nacos"
)

// What a bystander takes for served well.
const (
	queryLimit = time.Second
	pushLimit  = 3 * time.Second
)

const (
	bystanderService = "bystander"
	beatingService   = "bystander-http"
)

// A bystander uses the server as its owner meant it, during all attacks. A
// provider registers an instance with another number in its metadata every
// second; a consumer subscribes to it, queries it over gRPC and lists it over
// HTTP. Each of them must see the last number, and nothing else.
type bystander struct {
	addr, http string
	web        *http.Client
	stop       context.CancelFunc
	wg         sync.WaitGroup

	mu                 sync.Mutex
	began, done        int               // numbers whose registration has begun, has been answered
	pushed             int               // the newest number pushed
	waiting            map[int]time.Time // registered and not pushed
	errs               []string
	query, push, lists time.Duration // the worst since the last report
}

func startBystander(srv *server) (*bystander, error) {
	ctx, cancel := context.WithCancel(context.Background())
	b := &bystander{addr: srv.grpc(), http: "http://" + srv.http(), stop: cancel, waiting: map[int]time.Time{},
		web: &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{}}}
	form := url.Values{"serviceName": {beatingService}, "ip": {"10.255.0.2"}, "port": {"80"}}
	res, err := b.web.Post(b.http+"/nacos/v1/ns/instance?"+form.Encode(), "", nil)
	if err != nil {
		cancel()
		return nil, err
	}
	res.Body.Close()
	ready := make(chan error, 1)
	b.wg.Go(func() { b.provide(ctx, ready) })
	if err := <-ready; err != nil {
		return nil, err
	}
	b.wg.Go(func() { b.consume(ctx, ready) })
	if err := <-ready; err != nil {
		return nil, err
	}
	b.wg.Go(func() { b.every(ctx, time.Second, b.list) })
	return b, nil
}

func (b *bystander) close() {
	b.stop()
	b.wg.Wait()
	b.web.CloseIdleConnections()
}

// report returns what went wrong since the last report, and the worst times.
func (b *bystander) report() (errs []string, query, push, list time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	errs, query, push, list = b.errs, b.query, b.push, b.lists
	b.errs, b.query, b.push, b.lists = nil, 0, 0, 0
	return errs, query, push, list
}

func (b *bystander) complain(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.errs) < 20 {
		b.errs = append(b.errs, fmt.Sprintf(format, args...))
	}
}

func (b *bystander) every(ctx context.Context, period time.Duration, f func()) {
	t := time.NewTicker(period)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			f()
		}
	}
}

// provide registers a new number every second.
func (b *bystander) provide(ctx context.Context, ready chan<- error) {
	c, err := connect(b.addr, manners{})
	if err == nil {
		err = b.next(c)
	}
	ready <- err
	if err != nil {
		return
	}
	defer c.close()
	b.every(ctx, time.Second, func() {
		if err := b.next(c); err != nil {
			b.complain("provider: %v", err)
			if again, err := connect(b.addr, manners{}); err == nil {
				c.close()
				c = again
			}
		}
	})
}

func (b *bystander) next(c *client) error {
	b.mu.Lock()
	b.began++
	n := b.began
	b.mu.Unlock()
	if err := must(c.register(bystanderService, inst("10.255.0.1", 80).with("metadata", object{"n": fmt.Sprint(n)}))); err != nil {
		return err
	}
	b.mu.Lock()
	b.done = n
	if b.pushed < n {
		b.waiting[n] = time.Now()
	}
	b.mu.Unlock()
	return nil
}

// consume subscribes and queries.
func (b *bystander) consume(ctx context.Context, ready chan<- error) {
	join := func() (*client, error) {
		c, err := connect(b.addr, manners{received: b.received})
		if err == nil {
			err = must(c.subscribe(bystanderService))
		}
		return c, err
	}
	c, err := join()
	ready <- err
	if err != nil {
		return
	}
	defer func() { c.close() }()
	b.every(ctx, 200*time.Millisecond, func() {
		b.mu.Lock()
		for n, since := range b.waiting {
			if time.Since(since) > pushLimit {
				delete(b.waiting, n)
				b.errs = append(b.errs, fmt.Sprintf("number %d was not pushed within %v", n, pushLimit))
			}
		}
		done := b.done
		b.mu.Unlock()
		start := time.Now()
		a, err := c.query(bystanderService)
		took := time.Since(start)
		if err == nil && !a.ok() {
			err = errors.New(a.String())
		}
		if err == nil {
			err = b.right(a.body["serviceInfo"], done)
		}
		if err == nil && took > queryLimit {
			err = fmt.Errorf("took %v", took)
		}
		b.mu.Lock()
		b.query = max(b.query, took)
		b.mu.Unlock()
		if err == nil {
			return
		}
		b.complain("query: %v", err)
		select {
		case <-c.ended:
			b.complain("the connection was closed: %v", c.err)
			if again, err := join(); err == nil {
				c.close()
				c = again
			}
		default:
		}
	})
}

// received takes a push.
func (b *bystander) received(typ string, body []byte) {
	if typ != nacos.TypeNotifySubscriberRequest {
		return
	}
	var push struct{ ServiceInfo any }
	if err := json.Unmarshal(body, &push); err != nil {
		b.complain("push: %v", err)
		return
	}
	n, err := number(push.ServiceInfo)
	if err != nil {
		b.complain("push: %v", err)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if n < b.pushed {
		b.errs = append(b.errs, fmt.Sprintf("push: number %d after %d", n, b.pushed))
	}
	b.pushed = max(b.pushed, n)
	for k, since := range b.waiting {
		if k <= n {
			b.push = max(b.push, time.Since(since))
			delete(b.waiting, k)
		}
	}
}

// right checks a list that was asked for when number done had been answered.
func (b *bystander) right(info any, done int) error {
	n, err := number(info)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if n < done || n > b.began {
		return fmt.Errorf("number %d, want %d to %d", n, done, b.began)
	}
	return nil
}

// number reads the number of the one instance in a list.
func number(info any) (n int, err error) {
	hosts := (&answer{body: map[string]any{"serviceInfo": info}}).hosts()
	if len(hosts) != 1 {
		return 0, fmt.Errorf("%d instances, want 1: %s", len(hosts), clip(fmt.Sprint(info)))
	}
	host, _ := hosts[0].(map[string]any)
	md, _ := host["metadata"].(map[string]any)
	if _, err := fmt.Sscan(fmt.Sprint(md["n"]), &n); err != nil || host["ip"] != "10.255.0.1" || host["healthy"] != true {
		return 0, fmt.Errorf("wrong instance %s", clip(fmt.Sprint(host)))
	}
	return n, nil
}

// list uses the HTTP API: a list, a beat, and the list of who beats.
func (b *bystander) list() {
	b.mu.Lock()
	done := b.done
	b.mu.Unlock()
	start := time.Now()
	var info any
	err := b.fetch(http.MethodGet, "/nacos/v1/ns/instance/list?serviceName="+bystanderService, &info)
	if err == nil {
		err = b.right(info, done)
	}
	if err == nil {
		var beat struct{ Code int }
		err = b.fetch(http.MethodPut, "/nacos/v1/ns/instance/beat?serviceName="+beatingService+"&ip=10.255.0.2&port=80", &beat)
		if err == nil && beat.Code != nacos.CodeBeatOK {
			err = fmt.Errorf("beat: code %d", beat.Code)
		}
	}
	if err == nil {
		var s struct {
			Hosts []struct{ Healthy bool }
		}
		err = b.fetch(http.MethodGet, "/nacos/v1/ns/instance/list?serviceName="+beatingService, &s)
		if err == nil && (len(s.Hosts) != 1 || !s.Hosts[0].Healthy) {
			err = fmt.Errorf("beating instance: %v", s.Hosts)
		}
	}
	took := time.Since(start)
	if err == nil && took > queryLimit {
		err = fmt.Errorf("took %v", took)
	}
	b.mu.Lock()
	b.lists = max(b.lists, took)
	b.mu.Unlock()
	if err != nil {
		b.complain("HTTP: %v", err)
	}
}

func (b *bystander) fetch(method, path string, into any) error {
	req, err := http.NewRequest(method, b.http+path, strings.NewReader(""))
	if err != nil {
		return err
	}
	res, err := b.web.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s", method, path, res.Status)
	}
	return json.NewDecoder(res.Body).Decode(into)
}
