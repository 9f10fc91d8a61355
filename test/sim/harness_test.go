package sim

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/starling-registry/starling/pkg/node"
)

// A single node keeps all promises that concern it.
func TestOneNode(t *testing.T) {
	for _, s := range []string{
		"",
		"20s update 0; 21s shrink 0; 22s dereg 1; 22s gone 2 1000; 30s want 1; 33s die 2; 33s gone 4 1000",
		"20s freeze 0; 40s cont 0",
	} {
		t.Run(s, func(t *testing.T) {
			schedule, err := Parse(s)
			if err != nil {
				t.Fatal(err)
			}
			try(t, schedule, Options{Seed: 1, Nodes: 1, Kinds: []Kind{Java, Go, Python, Beat}, Link: ordinary, Undo: 50 * time.Second, Quiet: 40 * time.Second})
		})
	}
}

// The harness must be able to fail: nodes that do not know each other show
// less than there is, and say so in every way.
func TestUnconnectedNodesAreFound(t *testing.T) {
	alone := func(_ int, o *node.Options) { o.Join, o.Expect = nil, 0 }
	f := func(promise, s string, o Options) {
		t.Helper()
		schedule, err := Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		o.Seed, o.Nodes, o.Link, o.Node, o.Undo, o.KeepGoing = 1, 3, ordinary, alone, 60*time.Second, true
		t.Run(promise, func(t *testing.T) {
			if failures := strings.Join(broken(t, schedule, o), "\n"); !strings.Contains(failures, "] "+promise+": ") {
				t.Errorf("want %s, got:\n%s", promise, failures)
			}
		})
	}
	f("diverge", "", Options{Kinds: []Kind{Java, Java, Java}})
	f("apart", "", Options{Kinds: []Kind{Java, Java, Java}})
	f("lost", "", Options{Kinds: []Kind{Java, Java, Java}}) // each writes a log of its own
	f("gap", "", Options{Kinds: []Kind{Java, Java, Java}})
	// A client that moves is lost by the node that it leaves.
	f("time", "15s kill 0", Options{Kinds: []Kind{Go}, Skew: []time.Duration{time.Hour}})
}

func TestParse(t *testing.T) {
	const text = "20s kill 0 0; 24.5s update 1 0; 25s gone 3 12000"
	s, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(text, s.String()); d != "" {
		t.Error(d)
	}
	for _, bad := range []string{"kill 0", "20s explode 1", "20 kill 0"} {
		if _, err := Parse(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
