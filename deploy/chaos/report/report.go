package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/starling-registry/starling/deploy/chaos/verdict"
)

// A Result is how a run ended.
type Result string

const (
	Passed  Result = "passed"
	Failed  Result = "FAILED"
	Skipped Result = "skipped"
)

// A Report is of one call of the program. What is empty or zero is not known
// and left out.
type Report struct {
	Server  string   // its version, as it says itself
	SDKs    []string // with their versions
	Machine string   // processors, memory, system
	Command string   // that runs exactly this again
	Seed    string   // of the random choices; "" if there were none
	Started time.Time
	Took    time.Duration
	Runs    []*Run
}

// Passed says whether no run failed.
func (r *Report) Passed() bool {
	return !slices.ContainsFunc(r.Runs, func(run *Run) bool { return run.Result == Failed })
}

// A Run is one cluster from its start to its verdict: a scenario by name, or a
// schedule.
type Run struct {
	Name    string
	Says    string // in a sentence, what is done
	Result  Result
	Why     string // it was skipped, or could not be judged
	Command string // that runs this one again, where the report has several
	Took    time.Duration
	Verify  string // what the server's own comparison of its nodes says
	Notes   []string

	Timeline *verdict.Timeline // nil if the run did not come that far
	Verdict  *verdict.Verdict  // likewise
}

// judged is the run's timeline and verdict, empty ones if it has none.
func (r *Run) judged() (*verdict.Timeline, *verdict.Verdict) {
	t, v := r.Timeline, r.Verdict
	if t == nil {
		t = &verdict.Timeline{}
	}
	if v == nil {
		v = &verdict.Verdict{}
	}
	return t, v
}

// Figures are what a run comes down to, or all runs of a report together.
type Figures struct {
	// LiveMissing counts the live providers that any observer missed for a time
	// that nothing excuses. It must be 0.
	LiveMissing  int            `json:"liveMissing"`
	Gaps         int            `json:"gaps"` // a provider, an observer, a time
	LongestGapMs verdict.Millis `json:"longestGapMs"`
	// ExcusedGaps are those that the definition of "live" allows.
	ExcusedGaps      int            `json:"excusedGaps"`
	LongestExcusedMs verdict.Millis `json:"longestExcusedMs"`
	// DeadSeenTooLong counts dead providers that somebody saw for longer than is
	// allowed. It must be 0.
	DeadSeenTooLong   int            `json:"deadSeenTooLong"`
	Died              int            `json:"died"` // providers that died or left
	LongestDeadSeenMs verdict.Millis `json:"longestDeadSeenMs"`
	LongestTooLongMs  verdict.Millis `json:"longestTooLongMs"` // after what was allowed
	// ConvergedAfterMs is when, after the last fault was mended, all views were
	// right for good; null if that was not asked.
	ConvergedAfterMs *verdict.Millis `json:"convergedAfterMs"`
	WritesAcked      int             `json:"writesAcked"` // persistent ones
	// WritesLost counts acknowledged persistent writes that a node does not show
	// at the end. It must be 0.
	WritesLost int `json:"writesLost"`
	// Flaps counts instances that vanished from a view and returned.
	Flaps  int `json:"flaps"`
	Faults int `json:"faults"` // other reasons to fail
}

// figures reads them off the verdict.
func (r *Run) figures() Figures {
	t, v := r.judged()
	f := Figures{
		LiveMissing: len(distinct(v.Gaps)), Gaps: len(v.Gaps), LongestGapMs: longest(v.Gaps),
		ExcusedGaps: len(v.Excused), LongestExcusedMs: longest(v.Excused),
		Died: len(v.Gone), ConvergedAfterMs: v.EqualAfterMs, Faults: len(v.Faults),
	}
	for i := range v.Gone {
		if v.Gone[i].Late() {
			f.DeadSeenTooLong++
			f.LongestTooLongMs = max(f.LongestTooLongMs, v.Gone[i].AfterMs-v.Gone[i].LimitMs)
		}
		f.LongestDeadSeenMs = max(f.LongestDeadSeenMs, v.Gone[i].AfterMs)
	}
	for i := range t.Writes {
		if t.Writes[i].Acked {
			f.WritesAcked++
		}
	}
	return f
}

// add makes the figures those of both: counts are summed, times the longest.
func (f *Figures) add(g Figures) {
	f.LiveMissing += g.LiveMissing
	f.Gaps += g.Gaps
	f.LongestGapMs = max(f.LongestGapMs, g.LongestGapMs)
	f.ExcusedGaps += g.ExcusedGaps
	f.LongestExcusedMs = max(f.LongestExcusedMs, g.LongestExcusedMs)
	f.DeadSeenTooLong += g.DeadSeenTooLong
	f.Died += g.Died
	f.LongestDeadSeenMs = max(f.LongestDeadSeenMs, g.LongestDeadSeenMs)
	f.LongestTooLongMs = max(f.LongestTooLongMs, g.LongestTooLongMs)
	if c := g.ConvergedAfterMs; c != nil && (f.ConvergedAfterMs == nil || *c > *f.ConvergedAfterMs) {
		f.ConvergedAfterMs = c
	}
	f.WritesAcked += g.WritesAcked
	f.WritesLost += g.WritesLost
	f.Flaps += g.Flaps
	f.Faults += g.Faults
}

func (r *Report) figures() Figures {
	var f Figures
	for _, run := range r.Runs {
		f.add(run.figures())
	}
	return f
}

// sentence is the verdict of a run in plain words.
func (r *Run) sentence() string {
	switch {
	case r.Result == Skipped:
		return "Skipped: " + clean(r.Why) + "."
	case r.Why != "":
		return "Failed: " + strings.TrimSuffix(clean(r.Why), ".") + "."
	}
	f := r.figures()
	wrong := f.wrong()
	t, _ := r.judged()
	switch {
	case len(wrong) > 0:
		return "Failed: " + strings.Join(wrong, "; ") + "."
	case r.Result == Failed:
		return "Failed."
	}
	return "Passed: " + f.right(len(t.Observers)) + "."
}

// sentence is that of all runs.
func (r *Report) sentence() string {
	if len(r.Runs) == 1 {
		return r.Runs[0].sentence()
	}
	counts := map[Result]int{}
	for _, run := range r.Runs {
		counts[run.Result]++
	}
	f := r.figures()
	var s string
	switch {
	case counts[Failed] > 0:
		s = fmt.Sprintf("Failed: %d of %s failed", counts[Failed], count(len(r.Runs), "run"))
		if wrong := f.wrong(); len(wrong) > 0 {
			s += ": " + strings.Join(wrong, "; ")
		}
	case counts[Passed] == 0:
		return "Nothing was run."
	default:
		s = fmt.Sprintf("Passed: %s, and %s", count(counts[Passed], "run"), f.right(0))
	}
	if n := counts[Skipped]; n > 0 {
		s += fmt.Sprintf("; %d skipped", n)
	}
	return s + "."
}

func (f *Figures) wrong() []string {
	var parts []string
	if f.LiveMissing > 0 {
		parts = append(parts, fmt.Sprintf("%s %s missing from a view, for up to %s", count(f.LiveMissing, "live provider"), was(f.LiveMissing), long(f.LongestGapMs)))
	}
	if f.DeadSeenTooLong > 0 {
		parts = append(parts, fmt.Sprintf("%s %s seen too long, by up to %s", count(f.DeadSeenTooLong, "dead provider"), was(f.DeadSeenTooLong), long(f.LongestTooLongMs)))
	}
	if f.WritesLost > 0 {
		parts = append(parts, fmt.Sprintf("%s %s lost", count(f.WritesLost, "acknowledged persistent write"), was(f.WritesLost)))
	}
	if f.Faults > 0 {
		parts = append(parts, count(f.Faults, "other fault"))
	}
	return parts
}

func (f *Figures) right(observers int) string {
	s := "no live provider was missing from any view"
	if observers > 0 {
		s = fmt.Sprintf("no live provider was missing from the view of any of %s", count(observers, "observer"))
	}
	parts := []string{s}
	if f.Died > 0 {
		parts = append(parts, "every dead one went in time")
	}
	if f.WritesAcked > 0 {
		parts = append(parts, "no acknowledged persistent write was lost")
	}
	return list(parts)
}

// An episode is a provider that observers missed over one stretch of time: the
// gaps of it that overlap and have one excuse, or none.
type episode struct {
	verdict.Gap // the first of them, with the ends of all
	longest     verdict.Millis
	observers   []string
}

// episodes puts gaps together, so that one of a hundred providers in ten views
// is a hundred lines, not a thousand.
func episodes(gaps []verdict.Gap) []episode {
	sorted := slices.Clone(gaps)
	slices.SortStableFunc(sorted, func(a, b verdict.Gap) int {
		return cmp.Or(cmp.Compare(a.Provider, b.Provider), cmp.Compare(a.Excused, b.Excused), cmp.Compare(a.FromMs, b.FromMs))
	})
	var found []episode
	for _, g := range sorted {
		n := len(found) - 1
		if n < 0 || found[n].Provider != g.Provider || found[n].Excused != g.Excused || g.FromMs > found[n].ToMs {
			found = append(found, episode{Gap: g})
			n++
		}
		e := &found[n]
		e.ToMs = max(e.ToMs, g.ToMs)
		e.Open = e.Open || g.Open
		e.longest = max(e.longest, g.ToMs-g.FromMs)
		if !slices.Contains(e.observers, g.Observer) {
			e.observers = append(e.observers, g.Observer)
		}
	}
	for i := range found {
		slices.Sort(found[i].observers)
	}
	slices.SortStableFunc(found, func(a, b episode) int {
		return cmp.Or(cmp.Compare(a.FromMs, b.FromMs), natural(a.Provider, b.Provider))
	})
	return found
}

func distinct(gaps []verdict.Gap) map[string]bool {
	who := map[string]bool{}
	for i := range gaps {
		who[gaps[i].Provider] = true
	}
	return who
}

func longest(gaps []verdict.Gap) verdict.Millis {
	var d verdict.Millis
	for i := range gaps {
		d = max(d, gaps[i].ToMs-gaps[i].FromMs)
	}
	return d
}

// A stepRow is what came of a step: of what began from its start until the next
// one's.
type stepRow struct {
	verdict.Step
	missing   int // live providers
	longest   verdict.Millis
	excused   int
	died      int
	gone      verdict.Millis // after which the last dead one was no longer seen
	late      int
	converged *verdict.Millis // after its end; nil if the next step began before
}

func (r *Run) steps() []stepRow {
	t, v := r.judged()
	died := map[string]verdict.Millis{}
	for _, p := range t.Providers {
		if p.DiedMs != nil {
			died[p.Name] = *p.DiedMs
		}
	}
	steps := slices.Clone(t.Steps)
	slices.SortStableFunc(steps, func(a, b verdict.Step) int { return cmp.Compare(a.FromMs, b.FromMs) })
	rows := make([]stepRow, len(steps))
	for i, s := range steps {
		row := &rows[i]
		row.Step = s
		until := t.EndMs + 1
		if i+1 < len(steps) {
			until = steps[i+1].FromMs
		}
		in := func(at verdict.Millis) bool { return at < until && (at >= s.FromMs || i == 0) }
		last := s.ToMs
		who, excused := map[string]bool{}, map[string]bool{}
		for _, g := range v.Gaps {
			if in(g.FromMs) {
				who[g.Provider] = true
				row.longest = max(row.longest, g.ToMs-g.FromMs)
				last = max(last, g.ToMs)
			}
		}
		for _, g := range v.Excused {
			if in(g.FromMs) {
				excused[g.Provider] = true
				last = max(last, g.ToMs)
			}
		}
		row.missing, row.excused = len(who), len(excused)
		for j := range v.Gone {
			d := &v.Gone[j]
			at, ok := died[d.Provider]
			if !ok || !in(at) {
				continue
			}
			row.died++
			row.gone = max(row.gone, d.AfterMs)
			last = max(last, at+d.AfterMs)
			if d.Late() {
				row.late++
			}
		}
		if last < until {
			after := last - s.ToMs
			row.converged = &after
		}
	}
	return rows
}
