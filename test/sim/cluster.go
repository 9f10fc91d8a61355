package sim

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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
	writers   []*writer
	ledger    *ledger
	shop      *simnet.Host // where persistent instances are
	storm     atomic.Int64 // until when writers write as fast as they can
	wipes     []int        // nodes whose data was taken; of the goroutine that plays the schedule
	// streamless: some nodes have no streams with each other, for good;
	// likewise.
	streamless bool
	led        int // the node that "it" stands for in a schedule, likewise
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
	moved      bool          // to its other address
	run        int           // counts its processes
	freezes    int           // counts how often it was frozen
	frozen     chan struct{} // closed by Continue; nil: it runs
	started    time.Duration // of this process
	drains     bool          // it is about to leave
	streamless map[int]bool  // peers that no stream may reach
	streams    map[net.Conn]int
	lose       int // so many reliable messages are lost
}

// addr is where the node is or will be. The last byte tells which node it is.
func (n *Node) addr() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.moved {
		return fmt.Sprintf("10.0.9.%d", n.id+1)
	}
	return fmt.Sprintf("10.0.0.%d", n.id+1)
}

// newCluster makes the network and the nodes, and starts none.
func newCluster(o Options, dirs []string) *Cluster {
	c := &Cluster{net: simnet.New(o.Seed), hist: &history{start: time.Now()}, opts: o}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.check = newChecker(c)
	c.ledger = newLedger(c)
	for i := range o.Nodes {
		n := &Node{c: c, id: i, name: fmt.Sprint("node", i), dir: dirs[i], streamless: map[int]bool{}, streams: map[net.Conn]int{}}
		c.nodes = append(c.nodes, n)
	}
	c.setName()
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

// setName makes the name of the nodes lead to where they are now.
func (c *Cluster) setName() {
	var addrs []string
	for _, n := range c.nodes {
		addrs = append(addrs, n.addr())
	}
	c.net.SetName(nodesName, addrs...)
}

// founders are how many nodes make the cluster; the others join it later.
func (c *Cluster) founders() int {
	if c.opts.Founders > 0 {
		return c.opts.Founders
	}
	return c.opts.Nodes
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
		o.Join, o.Expect = []string{nodesName}, n.c.founders()
	}
	if n.c.opts.Link.Delay > 100*time.Millisecond {
		o.RaftHeartbeat = 2 * time.Second // a leader must hear of the others within half of it
	}
	if n.id < len(n.c.opts.Skew) {
		o.ClockOffset = n.c.opts.Skew[n.id]
	}
	o.Listen, o.Lookup, o.Dial = n.host.Listen, n.host.Lookup, n.dialler(n.host)
	o.Gossip = &lossy{gossip, n}
	o.Freeze = n.freezePoint
	o.NoSync = true // processes die here, not machines; see test/power
	// Often enough that nodes start from one, and followers are given one.
	o.RaftSnapshotEntries, o.RaftSnapshotEvery = 40, 10*time.Second
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
	n.up, n.drains, n.started = true, false, n.c.now()
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

// frozenSoFar counts how often it was frozen.
func (n *Node) frozenSoFar() int { n.mu.Lock(); defer n.mu.Unlock(); return n.freezes }

func (n *Node) leaving() bool { n.mu.Lock(); defer n.mu.Unlock(); return n.drains }

func (n *Node) isUp() bool { up, _, _ := n.state(); return up }

// Kill ends the process as SIGKILL does. What its goroutines still do finds no
// network, and another data directory than the next process.
func (n *Node) Kill() {
	if !n.isUp() {
		return
	}
	n.host.Crash()
	// The files as they are now, perhaps in the middle of a change: a crash
	// writes nothing more.
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
	n.mu.Lock()
	n.drains = true
	n.mu.Unlock()
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
func (n *Node) Forget() {
	n.dir += "-"
	n.c.wipes = append(n.c.wipes, n.id)
	if n.c.mayHaveLost() {
		n.c.ledger.close("so many nodes have lost their data that the cluster may have")
	}
}

// Move makes the next process start at another address.
func (n *Node) Move() {
	n.mu.Lock()
	n.moved = !n.moved
	n.mu.Unlock()
	n.c.setName()
}

// Freeze stops the process as SIGSTOP does.
func (n *Node) Freeze() {
	if up, frozen, _ := n.state(); !up || frozen {
		return
	}
	n.host.Freeze()
	n.mu.Lock()
	n.frozen = make(chan struct{})
	n.freezes++
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
	c.streamless = true
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
	for _, w := range c.writers {
		w.host.Crash()
	}
	c.shop.Crash()
	c.wg.Wait()
	time.Sleep(10 * time.Second) // memberlist does not wait for its probes
}

// copyDir copies the files of a data directory whose process goes on for a
// moment. What a file would hold that changes while it is read is nothing that
// a crash can leave: the log (bbolt) writes pages first and then one that
// points to them, and could be copied the other way round. So all is read again
// until two times in a row give the same. Nothing that the log or others write
// comes back to what it was: bytes that are equal both times have been so in
// between, too, and the copy is the files as they were at that moment, with
// pages of a transaction that nothing points to, perhaps, as after a crash.
func copyDir(to, from string) error {
	last, err := readDir(from)
	for range 100 {
		var again map[string]string
		if again, err = readDir(from); err == nil && maps.Equal(last, again) {
			return writeDir(to, again)
		}
		last = again
	}
	return fmt.Errorf("copy a data directory: it does not stand still (%v)", err)
}

// readDir reads all files below a directory; a name that ends with / is a
// directory.
func readDir(dir string) (map[string]string, error) {
	all := map[string]string{}
	files := os.DirFS(dir)
	return all, fs.WalkDir(files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == "." {
			return err
		}
		if entry.IsDir() {
			all[path+"/"] = ""
			return nil
		}
		b, err := fs.ReadFile(files, path)
		all[path] = string(b)
		return err
	})
}

func writeDir(dir string, all map[string]string) error {
	err := os.Mkdir(dir, 0o700)
	for _, path := range slices.Sorted(maps.Keys(all)) { // a directory before what is in it
		if err != nil {
			break
		}
		if name, isDir := strings.CutSuffix(path, "/"); isDir {
			err = os.Mkdir(filepath.Join(dir, name), 0o700)
		} else {
			err = os.WriteFile(filepath.Join(dir, path), []byte(all[path]), 0o600)
		}
	}
	return err
}

func number(s string) int {
	n, err := strconv.Atoi(strings.TrimSpace(s))
	if err != nil {
		return 0
	}
	return n
}
