package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A clusterRun measures three nodes as processes of this machine.
type clusterRun struct {
	ctx   context.Context
	bin   string
	quick bool // shorter and fewer rounds: to see that it works
	rows  []row
}

// A row is one line of the table. Verdict is empty where there is no target.
type row struct{ what, value, target, verdict string }

var clusterScenarios = []struct {
	name string
	run  func(*clusterRun) error
}{
	{"push", (*clusterRun).push},
	{"lag", (*clusterRun).lag},
	{"pull", (*clusterRun).pull},
	{"rest", (*clusterRun).rest},
	{"failover", (*clusterRun).failover},
	{"beats", (*clusterRun).beats},
	{"persist", (*clusterRun).persist},
	{"restore", (*clusterRun).restore},
}

func runCluster(args []string) error {
	f := flag.NewFlagSet("cluster", flag.ExitOnError)
	bin := f.String("bin", "bin/starling", "the node's program, which is also the client")
	out := f.String("out", "docs/BENCHMARKS-cluster.md", "file whose figures are replaced")
	commit := f.String("commit", "unknown", "what was measured")
	only := f.String("only", "", "scenarios to run, comma list; the file is not written")
	quick := f.Bool("quick", false, "short and rough; the file is not written")
	_ = f.Parse(args)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	begin, before := time.Now(), load()
	r := &clusterRun{ctx: ctx, bin: *bin, quick: *quick}
	for _, s := range clusterScenarios {
		if *only != "" && !slices.Contains(strings.Split(*only, ","), s.name) {
			continue
		}
		start := time.Now()
		if err := s.run(r); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		r.say("%s took %v", s.name, time.Since(start).Round(time.Second))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Measured %s at commit %s with %s on %s. The run took %v; load average of the machine %s before and %s after it.\n\n",
		time.Now().UTC().Format(time.DateOnly), *commit, runtime.Version(), machine(), time.Since(begin).Round(time.Second), before, load())
	b.WriteString("| What | Measured | Target | |\n|---|---|---|---|\n")
	for _, row := range r.rows {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", row.what, row.value, row.target, row.verdict)
	}
	fmt.Print(b.String())
	if *only != "" || *quick {
		return nil
	}
	return replaceFigures(*out, b.String())
}

func (r *clusterRun) say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// add appends a line; ok is whether its target was met.
func (r *clusterRun) add(what, value, target string, ok bool) {
	verdict := ""
	if target != "" {
		verdict = met(ok)
	}
	r.rows = append(r.rows, row{what, value, target, verdict})
}

// pick is the first in a real run, the second in a quick one.
func pick[T any](r *clusterRun, real, quick T) T {
	if r.quick {
		return quick
	}
	return real
}

var errInterrupted = errors.New("interrupted")

// settle is how long it takes until a cluster where nothing changes any more
// has written its last snapshot.
const settle = 12 * time.Second

// A group is the nodes of a cluster, those that run and those that are still
// to be started.
type group struct {
	run   *clusterRun
	dir   string
	ports []int
	nodes []*server // nil: does not run
	more  []string  // arguments of the nodes
}

// nodes prepares a cluster of three and starts the first n.
func (r *clusterRun) nodes(n int, args ...string) (*group, error) {
	dir, err := os.MkdirTemp("", "starling-bench")
	if err != nil {
		return nil, err
	}
	g := &group{run: r, dir: dir, nodes: make([]*server, 3), more: args}
	for range g.nodes {
		port, err := freeNodePort(g.ports)
		if err != nil {
			return g, errors.Join(err, g.stop())
		}
		g.ports = append(g.ports, port)
	}
	for i := range n {
		if err := g.exec(i); err != nil {
			return g, errors.Join(err, g.stop())
		}
	}
	for i := range n {
		if _, err := g.untilReady(i); err != nil {
			return g, errors.Join(err, g.stop())
		}
	}
	return g, nil
}

// freeNodePort finds a port such that the four that follow from it are free
// too, and not those of others. It stays below the ports that the system gives
// to connections: there will be thousands of them.
func freeNodePort(others []int) (int, error) {
next:
	for range 1000 {
		port := 12_000 + rand.N(18_000)
		for _, o := range others {
			if d := max(port-o, o-port); slices.Contains([]int{0, 1, 98, 99, 902, 903, 1000, 1001, 1902, 1903, 2000, 2001}, d) {
				continue next
			}
		}
		for _, p := range []int{port, port + 1000, port + 1001, port - 1000, port - 902} {
			l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(p))
			if err != nil {
				continue next
			}
			l.Close()
		}
		u, err := net.ListenPacket("udp", "127.0.0.1:"+strconv.Itoa(port-902))
		if err != nil {
			continue next
		}
		u.Close()
		return port, nil
	}
	return 0, errors.New("no free ports")
}

func (g *group) addr(i int) string { return "127.0.0.1:" + strconv.Itoa(g.ports[i]) }

func (g *group) addrs(of ...int) string {
	var all []string
	for _, i := range of {
		all = append(all, g.addr(i))
	}
	return strings.Join(all, ",")
}

// exec starts node i with an empty data directory.
func (g *group) exec(i int) error {
	if err := os.RemoveAll(g.data(i)); err != nil {
		return err
	}
	return g.again(i)
}

func (g *group) name(i int) string { return string(rune('a' + i)) }

func (g *group) data(i int) string { return filepath.Join(g.dir, g.name(i)) }

// again starts node i with what it had.
func (g *group) again(i int) error {
	data, name := g.data(i), g.name(i)
	s := &server{port: g.ports[i], dir: data}
	// All clients come from one address here.
	s.cmd = exec.Command(g.run.bin, append([]string{"serve", "--port", strconv.Itoa(g.ports[i]), "--data-dir", data, "--name", name, "--join", g.addrs(0, 1, 2), "--expect", "2",
		"--max-connections-per-address", "50000", "--max-setup-rate-per-address", "5000", "--log-format", "json", "--log-level", "error"}, g.more...)...)
	s.cmd.Stderr = os.Stderr
	if err := s.cmd.Start(); err != nil {
		return err
	}
	g.nodes[i] = s
	return nil
}

func (g *group) untilReady(i int) (time.Time, error) {
	return g.run.until(30*time.Second, time.Millisecond, "node "+g.addr(i)+" is ready", func() bool {
		resp, err := http.Get("http://" + g.addr(i) + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// until asks again and again and returns when it was first so.
func (r *clusterRun) until(patience, pause time.Duration, what string, is func() bool) (time.Time, error) {
	for deadline := time.Now().Add(patience); !is(); {
		if time.Now().After(deadline) {
			return time.Time{}, fmt.Errorf("after %v it is not so yet that %s", patience, what)
		}
		if err := r.sleep(pause); err != nil {
			return time.Time{}, err
		}
	}
	return time.Now(), nil
}

func (r *clusterRun) sleep(d time.Duration) error {
	select {
	case <-r.ctx.Done():
		return errInterrupted
	case <-time.After(d):
		return nil
	}
}

// untilShown waits until the nodes show so many instances.
func (g *group) untilShown(patience time.Duration, want int, of ...int) error {
	_, err := g.run.until(patience, 100*time.Millisecond, fmt.Sprintf("%d instances are shown", want), func() bool {
		return !slices.ContainsFunc(of, func(i int) bool { return g.metric(i, "starling_registry_instances") != float64(want) })
	})
	return err
}

// metric is the sum of a metric's series; -1: the node does not tell.
func (g *group) metric(i int, name string) (sum float64) {
	resp, err := http.Get("http://" + g.addr(i) + "/metrics")
	if err != nil {
		return -1
	}
	defer resp.Body.Close()
	found := false
	for s := bufio.NewScanner(resp.Body); s.Scan(); {
		rest, ok := strings.CutPrefix(s.Text(), name)
		if !ok || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			return -1
		}
		sum, found = sum+v, true
	}
	if !found {
		return -1
	}
	return sum
}

// stop ends the nodes, the hard way: what they hold is of no use to anybody.
func (g *group) stop() error {
	for _, s := range g.nodes {
		if s != nil {
			_ = s.cmd.Process.Kill()
		}
	}
	for i, s := range g.nodes {
		if s != nil {
			_ = s.cmd.Wait()
			g.nodes[i] = nil
		}
	}
	return os.RemoveAll(g.dir)
}

// leave ends one node cleanly.
func (g *group) leave(i int) {
	s := g.nodes[i]
	g.nodes[i] = nil
	late := time.AfterFunc(30*time.Second, func() { _ = s.cmd.Process.Kill() })
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	_ = s.cmd.Wait()
	late.Stop()
}

// A clientLoad is a process of starling bench.
type clientLoad struct {
	cmd *exec.Cmd
	out bytes.Buffer
}

func (r *clusterRun) start(args ...string) (*clientLoad, error) {
	l := &clientLoad{cmd: exec.CommandContext(r.ctx, r.bin, append([]string{"bench"}, args...)...)}
	l.cmd.Cancel = func() error { return l.cmd.Process.Signal(syscall.SIGTERM) }
	l.cmd.WaitDelay = 10 * time.Second
	l.cmd.Stdout, l.cmd.Stderr = &l.out, os.Stderr
	return l, l.cmd.Start()
}

// end ends a load whose own end nobody waits for.
func (l *clientLoad) end() {
	_ = l.cmd.Process.Kill()
	_ = l.cmd.Wait()
}

func (r *clusterRun) bench(args ...string) (*result, error) {
	l, err := r.start(append(args, "--json")...)
	if err != nil {
		return nil, err
	}
	err = l.cmd.Wait()
	if r.ctx.Err() != nil {
		return nil, errInterrupted
	}
	res := new(result)
	if json.Unmarshal(l.out.Bytes(), res) != nil {
		return nil, cmp.Or(err, fmt.Errorf("no result of %v", args))
	}
	// Operations that failed are in the result.
	return res, nil
}

// push compares a change's way to a subscriber of the same node and of another
// one with that through a bare server, in turn.
func (r *clusterRun) push() error {
	port, err := freeNodePort(nil)
	if err != nil {
		return err
	}
	bare, err := startEcho("", port)
	if err != nil {
		return err
	}
	defer bare.stop()
	g, err := r.nodes(3)
	if err != nil {
		return err
	}
	defer func() { _ = g.stop() }()
	ways := []struct {
		name string
		args []string
	}{
		{"bare", []string{"--servers", bare.addr()}},
		{"the same node", []string{"--servers", g.addr(0)}},
		{"another node", []string{"--servers", g.addr(0), "--subscribe-server", g.addr(1)}},
	}
	for _, rate := range []int{0, 1000} {
		p50, p99 := make([][]float64, len(ways)), make([][]float64, len(ways))
		for round := range pick(r, 3, 1) {
			for i, way := range ways {
				args := append([]string{"push", "--duration", pick(r, "5s", "2s")}, way.args...)
				if rate > 0 {
					args = append(args, "--load", strconv.Itoa(rate))
				}
				res, err := r.bench(args...)
				if err != nil {
					return err
				}
				if res.Errors > 0 {
					return errors.New(res.FirstError)
				}
				p50[i], p99[i] = append(p50[i], res.P50), append(p99[i], res.P99)
				r.say("push, %d changes/s beside it, round %d, %s: p50 %.2f ms, p99 %.2f ms", rate, round+1, way.name, res.P50, res.P99)
			}
		}
		when := "change of a quiet service to its subscriber"
		if rate > 0 {
			when = fmt.Sprintf("the same beside %d changes a second of other services", rate)
		}
		r.add(when+", through a bare server: p50, p99", millis(median(p50[0]))+", "+millis(median(p99[0])), "", false)
		times := func(v []float64, bare []float64) float64 { return median(v) / max(median(bare), 0.001) }
		same, other := times(p50[1], p50[0]), times(p50[2], p50[0])
		if rate > 0 { // the targets are of a quiet cluster
			r.add("… at the same node: p50, p99", fmt.Sprintf("%s (%.1f × bare), %s", millis(median(p50[1])), same, millis(median(p99[1]))), "", false)
			r.add("… at another node: p50, p99", fmt.Sprintf("%s (%.1f × bare), %s", millis(median(p50[2])), other, millis(median(p99[2]))), "", false)
			continue
		}
		r.add("… at the same node: p50", fmt.Sprintf("%s (%.1f × bare)", millis(median(p50[1])), same), "≤ 3 × bare", same <= 3)
		r.add("… at the same node: p99", millis(median(p99[1])), "≤ 10 ms", median(p99[1]) <= 10)
		r.add("… at another node: p50", fmt.Sprintf("%s (%.1f × bare)", millis(median(p50[2])), other), "≤ 2 ms", median(p50[2]) <= 2)
		r.add("… at another node: p99", millis(median(p99[2])), "≤ 20 ms", median(p99[2]) <= 20)
	}
	return nil
}

func millis(v float64) string {
	switch {
	case v < 10:
		return fmt.Sprintf("%.2f ms", v)
	case v < 100:
		return fmt.Sprintf("%.1f ms", v)
	}
	return fmt.Sprintf("%.0f ms", v)
}

func (r *clusterRun) lag() error {
	g, err := r.nodes(3)
	if err != nil {
		return err
	}
	defer func() { _ = g.stop() }()
	const rate = 5000
	var p50, p99, equal, cpu []float64
	for round := range pick(r, 3, 1) {
		res, err := r.bench("lag", "--servers", g.addrs(0, 1, 2), "--load", strconv.Itoa(rate), "--duration", pick(r, "10s", "4s"))
		if err != nil {
			return err
		}
		if res.Errors > 0 {
			return errors.New(res.FirstError)
		}
		p50, p99, cpu = append(p50, res.P50), append(p99, res.P99), append(cpu, cpuOf(res))
		equal = append(equal, *res.EqualMillis)
		r.say("lag, round %d: %.0f changes/s, p50 %.2f ms, p99 %.2f ms, equal after %.0f ms, CPU %.1f µs", round+1, res.Rate, res.P50, res.P99, *res.EqualMillis, cpuOf(res))
	}
	at := fmt.Sprintf("at %d changes a second on three nodes", rate)
	r.add("change to a subscriber of another node, "+at+": p50", millis(median(p50)), "", false)
	r.add("… p99", millis(median(p99)), "≤ 25 ms", median(p99) <= 25)
	r.add("… CPU of all three nodes per change", fmt.Sprintf("%.0f µs", median(cpu)), "", false)
	r.add("all digests are equal after that load stops", millis(median(equal)), "≤ 1 s", median(equal) <= 1000)
	return nil
}

func (r *clusterRun) pull() error {
	for _, n := range pick(r, []int{100_000, 1_000_000}, []int{20_000}) {
		if err := r.pullOf(n); err != nil {
			return err
		}
	}
	return nil
}

// pullOf fills two nodes and then starts the third.
func (r *clusterRun) pullOf(instances int) error {
	g, err := r.nodes(2)
	if err != nil {
		return err
	}
	defer func() { _ = g.stop() }()
	// Each instance is a publication, and a record, of its own, as it is where
	// each process of a fleet registers itself.
	const clients = 50
	start := time.Now()
	l, err := r.start("idle", "--together", "--servers", g.addrs(0, 1), "--connections", strconv.Itoa(clients), "--instances", strconv.Itoa(instances/clients), "--duration", "10m")
	if err != nil {
		return err
	}
	defer l.end()
	if err := g.untilShown(3*time.Minute, instances, 0, 1); err != nil {
		return err
	}
	r.say("pull: %d instances are there after %v", instances, time.Since(start).Round(time.Second))
	if err := r.sleep(pick(r, settle, time.Second)); err != nil {
		return err
	}
	var took, rss []float64
	for round := range pick(r, 3, 1) {
		begin := time.Now()
		if err := g.exec(2); err != nil {
			return err
		}
		ready, err := g.untilReady(2)
		if err != nil {
			return err
		}
		took = append(took, ready.Sub(begin).Seconds())
		if shown := g.metric(2, "starling_registry_instances"); shown != float64(instances) {
			return fmt.Errorf("the third node is ready with %.0f of %d instances", shown, instances)
		}
		mem, err := resident(g.nodes[2].cmd.Process.Pid)
		if err != nil {
			return err
		}
		rss = append(rss, mem)
		r.say("pull of %d, round %d: ready after %.2f s, %.0f MiB", instances, round+1, ready.Sub(begin).Seconds(), mem)
		g.leave(2)
	}
	target := 0.5
	if instances > 100_000 {
		target = 4
	}
	r.add(fmt.Sprintf("start of a third node until it is ready with %d instances", instances), fmt.Sprintf("%.2f s", median(took)), fmt.Sprintf("≤ %g s", target), median(took) <= target)
	r.add("… its resident memory then", fmt.Sprintf("%.0f MiB, %.0f bytes an instance", median(rss), median(rss)*(1<<20)/float64(instances)), "", false)
	return nil
}

// resident is the memory of a process in MiB.
func resident(pid int) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			return kb / 1024, err
		}
	}
	return 0, errors.New("no VmRSS")
}

// cpuTime is what a process has used, in seconds.
func cpuTime(pid int) (float64, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(f) < 13 {
		return 0, errors.New("/proc/…/stat is too short")
	}
	user, err1 := strconv.ParseFloat(f[11], 64)
	system, err2 := strconv.ParseFloat(f[12], 64)
	return (user + system) / 100, errors.Join(err1, err2)
}

// rest looks at nodes whose cluster has nothing to do. All clients are attached
// to the first node; what the two others do they do for the cluster.
func (r *clusterRun) rest() error {
	counts := pick(r, []int{100, 1000, 10_000}, []int{100, 1000})
	bytes, cpu := make([]float64, len(counts)), make([]float64, len(counts))
	for n, clients := range counts {
		var err error
		if bytes[n], cpu[n], err = r.restWith(clients); err != nil {
			return err
		}
		r.say("rest with %d clients: %.0f bytes/s a node, %.2f ms CPU a second", clients, bytes[n], cpu[n])
	}
	for n, clients := range counts {
		target, ok := "", false
		if n > 0 {
			target, ok = fmt.Sprintf("no more than with %d", counts[0]), bytes[n] <= 1.1*bytes[0]
		}
		r.add(fmt.Sprintf("at rest with %d clients: bytes that a node sends to others", clients), fmt.Sprintf("%.0f a second", bytes[n]), target, ok)
		if n > 0 { // timers of the kernel count in steps of 10 ms
			ok = cpu[n] <= 1.25*cpu[0]+1
		}
		r.add("… CPU of a node that has no clients itself", fmt.Sprintf("%.1f ms a second", cpu[n]), target, ok)
	}
	return nil
}

func (r *clusterRun) restWith(clients int) (bytes, cpu float64, err error) {
	g, err := r.nodes(3)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = g.stop() }()
	l, err := r.start("idle", "--servers", g.addr(0), "--connections", strconv.Itoa(clients), "--duration", "10m")
	if err != nil {
		return 0, 0, err
	}
	defer l.end()
	if err := g.untilShown(2*time.Minute, clients, 0, 1, 2); err != nil {
		return 0, 0, err
	}
	if err := r.sleep(pick(r, settle, 3*time.Second)); err != nil {
		return 0, 0, err
	}
	read := func() (sent, used float64, err error) {
		for i, s := range g.nodes {
			n := g.metric(i, "starling_cluster_sent_bytes_total")
			if n < 0 {
				return 0, 0, errors.New("a node does not tell what it has sent")
			}
			sent += n
			if i > 0 {
				c, err := cpuTime(s.cmd.Process.Pid)
				if err != nil {
					return 0, 0, err
				}
				used += c
			}
		}
		return sent, used, nil
	}
	window := pick(r, 15*time.Second, 3*time.Second)
	sent, used, err := read()
	if err != nil {
		return 0, 0, err
	}
	if err := r.sleep(window); err != nil {
		return 0, 0, err
	}
	sentAfter, usedAfter, err := read()
	return (sentAfter - sent) / 3 / window.Seconds(), (usedAfter - used) * 1000 / 2 / window.Seconds(), err
}

func (r *clusterRun) failover() error {
	g, err := r.nodes(3)
	if err != nil {
		return err
	}
	defer func() { _ = g.stop() }()
	clients := pick(r, 5000, 500)
	res, err := r.bench("failover", "--kill", "--servers", g.addrs(0, 1, 2), "--connections", strconv.Itoa(clients), "--duration", "20s")
	if err != nil {
		return err
	}
	if res.Removals == nil || res.EqualMillis == nil {
		return errors.New(res.FirstError)
	}
	r.say("failover: %d clients, last one back after %.0f ms, %d removals seen, %d errors %s", clients, res.Max, *res.Removals, res.Errors, res.FirstError)
	what := fmt.Sprintf("%d clients of a node that is killed: ", clients)
	r.add(what+"all have connected and registered at the two others", fmt.Sprintf("%.1f s (half of them %.1f s)", res.Max/1000, res.P50/1000), "", false)
	r.add("… then all digests are equal after", millis(*res.EqualMillis), "", false)
	r.add("… instances that subscribers saw missing, until 20 s later", strconv.FormatInt(*res.Removals, 10), "0", *res.Removals == 0)
	r.add("… clients or lists that were not complete in the end", strconv.FormatInt(res.Errors, 10), "0", res.Errors == 0)
	return nil
}

// A beatsResult is what "starling bench beats --json" adds.
type beatsResult struct {
	Flaps        int64   `json:"flapsSeen"`
	FailedAtKill int64   `json:"failedAtKill"`
	Failed       int64   `json:"failedElse"`
	Unknown      int64   `json:"unknown"`
	NotReady     int64   `json:"notReady"`
	P50Before    float64 `json:"p50MillisBefore"`
	P99Before    float64 `json:"p99MillisBefore"`
	GoneFirst    float64 `json:"goneFirstSeconds"`
	GoneLast     float64 `json:"goneLastSeconds"`
	Watchers     int     `json:"watchers"`
	Nodes        []struct {
		Killed         bool    `json:"killed"`
		CPUBefore      float64 `json:"cpuPercentBefore"`
		CPUAfter       float64 `json:"cpuPercentAfter"`
		ResidentBefore int64   `json:"residentBytesBefore"`
		ResidentKill   int64   `json:"residentBytesAtKill"`
		ResidentAfter  int64   `json:"residentBytesAfter"`
	} `json:"nodes"`
}

// beats kills one of three nodes under HTTP clients, and adds a third to two.
// In a quick run, which is what CI has time for, clients and nodes have shorter
// times, and what goes wrong fails it.
func (r *clusterRun) beats() error {
	clients, rate := pick(r, 10_000, 1000), pick(r, 2000, 500)
	args := []string{"--connections", strconv.Itoa(clients), "--load", strconv.Itoa(rate), "--services", strconv.Itoa(clients / 100)}
	settings := pick(r, nil, []string{"--beat-check=1s", "--beat-timeout=4s", "--beat-delete=8s"})
	shortest, longest := pick(r, 30.0, 8.0), pick(r, 36.0, 12.0)
	judge := func(res *result, watchers int) (*beatsResult, error) {
		b := res.Beats
		switch {
		case b == nil:
			return nil, errors.New(res.FirstError)
		case r.quick && res.Errors > 0:
			return nil, fmt.Errorf("%d errors, the first: %s", res.Errors, res.FirstError)
		case r.quick && (b.GoneFirst < shortest || b.GoneLast > longest):
			return nil, fmt.Errorf("clients that fell silent went after %.1f to %.1f s", b.GoneFirst, b.GoneLast)
		case b.Watchers != watchers:
			return nil, fmt.Errorf("%d nodes show all instances in the end, not %d", b.Watchers, watchers)
		}
		return b, nil
	}

	g, err := r.nodes(3, settings...)
	if err != nil {
		return err
	}
	defer func() { _ = g.stop() }()
	res, err := r.bench(append([]string{"beats", "--kill", "--servers", g.addrs(0, 1, 2), "--duration", pick(r, "60s", "12s")}, args...)...)
	if err != nil {
		return err
	}
	b, err := judge(res, 2)
	if err != nil {
		return err
	}
	var cpuBefore, cpuAfter []float64
	var residentBefore, residentKill, residentAfter int64
	for _, n := range b.Nodes {
		cpuBefore = append(cpuBefore, n.CPUBefore)
		if !n.Killed {
			cpuAfter = append(cpuAfter, n.CPUAfter)
			residentBefore, residentKill, residentAfter = max(residentBefore, n.ResidentBefore), max(residentKill, n.ResidentKill), max(residentAfter, n.ResidentAfter)
		}
	}
	r.say("beats: %+v; p50 %.2f ms, p99 %.2f ms", *b, res.P50, res.P99)
	r.add(fmt.Sprintf("%d HTTP clients that beat %d times a second, at three nodes in turn: p50, p99", clients, rate), millis(b.P50Before)+", "+millis(b.P99Before), "p99 ≤ 50 ms", b.P99Before <= 50)
	if len(cpuBefore) > 0 {
		r.add("… CPU of each of the three nodes", fmt.Sprintf("%.1f %% of a processor, %.0f µs a beat", median(cpuBefore), 1e4*3*median(cpuBefore)/float64(rate)), "", false)
	}
	what := "… one node is killed: "
	r.add(what+"living instances that watchers of the others saw missing or unhealthy, in a minute", strconv.FormatInt(b.Flaps, 10), "0", b.Flaps == 0)
	r.add(what+"beats that failed within 2 s of the kill; later", fmt.Sprintf("%d; %d", b.FailedAtKill, b.Failed+b.Unknown), "later none", b.Failed+b.Unknown == 0)
	r.add(what+"p50 and p99 of beats after that, the first seconds included", millis(res.P50)+", "+millis(res.P99), "", false)
	if len(cpuAfter) > 0 {
		r.add(what+"CPU of each of the two others, from 5 s after it", fmt.Sprintf("%.1f %% of a processor", median(cpuAfter)), "", false)
		// They are still taking over then: this finds a leak, no more.
		r.add(what+"memory of the others before it, 5 s after it, at the end", fmt.Sprintf("%d, %d, %d MiB", residentBefore>>20, residentKill>>20, residentAfter>>20), "≤ 1.25 × from the second to the third", residentAfter <= residentKill*5/4)
	}
	r.add("… ten clients fall silent: gone everywhere after", fmt.Sprintf("%.1f to %.1f s", b.GoneFirst, b.GoneLast), fmt.Sprintf("%.0f to %.0f s", shortest, longest), b.GoneFirst >= shortest && b.GoneLast <= longest)
	if err := g.stop(); err != nil {
		return err
	}

	out, err := r.nodes(2, settings...)
	if err != nil {
		return err
	}
	defer func() { _ = out.stop() }()
	l, err := r.start(append([]string{"beats", "--json", "--servers", out.addrs(0, 1, 2), "--duration", pick(r, "60s", "9s")}, args...)...)
	if err != nil {
		return err
	}
	defer l.end()
	if err := out.untilShown(time.Minute, clients, 0, 1); err != nil {
		return err
	}
	if err := r.sleep(pick(r, 20*time.Second, 3*time.Second)); err != nil {
		return err
	}
	if err := out.exec(2); err != nil {
		return err
	}
	if _, err := out.untilReady(2); err != nil {
		return err
	}
	err = l.cmd.Wait()
	res = new(result)
	if json.Unmarshal(l.out.Bytes(), res) != nil {
		return cmp.Or(err, errors.New("no result of beats"))
	}
	if b, err = judge(res, 3); err != nil {
		return err
	}
	r.say("beats, with a third node: %+v; p50 %.2f ms, p99 %.2f ms", *b, res.P50, res.P99)
	r.add("the same clients at two nodes, and a third is started: living instances that watchers of all three saw missing or unhealthy", strconv.FormatInt(b.Flaps, 10), "0", b.Flaps == 0)
	r.add("… beats that failed; that the third sent away because it was not ready", fmt.Sprintf("%d; %d", b.Failed+b.Unknown, b.NotReady), "0 failed", b.Failed+b.Unknown == 0)
	r.add("… p50 and p99 of beats, the start of the third included", millis(res.P50)+", "+millis(res.P99), "", false)
	r.add("… ten clients fall silent: gone everywhere after", fmt.Sprintf("%.1f to %.1f s", b.GoneFirst, b.GoneLast), fmt.Sprintf("%.0f to %.0f s", shortest, longest), b.GoneFirst >= shortest && b.GoneLast <= longest)
	return nil
}
