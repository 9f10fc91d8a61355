package grpcapi

import (
	"fmt"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"
)

// A limitError says which limit a client has met. Nothing has changed.
type limitError struct {
	name  string // the flag
	limit int
	what  string
}

func (e *limitError) Error() string {
	return fmt.Sprintf("over the limit of %d %s (--%s)", e.limit, e.what, e.name)
}

// refuse counts and logs a refusal. The log is sampled by whoever made it: a
// client that meets a limit usually meets it again.
func (s *Server) refuse(err error) {
	l, ok := err.(*limitError)
	if !ok {
		return
	}
	s.metrics.refusals[l.name].Inc()
	s.log.Warn("a client has met a limit", zap.Error(err))
}

// limitNames are the limits that this package enforces by itself; gRPC
// enforces sizes and streams.
var limitNames = []string{
	"max-connections", "max-connections-per-address", "max-setup-rate", "max-setup-rate-per-address",
	"max-subscriptions-per-connection", "max-instances-per-connection",
}

// admission decides who may connect: how many transports there are, in all and
// from one address, and how fast they are set up.
type admission struct {
	opts *Options

	mu        sync.Mutex
	total     int
	addresses map[string]*remote
	rate      bucket
}

// A remote is an address that has transports.
type remote struct {
	transports int
	rate       bucket
}

func newAdmission(opts Options) admission {
	return admission{opts: &opts, addresses: map[string]*remote{}}
}

// connected counts a new transport. One that gets an error must not be used
// and is not counted: whoever floods the node with transports takes away only
// what there is for an address.
func (a *admission) connected(host string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.addresses[host]
	switch {
	case a.total >= a.opts.MaxConnections:
		return &limitError{"max-connections", a.opts.MaxConnections, "connections of this node"}
	case r != nil && r.transports >= a.opts.MaxPerAddress:
		return &limitError{"max-connections-per-address", a.opts.MaxPerAddress, "connections from " + host}
	case r == nil:
		r = &remote{}
		a.addresses[host] = r
	}
	a.total++
	r.transports++
	return nil
}

// disconnected takes back what connected counted.
func (a *admission) disconnected(host string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.total--
	if r := a.addresses[host]; r.transports > 1 {
		r.transports--
	} else {
		delete(a.addresses, host)
	}
}

// setup decides about a setup; a second one of a connection is free.
func (a *admission) setup(c *conn) error {
	if c.isRegistered() {
		return nil
	}
	if c.refused != nil {
		return c.refused
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if !a.rate.take(now, a.opts.MaxSetupRate) {
		return &limitError{"max-setup-rate", a.opts.MaxSetupRate, "connections set up per second"}
	}
	if r := a.addresses[c.host]; r != nil && !r.rate.take(now, a.opts.MaxSetupRatePerAddress) {
		return &limitError{"max-setup-rate-per-address", a.opts.MaxSetupRatePerAddress, "connections set up per second from " + c.host}
	}
	return nil
}

// A bucket lets through a number of events per second, and twice that many at
// once. The zero bucket is full.
type bucket struct {
	missing float64 // from a full bucket
	at      time.Time
}

func (b *bucket) take(now time.Time, perSecond int) bool {
	b.missing = max(0, b.missing-now.Sub(b.at).Seconds()*float64(perSecond))
	b.at = now
	if b.missing+1 > 2*float64(perSecond) {
		return false
	}
	b.missing++
	return true
}

func hostOf(a net.Addr) string {
	host, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	return host
}
