package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/api"
	"github.com/starling-registry/starling/pkg/node"
)

// Each scenario against a real node, small: operations are counted and none
// fails. How fast they are is nobody's business here.
func TestBench(t *testing.T) {
	o := node.DefaultOptions()
	o.Name, o.DataDir, o.Port, o.Logger = "bench", t.TempDir(), freePort(t), zap.NewNop()
	o.GRPCPort = o.Port + 1000
	n, err := node.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := n.Stop(ctx); err != nil {
			t.Error(err)
		}
	}()
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(o.Port))
	status, stdout, stderr := starling(nil, "bench", "all", "--servers", addr, "--connections", "8", "--duration", "600ms", "--json")
	if status != exitOK || stderr != "" {
		t.Fatalf("status %d: %s", status, stderr)
	}
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if len(lines) != len(benchScenarios)-4 { // those that are not among all come last
		t.Fatalf("%d results: %s", len(lines), stdout)
	}
	for i, line := range lines {
		var r benchResult
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if r.Scenario != benchScenarios[i].name || r.Operations == 0 || r.Errors != 0 || r.P50 > r.P99 || r.P99 > r.Max {
			t.Errorf("%s", line)
		}
		if runtime.GOOS == "linux" && r.CPUMicros == nil {
			t.Errorf("the server's process was not found: %s", line)
		}
	}

	status, stdout, stderr = starling(nil, "bench", "push", "--servers", addr, "--connections", "1", "--duration", "300ms", "--server-pid", strconv.Itoa(os.Getpid()))
	if status != exitOK || !strings.Contains(stdout, "CPU/OP") || !strings.Contains(stdout, addr) {
		t.Errorf("status %d: %s%s", status, stdout, stderr)
	}
}

// benchNode starts a node of a cluster with the others, on ports that are all
// free.
func benchNode(t *testing.T, join []string) (n *node.Node, addr string) {
	t.Helper()
	var err error
	for range 100 {
		o := node.DefaultOptions()
		o.Port = 12_000 + rand.N(18_000)
		addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(o.Port))
		o.Name, o.DataDir, o.Logger, o.Join, o.Expect = strconv.Itoa(o.Port), t.TempDir(), zap.NewNop(), append([]string{addr}, join...), 1+len(join)
		// Orphans need not be watched for long.
		o.LeaseRefused, o.LeaseSilent = time.Second, time.Second
		o.BeatCheck, o.BeatTimeout, o.BeatDelete = 200*time.Millisecond, 2*time.Second, 3*time.Second
		if n, err = node.Start(t.Context(), o); err == nil {
			return n, addr
		}
	}
	t.Fatal(err)
	return nil, ""
}

func TestBenchCluster(t *testing.T) {
	a, addrA := benchNode(t, nil)
	b, addrB := benchNode(t, []string{addrA})
	stop := func(n *node.Node) {
		// No time: as good as killed.
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = n.Stop(ctx)
	}
	defer stop(a)
	defer stop(b)
	servers := addrA + "," + addrB
	until(t, "both nodes are ready and know each other", func() bool {
		status, stdout, _ := starling(nil, "members", "--server", addrA, "--json")
		return status == exitOK && strings.Count(stdout, `"ready": true`) == 2
	})

	status, stdout, stderr := starling(nil, "bench", "lag", "--servers", servers, "--connections", "4", "--load", "200", "--duration", "1s", "--json")
	var r benchResult
	if err := json.Unmarshal([]byte(stdout), &r); status != exitOK || err != nil {
		t.Fatalf("status %d, %v: %s%s", status, err, stdout, stderr)
	}
	if r.Operations < 150 || r.EqualMillis == nil || r.P50 <= 0 || r.Max < r.P99 {
		t.Errorf("lag: %s", stdout)
	}

	status, stdout, stderr = starling(nil, "bench", "register", "idle", "storm", "--together", "--instances", "3", "--servers", servers, "--connections", "4", "--duration", "300ms")
	if status != exitOK || strings.Count(stdout, servers) != 3 {
		t.Errorf("together: status %d: %s%s", status, stdout, stderr)
	}
	status, stdout, stderr = starling(nil, "bench", "push", "--load", "50", "--servers", addrA, "--subscribe-server", addrB, "--connections", "2", "--duration", "600ms")
	if status != exitOK || !strings.Contains(stdout, "push") {
		t.Errorf("push: status %d: %s%s", status, stdout, stderr)
	}

	testBenchPersist(t, servers, addrB)

	status, stdout, stderr = starling(nil, "bench", "beats", "--servers", servers, "--connections", "30", "--services", "3", "--load", "100", "--duration", "900ms", "--json")
	r = benchResult{}
	if err := json.Unmarshal([]byte(stdout), &r); status != exitOK || err != nil || r.Beats == nil {
		t.Fatalf("beats: status %d, %v: %s%s", status, err, stdout, stderr)
	}
	if b := r.Beats; r.Operations < 30 || b.Flaps+b.Failed+b.FailedAtKill+b.Unknown != 0 || b.Watchers != 2 || b.GoneLast < 3 || b.GoneLast < b.GoneFirst {
		t.Errorf("beats: %s", stdout)
	}

	// The scenario says when the node is to be killed.
	errs, said := &terminal{}, make(chan struct{})
	go func() {
		for !strings.Contains(errs.String(), "now kill") {
			time.Sleep(5 * time.Millisecond)
		}
		stop(a)
		close(said)
	}()
	var out bytes.Buffer
	status = run(&process{args: []string{"bench", "failover", "--servers", servers, "--connections", "25", "--duration", "3s", "--json"}, stdout: &out, stderr: errs, notify: func(chan<- os.Signal) {}})
	r = benchResult{}
	if err := json.Unmarshal(out.Bytes(), &r); status != exitOK || err != nil {
		t.Fatalf("failover: status %d, %v: %s%s", status, err, out.String(), errs.String())
	}
	<-said
	if r.Operations != 25 || r.Removals == nil || *r.Removals != 0 || r.EqualMillis == nil {
		t.Errorf("failover: %s", out.String())
	}
}

// What persist writes is counted, and gone afterwards unless it is to be kept.
func testBenchPersist(t *testing.T, servers, addr string) {
	until(t, "there is a leader", func() bool {
		status, stdout, _ := starling(nil, "raft", "--server", addr, "--json")
		return status == exitOK && strings.Contains(stdout, `"leader": "`)
	})
	count := func(want int) {
		t.Helper()
		until(t, strconv.Itoa(want)+" persistent instances are there", func() bool {
			resp, err := http.Get("http://" + addr + "/metrics")
			if err != nil {
				return false
			}
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			return err == nil && strings.Contains(string(text), "\nstarling_registry_persistent_instances "+strconv.Itoa(want)+"\n")
		})
	}
	for _, args := range [][]string{{}, {"--http"}, {"--services", "1", "--checks"}, {"--keep", "--instances", "50"}} {
		args = append([]string{"bench", "persist", "--servers", servers, "--connections", "3", "--instances", "5", "--duration", "200ms", "--json"}, args...)
		status, stdout, stderr := starling(nil, args...)
		var r benchResult
		if err := json.Unmarshal([]byte(stdout), &r); status != exitOK || err != nil || r.Operations == 0 || r.Errors != 0 {
			t.Fatalf("%v: status %d, %v: %s%s", args, status, err, stdout, stderr)
		}
		if !slices.Contains(args, "--keep") {
			count(0)
		}
	}
	count(150)
}

// Views are equal if every node has of each what that has itself.
func TestBenchAgree(t *testing.T) {
	node := func(id string, lives ...api.Life) *api.Cluster { return &api.Cluster{Node: id, Epoch: 1, Lives: lives} }
	life := func(node, digest string, version uint64) api.Life {
		return api.Life{Node: node, Epoch: 1, Applied: version, Digest: digest}
	}
	old := api.Life{Node: "a", Epoch: 0, Applied: 9, Digest: "z"} // its records may be forgotten at different times
	f := func(want bool, said ...*api.Cluster) {
		t.Helper()
		if got := agree(said); got != want {
			t.Errorf("agree: %v, want %v", got, want)
		}
	}
	f(true, node("a", life("a", "x", 3), life("b", "y", 4)), node("b", life("a", "x", 3), old, life("b", "y", 4)))
	f(false, node("a", life("a", "x", 3), life("b", "y", 4)), node("b", life("a", "x", 2), life("b", "y", 4)))
	f(false, node("a", life("a", "x", 3), life("b", "y", 4)), node("b", life("a", "q", 3), life("b", "y", 4)))
	f(false, node("a", life("a", "x", 3)), node("b", life("a", "x", 3), life("b", "y", 4)))
}

func TestBenchListOf(t *testing.T) {
	f := func(body string, service, hosts, healthy int) {
		t.Helper()
		if s, n, h := listOf([]byte(body), "beats-"); s != service || n != hosts || h != healthy {
			t.Errorf("%s: %d, %d, %d; want %d, %d, %d", body, s, n, h, service, hosts, healthy)
		}
	}
	f(`{"name":"beats-12","hosts":[{"healthy":true},{"healthy":false},{"healthy":true}]}`, 12, 3, 2)
	f(`{"name":"beats-0","hosts":[]}`, 0, 0, 0)
	f(`{"name":"beats-"}`, -1, 0, 0)
	f(`{"name":"beats-7`, -1, 0, 0)
	f(`{"name":"other"}`, -1, 0, 0)
}

func TestBenchLagService(t *testing.T) {
	s := lagService{seen: make([]int, 2)}
	n := 0
	count := func(time.Duration) { n++ }
	for range 3 {
		s.changed(7)
	}
	s.arrived(1, 2, count) // brings the first as well
	s.arrived(1, 2, count)
	s.arrived(1, 1, count)
	if n != 2 || s.missing(0) != 1 || s.changed(7) != 4*lagServices+7 {
		t.Error(n, s.missing(0))
	}
	s.arrived(1, 4, count)
	if n != 4 || s.missing(0) != 0 || s.missing(1) != 4 {
		t.Error(n, s.missing(0), s.missing(1))
	}
	s.arrived(1, 9, count) // was never sent
	if n != 4 {
		t.Error(n)
	}
}

func TestBenchRefusals(t *testing.T) {
	f := func(status int, says string, args ...string) {
		t.Helper()
		got, _, stderr := starling(nil, append([]string{"bench"}, args...)...)
		if got != status || !strings.Contains(stderr, says) {
			t.Errorf("%v: status %d, %s", args, got, stderr)
		}
	}
	f(exitUsage, "arg")
	f(exitUsage, "nothing", "nothing")
	f(exitUsage, "HOST:PORT", "push", "--servers", "localhost")
	f(exitUsage, "64535", "push", "--servers", "localhost:65000")
	f(exitUsage, "HOST:PORT", "push", "--subscribe-server", "localhost")
	f(exitUsage, "--connections", "push", "--connections", "1000000")
	f(exitUsage, "--duration", "push", "--duration", "1h")
	f(exitUsage, "two --servers", "lag", "--servers", "127.0.0.1:1")
	f(exitUsage, "two --servers", "failover")
	f(exitUsage, "query is of one server", "register", "query", "--together", "--servers", "a:1,b:1")
	f(exitUsage, "is of one server", "all", "--together")
	f(exitUsage, "--instances", "idle", "--instances", "-1")
	f(exitUsage, "--services", "persist", "--services", "-1")
	f(exitUsage, "--load", "push", "--load", "-1")
	f(exitUsage, "--server-pid", "push", "--servers", "a:1,b:1", "--server-pid", "1")
	f(exitFailed, "push on 127.0.0.1:1", "push", "--servers", "127.0.0.1:1", "--connections", "1")
}
