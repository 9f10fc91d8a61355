package compat

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// A report collects the results of a run. It holds no dates, durations or machine names, so that
// another run with the same results writes the same file.
type report struct {
	mu      sync.Mutex
	results map[string]map[string]bool // by SDK and scenario: passed
}

func (r *report) record(sdk *sdk, scenario string, passed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.results == nil {
		r.results = map[string]map[string]bool{}
	}
	if r.results[sdk.name] == nil {
		r.results[sdk.name] = map[string]bool{}
	}
	r.results[sdk.name][scenario] = passed
}

// complete says whether every SDK ran every scenario.
func (r *report) complete() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, sdk := range sdks() {
		if len(r.results[sdk.name]) != len(scenarios) {
			return false
		}
	}
	return true
}

func (r *report) write(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(r.markdown()), 0o644)
}

func (r *report) markdown() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b, notes strings.Builder
	b.WriteString(`# Compatibility with the Nacos SDKs

<!-- Written by the suite in test/compat; change that instead. -->

Each cell is one scenario run by one official SDK, unmodified and in a process of its own, against a
` + "`starling serve`" + ` process. The suite, what it needs and how to run it: [test/compat](../test/compat/README.md).

| Scenario |`)
	for _, sdk := range sdks() {
		fmt.Fprintf(&b, " %s %s |", sdk.title, sdk.version)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(sdks())) + "\n")
	number := map[string]int{} // of each note, in order of appearance
	for _, sc := range scenarios {
		fmt.Fprintf(&b, "| %s |", sc.name)
		for _, sdk := range sdks() {
			cell := "**fails**"
			if r.results[sdk.name][sc.name] {
				cell = "passes"
			}
			if note := sdk.notes[sc.name]; note != "" {
				if number[note] == 0 {
					number[note] = len(number) + 1
					fmt.Fprintf(&notes, "%d. %s: %s.\n", number[note], sdk.title, note)
				}
				cell += fmt.Sprintf(" (%d)", number[note])
			}
			fmt.Fprintf(&b, " %s |", cell)
		}
		b.WriteString("\n")
	}
	b.WriteString("\nNotes on what an SDK cannot do by itself:\n\n" + notes.String())
	b.WriteString("\n## What each scenario proves\n\n")
	for _, sc := range scenarios {
		fmt.Fprintf(&b, "- **%s.** %s\n", sc.name, sc.proves)
	}
	return b.String()
}
