package cluster

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/memberlist"
)

// memberlist sets memory aside for what the header of a stream promises, up to
// 130 MB for a list of nodes, before any of it has come. Without a secret
// anybody may promise; so streams are looked at before memberlist reads them,
// and there are few at a time: a member has one or two for a moment.
const (
	maxInbound = 32
	lookedAt   = 40 // bytes, fewer than any list of nodes has

	pushPullMessage = 6 // of memberlist's message types
	compoundMessage = 7
	compressMessage = 9
	checkedMessage  = 12 // a checksum of 4 bytes, and a message
)

var errPromise = errors.New("cluster: a stream of gossip promises too much")

// admitStreams hands on what others open. It takes it until the transport has
// ended, which waits for that.
func (c *Cluster) admitStreams(from <-chan net.Conn, to chan<- net.Conn, ended <-chan struct{}) {
	var open atomic.Int64
	for {
		var conn net.Conn
		select {
		case <-ended:
			return
		case conn = <-from:
		}
		if c.ctx.Err() != nil {
			conn.Close()
			continue
		}
		if open.Load() >= maxInbound {
			c.metrics.dropped[dropStreams].Inc()
			conn.Close()
			continue
		}
		open.Add(1)
		in := &inbound{Conn: conn, buffered: bufio.NewReaderSize(conn, 1<<10), plain: c.keyring == nil,
			refused: c.metrics.dropped[dropBroken].Inc, closed: func() { open.Add(-1) }}
		select {
		case <-c.ctx.Done():
			in.Close()
		case to <- in:
		}
	}
}

// An inbound stream is looked at with the first Read, on the goroutine that
// memberlist has for it and under its deadline.
type inbound struct {
	net.Conn
	buffered *bufio.Reader
	plain    bool // not encrypted; else the header is of somebody who knows the secret
	refused  func()
	closed   func()

	looked, shut sync.Once
	err          error
}

func (i *inbound) Read(b []byte) (int, error) {
	i.looked.Do(func() {
		if i.plain && !i.modest() {
			i.err = errPromise
			i.refused()
		}
	})
	if i.err != nil {
		return 0, i.err
	}
	return i.buffered.Read(b)
}

func (i *inbound) Close() error {
	i.shut.Do(i.closed)
	return i.Conn.Close()
}

// modest says whether memberlist may read the stream. What it cannot read
// either is left to it.
func (i *inbound) modest() bool {
	first, err := i.buffered.Peek(1)
	if err != nil {
		return true
	}
	switch first[0] {
	case compressMessage:
		return false // no release has ever sent one
	case pushPullMessage:
		head, err := i.buffered.Peek(lookedAt)
		if err != nil {
			return false
		}
		_, rest, ok := bytes.Cut(head, []byte("Nodes"))
		// A number of at most 16 bits, in MessagePack.
		return ok && len(rest) > 0 && (rest[0] < 0x80 || rest[0] == 0xcc || rest[0] == 0xcd || rest[0] == 0xd0 || rest[0] == 0xd1) && !bytes.Contains(rest, []byte("Nodes"))
	}
	return true
}

// admitPackets hands on the packets that memberlist may read, until the
// transport has ended. memberlist reads packets one after the other: one of 50
// kB that is 64 MiB when it is decompressed would hold up all others.
func (c *Cluster) admitPackets(from <-chan *memberlist.Packet, to chan<- *memberlist.Packet, ended <-chan struct{}) {
	for {
		var p *memberlist.Packet
		select {
		case <-ended:
			return
		case p = <-from:
		}
		if !modestPacket(p.Buf) {
			c.metrics.dropped[dropBroken].Inc()
			continue
		}
		select {
		case <-ended:
			return
		case <-c.ctx.Done():
		case to <- p:
		}
	}
}

// modestPacket says whether memberlist may read a packet. No release has ever
// sent a compressed message, nor a compound one in another.
func modestPacket(b []byte) bool {
	if len(b) >= 5 && b[0] == checkedMessage {
		b = b[5:]
	}
	if len(b) < 2 {
		return true
	}
	if b[0] != compoundMessage {
		return b[0] != compressMessage
	}
	// A number of parts, the length of each in 16 bits, the parts.
	parts := int(b[1])
	at := 2 + 2*parts
	for n := 0; n < parts && at < len(b); n++ {
		if b[at] == compressMessage || b[at] == compoundMessage {
			return false
		}
		at += int(binary.BigEndian.Uint16(b[2+2*n:]))
	}
	return true
}
