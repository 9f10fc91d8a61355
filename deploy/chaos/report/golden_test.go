package report

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/starling-registry/starling/deploy/chaos/verdict"
)

var update = flag.Bool("update", false, "rewrite the files in testdata")

// TestGolden compares text and JSON with files that a person has read. -update
// rewrites them.
func TestGolden(t *testing.T) {
	for name, r := range map[string]*Report{"calm": calm(), "broken": broken(), "several": several(), "recorded": recorded(t)} {
		t.Run(name, func(t *testing.T) {
			var text, doc bytes.Buffer
			if err := Text(&text, r, false); err != nil {
				t.Fatal(err)
			}
			if err := JSON(&doc, r); err != nil {
				t.Fatal(err)
			}
			golden(t, name+".txt", text.Bytes())
			if name != "recorded" {
				golden(t, name+".json", doc.Bytes())
				return
			}
			// The timeline of a recorded run is a file already.
			var d map[string]any
			if err := json.Unmarshal(doc.Bytes(), &d); err != nil {
				t.Fatal(err)
			}
			for _, run := range d["runs"].([]any) {
				delete(run.(map[string]any), "timeline")
			}
			b, err := json.MarshalIndent(d, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name+".json", append(b, '\n'))
		})
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what it was:\n%s", name, got)
	}
}

// TestJSONTimeline: from a report a run can be judged again.
func TestJSONTimeline(t *testing.T) {
	r := recorded(t)
	var b bytes.Buffer
	if err := JSON(&b, r); err != nil {
		t.Fatal(err)
	}
	var d struct {
		Version int
		Summary struct {
			Result      string
			LiveMissing *int
		}
		Runs []struct{ Timeline verdict.Timeline }
	}
	if err := json.Unmarshal(b.Bytes(), &d); err != nil {
		t.Fatal(err)
	}
	if d.Version != Version || d.Summary.LiveMissing == nil || d.Summary.Result != string(r.Runs[0].Result) {
		t.Errorf("head %+v", d.Summary)
	}
	got, want := d.Runs[0].Timeline, r.Runs[0].Timeline
	if len(got.Views) != len(want.Views) || len(got.Providers) != len(want.Providers) || got.EndMs != want.EndMs {
		t.Errorf("the timeline came back with %d views and %d providers", len(got.Views), len(got.Providers))
	}
}

// TestColours: they are extra, so the text without them is the same.
func TestColours(t *testing.T) {
	for _, r := range []*Report{broken(), several()} {
		var plain, coloured bytes.Buffer
		if err := Text(&plain, r, false); err != nil {
			t.Fatal(err)
		}
		if err := Text(&coloured, r, true); err != nil {
			t.Fatal(err)
		}
		if bytes.ContainsRune(plain.Bytes(), '\x1b') {
			t.Error("colours without a terminal")
		}
		if !bytes.Contains(coloured.Bytes(), []byte("\x1b[1;31m")) {
			t.Error("no colours on a terminal")
		}
		stripped := coloured.String()
		for _, code := range []string{"\x1b[0m", "\x1b[1m", "\x1b[32m", "\x1b[1;31m"} {
			stripped = string(bytes.ReplaceAll([]byte(stripped), []byte(code), nil))
		}
		if stripped != plain.String() {
			t.Errorf("without its colours the text is\n%s\nnot\n%s", stripped, &plain)
		}
	}
}
