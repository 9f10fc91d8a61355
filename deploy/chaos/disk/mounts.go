package disk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// sourcePrefix begins what stands for a device in the table of mounts. The id
// of the process follows.
const sourcePrefix = "starling-disk-"

func source() string { return sourcePrefix + strconv.Itoa(os.Getpid()) }

// RemoveLeft unmounts what processes have left that do not run any more.
func RemoveLeft() error {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var errs []error
	// Whatever was mounted last lies on top.
	for _, point := range slices.Backward(left(string(table), running)) {
		// Not root: those of others cannot be removed, and are none of ours.
		if err := unmount(point, os.Geteuid() == 0); err != nil && os.Geteuid() == 0 {
			errs = append(errs, err)
			continue
		}
		// Empty folders; a third one may have been made for them.
		_ = os.Remove(point)
		_ = os.Remove(filepath.Dir(point))
	}
	return errors.Join(errs...)
}

// left are the mount points of disks whose process does not run, out of a table
// of mounts.
func left(table string, running func(pid int) bool) []string {
	var points []string
	for line := range strings.Lines(table) {
		// 36 35 98:0 /mnt1 /mnt/point rw,noatime master:1 - ext3 /dev/root rw
		mount, what, _ := strings.Cut(line, " - ")
		fields, whats := strings.Fields(mount), strings.Fields(what)
		if len(fields) < 5 || len(whats) < 2 {
			continue
		}
		pid, ours := strings.CutPrefix(whats[1], sourcePrefix)
		number, err := strconv.Atoi(pid)
		if !ours || err != nil || running(number) {
			continue
		}
		points = append(points, unescape(fields[4]))
	}
	return points
}

// unescape undoes what the kernel does to spaces and the like in paths.
func unescape(s string) string {
	for _, c := range []byte(" \t\n\\") {
		s = strings.ReplaceAll(s, fmt.Sprintf(`\%03o`, c), string(c))
	}
	return s
}

func running(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}

// mayMount tries it.
func mayMount() error {
	dir, err := os.MkdirTemp("", source()+"-try-")
	if err != nil {
		return err
	}
	defer os.Remove(dir)
	if err := syscall.Mount(source(), dir, "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, "size=4k"); err != nil {
		return err
	}
	return unmount(dir, true)
}

// unmount takes a file system out of the tree at once, whatever still uses it.
// If it is one of FUSE that ends it, also where other processes see it in a
// mount namespace of their own.
func unmount(point string, privileged bool) error {
	if privileged {
		if err := syscall.Unmount(point, syscall.MNT_FORCE|syscall.MNT_DETACH); err != nil {
			return fmt.Errorf("unmounting %s: %w", point, err)
		}
		return nil
	}
	helper, err := fusermount()
	if err != nil {
		return err
	}
	if out, err := exec.Command(helper, "-u", "-z", point).CombinedOutput(); err != nil {
		return fmt.Errorf("unmounting %s: %w: %s", point, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// abort ends a FUSE file system whoever uses it, where the kernel's folder for
// that is mounted.
func abort(device uint64) {
	path := fmt.Sprintf("/sys/fs/fuse/connections/%d/abort", unix.Minor(device))
	if f, err := os.OpenFile(path, os.O_WRONLY, 0); err == nil {
		_, _ = f.WriteString("1")
		_ = f.Close()
	}
}

func fusermount() (string, error) {
	if path, err := exec.LookPath("fusermount3"); err == nil {
		return path, nil
	}
	return exec.LookPath("fusermount")
}
