package report

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"slices"
	"time"

	"github.com/starling-registry/starling/deploy/chaos/verdict"
)

// Version is of the JSON document's schema. It goes up when a field is removed or
// means something else; new fields may come without.
const Version = 1

// A document is the JSON report. README.md has a table of it.
type document struct {
	Version int       `json:"version"`
	Summary summary   `json:"summary"`
	Server  string    `json:"server"`
	SDKs    []string  `json:"sdks"`
	Machine string    `json:"machine,omitempty"`
	Command string    `json:"command,omitempty"` // that runs this again
	Seed    string    `json:"seed,omitempty"`    // as text: a number of 64 bits is too long for many readers of JSON
	Started time.Time `json:"started,omitzero"`
	TookMs  int64     `json:"tookMs"`
	// and "runs", a list of runJSON, see JSON
}

// A summary is what a script asks for. Of several runs it has the sums and the
// longest times.
type summary struct {
	Result   Result `json:"result"`
	Sentence string `json:"sentence"` // the same for people
	Runs     int    `json:"runs"`
	Failed   int    `json:"failed"`
	Skipped  int    `json:"skipped"`
	verdict.Summary
}

type runJSON struct {
	Name     string           `json:"name"`
	Says     string           `json:"says"`
	Result   Result           `json:"result"`
	Why      string           `json:"why,omitempty"`
	Sentence string           `json:"sentence"`
	Command  string           `json:"command,omitempty"`
	TookMs   int64            `json:"tookMs"`
	Verify   string           `json:"verify,omitempty"`
	Notes    []string         `json:"notes"`
	Summary  verdict.Summary  `json:"summary"`
	Steps    []stepJSON       `json:"steps"`
	Verdict  *verdict.Verdict `json:"verdict"`
	// and "timeline", a verdict.Timeline, see Run.json
}

type stepJSON struct {
	verdict.Step
	LiveMissing    int             `json:"liveMissing"`
	LongestGapMs   verdict.Millis  `json:"longestGapMs"`
	ExcusedMissing int             `json:"excusedMissing"`
	Dead           int             `json:"dead"`
	DeadLate       int             `json:"deadLate"`
	LongestStaleMs verdict.Millis  `json:"longestStaleMs"`
	ConvergedMs    *verdict.Millis `json:"convergedMs"` // null if views were not right before the next step
}

// JSON writes the whole report, with timelines, from which runs can be judged
// again. It is laid out for people up to the timelines, which are a line each.
func JSON(w io.Writer, r *Report) error {
	var runs [][]byte
	for _, run := range r.Runs {
		b, err := run.json()
		if err != nil {
			return err
		}
		runs = append(runs, b)
	}
	d := document{
		Version: Version, Server: r.Server, SDKs: orEmpty(r.SDKs), Machine: r.Machine,
		Command: r.Command, Seed: r.Seed, Started: r.Started, TookMs: r.Took.Milliseconds(),
	}
	d.Summary = summary{Result: Passed, Sentence: r.sentence(), Runs: len(r.Runs), Summary: r.figures()}
	for _, run := range r.Runs {
		switch run.Result {
		case Failed:
			d.Summary.Failed++
		case Skipped:
			d.Summary.Skipped++
		}
	}
	switch {
	case d.Summary.Failed > 0:
		d.Summary.Result = Failed
	case d.Summary.Skipped == len(r.Runs):
		d.Summary.Result = Skipped
	}
	if y := d.Started.Year(); y < 0 || y > 9999 {
		d.Started = time.Time{} // which RFC 3339 cannot say
	}
	b, err := json.MarshalIndent(&d, "", "  ")
	if err != nil {
		return err
	}
	b = withLast(b, "", "runs", append(append([]byte("[\n    "), bytes.Join(runs, []byte(",\n    "))...), "\n  ]"...))
	_, err = w.Write(append(b, '\n'))
	return err
}

func (r *Run) json() ([]byte, error) {
	d := runJSON{
		Name: r.Name, Says: r.Says, Result: r.Result, Why: r.Why, Sentence: r.sentence(), Command: r.Command,
		TookMs: r.Took.Milliseconds(), Verify: r.Verify, Notes: orEmpty(r.Notes), Summary: r.figures(), Steps: []stepJSON{},
		Verdict: r.Verdict,
	}
	for _, s := range r.steps() {
		step := stepJSON{
			Step: s.Step, LiveMissing: s.missing, LongestGapMs: s.longest, ExcusedMissing: s.excused,
			Dead: s.died, DeadLate: s.late, LongestStaleMs: s.gone,
		}
		if s.converged != nil && !s.converged.Never {
			step.ConvergedMs = &s.converged.AfterMs
		}
		d.Steps = append(d.Steps, step)
	}
	b, err := json.MarshalIndent(&d, "    ", "  ")
	if err != nil {
		return nil, err
	}
	timeline := []byte("null")
	if r.Timeline != nil {
		t := *r.Timeline
		t.Links = slices.Clone(t.Links)
		for i := range t.Links {
			if l := &t.Links[i]; math.IsNaN(l.Loss) || math.IsInf(l.Loss, 0) {
				l.Loss = 0 // which JSON cannot say
			}
		}
		if timeline, err = json.Marshal(&t); err != nil {
			return nil, err
		}
	}
	return withLast(b, "    ", "timeline", timeline), nil
}

// withLast puts one more field at the end of an indented object.
func withLast(object []byte, indent, key string, value []byte) []byte {
	b := bytes.TrimSuffix(object, []byte("\n"+indent+"}"))
	b = append(b, ",\n"+indent+`  "`+key+`": `...)
	return append(append(b, value...), "\n"+indent+"}"...)
}

func orEmpty(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}
