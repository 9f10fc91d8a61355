package report

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/starling-registry/starling/deploy/chaos/verdict"
)

// mostLines bounds each kind of trouble in the text: the rest is in the files.
const mostLines = 12

// A style is a terminal's colours, none where they are not wanted. They stand
// beside words that say the same.
type style struct{ colour bool }

func (s style) good(text string) string { return s.wrap("32", text) }
func (s style) bad(text string) string  { return s.wrap("1;31", text) }
func (s style) head(text string) string { return s.wrap("1", text) }
func (s style) wrap(code, text string) string {
	if !s.colour || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// Text writes what is printed at the end of a report: of one run all about it,
// of several a table with a line for each. Colours are for terminals.
func Text(w io.Writer, r *Report, colour bool) error {
	s := style{colour}
	var b bytes.Buffer
	if len(r.Runs) == 1 {
		r.Runs[0].text(&b, s)
	} else {
		r.table(&b, s)
		b.WriteString("\n" + s.result(r.sentence()) + "\n")
	}
	b.WriteByte('\n')
	facts := &table{}
	for _, f := range r.facts() {
		facts.add(cell{text: f.Name}, cell{text: f.Value})
	}
	facts.write(&b, "")
	_, err := w.Write(b.Bytes())
	return err
}

// TextRun writes what is printed after a run while more follow.
func TextRun(w io.Writer, run *Run, colour bool) error {
	var b bytes.Buffer
	run.text(&b, style{colour})
	_, err := w.Write(b.Bytes())
	return err
}

func (s style) result(sentence string) string {
	word, rest, ok := strings.Cut(sentence, ":")
	if !ok {
		return s.head(sentence)
	}
	switch word {
	case "Failed":
		word = s.bad(word)
	case "Passed":
		word = s.good(word)
	default:
		word = s.head(word)
	}
	return word + ":" + rest
}

func (r *Run) text(b *bytes.Buffer, s style) {
	if r.Why == "" {
		r.stepTable(b, s)
		t := &table{}
		for _, f := range r.figureList() {
			value := cell{text: f.Value}
			switch {
			case f.Bad:
				value.paint = s.bad
			case f.Must:
				value.paint = s.good
			}
			t.add(cell{text: f.Name}, value, cell{text: f.Note})
		}
		t.write(b, "")
		b.WriteByte('\n')
	}
	b.WriteString(s.result(r.sentence()) + "\n")
	r.wrong(b, s)
	for _, n := range capped(r.Notes, mostLines, "note") {
		fmt.Fprintf(b, "  note: %s\n", clean(n))
	}
}

// wrong says what was wrong, and what was excused, grouped.
func (r *Run) wrong(b *bytes.Buffer, s style) {
	_, v := r.judged()
	var lines []string
	for _, e := range episodes(v.Gaps) {
		lines = append(lines, s.bad("missing:")+" "+e.line())
	}
	lines = capped(lines, mostLines, "absence")
	var late []string
	for i := range v.Gone {
		if d := &v.Gone[i]; d.Late() {
			late = append(late, fmt.Sprintf("%s %s, by %s", s.bad("dead:"), departed(d), clean(d.Observer)))
		}
	}
	lines = append(lines, capped(late, mostLines, "dead provider")...)
	var faults []string
	for _, f := range v.Faults {
		faults = append(faults, s.bad("fault:")+" "+clean(f))
	}
	lines = append(lines, capped(faults, mostLines, "fault")...)
	lines = append(lines, capped(excuses(v.Excused), mostLines, "excuse")...)
	for _, l := range lines {
		b.WriteString("  " + l + "\n")
	}
}

// line tells an episode: who, when, by whom.
func (e *episode) line() string {
	until := ""
	if e.Open {
		until = ", to the end"
	}
	on := ""
	if e.On != "" {
		on = " (on " + clean(e.On) + ")"
	}
	return fmt.Sprintf("%s%s from %s (%s%s), by %s", clean(e.Provider), on, clocks(e.FromMs, e.ToMs), long(e.ToMs-e.FromMs), until, some(e.observers, 5))
}

// departed tells how a dead provider was seen too long.
func departed(d *verdict.Departure) string {
	how := "was seen for " + long(d.AfterMs)
	switch {
	case d.Never:
		how = "never went"
	case d.Returned:
		how = "came back, and was last seen after " + long(d.AfterMs)
	}
	why := ""
	if d.Why != "" {
		why = " (" + clean(d.Why) + ")"
	}
	return fmt.Sprintf("%s %s, allowed are %s%s", clean(d.Provider), how, long(d.LimitMs), why)
}

// excuses sums up the absences that were allowed: one line for each reason.
func excuses(gaps []verdict.Gap) []string {
	why := map[string][]verdict.Gap{}
	var order []string
	for _, g := range gaps {
		if why[g.Excused] == nil {
			order = append(order, g.Excused)
		}
		why[g.Excused] = append(why[g.Excused], g)
	}
	var lines []string
	for _, reason := range order {
		observers := map[string]bool{}
		from, to := why[reason][0].FromMs, why[reason][0].ToMs
		for _, g := range why[reason] {
			observers[g.Observer] = true
			from, to = min(from, g.FromMs), max(to, g.ToMs)
		}
		who := distinct(why[reason])
		lines = append(lines, fmt.Sprintf("excused: %s missing from %s, for up to %s, by %s: %s", count(len(who), "provider"),
			clocks(from, to), long(longest(why[reason])), count(len(observers), "observer"), clean(cmp.Or(reason, "no reason given"))))
	}
	return lines
}

// capped keeps a list readable and says what it left out.
func capped(lines []string, most int, noun string) []string {
	if len(lines) <= most {
		return lines
	}
	return append(slices.Clone(lines[:most]), "and "+count(len(lines)-most, "more "+noun))
}

func (r *Run) stepTable(b *bytes.Buffer, s style) {
	steps := r.steps()
	if len(steps) == 0 {
		return
	}
	t := &table{}
	t.head(s, "STEP", "FAULT", "TARGET", "FROM", "TO", "LIVE MISSING", "DEAD GONE AFTER", "CONVERGED AFTER")
	for i := range steps {
		row := &steps[i]
		missing := cell{text: row.missingText()}
		if row.missing > 0 {
			missing.paint = s.bad
		}
		gone := cell{text: row.goneText()}
		if row.late > 0 {
			gone.paint = s.bad
		}
		converged := cell{text: row.convergedText()}
		if row.convergedLate() {
			converged.paint = s.bad
		}
		t.add(cell{text: strconv.Itoa(i + 1)}, cell{text: row.Fault}, cell{text: cmp.Or(row.Target, "all")},
			cell{text: clock(row.FromMs)}, cell{text: clock(row.ToMs)}, missing, gone, converged)
	}
	t.write(b, "")
	b.WriteByte('\n')
}

func (row *stepRow) missingText() string {
	s := strconv.Itoa(row.missing)
	if row.missing > 0 {
		s += ", up to " + long(row.longest)
	}
	if row.excused > 0 {
		s += fmt.Sprintf(" (%d excused)", row.excused)
	}
	return s
}

func (row *stepRow) goneText() string {
	if row.died == 0 {
		return "nobody died"
	}
	s := long(row.gone)
	if row.late > 0 {
		s += fmt.Sprintf(" (%d too late)", row.late)
	}
	return s
}

func (row *stepRow) convergedText() string {
	c := row.converged
	switch {
	case c == nil:
		return "-"
	case c.Never:
		return "not within " + long(c.UntilMs-c.FromMs)
	case c.AfterMs <= 0:
		return "at once"
	}
	return long(c.AfterMs)
}

// convergedLate: the verdict had a limit for it, and it was later.
func (row *stepRow) convergedLate() bool {
	c := row.converged
	return c != nil && c.LimitMs > 0 && c.AfterMs > c.LimitMs
}

// A fact is a name and a value; a figure also says whether it is as it must be.
type fact struct {
	Name, Value, Note string
	Must              bool // there is a right value for it
	Bad               bool // and this is not it
}

// facts are of the whole report: where it comes from, and how to get it again.
func (r *Report) facts() []fact {
	var list []fact
	add := func(name, value string) {
		if value != "" {
			list = append(list, fact{Name: name, Value: clean(value)})
		}
	}
	add("Server", r.Server)
	add("SDKs", strings.Join(r.SDKs, ", "))
	add("Machine", r.Machine)
	if !r.Started.IsZero() {
		add("Started", r.Started.UTC().Format("2006-01-02 15:04:05 UTC"))
	}
	if r.Took > 0 {
		add("Took", took(r.Took))
	}
	add("Seed", r.Seed)
	if r.Command != "" {
		list = append(list, fact{Name: "Run it again", Value: printable(r.Command)})
	}
	return list
}

func took(d time.Duration) string { return long(verdict.Millis(d.Milliseconds())) }

// figureList is a run's figures in the words of the report.
func (r *Run) figureList() []fact {
	f := r.figures()
	t, v := r.judged()
	gaps, longestGap := "in no view", "none"
	if n := len(v.Gaps); n > 0 {
		gaps, longestGap = count(n, "gap")+" in all views", long(f.LongestGapMs)
	}
	excused := ""
	if f.Excused > 0 {
		excused = fmt.Sprintf("beside %s, up to %s", count(f.Excused, "excused gap"), long(f.LongestExcusedMs))
	}
	dead := "nobody died"
	if f.Dead > 0 {
		dead = fmt.Sprintf("of %d that died or left, seen up to %s", f.Dead, long(f.LongestStaleMs))
	}
	converged := fact{Name: "Convergence", Value: "not asked"}
	switch {
	case f.ConvergedMs != nil && *f.ConvergedMs <= 0:
		converged.Value, converged.Note = "at once", "after the last fault was mended"
	case f.ConvergedMs != nil:
		converged.Value, converged.Note = long(*f.ConvergedMs), "after the last fault was mended"
	case len(v.Converged) > 0:
		converged.Value, converged.Note, converged.Bad = "never", "after the last fault was mended", true
	}
	list := []fact{
		{Name: "Live providers missing", Value: strconv.Itoa(f.LiveMissing), Note: gaps, Must: true, Bad: f.LiveMissing > 0},
		{Name: "Longest gap", Value: longestGap, Note: excused, Must: true, Bad: len(v.Gaps) > 0},
		{Name: "Dead seen too long", Value: strconv.Itoa(f.DeadLate), Note: dead, Must: true, Bad: f.DeadLate > 0},
		converged,
	}
	if len(t.Writes) > 0 || f.WritesLost > 0 {
		list = append(list, fact{Name: "Persistent writes lost", Value: strconv.Itoa(f.WritesLost),
			Note: fmt.Sprintf("of %d acknowledged, %d tried", f.WritesAcked, len(t.Writes)), Must: true, Bad: f.WritesLost > 0})
	}
	others := max(f.Faults-len(v.Lost), 0)
	list = append(list, fact{Name: "Other faults", Value: strconv.Itoa(others), Must: true, Bad: others > 0})
	if f.Flapping > 0 {
		list = append(list, fact{Name: "Vanished and returned", Value: strconv.Itoa(f.Flapping), Note: "of the providers, excused or not"})
	}
	if r.Verify != "" {
		list = append(list, fact{Name: "Nodes compared", Value: clean(r.Verify)})
	}
	return append(list, fact{Name: "Providers", Value: strconv.Itoa(len(t.Providers)), Note: "seen by " + count(len(t.Observers), "observer")})
}

func (r *Report) table(b *bytes.Buffer, s style) {
	t := &table{}
	t.head(s, "RUN", "RESULT", "LIVE MISSING", "DEAD GONE AFTER", "CONVERGED AFTER", "WRITES LOST", "NODES COMPARED", "FAULTS", "TOOK")
	for _, run := range r.Runs {
		result := cell{text: string(run.Result), paint: s.good}
		switch run.Result {
		case Failed:
			result.paint = s.bad
		case Skipped:
			result.paint = nil
		}
		row := []cell{{text: run.Name}, result}
		for _, text := range run.columns() {
			row = append(row, cell{text: text})
		}
		t.add(row...)
	}
	t.write(b, "")
}

// columns are a run's figures in a table of runs.
func (r *Run) columns() []string {
	if r.Why != "" {
		row := []string{"-", "-", "-", "-", "-", "-", took(r.Took)}
		if r.Result == Skipped {
			row[len(row)-1] = "-"
		}
		return row
	}
	f := r.figures()
	t, _ := r.judged()
	missing, gone, converged, lost := strconv.Itoa(f.LiveMissing), r.gone(), "-", "-"
	if f.LiveMissing > 0 {
		missing += ", up to " + long(f.LongestGapMs)
	}
	if f.ConvergedMs != nil {
		converged = long(*f.ConvergedMs)
		if *f.ConvergedMs <= 0 {
			converged = "at once"
		}
	}
	if len(t.Writes) > 0 || f.WritesLost > 0 {
		lost = strconv.Itoa(f.WritesLost)
	}
	return []string{missing, gone, converged, lost, cmp.Or(r.Verify, "-"), strconv.Itoa(f.Faults), took(r.Took)}
}

// gone is how long the slowest dead provider was seen: of all SDKs but Python's,
// which repeats a registration later, and of that.
func (r *Run) gone() string {
	_, v := r.judged()
	var usual, python verdict.Millis
	some := map[bool]int{}
	for i := range v.Gone {
		d := &v.Gone[i]
		slot := &usual
		if d.SDK == "python" {
			slot = &python
		}
		some[d.SDK == "python"]++
		*slot = max(*slot, d.AfterMs)
	}
	switch {
	case some[false]+some[true] == 0:
		return "-"
	case some[true] == 0:
		return long(usual)
	case some[false] == 0:
		return "Python " + long(python)
	}
	return long(usual) + ", Python " + long(python)
}

// A table is text in columns. Colours have no width.
type table struct{ rows [][]cell }

type cell struct {
	text  string
	paint func(string) string
}

func (t *table) head(s style, names ...string) {
	var row []cell
	for _, n := range names {
		row = append(row, cell{text: n, paint: s.head})
	}
	t.rows = append(t.rows, row)
}

func (t *table) add(row ...cell) {
	for i := range row {
		row[i].text = printable(row[i].text)
	}
	t.rows = append(t.rows, row)
}

func (t *table) write(b *bytes.Buffer, indent string) {
	var widths []int
	for _, row := range t.rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c.text))
		}
	}
	for _, row := range t.rows {
		last := len(row) - 1
		for last > 0 && row[last].text == "" {
			last--
		}
		b.WriteString(indent)
		for i, c := range row[:last+1] {
			text := c.text
			if c.paint != nil {
				text = c.paint(text)
			}
			b.WriteString(text)
			if i < last {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c.text)+2))
			}
		}
		b.WriteByte('\n')
	}
}
