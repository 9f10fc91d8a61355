package raftstore

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/hashicorp/raft"

	"github.com/starling-registry/starling/pkg/registry"
)

// What can be wrong with a snapshot or a backup.
var (
	ErrDamaged = errors.New("snapshot of the log is damaged")
	ErrNewer   = errors.New("snapshot of the log was written by a newer release")
)

// A snapshot, and so a backup, is: magic, version, the index of the last
// command and the newest of their clocks; then rows (proto Row), each after its
// length; then a length of 0, the number of rows, and the xxHash64 of all
// before it. Numbers of fixed size are little-endian, lengths are varints.
//
// Rows are sorted, so that the same tables are the same bytes on every node:
// namespaces, switches, users, roles; services, each with its description, its
// instances and its edits; at last the commands that were done, in the order of
// the log.
const (
	snapshotMagic   = "starling raft\n"
	snapshotVersion = 1
	snapshotHead    = len(snapshotMagic) + 4 + 8 + 8
	maxRow          = 2 * maxDescribed
)

// A frozen is the tables of one moment. Nobody changes what it points to.
type frozen struct {
	services   []*service // in no order
	namespaces map[string]Namespace
	switches   map[string]string
	users      map[string]User
	roles      map[string]Role
	done       []doneRow
	index      uint64
	newest     registry.Stamp
}

// freeze copies pointers and small tables; the services themselves are copied
// when they are changed next.
func (t *tables) freeze() *frozen {
	t.epoch++
	s := &frozen{services: make([]*service, 0, len(t.services)), namespaces: maps.Clone(t.namespaces), switches: maps.Clone(t.switches),
		users: maps.Clone(t.users), roles: maps.Clone(t.roles), index: t.index, newest: t.newest}
	for _, of := range t.services {
		s.services = append(s.services, of)
	}
	s.done = append(slices.Clone(t.done.ring[t.done.next:]), t.done.ring[:t.done.next]...)
	return s
}

// Persist is called once, on a goroutine of raft's.
func (s *frozen) Persist(sink raft.SnapshotSink) error {
	if err := s.write(sink); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

func (s *frozen) Release() {}

// A rowWriter writes the rows of a snapshot and remembers the first error.
type rowWriter struct {
	out  *bufio.Writer
	sum  *xxhash.Digest
	row  []byte
	rows uint64
	err  error
}

func (w *rowWriter) write(b []byte) {
	if w.err == nil {
		w.sum.Write(b) // it never fails
		_, w.err = w.out.Write(b)
	}
}

func (w *rowWriter) add(row []byte) {
	w.row = row
	var length [binary.MaxVarintLen64]byte
	w.write(length[:binary.PutUvarint(length[:], uint64(len(row)))])
	w.write(row)
	w.rows++
}

func (s *frozen) write(to io.Writer) error {
	w := &rowWriter{out: bufio.NewWriterSize(to, 1<<16), sum: xxhash.New()}
	head := binary.LittleEndian.AppendUint32([]byte(snapshotMagic), snapshotVersion)
	head = binary.LittleEndian.AppendUint64(head, s.index)
	w.write(binary.LittleEndian.AppendUint64(head, uint64(s.newest)))
	for _, n := range sorted(s.namespaces) {
		w.add(appendNamespaceRow(w.row[:0], n))
	}
	for _, name := range slices.Sorted(maps.Keys(s.switches)) {
		w.add(appendSwitchRow(w.row[:0], name, s.switches[name]))
	}
	for _, u := range sorted(s.users) {
		w.add(appendUserRow(w.row[:0], u))
	}
	for _, r := range sorted(s.roles) {
		w.add(appendRoleRow(w.row[:0], r))
	}
	slices.SortFunc(s.services, func(a, b *service) int { return a.key.Compare(b.key) })
	for _, of := range s.services {
		if of.meta != nil {
			w.add(appendServiceRow(w.row[:0], of.key, of.meta))
		}
		for _, i := range of.instances {
			w.add(appendInstanceRow(w.row[:0], of.key, &i.Persistent))
		}
		for _, o := range of.overrides {
			w.add(appendOverrideRow(w.row[:0], of.key, o))
		}
	}
	for n := range s.done {
		w.add(appendDoneRow(w.row[:0], &s.done[n]))
	}
	w.write(binary.LittleEndian.AppendUint64([]byte{0}, w.rows))
	w.write(binary.LittleEndian.AppendUint64(nil, w.sum.Sum64()))
	if w.err != nil {
		return w.err
	}
	return w.out.Flush()
}

// A SnapshotInfo is what a snapshot holds.
type SnapshotInfo struct {
	Index uint64         // of the last command in it
	Rows  map[string]int // by kind
}

// CheckSnapshot reads a snapshot or a backup to its end and changes nothing.
func CheckSnapshot(r io.Reader) (SnapshotInfo, error) {
	t, err := readTables(r)
	if err != nil {
		return SnapshotInfo{}, err
	}
	return SnapshotInfo{t.index, t.rows()}, nil
}

// readTables reads all of a snapshot, or nothing.
func readTables(r io.Reader) (*tables, error) {
	in := &rowReader{in: bufio.NewReaderSize(r, 1<<16), sum: xxhash.New()}
	t, err := in.tables()
	switch {
	case err == nil, errors.Is(err, ErrNewer):
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = fmt.Errorf("%w: it ends after %d rows, in the middle", ErrDamaged, in.rows)
	case in.broken:
		err = fmt.Errorf("snapshot of the log, after %d rows: %w", in.rows, err)
	default:
		err = fmt.Errorf("%w: after %d rows: %w", ErrDamaged, in.rows, err)
	}
	if err != nil {
		return nil, err
	}
	return t, nil
}

type rowReader struct {
	in     *bufio.Reader
	sum    *xxhash.Digest
	row    []byte
	rows   uint64
	broken bool // what is read from failed, not what it holds
}

// next reads n bytes, which are good until the next call.
func (r *rowReader) next(n int) ([]byte, error) {
	r.row = slices.Grow(r.row[:0], n)[:n]
	if _, err := io.ReadFull(r.in, r.row); err != nil {
		r.broken = true
		return nil, err
	}
	r.sum.Write(r.row)
	return r.row, nil
}

func (r *rowReader) tables() (*tables, error) {
	head, err := r.next(snapshotHead)
	if err != nil {
		return nil, err
	}
	if string(head[:len(snapshotMagic)]) != snapshotMagic {
		return nil, errors.New("it does not begin like one")
	}
	head = head[len(snapshotMagic):]
	if v := binary.LittleEndian.Uint32(head); v != snapshotVersion {
		return nil, fmt.Errorf("%w: version %d, this release reads %d", ErrNewer, v, snapshotVersion)
	}
	t := newTables()
	t.index, t.newest = binary.LittleEndian.Uint64(head[4:]), registry.Stamp(binary.LittleEndian.Uint64(head[12:]))
	var last *service
	for {
		n, err := binary.ReadUvarint(r.in)
		if err != nil {
			r.broken = true
			return nil, err
		}
		if n > maxRow {
			return nil, fmt.Errorf("row of %d bytes", n)
		}
		var length [binary.MaxVarintLen64]byte
		r.sum.Write(length[:binary.PutUvarint(length[:], n)])
		if n == 0 {
			break
		}
		row, err := r.next(int(n))
		if err != nil {
			return nil, err
		}
		if last, err = t.load(row, last); err != nil {
			return nil, err
		}
		r.rows++
	}
	tail, err := r.next(8)
	if err != nil {
		return nil, err
	}
	if n := binary.LittleEndian.Uint64(tail); n != r.rows {
		return nil, fmt.Errorf("it says that it has %d", n)
	}
	sum := r.sum.Sum64()
	if tail, err = r.next(8); err != nil {
		return nil, err
	}
	if binary.LittleEndian.Uint64(tail) != sum {
		return nil, errors.New("its checksum does not match")
	}
	if _, err := r.in.ReadByte(); !errors.Is(err, io.EOF) {
		if err != nil {
			r.broken = true
			return nil, err
		}
		return nil, errors.New("something follows")
	}
	return t, nil
}
