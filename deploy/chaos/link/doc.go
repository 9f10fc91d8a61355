// Package link is what lies between the nodes and the clients of a run: it loses,
// delays, slows down and cuts what they send each other, in each direction by
// itself. An end is one of them, by its name; a Rule holds for what one end sends to
// another, and nothing that they send each other goes any other way.
//
// A Router gives each end a network namespace of its own and routes packets between
// them; it needs root. Start reading at port.serve, through which every packet goes.
package link
