package report

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/starling-registry/starling/deploy/chaos/verdict"
)

// A parsed page is its elements in their order.
type parsed struct {
	elements []element
	ids      map[string]int // index of the element
}

type element struct {
	tag     string
	attr    map[string]string
	parents []int
	text    string
}

// parse reads a page and fails if its elements are not balanced, an id is there
// twice, a link leads nowhere, or it loads anything.
func parse(t *testing.T, r *Report) *parsed {
	t.Helper()
	var b bytes.Buffer
	if err := HTML(&b, r); err != nil {
		t.Fatal(err)
	}
	p := &parsed{ids: map[string]int{}}
	void := map[string]bool{"meta": true, "br": true, "img": true, "link": true, "input": true, "hr": true}
	var open []int
	z := html.NewTokenizer(bytes.NewReader(b.Bytes()))
	for {
		kind := z.Next()
		if kind == html.ErrorToken {
			break
		}
		token := z.Token()
		switch kind {
		case html.StartTagToken, html.SelfClosingTagToken:
			e := element{tag: token.Data, attr: map[string]string{}, parents: slices.Clone(open)}
			for _, a := range token.Attr {
				if _, twice := e.attr[a.Key]; twice {
					t.Errorf("<%s> has %s twice", e.tag, a.Key)
				}
				e.attr[a.Key] = a.Val
			}
			if id, ok := e.attr["id"]; ok {
				if _, twice := p.ids[id]; twice || id == "" {
					t.Errorf("id %q is there twice", id)
				}
				p.ids[id] = len(p.elements)
			}
			if kind == html.StartTagToken && !void[e.tag] {
				open = append(open, len(p.elements))
			}
			p.elements = append(p.elements, e)
		case html.EndTagToken:
			if len(open) == 0 || p.elements[open[len(open)-1]].tag != token.Data {
				t.Fatalf("</%s> closes nothing", token.Data)
			}
			open = open[:len(open)-1]
		case html.TextToken:
			for _, i := range open {
				if e := &p.elements[i]; e.tag == "td" || e.tag == "style" || e.tag == "script" {
					e.text += token.Data
				}
			}
		}
	}
	if len(open) != 0 {
		t.Errorf("%d elements are not closed", len(open))
	}
	for _, e := range p.elements {
		for _, key := range []string{"src", "srcset", "action", "data", "poster", "formaction"} {
			if v, ok := e.attr[key]; ok {
				t.Errorf("<%s %s=%q> loads something", e.tag, key, v)
			}
		}
		if href, ok := e.attr["href"]; ok {
			if _, ok := p.ids[strings.TrimPrefix(href, "#")]; !ok || !strings.HasPrefix(href, "#") {
				t.Errorf("link to %q leads nowhere", href)
			}
		}
		for _, key := range []string{"aria-labelledby"} {
			if id, ok := e.attr[key]; ok {
				if _, ok := p.ids[id]; !ok {
					t.Errorf("%s=%q names nothing", key, id)
				}
			}
		}
		switch e.tag {
		case "style", "script":
			for _, bad := range []string{"http:", "https:", "url(", "@import", "fetch(", "import("} {
				if strings.Contains(e.text, bad) {
					t.Errorf("<%s> has %s", e.tag, bad)
				}
			}
		case "link", "img", "iframe", "object", "embed", "base":
			t.Errorf("there is a <%s>", e.tag)
		}
		if strings.Contains(e.attr["style"], "ZgotmplZ") || strings.Contains(e.attr["style"], "NaN") || strings.Contains(e.attr["style"], "Inf") {
			t.Errorf("style=%q", e.attr["style"])
		}
	}
	if _, err := html.Parse(bytes.NewReader(b.Bytes())); err != nil {
		t.Error(err)
	}
	return p
}

// within are the elements inside of one, with a class.
func (p *parsed) within(i int, class string) []element {
	var list []element
	for _, e := range p.elements {
		if slices.Contains(e.parents, i) && slices.Contains(strings.Fields(e.attr["class"]), class) {
			list = append(list, e)
		}
	}
	return list
}

// style is a number of percent of an element's style.
func (e *element) style(key string) float64 {
	for part := range strings.SplitSeq(e.attr["style"], ";") {
		if k, v, ok := strings.Cut(part, ":"); ok && k == key {
			f, err := strconv.ParseFloat(strings.TrimSuffix(v, "%"), 64)
			if err != nil {
				return -1
			}
			return f
		}
	}
	return -1
}

// checkGaps demands that each gap of a run is in the lane of its observer: spans
// that cover it without a hole, each of which names the provider or says that it
// names not all.
func checkGaps(t *testing.T, p *parsed, s *scene, class string, gaps []verdict.Gap) {
	t.Helper()
	lanes := map[string][]element{}
	for _, g := range gaps {
		l := s.lanes[g.Observer]
		if l == nil {
			t.Errorf("observer %q has no lane", g.Observer)
			continue
		}
		spans, ok := lanes[l.ID]
		if !ok {
			row, ok := p.ids[l.ID]
			if !ok {
				t.Errorf("the lane of %q is not in the page", g.Observer)
				continue
			}
			spans = p.within(row, class)
			slices.SortStableFunc(spans, func(a, b element) int { return cmp.Compare(a.style("left"), b.style("left")) })
			lanes[l.ID] = spans
		}
		const near = 0.001 // percent: what rounding does
		at, shown := s.left(g.FromMs), false
		for i := range spans {
			e := &spans[i]
			title, left := e.attr["title"], e.style("left")
			if left <= at+near && at-near <= left+e.style("width") && (strings.Contains(title, clean(g.Provider)) || strings.Contains(title, " more · ")) {
				at, shown = max(at, left+e.style("width")), true
			}
		}
		if !shown || at < s.left(g.ToMs)-near {
			t.Errorf("the page does not show that %q misses %q from %d to %d", g.Observer, g.Provider, g.FromMs, g.ToMs)
		}
	}
}

func TestHTML(t *testing.T) {
	for name, r := range map[string]*Report{
		"calm": calm(), "broken": broken(), "several": several(), "recorded": recorded(t), "big": big(60, 15, 600_000),
		"nothing": {}, "one empty run": {Runs: []*Run{{}}}, "an empty timeline": {Runs: []*Run{{Timeline: &verdict.Timeline{}, Verdict: &verdict.Verdict{}}}},
	} {
		t.Run(name, func(t *testing.T) {
			p := parse(t, r)
			for i, run := range r.Runs {
				s := newScene(fmt.Sprintf("r%d", i+1), run, len(r.Runs))
				_, v := run.judged()
				if run.Timeline == nil {
					continue
				}
				checkGaps(t, p, s, "gap", v.Gaps)
				checkGaps(t, p, s, "excused", v.Excused)
				for j := range v.Gone {
					if d := &v.Gone[j]; d.Late() && len(p.within(p.ids[s.lanes[d.Observer].ID], "late")) == 0 {
						t.Errorf("the page does not show that %s saw %s too long", d.Observer, d.Provider)
					}
				}
				for _, f := range v.Faults {
					if !slices.ContainsFunc(p.elements, func(e element) bool { return e.tag == "td" && e.text == clean(f) }) {
						t.Errorf("the page does not say %q", f)
					}
				}
			}
			scripts := 0
			for _, e := range p.elements {
				if e.tag == "script" {
					scripts++
				}
			}
			if scripts != 1 {
				t.Errorf("%d scripts: a name became one", scripts)
			}
		})
	}
}

// TestHTMLSize: the worst run still makes a page that opens at once.
func TestHTMLSize(t *testing.T) {
	const most = 3 << 20
	long := big(100, 25, 1_800_000)
	flapping := flapping()
	many := &Report{}
	for range 13 {
		many.Runs = append(many.Runs, big(100, 25, 300_000).Runs[0])
	}
	for name, r := range map[string]*Report{"long": long, "flapping": flapping, "many": many} {
		var b bytes.Buffer
		if err := HTML(&b, r); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d kB, %d spans", name, b.Len()>>10, bytes.Count(b.Bytes(), []byte("<b class=")))
		if b.Len() > most {
			t.Errorf("%s has %d bytes, more than %d", name, b.Len(), most)
		}
	}
	if !strings.Contains(pageText(t, flapping), "more, in the JSON report") {
		t.Error("a table that is cut off does not say so")
	}
}

func pageText(t *testing.T, r *Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := HTML(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
