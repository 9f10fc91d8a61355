package raftstore

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// situationOf reads a situation from a text: servers, then others. A voter is
// upper case. Behind the name: nothing, it is alive; x, it crashed long ago;
// ?, just now; <, it left long ago; ~, just now; -, it is no member; and for
// one that is alive, . if it has not caught up and 0 if it knows of no log. The leader is the first voter
// that is alive.
func situationOf(servers, strangers string) situation {
	now := time.Unix(1_000_000, 0)
	s := situation{caughtUp: map[string]bool{}, missing: map[string]time.Time{}, now: now,
		replaceAfter: time.Minute, removeLeftAfter: 5 * time.Minute, forgetAfter: 24 * time.Hour}
	for i, list := range []string{servers, strangers} {
		for f := range strings.FieldsSeq(list) {
			name, mark := f[:1], f[1:]
			id := strings.ToLower(name)
			m := Member{ID: id, Alive: mark == "" || mark == ".", Left: mark == "<" || mark == "~", Commands: CommandVersion, Since: now.Add(-2 * time.Minute)}
			switch mark {
			case "?":
				m.Since = now.Add(-30 * time.Second)
			case "<":
				m.Since = now.Add(-6 * time.Minute)
			case "0":
				m.Alive, m.Commands = true, 0
			case "!":
				m.Since = now.Add(-25 * time.Hour)
			}
			s.caughtUp[id] = mark == ""
			if mark == "-" {
				s.missing[id] = now.Add(-2 * time.Minute)
			} else {
				s.members = append(s.members, m)
			}
			if i == 1 {
				continue
			}
			voter := name != id
			s.servers = append(s.servers, Server{ID: id, Voter: voter, Alive: m.Alive})
			if voter && m.Alive && s.self == "" {
				s.self = id
			}
		}
	}
	return s
}

func TestPlan(t *testing.T) {
	for _, c := range []struct{ servers, strangers, want string }{
		{"A", "", " "},
		{"A B", "", " "},
		{"A B C", "", " "},
		{"A B C d", "", " "},
		{"A B C D E f", "", " "},
		// New members.
		{"A", "b", "add_nonvoter b"},
		{"A", "c b.", "add_nonvoter b"},
		{"A", "b?", " "},
		{"A", "b<", " "},
		{"A", "b0", " "},
		{"A b", "c", "add_nonvoter c"},
		// Promotion.
		{"A b", "", "promote b"},
		{"A b.", "", " "},
		{"A B c", "", "promote c"},
		{"A B C d e", "", "promote d"},
		{"A B C D e", "", "promote e"},
		{"A B C d. e", "", " "}, // four voters are no better than three
		{"A B C D e.", "", " "},
		{"A B c. d", "", "promote d"},
		{"A B? c", "", "promote c"},
		{"A Bx c", "", "promote c"},
		// Crashed voters.
		{"A B Cx", "", " "},
		{"A B Cx d", "", "promote d"},
		{"A B C- d", "", "promote d"},
		{"A Bx Cx d", "", " "}, // it cannot lead any more; membership knows first
		{"A B C? d", "", " "},
		{"A B Cx d.", "", " "},
		{"A B Cx D", "", "remove c"},
		{"A B C? D", "", " "}, // it was replaced before, and its replacement has just crashed
		{"A B C D", "", "demote d"},
		{"B C D a", "", " "},
		{"A B C Dx Ex", "", " "}, // nobody is there: five stay
		{"A B C Dx Ex f", "", "promote f"},
		{"A B C Dx Ex F", "", "remove d"},
		{"A B C D Ex F", "", "remove e"},
		// Nodes that left.
		{"A B C~", "", " "},
		{"A B C<", "", "remove c"},
		{"A B C< d", "", "promote d"},
		{"A B C< D", "", "remove c"},
		{"A B< C?", "", " "},
		{"A Bx C<", "", " "}, // without c, a would need b
		{"A B C D E<", "", "remove e"},
		{"A B C D", "e~", "demote d"},
		{"A B C D~ E~", "", " "},
		{"A B C d<", "", "remove d"},
		{"A B C d~", "", " "},
		{"A B<", "", "remove b"}, // it can only be if the leader got there before
		// Crashed nodes without a vote.
		{"A B C dx", "", " "},
		{"A B C d!", "", "remove d"},
		{"A B C! ", "", " "},
	} {
		got := plan(situationOf(c.servers, c.strangers))
		if s := string(got.change) + " " + got.id; s != c.want {
			t.Errorf("%s + %s: %q (%s), want %q", c.servers, c.strangers, s, got.why, c.want)
		}
	}
}

// In whatever order nodes come, crash, come back and leave, no step leaves
// fewer voters than a quorum alive, and the steps come to an end.
func TestPlanIsSafe(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := situationOf("A", "")
		s.self = "a"
		name := 'b'
		for range 60 {
			s.now = s.now.Add(time.Duration(r.IntN(600)) * time.Second)
			switch i := r.IntN(len(s.members)); {
			case r.IntN(3) == 0 && len(s.members) < 12:
				s.members = append(s.members, Member{ID: string(name), Alive: true, Commands: CommandVersion, Since: s.now})
				name++
			case s.members[i].ID == s.self:
			case s.members[i].Alive:
				// Only as long as the leader can lead.
				voters, alive := 0, 0
				for _, server := range s.servers {
					if server.Voter {
						voters++
						if slices.ContainsFunc(s.members, func(m Member) bool { return m.ID == server.ID && m.Alive }) {
							alive++
						}
						if server.ID == s.members[i].ID {
							alive--
						}
					}
				}
				if alive >= quorum(voters) {
					s.members[i].Alive, s.members[i].Left, s.members[i].Since = false, r.IntN(2) == 0, s.now
				}
			default:
				s.members[i].Alive, s.members[i].Left, s.members[i].Since = true, false, s.now
			}
			for steps := 0; ; steps++ {
				for _, m := range s.members {
					s.caughtUp[m.ID] = m.Alive && r.IntN(4) > 0
				}
				st := plan(s)
				if st.change == nothing {
					break
				}
				if steps > 50 {
					t.Fatalf("seed %d: no end: %+v at %+v", seed, st, s)
				}
				i := slices.IndexFunc(s.servers, func(server Server) bool { return server.ID == st.id })
				switch st.change {
				case addNonvoter:
					if i >= 0 {
						t.Fatalf("seed %d: %+v at %+v", seed, st, s)
					}
					s.servers = append(s.servers, Server{ID: st.id})
				case promote:
					if s.servers[i].Voter || !s.caughtUp[st.id] {
						t.Fatalf("seed %d: %+v at %+v", seed, st, s)
					}
					s.servers[i].Voter = true
				case demote:
					s.servers[i].Voter = false
				case remove:
					s.servers = slices.Delete(s.servers, i, i+1)
				}
				voters, alive := 0, 0
				for _, server := range s.servers {
					if server.Voter {
						voters++
						if slices.ContainsFunc(s.members, func(m Member) bool { return m.ID == server.ID && m.Alive }) {
							alive++
						}
					}
				}
				if voters > 6 || alive < quorum(voters) || st.id == s.self && st.change != addNonvoter {
					t.Fatalf("seed %d: after %+v %d of %d voters are alive: %+v", seed, st, alive, voters, s)
				}
			}
		}
	}
}

func Example_plan() {
	s := situationOf("A B Cx d", "")
	st := plan(s)
	fmt.Println(st.change, st.id, st.why)
	// Output: promote d in place of c
}
