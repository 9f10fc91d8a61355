package push

import (
	"time"

	"github.com/starling-registry/starling/pkg/registry"
)

// Who follows what, for people who ask. What is collected under a lock are
// pointers; pushes wait for no longer than for another fan-out.

// A Subscription is what is known of one subscription.
type Subscription struct {
	Subscriber string // the id given to Attach
	Conn       Conn   // likewise
	Service    registry.ServiceKey
	Clusters   string         // as the client wrote them; "": all
	Pushed     registry.Stamp // version of the last picture sent
	Acked      registry.Stamp // version of the last one acknowledged; 0: none
	// AckedTime is the lastRefTime (milliseconds) of the newest list that the
	// client has acknowledged; 0: none.
	AckedTime int64
	// Behind is since when there is something that the client has not
	// acknowledged: it was sent, refused, or waits because the client does not
	// read. Zero: the client has everything. Changes that wait for their
	// window do not count.
	Behind time.Time
}

// Subscriptions lists the subscribers of a service on this node, in no order.
// One is behind if it has acknowledged less than the snapshot's version.
func (e *Engine) Subscriptions(key registry.ServiceKey) []Subscription {
	sh := e.shard(key)
	sh.mu.Lock()
	var subs []*subscription
	if t := sh.topics[key]; t != nil {
		subs = make([]*subscription, 0, len(t.subs))
		for s := range t.subs {
			subs = append(subs, s)
		}
	}
	sh.mu.Unlock()
	out := make([]Subscription, 0, len(subs))
	for _, s := range subs {
		s.subscriber.mu.Lock()
		if !s.gone {
			out = append(out, s.tellLocked())
		}
		s.subscriber.mu.Unlock()
	}
	return out
}

// Followed lists the services of a namespace that have subscribers on this
// node, in no order.
func (e *Engine) Followed(namespace string) []registry.ServiceKey {
	var keys []registry.ServiceKey
	for i := range e.shards {
		sh := &e.shards[i]
		sh.mu.Lock()
		for key, t := range sh.topics {
			if key.Namespace == namespace && len(t.subs) > 0 {
				keys = append(keys, key)
			}
		}
		sh.mu.Unlock()
	}
	return keys
}

// Subscriptions lists what the client subscribes to, in no order.
func (s *Subscriber) Subscriptions() []Subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Subscription, 0, len(s.subs))
	for _, sub := range s.subs {
		out = append(out, sub.tellLocked())
	}
	return out
}

func (s *subscription) tellLocked() Subscription {
	return Subscription{Subscriber: s.subscriber.id, Conn: s.subscriber.conn, Service: s.key, Clusters: s.filter.Clusters,
		Pushed: s.pushed, Acked: s.acked, AckedTime: s.ackedTime, Behind: s.behindLocked()}
}

func (s *subscription) behindLocked() time.Time {
	since := s.refused
	earlier := func(t time.Time) {
		if since.IsZero() || t.Before(since) {
			since = t
		}
	}
	if len(s.out) > 0 {
		earlier(s.out[0].at)
	}
	if s.dirty && !s.marked.IsZero() {
		earlier(s.marked)
	}
	return since
}

// BehindFor is for how long the client has been behind; 0: it is not.
func (s *Subscription) BehindFor(now time.Time) time.Duration {
	if s.Behind.IsZero() {
		return 0
	}
	return max(0, now.Sub(s.Behind))
}
