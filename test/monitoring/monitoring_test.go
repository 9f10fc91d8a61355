// Package monitoring_test holds what operators are given together: alerts, the
// dashboard and docs/operations.md must speak of the same metrics, and each
// alert must fire and say what to do. That the guide has all metrics of a node
// is shown in pkg/node (TestMetricsAreDocumented).
package monitoring_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"go.yaml.in/yaml/v3"
)

const (
	guide     = "../../docs/operations.md"
	alerts    = "../../deploy/prometheus/alerts.yaml"
	tests     = "../../deploy/prometheus/alerts_test.yaml"
	example   = "../../deploy/prometheus/prometheus.yaml"
	dashboard = "../../deploy/grafana/starling.json"
)

type rule struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

func readRules(t *testing.T) (rules []rule) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []rule } }
	decode(t, alerts, yaml.Unmarshal, &file)
	for _, g := range file.Groups {
		rules = append(rules, g.Rules...)
	}
	if len(rules) < 40 {
		t.Fatalf("%d rules only", len(rules))
	}
	return rules
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func decode(t *testing.T, file string, unmarshal func([]byte, any) error, v any) {
	t.Helper()
	if err := unmarshal([]byte(read(t, file)), v); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// promtool runs it where it is installed; in CI it must be.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	bin, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("promtool is missing (Debian: apt-get install prometheus)")
		}
		t.Skip("promtool is missing (Debian: apt-get install prometheus)")
	}
	if out, err := exec.Command(bin, args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func TestAlerts(t *testing.T) {
	promtool(t, "check", "rules", alerts)
	promtool(t, "check", "config", example)
	promtool(t, "test", "rules", tests)
}

// Each alert says how bad it is, what it is, and where it is written what to do.
func TestEachAlertIsExplained(t *testing.T) {
	const runbook = "https://github.com/starling-registry/starling/blob/main/docs/operations.md#"
	var tested struct {
		Tests []struct {
			Name  string
			Exprs []struct {
				Samples []any `yaml:"exp_samples"`
			} `yaml:"promql_expr_test"`
		}
	}
	decode(t, tests, yaml.Unmarshal, &tested)
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, test := range tested.Tests {
		for _, e := range test.Exprs {
			fires[test.Name] = fires[test.Name] || len(e.Samples) > 0
			silent[test.Name] = silent[test.Name] || len(e.Samples) == 0
		}
	}
	sections := anchors(read(t, guide))
	seen := map[string]bool{}
	for _, r := range readRules(t) {
		if seen[r.Alert] {
			t.Errorf("%s is there twice", r.Alert)
		}
		seen[r.Alert] = true
		if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) {
			t.Errorf("%s: severity %q", r.Alert, r.Labels["severity"])
		}
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s: has no summary or description", r.Alert)
		}
		anchor, ok := strings.CutPrefix(r.Annotations["runbook_url"], runbook)
		if !ok || anchor != strings.ToLower(r.Alert) || !sections[anchor] {
			t.Errorf("%s: runbook_url %s leads nowhere", r.Alert, r.Annotations["runbook_url"])
		}
		if !fires[r.Alert] || !silent[r.Alert] {
			t.Errorf("%s: %s does not show when it fires and when it does not", r.Alert, tests)
		}
	}
	for _, s := range regexp.MustCompile(`(?m)^### (Starling\w+)$`).FindAllStringSubmatch(read(t, guide), -1) {
		if !seen[s[1]] {
			t.Errorf("the guide has a section about %s, which is no alert", s[1])
		}
	}
}

// documented is the table of metrics in the guide: name → kind and labels.
func documented(t *testing.T) map[string]struct {
	kind   string
	labels []string
} {
	t.Helper()
	all := map[string]struct {
		kind   string
		labels []string
	}{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(starling_\\w+)(?:\\{([a-z_,]+)\\})?` \\| (\\w+) \\|").FindAllStringSubmatch(read(t, guide), -1) {
		all[row[1]] = struct {
			kind   string
			labels []string
		}{row[3], strings.Split(row[2], ",")}
	}
	if len(all) < 100 {
		t.Fatalf("the guide has %d metrics only", len(all))
	}
	return all
}

var (
	inExpr  = regexp.MustCompile(`\b(starling_\w+)(?:\{([^}]*)\})?`)
	matched = regexp.MustCompile(`(\w+)\s*(?:=|!=|=~|!~)\s*"`)
	// of every target
	common = []string{"job", "instance"}
)

// Alerts, the dashboard and the guide itself name no metric and no label that
// there is not.
func TestNamedMetricsExist(t *testing.T) {
	metrics := documented(t)
	used := map[string]bool{}
	check := func(where, expr string) {
		for _, m := range inExpr.FindAllStringSubmatch(expr, -1) {
			name, is := m[1], metrics[m[1]]
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if h, ok := metrics[strings.TrimSuffix(name, suffix)]; ok && h.kind == "histogram" && strings.HasSuffix(name, suffix) {
					is, name = h, strings.TrimSuffix(name, suffix)
				}
			}
			if is.kind == "" {
				t.Errorf("%s: there is no metric %s", where, name)
				continue
			}
			used[name] = true
			for _, l := range matched.FindAllStringSubmatch(m[2], -1) {
				if !slices.Contains(is.labels, l[1]) && !slices.Contains(common, l[1]) {
					t.Errorf("%s: %s has no label %s", where, name, l[1])
				}
			}
		}
	}
	for _, r := range readRules(t) {
		check(r.Alert, r.Expr)
	}
	for _, e := range expressions(t) {
		check("dashboard: "+e.where, e.expr)
	}
	if len(used) < 40 {
		t.Errorf("%d metrics are used only", len(used))
	}
	prose, _, _ := strings.Cut(read(t, guide), "## Metrics")
	for _, code := range regexp.MustCompile("`[^`\n]+`").FindAllString(prose, -1) {
		check("the guide", code)
	}
}

type expression struct{ where, expr string }

type source struct{ Type, UID string }

type panel struct {
	ID                       int
	Type, Title, Description string
	Datasource               *source
	GridPos                  struct{ H, W, X, Y int }
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Targets                  []struct {
		RefID      string
		Datasource *source
		Expr       string
	}
}

type board struct {
	Title, UID    string
	SchemaVersion int
	Panels        []panel
	Annotations   struct {
		List []struct {
			Name, Expr string
			Datasource *source
		}
	}
	Templating struct {
		List []struct {
			Name, Type string
			Datasource *source
			Query      any
		}
	}
}

func readBoard(t *testing.T) (b board) {
	t.Helper()
	decode(t, dashboard, json.Unmarshal, &b)
	return b
}

func expressions(t *testing.T) (all []expression) {
	t.Helper()
	b := readBoard(t)
	for _, p := range b.Panels {
		for _, target := range p.Targets {
			all = append(all, expression{p.Title + " " + target.RefID, target.Expr})
		}
	}
	for _, a := range b.Annotations.List {
		all = append(all, expression{"annotation " + a.Name, a.Expr})
	}
	return all
}

// What can be seen without Grafana: the model is whole, each panel asks the data
// source that was chosen, and says what it shows and in which unit.
func TestDashboard(t *testing.T) {
	b := readBoard(t)
	if b.Title == "" || b.UID == "" || b.SchemaVersion < 36 || len(b.Panels) < 30 {
		t.Errorf("%q %q, schema %d, %d panels", b.Title, b.UID, b.SchemaVersion, len(b.Panels))
	}
	chosen := func(where string, s *source) {
		if s == nil || s.Type != "prometheus" || s.UID != "${datasource}" {
			t.Errorf("%s does not ask the chosen data source", where)
		}
	}
	variables := map[string]bool{"__rate_interval": true}
	for _, v := range b.Templating.List {
		variables[v.Name] = true
		if v.Type == "query" {
			chosen("variable "+v.Name, v.Datasource)
		}
	}
	for _, name := range []string{"datasource", "job", "node"} {
		if !variables[name] {
			t.Errorf("there is no variable %s", name)
		}
	}
	ids, cells := map[int]bool{}, map[[2]int]string{}
	for _, p := range b.Panels {
		if ids[p.ID] || p.ID == 0 {
			t.Errorf("%s: the id %d is not its own", p.Title, p.ID)
		}
		ids[p.ID] = true
		if p.GridPos.W < 1 || p.GridPos.H < 1 || p.GridPos.X < 0 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("%s: is outside of the grid: %+v", p.Title, p.GridPos)
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other := cells[at]; other != "" {
					t.Fatalf("%s lies on %s", p.Title, other)
				}
				cells[at] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		chosen(p.Title, p.Datasource)
		if p.Title == "" || p.Description == "" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
			t.Errorf("panel %d %q lacks a title, a description, a unit or a query", p.ID, p.Title)
		}
		refs := map[string]bool{}
		for _, target := range p.Targets {
			chosen(p.Title, target.Datasource)
			if refs[target.RefID] {
				t.Errorf("%s: two queries are %s", p.Title, target.RefID)
			}
			refs[target.RefID] = true
			if !strings.Contains(target.Expr, `job="$job"`) {
				t.Errorf("%s: asks for all clusters: %s", p.Title, target.Expr)
			}
			for _, v := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(target.Expr, -1) {
				if !variables[v[1]] {
					t.Errorf("%s: there is no variable %s", p.Title, v[1])
				}
			}
		}
	}
	for _, a := range b.Annotations.List {
		chosen("annotation "+a.Name, a.Datasource)
	}

	// Each query as a rule, for the parser of Prometheus.
	type recording struct {
		Record string `yaml:"record"`
		Expr   string `yaml:"expr"`
	}
	var rules []recording
	for i, e := range expressions(t) {
		expr := strings.NewReplacer("$__rate_interval", "1m", "$job", "starling", "$node", ".*").Replace(e.expr)
		rules = append(rules, recording{fmt.Sprint("dashboard:", i), expr})
	}
	out, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "dashboard.yaml")
	if err := os.WriteFile(file, out, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", file)
}

// Links between the documents for operators lead somewhere.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#\s]*)(?:#([^)\s]+))?\)`)
	for _, doc := range []string{guide, "../../docs/cluster.md", "../../README.md"} {
		text := read(t, doc)
		for _, l := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(l[1], "://") {
				continue
			}
			target, content := doc, text
			if l[1] != "" {
				target = filepath.Join(filepath.Dir(doc), l[1])
				if _, err := os.Stat(target); err != nil {
					t.Errorf("%s: link to %s: %v", doc, l[1], err)
					continue
				}
				content = ""
				if l[2] != "" {
					content = read(t, target)
				}
			}
			if l[2] != "" && !anchors(content)[l[2]] {
				t.Errorf("%s: %s has no section #%s", doc, target, l[2])
			}
		}
	}
}

// anchors are those that GitHub gives the headings of a text.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	fenced := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		if heading := strings.TrimLeft(line, "#"); !fenced && heading != line && strings.HasPrefix(heading, " ") {
			all[strings.Map(func(r rune) rune {
				switch {
				case r == ' ':
					return '-'
				case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
					return unicode.ToLower(r)
				}
				return -1
			}, strings.TrimSpace(heading))] = true
		}
	}
	return all
}
