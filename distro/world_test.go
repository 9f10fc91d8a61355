package distro

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/registry"
)

// A world has some nodes, and a network that can be cut, loses and repeats
// gossip. Membership is what the test says. It runs in a synctest bubble.
type world struct {
	t  *testing.T
	wg sync.WaitGroup

	mu         sync.Mutex
	rnd        *rand.Rand
	nodes      []*node
	cut        map[[2]int]bool // nothing passes
	streamCut  map[[2]int]bool // only gossip, and reliable messages
	loseNext   map[int]bool    // the next reliable message of a node
	gossipLoss int             // percent
	repeat     int             // percent of messages that come twice
	headDelay  time.Duration   // of heads, at most
	dialable   map[string]bool
	dials      map[string]int
	partDelay  time.Duration // of each part of an answer to a pull
	options    func(*Options)
}

type node struct {
	w        *world
	n        int
	life     registry.Life
	clock    *registry.Clock
	reg      *registry.Registry
	d        *Replicator
	metrics  *prometheus.Registry
	up       bool
	frozen   chan struct{} // closed when it goes on; nil: it is not
	stalled  bool
	state    map[int]MemberState
	snapshot []byte
	outlived atomic.Int32
	skew     time.Duration
}

func run(t *testing.T, nodes int, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, rnd: rand.New(rand.NewPCG(1, 2)), cut: map[[2]int]bool{}, streamCut: map[[2]int]bool{}, loseNext: map[int]bool{},
			gossipLoss: 30, dialable: map[string]bool{}, dials: map[string]int{}}
		for n := range nodes {
			w.nodes = append(w.nodes, &node{w: w, n: n, life: testLife(n+1, 0), state: map[int]MemberState{}})
		}
		defer func() {
			for _, nd := range w.nodes {
				w.kill(nd.n)
			}
			w.wg.Wait()
		}()
		test(w)
	})
}

// startAll starts the nodes at once, as members of each other.
func (w *world) startAll() {
	for n := range w.nodes {
		w.start(n)
	}
	for n := range w.nodes {
		for p := range w.nodes {
			w.nodes[n].state[p] = Alive
		}
	}
	for n := range w.nodes {
		w.tell(n)
	}
	time.Sleep(2 * time.Second)
	for n, nd := range w.nodes {
		if ok, why := nd.d.Ready(); !ok {
			w.t.Fatalf("node %d is not ready: %s", n, why)
		}
	}
}

func (w *world) start(n int) {
	nd := w.nodes[n]
	nd.life.Epoch++
	nd.clock = registry.NewClock(0, nd.skew)
	nd.metrics = prometheus.NewRegistry()
	nd.state = map[int]MemberState{n: Alive}
	o := DefaultOptions()
	o.Peers, o.Life, o.Clock, o.Metrics, o.Logger, o.Joined = nd, nd.life, nd.clock, nd.metrics, zap.NewNop(), len(w.nodes) > 1
	o.Awake = nd.awake
	o.Outlived = func() { nd.outlived.Add(1) }
	o.Dial = func(ctx context.Context, addr string) error {
		w.mu.Lock()
		w.dials[addr]++
		ok := w.dialable[addr]
		w.mu.Unlock()
		if ok {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	}
	o.Load = func() (io.ReadCloser, error) {
		if nd.snapshot == nil {
			return nil, fs.ErrNotExist
		}
		return io.NopCloser(bytes.NewReader(nd.snapshot)), nil
	}
	o.Save = func(write func(io.Writer) error) error {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			return err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if nd.up { // a killed node writes no last snapshot
			nd.snapshot = b.Bytes()
		}
		return nil
	}
	ro := registry.DefaultOptions()
	ro.Life, ro.Clock = nd.life, nd.clock
	ro.Wrote = func(k registry.RecordKey) { nd.d.Wrote(k) }
	nd.reg = registry.New(ro)
	o.Registry = nd.reg
	if w.options != nil {
		w.options(&o)
	}
	nd.d = New(o)
	w.mu.Lock()
	nd.up = true
	w.mu.Unlock()
	nd.d.Start()
}

func (w *world) kill(n int) {
	nd := w.nodes[n]
	w.mu.Lock()
	up := nd.up
	nd.up = false
	w.mu.Unlock()
	if up {
		w.thaw(n)
		nd.d.Stop()
	}
}

// stop is a clean end: the last snapshot is written.
func (w *world) stop(n int) {
	w.nodes[n].d.Stop()
	w.mu.Lock()
	w.nodes[n].up = false
	w.mu.Unlock()
}

func (w *world) freeze(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodes[n].frozen, w.nodes[n].stalled = make(chan struct{}), true
}

func (w *world) thaw(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if nd := w.nodes[n]; nd.frozen != nil {
		close(nd.frozen)
		nd.frozen = nil
	}
}

func (nd *node) awake() {
	nd.w.mu.Lock()
	frozen, first := nd.frozen, false
	nd.w.mu.Unlock()
	if frozen == nil {
		return
	}
	<-frozen
	nd.w.mu.Lock()
	first, nd.stalled = nd.stalled, false
	up := nd.up
	nd.w.mu.Unlock()
	if first && up {
		nd.d.Stalled()
	}
}

// see says what node n thinks of p from now on.
func (w *world) see(n, p int, s MemberState) {
	w.mu.Lock()
	was, known := w.nodes[n].state[p]
	w.nodes[n].state[p] = s
	w.mu.Unlock()
	w.tell(n)
	if s == Alive && (!known || was != Alive) {
		w.connect(n, p)
	}
}

// allSee says it for all that are up.
func (w *world) allSee(p int, s MemberState) {
	for n, nd := range w.nodes {
		if n != p && nd.up {
			w.see(n, p, s)
		}
	}
}

func (w *world) tell(n int) {
	nd := w.nodes[n]
	var ms []Member
	w.mu.Lock()
	for p, s := range nd.state {
		ms = append(ms, Member{ID: w.nodes[p].life.Node, Epoch: max(1, w.nodes[p].life.Epoch), State: s, Name: fmt.Sprint("n", p)})
	}
	w.mu.Unlock()
	nd.d.Members(ms)
	for p, s := range nd.state {
		if p != n && s == Alive {
			w.connect(n, p)
		}
	}
}

func (w *world) connect(n, p int) {
	w.mu.Lock()
	ok := w.nodes[n].up && w.nodes[p].up && !w.cut[[2]int{n, p}] && !w.streamCut[[2]int{n, p}]
	w.mu.Unlock()
	if ok {
		w.nodes[n].d.Connected(w.nodes[p].life.Node)
	}
}

func (w *world) sever(a, b int, cut bool) {
	w.mu.Lock()
	w.cut[[2]int{a, b}], w.cut[[2]int{b, a}] = cut, cut
	w.mu.Unlock()
}

func (w *world) severStream(a, b int) {
	w.mu.Lock()
	w.streamCut[[2]int{a, b}], w.streamCut[[2]int{b, a}] = true, true
	w.mu.Unlock()
}

func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

func (w *world) dialled() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.dials)
}

func (w *world) intn(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rnd.IntN(n)
}

var errDown = errors.New("no way to the peer")

func (w *world) find(id string) *node {
	for _, nd := range w.nodes {
		if nd.life.Node == id {
			return nd
		}
	}
	return nil
}

func (w *world) deliver(ctx context.Context, from, to *node, via Via, msg []byte) error {
	w.mu.Lock()
	frozen := to.frozen
	up := to.up && !w.cut[[2]int{from.n, to.n}]
	twice := w.rnd.IntN(100) < w.repeat
	w.mu.Unlock()
	if !up {
		return errDown
	}
	if frozen != nil {
		if via == Gossip {
			return nil
		}
		select {
		case <-frozen:
		case <-ctx.Done():
			return ctx.Err()
		}
		to.awake()
	}
	to.d.Message(from.life.Node, via, bytes.Clone(msg))
	if twice {
		to.d.Message(from.life.Node, via, bytes.Clone(msg))
	}
	return nil
}

func (w *world) delay(msg []byte) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if m, err := readMessage(msg); err == nil && m.GetHeads() != nil && w.headDelay > 0 {
		return time.Duration(w.rnd.Int64N(int64(w.headDelay)))
	}
	return 0
}

func (nd *node) Broadcast(msg []byte) bool {
	w := nd.w
	for _, to := range w.nodes {
		w.mu.Lock()
		lost := to == nd || !nd.up || w.rnd.IntN(100) < w.gossipLoss
		wait := time.Duration(1+w.rnd.IntN(100)) * time.Millisecond
		w.mu.Unlock()
		if lost {
			continue
		}
		wait += w.delay(msg)
		w.wg.Go(func() {
			time.Sleep(wait)
			w.deliver(context.Background(), nd, to, Gossip, msg)
		})
	}
	return true
}

func (nd *node) Send(ctx context.Context, id string, msg []byte) error {
	w := nd.w
	to := w.find(id)
	w.mu.Lock()
	via := Stream
	if w.streamCut[[2]int{nd.n, to.n}] {
		via = Reliable
	}
	lost := via == Reliable && w.loseNext[nd.n]
	if lost {
		w.loseNext[nd.n] = false
	}
	w.mu.Unlock()
	time.Sleep(time.Millisecond)
	if lost {
		return nil
	}
	if late := w.delay(msg); late > 0 {
		w.wg.Go(func() {
			time.Sleep(late)
			w.deliver(context.Background(), nd, to, via, msg)
		})
		return nil
	}
	return w.deliver(ctx, nd, to, via, msg)
}

func (nd *node) Pull(ctx context.Context, id string, req []byte, part func([]byte) error) error {
	w := nd.w
	from := w.find(id)
	ok := func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return from.up && from.frozen == nil && !w.cut[[2]int{nd.n, from.n}] && !w.streamCut[[2]int{nd.n, from.n}]
	}
	time.Sleep(time.Millisecond)
	if !ok() {
		return errDown
	}
	return from.d.Serve(ctx, nd.life.Node, req, func(b []byte) error {
		w.mu.Lock()
		wait := w.partDelay
		w.mu.Unlock()
		time.Sleep(wait)
		if !ok() {
			return errDown
		}
		return part(b)
	})
}

var testService = registry.ServiceKey{Namespace: "public", Group: "DEFAULT_GROUP", Name: "orders"}

// client registers one instance at the node.
func (w *world) client(n int, name string, port int) *registry.Client {
	c := w.nodes[n].reg.Open(name, registry.Connection)
	w.register(c, port)
	return c
}

func (w *world) register(c *registry.Client, port int) {
	w.registerBig(c, port, "")
}

func (w *world) registerBig(c *registry.Client, port int, ballast string) {
	w.t.Helper()
	i := &registry.Instance{InstanceKey: registry.InstanceKey{IP: "10.0.0.1", Port: port, Cluster: "DEFAULT"}, Weight: 1, Healthy: true, Enabled: true}
	if ballast != "" {
		i.Metadata = registry.Metadata{{Key: "b", Value: ballast}}
	}
	if err := c.Register(testService, []*registry.Instance{i}, false); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) shown(n int) string {
	var ports []string
	for _, i := range w.nodes[n].reg.Snapshot(testService).Instances {
		ports = append(ports, fmt.Sprint(i.Port))
	}
	return strings.Join(ports, " ")
}

func (w *world) expectShown(want string, nodes ...int) {
	w.t.Helper()
	for _, n := range nodes {
		if got := w.shown(n); got != want {
			w.t.Fatalf("node %d shows [%s], want [%s]", n, got, want)
		}
	}
}

func (w *world) lifeState(n int, of registry.Life) (s LifeStatus, ok bool) {
	for _, l := range w.nodes[n].d.Status().Lives {
		if l.Life == of {
			return l, true
		}
	}
	return s, false
}

func (w *world) expectState(n int, of registry.Life, want registry.LifeState) {
	w.t.Helper()
	if l, ok := w.lifeState(n, of); !ok || l.State != want {
		w.t.Fatalf("node %d has %v as %v (known: %v), want %v", n, of, l.State, ok, want)
	}
}

// expectEqual says that the nodes have the same of all lives, and show the same.
func (w *world) expectEqual(nodes ...int) {
	w.t.Helper()
	first := w.nodes[nodes[0]]
	for _, n := range nodes {
		nd := w.nodes[n]
		for _, l := range first.d.Status().Lives {
			if is, ok := w.lifeState(n, l.Life); !ok || is.Applied != l.Applied || is.Digest != l.Digest || is.State != l.State {
				w.t.Fatalf("life %v: node %d has %d %x %v, node %d has %d %x %v", l.Life, first.n, l.Applied, l.Digest, l.State, n, is.Applied, is.Digest, is.State)
			}
		}
		first.reg.Hashes(func(k registry.ServiceKey, h registry.Hash) {
			nd.reg.Hashes(func(o registry.ServiceKey, is registry.Hash) {
				if o == k && is.Sum != h.Sum {
					w.t.Fatalf("service %v: node %d shows [%s], node %d shows [%s]", k, first.n, w.shown(first.n), n, w.shown(n))
				}
			})
		})
		w.expectCount(n, "digest_mismatches_total", 0)
	}
}

func (w *world) count(n int, name string) (sum float64) {
	w.t.Helper()
	families, err := w.nodes[n].metrics.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "starling_distro_"+name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

func (w *world) expectCount(n int, name string, want float64) {
	w.t.Helper()
	if got := w.count(n, name); got != want {
		w.t.Fatalf("node %d: %s is %v, want %v", n, name, got, want)
	}
}

func (w *world) applied(n int) uint64 {
	l, _ := w.lifeState(n, w.nodes[n].life)
	return l.Applied
}
