package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/starling-registry/starling/pkg/client/wire"
	"github.com/starling-registry/starling/pkg/nacos"
)

const (
	abilityFuzzy      = "fuzzyWatch"
	abilityPersistent = "supportPersistentInstanceByGrpc"

	// compareEvery is how often notes are compared with a server that has pushed
	// every change: one may have been lost.
	compareEvery = 3 * time.Minute
)

// A ServiceEvent is what a [ServiceWatcher] is told: which services there are
// now, sorted, and which have come and gone since its last event.
type ServiceEvent struct {
	Services       []ServiceID
	Added, Removed []ServiceID
	First          bool
}

// fuzzyWatches are the patterns by which services are watched.
type fuzzyWatches struct {
	c *Client

	mu  sync.Mutex // before fuzzyWatch.mu
	all map[string]*fuzzyWatch
}

// A fuzzyWatch is one pattern, whatever the number of watchers.
type fuzzyWatch struct {
	c       *Client
	text    string // namespace>>group>>service
	pattern nacos.Pattern
	task    task

	mu       sync.Mutex
	watchers []*ServiceWatcher
	known    map[ServiceID]bool
	complete bool   // the server has said once that this was all
	changes  uint64 // of known or complete
	asked    uint64 // epoch in which the server has accepted the watch
	askedAt  time.Time
	refused  error
}

func newFuzzyWatches(c *Client) *fuzzyWatches {
	return &fuzzyWatches{c: c, all: map[string]*fuzzyWatch{}}
}

// A ServiceWatcher follows which services there are. The newest state wins: a slow
// caller gets fewer events.
type ServiceWatcher struct {
	f    *fuzzyWatch
	wake signal
	done chan struct{}
	once sync.Once
	stop func() bool // of the context; guarded by f.mu

	turn    chan struct{} // held by who makes the next event; it owns:
	seen    []ServiceID
	changes uint64
	started bool
	refused error

	mu     sync.Mutex
	events chan ServiceEvent
}

// WatchServices follows which services there are whose name matches the pattern:
// a name, or one with a star at its beginning, its end, or both. The group is
// DEFAULT_GROUP or that of [Group], which may have stars too. Servers tell a
// service when its first instance comes, and when its last one has gone.
//
// It returns at once; the watcher lives until it is closed or the context ends.
// The errors are [ErrInvalid], [ErrClosed], and [ErrUnsupported] where the
// connected server cannot do this: Nacos before 3.0. If only a later one cannot,
// Next says so.
func (c *Client) WatchServices(ctx context.Context, pattern string, opts ...ServiceOption) (*ServiceWatcher, error) {
	if err := c.open(); err != nil {
		return nil, err
	}
	group := cmp.Or(serviceOf(opts).group, DefaultGroup)
	text := c.cfg.Namespace + ">>" + group + ">>" + pattern
	p, err := nacos.ParsePattern(text)
	if err != nil {
		return nil, fmt.Errorf("%w: pattern %q of group %q: %w", ErrInvalid, pattern, group, err)
	}
	if s := c.link.session(); s != nil && !s.conn.Has(abilityFuzzy) {
		return nil, fmt.Errorf("watch services: %w", ErrUnsupported)
	}
	w := &ServiceWatcher{wake: newSignal(), done: make(chan struct{}), turn: make(chan struct{}, 1)}
	w.wake.raise()
	c.fuzzy.mu.Lock()
	f := c.fuzzy.all[text]
	if f == nil {
		f = &fuzzyWatch{c: c, text: text, pattern: p, known: map[ServiceID]bool{}}
		f.task = task{late: true, needs: f.lacks, do: f.ask}
		c.fuzzy.all[text] = f
	}
	w.f = f
	f.mu.Lock()
	f.watchers = append(f.watchers, w)
	w.stop = context.AfterFunc(ctx, w.Close)
	f.mu.Unlock()
	c.fuzzy.mu.Unlock()
	c.work.mark(&f.task)
	return w, nil
}

// lacks: see task.needs.
func (f *fuzzyWatch) lacks(epoch uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.watchers) == 0 {
		return f.asked == epoch
	}
	return f.asked != epoch || time.Since(f.askedAt) >= compareEvery
}

type fuzzyRequest struct {
	Namespace    string   `json:"namespace"`
	Pattern      string   `json:"groupKeyPattern"`
	Received     []string `json:"receivedGroupKeys"`
	WatchType    string   `json:"watchType"`
	Initializing bool     `json:"initializing"`
}

// ask starts the watch at a server, or ends it, or compares notes.
func (f *fuzzyWatch) ask(ctx context.Context, s *session) error {
	f.mu.Lock()
	watch := len(f.watchers) > 0
	r := fuzzyRequest{Namespace: f.c.cfg.Namespace, Pattern: f.text, Received: []string{}, WatchType: nacos.WatchCancel}
	if watch {
		r.WatchType, r.Initializing = nacos.WatchStart, !f.complete
		for id := range f.known {
			r.Received = append(r.Received, f.c.cfg.Namespace+"@@"+id.String())
		}
		f.askedAt = time.Now()
	}
	f.mu.Unlock()
	var err error
	if !s.conn.Has(abilityFuzzy) {
		err = ErrUnsupported
	} else {
		var raw []byte
		if raw, err = json.Marshal(r); err == nil {
			_, err = f.c.ask(ctx, s, nacos.TypeFuzzyWatchRequest, raw)
		}
		if refused, ok := errors.AsType[*ServerError](err); ok && refused.Code == nacos.CodeMatchOverLimit {
			f.c.log.Warn("a pattern matches more services than the server tells", "pattern", f.text, "server", s.server)
			err = nil // it watches all the same
		}
	}
	f.mu.Lock()
	gone := false
	switch {
	case err != nil && !repeatable(err):
		f.refused = err
	case err == nil && watch:
		f.asked, f.refused = s.epoch, nil
	case err == nil:
		f.asked = 0
	}
	gone = !watch && (err == nil || !repeatable(err))
	f.mu.Unlock()
	if gone {
		f.forget()
	}
	if err != nil {
		f.tell()
		return fmt.Errorf("watch services %s: %w", f.text, err)
	}
	return nil
}

// forget drops the pattern if nobody watches by it any more.
func (f *fuzzyWatch) forget() {
	f.c.fuzzy.mu.Lock()
	f.mu.Lock()
	unused := len(f.watchers) == 0 && f.asked == 0
	if unused && f.c.fuzzy.all[f.text] == f {
		delete(f.c.fuzzy.all, f.text)
	}
	f.mu.Unlock()
	f.c.fuzzy.mu.Unlock()
	if unused {
		f.c.work.forget(&f.task)
	}
}

func (f *fuzzyWatch) tell() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.watchers {
		w.wake.raise()
	}
}

type fuzzyPush struct {
	SyncType    string        `json:"syncType"`
	Pattern     string        `json:"groupKeyPattern"`
	Contexts    []fuzzyChange `json:"contexts"`
	fuzzyChange               // of a change that is not part of a comparison
}

type fuzzyChange struct {
	Key  string `json:"serviceKey"`
	Type string `json:"changedType"`
}

// take is called on the goroutine of a session; see Client.takePush. That a
// watcher may hear before the acknowledgement is sent delays neither.
func (w *fuzzyWatches) take(s *session, p *nacos.Payload) error {
	var m fuzzyPush
	if err := json.Unmarshal(p.Body, &m); err != nil {
		return fmt.Errorf("push about services: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch p.Type {
	case nacos.TypeFuzzyWatchSyncRequest:
		if f := w.all[m.Pattern]; f != nil {
			f.changed(s.epoch, m.Contexts, m.SyncType == nacos.SyncFinish)
		}
	case nacos.TypeFuzzyWatchChangeNotifyRequest:
		for _, f := range w.all {
			f.changed(s.epoch, []fuzzyChange{m.fuzzyChange}, false)
		}
	default:
		return wire.ErrNoHandler
	}
	return nil
}

func (f *fuzzyWatch) changed(epoch uint64, changes []fuzzyChange, complete bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if epoch < f.asked {
		return // an older connection
	}
	differ := complete && !f.complete
	f.complete = f.complete || complete
	for _, c := range changes {
		ns, rest, ok := strings.Cut(c.Key, "@@")
		group, name, ok2 := strings.Cut(rest, "@@")
		ref := nacos.ServiceRef{Namespace: ns, GroupName: group, ServiceName: name}
		if !ok || !ok2 || !f.pattern.Match(ref.Key()) {
			continue
		}
		id := ServiceID{group, name}
		if gone := c.Type == "DELETE_SERVICE"; gone == f.known[id] {
			differ = true
			if gone {
				delete(f.known, id)
			} else {
				f.known[id] = true
			}
		}
	}
	if differ {
		f.changes++
		for _, w := range f.watchers {
			w.wake.raise()
		}
	}
}

// Close ends the watcher. It may be called from any goroutine and more than once.
func (w *ServiceWatcher) Close() {
	w.once.Do(func() {
		close(w.done)
		w.f.mu.Lock()
		w.f.watchers = slices.DeleteFunc(w.f.watchers, func(o *ServiceWatcher) bool { return o == w })
		stop := w.stop
		w.f.mu.Unlock()
		stop()
		w.f.c.work.mark(&w.f.task)
		w.f.forget()
	})
}

// event is what there is to tell now.
func (w *ServiceWatcher) event() (ServiceEvent, bool, error) {
	f := w.f
	f.mu.Lock()
	refused := f.refused
	if !f.complete || w.started && f.changes == w.changes {
		f.mu.Unlock()
		if refused != nil && refused != w.refused {
			w.refused = refused
			return ServiceEvent{}, false, fmt.Errorf("watch services %s: %w", f.text, refused)
		}
		return ServiceEvent{}, false, nil
	}
	now := slices.SortedFunc(maps.Keys(f.known), compareServices)
	w.changes = f.changes
	f.mu.Unlock()
	ev := ServiceEvent{Services: now, First: !w.started}
	for a, b := w.seen, now; len(a) > 0 || len(b) > 0; {
		switch {
		case len(b) == 0 || len(a) > 0 && compareServices(a[0], b[0]) < 0:
			ev.Removed = append(ev.Removed, a[0])
			a = a[1:]
		case len(a) == 0 || compareServices(a[0], b[0]) > 0:
			ev.Added = append(ev.Added, b[0])
			b = b[1:]
		default:
			a, b = a[1:], b[1:]
		}
	}
	w.seen, w.started = slices.Clone(now), true
	return ev, ev.First || len(ev.Added)+len(ev.Removed) > 0, nil
}

func compareServices(a, b ServiceID) int {
	return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Name, b.Name))
}

// Next waits for the next event; the first comes when the server has told all
// services, be it none. The error is that of the context, [ErrClosed], or the
// server's refusal, once each time it refuses: the client tries again later, and
// the caller may call Next again.
func (w *ServiceWatcher) Next(ctx context.Context) (ServiceEvent, error) {
	over := w.f.c.ctx.Done()
	select {
	case w.turn <- struct{}{}:
	case <-ctx.Done():
		return ServiceEvent{}, context.Cause(ctx)
	case <-w.done:
		return ServiceEvent{}, ErrClosed
	case <-over:
		return ServiceEvent{}, ErrClosed
	}
	defer func() { <-w.turn }()
	for {
		select {
		case <-w.done:
			return ServiceEvent{}, ErrClosed
		case <-over:
			return ServiceEvent{}, ErrClosed
		default:
		}
		if ev, ok, err := w.event(); ok || err != nil {
			return ev, err
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			return ServiceEvent{}, context.Cause(ctx)
		case <-w.done:
		case <-over:
		}
	}
}

// C is a channel of the events, closed with the watcher; use it or Next. The
// first call starts a goroutine that lives as long.
func (w *ServiceWatcher) C() <-chan ServiceEvent {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.events == nil {
		w.events = make(chan ServiceEvent)
		if !w.f.c.spawn(w.send) {
			close(w.events)
		}
	}
	return w.events
}

func (w *ServiceWatcher) send() {
	defer close(w.events)
	over := w.f.c.ctx.Done()
	select {
	case w.turn <- struct{}{}: // for good: Next would take events away
	case <-w.done:
		return
	case <-over:
		return
	}
	for {
		seen, started := w.seen, w.started
		ev, ok, _ := w.event()
		out := w.events
		if !ok {
			out = nil
		}
		select {
		case out <- ev:
		case <-w.wake:
			if ok { // untold: the next is compared with what the receiver knows
				w.seen, w.started, w.changes = seen, started, 0
			}
		case <-w.done:
			return
		case <-over:
			return
		}
	}
}
