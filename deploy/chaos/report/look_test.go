package report

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestLook writes all reports of the made-up runs, for eyes, into the folder that
// CHAOS_REPORT_LOOK names.
func TestLook(t *testing.T) {
	dir := os.Getenv("CHAOS_REPORT_LOOK")
	if dir == "" {
		t.Skip("CHAOS_REPORT_LOOK names no folder to put pages into")
	}
	for name, r := range map[string]*Report{"calm": calm(), "broken": broken(), "several": several(), "recorded": recorded(t), "big": big(100, 25, 1_800_000), "flapping": flapping()} {
		var b, j, x bytes.Buffer
		start := time.Now()
		if err := HTML(&b, r); err != nil {
			t.Fatal(err)
		}
		took := time.Since(start)
		if err := JSON(&j, r); err != nil {
			t.Fatal(err)
		}
		if err := Text(&x, r, false); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: HTML %d kB in %v, JSON %d kB", name, b.Len()/1000, took, j.Len()/1000)
		for ext, content := range map[string][]byte{".html": b.Bytes(), ".json": j.Bytes(), ".txt": x.Bytes()} {
			if err := os.WriteFile(filepath.Join(dir, name+ext), content, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}
