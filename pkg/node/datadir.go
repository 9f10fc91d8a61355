package node

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/starling-registry/starling/pkg/registry"
)

// A DataDir is the open data directory of one node:
//
//	lock     locked while the node runs
//	node-id  32 hex digits, made once
//	epoch    of the newest start, decimal
//	clock    high-water mark of the registry's clock, decimal
//
//	cluster-id         32 hex digits, once the cluster has one
//	founders           of the cluster, while this node begins its log; see SaveFounders
//	raft/              the log (package raftstore)
//	raft-begun         says that raft/ had something in it
//	members            what is to be known of the others after a restart, see [Known]
//	registry.snapshot  what package distro wrote
//
// A file is replaced as a whole and is on disk before anybody relies on it,
// so neither a crash nor a power cut leaves a half of one. A file that cannot
// be read as what it is stops the start: what to put in its place is for a
// person to say.
//
// Nothing outside the directory is read or written, also not through symbolic
// links in it.
type DataDir struct {
	NodeID string
	// Epoch grows at each start and is on disk: (NodeID, Epoch) never comes
	// again (design §3).
	Epoch uint64
	// Clock is above all stamps of earlier runs that were saved; 0: none was.
	Clock registry.Stamp

	path string // absolute, for errors
	root *os.Root
	lock *os.File

	mu    sync.Mutex
	saved registry.Stamp // what the file clock holds
}

// Open makes the directory if it is not there, locks it, and starts a new
// epoch in it. It fails at once if another process has it open.
func Open(dir string) (*DataDir, error) {
	path, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("--data-dir: %s: %w", dir, err)
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("--data-dir: cannot make the data directory: %w", err)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("--data-dir: cannot open the data directory: %w", err)
	}
	d := &DataDir{path: path, root: root}
	if err := d.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("--data-dir: %w", err), d.Close())
	}
	return d, nil
}

func (d *DataDir) open() error {
	var err error
	if d.lock, err = d.root.OpenFile("lock", os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return fmt.Errorf("data directory %s: cannot make its lock: %w", d.path, err)
	}
	if err := d.hold(); err != nil {
		return err
	}

	storedEpoch, err := d.readNumber("epoch", "write into it a number above all epochs of this node, such as the milliseconds since 1970 (date +%s%3N)")
	if err != nil {
		return err
	}
	if d.NodeID, err = d.openID(storedEpoch != 0); err != nil {
		return err
	}
	// The time of day, unless the clock went back since the last start.
	d.Epoch = max(storedEpoch+1, uint64(max(0, time.Now().UnixMilli())))
	if err := d.write("epoch", strconv.FormatUint(d.Epoch, 10)); err != nil {
		return err
	}

	clock, err := d.readNumber("clock", "remove it if the clock of this machine has not gone back since the node last ran")
	d.Clock, d.saved = registry.Stamp(clock), registry.Stamp(clock)
	return err
}

// hold takes the lock, or fails at once.
func (d *DataDir) hold() error {
	// The kernel gives it back when the process ends, however it ends.
	err := syscall.Flock(int(d.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return fmt.Errorf("data directory %s is in use by another process: stop that one, or give this node a directory of its own", d.path)
	} else if err != nil {
		return fmt.Errorf("data directory %s: cannot lock it: %w", d.path, err)
	}
	return nil
}

// openID reads the node id, or makes it in a directory that no node has run
// in.
func (d *DataDir) openID(ran bool) (string, error) {
	const remedy = "restore it from a backup, or move the whole directory away to start as a new node"
	id, err := d.read("node-id")
	if errors.Is(err, fs.ErrNotExist) {
		if ran {
			return "", fmt.Errorf("data directory %s: the file node-id is gone: %s", d.path, remedy)
		}
		b := make([]byte, 16)
		rand.Read(b) // never fails
		id = hex.EncodeToString(b)
		return id, d.write("node-id", id)
	} else if err != nil {
		return "", err
	}
	if b, err := hex.DecodeString(id); err != nil || len(b) != 16 {
		return "", fmt.Errorf("%s is damaged, it is not 32 hex digits: %s", filepath.Join(d.path, "node-id"), remedy)
	}
	return id, nil
}

// SaveClock raises the stored high-water mark to s; a lower one changes
// nothing. When it returns nil, the mark is on disk. It may be called from any
// goroutine.
func (d *DataDir) SaveClock(s registry.Stamp) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s <= d.saved {
		return nil
	}
	if err := d.write("clock", strconv.FormatUint(uint64(s), 10)); err != nil {
		return err
	}
	d.saved = s
	return nil
}

// ClusterID is the id of the cluster that the node belongs to; "" while it has
// none.
func (d *DataDir) ClusterID() (string, error) {
	id, err := d.read("cluster-id")
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	if b, err := hex.DecodeString(id); err != nil || len(b) != 16 {
		return "", fmt.Errorf("%s is damaged, it is not 32 hex digits: copy it from another node of the cluster, or move the whole directory away to join as a new node", filepath.Join(d.path, "cluster-id"))
	}
	return id, nil
}

// SaveClusterID keeps the id for all later starts.
func (d *DataDir) SaveClusterID(id string) error {
	return d.write("cluster-id", id)
}

// SaveFounders is called by the node that makes the id of a cluster, before it
// keeps the id: these are the first voters of the log. If it crashes before the
// log has begun, its next start begins it.
func (d *DataDir) SaveFounders(ids []string) error {
	return d.write("founders", strings.Join(ids, " "))
}

// Founders are those of a log that this node has to begin; none else.
func (d *DataDir) Founders() []string {
	s, err := d.read("founders")
	if err != nil {
		return nil
	}
	return strings.Fields(s)
}

// LogBegun says that the log holds something, and no founders are needed any
// more.
func (d *DataDir) LogBegun() error {
	if !d.logHasBegun() {
		if err := d.write("raft-begun", "the directory raft belongs to this node and holds its votes"); err != nil {
			return err
		}
	}
	return d.ForgetFounders()
}

// ForgetFounders says that this node has no log to begin.
func (d *DataDir) ForgetFounders() error {
	if err := d.root.Remove("founders"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("data directory %s: %w", d.path, err)
	}
	return nil
}

func (d *DataDir) logHasBegun() bool {
	_, err := d.root.Stat("raft-begun")
	return !errors.Is(err, fs.ErrNotExist)
}

// holdsLog reports whether the log belongs to a cluster, be it empty.
func (d *DataDir) holdsLog() bool {
	_, err := d.root.Stat(raftDir + "/generation")
	return d.logHasBegun() || !errors.Is(err, fs.ErrNotExist)
}

// LogDir is the directory of the log. A log that was there and is gone stops
// the start: a node that has forgotten its votes could elect two leaders
// (cluster C2).
func (d *DataDir) LogDir() (string, error) {
	dir := filepath.Join(d.path, raftDir)
	if d.logHasBegun() {
		if _, err := d.root.Stat(raftDir); errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("data directory %s: the log (raft) is gone, and with it what this node has promised the others: restore it from a backup of the whole directory, or move the whole directory away to join as a new node", d.path)
		}
	}
	return dir, nil
}

// A Known member is one line of the file members: id, gossip address, and the
// word "stable" if a majority is counted with it (design §6).
type Known struct {
	ID, Gossip string
	Stable     bool
}

// Members are those that were known in earlier runs. What is read only helps
// to find the others, so a damaged line does no harm.
func (d *DataDir) Members() (known []Known) {
	s, err := d.read("members")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(s) {
		f := strings.Fields(line)
		if len(f) == 2 || len(f) == 3 && f[2] == "stable" {
			known = append(known, Known{f[0], f[1], len(f) == 3})
		}
	}
	return known
}

// SaveMembers replaces them.
func (d *DataDir) SaveMembers(known []Known) error {
	var b strings.Builder
	for _, k := range known {
		b.WriteString(k.ID + " " + k.Gossip)
		if k.Stable {
			b.WriteString(" stable")
		}
		b.WriteByte('\n')
	}
	return d.write("members", strings.TrimSuffix(b.String(), "\n"))
}

// OpenSnapshot opens the registry's snapshot. The error is fs.ErrNotExist if
// there is none.
func (d *DataDir) OpenSnapshot() (io.ReadCloser, error) {
	f, err := d.root.Open("registry.snapshot")
	if err != nil {
		return nil, fmt.Errorf("data directory %s: %w", d.path, err)
	}
	return f, nil
}

// SaveSnapshot replaces it by what write writes, or not at all.
func (d *DataDir) SaveSnapshot(write func(io.Writer) error) error {
	return d.replace("registry.snapshot", write)
}

// Close gives the directory back.
func (d *DataDir) Close() error {
	d.mu.Lock() // not in the middle of a SaveClock
	defer d.mu.Unlock()
	err := d.root.Close()
	if d.lock != nil {
		err = errors.Join(err, d.lock.Close())
	}
	return err
}

func (d *DataDir) read(name string) (string, error) {
	b, err := d.root.ReadFile(name)
	if err != nil {
		return "", fmt.Errorf("data directory %s: %w", d.path, err)
	}
	return strings.TrimSuffix(string(b), "\n"), nil
}

// readNumber reads a file that holds one number above 0; 0 means that there is
// no such file.
func (d *DataDir) readNumber(name, remedy string) (uint64, error) {
	s, err := d.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n == 0 || n > 1<<63 { // above, adding to it might wrap around
		return 0, fmt.Errorf("%s is damaged, %.40q is not a number that a node writes: %s", filepath.Join(d.path, name), s, remedy)
	}
	return n, nil
}

// write replaces a file as a whole and returns when it is on disk.
func (d *DataDir) write(name, content string) error {
	return d.replace(name, func(w io.Writer) error {
		_, err := io.WriteString(w, content+"\n")
		return err
	})
}

func (d *DataDir) replace(name string, write func(io.Writer) error) error {
	err := func() error {
		tmp := name + ".tmp" // one name: the lock makes this process the only writer, and each file has one in it
		f, err := d.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return err
		}
		buffered := bufio.NewWriter(f)
		err = errors.Join(write(buffered), buffered.Flush())
		// Without it a power cut may leave the new name with no content.
		if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
			return err
		}
		if err := d.root.Rename(tmp, name); err != nil {
			return err
		}
		dir, err := d.root.Open(".")
		if err != nil {
			return err
		}
		return errors.Join(dir.Sync(), dir.Close())
	}()
	if errors.Is(err, syscall.ENOSPC) {
		err = fmt.Errorf("%w: make room and start again", err)
	}
	if err != nil {
		return fmt.Errorf("data directory %s: cannot write %s: %w", d.path, name, err)
	}
	return nil
}
