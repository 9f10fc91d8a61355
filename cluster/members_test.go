package cluster

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/starling-registry/starling/test/simnet"
)

func TestDecide(t *testing.T) {
	now := time.Now()
	at := func(d time.Duration) time.Time { return now.Add(-d) }
	f := func(name string, want State, score int, m member) {
		t.Helper()
		m.meta.epoch = max(m.meta.epoch, 1)
		m.Epoch = max(m.Epoch, m.meta.epoch)
		if got := m.decide(now, score, 10*time.Second); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	f("alive", Alive, 0, member{gossiping: true})
	f("refused before gossip knows", Refused, 0, member{gossiping: true, refused: true})
	f("just lost", Alive, 0, member{since: at(time.Millisecond)})
	f("lost and dialled", Silent, 0, member{since: at(time.Millisecond), heard: true})
	f("lost, nothing answers", Silent, 0, member{since: at(time.Second)})
	f("lost and refused", Refused, 0, member{since: at(time.Millisecond), refused: true})
	f("silent, then refused", Refused, 0, member{Member: Member{State: Silent}, refused: true})
	f("refused, then without power", Refused, 0, member{Member: Member{State: Refused}, since: at(time.Hour), heard: true})
	f("lost, this node ails and has asked", Alive, 2, member{since: at(time.Millisecond), asked: now, heard: true})
	f("lost, this node ails and can ask nobody", Silent, 2, member{since: at(time.Millisecond), heard: true})
	f("lost, nobody answers", Silent, 2, member{since: at(2 * time.Second), asked: now, heard: true})
	f("lost, another says that it lives", Alive, 2, member{since: at(5 * time.Second), asked: now, denied: at(time.Second), heard: true})
	f("lost, another said so long ago", Silent, 2, member{since: at(5 * time.Second), asked: now, denied: at(4 * time.Second), heard: true})
	f("lost, this node is well again", Silent, 1, member{since: at(5 * time.Second), asked: now, denied: at(time.Second), heard: true})
	f("lost, others say so", Silent, 2, member{since: at(time.Millisecond), asked: now, heard: true, confirmed: true})
	f("lost, this node ails, but it is refused", Refused, 2, member{since: at(time.Second), refused: true})
	f("lost for long, this node ails", Silent, 2, member{since: at(time.Minute), asked: now, denied: now, heard: true})
	f("leaving", Alive, 0, member{gossiping: true, leaving: 1})
	f("left", Left, 0, member{leaving: 1})
	f("left, gossip lags", Left, 0, member{gossiping: true, refused: true, leaving: 1})
	f("back after it left", Alive, 0, member{Member: Member{State: Left, Epoch: 2}, meta: meta{epoch: 2}, gossiping: true, leaving: 1})
	f("moved", Alive, 0, member{Member: Member{Epoch: 2}, meta: meta{epoch: 1}, refused: true, in: &stream{}})
}

func TestParseTarget(t *testing.T) {
	f := func(s, want string) {
		t.Helper()
		got, err := parseTarget(s, 8848)
		if err != nil {
			if want != "" {
				t.Errorf("%q: %v", s, err)
			}
			return
		}
		if a := fmt.Sprint(got.host, " ", got.port); a != want {
			t.Errorf("%q: %s, want %s", s, a, want)
		}
	}
	f("nodes.test", "nodes.test 7946")
	f("nodes.test:8858", "nodes.test 7956")
	f("10.0.0.1", "10.0.0.1 7946")
	f("10.0.0.1:8858", "10.0.0.1 7956")
	f("fd00::1", "fd00::1 7946")
	f("[fd00::1]", "fd00::1 7946")
	f("[fd00::1]:8858", "fd00::1 7956")
	f("", "")
	f(":8848", "")
	f("a:b", "")
	f("a:900", "")
	f("a:99999", "")
}

func TestMeta(t *testing.T) {
	m := meta{leaving: true, epoch: 1 << 60, wire: 3, oldest: 2, ports: [5]uint16{1, 2, 3, 4, 5}, name: "n", host: "host.test", cluster: "c", version: "1.2.3", commands: 7}
	b := m.encode()
	if got, err := decodeMeta(b); err != nil || got != m {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := decodeMeta(append(b, "more of a later version"...)); err != nil || got != m {
		t.Errorf("%+v, %v", got, err)
	}
	early := m
	early.commands = 0
	if got, err := decodeMeta(b[:len(b)-4]); err != nil || got != early {
		t.Errorf("%+v, %v", got, err)
	}
	for i := range len(b) - 4 {
		if _, err := decodeMeta(b[:i]); err == nil {
			t.Errorf("%d bytes are taken", i)
		}
	}
	long := strings.Repeat("ä", 500)
	m.name, m.host, m.cluster, m.version = long, long, long, long
	if b := m.encode(); len(b) > 512 {
		t.Error(len(b), "bytes")
	}
}

func FuzzMeta(f *testing.F) {
	m := meta{name: "n", host: "h"}
	f.Add(m.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMeta(b)
		if err != nil {
			return
		}
		if again, err := decodeMeta(m.encode()); err != nil || again.epoch != m.epoch {
			t.Error(again, err)
		}
	})
}

func TestParseKeys(t *testing.T) {
	keys, err := ParseKeys([]byte("# new\n  0123456789abcdef-new  \n\n#old\r\n0123456789abcdef-old\r\n"))
	if err != nil || len(keys) != 2 || !bytes.Equal(keys[0], []byte("0123456789abcdef-new")) || !bytes.Equal(keys[1], []byte("0123456789abcdef-old")) {
		t.Errorf("%q, %v", keys, err)
	}
	for _, bad := range []string{"", "# only this", "short", "0123456789abcdef\nshort"} {
		if _, err := ParseKeys([]byte(bad)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestDerivedAuthority(t *testing.T) {
	a, _, err := deriveCA([]byte("0123456789abcdef"))
	if err != nil {
		t.Fatal(err)
	}
	b, _, _ := deriveCA([]byte("0123456789abcdef"))
	c, _, _ := deriveCA([]byte("0123456789abcdeg"))
	if !bytes.Equal(a.Raw, b.Raw) || bytes.Equal(a.Raw, c.Raw) {
		t.Error("not the same on all nodes, or the same for all secrets")
	}
}

// A name has addresses that nobody has, its own, and IPv6 ones; a node that is
// put behind it later is found.
func TestNames(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		alone := func(o *Options) { o.Join, o.Expect = nil, 1 }
		a := w.add(alone)
		a.start()
		w.net.SetName("nodes.test", "10.9.9.1", "10.9.9.2", "10.9.9.3", "fd00::9", "10.0.0.1", "10.0.0.2")
		b := w.add().start()
		w.await(5*time.Second, "two", func() bool { return len(b.View().Members) == 2 && len(a.View().Members) == 2 })
		w.await(time.Second, "the id is adopted", func() bool { return b.ClusterID() == a.ClusterID() && a.ClusterID() != "" })

		// Only by its name, and only over IPv6.
		c := w.make("n2", "fd00::3", id(2), 1, alone, func(o *Options) { o.Expect = 0 }).start()
		w.nodes = append(w.nodes, c)
		time.Sleep(20 * time.Second)
		if len(c.View().Members) != 1 {
			t.Error("found without a name")
		}
		w.net.SetName("nodes.test", "10.0.0.1", "10.0.0.2", "fd00::3")
		start := time.Now()
		w.await(13*time.Second, "three", func() bool { return len(a.View().Members) == 3 && len(c.View().Members) == 3 })
		t.Log("found after", time.Since(start))

		// The name fails: nothing happens.
		w.net.FailName("nodes.test", context.DeadlineExceeded)
		time.Sleep(time.Minute)
		if b.logged("name not resolved; it is tried again") != 1 || b.count("lookup_failures_total") == 0 || b.state(id(2)) != Alive {
			t.Error("failed lookups")
		}
	})
}

// A member can be announced by a name; it is dialled at all its addresses.
func TestAdvertiseName(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		w.net.SetName("n0.test", "10.0.0.1", "10.9.9.9")
		w.net.SetName("nodes.test", "10.0.0.1")
		a := w.add(func(o *Options) { o.Advertise, o.Join, o.Expect = "n0.test", nil, 1 }).start()
		b := w.add().start()
		w.await(5*time.Second, "streams", func() bool { return b.count("streams") == 2 && a.count("streams") == 2 })
		if m, _ := b.View().Member(id(0)); m.Host != "n0.test" || m.Gossip.String() != "10.0.0.1:7946" {
			t.Errorf("%+v", m)
		}
		w.net.SetName("n0.test", "10.9.9.9", "10.9.9.8")
		time.Sleep(time.Minute)
		if a.logged("the advertised name has another address now; gossip keeps the old one until a restart") != 1 {
			t.Error("not noticed")
		}
	})
}

func TestForeignCluster(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		nodes := w.grow(2, func(o *Options) { o.ClusterID = "ours" })
		other := w.make("other", "10.0.1.1", id(20), 1, func(o *Options) { o.ClusterID = "theirs" }).start()
		old := w.make("old", "10.0.1.2", id(21), 1, func(o *Options) { o.ClusterID, o.Wire = "ours", 7 }).start()
		w.net.SetName("nodes.test", "10.0.0.1", "10.0.0.2", "10.0.1.1", "10.0.1.2")
		time.Sleep(2 * time.Minute)
		for _, n := range append(slices.Clone(nodes), other, old) {
			want := 2
			if n == other || n == old {
				want = 1
			}
			if got := len(n.View().Members); got != want {
				t.Error(n.opts.Name, "has", got, "members")
			}
		}
		if nodes[0].count("kept_out_total", "reason", keptCluster) == 0 || nodes[0].count("kept_out_total", "reason", keptWire) == 0 {
			t.Error("not counted")
		}
		for _, n := range nodes {
			if got := n.logged("node kept out"); got > 2 {
				t.Error(got, "lines of two offenders")
			}
		}
		other.Stop()
		old.Stop()
	})
}

func TestWrongKey(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		nodes := w.grow(2, func(o *Options) { o.Keys = [][]byte{[]byte("a secret of the cluster")} })
		wrong := w.make("wrong", "10.0.1.1", id(20), 1, func(o *Options) { o.Keys = [][]byte{[]byte("another secret of some")} }).start()
		plain := w.make("plain", "10.0.1.2", id(21), 1).start()
		time.Sleep(time.Minute)
		for _, n := range nodes {
			if len(n.View().Members) != 2 {
				t.Error("it is in")
			}
			if got := n.logs.FilterLevelExact(zapcore.ErrorLevel).Len(); got > 30 {
				t.Error(got, "lines in a minute")
			}
		}
		if len(wrong.View().Members) != 1 || len(plain.View().Members) != 1 {
			t.Error("it sees the others")
		}
		advised := 0
		for _, e := range nodes[0].logs.All() {
			if strings.Contains(e.Message, "--gossip-key-file") {
				advised++
			}
		}
		if advised == 0 {
			t.Error("no line says what to do about it")
		}
		const alone = "no other node is reached, this one is on its own: are --join and --gossip-key-file right, do the others run, is their gossip port open?"
		if got := wrong.logged(alone); got < 1 || got > 2 {
			t.Error("it is alone, and says so", got, "times in a minute")
		}
		if got := nodes[0].logged(alone); got != 0 {
			t.Error("it is not alone")
		}
		wrong.Stop()
		plain.Stop()
	})
}

func TestRotation(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		old, next := []byte("the secret of yesterday"), []byte("the secret of tomorrow")
		nodes := w.grow(3, func(o *Options) { o.Keys = [][]byte{old} })
		sent := 0
		start := time.Now()
		talk := func() {
			t.Helper()
			for _, to := range nodes[1:] {
				if err := nodes[0].Send(t.Context(), to.opts.ID, headMsg("x")); err != nil {
					t.Error(err)
				}
			}
			sent++
			time.Sleep(time.Second)
		}
		for _, step := range [][][]byte{{old, next}, {next, old}, {next}} {
			for _, n := range nodes {
				if err := n.SetKeys(step); err != nil {
					t.Fatal(err)
				}
				talk()
				time.Sleep(10 * time.Second)
			}
		}
		for _, n := range nodes {
			for i := range nodes {
				if n.seen(start, id(i), Silent) || n.seen(start, id(i), Refused) {
					t.Error("a member was lost")
				}
			}
		}
		for _, n := range nodes[1:] {
			if got := len(n.got(Stream)); got != sent {
				t.Error(got, "of", sent)
			}
		}
		// Only the new one counts now.
		late := w.make("late", "10.0.0.4", id(3), 1, func(o *Options) { o.Keys = [][]byte{next} }).start()
		w.nodes = append(w.nodes, late)
		w.await(5*time.Second, "streams", func() bool { return late.count("streams") == 6 })
		past := w.make("past", "10.0.0.5", id(4), 1, func(o *Options) { o.Keys = [][]byte{old} }).start()
		time.Sleep(10 * time.Second)
		if len(past.View().Members) != 1 {
			t.Error("the old secret is accepted")
		}
		past.Stop()
		if nodes[0].SetKeys(nil) == nil {
			t.Error("encryption is switched off")
		}
	})
}

func TestSameID(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		nodes := w.grow(3)
		twin := w.make("twin", "10.0.1.1", id(2), 2).start()
		time.Sleep(time.Minute)
		for _, n := range append(slices.Clone(nodes), twin) {
			got := n.logged("two nodes have the same id: a data directory was copied, or is used twice")
			if n == nodes[0] && (got == 0 || n.count("conflicts_total", "kind", "id") == 0) {
				t.Error("not reported")
			}
			if got > 3 {
				t.Error(n.opts.Name, got, "lines")
			}
		}
		if nodes[0].state(id(1)) != Alive {
			t.Error("others suffer")
		}
		twin.Stop()
	})
}

func TestSameName(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		nodes := w.grow(3, func(o *Options) { o.Name = "same" })
		if got := nodes[0].logged("two nodes have the same name"); got != 3 { // pairs
			t.Error(got)
		}
	})
}

// A node lost its data directory: the id at its address is another now.
func TestAddressTaken(t *testing.T) {
	for _, keys := range [][][]byte{nil, {[]byte("a secret of the cluster")}} {
		bubble(t, func(w *world) {
			t := w.t
			nodes := w.grow(3, func(o *Options) { o.Keys = keys })
			time.Sleep(3 * time.Second)
			start := time.Now()
			nodes[2].kill()
			n := w.make("n2", "10.0.0.3", id(7), 2, func(o *Options) { o.Keys = keys }).start()
			w.nodes = append(w.nodes, n)
			time.Sleep(10 * time.Second)
			for _, o := range nodes[:2] {
				if d := o.since(start, id(2), Refused); d < 0 || d > 2*time.Second || o.state(id(2)) != Refused || o.seen(start, id(2), Silent) {
					t.Error("refused after", d, "now", o.state(id(2)))
				}
				if o.state(id(7)) != Alive {
					t.Error("the new one is", o.state(id(7)))
				}
			}
		})
	}
}

// What an ailing node asks is answered by what each of the others knows.
func TestAilingAsks(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		nodes := w.grow(3)
		asked := func() (confirmed, denied bool) {
			nodes[0].mustFact(id(2), false) // is shown as alive for 400 ms
			nodes[0].askAround()
			time.Sleep(100 * time.Millisecond)
			nodes[0].Cluster.mu.Lock()
			defer nodes[0].Cluster.mu.Unlock()
			m := nodes[0].members[id(2)]
			return m.confirmed, !m.denied.IsZero()
		}
		if confirmed, denied := asked(); confirmed || !denied {
			t.Error("n1 says that it is dead:", confirmed, "that it lives:", denied)
		}
		nodes[0].mustFact(id(2), true)
		nodes[1].mustFact(id(2), false)
		if confirmed, denied := asked(); !confirmed || denied {
			t.Error("n1 says that it is dead:", confirmed, "that it lives:", denied)
		}
	})
}

// A node that is cut off ails by it, and still sees what is the matter.
func TestCutOff(t *testing.T) {
	for _, size := range []int{2, 3} {
		bubble(t, func(w *world) {
			t := w.t
			nodes := w.grow(size)
			last := nodes[size-1]
			start := time.Now()
			for _, n := range nodes[:size-1] {
				w.net.Cut(n.opts.Name, last.opts.Name)
			}
			time.Sleep(30 * time.Second)
			t.Log(size, "nodes: seen as silent after", nodes[0].since(start, last.opts.ID, Silent), "sees the first so after", last.since(start, id(0), Silent))
			if d := nodes[0].since(start, last.opts.ID, Silent); d < 0 || d > 6*time.Second {
				t.Error("silent after", d)
			}
			if d := last.since(start, id(0), Silent); d < 0 || d > 20*time.Second {
				t.Error("sees silence after", d)
			}
		})
	}
}

// mustFact lets a node believe that memberlist said something.
func (n *node) mustFact(id string, alive bool) {
	n.Cluster.mu.Lock()
	m := n.members[id]
	f := fact{alive: alive, meta: m.meta, addr: m.Gossip}
	n.Cluster.mu.Unlock()
	n.factsMu.Lock()
	n.facts[id] = f
	n.factsMu.Unlock()
	mark(n.wake)
	time.Sleep(time.Millisecond)
}

// Loss, duplicates and reordering cost no member.
func TestLossyNetwork(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		nodes := w.grow(5)
		start := time.Now()
		link := simnet.Link{Loss: 0.05, Duplicate: 0.05, Reorder: 0.1, Delay: time.Millisecond, Jitter: 5 * time.Millisecond}
		for _, a := range nodes {
			for _, b := range nodes {
				w.net.SetLink(a.opts.Name, b.opts.Name, link)
			}
		}
		time.Sleep(5 * time.Minute)
		for _, n := range nodes {
			for i := range nodes {
				if n.seen(start, id(i), Silent) || n.seen(start, id(i), Refused) {
					t.Error("a member was lost")
				}
			}
		}
	})
}

// Members that died before this node started are found by their addresses.
func TestKnown(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		a := w.add(func(o *Options) { o.Join, o.Expect, o.ClusterID = nil, 1, "c" }).start()
		b := w.add(func(o *Options) {
			o.Join, o.ClusterID, o.Known = nil, "c", []string{"10.0.0.1:7946", "not an address"}
		}).start()
		w.await(5*time.Second, "members", func() bool { return len(a.View().Members) == 2 && len(b.View().Members) == 2 })
		_ = t
	})
}
