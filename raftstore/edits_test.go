package raftstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/starling-registry/starling/pkg/registry"
	pb "github.com/starling-registry/starling/proto"
)

func kv(list ...string) (md registry.Metadata) {
	for pair := range slices.Chunk(list, 2) {
		md = append(md, registry.KV{Key: pair[0], Value: pair[1]})
	}
	return md
}

// many are instances with long addresses, in two clusters by turns.
func many(n int) []registry.InstanceKey {
	list := make([]registry.InstanceKey, n)
	for i := range list {
		list[i] = registry.InstanceKey{IP: fmt.Sprintf("2001:0db8:85a3:0000:0000:8a2e:0370:%04x", i), Port: 8848, Cluster: fmt.Sprint("cluster-", i%2)}
	}
	return list
}

// Two nodes that set keys of the same instances at the same moment do not undo
// each other, whatever each of them has read.
func TestEditMetadataOverTwoNodes(t *testing.T) {
	bubble(t, "a b c", func(t *testing.T, g *group) {
		leader := g.three()
		ctx := t.Context()
		instances := many(300)
		if err := leader.store.PutOverride(ctx, demo, instances[7], registry.Override{Weight: new(3.0), Metadata: kv("own", "1"), Sticky: true}, false); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			var wg sync.WaitGroup
			for n, s := range []*Store{leader.store, g.others(leader.id)[0].store, g.others(leader.id)[1].store} {
				wg.Go(func() {
					if err := s.EditMetadata(ctx, demo, instances, kv(fmt.Sprint("k", n), "v"), nil); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			for n, k := range instances {
				want := kv("k0", "v", "k1", "v", "k2", "v")
				if n == 7 {
					want = append(want, kv("own", "1")...)
				}
				o, _ := leader.store.Override(demo, k)
				if !slices.Equal(o.Metadata, want) {
					t.Fatalf("%d has %v, want %v", n, o.Metadata, want)
				}
				if n == 7 && (o.Weight == nil || *o.Weight != 3 || !o.Sticky) {
					t.Errorf("the rest of the edit is %+v", o)
				}
			}
			if err := leader.store.EditMetadata(ctx, demo, instances, nil, []string{"k2", "k0", "k1", "k0"}); err != nil {
				t.Fatal(err)
			}
			if rows := leader.store.fsm.rows(); rows["overrides"] != 1 {
				t.Fatalf("%d edits are left", rows["overrides"])
			}
		}
		g.awaitEqual(5 * time.Second)
	})
}

// One command takes 10,000 instances, and what is too much is refused with words,
// before it costs a place in the log.
func TestEditMetadataOfMany(t *testing.T) {
	bubble(t, "a b c", func(t *testing.T, g *group) {
		s := g.three().store
		instances := many(10_000)
		if err := s.PutSwitch(t.Context(), "s", "1"); err != nil {
			t.Fatal(err)
		}
		before, _ := s.fsm.digest()
		if err := s.EditMetadata(t.Context(), demo, instances, kv("k", strings.Repeat("v", 1024)), nil); err != nil {
			t.Fatal(err)
		}
		if after, _ := s.fsm.digest(); after != before+1 {
			t.Errorf("%d entries", after-before)
		}
		if rows := s.fsm.rows(); rows["overrides"] != len(instances) {
			t.Errorf("%d edits", rows["overrides"])
		}
		at, sum := s.fsm.digest()
		spread := kv("k", strings.Repeat("v", maxSpread/len(instances)))
		big := kv("k", strings.Repeat("v", maxMetadata))
		for n, err := range []error{
			s.EditMetadata(t.Context(), demo, many(20_000), kv("k", "v"), nil),
			s.EditMetadata(t.Context(), demo, instances, spread, nil),
			s.EditMetadata(t.Context(), demo, instances[:1], big, nil),
			s.EditMetadata(t.Context(), demo, instances[:1], nil, []string{big[0].Value, "k"}),
			s.EditMetadata(t.Context(), demo, instances[:1], kv("b", "", "a", ""), nil),
			s.EditMetadata(t.Context(), demo, instances[:1], kv("\xff", ""), nil),
			s.EditMetadata(t.Context(), demo, instances[:1], nil, []string{"\xff"}),
			s.EditMetadata(t.Context(), demo, []registry.InstanceKey{{IP: "1.1.1.1"}}, kv("k", "v"), nil),
			s.EditMetadata(t.Context(), registry.ServiceKey{}, instances[:1], kv("k", "v"), nil),
		} {
			var r *Refused
			if !errors.Is(err, ErrInvalid) || !errors.As(err, &r) || r.Text == "" {
				t.Errorf("%d: %v", n, err)
			}
		}
		if i, is := s.fsm.digest(); i != at || is != sum {
			t.Error("something was written")
		}
		// What each instance has already counts, and no node knows it but the log.
		err := s.EditMetadata(t.Context(), demo, instances[:100], kv("l", strings.Repeat("v", maxMetadata-1024)), nil)
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%v", err)
		}
		if o, _ := s.Override(demo, instances[0]); len(o.Metadata) != 1 {
			t.Errorf("%+v", o.Metadata)
		}
	})
}

func TestEditMetadataFails(t *testing.T) {
	bubble(t, "a b c", func(t *testing.T, g *group) {
		leader := g.three()
		for _, p := range g.others(leader.id) {
			g.kill(p.id)
			g.set(p.id, false, false)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		err := leader.store.EditMetadata(ctx, demo, many(3), kv("k", "v"), nil)
		if !errors.Is(err, ErrNoLeader) && !errors.Is(err, ErrUnknownOutcome) {
			t.Errorf("without a majority: %v", err)
		}
	})
}

func TestEditMetadata(t *testing.T) {
	s := newScript(t)
	type at = pb.EditMetadata_Instance
	second := registry.InstanceKey{IP: "10.0.0.2", Port: 80, Cluster: "DEFAULT"}
	both := []*at{{Ip: "10.0.0.2", Port: 80, Cluster: "DEFAULT"}, {Ip: "10.0.0.1", Port: 80}} // of the same cluster
	edit := func(version uint32, instances []*at, set []string, remove ...string) *pb.Command {
		cmd := &pb.Command{Version: version, Op: &pb.Command_EditMetadata{EditMetadata: &pb.EditMetadata{Service: serviceMessage(demo), Instances: instances, Set: set, Remove: remove}}}
		s.n++
		cmd.Id, cmd.Clock = fmt.Appendf(nil, "metadata%08d", s.n), uint64(stamp(s.n))
		return cmd
	}
	came := func(code pb.Result_Code, cmd *pb.Command, tells ...registry.OverrideChange) {
		t.Helper()
		if r := s.again(cmd); r.GetCode() != code || (r.GetText() == "") != (code == pb.Result_DONE) {
			t.Fatalf("%v came to %v", cmd, r)
		}
		if tells == nil {
			s.tells()
		} else {
			s.tells(registry.Change{Service: demo, Overrides: tells})
		}
		s.check(t)
	}
	is := func(k registry.InstanceKey, o *registry.Override) registry.OverrideChange {
		return registry.OverrideChange{InstanceKey: k, Is: o, Cause: registry.CauseOperator}
	}
	now := func() uint64 { return s.tables.index + 1 }

	// A release that does not know it passes it over, as one that says nothing.
	nothing := s.do(&pb.Command{})
	if r := s.again(edit(1, both, []string{"a", "1"})); r.GetCode() != nothing.GetCode() || r.GetText() != nothing.GetText() {
		t.Errorf("%v, want %v", r, nothing)
	}
	came(pb.Result_DONE, edit(2, nil, []string{"a", "1"}))
	came(pb.Result_DONE, edit(2, both, nil))
	came(pb.Result_DONE, edit(2, both, nil, "a"))
	if !s.empty() {
		t.Fatal("an edit of nothing is kept")
	}
	came(pb.Result_DONE, edit(2, both, []string{"a", "1", "b", "2"}),
		is(second, &registry.Override{Metadata: kv("a", "1", "b", "2"), Revision: now()}), is(demoKey, &registry.Override{Metadata: kv("a", "1", "b", "2"), Revision: now()}))
	s.done(putOverride(func(op *pb.PutOverride) { op.Merge, op.Weight, op.Sticky = true, new(3.0), true }))
	first := s.tables.index
	// What is as it is to be is not written anew. Twice the same instance is once.
	came(pb.Result_DONE, edit(2, append(both, both[0]), []string{"a", "1"}, "x"))
	came(pb.Result_DONE, edit(2, append(both, both...), []string{"b", "2", "c", "3"}, "a", "b"), // set counts
		is(second, &registry.Override{Metadata: kv("b", "2", "c", "3"), Revision: now()}),
		is(demoKey, &registry.Override{Metadata: kv("b", "2", "c", "3"), Weight: new(3.0), Sticky: true, Revision: now()}))
	// Who is to end what the instance had does not end what it was given since.
	s.nothing(endOverrides(func(e *pb.EndOverrides_Edit) { e.Revision, e.Sticky = first, true }))

	// All or none.
	full := fmt.Sprint(strings.Repeat("v", maxMetadata-10))
	came(pb.Result_DONE, edit(2, both[:1], []string{"b", full}, "c"), is(second, &registry.Override{Metadata: kv("b", full), Revision: now()}))
	came(pb.Result_INVALID, edit(2, []*at{both[1], both[0]}, []string{"d", "12345678901"})) // the first would be valid, and needs the cluster
	came(pb.Result_INVALID, edit(2, []*at{{Ip: "10.0.0.1", Port: 80, Cluster: "DEFAULT"}, both[0]}, []string{"d", "12345678901"}))
	for _, wrong := range []*pb.Command{
		edit(2, both, []string{"odd"}), edit(2, both, []string{"b", "", "a", ""}), edit(2, both, nil, "b", "a"), edit(2, both, nil, "a", "a"),
		edit(2, append(both, &at{Ip: "10.0.0.3", Port: 70000}), []string{"d", "1"}), edit(2, append(both, &at{}), []string{"d", "1"}),
		edit(2, make([]*at, 600), []string{"d", full}),
	} {
		for n, i := range wrong.GetEditMetadata().GetInstances() {
			if i == nil {
				wrong.GetEditMetadata().Instances[n] = both[0]
			}
		}
		came(pb.Result_INVALID, wrong)
	}

	// One that nothing is left of is over; what else an edit says stays.
	came(pb.Result_DONE, edit(2, both, nil, "b", "c"), is(second, nil), is(demoKey, &registry.Override{Weight: new(3.0), Sticky: true, Revision: now()}))
	// What is set of an evicted instance is not sticky because something once was.
	s.done(putOverride(func(op *pb.PutOverride) { op.HasMetadata, op.Metadata, op.Sticky = true, []string{"a", "1"}, true }))
	evict := edit(2, nil, nil)
	evict.Op = putOverride(func(op *pb.PutOverride) { op.Merge, op.Evicted, op.StaysOut = true, new(true), true }).GetOp()
	came(pb.Result_DONE, evict, is(demoKey, &registry.Override{Evicted: true, StaysOut: true, Metadata: kv("a", "1"), Sticky: true, Revision: now()}))
	came(pb.Result_DONE, edit(2, both, nil, "a"), is(demoKey, &registry.Override{Evicted: true, StaysOut: true, Revision: now()}))
	came(pb.Result_DONE, edit(2, both[:1], nil, "a"))
	came(pb.Result_DONE, edit(2, []*at{{Ip: "10.0.0.1", Port: 80, Cluster: "DEFAULT"}}, []string{"a", "2"}),
		is(demoKey, &registry.Override{Evicted: true, StaysOut: true, Metadata: kv("a", "2"), Revision: now()}))
}

// What of an edit ends with its instance, and what outlasts it.
func TestWhatAbsenceEnds(t *testing.T) {
	weight := func(o registry.Override) registry.Override { o.Weight = new(2.0); return o }
	for name, c := range map[string]struct{ was, left registry.Override }{
		"until gone":                  {registry.Override{Evicted: true}, registry.Override{}},
		"until gone, with a rest":     {weight(registry.Override{Evicted: true}), registry.Override{}},
		"until gone, a sticky rest":   {weight(registry.Override{Evicted: true, Sticky: true}), weight(registry.Override{Sticky: true})},
		"stays out":                   {registry.Override{Evicted: true, StaysOut: true}, registry.Override{Evicted: true, StaysOut: true}},
		"stays out, with a rest":      {weight(registry.Override{Evicted: true, StaysOut: true}), registry.Override{Evicted: true, StaysOut: true}},
		"stays out, a sticky rest":    {weight(registry.Override{Evicted: true, StaysOut: true, Sticky: true}), weight(registry.Override{Evicted: true, StaysOut: true, Sticky: true})},
		"not evicted":                 {weight(registry.Override{}), registry.Override{}},
		"not evicted, and it is kept": {weight(registry.Override{Sticky: true}), weight(registry.Override{Sticky: true})},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			s.n++
			cmd := putOverride(func(op *pb.PutOverride) {
				op.Sticky, op.Weight, op.StaysOut = c.was.Sticky, c.was.Weight, c.was.StaysOut
				if c.was.Evicted {
					op.Evicted = new(true)
				}
			})
			cmd.Id, cmd.Version, cmd.Clock = make([]byte, 16), 2, uint64(stamp(s.n))
			s.again(cmd)
			made := s.n
			read := func() (o registry.Override, clock registry.Stamp) {
				if of := s.tables.services[demo]; of != nil {
					o, clock = of.overrides[0].Override, of.overrides[0].clock
				}
				return o, clock
			}
			was, _ := read()
			c.was.Revision = 1
			if diff := gocmp.Diff(c.was, was); diff != "" {
				t.Fatal(diff)
			}
			_, ends := c.was.Lasting()
			s.nothing(endOverrides(func(e *pb.EndOverrides_Edit) { e.Revision = 2 }))
			s.done(endOverrides(func(e *pb.EndOverrides_Edit) { e.Revision = 1 }))
			if ends != (s.heard != nil) {
				t.Errorf("something ends: %v, told %v", ends, s.heard)
			}
			is, clock := read()
			if is.Revision == 1 == ends {
				t.Errorf("revision %d", is.Revision)
			}
			if is.Sets() || is.Evicted {
				if clock != stamp(made) {
					t.Error("what is left is as of later")
				}
			}
			is.Revision = 0
			if diff := gocmp.Diff(c.left, is); diff != "" {
				t.Errorf("left (-want +got):\n%s", diff)
			}
			s.check(t)
			// Once is enough, and what is left lasts.
			s.nothing(endOverrides(func(e *pb.EndOverrides_Edit) { e.Revision = 1 }))
			s.nothing(endOverrides(nil))
			s.done(endOverrides(func(e *pb.EndOverrides_Edit) { e.Sticky = true })) // an operator ends all of it
			if !s.empty() {
				t.Error("something is left")
			}
		})
	}
}
