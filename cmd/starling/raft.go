package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/starling-registry/starling/pkg/api"
)

func raftCommand(p *process) *cobra.Command {
	r := &remote{p: p}
	c := &cobra.Command{
		Use:   "raft",
		Short: "Show the log of the cluster: who leads, who votes, how far each node is",
		Long: `Ask every member for the log that the cluster keeps together (Raft). In it is what
must survive: persistent instances, settings of services, what operators have set,
accounts. Ephemeral instances are not in it.

  ROLE     leader: it takes the writes; follower; candidate: it looks for votes;
           joining: it knows of no log yet; failed: its disk takes no more
  COMMIT   entries up to this one are safe: a majority of the voters has them on disk
  APPLIED  the newest entry that has changed the tables of this node. Some entries
           change none, so it may stay below COMMIT. Right after a restore it may be
           above COMMIT and LAST: what was restored counts as an entry of its own
  DIGEST   a sum over the tables: at the same APPLIED equal on all nodes
  LOG      what it takes on disk; SNAPSHOT: when that was last cut short

A cluster of one or two nodes has all of them as voters, one of three or four has
three, a larger one five. A majority of them, the quorum, must be alive for a write.
Without it everything ephemeral and all reads go on. If the voters that are gone will
never come back: starling recover --help.

Exit status 0: somebody leads, a quorum is alive, and no two nodes disagree. 1: not
so, or no node could be asked.`,
		Example: `  starling raft
  starling raft --servers 10.0.0.1,10.0.0.2,10.0.0.3
  starling raft --json | jq -r '.nodes[].raft.leaderName'`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, _ []string) error {
			asked, err := r.nodes(c.Context())
			if err != nil {
				return err
			}
			nodes := make([]*logNode, len(asked))
			for i, n := range asked {
				nodes[i] = &logNode{clusterNode: n, ID: n.ID, Name: n.Name, Server: n.Server, State: n.State}
			}
			var wg sync.WaitGroup
			for _, n := range nodes {
				if n.client != nil {
					wg.Go(func() { n.Log, n.err = ask(c.Context(), n.client.Raft) })
				}
			}
			wg.Wait()
			return failed(r.writeRaft(nodes))
		},
	}
	r.flags(c, true, false)
	noFiles(c)
	return c
}

// A logNode is a node to be asked for its log, and its answer.
type logNode struct {
	*clusterNode `json:"-"`

	ID     string    `json:"node,omitempty"` // "": not known
	Name   string    `json:"name,omitempty"`
	Server string    `json:"server"`          // where it is asked
	State  string    `json:"state,omitempty"` // as the node of --server sees it
	Log    *api.Raft `json:"raft,omitempty"`  // absent: it cannot be asked
	Error  string    `json:"error,omitempty"` // why
}

// writeRaft prints what the nodes say of the log, and fails if it is not well.
func (r *remote) writeRaft(nodes []*logNode) error {
	var failures []error
	names := map[string]string{}
	for _, n := range nodes {
		if n.err == nil && n.ID != "" && n.Log.Node != n.ID {
			n.err, n.Log = fmt.Errorf("another node, %s, answers at %s", short(n.Log.Node), n.Server), nil
		}
		if n.err != nil {
			n.Error = n.err.Error()
			failures = append(failures, n.err)
		} else {
			n.ID, n.Name = n.Log.Node, n.Log.Name
			for _, s := range n.Log.Servers {
				names[s.ID] = cmp.Or(names[s.ID], s.Name)
			}
		}
	}
	for _, n := range nodes { // a node knows its own name best
		if n.ID != "" {
			names[n.ID] = cmp.Or(n.Name, names[n.ID])
		}
	}
	called := newNodeNames(names)
	best := bestView(nodes)
	var verdict error
	if best == nil {
		verdict = errors.Join(append([]error{errors.New("no node can be asked")}, failures...)...)
	} else {
		verdict = judgeRaft(nodes, best, called)
	}
	if r.json {
		if err := writeJSON(r.p.stdout, struct {
			Nodes []*logNode `json:"nodes"`
		}{nodes}); err != nil {
			return err
		}
		return verdict
	}
	if best == nil {
		return verdict
	}

	w := r.p.stdout
	t := newTable(w)
	t.row("NODE", "ADDRESS", "ROLE", "TERM", "COMMIT", "APPLIED", "LAST", "DIGEST", "LOG", "SNAPSHOT")
	for _, n := range nodes {
		name := n.Server
		if n.ID != "" {
			name = called.of(n.ID)
		}
		if n.Log == nil {
			t.row(name, n.Server, "cannot be asked", "-", "-", "-", "-", "-", "-", "-")
			continue
		}
		l := n.Log
		snapshot := "none"
		if !l.Snapshot.At.IsZero() {
			snapshot = ago(l.At, l.Snapshot.At) + " ago, " + bytesText(l.Snapshot.Bytes)
		}
		t.row(name, n.Server, l.Role, strconv.FormatUint(l.Term, 10), strconv.FormatUint(l.Commit, 10), strconv.FormatUint(l.Applied, 10),
			strconv.FormatUint(l.Last, 10), l.Digest, bytesText(l.LogBytes), snapshot)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	mixed := len(clustersOf(nodes)) > 1
	for _, n := range nodes {
		switch {
		case n.Log == nil:
			fmt.Fprintln(w, labelled(safe(cmp.Or(n.Name, n.Server)), safe(n.Error)))
		case mixed: // what one says means nothing for another
		case n.Log.Role == api.RoleFailed:
			fmt.Fprintf(w, "The log of %s failed and takes no more; what the node has logged says why (a full disk?). Put that right and start it again.\n", safe(called.of(n.ID)))
		case len(best.Servers) == 0: // said below
		case len(n.Log.Servers) == 0:
			fmt.Fprintf(w, "%s has nothing of the log yet: it was not taken in so far, or the others keep it out; its /readyz says which.\n", safe(called.of(n.ID)))
		case n.Log.Stale && (n.Log.Generation == 0 || n.Log.Generation == best.Generation):
			fmt.Fprintf(w, "%s serves what may be old: it has no leader, or has not caught up with it yet.\n", safe(called.of(n.ID)))
		case n.Log.Generation != 0 && n.Log.Generation < best.Generation:
			fmt.Fprintf(w, "%s still has the log from before a recovery. Start it again: it then takes the new one.\n", safe(called.of(n.ID)))
		}
	}
	if mixed {
		return verdict
	}
	if len(best.Servers) == 0 {
		fmt.Fprintln(w, "The log has not begun: it does as soon as as many nodes are there as --expect says.")
		return verdict
	}

	fmt.Fprintln(w)
	t = newTable(w)
	t.row("ON", "VOTES", "MEMBER")
	voters := 0
	for _, s := range best.Servers {
		votes := "no"
		if s.Voter {
			votes = "yes"
			voters++
		}
		t.row(called.of(s.ID), votes, s.State)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if best.Leader == "" {
		fmt.Fprint(w, "Nobody leads. ")
	} else {
		fmt.Fprintf(w, "%s leads. ", safe(called.of(best.Leader)))
	}
	fmt.Fprintf(w, "%d of %s alive; a write needs %d. The log holds: %s.\n", best.AliveVoters, count(voters, "voter is", "voters are"), best.Quorum, rowsText(best.Rows))
	if voters < best.VotersWanted {
		fmt.Fprintf(w, "There should be %d: the rest become voters as soon as they are alive and have caught up.\n", best.VotersWanted)
	}
	return verdict
}

// bestView is what the node says that knows most: of the newest generation and
// term the leader, or else whoever has the most that is safe. Nil: none has
// answered.
func bestView(nodes []*logNode) *api.Raft {
	var best *api.Raft
	for _, n := range nodes {
		if n.Log != nil && (best == nil || knows(n.Log, best) > 0) {
			best = n.Log
		}
	}
	return best
}

func knows(a, b *api.Raft) int {
	holds := func(a, b bool) int {
		switch {
		case a == b:
			return 0
		case a:
			return 1
		}
		return -1
	}
	return cmp.Or(
		cmp.Compare(a.Generation, b.Generation),
		holds(len(a.Servers) > 0, len(b.Servers) > 0), // a node that joins knows nothing yet
		cmp.Compare(a.Term, b.Term),
		holds(a.Role == api.RoleLeader, b.Role == api.RoleLeader),
		holds(a.Leader != "", b.Leader != ""),
		cmp.Compare(a.Commit, b.Commit))
}

// judgeRaft is nil if the log is well.
func judgeRaft(nodes []*logNode, best *api.Raft, called nodeNames) error {
	var errs []error
	if len(clustersOf(nodes)) > 1 {
		return errors.New("these nodes are of different clusters")
	}
	at := map[[2]uint64]*logNode{} // generation, entry → who was there first
	for _, n := range nodes {
		l := n.Log
		if l == nil {
			continue
		}
		entry := [2]uint64{l.Generation, l.Applied}
		if first := at[entry]; first == nil {
			at[entry] = n
		} else if first.Log.Digest != l.Digest {
			errs = append(errs, fmt.Errorf("%s and %s have carried out the log up to entry %d and do not have the same: a bug or corruption, please report it",
				called.of(first.ID), called.of(n.ID), l.Applied))
		}
	}
	var broken []string
	for _, n := range nodes {
		if n.Log != nil && n.Log.Role == api.RoleFailed {
			broken = append(broken, called.of(n.ID))
		}
	}
	switch {
	case len(best.Servers) == 0:
		errs = append(errs, errors.New("the log has not begun"))
	case best.AliveVoters < best.Quorum:
		errs = append(errs, fmt.Errorf("the quorum is lost: %s alive, %s needed. Nothing can be written to the log. If the other voters are gone for good: starling recover --help",
			count(best.AliveVoters, "voter is", "voters are"), count(best.Quorum, "is", "are")))
	case best.Leader == "" && len(broken) > 0:
		errs = append(errs, fmt.Errorf("nobody leads: nothing can be written to the log, which failed on %s", strings.Join(broken, ", ")))
	case best.Leader == "":
		errs = append(errs, errors.New("nobody leads: nothing can be written to the log. Within seconds somebody should, or the voters cannot reach each other"))
	}
	return errors.Join(errs...)
}

// clustersOf are the ids of the clusters that the nodes say they are of.
func clustersOf(nodes []*logNode) map[string]bool {
	ids := map[string]bool{}
	for _, n := range nodes {
		if n.Log != nil && n.Log.Cluster != "" {
			ids[n.Log.Cluster] = true
		}
	}
	return ids
}

// rowsText tells what tables hold: "instances 3, services 1".
func rowsText(rows map[string]int) string {
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(rows)) {
		if rows[kind] > 0 {
			parts = append(parts, safe(kind)+" "+strconv.Itoa(rows[kind]))
		}
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}
