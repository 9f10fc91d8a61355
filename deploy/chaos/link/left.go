package link

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// namePrefix begins the names of all that a Router makes; the id of the program
// follows, so that what was left behind by a kill -9 can be told from what is in
// use.
const namePrefix = "chaos"

var spaceName = regexp.MustCompile(`^` + namePrefix + `(\d+)[.-]`)

// RemoveLeft removes what belongs to programs that are gone: namespaces, what runs
// in them, and their files. Devices go with the program.
func RemoveLeft() error {
	if os.Geteuid() != 0 {
		return nil // only root has any
	}
	var errs []error
	for _, dir := range []string{spaces, etc} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, e := range entries {
			m := spaceName.FindStringSubmatch(e.Name())
			if m == nil {
				continue
			}
			pid, err := strconv.Atoi(m[1])
			if err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
				errs = append(errs, removeSpace(e.Name()))
			}
		}
	}
	return errors.Join(errs...)
}

// removeSpace removes as much as there is of a namespace, with what runs in it,
// without which it would live on.
func removeSpace(space string) error {
	there := func() bool {
		_, err := os.Stat(filepath.Join(spaces, space))
		return err == nil
	}
	var errs []error
	if there() {
		killAll(space)
		// Two programs may be at it.
		if err := ipAll("netns del " + space); err != nil && there() {
			errs = append(errs, err)
		}
	}
	errs = append(errs, os.RemoveAll(filepath.Join(etc, space)))
	// Whoever made the directory for its first entry removes it after the last.
	os.Remove(etc)
	return errors.Join(errs...)
}

// killAll kills what runs in a namespace, also what is started meanwhile.
func killAll(space string) {
	for range 100 {
		pids, _ := exec.Command("ip", "netns", "pids", space).Output()
		found := false
		for field := range strings.FieldsSeq(string(pids)) {
			if pid, err := strconv.Atoi(field); err == nil && pid != os.Getpid() {
				found = true
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if !found {
			return
		}
		time.Sleep(time.Millisecond)
	}
}
