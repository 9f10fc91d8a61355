package names

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/starling-registry/starling/deploy/chaos/nodetest"
)

const (
	spacePrefix = "chaosnames-" // and the id of the process
	within      = nodetest.Within
)

// A space is a network namespace whose resolver is a Server on this side of a
// link. Nodes and clients have addresses of their own in it, and no way out.
type space struct {
	t      *testing.T
	dns    *Server
	name   string
	prefix string // of all addresses
	bin    string
	nodes  int
}

func newSpace(t *testing.T) *space {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can make network namespaces")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs ip (Debian package iproute2)")
		}
		t.Skip("needs ip (Debian package iproute2)")
	}
	sweepSpaces(t)
	pid := os.Getpid()
	s := &space{t: t, name: spacePrefix + strconv.Itoa(pid), prefix: freePrefix(t)}
	s.bin = nodetest.Binary(t)
	link := fmt.Sprintf("cn%d", pid)
	t.Cleanup(func() {
		_ = exec.Command("ip", "link", "del", link).Run() // goes with the namespace, a little later
		if err := ip("netns del " + s.name); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(filepath.Join("/etc/netns", s.name)); err != nil {
			t.Error(err)
		}
	})
	for _, c := range []string{
		"netns add " + s.name,
		"link add " + link + " type veth peer name eth0 netns " + s.name,
		"addr add " + s.prefix + "1/24 dev " + link,
		"link set " + link + " up",
		"-n " + s.name + " link set lo up",
		"-n " + s.name + " addr add " + s.prefix + "2/24 dev eth0",
		"-n " + s.name + " link set eth0 up",
	} {
		if err := ip(c); err != nil {
			t.Skip("cannot make a network namespace: ", err)
		}
	}
	var err error
	if s.dns, err = Serve(s.prefix + "1:53"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.dns.Close(); err != nil {
			t.Error(err)
		}
	})
	dir := filepath.Join("/etc/netns", s.name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "resolv.conf"), []byte("nameserver "+s.prefix+"1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return s
}

// sweepSpaces removes what a killed process has left.
func sweepSpaces(t *testing.T) {
	out, err := exec.Command("ip", "netns", "list").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		pid, ours := strings.CutPrefix(name, spacePrefix)
		number, err := strconv.Atoi(pid)
		if !ours || err != nil || !errors.Is(syscall.Kill(number, 0), syscall.ESRCH) {
			continue
		}
		_ = ip("netns del " + name)
		_ = os.RemoveAll(filepath.Join("/etc/netns", name))
	}
}

// freePrefix is of a network that this machine has no address in.
func freePrefix(t *testing.T) string {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		prefix := fmt.Sprintf("10.%d.%d.", 64+mathrand.IntN(64), mathrand.IntN(256))
		taken := false
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.Contains(net.ParseIP(prefix+"1")) {
				taken = true
			}
		}
		if !taken {
			return prefix
		}
	}
	t.Fatal("no network is free")
	return ""
}

func ip(args string) error {
	if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", args, err, bytes.TrimSpace(out))
	}
	return nil
}

// in makes a command run in the space, as the same process.
func (s *space) in(cmd *exec.Cmd) *exec.Cmd {
	inside := exec.Command("ip", append([]string{"netns", "exec", s.name}, cmd.Args...)...)
	inside.Dir, inside.Env = cmd.Dir, cmd.Env
	return inside
}

// A node is one in the space.
type node struct {
	*nodetest.Node
	ip string
}

// address is what the next node gets, so that names can have it before.
func (s *space) address(next int) string { return s.prefix + strconv.Itoa(11+s.nodes+next) }

// start starts a node at a new address and returns when it is ready.
func (s *space) start(args ...string) *node {
	s.t.Helper()
	n := &node{ip: s.address(0)}
	s.nodes++
	if err := ip("-n " + s.name + " addr add " + n.ip + "/24 dev eth0"); err != nil {
		s.t.Fatal(err)
	}
	argv := append([]string{s.bin, "serve", "--name", fmt.Sprintf("node-%d", s.nodes), "--bind", n.ip, "--data-dir", s.t.TempDir(), "--insecure-cluster"}, args...)
	n.Node = nodetest.Start(s.t, n.ip+":8848", func() *exec.Cmd { return s.in(exec.Command(argv[0], argv[1:]...)) })
	n.WaitReady()
	return n
}

// eventually waits until there is no error and returns how long that took.
func (s *space) eventually(limit time.Duration, do func() error) time.Duration {
	s.t.Helper()
	start := time.Now()
	for {
		err := do()
		if err == nil {
			return time.Since(start)
		}
		if time.Since(start) > limit {
			s.t.Fatalf("after %v: %v", limit, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (n *node) ready() error {
	_, err := n.Do(http.MethodGet, "/readyz", nil)
	return err
}

// sees is an error until the node has so many members that are up.
func (n *node) sees(want int) error {
	body, err := n.Do(http.MethodGet, "/nacos/v1/core/cluster/nodes", nil)
	if err != nil {
		return err
	}
	var answer struct {
		Data []struct{ State string } `json:"data"`
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		return err
	}
	up := 0
	for _, m := range answer.Data {
		if m.State == "UP" {
			up++
		}
	}
	if up != want {
		return fmt.Errorf("%s sees %d members: %s", n.ip, up, body)
	}
	return nil
}
