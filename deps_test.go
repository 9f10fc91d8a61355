// Package starling_test holds what must be true of the whole source tree.
package starling_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/starling-registry/starling"

// Third-party libraries that several packages use; an entry covers the
// packages below it.
const (
	grpc       = "google.golang.org/grpc"
	prometheus = "github.com/prometheus/client_golang/prometheus"
	zap        = "go.uber.org/zap"
)

// imports is the direction of dependencies, lowest layer first: what each
// package may import, of this module and of others. Its tests may import what
// it may and testLibraries. The standard library is always allowed.
//
// A package without an entry fails the test, and so does an entry without its
// package: adding one is a decision, to be seen in a review.
var imports = []struct {
	pkg    string
	ours   []string
	theirs []string
}{
	// The model knows neither a wire format nor a library, so that everything
	// about it can be tested without them.
	{"pkg/registry", nil, nil},
	// Of grpc only the buffers, of protobuf only the wire primitives: the
	// package-less messages of Nacos would clash with its official SDK's.
	{"pkg/nacos", []string{"pkg/registry"},
		[]string{grpc + "/mem", "google.golang.org/protobuf/encoding/protowire"}},
	{"pkg/push", []string{"pkg/registry", "pkg/nacos"}, []string{zap, prometheus}},

	// These never see each other; pkg/node connects them.
	{"pkg/health", []string{"pkg/registry", "pkg/nacos"}, []string{zap, prometheus}},
	{"pkg/grpcapi", []string{"pkg/registry", "pkg/nacos", "pkg/push"}, []string{grpc, zap, prometheus}},
	{"pkg/httpapi", []string{"pkg/registry", "pkg/nacos"}, []string{zap, prometheus}},

	{"pkg/node", []string{"pkg/registry", "pkg/nacos", "pkg/push", "pkg/health", "pkg/grpcapi", "pkg/httpapi"},
		[]string{grpc, zap, prometheus}},
	{"cmd/starling", []string{"pkg/node"},
		[]string{zap, "github.com/spf13/cobra", "github.com/spf13/pflag", "go.yaml.in/yaml/v3"}},
}

var testLibraries = []string{"github.com/google/go-cmp/cmp", "go.uber.org/goleak"}

func TestImports(t *testing.T) {
	tree := readTree(t)
	for _, rule := range imports {
		files := tree[rule.pkg]
		delete(tree, rule.pkg)
		if files == nil {
			t.Errorf("%s: has an entry here and no Go files", rule.pkg)
		}
		for name, file := range files {
			theirs := rule.theirs
			if strings.HasSuffix(name, "_test.go") {
				theirs = slices.Concat(theirs, testLibraries)
			}
			for _, spec := range file.Imports {
				imported, err := strconv.Unquote(spec.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
				if !allowed(imported, rule.pkg, rule.ours, theirs) {
					t.Errorf("%s: must not import %s", name, imported)
				}
			}
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(tree)) {
		if pkg != "." { // this package
			t.Errorf("%s: has no entry in the table of imports", pkg)
		}
	}
}

// allowed says whether a package may import another one. A test in an external
// test package imports its own package.
func allowed(imported, pkg string, ours, theirs []string) bool {
	if first, _, _ := strings.Cut(imported, "/"); !strings.Contains(first, ".") {
		return true // standard library
	}
	if rest, ok := strings.CutPrefix(imported, module+"/"); ok {
		return rest == pkg || slices.Contains(ours, rest)
	}
	return slices.ContainsFunc(theirs, func(t string) bool {
		return imported == t || strings.HasPrefix(imported, t+"/")
	})
}

func TestAllowed(t *testing.T) {
	f := func(want bool, imported string) {
		t.Helper()
		if got := allowed(imported, "pkg/push", []string{"pkg/nacos"}, []string{zap}); got != want {
			t.Errorf("%s: %v", imported, got)
		}
	}
	f(true, "net/http")
	f(true, module+"/pkg/nacos")
	f(true, module+"/pkg/push")
	f(false, module+"/pkg/node")
	f(false, module+"/pkg/nacos/deeper")
	f(true, zap)
	f(true, zap+"/zapcore")
	f(false, zap+"ish")
	f(false, grpc)
	f(false, "golang.org/x/net/http2")
}

// readTree parses the imports and the package docs of all Go files of this
// module: directory → file → syntax. It reads the files itself, because the
// cache of test results does not see what a "go list" has read.
func readTree(t *testing.T) map[string]map[string]*ast.File {
	t.Helper()
	tree := map[string]map[string]*ast.File{}
	fset := token.NewFileSet()
	err := fs.WalkDir(os.DirFS("."), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := path.Base(name)
		if entry.IsDir() {
			if name == "." {
				return nil
			}
			// What the go command leaves out, and other modules.
			if strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata" {
				return fs.SkipDir
			}
			if _, err := os.Stat(path.Join(name, "go.mod")); err == nil {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(base) != ".go" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
			return nil
		}
		file, err := parser.ParseFile(fset, name, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		dir := path.Dir(name)
		if tree[dir] == nil {
			tree[dir] = map[string]*ast.File{}
		}
		tree[dir][name] = file
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}
