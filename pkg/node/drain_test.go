package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/starling-registry/starling/pkg/api"
	"github.com/starling-registry/starling/pkg/httpapi"
	"github.com/starling-registry/starling/raftstore"
)

// freePort is a main port whose followers are free too.
func freePort(t *testing.T) int {
	t.Helper()
search:
	for range 200 {
		port := 11_000 + rand.IntN(8_000) // below what the system gives to clients
		for _, p := range []int{port, port + 1000, port + 1001, port - 1000, port - 902} {
			l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p)))
			if err != nil {
				continue search
			}
			l.Close()
		}
		return port
	}
	t.Fatal("no free ports")
	return 0
}

// startNodes starts the nodes of a cluster.
func startNodes(t *testing.T, n int) []*Node {
	t.Helper()
	var ports []int
	for range n {
		ports = append(ports, freePort(t))
	}
	var nodes []*Node
	for i, port := range ports {
		o := testOptions(t, t.TempDir())
		o.Name, o.Listen = "node"+strconv.Itoa(i), DefaultOptions().Listen
		o.Port, o.GRPCPort, o.PeerPort, o.RaftPort, o.GossipPort = port, port+1000, port+1001, port-1000, port-902
		o.Expect = n
		for _, p := range ports {
			o.Join = append(o.Join, "127.0.0.1:"+strconv.Itoa(p))
		}
		nodes = append(nodes, start(t, o))
	}
	return nodes
}

// Who asks for a drain is answered that it runs, and never that there is none:
// starling drain gave up then.
func TestDrainRunsWhenItIsAskedFor(t *testing.T) {
	nodes := startNodes(t, 2)
	defer stop(t, nodes[1])
	defer stop(t, nodes[0])
	drain := func(n *Node) (int, string) {
		tr := &http.Transport{DisableKeepAlives: true}
		defer tr.CloseIdleConnections()
		req, err := http.NewRequestWithContext(context.Background(), "POST", "http://"+n.HTTPAddr().String()+"/starling/v1/drain", strings.NewReader(`{"dryRun":false}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := (&http.Client{Transport: tr}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	var code int
	var body string
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) { // until they have found each other
		if code, body = drain(nodes[0]); code == 200 || time.Now().After(deadline) {
			break
		}
	}
	var d api.Drain
	if err := json.Unmarshal([]byte(body), &d); err != nil || code != 200 || d.State != api.DrainRunning && d.State != api.DrainDone || d.Since.IsZero() {
		t.Errorf("%d %s", code, body)
	}
	// The last node that is ready keeps its clients.
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, body := get(t, nodes[1], "GET", "/starling/v1/members"); strings.Contains(body, `"draining":true`) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nobody heard of the drain")
		}
	}
	if code, body := drain(nodes[1]); code != 409 || !strings.Contains(body, "no other node is ready") {
		t.Errorf("%d %s", code, body)
	}
	if code, body := get(t, nodes[1], "GET", "/readyz"); code != 200 {
		t.Errorf("a drain that was refused makes a node unready: %d %s", code, body)
	}
}

// A node that failed is waited for, as after a crash; one that is stopped has
// left.
func TestFailureIsNoLeave(t *testing.T) {
	for _, fails := range []bool{true, false} {
		nodes := startNodes(t, 2)
		states := func() string {
			_, body := get(t, nodes[0], "GET", "/starling/v1/members")
			var m api.Members
			if err := json.Unmarshal([]byte(body), &m); err != nil {
				t.Fatal(err)
			}
			var all []string
			for _, one := range m.Members {
				all = append(all, one.State)
			}
			return strings.Join(all, " ")
		}
		for deadline := time.Now().Add(10 * time.Second); states() != "alive alive" && time.Now().Before(deadline); {
			time.Sleep(20 * time.Millisecond)
		}
		if fails {
			nodes[1].fail(errors.New("the disk is full"))
		}
		stop(t, nodes[1])
		if left := strings.Contains(states(), api.StateLeft); left == fails {
			t.Errorf("fails %v: %s", fails, states())
		}
		stop(t, nodes[0])
	}
}

func TestNoLeaderHint(t *testing.T) {
	for _, c := range []struct {
		role string
		last uint64
		want string
	}{{api.RoleFailed, 0, "put that right"}, {api.RoleFailed, 5, "put that right"}, {api.RoleJoining, 0, "--expect"}, {api.RoleFollower, 5, "recover"}} {
		if got := noLeaderHint(c.role, c.last); !strings.Contains(got, c.want) {
			t.Errorf("%s %d: %s", c.role, c.last, got)
		}
	}
}

func TestUnknownOutcomeIsSaidOnce(t *testing.T) {
	unknown := raftstore.ErrUnknownOutcome
	err := fmt.Errorf("%w: leader a: %w: the stream broke", unknown, unknown)
	if r, ok := new(operations).explain(err); !ok || r.Text != "leader a: the stream broke" || r.Code != httpapi.UnknownOutcome {
		t.Errorf("%+v", r)
	}
	if r := explainSDK(err); r.Text != unknown.Error()+": leader a: the stream broke" {
		t.Errorf("%+v", r)
	}
}
