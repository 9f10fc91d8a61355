package grpcapi

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"
)

// A Target is a node that clients may move to: its host and main port.
type Target struct {
	Host string
	Port int
}

// ErrNoTarget says that no other node is ready to take clients, so nobody is
// asked to move.
var ErrNoTarget = errors.New("no other node is ready to take the clients")

// drainSlice is the time between two slices of clients that are asked to move.
const drainSlice = 100 * time.Millisecond

// Drain refuses new connections from now on and asks all clients to move to
// other nodes, pace of them in a second; 0: spread over half of the time that
// ctx leaves. ResetGrace after that a client's transport is closed. Drain
// returns when all have gone or ctx ends; with ErrNoTarget as soon as there has
// been nobody to take clients for ResetGrace.
//
// The port is closed at once, so that a new connection is refused: an SDK that has
// many addresses behind one name goes on to the next of them then. To one that is
// accepted and then told to go away a JVM would come back for the 30 s that it
// remembers the name.
//
// From now on only explicit deregistrations remove instances. Several calls at
// the same time do no harm.
func (s *Server) Drain(ctx context.Context, pace int) error {
	s.draining.Store(true)
	if l := s.listener.Load(); l != nil {
		(*l).Close() // a second time does no harm
	}
	clients := s.Connections()
	if pace <= 0 {
		pace = autoPace(clients, s.timeLeft(ctx), s.opts.ResetGrace)
	}
	began := time.Now()
	defer func() {
		if clients > 0 {
			p := s.Progress()
			s.opts.Logger.Info("clients were asked to move", zap.Int("clients", clients), zap.Int("asked", p.Asked), zap.Int("left", p.Left), zap.Duration("took", time.Since(began)))
		}
	}()
	tick := time.NewTicker(drainSlice)
	defer tick.Stop()
	asked, hadTarget := 0, time.Now()
	deal := dealer{}
	for {
		conns := s.registered() // nobody comes any more but who was being set up
		if len(conns) == 0 {
			return nil
		}
		targets, others := s.opts.Redirect()
		switch {
		case len(targets) > 0:
			hadTarget = time.Now()
			due := int(math.Ceil(time.Since(began).Seconds()*float64(pace))) + int(math.Ceil(drainSlice.Seconds()*float64(pace)))
			for _, c := range conns {
				if asked >= due {
					break
				}
				if to := deal.next(targets); c.reset(to.Host, to.Port) {
					deal[to]++
					asked++
				}
			}
		case time.Since(hadTarget) >= s.opts.ResetGrace || !others:
			return ErrNoTarget
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func (s *Server) timeLeft(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return time.Until(deadline)
	}
	return 3 * s.opts.ResetGrace
}

// autoPace spreads clients over half of the time that is left for them to be
// asked in; a few of them need not be spread that far.
func autoPace(clients int, left, grace time.Duration) int {
	const least = 50
	if spread := (left - grace) / 2; spread > drainSlice {
		return max(least, int(math.Ceil(float64(clients)/spread.Seconds())))
	}
	return max(least, int(float64(clients)/drainSlice.Seconds()))
}

// A dealer counts the clients that each target was given.
type dealer map[Target]int

// next is one of the targets that was given the fewest.
func (d dealer) next(targets []Target) Target {
	first := rand.IntN(len(targets)) // nodes that drain together need not begin with the same
	best := targets[first]
	for i := range targets {
		if t := targets[(first+i)%len(targets)]; d[t] < d[best] {
			best = t
		}
	}
	return best
}

// Progress of a drain.
type Progress struct {
	Draining bool
	Asked    int // clients that were asked to move, since the start of this process
	Moved    int // those of them that have gone
	Left     int // registered connections
}

// Progress of a drain, or that there is none.
func (s *Server) Progress() Progress {
	return Progress{Draining: s.draining.Load(), Asked: int(s.asked.Load()), Moved: int(s.moved.Load()), Left: s.Connections()}
}

// A Plan is what Drain would do now.
type Plan struct {
	Clients, Instances int
	Targets            []Share // none: nobody would be moved
	Duration           time.Duration
}

// A Share is how many clients a target would get.
type Share struct {
	Target
	Clients int
}

// Plan tells what Drain would do with that pace and so much time, and does
// nothing.
func (s *Server) Plan(pace int, limit time.Duration) Plan {
	conns := s.registered()
	p := Plan{Clients: len(conns)}
	for _, c := range conns {
		for _, key := range c.client.Services() {
			instances, _ := c.client.Published(key)
			p.Instances += len(instances)
		}
	}
	targets, _ := s.opts.Redirect()
	if len(targets) == 0 || len(conns) == 0 {
		return p
	}
	deal := dealer{}
	for range conns {
		deal[deal.next(targets)]++
	}
	for _, t := range targets {
		p.Targets = append(p.Targets, Share{t, deal[t]})
	}
	if pace <= 0 {
		pace = autoPace(len(conns), limit, s.opts.ResetGrace)
	}
	p.Duration = time.Duration(float64(len(conns))/float64(pace)*float64(time.Second)) + s.opts.ResetGrace
	return p
}
