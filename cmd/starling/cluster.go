package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/starling-registry/starling/pkg/api"
)

func clusterCommand(p *process) *cobra.Command {
	r := &remote{p: p}
	end := false
	c := &cobra.Command{
		Use:   "cluster",
		Short: "Show how far the nodes are with replication, and what they wait for",
		Long: `Ask every member for what it knows of every other, and show it side by side. The
node of --server tells who the members are; each is then asked at its own address.
One that cannot be asked from here is shown as such: that alone does not mean that
the others cannot reach it.

The second table has a row for every life (one run of one node) on every node:
  STATE    living; orphaned: its node is gone and its records are served as last
           seen, until clients register again or the lease ends; dropped: it ended
  APPLIED  how many of the owner's writes are known; BEHIND: how many are missing,
           and for how long. A node that is up to date has none
  ORPHANS  instances that are shown although their node is gone
  LEASE    time that they have left
  DIGEST   a sum over the records: at the same APPLIED equal on all nodes. MATCHED
           is how long ago it was last compared with the owner's and equal

Self-preservation: so many nodes fell silent at once that this node may be the one
that is cut off. Leases of orphans stand still then, for a bounded time. If you know
that the silent nodes are gone for good, --end-self-preservation on the nodes that
are left lets the leases run.`,
		Example: `  starling cluster
  starling cluster --servers 10.0.0.1,10.0.0.2,10.0.0.3
  starling cluster --json | jq '[.nodes[].status.lives[]?.lagVersions] | max'
  starling cluster --end-self-preservation`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, _ []string) error {
			nodes, err := r.nodes(c.Context())
			if err != nil {
				return err
			}
			if end {
				return endSelfPreservation(c.Context(), r, nodes)
			}
			eachNode(nodes, func(n *clusterNode) {
				n.Status, n.err = ask(c.Context(), n.client.Cluster)
			})
			return failed(r.writeCluster(nodes))
		},
	}
	r.flags(c, true, false)
	c.Flags().BoolVar(&end, "end-self-preservation", false, "let leases run again on all nodes that can be asked")
	noFiles(c)
	return c
}

// A clusterNode is a node to be asked, and its answer.
type clusterNode struct {
	ID     string       `json:"node,omitempty"` // "": not known
	Name   string       `json:"name,omitempty"`
	Server string       `json:"server"`           // where it is asked
	State  string       `json:"state,omitempty"`  // as the node of --server sees it
	Status *api.Cluster `json:"status,omitempty"` // absent: it cannot be asked
	Error  string       `json:"error,omitempty"`  // why

	client *api.Client
	err    error
}

// nodes are those of --servers, or else all members that --server knows and
// that have not left.
func (r *remote) nodes(ctx context.Context) ([]*clusterNode, error) {
	clients, err := r.clients()
	if err != nil {
		return nil, err
	}
	if len(clients) > 0 {
		var nodes []*clusterNode
		for _, c := range clients {
			nodes = append(nodes, &clusterNode{Server: c.Server(), client: c})
		}
		return nodes, nil
	}
	client, err := r.client()
	if err != nil {
		return nil, err
	}
	m, err := ask(ctx, client.Members)
	if err != nil {
		return nil, failed(err)
	}
	var nodes []*clusterNode
	for _, member := range m.Members {
		if member.State == api.StateLeft {
			continue
		}
		n := &clusterNode{ID: member.ID, Name: member.Name, State: member.State, Server: api.JoinAddress(member.Host, member.Ports.HTTP)}
		if member.Self {
			n.Server, n.client = client.Server(), client // what it announces may not lead there from here
		} else if n.client, n.err = api.NewClient(n.Server); n.err != nil {
			n.err = fmt.Errorf("its address makes no sense: %w", n.err)
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// eachNode calls f for all nodes at once and waits.
func eachNode(nodes []*clusterNode, f func(*clusterNode)) {
	var wg sync.WaitGroup
	for _, n := range nodes {
		if n.client == nil {
			continue
		}
		wg.Go(func() { f(n) })
	}
	wg.Wait()
}

// callName is what to call a node in a line.
func (n *clusterNode) callName() string {
	return safe(cmp.Or(n.Name, n.Server))
}

// writeCluster prints the matrix. It fails if no node answered, or what they
// say cannot be one cluster.
func (r *remote) writeCluster(nodes []*clusterNode) error {
	var failures []error
	names := map[string]string{}
	clusters := map[string]bool{}
	answered := 0
	for _, n := range nodes {
		if n.err == nil && n.ID != "" && n.Status.Node != n.ID {
			// Such as one with an emptied data directory; it is a member itself.
			n.err, n.Status = fmt.Errorf("another node, %s, answers at %s", short(n.Status.Node), n.Server), nil
		}
		if n.err != nil {
			n.Error = n.err.Error()
			failures = append(failures, n.err)
			if n.ID != "" {
				names[n.ID] = n.Name
			}
			continue
		}
		answered++
		n.ID, n.Name = n.Status.Node, n.Status.Name
		if n.Status.Cluster != "" {
			clusters[n.Status.Cluster] = true
		}
	}
	for _, n := range nodes { // a node knows its own name best
		if n.Status == nil {
			continue
		}
		for _, l := range n.Status.Lives {
			if names[l.Node] == "" {
				names[l.Node] = l.Name
			}
		}
	}
	for _, n := range nodes {
		if n.Status != nil {
			names[n.ID] = n.Name
		}
	}
	var verdict error
	switch {
	case answered == 0:
		verdict = errors.Join(append([]error{errors.New("no node can be asked")}, failures...)...)
	case len(clusters) > 1:
		verdict = errors.New("these nodes are of different clusters")
	}
	if r.json {
		if err := writeJSON(r.p.stdout, struct {
			Nodes []*clusterNode `json:"nodes"`
		}{nodes}); err != nil {
			return err
		}
		return verdict
	}
	if answered == 0 {
		return verdict
	}
	called := newNodeNames(names)
	w := r.p.stdout

	t := newTable(w)
	t.row("NODE", "ADDRESS", "STATE", "READY", "SELF-PRESERVATION", "CLUSTER")
	for _, n := range nodes {
		name := n.Server
		if n.ID != "" {
			name = called.of(n.ID)
		}
		if n.Status == nil {
			t.row(name, n.Server, n.State, "cannot be asked", "-", "-")
			continue
		}
		s := n.Status
		ready := "yes"
		switch {
		case s.Draining:
			ready = "draining"
		case !s.Ready:
			ready = "no"
		}
		preserving := "no"
		if s.SelfPreservation.Active {
			preserving = "for " + ago(s.At, s.SelfPreservation.Since) + ", " + millis(s.SelfPreservation.LeftMillis) + " left"
		}
		t.row(name, n.Server, n.State, ready, preserving, short(s.Cluster))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, n := range nodes {
		if n.Status == nil {
			fmt.Fprintln(w, labelled(n.callName(), safe(n.Error)))
		} else if !n.Status.Ready && n.Status.Reason != "" {
			fmt.Fprintf(w, "%s is not ready: %s\n", n.callName(), safe(n.Status.Reason))
		}
	}

	fmt.Fprintln(w)
	if err := writeLives(r.p, nodes, called); err != nil {
		return err
	}
	if slices.ContainsFunc(nodes, func(n *clusterNode) bool { return n.Status != nil && len(n.Status.Peers) > 0 }) {
		fmt.Fprintln(w)
		t = newTable(w)
		t.row("FROM", "TO", "STREAM", "QUEUED", "HEARD")
		for _, n := range nodes {
			if n.Status == nil {
				continue
			}
			for _, peer := range n.Status.Peers {
				stream := "down"
				if peer.StreamUp {
					stream = "up"
				}
				t.row(called.of(n.ID), called.of(peer.Node), stream, bytesText(peer.BytesQueued), ago(n.Status.At, peer.LastHeard))
			}
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	return verdict
}

// writeLives prints a row for every life on every node that answered, those of
// one life together.
func writeLives(p *process, nodes []*clusterNode, called nodeNames) error {
	type cell struct {
		on *clusterNode
		api.Life
	}
	var cells []cell
	for _, n := range nodes {
		if n.Status == nil {
			continue
		}
		for _, l := range n.Status.Lives {
			cells = append(cells, cell{n, l})
		}
	}
	slices.SortStableFunc(cells, func(a, b cell) int {
		return cmp.Or(cmp.Compare(called.of(a.Node), called.of(b.Node)), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Epoch, b.Epoch))
	})
	t := newTable(p.stdout)
	t.row("LIFE OF", "STARTED", "ON", "STATE", "APPLIED", "BEHIND", "RECORDS", "ORPHANS", "LEASE", "DIGEST", "MATCHED")
	for _, c := range cells {
		behind, lease := "-", "-"
		if c.LagVersions > 0 || c.LagMillis > 0 {
			behind = strconv.FormatUint(c.LagVersions, 10) + ", " + millis(c.LagMillis)
		}
		if c.State == api.LifeOrphaned {
			lease = millis(c.LeaseLeftMillis)
		}
		matched := ago(c.on.Status.At, c.LastDigestMatch)
		if c.Node == c.on.ID {
			matched = "owner"
		}
		t.row(called.of(c.Node), epochText(c.Epoch), called.of(c.on.ID), c.State, strconv.FormatUint(c.Applied, 10), behind,
			strconv.Itoa(c.Records), strconv.Itoa(c.Orphans), lease, c.Digest, matched)
	}
	return t.Flush()
}

// epochText is an epoch for people. Epochs are the milliseconds of a start,
// unless the clock was behind an earlier one or somebody set them.
func epochText(epoch uint64) string {
	if epoch > 1e12 && epoch < 1e13 {
		return time.UnixMilli(int64(epoch)).UTC().Format("01-02T15:04:05Z")
	}
	return strconv.FormatUint(epoch, 10)
}

func bytesText(n int64) string {
	switch {
	case n < 10_000:
		return strconv.FormatInt(n, 10) + "B"
	case n < 10_000<<10:
		return strconv.FormatInt(n>>10, 10) + "KiB"
	}
	return strconv.FormatInt(n>>20, 10) + "MiB"
}

// endSelfPreservation tells every node to let leases run. It fails if one that
// is alive, or was named, did not hear it.
func endSelfPreservation(ctx context.Context, r *remote, nodes []*clusterNode) error {
	type outcome struct {
		Node   string                `json:"node,omitempty"`
		Name   string                `json:"name,omitempty"`
		Server string                `json:"server"`
		After  *api.SelfPreservation `json:"selfPreservation,omitempty"`
		Error  string                `json:"error,omitempty"`
	}
	var mu sync.Mutex
	after := map[*clusterNode]*api.SelfPreservation{}
	eachNode(nodes, func(n *clusterNode) {
		a, err := ask(ctx, n.client.EndSelfPreservation)
		mu.Lock()
		defer mu.Unlock()
		after[n], n.err = a, err
	})
	var outcomes []outcome
	var failures []error
	for _, n := range nodes {
		o := outcome{Node: n.ID, Name: n.Name, Server: n.Server, After: after[n]}
		switch {
		case n.err == nil && o.After.Active:
			failures = append(failures, fmt.Errorf("%s: self-preservation is still active", n.callName()))
		case n.err != nil:
			o.Error = n.err.Error()
			if n.State == "" || n.State == api.StateAlive {
				failures = append(failures, errors.New(labelled(n.callName(), n.err.Error())))
			}
		}
		outcomes = append(outcomes, o)
		if !r.json {
			says := "leases run"
			if n.err != nil {
				says = "cannot be asked: " + safe(o.Error)
			} else if o.After.Active {
				says = "self-preservation is still active"
			}
			fmt.Fprintf(r.p.stdout, "%s: %s\n", n.callName(), says)
		}
	}
	if r.json {
		if err := writeJSON(r.p.stdout, struct {
			Nodes []outcome `json:"nodes"`
		}{outcomes}); err != nil {
			return failed(err)
		}
	}
	return failed(errors.Join(failures...))
}
