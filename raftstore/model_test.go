package raftstore

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/raft"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/starling-registry/starling/pkg/registry"
	pb "github.com/starling-registry/starling/proto"
)

// A shown is a projection that keeps what it is told, and nothing else.
type shown struct {
	services map[registry.ServiceKey]*view
	commits  int
}

type view struct {
	Meta      *registry.ServiceMeta
	Instances map[registry.InstanceKey]registry.Persistent
	Overrides map[registry.InstanceKey]registry.Override
}

func newView() *view {
	return &view{Instances: map[registry.InstanceKey]registry.Persistent{}, Overrides: map[registry.InstanceKey]registry.Override{}}
}

func (s *shown) Commit(changes []registry.Change) {
	s.commits++
	seen := map[registry.ServiceKey]bool{}
	for _, c := range changes {
		if seen[c.Service] {
			panic("a service twice in one commit")
		}
		seen[c.Service] = true
		v := s.services[c.Service]
		if v == nil {
			v = newView()
			s.services[c.Service] = v
		}
		if c.Described {
			v.Meta = c.Meta
		}
		for _, i := range c.Instances {
			if i.Cause == "" {
				panic("a change without a cause")
			}
			if i.Is == nil {
				delete(v.Instances, i.InstanceKey)
			} else {
				v.Instances[i.InstanceKey] = *i.Is
			}
		}
		for _, o := range c.Overrides {
			if o.Cause == "" {
				panic("a change without a cause")
			}
			if o.Is == nil {
				delete(v.Overrides, o.InstanceKey)
			} else {
				v.Overrides[o.InstanceKey] = *o.Is
			}
		}
		if v.Meta == nil && len(v.Instances) == 0 && len(v.Overrides) == 0 {
			delete(s.services, c.Service)
		}
	}
}

// A machine is an fsm and what it has shown.
type machine struct {
	*fsm
	shown *shown
}

func newMachine() *machine {
	s := &shown{services: map[registry.ServiceKey]*view{}}
	return &machine{newFSM(s, registry.NewClock(0, 0), zap.NewNop()), s}
}

func (m *machine) bytes(t testing.TB) []byte {
	t.Helper()
	var file bytes.Buffer
	if err := m.backup(&file); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// check compares what is kept about the tables with what they hold.
func (m *machine) check(t testing.TB) {
	t.Helper()
	file := m.bytes(t)
	again, err := readTables(bytes.NewReader(file))
	if err != nil {
		t.Fatalf("own snapshot: %v", err)
	}
	if again.sum != m.tables.sum || again.index != m.tables.index {
		t.Fatalf("digest %x at %d, of the rows %x at %d", m.tables.sum, m.tables.index, again.sum, again.index)
	}
	var second bytes.Buffer
	if err := again.freeze().write(&second); err != nil || !bytes.Equal(second.Bytes(), file) {
		t.Fatalf("a snapshot that was read is not written the same (%v)", err)
	}
	want := map[registry.ServiceKey]*view{}
	edited := 0
	for key, s := range m.tables.services {
		if s.key != key || s.meta == nil && len(s.instances) == 0 && len(s.overrides) == 0 {
			t.Fatalf("%v has nothing, or another key", key)
		}
		if s.meta != nil && !s.meta.Persistent && len(s.instances) > 0 {
			t.Fatalf("%v is ephemeral and has persistent instances", key)
		}
		v := newView()
		v.Meta = s.meta
		for _, i := range s.instances {
			v.Instances[i.InstanceKey] = i.Persistent
		}
		for _, o := range s.overrides {
			v.Overrides[o.InstanceKey] = o.Override
			if o.empty() || o.StaysOut && !o.Evicted || o.Sticky && !o.Sets() || o.Revision == 0 || o.Revision > m.tables.index {
				t.Fatalf("%v has the edit %+v", key, o)
			}
		}
		want[key] = v
		if _, known := m.tables.edited[key]; known != (len(s.overrides) > 0) {
			t.Fatalf("%v is among those with edits: %v, it has %d", key, known, len(s.overrides))
		} else if known {
			edited++
		}
	}
	if edited != len(m.tables.edited) {
		t.Fatalf("%d services have edits, %d are known", edited, len(m.tables.edited))
	}
	if reflect.DeepEqual(want, m.shown.services) {
		return // many times as fast
	}
	if diff := cmp.Diff(want, m.shown.services); diff != "" {
		t.Fatalf("what is shown differs from the tables (-tables +shown):\n%s", diff)
	}
}

func entry(index uint64, data []byte) *raft.Log {
	return &raft.Log{Index: index, Type: raft.LogCommand, Data: data}
}

func encode(t testing.TB, cmd *pb.Command) []byte {
	t.Helper()
	b, err := proto.Marshal(cmd)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A generator makes commands about few things, so that they meet.
type generator struct {
	*rand.Rand
	n   uint64
	old [][]byte
}

func pick[T any](g *generator, from ...T) T { return from[g.IntN(len(from))] }

func (g *generator) service() *pb.Service {
	return &pb.Service{Namespace: pick(g, "public", "dev"), Group: pick(g, "DEFAULT_GROUP", "DEFAULT_GROUP", "g"), Name: pick(g, "a", "a", "b", "b", "c", "")}
}

func (g *generator) metadata() []string {
	return pick(g, nil, nil, []string{"k", "v"}, []string{"k", "w", "l", ""}, []string{"l", "v", "k", "v"}, []string{"odd"})
}

func (g *generator) ip() string       { return pick(g, "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.3") }
func (g *generator) port() uint32     { return pick[uint32](g, 80, 80, 8080, 8080, 70000) }
func (g *generator) cluster() string  { return pick(g, "DEFAULT", "DEFAULT", "DEFAULT", "c1") }
func (g *generator) yes() bool        { return g.IntN(2) == 0 }
func (g *generator) weight() float64  { return pick(g, 1, 0, 2.5, math.Copysign(0, -1), math.NaN(), -1) }
func (g *generator) maybe() *bool     { return pick(g, nil, new(true), new(false)) }
func (g *generator) amount() *float64 { return pick(g, nil, nil, new(0.0), new(3.0)) }

// next is the bytes of a new entry: mostly a command, now and then one that
// was there before, or rubbish.
func (g *generator) next(t testing.TB) []byte {
	switch {
	case len(g.old) > 0 && g.IntN(10) == 0:
		return g.old[g.IntN(len(g.old))]
	case g.IntN(50) == 0:
		b := slices.Clone(pick(g, append(g.old, []byte("rubbish"))...))
		if len(b) > 0 {
			b[g.IntN(len(b))] ^= byte(1 + g.IntN(255))
		}
		return b
	}
	b := encode(t, g.command())
	g.old = append(g.old, b)
	return b
}

func (g *generator) command() *pb.Command {
	g.n++
	cmd := &pb.Command{Id: binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, 7), g.n), Version: 1,
		Clock: uint64(registry.StampAt(1_700_000_000_000+int64(g.n)-int64(g.IntN(5)))) + 1}
	switch g.IntN(24) {
	case 0, 1, 2, 3, 4, 5:
		cmd.Op = &pb.Command_PutInstance{PutInstance: &pb.PutInstance{Service: g.service(), Instance: &pb.Instance{
			Ip: g.ip(), Port: g.port(), Cluster: g.cluster(), Id: pick(g, "", "id"), Weight: g.weight(), Healthy: g.yes(), Enabled: g.yes(), Metadata: g.metadata()}}}
	case 6, 7, 8:
		cmd.Op = &pb.Command_RemoveInstance{RemoveInstance: &pb.RemoveInstance{Service: g.service(), Ip: g.ip(), Port: g.port()}}
	case 9:
		cmd.Op = &pb.Command_SetHealth{SetHealth: &pb.SetHealth{Service: g.service(), Ip: g.ip(), Port: g.port(), Cluster: g.cluster(), Healthy: g.yes()}}
	case 10:
		cmd.Op = &pb.Command_PutService{PutService: &pb.PutService{Service: g.service(), Create: g.yes(), Persistent: g.yes(),
			ProtectThreshold: g.weight(), SelectorType: pick(g, "", "none"), Metadata: g.metadata()}}
	case 11, 12:
		cmd.Op = &pb.Command_RemoveService{RemoveService: &pb.RemoveService{Service: g.service()}}
	case 13:
		cmd.Op = &pb.Command_PutCluster{PutCluster: &pb.PutCluster{Service: g.service(), Persistent: g.yes(), Cluster: &pb.ServiceCluster{
			Name: g.cluster(), Checker: pick(g, "NONE", "NONE", "TCP"), CheckPort: g.port(), Metadata: g.metadata(), ExpectedCode: 200}}}
	case 14, 15:
		cmd.Op = &pb.Command_PutOverride{PutOverride: &pb.PutOverride{Service: g.service(), Ip: g.ip(), Port: g.port(), Cluster: g.cluster(),
			Merge: g.yes(), Enabled: g.maybe(), Weight: g.amount(), HasMetadata: g.yes(), Metadata: g.metadata(), Sticky: g.IntN(4) == 0,
			Evicted: pick(g, nil, nil, new(true), new(false)), StaysOut: g.yes()}}
		cmd.Version = pick[uint32](g, 1, 2, 2)
	case 22, 23:
		op := &pb.EditMetadata{Service: g.service(), Set: g.metadata(), Remove: pick(g, nil, []string{"k"}, []string{"k", "l"}, []string{"l", "k"})}
		for range g.IntN(4) {
			op.Instances = append(op.Instances, &pb.EditMetadata_Instance{Ip: g.ip(), Port: pick[uint32](g, 80, 8080), Cluster: pick(g, "", "DEFAULT", "DEFAULT", "c1")})
		}
		cmd.Op, cmd.Version = &pb.Command_EditMetadata{EditMetadata: op}, pick[uint32](g, 1, 2, 2, 2)
	case 16:
		cmd.Op = &pb.Command_EndOverrides{EndOverrides: &pb.EndOverrides{Edits: []*pb.EndOverrides_Edit{{Service: g.service(), Ip: g.ip(), Port: g.port(),
			Cluster: g.cluster(), Revision: uint64(g.IntN(3)) * uint64(g.IntN(300)), Sticky: g.yes(), Cause: pick(g, "", "operator")}}}}
	case 17:
		cmd.Op = pick[*pb.Command](g,
			&pb.Command{Op: &pb.Command_PutNamespace{PutNamespace: &pb.PutNamespace{Create: g.yes(), Namespace: &pb.Namespace{Id: pick(g, "dev", "prod"), Name: pick(g, "x", "y")}}}},
			&pb.Command{Op: &pb.Command_RemoveNamespace{RemoveNamespace: &pb.RemoveNamespace{Id: pick(g, "dev", "prod")}}}).GetOp()
	case 18:
		cmd.Op = &pb.Command_PutSwitch{PutSwitch: &pb.PutSwitch{Name: pick(g, "s", "t", ""), Value: pick(g, "", "1", "2")}}
	case 19:
		cmd.Op = pick[*pb.Command](g,
			&pb.Command{Op: &pb.Command_PutUser{PutUser: &pb.PutUser{Name: pick(g, "u", "v"), Password: pick(g, []byte("x"), []byte("y"), nil), Create: g.yes()}}},
			&pb.Command{Op: &pb.Command_RemoveUser{RemoveUser: &pb.RemoveUser{Name: pick(g, "u", "v")}}}).GetOp()
	case 20:
		cmd.Op = pick[*pb.Command](g,
			&pb.Command{Op: &pb.Command_PutRole{PutRole: &pb.PutRole{Role: "r", Users: pick(g, nil, []string{"v", "u"}, []string{"u", "u"}), Permissions: []string{"* r"}}}},
			&pb.Command{Op: &pb.Command_RemoveRole{RemoveRole: &pb.RemoveRole{Role: "r"}}}).GetOp()
	case 21:
		switch g.IntN(3) { // cannot be carried out
		case 0:
			cmd.Version = CommandVersion + 1
		case 1:
			cmd.Id = cmd.Id[:15]
		}
	}
	return cmd
}

// The same log comes to the same tables, results and bytes: one by one or in
// batches, and with snapshots restored in between, which were taken earlier and
// written later than the entries around them.
func TestSameLogSameTables(t *testing.T) {
	for seed := range uint64(25) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			g := &generator{Rand: rand.New(rand.NewPCG(seed, 1))}
			var logs []*raft.Log
			for i := range 400 {
				l := entry(uint64(i+1), g.next(t))
				if g.IntN(20) == 0 {
					l = &raft.Log{Index: l.Index, Type: raft.LogConfiguration}
				}
				logs = append(logs, l)
			}
			single, batched, restored := newMachine(), newMachine(), newMachine()
			var results []any
			for _, l := range logs {
				results = append(results, single.ApplyBatch([]*raft.Log{l})...)
			}
			single.check(t)

			type kept struct {
				snapshot *frozen
				at       int
			}
			var old []kept
			for at := 0; at < len(logs); {
				n := min(1+g.IntN(30), len(logs)-at)
				same(t, results[at:at+n], batched.ApplyBatch(logs[at:at+n]))
				same(t, results[at:at+n], restored.ApplyBatch(logs[at:at+n]))
				at += n
				if g.IntN(2) == 0 {
					old = append(old, kept{restored.freeze(), at})
				}
				if len(old) == 0 || g.IntN(3) > 0 {
					continue
				}
				// A follower starts again from a snapshot that was taken a while
				// ago, an empty one or one that is even further.
				k := pick(g, old...)
				var file bytes.Buffer
				if err := k.snapshot.write(&file); err != nil {
					t.Fatal(err)
				}
				if g.IntN(4) == 0 {
					restored = newMachine()
				}
				if err := restored.Restore(io.NopCloser(&file)); err != nil {
					t.Fatal(err)
				}
				restored.check(t)
				same(t, results[k.at:at], restored.ApplyBatch(logs[k.at:at]))
			}
			batched.check(t)
			restored.check(t)
			if a, b, c := single.bytes(t), batched.bytes(t), restored.bytes(t); !bytes.Equal(a, b) || !bytes.Equal(a, c) {
				t.Fatal("the snapshots differ")
			}
			if len(single.tables.services) == 0 || single.shown.commits <= batched.shown.commits {
				t.Fatal("the test does too little")
			}
		})
	}
}

func same(t *testing.T, want, got []any) {
	t.Helper()
	if slices.EqualFunc(want, got, func(a, b any) bool {
		x, _ := a.(*pb.Result)
		y, _ := b.(*pb.Result)
		return proto.Equal(x, y)
	}) {
		return
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Fatalf("results differ (-want +got):\n%s", diff)
	}
}
