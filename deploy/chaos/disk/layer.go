package disk

import (
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// layer is the FUSE half of a disk: what it does not have goes through as it
// is. The kernel waits for every write (there is no write-back), so errors come
// where they belong, and maps files for reading from the same pages.
type layer struct {
	fuse.RawFileSystem
	disk *Disk
}

// Writev is what the library calls for every write.
func (l *layer) Writev(cancel <-chan struct{}, input *fuse.WriteIn, data [][]byte) (uint32, fuse.Status) {
	var n int
	for _, part := range data {
		n += len(part)
	}
	l.disk.beforeWrite(n)
	if l.disk.full.Load() && !l.has(cancel, input, int64(n)) {
		return 0, fuse.Status(unix.ENOSPC)
	}
	return l.RawFileSystem.Writev(cancel, input, data)
}

func (l *layer) Fsync(cancel <-chan struct{}, input *fuse.FsyncIn) fuse.Status {
	l.disk.beforeSync()
	return l.RawFileSystem.Fsync(cancel, input)
}

func (l *layer) FsyncDir(cancel <-chan struct{}, input *fuse.FsyncIn) fuse.Status {
	l.disk.beforeSync()
	return l.RawFileSystem.FsyncDir(cancel, input)
}

// Open and Create keep reads and writes here: the library would let the kernel
// do them without asking.
func (l *layer) Open(cancel <-chan struct{}, input *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	status := l.RawFileSystem.Open(cancel, input, out)
	askAlways(out)
	return status
}

func (l *layer) Create(cancel <-chan struct{}, input *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	status := l.RawFileSystem.Create(cancel, input, name, out)
	askAlways(&out.OpenOut)
	return status
}

func askAlways(out *fuse.OpenOut) {
	out.OpenFlags &^= fuse.FOPEN_PASSTHROUGH
	out.BackingID = 0
}

func (l *layer) Fallocate(cancel <-chan struct{}, input *fuse.FallocateIn) fuse.Status {
	if l.disk.full.Load() {
		return fuse.Status(unix.ENOSPC)
	}
	return l.RawFileSystem.Fallocate(cancel, input)
}

// has reports whether a file has space for what is to be written: no part of it
// lies behind the end or in a hole.
func (l *layer) has(cancel <-chan struct{}, input *fuse.WriteIn, n int64) bool {
	in := fuse.LseekIn{InHeader: input.InHeader, Fh: input.Fh, Offset: input.Offset, Whence: unix.SEEK_HOLE}
	var hole fuse.LseekOut
	return l.RawFileSystem.Lseek(cancel, &in, &hole).Ok() && int64(hole.Offset) >= int64(input.Offset)+n
}
