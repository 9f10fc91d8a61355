package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A server is a "starling serve" process of its own, on free ports of the
// loopback interface.
type server struct {
	dir    string // data and log
	port   int
	cmd    *exec.Cmd
	exited chan struct{}
	exit   error // set when exited is closed
}

// startServer returns when the server is ready.
func startServer(ctx context.Context, bin string, settings ...string) (*server, error) {
	dir, err := os.MkdirTemp("", "starling-attack-")
	if err != nil {
		return nil, err
	}
	port, err := freePorts()
	if err != nil {
		return nil, err
	}
	s, err := launch(bin, dir, port, append([]string{"--name", "attacked"}, settings...)...)
	if err != nil {
		return nil, err
	}
	if err := s.ready(ctx, 20*time.Second); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

// launch starts a process in a directory that may be one of an earlier
// process; its log is appended to.
func launch(bin, dir string, port int, settings ...string) (*server, error) {
	s := &server{dir: dir, port: port, exited: make(chan struct{})}
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	args := append([]string{"serve", "--port", strconv.Itoa(port), "--data-dir", filepath.Join(dir, "data"), "--log-format", "json"}, settings...)
	s.cmd = exec.Command(bin, args...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the server: %w", err)
	}
	go func() {
		s.exit = s.cmd.Wait()
		close(s.exited)
	}()
	return s, nil
}

// ready waits until the server takes clients.
func (s *server) ready(ctx context.Context, within time.Duration) error {
	for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		if status, _, err := get(ctx, "http://"+s.http()+"/readyz"); err == nil && status == http.StatusOK {
			return nil
		}
		if !s.alive() || ctx.Err() != nil || time.Since(start) > within {
			return errors.New("the server does not become ready, its log is " + s.logFile())
		}
	}
}

// kill ends the process at once.
func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	<-s.exited
}

func (s *server) logFile() string { return filepath.Join(s.dir, "log") }
func (s *server) http() string    { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }
func (s *server) grpc() string    { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port+1000)) }

func (s *server) alive() bool {
	select {
	case <-s.exited:
		return false
	default:
		return true
	}
}

// stop ends the process as an operator would; a process that does not end
// cleanly is an error.
func (s *server) stop() error {
	if s.alive() {
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-s.exited:
		case <-time.After(30 * time.Second):
			_ = s.cmd.Process.Kill()
			<-s.exited
			return errors.New("the server did not stop within 30 s")
		}
	}
	if s.exit != nil {
		return fmt.Errorf("the server ended with %w", s.exit)
	}
	return nil
}

// bugs are the lines of the log that the server must not write whatever
// happens to it.
func (s *server) bugs() []string {
	b, err := os.ReadFile(s.logFile())
	if err != nil {
		return []string{err.Error()}
	}
	var found []string
	for line := range bytes.Lines(b) {
		for _, bad := range []string{"BUG", "panic", "goroutine ", "fatal error", "DATA RACE"} {
			if bytes.Contains(line, []byte(bad)) {
				found = append(found, clip(string(bytes.TrimSpace(line))))
				break
			}
		}
	}
	return found
}

// Vitals are what an attack must not change for good.
type vitals struct {
	goroutines, fds       int
	heap, rss             int64 // bytes; heap after a collection
	transports, instances int
	subscriptions         int
}

// vitals reads /metrics and /proc, after a garbage collection if gc is set.
func (s *server) vitals(gc bool) (v vitals, err error) {
	if !s.alive() {
		return v, fmt.Errorf("the server has ended: %v", s.exit)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if gc {
		for range 2 { // the second frees what was in pools
			if status, _, err := get(ctx, "http://"+s.http()+"/debug/pprof/heap?gc=1"); err != nil || status != http.StatusOK {
				return v, fmt.Errorf("collect garbage: status %d, %v", status, err)
			}
		}
	}
	m, err := s.metrics(ctx)
	if err != nil {
		return v, err
	}
	v.goroutines, v.heap = int(m["go_goroutines"]), int64(m["go_memstats_heap_alloc_bytes"])
	v.transports, v.instances = int(m["starling_grpc_transports"]), int(m["starling_registry_instances"])
	v.subscriptions = int(m["starling_push_subscriptions"])
	fds, err := os.ReadDir(s.proc("fd"))
	if err != nil {
		return v, err
	}
	v.fds = len(fds)
	v.rss, err = s.memory("VmRSS")
	return v, err
}

// metrics reads all series, by name and labels.
func (s *server) metrics(ctx context.Context) (map[string]float64, error) {
	status, body, err := get(ctx, "http://"+s.http()+"/metrics")
	if err != nil || status != http.StatusOK {
		return nil, fmt.Errorf("read metrics: status %d, %w", status, err)
	}
	m := map[string]float64{}
	for line := range strings.Lines(string(body)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name != "#" {
			m[name], _ = strconv.ParseFloat(value, 64)
		}
	}
	return m, nil
}

func (s *server) proc(file string) string {
	return filepath.Join("/proc", strconv.Itoa(s.cmd.Process.Pid), file)
}

// memory reads VmRSS, or VmHWM: the peak since resetPeak.
func (s *server) memory(key string) (int64, error) {
	f, err := os.Open(s.proc("status"))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if k, v, _ := strings.Cut(lines.Text(), ":"); k == key {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("no %s in %s", key, f.Name())
}

func (s *server) resetPeak() { _ = os.WriteFile(s.proc("clear_refs"), []byte("5"), 0) }

var watcher = &http.Client{Timeout: 10 * time.Second}

func get(ctx context.Context, url string) (status int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	res, err := watcher.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	body, err = io.ReadAll(res.Body)
	return res.StatusCode, body, err
}

var (
	givenMu sync.Mutex
	given   []int // by freePorts
)

// freePorts finds P such that all ports of a node are free. It looks below the
// range from which the kernel takes the ports of outgoing connections.
func freePorts() (int, error) {
	givenMu.Lock()
	defer givenMu.Unlock()
	for range 200 {
		p := 20000 + rand.IntN(10000)
		if near := func(q int) bool {
			return slices.Contains([]int{0, 1, 98, 902, 1000, 1001, 1902, 1903, 2000, 2001}, max(p-q, q-p))
		}; slices.ContainsFunc(given, near) {
			continue // not taken yet, perhaps
		}
		if !slices.ContainsFunc([]int{p, p + 1000, p + 1001, p - 1000, p - 902}, taken) {
			given = append(given, p)
			return p, nil
		}
	}
	return 0, errors.New("found no free ports")
}

func taken(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return true
	}
	l.Close()
	return false
}

func clip(s string) string {
	if len(s) <= 300 {
		return s
	}
	return strings.ToValidUTF8(s[:300], "") + "…"
}
