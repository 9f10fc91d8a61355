package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/starling-registry/starling/pkg/node"
	"github.com/starling-registry/starling/test/simnet"
)

const (
	port       = 8848
	peerPort   = port + 1001
	gossipPort = port - 902
	nodesName  = "nodes.sim" // resolves to all nodes
)

// A Cluster is nodes, clients and their network. All of it lives in one
// bubble; Stop ends it.
type Cluster struct {
	net   *simnet.Network
	hist  *history
	check *checker
	nodes []*Node
	opts  Options
	wg    sync.WaitGroup // all goroutines of the harness
	ctx   context.Context
	stop  context.CancelFunc

	clients   []*Client
	observers []*observer
}

// Node is one place in the cluster: the process there may die and be followed
// by another.
type Node struct {
	c    *Cluster
	id   int
	name string

	// Only the goroutine that plays the schedule starts and stops nodes.
	dir  string // of the process that runs or will run
	host *simnet.Host
	runs *node.Node
	// cutShort ends a clean stop that is under way; nil: none is. A second
	// Stop would wait for the first.
	cutShort context.CancelFunc

	mu         sync.Mutex
	up         bool
	run        int           // counts its processes
	frozen     chan struct{} // closed by Continue; nil: it runs
	started    time.Duration // of this process
	streamless map[int]bool  // peers that no stream may reach
	streams    map[net.Conn]int
	lose       int // so many reliable messages are lost
}

func (n *Node) addr() string { return fmt.Sprintf("10.0.0.%d", n.id+1) }

// newCluster makes the network and the nodes, and starts none.
func newCluster(o Options, dirs []string) *Cluster {
	c := &Cluster{net: simnet.New(o.Seed), hist: &history{start: time.Now()}, opts: o}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.check = newChecker(c)
	var addrs []string
	for i := range o.Nodes {
		n := &Node{c: c, id: i, name: fmt.Sprint("node", i), dir: dirs[i], streamless: map[int]bool{}, streams: map[net.Conn]int{}}
		c.nodes = append(c.nodes, n)
		addrs = append(addrs, n.addr())
	}
	c.net.SetName(nodesName, addrs...)
	for _, a := range c.nodes {
		for _, b := range c.nodes {
			if a != b {
				c.net.SetLink(a.name, b.name, o.Link)
			}
		}
	}
	if o.NoStreams {
		for a := range c.nodes {
			for b := range a {
				c.cutStreams(a, b)
			}
		}
	}
	return c
}

func (c *Cluster) now() time.Duration { return time.Since(c.hist.start) }

// Start starts a process. It returns when the node listens, which is not when
// it is ready.
func (n *Node) Start() error {
	if n.isUp() {
		return nil
	}
	_, err := os.Stat(n.dir)
	empty := err != nil
	n.host = n.c.net.Host(n.name, n.addr())
	gossip, err := n.host.Transport(gossipPort)
	if err != nil {
		return err
	}
	o := node.DefaultOptions()
	o.Name, o.Bind, o.Advertise, o.Port, o.DataDir = n.name, n.addr(), n.addr(), port, n.dir
	o.InsecureCluster = true
	if n.c.opts.Nodes > 1 {
		o.Join, o.Expect = []string{nodesName}, n.c.opts.Nodes
	}
	if n.id < len(n.c.opts.Skew) {
		o.ClockOffset = n.c.opts.Skew[n.id]
	}
	o.Listen, o.Lookup, o.Dial = n.host.Listen, n.host.Lookup, n.dialler(n.host)
	o.Gossip = &lossy{gossip, n}
	o.Freeze = n.freezePoint
	o.Version = "sim"
	config := zap.NewProductionEncoderConfig()
	config.TimeKey, config.StacktraceKey = "", ""
	o.Logger = zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(config), n.c.hist, n.c.opts.LogLevel)).Named(n.name)
	if n.c.opts.Node != nil {
		n.c.opts.Node(n.id, &o)
	}
	runs, err := node.Start(n.c.ctx, o)
	if err != nil {
		n.host.Crash()
		gossip.Shutdown()
		return fmt.Errorf("start %s: %w", n.name, err)
	}
	n.runs, n.cutShort = runs, nil
	n.mu.Lock()
	n.up, n.started = true, n.c.now()
	n.run++
	n.mu.Unlock()
	n.c.check.nodeStarted(n.id, empty)
	return nil
}

// state is how it is now, and which process that is.
func (n *Node) state() (up, frozen bool, run int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.up, n.frozen != nil, n.run
}

func (n *Node) isUp() bool { up, _, _ := n.state(); return up }

// Kill ends the process as SIGKILL does. What its goroutines still do finds no
// network, and another data directory than the next process.
func (n *Node) Kill() {
	if !n.isUp() {
		return
	}
	n.host.Crash()
	// The files as they are now: a crash writes nothing more.
	dir := n.dir + "+"
	if err := copyDir(dir, n.dir); err != nil {
		n.c.check.fail("harness", "%v", err)
	}
	n.dir = dir
	n.ended()
	if n.cutShort != nil {
		n.cutShort()
		n.cutShort = nil
		return
	}
	runs := n.runs
	n.c.wg.Go(func() {
		dead, cancel := context.WithCancel(context.Background())
		cancel()
		_ = runs.Stop(dead) // its peers and files are gone, so it may complain
	})
}

// ended notes that the process is gone, and lets a frozen one go.
func (n *Node) ended() {
	n.mu.Lock()
	n.up = false
	if n.frozen != nil {
		close(n.frozen)
		n.frozen = nil
	}
	n.mu.Unlock()
	n.c.check.nodeEnded(n.id)
}

// Drain ends the process as SIGTERM does: it moves its clients and leaves.
func (n *Node) Drain() {
	up, frozen, run := n.state()
	if !up || frozen || n.cutShort != nil {
		return
	}
	runs, host := n.runs, n.host
	ctx, cancel := context.WithTimeout(context.Background(), 25*time.Second)
	n.cutShort = cancel
	n.c.wg.Go(func() {
		defer cancel()
		if err := runs.Stop(ctx); err != nil {
			n.c.hist.log("%s: stop: %v", n.name, err)
		}
		n.mu.Lock()
		same := n.up && n.run == run // nobody killed it meanwhile
		n.mu.Unlock()
		if same {
			host.Crash() // its ports refuse
			n.ended()
			n.c.hist.log("* %s has left", n.name)
		}
	})
}

// Forget makes the next process start without data.
func (n *Node) Forget() { n.dir += "-" }

// Freeze stops the process as SIGSTOP does.
func (n *Node) Freeze() {
	if up, frozen, _ := n.state(); !up || frozen {
		return
	}
	n.host.Freeze()
	n.mu.Lock()
	n.frozen = make(chan struct{})
	n.mu.Unlock()
}

// Continue lets it go on. The network goes first: what came meanwhile is in
// the sockets when the process looks.
func (n *Node) Continue() {
	n.mu.Lock()
	frozen := n.frozen
	n.mu.Unlock()
	if frozen == nil {
		return
	}
	n.host.Thaw()
	n.mu.Lock()
	n.frozen = nil
	n.mu.Unlock()
	close(frozen)
}

// freezePoint is where a frozen node's goroutines wait.
func (n *Node) freezePoint() {
	n.mu.Lock()
	frozen := n.frozen
	n.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
}

// dialler makes connections for a node, and none to the stream port of a peer
// that it has no streams with.
func (n *Node) dialler(host *simnet.Host) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) {
		at, err := netip.ParseAddrPort(addr)
		if err != nil || at.Port() != peerPort {
			return host.Dial(ctx, addr)
		}
		to := int(at.Addr().As16()[15]) - 1
		n.mu.Lock()
		cut := n.streamless[to]
		n.mu.Unlock()
		if cut {
			<-ctx.Done() // as if packets were dropped: a refusal would say that the process is gone
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
		}
		conn, err := host.Dial(ctx, addr)
		if err != nil {
			return nil, err
		}
		n.mu.Lock()
		n.streams[conn] = to
		n.mu.Unlock()
		return conn, nil
	}
}

// cutStreams ends the streams between two nodes for good. The rest goes on.
func (c *Cluster) cutStreams(a, b int) {
	for _, w := range [][2]int{{a, b}, {b, a}} {
		n := c.nodes[w[0]]
		var cut []net.Conn
		n.mu.Lock()
		n.streamless[w[1]] = true
		for conn, to := range n.streams {
			if to == w[1] {
				cut = append(cut, conn)
				delete(n.streams, conn)
			}
		}
		n.mu.Unlock()
		for _, conn := range cut {
			conn.Close()
		}
	}
}

// lossy loses reliable messages of a node when it is told to.
type lossy struct {
	*simnet.Transport
	n *Node
}

// DialTimeout gives a connection that swallows everything, where a message is
// to be lost.
func (l *lossy) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	l.n.mu.Lock()
	lose := l.n.lose > 0
	if lose {
		l.n.lose--
	}
	l.n.mu.Unlock()
	if !lose {
		return l.Transport.DialTimeout(addr, timeout)
	}
	return hole{addr}, nil
}

var _ memberlist.Transport = (*lossy)(nil)

// A hole takes what is written and answers nothing.
type hole struct{ to string }

func (hole) Read([]byte) (int, error)         { return 0, io.EOF }
func (hole) Write(b []byte) (int, error)      { return len(b), nil }
func (hole) Close() error                     { return nil }
func (hole) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (h hole) RemoteAddr() net.Addr           { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(h.to)) }
func (hole) SetDeadline(time.Time) error      { return nil }
func (hole) SetReadDeadline(time.Time) error  { return nil }
func (hole) SetWriteDeadline(time.Time) error { return nil }

// Stop ends everything and waits for it.
func (c *Cluster) Stop() {
	for _, n := range c.nodes {
		n.Continue()
	}
	c.stop() // clients and observers
	for _, n := range c.nodes {
		n.Kill()
	}
	for _, x := range c.clients {
		x.host.Crash()
	}
	c.wg.Wait()
	time.Sleep(10 * time.Second) // memberlist does not wait for its probes
}

// copyDir copies the files of a data directory. The node may be replacing one
// just then; then all is copied once more, or some would be missing.
func copyDir(to, from string) error {
	var err error
	for range 100 {
		if err = os.CopyFS(to, os.DirFS(from)); !errors.Is(err, os.ErrNotExist) {
			break
		}
		if err := os.RemoveAll(to); err != nil {
			return err
		}
	}
	if err != nil {
		return fmt.Errorf("copy a data directory: %w", err)
	}
	return nil
}

func number(s string) int {
	n, err := strconv.Atoi(strings.TrimSpace(s))
	if err != nil {
		return 0
	}
	return n
}
