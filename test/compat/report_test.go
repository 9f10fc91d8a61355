package compat

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// A report collects the results of a run. It holds no dates, durations or machine names, so that
// another run with the same results writes the same file.
type report struct {
	mu      sync.Mutex
	results map[string]map[string]string // by SDK and scenario: what its cell says
}

const (
	passes      = "passes"
	fails       = "**fails**"
	notOffered  = "not offered"  // the SDK has no call for it
	notPossible = "not possible" // what it does or sends rules it out
)

func (r *report) record(sdk *sdk, scenario string, cell string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.results == nil {
		r.results = map[string]map[string]string{}
	}
	if r.results[sdk.Name] == nil {
		r.results[sdk.Name] = map[string]string{}
	}
	r.results[sdk.Name][scenario] = cell
}

// complete says whether every SDK ran every scenario, or was excused.
func (r *report) complete() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, sdk := range sdks() {
		if len(r.results[sdk.Name]) != len(scenarios) {
			return false
		}
	}
	return true
}

// check compares the results of a run of some SDKs or scenarios with the report of the last
// complete one: the report must be what this run would write, had the others ended as it says.
func (r *report) check(path string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("comparing the results with the report: %w", err)
	}
	r.mu.Lock()
	cells := readCells(string(old))
	for _, sdk := range sdks() {
		for _, sc := range scenarios {
			if cell := r.results[sdk.Name][sc.name]; cell != "" {
				cells[column(sdk)+"|"+sc.name] = cell
			}
		}
	}
	r.mu.Unlock()
	have, want := strings.Split(string(old), "\n"), strings.Split(markdown(cells), "\n")
	if slices.Equal(have, want) {
		fmt.Printf("the results agree with %s\n", path)
		return nil
	}
	for n := range max(len(have), len(want)) {
		var h, w string
		if n < len(have) {
			h = have[n]
		}
		if n < len(want) {
			w = want[n]
		}
		if h != w {
			return fmt.Errorf("%s does not agree with this run and wants a complete one (make compat-full). Line %d is\n\t%s\nand should be\n\t%s", path, n+1, h, w)
		}
	}
	return nil
}

// readCells reads the table of a report: what each cell says, by column and scenario.
func readCells(report string) map[string]string {
	cells := map[string]string{}
	var columns []string
	for line := range strings.Lines(report) {
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		row := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for n := range row {
			row[n] = strings.TrimSpace(row[n])
		}
		if columns == nil {
			columns = row
			continue
		}
		for n, cell := range row[1:min(len(row), len(columns))] {
			cell, _, _ = strings.Cut(cell, " (")
			cells[columns[n+1]+"|"+row[0]] = cell
		}
	}
	return cells
}

// column is the heading of an SDK.
func column(s *sdk) string { return s.Title + " " + s.Version }

func (r *report) write(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	cells := map[string]string{}
	for _, sdk := range sdks() {
		for _, sc := range scenarios {
			cells[column(sdk)+"|"+sc.name] = r.results[sdk.Name][sc.name]
		}
	}
	return os.WriteFile(path, []byte(markdown(cells)), 0o644)
}

func markdown(cells map[string]string) string {
	var b, notes strings.Builder
	b.WriteString(`# Compatibility with the Nacos SDKs

<!-- Written by the suite in test/compat; change that instead. -->

Each cell is one scenario run by one official SDK, unmodified and in a process of its own, against a
` + "`starling serve`" + ` process. The suite, what it needs and how to run it: [test/compat](../test/compat/README.md). *Not
offered* means that the SDK has no call for it, *not possible* that what the SDK does or
sends rules the scenario out; the notes say why.

| Scenario |`)
	for _, sdk := range sdks() {
		fmt.Fprintf(&b, " %s |", column(sdk))
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(sdks())) + "\n")
	number := map[string]int{} // of each note, in order of appearance
	for _, sc := range scenarios {
		fmt.Fprintf(&b, "| %s |", sc.name)
		for _, sdk := range sdks() {
			cell, note := cmp.Or(cells[column(sdk)+"|"+sc.name], "not run"), sdk.notes[sc.name]
			if excuse, reason := sdk.excuse(sc); excuse != "" {
				cell, note = excuse, reason
			}
			if note != "" {
				note = sdk.Title + ": " + note
				if number[note] == 0 {
					number[note] = len(number) + 1
					fmt.Fprintf(&notes, "%d. %s.\n", number[note], note)
				}
				cell += fmt.Sprintf(" (%d)", number[note])
			}
			fmt.Fprintf(&b, " %s |", cell)
		}
		b.WriteString("\n")
	}
	b.WriteString("\nNotes on what an SDK cannot do, and what its driver does instead:\n\n" + notes.String())
	b.WriteString("\n## What each scenario proves\n\n")
	for _, sc := range scenarios {
		fmt.Fprintf(&b, "- **%s.** %s\n", sc.name, sc.proves)
	}
	return b.String()
}
