package compat

import (
	"context"
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
	log      *os.File
	cmd      *exec.Cmd
	exited   chan struct{} // closed when cmd has ended
}

// startServer returns when the server answers that it is ready. Its log is dir/server.log.
func startServer(t testing.TB, bin, dir string) *server {
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
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
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

// start starts the process, on the ports and with the data of the one before it if there was one.
func (s *server) start() error {
	s.cmd = exec.Command(s.bin, "serve",
		"--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--data-dir", filepath.Join(s.dir, "data"),
		// What died while the server was away is shown for so long: 30 s by
		// default, which no scenario has to wait for.
		"--lease-restart", "10s")
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		return fmt.Errorf("starting the server: %w", err)
	}
	s.exited = make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) {
		cmd.Wait()
		close(exited)
	}(s.cmd, s.exited)

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
	res, err := http.Post("http://"+s.address()+"/nacos/v1/ns/instance?"+url.Values{
		"serviceName": {at.name}, "ip": {i.IP}, "port": {strconv.Itoa(i.Port)}}.Encode(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusOK || string(body) != "ok" {
		t.Fatalf("registering %v over HTTP: %s, %s", i, res.Status, body)
	}
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
