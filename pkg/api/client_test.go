package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A request as the server saw it.
type seen struct{ method, uri, ctype, body string }

func serve(t *testing.T, status int, answer string) (*Client, *seen) {
	t.Helper()
	s := &seen{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		*s = seen{r.Method, r.RequestURI, r.Header.Get("Content-Type"), string(b)}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(srv.Close)
	c, err := NewClient(strings.TrimPrefix(srv.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	return c, s
}

// Each call sends what it should and returns all of what came.
func TestRoundTrips(t *testing.T) {
	when := time.Date(2026, 11, 30, 6, 31, 2, 123e6, time.UTC)
	f := func(want seen, answer any, call func(*Client) (any, error)) {
		t.Helper()
		b, err := json.Marshal(answer)
		if err != nil {
			t.Fatal(err)
		}
		c, s := serve(t, 200, string(b))
		got, err := call(c)
		if err != nil {
			t.Errorf("%s: %v", want.uri, err)
			return
		}
		if *s != want {
			t.Errorf("sent %+v, want %+v", *s, want)
		}
		if d := cmp.Diff(answer, got); d != "" {
			t.Errorf("%s (-sent +got):\n%s", want.uri, d)
		}
	}
	ctx := t.Context()
	const js = "application/json"
	f(seen{"GET", "/starling/v1/members", "", ""},
		&Members{Cluster: "x", Node: "a", At: when, Members: []Member{{ID: "a", Name: "n", Epoch: 1796020262123, State: StateAlive, Since: when, Self: true, Ready: true,
			Draining: true, Host: "h", Ports: Ports{1, 2, 3, 4, 5}, Version: "v", Wire: 1, ClockOffsetMillis: -3, ClockOff: true}}},
		func(c *Client) (any, error) { return c.Members(ctx) })
	f(seen{"GET", "/starling/v1/cluster", "", ""},
		&Cluster{Cluster: "x", Node: "a", Name: "n", Epoch: 1, At: when, Reason: "waits", SelfPreservation: SelfPreservation{true, when, 1, 2},
			Lives: []Life{{Node: "b", Name: "m", Epoch: 2, State: LifeOrphaned, Applied: 3, OwnerVersion: 4, LagVersions: 1, LagMillis: 5, Records: 6, Orphans: 7,
				LeaseLeftMillis: 8, Deadline: when, Digest: "00ff", LastDigestMatch: when}},
			Peers: []Peer{{"b", "m", true, 9, when}}},
		func(c *Client) (any, error) { return c.Cluster(ctx) })
	f(seen{"POST", "/starling/v1/self-preservation/end", js, "{}"}, &SelfPreservation{PausedMillis: 5},
		func(c *Client) (any, error) { return c.EndSelfPreservation(ctx) })
	f(seen{"GET", "/starling/v1/hashes", "", ""}, &Hashes{Node: "a", Services: []ServiceHash{{Service{"public", "g", "s"}, "00ff", 3, 1500}}, RaftApplied: 7, RaftDigest: "00fe"},
		func(c *Client) (any, error) { return c.Hashes(ctx, "") })
	f(seen{"GET", "/starling/v1/hashes?node=b", "", ""}, &Hashes{Node: "b"},
		func(c *Client) (any, error) { return c.Hashes(ctx, "b") })
	f(seen{"GET", "/starling/v1/history?service=a%26b", "", ""},
		&History{Service: Service{"public", "g", "s"}, Changes: []Change{{When: when, InstanceKey: InstanceKey{"10.0.0.7", 80, "DEFAULT"}, Kind: KindWent, Cause: "connection lost",
			Node: "a", NodeName: "n", Epoch: 1, Client: "c", Before: &Instance{ID: "i", Weight: 1.5, Healthy: true, Enabled: true, Metadata: map[string]string{"k": "v"}}, SeenBy: []string{"a"}}},
			Nodes: []HistoryNode{{Node: "a", Name: "n", Error: "e", Forgotten: true, Oldest: when}}},
		func(c *Client) (any, error) { return c.History(ctx, Service{Name: "a&b"}, "") })
	f(seen{"GET", "/starling/v1/history?group=g&instance=%5Bfd00%3A%3A7%5D%3A80&namespace=n&service=s", "", ""}, &History{},
		func(c *Client) (any, error) { return c.History(ctx, Service{"n", "g", "s"}, "[fd00::7]:80") })
	f(seen{"POST", "/starling/v1/drain", js, `{"dryRun":true}`}, &Drain{State: DrainPlanned, Plan: DrainPlan{1, 2, []DrainTarget{{"b", "m", 1}}, 1.5}},
		func(c *Client) (any, error) { return c.StartDrain(ctx, true) })
	f(seen{"POST", "/starling/v1/drain", js, `{"dryRun":false}`}, &Drain{State: DrainRunning, Since: when},
		func(c *Client) (any, error) { return c.StartDrain(ctx, false) })
	f(seen{"GET", "/starling/v1/raft", "", ""},
		&Raft{Cluster: "x", Node: "a", Name: "n", At: when, Role: RoleLeader, Leader: "a", LeaderName: "n", LeaderServer: "h:1", Term: 1, Commit: 2, Applied: 3, Last: 4,
			Digest: "00ff", Generation: 5, Servers: []RaftServer{{"a", "n", true, StateAlive}}, VotersWanted: 6, Quorum: 7, AliveVoters: 8, Stale: true,
			Rows: map[string]int{"k": 9}, LogBytes: 10, Snapshot: RaftSnapshot{when, 11}},
		func(c *Client) (any, error) { return c.Raft(ctx) })
	f(seen{"POST", "/starling/v1/members/remove", js, `{"id":"b"}`}, &Removed{"b", "m", 1, 2, 3},
		func(c *Client) (any, error) { return c.RemoveMember(ctx, "b") })
	restored := &Restored{"a", "n", 1, "00ff", map[string]int{"k": 2}}
	f(seen{"POST", "/starling/v1/restore", BackupType, "content"}, restored,
		func(c *Client) (any, error) { return c.Restore(ctx, strings.NewReader("content"), 7, false, nil) })
	f(seen{"POST", "/starling/v1/restore?force=true", BackupType, "content"}, restored,
		func(c *Client) (any, error) { return c.Restore(ctx, strings.NewReader("content"), 7, true, nil) })
	f(seen{"GET", "/starling/v1/drain", "", ""}, &Drain{Node: "a", Name: "n", State: DrainFailed, Step: "s", ClientsLeft: 1, InstancesLeft: 2, Error: "e"},
		func(c *Client) (any, error) { return c.Drain(ctx) })
}

// The fields that scripts read have these names.
func TestJSON(t *testing.T) {
	f := func(want string, v any) {
		t.Helper()
		if b, err := json.Marshal(v); err != nil || string(b) != want {
			t.Errorf("got  %s, %v\nwant %s", b, err, want)
		}
	}
	f(`{"active":false,"leftMillis":0,"pausedMillis":0}`, SelfPreservation{})
	f(`{"namespace":"n","group":"g","service":"s","hash":"00","instances":1,"unchangedMillis":2}`, ServiceHash{Service{"n", "g", "s"}, "00", 1, 2})
	f(`{"when":"2026-11-30T06:31:02.123Z","ip":"i","port":1,"cluster":"c","kind":"went","cause":"x","explanation":"","node":"a","nodeName":"","client":"","seenBy":["a"]}`,
		Change{When: time.Date(2026, 11, 30, 6, 31, 2, 123e6, time.UTC), InstanceKey: InstanceKey{"i", 1, "c"}, Kind: KindWent, Cause: "x", Node: "a", SeenBy: []string{"a"}})
}

func TestClientErrors(t *testing.T) {
	f := func(status int, answer, code, says string) {
		t.Helper()
		c, _ := serve(t, status, answer)
		_, err := c.Members(t.Context())
		if CodeOf(err) != code || !strings.Contains(err.Error(), says) {
			t.Errorf("%d %q: %v (%s)", status, answer, err, CodeOf(err))
		}
	}
	f(404, `{"error":{"code":"not_found","message":"no such node","hint":"look"}}`, CodeNotFound, "no such node (look)")
	f(404, `{"timestamp":"x","status":404,"error":"Not Found"}`, CodeNotANode, "404") // a Nacos
	f(404, `{"error":{}}`, CodeNotANode, "404")
	f(404, `no`, CodeNotANode, "404")
	f(302, ``, CodeNotANode, "302")
	f(200, `<html>`, CodeUnreadable, "cannot be read")
	f(200, ``, CodeUnreadable, "cannot be read")

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	grpc := make(chan struct{})
	go func() { // speaks first, as a gRPC server does
		defer close(grpc)
		if conn, err := l.Accept(); err == nil {
			_, _ = conn.Write([]byte("\x00\x00\x18\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00@\x00\x00\x03\x00\x00\x03\xe8\x00\x04\x00\x01\x00\x00\x00\x06\x00\x01\x00\x00"))
			_, _ = conn.Read(make([]byte, 1000))
			conn.Close()
		}
	}()
	c0, _ := NewClient(l.Addr().String())
	if _, err := c0.Members(t.Context()); CodeOf(err) != CodeCannotReach || !strings.Contains(err.Error(), "the HTTP port") {
		t.Errorf("gRPC: %v", err)
	}
	<-grpc
	c, _ := NewClient(l.Addr().String()) // accepts, and says nothing
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Members(ctx); CodeOf(err) != CodeCannotReach || !strings.Contains(err.Error(), "in time") {
		t.Errorf("silent: %v", err)
	}
	stopped, stop := context.WithCancelCause(t.Context())
	stop(errors.New("stopped by a test"))
	if _, err := c.Members(stopped); CodeOf(err) != CodeCannotReach || !strings.Contains(err.Error(), "stopped by a test") {
		t.Errorf("stopped: %v", err)
	}
	l.Close()
	if _, err := c.Members(t.Context()); CodeOf(err) != CodeCannotReach || !strings.Contains(err.Error(), "refuses") {
		t.Errorf("closed: %v", err)
	}
}

func TestSplitServer(t *testing.T) {
	f := func(server, want string) {
		t.Helper()
		got := "refused"
		if c, err := NewClient(server); err == nil {
			got = c.Server()
			if _, err := http.NewRequest("GET", c.url("/x", nil), nil); err != nil {
				t.Errorf("%q makes no URL: %v", server, err)
			}
		}
		if got != want {
			t.Errorf("%q: %s, want %s", server, got, want)
		}
	}
	f("10.0.0.1", "10.0.0.1:8848")
	f("10.0.0.1:80", "10.0.0.1:80")
	f("node-1.example", "node-1.example:8848")
	f("node-1:8858", "node-1:8858")
	f("::1", "[::1]:8848")
	f("[::1]", "[::1]:8848")
	f("[::1]:80", "[::1]:80")
	f("fe80::1%eth0", "[fe80::1%eth0]:8848")
	for _, s := range []string{"", ":80", "a:0", "a:65536", "a:x", "a:", "http://a", "http://a:80", "http://10.0.0.1:8848/nacos", "a b", "a/b", "u@a", "1:2:3"} {
		f(s, "refused")
	}
}
