// Command attack starts a Starling server and mistreats it: broken messages,
// absurd values, rude connections, floods of frames, odd HTTP. Each attack says
// what must come of it; meanwhile a bystander uses the server as an SDK does
// and must notice nothing, and afterwards goroutines, file descriptors and
// memory must be what they were. Then a cluster of three is attacked between its
// nodes, in the same way.
//
//	attack [-bin bin/starling] [-run PATTERN] [-rounds N] [-seed N] [-fuzz 15s] [-soak 30m]
//
// Start reading at the tables in attacks.go and peers.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	bin := flag.String("bin", "bin/starling", "the `file` to attack")
	pattern := flag.String("run", "", "only the attacks whose names match the `regexp`")
	rounds := flag.Int("rounds", 1, "how often everything is done; from 2 on also what takes long")
	seed := flag.Uint64("seed", 0, "of requests made up at random; 0: another one each time")
	fuzz := flag.Duration("fuzz", 15*time.Second, "how long requests are made up for all HTTP endpoints; ten times that if there are several rounds")
	soak := flag.Duration("soak", 0, "instead of attacks, put a server under mixed load for so long")
	list := flag.Bool("list", false, "list the attacks")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	err := errors.New("unexpected arguments")
	switch only, bad := regexp.Compile(*pattern); {
	case flag.NArg() > 0:
	case bad != nil:
		err = bad
	case *list:
		err = nil
		for _, at := range attacks {
			fmt.Printf("%-24s %s\n", at.name, at.expect)
		}
		for _, at := range peerAttacks {
			fmt.Printf("%-24s %s\n", at.name, at.expect)
		}
	case *soak > 0:
		err = runSoak(ctx, *bin, *soak)
	default:
		if *seed == 0 {
			*seed = uint64(time.Now().UnixNano() % 1_000_000)
		}
		err = runAll(ctx, &arena{bin: *bin, long: *rounds > 1, seed: *seed, fuzz: *fuzz}, only, *rounds)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "attack:", err)
		os.Exit(1)
	}
}

// settings of the attacked server: the timers that attacks wait for are
// seconds in place of minutes, and what is kept on purpose is small. Limits are
// the default ones.
var settings = []string{
	"--push-ack-timeout=3s", "--setup-timeout=2s", "--connection-idle=3s", "--detection-answer=1s", "--idle-scan=500ms",
	"--keepalive-time=2s", "--keepalive-timeout=4s", "--keepalive-min=1s",
	"--beat-check=500ms", "--beat-timeout=4s", "--beat-delete=6s",
	"--empty-service-age=1s", "--override-age=1s", "--sweep-period=500ms", "--history-keep=1s", "--history-bytes=1048576",
}

// The arena is what an attack gets.
type arena struct {
	srv  *server
	bin  string
	long bool // there is time for what takes long
	seed uint64
	fuzz time.Duration
}

const settleTime = 15 * time.Second

// runAll attacks one server, and then a cluster.
func runAll(ctx context.Context, a *arena, only *regexp.Regexp, rounds int) error {
	var errs []error
	any := false
	if slices.ContainsFunc(attacks, func(at attack) bool { return only.MatchString(at.name) }) {
		any = true
		errs = append(errs, runAttacks(ctx, a, only, rounds))
	}
	if ctx.Err() == nil && slices.ContainsFunc(peerAttacks, func(at peerAttack) bool { return only.MatchString(at.name) }) {
		any = true
		for range min(rounds, 3) {
			errs = append(errs, runPeers(ctx, a.bin, only))
		}
	}
	if !any {
		return errors.New("no attack has such a name")
	}
	return errors.Join(errs...)
}

func runAttacks(ctx context.Context, a *arena, only *regexp.Regexp, rounds int) error {
	srv, err := startServer(ctx, a.bin, settings...)
	if err != nil {
		return err
	}
	defer os.RemoveAll(srv.dir)
	b, err := startBystander(srv)
	if err != nil {
		return errors.Join(err, srv.stop())
	}
	a.srv = srv
	began := time.Now()
	time.Sleep(1500 * time.Millisecond) // the bystander's first round
	base, err := srv.vitals(true)
	if err != nil {
		return errors.Join(err, srv.stop())
	}
	b.report()
	fmt.Println("attack; seconds; the bystander's slowest query, push and HTTP round; the server's memory at its peak and after")

	// Attacks that are slow because they wait run beside the others; they are
	// few connections each.
	type result struct {
		at   *attack
		took time.Duration
		seen string
		err  error
	}
	run := func(at *attack) result {
		start := time.Now()
		seen, err := at.run(a)
		return result{at, time.Since(start), seen, err}
	}
	failed, ran := 0, 0
	tell := func(r result, more string, problems []string) {
		ran++
		verdict := "ok  "
		if len(problems) > 0 {
			verdict = "FAIL"
			failed++
		}
		fmt.Printf("%s %-22s %5.1fs  %s  %s\n", verdict, r.at.name, r.took.Seconds(), more, r.seen)
		for _, p := range problems {
			fmt.Printf("       %s\n", strings.ReplaceAll(p, "\n", "\n       "))
		}
	}
	var bugs int
	for round := range rounds {
		beside := make(chan result, len(attacks))
		var inFront []*attack
		waits := 0
		var waiting atomic.Int64 // beside attacks that go on
		for i := range attacks {
			at := &attacks[i]
			switch {
			case !only.MatchString(at.name) || at.long && !a.long:
			case at.beside:
				waits++
				waiting.Add(1)
				go func() {
					r := run(at)
					waiting.Add(-1)
					beside <- r
				}()
			default:
				inFront = append(inFront, at)
			}
		}
		if waits > 0 { // what they hold open is not the others' doing
			time.Sleep(500 * time.Millisecond)
		}
		held, err := srv.vitals(false)
		if err != nil {
			return err
		}
		held.goroutines, held.fds = max(0, held.goroutines-base.goroutines), max(0, held.fds-base.fds)
		for _, at := range inFront {
			if ctx.Err() != nil {
				break
			}
			start, err := srv.memory("VmRSS")
			if err != nil {
				return err
			}
			srv.resetPeak()
			r := run(at)
			problems := split(r.err)
			peak, _ := srv.memory("VmHWM")
			now, unsettled := settle(srv, base, func() vitals {
				// Each of them may have a connection that is set up.
				n := int(waiting.Load())
				return vitals{goroutines: held.goroutines + 5*n, fds: held.fds + n, transports: n}
			})
			problems = append(problems, unsettled...)
			errs, query, push, list := b.report()
			for _, e := range errs {
				problems = append(problems, "bystander: "+e)
			}
			if found := srv.bugs(); len(found) > bugs {
				problems = append(problems, found[bugs:]...)
				bugs = len(found)
			}
			if grown := peak - start; grown > max(at.grows, 192<<20) {
				problems = append(problems, fmt.Sprintf("memory grew by %d MiB", grown>>20))
			}
			tell(r, fmt.Sprintf("[bystander %3d/%3d/%3d ms; %3d→%3d MiB, heap %2d]",
				query.Milliseconds(), push.Milliseconds(), list.Milliseconds(), peak>>20, now.rss>>20, now.heap>>20), problems)
			if !srv.alive() {
				return fmt.Errorf("the server has ended: %v, see %s", srv.exit, srv.logFile())
			}
		}
		for range waits {
			r := <-beside
			tell(r, "[beside the others]", split(r.err))
		}
		if rounds > 1 {
			fmt.Printf("== round %d of %d done after %.0f s\n", round+1, rounds, time.Since(began).Seconds())
		}
	}

	// All together must not have left anything either.
	now, problems := settle(srv, base, nothing)
	if errs, _, _, _ := b.report(); len(errs) > 0 {
		problems = append(problems, errs...)
	}
	b.close()
	if err := srv.stop(); err != nil {
		problems = append(problems, err.Error())
	}
	if found := srv.bugs(); len(found) > bugs {
		problems = append(problems, found[bugs:]...)
	}
	for _, p := range problems {
		fmt.Println("FAIL at the end:", p)
	}
	fmt.Printf("%d attacks in %.0f s, %d failed; goroutines %d→%d, files %d→%d, heap %d→%d MiB, memory %d→%d MiB\n", ran, time.Since(began).Seconds(), failed,
		base.goroutines, now.goroutines, base.fds, now.fds, base.heap>>20, now.heap>>20, base.rss>>20, now.rss>>20)
	if failed > 0 || len(problems) > 0 || ctx.Err() != nil || ran == 0 {
		return errors.New("the server does not withstand all of it")
	}
	return nil
}

func split(err error) []string {
	if err == nil {
		return nil
	}
	lines := strings.Split(err.Error(), "\n")
	if n := len(lines); n > 12 {
		lines = append(slices.Clip(lines[:12]), fmt.Sprintf("and %d more", n-12))
	}
	return lines
}

func nothing() vitals { return vitals{} }

// settle waits until the server is what it was before an attack, and what is
// allowed besides.
func settle(srv *server, base vitals, besides func() vitals) (v vitals, problems []string) {
	const slack = 12 // goroutines and files of the bystander come and go
	for start := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		v, err := srv.vitals(false)
		if err != nil {
			return v, []string{err.Error()}
		}
		problems = nil
		allowance := besides()
		over := func(what string, is, was, allowed, slack int) {
			if is > was+allowed+slack {
				problems = append(problems, fmt.Sprintf("%s: %d, %d before", what, is, was))
			}
		}
		over("goroutines", v.goroutines, base.goroutines, allowance.goroutines, slack)
		over("open files", v.fds, base.fds, allowance.fds, slack)
		over("transports", v.transports, base.transports, allowance.transports, 0)
		over("instances", v.instances, base.instances, 0, 0)
		over("subscriptions", v.subscriptions, base.subscriptions, 0, 0)
		if len(problems) == 0 {
			if v, err = srv.vitals(true); err != nil {
				return v, []string{err.Error()}
			}
			over("live heap, MiB", int(v.heap>>20), int(base.heap>>20), 0, 16)
		}
		if len(problems) == 0 || time.Since(start) > settleTime {
			return v, problems
		}
	}
}
