package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/starling-registry/starling/pkg/node"
)

func TestRecover(t *testing.T) {
	var done []string
	found := node.LogInfo{Cluster: "0123456789abcdef", Node: idA, Generation: 1, LastIndex: 1042, LastTerm: 7, LogBytes: 123_456,
		Servers: []node.LogServer{{ID: idA, Voter: true}, {ID: idB, Voter: true}, {ID: idC}}, Rows: map[string]int{"instances": 3, "services": 2}}
	var broken error
	f := func(env []string, args ...string) (int, string, string) {
		var stdout, stderr bytes.Buffer
		log := fakeLog()
		log.inspect = func(dir string) (node.LogInfo, error) { done = append(done, "inspect "+dir); return found, broken }
		log.recover = func(dir string) (node.LogInfo, error) {
			done = append(done, "recover "+dir)
			after := found
			after.Generation, after.Servers = 2, found.Servers[:1]
			return after, nil
		}
		status := run(&process{args: append([]string{"recover"}, args...), env: env, stdout: &stdout, stderr: &stderr, notify: func(chan<- os.Signal) {}, log: log})
		return status, stdout.String(), stderr.String()
	}
	did := func(what ...string) {
		t.Helper()
		if d := cmp.Diff(what, done); d != "" {
			t.Error(d)
		}
		done = nil
	}
	table := []string{
		"node        " + idA,
		"cluster     0123456789abcdef",
		"last term   7",
		"last entry  1042",
		"generation  1",
		"holds       instances 3, services 2",
		"on disk     120KiB",
		"server      " + idA + " votes, this node",
		"server      " + idB + " votes",
		"server      " + idC + " follows",
	}
	status, stdout, stderr := f(nil, "--data-dir", "/d")
	if status != exitFailed || stderr != "starling: nothing was changed; --yes makes this the log of the cluster\n" {
		t.Errorf("status %d: %s", status, stderr)
	}
	want(t, "found", stdout, nil, table...)
	did("inspect /d")

	status, stdout, stderr = f([]string{"STARLING_DATA_DIR=/x", "STARLING_DATA_DIR=/e"}, "--yes")
	if status != exitOK || stderr != "" {
		t.Errorf("status %d: %s", status, stderr)
	}
	table[4] = "generation  2"
	want(t, "done", stdout, nil, append(table[:8], "This is the log of the cluster now. Start this node, then the others.")...)
	did("inspect /e", "recover /e")

	status, stdout, _ = f(nil, "--data-dir", "/d", "--json", "--yes")
	var back node.LogInfo
	if err := json.Unmarshal([]byte(stdout), &back); err != nil || status != exitOK || back.Generation != 2 || len(back.Servers) != 1 || back.Rows["services"] != 2 {
		t.Errorf("status %d, %v: %s", status, err, stdout)
	}
	done = nil

	if status, _, stderr := f(nil, "--yes"); status != exitUsage || !strings.Contains(stderr, "--data-dir is missing") {
		t.Errorf("status %d: %s", status, stderr)
	}
	if status, _, _ := f(nil, "--data-dir", "/d", "x"); status != exitUsage {
		t.Errorf("status %d", status)
	}
	found.LastIndex = 0
	if status, _, stderr := f(nil, "--data-dir", "/d", "--yes"); status != exitFailed || !strings.Contains(stderr, "no log in /d") {
		t.Errorf("status %d: %s", status, stderr)
	}
	broken = errors.New("data directory /d is in use\x1b by another process")
	if status, stdout, stderr := f(nil, "--data-dir", "/d", "--yes"); status != exitFailed || stdout != "" || stderr != "starling: data directory /d is in use\\x1b by another process\n" {
		t.Errorf("status %d: %s%s", status, stdout, stderr)
	}
	did("inspect /d", "inspect /d")

	if _, out, _ := starling(nil, "__complete", "recover", "--data-dir", ""); out != ":16\n" {
		t.Errorf("completion: %q", out)
	}
	_, help, _ := starling(nil, "recover", "--help")
	for line := range strings.Lines(help) {
		if len(line) > 91 && !strings.Contains(line, "  --") {
			t.Errorf("a long line: %s", line)
		}
	}
	if !strings.Contains(help, "highest last term") {
		t.Error(help)
	}
}
