package main

import (
	"fmt"
	"os"
	"syscall"
)

// bound ties a process to this one. Ctrl-C is for this program, which then ends
// the nodes; and none outlives it.
func bound() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// mount makes a small file system at a directory, and returns what removes it.
func mount(dir string, bytes int) (func(), error) {
	if os.Geteuid() != 0 {
		return nil, errSkipped("only root can mount a file system")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := syscall.Mount("durable", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=700", bytes)); err != nil {
		return nil, errSkipped(fmt.Sprintf("cannot mount a file system: %v", err))
	}
	// Whatever still uses it: it is gone from the tree at once.
	return func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) }, nil
}
