package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/starling-registry/starling/deploy/chaos/link"
)

// A fault breaks something and mends it. Nothing of it is left when do returns.
type fault struct {
	name   string
	says   string // one sentence, for people
	needs  need   // what must be there
	target target
	// shortest and longest are the bounds of what is drawn; 0 if the fault takes
	// the time that it takes.
	shortest, longest time.Duration
	// several: it makes sense from three nodes on.
	several bool
	// beside: it is drawn only together with another one.
	beside bool
	// ends: it ends, freezes or starts the process of its target, or of a node that
	// it chooses.
	ends bool
	do   func(context.Context, *stage, *step) error
}

// A need is a set of abilities.
type need int

const (
	needLinks   need = 1 << iota // what is between nodes can be cut, delayed, thinned out
	needClients                  // what is between clients and nodes can be
	needProcess                  // processes can be killed, frozen and started
	needOwn                      // the nodes are ours: more can be started, with other flags
	needLog                      // "starling raft" tells who leads
	needName                     // clients know a name, and what it stands for can be changed
	needDisk                     // nodes have disks that can be full and slow
)

// kinds tells people of the needs, in one place: --list explains them. Instead
// is what replaces it where only root could have it.
var kinds = []struct {
	need                need
	name, says, instead string
}{
	{needLinks, "links", "servers of one's own, behind links of its own: not with --servers", byRelay},
	{needClients, "clients", "links to clients that can be cut", byRelay},
	{needProcess, "process", "control over the processes: --control with --servers", ""},
	{needOwn, "own", "servers that it started itself: not with --servers", ""},
	{needLog, "log", "servers that are Starling's, which tell who leads", ""},
	{needName, "name", "clients that know the servers by a name: --by-name", byFront},
	{needDisk, "disk", "file systems of its own: root, and not with --servers", ""},
}

const (
	byRelay = "without root a relay in front of each port: to dial through a cut connects and hears nothing, a lost segment is a late one"
	byFront = "without root an address with a relay that leads to other nodes, instead of a name"
)

// lacks names what a fault cannot have here.
func (n need) lacks(has need) string {
	var list []string
	for _, k := range kinds {
		if n&k.need != 0 && has&k.need == 0 {
			list = append(list, k.says)
		}
	}
	return strings.Join(list, "; ")
}

// String has the names of its kinds.
func (n need) String() string {
	var list []string
	for _, k := range kinds {
		if n&k.need != 0 {
			list = append(list, k.name)
		}
	}
	return strings.Join(list, ", ")
}

var faults = []*fault{
	{
		name: "kill", says: "kill -9 of a node, which is started again when the time is over",
		needs: needProcess, ends: true, target: aNode, shortest: 3 * time.Second, longest: 40 * time.Second,
		do: func(ctx context.Context, s *stage, st *step) error {
			return s.killed(ctx, st.last, s.cluster.node(st.target))
		},
	},
	{
		name: "kill-leader", says: "kill -9 of the node that leads the log",
		needs: needProcess | needLog, ends: true, shortest: 3 * time.Second, longest: 40 * time.Second,
		do: func(ctx context.Context, s *stage, st *step) error {
			n, err := s.cluster.leader(ctx)
			if err != nil {
				return err
			}
			st.target = n.name
			return s.killed(ctx, st.last, n)
		},
	},
	{
		name: "kill-majority", says: "kill -9 of more than half of the nodes at once",
		needs: needProcess, ends: true, several: true, shortest: 5 * time.Second, longest: 30 * time.Second,
		do: func(ctx context.Context, s *stage, st *step) error {
			running := s.cluster.running()
			return s.killed(ctx, st.last, running[:len(running)/2+1]...)
		},
	},
	{
		name: "kill-all", says: "kill -9 of all nodes at once, which are started again at once",
		needs: needProcess, ends: true,
		do: func(ctx context.Context, s *stage, st *step) error {
			// A node writes its snapshot every 10 s: what it has not yet written, it
			// does not know afterwards.
			if err := s.watch(ctx, 11*time.Second); err != nil {
				return err
			}
			return s.killed(ctx, 0, s.cluster.running()...)
		},
	},
	{
		name: "crash", says: "kill -9 of a node that is started again within a second",
		needs: needProcess, ends: true, target: aNode,
		do: func(ctx context.Context, s *stage, st *step) error {
			return s.killed(ctx, 0, s.cluster.node(st.target))
		},
	},
	{
		name: "stop", says: "a node stands still (SIGSTOP), then goes on (SIGCONT)",
		needs: needProcess, ends: true, target: aNode, shortest: 3 * time.Second, longest: 40 * time.Second,
		do: func(ctx context.Context, s *stage, st *step) error {
			return s.frozen(ctx, st.last, s.cluster.node(st.target))
		},
	},
	{
		name: "restart", says: "SIGTERM to a node: it hands its clients over, ends and is started again",
		needs: needProcess, ends: true, target: aNode,
		do: func(ctx context.Context, s *stage, st *step) error {
			return s.restarted(ctx, s.cluster.node(st.target))
		},
	},
	{
		name: "rolling-restart", says: "each node is restarted like that, one after the other",
		needs: needProcess, ends: true,
		do: func(ctx context.Context, s *stage, _ *step) error {
			for _, n := range s.cluster.running() {
				if err := s.restarted(ctx, n); err != nil {
					return err
				}
			}
			return nil
		},
	},
	{
		name: "restart-all", says: "SIGTERM to all nodes at once, which are started again",
		needs: needProcess, ends: true,
		do: func(ctx context.Context, s *stage, _ *step) error {
			return s.restarted(ctx, s.cluster.running()...)
		},
	},
	{
		name: "partition", says: "the nodes are cut into two halves; clients reach all of them",
		needs: needLinks, several: true, shortest: 3 * time.Second, longest: 60 * time.Second,
		do: func(ctx context.Context, s *stage, st *step) error {
			names := s.cluster.names()
			half := len(names) / 2
			return s.impaired(ctx, st, link.Rule{Cut: true}, both(names[:half], names[half:]))
		},
	},
	{
		name: "isolate", says: "a node is cut off from all others; clients reach all of them",
		needs: needLinks, several: true, target: aNode, shortest: 3 * time.Second, longest: 60 * time.Second,
		do: func(ctx context.Context, s *stage, st *step) error {
			return s.impaired(ctx, st, link.Rule{Cut: true}, both([]string{st.target}, s.cluster.others(st.target)))
		},
	},
	{
		name: "isolate-leader", says: "the node that leads the log is cut off from all others; clients reach all of them",
		needs: needLinks | needLog, several: true, shortest: 3 * time.Second, longest: 40 * time.Second,
		do: func(ctx context.Context, s *stage, st *step) error {
			n, err := s.cluster.leader(ctx)
			if err != nil {
				return err
			}
			st.target = n.name
			return s.impaired(ctx, st, link.Rule{Cut: true}, both([]string{n.name}, s.cluster.others(n.name)))
		},
	},
	{
		name: "oneway", says: "what a node sends to the others is lost, it hears all that they send",
		needs: needLinks, several: true, target: aNode, shortest: 3 * time.Second, longest: 40 * time.Second,
		do: func(ctx context.Context, s *stage, st *step) error {
			return s.impaired(ctx, st, link.Rule{Cut: true}, from([]string{st.target}, s.cluster.others(st.target)))
		},
	},
	{
		name: "cut-clients", says: "a node is cut off from all clients, not from the other nodes",
		needs: needClients, several: true, target: aNode, shortest: 3 * time.Second, longest: 40 * time.Second,
		do: func(ctx context.Context, s *stage, st *step) error {
			return s.impaired(ctx, st, link.Rule{Cut: true}, both([]string{st.target}, s.clientEnds()))
		},
	},
	{
		name: "loss", says: "a tenth of all packets to and from a node is lost, or between all",
		needs: needClients, target: aNodeOrAll, shortest: 5 * time.Second, longest: 40 * time.Second,
		do: func(ctx context.Context, s *stage, st *step) error {
			return s.impaired(ctx, st, link.Rule{Loss: 0.1}, s.linksOf(st.target))
		},
	},
	{
		name: "delay", says: "packets to and from a node take 40 to 60 ms each way, or between all",
		needs: needClients, target: aNodeOrAll, shortest: 5 * time.Second, longest: 40 * time.Second,
		do: func(ctx context.Context, s *stage, st *step) error {
			return s.impaired(ctx, st, link.Rule{Delay: 40 * time.Millisecond, Jitter: 20 * time.Millisecond}, s.linksOf(st.target))
		},
	},
	{
		name: "bandwidth", says: "a node's links carry 64 KiB a second each, or all links",
		needs: needClients, target: aNodeOrAll, shortest: 5 * time.Second, longest: 40 * time.Second,
		do: func(ctx context.Context, s *stage, st *step) error {
			return s.impaired(ctx, st, link.Rule{Rate: 64 << 10}, s.linksOf(st.target))
		},
	},
	{
		name: "dns", says: "the name stands for one node only, then for the others, of which that one is killed meanwhile",
		needs: needName | needProcess, ends: true, several: true, target: aNode, shortest: 6 * time.Second, longest: 40 * time.Second,
		do: func(ctx context.Context, s *stage, st *step) error {
			n := s.cluster.node(st.target)
			if err := s.name(n); err != nil {
				return err
			}
			if err := s.watch(ctx, st.last/2); err != nil {
				return err
			}
			if err := s.name(s.cluster.nodesBut(n)...); err != nil {
				return err
			}
			err := s.killed(ctx, st.last/2, n)
			return errors.Join(err, s.name(s.cluster.running()...))
		},
	},
	{
		name: "add", says: "another node joins and stays",
		needs: needOwn,
		do: func(ctx context.Context, s *stage, st *step) error {
			n, err := s.add(ctx)
			if err != nil {
				return err
			}
			st.target = n.name
			return nil
		},
	},
	{
		name: "remove", says: "a node that was added hands its clients over and leaves for good",
		needs: needOwn, ends: true, target: anExtra,
		do: func(ctx context.Context, s *stage, st *step) error {
			return s.remove(ctx, s.cluster.node(st.target))
		},
	},
	{
		name: "clock", says: "a node runs with a clock that is 2 minutes ahead, then one that is right again",
		needs: needOwn, ends: true, target: aNode, shortest: 5 * time.Second, longest: 30 * time.Second,
		do: func(ctx context.Context, s *stage, st *step) error {
			n := s.cluster.node(st.target)
			n.flags = []string{"--clock-offset", "2m"}
			if err := s.restarted(ctx, n); err != nil {
				return err
			}
			if err := s.watch(ctx, st.last); err != nil {
				return err
			}
			n.flags = nil
			return s.restarted(ctx, n)
		},
	},
	{
		name: "disk-full", says: "a node's disk is full: it ends, and is started when there is room again",
		needs: needOwn | needDisk, ends: true, target: aNode, shortest: 5 * time.Second, longest: 30 * time.Second,
		do: func(ctx context.Context, s *stage, st *step) error {
			return s.filled(ctx, st.last, s.cluster.node(st.target))
		},
	},
	{
		name: "disk-slow", says: "a node's disk takes 100 ms for each write that must be on it",
		needs: needOwn | needDisk, target: aNode, shortest: 5 * time.Second, longest: 40 * time.Second,
		do: func(ctx context.Context, s *stage, st *step) error {
			n := s.cluster.node(st.target)
			n.disk.Slow(0, 100*time.Millisecond)
			defer n.disk.Slow(0, 0)
			return s.watch(ctx, st.last)
		},
	},
	{
		name: "die", says: "some providers are killed, 2 s after the fault beside it began",
		beside: true,
		do: func(ctx context.Context, s *stage, _ *step) error {
			if err := sleep(ctx, 2*time.Second); err != nil {
				return err
			}
			s.act("kill -9 of the doomed providers")
			s.killDoomed()
			return nil
		},
	},
}

func findFault(name string) *fault {
	if i := slices.IndexFunc(faults, func(f *fault) bool { return f.name == name }); i >= 0 {
		return faults[i]
	}
	return nil
}

// A direction is from one end to another.
type direction struct{ from, to string }

func from(these, those []string) []direction {
	var list []direction
	for _, a := range these {
		for _, b := range those {
			if a != b {
				list = append(list, direction{a, b})
			}
		}
	}
	return list
}

func both(these, those []string) []direction {
	return append(from(these, those), from(those, these)...)
}

// killed kills nodes and starts them again after a while.
func (s *stage) killed(ctx context.Context, last time.Duration, nodes ...*node) error {
	for i, n := range nodes {
		s.act("kill -9 of %s", n.name)
		// Of several none may hear first that another is gone.
		if err := n.crash(ctx); err != nil {
			return s.giveBack(ctx, err, nodes[:i]...)
		}
	}
	for _, n := range nodes {
		n.waitDown()
	}
	if err := s.watch(ctx, last); err != nil {
		return s.giveBack(ctx, err, nodes...)
	}
	return s.start(ctx, nodes...)
}

// giveBack starts servers of somebody else again when what was done to them did
// not come to its end; those of ours end anyway.
func (s *stage) giveBack(ctx context.Context, why error, nodes ...*node) error {
	if !s.cluster.foreign {
		return why
	}
	errs := []error{why}
	for _, n := range nodes {
		errs = append(errs, n.start(ctx))
	}
	return errors.Join(errs...)
}

// start starts nodes and returns when all are ready.
func (s *stage) start(ctx context.Context, nodes ...*node) error {
	start := time.Now()
	for _, n := range nodes {
		if err := n.start(ctx); err != nil {
			return err
		}
		s.act("%s is started", n.name)
	}
	for _, n := range nodes {
		if err := n.waitReady(ctx); err != nil {
			return err
		}
		s.act("%s is ready, %.1f s after its start", n.name, time.Since(start).Seconds())
	}
	return nil
}

// restarted ends nodes politely and starts them again.
func (s *stage) restarted(ctx context.Context, nodes ...*node) error {
	var errs []error
	ended := make(chan error)
	for _, n := range nodes {
		s.act("SIGTERM to %s", n.name)
		go func() { ended <- n.stop(ctx) }()
	}
	for range nodes {
		errs = append(errs, <-ended)
	}
	if err := errors.Join(errs...); err != nil {
		return s.giveBack(ctx, err, nodes...)
	}
	return s.start(ctx, nodes...)
}

// frozen lets a node stand still for a while.
func (s *stage) frozen(ctx context.Context, last time.Duration, n *node) error {
	s.act("SIGSTOP to %s", n.name)
	if err := n.freeze(ctx); err != nil {
		return err
	}
	err := s.watch(ctx, last)
	s.act("SIGCONT to %s", n.name)
	return errors.Join(err, n.thaw(context.WithoutCancel(ctx)))
}

// impaired lays a rule on links for a while.
func (s *stage) impaired(ctx context.Context, st *step, r link.Rule, links []direction) error {
	s.act("%s", st.fault.says)
	if err := s.lay(links, r); err != nil {
		return err
	}
	err := s.watch(ctx, st.last)
	s.act("%s is over", st)
	return errors.Join(err, s.lift(links, r))
}

// linksOf are the links of a node to all other nodes and to clients, or all.
func (s *stage) linksOf(target string) []direction {
	names := s.cluster.names()
	if target == "all" {
		return append(from(names, names), both(names, s.clientEnds())...)
	}
	return both([]string{target}, slices.Concat(s.cluster.others(target), s.clientEnds()))
}

// filled lets a node's disk be full for a while. A node says so and ends.
func (s *stage) filled(ctx context.Context, last time.Duration, n *node) error {
	s.act("the disk of %s is full", n.name)
	n.mayEnd()
	if err := n.disk.Fill(); err != nil {
		return err
	}
	err := s.watch(ctx, last)
	s.act("the disk of %s has room again", n.name)
	if err := errors.Join(err, n.disk.Free()); err != nil {
		return err
	}
	if n.isRunning() {
		return s.restarted(ctx, n) // it wrote nothing meanwhile
	}
	if code := n.cmd.ProcessState.ExitCode(); code != 1 {
		s.fault("node %s ended with status %d on a full disk, not 1", n.name, code)
	}
	return s.start(ctx, n)
}
