package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// An expectation is what a scenario demands beside that no live provider is
// missing from any view: that always holds, except for absences.
type expectation struct {
	// goneWithin is how long after its death a provider may be seen by those who
	// can be told.
	goneWithin func(*provider) ms
	// deaf observers may see it this long, because their SDK takes its time to
	// find a node that tells them. Nobody is if it is nil.
	deaf    func(*observer) bool
	deafFor ms
	// absences are live providers that may be missing, or must.
	absences []absence
	// equalFrom and equalWithin: that long after equalFrom all views must be
	// equal and right, and stay so. Not checked if equalWithin is 0.
	equalFrom, equalWithin ms
}

// An absence excuses gaps that lie between from and to.
type absence struct {
	why       string
	providers func(*provider) bool
	observers func(*observer) bool
	from, to  ms
	// mustBy: at this time the providers must be missing. Not checked if 0.
	mustBy ms
}

func (a *absence) covers(p *provider, o *observer) bool { return a.providers(p) && a.observers(o) }

// A gap is a live provider that an observer did not see.
type gap struct {
	Provider string `json:"provider"`
	SDK      string `json:"sdk"`
	On       string `json:"on"` // node of the provider
	Observer string `json:"observer"`
	FromMs   ms     `json:"fromMs"`
	ToMs     ms     `json:"toMs"`
	Open     bool   `json:"open,omitempty"` // it lasted to the end
	Excused  string `json:"excused,omitempty"`
}

// A departure is how long a dead provider was still seen: by the slowest
// observer or, if any saw it too long, by the one that did so most.
type departure struct {
	Provider string `json:"provider"`
	SDK      string `json:"sdk"`
	AfterMs  ms     `json:"afterMs"`
	LimitMs  ms     `json:"limitMs"`
	Observer string `json:"observer"`
	Never    bool   `json:"never,omitempty"`
	// Returned: an observer saw it go and come back.
	Returned bool `json:"returned,omitempty"`
}

func (d *departure) late() bool { return d.Never || d.Returned || d.AfterMs > d.LimitMs }

// A verdict is what the timeline shows.
type verdict struct {
	Gaps    []gap       `json:"gaps"`
	Excused []gap       `json:"excusedGaps"`
	Gone    []departure `json:"gone"`
	// EqualAfterMs is when all views were right for good, after equalFrom.
	EqualAfterMs *ms `json:"equalAfterMs,omitempty"`
	// Faults are all other reasons to fail.
	Faults []string `json:"faults"`
}

func (v *verdict) passed() bool {
	return len(v.Gaps) == 0 && len(v.Faults) == 0 && !slices.ContainsFunc(v.Gone, func(d departure) bool { return d.late() })
}

func (v *verdict) fault(format string, args ...any) {
	v.Faults = append(v.Faults, fmt.Sprintf(format, args...))
}

// judge compares what was seen with what was true.
func judge(t *timeline, e *expectation) *verdict {
	v := &verdict{}
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
	if e.equalWithin > 0 {
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
func (v *verdict) gaps(t *timeline, e *expectation, p *provider, o *observer, spans []span) {
	due := p.UpMs <= 0
	until := t.EndMs
	if p.DiedMs != nil {
		until = min(until, *p.DiedMs)
	}
	var open *gap
	finish := func(at ms) {
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
			open = &gap{Provider: p.Name, SDK: p.SDK, On: p.Node, Observer: o.Name, FromMs: s.from}
		}
	}
	if open != nil {
		open.Open = until == t.EndMs
		finish(until)
	}
	for i := range e.absences {
		a := &e.absences[i]
		if a.mustBy == 0 || !a.covers(p, o) || !p.liveAt(a.mustBy) {
			continue
		}
		for _, s := range spans {
			if s.from <= a.mustBy && a.mustBy < s.to && !s.blind && s.seen[p.Name] {
				v.fault("%s still saw %s at %v: %s", o.Name, p.Name, a.mustBy, a.why)
			}
		}
	}
}

func (v *verdict) addGap(e *expectation, p *provider, o *observer, g gap) {
	for i := range e.absences {
		if a := &e.absences[i]; a.covers(p, o) && a.from <= g.FromMs && g.ToMs <= a.to {
			g.Excused = a.why
			v.Excused = append(v.Excused, g)
			return
		}
	}
	v.Gaps = append(v.Gaps, g)
}

// gone finds when the last observer stopped seeing a dead provider.
func (v *verdict) gone(t *timeline, e *expectation, p *provider, spans map[string][]span) {
	died := *p.DiedMs
	worst := departure{Provider: p.Name, SDK: p.SDK}
	if e.goneWithin != nil {
		worst.LimitMs = e.goneWithin(p)
	}
	for i := range t.Observers {
		o := &t.Observers[i]
		d := departure{Provider: p.Name, SDK: p.SDK, Observer: o.Name, LimitMs: worst.LimitMs}
		deaf := e.deaf != nil && e.deaf(o)
		if deaf {
			d.LimitMs = max(e.goneWithin(p), e.deafFor)
		} else if e.goneWithin != nil {
			d.LimitMs = e.goneWithin(p)
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
		case d.late() && (!worst.late() || d.AfterMs > worst.AfterMs):
			worst = d
		case !d.late() && !worst.late() && !deaf && d.AfterMs > worst.AfterMs:
			worst = d
		}
	}
	v.Gone = append(v.Gone, worst)
}

// end demands that at the end every observer sees exactly those that live.
func (v *verdict) end(t *timeline, spans map[string][]span) {
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
			v.fault("at the end %s lacks %s and has %s", o.Name, some(missing), some(extra))
		}
	}
}

// difference compares what a span shows with who lives at a time.
func difference(t *timeline, s *span, at ms) (missing, extra []string) {
	live := map[string]bool{}
	for i := range t.Providers {
		if p := &t.Providers[i]; p.liveAt(at) {
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
// equalFrom in the scenarios that ask for it.
func (v *verdict) equal(t *timeline, e *expectation, spans map[string][]span) {
	at, who := e.equalFrom, ""
	for _, o := range t.Observers {
		for _, s := range spans[o.Name] {
			if s.to <= e.equalFrom || s.blind {
				continue
			}
			if missing, extra := difference(t, &s, t.EndMs); len(missing)+len(extra) > 0 && s.to > at {
				at = s.to
				who = fmt.Sprintf("%s lacked %s and had %s", o.Name, some(missing), some(extra))
			}
		}
	}
	after := at - e.equalFrom
	v.EqualAfterMs = &after
	if after > e.equalWithin {
		v.fault("views were equal only after %v, not %v: %s", after, e.equalWithin, who)
	}
}

// some keeps lists of a hundred readable.
func some(names []string) string {
	const most = 5
	switch n := len(names); {
	case n == 0:
		return "nothing"
	case n > most:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), n-most)
	}
	return strings.Join(names, ", ")
}
