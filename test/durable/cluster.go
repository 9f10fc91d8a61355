package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/starling-registry/starling/pkg/api"
)

// replaceAfter is a minute by default.
const replaceAfter = 3 * time.Second

// A cluster is some nodes that are one.
type cluster struct {
	bin      string
	dir      string
	nodes    []*node
	settings []string
}

// newCluster prepares the nodes and starts none.
func newCluster(bin, dir string, size int, settings ...string) (*cluster, error) {
	c := &cluster{bin: bin, dir: dir, settings: settings}
	for i := range size {
		n := &node{name: string(rune('a' + i)), bin: bin, dir: filepath.Join(dir, string(rune('a'+i)))}
		n.data = filepath.Join(n.dir, "data")
		c.nodes = append(c.nodes, n)
	}
	return c, c.address()
}

// address gives all nodes other ports.
func (c *cluster) address() error {
	for _, n := range c.nodes {
		var err error
		if n.port, err = freePort(); err != nil {
			return err
		}
	}
	for _, n := range c.nodes {
		n.args = slices.Concat([]string{"--join", c.servers(), "--expect", strconv.Itoa(len(c.nodes)), "--raft-replace-after", replaceAfter.String()}, c.settings)
	}
	return nil
}

func (c *cluster) servers() string {
	var list []string
	for _, n := range c.nodes {
		list = append(list, n.http())
	}
	return strings.Join(list, ",")
}

// startAll starts what does not run, and returns when the cluster is whole.
func (c *cluster) startAll(ctx context.Context) error {
	for _, n := range c.nodes {
		if n.running() {
			continue
		}
		if err := n.start(); err != nil {
			return err
		}
	}
	return c.whole(ctx, 45*time.Second)
}

// stopAll ends all at the same time.
func (c *cluster) stopAll() error {
	errs := make([]error, len(c.nodes))
	var wg sync.WaitGroup
	for i, n := range c.nodes {
		wg.Go(func() { errs[i] = n.stop() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (c *cluster) killAll() {
	for _, n := range c.nodes { // all before the first is waited for
		if n.running() {
			_ = n.cmd.Process.Kill()
		}
	}
	for _, n := range c.nodes {
		n.kill()
	}
}

func raftOf(ctx context.Context, n *node) (*api.Raft, error) {
	return read[api.Raft](ctx, n, "/starling/v1/raft")
}

// whole waits until all nodes run and are ready, take the same one for the
// leader, are all alive in the log, as many of them with a vote as there are to
// be, and have the same tables.
func (c *cluster) whole(ctx context.Context, within time.Duration) error {
	for _, n := range c.nodes {
		if err := n.ready(ctx); err != nil {
			return err
		}
	}
	return until(ctx, within, func() error { return c.agree(ctx, c.nodes) })
}

// agree says how the nodes differ from one cluster of all of them.
func (c *cluster) agree(ctx context.Context, nodes []*node) error {
	var first *api.Raft
	for _, n := range nodes {
		r, err := raftOf(ctx, n)
		if err != nil {
			return err
		}
		voters, alive := 0, 0
		for _, s := range r.Servers {
			if s.Voter {
				voters++
			}
			if s.State == api.StateAlive {
				alive++
			}
		}
		want := min(len(c.nodes), 3)
		if len(c.nodes) >= 5 {
			want = 5
		}
		switch {
		case r.Leader == "":
			return fmt.Errorf("node %s knows no leader (it is %s)", n.name, r.Role)
		case r.Stale:
			return fmt.Errorf("node %s says that it is stale", n.name)
		case voters != want || len(r.Servers) != len(c.nodes) || alive != len(r.Servers):
			return fmt.Errorf("node %s: %d servers, %d of them vote, %d are alive; want %d, %d voters", n.name, len(r.Servers), voters, alive, len(c.nodes), want)
		case first == nil:
			first = r
		case r.Leader != first.Leader:
			return fmt.Errorf("%s takes %s for the leader, %s takes %s", n.name, r.LeaderName, first.Name, first.LeaderName)
		case r.Applied != first.Applied:
			return fmt.Errorf("%s has applied %d entries, %s %d", n.name, r.Applied, first.Name, first.Applied)
		case r.Digest != first.Digest:
			return fmt.Errorf("%s and %s have applied %d entries and have other tables", n.name, first.Name, r.Applied)
		}
	}
	return nil
}

// leader waits until one of the nodes that run leads.
func (c *cluster) leader(ctx context.Context, within time.Duration) (*node, error) {
	var found *node
	return found, until(ctx, within, func() error {
		for _, n := range c.nodes {
			if !n.running() {
				continue
			}
			if r, err := raftOf(ctx, n); err == nil && r.Role == api.RoleLeader {
				found = n
				return nil
			}
		}
		return errors.New("no node leads")
	})
}

// follower is some node that runs and does not lead.
func (c *cluster) follower(ctx context.Context) (*node, error) {
	leader, err := c.leader(ctx, 10*time.Second)
	if err != nil {
		return nil, err
	}
	for _, n := range c.nodes {
		if n != leader && n.running() {
			return n, nil
		}
	}
	return nil, errors.New("no node follows")
}

func (c *cluster) others(n *node) []*node {
	return slices.DeleteFunc(slices.Clone(c.nodes), func(o *node) bool { return o == n })
}

// starling runs a command of the binary and returns what it printed.
func (c *cluster) starling(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, c.bin, args...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("starling %s: %w: %s", args[0], err, clip(strings.TrimSpace(string(out))))
	}
	return string(out), nil
}

// verify has the nodes compared by the command for it.
func (c *cluster) verify(ctx context.Context) error {
	_, err := c.starling(ctx, "verify", "--servers", c.servers(), "--within", "10s")
	return err
}

func (c *cluster) noise() []string {
	var found []string
	for _, n := range c.nodes {
		for _, line := range n.noise() {
			found = append(found, "node "+n.name+": "+line)
		}
	}
	return found[:min(len(found), 5)]
}

// until tries again every 50 ms until there is no error.
func until(ctx context.Context, within time.Duration, f func() error) error {
	for start := time.Now(); ; {
		err := f()
		if err == nil {
			return nil
		}
		if time.Since(start) > within {
			return fmt.Errorf("after %v: %w", within, err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func move(from, to string) error {
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	return os.Rename(from, to)
}
