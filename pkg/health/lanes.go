package health

import (
	"container/heap"
	"time"
)

// dueTargets is a heap: what is due first is first.
type dueTargets []*target

func (d dueTargets) Len() int           { return len(d) }
func (d dueTargets) Less(i, j int) bool { return d[i].due < d[j].due }
func (d dueTargets) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *dueTargets) Push(t any)        { *d = append(*d, t.(*target)) }
func (d *dueTargets) Pop() any {
	last := len(*d) - 1
	t := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	return t
}

// until takes what is due, at most n.
func (d *dueTargets) until(now time.Duration, n int) (out []*target) {
	for len(*d) > 0 && (*d)[0].due <= now && len(out) < n {
		out = append(out, heap.Pop(d).(*target))
	}
	return out
}

// A queue is first in, first out. A target is in one at most, so it is never
// longer than there are targets.
type queue struct {
	items []*target
	first int
}

func (q *queue) len() int { return len(q.items) - q.first }

func (q *queue) push(t *target) { q.items = append(q.items, t) }

func (q *queue) pop() *target {
	t := q.items[q.first]
	q.items[q.first] = nil
	q.first++
	if q.first*2 >= len(q.items) {
		n := copy(q.items, q.items[q.first:])
		clear(q.items[n:])
		q.items, q.first = q.items[:n], 0
	}
	return t
}

// lanes hold the targets that are due, by what can be known of them before:
// how urgent they are, and whether their probe will take long. Of the rate,
// each lane that is not empty has an equal share; of the slots, those that take
// long and those that do not have one half each. So thousands of dead addresses
// do not delay the others, nor the other way round.
type lanes struct {
	queues [4]queue
	used   [2]int // slots, of quick ones and slow ones
	slots  int    // for each of them
	turn   int
}

func (l *lanes) push(t *target) {
	at := 0
	if t.slow {
		at = 1
	}
	if !t.urgent {
		at += 2
	}
	t.slot = at % 2
	l.queues[at].push(t)
}

// free gives the slot back that a target had.
func (l *lanes) free(t *target) { l.used[t.slot]-- }

// next takes a target that may begin, and a slot for it; nil if there is none.
func (l *lanes) next() *target {
	for range l.queues {
		at := l.turn % len(l.queues)
		l.turn++
		if l.queues[at].len() > 0 && l.used[at%2] < l.slots {
			l.used[at%2]++
			return l.queues[at].pop()
		}
	}
	return nil
}

// startable reports whether next would find one.
func (l *lanes) startable() bool {
	for at := range l.queues {
		if l.queues[at].len() > 0 && l.used[at%2] < l.slots {
			return true
		}
	}
	return false
}

func (l *lanes) len() (n int) {
	for i := range l.queues {
		n += l.queues[i].len()
	}
	return n
}

// oldest is when the first of those that wait was due.
func (l *lanes) oldest() (due time.Duration, some bool) {
	for i := range l.queues {
		if q := &l.queues[i]; q.len() > 0 {
			if t := q.items[q.first]; !some || t.due < due {
				due, some = t.due, true
			}
		}
	}
	return due, some
}
