package starling_test

import (
	"path"
	"strings"
	"testing"
)

// The doc of a package says what it is for, its invariant and where to start
// reading; this test can only see that there is one.
func TestEveryPackageHasADoc(t *testing.T) {
	for dir, files := range readTree(t) {
		var docs []string
		isTest := true
		for name, file := range files {
			isTest = isTest && strings.HasSuffix(name, "_test.go")
			if strings.HasSuffix(name, "_test.go") || file.Doc == nil {
				continue
			}
			docs = append(docs, name)
			want := "Package " + file.Name.Name + " "
			if file.Name.Name == "main" {
				want = "Command " + path.Base(dir) + " "
			}
			if !strings.HasPrefix(file.Doc.Text(), want) {
				t.Errorf("%s: the package doc must start with %q", name, want)
			}
		}
		if len(docs) != 1 && !isTest {
			t.Errorf("%s: want one package doc, found %d %v", dir, len(docs), docs)
		}
	}
}
