// Package drivers builds and starts the drivers of official SDKs, whose sources
// are the folders below, and talks to them. The protocol is described in
// test/compat/README.md.
//
// The invariant: a driver is an application that has configured its SDK as the
// SDK's manual says; no test reaches around the SDK. The driver starling is one
// of Starling's own client, the driver http has none and speaks the protocol
// itself; both are for many clients in one process (package bare).
//
// Start reading at process.go. What an SDK needs to be built is in sdk.go.
package drivers
