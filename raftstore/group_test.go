package raftstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/starling-registry/starling/pkg/registry"
	pb "github.com/starling-registry/starling/proto"
	"github.com/starling-registry/starling/test/simnet"
)

const (
	raftPort = ":7001"
	callPort = ":7002"
	cluster1 = "c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1"
)

// A group has some peers on a simulated network. Membership is what the test
// says. It runs in a synctest bubble.
type group struct {
	t   *testing.T
	net *simnet.Network
	dir string

	mu    sync.Mutex
	peers map[string]*peer
}

type peer struct {
	g       *group
	id      string
	dir     string
	options func(*Options)

	host    *simnet.Host
	store   *Store
	metrics *prometheus.Registry
	calls   sync.WaitGroup
	lose    func(method string) bool // answers of calls that this peer makes

	mu         sync.Mutex
	superseded int
	failures   []error

	// Guarded by g.mu.
	state   Member
	cluster string
	addr    string
}

func bubble(t *testing.T, ids string, test func(t *testing.T, g *group)) {
	dir := t.TempDir() // outside, because removing it takes time
	synctest.Test(t, func(t *testing.T) {
		g := &group{t: t, net: simnet.New(1), dir: dir, peers: map[string]*peer{}}
		defer func() {
			for _, p := range g.peers {
				if p.store != nil {
					p.crash()
				}
			}
			time.Sleep(time.Minute) // for what waits by time
		}()
		for id := range strings.FieldsSeq(ids) {
			g.add(id)
		}
		test(t, g)
	})
}

func (g *group) add(id string) *peer {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := &peer{g: g, id: id, cluster: cluster1, dir: filepath.Join(g.dir, id, "raft"), addr: fmt.Sprintf("10.0.0.%d", len(g.peers)+1)}
	g.peers[id] = p
	return p
}

func (g *group) members() []Member {
	g.mu.Lock()
	defer g.mu.Unlock()
	var list []Member
	for _, id := range slices.Sorted(maps.Keys(g.peers)) {
		if p := g.peers[id]; p.state.ID != "" {
			list = append(list, p.state)
		}
	}
	return list
}

// set is what membership finds out.
func (g *group) set(id string, alive, left bool) {
	g.mu.Lock()
	p := g.peers[id]
	p.state = Member{ID: id, Alive: alive, Left: left, Since: time.Now(), Commands: CommandVersion}
	var stores []*Store
	for _, o := range g.peers {
		if o.store != nil {
			stores = append(stores, o.store)
		}
	}
	g.mu.Unlock()
	for _, s := range stores {
		s.Changed()
	}
}

func (g *group) start(ids string) {
	for id := range strings.FieldsSeq(ids) {
		if err := g.peers[id].start(); err != nil {
			g.t.Fatal(err)
		}
		g.set(id, true, false)
	}
}

func (p *peer) start() error {
	p.host = p.g.net.Host(p.id, p.addr)
	listener, err := p.host.Listen("tcp", raftPort)
	if err != nil {
		return err
	}
	o := DefaultOptions()
	o.ID, o.Dir, o.NoSync = p.id, p.dir, true
	o.ClusterID = func() string {
		p.g.mu.Lock()
		defer p.g.mu.Unlock()
		return p.cluster
	}
	o.Listener, o.Dial, o.Call = listener, p.dial, p.call
	o.Members = p.g.members
	o.Projection, o.Clock = unseen{}, registry.NewClock(0, 0)
	o.Superseded = func() { p.mu.Lock(); p.superseded++; p.mu.Unlock() }
	o.Failed = func(err error) { p.mu.Lock(); p.failures = append(p.failures, err); p.mu.Unlock() }
	p.metrics = prometheus.NewRegistry()
	o.Metrics = p.metrics
	o.Logger = zap.NewNop()
	if testing.Verbose() {
		o.Logger = zaptest.NewLogger(p.g.t).Named(p.id)
	}
	if p.options != nil {
		p.options(&o)
	}
	s, err := Open(o)
	if err != nil {
		p.host.Crash()
		return err
	}
	p.g.mu.Lock()
	p.store = s
	p.g.mu.Unlock()
	calls, err := p.host.Listen("tcp", callPort)
	if err != nil {
		return err
	}
	p.calls.Go(func() { p.serve(calls, s) })
	return nil
}

// crash leaves nothing but the disk.
func (p *peer) crash() {
	p.host.Crash()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := p.store.Close(ctx); err != nil {
		p.g.t.Errorf("%s: %v", p.id, err)
	}
	p.calls.Wait()
	p.g.mu.Lock()
	p.store = nil
	p.g.mu.Unlock()
}

// kill is a crash that membership notices.
func (g *group) kill(id string) {
	g.peers[id].crash()
	g.set(id, false, false)
}

// leave is a stop that was announced.
func (g *group) leave(id string) {
	p := g.peers[id]
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = p.store.TransferLeadership(ctx)
	p.crash()
	g.set(id, false, true)
}

// move gives a peer that does not run another address. Others may dial it.
func (g *group) move(id, addr string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.peers[id].addr = addr
}

func (p *peer) dial(ctx context.Context, id string) (net.Conn, error) {
	return p.dialPort(ctx, id, raftPort)
}

func (p *peer) dialPort(ctx context.Context, id, port string) (net.Conn, error) {
	p.g.mu.Lock()
	to := p.g.peers[id]
	addr := ""
	if to != nil {
		addr = to.addr
	}
	p.g.mu.Unlock()
	if addr == "" {
		return nil, errors.New("unknown node")
	}
	return p.host.Dial(ctx, addr+port)
}

// A call is a connection: two texts with their lengths, and the answer.
func (p *peer) call(ctx context.Context, to, method string, body []byte) ([]byte, error) {
	c, err := p.dialPort(ctx, to, callPort)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	if err := send(c, []byte(method), []byte(p.id), body); err != nil {
		return nil, err
	}
	answer, err := receive(c)
	if err == nil && p.lose != nil && p.lose(method) {
		return nil, errors.New("connection reset")
	}
	return answer, err
}

func send(w io.Writer, parts ...[]byte) error {
	var b []byte
	for _, part := range parts {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(part))), part...)
	}
	_, err := w.Write(b)
	return err
}

func receive(r io.Reader) ([]byte, error) {
	var n [4]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint32(n[:]))
	_, err := io.ReadFull(r, b)
	return b, err
}

func (p *peer) serve(l net.Listener, s *Store) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		p.calls.Go(func() {
			defer c.Close()
			method, err1 := receive(c)
			from, err2 := receive(c)
			body, err3 := receive(c)
			if errors.Join(err1, err2, err3) != nil {
				return
			}
			serve := s.ServeState
			if string(method) == "RaftApply" {
				serve = s.ServeApply
			}
			// As a gRPC server does, with the deadline of the caller.
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			if answer, err := serve(ctx, string(from), body); err == nil {
				_ = send(c, answer)
			}
		})
	}
}

// await waits for something in simulated time.
func (g *group) await(what string, within time.Duration, is func() bool) {
	g.t.Helper()
	for end := time.Now().Add(within); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			for id, p := range g.peers {
				if p.store != nil {
					g.t.Logf("%s: %+v", id, p.store.Status())
				}
			}
			g.t.Fatalf("not within %v: %s", within, what)
		}
	}
}

func (g *group) leader() *peer {
	var leader *peer
	term := uint64(0)
	for _, p := range g.peers {
		if p.store != nil && p.store.Leads() {
			if st := p.store.Status(); st.Term > term {
				leader, term = p, st.Term
			}
		}
	}
	return leader
}

func (g *group) awaitLeader() *peer {
	g.t.Helper()
	g.await("a leader", 10*time.Second, func() bool { return g.leader() != nil })
	return g.leader()
}

// voters is the configuration as a peer sees it: voters, "/", others.
func (p *peer) servers() string {
	var v, n []string
	for _, server := range p.store.Status().Servers {
		if server.Voter {
			v = append(v, server.ID)
		} else {
			n = append(n, server.ID)
		}
	}
	return strings.Join(v, " ") + "/" + strings.Join(n, " ")
}

func (g *group) awaitServers(want string, within time.Duration) {
	g.t.Helper()
	g.await("servers "+want, within, func() bool {
		l := g.leader()
		return l != nil && l.servers() == want
	})
}

func (p *peer) put(name, value string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return p.store.PutSwitch(ctx, name, value)
}

func (g *group) mustPut(id, name, value string) {
	g.t.Helper()
	caughtUp := g.peers[id].store.caughtUp.Load() // else it has more to show first, and takes no clients
	if err := g.peers[id].put(name, value); err != nil {
		g.t.Fatalf("%s: put %s: %v", id, name, err)
	}
	if got := g.peers[id].store.Switches()[name]; caughtUp && got != value {
		g.t.Fatalf("%s: %s is %q after it was written as %q", id, name, got, value)
	}
}

// awaitEqual waits until all running peers have applied the same.
func (g *group) awaitEqual(within time.Duration) {
	g.t.Helper()
	// A new leader has applied what there is only when an entry of its own is.
	if l := g.leader(); l != nil {
		_ = l.store.raft.Barrier(0).Error()
	}
	g.await("equal tables", within, func() bool {
		first, indexes, sums := true, uint64(0), uint64(0)
		for _, p := range g.peers {
			if p.store == nil {
				continue
			}
			st := p.store.Status()
			if first {
				first, indexes, sums = false, st.Applied, st.Digest
			}
			if st.Applied != indexes {
				return false
			}
			if st.Digest != sums {
				g.t.Fatalf("%s: index %d with another digest", p.id, st.Applied)
			}
		}
		return true
	})
}

// three starts a, b and c, and returns who leads when all have caught up.
func (g *group) three() *peer {
	g.t.Helper()
	g.start("a b c")
	if err := g.peers["a"].store.Bootstrap([]string{"a", "b", "c"}); err != nil {
		g.t.Fatal(err)
	}
	leader := g.awaitLeader()
	for id, p := range g.peers { // before, they vote for nobody who has more than the beginning
		if p.store == nil {
			continue
		}
		g.await(id+" ready", 10*time.Second, func() bool { ok, _ := p.store.CaughtUp(); return ok })
	}
	return leader
}

func (g *group) others(id string) []*peer {
	var list []*peer
	for _, o := range slices.Sorted(maps.Keys(g.peers)) {
		if o != id && g.peers[o].store != nil {
			list = append(list, g.peers[o])
		}
	}
	return list
}

func TestOneNode(t *testing.T) {
	bubble(t, "a", func(t *testing.T, g *group) {
		a := g.peers["a"]
		a.options = func(o *Options) { o.Listener, o.Dial, o.Call = nil, nil, nil }
		g.start("a")
		if ok, why := a.store.CaughtUp(); ok || why == "" {
			t.Errorf("ready before it is in a group: %v %q", ok, why)
		}
		if err := a.store.Bootstrap([]string{"a"}); err != nil {
			t.Fatal(err)
		}
		if ok, _ := a.store.CaughtUp(); !ok {
			t.Error("the only voter of a new group is not ready")
		}
		g.awaitLeader()
		for i := range 20 {
			g.mustPut("a", fmt.Sprint("s", i), "1")
		}
		before := a.store.Status()
		if before.Generation != 1 || before.Wanted != 1 || before.Quorum != 1 || before.AliveVoters != 1 || before.Stale {
			t.Errorf("status %+v", before)
		}
		g.kill("a")
		g.start("a")
		if err := a.store.Bootstrap([]string{"a"}); err != nil { // every start may call it
			t.Fatal(err)
		}
		g.await("caught up", 5*time.Second, func() bool { ok, _ := a.store.CaughtUp(); return ok })
		after := a.store.Status()
		if len(a.store.Switches()) != 20 || after.Digest != before.Digest {
			t.Errorf("after a restart: %+v, before %+v", after, before)
		}
	})
}

func TestThreeNodes(t *testing.T) {
	bubble(t, "a b c", func(t *testing.T, g *group) {
		leader := g.three()
		for _, id := range []string{"a", "b", "c"} {
			g.mustPut(id, "by-"+id, "1")
		}
		g.awaitEqual(time.Second)
		for _, p := range g.peers {
			if p.servers() != "a b c/" {
				t.Errorf("%s: servers %s", p.id, p.servers())
			}
			if st := p.store.Status(); st.Leader != leader.id || st.Stale {
				t.Errorf("%s: status %+v", p.id, st)
			}
			if ok, why := p.store.CaughtUp(); !ok {
				t.Errorf("%s is not ready: %s", p.id, why)
			}
		}
		// A refused command is an error, wherever it was asked.
		for _, p := range g.others(leader.id) {
			err := p.store.RemoveNamespace(t.Context(), "nope")
			if !errors.Is(err, ErrNotFound) {
				t.Errorf("%s: %v", p.id, err)
			}
		}
	})
}

// A follower that does not hear of a write, which has been carried out, does
// not make a failure of it.
func TestWrittenNotSeen(t *testing.T) {
	bubble(t, "a b c", func(t *testing.T, g *group) {
		leader := g.three()
		cmd := &pb.Result{Index: 1 << 40}
		p := g.others(leader.id)[0]
		start := time.Now()
		p.store.show(t.Context(), leader.id, cmd)
		if took := time.Since(start); took != showTime {
			t.Errorf("waited %v for a position that never comes, want %v", took, showTime)
		}
		ctx, cancel := context.WithTimeout(t.Context(), showTime/2)
		defer cancel()
		start = time.Now()
		p.store.show(ctx, leader.id, cmd)
		if took := time.Since(start); took != showTime/2 {
			t.Errorf("waited %v, the caller %v", took, showTime/2)
		}
		start = time.Now()
		leader.store.show(t.Context(), leader.id, cmd)
		if took := time.Since(start); took != 0 {
			t.Errorf("the leader waited %v for itself", took)
		}
	})
}

// A write that was acknowledged survives a crash of the leader, and one that is
// under way meanwhile succeeds within the bounds of callers.
func TestLeaderCrash(t *testing.T) {
	bubble(t, "a b c", func(t *testing.T, g *group) {
		for round := range 3 {
			leader := g.leader()
			if round == 0 {
				leader = g.three()
			}
			acknowledged := map[string]bool{}
			var mu sync.Mutex
			var wg sync.WaitGroup
			stop := make(chan struct{})
			for _, p := range g.others(leader.id) {
				wg.Go(func() {
					for i := 0; ; i++ {
						select {
						case <-stop:
							return
						default:
						}
						name := fmt.Sprintf("%s-%d-%d", p.id, round, i)
						time.Sleep(5 * time.Millisecond)
						begin := time.Now()
						ctx, cancel := context.WithTimeout(context.Background(), 2500*time.Millisecond)
						err := p.store.PutSwitch(ctx, name, "1")
						cancel()
						if err != nil {
							t.Errorf("%s after %v: %v", name, time.Since(begin), err)
							continue
						}
						mu.Lock()
						acknowledged[name] = true
						mu.Unlock()
					}
				})
			}
			time.Sleep(200 * time.Millisecond)
			g.kill(leader.id)
			time.Sleep(3 * time.Second)
			close(stop)
			wg.Wait()
			g.start(leader.id)
			g.awaitLeader()
			g.awaitEqual(10 * time.Second)
			for _, p := range g.peers {
				have := p.store.Switches()
				for name := range acknowledged {
					if have[name] != "1" {
						t.Fatalf("%s lost %s", p.id, name)
					}
				}
			}
			if len(acknowledged) < 100 {
				t.Errorf("only %d writes", len(acknowledged))
			}
		}
	})
}

func TestIsolatedLeader(t *testing.T) {
	bubble(t, "a b c", func(t *testing.T, g *group) {
		leader := g.three()
		g.mustPut("a", "before", "1")
		var rest []string
		for _, p := range g.others(leader.id) {
			rest = append(rest, p.id)
		}
		g.net.Partition([]string{leader.id}, rest)
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		begin := time.Now()
		err := leader.store.PutSwitch(ctx, "alone", "1")
		if !errors.Is(err, ErrUnknownOutcome) || time.Since(begin) > 2600*time.Millisecond {
			t.Errorf("a write of an isolated leader: %v after %v", err, time.Since(begin))
		}
		if leader.store.Leads() {
			t.Error("it still leads")
		}
		g.mustPut(rest[0], "majority", "1")
		if st := leader.store.Status(); !st.Stale {
			t.Errorf("the isolated node is not stale: %+v", st)
		}
		// The same write again is another command: now it is known that nothing
		// was written.
		ctx, cancel = context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		if err := leader.store.PutSwitch(ctx, "alone", "1"); !errors.Is(err, ErrNoLeader) {
			t.Errorf("without a leader: %v", err)
		}
		g.net.HealAll()
		g.awaitEqual(10 * time.Second)
		if leader.store.Switches()["majority"] != "1" {
			t.Error("the isolated node misses a write")
		}
		g.mustPut(leader.id, "after", "1")
	})
}

// Fewer voters than a quorum are alive: writes fail after 2 s, not at the end
// of the caller's patience.
func TestNoQuorum(t *testing.T) {
	bubble(t, "a b c", func(t *testing.T, g *group) {
		leader := g.three()
		g.mustPut("a", "x", "1")
		g.awaitEqual(time.Second)
		g.kill(leader.id)
		g.kill(g.others(leader.id)[0].id)
		last := g.others("")[0]
		begin := time.Now()
		err := last.put("y", "1")
		took := time.Since(begin)
		if !errors.Is(err, ErrNoLeader) && !errors.Is(err, ErrUnknownOutcome) || took < 2*time.Second || took > 2500*time.Millisecond {
			t.Errorf("%v after %v", err, took)
		}
		if last.store.Switches()["x"] != "1" {
			t.Error("it cannot be read")
		}
		begin = time.Now()
		if err = last.put("y", "1"); !errors.Is(err, ErrNoLeader) || time.Since(begin) > 2500*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
	})
}

// All nodes come back with other addresses (C5).
func TestNewAddresses(t *testing.T) {
	bubble(t, "a b c", func(t *testing.T, g *group) {
		g.three()
		g.mustPut("b", "x", "1")
		for _, id := range []string{"a", "b", "c"} {
			g.kill(id)
		}
		g.move("a", "10.0.0.2") // that was b's
		g.move("b", "10.0.1.2")
		g.move("c", "10.0.1.1")
		g.start("a b c")
		g.awaitLeader()
		g.mustPut("c", "y", "1")
		g.awaitEqual(5 * time.Second)
		// One alone, while the others run.
		g.kill("b")
		g.move("b", "10.0.2.2")
		g.start("b")
		g.mustPut("b", "z", "1")
		g.awaitEqual(5 * time.Second)
	})
}

// Nodes come one by one; the first five vote.
func TestGrow(t *testing.T) {
	bubble(t, "a b c d e f g", func(t *testing.T, g *group) {
		g.start("a")
		if err := g.peers["a"].store.Bootstrap([]string{"a"}); err != nil {
			t.Fatal(err)
		}
		g.awaitLeader()
		g.mustPut("a", "x", "1")
		for _, step := range []struct{ id, want string }{{"b", "a b/"}, {"c", "a b c/"}, {"d", "a b c/d"}, {"e", "a b c d e/"}, {"f", "a b c d e/f"}, {"g", "a b c d e/f g"}} {
			g.start(step.id)
			g.awaitServers(step.want, 20*time.Second)
			g.mustPut(step.id, "by-"+step.id, "1")
			g.await("ready", 5*time.Second, func() bool { ok, _ := g.peers[step.id].store.CaughtUp(); return ok })
		}
		g.awaitEqual(5 * time.Second)
		// AddVoter and AddNonvoter are not idempotent: nothing is done twice.
		last := g.leader().store.Status().Last
		time.Sleep(2 * time.Minute)
		if now := g.leader().store.Status().Last; now != last {
			t.Errorf("%d entries were written for nothing", now-last)
		}
	})
}

// C32: a restart of all nodes, each announced, shrinks nothing, however long
// it takes.
func TestFullStop(t *testing.T) {
	bubble(t, "a b c d e", func(t *testing.T, g *group) {
		g.start("a b c d e")
		if err := g.peers["a"].store.Bootstrap([]string{"a", "b", "c", "d", "e"}); err != nil {
			t.Fatal(err)
		}
		g.awaitLeader()
		g.mustPut("e", "x", "1")
		for _, id := range []string{"a", "b", "c", "d", "e"} {
			g.leave(id)
			time.Sleep(20 * time.Second)
		}
		time.Sleep(time.Hour)
		g.start("c")
		time.Sleep(20 * time.Minute)
		g.start("a b e")
		g.awaitLeader()
		time.Sleep(time.Minute)
		g.start("d")
		g.mustPut("d", "y", "1")
		time.Sleep(time.Minute)
		g.awaitServers("a b c d e/", 10*time.Second)
		g.awaitEqual(5 * time.Second)
	})
}

// A crashed voter is replaced by a node that has caught up, not before
// ReplaceAfter, and comes back without a vote.
func TestReplace(t *testing.T) {
	bubble(t, "a b c d", func(t *testing.T, g *group) {
		g.three()
		g.start("d")
		g.awaitServers("a b c/d", 20*time.Second)
		victim := g.others(g.leader().id)[0].id
		g.kill(victim)
		time.Sleep(50 * time.Second)
		g.awaitServers("a b c/d", 0)
		want := slices.DeleteFunc([]string{"a", "b", "c", "d"}, func(id string) bool { return id == victim })
		g.awaitServers(strings.Join(want, " ")+"/", 30*time.Second)
		g.start(victim)
		g.awaitServers(strings.Join(want, " ")+"/"+victim, 30*time.Second)
		g.mustPut(victim, "x", "1")
		g.awaitEqual(5 * time.Second)
	})
}

// Without a node to take its place a crashed voter stays one, for ever.
func TestNobodyToReplace(t *testing.T) {
	bubble(t, "a b c", func(t *testing.T, g *group) {
		for _, p := range g.peers {
			p.options = func(o *Options) {
				o.ReplaceAfter, o.RemoveLeftAfter, o.ForgetAfter = time.Minute, time.Minute, 3*time.Minute
			}
		}
		leader := g.three()
		g.kill(g.others(leader.id)[0].id)
		time.Sleep(15 * time.Minute)
		g.awaitServers("a b c/", 0)
		g.mustPut(leader.id, "x", "1")
	})
}

// A node that left for good is taken out, if the rest can go on.
func TestLeave(t *testing.T) {
	bubble(t, "a b c d e", func(t *testing.T, g *group) {
		g.start("a b c d e")
		if err := g.peers["a"].store.Bootstrap([]string{"a", "b", "c", "d", "e"}); err != nil {
			t.Fatal(err)
		}
		g.awaitLeader()
		g.leave("e")
		time.Sleep(4 * time.Minute)
		g.awaitServers("a b c d e/", 0)
		g.await("three voters of four nodes", 2*time.Minute, func() bool {
			st := g.leader().store.Status()
			voters := 0
			for _, s := range st.Servers {
				if s.Voter {
					voters++
				}
			}
			return len(st.Servers) == 4 && voters == 3
		})
		g.mustPut("a", "x", "1")
	})
}

func TestRemoveServer(t *testing.T) {
	bubble(t, "a b c", func(t *testing.T, g *group) {
		leader := g.three()
		others := g.others(leader.id)
		var not *NotLeader
		if err := others[0].store.RemoveServer(t.Context(), others[1].id); !errors.As(err, &not) || !errors.Is(err, ErrNotLeader) || not.Leader != leader.id {
			t.Errorf("at a follower: %v", err)
		}
		if err := leader.store.RemoveServer(t.Context(), others[0].id); err == nil {
			t.Error("a running node was removed")
		}
		if err := leader.store.RemoveServer(t.Context(), "nobody"); !errors.Is(err, ErrNotFound) {
			t.Error(err)
		}
		g.kill(others[0].id)
		if err := leader.store.RemoveServer(t.Context(), others[0].id); err != nil {
			t.Fatal(err)
		}
		want := slices.Sorted(slices.Values([]string{leader.id, others[1].id}))
		g.awaitServers(strings.Join(want, " ")+"/", 0)
	})
}

func TestTransferLeadership(t *testing.T) {
	bubble(t, "a b c", func(t *testing.T, g *group) {
		leader := g.three()
		g.mustPut("a", "x", "1")
		// One of the others does not answer: it is not chosen.
		others := g.others(leader.id)
		g.net.Cut(leader.id, others[0].id)
		time.Sleep(time.Second)
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := leader.store.TransferLeadership(ctx); err != nil {
			t.Fatal(err)
		}
		g.await("another leader", time.Second, others[1].store.Leads)
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("it took %v", took)
		}
		g.net.HealAll()
		g.mustPut(leader.id, "y", "1")
		if err := leader.store.TransferLeadership(ctx); err != nil { // it leads no more
			t.Error(err)
		}
	})
}

// The answer of the leader is lost: the command is sent again and counts once.
func TestRepeat(t *testing.T) {
	bubble(t, "a b c", func(t *testing.T, g *group) {
		leader := g.three()
		p := g.others(leader.id)[0]
		var mu sync.Mutex
		lost := 0
		p.lose = func(method string) bool {
			mu.Lock()
			defer mu.Unlock()
			if method == "RaftApply" && lost < 3 {
				lost++
				return true
			}
			return false
		}
		// Creating it twice would be refused.
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := p.store.PutNamespace(ctx, Namespace{ID: "n", Name: "n"}, true); err != nil {
			t.Error(err)
		}
		if lost != 3 {
			t.Errorf("%d answers were lost", lost)
		}
		if got := leader.store.Status().Rows; got["namespaces"] != 1 {
			t.Errorf("rows %v", got)
		}
	})
}

// Once a command may have been written, later tries that were not do not make
// it unwritten.
func TestUnknownStays(t *testing.T) {
	bubble(t, "a b c", func(t *testing.T, g *group) {
		leader := g.three()
		p := g.others(leader.id)[0]
		p.lose = func(method string) bool {
			if method != "RaftApply" {
				return false
			}
			for _, o := range g.others(p.id) {
				g.net.Cut(p.id, o.id)
			}
			return true
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := p.store.PutSwitch(ctx, "x", "1"); !errors.Is(err, ErrUnknownOutcome) || errors.Is(err, ErrNoLeader) {
			t.Errorf("%v", err)
		}
		if leader.store.Switches()["x"] != "1" {
			t.Error("it was not even written")
		}
		p.lose = nil
		if err := p.put("y", "1"); !errors.Is(err, ErrNoLeader) {
			t.Errorf("the next write: %v", err)
		}
	})
}

// A node is not ready before it has what the leader had.
func TestReadyWhenCaughtUp(t *testing.T) {
	bubble(t, "a b c", func(t *testing.T, g *group) {
		leader := g.three()
		away := g.others(leader.id)[0]
		g.kill(away.id)
		for i := range 200 {
			g.mustPut(leader.id, fmt.Sprint("s", i), strings.Repeat("x", 1000))
		}
		goal := leader.store.Status().Applied
		g.net.SetLink(leader.id, away.id, simnet.Link{Delay: 20 * time.Millisecond, Bandwidth: 100 << 10})
		g.start(away.id)
		said := map[string]bool{}
		g.await("ready", 20*time.Second, func() bool {
			ok, why := away.store.CaughtUp()
			said[why] = true
			if st := away.store.Status(); ok && st.Applied < goal {
				t.Fatalf("ready at %d of %d", st.Applied, goal)
			}
			return ok
		})
		if len(said) < 3 {
			t.Errorf("reasons: %v", said)
		}
	})
}

// A node gets no vote before it has the log; and it gets the log over a slow
// link, too: 512 entries of these at once would take longer than a request may.
func TestVoteWhenCaughtUp(t *testing.T) {
	bubble(t, "a b", func(t *testing.T, g *group) {
		g.start("a")
		a, b := g.peers["a"], g.peers["b"]
		if err := a.store.Bootstrap([]string{"a"}); err != nil {
			t.Fatal(err)
		}
		g.awaitLeader()
		for i := range 3 * closeEnough {
			g.mustPut("a", fmt.Sprint("s", i), strings.Repeat("x", 1000))
		}
		g.net.SetLink("a", "b", simnet.Link{Delay: 20 * time.Millisecond, Bandwidth: 150 << 10})
		g.start("b")
		joined := 0
		g.await("a vote", time.Minute, func() bool {
			if a.servers() == "a/b" {
				joined++
			}
			voter := a.servers() == "a b/"
			if st := b.store.Status(); voter && st.Last+closeEnough < a.store.Status().Commit-5 { // the vote is an entry, too
				t.Fatalf("a vote at %d of %d", st.Last, a.store.Status().Commit)
			}
			return voter
		})
		if joined < 10 {
			t.Errorf("it was without a vote %d times", joined)
		}
		g.awaitEqual(time.Minute)
	})
}

// Who writes at a node reads it at that node, whoever leads.
func TestReadOwnWrites(t *testing.T) {
	bubble(t, "a b c", func(t *testing.T, g *group) {
		views := map[string]*slowView{}
		for id, p := range g.peers {
			views[id] = &slowView{}
			p.options = func(o *Options) { o.Projection = views[id] }
		}
		leader := g.three()
		for i := range 20 {
			for _, p := range g.peers {
				value := fmt.Sprint(i, p.id)
				g.mustPut(p.id, "x", value)
				if got := p.store.Switches()["x"]; got != value {
					t.Fatalf("%s shows %q after %q was written there, %s leads", p.id, got, value, leader.id)
				}
			}
		}
		// One that is behind does not hold up its writers.
		slow := g.others(leader.id)[0]
		views[slow.id].wait(5 * time.Second)
		in := &registry.Instance{InstanceKey: registry.InstanceKey{IP: "10.0.0.1", Port: 1, Cluster: "DEFAULT"}, Weight: 1}
		if err := leader.store.PutInstance(t.Context(), registry.ServiceKey{Namespace: "public", Group: "g", Name: "s"}, in); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := slow.put("x", "last"); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < showTime || took > 2*showTime {
			t.Errorf("a write took %v", took)
		}
	})
}

// A follower that was away gets a snapshot when the log does not reach back.
func TestFarBehind(t *testing.T) {
	bubble(t, "a b c", func(t *testing.T, g *group) {
		for _, p := range g.peers {
			p.options = func(o *Options) {
				o.SnapshotEntries, o.TrailingEntries, o.SnapshotEvery = 50, 10, time.Second
			}
		}
		leader := g.three()
		away := g.others(leader.id)[0]
		g.mustPut("a", "first", "1")
		g.kill(away.id)
		for i := range 300 {
			g.mustPut(leader.id, fmt.Sprint("s", i), "1")
			time.Sleep(20 * time.Millisecond)
		}
		if first, err := leader.store.log.FirstIndex(); err != nil || first < 100 {
			t.Fatalf("the log was not cut: it begins at %d, %v", first, err)
		}
		g.start(away.id)
		g.awaitEqual(10 * time.Second)
		if st := away.store.Status(); st.LastSnapshot.IsZero() || st.SnapshotSize == 0 {
			t.Errorf("it got no snapshot: %+v", st)
		}
		// With only the snapshot and what came after it, it starts again.
		g.mustPut(leader.id, "last", "1")
		g.kill(away.id)
		g.start(away.id)
		g.awaitEqual(10 * time.Second)
		// And it may lead: it knows the configuration, at its right index.
		g.kill(g.others(away.id)[0].id)
		g.await("it or the other leads", 10*time.Second, func() bool { return g.leader() != nil })
	})
}

// A log of large entries is cut by its size, and so is what stays of it.
func TestSnapshotByBytes(t *testing.T) {
	bubble(t, "a", func(t *testing.T, g *group) {
		a := g.peers["a"]
		a.options = func(o *Options) { o.SnapshotBytes = 64 << 10 }
		g.start("a")
		if err := a.store.Bootstrap([]string{"a"}); err != nil {
			t.Fatal(err)
		}
		g.awaitLeader()
		big := strings.Repeat("x", 1000)
		for i := range 400 {
			g.mustPut("a", "big", big+fmt.Sprint(i))
			if i%10 == 0 {
				time.Sleep(100 * time.Millisecond)
			}
		}
		st := a.store.Status()
		if st.LastSnapshot.IsZero() || st.LogBytes > 200<<10 {
			t.Errorf("400 kB of log: %+v", st)
		}
		if first, _ := a.store.log.FirstIndex(); first < 100 {
			t.Errorf("the log begins at %d", first)
		}
		digest := st.Digest
		g.kill("a")
		g.start("a")
		g.awaitLeader()
		if st := a.store.Status(); st.Digest != digest || st.LastSnapshot.IsZero() {
			t.Errorf("after a restart: %+v", st)
		}
		// Without the file with the votes the snapshot is worth nothing here.
		g.kill("a")
		if err := os.Remove(filepath.Join(a.dir, logFile)); err != nil {
			t.Fatal(err)
		}
		if err := a.start(); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), logFile) {
			t.Errorf("started without its log: %v", err)
		}
	})
}

// The log of one cluster is not taken into another: with a higher generation it
// would make all others give up theirs.
func TestLogOfAnotherCluster(t *testing.T) {
	bubble(t, "a", func(t *testing.T, g *group) {
		a := g.peers["a"]
		set := func(cluster string) {
			g.mu.Lock()
			defer g.mu.Unlock()
			a.cluster = cluster
		}
		set("") // as while the cluster is made
		g.start("a")
		if err := a.store.Bootstrap([]string{"a"}); err != nil {
			t.Fatal(err)
		}
		set(cluster1)
		g.awaitLeader()
		g.kill("a")
		g.start("a") // which notes the cluster
		g.kill("a")
		if _, err := Recover(a.dir, "a"); err != nil {
			t.Fatal(err)
		}
		set(strings.Repeat("d", 32))
		if err := a.start(); !errors.Is(err, ErrOtherCluster) || !strings.Contains(err.Error(), cluster1) {
			t.Fatalf("started in another cluster: %v", err)
		}
		set(cluster1)
		g.start("a")
		g.awaitLeader()
	})
}

// A node whose clock is far ahead cannot write: the stamps would stay.
func TestClockFarAhead(t *testing.T) {
	bubble(t, "a b c", func(t *testing.T, g *group) {
		leader := g.three()
		ahead := g.others(leader.id)[0]
		g.kill(ahead.id)
		ahead.options = func(o *Options) { o.Clock = registry.NewClock(0, 30*24*time.Hour) }
		g.start(ahead.id)
		if err := ahead.put("x", "1"); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "clock") {
			t.Errorf("a write from the next month: %v", err)
		}
		g.mustPut(leader.id, "x", "2")
		if newest := leader.store.fsm.tables.newest.Time(); newest.After(time.Now().Add(time.Minute)) {
			t.Errorf("the newest stamp is %v", newest)
		}
	})
}

// A leader whose clock is far ahead does write. Clocks that follow what it has
// left behind are a day ahead, of the leader's by what the machines differ too:
// their nodes can write.
func TestClocksFollowFarAhead(t *testing.T) {
	bubble(t, "a b c", func(t *testing.T, g *group) {
		g.peers["a"].options = func(o *Options) { o.Clock = registry.NewClock(0, 30*24*time.Hour) }
		g.peers["c"].options = func(o *Options) { o.Clock = registry.NewClock(0, time.Second) }
		lead := func(id string) {
			for l := g.awaitLeader(); l.id != id; l = g.awaitLeader() {
				if err := l.store.TransferLeadership(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		g.three()
		lead("a")
		g.mustPut("a", "x", "1")
		g.kill("a")
		lead("b")
		g.mustPut("c", "x", "2") // with it, the clock follows again
		g.mustPut("c", "x", "3")
	})
}

// A voter that lost its log does not vote before it has it again: it may have
// acknowledged what the candidate does not have.
func TestEmptied(t *testing.T) {
	bubble(t, "a b c", func(t *testing.T, g *group) {
		leader := g.three()
		others := g.others(leader.id)
		behind, emptied := others[0], others[1]
		g.mustPut("a", "before", "1")
		g.kill(behind.id)
		g.mustPut(leader.id, "only the leader and one more have it", "1")
		g.kill(emptied.id)
		g.kill(leader.id)
		if err := os.RemoveAll(emptied.dir); err != nil {
			t.Fatal(err)
		}
		g.start(behind.id)
		g.start(emptied.id)
		time.Sleep(10 * time.Second)
		if l := g.leader(); l != nil {
			t.Fatalf("%s leads with what an emptied node voted for", l.id)
		}
		g.start(leader.id)
		g.awaitLeader()
		g.awaitEqual(5 * time.Second)
		if len(emptied.store.Switches()) != 2 {
			t.Error("the emptied node has not got everything back")
		}
		// And now it votes.
		g.await("caught up", 5*time.Second, func() bool { ok, _ := emptied.store.CaughtUp(); return ok && !emptied.store.transport.fresh.Load() })
		g.kill(leader.id)
		g.awaitLeader()
	})
}

// A quorum is lost for good; one node's log becomes the cluster's. The others
// give up theirs when they meet it.
func TestRecover(t *testing.T) {
	bubble(t, "a b c d", func(t *testing.T, g *group) {
		leader := g.three()
		g.mustPut("a", "x", "1")
		g.awaitEqual(time.Second)
		others := g.others(leader.id)
		last := others[1]
		for _, id := range []string{"a", "b", "c"} {
			g.kill(id)
		}
		info, err := Inspect(last.dir)
		if err != nil || info.Generation != 1 || len(info.Servers) != 3 || info.LastIndex == 0 || info.LastTerm == 0 || info.LogBytes == 0 {
			t.Fatalf("%+v, %v", info, err)
		}
		info, err = Recover(last.dir, last.id)
		if err != nil || info.Generation != 2 || len(info.Servers) != 1 || !info.Servers[0].Voter || info.Servers[0].ID != last.id {
			t.Fatalf("%+v, %v", info, err)
		}
		g.start(last.id)
		g.awaitLeader()
		g.mustPut(last.id, "y", "1")
		// Those that were lost come back after all, with a quorum of the old
		// group between them, and write something that will not count.
		g.net.Partition([]string{last.id}, []string{leader.id, others[0].id})
		g.start(leader.id)
		g.start(others[0].id)
		g.await("the old group", 10*time.Second, func() bool { return leader.store.Leads() || others[0].store.Leads() })
		if err := leader.put("old", "1"); err != nil {
			t.Error(err)
		}
		g.net.HealAll()
		for _, p := range []*peer{leader, others[0]} {
			g.await(p.id+" is superseded", 20*time.Second, func() bool {
				p.mu.Lock()
				defer p.mu.Unlock()
				return p.superseded == 1
			})
			if st := p.store.Status(); st.Role != "superseded" {
				t.Errorf("%+v", st)
			}
			if err := p.put("z", "1"); err == nil {
				t.Error("a superseded node wrote")
			}
			g.kill(p.id)
		}
		g.start(leader.id)
		g.start(others[0].id)
		g.awaitServers("a b c/", 30*time.Second)
		g.awaitEqual(5 * time.Second)
		for _, p := range g.others("") {
			s := p.store.Switches()
			if s["x"] != "1" || s["y"] != "1" || s["old"] != "" || p.store.Status().Generation != 2 {
				t.Errorf("%s: %v", p.id, s)
			}
		}
		old, _ := filepath.Glob(leader.dir + ".old-*")
		if len(old) != 1 || filepath.Base(old[0]) != "raft.old-1" {
			t.Errorf("the old log: %v", old)
		}
		// A new node joins the generation that there is.
		g.start("d")
		g.awaitServers("a b c/d", 20*time.Second)
	})
}

// Two nodes made a group each, against all advice: one of them gives way.
func TestTwoGroups(t *testing.T) {
	bubble(t, "a b", func(t *testing.T, g *group) {
		g.net.Cut("a", "b")
		g.start("a b")
		for _, id := range []string{"a", "b"} {
			if err := g.peers[id].store.Bootstrap([]string{id}); err != nil {
				t.Fatal(err)
			}
		}
		g.await("two leaders", 5*time.Second, func() bool { return g.peers["a"].store.Leads() && g.peers["b"].store.Leads() })
		g.mustPut("a", "x", "a")
		g.mustPut("b", "x", "b")
		g.net.HealAll()
		gone := func() *peer {
			for _, p := range g.peers {
				p.mu.Lock()
				n := p.superseded
				p.mu.Unlock()
				if n > 0 {
					return p
				}
			}
			return nil
		}
		g.await("one is superseded", time.Minute, func() bool { return gone() != nil })
		p := gone()
		g.kill(p.id)
		g.start(p.id)
		g.awaitServers("a b/", 20*time.Second)
		g.awaitEqual(5 * time.Second)
	})
}

func TestBackup(t *testing.T) {
	var backup bytes.Buffer
	var rows map[string]int
	bubble(t, "a b c", func(t *testing.T, g *group) {
		leader := g.three()
		for i := range 50 {
			g.mustPut("b", fmt.Sprint("s", i), "1")
		}
		var not *NotLeader
		if err := g.others(leader.id)[0].store.Backup(t.Context(), io.Discard); !errors.As(err, &not) || not.Leader != leader.id {
			t.Errorf("at a follower: %v", err)
		}
		if err := leader.store.Backup(t.Context(), &backup); err != nil {
			t.Fatal(err)
		}
		rows = leader.store.Status().Rows
		if err := leader.store.Restore(t.Context(), bytes.NewReader(backup.Bytes()), false); !errors.Is(err, ErrNotEmpty) {
			t.Errorf("over data: %v", err)
		}
		// Forced, it takes back what came later, on every node.
		g.mustPut("b", "later", "1")
		if err := leader.store.Restore(t.Context(), bytes.NewReader(backup.Bytes()), true); err != nil {
			t.Fatal(err)
		}
		g.awaitEqual(5 * time.Second)
		for _, p := range g.peers {
			if s := p.store.Switches(); len(s) != 50 || s["later"] != "" {
				t.Errorf("%s: %d switches", p.id, len(s))
			}
		}
		g.mustPut("c", "afterwards", "1")
		for _, id := range []string{"a", "b", "c"} {
			g.kill(id)
		}
		g.start("a b c")
		g.awaitLeader()
		g.awaitEqual(5 * time.Second)
		if n := len(g.peers["a"].store.Switches()); n != 51 {
			t.Errorf("%d switches after a restart", n)
		}
	})
	bubble(t, "a b c", func(t *testing.T, g *group) {
		leader := g.three()
		for name, b := range map[string][]byte{"cut": backup.Bytes()[:backup.Len()-5], "nothing": nil, "noise": []byte("something else")} {
			if err := leader.store.Restore(t.Context(), bytes.NewReader(b), false); !errors.Is(err, ErrDamaged) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := leader.store.Restore(t.Context(), bytes.NewReader(backup.Bytes()), false); err != nil {
			t.Fatal(err)
		}
		g.awaitEqual(5 * time.Second)
		for _, p := range g.peers {
			if got := p.store.Status().Rows; !maps.Equal(got, rows) {
				t.Errorf("%s: %v, want %v", p.id, got, rows)
			}
		}
		g.mustPut("b", "x", "1")
	})
}

// Nobody is asked to write what not every node understands.
func TestCommandVersion(t *testing.T) {
	bubble(t, "a b c", func(t *testing.T, g *group) {
		g.three()
		s := g.peers["b"].store
		if err := s.understood(CommandVersion); err != nil {
			t.Error(err)
		}
		if err := s.understood(CommandVersion + 1); !errors.Is(err, ErrNotUnderstood) {
			t.Error(err)
		}
		g.kill("a")
		if err := s.understood(CommandVersion + 1); !errors.Is(err, ErrNotUnderstood) {
			t.Error(err)
		}
	})
}

// The disk of a node fails: it says so and takes no part any more, and the
// others go on.
func TestFailure(t *testing.T) {
	for _, who := range []string{"leader", "follower"} {
		t.Run(who, func(t *testing.T) {
			bubble(t, "a b c", func(t *testing.T, g *group) {
				leader := g.three()
				g.mustPut("a", "x", "1")
				victim := leader
				if who == "follower" {
					victim = g.others(leader.id)[0]
				}
				if err := victim.store.log.bolt.Close(); err != nil { // every read and write fails from now on
					t.Fatal(err)
				}
				rest := g.others(victim.id)
				if err := rest[0].put("y", "1"); err != nil {
					t.Error(err)
				}
				g.await("the failure is told", 5*time.Second, func() bool {
					victim.mu.Lock()
					defer victim.mu.Unlock()
					return len(victim.failures) == 1
				})
				if st := victim.store.Status(); st.Role != "failed" {
					t.Errorf("%+v", st)
				}
				begin := time.Now()
				if err := victim.put("z", "1"); err == nil || time.Since(begin) > time.Second {
					t.Errorf("a write at the failed node: %v after %v", err, time.Since(begin))
				}
				g.set(victim.id, false, false)
				g.mustPut(rest[1].id, "z", "1")
			})
		})
	}
}

// A disk that cannot take the term of an election: the library would panic.
func TestFailureInElection(t *testing.T) {
	bubble(t, "a b c", func(t *testing.T, g *group) {
		leader := g.three()
		g.mustPut("a", "x", "1")
		victim := g.others(leader.id)[0]
		if err := victim.store.log.bolt.Close(); err != nil {
			t.Fatal(err)
		}
		g.kill(leader.id)
		g.await("the failure", 10*time.Second, func() bool {
			victim.mu.Lock()
			defer victim.mu.Unlock()
			return len(victim.failures) == 1
		})
		if err := victim.put("y", "1"); err == nil {
			t.Error("it wrote")
		}
	})
}

// A node that finds no leader serves what it has, after a while.
func TestReadyWithoutLeader(t *testing.T) {
	bubble(t, "a b c", func(t *testing.T, g *group) {
		g.three()
		g.mustPut("a", "x", "1")
		g.awaitEqual(time.Second)
		for _, id := range []string{"a", "b", "c"} {
			g.kill(id)
		}
		g.start("b")
		time.Sleep(8 * time.Second)
		if ok, why := g.peers["b"].store.CaughtUp(); ok || !strings.Contains(why, "no leader") {
			t.Errorf("%v %q", ok, why)
		}
		time.Sleep(4 * time.Second)
		if ok, _ := g.peers["b"].store.CaughtUp(); !ok || !g.peers["b"].store.Status().Stale {
			t.Error("it does not serve, or not as stale")
		}
		g.start("a c")
		g.await("up to date", 10*time.Second, func() bool { return !g.peers["b"].store.Status().Stale })
	})
}

// Members that the group does not know yet can write, too.
func TestWriteBeforeJoining(t *testing.T) {
	bubble(t, "a b", func(t *testing.T, g *group) {
		g.start("a")
		if err := g.peers["a"].store.Bootstrap([]string{"a"}); err != nil {
			t.Fatal(err)
		}
		g.awaitLeader()
		b := g.peers["b"]
		if err := b.start(); err != nil { // a does not hear of it
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if err := b.put("x", "1"); err != nil {
			t.Error(err)
		}
	})
}

func TestStoreClose(t *testing.T) {
	bubble(t, "a b c", func(t *testing.T, g *group) {
		leader := g.three()
		errs := make(chan error, 100)
		for i := range cap(errs) {
			go func() {
				errs <- leader.put(fmt.Sprint("s", i), "1")
			}()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := leader.store.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := leader.store.Close(ctx); err != nil {
			t.Error(err)
		}
		for range cap(errs) {
			<-errs // none hangs
		}
		if err := leader.put("x", "1"); err == nil {
			t.Error("a closed store wrote")
		}
	})
}

// slowView takes its time, as one of many instances does.
type slowView struct {
	each time.Duration
	mu   sync.Mutex
	n    int // instances shown
}

func (v *slowView) Commit(changes []registry.Change) {
	v.mu.Lock()
	each := v.each
	v.mu.Unlock()
	time.Sleep(each)
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, c := range changes {
		v.n += len(c.Instances)
	}
}

func (v *slowView) wait(each time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.each = each
}

func (v *slowView) shown() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.n
}

// A new leader has not yet applied what it has: a follower that has as little
// is not ready. Nor is it before what it has applied is shown (cases C18).
func TestReadyWhenShown(t *testing.T) {
	const instances = 2000
	bubble(t, "a b c", func(t *testing.T, g *group) {
		leader := g.three()
		var wg sync.WaitGroup
		for i := range instances {
			wg.Go(func() {
				in := &registry.Instance{InstanceKey: registry.InstanceKey{IP: "10.0.0.1", Port: i + 1, Cluster: "DEFAULT"}, Weight: 1, Enabled: true, Healthy: true}
				if err := leader.store.PutInstance(t.Context(), registry.ServiceKey{Namespace: "public", Group: "g", Name: fmt.Sprint("s", i%10)}, in); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		g.awaitEqual(10 * time.Second)
		for _, snapshot := range []bool{false, true} {
			for _, id := range []string{"a", "b", "c"} {
				if snapshot {
					if err := g.peers[id].store.raft.Snapshot().Error(); err != nil {
						t.Error(err)
					}
				}
				g.kill(id)
			}
			views := map[string]*slowView{}
			for id, p := range g.peers {
				views[id] = &slowView{each: 100 * time.Millisecond}
				p.options = func(o *Options) { o.Projection = views[id] }
			}
			g.start("a b c")
			g.await("ready", 30*time.Second, func() bool {
				all := true
				for id, p := range g.peers {
					ok, _ := p.store.CaughtUp()
					if all = all && ok; ok && views[id].shown() < instances {
						t.Fatalf("%s is ready and shows %d of %d instances", id, views[id].shown(), instances)
					}
				}
				return all
			})
		}
	})
}

// A lone write is seen everywhere at once, not with the next timer of the
// library: its writer waits for that where he has written, and subscribers of
// all nodes do.
func TestToldAtOnce(t *testing.T) {
	bubble(t, "a b c", func(t *testing.T, g *group) {
		g.three()
		for i := range 20 {
			for _, p := range g.peers {
				time.Sleep(time.Second) // nothing else is under way
				value := fmt.Sprint(i, p.id)
				start := time.Now()
				g.mustPut(p.id, "x", value)
				for id, other := range g.peers {
					for other.store.Switches()["x"] != value {
						if took := time.Since(start); took > 20*time.Millisecond {
							t.Fatalf("written at %s, not seen at %s after %v", p.id, id, took)
						}
						time.Sleep(time.Millisecond)
					}
				}
			}
		}
	})
}

// A node that comes up without a leader shows what it knew to be committed, also
// behind the last snapshot; and when there is a leader again, it has everything
// once (semantics R6, cases C18).
func TestServesWithoutLeader(t *testing.T) {
	for _, snapshots := range []uint64{8192, 16} {
		t.Run(fmt.Sprint("snapshot after ", snapshots), func(t *testing.T) {
			bubble(t, "a b c", func(t *testing.T, g *group) {
				for _, p := range g.peers {
					p.options = func(o *Options) {
						o.SnapshotEntries, o.TrailingEntries, o.SnapshotEvery = snapshots, snapshots, time.Second
					}
				}
				g.three()
				for i := range 40 {
					g.mustPut("b", fmt.Sprint("k", i), "1")
				}
				time.Sleep(2 * commitEvery)
				for _, id := range []string{"a", "b", "c"} {
					g.kill(id)
				}
				g.start("b")
				b := g.peers["b"]
				if n := len(b.store.Switches()); snapshots == 8192 && n > 0 {
					t.Fatalf("%d rows before anybody said that they are committed", n)
				}
				g.await("b serves", 20*time.Second, func() bool { ok, _ := b.store.CaughtUp(); return ok })
				if got := b.store.Switches(); len(got) != 40 || !b.store.Status().Stale {
					t.Fatalf("%d of 40 rows are shown; %+v", len(got), b.store.Status())
				}
				time.Sleep(5 * time.Second) // no snapshot of it may be taken now
				g.start("a")
				g.awaitLeader()
				g.mustPut("b", "last", "1")
				g.start("c")
				for i := range 20 {
					g.mustPut("a", fmt.Sprint("more", i), "1")
				}
				g.awaitEqual(time.Minute)
				time.Sleep(5 * time.Second)
				g.kill("b")
				g.start("b")
				g.awaitEqual(time.Minute)
			})
		})
	}
}
