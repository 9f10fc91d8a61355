package sim

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/starling-registry/starling/test/simnet"
)

var (
	seeds    = flag.Int("sim.seeds", fromEnv("SIM_SEEDS", 3), "how many random schedules TestRandom plays; $SIM_SEEDS")
	first    = flag.Uint64("sim.seed", uint64(fromEnv("SIM_SEED", 1)), "the first seed; $SIM_SEED")
	perNamed = flag.Int("sim.named", fromEnv("SIM_NAMED", 0), "how many seeds each named schedule is played with; 0: some of them with one; $SIM_NAMED")
	faults   = flag.String("sim.faults", "kill freeze pathcut update shrink dereg want die drain iso cut oneway loss", "kinds of events in random schedules")
	play     = flag.String("sim.play", "", `play this schedule with -sim.seed: "20s kill 0; 24.5s update 1"`)
	undoAt   = flag.Duration("sim.undo", 120*time.Second, "with -sim.play: when nothing is cut or frozen any more")
	listens  = flag.Bool("sim.listens", false, "with -sim.play: the clients' instances can be dialled")
	nodes    = flag.Int("sim.nodes", 0, "number of nodes in random and given schedules; 0: random")
	clients  = flag.String("sim.clients", "", `kinds of clients in random and given schedules: "java go python beat"; empty: random`)
	keep     = flag.Bool("sim.keep", false, "do not end a run at the first promise that is broken")
	noStream = flag.Bool("sim.nostreams", false, "no streams work between nodes")
	verbose  = flag.Bool("sim.v", false, "log what nodes log for debugging")
)

func fromEnv(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

// ordinary is what is between nodes where nothing else is said.
var ordinary = simnet.Link{Delay: 300 * time.Microsecond, Jitter: 200 * time.Microsecond}

// try plays a schedule and fails the test if a promise is broken.
func try(t *testing.T, s Schedule, o Options) {
	t.Helper()
	if failures := broken(t, s, o); len(failures) > 0 {
		t.Errorf("seed %d, %d nodes, clients %v, listening %v, undone %v:\n  %v\n  %s", o.Seed, o.Nodes, o.Kinds, o.Listens, o.Undo, s, strings.Join(failures, "\n  "))
	}
}

func broken(t *testing.T, s Schedule, o Options) (failures []string) {
	t.Helper()
	o.KeepGoing, o.NoStreams = o.KeepGoing || *keep, o.NoStreams || *noStream
	if o.Quiet == 0 {
		o.Quiet = 60 * time.Second
	}
	if o.LogLevel = zapcore.InfoLevel; *verbose {
		o.LogLevel = zapcore.DebugLevel
	}
	var dirs []string
	for i := range o.Nodes {
		dirs = append(dirs, filepath.Join(t.TempDir(), fmt.Sprint("node", i)))
	}
	cryptotest.SetGlobalRandom(t, o.Seed)
	start := time.Now()
	var h *history
	synctest.Test(t, func(t *testing.T) { failures, h = Run(s, o, dirs) })
	if h.ledger != nil {
		failures = append(failures, h.ledger.judge()...)
	}
	if took := time.Since(start); testing.Verbose() {
		t.Logf("seed %d: %v in %v; %v", o.Seed, h.length(), took.Round(time.Millisecond), h.ledger)
	}
	if len(failures) == 0 && !*verbose {
		return nil
	}
	name := strings.NewReplacer("/", "-", " ", "-").Replace(t.Name()) + fmt.Sprint("-", o.Seed)
	if file, err := h.save(t.ArtifactDir(), name); err != nil {
		t.Error(err)
	} else {
		t.Logf("its history is in %s (kept with -artifacts)", file)
	}
	t.Logf("the end of the history:\n%s", strings.Join(h.last(60), "\n"))
	return failures
}

func parseKinds(t *testing.T, names string) (kinds []Kind) {
	t.Helper()
	for name := range strings.FieldsSeq(names) {
		k := Java
		for ; k <= Beat && k.String() != name; k++ {
		}
		if k > Beat {
			t.Fatalf("-sim.clients: %s: is none of java, go, python, beat", name)
		}
		kinds = append(kinds, k)
	}
	return kinds
}

func TestRandom(t *testing.T) {
	if *play != "" {
		t.Skip("-sim.play")
	}
	for i := range *seeds {
		seed := *first + uint64(i)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			o, r := randomOptions(t, seed)
			var s Schedule
			s, o.Undo = Random(r, strings.Fields(*faults), o)
			s = append(s, Storms(rand.New(rand.NewPCG(seed, 2)), s)...)
			try(t, s, o)
		})
	}
}

func randomOptions(t *testing.T, seed uint64) (Options, *rand.Rand) {
	r := rand.New(rand.NewPCG(seed, 1))
	o := Options{Seed: seed, Nodes: []int{1, 2, 3, 3, 3, 3, 5}[r.IntN(7)], Listens: r.IntN(2) == 0, Link: ordinary}
	if *nodes > 0 {
		o.Nodes = *nodes
	}
	for range 4 + r.IntN(2) {
		o.Kinds = append(o.Kinds, []Kind{Java, Java, Java, Go, Python, Beat}[r.IntN(6)])
	}
	if *clients != "" {
		o.Kinds = parseKinds(t, *clients)
	}
	if r.IntN(2) == 0 {
		o.Link = simnet.Link{Loss: 0.05 * r.Float64(), Duplicate: 0.05 * r.Float64(), Reorder: 0.1 * r.Float64(),
			Delay: time.Duration(r.IntN(20_000)) * time.Microsecond, Jitter: time.Duration(1+r.IntN(10_000)) * time.Microsecond}
	}
	if r.IntN(4) == 0 {
		o.Skew = []time.Duration{time.Duration(r.IntN(5000)-2500) * time.Millisecond}
	}
	return o, r
}

func TestPlay(t *testing.T) {
	if *play == "" {
		t.Skip("plays what -sim.play gives")
	}
	s, err := Parse(*play)
	if err != nil {
		t.Fatal(err)
	}
	for i := range *seeds {
		o, _ := randomOptions(t, *first+uint64(i))
		o.Listens, o.Undo = *listens, *undoAt
		if *nodes == 0 {
			o.Nodes = 3
		}
		try(t, s, o)
	}
}
