package main

import (
	"testing"

	"github.com/starling-registry/starling/deploy/chaos/verdict"
)

// Who is new is not called missing, who was seen before is; to be waited for are
// both.
func TestStateTellsNewFromMissing(t *testing.T) {
	r := newRecorder()
	r.addObserver(verdict.Observer{Name: "o"})
	for _, name := range []string{"old", "new"} {
		r.addProvider(&verdict.Provider{Name: name, Address: name + ":1"})
	}
	r.up(r.providers[0])
	for _, step := range []struct {
		sees    []string
		newUp   bool
		lacking int
		want    string
	}{
		{sees: nil, lacking: 1, want: "not yet seen: old; by 1 of 1: o"},
		{sees: []string{"old:1"}, want: "all live ones seen by all 1 observers"},
		{sees: []string{"old:1"}, newUp: true, lacking: 1, want: "not yet seen: new; by 1 of 1: o"},
		{sees: nil, lacking: 2, want: "MISSING: old; by 1 of 1: o"},
		{sees: []string{"new:1"}, lacking: 1, want: "MISSING: old; by 1 of 1: o"},
		{sees: []string{"new:1", "old:1"}, want: "all live ones seen by all 1 observers"},
	} {
		if step.newUp {
			r.up(r.providers[1])
		}
		r.saw("o", now(), step.sees, false)
		now, _ := r.state()
		if got := now.String(); got != step.want || len(now.lacking["o"]) != step.lacking {
			t.Errorf("seen are %v: %q with %d lacking, want %q with %d", step.sees, got, len(now.lacking["o"]), step.want, step.lacking)
		}
	}
}
