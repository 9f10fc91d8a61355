// Package push brings the newest snapshot of a service to each subscriber of
// this node.
//
// Whoever changes a service calls [Engine.Mark]. A quiet service is pushed at
// once; what changes within the merge window after a push goes out together at
// its end. A connection has a set of dirty services, not a queue of messages:
// its sender takes a service from the set with [Subscriber.Next] and gets the
// picture as it is then, so that a slow connection skips what is out of date,
// costs bounded memory and delays nobody.
//
// Invariant: a subscription that is behind is either in its connection's dirty
// set, or its service waits for the end of a window. So the newest picture
// always arrives, whatever was skipped before.
//
// Start reading at Engine.flush, then [Subscriber.Next]. DESIGN.md says why.
package push
