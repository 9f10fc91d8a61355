package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/starling-registry/starling/pkg/api"
)

func TestSubscribers(t *testing.T) {
	a := newAPINode(t)
	acked := before(time.Hour)
	s := api.Subscribers{Service: api.Service{Namespace: "public", Group: "DEFAULT_GROUP", Name: "order"},
		Subscribers: []api.Subscriber{
			{Node: idB, Client: "1_10.0.0.7_41234", IP: "10.0.0.7", Port: 41234, Agent: "Nacos-Java-Client:v2.5.1", App: "till", Acked: acked, BehindMillis: 12_340},
			{Node: idA, Client: "2_10.0.0.8_2", IP: "10.0.0.8", Port: 2, Agent: "evil\x1b[2J", App: "unknown", Clusters: "a,b", BehindMillis: 1000},
			{Node: idA, Client: "3_10.0.0.9_3", IP: "10.0.0.9", Port: 3, App: "unknown", Acked: now, BehindMillis: 3},
			{Node: idA, Client: "4_10.0.0.9_4", IP: "10.0.0.9", Port: 4, Agent: "Nacos-Go-Client:v2.3.5", App: "unknown", Acked: now},
		},
		Nodes: []api.SubscribersNode{{Node: idA, Name: "node-a", Truncated: true}, {Node: idB, Name: "node-b"}, {Node: idC, Name: "node-c", Error: "it is silent: no answer"}}}
	a.answers["GET /subscribers?service=order"] = s
	status, stdout, stderr := starling(nil, "subscribers", "order", "--server", a.addr)
	if status != exitOK || stderr != "" {
		t.Errorf("status %d: %s", status, stderr)
	}
	want(t, "subscribers", stdout, nil,
		`4 subscribers of order in group DEFAULT_GROUP, namespace public; 2 behind, the longest for 12.3s.`,
		`node-a has more subscribers than an answer has room for.`,
		`node-c did not answer, so its subscribers are missing: it is silent: no answer`,
		``,
		`BEHIND     ACKED                    IP        AGENT                     APP      CLUSTERS  NODE    CLIENT`,
		`12.3s (!)  2026-11-30 05:31:02.123  10.0.0.7  Nacos-Java-Client:v2.5.1  till     all       node-b  1_10.0.0.7_41234`,
		`1s (!)     nothing                  10.0.0.8  evil\x1b[2J               unknown  a,b       node-a  2_10.0.0.8_2`,
		`3ms        2026-11-30 06:31:02.123  10.0.0.9  -                         unknown  all       node-a  3_10.0.0.9_3`,
		`-          2026-11-30 06:31:02.123  10.0.0.9  Nacos-Go-Client:v2.3.5    unknown  all       node-a  4_10.0.0.9_4`)

	// Names go to the server as they are.
	a.answers["GET /subscribers?group=g&namespace=n&service=order"] = s
	status, stdout, _ = starling(nil, "subscribers", "order", "--namespace", "n", "--group", "g", "--json", "--server", a.addr)
	var back api.Subscribers
	if err := json.Unmarshal([]byte(stdout), &back); err != nil || status != exitOK || strings.Contains(stdout, "\x1b") {
		t.Errorf("status %d, %v: %s", status, err, stdout)
	}
	if d := cmp.Diff(s, back); d != "" {
		t.Error(d)
	}

	// That nobody subscribes is an answer.
	a.answers["GET /subscribers?service=quiet"] = api.Subscribers{Service: api.Service{Namespace: "public", Group: "g", Name: "quiet"}}
	status, stdout, _ = starling(nil, "subscribers", "quiet", "--server", a.addr)
	if status != exitOK || stdout != "0 subscribers of quiet in group g, namespace public.\n" {
		t.Errorf("status %d: %s", status, stdout)
	}
}

func TestSubscribersWatch(t *testing.T) {
	a := newAPINode(t)
	n := 0
	signals := make(chan chan<- os.Signal, 1)
	a.answers["GET /subscribers?service=order"] = func() any {
		if n++; n == 3 {
			(<-signals) <- syscall.SIGINT
		}
		return api.Subscribers{Service: api.Service{Namespace: "public", Group: "g", Name: "order"}, Subscribers: []api.Subscriber{{Node: idA, Client: "c", IP: "1"}}}
	}
	var out, errs bytes.Buffer
	status := run(&process{args: []string{"subscribers", "order", "--server", a.addr, "--json", "--watch=100ms"}, stdout: &out, stderr: &errs,
		notify: func(c chan<- os.Signal) { signals <- c }})
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if status != exitOK || errs.Len() > 0 || len(lines) < 2 || len(lines) > 3 || lines[0] != lines[1] || !json.Valid([]byte(lines[0])) {
		t.Errorf("status %d, stderr %q, stdout %q", status, errs.String(), out.String())
	}
	for _, v := range []string{"99ms", "-1s", "0", "x"} {
		if status, _, stderr := starling(nil, "subscribers", "order", "--watch="+v); status != exitUsage || !strings.Contains(stderr, "--watch") {
			t.Errorf("--watch=%s: status %d: %s", v, status, stderr)
		}
	}
}
