package disk

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const within = 30 * time.Second

// A node is a "starling serve" process, one after the other, on a disk.
type node struct {
	t    testing.TB
	args []string
	addr string
	log  bytes.Buffer // read it when the process has ended
	cmd  *exec.Cmd
	end  chan struct{}
}

func built() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("starling-disk-test-%d", os.Getpid()))
}

// build is the server as it is in this tree.
var build = sync.OnceValues(func() (string, error) {
	if bin := os.Getenv("STARLING_BIN"); bin != "" {
		return filepath.Abs(bin)
	}
	bin := built()
	cmd := exec.Command("go", "build", "-o", bin, "./cmd/starling")
	cmd.Dir = "../../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return bin, nil
})

// newNodes starts nodes, each with its data in one of the folders, and returns
// when they are ready.
func newNodes(t testing.TB, dirs ...string) (nodes []*node) {
	t.Helper()
	bin, err := build()
	if err != nil {
		t.Fatal(err)
	}
	// Others may look for addresses at the same time.
	var hosts []string
	net16 := fmt.Sprintf("127.%d.%d.", 16+rand.IntN(200), rand.IntN(256))
	for i := range dirs {
		hosts = append(hosts, net16+fmt.Sprint(i+1))
	}
	for i, dir := range dirs {
		n := &node{t: t, addr: net.JoinHostPort(hosts[i], "8848")}
		n.args = []string{bin, "serve", "--bind", hosts[i], "--data-dir", dir, "--raft-snapshot-entries=100", "--raft-snapshot-every=200ms"}
		if len(dirs) > 1 {
			n.args = append(n.args, "--join", strings.Join(hosts, ","), "--expect", fmt.Sprint(len(dirs)))
		}
		n.start()
		t.Cleanup(n.kill)
		nodes = append(nodes, n)
	}
	for _, n := range nodes {
		n.ready()
	}
	return nodes
}

func (n *node) start() {
	n.t.Helper()
	n.log.Reset()
	n.cmd = exec.Command(n.args[0], n.args[1:]...)
	n.cmd.Stdout, n.cmd.Stderr = &n.log, &n.log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := n.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.end = make(chan struct{})
	go func(cmd *exec.Cmd, end chan struct{}) {
		_ = cmd.Wait()
		close(end)
	}(n.cmd, n.end)
}

// ended waits for the end of the process and returns its status and its log.
func (n *node) ended() (int, string) {
	n.t.Helper()
	select {
	case <-n.end:
		return n.cmd.ProcessState.ExitCode(), n.log.String()
	case <-time.After(within):
		n.t.Fatalf("the node has not ended within %v", within)
		return 0, ""
	}
}

func (n *node) kill() {
	_ = n.cmd.Process.Kill()
	<-n.end
}

func (n *node) ready() {
	n.t.Helper()
	for deadline := time.Now().Add(within); ; time.Sleep(10 * time.Millisecond) {
		if _, err := n.do(http.MethodGet, "/readyz", nil); err == nil {
			return
		} else if time.Now().After(deadline) {
			n.kill()
			n.t.Fatalf("not ready after %v: %v\n%s", within, err, n.log.String())
		}
		select {
		case <-n.end:
			n.t.Fatalf("ended before it was ready: %s", n.log.String())
		default:
		}
	}
}

// plain keeps no connections: there would be goroutines of them at the end.
var plain = &http.Client{Timeout: within, Transport: &http.Transport{DisableKeepAlives: true}}

func (n *node) do(method, path string, form url.Values) (string, error) {
	req, err := http.NewRequest(method, "http://"+n.addr+path, strings.NewReader(form.Encode()))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := plain.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", res.Status, body)
	}
	return string(body), err
}

// write registers a persistent instance, which must be on disk before it is
// answered, and returns how long that took.
func (n *node) write(i int) (time.Duration, error) {
	start := time.Now()
	_, err := n.do(http.MethodPost, "/nacos/v1/ns/instance", url.Values{
		"serviceName": {"disk"}, "ephemeral": {"false"}, "ip": {fmt.Sprintf("192.0.2.%d", 1+i%250)}, "port": {fmt.Sprint(1 + i/250)},
		"metadata": {`{"text":"` + strings.Repeat("x", 500) + `"}`},
	})
	return time.Since(start), err
}

func (n *node) count() int {
	n.t.Helper()
	body, err := n.do(http.MethodGet, "/nacos/v1/ns/instance/list?serviceName=disk", nil)
	if err != nil {
		n.t.Fatal(err)
	}
	return strings.Count(body, `"ip":"192.0.2.`)
}

func (n *node) writes(from, to int) time.Duration {
	n.t.Helper()
	start := time.Now()
	for i := from; i < to; i++ {
		if _, err := n.write(i); err != nil {
			n.t.Fatalf("write %d: %v", i, err)
		}
	}
	return time.Since(start) / time.Duration(to-from)
}

// Everything a node does with its data works: the mapped file of the log, its
// lock, the snapshots that are renamed, and all of it after a kill.
func TestNode(t *testing.T) {
	d := newDisk(t, 64<<20)
	n := newNodes(t, d.Dir())[0]
	const written = 400 // several snapshots
	fast := n.writes(0, written)
	t.Logf("a write takes %v", fast)
	second := exec.Command(n.args[0], n.args[1:]...)
	if out, err := second.CombinedOutput(); err == nil || !bytes.Contains(out, []byte("lock")) && !bytes.Contains(out, []byte("another")) {
		t.Errorf("a second node with the same data: %v: %s", err, out)
	}
	if shots, err := filepath.Glob(filepath.Join(d.store(), "raft", "snapshots", "*", "state.bin")); err != nil || len(shots) == 0 {
		t.Errorf("snapshots: %v, %v", shots, err)
	}
	n.kill()
	n.start()
	n.ready()
	if got := n.count(); got != written {
		t.Errorf("%d of %d instances are there after a kill", got, written)
	}

	d.Slow(0, 200*time.Millisecond)
	for i := range 3 {
		if took, err := n.write(written + i); err != nil || took < 200*time.Millisecond || took > 5*time.Second {
			t.Errorf("a write with syncs of 200 ms took %v, %v", took, err)
		} else {
			t.Logf("a write with syncs of 200 ms takes %v", took)
		}
	}
	if _, err := n.do(http.MethodGet, "/readyz", nil); err != nil {
		t.Errorf("slow, the node is not ready: %v", err)
	}
	d.Slow(0, 0)
	if again := n.writes(written, written+50); again > 100*time.Millisecond {
		t.Errorf("mended, a write takes %v", again)
	}
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code, said := n.ended(); code != 0 {
		t.Errorf("ended with status %d: %s", code, said)
	}
}

// As the manual of clusters says: the node says that its disk is full and ends
// with status 1, the others go on, and it does not start before there is room.
func TestFullDisk(t *testing.T) {
	d := newDisk(t, 16<<20)
	nodes := newNodes(t, t.TempDir(), t.TempDir(), d.Dir())
	first, full := nodes[0], nodes[2]
	first.writes(0, 50)
	if err := d.Fill(); err != nil {
		t.Fatal(err)
	}
	// If the full one leads, what it was just asked to write is not written or
	// not known to be.
	done, failed := 50, 0
	for start := time.Now(); ; done++ {
		if _, err := first.write(done); err != nil {
			t.Logf("write %d: %v", done, err)
			failed++
		}
		if time.Since(start) > within {
			t.Fatal("the node on the full disk goes on")
		}
		select {
		case <-full.end:
		default:
			continue
		}
		break
	}
	const saying = "no space left"
	if code, said := full.ended(); code != 1 || !strings.Contains(said, saying) {
		t.Errorf("full: status %d: %s", code, said)
	}
	first.writes(done+1, done+20)
	full.start()
	if code, said := full.ended(); code != 1 || !strings.Contains(said, saying) {
		t.Errorf("start on a full disk: status %d: %s", code, said)
	} else {
		t.Logf("start on a full disk: %s", said)
	}
	if err := d.Free(); err != nil {
		t.Fatal(err)
	}
	full.start()
	full.ready()
	if has, all := full.count(), first.count(); has != all || has < done+20-failed {
		t.Errorf("with space again it has %d instances, the others %d, of %d that were written and %d that failed", has, all, done+20, failed)
	}
}

// What the FUSE half costs while nothing is asked of it: a write of a node with
// its data on it, and right on what is below.
func BenchmarkNode(b *testing.B) {
	if err := Available(); err != nil {
		b.Skip("no disks here: ", err)
	}
	for _, half := range []string{"data", "store"} {
		b.Run(half, func(b *testing.B) {
			d, err := New(b.TempDir(), 256<<20)
			if err != nil {
				b.Fatal(err)
			}
			defer d.Close()
			n := newNodes(b, filepath.Join(d.root, half))[0]
			defer n.kill()
			for i := 0; b.Loop(); i++ {
				if _, err := n.write(i); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
