package raftstore

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// tellAfter is how long the leader waits whether entries go to a follower that
// tell it what was committed: while there are writes they do.
const tellAfter = time.Millisecond

// A telling is what a node was told to be committed, as long as this one leads.
type telling struct {
	commit atomic.Uint64 // the most
	now    atomic.Bool   // it is being told
}

// tellings are of all nodes that were sent something.
type tellings struct {
	mu sync.Mutex
	of map[raft.ServerID]*telling
}

func (t *tellings) to(id raft.ServerID) *telling {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil {
		t.of = map[raft.ServerID]*telling{}
	}
	if t.of[id] == nil {
		t.of[id] = &telling{}
	}
	return t.of[id]
}

// sent notes what a request told.
func (t *telling) sent(r *raft.AppendEntriesRequest) {
	for {
		was := t.commit.Load()
		if r.LeaderCommitIndex <= was || t.commit.CompareAndSwap(was, r.LeaderCommitIndex) {
			return
		}
	}
}

// tellLoop tells followers what was committed as soon as it is, if no entries do
// anyway. The library leaves that to its timer, 50 to 100 ms later, and for so
// long a write is not seen, or pushed, at any other node than the leader. A
// shorter timer would send as often when there is nothing to tell.
func (s *Store) tellLoop() {
	wait := time.NewTimer(0)
	defer wait.Stop()
	for {
		select {
		case <-s.fsm.moved:
		case <-s.ctx.Done():
			return
		}
		if s.raft.State() != raft.Leader {
			continue
		}
		wait.Reset(tellAfter)
		select {
		case <-wait.C:
		case <-s.ctx.Done():
			return
		}
		s.tell()
	}
}

// tell sends to each node that is alive and was not told what the library would
// send it next: a request without entries, behind the newest that is committed.
// A node that does not have that one refuses it, as it would the library's.
func (s *Store) tell() {
	term := s.raft.CurrentTerm()
	commit := s.raft.CommitIndex()
	var newest raft.Log
	if s.raft.State() != raft.Leader || s.log.GetLog(commit, &newest) != nil {
		return // the next leader tells; or a snapshot does
	}
	if s.raft.CurrentTerm() != term {
		return // it may have read the state of one term and the number of another
	}
	for _, server := range servers(s.configuration(), s.opts.Members()) {
		id := raft.ServerID(server.ID)
		t := s.transport.told.to(id)
		if server.ID == s.opts.ID || !server.Alive || t.commit.Load() >= commit || !t.now.CompareAndSwap(false, true) {
			continue
		}
		s.goes.Go(func() {
			defer t.now.Store(false)
			req := &raft.AppendEntriesRequest{
				RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(s.opts.ID), Addr: []byte(s.opts.ID)},
				Term:      term, PrevLogEntry: commit, PrevLogTerm: newest.Term, LeaderCommitIndex: commit,
			}
			// What becomes of it does not matter: the library tells as well.
			_ = s.transport.AppendEntries(id, raft.ServerAddress(id), req, new(raft.AppendEntriesResponse))
		})
	}
}
