package verdict

import (
	"cmp"
	"slices"
)

// A spell is a time in which a client may have been at a node: the node owns
// what it registered, or tells it what it subscribed to.
type spell struct {
	node     string
	from, to Millis // by to it is registered, or subscribed, elsewhere; never: it stayed
	lost     Millis // when the node was lost, to < never
	asked    Millis // since when the node asked it to go, if it did so before; else as lost
	// firm: nothing but the loss of this node kept the client from being back in
	// time, so the leases are made for it.
	firm bool
}

// A breach is when a client's own way to its node was cut: nobody else need know.
type breach struct {
	node     string
	from, to Millis // from the earliest notice to when it is surely back
	began    Millis
}

// A path is where a client may have been.
type path struct {
	spells   []spell
	breaches []breach
	stuck    []stretch // from a loss, also one that it may have sat out, to when it is surely back
}

// A loss is a time in which a connection from a place to a node cannot live.
type loss struct {
	node        string
	from, to    Millis
	first, last Millis // when the client can notice, and does
	stop        bool   // the node sent it away before it ended
	path        bool   // the node is well, the way to it is not
	sure        bool   // nobody stays through it
}

// losses are those of a place, in the order in which clients can notice them.
// What is shorter than anybody notices is none.
func (w *world) losses(group, sdk string) []loss {
	var all []loss
	noticed := w.limits.noticed(sdk)
	for _, n := range w.nodes {
		there := false
		for _, s := range bridged(w.when(func(i int) bool {
			there = there || w.keeps(i, group, n)
			return there && !w.keeps(i, group, n)
		}), breather) {
			i := w.at(s.from)
			l := loss{node: n, from: s.from, to: s.to, first: s.from + w.limits.NoticeFrom, last: min(s.from+noticed, s.to)}
			l.path = w.speaks(i, n)
			l.sure = s.to-s.from >= noticed
			for j := i; j < len(w.starts) && w.starts[j] < s.to; j++ {
				if w.state(j, n) != Down {
					continue
				}
				l.sure = true
				if w.open(j, group, n) { // it is told by a reset, else it waits for an answer
					l.first, l.last = min(l.first, max(s.from, w.starts[j])), min(l.last, max(s.from, w.starts[j]))
				} else {
					l.last = s.from + noticed
				}
				break
			}
			if !l.sure && s.to-s.from < w.limits.NoticeFrom {
				continue
			}
			if i > 0 && w.state(i, n) == Down && w.state(i-1, n) == Stopping {
				for l.stop = true; i > 0 && w.state(i-1, n) == Stopping; i-- {
					l.first = w.starts[i-1]
				}
			}
			all = append(all, l)
		}
	}
	slices.SortStableFunc(all, func(a, b loss) int { return cmp.Compare(a.first, b.first) })
	return all
}

// follow says where a client may have been from a time on. Where it was when is
// known only until something happens to its node or its way there: from then on
// it may be at each that its place reaches.
func (w *world) follow(group, sdk, node string, redo, from Millis) path {
	var p path
	at := map[string]int{} // index of the spell that goes on
	arrive := func(n string, t Millis) {
		if _, ok := at[n]; !ok {
			at[n] = len(p.spells)
			p.spells = append(p.spells, spell{node: n, from: t, to: never, firm: true})
		}
	}
	back := ever // by then it is somewhere again
	if node != "" {
		arrive(node, from)
	} else {
		for _, n := range w.takers(group, from, w.taken(group, from)) {
			arrive(n, from)
		}
	}
	for _, l := range w.losses(group, sdk) {
		i, here := at[l.node]
		if !here || l.to <= max(p.spells[i].from, from) {
			continue
		}
		s := &p.spells[i]
		returned := w.taken(group, l.last)
		// A node that it finds may be lost again before: that is the next loss.
		waited := returned > l.last
		if returned < never {
			returned += w.limits.Connect + w.silent(group, returned)*w.limits.Timeout + redo
			if waited {
				returned += w.limits.Backoff
			}
		}
		interrupted := back > l.first
		if interrupted {
			for j := range p.spells {
				if q := &p.spells[j]; q.to < never && q.to > l.first {
					q.to = max(q.to, returned)
					q.firm = q.firm && l.stop
				}
			}
			for j := range p.breaches {
				if b := &p.breaches[j]; b.to > l.first {
					b.to = max(b.to, returned)
				}
			}
		}
		p.stuck = append(p.stuck, stretch{l.from, returned})
		if l.path {
			p.breaches = append(p.breaches, breach{l.node, l.first, returned, l.from})
		}
		if l.sure {
			s.lost, s.asked, s.to, s.firm = l.from, l.from, returned, !waited && (!interrupted || l.stop)
			delete(at, l.node)
			if l.stop {
				s.asked = l.first
			}
		}
		// takers has the lost node again if it is well before the client is back.
		for _, n := range w.takers(group, l.first, returned) {
			arrive(n, max(l.first, w.firstTaken(group, n, l.first))+w.limits.Moment)
		}
		back = max(back, returned)
	}
	return p
}

// silent is how many nodes give a client from there no answer: each costs it a
// time-out on its way.
func (w *world) silent(group string, t Millis) Millis {
	count, i := Millis(0), w.at(t)
	for _, n := range w.nodes {
		if s := w.state(i, n); s == Frozen || s != "" && !w.open(i, group, n) {
			count++
		}
	}
	return count
}

func (w *world) firstTaken(group, node string, t Millis) Millis {
	for i := w.at(t); i < len(w.starts); i++ {
		if w.takes(i, group, node) {
			return max(t, w.starts[i])
		}
	}
	return never
}

// beats says where a client may be owned that lives by beats: it sends each to
// any node, which hands it to the one that its hash names among those that are
// ready there.
func (w *world) beats(group string, from Millis) path {
	var p path
	l := w.limits
	for _, n := range w.nodes {
		for _, s := range w.when(func(i int) bool {
			return w.speaks(i, n) && slices.ContainsFunc(w.nodes, func(k string) bool { return w.takes(i, group, k) && (k == n || w.together(i, k, n)) })
		}) {
			if s.to <= from {
				continue
			}
			sp := spell{node: n, from: max(s.from, from), to: never}
			if s.to < never {
				returned := w.taken(group, s.to)
				sp.lost, sp.asked, sp.firm = s.to, s.to, returned <= s.to+l.Beat
				sp.to = returned
				if returned < never {
					sp.to += l.Beat + l.Connect + w.silent(group, returned)*l.Timeout
				}
			}
			p.spells = append(p.spells, sp)
		}
	}
	for _, s := range w.when(func(i int) bool { return w.takerIn(i, group) == "" }) {
		if s.to-s.from > l.BeatFrom && s.from >= from {
			to := s.to
			if to < never {
				to += l.Beat + l.Connect
			}
			p.breaches = append(p.breaches, breach{"", s.from + l.BeatFrom, to, s.from})
			p.stuck = append(p.stuck, stretch{s.from, to})
		}
	}
	return p
}

// takerIn is a node that takes clients from there in a stretch, "" if none does.
func (w *world) takerIn(i int, group string) string {
	for _, n := range w.nodes {
		if w.takes(i, group, n) {
			return n
		}
	}
	return ""
}
