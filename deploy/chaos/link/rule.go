package link

import (
	"errors"
	"time"
)

// Host is the end that this program is itself.
const Host = "host"

// A Rule is what happens to what one end sends to another. The zero Rule lets
// everything through at once.
type Rule struct {
	Cut    bool          // nothing arrives, and nobody is told
	Loss   float64       // share of packets that vanish, 0 to 1
	Delay  time.Duration // one way
	Jitter time.Duration // added at random, 0 to this
	Rate   int64         // bytes a second; 0: no limit
}

// Validate says which field makes no sense.
func (r Rule) Validate() error {
	switch {
	case !(r.Loss >= 0 && r.Loss <= 1): // also what is no number
		return errors.New("loss must be from 0 to 1")
	case r.Delay < 0:
		return errors.New("delay must not be negative")
	case r.Jitter < 0:
		return errors.New("jitter must not be negative")
	case r.Rate < 0:
		return errors.New("rate must not be negative")
	}
	return nil
}

// A Count is what has become of the packets that one end sent to another.
type Count struct {
	Passed  uint64 `json:"passed"`  // packets that were delivered
	Bytes   uint64 `json:"bytes"`   // in these
	Delayed uint64 `json:"delayed"` // packets that a rule held back, whatever became of them
	Cut     uint64 `json:"cut"`     // that vanished in a cut
	Lost    uint64 `json:"lost"`    // that vanished by a rule's Loss
	Full    uint64 `json:"full"`    // that found a full queue of a rule's Rate or Delay
	Failed  uint64 `json:"failed"`  // that the other end did not take: it is going
}

// Pair is the key of a direction in the counters.
func Pair(from, to string) string { return from + ">" + to }

// plus adds two counts.
func (c Count) plus(d Count) Count {
	return Count{
		Passed:  c.Passed + d.Passed,
		Bytes:   c.Bytes + d.Bytes,
		Delayed: c.Delayed + d.Delayed,
		Cut:     c.Cut + d.Cut,
		Lost:    c.Lost + d.Lost,
		Full:    c.Full + d.Full,
		Failed:  c.Failed + d.Failed,
	}
}
