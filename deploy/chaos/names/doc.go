// Package names is a small DNS server whose records change while it runs, for
// nodes and clients that know each other by one name.
//
// It knows addresses only. How it answers what it does not have is what
// CoreDNS does for services of Kubernetes, because there the answers differ from
// those of other servers.
//
// The invariant: an answer has all addresses of a name as one Set has given
// them, never some of two; and what was asked is in the log before it is
// answered.
//
// Start reading at Server. README.md here says what nodes and the official SDKs
// make of names.
package names
