package client

import (
	"context"
	"sync"
	"time"
)

const (
	sweepEvery  = 3 * time.Second
	maxInFlight = 16
	maxBackoff  = 30 * time.Second
)

// A task is one thing that the server is to be brought to: what a client
// publishes of a service, or that it is subscribed to one. It is a state and not
// a command: whoever changes what is wanted marks the task, and the reconciler
// does what is needed then, if anything is.
type task struct {
	late bool // subscriptions come after all registrations
	// needs reports whether the server of this epoch lacks it. It may take the
	// lock of a service, which therefore comes after reconciler.mu: who holds one
	// must not call mark or forget.
	needs func(epoch uint64) bool
	// do makes the request, on a goroutine of its own, one at a time for each
	// task. An error means that the work is still there.
	do func(ctx context.Context, s *session) error

	// guarded by reconciler.mu
	queued, running, again bool
	failures               int
	notBefore              time.Time // while it backs off
}

// A reconciler brings the server to what the client wants, whenever a connection
// comes, whenever something is wanted anew, and every 3 s in case something was
// missed.
type reconciler struct {
	c    *Client
	wake signal

	mu      sync.Mutex
	tasks   map[*task]struct{}
	queue   [2][]*task // in order: registrations, all else
	waiting map[*task]struct{}
	flying  [2]int
	fresh   bool          // a new session has not been told all registrations yet
	idle    chan struct{} // closed and replaced when a task has ended
}

func newReconciler(c *Client) *reconciler {
	return &reconciler{c: c, wake: newSignal(), tasks: map[*task]struct{}{}, waiting: map[*task]struct{}{}, idle: make(chan struct{})}
}

// mark says that what a task wants has changed; it is tried at once.
func (r *reconciler) mark(t *task) {
	r.mu.Lock()
	r.tasks[t] = struct{}{}
	t.failures = 0
	r.enqueueLocked(t)
	r.mu.Unlock()
	r.wake.raise()
}

// forget drops a task that wants nothing any more.
func (r *reconciler) forget(t *task) {
	r.mu.Lock()
	delete(r.tasks, t)
	delete(r.waiting, t)
	r.mu.Unlock()
}

func (r *reconciler) enqueueLocked(t *task) {
	delete(r.waiting, t)
	t.notBefore = time.Time{}
	switch {
	case t.running:
		t.again = true
	case !t.queued:
		t.queued = true
		n := 0
		if t.late {
			n = 1
		}
		r.queue[n] = append(r.queue[n], t)
	}
}

// sweepLocked queues what has work, apart from what backs off.
func (r *reconciler) sweepLocked(epoch uint64, fresh bool) {
	for t := range r.tasks {
		if fresh {
			t.failures = 0
		} else if _, backsOff := r.waiting[t]; backsOff {
			continue
		}
		if !t.queued && !t.running && t.needs(epoch) {
			r.enqueueLocked(t)
		} else if fresh && t.running {
			t.again = true
		}
	}
}

func (r *reconciler) run() {
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var epoch uint64
	swept := false
	for r.c.ctx.Err() == nil {
		next := time.Hour
		if s := r.c.link.session(); s != nil {
			r.mu.Lock()
			if s.epoch != epoch || swept {
				r.sweepLocked(s.epoch, s.epoch != epoch)
				r.fresh = r.fresh || s.epoch != epoch
				epoch = s.epoch
			}
			next = r.startLocked(s)
			backlog := len(r.queue[0]) + len(r.queue[1]) + len(r.waiting) + r.flying[0] + r.flying[1]
			r.mu.Unlock()
			if swept {
				r.c.metrics.Cached(r.c.services.len(), backlog)
			}
		}
		swept = false
		timer.Reset(next)
		select {
		case <-r.c.ctx.Done():
		case <-r.wake:
		case <-timer.C:
		case <-sweep.C:
			swept = true
		}
	}
}

// startLocked starts what may start now, and says after how long to look again.
func (r *reconciler) startLocked(s *session) time.Duration {
	next, now := time.Hour, time.Now()
	for t := range r.waiting {
		if left := t.notBefore.Sub(now); left > 0 {
			next = min(next, left)
		} else {
			r.enqueueLocked(t)
		}
	}
	for n := range r.queue {
		for len(r.queue[n]) > 0 && r.flying[0]+r.flying[1] < maxInFlight && !(n == 1 && r.fresh) {
			t := r.queue[n][0]
			r.queue[n] = r.queue[n][1:]
			t.queued = false
			if _, known := r.tasks[t]; !known || !t.needs(s.epoch) {
				continue
			}
			t.running, t.again = true, false
			r.flying[n]++
			if !r.c.spawn(func() { r.do(t, s) }) {
				t.running = false
				r.flying[n]--
				return next
			}
		}
		r.fresh = r.fresh && len(r.queue[0])+r.flying[0] > 0
	}
	return next
}

func (r *reconciler) do(t *task, s *session) {
	err := t.do(r.c.ctx, s)
	needs := t.needs(s.epoch)
	r.mu.Lock()
	t.running = false
	if t.late {
		r.flying[1]--
	} else {
		r.flying[0]--
	}
	_, known := r.tasks[t]
	switch {
	case !known:
	case err != nil && s.live() && !t.again:
		t.failures++
		d := min(time.Second<<min(t.failures-1, 10), maxBackoff)
		if !repeatable(err) {
			d = maxBackoff // it will not like it better in a second
		}
		t.notBefore = time.Now().Add(jitter(d))
		r.waiting[t] = struct{}{}
	case t.again || needs && s.live():
		r.enqueueLocked(t)
	}
	close(r.idle)
	r.idle = make(chan struct{})
	r.mu.Unlock()
	r.wake.raise()
}

// settled returns when the session has been told all that it can be, or has
// ended, or the context.
func (r *reconciler) settled(ctx context.Context, s *session) {
	for s.live() {
		r.mu.Lock()
		busy := false
		for t := range r.tasks {
			_, backsOff := r.waiting[t]
			if !backsOff && (t.running || t.needs(s.epoch)) {
				busy = true
				break
			}
		}
		idle := r.idle
		r.mu.Unlock()
		if !busy {
			return
		}
		select {
		case <-idle:
		case <-s.conn.Done():
		case <-ctx.Done():
			return
		}
	}
}
