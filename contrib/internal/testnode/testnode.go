// Package testnode runs a real node for tests of adapters: the binary that "make
// build" makes, as a process, so that the modules of adapters do without the
// dependencies of a server.
//
// Start reading at Start.
package testnode

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/starling-registry/starling/pkg/client"
)

// A Node is one node of its own.
type Node struct {
	t    *testing.T
	bin  string
	dir  string
	port int
	cmd  *exec.Cmd // nil: it does not run
}

// Start runs a node until the test ends. The binary is that of STARLING_BIN, else
// bin/starling of the repository, for a test two directories below it. Without
// one the test is skipped, or fails where CI is true.
func Start(t *testing.T) *Node {
	t.Helper()
	bin := os.Getenv("STARLING_BIN")
	if bin == "" {
		bin = "../../bin/starling"
	}
	bin, err := filepath.Abs(bin)
	if err == nil {
		_, err = os.Stat(bin)
	}
	if err != nil {
		say := t.Skipf
		if os.Getenv("CI") == "true" {
			say = t.Fatalf
		}
		say("no node to test with, make build makes one: %v", err)
	}
	n := &Node{t: t, bin: bin, dir: t.TempDir()}
	t.Cleanup(func() {
		n.Kill()
		if t.Failed() {
			log, _ := os.ReadFile(n.log())
			t.Logf("the end of the node's log:\n%s", log[max(0, len(log)-4000):])
		}
	})
	// Somebody else may take a port between the look and its use.
	for try := 0; ; try++ {
		n.port = freePorts(t)
		if err := n.run(); err == nil {
			return n
		} else if try == 3 {
			t.Fatal(err)
		}
	}
}

func (n *Node) log() string { return filepath.Join(n.dir, "log") }

// Addr is what clients are given.
func (n *Node) Addr() string { return fmt.Sprintf("127.0.0.1:%d", n.port) }

// Client is a client of the node until the test ends.
func (n *Node) Client() *client.Client {
	n.t.Helper()
	c, err := client.New(client.Config{Addrs: []string{n.Addr()}, CacheDir: "off", FailoverDir: "off"},
		client.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { c.Close() })
	return c
}

// Kill ends the node at once, as kill -9 does.
func (n *Node) Kill() {
	if n.cmd != nil {
		_ = n.cmd.Process.Kill()
		_ = n.cmd.Wait()
		n.cmd = nil
	}
}

// Restart runs it again after Kill, with its data and at its ports.
func (n *Node) Restart() {
	n.t.Helper()
	if err := n.run(); err != nil {
		n.t.Fatal(err)
	}
}

// run returns when clients can connect.
func (n *Node) run() error {
	log, err := os.OpenFile(n.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(n.bin, "serve", "--port", fmt.Sprint(n.port), "--data-dir", filepath.Join(n.dir, "data"), "--name", "test")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	n.cmd = cmd
	ctx, cancel := context.WithTimeout(n.t.Context(), 30*time.Second)
	defer cancel()
	if out, err := exec.CommandContext(ctx, n.bin, "ready", "--server", n.Addr(), "--within", "20s").CombinedOutput(); err != nil {
		n.Kill()
		return fmt.Errorf("the node does not become ready: %w: %s", err, out)
	}
	return nil
}

// freePorts finds a main port whose others are free too. Nothing is drawn from
// the range of outgoing connections, which take ports at any time.
func freePorts(t *testing.T) int {
	t.Helper()
	for port := 18000 + os.Getpid()%700*10; port < 30000; port += 10 {
		free := true
		for _, offset := range []int{0, 1000, 1001, -1000, -902} {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port+offset))
			if err != nil {
				free = false
				break
			}
			l.Close()
		}
		if free {
			return port
		}
	}
	t.Fatal("no ports are free")
	return 0
}

// Until waits until a condition holds, at most 20 s, and says what did not.
func Until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("not within 20 s: %s", what)
}
