package client

import "time"

// Metrics is told what happens in a client. Its methods are called on many
// goroutines, also on those that take pushes: they must not block. Embed
// [NoMetrics] to implement some of them.
type Metrics interface {
	// State is what the client can do from now on; server is whom it is connected
	// to, or was.
	State(s State, server string)
	// Request has been answered, refused or given up after this time.
	Request(typ string, took time.Duration, err error)
	// Push of a list with so many instances has been acknowledged this long after
	// its arrival.
	Push(service ServiceID, instances int, took time.Duration)
	// Watcher has been told a list this long after it was known.
	Watcher(service ServiceID, lag time.Duration)
	// Cached services, and how many registrations and subscriptions the server
	// does not have yet. Told every 3 s while there is a connection, and then.
	Cached(services, backlog int)
}

// NoMetrics implements [Metrics] and does nothing.
type NoMetrics struct{}

func (NoMetrics) State(State, string)                  {}
func (NoMetrics) Request(string, time.Duration, error) {}
func (NoMetrics) Push(ServiceID, int, time.Duration)   {}
func (NoMetrics) Watcher(ServiceID, time.Duration)     {}
func (NoMetrics) Cached(int, int)                      {}

type noMetrics struct{ NoMetrics }
