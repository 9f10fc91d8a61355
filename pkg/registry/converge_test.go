package registry

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A turn is what became of a life at some time, as all nodes but its own see
// it sooner or later.
type turn struct {
	state LifeState
	at    Stamp
}

// A knower is a peer and the facts that have reached it, kept as a plain list.
type knower struct {
	*peer
	newest map[Life]map[RecordKey]Record
	hides  []factHide
	probes []Probe
	checks []Check
	turns  map[Life]int // how many it has heard of
	log    []Change     // that it has carried out
	over   []Edit       // that it has ended
}

// durable is what the log says, as far as the knower has it.
func (k *knower) durable() (rows map[InstanceKey]*Persistent, edits map[InstanceKey]*Override) {
	rows, edits = map[InstanceKey]*Persistent{}, map[InstanceKey]*Override{}
	for _, c := range k.log {
		for _, i := range c.Instances {
			if rows[i.InstanceKey] = i.Is; i.Is == nil {
				delete(rows, i.InstanceKey)
			}
		}
		for _, o := range c.Overrides {
			if edits[o.InstanceKey] = o.Is; o.Is == nil {
				delete(edits, o.InstanceKey)
			}
		}
	}
	for _, e := range k.over {
		if o := edits[e.InstanceKey]; o != nil && o.Revision == e.Revision {
			delete(edits, e.InstanceKey)
		}
	}
	return rows, edits
}

// health is what the newest check found, unless the registration is newer.
func (k *knower) health(p *Persistent) bool {
	healthy, made, by := p.Healthy, p.Judged, Life{}
	for _, c := range k.checks {
		if c.InstanceKey == p.InstanceKey && (c.Made > made || c.Made == made && by != (Life{}) && c.By.compare(by) > 0) {
			healthy, made, by = c.Healthy, c.Made, c.By
		}
	}
	return healthy
}

type factHide struct {
	Hide
	kind Kind
}

func (k *knower) learn(life Life, rec Record) {
	if k.newest[life] == nil {
		k.newest[life] = map[RecordKey]Record{}
	}
	k.newest[life][rec.RecordKey] = rec
	for _, h := range rec.Hides {
		k.hides = append(k.hides, factHide{h, rec.Kind})
	}
}

// A candidate is a registration that a view may show.
type candidate struct {
	Published
	of                 Life
	client             string
	kind               Kind
	clock              Stamp // of its record
	moving, living     bool
	back, lifted, last Stamp
	dropped            bool
}

// view is the rule of design §4, without any order of events: of all facts, in
// as many words as it needs.
func (k *knower) view(history map[Life][]turn) []string {
	var all []candidate
	for life, recs := range k.newest {
		var state LifeState
		var back, last Stamp
		var lifted [2]Stamp // for the quick, for the slow
		var returning [2]bool
		for _, t := range history[life][:k.turns[life]] {
			if life == k.life { // of itself it knows only that it has spoken again
				if t.state == Living {
					back = t.at
				}
				continue
			}
			switch state = t.state; state {
			case Dropped:
				returning = [2]bool{true, true}
			case Waning:
				returning[0] = true
			case Living:
				back = t.at
				for i := range returning {
					if returning[i] {
						lifted[i], returning[i] = t.at, false
					}
				}
			}
			last = max(last, t.at)
		}
		for key, rec := range recs {
			if rec.Gone {
				continue
			}
			slow := min(rec.Redo, 1)
			for _, is := range rec.Instances {
				all = append(all, candidate{is, life, key.Client, rec.Kind, rec.Clock, rec.Moving, state == Living, back, lifted[slow], last,
					state == Dropped || state == Waning && slow == 0})
			}
		}
	}
	best := map[InstanceKey]candidate{}
next:
	for _, c := range all {
		stands := c.living && !c.moving
		if c.suppressed() {
			continue
		}
		for _, o := range all { // what is suppressed hides as it were removed
			if o.InstanceKey == c.InstanceKey && o.kind == c.kind && o.suppressed() && c.Since <= o.Since && !stands {
				continue next
			}
		}
		for _, h := range k.hides {
			if h.InstanceKey == c.InstanceKey && h.kind == c.kind && c.Since <= h.UpTo && (h.Strong || !stands) {
				continue next
			}
		}
		for _, p := range k.probes {
			if p.Instance != c.InstanceKey {
				continue
			}
			spoken := c.living || c.last > p.Made
			switch {
			case p.Of != c.of && c.Since <= p.UpTo && !stands,
				p.Of == c.of && !spoken && (c.Since <= p.UpTo || c.moving),
				p.Of == c.of && spoken && c.moving && c.clock < max(p.Made, c.back):
				continue next
			}
		}
		if b, ok := best[c.InstanceKey]; !ok || c.beats(b) {
			best[c.InstanceKey] = c
		}
	}
	rows, edits := k.durable()
	var out []string
	line := func(at InstanceKey, weight float64, healthy bool, of Life, client string) {
		evicted := ""
		if o := edits[at]; o != nil {
			if o.Weight != nil {
				weight = *o.Weight
			}
			if o.Evicted {
				evicted = "evicted "
			}
		}
		out = append(out, fmt.Sprint(evicted, at.IP, " w", weight, " ", healthy, " ", of, " ", client))
	}
	for at, c := range best {
		if rows[at] == nil {
			line(at, c.Weight, c.Healthy, c.of, c.client)
		}
	}
	for at, p := range rows {
		line(at, p.Weight, k.health(p), Life{}, at.IP+":80#false")
	}
	slices.Sort(out)
	return out
}

func (c candidate) suppressed() bool { return c.dropped || c.moving && c.clock < c.lifted }

func (c candidate) beats(o candidate) bool {
	cs, os := c.living && !c.moving, o.living && !o.moving
	switch {
	case c.Since != o.Since:
		return c.Since > o.Since
	case cs != os:
		return cs
	case c.of != o.of:
		return c.of.compare(o.of) > 0
	}
	return c.client > o.client
}

func (k *knower) shows() []string {
	var out []string
	snap := k.Snapshot(order)
	for _, e := range snap.Instances {
		out = append(out, fmt.Sprint(e.IP, " w", e.Weight, " ", e.Healthy, " ", e.Life, " ", e.Client))
	}
	for _, e := range snap.Evicted {
		out = append(out, fmt.Sprint("evicted ", e.IP, " w", e.Weight, " ", e.Healthy, " ", e.Life, " ", e.Client))
	}
	slices.Sort(out)
	return out
}

// TestRegistriesConverge lets three registries do and hear of things in any
// order, late, twice, in batches, coalesced; the log they read in its order,
// each in its own time. At every step each must show what the facts that it
// knows say, and in the end all must show the same.
func TestRegistriesConverge(t *testing.T) {
	for seed := range uint64(400) {
		synctest.Test(t, func(t *testing.T) { converge(t, seed) })
		if t.Failed() {
			return
		}
	}
}

// lastEdit is what the log says last of an edit.
func lastEdit(log []Change, k InstanceKey) *Override {
	for _, c := range slices.Backward(log) {
		for _, o := range c.Overrides {
			if o.InstanceKey == k {
				return o.Is
			}
		}
	}
	return nil
}

func converge(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 7))
	says := rand.New(rand.NewPCG(seed, 8)) // what an edit says does not change what happens
	names := []string{"A", "B", "C"}
	mesh := newMesh(t, names...)
	var nodes []*knower
	history := map[Life][]turn{}
	clients := map[string]*Client{}
	for _, n := range names {
		p := mesh.nodes[n]
		p.opts.Clock = NewClock(0, time.Duration(rng.IntN(3)*20)*time.Millisecond) // wrong ones, too
		n := &knower{peer: p, newest: map[Life]map[RecordKey]Record{}, turns: map[Life]int{}}
		p.opts.OverrideOver = func(e Edit) { n.over = append(n.over, e) }
		nodes = append(nodes, n)
	}
	var committed []Change // the log of all
	// commit brings the log of a node up to there.
	commit := func(n *knower, to int) {
		for len(n.log) < to {
			next := committed[len(n.log) : len(n.log)+1+rng.IntN(to-len(n.log))]
			for _, c := range next {
				for _, i := range c.Instances {
					n.opts.Clock.Adopt(i.Clock)
				}
			}
			n.log = append(n.log, next...)
			n.Commit(next)
		}
	}
	var log []string
	say := func(format string, args ...any) { log = append(log, fmt.Sprintf(format, args...)) }
	ip := func() string { return string(rune('p' + rng.IntN(3))) }
	// take writes down what a node has written, which it knows itself at once.
	take := func(n *knower) {
		from := len(n.records)
		n.take()
		for _, l := range n.records[from:] {
			n.learn(n.life, l.Record)
		}
	}
	hear := func(n, from *knower, to int) {
		for _, l := range from.records[n.applied[from.life]:to] {
			if l.probe != nil {
				n.probes = append(n.probes, *l.probe)
			}
			if l.check != nil {
				n.checks = append(n.checks, *l.check)
			}
		}
		newest := map[RecordKey]Record{}
		for _, l := range from.records[n.applied[from.life]:to] {
			if l.probe == nil && l.check == nil {
				newest[l.RecordKey] = l.Record
			}
		}
		for _, r := range newest {
			n.learn(from.life, r)
		}
		n.give(from.peer, to, 1+rng.IntN(3), rng)
		if rng.IntN(3) == 0 { // all that it has, again
			n.Apply(from.life, slices.Collect(maps.Values(n.newest[from.life])))
		}
	}
	turnTo := func(n *knower, life Life) {
		h := history[life][n.turns[life]]
		n.turns[life]++
		n.SetLife(life, h.state, h.at)
	}
	check := func(n *knower) {
		t.Helper()
		if diff := cmp.Diff(n.view(history), n.shows()); diff != "" {
			t.Fatalf("seed %d, node %s after\n%s\n(-want +got):\n%s", seed, n.life, strings.Join(log, "\n"), diff)
		}
	}
	eager := seed%2 == 0
	for range 60 {
		n := nodes[rng.IntN(3)]
		other := nodes[rng.IntN(3)]
		id := fmt.Sprint(n.life.Node, rng.IntN(2))
		kind := Connection
		if rng.IntN(3) == 0 {
			id, kind = ip()+"#true", Beat // the same on all nodes
		}
		at := n.life.Node + id
		if clients[at] == nil {
			clients[at] = n.Open(id, kind)
		}
		c := clients[at]
		is := func() *Instance {
			i := inst(ip(), weight(float64(1+rng.IntN(2))))
			if kind == Beat {
				i.IP = id[:1]
			}
			return i
		}
		switch op := rng.IntN(26); {
		case op < 5:
			batch := []*Instance{is()}
			for rng.IntN(3) == 0 {
				batch = append(batch, is())
			}
			c.Register(order, batch, len(batch) > 1)
			say("%s registers %d, first %s w%v", at, len(batch), batch[0].IP, batch[0].Weight)
		case op < 7:
			k := InstanceKey{is().IP, 80, DefaultCluster}
			c.Deregister(order, k)
			say("%s deregisters %s", at, k.IP)
		case op < 8:
			c.Close(CauseConnectionLost)
			delete(clients, at)
			say("%s closes", at)
		case op < 10:
			c.Move()
			say("%s moves", at)
		case op < 11:
			c.SetHealthy(order, rng.IntN(2) == 0, CauseBeatMissed)
			say("%s changes health", at)
		case op < 12:
			var since Stamp
			if cp, ok := n.Copy(order, id); ok {
				since = cp.Since + 1
			}
			c.Adopt(order, is(), since)
			say("%s adopts, since %v", at, since)
		case op < 14:
			if other == n {
				break
			}
			take(other)
			turnNow, was := turn{LifeState(rng.IntN(4)), 0}, Living
			if h := history[other.life]; len(h) > 0 {
				was = h[len(h)-1].state
			}
			if turnNow.state == was || turnNow.state == Waning && was == Dropped {
				break
			}
			if turnNow.state == Living {
				turnNow.at = other.opts.Clock.Now()
			}
			history[other.life] = append(history[other.life], turnNow)
			say("%s turns %s", other.life, turnNow.state)
		case op < 15:
			for life, h := range history {
				if n.turns[life] < len(h) {
					turnTo(n, life)
					say("%s hears that %s is %s", n.life, life, h[n.turns[life]-1].state)
				}
			}
		case op < 16:
			s := n.Snapshot(order).Instances
			if len(s) == 0 {
				break
			}
			e := s[rng.IntN(len(s))]
			p := Probe{e.Life, order, e.InstanceKey, e.Since, n.opts.Clock.Now()}
			take(n)
			n.records = append(n.records, logged{probe: &p})
			n.probes = append(n.probes, p)
			n.Unanswered(p)
			say("%s found no answer from %s of %s", n.life, e.IP, e.Life)
		case op < 17:
			k := InstanceKey{ip(), 80, DefaultCluster}
			ch := PersistentChange{InstanceKey: k, Cause: CauseDeregistered, Clock: n.opts.Clock.Now()}
			if rng.IntN(3) == 0 { // or nobody could publish any more
				i := inst(k.IP, weight(float64(1+rng.IntN(2))))
				i.Persistent = true
				ch.Is, ch.Cause = &Persistent{i, ch.Clock, ch.Clock}, CauseRegistered
			}
			committed = append(committed, Change{Service: order, Instances: []PersistentChange{ch}})
			say("log %d: %s is persistent: %v", len(committed), k.IP, ch.Is != nil)
		case op < 18:
			k := InstanceKey{ip(), 80, DefaultCluster}
			ch := OverrideChange{InstanceKey: k, Cause: CauseOverrideEnded, Clock: n.opts.Clock.Now()}
			if rng.IntN(3) > 0 {
				ch.Is, ch.Cause = &Override{Weight: new(float64(3 + rng.IntN(2))), Evicted: rng.IntN(2) == 0, StaysOut: says.IntN(2) == 0, Sticky: rng.IntN(3) == 0, Revision: uint64(len(committed))}, CauseOperator
			} else if was := lastEdit(committed, k); was != nil && says.IntN(2) == 0 { // absent for a minute, as somebody sees it
				if left, _ := was.Lasting(); left.Sets() || left.Evicted {
					left.Revision = uint64(len(committed))
					ch.Is = &left
				}
			}
			committed = append(committed, Change{Service: order, Overrides: []OverrideChange{ch}})
			say("log %d: edit of %s: %v", len(committed), k.IP, ch.Is != nil)
		case op < 20:
			commit(n, len(n.log)+rng.IntN(len(committed)-len(n.log)+1))
			say("%s reads the log up to %d", n.life, len(n.log))
		case op < 21:
			ck := Check{Service: order, InstanceKey: InstanceKey{ip(), 80, DefaultCluster}, Healthy: rng.IntN(2) == 0, Made: n.opts.Clock.Now(), By: n.life}
			take(n)
			n.records = append(n.records, logged{check: &ck})
			n.checks = append(n.checks, ck)
			n.Checked(ck)
			say("%s checks %s: %v", n.life, ck.IP, ck.Healthy)
		case op < 22:
			redo := rng.IntN(2) * 25
			c.RedoOf(order, redo)
			say("%s needs %d s", at, redo)
		default:
			if n == other {
				break
			}
			take(other)
			from := n.applied[other.life]
			to := from + rng.IntN(len(other.records)-from+1)
			hear(n, other, to)
			say("%s hears %d to %d of %s", n.life, from, to, other.life)
		}
		if eager {
			take(n)
			check(n)
		}
		time.Sleep(time.Duration(rng.IntN(3)) * time.Millisecond)
	}
	say("all hear all")
	for _, n := range nodes {
		take(n)
		commit(n, len(committed))
	}
	for _, n := range nodes { // the log hears of edits that are over somewhere
		for _, e := range n.EndedOverrides() {
			committed = append(committed, Change{Service: order, Overrides: []OverrideChange{{InstanceKey: e.InstanceKey, Cause: e.Cause}}})
		}
	}
	for _, n := range nodes {
		commit(n, len(committed))
	}
	// All turns are over, or the nodes would not agree on who lives; one may be
	// gone for good.
	gone := nodes[rng.IntN(3)]
	for _, n := range nodes {
		last := turn{Living, n.opts.Clock.Now()}
		if n == gone && rng.IntN(2) == 0 {
			last = turn{LifeState(1 + rng.IntN(2)), 0}
		} else if n == gone {
			gone = nil
		}
		if h := history[n.life]; len(h) == 0 && last.state == Living || len(h) > 0 && h[len(h)-1].state == last.state {
			continue
		}
		history[n.life] = append(history[n.life], last)
	}
	for _, n := range nodes {
		for _, from := range rng.Perm(3) {
			if nodes[from] != n {
				hear(n, nodes[from], len(nodes[from].records))
			}
		}
		for life := range history {
			for n.turns[life] < len(history[life]) {
				turnTo(n, life)
			}
		}
		check(n)
	}
	// Of what was moving before a drop that it has slept through, a node's own
	// view may differ until that is removed.
	var sums []uint64
	for _, n := range nodes {
		moving := slices.ContainsFunc(slices.Collect(maps.Values(n.newest[n.life])), func(r Record) bool { return r.Moving })
		if n == gone || moving {
			continue
		}
		n.Hashes(func(_ ServiceKey, h Hash) { sums = append(sums, h.Sum) })
	}
	if len(slices.Compact(sums)) > 1 {
		t.Fatalf("seed %d: hashes %v after\n%s", seed, sums, strings.Join(log, "\n"))
	}
	for _, n := range nodes {
		if got := int(n.Stats().Instances); got != len(n.Snapshot(order).Instances) {
			t.Fatalf("seed %d: %d instances counted", seed, got)
		}
	}
}
