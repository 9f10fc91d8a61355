package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/node"
	"go.yaml.in/yaml/v3"
)

// starling runs the command line and returns what it left behind. env is a
// list of NAME=value.
func starling(env []string, args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	status = run(&process{args: args, env: env, stdout: &out, stderr: &errs, notify: func(chan<- os.Signal) {}, log: fakeLog()})
	return status, out.String(), errs.String()
}

// file makes a configuration file.
func file(t *testing.T, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestExitStatus(t *testing.T) {
	f := func(status int, says string, args ...string) {
		t.Helper()
		got, stdout, stderr := starling([]string{"STARLING_NAME=n1"}, args...)
		if got != status {
			t.Errorf("%v: status %d, want %d; stderr: %s", args, got, status, stderr)
		}
		// What was asked for is on stdout, what went wrong on stderr.
		where := stdout
		if status != exitOK {
			where = stderr
			if stdout != "" {
				t.Errorf("%v: failed with this on stdout: %s", args, stdout)
			}
		} else if stderr != "" {
			t.Errorf("%v: worked with this on stderr: %s", args, stderr)
		}
		if !strings.Contains(where, says) {
			t.Errorf("%v: %q is not in: %s", args, says, where)
		}
	}
	f(exitOK, "starling register hello")
	f(exitOK, "starling register hello", "--help")
	f(exitOK, "Timers (defaults work", "serve", "--help")
	f(exitOK, "starling ", "version")
	f(exitOK, "starling ", "--version")
	f(exitOK, "port: 8848", "serve", "--check")
	for _, shell := range []string{"bash", "zsh", "fish"} {
		f(exitOK, "starling", "completion", shell)
	}
	for flag, want := range map[string]string{
		"log-level":  "debug\ninfo\nwarn\nerror\n:4\n",
		"log-format": "console\njson\n:4\n",
		"config":     "yaml\nyml\n:8\n", // files with these endings
		"data-dir":   ":16\n",           // directories
		"port":       ":4\n",            // nothing
	} {
		if _, stdout, _ := starling(nil, "__complete", "serve", "--"+flag, ""); stdout != want {
			t.Errorf("completion of --%s: %q", flag, stdout)
		}
	}
	f(exitUsage, "csh", "completion", "csh")
	f(exitUsage, "unknown command", "srve")
	f(exitUsage, "unknown flag: --prot", "serve", "--prot", "8848")
	f(exitUsage, "--port", "serve", "--port", "x")
	f(exitUsage, "--port: 80: must be from 1001", "serve", "--port", "80")
	f(exitUsage, "--bind", "serve", "--bind", "300.1.1.1")
	f(exitUsage, "--name: is empty", "serve", "--name", "")
	f(exitUsage, "--push-window", "serve", "--push-window", "100") // no unit
	f(exitUsage, "debug, info, warn, error", "serve", "--log-level", "trace")
	f(exitUsage, "console, json", "serve", "--log-format", "text")
	f(exitUsage, "main port", "serve", "--join", "10.0.0.2:80,10.0.0.3")
	f(exitUsage, "needs --join", "serve", "--expect", "3")
	f(exitUsage, "--insecure-cluster", "serve", "--bind", "0.0.0.0", "--join", "10.0.0.3")
	f(exitUsage, "extra", "serve", "extra")
	f(exitUsage, "no such file", "serve", "--config", filepath.Join(t.TempDir(), "none.yaml"))

	dir := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f(exitFailed, dir, "serve", "--data-dir", dir)
	f(exitFailed, "--data-dir: ", "serve", "--data-dir", dir)
}

func TestSwitchesInHelp(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"serve", "--help"}, {"version", "--help"}, {"completion", "zsh", "--help"}} {
		if _, stdout, _ := starling(nil, args...); strings.Contains(stdout, "true|false") || stdout == "" {
			t.Errorf("%v: %s", args, stdout)
		}
	}
	if status, stdout, _ := starling([]string{"STARLING_NAME=n1"}, "serve", "--check=true"); status != exitOK || !strings.Contains(stdout, "port: 8848") {
		t.Errorf("status %d: %s", status, stdout)
	}
}

func TestHelpHidesTheClockOffset(t *testing.T) {
	if _, stdout, _ := starling(nil, "serve", "--help"); strings.Contains(stdout, "clock-offset") {
		t.Error(stdout)
	}
	if status, stdout, stderr := starling([]string{"STARLING_NAME=n1"}, "serve", "--check", "--clock-offset", "-2s"); status != exitOK || !strings.Contains(stdout, "clock-offset: -2s # flag") {
		t.Errorf("status %d, %s%s", status, stdout, stderr)
	}
}

// effective runs serve --check and returns the settings by name.
func effective(t *testing.T, env []string, args ...string) map[string]string {
	t.Helper()
	status, stdout, stderr := starling(env, append([]string{"serve", "--check"}, args...)...)
	if status != exitOK {
		t.Fatalf("status %d: %s", status, stderr)
	}
	var got map[string]any
	if err := yaml.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatal(err)
	}
	values := map[string]string{}
	for k, v := range got {
		values[k] = fmt.Sprint(v)
	}
	return values
}

func TestPrecedence(t *testing.T) {
	config := file(t, `# a comment
port: 9001
bind: 10.0.0.1
name: from-file
push-window: 10ms
log-level: debug
history-bytes: 1000000
`)
	env := []string{"STARLING_CONFIG=" + config, "STARLING_PORT=9002", "STARLING_BIND=10.0.0.2", "STARLING_NAME=", "STARLING_BEAT_CHECK=1s"}
	got := effective(t, env, "--port", "9003")
	for name, want := range map[string]string{
		"port":          "9003",      // flag > environment > file
		"grpc-port":     "10003",     // follows
		"bind":          "10.0.0.2",  // environment > file
		"advertise":     "10.0.0.2",  // follows
		"name":          "from-file", // an empty variable is not set
		"push-window":   "10ms",      // file > default
		"beat-check":    "1s",        // environment > default
		"log-level":     "debug",
		"log-format":    "json", // stderr is no terminal
		"history-bytes": "1000000",
		"beat-timeout":  "15s", // default
	} {
		if got[name] != want {
			t.Errorf("%s: got %s, want %s", name, got[name], want)
		}
	}
	// The flag --config beats its variable.
	if got := effective(t, env, "--config", file(t, "name: other")); got["name"] != "other" || got["push-window"] != "100ms" {
		t.Errorf("name %s, push-window %s", got["name"], got["push-window"])
	}

	_, stdout, _ := starling(env, "serve", "--check", "--port", "9003")
	for _, line := range []string{
		"port: 9003 # flag\n",
		"bind: 10.0.0.2 # STARLING_BIND\n",
		"name: from-file # " + config + ":4\n",
		"data-dir: ./starling-data # default\n",
	} {
		if !strings.Contains(stdout, line) {
			t.Errorf("%q is not in:\n%s", line, stdout)
		}
	}
}

// Every setting but the ones that must keep their value here comes through
// from each source.
func TestEverySettingFromEachSource(t *testing.T) {
	values := map[string]string{
		"port": "9001", "grpc-port": "9500", "bind": "10.0.0.1", "advertise": "10.0.0.9", "data-dir": "/d", "name": "n2",
		"log-level": "warn", "log-format": "console", "clock-offset": "-3s",
		"push-window": "11ms", "push-window-max": "12ms", "push-retry": "13ms", "push-ack-timeout": "14ms",
		"connection-idle": "15ms", "detection-answer": "16ms", "idle-scan": "17ms", "setup-wait": "18ms",
		"keepalive-time": "1.5s", "keepalive-timeout": "19ms", "keepalive-min": "20ms",
		"beat-check": "21ms", "beat-timeout": "22ms", "beat-delete": "23ms",
		"empty-service-age": "24ms", "override-age": "25ms", "sweep-period": "26ms", "history-keep": "27ms",
		"drain-timeout": "29ms", "drain-close-delay": "28ms",
		"head-interval": "131ms", "detection": "132ms", "lease-refused": "33ms", "lease-silent": "34ms", "lease-max": "35ms", "lease-restart": "36ms",
		"expiry-probe": "137ms", "expiry-probe-max": "38ms", "self-preservation": "39ms", "stable-after": "40ms", "tombstone-grace": "1.1s", "drop-memory": "1.2s",
		"catch-up": "41ms", "snapshot-every": "142ms", "snapshot-max-age": "43ms", "handover-grace": "44ms", "rejoin": "145ms",
		"probe-interval": "146ms", "probe-timeout": "47ms",
		"peer-port": "9501", "raft-port": "9502", "gossip-port": "9503", "insecure-cluster": "true", "peer-cert": "c", "peer-key": "k", "peer-ca": "ca",
		"setup-timeout": "1.25s", "moving-for": "31ms", "receive-timeout": "1.3s", "max-connections": "101", "max-connections-per-address": "102",
		"max-setup-rate": "103", "max-setup-rate-per-address": "104", "max-subscriptions-per-connection": "105",
		"max-instances-per-connection": "106", "max-streams-per-connection": "107", "max-header-bytes": "10800",
		"max-fuzzy-patterns": "109", "max-fuzzy-matches": "110",
		"max-request-bytes": "100000", "history-per-service": "30", "history-bytes": "100001",
		"raft-heartbeat": "51ms", "raft-replace-after": "52ms", "raft-remove-after": "53ms", "raft-snapshot-every": "154ms",
		"raft-snapshot-entries": "155", "raft-snapshot-bytes": "100002", "check-interval": "56ms", "check-timeout": "57ms", "check-rate": "158", "check-strikes": "5",
		"max-restore-bytes": "1048577",
		// A list is printed as one.
		"join": "[10.0.0.2 10.0.0.3:9858]", "expect": "3", "gossip-key-file": "key",
	}
	var args, env []string
	var config strings.Builder
	for name, v := range values {
		if name == "join" {
			v = "10.0.0.2,10.0.0.3:9858"
		} else {
			fmt.Fprintf(&config, "%s: %q\n", name, v)
		}
		args = append(args, "--"+name+"="+v)
		env = append(env, envName(name)+"="+v)
	}
	config.WriteString("join: [10.0.0.2, 10.0.0.3:9858]\n")
	check := func(source string, got map[string]string) {
		for name, v := range got {
			if v != values[name] {
				t.Errorf("%s by %s: got %s, want %s", name, source, v, values[name])
			}
		}
		if len(got) != len(values) {
			t.Errorf("%s: %d settings, this test has %d", source, len(got), len(values))
		}
	}
	check("flag", effective(t, nil, args...))
	check("environment", effective(t, env))
	check("file", effective(t, nil, "--config", file(t, config.String())))

	// And what --check prints is such a file.
	_, printed, _ := starling(nil, append([]string{"serve", "--check"}, args...)...)
	check("printed file", effective(t, nil, "--config", file(t, printed)))
}

func TestCheckQuotesStrings(t *testing.T) {
	env := []string{"STARLING_NAME=007"}
	if got := effective(t, env)["name"]; got != "007" {
		t.Errorf("name %s", got)
	}
}

func TestFileIsStrict(t *testing.T) {
	f := func(content, says string) {
		t.Helper()
		name := file(t, content)
		status, _, stderr := starling([]string{"STARLING_NAME=n1"}, "serve", "--check", "--config", name)
		if says = strings.ReplaceAll(says, "FILE", name); status != exitUsage || !strings.Contains(stderr, says) {
			t.Errorf("%q: status %d, %q is not in: %s", content, status, says, stderr)
		}
	}
	f("port: 8848\nprot: 1\n", `FILE:2: unknown setting "prot"`)
	f("port: 8848\nname: a\nport: 8848\n", `FILE:3: setting "port" is there twice, first in line 1`)
	f("name: a\nport: x\n", `FILE:2: invalid value "x" for port`)
	f("\nport: 80\n", `--port: 80`)
	f("port:\n", `FILE:1: setting "port" must have one plain value`)
	f("port: [1, 2]\n", `FILE:1: setting "port" must have one plain value`)
	f("name: {a: b}\n", `FILE:1: setting "name" must have one plain value`)
	f("join: [10.0.0.2, 10.0.0.3:80]\n", "main port")
	f("join: [[a]]\n", `FILE:1: setting "join"`)
	f("check: true\n", `unknown setting "check"`)
	f("config: other.yaml\n", `unknown setting "config"`)
	f("help: true\n", `unknown setting "help"`)
	f("Port: 8848\n", `unknown setting "Port"`)
	f("<<: {port: 1}\n", `unknown setting "<<"`)
	f("- port\n", "FILE:1: must be a list of")
	f("port: 8848\n---\nport: 8849\n", "FILE: must be one YAML document")
	f("port: [\n", "FILE: ")
	f("port: \"\n", "FILE: ")
}

func TestEmptyFiles(t *testing.T) {
	for _, content := range []string{"", "\n", "# port: 1\n", "---\n", "{}\n"} {
		if got := effective(t, []string{"STARLING_NAME=n1"}, "--config", file(t, content)); got["port"] != "8848" {
			t.Errorf("%q: port %s", content, got["port"])
		}
	}
}

func TestWrongVariable(t *testing.T) {
	f := func(variable, says string) {
		t.Helper()
		if status, _, stderr := starling([]string{"STARLING_NAME=n1", variable}, "serve", "--check"); status != exitUsage || !strings.Contains(stderr, says) {
			t.Errorf("%s: status %d, %q is not in: %s", variable, status, says, stderr)
		}
	}
	f("STARLING_PORT=x", `STARLING_PORT: invalid value "x" for port`)
	f("STARLING_PORT=tcp://10.96.0.7:8848", "enableServiceLinks: false")
	f("STARLING_LOG_LEVEL=loud", "STARLING_LOG_LEVEL")
	f("STARLING_JOIN=10.0.0.2:x", "main port")
}

func TestStrangeVariables(t *testing.T) {
	env := []string{
		"STARLING_NAME=n1", "HOME=/", "STARLINGX=1", "STARLING_EMPTY=",
		"STARLING_DATADIR=/d", "STARLING_CHECK=true",
		// A service named starling and one named starling-web, in Kubernetes.
		"STARLING_SERVICE_HOST=10.96.0.7", "STARLING_SERVICE_PORT=8848", "STARLING_SERVICE_PORT_HTTP=8848",
		"STARLING_PORT_8848_TCP=tcp://10.96.0.7:8848", "STARLING_PORT_8848_TCP_ADDR=10.96.0.7",
		"STARLING_WEB_PORT=tcp://10.96.0.8:80", "STARLING_WEB_SERVICE_HOST=10.96.0.8",
	}
	status, _, stderr := starling(env, "serve", "--check")
	if want := "starling: STARLING_CHECK names no setting and is ignored\nstarling: STARLING_DATADIR names no setting and is ignored\n"; status != exitOK || stderr != want {
		t.Errorf("status %d: %s", status, stderr)
	}
	// A node says so before it does anything else.
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	status, _, stderr = starling(env, "serve", "--data-dir", file)
	if line, _, _ := strings.Cut(stderr, "\n"); status != exitFailed || !json.Valid([]byte(line)) || !strings.Contains(line, `"level":"warn"`) || !strings.Contains(line, `["STARLING_CHECK","STARLING_DATADIR"]`) {
		t.Errorf("status %d: %s", status, stderr)
	}
}

func TestIsTerminal(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if isTerminal(null) || isTerminal(w) || isTerminal(&bytes.Buffer{}) {
		t.Error("what is no terminal is taken for one")
	}
	pty, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminal to be had: ", err)
	}
	defer pty.Close()
	if !isTerminal(pty) {
		t.Error("a terminal is not recognized")
	}
}

// A terminal stands in for stdout and stderr of a running node.
type terminal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *terminal) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(b)
}

func (w *terminal) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// freePort finds an HTTP port that is free together with those that follow from
// it.
func freePort(t *testing.T) int {
	t.Helper()
search:
	for range 200 {
		port := 11_000 + rand.IntN(8_000) // below what the system gives to clients
		for _, p := range []int{port, port + 1000, port + 1001, port - 902} {
			l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p)))
			if err != nil {
				continue search
			}
			l.Close()
		}
		return port
	}
	t.Fatal("no free ports")
	return 0
}

// until polls for a condition.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20s: %s", what)
		}
	}
}

func TestServe(t *testing.T) {
	port := freePort(t)
	dir := filepath.Join(t.TempDir(), "data")
	args := []string{"serve", "--port", strconv.Itoa(port), "--name", "n1", "--data-dir", dir}

	for _, format := range []string{"console", "json"} {
		t.Run(format, func(t *testing.T) {
			var stdout, stderr terminal
			signals := make(chan chan<- os.Signal, 1)
			status := make(chan int, 1)
			go func() {
				status <- run(&process{
					args: append(args, "--log-format", format), stdout: &stdout, stderr: &stderr,
					notify: func(c chan<- os.Signal) { signals <- c },
				})
			}()
			stop := <-signals
			http, grpc := fmt.Sprintf("127.0.0.1:%d", port), fmt.Sprintf("127.0.0.1:%d", port+1000)
			until(t, "both addresses are printed", func() bool {
				text := stdout.String()
				if format == "json" {
					text = stderr.String()
				}
				return strings.Contains(text, http) && strings.Contains(text, grpc)
			})
			for _, addr := range []string{http, grpc} {
				c, err := net.Dial("tcp", addr)
				if err != nil {
					t.Fatal(err)
				}
				c.Close()
			}

			// A second node on the same directory, a third on the same port.
			if got, _, stderr := starling(nil, "serve", "--name", "n2", "--data-dir", dir, "--port", strconv.Itoa(freePort(t))); got != exitFailed || !strings.Contains(stderr, dir) {
				t.Errorf("status %d: %s", got, stderr)
			}
			if got, _, stderr := starling(nil, "serve", "--name", "n3", "--data-dir", t.TempDir(), "--port", strconv.Itoa(port)); got != exitFailed || !strings.Contains(stderr, strconv.Itoa(port)) {
				t.Errorf("status %d: %s", got, stderr)
			}

			stop <- syscall.SIGTERM
			if got := <-status; got != exitOK {
				t.Errorf("status %d: %s", got, stderr.String())
			}
			if format == "json" {
				if stdout.String() != "" {
					t.Errorf("on stdout beside JSON logs: %s", stdout.String())
				}
				for line := range strings.Lines(stderr.String()) {
					if !json.Valid([]byte(line)) {
						t.Errorf("not JSON: %s", line)
					}
				}
			}
		})
	}
}

// A fakeNode ends with err when done is closed, and stops with what comes from
// stop.
type fakeNode struct {
	done chan struct{}
	err  error
	stop chan error
}

func (n *fakeNode) Done() <-chan struct{} { return n.done }
func (n *fakeNode) Err() error            { return n.err }
func (n *fakeNode) Stop(ctx context.Context) error {
	select {
	case err := <-n.stop:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestSupervise(t *testing.T) {
	const within = 20 * time.Second
	f := func(name, want string, took time.Duration, happens func(n *fakeNode, signals chan<- os.Signal)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &fakeNode{done: make(chan struct{}), stop: make(chan error, 1)}
				signals := make(chan os.Signal, 2)
				go happens(n, signals)
				start := time.Now()
				got := "nil"
				if err := supervise(t.Context(), n, signals, within, zap.NewNop()); err != nil {
					got = err.Error()
				}
				if got != want || time.Since(start) != took {
					t.Errorf("got %q after %v, want %q after %v", got, time.Since(start), want, took)
				}
				n.stop <- nil // ends a stop that is still going on
			})
		})
	}
	f("signal", "nil", 3*time.Second, func(n *fakeNode, signals chan<- os.Signal) {
		time.Sleep(time.Second)
		signals <- syscall.SIGTERM
		time.Sleep(2 * time.Second)
		n.stop <- nil
	})
	f("stop fails", "stuck", 0, func(n *fakeNode, signals chan<- os.Signal) {
		signals <- syscall.SIGTERM
		n.stop <- errors.New("stuck")
	})
	f("stop hangs", "context deadline exceeded", within, func(n *fakeNode, signals chan<- os.Signal) {
		signals <- syscall.SIGTERM
	})
	f("second signal", "stopped at once by a second signal", 5*time.Second, func(n *fakeNode, signals chan<- os.Signal) {
		signals <- syscall.SIGTERM
		time.Sleep(5 * time.Second)
		signals <- os.Interrupt
	})
	f("node fails", "accept: too many open files", time.Second, func(n *fakeNode, signals chan<- os.Signal) {
		time.Sleep(time.Second)
		n.err = errors.New("accept: too many open files")
		n.stop <- nil
		close(n.done)
	})
}

func TestLogLevel(t *testing.T) {
	f := func(level string, want int) {
		t.Helper()
		var w terminal
		l, _ := newLogger(&w, level, "json")
		l.Debug("d")
		l.Info("i")
		l.Warn("w")
		l.Error("e", zap.Duration("after", time.Second))
		if got := strings.Count(w.String(), "\n"); got != want {
			t.Errorf("%s: %d lines: %s", level, got, w.String())
		}
	}
	f("debug", 4)
	f("info", 3)
	f("warn", 2)
	f("error", 1)
}

// A node that others know more of than it does begins a new life, but not for
// ever.
func TestNewLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, pause := range []time.Duration{time.Second, 4 * time.Minute} {
			starts := 0
			start := func() (running, error) {
				starts++
				n := &fakeNode{done: make(chan struct{}), stop: make(chan error, 1), err: node.ErrOutlived}
				n.stop <- nil
				if starts == 10 {
					n.err = errors.New("disk full")
				}
				time.AfterFunc(pause, func() { close(n.done) })
				return n, nil
			}
			err := serveLives(t.Context(), start, make(chan os.Signal), time.Second, zap.NewNop())
			if few := pause < time.Minute; few && (starts != 1+newLives || !errors.Is(err, node.ErrOutlived)) || !few && starts != 10 {
				t.Errorf("every %v: %d starts, %v", pause, starts, err)
			}
		}
	})
}
