// Command chaos breaks a cluster on purpose, under clients that must notice
// nothing, and judges what they saw. chaos.sh builds and runs it; README.md says
// more.
//
// The invariant: the verdict comes from what observers saw and from what was
// done, never from what a node says of itself.
//
// Start reading at faults.go, where the faults are, and run.go, which plays
// them on a stage. What is demanded is in package verdict.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	starling "github.com/starling-registry/starling/pkg/api"
	"github.com/starling-registry/starling/test/compat/drivers"
)

// The options are what the command line says.
type options struct {
	bin   string
	suite string // folder of the compatibility suite, which has the drivers
	nodes int
	// What is done: faults by name, a number of them or a time of them from a
	// seed, or scenarios.
	faults    string
	random    int
	last      time.Duration
	seed      uint64
	quick     bool
	scenarios string
	// Who looks.
	sdks        string
	providers   int
	subscribers int
	byName      bool
	noWrites    bool
	// Servers of somebody else.
	servers []string
	control string

	dryRun bool
	noRoot bool
	report string
	keep   bool

	// out is where all is told; when it cannot be written to any more, the run ends.
	out io.Writer
}

const usage = `Breaks a cluster on purpose, under clients that must notice nothing, and judges
what they saw.

usage: chaos.sh [flags]

Without flags: three nodes, thirty providers, nine subscribers and eight faults
drawn from a seed, which is printed; it takes some minutes. As root nodes and
clients are in network namespaces of their own, else behind relays on loopback.

  chaos.sh --list                        the faults, what each needs, what replaces it
  chaos.sh --faults kill:b:20s,isolate:a,rolling-restart
  chaos.sh --faults loss:all:30s+kill:c:10s+die       at the same time
  chaos.sh --seed 42 --random 20         the same twenty wherever the same can be done
  chaos.sh --for 30m                     faults for half an hour
  chaos.sh --scenario scale-out,cut-60   faults with limits of their own
  chaos.sh --by-name --faults dns        clients that know only a DNS name
  chaos.sh --servers 10.0.0.1:8848,10.0.0.2:8848,10.0.0.3:8848 --control ./control.sh
                                         a cluster that runs already, also of other
                                         servers that Nacos clients can use

A fault is name[:target][:duration]; what is left out is drawn. Commas separate
faults that follow each other, each when all is well again; + joins those that
begin together.

flags:
`

func flags(o *options) (set *pflag.FlagSet, list *bool) {
	set = pflag.NewFlagSet("chaos", pflag.ContinueOnError)
	set.SortFlags = false
	set.StringVar(&o.faults, "faults", "", "the faults, in their order")
	set.IntVar(&o.random, "random", 8, "without --faults: how many are drawn")
	set.DurationVar(&o.last, "for", 0, "without --faults: draw until so much time is over")
	set.Uint64Var(&o.seed, "seed", 0, "what is drawn; 0: from the clock")
	set.BoolVar(&o.quick, "quick", false, "draw short faults")
	set.StringVar(&o.scenarios, "scenario", "", "scenarios by name, all or short, instead of faults")
	set.BoolVar(&o.dryRun, "dry-run", false, "print the schedule and do nothing")
	list = set.Bool("list", false, "list faults and scenarios")
	set.IntVar(&o.nodes, "nodes", 3, "nodes at the start, 1 to 5")
	set.IntVar(&o.providers, "providers", 30, "providers, shared among the SDKs")
	set.IntVar(&o.subscribers, "subscribers", 9, "subscribers, likewise")
	set.StringVar(&o.sdks, "sdks", "http,starling,go", "who takes part: "+strings.Join(sdkNames, ", ")+"; all")
	set.BoolVar(&o.byName, "by-name", false, "clients know the servers by one DNS name only")
	set.BoolVar(&o.noWrites, "no-writes", false, "write no persistent instances")
	set.StringSliceVar(&o.servers, "servers", nil, "servers that run already, HOST:PORT")
	set.StringVar(&o.control, "control", "", "program that acts on these: CONTROL kill|stop|continue|terminate|start HOST:PORT")
	set.BoolVar(&o.noRoot, "no-root", false, "do as if not root")
	set.StringVar(&o.report, "report", "chaos-report", "folder for report.txt, report.json and report.html")
	set.BoolVar(&o.keep, "keep", false, "keep logs and timelines also of runs that passed")
	set.StringVar(&o.bin, "bin", "../../bin/starling", "the server's binary")
	set.StringVar(&o.suite, "drivers", "../../test/compat", "folder with the drivers of the SDKs")
	set.Usage = func() { fmt.Fprint(os.Stderr, usage+set.FlagUsages()) }
	return set, list
}

func main() {
	var o options
	set, list := flags(&o)
	switch err := set.Parse(os.Args[1:]); {
	case errors.Is(err, pflag.ErrHelp):
		return
	case err != nil:
		wrongUsage(err)
	}
	if *list {
		printList(&o)
		return
	}
	if err := o.check(set); err != nil {
		wrongUsage(err)
	}
	if o.dryRun && o.scenarios == "" {
		sc, err := o.fromSchedule()
		if err != nil {
			wrongUsage(err)
		}
		fmt.Println(sc.says)
		return
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	o.out = &teller{out: os.Stdout, failed: cancel}
	// Or the end of a pager ends this program before it has cleaned up.
	signal.Ignore(syscall.SIGPIPE)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		// A second one does not hurry it: what was started has to be ended.
		for s := range signals {
			cancel(fmt.Errorf("stopped by %v", s))
		}
	}()
	ok, err := run(ctx, &o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// A teller writes to somebody who may stop listening.
type teller struct {
	out    io.Writer
	failed context.CancelCauseFunc
}

func (t *teller) Write(b []byte) (int, error) {
	n, err := t.out.Write(b)
	if err != nil {
		t.failed(fmt.Errorf("stopped: %w", err))
	}
	return n, err
}

func wrongUsage(err error) {
	fmt.Fprintf(os.Stderr, "chaos: %v\nchaos.sh --help explains the flags\n", err)
	os.Exit(2)
}

// check says what makes no sense, before anything is started.
func (o *options) check(set *pflag.FlagSet) error {
	given := set.Changed
	switch {
	case set.NArg() > 0:
		return fmt.Errorf("%q: there are no arguments, only flags", set.Arg(0))
	case o.nodes < 1 || o.nodes > maxNodes:
		return fmt.Errorf("--nodes %d: want 1 to %d", o.nodes, maxNodes)
	case o.providers < 1 || o.subscribers < 1:
		return errors.New("want at least one provider and one subscriber")
	case o.scenarios != "" && (given("faults") || given("random") || given("for")):
		return errors.New("--scenario has its own faults: leave --faults, --random and --for out")
	case given("faults") && (given("random") || given("for")):
		return errors.New("--faults says what is done: leave --random and --for out")
	case o.random < 1:
		return fmt.Errorf("--random %d: want at least one fault", o.random)
	case given("random") && given("for"):
		return errors.New("--for draws as many as there is time for: leave --random out")
	case given("for") && o.last <= 0:
		return fmt.Errorf("--for %v: want more than 0", o.last)
	case given("faults") && o.faults == "":
		return errors.New("--faults names none: leave it out to draw some")
	case given("scenario") && o.scenarios == "":
		return errors.New("--scenario names none; --list does")
	case given("servers") && len(o.servers) == 0:
		return errors.New("--servers names none: want HOST:PORT, several with commas")
	case o.control != "" && len(o.servers) == 0:
		return errors.New("--control acts on servers that run already: name them with --servers")
	case len(o.servers) > 0 && (given("nodes") || given("scenario")):
		return errors.New("--servers are the nodes: leave --nodes and --scenario out")
	}
	if err := o.checkServers(); err != nil {
		return err
	}
	if _, err := chooseSDKs(o.sdks); err != nil {
		return err
	}
	if o.seed == 0 {
		o.seed = uint64(time.Now().UnixNano()) % 1_000_000
	}
	for _, path := range []*string{&o.bin, &o.suite, &o.report} {
		abs, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		*path = abs
	}
	if !isThere(filepath.Join(o.suite, "drivers")) {
		return fmt.Errorf("--drivers %s: there are none; want test/compat of a checkout", o.suite)
	}
	if _, err := o.plays(); err != nil {
		return err
	}
	// Now, not after half an hour.
	if err := mayWrite(o.report); err != nil {
		return fmt.Errorf("--report: %w", err)
	}
	return nil
}

// checkServers looks at what is said of servers that run already.
func (o *options) checkServers() error {
	if len(o.servers) == 0 {
		return nil
	}
	const most = 'z' - 'a' + 1 // they are called by letters
	if o.nodes = len(o.servers); o.nodes > most {
		return fmt.Errorf("--servers: want up to %d", most)
	}
	for i, server := range o.servers {
		if _, _, err := starling.SplitServer(server); err != nil {
			return fmt.Errorf("--servers: %w", err)
		}
		if slices.Contains(o.servers[:i], server) {
			return fmt.Errorf("--servers: %s is there twice", server)
		}
	}
	if o.control != "" {
		// A path like those of other programs: relative to where this one runs.
		path, err := exec.LookPath(o.control)
		if errors.Is(err, exec.ErrDot) {
			err = nil
		}
		if err == nil {
			path, err = filepath.Abs(path)
		}
		if err != nil {
			return fmt.Errorf("--control: want a program: %w", err)
		}
		o.control = path
	}
	return nil
}

// plays is what the command line asks for.
func (o *options) plays() ([]*scenario, error) {
	if o.scenarios != "" {
		return chooseScenarios(o.scenarios)
	}
	one, err := o.fromSchedule()
	return []*scenario{one}, err
}

// printList says of each fault what it needs, whether that is here, and what
// replaces it.
func printList(o *options) {
	has := o.abilities()
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "FAULT\tTARGET\tNEEDS\tWHAT IT DOES")
	for _, f := range faults {
		name := f.name
		if f.needs.lacks(has) != "" {
			name += " (not here)"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", name, map[target]string{nobody: "", aNode: "a node", anExtra: "an added node", aNodeOrAll: "a node, all"}[f.target], f.needs, f.says)
	}
	t.Flush()
	fmt.Println("\nWhat they need:")
	t = tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, k := range kinds {
		here := "here"
		if has&k.need == 0 {
			here = "not here"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", k.name, here, k.says)
		if k.instead != "" {
			fmt.Fprintf(t, "\t\t%s\n", k.instead)
		}
	}
	t.Flush()
	fmt.Println("\nScenarios, for --scenario; those marked * are \"short\":")
	t = tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, s := range scenarios {
		fmt.Fprintf(t, "%s%s\t%s\n", s.name, map[bool]string{true: " *"}[s.short], s.says)
	}
	t.Flush()
}

func chooseScenarios(names string) ([]*scenario, error) {
	var list []*scenario
	for name := range strings.SplitSeq(names, ",") {
		found := false
		for i := range scenarios {
			s := &scenarios[i]
			if name == s.name || name == "all" || name == "short" && s.short {
				list, found = append(list, s), true
			}
		}
		if !found {
			return nil, fmt.Errorf("there is no scenario %q; --list names them", name)
		}
	}
	return list, nil
}

// sdkNames are those of allSDKs, in its order.
var sdkNames = []string{"http", "starling", "go", "java2", "java3", "python", "node"}

func allSDKs(suite string) []*drivers.SDK {
	place := drivers.Place(suite)
	return []*drivers.SDK{
		place.HTTP("http"),
		place.Starling("starling"),
		place.Go("go", place.NewestGo()),
		place.Java("java2", drivers.Java2),
		place.Java("java3", drivers.Java3),
		place.Python("python", drivers.Python),
		place.Node("node", place.NewestNode()),
	}
}

// chooseSDKs are the places in allSDKs of those that are named.
func chooseSDKs(names string) ([]int, error) {
	if names == "all" {
		names = strings.Join(sdkNames, ",")
	}
	var list []int
	for name := range strings.SplitSeq(names, ",") {
		switch i := slices.Index(sdkNames, name); {
		case i < 0:
			return nil, fmt.Errorf("there is no SDK %q; there are %s", name, strings.Join(sdkNames, ", "))
		case slices.Contains(list, i):
			return nil, fmt.Errorf("--sdks: %s is there twice", name)
		default:
			list = append(list, i)
		}
	}
	return list, nil
}

// buildSDKs builds the drivers. A lack of tools leaves an SDK out, which is
// said; in CI it is an error.
func buildSDKs(out io.Writer, suite, names string) (list []*drivers.SDK, leftOut []string, err error) {
	all := allSDKs(suite)
	chosen, err := chooseSDKs(names)
	if err != nil {
		return nil, nil, err
	}
	for _, i := range chosen {
		s := all[i]
		if missing := s.Missing(); len(missing) > 0 {
			err := fmt.Errorf("%s needs %s: sudo apt-get install %s", s.Name, missing[0].Program, missing[0].Package)
			if os.Getenv("CI") == "true" {
				return nil, nil, err
			}
			fmt.Fprintln(out, "left out:", err)
			leftOut = append(leftOut, "left out: "+err.Error())
			continue
		}
		fmt.Fprintf(out, "building the driver of %s %s\n", s.Name, s.Version)
		if err := s.Build(); err != nil {
			return nil, nil, err
		}
		list = append(list, s)
	}
	if len(list) == 0 {
		return nil, nil, errors.New("no SDK can be driven on this machine")
	}
	return list, leftOut, nil
}
