package raftstore

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/starling-registry/starling/pkg/registry"
	pb "github.com/starling-registry/starling/proto"
)

// A Projection shows the tables to readers.
type Projection interface {
	// Commit is called on the goroutine that applies the log, in its order,
	// with each service at most once; while a store is opened, on that of
	// Open. It must not block. What it is given is not changed any more.
	Commit([]registry.Change)
}

// maxAhead is how far the clock of this node follows the stamps of the log
// beyond the clock of the machine. They are kept as they are all the same: what
// the tables hold must not depend on who applies.
const maxAhead = 24 * time.Hour

// An fsm applies the log of the cluster to the tables of this node. It is a
// [raft.BatchingFSM]; raft calls it on one goroutine.
type fsm struct {
	projection Projection
	clock      *registry.Clock
	log        *zap.Logger
	switched   func(table map[string]string, set []string) // [Options.Switched], or nil
	damaged    func()                                      // Restore could not read what it was given; nil: nobody cares
	warned     time.Time                                   // of raft's goroutine
	shown      atomic.Uint64                               // index of the last command that readers see the effects of
	moved      chan struct{}                               // one token: shown has grown

	// order is held while entries are carried out and shown: the library does
	// that on one goroutine, and carryAhead on another.
	order sync.Mutex
	seen  uint64 // newest entry that the library has handed over since the start, or since the snapshot
	ahead uint64 // entries up to this one were carried out before the library did; 0: none

	mu     sync.RWMutex
	tables *tables // changed by raft's goroutine only, which needs no lock to read them

	shownMu sync.Mutex
	waiting []waiting // for shown to grow
}

func newFSM(p Projection, clock *registry.Clock, log *zap.Logger) *fsm {
	return &fsm{projection: p, clock: clock, log: log, moved: make(chan struct{}, 1), tables: newTables()}
}

// Apply returns a *pb.Result.
func (f *fsm) Apply(l *raft.Log) any { return f.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch returns a *pb.Result for each command, nil for other entries.
func (f *fsm) ApplyBatch(logs []*raft.Log) []any {
	f.order.Lock()
	defer f.order.Unlock()
	results := make([]any, len(logs))
	skip := 0
	for skip < len(logs) && logs[skip].Index <= f.ahead { // nobody waits for their results
		skip++
	}
	for _, l := range logs {
		f.seen = l.Index
	}
	f.carryOut(logs[skip:], results[skip:])
	return results
}

// carryOut is called with order held.
func (f *fsm) carryOut(logs []*raft.Log, results []any) {
	if len(logs) == 0 {
		return
	}
	var b batch
	f.mu.Lock()
	for n, l := range logs {
		if l.Type == raft.LogCommand {
			results[n] = f.applyLocked(l, &b)
		}
	}
	newest, index := f.tables.newest, f.tables.index
	f.mu.Unlock()
	if len(b.switched) > 0 {
		f.tellSwitches(b.switched)
	}
	f.show(newest, index, b.changes)
}

// carryAhead carries out entries behind a snapshot that are known to be
// committed, though the library does not know it before there is a leader. When
// it comes to them they are passed over.
func (f *fsm) carryAhead(snapshot, committed uint64, read func(uint64, *raft.Log) error) error {
	f.order.Lock()
	defer f.order.Unlock()
	const most = 512
	next := max(snapshot, f.seen, f.ahead) + 1
	for next <= committed {
		logs := make([]*raft.Log, 0, most)
		for ; next <= committed && len(logs) < most; next++ {
			l := new(raft.Log)
			if err := read(next, l); err != nil {
				return err
			}
			logs = append(logs, l)
		}
		f.carryOut(logs, make([]any, len(logs)))
		f.ahead = logs[len(logs)-1].Index
	}
	return nil
}

// show comes after the lock, and before anybody hears of a result: who has
// written reads what he wrote.
func (f *fsm) show(newest registry.Stamp, index uint64, changes []registry.Change) {
	most := registry.StampAt(f.clock.Wall() + maxAhead.Milliseconds())
	if newest > most {
		f.warn("the log is ahead of the clock by more than a day", zap.Time("log", newest.Time()))
	}
	f.clock.Adopt(min(newest, most)) // what is written here from now on is newer
	if len(changes) > 0 {
		f.projection.Commit(changes)
	}
	f.shownMu.Lock()
	f.shown.Store(index)
	f.waiting = slices.DeleteFunc(f.waiting, func(w waiting) bool {
		if w.index <= index {
			close(w.shown)
		}
		return w.index <= index
	})
	f.shownMu.Unlock()
	select {
	case f.moved <- struct{}{}:
	default: // it is known that there is something
	}
}

// A waiting waits for what was applied up to a position to be shown.
type waiting struct {
	index uint64
	shown chan struct{}
}

// awaitShown returns when readers see what was applied up to a position, or
// with ctx.
func (f *fsm) awaitShown(ctx context.Context, index uint64) bool {
	w := waiting{index, make(chan struct{})}
	f.shownMu.Lock()
	if f.shown.Load() >= index {
		f.shownMu.Unlock()
		return true
	}
	f.waiting = append(f.waiting, w)
	f.shownMu.Unlock()
	select {
	case <-w.shown:
		return true
	case <-ctx.Done():
	}
	f.shownMu.Lock()
	defer f.shownMu.Unlock()
	f.waiting = slices.DeleteFunc(f.waiting, func(o waiting) bool { return o == w })
	return false
}

// warn speaks once a minute: the log may be full of what this release cannot
// read.
func (f *fsm) warn(what string, fields ...zap.Field) {
	if now := time.Now(); now.Sub(f.warned) >= time.Minute {
		f.warned = now
		f.log.Warn(what, fields...)
	}
}

var errNoID = errors.New("a command needs an id of 16 bytes and a clock")

func (f *fsm) applyLocked(l *raft.Log, b *batch) *pb.Result {
	t := f.tables
	// Positions grow even if a backup of a longer log was restored: revisions
	// of edits are compared.
	t.index = max(l.Index, t.index+1)
	var cmd pb.Command
	r := &pb.Result{}
	switch err := proto.Unmarshal(l.Data, &cmd); {
	case err != nil:
		f.warn("entry of the log cannot be read, it is left out", zap.Uint64("index", l.Index), zap.Error(err))
		r = invalid(err)
	case cmd.GetVersion() > CommandVersion:
		f.warn("entry of the log is of a newer release, it is left out", zap.Uint64("index", l.Index), zap.Uint32("version", cmd.GetVersion()))
		r = refuse(pb.Result_NOT_UNDERSTOOD, "command of version %d, this release knows %d", cmd.GetVersion(), CommandVersion)
	case len(cmd.GetId()) != len(commandID{}) || cmd.GetClock() == 0:
		r = invalid(errNoID)
	default:
		id := commandID(cmd.GetId())
		if again := t.done.find(id); again != nil {
			return again
		}
		t.newest = max(t.newest, registry.Stamp(cmd.GetClock()))
		if refused := t.carryOut(&cmd, b); refused != nil {
			r = refused
		}
		t.keep(doneRow{id: id, code: r.GetCode(), index: t.index, text: r.GetText()})
	}
	r.Index = t.index
	return r
}

// Snapshot returns quickly: Persist runs beside what is applied from now on.
//
// The library labels a snapshot with the entry that it has come to. One that
// holds more would have these carried out twice after a restart.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	f.order.Lock()
	defer f.order.Unlock()
	if f.ahead > f.seen {
		return nil, raft.ErrNothingNewToSnapshot
	}
	return f.freeze(), nil
}

func (f *fsm) freeze() *frozen {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.tables.freeze()
}

// Restore replaces the tables, and tells what differs. A snapshot that cannot
// be read to its end changes nothing.
func (f *fsm) Restore(r io.ReadCloser) error {
	next, err := readTables(r)
	if err != nil {
		if f.damaged != nil {
			f.damaged()
		}
		return err
	}
	f.order.Lock()
	defer f.order.Unlock()
	f.seen, f.ahead = 0, 0
	changes := difference(f.tables, next)
	f.mu.Lock()
	f.tables = next
	f.mu.Unlock()
	f.tellSwitches(nil)
	f.show(next.newest, next.index, changes)
	return nil
}

// tellSwitches is called with order held, on the goroutine that changes the
// tables.
func (f *fsm) tellSwitches(set []string) {
	if f.switched != nil {
		f.switched(maps.Clone(f.tables.switches), set)
	}
}

// digest tells of all rows, up to the last command that was applied. Two nodes
// with the same index have the same sum.
func (f *fsm) digest() (index, sum uint64) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.tables.index, f.tables.sum
}

// rows counts the rows by kind, but for the results of commands.
func (f *fsm) rows() map[string]int {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.tables.rows()
}

// empty reports whether nothing is kept but results of commands.
func (f *fsm) empty() bool {
	for _, n := range f.rows() {
		if n > 0 {
			return false
		}
	}
	return true
}

// backup writes the tables as they are now, as a snapshot.
func (f *fsm) backup(w io.Writer) error { return f.freeze().write(w) }
