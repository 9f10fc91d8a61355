// Package verdict judges what subscribers saw of a cluster that was broken on
// purpose.
//
//	[Timeline]     all that is known of a run: who lived, what was seen, what was done
//	[Limits]       the bounds that a server documents
//	[Derive]       what must hold of a timeline, from what was done and the limits
//	[Expectation]  that, or what the author of a scenario wrote by hand
//	[Judge]        compares; the result is a [Verdict], with a [Summary]
//
// The invariant: it knows nothing but its arguments: no clock, no process, no
// network, and not what a server says of itself. So each rule is tested with a
// few lines of data, and a recorded run can be judged again.
//
// # Live
//
// A provider is live for an observer while its owner is reachable from the
// observer's side, or it can be dialled from there, or the cut is shorter than
// the lease. A live one must be in every view, from when it is due. A gap is
// excused only as a whole, and only by one of these:
//
//   - its owner lives out of reach, for longer than the lease, and a node there
//     cannot dial it (or could, for 180 s); where more are silent than leave a
//     majority, three minutes later;
//   - it lost its owner, and silence added up, no node that takes it, or the loss
//     of the next one kept it from being registered in time;
//   - it was registered again where this side could not hear of it;
//   - its own way to its node was cut, from 5 s later until it is back;
//   - it registered where this side could not hear of it, or in the last moment
//     before its node was killed, and the observer saw it elsewhere;
//   - it registered since the last snapshot of a side that was down as a whole;
//   - it lives by beats, and those reach nobody, or owners differed in a cut.
//
// An observer that is on its way to another node goes on to show what it was
// told last. How long the dead may be seen is in gone.go, with the rule by which
// each goes.
//
// What is not known (where a client went, who dials) counts in the server's
// favour: each node that a client may be at is tried. That is why the node at
// which it registered is kept for as long as nothing happened to it.
//
// # From what was done to an excuse
//
// [Judge] compares each provider with each observer, and asks for the excuses of
// the two. They come from
//
//	world.go    stretches of time: which nodes are up, which links carry, who is silent for whom
//	client.go   paths: at which nodes the provider and the observer may have been, and when
//	derive.go   from when the node of one may lack what was on that of the other (lacks),
//	            and on until the observer is told again (deaf)
//	gone.go     by when the dead must be gone
//	settled.go  how long a recording has to go on for all that
//	writes.go   persistent writes, which need none of it
//
// All numbers are in limits.go. Letters mean the same everywhere: p is a provider,
// o an observer, m the node that shows a list, n the one that had the provider, k
// any other, i a stretch, z a silence.
//
// Start reading at [Judge], then [Derive].
package verdict
