// Command failover breaks clusters of real processes under clients of official
// SDKs and judges what their subscribers saw. "make failover" runs a selection,
// "make failover-full" all of it; README.md says more.
//
// The invariant: the verdict comes from what observers saw and from what was
// done, never from what a node says of itself.
//
// Start reading at scenarios.go; what is demanded is in verdict.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/starling-registry/starling/deploy/chaos/verdict"
	"github.com/starling-registry/starling/test/compat/drivers"
)

type options struct {
	bin         string
	suite       string
	scenarios   string
	providers   int
	subscribers int
	nodes       int
	sdks        string
	report      string
	keep        bool
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "../../bin/starling", "the server's binary")
	flag.StringVar(&o.suite, "drivers", "../../test/compat", "folder of the compatibility suite, which has the drivers of the SDKs")
	flag.StringVar(&o.scenarios, "scenarios", "short", "all, short, or names with commas")
	flag.IntVar(&o.providers, "providers", 100, "providers, shared among the SDKs")
	flag.IntVar(&o.subscribers, "subscribers", 10, "subscribers, likewise")
	flag.StringVar(&o.sdks, "sdks", "go,java2,java3,python", "SDKs that take part")
	flag.IntVar(&o.nodes, "nodes", 3, "3, or 1 to see what a cluster is for: then most scenarios must fail")
	flag.StringVar(&o.report, "report", "", "write a JSON report to this file")
	flag.BoolVar(&o.keep, "keep", false, "keep logs and timelines also of scenarios that passed")
	list := flag.Bool("list", false, "list the scenarios")
	flag.Parse()
	if *list {
		for _, s := range scenarios {
			fmt.Printf("%-18s %s%s\n", s.name, s.says, map[bool]string{true: " (short)"}[s.short])
		}
		return
	}
	chosen, err := choose(o.scenarios)
	if err == nil && (flag.NArg() > 0 || o.nodes != 1 && o.nodes != 3 || o.providers < 12 || o.subscribers < 1) {
		err = errors.New("no arguments; 1 or 3 nodes; at least 12 providers and one subscriber")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "failover:", err)
		os.Exit(2)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		// A second one does not hurry it: what was started has to be ended.
		for s := range signals {
			cancel(fmt.Errorf("stopped by %v", s))
		}
	}()
	ok, err := run(ctx, &o, chosen)
	if err != nil {
		fmt.Fprintln(os.Stderr, "failover:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

func choose(names string) ([]*scenario, error) {
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
			return nil, fmt.Errorf("there is no scenario %q; -list names them", name)
		}
	}
	return list, nil
}

// run plays the scenarios one after the other; whether all passed is the result.
func run(ctx context.Context, o *options, chosen []*scenario) (bool, error) {
	for _, path := range []*string{&o.bin, &o.suite} {
		abs, err := filepath.Abs(*path)
		if err != nil {
			return false, err
		}
		*path = abs
	}
	version, err := exec.CommandContext(ctx, o.bin, "version").CombinedOutput()
	if err != nil {
		return false, fmt.Errorf("no server to test: %s version: %w", o.bin, err)
	}
	sdks, err := buildSDKs(o.suite, o.sdks)
	if err != nil {
		return false, err
	}
	dir, err := os.MkdirTemp("", "starling-failover-")
	if err != nil {
		return false, err
	}
	r := &report{Server: strings.TrimSpace(string(version)), Started: time.Now().UTC().Truncate(time.Second)}
	for _, s := range sdks {
		r.SDKs = append(r.SDKs, s.Name+" "+s.Version)
	}
	for _, s := range chosen {
		fmt.Printf("== %s: %s\n", s.name, s.says)
		res := play(ctx, o, s, sdks, filepath.Join(dir, s.name))
		r.Scenarios = append(r.Scenarios, res)
		res.print(os.Stdout)
		if ctx.Err() != nil {
			break
		}
		if res.Result == passed && !o.keep {
			os.RemoveAll(filepath.Join(dir, s.name))
		}
	}
	fmt.Println()
	r.print(os.Stdout)
	os.Remove(dir) // if nothing is left in it
	if _, err := os.Stat(dir); err == nil {
		fmt.Println("logs and timelines:", dir)
	}
	if o.report != "" {
		if err := r.write(o.report); err != nil {
			return false, err
		}
	}
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	return r.passed(), nil
}

// buildSDKs builds the drivers. A lack of tools leaves an SDK out, in CI it is
// an error.
func buildSDKs(suite, names string) ([]*drivers.SDK, error) {
	place := drivers.Place(suite)
	all := []*drivers.SDK{
		place.Go("go", place.NewestGo()),
		place.Java("java2", drivers.Java2),
		place.Java("java3", drivers.Java3),
		place.Python("python", drivers.Python),
	}
	var list []*drivers.SDK
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(all, func(s *drivers.SDK) bool { return s.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no SDK %q", name)
		}
		s := all[i]
		if missing := s.Missing(); len(missing) > 0 {
			err := fmt.Errorf("%s needs %s: sudo apt-get install %s", s.Name, missing[0].Program, missing[0].Package)
			if os.Getenv("CI") == "true" {
				return nil, err
			}
			fmt.Println("left out:", err)
			continue
		}
		fmt.Printf("building the driver of %s %s\n", s.Name, s.Version)
		if err := s.Build(); err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	if len(list) == 0 {
		return nil, errors.New("no SDK can be driven on this machine")
	}
	return list, nil
}

// play runs one scenario from an empty cluster to the verdict.
func play(ctx context.Context, o *options, sc *scenario, sdks []*drivers.SDK, dir string) (res *result) {
	start := time.Now()
	res = &result{Name: sc.name, Says: sc.says, Result: passed, Verdict: &verdict.Verdict{}}
	defer func() { res.Seconds = time.Since(start).Seconds() }()
	skip := func(why string) *result {
		res.Result, res.Why = skipped, why
		return res
	}
	fail := func(err error) *result {
		res.Result, res.Why = failed, err.Error()
		return res
	}
	names := []string{"a", "b", "c"}
	if o.nodes == 1 {
		if sc.three {
			return skip("it needs three nodes")
		}
		names = []string{"b"}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fail(err)
	}
	s := &stage{rec: newRecorder(), out: os.Stdout, dir: dir, dialable: !sc.undialable}
	var err error
	if sc.cuts {
		if os.Geteuid() != 0 {
			return skip("it cuts links between network namespaces, which only root can make")
		}
		if s.network, err = newNetwork(names...); err != nil {
			// Root of a container may not be allowed to.
			return skip(fmt.Sprintf("it cuts links between network namespaces, which cannot be made here: %v", err))
		}
		defer func() {
			if err := s.network.close(); err != nil {
				fail(fmt.Errorf("removing the network: %w", err))
			}
		}()
	}
	if s.cluster, err = newCluster(o.bin, dir, names, s.network); err != nil {
		return fail(err)
	}
	defer s.close()
	p := &plan{sdks: sdks, providers: o.providers, subscribers: o.subscribers}
	if sc.doomed {
		p.doomed, p.doomedOn = max(len(sdks), o.providers/8), "b"
	}
	if err := s.setUp(ctx, p); err != nil {
		return fail(fmt.Errorf("setting up: %w", err))
	}
	res.Providers, res.Subscribers = o.providers, o.subscribers

	if sc.stable {
		const age = 65 * time.Second
		s.say("waiting until the nodes have been up for %v", age)
		if err := sleep(ctx, age-time.Since(s.started)); err != nil {
			return fail(err)
		}
	}
	s.rec.begin()
	expect, err := sc.play(ctx, s)
	t := s.rec.finish()
	if err := writeJSON(filepath.Join(dir, "timeline.json"), t); err != nil {
		return fail(err)
	}
	if err != nil {
		return fail(err)
	}
	res.Verdict = verdict.Judge(t, expect)
	s.fence(ctx)
	s.check(ctx)
	if res.Verify, err = s.cluster.verify(ctx); err != nil {
		s.fault("%v", err)
	}
	res.Verdict.Faults = append(res.Verdict.Faults, s.faults...)
	res.Notes, res.Marks = s.notes, t.Marks
	if !res.Verdict.Passed() {
		res.Result = failed
	}
	if ctx.Err() != nil {
		return fail(context.Cause(ctx))
	}
	return res
}
