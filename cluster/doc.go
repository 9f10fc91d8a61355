// Package cluster knows who the other nodes are and brings bytes to them. It
// does not know what the bytes mean.
//
// Membership is memberlist's (gossip, failure detection), with what it lacks:
// joining names with several addresses for ever, a planned leave that is not
// taken for a failure, the difference between a node that is gone and one that
// is silent, a cluster id that keeps strangers out. Delivery is a gRPC stream
// in each direction between any two nodes; without one, memberlist's reliable
// message; and gossip for what is small.
//
// Invariant: the [View] is level-triggered. Whatever order events arrive in,
// and however many were missed, the newest view says what is true of each
// member as far as this node can tell; states are decided in one function from
// facts that are kept per member (member.decide).
//
// memberlist calls back while it holds its own locks. Those callbacks copy
// what they were given, mark, and return; they never call memberlist.
//
// Start reading at [Cluster.Start], then Cluster.run and member.decide; for
// delivery at [Cluster.Send].
package cluster
