package raftstore

import (
	"cmp"
	"slices"
	"time"
)

// WantedVoters is how many nodes vote, of so many that there are. More than
// five cost each write and gain nothing.
func WantedVoters(nodes int) int {
	switch {
	case nodes >= 5:
		return 5
	case nodes >= 3:
		return 3
	}
	return nodes
}

func quorum(voters int) int { return voters/2 + 1 }

type change string

const (
	nothing     change = ""
	addNonvoter change = "add_nonvoter"
	promote     change = "promote"
	demote      change = "demote"
	remove      change = "remove"
)

// A step is one change of the configuration. There is only ever one at a time.
type step struct {
	change change
	id     string
	why    string
}

// A situation is all that the configuration is judged by.
type situation struct {
	self    string // the leader
	servers []Server
	members []Member
	// caughtUp are the nodes that have said lately that they are as far as the
	// leader.
	caughtUp map[string]bool
	// missing says since when a server of the configuration has not been among
	// the members.
	missing map[string]time.Time
	now     time.Time

	replaceAfter, removeLeftAfter, forgetAfter time.Duration
}

// plan is the next step from the configuration that there is to the one that
// there should be. Its rules, the first that applies:
//
//  1. A member that is alive, and of a release that knows the log, gets it.
//  2. While there are too few voters, one that is alive and has caught up
//     becomes one. An even number of more than two is avoided.
//  3. A voter that crashed long ago, or has left, is replaced: first another
//     becomes a voter, then it goes. Without another a crashed one stays (C32:
//     a restart of all nodes must not shrink the group).
//  4. Voters beyond the wanted number go: those that left, those that crashed,
//     then the vote of one that is alive. There are too many only because
//     nodes left, or after a replacement.
//  5. Who left goes altogether, and in the end a crashed one without a vote.
//
// No step leaves fewer voters alive than a quorum of what then there is.
func plan(s situation) step {
	members := map[string]Member{}
	for _, m := range s.members {
		members[m.ID] = m
	}
	type node struct {
		Server
		alive         bool
		crashed, left bool // for long enough
		forgotten     bool
	}
	known := map[string]bool{}
	var nodes []node // of the configuration
	count := 0       // nodes that there are, or that are expected back
	voters, alive := 0, 0
	for _, server := range s.servers {
		known[server.ID] = true
		n := node{Server: server}
		m, ok := members[server.ID]
		since := m.Since
		if !ok {
			if since, ok = s.missing[server.ID]; !ok {
				since = s.now
			}
		}
		gone := s.now.Sub(since)
		switch {
		case server.ID == s.self || m.Alive:
			n.alive = true
		case m.Left:
			n.left = gone >= s.removeLeftAfter
		default:
			n.crashed = gone >= s.replaceAfter
			n.forgotten = gone >= s.forgetAfter
		}
		if n.Voter {
			voters++
			if n.alive {
				alive++
			}
		}
		if !n.left {
			count++
		}
		nodes = append(nodes, n)
	}
	var strangers []string
	for _, m := range s.members {
		if m.Alive && m.Commands > 0 && !known[m.ID] {
			strangers = append(strangers, m.ID)
		}
	}
	if len(strangers) > 0 {
		return step{addNonvoter, slices.Min(strangers), "a new member"}
	}

	slices.SortFunc(nodes, func(a, b node) int { return cmp.Compare(a.ID, b.ID) })
	pick := func(ok func(node) bool) string {
		if i := slices.IndexFunc(nodes, ok); i >= 0 {
			return nodes[i].ID
		}
		return ""
	}
	wanted := WantedVoters(count)
	candidates := 0
	candidate := ""
	for _, n := range nodes {
		if !n.Voter && n.alive && s.caughtUp[n.ID] {
			candidates++
			if candidate == "" {
				candidate = n.ID
			}
		}
	}
	// One voter more must not be one that cannot be outvoted: with it, those
	// that are alive must still be a quorum.
	mayAdd := candidate != "" && alive+1 >= quorum(voters+1)
	mayLose := func(n node) bool {
		left := alive
		if n.alive {
			left--
		}
		return voters > 1 && left >= quorum(voters-1)
	}

	target := wanted
	if reach := voters + candidates; reach < target && reach > 2 && reach%2 == 0 {
		target = reach - 1
	}
	if voters < target && mayAdd {
		return step{promote, candidate, "more voters are wanted"}
	}
	if lost := pick(func(n node) bool { return n.Voter && (n.crashed || n.left) }); lost != "" && voters <= wanted && mayAdd {
		return step{promote, candidate, "in place of " + lost}
	}
	if voters > wanted {
		if id := pick(func(n node) bool { return n.Voter && n.left && mayLose(n) }); id != "" {
			return step{remove, id, "it left, and there are voters enough"}
		}
		if id := pick(func(n node) bool { return n.Voter && n.crashed && mayLose(n) }); id != "" {
			return step{remove, id, "it is gone, and another is in its place"}
		}
		// Somebody may be about to come back, or to be replaced.
		if alive == voters {
			slices.Reverse(nodes) // any rule does, if it is the same each time
			if id := pick(func(n node) bool { return n.Voter && n.ID != s.self && mayLose(n) }); id != "" {
				return step{demote, id, "there are more voters than wanted"}
			}
		}
	}
	if id := pick(func(n node) bool { return n.left && (!n.Voter || mayLose(n)) }); id != "" {
		return step{remove, id, "it left"}
	}
	if id := pick(func(n node) bool { return n.forgotten && !n.Voter }); id != "" {
		return step{remove, id, "it has been gone for very long"}
	}
	return step{}
}
