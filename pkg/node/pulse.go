package node

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// A pulse notices that this process stood still: it was stopped, its machine
// paused or without CPU (design §6). Whoever is about to remove, accept or
// tell others anything calls awake first, inline: a ticker alone would let the
// first of them act on what was true before the stall.
//
// What the peers and clients did meanwhile is not known yet then, and every
// clock has run on. So a stall is handled before awake returns to anybody.
type pulse struct {
	freeze  func() // of a simulation; may be nil
	stalled func(time.Duration)
	start   time.Time
	begun   atomic.Bool
	last    atomic.Int64 // nanoseconds since start, when the process was last seen running
	at      atomic.Int64 // likewise, when a stall was last noticed; 0: never

	mu sync.Mutex // held while a stall is handled: the others wait
}

const (
	pulseEvery = 500 * time.Millisecond
	// stallDrift is how late the pulse may be before it is a stall.
	stallDrift = 2 * time.Second
)

// newPulse makes a pulse that notices nothing before begin. stalled is called
// once for each stall with its length, by whoever notices it; it must not call
// awake.
func newPulse(freeze func(), stalled func(time.Duration)) *pulse {
	return &pulse{freeze: freeze, stalled: stalled, start: time.Now()}
}

// begin says that there is something that a stall could harm, and that all is
// there that stalled calls. A start may take long: to read a large log does.
func (p *pulse) begin() {
	p.last.Store(int64(time.Since(p.start)))
	p.begun.Store(true)
}

// awake returns when no stall is waiting to be handled. It must be called with
// no lock held.
func (p *pulse) awake() {
	if p.freeze != nil {
		p.freeze()
	}
	if !p.begun.Load() {
		return
	}
	// Monotonic time: Linux counts it also while the process is stopped, and
	// a step of the wall clock is no stall.
	now := int64(time.Since(p.start))
	if last := p.last.Load(); time.Duration(now-last) < pulseEvery+stallDrift {
		if now-last > int64(pulseEvery)/4 { // not each time: others read it
			p.last.CompareAndSwap(last, now)
		}
		return // while a stall is handled last is still that of before
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now = int64(time.Since(p.start))
	drift := time.Duration(now - p.last.Load())
	if drift < pulseEvery+stallDrift {
		return // handled
	}
	p.at.Store(now)
	p.stalled(drift)
	p.last.Store(int64(time.Since(p.start)))
}

// stalledWithin reports whether a stall was noticed not longer than d ago.
func (p *pulse) stalledWithin(d time.Duration) bool {
	at := p.at.Load()
	return at != 0 && time.Since(p.start)-time.Duration(at) < d
}

// run keeps the pulse going until ctx ends.
func (p *pulse) run(ctx context.Context) {
	t := time.NewTicker(pulseEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			p.awake()
		}
	}
}
