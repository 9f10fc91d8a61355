package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/starling-registry/starling/pkg/api"
)

// logs are what three nodes say of a log that is well; c does not answer.
func logs() (a, b api.Raft) {
	servers := []api.RaftServer{
		{ID: idA, Name: "node-a", Voter: true, State: api.StateAlive},
		{ID: idB, Name: "node-b", Voter: true, State: api.StateAlive},
		{ID: idC, Name: "node-c", Voter: true, State: api.StateSilent},
	}
	a = api.Raft{Cluster: "0123456789abcdef", Node: idA, Name: "node-a", At: now, Role: api.RoleLeader, Leader: idA, LeaderName: "node-a",
		Term: 3, Commit: 1042, Applied: 1042, Last: 1043, Digest: "00ff00ff00ff00ff", Generation: 1, Servers: servers, VotersWanted: 3, Quorum: 2, AliveVoters: 2,
		Rows: map[string]int{"instances": 3, "services": 0, "users": 1}, LogBytes: 12_345_678, Snapshot: api.RaftSnapshot{At: before(310 * time.Second), Bytes: 300 << 10}}
	b = a
	b.Node, b.Name, b.Role, b.Commit, b.Applied, b.Last, b.VotersWanted, b.Snapshot = idB, "node-b", api.RoleFollower, 1041, 1041, 1042, 0, api.RaftSnapshot{}
	b.Digest = "11ff00ff00ff00ff"
	return a, b
}

func TestRaft(t *testing.T) {
	a, b := newAPINode(t), newAPINode(t)
	names := map[string]string{a.addr: "A", b.addr: "B"}
	a.answers["GET /members"] = threeNodes(a, b)
	ofA, ofB := logs()
	a.answers["GET /raft"], b.answers["GET /raft"] = ofA, ofB
	table := []string{
		"NODE    ADDRESS          ROLE             TERM  COMMIT  APPLIED  LAST  DIGEST            LOG    SNAPSHOT",
		"node-a  A~~~~~~~~~~~~~~  leader           3     1042    1042     1043  00ff00ff00ff00ff  11MiB  5m10s ago, 300KiB",
		"node-b  B~~~~~~~~~~~~~~  follower         3     1041    1041     1042  11ff00ff00ff00ff  11MiB  none",
		"node-c  127.0.0.1:1      cannot be asked  -     -       -        -     -                 -      -",
		"node-c: 127.0.0.1:1 refuses the connection (is the node running, and is this its HTTP port?)",
		"",
		"ON      VOTES  MEMBER",
		"node-a  yes    alive",
		"node-b  yes    alive",
		"node-c  yes    silent",
		"node-a leads. 2 of 3 voters are alive; a write needs 2. The log holds: instances 3, users 1.",
	}
	status, stdout, stderr := starling(nil, "raft", "--server", a.addr)
	if status != exitOK || stderr != "" {
		t.Errorf("status %d: %s", status, stderr)
	}
	want(t, "raft", stdout, names, table...)

	status, stdout, _ = starling(nil, "raft", "--servers", a.addr+","+b.addr, "--json")
	var back struct{ Nodes []logNode }
	if err := json.Unmarshal([]byte(stdout), &back); err != nil || status != exitOK || len(back.Nodes) != 2 || back.Nodes[1].ID != idB || back.Nodes[1].Log.Term != 3 || back.Nodes[1].Server != b.addr {
		t.Errorf("status %d, %v: %s", status, err, stdout)
	}

	f := func(name string, want int, says string, change func(a, b *api.Raft)) {
		t.Helper()
		ofA, ofB := logs()
		change(&ofA, &ofB)
		a.answers["GET /raft"], b.answers["GET /raft"] = ofA, ofB
		status, stdout, stderr := starling(nil, "raft", "--servers", b.addr+","+a.addr)
		if status != want || !strings.Contains(stdout+stderr, says) || strings.Contains(stdout+stderr, "\x1b") {
			t.Errorf("%s: status %d: %s%s", name, status, stdout, stderr)
		}
	}
	f("the newest leader counts", exitOK, "node-b leads", func(a, b *api.Raft) {
		b.Term, b.Role, b.Leader = 4, api.RoleLeader, idB
	})
	f("nobody leads", exitFailed, "Nobody leads. 2 of 3", func(a, b *api.Raft) {
		a.Role, a.Leader, b.Leader = api.RoleCandidate, "", ""
	})
	f("and that is no success", exitFailed, "nothing can be written", func(a, b *api.Raft) {
		a.Role, a.Leader, b.Leader = api.RoleCandidate, "", ""
	})
	f("lost quorum", exitFailed, "the quorum is lost: 1 voter is alive, 2 are needed. Nothing can be written to the log. If the other voters are gone for good: starling recover --help", func(a, b *api.Raft) {
		a.AliveVoters, b.AliveVoters, a.Role, a.Leader, b.Leader = 1, 1, api.RoleFollower, "", ""
	})
	f("different tables", exitFailed, "node-b and node-a have carried out the log up to entry 1041 and do not have the same", func(a, b *api.Raft) {
		a.Applied = 1041
	})
	f("different tables of different generations", exitOK, "node-b still has the log from before a recovery", func(a, b *api.Raft) {
		a.Applied, a.Generation = 1041, 2
	})
	f("the same tables", exitOK, "node-a leads", func(a, b *api.Raft) { a.Applied, a.Digest = b.Applied, b.Digest })
	f("stale", exitOK, "node-b serves what may be old", func(a, b *api.Raft) { b.Stale = true })
	f("too few voters", exitOK, "There should be 3", func(a, b *api.Raft) { a.Servers = a.Servers[:2] })
	f("one voter", exitOK, "1 of 1 voter is alive; a write needs 1", func(a, b *api.Raft) {
		a.Servers, a.VotersWanted, a.Quorum, a.AliveVoters = a.Servers[:1], 1, 1, 1
	})
	f("not begun", exitFailed, "--expect", func(a, b *api.Raft) {
		a.Servers, b.Servers, a.Leader, b.Leader, a.Role, b.Role = nil, nil, "", "", api.RoleJoining, api.RoleJoining
	})
	f("one that joins", exitOK, "node-a leads", func(a, b *api.Raft) {
		*b = api.Raft{Cluster: a.Cluster, Node: idB, Name: "node-b", Role: api.RoleJoining, Term: 9, Digest: "0000000000000000"}
	})
	f("and has nothing", exitOK, "node-b has nothing of the log yet", func(a, b *api.Raft) {
		*b = api.Raft{Cluster: a.Cluster, Node: idB, Name: "node-b", Role: api.RoleJoining, Digest: "0000000000000000", Stale: true}
	})
	f("one that failed", exitOK, "The log of node-b failed and takes no more", func(a, b *api.Raft) { b.Role, b.Stale = api.RoleFailed, true })
	f("all that failed", exitFailed, "which failed on node-a\n", func(a, b *api.Raft) {
		a.Role, a.Leader, b.Leader = api.RoleFailed, "", ""
	})
	f("different clusters", exitFailed, "different clusters", func(a, b *api.Raft) { b.Cluster = "other" })
	if _, stdout, _ := starling(nil, "raft", "--servers", b.addr+","+a.addr); strings.Contains(stdout, "leads") || strings.Contains(stdout, "VOTES") {
		t.Errorf("of different clusters it says: %s", stdout)
	}
	f("evil names", exitOK, `\x1b[2J leads`, func(a, b *api.Raft) { a.Name = "\x1b[2J" })
	// Another node at the address of a known one.
	a.answers["GET /members"] = threeNodes(a, b)
	wrong, _ := logs()
	a.answers["GET /raft"], b.answers["GET /raft"] = ofA, wrong
	if status, stdout, _ := starling(nil, "raft", "--server", a.addr); status != exitOK || !strings.Contains(stdout, "another node, a1111111, answers at "+b.addr) {
		t.Errorf("status %d: %s", status, stdout)
	}
}

func TestRemoveMember(t *testing.T) {
	a, b := newAPINode(t), newAPINode(t)
	a.answers["GET /members"] = threeNodes(a, b)
	ofA, _ := logs()
	gone := strings.Repeat("d", 32)
	ofA.Servers = append(ofA.Servers, api.RaftServer{ID: gone, Voter: true})
	a.answers["GET /raft"] = ofA
	a.answers["POST /members/remove"] = &api.Error{Status: 409, Code: api.CodeNotLeader, Message: "node-a does not lead", Server: b.addr}
	b.answers["POST /members/remove"] = api.Removed{ID: idC, Name: "node-c", Voters: 2, Quorum: 2, AliveVoters: 2}
	f := func(name, id string) {
		t.Helper()
		status, stdout, stderr := starling(nil, "members", "remove", name, "--server", a.addr)
		if status != exitOK || stdout != "node-c is out of the log: 2 of 2 voters are alive, a write needs 2.\n" {
			t.Errorf("%s: status %d: %s%s", name, status, stdout, stderr)
		}
		if last := b.asked[len(b.asked)-1]; last != `POST /members/remove {"id":"`+id+`"}` {
			t.Errorf("%s: %s", name, last)
		}
	}
	f("node-c", idC)
	f(idC, idC)
	f(idC[:8], idC)
	f(gone, gone)
	f("dddddddddd", gone)
	asked := len(b.asked)
	fails := func(name, says string) {
		t.Helper()
		status, stdout, stderr := starling(nil, "members", "remove", name, "--server", a.addr)
		if status != exitFailed || stdout != "" || !strings.Contains(stderr, says) {
			t.Errorf("%s: status %d: %s%s", name, status, stdout, stderr)
		}
	}
	fails("node-x", "no member is called node-x")
	fails(idC[:7], "no member")
	m := threeNodes(a, b)
	m.Members[1].Name = "node-c"
	a.answers["GET /members"] = m
	fails("node-c", "several members are called node-c: name one by its id, "+idB+" or "+idC)
	if len(b.asked) != asked {
		t.Errorf("asked for %v", b.asked[asked:])
	}
	// The one that is removed led until a moment ago.
	tries := 0
	a.answers["POST /members/remove"] = func() any {
		switch tries++; tries {
		case 1:
			return &api.Error{Status: 409, Code: api.CodeNotLeader, Message: "node-c does", Server: "127.0.0.1:1"}
		case 2:
			return &api.Error{Status: 503, Code: api.CodeNoLeader, Message: "the log of the cluster has no leader"}
		}
		return b.answers["POST /members/remove"]
	}
	if status, _, stderr := starling(nil, "members", "remove", idC, "--server", a.addr); status != exitOK || tries != 3 {
		t.Errorf("while the next leader is elected: status %d after %d: %s", status, tries, stderr)
	}

	a.answers["POST /members/remove"] = &api.Error{Status: 409, Code: api.CodeConflict, Message: "node-c is alive", Hint: "stop it first, with SIGTERM"}
	fails(idC, "node-c is alive (stop it first")

	b.answers["POST /members/remove"] = api.Removed{ID: idC}
	a.answers["POST /members/remove"] = b.answers["POST /members/remove"]
	status, stdout, _ := starling(nil, "members", "remove", idC, "--server", a.addr, "--json")
	var back api.Removed
	if err := json.Unmarshal([]byte(stdout), &back); err != nil || status != exitOK || back.ID != idC {
		t.Errorf("status %d, %v: %s", status, err, stdout)
	}
}
