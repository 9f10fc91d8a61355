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

// figures are what the run comes down to, as the verdict has them.
func (r *Run) figures() verdict.Summary {
	_, v := r.judged()
	f := v.Summary
	f.Faults, f.Passed = len(v.Faults), r.Result == Passed
	if f.ConvergedMs == nil && len(v.Converged) == 0 {
		f.ConvergedMs = v.EqualAfterMs // of a run without steps that demands it
	}
	return f
}

// figures are those of all runs: counts are summed, of times it is the longest.
func (r *Report) figures() verdict.Summary {
	f := verdict.Summary{Passed: r.Passed()}
	sdks := map[string]*verdict.SDKSummary{}
	longest := func(to **verdict.Millis, m *verdict.Millis) {
		if m != nil && (*to == nil || **to < *m) {
			*to = m
		}
	}
	first := func(to **verdict.Millis, m *verdict.Millis) {
		if m != nil && (*to == nil || **to > *m) {
			*to = m
		}
	}
	for _, run := range r.Runs {
		g := run.figures()
		f.LiveMissing += g.LiveMissing
		f.LongestGapMs = max(f.LongestGapMs, g.LongestGapMs)
		f.Excused += g.Excused
		f.LongestExcusedMs = max(f.LongestExcusedMs, g.LongestExcusedMs)
		f.Dead += g.Dead
		f.DeadLate += g.DeadLate
		f.LongestStaleMs = max(f.LongestStaleMs, g.LongestStaleMs)
		f.LongestLateMs = max(f.LongestLateMs, g.LongestLateMs)
		longest(&f.ConvergedMs, g.ConvergedMs)
		f.WritesAcked += g.WritesAcked
		f.WritesFailed += g.WritesFailed
		f.WritesLost += g.WritesLost
		f.Flapping += g.Flapping
		f.Faults += g.Faults
		for _, k := range g.SDKs {
			if sdks[k.SDK] == nil {
				sdks[k.SDK] = &verdict.SDKSummary{SDK: k.SDK}
			}
			sum := sdks[k.SDK]
			sum.Providers += k.Providers
			sum.LiveMissing += k.LiveMissing
			sum.LongestGapMs = max(sum.LongestGapMs, k.LongestGapMs)
			sum.LongestExcusedMs = max(sum.LongestExcusedMs, k.LongestExcusedMs)
			first(&sum.FirstGapMs, k.FirstGapMs)
			longest(&sum.LastGapMs, k.LastGapMs)
			first(&sum.FirstGoneMs, k.FirstGoneMs)
			longest(&sum.LastGoneMs, k.LastGoneMs)
			sum.DeadLate += k.DeadLate
		}
	}
	f.SDKs = []verdict.SDKSummary{}
	for _, name := range sortedKeys(sdks) {
		f.SDKs = append(f.SDKs, *sdks[name])
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
	t, v := r.judged()
	wrong := wrong(&f, len(v.Lost))
	switch {
	case f.LiveMissing+f.DeadLate+f.WritesLost == 0 && len(v.Faults) == 1:
		return "Failed: " + strings.TrimSuffix(clean(v.Faults[0]), ".") + "."
	case len(wrong) > 0:
		return "Failed: " + strings.Join(wrong, "; ") + "."
	case r.Result != Passed:
		return "Failed."
	}
	return "Passed: " + right(&f, len(t.Observers)) + "."
}

// sentence is that of all runs.
func (r *Report) sentence() string {
	if len(r.Runs) == 1 {
		return r.Runs[0].sentence()
	}
	counts, losses := map[Result]int{}, 0
	for _, run := range r.Runs {
		counts[run.Result]++
		_, v := run.judged()
		losses += len(v.Lost)
	}
	f := r.figures()
	var s string
	switch {
	case counts[Failed] > 0:
		s = fmt.Sprintf("Failed: %d of %s failed", counts[Failed], count(len(r.Runs), "run"))
		if wrong := wrong(&f, losses); len(wrong) > 0 {
			s += ": " + strings.Join(wrong, "; ")
		}
	case counts[Passed] == 0:
		return "Nothing was run."
	default:
		s = fmt.Sprintf("Passed: %s; %s", count(counts[Passed], "run"), right(&f, 0))
	}
	if n := counts[Skipped]; n > 0 {
		s += fmt.Sprintf("; %d skipped", n)
	}
	return s + "."
}

// wrong says what the verdict holds against all runs of the figures. A lost write
// is among the faults too, and said once.
func wrong(f *verdict.Summary, losses int) []string {
	var parts []string
	if f.LiveMissing > 0 {
		parts = append(parts, fmt.Sprintf("%s %s missing from a view, for up to %s", count(f.LiveMissing, "live provider"), was(f.LiveMissing), long(f.LongestGapMs)))
	}
	if f.DeadLate > 0 {
		parts = append(parts, fmt.Sprintf("%s %s seen too long, by up to %s", count(f.DeadLate, "dead provider"), was(f.DeadLate), long(f.LongestLateMs)))
	}
	if f.WritesLost > 0 {
		parts = append(parts, fmt.Sprintf("%s %s lost", count(f.WritesLost, "acknowledged persistent write"), was(f.WritesLost)))
	}
	others := f.Faults - losses
	switch {
	case others > 0 && len(parts) == 0:
		parts = append(parts, count(others, "fault"))
	case others > 0:
		parts = append(parts, count(others, "other fault"))
	}
	return parts
}

func right(f *verdict.Summary, observers int) string {
	s := "no live provider was missing from any view"
	if observers > 0 {
		s = fmt.Sprintf("no live provider was missing from the view of any of %s", count(observers, "observer"))
	}
	if f.Excused > 0 {
		s += " without an excuse"
	}
	parts := []string{s}
	if f.Dead > 0 {
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

// A stepRow is what came of a step: of what began from its start until another one
// began.
type stepRow struct {
	verdict.Step
	missing   int // live providers
	longest   verdict.Millis
	excused   int
	died      int
	gone      verdict.Millis // after which the last dead one was no longer seen
	late      int
	converged *verdict.Convergence // nil if the verdict has none
}

// steps are in the order in which they began.
func (r *Run) steps() []stepRow {
	t, v := r.judged()
	died := map[string]verdict.Millis{}
	for _, p := range t.Providers {
		if p.DiedMs != nil {
			died[p.Name] = *p.DiedMs
		}
	}
	rows := make([]stepRow, len(t.Steps))
	for i, s := range t.Steps {
		rows[i].Step = s
		if len(v.Converged) == len(t.Steps) {
			rows[i].converged = &v.Converged[i]
		}
	}
	slices.SortStableFunc(rows, func(a, b stepRow) int { return cmp.Compare(a.FromMs, b.FromMs) })
	for i := range rows {
		row := &rows[i]
		until := t.EndMs
		for _, next := range rows[i:] {
			if next.FromMs > row.FromMs {
				until = next.FromMs
				break
			}
		}
		in := func(at verdict.Millis) bool {
			return (at < until || until >= t.EndMs) && (at >= row.FromMs || row.FromMs == rows[0].FromMs)
		}
		who, excused := map[string]bool{}, map[string]bool{}
		for _, g := range v.Gaps {
			if in(g.FromMs) {
				who[g.Provider] = true
				row.longest = max(row.longest, g.ToMs-g.FromMs)
			}
		}
		for _, g := range v.Excused {
			if in(g.FromMs) {
				excused[g.Provider] = true
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
			if d.Late() {
				row.late++
			}
		}
	}
	return rows
}
