// Package health decides whether instances live, and tells the registry.
//
// [Beats] is the part for HTTP clients: they have no connection, so their
// instances live by beats (semantics H7–H10). An instance without a beat for
// a while becomes unhealthy, later it goes.
//
// [Prober] is the part for persistent instances: they stay until they are
// deregistered, and what is found out by connecting to them is whether they
// are healthy (semantics H15–H20). DESIGN.md says how, and how soon.
//
// Invariant of both: only time in which this node could have heard something
// counts. When this process stood still (it was stopped, its machine paused,
// there was no CPU), every deadline of a beat starts anew, probes that were
// under way are void, and counting begins again: so a node that slept does not
// expel everybody on waking up (semantics W25, T20). While another node is silent
// beats may be reaching that one, so there an address that answers is as good as
// a beat.
//
// An operator may switch both off (semantics H20). When they are on again, every
// deadline and all counting starts anew, as after a stall.
//
// In a cluster each client is kept by one node, to which the others send its
// beats; which one changes with the members. A node that gets a beat of a
// client that it does not have takes the client over with a registration clock
// one step above the newest it has seen; the old one removes its copy a while
// after it has seen the new one. So there is always a copy, and no removal
// hides the newest. A persistent instance is probed by one node as well; there
// is nothing to hand over, as what was found stays and the new one counts from
// zero.
//
// A beat takes some map look-ups and a time; it is not replicated, pushed or
// noted anywhere else. Nor is a probe that finds what is shown already.
//
// Start reading at [Beats.Beat], then view.restamp and Beats.sweep; and at
// tally.after and picture.deed, then Prober.step and Prober.probe.
package health
