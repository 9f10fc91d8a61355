package raftstore

import "time"

// Roles of a [Status]. Those of a node in a group are the library's.
const (
	roleLeader     = "leader"
	roleJoining    = "joining"    // it knows of no configuration
	roleFailed     = "failed"     // its log cannot be written or read
	roleSuperseded = "superseded" // its log does not count any more: the node is about to start again
)

// A Server is a node of the configuration of the log.
type Server struct {
	ID    string
	Voter bool
	Alive bool // as membership sees it
}

// Status is what a store can say of itself and of the group.
type Status struct {
	Role       string // leader, follower, candidate, shutdown, or one of the constants
	Leader     string // id; "": none is known
	Term       uint64
	Commit     uint64 // index of the newest entry that a quorum has, as far as this node knows
	Applied    uint64 // index up to which the tables are, and what Digest is of
	Digest     uint64
	Last       uint64 // index of the newest entry
	Generation uint64 // counts the recoveries from a lost quorum, from 1; 0: this node has joined none yet

	Servers      []Server // by id
	Wanted       int      // voters that there should be of so many nodes
	Quorum       int      // of the voters
	AliveVoters  int
	Stale        bool // it serves tables that may be behind: it has not caught up, or there is no leader
	LogBytes     int64
	LastSnapshot time.Time // zero: there is none
	SnapshotSize int64
	Rows         map[string]int // of the tables, by kind
}
