package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/starling-registry/starling/pkg/api"
)

// now is when the nodes of the tests answer.
var now = time.Date(2026, 11, 30, 6, 31, 2, 123e6, time.UTC)

func before(d time.Duration) time.Time { return now.Add(-d) }

const (
	idA = "a1111111111111111111111111111111"
	idB = "b2222222222222222222222222222222"
	idC = "c3333333333333333333333333333333"
)

// An apiNode is a server whose answers a test chooses, by "METHOD /path?query"
// below the path of the native API: a value, an *api.Error, or a function that
// returns one of these.
type apiNode struct {
	addr    string
	answers map[string]any

	mu    sync.Mutex
	asked []string // with the bodies
}

func newAPINode(t *testing.T) *apiNode {
	n := &apiNode{answers: map[string]any{}}
	srv := httptest.NewServer(n)
	t.Cleanup(srv.Close)
	n.addr = strings.TrimPrefix(srv.URL, "http://")
	return n
}

func (n *apiNode) port() int {
	_, p, _ := net.SplitHostPort(n.addr)
	port, _ := strconv.Atoi(p)
	return port
}

func (n *apiNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	call := r.Method + " " + strings.TrimPrefix(r.URL.RequestURI(), api.Path)
	body, _ := io.ReadAll(r.Body)
	n.mu.Lock()
	n.asked = append(n.asked, strings.TrimSpace(call+" "+string(body)))
	n.mu.Unlock()
	a, ok := n.answers[call]
	if f, isFunc := a.(func() any); isFunc {
		a = f()
	}
	if !ok {
		a = &api.Error{Status: 501, Code: api.CodeNotOffered, Message: "this node does not offer this", Hint: "ask another"}
	}
	w.Header().Set("Content-Type", "application/json")
	if e, isErr := a.(*api.Error); isErr {
		w.WriteHeader(e.Status)
		a = map[string]any{"error": e}
	}
	if b, isBackup := a.(rawBackup); isBackup {
		b.write(w)
		return
	}
	_ = json.NewEncoder(w).Encode(a)
}

// threeNodes are members as node a sees them: b answers at its own address, c
// is silent, and nothing listens where it was.
func threeNodes(a, b *apiNode) api.Members {
	return api.Members{Cluster: "0123456789abcdef", Node: idA, At: now, Members: []api.Member{
		{ID: idA, Name: "node-a", Epoch: 1, State: api.StateAlive, Since: before(50 * time.Hour), Self: true, Ready: true, Host: "127.0.0.1", Ports: api.Ports{HTTP: a.port()}, Version: "v0.2.0", Wire: 1},
		{ID: idB, Name: "node-b", Epoch: 1, State: api.StateAlive, Since: before(90 * time.Second), Draining: true, Host: "127.0.0.1", Ports: api.Ports{HTTP: b.port()}, Version: "v0.2.0", Wire: 1, ClockOffsetMillis: -1500, ClockOff: true},
		{ID: idC, Name: "node-c", Epoch: 1, State: api.StateSilent, Since: before(12 * time.Second), Ready: true, Host: "127.0.0.1", Ports: api.Ports{HTTP: 1}, Version: "v0.2.0", Wire: 1},
	}}
}

// want compares an output. Addresses are replaced by names first.
func want(t *testing.T, what, got string, names map[string]string, lines ...string) {
	t.Helper()
	for addr, name := range names {
		// As wide as it was, so that columns stay.
		got = strings.ReplaceAll(got, addr, name+strings.Repeat("~", max(0, len(addr)-len(name))))
	}
	if d := cmp.Diff(strings.Join(lines, "\n")+"\n", got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func TestMembers(t *testing.T) {
	a, b := newAPINode(t), newAPINode(t)
	a.answers["GET /members"] = threeNodes(a, b)
	names := map[string]string{a.addr: "A", b.addr: "B"}
	table := []string{
		"NAME      STATE        READY     ADDRESS          VERSION  CLOCK        ID",
		"node-a *  alive 2d02h  yes       A~~~~~~~~~~~~~~  v0.2.0   -            " + idA,
		"node-b    alive 1m30s  draining  B~~~~~~~~~~~~~~  v0.2.0   -1500ms (!)  " + idB,
		"node-c    silent 12s   -         127.0.0.1:1      v0.2.0   -            " + idC,
		"The clock of node-b is 1.5s off: check its time synchronization. A node that is a day off is refused.",
	}
	status, stdout, stderr := starling(nil, "members", "--server", a.addr)
	if status != exitOK || stderr != "" {
		t.Errorf("status %d: %s", status, stderr)
	}
	want(t, "members", stdout, names, table...)

	// The variable names the node too, an empty one nothing; the flag wins.
	status, stdout, _ = starling([]string{"STARLING_SERVER=" + a.addr}, "members", "--namespace", "x", "--group", "y")
	if status != exitOK {
		t.Errorf("status %d", status)
	}
	want(t, "by variable", stdout, names, table...)
	if status, _, _ := starling([]string{"STARLING_SERVER=127.0.0.1:1"}, "members", "--server", a.addr); status != exitOK {
		t.Errorf("the flag does not win: status %d", status)
	}

	status, stdout, _ = starling(nil, "members", "--server", a.addr, "--json")
	var m api.Members
	if err := json.Unmarshal([]byte(stdout), &m); err != nil || status != exitOK {
		t.Fatal(status, err)
	}
	if d := cmp.Diff(threeNodes(a, b), m); d != "" {
		t.Error(d)
	}
}

// What goes wrong says what to do.
func TestRemoteErrors(t *testing.T) {
	nacos := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(404)
		_, _ = io.WriteString(w, `{"status":404,"error":"Not Found"}`)
	}))
	defer nacos.Close()
	old := newAPINode(t) // has nothing of what is asked
	evil := newAPINode(t)
	evil.answers["GET /members"] = &api.Error{Status: 500, Code: "x", Message: "\x1b[2Jgone\nstarling: all is well"}
	backup := file(t, aBackup)
	for _, args := range [][]string{{"members"}, {"cluster"}, {"verify"}, {"history", "s"}, {"subscribers", "s"}, {"drain"}, {"ready"}, {"drain", "--dry-run"}, {"cluster", "--end-self-preservation"},
		{"services"}, {"instances", "s"}, {"enable", "s", "10.0.0.7:80"}, {"disable", "s", "10.0.0.7:80"}, {"weight", "s", "10.0.0.7:80", "1"}, {"metadata", "s", "10.0.0.7:80"},
		{"metadata", "s", "10.0.0.7:80", "a=1"}, {"evict", "s", "10.0.0.7:80"}, {"evict", "s", "10.0.0.7:80", "--lift"}, {"evict", "--list"}, {"edits"}, {"edits", "reset", "s", "10.0.0.7:80"},
		{"namespaces"}, {"namespaces", "create", "n"}, {"namespaces", "remove", "n"},
		{"raft"}, {"backup", filepath.Join(t.TempDir(), "b")}, {"backup", "-"}, {"restore", backup}, {"members", "remove", "node-c"}} {
		f := func(status int, env []string, server string, says ...string) {
			t.Helper()
			args := args
			if server != "" {
				args = append(args, "--server", server)
			}
			got, stdout, stderr := starling(env, args...)
			if got != status || stdout != "" {
				t.Errorf("%v: status %d, stdout %q", args, got, stdout)
			}
			for _, s := range says {
				if !strings.Contains(stderr, s) {
					t.Errorf("%v: %q is not in %s", args, s, stderr)
				}
			}
		}
		f(exitFailed, nil, "127.0.0.1:1", "127.0.0.1:1 refuses the connection", "--server", "STARLING_SERVER")
		f(exitFailed, []string{"STARLING_SERVER=127.0.0.1:1"}, "", "127.0.0.1:1 refuses")
		f(exitFailed, nil, strings.TrimPrefix(nacos.URL, "http://"), "404", "does not know the native API")
		f(exitFailed, nil, old.addr, "does not offer this (ask another)")
		f(exitUsage, nil, "http://localhost", "--server", "HOST:PORT")
		f(exitUsage, []string{"STARLING_SERVER=a:b"}, "", "STARLING_SERVER")
	}
	if _, _, stderr := starling(nil, "members", "--server", evil.addr); strings.Contains(stderr, "\x1b") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("what a server says reaches the terminal: %q", stderr)
	}
	for _, args := range [][]string{{"members", "x"}, {"cluster", "x"}, {"verify", "x"}, {"history"}, {"history", "s", "i", "x"}, {"drain", "x"}, {"ready", "x"}, {"subscribers"}, {"subscribers", "s", "x"}, {"subscribers", "s", "--servers", "a"},
		{"members", "--servers", "a,b"}, {"drain", "--servers", "a,b"}, {"history", "s", "--servers", "a,b"},
		{"cluster", "--server", "a", "--servers", "b"}, {"verify", "--servers", "a,a:8848"}, {"verify", "--servers", "a,b:x"},
		{"raft", "x"}, {"raft", "--server", "a", "--servers", "b"}, {"backup"}, {"backup", "a", "b"}, {"backup", "-", "--json"}, {"backup", "x", "--servers", "a"},
		{"restore"}, {"restore", "a", "b"}, {"members", "remove"}, {"members", "remove", ""}, {"members", "remove", "a", "b"}, {"members", "remove", "a", "--servers", "b"},
		{"services", "a", "b"}, {"services", "--all-namespaces", "--namespace", "n"}, {"services", "--limit", "0"}, {"services", "g@@a", "--group", "h"}, {"services", "--watch=x"}, {"services", "--watch", "5s"}, {"instances", "order", "--watch", "5s"}, {"subscribers", "order", "--watch", "5s"}, {"weight", "order", "10.0.0.7:8080", "-1"},
		{"instances"}, {"instances", ""}, {"instances", "a", "b"}, {"enable"}, {"enable", "s"}, {"disable", "s", "10.0.0.7"}, {"disable", "s", ":80"}, {"disable", "s", "10.0.0.7:80", "x"},
		{"weight", "s", "10.0.0.7:80"}, {"weight", "s", "10.0.0.7:80", "x"}, {"weight", "s", "10.0.0.7:80", "10001"}, {"weight", "s", "10.0.0.7:80", "NaN"}, {"metadata", "s"},
		{"evict"}, {"evict", "s"}, {"evict", "s", "10.0.0.7:80", "--list"}, {"evict", "--list", "--lift"}, {"evict", "s", "10.0.0.7:80", "--all-namespaces"},
		{"evict", "s", "10.0.0.7:80", "--lift", "--until-gone"}, {"evict", "s", "10.0.0.7:80", "--absent", "--until-gone"}, {"evict", "--list", "--all-namespaces", "--namespace", "n"},
		{"edits", "x"}, {"edits", "reset"}, {"edits", "--all-namespaces", "--namespace", "n"}, {"namespaces", "x"}, {"namespaces", "create"}, {"namespaces", "remove", "a", "b"},
		{"verify", "--within", "10"}, {"verify", "--within", "-1s"}} {
		if status, _, stderr := starling(nil, args...); status != exitUsage || !strings.Contains(stderr, "--help") {
			t.Errorf("%v: status %d, %s", args, status, stderr)
		}
	}
}

func TestRemoteHelp(t *testing.T) {
	for _, cmd := range []string{"services", "instances", "enable", "disable", "weight", "metadata", "evict", "edits", "edits reset", "namespaces", "namespaces create", "namespaces remove", "members", "members remove", "cluster", "verify", "history", "subscribers", "drain", "ready", "raft", "backup", "restore", "register", "get", "watch"} {
		words := strings.Fields(cmd)
		_, help, _ := starling(nil, append(words, "--help")...)
		for _, s := range []string{"Examples:", "starling " + cmd, "--server", "STARLING_SERVER", "--json"} {
			if !strings.Contains(help, s) {
				t.Errorf("%s --help lacks %s", cmd, s)
			}
		}
		if several := strings.Contains(help, "--servers string"); several != slices.Contains([]string{"cluster", "verify", "raft", "register", "get", "watch"}, cmd) {
			t.Errorf("%s --help: --servers %v", cmd, several)
		}
		if named := strings.Contains(help, "--namespace string"); named != slices.Contains([]string{"history", "verify", "subscribers", "services", "instances", "enable", "disable", "weight", "metadata", "evict", "edits", "edits reset", "register", "get", "watch"}, cmd) {
			t.Errorf("%s --help: --namespace %v", cmd, named)
		}
		for line := range strings.Lines(help) {
			if strings.Contains(line, "  --") || strings.Contains(line, "  -h") {
				continue // a flag
			}
			if len(line) > 91 {
				t.Errorf("%s --help has a long line: %s", cmd, line)
			}
		}
		// The shell offers flags, and no files.
		complete := append([]string{"__complete"}, words...)
		if _, out, _ := starling(nil, append(complete, "--serv")...); !strings.Contains(out, "--server") {
			t.Errorf("%s: completion of flags: %s", cmd, out)
		}
		for _, args := range [][]string{{""}, {"--server", ""}, {"--namespace", ""}} {
			expected := ":4\n"
			if args[0] == "" && (cmd == "backup" || cmd == "restore") {
				expected = ":0\n" // but these take one
			} else if sub := map[string]string{"members": "remove\tTake a node that is gone for good out of the log of the cluster\n",
				"edits": "reset\tTake back what operators have set for an instance\n", "namespaces": "create\tMake a namespace\nremove\tForget a namespace that somebody has made\n"}[cmd]; args[0] == "" && sub != "" {
				expected = sub + expected
			}
			// What is there to choose from is asked of a node; there is none.
			if _, out, _ := starling([]string{"STARLING_SERVER=127.0.0.1:1"}, append(complete, args...)...); out != expected {
				t.Errorf("%s: completion of %v: %q", cmd, args, out)
			}
		}
	}
	// A node does not take the variables for settings it does not know.
	if _, _, stderr := starling([]string{"STARLING_NAME=n1", "STARLING_SERVER=10.0.0.1", "STARLING_SERVERS=10.0.0.1,10.0.0.2", "STARLING_USERNAME=u", "STARLING_PASSWORD=p"}, "serve", "--check"); stderr != "" {
		t.Error(stderr)
	}
}

func TestSafe(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		if got := safe(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	f("10.0.0.7:8080 [gray] → ü 世", "10.0.0.7:8080 [gray] → ü 世")
	f("\x1b[2J\r\n\t\x00\x7f", `\x1b[2J\x0d\x0a\x09\x00\x7f`)
	f("\u009b2J", `\u009b2J`)                         // CSI in one character
	f("a\u202eb\u2066\u2028", `a\u202eb\u2066\u2028`) // turns the line, ends it
	f("\xff\xfe�", `\xff\xfe�`)
	f("\U000e0041", `\U000e0041`) // a tag, invisible
	f(strings.Repeat("x", 1000), strings.Repeat("x", 400)+"…")
	f(strings.Repeat("x", 400), strings.Repeat("x", 400))
}

// JSON stays the same value and moves no cursor.
func TestSafeJSON(t *testing.T) {
	for _, s := range []string{"plain ü 世 →", "\x1b[2J\x7f", "\u009b\u202e\u2028", "\U000e0041\U0001f600", "\xff"} {
		var w strings.Builder
		if err := writeJSON(&w, map[string]string{s: s}); err != nil {
			t.Fatal(err)
		}
		if got := safe(strings.ReplaceAll(w.String(), "\n", "")) + "\n"; len(got) != len(w.String())-strings.Count(w.String(), "\n")+1 {
			t.Errorf("%q is not safe: %q", s, w.String())
		}
		var back map[string]string
		valid := strings.ToValidUTF8(s, "\uFFFD")
		if err := json.Unmarshal([]byte(w.String()), &back); err != nil || back[valid] != valid {
			t.Errorf("%q became %q, %v", s, back, err)
		}
	}
}

func TestSpan(t *testing.T) {
	f := func(d time.Duration, want string) {
		t.Helper()
		if got := span(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
	f(-time.Second, "0s")
	f(0, "0s")
	f(12*time.Millisecond, "12ms")
	f(1500*time.Millisecond, "1.5s")
	f(59*time.Second, "59s")
	f(61*time.Second, "1m01s")
	f(3*time.Hour+2*time.Minute, "3h02m")
	f(50*time.Hour, "2d02h")
}

func TestFailed(t *testing.T) {
	if failed(nil) != nil {
		t.Error("nothing is a failure")
	}
	err := failed(errors.Join(errors.New("a\nb"), fmt.Errorf("c: %w", &api.Error{Code: api.CodeCannotReach, Message: "d"})))
	if want := "a\\x0ab\nc: d\nName another node with --server HOST[:PORT] or in STARLING_SERVER."; err.Error() != want {
		t.Errorf("%q", err)
	}
}

func TestNodeNames(t *testing.T) {
	n := newNodeNames(map[string]string{idA: "same", idB: "same", idC: ""})
	for id, want := range map[string]string{idA: "same (a1111111)", idB: "same (b2222222)", idC: "c3333333", "d4": "d4"} {
		if got := n.of(id); got != want {
			t.Errorf("%s: %s, want %s", id, got, want)
		}
	}
}
