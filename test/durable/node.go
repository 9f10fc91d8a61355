package main

import (
	"bytes"
	"context"
	"encoding/json"
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

const (
	readyWithin = 30 * time.Second
	// stopWithin is above the 20 s that a node may take to drain.
	stopWithin = 30 * time.Second
)

// A node is one "starling serve" process after the other, with the same data.
type node struct {
	name string
	bin  string
	dir  string // logs; the data are in it, too, unless dataDir was set
	data string
	port int
	args []string // beside those of the fields

	// refused is what the process said when it was meant not to start: that is
	// for people.
	refused []string

	cmd    *exec.Cmd
	exited chan struct{} // closed when cmd has ended; nil: never started
}

func (n *node) http() string    { return net.JoinHostPort("127.0.0.1", strconv.Itoa(n.port)) }
func (n *node) logFile() string { return filepath.Join(n.dir, "log") }
func (n *node) raft() string    { return filepath.Join(n.data, "raft") }

// start starts the process and does not wait for it.
func (n *node) start() error {
	if err := os.MkdirAll(n.dir, 0o700); err != nil {
		return err
	}
	log, err := os.OpenFile(n.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the process has its own handle
	n.cmd = exec.Command(n.bin, append([]string{"serve", "--name", n.name, "--port", strconv.Itoa(n.port), "--data-dir", n.data, "--log-format", "json"}, n.args...)...)
	n.cmd.Stdout, n.cmd.Stderr = log, log
	n.cmd.SysProcAttr = bound()
	if err := n.cmd.Start(); err != nil {
		return fmt.Errorf("starting node %s: %w", n.name, err)
	}
	n.exited = make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) {
		_ = cmd.Wait() // ProcessState has it
		close(exited)
	}(n.cmd, n.exited)
	return nil
}

func (n *node) running() bool {
	if n.exited == nil {
		return false
	}
	select {
	case <-n.exited:
		return false
	default:
		return true
	}
}

func (n *node) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	last := "no answer"
	for {
		if status, body, err := get(ctx, n, "/readyz"); err == nil {
			if status == http.StatusOK {
				return nil
			}
			last = strings.TrimSpace(string(body))
		}
		select {
		case <-n.exited:
			return fmt.Errorf("node %s ended before it was ready (%v): %s", n.name, n.cmd.ProcessState, n.lastLine())
		case <-ctx.Done():
			return fmt.Errorf("node %s is not ready after %v: %s", n.name, readyWithin, last)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// stop asks the process to end, as a service manager does, and waits for it.
func (n *node) stop() error {
	if !n.running() {
		return nil
	}
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("SIGTERM to node %s: %w", n.name, err)
	}
	if !n.ended(stopWithin) {
		n.kill()
		return fmt.Errorf("node %s did not end within %v of SIGTERM", n.name, stopWithin)
	}
	if code := n.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("node %s ended with status %d after SIGTERM: %s", n.name, code, n.lastLine())
	}
	return nil
}

// ended waits for the end of the process, but not for ever.
func (n *node) ended(within time.Duration) bool {
	select {
	case <-n.exited:
		return true
	case <-time.After(within):
		return false
	}
}

// kill ends the process without giving it a chance to say goodbye.
func (n *node) kill() {
	if n.running() {
		_ = n.cmd.Process.Kill()
		<-n.exited
	}
}

// mark is where the log ends now.
func (n *node) mark() int64 {
	info, err := os.Stat(n.logFile())
	if err != nil {
		return 0
	}
	return info.Size()
}

// since is what was logged after a mark.
func (n *node) since(mark int64) string {
	b, err := os.ReadFile(n.logFile())
	if err != nil || mark > int64(len(b)) {
		return ""
	}
	return string(b[mark:])
}

func (n *node) lastLine() string {
	lines := strings.Split(strings.TrimSpace(n.since(0)), "\n")
	return clip(lines[len(lines)-1])
}

// noise are the lines of the log that are not structured, and those that no
// node must ever write.
func (n *node) noise() []string {
	var found []string
	for line := range bytes.Lines([]byte(n.since(0))) {
		line = bytes.TrimSpace(line)
		var entry struct{ Level, Msg string }
		err := json.Unmarshal(line, &entry)
		switch text := string(line); {
		case len(line) == 0 || slices.Contains(n.refused, text):
		case err != nil || entry.Level == "" || entry.Msg == "":
			found = append(found, "unstructured: "+clip(text))
		case strings.Contains(text, "BUG") || entry.Level == "dpanic" || entry.Level == "panic":
			found = append(found, clip(text))
		}
	}
	return found
}

// refusesToStart starts the process, which must end by itself with status 1, and
// returns what it says then.
func (n *node) refusesToStart(within time.Duration) (string, error) {
	mark := n.mark()
	if err := n.start(); err != nil {
		return "", err
	}
	if !n.ended(within) {
		n.kill()
		return "", fmt.Errorf("node %s still ran after %v", n.name, within)
	}
	text := strings.TrimSpace(n.since(mark))
	if code := n.cmd.ProcessState.ExitCode(); code != 1 {
		return text, fmt.Errorf("node %s ended with %v, want exit status 1: %s", n.name, n.cmd.ProcessState, clip(text))
	}
	lines := strings.Split(text, "\n")
	for _, line := range lines {
		n.refused = append(n.refused, strings.TrimSpace(line))
		if strings.HasPrefix(line, "goroutine ") || strings.HasPrefix(line, "panic:") {
			return text, fmt.Errorf("node %s crashed: %s", n.name, clip(text))
		}
	}
	return lines[len(lines)-1], nil
}

// lastWords takes what a process that has ended by itself has said for people
// for what it was meant to say.
func (n *node) lastWords(mark int64) {
	if n.running() {
		return
	}
	text := n.since(mark)
	if i := strings.Index(text, "\nstarling: "); i >= 0 {
		for line := range strings.Lines(text[i+1:]) {
			n.refused = append(n.refused, strings.TrimSpace(line))
		}
	}
}

// diskUse is what the log takes on disk, and the largest file of it.
func (n *node) diskUse() (total, largest int64) {
	_ = filepath.WalkDir(n.raft(), func(_ string, e os.DirEntry, err error) error {
		if err != nil {
			return nil // files come and go
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			total += info.Size()
			largest = max(largest, info.Size())
		}
		return nil
	})
	return total, largest
}

// web makes a new connection for each request: what asks for the state of nodes
// must not wait on one that leads to a process that is gone.
var web = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

func get(ctx context.Context, n *node, path string) (int, []byte, error) {
	return ask(ctx, n, "GET", path)
}

func ask(ctx context.Context, n *node, method, path string) (int, []byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://"+n.http()+path, nil)
	if err != nil {
		return 0, nil, err
	}
	res, err := web.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return res.StatusCode, body, err
}

// read decodes the answer to a GET.
func read[T any](ctx context.Context, n *node, path string) (*T, error) {
	status, body, err := get(ctx, n, path)
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("node %s: GET %s: status %d: %s", n.name, path, status, clip(string(body)))
	}
	v := new(T)
	if err := json.Unmarshal(body, v); err != nil {
		return nil, fmt.Errorf("node %s: GET %s: %w", n.name, path, err)
	}
	return v, nil
}

var (
	givenMu sync.Mutex
	given   []int
)

// freePort finds P such that all ports of a node are free. It looks below the
// range from which the kernel takes the ports of outgoing connections.
func freePort() (int, error) {
	givenMu.Lock()
	defer givenMu.Unlock()
	for range 1000 {
		p := 20000 + rand.IntN(10000)
		near := func(q int) bool {
			return slices.Contains([]int{0, 1, 98, 902, 1000, 1001, 1902, 1903, 2000, 2001}, max(p-q, q-p))
		}
		if !slices.ContainsFunc(given, near) && !slices.ContainsFunc([]int{p, p + 1000, p + 1001, p - 1000, p - 902}, taken) {
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
	if len(s) <= 400 {
		return s
	}
	return strings.ToValidUTF8(s[:400], "") + "…"
}
