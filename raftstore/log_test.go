package raftstore

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// oneNode leaves the directory of a node that has written something; behind
// its snapshot, if there is to be one.
func oneNode(t *testing.T, g *group, snapshot bool) *peer {
	t.Helper()
	a := g.peers["a"]
	g.start("a")
	if err := a.store.Bootstrap([]string{"a"}); err != nil {
		t.Fatal(err)
	}
	g.awaitLeader()
	for i := range 100 {
		g.mustPut("a", fmt.Sprint("s", i), strings.Repeat("value", 20))
	}
	if snapshot {
		if err := a.store.raft.Snapshot().Error(); err != nil {
			t.Fatal(err)
		}
		g.mustPut("a", "behind the snapshot", "1")
	}
	a.crash()
	return a
}

func edit(t *testing.T, path string, f func([]byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, f(b), 0o600); err != nil {
		t.Fatal(err)
	}
}

// What cannot be read stops the start, with what to do, and stays as it is.
func TestDamage(t *testing.T) {
	cut := func(n int) func([]byte) []byte { return func(b []byte) []byte { return b[:n] } }
	for _, c := range []struct {
		name     string
		snapshot bool
		file     string // "*" stands for the newest snapshot
		damage   func([]byte) []byte
		want     error
		says     string
	}{
		{"nothing", false, logFile, func(b []byte) []byte { return b }, nil, ""},
		{"nothing, with a snapshot", true, logFile, func(b []byte) []byte { return b }, nil, ""},
		{"one meta page torn", false, logFile, func(b []byte) []byte { clear(b[100:4096]); return b }, nil, ""},
		{"both meta pages", false, logFile, func(b []byte) []byte { clear(b[:8192]); return b }, ErrCorrupt, "start again"},
		{"log cut in half", false, logFile, func(b []byte) []byte { return b[:len(b)/2/4096*4096] }, ErrCorrupt, "start again"},
		{"log cut to two pages", false, logFile, cut(8192), ErrCorrupt, ""},
		{"log cut to some bytes", false, logFile, cut(1000), ErrCorrupt, ""},
		{"log is text", false, logFile, func([]byte) []byte { return []byte(strings.Repeat("hello\n", 2000)) }, ErrCorrupt, ""},
		{"a byte of an entry", false, logFile, func(b []byte) []byte {
			i := bytes.LastIndex(b, []byte("valuevalue"))
			b[i]++
			// And wherever an older page has it.
			return bytes.ReplaceAll(b, []byte("valuevaluevaluevalue"), []byte("valuevaluevalueValue"))
		}, ErrCorrupt, "not what was written"},
		{"data pages zero", false, logFile, func(b []byte) []byte { clear(b[3*4096:]); return b }, ErrCorrupt, ""},
		{"data pages noise", false, logFile, func(b []byte) []byte {
			for i := 4 * 4096; i < len(b); i++ {
				b[i] = byte(i * 31)
			}
			return b
		}, ErrCorrupt, ""},
		{"snapshot data", true, "*/state.bin", func(b []byte) []byte { b[len(b)/2]++; return b }, ErrCorrupt, "snapshot"},
		{"snapshot cut", true, "*/state.bin", func(b []byte) []byte { return b[:len(b)/2] }, ErrCorrupt, "snapshot"},
		{"snapshot meta", true, "*/meta.json", func([]byte) []byte { return nil }, ErrCorrupt, "cannot be read"},
		{"generation", false, generationFile, func([]byte) []byte { return []byte("2\n") }, ErrCorrupt, generationFile},
		{"newer format", false, generationFile, func([]byte) []byte { return []byte("starling-raft 2 7\n") }, ErrNewerLog, "format 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, "a", func(t *testing.T, g *group) {
				a := oneNode(t, g, c.snapshot)
				file := filepath.Join(a.dir, c.file)
				if rest, ok := strings.CutPrefix(c.file, "*/"); ok {
					all, _ := filepath.Glob(filepath.Join(a.dir, snapshotDir, "*", rest))
					if len(all) != 1 {
						t.Fatal(all)
					}
					file = all[0]
				}
				edit(t, file, c.damage)
				before := readAll(t, a.dir)
				err := a.start()
				if c.want == nil {
					if err != nil {
						t.Fatal(err)
					}
					g.awaitLeader()
					if n := len(a.store.Switches()); n < 99 { // a torn meta page is that of the last commit
						t.Errorf("%d switches", n)
					}
					return
				}
				if !errors.Is(err, c.want) || !strings.Contains(fmt.Sprint(err), c.says) || !strings.Contains(err.Error(), a.dir) {
					t.Fatalf("%v", err)
				}
				t.Log(err)
				for name, b := range readAll(t, a.dir) {
					if !bytes.Equal(before[name], b) {
						t.Errorf("%s was changed", name)
					}
				}
				if _, err := Inspect(a.dir); !errors.Is(err, c.want) {
					t.Errorf("Inspect: %v", err)
				}
				if _, err := Recover(a.dir, "a"); !errors.Is(err, c.want) {
					t.Errorf("Recover: %v", err)
				}
			})
		})
	}
}

func readAll(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files[path], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// A log without its beginning, or without its snapshot, is not a shorter log.
func TestMissingEntries(t *testing.T) {
	bubble(t, "a", func(t *testing.T, g *group) {
		a := g.peers["a"]
		a.options = func(o *Options) { o.TrailingEntries = 1 }
		oneNode(t, g, true)
		snaps, _ := filepath.Glob(filepath.Join(a.dir, snapshotDir, "*"))
		for _, s := range snaps {
			if err := os.RemoveAll(s); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.start(); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "entries are missing") {
			t.Errorf("%v", err)
		}
	})
	bubble(t, "a", func(t *testing.T, g *group) {
		a := oneNode(t, g, false)
		if err := os.Remove(filepath.Join(a.dir, generationFile)); err != nil {
			t.Fatal(err)
		}
		if err := a.start(); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), generationFile) {
			t.Errorf("%v", err)
		}
	})
}

// What a process left that ended in the middle of a snapshot goes.
func TestUnfinishedSnapshot(t *testing.T) {
	bubble(t, "a", func(t *testing.T, g *group) {
		a := oneNode(t, g, true)
		tmp := filepath.Join(a.dir, snapshotDir, "2-200-12345.tmp")
		if err := os.MkdirAll(tmp, 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := Inspect(a.dir); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(tmp); err != nil {
			t.Errorf("Inspect changed the directory: %v", err)
		}
		if err := a.start(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(tmp); !errors.Is(err, os.ErrNotExist) {
			t.Error("it is still there")
		}
	})
}

func TestLocked(t *testing.T) {
	bubble(t, "a", func(t *testing.T, g *group) {
		a := oneNode(t, g, false)
		db, err := bbolt.Open(filepath.Join(a.dir, logFile), 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		begin := time.Now()
		if err := a.start(); !errors.Is(err, ErrLocked) || time.Since(begin) > 3*time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		if _, err := Inspect(a.dir); !errors.Is(err, ErrLocked) {
			t.Error(err)
		}
		if _, err := Recover(a.dir, "a"); !errors.Is(err, ErrLocked) {
			t.Error(err)
		}
	})
}

func TestNothingToRecover(t *testing.T) {
	if _, err := Recover(t.TempDir(), "a"); err == nil {
		t.Error("an empty directory was recovered")
	}
	bubble(t, "a", func(t *testing.T, g *group) {
		g.start("a")
		g.kill("a")
		if _, err := Recover(g.peers["a"].dir, "a"); err == nil {
			t.Error("a node that was never in a group was recovered")
		}
	})
}

func TestExplain(t *testing.T) {
	for _, c := range []struct{ err, want error }{
		{&fs.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}, ErrDiskFull},
		{&fs.PathError{Op: "write", Path: "x", Err: syscall.EDQUOT}, ErrDiskFull},
		{bolterrors.ErrTimeout, ErrLocked},
		{bolterrors.ErrChecksum, ErrCorrupt},
		{bolterrors.ErrVersionMismatch, ErrNewerLog},
	} {
		if got := explain("x", c.err); !errors.Is(got, c.want) || !errors.Is(got, c.err) && c.want != ErrLocked {
			t.Errorf("%v: %v", c.err, got)
		}
	}
	if explain("x", nil) != nil {
		t.Error("no error became one")
	}
}

// A full disk, if this machine lets a test have one.
func TestDiskFull(t *testing.T) {
	small := t.TempDir()
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=512k"); err != nil {
		t.Skipf("cannot mount a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(small, 0); err != nil {
			t.Error(err)
		}
	})
	bubble(t, "a", func(t *testing.T, g *group) {
		a := g.peers["a"]
		a.dir = filepath.Join(small, "raft")
		g.start("a")
		if err := a.store.Bootstrap([]string{"a"}); err != nil {
			t.Fatal(err)
		}
		g.awaitLeader()
		acknowledged := 0
		var err error
		for i := range 2000 {
			if err = a.put(fmt.Sprint("s", i), strings.Repeat("x", 1000)); err != nil {
				break
			}
			acknowledged++
		}
		if err == nil || acknowledged < 50 {
			t.Fatalf("%d writes, %v", acknowledged, err)
		}
		g.await("the failure is told", 5*time.Second, func() bool {
			a.mu.Lock()
			defer a.mu.Unlock()
			return len(a.failures) == 1 && errors.Is(a.failures[0], ErrDiskFull)
		})
		a.crash()
		// Full to the last byte: it says so and does not start.
		filler := filepath.Join(small, "filler")
		f, err := os.Create(filler)
		if err != nil {
			t.Fatal(err)
		}
		for {
			if _, err := f.Write(make([]byte, 512)); err != nil {
				break
			}
		}
		f.Close()
		if err := a.start(); !errors.Is(err, ErrDiskFull) {
			t.Errorf("with a full disk: %v", err)
		}
		if a.store != nil {
			a.crash()
		}
		// With room again all that was acknowledged is there.
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mount("tmpfs", small, "tmpfs", syscall.MS_REMOUNT, "size=64m"); err != nil {
			t.Fatal(err)
		}
		if err := a.start(); err != nil {
			t.Fatal(err)
		}
		g.awaitLeader()
		if n := len(a.store.Switches()); n < acknowledged {
			t.Errorf("%d of %d acknowledged writes are there", n, acknowledged)
		}
		g.mustPut("a", "again", "1")
	})
}

// An entry that cannot be read any more: the library would panic on a
// goroutine of its own. The second read comes when the store stops already,
// because of the first.
func TestReadFails(t *testing.T) {
	bubble(t, "a", func(t *testing.T, g *group) {
		a := g.peers["a"]
		g.start("a")
		if err := a.store.Bootstrap([]string{"a"}); err != nil {
			t.Fatal(err)
		}
		g.awaitLeader()
		if err := a.store.log.bolt.Close(); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			ended := make(chan bool)
			go func() {
				returned := false
				defer func() { ended <- returned }()
				_ = a.store.log.GetLog(1, new(raft.Log))
				returned = true
			}()
			if <-ended {
				t.Error("the library would go on")
			}
			g.await("the failure", time.Second, func() bool { return a.store.Status().Role == "failed" })
			synctest.Wait()
		}
	})
}

// A node that ended in the middle of making the group makes it at the next
// start; one that lost its log does not make another.
func TestBootstrapOnce(t *testing.T) {
	bubble(t, "a", func(t *testing.T, g *group) {
		a := g.peers["a"]
		g.start("a")
		g.kill("a")
		if err := errors.Join(writeFile(a.dir, bootstrapFile, ""), writeGeneration(a.dir, newGeneration(0), "")); err != nil {
			t.Fatal(err)
		}
		g.start("a")
		if err := a.store.Bootstrap([]string{"a"}); err != nil {
			t.Fatal(err)
		}
		g.awaitLeader()
		g.mustPut("a", "x", "1")
		g.kill("a")
		if err := os.Remove(filepath.Join(a.dir, logFile)); err != nil {
			t.Fatal(err)
		}
		if err := a.start(); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "move") {
			t.Errorf("started without the log that it had: %v", err)
		}
	})
}

// bbolt would go on with the older of its heads, without the last thing that
// was written.
func TestHeads(t *testing.T) {
	for head := range 2 {
		bubble(t, "a", func(t *testing.T, g *group) {
			a := g.peers["a"]
			g.start("a")
			if err := a.store.Bootstrap([]string{"a"}); err != nil {
				t.Fatal(err)
			}
			g.awaitLeader()
			g.mustPut("a", "x", "1")
			g.kill("a")
			f, err := os.OpenFile(filepath.Join(a.dir, logFile), os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			_, err = f.WriteAt(make([]byte, 100), int64(head*os.Getpagesize()))
			if err := errors.Join(err, f.Close()); err != nil {
				t.Fatal(err)
			}
			if err := a.start(); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "move") {
				t.Errorf("head %d zeroed: %v", head, err)
			}
		})
	}
}

// What the snapshots are timed by is what the file grows by, also with small
// entries (cases C44).
func TestOnDisk(t *testing.T) {
	l, err := openLog(filepath.Join(t.TempDir(), logFile), true, 1<<40, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	data := make([]byte, 140)
	for i := uint64(1); i <= 8000; i += 4 {
		var entries []*raft.Log
		for j := range uint64(4) {
			entries = append(entries, &raft.Log{Index: i + j, Term: 1, Data: data})
		}
		if err := l.StoreLogs(entries); err != nil {
			t.Fatal(err)
		}
	}
	// The file doubles when it grows.
	if counted, file := l.sinceSnapshot(), l.fileBytes(); counted < file*2/5 || counted > file*3/2 {
		t.Errorf("counted %d bytes, the file has %d", counted, file)
	}
}
