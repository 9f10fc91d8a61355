package raftstore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
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
	fresh atomic.Bool
	goes  sync.WaitGroup
}

var errFresh = errors.New("this node has an empty log and does not vote yet")

func newTransport(ctx context.Context, c *raft.NetworkTransportConfig, fresh bool) *transport {
	t := &transport{NetworkTransport: raft.NewNetworkTransportWithConfig(c), ctx: ctx, calls: make(chan raft.RPC)}
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
			if t.fresh.Load() && wantsVote(call.Command) {
				call.Respond(nil, errFresh)
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
	return t.NetworkTransport.AppendEntries(id, to, req, resp)
}

func (t *transport) AppendEntriesPipeline(id raft.ServerID, to raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := t.NetworkTransport.AppendEntriesPipeline(id, to)
	if err != nil {
		return nil, err
	}
	return pipeline{p}, nil
}

type pipeline struct{ raft.AppendPipeline }

func (p pipeline) AppendEntries(req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	cut(req)
	return p.AppendPipeline.AppendEntries(req, resp)
}

func (t *transport) close() {
	_ = t.Close()
	t.CloseStreams()
	t.goes.Wait()
}
