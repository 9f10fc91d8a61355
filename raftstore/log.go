package raftstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// What can keep a log from being opened. The text of the error says what to do.
var (
	ErrLocked   = errors.New("the log is in use by another process")
	ErrCorrupt  = errors.New("the log is damaged")
	ErrDiskFull = errors.New("no space left for the log")
	ErrNewerLog = errors.New("the log was written by a newer release")
	// ErrOtherCluster is for people to solve: either is the right one.
	ErrOtherCluster = errors.New("the log belongs to another cluster")
)

const (
	logFile     = "raft.db"
	snapshotDir = "snapshots" // as the library calls it
	lockWait    = 2 * time.Second
	keepShots   = 2
	needSpace   = 64 << 10
)

// guard turns panics into errors: bbolt panics at pages that make no sense, and
// a page that the file no longer has is a fault of the memory map.
func guard(what string, f func() error) (err error) {
	old := debug.SetPanicOnFault(true)
	defer debug.SetPanicOnFault(old)
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s: %w: %v", what, ErrCorrupt, p)
		}
	}()
	return f()
}

func boltOptions() *bbolt.Options {
	o := *bbolt.DefaultOptions
	o.Timeout = lockWait // the default waits for ever
	// The list of free pages is found by a scan at the start, not written at
	// each commit: after a large truncation that is three times as fast.
	o.NoFreelistSync = true
	return &o
}

// explain says what kind of failure an error of the disk or of bbolt is.
func explain(path string, err error) error {
	switch {
	case err == nil || errors.Is(err, ErrCorrupt):
		return err
	case errors.Is(err, bolterrors.ErrTimeout):
		return fmt.Errorf("%w: %s: is another node running in this data directory?", ErrLocked, path)
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: %s: make room and start again: %w", ErrDiskFull, path, err)
	case errors.Is(err, bolterrors.ErrInvalid) || errors.Is(err, bolterrors.ErrChecksum) || errors.Is(err, bolterrors.ErrInvalidMapping) ||
		errors.Is(err, io.ErrUnexpectedEOF) || strings.Contains(err.Error(), "file size too small"):
		return fmt.Errorf("%w: %s: %w", ErrCorrupt, path, err)
	case errors.Is(err, bolterrors.ErrVersionMismatch):
		return fmt.Errorf("%w: %s: %w", ErrNewerLog, path, err)
	}
	return fmt.Errorf("the log %s: %w", path, err)
}

// checkSpace tries whether there is room for a little more: the log may begin
// with room of its own, and a node would stop at its first writes.
func checkSpace(dir string) error {
	path := filepath.Join(dir, "space.tmp")
	err := os.WriteFile(path, make([]byte, needSpace), 0o600)
	if rm := os.Remove(path); !errors.Is(rm, os.ErrNotExist) {
		err = errors.Join(err, rm)
	}
	return explain(dir, err)
}

// A position is what a log on disk holds.
type position struct {
	first, last uint64 // 0: it is empty
	lastTerm    uint64
	bytes       int64 // of all entries
}

// checkLog reads a log from its first page to its last, before anything of it
// is believed: bbolt would end the process at a damaged page, the library at a
// missing entry. Entries behind the index after must be without a gap.
func checkLog(path string, after uint64) (position, error) {
	var at position
	st, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && st.Size() == 0 {
		return at, nil // bbolt makes a new one
	}
	if err != nil {
		return at, explain(path, err)
	}
	if err := checkHeads(path); err != nil {
		return at, err
	}
	err = guard(path, func() error {
		o := boltOptions()
		o.ReadOnly = true // does not look for free pages, where bbolt panics on a goroutine of its own
		db, err := bbolt.Open(path, 0o600, o)
		if err != nil {
			return explain(path, err)
		}
		defer db.Close()
		return db.View(func(tx *bbolt.Tx) error {
			// bbolt makes the file longer before it uses what is there then.
			if st.Size() < tx.Size() {
				return fmt.Errorf("%s: %w: it has %d bytes of %d", path, ErrCorrupt, st.Size(), tx.Size())
			}
			if b := tx.Bucket([]byte("conf")); b != nil {
				if err := b.ForEach(func(_, _ []byte) error { return nil }); err != nil {
					return err
				}
			}
			logs := tx.Bucket([]byte("logs"))
			if logs == nil {
				return nil
			}
			return logs.ForEach(func(k, v []byte) error {
				if len(k) != 8 {
					return fmt.Errorf("%s: %w: an entry with a strange key", path, ErrCorrupt)
				}
				index := binary.BigEndian.Uint64(k)
				if at.last != 0 && index != at.last+1 && at.last > after || at.last == 0 && index > after+1 {
					return fmt.Errorf("%s: %w: entries are missing before %d", path, ErrCorrupt, index)
				}
				if at.first == 0 {
					at.first = index
				}
				at.last = index
				at.bytes += int64(len(v))
				return nil
			})
		})
	})
	if err != nil || at.last == 0 {
		return at, err
	}
	// The entries themselves, as the library will read them.
	err = guard(path, func() error {
		o := boltOptions()
		o.ReadOnly = true
		bolt, err := raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: o})
		if err != nil {
			return explain(path, err)
		}
		defer bolt.Close()
		for index := at.first; index <= at.last; index++ {
			var l raft.Log
			err := readLog(bolt, index, &l)
			if errors.Is(err, raft.ErrLogNotFound) && index <= after {
				continue // a restored backup leaves a hole
			}
			if err != nil {
				return fmt.Errorf("%s: entry %d: %w", path, index, err)
			}
			at.lastTerm = l.Term
		}
		return nil
	})
	return at, err
}

// checkHeads looks at the two heads of a bbolt file. bbolt goes on with the older
// one if the newer one is damaged, and the last thing that was written, a vote
// or an acknowledged entry, is gone without a word. A write of a head that was
// cut short is not the reason: a head is within one sector of a disk.
func checkHeads(path string) error {
	const (
		pageHead = 16         // bytes before what is below
		magic    = 0xED0CDAED // of bbolt
		size     = 64         // with the sum at its end
		sumAt    = size - 8
	)
	f, err := os.Open(path)
	if err != nil {
		return explain(path, err)
	}
	defer f.Close()
	whole := 0
	// Pages are as large as those of the machine that made the file; a head that
	// is whole tells.
	for page := int64(512); page <= 64<<10 && whole < 2; page *= 2 {
		whole = 0
		for _, at := range []int64{0, page} {
			b := make([]byte, size)
			if _, err := f.ReadAt(b, at+pageHead); err != nil {
				continue
			}
			sum := fnv.New64a()
			_, _ = sum.Write(b[:sumAt])
			if binary.NativeEndian.Uint32(b) == magic && int64(binary.NativeEndian.Uint32(b[8:])) == page && binary.NativeEndian.Uint64(b[sumAt:]) == sum.Sum64() {
				whole++
			}
		}
	}
	if whole < 2 {
		return fmt.Errorf("%s: %w: not both of its heads are whole", path, ErrCorrupt)
	}
	return nil
}

// readLog reads an entry and checks it.
func readLog(b *raftboltdb.BoltStore, index uint64, l *raft.Log) error {
	var stored raft.Log
	if err := b.GetLog(index, &stored); err != nil {
		if errors.Is(err, raft.ErrLogNotFound) {
			return err
		}
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if stored.Index != index || len(stored.Extensions) != 8 || binary.BigEndian.Uint64(stored.Extensions) != logHash(&stored) {
		return fmt.Errorf("%w: entry %d is not what was written", ErrCorrupt, index)
	}
	stored.Extensions = nil
	*l = stored
	return nil
}

// logHash is kept with each entry: neither bbolt nor the library would notice
// a byte that has changed, and a node would apply something else than the
// others.
func logHash(l *raft.Log) uint64 {
	var head [17]byte
	binary.BigEndian.PutUint64(head[:], l.Index)
	binary.BigEndian.PutUint64(head[8:], l.Term)
	head[16] = byte(l.Type)
	h := xxhash.New()
	_, _ = h.Write(head[:])
	_, _ = h.Write(l.Data)
	return h.Sum64()
}

// A logStore is the log and the votes on disk. It is the [raft.LogStore] and
// the [raft.StableStore]: bbolt below, and around it what the library does not
// do: it notices damage and says that nothing can be written any more.
type logStore struct {
	bolt *raftboltdb.BoltStore
	path string
	// failed is told of each error that is not the caller's.
	failed func(error)
	// live: the library runs, on goroutines of its own.
	live    atomic.Bool
	closing atomic.Bool

	grown  chan struct{} // told when there is as much log since the last snapshot as due says
	due    int64
	stored atomic.Int64 // bytes of entries on disk, since the start
	base   atomic.Int64 // of them, those before the last snapshot

	mu      sync.Mutex
	last    uint64
	configs []uint64 // entries of the log that are configurations, newest last
}

func openLog(path string, noSync bool, due int64, failed func(error)) (*logStore, error) {
	var bolt *raftboltdb.BoltStore
	err := guard(path, func() (err error) {
		bolt, err = raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: boltOptions(), NoSync: noSync})
		return err
	})
	if err != nil {
		return nil, explain(path, err)
	}
	l := &logStore{bolt: bolt, path: path, failed: failed, due: due, grown: make(chan struct{}, 1)}
	if l.last, err = bolt.LastIndex(); err != nil {
		return nil, errors.Join(explain(path, err), bolt.Close())
	}
	return l, nil
}

// check hands a failure on. It returns err as it is: the library compares.
func (l *logStore) check(err error) error {
	if err == nil || errors.Is(err, raft.ErrLogNotFound) || l.closing.Load() {
		return err
	}
	l.failed(explain(l.path, err))
	return err
}

func (l *logStore) FirstIndex() (index uint64, err error) {
	err = l.check(guard(l.path, func() error { index, err = l.bolt.FirstIndex(); return err }))
	return index, err
}

func (l *logStore) LastIndex() (index uint64, err error) {
	err = l.check(guard(l.path, func() error { index, err = l.bolt.LastIndex(); return err }))
	return index, err
}

func (l *logStore) GetLog(index uint64, e *raft.Log) error {
	err := guard(l.path, func() error { return readLog(l.bolt, index, e) })
	if err == nil && !l.live.Load() { // the library looks at all entries behind the snapshot
		l.stored.Add(onDisk(e))
		l.note(e)
	}
	if _ = l.check(err); err != nil && !errors.Is(err, raft.ErrLogNotFound) && l.live.Load() {
		// As in SetUint64, and also while the store stops after another
		// failure: the library would still panic.
		runtime.Goexit()
	}
	return err
}

func (l *logStore) StoreLog(e *raft.Log) error { return l.StoreLogs([]*raft.Log{e}) }

func (l *logStore) StoreLogs(entries []*raft.Log) error {
	// The library goes on using its own: these are copies.
	copies := make([]raft.Log, len(entries))
	pointers := make([]*raft.Log, len(entries))
	var size int64
	for i, e := range entries {
		copies[i] = *e
		copies[i].Extensions = binary.BigEndian.AppendUint64(nil, logHash(e))
		pointers[i] = &copies[i]
		size += onDisk(e)
	}
	if err := l.check(guard(l.path, func() error { return l.bolt.StoreLogs(pointers) })); err != nil {
		return err
	}
	l.stored.Add(size)
	if l.sinceSnapshot() >= l.due {
		select {
		case l.grown <- struct{}{}:
		default: // it has been told
		}
	}
	for _, e := range entries {
		l.note(e)
	}
	return nil
}

// onDisk is about what an entry takes in the file: bbolt splits the pages of a
// log in halves, and each entry has a key, a head and the names of its fields.
// Counted by their data, a hundred thousand small entries would be a file of 50
// MB before there is a snapshot, and a file never shrinks (cases C44).
func onDisk(e *raft.Log) int64 { return 2 * int64(len(e.Data)+96) }

// note remembers the end of the log, and where its configurations are.
func (l *logStore) note(e *raft.Log) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = max(l.last, e.Index)
	if e.Type == raft.LogConfiguration && (len(l.configs) == 0 || l.configs[len(l.configs)-1] < e.Index) {
		l.configs = append(l.configs, e.Index)
		// There is never more than one that is not committed.
		l.configs = l.configs[max(0, len(l.configs)-2):]
	}
}

// newestConfig is the index of the newest configuration in the log, as far as
// it is known: the library does not tell the index of what it tells.
func (l *logStore) newestConfig() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.configs) == 0 {
		return 0
	}
	return l.configs[len(l.configs)-1]
}

func (l *logStore) DeleteRange(from, to uint64) error {
	if err := l.check(guard(l.path, func() error { return l.bolt.DeleteRange(from, to) })); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if to >= l.last { // entries that another leader has overruled, not old ones
		l.last = from - 1
		l.configs = slices.DeleteFunc(l.configs, func(i uint64) bool { return i >= from })
	}
	return nil
}

func (l *logStore) Set(k, v []byte) error {
	return l.check(guard(l.path, func() error { return l.bolt.Set(k, v) }))
}

func (l *logStore) Get(k []byte) (v []byte, err error) {
	err = guard(l.path, func() error { v, err = l.bolt.Get(k); return err })
	return v, l.checkKey(err)
}

func (l *logStore) SetUint64(k []byte, v uint64) error {
	err := l.check(guard(l.path, func() error { return l.bolt.SetUint64(k, v) }))
	if err != nil && string(k) == "CurrentTerm" && l.live.Load() {
		// The library would panic and take the node with it, which is of use
		// without the log, too. Its goroutine ends instead, which holds no
		// lock here; the store stops the rest of it (Store.endLoop).
		runtime.Goexit()
	}
	return err
}

func (l *logStore) GetUint64(k []byte) (v uint64, err error) {
	err = guard(l.path, func() error { v, err = l.bolt.GetUint64(k); return err })
	return v, l.checkKey(err)
}

// checkKey knows how a key is missed: the library compares the text.
func (l *logStore) checkKey(err error) error {
	if errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return err
	}
	return l.check(err)
}

func (l *logStore) sinceSnapshot() int64 { return l.stored.Load() - l.base.Load() }

func (l *logStore) fileBytes() int64 {
	st, err := os.Stat(l.path)
	if err != nil {
		return 0
	}
	return st.Size()
}

func (l *logStore) close() error {
	l.closing.Store(true)
	return l.bolt.Close()
}

// A shot is what is known of the last snapshot.
type shot struct {
	index, config uint64
	size          int64
	at            time.Time // zero: there is none
	took          time.Duration
}

// snapshots are the files of the library. What is around them notices damage
// before the library passes it over, and counts.
type snapshots struct {
	*raft.FileSnapshotStore
	dir  string
	done func(shot shot, stored int64, err error)
	log  *logStore // nil: nobody counts

	newest atomic.Pointer[shot]
}

// openSnapshots checks what is there: the library would take an older snapshot
// for one that it cannot read, and the log between them may be gone.
func openSnapshots(dir string, clean bool, logger hclog.Logger) (*snapshots, error) {
	files, err := raft.NewFileSnapshotStoreWithLogger(dir, keepShots, logger)
	if err != nil {
		return nil, fmt.Errorf("the snapshots in %s: %w", dir, err)
	}
	s := &snapshots{FileSnapshotStore: files, dir: filepath.Join(dir, snapshotDir)}
	s.newest.Store(&shot{})
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("the snapshots in %s: %w", dir, err)
	}
	metas, err := files.List()
	if err != nil {
		return nil, fmt.Errorf("the snapshots in %s: %w", dir, err)
	}
	known := map[string]bool{}
	for _, m := range metas {
		known[m.ID] = true
	}
	for _, e := range entries {
		switch path := filepath.Join(s.dir, e.Name()); {
		case !e.IsDir() || known[e.Name()]:
		case strings.HasSuffix(e.Name(), ".tmp"):
			if !clean {
				continue
			}
			// Of a process that ended meanwhile: the library never looks at it again.
			if err := os.RemoveAll(path); err != nil {
				return nil, fmt.Errorf("the unfinished snapshot %s: %w", path, err)
			}
		case len(metas) < keepShots:
			return nil, fmt.Errorf("%w: the snapshot %s cannot be read", ErrCorrupt, path)
		}
	}
	if len(metas) == 0 {
		return s, nil
	}
	m := metas[0]
	_, r, err := files.Open(m.ID)
	if err == nil {
		_, err = CheckSnapshot(r)
		err = errors.Join(err, r.Close())
	}
	if errors.Is(err, ErrNewer) {
		return nil, fmt.Errorf("%w: snapshot %s: %w", ErrNewerLog, m.ID, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the snapshot %s: %w", ErrCorrupt, filepath.Join(s.dir, m.ID), err)
	}
	s.newest.Store(&shot{index: m.Index, config: m.ConfigurationIndex, size: m.Size, at: madeAt(m.ID)})
	return s, nil
}

// madeAt reads the time from the name that the library gives a snapshot:
// term-index-milliseconds.
func madeAt(id string) time.Time {
	ms, err := strconv.ParseInt(id[strings.LastIndexByte(id, '-')+1:], 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

func (s *snapshots) last() shot { return *s.newest.Load() }

// discard removes snapshots that have come from another node and cannot be read:
// with them, this node would not start again.
func (s *snapshots) discard() {
	metas, err := s.List()
	if err != nil {
		return
	}
	newest := shot{}
	for _, m := range slices.Backward(metas) { // from the oldest on
		_, r, err := s.Open(m.ID)
		if err == nil {
			_, err = CheckSnapshot(r)
			_ = r.Close()
		}
		if errors.Is(err, ErrDamaged) || errors.Is(err, ErrNewer) {
			_ = os.RemoveAll(filepath.Join(s.dir, m.ID)) // if it stays, the next start says so
			continue
		}
		newest = shot{index: m.Index, config: m.ConfigurationIndex, size: m.Size, at: madeAt(m.ID)}
	}
	s.newest.Store(&newest)
}

// Create begins a snapshot, of this node's tables or one that is received.
func (s *snapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, at uint64, t raft.Transport) (raft.SnapshotSink, error) {
	begin := time.Now()
	var stored int64
	if s.log != nil {
		stored = s.log.stored.Load()
	}
	sink, err := s.FileSnapshotStore.Create(version, index, term, c, at, t)
	if err != nil {
		s.done(shot{}, 0, err)
		return nil, err
	}
	return &counted{SnapshotSink: sink, store: s, begin: begin, stored: stored, shot: shot{index: index, config: at}}, nil
}

type counted struct {
	raft.SnapshotSink
	store  *snapshots
	shot   shot
	begin  time.Time
	stored int64
	ended  bool
}

func (c *counted) Write(b []byte) (int, error) {
	if c.shot.size == 0 && !bytes.HasPrefix([]byte(snapshotMagic), b[:min(len(b), len(snapshotMagic))]) {
		return 0, fmt.Errorf("%w: it does not begin like one", ErrDamaged)
	}
	n, err := c.SnapshotSink.Write(b)
	c.shot.size += int64(n)
	return n, err
}

func (c *counted) Close() error {
	err := c.SnapshotSink.Close()
	c.end(err)
	return err
}

func (c *counted) Cancel() error {
	err := c.SnapshotSink.Cancel()
	c.end(errors.Join(errors.New("cancelled"), err))
	return err
}

// end counts once: the library cancels what failed to close.
func (c *counted) end(err error) {
	if c.ended {
		return
	}
	c.ended = true
	c.shot.at = time.Now()
	c.shot.took = c.shot.at.Sub(c.begin)
	if err == nil {
		made := c.shot
		c.store.newest.Store(&made)
	}
	c.store.done(c.shot, c.stored, err)
}
