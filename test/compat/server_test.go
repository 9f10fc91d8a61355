package compat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	readyTimeout = 20 * time.Second
	stopTimeout  = 20 * time.Second
)

// A server is one "starling serve" process with its data directory and its ports, which stay the
// same when the process is started again.
type server struct {
	bin, dir string
	port     int
	flags    []string // that make it one of several nodes
	log      *os.File
	cmd      *exec.Cmd
	exited   chan struct{} // closed when cmd has ended
}

// startServer returns when the server answers that it is ready. Its log is dir/server.log.
func startServer(t testing.TB, bin, dir string) *server {
	t.Helper()
	s := newServer(t, bin, dir)
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	return s
}

// startCluster starts nodes that form a cluster, with more flags, and returns when all are ready.
func startCluster(t testing.TB, bin, dir string, n int, flags ...string) []*server {
	t.Helper()
	var nodes []*server
	var addresses []string
	for i := range n {
		nodes = append(nodes, newServer(t, bin, filepath.Join(dir, fmt.Sprintf("node-%d", i+1))))
		addresses = append(addresses, nodes[i].address())
	}
	for _, s := range nodes {
		s.flags = append([]string{"--name", filepath.Base(s.dir), "--join", strings.Join(addresses, ","), "--expect", strconv.Itoa(n)}, flags...)
		if err := s.launch(); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range nodes {
		if err := s.waitReady(); err != nil {
			t.Fatal(err)
		}
	}
	return nodes
}

// newServer starts nothing yet, but ends what will run at the end of the test.
func newServer(t testing.TB, bin, dir string) *server {
	t.Helper()
	s := &server{bin: bin, dir: dir, port: freePorts(t)}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var err error
	if s.log, err = os.OpenFile(filepath.Join(dir, "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.running() {
			if err := s.stop(); err != nil {
				t.Error(err)
			}
		}
		s.log.Close()
	})
	return s
}

func (s *server) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

func (s *server) running() bool {
	if s.exited == nil {
		return false
	}
	select {
	case <-s.exited:
		return false
	default:
		return true
	}
}

// start starts the process and returns when it is ready.
func (s *server) start() error {
	if err := s.launch(); err != nil {
		return err
	}
	return s.waitReady()
}

// launch starts the process, on the ports and with the data of the one before it if there was one.
func (s *server) launch() error {
	s.cmd = exec.Command(s.bin, append([]string{"serve",
		"--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--data-dir", filepath.Join(s.dir, "data"),
		// What died while the server was away is shown for so long: 30 s by
		// default, which no scenario has to wait for.
		"--lease-restart", "10s"}, s.flags...)...)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		return fmt.Errorf("starting the server: %w", err)
	}
	s.exited = make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) {
		cmd.Wait()
		close(exited)
	}(s.cmd, s.exited)
	return nil
}

func (s *server) waitReady() error {
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	for !ready(ctx, "http://"+s.address()+"/readyz") {
		select {
		case <-s.exited:
			return fmt.Errorf("the server ended before it was ready (%v), see %s", s.cmd.ProcessState, s.log.Name())
		case <-ctx.Done():
			return fmt.Errorf("the server was not ready after %v, see %s", readyTimeout, s.log.Name())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

func ready(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	res.Body.Close()
	return res.StatusCode == http.StatusOK
}

// registerOnce registers an instance over HTTP and sends no beats for it.
func (s *server) registerOnce(t testing.TB, at service, i instance) {
	t.Helper()
	s.order(t, http.MethodPost, "/instance", at, "ip", i.IP, "port", strconv.Itoa(i.Port))
}

// The methods below are what an operator does, over HTTP.

// describe makes a persistent service with a protection threshold. Nobody checks the health of its
// instances.
func (s *server) describe(t testing.TB, at service, threshold string) {
	t.Helper()
	s.order(t, http.MethodPost, "/service", at, "protectThreshold", threshold)
	s.order(t, http.MethodPut, "/cluster", at, "clusterName", "DEFAULT", "checkPort", "80", "useInstancePort4Check", "true",
		"healthChecker", `{"type":"NONE"}`)
}

func (s *server) setThreshold(t testing.TB, at service, threshold string) {
	t.Helper()
	s.order(t, http.MethodPut, "/service", at, "protectThreshold", threshold)
}

func (s *server) setHealth(t testing.TB, at service, i instance, healthy bool) {
	t.Helper()
	s.order(t, http.MethodPut, "/health/instance", at, "ip", i.IP, "port", strconv.Itoa(i.Port), "healthy", strconv.FormatBool(healthy))
}

// edit lays weight, state and metadata of the instance over what its provider says.
func (s *server) edit(t testing.TB, at service, i instance) {
	t.Helper()
	metadata, err := json.Marshal(i.Metadata)
	if err != nil {
		t.Fatal(err)
	}
	s.order(t, http.MethodPut, "/instance", at, "ip", i.IP, "port", strconv.Itoa(i.Port), "ephemeral", strconv.FormatBool(i.Ephemeral),
		"weight", strconv.FormatFloat(i.Weight, 'f', -1, 64), "enabled", strconv.FormatBool(i.Enabled), "metadata", string(metadata))
}

// order gives an order of the v1 API about a service, with more parameters by name and value.
func (s *server) order(t testing.TB, method, path string, at service, parameters ...string) {
	t.Helper()
	form := url.Values{"serviceName": {at.name}}
	for pair := range slices.Chunk(parameters, 2) {
		form.Set(pair[0], pair[1])
	}
	req, err := http.NewRequest(method, "http://"+s.address()+"/nacos/v1/ns"+path+"?"+form.Encode(), nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusOK || string(body) != "ok" {
		t.Fatalf("%s %s %v: %s, %s", method, path, form, res.Status, body)
	}
}

// leads says whether the node leads the log of its cluster, as the node sees it.
func (s *server) leads() bool {
	res, err := http.Get("http://" + s.address() + "/starling/v1/raft")
	if err != nil {
		return false
	}
	defer res.Body.Close()
	var raft struct {
		Role string `json:"role"`
	}
	return json.NewDecoder(res.Body).Decode(&raft) == nil && raft.Role == "leader"
}

// stop asks the process to end, as a service manager does, and insists that it does.
func (s *server) stop() error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stopping the server: %w", err)
	}
	select {
	case <-s.exited:
	case <-time.After(stopTimeout):
		return errors.Join(fmt.Errorf("the server did not end %v after SIGTERM, see %s", stopTimeout, s.log.Name()), s.kill())
	}
	if code := s.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("the server ended with code %d after SIGTERM, see %s", code, s.log.Name())
	}
	return nil
}

// kill ends the process without giving it a chance to say goodbye.
func (s *server) kill() error {
	if err := s.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("killing the server: %w", err)
	}
	<-s.exited
	return nil
}

var (
	portsMu   sync.Mutex
	portsUsed = map[int]bool{}
)

// freePorts finds P such that everything a server may listen on is free: P for HTTP, P+1000 for
// client gRPC, P+1001 for its peers, P-1000 for consensus and P-902 for gossip. It looks below the range from which
// the kernel takes the ports of outgoing connections, so that none of those takes one meanwhile.
func freePorts(t testing.TB) int {
	t.Helper()
	portsMu.Lock()
	defer portsMu.Unlock()
	for range 200 {
		p := 20000 + rand.IntN(10000)
		group := []int{p, p + 1000, p + 1001, p - 1000, p - 902}
		if slices.ContainsFunc(group, func(q int) bool { return portsUsed[q] || !free(q) }) {
			continue
		}
		for _, q := range group {
			portsUsed[q] = true
		}
		return p
	}
	t.Fatal("found no free ports")
	return 0
}

func free(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	l.Close()
	return true
}
