package api

import "time"

// States of a [Member].
const (
	StateAlive   = "alive"   // it answers
	StateSilent  = "silent"  // it does not answer, and its ports say nothing: paused, cut off or powered off
	StateRefused = "refused" // its ports refuse: the process is gone
	StateLeft    = "left"    // it went on purpose
)

// States of a [Life].
const (
	LifeLiving   = "living"   // its node is there
	LifeOrphaned = "orphaned" // its node is gone; its records are served as last seen
	LifeDropped  = "dropped"  // its lease is over; its records are not served
)

// Members is the answer to GET /starling/v1/members: the cluster as one node
// sees it.
type Members struct {
	Cluster string    `json:"clusterId"` // "": not known yet
	Node    string    `json:"node"`      // id of the node that answers
	At      time.Time `json:"at"`        // its clock when it answered; the other times are by the same clock
	Members []Member  `json:"members"`   // by id, the answering node included
}

// A Member is one node of the cluster.
type Member struct {
	ID    string    `json:"id"`
	Name  string    `json:"name"`           // for people; two nodes may have the same
	Epoch uint64    `json:"epoch"`          // of its newest start that is known; grows with each start
	State string    `json:"state"`          // alive, silent, refused or left
	Since time.Time `json:"since,omitzero"` // when the answering node saw that state begin; zero: not known
	Self  bool      `json:"self"`           // it is the node that answers
	// Ready and Draining are what the member says of itself; of one that is
	// not alive, what it said last.
	Ready    bool   `json:"ready"`
	Draining bool   `json:"draining"`
	Host     string `json:"host"` // that it announces
	Ports    Ports  `json:"ports"`
	Version  string `json:"version"` // its release; "" is not known
	Wire     uint32 `json:"wire"`    // version of what nodes say to each other
	// ClockOffsetMillis is its clock minus that of the answering node, as
	// seen with its last head (so less what that took to travel).
	ClockOffsetMillis int64 `json:"clockOffsetMillis"`
	ClockOff          bool  `json:"clockOff"` // the offset is large enough to look after: more than a second
}

// Ports of a node.
type Ports struct {
	HTTP   int `json:"http"`
	GRPC   int `json:"grpc"` // for clients
	Peer   int `json:"peer"` // gRPC between nodes
	Raft   int `json:"raft"`
	Gossip int `json:"gossip"`
}

// Cluster is the answer to GET /starling/v1/cluster: what one node knows, its
// row of the matrix node × life.
type Cluster struct {
	Cluster  string    `json:"clusterId"` // "": not known yet
	Node     string    `json:"node"`      // id of the node that answers
	Name     string    `json:"name"`
	Epoch    uint64    `json:"epoch"`
	At       time.Time `json:"at"`    // its clock when it answered; the other times are by the same clock
	Ready    bool      `json:"ready"` // it serves clients
	Reason   string    `json:"reason,omitempty"`
	Draining bool      `json:"draining"`

	SelfPreservation SelfPreservation `json:"selfPreservation"`
	Lives            []Life           `json:"lives"` // by node and epoch, its own included
	Peers            []Peer           `json:"peers"` // by id
}

// SelfPreservation: more nodes fell silent at once than leave a majority, so
// no lease of an orphan runs until they are back, the time is over, or an
// operator ends it.
type SelfPreservation struct {
	Active       bool      `json:"active"`
	Since        time.Time `json:"since,omitzero"` // only while active
	LeftMillis   int64     `json:"leftMillis"`     // until it ends by itself; only while active
	PausedMillis int64     `json:"pausedMillis"`   // for how long leases have stood still in all; bounded, forgotten after a quiet minute
}

// A Life is one run of one node, as the answering node knows it.
type Life struct {
	Node  string `json:"node"` // id of the node that owns it
	Name  string `json:"name"` // of that node; "" is not known
	Epoch uint64 `json:"epoch"`
	State string `json:"state"` // living, orphaned or dropped

	Applied      uint64 `json:"applied"`      // all versions up to this one are known
	OwnerVersion uint64 `json:"ownerVersion"` // of the owner's newest head that is known here
	LagVersions  uint64 `json:"lagVersions"`  // owner's version minus applied; 0: nothing is missing
	LagMillis    int64  `json:"lagMillis"`    // for how long something has been missing; 0: nothing is

	Records int `json:"records"` // that are held, tombstones included
	Orphans int `json:"orphans"` // instances shown on behalf of this life while its node is gone

	LeaseLeftMillis int64     `json:"leaseLeftMillis"`   // of an orphaned life; 0: none runs, or it is over
	Deadline        time.Time `json:"deadline,omitzero"` // of an orphaned life: when its lease ends

	Digest          string    `json:"digest"`                   // sum over the live records; at the same applied version equal on all nodes
	LastDigestMatch time.Time `json:"lastDigestMatch,omitzero"` // when it was last compared with the owner's and equal; zero: never
}

// A Peer is the way from the answering node to another.
type Peer struct {
	Node        string    `json:"node"`
	Name        string    `json:"name"`
	StreamUp    bool      `json:"streamUp"`           // the stream between the two stands
	BytesQueued int64     `json:"bytesQueued"`        // framed for it and not sent yet
	LastHeard   time.Time `json:"lastHeard,omitzero"` // zero: never
}

// Hashes is the answer to GET /starling/v1/hashes: what every service looks
// like to a reader on one node.
type Hashes struct {
	Cluster  string        `json:"clusterId"` // "": not known yet
	Node     string        `json:"node"`      // id of the node whose services these are
	Name     string        `json:"name"`
	Services []ServiceHash `json:"services"` // in no order
	// RaftApplied is the entry of the log that the node has carried out last,
	// and RaftDigest the sum over the tables then: at the same entry equal on
	// all nodes. 0 and "": the node does not say.
	RaftApplied uint64 `json:"raftApplied"`
	RaftDigest  string `json:"raftDigest"`
}

// A Service names a service.
type Service struct {
	Namespace string `json:"namespace"`
	Group     string `json:"group"`
	Name      string `json:"service"`
}

// A ServiceHash is what a service looks like.
type ServiceHash struct {
	Service
	// Hash is of what readers see (address, cluster, id, weight, health,
	// enabled, metadata) and the same on every node that shows the same.
	Hash            string `json:"hash"`
	Instances       int    `json:"instances"`
	UnchangedMillis int64  `json:"unchangedMillis"` // since it last changed on that node
}

// A Drain is how far a node is with moving its clients to others.
type Drain struct {
	Node  string `json:"node"`
	Name  string `json:"name"`
	State string `json:"state"`          // none, planned, running, done or failed
	Step  string `json:"step,omitempty"` // what is being done, in words

	Plan DrainPlan `json:"plan"`
	// While it runs: what is still attached.
	ClientsLeft   int       `json:"clientsLeft"`
	InstancesLeft int       `json:"instancesLeft"`
	Since         time.Time `json:"since,omitzero"`  // when it began
	Error         string    `json:"error,omitempty"` // why it failed
}

// States of a [Drain].
const (
	DrainNone    = "none"    // the node does not drain
	DrainPlanned = "planned" // a dry run: this would be done
	DrainRunning = "running"
	DrainDone    = "done"   // no client is attached, the other nodes have everything; the node may be stopped
	DrainFailed  = "failed" // it is over, and Error says what was not reached
)

// A DrainPlan is what a drain will do, or would.
type DrainPlan struct {
	Clients   int           `json:"clients"`   // that are attached to the node
	Instances int           `json:"instances"` // that they have registered
	Targets   []DrainTarget `json:"targets"`   // none: no other node is ready, and nobody is moved
	Seconds   float64       `json:"seconds"`   // that it takes, about
}

// A DrainTarget is a node that clients are told to move to.
type DrainTarget struct {
	Node    string `json:"node"`
	Name    string `json:"name"`
	Clients int    `json:"clients"`
}

// A DrainRequest is the body of POST /starling/v1/drain. DryRun must be given:
// a body that was forgotten must not empty a node.
type DrainRequest struct {
	DryRun *bool `json:"dryRun"` // true: only tell the plan
}
