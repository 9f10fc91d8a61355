package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	readyTimeout = 30 * time.Second
	// stopTimeout is above the 20 s that a node may take to drain.
	stopTimeout = 30 * time.Second
)

// A cluster is three nodes, or one, on addresses of their own, all with the same port.
type cluster struct {
	bin   string
	port  int
	nodes []*node
	net   *network // nil: loopback
	// joined: the binary knows how to make a cluster of them; an early one did
	// not.
	joined bool
	flags  []string
}

// A node is one "starling serve" process, started again with the same data.
type node struct {
	name, ip string
	cluster  *cluster
	dir      string
	cmd      *exec.Cmd
	exited   chan struct{} // closed when cmd has ended
	up       atomic.Bool   // it is meant to run; read by readers
}

// newCluster prepares the nodes and starts none.
func newCluster(bin, dir string, names []string, network *network) (*cluster, error) {
	c := &cluster{bin: bin, net: network}
	var err error
	c.joined = len(names) > 1 && exec.Command(bin, "serve", "--check", "--join", "127.0.0.1", "--expect", "3").Run() == nil
	// The first byte of the last part is left to the host.
	prefix := fmt.Sprintf("127.%d.%d.", 16+mathrand.IntN(200), mathrand.IntN(256))
	if network != nil {
		prefix = network.prefix
		if c.joined {
			// Beyond loopback a cluster wants a key.
			secret := make([]byte, 32)
			rand.Read(secret)
			key := filepath.Join(dir, "gossip.key")
			if err := os.WriteFile(key, []byte(base64.StdEncoding.EncodeToString(secret)+"\n"), 0o600); err != nil {
				return nil, err
			}
			c.flags = append(c.flags, "--gossip-key-file", key)
		}
	}
	var addresses []string
	for i, name := range names {
		n := &node{name: name, ip: prefix + strconv.Itoa(11+i), cluster: c, dir: filepath.Join(dir, "node-"+name)}
		if err := os.MkdirAll(n.dir, 0o755); err != nil {
			return nil, err
		}
		c.nodes = append(c.nodes, n)
	}
	if c.port, err = c.freePort(); err != nil {
		return nil, err
	}
	for _, n := range c.nodes {
		addresses = append(addresses, n.http())
	}
	if c.joined {
		c.flags = append(c.flags, "--join", strings.Join(addresses, ","), "--expect", strconv.Itoa(len(c.nodes)))
	}
	return c, nil
}

// servers is what an SDK is told.
func (c *cluster) servers() string {
	var list []string
	for _, n := range c.nodes {
		list = append(list, n.http())
	}
	return strings.Join(list, ",")
}

func (c *cluster) node(name string) *node {
	return c.nodes[slices.IndexFunc(c.nodes, func(n *node) bool { return n.name == name })]
}

// freePort finds P such that all five ports that follow from it are free. It
// looks below the range from which the kernel takes the ports of outgoing
// connections. Nodes in namespaces of their own have theirs for themselves.
func (c *cluster) freePort() (int, error) {
	if c.net != nil {
		return 8848, nil
	}
	for range 200 {
		p := 20000 + mathrand.IntN(10000)
		free := true
		for _, n := range c.nodes {
			for _, q := range []int{p, p + 1000, p + 1001, p - 1000, p - 902} {
				l, err := net.Listen("tcp", net.JoinHostPort(n.ip, strconv.Itoa(q)))
				if err != nil {
					free = false
					continue
				}
				l.Close()
			}
		}
		if free {
			return p, nil
		}
	}
	return 0, errors.New("found no free ports")
}

func (n *node) http() string { return net.JoinHostPort(n.ip, strconv.Itoa(n.cluster.port)) }
func (n *node) grpc() string { return net.JoinHostPort(n.ip, strconv.Itoa(n.cluster.port+1000)) }
func (n *node) log() string  { return filepath.Join(n.dir, "log") }

// start starts the process and does not wait for it.
func (n *node) start() error {
	args := append([]string{n.cluster.bin, "serve", "--port", strconv.Itoa(n.cluster.port), "--bind", n.ip, "--name", n.name,
		"--data-dir", filepath.Join(n.dir, "data"), "--log-format", "json"}, n.cluster.flags...)
	if n.cluster.net != nil {
		args = append(n.cluster.net.inside(n.name), args...)
	}
	log, err := os.OpenFile(n.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close() // the process has its own handle
	n.cmd = exec.Command(args[0], args[1:]...)
	n.cmd.Stdout, n.cmd.Stderr = log, log
	// Ctrl-C is for this program, which then ends the nodes; and none outlives it.
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := n.cmd.Start(); err != nil {
		return fmt.Errorf("starting node %s: %w", n.name, err)
	}
	n.exited = make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) {
		cmd.Wait()
		close(exited)
	}(n.cmd, n.exited)
	n.up.Store(true)
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

func (n *node) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	last := "no answer"
	for {
		if status, body, err := get(ctx, "http://"+n.http()+"/readyz", time.Second); err == nil {
			if status == http.StatusOK {
				return nil
			}
			last = strings.TrimSpace(string(body))
		}
		select {
		case <-n.exited:
			return fmt.Errorf("node %s ended before it was ready (%v), see %s", n.name, n.cmd.ProcessState, n.log())
		case <-ctx.Done():
			return fmt.Errorf("node %s is not ready after %v (%s), see %s", n.name, readyTimeout, last, n.log())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// stop asks the process to end, as a service manager does, and waits for it.
func (n *node) stop(ctx context.Context) error {
	n.up.Store(false)
	if err := n.signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-n.exited:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(stopTimeout):
		n.kill()
		return fmt.Errorf("node %s did not end %v after SIGTERM, see %s", n.name, stopTimeout, n.log())
	}
	if code := n.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("node %s ended with status %d after SIGTERM, see %s", n.name, code, n.log())
	}
	return nil
}

// kill ends the process without giving it a chance to say goodbye.
func (n *node) kill() {
	n.up.Store(false)
	if n.running() {
		n.cmd.Process.Kill()
		<-n.exited
	}
}

// signal is for SIGSTOP and SIGCONT too.
func (n *node) signal(s syscall.Signal) error {
	if err := n.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("%v to node %s: %w", s, n.name, err)
	}
	return nil
}

// close ends what runs, at once.
func (c *cluster) close() {
	for _, n := range c.nodes {
		n.kill()
	}
}

// list asks the node for the instances of the service.
func (n *node) list(ctx context.Context, service string) ([]host, error) {
	status, body, err := get(ctx, "http://"+n.http()+"/nacos/v1/ns/instance/list?"+
		url.Values{"serviceName": {service}}.Encode(), time.Second)
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("node %s: status %d", n.name, status)
	}
	var answer struct {
		Hosts []host `json:"hosts"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("node %s: %w", n.name, err)
	}
	return answer.Hosts, nil
}

// A host is an instance in an answer of the HTTP API.
type host struct {
	IP      string `json:"ip"`
	Port    int    `json:"port"`
	Healthy bool   `json:"healthy"`
	Enabled bool   `json:"enabled"`
}

// web makes a new connection for each request: a reader must not wait on one
// that leads to a process that is gone.
var web = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func get(ctx context.Context, url string, limit time.Duration) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	res, err := web.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return res.StatusCode, body, err
}

// verify runs "starling verify" on the nodes that run. Without that command it
// says so and finds no fault.
func (c *cluster) verify(ctx context.Context) (string, error) {
	if help, err := exec.Command(c.bin, "--help").CombinedOutput(); err != nil || !strings.Contains(string(help), "\n  verify ") {
		return "no such command", nil
	}
	var running []string
	for _, n := range c.nodes {
		if n.up.Load() {
			running = append(running, n.http())
		}
	}
	if len(running) < 2 {
		return "one node", nil
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, c.bin, "verify", "--servers", strings.Join(running, ",")).CombinedOutput()
	if err != nil {
		return "failed", fmt.Errorf("starling verify: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return "holds", nil
}
