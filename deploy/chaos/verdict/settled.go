package verdict

// Settled is until when a recording has to go on so that all can be judged that
// follows from its steps: what may still be wrong is not wrong yet.
func (e *Expectation) Settled() Millis {
	d, last := e.derived, Millis(0)
	for _, s := range d.t.Steps {
		last = max(last, s.ToMs)
	}
	by := last
	for i := range d.t.Observers {
		for j := range d.t.Providers {
			by = max(by, d.rightBy(&d.t.Providers[j], &d.t.Observers[i], last))
		}
	}
	return by
}
