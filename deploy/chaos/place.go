package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/starling-registry/starling/deploy/chaos/disk"
	"github.com/starling-registry/starling/deploy/chaos/link"
)

const (
	placePrefix = "starling-chaos-"
	// inUse is a file in the folder of a run that is locked as long as its program
	// lives, and gone when the folder is to be kept.
	inUse = "in-use"
)

// newPlace makes the folder of a run, after it has removed what others left
// behind that were killed. Keep ends the use of the folder, which stays if
// something is in it.
func newPlace() (dir string, keep func(), err error) {
	if err := removeLeft(); err != nil {
		return "", nil, fmt.Errorf("removing what is left of an earlier run: %w", err)
	}
	if dir, err = os.MkdirTemp("", placePrefix); err != nil {
		return "", nil, err
	}
	f, err := os.CreateTemp(dir, inUse+"-")
	if err != nil {
		os.Remove(dir)
		return "", nil, err
	}
	// Locked before it has its name: another program must not take it for one that
	// was left.
	if err := errors.Join(syscall.Flock(int(f.Fd()), syscall.LOCK_EX), os.Rename(f.Name(), filepath.Join(dir, inUse))); err != nil {
		f.Close()
		os.RemoveAll(dir)
		return "", nil, err
	}
	return dir, sync.OnceFunc(func() {
		os.Remove(filepath.Join(dir, inUse))
		f.Close()
		for _, e := range entries(dir) {
			syscall.Rmdir(filepath.Join(dir, e)) // if it is empty
		}
		os.Remove(dir)
	}), nil
}

func entries(dir string) []string {
	var names []string
	list, _ := os.ReadDir(dir)
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// removeLeft removes namespaces, mounts and folders of programs that are gone.
func removeLeft() error {
	// Mounts before the folders that they are in.
	if err := errors.Join(link.RemoveLeft(), disk.RemoveLeft()); err != nil {
		return err
	}
	places, _ := filepath.Glob(filepath.Join(os.TempDir(), placePrefix+"*", inUse))
	for _, mark := range places {
		f, err := os.Open(mark)
		if err != nil {
			continue // gone meanwhile, or somebody else's
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			os.RemoveAll(filepath.Dir(mark)) // as far as this user may
		}
		f.Close()
	}
	return nil
}
