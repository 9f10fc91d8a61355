package verdict

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// put and del make writes: from, to, and "ok" or what went wrong.
func put(from, to Millis, answer string) Write {
	return Write{Address: "x", Node: "a", FromMs: from, ToMs: to, Acked: answer == "ok", Error: answer}
}

func del(from, to Millis, answer string) Write {
	w := put(from, to, answer)
	w.Deregister = true
	return w
}

func TestWrites(t *testing.T) {
	tests := []struct {
		name   string
		writes []Write
		there  bool // may be kept
		gone   bool // may not be
	}{
		{"registered", []Write{put(0, 10, "ok")}, true, false},
		{"not known", []Write{put(0, 10, "timeout")}, true, true},
		{"registered and deregistered", []Write{put(0, 10, "ok"), del(20, 30, "ok")}, false, true},
		{"at the same time", []Write{put(0, 25, "ok"), del(20, 30, "ok")}, true, true},
		{"deregistered, not known whether", []Write{put(0, 10, "ok"), del(20, 30, "timeout")}, true, true},
		{"and registered again after all that can be late", []Write{put(0, 10, "ok"), del(20, 30, "timeout"), put(10_031, 10_040, "ok")}, true, false},
		{"and registered again while it can be late", []Write{put(0, 10, "ok"), del(20, 30, "timeout"), put(10_030, 10_040, "ok")}, true, true},
		{"a registration that is late", []Write{put(0, 10, "timeout"), del(10_010, 10_020, "ok")}, true, true},
		{"and that cannot be so late", []Write{put(0, 10, "timeout"), del(10_011, 10_020, "ok")}, false, true},
		{"twice", []Write{put(0, 10, "ok"), del(20, 30, "ok"), put(40, 50, "ok")}, true, false},
		{"deregistered only", []Write{del(20, 30, "ok")}, false, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for _, kept := range []bool{true, false} {
				line := &Timeline{Writes: test.writes, EndMs: 100_000}
				for _, n := range []string{"a", "b"} {
					k := Kept{Node: n}
					if kept {
						k.Addresses = []string{"x"}
					}
					line.Kept = append(line.Kept, k)
				}
				v := Judge(line, Derive(line, Documented()))
				may := kept && test.there || !kept && test.gone
				if v.Passed() != may {
					t.Errorf("kept %v: passed %v, %q", kept, v.Passed(), v.Faults)
				}
				if lost := !kept && !may; (v.Summary.WritesLost == 1) != lost || lost && (len(v.Lost) != 2 || v.Lost[1].Node != "b" || v.Lost[0].Write.Deregister) {
					t.Errorf("kept %v: lost %+v", kept, v.Lost)
				}
			}
			// One has it, the other not.
			line := &Timeline{Writes: test.writes, EndMs: 100_000, Kept: []Kept{{Node: "a", Addresses: []string{"x"}}, {Node: "b"}, {Node: "c", Error: "refused"}}}
			if v := Judge(line, Derive(line, Documented())); v.Passed() {
				t.Error("two nodes differ, and nothing was said")
			}
		})
	}
}

func TestWritesFaults(t *testing.T) {
	for want, line := range map[string]*Timeline{
		"nobody wrote": {Kept: []Kept{{Node: "a", Addresses: []string{"y"}}}},
		"twice":        {Writes: []Write{put(0, 1, "ok")}, Kept: []Kept{{Node: "a", Addresses: []string{"x", "x"}}}},
		"no node told": {Writes: []Write{put(0, 1, "ok")}, Kept: []Kept{{Node: "a", Error: "refused"}}},
	} {
		if v := Judge(line, Derive(line, Documented())); len(v.Faults) != 1 || !strings.Contains(v.Faults[0], want) {
			t.Errorf("%q, want %q", v.Faults, want)
		}
	}
	// What may still be carried out when nodes are asked may be at one of them.
	late := &Timeline{Writes: []Write{put(0, 1_000, "timeout")}, EndMs: 11_000, Kept: []Kept{{Node: "a", Addresses: []string{"x"}}, {Node: "b"}}}
	if v := Judge(late, Derive(late, Documented())); !v.Passed() {
		t.Errorf("%q", v.Faults)
	}
	late.EndMs++
	if v := Judge(late, Derive(late, Documented())); v.Passed() {
		t.Error("it is over, and they differ")
	}
}

// The rule for one address agrees with trying all orders.
func TestPossibleAgreesWithAllOrders(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 3_000 {
		var ws []Write
		for range 1 + rng.IntN(4) {
			from := Millis(rng.IntN(30_000))
			w := put(from, from+Millis(rng.IntN(8_000)), []string{"ok", "ok", "timeout"}[rng.IntN(3)])
			w.Deregister = rng.IntN(2) == 0
			ws = append(ws, w)
		}
		for _, registered := range []bool{true, false} {
			if ok, _ := possible(ws, registered); ok != byOrders(ws, ever, false, registered) {
				t.Fatalf("%+v registered %v: %v", ws, registered, ok)
			}
		}
	}
}

// byOrders: some order of the writes, each within its time, ends like that.
func byOrders(left []Write, at Millis, state, want bool) bool {
	over := !slices.ContainsFunc(left, func(w Write) bool { return w.Acked })
	if over && state == want {
		return true
	}
	for i, w := range left {
		until := w.ToMs
		if !w.Acked {
			until += unknownFor
		}
		if when := max(at, w.FromMs); when <= until {
			rest := slices.Delete(slices.Clone(left), i, i+1)
			if byOrders(rest, when, !w.Deregister, want) {
				return true
			}
		}
	}
	return false
}
