package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// An outcome is what a client knows of a write.
type outcome int

const (
	acknowledged outcome = iota
	refused              // it has not happened, and will not
	unknown              // it may have happened, or may yet
)

// absent is the value of what is not there.
const absent = ""

// A row is what may be at a key. Only one client writes to a key, one write at a
// time.
type row struct {
	sure  string
	maybe []string // of writes whose outcome is not known, before or after sure
}

// A ledger is what clients were told of their writes.
type ledger struct {
	mu   sync.Mutex
	rows map[string]*row

	counts  [3]int
	reasons map[string]int // why outcomes were not known
	acks    []time.Time    // of acknowledged writes
}

func newLedger() *ledger { return &ledger{rows: map[string]*row{}, reasons: map[string]int{}} }

// wrote notes a write of a value, or absent, to a key.
func (l *ledger) wrote(key, value string, o outcome, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.rows[key]
	if r == nil {
		r = &row{}
		l.rows[key] = r
	}
	l.counts[o]++
	switch o {
	case acknowledged:
		r.sure = value
		l.acks = append(l.acks, time.Now())
	case unknown:
		r.maybe = append(r.maybe, value)
		l.reasons[why]++
	case refused:
	}
}

// rest begins a new count of outcomes.
func (l *ledger) rest() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts, l.acks, l.reasons = [3]int{}, nil, map[string]int{}
}

// acked is how many writes were acknowledged since the last rest.
func (l *ledger) acked() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts[acknowledged]
}

// outage is the longest time in which no write was acknowledged.
func (l *ledger) outage() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	var longest time.Duration
	for i := 1; i < len(l.acks); i++ {
		longest = max(longest, l.acks[i].Sub(l.acks[i-1]))
	}
	return longest
}

// rate is acknowledged writes per second.
func (l *ledger) rate() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.acks) < 2 {
		return 0
	}
	return float64(len(l.acks)) / l.acks[len(l.acks)-1].Sub(l.acks[0]).Seconds()
}

func (l *ledger) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var s strings.Builder
	fmt.Fprintf(&s, "%d acknowledged, %d refused, %d unknown", l.counts[acknowledged], l.counts[refused], l.counts[unknown])
	for _, why := range slices.Sorted(maps.Keys(l.reasons)) {
		fmt.Fprintf(&s, " (%d× %s)", l.reasons[why], why)
	}
	return s.String()
}

// keys are those of all writes, sorted.
func (l *ledger) keys() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(maps.Keys(l.rows))
}

// judge compares what a node has with what clients were told.
func (l *ledger) judge(node string, has map[string]string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var wrong []string
	for _, key := range slices.Sorted(maps.Keys(l.rows)) {
		r := l.rows[key]
		if v := has[key]; v != r.sure && !slices.Contains(r.maybe, v) {
			wrong = append(wrong, fmt.Sprintf("%s is %q, want %q", key, v, r.sure))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(has)) {
		if l.rows[key] == nil {
			wrong = append(wrong, fmt.Sprintf("%s is there, and nobody wrote it", key))
		}
	}
	if wrong == nil {
		return nil
	}
	return fmt.Errorf("node %s: %d of %d rows are wrong: %s", node, len(wrong), len(l.rows), strings.Join(wrong[:min(len(wrong), 3)], "; "))
}

// copy is a ledger of another cluster with the same content.
func (l *ledger) copy() *ledger {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := newLedger()
	for key, r := range l.rows {
		c.rows[key] = &row{r.sure, slices.Clone(r.maybe)}
	}
	return c
}
