package main

import (
	"net"
	"os/exec"

	"github.com/starling-registry/starling/deploy/chaos/link"
)

// A network is where nodes and clients are, each at an end of its own, and what
// is between them: link.Router or link.Relay.
type network interface {
	Add(end string) error
	// Set lays a rule on what one end sends to another.
	Set(from, to string, r link.Rule) error
	// Bind is the address that a process at an end listens at, Address the one
	// that others reach it at.
	Bind(end string) string
	Address(end string) string
	// Command is a process in the place of an end, Started says that it runs.
	Command(end string, argv ...string) *exec.Cmd
	Started(end string, pid int)
	// Listen opens a port at an end of clients, which nodes can dial.
	Listen(end string) (net.Listener, error)
	// Down says that nothing is behind an end's ports any more, Up that there is.
	Down(end string) error
	Up(end string) error
	Close() error
}
