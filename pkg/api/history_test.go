package api

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var (
	up   = &Instance{Weight: 1, Healthy: true, Enabled: true}
	up2  = &Instance{Weight: 2, Healthy: true, Enabled: true}
	here = InstanceKey{IP: "10.0.0.7", Port: 8080, Cluster: "DEFAULT"}
)

// at is a hybrid clock: milliseconds, and a counter.
func at(ms, counter uint64) uint64 { return ms<<16 | counter }

func event(seen, writer string, clock uint64, cause string, before, after *Instance) Event {
	var ms uint64
	fmt.Sscan(seen, &ms)
	return Event{At: at(ms, 0), Node: writer, Epoch: 1, Clock: clock, Cause: cause, Client: "c1", InstanceKey: here, Before: before, After: after}
}

// line is a change as a test writes it down.
func line(c Change) string {
	s := fmt.Sprintf("%d %s %s on %q by %s", c.When.UnixMilli(), c.Kind, c.Cause, c.NodeName, strings.Join(c.SeenBy, ","))
	if len(c.Collapsed) > 0 {
		s += " collapsed " + strings.Join(c.Collapsed, ",")
	}
	return s
}

func TestMergeHistory(t *testing.T) {
	f := func(name string, nodes []NodeHistory, want ...string) {
		t.Helper()
		for i := range nodes {
			nodes[i].Name = "node-" + nodes[i].Node
		}
		for range 5 { // maps have no order, nodes may come in any
			rand.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
			var got []string
			for _, c := range MergeHistory(nodes, map[string]string{"z": "node-z"}) {
				got = append(got, line(c))
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s (-want +got):\n%s", name, d)
				return
			}
		}
	}
	f("nothing", nil)
	f("an eviction of what is not shown", []NodeHistory{
		{Node: "a", Events: []Event{event("1003", "", at(1001, 0), "evicted by an operator", nil, nil)}},
		{Node: "b", Events: []Event{event("1002", "", at(1001, 0), "evicted by an operator", nil, nil)}},
	}, `1002 stayed evicted by an operator on "" by a,b`)
	restored := []Event{
		event("1001", "", at(1001, 0), "evicted by an operator", up, nil),
		event("1005", "", at(1005, 0), "eviction lifted", nil, up),
		event("1009", "", at(1001, 0), "evicted by an operator", up, nil),
	}
	f("an eviction that a backup brings back", []NodeHistory{
		{Node: "a", Events: restored}, {Node: "b", Events: restored}, {Node: "c", Events: restored[2:]},
	}, `1001 went evicted by an operator on "" by a,b,c`, `1005 came eviction lifted on "" by a,b`, `1009 went evicted by an operator on "" by a,b`)
	f("one that it does not know", []NodeHistory{
		{Node: "a", Events: []Event{event("1003", "a", at(1003, 0), "eviction ended", nil, up)}},
		{Node: "b", Events: []Event{event("1002", "b", at(1002, 0), "eviction ended", nil, up)}},
	}, `1002 came eviction ended on "" by a,b`)
	f("seen by all is one, at the earliest time", []NodeHistory{
		{Node: "a", Events: []Event{event("1003", "b", at(1001, 0), "registered", nil, up)}},
		{Node: "b", Events: []Event{event("1001", "b", at(1001, 0), "registered", nil, up)}},
		{Node: "c", Events: []Event{event("1002", "b", at(1001, 0), "registered", nil, up)}},
	}, `1001 came registered on "node-b" by a,b,c`)
	f("a burst that came as one: the writer is right", []NodeHistory{
		{Node: "a", Events: []Event{event("1010", "b", at(1005, 0), "changed", nil, up2)}},
		{Node: "b", Events: []Event{
			event("1001", "b", at(1001, 0), "registered", nil, up),
			event("1005", "b", at(1005, 0), "changed", up, up2),
		}},
	}, `1001 came registered on "node-b" by b`, `1005 changed changed on "node-b" by a,b collapsed a`)
	f("the writer does not answer: as seen", []NodeHistory{
		{Node: "a", Events: []Event{event("1010", "z", at(1005, 0), "changed", nil, up2)}},
		{Node: "b", Events: []Event{event("1011", "z", at(1005, 0), "changed", up, up2)}},
		{Node: "z", Error: "timeout"},
	}, `1010 came changed on "node-z" by a`, `1011 changed changed on "node-z" by b`)
	f("a writer that left is known by name", []NodeHistory{
		{Node: "a", Events: []Event{event("1010", "z", at(1005, 0), "deregistered", up, nil)}},
	}, `1010 went deregistered on "node-z" by a`)
	f("the same clock of another life or instance is another change", []NodeHistory{
		{Node: "a", Events: []Event{
			event("1001", "a", at(1001, 0), "registered", nil, up),
			{At: at(1001, 1), Node: "a", Epoch: 2, Clock: at(1001, 0), Cause: "registered", InstanceKey: here, After: up},
			{At: at(1001, 2), Node: "a", Epoch: 1, Clock: at(1001, 0), Cause: "registered", InstanceKey: InstanceKey{"10.0.0.8", 1, "x"}, After: up},
		}},
	}, `1001 came registered on "node-a" by a`, `1001 came registered on "node-a" by a`, `1001 came registered on "node-a" by a`)
	f("within a millisecond the counter decides", []NodeHistory{
		{Node: "a", Events: []Event{
			{At: at(1001, 1), Node: "a", Clock: at(1001, 1), Cause: "registered", InstanceKey: here, After: up},
			{At: at(1001, 2), Node: "a", Clock: at(1001, 2), Cause: "deregistered", InstanceKey: here, Before: up},
			{At: at(1001, 3), Node: "a", Clock: at(1001, 3), Cause: "registered", InstanceKey: here, After: up},
		}},
	}, `1001 came registered on "node-a" by a`, `1001 went deregistered on "node-a" by a`, `1001 came registered on "node-a" by a`)
	f("nothing to see", []NodeHistory{
		{Node: "a", Events: []Event{event("1001", "a", at(1001, 0), "moving", up, &Instance{Weight: 1, Healthy: true, Enabled: true, Metadata: map[string]string{}})}},
		{Node: "b", Events: []Event{event("1002", "a", at(1001, 0), "moving", up, up)}},
	}, `1001 stayed moving on "node-a" by a,b`)
	f("what each finds by itself is one", []NodeHistory{
		{Node: "a", Events: []Event{event("9000", "a", at(9000, 0), "orphan expired", up, nil)}},
		{Node: "b", Events: []Event{event("9900", "b", at(9900, 0), "orphan expired", up, nil)}},
	}, `9000 went orphan expired on "" by a,b`)
	f("also if it carries the dead node's life", []NodeHistory{
		{Node: "a", Events: []Event{event("9000", "z", at(50, 0), "orphan expired", up, nil)}},
		{Node: "b", Events: []Event{event("9900", "z", at(50, 0), "orphan expired", up, nil)}},
	}, `9000 went orphan expired on "node-z" by a,b`)
	f("… twice for one node are two", []NodeHistory{
		{Node: "a", Events: []Event{
			event("1000", "a", at(1000, 0), "orphan expired", up, nil),
			event("3000", "a", at(3000, 0), "orphan expired", up, nil),
		}},
		{Node: "b", Events: []Event{
			event("1001", "b", at(1001, 0), "orphan expired", up, nil),
			event("3001", "b", at(3001, 0), "orphan expired", up, nil),
		}},
	}, `1000 went orphan expired on "" by a,b`, `3000 went orphan expired on "" by a,b`)
	f("… long after each other too", []NodeHistory{
		{Node: "a", Events: []Event{event("1000", "a", at(1000, 0), "orphan expired", up, nil)}},
		{Node: "b", Events: []Event{event("12000", "b", at(12000, 0), "orphan expired", up, nil)}},
	}, `1000 went orphan expired on "node-a" by a`, `12000 went orphan expired on "node-b" by b`)
	f("… and other causes are never joined", []NodeHistory{
		{Node: "a", Events: []Event{event("1000", "a", at(1000, 0), "connection lost", up, nil)}},
		{Node: "b", Events: []Event{event("1001", "b", at(1001, 0), "connection lost", up, nil)}},
	}, `1000 went connection lost on "node-a" by a`, `1001 went connection lost on "node-b" by b`)
}

// Merging is said to be the same in any order of nodes; and all that a node
// tells is somewhere in the result.
func TestMergeHistoryKeepsEverySight(t *testing.T) {
	causes := []string{"registered", "changed", "deregistered", "orphan expired", "returned", "new cause"}
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 200 {
		nodes := make([]NodeHistory, 3)
		for i := range nodes {
			nodes[i].Node = string(rune('a' + i))
			for j := range r.IntN(12) {
				e := Event{At: at(uint64(1000+10*j+r.IntN(10)), 0), Node: string(rune('a' + r.IntN(3))), Clock: at(uint64(1000+r.IntN(8)), 0),
					Cause: causes[r.IntN(len(causes))], InstanceKey: InstanceKey{IP: "10.0.0.1", Port: r.IntN(2)}}
				if e.Before, e.After = up, up2; r.IntN(3) == 0 {
					e.Before = nil
				} else if r.IntN(2) == 0 {
					e.After = nil
				}
				nodes[i].Events = append(nodes[i].Events, e)
			}
		}
		first := MergeHistory(nodes, nil)
		for _, n := range nodes {
			for _, e := range n.Events {
				if !slices.ContainsFunc(first, func(c Change) bool {
					return c.InstanceKey == e.InstanceKey && slices.Contains(c.SeenBy, n.Node) && c.When.UnixMilli() <= int64(e.At>>16)
				}) {
					t.Fatalf("round %d: %+v of %s is lost", round, e, n.Node)
				}
			}
		}
		if !slices.IsSortedFunc(first, func(a, b Change) int { return a.When.Compare(b.When) }) {
			t.Fatalf("round %d: not by time", round)
		}
		slices.Reverse(nodes)
		if d := cmp.Diff(first, MergeHistory(nodes, nil)); d != "" {
			t.Fatalf("round %d: in another order (-first +second):\n%s", round, d)
		}
	}
}

func TestNewHistory(t *testing.T) {
	other := event("1500", "a", at(1500, 0), "registered", nil, up)
	other.Port = 9090
	nodes := []NodeHistory{
		{Node: "b", Name: "node-b", Error: "no answer"},
		{Node: "a", Name: "node-a", Forgotten: true, Events: []Event{event("1001", "a", at(1001, 0), "registered", nil, up), other}},
	}
	h := NewHistory(Service{"public", "g", "s"}, "10.0.0.7", 8080, nodes, nil)
	if len(h.Changes) != 1 || h.Changes[0].Port != 8080 || h.Instance != "10.0.0.7:8080" || h.Changes[0].Explanation == "" {
		t.Errorf("%+v", h)
	}
	if len(h.Nodes) != 2 || h.Nodes[0].Node != "a" || h.Nodes[0].Oldest.UnixMilli() != 1001 || h.Nodes[1].Error != "no answer" {
		t.Errorf("%+v", h.Nodes)
	}
	if len(nodes[1].Events) != 2 || nodes[0].Node != "b" {
		t.Error("the caller's nodes are changed")
	}
	if h := NewHistory(Service{"public", "g", "s"}, "", 0, nodes, nil); len(h.Changes) != 2 || h.Instance != "" {
		t.Errorf("%+v", h)
	}
}
