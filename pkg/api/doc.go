// Package api holds the JSON types of the native API (/starling/v1), an HTTP
// client for them, and how the histories of several nodes become one. It is a
// leaf: the server fills these types, commands and other programs read them.
//
// Invariant: what a field means, its unit included, is said here and nowhere
// else, and a field that was released keeps its meaning. Times are RFC 3339 in
// UTC; durations are whole milliseconds, in fields that end in Millis; sums and
// digests are 16 hex digits, because not every reader of JSON has 64-bit
// numbers; ids of nodes are 32 hex digits. Texts that come from clients
// (names of services, of clients, metadata) are as the clients sent them: who
// shows them on a terminal escapes them.
//
// What is said of types and fields here is also what the OpenAPI document of the
// API says (pkg/httpapi/openapi.json), so it is written for people without the
// source.
//
// Start reading at [Members] and [Services] for the types, at [NewClient] for
// the client, at [MergeHistory] for the merge.
package api
