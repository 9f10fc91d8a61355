package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// backup saves a cluster and restores it into another one.
func backup(ctx context.Context, s *stage) (string, error) {
	c, l, err := s.trio(ctx)
	if err != nil {
		return "", err
	}
	if lack := s.of(1000, 10000) - len(l.keys()); lack > 0 {
		if err := s.fill(ctx, c, l, lack); err != nil {
			return "", err
		}
	}
	follower, err := c.follower(ctx)
	if err != nil {
		return "", err
	}
	file := filepath.Join(c.dir, "backup")
	begin := time.Now()
	if _, err := c.starling(ctx, "backup", file, "--server", follower.http()); err != nil {
		return "", err
	}
	saved := time.Since(begin)
	was, err := raftOf(ctx, follower)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(file)
	if err != nil {
		return "", err
	}

	to, err := s.cluster(s.of(2, 5))
	if err != nil {
		return "", err
	}
	defer to.killAll()
	if err := to.startAll(ctx); err != nil {
		return "", err
	}
	server := to.nodes[len(to.nodes)-1].http()
	whole, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(file+".half", whole[:len(whole)/2], 0o600); err != nil {
		return "", err
	}
	if _, err := c.starling(ctx, "restore", file+".half", "--server", server); err == nil {
		return "", errors.New("half of a backup was restored")
	}
	begin = time.Now()
	if _, err := c.starling(ctx, "restore", file, "--server", server); err != nil {
		return "", err
	}
	restored := time.Since(begin)
	if err := to.whole(ctx, 30*time.Second); err != nil {
		return "", err
	}
	if err := judge(ctx, to.nodes, l); err != nil {
		return "", err
	}
	is, err := raftOf(ctx, to.nodes[0])
	if err != nil {
		return "", err
	}
	if is.Digest != was.Digest {
		return "", fmt.Errorf("the sum over the tables was %s, is %s", was.Digest, is.Digest)
	}
	if err := to.verify(ctx); err != nil {
		return "", err
	}

	// Not over something, unless told so.
	other := newLedger()
	if err := prepare(ctx, to, newLedger()); err != nil {
		return "", err
	}
	if err := fill(ctx, to, other, 8<<20, 60); err != nil {
		return "", err
	}
	_, err = c.starling(ctx, "restore", file, "--server", server)
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 || !strings.Contains(err.Error(), "force") {
		return "", fmt.Errorf("a restore over a cluster that holds something: %w", err)
	}
	if _, err := c.starling(ctx, "restore", file, "--server", server, "--force"); err != nil {
		return "", err
	}
	if err := to.whole(ctx, 30*time.Second); err != nil {
		return "", err
	}
	if err := judge(ctx, to.nodes, l); err != nil {
		return "", fmt.Errorf("after a restore with --force: %w", err)
	}
	// All of it survives as what was written would.
	to.killAll()
	if err := to.startAll(ctx); err != nil {
		return "", err
	}
	if err := hold(ctx, to, l.copy()); err != nil {
		return "", fmt.Errorf("the restored cluster, started again: %w", err)
	}
	if noise := to.noise(); noise != nil {
		return "", errors.New(strings.Join(noise, "\n"))
	}
	return fmt.Sprintf("%d rows, %d KiB, saved in %v, restored into %d nodes in %v", len(l.keys()), info.Size()>>10,
		saved.Round(time.Millisecond), len(to.nodes), restored.Round(time.Millisecond)), nil
}

// recovered loses the quorum for good.
func recovered(ctx context.Context, s *stage) (string, error) {
	c, l, err := s.trio(ctx)
	if err != nil {
		return "", err
	}
	c.killAll()
	type found struct {
		LastTerm  uint64 `json:"lastTerm"`
		LastIndex uint64 `json:"lastIndex"`
	}
	var best *node
	var most found
	for _, n := range c.nodes {
		// Shows, and changes nothing: status 1.
		out, err := exec.CommandContext(ctx, c.bin, "recover", "--data-dir", n.data, "--json").Output()
		var f found
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 || json.Unmarshal(out, &f) != nil || f.LastIndex == 0 {
			return "", fmt.Errorf("starling recover without --yes: %w: %s", err, out)
		}
		if best == nil || f.LastTerm > most.LastTerm || f.LastTerm == most.LastTerm && f.LastIndex > most.LastIndex {
			best, most = n, f
		}
	}
	if _, err := c.starling(ctx, "recover", "--data-dir", best.data, "--yes"); err != nil {
		return "", err
	}
	begin := time.Now()
	if err := best.start(); err != nil {
		return "", err
	}
	if err := best.ready(ctx); err != nil {
		return "", err
	}
	if err := canWrite(ctx, c, best, l, 10*time.Second); err != nil {
		return "", err
	}
	alone := time.Since(begin)
	if err := judge(ctx, []*node{best}, l); err != nil {
		return "", err
	}
	// They begin a new life by themselves when they hear of it.
	begin = time.Now()
	if err := c.startAll(ctx); err != nil {
		return "", err
	}
	took := time.Since(begin)
	for _, n := range c.others(best) {
		if old, err := filepath.Glob(n.raft() + ".old-*"); err != nil || len(old) != 1 {
			return "", fmt.Errorf("node %s has not set its old log aside: %v", n.name, old)
		}
	}
	return fmt.Sprintf("writes %.1f s after the start of the one, whole %.1f s after that of the others", alone.Seconds(), took.Seconds()), hold(ctx, c, l)
}

// overrides disables an ephemeral instance, which must stay so whatever
// happens to its client and to the nodes.
func overrides(ctx context.Context, s *stage) (string, error) {
	c, l, err := s.trio(ctx)
	if err != nil {
		return "", err
	}
	p, err := newProvider(c, "edited", 0)
	if err != nil {
		return "", err
	}
	defer p.close()
	everywhere := func(what string, want bool) error {
		for _, n := range c.nodes {
			if !n.running() {
				continue
			}
			if err := until(ctx, 10*time.Second, func() error {
				listed, err := p.listed(ctx, n)
				if err != nil {
					return err
				}
				off, err := p.off(ctx, n)
				if err != nil {
					return err
				}
				if listed != want || off == want {
					return fmt.Errorf("%s: node %s lists it: %v, has it disabled: %v", what, n.name, listed, off)
				}
				return nil
			}); err != nil {
				return err
			}
		}
		return nil
	}
	if err := errors.Join(p.somewhere(ctx), everywhere("registered", true)); err != nil {
		return "", err
	}
	w := newWriter(c, newLedger(), 1, false)
	defer w.close()
	edit := url.Values{"serviceName": {p.service}, "ip": {p.ip}, "port": {strconv.Itoa(p.port)}, "enabled": {"false"}}
	if o, why := w.request(ctx, http.MethodPut, "/nacos/v1/ns/instance", edit); o != acknowledged {
		return "", fmt.Errorf("set enabled=false: %s", why)
	}
	if err := everywhere("disabled by an operator", false); err != nil {
		return "", err
	}

	// From here on nobody may ever be given it.
	var polls atomic.Int64
	var mu sync.Mutex
	var seen []error
	step := "at first"
	watching, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	for _, n := range c.nodes {
		wg.Go(func() {
			for watching.Err() == nil {
				listed, err := p.listed(watching, n)
				if err == nil {
					polls.Add(1)
				}
				if listed {
					mu.Lock()
					seen = append(seen, fmt.Errorf("%s: node %s gave it to clients at %s", step, n.name, time.Now().UTC().Format("15:04:05.000")))
					mu.Unlock()
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	phase := func(name string, f func() error) error {
		mu.Lock()
		step = name
		mu.Unlock()
		if err := f(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := errors.Join(p.somewhere(ctx), everywhere(name, false)); err != nil {
			return err
		}
		time.Sleep(300 * time.Millisecond) // what was said late shows now
		mu.Lock()
		defer mu.Unlock()
		return errors.Join(seen[:min(len(seen), 3)]...)
	}
	err = func() error {
		for _, to := range []int{1, 2, 0} {
			if err := phase(fmt.Sprintf("connected to node %s", c.nodes[to].name), func() error { return p.move(ctx, to) }); err != nil {
				return err
			}
		}
		if err := phase("its node killed", func() error {
			owner := c.nodes[p.on.Load()]
			owner.kill()
			if err := p.somewhere(ctx); err != nil {
				return err
			}
			time.Sleep(time.Second)
			return c.startAll(ctx)
		}); err != nil {
			return err
		}
		if err := phase("rolling restart", func() error {
			for _, n := range c.nodes {
				if err := n.stop(); err != nil {
					return err
				}
				if err := c.startAll(ctx); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
		if err := phase("all stopped and started", func() error {
			if err := c.stopAll(); err != nil {
				return err
			}
			return c.startAll(ctx)
		}); err != nil {
			return err
		}
		return phase("all killed and started", func() error { c.killAll(); return c.startAll(ctx) })
	}()
	stop()
	wg.Wait()
	if err != nil {
		return "", err
	}

	// Deregistered, it is over: the next on this address is not disabled.
	if err := p.deregister(ctx); err != nil {
		return "", err
	}
	begin := time.Now()
	if err := until(ctx, 10*time.Second, func() error {
		r, err := raftOf(ctx, c.nodes[0])
		if err == nil && r.Rows["overrides"] != 0 {
			err = fmt.Errorf("the log still has %d edits", r.Rows["overrides"])
		}
		return err
	}); err != nil {
		return "", err
	}
	again, err := newProvider(c, p.service, 1)
	if err != nil {
		return "", err
	}
	defer again.close()
	// On the same address.
	again.ip, again.port = p.ip, p.port
	if err := again.move(ctx, 2); err != nil {
		return "", err
	}
	if err := everywhere("deregistered and registered again", true); err != nil {
		return "", err
	}
	return fmt.Sprintf("never seen in %d polls; enabled again %v after deregistration", polls.Load(), time.Since(begin).Round(time.Millisecond)), hold(ctx, c, l)
}

// size has a node miss most of many writes.
func size(ctx context.Context, s *stage) (string, error) {
	const limit = 20 << 20
	writes := 100_000
	c, err := s.cluster(3)
	if err != nil {
		return "", err
	}
	defer c.killAll()
	l := newLedger()
	if err := c.startAll(ctx); err != nil {
		return "", err
	}
	if err := prepare(ctx, c, l); err != nil {
		return "", err
	}
	away, err := c.follower(ctx)
	if err != nil {
		return "", err
	}
	ld := &load{clients: 64, writes: writes, from: s.next, keys: 1280}
	s.next += writes
	var all, largest int64
	measure := func() {
		for _, n := range c.nodes {
			t, f := n.diskUse()
			all, largest = max(all, t), max(largest, f)
		}
	}
	ld.begin(ctx, c, l)
	reach := func(share int) error {
		return until(ctx, 10*time.Minute, func() error {
			measure()
			if l.acked() < writes*share/100 {
				return fmt.Errorf("only %d writes are acknowledged", l.acked())
			}
			return nil
		})
	}
	err = reach(10)
	away.kill()
	mark := away.mark()
	away.args = append(away.args, "--log-level=debug") // only that has what the library says of snapshots
	err = errors.Join(err, reach(60), away.start())
	ld.wait()
	measure()
	said := fmt.Sprintf("%v; %.0f writes/s, longest outage %v; at most %.1f MiB of a node in raft/, %.1f MiB in one file", l, l.rate(), l.outage().Round(time.Millisecond),
		float64(all)/(1<<20), float64(largest)/(1<<20))
	if err != nil {
		return said, err
	}
	if largest >= limit || all >= 2*limit {
		return said, errors.New("the log grows beyond 20 MB")
	}
	if err := hold(ctx, c, l); err != nil {
		return said, err
	}
	if !strings.Contains(away.since(mark), "Installed remote snapshot") {
		return said, fmt.Errorf("node %s got no snapshot", away.name)
	}
	if noise := c.noise(); noise != nil {
		return said, errors.New(strings.Join(noise, "\n"))
	}
	return said, nil
}
