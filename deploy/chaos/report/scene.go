package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/starling-registry/starling/deploy/chaos/verdict"
)

// What one page can carry and stay quick: a report is a few hundred spans as a
// rule, these bounds are for the worst. The JSON report has everything.
const (
	mostSpans  = 4000 // of all lanes of a page
	mostLanes  = 150  // of observers, and as many of links
	mostRows   = 400  // of a table, shared among runs
	mostPoints = 1200 // of a curve
	mostNames  = 6    // in what is said of a span
)

// A scene is a run as the page shows it: lanes over one axis of time, and tables
// of the same facts.
type scene struct {
	ID, Name, Says, Sentence, Command string
	Result                            Result
	Figures                           []fact
	Drawn                             bool // there is a timeline to show
	From, To                          verdict.Millis
	Ticks                             []tick
	Bands                             []*box   // of steps
	StepRows                          [][]*box // the same, such that none overlap in a row
	Groups                            []group
	Tables                            []*grid
	Notes                             []string

	run      *Run
	perLane  int
	rows     int
	ids      int
	timeline *verdict.Timeline
	verdict  *verdict.Verdict
	lanes    map[string]*lane // of observers, by name
	acked    *lane            // of persistent writes
}

type tick struct{ Left, Text string }

// A group is lanes under one heading.
type group struct {
	Heading string
	Lanes   []*lane
}

// A lane is a thing over time.
type lane struct {
	ID, Kind, Name, Hint string
	Curve                string // path of an area, over 100000 by 100
	Spans                []*box
}

// A box is a stretch of time in a lane.
type box struct {
	ID, Class, Label, Title string
	Number                  int    // of a step
	Left, Width             string // in percent
	From, To                verdict.Millis
	Room                    string // for the label, in percent of the axis
}

// A grid is a table. Without rows it says Empty.
type grid struct {
	ID, Caption, Empty string
	Head               []string
	Rows               [][]entry
	More               string
}

type entry struct {
	Text, Href string
	Bad        bool
}

// left is where a time is on the axis, in percent.
func (s *scene) left(m verdict.Millis) float64 {
	all := float64(s.To) - float64(s.From)
	return min(max((float64(m)-float64(s.From))/all*100, 0), 100)
}

func percent(f float64) string { return strconv.FormatFloat(f, 'f', 4, 64) }

func (s *scene) box(class string, from, to verdict.Millis, label, title string) *box {
	s.ids++
	l := s.left(from)
	return &box{
		ID: fmt.Sprintf("%s-s%d", s.ID, s.ids), Class: class, Label: label, Title: title,
		From: from, To: to, Left: percent(l), Width: percent(max(s.left(to)-l, 0)),
	}
}

func newScene(id string, r *Run, runs int) *scene {
	t, v := r.judged()
	s := &scene{
		ID: id, Name: clean(r.Name), Says: clean(r.Says), Sentence: r.sentence(), Command: printable(r.Command), Result: r.Result,
		run: r, timeline: t, verdict: v, rows: max(mostRows/runs, 40), lanes: map[string]*lane{},
	}
	for _, n := range capped(r.Notes, 40, "note") {
		s.Notes = append(s.Notes, clean(n))
	}
	if r.Timeline == nil {
		return s
	}
	s.Drawn = true
	s.Figures = r.figureList()
	s.setAxis()
	observers, left := s.observers()
	s.perLane = min(max(mostSpans/runs/(len(observers)+len(t.Nodes)/4+1), 12), 400)
	s.steps()
	s.nodeLanes()
	s.linkLanes()
	s.observerLanes(observers, left)
	s.writeLanes()
	s.tables(observers)
	return s
}

// setAxis lets the time begin a little before the first disturbance, where
// something is known of it.
func (s *scene) setAxis() {
	t := s.timeline
	s.To = max(t.EndMs, 1)
	before := slices.ContainsFunc(t.Views, func(v verdict.View) bool { return v.AtMs < 0 })
	if before {
		s.From = -max(s.To/50, 200)
	}
	step := tickStep(float64(s.To) - float64(s.From))
	for at := 0.0; at <= float64(s.To) && len(s.Ticks) < 40; at += step {
		s.Ticks = append(s.Ticks, tick{percent(s.left(verdict.Millis(at))), tickText(at, step)})
	}
}

// tickStep is a round number of milliseconds that makes about ten ticks.
func tickStep(all float64) float64 {
	for _, step := range []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 10e3, 15e3, 30e3, 60e3, 120e3, 300e3, 600e3, 1800e3, 3600e3} {
		if all/step <= 12 {
			return step
		}
	}
	return math.Pow(10, math.Ceil(math.Log10(all/10)))
}

func tickText(at, step float64) string {
	m := verdict.Millis(at)
	_, ms := magnitude(m)
	switch {
	case step >= 1000:
		return fmt.Sprintf("%d:%02d", ms/60_000, ms/1000%60)
	case step >= 100:
		return clock(m)
	}
	return fmt.Sprintf("%d:%02d.%03d", ms/60_000, ms/1000%60, ms%1000)
}

// steps become bands over the whole height.
func (s *scene) steps() {
	for i, row := range s.run.steps() {
		if i == s.perLane*4 {
			break
		}
		what := strings.TrimSpace(clean(row.Fault) + " " + clean(row.Target))
		title := fmt.Sprintf("Step %d: %s · %s (%s)", i+1, what, clocks(row.FromMs, row.ToMs), long(row.ToMs-row.FromMs))
		if row.Says != "" {
			title += " · " + clean(row.Says)
		}
		title += fmt.Sprintf(" · live missing: %s, dead gone after: %s, converged after: %s", row.missingText(), row.goneText(), row.convergedText())
		s.Bands = append(s.Bands, s.box("step", row.FromMs, row.ToMs, what, title))
		s.Bands[i].Number = i + 1
	}
	const mostStepRows = 4
	for _, b := range s.Bands {
		row := slices.IndexFunc(s.StepRows, func(list []*box) bool {
			last := list[len(list)-1]
			return last.From < b.From && last.To <= b.From
		})
		switch {
		case row >= 0:
			s.StepRows[row] = append(s.StepRows[row], b)
		case len(s.StepRows) < mostStepRows:
			s.StepRows = append(s.StepRows, []*box{b})
		default:
			s.StepRows[mostStepRows-1] = append(s.StepRows[mostStepRows-1], b)
		}
	}
	for _, list := range s.StepRows {
		for i, b := range list {
			end := 100.0
			if i+1 < len(list) {
				end = s.left(list[i+1].From)
			}
			b.Room = percent(max(end-s.left(b.From), 0))
		}
	}
	if len(s.timeline.Marks) == 0 {
		return
	}
	l := s.lane("marks", "What was done", "")
	for i, m := range s.timeline.Marks {
		if i == s.perLane {
			break
		}
		l.Spans = append(l.Spans, s.box("mark", m.AtMs, m.AtMs, "", clock(m.AtMs)+" · "+clean(m.What)))
	}
	s.Groups = append(s.Groups, group{"", []*lane{l}})
}

func (s *scene) lane(kind, name, hint string) *lane {
	s.ids++
	return &lane{ID: fmt.Sprintf("%s-l%d", s.ID, s.ids), Kind: kind, Name: clean(name), Hint: clean(hint)}
}

// states are the classes of what a node can be, and what the page calls it.
var states = map[verdict.NodeState]string{
	verdict.Starting: "starting", verdict.Up: "up", verdict.Frozen: "frozen", verdict.Stopping: "stopping", verdict.Down: "down",
}

func (s *scene) nodeLanes() {
	history := map[string][]verdict.NodeChange{}
	for _, c := range s.timeline.Nodes {
		history[c.Node] = append(history[c.Node], c)
	}
	var g group
	g.Heading = "Nodes"
	for i, name := range sortedKeys(history) {
		if i == mostLanes {
			break
		}
		changes := history[name]
		slices.SortStableFunc(changes, func(a, b verdict.NodeChange) int { return cmp.Compare(a.AtMs, b.AtMs) })
		l := s.lane("node", name, "")
		var found []stretch
		for j, c := range changes {
			st := stretch{from: c.AtMs, to: s.To, kind: string(c.State), names: []string{clean(string(c.State))}, spells: 1}
			if j+1 < len(changes) {
				st.to = changes[j+1].AtMs
			}
			if st.to > s.From && st.to > st.from {
				found = append(found, st)
			}
		}
		for _, st := range s.thin(joined(found), s.perLane) {
			class, ok := states[verdict.NodeState(st.kind)]
			label := class
			if !ok {
				class, label = "unknown", cmp.Or(clean(st.kind), "?")
			}
			if st.spells > 1 {
				class, label = "unknown", "changing"
			}
			title := fmt.Sprintf("%s · %s (%s)", someShown(st.names, mostNames), clocks(st.from, st.to), long(st.to-st.from))
			l.Spans = append(l.Spans, s.box("st "+class, st.from, st.to, label, title))
		}
		g.Lanes = append(g.Lanes, l)
	}
	if len(g.Lanes) > 0 {
		s.Groups = append(s.Groups, g)
	}
}

// linkText is what a link does to what goes over it; "" if nothing.
func linkText(c *verdict.LinkChange) string {
	if c.Cut {
		return "cut"
	}
	var parts []string
	if c.Loss > 0 {
		parts = append(parts, strconv.FormatFloat(c.Loss*100, 'g', 3, 64)+" % lost")
	}
	if c.DelayMs > 0 {
		parts = append(parts, long(c.DelayMs)+" late")
	}
	if c.Rate > 0 {
		parts = append(parts, rate(c.Rate))
	}
	return strings.Join(parts, ", ")
}

// A pair is two ends and what happened between them.
type pair struct {
	a, b    string
	history []stretch
}

// pairs are the links that were cut or made worse. What happens to both
// directions is said once, what happens to one names it.
func (s *scene) pairs() []pair {
	type direction struct{ from, to string }
	changes := map[direction][]verdict.LinkChange{}
	for _, c := range s.timeline.Links {
		d := direction{c.From, c.To}
		changes[d] = append(changes[d], c)
	}
	both := map[direction]map[bool][]stretch{} // from the lesser name to the greater, whether it is that way round
	for d, list := range changes {
		slices.SortStableFunc(list, func(a, b verdict.LinkChange) int { return cmp.Compare(a.AtMs, b.AtMs) })
		key, forth := d, natural(d.from, d.to) <= 0
		if !forth {
			key = direction{d.to, d.from}
		}
		if both[key] == nil {
			both[key] = map[bool][]stretch{}
		}
		for i := range list {
			st := stretch{from: list[i].AtMs, to: s.To, kind: linkText(&list[i])}
			if i+1 < len(list) {
				st.to = list[i+1].AtMs
			}
			if st.kind != "" && st.to > s.From && st.to > st.from {
				both[key][forth] = append(both[key][forth], st)
			}
		}
	}
	var found []pair
	for key, ways := range both {
		p := pair{a: key.from, b: key.to}
		var all []stretch
		for forth, list := range ways {
			other := ways[!forth]
			for _, st := range list {
				same := func(o stretch) bool { return o.kind == st.kind && near(o.from, st.from) && near(o.to, st.to) }
				i := slices.IndexFunc(other, same)
				switch {
				case i < 0:
					from, to := p.a, p.b
					if !forth {
						from, to = to, from
					}
					st.names = []string{st.kind + ", only " + clean(from) + " → " + clean(to)}
				case !forth:
					continue // said of the other direction
				default:
					st.names = []string{st.kind}
					st.from, st.to = min(st.from, other[i].from), max(st.to, other[i].to)
				}
				if strings.HasPrefix(st.names[0], "cut") {
					st.kind = "cut"
				} else {
					st.kind = ""
				}
				all = append(all, st)
			}
		}
		if p.history = sweep(all); len(p.history) > 0 {
			found = append(found, p)
		}
	}
	slices.SortFunc(found, func(x, y pair) int { return cmp.Or(natural(x.a, y.a), natural(x.b, y.b)) })
	return found
}

// near: what is done to many links is done to one after the other.
func near(a, b verdict.Millis) bool { return math.Abs(float64(a)-float64(b)) <= 300 }

// linkLanes has a lane for all links to which the same happened at the same time:
// of a cluster cut into halves one lane, not twelve.
func (s *scene) linkLanes() {
	type bundle struct {
		links   []string
		history []stretch
	}
	same := func(a, b []stretch) bool {
		return slices.EqualFunc(a, b, func(x, y stretch) bool {
			return slices.Equal(x.names, y.names) && near(x.from, y.from) && near(x.to, y.to)
		})
	}
	var bundles []*bundle
	for _, p := range s.pairs() {
		k := slices.IndexFunc(bundles, func(b *bundle) bool { return same(b.history, p.history) })
		if k < 0 {
			bundles = append(bundles, &bundle{history: p.history})
			k = len(bundles) - 1
		}
		bundles[k].links = append(bundles[k].links, clean(p.a)+" – "+clean(p.b))
	}
	if len(bundles) == 0 {
		return
	}
	g := group{Heading: "Links that were cut or made worse"}
	for i, b := range bundles {
		if i == mostLanes {
			g.Heading += " (and " + strconv.Itoa(len(bundles)-mostLanes) + " more)"
			break
		}
		l := s.lane("link", some(b.links, 2), strings.Join(b.links, ", "))
		for _, st := range s.thin(b.history, s.perLane) {
			class := "worse"
			if st.kind == "cut" {
				class = "cut"
			}
			title := fmt.Sprintf("%s · %s (%s) · %s", someShown(st.names, mostNames), clocks(st.from, st.to), long(st.to-st.from), l.Hint)
			l.Spans = append(l.Spans, s.box("ln "+class, st.from, st.to, someShown(st.names, 1), title))
		}
		g.Lanes = append(g.Lanes, l)
	}
	s.Groups = append(s.Groups, g)
}

// observers are those that the timeline has, and those that only the verdict
// knows. If there are too many for a page, those that saw something wrong stay.
func (s *scene) observers() (list []verdict.Observer, left int) {
	known, wrong := map[string]bool{}, map[string]bool{}
	for _, o := range s.timeline.Observers {
		if !known[o.Name] {
			known[o.Name] = true
			list = append(list, o)
		}
	}
	saw := func(name string) {
		wrong[name] = true
		if !known[name] {
			known[name] = true
			list = append(list, verdict.Observer{Name: name})
		}
	}
	for _, g := range s.verdict.Gaps {
		saw(g.Observer)
	}
	for i := range s.verdict.Gone {
		if s.verdict.Gone[i].Late() {
			saw(s.verdict.Gone[i].Observer)
		}
	}
	for _, g := range s.verdict.Excused {
		if !known[g.Observer] {
			saw(g.Observer)
		}
	}
	order := func(a, b verdict.Observer) int {
		return cmp.Or(compareBool(a.Reader, b.Reader), cmp.Compare(a.SDK, b.SDK), natural(a.Node, b.Node), natural(a.Name, b.Name))
	}
	if len(list) > mostLanes {
		slices.SortStableFunc(list, func(a, b verdict.Observer) int {
			return cmp.Or(-compareBool(wrong[a.Name], wrong[b.Name]), order(a, b))
		})
		left = len(list) - mostLanes
		list = list[:mostLanes]
	}
	slices.SortStableFunc(list, order)
	return list, left
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func (s *scene) observerLanes(observers []verdict.Observer, left int) {
	byName := map[string][]verdict.View{}
	for _, v := range s.timeline.Views {
		byName[v.Observer] = append(byName[v.Observer], v)
	}
	gaps, excused, late := map[string][]stretch{}, map[string][]stretch{}, map[string][]stretch{}
	for _, g := range s.verdict.Gaps {
		name := clean(g.Provider)
		if g.On != "" {
			name += " (on " + clean(g.On) + ")"
		}
		gaps[g.Observer] = append(gaps[g.Observer], stretch{from: g.FromMs, to: g.ToMs, names: []string{name}})
	}
	for _, g := range s.verdict.Excused {
		excused[g.Observer] = append(excused[g.Observer], stretch{from: g.FromMs, to: g.ToMs, names: []string{clean(g.Provider)}, kind: g.Excused})
	}
	died := s.died()
	for i := range s.verdict.Gone {
		d := &s.verdict.Gone[i]
		if !d.Late() {
			continue
		}
		at := died[d.Provider]
		from := at + d.LimitMs
		if d.AfterMs <= d.LimitMs {
			from = at
		}
		late[d.Observer] = append(late[d.Observer], stretch{from: from, to: at + d.AfterMs, names: []string{departed(d)}})
	}
	var g group
	for _, o := range observers {
		heading := "Subscribers: " + cmp.Or(o.SDK, "of an unknown SDK")
		if o.Reader {
			heading = "Readers, each of one node"
		}
		if g.Heading != clean(heading) {
			if len(g.Lanes) > 0 {
				s.Groups = append(s.Groups, g)
			}
			g = group{Heading: clean(heading)}
		}
		hint := ""
		if o.Node != "" {
			hint = "on " + o.Node
		}
		if strings.HasSuffix(o.Name, "@"+o.Node) {
			hint = "" // the name says it
		}
		l := s.lane("observer", o.Name, hint)
		s.lanes[o.Name] = l
		views := s.spans(byName[o.Name])
		l.Curve = s.seen(views)
		add := func(class, word string, found []stretch) {
			for _, st := range s.thin(found, s.perLane) {
				n := len(st.names)
				title := fmt.Sprintf("%s: %s · %s (%s)", word, someShown(st.names, mostNames), clocks(st.from, st.to), long(st.to-st.from))
				if n > mostNames {
					title = fmt.Sprintf("%s: %d, %s · %s (%s)", word, n, someShown(st.names, mostNames), clocks(st.from, st.to), long(st.to-st.from))
				}
				if st.spells > 1 {
					title += fmt.Sprintf(" · %d stretches in this time", st.spells)
				}
				if st.kind != "" {
					title += " · " + clean(st.kind)
				}
				l.Spans = append(l.Spans, s.box("ob "+class, st.from, st.to, "", title))
			}
		}
		add("blind", "No answer, so it knew nothing", blind(views))
		add("dead", "Dead, still seen", sweep(s.deadSeen(views, died)))
		add("excused", "Missing, excused", sweep(excused[o.Name]))
		add("late", "Dead, seen too long", sweep(late[o.Name]))
		add("gap", "Missing", sweep(gaps[o.Name]))
		g.Lanes = append(g.Lanes, l)
	}
	if left > 0 {
		g.Heading += fmt.Sprintf(" (and %d more observers, in the JSON report)", left)
	}
	if len(g.Lanes) > 0 {
		s.Groups = append(s.Groups, g)
	}
}

// someShown is some for names that are clean already.
func someShown(names []string, most int) string {
	if len(names) > most+1 {
		return strings.Join(names[:most], ", ") + " and " + strconv.Itoa(len(names)-most) + " more"
	}
	return strings.Join(names, ", ")
}

func (s *scene) died() map[string]verdict.Millis {
	died := map[string]verdict.Millis{}
	for _, p := range s.timeline.Providers {
		if p.DiedMs != nil {
			died[p.Name] = *p.DiedMs
		}
	}
	return died
}

// A seenSpan is a view with its end.
type seenSpan struct {
	from, to verdict.Millis
	blind    bool
	seen     map[string]bool
}

func (s *scene) spans(views []verdict.View) []seenSpan {
	views = slices.Clone(views)
	slices.SortStableFunc(views, func(a, b verdict.View) int { return cmp.Compare(a.AtMs, b.AtMs) })
	var found []seenSpan
	for i, v := range views {
		sp := seenSpan{from: max(v.AtMs, s.From), to: s.To, blind: v.Blind}
		if i+1 < len(views) {
			sp.to = min(views[i+1].AtMs, s.To)
		}
		if sp.to <= sp.from {
			continue
		}
		sp.seen = make(map[string]bool, len(v.Seen))
		for _, name := range v.Seen {
			sp.seen[name] = true
		}
		found = append(found, sp)
	}
	return found
}

// seen is a curve of the share of live providers that an observer saw, of those
// that were due: one that comes during the run is from when it was first seen,
// as the verdict has it. Full is calm.
func (s *scene) seen(views []seenSpan) string {
	due := make([]bool, len(s.timeline.Providers))
	var deaths []verdict.Millis
	for i, p := range s.timeline.Providers {
		due[i] = p.UpMs <= 0
		if p.DiedMs != nil {
			deaths = append(deaths, *p.DiedMs)
		}
	}
	slices.Sort(deaths)
	deaths = slices.Compact(deaths)
	var c curve
	for _, v := range views {
		for i := range s.timeline.Providers {
			due[i] = due[i] || v.seen[s.timeline.Providers[i].Name]
		}
		from := v.from
		for from < v.to {
			to := v.to
			if i, _ := slices.BinarySearch(deaths, from+1); i < len(deaths) && deaths[i] < to {
				to = deaths[i]
			}
			live, seen := 0, 0
			for i := range s.timeline.Providers {
				p := &s.timeline.Providers[i]
				if !due[i] || p.DiedMs != nil && *p.DiedMs <= from {
					continue
				}
				live++
				if v.seen[p.Name] {
					seen++
				}
			}
			share := 1.0
			if seen < live {
				share = min(float64(seen)/float64(live), 0.9) // one of a hundred shows too
			}
			if v.blind {
				share = 0
			}
			c.add(s.left(from), s.left(to), share)
			from = to
		}
	}
	return c.path(1)
}

// deadSeen is when each dead provider was seen after its death.
func (s *scene) deadSeen(views []seenSpan, died map[string]verdict.Millis) []stretch {
	open := map[string]int{}
	var found []stretch
	for _, v := range views {
		if v.blind {
			clear(open)
			continue
		}
		for name, at := range died {
			if !v.seen[name] || v.to <= at {
				delete(open, name)
				continue
			}
			if i, ok := open[name]; ok {
				found[i].to = v.to
				continue
			}
			open[name] = len(found)
			found = append(found, stretch{from: max(v.from, at), to: v.to, names: []string{clean(name)}})
		}
	}
	return found
}

func blind(views []seenSpan) []stretch {
	var found []stretch
	for _, v := range views {
		if v.blind {
			found = append(found, stretch{from: v.from, to: v.to, kind: "", names: []string{"blind"}, spells: 1})
		}
	}
	found = joined(found)
	for i := range found {
		found[i].names = nil
	}
	return found
}

// writeLanes show the persistent writes: how many were acknowledged, how many
// were not, and how long the slowest answer took.
func (s *scene) writeLanes() {
	writes := s.timeline.Writes
	if len(writes) == 0 {
		return
	}
	width := max(1000, math.Ceil((float64(s.To)-float64(s.From))/mostPoints))
	type slot struct {
		acked, failed, unknown int
		slowest                verdict.Millis
		error                  string
	}
	slots := map[int]*slot{}
	for i := range writes {
		wr := &writes[i]
		if wr.FromMs < s.From || wr.FromMs > s.To {
			continue
		}
		n := int((float64(wr.FromMs) - float64(s.From)) / width)
		if slots[n] == nil {
			slots[n] = &slot{}
		}
		sl := slots[n]
		switch {
		case wr.Acked:
			sl.acked++
			sl.slowest = max(sl.slowest, wr.ToMs-wr.FromMs)
		case wr.Error != "":
			sl.failed++
			sl.error = wr.Error
		default:
			sl.unknown++
		}
	}
	order := sortedInts(slots)
	per := "/s"
	if width > 1000 {
		per = " in " + long(verdict.Millis(width))
	}
	at := func(n int) verdict.Millis { return s.From + verdict.Millis(float64(n)*width) }
	var most, worst int
	var slow verdict.Millis
	for _, sl := range slots {
		most, worst, slow = max(most, sl.acked), max(worst, sl.failed+sl.unknown), max(slow, sl.slowest)
	}
	var acked, slowest curve
	for _, n := range order {
		l, r := s.left(at(n)), s.left(at(n+1))
		acked.add(l, r, float64(slots[n].acked)/float64(max(most, 1)))
		slowest.add(l, r, float64(slots[n].slowest)/float64(max(slow, 1)))
	}
	la := s.lane("writes", "acknowledged", fmt.Sprintf("up to %d%s", most, per))
	la.Curve = acked.path(0)
	s.acked = la
	lf := s.lane("observer", "failed or unknown", fmt.Sprintf("up to %d%s", worst, per))
	var found []stretch
	counts := map[verdict.Millis]*slot{}
	for _, n := range order {
		sl := slots[n]
		if sl.failed+sl.unknown == 0 {
			continue
		}
		if k := len(found) - 1; k >= 0 && found[k].to >= at(n) {
			found[k].to = at(n + 1)
			sum := counts[found[k].from]
			sum.failed, sum.unknown, sum.error = sum.failed+sl.failed, sum.unknown+sl.unknown, cmp.Or(sl.error, sum.error)
			continue
		}
		found = append(found, stretch{from: at(n), to: at(n + 1)})
		counts[at(n)] = &slot{failed: sl.failed, unknown: sl.unknown, error: sl.error}
	}
	for i, st := range found {
		if i == s.perLane {
			break
		}
		sum := counts[st.from]
		title := fmt.Sprintf("Not acknowledged: %d failed, %d without an answer · %s (%s)", sum.failed, sum.unknown, clocks(st.from, st.to), long(st.to-st.from))
		if sum.error != "" {
			title += " · " + clean(sum.error)
		}
		lf.Spans = append(lf.Spans, s.box("ob unacked", st.from, st.to, "", title))
	}
	ls := s.lane("writes", "slowest answer", "up to "+long(slow))
	ls.Curve = slowest.path(0)
	s.Groups = append(s.Groups, group{"Persistent writes", []*lane{la, lf, ls}})
}

// A curve is steps of a share over the axis, in percent.
type curve struct {
	from, to, share []float64
}

func (c *curve) add(from, to, share float64) {
	if n := len(c.to) - 1; n >= 0 && c.share[n] == share && c.to[n] >= from {
		c.to[n] = to
		return
	}
	c.from, c.to, c.share = append(c.from, from), append(c.to, to), append(c.share, share)
}

// path is an area. Too many steps are put into slots of equal width, each of
// which shows its least share, or its greatest where calm is 0.
func (c *curve) path(calm float64) string {
	if len(c.from) > mostPoints {
		slots := make([]float64, mostPoints)
		set := make([]bool, mostPoints)
		for i := range c.from {
			a, b := int(c.from[i]/100*mostPoints), int(math.Ceil(c.to[i]/100*mostPoints))
			for j := max(a, 0); j < min(max(b, a+1), mostPoints); j++ {
				switch {
				case !set[j]:
					slots[j] = c.share[i]
				case calm == 1:
					slots[j] = min(slots[j], c.share[i])
				default:
					slots[j] = max(slots[j], c.share[i])
				}
				set[j] = true
			}
		}
		var d curve
		for j, share := range slots {
			if set[j] {
				d.add(float64(j)*100/mostPoints, float64(j+1)*100/mostPoints, share)
			}
		}
		*c = d
	}
	var b strings.Builder
	end := -1
	for i := range c.from {
		from, to, y := int(math.Round(c.from[i]*1000)), int(math.Round(c.to[i]*1000)), int(math.Round(100-c.share[i]*100))
		if to <= from {
			to = from + 1
		}
		if from != end {
			if end >= 0 {
				b.WriteString("V100Z")
			}
			fmt.Fprintf(&b, "M%d 100", from)
		}
		fmt.Fprintf(&b, "V%dH%d", y, to)
		end = to
	}
	if end >= 0 {
		b.WriteString("V100Z")
	}
	return b.String()
}
