package raftstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"
)

// Backup writes all tables, as they are at one moment after the call, in the
// format of snapshots. Only the leader does, because only it knows what was
// written.
func (s *Store) Backup(ctx context.Context, w io.Writer) error {
	if err := s.mustLead(); err != nil {
		return err
	}
	_, err := answer(ctx, s, func() (struct{}, error) { return struct{}{}, s.raft.Barrier(enqueueTime).Error() })
	if errors.Is(err, raft.ErrNotLeader) || errors.Is(err, raft.ErrLeadershipLost) {
		return &NotLeader{Leader: s.whoLeads()}
	}
	if err != nil {
		return fmt.Errorf("raftstore: backup: %w", err)
	}
	if err := s.fsm.backup(&bounded{ctx: ctx, to: w}); err != nil {
		return fmt.Errorf("raftstore: backup: %w", err)
	}
	return nil
}

// A bounded writer ends with a context.
type bounded struct {
	ctx context.Context
	to  io.Writer
	n   int64
	err error
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.ctx.Err() != nil {
		b.err = context.Cause(b.ctx)
		return 0, b.err
	}
	n, err := b.to.Write(p)
	b.n += int64(n)
	b.err = err
	return n, err
}

// Restore replaces the tables of the whole cluster by those of a backup. It is
// refused where there is something already, unless forced. The nodes and their
// votes stay as they are.
func (s *Store) Restore(ctx context.Context, r io.Reader, force bool) error {
	if err := s.mustLead(); err != nil {
		return err
	}
	if !force && !s.fsm.empty() {
		return fmt.Errorf("restore: %w: the cluster has data, which would be lost", ErrNotEmpty)
	}
	// The library wants to know the size, and panics if the tables do not take
	// what they are given: so it is looked at first, from its beginning to its
	// end, while it comes in: what is none does not fill the disk.
	path := filepath.Join(s.opts.Dir, "restore.tmp")
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("raftstore: restore: %w", explain(path, err))
	}
	defer os.Remove(path)
	defer f.Close()
	disk := &bounded{ctx: ctx, to: f}
	info, err := CheckSnapshot(io.TeeReader(r, disk))
	if disk.err != nil {
		err = explain(path, disk.err)
	}
	if err != nil {
		return fmt.Errorf("raftstore: restore: %w", err)
	}
	size := disk.n
	select {
	case s.changing <- struct{}{}:
		defer func() { <-s.changing }()
	case <-ctx.Done():
		return fmt.Errorf("raftstore: restore: %w", context.Cause(ctx))
	}
	if !force && !s.fsm.empty() {
		return fmt.Errorf("restore: %w: the cluster has data, which would be lost", ErrNotEmpty)
	}
	for {
		if _, err = f.Seek(0, io.SeekStart); err != nil {
			return fmt.Errorf("raftstore: restore: %w", err)
		}
		_, err = answer(ctx, s, func() (struct{}, error) {
			return struct{}{}, s.raft.Restore(&raft.SnapshotMeta{Version: raft.SnapshotVersionMax, Size: size}, io.NopCloser(f), 0)
		})
		// A change of the configuration may not have been committed yet.
		if err == nil || !s.Leads() || s.raft.CommitIndex() >= s.raft.LastIndex() {
			break
		}
		select {
		case <-time.After(soon):
			continue
		case <-ctx.Done():
		}
		break
	}
	if errors.Is(err, raft.ErrNotLeader) {
		return &NotLeader{Leader: s.whoLeads()}
	}
	if err != nil {
		return fmt.Errorf("raftstore: restore: %w", err)
	}
	s.zap.Warn("a backup was restored", zap.Any("rows", info.Rows))
	return nil
}

// snapshotLoop asks for a snapshot when the log has grown by bytes; the library
// does by the number of entries.
func (s *Store) snapshotLoop() {
	ticker := time.NewTicker(s.opts.SnapshotEvery)
	defer ticker.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-ticker.C:
		case <-s.log.grown:
		}
		last := s.snaps.last()
		since := s.log.sinceSnapshot()
		if since < max(s.opts.SnapshotBytes, last.size) {
			continue
		}
		// What stays in the log for those that are behind must not be more
		// than that, either.
		if entries := s.raft.LastIndex() - last.index; entries > 0 {
			c := s.raft.ReloadableConfig()
			c.TrailingLogs = min(s.opts.TrailingEntries, max(1, uint64(s.opts.SnapshotBytes)/max(1, uint64(since)/entries)))
			if err := s.raft.ReloadConfig(c); err != nil {
				s.zap.Warn("cannot set how much stays in the log", zap.Error(err))
			}
		}
		// It says itself what goes wrong.
		_, _ = answer(s.ctx, s, func() (struct{}, error) { return struct{}{}, s.raft.Snapshot().Error() })
	}
}

func (s *Store) snapshotDone(made shot, stored int64, err error) {
	if err != nil {
		s.metrics.snapshotFailures.Inc()
		return
	}
	s.log.base.Store(stored)
	s.metrics.snapshots.Inc()
	s.metrics.snapshotSeconds.Observe(made.took.Seconds())
}
