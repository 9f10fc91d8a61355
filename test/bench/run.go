package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A result is what "starling bench --json" prints.
type result struct {
	Scenario        string   `json:"scenario"`
	Connections     int      `json:"connections"`
	Rate            float64  `json:"ratePerSecond"`
	P50             float64  `json:"p50Millis"`
	P99             float64  `json:"p99Millis"`
	Max             float64  `json:"maxMillis"`
	CPUMicros       *float64 `json:"serverCPUMicrosPerOperation"`
	ConnectionBytes *float64 `json:"serverBytesPerConnection"`
	Errors          int64    `json:"errors"`
	FirstError      string   `json:"firstError"`
	EqualMillis     *float64 `json:"equalAfterMillis"`
	Removals        *int64   `json:"removalsSeen"`
	AnswerBytes     int      `json:"answerBytes"`
	Beats           *beatsResult
}

// A scenario is run against the bare server and the node in turn, rounds
// times.
type scenario struct {
	name     string
	rounds   int
	duration time.Duration
	args     []string
}

// key tells a scenario from the same with other arguments.
func (s *scenario) key() string { return strings.Join(append([]string{s.name}, s.args...), " ") }

var scenarios = []scenario{
	{"register", 14, time.Second, nil},
	{"query", 14, time.Second, nil},
	{"push", 4, 6 * time.Second, nil},
	{"fan-out", 4, 6 * time.Second, nil},
	{"idle", 2, 15 * time.Second, nil},
	{"storm", 2, time.Second, nil},
	{"http-list", 10, 2 * time.Second, nil},
	{"http-list", 10, 2 * time.Second, []string{"--instances", "1"}},
	{"http-beat", 10, 2 * time.Second, nil},
	{"http-full-beat", 10, 2 * time.Second, nil},
	{"http-register", 10, 2 * time.Second, nil},
}

// A figure is one line of the table.
type figure struct {
	what   string
	unit   string
	of     string // scenario
	value  func(*result) float64
	ratio  float64 // target as a multiple of the bare server; 0: none
	bound  float64 // target in the unit; 0: none
	digits int
}

var figures = []figure{
	{"CPU of the server per registration", "µs", "register", cpuOf, 1.15, 0, 1},
	{"registrations per second, 64 connections", "/s", "register", func(r *result) float64 { return r.Rate }, 0, 0, 0},
	{"registration, p50", "ms", "register", func(r *result) float64 { return r.P50 }, 0, 0, 2},
	{"registration, p99", "ms", "register", func(r *result) float64 { return r.P99 }, 0, 0, 2},
	{"CPU of the server per query of 20 instances", "µs", "query", cpuOf, 1.10, 0, 1},
	{"queries per second, 64 connections", "/s", "query", func(r *result) float64 { return r.Rate }, 0, 0, 0},
	{"query, p50", "ms", "query", func(r *result) float64 { return r.P50 }, 0, 0, 2},
	{"query, p99", "ms", "query", func(r *result) float64 { return r.P99 }, 0, 0, 2},
	{"change of a quiet service to its subscriber, p50", "ms", "push", func(r *result) float64 { return r.P50 }, 3, 0, 2},
	{"change of a quiet service to its subscriber, p99", "ms", "push", func(r *result) float64 { return r.P99 }, 0, 10, 2},
	{"change to each of 2,000 subscribers, p50", "ms", "fan-out", func(r *result) float64 { return r.P50 }, 0, 0, 1},
	{"change to each of 2,000 subscribers, p99", "ms", "fan-out", func(r *result) float64 { return r.P99 }, 1.4, 0, 1},
	{"CPU of the server per message of that fan-out", "µs", "fan-out", cpuOf, 0, 0, 1},
	{"memory per connection with one instance and one subscription", "KiB", "idle", func(r *result) float64 {
		if r.ConnectionBytes == nil {
			return 0
		}
		return *r.ConnectionBytes / 1024
	}, 0, 30, 1},
	{"CPU of the server to set up such a connection", "µs", "idle", cpuOf, 0, 0, 0},
	{"2,000 connections break, come back and say all again: the last one", "ms", "storm", func(r *result) float64 { return r.Max }, 0, 0, 0},
}

func init() {
	for _, s := range []struct {
		one, many, key string
		ratio          float64
	}{
		{"list of 20 instances over HTTP", "lists", "http-list", 1.3},
		{"list of one instance", "lists", "http-list --instances 1", 0},
		{"beat without a body", "beats", "http-beat", 1.3},
		{"beat with everything", "beats", "http-full-beat", 0},
		{"registration over HTTP of what is there", "registrations", "http-register", 0},
	} {
		figures = append(figures,
			figure{"CPU of the server per " + s.one, "µs", s.key, cpuOf, s.ratio, 0, 1},
			figure{"… " + s.many + " per second, 64 connections", "/s", s.key, func(r *result) float64 { return r.Rate }, 0, 0, 0},
			figure{"… p50", "ms", s.key, func(r *result) float64 { return r.P50 }, 0, 0, 2},
			figure{"… p99", "ms", s.key, func(r *result) float64 { return r.P99 }, 0, 0, 2})
	}
}

func cpuOf(r *result) float64 {
	if r.CPUMicros == nil {
		return 0
	}
	return *r.CPUMicros
}

func run(args []string) error {
	f := flag.NewFlagSet("run", flag.ExitOnError)
	bin := f.String("bin", "bin/starling", "the node's program, which is also the client")
	out := f.String("out", "docs/BENCHMARKS.md", "file whose figures are replaced")
	commit := f.String("commit", "unknown", "what was measured")
	only := f.String("only", "", "scenarios to run, comma list; the file is not written")
	_ = f.Parse(args)
	begin := time.Now()
	before := load()

	results := map[string][2][]*result{} // bare, node
	for _, s := range scenarios {
		if *only != "" && !slices.Contains(strings.Split(*only, ","), s.name) {
			continue
		}
		var both [2][]*result
		for round := range s.rounds {
			for i, start := range []func(string, int) (*server, error){startEcho, startNode} {
				r, err := measure(*bin, s, start)
				if err != nil {
					return fmt.Errorf("%s: %w", s.key(), err)
				}
				both[i] = append(both[i], r)
				fmt.Fprintf(os.Stderr, "%-14s %d %s: %.0f/s, p50 %.2f ms, p99 %.2f ms, CPU %.1f µs, errors %d\n",
					s.name, round+1, []string{"bare", "node"}[i], r.Rate, r.P50, r.P99, cpuOf(r), r.Errors)
			}
			if bare, node := both[0][round].AnswerBytes, both[1][round].AnswerBytes; max(bare, node)-min(bare, node) > 4 {
				return fmt.Errorf("%s: the bare server answers with %d bytes, the node with %d", s.key(), bare, node)
			}
		}
		results[s.key()] = both
	}
	ready, resident, err := startTimes(*bin)
	if err != nil {
		return err
	}
	text := report(results, ready, resident, *commit, time.Since(begin), before)
	fmt.Print(text)
	if *only != "" {
		return nil
	}
	return replaceFigures(*out, text)
}

// A server is a process with a main port; gRPC is 1000 above it.
type server struct {
	cmd  *exec.Cmd
	port int
	dir  string
}

func (s *server) addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	_ = s.cmd.Wait()
	_ = os.RemoveAll(s.dir)
}

func startEcho(_ string, port int) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &server{cmd: exec.Command(self, "echo", "127.0.0.1:"+strconv.Itoa(port), "127.0.0.1:"+strconv.Itoa(port+1000)), port: port}
	return s, s.start(func() bool {
		c, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port+1000))
		if err != nil {
			return false
		}
		c.Close()
		return true
	})
}

func startNode(bin string, port int) (*server, error) {
	dir, err := os.MkdirTemp("", "starling-bench")
	if err != nil {
		return nil, err
	}
	s := &server{port: port, dir: dir}
	s.cmd = exec.Command(bin, "serve", "--port", strconv.Itoa(port), "--data-dir", filepath.Join(dir, "data"), "--name", "bench", "--log-format", "json", "--log-level", "warn")
	return s, s.start(func() bool {
		r, err := http.Get("http://" + s.addr() + "/readyz")
		if err != nil {
			return false
		}
		r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
}

func (s *server) start(ready func() bool) error {
	s.cmd.Stderr = os.Stderr
	if err := s.cmd.Start(); err != nil {
		return err
	}
	for deadline := time.Now().Add(10 * time.Second); !ready(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			s.stop()
			return errors.New("the server does not get ready")
		}
	}
	return nil
}

func measure(bin string, s scenario, start func(string, int) (*server, error)) (*result, error) {
	port, err := freeNodePort(nil)
	if err != nil {
		return nil, err
	}
	srv, err := start(bin, port)
	if err != nil {
		return nil, err
	}
	defer srv.stop()
	if s.name == "idle" {
		// What a connection needs is what is left when the garbage of its
		// set-up has gone. By itself a server that rests collects it within
		// two minutes; here it is made to. That needs a few rounds: the
		// stacks of goroutines shrink by half in each.
		done := make(chan struct{})
		defer close(done)
		go collect(srv.addr(), done)
	}
	c := exec.Command(bin, append([]string{"bench", s.name, "--servers", srv.addr(), "--duration", s.duration.String(), "--server-pid", strconv.Itoa(srv.cmd.Process.Pid), "--json"}, s.args...)...)
	c.Stderr = os.Stderr
	out, err := c.Output()
	if err != nil {
		return nil, err
	}
	r := new(result)
	return r, json.Unmarshal(out, r)
}

func collect(addr string, done <-chan struct{}) {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-done:
			return
		case <-t.C:
		}
		if r, err := http.Get("http://" + addr + "/debug/pprof/heap?gc=1"); err == nil {
			_, _ = io.Copy(io.Discard, r.Body)
			r.Body.Close()
		}
	}
}

// startTimes starts an empty node several times: from the exec to the first
// 200 of /readyz, and the resident memory a second later.
func startTimes(bin string) (millis, mib []float64, err error) {
	for range 7 {
		port, err := freeNodePort(nil)
		if err != nil {
			return nil, nil, err
		}
		begin := time.Now()
		s, err := startNode(bin, port)
		if err != nil {
			return nil, nil, err
		}
		millis = append(millis, float64(time.Since(begin).Microseconds())/1000)
		time.Sleep(time.Second)
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
		s.stop()
		if err != nil {
			return nil, nil, err
		}
		for line := range strings.Lines(string(status)) {
			if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
				kb, _ := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
				mib = append(mib, kb/1024)
			}
		}
	}
	return millis, mib, nil
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	if n := len(v); n == 0 {
		return 0
	} else if n%2 == 1 {
		return v[n/2]
	} else {
		return (v[n/2-1] + v[n/2]) / 2
	}
}

func report(results map[string][2][]*result, ready, resident []float64, commit string, took time.Duration, loadBefore string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured %s at commit %s with %s on %s. The run took %v; load average of the machine %s before and %s after it.\n\n",
		time.Now().UTC().Format(time.DateOnly), commit, runtime.Version(), machine(), took.Round(time.Second), loadBefore, load())
	b.WriteString("| What | Bare | Starling | Multiple (all rounds) | Target | |\n|---|---|---|---|---|---|\n")
	for _, f := range figures {
		both, ok := results[f.of]
		if !ok {
			continue
		}
		var bare, node, ratios []float64
		for i := range both[0] {
			x, y := f.value(both[0][i]), f.value(both[1][i])
			bare, node = append(bare, x), append(node, y)
			if x > 0 {
				ratios = append(ratios, y/x)
			}
		}
		multiple := "–"
		if len(ratios) > 0 {
			multiple = fmt.Sprintf("**%.2f** (%.2f–%.2f)", median(ratios), slices.Min(ratios), slices.Max(ratios))
		}
		line(&b, f.what, fmt.Sprintf("%.*f %s", f.digits, median(bare), f.unit), fmt.Sprintf("%.*f %s", f.digits, median(node), f.unit),
			multiple, f.ratio, f.bound, f.unit, median(ratios), median(node))
	}
	line(&b, "start of an empty node until ready", "–", fmt.Sprintf("%.0f ms", median(ready)), "–", 0, 60, "ms", 0, median(ready))
	line(&b, "resident memory of an empty node", "–", fmt.Sprintf("%.1f MiB", median(resident)), "–", 0, 20, "MiB", 0, median(resident))
	return b.String()
}

func line(b *strings.Builder, what, bare, node, multiple string, ratio, bound float64, unit string, gotRatio, got float64) {
	target, verdict := "", ""
	switch {
	case ratio > 0:
		target, verdict = fmt.Sprintf("≤ %.2f ×", ratio), met(gotRatio <= ratio)
	case bound > 0:
		target, verdict = fmt.Sprintf("≤ %.0f %s", bound, unit), met(got <= bound)
	}
	fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s |\n", what, bare, node, multiple, target, verdict)
}

func met(ok bool) string {
	if ok {
		return "met"
	}
	return "**missed**"
}

func machine() string {
	model := "unknown processor"
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
				model = strings.TrimSpace(v)
				break
			}
		}
	}
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return fmt.Sprintf("%d cores of %s, %s/%s, kernel %s", runtime.NumCPU(), model, runtime.GOOS, runtime.GOARCH, cmp.Or(string(bytes.TrimSpace(kernel)), "unknown"))
}

func load() string {
	b, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(b), " ")
	return cmp.Or(first, "unknown")
}

const (
	figuresBegin = "<!-- figures: begin; written by make "
	figuresEnd   = "<!-- figures: end -->\n"
)

// replaceFigures leaves what people wrote around the figures as it is.
func replaceFigures(name, text string) error {
	old, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	i := bytes.Index(old, []byte(figuresBegin))
	begin := i + bytes.IndexByte(old[max(0, i):], '\n') + 1
	end := bytes.Index(old, []byte(figuresEnd))
	if i < 0 || end < begin {
		return fmt.Errorf("%s has no place for the figures", name)
	}
	return os.WriteFile(name, slices.Concat(old[:begin], []byte(text), old[end:]), 0o644)
}
