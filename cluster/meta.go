package cluster

import (
	"encoding/binary"
	"errors"
	"unicode/utf8"
)

// meta is what a node announces of itself, in memberlist's node meta. At most
// 512 bytes; the limits of the strings make sure of it.
//
//	version, flags            1 byte each
//	epoch                     8 bytes
//	wire, oldest wire         4 bytes each
//	five ports                2 bytes each
//	name, host, cluster, version of the release: length (1 byte), bytes
//	commands                  4 bytes; early nodes end before it
//
// A later version may add fields at the end: what follows is ignored.
type meta struct {
	leaving      bool
	epoch        uint64
	wire, oldest uint32
	ports        [5]uint16 // HTTP, gRPC, peer, Raft, gossip
	name         string
	host         string
	cluster      string
	version      string
	commands     uint32
}

const (
	metaVersion  = 1
	metaLeaving  = 1 // flag
	maxName      = 64
	maxHost      = 253
	maxClusterID = 64
	maxVersion   = 32
)

var errMeta = errors.New("node meta is malformed")

func (m *meta) encode() []byte {
	var flags byte
	if m.leaving {
		flags |= metaLeaving
	}
	b := []byte{metaVersion, flags}
	b = binary.BigEndian.AppendUint64(b, m.epoch)
	b = binary.BigEndian.AppendUint32(b, m.wire)
	b = binary.BigEndian.AppendUint32(b, m.oldest)
	for _, p := range m.ports {
		b = binary.BigEndian.AppendUint16(b, p)
	}
	for _, s := range []string{cut(m.name, maxName), cut(m.host, maxHost), cut(m.cluster, maxClusterID), cut(m.version, maxVersion)} {
		b = append(b, byte(len(s)))
		b = append(b, s...)
	}
	return binary.BigEndian.AppendUint32(b, m.commands)
}

// cut shortens a string to a number of bytes, between runes.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

func decodeMeta(b []byte) (meta, error) {
	const fixed = 2 + 8 + 4 + 4 + 2*5
	if len(b) < fixed || b[0] < metaVersion {
		return meta{}, errMeta
	}
	m := meta{
		leaving: b[1]&metaLeaving != 0,
		epoch:   binary.BigEndian.Uint64(b[2:]),
		wire:    binary.BigEndian.Uint32(b[10:]),
		oldest:  binary.BigEndian.Uint32(b[14:]),
	}
	for i := range m.ports {
		m.ports[i] = binary.BigEndian.Uint16(b[18+2*i:])
	}
	b = b[fixed:]
	for _, s := range []*string{&m.name, &m.host, &m.cluster, &m.version} {
		if len(b) == 0 || len(b) < 1+int(b[0]) {
			return meta{}, errMeta
		}
		*s = string(b[1 : 1+b[0]])
		b = b[1+b[0]:]
	}
	if len(b) >= 4 {
		m.commands = binary.BigEndian.Uint32(b)
	}
	return m, nil
}
