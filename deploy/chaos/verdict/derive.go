package verdict

import (
	"cmp"
	"fmt"
	"slices"
)

// An Excuse is a time in which an observer may miss a live provider.
type Excuse struct {
	From Millis `json:"fromMs"`
	To   Millis `json:"toMs"`
	Why  string `json:"why"`
}

// A Deadline is a time by which something must be seen, with the rule that it
// comes from.
type Deadline struct {
	By  Millis
	Why string
}

// A derivation is what a timeline's faults allow, worked out from what was done
// to nodes, links and clients and from nothing that anybody saw.
type derivation struct {
	t     *Timeline
	l     *Limits
	w     *world
	paths map[string]path        // of providers and observers, by name; unknown ones are not in it
	sure  map[string][]stretch   // when no lease runs, by node: for sure
	maybe map[string][]stretch   // and perhaps
	cache map[[2]string][]Excuse // by provider and node
	dues  map[[2]string]Millis   // by provider and observer
}

// Derive works out what must hold of a timeline: what a scenario's author would
// write by hand.
//
// Live is a provider for an observer while its owner is reachable from the
// observer's side, or it can be dialled from there, or the cut is shorter than
// the lease. Where nobody outside can know which node a client or an observer
// is at, each that it may be at counts.
func Derive(t *Timeline, l Limits) *Expectation {
	d := &derivation{t: t, l: &l, w: newWorld(t, &l), paths: map[string]path{}, sure: map[string][]stretch{}, maybe: map[string][]stretch{},
		cache: map[[2]string][]Excuse{}, dues: map[[2]string]Millis{}}
	for i := range t.Providers {
		if p := &t.Providers[i]; p.Beats {
			d.paths["p "+p.Name] = d.w.beats(p.Group, p.UpMs)
		} else {
			d.paths["p "+p.Name] = d.w.follow(p.Group, p.SDK, p.Node, p.RedoMs, p.UpMs)
		}
	}
	for i := range t.Observers {
		switch o := &t.Observers[i]; {
		case o.Reader:
			d.paths["o "+o.Name] = path{spells: []spell{{node: o.Node, from: ever, to: never}}}
		case o.PollsMs > 0:
			d.paths["o "+o.Name] = d.w.beats(o.Group, ever)
		default:
			d.paths["o "+o.Name] = d.w.follow(o.Group, o.SDK, o.Node, o.RedoMs, ever)
		}
	}
	return &Expectation{derived: d}
}

// heard is how long after a heal nodes are equal, and observers told.
func (d *derivation) heard(t Millis) Millis {
	if t >= never {
		return never
	}
	return t + d.l.Equal + d.l.Slack + d.w.drag(t, t+d.l.Equal)
}

// late is when what is done at t is seen.
func (d *derivation) late(t Millis) Millis {
	if t >= never {
		return never
	}
	return t + d.l.Slack + d.w.drag(t, t)
}

// excuses are the times in which the observer may miss the provider: those of
// each node while the observer may be there, and on until it is told again.
func (d *derivation) excuses(p *Provider, o *Observer) []Excuse {
	var list []Excuse
	at := d.paths["o "+o.Name]
	for _, s := range at.spells {
		for _, e := range d.lacks(p, s.node) {
			from, to := max(e.From, s.from), min(e.To, s.to)
			if from >= to {
				continue
			}
			list = append(list, Excuse{from, d.deaf(o, to), e.Why})
		}
		// One that stays where it saw the provider cannot say that nobody told.
		if s.from > p.UpMs || !o.Reader && o.PollsMs > 0 || o.Reader && p.Node == s.node {
			for _, e := range d.news(p, s.node) {
				if from, to := max(e.From, s.from), min(e.To, s.to); from < to {
					list = append(list, Excuse{from, d.deaf(o, to), e.Why})
				}
			}
		}
	}
	slices.SortFunc(list, func(a, b Excuse) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(b.To, a.To)) })
	return list
}

// deaf is until when an observer may go on to show what it was told last, if it
// can be told the next thing at t: on its way to another node it cannot.
func (d *derivation) deaf(o *Observer, t Millis) Millis {
	if t >= never {
		return never
	}
	until := t
	at := d.paths["o "+o.Name]
	for _, s := range at.spells {
		if s.to < never && s.asked <= t && t < s.lost { // at any time then it may go
			until = max(until, t+d.l.Connect+o.RedoMs)
		}
	}
	for again := true; again; {
		again = false
		for _, s := range at.stuck {
			if s.to >= never && s.from <= until {
				return never
			}
			if s.from <= until && until < s.to+d.l.Slack {
				until, again = s.to+d.l.Slack, true
			}
		}
	}
	return until + o.PollsMs
}

// lacks are the times in which what a node shows may lack the provider.
func (d *derivation) lacks(p *Provider, m string) []Excuse {
	key := [2]string{p.Name, m}
	if list, ok := d.cache[key]; ok {
		return list
	}
	var list []Excuse
	add := func(from, to Millis, format string, args ...any) {
		if from < to {
			list = append(list, Excuse{from, to, fmt.Sprintf(format, args...)})
		}
	}
	where := d.paths["p "+p.Name]
	for _, s := range where.spells {
		for _, silence := range d.w.silences(m, s.node) {
			if silence.to <= s.from || silence.from >= s.to {
				continue
			}
			if silence.from < s.from && silence.from != ever {
				continue // it came there meanwhile: where it came from counts, or news
			}
			kept, probed := d.kept(p, m, s.node, silence)
			if kept >= silence.to && d.w.state(d.w.at(silence.to), s.node) != Starting {
				continue // it spoke again before the lease was over
			}
			if s.to == never || s.lost >= silence.to {
				why := "nobody there may dial it"
				if probed {
					why = "it was kept for as long as it can be dialled"
				}
				add(kept, d.told(p, silence.to), "%s, where it was, was out of %s's reach from %v to %s, longer than the lease, and %s",
					s.node, m, silence.from, end(silence.to), why)
				continue
			}
			// It lost that node, too. A lease is made for one that does so when the
			// silence begins and goes to the next node.
			if later := d.beyond(p, m, s.to); later > s.to {
				add(kept, later, "it lost %s at %v and went to a node out of %s's reach until %s, longer than the lease", s.node, s.lost, m, end(later))
			} else if !s.firm || s.lost-silence.from > d.l.Slack {
				add(kept, d.late(s.to), "%s was out of %s's reach from %v on, and until %s nothing let it register elsewhere for sure: longer than the lease",
					s.node, m, silence.from, end(s.to))
			}
		}
	}
	for _, b := range where.breaches {
		from := b.from
		to := max(b.to, d.beyond(p, m, b.to))
		to = d.late(to)
		if b.node == "" {
			add(from, to, "its beats reached no node from %v on", b.began)
		} else {
			add(from, to, "its own way to %s was cut at %v; it notices after %v to %v", b.node, b.began, d.l.NoticeFrom, d.l.noticed(p.SDK))
		}
	}
	if p.Beats {
		// Each side of a cut may have had another owner for it.
		for _, n := range d.w.nodes {
			for _, silence := range d.w.silences(m, n) {
				if n != m && silence.to < never && silence.to-silence.from >= d.l.Equal {
					add(silence.to, d.told(p, silence.to), "owners of HTTP clients differed on two sides of a cut until %v, which holds until the next beat", silence.to)
				}
			}
		}
	}
	for _, n := range d.w.nodes {
		for _, r := range d.w.restarts(n) {
			if n != m && !d.w.together(d.w.at(r.up), m, n) {
				continue
			}
			if p.UpMs < r.down && !r.stopped && p.UpMs > r.down-d.l.Snapshot-d.l.Slack {
				add(r.up, d.returned(p, r.up), "it registered less than %v before all nodes that reach %s were down, since the last snapshot", d.l.Snapshot, m)
			}
		}
	}
	d.cache[key] = list
	return list
}

// told is when a node shows again what another one has, after they were apart.
func (d *derivation) told(p *Provider, t Millis) Millis {
	t = d.heard(t)
	if p.Beats && t < never {
		t += d.l.Beat
	}
	return t
}

// returned is when a client is surely registered again that lost all nodes
// before t.
func (d *derivation) returned(p *Provider, t Millis) Millis {
	at := t
	for _, s := range d.paths["p "+p.Name].spells {
		if s.to < never && s.lost <= t {
			at = max(at, s.to)
		} else if s.to == never && s.from <= t {
			at = max(at, min(t+d.l.Connect+d.l.Backoff+p.RedoMs, never)) // that node kept it
		}
	}
	return d.late(at)
}

// beyond is until when the provider may be at a node that is out of reach at t,
// so that nobody here can be told; t itself if it cannot.
func (d *derivation) beyond(p *Provider, m string, t Millis) Millis {
	until := t
	for again := true; again && until < never; {
		again = false
		for _, s := range d.paths["p "+p.Name].spells {
			if s.from > until || until >= s.to {
				continue
			}
			if silence, ok := d.w.apartAt(m, s.node, until); ok && d.w.state(d.w.at(until), s.node) != Down {
				if later := d.told(p, silence.to); later > until {
					until, again = later, true
				}
			}
		}
	}
	return until
}

// kept is when, at the earliest, a node may stop to show what was on another one
// that has fallen silent, and whether that was put off by dialling it.
func (d *derivation) kept(p *Provider, m, n string, s stretch) (Millis, bool) {
	refused := d.w.refuses(m, n, s)
	need, _ := d.l.leases(refused, p.RedoMs)
	s.from = d.w.heard(m, s.from) // a deadline is an absolute time, also for one that stands still
	until, paused := shift(s.from, need, d.l.Preserved, d.pauses(m, true))
	began := s.from
	for _, k := range d.w.nodes {
		for _, r := range d.w.restarts(k) {
			if r.up > s.from && r.down <= until && r.up-r.down < d.l.SnapshotAge && (k == m || d.w.together(d.w.at(r.up), m, k)) {
				if given, more := shift(r.up, d.given(p.RedoMs), d.l.Preserved, d.pauses(m, true)); given > until {
					until, paused, began = given, more, r.up
				}
			}
		}
	}
	// No lease ends before that of a silent node.
	for again := true; again; {
		again = false
		for _, k := range d.w.nodes {
			if k == m || k == n {
				continue
			}
			for _, z := range d.w.silences(m, k) {
				if z.from >= until || d.w.refuses(m, k, z) || z.to <= s.from {
					continue
				}
				over, _ := shift(z.from, d.l.Lease, d.l.Preserved, d.pauses(m, true))
				if over = min(over, z.to, began+paused+d.l.Hold); over > until {
					until, again = over, true
				}
			}
		}
	}
	last := min(s.from+paused+d.l.Dialled, s.to)
	probed := false
	if p.Dialable {
		for i := d.w.at(until); i < len(d.w.starts) && until < last; i++ {
			if refused && !d.silentAt(i, m) || !d.w.dialled(i, m, p.Group) {
				break
			}
			until, probed = min(d.w.end(i), last), true
		}
	}
	return until, probed
}

// given is the lease of what a snapshot had: its clients have to find a node
// first.
func (d *derivation) given(redo Millis) Millis {
	if d.l.Patience > 0 && redo > d.l.Refused {
		return max(d.l.Restart, redo+d.l.Patience+d.l.Refused)
	}
	return d.l.Restart
}

// silentAt: the node misses a member that does not refuse.
func (d *derivation) silentAt(i int, m string) bool {
	return slices.ContainsFunc(d.w.nodes, func(k string) bool {
		z, ok := d.w.apartAt(m, k, d.w.starts[i])
		return ok && k != m && !d.w.refuses(m, k, z)
	})
}

// shift is when a time is over that stands still during pauses, up to a bound.
func shift(from, need, most Millis, pauses []stretch) (until, paused Millis) {
	for _, z := range pauses {
		if begin := max(z.from, from); begin < from+need+paused && z.to > begin {
			paused += min(z.to-begin, most-paused)
		}
	}
	return from + need + paused, paused
}

// pauses are when no lease runs at a node, because more are silent than leave a
// majority of those that were alive long enough: for sure, because everybody it
// is together with sees it so, or perhaps.
func (d *derivation) pauses(m string, sure bool) []stretch {
	if d.l.Preserved == 0 {
		return nil
	}
	known := d.maybe
	if sure {
		known = d.sure
	}
	list, ok := known[m]
	if !ok {
		list = d.w.when(func(i int) bool {
			if !sure {
				return d.quiet(i, m, 0)
			}
			for n := range d.w.sides[i][m] {
				if d.w.speaks(i, n) && (!d.quiet(i, n, d.l.Stable) || d.w.starts[i]-d.w.upSince(i, n) < d.l.Stable) {
					return false
				}
			}
			return d.w.speaks(i, m)
		})
		known[m] = list
	}
	return list
}

// quiet: the silent ones leave no majority of those that the node counts. Without
// an age it may be that those count no more which refuse or have left.
func (d *derivation) quiet(i int, m string, age Millis) bool {
	all, silent := 0, 0
	for _, n := range d.w.nodes {
		z, apart := d.w.apartAt(m, n, d.w.starts[i])
		refuses := apart && (n == m || d.w.refuses(m, n, z))
		if !d.stable(n, i, age) || age == 0 && refuses {
			continue
		}
		all++
		if apart && !refuses {
			silent++
		}
	}
	return silent > 0 && silent > all-(all/2+1)
}

// stable: it was up for that long without a break, and has not left since.
func (d *derivation) stable(n string, i int, age Millis) bool {
	ok, since := false, ever
	for j := 0; j <= i; j++ {
		switch s := d.w.state(j, n); {
		case s == Down && j > 0 && d.w.state(j-1, n) == Stopping:
			ok = false
		case s == Up && j > 0 && d.w.state(j-1, n) == Up:
		case s == Up:
			since = d.w.starts[j]
		}
		if d.w.state(j, n) == Up && min(d.w.end(j), d.w.starts[i])-since >= age {
			ok = true
		}
	}
	return ok
}

// news are the times in which a node need not know a provider that it was never
// told of: it registered out of the node's reach, or in the last moment before
// its own node was killed. This is only for observers that have seen it
// elsewhere.
func (d *derivation) news(p *Provider, m string) []Excuse {
	where := d.paths["p "+p.Name]
	if len(where.spells) == 0 || p.Beats {
		return nil
	}
	first := where.spells[0] // known, or one of those that it may be at
	var list []Excuse
	for _, s := range where.spells {
		if s.from != first.from {
			continue
		}
		ended := never
		if s.to < never {
			ended = s.lost
		}
		moment := d.l.Moment + d.w.drag(p.UpMs, p.UpMs+d.l.Moment)
		met := p.UpMs // when the node has been together with it for a moment
		if z, ok := d.w.apartAt(m, s.node, p.UpMs); ok && m != s.node {
			met = z.to
		}
		if met+moment <= ended && met == p.UpMs {
			continue // it was told
		}
		to := d.heard(met)
		why := fmt.Sprintf("it registered on %s when that was out of %s's reach", s.node, m)
		if met+moment > ended {
			if d.stopped(s.node, ended) {
				continue // that told everybody
			}
			to = max(s.to, d.beyond(p, m, s.to))
			to = d.late(to)
			if met == p.UpMs {
				why = fmt.Sprintf("it registered on %s %v before that was killed", s.node, ended-p.UpMs)
			}
		}
		list = append(list, Excuse{p.UpMs, to, why})
	}
	return list
}

func (d *derivation) stopped(n string, at Millis) bool {
	i := d.w.at(at)
	return i > 0 && d.w.state(i-1, n) == Stopping
}

// due is by when an observer must have seen the provider for the first time.
func (d *derivation) due(p *Provider, o *Observer) Millis {
	key := [2]string{p.Name, o.Name}
	by, ok := d.dues[key]
	if ok {
		return by
	}
	by = p.UpMs + d.l.Reset + d.l.Slack + d.w.drag(p.UpMs, p.UpMs+d.l.Reset)
	// It may be told by each node that it may be at.
	for _, s := range d.paths["o "+o.Name].spells {
		if s.to <= p.UpMs {
			continue
		}
		for _, e := range d.news(p, s.node) {
			if e.From < s.to && s.from < e.To {
				by = max(by, min(e.To, s.to))
			}
		}
	}
	for _, e := range d.excuses(p, o) {
		if e.From <= by {
			by = max(by, e.To)
		}
	}
	if p.Beats {
		by += d.l.Beat // the first beat
	}
	by = d.deaf(o, by)
	d.dues[key] = by
	return by
}

// mayReturn: the observer may have gone to another node between the two times,
// its own one restarted with nothing but a snapshot, or, of one that beats, a
// node went on whose deadlines begin anew.
func (d *derivation) mayReturn(p *Provider, o *Observer, left, back Millis) bool {
	nodes := map[string]bool{}
	for _, s := range d.paths["o "+o.Name].spells {
		if s.from <= back && left < s.to {
			nodes[s.node] = true
		}
	}
	for n := range nodes {
		if r, ok := d.w.restarted(n, back); ok && r.up > left {
			return true
		}
		for i := d.w.at(left); p.Beats && i < len(d.w.starts) && d.w.starts[i] <= back; i++ {
			for _, k := range d.w.nodes {
				if i > 0 && d.w.state(i-1, k) == Frozen && d.w.state(i, k) == Up {
					return true
				}
			}
		}
	}
	return len(nodes) > 1
}

func end(t Millis) string {
	if t >= never {
		return "the end"
	}
	return t.String()
}
