// Package drivers builds and starts the drivers of official SDKs, whose sources
// are the folders below, and talks to them. The protocol is described in
// test/compat/README.md.
//
// The invariant: a driver is an application that has configured its SDK as the
// SDK's manual says; no test reaches around the SDK. The drivers http and grpc
// have none: they speak the protocols themselves, for many clients in one
// process (package bare).
//
// Start reading at process.go. What an SDK needs to be built is in sdk.go.
package drivers
