package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	pb "github.com/starling-registry/starling/proto"
)

// publish registers an instance in the attackers' group and keeps the
// connection.
func publish(s *server, service, ip string) (*client, error) {
	c, err := connect(s.grpc(), manners{})
	if err != nil {
		return nil, err
	}
	if err := must(c.call("InstanceRequest", register(service, inst(ip, 80)).with("groupName", attackedGroup))); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// shows counts the instances of an attackers' service at a node.
func shows(s *server, service string) (int, error) {
	c, err := connect(s.grpc(), manners{})
	if err != nil {
		return 0, err
	}
	defer c.close()
	a, err := c.call("ServiceQueryRequest", object{"namespace": "public", "serviceName": service, "groupName": attackedGroup})
	if err != nil {
		return 0, err
	}
	return len(a.hosts()), nil
}

func awaitShown(s *server, service string, want int, within time.Duration) error {
	var n int
	var err error
	for start := time.Now(); time.Since(start) < within; time.Sleep(100 * time.Millisecond) {
		if n, err = shows(s, service); err == nil && n == want {
			return nil
		}
	}
	return fmt.Errorf("%s has %d instances, want %d: %v", service, n, want, err)
}

func twin(f *field) (string, error) {
	first, err := f.newcomer("twin")
	if err != nil {
		return "", err
	}
	defer first.kill()
	if err := first.ready(f.ctx, 25*time.Second); err != nil {
		return "", err
	}
	c, err := publish(first, "twin", "10.9.1.1")
	if err != nil {
		return "", err
	}
	defer c.close()
	if err := awaitShown(f.nodes[0], "twin", 1, 5*time.Second); err != nil {
		return "", err
	}
	t, err := f.nodes[0].tally()
	if err != nil {
		return "", err
	}
	if err := os.CopyFS(filepath.Join(f.dir, "twin-copy", "data"), os.DirFS(filepath.Join(f.dir, "twin", "data"))); err != nil {
		return "", err
	}
	second, err := f.newcomer("twin-copy")
	if err != nil {
		return "", err
	}
	defer second.kill()
	for start := time.Now(); time.Since(start) < 8*time.Second; time.Sleep(300 * time.Millisecond) {
		if !first.alive() {
			return "", fmt.Errorf("the node that was there first has ended: %v, see %s", first.exit, first.logFile())
		}
		if n, err := shows(f.nodes[0], "twin"); err != nil || n != 1 {
			return "", fmt.Errorf("after %.1f s with a twin its provider is gone: %d, %v", time.Since(start).Seconds(), n, err)
		}
	}
	if err := f.believed(first, 3*time.Second); err != nil {
		return "", err
	}
	if err := t.grown(`starling_cluster_conflicts_total{kind="id"}`, 1); err != nil {
		return "", err
	}
	lines, err := t.logged()
	if err != nil {
		return "", err
	}
	if n := containsAll(lines, "two nodes have the same id"); n < 1 || n > 3 {
		return "", fmt.Errorf("it was logged %d times", n)
	}
	second.kill()
	if err := first.stop(); err != nil {
		return "", err
	}
	return "the first stays", nil
}

func foreignCluster(f *field) (string, error) {
	port, err := freePorts()
	if err != nil {
		return "", err
	}
	s, err := f.start("foreign", port)
	if err != nil {
		return "", err
	}
	if err := s.ready(f.ctx, 20*time.Second); err != nil {
		return "", errors.Join(err, s.stop())
	}
	// Once it has been a cluster of its own, it stays one.
	for start := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		if _, id, err := s.members(f.ctx); err == nil && id != "" {
			break
		} else if time.Since(start) > 5*time.Second {
			return "", errors.Join(errors.New("it makes no cluster id"), err, s.stop())
		}
	}
	if err := s.stop(); err != nil {
		return "", err
	}
	var tallies []*tally
	for _, n := range f.nodes {
		t, err := n.tally()
		if err != nil {
			return "", err
		}
		tallies = append(tallies, t)
	}
	if s, err = f.start("foreign", port, "--join="+f.join); err != nil {
		return "", err
	}
	defer s.kill()
	mine, err := s.tally()
	for start := time.Now(); err != nil && time.Since(start) < 5*time.Second; time.Sleep(50 * time.Millisecond) {
		mine, err = s.tally()
	}
	if err != nil {
		return "", err
	}
	time.Sleep(8 * time.Second)
	ms, _, err := s.members(f.ctx)
	if err != nil || len(ms) != 1 {
		return "", fmt.Errorf("it knows %d members: %v", len(ms), err)
	}
	kept := 0.0
	for n, t := range tallies {
		k, err := t.since(`starling_cluster_kept_out_total{reason="other_cluster"}`)
		if err != nil {
			return "", err
		}
		kept += k
		lines, err := t.logged()
		if err != nil {
			return "", err
		}
		if said := containsAll(lines, "node kept out", "foreign"); said > 1 {
			return "", fmt.Errorf("node %d logged it %d times", n, said)
		}
	}
	k, err := mine.since(`starling_cluster_kept_out_total{reason="other_cluster"}`)
	if err != nil {
		return "", err
	}
	if kept+k == 0 {
		return "", errors.New("nobody counted it")
	}
	return fmt.Sprintf("kept out %.0f times", kept+k), nil
}

func clocks(f *field) (string, error) {
	var mu sync.Mutex
	var errs []error
	fail := func(off string, err error) {
		if err != nil {
			mu.Lock()
			errs = append(errs, fmt.Errorf("%s: %w", off, err))
			mu.Unlock()
		}
	}
	t, err := f.nodes[0].tally()
	if err != nil {
		return "", err
	}
	var wg sync.WaitGroup
	for _, off := range []string{"1h", "-1h"} {
		wg.Go(func() {
			fail(off, func() error {
				name := "clock" + off
				d, err := f.newcomer(name, "--clock-offset="+off)
				if err != nil {
					return err
				}
				defer func() { d.kill() }()
				try := func() error {
					if err := d.ready(f.ctx, 25*time.Second); err != nil {
						return err
					}
					if err := f.believed(d, 8*time.Second); err != nil {
						return err
					}
					c, err := publish(d, name, "10.9.2.1")
					if err != nil {
						return err
					}
					defer c.close()
					for _, n := range f.nodes {
						if err := awaitShown(n, name, 1, 5*time.Second); err != nil {
							return err
						}
					}
					if err := must(c.call("InstanceRequest", register(name, inst("10.9.2.1", 80)).with("groupName", attackedGroup).with("type", "deregisterInstance"))); err != nil {
						return err
					}
					for _, n := range f.nodes {
						if err := awaitShown(n, name, 0, 5*time.Second); err != nil {
							return err
						}
					}
					return nil
				}
				if err := try(); err != nil {
					return err
				}
				if err := d.stop(); err != nil {
					return err
				}
				// Set right over a restart: an hour back, or forth.
				if d, err = f.start(name, d.port, "--join="+f.join); err != nil {
					return err
				}
				if err := try(); err != nil {
					return fmt.Errorf("set right: %w", err)
				}
				return d.stop()
			}())
		})
	}
	for _, off := range []string{"26h", "-26h"} {
		wg.Go(func() {
			fail(off, func() error {
				d, err := f.newcomer("clock"+off, "--clock-offset="+off)
				if err != nil {
					return err
				}
				defer d.kill()
				for start := time.Now(); time.Since(start) < 13*time.Second && f.ctx.Err() == nil; time.Sleep(200 * time.Millisecond) {
					if !d.alive() {
						return nil // it may as well refuse itself
					}
					if d.ready(f.ctx, 0) == nil {
						return errors.New("it takes clients with less than the others have")
					}
					if err := f.believed(d, 0); err == nil {
						return errors.New("it is believed")
					}
				}
				return nil
			}())
		})
	}
	wg.Wait()
	if len(errs) > 0 {
		return "", errors.Join(errs...)
	}
	if err := t.grown(refusedMessage("clock"), 2); err != nil {
		return "", err
	}
	lines, err := t.logged()
	if err != nil {
		return "", err
	}
	if n := containsAll(lines, "what is not taken", `"reason":"clock"`); n > 8 {
		return "", fmt.Errorf("far clocks were logged %d times", n)
	}
	return "±1 h work, ±26 h do not", nil
}

func damagedFiles(f *field) (string, error) {
	port, err := freePorts()
	if err != nil {
		return "", err
	}
	name := "files"
	file := func(n string) string { return filepath.Join(f.dir, name, "data", n) }
	n := 0
	// run starts the node in its directory, and says what it shows.
	run := func(do func(*server) error) error {
		n++
		s, err := f.start(name, port)
		if err != nil {
			return err
		}
		defer s.kill()
		if err := s.ready(f.ctx, 15*time.Second); err != nil {
			return err
		}
		if err := do(s); err != nil {
			return err
		}
		return s.stop()
	}
	failedSnapshots := func(want float64) func(*server) error {
		return func(s *server) error {
			m, err := s.metrics(f.ctx)
			if err != nil {
				return err
			}
			if m["starling_distro_failed_snapshots_total"] != want {
				return fmt.Errorf("failed snapshots: %.0f, want %.0f", m["starling_distro_failed_snapshots_total"], want)
			}
			orphans, err := shows(s, "files")
			if err == nil && orphans != int(1-want) {
				err = fmt.Errorf("%d instances of the snapshot are shown", orphans)
			}
			return err
		}
	}
	if err := run(func(s *server) error {
		c, err := publish(s, "files", "10.9.3.1")
		if err != nil {
			return err
		}
		time.Sleep(2500 * time.Millisecond) // a snapshot of it
		s.kill()
		c.close()
		s.exit = nil
		return nil
	}); err != nil {
		return "", err
	}
	good, err := os.ReadFile(file("registry.snapshot"))
	if err != nil {
		return "", err
	}
	sealed := func(b []byte) []byte {
		return binary.LittleEndian.AppendUint64(b[:len(b)-8], xxhash.Sum64(b[:len(b)-8]))
	}
	changed := func(f func(b []byte)) []byte { b := bytes.Clone(good); f(b); return b }
	snapshots := map[string][]byte{
		"empty": {}, "noise": bytes.Repeat([]byte{0xff}, 5000), "half": good[:len(good)/2], "one byte short": good[:len(good)-1],
		"a bit":        changed(func(b []byte) { b[len(b)/2] ^= 4 }),
		"of version 9": sealed(changed(func(b []byte) { b[8] = 9 })),
		"huge length":  sealed(changed(func(b []byte) { copy(b[20:], []byte{0xff, 0xff, 0xff, 0x7f}) })),
		"an hour old": sealed(changed(func(b []byte) {
			binary.LittleEndian.PutUint64(b[12:], uint64(time.Now().Add(-time.Hour).UnixMilli()))
		})),
	}
	for what, b := range snapshots {
		if err := os.WriteFile(file("registry.snapshot"), b, 0o600); err != nil {
			return "", err
		}
		if err := run(failedSnapshots(1)); err != nil {
			return "", fmt.Errorf("snapshot, %s: %w", what, err)
		}
	}
	if err := os.WriteFile(file("registry.snapshot"), good, 0o600); err != nil {
		return "", err
	}
	if err := os.WriteFile(file("members"), bytes.Repeat([]byte("noise \xff 1.2.3.4:99999\n"), 5000), 0o600); err != nil {
		return "", err
	}
	if err := run(failedSnapshots(0)); err != nil {
		return "", fmt.Errorf("good snapshot, damaged members: %w", err)
	}
	for _, damage := range []struct{ file, content string }{
		{"epoch", ""}, {"epoch", "noise"}, {"epoch", "-1"}, {"epoch", "0"}, {"epoch", "99999999999999999999"}, {"epoch", strings.Repeat("1", 1<<20)},
		{"cluster-id", ""}, {"cluster-id", "noise"}, {"cluster-id", strings.Repeat("z", 32)}, {"node-id", ""}, {"node-id", "noise"}, {"clock", "noise"},
	} {
		was, err := os.ReadFile(file(damage.file))
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(file(damage.file), []byte(damage.content), 0o600); err != nil {
			return "", err
		}
		n++
		s, err := f.start(name, port)
		if err != nil {
			return "", err
		}
		t := &tally{s: s}
		if info, err := os.Stat(s.logFile()); err == nil {
			t.bytes = info.Size()
		}
		select {
		case <-s.exited:
		case <-time.After(10 * time.Second):
			s.kill()
			return "", fmt.Errorf("%s with %q: it runs", damage.file, clip(damage.content))
		}
		b, err := os.ReadFile(s.logFile())
		if err != nil {
			return "", err
		}
		last := strings.TrimSpace(string(b))
		last = last[strings.LastIndexByte(last, '\n')+1:]
		if s.exit == nil || !strings.Contains(last, damage.file) || !strings.Contains(last, "damaged") || len(last) > 2000 {
			return "", fmt.Errorf("%s with %q: ended with %v, and said: %s", damage.file, clip(damage.content), s.exit, clip(last))
		}
		if err := os.WriteFile(file(damage.file), was, 0o600); err != nil {
			return "", err
		}
	}
	// An old epoch, of a backup: the time of day is above it.
	if err := os.WriteFile(file("epoch"), []byte("5\n"), 0o600); err != nil {
		return "", err
	}
	if err := run(func(*server) error { return nil }); err != nil {
		return "", fmt.Errorf("an old epoch: %w", err)
	}
	return fmt.Sprintf("%d starts", n), nil
}

func ownLife(f *field) (string, error) {
	tr, err := newTraitor(f.trio)
	if err != nil {
		return "", err
	}
	defer tr.close()
	d, err := f.newcomer("own")
	if err != nil {
		return "", err
	}
	defer d.kill()
	if err := d.ready(f.ctx, 20*time.Second); err != nil {
		return "", err
	}
	if err := f.believed(d, 5*time.Second); err != nil {
		return "", err
	}
	self := func() (*member, error) {
		ms, _, err := d.members(f.ctx)
		for _, m := range ms {
			if m.Ports.HTTP == d.port {
				return &m, err
			}
		}
		return nil, fmt.Errorf("it does not know itself: %w", err)
	}
	is, err := self()
	if err != nil {
		return "", err
	}
	for start := time.Now(); ; time.Sleep(50 * time.Millisecond) { // gossip has told it of the traitor
		ms, _, err := d.members(f.ctx)
		if err == nil && strings.Contains(fmt.Sprint(ms), tr.id) {
			break
		}
		if time.Since(start) > 5*time.Second {
			return "", errors.New("the node does not know the traitor")
		}
	}
	st, err := tr.open(d)
	if err != nil {
		return "", err
	}
	defer st.close()
	t, err := d.tally()
	if err != nil {
		return "", err
	}
	now := stamp(time.Now())
	of := &pb.Life{Node: is.ID, Epoch: is.Epoch}
	// What it has written already, with other content: nothing.
	for range 100 {
		_ = st.send(frame(&pb.Frame{Life: of, To: 0, Whole: true}))
	}
	if err := t.grown("starling_distro_duplicate_frames_total", 100); err != nil {
		return "", err
	}
	for range 100 {
		_ = st.send(frame(&pb.Frame{Life: of, To: 1 << 40, Whole: true, Records: [][]byte{encodeRecord(publication("c", "own", 7, now, 3), 0)}}))
		_ = st.send(tr.heads(stamp(time.Now()), &pb.Head{Life: of, Applied: 1 << 40, OwnerClock: now, OwnerVersion: 1 << 40}))
	}
	began := time.Now()
	for ; ; time.Sleep(100 * time.Millisecond) {
		if !d.alive() {
			return "", fmt.Errorf("it has ended: %v, see %s", d.exit, d.logFile())
		}
		if next, err := self(); err == nil && next.Epoch > is.Epoch && d.ready(f.ctx, 0) == nil {
			break
		}
		if time.Since(began) > 20*time.Second {
			return "", errors.New("it does not begin a new life")
		}
	}
	took := time.Since(began)
	if err := f.believed(d, 8*time.Second); err != nil {
		return "", err
	}
	c, err := publish(d, "own", "10.9.4.1")
	if err != nil {
		return "", err
	}
	defer c.close()
	if err := awaitShown(f.nodes[0], "own", 1, 5*time.Second); err != nil {
		return "", err
	}
	if err := d.stop(); err != nil {
		return "", err
	}
	return fmt.Sprintf("a new life after %.1f s", took.Seconds()), nil
}
