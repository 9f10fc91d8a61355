// Package registry holds what is registered, by whom, and one readable
// picture of it per service.
//
// A [Client] (a connection of an SDK, or an HTTP client that sends beats)
// publishes at most one publication per service: one instance or a batch
// (semantics D8–D11). What a publication says about one [InstanceKey] is a
// claim. Several clients may claim the same instance; readers see the newest
// claim, the others are the fallback when it goes.
//
// Invariant: the [Snapshot] of a service is immutable and published before
// anybody is told of the change. A writer holds the lock of one shard, builds
// the next snapshot, publishes it, unlocks, and only then calls
// [Options.Changed]. So a read that follows a write on the same node sees it,
// and whoever is told of a change finds it.
//
// Persistent instances, what operators say about services and their edits of
// instances come from the log of the cluster, through [Registry.Commit]. They
// are shown beside the claims; where a key has both, the log's is shown.
//
// What a node publishes belongs to its [Life]. Other nodes' lives come in
// through [Registry.Apply] as claims like any other, what goes out is fetched
// with [Registry.Take], and [Registry.SetLife] says who is gone. Which claim is
// shown follows from what is known, not from the order in which it came: see
// pick.
//
// The package starts no goroutine, does no I/O and knows neither JSON nor
// gRPC. Time comes from a [Clock]; whoever owns the registry calls
// [Registry.Sweep] now and then.
//
// Start reading at [Client.Register], then pick and showLocked. DESIGN.md says
// why it is built this way.
package registry
