package raftstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/starling-registry/starling/pkg/registry"
	pb "github.com/starling-registry/starling/proto"
)

// alone opens a store that is a cluster of its own.
func alone(t *testing.T, change ...func(*Options)) (*Store, *shown) {
	p := &shown{services: map[registry.ServiceKey]*view{}}
	o := DefaultOptions()
	o.ID, o.Dir, o.NoSync = "n1", t.TempDir(), true
	o.ClusterID = func() string { return "c" }
	o.Members = func() []Member { return []Member{{ID: "n1", Alive: true, Commands: CommandVersion}} }
	o.Projection, o.Clock = p, registry.NewClock(0, 0)
	o.Logger, o.Metrics = zaptest.NewLogger(t), prometheus.NewRegistry()
	for _, f := range change {
		f(&o)
	}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Bootstrap([]string{"n1"}); err != nil {
		t.Fatal(err)
	}
	return s, p
}

// What is asked for through the methods of a store is what is kept, and what
// is refused is an error of its kind.
func TestWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := alone(t)
		defer s.Close(context.Background())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		good := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		refused := func(err, want error) {
			t.Helper()
			var r *Refused
			if !errors.Is(err, want) || !errors.As(err, &r) || r.Text == "" {
				t.Errorf("%v, want %v", err, want)
			}
		}
		md := registry.Metadata{{Key: "k", Value: "v"}, {Key: "l"}}
		in := &registry.Instance{InstanceKey: demoKey, ID: "id", Weight: 2.5, Healthy: true, Enabled: true, Metadata: md, Persistent: true}

		good(s.PutInstance(ctx, demo, in))
		got, there := s.Instance(demo, in.IP, in.Port)
		if diff := cmp.Diff(in, got.Instance); !there || diff != "" || got.Since == 0 || got.Judged != got.Since {
			t.Errorf("%+v (-want +got):\n%s", got, diff)
		}
		if _, there := s.Instance(demo, in.IP, 81); there {
			t.Error("another port is there")
		}
		good(s.UpdateService(ctx, demo, &registry.ServiceMeta{ProtectThreshold: 0.5, Selector: registry.Selector{Type: "label", Expression: "e"}, Metadata: md}))
		cluster := &registry.ClusterMeta{Name: "DEFAULT", CheckPort: 81, UseInstancePort: true, Metadata: md, Checker: registry.Checker{Type: "NONE", Path: "/p",
			Headers: "a:b", ExpectedCode: 204, User: "u", Password: "p", Command: "c"}}
		good(s.PutCluster(ctx, demo, cluster, false))
		meta, there := s.Service(demo)
		if diff := cmp.Diff(&registry.ServiceMeta{Persistent: true, ProtectThreshold: 0.5, Selector: registry.Selector{Type: "label", Expression: "e"}, Metadata: md,
			Clusters: map[string]*registry.ClusterMeta{"DEFAULT": cluster}}, meta); !there || diff != "" {
			t.Error(diff)
		}
		good(s.SetHealth(ctx, demo, demoKey, false))
		if got, _ := s.Instance(demo, in.IP, in.Port); got.Healthy || got.Judged <= got.Since {
			t.Errorf("%+v", got)
		}
		good(s.PutOverride(ctx, demo, demoKey, registry.Override{Enabled: new(false), Metadata: md, Sticky: true}, false))
		good(s.PutOverride(ctx, demo, demoKey, registry.Override{Weight: new(0.0)}, true))
		o, there := s.Override(demo, demoKey)
		if diff := cmp.Diff(registry.Override{Enabled: new(false), Weight: new(0.0), Metadata: md, Sticky: true, Revision: o.Revision}, o); !there || diff != "" || o.Revision == 0 {
			t.Errorf("revision %d %s", o.Revision, diff)
		}
		// The projection has it when the write returns.
		if v := p.services[demo]; v == nil || v.Meta != meta || len(v.Instances) != 1 || len(v.Overrides) != 1 {
			t.Errorf("shown: %+v", v)
		}

		good(s.EndOverrides(ctx, []registry.Edit{{Service: demo, InstanceKey: demoKey, Revision: o.Revision}}))
		if _, there := s.Override(demo, demoKey); !there {
			t.Error("a sticky edit ended by itself")
		}
		good(s.EndOverride(ctx, demo, demoKey))
		var many []registry.Edit
		for n := range maxEdits + 1 {
			k := demoKey
			k.Port = 1000 + n
			if n == 0 || n == maxEdits {
				good(s.PutOverride(ctx, demo, k, registry.Override{Enabled: new(true)}, false))
			}
			many = append(many, registry.Edit{Service: demo, InstanceKey: k})
		}
		good(s.EndOverrides(ctx, many))
		if rows := s.fsm.rows(); rows["overrides"] != 0 {
			t.Errorf("%d edits are left", rows["overrides"])
		}
		refused(s.CreateService(ctx, demo, &registry.ServiceMeta{}), ErrExists)
		refused(s.RemoveService(ctx, demo), ErrNotEmpty)
		good(s.RemoveInstance(ctx, demo, in.IP, in.Port))
		good(s.RemoveInstance(ctx, demo, in.IP, in.Port))
		refused(s.SetHealth(ctx, demo, demoKey, false), ErrNotFound)
		good(s.RemoveService(ctx, demo))
		refused(s.RemoveService(ctx, demo), ErrNotFound)
		refused(s.SetHealth(ctx, demo, demoKey, false), ErrInvalid)
		good(s.CreateService(ctx, demo, &registry.ServiceMeta{}))
		refused(s.PutInstance(ctx, demo, in), ErrWrongKind)
		good(s.RemoveService(ctx, demo))

		good(s.PutNamespace(ctx, Namespace{"dev", "n", "d"}, true))
		refused(s.PutNamespace(ctx, Namespace{ID: "dev"}, true), ErrExists)
		if n, there := s.Namespace("dev"); !there || n != (Namespace{"dev", "n", "d"}) {
			t.Errorf("%+v", n)
		}
		good(s.RemoveNamespace(ctx, "dev"))
		refused(s.RemoveNamespace(ctx, "dev"), ErrNotFound)
		good(s.PutSwitch(ctx, "a", "1"))
		good(s.PutSwitch(ctx, "a", ""))
		good(s.PutUser(ctx, User{"ann", []byte("h")}, true))
		refused(s.PutUser(ctx, User{"ann", []byte("h")}, true), ErrExists)
		roles := []string{"b", "a", "b"}
		good(s.PutRole(ctx, Role{"r", roles, nil}))
		if got := s.Roles(); len(got) != 1 || fmt.Sprint(got[0].Users) != "[a b]" || fmt.Sprint(roles) != "[b a b]" {
			t.Errorf("%+v", got)
		}
		good(s.RemoveRole(ctx, "r"))
		refused(s.RemoveRole(ctx, "r"), ErrNotFound)
		good(s.RemoveUser(ctx, "ann"))
		refused(s.RemoveUser(ctx, "ann"), ErrNotFound)
		if !s.fsm.empty() || len(p.services) > 0 {
			t.Errorf("left: %v", s.fsm.rows())
		}

		// What is not valid does not get a place in the log.
		before, _ := s.fsm.digest()
		in.Weight = math.NaN()
		none := registry.ServiceKey{Namespace: "public", Group: "g"}
		for n, err := range []error{
			s.PutInstance(ctx, demo, in), s.PutInstance(ctx, none, &registry.Instance{InstanceKey: demoKey}),
			s.RemoveInstance(ctx, demo, "10.0.0.1", -1), s.RemoveInstance(ctx, demo, "", 80), s.SetHealth(ctx, demo, registry.InstanceKey{IP: "1"}, true),
			s.UpdateService(ctx, demo, &registry.ServiceMeta{ProtectThreshold: math.Inf(1)}), s.RemoveService(ctx, none),
			s.PutCluster(ctx, demo, &registry.ClusterMeta{Name: "c", CheckPort: -1}, true),
			s.PutCluster(ctx, demo, &registry.ClusterMeta{Name: "c", Checker: registry.Checker{ExpectedCode: -1}}, true),
			s.PutOverride(ctx, demo, demoKey, registry.Override{Weight: new(-1.0)}, false), s.EndOverride(ctx, none, demoKey),
			s.EndOverrides(ctx, []registry.Edit{{Service: demo}}), s.PutNamespace(ctx, Namespace{}, false), s.RemoveNamespace(ctx, "\xff"),
			s.PutSwitch(ctx, "", "1"), s.PutUser(ctx, User{Name: "u"}, false), s.RemoveUser(ctx, ""), s.PutRole(ctx, Role{Name: "r", Users: []string{"\xff"}}),
			s.RemoveRole(ctx, ""),
			s.PutInstance(ctx, demo, &registry.Instance{InstanceKey: demoKey, Metadata: registry.Metadata{{Key: "k", Value: "\xff"}}}),
		} {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%d: %v", n, err)
			}
		}
		if after, _ := s.fsm.digest(); after != before {
			t.Errorf("%d entries were written for nothing", after-before)
		}
	})
}

func TestRefusedIsItsCode(t *testing.T) {
	for code, want := range map[pb.Result_Code]error{
		pb.Result_NOT_UNDERSTOOD: ErrNotUnderstood, pb.Result_INVALID: ErrInvalid, pb.Result_EXISTS: ErrExists,
		pb.Result_NOT_FOUND: ErrNotFound, pb.Result_NOT_EMPTY: ErrNotEmpty, pb.Result_WRONG_KIND: ErrWrongKind,
	} {
		if err := refusal(&pb.Result{Code: code}); !errors.Is(err, want) || err.Error() == "" {
			t.Errorf("%v: %v", code, err)
		}
		if err := refusal(&pb.Result{Code: code, Text: "x"}); err.Error() != "x" {
			t.Errorf("%v: %v", code, err)
		}
	}
	if err := refusal(&pb.Result{Code: 99}); err == nil || errors.Is(err, ErrInvalid) {
		t.Errorf("%v", err)
	}
	if len(pb.Result_Code_name) != 7 {
		t.Error("a code without an error")
	}
}

func TestEvict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var old atomic.Bool // there is a node of an older release
		s, p := alone(t, func(o *Options) {
			o.Members = func() []Member {
				all := []Member{{ID: "n1", Alive: true, Commands: CommandVersion}}
				if old.Load() {
					all = append(all, Member{ID: "n2", Alive: true, Commands: 1})
				}
				return all
			}
		})
		defer s.Close(context.Background())
		ctx := registry.AskedBy(t.Context(), "10.0.0.5\xff")
		good := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		other := registry.ServiceKey{Namespace: "dev", Group: "g", Name: "s"}
		in := &registry.Instance{InstanceKey: demoKey, Weight: 1, Persistent: true}
		good(s.PutInstance(ctx, demo, in))
		good(s.PutOverride(ctx, demo, demoKey, registry.Override{Weight: new(2.0)}, false))
		good(s.Evict(ctx, demo, demoKey, false))
		good(s.Evict(ctx, other, demoKey, true))
		good(s.Evict(ctx, other, registry.InstanceKey{IP: "10.0.0.0", Port: 1, Cluster: "c"}, false))
		if o := p.services[demo].Overrides[demoKey]; !o.Evicted || !o.StaysOut || o.Sticky || *o.Weight != 2 {
			t.Errorf("%+v", o)
		}
		if err := s.PutInstance(ctx, demo, in); !errors.Is(err, registry.ErrEvicted) {
			t.Errorf("registered again: %v", err)
		}
		good(s.PutInstance(ctx, demo, &registry.Instance{InstanceKey: registry.InstanceKey{IP: demoKey.IP, Port: 81, Cluster: "DEFAULT"}, Persistent: true}))

		var got []string
		for _, e := range s.Edits("") {
			if e.Clock == 0 || e.Revision == 0 {
				t.Errorf("%+v", e)
			}
			got = append(got, fmt.Sprint(e.Service, " ", e.InstanceKey, " ", e.Evicted, " ", e.StaysOut))
		}
		want := []string{"dev/g/s {10.0.0.0 1 c} true true", "dev/g/s {10.0.0.1 80 DEFAULT} true false", "public/DEFAULT_GROUP/demo {10.0.0.1 80 DEFAULT} true true"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("edits (-want +got):\n%s", diff)
		}
		if n := len(s.Edits("dev")); n != 2 {
			t.Errorf("%d in dev", n)
		}
		if n, m := len(s.EditsOf(registry.ServiceKey{Namespace: "dev", Group: "none", Name: "none"})), len(s.EditsOf(s.Edits("dev")[0].Service)); n != 0 || m == 0 {
			t.Errorf("%d and %d edits of a service", n, m)
		}
		if s.Edits("none") != nil {
			t.Error("edits of a namespace that is not there")
		}
		good(s.Lift(ctx, demo, demoKey))
		if o, _ := s.Override(demo, demoKey); o.Evicted || o.StaysOut || o.Sticky || *o.Weight != 2 {
			t.Errorf("%+v", o)
		}
		good(s.PutInstance(ctx, demo, in))
		for _, k := range []registry.InstanceKey{demoKey, {IP: "10.0.0.9", Port: 1, Cluster: "c"}} {
			if err := s.Lift(ctx, demo, k); !errors.Is(err, ErrNotFound) {
				t.Errorf("%v", err)
			}
		}
		if err := s.Evict(ctx, demo, registry.InstanceKey{IP: "10.0.0.9"}, false); !errors.Is(err, ErrInvalid) {
			t.Errorf("%v", err)
		}
		old.Store(true) // it would pass an eviction over
		if err := s.Evict(ctx, demo, demoKey, false); !errors.Is(err, ErrNotUnderstood) {
			t.Errorf("%v", err)
		}
		if err := s.EditMetadata(ctx, demo, []registry.InstanceKey{demoKey}, kv("k", "v"), nil); !errors.Is(err, ErrNotUnderstood) {
			t.Errorf("%v", err)
		}
		good(s.PutOverride(ctx, demo, demoKey, registry.Override{Weight: new(3.0)}, false))
	})
}
