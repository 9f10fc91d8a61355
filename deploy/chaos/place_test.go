package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/starling-registry/starling/deploy/chaos/link"
)

// What a killed program has left is removed by the next one; what is in use or was
// kept is not.
func TestPlaceRemovesWhatIsLeft(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	used, endUse, err := newPlace()
	if err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(os.TempDir(), placePrefix+"kept")
	left := filepath.Join(os.TempDir(), placePrefix+"left")
	for _, file := range []string{filepath.Join(kept, "log"), filepath.Join(left, "node-a", "log"), filepath.Join(left, inUse)} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	own, end, err := newPlace()
	if err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]bool{used: true, own: true, kept: true, left: false} {
		if isThere(dir) != want {
			t.Errorf("%s is there: %v, want %v", dir, !want, want)
		}
	}
	end()
	if isThere(own) {
		t.Error("an empty folder is kept")
	}
	if err := os.WriteFile(filepath.Join(used, "log"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	endUse()
	if !isThere(filepath.Join(used, "log")) || isThere(filepath.Join(used, inUse)) {
		t.Error("a log is not kept, or still marked as in use")
	}
}

// A stage that could not be opened can be closed.
func TestCloseWhatWasNotOpened(t *testing.T) {
	if err := (&stage{}).close(); err != nil {
		t.Fatal(err)
	}
}

// A run ends when nobody reads what it tells.
func TestTellerEndsTheRun(t *testing.T) {
	r, w := io.Pipe()
	r.Close()
	var why error
	tell := &teller{out: w, failed: func(err error) { why = err }}
	if tell.Write([]byte("x")); !errors.Is(why, io.ErrClosedPipe) {
		t.Errorf("stopped by %v", why)
	}
}

// Rules of several faults on one link hold together, and each ends with its fault.
func TestRulesTogether(t *testing.T) {
	cut, loss := link.Rule{Cut: true}, link.Rule{Loss: 0.1}
	delay := link.Rule{Delay: time.Second, Jitter: time.Millisecond}
	slow, slower := link.Rule{Rate: 200}, link.Rule{Rate: 100}
	for _, test := range []struct {
		rules []link.Rule
		want  link.Rule
	}{
		{nil, link.Rule{}},
		{[]link.Rule{loss}, loss},
		{[]link.Rule{cut, loss}, link.Rule{Cut: true, Loss: 0.1}},
		{[]link.Rule{{Loss: 0.5}, {Loss: 0.5}}, link.Rule{Loss: 0.75}},
		{[]link.Rule{delay, slow, slower}, link.Rule{Delay: time.Second, Jitter: time.Millisecond, Rate: 100}},
	} {
		if got := together(test.rules); got != test.want {
			t.Errorf("%+v are together %+v, want %+v", test.rules, got, test.want)
		}
	}

	relay, err := link.NewRelay(0)
	if err != nil {
		t.Fatal(err)
	}
	defer relay.Close()
	for _, end := range []string{"a", "b"} {
		if err := relay.Add(end); err != nil {
			t.Fatal(err)
		}
	}
	s := &stage{network: relay, rec: newRecorder()}
	ab := []direction{{"a", "b"}}
	for i, step := range []struct {
		do   func([]direction, link.Rule) error
		rule link.Rule
		cut  bool
		loss float64
	}{
		{s.lay, cut, true, 0}, {s.lay, loss, true, 0.1}, {s.lay, cut, true, 0.1}, {s.lift, cut, true, 0.1}, {s.lift, cut, false, 0.1}, {s.lift, loss, false, 0},
	} {
		if err := step.do(ab, step.rule); err != nil {
			t.Fatal(err)
		}
		if is := s.rec.links[i]; is.Cut != step.cut || is.Loss != step.loss {
			t.Errorf("step %d: the link is %+v", i, is)
		}
	}
}

// Wrong flags are told before anything is built or started.
func TestWrongUsage(t *testing.T) {
	report := "--report=" + t.TempDir()
	for _, test := range []struct {
		args  string
		fails string
	}{
		{"", ""},
		{"--faults crash", ""},
		{"--servers 127.0.0.1:8848 --faults loss", ""},
		{"x", "no arguments"},
		{"--faults=", "names none"},
		{"--scenario=", "names none"},
		{"--servers=", "names none"},
		{"--faults dns", "--by-name"},
		{"--no-root --faults disk-full", "root"},
		{"--faults smash", "--list"},
		{"--nodes 1 --faults remove,kill", "add another one before"},
		{"--nodes 1 --faults isolate", "wants more"},
		{"--for -5s", "more than 0"},
		{"--for 5s --random 3", "leave --random out"},
		{"--sdks http,foo", `no SDK "foo"`},
		{"--sdks http,http", "twice"},
		{"--drivers /nonexistent", "test/compat"},
		{"--report /dev/null/x", "--report"},
		{"--servers :99", "HOST:PORT"},
		{"--servers a:1,a:1", "twice"},
		{"--servers a:1 --control /nonexistent", "want a program"},
		{"--servers a:1 --nodes 3", "leave --nodes"},
		{"--servers a:1 --faults kill", "--control"},
	} {
		var o options
		set, _ := flags(&o)
		if err := set.Parse(append([]string{report}, strings.Fields(test.args)...)); err != nil {
			t.Fatal(err)
		}
		err := o.check(set)
		if (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
			t.Errorf("%q: error %v, want %q", test.args, err, test.fails)
		}
		// What is printed to play it again is right too.
		if err == nil {
			var again options
			set, _ := flags(&again)
			if err := errors.Join(set.Parse(append(strings.Fields(command(&o))[1:], report)), again.check(set)); err != nil {
				t.Errorf("%q: %s: %v", test.args, command(&o), err)
			}
		}
	}
}
