// Package node builds one server from its options, starts it and stops it.
//
// It is the only package that sees all others, and holds no logic that a
// handler could call: values are made in order, closures connect them, and
// each step that must be undone says how, right where it is done.
//
// Invariant: what Start has begun, Stop ends, in reverse order, also after a
// start that failed half-way.
//
// Start reading at [Start].
package node
