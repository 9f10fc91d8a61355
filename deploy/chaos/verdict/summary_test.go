package verdict

import (
	"math/rand/v2"
	"strings"
	"testing"
)

func TestConvergence(t *testing.T) {
	// b is cut off for 10 s; "p" dies on it meanwhile and "late" comes on a.
	world := func() *play {
		p := three().java("b", -5000).cut(1000, 11_000, "b", "a,c").dies(3000).reader("a")
		p.Providers = append(p.Providers, Provider{Name: "late", SDK: "go", Group: "clients", Node: "a", UpMs: 4000})
		p.Observers = append(p.Observers, Observer{Name: "o2", SDK: "reader", Group: "host", Node: "b", Reader: true})
		p.Steps = []Step{{Fault: "isolate", Target: "b", FromMs: 1000, ToMs: 11_000}}
		p.see("o", -500, "p").see("o", 4100, "p late").see("o2", -500, "p")
		return p
	}
	p := world()
	p.see("o", 12_000, "late").see("o2", 12_500, "late")
	wrong, v := judged(p)
	if len(wrong) > 0 || len(v.Converged) != 1 || v.Converged[0].AfterMs != 1500 || *v.Summary.ConvergedMs != 1500 {
		t.Errorf("after 1.5 s: %q %+v", wrong, v.Converged)
	}
	if c := v.Converged[0]; c.LimitMs < 3000 || c.LimitMs > 5000 || c.Never || !strings.Contains(c.Last, "o2") {
		t.Errorf("%+v", c)
	}
	p = world()
	p.see("o", 12_000, "late").see("o2", 12_500, "p late").see("o2", 17_000, "late")
	if wrong, v = judged(p); !strings.Contains(strings.Join(wrong, "; "), "views were right only 6.0 s after isolate ended") {
		t.Errorf("after 6 s: %q %+v", wrong, v.Converged)
	}
	p = world()
	p.see("o", 12_000, "late")
	if wrong, v = judged(p); !v.Converged[0].Never || v.Summary.ConvergedMs != nil || len(wrong) == 0 {
		t.Errorf("never: %q %+v", wrong, v.Converged)
	}
	// Of an earlier step it is told, until the next one begins.
	p = world()
	p.Steps = append(p.Steps, Step{Fault: "delay", FromMs: 14_000, ToMs: 15_000})
	p.see("o", 12_000, "late").see("o2", 12_500, "late")
	if wrong, v = judged(p); len(wrong) > 0 || v.Converged[0].AfterMs != 1500 || v.Converged[0].UntilMs != 14_000 || v.Converged[1].AfterMs != 0 || *v.Summary.ConvergedMs != 0 {
		t.Errorf("two steps: %q %+v", wrong, v.Converged)
	}
}

func TestSummary(t *testing.T) {
	p := three().java("b", -5000).reader("a")
	died := Millis(50_000)
	p.Providers = append(p.Providers, Provider{Name: "q", SDK: "go", Group: "clients", Node: "a", UpMs: -5000, DiedMs: &died})
	p.Writes = []Write{put(0, 1, "ok"), {Address: "y", ToMs: 5, Error: "no"}}
	p.Kept = []Kept{{Node: "a"}}
	p.see("o", -500, "p q").see("o", 1000, "q").see("o", 3000, "p q").see("o", 4000, "q").see("o", 5000, "p q").see("o", 60_000, "p")
	_, v := judged(p)
	s := v.Summary
	if s.Passed || s.LiveMissing != 1 || s.LongestGapMs != 2000 || s.Dead != 1 || s.DeadLate != 1 || s.LongestStaleMs != 10_000 || s.LongestLateMs != 8_000 ||
		s.WritesAcked != 1 || s.WritesFailed != 1 || s.WritesLost != 1 || s.Flapping != 1 || s.Faults != 1 {
		t.Errorf("%+v", s)
	}
	if len(s.SDKs) != 2 || s.SDKs[0].SDK != "go" || *s.SDKs[0].LastGoneMs != 10_000 || s.SDKs[1].LiveMissing != 1 || *s.SDKs[1].FirstGapMs != 1000 || *s.SDKs[1].LastGapMs != 5000 {
		t.Errorf("%+v", s.SDKs)
	}
	v.Add("something else")
	if v.Summary.Faults != 2 || v.Summary.Passed {
		t.Errorf("%+v", v.Summary)
	}
}

// Whatever a timeline says, it is judged, and excuses are in order.
func TestOddTimelines(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	pick := func(list ...string) string { return list[rng.IntN(len(list))] }
	when := func() Millis { return Millis(rng.IntN(400_000) - 100_000) }
	for range 1_500 {
		line := &Timeline{EndMs: when()}
		for range rng.IntN(12) {
			line.Nodes = append(line.Nodes, NodeChange{when(), pick("a", "b", "c", ""), NodeState(pick("up", "starting", "frozen", "stopping", "down", "odd"))})
		}
		for range rng.IntN(12) {
			line.Links = append(line.Links, LinkChange{AtMs: when(), From: pick("a", "b", "c", "host", "g"), To: pick("a", "b", "c", "host", "g", ""),
				Cut: rng.IntN(2) == 0, Loss: rng.Float64() * 1.2, DelayMs: when() / 100, Rate: int64(rng.IntN(3) - 1)})
		}
		for range rng.IntN(4) {
			p := Provider{Name: pick("p", "q", "r"), SDK: pick("go", "python", ""), Group: pick("g", "host", ""), Node: pick("a", "b", "", "z"),
				RedoMs: Millis(rng.IntN(40_000) - 1), Beats: rng.IntN(3) == 0, Dialable: rng.IntN(2) == 0, UpMs: when(), Left: rng.IntN(2) == 0}
			if at := when(); rng.IntN(2) == 0 {
				p.DiedMs = &at
			}
			line.Providers = append(line.Providers, p)
		}
		for range rng.IntN(4) {
			o := Observer{Name: pick("o", "s"), SDK: "go", Group: pick("g", "host", ""), Node: pick("a", "b", "", "z"), Reader: rng.IntN(2) == 0,
				RedoMs: Millis(rng.IntN(40_000)), PollsMs: Millis(rng.IntN(2) * 10_000)}
			line.Observers = append(line.Observers, o)
			for range rng.IntN(6) {
				line.see(o.Name, when(), pick("p q r", "p", "", "blind", "x x", "q r"))
			}
		}
		for range rng.IntN(4) {
			line.Steps = append(line.Steps, Step{Fault: "f", FromMs: when(), ToMs: when()})
			line.Writes = append(line.Writes, Write{Address: pick("x", "y"), FromMs: when(), ToMs: when(), Acked: rng.IntN(2) == 0, Deregister: rng.IntN(2) == 0})
			line.Kept = append(line.Kept, Kept{Node: pick("a", "b"), Addresses: []string{pick("x", "y", "z")}})
		}
		e := Derive(line, []Limits{Documented(), Definition(), {}}[rng.IntN(3)])
		Judge(line, e)
		for i := range line.Providers {
			for j := range line.Observers {
				last := ever
				for _, x := range e.excuses(&line.Providers[i], &line.Observers[j]) {
					if x.From < last || x.To <= x.From || x.Why == "" {
						t.Fatalf("%+v", x)
					}
					last = x.From
				}
			}
		}
	}
}

func BenchmarkJudge(b *testing.B) {
	// A hundred providers, 25 observers, half an hour of faults.
	p := three()
	for i := range Millis(60) {
		at, n := i*30_000, []string{"a", "b", "c"}[i%3]
		switch i % 4 {
		case 0:
			p.node(at, n, Down).node(at+8_000, n, Starting).node(at+9_000, n, Up)
		case 1:
			p.cut(at, at+15_000, n, "a,b,c")
		case 2:
			p.cut(at, at+15_000, n, "clients")
		case 3:
			p.node(at, n, Frozen).node(at+12_000, n, Up)
		}
		p.Steps = append(p.Steps, Step{Fault: "f", FromMs: at, ToMs: at + 15_000})
	}
	p.EndMs = 1_860_000
	var names strings.Builder
	for i := range 100 {
		p.java([]string{"a", "b", "c"}[i%3], -5000)
		p.Providers[i].Name = "p" + number(Millis(i))
		names.WriteString(p.Providers[i].Name + " ")
	}
	for i := range 25 {
		p.sub([]string{"a", "b", "c"}[i%3])
		p.Observers[i].Name = "o" + number(Millis(i))
		for at := Millis(-500); at < p.EndMs; at += 10_000 {
			p.see(p.Observers[i].Name, at, names.String())
		}
	}
	for b.Loop() {
		Judge(p.Timeline, Derive(p.Timeline, Documented()))
	}
}
