package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// killLeader kills the leader in the middle of many writes, and starts it again
// before they end.
func killLeader(ctx context.Context, s *stage) (string, error) {
	c, l, err := s.trio(ctx)
	if err != nil {
		return "", err
	}
	l.rest()
	ld := &load{clients: 24, writes: s.of(3000, 10000), from: s.next}
	s.next += ld.writes
	ld.begin(ctx, c, l)
	after := func(n int) error {
		return until(ctx, time.Minute, func() error {
			if l.acked() < n {
				return fmt.Errorf("only %d writes are acknowledged", l.acked())
			}
			return nil
		})
	}
	err = func() error {
		if err := after(ld.writes / 3); err != nil {
			return err
		}
		leader, err := c.leader(ctx, 5*time.Second)
		if err != nil {
			return err
		}
		leader.kill()
		if err := after(ld.writes * 2 / 3); err != nil {
			return err
		}
		return leader.start()
	}()
	ld.wait()
	if err != nil {
		return "", err
	}
	said := fmt.Sprintf("%v; longest outage of writes %v; %.0f writes/s", l, l.outage().Round(time.Millisecond), l.rate())
	if l.counts[acknowledged] < ld.writes*8/10 {
		return said, errors.New("too many writes fail")
	}
	return said, hold(ctx, c, l)
}

// stopAll stops all nodes as a service manager does, all at the same time.
func stopAll(ctx context.Context, s *stage) (string, error) {
	return together(ctx, s, (*cluster).stopAll)
}

// killAll kills all nodes, while clients write.
func killAll(ctx context.Context, s *stage) (string, error) {
	return together(ctx, s, func(c *cluster) error { c.killAll(); return nil })
}

func together(ctx context.Context, s *stage, end func(*cluster) error) (string, error) {
	c, l, err := s.trio(ctx)
	if err != nil {
		return "", err
	}
	l.rest()
	ld := &load{clients: 12, writes: 1 << 30, from: s.next}
	loading, stop := context.WithCancel(ctx)
	defer stop()
	ld.begin(loading, c, l)
	err = until(ctx, 20*time.Second, func() error {
		if l.acked() < 300 {
			return fmt.Errorf("only %d writes are acknowledged", l.acked())
		}
		return nil
	})
	err = errors.Join(err, end(c))
	time.Sleep(50 * time.Millisecond) // clients notice
	ld.left.Store(0)
	stop()
	ld.wait()
	s.next += 1<<30 - int(ld.left.Load())
	s.next = s.next % (1 << 24)
	if err != nil {
		return "", err
	}
	begin := time.Now()
	if err := c.startAll(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("%v; whole %.1f s after the start", l, time.Since(begin).Seconds()), hold(ctx, c, l)
}

// emptied deletes the data of a node: it is a new one then.
func emptied(ctx context.Context, s *stage) (string, error) {
	c, l, err := s.trio(ctx)
	if err != nil {
		return "", err
	}
	n, err := c.follower(ctx)
	if err != nil {
		return "", err
	}
	was, err := raftOf(ctx, n)
	if err != nil {
		return "", err
	}
	n.kill()
	if err := os.RemoveAll(n.data); err != nil {
		return "", err
	}
	took, is, err := joinsAgain(ctx, c, n)
	if err != nil {
		return "", err
	}
	if is == was.Node {
		return "", fmt.Errorf("node %s has its id again", n.name)
	}
	return fmt.Sprintf("votes %.1f s after the start (crashed voters are replaced after %v here)", took.Seconds(), replaceAfter), hold(ctx, c, l)
}

// joinsAgain starts a node with another data directory than before, and waits
// until it votes in the place of its former self.
func joinsAgain(ctx context.Context, c *cluster, n *node) (time.Duration, string, error) {
	begin := time.Now()
	if err := n.start(); err != nil {
		return 0, "", err
	}
	if err := c.whole(ctx, 45*time.Second); err != nil {
		return 0, "", err
	}
	is, err := raftOf(ctx, n)
	if err != nil {
		return 0, "", err
	}
	return time.Since(begin), is.Node, nil
}

// movedPorts starts a node with its data at other ports, then all of them at
// once.
func movedPorts(ctx context.Context, s *stage) (string, error) {
	c, l, err := s.trio(ctx)
	if err != nil {
		return "", err
	}
	ids := func() (string, error) {
		var ids []string
		for _, n := range c.nodes {
			r, err := raftOf(ctx, n)
			if err != nil {
				return "", err
			}
			ids = append(ids, r.Node)
		}
		return strings.Join(ids, " "), nil
	}
	were, err := ids()
	if err != nil {
		return "", err
	}
	n, err := c.leader(ctx, 5*time.Second)
	if err != nil {
		return "", err
	}
	if err := n.stop(); err != nil {
		return "", err
	}
	if n.port, err = freePort(); err != nil {
		return "", err
	}
	begin := time.Now()
	if err := c.startAll(ctx); err != nil {
		return "", err
	}
	one := time.Since(begin)
	if err := hold(ctx, c, l); err != nil {
		return "", fmt.Errorf("after the ports of one node have changed: %w", err)
	}
	if err := c.stopAll(); err != nil {
		return "", err
	}
	if err := c.address(); err != nil {
		return "", err
	}
	begin = time.Now()
	if err := c.startAll(ctx); err != nil {
		return "", fmt.Errorf("after all ports have changed: %w", err)
	}
	all := time.Since(begin)
	if are, err := ids(); err != nil || are != were {
		return "", errors.Join(fmt.Errorf("ids were %s, are %s", were, are), err)
	}
	return fmt.Sprintf("whole %.1f s after one has moved, %.1f s after all", one.Seconds(), all.Seconds()), hold(ctx, c, l)
}

// withoutQuorum kills two of three.
func withoutQuorum(ctx context.Context, s *stage) (string, error) {
	c, l, err := s.trio(ctx)
	if err != nil {
		return "", err
	}
	last := c.nodes[2]
	// What it was not told in time that it is safe, it cannot show alone.
	if err := c.whole(ctx, 10*time.Second); err != nil {
		return "", err
	}
	c.nodes[0].kill()
	c.nodes[1].kill()
	killed := time.Now()

	// It needs a moment to notice who is gone.
	if err := until(ctx, 15*time.Second, func() error {
		r, err := raftOf(ctx, last)
		if err != nil {
			return err
		}
		if r.AliveVoters != 1 || r.Leader != "" {
			return fmt.Errorf("the third node counts %d voters alive, its leader is %q", r.AliveVoters, r.LeaderName)
		}
		return nil
	}); err != nil {
		return "", err
	}
	noticed := time.Since(killed)

	l.rest()
	var took [2]time.Duration
	for i, grpc := range []bool{false, true} {
		w := newWriter(c, l, 2, grpc)
		if grpc {
			if err := w.connected(ctx); err != nil {
				return "", err
			}
		}
		begin := time.Now()
		o, why := w.instance(ctx, serviceName(0), "10.254.0.1", 1000+i, "x")
		took[i] = time.Since(begin)
		l.wrote(fmt.Sprintf("%s/10.254.0.1:%d", serviceName(0), 1000+i), "x", o, why)
		w.close()
		if limit := []time.Duration{2300 * time.Millisecond, 2700 * time.Millisecond}[i]; o != refused || !strings.Contains(why, noLeaderText) || took[i] > limit {
			return "", fmt.Errorf("a write without a quorum (gRPC: %v) ended after %v, want within %v and %q: %s", grpc, took[i], limit, noLeaderText, why)
		}
	}

	// Ephemeral ones and reads go on.
	p, err := newProvider(c, "fleeting", 2)
	if err != nil {
		return "", err
	}
	defer p.close()
	if err := p.somewhere(ctx); err != nil {
		return "", err
	}
	if err := until(ctx, 3*time.Second, func() error {
		there, err := p.listed(ctx, last)
		if err == nil && !there {
			err = errors.New("an ephemeral instance is not listed")
		}
		return err
	}); err != nil {
		return "", err
	}
	status, body, err := ask(ctx, last, "POST", "/nacos/v1/ns/instance?serviceName=fleeting&ip=10.253.0.1&port=80")
	if err != nil || string(body) != "ok" {
		return "", fmt.Errorf("an ephemeral registration over HTTP: status %d, %s, %w", status, body, err)
	}
	if err := judge(ctx, []*node{last}, l); err != nil {
		return "", err
	}

	if err := c.nodes[0].start(); err != nil {
		return "", err
	}
	begin := time.Now()
	if err := canWrite(ctx, c, last, l, 10*time.Second); err != nil {
		return "", err
	}
	again := time.Since(begin)
	if err := c.nodes[1].start(); err != nil {
		return "", err
	}
	return fmt.Sprintf("noticed after %.1f s; refused after %v over HTTP, %v over gRPC; writes again %.1f s after the second is started",
		noticed.Seconds(), took[0].Round(time.Millisecond), took[1].Round(time.Millisecond), again.Seconds()), hold(ctx, c, l)
}

// secondProcess starts a second process in the data directory of one that runs.
func secondProcess(ctx context.Context, s *stage) (string, error) {
	c, l, err := s.trio(ctx)
	if err != nil {
		return "", err
	}
	of := c.nodes[0]
	second := &node{name: "second", bin: of.bin, dir: of.dir + "-second", data: of.data, args: of.args}
	if second.port, err = freePort(); err != nil {
		return "", err
	}
	begin := time.Now()
	text, err := second.refusesToStart(2 * time.Second)
	if err != nil {
		return "", err
	}
	took := time.Since(begin)
	if !strings.Contains(text, of.data) || !strings.Contains(text, "another") {
		return "", fmt.Errorf("it does not say that another node uses %s: %s", of.data, text)
	}
	return fmt.Sprintf("after %v: %s", took.Round(time.Millisecond), text), hold(ctx, c, l)
}
