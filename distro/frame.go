package distro

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/starling-registry/starling/pkg/registry"
	pb "github.com/starling-registry/starling/proto"
)

// ErrFrame says that a frame breaks the rules of the wire.
var ErrFrame = errors.New("malformed frame")

const (
	maxPart  = 1 << 20 // bytes of records in one message; a single larger record goes alone
	maxParts = 1 << 16
	// maxGossip is what fits into a packet of memberlist with its headers.
	maxGossip = 1000
)

// A frame holds all records of a life with from < version <= to, or the whole
// life.
type frame struct {
	life     registry.Life
	from, to uint64
	whole    bool
	floor    uint64
	records  []decoded
	byOwner  bool // it came from the owner of the life
}

// A cut is a frame in the making: what was applied at one moment. The records
// do not change, so that it is encoded without the lock.
type cut struct {
	life     registry.Life
	from, to uint64
	whole    bool
	floor    uint64
	records  []*record
	bytes    int
}

// cut always takes everything up to what is applied: cut earlier, a key that
// was written again later would be missing, and the prefix would lie. Who is
// below the floor, or has nothing, gets the whole life.
func (l *life) cut(from uint64) cut {
	from = min(from, l.applied) // a reader may have more
	c := cut{life: l.id, from: from, to: l.applied, floor: l.floor, whole: from == 0 || from < l.floor}
	if c.whole {
		c.from = 0
	}
	c.records = l.above(c.from)
	for _, r := range c.records {
		c.bytes += len(r.raw)
	}
	return c
}

// parts encodes the frame as messages of at most about 1 MiB each. transfer
// tells the parts of one frame from those of others.
func (c cut) parts(transfer uint64, send func([]byte) error) error {
	var ends []int // records up to here are in that part
	size := 0
	for n, r := range c.records {
		if size > 0 && size+len(r.raw) > maxPart {
			ends = append(ends, n)
			size = 0
		}
		size += len(r.raw)
	}
	ends = append(ends, len(c.records))
	if len(ends) > maxParts {
		return fmt.Errorf("%w: life %v is too large for %d parts", ErrFrame, c.life, maxParts)
	}
	begin := 0
	for part, end := range ends {
		if err := send(c.part(c.records[begin:end], part, len(ends), transfer)); err != nil {
			return err
		}
		begin = end
	}
	return nil
}

// part writes a Message with a Frame by hand: the records are copied once.
func (c cut) part(records []*record, part, parts int, transfer uint64) []byte {
	head := &pb.Frame{Life: lifeMessage(c.life), From: c.from, To: c.to, Whole: c.whole}
	if c.whole {
		head.Floor = c.floor
	}
	tail := &pb.Frame{}
	if parts > 1 {
		tail.Part, tail.Parts, tail.Transfer = uint32(part), uint32(parts), transfer
	}
	before, after := encode(head), encode(tail)
	size := len(before) + len(after)
	for _, r := range records {
		size += protowire.SizeTag(6) + protowire.SizeBytes(len(r.raw))
	}
	b := make([]byte, 0, size+16)
	b = protowire.AppendTag(b, 3, protowire.BytesType) // Message.frame
	b = protowire.AppendVarint(b, uint64(size))
	b = append(b, before...)
	for _, r := range records {
		b = protowire.AppendTag(b, 6, protowire.BytesType)
		b = protowire.AppendBytes(b, r.raw)
	}
	return append(b, after...)
}

// readFrame decodes the records of a frame or of a part of one.
func readFrame(m *pb.Frame) (*frame, error) {
	f := &frame{life: readLife(m.GetLife()), from: m.GetFrom(), to: m.GetTo(), whole: m.GetWhole(), floor: m.GetFloor()}
	switch {
	case !validLife(f.life):
		return nil, fmt.Errorf("%w: of no life", ErrFrame)
	case f.from > f.to, f.floor > f.to, f.whole && f.from != 0:
		return nil, fmt.Errorf("%w: from %d to %d, floor %d", ErrFrame, f.from, f.to, f.floor)
	case m.GetParts() > maxParts, m.GetPart() >= max(1, m.GetParts()):
		return nil, fmt.Errorf("%w: part %d of %d", ErrFrame, m.GetPart(), m.GetParts())
	}
	f.records = make([]decoded, 0, len(m.GetRecords()))
	last := f.from
	in := names{}
	for _, raw := range m.GetRecords() {
		d, err := decodeRecord(raw, in)
		if err != nil {
			return nil, err
		}
		if d.version <= last || d.version > f.to {
			return nil, fmt.Errorf("%w: version %d after %d in a frame to %d", ErrFrame, d.version, last, f.to)
		}
		last = d.version
		f.records = append(f.records, d)
	}
	return f, nil
}

// A staged frame waits for its other parts. One per peer, life and carrier
// stands at a time: a newer transfer replaces it.
type staged struct {
	transfer uint64
	total    int
	parts    map[int][]decoded // what has come: a promise costs nothing
	bytes    int               // that it takes, about
	touched  int64             // milliseconds
}

func newStaged(transfer uint64, total int) *staged {
	return &staged{transfer: transfer, total: total, parts: map[int][]decoded{}}
}

// recordOverhead is what a decoded record takes besides its bytes.
const recordOverhead = 256

// add returns the frame when all parts are there. Parts may come in any order.
func (s *staged) add(f *frame, part int) (*frame, error) {
	if part >= s.total {
		return nil, fmt.Errorf("%w: part %d of %d", ErrFrame, part, s.total)
	}
	if _, twice := s.parts[part]; !twice {
		s.parts[part] = f.records
		s.bytes += recordOverhead
		for _, r := range f.records {
			s.bytes += len(r.raw) + recordOverhead
		}
	}
	if len(s.parts) < s.total {
		return nil, nil
	}
	whole := *f
	all := 0
	for _, p := range s.parts {
		all += len(p)
	}
	whole.records = make([]decoded, 0, all)
	last := f.from
	for n := range s.total {
		p := s.parts[n]
		for _, d := range p {
			if d.version <= last {
				return nil, fmt.Errorf("%w: parts are not in order", ErrFrame)
			}
			last = d.version
		}
		whole.records = append(whole.records, p...)
	}
	return &whole, nil
}

// readMessage never panics; unknown messages have no body.
func readMessage(b []byte) (*pb.Message, error) {
	m := &pb.Message{}
	if err := proto.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("message between nodes: %w", err)
	}
	return m, nil
}
