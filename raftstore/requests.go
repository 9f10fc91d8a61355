package raftstore

import (
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/raft"
)

// What other nodes send is decoded by the Raft library, which trusts it: it
// makes room for as many entries as a request has, waits as long as it takes,
// and panics at a configuration or an entry that it does not understand, after
// that is on disk. Who belongs to the cluster never sends such a thing; without
// a secret whoever reaches the port can. So requests are measured before they
// are decoded ([meter]), and looked through before they are carried out
// ([transport.check]).

const (
	maxRequest = 2 << 20  // bytes; what is sent has less than half, see maxAppendBytes and maxCommand
	maxValues  = 16 << 10 // of MessagePack; 512 entries have 6,700
	// A request, and each part of a snapshot, is there after this time. For all
	// of a snapshot there is what its sender has (TimeoutScale of the library).
	requestTime   = 10 * time.Second
	snapshotScale = raft.DefaultTimeoutScale
	maxSnapshot   = 16 << 30 // bytes
	// maxTermStep is how far a term may be ahead of this node's: there are no
	// so many elections, and a term that runs over is the end of the group.
	maxTermStep = 1 << 32
	maxIndex    = 1 << 62
)

// A meter follows the requests of a connection without decoding them.
type meter struct {
	part    part
	bytes   int    // of the request
	values  int    // that have begun
	need    uint64 // values that are to come
	skip    uint64 // bytes that are no values
	digits  int    // bytes of a length that are to come
	length  uint64
	then    func(m *meter, n uint64) // what the length is of
	kind    byte
	begin   time.Time // of the snapshot
	content int64     // of the snapshot, so far
}

type part uint8

const (
	between part = iota // nothing of the next request is there
	within              // a request
	stream              // the snapshot that follows one; it ends with the answer
)

const kindInstallSnapshot = 2 // rpcInstallSnapshot of net_transport.go (v1.8.0); the kinds are 0…4

var errMeasure = errors.New("this is no request of a node")

// feed is told the next bytes.
func (m *meter) feed(b []byte) error {
	for len(b) > 0 {
		if m.part == stream {
			m.content += int64(len(b))
			return nil
		}
		if m.part == between {
			*m = meter{part: within, kind: b[0], need: 1}
			if m.kind > 4 {
				return errMeasure
			}
			b = b[1:]
			continue
		}
		n := 1
		switch {
		case m.skip > 0:
			n = int(min(uint64(len(b)), m.skip))
			m.skip -= uint64(n)
		case m.digits > 0:
			m.length = m.length<<8 | uint64(b[0])
			if m.digits--; m.digits == 0 {
				m.then(m, m.length)
			}
		default:
			m.need--
			m.values++
			m.value(b[0])
		}
		b = b[n:]
		m.bytes += n
		if m.bytes > maxRequest || m.values > maxValues || m.skip > maxRequest || m.need > maxValues {
			return fmt.Errorf("%w: it is too large", errMeasure)
		}
		if m.need == 0 && m.skip == 0 && m.digits == 0 {
			m.part = between
			if m.kind == kindInstallSnapshot {
				m.part, m.begin = stream, time.Now()
			}
		}
	}
	return nil
}

func skipBytes(m *meter, n uint64) { m.skip += n }
func addValues(m *meter, n uint64) { m.need += n }
func addPairs(m *meter, n uint64)  { m.need += 2 * n }
func extended(m *meter, n uint64)  { m.skip += n + 1 } // its type

// sized says how many bytes of length follow.
func (m *meter) sized(digits int, then func(*meter, uint64)) {
	m.digits, m.length, m.then = digits, 0, then
}

// value is the first byte of one (MessagePack).
func (m *meter) value(b byte) {
	switch {
	case b <= 0x7f || b >= 0xe0 || b == 0xc0 || b == 0xc2 || b == 0xc3: // small numbers, nil, booleans
	case b <= 0x8f:
		addPairs(m, uint64(b&0x0f))
	case b <= 0x9f:
		addValues(m, uint64(b&0x0f))
	case b <= 0xbf:
		skipBytes(m, uint64(b&0x1f))
	case b <= 0xc6: // bytes; 0xc1 is not used, and refused when it is decoded
		m.sized(1<<max(0, int(b)-0xc4), skipBytes)
	case b <= 0xc9:
		m.sized(1<<(b-0xc7), extended)
	case b == 0xca:
		m.skip = 4
	case b == 0xcb:
		m.skip = 8
	case b <= 0xcf:
		m.skip = 1 << (b - 0xcc)
	case b <= 0xd3:
		m.skip = 1 << (b - 0xd0)
	case b <= 0xd8:
		extended(m, 1<<(b-0xd4))
	case b <= 0xdb:
		m.sized(1<<(b-0xd9), skipBytes)
	case b <= 0xdd:
		m.sized(2<<(b-0xdc), addValues)
	default:
		m.sized(2<<(b-0xde), addPairs)
	}
}

// answered is told that this node has said something.
func (m *meter) answered() {
	if m.part == stream {
		m.part = between
	}
}

// deadline is when more must be there; zero: a connection may rest.
func (m *meter) deadline(now time.Time, timeout time.Duration) time.Time {
	switch m.part {
	case between:
		return time.Time{}
	case stream:
		all := m.begin.Add(requestTime + timeout*time.Duration(m.content/snapshotScale+1))
		if all.Before(now.Add(requestTime)) {
			return all
		}
	}
	return now.Add(requestTime)
}

// A refusal is what is wrong with a request.
func implausible(format string, args ...any) error {
	return fmt.Errorf("refused: "+format, args...)
}

// check looks through a request.
func (t *transport) check(command any) error {
	own := t.own.Load()
	if own == nil {
		return errors.New("this node is about to start")
	}
	term := (*own).CurrentTerm()
	switch c := command.(type) {
	case *raft.AppendEntriesRequest:
		if err := checkHead(c.RPCHeader, c.Term, term); err != nil {
			return err
		}
		return t.checkEntries(c, (*own).CommitIndex())
	case *raft.RequestVoteRequest:
		return checkHead(c.RPCHeader, c.Term, term)
	case *raft.RequestPreVoteRequest:
		return checkHead(c.RPCHeader, c.Term, term)
	case *raft.InstallSnapshotRequest:
		if err := checkHead(c.RPCHeader, c.Term, term); err != nil {
			return err
		}
		switch {
		case c.SnapshotVersion != raft.SnapshotVersionMax:
			return implausible("a snapshot of version %d", c.SnapshotVersion)
		case c.Size < 0 || c.Size > maxSnapshot:
			return implausible("a snapshot of %d bytes", c.Size)
		case c.LastLogIndex == 0 || c.LastLogIndex > maxIndex || c.ConfigurationIndex > c.LastLogIndex:
			return implausible("a snapshot up to %d, with the configuration of %d", c.LastLogIndex, c.ConfigurationIndex)
		case c.LastLogTerm > c.Term:
			return implausible("a snapshot of term %d in term %d", c.LastLogTerm, c.Term)
		}
		return checkConfiguration(c.Configuration)
	}
	return nil
}

// plausible is false for a term that no election has led to.
func plausible(term, own uint64) bool {
	return term <= own || term-own <= maxTermStep || own == 0 && term <= maxIndex
}

func checkHead(h raft.RPCHeader, term, own uint64) error {
	if !plausible(term, own) {
		return implausible("term %d, this node is at %d", term, own)
	}
	if len(h.ID) == 0 || len(h.ID) > maxHelloString || !utf8.Valid(h.ID) || string(h.ID) != string(h.Addr) {
		return implausible("a sender without an id")
	}
	return nil
}

func (t *transport) checkEntries(c *raft.AppendEntriesRequest, commit uint64) error {
	before := c.PrevLogTerm
	for n, e := range c.Entries {
		switch {
		case e == nil:
			return implausible("an entry is missing")
		case e.Index != c.PrevLogEntry+1+uint64(n) || e.Index == 0 || e.Index > maxIndex:
			return implausible("entry %d, %d behind %d", e.Index, n+1, c.PrevLogEntry)
		case e.Term == 0 || e.Term < before || e.Term > c.Term:
			return implausible("an entry of term %d behind one of %d, in term %d", e.Term, before, c.Term)
		case len(e.Data) > maxRequest/2:
			return implausible("an entry of %d bytes", len(e.Data))
		}
		before = e.Term
		switch e.Type {
		case raft.LogCommand, raft.LogNoop, raft.LogBarrier:
		case raft.LogConfiguration:
			if err := checkConfiguration(e.Data); err != nil {
				return err
			}
		default:
			return implausible("an entry of type %d", e.Type)
		}
		// What a majority has is not taken back: the tables cannot.
		if e.Index <= commit {
			var has raft.Log
			if err := t.logs.GetLog(e.Index, &has); err == nil && has.Term != e.Term {
				return implausible("another entry %d, which was committed", e.Index)
			}
		}
	}
	return nil
}

// checkConfiguration: the library panics at what it cannot decode.
func checkConfiguration(data []byte) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = implausible("a configuration: %v", p)
		}
	}()
	c := raft.DecodeConfiguration(data)
	var ids []raft.ServerID
	voters := 0
	for _, s := range c.Servers {
		if s.ID == "" || len(s.ID) > maxHelloString || !utf8.ValidString(string(s.ID)) || string(s.Address) != string(s.ID) {
			return implausible("a configuration with a server without an id")
		}
		if s.Suffrage != raft.Voter && s.Suffrage != raft.Nonvoter {
			return implausible("a configuration with a suffrage of %d", s.Suffrage)
		}
		if s.Suffrage == raft.Voter {
			voters++
		}
		ids = append(ids, s.ID)
	}
	slices.Sort(ids)
	if voters == 0 || len(slices.Compact(ids)) != len(c.Servers) {
		return implausible("a configuration with %d voters of %d servers", voters, len(c.Servers))
	}
	return nil
}
