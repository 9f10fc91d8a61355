package push

import (
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
	dirty   []*subscription          // each once, in the order they became dirty
	pending map[uint64]*subscription // pushes under way, by request id
	busy    bool                     // between Next and Sent: the transport may be without credit

	// What Next gave out last; the sender's goroutine only.
	sending struct {
		fanout *fanout
		marked time.Time
	}
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

	pushed registry.Stamp
	hash   uint64 // of the content pushed last
	sent   bool   // anything at all

	out     []outstanding // oldest first
	acked   registry.Stamp
	retried bool
	timer   *time.Timer // first push, or retry
}

// An outstanding push waits for its ack.
type outstanding struct {
	id      uint64
	version registry.Stamp
	at      time.Time
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
// It must be called before the answer's snapshot is taken: then a change is
// either in the answer or pushed.
func (s *Subscriber) Subscribe(key registry.ServiceKey, clusters string) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	filter := registry.Filter{Clusters: clusters}
	if sub := s.subs[key]; sub != nil {
		sub.filter = filter
		s.mu.Unlock()
		return
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
	s.mu.Unlock()
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

// Subscribed reports how many services the connection subscribes to.
func (s *Subscriber) Subscribed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.subs)
}

// Close ends all subscriptions.
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
	s.subs, s.dirty, s.pending = nil, nil, nil
}

func (s *Subscriber) endLocked(sub *subscription) {
	sub.gone = true
	if sub.timer != nil {
		sub.timer.Stop()
	}
	sub.fanout.done()
	sub.fanout = nil
	for _, o := range sub.out {
		delete(s.pending, o.id)
	}
	s.engine.removeSubscription(sub)
}

func (s *Subscriber) stopTimers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sub := range s.subs {
		if sub.timer != nil {
			sub.timer.Stop()
		}
	}
}

// offer puts a subscription into the dirty set, unless what is offered is what
// its client got last.
func (s *Subscriber) offer(sub *subscription, o offer) {
	s.mu.Lock()
	filter := sub.filter
	if s.busy {
		o.fanout.done()
		o.fanout = nil
	}
	s.mu.Unlock()
	var content uint64
	if o.snap != nil {
		content = o.snap.Encode(filter, nacos.EncodeHosts).Hash
	}
	s.mu.Lock()
	switch {
	case sub.gone:
		o.fanout.done()
	case sub.dirty: // it is on its way already and will take the newest
		sub.fanout.done()
		sub.fanout = o.fanout
		sub.forced = sub.forced || o.snap == nil
		s.engine.metrics.superseded.Inc()
	case o.snap != nil && sub.sent && sub.hash == content:
		o.fanout.done()
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
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.dirty) > 0
}

// Next takes a service from the dirty set and returns its newest picture to
// send, or nil if there is nothing to send. After it is sent, Sent is to be
// called before the next Next.
func (s *Subscriber) Next() *nacos.Payload {
	for {
		s.mu.Lock()
		if len(s.dirty) == 0 {
			s.dirty = nil // let a burst's backing array go
			s.mu.Unlock()
			return nil
		}
		sub := s.dirty[0]
		s.dirty = s.dirty[1:]
		if sub.gone {
			s.mu.Unlock()
			continue
		}
		// From here on a change makes it dirty again.
		sub.dirty = false
		forced, filter := sub.forced, sub.filter
		f, marked := sub.fanout, sub.marked
		sub.fanout, sub.marked = nil, time.Time{}
		s.mu.Unlock()

		snap, at := s.engine.opts.Source.Serve(sub.key)
		enc := snap.Encode(filter, nacos.EncodeHosts)

		s.mu.Lock()
		if sub.gone || !forced && sub.sent && sub.hash == enc.Hash {
			f.done()
			s.mu.Unlock()
			continue
		}
		id := s.engine.ids.Add(1)
		sub.pushed, sub.hash, sub.sent = snap.Version, enc.Hash, true
		if len(sub.out) == maxOutstanding {
			delete(s.pending, sub.out[1].id)
			sub.out = append(sub.out[:1], sub.out[2:]...) // the oldest keeps the age
		}
		sub.out = append(sub.out, outstanding{id, snap.Version, time.Now()})
		if s.pending == nil {
			s.pending = map[uint64]*subscription{}
		}
		s.pending[id] = sub
		s.busy = true
		s.mu.Unlock()
		s.sending.fanout, s.sending.marked = f, marked
		return nacos.NotifySubscriberRequest(nacos.ServiceInfo{
			Name: sub.key.Name, Group: sub.key.Group, Clusters: &filter.Clusters, LastRefTime: at, Hosts: enc.Bytes,
		}, id)
	}
}

// Sent says that the last payload of Next was handed to the transport, or (ok
// false) that the transport has gone.
func (s *Subscriber) Sent(ok bool) {
	s.sending.fanout.done()
	s.mu.Lock()
	s.busy = false
	s.mu.Unlock()
	if !ok {
		return
	}
	s.engine.metrics.sent.Inc()
	if !s.sending.marked.IsZero() {
		s.engine.metrics.markToSend.Observe(time.Since(s.sending.marked).Seconds())
	}
}

// NextID returns a request id for a message that is no push, unique among all
// of them.
func (e *Engine) NextID() uint64 { return e.ids.Add(1) }

// Acked takes a client's answer to the push with the given id and reports
// whether there was such a push. It also settles the earlier ones of the same
// service: their answers need not come. A refused push is sent again once.
func (s *Subscriber) Acked(id uint64, ok bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sub := s.pending[id]
	if sub == nil {
		return false
	}
	for i, o := range sub.out {
		delete(s.pending, o.id)
		if o.id != id {
			continue
		}
		sub.out = append(sub.out[:0], sub.out[i+1:]...)
		s.engine.metrics.sendToAck.Observe(time.Since(o.at).Seconds())
		if ok {
			sub.acked, sub.retried = o.version, false
			s.engine.metrics.acked.Inc()
		}
		break
	}
	if !ok {
		s.engine.metrics.refused.Inc()
		if !sub.retried {
			sub.retried = true
			sub.timer = time.AfterFunc(s.engine.opts.RetryAfter, func() { s.offer(sub, offer{}) })
		}
	}
	return true
}

// silent reports whether a push has waited for its ack for longer than d.
func (s *Subscriber) silent(d time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pending) == 0 {
		return false
	}
	for _, sub := range s.subs {
		if len(sub.out) > 0 && time.Since(sub.out[0].at) > d {
			return true
		}
	}
	return false
}
