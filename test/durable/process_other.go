//go:build !linux

package main

import "syscall"

func bound() *syscall.SysProcAttr { return nil }

func mount(string, int) (func(), error) {
	return nil, errSkipped("a small file system is only made on Linux")
}
