// Package raftstore keeps what must survive in one Raft log for the whole
// cluster (design §8): persistent instances, what operators say about services
// and single instances, namespaces, switches, users and roles.
//
// A write is a typed command. The leader puts it into the log, every node
// applies the log in the same order to its own tables, and the result goes back
// to whoever asked: a refused write is an error and changes nothing. Reads are
// memory of this node.
//
// Invariant: the tables are a function of the log. Whatever the bytes of an
// entry are, applying it neither fails nor looks at anything but the tables
// and the entry, so equal positions mean equal tables, and their digests show
// it.
//
// Start reading at command.go (what can be asked for), then write.go (how it
// gets into the log, and what is known when it does not), fsm.go (what comes of
// it), tables.go and snapshot.go (how it is kept). The group of nodes is
// store.go, reconcile.go and plan.go (who belongs to it and who votes),
// stream.go (who may connect), log.go (what is on disk) and recover.go (when a
// quorum is lost for good). DESIGN.md says why.
package raftstore
