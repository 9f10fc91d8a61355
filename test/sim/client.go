package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/starling-registry/starling/pkg/client/wire"
	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/test/simnet"
)

// A Kind is whose habits a client has.
type Kind uint8

// Kinds of clients (client spec §§5, 6; grpc-protocol §§2.7, 2.9).
const (
	// Java opens the new connection before it closes the old one, and
	// registers again when a task comes by that runs every 3 s. It looks after
	// 5 s of silence whether the server is there, four times for 3 s each: up
	// to 20.5 s until it goes elsewhere.
	Java Kind = iota
	// Go looks once, and registers again at once.
	Go
	// Python goes elsewhere only when its connection ends, does not
	// understand a request to move, and registers again within 30 s.
	Python
	// Beat is an HTTP client: one instance, a beat every 5 s at one node after
	// the other, and a new registration when a node does not know it.
	Beat
)

func (k Kind) String() string { return [...]string{"java", "go", "python", "beat"}[k] }

func (k Kind) version() string {
	return [...]string{"Nacos-Java-Client:v3.0.3", "Nacos-Go-Client:v2.3.5", "Nacos-Python-Client:v3.0.4", "Nacos-Java-Client:v1.4.2"}[k]
}

const serviceName = "orders"

// instances of a client: of client i these are 2i and 2i+1, on its host.
const perClient = 2

// A Client publishes instances and subscribes to their service.
type Client struct {
	c       *Cluster
	id      int
	name    string
	kind    Kind
	listens bool // its instances can be dialled
	host    *simnet.Host
	ctx     context.Context // ends with its process
	die     context.CancelFunc

	reset chan int      // the server asks to move, to that node
	kick  chan struct{} // there is something to publish

	mu         sync.Mutex
	rand       *rand.Rand
	next       int
	alive      bool
	wants      bool // to be registered
	ids        []int
	value      int
	link       *link                 // the newest connection
	node       int                   // where that leads; -1: none yet
	base       int                   // the node that it was last registered at; -1: none yet
	registered bool                  // the node of link has answered that it has what is wanted now
	lostAt     time.Duration         // when that ended
	withdrawn  bool                  // likewise, that it has nothing
	evicted    map[int]time.Duration // instances that an operator keeps out, and since when
	subscribed bool
	pathCutAt  time.Duration // last time when a node was out of its reach
	beatAt     time.Duration // last beat that was answered
	stamp      int64         // newest lastRefTime
	last       view          // newest list
	lastAt     time.Duration
}

// A link is a connection to a node.
type link struct {
	conn   *wire.Conn
	node   int
	run    int // of the node
	active time.Time
	stamp  int64 // newest that came on the stream
}

func (c *Cluster) newClient(id int, kind Kind, listens bool) *Client {
	s := &Client{c: c, id: id, name: fmt.Sprint("client", id), kind: kind, listens: listens,
		host:  c.net.Host(fmt.Sprint("client", id), fmt.Sprintf("10.0.1.%d", id+1)),
		reset: make(chan int, 1), kick: make(chan struct{}, 1),
		rand: rand.New(rand.NewPCG(c.opts.Seed, uint64(id))), next: id, alive: true, wants: true, node: -1, base: -1, pathCutAt: -time.Hour}
	for i := range perClient {
		s.ids = append(s.ids, perClient*id+i)
	}
	if kind == Beat {
		s.ids = s.ids[:1]
	}
	s.ctx, s.die = context.WithCancel(c.ctx)
	return s
}

// start starts its process.
func (s *Client) start() {
	if s.listens {
		for _, i := range s.ids {
			s.listen(i)
		}
	}
	if s.kind == Beat {
		s.c.wg.Go(s.beats)
	} else {
		s.c.wg.Go(s.connects)
		s.c.wg.Go(s.publishes)
	}
}

func (s *Client) ip() string { return fmt.Sprintf("10.0.1.%d", s.id+1) }

// portOf is what distinguishes an instance of a client from the other.
func portOf(instance int) int { return 8000 + instance }

// listen takes connections and hangs up.
func (s *Client) listen(instance int) {
	l, err := s.host.Listen("tcp", net.JoinHostPort(s.ip(), strconv.Itoa(portOf(instance))))
	if err != nil {
		s.c.check.fail("harness", "%v", err)
		return
	}
	context.AfterFunc(s.ctx, func() { l.Close() })
	s.c.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	})
}

// jitter is up to d.
func (s *Client) jitter(d time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Duration(s.rand.Int64N(int64(d)))
}

func (s *Client) log(format string, args ...any) {
	s.c.hist.log("%s %s: %s", s.kind, s.name, fmt.Sprintf(format, args...))
}

// pause waits, and reports false when the client is dead.
func (s *Client) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// connects keeps a connection.
func (s *Client) connects() {
	hint, rounds := -1, 0
	for s.ctx.Err() == nil {
		s.mu.Lock()
		n := s.next % len(s.c.nodes)
		s.next++
		s.mu.Unlock()
		if hint >= 0 { // tried once
			n, hint = hint, -1
		}
		l, err := s.connect(n)
		if err != nil {
			rounds++
			if !s.pause(min(time.Duration(rounds/len(s.c.nodes)+1), 50) * 100 * time.Millisecond) {
				break
			}
			continue
		}
		rounds = 0
		s.mu.Lock()
		old := s.link
		if s.registered {
			s.lostAt = s.c.now()
		}
		s.link, s.node, s.registered, s.withdrawn, s.subscribed = l, n, false, false, false
		s.mu.Unlock()
		s.log("connected to node%d", n)
		if old != nil {
			old.conn.Close()
		}
		if s.kind == Go {
			s.wake()
		}
		hint = s.watch(l)
	}
	s.mu.Lock()
	l := s.link
	s.mu.Unlock()
	if l != nil {
		l.conn.Close()
	}
}

func (s *Client) connect(n int) (*link, error) {
	l := &link{node: n, active: time.Now()}
	_, _, l.run = s.c.nodes[n].state()
	floor := s.newest()
	ctx, cancel := context.WithTimeout(s.ctx, 8*time.Second)
	defer cancel()
	conn, err := wire.Dial(ctx, wire.Options{
		Addr: net.JoinHostPort(s.c.nodes[n].addr(), strconv.Itoa(port)), Version: s.kind.version(),
		HealthCheckAfter: 1000 * time.Hour, // see watch
		DialContext:      s.host.Dial,
		Push:             func(p *nacos.Payload) error { return s.pushed(l, floor, p) },
		Reset: func(host string, _ int) {
			if s.kind == Python {
				return
			}
			to := -1
			for _, n := range s.c.nodes {
				if n.addr() == host {
					to = n.id
				}
			}
			select {
			case s.reset <- to:
			default:
			}
		},
	})
	l.conn = conn
	return l, err
}

// watch returns when the connection is to be replaced: with the node that the
// server proposes, or -1.
func (s *Client) watch(l *link) int {
	t := time.NewTicker(5 * time.Second)
	defer t.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return -1
		case <-l.conn.Done():
			if s.ctx.Err() == nil {
				s.log("lost node%d: %v", l.node, l.conn.Err())
			}
			return -1
		case to := <-s.reset:
			s.log("is asked by node%d to move to node%d", l.node, to)
			return to
		case <-t.C:
			s.mu.Lock()
			idle := time.Since(l.active)
			s.mu.Unlock()
			if s.kind != Python && idle >= 5*time.Second && !s.healthy(l) {
				s.log("finds node%d silent", l.node)
				return -1
			}
		}
	}
}

func (s *Client) healthy(l *link) bool {
	attempts := 1
	if s.kind == Java {
		attempts = 3 // so that a silent node is noticed within 20.5 s, as measured with the SDK
		if !s.pause(s.jitter(500 * time.Millisecond)) {
			return false
		}
	}
	for range attempts {
		if _, err := s.request(l, nacos.TypeHealthCheckRequest, map[string]any{"module": "internal"}); err == nil {
			return true
		}
		if l.conn.Err() != nil {
			return false
		}
	}
	return false
}

func (s *Client) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// publishes brings what the node has to what is wanted.
func (s *Client) publishes() {
	period := 3 * time.Second
	if s.kind == Python {
		period = 30 * time.Second
	}
	if !s.pause(s.jitter(time.Second)) { // not all at the same time
		return
	}
	s.publish()
	t := time.NewTimer(s.jitter(period))
	defer t.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-t.C:
			t.Reset(period)
		case <-s.kick:
			// A call of the application fails without a connection. The next
			// round makes up for it.
		}
		s.publish()
	}
}

func (s *Client) publish() {
	s.mu.Lock()
	l, wants, ids, value := s.link, s.wants, s.ids, s.value
	register, withdraw, subscribe := wants && !s.registered, !wants && !s.withdrawn, !s.subscribed
	s.mu.Unlock()
	if l == nil || l.conn.Err() != nil {
		return
	}
	var err error
	switch {
	case register:
		err = s.register(l, ids, value)
	case withdraw:
		for _, i := range ids {
			_, err = s.request(l, nacos.TypeInstanceRequest, map[string]any{"type": nacos.OpDeregister, "instance": s.instance(i, value)})
			if err != nil {
				break
			}
		}
	}
	if register || withdraw {
		s.log("registers %v: value %d, wants %v, node%d: %v", ids, value, wants, l.node, err)
	}
	// One of which all instances are evicted is told so each time, and has
	// registered them all the same.
	if err == nil || register && strings.Contains(err.Error(), "evicted by an operator") {
		s.mu.Lock()
		if s.link == l && s.value == value && s.wants == wants && len(s.ids) == len(ids) {
			s.registered, s.withdrawn = wants, !wants
			s.base = l.node
		} else {
			s.wake()
		}
		s.mu.Unlock()
	}
	if subscribe {
		sent := s.newest()
		p, err := s.request(l, nacos.TypeSubscribeServiceRequest, map[string]any{"subscribe": true})
		if err != nil {
			return
		}
		s.mu.Lock()
		s.subscribed = s.subscribed || s.link == l
		s.mu.Unlock()
		if v, err := parseView(p.Body); err != nil {
			s.c.check.fail("harness", "%s: %v", s.name, err)
		} else {
			s.got(l, v, sent, "list")
		}
	}
}

func (s *Client) register(l *link, ids []int, value int) error {
	if s.id%2 == 0 || len(ids) > 1 { // a batch, and it stays one
		var all []any
		for _, i := range ids {
			all = append(all, s.instance(i, value))
		}
		_, err := s.request(l, nacos.TypeBatchInstanceRequest, map[string]any{"type": nacos.OpBatchRegister, "instances": all})
		return err
	}
	_, err := s.request(l, nacos.TypeInstanceRequest, map[string]any{"type": nacos.OpRegister, "instance": s.instance(ids[0], value)})
	return err
}

func (s *Client) instance(i, value int) map[string]any {
	return map[string]any{"ip": s.ip(), "port": portOf(i), "weight": 1, "healthy": true, "enabled": true, "ephemeral": true,
		"clusterName": "DEFAULT", "serviceName": serviceName, "metadata": map[string]string{"value": strconv.Itoa(value)}}
}

func (s *Client) request(l *link, typ string, fields map[string]any) (*nacos.Payload, error) {
	for k, v := range map[string]string{"namespace": "public", "groupName": "DEFAULT_GROUP", "serviceName": serviceName} {
		fields[k] = v
	}
	body, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	p, err := l.conn.Request(s.ctx, typ, body)
	if err == nil {
		s.mu.Lock()
		l.active = time.Now()
		s.mu.Unlock()
	}
	return p, err
}

// pushed takes what came on the stream. What came on a connection that is
// being replaced is not the client's any more.
func (s *Client) pushed(l *link, floor int64, p *nacos.Payload) error {
	if p.Type != nacos.TypeNotifySubscriberRequest {
		return nil
	}
	v, err := parseView(p.Body)
	if err != nil {
		s.c.check.fail("harness", "%s: %v", s.name, err)
		return err
	}
	s.mu.Lock()
	current := s.link == nil || s.link == l
	l.active = time.Now()
	floor, l.stamp = max(floor, l.stamp), max(l.stamp, v.stamp)
	s.mu.Unlock()
	if current {
		s.got(l, v, floor, "push")
	}
	return nil
}

// got checks that time does not run backwards: floor is the newest stamp that
// the client had when it asked, or that came before on this stream.
func (s *Client) got(l *link, v view, floor int64, how string) {
	s.mu.Lock()
	if v.stamp >= s.stamp {
		s.last, s.lastAt = v, s.c.now()
	}
	s.stamp = max(s.stamp, v.stamp)
	s.mu.Unlock()
	if v.stamp < floor {
		s.c.check.fail("time", "%s gets a %s from node%d with a lastRefTime %d ms older than one it has", s.name, how, l.node, floor-v.stamp)
	}
}

func (s *Client) newest() int64 { s.mu.Lock(); defer s.mu.Unlock(); return s.stamp }

// change is what the application does.
func (s *Client) change(f func()) {
	s.mu.Lock()
	f()
	s.registered, s.withdrawn = false, false
	s.mu.Unlock()
	s.wake()
}

// Die ends the process.
func (s *Client) Die() {
	s.mu.Lock()
	s.alive = false
	s.mu.Unlock()
	s.host.Crash()
	s.die()
}

// beats is the life of an HTTP client.
func (s *Client) beats() {
	web := &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) { return s.host.Dial(ctx, addr) }}}
	if !s.pause(s.jitter(3 * time.Second)) {
		return
	}
	for {
		s.mu.Lock()
		n := s.next % len(s.c.nodes)
		s.next++
		wants, registered, withdrawn, value, id := s.wants, s.registered, s.withdrawn, s.value, s.ids[0]
		s.mu.Unlock()
		q := url.Values{"serviceName": {serviceName}, "ip": {s.ip()}, "port": {strconv.Itoa(portOf(id))}}
		method, path := http.MethodPost, "/nacos/v1/ns/instance"
		switch {
		case !wants && withdrawn:
			method = ""
		case !wants:
			method = http.MethodDelete
		case registered:
			method, path = http.MethodPut, path+"/beat"
		default:
			q.Set("metadata", fmt.Sprintf(`{"value":"%d"}`, value))
		}
		wait := 5 * time.Second
		if method != "" {
			code, err := s.call(web, method, n, path+"?"+q.Encode())
			if err != nil || !registered || code != nacos.CodeBeatOK {
				s.log("%s %d at node%d: %d, %v", method, value, n, code, err)
			}
			s.mu.Lock()
			same := s.value == value && s.wants == wants
			switch {
			case err != nil:
				wait = time.Second
			case registered && code == nacos.CodeBeatUnknown:
				s.registered, wait = false, 10*time.Millisecond
			default:
				s.node, s.base, s.beatAt = n, n, s.c.now()
				if same {
					s.registered, s.withdrawn = wants, !wants
				}
			}
			s.mu.Unlock()
		}
		t := time.NewTimer(wait)
		select {
		case <-s.ctx.Done():
			t.Stop()
			web.CloseIdleConnections()
			return
		case <-s.kick:
			t.Stop()
		case <-t.C:
		}
	}
}

// call returns the code of a beat's answer, or 200.
func (s *Client) call(web *http.Client, method string, n int, path string) (int, error) {
	r, err := http.NewRequestWithContext(s.ctx, method, fmt.Sprintf("http://%s:%d%s", s.c.nodes[n].addr(), port, path), nil)
	if err != nil {
		return 0, err
	}
	r.Header.Set("User-Agent", s.kind.version())
	resp, err := web.Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	if resp.StatusCode != http.StatusOK {
		return resp.StatusCode, fmt.Errorf("status %d: %.100s", resp.StatusCode, b)
	}
	var answer struct {
		Code int `json:"code"`
	}
	if json.Unmarshal(b, &answer) == nil && answer.Code != 0 {
		return answer.Code, nil
	}
	return resp.StatusCode, nil
}
