package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
)

//go:embed page.html
var pageHTML string

//go:embed page.css
var pageCSS string

//go:embed page.js
var pageJS string

var pageTemplate = template.Must(template.New("page").Parse(pageHTML))

// A page is what the template shows.
type page struct {
	Title, Sentence string
	Passed, Several bool
	Facts           []fact
	Head            []string
	Index           []indexRow
	Scenes          []*scene
	CSS             template.CSS
	JS              template.JS
}

type indexRow struct {
	ID, Name, Result string
	Columns          []string
}

// HTML writes one file that needs nothing beside it: no network, no script to
// work. With several runs it has a table of them, and a section for each.
func HTML(w io.Writer, r *Report) error {
	p := page{Title: "Chaos report", Sentence: r.sentence(), Passed: r.Passed(), Facts: r.facts(), Several: len(r.Runs) != 1, CSS: template.CSS(pageCSS), JS: template.JS(pageJS)}
	if len(r.Runs) == 1 {
		p.Title = "Chaos report: " + clean(r.Runs[0].Name)
	}
	for i, run := range r.Runs {
		s := newScene(fmt.Sprintf("r%d", i+1), run, len(r.Runs))
		p.Scenes = append(p.Scenes, s)
		row := indexRow{ID: s.ID, Name: s.Name, Result: string(run.Result)}
		for _, c := range run.columns() {
			row.Columns = append(row.Columns, clean(c))
		}
		p.Index = append(p.Index, row)
	}
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, &p); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}
