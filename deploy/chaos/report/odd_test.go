package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/starling-registry/starling/deploy/chaos/verdict"
)

// odd makes a report that nothing but chance has ordered: what it says of
// itself need not fit together.
func odd(rnd *rand.Rand) *Report {
	few := func() int { return rnd.IntN(6) }
	name := func() string {
		names := []string{"", "a", "b", "p1", "p2", "http@a", "s-1@b", "</script><script>x()</script>", `"><img src=x onerror=alert(1)>`, "\x1b]0;x\x07", "\u202eevil", "\xff\xfe", "名前", "'\"`&<>", "a\nb", "{{.}}", "javascript:alert(1)"}
		return names[rnd.IntN(len(names))]
	}
	at := func() verdict.Millis {
		switch rnd.IntN(12) {
		case 0:
			return math.MinInt64
		case 1:
			return math.MaxInt64
		case 2:
			return verdict.Millis(rnd.Int64()) - math.MaxInt64/2
		case 3:
			return -verdict.Millis(rnd.IntN(100_000))
		}
		return verdict.Millis(rnd.IntN(100_000))
	}
	maybe := func() *verdict.Millis {
		if rnd.IntN(2) == 0 {
			return nil
		}
		m := at()
		return &m
	}
	flip := func() bool { return rnd.IntN(2) == 0 }
	names := func() (list []string) {
		for range few() {
			list = append(list, name())
		}
		return list
	}
	r := &Report{Server: name(), SDKs: names(), Machine: name(), Command: name(), Seed: name(), Took: time.Duration(rnd.Int64()), Started: time.Unix(rnd.Int64(), 0)}
	for range 1 + rnd.IntN(3) {
		run := &Run{Name: name(), Says: name(), Command: name(), Took: time.Duration(at()), Verify: name(), Notes: names()}
		run.Result = []Result{Passed, Failed, Skipped, "", Result(name())}[rnd.IntN(5)]
		if rnd.IntN(4) == 0 {
			run.Why = name()
		}
		r.Runs = append(r.Runs, run)
		if rnd.IntN(6) == 0 {
			continue
		}
		t := &verdict.Timeline{EndMs: at()}
		for range few() {
			t.Providers = append(t.Providers, verdict.Provider{Name: name(), SDK: name(), Node: name(), UpMs: at(), DiedMs: maybe(), Left: flip()})
		}
		for range few() {
			t.Observers = append(t.Observers, verdict.Observer{Name: name(), SDK: name(), Node: name(), Reader: flip()})
		}
		for range few() * 4 {
			t.Views = append(t.Views, verdict.View{Observer: name(), AtMs: at(), Seen: names(), Blind: flip()})
			t.Nodes = append(t.Nodes, verdict.NodeChange{AtMs: at(), Node: name(), State: verdict.NodeState(name())})
			t.Links = append(t.Links, verdict.LinkChange{AtMs: at(), From: name(), To: name(), Cut: flip(), Loss: []float64{0, .3, -1, 7, math.NaN(), math.Inf(1)}[rnd.IntN(6)], DelayMs: at(), Rate: int64(at())})
			t.Writes = append(t.Writes, verdict.Write{Address: name(), Node: name(), FromMs: at(), ToMs: at(), Acked: flip(), Error: name()})
		}
		for range few() {
			t.Steps = append(t.Steps, verdict.Step{Fault: name(), Target: name(), Says: name(), FromMs: at(), ToMs: at()})
			t.Marks = append(t.Marks, verdict.Mark{AtMs: at(), What: name()})
			t.Kept = append(t.Kept, verdict.Kept{Node: name(), Addresses: names(), Error: name()})
		}
		v := &verdict.Verdict{EqualAfterMs: maybe(), Faults: names()}
		for range few() * 2 {
			v.Gaps = append(v.Gaps, verdict.Gap{Provider: name(), SDK: name(), On: name(), Observer: name(), FromMs: at(), ToMs: at(), Open: flip()})
			v.Excused = append(v.Excused, verdict.Gap{Provider: name(), SDK: name(), On: name(), Observer: name(), FromMs: at(), ToMs: at(), Excused: name()})
			v.Gone = append(v.Gone, verdict.Departure{Provider: name(), SDK: name(), AfterMs: at(), LimitMs: at(), Observer: name(), Never: flip(), Returned: flip()})
		}
		for range t.Steps {
			v.Converged = append(v.Converged, verdict.Convergence{FromMs: at(), UntilMs: at(), AfterMs: at(), LimitMs: at(), Never: flip()})
		}
		for range few() {
			v.Lost = append(v.Lost, verdict.Loss{Address: name(), Node: name(), Write: verdict.Write{Node: name(), FromMs: at(), ToMs: at()}})
			v.Summary.SDKs = append(v.Summary.SDKs, verdict.SDKSummary{SDK: name(), LiveMissing: few(), FirstGapMs: maybe(), LastGoneMs: maybe()})
		}
		v.Summary.LiveMissing, v.Summary.WritesLost, v.Summary.LongestGapMs, v.Summary.ConvergedMs = few(), few(), at(), maybe()
		switch rnd.IntN(8) {
		case 0:
			run.Timeline = t
		case 1:
			run.Verdict = v
		default:
			run.Timeline, run.Verdict = t, v
		}
	}
	return r
}

// checkOdd writes all reports of it.
func checkOdd(t *testing.T, seed uint64) {
	t.Helper()
	r := odd(rand.New(rand.NewPCG(seed, 0)))
	p := parse(t, r)
	for i, run := range r.Runs {
		if run.Timeline != nil {
			_, v := run.judged()
			s := newScene(fmt.Sprintf("r%d", i+1), run, len(r.Runs))
			checkGaps(t, p, s, "gap", v.Gaps)
			checkGaps(t, p, s, "excused", v.Excused)
		}
	}
	for _, e := range p.elements {
		for key := range e.attr {
			if len(key) > 2 && key[:2] == "on" {
				t.Errorf("<%s> has %s", e.tag, key)
			}
		}
	}
	var b bytes.Buffer
	if err := JSON(&b, r); err != nil {
		t.Error(err)
	} else if !json.Valid(b.Bytes()) {
		t.Errorf("JSON that is none: %s", &b)
	}
	b.Reset()
	if err := Text(&b, r, false); err != nil {
		t.Error(err)
	}
	for _, run := range r.Runs {
		if err := TextRun(&b, run, false); err != nil {
			t.Error(err)
		}
	}
	for _, c := range b.Bytes() {
		if c < ' ' && c != '\n' || c == 0x7f {
			t.Errorf("the text has control character %#x", c)
			break
		}
	}
	if t.Failed() {
		t.Fatalf("seed %d", seed)
	}
}

func TestOdd(t *testing.T) {
	for seed := range uint64(200) {
		checkOdd(t, seed)
	}
}

func FuzzReport(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(checkOdd)
}

func TestWords(t *testing.T) {
	for _, test := range []struct{ got, want string }{
		{long(0), "0 ms"}, {long(3), "3 ms"}, {long(999), "999 ms"}, {long(1000), "1.0 s"}, {long(59_999), "59.9 s"},
		{long(60_000), "1 min"}, {long(125_400), "2 min 5 s"}, {long(3_720_000), "1 h 2 min"}, {long(-7_400), "-7.4 s"},
		{clock(0), "0:00.0"}, {clock(7_449), "0:07.4"}, {clock(725_300), "12:05.3"}, {clock(-3_000), "-0:03.0"},
		{clocks(7_000, 7_003), "0:07.000 to 0:07.003"}, {clocks(7_000, 8_500), "0:07.0 to 0:08.5"},
		{count(1, "gap"), "1 gap"}, {count(0, "gap"), "0 gaps"}, {list([]string{"a", "b", "c"}), "a, b and c"},
		{some([]string{"a", "b", "c", "d"}, 2), "a, b and 2 more"}, {some([]string{"a", "b", "c"}, 2), "a, b, c"},
		{clean("a\x1b[31m\u202eb"), `a\x1b[31m\u202eb`}, {clean("名前 é"), "名前 é"},
		{rate(125_000), "125 kB/s"}, {rate(2_500_000), "2.5 MB/s"}, {rate(12), "12 B/s"},
	} {
		if test.got != test.want {
			t.Errorf("%q, want %q", test.got, test.want)
		}
	}
	if natural("go-9", "go-10") >= 0 || natural("go-10", "go-9") <= 0 || natural("a", "a") != 0 || natural("go-09", "go-9") == 0 {
		t.Error("names are not in the order of people")
	}
}
