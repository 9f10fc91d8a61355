package verdict

import (
	"maps"
	"slices"
)

// A Loss is a persistent instance that a node does not list although it was
// acknowledged and never taken back: Write is that acknowledged request.
type Loss struct {
	Address string `json:"address"`
	Node    string `json:"node"`
	Write   Write  `json:"write"`
}

// writes judges what nodes keep. For each address there is a register that is
// set and cleared. An acknowledged request took effect at some time between
// question and answer; one that failed did so until unknownFor after that, or
// never. So an outcome is possible exactly if some request for it can have been
// the last: it can be later than each acknowledged one for the other outcome.
func (v *Verdict) writes(t *Timeline, e *Expectation) {
	by := map[string][]Write{}
	for _, w := range t.Writes {
		by[w.Address] = append(by[w.Address], w)
	}
	answered := 0
	kept := map[string]map[string]bool{}
	for _, k := range t.Kept {
		if k.Error != "" {
			continue
		}
		answered++
		kept[k.Node] = map[string]bool{}
		for _, a := range k.Addresses {
			if kept[k.Node][a] {
				v.fault("%s keeps %s twice", k.Node, a)
			}
			kept[k.Node][a] = true
			if by[a] == nil {
				v.fault("%s keeps %s, which nobody wrote", k.Node, a)
			}
		}
	}
	if len(t.Writes) > 0 && answered == 0 {
		v.fault("no node told what it keeps, so %d persistent writes could not be judged", len(t.Writes))
		return
	}
	nodes := slices.Sorted(maps.Keys(kept))
	for _, address := range slices.Sorted(maps.Keys(by)) {
		ws := by[address]
		there, _ := possible(ws, true)
		gone, acked := possible(ws, false)
		differ := map[bool][]string{}
		for _, n := range nodes {
			has := kept[n][address]
			differ[has] = append(differ[has], n)
			switch {
			case has && !there:
				v.fault("%s keeps %s, although it was deregistered and that acknowledged", n, address)
			case !has && !gone:
				v.Lost = append(v.Lost, Loss{address, n, acked})
				v.fault("%s lost %s: %s acknowledged it at %v", n, address, acked.Node, acked.ToMs)
			}
		}
		// What may be carried out while nodes are asked may be at some of them.
		late := slices.ContainsFunc(ws, func(w Write) bool { return !w.Acked && w.ToMs+unknownFor >= t.EndMs })
		if there && gone && !late && len(differ[true]) > 0 && len(differ[false]) > 0 {
			v.fault("%v keep %s and %v do not", differ[true], address, differ[false])
		}
	}
}

// possible: the address can be registered, or not, after the writes. Else last is
// the newest acknowledged one that says so.
func possible(ws []Write, registered bool) (ok bool, last Write) {
	against := ever // the latest beginning of an acknowledged one for the other outcome
	for _, w := range ws {
		if w.Acked && w.Deregister == registered && w.FromMs > against {
			against, last = w.FromMs, w
		}
	}
	if against == ever && !registered {
		return true, last // it was not there at first
	}
	return slices.ContainsFunc(ws, func(w Write) bool {
		until := w.ToMs
		if !w.Acked {
			until += unknownFor
		}
		return w.Deregister != registered && until >= against
	}), last
}
