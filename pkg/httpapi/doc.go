// Package httpapi serves HTTP: the Nacos API of naming clients and operators
// (v1, v2 and v3), the logins of SDKs, the native API of operators (types in
// package api), and what probes ask.
//
// Invariant: an answer, right or wrong, has the status, the content type and
// the shape that a Nacos client of that API version expects; whatever comes
// in, nothing but this package's own errors gets out, and a refused request
// has changed nothing.
//
// A request takes: the table of routes (routes.go), readiness and parameters
// (params.go), its handler. One handler serves all versions of a path; a version
// is a row of the table, and what is put around parameters and answers (call.go).
// A handler writes its success itself and returns anything else as an error from
// the table in errors.go, which knows how each version says it. Handlers lie by
// what they are about:
//
//	instance.go, batch.go, beat.go     instances, and the beats that keep them
//	service.go, cluster.go, health.go  services, their clusters, health by hand
//	catalog.go, clients.go             what is there, who registers and subscribes
//	operator.go, switches.go           this node, as the operator API has it
//	core.go, probes.go, namespace.go   the nodes of the cluster, is it up, namespaces
//	account.go, login.go, password.go  accounts
//	discovery.go, dns.go               Prometheus, address servers, CoreDNS
//
// What the port serves itself lies with what it is about: /metrics in metrics.go,
// /livez and /readyz in probes.go, profiles in profile.go.
//
// The native API has its own table (native.go, its subjects in native_*.go and
// backup.go) and does not ask for readiness: it is where people learn what the
// node waits for. openapi.json describes it; openapi_test.go makes that of the
// types, and holds it to the table.
//
// Writes go one of two ways. What HTTP clients publish goes to the node that
// keeps the client, by one hop (forward.go). Persistent instances, and what
// operators say of services, clusters, instances, namespaces, switches and
// accounts, goes to the log of the cluster, whichever node leads it (durable.go).
//
// Start reading at [New], then routes.go.
package httpapi
