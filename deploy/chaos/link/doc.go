// Package link is what lies between the nodes and the clients of a run: it loses,
// delays, slows down and cuts what they send each other, in each direction by
// itself. An end is one of them, by its name; a Rule holds for what one end sends to
// another, and nothing that they send each other goes any other way.
//
// A Router gives each end a network namespace of its own and routes packets between
// them; it needs root. Start reading at port.serve, through which every packet goes.
//
// A [Relay] needs no root: all ends are on this machine's loopback, and this program
// accepts and opens connections in their stead. Start reading at stream.serve, then
// pipe.
//
// # Relay
//
// A node listens on an address of its own and is told to advertise another, its
// front, at which the relay listens. So whatever nodes and clients send each
// other comes through the relay:
//
//	relay, err := link.NewRelay(0)
//	relay.Add("a")
//	node := relay.Command("a", "starling", "serve", "--port", strconv.Itoa(relay.Port()),
//		"--bind", relay.Bind("a"), "--advertise", relay.Address("a"), …)
//	node.Start()
//	relay.Started("a", node.Process.Pid)
//	relay.Set("a", "b", link.Rule{Cut: true})
//
// Who dialled is known by the process that has the other end of a connection
// open: Started was told of it or of a parent, or it has the environment of an
// end's Command. All others are the host. Datagrams, which only gossip uses, come
// from the address of their node.
//
// A rule does this to connections:
//
//   - Cut (and a Loss of 1) holds all bytes, and also the end of a connection and
//     a reset. At heal all goes on at once. A dial reaches nobody until both
//     directions are open, and never when its client has given up.
//   - Delay and Jitter hold bytes so long. Order is kept. A new connection takes
//     one round trip before its first byte arrives.
//   - Loss delays what was lost until TCP would send it again: 200 ms, twice as
//     long each further time; 1 s and so on for a dial.
//   - Rate is shared by all connections and datagrams of the direction.
//
// Buffers are bounded; a sender whose bytes are held is made to wait by its
// kernel. Datagrams that are lost or cut are gone, also those that were under way
// when the cut came.
//
// What is not as in a real network:
//
//   - Connecting always succeeds, and at once, while the target's front is open:
//     also in a cut, where the connection then stays silent. Time-outs of connect
//     are not tested by it, those of what comes next are.
//   - A target that refuses is seen as a connection that is accepted and reset.
//     [Relay.Down] closes the front of a process that is gone, so that dials are
//     refused; while a cut concerns the end they are accepted all the same,
//     because nobody must learn through a cut that a process is gone.
//   - Keepalive of TCP and TCP_USER_TIMEOUT see a kernel that answers, also in a
//     cut. Those of HTTP/2 do not.
//   - Bytes that the relay's kernel has taken arrive in spite of a cut that comes
//     then: at most what the buffers of a connection hold, and only of a receiver
//     that was behind.
//   - After a cut a real connection waits for its next retransmission, up to twice
//     as long as the cut lasted. Here it goes on at once.
//   - All nodes share loopback and its 127.0.0.1, from which they dial: limits per
//     remote address see one.
//   - What does not use a front is not seen: who dials a node at the address that
//     it binds goes past all rules. Datagrams of others than nodes go nowhere.
//   - A connection takes two descriptors of this program.
//
// [Relay.Front] is a front for a server that this program did not start, and
// with no target one for a name, in place of DNS: [Relay.Point] says where new
// connections go.
//
// Invariant of a relay: bytes of a connection arrive in order, complete and
// unchanged up to its end, whatever rules come and go meanwhile.
package link
