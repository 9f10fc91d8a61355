package api

import "time"

// Roles of a node in the log of the cluster.
const (
	RoleLeader    = "leader"
	RoleFollower  = "follower"
	RoleCandidate = "candidate" // it looks for votes
	RoleJoining   = "joining"   // it knows of no log yet
	RoleFailed    = "failed"    // its disk does not take the log any more
)

// Raft is the answer to GET /starling/v1/raft: the log of the cluster as one
// node sees it. In the log is what must survive: persistent instances, what
// operators have set, accounts.
type Raft struct {
	Cluster string    `json:"clusterId"` // "": not known yet
	Node    string    `json:"node"`      // id of the node that answers
	Name    string    `json:"name"`
	At      time.Time `json:"at"`   // its clock when it answered; the other times are by the same clock
	Role    string    `json:"role"` // leader, follower, candidate, joining, failed, or a newer one

	Leader       string `json:"leader"`       // id; "": none is known, and nothing can be written
	LeaderName   string `json:"leaderName"`   // "" is not known
	LeaderServer string `json:"leaderServer"` // HTTP host:port that it announces; "" is not known

	Term    uint64 `json:"term"`
	Commit  uint64 `json:"commit"`  // entries up to this one are safe
	Applied uint64 `json:"applied"` // newest entry that has changed the tables; some change none
	Last    uint64 `json:"last"`    // newest entry
	Digest  string `json:"digest"`  // sum over the tables; at the same applied entry equal on all nodes
	// Generation grows with each recovery from a lost quorum; 0: the node has
	// no part of any log yet.
	Generation uint64 `json:"generation"`

	Servers      []RaftServer `json:"servers"`      // that the log is kept on, by id; none: it does not know yet
	VotersWanted int          `json:"votersWanted"` // for a cluster of this size; 0: only the leader knows
	Quorum       int          `json:"quorum"`       // voters that must be alive for a write
	AliveVoters  int          `json:"aliveVoters"`  // as the answering node sees them, itself included
	// Stale: what the node serves of the log may be old, because it has no
	// leader, or has not caught up with it since it started.
	Stale bool           `json:"stale"`
	Rows  map[string]int `json:"rows,omitempty"` // what the tables hold, by kind; absent is not known

	LogBytes int64        `json:"logBytes"` // that the log takes on disk
	Snapshot RaftSnapshot `json:"snapshot"` // the newest
}

// A RaftServer is a node that the log is kept on.
type RaftServer struct {
	ID    string `json:"id"`
	Name  string `json:"name"`  // "" is not known
	Voter bool   `json:"voter"` // its vote counts; others only follow
	State string `json:"state"` // as a member: alive, silent, refused or left; "": it is none
}

// A RaftSnapshot is the tables as they were at some entry, on disk, so that
// the log before it can go.
type RaftSnapshot struct {
	At    time.Time `json:"at,omitzero"` // zero: there is none
	Bytes int64     `json:"bytes"`
}

// A Backup is what GET /starling/v1/backup has sent: the tables at one entry,
// in the format of docs/cluster.md. Its bytes follow the head as they are made;
// their sum comes behind them, in trailers.
type Backup struct {
	Node   string `json:"node"`   // id of the leader, whose tables they are
	Server string `json:"server"` // that sent them
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"` // 64 hex digits
}

// Headers of a backup; the last two are trailers.
const (
	HeaderNode   = "Starling-Node"
	HeaderBytes  = "Starling-Bytes"
	HeaderSHA256 = "Starling-Sha256"
)

// BackupType is the content type of a backup. A restore must have it: a browser
// does not send it for another site without asking first.
const BackupType = "application/octet-stream"

// Restored is the answer to POST /starling/v1/restore: the leader after it.
type Restored struct {
	Node    string         `json:"node"`
	Name    string         `json:"name"`
	Applied uint64         `json:"applied"` // the entry that brought it
	Digest  string         `json:"digest"`
	Rows    map[string]int `json:"rows,omitempty"` // what the tables hold now, by kind; absent is not known
}

// A RemoveRequest is the body of POST /starling/v1/members/remove.
type RemoveRequest struct {
	ID string `json:"id"`
}

// Removed is its answer: the log without that member.
type Removed struct {
	ID          string `json:"id"`
	Name        string `json:"name"`   // "" is not known
	Voters      int    `json:"voters"` // that are left
	Quorum      int    `json:"quorum"`
	AliveVoters int    `json:"aliveVoters"`
}
