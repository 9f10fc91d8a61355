// Package httpapi serves HTTP: the Nacos v1 API of naming clients, the logins of
// SDKs, the native API of operators (types in package api), and what probes ask.
//
// Invariant: an answer, right or wrong, has the status, the content type and
// the shape that a Nacos client of that API version expects; whatever comes
// in, nothing but this package's own errors gets out, and a refused request
// has changed nothing.
//
// A request takes: route table ([Server] in server.go), readiness and
// parameters (params.go), handler (instance.go, beat.go, login.go, operator.go). A
// handler writes its success itself and returns anything else as an error from
// the table in errors.go. The native API (native.go) does not ask for readiness:
// it is where people learn what the node waits for.
//
// In a cluster, what HTTP clients write goes to the node that keeps them, by
// one hop (forward.go).
//
// Start reading at [New].
package httpapi
