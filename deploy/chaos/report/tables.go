package report

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/starling-registry/starling/deploy/chaos/verdict"
)

// tables say what the lanes show, with a way to each place in the timeline.
func (s *scene) tables(observers []verdict.Observer) {
	s.stepGrid()
	s.gapGrid("gaps", "Live providers that were missing", "None: no live provider was missing from any view.", s.verdict.Gaps)
	s.goneGrid()
	s.lostGrid()
	s.faultGrid()
	s.gapGrid("excused", "Absences that are excused", "None.", s.verdict.Excused)
	s.sdkGrid()
	s.observerGrid(observers)
	s.nodeGrid()
	s.writeGrid()
}

func (s *scene) add(id, caption, empty string, head []string, rows [][]entry) {
	for i := len(head) - 1; i > 0; i-- { // a column that nobody has anything in
		if len(rows) == 0 || slices.ContainsFunc(rows, func(row []entry) bool { return row[i].Text != "" }) {
			continue
		}
		head = slices.Delete(slices.Clone(head), i, i+1)
		for j := range rows {
			rows[j] = slices.Delete(rows[j], i, i+1)
		}
	}
	g := &grid{ID: s.ID + "-" + id, Caption: caption, Empty: empty, Head: head, Rows: rows}
	if len(rows) > s.rows {
		g.Rows = rows[:s.rows]
		g.More = fmt.Sprintf("and %d more, in the JSON report", len(rows)-s.rows)
	}
	s.Tables = append(s.Tables, g)
}

// place is the span of an observer's lane that shows it at this time.
func (s *scene) place(observer, class string, at verdict.Millis) string {
	l := s.lanes[observer]
	if l == nil {
		return ""
	}
	for _, b := range l.Spans {
		if strings.Contains(b.Class, class) && b.From <= at && at <= b.To {
			return "#" + b.ID
		}
	}
	return "#" + l.ID
}

func (s *scene) stepGrid() {
	var rows [][]entry
	for i, row := range s.run.steps() {
		href := ""
		if i < len(s.Bands) {
			href = "#" + s.Bands[i].ID
		}
		rows = append(rows, []entry{
			{Text: strconv.Itoa(i + 1), Href: href}, {Text: clean(row.Fault), Href: href}, {Text: clean(cmp.Or(row.Target, "all"))},
			{Text: clock(row.FromMs)}, {Text: clock(row.ToMs)}, {Text: long(row.ToMs - row.FromMs)},
			{Text: row.missingText(), Bad: row.missing > 0}, {Text: row.goneText(), Bad: row.late > 0},
			{Text: row.convergedText(), Bad: row.convergedLate()}, {Text: clean(row.Says)},
		})
	}
	if len(rows) > 0 {
		s.add("steps", "Steps: what was broken, and what came of it", "", []string{"#", "Fault", "Target", "From", "To", "For", "Live missing", "Dead gone after", "Converged after", "What it is"}, rows)
	}
	if len(s.timeline.Marks) == 0 && len(rows) > 0 {
		return
	}
	var marks [][]entry
	var boxes []*box
	for _, g := range s.Groups {
		for _, l := range g.Lanes {
			if l.Kind == "marks" {
				boxes = l.Spans
			}
		}
	}
	for i, m := range s.timeline.Marks {
		e := entry{Text: clock(m.AtMs)}
		if i < len(boxes) {
			e.Href = "#" + boxes[i].ID
		}
		marks = append(marks, []entry{e, {Text: clean(m.What)}})
	}
	s.add("marks", "What was done", "Nothing was done.", []string{"At", "What"}, marks)
}

func (s *scene) gapGrid(id, caption, empty string, gaps []verdict.Gap) {
	class := map[string]string{"gaps": "gap", "excused": "excused"}[id]
	head := []string{"From", "To", "For", "Provider", "SDK", "On", "Missed by"}
	if id == "excused" {
		head = append(head, "Excused because")
	}
	var rows [][]entry
	for _, e := range episodes(gaps) {
		until := clock(e.ToMs)
		if e.Open {
			until += ", the end"
		}
		ends := strings.SplitN(clocks(e.FromMs, e.ToMs), " to ", 2)
		if !e.Open {
			until = ends[1]
		}
		row := []entry{
			{Text: ends[0], Href: s.place(e.Observer, class, e.FromMs)}, {Text: until}, {Text: long(e.longest)},
			{Text: clean(e.Provider)}, {Text: clean(e.SDK)}, {Text: clean(e.On)}, {Text: count(len(e.observers), "observer") + ": " + some(e.observers, 4)},
		}
		if id == "excused" {
			row = append(row, entry{Text: clean(cmp.Or(e.Excused, "no reason given"))})
		}
		rows = append(rows, row)
	}
	s.add(id, caption, empty, head, rows)
}

func (s *scene) goneGrid() {
	gone := slices.Clone(s.verdict.Gone)
	slices.SortStableFunc(gone, func(a, b verdict.Departure) int {
		return cmp.Or(-compareBool(a.Late(), b.Late()), -cmp.Compare(a.AfterMs, b.AfterMs), natural(a.Provider, b.Provider))
	})
	died := s.died()
	var rows [][]entry
	for i := range gone {
		d := &gone[i]
		class, how := "dead", "in time"
		if d.Late() {
			class = "late"
			how = "too late"
			switch {
			case d.Never:
				how = "never went"
			case d.Returned:
				how = "came back"
			}
		}
		at := died[d.Provider]
		href := ""
		if d.AfterMs > 0 || d.Late() {
			href = s.place(d.Observer, class, at+d.AfterMs)
		}
		rows = append(rows, []entry{
			{Text: clean(d.Provider), Href: href}, {Text: clean(d.SDK)}, {Text: clock(at)}, {Text: long(d.AfterMs), Bad: d.Late()},
			{Text: long(d.LimitMs)}, {Text: how, Bad: d.Late()}, {Text: clean(d.Observer)}, {Text: clean(d.Why)},
		})
	}
	s.add("gone", "Providers that died or left, and how long they were seen", "Nobody died.", []string{"Provider", "SDK", "Ended at", "Seen for", "Allowed", "Went", "Last seen by", "Allowed because"}, rows)
}

// faultGrid leads to the lane of whom a fault names.
func (s *scene) faultGrid() {
	var rows [][]entry
	for _, f := range s.verdict.Faults {
		e := entry{Text: clean(f), Bad: true}
		best := ""
		for name, l := range s.lanes {
			if len(name) > len(best) && strings.Contains(f, name) {
				best, e.Href = name, "#"+l.ID
			}
		}
		rows = append(rows, []entry{e})
	}
	s.add("faults", "Faults", "None.", []string{"Fault"}, rows)
}

func (s *scene) observerGrid(observers []verdict.Observer) {
	views := map[string]int{}
	for i := range s.timeline.Views {
		views[s.timeline.Views[i].Observer]++
	}
	total := func(l *lane, class string) string {
		n, sum := 0, verdict.Millis(0)
		for _, b := range l.Spans {
			if strings.HasSuffix(b.Class, class) {
				n++
				sum += max(b.To-b.From, 0)
			}
		}
		if n == 0 {
			return "-"
		}
		return long(sum)
	}
	var rows [][]entry
	for _, o := range observers {
		l := s.lanes[o.Name]
		if l == nil {
			continue
		}
		gap, late := total(l, "gap"), total(l, "late")
		rows = append(rows, []entry{
			{Text: l.Name, Href: "#" + l.ID}, {Text: clean(o.SDK)}, {Text: clean(o.Node)}, {Text: strconv.Itoa(views[o.Name])},
			{Text: gap, Bad: gap != "-"}, {Text: total(l, "excused")}, {Text: total(l, "dead")}, {Text: late, Bad: late != "-"}, {Text: total(l, "blind")},
		})
	}
	s.add("observers", "Observers, and for how long something was not as it should be", "There were none.",
		[]string{"Observer", "SDK", "Began on", "Lists", "Somebody missing", "Excused", "A dead one seen", "Too long", "No answer"}, rows)
}

// nodeGrid is what became of nodes and links, in the order of time.
func (s *scene) nodeGrid() {
	var boxes []*box
	name := map[*box]string{}
	for _, g := range s.Groups {
		for _, l := range g.Lanes {
			if l.Kind == "node" || l.Kind == "link" {
				for _, b := range l.Spans {
					boxes = append(boxes, b)
					name[b] = l.Name
				}
			}
		}
	}
	slices.SortStableFunc(boxes, func(a, b *box) int { return cmp.Compare(a.From, b.From) })
	var rows [][]entry
	for _, b := range boxes {
		rows = append(rows, []entry{{Text: clock(b.From), Href: "#" + b.ID}, {Text: clock(b.To)}, {Text: long(b.To - b.From)}, {Text: name[b]}, {Text: b.Label}})
	}
	if len(rows) > 0 {
		s.add("nodes", "Nodes and links", "", []string{"From", "To", "For", "Which", "Was"}, rows)
	}
}

func (s *scene) writeGrid() {
	type sum struct {
		asked, acked, failed, unknown int
		slowest                       verdict.Millis
	}
	byNode := map[string]*sum{}
	for i := range s.timeline.Writes {
		w := &s.timeline.Writes[i]
		if byNode[w.Node] == nil {
			byNode[w.Node] = &sum{}
		}
		n := byNode[w.Node]
		n.asked++
		switch {
		case w.Acked:
			n.acked++
			n.slowest = max(n.slowest, w.ToMs-w.FromMs)
		case w.Error != "":
			n.failed++
		default:
			n.unknown++
		}
	}
	kept := map[string]string{}
	for _, k := range s.timeline.Kept {
		kept[k.Node] = strconv.Itoa(len(k.Addresses))
		if k.Error != "" {
			kept[k.Node] = "did not answer: " + clean(k.Error)
		}
		if byNode[k.Node] == nil {
			byNode[k.Node] = &sum{}
		}
	}
	var rows [][]entry
	for _, node := range sortedKeys(byNode) {
		n := byNode[node]
		rows = append(rows, []entry{{Text: clean(node)}, {Text: strconv.Itoa(n.asked)}, {Text: strconv.Itoa(n.acked)}, {Text: strconv.Itoa(n.failed)},
			{Text: strconv.Itoa(n.unknown)}, {Text: long(n.slowest)}, {Text: cmp.Or(kept[node], "not asked")}})
	}
	if len(rows) > 0 {
		s.add("writes", "Persistent writes, by the node that was asked", "", []string{"Node", "Asked", "Acknowledged", "Failed", "Unknown", "Slowest", "Instances at the end"}, rows)
	}
}

// lostGrid leads to when the lost write was acknowledged.
func (s *scene) lostGrid() {
	var rows [][]entry
	for _, l := range s.verdict.Lost {
		href := ""
		if s.acked != nil {
			href = "#" + s.acked.ID
		}
		rows = append(rows, []entry{{Text: clean(l.Address), Href: href, Bad: true}, {Text: clean(l.Node)}, {Text: clean(l.Write.Node)}, {Text: clock(l.Write.FromMs)}, {Text: clock(l.Write.ToMs)}})
	}
	if len(s.timeline.Writes) > 0 || len(rows) > 0 {
		s.add("lost", "Acknowledged persistent writes that were lost", "None.", []string{"Address", "Lost by", "Acknowledged by", "Asked at", "Acknowledged at"}, rows)
	}
}

func (s *scene) sdkGrid() {
	moment := func(m *verdict.Millis, say func(verdict.Millis) string) string {
		if m == nil {
			return "-"
		}
		return say(*m)
	}
	var rows [][]entry
	for _, k := range s.verdict.Summary.SDKs {
		rows = append(rows, []entry{
			{Text: clean(k.SDK)}, {Text: strconv.Itoa(k.Providers)}, {Text: strconv.Itoa(k.LiveMissing), Bad: k.LiveMissing > 0}, {Text: long(k.LongestGapMs), Bad: k.LiveMissing > 0},
			{Text: moment(k.FirstGapMs, clock)}, {Text: moment(k.LastGapMs, clock)}, {Text: long(k.LongestExcusedMs)},
			{Text: moment(k.FirstGoneMs, long)}, {Text: moment(k.LastGoneMs, long)}, {Text: strconv.Itoa(k.DeadLate), Bad: k.DeadLate > 0},
		})
	}
	if len(rows) > 0 {
		s.add("sdks", "Providers by SDK", "", []string{"SDK", "Providers", "Missing", "Longest gap", "First gap at", "Last gap until", "Longest excused", "First dead gone after", "Last dead gone after", "Too late"}, rows)
	}
}
