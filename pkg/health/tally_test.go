package health

import "testing"

// H17 and the table of semantics §4.3.
func TestTally(t *testing.T) {
	for _, c := range []struct {
		name     string
		outcomes []outcome
		want     conclusion
	}{
		{"one success", []outcome{passed}, undecided},
		{"two", []outcome{passed, passed}, undecided},
		{"three", []outcome{passed, passed, passed}, healthy},
		{"five", []outcome{passed, passed, passed, passed, passed}, healthy},
		{"two failures", []outcome{failed, timedOut}, undecided},
		{"three, of two kinds", []outcome{failed, timedOut, failed}, unhealthy},
		{"a success between", []outcome{failed, failed, passed, failed, failed}, undecided},
		{"a failure between", []outcome{passed, passed, failed, passed, passed}, undecided},
		{"refused", []outcome{down}, unhealthy},
		{"refused after successes", []outcome{passed, passed, passed, down}, unhealthy},
		{"a timeout after that changes nothing", []outcome{down, timedOut}, unhealthy},
		{"it comes back", []outcome{down, passed, passed, passed}, healthy},
		{"not yet", []outcome{down, passed, passed}, undecided},
	} {
		var n tally
		var is conclusion
		for _, o := range c.outcomes {
			n, is = n.after(o, 3)
		}
		if is != c.want {
			t.Errorf("%s: %d, want %d", c.name, is, c.want)
		}
	}
	if _, is := tally(0).after(timedOut, 1); is != unhealthy {
		t.Errorf("one strike: %d", is)
	}
}

func TestDeed(t *testing.T) {
	for _, c := range []struct {
		name   string
		is     picture
		c      conclusion
		others bool
		want   deed
	}{
		{"a new instance that is as it was registered", picture{healthy: true, registered: true}, healthy, true, nothing},
		{"the same, still unknown", picture{healthy: true, registered: true}, undecided, true, nothing},
		{"it is down, alone", picture{healthy: true, registered: true}, unhealthy, false, write},
		{"it is down, ask first", picture{healthy: true, registered: true}, unhealthy, true, ask},
		{"it is back: nobody is asked", picture{registered: true, mine: true}, healthy, true, write},
		{"registered unhealthy, it is up", picture{}, healthy, true, write},
		{"down as another node has found", picture{registered: true}, unhealthy, true, write},
		{"down as we have found", picture{registered: true, mine: true}, unhealthy, true, nothing},
		{"up as another node has found", picture{healthy: true}, healthy, true, write},
		{"up as we have found", picture{healthy: true, mine: true}, healthy, true, nothing},
	} {
		if is := c.is.deed(c.c, c.others); is != c.want {
			t.Errorf("%s: %d, want %d", c.name, is, c.want)
		}
	}
}

// Dead addresses have half of the rate and half of the slots at most, and so
// have the others; alone, either has the whole rate.
func TestLanesShare(t *testing.T) {
	l := lanes{slots: 10}
	for range 100 {
		l.push(&target{slow: true})
		l.push(&target{})
	}
	var slow, quick int
	for range 10 {
		if l.next().slow {
			slow++
		} else {
			quick++
		}
	}
	if slow != 5 || quick != 5 {
		t.Errorf("%d slow and %d quick ones begin", slow, quick)
	}
	for l.next() != nil {
	}
	if l.used != [2]int{10, 10} || l.startable() || l.len() != 180 {
		t.Errorf("slots in use: %v, %d wait", l.used, l.len())
	}
	quickOne := &target{slot: 0}
	l.free(quickOne) // the slow ones keep theirs
	if !l.startable() {
		t.Error("a slot is free and nothing may begin")
	}
	if is := l.next(); is == nil || is.slow {
		t.Errorf("%v begins", is)
	}

	l = lanes{slots: 1000}
	for range 10 {
		l.push(&target{})
		l.push(&target{urgent: true})
	}
	urgent := 0
	for range 10 {
		if l.next().urgent {
			urgent++
		}
	}
	if urgent != 5 {
		t.Errorf("%d of ten are urgent", urgent)
	}
	for range 10 {
		if l.next() == nil {
			t.Fatal("one lane alone is not served")
		}
	}
}

func TestQueueIsInOrder(t *testing.T) {
	var q queue
	in, out := 0, 0
	for round := range 200 {
		for range round % 7 {
			q.push(&target{turn: uint32(in)})
			in++
		}
		for range round % 5 {
			if q.len() == 0 {
				break
			}
			if is := q.pop(); is.turn != uint32(out) {
				t.Fatalf("%d comes out, want %d", is.turn, out)
			}
			out++
		}
		if q.len() != in-out {
			t.Fatalf("length %d, want %d", q.len(), in-out)
		}
	}
}
