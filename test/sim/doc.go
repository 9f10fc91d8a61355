// Package sim runs whole nodes (pkg/node) in one testing/synctest bubble, over
// the network of test/simnet: with its faults, and with clients that behave as
// the official SDKs do. It says what must hold while nodes die, stand still,
// are cut off, restart and leave (design §6), and checks it all the time.
//
//	[Cluster]   nodes, their network and what is done to them
//	[Client]    a provider that is a subscriber too: Java, Go, Python, or HTTP beats
//	observer    a subscriber that is bound to one node: what that node shows
//	checker     the promises, against what is true
//	[Schedule]  what happens when: by name, at random, or given with -sim.play
//
// The promises, as failures name them:
//
//	gap        a live instance is missing from a node's view (live as in design §6)
//	resurrect  one that was gone is back on a node, although nobody registered it
//	ghost      one that is dead is shown for longer than any lease allows
//	reorder    an older value is shown after a newer one
//	time       lastRefTime runs backwards for a client, be it at another node
//	late       what a schedule says is gone by then is still shown
//	apart      nodes that reach each other show different things for long
//	diverge    after a quiet time nodes, subscribers and the truth differ
//	alarm      two nodes have the same version of a life and another digest
//	busy       after a quiet time nodes still send each other what they have
//
// Invariant: what is true is known from what the harness did and what nodes
// answered, never from the nodes' own state; only the digests at the end are
// asked for.
//
// A run is not reproducible to the bit, since goroutines are scheduled as they
// come and memberlist draws from the global generator: a seed gives the same
// schedule, network, clients and node ids. Repeat a seed that failed.
//
// Start reading at [Run].
package sim
