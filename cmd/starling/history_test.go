package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/starling-registry/starling/pkg/api"
)

func TestHistory(t *testing.T) {
	a := newAPINode(t)
	at := api.InstanceKey{IP: "10.0.0.7", Port: 8080, Cluster: "DEFAULT"}
	client := "1796020000000_10.0.0.7_41234"
	change := func(ago time.Duration, kind, cause, explanation string, was, is *api.Instance) api.Change {
		return api.Change{When: before(ago), InstanceKey: at, Kind: kind, Cause: cause, Explanation: explanation, Node: idB, NodeName: "node-b", Client: client, Before: was, After: is, SeenBy: []string{idA, idB}}
	}
	up := &api.Instance{Weight: 1, Healthy: true, Enabled: true, Metadata: map[string]string{"version": "1", "zone": "x"}}
	up2 := &api.Instance{ID: "i", Weight: 2.5, Healthy: false, Enabled: false, Metadata: map[string]string{"version": "2", "evil": "\x1b[2J\ty"}}
	orphan := change(time.Second, api.KindWent, "orphan expired", "Its node was gone.", up, nil)
	orphan.Node, orphan.NodeName, orphan.InstanceKey = "", "", api.InstanceKey{IP: "fd00::7", Port: 80, Cluster: "gray"}
	evicted := change(500*time.Millisecond, api.KindWent, "evicted by an operator", "An operator evicted it.", up, nil)
	evicted.Node, evicted.NodeName, evicted.Client = "", "", "operator 10.0.0.5"
	h := api.History{Service: api.Service{Namespace: "public", Group: "DEFAULT_GROUP", Name: "order"},
		Changes: []api.Change{
			change(time.Hour, api.KindCame, "registered", "A client registered it.", nil, up),
			change(time.Minute, api.KindChanged, "changed", "", up, up2),
			change(30*time.Second, api.KindWent, "connection lost", "The connection ended.", up2, nil),
			change(20*time.Second, api.KindCame, "registered", "A client registered it.", nil, up2),
			orphan,
			evicted,
		},
		Nodes: []api.HistoryNode{{Node: idA, Name: "node-a", Forgotten: true, Oldest: before(2 * time.Hour)}, {Node: idB, Name: "node-b", Forgotten: true}, {Node: idC, Name: "node-c", Error: "no answer in 5s"}}}
	a.answers["GET /history?service=order"] = h
	status, stdout, stderr := starling(nil, "history", "order", "--server", a.addr)
	if status != exitOK || stderr != "" {
		t.Errorf("status %d: %s", status, stderr)
	}
	want(t, "history", stdout, nil,
		`2026-11-30 05:31:02.123  10.0.0.7:8080        came     registered              on node-b               (client 1796020000000_10.0.0.7_41234)`,
		`2026-11-30 06:30:02.123  10.0.0.7:8080        changed  changed                 on node-b               (client 1796020000000_10.0.0.7_41234)  id none → i; weight 1 → 2.5; healthy → unhealthy; enabled → disabled; +evil=\x1b[2J\x09y; version=1 → 2; -zone`,
		`2026-11-30 06:30:32.123  10.0.0.7:8080        went     connection lost         on node-b               (client 1796020000000_10.0.0.7_41234)`,
		`2026-11-30 06:30:42.123  10.0.0.7:8080        came     registered              on node-b               (client 1796020000000_10.0.0.7_41234)  weight 2.5; unhealthy; disabled`,
		`2026-11-30 06:31:01.123  [fd00::7]:80 [gray]  went     orphan expired          seen by node-a, node-b  (client 1796020000000_10.0.0.7_41234)`,
		`2026-11-30 06:31:01.623  10.0.0.7:8080        went     evicted by an operator  seen by node-a, node-b  (operator 10.0.0.5)`,
		``,
		`connection lost: The connection ended.`,
		`evicted by an operator: An operator evicted it.`,
		`orphan expired: Its node was gone.`,
		`node-a has forgotten what was before 2026-11-30 04:31:02.`,
		`node-b has forgotten all changes of this service.`,
		`node-c did not answer, so what only it knows is missing: no answer in 5s`)

	// Names go to the server as they are.
	h.Instance = "10.0.0.7:8080"
	a.answers["GET /history?group=g&instance=10.0.0.7%3A8080&namespace=n&service=order"] = h
	status, stdout, _ = starling(nil, "history", "order", "10.0.0.7:8080", "--namespace", "n", "--group", "g", "--json", "--server", a.addr)
	var back api.History
	if err := json.Unmarshal([]byte(stdout), &back); err != nil || status != exitOK || len(back.Changes) != 6 || strings.Contains(stdout, "\x1b") {
		t.Errorf("status %d, %v: %s", status, err, stdout)
	}

	h.Changes = []api.Change{}
	a.answers["GET /history?instance=10.0.0.8%3A1&service=order"] = h
	h.Nodes = h.Nodes[2:]
	a.answers["GET /history?service=order"] = h
	status, stdout, stderr = starling(nil, "history", "order", "--server", a.addr)
	if status != exitFailed || !strings.Contains(stderr, "nothing is remembered of") || !strings.Contains(stderr, "--namespace") || !strings.HasPrefix(stdout, "node-c did not answer") {
		t.Errorf("status %d: %s%s", status, stdout, stderr)
	}
	if status, _, stderr := starling(nil, "history", "order", "10.0.0.8:1", "--server", a.addr); status != exitFailed || !strings.Contains(stderr, "instance 10.0.0.7:8080 of service order") {
		t.Errorf("status %d: %s", status, stderr)
	}
	if status, _, stderr := starling(nil, "history", "order", "x", "--server", a.addr); status != exitUsage || !strings.Contains(stderr, "IP:PORT") {
		t.Errorf("status %d: %s", status, stderr)
	}
}
