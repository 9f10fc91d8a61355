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

// A Departure is how long a dead provider was still seen: by the slowest
// observer or, if any saw it too long, by the one that did so most.
type Departure struct {
	Provider string `json:"provider"`
	SDK      string `json:"sdk"`
	AfterMs  Millis `json:"afterMs"`
	LimitMs  Millis `json:"limitMs"`
	Observer string `json:"observer"`
	Never    bool   `json:"never,omitempty"`
	// Returned: an observer saw it go and come back.
	Returned bool `json:"returned,omitempty"`
}

func (d *Departure) Late() bool { return d.Never || d.Returned || d.AfterMs > d.LimitMs }

// A Verdict is what the timeline shows.
type Verdict struct {
	Gaps    []Gap       `json:"gaps"`
	Excused []Gap       `json:"excusedGaps"`
	Gone    []Departure `json:"gone"`
	// EqualAfterMs is when all views were right for good, after EqualFrom.
	EqualAfterMs *Millis `json:"equalAfterMs,omitempty"`
	// Faults are all other reasons to fail.
	Faults []string `json:"faults"`
}

func (v *Verdict) Passed() bool {
	return len(v.Gaps) == 0 && len(v.Faults) == 0 && !slices.ContainsFunc(v.Gone, func(d Departure) bool { return d.Late() })
}

func (v *Verdict) fault(format string, args ...any) {
	v.Faults = append(v.Faults, fmt.Sprintf(format, args...))
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
		if len(list) == 0 || list[0].from > 0 {
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
	v.end(t, spans)
	if e.EqualWithin > 0 {
		v.equal(t, e, spans)
	}
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

// gaps finds when the observer did not see the provider although it lived. A
// provider that registers during the scenario is due from when the observer saw
// it first; that it is seen at all, the end shows.
func (v *Verdict) gaps(t *Timeline, e *Expectation, p *Provider, o *Observer, spans []span) {
	due := p.UpMs <= 0
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
			due = true
			finish(s.from)
		case due && open == nil:
			open = &Gap{Provider: p.Name, SDK: p.SDK, On: p.Node, Observer: o.Name, FromMs: s.from}
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

func (v *Verdict) addGap(e *Expectation, p *Provider, o *Observer, g Gap) {
	for i := range e.Absences {
		if a := &e.Absences[i]; a.covers(p, o) && a.From <= g.FromMs && g.ToMs <= a.To {
			g.Excused = a.Why
			v.Excused = append(v.Excused, g)
			return
		}
	}
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
		d := Departure{Provider: p.Name, SDK: p.SDK, Observer: o.Name, LimitMs: worst.LimitMs}
		deaf := e.Deaf != nil && e.Deaf(o)
		if deaf {
			d.LimitMs = max(e.GoneWithin(p), e.DeafFor)
		} else if e.GoneWithin != nil {
			d.LimitMs = e.GoneWithin(p)
		}
		left := false
		for i, s := range spans[o.Name] {
			switch {
			case s.to <= died || s.blind:
			case !s.seen[p.Name]:
				left = true
			default:
				d.Returned = d.Returned || left
				d.AfterMs = s.to - died
				d.Never = i == len(spans[o.Name])-1
			}
		}
		switch {
		case d.Late() && (!worst.Late() || d.AfterMs > worst.AfterMs):
			worst = d
		case !d.Late() && !worst.Late() && !deaf && d.AfterMs > worst.AfterMs:
			worst = d
		}
	}
	v.Gone = append(v.Gone, worst)
}

// end demands that at the end every observer sees exactly those that live.
func (v *Verdict) end(t *Timeline, spans map[string][]span) {
	for _, o := range t.Observers {
		list := spans[o.Name]
		if len(list) == 0 {
			continue // said already
		}
		last := list[len(list)-1]
		if last.blind {
			continue // its node is down; that those that should run do, the scenario checks
		}
		if missing, extra := difference(t, &last, t.EndMs); len(missing)+len(extra) > 0 {
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
