package raftstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/registry"
)

// closeTime is how long Close waits for the library, once nothing can be under
// way but calls of the disk.
const closeTime = 10 * time.Second

// A Store is this node's part of the group.
type Store struct {
	opts    Options
	zap     *zap.Logger
	clock   *registry.Clock
	fsm     *fsm
	metrics *metrics

	// Set by Open, in this order; nothing runs before all are there.
	log       *logStore
	snaps     *snapshots
	layer     *layer
	transport *transport
	raft      *raft.Raft
	observer  *raft.Observer
	stop      func() raft.Future // shuts raft down, once
	opened    time.Time

	ctx    context.Context // ends with Close and with a failure
	cancel context.CancelFunc
	goes   sync.WaitGroup
	wake   chan struct{} // of reconcile
	doubt  atomic.Bool   // whether the generation of this node is still that of the others

	generation atomic.Uint64 // see newGeneration
	adopting   sync.Mutex    // held while the files of the generation are written
	ended      atomic.Pointer[ending]
	endedCh    chan struct{}          // closed when ended is set
	hint       atomic.Pointer[string] // who leads, as others say while the library does not know
	ready      atomic.Bool            // readiness has been reported; it is not taken back
	settled    atomic.Uint64          // newest term in which this node leads and has applied all that was there
	caughtUp   atomic.Bool
	keptCommit uint64                 // of commitLoop, then of Close
	unready    atomic.Pointer[string] // why

	// changing serializes changes of the configuration, and Restore.
	changing chan struct{}

	leaderMu           sync.Mutex
	leader, lastLeader string          // as the library last said; the last one that was somebody
	reign              context.Context // ends when leader changes, or s.ctx does
	endReign           context.CancelFunc

	// writes are calls of the library that must be answered before it is shut
	// down: it forgets some of them then.
	mu      sync.Mutex
	closing bool
	writes  sync.WaitGroup // added to with mu held while not closing
	closed  chan struct{}  // closed when Close is done; nil: not called
	lastErr error          // of Close
}

// Open replays what is in the directory and takes part in the group from then
// on. It changes nothing in a directory that it cannot read as what it is;
// errors are [ErrLocked], [ErrCorrupt], [ErrDiskFull], [ErrNewerLog], or
// something of the file system.
func Open(o Options) (_ *Store, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	s := &Store{
		opts: o, zap: o.Logger, clock: o.Clock, opened: time.Now(),
		wake: make(chan struct{}, 1), changing: make(chan struct{}, 1), endedCh: make(chan struct{}),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.reign, s.endReign = context.WithCancel(s.ctx)
	s.unready.Store(new("it has only just started"))
	s.hint.Store(new(""))
	s.fsm = newFSM(o.Projection, o.Clock, o.Logger)
	s.fsm.switched = o.Switched
	s.fsm.damaged = func() {
		if s.log.live.Load() { // else it was there before: nothing is skipped
			s.snaps.discard()
		}
	}
	undo := []func(){s.cancel}
	defer func() {
		if err != nil {
			for _, f := range slices.Backward(undo) {
				f()
			}
			err = fmt.Errorf("raftstore: %w", err)
		}
	}()

	if err := makeDir(o.Dir, o.Logger); err != nil {
		return nil, err
	}
	generation, of, err := readHistory(o.Dir)
	if err != nil {
		return nil, err
	}
	// The generations of two clusters say nothing of each other: the nodes of
	// the one would give up their log for that of the other.
	switch cluster := o.ClusterID(); {
	case generation == 0 || cluster == of:
	case of != "":
		return nil, fmt.Errorf("%w: %s is of cluster %s, this node belongs to %q", ErrOtherCluster, o.Dir, of, cluster)
	default: // it was not known when the log began
		if err := writeGeneration(o.Dir, generation, cluster); err != nil {
			return nil, err
		}
	}
	s.generation.Store(generation)
	if err := checkSpace(o.Dir); err != nil {
		return nil, err
	}

	bridge := newBridge(o.Logger)
	if s.snaps, err = openSnapshots(o.Dir, true, bridge); err != nil {
		return nil, advise(err)
	}
	path := filepath.Join(o.Dir, logFile)
	if st, err := os.Stat(path); generation != 0 && (errors.Is(err, os.ErrNotExist) || err == nil && st.Size() == 0) {
		// The file is there before the node is in a group. Without it the node
		// would not know what it has promised.
		return nil, advise(fmt.Errorf("%w: %s is missing or empty", ErrCorrupt, path))
	}
	at, err := checkLog(path, s.snaps.last().index)
	if err != nil {
		return nil, advise(err)
	}
	if generation == 0 && (at.last > 0 || s.snaps.last().index > 0) {
		return nil, advise(fmt.Errorf("%w: %s holds a log and no file %s", ErrCorrupt, o.Dir, generationFile))
	}
	if s.log, err = openLog(path, o.NoSync, o.SnapshotBytes, s.fail); err != nil {
		return nil, err
	}
	undo = append(undo, func() { _ = s.log.close() })
	s.snaps.log, s.snaps.done = s.log, s.snapshotDone

	s.layer = &layer{
		id: o.ID, listener: o.Listener, dial: o.Dial,
		own: func() hello {
			return hello{reason: helloOK, generation: s.generation.Load(), cluster: o.ClusterID(), from: o.ID}
		},
		adopt: s.adopt, saw: s.heardGeneration, log: o.Logger, said: bridge.said, timeout: o.Timeout, broken: func() { s.metrics.implausible.Inc() },
		members: func() int { return len(o.Members()) },
		refused: func(reason string) { s.metrics.refused[reason].Inc() },
	}

	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(o.ID)
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = o.Heartbeat, o.Election, o.Lease
	c.MaxAppendEntries = 512
	c.BatchApplyCh = true
	c.SnapshotInterval, c.SnapshotThreshold, c.TrailingLogs = o.SnapshotEvery, o.SnapshotEntries, o.TrailingEntries
	c.ShutdownOnRemove = false
	c.NoLegacyTelemetry = true
	c.Logger = bridge
	cache, err := raft.NewLogCache(512, s.log)
	if err != nil {
		return nil, err
	}
	s.metrics = newMetrics(o.Metrics, s)
	s.layer.start()
	s.transport = newTransport(s.ctx, &raft.NetworkTransportConfig{
		Stream: s.layer, MaxPool: 3, Timeout: o.Timeout, Logger: bridge,
	}, cache, at.last == 0 && s.snaps.last().index == 0, o.Logger, bridge.said, s.metrics.implausible.Inc)
	undo = append(undo, func() {
		s.cancel()
		s.transport.close()
		s.layer.wait()
	})
	// With damage that was not seen before, the library panics.
	if err := guard(path, func() (err error) {
		s.raft, err = raft.NewRaft(c, s.fsm, cache, s.log, s.snaps, s.transport)
		return err
	}); err != nil {
		if e := s.ended.Load(); e != nil {
			err = e.err // the library's has only the text
		}
		return nil, advise(err)
	}
	s.transport.own.Store(s.raft)
	s.log.live.Store(true)
	s.observer = raft.NewObserver(nil, false, s.observe)
	s.raft.RegisterObserver(s.observer)
	s.stop = sync.OnceValue(func() raft.Future {
		s.log.closing.Store(true)
		f := s.raft.Shutdown()
		_ = s.layer.Close() // what waits for another node fails now
		return f
	})
	s.goes.Go(s.endLoop)
	s.goes.Go(s.reconcileLoop)
	s.goes.Go(s.snapshotLoop)
	s.goes.Go(s.tellLoop)
	s.goes.Go(s.commitLoop)
	return s, nil
}

// advise adds to the error of a damaged log what can be done.
func advise(err error) error {
	if !errors.Is(err, ErrCorrupt) || strings.Contains(err.Error(), "move") {
		return err
	}
	return fmt.Errorf("%w (if other nodes have the data, move the whole data directory away, not only its part raft, and start again: a new node then gets it from them; else restore a backup)", err)
}

// makeDir makes the directory, and moves one away that does not count any more.
func makeDir(dir string, log *zap.Logger) error {
	if _, err := os.Lstat(filepath.Join(dir, discardFile)); err == nil {
		generation, err := readGeneration(dir)
		if err != nil {
			return err
		}
		old, err := filepath.Glob(dir + ".old-*")
		if err != nil {
			return err
		}
		for _, o := range old {
			if err := os.RemoveAll(o); err != nil {
				return fmt.Errorf("cannot make room for a log that is no longer valid: %w", err)
			}
		}
		to := fmt.Sprintf("%s.old-%d", dir, generation>>generationShift)
		if err := os.Rename(dir, to); err != nil {
			return fmt.Errorf("cannot move a log away that is no longer valid: %w", err)
		}
		log.Warn("the cluster was recovered without this node: its old log was moved away", zap.String("to", to))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return explain(dir, err)
	}
	return syncDir(filepath.Dir(dir))
}

// Bootstrap makes the first configuration, if there is no log yet; voters must
// include this node. Only the node may call it that makes the cluster, at each
// start: two configurations that were made independently are two groups.
func (s *Store) Bootstrap(voters []string) error {
	marker := filepath.Join(s.opts.Dir, bootstrapFile)
	if s.generation.Load() != 0 {
		if _, err := os.Lstat(marker); err != nil {
			return nil // it was done, or this node has joined
		}
	}
	if !slices.Contains(voters, s.opts.ID) {
		return fmt.Errorf("raftstore: bootstrap without this node among %v", voters)
	}
	var c raft.Configuration
	for _, id := range slices.Compact(slices.Sorted(slices.Values(voters))) {
		c.Servers = append(c.Servers, raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(id), Address: raft.ServerAddress(id)})
	}
	// First the generation, without which nobody talks to this node. The
	// marker says that an empty log with a generation is not a lost one.
	if err := writeFile(s.opts.Dir, bootstrapFile, ""); err != nil {
		return fmt.Errorf("raftstore: bootstrap: %w", err)
	}
	if s.adopt(newGeneration(0)) == 0 {
		return errors.New("raftstore: bootstrap: cannot write the generation")
	}
	if err := s.raft.BootstrapCluster(c).Error(); err != nil && !errors.Is(err, raft.ErrCantBootstrap) {
		return fmt.Errorf("raftstore: bootstrap: %w", err)
	}
	if err := errors.Join(os.Remove(marker), syncDir(s.opts.Dir)); err != nil {
		return fmt.Errorf("raftstore: bootstrap: %w", err)
	}
	s.transport.vote()
	if len(c.Servers) == 1 {
		s.caughtUp.Store(true)
		s.ready.Store(true)
	}
	s.Changed()
	return nil
}

// Close leaves the group, in which this node stays. ctx bounds the wait for
// writes that are under way.
func (s *Store) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closed != nil {
		s.mu.Unlock()
		<-s.closed
		return s.lastErr
	}
	s.closing, s.closed = true, make(chan struct{})
	s.mu.Unlock()
	defer close(s.closed)

	if s.ended.Load() == nil {
		answered := make(chan struct{})
		go func() {
			s.writes.Wait()
			close(answered)
		}()
		select {
		case <-answered:
		case <-ctx.Done():
		}
	}
	s.cancel()
	s.goes.Wait()
	down := make(chan error, 1)
	go func() { down <- s.stop().Error() }()
	select {
	case err := <-down:
		s.lastErr = err
	case <-time.After(closeTime):
		// A disk that hangs holds the library's goroutines, and the file is theirs.
		s.lastErr = errors.New("raftstore: close: the disk does not answer")
		return s.lastErr
	}
	s.raft.DeregisterObserver(s.observer)
	s.transport.close()
	s.layer.wait()
	s.keepCommit()
	s.lastErr = errors.Join(s.lastErr, s.log.close())
	return s.lastErr
}

// An ending is why a store takes no part in the group any more.
type ending struct {
	role string // of Status
	err  error
}

// fail is told that the log cannot be written or read. It may be called on any
// goroutine of the library, so it only marks.
func (s *Store) fail(err error) { s.end(&ending{roleFailed, err}) }

func (s *Store) end(e *ending) {
	if s.ended.CompareAndSwap(nil, e) {
		close(s.endedCh)
	}
}

// endLoop takes a store out of the group that has failed or is superseded. The
// others hear nothing of it any more, and so elect another leader.
func (s *Store) endLoop() {
	select {
	case <-s.endedCh:
	case <-s.ctx.Done():
		return
	}
	e := s.ended.Load()
	s.cancel()
	s.stop()
	if e.role == roleFailed {
		s.zap.Error("the log of the cluster failed; this node takes no part in the group any more", zap.Error(e.err))
		s.opts.Failed(e.err)
		return
	}
	s.zap.Error("the cluster was recovered without this node; its log does not count any more", zap.Error(e.err))
	s.opts.Superseded()
}
