// Package httpapi serves HTTP: the Nacos API of naming clients and operators
// (v1, and of v2 and v3 what there is so far), the logins of SDKs, the native
// API of operators (types in package api), and what probes ask.
//
// Invariant: an answer, right or wrong, has the status, the content type and
// the shape that a Nacos client of that API version expects; whatever comes
// in, nothing but this package's own errors gets out, and a refused request
// has changed nothing.
//
// A request takes: route table ([New] in server.go), readiness and parameters
// (params.go), handler (by what it is about: instance.go, beat.go, service.go,
// cluster.go, health.go, operator.go, switches.go; core.go, probes.go and namespace.go for the
// cluster itself; account.go and login.go; discovery.go). One handler serves all versions
// of a path; a version is a row of the route table, and what is put around
// parameters and answers (call.go). A handler writes its success itself and
// returns anything else as an error from the table in errors.go, which knows how
// each version says it. The native API (native.go has its table, and files beside
// it its subjects) does not ask for readiness: it is where people learn what the
// node waits for. openapi.json describes it; openapi_test.go makes that of the
// types, and holds it to the table.
//
// Writes go one of two ways. What HTTP clients publish goes to the node that
// keeps the client, by one hop (forward.go). Persistent instances, and what
// operators say of services, clusters, instances, namespaces and accounts, goes
// to the log of the cluster, whichever node leads it (durable.go).
//
// Start reading at [New].
package httpapi
