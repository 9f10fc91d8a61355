package raftstore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"
)

// maxAppendBytes is how much of the log goes to a follower at once. The library
// counts entries only, and gives a request of 512 large ones no more time than
// one of none: a follower that is behind would never get them over a slow link.
const maxAppendBytes = 256 << 10

// A transport is the library's, a bound on the size of requests, and a scruple:
// a node that has lost its log may have voted and may have acknowledged entries
// before. Until it has what the group has, it votes for nobody.
type transport struct {
	*raft.NetworkTransport
	ctx   context.Context
	calls chan raft.RPC
	logs  raft.LogStore
	own   atomic.Pointer[raft.Raft] // nil: it is about to start
	fresh atomic.Bool
	told  tellings
	goes  sync.WaitGroup
	log   *zap.Logger
	said  *said
	count func() // of requests that are refused
}

var errFresh = errors.New("this node has an empty log and does not vote yet")

func newTransport(ctx context.Context, c *raft.NetworkTransportConfig, logs raft.LogStore, fresh bool, log *zap.Logger, said *said, count func()) *transport {
	t := &transport{NetworkTransport: raft.NewNetworkTransportWithConfig(c), ctx: ctx, calls: make(chan raft.RPC), logs: logs, log: log, said: said, count: count}
	t.fresh.Store(fresh)
	t.goes.Go(t.pass)
	return t
}

// vote ends the scruple.
func (t *transport) vote() { t.fresh.Store(false) }

// Consumer is where the library takes the calls of others from.
func (t *transport) Consumer() <-chan raft.RPC { return t.calls }

func (t *transport) pass() {
	for {
		select {
		case call := <-t.NetworkTransport.Consumer():
			if err := t.refuses(call.Command); err != nil {
				call.Respond(nil, err)
				continue
			}
			select {
			case t.calls <- call:
			case <-t.ctx.Done():
				call.Respond(nil, raft.ErrTransportShutdown)
				return
			}
		case <-t.ctx.Done():
			return
		}
	}
}

// refuses tells why a request does not reach the library.
func (t *transport) refuses(command any) error {
	if t.fresh.Load() && wantsVote(command) {
		return errFresh
	}
	err := t.check(command)
	if err != nil && t.own.Load() != nil {
		t.count()
		if missed, ok := t.said.now("request"); ok {
			t.log.Warn("refused a request at the Raft port that no node sends", zap.Error(err), zap.Int("repeated", missed))
		}
	}
	return err
}

// SetHeartbeatHandler is called by the library: heartbeats do not come by
// Consumer.
func (t *transport) SetHeartbeatHandler(handle func(raft.RPC)) {
	if handle == nil {
		t.NetworkTransport.SetHeartbeatHandler(nil)
		return
	}
	t.NetworkTransport.SetHeartbeatHandler(func(call raft.RPC) {
		if err := t.refuses(call.Command); err != nil {
			call.Respond(nil, err)
			return
		}
		handle(call)
	})
}

// RequestVote and RequestPreVote: a candidate takes over a term that it is told.
func (t *transport) RequestVote(id raft.ServerID, to raft.ServerAddress, req *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	err := t.NetworkTransport.RequestVote(id, to, req, resp)
	if err == nil && !plausible(resp.Term, req.Term) {
		return implausible("term %d of node %s", resp.Term, id)
	}
	return err
}

func (t *transport) RequestPreVote(id raft.ServerID, to raft.ServerAddress, req *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	err := t.NetworkTransport.RequestPreVote(id, to, req, resp)
	if err == nil && !plausible(resp.Term, req.Term) {
		return implausible("term %d of node %s", resp.Term, id)
	}
	return err
}

// wantsVote is false for a candidate whose log is no more than the first
// configuration: nothing can be lost by voting for it, and a new group could
// not begin otherwise.
func wantsVote(command any) bool {
	switch c := command.(type) {
	case *raft.RequestVoteRequest:
		return c.LastLogIndex > 1
	case *raft.RequestPreVoteRequest:
		return c.LastLogIndex > 1
	}
	return false
}

// cut leaves out what is too much. The library goes on behind the last entry of
// the request as it is afterwards (pipelineSend, updateLastAppended in
// replication.go of v1.8.0).
func cut(r *raft.AppendEntriesRequest) {
	size := 0
	for i, e := range r.Entries {
		if size += len(e.Data); size > maxAppendBytes && i > 0 {
			r.Entries = r.Entries[:i:i]
			return
		}
	}
}

func (t *transport) AppendEntries(id raft.ServerID, to raft.ServerAddress, req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	cut(req)
	t.told.to(id).sent(req)
	return t.NetworkTransport.AppendEntries(id, to, req, resp)
}

func (t *transport) AppendEntriesPipeline(id raft.ServerID, to raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := t.NetworkTransport.AppendEntriesPipeline(id, to)
	if err != nil {
		return nil, err
	}
	out := &pipeline{AppendPipeline: p, told: t.told.to(id), answers: make(chan raft.AppendFuture), closed: make(chan struct{})}
	t.goes.Go(out.pass)
	return out, nil
}

// A pipeline ends with the first answer that is no success. The library stops
// reading answers then, but may send once more before it notices, and its own
// pipeline has no room for that: it would hang there until this node leads no
// more, and replicate nothing to a follower whose disk was full for a moment
// (hashicorp/raft issue 612).
type pipeline struct {
	raft.AppendPipeline
	told    *telling
	answers chan raft.AppendFuture
	closed  chan struct{}
	once    sync.Once
}

func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.answers }

func (p *pipeline) pass() {
	for {
		select {
		case f := <-p.AppendPipeline.Consumer():
			failed := f.Error() != nil || !f.Response().Success
			select {
			case p.answers <- f:
			case <-p.closed:
				return
			}
			if failed {
				_ = p.AppendPipeline.Close() // the library's, which always succeeds
			}
		case <-p.closed:
			return
		}
	}
}

func (p *pipeline) Close() error {
	p.once.Do(func() { close(p.closed) })
	return p.AppendPipeline.Close()
}

func (p *pipeline) AppendEntries(req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	cut(req)
	p.told.sent(req)
	return p.AppendPipeline.AppendEntries(req, resp)
}

func (t *transport) close() {
	_ = t.Close()
	t.CloseStreams()
	t.goes.Wait()
}
