package verdict

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// An Expectation is what a scenario demands beside that no live provider is
// missing from any view: that always holds, except for absences.
type Expectation struct {
	// GoneWithin is how long after its death a provider may be seen by those who
	// can be told.
	GoneWithin func(*Provider) Millis
	// Deaf observers may see it this long, because their SDK takes its time to
	// find a node that tells them. Nobody is if it is nil.
	Deaf    func(*Observer) bool
	DeafFor Millis
	// Absences are live providers that may be missing, or must.
	Absences []Absence
	// EqualFrom and EqualWithin: that long after EqualFrom all views must be
	// equal and right, and stay so. Not checked if EqualWithin is 0.
	EqualFrom, EqualWithin Millis

	derived *derivation // of Derive: then the rest is not used
}

// excuses are the times in which the observer may miss the provider.
func (e *Expectation) excuses(p *Provider, o *Observer) []Excuse {
	if e.derived != nil {
		return e.derived.excuses(p, o)
	}
	var list []Excuse
	for i := range e.Absences {
		if a := &e.Absences[i]; a.covers(p, o) {
			list = append(list, Excuse{a.From, a.To, a.Why})
		}
	}
	return list
}

// later: the observer's node was not there when it all began.
func (e *Expectation) later(o *Observer) bool {
	return e.derived != nil && e.derived.w.state(e.derived.w.at(0), o.Node) != Up
}

// mayReturn: what the observer saw go it may see again, because it went to
// another node, or its node to an old snapshot.
func (e *Expectation) mayReturn(p *Provider, o *Observer, left, back Millis) bool {
	return e.derived != nil && e.derived.mayReturn(p, o, left, back)
}

// allows: the observer may be wrong about the provider when the recording ends.
func (e *Expectation) allows(t *Timeline, name string, o *Observer) bool {
	i := slices.IndexFunc(t.Providers, func(p Provider) bool { return p.Name == name })
	if e.derived == nil || i < 0 {
		return false
	}
	p := &t.Providers[i]
	if p.DiedMs != nil && *p.DiedMs <= t.EndMs {
		by, _ := e.goneBy(p, o)
		return by.By > t.EndMs
	}
	return p.UpMs > 0 && e.derived.due(p, o) > t.EndMs ||
		slices.ContainsFunc(e.excuses(p, o), func(x Excuse) bool { return x.From < t.EndMs && t.EndMs <= x.To })
}

// goneBy is by when the observer must not see the dead provider any more, and
// whether that is more than others have.
func (e *Expectation) goneBy(p *Provider, o *Observer) (by Deadline, deaf bool) {
	switch {
	case e.derived != nil:
		return e.derived.gone(p, o), false
	case e.GoneWithin == nil:
		return Deadline{By: *p.DiedMs}, false
	case e.Deaf != nil && e.Deaf(o):
		return Deadline{By: *p.DiedMs + max(e.GoneWithin(p), e.DeafFor)}, true
	}
	return Deadline{By: *p.DiedMs + e.GoneWithin(p)}, false
}

// An Absence excuses gaps that lie between from and to.
type Absence struct {
	Why       string
	Providers func(*Provider) bool
	Observers func(*Observer) bool
	From, To  Millis
	// MustBy: at this time the providers must be missing. Not checked if 0.
	MustBy Millis
}

func (a *Absence) covers(p *Provider, o *Observer) bool { return a.Providers(p) && a.Observers(o) }

// A Gap is a live provider that an observer did not see.
type Gap struct {
	Provider string `json:"provider"`
	SDK      string `json:"sdk"`
	On       string `json:"on"` // node of the provider
	Observer string `json:"observer"`
	FromMs   Millis `json:"fromMs"`
	ToMs     Millis `json:"toMs"`
	Open     bool   `json:"open,omitempty"` // it lasted to the end
	Excused  string `json:"excused,omitempty"`
}

func (g *Gap) length() Millis { return g.ToMs - g.FromMs }

// A Departure is how long a dead provider was still seen: by the slowest
// observer or, if any saw it too long, by the one that did so most.
type Departure struct {
	Provider string `json:"provider"`
	SDK      string `json:"sdk"`
	AfterMs  Millis `json:"afterMs"`
	LimitMs  Millis `json:"limitMs"`
	Observer string `json:"observer"`
	Never    bool   `json:"never,omitempty"`
	// Returned: an observer saw it go and come back, and did not go to another
	// node meanwhile.
	Returned bool `json:"returned,omitempty"`
	// Why is the rule that the limit comes from, if it was derived.
	Why string `json:"why,omitempty"`
}

func (d *Departure) Late() bool { return d.Never || d.Returned || d.AfterMs > d.LimitMs }

// A Verdict is what the timeline shows.
type Verdict struct {
	Gaps    []Gap       `json:"gaps"`
	Excused []Gap       `json:"excusedGaps"`
	Gone    []Departure `json:"gone"`
	// EqualAfterMs is when all views were right for good, after EqualFrom.
	EqualAfterMs *Millis `json:"equalAfterMs,omitempty"`
	// Converged says for each step when all views were right after it.
	Converged []Convergence `json:"converged,omitempty"`
	Lost      []Loss        `json:"lost,omitempty"` // persistent writes
	Summary   Summary       `json:"summary"`
	// Faults are all other reasons to fail.
	Faults []string `json:"faults"`
}

func (v *Verdict) Passed() bool {
	return len(v.Gaps) == 0 && len(v.Faults) == 0 && !slices.ContainsFunc(v.Gone, func(d Departure) bool { return d.Late() })
}

func (v *Verdict) fault(format string, args ...any) {
	v.Faults = append(v.Faults, fmt.Sprintf(format, args...))
}

// Add takes in what was found wrong beside what observers saw.
func (v *Verdict) Add(faults ...string) {
	v.Faults = append(v.Faults, faults...)
	v.Summary.Faults, v.Summary.Passed = len(v.Faults), v.Passed()
}

// Judge compares what was seen with what was true.
func Judge(t *Timeline, e *Expectation) *Verdict {
	v := &Verdict{}
	known := map[string]bool{}
	for _, p := range t.Providers {
		known[p.Name] = true
	}
	spans := map[string][]span{}
	for i := range t.Observers {
		o := &t.Observers[i]
		list := t.spans(o.Name)
		spans[o.Name] = list
		if len(list) == 0 || list[0].from > 0 && !e.later(o) {
			v.fault("%s saw nothing before the scenario began", o.Name)
			continue
		}
		for _, s := range list {
			if len(s.seen) != len(s.seenList) {
				v.fault("%s saw something twice at %v: %s", o.Name, s.from, strings.Join(twice(s.seenList), ", "))
			}
			for _, name := range s.seenList {
				if !known[name] {
					v.fault("%s saw %s at %v, which nobody registered", o.Name, name, s.from)
				}
			}
		}
		for j := range t.Providers {
			v.gaps(t, e, &t.Providers[j], o, list)
		}
	}
	for i := range t.Providers {
		if p := &t.Providers[i]; p.DiedMs != nil {
			v.gone(t, e, p, spans)
		}
	}
	v.end(t, e, spans)
	if e.EqualWithin > 0 {
		v.equal(t, e, spans)
	}
	v.converge(t, e, spans)
	v.writes(t, e)
	v.summarize(t)
	return v
}

func twice(list []string) []string {
	count := map[string]int{}
	for _, name := range list {
		count[name]++
	}
	maps.DeleteFunc(count, func(_ string, n int) bool { return n < 2 })
	return slices.Sorted(maps.Keys(count))
}

// gaps finds when the observer did not see the provider although it lived. One
// that registers during the scenario is due from when the observer saw it first,
// or, where that is derived, from when it must have.
func (v *Verdict) gaps(t *Timeline, e *Expectation, p *Provider, o *Observer, spans []span) {
	due := never
	switch {
	case p.UpMs <= 0:
		due = ever
	case e.derived != nil:
		due = e.derived.due(p, o)
	}
	until := t.EndMs
	if p.DiedMs != nil {
		until = min(until, *p.DiedMs)
	}
	var open *Gap
	finish := func(at Millis) {
		if open == nil {
			return
		}
		if open.ToMs = min(at, until); open.ToMs > open.FromMs {
			v.addGap(e, p, o, *open)
		}
		open = nil
	}
	for _, s := range spans {
		if s.from >= until {
			break
		}
		switch {
		case s.blind:
			finish(s.from)
		case s.seen[p.Name]:
			due = min(due, s.from)
			finish(s.from)
		case due < s.to && open == nil:
			open = &Gap{Provider: p.Name, SDK: p.SDK, On: p.Node, Observer: o.Name, FromMs: max(s.from, due)}
		}
	}
	if open != nil {
		open.Open = until == t.EndMs
		finish(until)
	}
	for i := range e.Absences {
		a := &e.Absences[i]
		if a.MustBy == 0 || !a.covers(p, o) || !p.LiveAt(a.MustBy) {
			continue
		}
		for _, s := range spans {
			if s.from <= a.MustBy && a.MustBy < s.to && !s.blind && s.seen[p.Name] {
				v.fault("%s still saw %s at %v: %s", o.Name, p.Name, a.MustBy, a.Why)
			}
		}
	}
}

// addGap excuses a gap that lies within the times in which it may be, as a whole
// or not at all.
func (v *Verdict) addGap(e *Expectation, p *Provider, o *Observer, g Gap) {
	covered := g.FromMs
	for _, x := range e.excuses(p, o) { // in the order in which they begin
		if x.From <= covered && x.To > covered {
			covered = x.To
			if g.Excused == "" {
				g.Excused = x.Why
			}
		}
	}
	if covered >= g.ToMs {
		v.Excused = append(v.Excused, g)
		return
	}
	g.Excused = ""
	v.Gaps = append(v.Gaps, g)
}

// gone finds when the last observer stopped seeing a dead provider.
func (v *Verdict) gone(t *Timeline, e *Expectation, p *Provider, spans map[string][]span) {
	died := *p.DiedMs
	worst := Departure{Provider: p.Name, SDK: p.SDK}
	if e.GoneWithin != nil {
		worst.LimitMs = e.GoneWithin(p)
	}
	for i := range t.Observers {
		o := &t.Observers[i]
		by, deaf := e.goneBy(p, o)
		d := Departure{Provider: p.Name, SDK: p.SDK, Observer: o.Name, LimitMs: by.By - died, Why: by.Why}
		left := never
		for i, s := range spans[o.Name] {
			switch {
			case s.to <= died || s.blind:
			case !s.seen[p.Name]:
				left = min(left, max(s.from, died))
			default:
				d.Returned = d.Returned || left < never && !e.mayReturn(p, o, left, s.from)
				d.AfterMs = s.to - died
				d.Never = i == len(spans[o.Name])-1 && t.EndMs >= by.By
			}
		}
		switch {
		case d.Late() && (!worst.Late() || d.AfterMs > worst.AfterMs):
			worst = d
		case !d.Late() && !worst.Late() && !deaf && (d.AfterMs > worst.AfterMs || worst.Observer == "" && e.derived != nil):
			worst = d
		}
	}
	v.Gone = append(v.Gone, worst)
}

// end demands that at the end every observer sees exactly those that live; where
// faults allow more then, that is left to gaps and departures.
func (v *Verdict) end(t *Timeline, e *Expectation, spans map[string][]span) {
	for _, o := range t.Observers {
		list := spans[o.Name]
		if len(list) == 0 {
			continue // said already
		}
		last := list[len(list)-1]
		if last.blind {
			continue // its node is down; that those that should run do, the scenario checks
		}
		missing, extra := difference(t, &last, t.EndMs)
		missing = slices.DeleteFunc(missing, func(name string) bool { return e.allows(t, name, &o) })
		extra = slices.DeleteFunc(extra, func(name string) bool { return e.allows(t, name, &o) })
		if len(missing)+len(extra) > 0 {
			v.fault("at the end %s lacks %s and has %s", o.Name, Some(missing), Some(extra))
		}
	}
}

// difference compares what a span shows with who lives at a time.
func difference(t *Timeline, s *span, at Millis) (missing, extra []string) {
	live := map[string]bool{}
	for i := range t.Providers {
		if p := &t.Providers[i]; p.LiveAt(at) {
			live[p.Name] = true
			if !s.seen[p.Name] {
				missing = append(missing, p.Name)
			}
		}
	}
	for name := range s.seen {
		if !live[name] {
			extra = append(extra, name)
		}
	}
	slices.Sort(extra)
	return missing, extra
}

// equal finds from when on all views were right. Nobody registers or dies after
// EqualFrom in the scenarios that ask for it.
func (v *Verdict) equal(t *Timeline, e *Expectation, spans map[string][]span) {
	at, who := e.EqualFrom, ""
	for _, o := range t.Observers {
		for _, s := range spans[o.Name] {
			if s.to <= e.EqualFrom || s.blind {
				continue
			}
			if missing, extra := difference(t, &s, t.EndMs); len(missing)+len(extra) > 0 && s.to > at {
				at = s.to
				who = fmt.Sprintf("%s lacked %s and had %s", o.Name, Some(missing), Some(extra))
			}
		}
	}
	after := at - e.EqualFrom
	v.EqualAfterMs = &after
	if after > e.EqualWithin {
		v.fault("views were equal only after %v, not %v: %s", after, e.EqualWithin, who)
	}
}

// Some keeps lists of a hundred readable.
func Some(names []string) string {
	const most = 5
	switch n := len(names); {
	case n == 0:
		return "nothing"
	case n > most:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), n-most)
	}
	return strings.Join(names, ", ")
}
