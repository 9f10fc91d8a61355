package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/starling-registry/starling/deploy/chaos/verdict"
)

const (
	passed  = "passed"
	failed  = "FAILED"
	skipped = "skipped"
)

// A report is of one run.
type report struct {
	Command   string    `json:"command"` // that plays the same again
	Server    string    `json:"server"`
	SDKs      []string  `json:"sdks"`
	Started   time.Time `json:"started"`
	Scenarios []*result `json:"scenarios"`
}

// A result is of one scenario.
type result struct {
	Name        string           `json:"name"`
	Says        string           `json:"says"`
	Result      string           `json:"result"`
	Why         string           `json:"why,omitempty"` // it was skipped, or could not be judged
	Seconds     float64          `json:"seconds"`
	Providers   int              `json:"providers"`
	Subscribers int              `json:"subscribers"`
	Verify      string           `json:"verify,omitempty"`
	Verdict     *verdict.Verdict `json:"verdict"`
	Notes       []string         `json:"notes,omitempty"`
	Marks       []verdict.Mark   `json:"marks,omitempty"`
}

func (r *report) passed() bool {
	return !slices.ContainsFunc(r.Scenarios, func(s *result) bool { return s.Result == failed })
}

func (r *report) write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return writeJSON(filepath.Join(dir, "report.json"), r)
}

func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

// print says what was wrong, grouped so that a gap of a hundred providers in
// ten views is a few lines.
func (r *result) print(w io.Writer) {
	if r.Why != "" {
		fmt.Fprintf(w, "   %s: %s\n", r.Result, r.Why)
		return
	}
	byProvider := map[string][]verdict.Gap{}
	for _, g := range r.Verdict.Gaps {
		byProvider[g.Provider] = append(byProvider[g.Provider], g)
	}
	const most = 12
	for i, name := range slices.Sorted(maps.Keys(byProvider)) {
		if i == most {
			fmt.Fprintf(w, "   missing: %d more providers\n", len(byProvider)-most)
			break
		}
		gaps := byProvider[name]
		slices.SortFunc(gaps, func(a, b verdict.Gap) int { return cmp.Compare(a.FromMs, b.FromMs) })
		observers := map[string]bool{}
		last := gaps[0]
		for _, g := range gaps {
			observers[g.Observer] = true
			if g.ToMs > last.ToMs {
				last = g
			}
		}
		until := "to " + last.ToMs.String()
		if last.Open {
			until = "to the end"
		}
		fmt.Fprintf(w, "   missing: %s (on %s) from %v %s, by %s\n", name, gaps[0].On, gaps[0].FromMs, until,
			verdict.Some(slices.Sorted(maps.Keys(observers))))
	}
	for _, d := range r.Verdict.Gone {
		if !d.Late() {
			continue
		}
		how := fmt.Sprintf("seen for %v", d.AfterMs)
		switch {
		case d.Never:
			how = "never went"
		case d.Returned:
			how = "came back, and was last seen after " + d.AfterMs.String()
		}
		fmt.Fprintf(w, "   dead: %s %s, allowed %v, by %s\n", d.Provider, how, d.LimitMs, d.Observer)
	}
	for _, f := range r.Verdict.Faults {
		fmt.Fprintf(w, "   fault: %s\n", f)
	}
	fmt.Fprintf(w, "   %s in %.0f s: %s\n", r.Result, r.Seconds, r.summary())
}

// gone is how long the slowest dead provider was seen: of all SDKs but
// Python's, and of that.
func (r *result) gone() string {
	var usual, python verdict.Millis
	some := map[bool]int{}
	for _, d := range r.Verdict.Gone {
		slot := &usual
		if d.SDK == "python" {
			slot = &python
		}
		some[d.SDK == "python"]++
		*slot = max(*slot, d.AfterMs)
	}
	switch {
	case some[false]+some[true] == 0:
		return "-"
	case some[true] == 0:
		return usual.String()
	}
	return fmt.Sprintf("%v, Python %v", usual, python)
}

func (r *result) missing() string {
	if r.Why != "" {
		return "-"
	}
	who, seconds := map[string]bool{}, verdict.Millis(0)
	for _, g := range r.Verdict.Gaps {
		who[g.Provider] = true
		seconds = max(seconds, g.ToMs-g.FromMs)
	}
	if len(who) == 0 {
		return "0"
	}
	return fmt.Sprintf("%d, up to %v", len(who), seconds)
}

func (r *result) equal() string {
	if r.Verdict.EqualAfterMs == nil {
		return "-"
	}
	return "after " + r.Verdict.EqualAfterMs.String()
}

func (r *result) summary() string {
	parts := []string{"live ones missing: " + r.missing()}
	if g := r.gone(); g != "-" {
		parts = append(parts, "dead ones gone after "+g)
	}
	if e := r.equal(); e != "-" {
		parts = append(parts, "views equal "+e)
	}
	if n := len(r.Verdict.Excused); n > 0 {
		parts = append(parts, fmt.Sprintf("%d allowed absences", n))
	}
	return strings.Join(append(parts, "verify: "+r.Verify), "; ")
}

// print writes the table.
func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "%s, %s, %d processors\n", r.Server, strings.Join(r.SDKs, ", "), runtime.NumCPU())
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SCENARIO\tRESULT\tLIVE MISSING\tDEAD GONE AFTER\tEQUAL\tVERIFY\tFAULTS\tTIME")
	for _, s := range r.Scenarios {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%.0f s\n", s.Name, s.Result, s.missing(), s.gone(), s.equal(),
			cmp.Or(s.Verify, "-"), len(s.Verdict.Faults), s.Seconds)
	}
	t.Flush()
}
