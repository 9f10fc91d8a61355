package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-registry/starling/pkg/client/wire"
	"github.com/starling-registry/starling/pkg/nacos"
)

// noLeaderText is what clients of Nacos look for (semantics R8). Nothing was
// written then.
const noLeaderText = "did not find the Leader node"

// Instances are in these services, which are made before; each service with
// settings is one of its own.
const services = 40

func serviceName(i int) string { return "kept-" + strconv.Itoa(i%services) }

// Keys of a ledger: an instance is service/ip:port and its value the metadata
// "n"; the settings of a service are its name and the value its metadata "n".

// A writer is one client. It goes to the next node when one does not answer, as
// SDKs do, and repeats no write.
type writer struct {
	c    *cluster
	l    *ledger
	at   int // node
	web  *http.Client
	conn *wire.Conn // nil: not connected; HTTP writers never are
	grpc bool
}

func newWriter(c *cluster, l *ledger, at int, grpc bool) *writer {
	// A write may take 10 s over HTTP.
	return &writer{c: c, l: l, at: at % len(c.nodes), grpc: grpc, web: &http.Client{Timeout: 12 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 1}}}
}

func (w *writer) close() {
	w.web.CloseIdleConnections()
	if w.conn != nil {
		w.conn.Close()
	}
}

// next goes to another node.
func (w *writer) next() {
	w.at = (w.at + 1) % len(w.c.nodes)
	if w.conn != nil {
		w.conn.Close()
		w.conn = nil
	}
	time.Sleep(20 * time.Millisecond)
}

// connected dials until a node takes the connection.
func (w *writer) connected(ctx context.Context) error {
	for w.conn == nil {
		var err error
		dialling, cancel := context.WithTimeout(ctx, 3*time.Second)
		w.conn, err = wire.Dial(dialling, wire.Options{Addr: w.c.nodes[w.at].http()})
		cancel()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			w.conn = nil
			w.next()
		}
	}
	return nil
}

// request makes one HTTP request that writes.
func (w *writer) request(ctx context.Context, method, path string, q url.Values) (outcome, string) {
	r, err := http.NewRequestWithContext(ctx, method, "http://"+w.c.nodes[w.at].http()+path, strings.NewReader(q.Encode()))
	if err == nil && method == "DELETE" { // parameters of a body are not read
		r, err = http.NewRequestWithContext(ctx, method, "http://"+w.c.nodes[w.at].http()+path+"?"+q.Encode(), nil)
	}
	if err != nil {
		return refused, err.Error()
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := w.web.Do(r)
	if err != nil {
		w.next()
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
			return refused, "connection refused"
		}
		return unknown, "the node did not answer"
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		w.next()
		return unknown, "the node did not answer"
	}
	text := string(body)
	switch {
	case res.StatusCode == http.StatusOK && (text == "ok" || strings.HasPrefix(text, `{"code":0,`)):
		return acknowledged, ""
	case res.StatusCode < 500 || strings.Contains(text, noLeaderText):
		return refused, text
	case strings.Contains(text, "server is DOWN now"):
		w.next()
		return refused, text
	}
	w.next()
	return unknown, reason(text)
}

// reason is the constant part of a text, for counting.
func reason(text string) string {
	if found := strings.Contains(text, "it is not known whether"); found {
		return "the node did not know"
	}
	return clip(text)
}

// instance registers or deregisters a persistent instance.
func (w *writer) instance(ctx context.Context, service, ip string, port int, value string) (outcome, string) {
	if w.grpc {
		if err := w.connected(ctx); err != nil {
			return refused, err.Error()
		}
		i := map[string]any{"ip": ip, "port": port, "weight": 1, "healthy": true, "enabled": true, "ephemeral": false, "clusterName": "DEFAULT",
			"metadata": map[string]string{"n": value}}
		op := nacos.OpRegister
		if value == absent {
			op = nacos.OpDeregister
		}
		body, err := json.Marshal(map[string]any{"headers": struct{}{}, "namespace": "public", "serviceName": service, "groupName": "DEFAULT_GROUP",
			"module": "naming", "type": op, "instance": i})
		if err != nil {
			return refused, err.Error()
		}
		limit, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_, err = w.conn.Request(limit, nacos.TypePersistentInstanceRequest, body)
		no, is := errors.AsType[*wire.Error](err)
		switch {
		case err == nil:
			return acknowledged, ""
		case is && (no.Code == nacos.CodeInvalidParam || strings.Contains(no.Message, noLeaderText)):
			return refused, no.Message
		case is:
			w.next()
			return unknown, reason(no.Message)
		}
		w.next()
		return unknown, "the node did not answer"
	}
	q := url.Values{"serviceName": {service}, "ip": {ip}, "port": {strconv.Itoa(port)}, "ephemeral": {"false"}}
	if value == absent {
		return w.request(ctx, "DELETE", "/nacos/v1/ns/instance", q)
	}
	q.Set("metadata", `{"n":"`+value+`"}`)
	return w.request(ctx, "POST", "/nacos/v1/ns/instance", q)
}

// settings makes a service with metadata, over HTTP.
func (w *writer) settings(ctx context.Context, service, value string) (outcome, string) {
	return w.request(ctx, "POST", "/nacos/v1/ns/service", url.Values{"serviceName": {service}, "metadata": {`{"n":"` + value + `"}`}})
}

// put writes an instance and notes what came of it.
func (w *writer) put(ctx context.Context, service, ip string, port int, value string) outcome {
	o, why := w.instance(ctx, service, ip, port, value)
	w.l.wrote(service+"/"+net.JoinHostPort(ip, strconv.Itoa(port)), value, o, why)
	return o
}

// prepare makes the services that instances are in. Nobody probes them: there
// is nothing at their addresses.
func prepare(ctx context.Context, c *cluster, l *ledger) error {
	w := newWriter(c, l, 0, false)
	defer w.close()
	for i := range services {
		name := serviceName(i)
		// A leader may go at any time.
		if err := until(ctx, 20*time.Second, func() error {
			o, why := w.settings(ctx, name, "service")
			if o != acknowledged && !strings.Contains(why, "already exists") {
				return fmt.Errorf("create service %s: %s", name, why)
			}
			return nil
		}); err != nil {
			return err
		}
		if err := until(ctx, 20*time.Second, func() error {
			o, why := w.request(ctx, "PUT", "/nacos/v1/ns/cluster", url.Values{"serviceName": {name}, "clusterName": {"DEFAULT"}, "checkPort": {"80"},
				"useInstancePort4Check": {"true"}, "healthChecker": {`{"type":"none"}`}})
			if o != acknowledged {
				return fmt.Errorf("set the checker of %s: %s", name, why)
			}
			return nil
		}); err != nil {
			return err
		}
		l.wrote(name, "service", acknowledged, "")
	}
	l.rest()
	return nil
}

// A load is many writes of many clients at once.
type load struct {
	clients int
	writes  int // all together
	from    int // number of the first write: it makes the address
	// keys bounds how many instances there are: writes beyond change those
	// that are there. 0: each write is of one of its own, a tenth are of services,
	// and some are invalid.
	keys int

	left atomic.Int64 // to begin
	wg   sync.WaitGroup
}

// begin starts the clients, which end when all writes are done.
func (ld *load) begin(ctx context.Context, c *cluster, l *ledger) {
	var next atomic.Int64
	next.Store(int64(ld.from))
	ld.left.Store(int64(ld.writes))
	for i := range ld.clients {
		ld.wg.Go(func() {
			w := newWriter(c, l, i, i%3 == 2)
			defer w.close()
			for turn := 0; ld.left.Add(-1) >= 0 && ctx.Err() == nil; turn++ {
				n := int(next.Add(1)) - 1
				if ld.keys > 0 {
					mine := i + ld.clients*(turn%max(1, ld.keys/ld.clients))
					w.put(ctx, serviceName(mine), address(mine), 1000, strconv.Itoa(n))
					continue
				}
				service, value := serviceName(n), strconv.Itoa(n)
				switch n % 50 {
				case 3, 13, 23, 33, 43:
					o, why := w.settings(ctx, "set-"+value, value)
					l.wrote("set-"+value, value, o, why)
				case 7: // refused for what it is
					o, why := w.request(ctx, "POST", "/nacos/v1/ns/instance", url.Values{"serviceName": {service}, "ip": {address(n)}, "port": {"2000"}, "ephemeral": {"false"}, "weight": {"-1"}})
					l.wrote(service+"/"+net.JoinHostPort(address(n), "2000"), "", o, why)
				case 9, 29: // one that goes again
					if w.put(ctx, service, address(n), 1000, value) == acknowledged {
						w.put(ctx, service, address(n), 1000, absent)
					}
				default:
					w.put(ctx, service, address(n), 1000, value)
				}
			}
		})
	}
}

func (ld *load) wait() { ld.wg.Wait() }

func address(n int) string { return fmt.Sprintf("10.%d.%d.%d", n>>16&255, n>>8&255, n&255) }

// rows asks a node for everything that a ledger knows of, and for all instances
// of its services.
func rows(ctx context.Context, n *node, l *ledger) (map[string]string, error) {
	asker := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 8}}
	defer asker.CloseIdleConnections()
	fetch := func(path, service string, v any) (bool, error) {
		r, err := http.NewRequestWithContext(ctx, "GET", "http://"+n.http()+path+"?serviceName="+url.QueryEscape(service), nil)
		if err != nil {
			return false, err
		}
		res, err := asker.Do(r)
		if err != nil {
			return false, err
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			return false, err
		}
		if res.StatusCode != http.StatusOK {
			if strings.Contains(string(body), "not found") {
				return false, nil
			}
			return false, fmt.Errorf("node %s: GET %s %s: status %d: %s", n.name, path, service, res.StatusCode, clip(string(body)))
		}
		if err := json.Unmarshal(body, v); err != nil {
			return false, fmt.Errorf("node %s: GET %s %s: %w: %s", n.name, path, service, err, clip(string(body)))
		}
		return true, nil
	}

	todo := make(chan string)
	var mu sync.Mutex
	has := map[string]string{}
	var errs []error
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for name := range todo {
				var s struct {
					Metadata map[string]string `json:"metadata"`
				}
				there, err := fetch("/nacos/v1/ns/service", name, &s)
				var list struct {
					Hosts []struct {
						IP       string            `json:"ip"`
						Port     int               `json:"port"`
						Metadata map[string]string `json:"metadata"`
						Lasts    bool              `json:"ephemeral"`
					} `json:"hosts"`
				}
				if err == nil && strings.HasPrefix(name, "kept-") {
					_, err = fetch("/nacos/v1/ns/instance/list", name, &list)
				}
				mu.Lock()
				if err != nil {
					errs = append(errs, err)
				}
				if there {
					has[name] = s.Metadata["n"]
				}
				for _, h := range list.Hosts {
					if !h.Lasts {
						has[name+"/"+net.JoinHostPort(h.IP, strconv.Itoa(h.Port))] = h.Metadata["n"]
					}
				}
				mu.Unlock()
			}
		})
	}
	for _, key := range l.keys() {
		if !strings.Contains(key, "/") {
			todo <- key
		}
	}
	close(todo)
	wg.Wait()
	return has, errors.Join(errs...)
}

// judge compares what nodes have with the ledger. They may need a moment.
func judge(ctx context.Context, nodes []*node, l *ledger) error {
	for _, n := range nodes {
		if err := until(ctx, 10*time.Second, func() error {
			has, err := rows(ctx, n, l)
			if err != nil {
				return err
			}
			return l.judge(n.name, has)
		}); err != nil {
			return err
		}
	}
	return nil
}

// fill writes some rows, and they must be acknowledged.
func fill(ctx context.Context, c *cluster, l *ledger, from, writes int) error {
	l.rest()
	ld := &load{clients: 24, writes: writes, from: from}
	ld.begin(ctx, c, l)
	ld.wait()
	if l.counts[unknown] > 0 || l.acked() < writes*9/10 {
		return fmt.Errorf("of %d writes to a cluster that is whole: %v", writes, l)
	}
	return nil
}

// canWrite waits until a write through a node is acknowledged.
func canWrite(ctx context.Context, c *cluster, n *node, l *ledger, within time.Duration) error {
	i := slices.Index(c.nodes, n)
	w := newWriter(c, l, i, false)
	defer w.close()
	return until(ctx, within, func() error {
		w.at = i
		if o := w.put(ctx, serviceName(0), "10.255.0.1", 3000+rand.IntN(20000), "probe"); o != acknowledged {
			return fmt.Errorf("a write through node %s is not acknowledged (%v)", n.name, l)
		}
		return nil
	})
}
