package raftstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	pb "github.com/starling-registry/starling/proto"
)

const (
	askTime = time.Second // for the state of another node
	// closeEnough is by how many entries a node may be behind that has caught
	// up: while there are writes nobody is ever level with the leader.
	closeEnough = 256
	soon        = 100 * time.Millisecond
	impatient   = time.Second // while something is expected to happen
)

// Changed says that the members have changed.
func (s *Store) Changed() {
	select {
	case s.wake <- struct{}{}:
	default: // it is awake
	}
}

// observe is called on goroutines of the library, under a lock of it.
func (s *Store) observe(o *raft.Observation) bool {
	switch d := o.Data.(type) {
	case raft.LeaderObservation:
		s.leaderMu.Lock()
		id := string(d.LeaderID)
		if id != s.leader {
			if id != "" && id != s.lastLeader {
				s.lastLeader = id
				s.metrics.leaderChanges.Inc()
			}
			s.leader = id
			s.endReign()
			s.reign, s.endReign = context.WithCancel(s.ctx)
		}
		s.leaderMu.Unlock()
		s.Changed()
	case raft.RaftState, raft.PeerObservation:
		s.Changed()
	}
	return false // nothing goes through a channel
}

// reignOf ends when this node hears of another leader than the given one; nil
// if it has not even heard of that.
func (s *Store) reignOf(leader string) context.Context {
	s.leaderMu.Lock()
	defer s.leaderMu.Unlock()
	if s.leader != leader {
		return nil
	}
	return s.reign
}

// reconcileLoop is the goroutine that looks at what the group is and what it
// should be.
func (s *Store) reconcileLoop() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var l lookout
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
		}
		s.opts.Awake()
		if s.doubt.Swap(false) {
			s.ask(s.others())
		}
		var wait time.Duration
		if s.raft.State() == raft.Leader {
			wait = l.lead(s)
		} else {
			wait = l.follow(s)
		}
		timer.Reset(wait)
	}
}

// A lookout is what the reconcile loop remembers.
type lookout struct {
	term    uint64 // since when this node leads and has applied all that was there
	goal    uint64 // of a follower: what the leader had applied when it was asked first
	hasGoal bool
	missing map[string]time.Time
	alone   time.Time // when it was first seen that nobody leads; zero: somebody does
	warned  bool      // of that
	unsure  bool      // the index of the configuration is not what it was taken for
	said    string
}

// lead makes at most one change of the configuration. It returns how long to
// wait.
func (l *lookout) lead(s *Store) time.Duration {
	s.hint.Store(new(""))
	l.leaderless(s, false)
	if term := s.raft.CurrentTerm(); l.term != term {
		if _, err := answer(s.ctx, s, func() (struct{}, error) { return struct{}{}, s.raft.Barrier(0).Error() }); err != nil {
			return impatient // it leads no more, which wakes the loop
		}
		l.term = term
		l.missing = map[string]time.Time{}
		s.settled.Store(term)
		s.zap.Info("this node leads the group", zap.Uint64("term", term))
		s.isCaughtUp()
	}
	commit := s.raft.CommitIndex()
	before := s.configIndex()
	config := servers(s.configuration(), s.opts.Members())
	var ask []string
	for _, server := range config {
		if server.Alive && server.ID != s.opts.ID {
			ask = append(ask, server.ID)
		}
	}
	states := s.ask(ask)
	now := time.Now()
	at := situation{
		self: s.opts.ID, servers: config, members: s.opts.Members(), caughtUp: map[string]bool{}, missing: l.missing, now: now,
		replaceAfter: s.opts.ReplaceAfter, removeLeftAfter: s.opts.RemoveLeftAfter, forgetAfter: s.opts.ForgetAfter,
	}
	members := map[string]bool{}
	for _, m := range at.members {
		members[m.ID] = true
	}
	waits := false // for somebody to catch up
	for _, server := range config {
		if members[server.ID] {
			delete(l.missing, server.ID)
		} else if _, ok := l.missing[server.ID]; !ok {
			l.missing[server.ID] = now
		}
		state := states[server.ID]
		at.caughtUp[server.ID] = state != nil && state.Generation == s.generation.Load() && state.Last+closeEnough >= commit && state.Last > 0
		waits = waits || server.Alive && !server.Voter && !at.caughtUp[server.ID]
	}
	next := plan(at)
	if next.change == nothing {
		if waits {
			return impatient
		}
		return s.opts.Reconcile
	}
	if l.unsure {
		before = 0
	}
	err := s.change(s.ctx, next, before)
	if err != nil {
		// The library has a configuration that did not come by the log.
		l.unsure = strings.HasPrefix(err.Error(), "configuration changed since")
		if text := err.Error(); text != l.said && s.ctx.Err() == nil {
			l.said = text
			s.zap.Warn("cannot change the configuration of the group", zap.String("change", string(next.change)), zap.String("id", next.id), zap.Error(err))
		}
		return impatient
	}
	l.unsure, l.said = false, ""
	return soon
}

// follow finds out who leads and whether this node is as far.
func (l *lookout) follow(s *Store) time.Duration {
	_, leader := s.raft.LeaderWithID()
	l.leaderless(s, leader == "")
	var ask []string
	switch {
	case leader == "":
		ask = s.others()
	case !s.caughtUp.Load() && string(leader) != s.opts.ID:
		ask = []string{string(leader)}
	}
	hint := ""
	states := s.ask(ask)
	for id, state := range states {
		if state.Role != roleLeader || state.Generation == 0 {
			continue
		}
		hint = id
		if !l.hasGoal && state.Commit > 0 {
			l.goal, l.hasGoal = state.Applied, true
		}
	}
	if leader != "" {
		hint = ""
	}
	s.hint.Store(&hint)
	if !s.caughtUp.Load() {
		// That it is in the tables is not enough (cases C18).
		if leader != "" && l.hasGoal {
			within, cancel := context.WithTimeout(s.ctx, soon)
			s.fsm.awaitShown(within, l.goal)
			cancel()
		}
		index := s.fsm.shown.Load()
		switch {
		case leader != "" && l.hasGoal && index >= l.goal:
			s.isCaughtUp()
		case leader == "" && time.Since(s.opened) >= s.opts.CaughtUpWithin && !s.ready.Load():
			if err := s.showCommitted(); err != nil {
				s.unready.Store(new(fmt.Sprintf("its log cannot be read: %v", err)))
				break
			}
			s.zap.Warn("no leader was found: this node serves what it has")
			s.ready.Store(true)
		case leader == "":
			s.unready.Store(new("it has found no leader yet"))
		case !l.hasGoal:
			s.unready.Store(new(fmt.Sprintf("the leader %s does not answer", leader)))
		default:
			s.unready.Store(new(fmt.Sprintf("it has applied %d of %d entries", index, l.goal)))
		}
	}
	switch {
	case leader == "":
		return impatient
	case !s.caughtUp.Load():
		return soon
	}
	return s.opts.Reconcile
}

// commitKey is how far the log is known to be committed, beside the votes of the
// library, which keeps that in memory only: after a restart it waits for a
// leader to say so, and without one would show nothing behind the last snapshot.
var commitKey = []byte("StarlingCommit")

// commitEvery is by how much the key is late. It costs a write to the disk, as
// long as there are others.
const commitEvery = time.Second

func (s *Store) commitLoop() {
	ticker := time.NewTicker(commitEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			s.keepCommit()
		case <-s.ctx.Done():
			return // Close keeps the last
		}
	}
}

// keepCommit is called on one goroutine at a time.
func (s *Store) keepCommit() {
	if c := s.raft.CommitIndex(); c > s.keptCommit && s.log.SetUint64(commitKey, c) == nil {
		s.keptCommit = c
	}
}

// showCommitted shows what this node knows to be committed, for want of a leader
// (semantics R6, cases C18).
func (s *Store) showCommitted() error {
	committed, err := s.log.GetUint64(commitKey)
	if errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.fsm.carryAhead(s.snaps.last().index, min(committed, s.raft.LastIndex()), s.log.GetLog)
}

// leaderlessTime is how long an election may take before it is worth a line in
// the log of the node.
const leaderlessTime = 5 * time.Second

// leaderless tells operators when there has been no leader for long, and when
// there is one again. A node that has no log yet waits for others, not for one.
func (l *lookout) leaderless(s *Store, is bool) {
	switch {
	case !is || s.raft.LastIndex() == 0:
		if l.warned {
			s.zap.Info("the log has a leader again")
		}
		l.alone, l.warned = time.Time{}, false
	case l.alone.IsZero():
		l.alone = time.Now()
	case !l.warned && time.Since(l.alone) >= leaderlessTime:
		l.warned = true
		s.zap.Warn("the log has no leader: nothing can be written to it until a majority of its voters is there", zap.Duration("for", time.Since(l.alone)))
	}
}

func (s *Store) isCaughtUp() {
	s.caughtUp.Store(true)
	s.ready.Store(true)
	s.transport.vote()
}

// CaughtUp tells whether this node may be asked, and if not, why. Once it may,
// it stays so. It is true when the node has applied what the leader had when
// it was first heard of, and when no leader was found for long.
func (s *Store) CaughtUp() (bool, string) {
	if s.ready.Load() {
		return true, ""
	}
	return false, *s.unready.Load()
}

// others are the members that can be asked.
func (s *Store) others() []string {
	var ids []string
	for _, m := range s.opts.Members() {
		if m.Alive && m.ID != s.opts.ID {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// ask asks nodes for their state, all at once; who does not answer in time, or
// is of another cluster, is missing from the answer.
func (s *Store) ask(ids []string) map[string]*pb.RaftStateResponse {
	if len(ids) == 0 || s.opts.Call == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(s.ctx, askTime)
	defer cancel()
	var mu sync.Mutex
	states := map[string]*pb.RaftStateResponse{}
	var wg sync.WaitGroup
	for _, id := range ids {
		wg.Go(func() {
			body, err := s.opts.Call(ctx, id, "RaftState", nil)
			if err != nil {
				return
			}
			var state pb.RaftStateResponse
			if proto.Unmarshal(body, &state) != nil || state.Cluster == "" || state.Cluster != s.opts.ClusterID() {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			states[id] = &state
		})
	}
	wg.Wait()
	for _, state := range states {
		// One that has nothing has its generation by hearsay.
		if state.Last > 0 {
			s.readopt(state.Generation)
			s.sawGeneration(state.Generation)
		}
	}
	return states
}

// configuration is the newest that this node knows, committed or not.
func (s *Store) configuration() raft.Configuration {
	return s.raft.GetConfiguration().Configuration() // its Error is nil always
}

// configIndex is the index of the configuration. The library does not tell it:
// GetConfiguration().Index() is 0.
func (s *Store) configIndex() uint64 {
	return max(s.log.newestConfig(), s.snaps.last().config)
}

// servers is a configuration, by id.
func servers(c raft.Configuration, members []Member) []Server {
	alive := map[string]bool{}
	for _, m := range members {
		alive[m.ID] = m.Alive
	}
	list := make([]Server, 0, len(c.Servers))
	for _, server := range c.Servers {
		id := string(server.ID)
		list = append(list, Server{ID: id, Voter: server.Suffrage == raft.Voter, Alive: alive[id]})
	}
	slices.SortFunc(list, func(a, b Server) int { return strings.Compare(a.ID, b.ID) })
	return list
}

// change carries out a step, unless the configuration is another than the one
// at the index; 0: any.
func (s *Store) change(ctx context.Context, st step, index uint64) error {
	select {
	case s.changing <- struct{}{}:
		defer func() { <-s.changing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	id, address := raft.ServerID(st.id), raft.ServerAddress(st.id)
	_, err := answer(ctx, s, func() (struct{}, error) {
		var f raft.Future
		switch st.change {
		case addNonvoter:
			f = s.raft.AddNonvoter(id, address, index, enqueueTime)
		case promote:
			f = s.raft.AddVoter(id, address, index, enqueueTime)
		case demote:
			f = s.raft.DemoteVoter(id, index, enqueueTime)
		case remove:
			f = s.raft.RemoveServer(id, index, enqueueTime)
		}
		return struct{}{}, f.Error()
	})
	if err != nil {
		return err
	}
	s.metrics.changes[string(st.change)].Inc()
	s.zap.Info("changed the configuration of the group", zap.String("change", string(st.change)), zap.String("id", st.id), zap.String("reason", st.why))
	return nil
}

// ErrNotLeader: what is asked for can only be done by the node that leads; see
// [NotLeader].
var ErrNotLeader = errors.New("this node does not lead the group")

// NotLeader is an ErrNotLeader that says who leads.
type NotLeader struct {
	Leader string // id; "": nobody is known to
}

func (e *NotLeader) Error() string {
	if e.Leader == "" {
		return ErrNotLeader.Error() + ", and it is not known who does"
	}
	return ErrNotLeader.Error() + ", node " + e.Leader + " does"
}

func (e *NotLeader) Unwrap() error { return ErrNotLeader }

func (s *Store) mustLead() error {
	if s.Leads() {
		return nil
	}
	return &NotLeader{Leader: s.status().Leader}
}

// RemoveServer takes a node out of the group that will not come back. It must
// be stopped: a member that is alive would be taken in again at once.
func (s *Store) RemoveServer(ctx context.Context, id string) error {
	if err := s.mustLead(); err != nil {
		return err
	}
	config := servers(s.configuration(), s.opts.Members())
	i := slices.IndexFunc(config, func(server Server) bool { return server.ID == id })
	switch {
	case i < 0:
		return fmt.Errorf("raftstore: node %s: %w in the group", id, ErrNotFound)
	case config[i].Alive || id == s.opts.ID:
		return fmt.Errorf("raftstore: node %s is running: stop it first", id)
	}
	if err := s.change(ctx, step{remove, id, "an operator said so"}, 0); err != nil {
		return fmt.Errorf("raftstore: remove node %s: %w", id, err)
	}
	return nil
}

// TransferLeadership makes another voter lead, if this node does and there is
// one. It is for a node that is about to stop.
func (s *Store) TransferLeadership(ctx context.Context) error {
	err := errors.New("no other voter is alive")
	if !s.Leads() {
		return nil
	}
	config := servers(s.configuration(), s.opts.Members())
	if len(config) == 1 {
		return nil
	}
	var ask []string
	for _, server := range config {
		if server.Voter && server.Alive && server.ID != s.opts.ID {
			ask = append(ask, server.ID)
		}
	}
	states := s.ask(ask)
	slices.SortStableFunc(ask, func(a, b string) int {
		return cmp.Compare(states[b].GetLast(), states[a].GetLast())
	})
	for _, id := range ask {
		if states[id] == nil {
			continue
		}
		if _, err = answer(ctx, s, func() (struct{}, error) {
			return struct{}{}, s.raft.LeadershipTransferToServer(raft.ServerID(id), raft.ServerAddress(id)).Error()
		}); err == nil || !s.Leads() {
			return nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return fmt.Errorf("raftstore: hand over the lead: %w", err)
}

// Leads tells whether this node leads the group, as far as it knows.
func (s *Store) Leads() bool { return s.ended.Load() == nil && s.raft.State() == raft.Leader }

// ServeState answers another node's RaftState.
func (s *Store) ServeState(ctx context.Context, _ string, _ []byte) ([]byte, error) {
	// Until an entry of its own term is safe, a new leader does not know what
	// else is, and may not have applied all that was acknowledged: it must not be
	// taken for the measure.
	if term := s.raft.CurrentTerm(); s.raft.State() == raft.Leader && s.settled.Load() != term {
		within, cancel := context.WithTimeout(ctx, askTime/2)
		if _, err := answer(within, s, func() (struct{}, error) { return struct{}{}, s.raft.Barrier(0).Error() }); err == nil {
			s.settled.Store(term)
		}
		cancel()
	}
	st := s.status()
	if st.Role == roleLeader && s.settled.Load() != st.Term {
		st.Commit = 0
	}
	resp := &pb.RaftStateResponse{
		Cluster: s.opts.ClusterID(), Generation: s.generation.Load(), Role: st.Role, Leader: st.Leader,
		Term: st.Term, Commit: st.Commit, Applied: st.Applied, Last: st.Last, Commands: CommandVersion, Digest: st.Digest,
	}
	for _, server := range st.Servers {
		resp.Servers = append(resp.Servers, &pb.RaftServer{Id: server.ID, Voter: server.Voter})
	}
	return proto.Marshal(resp)
}

// Status is how things are now. Its parts are not of exactly the same moment.
func (s *Store) Status() Status {
	st := s.status()
	st.Rows = s.fsm.rows()
	return st
}

func (s *Store) status() Status {
	members := s.opts.Members()
	last := s.snaps.last()
	index, sum := s.fsm.digest()
	st := Status{
		Role: strings.ToLower(s.raft.State().String()), Leader: s.whoLeads(), Term: s.raft.CurrentTerm(),
		Commit: s.raft.CommitIndex(), Applied: index, Digest: sum, Last: s.raft.LastIndex(),
		Generation: s.generation.Load() >> generationShift,
		Servers:    servers(s.configuration(), members),
		LogBytes:   s.log.sinceSnapshot(), LastSnapshot: last.at, SnapshotSize: last.size,
	}
	voters := 0
	for _, server := range st.Servers {
		if server.Voter {
			voters++
			if server.Alive || server.ID == s.opts.ID {
				st.AliveVoters++
			}
		}
	}
	if voters > 0 {
		st.Quorum = quorum(voters)
	}
	ids := map[string]bool{}
	for _, server := range st.Servers {
		ids[server.ID] = true
	}
	for _, m := range members {
		if m.Alive {
			ids[m.ID] = true
		}
	}
	st.Wanted = WantedVoters(len(ids))
	if e := s.ended.Load(); e != nil {
		st.Role, st.Leader = e.role, ""
	} else if len(st.Servers) == 0 {
		st.Role = roleJoining
	}
	_, leader := s.raft.LeaderWithID()
	st.Stale = leader == "" || !s.caughtUp.Load()
	return st
}
