// Package bare is what the drivers written in this module share: the protocol of
// test/compat/README.md from the driver's side, and what a naming client makes
// of the lists that it is sent.
//
// They are for many clients in one process where no SDK can be had or would be
// too much: under faults, and under load. A client of drivers/http behaves as
// those of the SDKs do towards a server (what it sends, when it gives up, what it
// repeats) and has nothing else: no cache on disk, no failover files.
// drivers/starling is on pkg/client, which has all of that.
//
// The invariant: a process ends with its input, when all its clients are
// closed, and no event comes after that.
//
// Start reading at serve.go. The clients are in drivers/http and drivers/starling.
package bare
