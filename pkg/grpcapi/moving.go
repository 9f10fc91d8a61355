package grpcapi

import (
	"context"
	"net"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/registry"
)

// A situation is what holds when a connection ends.
type situation struct {
	stopped   bool // this node is going for good
	draining  bool
	asked     bool          // the client has been asked to move
	stalled   bool          // this process stood still just now
	unsettled bool          // clients are on their way between nodes
	ago       time.Duration // since the client has closed the connection, where that was noticed late
}

// A fate is what becomes of what the client of an ended connection publishes.
type fate uint8

const (
	goes  fate = iota // at once, as in Nacos
	moves             // it is marked, and goes later: the client is expected elsewhere
	stays             // it goes with the node
)

// fate decides (design §6). The cause does not matter: whoever is expected
// elsewhere is so also if this node has closed the connection.
func (s situation) fate() fate {
	switch {
	case s.stopped:
		return stays
	case s.draining, s.asked, s.stalled, s.unsettled:
		return moves
	}
	return goes
}

// A departed client has lost its connection and is expected at another node,
// or here on a new one. What it publishes is marked as moving.
type departed struct {
	client *registry.Client
	cause  registry.Cause
	since  time.Time
	redo   time.Duration // it may need so long to register again
	addrs  []string      // ip:port of what it publishes
}

// drainHold bounds for how long a draining node removes nobody who has left:
// usually the node is gone long before.
const drainHold = 3 * time.Minute

// mayGo reports whether a client that has been away for so long had the time
// that this node grants by itself; what the other nodes are like is up to
// MovingDone.
func (d *departed) mayGo(away time.Duration, draining bool) bool {
	return away >= d.redo && (!draining || away >= drainHold)
}

// depart marks what the client publishes and lets movingLoop remove it. There
// is room for as many as there may be connections; who comes beyond goes at
// once.
func (s *Server) depart(c *conn, cause registry.Cause, publishes []registry.ServiceKey, ago time.Duration) {
	d := &departed{client: c.client, cause: cause, since: time.Now().Add(-ago), redo: time.Duration(redoSeconds(c.clientVersion)) * time.Second}
	for _, key := range publishes {
		instances, _ := c.client.Published(key)
		for _, i := range instances {
			d.addrs = append(d.addrs, net.JoinHostPort(i.IP, strconv.Itoa(i.Port)))
		}
	}
	s.mu.Lock()
	room := len(s.moving) < s.opts.MaxConnections
	if room {
		s.moving = append(s.moving, d)
	}
	s.mu.Unlock()
	if !room {
		s.metrics.overflow.Inc()
		c.client.Close(cause)
		return
	}
	s.metrics.kept.Inc()
	c.client.Move()
}

// movingLoop removes those who did not come back.
func (s *Server) movingLoop(ctx context.Context) {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		s.removeDeparted(ctx)
	}
}

func (s *Server) removeDeparted(ctx context.Context) {
	s.mu.Lock()
	all := s.moving[:len(s.moving):len(s.moving)]
	s.mu.Unlock()
	if len(all) == 0 {
		return
	}
	gone := map[*departed]bool{}
	for _, d := range all {
		s.opts.Awake()
		if ctx.Err() != nil {
			break
		}
		if d.mayGo(time.Since(d.since), s.draining.Load()) && s.opts.MovingDone(d.since, d.addrs) {
			d.client.Close(d.cause)
			gone[d] = true
		}
	}
	if len(gone) == 0 {
		return
	}
	s.log.Info("clients that were expected elsewhere have been removed", zap.Int("clients", len(gone)))
	s.mu.Lock()
	defer s.mu.Unlock()
	left := make([]*departed, 0, len(s.moving)-len(gone))
	for _, d := range s.moving {
		if !gone[d] {
			left = append(left, d)
		}
	}
	s.moving = left
}

// HandleClosed ends every connection whose client has closed it, as moving,
// and returns how many there were. It is for the moment in which a stall of
// this process is noticed: whoever has closed its connection meanwhile is
// elsewhere by now, and the others must not hear of its old registrations from
// this node before they are marked. It never calls Awake.
func (s *Server) HandleClosed() int {
	n := 0
	for _, c := range s.registered() {
		if c.transport == nil {
			continue
		}
		if closed, ago := peerClosed(c.transport); closed {
			c.finish(registry.CauseConnectionLost, &ago)
			c.closeTransport()
			n++
		}
	}
	return n
}

// Moving counts the clients whose connection is gone and whose instances stay
// for now.
func (s *Server) Moving() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.moving)
}

// redoSeconds is how long a client may take to register again after it has
// lost its connection, as far as its version tells; 0: no longer than all the
// others. The Python SDK looks after its registrations every 30 s since its
// version 3.
func redoSeconds(version string) int {
	v, python := strings.CutPrefix(version, "Nacos-Python-Client:")
	if !python {
		return 0
	}
	major, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(v), "v"), ".")
	if n, err := strconv.Atoi(major); err != nil || n < 3 {
		return 0
	}
	return 35
}
