package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/starling-registry/starling/deploy/chaos/link"
	"github.com/starling-registry/starling/deploy/chaos/verdict"
)

// A recorder collects what observers see while a scenario runs. Its times are
// those of the machine's clock, which drivers and readers share.
type recorder struct {
	mu        sync.Mutex
	names     map[string]string   // of providers, by address
	providers []*verdict.Provider // UpMs and DiedMs are of the machine's clock until finish
	observers []verdict.Observer
	views     []verdict.View
	latest    map[string]verdict.View // by observer
	met       map[[2]string]bool      // observer and provider that it has seen
	marks     []verdict.Mark
	steps     []*verdict.Step
	nodes     []verdict.NodeChange
	links     []verdict.LinkChange
	writes    []verdict.Write
	kept      []verdict.Kept
	zero      verdict.Millis // 0 until the first disturbance
	changed   chan struct{}  // closed, and replaced, at each view
}

func newRecorder() *recorder {
	return &recorder{names: map[string]string{}, latest: map[string]verdict.View{}, met: map[[2]string]bool{}, changed: make(chan struct{}), zero: now()}
}

// never is the end of a step that has none yet.
const never = verdict.Millis(math.MaxInt64)

func now() verdict.Millis { return verdict.Millis(time.Now().UnixMilli()) }

func (r *recorder) addProvider(p *verdict.Provider) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.names[p.Address] = p.Name
	r.providers = append(r.providers, p)
}

func (r *recorder) addObserver(o verdict.Observer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.observers = append(r.observers, o)
}

// saw records a view. Of a reader's only those count that differ from the one
// before, a listener's all do.
func (r *recorder) saw(observer string, at verdict.Millis, addresses []string, blind bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := verdict.View{Observer: observer, AtMs: at, Blind: blind}
	for _, a := range addresses {
		name, ok := r.names[a]
		if !ok {
			name = a
		}
		v.Seen = append(v.Seen, name)
		r.met[[2]string{observer, name}] = true
	}
	slices.Sort(v.Seen)
	if last, ok := r.latest[observer]; ok && last.Blind == v.Blind && slices.Equal(last.Seen, v.Seen) {
		return
	}
	r.views = append(r.views, v)
	r.latest[observer] = v
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *recorder) mark(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.marks = append(r.marks, verdict.Mark{AtMs: now(), What: what})
}

// node records what became of a node; the same again says nothing.
func (r *recorder) node(name string, state verdict.NodeState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range slices.Backward(r.nodes) {
		if c.Node == name {
			if c.State == state {
				return
			}
			break
		}
	}
	r.nodes = append(r.nodes, verdict.NodeChange{AtMs: now(), Node: name, State: state})
}

// link records a rule that holds from now on.
func (r *recorder) link(from, to string, rule link.Rule) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.links = append(r.links, verdict.LinkChange{AtMs: now(), From: from, To: to, Cut: rule.Cut, Loss: rule.Loss,
		DelayMs: verdict.Millis((rule.Delay + rule.Jitter).Milliseconds()), Rate: rule.Rate})
}

// step records that a fault begins, and returns what records its end.
func (r *recorder) step(s *step) (over func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := &verdict.Step{Fault: s.fault.name, Target: s.target, Says: s.fault.says, FromMs: now(), ToMs: never}
	r.steps = append(r.steps, at)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		at.Target = s.target // a fault may choose it
		at.ToMs = now()
	}
}

func (r *recorder) write(w verdict.Write) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writes = append(r.writes, w)
}

// written are the addresses that were registered and not taken back for sure.
func (r *recorder) written() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	there := map[string]bool{}
	for _, w := range r.writes {
		there[w.Address] = there[w.Address] || !w.Deregister
		if w.Deregister && w.Acked {
			delete(there, w.Address) // an address is registered once
		}
	}
	return slices.Sorted(maps.Keys(there))
}

func (r *recorder) keep(k verdict.Kept) { r.mu.Lock(); defer r.mu.Unlock(); r.kept = append(r.kept, k) }

// watching is the number of observers.
func (r *recorder) watching() int { r.mu.Lock(); defer r.mu.Unlock(); return len(r.observers) }

// begin says that from now on nothing may be missing.
func (r *recorder) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.zero = now()
}

func (r *recorder) since() verdict.Millis {
	r.mu.Lock()
	defer r.mu.Unlock()
	return now() - r.zero
}

// up and died change a provider that is already seen.
func (r *recorder) up(p *verdict.Provider) { r.mu.Lock(); defer r.mu.Unlock(); p.UpMs = now() }
func (r *recorder) died(ps ...*verdict.Provider) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := now()
	for _, p := range ps {
		p.DiedMs = &at
	}
}

// state compares the newest views with who lives now.
type state struct {
	observers int                 // that are not blind
	missing   int                 // of live providers, over all observers
	dead      int                 // that are still seen, likewise
	lacking   map[string][]string // live providers that an observer does not see
	lost      map[string][]string // those of them that it has seen before
}

func (r *recorder) state() (state, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := state{lacking: map[string][]string{}, lost: map[string][]string{}}
	at := now()
	for _, o := range r.observers {
		v, ok := r.latest[o.Name]
		if v.Blind {
			continue
		}
		s.observers++
		if !ok {
			s.lacking[o.Name] = nil
		}
		for _, p := range r.providers {
			_, seen := slices.BinarySearch(v.Seen, p.Name)
			switch {
			case p.UpMs == 0:
			case p.LiveAt(at) && !seen:
				s.missing++
				s.lacking[o.Name] = append(s.lacking[o.Name], p.Name)
				if r.met[[2]string{o.Name, p.Name}] {
					s.lost[o.Name] = append(s.lost[o.Name], p.Name)
				}
			case p.DiedMs != nil && seen:
				s.dead++
			}
		}
	}
	return s, r.changed
}

// String is for whoever watches. A provider that is new is due once it has had
// time to become known, so it is missing only where it was seen before.
func (s *state) String() string {
	var parts []string
	if len(s.lacking) == 0 {
		parts = append(parts, fmt.Sprintf("all live ones seen by all %d observers", s.observers))
	}
	if len(s.lost) > 0 {
		parts = append(parts, "MISSING: "+s.who(s.lost))
	} else if len(s.lacking) > 0 {
		parts = append(parts, "not yet seen: "+s.who(s.lacking))
	}
	if s.dead > 0 {
		parts = append(parts, fmt.Sprintf("dead ones seen %d times", s.dead))
	}
	return strings.Join(parts, " · ")
}

// who names the providers, and the observers that do not see them.
func (s *state) who(not map[string][]string) string {
	names := slices.Sorted(maps.Keys(not))
	providers := slices.Concat(slices.Collect(maps.Values(not))...)
	slices.Sort(providers)
	return fmt.Sprintf("%s; by %d of %d: %s", verdict.Some(slices.Compact(providers)), len(names), s.observers, verdict.Some(names))
}

// finish returns the timeline, with times since begin.
func (r *recorder) finish() *verdict.Timeline {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := &verdict.Timeline{Observers: slices.Clone(r.observers), Views: slices.Clone(r.views), Marks: slices.Clone(r.marks), EndMs: now() - r.zero}
	for _, p := range r.providers {
		q := *p
		q.UpMs -= r.zero
		if p.DiedMs != nil {
			died := *p.DiedMs - r.zero
			q.DiedMs = &died
		}
		t.Providers = append(t.Providers, q)
	}
	t.Nodes, t.Links, t.Writes, t.Kept = slices.Clone(r.nodes), slices.Clone(r.links), slices.Clone(r.writes), slices.Clone(r.kept)
	for i := range t.Views {
		t.Views[i].AtMs -= r.zero
	}
	for i := range t.Marks {
		t.Marks[i].AtMs -= r.zero
	}
	for i := range t.Nodes {
		t.Nodes[i].AtMs -= r.zero
	}
	for i := range t.Links {
		t.Links[i].AtMs -= r.zero
	}
	for i := range t.Writes {
		t.Writes[i].FromMs -= r.zero
		t.Writes[i].ToMs -= r.zero
	}
	for _, s := range r.steps {
		u := *s
		u.FromMs -= r.zero
		if u.ToMs != never {
			u.ToMs -= r.zero
		} else {
			u.ToMs = t.EndMs // it was interrupted
		}
		t.Steps = append(t.Steps, u)
	}
	return t
}
