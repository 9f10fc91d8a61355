package verdict

// Settled is until when a recording has to go on so that all can be judged that
// follows from its steps: what may still be wrong is not wrong yet, and a lease
// may end wrongly only when it ends.
func (e *Expectation) Settled() Millis {
	d, last := e.derived, Millis(0)
	for _, s := range d.t.Steps {
		last = max(last, s.ToMs)
	}
	by := last
	until := func(t Millis) {
		if t < never { // else nothing mends it, and no recording is long enough
			by = max(by, t)
		}
	}
	redo := map[Millis]*Provider{}
	for j := range d.t.Providers {
		p := &d.t.Providers[j]
		redo[p.RedoMs] = p
		for i := range d.t.Observers {
			until(d.rightBy(p, &d.t.Observers[i], last))
		}
	}
	for _, p := range redo { // of each kind one
		for _, m := range d.w.nodes {
			for _, n := range d.w.nodes {
				for _, z := range d.w.silences(m, n) {
					refused := d.w.refuses(m, n, z)
					if !refused && z.to < never {
						continue // it speaks again, so no lease runs
					}
					_, need := d.l.leases(refused, p.RedoMs)
					over, paused := shift(z.from, need, d.l.Preserved, d.pauses(m, false))
					until(d.late(d.held(m, n, z.from, over, paused)))
				}
			}
			for _, r := range d.w.restarts(m) {
				over, paused := shift(r.up, d.given(p.RedoMs), d.l.Preserved, d.pauses(m, false))
				until(d.late(d.held(m, "", r.up, over, paused)))
			}
		}
	}
	return by
}
