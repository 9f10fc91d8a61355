package registry

import (
	"cmp"
	"strconv"
	"strings"
)

// A Life is one run of one node: what a node owns is stamped with it (design
// §3). Node is the id of the node, Epoch grows with each of its starts.
type Life struct {
	Node  string
	Epoch uint64
}

// String is for logs and people: the id cut short.
func (l Life) String() string {
	return l.Node[:min(8, len(l.Node))] + "/" + strconv.FormatUint(l.Epoch, 10)
}

func (l Life) compare(o Life) int {
	return cmp.Or(strings.Compare(l.Node, o.Node), cmp.Compare(l.Epoch, o.Epoch))
}

// A LifeState is all that the registry knows of the failure of a node (design
// §6).
type LifeState uint8

const (
	// Living: its node is there.
	Living LifeState = iota
	// Orphaned: its node is gone; its records are served as last seen.
	Orphaned
	// Dropped: its records are not served, and what they named is hidden.
	Dropped
	// Waning: as Orphaned for clients that are known to need long to register
	// again ([Record].Redo), as Dropped for all others, whose lease is over.
	Waning
)

func (s LifeState) String() string {
	switch s {
	case Living:
		return "living"
	case Orphaned:
		return "orphaned"
	case Dropped:
		return "dropped"
	case Waning:
		return "waning"
	}
	return "unknown"
}

// A RecordKey names what one client publishes for one service.
type RecordKey struct {
	Client  string
	Service ServiceKey
}

// A Record is what one client publishes for one service, as it travels between
// nodes.
type Record struct {
	RecordKey
	Kind  Kind
	Clock Stamp // of the last write
	Cause Cause // of the last write
	// Gone: nothing is published. The zero value with an empty list is an
	// empty batch, which is a publication.
	Gone      bool
	Batch     bool
	Moving    bool // its connection is gone, its client is expected elsewhere
	Redo      int  // seconds the client may take to register again; 0: the usual time
	Instances []Published
	// Hides are of instances that the key has named and no longer does, and of
	// those that its client withdrew without having registered them here.
	Hides []Hide
}

// A Published is an instance with its registration clock.
type Published struct {
	*Instance
	Since Stamp
}

// A Hide says that registrations of an instance with clocks up to UpTo are not
// shown. It was made at Made, which may be much later.
type Hide struct {
	InstanceKey
	UpTo, Made Stamp
	// Strong: the client that had registered the instance deregistered it. It
	// hides older registrations by clients of the same kind, whoever holds
	// them. The others hide only what nobody living stands for: orphans and
	// what is moving. So the end of one of two clients of an instance does not
	// take away the other's.
	Strong bool
}

// A Probe says that the address of an instance of an orphaned life did not
// answer (design §6, expiry probe). What was registered up to UpTo is not
// shown until the owner of the life has spoken again.
type Probe struct {
	Of         Life
	Service    ServiceKey
	Instance   InstanceKey
	UpTo, Made Stamp
}
