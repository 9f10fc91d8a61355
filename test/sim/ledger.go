package sim

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// Keys that writers write.
type keyKind uint8

const (
	instanceKey keyKind = iota // a persistent instance
	serviceKey                 // the description of a service
	editKey                    // an operator's edit of an instance
)

const (
	instanceKeys = 6
	serviceKeys  = 3
	editKeys     = 2 // one for each writer
	writers      = editKeys
)

type key struct {
	kind keyKind
	n    int
}

func (k key) String() string {
	return fmt.Sprint([...]string{"instance", "service", "edit"}[k.kind], k.n)
}

func (k key) service() string { return fmt.Sprint("described", k.n) }

// What is done to a key.
type what uint8

const (
	put    what = iota // whatever was there
	create             // if nothing is there
	remove
	read
)

// An outcome is what whoever wrote knows afterwards.
type outcome uint8

const (
	unknown outcome = iota // it may be written, now or later
	acked
	refused // nothing was changed; a look at the node's own view may have been enough for that
	nothing // nothing was changed, because there is no leader, or no node
)

func (o outcome) String() string {
	return [...]string{"unknown", "acknowledged", "refused", "nothing written"}[o]
}

// An op is one thing that somebody did, from when he asked until he knew.
type op struct {
	key
	what
	value     int // written or read; 0: there is nothing
	node      int
	call, ret time.Duration
	outcome
}

func (o op) String() string {
	return fmt.Sprintf("%s %v=%d", [...]string{"put", "create", "remove", "read"}[o.what], o.key, o.value)
}

// A ledger is what was done to all keys, and what it must have come to.
type ledger struct {
	c *Cluster

	mu     sync.Mutex
	ops    []op
	values int
	by     map[int]op        // the write of a value, once it is known
	hazy   map[key]int       // how many writes of it have an unknown outcome
	shown  map[int]string    // values that somebody has seen, and where
	newest map[processOf]int // of a key, that a process has shown
	done   bool              // no writes any more
	closed bool              // nothing is noted any more
}

type processOf struct {
	key
	node, run int
}

func newLedger(c *Cluster) *ledger {
	return &ledger{c: c, by: map[int]op{}, hazy: map[key]int{}, shown: map[int]string{}, newest: map[processOf]int{}}
}

// value is one that was never written.
func (l *ledger) value() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.values++
	return l.values
}

func (l *ledger) ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.done || l.c.ctx.Err() != nil
}

func (l *ledger) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done = true
}

// close ends the notes: from here on the cluster may have lost its log.
func (l *ledger) close(why string) {
	l.c.hist.log("* %s: what writers get is not judged any more", why)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

// murky keys have too many writes that may still happen for anybody to check
// all the orders.
func (l *ledger) murky(k key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hazy[k] > 7
}

func (l *ledger) add(o op) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.by[o.value] = o
	if l.closed {
		return
	}
	if o.outcome == unknown {
		l.hazy[o.key]++
		o.ret = math.MaxInt64
	}
	l.ops = append(l.ops, o)
}

// read takes note of reads that must fit the writes.
func (l *ledger) read(node int, all map[key]int, call, ret time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	for k, v := range all {
		l.ops = append(l.ops, op{k, read, v, node, call, ret, acked})
		if v != 0 {
			l.shown[v] = fmt.Sprintf("node%d at %.3fs", node, ret.Seconds())
		}
	}
}

// looked takes note of what a process shows, which may be old, but may not be
// older than what it has shown before.
func (l *ledger) looked(node, run int, all map[key]int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	for k, v := range all {
		if v == 0 {
			continue
		}
		l.shown[v] = fmt.Sprintf("node%d at %.3fs", node, l.c.now().Seconds())
		p := processOf{k, node, run}
		was, is := l.by[l.newest[p]], l.by[v]
		if l.newest[p] != 0 && is.outcome == acked && was.call > is.ret {
			l.c.check.fail("order", "node%d shows %v=%d after %d, which was written later", node, k, v, was.value)
		}
		l.newest[p] = v
	}
}

// String counts what is noted.
func (l *ledger) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, reads := map[outcome]int{}, 0
	for _, o := range l.ops {
		if o.what == read {
			reads++
		} else {
			n[o.outcome]++
		}
	}
	return fmt.Sprintf("%d writes acknowledged, %d refused, %d not written, %d unknown, %d reads", n[acked], n[refused], n[nothing], n[unknown], reads)
}

// model is what one key is: a value, or 0.
var model = porcupine.Model{
	Init: func() any { return 0 },
	Step: func(state, input, _ any) (bool, any) {
		was, o := state.(int), input.(op)
		switch o.what {
		case read:
			return was == o.value, was
		case put:
			return true, o.value
		case remove:
			return true, 0
		}
		if was == 0 {
			return true, o.value
		}
		return o.outcome == unknown, was
	},
}

// judge says what cannot be explained by any order in which the writes were
// carried out one by one, each between question and answer. Refusals are left
// out: a node may refuse by its own view, which may be old; that nothing was
// written is checked all the same, as nobody may read the value. It is to be
// called outside the bubble: it takes real time, and is given up after some.
func (l *ledger) judge() (failures []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := map[key][]op{}
	for _, o := range l.ops {
		if at, seen := l.shown[o.value]; seen && o.what != read && (o.outcome == refused || o.outcome == nothing) {
			failures = append(failures, failure(o.ret, "order", fmt.Sprintf("%s shows %v, of which node%d had said: %v", at, o, o.node, o.outcome)))
		}
		if o.what == read || o.outcome == acked || o.outcome == unknown {
			of[o.key] = append(of[o.key], o)
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(of), func(a, b key) int { return strings.Compare(a.String(), b.String()) }) {
		ops := of[k]
		if lost := l.lost(ops); lost != "" {
			failures = append(failures, lost)
			continue
		}
		var all []porcupine.Operation
		for _, o := range ops {
			all = append(all, porcupine.Operation{ClientId: o.node, Input: o, Call: int64(o.call), Return: int64(o.ret)})
		}
		if result := porcupine.CheckOperationsTimeout(model, all, 20*time.Second); result == porcupine.Illegal {
			failures = append(failures, failure(ops[len(ops)-1].ret, "order", fmt.Sprintf("no order explains what happened to %v:\n%s", k, describe(ops))))
		}
	}
	return failures
}

// lost finds a read of something that a later write, acknowledged before the
// read, has replaced. The model would notice too, but say less.
func (l *ledger) lost(ops []op) string {
	for _, r := range ops {
		if r.what != read {
			continue
		}
		var last op // the acknowledged write that began last of those that were over
		for _, o := range ops {
			if o.what != read && o.outcome == acked && o.ret < r.call && o.call >= last.call {
				last = o
			}
		}
		if last.ret == 0 || last.what != remove && last.value == r.value || last.what == remove && r.value == 0 {
			continue
		}
		explained := slices.ContainsFunc(ops, func(o op) bool {
			says := o.value
			if o.what == remove {
				says = 0
			}
			return o.what != read && says == r.value && o.call <= r.ret && o.ret >= last.call
		})
		if !explained {
			return failure(r.ret, "lost", fmt.Sprintf("node%d has %v=%d at %.3fs, and not what node%d acknowledged at %.3fs: %v", r.node, r.key, r.value, r.ret.Seconds(), last.node, last.ret.Seconds(), last))
		}
	}
	return ""
}

func describe(ops []op) string {
	var b strings.Builder
	for _, o := range ops {
		if o.what != read || o.value != 0 {
			fmt.Fprintf(&b, "    %9.3f – %9.3f  node%d  %v: %v\n", o.call.Seconds(), min(o.ret, time.Hour).Seconds(), o.node, o, o.outcome)
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// Of the whole cluster.

func (c *Cluster) storms() bool { return c.now() < time.Duration(c.storm.Load()) }

// voters are how many nodes vote (design §8), if all take part.
func (c *Cluster) voters() int {
	switch n := c.founders(); {
	case n >= 5:
		return 5
	case n >= 3:
		return 3
	default:
		return n
	}
}

// mayHaveLost is true when so many nodes were wiped that nobody may have what
// a quorum had.
func (c *Cluster) mayHaveLost() bool {
	slots := map[int]bool{}
	for _, i := range c.wipes {
		slots[i] = true
	}
	return len(slots) > (c.voters()-1)/2
}

// mustWrite is true when so many of the first voters are there that there must
// be a leader.
func (c *Cluster) mustWrite() bool {
	gone := len(c.wipes)
	for _, n := range c.nodes[:c.founders()] {
		if !n.isUp() && !slices.Contains(c.wipes, n.id) {
			gone++
		}
	}
	return gone <= (c.voters()-1)/2 && !c.mayHaveLost()
}

// settle is called in the quiet time, when nobody writes any more: each node
// takes a write, if it can pass it on to the one that leads.
func (c *Cluster) settle() {
	if !c.mustWrite() || c.streamless {
		return
	}
	w := c.operator()
	k := key{instanceKey, 0}
	for _, n := range c.nodes {
		if n.isUp() && w.write(n, op{key: k, what: put, value: c.ledger.value(), node: n.id}) != acked {
			c.check.fail("refused", "in the quiet time %s does not take a write, although a majority is there", n.name)
		}
	}
}

// lasting compares what nodes have of what must survive, at the end.
func (c *Cluster) lasting() {
	if !c.mustWrite() {
		return
	}
	w := c.operator()
	logs, hashes := map[string][]string{}, map[string][]string{}
	for _, n := range c.nodes {
		if !n.isUp() {
			continue
		}
		now := c.now()
		all, err := w.reads(n)
		if err == nil {
			c.ledger.read(n.id, all, now, c.now())
			var v logView
			if v, err = w.log(n); err == nil {
				at := fmt.Sprintf("applied %d, digest %s", v.Applied, v.Digest)
				logs[at] = append(logs[at], n.name)
			}
		}
		var body string
		if err == nil {
			_, body, err = w.do(n, "GET", "/starling/v1/hashes", 5*time.Second)
		}
		var h struct {
			Services []struct {
				Service string `json:"service"`
				Hash    string `json:"hash"`
				N       int    `json:"instances"`
			} `json:"services"`
		}
		if err == nil {
			err = json.Unmarshal([]byte(body), &h)
		}
		if err != nil {
			c.check.fail("diverge", "at the end %s does not tell what it has of the log: %v", n.name, err)
			continue
		}
		var services []string
		for _, s := range h.Services {
			if s.N > 0 {
				services = append(services, fmt.Sprintf("%s %d %s", s.Service, s.N, s.Hash))
			}
		}
		slices.Sort(services)
		shows := strings.Join(services, ", ")
		hashes[shows] = append(hashes[shows], n.name)
	}
	for what, all := range map[string]map[string][]string{"the log": logs, "services": hashes} {
		if len(all) > 1 {
			var lines []string
			for _, is := range slices.Sorted(maps.Keys(all)) {
				lines = append(lines, strings.Join(all[is], ", ")+": "+is)
			}
			c.check.fail("diverge", "at the end %s is not the same everywhere: %s", what, strings.Join(lines, "; "))
		}
	}
}
