// Package simnet is a network in memory for tests that run in a
// testing/synctest bubble: several hosts with addresses, stream connections
// between them, and packets for memberlist.
//
// A [Host] is the network stack of one process. After [Host.Crash] or
// [Host.PowerOff] it is dead for good; the process that takes its place gets a
// new one by calling [Network.Host] with the same name. What is set on links
// ([Network.Cut], [Network.SetLink]) belongs to names and outlives the hosts.
//
//	net := simnet.New(seed)
//	a := net.Host("a", "10.0.0.1", "fd00::1")
//	net.SetName("nodes.test", "10.0.0.1", "10.0.0.2")
//	listener, err := a.Listen("tcp", "0.0.0.0:9849")
//	conn, err := a.Dial(ctx, "10.0.0.2:9849")
//	gossip, err := a.Transport(7946) // a memberlist.Transport
//
// What can be done to it:
//
//	net.Cut(a, b), CutOneWay, Heal, HealAll  nothing arrives; streams stand still and go on afterwards
//	net.SetLink(from, to, Link{…})           loss, duplicates and reordering of packets; delay and bandwidth of both
//	host.Freeze, Thaw                        a stopped process: the kernel takes connections, nothing is read or sent
//	host.Pause, Thaw                         a stopped machine: not even that
//	host.Crash                               connections are reset, nobody listens: dials are refused
//	host.PowerOff                            nothing answers any more: dials hang, connections stand still
//
// An address that no host ever had swallows everything. Only the process is
// simulated by Freeze, not its goroutines: they go on until they read, write or
// send something.
//
// Invariant: nothing here blocks without being woken by what it waits for, by
// its deadline or context, or by the death of its host; and all waits are
// durable in the sense of synctest. Packets are dropped when a receiver does
// not take them. One lock guards everything; it is never held while waiting.
//
// At the end of a bubble let some seconds pass after everything is stopped:
// memberlist's probes end by their own time-outs, and time does not go on for
// goroutines that are left.
//
// Randomness comes from the seed. Runs are still not reproducible to the bit,
// because goroutines are scheduled as they come.
//
// Start reading at [Network.Host], then pipe.
package simnet
