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

// verifiedGroup is where witnesses register what does not change, pulseGroup
// what does. Attackers publish elsewhere.
const (
	verifiedGroup = "DEFAULT_GROUP"
	pulseGroup    = "PULSE"
)

func groupOf(service string) string {
	if service == crowdService || service == beatsService {
		return verifiedGroup
	}
	return pulseGroup
}

const (
	crowdService  = "witness-crowd" // everybody's, unchanged
	beatsService  = "witness-beats" // one that beats over HTTP, at a node after the other
	crowdOfEach   = 5
	lagLimit      = 3 * time.Second // until a number is seen everywhere
	witnessPeriod = 250 * time.Millisecond
)

func pulseService(node int) string { return fmt.Sprintf("witness-%d", node) }

// Witnesses are providers and consumers of a cluster: at each node a client
// that publishes a crowd which never changes and a number which grows, and one
// that subscribes to the crowd and all numbers, and queries them. None of them
// may lose its connection or ever see an instance missing, a number going
// back, or one that is older than lagLimit.
type witnesses struct {
	nodes []*server
	stop  context.CancelFunc
	wg    sync.WaitGroup
	web   *http.Client

	mu          sync.Mutex
	registered  [3]map[int]time.Time // when each number was answered
	newest      [3]int
	seen        [3][3]int // the newest that the consumer at a node saw of a provider
	errs        []string
	query, push time.Duration // the worst since the last report
}

func startWitnesses(nodes []*server) (*witnesses, error) {
	ctx, cancel := context.WithCancel(context.Background())
	w := &witnesses{nodes: nodes, stop: cancel, web: &http.Client{Timeout: 5 * time.Second}}
	for i := range w.registered {
		w.registered[i] = map[int]time.Time{}
	}
	for i := range nodes {
		if err := w.provide(ctx, i); err != nil {
			return nil, errors.Join(err, w.close())
		}
	}
	if err := w.beat(0, http.MethodPost, "/nacos/v1/ns/instance"); err != nil {
		return nil, errors.Join(err, w.close())
	}
	time.Sleep(500 * time.Millisecond) // everything is everywhere
	for i := range nodes {
		if err := w.consume(ctx, i); err != nil {
			return nil, errors.Join(err, w.close())
		}
	}
	w.wg.Go(func() {
		n := 0
		w.every(ctx, time.Second, func() {
			n++
			if err := w.beat(n%len(nodes), http.MethodPut, "/nacos/v1/ns/instance/beat"); err != nil {
				w.complain("beat: %v", err)
			}
		})
	})
	return w, nil
}

func (w *witnesses) close() error {
	w.stop()
	w.wg.Wait()
	w.web.CloseIdleConnections()
	return nil
}

func (w *witnesses) report() (errs []string, query, push time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	errs, query, push = w.errs, w.query, w.push
	w.errs, w.query, w.push = nil, 0, 0
	return errs, query, push
}

func (w *witnesses) complain(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.errs) < 20 {
		w.errs = append(w.errs, fmt.Sprintf(format, args...))
	}
}

func (w *witnesses) every(ctx context.Context, period time.Duration, f func()) {
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

func (w *witnesses) provide(ctx context.Context, node int) error {
	c, err := connect(w.nodes[node].grpc(), manners{})
	if err != nil {
		return err
	}
	crowd := many(crowdOfEach, "")
	crowd = []byte(strings.ReplaceAll(string(crowd), `"10.0.0.`, fmt.Sprintf(`"10.254.%d.`, node)))
	next := func() error {
		w.mu.Lock()
		n := w.newest[node] + 1
		w.mu.Unlock()
		err := must(c.call(nacos.TypeInstanceRequest, register(pulseService(node), inst(fmt.Sprintf("10.255.1.%d", node), 80).with("metadata", object{"n": fmt.Sprint(n)})).with("groupName", pulseGroup)))
		if err == nil {
			w.mu.Lock()
			w.newest[node], w.registered[node][n] = n, time.Now()
			delete(w.registered[node], n-100)
			w.mu.Unlock()
		}
		return err
	}
	if err := errors.Join(must(c.batch(crowdService, crowd)), next()); err != nil {
		c.close()
		return err
	}
	w.wg.Go(func() {
		defer c.close()
		w.every(ctx, 2*witnessPeriod, func() {
			if err := next(); err != nil {
				w.complain("provider at node %d: %v", node, err)
			}
		})
	})
	return nil
}

func (w *witnesses) consume(ctx context.Context, node int) error {
	c, err := connect(w.nodes[node].grpc(), manners{received: func(typ string, body []byte) {
		if typ != nacos.TypeNotifySubscriberRequest {
			return
		}
		var push struct{ ServiceInfo map[string]any }
		err := json.Unmarshal(body, &push)
		if err == nil {
			name, _ := push.ServiceInfo["name"].(string)
			if _, after, ok := strings.Cut(name, "@@"); ok {
				name = after
			}
			err = w.right(node, name, push.ServiceInfo, true)
		}
		if err != nil {
			w.complain("push at node %d: %v", node, err)
		}
	}})
	if err != nil {
		return err
	}
	services := []string{crowdService, beatsService}
	for i := range w.nodes {
		services = append(services, pulseService(i))
	}
	for _, s := range services {
		if err := must(c.call(nacos.TypeSubscribeServiceRequest, object{"namespace": "public", "serviceName": s, "groupName": groupOf(s), "subscribe": true})); err != nil {
			c.close()
			return err
		}
	}
	w.wg.Go(func() {
		defer c.close()
		turn := 0
		told := false
		w.every(ctx, witnessPeriod, func() {
			turn++
			s := services[turn%len(services)]
			start := time.Now()
			a, err := c.call(nacos.TypeServiceQueryRequest, object{"namespace": "public", "serviceName": s, "groupName": groupOf(s)})
			took := time.Since(start)
			if err == nil && !a.ok() {
				err = errors.New(a.String())
			}
			if err == nil {
				info, _ := a.body["serviceInfo"].(map[string]any)
				err = w.right(node, s, info, false)
			}
			if err == nil && took > queryLimit {
				err = fmt.Errorf("took %v", took)
			}
			w.mu.Lock()
			w.query = max(w.query, took)
			w.mu.Unlock()
			if err != nil {
				w.complain("query of %s at node %d: %v", s, node, err)
			}
			select {
			case <-c.ended:
				if !told {
					w.complain("the connection to node %d was closed: %v", node, c.err)
				}
				told = true
			default:
			}
		})
	})
	return nil
}

// right checks what a consumer sees of a service.
func (w *witnesses) right(node int, service string, info map[string]any, pushed bool) error {
	hosts := (&answer{body: map[string]any{"serviceInfo": info}}).hosts()
	want := 1
	if service == crowdService {
		want = crowdOfEach * len(w.nodes)
	}
	healthy := 0
	for _, h := range hosts {
		if h, ok := h.(map[string]any); ok && h["healthy"] == true {
			healthy++
		}
	}
	if len(hosts) != want || healthy != want {
		return fmt.Errorf("%d instances of %s, %d of them healthy, want %d", len(hosts), service, healthy, want)
	}
	for of := range w.nodes {
		if service != pulseService(of) {
			continue
		}
		host, _ := hosts[0].(map[string]any)
		md, _ := host["metadata"].(map[string]any)
		var n int
		if _, err := fmt.Sscan(fmt.Sprint(md["n"]), &n); err != nil {
			return fmt.Errorf("wrong instance %s", clip(fmt.Sprint(host)))
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		// A push may overtake a query's answer, but no push another.
		if was := w.seen[node][of]; n < was && pushed {
			return fmt.Errorf("number %d of node %d after %d", n, of, was)
		}
		if since, ok := w.registered[of][n]; ok && pushed && n > w.seen[node][of] {
			w.push = max(w.push, time.Since(since))
		}
		w.seen[node][of] = max(w.seen[node][of], n)
		if next, ok := w.registered[of][n+1]; ok && time.Since(next) > lagLimit {
			return fmt.Errorf("still number %d of node %d, a newer one was registered %v ago", n, of, time.Since(next).Round(time.Millisecond))
		}
	}
	return nil
}

func (w *witnesses) beat(node int, method, path string) error {
	q := url.Values{"serviceName": {beatsService}, "ip": {"10.255.1.9"}, "port": {"80"}}
	req, err := http.NewRequest(method, "http://"+w.nodes[node].http()+path+"?"+q.Encode(), nil)
	if err != nil {
		return err
	}
	res, err := w.web.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s at node %d: %s", method, path, node, res.Status)
	}
	return nil
}
