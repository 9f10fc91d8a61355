// Package power cuts the power of nodes, as far as a test can: what a node has
// acknowledged must be there afterwards (design §8).
//
// A node's data directory is on an ext4 file system in an image file, mounted
// over a loop device. What the kernel of the node's machine has not written to
// its disk yet is in the memory of the mounted file system, and not in the
// image: a copy of the image is what a power cut leaves. The copy is mounted,
// and a node started from it.
//
// It takes root and a loop device, and is skipped without. The simulation
// (test/sim) ends processes, never machines, and leaves out fsync.
//
// Invariant: the test can fail. The same without fsync must lose something, or
// the harness proves nothing.
//
// Start reading at TestPowerCut.
package power
