package distro

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/registry"
	pb "github.com/starling-registry/starling/proto"
)

// What can be wrong with a snapshot.
var (
	ErrSnapshot        = errors.New("registry snapshot is damaged")
	ErrSnapshotVersion = errors.New("registry snapshot is of another version")
	ErrSnapshotOld     = errors.New("registry snapshot is too old")
)

// A snapshot is: magic, version, when it was made; then messages, each after
// its length, as they travel between nodes: Heads with all lives, and of each
// life a whole Frame in parts; then a length of 0 and the xxHash64 of all
// before it.
const (
	snapshotMagic   = "starling"
	snapshotVersion = 1
)

func (d *Replicator) snapshotLoop(ctx context.Context) {
	ticker := time.NewTicker(d.opts.SnapshotEvery)
	defer ticker.Stop()
	saved := uint64(0)
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		d.mu.Lock()
		changes := d.changes
		d.mu.Unlock()
		if changes != saved && d.save() {
			saved = changes
		}
	}
}

// save writes a snapshot. A node that has never been ready does not: it would
// replace a good one by a part.
func (d *Replicator) save() bool {
	d.mu.Lock()
	if !d.served {
		d.mu.Unlock()
		return false
	}
	hs := &pb.Heads{Life: lifeMessage(d.self), Clock: uint64(d.opts.Clock.Now()), Full: true}
	ids := slices.Collect(maps.Keys(d.lives))
	d.mu.Unlock()
	var cuts []cut
	for _, id := range ids { // one after the other: a large life takes its time
		d.mu.Lock()
		if l := d.lives[id]; l != nil {
			hs.Heads = append(hs.Heads, l.head())
			cuts = append(cuts, l.cut(0))
		}
		d.mu.Unlock()
	}
	err := d.opts.Save(func(w io.Writer) error { return writeSnapshot(w, hs, cuts) })
	if err != nil {
		d.metrics.snapshotsFailed.Inc()
		d.log.Error("snapshot of the registry was not written", zap.Error(err))
		return false
	}
	d.metrics.snapshots.Inc()
	return true
}

func writeSnapshot(w io.Writer, hs *pb.Heads, cuts []cut) error {
	buffered := bufio.NewWriterSize(w, 1<<16)
	sum := xxhash.New()
	out := io.MultiWriter(buffered, sum)
	head := binary.LittleEndian.AppendUint32([]byte(snapshotMagic), snapshotVersion)
	if _, err := out.Write(binary.LittleEndian.AppendUint64(head, uint64(registry.Stamp(hs.GetClock()).Millis()))); err != nil {
		return err
	}
	message := func(b []byte) error {
		if _, err := out.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(b)))); err != nil {
			return err
		}
		_, err := out.Write(b)
		return err
	}
	if err := message(encodeHeads(hs)); err != nil {
		return err
	}
	for _, c := range cuts {
		if err := c.parts(1, message); err != nil {
			return err
		}
	}
	if _, err := out.Write(make([]byte, 4)); err != nil {
		return err
	}
	if _, err := buffered.Write(binary.LittleEndian.AppendUint64(nil, sum.Sum64())); err != nil {
		return err
	}
	return buffered.Flush()
}

// A loaded life is a life of a snapshot and what the registry has to be told.
type loaded struct {
	*life
	news []decoded
}

// readSnapshot returns nothing unless all of it is right. now is in
// milliseconds.
func readSnapshot(r io.Reader, now int64, maxAge time.Duration) ([]loaded, error) {
	sum := xxhash.New()
	in := io.TeeReader(bufio.NewReaderSize(r, 1<<16), sum)
	head := make([]byte, len(snapshotMagic)+12)
	if _, err := io.ReadFull(in, head); err != nil || string(head[:len(snapshotMagic)]) != snapshotMagic {
		return nil, fmt.Errorf("%w: no snapshot", ErrSnapshot)
	}
	if v := binary.LittleEndian.Uint32(head[len(snapshotMagic):]); v != snapshotVersion {
		return nil, fmt.Errorf("%w: %d", ErrSnapshotVersion, v)
	}
	if age := now - int64(binary.LittleEndian.Uint64(head[len(snapshotMagic)+4:])); age > maxAge.Milliseconds() || age < -maxAge.Milliseconds() {
		return nil, fmt.Errorf("%w: %v", ErrSnapshotOld, time.Duration(age)*time.Millisecond)
	}
	lives := map[registry.Life]*loaded{}
	var order []*loaded
	parts := map[registry.Life]*staged{}
	for first := true; ; first = false {
		var size [4]byte
		if _, err := io.ReadFull(in, size[:]); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrSnapshot, err)
		}
		n := binary.LittleEndian.Uint32(size[:])
		if n == 0 {
			break
		}
		if n > maxMessage {
			return nil, fmt.Errorf("%w: message of %d bytes", ErrSnapshot, n)
		}
		b := make([]byte, n)
		if _, err := io.ReadFull(in, b); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrSnapshot, err)
		}
		m, err := readMessage(b)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%w: %w", ErrSnapshot, err)
		case first != (m.GetHeads() != nil):
			return nil, fmt.Errorf("%w: heads are not at its beginning", ErrSnapshot)
		case first:
			for _, h := range m.GetHeads().GetHeads() {
				l := newLife(readLife(h.GetLife()))
				if !validLife(l.id) || registry.LifeState(h.GetState()) > registry.Dropped {
					return nil, fmt.Errorf("%w: head of %v", ErrSnapshot, l.id)
				}
				l.state, l.ownerClock, l.ownerVersion = registry.LifeState(h.GetState()), registry.Stamp(h.GetOwnerClock()), h.GetOwnerVersion()
				l.dropped, l.back, l.deadline = registry.Stamp(h.GetDropped()), registry.Stamp(h.GetBack()), h.GetDeadline()
				ld := &loaded{life: l}
				lives[l.id] = ld
				order = append(order, ld)
			}
		case m.GetFrame() != nil:
			if err := readSnapshotPart(m.GetFrame(), lives, parts); err != nil {
				return nil, fmt.Errorf("%w: %w", ErrSnapshot, err)
			}
		}
	}
	want := sum.Sum64()
	var tail [8]byte
	if _, err := io.ReadFull(in, tail[:]); err != nil || binary.LittleEndian.Uint64(tail[:]) != want || len(parts) > 0 {
		return nil, fmt.Errorf("%w: its checksum does not match", ErrSnapshot)
	}
	out := make([]loaded, len(order))
	for n, l := range order {
		out[n] = *l
	}
	return out, nil
}

func readSnapshotPart(m *pb.Frame, lives map[registry.Life]*loaded, parts map[registry.Life]*staged) error {
	f, err := readFrame(m)
	if err != nil {
		return err
	}
	l := lives[f.life]
	if l == nil {
		return fmt.Errorf("%w: of %v, which has no head", ErrFrame, f.life)
	}
	if m.GetParts() > 1 {
		s := parts[f.life]
		if s == nil {
			s = newStaged(m.GetTransfer(), int(m.GetParts()))
			parts[f.life] = s
		}
		if f, err = s.add(f, int(m.GetPart())); f == nil {
			return err
		}
		delete(parts, f.life)
	}
	l.news, _, _ = l.merge(f)
	return nil
}

// load serves the lives of the last snapshot as orphans with a lease of their
// own, so that early clients get the old list instead of a part of it. A ready
// peer's knowledge replaces them.
func (d *Replicator) load() {
	if d.opts.Load == nil {
		return
	}
	lives, err := d.readSnapshotFile()
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			d.metrics.snapshotsFailed.Inc()
			d.log.Warn("starting without the snapshot of the registry", zap.Error(err))
		}
		return
	}
	d.mu.Lock()
	for _, ld := range lives {
		l := ld.life
		if l.id.Node == d.self.Node && l.id.Epoch >= d.self.Epoch {
			continue
		}
		if newest := max(l.maxRecord, l.ownerClock); newest.Millis()-d.opts.Clock.Wall() < d.opts.MaxClockOff.Milliseconds() {
			d.followLocked(newest)
		}
		l.shown = l.applied // before the replicator runs
		d.lives[l.id] = l
		d.epochs[l.id.Node] = max(d.epochs[l.id.Node], l.id.Epoch)
		if l.state != registry.Dropped {
			l.orphanedAt, l.silent = d.opts.Clock.Now(), false
			l.deadline, l.restart = d.now()+d.opts.Leases.Restart.Milliseconds(), true
			d.setStateLocked(l, registry.Orphaned, 0)
		} else {
			d.setStateLocked(l, registry.Dropped, 0)
		}
		if call := registryCall(l.id, ld.news, nil, l.maxRecord); call != nil {
			d.tellLocked(l.id, call)
		}
	}
	d.mu.Unlock()
	d.carryAll()
	d.log.Info("lives of the last snapshot are served", zap.Int("lives", len(lives)))
}

func (d *Replicator) readSnapshotFile() ([]loaded, error) {
	r, err := d.opts.Load()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return readSnapshot(r, d.now(), d.opts.SnapshotAge)
}
