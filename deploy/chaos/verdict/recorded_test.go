package verdict

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// recorded reads a timeline of a real run.
func recorded(t *testing.T, path string) *Timeline {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var line Timeline
	if err := json.Unmarshal(b, &line); err != nil {
		t.Fatal(err)
	}
	return &line
}

// What the authors of scenarios wrote by hand, and what follows from what was
// done, agree on real runs: nothing that may be missing, and the dead gone
// within a second of the same time.
func TestDerivedAgreesWithHandWritten(t *testing.T) {
	healed := func(line *Timeline) Millis {
		at := ever
		for _, c := range line.Links {
			if !c.Cut {
				at = max(at, c.AtMs)
			}
		}
		return at
	}
	for name, gone := range map[string]func(*Timeline, *Provider) Millis{
		"kill-9": func(_ *Timeline, p *Provider) Millis { return *p.DiedMs + 12_000 },
		"cut-10": func(line *Timeline, _ *Provider) Millis { return healed(line) + 2_000 },
	} {
		t.Run(name, func(t *testing.T) {
			line := recorded(t, filepath.Join("testdata", name+".json"))
			e := Derive(line, Documented())
			v := Judge(line, e)
			if !v.Passed() || len(v.Excused) > 0 {
				t.Fatalf("%+v", v)
			}
			dead := 0
			for i := range line.Providers {
				p := &line.Providers[i]
				for j := range line.Observers {
					o := &line.Observers[j]
					for _, x := range e.excuses(p, o) {
						t.Errorf("%s may miss %s from %v to %v: %s", o.Name, p.Name, x.From, x.To, x.Why)
					}
					if p.DiedMs == nil {
						continue
					}
					dead++
					if by, _ := e.goneBy(p, o); o.Reader && by.By > gone(line, p)+1_500 {
						t.Errorf("%s may see %s until %v, by hand until %v: %s", o.Name, p.Name, by.By, gone(line, p), by.Why)
					}
				}
			}
			if dead == 0 {
				t.Error("nobody died")
			}
		})
	}
}

// What is done to a recorded run that must be found, at any time and with any
// observer.
func TestRecordedRunsSpoilt(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.json")
	if err != nil || len(paths) == 0 {
		t.Fatal("no recorded runs", err)
	}
	for _, path := range paths {
		whole := recorded(t, path)
		for _, at := range []Millis{0, 500, 5_000, 11_000, 18_000} {
			for _, o := range whole.Observers {
				line := recorded(t, path)
				var live string
				for _, p := range line.Providers {
					if p.UpMs < 0 && p.DiedMs == nil {
						live = p.Name
					}
				}
				var last View
				for _, v := range line.Views {
					if v.Observer == o.Name && v.AtMs <= at && v.AtMs >= last.AtMs-1<<40 {
						last = v
					}
				}
				if last.Blind {
					continue
				}
				without := last
				without.AtMs, last.AtMs = at+1, at+2
				without.Seen = slices.DeleteFunc(slices.Clone(last.Seen), func(s string) bool { return s == live })
				line.Views = append(line.Views, without, last)
				if v := Judge(line, Derive(line, Documented())); len(v.Gaps) == 0 || v.Summary.LiveMissing != 1 {
					t.Errorf("%s: %s misses %s for a millisecond at %v: %+v", path, o.Name, live, at, v.Excused)
				}
			}
		}
	}
}
