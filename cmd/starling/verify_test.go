package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/starling-registry/starling/pkg/api"
)

func hashOf(service, hash string, instances int, unchanged time.Duration) api.ServiceHash {
	return api.ServiceHash{Service: api.Service{Namespace: "public", Group: "DEFAULT_GROUP", Name: service}, Hash: hash, Instances: instances, UnchangedMillis: unchanged.Milliseconds()}
}

func hashesOf(id, name string, services ...api.ServiceHash) api.Hashes {
	return api.Hashes{Cluster: "x", Node: id, Name: name, Services: services}
}

func TestVerify(t *testing.T) {
	a, b := newAPINode(t), newAPINode(t)
	a.answers["GET /members"] = threeNodes(a, b)
	both := func(ofA, ofB []api.ServiceHash) {
		a.answers["GET /hashes?node="+idA] = hashesOf(idA, "node-a", ofA...)
		a.answers["GET /hashes?node="+idB] = hashesOf(idB, "node-b", ofB...)
		a.answers["GET /hashes"], b.answers["GET /hashes"] = hashesOf(idA, "node-a", ofA...), hashesOf(idB, "node-b", ofB...)
	}
	s1, s2 := hashOf("s1", "aaaaaaaa11111111", 3, time.Hour), hashOf("s2", "bbbbbbbb11111111", 1, time.Hour)
	both([]api.ServiceHash{s1, s2}, []api.ServiceHash{s2, s1})
	status, stdout, stderr := starling(nil, "verify", "--server", a.addr)
	if status != exitOK || stderr != "" {
		t.Errorf("status %d: %s", status, stderr)
	}
	want(t, "equal", stdout, nil, "node-c is silent and was not asked.", "2 services on 2 nodes: all equal.")
	status, stdout, _ = starling(nil, "verify", "--servers", a.addr+","+b.addr)
	if status != exitOK {
		t.Errorf("status %d", status)
	}
	want(t, "equal by address", stdout, nil, "2 services on 2 nodes: all equal.")

	s2.Hash, s2.Instances = "cccccccc11111111", 2
	evil := hashOf("evil\x1b[2J", "dddddddd11111111", 1, time.Hour)
	gone := evil
	gone.Instances, gone.Hash = 0, "e" // no instances: as if it were not there
	both([]api.ServiceHash{s1, s2, evil}, []api.ServiceHash{s1, hashOf("s2", "bbbbbbbb11111111", 1, time.Hour), gone})
	status, stdout, stderr = starling(nil, "verify", "--server", a.addr)
	if status != exitFailed || stderr != "starling: 2 services are shown differently by the nodes, of 3\n" {
		t.Errorf("status %d: %s", status, stderr)
	}
	want(t, "differs", stdout, nil,
		"node-c is silent and was not asked.",
		`-        NAMESPACE  GROUP          SERVICE      node-a        node-b`,
		`differs  public     DEFAULT_GROUP  evil\x1b[2J  1 (dddddddd)  none`,
		`differs  public     DEFAULT_GROUP  s2           2 (cccccccc)  1 (bbbbbbbb)`,
		"Per node: instances, and the beginning of the sum over them.")
	// A filter leaves out what differs.
	if status, _, stderr := starling(nil, "verify", "--server", a.addr, "--namespace", "prod"); status != exitOK {
		t.Errorf("status %d: %s", status, stderr)
	}
	status, stdout, _ = starling(nil, "verify", "--server", a.addr, "--json")
	var v verification
	if err := json.Unmarshal([]byte(stdout), &v); err != nil || status != exitFailed || v.Equal || len(v.Differing) != 2 || len(v.NotCompared) != 1 ||
		v.Differing[1].Shown[0].Instances != 2 || strings.Contains(stdout, "\x1b") {
		t.Errorf("status %d, %v: %s", status, err, stdout)
	}

	// Still changing, and no time.
	both([]api.ServiceHash{hashOf("s1", "a", 1, time.Second)}, []api.ServiceHash{hashOf("s1", "a", 1, time.Hour)})
	if status, stdout, stderr := starling(nil, "verify", "--server", a.addr, "--within", "0s"); status != exitFailed || !strings.Contains(stdout, "changing  public") || !strings.Contains(stderr, "1 service is still changing") {
		t.Errorf("status %d: %s%s", status, stdout, stderr)
	}

	// Only so many in the table.
	var ofA, ofB []api.ServiceHash
	for i := range maxDifferences + 7 {
		ofA = append(ofA, hashOf("s"+strconv.Itoa(i), "a", 1, time.Hour))
		ofB = append(ofB, hashOf("s"+strconv.Itoa(i), "b", 1, time.Hour))
	}
	both(ofA, ofB)
	if _, stdout, _ := starling(nil, "verify", "--server", a.addr); !strings.Contains(stdout, "… and 7 more") || strings.Count(stdout, "differs ") != maxDifferences {
		t.Error(stdout)
	}

	// What cannot be compared is no success.
	fails := func(says string, args ...string) {
		t.Helper()
		if status, _, stderr := starling(nil, append([]string{"verify"}, args...)...); status != exitFailed || !strings.Contains(stderr, says) {
			t.Errorf("%v: status %d: %s", args, status, stderr)
		}
	}
	fails("starling: 127.0.0.1:1 refuses", "--servers", a.addr+",127.0.0.1:1")
	b.answers["GET /hashes"] = a.answers["GET /hashes"]
	fails("one node", "--servers", a.addr+","+b.addr)
	b.answers["GET /hashes"] = api.Hashes{Cluster: "y", Node: idB, Name: "node-b"}
	fails("different clusters", "--servers", a.addr+","+b.addr)
	b.answers["GET /hashes"] = a.answers["GET /hashes"] // another node is at b's address now
	a.answers["GET /hashes?node="+idB] = &api.Error{Status: 502, Code: api.CodeUnreachable, Message: "no stream"}
	fails("node-b: no stream", "--server", a.addr)
	both(nil, nil)
	a.answers["GET /hashes?node="+idB] = &api.Error{Status: 502, Code: api.CodeUnreachable, Message: "no stream"}
	if status, _, stderr := starling(nil, "verify", "--server", a.addr); status != exitOK {
		t.Errorf("asked at its own address: status %d: %s", status, stderr)
	}

	// The tables of the log.
	log := func(node, of *apiNode, id string, applied uint64, digest string) {
		h := hashesOf(id, "node-"+id[:1], s1)
		h.RaftApplied, h.RaftDigest = applied, digest
		of.answers["GET /hashes"] = h
		node.answers["GET /hashes?node="+id] = h
	}
	log(a, a, idA, 42, "aaaa000000000000")
	log(a, b, idB, 42, "aaaa000000000000")
	status, stdout, stderr = starling(nil, "verify", "--server", a.addr)
	if status != exitOK {
		t.Errorf("status %d: %s", status, stderr)
	}
	want(t, "equal logs", stdout, nil, "node-c is silent and was not asked.", "1 service on 2 nodes: all equal, and so are the tables of 2 at entry 42 of the log.")
	log(a, b, idB, 42, "bbbb000000000000")
	status, stdout, stderr = starling(nil, "verify", "--server", a.addr)
	if status != exitFailed || stderr != "starling: nodes have different tables at the same entry of the log: a bug or corruption, please report it\n" {
		t.Errorf("status %d: %s", status, stderr)
	}
	want(t, "different logs", stdout, nil, "node-c is silent and was not asked.",
		"LOG OF  APPLIED  DIGEST", "node-a  42       aaaa000000000000", "node-b  42       bbbb000000000000")
	log(a, b, idB, 41, "bbbb000000000000")
	status, stdout, stderr = starling(nil, "verify", "--server", a.addr, "--within", "0s")
	if status != exitFailed || !strings.Contains(stderr, "never at the same entry") || !strings.Contains(stdout, "node-b  41") {
		t.Errorf("status %d: %s%s", status, stdout, stderr)
	}
	both(nil, nil)

	m := threeNodes(a, b)
	m.Members = m.Members[:1]
	a.answers["GET /members"] = m
	status, stdout, _ = starling(nil, "verify", "--server", a.addr)
	if status != exitOK {
		t.Errorf("status %d", status)
	}
	want(t, "alone", stdout, nil, "There is one node, node-a: nothing to compare.")
	m = threeNodes(a, b)
	m.Members = append(m.Members[:1], m.Members[2])
	a.answers["GET /members"] = m
	_, stdout, _ = starling(nil, "verify", "--server", a.addr)
	want(t, "others are gone", stdout, nil, "node-c is silent and was not asked.", "Only node-a could be asked: nothing to compare.")
}

// changingNode shows at each time what a test says.
type changingNode struct {
	id    string
	at    func(time.Duration) []api.ServiceHash // since the start
	start time.Time
	takes time.Duration
}

func (n *changingNode) ask(ctx context.Context) (*api.Hashes, error) {
	time.Sleep(n.takes)
	return &api.Hashes{Node: n.id, Services: n.at(time.Since(n.start))}, nil
}

func TestVerifyOverTime(t *testing.T) {
	type at = func(time.Duration) []api.ServiceHash
	one := func(s ...api.ServiceHash) []api.ServiceHash { return s }
	still := func(hash string) at {
		return func(time.Duration) []api.ServiceHash { return one(hashOf("s", hash, 1, time.Hour)) }
	}
	f := func(name string, within, took time.Duration, outcome string, takes time.Duration, nodes ...at) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var questions []hashQuestion
				for i, n := range nodes {
					questions = append(questions, (&changingNode{string(rune('a' + i)), n, start, takes}).ask)
				}
				v := &verification{}
				got := "equal"
				if err := v.run(t.Context(), questions, within, func(api.Service) bool { return true }); err != nil {
					got = err.Error()
				} else if err := v.verdict(); err != nil {
					got = fmt.Sprintf("%d differ, %d change, of %d", len(v.Differing), len(v.Changing), v.Services)
				}
				if v.Equal != (got == "equal") {
					t.Errorf("equal: %v with %s", v.Equal, got)
				}
				if got != outcome || time.Since(start) != took {
					t.Errorf("%s after %v, want %s after %v", got, time.Since(start), outcome, took)
				}
			})
		})
	}
	const within = 10 * time.Second
	f("quiet and equal", within, 0, "equal", 0, still("x"), still("x"))
	f("quiet and different", within, 0, "1 differ, 0 change, of 1", 0, still("x"), still("y"), still("x"))
	f("just changed, and equal", within, 2*time.Second, "equal", 0, still("x"), func(now time.Duration) []api.ServiceHash {
		return one(hashOf("s", "x", 1, now))
	})
	f("changes for a second", within, 3*time.Second, "equal", 0, still("x"), func(now time.Duration) []api.ServiceHash {
		if now < time.Second {
			return one(hashOf("s", "x", 1, now)) // it goes on for a second
		}
		return one(hashOf("s", "x", 1, now-time.Second))
	})
	f("never quiet", within, within, "0 differ, 1 change, of 1", 0, still("x"), func(now time.Duration) []api.ServiceHash {
		return one(hashOf("s", "x", 1, now%time.Second))
	})
	f("one is never quiet, another differs", 3*time.Second, 3*time.Second, "1 differ, 1 change, of 2", 0,
		func(now time.Duration) []api.ServiceHash {
			return one(hashOf("s", "x", 1, now%time.Second), hashOf("d", "x", 1, time.Hour))
		},
		func(now time.Duration) []api.ServiceHash {
			return one(hashOf("s", "x", 1, time.Hour), hashOf("d", "y", 1, time.Hour))
		})
	f("a difference is not given time to go away", within, 0, "1 differ, 0 change, of 1", 0, still("x"), func(now time.Duration) []api.ServiceHash {
		if now > time.Second {
			return one(hashOf("s", "x", 1, now-time.Second))
		}
		return one(hashOf("s", "y", 1, time.Hour))
	})
	f("two that are quiet in turn", within, 2*time.Second, "equal", 0, still("s"), func(now time.Duration) []api.ServiceHash {
		// s is quiet at first and busy from then on: it was compared.
		if now < time.Second {
			return one(hashOf("s", "s", 1, time.Hour), hashOf("r", "", 0, time.Hour))
		}
		return one(hashOf("s", "other", 1, 0))
	}, func(now time.Duration) []api.ServiceHash {
		if now < time.Second {
			return one(hashOf("s", "s", 1, time.Hour), hashOf("r", "r", 1, now))
		}
		if now < 2*time.Second {
			return one(hashOf("r", "r", 1, now))
		}
		return nil // r is gone: nothing to compare
	})
	f("missing for longer than replication takes", within, 2*time.Second, "1 differ, 0 change, of 1", 0, still("x"), func(time.Duration) []api.ServiceHash { return nil })
	f("missing, then there", within, 3*time.Second, "equal", 0, still("x"), func(now time.Duration) []api.ServiceHash {
		if now < time.Second {
			return nil
		}
		return one(hashOf("s", "x", 1, now-time.Second))
	})
	f("gone a while ago on one", within, 0, "1 differ, 0 change, of 1", 0, still("x"), func(time.Duration) []api.ServiceHash {
		return one(hashOf("s", "e", 0, time.Hour))
	})
	f("without instances on both", within, 0, "equal", 0,
		func(time.Duration) []api.ServiceHash { return one(hashOf("s", "e", 0, 0)) }, func(time.Duration) []api.ServiceHash { return nil })
	// Answers are up to as far apart as they take: 2 s are not enough then. The
	// first are there after 2 s, the next after as long a pause.
	f("slow nodes", within, 6*time.Second, "equal", 2*time.Second, still("x"), func(now time.Duration) []api.ServiceHash {
		return one(hashOf("s", "x", 1, now))
	})
	f("no time", 0, 0, "0 differ, 1 change, of 1", 0, still("x"), func(time.Duration) []api.ServiceHash { return one(hashOf("s", "x", 1, 0)) })
	f("alone", within, 0, "equal", 0, func(time.Duration) []api.ServiceHash { return one(hashOf("s", "x", 1, 0)) })
}

// A node that is behind with the log is asked again, and nothing else is said
// of it then.
func TestVerifyLogOverTime(t *testing.T) {
	type at = func(time.Duration) (uint64, string)
	f := func(name string, took time.Duration, outcome string, nodes ...at) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var questions []hashQuestion
				for i, n := range nodes {
					questions = append(questions, func(context.Context) (*api.Hashes, error) {
						h := &api.Hashes{Node: string(rune('a' + i)), Services: []api.ServiceHash{hashOf("s", "x", 1, time.Hour)}}
						h.RaftApplied, h.RaftDigest = n(time.Since(start))
						return h, nil
					})
				}
				v := &verification{}
				if err := v.run(t.Context(), questions, 10*time.Second, func(api.Service) bool { return true }); err != nil {
					t.Fatal(err)
				}
				got := "equal"
				if err := v.verdict(); err != nil {
					got = err.Error()
				}
				if !strings.HasPrefix(got, outcome) || v.Equal != (got == "equal") || time.Since(start) != took || v.Services != 1 {
					t.Errorf("%s (%v, %d services) after %v, want %s after %v", got, v.Equal, v.Services, time.Since(start), outcome, took)
				}
			})
		})
	}
	still := func(applied uint64, digest string) at {
		return func(time.Duration) (uint64, string) { return applied, digest }
	}
	behind := func(digest string) at {
		return func(now time.Duration) (uint64, string) {
			if now < time.Second {
				return 6, "six"
			}
			return 7, digest
		}
	}
	f("equal", 0, "equal", still(7, "x"), still(7, "x"))
	f("different", 0, "nodes have different tables", still(7, "x"), still(7, "x"), still(7, "y"))
	f("behind, then equal", time.Second, "equal", still(7, "x"), behind("x"))
	f("behind, then different", time.Second, "nodes have different tables", still(7, "x"), behind("y"))
	f("two differ while one is behind", 0, "nodes have different tables", still(7, "x"), still(7, "y"), still(6, "z"))
	f("always behind", 10*time.Second, "the nodes were never at the same entry", still(7, "x"), func(now time.Duration) (uint64, string) { return uint64(now) + 8, "y" })
	f("one does not say", 0, "equal", still(7, "x"), still(0, ""), still(7, "x"))
	f("nothing is in the log", 0, "equal", still(0, "0000"), still(0, "0000"))
}

func TestVerifyStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("enough"))
		defer cancel()
		node := func(id string) hashQuestion {
			return (&changingNode{id: id, at: func(time.Duration) []api.ServiceHash { return []api.ServiceHash{hashOf("s", "x", 1, 0)} }}).ask
		}
		v := &verification{}
		if err := v.run(ctx, []hashQuestion{node("a"), node("b")}, time.Hour, func(api.Service) bool { return true }); err == nil || err.Error() != "enough" {
			t.Error(err)
		}
		// Another node behind the same address makes nonsense of it.
		n := 0
		other := func(context.Context) (*api.Hashes, error) {
			n++
			return &api.Hashes{Node: "b" + strconv.Itoa(n), Services: []api.ServiceHash{hashOf("s", "x", 1, 0)}}, nil
		}
		if err := (&verification{}).run(t.Context(), []hashQuestion{node("a"), other}, time.Hour, func(api.Service) bool { return true }); err == nil || !strings.Contains(err.Error(), "other nodes") {
			t.Error(err)
		}
	})
}
