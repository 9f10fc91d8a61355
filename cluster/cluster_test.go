package cluster

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/starling-registry/starling/test/simnet"
)

// A world is some nodes on a simulated network.
type world struct {
	t     *testing.T
	net   *simnet.Network
	nodes []*node
}

// A node is a Cluster and what its handlers heard.
type node struct {
	*Cluster
	t    *testing.T
	net  *simnet.Network
	host *simnet.Host
	opts Options
	logs *observer.ObservedLogs
	reg  *prometheus.Registry

	mu        sync.Mutex
	messages  []message
	connected []string
	clusterID []string
	founders  []string
	views     []change
	hold      chan struct{} // Message waits for it to be closed, if set
}

type message struct {
	from string
	via  Via
	text string
}

// A change is a member's state in a view, and when it was seen.
type change struct {
	id    string
	state State
	epoch uint64
	at    time.Time
}

func id(i int) string { return fmt.Sprintf("%032x", i+1) }

const main8848 = 8848

// add makes a node, not started. Hosts are 10.0.0.1 and so on.
func (w *world) add(change ...func(*Options)) *node {
	i := len(w.nodes)
	n := w.make(fmt.Sprintf("n%d", i), fmt.Sprintf("10.0.0.%d", i+1), id(i), 1, change...)
	w.nodes = append(w.nodes, n)
	return n
}

func (w *world) make(host, addr, id string, epoch uint64, change ...func(*Options)) *node {
	w.t.Helper()
	n := &node{t: w.t, net: w.net, host: w.net.Host(host, addr), reg: prometheus.NewRegistry()}
	core, logs := observer.New(zapcore.DebugLevel)
	n.logs = logs
	n.opts = Options{
		ID: id, Name: host, Epoch: epoch, Version: "test", Wire: 1, Commands: 3,
		Advertise: addr, HTTPPort: main8848, GRPCPort: main8848 + 1000, PeerPort: main8848 + 1001, RaftPort: main8848 - 1000, GossipPort: main8848 - gossipOffset,
		Join: []string{"nodes.test"}, Port: main8848,
		Lookup: n.host.Lookup, Listen: n.host.Listen, Dial: n.host.Dial,
		Logger: zap.New(core), Metrics: n.reg,
		Handlers: Handlers{
			Message: func(from string, via Via, msg []byte) {
				n.mu.Lock()
				hold := n.hold
				n.mu.Unlock()
				if hold != nil {
					<-hold
				}
				n.mu.Lock()
				defer n.mu.Unlock()
				n.messages = append(n.messages, message{from, via, string(msg)})
			},
			Connected: func(peer string) {
				n.mu.Lock()
				defer n.mu.Unlock()
				n.connected = append(n.connected, peer)
			},
			ClusterID: func(id string, founders []string) error {
				n.mu.Lock()
				defer n.mu.Unlock()
				n.clusterID = append(n.clusterID, id)
				n.founders = append(n.founders, founders...)
				return nil
			},
			Members: func(v *View) {
				n.mu.Lock()
				defer n.mu.Unlock()
				for _, m := range v.Members {
					n.views = append(n.views, seenNow(m))
				}
			},
		},
	}
	for _, f := range change {
		f(&n.opts)
	}
	return n
}

func seenNow(m Member) change { return change{m.ID, m.State, m.Epoch, time.Now()} }

func (n *node) start() *node {
	n.t.Helper()
	gossip, err := n.host.Transport(n.opts.GossipPort)
	if err != nil {
		n.t.Fatal(err)
	}
	n.opts.Transport = gossip
	if n.Cluster, err = New(n.opts); err != nil {
		n.t.Fatal(err)
	}
	if err := n.Start(n.t.Context()); err != nil {
		n.t.Fatal(err)
	}
	return n
}

// kill ends a node like kill -9.
func (n *node) kill() {
	n.host.Crash()
	n.Stop()
}

func (n *node) state(id string) State {
	m, ok := n.View().Member(id)
	if !ok {
		return 255
	}
	return m.State
}

// since tells how long after a time a member was first seen in a state.
func (n *node) since(start time.Time, id string, s State) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.views {
		if c.id == id && c.state == s && !c.at.Before(start) {
			return c.at.Sub(start)
		}
	}
	return -1
}

// seen tells whether a member was ever in a state since a time.
func (n *node) seen(start time.Time, id string, s State) bool { return n.since(start, id, s) >= 0 }

func (n *node) logged(msg string) int { return n.logs.FilterMessage(msg).Len() }

func (n *node) got(via Via) (texts []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range n.messages {
		if m.via == via {
			texts = append(texts, m.text)
		}
	}
	return texts
}

// count is the value of a counter or gauge.
func (n *node) count(name string, labels ...string) float64 {
	n.t.Helper()
	fams, err := n.reg.Gather()
	if err != nil {
		n.t.Fatal(err)
	}
	for _, f := range fams {
		if f.GetName() != "starling_cluster_"+name {
			continue
		}
	metric:
		for _, m := range f.Metric {
			for i := 0; i < len(labels); i += 2 {
				if !slices.ContainsFunc(m.Label, func(l *dto.LabelPair) bool { return l.GetName() == labels[i] && l.GetValue() == labels[i+1] }) {
					continue metric
				}
			}
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	n.t.Fatalf("no metric %s %v", name, labels)
	return 0
}

func newWorld(t *testing.T) *world {
	return &world{t: t, net: simnet.New(1)}
}

// grow starts a number of nodes that find each other behind a name, and waits
// until all have streams to all.
func (w *world) grow(size int, change ...func(*Options)) []*node {
	w.t.Helper()
	var addrs []string
	for range size {
		n := w.add(append([]func(*Options){func(o *Options) { o.Expect = size }}, change...)...)
		addrs = append(addrs, n.host.Addrs[0].String())
	}
	w.net.SetName("nodes.test", addrs...)
	for _, n := range w.nodes {
		n.start()
	}
	w.await(10*time.Second, "streams between all", func() bool {
		for _, n := range w.nodes {
			if len(n.View().Members) != size || n.count("streams") != float64(2*(size-1)) {
				return false
			}
		}
		return true
	})
	return w.nodes
}

// await polls a condition in virtual time.
func (w *world) await(d time.Duration, what string, f func() bool) time.Duration {
	w.t.Helper()
	start := time.Now()
	for !f() {
		if time.Since(start) > d {
			w.dump()
			w.t.Fatalf("not within %v: %s", d, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(start)
}

func (w *world) dump() {
	for _, n := range w.nodes {
		if n.Cluster == nil || n.View() == nil {
			continue
		}
		for _, m := range n.View().Members {
			w.t.Logf("%s sees %s %v epoch %d at %v", n.opts.Name, m.Name, m.State, m.Epoch, m.Gossip)
		}
		for _, e := range n.logs.All() {
			w.t.Log(n.opts.Name, e.Time.Format("04:05.000"), e.Level, e.Message, e.ContextMap())
		}
	}
}

func (w *world) stop() {
	for _, n := range w.nodes {
		if n.Cluster != nil {
			n.Stop()
		}
	}
	// memberlist's probes end by themselves, and time does not go on after a test.
	time.Sleep(10 * time.Second)
}

// bubble runs a test in virtual time.
func bubble(t *testing.T, f func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		f(w)
	})
}

func TestJoin(t *testing.T) {
	for _, size := range []int{3, 5} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			bubble(t, func(w *world) {
				t := w.t
				start := time.Now()
				nodes := w.grow(size)
				if d := time.Since(start); d > 3*time.Second {
					t.Errorf("joined after %v", d)
				}
				w.await(5*time.Second, "a cluster id", func() bool {
					for _, n := range nodes {
						if n.ClusterID() == "" || n.ClusterID() != nodes[0].ClusterID() {
							return false
						}
					}
					return true
				})
				time.Sleep(time.Minute)
				// One node makes the id, for all that there are.
				var founders, ids []string
				for _, n := range nodes {
					ids = append(ids, n.opts.ID)
					founders = append(founders, n.founders...)
				}
				if !slices.Equal(founders, ids) {
					t.Error("founders", founders)
				}
				for _, n := range nodes {
					if !slices.Equal(n.clusterID, []string{nodes[0].ClusterID()}) {
						t.Error("reported", n.clusterID)
					}
					for _, m := range n.View().Members {
						if m.State != Alive || m.PeerPort != main8848+1001 || m.HTTPPort != main8848 || m.Version != "test" || m.Wire != 1 || m.Commands != 3 || m.Self != (m.ID == n.opts.ID) {
							t.Errorf("%+v", m)
						}
					}
					if n.logs.FilterLevelExact(zapcore.ErrorLevel).Len()+n.logs.FilterLevelExact(zapcore.WarnLevel).Len() > 0 {
						w.dump()
						t.Fatal("warnings")
					}
				}
			})
		})
	}
}

func TestKill(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		nodes := w.grow(3)
		start := time.Now()
		nodes[2].kill()
		time.Sleep(30 * time.Second)
		for _, n := range nodes[:2] {
			if d := n.since(start, id(2), Refused); d < 0 || d > 500*time.Millisecond {
				t.Errorf("refused after %v", d)
			}
			if n.seen(start, id(2), Silent) || n.state(id(2)) != Refused {
				t.Error("silent", n.state(id(2)))
			}
		}
	})
}

func TestPowerOff(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		nodes := w.grow(3)
		start := time.Now()
		nodes[2].host.PowerOff()
		nodes[2].Stop()
		time.Sleep(10 * time.Second)
		for _, n := range nodes[:2] {
			if d := n.since(start, id(2), Silent); d < time.Second || d > 4*time.Second {
				t.Errorf("silent after %v", d)
			}
		}
		// The machine is up again, without the process.
		w.net.Host("n2", "10.0.0.3")
		w.await(3*time.Second, "refused", func() bool { return nodes[0].state(id(2)) == Refused && nodes[1].state(id(2)) == Refused })
	})
}

func TestFreeze(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		nodes := w.grow(3)
		start := time.Now()
		nodes[2].host.Freeze()
		time.Sleep(20 * time.Second)
		for _, n := range nodes[:2] {
			if n.state(id(2)) != Silent || n.seen(start, id(2), Refused) {
				t.Error(n.state(id(2)))
			}
		}
		nodes[2].host.Thaw()
		w.await(4*time.Second, "alive", func() bool {
			return nodes[0].state(id(2)) == Alive && nodes[1].state(id(2)) == Alive && nodes[2].state(id(0)) == Alive &&
				nodes[0].count("streams") == 4 && nodes[2].count("streams") == 4
		})
	})
}

func TestLeave(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		nodes := w.grow(3, func(o *Options) { o.ForgetAfter = 5 * time.Minute })
		start := time.Now()
		if err := nodes[2].Leave(t.Context()); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d > 3*time.Second {
			t.Error("took", d)
		}
		w.await(time.Second, "left", func() bool { return nodes[0].state(id(2)) == Left && nodes[1].state(id(2)) == Left })
		nodes[2].Stop()
		time.Sleep(6 * time.Minute)
		for _, n := range nodes[:2] {
			if n.seen(start, id(2), Silent) || n.seen(start, id(2), Refused) {
				t.Error("it was taken for failed")
			}
			if n.state(id(2)) != 255 {
				t.Error("not forgotten", n.state(id(2)))
			}
		}
	})
}

func TestPartition(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		nodes := w.grow(3)
		start := time.Now()
		w.net.Partition([]string{"n0", "n1"}, []string{"n2"})
		time.Sleep(40 * time.Second)
		for _, n := range nodes[:2] {
			if n.state(id(2)) != Silent || nodes[2].state(n.opts.ID) != Silent || n.seen(start, id(2), Refused) {
				t.Error(n.state(id(2)), nodes[2].state(n.opts.ID))
			}
		}
		if nodes[0].seen(start, id(1), Silent) {
			t.Error("n1 was lost too")
		}
		w.net.HealAll()
		d := w.await(11*time.Second, "together again", func() bool {
			for _, n := range nodes {
				for _, o := range nodes {
					if n.state(o.opts.ID) != Alive {
						return false
					}
				}
				if n.count("streams") != 4 {
					return false
				}
			}
			return true
		})
		t.Log("together again after", d)
	})
}

func TestShortCutIsNothing(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		nodes := w.grow(3)
		start := time.Now()
		w.net.Cut("n0", "n2")
		time.Sleep(40 * time.Second)
		// n1 reaches both, so nobody is dead.
		for _, n := range nodes {
			for _, o := range nodes {
				if n.seen(start, o.opts.ID, Silent) || n.seen(start, o.opts.ID, Refused) {
					t.Error(n.opts.Name, "lost", o.opts.Name)
				}
			}
		}
		w.net.HealAll()
		w.await(5*time.Second, "streams", func() bool { return nodes[0].count("streams") == 4 })
	})
}

func TestRestart(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		nodes := w.grow(3)
		time.Sleep(5 * time.Second)
		start := time.Now()
		nodes[2].kill()
		time.Sleep(300 * time.Millisecond)
		n := w.make("n2", "10.0.0.3", id(2), 2).start()
		w.nodes = append(w.nodes, n)
		w.await(time.Second, "the new life", func() bool {
			for _, o := range nodes[:2] {
				if m, _ := o.View().Member(id(2)); m.Epoch != 2 || m.State != Alive {
					return false
				}
			}
			return true
		})
		time.Sleep(time.Minute)
		for _, o := range nodes[:2] {
			if m, _ := o.View().Member(id(2)); m.Epoch != 2 || m.State != Alive || o.seen(start, id(2), Silent) {
				t.Errorf("%+v", m)
			}
		}
	})
}

func TestRestartElsewhere(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		nodes := w.grow(3)
		time.Sleep(5 * time.Second)
		start := time.Now()
		nodes[2].kill()
		n := w.make("n2b", "10.0.0.30", id(2), 2).start()
		w.nodes = append(w.nodes, n)
		w.await(time.Second, "the new life", func() bool {
			for _, o := range nodes[:2] {
				if m, _ := o.View().Member(id(2)); m.Epoch != 2 || m.State != Alive {
					return false
				}
			}
			return true
		})
		w.await(9*time.Second, "the new address", func() bool {
			for _, o := range nodes[:2] {
				if m, _ := o.View().Member(id(2)); m.Host != "10.0.0.30" || m.State != Alive || o.count("streams") != 4 {
					return false
				}
			}
			return true
		})
		t.Log("new address after", time.Since(start))
		for _, o := range nodes[:2] {
			if o.seen(start, id(2), Silent) || o.count("conflicts_total", "kind", "id") != 0 {
				t.Error("silent or a conflict")
			}
		}
	})
}
