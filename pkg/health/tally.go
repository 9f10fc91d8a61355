package health

// A tally counts equal results in a row: successes up, failures down.
type tally int

// A conclusion is what results in a row lead to.
type conclusion uint8

const (
	undecided conclusion = iota
	healthy
	unhealthy
)

// after is the tally with one more outcome, and the conclusion (semantics H17).
// A result of this node's own trouble is not for it.
func (t tally) after(o outcome, strikes int) (tally, conclusion) {
	n := tally(strikes)
	switch o {
	case passed:
		t = min(max(t, 0)+1, n)
	case down:
		t = -n
	default:
		t = max(min(t, 0)-1, -n)
	}
	switch t {
	case n:
		return t, healthy
	case -n:
		return t, unhealthy
	}
	return t, undecided
}

// A picture is what readers are shown of an instance, and why.
type picture struct {
	healthy    bool // as it is shown
	registered bool // as it was registered, or as an operator said
	mine       bool // the newest check is of this node's life
}

// A deed is what a conclusion leads to.
type deed uint8

const (
	nothing deed = iota
	write        // a record of the check, and so what is shown
	ask          // a second node first, then write
)

// deed: what is shown changes if it is wrong. Where it is another node's check
// that makes the difference to what is registered, we write the same: its
// records go with it. Nobody is called unhealthy on one node's word alone, if
// there is another to ask.
func (p picture) deed(c conclusion, others bool) deed {
	is := c == healthy
	switch {
	case c == undecided:
		return nothing
	case is != p.healthy && !is && others:
		return ask
	case is != p.healthy, is != p.registered && !p.mine:
		return write
	}
	return nothing
}
