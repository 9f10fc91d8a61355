package sim

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// Times of design §6 that the promises are measured by.
const (
	tick = 100 * time.Millisecond
	// leaseSilent is how long a silent node's instances stay without being
	// dialled, counted from its last word.
	leaseSilent = 22 * time.Second
	// rejoinTime is what nodes need to find each other after a cut.
	rejoinTime = 12 * time.Second
	// settleTime is what a node that starts or goes on needs for what its peers
	// have.
	settleTime = 5 * time.Second
	// ghostBound is more than every lease, pause and exchange added up, except
	// self-preservation and the probe of addresses that answer.
	ghostBound = 100 * time.Second
	// missingBound is how long a live instance may be missing that a node did
	// not lose: it has to find its peers and catch up.
	missingBound = 20 * time.Second
	// stallGrace is how long a node that stood still may go on to show what
	// was connected to it.
	stallGrace = 15 * time.Second
	// apartBound is how long two nodes may differ: heads each second, and a
	// probe that one of them does for both.
	apartBound = 4 * time.Second
	probeBound = 180 * time.Second
	pauseBound = 180 * time.Second
	// evictTime is how long after an operator has the answer a node may go on
	// to show what was evicted, if it is not cut off: it hears of it with the
	// next entry of the log, or after showTime of raftstore.
	evictTime = time.Second
)

// A checker knows what is true and compares it with what nodes show.
type checker struct {
	c *Cluster

	mu    sync.Mutex
	fails map[string]string // first of each promise
	order []string

	// What is true.
	wantedAt, unwantedAt map[int]time.Duration // when an instance was last seen wanted, and not
	cut                  map[[2]int]bool       // node to node, one way
	pathCut              map[[2]int]bool       // client to node
	// apartUntil: until when two nodes count as apart; without and with the
	// time that the second one was frozen.
	apartSince, apartUntil [2]map[[2]int]time.Duration
	lastWhole              time.Duration // when a node last started that found nobody who serves
	preserving             time.Duration // how long so many nodes were silent that no lease ran
	due                    map[int]deadline
	together               map[[2]int]time.Duration     // since when two nodes have served and reached each other
	company                map[int]time.Duration        // when a node last reached another
	differ                 map[difference]time.Duration // since when

	nodes []*seen
}

// seen is what one node has shown.
type seen struct {
	run      int
	serves   bool // there was a list of the present process
	stamp    int64
	shown    map[int]int           // instance → value; outlives processes
	since    map[int]time.Duration // since when it is shown without a break
	newest   map[int]int
	missing  map[int]time.Duration // since when a live instance is missing
	thawedAt time.Duration         // or started
}

// A difference is an instance that one node shows and another does not.
type difference struct{ a, b, instance int }

// A deadline is by when an instance must be gone.
type deadline struct {
	by  time.Duration
	why string
}

func newChecker(c *Cluster) *checker {
	k := &checker{c: c, fails: map[string]string{}, wantedAt: map[int]time.Duration{}, unwantedAt: map[int]time.Duration{},
		cut: map[[2]int]bool{}, pathCut: map[[2]int]bool{}, due: map[int]deadline{}, together: map[[2]int]time.Duration{}, company: map[int]time.Duration{}, differ: map[difference]time.Duration{}, lastWhole: -time.Hour}
	for i := range k.apartSince {
		k.apartSince[i], k.apartUntil[i] = map[[2]int]time.Duration{}, map[[2]int]time.Duration{}
	}
	for range c.opts.Nodes {
		k.nodes = append(k.nodes, &seen{shown: map[int]int{}, since: map[int]time.Duration{}, newest: map[int]int{}, missing: map[int]time.Duration{}})
	}
	return k
}

func (k *checker) fail(promise, format string, args ...any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.failLocked(promise, format, args...)
}

func (k *checker) failLocked(promise, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	k.c.hist.log("!!!!! %s: %s", promise, text)
	if k.fails[promise] == "" {
		k.fails[promise] = failure(k.c.now(), promise, text)
		k.order = append(k.order, promise)
	}
}

// failure is a line that says what was broken, and when.
func failure(at time.Duration, promise, text string) string {
	return fmt.Sprintf("[%.3fs] %s: %s", at.Seconds(), promise, text)
}

// aloneFor is how long a node has reached no other, of several.
func (k *checker) aloneFor(node int) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	for b, n := range k.c.nodes {
		if up, frozen, _ := n.state(); len(k.c.nodes) == 1 || b != node && up && !frozen && k.reachesLocked(node, b) {
			return 0
		}
	}
	return k.c.now() - k.company[node]
}

// failures are the first of each promise, in their order.
func (k *checker) failures() (all []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.order {
		all = append(all, k.fails[p])
	}
	return all
}

func (k *checker) failed() bool { k.mu.Lock(); defer k.mu.Unlock(); return len(k.fails) > 0 }

// What happens to the network and the nodes.

func (k *checker) setCut(from, to int, cut bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cut[[2]int{from, to}] = cut
}

func (k *checker) setPathCut(client, node int, cut bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pathCut[[2]int{client, node}] = cut
}

func (k *checker) mustBeGone(instance int, by time.Duration, why string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.due[instance] = deadline{by, why}
}

// nodeStarted is called when a process has started. Where it finds nobody who
// serves, it goes back to its snapshot, which may be 10 s old (design §6), or,
// with an empty data directory, to nothing.
func (k *checker) nodeStarted(id int, empty bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, _, run := k.c.nodes[id].state()
	s := k.nodes[id]
	s.run, s.serves, s.stamp = run, false, 0
	clear(s.missing)
	for _, n := range k.c.nodes {
		if up, frozen, _ := n.state(); n.id != id && up && !frozen && k.nodes[n.id].serves && k.reachesLocked(id, n.id) {
			return
		}
	}
	k.lastWhole = k.c.now()
	for i := range s.shown {
		if empty || k.lastWhole-s.since[i] < 12*time.Second {
			delete(s.shown, i)
		}
	}
	for _, n := range k.nodes {
		clear(n.newest)
	}
}

func (k *checker) nodeEnded(id int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.nodes[id].serves = false
	clear(k.nodes[id].missing)
}

// What is true.

// truth is a client as it is now.
type truth struct {
	alive, wants, registered, online bool
	kind                             Kind
	listens                          bool
	ids                              []int
	evicted                          map[int]time.Duration // not changed
	value, node, base                int
	pathCutAt, beatAt, lostAt        time.Duration
}

func (s *Client) truth() truth {
	s.mu.Lock()
	t := truth{s.alive, s.wants, s.registered, false, s.kind, s.listens, s.ids, s.evicted, s.value, s.node, s.base, s.pathCutAt, s.beatAt, s.lostAt}
	l := s.link
	s.mu.Unlock()
	if l != nil {
		up, frozen, run := s.c.nodes[l.node].state()
		t.online = t.alive && up && !frozen && run == l.run && l.conn.Err() == nil
	}
	return t
}

func (t truth) wanted(i int) bool {
	_, evicted := t.evicted[i]
	return t.alive && t.wants && slices.Contains(t.ids, i) && !evicted
}

// watch keeps the books, every 100 ms.
func (k *checker) watch() {
	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		select {
		case <-k.c.ctx.Done():
			return
		case <-t.C:
			k.tick()
		}
	}
}

func (k *checker) tick() {
	var truths []truth
	for _, s := range k.c.clients {
		truths = append(truths, s.truth())
	}
	now := k.c.now()
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, t := range truths {
		for i := id * perClient; i < (id+1)*perClient; i++ {
			if t.wanted(i) {
				k.wantedAt[i] = now
			} else {
				k.unwantedAt[i] = now
			}
		}
		for n := range k.c.nodes {
			if k.pathCut[[2]int{id, n}] {
				s := k.c.clients[id]
				s.mu.Lock()
				s.pathCutAt = now
				s.mu.Unlock()
			}
		}
	}
	silent := 0
	for a := range k.c.nodes {
		_, frozenA, _ := k.c.nodes[a].state()
		alone := frozenA
		for b := range k.c.nodes {
			_, frozenB, _ := k.c.nodes[b].state()
			w := [2]int{a, b}
			for how, together := range []bool{k.reachesLocked(a, b), k.reachesLocked(a, b) && !frozenB} {
				if now-k.apartSince[how][w] > leaseSilent {
					k.apartUntil[how][w] = now + rejoinTime
				}
				if together {
					k.apartSince[how][w] = now
				}
				if up, _, _ := k.c.nodes[b].state(); together && up && a != b && how == 1 {
					k.company[a] = now
				}
			}
			alone = alone || a != b && !k.reachesLocked(a, b)
		}
		if alone {
			silent++
		}
	}
	if silent > 0 {
		k.preserving += tick
	}
	for n := range k.c.nodes {
		k.stillShownLocked(n, truths)
	}
	k.differencesLocked(now)
}

// differencesLocked: nodes that have reached each other for some time show the
// same, be it right or wrong: leases end everywhere at the same time.
func (k *checker) differencesLocked(now time.Duration) {
	serves := func(n int) bool {
		up, frozen, _ := k.c.nodes[n].state()
		return up && !frozen && k.nodes[n].serves
	}
	for a := range k.c.nodes {
		for b := range a {
			w := [2]int{a, b}
			if !serves(a) || !serves(b) || !k.reachesLocked(a, b) {
				delete(k.together, w)
			} else if _, ok := k.together[w]; !ok {
				k.together[w] = now
			}
			since, ok := k.together[w]
			for i := range perClient * len(k.c.clients) {
				d := difference{a, b, i}
				_, onA := k.nodes[a].shown[i]
				_, onB := k.nodes[b].shown[i]
				if !ok || now-since < settleTime || onA == onB {
					delete(k.differ, d)
				} else if from, ok := k.differ[d]; !ok {
					k.differ[d] = now
				} else if now-from > apartBound {
					k.failLocked("apart", "node%d and node%d differ about %d for %.1f s: %v, %v", a, b, i, (now - from).Seconds(), onA, onB)
					k.differ[d] = now
				}
			}
		}
	}
}

// reachesLocked: directly, or through somebody.
func (k *checker) reachesLocked(a, b int) bool {
	open := func(x, y int) bool { return !k.cut[[2]int{x, y}] && !k.cut[[2]int{y, x}] }
	if open(a, b) {
		return true
	}
	for x, n := range k.c.nodes {
		if up, frozen, _ := n.state(); x != a && x != b && up && !frozen && open(a, x) && open(x, b) {
			return true
		}
	}
	return false
}

func (k *checker) dialableLocked(node, client int, t truth) bool {
	return t.alive && t.listens && !k.pathCut[[2]int{client, node}]
}

// liveLocked is what design §6 promises for an instance of a living client, as
// seen from a node: its owner is reachable from there, or it can be dialled
// from there, or the cut is shorter than the lease. A client whose own path was
// cut and that sits on no node notices late: documented, not counted.
func (k *checker) liveLocked(node, client int, t truth) bool {
	now := k.c.now()
	if t.node < 0 {
		return true
	}
	settled := t.registered && (t.kind == Beat && now-t.beatAt < 12*time.Second || t.online && !k.pathCut[[2]int{client, t.node}])
	if !settled && now-t.pathCutAt < time.Minute {
		return false
	}
	// One that moved to a node which froze before it had registered there, and
	// needs its 30 s again when that is over, is not covered: while somebody is
	// silent it is dialled, but nothing holds its instances afterwards.
	if t.kind == Python && !t.registered && now-t.lostAt > 35*time.Second {
		return false
	}
	how := 0
	if t.kind == Python { // it stays at a node that is frozen
		how = 1
	}
	owner := t.node
	if !t.registered && t.base >= 0 { // it is on its way
		owner = t.base
	}
	apart := now < k.apartUntil[how][[2]int{node, owner}]
	if t.kind == Beat { // its owner may be any node
		for n := range k.c.nodes {
			apart = apart || now < k.apartUntil[how][[2]int{node, n}]
		}
		return !apart
	}
	if !apart {
		return true
	}
	for n := range k.c.nodes {
		if up, _, _ := k.c.nodes[n].state(); up && k.reachesLocked(node, n) && !k.dialableLocked(n, client, t) {
			return false
		}
	}
	return true
}

// saw takes a list that a process of a node has given.
func (k *checker) saw(node, run int, v view, how string) {
	var truths []truth
	for _, s := range k.c.clients {
		truths = append(truths, s.truth())
	}
	_, _, runs := k.c.nodes[node].state()
	now := k.c.now()
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.nodes[node]
	// Answers and pushes come on different streams and may overtake each
	// other here, but not at the node.
	if run != runs || run != s.run || v.stamp < s.stamp {
		return
	}
	first := !s.serves
	s.serves, s.stamp = true, v.stamp
	for client, t := range truths {
		for i := client * perClient; i < (client+1)*perClient; i++ {
			value, shows := v.hosts[i]
			was, before := s.shown[i]
			wanted := t.wanted(i)
			unwantedFor := now - k.wantedAt[i]
			patience := 3 * time.Second
			if t.kind == Beat {
				patience = 65 * time.Second // beat time-out, and once more after an adoption
			}
			since, evicted := t.evicted[i]
			switch {
			case shows && evicted && now-since > evictTime:
				k.failLocked("edit", "node%d shows %d, which has been evicted for %.1f s (%s)", node, i, (now - since).Seconds(), how)
			case !shows && before && wanted && now-k.unwantedAt[i] > 4*time.Second && k.liveLocked(node, client, t):
				k.failLocked("gap", "node%d loses %d, which is alive: %s client%d at node%d, registered %v (%s)", node, i, t.kind, client, t.node, t.registered, how)
			case shows && !wanted && unwantedFor > patience && now-k.lastWhole > time.Minute && (first || !before) && k.nobodyElseLocked(node, i):
				k.failLocked("resurrect", "node%d shows %d again, unwanted for %.1f s (%s)", node, i, unwantedFor.Seconds(), how)
			case shows && wanted && value < s.newest[i]:
				k.failLocked("reorder", "node%d shows value %d of %d after %d (%s)", node, value, i, s.newest[i], how)
			}
			if shows != before || value != was {
				k.c.hist.log("node%d: %d %s -> %s (%s)", node, i, shownAs(before, was), shownAs(shows, value), how)
			}
			if !shows {
				delete(s.shown, i)
				delete(s.since, i)
				continue
			}
			if !before {
				s.since[i] = now
			}
			s.shown[i] = value
			s.newest[i] = max(s.newest[i], value)
		}
	}
	for i := range v.hosts {
		if i < 0 || i >= perClient*len(truths) {
			k.failLocked("resurrect", "node%d shows %d, which never was", node, i)
		}
	}
}

func shownAs(shown bool, value int) string {
	if !shown {
		return "-"
	}
	return fmt.Sprint(value)
}

func (k *checker) nobodyElseLocked(node, i int) bool {
	others := false
	for _, n := range k.c.nodes {
		if up, frozen, _ := n.state(); n.id != node && up && !frozen && k.nodes[n.id].serves && k.reachesLocked(node, n.id) {
			others = true
			if _, shows := k.nodes[n.id].shown[i]; shows {
				return false
			}
		}
	}
	return others
}

// stillShownLocked judges what a node has shown for some time.
func (k *checker) stillShownLocked(node int, truths []truth) {
	now := k.c.now()
	s := k.nodes[node]
	up, frozen, _ := k.c.nodes[node].state()
	if frozen {
		s.thawedAt = now
	}
	if !up || frozen || !s.serves {
		return
	}
	for client, t := range truths {
		for i := client * perClient; i < (client+1)*perClient; i++ {
			_, shows := s.shown[i]
			wanted := t.wanted(i)
			bound := ghostBound + min(k.preserving, pauseBound)
			if t.alive && t.listens {
				bound += probeBound
			}
			if d, ok := k.due[i]; ok && now > max(d.by, s.thawedAt+stallGrace) && shows && !wanted {
				k.failLocked("late", "node%d still shows %d: %s", node, i, d.why)
				delete(k.due, i)
			}
			if shows && !wanted && min(now-k.wantedAt[i], now-k.lastWhole, now-s.thawedAt) > bound {
				k.failLocked("ghost", "node%d shows %d, unwanted for %.1f s", node, i, (now - k.wantedAt[i]).Seconds())
			}
			// Not lost but never there, or not back.
			if shows || !wanted || !t.registered || t.kind != Beat && !t.online || !k.reachesLocked(node, t.node) || !k.liveLocked(node, client, t) {
				delete(s.missing, i)
				continue
			}
			if since, ok := s.missing[i]; !ok {
				s.missing[i] = now
			} else if now-since > missingBound {
				k.failLocked("gap", "node%d has not shown %d for %.1f s, which is alive: %s client%d at node%d", node, i, (now - since).Seconds(), t.kind, client, t.node)
				s.missing[i] = now // once is enough for now
			}
		}
	}
}

// atEnd: after a quiet time all agree with each other and with the truth.
func (k *checker) atEnd() {
	for _, n := range k.c.nodes {
		up, _, _ := n.state()
		if !up {
			continue
		}
		k.mu.Lock()
		s := k.nodes[n.id]
		if !s.serves {
			k.failLocked("diverge", "at the end %s serves nobody", n.name)
		} else {
			k.compareLocked(n.name, s.shown)
		}
		k.mu.Unlock()
	}
	for _, s := range k.c.clients {
		t := s.truth()
		if s.kind == Beat || !t.online {
			if t.alive && s.kind != Beat && k.anybodyUp() {
				k.fail("diverge", "at the end %s client%d has no connection", s.kind, s.id)
			}
			continue
		}
		s.mu.Lock()
		last := s.last
		s.mu.Unlock()
		k.mu.Lock()
		k.compareLocked(fmt.Sprintf("%s (at node%d)", s.name, t.node), last.hosts)
		k.mu.Unlock()
	}
}

func (k *checker) anybodyUp() bool {
	return slices.ContainsFunc(k.c.nodes, (*Node).isUp)
}

func (k *checker) compareLocked(who string, shown map[int]int) {
	for client, s := range k.c.clients {
		t := s.truth()
		for i := client * perClient; i < (client+1)*perClient; i++ {
			value, shows := shown[i]
			if wanted := t.wanted(i); shows != wanted {
				k.failLocked("diverge", "at the end %s has %d: %v, wanted: %v", who, i, shows, wanted)
			} else if shows && value != t.value {
				k.failLocked("diverge", "at the end %s has %d with value %d, registered: %d", who, i, value, t.value)
			}
		}
	}
}

func (k *checker) isCut(from, to int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.cut[[2]int{from, to}]
}

// allServe reports whether every node has given a list.
func (k *checker) allServe() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !slices.ContainsFunc(k.nodes[:k.c.founders()], func(s *seen) bool { return !s.serves })
}
