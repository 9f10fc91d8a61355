package raftstore

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/starling-registry/starling/pkg/registry"
	pb "github.com/starling-registry/starling/proto"
)

// Rows are written by hand, as the protobuf library would: fields by number,
// those with a default left out. The hashes of rows are compared between nodes,
// and the library does not promise that two of its versions write the same.

func appendInstanceRow(b []byte, key registry.ServiceKey, p *registry.Persistent) []byte {
	return appendMessage(b, 1, func(b []byte) []byte {
		b = appendService(b, key)
		b = appendMessage(b, 2, func(b []byte) []byte {
			b = appendString(b, 1, p.IP)
			b = appendNumber(b, 2, p.Port)
			b = appendString(b, 3, p.Cluster)
			b = appendString(b, 4, p.ID)
			b = appendFixed(b, 5, math.Float64bits(p.Weight))
			b = appendBool(b, 6, p.Healthy)
			b = appendBool(b, 7, p.Enabled)
			b = appendMetadata(b, 8, p.Metadata)
			return appendFixed(b, 9, uint64(p.Since))
		})
		return appendFixed(b, 3, uint64(p.Judged))
	})
}

func appendServiceRow(b []byte, key registry.ServiceKey, m *registry.ServiceMeta) []byte {
	return appendMessage(b, 2, func(b []byte) []byte {
		b = appendService(b, key)
		b = appendBool(b, 2, m.Persistent)
		b = appendFixed(b, 3, math.Float64bits(m.ProtectThreshold))
		b = appendString(b, 4, m.Selector.Type)
		b = appendString(b, 5, m.Selector.Expression)
		b = appendMetadata(b, 6, m.Metadata)
		for _, name := range slices.Sorted(maps.Keys(m.Clusters)) {
			c := m.Clusters[name]
			b = appendMessage(b, 7, func(b []byte) []byte {
				b = appendString(b, 1, c.Name)
				b = appendString(b, 2, c.Checker.Type)
				b = appendNumber(b, 3, c.CheckPort)
				b = appendBool(b, 4, c.UseInstancePort)
				b = appendMetadata(b, 5, c.Metadata)
				b = appendString(b, 6, c.Checker.Path)
				b = appendString(b, 7, c.Checker.Headers)
				b = appendNumber(b, 8, c.Checker.ExpectedCode)
				b = appendString(b, 9, c.Checker.User)
				b = appendString(b, 10, c.Checker.Password)
				return appendString(b, 11, c.Checker.Command)
			})
		}
		return b
	})
}

func appendOverrideRow(b []byte, key registry.ServiceKey, o *override) []byte {
	return appendMessage(b, 3, func(b []byte) []byte {
		b = appendMessage(b, 1, func(b []byte) []byte {
			b = appendService(b, key)
			b = appendString(b, 2, o.IP)
			b = appendNumber(b, 3, o.Port)
			b = appendString(b, 4, o.Cluster)
			if o.Enabled != nil {
				b = protowire.AppendTag(b, 6, protowire.VarintType)
				b = protowire.AppendVarint(b, protowire.EncodeBool(*o.Enabled))
			}
			if o.Weight != nil {
				b = protowire.AppendTag(b, 7, protowire.Fixed64Type)
				b = protowire.AppendFixed64(b, math.Float64bits(*o.Weight))
			}
			b = appendBool(b, 8, len(o.Metadata) > 0)
			b = appendMetadata(b, 9, o.Metadata)
			b = appendBool(b, 10, o.Sticky)
			b = appendBool(b, 11, o.Evicted)
			return appendBool(b, 12, o.StaysOut)
		})
		b = appendNumber(b, 2, o.Revision)
		return appendFixed(b, 3, uint64(o.clock))
	})
}

func appendNamespaceRow(b []byte, n Namespace) []byte {
	return appendMessage(b, 4, func(b []byte) []byte {
		b = appendString(b, 1, n.ID)
		b = appendString(b, 2, n.Name)
		return appendString(b, 3, n.Description)
	})
}

func appendSwitchRow(b []byte, name, value string) []byte {
	return appendMessage(b, 5, func(b []byte) []byte {
		return appendString(appendString(b, 1, name), 2, value)
	})
}

func appendUserRow(b []byte, u User) []byte {
	return appendMessage(b, 6, func(b []byte) []byte {
		return appendString(appendString(b, 1, u.Name), 2, string(u.Password))
	})
}

func appendRoleRow(b []byte, r Role) []byte {
	return appendMessage(b, 7, func(b []byte) []byte {
		b = appendString(b, 1, r.Name)
		b = appendStrings(b, 2, r.Users)
		return appendStrings(b, 3, r.Permissions)
	})
}

func appendDoneRow(b []byte, r *doneRow) []byte {
	return appendMessage(b, 8, func(b []byte) []byte {
		b = protowire.AppendTag(b, 1, protowire.BytesType)
		b = protowire.AppendBytes(b, r.id[:])
		return appendMessage(b, 2, func(b []byte) []byte {
			b = appendNumber(b, 1, r.code)
			b = appendString(b, 2, r.text)
			return appendNumber(b, 3, r.index)
		})
	})
}

func appendService(b []byte, k registry.ServiceKey) []byte {
	return appendMessage(b, 1, func(b []byte) []byte {
		b = appendString(b, 1, k.Namespace)
		b = appendString(b, 2, k.Group)
		return appendString(b, 3, k.Name)
	})
}

// appendMessage puts the length, which is known only afterwards, before what f
// appends.
func appendMessage(b []byte, num protowire.Number, f func([]byte) []byte) []byte {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	at := len(b)
	b = f(append(b, 0)) // room enough for the length of most
	n := len(b) - at - 1
	if more := protowire.SizeVarint(uint64(n)) - 1; more > 0 {
		b = append(b, make([]byte, more)...)
		copy(b[at+1+more:], b[at+1:])
	}
	protowire.AppendVarint(b[:at], uint64(n))
	return b
}

func appendString(b []byte, num protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), s)
}

func appendStrings(b []byte, num protowire.Number, list []string) []byte {
	for _, s := range list {
		b = protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), s)
	}
	return b
}

func appendMetadata(b []byte, num protowire.Number, md registry.Metadata) []byte {
	for _, kv := range md {
		b = protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), kv.Key)
		b = protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), kv.Value)
	}
	return b
}

func appendNumber[N int | int32 | uint64 | pb.Result_Code](b []byte, num protowire.Number, v N) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), uint64(v))
}

func appendFixed(b []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendFixed64(protowire.AppendTag(b, num, protowire.Fixed64Type), v)
}

func appendBool(b []byte, num protowire.Number, v bool) []byte {
	if !v {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), 1)
}

// What can be wrong with a row.
var (
	errRow         = errors.New("malformed row")
	errRowKind     = errors.New("row of a kind that this release does not know")
	errRowOrder    = errors.New("row out of order")
	errRowConflict = errors.New("row that does not fit the others")
)

// load puts a row of a snapshot in. Rows come in the order in which they are
// written, so that nothing has to be searched or moved.
func (t *tables) load(row []byte, last *service) (*service, error) {
	num, typ, n := protowire.ConsumeTag(row)
	if n < 0 || typ != protowire.BytesType {
		return last, errRow
	}
	body, m := protowire.ConsumeBytes(row[n:])
	if m < 0 || n+m != len(row) {
		return last, errRow
	}
	switch num {
	case 1: // by hand: nearly all are
		return t.loadInstance(body, last)
	case 2:
		return t.loadService(body, last)
	case 3:
		return t.loadOverride(body, last)
	case 8:
		return last, t.loadDone(body)
	}
	return last, t.loadNamed(num, body)
}

func (t *tables) loadInstance(body []byte, last *service) (*service, error) {
	var key, in []byte
	p := registry.Persistent{}
	ok := eachField(body, func(num protowire.Number, v uint64, data []byte) {
		switch num {
		case 1:
			key = data
		case 2:
			in = data
		case 3:
			p.Judged = registry.Stamp(v)
		}
	})
	if !ok || !t.readInstance(in, &p) {
		return last, errRow
	}
	var ns, group, name []byte
	if !eachField(key, func(num protowire.Number, _ uint64, data []byte) {
		switch num {
		case 1:
			ns = data
		case 2:
			group = data
		case 3:
			name = data
		}
	}) {
		return last, errRow
	}
	s := last
	if s == nil || s.key.Name != string(name) || s.key.Group != string(group) || s.key.Namespace != string(ns) {
		k := registry.ServiceKey{Namespace: t.names.of(ns), Group: t.names.of(group), Name: string(name)}
		if err := checkService(k); err != nil {
			return last, err
		}
		var err error
		if s, err = t.next(k, last); err != nil {
			return last, err
		}
	}
	if err := checkInstance(p.Instance); err != nil {
		return s, err
	}
	if s.meta != nil && !s.meta.Persistent {
		return s, errRowConflict
	}
	if n := len(s.instances); len(s.overrides) > 0 ||
		n > 0 && (s.instances[n-1].IP > p.IP || s.instances[n-1].IP == p.IP && s.instances[n-1].Port >= p.Port) {
		return s, errRowOrder
	}
	i := &instance{Persistent: p}
	i.hash = t.hashInstance(s.key, &p)
	t.sum += i.hash
	s.instances = append(s.instances, i)
	return s, nil
}

// readInstance keeps what names do not share in one string.
func (t *tables) readInstance(b []byte, p *registry.Persistent) bool {
	i := &registry.Instance{Persistent: true}
	p.Instance = i
	var ip, id []byte
	odd, text, pairs := false, true, 0
	t.scratch = t.scratch[:0]
	ok := eachField(b, func(num protowire.Number, v uint64, data []byte) {
		text = text && utf8.Valid(data)
		switch num {
		case 1:
			ip = data
		case 2:
			i.Port = int(uint32(v))
		case 3:
			i.Cluster = t.names.of(data)
		case 4:
			id = data
		case 5:
			i.Weight = math.Float64frombits(v)
		case 6:
			i.Healthy = v != 0
		case 7:
			i.Enabled = v != 0
		case 8:
			if odd = !odd; odd {
				pairs++
			} else {
				t.scratch = append(t.scratch, data...)
			}
		case 9:
			p.Since = registry.Stamp(v)
		}
	})
	if !ok || !text || odd {
		return false
	}
	t.scratch = append(append(t.scratch, ip...), id...)
	own := string(t.scratch)
	take := func(n int) (s string) {
		s, own = own[:n], own[n:]
		return s
	}
	if pairs > 0 {
		i.Metadata = make(registry.Metadata, 0, pairs)
		var key string
		eachField(b, func(num protowire.Number, _ uint64, data []byte) {
			switch {
			case num != 8:
			case !odd:
				key, odd = t.names.of(data), true
			default:
				i.Metadata, odd = append(i.Metadata, registry.KV{Key: key, Value: take(len(data))}), false
			}
		})
	}
	i.IP, i.ID = take(len(ip)), take(len(id))
	return true
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

// next makes the service that follows in a snapshot.
func (t *tables) next(key registry.ServiceKey, last *service) (*service, error) {
	if last != nil && last.key.Compare(key) >= 0 {
		return nil, errRowOrder
	}
	return t.writable(key), nil
}

func (t *tables) loadService(body []byte, last *service) (*service, error) {
	var m pb.ServiceRow
	if proto.Unmarshal(body, &m) != nil {
		return last, errRow
	}
	key, err := t.serviceKey(m.GetService())
	if err != nil {
		return last, err
	}
	meta := &registry.ServiceMeta{Persistent: m.GetPersistent(), ProtectThreshold: m.GetProtectThreshold(),
		Selector: registry.Selector{Type: m.GetSelectorType(), Expression: m.GetSelectorExpression()}}
	if meta.Metadata, err = t.metadata(m.GetMetadata()); err != nil {
		return last, err
	}
	if len(m.GetClusters()) > 0 {
		meta.Clusters = make(map[string]*registry.ClusterMeta, len(m.GetClusters()))
	}
	for _, c := range m.GetClusters() {
		is, err := t.cluster(c)
		if err != nil {
			return last, err
		}
		if meta.Clusters[is.Name] != nil {
			return last, errRowConflict
		}
		meta.Clusters[is.Name] = is
	}
	if err := checkMeta(meta); err != nil {
		return last, err
	}
	s, err := t.next(key, last)
	if err != nil {
		return last, err
	}
	t.setMeta(s, meta)
	return s, nil
}

func (t *tables) loadOverride(body []byte, last *service) (*service, error) {
	var m pb.OverrideRow
	if proto.Unmarshal(body, &m) != nil {
		return last, errRow
	}
	key, err := t.serviceKey(m.GetEdit().GetService())
	if err != nil {
		return last, err
	}
	o := &override{clock: registry.Stamp(m.GetClock())}
	if o.InstanceKey, o.Override, err = t.edit(m.GetEdit()); err != nil {
		return last, err
	}
	o.Revision = m.GetRevision()
	if o.empty() || m.GetEdit().GetStaysOut() && !o.Evicted {
		return last, errRowConflict
	}
	s := last
	if s == nil || s.key != key {
		if s, err = t.next(key, last); err != nil {
			return last, err
		}
	}
	if n := len(s.overrides); n > 0 && s.overrides[n-1].Compare(o.InstanceKey) >= 0 {
		return s, errRowOrder
	}
	t.setOverride(s, o)
	return s, nil
}

func (t *tables) loadDone(body []byte) error {
	var m pb.DoneRow
	if proto.Unmarshal(body, &m) != nil || len(m.GetId()) != len(commandID{}) {
		return errRow
	}
	r := doneRow{id: commandID(m.GetId()), code: m.GetResult().GetCode(), index: m.GetResult().GetIndex(), text: m.GetResult().GetText()}
	if t.done.find(r.id) != nil || len(t.done.ring) == maxDone {
		return errRowConflict
	}
	t.keep(r)
	return nil
}

func (t *tables) loadNamed(num protowire.Number, body []byte) error {
	switch num {
	case 4:
		var m pb.Namespace
		if proto.Unmarshal(body, &m) != nil {
			return errRow
		}
		n := Namespace{m.GetId(), m.GetName(), m.GetDescription()}
		if _, there := t.namespaces[n.ID]; there {
			return errRowConflict
		}
		set(t, t.namespaces, n.ID, n, appendNamespaceRow)
		return checkNamespace(n)
	case 5:
		var m pb.PutSwitch
		if proto.Unmarshal(body, &m) != nil {
			return errRow
		}
		if _, there := t.switches[m.GetName()]; there || m.GetValue() == "" {
			return errRowConflict
		}
		t.setSwitch(m.GetName(), m.GetValue())
		return checkSwitch(m.GetName(), m.GetValue())
	case 6:
		var m pb.PutUser
		if proto.Unmarshal(body, &m) != nil {
			return errRow
		}
		u := User{m.GetName(), m.GetPassword()}
		if _, there := t.users[u.Name]; there {
			return errRowConflict
		}
		set(t, t.users, u.Name, u, appendUserRow)
		return checkUser(u)
	case 7:
		var m pb.PutRole
		if proto.Unmarshal(body, &m) != nil {
			return errRow
		}
		r := Role{m.GetRole(), m.GetUsers(), m.GetPermissions()}
		if _, there := t.roles[r.Name]; there {
			return errRowConflict
		}
		set(t, t.roles, r.Name, r, appendRoleRow)
		return checkRole(r)
	}
	return fmt.Errorf("%w: %d", errRowKind, num)
}
