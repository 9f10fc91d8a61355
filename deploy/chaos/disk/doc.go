// Package disk makes places for the data of nodes that can be made full and
// slow while a node runs on them, and be mended again.
//
// As root a disk is a tmpfs of a given size, so that full is what the kernel
// says it is, and above it a FUSE file system of this process that hands
// everything through and takes its time for writes and syncs:
//
//	DIR/data   what a node gets as its --data-dir (FUSE)
//	DIR/store  what is below it (tmpfs; not root: a plain folder)
//
// Without root, but with fusermount3, the lower half is a plain folder and the
// upper half also says when there is no space.
//
// The invariant: while nothing is asked of it, a disk does what the file system
// below does, with its errors; and after Close, or after the next New of any
// process if this one was killed, nothing of it is mounted any more. For that
// all mounts have the id of their process in their name.
//
// This process must not open files below DIR/data: it would wait for itself
// when it starts another process at the same time. DIR/store has them, too.
//
// Start reading at Disk in disk.go; layer.go is the FUSE half.
package disk
