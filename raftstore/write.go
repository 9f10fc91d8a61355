package raftstore

import (
	"context"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"slices"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/starling-registry/starling/pkg/registry"
	pb "github.com/starling-registry/starling/proto"
)

const (
	// maxCommand is where the library begins to see its heartbeats in danger.
	maxCommand = 512 << 10
	// A write is tried again after at least backoff, and less than four times
	// as long.
	backoff = 50 * time.Millisecond
	// A try at a leader that does not answer ends after tryTime, or as soon as
	// this node hears of another.
	tryTime = 2 * time.Second
	// enqueueTime is how long a command waits for its place before the log.
	enqueueTime = time.Second
	// showTime is how long a write that another node has carried out waits
	// until it is seen here. A follower hears of it with the next entry, or
	// soon (tellLoop).
	showTime = time.Second
)

// ErrNotSent may be wrapped by an error of [Options.Call]: the request has not
// left this node.
var ErrNotSent = errors.New("the request was not sent")

var errStopped = errors.New("this node takes no part in the group any more")

// A reply is what one try came to, if not to a result.
type reply struct {
	cause  error
	leader string // who leads instead, if the one that was asked knows
	// perhaps: the command may be in the log, or may get there yet.
	perhaps bool
}

// apply writes a command to the log, wherever that is, and returns when it was
// carried out. The same command may be tried several times: it has an id, and
// counts once. Without a quorum that is alive it gives up soon; else it goes
// on through elections as long as ctx lets it.
func (s *Store) apply(ctx context.Context, cmd *pb.Command) (*pb.Result, error) {
	s.opts.Awake()
	start := time.Now()
	if err := s.understood(cmd.Version); err != nil {
		return nil, err
	}
	body, err := proto.Marshal(cmd)
	if err != nil {
		return nil, &Refused{Code: pb.Result_INVALID, Text: err.Error()} // invalid UTF-8
	}
	if len(body) > maxCommand {
		return nil, &Refused{Code: pb.Result_INVALID, Text: fmt.Sprintf("it is too much for one write: %d bytes, at most %d are taken", len(body), maxCommand)}
	}
	perhaps := false
	cause := errors.New("it is not known who leads")
	follow := "" // who leads, according to the one that was asked last
	for {
		if s.ended.Load() != nil {
			return nil, s.gaveUp(perhaps, errStopped)
		}
		leader := follow
		if leader == "" {
			leader = s.whoLeads()
		}
		asked := follow != ""
		follow = ""
		if leader != "" {
			result, r := s.try(ctx, leader, body)
			if result != nil {
				s.show(ctx, leader, result)
				s.metrics.applied.Observe(time.Since(start).Seconds())
				return result, nil
			}
			perhaps = perhaps || r.perhaps
			cause = r.cause
			if r.leader != leader && !asked { // one hop at once
				follow = r.leader
			}
		}
		if follow == "" {
			select {
			case <-time.After(backoff + mrand.N(3*backoff)):
			case <-ctx.Done():
			case <-s.ctx.Done():
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil, s.gaveUp(perhaps, errors.Join(context.Cause(ctx), cause))
		case s.ctx.Err() != nil:
			return nil, s.gaveUp(perhaps, errStopped)
		case time.Since(start) >= s.opts.NoQuorumWait && !s.quorumAlive():
			return nil, s.gaveUp(perhaps, fmt.Errorf("fewer nodes than a quorum are there: %w", cause))
		}
		s.metrics.again.Inc()
	}
}

// show returns when this node has carried out what a leader has: who has
// written reads what he wrote where he wrote it. If that takes long, the write
// is done all the same.
func (s *Store) show(ctx context.Context, leader string, result *pb.Result) {
	if leader == s.opts.ID || !s.caughtUp.Load() {
		return // it has been here first, or has all that was before still to come
	}
	ctx, cancel := context.WithTimeout(ctx, showTime)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	if !s.fsm.awaitShown(ctx, result.GetIndex()) {
		s.zap.Debug("what was written at the leader is not seen here yet", zap.String("leader", leader), zap.Uint64("index", result.GetIndex()))
	}
}

func (s *Store) gaveUp(perhaps bool, cause error) error {
	if perhaps {
		s.metrics.unknown.Inc()
		return fmt.Errorf("%w: %w", ErrUnknownOutcome, cause)
	}
	s.metrics.noLeader.Inc()
	return fmt.Errorf("%w: %w", ErrNoLeader, cause)
}

// understood tells whether every node carries out commands of a version: what
// a node does not know it would pass over, and differ from the others.
func (s *Store) understood(version uint32) error {
	if version <= 1 {
		return nil
	}
	for _, m := range s.opts.Members() {
		if !m.Left && m.Commands < version {
			return &Refused{Code: pb.Result_NOT_UNDERSTOOD, Text: fmt.Sprintf("node %s runs a release that does not know this yet", m.ID)}
		}
	}
	return nil
}

// whoLeads is "" if nobody is known to.
func (s *Store) whoLeads() string {
	if _, id := s.raft.LeaderWithID(); id != "" {
		return string(id)
	}
	return *s.hint.Load()
}

// quorumAlive is true if it is not known who votes and others are there, who
// may know.
func (s *Store) quorumAlive() bool {
	voters, alive := 0, 0
	members := s.opts.Members()
	for _, server := range servers(s.configuration(), members) {
		if server.Voter {
			voters++
			if server.Alive || server.ID == s.opts.ID {
				alive++
			}
		}
	}
	if voters == 0 {
		return slices.ContainsFunc(members, func(m Member) bool { return m.Alive && m.ID != s.opts.ID })
	}
	return alive >= quorum(voters)
}

// try asks a leader once.
func (s *Store) try(ctx context.Context, leader string, body []byte) (*pb.Result, reply) {
	if leader == s.opts.ID {
		result, err := s.write(ctx, body)
		if err != nil {
			return nil, reply{cause: err, perhaps: !nothingWritten(err)}
		}
		return result, reply{}
	}
	if s.opts.Call == nil {
		return nil, reply{cause: errors.New("this node has no way to others")}
	}
	s.metrics.forwarded.Inc()
	ctx, cancel := context.WithTimeoutCause(ctx, tryTime, errors.New("the leader does not answer"))
	defer cancel()
	if reign := s.reignOf(leader); reign != nil {
		c, end := context.WithCancelCause(ctx)
		defer end(nil)
		defer context.AfterFunc(reign, func() { end(errors.New("another node leads now, or none")) })()
		ctx = c
	}
	req, err := proto.Marshal(&pb.RaftApplyRequest{Command: body})
	if err != nil {
		return nil, reply{cause: err}
	}
	answer, err := s.opts.Call(ctx, leader, "RaftApply", req)
	if err != nil {
		if c := context.Cause(ctx); c != nil {
			err = errors.Join(c, err)
		}
		return nil, reply{cause: fmt.Errorf("leader %s: %w", leader, err), perhaps: !errors.Is(err, ErrNotSent)}
	}
	var resp pb.RaftApplyResponse
	if err := proto.Unmarshal(answer, &resp); err != nil {
		return nil, reply{cause: fmt.Errorf("leader %s: %w", leader, err), perhaps: true}
	}
	switch {
	case resp.NotLeader:
		return nil, reply{cause: fmt.Errorf("node %s does not lead", leader), leader: resp.Leader}
	case resp.Unknown || resp.Result == nil:
		return nil, reply{cause: fmt.Errorf("node %s stopped leading", leader), perhaps: true}
	}
	return resp.Result, reply{}
}

// nothingWritten tells of an error of write that the command is not in the log
// and will not be.
func nothingWritten(err error) bool {
	return errors.Is(err, raft.ErrNotLeader) || errors.Is(err, raft.ErrEnqueueTimeout) ||
		errors.Is(err, raft.ErrLeadershipTransferInProgress) || errors.Is(err, errClosing)
}

var errClosing = errors.New("this node is stopping")

// write puts a command into the log, if this node leads, and waits until it
// was carried out.
func (s *Store) write(ctx context.Context, body []byte) (*pb.Result, error) {
	if s.raft.State() != raft.Leader {
		return nil, raft.ErrNotLeader
	}
	start := time.Now()
	result, err := answer(ctx, s, func() (*pb.Result, error) {
		f := s.raft.Apply(body, enqueueTime)
		if err := f.Error(); err != nil {
			return nil, err
		}
		result, ok := f.Response().(*pb.Result)
		if !ok {
			return nil, fmt.Errorf("BUG: the tables answered with %T", f.Response())
		}
		return result, nil
	})
	if err != nil {
		return nil, err
	}
	s.metrics.committed.Observe(time.Since(start).Seconds())
	return result, nil
}

// answer waits for an answer of the library, which knows no contexts, but not
// longer than ctx. The goroutine ends when there is an answer: without a quorum
// a leader steps down and answers, and Close waits for that. It never ends if
// the disk fails in the middle of something; the node ends then.
func answer[T any](ctx context.Context, s *Store, f func() (T, error)) (T, error) {
	var none T
	s.mu.Lock()
	if s.closing || s.ended.Load() != nil {
		s.mu.Unlock()
		return none, errClosing
	}
	s.writes.Add(1)
	s.mu.Unlock()
	type reply struct {
		value T
		err   error
	}
	c := make(chan reply, 1)
	go func() {
		defer s.writes.Done()
		v, err := f()
		c <- reply{v, err}
	}()
	select {
	case r := <-c:
		return r.value, r.err
	case <-ctx.Done():
		return none, context.Cause(ctx)
	case <-s.ctx.Done():
		return none, errStopped
	}
}

// ServeApply answers another node's RaftApply: an encoded RaftApplyRequest.
func (s *Store) ServeApply(ctx context.Context, from string, body []byte) ([]byte, error) {
	s.opts.Awake()
	var req pb.RaftApplyRequest
	if err := proto.Unmarshal(body, &req); err != nil {
		return nil, fmt.Errorf("raftstore: a write of node %s: %w", from, err)
	}
	var resp pb.RaftApplyResponse
	var cmd pb.Command
	switch err := proto.Unmarshal(req.Command, &cmd); {
	case err != nil || len(cmd.Id) != len(commandID{}):
		resp.Result = &pb.Result{Code: pb.Result_INVALID, Text: "malformed command"}
	case registry.Stamp(cmd.Clock) > registry.StampAt(s.clock.Wall()+2*maxAhead.Milliseconds()):
		// The tables keep stamps as they are: health checks of an instance that
		// is of the year after next would count for nothing until then. Twice,
		// because clocks that follow such a stamp are ahead once.
		resp.Result = &pb.Result{Code: pb.Result_INVALID, Text: fmt.Sprintf("the clock of node %s is ahead of the leader's by days, at %s", from, registry.Stamp(cmd.Clock).Time().UTC().Format(time.RFC3339))}
	case len(req.Command) > maxCommand:
		resp.Result = &pb.Result{Code: pb.Result_INVALID, Text: "the command is too large"}
	default:
		if err := s.understood(cmd.Version); err != nil {
			resp.Result = &pb.Result{Code: pb.Result_NOT_UNDERSTOOD, Text: err.Error()}
			break
		}
		result, err := s.write(ctx, req.Command)
		switch {
		case err == nil:
			resp.Result = result
		case nothingWritten(err):
			resp.NotLeader = true
			_, id := s.raft.LeaderWithID()
			resp.Leader = string(id)
		default:
			resp.Unknown = true
		}
	}
	return proto.Marshal(&resp)
}
