package client

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// A document is docs/client.md by sections.
type document map[string]string

func readDocument(t *testing.T) document {
	t.Helper()
	text, err := os.ReadFile("../../docs/client.md")
	if err != nil {
		t.Fatal(err)
	}
	d := document{}
	for i, section := range strings.Split(string(text), "\n## ") {
		title, body, _ := strings.Cut(section, "\n")
		if i > 0 {
			d[title] = body
		}
	}
	return d
}

// table is the rows of all tables of a section, without their heads, by cells.
func (d document) table(t *testing.T, title string) (rows [][]string) {
	t.Helper()
	body, ok := d[title]
	if !ok {
		t.Fatalf("docs/client.md has no section %q", title)
	}
	lines := strings.Split(body, "\n")
	for i, line := range lines {
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|--") || i+1 < len(lines) && strings.HasPrefix(lines[i+1], "|--") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for n := range cells {
			cells[n] = strings.TrimSpace(cells[n])
		}
		rows = append(rows, cells)
	}
	return rows
}

var inQuotes = regexp.MustCompile("`([^`]*)`")

// quoted is all between backquotes.
func quoted(s string) (all []string) {
	for _, m := range inQuotes.FindAllStringSubmatch(s, -1) {
		all = append(all, m[1])
	}
	return all
}

// functions are those of a file, each with its comment.
func functions(t *testing.T, path string) map[string]string {
	t.Helper()
	src, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
		return nil
	}
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, path, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Error(err)
		return nil
	}
	found := map[string]string{}
	for _, d := range f.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
			from := f.Pos()
			if f.Doc != nil {
				from = f.Doc.Pos()
			}
			found[f.Name.Name] = string(src[files.Position(from).Offset:files.Position(f.End()).Offset])
		}
	}
	return found
}

// The table of behaviours in docs/client.md has every row, and the tests that a
// row names exist; those of this package name the row.
func TestDocumentation(t *testing.T) {
	missing := map[string]bool{}
	for article, rows := range []int{33, 7, 9, 10} {
		for n := range rows {
			missing[fmt.Sprintf("S%03d-%d", article, n+1)] = true
		}
	}
	files := map[string]map[string]string{}
	for _, row := range readDocument(t).table(t, "Behaviour, and the test that shows it") {
		if len(row) != 4 {
			t.Errorf("%q has %d cells, want 4", row, len(row))
			continue
		}
		id := row[0]
		if !missing[id] {
			t.Errorf("%s is not a row, or is there twice", id)
		}
		delete(missing, id)
		tests := quoted(row[3])
		if len(tests) == 0 && !strings.HasPrefix(row[3], "not shown: ") {
			t.Errorf("%s names no test and does not say why", id)
		}
		names := regexp.MustCompile(regexp.QuoteMeta(id) + `\b`)
		for _, test := range tests {
			file, list, _ := strings.Cut(test, ": ")
			ours := !strings.Contains(file, "/")
			path := filepath.Join("../..", filepath.FromSlash(file))
			if ours {
				path = file
			}
			if files[path] == nil {
				files[path] = functions(t, path)
			}
			for name := range strings.SplitSeq(list, ", ") {
				text, ok := files[path][name]
				isTest := strings.HasSuffix(file, "_test.go") && (strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Example"))
				if !ok || !isTest {
					t.Errorf("%s: there is no test %q in %s", id, name, file)
				} else if ours && strings.HasPrefix(name, "Test") && !names.MatchString(text) {
					t.Errorf("%s: %s does not name it", id, name)
				}
			}
		}
	}
	for id := range missing {
		t.Errorf("%s is missing", id)
	}
}

// The other tables have all there is, and nothing that is not.
func TestDocumentationOfTheInterface(t *testing.T) {
	doc := readDocument(t)
	// rowsAre compares what stands in the first cells of a section with what there
	// is.
	rowsAre := func(title string, want map[string]bool) {
		t.Helper()
		for _, row := range doc.table(t, title) {
			for _, name := range quoted(row[0]) {
				name = strings.TrimPrefix(name, "*")
				if !want[name] {
					t.Errorf("%s: there is no %s, or it is there twice", title, name)
				}
				delete(want, name)
			}
		}
		for name := range want {
			t.Errorf("%s: %s is missing", title, name)
		}
	}
	settings := map[string]bool{}
	for f := range reflect.TypeFor[Config]().Fields() {
		settings[f.Name] = true
	}
	problems, states, sources := map[string]bool{"ServerError": true}, map[string]bool{}, map[string]bool{}
	exported := map[string]bool{}
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				name := d.Name.Name
				exported[name] = true
				if d.Recv == nil && strings.HasPrefix(name, "With") {
					settings[name] = true
				}
			case *ast.GenDecl:
				of := ""
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						exported[s.Name.Name] = true
					case *ast.ValueSpec:
						if typ, ok := s.Type.(*ast.Ident); ok {
							of = typ.Name
						}
						for _, n := range s.Names {
							switch {
							case d.Tok == token.VAR && strings.HasPrefix(n.Name, "Err"):
								problems[n.Name] = true
							case d.Tok == token.CONST && of == "State":
								states[n.Name] = true
							case d.Tok == token.CONST && of == "Source":
								sources[n.Name] = true
							}
						}
					}
				}
			}
		}
	}
	for f := range reflect.TypeFor[Config]().Fields() {
		exported[f.Name] = true
	}
	rowsAre("Configuration", settings)
	rowsAre("Errors", problems)

	said := map[string]bool{}
	for _, row := range doc.table(t, "What a client promises") {
		for _, name := range quoted(row[0]) {
			said[name] = true
		}
	}
	for _, want := range []map[string]bool{states, sources} {
		if len(want) != 4 {
			t.Errorf("found only %v", want)
		}
		for name := range want {
			if !said[name] {
				t.Errorf("nothing is said of %s", name)
			}
		}
	}

	const from = "Coming from the official Go SDK"
	for _, row := range doc.table(t, from) {
		if strings.HasPrefix(row[0], "G-") {
			continue
		}
		for _, name := range quoted(row[1]) {
			for part := range strings.SplitSeq(name, ".") {
				if !exported[part] && !strings.Contains(name, "/") {
					t.Errorf("%s: there is no %s", from, name)
				}
			}
		}
	}
	for n := 1; n <= 29; n++ {
		if !regexp.MustCompile(fmt.Sprintf(`\| .*\bG-%d\b.* \|`, n)).MatchString(doc[from]) {
			t.Errorf("%s: G-%d is missing", from, n)
		}
	}
}
