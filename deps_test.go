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
// package may import, of this module and of others, and what only its tests
// may import besides testLibraries. The standard library is always allowed.
//
// A package without an entry fails the test, and so does an entry without its
// package: adding one is a decision, to be seen in a review.
var imports = []struct {
	pkg    string
	ours   []string
	theirs []string
	tests  []string
}{
	// Messages between nodes: generated, no logic.
	{"proto", nil, []string{"google.golang.org/protobuf"}, nil},
	// The native API's types and their client: others may build it into their
	// programs.
	{"pkg/api", nil, nil, nil},
	// The model knows neither a wire format nor a library, so that everything
	// about it can be tested without them.
	{"pkg/registry", nil, nil, nil},
	// Of grpc only the buffers, of protobuf only the wire primitives: the
	// package-less messages of Nacos would clash with its official SDK's. The
	// tests compare with the real library.
	{"pkg/nacos", []string{"pkg/registry"},
		[]string{grpc + "/mem", "google.golang.org/protobuf/encoding/protowire"},
		[]string{"google.golang.org/protobuf"}},
	// Who carries its messages, and who is a member, it is told: it must not
	// see cluster.
	{"distro", []string{"pkg/registry", "proto"},
		[]string{zap, prometheus, "google.golang.org/protobuf", "github.com/cespare/xxhash/v2"}, nil},
	{"pkg/push", []string{"pkg/registry", "pkg/nacos"}, []string{zap, prometheus}, nil},

	// Of proto only the Hello: what else goes through it is bytes.
	{"cluster", []string{"proto"}, []string{"github.com/hashicorp/memberlist", grpc, "google.golang.org/protobuf/proto", zap, prometheus},
		[]string{module + "/test/simnet", "github.com/prometheus/client_model"}},

	// Like distro it is told who is a member and how to reach it.
	{"raftstore", []string{"pkg/registry", "proto"},
		[]string{"github.com/hashicorp/raft", "github.com/hashicorp/raft-boltdb/v2", "go.etcd.io/bbolt", "github.com/hashicorp/go-hclog",
			zap, prometheus, "google.golang.org/protobuf", "github.com/cespare/xxhash/v2"},
		[]string{module + "/test/simnet"}},

	// These never see each other; pkg/node connects them. What a beat does is
	// only seen with both halves, so the tests of one have the other.
	{"pkg/health", []string{"pkg/registry", "pkg/nacos"}, []string{zap, prometheus, "github.com/go-sql-driver/mysql"}, nil},
	{"pkg/grpcapi", []string{"pkg/registry", "pkg/nacos", "pkg/push"}, []string{grpc, zap, prometheus, "golang.org/x/sys/unix"}, nil},
	{"pkg/httpapi", []string{"pkg/registry", "pkg/nacos", "pkg/api", "proto"}, []string{zap, prometheus, "google.golang.org/protobuf/proto"}, []string{module + "/pkg/health"}},

	{"pkg/node", []string{"proto", "cluster", "distro", "raftstore", "pkg/registry", "pkg/nacos", "pkg/push", "pkg/health", "pkg/grpcapi", "pkg/httpapi", "pkg/api"},
		[]string{grpc, zap, prometheus, "github.com/hashicorp/memberlist", "google.golang.org/protobuf/proto"}, nil},
	// Users build it into their programs. The tests have a real server.
	{"pkg/client/wire", []string{"pkg/nacos"}, []string{grpc},
		[]string{module + "/pkg/registry", module + "/pkg/push", module + "/pkg/grpcapi", zap, prometheus}},
	// Tests have no node here, see test/client.
	{"pkg/client", []string{"pkg/client/wire", "pkg/nacos"}, []string{grpc}, []string{zap}},
	{"pkg/client/grpcresolver", []string{"pkg/client"}, []string{grpc}, []string{module + "/test/simnet"}},
	{"pkg/client/httplb", []string{"pkg/client"}, nil, nil},
	{"cmd/starling", []string{"pkg/node", "pkg/client", "pkg/client/wire", "pkg/nacos", "pkg/api"},
		[]string{zap, "github.com/HdrHistogram/hdrhistogram-go", "github.com/spf13/cobra", "github.com/spf13/pflag", "go.yaml.in/yaml/v3", "golang.org/x/sys/unix"}, nil},
	// What the adapters of contrib share; those are modules of their own.
	{"contrib/internal/provider", []string{"pkg/client"}, nil, nil},
	{"contrib/internal/testnode", []string{"pkg/client"}, nil, nil},
	// What people copy into their programs.
	{"examples/client", []string{"pkg/client"}, nil, nil},
	{"examples/grpc", []string{"pkg/client", "pkg/client/grpcresolver"}, []string{grpc}, nil},
	{"examples/http", []string{"pkg/client", "pkg/client/httplb"}, nil, nil},

	// The network of simulated clusters knows no more of them than what they
	// ask of a network.
	{"test/simnet", nil, []string{"github.com/hashicorp/memberlist"}, nil},
	// An attacker knows the wire format and no more of the server, but for which
	// endpoints of HTTP there are, so that none is left out: it starts the binary.
	{"test/attack", []string{"pkg/nacos", "pkg/httpapi", "proto"}, []string{grpc, "golang.org/x/net/http2", "google.golang.org/protobuf", "github.com/cespare/xxhash/v2", "github.com/hashicorp/memberlist",
		"github.com/hashicorp/raft", "github.com/hashicorp/go-hclog"}, nil},
	// Clients that remember what they were told. To damage the file of a log it
	// must know where its pages are.
	{"test/durable", []string{"pkg/client/wire", "pkg/nacos", "pkg/api"}, []string{"go.etcd.io/bbolt"}, nil},
	// Whole nodes and clients with the habits of the SDKs, in a bubble.
	{"test/sim", []string{"pkg/node", "pkg/client/wire", "pkg/nacos", "test/simnet"}, []string{zap, "github.com/hashicorp/memberlist", "github.com/anishathalye/porcupine"}, nil},
	{"test/sim/mutants", nil, nil, nil},
	// Nodes whose machines lose their power.
	{"test/client", nil, nil, []string{module + "/pkg/node", module + "/pkg/client", module + "/pkg/client/grpcresolver", module + "/pkg/client/httplb", zap, grpc}},
	{"test/power", nil, nil, []string{module + "/pkg/node"}},
	// What operators are given: files that must fit each other.
	{"test/monitoring", nil, nil, []string{"go.yaml.in/yaml/v3"}},
	// The server that does nothing but gRPC, with the codec and the bytes of
	// a node.
	{"test/bench", []string{"pkg/nacos", "pkg/registry"}, []string{grpc}, nil},
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
			var others []string
			for _, pkg := range rule.ours {
				others = append(others, module+"/"+pkg)
			}
			others = append(others, rule.theirs...)
			if strings.HasSuffix(name, "_test.go") {
				// An external test package imports its own package.
				others = slices.Concat(others, rule.tests, testLibraries, []string{module + "/" + rule.pkg})
			}
			for _, spec := range file.Imports {
				imported, err := strconv.Unquote(spec.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
				if !allowed(imported, others) {
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

// allowed says whether an import is of the standard library or among others.
func allowed(imported string, others []string) bool {
	if first, _, _ := strings.Cut(imported, "/"); !strings.Contains(first, ".") {
		return true
	}
	return slices.ContainsFunc(others, func(o string) bool {
		// Packages of this module are listed one by one.
		return imported == o || strings.HasPrefix(imported, o+"/") && !strings.HasPrefix(o, module+"/")
	})
}

func TestAllowed(t *testing.T) {
	f := func(want bool, imported string) {
		t.Helper()
		if got := allowed(imported, []string{module + "/pkg/nacos", zap}); got != want {
			t.Errorf("%s: %v", imported, got)
		}
	}
	f(true, "net/http")
	f(true, module+"/pkg/nacos")
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
