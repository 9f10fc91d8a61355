package raftstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/registry"
)

// Versions of commands: from which on there is something.
const versionEvictions = 2 // and EditMetadata

// CommandVersion is the newest Command.version that this release applies. A
// node announces it ([Member.Commands]).
const CommandVersion = versionEvictions

// A Member is a node as membership sees it.
type Member struct {
	ID string
	// Alive: it answers. Left: it is not, and said so before it went.
	Alive, Left bool
	Since       time.Time // of this state
	Commands    uint32    // newest Command.version that it applies; 0: it knows of no log
}

// Options is what a store needs to know. [DefaultOptions] has the durations
// and sizes; the rest must be given unless it says otherwise.
type Options struct {
	ID  string // of this node; it is its id in the log, too
	Dir string // made if it is not there

	// ClusterID is "" as long as the node does not know it: nobody is let in
	// then.
	ClusterID func() string
	// Listener takes the connections of other nodes, TLS around it included.
	// It is closed by Close. nil: there will never be another node.
	Listener net.Listener
	// Dial reaches the Raft port of a node by its id, wherever it is now. It
	// may be nil without a Listener, and so may Call.
	Dial func(ctx context.Context, id string) (net.Conn, error)
	// Call calls a method of the peer service of a node: "RaftApply" and
	// "RaftState". An error that wraps ErrNotSent promises that nothing was
	// sent: it makes ErrNoLeader of what is ErrUnknownOutcome otherwise.
	Call func(ctx context.Context, to, method string, body []byte) ([]byte, error)
	// Members is the newest view, this node included. It must not block.
	Members func() []Member

	Projection Projection
	Clock      *registry.Clock
	// Switched is called like Commit of Projection with the table of switches,
	// whenever it may have changed and before anybody hears that it has, and
	// with those that have just been set, be it to what they were. Both are the
	// callee's. Nil: nobody cares.
	Switched func(table map[string]string, set []string)
	// Awake is called inline and without locks before something is written and
	// before the configuration is judged: it returns when all that follows
	// from a standstill of this process is done.
	Awake func()
	// Superseded is called once, on a goroutine of its own, when the cluster
	// was recovered without this node: what its log holds does not count any
	// more. It must be started again, and begins with an empty log then. Close
	// waits for the call, so it must not call Close.
	Superseded func()
	// Failed is called once, like Superseded, when the log can no longer be
	// written or read. The store takes no part in the group from then on.
	Failed func(error)

	Heartbeat time.Duration // a follower that hears nothing for so long holds an election
	Election  time.Duration // so long an election takes at most; not below Heartbeat
	Lease     time.Duration // a leader without a quorum for so long steps down; not above Heartbeat
	Timeout   time.Duration // of what is sent to another node; a large snapshot gets more

	SnapshotEvery   time.Duration // between looks at whether a snapshot is due
	SnapshotEntries uint64        // since the last one
	SnapshotBytes   int64         // of log since the last one, or as many as that had if those are more
	TrailingEntries uint64        // stay in the log for followers that are behind

	Reconcile       time.Duration // between looks at the configuration, without a reason
	ReplaceAfter    time.Duration // a crashed voter, if there is somebody to take its place
	RemoveLeftAfter time.Duration // a node that left
	ForgetAfter     time.Duration // a crashed node without a vote
	CaughtUpWithin  time.Duration // a node that finds no leader for so long serves what it has
	NoQuorumWait    time.Duration // a write waits so long for voters that are not there

	NoSync bool // tests only: what was written may be lost with the machine

	Logger  *zap.Logger
	Metrics prometheus.Registerer
}

// DefaultOptions has all that has a default.
func DefaultOptions() Options {
	return Options{
		Awake: func() {}, Superseded: func() {}, Failed: func(error) {},
		Heartbeat: 500 * time.Millisecond, Election: 500 * time.Millisecond, Lease: 250 * time.Millisecond,
		Timeout:       3 * time.Second,
		SnapshotEvery: 30 * time.Second, SnapshotEntries: 8192, SnapshotBytes: 8 << 20, TrailingEntries: 8192,
		Reconcile: 10 * time.Second, ReplaceAfter: time.Minute, RemoveLeftAfter: 5 * time.Minute, ForgetAfter: 24 * time.Hour,
		CaughtUpWithin: 10 * time.Second, NoQuorumWait: 2 * time.Second,
	}
}

// Validate names what is missing or wrong.
func (o *Options) Validate() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New("raftstore: "+what))
		}
	}
	need(o.ID != "", "ID must be given")
	need(len(o.ID) <= maxHelloString, fmt.Sprintf("ID must have at most %d bytes", maxHelloString))
	need(o.Dir != "", "Dir must be given")
	need(o.ClusterID != nil && o.Members != nil, "ClusterID and Members must be given")
	need(o.Listener == nil || o.Dial != nil && o.Call != nil, "Dial and Call must be given with a Listener")
	need(o.Projection != nil && o.Clock != nil, "Projection and Clock must be given")
	need(o.Awake != nil && o.Superseded != nil && o.Failed != nil, "Awake, Superseded and Failed must be given")
	need(o.Logger != nil && o.Metrics != nil, "Logger and Metrics must be given")
	for name, d := range map[string]time.Duration{
		"Heartbeat": o.Heartbeat, "Election": o.Election, "Lease": o.Lease, "Timeout": o.Timeout,
		"SnapshotEvery": o.SnapshotEvery, "Reconcile": o.Reconcile, "ReplaceAfter": o.ReplaceAfter,
		"RemoveLeftAfter": o.RemoveLeftAfter, "ForgetAfter": o.ForgetAfter,
		"CaughtUpWithin": o.CaughtUpWithin, "NoQuorumWait": o.NoQuorumWait,
	} {
		need(d >= 5*time.Millisecond, name+" must be at least 5 ms")
	}
	need(o.Lease <= o.Heartbeat, "Lease must not be above Heartbeat")
	need(o.Election >= o.Heartbeat, "Election must not be below Heartbeat")
	need(o.SnapshotEntries > 0 && o.SnapshotBytes > 0, "SnapshotEntries and SnapshotBytes must be above 0")
	return errors.Join(errs...)
}
