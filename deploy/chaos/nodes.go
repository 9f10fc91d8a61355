package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/starling-registry/starling/deploy/chaos/disk"
	"github.com/starling-registry/starling/deploy/chaos/verdict"
	starling "github.com/starling-registry/starling/pkg/api"
)

const (
	readyTimeout = 30 * time.Second
	// stopTimeout is above the 20 s that a node may take to drain.
	stopTimeout = 30 * time.Second
	// controlTimeout is for a program that acts on servers of somebody else, which
	// may wait until one has drained.
	controlTimeout = 2 * time.Minute
	// diskSize holds a node's log and snapshot, and little more, so that it is
	// full soon.
	diskSize = 64 << 20
)

// A cluster is the nodes that are broken: processes of its own, or servers that
// somebody else runs. Its methods may be called by several goroutines.
type cluster struct {
	bin     string
	dir     string
	rec     *recorder
	net     network
	port    int
	flags   []string // of each node
	expect  int      // nodes at the start
	name    string   // DNS name that nodes join by; "" if they know addresses
	disks   bool     // each node's data is on a disk that can be broken
	control string   // program that acts on servers of somebody else
	foreign bool     // they are
	// starling: they have the native API, so that more can be asked of them.
	starling bool
	api      *api
	// service has the providers and begins the name of the one that has persistent
	// instances. Servers of somebody else may still have those of an earlier run.
	service string

	mu    sync.Mutex
	nodes []*node // also those that left
	named int     // of those that were added
}

// A node is one server: a "starling serve" process that is started again with
// the same data, or one that belongs to somebody else.
type node struct {
	name    string
	cluster *cluster
	// bind is the address that it listens at, host the one that others reach it
	// at.
	bind, host string
	port       int
	server     string // of somebody else's, as the command line has it
	dir        string
	flags      []string // of the next start, beside the cluster's
	disk       *disk.Disk

	cmd    *exec.Cmd
	exited chan struct{} // closed when cmd has ended
	up     atomic.Bool   // it is meant to run; read by readers
	ends   atomic.Bool   // it may end by itself
	left   atomic.Bool   // it is not coming back
}

// newCluster prepares nodes and starts none.
func newCluster(bin, dir string, rec *recorder, net network, port int, names []string, disks bool) (*cluster, error) {
	c := &cluster{bin: bin, dir: dir, rec: rec, net: net, port: port, expect: len(names), starling: true, api: apiV1, service: ownService, disks: disks}
	// Where others than this machine could reach them, a cluster wants a secret.
	secret := make([]byte, 32)
	rand.Read(secret)
	key := filepath.Join(dir, "gossip.key")
	if err := os.WriteFile(key, []byte(base64.StdEncoding.EncodeToString(secret)+"\n"), 0o600); err != nil {
		return nil, err
	}
	c.flags = []string{"--gossip-key-file", key}
	for _, name := range names {
		if _, err := c.prepare(name); err != nil {
			return c, err
		}
	}
	return c, nil
}

// prepare makes room for a node.
func (c *cluster) prepare(name string) (*node, error) {
	if err := c.net.Add(name); err != nil {
		return nil, err
	}
	n := &node{name: name, cluster: c, bind: c.net.Bind(name), host: c.net.Address(name), port: c.port, dir: filepath.Join(c.dir, "node-"+name)}
	if err := os.MkdirAll(n.dir, 0o755); err != nil {
		return nil, err
	}
	if c.disks {
		var err error
		if n.disk, err = disk.New(filepath.Join(n.dir, "disk"), diskSize); err != nil {
			return nil, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes = append(c.nodes, n)
	return n, nil
}

// all are the nodes that have not left.
func (c *cluster) all() []*node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.nodes), func(n *node) bool { return n.left.Load() })
}

// running are the nodes that are meant to run.
func (c *cluster) running() []*node {
	return slices.DeleteFunc(c.all(), func(n *node) bool { return !n.up.Load() })
}

func (c *cluster) nodesBut(not *node) []*node {
	return slices.DeleteFunc(c.running(), func(n *node) bool { return n == not })
}

func (c *cluster) names() []string { return namesOf(c.all()) }

func (c *cluster) others(name string) []string {
	return slices.DeleteFunc(c.names(), func(other string) bool { return other == name })
}

func namesOf(nodes []*node) []string {
	var list []string
	for _, n := range nodes {
		list = append(list, n.name)
	}
	return list
}

func addressesOf(nodes []*node) []string {
	var list []string
	for _, n := range nodes {
		list = append(list, n.http())
	}
	return list
}

// node finds one by its name, which a schedule has checked.
func (c *cluster) node(name string) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[slices.IndexFunc(c.nodes, func(n *node) bool { return n.name == name })]
}

func (n *node) http() string { return net.JoinHostPort(n.host, strconv.Itoa(n.port)) }
func (n *node) grpc() string { return net.JoinHostPort(n.host, strconv.Itoa(n.port+1000)) }
func (n *node) log() string  { return filepath.Join(n.dir, "log") }

// where says where to find out more about it.
func (n *node) where() string {
	if n.cluster.foreign {
		return "it is " + n.server
	}
	return "see " + n.log()
}

// start starts the process and does not wait until it is ready.
func (n *node) start(ctx context.Context) error {
	n.ends.Store(false)
	if n.cluster.foreign {
		err := n.act(ctx, "start")
		n.is(verdict.Starting)
		return err
	}
	c := n.cluster
	data := filepath.Join(n.dir, "data")
	if n.disk != nil {
		data = n.disk.Dir()
	}
	args := append([]string{c.bin, "serve", "--port", strconv.Itoa(n.port), "--bind", n.bind, "--advertise", n.host, "--name", n.name,
		"--data-dir", data, "--log-format", "json"}, c.flags...)
	args = append(append(args, c.join(n)...), n.flags...)
	log, err := os.OpenFile(n.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close() // the process has its own handle
	n.cmd = c.net.Command(n.name, args...)
	n.cmd.Stdout, n.cmd.Stderr = log, log
	// Ctrl-C is for this program, which then ends the nodes; and none outlives it.
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := n.cmd.Start(); err != nil {
		return fmt.Errorf("starting node %s: %w", n.name, err)
	}
	c.net.Started(n.name, n.cmd.Process.Pid)
	if err := c.net.Up(n.name); err != nil {
		return err
	}
	n.exited = make(chan struct{})
	n.is(verdict.Starting)
	go func(cmd *exec.Cmd, exited chan struct{}) {
		cmd.Wait()
		n.is(verdict.Down) // also if it was not told to end
		close(exited)
	}(n.cmd, n.exited)
	return nil
}

// join is how a node finds the others.
func (c *cluster) join(n *node) []string {
	all := c.all()
	c.mu.Lock()
	founds := slices.Index(c.nodes, n) < c.expect
	c.mu.Unlock()
	if c.expect == 1 && founds {
		return nil // the first one of a cluster of one; those that follow join it
	}
	to := addressesOf(all)
	if c.name != "" {
		to = []string{c.name}
	}
	args := []string{"--join", strings.Join(to, ",")}
	if founds {
		args = append(args, "--expect", strconv.Itoa(c.expect))
	}
	return args
}

// is records what was made of the node.
func (n *node) is(state verdict.NodeState) {
	if state == verdict.Down && !n.cluster.foreign {
		n.cluster.net.Down(n.name) // fails only for an end that is not there
	}
	n.up.Store(state == verdict.Up || state == verdict.Starting || state == verdict.Frozen)
	n.cluster.rec.node(n.name, state)
}

// act asks the control program of somebody else's servers.
func (n *node) act(ctx context.Context, action string) error {
	if action == "start" || action == "continue" {
		// Somebody's server is not left down because this program was stopped.
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, controlTimeout, fmt.Errorf("it has not ended after %v", controlTimeout))
	defer cancel()
	// A file: a server that it starts may keep what it was given open.
	out, err := os.CreateTemp(n.cluster.dir, "control-")
	if err != nil {
		return err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	cmd := exec.CommandContext(ctx, n.cluster.control, action, n.server)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for this program
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		said, _ := os.ReadFile(out.Name())
		return fmt.Errorf("%s %s %s: %w: %.1000s", n.cluster.control, action, n.server, err, strings.TrimSpace(string(said)))
	}
	return nil
}

// isRunning tells whether its process, or whatever is there, runs.
func (n *node) isRunning() bool {
	if n.cluster.foreign {
		return n.up.Load()
	}
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

// mayEnd says that it is no fault if the node ends by itself.
func (n *node) mayEnd() { n.ends.Store(true) }

// waitReady returns when the node takes clients.
func (n *node) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	last := "no answer"
	for {
		status, body, err := get(ctx, "http://"+n.http()+n.cluster.readiness(), time.Second)
		if err == nil && status == http.StatusOK {
			n.is(verdict.Up)
			return nil
		}
		if err == nil {
			last = strings.TrimSpace(string(body))
		}
		select {
		case <-n.exited: // nil, and never, for servers of somebody else
			return fmt.Errorf("node %s ended before it was ready (%v), %s", n.name, n.cmd.ProcessState, n.where())
		case <-ctx.Done():
			return fmt.Errorf("node %s is not ready after %v (%s), %s", n.name, readyTimeout, last, n.where())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// readiness is the path that answers 200 once a server takes clients.
func (c *cluster) readiness() string {
	if c.starling {
		return "/readyz"
	}
	return c.api.list + "?serviceName=" + c.service
}

// stop asks the process to end, as a service manager does, and waits for it.
func (n *node) stop(ctx context.Context) error {
	n.is(verdict.Stopping)
	defer n.is(verdict.Down)
	if n.cluster.foreign {
		return n.act(ctx, "terminate")
	}
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

// crash ends the process without giving it a chance to say goodbye, and does
// not wait for it.
func (n *node) crash(ctx context.Context) error {
	n.is(verdict.Down)
	if n.cluster.foreign {
		return n.act(ctx, "kill")
	}
	return n.signal(syscall.SIGKILL)
}

// waitDown returns when the process is gone.
func (n *node) waitDown() {
	if n.exited != nil {
		<-n.exited
	}
}

// kill is crash and waitDown of a process of ours that may have ended.
func (n *node) kill() {
	if n.isRunning() && !n.cluster.foreign {
		n.is(verdict.Down)
		n.cmd.Process.Kill()
		<-n.exited
	}
}

func (n *node) freeze(ctx context.Context) error {
	n.is(verdict.Frozen)
	if n.cluster.foreign {
		return n.act(ctx, "stop")
	}
	return n.signal(syscall.SIGSTOP)
}

func (n *node) thaw(ctx context.Context) error {
	defer n.is(verdict.Up)
	if n.cluster.foreign {
		return n.act(ctx, "continue")
	}
	return n.signal(syscall.SIGCONT)
}

func (n *node) signal(s syscall.Signal) error {
	if err := n.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("%v to node %s: %w", s, n.name, err)
	}
	return nil
}

// close ends what runs, at once, and unmounts its disks.
func (c *cluster) close() error {
	var errs []error
	for _, n := range c.nodes {
		n.kill()
		if n.disk != nil {
			errs = append(errs, n.disk.Close())
		}
	}
	return errors.Join(errs...)
}

// leader asks the nodes who leads the log.
func (c *cluster) leader(ctx context.Context) (*node, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		for _, n := range c.running() {
			status, err := n.raft(ctx)
			if err != nil {
				continue
			}
			for _, other := range c.running() {
				if other.name == status.LeaderName {
					return other, nil
				}
			}
		}
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return nil, errors.New("nobody says who leads the log")
		}
	}
}

// raft is what the node knows of the log.
func (n *node) raft(ctx context.Context) (*starling.Raft, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	client, err := starling.NewClient(n.http())
	if err != nil {
		return nil, err
	}
	return client.Raft(ctx)
}

// verify runs "starling verify" on the nodes that run.
func (c *cluster) verify(ctx context.Context) (string, error) {
	running := addressesOf(c.running())
	switch {
	case !c.starling:
		return "not asked", nil
	case c.foreign && !isThere(c.bin):
		return "not asked: no starling at " + c.bin, nil
	case len(running) < 2:
		return "one node", nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	// What was written last may take half a minute to turn unhealthy on a busy machine.
	out, err := exec.CommandContext(ctx, c.bin, "verify", "--within", "40s", "--servers", strings.Join(running, ",")).CombinedOutput()
	if err != nil {
		return "failed", fmt.Errorf("starling verify: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return "holds", nil
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// nextName is that of a node that is added.
func (c *cluster) nextName() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.named++
	return string(rune('a' + c.expect + c.named - 1))
}

// forget takes a node that has left out of the log.
func (c *cluster) forget(ctx context.Context, n *node) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	for {
		out, err := exec.CommandContext(ctx, c.bin, "members", "remove", n.name, "--server", c.running()[0].http()).CombinedOutput()
		if err == nil {
			return nil
		}
		if sleep(ctx, 500*time.Millisecond) != nil { // until membership has heard that it left
			return fmt.Errorf("starling members remove %s: %w: %s", n.name, err, strings.TrimSpace(string(out)))
		}
	}
}

// recognise finds out what kind of servers somebody else runs.
func (c *cluster) recognise(ctx context.Context) error {
	n := c.nodes[0]
	status, _, err := get(ctx, "http://"+n.http()+"/starling/v1/members", 3*time.Second)
	if err != nil {
		return fmt.Errorf("%s: no server answers: %w", n.server, err)
	}
	c.starling = status == http.StatusOK
	for _, a := range []*api{apiV1, apiV3} {
		if _, err = a.hosts(ctx, n.http(), c.service); err == nil {
			c.api = a
			return nil
		}
	}
	return fmt.Errorf("%s: this is no server of Nacos' naming API, v1 or v3: %w", n.server, err)
}
