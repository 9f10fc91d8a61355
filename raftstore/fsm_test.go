package raftstore

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/hashicorp/raft"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/starling-registry/starling/pkg/registry"
	pb "github.com/starling-registry/starling/proto"
)

// A script applies one command after the other, a second apart.
type script struct {
	*testing.T
	*machine
	n     uint64
	heard [][]registry.Change // of the last command
}

func (s *script) Commit(changes []registry.Change) {
	s.heard = append(s.heard, changes)
	s.shown.Commit(changes)
}

func newScript(t *testing.T) *script {
	s := &script{T: t, machine: newMachine()}
	s.fsm.projection = s
	return s
}

const second0 = 1_700_000_000

// stamp is the clock of the nth command.
func stamp(n uint64) registry.Stamp { return registry.StampAt((second0 + int64(n)) * 1000) }

func (s *script) do(cmd *pb.Command) *pb.Result {
	s.n++
	cmd.Id, cmd.Clock, cmd.Version = binary.BigEndian.AppendUint64(make([]byte, 8), s.n), uint64(stamp(s.n)), 1
	return s.again(cmd)
}

func (s *script) again(cmd *pb.Command) *pb.Result {
	s.heard = nil
	return s.Apply(entry(s.tables.index+1, encode(s, cmd))).(*pb.Result)
}

// want fails unless the command came to that. text may be a part.
func (s *script) want(code pb.Result_Code, text string, cmd *pb.Command) {
	s.Helper()
	if r := s.do(cmd); r.GetCode() != code || !strings.Contains(r.GetText(), text) || (r.GetText() == "") != (code == pb.Result_DONE) {
		s.Fatalf("%v\ncame to %v %q, want %v %q", cmd, r.GetCode(), r.GetText(), code, text)
	}
	if code != pb.Result_DONE && s.heard != nil {
		s.Fatalf("%v was refused and changed %+v", cmd, s.heard)
	}
}

func (s *script) done(cmd *pb.Command) { s.Helper(); s.want(pb.Result_DONE, "", cmd) }

// nothing: the command was done and there was nothing to do.
func (s *script) nothing(cmd *pb.Command) {
	s.Helper()
	s.done(cmd)
	if s.heard != nil {
		s.Fatalf("%v changed %+v", cmd, s.heard)
	}
}

// tells compares what the projection heard of the last command, whose clock the
// changes have unless want has another.
func (s *script) tells(want ...registry.Change) {
	s.Helper()
	for _, c := range want {
		for n := range c.Instances {
			c.Instances[n].Clock = cmp.Or(c.Instances[n].Clock, stamp(s.n))
		}
		for n := range c.Overrides {
			c.Overrides[n].Clock = cmp.Or(c.Overrides[n].Clock, stamp(s.n))
		}
	}
	var got []registry.Change
	if len(s.heard) > 0 {
		got = s.heard[0]
	}
	if diff := gocmp.Diff(want, got); diff != "" || len(s.heard) > 1 {
		s.Fatalf("%d commits (-want +got):\n%s", len(s.heard), diff)
	}
}

var (
	demo    = registry.ServiceKey{Namespace: "public", Group: "DEFAULT_GROUP", Name: "demo"}
	demoKey = registry.InstanceKey{IP: "10.0.0.1", Port: 80, Cluster: "DEFAULT"}
)

func putInstance(f func(*pb.Instance)) *pb.Command {
	i := &pb.Instance{Ip: demoKey.IP, Port: uint32(demoKey.Port), Cluster: demoKey.Cluster, Weight: 1, Healthy: true, Enabled: true, Metadata: []string{"k", "v"}}
	if f != nil {
		f(i)
	}
	return &pb.Command{Op: &pb.Command_PutInstance{PutInstance: &pb.PutInstance{Service: serviceMessage(demo), Instance: i}}}
}

func removeInstance() *pb.Command {
	return &pb.Command{Op: &pb.Command_RemoveInstance{RemoveInstance: &pb.RemoveInstance{Service: serviceMessage(demo), Ip: demoKey.IP, Port: uint32(demoKey.Port)}}}
}

func putService(f func(*pb.PutService)) *pb.Command {
	op := &pb.PutService{Service: serviceMessage(demo)}
	if f != nil {
		f(op)
	}
	return &pb.Command{Op: &pb.Command_PutService{PutService: op}}
}

func removeService() *pb.Command {
	return &pb.Command{Op: &pb.Command_RemoveService{RemoveService: &pb.RemoveService{Service: serviceMessage(demo)}}}
}

func putCluster(f func(*pb.PutCluster)) *pb.Command {
	op := &pb.PutCluster{Service: serviceMessage(demo), Cluster: &pb.ServiceCluster{Name: "DEFAULT", Checker: "NONE"}}
	if f != nil {
		f(op)
	}
	return &pb.Command{Op: &pb.Command_PutCluster{PutCluster: op}}
}

func setHealth(healthy bool) *pb.Command {
	return &pb.Command{Op: &pb.Command_SetHealth{SetHealth: &pb.SetHealth{Service: serviceMessage(demo), Ip: demoKey.IP, Port: uint32(demoKey.Port),
		Cluster: demoKey.Cluster, Healthy: healthy}}}
}

func putOverride(f func(*pb.PutOverride)) *pb.Command {
	op := &pb.PutOverride{Service: serviceMessage(demo), Ip: demoKey.IP, Port: uint32(demoKey.Port), Cluster: demoKey.Cluster}
	if f != nil {
		f(op)
	}
	return &pb.Command{Op: &pb.Command_PutOverride{PutOverride: op}}
}

func endOverrides(f func(*pb.EndOverrides_Edit)) *pb.Command {
	e := &pb.EndOverrides_Edit{Service: serviceMessage(demo), Ip: demoKey.IP, Port: uint32(demoKey.Port), Cluster: demoKey.Cluster}
	if f != nil {
		f(e)
	}
	return &pb.Command{Op: &pb.Command_EndOverrides{EndOverrides: &pb.EndOverrides{Edits: []*pb.EndOverrides_Edit{e}}}}
}

func persistent(since, judged uint64, f func(*registry.Instance)) *registry.Persistent {
	i := &registry.Instance{InstanceKey: demoKey, Weight: 1, Healthy: true, Enabled: true, Metadata: registry.Metadata{{Key: "k", Value: "v"}}, Persistent: true}
	if f != nil {
		f(i)
	}
	return &registry.Persistent{Instance: i, Since: stamp(since), Judged: stamp(judged)}
}

func instances(c ...registry.PersistentChange) registry.Change {
	return registry.Change{Service: demo, Instances: c}
}

func TestPutInstance(t *testing.T) {
	s := newScript(t)
	s.done(putInstance(nil))
	s.tells(instances(registry.PersistentChange{InstanceKey: demoKey, Is: persistent(1, 1, nil), Cause: registry.CauseRegistered}))
	s.nothing(putInstance(nil))
	// Registering again says nothing of its health: the prober does.
	s.nothing(putInstance(func(i *pb.Instance) { i.Healthy = false }))
	s.done(putInstance(func(i *pb.Instance) { i.Healthy, i.Weight = false, 5 }))
	s.tells(instances(registry.PersistentChange{InstanceKey: demoKey, Is: persistent(1, 1, func(i *registry.Instance) { i.Weight = 5 }), Cause: registry.CauseChanged}))

	// Its address stands once in the service.
	moved := demoKey
	moved.Cluster = "c1"
	s.done(putInstance(func(i *pb.Instance) { i.Cluster = "c1" }))
	s.tells(instances(
		registry.PersistentChange{InstanceKey: demoKey, Cause: registry.CauseReplaced},
		registry.PersistentChange{InstanceKey: moved, Is: persistent(1, 1, func(i *registry.Instance) { i.InstanceKey = moved }), Cause: registry.CauseRegistered}))
	s.check(t)

	s.done(removeInstance())
	s.tells(instances(registry.PersistentChange{InstanceKey: moved, Cause: registry.CauseDeregistered}))
	s.nothing(removeInstance()) // D18
	if len(s.tables.services) != 0 {
		t.Fatal("a service without anything is kept")
	}
	s.done(putInstance(nil))
	s.tells(instances(registry.PersistentChange{InstanceKey: demoKey, Is: persistent(s.n, s.n, nil), Cause: registry.CauseRegistered}))
	s.check(t)
}

func TestInvalid(t *testing.T) {
	s := newScript(t)
	for _, cmd := range []*pb.Command{
		putInstance(func(i *pb.Instance) { i.Weight = math.NaN() }),
		putInstance(func(i *pb.Instance) { i.Weight = math.Inf(1) }),
		putInstance(func(i *pb.Instance) { i.Weight = -0.1 }),
		putInstance(func(i *pb.Instance) { i.Port = 65536 }),
		putInstance(func(i *pb.Instance) { i.Ip = "" }),
		putInstance(func(i *pb.Instance) { i.Cluster = "" }),
		putInstance(func(i *pb.Instance) { i.Metadata = []string{"k"} }),
		putInstance(func(i *pb.Instance) { i.Metadata = []string{"l", "", "k", ""} }),
		putInstance(func(i *pb.Instance) { i.Metadata = []string{"k", "", "k", ""} }),
		putInstance(func(i *pb.Instance) { i.Metadata = []string{"k", strings.Repeat("x", maxMetadata)} }),
		putInstance(func(i *pb.Instance) { i.Ip = strings.Repeat("x", maxIP+1) }),
		{Op: &pb.Command_PutInstance{PutInstance: &pb.PutInstance{Service: serviceMessage(demo)}}},
		{Op: &pb.Command_PutInstance{PutInstance: &pb.PutInstance{Instance: &pb.Instance{Ip: "1", Cluster: "c"}}}},
		{Op: &pb.Command_PutInstance{}},
		{Op: &pb.Command_RemoveInstance{}},
		{Op: &pb.Command_SetHealth{}},
		{Op: &pb.Command_RemoveService{}},
		{Op: &pb.Command_PutOverride{}},
		{Op: &pb.Command_PutNamespace{}},
		{Op: &pb.Command_PutUser{}},
		{Op: &pb.Command_PutRole{}},
		{Op: &pb.Command_EndOverrides{EndOverrides: &pb.EndOverrides{Edits: make([]*pb.EndOverrides_Edit, maxEdits+1)}}},
		{},
		putService(func(op *pb.PutService) { op.ProtectThreshold = math.NaN() }),
		putService(func(op *pb.PutService) { op.Service = &pb.Service{Namespace: "public", Group: "g"} }),
		putCluster(func(op *pb.PutCluster) { op.Cluster = nil }),
		putCluster(func(op *pb.PutCluster) { op.Cluster.CheckPort = 70000 }),
		putCluster(func(op *pb.PutCluster) { op.Cluster.ExpectedCode = 1000 }),
		putOverride(func(op *pb.PutOverride) { op.Weight = new(math.NaN()) }),
		{Op: &pb.Command_PutSwitch{PutSwitch: &pb.PutSwitch{Name: strings.Repeat("s", maxSwitch+1), Value: "1"}}},
		{Op: &pb.Command_PutRole{PutRole: &pb.PutRole{Role: "r", Users: []string{""}}}},
	} {
		for n, e := range cmd.GetEndOverrides().GetEdits() {
			if e == nil {
				cmd.GetEndOverrides().Edits[n] = &pb.EndOverrides_Edit{}
			}
		}
		s.want(pb.Result_INVALID, "", cmd)
	}
	if !s.empty() {
		t.Fatalf("something was kept: %v", s.rows())
	}
	// Zero is zero, with or without a sign.
	s.done(putInstance(func(i *pb.Instance) { i.Weight = 0 }))
	s.nothing(putInstance(func(i *pb.Instance) { i.Weight = math.Copysign(0, -1) }))
	s.done(putService(func(op *pb.PutService) { op.ProtectThreshold = 1.5 })) // as Nacos does

	for name, data := range map[string][]byte{
		"rubbish":      []byte("rubbish"),
		"empty":        nil,
		"no id":        encode(t, &pb.Command{Version: 1, Clock: 1, Op: putInstance(nil).GetOp()}),
		"no clock":     encode(t, &pb.Command{Version: 1, Id: make([]byte, 16), Op: putInstance(nil).GetOp()}),
		"not UTF-8":    bytes.Replace(encode(t, &pb.Command{Version: 1, Clock: 1, Id: make([]byte, 16), Op: putInstance(nil).GetOp()}), []byte("demo"), []byte("dem\xff"), 1),
		"cut":          encode(t, &pb.Command{Version: 1, Clock: 1, Id: make([]byte, 16), Op: putInstance(nil).GetOp()})[:40],
		"an odd group": {0x0b, 0x0b, 0x0b},
	} {
		index, sum := s.digest()
		r := s.Apply(entry(index+1, data)).(*pb.Result)
		if r.GetCode() != pb.Result_INVALID || r.GetText() == "" || r.GetIndex() != index+1 {
			t.Errorf("%s: %v", name, r)
		}
		if i, is := s.digest(); is != sum || i != index+1 {
			t.Errorf("%s: the tables have changed", name)
		}
	}
	s.check(t)
}

func TestKinds(t *testing.T) {
	s := newScript(t)
	s.done(putService(nil)) // ephemeral
	s.want(pb.Result_WRONG_KIND, "Current service DEFAULT_GROUP@@demo is ephemeral service, can't register persistent instance.", putInstance(nil))
	s.nothing(putService(func(op *pb.PutService) { op.Persistent = true })) // its kind stays
	s.done(removeService())
	s.done(putInstance(nil))
	s.want(pb.Result_EXISTS, "specified service DEFAULT_GROUP@@demo already exists!", putService(func(op *pb.PutService) { op.Create = true }))
	s.want(pb.Result_NOT_EMPTY, "Service DEFAULT_GROUP@@demo is not empty, can't be delete. Please unregister instance first", removeService())

	// Who describes it cannot make it ephemeral, by whatever way.
	s.done(putService(nil))
	s.tells(registry.Change{Service: demo, Described: true, Meta: &registry.ServiceMeta{Persistent: true}})
	s.want(pb.Result_NOT_EMPTY, "", removeService())
	s.done(removeInstance())
	s.done(removeService())
	s.tells(registry.Change{Service: demo, Described: true})
	// Readers hear of it all the same: one that only waits to be cleaned up goes.
	if r := s.do(removeService()); r.GetCode() != pb.Result_NOT_FOUND || r.GetText() != "service DEFAULT_GROUP@@demo not found!" {
		t.Errorf("%v", r)
	}
	s.tells(registry.Change{Service: demo, Described: true})
	s.done(putInstance(nil))
	s.done(putCluster(nil))
	s.tells(registry.Change{Service: demo, Described: true, Meta: &registry.ServiceMeta{Persistent: true,
		Clusters: map[string]*registry.ClusterMeta{"DEFAULT": {Name: "DEFAULT", Checker: registry.Checker{Type: "NONE"}}}}})
	s.check(t)
}

func TestDescriptions(t *testing.T) {
	s := newScript(t)
	s.done(putCluster(func(op *pb.PutCluster) { op.Persistent = true }))
	s.nothing(putCluster(nil))
	s.done(putService(func(op *pb.PutService) { op.ProtectThreshold, op.Metadata = 0.5, []string{"a", "b"} }))
	want := &registry.ServiceMeta{Persistent: true, ProtectThreshold: 0.5, Metadata: registry.Metadata{{Key: "a", Value: "b"}},
		Clusters: map[string]*registry.ClusterMeta{"DEFAULT": {Name: "DEFAULT", Checker: registry.Checker{Type: "NONE"}}}} // V14
	s.tells(registry.Change{Service: demo, Described: true, Meta: want})
	s.done(putCluster(func(op *pb.PutCluster) { op.Cluster.Name = "c1" }))
	if diff := gocmp.Diff(want, s.tables.services[demo].meta); !strings.Contains(diff, `"c1"`) {
		t.Error("the second cluster is missing")
	}
	if len(want.Clusters) != 1 {
		t.Error("a description that was handed out has changed")
	}
	// A service cannot be made so large that a snapshot could not be read.
	for n := range 400 {
		r := s.do(putCluster(func(op *pb.PutCluster) {
			op.Cluster.Name, op.Cluster.Path = fmt.Sprint("big", n), strings.Repeat("x", maxSetting)
		}))
		if r.GetCode() == pb.Result_INVALID {
			s.check(t)
			return
		}
	}
	t.Error("a service of any size is taken")
}

func TestSetHealth(t *testing.T) {
	s := newScript(t)
	s.want(pb.Result_INVALID, "health check is still working, service: DEFAULT_GROUP@@demo, cluster: DEFAULT", setHealth(true)) // H21
	s.done(putCluster(func(op *pb.PutCluster) { op.Persistent = true }))
	s.want(pb.Result_NOT_FOUND, "10.0.0.1:80", setHealth(true))
	s.done(putInstance(nil))
	since := s.n
	s.done(setHealth(false))
	s.tells(instances(registry.PersistentChange{InstanceKey: demoKey, Is: persistent(since, s.n, func(i *registry.Instance) { i.Healthy = false }), Cause: registry.CauseOperator}))
	// A word of now beats older checks though it says the same.
	s.done(setHealth(false))
	s.tells(instances(registry.PersistentChange{InstanceKey: demoKey, Is: persistent(since, s.n, func(i *registry.Instance) { i.Healthy = false }), Cause: registry.CauseOperator}))
	// The clock of who was asked may be behind, the log decides.
	late := setHealth(true)
	late.Id, late.Clock, late.Version = []byte("0123456789abcdef"), uint64(stamp(1)), 1
	s.again(late)
	if p := s.tables.services[demo].instances[0].Persistent; !p.Healthy || p.Judged != stamp(s.n)+1 {
		t.Errorf("healthy %v, judged %v", p.Healthy, p.Judged)
	}
	s.done(putCluster(func(op *pb.PutCluster) { op.Cluster.Checker = "TCP" }))
	s.want(pb.Result_INVALID, "still working", setHealth(true))
	s.check(t)
}

func TestOverrides(t *testing.T) {
	s := newScript(t)
	edit := func(o *registry.Override, cause registry.Cause) registry.Change {
		return registry.Change{Service: demo, Overrides: []registry.OverrideChange{{InstanceKey: demoKey, Is: o, Cause: cause}}}
	}
	s.done(putOverride(func(op *pb.PutOverride) { op.Enabled = new(false) }))
	s.tells(edit(&registry.Override{Enabled: new(false), Revision: 1}, registry.CauseOperator))
	s.done(putOverride(func(op *pb.PutOverride) { op.Merge, op.Weight = true, new(2.0) }))
	s.tells(edit(&registry.Override{Enabled: new(false), Weight: new(2.0), Revision: 2}, registry.CauseOperator))
	s.done(putOverride(func(op *pb.PutOverride) { op.Merge, op.HasMetadata, op.Metadata = true, true, []string{"a", "b"} }))
	s.done(putOverride(func(op *pb.PutOverride) { op.Merge, op.Sticky = true, true }))
	s.tells(edit(&registry.Override{Enabled: new(false), Weight: new(2.0), Metadata: registry.Metadata{{Key: "a", Value: "b"}}, Sticky: true, Revision: 4}, registry.CauseOperator))
	s.done(putOverride(func(op *pb.PutOverride) { op.Merge, op.HasMetadata = true, true }))
	s.tells(edit(&registry.Override{Enabled: new(false), Weight: new(2.0), Sticky: true, Revision: 5}, registry.CauseOperator))
	s.done(putOverride(func(op *pb.PutOverride) { op.Weight = new(0.0) })) // in place of all that
	s.tells(edit(&registry.Override{Weight: new(0.0), Revision: 6}, registry.CauseOperator))

	// The same again is newer all the same: who ends the older one does not
	// end this.
	s.done(putOverride(func(op *pb.PutOverride) { op.Weight = new(0.0) }))
	s.nothing(endOverrides(func(e *pb.EndOverrides_Edit) { e.Revision = 6 }))
	s.done(endOverrides(func(e *pb.EndOverrides_Edit) { e.Revision = 7 }))
	s.tells(edit(nil, registry.CauseOverrideEnded))

	// Sticky ones are ended on purpose only.
	sticky := putOverride(func(op *pb.PutOverride) { op.Enabled, op.Sticky = new(true), true })
	s.done(sticky)
	s.nothing(endOverrides(nil))
	s.done(endOverrides(func(e *pb.EndOverrides_Edit) { e.Sticky, e.Cause = true, "operator" }))
	s.tells(edit(nil, registry.CauseOperator))
	s.done(sticky)
	s.done(putInstance(nil))
	s.done(removeInstance())
	s.tells(instances(registry.PersistentChange{InstanceKey: demoKey, Cause: registry.CauseDeregistered}))
	s.done(removeService())
	s.tells(edit(nil, registry.CauseOperator))

	// A stranger on the same address does not inherit the others.
	s.done(putInstance(nil))
	s.done(putOverride(func(op *pb.PutOverride) { op.Enabled = new(false) }))
	s.done(removeInstance())
	s.tells(registry.Change{Service: demo, Instances: []registry.PersistentChange{{InstanceKey: demoKey, Cause: registry.CauseDeregistered}},
		Overrides: []registry.OverrideChange{{InstanceKey: demoKey, Cause: registry.CauseOverrideEnded}}})

	// An edit that says nothing is none.
	s.nothing(putOverride(nil))
	s.done(putOverride(func(op *pb.PutOverride) { op.Enabled = new(false) }))
	s.done(putOverride(nil))
	s.tells(edit(nil, registry.CauseOperator))
	if !s.empty() || len(s.tables.services) > 0 {
		t.Errorf("left: %v", s.rows())
	}
	s.check(t)
}

func TestOthers(t *testing.T) {
	s := newScript(t)
	namespace := func(create bool, name string) *pb.Command {
		return &pb.Command{Op: &pb.Command_PutNamespace{PutNamespace: &pb.PutNamespace{Create: create, Namespace: &pb.Namespace{Id: "dev", Name: name}}}}
	}
	user := func(create bool) *pb.Command {
		return &pb.Command{Op: &pb.Command_PutUser{PutUser: &pb.PutUser{Create: create, Name: "ann", Password: []byte{1, 2}}}}
	}
	s.done(namespace(true, "d"))
	s.want(pb.Result_EXISTS, "namespaceId [dev] already exist.", namespace(true, "e"))
	s.done(namespace(false, "e"))
	s.done(user(true))
	s.want(pb.Result_EXISTS, `"ann"`, user(true))
	s.done(user(false))
	s.done(&pb.Command{Op: &pb.Command_PutRole{PutRole: &pb.PutRole{Role: "r", Users: []string{"bob", "ann", "bob"}, Permissions: []string{"* r"}}}})
	s.done(&pb.Command{Op: &pb.Command_PutSwitch{PutSwitch: &pb.PutSwitch{Name: "healthCheckEnabled", Value: "false"}}})
	s.check(t)

	store := &Store{fsm: s.fsm}
	if diff := gocmp.Diff([]Namespace{{ID: "dev", Name: "e"}}, store.Namespaces()); diff != "" {
		t.Error(diff)
	}
	if diff := gocmp.Diff([]Role{{Name: "r", Users: []string{"ann", "bob"}, Permissions: []string{"* r"}}}, store.Roles()); diff != "" {
		t.Error(diff)
	}
	if diff := gocmp.Diff(map[string]string{"healthCheckEnabled": "false"}, store.Switches()); diff != "" {
		t.Error(diff)
	}
	u, there := store.User("ann")
	u.Password[0] = 9
	store.Users()[0].Password[0] = 9
	store.Roles()[0].Users[0] = "x"
	if again, _ := store.User("ann"); !there || again.Password[0] != 1 || store.Roles()[0].Users[0] != "ann" {
		t.Error("what is read is not a copy")
	}

	// A later user of that name is another.
	s.done(&pb.Command{Op: &pb.Command_RemoveUser{RemoveUser: &pb.RemoveUser{Name: "ann"}}})
	if diff := gocmp.Diff([]string{"bob"}, store.Roles()[0].Users); diff != "" {
		t.Error(diff)
	}
	for _, cmd := range []*pb.Command{
		{Op: &pb.Command_RemoveUser{RemoveUser: &pb.RemoveUser{Name: "ann"}}},
		{Op: &pb.Command_RemoveRole{RemoveRole: &pb.RemoveRole{Role: "s"}}},
		{Op: &pb.Command_RemoveNamespace{RemoveNamespace: &pb.RemoveNamespace{Id: "prod"}}},
	} {
		s.want(pb.Result_NOT_FOUND, "not found", cmd)
	}
	s.done(&pb.Command{Op: &pb.Command_RemoveRole{RemoveRole: &pb.RemoveRole{Role: "r"}}})
	s.done(&pb.Command{Op: &pb.Command_RemoveNamespace{RemoveNamespace: &pb.RemoveNamespace{Id: "dev"}}})
	s.done(&pb.Command{Op: &pb.Command_PutSwitch{PutSwitch: &pb.PutSwitch{Name: "healthCheckEnabled"}}})
	s.nothing(&pb.Command{Op: &pb.Command_PutSwitch{PutSwitch: &pb.PutSwitch{Name: "healthCheckEnabled"}}})
	if !s.empty() {
		t.Errorf("left: %v", s.rows())
	}
	s.check(t)
}

// Whoever goes by the switches is told all of them when one has changed, and
// when all may have, and no more often.
func TestSwitched(t *testing.T) {
	s := newScript(t)
	var told []map[string]string
	var names [][]string
	s.fsm.switched = func(all map[string]string, set []string) { told, names = append(told, all), append(names, set) }
	put := func(name, value string) {
		s.done(&pb.Command{Op: &pb.Command_PutSwitch{PutSwitch: &pb.PutSwitch{Name: name, Value: value}}})
	}
	want := func(all ...map[string]string) {
		t.Helper()
		if diff := gocmp.Diff(all, told); diff != "" {
			t.Error(diff)
		}
		told = nil
	}
	put("a", "1")
	put("b", "2")
	want(map[string]string{"a": "1"}, map[string]string{"a": "1", "b": "2"})
	put("b", "2") // once more
	want(map[string]string{"a": "1", "b": "2"})
	s.done(putInstance(nil))
	s.want(pb.Result_INVALID, "", &pb.Command{Op: &pb.Command_PutSwitch{PutSwitch: &pb.PutSwitch{Name: ""}}})
	want()
	var snapshot bytes.Buffer
	if err := s.fsm.backup(&snapshot); err != nil {
		t.Fatal(err)
	}
	put("a", "")
	put("b", "2") // as it is
	want(map[string]string{"b": "2"}, map[string]string{"b": "2"})
	if err := s.fsm.Restore(io.NopCloser(&snapshot)); err != nil {
		t.Fatal(err)
	}
	want(map[string]string{"a": "1", "b": "2"})
	if diff := gocmp.Diff([][]string{{"a"}, {"b"}, {"b"}, {"a"}, {"b"}, nil}, names); diff != "" {
		t.Error(diff)
	}
}

// A command that comes twice, because its sender did not hear of the first, is
// done once.
func TestRepeated(t *testing.T) {
	s := newScript(t)
	first := putInstance(nil)
	s.done(first)
	refused := putService(func(op *pb.PutService) { op.Create = true })
	s.want(pb.Result_EXISTS, "", refused)
	s.done(removeInstance())
	_, sum := s.digest()
	for range 2 {
		if r := s.again(first); r.GetCode() != pb.Result_DONE || r.GetIndex() != 1 || s.heard != nil {
			t.Errorf("done again: %v", r)
		}
		if r := s.again(refused); r.GetCode() != pb.Result_EXISTS || r.GetIndex() != 2 || r.GetText() == "" {
			t.Errorf("judged again, when it would have been done: %v", r)
		}
		if _, again := s.digest(); again != sum {
			t.Error("a repetition has changed something")
		}
		// A node that knows the log from a snapshot only is no different.
		next := newScript(t)
		if err := next.Restore(io.NopCloser(bytes.NewReader(s.bytes(t)))); err != nil {
			t.Fatal(err)
		}
		next.n = s.n
		s = next
	}
}

func TestOldestResultsAreForgotten(t *testing.T) {
	s := newScript(t)
	logs := make([]*raft.Log, maxDone+100)
	for n := range logs {
		cmd := &pb.Command{Version: 1, Clock: uint64(stamp(1)), Id: binary.BigEndian.AppendUint64(make([]byte, 8), uint64(n)),
			Op: &pb.Command_RemoveUser{RemoveUser: &pb.RemoveUser{Name: strings.Repeat("x", 200)}}} // refused with a long text
		logs[n] = entry(uint64(n+1), encode(t, cmd))
	}
	applyAll(s.fsm, logs, 512)
	check := func() {
		t.Helper()
		d := &s.tables.done
		texts := 0
		for _, r := range d.ring {
			texts += len(r.text)
		}
		if len(d.ring) != maxDone || len(d.at) != maxDone || d.texts != texts || texts > maxDoneTexts {
			t.Fatalf("%d results, %d ids, texts of %d bytes, said to be %d", len(d.ring), len(d.at), texts, d.texts)
		}
	}
	check()
	if r := s.Apply(entry(maxDone+101, logs[100].Data)).(*pb.Result); r.GetIndex() != 101 {
		t.Errorf("the oldest one that is kept came to %v", r)
	}
	if r := s.Apply(entry(maxDone+102, logs[99].Data)).(*pb.Result); r.GetIndex() != maxDone+102 {
		t.Errorf("one that is not kept came to %v", r)
	}
	check()
	// What is read back forgets in the same order.
	again := newMachine()
	if err := again.Restore(io.NopCloser(bytes.NewReader(s.bytes(t)))); err != nil {
		t.Fatal(err)
	}
	for n := range 200 {
		l := entry(uint64(maxDone+103+n), logs[n].Data)
		if a, b := s.Apply(l).(*pb.Result), again.Apply(l).(*pb.Result); !proto.Equal(a, b) {
			t.Fatalf("%v and %v", a, b)
		}
	}
	check()
	s.check(t)
	if !bytes.Equal(s.bytes(t), again.bytes(t)) {
		t.Error("the snapshots differ")
	}
}

func TestNewerCommand(t *testing.T) {
	s := newScript(t)
	cmd := putInstance(nil)
	cmd.Id, cmd.Clock, cmd.Version = []byte("0123456789abcdef"), 1, CommandVersion+1
	if r := s.again(cmd); r.GetCode() != pb.Result_NOT_UNDERSTOOD || s.heard != nil {
		t.Errorf("came to %v", r)
	}
	if err := refusal(s.again(cmd)); !errors.Is(err, ErrNotUnderstood) {
		t.Errorf("%v", err)
	}
}

// Stamps made after a command are above its own; one from a clock that runs
// wild does not take the others along.
func TestClockFollowsTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript(t)
		put := func(n int, clock registry.Stamp) {
			cmd := putInstance(func(i *pb.Instance) { i.Port = uint32(n) })
			cmd.Id, cmd.Clock, cmd.Version = fmt.Appendf(nil, "%016d", n), uint64(clock), 1
			if r := s.again(cmd); r.GetCode() != pb.Result_DONE {
				t.Fatal(r)
			}
			if p := s.tables.services[demo].instances[n-1].Persistent; p.Since != clock {
				t.Errorf("since %v, and elsewhere %v", p.Since.Time(), clock.Time())
			}
		}
		ahead := registry.StampAt(time.Now().Add(time.Minute).UnixMilli())
		put(1, ahead)
		if now := s.fsm.clock.Now(); now <= ahead {
			t.Errorf("%v is not after %v", now.Time(), ahead.Time())
		}
		put(2, registry.StampAt(time.Now().Add(1000*24*time.Hour).UnixMilli()))
		if now := s.fsm.clock.Now().Time(); time.Until(now) > maxAhead+time.Second {
			t.Errorf("the clock is at %v", now)
		}
		later := newMachine()
		if err := later.Restore(io.NopCloser(bytes.NewReader(s.bytes(t)))); err != nil {
			t.Fatal(err)
		}
		if now := later.fsm.clock.Now(); now <= ahead || time.Until(now.Time()) > maxAhead+time.Second {
			t.Errorf("after a restore the clock is at %v", now.Time())
		}
	})
}

// The rows of a batch come to readers as one, each once, with its last state.
func TestOneCommitForABatch(t *testing.T) {
	s := newScript(t)
	var logs []*raft.Log
	for n, cmd := range []*pb.Command{putInstance(nil), removeInstance(), putInstance(func(i *pb.Instance) { i.Weight = 2 }),
		putOverride(func(op *pb.PutOverride) { op.Enabled = new(false) }), putService(nil), putService(func(op *pb.PutService) { op.ProtectThreshold = 1 })} {
		cmd.Id, cmd.Clock, cmd.Version = fmt.Appendf(nil, "%016d", n), uint64(stamp(uint64(n))), 1
		logs = append(logs, entry(uint64(n+1), encode(t, cmd)))
	}
	logs = append(logs, &raft.Log{Index: 7, Type: raft.LogConfiguration})
	if r := s.ApplyBatch(logs); len(r) != 7 || r[6] != nil {
		t.Errorf("results %v", r)
	}
	s.tells(registry.Change{Service: demo, Described: true, Meta: &registry.ServiceMeta{Persistent: true, ProtectThreshold: 1},
		Instances: []registry.PersistentChange{{InstanceKey: demoKey, Is: persistent(2, 2, func(i *registry.Instance) { i.Weight = 2 }), Cause: registry.CauseRegistered, Clock: stamp(2)}},
		Overrides: []registry.OverrideChange{{InstanceKey: demoKey, Is: &registry.Override{Enabled: new(false), Revision: 4}, Cause: registry.CauseOperator, Clock: stamp(3)}}})
	s.check(t)
}

// What many instances have in common is there once.
func TestStringsAreShared(t *testing.T) {
	f := newFSM(unread{}, registry.NewClock(0, 0), zap.NewNop())
	applyAll(f, registrations(40), 40)
	again := newFSM(unread{}, registry.NewClock(0, 0), zap.NewNop())
	var file bytes.Buffer
	if err := f.backup(&file); err != nil {
		t.Fatal(err)
	}
	if err := again.Restore(io.NopCloser(&file)); err != nil {
		t.Fatal(err)
	}
	for _, f := range []*fsm{f, again} {
		texts := map[string]int{}
		for _, s := range f.tables.services {
			for _, i := range s.instances {
				for _, name := range []string{s.key.Namespace, s.key.Group, i.Cluster, i.Metadata[0].Key, i.Metadata[1].Key} {
					texts[fmt.Sprintf("%p", stringData(name))]++
				}
			}
		}
		if len(texts) != 5 {
			t.Errorf("%d strings where 5 would do", len(texts))
		}
	}
}

func TestEvictions(t *testing.T) {
	s := newScript(t)
	as := func(version uint32, evicted *bool, f func(*pb.PutOverride)) *pb.Command {
		cmd := putOverride(func(op *pb.PutOverride) {
			op.Merge, op.Evicted = true, evicted
			if f != nil {
				f(op)
			}
		})
		s.n++
		cmd.Id, cmd.Clock, cmd.Version, cmd.Remote = binary.BigEndian.AppendUint64(make([]byte, 8), s.n), uint64(stamp(s.n)), version, "10.0.0.5"
		return cmd
	}
	came := func(code pb.Result_Code, cmd *pb.Command) {
		t.Helper()
		if r := s.again(cmd); r.GetCode() != code {
			t.Fatalf("%v came to %v", cmd, r)
		}
		s.check(t)
	}
	is := func(want *registry.Override) {
		t.Helper()
		of := s.tables.services[demo]
		at, there := of.override(demoKey)
		if there != (want != nil) {
			t.Fatalf("it is there: %v", there)
		}
		if !there {
			return
		}
		got := of.overrides[at].Override
		got.Revision = 0
		if diff := gocmp.Diff(*want, got); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	}
	evict, lift := new(true), new(false)
	staysOut := func(op *pb.PutOverride) { op.StaysOut = true }

	came(pb.Result_DONE, as(1, evict, nil)) // a release that does not know it passes it over
	is(nil)
	came(pb.Result_NOT_FOUND, as(2, lift, nil))
	came(pb.Result_DONE, as(2, evict, staysOut))
	s.tells(registry.Change{Service: demo, Overrides: []registry.OverrideChange{{InstanceKey: demoKey, Cause: registry.CauseOperator, By: "10.0.0.5",
		Is: &registry.Override{Evicted: true, StaysOut: true, Revision: s.tables.index}}}})
	is(&registry.Override{Evicted: true, StaysOut: true})
	// Nothing but a word on it ends it: not another edit, nor one that takes the
	// place of all, nor what ends edits by itself, nor a goodbye.
	s.done(putOverride(func(op *pb.PutOverride) { op.Weight = new(3.0) }))
	is(&registry.Override{Evicted: true, StaysOut: true, Weight: new(3.0)})
	s.done(putOverride(nil))
	is(&registry.Override{Evicted: true, StaysOut: true})
	s.done(putOverride(func(op *pb.PutOverride) { op.Enabled, op.Merge = new(false), true }))
	s.done(putInstance(nil))
	s.done(removeInstance())
	is(&registry.Override{Evicted: true, StaysOut: true, Enabled: new(false)})
	came(pb.Result_DONE, as(2, lift, nil))
	is(&registry.Override{Enabled: new(false)}) // the rest is as it was
	came(pb.Result_NOT_FOUND, as(2, lift, nil))
	s.done(endOverrides(nil)) // and ends as it would have
	is(nil)
	// The last word on an eviction counts, and is of nothing else.
	s.done(putOverride(func(op *pb.PutOverride) { op.Enabled, op.Sticky = new(false), true }))
	came(pb.Result_DONE, as(2, evict, staysOut))
	is(&registry.Override{Evicted: true, StaysOut: true, Enabled: new(false), Sticky: true})
	came(pb.Result_DONE, as(2, evict, nil))
	is(&registry.Override{Evicted: true, Enabled: new(false), Sticky: true})
	s.done(putOverride(func(op *pb.PutOverride) { op.Enabled, op.StaysOut = new(false), true })) // says nothing of it
	is(&registry.Override{Evicted: true, Enabled: new(false)})
	came(pb.Result_DONE, as(2, evict, func(op *pb.PutOverride) { op.Sticky = true }))
	is(&registry.Override{Evicted: true, Enabled: new(false), Sticky: true})
	s.done(endOverrides(nil))
	is(&registry.Override{Enabled: new(false), Sticky: true})
	s.done(endOverrides(func(e *pb.EndOverrides_Edit) { e.Sticky = true }))
	is(nil)

	// Until it is gone: a goodbye does not end it, absence does.
	came(pb.Result_DONE, as(2, evict, nil))
	s.done(putInstance(nil))
	s.done(removeInstance())
	is(&registry.Override{Evicted: true})
	s.done(endOverrides(func(e *pb.EndOverrides_Edit) { e.Revision = s.tables.services[demo].overrides[0].Revision }))
	is(nil)
	if len(s.tables.edited) > 0 || len(s.tables.services) > 0 {
		t.Error("something is left")
	}
	came(pb.Result_DONE, as(2, evict, nil))
	came(pb.Result_DONE, as(2, lift, nil)) // the last part of it
	is(nil)
	came(pb.Result_DONE, as(2, evict, staysOut))
	s.done(removeService())
	is(nil)

	long := as(2, evict, nil)
	long.Remote = strings.Repeat("ä", maxRemote)
	came(pb.Result_DONE, long)
	if by := s.heard[0][0].Overrides[0].By; len(by) != maxRemote {
		t.Errorf("%d bytes of who asked", len(by))
	}
	// A follower that is given a snapshot knows since when.
	var file bytes.Buffer
	if err := s.backup(&file); err != nil {
		t.Fatal(err)
	}
	f := newScript(t)
	if err := f.Restore(io.NopCloser(&file)); err != nil {
		t.Fatal(err)
	}
	if o := f.heard[0][0].Overrides[0]; !o.Is.Evicted || o.Clock != stamp(s.n) {
		t.Errorf("%+v", o)
	}
}
