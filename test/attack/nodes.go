package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// A trio is three "starling serve" processes that are one cluster.
type trio struct {
	bin   string
	dir   string
	nodes [3]*server
	join  string // for --join of one more
	key   string // of --gossip-key-file; "": none

	cluster string
	members [3]member
}

// A member is what the native API tells of a node.
type member struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	Epoch uint64 `json:"epoch"`
	State string `json:"state"`
	Ready bool   `json:"ready"`
	Ports struct {
		HTTP   int `json:"http"`
		Peer   int `json:"peer"`
		Gossip int `json:"gossip"`
	} `json:"ports"`
}

// trioSettings make what attacks wait for seconds in place of minutes.
var trioSettings = []string{
	"--lease-refused=3s", "--lease-silent=6s", "--lease-restart=5s", "--expiry-probe=1s", "--expiry-probe-max=8s",
	"--stable-after=5s", "--self-preservation=10s", "--lease-max=8s", "--drop-memory=25s", "--snapshot-every=1s", "--rejoin=2s", "--catch-up=4s",
	"--empty-service-age=1s", "--sweep-period=500ms", "--history-keep=1s", "--history-bytes=1048576",
}

// startTrio returns when all three are ready and know each other.
func startTrio(ctx context.Context, bin, key string) (_ *trio, err error) {
	t := &trio{bin: bin, key: key}
	if t.dir, err = os.MkdirTemp("", "starling-attack-"); err != nil {
		return nil, err
	}
	ports := make([]int, len(t.nodes))
	join := make([]string, len(t.nodes))
	for i := range ports {
		if ports[i], err = freePorts(); err != nil {
			return nil, err
		}
		join[i] = "127.0.0.1:" + strconv.Itoa(ports[i])
	}
	t.join = strings.Join(join, ",")
	defer func() {
		if err != nil {
			err = errors.Join(err, t.stop())
		}
	}()
	for i, name := range []string{"a", "b", "c"} {
		if t.nodes[i], err = t.start(name, ports[i], "--expect=3", "--join="+t.join); err != nil {
			return nil, err
		}
	}
	for _, s := range t.nodes {
		if err := s.ready(ctx, 30*time.Second); err != nil {
			return nil, err
		}
	}
	return t, t.meet(ctx, 15*time.Second)
}

// start starts a node in a directory of that name.
func (t *trio) start(name string, port int, settings ...string) (*server, error) {
	dir := filepath.Join(t.dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	args := append([]string{"--name", name}, trioSettings...)
	if t.key != "" {
		args = append(args, "--gossip-key-file="+t.key)
	}
	return launch(t.bin, dir, port, append(args, settings...)...)
}

// meet waits until each node takes exactly the three for alive.
func (t *trio) meet(ctx context.Context, within time.Duration) error {
	var last error
	for start := time.Now(); time.Since(start) < within; time.Sleep(100 * time.Millisecond) {
		last = nil
		for i, s := range t.nodes {
			ms, cluster, err := s.members(ctx)
			if err != nil {
				return err
			}
			alive := 0
			for _, m := range ms {
				if m.State != "alive" {
					continue
				}
				alive++
				if m.Ports.HTTP == s.port {
					t.members[i] = m
				}
				if !m.Ready {
					last = fmt.Errorf("node %d: %s is not ready", i, m.Name)
				}
			}
			t.cluster = cluster
			if alive != len(t.nodes) || cluster == "" {
				last = fmt.Errorf("node %d knows %d living nodes, want %d: %v", i, alive, len(t.nodes), ms)
			}
		}
		if last == nil {
			return nil
		}
	}
	return last
}

func (s *server) members(ctx context.Context) ([]member, string, error) {
	status, body, err := get(ctx, "http://"+s.http()+"/starling/v1/members")
	if err != nil || status != http.StatusOK {
		return nil, "", fmt.Errorf("members: status %d, %w", status, err)
	}
	var ms struct {
		Cluster string   `json:"clusterId"`
		Members []member `json:"members"`
	}
	return ms.Members, ms.Cluster, json.Unmarshal(body, &ms)
}

// life is what a node has of a life.
type life struct {
	Node    string `json:"node"`
	Epoch   uint64 `json:"epoch"`
	State   string `json:"state"`
	Applied uint64 `json:"applied"`
	Digest  string `json:"digest"`
}

func (s *server) lives(ctx context.Context) ([]life, error) {
	status, body, err := get(ctx, "http://"+s.http()+"/starling/v1/cluster")
	if err != nil || status != http.StatusOK {
		return nil, fmt.Errorf("cluster: status %d, %w", status, err)
	}
	var c struct {
		Lives []life `json:"lives"`
	}
	return c.Lives, json.Unmarshal(body, &c)
}

// agree waits until all nodes show the same of the lives of the three, and
// verify finds the same views.
func (t *trio) agree(ctx context.Context, within time.Duration) error {
	var last error
	for start := time.Now(); time.Since(start) < within && ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
		last = nil
		for i := range t.nodes {
			var first *life
			for j, s := range t.nodes {
				lives, err := s.lives(ctx)
				if err != nil {
					return err
				}
				var has *life
				for _, l := range lives {
					if l.Node == t.members[i].ID && l.Epoch == t.members[i].Epoch {
						has = &l
					}
				}
				switch {
				case has == nil:
					last = fmt.Errorf("node %d does not know the life of node %d", j, i)
				case has.State != "living":
					last = fmt.Errorf("node %d takes the life of node %d for %s", j, i, has.State)
				case first == nil:
					first = has
				case has.Applied == first.Applied && has.Digest != first.Digest:
					return fmt.Errorf("node %d has another digest of the life of node %d", j, i)
				case has.Applied+100 < first.Applied: // it is written to all the time
					last = fmt.Errorf("node %d has applied %d of the life of node %d, another %d", j, has.Applied, i, first.Applied)
				}
			}
		}
		if last == nil {
			break
		}
	}
	if last != nil {
		return last
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	out, err := exec.CommandContext(ctx, t.bin, "verify", "--servers", t.join, "--group", verifiedGroup, "--within", "5s").CombinedOutput()
	if err != nil {
		return fmt.Errorf("verify: %w: %s", err, clip(string(bytes.TrimSpace(out))))
	}
	return nil
}

func (t *trio) stop() error {
	var errs []error
	ended := make(chan error, len(t.nodes))
	for _, s := range t.nodes {
		go func() {
			if s == nil {
				ended <- nil
				return
			}
			ended <- s.stop()
		}()
	}
	for range t.nodes {
		errs = append(errs, <-ended)
	}
	return errors.Join(errs...)
}

func (t *trio) alive() error {
	for i, s := range t.nodes {
		if !s.alive() {
			return fmt.Errorf("node %d has ended: %v, see %s", i, s.exit, s.logFile())
		}
	}
	return nil
}

func (s *server) peerAddr() string   { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port+1001)) }
func (s *server) gossipAddr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port-902)) }

// A tally compares counters and logs with what they were.
type tally struct {
	s     *server
	was   map[string]float64
	bytes int64
}

func (s *server) tally() (*tally, error) {
	m, err := s.metrics(context.Background())
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(s.logFile())
	if err != nil {
		return nil, err
	}
	return &tally{s, m, info.Size()}, nil
}

// since says by how much a counter has grown.
func (t *tally) since(name string) (float64, error) {
	m, err := t.s.metrics(context.Background())
	if err != nil {
		return 0, err
	}
	if _, ok := m[name]; !ok {
		return 0, fmt.Errorf("there is no counter %s", name)
	}
	return m[name] - t.was[name], nil
}

// grown waits until a counter has grown by at least n.
func (t *tally) grown(name string, n float64) error {
	var is float64
	var err error
	for start := time.Now(); time.Since(start) < 3*time.Second; time.Sleep(50 * time.Millisecond) {
		if is, err = t.since(name); err != nil {
			return err
		}
		if is >= n {
			return nil
		}
	}
	return fmt.Errorf("%s has grown by %.0f, want %.0f", name, is, n)
}

// logged returns the lines that were written since.
func (t *tally) logged() ([]string, error) {
	b, err := os.ReadFile(t.s.logFile())
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSpace(string(b[min(t.bytes, int64(len(b))):])), "\n"), nil
}
