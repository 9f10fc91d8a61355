package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-registry/starling/pkg/nacos"
)

// What may grow in a soak, after a fifth of its time.
const (
	soakGrowth  = 1.05
	soakPeriods = 10
)

// runSoak puts a server under mixed load: a population that stays, and on top
// of it connections, registrations, subscriptions, watches and HTTP clients
// that come and go. Its memory and goroutines must not grow.
func runSoak(ctx context.Context, bin string, d time.Duration) error {
	srv, err := startServer(ctx, bin, settings...)
	if err != nil {
		return err
	}
	defer os.RemoveAll(srv.dir)
	b, err := startBystander(srv)
	if err != nil {
		return errors.Join(err, srv.stop())
	}
	time.Sleep(2 * time.Second)
	base, err := srv.vitals(true)
	if err != nil {
		return errors.Join(err, srv.stop())
	}
	s := &soak{arena: &arena{srv: srv}}
	load, stop := context.WithTimeout(ctx, d)
	defer stop()
	for i := range 200 {
		if err := s.stay(i); err != nil {
			return errors.Join(err, srv.stop())
		}
	}
	for i := range 16 {
		s.wg.Go(func() { s.come(load, rand.New(rand.NewPCG(uint64(i), 1))) })
	}
	for i := range 8 {
		s.wg.Go(func() { s.beat(load, rand.New(rand.NewPCG(uint64(i), 2)), i) })
	}

	fmt.Println("time; goroutines, files, live heap and memory of the server (means); the bystander's slowest query, push and HTTP round; done so far")
	type period struct{ goroutines, fds, heap, rss float64 }
	var periods []period
	var problems []string
	for range soakPeriods {
		var p period
		n := 0.0
		for end := time.Now().Add(d / soakPeriods); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(time.Second) {
			v, err := srv.vitals(n == 0)
			if err != nil {
				problems = append(problems, err.Error())
				break
			}
			if n == 0 {
				p.heap = float64(v.heap >> 20)
			}
			p.goroutines += float64(v.goroutines)
			p.fds += float64(v.fds)
			p.rss += float64(v.rss) / (1 << 20)
			n++
		}
		p.goroutines, p.fds, p.rss = p.goroutines/n, p.fds/n, p.rss/n
		periods = append(periods, p)
		errs, query, push, list := b.report()
		for _, e := range errs {
			problems = append(problems, "bystander: "+e)
		}
		fmt.Printf("%4.0f%%  %5.0f %5.0f %4.0f MiB %6.1f MiB  %d/%d/%d ms  %d connections, %d requests, %d HTTP requests, %d errors\n", 100*float64(len(periods))/soakPeriods,
			p.goroutines, p.fds, p.heap, p.rss, query.Milliseconds(), push.Milliseconds(), list.Milliseconds(), s.connections.Load(), s.requests.Load(), s.webs.Load(), s.failed.Load())
		if !srv.alive() || ctx.Err() != nil {
			break
		}
	}
	stop()
	s.wg.Wait()
	for _, c := range s.held {
		c.close()
	}
	if len(periods) == soakPeriods {
		from, to := periods[soakPeriods/5], periods[soakPeriods-1]
		grew := func(what string, from, to, slack float64) {
			if to > from*soakGrowth+slack {
				problems = append(problems, fmt.Sprintf("%s grew from %.1f to %.1f", what, from, to))
			}
		}
		grew("goroutines", from.goroutines, to.goroutines, 0)
		grew("open files", from.fds, to.fds, 0)
		grew("memory, MiB", from.rss, to.rss, 0)
	}
	if n := s.failed.Load(); n > 0 {
		problems = append(problems, fmt.Sprintf("%d requests failed, the first: %v", n, s.first))
	}
	now, unsettled := settle(srv, base, nothing)
	problems = append(problems, unsettled...)
	b.close()
	if err := srv.stop(); err != nil {
		problems = append(problems, err.Error())
	}
	problems = append(problems, srv.bugs()...)
	for _, p := range problems {
		fmt.Println("FAIL:", p)
	}
	fmt.Printf("soak of %v; when all have gone: goroutines %d→%d, files %d→%d, heap %d→%d MiB, memory %d→%d MiB\n", d,
		base.goroutines, now.goroutines, base.fds, now.fds, base.heap>>20, now.heap>>20, base.rss>>20, now.rss>>20)
	if len(problems) > 0 || ctx.Err() != nil {
		return errors.New("the soak has failed")
	}
	return nil
}

type soak struct {
	*arena
	wg   sync.WaitGroup
	held []*client

	connections, requests, webs, failed atomic.Int64

	mu    sync.Mutex
	first error
}

const soakServices = 60

func (s *soak) count(err error) {
	s.requests.Add(1)
	if err != nil {
		s.fail(err)
	}
}

func (s *soak) fail(err error) {
	s.failed.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first == nil {
		s.first = err
	}
}

// stay adds to the population: a client that publishes and subscribes, acks,
// and makes a call now and then by being asked whether it lives.
func (s *soak) stay(i int) error {
	c, err := s.connect(manners{})
	if err != nil {
		return err
	}
	s.held = append(s.held, c)
	return errors.Join(must(c.batch(fmt.Sprint("stay", i%20), many(20, fmt.Sprintf(`,"clusterName":"c%d","metadata":{"version":"1"}`, i)))),
		must(c.subscribe(fmt.Sprint("stay", i%20))), must(c.subscribe(fmt.Sprint("come", i%soakServices))))
}

// come is one client after the other: it connects, publishes, subscribes,
// watches, changes its mind, and leaves in one of several ways.
func (s *soak) come(ctx context.Context, r *rand.Rand) {
	service := func() string { return fmt.Sprint("come", r.IntN(soakServices)) }
	for ctx.Err() == nil {
		c, err := s.connect(manners{})
		if err != nil {
			s.fail(err)
			time.Sleep(time.Second)
			continue
		}
		s.connections.Add(1)
		for range r.IntN(20) {
			i := inst(fmt.Sprintf("10.1.%d.%d", r.IntN(256), r.IntN(256)), 1+r.IntN(60000)).with("metadata", object{"n": fmt.Sprint(r.Uint32())})
			switch r.IntN(8) {
			case 0, 1:
				s.count(must(c.register(service(), i)))
			case 2:
				s.count(must(c.batch(service(), many(1+r.IntN(50), ""))))
			case 3:
				s.count(must(c.deregister(service(), i)))
			case 4, 5:
				s.count(must(c.call(nacos.TypeSubscribeServiceRequest, object{"serviceName": service(), "groupName": "DEFAULT_GROUP", "subscribe": r.IntN(3) > 0, "clusters": []string{"", "a", "a,b"}[r.IntN(3)]})))
			case 6:
				s.count(must(c.query(service())))
			default:
				s.count(must(c.call(nacos.TypeFuzzyWatchRequest, object{"watchType": nacos.WatchStart, "groupKeyPattern": "public>>DEFAULT_GROUP>>come*", "initializing": true})))
			}
			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(r.IntN(50)) * time.Millisecond):
			}
		}
		switch r.IntN(4) {
		case 0:
			_ = c.sock.Conn.(*net.TCPConn).SetLinger(0) // a reset
			c.sock.Close()
		case 1:
			_ = c.sock.Conn.(*net.TCPConn).CloseWrite()
		}
		c.close()
	}
}

// beat is one HTTP client after the other: half of them deregister, the others
// just stop.
func (s *soak) beat(ctx context.Context, r *rand.Rand, n int) {
	web := func(method, path string, form url.Values) {
		s.webs.Add(1)
		if status, body, err := s.web(method, path, form); err != nil || status != 200 {
			s.fail(fmt.Errorf("%s %s: %d %s %v", method, path, status, clip(string(body)), err))
		}
	}
	for i := 0; ctx.Err() == nil; i++ {
		form := url.Values{"serviceName": {fmt.Sprint("beat", r.IntN(soakServices))}, "ip": {fmt.Sprintf("10.2.%d.%d", n, i%256)}, "port": {"80"}}
		web("POST", "/instance", form)
		for range r.IntN(5) {
			web("PUT", "/instance/beat", form)
			web("GET", "/instance/list", form)
			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(r.IntN(100)) * time.Millisecond):
			}
		}
		if r.IntN(2) == 0 {
			web("DELETE", "/instance", form)
		}
	}
}
