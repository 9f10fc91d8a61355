package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// A step is one fault of a schedule: what, to whom, and for how long.
type step struct {
	fault  *fault
	target string
	last   time.Duration
}

// String is the form of --faults, which parse reads: name[:target][:duration].
func (s *step) String() string {
	text := s.fault.name
	if s.target != "" {
		text += ":" + s.target
	}
	if s.last > 0 {
		text += ":" + s.last.String()
	}
	return text
}

// A group is the steps that begin at the same time. The next group begins when
// all is well again.
type group []*step

func (g group) String() string {
	var parts []string
	for _, s := range g {
		parts = append(parts, s.String())
	}
	return strings.Join(parts, "+")
}

// possible says what in a group cannot be done at the same time.
func (g group) possible() error {
	for i, a := range g {
		for _, b := range g[:i] {
			if a.collides(b) || b.collides(a) {
				return fmt.Errorf("%s: both may end or start the same node; a comma lets one wait for the other", group{b, a})
			}
		}
	}
	return nil
}

// collides tells whether two steps may act on the process of one node.
func (s *step) collides(other *step) bool {
	switch {
	case !s.fault.ends:
		return false
	case s.target == "": // the fault chooses, also one that is just added
		return other.fault.ends || other.fault.name == "add"
	}
	return other.fault.ends && s.target == other.target
}

// A schedule is the groups in their order.
type schedule []group

func (s schedule) String() string {
	var parts []string
	for _, g := range s {
		parts = append(parts, g.String())
	}
	return strings.Join(parts, ",")
}

// has tells whether a fault is in it.
func (s schedule) has(name string) bool {
	return slices.ContainsFunc(s, func(g group) bool {
		return slices.ContainsFunc(g, func(s *step) bool { return s.fault.name == name })
	})
}

// parse reads a schedule: groups with commas, the steps of one with plus signs.
// What a step leaves out is drawn.
func parse(text string, d *draw) (schedule, error) {
	var list schedule
	for part := range strings.SplitSeq(text, ",") {
		var g group
		for one := range strings.SplitSeq(part, "+") {
			s, err := parseStep(strings.TrimSpace(one), d)
			if err != nil {
				return nil, err
			}
			g = append(g, s)
		}
		if err := g.possible(); err != nil {
			return nil, err
		}
		for _, s := range g { // what is added is there for the next group
			d.nodes.follow(s)
		}
		list = append(list, g)
	}
	return list, nil
}

func parseStep(text string, d *draw) (*step, error) {
	fields := strings.Split(text, ":")
	f := findFault(fields[0])
	if f == nil {
		return nil, fmt.Errorf("there is no fault %q; --list names them", fields[0])
	}
	s := &step{fault: f}
	rest := fields[1:]
	if n := len(rest); n > 0 {
		if last, err := time.ParseDuration(rest[n-1]); err == nil {
			if last <= 0 || last > time.Hour {
				return nil, fmt.Errorf("%s: a fault lasts up to an hour", text)
			}
			s.last, rest = last, rest[:n-1]
		}
	}
	switch {
	case len(rest) > 1:
		return nil, fmt.Errorf("%s: want name[:target][:duration], such as stop:b:20s", text)
	case len(rest) == 1 && f.target == nobody:
		return nil, fmt.Errorf("%s: %s has no target", text, f.name)
	case len(rest) == 1:
		if !f.target.accepts(rest[0], d.nodes) {
			return nil, fmt.Errorf("%s: no target %q; %s", text, rest[0], f.target.says(d.nodes))
		}
		s.target = rest[0]
	}
	switch n := len(d.nodes.running); {
	case f.target == anExtra && n == 1:
		return nil, fmt.Errorf("%s: there is one node only; add another one before", text)
	case f.several && n == 1:
		return nil, fmt.Errorf("%s: there is one node only; it wants more: --nodes, or add before", text)
	}
	d.complete(s)
	return s, nil
}

// A target is what a fault can be aimed at.
type target int

const (
	nobody     target = iota // the fault chooses, or concerns all
	aNode                    // one that runs
	anExtra                  // one that was added
	aNodeOrAll               // the links of one node, or all links
)

func (t target) accepts(name string, n *nodeSet) bool {
	switch t {
	case aNodeOrAll:
		return name == "all" || slices.Contains(n.running, name)
	case aNode, anExtra:
		return slices.Contains(n.running, name)
	}
	return false
}

func (t target) says(n *nodeSet) string {
	list := strings.Join(n.running, ", ")
	if t == aNodeOrAll {
		return "want all, or one of " + list
	}
	return "want one of " + list
}

// A nodeSet follows which nodes there will be when a step begins: schedules add
// and remove some.
type nodeSet struct {
	running []string
	first   int // how many there were at the start
	last    byte
}

func newNodeSet(n int) *nodeSet {
	s := &nodeSet{first: n, last: 'a' - 1}
	for range n {
		s.add()
	}
	return s
}

func (n *nodeSet) add() string {
	n.last++
	n.running = append(n.running, string(n.last))
	return string(n.last)
}

func (n *nodeSet) follow(s *step) {
	switch s.fault.name {
	case "add":
		n.add()
	case "remove":
		n.running = slices.DeleteFunc(n.running, func(name string) bool { return name == s.target })
	}
}

// A draw makes schedules from a seed: the same seed, faults and nodes give the
// same schedule on every machine.
type draw struct {
	rng   *rand.Rand
	nodes *nodeSet
	// quick: short faults, as CI wants them.
	quick bool
}

func newDraw(seed uint64, nodes int, quick bool) *draw {
	return &draw{rng: rand.New(rand.NewPCG(seed, 0)), nodes: newNodeSet(nodes), quick: quick}
}

// maxNodes is up to how many nodes are added.
const maxNodes = 5

// schedule draws n groups out of the faults. Each fault comes once before any
// comes again, so that a short schedule is no bad luck.
func (d *draw) schedule(n int, from []*fault) (schedule, error) {
	var list schedule
	var deck []*fault
	for tries := 0; len(list) < n; tries++ {
		if tries > 1000*n {
			return nil, errors.New("these faults make no schedule: add comes before remove, and none of the others is there")
		}
		if len(deck) == 0 {
			deck = slices.Clone(from)
			d.rng.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		f := deck[0]
		deck = deck[1:]
		switch {
		case f.beside: // joins others only, below
			continue
		case f.name == "add" && len(d.nodes.running) >= maxNodes:
			continue
		case f.name == "remove" && len(d.nodes.running) <= d.nodes.first:
			continue
		case f.several && len(d.nodes.running) < 3:
			continue
		}
		g := group{d.complete(&step{fault: f})}
		for _, b := range from {
			if b.beside && d.rng.IntN(2) == 0 {
				g = append(g, d.complete(&step{fault: b}))
			}
		}
		for _, s := range g {
			d.nodes.follow(s)
		}
		list = append(list, g)
	}
	return list, nil
}

// complete draws what a step does not say.
func (d *draw) complete(s *step) *step {
	if s.target == "" {
		switch s.fault.target {
		case aNode:
			s.target = d.nodes.running[d.rng.IntN(len(d.nodes.running))]
		case anExtra: // the one added last; without any, the last one
			s.target = d.nodes.running[len(d.nodes.running)-1]
		case aNodeOrAll:
			s.target = "all"
			if i := d.rng.IntN(2 * len(d.nodes.running)); i < len(d.nodes.running) {
				s.target = d.nodes.running[i]
			}
		}
	}
	if s.last == 0 && s.fault.longest > 0 {
		longest := s.fault.longest
		if d.quick {
			longest = min(longest, max(s.fault.shortest, quickLongest))
		}
		s.last = s.fault.shortest
		if n := int64((longest - s.fault.shortest) / time.Second); n > 0 {
			s.last += time.Duration(d.rng.Int64N(n+1)) * time.Second
		}
	}
	return s
}

const quickLongest = 8 * time.Second
