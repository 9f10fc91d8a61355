package disk

import (
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// closeWithin is for those that still wait to get their errors.
const closeWithin = 5 * time.Second

// A Disk is one place for data. Its methods may be called at any time, from any
// goroutine.
type Disk struct {
	root   string // what New was told
	mounts []string
	server *fuse.Server
	device uint64 // number of the FUSE file system
	// privileged: the lower half is a tmpfs, and unmounting needs nobody's help.
	privileged bool

	full   atomic.Bool // without a tmpfs: nothing that needs space is done
	writes atomic.Int64
	syncs  atomic.Int64

	mu       sync.Mutex
	perWrite time.Duration
	perSync  time.Duration
	rate     int64         // bytes a second; 0: no limit
	idle     time.Time     // when all that was accepted at that rate is written
	changed  chan struct{} // closed when the pace changes: nobody waits on
	closed   bool
}

// Available says why there can be no disk here, for people, or nil.
func Available() error {
	if _, err := os.Stat("/dev/fuse"); err != nil {
		return errors.New("needs /dev/fuse (the kernel module fuse)")
	}
	if os.Geteuid() == 0 {
		// In a container root may do less.
		if err := mayMount(); err != nil {
			return fmt.Errorf("needs root that may mount a file system: %w", err)
		}
		return nil
	}
	if _, err := fusermount(); err != nil {
		return errors.New("needs root, or fusermount3 (Debian package fuse3): mounts a file system")
	}
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return errors.New("needs root, or a /dev/fuse that everybody may open: mounts a file system")
	}
	f.Close()
	return nil
}

// New makes a disk of the given size in bytes in a folder, which it makes if it
// is not there. Without root the size is that of the file system that has the
// folder. What killed processes have left mounted anywhere is removed first.
func New(dir string, size int64) (_ *Disk, err error) {
	if err := Available(); err != nil {
		return nil, fmt.Errorf("disk: %w", err)
	}
	if err := RemoveLeft(); err != nil {
		return nil, fmt.Errorf("disk: removing what another process has left: %w", err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, fmt.Errorf("disk: %w", err)
	}
	d := &Disk{root: dir, privileged: os.Geteuid() == 0, changed: make(chan struct{})}
	for _, half := range []string{d.store(), d.Dir()} {
		if err := os.MkdirAll(half, 0o700); err != nil {
			return nil, fmt.Errorf("disk: %w", err)
		}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	if d.privileged {
		if err := syscall.Mount(source(), d.store(), "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, fmt.Sprintf("size=%d,mode=700", size)); err != nil {
			return nil, fmt.Errorf("disk: mounting a tmpfs at %s: %w", d.store(), err)
		}
		d.mounts = append(d.mounts, d.store())
	}
	below, err := fs.NewLoopbackRoot(d.store())
	if err != nil {
		return nil, fmt.Errorf("disk: %w", err)
	}
	forAMoment := time.Second
	options := &fs.Options{
		EntryTimeout: &forAMoment,
		AttrTimeout:  &forAMoment,
		// What is given as mode 0 stays so.
		NullPermissions: true,
		MountOptions: fuse.MountOptions{
			FsName:        source(),
			Name:          "starling",
			DirectMount:   d.privileged,
			DisableXAttrs: true,
			// What it logs are answers to processes that were killed meanwhile.
			Logger: log.New(io.Discard, "", 0),
		},
	}
	server, err := fuse.NewServer(&layer{RawFileSystem: fs.NewNodeFS(below, options), disk: d}, d.Dir(), &options.MountOptions)
	if err != nil {
		return nil, fmt.Errorf("disk: mounting at %s: %w", d.Dir(), err)
	}
	d.mounts = append(d.mounts, d.Dir())
	d.server = server
	go server.Serve() // until it is unmounted; Close waits
	if err := server.WaitMount(); err != nil {
		return nil, fmt.Errorf("disk: mounting at %s: %w", d.Dir(), err)
	}
	var stat syscall.Stat_t
	if err := syscall.Stat(d.Dir(), &stat); err != nil {
		return nil, fmt.Errorf("disk: %w", err)
	}
	d.device = stat.Dev
	return d, nil
}

// Dir is for --data-dir.
func (d *Disk) Dir() string { return filepath.Join(d.root, "data") }

// store has the same files, without delay.
func (d *Disk) store() string  { return filepath.Join(d.root, "store") }
func (d *Disk) filler() string { return filepath.Join(d.store(), "filler") }

// Fill leaves no space. Files stay as they are; what has space in them already
// may be written.
func (d *Disk) Fill() error {
	if !d.privileged {
		d.full.Store(true)
		return nil
	}
	f, err := os.OpenFile(d.filler(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("disk: filling %s: %w", d.root, err)
	}
	for block := make([]byte, 1<<20); len(block) > 0; {
		if _, err = f.Write(block); err != nil {
			block = block[:len(block)/2]
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return errors.Join(fmt.Errorf("disk: filling %s: %w", d.root, err), f.Close())
	}
	return f.Close()
}

// Free gives back what Fill took. It is no error if that was not called.
func (d *Disk) Free() error {
	d.full.Store(false)
	if err := os.Remove(d.filler()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("disk: freeing %s: %w", d.root, err)
	}
	return nil
}

// Slow makes every write (of up to 128 KiB; larger ones are several) and every
// sync of a file or a folder take so much longer. Zero is as fast as it can be.
// What waits when the pace is changed is done at once.
//
// A process that is killed while it waits here ends when that is over, as with
// a real disk.
func (d *Disk) Slow(perWrite, perSync time.Duration) {
	d.pace(func() { d.perWrite, d.perSync = perWrite, perSync })
}

// Throttle lets so many bytes a second be written, by all together; 0 is no
// limit.
func (d *Disk) Throttle(bytesPerSecond int64) {
	d.pace(func() { d.rate, d.idle = bytesPerSecond, time.Time{} })
}

// Counts are the writes and syncs that were asked for so far, those that failed
// and those that still wait included.
func (d *Disk) Counts() (writes, syncs int64) { return d.writes.Load(), d.syncs.Load() }

func (d *Disk) pace(set func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	set()
	close(d.changed)
	d.changed = make(chan struct{})
}

// beforeWrite returns when n bytes may be written. It does not end with a
// signal to the process that writes: Go programs get them all the time, and for
// bbolt an interrupted sync is an error.
func (d *Disk) beforeWrite(n int) {
	d.writes.Add(1)
	d.mu.Lock()
	wait, changed := d.perWrite, d.changed
	if d.rate > 0 {
		now := time.Now()
		if d.idle.Before(now) {
			d.idle = now
		}
		d.idle = d.idle.Add(time.Duration(float64(n) / float64(d.rate) * float64(time.Second)))
		wait += d.idle.Sub(now)
	}
	d.mu.Unlock()
	sleep(wait, changed)
}

func (d *Disk) beforeSync() {
	d.syncs.Add(1)
	d.mu.Lock()
	wait, changed := d.perSync, d.changed
	d.mu.Unlock()
	sleep(wait, changed)
}

func sleep(wait time.Duration, changed <-chan struct{}) {
	if wait <= 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-changed:
	}
}

// Close removes the disk and what was on it. Processes that still use it get
// errors. Once it has worked, to call it again does nothing.
func (d *Disk) Close() error {
	d.Slow(0, 0)
	d.Throttle(0)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	for i := len(d.mounts) - 1; i >= 0; i-- {
		if err := unmount(d.mounts[i], d.privileged); err != nil {
			return fmt.Errorf("disk: %w", err)
		}
		d.mounts = d.mounts[:i]
	}
	if d.server != nil {
		// Without root it goes on for those that have files open.
		abort(d.device)
		ended := make(chan struct{})
		go func() {
			d.server.Wait()
			close(ended)
		}()
		select {
		case <-ended:
		case <-time.After(closeWithin):
			return fmt.Errorf("disk: %s is still used, which only root can end", d.Dir())
		}
	}
	d.closed = true
	// The store is only a folder without root.
	return errors.Join(os.Remove(d.Dir()), os.RemoveAll(d.store()))
}
