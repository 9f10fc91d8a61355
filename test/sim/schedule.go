package sim

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/starling-registry/starling/pkg/node"
	"github.com/starling-registry/starling/test/simnet"
)

// Options of a run.
type Options struct {
	Seed  uint64
	Nodes int
	// Founders make the cluster; the others start when an event says so. 0: all.
	Founders int
	Kinds    []Kind          // of the clients; client i starts at node i mod Nodes
	Listens  bool            // their instances can be dialled
	Skew     []time.Duration // what the nodes' clocks are ahead
	Link     simnet.Link     // between nodes
	// NoStreams: no stream works between nodes, all goes by gossip.
	NoStreams bool
	Node      func(i int, o *node.Options) // changes the options of a node; may be nil
	LogLevel  zapcore.Level                // of the nodes
	// KeepGoing: the run goes on after a promise was broken.
	KeepGoing bool
	// Undo is when the last fault is undone: nothing is cut or frozen any
	// more. Quiet is how long after it
	// everybody may still have something to do; busyTime follows.
	Undo, Quiet time.Duration
}

// An Event is a step of a schedule. What a and b are depends on its kind: see
// happen.
type Event struct {
	At   time.Duration
	Kind string
	A, B int
}

func (e Event) String() string {
	return fmt.Sprintf("%gs %s %s %s", e.At.Seconds(), e.Kind, nodeName(e.A), nodeName(e.B))
}

// Words that stand for a node: who leads the log when the event happens, the
// one that this was last, and the one after that.
const (
	theLeader = -1 - iota
	theSame
	theNext
)

var nodeWords = map[string]int{"leader": theLeader, "it": theSame, "next": theNext}

func nodeName(n int) string {
	for word, is := range nodeWords {
		if n == is {
			return word
		}
	}
	return fmt.Sprint(n)
}

func nodeNumber(word string) (int, error) {
	if n, ok := nodeWords[word]; ok || word == "" {
		return n, nil
	}
	return strconv.Atoi(word)
}

// which is the node that a word stands for now.
func (c *Cluster) which(n int) int {
	switch n {
	case theLeader:
		for range 20 { // an election may be under way
			if leads := c.operator().leader(); leads != nil {
				c.led = leads.id
				return c.led
			}
			time.Sleep(500 * time.Millisecond)
		}
		c.check.fail("harness", "nobody leads the log")
	case theNext:
		return (c.led + 1) % len(c.nodes)
	case theSame:
	default:
		return n
	}
	return c.led
}

// A Schedule is what happens in a run.
type Schedule []Event

// String is a form that [Parse] reads.
func (s Schedule) String() string {
	var all []string
	for _, e := range s {
		all = append(all, e.String())
	}
	return strings.Join(all, "; ")
}

// Parse reads a schedule: "20s kill 0; 24.5s update 1".
func Parse(text string) (s Schedule, err error) {
	for part := range strings.SplitSeq(text, ";") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		var e Event
		var at, a, b string
		if n, _ := fmt.Sscan(part, &at, &e.Kind, &a, &b); n < 2 {
			return nil, fmt.Errorf("%q is no event", part)
		}
		var errA, errB error
		e.A, errA = nodeNumber(a)
		e.B, errB = nodeNumber(b)
		if err := errors.Join(errA, errB); err != nil {
			return nil, fmt.Errorf("%q: %w", part, err)
		}
		if e.At, err = time.ParseDuration(at); err != nil {
			return nil, err
		}
		if !slices.Contains(kinds, e.Kind) {
			return nil, fmt.Errorf("%q: there is no %q", part, e.Kind)
		}
		s = append(s, e)
	}
	return s, nil
}

// kinds of events. Nodes are numbers, or leader, it, next: see [Parse]. Of nodes: kill (SIGKILL), start (with the data directory
// that it left), fresh (start with an empty one), freeze and cont (SIGSTOP,
// SIGCONT), drain (SIGTERM). Between nodes: cut, oneway and heal A B, iso A
// (from all others), healall, streamcut A B (no streams, for good), lose A (its
// next reliable message), loss A (percent of all packets, between all nodes).
// Of clients: die, update (a new value), shrink (one instance less), dereg,
// want (again), pathcut and pathheal A from node B. gone A B: instance A must
// be gone within B ms from then.
//
// Of what must survive: storm A (for A ms writers do not pause), which leader
// (from now on that is "it"), move A (the
// next process of a node has another address), voters A (so many nodes vote,
// all of them running), edit A B (an operator gives instance A the weight B),
// weighs A B (all nodes show it with that; 0: they do not), evict A and lift A
// (the operator keeps it out, whatever its client does), visit A (an HTTP client registers
// instance A, from 900, and is not heard of again), leave A (it deregisters
// it).
var kinds = []string{"kill", "start", "fresh", "freeze", "cont", "drain", "cut", "oneway", "heal", "iso", "healall", "streamcut", "lose", "loss",
	"die", "update", "shrink", "dereg", "want", "pathcut", "pathheal", "gone",
	"storm", "which", "move", "voters", "edit", "weighs", "evict", "lift", "visit", "leave"}

func (c *Cluster) happen(e Event) {
	c.hist.log("* %v", e)
	e.A, e.B = c.which(e.A), c.which(e.B)
	switch e.Kind {
	case "kill":
		c.nodes[e.A].Kill()
	case "fresh", "start":
		n := c.nodes[e.A]
		if n.isUp() {
			return
		}
		if e.Kind == "fresh" {
			n.Forget()
		}
		if err := n.Start(); err != nil {
			c.check.fail("harness", "%v", err)
		}
	case "freeze":
		c.nodes[e.A].Freeze()
	case "cont":
		c.nodes[e.A].Continue()
	case "drain":
		c.nodes[e.A].Drain()
	case "cut":
		c.setCut(e.A, e.B, true)
		c.setCut(e.B, e.A, true)
	case "oneway":
		c.setCut(e.A, e.B, true)
	case "heal":
		c.setCut(e.A, e.B, false)
		c.setCut(e.B, e.A, false)
	case "iso":
		for b := range c.nodes {
			if b != e.A {
				c.setCut(e.A, b, true)
				c.setCut(b, e.A, true)
			}
		}
	case "healall":
		for a := range c.nodes {
			for b := range c.nodes {
				c.setCut(a, b, false)
			}
		}
	case "streamcut":
		c.cutStreams(e.A, e.B)
	case "lose":
		n := c.nodes[e.A]
		n.mu.Lock()
		n.lose++
		n.mu.Unlock()
	case "loss":
		link := c.opts.Link
		link.Loss = float64(e.A) / 100
		for _, a := range c.nodes {
			for _, b := range c.nodes {
				c.net.SetLink(a.name, b.name, link)
			}
		}
	case "pathcut", "pathheal":
		cut := e.Kind == "pathcut"
		if c.check.setPathCut(e.A, e.B, cut); cut {
			c.net.Cut(c.clients[e.A].name, c.nodes[e.B].name)
		} else {
			c.net.Heal(c.clients[e.A].name, c.nodes[e.B].name)
		}
	case "die":
		c.clients[e.A].Die()
	case "update":
		s := c.clients[e.A]
		s.change(func() { s.value++ })
	case "shrink":
		s := c.clients[e.A]
		if len(s.ids) > 1 {
			s.change(func() { s.ids = s.ids[:1:1] })
		}
	case "dereg":
		s := c.clients[e.A]
		s.change(func() { s.wants = false })
	case "want":
		s := c.clients[e.A]
		s.change(func() {
			if !s.wants {
				s.value++
			}
			s.wants = true
		})
	case "storm":
		c.storm.Store(int64(c.now()) + int64(e.A)*int64(time.Millisecond))
	case "which":
	case "move":
		c.nodes[e.A].Move()
	case "voters":
		c.mustVote(e.A)
	case "edit", "visit", "leave":
		c.operate(e)
	case "evict", "lift":
		c.evict(e)
	case "weighs":
		c.mustWeigh(e.A, e.B)
	case "gone":
		c.check.mustBeGone(e.A, c.now()+time.Duration(e.B)*time.Millisecond, fmt.Sprintf("it should have gone within %d ms", e.B))
	}
}

// mustVote checks who votes on the log: so many, and all of them run.
func (c *Cluster) mustVote(want int) {
	w := c.operator()
	running := map[string]bool{}
	for _, n := range c.nodes {
		if v, err := w.log(n); err == nil {
			running[v.Node] = true
		}
	}
	leads := w.leader()
	if leads == nil {
		c.check.fail("voters", "nobody leads the log")
		return
	}
	v, err := w.log(leads)
	if err != nil {
		c.check.fail("voters", "%v", err)
		return
	}
	voters := 0
	for _, s := range v.Servers {
		if s.Voter {
			voters++
			if !running[s.ID] {
				c.check.fail("voters", "%.8s has a vote and does not run", s.ID)
			}
		}
	}
	if voters != want {
		c.check.fail("voters", "%d nodes have a vote, want %d", voters, want)
	}
}

// place is where an instance is, and in which service.
func (c *Cluster) place(instance int) url.Values {
	if instance >= visitors {
		return url.Values{"serviceName": {visitorsService}, "ip": {shopIP}, "port": {strconv.Itoa(portOf(instance))}}
	}
	return url.Values{"serviceName": {serviceName}, "ip": {c.clients[instance/perClient].ip()}, "port": {strconv.Itoa(portOf(instance))}}
}

// operate does something to an instance over HTTP, at the first node that takes
// it.
func (c *Cluster) operate(e Event) {
	q, method := c.place(e.A), map[string]string{"edit": http.MethodPatch, "visit": http.MethodPost, "leave": http.MethodDelete}[e.Kind]
	if e.Kind == "edit" {
		q.Set("weight", strconv.Itoa(e.B))
	}
	c.orders(e, method, "/nacos/v1/ns/instance?"+q.Encode(), "")
}

// evict keeps an instance of a client out, or ends that. Until there is an
// answer a node may do the one or the other.
func (c *Cluster) evict(e Event) {
	q, s := c.place(e.A), c.clients[e.A/perClient]
	body := fmt.Sprintf(`{"namespace":"public","group":"DEFAULT_GROUP","service":%q,"ip":%q,"port":%s,"cluster":"DEFAULT"}`, q.Get("serviceName"), q.Get("ip"), q.Get("port"))
	evicted := func(since time.Duration) {
		s.mu.Lock()
		defer s.mu.Unlock()
		all := maps.Clone(s.evicted)
		if all == nil {
			all = map[int]time.Duration{}
		}
		if delete(all, e.A); e.Kind == "evict" {
			all[e.A] = since
		}
		s.evicted = all
	}
	evicted(c.now() + time.Hour)
	c.orders(e, http.MethodPost, "/starling/v1/instances/"+e.Kind, body)
	evicted(c.now())
}

// orders has the first node that takes it do something.
func (c *Cluster) orders(e Event, method, path, body string) {
	var why []string
	for i := range c.nodes {
		n := c.nodes[(e.A+i)%len(c.nodes)]
		if up, frozen, _ := n.state(); !up || frozen {
			continue
		}
		status, answer, err := c.operator().send(n, method, path, body, limitHTTP+time.Second)
		if err == nil && status == http.StatusOK {
			return
		}
		why = append(why, fmt.Sprintf("%s: %d %s %v", n.name, status, answer, err))
	}
	c.check.fail("edit", "%v: %s", e, strings.Join(why, "; "))
}

// mustWeigh checks what weight all nodes show an instance with.
func (c *Cluster) mustWeigh(instance, weight int) {
	q := c.place(instance)
	for _, n := range c.nodes {
		if up, frozen, _ := n.state(); !up || frozen {
			continue
		}
		hosts, err := c.operator().list(n, q.Get("serviceName"))
		if err != nil {
			c.check.fail("edit", "%s: %v", n.name, err)
			continue
		}
		if is := hosts[portOf(instance)]; is.weight != float64(weight) {
			c.check.fail("edit", "%s shows %d with the weight %v, want %d", n.name, instance, is.weight, weight)
		}
	}
}

// setCut cuts or heals one direction. The network heals both, so what is still
// cut is cut again.
func (c *Cluster) setCut(a, b int, cut bool) {
	c.check.setCut(a, b, cut)
	from, to := c.nodes[a].name, c.nodes[b].name
	if cut {
		c.net.CutOneWay(from, to)
		return
	}
	c.net.Heal(from, to)
	if c.check.isCut(b, a) {
		c.net.CutOneWay(to, from)
	}
}

// undo ends what may not go on in the quiet time.
func (c *Cluster) undo() {
	c.hist.log("* from now on nothing is cut or frozen")
	for _, n := range c.nodes {
		n.Continue()
	}
	for a := range c.nodes {
		for b := range c.nodes {
			c.setCut(a, b, false)
		}
	}
	c.net.HealAll()
	for s := range c.clients {
		for n := range c.nodes {
			c.check.setPathCut(s, n, false)
		}
	}
}

// Run plays a schedule and returns the promises that were broken, in the order
// in which they were, with the history. dirs are where the nodes keep their
// data. It must run in a bubble.
func Run(s Schedule, o Options, dirs []string) (failures []string, h *history) {
	c := newCluster(o, dirs)
	defer c.Stop()
	for i, kind := range o.Kinds {
		c.clients = append(c.clients, c.newClient(i, kind, o.Listens))
	}
	c.hist.ledger = c.ledger
	c.openShop()
	for i := range writers + 2 { // one audits, the last one is the operator
		c.writers = append(c.writers, c.newWriter(i))
	}
	for _, n := range c.nodes[:c.founders()] {
		if err := n.Start(); err != nil {
			return []string{err.Error()}, c.hist
		}
	}
	for _, n := range c.nodes {
		c.observers = append(c.observers, c.newObserver(n))
	}
	// Clients come when all nodes are ready, so that client i begins at node i.
	for c.now() < 15*time.Second && !c.check.allServe() {
		time.Sleep(tick)
	}
	for _, w := range c.writers[:writers] {
		c.wg.Go(w.writes)
	}
	c.wg.Go(c.writers[writers].audits)
	for _, s := range c.clients {
		s.start()
	}
	c.wg.Go(c.check.watch)
	until := func(t time.Duration) bool {
		ended := func() bool { return !o.KeepGoing && c.check.failed() }
		for c.now() < t && !ended() {
			time.Sleep(min(t-c.now(), time.Second))
		}
		return !ended()
	}
	s = slices.Clone(s)
	slices.SortStableFunc(s, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	undone := false
	for _, e := range append(s, Event{At: max(o.Undo, 30*time.Second), Kind: "undo"}) {
		if !until(e.At) {
			break
		}
		if e.Kind == "undo" {
			undone = true
			c.undo()
			continue
		}
		c.happen(e)
	}
	// Writers go on until all is well again, so that there is something that a
	// node has to catch up with.
	ok := undone && until(c.now()+o.Quiet/4)
	c.ledger.end()
	if ok && until(c.now()+o.Quiet/4) {
		c.settle()
	}
	if ok && until(c.now()+o.Quiet/2) {
		before := c.work()
		if until(c.now() + busyTime) {
			for id, n := range c.work() {
				if more := n - before[id]; more > 0 {
					c.check.fail("busy", "node%d counts %v transfers in the last %v of quiet", id, more, busyTime)
				}
			}
			c.digests()
			c.lasting()
			c.check.atEnd()
		}
	}
	return c.check.failures(), c.hist
}

// Random makes a schedule, and says by when all its faults are undone.
func Random(r *rand.Rand, faults []string, o Options) (s Schedule, undo time.Duration) {
	add := func(t float64, kind string, a, b int) {
		s = append(s, Event{time.Duration(t*10) * tick, kind, a, b})
	}
	t, last := 20.0, 0.0
	for range 3 + r.IntN(7) {
		t += 0.1 + 15*r.Float64()
		if r.IntN(3) == 0 {
			t -= 2 * r.Float64()
		}
		x, c := r.IntN(o.Nodes), r.IntN(len(o.Kinds))
		until := t + 0.5 + 50*r.Float64()
		switch f := faults[r.IntN(len(faults))]; f {
		case "kill", "drain":
			add(t, f, x, 0)
			switch r.IntN(6) {
			case 0:
				add(until, "fresh", x, 0)
			case 1, 2, 3:
				add(until, "start", x, 0)
			}
		case "freeze":
			until = t + 1 + 39*r.Float64()
			add(t, f, x, 0)
			add(until, "cont", x, 0)
		case "freezeall", "killall":
			for n := range o.Nodes {
				if f == "killall" {
					add(t, "kill", n, 0)
					add(t+1+6*r.Float64(), "start", n, 0)
				} else {
					add(t, "freeze", n, 0)
					add(t+15+0.3*r.Float64(), "cont", n, 0)
				}
			}
			t += 20
		case "iso":
			add(t, f, x, 0)
			add(until, "healall", 0, 0)
		case "cut", "oneway":
			if o.Nodes > 1 {
				y := (x + 1) % o.Nodes
				add(t, f, x, y)
				add(until, "heal", x, y)
			}
		case "loss":
			add(t, f, r.IntN(30), 0)
			add(until, f, 0, 0)
		case "pathcut":
			add(t, f, c, x)
			add(until, "pathheal", c, x)
		case "update":
			for k := range 1 + r.IntN(4) {
				add(t+0.1*float64(k*r.IntN(2)), f, (c+r.IntN(2))%len(o.Kinds), 0)
			}
		default:
			add(t, f, c, 0)
		}
		last = max(last, until, t)
	}
	slices.SortStableFunc(s, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	return s, time.Duration(last+1) * time.Second
}

// Storms makes writers write without a pause while half of the faults of a
// schedule happen.
func Storms(r *rand.Rand, faults Schedule) (s Schedule) {
	for _, e := range faults {
		switch e.Kind {
		case "kill", "freeze", "drain", "iso", "cut", "oneway", "start", "fresh", "cont", "healall":
			if r.IntN(2) == 0 {
				s = append(s, Event{max(0, e.At-time.Duration(r.IntN(1000))*time.Millisecond), "storm", 500 + r.IntN(2000), 0})
			}
		}
	}
	return s
}
