package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// syncRate is how often a second the disk below dir makes a page durable that
// has its place in the file already: the least that a write to a log costs.
func syncRate(dir string, d time.Duration) (float64, error) {
	f, err := os.CreateTemp(dir, "sync")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	page := make([]byte, 4096)
	if _, err := f.Write(page); err != nil {
		return 0, err
	}
	if err := f.Sync(); err != nil {
		return 0, err
	}
	n, begin := 0, time.Now()
	for time.Since(begin) < d {
		if _, err := f.WriteAt(page, 0); err != nil {
			return 0, err
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			return 0, err
		}
		n++
	}
	return float64(n) / time.Since(begin).Seconds(), nil
}

// A persistWay is one kind of load of persistent instances.
type persistWay struct {
	what    string
	clients int
	args    []string
}

var persistWays = []persistWay{
	{"1 client", 1, nil},
	{"64 clients", 64, nil},
	{"256 clients", 256, nil},
	{"64 clients over HTTP", 64, []string{"--http"}},
	{"256 clients, all in one service of 25600 instances", 256, []string{"--services", "1"}},
	{"256 clients, with health checks that nobody answers", 256, []string{"--checks"}},
}

// persist measures the log: a cluster of three, then a node alone.
func (r *clusterRun) persist() error {
	rounds := pick(r, 3, 1)
	var raw []float64
	measure := func(nodes int, servers string, ways []persistWay) error {
		for _, way := range ways {
			var rate, p50, p99, most, cpu []float64
			for round := range rounds {
				n, err := syncRate(os.TempDir(), time.Second)
				if err != nil {
					return err
				}
				raw = append(raw, n)
				res, err := r.bench(append([]string{"persist", "--servers", servers, "--connections", strconv.Itoa(way.clients), "--duration", pick(r, "8s", "3s")}, way.args...)...)
				if err != nil {
					return err
				}
				if res.Errors > 0 {
					return errors.New(res.FirstError)
				}
				rate, p50, p99, most, cpu = append(rate, res.Rate), append(p50, res.P50), append(p99, res.P99), append(most, res.Max), append(cpu, cpuOf(res))
				r.say("persist, nodes %d, %s, round %d: %.0f/s, p50 %.2f ms, p99 %.2f ms, max %.0f ms, CPU %.0f µs; %.0f fdatasync/s", nodes, way.what, round+1, res.Rate, res.P50, res.P99, res.Max, cpuOf(res), n)
			}
			where := "three nodes"
			if nodes == 1 {
				where = "one node"
			}
			target, ok := "", false
			if nodes == 3 && way.clients == 256 && way.args == nil {
				target, ok = "≥ 8000/s, p99 ≤ 40 ms", median(rate) >= 8000 && median(p99) <= 40
			}
			r.add(fmt.Sprintf("writes of persistent instances, %s, %s: rate; p50, p99, max", where, way.what),
				fmt.Sprintf("%.0f/s; %s, %s, %s", median(rate), millis(median(p50)), millis(median(p99)), millis(median(most))), target, ok)
			r.add("… CPU of the nodes per write", fmt.Sprintf("%.0f µs", median(cpu)), "", false)
		}
		return nil
	}

	g, err := r.nodes(3)
	if err != nil {
		return err
	}
	defer func() { _ = g.stop() }()
	if err := g.untilVoting(); err != nil {
		return err
	}
	if err := measure(3, g.addrs(0, 1, 2), pick(r, persistWays, persistWays[:3])); err != nil {
		return err
	}
	if err := g.stop(); err != nil {
		return err
	}
	port, err := freeNodePort(nil)
	if err != nil {
		return err
	}
	alone, err := startNode(r.bin, port)
	if err != nil {
		return err
	}
	defer alone.stop()
	if err := measure(1, alone.addr(), persistWays[:3]); err != nil {
		return err
	}
	r.add("the disk alone, before each of these rounds: fdatasync of one page", fmt.Sprintf("%.0f/s", median(raw)), "", false)
	return nil
}

// untilVoting waits until the three nodes are a group that can write.
func (g *group) untilVoting() error {
	_, err := g.run.until(30*time.Second, 100*time.Millisecond, "three nodes vote and one of them leads", func() bool {
		leads := 0.0
		for i := range g.nodes {
			if g.metric(i, "starling_raft_voters") != 3 {
				return false
			}
			leads += g.metric(i, "starling_raft_leads")
		}
		return leads == 1
	})
	return err
}

// untilKept waits until the nodes show so many persistent instances.
func (g *group) untilKept(want int, of ...int) (time.Time, error) {
	return g.run.until(2*time.Minute, 5*time.Millisecond, fmt.Sprintf("%d persistent instances are shown", want), func() bool {
		for _, i := range of {
			if g.metric(i, "starling_registry_persistent_instances") != float64(want) {
				return false
			}
		}
		return true
	})
}

// restore measures how soon 100,000 persistent instances are there again: at a
// node that starts, and in a new cluster that a backup is restored into.
func (r *clusterRun) restore() error {
	instances := pick(r, 100_000, 20_000)
	g, err := r.nodes(3)
	if err != nil {
		return err
	}
	defer func() { _ = g.stop() }()
	if err := g.untilVoting(); err != nil {
		return err
	}
	empty, err := settled(g.addr(0), g.nodes[0].cmd.Process.Pid)
	if err != nil {
		return err
	}
	const clients = 100
	if res, err := r.bench("persist", "--keep", "--servers", g.addrs(0, 1, 2), "--connections", strconv.Itoa(clients), "--instances", strconv.Itoa(instances/clients), "--duration", "1s"); err != nil {
		return err
	} else if res.Errors > 0 {
		return errors.New(res.FirstError)
	}
	if _, err := g.untilKept(instances, 0, 1, 2); err != nil {
		return err
	}
	full, err := settled(g.addr(0), g.nodes[0].cmd.Process.Pid)
	if err != nil {
		return err
	}
	r.add(fmt.Sprintf("resident memory of a node with %d persistent instances, after they were written", instances),
		fmt.Sprintf("%.0f MiB, %.0f bytes an instance", full, (full-empty)*(1<<20)/float64(instances)), "", false)

	var took, kept []float64
	for range pick(r, 3, 1) {
		g.leave(2)
		begin := time.Now()
		if err := g.again(2); err != nil {
			return err
		}
		ready, err := g.untilReady(2)
		if err != nil {
			return err
		}
		if n := g.metric(2, "starling_registry_persistent_instances"); n != float64(instances) {
			return fmt.Errorf("the node is ready with %.0f of %d persistent instances", n, instances)
		}
		took = append(took, ready.Sub(begin).Seconds())
		mem, err := settled(g.addr(2), g.nodes[2].cmd.Process.Pid)
		if err != nil {
			return err
		}
		kept = append(kept, mem)
		r.say("restore: a node is ready with %d persistent instances after %.2f s, %.0f MiB", instances, took[len(took)-1], mem)
	}
	r.add(fmt.Sprintf("start of a node of three that has %d persistent instances, until it is ready", instances), fmt.Sprintf("%.2f s", median(took)), "", false)
	r.add("… its resident memory then", fmt.Sprintf("%.0f MiB, %.0f bytes an instance", median(kept), (median(kept)-empty)*(1<<20)/float64(instances)), "", false)

	file := filepath.Join(os.TempDir(), "starling-bench-"+strconv.Itoa(os.Getpid())+".backup")
	defer os.Remove(file)
	begin := time.Now()
	if err := r.command("backup", file, "--server", g.addr(0)); err != nil {
		return err
	}
	st, err := os.Stat(file)
	if err != nil {
		return err
	}
	r.add("starling backup of them", fmt.Sprintf("%.2f s, %.1f MB", time.Since(begin).Seconds(), float64(st.Size())/1e6), "", false)
	if err := g.stop(); err != nil {
		return err
	}

	var returned, there []float64
	for range pick(r, 3, 1) {
		into, err := r.nodes(3)
		if err != nil {
			return err
		}
		defer func() { _ = into.stop() }()
		if err := into.untilVoting(); err != nil {
			return err
		}
		begin := time.Now()
		if err := r.command("restore", file, "--server", into.addr(0)); err != nil {
			return err
		}
		returned = append(returned, time.Since(begin).Seconds())
		all, err := into.untilKept(instances, 0, 1, 2)
		if err != nil {
			return err
		}
		there = append(there, all.Sub(begin).Seconds())
		if err := r.command("verify", "--server", into.addr(0)); err != nil {
			return fmt.Errorf("after the restore the nodes differ: %w", err)
		}
		r.say("restore: a backup is on all nodes after %.2f s", there[len(there)-1])
		if err := into.stop(); err != nil {
			return err
		}
	}
	r.add("starling restore of that into a new cluster of three, until it returns", fmt.Sprintf("%.2f s", median(returned)), "", false)
	r.add("… until all nodes show them; starling verify finds them equal then", fmt.Sprintf("%.2f s", median(there)), "", false)
	return nil
}

// command runs a command of the program.
func (r *clusterRun) command(args ...string) error {
	c := exec.CommandContext(r.ctx, r.bin, args...)
	c.Stderr = os.Stderr
	if out, err := c.Output(); err != nil {
		return fmt.Errorf("starling %s: %w: %s", args[0], err, out)
	}
	return nil
}

// settled is the resident memory, in MiB, of a process whose garbage has gone.
func settled(addr string, pid int) (float64, error) {
	for range 4 {
		resp, err := http.Get("http://" + addr + "/debug/pprof/heap?gc=1")
		if err != nil {
			return 0, err
		}
		resp.Body.Close()
		time.Sleep(time.Second)
	}
	return resident(pid)
}
