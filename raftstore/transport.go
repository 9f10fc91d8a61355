package raftstore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// A transport is the library's, and a scruple: a node that has lost its log may
// have voted and may have acknowledged entries before. Until it has what the
// group has, it votes for nobody.
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

func (t *transport) close() {
	_ = t.Close()
	t.CloseStreams()
	t.goes.Wait()
}
