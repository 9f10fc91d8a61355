package verdict

import (
	"cmp"
	"fmt"
	"slices"
)

// A Summary has the figures that people ask for.
type Summary struct {
	Passed bool `json:"passed"`
	// LiveMissing are live providers that an observer missed without an excuse,
	// and LongestGapMs the longest of those gaps. Both must be 0.
	LiveMissing  int    `json:"liveMissing"`
	LongestGapMs Millis `json:"longestGapMs"`
	// Excused are gaps with one.
	Excused          int    `json:"excused"`
	LongestExcusedMs Millis `json:"longestExcusedMs"`
	// Dead is how many died or left, DeadLate those that were seen for longer than
	// their lease or came back: must be 0. LongestStaleMs is how long one was seen
	// at most, LongestLateMs how long beyond its limit.
	Dead           int    `json:"dead"`
	DeadLate       int    `json:"deadLate"`
	LongestStaleMs Millis `json:"longestStaleMs"`
	LongestLateMs  Millis `json:"longestLateMs"`
	// ConvergedMs is how long after the last step all views were right for good;
	// nil if they never were, or there was no step.
	ConvergedMs *Millis `json:"convergedMs"`
	// WritesAcked are persistent writes that were acknowledged, WritesLost the
	// addresses of which a node lost one: must be 0. WritesFailed had an error.
	WritesAcked  int `json:"writesAcked"`
	WritesFailed int `json:"writesFailed"`
	WritesLost   int `json:"writesLost"`
	// Flapping are providers that an observer saw vanish and return, excused or
	// not, living or dead.
	Flapping int          `json:"flapping"`
	Faults   int          `json:"faults"`
	SDKs     []SDKSummary `json:"sdks"`
}

// An SDKSummary is of the providers of one SDK. Who did not see them is with the
// gaps.
type SDKSummary struct {
	SDK              string `json:"sdk"`
	Providers        int    `json:"providers"`
	LiveMissing      int    `json:"liveMissing"`
	LongestGapMs     Millis `json:"longestGapMs"`
	LongestExcusedMs Millis `json:"longestExcusedMs"`
	// FirstGapMs and LastGapMs are when the first gap without an excuse began and
	// the last one ended; nil if there is none.
	FirstGapMs *Millis `json:"firstGapMs,omitempty"`
	LastGapMs  *Millis `json:"lastGapMs,omitempty"`
	// FirstGoneMs and LastGoneMs are how long the first and the last of its dead
	// were seen by the slowest observer.
	FirstGoneMs *Millis `json:"firstGoneMs,omitempty"`
	LastGoneMs  *Millis `json:"lastGoneMs,omitempty"`
	DeadLate    int     `json:"deadLate"`
}

// A Convergence is when all views were right after a step, until the next one
// began.
type Convergence struct {
	Fault   string `json:"fault"`
	Target  string `json:"target"`
	FromMs  Millis `json:"fromMs"` // from when it was mended
	UntilMs Millis `json:"untilMs"`
	AfterMs Millis `json:"afterMs"`
	// Never: they were not, when the next step or the end came.
	Never bool `json:"never,omitempty"`
	// LimitMs is what is allowed after the last step; 0 if it is not judged.
	LimitMs Millis `json:"limitMs,omitempty"`
	Last    string `json:"last,omitempty"` // what was wrong last
}

// converge finds for each step when all views were right for good, until the
// next one. Who comes or goes later has limits of its own. Only the time after
// the last one is judged: before, something else may be broken.
func (v *Verdict) converge(t *Timeline, e *Expectation, spans map[string][]span) {
	last := ever
	for _, s := range t.Steps {
		last = max(last, s.ToMs)
	}
	for _, s := range t.Steps {
		c := Convergence{Fault: s.Fault, Target: s.Target, FromMs: s.ToMs, UntilMs: t.EndMs}
		for _, n := range t.Steps {
			if n.FromMs > s.ToMs {
				c.UntilMs = min(c.UntilMs, n.FromMs)
			}
		}
		allowed := Millis(0)
		for i := range t.Observers {
			o := &t.Observers[i]
			for j := range t.Providers {
				p := &t.Providers[j]
				if p.UpMs > c.FromMs {
					continue
				}
				dead := p.DiedMs != nil && *p.DiedMs <= c.FromMs
				until := c.UntilMs
				if p.DiedMs != nil && !dead {
					until = min(until, *p.DiedMs)
				}
				for _, view := range spans[o.Name] {
					if view.blind || view.from >= until || view.to <= c.FromMs || view.seen[p.Name] != dead {
						continue
					}
					if after := min(view.to, until) - c.FromMs; after > c.AfterMs {
						c.AfterMs, c.Never = after, view.to >= c.UntilMs && until == c.UntilMs
						c.Last = fmt.Sprintf("%s did not see %s", o.Name, p.Name)
						if dead {
							c.Last = fmt.Sprintf("%s still saw %s", o.Name, p.Name)
						}
					}
				}
				if e.derived != nil && s.ToMs == last {
					allowed = max(allowed, e.derived.rightBy(p, o, last)-last)
				}
			}
		}
		if e.derived != nil && s.ToMs == last && last+allowed < never {
			switch c.LimitMs = allowed; {
			case c.AfterMs > allowed:
				v.fault("views were right only %v after %s ended, not %v: %s", c.AfterMs, s.Fault, allowed, c.Last)
			case c.Never:
				v.fault("the recording ends %v after the last step, too soon to judge what is still wrong and may be for %v: %s", t.EndMs-last, allowed, c.Last)
			}
		}
		v.Converged = append(v.Converged, c)
	}
}

// rightBy is by when the observer must be right about the provider after the
// last step, which ended at t.
func (d *derivation) rightBy(p *Provider, o *Observer, t Millis) Millis {
	if p.DiedMs != nil && *p.DiedMs <= t {
		return max(t, d.gone(p, o).By)
	}
	by := max(d.deaf(o, d.heard(t)), d.due(p, o))
	for _, x := range d.excuses(p, o) {
		if x.From < d.t.EndMs && x.To > t {
			by = max(by, x.To)
		}
	}
	return by
}

func (v *Verdict) summarize(t *Timeline) {
	s := &v.Summary
	sdks := map[string]*SDKSummary{}
	of := func(sdk string) *SDKSummary {
		if sdks[sdk] == nil {
			sdks[sdk] = &SDKSummary{SDK: sdk}
		}
		return sdks[sdk]
	}
	died := map[string]map[Millis]bool{} // when who did
	for _, p := range t.Providers {
		of(p.SDK).Providers++
		if p.DiedMs != nil {
			died[p.Name] = map[Millis]bool{*p.DiedMs: true}
		}
	}
	missing, flapping := map[string]bool{}, map[string]bool{}
	for _, g := range v.Gaps {
		k := of(g.SDK)
		if !missing[g.Provider] {
			missing[g.Provider] = true
			s.LiveMissing++
			k.LiveMissing++
		}
		s.LongestGapMs = max(s.LongestGapMs, g.length())
		k.LongestGapMs = max(k.LongestGapMs, g.length())
		k.FirstGapMs = least(k.FirstGapMs, g.FromMs)
		k.LastGapMs = most(k.LastGapMs, g.ToMs)
	}
	for _, g := range v.Excused {
		s.Excused++
		s.LongestExcusedMs = max(s.LongestExcusedMs, g.length())
		k := of(g.SDK)
		k.LongestExcusedMs = max(k.LongestExcusedMs, g.length())
	}
	for _, g := range slices.Concat(v.Gaps, v.Excused) {
		if !g.Open && !died[g.Provider][g.ToMs] {
			flapping[g.Provider] = true
		}
	}
	for _, d := range v.Gone {
		k := of(d.SDK)
		s.Dead++
		if d.Late() {
			s.DeadLate++
			k.DeadLate++
			s.LongestLateMs = max(s.LongestLateMs, d.AfterMs-d.LimitMs)
		}
		if d.Returned {
			flapping[d.Provider] = true
		}
		s.LongestStaleMs = max(s.LongestStaleMs, d.AfterMs)
		k.FirstGoneMs = least(k.FirstGoneMs, d.AfterMs)
		k.LastGoneMs = most(k.LastGoneMs, d.AfterMs)
	}
	s.Flapping = len(flapping)
	final := Convergence{FromMs: ever}
	for _, c := range v.Converged {
		if c.FromMs > final.FromMs {
			final = c
		}
	}
	if final.FromMs > ever && !final.Never {
		s.ConvergedMs = &final.AfterMs
	}
	for _, w := range t.Writes {
		if w.Acked {
			s.WritesAcked++
		} else {
			s.WritesFailed++
		}
	}
	lost := map[string]bool{}
	for _, l := range v.Lost {
		lost[l.Address] = true
	}
	s.WritesLost = len(lost)
	s.Faults, s.Passed = len(v.Faults), v.Passed()
	for _, k := range sdks {
		s.SDKs = append(s.SDKs, *k)
	}
	slices.SortFunc(s.SDKs, func(a, b SDKSummary) int { return cmp.Compare(a.SDK, b.SDK) })
}

func least(a *Millis, b Millis) *Millis {
	if a != nil {
		b = min(*a, b)
	}
	return &b
}

func most(a *Millis, b Millis) *Millis {
	if a != nil {
		b = max(*a, b)
	}
	return &b
}
