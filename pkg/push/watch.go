package push

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

// Fuzzy watch: which services there are, by a pattern (semantics S9–S16). As
// with pushes, a mark carries only a key, and what is true is looked up when
// the message is sent: a service that came and went meanwhile is one message.

// A watch follows one pattern for one connection; guarded by the subscriber's
// mutex, but for the constants.
type watch struct {
	subscriber *Subscriber
	text       string // the pattern as the client wrote it: it is echoed
	pattern    nacos.Pattern

	gone  bool
	timer *time.Timer // of the first message after a comparison

	queued  bool            // in the subscriber's watchQueue
	queue   []*watchMessage // to be sent: first the comparison, then changes
	changed map[registry.ServiceKey]bool
	out     []*watchMessage // sent and not acknowledged, oldest first

	// initial counts the messages of the initial comparison without an ack;
	// after the last one the client is told that it has everything.
	initial int
	round   int // of comparisons
}

// A watchMessage is a part of a comparison, or a service to look at.
type watchMessage struct {
	sync    *nacos.FuzzySync // nil: a change
	round   int
	key     registry.ServiceKey
	retried bool

	id uint64 // of the last sending
	at time.Time
}

const (
	syncBatch = 10 // services in one message, as in Nacos
	// maxWatchFlight bounds the messages of a watch without an ack. What
	// comes beyond waits in the queue, each service once.
	maxWatchFlight = 64
	// maxWatchChanges bounds the services that wait there; a client so far
	// behind is dropped, and compares notes when it is back.
	maxWatchChanges = 10_000
	// maxGone bounds the services that a comparison takes back; the client is
	// told of the others when it compares again, a few minutes later.
	maxGone = 10_000
	// maxKey is longer than the name of any service is, in bytes.
	maxKey = 4 << 10
)

// Errors of [Subscriber.Watch].
var (
	ErrTooManyPatterns = errors.New(nacos.MsgPatternOverLimit) // not watched
	ErrTooManyMatches  = errors.New(nacos.MsgMatchOverLimit)   // watched; the first of them are sent
)

// A watchIndex finds the watches that a service concerns. Lock order: a
// subscriber's mutex, then the index's.
type watchIndex struct {
	mu       sync.RWMutex
	patterns map[nacos.Pattern]map[*watch]struct{}
}

func (x *watchIndex) add(w *watch, limit int) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.patterns[w.pattern] == nil {
		if len(x.patterns) >= limit {
			return ErrTooManyPatterns
		}
		x.patterns[w.pattern] = map[*watch]struct{}{}
	}
	x.patterns[w.pattern][w] = struct{}{}
	return nil
}

func (x *watchIndex) remove(w *watch) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.patterns[w.pattern], w)
	if len(x.patterns[w.pattern]) == 0 {
		delete(x.patterns, w.pattern)
	}
}

func (x *watchIndex) concerned(key registry.ServiceKey) []*watch {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var ws []*watch
	for p, set := range x.patterns {
		if p.Match(key) {
			for w := range set {
				ws = append(ws, w)
			}
		}
	}
	return ws
}

// MarkPresence says that a service came or went.
func (e *Engine) MarkPresence(key registry.ServiceKey) {
	for _, w := range e.watches.concerned(key) {
		w.subscriber.note(w, key)
	}
}

// Watch starts to follow a pattern, or compares notes again: the client is
// sent what it does not know yet and what it knows in vain (semantics S11).
// The messages follow one merge window later, so that they cannot overtake the
// answer of the request.
//
// Beyond [Options.MaxPerSubscriber] it returns [ErrTooMany] and does nothing.
func (s *Subscriber) Watch(text string, p nacos.Pattern, known []string, initializing bool) error {
	opts := &s.engine.opts
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	w := s.watches[text]
	if w == nil {
		if s.fullLocked() {
			s.mu.Unlock()
			return ErrTooMany
		}
		w = &watch{subscriber: s, text: text, pattern: p, changed: map[registry.ServiceKey]bool{}}
		w.timer = time.AfterFunc(opts.MinWindow, func() { s.resume(w) })
		// In the index before the services are listed: what comes after
		// is a change.
		if err := s.engine.watches.add(w, opts.MaxPatterns); err != nil {
			w.timer.Stop()
			s.mu.Unlock()
			s.engine.metrics.patternsRefused.Inc()
			return err
		}
		if s.watches == nil {
			s.watches = map[string]*watch{}
		}
		s.watches[text] = w
	}
	s.mu.Unlock()

	syncs, over := compare(text, p, opts.Source.PresentIn(p.Namespace), known, initializing, opts.MaxMatches)

	s.mu.Lock()
	defer s.mu.Unlock()
	if w.gone {
		return nil
	}
	// What is left of an earlier comparison is void, and so are its acks.
	w.round++
	changes := slices.DeleteFunc(w.queue, func(m *watchMessage) bool { return m.sync != nil })
	w.queue, w.initial = nil, 0
	for _, sync := range syncs {
		w.queue = append(w.queue, &watchMessage{sync: sync, round: w.round})
		if sync.Type == nacos.SyncInit {
			w.initial++
		}
	}
	w.queue = append(w.queue, changes...)
	for _, m := range w.out {
		delete(s.pending, m.id)
	}
	w.out = nil
	w.timer.Stop()
	w.timer = time.AfterFunc(opts.MinWindow, func() { s.resume(w) })
	if over {
		s.engine.metrics.matchesExceeded.Inc()
		return ErrTooManyMatches
	}
	return nil
}

// compare lists what a client must be told to know exactly the services that
// match, in messages of ten. over reports that there are more than max; the
// client is told of the first max. What comes of known is bounded as well: a
// client could make up any number of services that it knows.
func compare(text string, p nacos.Pattern, present []registry.ServiceKey, known []string, initializing bool, max int) (syncs []*nacos.FuzzySync, over bool) {
	knows := make(map[string]bool, len(known))
	for _, k := range known {
		knows[k] = true
	}
	var changes []nacos.FuzzyChange
	var matches []string
	for _, key := range present {
		if p.Match(key) {
			matches = append(matches, nacos.FuzzyKey(key))
		}
	}
	slices.Sort(matches)
	for i, k := range matches {
		if i < max && !knows[k] {
			changes = append(changes, nacos.FuzzyChange{Key: k})
		}
		delete(knows, k)
	}
	gone := 0
	for k := range knows {
		if len(k) > maxKey {
			continue
		}
		if gone++; gone > maxGone {
			break
		}
		changes = append(changes, nacos.FuzzyChange{Key: k, Gone: true})
	}
	slices.SortFunc(changes, func(a, b nacos.FuzzyChange) int { return strings.Compare(a.Key, b.Key) })
	typ := nacos.SyncDiff
	if initializing {
		typ = nacos.SyncInit
	}
	total := (len(changes) + syncBatch - 1) / syncBatch
	for batch := range slices.Chunk(changes, syncBatch) {
		syncs = append(syncs, &nacos.FuzzySync{Type: typ, Pattern: text, Changes: batch, Current: len(syncs) + 1, Total: total})
	}
	if initializing && len(syncs) == 0 {
		syncs = append(syncs, finish(text))
	}
	return syncs, len(matches) > max
}

func finish(text string) *nacos.FuzzySync {
	return &nacos.FuzzySync{Type: nacos.SyncFinish, Pattern: text, Current: 1, Total: 1}
}

// Unwatch ends a watch; there need not be one.
func (s *Subscriber) Unwatch(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.watches[text]; w != nil {
		s.endWatchLocked(w)
		delete(s.watches, text)
	}
}

func (s *Subscriber) endWatchLocked(w *watch) {
	w.gone = true
	w.timer.Stop()
	for _, m := range w.out {
		delete(s.pending, m.id)
	}
	s.engine.watches.remove(w)
}

// note puts a service on the list of what a watch has to look at.
func (s *Subscriber) note(w *watch, key registry.ServiceKey) {
	s.mu.Lock()
	switch {
	case w.gone || w.changed[key]:
		s.mu.Unlock()
	case len(w.changed) >= maxWatchChanges:
		s.mu.Unlock()
		s.engine.metrics.dropped.Inc()
		s.conn.Drop(registry.CauseNoAck)
	default:
		w.queue, w.changed[key] = append(w.queue, &watchMessage{key: key}), true
		s.mu.Unlock()
		s.resume(w)
	}
}

// resume lets a watch send, if it has something to send and may.
func (s *Subscriber) resume(w *watch) {
	s.mu.Lock()
	wake := s.enqueueWatchLocked(w)
	s.mu.Unlock()
	if wake {
		s.conn.Wake()
	}
}

func (s *Subscriber) enqueueWatchLocked(w *watch) (wake bool) {
	if w.gone || w.queued || len(w.queue) == 0 || len(w.out) >= maxWatchFlight {
		return false
	}
	w.queued = true
	s.watchQueue = append(s.watchQueue, w)
	return true
}

// nextWatch is Next for watches; nil: nothing to send.
func (s *Subscriber) nextWatch() *nacos.Payload {
	s.mu.Lock()
	var w *watch
	for w == nil || w.gone || len(w.queue) == 0 {
		if len(s.watchQueue) == 0 {
			s.watchQueue = nil
			s.mu.Unlock()
			return nil
		}
		w, s.watchQueue = s.watchQueue[0], s.watchQueue[1:]
		w.queued = false
	}
	m := w.queue[0]
	w.queue = w.queue[1:]
	if m.sync == nil {
		delete(w.changed, m.key) // from here on it is a new change
	}
	m.id, m.at = s.engine.ids.Add(1), time.Now()
	id, key, sync := m.id, m.key, m.sync
	w.out = append(w.out, m)
	s.pendingLocked(id, w)
	s.enqueueWatchLocked(w) // the sender is at work: no need to wake it
	s.mu.Unlock()
	if sync != nil {
		return sync.Payload(id)
	}
	return nacos.FuzzyChange{Key: nacos.FuzzyKey(key), Gone: !s.engine.opts.Source.Present(key)}.Payload(id)
}

// settleLocked implements pendingMessage.
func (w *watch) settleLocked(id uint64, ok bool) (wake bool) {
	s := w.subscriber
	delete(s.pending, id)
	i := slices.IndexFunc(w.out, func(m *watchMessage) bool { return m.id == id })
	m := w.out[i]
	w.out = slices.Delete(w.out, i, i+1)
	switch {
	case !ok && !m.retried:
		m.retried = true
		time.AfterFunc(s.engine.opts.RetryAfter, func() { s.sendAgain(w, m) })
	case ok && m.sync != nil && m.sync.Type == nacos.SyncInit:
		if w.initial--; w.initial == 0 {
			w.queue = slices.Insert(w.queue, 0, &watchMessage{sync: finish(w.text), round: w.round})
		}
	}
	return s.enqueueWatchLocked(w)
}

// sendAgain repeats a message that the client has refused, once. A client that
// refuses twice has a reason; it compares notes every few minutes anyway.
func (s *Subscriber) sendAgain(w *watch, m *watchMessage) {
	s.mu.Lock()
	switch {
	case m.sync == nil && !w.changed[m.key]:
		w.changed[m.key] = true
		w.queue = append(w.queue, m)
	case m.sync != nil && m.round == w.round:
		w.queue = slices.Insert(w.queue, 0, m)
	}
	s.mu.Unlock()
	s.resume(w)
}
