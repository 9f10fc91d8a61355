package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/starling-registry/starling/deploy/chaos/link"
	"github.com/starling-registry/starling/deploy/chaos/verdict"
)

// A scenario disturbs a cluster in one way.
type scenario struct {
	name string
	says string // one sentence, for people
	// short: it belongs to the selection that CI runs.
	short bool
	// doomed providers die in it; they are connected to node b.
	doomed bool
	// three: it needs all nodes, else b is enough.
	three bool
	// stable: the nodes have been up for a minute, so that they count where a
	// majority does.
	stable bool
	// nodes at the start, if not as many as the command line says.
	nodes int
	// free: faults come where they come, so that what may be seen follows from
	// what was done, clients choose their nodes, and persistent instances are
	// written.
	free bool
	// byName: clients and nodes know the nodes by one DNS name only.
	byName bool
	// disks of nodes can be broken.
	disks bool
	// undialable: no provider's address leads anywhere.
	undialable bool
	// play does it, and says what is allowed. It returns when enough was seen.
	play func(context.Context, *stage) (*verdict.Expectation, error)
}

// least is how many nodes it needs: most break b while another one goes on.
func (s *scenario) least() int {
	switch {
	case s.three:
		return 3
	case s.free:
		return 1
	}
	return 2
}

// How long is watched after the last disturbance. A lease may end wrongly only
// when it ends: the longest is that of Python clients, 35 s, which register
// again up to 30 s after they connected.
const (
	pastLeases = 42 * time.Second
	pastRedo   = 35 * time.Second
)

var scenarios = []scenario{
	{
		name: "kill-9", says: "a node is killed, and some of the providers on it die with it",
		short: true, doomed: true,
		play: func(ctx context.Context, s *stage) (*verdict.Expectation, error) {
			s.act("kill -9 of b and of the doomed providers")
			s.cluster.node("b").kill()
			s.killDoomed()
			return gone(12_000, 35_000), s.watch(ctx, pastLeases)
		},
	},
	{
		name: "pause-30", says: "a node stands still for 30 s, some of the providers on it die meanwhile",
		doomed: true,
		play: func(ctx context.Context, s *stage) (*verdict.Expectation, error) {
			// When a Python client has closed its connection to a node that stood
			// still is not known, so its 35 s begin when that goes on.
			return gone(25_000, 66_000), pause(ctx, s, 30*time.Second, pastLeases)
		},
	},
	pauseOf(5, false), pauseOf(10, true), pauseOf(15, false), pauseOf(20, false),
	{
		name: "rolling-restart", says: "each node is stopped with SIGTERM and started again, one after the other",
		short: true,
		play: func(ctx context.Context, s *stage) (*verdict.Expectation, error) {
			for _, n := range s.cluster.all() {
				s.act("SIGTERM to %s", n.name)
				if err := n.stop(ctx); err != nil {
					return nil, err
				}
				s.act("%s has ended, it is started again", n.name)
				if err := s.start(ctx, n); err != nil {
					return nil, err
				}
			}
			return &verdict.Expectation{}, s.watch(ctx, pastRedo)
		},
	},
	{
		name: "restart-all", says: "all nodes are killed at once and started again",
		play: func(ctx context.Context, s *stage) (*verdict.Expectation, error) {
			// A node writes its snapshot every 10 s.
			if err := s.watch(ctx, 12*time.Second); err != nil {
				return nil, err
			}
			for _, n := range s.cluster.all() {
				if err := n.crash(ctx); err != nil {
					return nil, err
				}
			}
			for _, n := range s.cluster.all() {
				n.waitDown()
			}
			s.act("all nodes are killed; they are started again")
			start := time.Now()
			for _, n := range s.cluster.all() {
				if err := n.start(ctx); err != nil {
					return nil, err
				}
			}
			for _, n := range s.cluster.all() {
				if err := n.waitReady(ctx); err != nil {
					return nil, err
				}
				s.act("%s is ready, %.1f s after the start", n.name, time.Since(start).Seconds())
			}
			const limit = 15 * time.Second
			for {
				// Only who has registered again is counted, not who is shown because
				// it was there before: a client that is connected is about to.
				connected, all := s.connectedClients()
				if now, _ := s.rec.state(); connected >= all && len(now.lacking) == 0 && now.observers == len(s.rec.observers) {
					s.act("all %d clients are connected and all views are whole, %.1f s after the start", all, time.Since(start).Seconds())
					break
				}
				if time.Since(start) > limit {
					s.fault("%d of %d clients are connected %v after the start", connected, all, limit)
					break
				}
				if err := sleep(ctx, 50*time.Millisecond); err != nil {
					return nil, err
				}
			}
			return &verdict.Expectation{}, s.watch(ctx, pastLeases)
		},
	},
	{
		name: "restart-fast", says: "a node is killed and starts again within a second",
		play: func(ctx context.Context, s *stage) (*verdict.Expectation, error) {
			b := s.cluster.node("b")
			s.act("kill -9 of b, which is started again")
			b.kill()
			if err := s.start(ctx, b); err != nil {
				return nil, err
			}
			return &verdict.Expectation{}, s.watch(ctx, pastLeases)
		},
	},
	{
		name: "kill-two", says: "two nodes are killed at once, the third serves everything",
		three: true,
		play: func(ctx context.Context, s *stage) (*verdict.Expectation, error) {
			s.act("kill -9 of a and b")
			for _, name := range []string{"a", "b"} {
				if err := s.cluster.node(name).crash(ctx); err != nil {
					return nil, err
				}
			}
			return &verdict.Expectation{}, s.watch(ctx, pastLeases)
		},
	},
	{
		name: "cut-10", says: "a node is cut off from the other two for 10 s, clients are not; on both sides a provider comes and one goes",
		short: true, three: true,
		play: func(ctx context.Context, s *stage) (*verdict.Expectation, error) {
			if err := cut(s); err != nil {
				return nil, err
			}
			if err := s.watch(ctx, 4*time.Second); err != nil {
				return nil, err
			}
			for _, side := range []string{"b", "c"} {
				c, p := s.lastingOn(side)
				if p == nil {
					return nil, fmt.Errorf("no provider is on %s", side)
				}
				s.act("%s, on %s, deregisters; another one comes on %s", p.Name, side, side)
				if err := s.deregister(c, p); err != nil {
					return nil, err
				}
				if err := s.enlist(ctx, c, "late-"+side, side); err != nil {
					return nil, err
				}
			}
			if err := s.watch(ctx, 6*time.Second); err != nil {
				return nil, err
			}
			healed, err := heal(s)
			if err != nil {
				return nil, err
			}
			e := &verdict.Expectation{GoneWithin: func(*verdict.Provider) verdict.Millis { return healed + 2_000 }}
			e.EqualFrom, e.EqualWithin = healed, 2_000
			return e, s.watch(ctx, 12*time.Second)
		},
	},
	{
		name: "cut-60", says: "a node is cut off from the other two for 60 s, clients are not; some of the providers on it die meanwhile",
		three: true, stable: true, doomed: true,
		play: func(ctx context.Context, s *stage) (*verdict.Expectation, error) {
			// No client loses its node, so nobody is deaf.
			return longCut(ctx, s, &verdict.Expectation{GoneWithin: gone(25_000, 40_000).GoneWithin})
		},
	},
	{
		name: "cut-60-undialable", says: "the same with providers that no node can dial: the majority keeps its own",
		three: true, stable: true, undialable: true,
		play: func(ctx context.Context, s *stage) (*verdict.Expectation, error) {
			// The two nodes that are a majority drop what is on the other when its
			// lease of 22 s is over, 35 s because of the Python clients on it, after
			// about 2.5 s of detection. The other one drops nothing: it misses more
			// than it has, so it preserves what it knows.
			e := &verdict.Expectation{}
			e.Absences = []verdict.Absence{{
				Why:       "it was on the other side of the cut, out of reach for longer than its lease",
				Providers: func(p *verdict.Provider) bool { return p.Node == "b" },
				Observers: func(o *verdict.Observer) bool { return o.Node != "b" },
				From:      20_000, To: 62_000 + slack, MustBy: 55_000,
			}}
			return longCut(ctx, s, e)
		},
	},
	{
		name: "scale-out", says: "1 → 3 → 5 → 2 nodes behind one DNS name, which is all that clients and nodes know; the first three nodes leave",
		nodes: 1, byName: true, free: true,
		play: scaleOut,
	},
}

// scaleOut grows and shrinks a cluster under load. At each size more clients
// come, which find what the name stands for by then.
func scaleOut(ctx context.Context, s *stage) (*verdict.Expectation, error) {
	step := func(voters int, names ...string) error {
		for _, name := range names {
			f := "add"
			if slices.Contains(s.cluster.names(), name) {
				f = "remove"
			}
			st := &step{fault: findFault(f), target: name}
			if err := s.playGroup(ctx, fmt.Sprintf("%d nodes", len(s.cluster.names())), group{st}); err != nil {
				return err
			}
		}
		if err := s.voters(ctx, voters); err != nil {
			return err
		}
		for _, c := range s.lasting {
			if err := s.enlist(ctx, c, fmt.Sprintf("%s-at-%d-nodes", c.sdk.Name, len(s.cluster.names())), ""); err != nil {
				return err
			}
		}
		return s.calm(ctx)
	}
	if err := step(1); err != nil {
		return nil, err
	}
	if err := step(3, "b", "c"); err != nil {
		return nil, err
	}
	if err := step(5, "d", "e"); err != nil {
		return nil, err
	}
	return nil, step(2, "a", "b", "c")
}

// voters waits until so many nodes vote, and no others, or says that they do
// not.
func (s *stage) voters(ctx context.Context, want int) error {
	const limit = time.Minute
	start := time.Now()
	for {
		said := "nobody says who votes"
		if n, err := s.cluster.leader(ctx); err == nil {
			if status, err := n.raft(ctx); err == nil {
				var list []string
				for _, v := range status.Servers {
					if v.Voter {
						list = append(list, v.Name)
					}
				}
				slices.Sort(list)
				said = strings.Join(list, ", ") + " vote"
				if slices.Equal(list, s.cluster.names()) {
					s.act("%s vote, %.1f s later", strings.Join(list, ", "), time.Since(start).Seconds())
					return nil
				}
			}
		}
		if time.Since(start) > limit {
			s.fault("%s, want %d nodes to, %v after the last came or went", said, want, limit)
			return nil
		}
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// patient is how long those subscribers of the Python SDK may see the dead that
// were on the node that broke: it takes up to 8 s to notice and subscribes again
// up to 30 s later.
const patient verdict.Millis = 45_000

// slack is what doing takes beside the times that are meant: a cut is several
// commands.
const slack verdict.Millis = 1_000

// gone is the expectation that dead providers are gone in time; those of the
// Python SDK have longer, because it takes up to 30 s to register again.
func gone(limit, python verdict.Millis) *verdict.Expectation {
	return &verdict.Expectation{
		GoneWithin: func(p *verdict.Provider) verdict.Millis {
			if p.SDK == "python" {
				return python + slack
			}
			return limit + slack
		},
		Deaf:    func(o *verdict.Observer) bool { return o.SDK == "python" && o.Node == "b" },
		DeafFor: patient,
	}
}

func pauseOf(seconds int, short bool) scenario {
	return scenario{
		name: fmt.Sprintf("pause-%d", seconds), says: fmt.Sprintf("a node stands still for %d s", seconds),
		short: short,
		play: func(ctx context.Context, s *stage) (*verdict.Expectation, error) {
			return &verdict.Expectation{}, pause(ctx, s, time.Duration(seconds)*time.Second, pastRedo)
		},
	}
}

// pause stops node b for a while, kills the doomed a second later and watches
// for some time after.
func pause(ctx context.Context, s *stage, d, after time.Duration) error {
	b := s.cluster.node("b")
	s.act("SIGSTOP to b")
	if err := b.freeze(ctx); err != nil {
		return err
	}
	if err := s.watch(ctx, time.Second); err != nil {
		return err
	}
	if len(s.doomed) > 0 {
		s.act("kill -9 of the doomed providers")
		s.killDoomed()
	}
	if err := s.watch(ctx, d-time.Second); err != nil {
		return err
	}
	s.act("SIGCONT to b")
	if err := b.thaw(ctx); err != nil {
		return err
	}
	return s.watch(ctx, after)
}

// cut separates node b from the others.
func cut(s *stage) error {
	s.act("b is cut off from a and c")
	return s.lay(both([]string{"b"}, []string{"a", "c"}), link.Rule{Cut: true})
}

func heal(s *stage) (verdict.Millis, error) {
	if err := s.lift(both([]string{"b"}, []string{"a", "c"}), link.Rule{Cut: true}); err != nil {
		return 0, err
	}
	s.act("the cut is healed")
	return s.rec.since(), nil
}

func longCut(ctx context.Context, s *stage, e *verdict.Expectation) (*verdict.Expectation, error) {
	if err := cut(s); err != nil {
		return nil, err
	}
	if err := s.watch(ctx, time.Second); err != nil {
		return nil, err
	}
	if len(s.doomed) > 0 {
		s.act("kill -9 of the doomed providers")
		s.killDoomed()
	}
	if err := s.watch(ctx, 59*time.Second); err != nil {
		return nil, err
	}
	healed, err := heal(s)
	if err != nil {
		return nil, err
	}
	e.EqualFrom, e.EqualWithin = healed, 2_000
	return e, s.watch(ctx, 15*time.Second)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
