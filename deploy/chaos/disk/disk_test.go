package disk

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/starling-registry/starling/deploy/chaos/nodetest"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("DISK_TEST_MOUNT"); dir != "" {
		mountAndWait(dir)
		return
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		nodetest.Remove()
		os.Exit(code)
	}))
}

// mountAndWait is the process that TestSweep kills.
func mountAndWait(dir string) {
	d, err := New(dir, 1<<20)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(d.Dir())
	_, _ = os.Stdin.Read(make([]byte, 1)) // until the end
	_ = d.Close()
}

// newDisk is closed at the end of the test, where nothing may be mounted.
func newDisk(t *testing.T, size int64) *Disk {
	t.Helper()
	if err := Available(); err != nil {
		t.Skip("no disks here:", err)
	}
	dir := t.TempDir()
	d, err := New(dir, size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error("Close:", err)
		}
		if err := d.Close(); err != nil {
			t.Error("Close again:", err)
		}
		if points := mountsBelow(t, dir); len(points) > 0 {
			t.Errorf("still mounted: %v", points)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left in the folder: %v, %v", left, err)
		}
	})
	return d
}

func mountsBelow(t *testing.T, dir string) (points []string) {
	t.Helper()
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(unescape(f[4]), dir) {
			points = append(points, f[4])
		}
	}
	return points
}

// shell runs a script on the disk in a process of its own, as all that use one.
func shell(t *testing.T, d *Disk, script string) (string, error) {
	t.Helper()
	cmd := exec.Command("sh", "-ec", script)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "D="+d.Dir())
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func TestHandsThrough(t *testing.T) {
	d := newDisk(t, 4<<20)
	const script = `
cd $D; umask 077
echo one >a; echo two >>a; mkdir b; mv a b/c; ln b/c hard; ln -s b/c soft
chmod 640 b/c; truncate -s 3 hard; sync -d b/c; sync b
stat -c '%a %s %h' b/c; cat soft; echo; ls`
	out, err := shell(t, d, script)
	if want := "640 3 2\none\nb\nhard\nsoft"; err != nil || out != want {
		t.Errorf("got %q, %v; want %q", out, err, want)
	}
	below, err := os.ReadFile(filepath.Join(d.store(), "b", "c"))
	if err != nil || string(below) != "one" {
		t.Errorf("below is %q, %v", below, err)
	}
}

func TestFillAndFree(t *testing.T) {
	d := newDisk(t, 4<<20)
	if out, err := shell(t, d, `head -c 65536 /dev/zero >$D/old; truncate -s 1M $D/holes`); err != nil {
		t.Fatal(out, err)
	}
	for range 2 {
		if err := d.Fill(); err != nil {
			t.Fatal(err)
		}
	}
	for name, script := range map[string]string{
		"a new file":          `head -c 1 /dev/zero >$D/new`,
		"the end of a file":   `head -c 65536 /dev/zero >>$D/old`,
		"a hole in a file":    `echo x | dd of=$D/holes bs=4096 seek=7 conv=notrunc`,
		"reserving for later": `fallocate -l 2M $D/reserved`,
	} {
		if out, err := shell(t, d, script); err == nil || !strings.Contains(out, "No space left") {
			t.Errorf("%s: got %q, %v; want no space left", name, out, err)
		}
	}
	if out, err := shell(t, d, `echo x | dd of=$D/old bs=4096 seek=1 conv=notrunc,fsync; rm $D/old`); err != nil {
		t.Errorf("overwriting and removing on a full disk: %s, %v", out, err)
	}
	for range 2 {
		if err := d.Free(); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := shell(t, d, `head -c 1048576 /dev/zero >$D/new`); err != nil {
		t.Errorf("with space again: %s, %v", out, err)
	}
}

func TestSize(t *testing.T) {
	d := newDisk(t, 1<<20)
	if !d.privileged {
		t.Skip("without root a disk has the size of the file system below")
	}
	if out, err := shell(t, d, `head -c 2M /dev/zero >$D/big`); err == nil || !strings.Contains(out, "No space left") {
		t.Errorf("2 MiB on a disk of one: %q, %v", out, err)
	}
	if out, err := shell(t, d, `stat -f -c '%S %b' $D`); err != nil || out != "4096 256" {
		t.Errorf("the file system says %q, %v; want 256 blocks of 4096", out, err)
	}
}

func took(t *testing.T, d *Disk, script string) time.Duration {
	t.Helper()
	start := time.Now()
	if out, err := shell(t, d, script); err != nil {
		t.Fatal(out, err)
	}
	return time.Since(start)
}

func TestSlow(t *testing.T) {
	d := newDisk(t, 16<<20)
	const (
		write = `head -c 16384 /dev/zero | dd of=$D/f bs=4096 iflag=fullblock conv=notrunc` // four of them
		sync  = write + `,fdatasync`
		dir   = `mkdir -p $D/e; sync $D/e`
		big   = `head -c 1048576 /dev/zero >$D/g`
	)
	took(t, d, sync) // programs in memory
	const long = 200 * time.Millisecond
	for _, c := range []struct {
		name            string
		perWrite, perOp time.Duration
		rate            int64
		script          string
		atLeast         time.Duration
	}{
		{"writes", 100 * time.Millisecond, 0, 0, write, 400 * time.Millisecond},
		{"a sync", 0, long, 0, sync, long},
		{"a sync of a folder", 0, long, 0, dir, long},
		{"bandwidth", 0, 0, 2 << 20, big, 490 * time.Millisecond},
	} {
		d.Slow(c.perWrite, c.perOp)
		d.Throttle(c.rate)
		if slow := took(t, d, c.script); slow < c.atLeast || slow > 5*c.atLeast {
			t.Errorf("%s: took %v, want about %v", c.name, slow, c.atLeast)
		}
		d.Slow(0, 0)
		d.Throttle(0)
		// The machine may have more to do.
		if fast := min(took(t, d, c.script), took(t, d, c.script)); fast >= c.atLeast {
			t.Errorf("%s: took %v after it was mended", c.name, fast)
		}
	}
}

// What waits must not be waited for once the disk is mended or closed.
func TestMendedWhileWaiting(t *testing.T) {
	d := newDisk(t, 1<<20)
	for _, mend := range []func(){func() { d.Slow(0, 0) }, func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}} {
		d.Slow(0, time.Hour)
		_, before := d.Counts()
		done := make(chan error, 1)
		cmd := exec.Command("sh", "-c", `echo x >$D/f; exec sync $D/f`)
		cmd.Env = append(os.Environ(), "D="+d.Dir())
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		go func() { done <- cmd.Wait() }()
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			if _, now := d.Counts(); now > before {
				break
			} else if time.Now().After(deadline) {
				t.Fatal("no sync was asked for")
			}
		}
		select {
		case err := <-done:
			t.Fatalf("the sync did not wait: %v", err)
		default:
		}
		mend()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Fatal("the sync still waits")
		}
	}
}

// A process whose data are on the disk does not keep it, nor does one that has
// mounts of its own, as those in network namespaces have.
func TestCloseInUse(t *testing.T) {
	for _, prefix := range [][]string{nil, {"unshare", "--mount"}} {
		d := newDisk(t, 1<<20)
		if prefix != nil && !d.privileged {
			continue
		}
		argv := append(prefix, "sh", "-c", `exec 3>$D/f; echo; cd $D; exec sleep 1000`)
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), "D="+d.Dir())
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		// Without root and without the kernel's switch for it that cannot be
		// helped, but must be said.
		err = d.Close()
		_, noSwitch := os.Stat("/sys/fs/fuse/connections/" + strconv.FormatUint(uint64(unix.Minor(d.device)), 10))
		if err != nil && (d.privileged || noSwitch == nil) {
			t.Error(err)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait()
	}
}

// A process that was killed leaves mounts that answer nobody; the next New,
// of whatever folder, removes them, and leaves those of one that runs.
func TestSweep(t *testing.T) {
	if err := Available(); err != nil {
		t.Skip("no disks here:", err)
	}
	start := func() (dir string, cmd *exec.Cmd, end func()) {
		dir = filepath.Join(t.TempDir(), "with a space", "disk")
		cmd = exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "DISK_TEST_MOUNT="+dir)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line := make([]byte, 4096)
		n, err := out.Read(line)
		if err != nil || !bytes.HasPrefix(line, []byte(dir)) {
			t.Fatalf("the other process says %q, %v", line[:n], err)
		}
		return dir, cmd, func() { in.Close(); _ = cmd.Wait() }
	}
	living, _, end := start()
	defer end()
	dead, cmd, _ := start()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if len(mountsBelow(t, dead)) == 0 {
		t.Fatal("the killed process has left nothing to sweep")
	}
	before := mountsBelow(t, living)
	newDisk(t, 1<<20)
	if points := mountsBelow(t, dead); len(points) > 0 {
		t.Errorf("left by the killed process: %v", points)
	}
	if _, err := os.Stat(dead); os.Geteuid() == 0 && !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder of the killed process is still there: %v", err)
	}
	if points := mountsBelow(t, living); len(points) == 0 || !slices.Equal(points, before) {
		t.Errorf("of the process that runs there is %v, want %v", points, before)
	}
	end()
	if points := mountsBelow(t, living); len(points) > 0 {
		t.Errorf("left by the process that ended: %v", points)
	}
}

func TestLeft(t *testing.T) {
	line := func(point, source string) string {
		return "36 35 98:0 / " + point + " rw,noatime master:1 - tmpfs " + source + " rw\n"
	}
	table := line("/a", sourcePrefix+"7") + line(`/b\040c\134d`, sourcePrefix+"8") + line("/e", sourcePrefix+"x") +
		line("/f", "tmpfs") + "short\n" + line("/g", sourcePrefix+"9")
	got := left(table, func(pid int) bool { return pid == 9 })
	if want := []string{"/a", `/b c\d`}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if !running(os.Getpid()) {
		t.Error("this process does not run")
	}
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if running(cmd.Process.Pid) {
		t.Error("a process that ended runs: " + strconv.Itoa(cmd.Process.Pid))
	}
}
