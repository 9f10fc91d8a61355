package node

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/starling-registry/starling/pkg/registry"
)

// open opens a directory, for the time of the test unless it is closed before.
func open(t *testing.T, dir string) *DataDir {
	t.Helper()
	d, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// refused checks that a directory cannot be opened and that the error says all
// of the given.
func refused(t *testing.T, dir string, says ...string) {
	t.Helper()
	d, err := Open(dir)
	if err == nil {
		d.Close()
		t.Errorf("%s: opened", dir)
		return
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q is not in: %v", s, err)
		}
	}
}

func TestDataDirAcrossStarts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	before := uint64(time.Now().UnixMilli())
	d := open(t, dir)
	if len(d.NodeID) != 32 || d.Epoch < before || d.Clock != 0 {
		t.Fatalf("new: %+v", d)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	id, epoch := d.NodeID, d.Epoch

	clock := registry.StampAt(time.Now().UnixMilli()) + 7
	for _, s := range []registry.Stamp{clock - 1, clock, clock - 5} { // never goes back
		if err := d.SaveClock(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := d.SaveClock(clock + 1); err == nil {
		t.Error("saved after Close")
	}

	// Several starts within a millisecond, and a clock that went back.
	for range 3 {
		d = open(t, dir)
		if d.NodeID != id || d.Epoch <= epoch || d.Clock != clock {
			t.Fatalf("again: %+v, epoch before %d", d, epoch)
		}
		epoch = d.Epoch
		d.Close()
	}
	future := epoch + 1_000_000_000
	writeFile(t, dir, "epoch", fmt.Sprint(future))
	if d = open(t, dir); d.Epoch != future+1 {
		t.Errorf("epoch %d after %d", d.Epoch, future)
	}

	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
		if info, _ := e.Info(); info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", e.Name(), info.Mode())
		}
	}
	if got := strings.Join(names, " "); got != "clock epoch lock node-id" {
		t.Errorf("files: %s", got)
	}
}

func TestDataDirIDsDiffer(t *testing.T) {
	if a, b := open(t, t.TempDir()), open(t, t.TempDir()); a.NodeID == b.NodeID {
		t.Errorf("two nodes with id %s", a.NodeID)
	}
}

func TestDataDirDamaged(t *testing.T) {
	f := func(file, content, remedy string) {
		t.Helper()
		dir := t.TempDir()
		open(t, dir).Close()
		writeFile(t, dir, file, content)
		refused(t, dir, filepath.Join(dir, file)+" is damaged", remedy)
		if got, _ := os.ReadFile(filepath.Join(dir, file)); string(got) != content {
			t.Errorf("%s with %q: replaced by %q", file, content, got)
		}
		// The lock was given back.
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		open(t, dir).Close()
	}
	f("node-id", "", "move the whole directory away")
	f("node-id", "hello", "move the whole directory away")
	f("node-id", strings.Repeat("0", 31), "move the whole directory away")
	f("node-id", strings.Repeat("0", 34), "move the whole directory away")
	f("epoch", "", "date +%s%3N")
	f("epoch", "0", "date +%s%3N")
	f("epoch", "-1\n", "date +%s%3N")
	f("epoch", "17x\n", "date +%s%3N")
	f("epoch", "18446744073709551615", "date +%s%3N")
	f("clock", "\x00\x00\x00", "remove it")
	f("clock", "99999999999999999999999", "remove it")
}

func TestDataDirWithoutItsNodeID(t *testing.T) {
	dir := t.TempDir()
	open(t, dir).Close()
	if err := os.Remove(filepath.Join(dir, "node-id")); err != nil {
		t.Fatal(err)
	}
	refused(t, dir, "node-id is gone")
}

// What a crash between the two steps of a write leaves behind.
func TestDataDirAfterACrash(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	if err := d.SaveClock(100); err != nil {
		t.Fatal(err)
	}
	d.Close()
	for _, name := range []string{"epoch.tmp", "clock.tmp", "node-id.tmp"} {
		writeFile(t, dir, name, "ha")
	}
	d = open(t, dir)
	if err := d.SaveClock(101); err != nil || d.Clock != 100 {
		t.Errorf("clock %d, %v", d.Clock, err)
	}
}

func TestDataDirStaysInside(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(outside, []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(dir, "epoch.tmp")); err != nil {
		t.Fatal(err)
	}
	refused(t, dir, "escapes")
	if b, _ := os.ReadFile(outside); string(b) != "1" {
		t.Errorf("outside now has %q", b)
	}
}

func TestDataDirNotADirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	writeFile(t, filepath.Dir(file), "file", "")
	refused(t, file, file)
}

func TestDataDirLocked(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	refused(t, dir, dir+" is in use")
	d.Close()
	open(t, dir).Close()

	// And by another process, also one that is killed: the kernel unlocks.
	cmd := exec.Command(os.Args[0], "-test.run=^TestHoldDataDir$")
	cmd.Env = append(os.Environ(), "HOLD_DATA_DIR="+dir)
	stdin, err := cmd.StdinPipe() // closed when this process ends, however it does
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if line != "held\n" {
		t.Fatalf("the other process said %q, %v", line, err)
	}
	refused(t, dir, dir+" is in use")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait() // killed
	open(t, dir)
}

// TestHoldDataDir is the other process of TestDataDirLocked.
func TestHoldDataDir(t *testing.T) {
	dir := os.Getenv("HOLD_DATA_DIR")
	if dir == "" {
		t.Skip("runs as the child of TestDataDirLocked")
	}
	if _, err := Open(dir); err != nil {
		t.Fatal(err)
	}
	fmt.Println("held")
	os.Stdin.Read(make([]byte, 1))
}

func TestSaveClockConcurrently(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	var wg sync.WaitGroup
	for i := range registry.Stamp(8) {
		wg.Go(func() {
			if err := d.SaveClock(1000 + i); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	d.Close()
	if d = open(t, dir); d.Clock != 1007 {
		t.Errorf("clock %d", d.Clock)
	}
}

func writeFile(t *testing.T, dir, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestMembersAreKept(t *testing.T) {
	d := open(t, t.TempDir())
	defer d.Close()
	if got := d.Members(); got != nil {
		t.Errorf("at first: %v", got)
	}
	want := []Known{{"a", "10.0.0.1:7946", true}, {"b", "[::1]:7946", false}}
	if err := d.SaveMembers(want); err != nil {
		t.Fatal(err)
	}
	if got := d.Members(); !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	// A damaged line costs no more than itself.
	if err := d.write("members", "\x00\na 10.0.0.1:7946 stable\nb c d e"); err != nil {
		t.Fatal(err)
	}
	if got := d.Members(); !slices.Equal(got, want[:1]) {
		t.Errorf("damaged: %v", got)
	}
	if err := d.SaveMembers(nil); err != nil || d.Members() != nil {
		t.Errorf("none: %v, %v", d.Members(), err)
	}
}

func TestClusterIDIsChecked(t *testing.T) {
	d := open(t, t.TempDir())
	defer d.Close()
	if id, err := d.ClusterID(); id != "" || err != nil {
		t.Errorf("at first %q, %v", id, err)
	}
	id := strings.Repeat("0a", 16)
	if err := d.SaveClusterID(id); err != nil {
		t.Fatal(err)
	}
	if got, err := d.ClusterID(); got != id || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if err := d.write("cluster-id", "mine"); err != nil {
		t.Fatal(err)
	}
	if _, err := d.ClusterID(); err == nil || !strings.Contains(err.Error(), "cluster-id is damaged") {
		t.Errorf("damaged: %v", err)
	}
}

func TestSnapshotIsReplacedAsAWhole(t *testing.T) {
	d := open(t, t.TempDir())
	defer d.Close()
	if _, err := d.OpenSnapshot(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("at first: %v", err)
	}
	save := func(content string, fail error) error {
		return d.SaveSnapshot(func(w io.Writer) error {
			_, err := io.WriteString(w, content)
			return errors.Join(err, fail)
		})
	}
	if err := save("first", nil); err != nil {
		t.Fatal(err)
	}
	if err := save("half", errors.New("no more")); err == nil {
		t.Error("a failed write is no error")
	}
	f, err := d.OpenSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if b, err := io.ReadAll(f); string(b) != "first" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
}

// A node that was about to make the id of the cluster and could not keep it has
// not made a cluster: it does not begin a log when it takes the id of another
// one's (cases C25).
func TestFoundersOfNoCluster(t *testing.T) {
	d, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	// The crash, or the full disk, is between the two files.
	if err := d.SaveFounders(firstVoters(d.NodeID, []string{"a", "b", d.NodeID})); err != nil {
		t.Fatal(err)
	}
	if err := found(d, strings.Repeat("c", 32), nil); err != nil {
		t.Fatal(err)
	}
	if f := d.Founders(); f != nil {
		t.Errorf("it begins a second log, for %v", f)
	}

	// Who has made the id begins the log, also after a crash.
	if err := found(d, strings.Repeat("d", 32), []string{"a", d.NodeID}); err != nil {
		t.Fatal(err)
	}
	if f := d.Founders(); len(f) != 2 || !slices.Contains(f, "a") {
		t.Errorf("founders %v", f)
	}
}
