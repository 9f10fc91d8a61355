package power

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/starling-registry/starling/pkg/node"
)

const (
	clients = 8
	each    = 12 // writes of a client
	imageMB = 48
	patient = 30 * time.Second // until nodes serve what they have
	port    = 18848
)

// A machine is where a node runs: its disk is an image file, and its power can
// be cut.
type machine struct {
	t     *testing.T
	index int
	image string
	mount string
	opts  node.Options
	node  *node.Node
}

func (m *machine) addr() string { return fmt.Sprintf("127.77.0.%d", m.index+1) }

// needRoot skips where nothing can be mounted.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can mount the file system of a machine whose power is cut")
	}
	for _, tool := range []string{"mkfs.ext4", "mount", "umount"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is needed: %v", tool, err)
		}
	}
	dir := t.TempDir()
	if err := makeImage(filepath.Join(dir, "image")); err != nil {
		t.Fatal(err)
	}
	if out, err := mount(filepath.Join(dir, "image"), filepath.Join(dir, "mnt")); err != nil {
		t.Skipf("no image can be mounted here (a container without loop devices?): %s", out)
	}
	unmount(t, filepath.Join(dir, "mnt"))
}

func makeImage(path string) error {
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(path, imageMB<<20); err != nil {
		return err
	}
	// Nothing is left to do in the background.
	out, err := exec.Command("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", path).CombinedOutput()
	if err != nil {
		return fmt.Errorf("mkfs.ext4: %w: %s", err, out)
	}
	return nil
}

func mount(image, at string) (string, error) {
	if err := os.MkdirAll(at, 0o700); err != nil {
		return "", err
	}
	out, err := exec.Command("mount", "-o", "loop", image, at).CombinedOutput()
	return string(out), err
}

func unmount(t *testing.T, at string) {
	t.Helper()
	// A process that was just started elsewhere may still look around in it.
	for range 20 {
		out, err := exec.Command("umount", at).CombinedOutput()
		if err == nil {
			return
		}
		if t.Log(string(out)); !strings.Contains(string(out), "busy") {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("%s stays mounted", at)
}

// power gives a machine its disk.
func (m *machine) power(image string) {
	m.t.Helper()
	m.image, m.mount = image, image+".mnt"
	if out, err := mount(m.image, m.mount); err != nil {
		m.t.Fatalf("mount %s: %s", m.image, out)
	}
}

func (m *machine) start() error {
	o := m.opts
	o.DataDir = filepath.Join(m.mount, "data")
	var err error
	m.node, err = node.Start(m.t.Context(), o)
	return err
}

// stop ends a node, however that goes: what it still writes is of the life
// before the cut.
func (m *machine) stop() {
	if m.node != nil {
		at, cancel := context.WithCancel(context.Background())
		cancel()
		_ = m.node.Stop(at) // in a hurry, it may complain
		m.node = nil
	}
	if m.mount != "" {
		unmount(m.t, m.mount)
		m.mount = ""
	}
}

// disk is what is on the disk of a machine that runs: the image, read until
// two times in a row give the same. Then it is the disk at a moment in between.
func (m *machine) disk() []byte {
	m.t.Helper()
	last, err := os.ReadFile(m.image)
	for range 50 {
		var again []byte
		if again, err = os.ReadFile(m.image); err == nil && bytes.Equal(again, last) {
			return again
		}
		last = again
	}
	m.t.Fatalf("the disk does not stand still (%v)", err)
	return nil
}

// write registers persistent instances at all machines, and returns the ports
// of those that were acknowledged.
func write(t *testing.T, machines []*machine) (acked []int) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for i := range each {
				port := 1000 + c*each + i
				m := machines[port%len(machines)]
				resp, err := http.Post(fmt.Sprintf("http://%s:%d/nacos/v1/ns/instance?ephemeral=false&serviceName=power&ip=10.0.0.1&port=%d", m.addr(), m.opts.Port, port), "", nil)
				if err != nil {
					t.Error(err)
					return
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					t.Errorf("write: %d %s %v", resp.StatusCode, body, err)
					return
				}
				mu.Lock()
				acked = append(acked, port)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return acked
}

// list is what a node shows.
func (m *machine) list() (map[int]bool, error) {
	resp, err := http.Get(fmt.Sprintf("http://%s:%d/nacos/v1/ns/instance/list?serviceName=power", m.addr(), m.opts.Port))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var l struct {
		Hosts []struct {
			Port int `json:"port"`
		} `json:"hosts"`
	}
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(&l); err != nil {
		return nil, err
	}
	all := map[int]bool{}
	for _, h := range l.Hosts {
		all[h.Port] = true
	}
	return all, nil
}

// leads waits until a node takes writes.
func leads(t *testing.T, m *machine) {
	t.Helper()
	for end := time.Now().Add(patient); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		resp, err := http.Get(fmt.Sprintf("http://%s:%d/starling/v1/raft", m.addr(), m.opts.Port))
		if err != nil {
			continue
		}
		var r struct {
			Leader string `json:"leader"`
		}
		err = json.NewDecoder(resp.Body).Decode(&r)
		resp.Body.Close()
		if err == nil && r.Leader != "" {
			return
		}
	}
	t.Fatal("no leader is found")
}

// lost cuts the power of all machines behind acknowledged writes, starts them
// again, and counts what each node lacks then. A node that does not start, or
// serves nothing, lacks everything.
func lost(t *testing.T, count int, noSync bool) (missing map[string]int) {
	dir := t.TempDir()
	var machines []*machine
	defer func() {
		for _, m := range machines {
			m.stop()
		}
	}()
	for i := range count {
		m := &machine{t: t, index: i, opts: node.DefaultOptions()}
		m.opts.Name, m.opts.Bind, m.opts.Advertise, m.opts.Port = "node"+strconv.Itoa(i), m.addr(), m.addr(), port
		m.opts.NoSync = noSync
		if count > 1 {
			m.opts.InsecureCluster, m.opts.Expect = true, count
			for j := range count {
				m.opts.Join = append(m.opts.Join, fmt.Sprintf("127.77.0.%d", j+1))
			}
		}
		image := filepath.Join(dir, m.opts.Name)
		if err := makeImage(image); err != nil {
			t.Fatal(err)
		}
		m.power(image)
		machines = append(machines, m)
		if err := m.start(); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range machines {
		leads(t, m)
	}
	acked := write(t, machines)
	if t.Failed() {
		t.FailNow()
	}
	// Here the power goes. The machines know nothing of it.
	for _, m := range machines {
		if err := os.WriteFile(m.image+".after", m.disk(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range machines {
		m.stop()
	}
	missing = map[string]int{}
	for _, m := range machines {
		m.power(m.image + ".after")
		if err := m.start(); err != nil {
			t.Logf("%s does not start: %v", m.opts.Name, err)
			missing[m.opts.Name] = len(acked)
		}
	}
	wait := patient
	if noSync {
		wait = 2 * time.Second // what is gone does not come
	}
	end := time.Now().Add(wait)
	for _, m := range machines {
		if m.node == nil {
			continue
		}
		lacks := len(acked)
		for ok := true; ok && lacks > 0; time.Sleep(50 * time.Millisecond) {
			ok = time.Now().Before(end) // looked at once in any case
			shown, err := m.list()
			if err != nil {
				continue
			}
			lacks = 0
			for _, port := range acked {
				if !shown[port] {
					lacks++
				}
			}
		}
		if lacks > 0 {
			missing[m.opts.Name] = lacks
		}
	}
	t.Logf("%d writes were acknowledged by %d nodes; missing: %v", len(acked), count, missing)
	return missing
}

// TestPowerCut: what one node or three have acknowledged survives a power cut
// of all of them.
func TestPowerCut(t *testing.T) {
	needRoot(t)
	for _, count := range []int{1, 3} {
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			for name, n := range lost(t, count, false) {
				t.Errorf("\n    [0.0s] lost: %s has %d acknowledged writes no more", name, n)
			}
		})
	}
}

// TestHarness: without fsync the same loses something. If not, the disk that is
// copied is not what a power cut leaves.
func TestHarness(t *testing.T) {
	needRoot(t)
	for _, count := range []int{1, 3} {
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			if len(lost(t, count, true)) == 0 {
				t.Error("nothing is lost without fsync: the test proves nothing")
			}
		})
	}
}
