package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/starling-registry/starling/pkg/api"
)

// clusterOf is what a node says: c is an orphan, and b is behind with it.
func clusterOf(id, name string, behind uint64) api.Cluster {
	c := api.Cluster{Cluster: "0123456789abcdef", Node: id, Name: name, Epoch: 1796020262123, At: now, Ready: true}
	for i, n := range []struct{ id, name string }{{idA, "node-a"}, {idB, "node-b"}, {idC, "node-c"}} {
		l := api.Life{Node: n.id, Name: n.name, Epoch: uint64(1796020262123 + i*1000), State: api.LifeLiving, Applied: 100, OwnerVersion: 100, Records: 40, Digest: "00000000000000ff", LastDigestMatch: before(time.Second)}
		if n.id == idC {
			l.State, l.Orphans, l.LeaseLeftMillis = api.LifeOrphaned, 12, 9500
			l.Applied, l.LagVersions, l.LagMillis = 100-behind, behind, int64(behind)*6
			l.LastDigestMatch = time.Time{}
		}
		c.Lives = append(c.Lives, l)
		if n.id != id {
			c.Peers = append(c.Peers, api.Peer{Node: n.id, Name: n.name, StreamUp: n.id != idC, BytesQueued: 20_000, LastHeard: before(250 * time.Millisecond)})
		}
	}
	return c
}

func TestCluster(t *testing.T) {
	a, b := newAPINode(t), newAPINode(t)
	a.answers["GET /members"] = threeNodes(a, b)
	a.answers["GET /cluster"] = clusterOf(idA, "node-a", 0)
	ofB := clusterOf(idB, "node-b", 3)
	ofB.Ready, ofB.Reason = false, "it waits for the heads of node-c"
	ofB.SelfPreservation = api.SelfPreservation{Active: true, Since: before(20 * time.Second), LeftMillis: 160_000, PausedMillis: 20_000}
	b.answers["GET /cluster"] = ofB

	names := map[string]string{a.addr: "A", b.addr: "B"}
	status, stdout, stderr := starling(nil, "cluster", "--server", a.addr)
	if status != exitOK || stderr != "" {
		t.Errorf("status %d: %s", status, stderr)
	}
	want(t, "cluster", stdout, names,
		"NODE    ADDRESS          STATE   READY            SELF-PRESERVATION    CLUSTER",
		"node-a  A~~~~~~~~~~~~~~  alive   yes              no                   01234567",
		"node-b  B~~~~~~~~~~~~~~  alive   no               for 20s, 2m40s left  01234567",
		"node-c  127.0.0.1:1      silent  cannot be asked  -                    -",
		"node-b is not ready: it waits for the heads of node-c",
		"node-c: 127.0.0.1:1 refuses the connection (is the node running, and is this its HTTP port?)",
		"",
		"LIFE OF  STARTED          ON      STATE     APPLIED  BEHIND   RECORDS  ORPHANS  LEASE  DIGEST            MATCHED",
		"node-a   11-30T06:31:02Z  node-a  living    100      -        40       0        -      00000000000000ff  owner",
		"node-a   11-30T06:31:02Z  node-b  living    100      -        40       0        -      00000000000000ff  1s",
		"node-b   11-30T06:31:03Z  node-a  living    100      -        40       0        -      00000000000000ff  1s",
		"node-b   11-30T06:31:03Z  node-b  living    100      -        40       0        -      00000000000000ff  owner",
		"node-c   11-30T06:31:04Z  node-a  orphaned  100      -        40       12       9.5s   00000000000000ff  -",
		"node-c   11-30T06:31:04Z  node-b  orphaned  97       3, 18ms  40       12       9.5s   00000000000000ff  -",
		"",
		"FROM    TO      STREAM  QUEUED  HEARD",
		"node-a  node-b  up      19KiB   250ms",
		"node-a  node-c  down    19KiB   250ms",
		"node-b  node-a  up      19KiB   250ms",
		"node-b  node-c  down    19KiB   250ms",
	)

	// Asked one by one, c is not known.
	status, stdout, _ = starling(nil, "cluster", "--servers", a.addr+","+b.addr, "--json")
	var out struct{ Nodes []clusterNode }
	if err := json.Unmarshal([]byte(stdout), &out); err != nil || status != exitOK || len(out.Nodes) != 2 || out.Nodes[1].Status == nil || out.Nodes[1].Name != "node-b" {
		t.Errorf("status %d, %v: %s", status, err, stdout)
	}
	status, stdout, _ = starling(nil, "cluster", "--servers", a.addr+",127.0.0.1:1", "--json")
	out.Nodes = nil
	if err := json.Unmarshal([]byte(stdout), &out); err != nil || status != exitOK || out.Nodes[1].Status != nil || !strings.Contains(out.Nodes[1].Error, "refuses") {
		t.Errorf("status %d, %v: %s", status, err, stdout)
	}
	if status, stdout, stderr := starling(nil, "cluster", "--servers", "127.0.0.1:1,127.0.0.1:2"); status != exitFailed || stdout != "" || !strings.Contains(stderr, "127.0.0.1:2 refuses") {
		t.Errorf("status %d: %s%s", status, stdout, stderr)
	}

	// The data directory of b was emptied: another node answers at its address.
	b.answers["GET /cluster"] = clusterOf(idC, "node-d", 0)
	status, stdout, _ = starling(nil, "cluster", "--server", a.addr)
	if status != exitOK || !strings.Contains(stdout, "another node, "+short(idC)+", answers at "+b.addr) || strings.Contains(stdout, "node-d") {
		t.Errorf("status %d: %s", status, stdout)
	}

	ofB.Cluster = "fedcba"
	b.answers["GET /cluster"] = ofB
	if status, _, stderr := starling(nil, "cluster", "--server", a.addr); status != exitFailed || !strings.Contains(stderr, "different clusters") {
		t.Errorf("status %d: %s", status, stderr)
	}
}

func TestEndSelfPreservation(t *testing.T) {
	a, b := newAPINode(t), newAPINode(t)
	a.answers["GET /members"] = threeNodes(a, b)
	const end = "POST /self-preservation/end"
	a.answers[end], b.answers[end] = api.SelfPreservation{}, api.SelfPreservation{PausedMillis: 100}
	status, stdout, stderr := starling(nil, "cluster", "--end-self-preservation", "--server", a.addr)
	if status != exitOK || stderr != "" {
		t.Errorf("status %d: %s", status, stderr)
	}
	want(t, "end", stdout, nil, "node-a: leases run", "node-b: leases run",
		"node-c: cannot be asked: 127.0.0.1:1 refuses the connection (is the node running, and is this its HTTP port?)")
	for _, n := range []*apiNode{a, b} {
		if last := n.asked[len(n.asked)-1]; last != end+" {}" {
			t.Errorf("asked: %s", last)
		}
	}
	// A member that is alive must hear it; one that is named too.
	b.answers[end] = &api.Error{Status: 501, Code: api.CodeNotOffered, Message: "not here"}
	if status, _, stderr := starling(nil, "cluster", "--end-self-preservation", "--server", a.addr); status != exitFailed || !strings.Contains(stderr, "node-b: not here") {
		t.Errorf("status %d: %s", status, stderr)
	}
	b.answers[end] = api.SelfPreservation{Active: true}
	status, stdout, stderr = starling(nil, "cluster", "--end-self-preservation", "--servers", a.addr+","+b.addr, "--json")
	if status != exitFailed || !strings.Contains(stderr, "still active") || !json.Valid([]byte(stdout)) {
		t.Errorf("status %d: %s%s", status, stdout, stderr)
	}
}
