package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/starling-registry/starling/deploy/chaos/verdict"
)

// What a control program does to servers of somebody else is heard of, and a server
// is not left down because this program was told to end.
func TestControl(t *testing.T) {
	dir := t.TempDir()
	control := filepath.Join(dir, "control")
	script := "#!/bin/sh\necho \"$1 $2\" >>" + dir + "/calls\n" + `case $1 in
kill) echo "no such machine"; exit 4 ;;
start) sleep 30 & echo $! >` + dir + `/child ;; # keeps what it writes to open, as a server may
terminate) exec sleep 30 ;;
esac
`
	if err := os.WriteFile(control, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	c := &cluster{dir: dir, rec: newRecorder(), foreign: true, control: control}
	n := &node{name: "a", cluster: c, server: "somewhere:8848"}
	t.Cleanup(func() {
		if pid, err := os.ReadFile(filepath.Join(dir, "child")); err == nil {
			killPID(strings.TrimSpace(string(pid)))
		}
	})
	begun := time.Now()
	if err := n.act(t.Context(), "kill"); err == nil || !strings.Contains(err.Error(), "no such machine") {
		t.Errorf("a failed kill says %v", err)
	}
	over, end := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, end)
	if err := n.act(over, "terminate"); err == nil {
		t.Error("an interrupted action has no error")
	}
	if err := n.act(over, "start"); err != nil {
		t.Errorf("a start after the end was asked for: %v", err)
	}
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("it waited %v for what a control program has left running, or was stopped at", took)
	}
	calls, _ := os.ReadFile(filepath.Join(dir, "calls"))
	if want := "kill somewhere:8848\nterminate somewhere:8848\nstart somewhere:8848\n"; string(calls) != want {
		t.Errorf("it was called with %q", calls)
	}
}

// All that may be registered is taken back: also where no answer came.
func TestWritten(t *testing.T) {
	r := newRecorder()
	for _, w := range []verdict.Write{
		{Address: "acked", Acked: true}, {Address: "unanswered"},
		{Address: "back", Acked: true}, {Address: "back", Deregister: true, Acked: true},
		{Address: "perhaps", Acked: true}, {Address: "perhaps", Deregister: true},
	} {
		r.write(w)
	}
	if got, want := r.written(), []string{"acked", "perhaps", "unanswered"}; !slices.Equal(got, want) {
		t.Errorf("%q may be there, want %q", got, want)
	}
}

func killPID(text string) {
	if pid, err := strconv.Atoi(text); err == nil {
		syscall.Kill(pid, syscall.SIGKILL)
	}
}
