package push

import (
	"sync"
	"time"
)

// Results are what became of pushes of services since the start, or since they
// were last reset.
type Results struct {
	Succeeded, Failed int64
	// Mean and Longest are the times to the answer of the client.
	Mean, Longest time.Duration
}

// results counts. A push whose answer never comes is a failure when its
// connection is closed for it; its cost is negative.
type results struct {
	mu       sync.Mutex
	is       Results
	answered int64
	cost     time.Duration // of all that were answered
}

func (r *results) add(ok bool, cost time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ok {
		r.is.Succeeded++
	} else {
		r.is.Failed++
	}
	if cost >= 0 {
		r.answered++
		r.cost += cost
		r.is.Longest = max(r.is.Longest, cost)
	}
}

// Results tells what became of pushes; with reset, counting begins anew.
func (e *Engine) Results(reset bool) Results {
	r := &e.results
	r.mu.Lock()
	defer r.mu.Unlock()
	is := r.is
	if r.answered > 0 {
		is.Mean = r.cost / time.Duration(r.answered)
	}
	if reset {
		r.is, r.answered, r.cost = Results{}, 0, 0
	}
	return is
}
