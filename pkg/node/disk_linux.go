package node

import "syscall"

// disk is how large the file system of a directory is, and what is free of it
// for those who are not root, in bytes.
func disk(dir string) (size, free uint64) {
	var s syscall.Statfs_t
	if syscall.Statfs(dir, &s) != nil {
		return 0, 0
	}
	return s.Blocks * uint64(s.Bsize), s.Bavail * uint64(s.Bsize)
}
