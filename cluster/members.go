package cluster

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/zap"
)

// A member is what is known of another node. Guarded by Cluster.mu; facts are
// set wherever they are learned, State only by Cluster.decideAll.
type member struct {
	Member
	meta meta

	gossiping bool      // memberlist takes it for alive
	since     time.Time // of gossiping, or of the end of it
	refused   bool      // its ports refused twice in a row, and it has not been heard of since
	heard     bool      // since the death: it was dialled, and did not refuse
	confirmed bool      // since the death: another member takes it for dead, too
	asked     time.Time // since the death: when the others were asked last, if this node ails
	denied    time.Time // since the death: when another member last said that it lives
	held      bool      // its death was not believed at once
	leaving   uint64    // epoch of the life that has announced to leave

	link *link   // dials it; nil: it left
	in   *stream // it opened, healthy
	out  *stream // this node opened, healthy
	// Reliable messages to it under way.
	reliable chan struct{}
}

// verdictTime is how long a member that memberlist has lost is still shown as
// alive, to find out whether it refuses.
const verdictTime = 400 * time.Millisecond

const (
	answerTime = time.Second // of the others, after they were asked about a death
	askAgain   = time.Second
)

// ailing is the health score from which this node does not trust its own
// failure detection.
const ailing = 2

// decide tells the state from the facts.
func (m *member) decide(now time.Time, score int, hold time.Duration) State {
	switch {
	case m.leaving != 0 && m.leaving == m.Epoch && (!m.gossiping || m.refused):
		return Left
	case m.movedLocked():
		return Alive
	case m.refused:
		return Refused
	case m.gossiping:
		return Alive
	case m.State != Alive: // dead since long; what refused once does not become silent
		return m.State
	case score >= ailing && m.doubtful(now, hold):
		return Alive
	case m.heard || now.Sub(m.since) >= verdictTime:
		return Silent
	}
	return Alive
}

// doubtful tells whether an ailing node waits before it believes a death: as
// long as others say that the member lives, and for the time that an answer
// takes. If nobody answers, this node is cut off, or there is nobody else.
func (m *member) doubtful(now time.Time, hold time.Duration) bool {
	if m.asked.IsZero() || m.confirmed || now.Sub(m.since) >= hold {
		return false
	}
	return now.Sub(m.since) < answerTime || now.Sub(m.denied) < 2*askAgain
}

// movedLocked tells whether a newer life of the node has dialled this one than
// the one that gossip knows the address of.
func (m *member) movedLocked() bool {
	return m.Epoch > m.meta.epoch && m.in != nil
}

// run is the loop that turns facts into views.
func (c *Cluster) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-c.wake:
		case <-timer.C:
		}
		c.takeFacts()
		next := c.decideAll()
		c.found()
		c.publish()
		timer.Reset(next)
	}
}

// takeFacts applies what memberlist said.
func (c *Cluster) takeFacts() {
	c.factsMu.Lock()
	facts := c.facts
	c.facts = map[string]fact{}
	c.factsMu.Unlock()
	now := time.Now()
	died := false
	for id, f := range facts {
		if id == c.opts.ID {
			continue
		}
		c.mu.Lock()
		m := c.members[id]
		if m == nil {
			if !f.alive {
				c.mu.Unlock()
				continue
			}
			m = &member{Member: Member{ID: id, Since: now}, reliable: make(chan struct{}, 1)}
			c.members[id] = m
			c.pathsLocked(id) // it may have dialled before gossip told of it
			c.log.Info("member joined", zap.String("node", id), zap.String("name", f.meta.name), zap.Stringer("gossip", f.addr))
		}
		newLife := f.meta.epoch > m.Epoch
		if f.alive {
			m.meta = f.meta
			m.Name, m.Host, m.Version, m.Wire, m.Commands = f.meta.name, f.meta.host, f.meta.version, f.meta.wire, f.meta.commands
			m.HTTPPort, m.GRPCPort, m.PeerPort, m.RaftPort = int(f.meta.ports[0]), int(f.meta.ports[1]), int(f.meta.ports[2]), int(f.meta.ports[3])
			m.GossipPort, m.Gossip = int(f.meta.ports[4]), f.addr
			m.Epoch = max(m.Epoch, f.meta.epoch)
		}
		if f.meta.leaving {
			m.leaving = f.meta.epoch
		}
		m.Leaving = m.leaving != 0 && m.leaving == m.Epoch
		switch {
		case f.alive && (!m.gossiping || f.joined || newLife):
			if !m.gossiping {
				m.since = now
			}
			m.gossiping, m.refused, m.heard = true, false, false
		case !f.alive && m.gossiping:
			m.gossiping, m.since, m.heard, m.confirmed, m.held = false, now, false, false, false
			m.asked, m.denied = time.Time{}, time.Time{}
			died = died || !m.Leaving
		}
		l := m.link
		c.mu.Unlock()
		if l != nil {
			l.kick()
		}
		c.checkTwins(id)
	}
	others := c.countAlive()
	c.alive.Store(int64(others) + 1)
	if died && others > 0 && c.HealthScore() >= ailing {
		c.askAround()
	}
	if len(facts) > 0 {
		mark(c.rejoin)
	}
	c.adopt()
}

func (c *Cluster) countAlive() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.members {
		n += btoi(m.gossiping)
	}
	return n
}

// checkTwins warns of two nodes with one name, or with one address.
func (c *Cluster) checkTwins(id string) {
	c.mu.Lock()
	var twins [][3]string
	m := c.members[id]
	others := []Member{{ID: c.opts.ID, Name: c.own.name, Gossip: c.gossipAddr}}
	for _, o := range c.members {
		if o != m && o.gossiping {
			others = append(others, o.Member)
		}
	}
	if m.gossiping {
		for _, o := range others {
			if o.Name == m.Name && m.Name != "" {
				twins = append(twins, [3]string{"name", o.ID, m.Name})
			}
			if o.Gossip == m.Gossip {
				twins = append(twins, [3]string{"address", o.ID, m.Gossip.String()})
			}
		}
	}
	c.mu.Unlock()
	for _, t := range twins {
		if c.once("twins", t[0], min(id, t[1]), max(id, t[1]), t[2]) {
			c.metrics.conflicts[t[0]].Inc()
			if t[0] == "name" {
				c.log.Warn("two nodes have the same name", zap.String("name", t[2]), zap.String("node", id), zap.String("other", t[1]))
				continue
			}
			// One that took over the address of another is told by the Hello
			// from one that is only announced with it.
			c.log.Warn("two nodes announce the same address", zap.String("address", t[2]), zap.String("node", id), zap.String("other", t[1]))
		}
	}
}

// decideAll sets the states, starts and ends links, forgets who is gone for
// long, and tells when to look again at the latest.
func (c *Cluster) decideAll() time.Duration {
	score := c.HealthScore()
	now := time.Now()
	next := time.Second
	var end []*link
	var cut []*stream
	c.mu.Lock()
	for id, m := range c.members {
		s := m.decide(now, score, c.opts.HoldDeath)
		if s == Alive && !m.gossiping {
			next = min(next, verdictTime/4)
			if score >= ailing && !m.held && now.Sub(m.since) >= verdictTime {
				m.held = true
				c.metrics.held.Inc()
				c.log.Warn("this node is ailing: the death of a member is not believed yet", zap.String("node", id), zap.Int("score", score))
			}
		}
		if s != m.State {
			c.log.Info("member", zap.String("node", id), zap.String("name", m.Name), zap.Stringer("was", m.State), zap.Stringer("is", s))
			m.State, m.Since = s, now
			c.metrics.states[s].Inc()
			if s != Alive {
				// What was on its way to it is lost; when it is back, a new
				// stream is faster than TCP's next attempt.
				cut = append(cut, m.in, m.out)
			}
		}
		if s != Alive && !m.gossiping && now.Sub(m.Since) >= c.opts.ForgetAfter {
			delete(c.members, id)
			end = append(end, m.link)
			continue
		}
		if s == Left && m.link != nil {
			end = append(end, m.link)
			m.link = nil
		}
		if s != Left && m.link == nil {
			m.link = c.newLink(id)
		}
	}
	doubts := c.doubtsLocked(now)
	c.mu.Unlock()
	if doubts {
		c.askAround()
	}
	for _, s := range cut {
		if s != nil {
			s.end(errDead)
		}
	}
	for _, l := range end {
		if l != nil {
			l.cancel()
		}
	}
	return next
}

// publish makes a view if something changed.
func (c *Cluster) publish() {
	old := c.view.Load()
	c.mu.Lock()
	ms := make([]Member, 0, len(c.members)+1)
	ms = append(ms, c.selfLocked())
	for _, m := range c.members {
		ms = append(ms, m.Member)
	}
	streams := 0
	for _, m := range c.members {
		streams += btoi(m.in != nil) + btoi(m.out != nil)
	}
	c.mu.Unlock()
	c.metrics.streams.Set(float64(streams))
	slices.SortFunc(ms, func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })
	if old != nil && slices.Equal(old.Members, ms) {
		return
	}
	count := [4]int{}
	for _, m := range ms {
		count[m.State]++
	}
	for s, n := range count {
		c.metrics.members[s].Set(float64(n))
	}
	v := &View{Members: ms}
	c.view.Store(v)
	if c.opts.Handlers.Members != nil {
		c.opts.Handlers.Members(v)
	}
}

func (c *Cluster) selfLocked() Member {
	p := c.own.ports
	return Member{
		ID: c.opts.ID, Name: c.own.name, Epoch: c.own.epoch, State: Alive, Since: c.started, Self: true, Leaving: c.own.leaving, Host: c.own.host,
		HTTPPort: int(p[0]), GRPCPort: int(p[1]), PeerPort: int(p[2]), RaftPort: int(p[3]), GossipPort: int(p[4]),
		Version: c.own.version, Wire: c.own.wire, Commands: c.own.commands, Gossip: c.gossipAddr,
	}
}

// What links and streams learn of a member.

// sawRefusal: its ports refused twice, or another node answered there.
func (c *Cluster) sawRefusal(id string) {
	c.learn(id, func(m *member) {
		// What was dialled is the address of the life that gossip knows.
		m.refused = m.refused || m.Epoch == m.meta.epoch
	})
}

// sawSilence: a dial that began at a time did not end in a refusal.
func (c *Cluster) sawSilence(id string, began time.Time) {
	c.learn(id, func(m *member) { m.heard = m.heard || !m.gossiping && !began.Before(m.since) })
}

// sawHello: the node itself said who it is, and of which life.
func (c *Cluster) sawHello(id string, epoch uint64) {
	dead := false
	c.learn(id, func(m *member) {
		if m.gossiping || epoch > m.Epoch {
			m.refused = false
		}
		m.Epoch = max(m.Epoch, epoch)
		m.Leaving = m.leaving != 0 && m.leaving == m.Epoch
		dead = !m.gossiping
	})
	if dead { // it can be reached again: tell memberlist
		mark(c.rejoin)
	}
}

func (c *Cluster) learn(id string, f func(*member)) {
	c.mu.Lock()
	if m := c.members[id]; m != nil {
		f(m)
	}
	c.mu.Unlock()
	mark(c.wake)
}

// An ailing node asks the others before it believes a death.

// askAround asks about all whose death is not believed yet.
func (c *Cluster) askAround() {
	now := time.Now()
	var about [][]byte
	c.mu.Lock()
	for id, m := range c.members {
		if !m.gossiping && m.State == Alive {
			m.asked = now
			raw, _ := hex.DecodeString(id) // checked when it was let in
			about = append(about, raw)
		}
	}
	c.mu.Unlock()
	for _, raw := range about {
		c.toAll(c.frame(kindAsk, raw))
	}
}

// doubtsLocked tells whether it is time to ask again.
func (c *Cluster) doubtsLocked(now time.Time) bool {
	for _, m := range c.members {
		if !m.gossiping && m.State == Alive && !m.asked.IsZero() && now.Sub(m.asked) >= askAgain {
			return true
		}
	}
	return false
}

// toAll sends a message of this package to all members that live, as a packet
// and reliably; it does not wait.
func (c *Cluster) toAll(msg []byte) {
	c.mu.Lock()
	var to []*memberlist.Node
	for _, m := range c.members {
		if m.gossiping {
			to = append(to, m.nodeLocked())
		}
	}
	c.mu.Unlock()
	for _, n := range to {
		c.spawn(func() {
			c.ml.SendBestEffort(n, msg)
			c.ml.SendReliable(n, msg)
		})
	}
}

// nodeLocked is what memberlist needs to send to it.
func (m *member) nodeLocked() *memberlist.Node {
	return &memberlist.Node{Name: m.ID, Addr: m.Gossip.Addr().AsSlice(), Port: m.Gossip.Port()}
}

// read takes what came by gossip out of the inbox.
func (c *Cluster) read() {
	for {
		var l letter
		select {
		case <-c.ctx.Done():
			return
		case l = <-c.inbox:
		}
		c.inboxSize.Add(-int64(headerSize + len(l.body)))
		c.mu.Lock()
		m := c.members[l.from]
		c.mu.Unlock()
		if m == nil {
			c.metrics.dropped[dropStranger].Inc()
			continue
		}
		switch l.kind {
		case kindGossip, kindReliable:
			via := Gossip
			if l.kind == kindReliable {
				via = Reliable
			}
			c.metrics.receive(via, len(l.body))
			if c.opts.Handlers.Message != nil {
				c.opts.Handlers.Message(l.from, via, l.body)
			}
		case kindLeaving:
			if len(l.body) != 8 {
				c.metrics.dropped[dropBroken].Inc()
				continue
			}
			epoch := binary.BigEndian.Uint64(l.body)
			c.learn(l.from, func(m *member) {
				m.leaving = epoch
				m.Leaving = m.leaving == m.Epoch
			})
		case kindAsk:
			id := hex.EncodeToString(l.body)
			c.mu.Lock()
			about := c.members[id]
			answer := kindDead
			if about != nil && about.gossiping {
				answer = kindLives
			}
			to := m.nodeLocked()
			c.mu.Unlock()
			if about != nil {
				c.spawn(func() { c.ml.SendReliable(to, c.frame(answer, l.body)) })
			}
		case kindDead:
			c.learn(hex.EncodeToString(l.body), func(m *member) { m.confirmed = !m.gossiping })
		case kindLives:
			c.learn(hex.EncodeToString(l.body), func(m *member) { m.denied = time.Now() })
		default: // of a later version
			c.metrics.dropped[dropBroken].Inc()
		}
	}
}

// foundAfter is how long the members of a new cluster must have been the same
// before one of them makes its id.
const foundAfter = 2 * time.Second

// aloneAfter is how long a node that was told to look for others, and may be
// the first of them, looks before it makes a cluster of its own.
const aloneAfter = 5 * time.Second

// found makes the cluster id, if that is up to this node.
func (c *Cluster) found() {
	if c.opts.Expect <= 0 || c.ClusterID() != "" {
		return
	}
	founders := []string{c.opts.ID}
	if c.opts.Expect == 1 && len(c.opts.Join) == 0 {
		c.setClusterID("", founders)
		return
	}
	now := time.Now()
	c.mu.Lock()
	for id, m := range c.members {
		if !m.gossiping || m.State != Alive {
			continue
		}
		founders = append(founders, id)
		if m.meta.cluster != "" || id < c.opts.ID || now.Sub(m.since) < foundAfter {
			c.mu.Unlock()
			return
		}
	}
	c.mu.Unlock()
	after := foundAfter
	if len(founders) == 1 {
		after = aloneAfter
	}
	if len(founders) >= c.opts.Expect && now.Sub(c.started) >= after {
		slices.Sort(founders)
		c.setClusterID("", founders)
	}
}

// adopt takes the cluster id of the members.
func (c *Cluster) adopt() {
	if c.ClusterID() != "" {
		return
	}
	adopted := ""
	c.mu.Lock()
	for _, m := range c.members {
		// If there are several, one of two clusters is kept out from now on.
		if id := m.meta.cluster; m.gossiping && id != "" && (adopted == "" || id < adopted) {
			adopted = id
		}
	}
	c.mu.Unlock()
	if adopted != "" {
		c.setClusterID(adopted, nil)
	}
}

// setClusterID takes an id, or makes one for its founders. The others hear of it
// when the handler has seen to it that it stays.
func (c *Cluster) setClusterID(id string, founders []string) {
	if founders != nil {
		var raw [16]byte
		rand.Read(raw[:])
		id = hex.EncodeToString(raw[:])
	}
	if c.opts.Handlers.ClusterID != nil {
		if err := c.opts.Handlers.ClusterID(id, founders); err != nil {
			c.log.Error("the id of the cluster cannot be kept", zap.String("cluster", id), zap.Error(err))
			return
		}
	}
	c.mu.Lock()
	c.own.cluster = id
	c.mu.Unlock()
	c.log.Info("cluster id", zap.String("cluster", id), zap.Bool("made", founders != nil))
	c.announce()
}

// announce lets memberlist read the meta again.
func (c *Cluster) announce() {
	c.spawn(func() {
		if err := c.ml.UpdateNode(time.Second); err != nil {
			c.log.Debug("news of this node were not gossiped yet", zap.Error(err))
		}
	})
}
