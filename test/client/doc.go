// Package client holds the tests of pkg/client's companions with a whole node in
// the process. They are here and not beside the code because "go mod tidy" of a
// program that imports a package looks at the imports of its tests, too: a node
// needs a replacement of go-metrics that holds in this module only.
//
// The invariant: nothing below pkg/client imports pkg/node, in tests either.
package client
