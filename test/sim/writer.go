package sim

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
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/starling-registry/starling/pkg/client/wire"
	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/test/simnet"
)

// What a write may take (design §8), and what is granted on top for the way.
const (
	limitGRPC     = 2500 * time.Millisecond
	limitHTTP     = 10 * time.Second
	limitNoQuorum = 2 * time.Second
	writeSlack    = 700 * time.Millisecond
	// aloneTime is after how long a node must know that it is alone.
	aloneTime = 15 * time.Second
)

// shopIP is where the persistent instances are said to be: at even ports
// somebody listens there, at odd ones nobody.
const (
	shopIP   = "10.0.4.1"
	shopPort = 9000
	editPort = 9100
)

// Services of the writers, and of instances that nobody looks after (event
// visit).
const (
	lastingService  = "lasting"
	editedService   = "edited"
	visitorsService = "visitors"
	visitors        = 900 // the first instance of them
)

// A writer writes what must survive, at one node after the other, over gRPC and
// HTTP: the operators and their tools, and clients with persistent instances.
// Each value is written once in a run, so that who reads it knows where it is
// from. Writers share their keys but for the edits, of which each has its own.
type writer struct {
	c    *Cluster
	id   int
	host *simnet.Host
	web  *http.Client

	// Of its goroutine.
	rand   *rand.Rand
	conn   *wire.Conn // to a process of a node
	at     int
	run    int
	edited bool // its instance for edits is registered
}

func (c *Cluster) newWriter(id int) *writer {
	w := &writer{c: c, id: id, host: c.net.Host(fmt.Sprint("writer", id), fmt.Sprintf("10.0.3.%d", id+1)), rand: rand.New(rand.NewPCG(c.opts.Seed, uint64(1000+id)))}
	w.web = &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) { return w.host.Dial(ctx, addr) }}}
	return w
}

// operator is the writer that a schedule tells what to do.
func (c *Cluster) operator() *writer { return c.writers[len(c.writers)-1] }

// openShop listens where half of the persistent instances are.
func (c *Cluster) openShop() {
	c.shop = c.net.Host("shop", shopIP)
	for _, port := range []int{shopPort, shopPort + 2, shopPort + 4, editPort, editPort + 2} {
		l, err := c.shop.Listen("tcp", net.JoinHostPort(shopIP, strconv.Itoa(port)))
		if err != nil {
			c.check.fail("harness", "%v", err)
			return
		}
		context.AfterFunc(c.ctx, func() { l.Close() })
		c.wg.Go(func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				conn.Close()
			}
		})
	}
}

// pause reports false when there is nothing to do any more.
func (w *writer) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-w.c.ctx.Done():
	}
	return !w.c.ledger.ended()
}

// writes is the life of a writer.
func (w *writer) writes() {
	defer w.close()
	for {
		d := time.Second + time.Duration(w.rand.Int64N(int64(3*time.Second)))
		if w.c.storms() {
			d = time.Duration(w.rand.Int64N(int64(100 * time.Millisecond)))
		}
		if !w.pause(d) {
			return
		}
		n := w.anyNode()
		if n == nil {
			continue
		}
		o := op{node: n.id, value: w.c.ledger.value()}
		switch x := w.rand.IntN(10); {
		case x < 4:
			o.key = key{instanceKey, w.rand.IntN(instanceKeys)}
			o.what = []what{put, put, remove}[w.rand.IntN(3)]
		case x < 8:
			o.key = key{serviceKey, w.rand.IntN(serviceKeys)}
			o.what = []what{create, create, remove, put}[w.rand.IntN(4)]
		default:
			o.key, o.what = key{editKey, w.id}, put
			if !w.edited {
				// Without its instance an edit is there and not seen.
				way := w.edits(n, 0, http.MethodPost)
				w.edited = way.outcome == acked
				continue
			}
		}
		if w.c.ledger.murky(o.key) {
			continue
		}
		w.write(n, o)
	}
}

// anyNode is one that should answer, or nil.
func (w *writer) anyNode() *Node {
	for _, i := range w.rand.Perm(len(w.c.nodes)) {
		if up, frozen, _ := w.c.nodes[i].state(); up && !frozen {
			return w.c.nodes[i]
		}
	}
	return nil
}

// write does one thing, keeps what came of it, and judges how long it took.
func (w *writer) write(n *Node, o op) outcome {
	_, _, run := n.state()
	freezes := n.frozenSoFar()
	began := w.c.check.aloneFor(n.id)
	o.call = w.c.now()
	var a answer
	limit := limitHTTP
	switch o.key.kind {
	case instanceKey:
		if w.rand.IntN(2) == 0 {
			limit = limitGRPC
			a = w.overGRPC(n, o)
		} else {
			a = w.overHTTP(n, o)
		}
	case serviceKey:
		a = w.describes(n, o)
	case editKey:
		a = w.edits(n, o.value, http.MethodPut)
	}
	o.ret, o.outcome = w.c.now(), a.outcome
	w.c.ledger.add(o)
	took := o.ret - o.call
	w.c.hist.log("writer%d: %v at node%d: %v after %.3f s (%s)", w.id, o, n.id, o.outcome, took.Seconds(), a.text)
	up, frozen, runs := n.state()
	if !up || frozen || run != runs || freezes != n.frozenSoFar() || n.leaving() {
		return a.outcome
	}
	alone := began > aloneTime && w.c.check.aloneFor(n.id) > aloneTime
	switch {
	case alone && a.outcome == acked:
		w.c.check.fail("lost", "node%d has been alone for %.1f s and takes a write: %v", n.id, began.Seconds(), o)
	case alone && (took > limitNoQuorum+writeSlack || a.reached && a.outcome != refused && !strings.Contains(a.text, nacos.NoLeader)):
		w.c.check.fail("slow", "node%d has been alone for %.1f s and answers a write after %.3f s: %s (%v)", n.id, began.Seconds(), took.Seconds(), a.text, o)
	case took > limit+writeSlack:
		w.c.check.fail("slow", "node%d answers a write after %.3f s, %v are allowed: %s (%v)", n.id, took.Seconds(), limit, a.text, o)
	}
	return a.outcome
}

// An answer is what a node said to a write.
type answer struct {
	outcome outcome
	reached bool // it did say something
	text    string
}

// judge reads what a refusal says about what is in the log.
func judge(text string, known bool) answer {
	a := answer{unknown, true, text}
	switch {
	case strings.Contains(text, nacos.NoLeader):
		a.outcome = nothing
	case known && !strings.Contains(text, "it is not known whether"):
		a.outcome = refused
	}
	return a
}

func (w *writer) overGRPC(n *Node, o op) answer {
	_, _, run := n.state()
	if w.conn == nil || w.at != n.id || w.run != run || w.conn.Err() != nil {
		w.close()
		ctx, cancel := context.WithTimeout(w.c.ctx, 2*time.Second)
		defer cancel()
		conn, err := wire.Dial(ctx, wire.Options{Addr: net.JoinHostPort(n.addr(), strconv.Itoa(port)), Version: Java.version(),
			HealthCheckAfter: 1000 * time.Hour, DialContext: w.host.Dial})
		if err != nil {
			return answer{nothing, false, err.Error()}
		}
		w.conn, w.at, w.run = conn, n.id, run
	}
	typ := nacos.OpRegister
	if o.what == remove {
		typ = nacos.OpDeregister
	}
	body, err := json.Marshal(map[string]any{"namespace": "public", "groupName": "DEFAULT_GROUP", "serviceName": lastingService, "type": typ,
		"instance": map[string]any{"ip": shopIP, "port": shopPort + o.key.n, "weight": weightOf(o.value), "healthy": true, "enabled": true, "ephemeral": false,
			"clusterName": "DEFAULT", "serviceName": lastingService, "metadata": map[string]string{"value": strconv.Itoa(o.value)}}})
	if err != nil {
		return answer{nothing, false, err.Error()}
	}
	_, err = w.conn.Request(w.c.ctx, nacos.TypePersistentInstanceRequest, body)
	if err == nil {
		return answer{acked, true, "ok"}
	}
	if r, ok := errors.AsType[*wire.Error](err); ok {
		return judge(r.Message, r.Code != nacos.CodeServerError)
	}
	return answer{unknown, false, err.Error()}
}

func (w *writer) overHTTP(n *Node, o op) answer {
	q := url.Values{"serviceName": {lastingService}, "ip": {shopIP}, "port": {strconv.Itoa(shopPort + o.key.n)}, "ephemeral": {"false"},
		"weight": {strconv.Itoa(weightOf(o.value))}, "metadata": {fmt.Sprintf(`{"value":"%d"}`, o.value)}}
	method := http.MethodPost
	if o.what == remove {
		method = http.MethodDelete
	}
	return w.ask(n, method, "/nacos/v1/ns/instance?"+q.Encode())
}

func (w *writer) describes(n *Node, o op) answer {
	q := url.Values{"serviceName": {o.key.service()}, "protectThreshold": {"0"}, "metadata": {fmt.Sprintf(`{"value":"%d"}`, o.value)}}
	method := map[what]string{create: http.MethodPost, put: http.MethodPut, remove: http.MethodDelete}[o.what]
	return w.ask(n, method, "/nacos/v1/ns/service?"+q.Encode())
}

// edits registers the instance for edits or edits it.
func (w *writer) edits(n *Node, value int, method string) answer {
	q := url.Values{"serviceName": {editedService}, "ip": {shopIP}, "port": {strconv.Itoa(editPort + w.id)}, "ephemeral": {"false"}}
	if method == http.MethodPut {
		q.Set("metadata", fmt.Sprintf(`{"value":"%d"}`, value))
		q.Set("weight", strconv.Itoa(weightOf(value)))
	}
	return w.ask(n, method, "/nacos/v1/ns/instance?"+q.Encode())
}

// weightOf goes with a value, so that a reader sees whether both are of the
// same write.
func weightOf(value int) int { return 1 + value%7 }

// ask writes over HTTP. It waits longer than a node may need.
func (w *writer) ask(n *Node, method, path string) answer {
	status, body, err := w.do(n, method, path, limitHTTP+5*time.Second)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return answer{nothing, false, err.Error()}
	case err != nil:
		return answer{unknown, false, err.Error()}
	case status == http.StatusOK:
		return answer{acked, true, "ok"}
	}
	return judge(fmt.Sprintf("%d %s", status, body), status < 500 || status == http.StatusServiceUnavailable)
}

func (w *writer) do(n *Node, method, path string, limit time.Duration) (status int, body string, err error) {
	return w.send(n, method, path, "", limit)
}

// send is do with JSON, unless that is "".
func (w *writer) send(n *Node, method, path, with string, limit time.Duration) (status int, body string, err error) {
	ctx, cancel := context.WithTimeout(w.c.ctx, limit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, fmt.Sprintf("http://%s:%d%s", n.addr(), port, path), strings.NewReader(with))
	if err != nil {
		return 0, "", err
	}
	if with != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := w.web.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

func (w *writer) close() {
	if w.conn != nil {
		w.conn.Close()
		w.conn = nil
	}
}

// list asks a node for the instances of a service: port → value and weight.
func (w *writer) list(n *Node, service string) (map[int]shownHost, error) {
	status, body, err := w.do(n, http.MethodGet, "/nacos/v1/ns/instance/list?serviceName="+service, 5*time.Second)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("the list of %s: %d %s", service, status, body)
	}
	if err != nil {
		return nil, err
	}
	var m struct {
		Hosts []struct {
			Port     int               `json:"port"`
			Weight   float64           `json:"weight"`
			Metadata map[string]string `json:"metadata"`
		} `json:"hosts"`
	}
	if err := json.Unmarshal([]byte(body), &m); err != nil {
		return nil, err
	}
	all := map[int]shownHost{}
	for _, h := range m.Hosts {
		all[h.Port] = shownHost{number(h.Metadata["value"]), h.Weight}
	}
	return all, nil
}

type shownHost struct {
	value  int
	weight float64
}

// reads gives what a node has of all keys; 0 is nothing.
func (w *writer) reads(n *Node) (map[key]int, error) {
	all := map[key]int{}
	for _, of := range []struct {
		kind    keyKind
		service string
		first   int
		n       int
	}{{instanceKey, lastingService, shopPort, instanceKeys}, {editKey, editedService, editPort, editKeys}} {
		hosts, err := w.list(n, of.service)
		if err != nil {
			return nil, err
		}
		for i := range of.n {
			h := hosts[of.first+i]
			all[key{of.kind, i}] = h.value
			if h.value != 0 && h.weight != float64(weightOf(h.value)) {
				w.c.check.fail("order", "node%d shows %v with the value %d and the weight %v: not of one write", n.id, key{of.kind, i}, h.value, h.weight)
			}
		}
	}
	for i := range serviceKeys {
		k := key{serviceKey, i}
		status, body, err := w.do(n, http.MethodGet, "/nacos/v1/ns/service?serviceName="+k.service(), 5*time.Second)
		if err != nil {
			return nil, err
		}
		if status == http.StatusServiceUnavailable {
			return nil, errors.New(body)
		}
		var m struct {
			Metadata map[string]string `json:"metadata"`
		}
		if status == http.StatusOK {
			if err := json.Unmarshal([]byte(body), &m); err != nil {
				return nil, err
			}
		}
		all[k] = number(m.Metadata["value"])
	}
	return all, nil
}

// A logView is what a node says of the log.
type logView struct {
	Node    string `json:"node"`
	Role    string `json:"role"`
	Leader  string `json:"leader"`
	Term    uint64 `json:"term"`
	Applied uint64 `json:"applied"`
	Digest  string `json:"digest"`
	Servers []struct {
		ID    string `json:"id"`
		Voter bool   `json:"voter"`
	} `json:"servers"`
}

func (w *writer) log(n *Node) (v logView, err error) {
	status, body, err := w.do(n, http.MethodGet, "/starling/v1/raft", 3*time.Second)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%d %s", status, body)
	}
	if err == nil {
		err = json.Unmarshal([]byte(body), &v)
	}
	return v, err
}

// leader is the node that says it leads; of several, which cannot know of each
// other, the one with the highest term. nil: none does.
func (w *writer) leader() (leads *Node) {
	var term uint64
	for _, n := range w.c.nodes {
		if up, frozen, _ := n.state(); !up || frozen {
			continue
		}
		if v, err := w.log(n); err == nil && v.Role == "leader" && v.Term > term {
			leads, term = n, v.Term
		}
	}
	return leads
}

// audits reads, as long as there are writers. At the leader the reads are as
// good as writes: where a node has carried out a write of ours itself, and led
// all the time, what it shows is not older than this write. Elsewhere reads
// may be old (semantics R6), and only must not go back.
func (w *writer) audits() {
	defer w.close()
	own := key{instanceKey, instanceKeys - 1} // the writers write it too
	for w.pause(3*time.Second + time.Duration(w.rand.Int64N(int64(time.Second)))) {
		if n := w.anyNode(); n != nil {
			w.looks(n)
		}
		n := w.leader()
		if n == nil || w.c.ledger.murky(own) {
			continue
		}
		before, err := w.log(n)
		if err != nil || before.Role != "leader" {
			continue
		}
		call := w.c.now()
		if w.write(n, op{key: own, what: put, value: w.c.ledger.value(), node: n.id}) != acked {
			continue
		}
		all, err := w.reads(n)
		if err != nil {
			continue
		}
		ret := w.c.now()
		if after, err := w.log(n); err != nil || after.Role != "leader" || after.Term != before.Term {
			continue
		}
		w.c.ledger.read(n.id, all, call, ret)
	}
}

// looks reads at any node, and compares with what this process has shown.
func (w *writer) looks(n *Node) {
	_, _, run := n.state()
	all, err := w.reads(n)
	if _, _, now := n.state(); err == nil && run == now {
		w.c.ledger.looked(n.id, run, all)
	}
}
