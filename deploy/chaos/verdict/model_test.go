package verdict

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A model is a cluster that does what docs/cluster.md says, in steps of a quarter
// of a second, with clients that do what SDKs do. Where a document gives a bound,
// it draws a time within it. It shares with what it tests only who is together
// with whom.
type model struct {
	*play
	rng   *rand.Rand
	w     *world
	broke string // the rule that it breaks
	nodes map[string]*modelNode
	reg   map[string]*modelClient // providers, by name
	subs  map[string]*modelClient
	gone  map[string]bool // deregistered, as everybody knows
}

const step Millis = 250

// A record is what a process of a node has of a provider.
type record struct {
	owner    string
	life     int
	provider string
}

type modelNode struct {
	life    int
	known   map[record]Millis // own and others', and until when: never while its owner is there
	left    map[string]bool
	clock   map[record]Millis // when it was registered
	hides   map[string]Millis // by provider: up to what clock of it nothing is shown
	thawed  Millis            // how long it stood still last, until it has looked at its clients
	saved   map[record]bool   // snapshot, at most 10 s old
	lastUp  bool
	savedAt Millis
	// silent is since when another life has not been heard, and refused whether
	// by a refusal.
	silent map[record]Millis // with provider ""
}

type modelClient struct {
	name, group, sdk string
	redo             Millis
	node             string // that it is connected to, "" if none
	life             int
	registered       bool
	nextAt           Millis // when it connects, or registers
	stuck            Millis // since when its connection is
	since            Millis // when it registered
	patience         Millis // until it notices
}

func (m *model) at(t Millis) int { return m.w.at(t) }

// leased is how long what was on a node is kept.
func (m *model) leased(refused bool, c *modelClient) Millis {
	switch {
	case m.broke == "short lease":
		return 2_000
	case c.redo > 20_000 && refused:
		return 35_000
	case c.redo > 20_000:
		return 38_000 + m.draw(0, 1_500)
	case refused:
		return 10_250 + m.draw(0, 500)
	}
	return 23_750 + m.draw(0, 1_000)
}

func (m *model) draw(from, to Millis) Millis { return from + Millis(m.rng.Int64N(int64(to-from)+1)) }

// client moves a client on.
func (m *model) client(c *modelClient, t Millis, dead bool) {
	i := m.at(t)
	if c.node != "" {
		n := m.nodes[c.node]
		state := m.w.state(i, c.node)
		switch {
		case n.life != c.life || state == Down || state == Starting: // reset, if that gets through
			if m.w.open(i, c.group, c.node) || c.stuck > 0 && t-c.stuck > c.patience {
				c.lose(t + m.draw(250, 1_000))
			} else if c.stuck == 0 {
				c.stuck = t
			}
		case !m.w.keeps(i, c.group, c.node):
			if c.stuck == 0 {
				c.stuck = t
			} else if t-c.stuck > c.patience {
				c.lose(t + m.draw(250, 1_000))
			}
		case state == Stopping && !dead:
			if m.rng.IntN(6) == 0 {
				to := m.taker(c, i)
				if to != "" { // it has a new connection before it gives up the old one
					c.node, c.life, c.registered, c.nextAt = to, m.nodes[to].life, false, t+m.draw(0, min(c.redo, 3_000))
				}
			}
		default:
			c.stuck = 0
		}
	}
	if dead {
		return
	}
	if c.node == "" && t >= c.nextAt {
		if to := m.taker(c, i); to != "" {
			c.node, c.life, c.registered, c.stuck = to, m.nodes[to].life, false, 0
			c.patience = m.draw(5_250, m.w.limits.noticed(c.sdk)-500)
			c.nextAt = t + m.draw(0, c.redo)
		}
	}
	if c.node != "" && !c.registered && c.stuck == 0 && t >= c.nextAt && m.w.keeps(i, c.group, c.node) {
		c.registered, c.since = true, t
	}
}

func (c *modelClient) lose(again Millis) {
	c.node, c.registered, c.stuck, c.nextAt = "", false, 0, again
}

func (m *model) taker(c *modelClient, i int) string {
	var can []string
	for _, n := range m.w.nodes {
		if m.w.takes(i, c.group, n) {
			can = append(can, n)
		}
	}
	if len(can) == 0 {
		return ""
	}
	return can[m.rng.IntN(len(can))]
}

// node moves a node on: its own clients, and what it hears.
func (m *model) node(name string, t Millis) {
	i, n := m.at(t), m.nodes[name]
	up := m.w.speaks(i, name)
	switch state := m.w.state(i, name); {
	case state == Down || state == "":
		if n.lastUp {
			n.life++
			n.lastUp = false
			n.known, n.silent = map[record]Millis{}, map[record]Millis{}
		}
		return
	case state == Frozen:
		n.thawed += step
		return
	case state == Up && !n.lastUp:
		n.lastUp = true
		alone := true
		for k := range m.w.sides[i][name] {
			if k != name && m.w.state(i, k) == Up && m.nodes[k].lastUp {
				alone = false
				maps.Copy(n.known, m.nodes[k].known)
				maps.Copy(n.silent, m.nodes[k].silent)
			}
		}
		if alone && m.broke != "no snapshot" {
			for r := range n.saved {
				lease := Millis(30_000)
				if m.reg[r.provider].redo > 20_000 {
					lease = 44_000
				}
				n.known[r] = t + lease
				n.silent[record{r.owner, r.life, ""}] = t
			}
		}
	}
	if !up {
		return
	}
	// Its own clients.
	for _, c := range m.reg {
		own := record{name, n.life, c.name}
		switch {
		case c.node == name && c.life == n.life && c.registered && !m.dead(c.name, t):
			n.known[own], n.clock[own] = never, c.since
		case n.known[own] == never:
			// Its connection is closed, or will be found to be. What is removed hides
			// what is older.
			hide := func() { n.hides[c.name] = max(n.hides[c.name], n.clock[own]) }
			switch {
			case n.thawed > max(22_000, c.redo+12_000): // it was dropped meanwhile, and stays hidden
				delete(n.known, own)
				hide()
			case m.dead(c.name, t) && m.w.open(i, c.group, name) && !m.unsettled(t):
				delete(n.known, own)
				hide()
			case m.w.open(i, c.group, name):
				n.known[own] = t + max(9_500, c.redo+2_000) // moving
				if m.broke == "no moving" {
					delete(n.known, own)
				}
			default:
				n.known[own] = t + 20_000
			}
		}
	}
	if n.thawed > 0 { // it catches up, with those who know more of third ones
		for _, k := range m.w.nodes {
			if o := m.nodes[k]; k != name && o.lastUp && m.w.together(i, name, k) && m.w.speaks(i, k) {
				for r, until := range o.known {
					if _, has := n.known[r]; !has && r.owner != name {
						n.known[r], n.clock[r] = until, o.clock[r]
						key := record{r.owner, r.life, ""}
						if since, ok := o.silent[key]; ok {
							n.silent[key] = since
						}
					}
				}
			}
		}
	}
	n.thawed = 0
	// Others'.
	for _, k := range m.w.nodes {
		if k == name {
			continue
		}
		o := m.nodes[k]
		together := m.w.together(i, name, k) && m.w.speaks(i, k) && (o.lastUp || m.w.state(i, k) != Starting) && o.thawed == 0
		for r := range o.known {
			if r.owner == k && r.life == o.life && together {
				if m.broke == "deaf after heal" && m.w.starts[i] > 0 && t-m.w.starts[i] < 6_000 && n.silent[record{k, r.life, ""}] != 0 {
					continue
				}
				if _, has := n.known[r]; !has && o.known[r] < never {
					continue // dropped while it was moving: it stays hidden
				}
				n.known[r], n.clock[r] = never, o.clock[r]
			}
		}
		for r := range n.known { // what it has removed
			if r.owner == k && r.life == o.life && together && o.lastUp {
				if _, has := o.known[r]; !has {
					delete(n.known, r)
				}
			}
		}
		if together {
			maps.Copy(n.left, o.left)
			for p, clock := range o.hides {
				n.hides[p] = max(n.hides[p], clock)
			}
		}
	}
	// What others have dropped of ended processes.
	for _, k := range m.w.nodes {
		if o := m.nodes[k]; k != name && o.lastUp && n.lastUp && m.w.together(i, name, k) && m.w.speaks(i, k) {
			for r := range n.known {
				if _, has := o.known[r]; !has && r.life != m.nodes[r.owner].life && t-n.silent[record{r.owner, r.life, ""}] > 40_000 {
					delete(n.known, r)
				}
			}
		}
	}
	// Leases, in an order that makes a seed say the same each time.
	for _, r := range slices.SortedFunc(maps.Keys(n.known), func(a, b record) int {
		return cmp.Or(cmp.Compare(a.owner, b.owner), cmp.Compare(a.life, b.life), cmp.Compare(a.provider, b.provider))
	}) {
		until := n.known[r]
		if r.owner == name && r.life == n.life {
			if until < t {
				delete(n.known, r)
				n.hides[r.provider] = max(n.hides[r.provider], n.clock[r])
			}
			continue
		}
		key := record{r.owner, r.life, ""}
		o := m.nodes[r.owner]
		there := r.life == o.life && m.w.together(i, name, r.owner) && m.w.speaks(i, r.owner)
		switch since, silent := n.silent[key]; {
		case there:
			delete(n.silent, key)
		case !silent:
			n.silent[key] = t
			n.known[r] = t + m.leased(m.w.state(i, r.owner) == Down && m.w.open(i, name, r.owner) || r.life != o.life, m.reg[r.provider])
		case until == never:
			n.known[r] = since + m.leased(m.w.state(i, r.owner) == Down && m.w.open(i, name, r.owner) || r.life != o.life, m.reg[r.provider])
		case m.quiet(i, name) && m.broke != "no self-preservation" && t-since < 180_000:
			n.known[r] = until + step
		case until >= t:
		case m.anySilent(i, name) && m.probed(r.provider, name, i, t) && m.broke != "no dialling" && t-since < 178_000:
		case m.anySilentLease(n, t) && t-since < 60_000:
		case m.broke == "no lease ends":
		default:
			delete(n.known, r)
		}
	}
	if n.lastUp && t-n.savedAt > 9_000 {
		n.saved, n.savedAt = map[record]bool{}, t
		for r := range n.known {
			n.saved[r] = true
		}
	}
	if m.w.state(i, name) == Stopping {
		n.savedAt = -never // it writes all at the end
	}
}

func (m *model) anySilent(i int, name string) bool {
	return slices.ContainsFunc(m.w.nodes, func(k string) bool {
		return k != name && !m.w.together(i, name, k) && !(m.w.state(i, k) == Down && m.w.open(i, name, k))
	})
}

func (m *model) anySilentLease(n *modelNode, t Millis) bool {
	for key, since := range n.silent {
		if t-since < 25_000 && m.w.state(m.at(since), key.owner) != Down && m.nodes[key.owner].life == key.life {
			return true
		}
	}
	return false
}

func (m *model) quiet(i int, name string) bool {
	silent := 0
	for _, k := range m.w.nodes {
		if k != name && !m.w.together(i, name, k) && !(m.w.state(i, k) == Down && m.w.open(i, name, k)) {
			silent++
		}
	}
	return silent > len(m.w.nodes)-(len(m.w.nodes)/2+1)
}

func (m *model) probed(provider, node string, i int, t Millis) bool {
	j := slices.IndexFunc(m.Providers, func(p Provider) bool { return p.Name == provider })
	return m.Providers[j].Dialable && !m.dead(provider, t) && m.w.dialled(i, node, m.Providers[j].Group)
}

func (m *model) unsettled(t Millis) bool {
	for _, n := range m.nodes {
		if len(n.silent) > 0 {
			return true
		}
	}
	return false
}

func (m *model) dead(provider string, t Millis) bool {
	j := slices.IndexFunc(m.Providers, func(p Provider) bool { return p.Name == provider })
	died := m.Providers[j].DiedMs
	return died != nil && *died <= t
}

// shows is what a node lists.
func (m *model) shows(node string, t Millis) []string {
	seen := map[string]bool{}
	for r := range m.nodes[node].known {
		if n := m.nodes[node]; !n.left[r.provider] && (n.hides[r.provider] == 0 || n.clock[r] > n.hides[r.provider]) {
			seen[r.provider] = true
		}
	}
	if m.broke == "flicker" && t > 20_000 && t < 20_300 {
		delete(seen, "p1")
	}
	if m.broke == "resurrection" && t > 100_000 && t < 102_000 {
		seen["doomed"] = true
	}
	if m.broke == "twins" && t > 20_000 && t < 20_300 {
		return append(slices.Sorted(maps.Keys(seen)), "stranger")
	}
	return slices.Sorted(maps.Keys(seen))
}

// run plays the faults and records what observers see.
func (m *model) run() {
	for t := Millis(-30_000); t <= m.EndMs; t += step {
		for i := range m.Providers {
			p := &m.Providers[i]
			if p.Left && m.dead(p.Name, t) && !m.gone[p.Name] {
				m.gone[p.Name] = true
				for _, n := range m.nodes { // where its own node is together with
					c := m.reg[p.Name]
					if c.node != "" && n == m.nodes[c.node] {
						n.left[p.Name] = true
					}
				}
			}
		}
		for _, name := range slices.Sorted(maps.Keys(m.reg)) {
			m.client(m.reg[name], t, m.dead(name, t))
		}
		for _, name := range slices.Sorted(maps.Keys(m.subs)) {
			m.client(m.subs[name], t, false)
		}
		for _, n := range m.w.nodes {
			m.node(n, t)
		}
		i := m.at(t)
		for _, o := range m.Observers {
			v := View{Observer: o.Name, AtMs: t}
			if o.Reader {
				if v.Blind = !m.w.takes(i, o.Group, o.Node) && !m.w.keeps(i, o.Group, o.Node) || !m.nodes[o.Node].lastUp; !v.Blind {
					v.Seen = m.shows(o.Node, t)
				}
			} else {
				c := m.subs[o.Name]
				if c.node == "" || !c.registered || m.nodes[c.node].life != c.life || !m.w.keeps(i, c.group, c.node) {
					continue // it shows what it was told last
				}
				v.Seen = m.shows(c.node, t)
			}
			m.Views = append(m.Views, v)
		}
	}
}

// newModel makes up a run from a seed.
func newModel(seed uint64, broke string) *model {
	rng := rand.New(rand.NewPCG(seed, 8))
	m := &model{play: three(), rng: rng, broke: broke, nodes: map[string]*modelNode{}, reg: map[string]*modelClient{}, subs: map[string]*modelClient{}, gone: map[string]bool{}}
	names := []string{"a", "b", "c"}
	t, over := m.draw(1_000, 4_000), Millis(0)
	for i := range 1 + rng.IntN(3) {
		n := names[(int(seed)+i)%3]
		last := m.draw(2_000, 70_000)
		from := t
		if i > 0 && t < over && m.Steps[0].Target == n { // a third one waits
			t, from = over+1_000, over+1_000
		}
		fault := []string{"kill", "stop", "restart", "isolate", "clients", "delay", "kill-all"}[rng.IntN(7)]
		if t < over && fault == "kill-all" {
			fault = "delay"
		}
		switch fault {
		case "kill":
			m.play.node(t, n, Down).node(t+last, n, Starting).node(t+last+1_500, n, Up)
		case "stop":
			m.play.node(t, n, Frozen).node(t+last, n, Up)
		case "restart":
			last = 6_000
			m.play.node(t, n, Stopping).node(t+6_000, n, Down).node(t+6_250, n, Starting).node(t+8_000, n, Up)
		case "isolate":
			for _, o := range names {
				if o != n {
					m.cut(t, t+last, n, o)
				}
			}
		case "clients":
			m.cut(t, t+last, n, "clients,host")
		case "delay":
			m.link(t, n, "clients,host", LinkChange{DelayMs: 60, Loss: 0.1}).link(t+last, n, "clients,host", LinkChange{})
		case "kill-all":
			last = 500
			t += 11_000
			for _, o := range names {
				m.play.node(t, o, Down).node(t+500, o, Starting).node(t+2_000, o, Up)
			}
		}
		m.Steps = append(m.Steps, Step{Fault: fault, Target: n, FromMs: from, ToMs: t + last})
		if over = max(over, t+last); seed%4 == 0 && fault != "kill-all" {
			t += last/2 + m.draw(0, last) // the next one, of another node, may begin before
		} else {
			t = over + m.draw(3_000, 60_000)
		}
	}
	m.EndMs = over + 130_000
	l := Documented()
	m.w = newWorld(m.Timeline, &l)
	for _, n := range names {
		m.nodes[n] = &modelNode{known: map[record]Millis{}, left: map[string]bool{}, clock: map[record]Millis{}, hides: map[string]Millis{}, silent: map[record]Millis{}, savedAt: -never}
	}
	dialable := rng.IntN(2) == 0
	for i, name := range []string{"p1", "p2", "p3", "p4", "doomed", "leaver"} {
		c := &modelClient{name: name, group: "clients", sdk: "java3", redo: 3_000, patience: 8_000}
		if i == 3 {
			c.sdk, c.redo = "python", 24_000
		}
		c.node, c.registered, c.since = names[rng.IntN(3)], true, -30_000
		p := Provider{Name: name, SDK: c.sdk, Group: c.group, Node: c.node, RedoMs: c.redo, Dialable: dialable, UpMs: -30_000}
		if i == 1 && seed%3 == 0 {
			p.Node = "" // it is somewhere
		}
		if i >= 4 {
			died := m.draw(0, 30_000)
			p.DiedMs, p.Left = &died, name == "leaver"
		}
		m.Providers = append(m.Providers, p)
		m.reg[name] = c
	}
	for _, n := range names {
		m.Observers = append(m.Observers, Observer{Name: "reader@" + n, SDK: "reader", Group: "host", Node: n, Reader: true})
		o := Observer{Name: "sub@" + n, SDK: "java3", Group: "clients", Node: n, RedoMs: 3_000}
		m.Observers = append(m.Observers, o)
		m.subs[o.Name] = &modelClient{name: o.Name, group: "clients", sdk: "java3", redo: 3_000, node: n, registered: true, patience: 8_000}
	}
	m.run()
	return m
}

func seeds(t *testing.T) (from, to uint64) {
	if s := os.Getenv("SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n, n + 1
	}
	if testing.Short() {
		return 0, 40
	}
	return 0, 200
}

// A cluster that does what is documented passes.
func TestModelPasses(t *testing.T) {
	from, to := seeds(t)
	excused := 0
	for seed := from; seed < to; seed++ {
		m := newModel(seed, "")
		v := Judge(m.Timeline, Derive(m.Timeline, Documented()))
		excused += len(v.Excused)
		if !v.Passed() {
			t.Errorf("seed %d: %s", seed, describe(m, v))
		}
	}
	if excused == 0 && to > from+1 {
		t.Error("nothing was excused in any run, so no excuse was tried")
	}
}

func describe(m *model, v *Verdict) string {
	var text strings.Builder
	for _, s := range m.Steps {
		fmt.Fprintf(&text, "%s:%s %v-%v, ", s.Fault, s.Target, s.FromMs, s.ToMs)
	}
	fmt.Fprintf(&text, "\n  gaps %+v\n  faults %q", v.Gaps, v.Faults)
	for _, d := range v.Gone {
		if d.Late() {
			fmt.Fprintf(&text, "\n  late %+v", d)
		}
	}
	return text.String()
}

// A cluster that breaks one rule is caught, by some of the same runs.
func TestModelCaught(t *testing.T) {
	from, to := seeds(t)
	for _, rule := range []string{"short lease", "no moving", "no self-preservation", "no dialling", "no snapshot", "no lease ends", "deaf after heal", "flicker", "resurrection", "twins"} {
		t.Run(rule, func(t *testing.T) {
			caught := 0
			for seed := from; seed < to; seed++ {
				m := newModel(seed, rule)
				if !Judge(m.Timeline, Derive(m.Timeline, Documented())).Passed() {
					caught++
				}
			}
			t.Logf("%d of %d runs", caught, to-from)
			if caught == 0 {
				t.Error("nothing was found wrong")
			}
		})
	}
}
