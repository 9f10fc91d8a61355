package distro

import (
	"errors"
	"fmt"
	"time"

	"github.com/starling-registry/starling/pkg/registry"
	pb "github.com/starling-registry/starling/proto"
)

// maxMessage is above the largest record (a batch of 10,000 instances takes
// about 3 MB) and the messages of cluster (16 MiB).
const maxMessage = 20 << 20

// Message takes a message of a peer: the bytes of a proto Message. They are the
// replicator's from then on. It may block for as long as a frame takes to be
// applied, which is what slows down a peer that sends too much.
func (d *Replicator) Message(from string, via Via, msg []byte) {
	if from == d.self.Node || !validLife(registry.Life{Node: from, Epoch: 1}) {
		d.refuse(from, badOwner, errors.New("it is not another node"))
		return
	}
	if len(msg) > maxMessage {
		d.refuse(from, badOversized, fmt.Errorf("%d bytes", len(msg)))
		return
	}
	m, err := readMessage(msg)
	if err != nil {
		d.refuse(from, badMessage, err)
		return
	}
	d.news(from, via)
	switch body := m.GetBody().(type) {
	case *pb.Message_Heads:
		d.onHeads(from, via, body.Heads)
	case *pb.Message_Frame:
		d.onFrame(from, via, body.Frame, msg)
	case *pb.Message_Pull:
		d.onPull(from, body.Pull)
	case *pb.Message_Ack:
		d.onAck(from, body.Ack)
	default:
		d.refuse(from, badUnknown, errors.New("message of an unknown kind"))
	}
}

// news of a silent member come before membership has it back: what it has to
// say must be known before any lease ends.
func (d *Replicator) news(from string, via Via) {
	d.mu.Lock()
	p := d.peerLocked(from)
	if via != Gossip {
		p.reliable = via == Reliable
	}
	m, known := d.members[from]
	silent := known && m.State == Silent || !known && d.saidSilentLocked(from)
	if silent {
		d.catchUpAgainLocked()
	}
	d.mu.Unlock()
	if silent {
		d.carryAll()
	}
}

type stageKey struct {
	from string
	life registry.Life
	via  Via
}

// pulled is the carrier of the answers to Pull; they do not come with Message.
const pulled Via = 255

func (d *Replicator) onFrame(from string, via Via, m *pb.Frame, raw []byte) {
	if f := d.collect(from, via, m); f != nil {
		if d.apply(f, from, via) && via == Gossip && from == f.life.Node {
			d.relay(raw)
		}
	}
}

// collect decodes a frame, and puts parts together. It returns nil if there is
// nothing to apply (yet).
func (d *Replicator) collect(from string, via Via, m *pb.Frame) *frame {
	id := readLife(m.GetLife())
	if id.Node == d.self.Node && id.Epoch >= d.self.Epoch {
		d.mu.Lock()
		above := id.Epoch > d.self.Epoch || m.GetTo() > d.own.applied
		d.mu.Unlock()
		if above {
			d.outlived(from, id.Epoch)
		} else {
			d.metrics.duplicates.Inc()
		}
		return nil // a frame never changes what this node owns
	}
	if !d.wanted(from, via, id, m) {
		return nil
	}
	f, err := readFrame(m)
	if err != nil {
		d.refuse(from, badRecord, err)
		return nil
	}
	f.byOwner = from == f.life.Node
	for _, r := range f.records {
		if r.clock.Millis()-d.opts.Clock.Wall() > d.opts.MaxClockOff.Milliseconds() {
			d.refuse(from, badClock, fmt.Errorf("record of %v has clock %v", f.life, r.clock.Time()))
			return nil
		}
		if r.unreadable {
			d.refuse(from, badUnreadable, fmt.Errorf("record of kind %d, version %d of %v", r.kind, r.version, f.life))
		}
	}
	if m.GetParts() <= 1 {
		return f
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	key := stageKey{from, id, via}
	s := d.staged[key]
	if s == nil || s.transfer != m.GetTransfer() || s.total != int(m.GetParts()) {
		d.unstageLocked(key)
		s = newStaged(m.GetTransfer(), int(m.GetParts()))
		d.makeRoomLocked(key)
		d.staged[key] = s
	}
	s.touched = d.now()
	was := s.bytes
	whole, err := s.add(f, int(m.GetPart()))
	d.stagedBytes += s.bytes - was
	if err == nil && whole == nil && d.stagedBytes > d.opts.StagedBytes {
		err = fmt.Errorf("%d bytes of unfinished frames", d.stagedBytes)
	}
	if err != nil {
		d.refuseLocked(from, badTransmitted, err)
		whole = nil
	}
	if err != nil || whole != nil {
		d.unstageLocked(key)
	}
	return whole
}

// maxStaged frames of one peer and carrier wait for parts at a time: it sends
// one after the other. Answers to pulls are as many as were asked for.
const maxStaged = 4

// makeRoomLocked lets the one go that has waited longest.
func (d *Replicator) makeRoomLocked(k stageKey) {
	if k.via == pulled {
		return
	}
	var oldest stageKey
	n := 0
	for other, s := range d.staged {
		if other.from != k.from || other.via != k.via {
			continue
		}
		if n++; n == 1 || s.touched < d.staged[oldest].touched {
			oldest = other
		}
	}
	if n >= maxStaged {
		d.metrics.refused.WithLabelValues(badTransmitted).Inc()
		d.unstageLocked(oldest)
	}
}

func (d *Replicator) unstageLocked(k stageKey) {
	if s := d.staged[k]; s != nil {
		d.stagedBytes -= s.bytes
		delete(d.staged, k)
	}
}

// wanted spares the work of decoding what is known already, or cannot be
// applied.
func (d *Replicator) wanted(from string, via Via, id registry.Life, m *pb.Frame) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.lives[id]
	if l == nil {
		_, member := d.members[id.Node]
		switch {
		case via == pulled: // it was forgotten meanwhile, and must not come back by that
			return false
		case !validLife(id), from != id.Node && !(member && id.Epoch >= d.epochs[id.Node]):
			d.refuseLocked(from, badOwner, fmt.Errorf("frame of %v", id))
			return false
		case d.earlyLocked(id):
			d.metrics.refused.WithLabelValues(badEarly).Inc()
			return false
		case d.fullLocked(id):
			d.refuseLocked(from, badTooMany, fmt.Errorf("frame of %v", id))
			return false
		case m.GetFrom() > 0 && !m.GetWhole():
			d.gapLocked(from, via, id, 0)
			return false
		}
		return true
	}
	switch to := m.GetTo(); {
	case to < l.applied, to == l.applied && !(m.GetWhole() && l.suspect):
		d.metrics.duplicates.Inc()
		d.ackLocked(from, l)
		return false
	case m.GetFrom() > l.applied && !m.GetWhole():
		d.gapLocked(from, via, id, l.applied)
		return false
	}
	return true
}

// gapLocked asks the sender of a stream to go back to what is applied here. A
// pull that runs already covers it, and gossip is expected to have gaps.
func (d *Replicator) gapLocked(from string, via Via, id registry.Life, applied uint64) {
	d.metrics.refused.WithLabelValues(badGap).Inc()
	if via == Gossip || via == pulled || d.pulling[id] != nil {
		return
	}
	p := d.peerLocked(from)
	if now := d.now(); p.asked[id] == nil || p.asked[id].applied != applied || now-p.asked[id].at > 1000 {
		p.asked[id] = &asked{applied: applied, at: now}
		p.pulls[id] = applied
		p.poke()
	}
}

type asked struct {
	applied uint64
	at      int64
}

// apply merges a frame into what this node has; true: it brought something.
func (d *Replicator) apply(f *frame, from string, via Via) bool {
	newest := registry.Stamp(0)
	for _, r := range f.records {
		newest = max(newest, r.clock)
	}
	d.mu.Lock()
	d.followLocked(newest) // before readers see it
	l := d.lives[f.life]
	if l == nil {
		l = d.makeLifeLocked(f.life)
		d.judgeLocked(l) // before its records are shown
	}
	empty := len(l.records) == 0
	news, absent, result := l.merge(f)
	switch result {
	case nothing:
		d.metrics.duplicates.Inc()
	case gap:
		d.gapLocked(from, via, f.life, l.applied)
	case merged:
		d.metrics.applied.Add(float64(len(news)))
		d.changes++
		if empty {
			// What comes now need not be shown twice, as an orphan's and then
			// as of the living.
			d.judgeLocked(l)
		}
		call, to := registryCall(f.life, news, absent, l.maxRecord), l.applied
		d.tellLocked(f.life, func(r Registry) {
			if call != nil {
				call(r)
			}
			d.mu.Lock()
			l.shown = max(l.shown, to)
			d.mu.Unlock()
		})
		for _, n := range news {
			if n.probe != nil {
				d.probedLocked(n.probe.Of)
			}
		}
		l.noteLag(d.now())
		if l.lag() == 0 {
			delete(d.peerLocked(from).asked, f.life)
		}
		d.judgeLocked(l)
	}
	d.ackLocked(from, l)
	d.mu.Unlock()
	d.carry(f.life)
	if result == merged {
		d.mu.Lock()
		d.readinessLocked(time.Now()) // only now is it shown
		d.mu.Unlock()
		d.carryAll() // a judgement may have changed another life's state
	}
	return result == merged
}

// registryCall tells the registry what a merge has changed, as one.
func registryCall(id registry.Life, news []decoded, absent []*record, clock registry.Stamp) func(Registry) {
	publications := 0
	for _, n := range news {
		if n.publication != nil {
			publications++
		}
	}
	records := make([]registry.Record, 0, publications)
	var probes []registry.Probe
	var checks []registry.Check
	for _, n := range news {
		if n.publication != nil {
			records = append(records, *n.publication)
		}
		if n.probe != nil {
			probes = append(probes, *n.probe)
		}
		if n.check != nil {
			c := *n.check
			c.By = id
			checks = append(checks, c)
		}
	}
	for _, r := range absent {
		if f, err := readFields(r.raw); err == nil && r.kind == kindPublication && !r.gone {
			if p := readPublication(f, nil); p != nil {
				gone := registry.Record{RecordKey: p.RecordKey, Kind: p.Kind, Clock: clock, Cause: registry.CauseReplaced, Gone: true}
				for _, i := range p.Instances { // what the forgotten tombstone said at least
					gone.Hides = append(gone.Hides, registry.Hide{InstanceKey: i.InstanceKey, UpTo: i.Since, Made: clock})
				}
				records = append(records, gone)
			}
		}
	}
	if len(records) == 0 && len(probes) == 0 && len(checks) == 0 {
		return nil
	}
	return func(r Registry) {
		if len(records) > 0 {
			r.Apply(id, records)
		}
		for _, p := range probes {
			r.Unanswered(p)
		}
		for _, c := range checks {
			r.Checked(c)
		}
	}
}

// ackLocked tells the owner of a life how far this node is, with the next
// message.
func (d *Replicator) ackLocked(from string, l *life) {
	if p := d.peers[from]; p != nil && from == l.id.Node {
		p.acks[l.id] = struct{}{}
		p.poke()
	}
}

func (d *Replicator) onAck(from string, m *pb.Ack) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if readLife(m.GetLife()) == d.self && m.GetApplied() <= d.own.applied {
		p := d.peerLocked(from)
		p.known = max(p.known, m.GetApplied())
	}
}

// onPull is the fallback of a peer whose Pull failed, or that has found a gap
// in the stream: it gets the frame like everything else.
func (d *Replicator) onPull(from string, m *pb.Pull) {
	id := readLife(m.GetLife())
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.peerLocked(from)
	switch l := d.lives[id]; {
	case l == nil:
	case l == d.own:
		if m.GetFrom() <= d.own.applied {
			p.sent, p.paced = m.GetFrom(), time.Time{}
			p.answerOwn = m.GetFrom() == 0 // a repair wants it though it has all versions
			p.poke()
		}
	default:
		p.answers[id] = m.GetFrom()
		p.poke()
	}
}

// relay gossips a frame of its owner once more: it reaches nodes that the owner
// cannot reach itself.
func (d *Replicator) relay(raw []byte) {
	d.mu.Lock()
	ok := d.opts.GossipFrames && d.gossip.take(time.Now(), d.opts.GossipPerSecond)
	d.mu.Unlock()
	if ok && d.opts.Peers.Broadcast(raw) {
		d.metrics.relayed.Inc()
	}
}
