package names

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	spacePrefix = "chaosnames-" // and the id of the process
	within      = 30 * time.Second
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
	var err error
	if s.bin, err = build(); err != nil {
		t.Fatal(err)
	}
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

// build is the server as it is in this tree.
var build = sync.OnceValues(func() (string, error) {
	if bin := os.Getenv("STARLING_BIN"); bin != "" {
		return filepath.Abs(bin)
	}
	cmd := exec.Command("go", "build", "-o", built(), "./cmd/starling")
	cmd.Dir = "../../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return built(), nil
})

func built() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("starling-names-test-%d", os.Getpid()))
}

// A node is a "starling serve" process in the space.
type node struct {
	t   *testing.T
	ip  string
	cmd *exec.Cmd
	log bytes.Buffer // read it when the process has ended
	end chan struct{}
}

// address is what the next node gets, so that names can have it before.
func (s *space) address(next int) string { return s.prefix + strconv.Itoa(11+s.nodes+next) }

// start starts a node at a new address and returns when it is ready.
func (s *space) start(args ...string) *node {
	s.t.Helper()
	n := &node{t: s.t, ip: s.address(0), end: make(chan struct{})}
	s.nodes++
	if err := ip("-n " + s.name + " addr add " + n.ip + "/24 dev eth0"); err != nil {
		s.t.Fatal(err)
	}
	argv := append([]string{s.bin, "serve", "--name", fmt.Sprintf("node-%d", s.nodes), "--bind", n.ip, "--data-dir", s.t.TempDir(), "--insecure-cluster"}, args...)
	n.cmd = s.in(exec.Command(argv[0], argv[1:]...))
	n.cmd.Stdout, n.cmd.Stderr = &n.log, &n.log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := n.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		_ = n.cmd.Wait()
		close(n.end)
	}()
	s.t.Cleanup(n.kill)
	s.eventually(within, func() error { return n.ready() })
	return n
}

func (n *node) kill() {
	_ = n.cmd.Process.Kill()
	<-n.end
}

func (n *node) signal(sig syscall.Signal) {
	n.t.Helper()
	if err := n.cmd.Process.Signal(sig); err != nil {
		n.t.Fatal(err)
	}
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

// plain keeps no connections: there would be goroutines of them at the end.
var plain = &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

func (n *node) do(method, path string, form url.Values) ([]byte, error) {
	ctx, cancel := context.WithTimeout(n.t.Context(), 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+n.ip+":8848"+path, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := plain.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", res.Status, body)
	}
	return body, err
}

func (n *node) ready() error {
	select {
	case <-n.end:
		n.t.Fatalf("the node has ended: %s", n.log.String())
	default:
	}
	_, err := n.do(http.MethodGet, "/readyz", nil)
	return err
}

// sees is an error until the node has so many members that are up.
func (n *node) sees(want int) error {
	body, err := n.do(http.MethodGet, "/nacos/v1/core/cluster/nodes", nil)
	if err != nil {
		return err
	}
	var answer struct {
		Data []struct{ State string } `json:"data"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
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
