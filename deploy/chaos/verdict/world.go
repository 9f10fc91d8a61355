package verdict

import (
	"cmp"
	"maps"
	"math"
	"slices"
)

// The ends of time: before and after all that was recorded.
const (
	ever  Millis = math.MinInt64 / 4
	never Millis = math.MaxInt64 / 4
)

// A stretch is a time from and to which something holds; to is not part of it.
type stretch struct{ from, to Millis }

func (s stretch) has(t Millis) bool { return s.from <= t && t < s.to }

// A world is what was made of nodes and links, as stretches of time in which
// nothing was changed. It is worked out once and then only read.
type world struct {
	limits *Limits
	nodes  []string
	starts []Millis // of the stretches; the first is ever
	states []map[string]NodeState
	links  []map[[2]string]LinkChange
	// sides has for each stretch and node those it is together with, as if it
	// could hear and speak itself.
	sides   []map[string]map[string]bool
	apart   map[[2]string][]stretch // silences, by node and other node
	renewed map[string][]restart
}

func newWorld(t *Timeline, l *Limits) *world {
	w := &world{limits: l, starts: []Millis{ever}, apart: map[[2]string][]stretch{}, renewed: map[string][]restart{}}
	add := func(name string) {
		if name != "" && !slices.Contains(w.nodes, name) {
			w.nodes = append(w.nodes, name)
		}
	}
	nodes := inOrder(t.Nodes)
	for _, n := range nodes {
		add(n.Node)
		w.starts = append(w.starts, n.AtMs)
	}
	told := len(w.nodes) // of whom it is told what was made of them
	for _, p := range t.Providers {
		add(p.Node)
	}
	for _, o := range t.Observers {
		add(o.Node)
	}
	for _, c := range t.Links {
		w.starts = append(w.starts, c.AtMs)
	}
	slices.Sort(w.starts)
	w.starts = slices.Compact(w.starts)
	slices.Sort(w.nodes[told:])

	// A node of which nothing is told was always there: the cluster is not ours.
	state := map[string]NodeState{}
	for _, n := range w.nodes[told:] {
		state[n] = Up
	}
	link := map[[2]string]LinkChange{}
	links := slices.Clone(t.Links)
	slices.SortStableFunc(links, func(a, b LinkChange) int { return cmp.Compare(a.AtMs, b.AtMs) })
	for _, at := range w.starts {
		for ; len(nodes) > 0 && nodes[0].AtMs <= at; nodes = nodes[1:] {
			state[nodes[0].Node] = nodes[0].State
		}
		for ; len(links) > 0 && links[0].AtMs <= at; links = links[1:] {
			link[[2]string{links[0].From, links[0].To}] = links[0]
		}
		states, now := map[string]NodeState{}, map[[2]string]LinkChange{}
		maps.Copy(states, state)
		maps.Copy(now, link)
		w.states, w.links = append(w.states, states), append(w.links, now)
		w.sides = append(w.sides, w.sidesOf(len(w.states)-1))
	}
	return w
}

// inOrder sorts changes. Those of one node have times of their own: one that is
// down and started in the same millisecond was down.
func inOrder(changes []NodeChange) []NodeChange {
	list := slices.Clone(changes)
	byTime := func(a, b NodeChange) int { return cmp.Compare(a.AtMs, b.AtMs) }
	slices.SortStableFunc(list, byTime)
	last := map[string]Millis{}
	for i := range list {
		c := &list[i]
		if before, ok := last[c.Node]; ok {
			c.AtMs = max(c.AtMs, before+1)
		}
		last[c.Node] = c.AtMs
	}
	slices.SortStableFunc(list, byTime)
	return list
}

// at is the stretch that a time lies in.
func (w *world) at(t Millis) int {
	i, found := slices.BinarySearch(w.starts, t)
	if !found {
		i--
	}
	return max(i, 0)
}

// end is when a stretch ends.
func (w *world) end(i int) Millis {
	if i+1 < len(w.starts) {
		return w.starts[i+1]
	}
	return never
}

// when are the times at which it holds, as few stretches as possible.
func (w *world) when(holds func(i int) bool) []stretch {
	var list []stretch
	for i, from := range w.starts {
		switch last := len(list) - 1; {
		case !holds(i):
		case last >= 0 && list[last].to == from:
			list[last].to = w.end(i)
		default:
			list = append(list, stretch{from, w.end(i)})
		}
	}
	return list
}

// bridged joins stretches with less than the gap between them.
func bridged(list []stretch, gap Millis) []stretch {
	var all []stretch
	for _, s := range list {
		if last := len(all) - 1; last >= 0 && s.from-all[last].to < gap {
			all[last].to = max(all[last].to, s.to)
		} else {
			all = append(all, s)
		}
	}
	return all
}

func (w *world) state(i int, node string) NodeState { return w.states[i][node] }

// speaks: its process runs and is not frozen, so it hears and answers its peers.
func (w *world) speaks(i int, node string) bool {
	s := w.state(i, node)
	return s == Up || s == Starting || s == Stopping
}

// open: a connection between two ends can live. What is sent goes both ways, also
// if only one of them is meant.
func (w *world) open(i int, a, b string) bool {
	there, back := w.links[i][[2]string{a, b}], w.links[i][[2]string{b, a}]
	return a == b || !there.Cut && !back.Cut &&
		1-(1-there.Loss)*(1-back.Loss) < w.limits.Loss && there.DelayMs+back.DelayMs < w.limits.RoundTrip
}

func (w *world) sidesOf(i int) map[string]map[string]bool {
	all := map[string]map[string]bool{}
	for _, from := range w.nodes {
		side := map[string]bool{from: true}
		for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
			for _, n := range w.nodes {
				if !side[n] && w.speaks(i, n) && w.open(i, queue[0], n) {
					side[n] = true
					queue = append(queue, n)
				}
			}
		}
		all[from] = side
	}
	return all
}

// together: the other one speaks, and something leads to it. What becomes of the
// node itself does not count: one that stood still loses nobody for that.
func (w *world) together(i int, node, other string) bool { return w.sides[i][node][other] }

// silences are when the other one was not together with the node. A heal that is
// shorter than what nodes need to find each other ends none.
func (w *world) silences(node, other string) []stretch {
	key := [2]string{node, other}
	list, ok := w.apart[key]
	if !ok {
		there := false // before it was there first, it was not silent
		list = bridged(w.when(func(i int) bool {
			there = there || w.speaks(i, other)
			return node != other && there && !w.together(i, node, other) ||
				node == other && there && w.state(i, other) == Down
		}), w.limits.Equal)
		w.apart[key] = list
	}
	return list
}

// apartAt is the silence that a time lies in.
func (w *world) apartAt(node, other string, t Millis) (stretch, bool) {
	for _, s := range w.silences(node, other) {
		if s.has(t) {
			return s, true
		}
	}
	return stretch{}, false
}

// refuses: a silence began with the end of the other one's process, while
// something led to it, so that the node was refused; else it met silence.
func (w *world) refuses(node, other string, s stretch) bool {
	i := w.at(s.from)
	if node == other {
		return true
	}
	if w.state(i, other) != Down || i == 0 {
		return false
	}
	if w.open(i, node, other) {
		return true
	}
	for n := range w.sides[i][node] {
		if w.open(i, n, other) {
			return true
		}
	}
	return false
}

// takes: a client in the place of that group can connect to the node.
func (w *world) takes(i int, group, node string) bool {
	return w.state(i, node) == Up && w.open(i, group, node)
}

// keeps: a connection from there goes on.
func (w *world) keeps(i int, group, node string) bool {
	s := w.state(i, node)
	return (s == Up || s == Stopping) && w.open(i, group, node)
}

// takers are the nodes that take a client of that group at some time.
func (w *world) takers(group string, from, to Millis) []string {
	var list []string
	for _, n := range w.nodes {
		for i := w.at(from); i < len(w.starts) && w.starts[i] <= to; i++ {
			if w.takes(i, group, n) {
				list = append(list, n)
				break
			}
		}
	}
	return list
}

// taken is when a client of that group can connect to any node, from t on.
func (w *world) taken(group string, t Millis) Millis {
	for i := w.at(t); i < len(w.starts); i++ {
		for _, n := range w.nodes {
			if w.takes(i, group, n) {
				return max(t, w.starts[i])
			}
		}
	}
	return never
}

// dialled: every node that may be told to can reach the group's place. Which one
// is told, nobody outside knows.
func (w *world) dialled(i int, node, group string) bool {
	for n := range w.sides[i][node] {
		if w.speaks(i, n) && !w.open(i, n, group) {
			return false
		}
	}
	return true
}

// drag is what links that are only slow or lossy add to everything between from
// and to: four one-way trips, what is lost, and a long list.
func (w *world) drag(from, to Millis) Millis {
	worst := Millis(0)
	for i := w.at(from); i < len(w.starts) && w.starts[i] <= to; i++ {
		for _, c := range w.links[i] {
			d := 4 * c.DelayMs
			if c.Loss > 0 {
				d += retransmissions
			}
			if c.Rate > 0 {
				d += Millis(longList * 1000 / c.Rate)
			}
			if !c.Cut {
				worst = max(worst, d)
			}
		}
	}
	return worst
}

// A restart is a node that became ready with no ready one to ask: it had nothing
// but its snapshot.
type restart struct {
	up, down Millis // when it was ready, and when the process before was gone
	stopped  bool   // that one, and so wrote all it knew
}

// restarts are those of the node. One that is there for the first time has none.
func (w *world) restarts(node string) []restart {
	list, ok := w.renewed[node]
	if ok {
		return list
	}
	for i := 1; i < len(w.starts); i++ {
		if w.state(i, node) != Up || w.state(i-1, node) != Starting {
			continue
		}
		alone, gone := true, i-1
		for ; gone > 0 && w.state(gone, node) == Starting; gone-- {
			for _, n := range w.nodes {
				alone = alone && (n == node || w.state(gone, n) != Up || !w.together(gone, node, n))
			}
		}
		for gone > 0 && w.state(gone-1, node) == Down {
			gone--
		}
		if alone && w.state(gone, node) == Down {
			list = append(list, restart{w.starts[i], w.starts[gone], gone > 0 && w.state(gone-1, node) == Stopping})
		}
	}
	w.renewed[node] = list
	return list
}

// restarted is the last such restart, by t, of the node or of one that it was
// together with then: those that follow take what the first one has.
func (w *world) restarted(node string, t Millis) (last restart, ok bool) {
	for _, n := range w.nodes {
		for _, r := range w.restarts(n) {
			if r.up <= t && (!ok || r.up > last.up) && (n == node || w.together(w.at(r.up), node, n)) {
				last, ok = r, true
			}
		}
	}
	return last, ok
}

// upSince is since when the process of a node has been up, frozen or not; the
// stretch itself if it is not.
func (w *world) upSince(i int, node string) Millis {
	for i > 0 && (w.state(i-1, node) == Up || w.state(i-1, node) == Frozen) {
		i--
	}
	return w.starts[i]
}

// ended: its process came to an end between two times.
func (w *world) ended(node string, from, to Millis) bool {
	for i := w.at(from); i < len(w.starts) && w.starts[i] <= to; i++ {
		if w.state(i, node) == Down {
			return true
		}
	}
	return false
}

// heard is until when a node heard others last before t: not while it stood still.
func (w *world) heard(node string, t Millis) Millis {
	for i := w.at(t); i > 0 && w.state(i, node) == Frozen; i-- {
		t = w.starts[i]
	}
	return t
}

// hears is when it hears others next, from t on.
func (w *world) hears(node string, t Millis) Millis {
	for i := w.at(t); t < never && w.state(i, node) == Frozen; i++ {
		t = w.end(i)
	}
	return t
}
