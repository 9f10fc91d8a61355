package disk

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/starling-registry/starling/deploy/chaos/nodetest"
)

// A node has its data on a disk, or elsewhere.
type node struct {
	*nodetest.Node
	t    testing.TB
	args []string
}

// newNodes starts nodes, each with its data in one of the folders, and returns
// when they are ready.
func newNodes(t testing.TB, dirs ...string) (nodes []*node) {
	t.Helper()
	bin := nodetest.Binary(t)
	// Others may look for addresses at the same time.
	var hosts []string
	net16 := fmt.Sprintf("127.%d.%d.", 16+rand.IntN(200), rand.IntN(256))
	for i := range dirs {
		hosts = append(hosts, net16+fmt.Sprint(i+1))
	}
	for i, dir := range dirs {
		n := &node{t: t}
		n.args = []string{bin, "serve", "--bind", hosts[i], "--data-dir", dir, "--raft-snapshot-entries=100", "--raft-snapshot-every=200ms"}
		if len(dirs) > 1 {
			n.args = append(n.args, "--join", strings.Join(hosts, ","), "--expect", fmt.Sprint(len(dirs)))
		}
		n.Node = nodetest.Start(t, net.JoinHostPort(hosts[i], "8848"), func() *exec.Cmd { return exec.Command(n.args[0], n.args[1:]...) })
		nodes = append(nodes, n)
	}
	for _, n := range nodes {
		n.WaitReady()
	}
	return nodes
}

// write registers a persistent instance, which must be on disk before it is
// answered, and returns how long that took.
func (n *node) write(i int) (time.Duration, error) {
	start := time.Now()
	_, err := n.Do(http.MethodPost, "/nacos/v1/ns/instance", url.Values{
		"serviceName": {"disk"}, "ephemeral": {"false"}, "ip": {fmt.Sprintf("127.77.0.%d", 1+i%250)}, "port": {fmt.Sprint(1 + i/250)},
		"metadata": {`{"text":"` + strings.Repeat("x", 500) + `"}`},
	})
	return time.Since(start), err
}

func (n *node) count() int {
	n.t.Helper()
	body, err := n.Do(http.MethodGet, "/nacos/v1/ns/instance/list?serviceName=disk", nil)
	if err != nil {
		n.t.Fatal(err)
	}
	return strings.Count(body, `"ip":"127.77.0.`)
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
	n.Kill()
	n.Start()
	n.WaitReady()
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
	if _, err := n.Do(http.MethodGet, "/readyz", nil); err != nil {
		t.Errorf("slow, the node is not ready: %v", err)
	}
	d.Slow(0, 0)
	if again := n.writes(written, written+50); again > 100*time.Millisecond {
		t.Errorf("mended, a write takes %v", again)
	}
	n.Signal(syscall.SIGTERM)
	if code, said := n.Ended(); code != 0 {
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
		if time.Since(start) > nodetest.Within {
			t.Fatal("the node on the full disk goes on")
		}
		select {
		case <-full.End():
		default:
			continue
		}
		break
	}
	const saying = "no space left"
	if code, said := full.Ended(); code != 1 || !strings.Contains(said, saying) {
		t.Errorf("full: status %d: %s", code, said)
	}
	first.writes(done+1, done+20)
	full.Start()
	if code, said := full.Ended(); code != 1 || !strings.Contains(said, saying) {
		t.Errorf("start on a full disk: status %d: %s", code, said)
	} else {
		t.Logf("start on a full disk: %s", said)
	}
	if err := d.Free(); err != nil {
		t.Fatal(err)
	}
	full.Start()
	full.WaitReady()
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
			defer n.Kill()
			for i := 0; b.Loop(); i++ {
				if _, err := n.write(i); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
