package distro

import (
	"context"
	"time"

	"github.com/starling-registry/starling/pkg/registry"
	pb "github.com/starling-registry/starling/proto"
)

// A peer is another node as the replication sees it. All but the constant
// fields are guarded by the replicator's mu.
//
// There is no queue of messages: what is to be said is kept as what it is
// about, and the next message is made when the previous Send has returned. A
// slow peer so gets fewer and larger frames.
type peer struct {
	id   string
	wake chan struct{}

	cancel context.CancelFunc // of its sender; nil: there is none

	// What it was told. Frames continue at sent; fresh: the next heads tell it
	// where they begin, and it pulls the rest.
	fresh     bool
	sent      uint64
	sentBytes uint64    // of written
	paced     time.Time // when the pace would have let the last frame be followed
	headsDue  bool
	headsSent time.Time
	acks      map[registry.Life]struct{}
	pulls     map[registry.Life]uint64 // asked for, from there
	answers   map[registry.Life]uint64 // it asked for them
	answerOwn bool
	asked     map[registry.Life]*asked

	// What it said.
	epoch      uint64
	ready      bool
	draining   bool
	reliable   bool           // its last message came without a stream
	headsClock registry.Stamp // of its newest heads
	heardAt    time.Time      // when they came
	far        bool           // its newest heads were refused for their clock
	clockOff   time.Duration  // against the wall clock of this machine
	known      uint64         // of the own life, that it has applied
	missed     bool           // it takes this node for gone
	// targets: what it had of each life when this node began to catch up; nil:
	// not told yet.
	targets map[registry.Life]uint64

	// Pulls from it failed, of whatever life, and it is not asked again before.
	pullFailures int
	pullAgain    int64 // milliseconds
}

func (d *Replicator) peerLocked(id string) *peer {
	p := d.peers[id]
	if p == nil {
		p = &peer{id: id, wake: make(chan struct{}, 1), fresh: true}
		p.restart(d.epochs[id])
		d.peers[id] = p
		d.companyLocked()
	}
	return p
}

// restart forgets what an earlier run of the peer has said.
func (p *peer) restart(epoch uint64) {
	p.epoch, p.fresh, p.headsDue = epoch, true, true
	p.acks, p.pulls, p.answers, p.asked = map[registry.Life]struct{}{}, map[registry.Life]uint64{}, map[registry.Life]uint64{}, map[registry.Life]*asked{}
	p.ready, p.draining, p.missed, p.headsClock, p.known, p.targets = false, false, false, 0, 0, nil
}

func (p *peer) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Connected says that a stream to the peer is up. It gets heads at once.
func (d *Replicator) Connected(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.peerLocked(id)
	p.fresh, p.headsDue, p.reliable = true, true, false
	p.pullFailures, p.pullAgain = 0, 0
	d.startSenderLocked(p)
	p.poke()
}

func (d *Replicator) startSenderLocked(p *peer) {
	if p.cancel != nil || d.stopped || p.id == d.self.Node {
		return
	}
	p.fresh, p.headsDue = true, true // an earlier sender may have lost what it took
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(d.ctx)
	d.goLoopLocked(ctx, "send", func(ctx context.Context) { d.sendLoop(ctx, p) })
}

// stopSenderLocked is for a peer that has gone: a Send to it may hang.
func (d *Replicator) stopSenderLocked(p *peer) {
	if p.cancel != nil {
		p.cancel()
		p.cancel = nil
	}
}

// A job is what is to be sent now, in this order: heads tell of no version that
// the frames before them have not brought.
type job struct {
	frames   []cut
	messages [][]byte
}

func (d *Replicator) sendLoop(ctx context.Context, p *peer) {
	backOff := time.Duration(0)
	for ctx.Err() == nil {
		d.opts.Awake()
		j, pause := d.nextJob(p)
		if j == nil {
			var due <-chan time.Time
			if pause > 0 {
				due = time.After(pause)
			}
			select {
			case <-p.wake:
			case <-due:
			case <-ctx.Done():
			}
			continue
		}
		if err := d.send(ctx, p, j); err != nil && ctx.Err() == nil {
			d.metrics.sendsFailed.Inc()
			d.mu.Lock()
			p.fresh, p.headsDue = true, true
			d.mu.Unlock()
			backOff = min(max(100*time.Millisecond, 2*backOff), 2*time.Second)
			select {
			case <-time.After(backOff):
			case <-ctx.Done():
			}
			continue
		}
		backOff = 0
	}
}

func (d *Replicator) send(ctx context.Context, p *peer, j *job) error {
	send := func(msg []byte) error { return d.opts.Peers.Send(ctx, p.id, msg) }
	for _, c := range j.frames {
		if err := c.parts(d.transfer(), send); err != nil {
			return err
		}
		d.metrics.framesSent.Inc()
		d.metrics.bytesSent.Add(float64(c.bytes))
	}
	for _, m := range j.messages {
		if err := send(m); err != nil {
			return err
		}
	}
	return nil
}

func (d *Replicator) transfer() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.transfers++
	return d.transfers
}

// busyBurst is how many frames a stream carries at once before it keeps to the
// pace. Where there are fewer changes than the pace has frames, none of them
// waits for it, though some come close to each other.
const busyBurst = 8

// nextJob returns what is due, or how long until something may be (0: until
// somebody wakes the sender).
func (d *Replicator) nextJob(p *peer) (*job, time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	j := &job{}
	behind := !p.fresh && (p.sent < d.own.applied || p.answerOwn)
	pace, burst := d.opts.BusyFor, time.Duration(busyBurst)
	if p.reliable {
		pace, burst = d.opts.ReliableFor, 1
	}
	pause := time.Duration(0)
	if ahead := p.paced.Sub(now); ahead > (burst-1)*pace {
		pause = ahead - (burst-1)*pace
	}
	next := now.Add(burst * pace) // of what is not paced, only so much counts
	if p.paced.Before(now) {
		next = now.Add(pace)
	} else if n := p.paced.Add(pace); n.Before(next) {
		next = n
	}
	// Heads come after a frame up to the version that they tell.
	if behind && (pause == 0 || p.headsDue || !p.reliable && d.written-p.sentBytes >= uint64(d.opts.BusyBytes)) {
		j.frames = append(j.frames, d.own.cut(p.sent))
		p.sent, p.sentBytes, p.paced, p.answerOwn, behind, pause = d.own.applied, d.written, next, false, false, 0
	}
	if p.headsDue {
		if p.fresh {
			p.fresh, p.sent, p.sentBytes = false, d.own.applied, d.written
		}
		j.messages = append(j.messages, encodeHeads(d.headsLocked(p)))
		p.headsDue, p.headsSent = false, now
	}
	// Acks, too, at the pace of frames: one says as much as many.
	if len(p.acks) > 0 && pause == 0 {
		for id := range p.acks {
			if l := d.lives[id]; l != nil {
				j.messages = append(j.messages, encode(&pb.Message{Body: &pb.Message_Ack{Ack: &pb.Ack{Life: lifeMessage(id), Applied: l.applied}}}))
			}
		}
		clear(p.acks)
		p.paced = next
	}
	for id, from := range p.pulls {
		j.messages = append(j.messages, encode(&pb.Message{Body: &pb.Message_Pull{Pull: &pb.Pull{Life: lifeMessage(id), From: from}}}))
	}
	clear(p.pulls)
	for id, from := range p.answers {
		if l := d.lives[id]; l != nil && (l.applied > from || from == 0) {
			j.frames = append(j.frames, l.cut(from))
		}
	}
	clear(p.answers)
	if len(j.frames) > 0 || len(j.messages) > 0 {
		return j, 0
	}
	if behind || len(p.acks) > 0 {
		return nil, max(pause, time.Millisecond)
	}
	return nil, 0
}

// gossipFrame broadcasts what was written since the last time, if it fits into a packet and
// the budget. Whoever missed one cannot apply the next; streams and pulls have
// it all.
func (d *Replicator) gossipFrame() {
	if !d.opts.GossipFrames {
		return
	}
	d.opts.Awake()
	d.mu.Lock()
	from := d.gossip.applied
	if from == d.own.applied {
		d.mu.Unlock()
		return
	}
	d.gossip.applied = d.own.applied
	var msg []byte
	if c := d.own.cut(from); c.bytes <= maxGossip-150 && (!c.whole || c.floor == 0) && d.gossip.take(time.Now(), d.opts.GossipPerSecond) {
		msg = c.part(c.records, 0, 1, 0)
	}
	d.mu.Unlock()
	if msg != nil && len(msg) <= maxGossip && d.opts.Peers.Broadcast(msg) {
		d.metrics.gossiped.Inc()
		return
	}
	d.metrics.gossipSkipped.Inc()
}

// gossipHeads tells all, also those without a stream, at most once per tick.
func (d *Replicator) gossipHeads(now time.Time) {
	d.opts.Awake()
	d.mu.Lock()
	g := &d.gossip
	due := g.news || g.headsOf != d.own.applied || now.Sub(g.heads) >= d.opts.GossipHeads
	var msg []byte
	if due && g.take(now, d.opts.GossipPerSecond) {
		g.news, g.headsOf, g.heads = false, d.own.applied, now
		msg = d.gossipHeadsLocked()
	}
	d.mu.Unlock()
	if msg != nil && d.opts.Peers.Broadcast(msg) {
		d.metrics.gossiped.Inc()
	}
}
