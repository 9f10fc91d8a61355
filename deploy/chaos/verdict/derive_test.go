package verdict

import (
	"slices"
	"strings"
	"testing"
)

// A play is a timeline being made up: three nodes that were up for two minutes,
// and nothing else.
type play struct{ *Timeline }

func three() *play {
	p := &play{&Timeline{EndMs: 400_000}}
	for _, n := range []string{"a", "b", "c"} {
		p.node(-120_500, n, Starting).node(-120_000, n, Up)
	}
	return p
}

func (p *play) node(at Millis, node string, s NodeState) *play {
	p.Nodes = append(p.Nodes, NodeChange{at, node, s})
	return p
}

// link sets what two ends send each other; more than one may be named, with
// commas.
func (p *play) link(at Millis, these, those string, c LinkChange) *play {
	for a := range strings.SplitSeq(these, ",") {
		for b := range strings.SplitSeq(those, ",") {
			for _, ends := range [][2]string{{a, b}, {b, a}} {
				c.AtMs, c.From, c.To = at, ends[0], ends[1]
				p.Links = append(p.Links, c)
			}
		}
	}
	return p
}

func (p *play) cut(from, to Millis, these, those string) *play {
	return p.link(from, these, those, LinkChange{Cut: true}).link(to, these, those, LinkChange{})
}

// java, python and beats add the provider "p".
func (p *play) java(node string, up Millis) *play { return p.provider("java3", node, 3_000, up) }

func (p *play) python(node string, up Millis) *play {
	return p.provider("python", node, 30_000, up)
}

func (p *play) provider(sdk, node string, redo, up Millis) *play {
	p.Providers = append(p.Providers, Provider{Name: "p", SDK: sdk, Group: "clients", Node: node, RedoMs: redo, UpMs: up})
	return p
}

func (p *play) beats(up Millis) *play {
	p.Providers = append(p.Providers, Provider{Name: "p", SDK: "http", Group: "clients", RedoMs: 5_000, Beats: true, UpMs: up})
	return p
}

func (p *play) dialable() *play { p.Providers[len(p.Providers)-1].Dialable = true; return p }

func (p *play) dies(at Millis) *play { p.Providers[len(p.Providers)-1].DiedMs = &at; return p }
func (p *play) leaves(at Millis) *play {
	p.Providers[len(p.Providers)-1].Left = true
	return p.dies(at)
}

// reader observes one node, sub is a subscriber of the Go SDK that was at it.
func (p *play) reader(node string) *play {
	p.Observers = append(p.Observers, Observer{Name: "o", SDK: "http", Group: "host", Node: node, Reader: true})
	return p
}

func (p *play) sub(node string) *play {
	p.Observers = append(p.Observers, Observer{Name: "o", SDK: "go", Group: "clients", Node: node, RedoMs: 1_000})
	return p
}

// gap is that "o" misses "p" from and to; stale that it sees it until then.
func (p *play) gap(from, to Millis) *play {
	p.see("o", -500, "p")
	p.see("o", from, "")
	p.see("o", to, "p")
	return p
}

func (p *play) stale(to Millis) *play {
	p.see("o", -500, "p")
	p.see("o", to, "")
	return p
}

// judged is what is wrong: gaps, late departures and faults, in words.
func judged(p *play) (wrong []string, v *Verdict) {
	v = Judge(p.Timeline, Derive(p.Timeline, Documented()))
	for _, g := range v.Gaps {
		wrong = append(wrong, "gap "+g.FromMs.String()+" to "+g.ToMs.String())
	}
	for _, d := range v.Gone {
		if d.Late() {
			wrong = append(wrong, "late "+d.AfterMs.String()+" of "+d.LimitMs.String()+" "+d.Why)
		}
	}
	return append(wrong, v.Faults...), v
}

// Each excuse with its neighbour that is just not excused.
func TestExcuses(t *testing.T) {
	tests := []struct {
		name   string
		world  func() *play
		within [2]Millis // excused as a whole
		why    string
		beyond [][2]Millis // are not
	}{
		{"nothing happened", func() *play { return three().java("b", -5000).reader("a") }, [2]Millis{}, "",
			[][2]Millis{{1000, 1001}, {100_000, 300_000}}},
		{"a node is killed: no removal of what comes back", func() *play { return three().java("b", -5000).node(1000, "b", Down).reader("a") },
			[2]Millis{}, "", [][2]Millis{{1000, 1001}, {8000, 12_000}, {11_000, 11_100}, {30_000, 30_001}}},
		{"with Python on it", func() *play { return three().python("b", -5000).node(1000, "b", Down).sub("b") },
			[2]Millis{}, "", [][2]Millis{{12_000, 13_000}, {33_000, 34_000}, {37_000, 37_001}}},
		{"a node stands still", func() *play {
			return three().java("b", -5000).node(1000, "b", Frozen).node(41_000, "b", Up).reader("a")
		}, [2]Millis{}, "", [][2]Millis{{22_000, 22_100}, {26_000, 27_000}, {42_000, 43_000}}},
		{"and its own observer misses nobody when it goes on", func() *play {
			return three().java("a", -5000).node(1000, "b", Frozen).node(61_000, "b", Up).reader("b")
		}, [2]Millis{}, "", [][2]Millis{{61_000, 61_001}, {62_000, 64_000}}},
		{"a node is cut off longer than the lease: the majority may miss what is on it", func() *play {
			return three().java("b", -5000).cut(1000, 61_000, "b", "a,c").reader("a")
		}, [2]Millis{21_000, 64_000}, "longer than the lease, and nobody there may dial it", [][2]Millis{{20_999, 64_000}, {21_000, 64_001}}},
		{"but not what can be dialled", func() *play {
			return three().java("b", -5000).dialable().cut(1000, 61_000, "b", "a,c").reader("a")
		}, [2]Millis{}, "", [][2]Millis{{21_000, 22_000}, {59_000, 64_000}}},
		{"which is so for three minutes", func() *play {
			return three().java("b", -5000).dialable().cut(1000, 301_000, "b", "a,c").reader("a")
		}, [2]Millis{181_000, 304_000}, "as long as it can be dialled", [][2]Millis{{180_999, 304_000}}},
		{"and from all there", func() *play {
			return three().java("b", -5000).dialable().cut(1000, 61_000, "b", "a,c").cut(30_000, 31_000, "c", "clients").reader("a")
		}, [2]Millis{30_000, 64_000}, "dialled", [][2]Millis{{29_999, 64_000}}},
		{"the minority misses nobody: self-preservation", func() *play {
			return three().java("a", -5000).cut(1000, 61_000, "b", "a,c").reader("b")
		}, [2]Millis{}, "", [][2]Millis{{21_000, 22_000}, {30_000, 64_000}}},
		{"which is so for three minutes, and the lease", func() *play {
			return three().java("a", -5000).cut(1000, 301_000, "b", "a,c").reader("b")
		}, [2]Millis{201_000, 304_000}, "longer than the lease", [][2]Millis{{200_999, 304_000}}},
		{"and not of nodes that are too young", func() *play {
			p := &play{&Timeline{EndMs: 100_000}}
			for _, n := range []string{"a", "b", "c"} {
				p.node(-50_000, n, Up)
			}
			return p.java("a", -5000).cut(1000, 61_000, "b", "a,c").reader("b")
		}, [2]Millis{21_000, 64_000}, "longer than the lease", [][2]Millis{{20_999, 64_000}}},
		{"a cut shorter than the lease", func() *play {
			return three().java("b", -5000).cut(1000, 20_900, "b", "a,c").reader("a")
		}, [2]Millis{}, "", [][2]Millis{{20_900, 21_500}, {21_000, 22_000}}},
		{"two cuts with less than a heal between them are one", func() *play {
			return three().java("b", -5000).cut(1000, 15_000, "b", "a,c").cut(16_900, 40_000, "b", "a,c").reader("a")
		}, [2]Millis{21_000, 43_000}, "longer than the lease", [][2]Millis{{20_999, 43_000}}},
		{"two cuts with one", func() *play {
			return three().java("b", -5000).cut(1000, 15_000, "b", "a,c").cut(17_000, 36_000, "b", "a,c").reader("a")
		}, [2]Millis{}, "", [][2]Millis{{21_000, 22_000}, {36_000, 38_000}}},
		{"silence of cut and death added up", func() *play {
			return three().java("b", -5000).cut(1000, 61_000, "b", "a,c").node(20_000, "b", Down).reader("a")
		}, [2]Millis{21_000, 27_000}, "nothing let it register elsewhere", [][2]Millis{{20_999, 27_000}, {21_000, 27_001}}},
		{"loss that nothing survives is a cut", func() *play {
			return three().java("b", -5000).link(1000, "b", "a,c", LinkChange{Loss: 0.17}).link(61_000, "b", "a,c", LinkChange{}).reader("a")
		}, [2]Millis{21_000, 64_000}, "longer than the lease", [][2]Millis{{20_000, 64_000}}},
		{"loss of a tenth is not", func() *play {
			return three().java("b", -5000).link(1000, "b", "a,c", LinkChange{Loss: 0.1}).link(61_000, "b", "a,c", LinkChange{}).reader("a")
		}, [2]Millis{}, "", [][2]Millis{{21_000, 22_000}}},
		{"its own way is cut", func() *play {
			return three().java("b", -5000).cut(1000, 61_000, "b", "clients").reader("a")
		}, [2]Millis{6000, 1000 + 20_500 + 6_000 + 3_000 + 1_000}, "its own way to b was cut", [][2]Millis{{5999, 7000}, {6000, 31_501}}},
		{"and who is quick notices sooner", func() *play {
			return three().provider("go", "b", 1000, -5000).cut(1000, 61_000, "b", "clients").reader("a")
		}, [2]Millis{6000, 1000 + 8_500 + 6_000 + 1_000 + 1_000}, "its own way to b was cut", [][2]Millis{{6000, 17_501}}},
		{"a cut that nobody notices", func() *play {
			return three().java("b", -5000).cut(1000, 5999, "b", "clients").reader("a")
		}, [2]Millis{}, "", [][2]Millis{{5000, 5001}, {6000, 6001}}},
		{"the way of another one is cut", func() *play {
			return three().java("b", -5000).cut(1000, 61_000, "a,c", "clients").reader("a")
		}, [2]Millis{}, "", [][2]Millis{{6000, 6001}, {25_000, 26_000}}},
		{"nobody takes it", func() *play {
			return three().java("b", -5000).cut(1000, 61_000, "a,b,c", "clients").reader("a")
		}, [2]Millis{6000, 61_000 + 3_000 + 5_000 + 3_000 + 1_000}, "its own way", [][2]Millis{{6000, 73_001}}},
		{"a node stops and hands over", func() *play {
			return three().java("b", -5000).node(1000, "b", Stopping).node(4000, "b", Down).reader("a")
		}, [2]Millis{}, "", [][2]Millis{{2000, 2001}, {15_000, 16_000}}},
		{"one after the other, with Python", func() *play {
			p := three().python("a", -5000)
			for i, n := range []string{"a", "b", "c"} {
				at := Millis(i * 9000)
				p.node(at, n, Stopping).node(at+4000, n, Down).node(at+4100, n, Starting).node(at+6000, n, Up)
			}
			return p.sub("b")
		}, [2]Millis{}, "", [][2]Millis{{5000, 5100}, {20_000, 20_100}, {40_000, 41_000}, {55_000, 56_000}}},
		{"two are killed at once", func() *play {
			return three().java("a", -5000).node(1000, "a", Down).node(1010, "b", Down).reader("c")
		}, [2]Millis{}, "", [][2]Millis{{11_000, 12_000}, {30_000, 31_000}}},
		{"the next node is killed before Python can register there", func() *play {
			return three().python("a", -5000).node(1000, "a", Down).node(20_000, "b", Down).reader("c")
		}, [2]Millis{36_000, 20_000 + 33_000 + 1_000}, "nothing let it register elsewhere", [][2]Millis{{35_999, 54_000}, {36_000, 54_001}}},
		{"after it is there at the latest", func() *play {
			return three().python("a", -5000).node(1000, "a", Down).node(34_001, "b", Down).reader("c")
		}, [2]Millis{}, "", [][2]Millis{{36_000, 37_000}, {45_000, 46_000}}},
		{"the only node is down", func() *play {
			return (&play{&Timeline{EndMs: 100_000}}).node(-120_000, "a", Up).java("a", -20_000).
				node(1000, "a", Down).node(20_000, "a", Starting).node(21_000, "a", Up).reader("a")
		}, [2]Millis{}, "", [][2]Millis{{21_000, 21_001}, {51_000, 52_000}}},
		{"and it registered since the last snapshot", func() *play {
			return (&play{&Timeline{EndMs: 100_000}}).node(-120_000, "a", Up).java("a", -9_500).
				node(1000, "a", Down).node(20_000, "a", Starting).node(21_000, "a", Up).reader("a")
		}, [2]Millis{21_000, 33_000}, "since the last snapshot", [][2]Millis{{20_999, 33_000}, {21_000, 45_000}}},
		{"all are killed: the old list", func() *play {
			p := three().python("a", -20_000)
			for _, n := range []string{"a", "b", "c"} {
				p.node(1000, n, Down).node(1100, n, Starting)
			}
			return p.node(3000, "a", Up).node(3500, "b", Up).node(3600, "c", Up).sub("b")
		}, [2]Millis{}, "", [][2]Millis{{3500, 3501}, {12_000, 13_000}, {34_000, 35_000}, {41_000, 42_000}}},
		{"all were down for five minutes", func() *play {
			p := three().java("a", -20_000)
			for _, n := range []string{"a", "b", "c"} {
				p.node(1000, n, Down).node(301_000, n, Starting).node(303_000, n, Up)
			}
			return p.reader("b")
		}, [2]Millis{303_000, 315_000}, "nothing let it register elsewhere", [][2]Millis{{303_000, 315_001}}},
		{"an HTTP client reaches nobody", func() *play {
			return three().beats(-20_000).cut(1000, 61_000, "a,b,c", "clients").reader("a")
		}, [2]Millis{11_000, 70_000}, "its beats reached no node", [][2]Millis{{10_999, 12_000}, {11_000, 70_001}}},
		{"an HTTP client reaches one", func() *play {
			return three().beats(-20_000).cut(1000, 61_000, "a,b", "clients").reader("a")
		}, [2]Millis{}, "", [][2]Millis{{20_000, 21_000}, {62_000, 62_001}}},
		{"an HTTP client whose owner is killed", func() *play {
			return three().beats(-20_000).node(1000, "b", Down).reader("a")
		}, [2]Millis{}, "", [][2]Millis{{5000, 6000}, {12_000, 13_000}}},
		{"owners of HTTP clients differed", func() *play {
			return three().beats(-20_000).cut(1000, 11_000, "b", "a,c").reader("a")
		}, [2]Millis{11_000, 19_000}, "owners of HTTP clients differed", [][2]Millis{{10_999, 12_000}, {11_000, 19_001}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.why != "" {
				p := test.world().gap(test.within[0], test.within[1])
				wrong, v := judged(p)
				if len(wrong) > 0 || len(v.Excused) != 1 || !strings.Contains(v.Excused[0].Excused, test.why) {
					t.Errorf("%v: wrong %q, excused %+v, want because %q; excuses %+v", test.within, wrong, v.Excused, test.why,
						Derive(p.Timeline, Documented()).excuses(&p.Providers[0], &p.Observers[0]))
				}
			}
			for _, b := range test.beyond {
				p := test.world().gap(b[0], b[1])
				if _, v := judged(p); len(v.Gaps) != 1 || v.Gaps[0].FromMs != b[0] || v.Gaps[0].ToMs != b[1] || v.Passed() {
					t.Errorf("%v is not a gap: %+v, excused %+v; excuses %+v", b, v.Gaps, v.Excused,
						Derive(p.Timeline, Documented()).excuses(&p.Providers[0], &p.Observers[0]))
				}
			}
		})
	}
}

// Excuses that only one who has seen the provider elsewhere needs.
func TestNewsExcuses(t *testing.T) {
	late := func() *play { return three().java("b", 5000).cut(1000, 12_000, "b", "a,c").node(9000, "b", Down) }
	moved := func(p *play) *play { // from b, where it saw it, to a
		p.see("o", -500, "").see("o", 5100, "p").see("o", 10_000, "").see("o", 13_000, "p")
		return p
	}
	if wrong, v := judged(moved(late().sub("b"))); len(wrong) > 0 || len(v.Excused) != 1 || !strings.Contains(v.Excused[0].Excused, "out of a's reach") && !strings.Contains(v.Excused[0].Excused, "out of c's reach") {
		t.Errorf("moved to where nobody could know it: %q, %+v", wrong, v.Excused)
	}
	if _, v := judged(moved(late().reader("a"))); len(v.Gaps) != 1 {
		t.Errorf("who has seen it at a knows that a knew it: %+v %+v", v.Gaps, v.Excused)
	}
	killed := func(up Millis) *play {
		p := three().java("b", up).node(9000, "b", Down).sub("b")
		p.see("o", -500, "").see("o", up+10, "p").see("o", 9_500, "").see("o", 14_000, "p")
		return p
	}
	if wrong, v := judged(killed(8_850)); len(wrong) > 0 || len(v.Excused) != 1 || !strings.Contains(v.Excused[0].Excused, "before that was killed") {
		t.Errorf("registered 150 ms before the kill: %q %+v", wrong, v.Excused)
	}
	if _, v := judged(killed(8_799)); len(v.Gaps) != 1 {
		t.Errorf("registered 201 ms before the kill: %+v %+v", v.Gaps, v.Excused)
	}
	// One that nobody is told of is a gap, too, once it is due.
	p := three().java("b", 5000).reader("a")
	p.see("o", -500, "").see("o", 30_000, "p")
	if _, v := judged(p); len(v.Gaps) != 1 || v.Gaps[0].FromMs != 7000 {
		t.Errorf("never told of it: %+v", v.Gaps)
	}
	p = three().java("b", 5000).cut(1000, 28_000, "b", "a,c").reader("a")
	p.see("o", -500, "").see("o", 30_000, "p")
	if wrong, _ := judged(p); len(wrong) > 0 {
		t.Errorf("told of it after the heal: %q", wrong)
	}
}

// How long the dead may be seen, to the millisecond.
func TestGone(t *testing.T) {
	down := func(p *play, at Millis) *play { return p.node(at, "b", Down) }
	tests := []struct {
		name  string
		world *play
		until Millis // since 0
		why   string
	}{
		{"killed, its node is well", three().java("b", -5000).dies(1000).reader("a"), 1000 + 1000 + 1000, "reset"},
		{"it deregisters", three().java("b", -5000).leaves(1000).reader("a"), 3000, "deregistered"},
		{"it deregisters just before its node is killed", down(three().java("b", -5000).leaves(1000), 1150).reader("a"), 1150 + 11_000 + 1000, "11 s after"},
		{"it deregisters, and later its node is killed", down(three().java("b", -5000).leaves(1000), 1250).reader("a"), 3000, "deregistered"},
		{"it dies with its node", down(three().java("b", -5000).dies(1005), 1000).reader("a"), 1000 + 11_000 + 1000, "11 s after"},
		{"Python dies with its node", down(three().python("b", -5000).dies(1005), 1000).reader("a"), 1000 + 35_000 + 1000, "11 s after"},
		{"it dies while its node stands still", three().java("b", -5000).node(1000, "b", Frozen).node(31_000, "b", Up).dies(2000).reader("a"), 1000 + 25_000 + 1000, "25 s after"},
		{"the same, and it goes on", three().java("b", -5000).node(1000, "b", Frozen).node(11_000, "b", Up).dies(2000).reader("a"), 11_000 + 11_000 + 1000, "node went on"},
		{"Python, and it goes on", three().python("b", -5000).node(1000, "b", Frozen).node(31_000, "b", Up).dies(2000).reader("a"), 31_000 + 35_000 + 1000, "node went on"},
		{"it dies on a cut-off node, seen from there", three().java("b", -5000).cut(1000, 61_000, "b", "a,c").dies(2000).reader("b"), 2000 + 12_000 + 1000, "moving"},
		{"seen from the others", three().java("b", -5000).cut(1000, 61_000, "b", "a,c").dies(2000).reader("a"), 1000 + 25_000 + 1000, "25 s after"},
		{"and healed soon", three().java("b", -5000).cut(1000, 16_000, "b", "a,c").dies(2000).reader("a"), 16_000 + 2_000 + 1000, "healed"},
		{"it dies among the majority, seen from the node that is cut off", three().java("a", -5000).cut(1000, 61_000, "b", "a,c").dies(2000).reader("b"), 61_000 + 2_000 + 1000, "healed"},
		{"the same for longer than self-preservation lasts", three().java("a", -5000).cut(1000, 361_000, "b", "a,c").dies(2000).reader("b"), 1000 + 25_000 + 180_000 + 1000, "self-preservation held it"},
		{"its own way was cut", three().java("b", -5000).cut(1000, 61_000, "b", "clients").dies(2000).reader("a"), 2000 + 28_000 + 1000, "cut off"},
		{"it dies while another node drains", three().java("b", -5000).node(1000, "a", Stopping).node(9000, "a", Down).dies(2000).reader("c"), 2000 + 12_000 + 1000, "moving"},
		{"long after another node died", three().java("b", -5000).node(1000, "a", Down).dies(30_000).reader("c"), 32_000, "reset"},
		{"while its lease runs", three().java("b", -5000).node(1000, "a", Down).dies(11_000).reader("c"), 11_000 + 12_000 + 1000, "moving"},
		{"while the lease of a restart runs", three().java("b", -500).node(-9000, "a", Down).node(-9000, "b", Down).node(-9000, "c", Down).
			node(-8900, "a", Starting).node(-8900, "b", Starting).node(-8900, "c", Starting).node(-8000, "a", Up).node(-8000, "b", Up).node(-8000, "c", Up).
			dies(20_000).reader("b"), 20_000 + 12_000 + 1000, "moving"},
		{"after it", three().java("b", -500).node(-9000, "a", Down).node(-9000, "b", Down).node(-9000, "c", Down).
			node(-8900, "a", Starting).node(-8900, "b", Starting).node(-8900, "c", Starting).node(-8000, "a", Up).node(-8000, "b", Up).node(-8000, "c", Up).
			dies(23_000).reader("b"), 23_000 + 1000 + 1000, "reset"},
		{"without beats", three().beats(-20_000).dies(1000).reader("a"), 1000 + 20_000 + 1000 + 1000, "beats"},
		{"all nodes restart", three().java("b", -20_000).dies(500).node(1000, "a", Down).node(1000, "b", Down).node(1000, "c", Down).
			node(1100, "a", Starting).node(1100, "b", Starting).node(1100, "c", Starting).node(3000, "a", Up).node(3100, "b", Up).node(3100, "c", Up).reader("c"),
			3000 + 30_000 + 1000, "restarted"},
		{"the same, each started in the millisecond in which the last one has ended", three().java("b", -20_000).dies(3000).
			node(1000, "a", Stopping).node(1000, "b", Stopping).node(1000, "c", Stopping).node(3500, "c", Down).node(5500, "b", Down).node(6200, "a", Down).
			node(6200, "a", Starting).node(6201, "b", Starting).node(6202, "c", Starting).node(7000, "a", Up).node(7002, "b", Up).node(7005, "c", Up).reader("c"),
			7000 + 30_000 + 1000, "restarted"},
		{"links are slow", three().java("b", -5000).link(-1000, "a,b,c", "a,b,c", LinkChange{DelayMs: 100}).dies(1000).reader("a"), 3000 + 400, "reset"},
		{"a subscriber's node was killed", down(three().java("b", -5000).dies(1005), 1000).sub("b"), 13_000, "11 s after"},
		{"a subscriber's way was cut", three().java("b", -5000).dies(2000).cut(1500, 50_000, "a", "clients").sub("a"), 1500 + 8_500 + 6_000 + 1_000 + 1_000 + 28_000 - 28_000, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := *test.world
			p.Timeline = clone(p.Timeline)
			p.stale(test.until)
			if test.why == "" { // only that it is later than for others
				test.why = "deaf"
			}
			wrong, v := judged(&p)
			if len(wrong) > 0 {
				t.Fatalf("in time: %q", wrong)
			}
			if d := v.Gone[0]; !strings.Contains(d.Why, test.why) && test.why != "deaf" {
				t.Errorf("the rule is %q, want %q", d.Why, test.why)
			}
			p.Timeline = clone(test.world.Timeline)
			p.stale(test.until + 1)
			if wrong, _ := judged(&p); !slices.ContainsFunc(wrong, func(s string) bool { return strings.HasPrefix(s, "late") }) {
				t.Errorf("a millisecond later: %q, want late; limit %v", wrong, v.Gone[0].LimitMs)
			}
		})
	}
}

func clone(t *Timeline) *Timeline {
	c := *t
	c.Views = slices.Clone(t.Views)
	return &c
}

// The definition alone excuses the minority too, as soon as the lease is over,
// and nothing that is shorter.
func TestDefinition(t *testing.T) {
	world := func() *play { return three().java("a", -5000).cut(1000, 61_000, "b", "a,c").reader("b") }
	for _, test := range []struct {
		from, to Millis
		excused  bool
	}{{21_000, 64_000, true}, {20_999, 64_000, false}, {21_000, 64_001, false}} {
		p := world().gap(test.from, test.to)
		if v := Judge(p.Timeline, Derive(p.Timeline, Definition())); (len(v.Excused) == 1) != test.excused || v.Passed() != test.excused {
			t.Errorf("%+v: %+v, %+v", test, v.Gaps, v.Excused)
		}
	}
}

// Nothing that is never mended makes a recording endless.
func TestSettled(t *testing.T) {
	p := three().java("b", -5000).link(1000, "b", "a,c", LinkChange{Cut: true}).reader("a")
	p.Steps = []Step{{Fault: "isolate", FromMs: 1000, ToMs: 2000}}
	if by := Derive(p.Timeline, Documented()).Settled(); by < 2000 || by > 400_000 {
		t.Errorf("settled at %v", by)
	}
}

// A lease that could end wrongly is waited for.
func TestSettledWaitsForLeases(t *testing.T) {
	for _, test := range []struct {
		name string
		p    *play
		want Millis
	}{
		{"killed", three().java("b", -5000).node(1000, "b", Down).node(3000, "b", Starting).node(4000, "b", Up), 1000 + 11_000 + 1000},
		{"killed, with Python", three().python("b", -5000).node(1000, "b", Down).node(3000, "b", Starting).node(4000, "b", Up), 1000 + 35_000 + 1000},
		{"stood still", three().java("b", -5000).node(1000, "b", Frozen).node(4000, "b", Up), 4000 + 2000 + 1000},
	} {
		test.p.Steps = []Step{{Fault: "f", FromMs: 1000, ToMs: 4000}}
		if by := Derive(test.p.reader("a").Timeline, Documented()).Settled(); by != test.want {
			t.Errorf("%s: settled at %v, want %v", test.name, by, test.want)
		}
	}
}

// While a member is silent for a node, or was a short time ago, the node calls no
// HTTP client dead at once; one whose process is gone is not silent.
func TestVouched(t *testing.T) {
	for _, test := range []struct {
		name  string
		world *play
		want  bool
	}{
		{"nothing happens", three().beats(-20_000), false},
		{"a node is cut off", three().beats(-20_000).cut(500, 6500, "b", "a,c"), true},
		{"it was, long ago", three().beats(-20_000).cut(-60_000, -30_000, "b", "a,c"), false},
		{"a node is killed", three().beats(-20_000).node(500, "b", Down), false},
		{"a node stands still", three().beats(-20_000).node(500, "b", Frozen), true},
	} {
		d := Derive(test.world.Timeline, Documented()).derived
		if got := d.vouched("a", 1000, 21_000); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}
