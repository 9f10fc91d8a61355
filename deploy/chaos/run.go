package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/starling-registry/starling/deploy/chaos/disk"
	"github.com/starling-registry/starling/deploy/chaos/link"
	"github.com/starling-registry/starling/deploy/chaos/report"
	"github.com/starling-registry/starling/deploy/chaos/verdict"
	"github.com/starling-registry/starling/test/compat/drivers"
)

// root tells whether nodes and clients get network namespaces of their own.
// Root of a container may not be allowed to make them.
func (o *options) root() bool {
	return os.Geteuid() == 0 && !o.noRoot && len(o.servers) == 0 && link.RouterAvailable() == nil
}

// abilities are what faults can have with these options on this machine.
func (o *options) abilities() need {
	has := needClients
	if o.byName {
		has |= needName
	}
	if len(o.servers) > 0 {
		if o.control != "" {
			has |= needProcess
		}
		return has
	}
	has |= needLinks | needProcess | needOwn | needLog
	if o.root() && disk.Available() == nil {
		has |= needDisk
	}
	return has
}

// run plays the schedule, or the scenarios one after the other; whether all
// passed is the result.
func run(ctx context.Context, o *options) (bool, error) {
	start := time.Now()
	r := &report.Report{Started: start.UTC().Truncate(time.Second), Command: command(o), Machine: machine()}
	if o.faults == "" && o.scenarios == "" {
		r.Seed = strconv.FormatUint(o.seed, 10)
	}
	colour := colourful(os.Stdout)
	if len(o.servers) == 0 {
		version, err := exec.CommandContext(ctx, o.bin, "version").CombinedOutput()
		if err != nil {
			return false, fmt.Errorf("no server to test: %s version: %w; make build makes one, --bin names another", o.bin, err)
		}
		r.Server = strings.TrimSpace(string(version))
	}
	if err := link.RouterAvailable(); err != nil && os.Geteuid() == 0 && !o.noRoot && len(o.servers) == 0 {
		fmt.Fprintf(o.out, "as without root: a network of its own %v\n", err)
	}
	sdks, leftOut, err := buildSDKs(o.out, o.suite, o.sdks)
	if err != nil {
		return false, err
	}
	for _, s := range sdks {
		r.SDKs = append(r.SDKs, s.Name+" "+s.Version)
	}
	list, err := o.plays()
	if err != nil {
		return false, err
	}
	dir, keep, err := newPlace()
	if err != nil {
		return false, err
	}
	defer keep()
	for _, sc := range list {
		fmt.Fprintf(o.out, "== %s: %s\n", sc.name, sc.says)
		res := play(ctx, o, sc, sdks, filepath.Join(dir, sc.name))
		res.Notes = leftOut
		if len(list) > 1 {
			one := *o
			one.scenarios = sc.name
			res.Command = command(&one)
		}
		r.Runs = append(r.Runs, res)
		if len(list) > 1 {
			report.TextRun(o.out, res, colour)
		}
		stopped := ctx.Err() != nil
		if (res.Result == report.Passed || stopped) && !o.keep {
			os.RemoveAll(filepath.Join(dir, sc.name))
		}
		if stopped {
			break
		}
	}
	fmt.Fprintln(o.out)
	r.Took = time.Since(start)
	report.Text(o.out, r, colour)
	keep()
	if isThere(dir) {
		fmt.Fprintln(o.out, "logs and timelines:", dir)
	}
	if err := writeReports(o.report, r); err != nil {
		return false, err
	}
	fmt.Fprintln(o.out, "report:", filepath.Join(o.report, "report.html"))
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	return r.Passed(), nil
}

// command is what plays the same again.
func command(o *options) string {
	var text strings.Builder
	fmt.Fprintf(&text, "deploy/chaos/chaos.sh --seed %d --sdks %s --providers %d --subscribers %d", o.seed, o.sdks, o.providers, o.subscribers)
	for _, f := range []struct {
		given bool
		text  string
	}{
		{len(o.servers) == 0, fmt.Sprintf(" --nodes %d", o.nodes)},
		{o.scenarios != "", " --scenario " + o.scenarios},
		{o.faults != "", " --faults " + o.faults},
		{o.faults == "" && o.scenarios == "" && o.last == 0, fmt.Sprintf(" --random %d", o.random)},
		{o.last > 0, " --for " + o.last.String()},
		{o.quick, " --quick"}, {o.byName, " --by-name"}, {o.noWrites, " --no-writes"}, {o.noRoot, " --no-root"},
		{len(o.servers) > 0, " --servers " + strings.Join(o.servers, ",")},
		{o.control != "", " --control " + o.control},
	} {
		if f.given {
			text.WriteString(f.text)
		}
	}
	return text.String()
}

// fromSchedule makes a scenario of the faults that the command line asks for.
func (o *options) fromSchedule() (*scenario, error) {
	d := newDraw(o.seed, o.nodes, o.quick)
	has := o.abilities()
	var list schedule
	var err error
	if o.faults != "" {
		if list, err = parse(o.faults, d); err != nil {
			return nil, err
		}
		for _, g := range list {
			for _, s := range g {
				if lacks := s.fault.needs.lacks(has); lacks != "" {
					return nil, fmt.Errorf("%s needs %s", s.fault.name, lacks)
				}
			}
		}
	} else {
		n := o.random
		if o.last > 0 {
			n = 1 + int(o.last/(5*time.Second)) // more than there will be time for
		}
		able := slices.DeleteFunc(slices.Clone(faults), func(f *fault) bool { return f.needs.lacks(has) != "" })
		if list, err = d.schedule(n, able); err != nil {
			return nil, err
		}
	}
	says := list.String()
	if o.last > 0 {
		says = fmt.Sprintf("faults for %v, from seed %d", o.last, o.seed)
	}
	return &scenario{
		name: "schedule", says: says, free: true, doomed: list.has("die"), disks: list.has("disk-full") || list.has("disk-slow"),
		play: func(ctx context.Context, s *stage) (*verdict.Expectation, error) {
			end := time.Now().Add(o.last)
			for i, g := range list {
				if o.last > 0 && time.Now().After(end) {
					break
				}
				if err := s.playGroup(ctx, fmt.Sprintf("%d of %d", i+1, len(list)), g); err != nil {
					return nil, err
				}
			}
			return nil, nil
		},
	}, nil
}

// play runs one scenario from an empty cluster to the verdict.
func play(ctx context.Context, o *options, sc *scenario, sdks []*drivers.SDK, dir string) (res *report.Run) {
	start := time.Now()
	res = &report.Run{Name: sc.name, Says: sc.says, Result: report.Passed}
	defer func() { res.Took = time.Since(start) }()
	fail := func(err error) *report.Run {
		res.Result, res.Why = report.Failed, err.Error()
		return res
	}
	count := o.nodes
	if sc.nodes > 0 {
		count = sc.nodes
	}
	if least := sc.least(); count < least {
		res.Result, res.Why = report.Skipped, fmt.Sprintf("it needs %d nodes", least)
		return res
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fail(err)
	}
	s := &stage{rec: newRecorder(), out: o.out, dir: dir, dialable: !sc.undialable}
	defer func() {
		if err := s.close(); err != nil {
			fail(err)
		}
	}()
	if err := o.open(ctx, s, sc, newNodeSet(count).running); err != nil {
		return fail(err)
	}
	s.plan = &plan{sdks: sdks, providers: o.providers, subscribers: o.subscribers, spread: !sc.free}
	if sc.doomed {
		s.plan.doomed = max(len(sdks), o.providers/8)
		if !sc.free {
			s.plan.doomedOn = "b"
		}
	}
	if err := s.setUp(ctx); err != nil {
		return fail(fmt.Errorf("setting up: %w", err))
	}
	if sc.stable {
		const age = 65 * time.Second
		s.say("waiting until the nodes have been up for %v", age)
		if err := sleep(ctx, age-time.Since(s.started)); err != nil {
			return fail(err)
		}
	}
	if !o.noWrites && sc.free {
		s.writers.Go(func() { s.writePersistent(s.writing, rand.New(rand.NewPCG(o.seed, 1))) })
	}
	s.rec.begin()
	limits := verdict.Documented()
	if !s.cluster.starling {
		limits = verdict.Definition()
	}
	expect, err := sc.play(ctx, s)
	if err == nil && expect == nil {
		err = s.settle(ctx, limits)
	}
	if err == nil && sc.free {
		s.endWrites()
		s.readKept(ctx)
	}
	t := s.rec.finish()
	res.Timeline = t
	if err := writeTimeline(filepath.Join(dir, "timeline.json"), t); err != nil {
		s.fault("%v", err) // it is in the report too
	}
	if err != nil {
		return fail(err)
	}
	if expect == nil {
		expect = verdict.Derive(t, limits)
	}
	res.Verdict = verdict.Judge(t, expect)
	s.fence(ctx)
	s.check(ctx)
	if res.Verify, err = s.cluster.verify(ctx); err != nil {
		s.fault("%v", err)
	}
	res.Verdict.Add(s.faults...)
	if !res.Verdict.Passed() {
		res.Result = report.Failed
	}
	if ctx.Err() != nil {
		return fail(context.Cause(ctx))
	}
	return res
}
