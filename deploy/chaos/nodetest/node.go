// Package nodetest runs servers for the tests of the packages beside it: a node
// is a real process of "starling serve".
//
// The invariant: none outlives its test, also not if the test is killed.
//
// Start reading at Start.
package nodetest

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Within is how long is waited for what takes a few seconds.
const Within = 30 * time.Second

// Binary is the server: that of STARLING_BIN, or what is in this tree, built
// once for each process. Remove removes that again.
func Binary(t testing.TB) string {
	t.Helper()
	bin, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// Remove is for the end of TestMain.
func Remove() { _ = os.Remove(built()) }

func built() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("starling-test-%d", os.Getpid()))
}

var build = sync.OnceValues(func() (string, error) {
	if bin := os.Getenv("STARLING_BIN"); bin != "" {
		return filepath.Abs(bin)
	}
	cmd := exec.Command("go", "build", "-o", built(), "./cmd/starling")
	cmd.Dir = "../../.." // tests run in the folder of their package
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return built(), nil
})

// A Node is a process that may be started again when it has ended. Its methods
// are called on the goroutine of the test.
type Node struct {
	Addr string // HOST:PORT of HTTP

	t       testing.TB
	command func() *exec.Cmd
	cmd     *exec.Cmd
	log     bytes.Buffer // read it when the process has ended
	end     chan struct{}
}

// Start starts a process of the command, which is made anew each time and may
// put it anywhere, and does not wait for it.
func Start(t testing.TB, addr string, command func() *exec.Cmd) *Node {
	t.Helper()
	n := &Node{Addr: addr, t: t, command: command}
	n.Start()
	t.Cleanup(func() { n.Kill() })
	return n
}

// Start starts it again. It must have ended.
func (n *Node) Start() {
	n.t.Helper()
	n.log.Reset()
	n.cmd = n.command()
	n.cmd.Stdout, n.cmd.Stderr = &n.log, &n.log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := n.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.end = make(chan struct{})
	go func(cmd *exec.Cmd, end chan struct{}) {
		_ = cmd.Wait()
		close(end)
	}(n.cmd, n.end)
}

// PID is the id of its process.
func (n *Node) PID() int { return n.cmd.Process.Pid }

// Kill returns when it has ended.
func (n *Node) Kill() {
	_ = n.cmd.Process.Kill()
	<-n.end
}

// Signal sends its process a signal.
func (n *Node) Signal(sig syscall.Signal) {
	n.t.Helper()
	if err := n.cmd.Process.Signal(sig); err != nil {
		n.t.Fatal(err)
	}
}

// End is closed when it has ended.
func (n *Node) End() <-chan struct{} { return n.end }

// Ended waits for its end and returns its status and what it said.
func (n *Node) Ended() (int, string) {
	n.t.Helper()
	select {
	case <-n.end:
		return n.cmd.ProcessState.ExitCode(), n.log.String()
	case <-time.After(Within):
		n.t.Fatalf("%s has not ended within %v", n.Addr, Within)
		return 0, ""
	}
}

// WaitReady returns when it takes clients.
func (n *Node) WaitReady() {
	n.t.Helper()
	for deadline := time.Now().Add(Within); ; time.Sleep(10 * time.Millisecond) {
		_, err := n.Do(http.MethodGet, "/readyz", nil)
		if err == nil {
			return
		}
		select {
		case <-n.end:
			n.t.Fatalf("%s ended before it was ready: %s", n.Addr, n.log.String())
		default:
		}
		if time.Now().After(deadline) {
			n.Kill()
			n.t.Fatalf("%s is not ready after %v: %v\n%s", n.Addr, Within, err, n.log.String())
		}
	}
}

// plain keeps no connections: there would be goroutines of them at the end.
var plain = &http.Client{Timeout: Within, Transport: &http.Transport{DisableKeepAlives: true}}

// Do asks it over HTTP. What is not status 200 is an error. It may be called
// from any goroutine.
func (n *Node) Do(method, path string, form url.Values) (string, error) {
	req, err := http.NewRequest(method, "http://"+n.Addr+path, strings.NewReader(form.Encode()))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := plain.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", res.Status, body)
	}
	return string(body), err
}
