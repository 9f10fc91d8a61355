package report

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/starling-registry/starling/deploy/chaos/verdict"
)

var started = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// calm is one run in which all went well: b was killed, and came back.
func calm() *Report {
	died := verdict.Millis(5_000)
	all := []string{"go-1", "go-2", "go-doomed-1"}
	t := &verdict.Timeline{
		Providers: []verdict.Provider{
			{Name: "go-1", SDK: "go", Node: "a", UpMs: -3000},
			{Name: "go-2", SDK: "go", Node: "b", UpMs: -3000},
			{Name: "go-doomed-1", SDK: "go", Node: "b", UpMs: -2900, DiedMs: &died},
		},
		Observers: []verdict.Observer{{Name: "go-sub-1@a", SDK: "go", Node: "a"}, {Name: "http@b", SDK: "http", Node: "b", Reader: true}},
		Views: []verdict.View{
			{Observer: "go-sub-1@a", AtMs: -2000, Seen: all},
			{Observer: "http@b", AtMs: -2000, Seen: all},
			{Observer: "http@b", AtMs: 5_010, Blind: true},
			{Observer: "go-sub-1@a", AtMs: 15_400, Seen: all[:2]},
			{Observer: "http@b", AtMs: 20_300, Seen: all[:2]},
		},
		Nodes: []verdict.NodeChange{
			{AtMs: -6000, Node: "a", State: verdict.Up}, {AtMs: -6000, Node: "b", State: verdict.Up},
			{AtMs: 5_000, Node: "b", State: verdict.Down}, {AtMs: 20_000, Node: "b", State: verdict.Starting}, {AtMs: 20_250, Node: "b", State: verdict.Up},
		},
		Steps: []verdict.Step{{Fault: "kill", Target: "b", Says: "b is killed, and started after 15 s", FromMs: 5_000, ToMs: 20_250}},
		Writes: []verdict.Write{
			{Address: "10.0.0.1:80", Node: "a", FromMs: 1_000, ToMs: 1_004, Acked: true},
			{Address: "10.0.0.2:80", Node: "b", FromMs: 6_000, ToMs: 6_001, Error: "connection refused"},
		},
		Kept:  []verdict.Kept{{Node: "a", Addresses: []string{"10.0.0.1:80"}}, {Node: "b", Addresses: []string{"10.0.0.1:80"}}},
		EndMs: 30_000,
	}
	v := verdict.Judge(t, &verdict.Expectation{GoneWithin: func(*verdict.Provider) verdict.Millis { return 12_000 }})
	return &Report{
		Server: "starling 1.0.0 (go1.26, linux/amd64)", SDKs: []string{"go 2.3.5"}, Machine: "2 processors, 8 GB, Linux 6.1",
		Command: "deploy/chaos/chaos.sh --seed 42 --nodes 3 --random 1", Seed: "42", Started: started, Took: 45 * time.Second,
		Runs: []*Run{{Name: "seed-42", Says: "one fault, at random", Result: Passed, Took: 44 * time.Second, Verify: "equal", Timeline: t, Verdict: v}},
	}
}

// broken has one of each kind of trouble, and names that want to be markup.
func broken() *Report {
	died := verdict.Millis(2_000)
	evil := `<script>alert("p2")</script>`
	t := &verdict.Timeline{
		Providers: []verdict.Provider{
			{Name: "p1", SDK: "java3", Node: "a", UpMs: -3000},
			{Name: evil, SDK: "go", Node: "b", UpMs: -3000},
			{Name: "p3", SDK: "python", Node: "b", UpMs: -2900, DiedMs: &died},
		},
		Observers: []verdict.Observer{
			{Name: "java3-sub-1@a", SDK: "java3", Node: "a"}, {Name: "go-sub-2@b", SDK: "go", Node: "b"}, {Name: "http@a", SDK: "http", Node: "a", Reader: true},
		},
		Views: []verdict.View{
			{Observer: "java3-sub-1@a", AtMs: -1000, Seen: []string{"p1", "p3", evil}},
			{Observer: "go-sub-2@b", AtMs: -1000, Seen: []string{"p1", "p3", evil}},
			{Observer: "http@a", AtMs: -1000, Seen: []string{"p1", "p3", evil}},
			{Observer: "java3-sub-1@a", AtMs: 7_000, Seen: []string{"p1", "p3"}},
			{Observer: "java3-sub-1@a", AtMs: 7_003, Seen: []string{"p1", "p3", evil}},
			{Observer: "go-sub-2@b", AtMs: 25_000, Seen: []string{evil}},
			{Observer: "http@a", AtMs: 31_000, Seen: []string{"p1"}},
		},
		Nodes: []verdict.NodeChange{{AtMs: -6000, Node: "a", State: verdict.Up}, {AtMs: 500, Node: "b", State: verdict.Frozen}, {AtMs: 40_000, Node: "b", State: "molten"}},
		Links: []verdict.LinkChange{
			{AtMs: 1_000, From: "a", To: "b", Cut: true}, {AtMs: 1_001, From: "b", To: "a", Cut: true},
			{AtMs: 41_000, From: "a", To: "b"}, {AtMs: 41_001, From: "b", To: "a"},
			{AtMs: 10_000, From: "clients-go", To: "b", Loss: 0.125, DelayMs: 80, Rate: 125_000},
		},
		Steps: []verdict.Step{
			{Fault: "partition", Target: "b", Says: "a and b are cut off from each other", FromMs: 1_000, ToMs: 41_000},
			{Fault: "loss", Target: "b", Says: "\x1b[31mred\x1b[0m", FromMs: 10_000, ToMs: 50_000},
		},
		Writes: []verdict.Write{{Address: "10.0.0.7:80", Node: "b", FromMs: 9_000, ToMs: 9_700, Acked: true}, {Address: "10.0.0.8:80", Node: "a", FromMs: 12_000, ToMs: 22_000}},
		Kept:   []verdict.Kept{{Node: "a", Addresses: []string{"10.0.0.7:80"}}, {Node: "b"}},
		EndMs:  60_000,
	}
	v := verdict.Judge(t, &verdict.Expectation{
		GoneWithin: func(*verdict.Provider) verdict.Millis { return 35_000 },
		Absences: []verdict.Absence{{
			Why:       "cut off for longer than the lease, and nobody can dial it",
			Providers: func(p *verdict.Provider) bool { return p.Name == "p1" },
			Observers: func(o *verdict.Observer) bool { return o.Name == "go-sub-2@b" },
			From:      20_000, To: 60_000,
		}},
		EqualFrom: 41_000, EqualWithin: 2_000,
	})
	return &Report{
		Server: "starling 1.0.0", SDKs: []string{"java3 3.1.1", "go 2.3.5"}, Started: started, Took: 90 * time.Second,
		Command: "deploy/chaos/chaos.sh --faults partition:b,loss:b",
		Runs:    []*Run{{Name: "partition,loss", Result: Failed, Took: 80 * time.Second, Timeline: t, Verdict: v, Notes: []string{"disks are not slowed: not root"}}},
	}
}

// recorded is a run of three nodes and twenty providers: one was killed, another
// one cut off while two providers died. It ended too soon for its verdict.
func recorded(t testing.TB) *Report {
	t.Helper()
	line, v := &verdict.Timeline{}, &verdict.Verdict{}
	for name, to := range map[string]any{"timeline": line, "verdict": v} {
		b, err := os.ReadFile("testdata/recorded." + name + ".json")
		if err == nil {
			err = json.Unmarshal(b, to)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return &Report{
		Server: "starling 86db4a3 (go1.26.8, linux/amd64)", SDKs: []string{"http v1", "grpc v2"}, Machine: "2 processors, 24 GB, Linux 6.18",
		Command: "deploy/chaos/chaos.sh --seed 205292 --nodes 3 --sdks http,grpc --providers 20 --subscribers 6 --faults kill:b:8s,isolate:a:12s+die",
		Started: started, Took: 54 * time.Second,
		Runs: []*Run{{Name: "schedule", Says: "kill:b:8s,isolate:a:12s+die", Result: Failed, Took: 53 * time.Second, Verify: "holds", Timeline: line, Verdict: v}},
	}
}

// several has a run of each result.
func several() *Report {
	r := calm()
	r.Runs = append(r.Runs, broken().Runs[0],
		&Run{Name: "cut-10", Says: "b is cut off", Result: Skipped, Why: "it needs root"},
		&Run{Name: "pause-5", Says: "b stands still", Result: Failed, Why: "setting up: node a ended by itself", Took: 3 * time.Second})
	return r
}

// big is as much as a long run makes: a hundred providers, 25 observers, half an
// hour of a fault every minute, thousands of views.
func big(providers, observers int, length verdict.Millis) *Report {
	rnd := rand.New(rand.NewPCG(1, 2))
	some := func(n verdict.Millis) verdict.Millis { return verdict.Millis(rnd.Int64N(int64(n))) }
	nodes := []string{"a", "b", "c", "d", "e"}
	sdks := []string{"go", "java2", "java3", "python"}
	t := &verdict.Timeline{EndMs: length}
	v := &verdict.Verdict{}
	var names []string
	for i := range providers {
		p := verdict.Provider{Name: fmt.Sprintf("%s-%d", sdks[i%4], i/4+1), SDK: sdks[i%4], Node: nodes[i%5], UpMs: -9000, Dialable: true}
		if i%9 == 0 {
			at := some(length)
			p.DiedMs = &at
		}
		names = append(names, p.Name)
		t.Providers = append(t.Providers, p)
	}
	seen := func(but ...string) []string {
		return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return slices.Contains(but, n) })
	}
	for i := range observers {
		o := verdict.Observer{Name: fmt.Sprintf("%s-sub-%d@%s", sdks[i%4], i+1, nodes[i%5]), SDK: sdks[i%4], Node: nodes[i%5]}
		if i >= observers-5 {
			n := nodes[i-observers+5]
			o = verdict.Observer{Name: "http@" + n, SDK: "http", Node: n, Reader: true}
		}
		t.Observers = append(t.Observers, o)
	}
	for _, n := range nodes {
		t.Nodes = append(t.Nodes, verdict.NodeChange{AtMs: -20_000, Node: n, State: verdict.Up})
	}
	faults := []string{"kill", "freeze", "restart", "partition", "loss", "delay", "one-way", "slow-disk"}
	for at := verdict.Millis(10_000); at < length-40_000; at += 60_000 {
		n := nodes[rnd.IntN(5)]
		f := faults[rnd.IntN(len(faults))]
		end := at + 15_000 + some(30_000)
		t.Steps = append(t.Steps, verdict.Step{Fault: f, Target: n, Says: f + " of " + n, FromMs: at, ToMs: end})
		switch f {
		case "kill", "restart":
			t.Nodes = append(t.Nodes, verdict.NodeChange{AtMs: at, Node: n, State: verdict.Stopping}, verdict.NodeChange{AtMs: at + 3000, Node: n, State: verdict.Down},
				verdict.NodeChange{AtMs: end - 800, Node: n, State: verdict.Starting}, verdict.NodeChange{AtMs: end, Node: n, State: verdict.Up})
		case "freeze":
			t.Nodes = append(t.Nodes, verdict.NodeChange{AtMs: at, Node: n, State: verdict.Frozen}, verdict.NodeChange{AtMs: end, Node: n, State: verdict.Up})
		case "partition", "loss", "delay", "one-way":
			for _, m := range nodes {
				if m == n {
					continue
				}
				c := verdict.LinkChange{AtMs: at, From: n, To: m, Cut: f == "partition" || f == "one-way"}
				if f == "loss" {
					c.Loss = .3
				}
				if f == "delay" {
					c.DelayMs = 200
				}
				t.Links = append(t.Links, c, verdict.LinkChange{AtMs: end, From: n, To: m})
				if f != "one-way" {
					c.From, c.To = m, n
					t.Links = append(t.Links, c, verdict.LinkChange{AtMs: end, From: m, To: n})
				}
			}
		}
		for i := range t.Observers {
			o := &t.Observers[i]
			if o.Reader && o.Node == n {
				t.Views = append(t.Views, verdict.View{Observer: o.Name, AtMs: at, Blind: true})
			}
			for range 3 {
				from := at + some(end-at)
				short := some(3000)
				t.Views = append(t.Views, verdict.View{Observer: o.Name, AtMs: from, Seen: seen()})
				if rnd.IntN(4) != 0 {
					continue
				}
				k := rnd.IntN(providers)
				for j := k; j < min(k+rnd.IntN(8), providers); j++ {
					g := verdict.Gap{Provider: names[j], SDK: sdks[j%4], On: nodes[j%5], Observer: o.Name, FromMs: from + 50, ToMs: from + 50 + short}
					if rnd.IntN(5) != 0 {
						g.Excused = "its node was cut off from the observer's side for longer than the lease, and no node there can dial it"
						v.Excused = append(v.Excused, g)
					} else {
						v.Gaps = append(v.Gaps, g)
					}
				}
				t.Views = append(t.Views, verdict.View{Observer: o.Name, AtMs: from + 50, Seen: seen(names[k:min(k+4, providers)]...)}, verdict.View{Observer: o.Name, AtMs: from + 50 + short, Seen: seen()})
			}
		}
	}
	for i := range t.Providers {
		if p := &t.Providers[i]; p.DiedMs != nil {
			d := verdict.Departure{Provider: p.Name, SDK: p.SDK, AfterMs: some(20_000), LimitMs: 18_000, Observer: t.Observers[rnd.IntN(len(t.Observers))].Name}
			v.Gone = append(v.Gone, d)
		}
	}
	for at := verdict.Millis(0); at < length; at += 200 {
		w := verdict.Write{Address: fmt.Sprintf("10.1.0.1:%d", at/200), Node: nodes[rnd.IntN(5)], FromMs: at, ToMs: at + 2 + some(40), Acked: true}
		if at%60_000 > 10_000 && at%60_000 < 14_000 {
			w.Acked, w.Error = rnd.IntN(3) == 0, "no leader"
			w.ToMs += 900
		}
		t.Writes = append(t.Writes, w)
	}
	at := verdict.Millis(1_700)
	v.EqualAfterMs = &at
	v.Summary = verdict.Summary{LiveMissing: len(distinct(v.Gaps)), LongestGapMs: longest(v.Gaps), Excused: len(v.Excused), LongestExcusedMs: longest(v.Excused),
		Dead: len(v.Gone), LongestStaleMs: 19_800, WritesAcked: 8_600, WritesFailed: 400, Flapping: 98}
	return &Report{
		Server: "starling 1.0.0 (go1.26, linux/amd64)", SDKs: []string{"go 2.3.5", "java2 2.5.1", "java3 3.1.1", "python 3.2.0"},
		Machine: "2 processors, 8 GB, Linux 6.1", Seed: "18446744073709551615", Started: started, Took: 31 * time.Minute,
		Command: "deploy/chaos/chaos.sh --seed 18446744073709551615 --nodes 5 --providers 100 --for 30m --sdks go,java2,java3,python",
		Runs:    []*Run{{Name: "seed 18446744073709551615", Says: "faults at random, one a minute", Result: Failed, Took: 31 * time.Minute, Verify: "equal", Timeline: t, Verdict: v}},
	}
}

// flapping is the big one, and each observer misses somebody every two seconds.
func flapping() *Report {
	r := big(100, 25, 1_800_000)
	v := r.Runs[0].Verdict
	for _, o := range r.Runs[0].Timeline.Observers {
		for at := verdict.Millis(0); at < 1_800_000; at += 2_000 {
			g := verdict.Gap{Provider: fmt.Sprintf("go-%d", at/2000%25+1), SDK: "go", On: "a", Observer: o.Name, FromMs: at, ToMs: at + 300}
			if at/2000%2 == 0 {
				g.Excused = strings.Repeat("for a reason that is told at length ", 5)
				v.Excused = append(v.Excused, g)
			} else {
				v.Gaps = append(v.Gaps, g)
			}
		}
	}
	return r
}
