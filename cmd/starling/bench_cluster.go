package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-registry/starling/pkg/api"
	"github.com/starling-registry/starling/pkg/client/wire"
	"github.com/starling-registry/starling/pkg/nacos"
)

// Of the services that a connection changes in turn, so many are followed on
// every other node: enough for a quantile, and pushes remain a small part of
// the work.
const lagFollowed = 2

// A lagService is followed on all nodes but the one where it is changed. A mark
// says which one it is and how often it was changed: change × lagServices + i.
type lagService struct {
	mu      sync.Mutex
	start   [16]time.Time // of the last changes
	changes int
	seen    []int // by server: changes that have arrived
}

const lagServices = 100_000

// changed notes a change and returns its mark.
func (s *lagService) changed(i int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes++
	s.start[s.changes%len(s.start)] = time.Now()
	return s.changes*lagServices + i
}

// arrived records how old the changes are that a push has brought: one that was
// merged with later ones is as late as these.
func (s *lagService) arrived(server, change int, record func(time.Duration)) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for ; s.seen[server] < change && change <= s.changes; s.seen[server]++ {
		if n := s.seen[server] + 1; n > s.changes-len(s.start) {
			record(now.Sub(s.start[n%len(s.start)]))
		}
	}
}

// missing counts what has not arrived at the servers.
func (s *lagService) missing(own int) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for server, seen := range s.seen {
		if server != own {
			n += s.changes - seen
		}
	}
	return n
}

func benchLag(ctx context.Context, r *benchRun) error {
	r.rate = cmp.Or(r.rate, 5000)
	conns, err := r.dialAll(ctx, r.at, nil)
	if err != nil {
		return err
	}
	if len(conns)*lagFollowed > lagServices {
		return fmt.Errorf("at most %d connections", lagServices/lagFollowed)
	}
	followed := make([]lagService, len(conns)*lagFollowed)
	for i := range followed {
		followed[i].seen = make([]int, len(r.servers))
	}
	name := func(conn, n int) string { return "lag-" + strconv.Itoa(conn) + "-" + strconv.Itoa(n) }
	for server, addr := range r.servers {
		c, err := r.dial(ctx, addr, func(p *nacos.Payload) error {
			if mark := markOf(p.Body); mark%lagServices < len(followed) {
				followed[mark%lagServices].arrived(server, mark/lagServices, r.record)
			}
			return nil
		})
		if err != nil {
			return err
		}
		for i := range followed {
			if i/lagFollowed%len(r.servers) == server {
				continue
			}
			if _, err := c.Request(ctx, nacos.TypeSubscribeServiceRequest, subscribeBody(name(i/lagFollowed, i%lagFollowed))); err != nil {
				return err
			}
		}
	}

	// Each service is changed about once a second: it is quiet, for a server
	// that merges pushes of busy ones.
	services := max(r.rate/len(conns), lagFollowed+1)
	loading, stop := context.WithCancel(ctx)
	var made atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		r.pace(loading, conns, r.rate, func(w, n int, buf []byte) []byte {
			made.Add(1)
			k := n % services
			mark := n + 1
			if k < lagFollowed {
				i := w*lagFollowed + k
				mark = followed[i].changed(i)
			}
			return registerBody(buf, name(w, k), hostAddress(w), 8080, mark)
		})
	})
	defer func() { stop(); wg.Wait() }()
	sleep(ctx, min(2*time.Second, r.duration))
	r.say(fmt.Sprintf("measuring for %v", r.duration))
	r.reset()
	before := made.Load()
	err = r.measure(func() error { sleep(ctx, r.duration); return context.Cause(ctx) })
	r.operations = made.Load() - before
	stop()
	wg.Wait()
	if err != nil {
		return err
	}
	if took, err := r.untilEqual(ctx, r.servers); err != nil {
		r.fail(1, err)
	} else {
		r.equal = new(float64(took.Microseconds()) / 1000)
	}
	missing := 0
	for deadline := time.Now().Add(pushPatience); ; {
		missing = 0
		for i := range followed {
			missing += followed[i].missing(i / lagFollowed % len(r.servers))
		}
		if missing == 0 || time.Now().After(deadline) || !sleep(ctx, 10*time.Millisecond) {
			break
		}
	}
	if missing > 0 {
		r.fail(int64(missing), fmt.Errorf("%d changes have not arrived within %v", missing, pushPatience))
	}
	if wanted := int64(float64(r.rate) * r.elapsed.Seconds()); r.operations < wanted*95/100 {
		r.fail(1, fmt.Errorf("there were %d changes instead of %d: the servers or this client cannot do more", r.operations, wanted))
	}
	return context.Cause(ctx)
}

// untilEqual waits until the nodes tell the same version and digest of each of
// their lives.
func (r *benchRun) untilEqual(ctx context.Context, servers []string) (time.Duration, error) {
	const patience = 30 * time.Second
	start := time.Now()
	clients := make([]*api.Client, len(servers))
	for i, s := range servers {
		var err error
		if clients[i], err = api.NewClient(s); err != nil {
			return 0, err
		}
	}
	r.say("waiting until the digests of all are equal")
	for {
		said := make([]*api.Cluster, len(clients))
		err := each(ctx, len(clients), len(clients), func(i int) (err error) {
			said[i], err = clients[i].Cluster(ctx)
			return err
		})
		switch {
		case err != nil:
			return 0, err
		case agree(said):
			return time.Since(start), nil
		case time.Since(start) > patience:
			return 0, fmt.Errorf("the digests are not equal after %v", patience)
		case !sleep(ctx, 5*time.Millisecond):
			return 0, context.Cause(ctx)
		}
	}
}

// agree reports whether all nodes have of each of them what it has itself.
func agree(said []*api.Cluster) bool {
	for _, owner := range said {
		of := func(c *api.Cluster) (version uint64, digest string) {
			for _, l := range c.Lives {
				if l.Node == owner.Node && l.Epoch == owner.Epoch {
					return l.Applied, l.Digest
				}
			}
			return 0, ""
		}
		version, digest := of(owner)
		for _, c := range said {
			if v, d := of(c); v != version || d != digest {
				return false
			}
		}
	}
	return true
}

// failoverEach is how many clients publish each service.
const (
	failoverEach = 10
	failoverName = "failover-"
)

func benchFailover(ctx context.Context, r *benchRun) error {
	others := r.servers[1:]
	service := func(i int) string { return failoverName + strconv.Itoa(i/failoverEach) }
	services := (r.connections + failoverEach - 1) / failoverEach
	want := func(s int) int { return min(failoverEach, r.connections-s*failoverEach) }

	// One subscriber on each other node follows all services.
	var removals atomic.Int64
	var whole atomic.Int64 // services that a subscriber has seen with all instances
	for _, addr := range others {
		shown := make([]int, services)
		c, err := r.dial(ctx, addr, func(p *nacos.Payload) error {
			s, _, n := listOf(p.Body, failoverName)
			if s < 0 || s >= services {
				return nil
			}
			if n < shown[s] {
				removals.Add(int64(shown[s] - n))
			}
			if n == want(s) && shown[s] < n {
				whole.Add(1)
			}
			shown[s] = n
			return nil
		})
		if err != nil {
			return err
		}
		for s := range services {
			if _, err := c.Request(ctx, nacos.TypeSubscribeServiceRequest, subscribeBody(service(s*failoverEach))); err != nil {
				return err
			}
		}
	}
	publish := func(i int, addr string) (*wire.Conn, error) {
		c, err := r.dial(ctx, addr, nil)
		if err != nil {
			return nil, err
		}
		if _, err := c.Request(ctx, nacos.TypeInstanceRequest, registerBody(nil, service(i), hostAddress(i), 8080, 1)); err != nil {
			return nil, err
		}
		_, err = c.Request(ctx, nacos.TypeSubscribeServiceRequest, subscribeBody(service(i)))
		return c, err
	}
	r.say(fmt.Sprintf("connecting %d", r.connections))
	conns := make([]*wire.Conn, r.connections)
	if err := each(ctx, len(conns), 64, func(i int) (err error) { conns[i], err = publish(i, r.server); return err }); err != nil {
		return err
	}
	for deadline := time.Now().Add(30 * time.Second); whole.Load() < int64(services*len(others)); {
		if time.Now().After(deadline) {
			return errors.New("the subscribers have not seen all instances")
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
	if _, err := r.untilEqual(ctx, r.servers); err != nil {
		return err
	}
	removals.Store(0)

	if r.kill {
		pid, err := findServer(r.server)
		if err != nil {
			return fmt.Errorf("--kill: %w", err)
		}
		process, err := os.FindProcess(pid)
		if err == nil {
			err = process.Kill()
		}
		if err != nil {
			return fmt.Errorf("--kill: %w", err)
		}
	} else {
		r.ask("now kill the process of " + r.server)
	}
	select {
	case <-conns[0].Done():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	start := time.Now()
	r.say("connecting to the others")
	err := each(ctx, len(conns), r.concurrency, func(i int) error {
		select {
		case <-conns[i].Done():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		for try := 0; ; try++ {
			_, err := publish(i, others[(i+try)%len(others)])
			if err == nil {
				r.record(time.Since(start))
				return nil
			}
			if time.Since(start) > time.Minute || !sleep(ctx, 200*time.Millisecond) {
				r.fail(1, err)
				return nil
			}
		}
	})
	r.elapsed = time.Since(start)
	if err != nil {
		return err
	}
	if took, err := r.untilEqual(ctx, others); err != nil {
		r.fail(1, err)
	} else {
		r.equal = new(float64(took.Microseconds()) / 1000)
	}
	// What the dead node left behind goes only now.
	r.say(fmt.Sprintf("watching for %v", r.duration))
	if !sleep(ctx, r.duration) {
		return context.Cause(ctx)
	}
	r.removals = new(removals.Load())
	// What was removed and pushed may be back; what is there now is asked for.
	for _, addr := range others {
		c, err := r.dial(ctx, addr, nil)
		if err != nil {
			return err
		}
		for s := range services {
			answer, err := c.Request(ctx, nacos.TypeServiceQueryRequest, append(appendRef(nil, service(s*failoverEach)), `,"cluster":"","healthyOnly":false,"udpPort":0,"module":"naming"}`...))
			if err != nil {
				return err
			}
			if _, _, n := listOf(answer.Body, failoverName); n != want(s) {
				r.fail(1, fmt.Errorf("%s shows %d instances of %s instead of %d", addr, n, service(s*failoverEach), want(s)))
			}
		}
	}
	return nil
}

// listOf tells of which of the services with that prefix a list is (-1: none),
// how many instances are in it, and how many of them are healthy.
func listOf(body []byte, prefix string) (service, hosts, healthy int) {
	_, digits, ok := bytes.Cut(body, []byte(prefix))
	if !ok {
		return -1, 0, 0
	}
	end := slices.IndexFunc(digits, func(b byte) bool { return b < '0' || b > '9' })
	service, err := strconv.Atoi(string(digits[:max(0, end)]))
	if err != nil {
		return -1, 0, 0
	}
	return service, bytes.Count(body, []byte(`"healthy":`)), bytes.Count(body, []byte(`"healthy":true`))
}
