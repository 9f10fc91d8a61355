package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
)

// A boltFile is where things are in the file of a log.
type boltFile struct {
	page  int64
	last  int64   // highest page that is in use
	leafs []int64 // pages of entries
	meta  int64   // page of the newer of the two heads
}

// layout reads a copy of a file: to open one may change it.
func layout(path string) (*boltFile, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	scratch := path + ".copy"
	defer os.Remove(scratch)
	if err := os.WriteFile(scratch, b, 0o600); err != nil {
		return nil, err
	}
	db, err := bbolt.Open(scratch, 0o600, &bbolt.Options{Timeout: time.Second})
	if err != nil {
		return nil, err
	}
	defer db.Close()
	f := &boltFile{page: int64(db.Info().PageSize)}
	// Offset of the number of the transaction in a head.
	const txid = 64
	if binary.LittleEndian.Uint64(b[f.page+txid:]) > binary.LittleEndian.Uint64(b[txid:]) {
		f.meta = 1
	}
	return f, db.View(func(tx *bbolt.Tx) error {
		for id := 2; ; id++ {
			p, err := tx.Page(id)
			if err != nil {
				return err
			}
			if p == nil {
				break
			}
			if p.Type == "free" || p.Type == "freelist" {
				continue
			}
			f.last = int64(id + p.OverflowCount)
			if p.Type == "leaf" && p.Count > 3 {
				f.leafs = append(f.leafs, int64(id))
			}
			id += p.OverflowCount
		}
		if len(f.leafs) == 0 {
			return errors.New("no page of the log has entries")
		}
		return nil
	})
}

// overwrite puts bytes into a file.
func overwrite(path string, at int64, b []byte) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, at)
	return errors.Join(err, f.Close())
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// flip changes one bit in the middle of the first entry of a page.
func flip(path string, page int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	// An element is flags, position from itself, size of the key, of the value.
	element := make([]byte, 16)
	if _, err := f.ReadAt(element, page+16); err != nil {
		return err
	}
	u := func(i int) int64 { return int64(binary.LittleEndian.Uint32(element[i:])) }
	at := page + 16 + u(4) + u(8) + u(12)/2
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		return err
	}
	b[0] ^= 16
	_, err = f.WriteAt(b, at)
	return err
}

// damaged damages the log of a node that does not run. It must not start with
// it, whatever could be made of the rest.
func damaged(ctx context.Context, s *stage) (string, error) {
	c, l, err := s.trio(ctx)
	if err != nil {
		return "", err
	}
	if err := s.fill(ctx, c, l, 300); err != nil {
		return "", err
	}
	n, err := c.follower(ctx)
	if err != nil {
		return "", err
	}
	var shots []string
	if err := until(ctx, 15*time.Second, func() (err error) {
		if shots, err = filepath.Glob(filepath.Join(n.raft(), "snapshots", "*", "state.bin")); err == nil && len(shots) == 0 {
			err = errors.New("there is no snapshot to damage")
		}
		return err
	}); err != nil {
		return "", err
	}
	n.kill()
	path := filepath.Join(n.raft(), "raft.db")
	f, err := layout(path)
	if err != nil {
		return "", err
	}
	if shots, err = filepath.Glob(filepath.Join(n.raft(), "snapshots", "*", "state.bin")); err != nil {
		return "", err
	}
	leaf := f.leafs[rand.IntN(len(f.leafs))] * f.page
	damages := []struct {
		name string
		do   func() error
	}{
		{"the last page torn", func() error { return os.Truncate(path, f.last*f.page+f.page/2) }},
		{"random bytes in a page", func() error { return overwrite(path, leaf+8, randomBytes(500)) }},
		{"a flipped bit in an entry", func() error { return flip(path, leaf) }},
		{"the newer head zeroed", func() error { return overwrite(path, f.meta*f.page, make([]byte, f.page)) }},
		{"a snapshot with a flipped bit", func() error {
			for _, shot := range shots {
				info, err := os.Stat(shot)
				if err != nil {
					return err
				}
				if err := overwrite(shot, info.Size()/2, []byte{255}); err != nil {
					return err
				}
			}
			return nil
		}},
		{"an empty log", func() error { return os.Truncate(path, 0) }},
		{"no log, but its snapshots", func() error { return os.Remove(path) }},
		{"both heads zeroed", func() error { return overwrite(path, 0, make([]byte, 2*f.page)) }},
	}
	whole := n.dir + "-whole"
	if err := os.CopyFS(whole, os.DirFS(n.data)); err != nil {
		return "", err
	}
	var said string
	var errs []error
	for i, d := range damages {
		if err := d.do(); err != nil {
			return "", fmt.Errorf("%s: %w", d.name, err)
		}
		text, err := n.refusesToStart(10 * time.Second)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", d.name, err))
		case !strings.Contains(text, n.raft()) || !strings.Contains(text, "move"):
			errs = append(errs, fmt.Errorf("%s: it does not say where, and what to do: %s", d.name, text))
		case i == 0:
			said = text
		}
		// The node has not run: what it had is what it has promised.
		// emptied joins again, too: once is enough for the short form.
		if last := i == len(damages)-1; !last || !s.full {
			if err := os.RemoveAll(n.data); err != nil {
				return "", err
			}
			if err := os.CopyFS(n.data, os.DirFS(whole)); err != nil {
				return "", err
			}
		}
	}
	if errs != nil {
		return "", errors.Join(errs...)
	}
	if !s.full {
		if err := c.startAll(ctx); err != nil {
			return "", err
		}
		return fmt.Sprintf("%d kinds of damage; the first: %s", len(damages), said), hold(ctx, c, l)
	}
	// What is advised.
	if err := move(n.data, n.data+".damaged"); err != nil {
		return "", err
	}
	took, _, err := joinsAgain(ctx, c, n)
	if err != nil {
		return "", fmt.Errorf("after the advice was followed: %w", err)
	}
	return fmt.Sprintf("%d kinds of damage; moved away, the node votes again after %.1f s; the first: %s", len(damages), took.Seconds(), clip(said)), hold(ctx, c, l)
}

// fillUp leaves no space where a node has its data, and returns what frees it.
func fillUp(n *node) (free func() error, err error) {
	path := filepath.Join(n.data, "filler")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	for block := make([]byte, 64<<10); len(block) > 0; {
		if _, err = f.Write(block); err != nil {
			block = block[:len(block)/2]
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return nil, fmt.Errorf("filling the file system of node %s: %w", n.name, err)
	}
	return func() error { return os.Remove(path) }, f.Close()
}

// fullDisk takes the space of the leader, of a follower, and of a node that
// starts.
func fullDisk(ctx context.Context, s *stage) (string, error) {
	c, err := s.cluster(3, "--raft-snapshot-entries=1000", "--raft-snapshot-every=1s")
	if err != nil {
		return "", err
	}
	defer c.killAll()
	for _, n := range c.nodes {
		unmount, err := mount(n.data, 24<<20)
		if err != nil {
			return "", err
		}
		s.undo = append(s.undo, unmount)
	}
	l := newLedger()
	if err := c.startAll(ctx); err != nil {
		return "", err
	}
	if err := prepare(ctx, c, l); err != nil {
		return "", err
	}
	if err := s.fill(ctx, c, l, 300); err != nil {
		return "", err
	}
	var said []string
	for _, who := range []string{"leader", "follower"} {
		n, err := c.leader(ctx, 10*time.Second)
		if who == "follower" {
			n, err = c.follower(ctx)
		}
		if err != nil {
			return "", err
		}
		mark := n.mark()
		free, err := fillUp(n)
		if err != nil {
			return "", err
		}
		l.rest()
		// Enough to outgrow what the file has in reserve.
		ld := &load{clients: 12, writes: s.of(1200, 6000), from: s.next}
		s.next += ld.writes
		ld.begin(ctx, c, l)
		ld.wait()
		said = append(said, fmt.Sprintf("full under the %s: %v, longest outage %v", who, l, l.outage().Round(time.Millisecond)))
		if !strings.Contains(n.since(mark), "no space left") {
			return strings.Join(said, "; "), fmt.Errorf("node %s, the %s, does not say that its disk is full: %s", n.name, who, n.lastLine())
		}
		n.lastWords(mark)
		if n.running() {
			if r, err := raftOf(ctx, n); err != nil || r.Role != "failed" {
				return "", fmt.Errorf("node %s with a full disk calls itself %v (%w)", n.name, r, err)
			}
		}
		if l.counts[acknowledged] < ld.writes/2 {
			return strings.Join(said, "; "), fmt.Errorf("the others do not go on: %v", l)
		}
		if err := judge(ctx, c.others(n), l); err != nil {
			return strings.Join(said, "; "), err
		}
		if n.running() {
			if err := n.stop(); err != nil {
				return strings.Join(said, "; "), err
			}
		} else if code := n.cmd.ProcessState.ExitCode(); code != 1 {
			return strings.Join(said, "; "), fmt.Errorf("node %s ended with status %d", n.name, code)
		}
		if who == "follower" {
			text, err := n.refusesToStart(10 * time.Second)
			if err != nil {
				return strings.Join(said, "; "), fmt.Errorf("start on a full disk: %w", err)
			}
			if !strings.Contains(text, "no space left") || !strings.Contains(text, n.data) {
				return strings.Join(said, "; "), fmt.Errorf("start on a full disk: it does not say that: %s", text)
			}
			said = append(said, "at the start: "+text)
		}
		if err := free(); err != nil {
			return "", err
		}
		if err := c.startAll(ctx); err != nil {
			return strings.Join(said, "; "), fmt.Errorf("with space again: %w", err)
		}
		if err := hold(ctx, c, l); err != nil {
			return strings.Join(said, "; "), err
		}
	}
	if noise := c.noise(); noise != nil {
		err = errors.New(strings.Join(noise, "\n"))
	}
	return strings.Join(said, "; "), err
}
