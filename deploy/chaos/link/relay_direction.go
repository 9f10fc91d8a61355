package link

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// segment is what TCP puts into a packet of 1,500 bytes.
	segment = 1448

	// After these times TCP sends again what was not acknowledged, twice as much
	// later each time: data, and the packet that opens a connection.
	dataTimeout, dialTimeout = 200 * time.Millisecond, time.Second

	// maxHeld bounds what repeated loss adds up to.
	maxHeld = time.Minute

	// tick is the time that pieces of a limited connection take: so that several
	// share the rate, and none stands still for long.
	tick = 20 * time.Millisecond
)

// A direction is all that one end sends to another: its rule, and what obeys it.
type direction struct {
	from, to string
	rule     atomic.Pointer[ruling]

	passed, bytes, delayed, cut, lost, full, failed atomic.Uint64

	mu     sync.Mutex
	pipes  map[*pipe]struct{}
	flight flight
}

// A ruling is a Rule while it is in force.
type ruling struct {
	Rule
	changed chan struct{} // closed when another has taken its place

	mu   sync.Mutex
	free time.Time // when all that was let through so far is through
}

func newDirection(from, to string) *direction {
	d := &direction{from: from, to: to, pipes: map[*pipe]struct{}{}}
	d.rule.Store(&ruling{changed: make(chan struct{})})
	return d
}

// stopped: nothing of a connection gets through, ever.
func (g *ruling) stopped() bool { return g.Cut || g.Loss >= 1 }

func (g *ruling) jitter() time.Duration {
	if g.Jitter == 0 {
		return 0
	}
	return rand.N(g.Jitter)
}

// set puts a rule in force and wakes all who wait under the old one.
func (d *direction) set(r Rule) {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := d.rule.Swap(&ruling{Rule: r, changed: make(chan struct{})})
	close(old.changed)
	for p := range d.pipes {
		p.interrupt()
	}
}

// open waits until bytes may pass. It is false when quit came first.
func (d *direction) open(quit <-chan struct{}) (*ruling, bool) {
	for {
		g := d.rule.Load()
		if !g.stopped() {
			return g, true
		}
		select {
		case <-g.changed:
		case <-quit:
			return nil, false
		}
	}
}

// pause waits until due, which was worked out by the ruling g. A later ruling
// shortens the wait to what it lets anything wait. It is false when quit came
// first.
func (d *direction) pause(due time.Time, g *ruling, quit <-chan struct{}) bool {
	for {
		if now := d.rule.Load(); now != g {
			g = now
			if latest := time.Now().Add(g.Delay + g.Jitter); latest.Before(due) {
				due = latest
			}
		}
		left := time.Until(due)
		if left <= 0 {
			return true
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
			return true
		case <-g.changed:
			timer.Stop()
		case <-quit:
			timer.Stop()
			return false
		}
	}
}

// held is how long n bytes of a connection are under way, and how many of their
// packets were lost on it. They are sent at once, so the losses are made good
// at the same time.
func (g *ruling) held(n int, timeout time.Duration) (time.Duration, uint64) {
	held, lost := g.Delay+g.jitter(), uint64(0)
	if g.Loss <= 0 {
		return held, 0
	}
	worst := time.Duration(0)
	for ; n > 0; n -= segment {
		waited := time.Duration(0)
		for again := timeout; rand.Float64() < g.Loss && waited < maxHeld; again *= 2 {
			waited += again
			lost++
		}
		worst = max(worst, min(waited, maxHeld))
	}
	return held + worst, lost
}

// through is when n bytes that come now are through the bottleneck. They have
// then taken their share of the rate.
func (g *ruling) through(n int) time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if g.free.Before(now) {
		g.free = now
	}
	g.free = g.free.Add(time.Duration(float64(n) / float64(g.Rate) * float64(time.Second)))
	return g.free
}

// backlog is how much waits before the bottleneck.
func (g *ruling) backlog() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return int64(time.Until(g.free).Seconds() * float64(g.Rate))
}

// piece is what of n bytes is sent in one go at this rate.
func (g *ruling) piece(n int) int {
	return min(n, max(segment, int(min(float64(g.Rate)*tick.Seconds(), 1<<20))))
}

func (d *direction) count() Count {
	return Count{
		Passed: d.passed.Load(), Bytes: d.bytes.Load(), Delayed: d.delayed.Load(), Cut: d.cut.Load(),
		Lost: d.lost.Load(), Full: d.full.Load(), Failed: d.failed.Load(),
	}
}
