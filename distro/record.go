package distro

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/starling-registry/starling/pkg/registry"
	pb "github.com/starling-registry/starling/proto"
)

// Kinds of records. Others are kept and handed on unread: a newer release has
// written them.
const (
	kindPublication = 1
	kindProbe       = 2
	kindCheck       = 3
)

// What can be wrong with a record of another node.
var (
	ErrRecordTruncated = errors.New("record is cut short or malformed")
	ErrRecordHash      = errors.New("hash of the record does not match")
)

// A record is one encoded record and what has to be known of it. It is not
// changed after it was decoded, but for stale.
type record struct {
	raw     []byte // as its owner encoded it
	key     string // kind and key
	kind    uint32
	gone    bool
	hides   bool   // a publication that carries hides
	redo    uint16 // seconds, of a publication
	shows   int32  // instances, of a publication
	version uint64
	clock   registry.Stamp
	hash    uint64
	stale   bool // guarded by the replicator's mu: it was replaced or forgotten
}

const hashField = 15

// hashTag begins the last field of a record, 9 bytes in all.
var hashTag = byte(protowire.EncodeTag(hashField, protowire.Fixed64Type))

// encodeRecord is done once, by the owner. The hash covers all bytes before
// it.
func encodeRecord(kind uint32, key string, version uint64, clock registry.Stamp, gone bool, value []byte) []byte {
	b := make([]byte, 0, len(key)+len(value)+48)
	b = protowire.AppendTag(b, 1, protowire.VarintType)
	b = protowire.AppendVarint(b, uint64(kind))
	b = protowire.AppendTag(b, 2, protowire.BytesType)
	b = protowire.AppendString(b, key)
	b = protowire.AppendTag(b, 3, protowire.VarintType)
	b = protowire.AppendVarint(b, version)
	b = protowire.AppendTag(b, 4, protowire.Fixed64Type)
	b = protowire.AppendFixed64(b, uint64(clock))
	if gone {
		b = protowire.AppendTag(b, 5, protowire.VarintType)
		b = protowire.AppendVarint(b, 1)
	}
	b = protowire.AppendTag(b, 6, protowire.BytesType)
	b = protowire.AppendBytes(b, value)
	b = append(b, hashTag)
	return binary.LittleEndian.AppendUint64(b, xxhash.Sum64(b[:len(b)-1]))
}

// fields of an encoded record; slices of it, not copies.
type fields struct {
	kind       uint32
	key, value []byte
	version    uint64
	clock      registry.Stamp
	gone       bool
	hash       uint64
}

// readFields checks the hash and takes the record apart. Fields that this
// release does not know are skipped.
func readFields(raw []byte) (f fields, err error) {
	if len(raw) < 9 || raw[len(raw)-9] != hashTag {
		return f, ErrRecordTruncated
	}
	body := raw[:len(raw)-9]
	f.hash = binary.LittleEndian.Uint64(raw[len(raw)-8:])
	if xxhash.Sum64(body) != f.hash {
		return f, ErrRecordHash
	}
	for len(body) > 0 {
		num, typ, n := protowire.ConsumeTag(body)
		if n < 0 {
			return f, ErrRecordTruncated
		}
		body = body[n:]
		switch {
		case num == 1 && typ == protowire.VarintType:
			var v uint64
			v, n = protowire.ConsumeVarint(body)
			f.kind = uint32(v)
		case num == 2 && typ == protowire.BytesType:
			f.key, n = protowire.ConsumeBytes(body)
		case num == 3 && typ == protowire.VarintType:
			f.version, n = protowire.ConsumeVarint(body)
		case num == 4 && typ == protowire.Fixed64Type:
			var v uint64
			v, n = protowire.ConsumeFixed64(body)
			f.clock = registry.Stamp(v)
		case num == 5 && typ == protowire.VarintType:
			var v uint64
			v, n = protowire.ConsumeVarint(body)
			f.gone = v != 0
		case num == 6 && typ == protowire.BytesType:
			f.value, n = protowire.ConsumeBytes(body)
		default:
			n = protowire.ConsumeFieldValue(num, typ, body)
		}
		if n < 0 {
			return f, ErrRecordTruncated
		}
		body = body[n:]
	}
	if f.version == 0 {
		return f, fmt.Errorf("%w: without a version", ErrRecordTruncated)
	}
	return f, nil
}

// A decoded record is what the registry is told. All nil: a check that is let
// go; or a kind that this release does not know; or a value that it cannot
// read, then unreadable.
type decoded struct {
	*record
	publication *registry.Record
	probe       *registry.Probe
	check       *registry.Check // without By, whose life the record does not name
	unreadable  bool
}

// decodeRecord keeps raw.
func decodeRecord(raw []byte, in names) (decoded, error) {
	f, err := readFields(raw)
	if err != nil {
		return decoded{}, err
	}
	d := decoded{record: &record{raw: raw, key: mapKey(f.kind, f.key), kind: f.kind, gone: f.gone, version: f.version, clock: f.clock, hash: f.hash}}
	switch f.kind {
	case kindPublication:
		d.publication = readPublication(f, in)
		if d.publication == nil {
			d.unreadable = true
			break
		}
		d.shows = int32(len(d.publication.Instances))
		d.hides = len(d.publication.Hides) > 0
		d.redo = uint16(min(max(0, d.publication.Redo), 1<<16-1))
	case kindProbe:
		d.probe = readProbe(f)
		d.unreadable = d.probe == nil
	case kindCheck:
		if !f.gone {
			d.check = readCheck(f)
			d.unreadable = d.check == nil
		}
	}
	return d, nil
}

func mapKey(kind uint32, key []byte) string {
	b := make([]byte, 0, 16+len(key))
	return string(append(protowire.AppendVarint(b, uint64(kind)), key...))
}

func encodeKey(k registry.RecordKey) []byte {
	var b []byte
	for i, s := range [...]string{k.Client, k.Service.Namespace, k.Service.Group, k.Service.Name} {
		b = protowire.AppendTag(b, protowire.Number(i+1), protowire.BytesType)
		b = protowire.AppendString(b, strings.ToValidUTF8(s, "\uFFFD"))
	}
	return b
}

// encodePublication is the value of a record. What is not UTF-8 was never
// valid on the wire to clients either; it is replaced, so that one bad client
// cannot stop the replication of its neighbours.
func encodePublication(r registry.Record) []byte {
	p := &pb.Publication{ClientKind: uint32(r.Kind), Batch: r.Batch, Moving: r.Moving, Cause: string(r.Cause), RedoSeconds: uint32(max(0, r.Redo))}
	p.Instances = make([]*pb.Instance, len(r.Instances))
	for n, i := range r.Instances {
		p.Instances[n] = instanceMessage(i)
	}
	p.Hides = make([]*pb.Hide, len(r.Hides))
	for n, h := range r.Hides {
		p.Hides[n] = &pb.Hide{Ip: h.IP, Port: uint32(h.Port), Cluster: h.Cluster, UpTo: uint64(h.UpTo), Made: uint64(h.Made), Strong: h.Strong}
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
	if err == nil {
		return b
	}
	valid := func(s *string) { *s = strings.ToValidUTF8(*s, "\uFFFD") }
	valid(&p.Cause)
	for _, i := range p.Instances {
		valid(&i.Ip)
		valid(&i.Cluster)
		valid(&i.Id)
		for n := range i.Metadata {
			valid(&i.Metadata[n])
		}
	}
	for _, h := range p.Hides {
		valid(&h.Ip)
		valid(&h.Cluster)
	}
	if b, err = (proto.MarshalOptions{Deterministic: true}).Marshal(p); err != nil {
		panic("BUG: a publication cannot be encoded: " + err.Error())
	}
	return b
}

func instanceMessage(i registry.Published) *pb.Instance {
	m := &pb.Instance{Ip: i.IP, Port: uint32(i.Port), Cluster: i.Cluster, Id: i.ID, Weight: i.Weight, Healthy: i.Healthy,
		Enabled: i.Enabled, Since: uint64(i.Since)}
	if len(i.Metadata) > 0 {
		m.Metadata = make([]string, 0, 2*len(i.Metadata))
		for _, kv := range i.Metadata {
			m.Metadata = append(m.Metadata, kv.Key, kv.Value)
		}
	}
	return m
}

// names shares the strings that most records have in common: names of services,
// groups, clusters, keys of metadata. A million instances would have as many
// copies of them. nil: each string stands for itself.
type names map[string]string

// mostNames bounds what one frame keeps; the rest stands for itself.
const mostNames = 4096

func (n names) get(b []byte) string {
	if s, ok := n[string(b)]; ok {
		return s
	}
	s := string(b)
	if n != nil && len(n) < mostNames {
		n[s] = s
	}
	return s
}

// eachField calls f with each field of a message: v for numbers, data for what
// has a length. It reports whether the message is well-formed.
func eachField(b []byte, f func(num protowire.Number, v uint64, data []byte)) bool {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return false
		}
		b = b[n:]
		var v uint64
		var data []byte
		switch typ {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(b)
		case protowire.Fixed64Type:
			v, n = protowire.ConsumeFixed64(b)
		case protowire.BytesType:
			data, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return false
		}
		f(num, v, data)
		b = b[n:]
	}
	return true
}

// readPublication returns nil for what it cannot read. It is written by hand:
// a node that starts reads every record of the cluster.
func readPublication(f fields, in names) *registry.Record {
	r := &registry.Record{Clock: f.clock, Gone: f.gone}
	good := true
	ok := eachField(f.key, func(num protowire.Number, _ uint64, data []byte) {
		switch num {
		case 1:
			r.Client = string(data)
		case 2:
			r.Service.Namespace = in.get(data)
		case 3:
			r.Service.Group = in.get(data)
		case 4:
			r.Service.Name = in.get(data)
		}
	})
	ok = ok && utf8.ValidString(r.Client+r.Service.Namespace+r.Service.Group+r.Service.Name) && eachField(f.value, func(num protowire.Number, v uint64, data []byte) {
		switch num {
		case 1:
			r.Kind = registry.Kind(v)
		case 2:
			r.Batch = v != 0
		case 3:
			r.Moving = v != 0
		case 4:
			r.Cause = registry.Cause(in.get(data))
		case 5:
			if !f.gone {
				i, fine := readInstance(data, in)
				r.Instances = append(r.Instances, i)
				good = good && fine
			}
		case 6:
			h, fine := readHide(data, in)
			r.Hides = append(r.Hides, h)
			good = good && fine
		case 7:
			r.Redo = int(min(v, 1<<16-1))
		}
	})
	if !ok || !good || !utf8.ValidString(string(r.Cause)) {
		return nil
	}
	return r
}

func readInstance(b []byte, in names) (p registry.Published, ok bool) {
	i := &registry.Instance{}
	p.Instance = i
	var last registry.KV
	odd := false
	text := true
	ok = eachField(b, func(num protowire.Number, v uint64, data []byte) {
		text = text && (data == nil || utf8.Valid(data))
		switch num {
		case 1:
			i.IP = string(data)
		case 2:
			i.Port = int(uint32(v))
		case 3:
			i.Cluster = in.get(data)
		case 4:
			i.ID = string(data)
		case 5:
			i.Weight = math.Float64frombits(v)
		case 6:
			i.Healthy = v != 0
		case 7:
			i.Enabled = v != 0
		case 8:
			if odd = !odd; odd {
				last.Key = in.get(data)
			} else {
				last.Value = string(data)
				i.Metadata = append(i.Metadata, last)
			}
		case 9:
			p.Since = registry.Stamp(v)
		}
	})
	// Readers divide by weights, and JSON knows no other numbers.
	return p, ok && text && !odd && i.Weight >= 0 && !math.IsInf(i.Weight, 1)
}

func readHide(b []byte, in names) (h registry.Hide, ok bool) {
	text := true
	ok = eachField(b, func(num protowire.Number, v uint64, data []byte) {
		text = text && (data == nil || utf8.Valid(data))
		switch num {
		case 1:
			h.IP = string(data)
		case 2:
			h.Port = int(uint32(v))
		case 3:
			h.Cluster = in.get(data)
		case 4:
			h.UpTo = registry.Stamp(v)
		case 5:
			h.Made = registry.Stamp(v)
		case 6:
			h.Strong = v != 0
		}
	})
	return h, ok && text
}

func encodeProbe(p registry.Probe) (key, value []byte) {
	k := &pb.ProbeKey{Of: lifeMessage(p.Of), Namespace: valid(p.Service.Namespace), Group: valid(p.Service.Group), Service: valid(p.Service.Name),
		Ip: valid(p.Instance.IP), Port: uint32(p.Instance.Port), Cluster: valid(p.Instance.Cluster)}
	return encode(k), encode(&pb.Probe{UpTo: uint64(p.UpTo), Made: uint64(p.Made)})
}

func readProbe(f fields) *registry.Probe {
	var k pb.ProbeKey
	var p pb.Probe
	if proto.Unmarshal(f.key, &k) != nil || proto.Unmarshal(f.value, &p) != nil {
		return nil
	}
	return &registry.Probe{Of: readLife(k.GetOf()), Service: registry.ServiceKey{Namespace: k.GetNamespace(), Group: k.GetGroup(), Name: k.GetService()},
		Instance: registry.InstanceKey{IP: k.GetIp(), Port: int(k.GetPort()), Cluster: k.GetCluster()},
		UpTo:     registry.Stamp(p.GetUpTo()), Made: registry.Stamp(p.GetMade())}
}

func encodeCheckKey(k checkKey) []byte {
	return encode(&pb.CheckKey{Namespace: valid(k.service.Namespace), Group: valid(k.service.Group), Service: valid(k.service.Name),
		Ip: valid(k.IP), Port: uint32(k.Port), Cluster: valid(k.Cluster)})
}

func encodeCheck(c *registry.Check) []byte {
	return encode(&pb.Check{Healthy: c.Healthy, Made: uint64(c.Made), Reason: valid(c.Reason)})
}

func readCheck(f fields) *registry.Check {
	var k pb.CheckKey
	var c pb.Check
	if proto.Unmarshal(f.key, &k) != nil || proto.Unmarshal(f.value, &c) != nil {
		return nil
	}
	return &registry.Check{Service: registry.ServiceKey{Namespace: k.GetNamespace(), Group: k.GetGroup(), Name: k.GetService()},
		InstanceKey: registry.InstanceKey{IP: k.GetIp(), Port: int(k.GetPort()), Cluster: k.GetCluster()},
		Healthy:     c.GetHealthy(), Reason: c.GetReason(),
		// The clock of a record is refused if it is far ahead: a check from
		// the future would count for ever.
		Made: min(registry.Stamp(c.GetMade()), f.clock)}
}

func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// encode is for messages whose strings are valid UTF-8.
func encode(m proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic("BUG: a message between nodes cannot be encoded: " + err.Error())
	}
	return b
}

func lifeMessage(l registry.Life) *pb.Life { return &pb.Life{Node: l.Node, Epoch: l.Epoch} }

func readLife(l *pb.Life) registry.Life { return registry.Life{Node: l.GetNode(), Epoch: l.GetEpoch()} }

// validLife says whether it can be the life of a node: 32 hex digits.
func validLife(l registry.Life) bool {
	if len(l.Node) != 32 || l.Epoch == 0 {
		return false
	}
	for i := range len(l.Node) {
		if c := l.Node[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
