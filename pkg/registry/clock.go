package registry

import (
	"sync"
	"time"
)

// A Stamp is a hybrid logical time: milliseconds since 1970 in the upper 48
// bits, a counter for the changes within one millisecond in the lower 16.
// Stamps of one clock are unique and grow; the zero Stamp is before all.
type Stamp uint64

const counterBits = 16

// StampAt is the first stamp of the given millisecond.
func StampAt(millis int64) Stamp { return Stamp(millis) << counterBits }

// Millis drops the counter.
func (s Stamp) Millis() int64 { return int64(s >> counterBits) }

// Time is the stamp as a point in time, to the millisecond.
func (s Stamp) Time() time.Time { return time.UnixMilli(s.Millis()) }

// A Clock makes stamps. It follows the wall clock forwards but never goes
// back: time between two readings comes from the monotonic clock, and a stamp
// received from elsewhere is adopted as an offset, so that the clock keeps
// ticking from there instead of standing still until the wall catches up
// (semantics V3: a list with an older time than the one a client holds is
// thrown away by the client).
//
// Its methods may be called from any goroutine.
type Clock struct {
	start time.Time // with its monotonic reading
	skew  time.Duration

	mu     sync.Mutex
	offset int64 // milliseconds added to start's wall time + elapsed
	last   Stamp
}

// NewClock makes a clock whose stamps are all above floor, the high-water mark
// of an earlier run (zero: none). skew is added to the wall clock: a test can
// try what a wrong clock does without touching the machine's.
func NewClock(floor Stamp, skew time.Duration) *Clock {
	c := &Clock{start: time.Now(), skew: skew}
	if floor != 0 {
		c.Adopt(floor)
	}
	return c
}

// Now returns the next stamp.
func (c *Clock) Now() Stamp {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = max(c.last+1, StampAt(c.millisLocked()))
	return c.last
}

// Millis reads the clock without taking a stamp. It is never below the
// millisecond of a stamp handed out before.
func (c *Clock) Millis() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(c.millisLocked(), c.last.Millis())
}

// Wall is the clock of this machine in milliseconds. It knows nothing of what
// was adopted: how far off another clock is must be measured against it, or
// clocks that follow each other could run away together.
func (c *Clock) Wall() int64 { return time.Now().Add(c.skew).UnixMilli() }

// Adopt makes sure that every later stamp is above s.
func (c *Clock) Adopt(s Stamp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if behind := s.Millis() - c.millisLocked(); behind > 0 {
		c.offset += behind
	}
	c.last = max(c.last, s)
}

// millisLocked lets the wall clock pull the offset forwards (a step of NTP, a
// machine that slept: the monotonic clock of Linux stands still then), never
// back.
func (c *Clock) millisLocked() int64 {
	now := time.Now()
	mono := c.start.Add(c.skew + now.Sub(c.start)).UnixMilli() // in one step: two roundings would be a millisecond
	if ahead := now.Add(c.skew).UnixMilli() - mono - c.offset; ahead > 0 {
		c.offset += ahead
	}
	return mono + c.offset
}
