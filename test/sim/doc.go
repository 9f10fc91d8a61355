// Package sim runs whole nodes (pkg/node) in one testing/synctest bubble, over
// the network of test/simnet: with its faults, and with clients that behave as
// the official SDKs do. It says what must hold while nodes die, stand still,
// are cut off, restart and leave (design §6), and checks it all the time.
//
//	[Cluster]   nodes, their network and what is done to them
//	[Client]    a provider that is a subscriber too: Java, Go, Python, or HTTP beats
//	writer      writes what must survive, at any node, over gRPC and HTTP
//	observer    a subscriber that is bound to one node: what that node shows
//	checker     the promises, against what is true
//	ledger      the promises to writers, against what they were told
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
// And of what must survive (design §8):
//
//	lost       what was acknowledged is not there, or a node that is alone acknowledges
//	order      no order of the writes explains what was read, or a node goes back
//	slow       a write is answered later than it may be, or with another text
//	refused    with a majority a write fails in the quiet time
//	edit       an operator's edit is not where it should be, or where it should not
//	voters     the wrong nodes vote
//
// # What is linearizable
//
// Writes are: each of them happens once, between question and answer, or never
// if the answer says so, or perhaps if the answer says that, or there was none.
// Reads are memory of the node that is asked, and may be old (semantics R6),
// even where the reader has just written: a node that is behind does not hold
// up its writers for long. One case is as good as a write: who
// writes at a node that leads in the same term before and after, and reads there
// then, reads what the log held at some moment since that write began. Those
// reads, and those of all nodes at the end, must fit the writes (porcupine).
// All others must not go back within one process, nor show what was refused.
// A refusal because of what is there (exists, not found) may come from the
// node's own view and counts only as "not written".
//
// The nodes write without fsync: here processes die, not machines. What a power
// cut leaves is for test/power.
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
