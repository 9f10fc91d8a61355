package link

import (
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// heldBytes bounds what one direction holds back, in memory: enough for
	// 650 Mbit/s that are late by 100 ms.
	heldBytes = 8 << 20
	// A link of limited rate holds what it sends in this time, as routers are set
	// up, …
	rateDepth = 100 * time.Millisecond
	// … but at least this much, or a slow one would let no TCP through.
	rateDepthBytes = 32 << 10
)

// buffers are those of the packets that wait.
var buffers = sync.Pool{New: func() any { return new([mtu]byte) }}

type waiting struct {
	due  time.Time
	buf  *[mtu]byte
	size int
}

// A queue holds the packets of one direction that a rule delays, in the order in
// which they came, which is also that in which they leave: jitter reorders
// nothing. One goroutine puts packets in, run takes them out.
type queue struct {
	deliver func(packet []byte)
	wake    chan struct{} // holds one token: something may have to be done earlier

	mu      sync.Mutex
	packets []waiting // from the first to the last; who is due early waits for those before
	ending  bool      // what is left is due now, then run returns …
	ended   bool      // … and nothing is taken any more
	idle    time.Time // when the link will have sent all that it took
	late    time.Duration
	redraw  time.Time // late holds until then
}

func newQueue(deliver func([]byte)) *queue {
	return &queue{deliver: deliver, wake: make(chan struct{}, 1)}
}

type outcome int

const (
	taken   outcome = iota
	full            // the packet is dropped
	refused         // the queue has ended: whoever asks delivers the packet himself
)

func (q *queue) push(packet []byte, r Rule, now time.Time) outcome {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended {
		return refused
	}
	if (len(q.packets)+1)*mtu > heldBytes {
		return full
	}
	// The rate is a bucket with room for one packet: a link sends one after the
	// other, each for as long as its size takes.
	due := now
	if r.Rate > 0 {
		due = later(q.idle, now)
		depth := max(rateDepth, took(rateDepthBytes, r.Rate))
		if due = due.Add(took(len(packet), r.Rate)); due.Sub(now) > depth {
			return full
		}
		q.idle = due
	}
	due = due.Add(r.Delay + q.jitterLocked(r.Jitter, now))
	w := waiting{due: due, buf: buffers.Get().(*[mtu]byte)}
	w.size = copy(w.buf[:], packet)
	q.packets = append(q.packets, w)
	if len(q.packets) == 1 {
		q.prod()
	}
	return taken
}

// jitterLocked draws anew only after as long as the jitter itself: where order is
// kept, a draw for each packet would make nearly all as late as the latest.
func (q *queue) jitterLocked(jitter time.Duration, now time.Time) time.Duration {
	if jitter <= 0 {
		return 0
	}
	if !now.Before(q.redraw) {
		q.late, q.redraw = rand.N(jitter+1), now.Add(jitter)
	}
	return min(q.late, jitter)
}

// reopen lets a queue go on that was to end. It is false if it has ended.
func (q *queue) reopen() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ending = false
	return !q.ended
}

// end lets run deliver what is left at once and return.
func (q *queue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ending = true
	q.prod()
}

// drop forgets all that waits, and says how much that was.
func (q *queue) drop() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := len(q.packets)
	for _, w := range q.packets {
		buffers.Put(w.buf)
	}
	q.packets = nil
	return n
}

func (q *queue) prod() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// run delivers packets when they are due, until the end.
func (q *queue) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var due []waiting
	for {
		var wait time.Duration
		if due, wait = q.due(due[:0]); wait == over {
			return
		}
		for _, w := range due {
			q.deliver(w.buf[:w.size])
			buffers.Put(w.buf)
		}
		if len(due) > 0 {
			continue // time has passed
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-q.wake:
		}
	}
}

const (
	over   = -1
	unless = time.Hour // unless something wakes it
)

// due takes out the packets that are due, at most a few, so that a cut finds the
// others here, and says how long it is to the next.
func (q *queue) due(into []waiting) ([]waiting, time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.packets) == 0 {
		// Only here: all that was taken out before has been delivered, so who is
		// refused from now on comes after it.
		if q.ending {
			q.ended = true
			return into, over
		}
		return into, unless
	}
	now := time.Now()
	n := 0
	for n < len(q.packets) && n < 16 && (q.ending || !q.packets[n].due.After(now)) {
		n++
	}
	if n == 0 {
		return into, q.packets[0].due.Sub(now)
	}
	into = append(into, q.packets[:n]...)
	q.packets = q.packets[n:]
	return into, 0
}

// took is the time that a link of this rate takes to send so much.
func took(bytes int, rate int64) time.Duration {
	return time.Duration(float64(bytes) / float64(rate) * float64(time.Second))
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
