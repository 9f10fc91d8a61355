package report

import (
	"cmp"
	"maps"
	"slices"

	"github.com/starling-registry/starling/deploy/chaos/verdict"
)

// A stretch is a time with those it concerns.
type stretch struct {
	from, to verdict.Millis
	kind     string   // a state, or a reason
	names    []string // shown as they are
	spells   int      // how many were put together
}

// sweep cuts stretches that overlap into such that do not, each with all that it
// concerns; those that follow each other with the same names are one. Those that
// are no time at all, or less, are made a moment.
func sweep(list []stretch) []stretch {
	if len(list) == 0 {
		return nil
	}
	type event struct {
		at   verdict.Millis
		open bool
		i    int
	}
	list = slices.Clone(list)
	var events []event
	for i := range list {
		st := &list[i]
		if st.to <= st.from {
			if st.to = st.from + 1; st.to < st.from { // the end of all numbers
				st.from, st.to = st.from-1, st.from
			}
		}
		events = append(events, event{st.from, true, i}, event{st.to, false, i})
	}
	slices.SortFunc(events, func(a, b event) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.i, b.i)) })
	active := map[int]bool{}
	var found []stretch
	for i := 0; i < len(events); {
		at := events[i].at
		for ; i < len(events) && events[i].at == at; i++ {
			if events[i].open {
				active[events[i].i] = true
			} else {
				delete(active, events[i].i)
			}
		}
		if len(active) == 0 || i == len(events) {
			continue
		}
		st := stretch{from: at, to: events[i].at, spells: 1}
		names, kinds := map[string]bool{}, map[string]bool{}
		for j := range active {
			for _, n := range list[j].names {
				names[n] = true
			}
			kinds[list[j].kind] = true
		}
		st.names = slices.SortedFunc(maps.Keys(names), natural)
		st.kind = joinKinds(kinds)
		found = append(found, st)
	}
	return joined(found)
}

func joinKinds(kinds map[string]bool) string {
	delete(kinds, "")
	all := ""
	for _, k := range slices.Sorted(maps.Keys(kinds)) {
		if all != "" {
			all += "; "
		}
		all += k
	}
	return all
}

// joined makes one of those that follow each other and say the same.
func joined(list []stretch) []stretch {
	var found []stretch
	for _, st := range list {
		if n := len(found) - 1; n >= 0 && found[n].to >= st.from && found[n].kind == st.kind && slices.Equal(found[n].names, st.names) {
			found[n].to = max(found[n].to, st.to)
			continue
		}
		found = append(found, st)
	}
	return found
}

// thin puts together what is nearest in time until a lane can carry it. Nothing
// is left out: what was put together says how many it was.
func (s *scene) thin(list []stretch, most int) []stretch {
	if len(list) <= most {
		return list
	}
	slot := func(m verdict.Millis) int { return int(s.left(m) / 100 * float64(most)) }
	var found []stretch
	var names, kinds map[string]bool
	finish := func() {
		if n := len(found) - 1; n >= 0 && names != nil {
			found[n].names, found[n].kind = slices.SortedFunc(maps.Keys(names), natural), joinKinds(kinds)
		}
		names, kinds = nil, nil
	}
	for _, st := range list {
		n := len(found) - 1
		if n < 0 || slot(found[n].from) != slot(st.from) {
			finish()
			found = append(found, st)
			continue
		}
		if names == nil {
			names, kinds = map[string]bool{}, map[string]bool{found[n].kind: true}
			for _, name := range found[n].names {
				names[name] = true
			}
		}
		for _, name := range st.names {
			names[name] = true
		}
		kinds[st.kind] = true
		found[n].to = max(found[n].to, st.to)
		found[n].spells += st.spells
	}
	finish()
	return found
}

func sortedKeys[V any](m map[string]V) []string {
	return slices.SortedFunc(maps.Keys(m), natural)
}

func sortedInts[V any](m map[int]V) []int { return slices.Sorted(maps.Keys(m)) }
