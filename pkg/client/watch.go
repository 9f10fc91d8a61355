package client

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

// A Watcher tells what a service consists of, and from then on what changes. It
// is told by Next, by C, or by the function of WatchFunc: use one of them.
//
// The first event comes exactly once, after a server has confirmed a list, be it
// an empty one (L-2); with [StaleOK] also of an older list. After that the newest
// list wins: a slow watcher gets fewer events, and what each says to be added,
// removed and modified is the difference from the event before (L-5). Lists that
// differ only in what the query leaves out are no event.
type Watcher struct {
	e    *svc
	q    query
	fn   func(Event) // of WatchFunc
	wake signal
	done chan struct{}
	once sync.Once
	stop func() bool // of the context

	turn    chan struct{} // held by who makes the next event; it owns:
	last    *list
	seen    []Instance // shared
	started bool
	refused error // the last that Next has returned

	mu      sync.Mutex
	events  chan Event // of C
	running bool       // fn has a goroutine
}

// Watch follows a service. It returns at once, also without a connection, and the
// watcher lives until it is closed or the context ends. The errors are
// [ErrInvalid] and [ErrClosed].
//
// The subscription is shared by all watchers and readers of the service; it ends
// with the last watcher, unless the service is read too (Config.IdleTTL).
func (c *Client) Watch(ctx context.Context, service string, opts ...QueryOption) (*Watcher, error) {
	return c.watch(ctx, service, nil, opts)
}

// WatchFunc calls fn for each event, for one at a time, on a goroutine that there
// is only while there is something to tell. A panic of fn is logged, and the
// next event comes all the same. After stop, which does not wait for a call that
// is being made, or the end of the context, no call begins.
func (c *Client) WatchFunc(ctx context.Context, service string, fn func(Event), opts ...QueryOption) (stop func(), err error) {
	if fn == nil {
		return nil, fmt.Errorf("%w: no function", ErrInvalid)
	}
	w, err := c.watch(ctx, service, fn, opts)
	if err != nil {
		return nil, err
	}
	return w.Close, nil
}

func (c *Client) watch(ctx context.Context, service string, fn func(Event), opts []QueryOption) (*Watcher, error) {
	if err := c.open(); err != nil {
		return nil, err
	}
	q := queryOf(opts)
	id, err := identify(service, q.group)
	if err != nil {
		return nil, err
	}
	if err := q.check(); err != nil {
		return nil, err
	}
	if q.noSubscribe {
		return nil, fmt.Errorf("%w: a watcher subscribes", ErrInvalid)
	}
	e := c.entry(id)
	w := &Watcher{e: e, q: q, fn: fn, wake: newSignal(), done: make(chan struct{}), turn: make(chan struct{}, 1)}
	e.mu.Lock()
	e.watchers = append(e.watchers, w)
	e.mu.Unlock()
	if ctx.Err() != nil {
		w.Close()
		return w, nil
	}
	e.want()
	w.mark()
	w.mu.Lock()
	w.stop = context.AfterFunc(ctx, w.Close)
	w.mu.Unlock()
	return w, nil
}

// Close ends the watcher; Next returns [ErrClosed] from then on, and the channel
// of C is closed. It may be called from any goroutine and more than once.
func (w *Watcher) Close() {
	w.once.Do(func() {
		close(w.done)
		w.e.mu.Lock()
		w.e.watchers = slices.DeleteFunc(w.e.watchers, func(o *Watcher) bool { return o == w })
		w.e.mu.Unlock()
		w.e.drop()
		w.mu.Lock()
		stop := w.stop
		w.mu.Unlock()
		if stop != nil {
			stop()
		}
	})
}

func (w *Watcher) closed() bool {
	select {
	case <-w.done:
		return true
	case <-w.e.c.ctx.Done():
		return true
	default:
		return false
	}
}

// mark says that there may be something to tell. It never waits.
func (w *Watcher) mark() {
	w.wake.raise()
	if w.fn == nil {
		return
	}
	w.mu.Lock()
	if !w.running && !w.closed() {
		w.running = w.e.c.spawn(w.run)
	}
	w.mu.Unlock()
}

// run calls the function as long as there is something to tell.
func (w *Watcher) run() {
	for {
		if !w.call() {
			w.mu.Lock()
			select {
			case <-w.wake: // marked since; mark has seen that we run
				w.mu.Unlock()
				continue
			default:
			}
			w.running = false
			w.mu.Unlock()
			return
		}
	}
}

func (w *Watcher) call() (more bool) {
	if w.closed() {
		return false
	}
	told := false
	defer func() {
		if p := recover(); p != nil {
			w.panicked(p)
			more = told // L-4: the watcher goes on; but a filter of Where would panic for ever
		}
	}()
	ev, ok, _ := w.event()
	if ok {
		told = true
		w.fn(ev)
	}
	return ok
}

func (w *Watcher) panicked(p any) {
	w.e.c.log.Error("a watcher's function has panicked", "service", w.e.id, "panic", p, "stack", string(debug.Stack()))
}

// Next waits for the next event. The error is that of the context, or
// [ErrClosed]. Before the first event it may also be the server's refusal of the
// subscription, a [ServerError], once each time it refuses: the client tries
// again later, and the caller may call Next again.
func (w *Watcher) Next(ctx context.Context) (Event, error) {
	if w.closed() {
		return Event{}, ErrClosed
	}
	select {
	case w.turn <- struct{}{}:
	case <-ctx.Done():
		return Event{}, context.Cause(ctx)
	case <-w.done:
		return Event{}, ErrClosed
	case <-w.e.c.ctx.Done():
		return Event{}, ErrClosed
	}
	defer func() { <-w.turn }()
	for {
		if w.closed() {
			return Event{}, ErrClosed
		}
		if ev, ok, err := w.event(); ok || err != nil {
			return ev, err
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			return Event{}, context.Cause(ctx)
		case <-w.done:
		case <-w.e.c.ctx.Done():
		}
	}
}

// C is a channel of the events, for a select; it is closed with the watcher. The
// first call starts a goroutine that lives as long. While the receiver is busy,
// an event that it has not taken is replaced by one that says it all.
func (w *Watcher) C() <-chan Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.events == nil {
		w.events = make(chan Event)
		if !w.e.c.spawn(w.send) {
			close(w.events)
		}
	}
	return w.events
}

func (w *Watcher) send() {
	defer close(w.events)
	defer func() {
		if p := recover(); p != nil { // a filter of Where
			w.panicked(p)
		}
	}()
	select {
	case w.turn <- struct{}{}: // for good: Next would take events away
	case <-w.done:
		return
	case <-w.e.c.ctx.Done():
		return
	}
	for {
		before := watched{w.last, w.seen, w.started}
		ev, ok, _ := w.event()
		out := w.events
		if !ok {
			out = nil
		}
		select {
		case out <- ev:
		case <-w.wake:
			if ok { // untold: the next is compared with what the receiver knows
				w.last, w.seen, w.started = before.last, before.seen, before.started
			}
		case <-w.done:
			return
		case <-w.e.c.ctx.Done():
			return
		}
	}
}

type watched struct {
	last    *list
	seen    []Instance
	started bool
}

// event is what there is to tell now.
func (w *Watcher) event() (Event, bool, error) {
	c := w.e.c
	l := c.overriding(w.e.id, &w.q)
	if l == nil {
		l = w.e.list.Load()
		if l != nil && !w.started && l.from != FromServer && w.e.subscribed.Load() == 0 && !(w.q.stale && w.q.fresh(l)) {
			l = nil
		}
	}
	if l == nil {
		w.e.mu.Lock()
		refused := w.e.refused
		w.e.mu.Unlock()
		if refused != nil && refused != w.refused {
			w.refused = refused
			return Event{}, false, fmt.Errorf("subscribe to %s: %w", w.e.id, refused)
		}
		return Event{}, false, nil
	}
	if w.started && (l == w.last || w.last != nil && l.picks == w.last.picks) {
		w.last = l
		return Event{}, false, nil // L-6
	}
	now := filtered(l.instances, &w.q)
	added, removed, modified := difference(w.seen, now) // L-7: after the filter
	first := !w.started
	w.last, w.seen, w.started = l, now, true
	if !first && len(added)+len(removed)+len(modified) == 0 {
		return Event{}, false, nil
	}
	ev := Event{Snapshot: c.snapshot(w.e.id, l), Added: added, Removed: removed, Modified: modified, First: first}
	ev.Snapshot.Instances = copies(now, true, nil)
	if !first {
		c.metrics.Watcher(w.e.id, time.Since(l.asOf))
	}
	return ev, true, nil
}

// difference compares two lists in the order of sortInstances (D-1 … D-5): removed
// are those of before, the others those of now. They are copies.
func difference(before, now []Instance) (added, removed, modified []Instance) {
	for len(before) > 0 || len(now) > 0 {
		order := 0
		switch {
		case len(before) == 0:
			order = 1
		case len(now) == 0:
			order = -1
		default:
			order = compareIdentity(&before[0], &now[0])
		}
		switch {
		case order < 0:
			removed = append(removed, before[0].Clone())
			before = before[1:]
		case order > 0:
			added = append(added, now[0].Clone())
			now = now[1:]
		default:
			if !sameInstance(before[0], now[0]) {
				modified = append(modified, now[0].Clone())
			}
			before, now = before[1:], now[1:]
		}
	}
	return added, removed, modified
}

// compareIdentity orders as sortInstances does (D-1).
func compareIdentity(a, b *Instance) int {
	return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.IP, b.IP), cmp.Compare(a.Port, b.Port))
}
