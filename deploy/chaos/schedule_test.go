package main

import (
	"strings"
	"testing"
	"time"
)

// all faults, as where nothing lacks.
func TestSameSeedSameSchedule(t *testing.T) {
	for seed := range uint64(200) {
		a, err := newDraw(seed, 3, false).schedule(12, faults)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := newDraw(seed, 3, false).schedule(12, faults)
		if a.String() != b.String() {
			t.Fatalf("seed %d gives %s, then %s", seed, a, b)
		}
		// What was printed plays the same, whatever the seed.
		c, err := parse(a.String(), newDraw(seed+1, 3, false))
		if err != nil {
			t.Fatalf("seed %d: reading %s: %v", seed, a, err)
		}
		if c.String() != a.String() {
			t.Fatalf("seed %d: %s is read as %s", seed, a, c)
		}
	}
}

// Whatever is drawn can be done: targets are there, and in bounds.
func TestSchedulesArePossible(t *testing.T) {
	seen := map[string]bool{}
	for seed := range uint64(300) {
		nodes := int(1 + seed%maxNodes)
		list, err := newDraw(seed, nodes, seed%2 == 0).schedule(10, faults)
		if err != nil {
			t.Fatal(err)
		}
		there := newNodeSet(nodes)
		for _, g := range list {
			if g[0].fault.beside {
				t.Errorf("seed %d: %s begins with what only joins others", seed, g)
			}
			for _, s := range g {
				seen[s.fault.name] = true
				if s.target != "" && !s.fault.target.accepts(s.target, there) {
					t.Errorf("seed %d: %s: %s is not there, but %v", seed, s, s.target, there.running)
				}
				if s.fault.several && len(there.running) < 3 {
					t.Errorf("seed %d: %s with %d nodes", seed, s, len(there.running))
				}
				if s.last < s.fault.shortest || s.last > s.fault.longest {
					t.Errorf("seed %d: %s lasts %v", seed, s, s.last)
				}
				if seed%2 == 0 && s.last > max(quickLongest, s.fault.shortest) {
					t.Errorf("seed %d: %s lasts %v, not quick", seed, s, s.last)
				}
			}
			for _, s := range g {
				there.follow(s)
			}
			if n := len(there.running); n < nodes || n > maxNodes {
				t.Errorf("seed %d: %d nodes after %s", seed, n, g)
			}
		}
	}
	for _, f := range faults {
		if !seen[f.name] {
			t.Errorf("%s is never drawn", f.name)
		}
	}
}

func TestParse(t *testing.T) {
	tests := []struct{ text, want, fails string }{
		{text: "stop:b:20s", want: "stop:b:20s"},
		{text: "kill:c:1m30s+die, rolling-restart", want: "kill:c:1m30s+die,rolling-restart"},
		{text: "loss:all:5s", want: "loss:all:5s"},
		{text: "add,stop:d:5s,remove:d", want: "add,stop:d:5s,remove:d"},
		{text: "add,remove", want: "add,remove:d"},
		{text: "", fails: `no fault ""`},
		{text: "smash", fails: `no fault "smash"; --list names them`},
		{text: "stop:d:5s", fails: `no target "d"; want one of a, b, c`},
		{text: "loss:x:5s", fails: `no target "x"; want all, or one of a, b, c`},
		{text: "remove:b,stop:b:1s", fails: `no target "b"; want one of a, c`},
		{text: "kill-all:a", fails: "kill-all has no target"},
		{text: "stop:a:b:5s", fails: "want name[:target][:duration]"},
		{text: "stop:a:-5s", fails: "lasts up to an hour"},
		{text: "stop:a:5h", fails: "lasts up to an hour"},
		{text: "add+add,kill:e:5s", want: "add+add,kill:e:5s"},
		{text: "kill:a:5s+stop:b:5s", want: "kill:a:5s+stop:b:5s"},
		{text: "add+kill:d", fails: `no target "d"; want one of a, b, c`},
		{text: "kill:b:5s+loss:b:5s+stop:b:5s", fails: "kill:b:5s+stop:b:5s: both may end or start the same node"},
		{text: "restart:b+kill-leader:5s", fails: "both may"},
		{text: "add+restart-all", fails: "both may"},
		{text: "remove,remove,remove", fails: "one node only"},
		{text: "stop:a:5", fails: "want name[:target][:duration]"},
	}
	for _, test := range tests {
		list, err := parse(test.text, newDraw(1, 3, false))
		switch {
		case test.fails == "" && err != nil:
			t.Errorf("%q: %v", test.text, err)
		case test.fails == "" && list.String() != test.want:
			t.Errorf("%q is read as %s", test.text, list)
		case test.fails != "" && (err == nil || !strings.Contains(err.Error(), test.fails)):
			t.Errorf("%q: error %v, want %q", test.text, err, test.fails)
		}
	}
}

// FuzzParse: whatever is accepted is printed in a form that reads the same.
func FuzzParse(f *testing.F) {
	f.Add("stop:b:20s,kill:a+die,loss:all:3s")
	f.Add("add,remove:d:5s,,:+")
	f.Fuzz(func(t *testing.T, text string) {
		list, err := parse(text, newDraw(1, 3, false))
		if err != nil {
			return
		}
		again, err := parse(list.String(), newDraw(2, 3, false))
		if err != nil || again.String() != list.String() {
			t.Fatalf("%q is printed as %s, which is read as %s, %v", text, list, again, err)
		}
		for _, g := range list {
			for _, s := range g {
				if s.last > time.Hour {
					t.Fatalf("%s lasts %v", s, s.last)
				}
			}
		}
	})
}

func TestLacksSaysWhatToDo(t *testing.T) {
	for _, f := range faults {
		if f.needs != 0 && f.needs.lacks(0) == "" {
			t.Errorf("%s lacks something, but nothing is said", f.name)
		}
		if f.needs.lacks(^need(0)) != "" {
			t.Errorf("%s lacks something where all is there: %s", f.name, f.needs.lacks(^need(0)))
		}
	}
}
