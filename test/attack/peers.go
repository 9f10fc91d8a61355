package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"
)

// A peerAttack mistreats the ports between the nodes of a cluster.
type peerAttack struct {
	name, expect string
	run          func(*field) (seen string, err error)
	beside       bool  // waits more than it works, and touches nothing that the others look at
	lines        int   // warnings and errors that each node may log about it; 0: 25
	grows        int64 // what the memory of a node may grow by meanwhile; 0: 192 MiB
}

var peerAttacks = []peerAttack{
	{name: "peer: hellos", expect: "own id, other cluster, no wire version, half and huge ones are refused, counted, and logged once", run: strangeHellos},
	{name: "peer: strangers", expect: "whoever is no member is heard and not believed, and leaves nothing", run: strangers},
	{name: "peer: impostor", expect: "a Hello in the name of a living member ends nobody's life", run: impostor},
	{name: "peer: slow", expect: "connections that say nothing, half a preface or no Hello are closed after seconds", run: slowPeers, beside: true},
	{name: "peer: broken messages", expect: "counted, the stream stays; oversized ones end it", run: brokenMessages},
	{name: "peer: bad frames", expect: "gaps, wrong hashes, wrong order, strange owners and replays change nothing", run: badFrames},
	{name: "peer: endless parts", expect: "parts of frames that never end cost little", run: endlessParts},
	{name: "peer: unknown kinds", expect: "kept and handed on", run: unknownKinds},
	{name: "peer: pulls", expect: "unknown lives are refused, many whole ones are served, unread ones end", run: pulls},
	{name: "peer: calls", expect: "Forward takes writes of HTTP clients and no more; floods are answered; nobody calls without a name", run: peerCalls},
	{name: "peer: never reads", expect: "its stream is closed after 10 s, others do not wait for it", run: neverReads, beside: true},

	{name: "raft: hellos", expect: "wrong, half and silent ones are refused and counted; nobody throws a log away for one", run: raftHellos, beside: true},
	{name: "raft: garbage", expect: "noise, giant lengths, floods of nothing behind a right hello: closed, memory stays low", run: raftGarbage},
	{name: "raft: connections", expect: "1,200 that are let in and silent: the longest silent go, nodes find room", run: raftConnections},
	{name: "raft: requests", expect: "absurd terms, entries, configurations and snapshots are refused by a living node; after elections and replays the group heals", run: raftRequests},
	{name: "raft: half a snapshot", expect: "a follower waits for the rest for some seconds, then follows", run: halfSnapshot},
	{name: "raft: calls", expect: "bad commands never get into the log, an id counts once, ConfirmProbe is no port scanner", run: raftCalls, grows: 256 << 20},

	{name: "gossip: garbage", expect: "thrown away, on UDP and TCP", run: gossipGarbage, lines: 60},
	{name: "gossip: user messages", expect: "bad headers and senders that are no members are counted and thrown away", run: gossipUser},
	{name: "gossip: keys", expect: "without the key, or with another, nobody gets in or is told anything, at the Raft port neither", run: keys, beside: true},

	{name: "node: twin", expect: "of two processes with one data directory one is a member; the other is reported", run: twin, beside: true},
	{name: "node: foreign cluster", expect: "two clusters that join each other stay two", run: foreignCluster, beside: true},
	{name: "node: clocks", expect: "an hour off is flagged and works, 26 hours are refused, a clock set back is no matter", run: clocks, beside: true},
	{name: "node: files", expect: "a damaged snapshot or list of members is done without; a damaged identity stops the start and says so", run: damagedFiles, beside: true},
	{name: "node: own life", expect: "a node that is told more of its life than it wrote starts a new one, the data stay right", run: ownLife},
	{name: "peer: heads", expect: "a million heads of unknown lives, far clocks and replays: bounded, the lives of members have room", run: manyHeads, grows: 256 << 20},
	{name: "peer: clock ratchet", expect: "clocks follow a member by a day at most, however often it is told", run: ratchet},
}

// The field is what peer attacks get.
type field struct {
	*trio
	ctx context.Context
}

func runPeers(ctx context.Context, bin string, only *regexp.Regexp) error {
	began := time.Now()
	c, err := startTrio(ctx, bin, "")
	if err != nil {
		return err
	}
	keep := true // the logs, where something is wrong
	defer func() {
		if !keep {
			os.RemoveAll(c.dir)
		}
	}()
	w, err := startWitnesses(c.nodes[:])
	if err != nil {
		return errors.Join(err, c.stop())
	}
	time.Sleep(time.Second)
	base := make([]vitals, len(c.nodes))
	for i, s := range c.nodes {
		if base[i], err = s.vitals(true); err != nil {
			return errors.Join(err, w.close(), c.stop())
		}
	}
	w.report()
	fmt.Printf("three nodes after %.1f s; attack; seconds; the witnesses' slowest query and push; the largest node's memory at its peak\n", time.Since(began).Seconds())

	failed, ran := 0, 0
	tell := func(at *peerAttack, took time.Duration, more, seen string, problems []string) {
		ran++
		verdict := "ok  "
		if len(problems) > 0 {
			verdict = "FAIL"
			failed++
		}
		fmt.Printf("%s %-22s %5.1fs  %s  %s\n", verdict, at.name, took.Seconds(), more, seen)
		for _, p := range problems {
			fmt.Printf("       %s\n", strings.ReplaceAll(p, "\n", "\n       "))
		}
	}
	f := &field{c, ctx}
	type result struct {
		at   *peerAttack
		took time.Duration
		seen string
		err  error
	}
	run := func(at *peerAttack) result {
		start := time.Now()
		seen, err := at.run(f)
		return result{at, time.Since(start), seen, err}
	}
	beside := make(chan result, len(peerAttacks))
	waits := 0
	for i := range peerAttacks {
		if at := &peerAttacks[i]; at.beside && only.MatchString(at.name) {
			waits++
			go func() { beside <- run(at) }()
		}
	}
	for i := range peerAttacks {
		at := &peerAttacks[i]
		if at.beside || !only.MatchString(at.name) || ctx.Err() != nil {
			continue
		}
		var tallies []*tally
		start := make([]int64, len(c.nodes))
		for n, s := range c.nodes {
			if err := c.alive(); err != nil {
				return err
			}
			t, err := s.tally()
			if err != nil {
				return err
			}
			tallies = append(tallies, t)
			start[n], _ = s.memory("VmRSS")
			s.resetPeak()
		}
		r := run(at)
		problems := split(r.err)
		errs, query, push := w.report()
		for _, e := range errs {
			problems = append(problems, "witness: "+e)
		}
		top := int64(0)
		for n, s := range c.nodes {
			if !s.alive() {
				problems = append(problems, fmt.Sprintf("node %d has ended: %v, see %s", n, s.exit, s.logFile()))
				continue
			}
			peak, _ := s.memory("VmHWM")
			top = max(top, peak)
			if peak-start[n] > max(at.grows, 192<<20) {
				problems = append(problems, fmt.Sprintf("memory of node %d grew by %d MiB", n, (peak-start[n])>>20))
			}
			lines, err := tallies[n].logged()
			if err != nil {
				problems = append(problems, err.Error())
			}
			most := at.lines
			if most == 0 {
				most = 25
			}
			if loud := containsAll(lines, `"level":"warn"`) + containsAll(lines, `"level":"error"`); loud > most {
				problems = append(problems, fmt.Sprintf("node %d logged %d warnings and errors, see %s", n, loud, s.logFile()))
			}
			for _, l := range lines {
				if len(l) > 8<<10 {
					problems = append(problems, fmt.Sprintf("node %d logged a line of %d bytes: %s", n, len(l), clip(l)))
					break
				}
			}
		}
		tell(at, r.took, fmt.Sprintf("[witnesses %3d/%3d ms; %3d MiB]", query.Milliseconds(), push.Milliseconds(), top>>20), r.seen, problems)
	}
	for range waits {
		r := <-beside
		tell(r.at, r.took, "[beside the others]", r.seen, split(r.err))
	}

	// All together must not have left anything either.
	var problems []string
	if err := c.meet(ctx, 20*time.Second); err != nil {
		problems = append(problems, err.Error())
	}
	if err := c.agree(ctx, 10*time.Second); err != nil {
		problems = append(problems, err.Error())
	}
	errs, _, _ := w.report()
	for _, e := range errs {
		problems = append(problems, "witness: "+e)
	}
	now := make([]vitals, len(c.nodes))
	for i, s := range c.nodes {
		// Nodes that were there for a while stay in the log, and the one that
		// leads looks after each: two goroutines for the log, one for the link.
		extra := 0
		if st, err := s.raft(ctx); err == nil {
			extra = max(0, len(st.Servers)-len(c.nodes))
		}
		v, unsettled := settle(s, base[i], func() vitals { return vitals{goroutines: 30 + 4*extra, instances: 1 << 20} })
		now[i] = v
		for _, p := range unsettled {
			problems = append(problems, fmt.Sprintf("node %d: %s", i, p))
		}
	}
	w.close()
	if err := c.stop(); err != nil {
		problems = append(problems, err.Error())
	}
	for i, s := range c.nodes {
		for _, b := range s.bugs() {
			problems = append(problems, fmt.Sprintf("node %d: %s", i, b))
		}
	}
	for _, p := range problems {
		fmt.Println("FAIL at the end:", p)
	}
	fmt.Printf("%d attacks between nodes in %.0f s, %d failed; goroutines %d→%d, files %d→%d, heap %d→%d MiB, memory %d→%d MiB\n", ran, time.Since(began).Seconds(), failed,
		base[0].goroutines, now[0].goroutines, base[0].fds, now[0].fds, base[0].heap>>20, now[0].heap>>20, base[0].rss>>20, now[0].rss>>20)
	if failed > 0 || len(problems) > 0 || ctx.Err() != nil {
		return errors.New("the cluster does not withstand all of it")
	}
	keep = false
	return nil
}
