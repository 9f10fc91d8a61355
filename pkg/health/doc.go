// Package health decides whether instances live, and tells the registry.
//
// [Beats] is the part for HTTP clients: they have no connection, so their
// instances live by beats (semantics H7–H10). An instance without a beat for
// a while becomes unhealthy, later it goes.
//
// Invariant: a deadline counts only time in which this node could have heard
// a beat. When the loop finds that it was stalled itself (a stopped process, a
// paused machine, no CPU), every deadline starts anew, so that a node that
// slept does not expel everybody on waking up (semantics W25, T20).
//
// A beat takes two map look-ups and a time; it is not replicated, pushed or
// noted anywhere else.
//
// Start reading at [Beats.Beat], then Beats.step.
package health
