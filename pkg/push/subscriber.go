package push

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

// A Subscriber is a connection's side of the engine. Its methods may be called
// from any goroutine, Next and Sent only from the connection's one sender.
type Subscriber struct {
	engine *Engine
	id     string
	conn   Conn

	mu      sync.Mutex
	closed  bool
	subs    map[registry.ServiceKey]*subscription
	dirty   []*subscription           // each once, in the order they became dirty
	pending map[uint64]pendingMessage // sent and not acknowledged, by request id
	busy    bool                      // between Next and Sent: the transport may be without credit

	watches    map[string]*watch // by the pattern as the client wrote it
	watchQueue []*watch          // that have something to send, each once

	// What Next gave out last; the sender's goroutine only.
	sending struct {
		fanout *fanout
		marked time.Time
	}
}

// A pendingMessage is told the client's answer, and takes the id and what else
// is settled by it out of pending. It reports whether the sender is to be
// woken.
type pendingMessage interface {
	settleLocked(id uint64, ok bool) (wake bool)
}

// A subscription is one service of one subscriber; guarded by its mutex, but
// for the constants.
type subscription struct {
	subscriber *Subscriber
	key        registry.ServiceKey

	filter registry.Filter
	gone   bool

	dirty  bool
	forced bool      // to be sent even if the client has it
	fanout *fanout   // of the push that it waits to send, while dirty
	marked time.Time // when the change came that it waits to send

	pushed registry.Stamp // nothing newer would bring the client anything
	hash   uint64         // of the content pushed last
	sent   bool           // anything at all
	// answered is when the client was last given other content than the last
	// push, in an answer; zero: not since that push. What the client shows
	// then is anybody's guess: some SDKs use an answer and some drop it.
	answered time.Time

	out       []outstanding // oldest first
	acked     registry.Stamp
	ackedTime int64       // lastRefTime of that list
	refused   time.Time   // when what the client refused was sent; zero: it has taken something since
	retried   bool        // the content pushed last
	timer     *time.Timer // first push, or the push after an answer
	retry     *time.Timer
}

// An outstanding push waits for its ack.
type outstanding struct {
	id          uint64
	version     registry.Stamp
	lastRefTime int64
	at          time.Time
}

// maxOutstanding bounds the pushes of one subscription whose acks are matched
// one by one; of more than these only the age of the oldest is kept.
const maxOutstanding = 32

// An offer is a picture of a service that a subscription should look at.
type offer struct {
	snap   *registry.Snapshot // nil: send whatever is newest, even if known
	fanout *fanout
	marked time.Time
}

// Attach adds a connection. Close removes it.
func (e *Engine) Attach(id string, conn Conn) *Subscriber {
	s := &Subscriber{engine: e, id: id, conn: conn}
	e.mu.Lock()
	e.subscribers[s] = struct{}{}
	e.mu.Unlock()
	return s
}

// Subscribe adds a subscription or changes its cluster filter (semantics E3).
// The first subscription of a service is followed by a push even if nothing
// changes: SDKs throw the answer of a repeated subscribe away and rely on it
// (grpc-protocol §0 rule 10). That push waits one merge window, so that it
// cannot overtake the answer of the request that asked for it.
//
// It must be called before the answer's snapshot is taken, and Answered
// after: then a change is either in the answer or pushed.
//
// Beyond [Options.MaxPerSubscriber] it returns [ErrTooMany] and does nothing.
func (s *Subscriber) Subscribe(key registry.ServiceKey, clusters string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	filter := registry.Filter{Clusters: clusters}
	if sub := s.subs[key]; sub != nil {
		sub.filter = filter
		return nil
	}
	if s.fullLocked() {
		return ErrTooMany
	}
	sub := &subscription{subscriber: s, key: key, filter: filter}
	sub.timer = time.AfterFunc(s.engine.opts.MinWindow, func() { s.offer(sub, offer{}) })
	if s.subs == nil {
		s.subs = map[registry.ServiceKey]*subscription{}
	}
	s.subs[key] = sub
	// Under the lock, so that a Close or Unsubscribe that follows finds it.
	// The engine never takes a subscriber's lock while it holds a shard's.
	s.engine.addSubscription(sub)
	return nil
}

// ErrTooMany says that a connection follows as many services and patterns as
// it may.
var ErrTooMany = errors.New("too many subscriptions and watches of one connection")

func (s *Subscriber) fullLocked() bool {
	limit := s.engine.opts.MaxPerSubscriber
	return limit > 0 && len(s.subs)+len(s.watches) >= limit
}

// Answered says that the client was given this content of a service in the
// answer to a request. If it subscribes to the service and the content is not
// what it was pushed last, the next picture is pushed whatever it is: the
// client may show either.
func (s *Subscriber) Answered(key registry.ServiceKey, snap *registry.Snapshot, content *registry.Encoding) {
	s.mu.Lock()
	sub := s.subs[key]
	if sub == nil || !sub.sent || sub.hash == content.Hash {
		s.mu.Unlock() // the first push is still to come, or all is well
		return
	}
	sub.answered = time.Now()
	s.mu.Unlock()
	if s.engine.opts.Source.Snapshot(key).Version != snap.Version {
		// It changed meanwhile, and may have been found unchanged to what was
		// pushed before sub.answered was set.
		s.pushAgain(sub)
	}
}

// pushAgain looks at a subscription one window later.
func (s *Subscriber) pushAgain(sub *subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sub.gone {
		return
	}
	sub.timer.Stop()
	sub.timer = time.AfterFunc(s.engine.opts.MinWindow, func() {
		s.offer(sub, offer{snap: s.engine.opts.Source.Snapshot(sub.key)})
	})
}

// Unsubscribe ends a subscription, whatever its clusters.
func (s *Subscriber) Unsubscribe(key registry.ServiceKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sub := s.subs[key]; sub != nil {
		s.endLocked(sub)
		delete(s.subs, key)
	}
}

// Close ends all subscriptions and watches.
func (s *Subscriber) Close() {
	s.engine.mu.Lock()
	delete(s.engine.subscribers, s)
	s.engine.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, sub := range s.subs {
		s.endLocked(sub)
	}
	for _, w := range s.watches {
		s.endWatchLocked(w)
	}
	s.subs, s.dirty, s.watches, s.watchQueue, s.pending = nil, nil, nil, nil, nil
}

func (s *Subscriber) endLocked(sub *subscription) {
	sub.gone = true
	if sub.dirty && !s.closed {
		s.dirty = slices.DeleteFunc(s.dirty, func(o *subscription) bool { return o == sub })
	}
	sub.stopTimers()
	sub.fanout.done()
	sub.fanout = nil
	for _, o := range sub.out {
		delete(s.pending, o.id)
	}
	s.engine.removeSubscription(sub)
}

func (s *subscription) stopTimers() {
	s.timer.Stop()
	if s.retry != nil {
		s.retry.Stop()
	}
}

func (s *Subscriber) stopTimers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sub := range s.subs {
		sub.stopTimers()
	}
	for _, w := range s.watches {
		w.timer.Stop()
	}
}

// has reports whether the client has the content for sure.
func (s *subscription) has(hash uint64) bool {
	return s.sent && s.hash == hash && s.answered.IsZero()
}

// upTo says that the client needs nothing of a version: it brings nothing that
// it has not been pushed.
func (s *subscription) upTo(v registry.Stamp) {
	if v > s.pushed {
		if s.acked == s.pushed {
			s.acked = v
		}
		s.pushed = v
	}
}

// offer puts a subscription into the dirty set, unless what is offered is what
// its client got last.
func (s *Subscriber) offer(sub *subscription, o offer) {
	s.mu.Lock()
	filter := sub.filter
	s.mu.Unlock()
	var content uint64
	if o.snap != nil {
		content = o.snap.Encode(filter, nacos.EncodeHosts).Hash
	}
	s.mu.Lock()
	if s.busy { // since before the lock was let go, or not: it does not matter
		o.fanout.done()
		o.fanout = nil
	}
	switch {
	case sub.gone:
		o.fanout.done()
	case sub.dirty: // it is on its way already and will take the newest
		sub.fanout.done()
		sub.fanout = o.fanout
		sub.forced = sub.forced || o.snap == nil
		s.engine.metrics.superseded.Inc()
	case o.snap != nil && sub.filter == filter && sub.has(content):
		o.fanout.done()
		sub.upTo(o.snap.Version)
		s.engine.metrics.unchanged.Inc()
	default:
		sub.dirty, sub.fanout, sub.marked, sub.forced = true, o.fanout, o.marked, o.snap == nil
		s.dirty = append(s.dirty, sub)
		s.mu.Unlock()
		s.conn.Wake()
		return
	}
	s.mu.Unlock()
}

// Pending reports whether Next may have something.
func (s *Subscriber) Pending() bool {
	if s.engine.held.Load() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.dirty)+len(s.watchQueue) > 0
}

// Next returns what to send next, or nil if there is nothing: the newest
// picture of a dirty service, or what a watch has to tell. After it is sent,
// Sent is to be called before the next Next.
func (s *Subscriber) Next() *nacos.Payload {
	for {
		if s.engine.held.Load() {
			return nil // Hold wakes the sender
		}
		s.mu.Lock()
		if len(s.dirty) == 0 {
			s.dirty = nil // let a burst's backing array go
			s.mu.Unlock()
			return s.nextWatch()
		}
		sub := s.dirty[0]
		s.dirty = s.dirty[1:]
		// From here on a change makes it dirty again.
		sub.dirty = false
		forced, filter := sub.forced, sub.filter
		f, marked := sub.fanout, sub.marked
		sub.fanout, sub.marked = nil, time.Time{}
		s.mu.Unlock()

		snap, at := s.engine.opts.Source.Serve(sub.key)
		enc := snap.Encode(filter, nacos.EncodeHosts)

		s.mu.Lock()
		if sub.gone || !forced && sub.has(enc.Hash) {
			sub.upTo(snap.Version)
			f.done()
			s.mu.Unlock()
			continue
		}
		if sub.hash != enc.Hash {
			sub.retried = false
		}
		sub.pushed, sub.hash, sub.sent = snap.Version, enc.Hash, true
		again := false
		if !sub.answered.IsZero() || sub.filter != filter {
			// An answer that was on its way when this was made may arrive
			// after it, and then overwrites it. So once more, later.
			if again = time.Since(sub.answered) < s.engine.opts.MinWindow || sub.filter != filter; !again {
				sub.answered = time.Time{}
			}
		}
		id := s.engine.ids.Add(1)
		if len(sub.out) == maxOutstanding {
			delete(s.pending, sub.out[1].id)
			sub.out = slices.Delete(sub.out, 1, 2) // the oldest keeps the age
		}
		sub.out = append(sub.out, outstanding{id, snap.Version, at, time.Now()})
		s.pendingLocked(id, sub)
		s.mu.Unlock()
		if again {
			s.pushAgain(sub)
		}
		s.sending.fanout, s.sending.marked = f, marked
		return nacos.NotifySubscriberRequest(nacos.ServiceInfo{
			Name: sub.key.Name, Group: sub.key.Group, Clusters: &filter.Clusters, LastRefTime: at, CacheMillis: s.engine.opts.CacheMillis(), Hosts: enc.Bytes,
		}, id)
	}
}

func (s *Subscriber) pendingLocked(id uint64, m pendingMessage) {
	if s.pending == nil {
		s.pending = map[uint64]pendingMessage{}
	}
	s.pending[id] = m
	s.busy = true
}

// Sent says that the last payload of Next was handed to the transport, or (ok
// false) that the transport has gone.
func (s *Subscriber) Sent(ok bool) {
	s.sending.fanout.done()
	marked := s.sending.marked
	s.sending.fanout, s.sending.marked = nil, time.Time{}
	s.mu.Lock()
	s.busy = false
	s.mu.Unlock()
	if !ok {
		return
	}
	s.engine.metrics.sent.Inc()
	if !marked.IsZero() {
		s.engine.metrics.markToSend.Observe(time.Since(marked).Seconds())
	}
}

// NextID returns a request id for a message that is no push, unique among all
// of them.
func (e *Engine) NextID() uint64 { return e.ids.Add(1) }

// Acked takes a client's answer to the message with the given id and reports
// whether there was such a message. What was refused is sent again once.
func (s *Subscriber) Acked(id uint64, ok bool) bool {
	s.mu.Lock()
	m := s.pending[id]
	if m == nil {
		s.mu.Unlock()
		return false
	}
	if ok {
		s.engine.metrics.acked.Inc()
	} else {
		s.engine.metrics.refused.Inc()
	}
	wake := m.settleLocked(id, ok)
	s.mu.Unlock()
	if wake {
		s.conn.Wake()
	}
	return true
}

// settleLocked implements pendingMessage. It also settles the earlier pushes
// of the service: their answers need not come.
func (s *subscription) settleLocked(id uint64, ok bool) (wake bool) {
	e := s.subscriber.engine
	oldest := s.out[0].at // while it is pending it is among them
	for i, o := range s.out {
		delete(s.subscriber.pending, o.id)
		if o.id != id {
			continue
		}
		s.out = slices.Delete(s.out, 0, i+1)
		cost := time.Since(o.at)
		e.metrics.sendToAck.Observe(cost.Seconds())
		e.results.add(ok, cost)
		if ok {
			s.acked, s.ackedTime = max(s.acked, o.version), max(s.ackedTime, o.lastRefTime)
		}
		break
	}
	if ok {
		s.refused, s.retried = time.Time{}, false
		if s.retry != nil {
			s.retry.Stop() // of an older one
		}
		return false
	}
	if s.refused.IsZero() {
		s.refused = oldest
	}
	if !s.retried {
		s.retried = true
		s.retry = time.AfterFunc(e.opts.RetryAfter, func() { s.subscriber.offer(s, offer{}) })
	}
	return false
}

// silent reports whether at the given time a message had waited for its ack
// for longer than d.
func (s *Subscriber) silent(now time.Time, d time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pending) == 0 {
		return false
	}
	for _, sub := range s.subs {
		if len(sub.out) > 0 && now.Sub(sub.out[0].at) > d {
			return true
		}
	}
	for _, w := range s.watches {
		if len(w.out) > 0 && now.Sub(w.out[0].at) > d {
			return true
		}
	}
	return false
}
