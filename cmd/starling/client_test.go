package main

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/client"
	"github.com/starling-registry/starling/pkg/node"
)

// A begun command is one that goes on until it is stopped.
type begun struct {
	stdout, stderr terminal
	signals        chan<- os.Signal
	status         chan int
}

func background(t *testing.T, env []string, args ...string) *begun {
	t.Helper()
	c := &begun{status: make(chan int, 1)}
	signals := make(chan chan<- os.Signal, 2)
	go func() {
		c.status <- run(&process{args: args, env: env, stdout: &c.stdout, stderr: &c.stderr, notify: func(s chan<- os.Signal) { signals <- s }})
	}()
	select {
	case c.signals = <-signals:
	case status := <-c.status:
		t.Fatalf("%v: status %d: %s", args, status, c.stderr.String())
	}
	return c
}

// says waits for a text on stdout.
func (c *begun) says(t *testing.T, text string) {
	t.Helper()
	until(t, text+", in "+c.stdout.String(), func() bool { return strings.Contains(c.stdout.String(), text) })
}

// end stops the command, which is to be a success.
func (c *begun) end(t *testing.T) {
	t.Helper()
	c.signals <- syscall.SIGINT
	if status := <-c.status; status != exitOK {
		t.Errorf("status %d: %s", status, c.stderr.String())
	}
}

func TestClientCommands(t *testing.T) {
	o := node.DefaultOptions()
	o.Name, o.DataDir, o.Port, o.Logger = "n", t.TempDir(), freePort(t), zap.NewNop()
	n, err := node.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(o.Port))
	env := []string{"STARLING_SERVERS=" + addr}
	get := func(args ...string) (list listJSON) {
		t.Helper()
		status, stdout, stderr := starling(env, append([]string{"get", "--json"}, args...)...)
		if err := json.Unmarshal([]byte(stdout), &list); err != nil || status != exitOK {
			t.Fatalf("status %d, %v: %s%s", status, err, stdout, stderr)
		}
		return list
	}

	status, stdout, stderr := starling(env, "get", "order")
	if status != exitOK || stderr != "" || !strings.Contains(stdout, "are given no instance") {
		t.Errorf("status %d: %s%s", status, stdout, stderr)
	}
	lines := background(t, env, "watch", "order")
	events := background(t, env, "watch", "order", "--json", "--healthy", "--cluster", "c1")
	services := background(t, env, "watch", "--service-pattern", "ord*", "--group", "*")
	lines.says(t, "  = DEFAULT_GROUP@@order has no instance\n")
	events.says(t, `"first":true`)
	services.says(t, "= no service matches ord*")

	one := background(t, env, "register", "order", "10.0.0.1:8080", "--weight", "0.5", "--metadata", "zone=a", "--metadata", "v=1=2", "--cluster", "c1")
	one.says(t, addr+"  registered; Ctrl-C takes it away")
	two := background(t, nil, "register", "DEFAULT_GROUP@@order", "[fd00::7]:8080", "--weight", "0", "--json", "--server", addr)
	two.says(t, `"event":"registered","server":"`+addr+`"`)
	lines.says(t, "  + 10.0.0.1:8080  c1  healthy  weight 0.5  v=1=2 zone=a\n")
	lines.says(t, "  + [fd00::7]:8080  DEFAULT  healthy  weight 0\n")
	services.says(t, "+ DEFAULT_GROUP@@order\n")
	all := get("order")
	if len(all.Instances) != 2 || all.Source != "server" || time.Since(all.AsOf) > time.Minute || all.Namespace != "public" || all.Name != "order" {
		t.Errorf("%+v", all)
	}
	if l := get("order", "--healthy").Instances; len(l) != 1 || l[0].IP != "10.0.0.1" || l[0].Weight != 0.5 || l[0].Metadata["v"] != "1=2" {
		t.Errorf("healthy: %+v", l)
	}
	if l := get("order", "--cluster", "DEFAULT").Instances; len(l) != 1 || l[0].IP != "fd00::7" || l[0].Weight != 0 {
		t.Errorf("of a cluster: %+v", l)
	}
	_, stdout, _ = starling(env, "get", "order")
	want(t, "get", stdout, nil,
		"INSTANCE        CLUSTER  STATE    WEIGHT  METADATA",
		"[fd00::7]:8080  DEFAULT  healthy  0       -",
		"10.0.0.1:8080   c1       healthy  0.5     v=1=2 zone=a")
	if _, stdout, _ := starling(env, "__complete", "get", "or"); stdout != "order\n:4\n" {
		t.Errorf("completion: %q", stdout)
	}

	// An operator's edit is a modification.
	if status, _, stderr := starling(nil, "weight", "order", "10.0.0.1:8080", "7", "--server", addr); status != exitOK {
		t.Fatal(stderr)
	}
	lines.says(t, "  ~ 10.0.0.1:8080  c1  healthy  weight 7  v=1=2 zone=a\n")

	one.end(t)
	two.end(t)
	if s := one.stdout.String(); !strings.HasSuffix(s, addr+"  deregistered\n") {
		t.Errorf("%s", s)
	}
	lines.says(t, "  - [fd00::7]:8080  DEFAULT  healthy  weight 0\n")
	services.says(t, "- DEFAULT_GROUP@@order\n")
	until(t, "the last event", func() bool { return strings.Count(events.stdout.String(), "\n") == 4 })
	for i, line := range strings.Split(strings.TrimSpace(events.stdout.String()), "\n") {
		var e struct {
			First                    bool
			Added, Removed, Modified []instanceJSON
			Instances                []instanceJSON
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		got := [5]int{0, len(e.Added), len(e.Removed), len(e.Modified), len(e.Instances)}
		if e.First {
			got[0] = 1
		}
		if want := [][5]int{{1, 0, 0, 0, 0}, {0, 1, 0, 0, 1}, {0, 0, 0, 1, 1}, {0, 0, 1, 0, 0}}[i]; got != want {
			t.Errorf("event %d: %v, want %v: %s", i, got, want, line)
		}
	}

	// A persistent one stays, and the service is of its kind.
	status, stdout, stderr = starling(env, "register", "db", "127.0.0.1:5432", "--persistent")
	if status != exitOK || !strings.Contains(stdout, "it stays. Undo: curl -X DELETE 'http://"+addr+"/nacos/v1/ns/instance?ephemeral=false&ip=127.0.0.1&port=5432&serviceName=db'\n") {
		t.Errorf("status %d: %s%s", status, stdout, stderr)
	}
	if l := get("db").Instances; len(l) != 1 || l[0].Ephemeral {
		t.Errorf("%+v", l)
	}
	if status, _, stderr := starling(env, "register", "db", "127.0.0.1:5433"); status != exitFailed || !strings.Contains(stderr, "is persistent service") {
		t.Errorf("a refused one: status %d: %s", status, stderr)
	}

	// The node goes: it is said, nothing vanishes, and the end of a registration
	// that nobody hears of is a failure.
	three := background(t, env, "register", "order", "10.0.0.3:8080")
	lines.says(t, "+ 10.0.0.3:8080")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = n.Stop(ctx)
	three.says(t, addr+"  connection lost\n")
	until(t, "the watcher says so", func() bool { return strings.Contains(lines.stderr.String(), addr+"  connection lost\n") })
	three.signals <- syscall.SIGTERM
	if status := <-three.status; status != exitFailed || !strings.Contains(three.stderr.String(), "it ends when they miss the client") {
		t.Errorf("status %d: %s", status, three.stderr.String())
	}
	lines.end(t)
	events.end(t)
	services.end(t)
	if s := lines.stdout.String(); strings.Contains(s, "- 10.0.0.3:8080") {
		t.Errorf("an instance vanished with the connection: %s", s)
	}
	for _, args := range [][]string{{"get", "order"}, {"watch", "order"}, {"watch", "--service-pattern", "*"}, {"register", "order", "10.0.0.1:80"}} {
		status, stdout, stderr := starling(env, append(args, "--timeout", "200ms")...)
		if status != exitFailed || stdout != "" || !strings.Contains(stderr, "not connected to any server") || !strings.Contains(stderr, "Name other nodes with --servers") {
			t.Errorf("%v: status %d: %s%s", args, status, stdout, stderr)
		}
	}
}

// Both nodes are named, the connected one ends: the instance is registered at
// the other one, and watchers do not hear that it was missing.
func TestRegisterSurvivesItsNode(t *testing.T) {
	a, addrA := benchNode(t, nil)
	b, addrB := benchNode(t, []string{addrA})
	stop := func(n *node.Node) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = n.Stop(ctx)
	}
	defer stop(a)
	defer stop(b)
	until(t, "both nodes know each other", func() bool {
		status, stdout, _ := starling(nil, "members", "--server", addrA, "--json")
		return status == exitOK && strings.Count(stdout, `"ready": true`) == 2
	})
	servers := addrA + "," + addrB
	instance := background(t, nil, "register", "order", "10.0.0.1:8080", "--servers", servers)
	instance.says(t, "registered; Ctrl-C")
	first, other := a, addrB
	if strings.Contains(instance.stdout.String(), addrB) {
		first, other = b, addrA
	}
	watcher := background(t, nil, "watch", "order", "--server", other)
	watcher.says(t, "+ 10.0.0.1:8080")
	stop(first)
	instance.says(t, other+"  registered again\n")
	time.Sleep(3 * time.Second) // longer than orphans are kept here
	instance.end(t)
	watcher.says(t, "- 10.0.0.1:8080")
	watcher.end(t)
	if s := watcher.stdout.String(); strings.Count(s, "\n") != 2 {
		t.Errorf("the watcher was told: %s", s)
	}
}

func TestCallerUsage(t *testing.T) {
	for _, args := range [][]string{
		{"get"}, {"get", ""}, {"get", "a", "b"}, {"get", "a b"}, {"get", "g@@a", "--group", "h"}, {"get", "a", "--timeout", "0s"}, {"get", "a", "--cluster", "a b"},
		{"get", "a", "--server", "x", "--servers", "y"}, {"get", "a", "--servers", "x,http://y"}, {"get", "a", "--namespace", "n n"},
		{"watch"}, {"watch", "a", "b"}, {"watch", "a", "--service-pattern", "a*"}, {"watch", "--service-pattern", "*", "--healthy"},
		{"register"}, {"register", "a"}, {"register", "a", "10.0.0.1"}, {"register", "a", "10.0.0.1:x"}, {"register", "a", ":80"}, {"register", "a", "10.0.0.1:80", "b"},
		{"register", "a", "10.0.0.1:80", "--weight", "-1"}, {"register", "a", "10.0.0.1:80", "--weight", "NaN"}, {"register", "a", "10.0.0.1:80", "--metadata", "x"},
		{"register", "a", "10.0.0.1:80", "--metadata", "=x"}, {"register", "a", "10.0.0.1:80", "--metadata", "x=1", "--metadata", "x=2"}, {"register", "a", "10.0.0.1:80", "--cluster", "a b"},
	} {
		if status, _, stderr := starling(nil, args...); status != exitUsage || !strings.Contains(stderr, "--help") {
			t.Errorf("%v: status %d, %s", args, status, stderr)
		}
	}
	f := func(env []string, servers []string, server, want string) {
		t.Helper()
		r := &caller{remote: remote{p: &process{env: env}, servers: servers, server: server}}
		got, err := r.addresses()
		if text := strings.Join(got, ","); err == nil && text != want || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v %v %q: %q, %v", env, servers, server, text, err)
		}
	}
	both := []string{"STARLING_SERVER=s", "STARLING_SERVERS=a, b:1,a:8848"}
	f(nil, nil, "", "127.0.0.1:8848")
	f(both[:1], nil, "", "s:8848")
	f(both, nil, "", "a:8848,b:1")
	f(both, nil, "x", "x:8848")
	f(both, []string{"x", "[::1]:1"}, "", "x:8848,[::1]:1")
	f([]string{"STARLING_SERVERS=a:b"}, nil, "", "STARLING_SERVERS: ")
	f([]string{"STARLING_SERVERS="}, nil, "", "127.0.0.1:8848")
}

func TestServiceView(t *testing.T) {
	at := func(ip string, weight float64) client.Instance {
		return client.Instance{IP: ip, Port: 80, Cluster: "DEFAULT", Weight: weight, Healthy: weight != 3, Enabled: true, Ephemeral: true}
	}
	list := func(all ...client.Instance) client.Snapshot {
		return client.Snapshot{Service: client.ServiceID{Group: "g", Name: "s"}, Instances: all, AsOf: now}
	}
	v := &serviceView{r: &caller{}, changes: map[string]change{}}
	v.take(client.Event{First: true, Snapshot: list(at("10.0.0.1", 1), at("10.0.0.2", 1)), Added: []client.Instance{at("10.0.0.1", 1), at("10.0.0.2", 1)}}, now)
	shown := func(after time.Duration) string {
		var w strings.Builder
		if err := v.table(&w, now.Add(after)); err != nil {
			t.Fatal(err)
		}
		return w.String()
	}
	check := func(got string, lines ...string) {
		t.Helper()
		if d := cmp.Diff(strings.Join(lines, "\n")+"\n", got); d != "" {
			t.Error(d)
		}
	}
	check(shown(0),
		"INSTANCE     CLUSTER  STATE    WEIGHT  CHANGED  METADATA",
		"10.0.0.1:80  DEFAULT  healthy  1       -        -",
		"10.0.0.2:80  DEFAULT  healthy  1       -        -",
		"2 instances, 2 to be used")
	e := client.Event{Snapshot: list(at("10.0.0.1", 3), at("10.0.0.4", 1)), Modified: []client.Instance{at("10.0.0.1", 3)}, Added: []client.Instance{at("10.0.0.4", 1)}, Removed: []client.Instance{at("10.0.0.2", 1)}}
	e.Snapshot.Source = client.FromFailover
	v.take(e, now.Add(10*time.Second))
	check(shown(12*time.Second),
		"INSTANCE     CLUSTER  STATE      WEIGHT  CHANGED      METADATA",
		"10.0.0.1:80  DEFAULT  unhealthy  3       modified 2s  -",
		"10.0.0.4:80  DEFAULT  healthy    1       added 2s     -",
		"10.0.0.2:80  DEFAULT  GONE       1       gone 2s      -",
		"2 instances, 1 to be used",
		"An operator has put this list there (failover); it is 12s old.")
	if s := shown(41 * time.Second); strings.Contains(s, "GONE") {
		t.Errorf("%s", s)
	}
	var w strings.Builder
	if err := v.lines(&w, e, now); err != nil {
		t.Fatal(err)
	}
	check(w.String(),
		"06:31:02.123  + 10.0.0.4:80  DEFAULT  healthy  weight 1",
		"06:31:02.123  - 10.0.0.2:80  DEFAULT  healthy  weight 1",
		"06:31:02.123  ~ 10.0.0.1:80  DEFAULT  unhealthy  weight 3",
		"06:31:02.123  = An operator has put this list there (failover); it is 0s old.")
	// An instance that comes back is not gone, and one that has been for long is
	// forgotten.
	v.take(client.Event{Snapshot: list(at("10.0.0.2", 1)), Added: []client.Instance{at("10.0.0.2", 1)}, Removed: []client.Instance{at("10.0.0.4", 1), at("10.0.0.1", 3)}}, now.Add(15*time.Second))
	if s := shown(15 * time.Second); strings.Count(s, "10.0.0.2") != 1 || strings.Count(s, "GONE") != 2 {
		t.Errorf("%s", s)
	}
	v.take(client.Event{Snapshot: list()}, now.Add(time.Hour))
	if len(v.changes) != 1 {
		t.Errorf("%v", v.changes)
	}
}

func TestLinkView(t *testing.T) {
	f := func(l *linkView, s client.State, want string) {
		t.Helper()
		if text, changed := l.take(report{state: s, server: "a:1"}, now); changed != (want != "") || changed && text != want {
			t.Errorf("%v: %q, %v", s, text, changed)
		}
	}
	l := &linkView{}
	f(l, client.Ready, "") // no news
	f(l, client.Connecting, "a:1  connection lost")
	f(l, client.Degraded, "still no connection to any server; trying again")
	if text := l.text(nil, now.Add(7*time.Second)); text != "NOT CONNECTED for 7s, as a:1 told it last." {
		t.Errorf("%q", text)
	}
	f(l, client.Ready, "a:1  connected")
	never := &linkView{}
	f(never, client.Connecting, "no connection to any server yet; trying again")
	if text := never.text(nil, now.Add(time.Second)); text != "NOT CONNECTED for 1s." {
		t.Errorf("%q", text)
	}
	f(never, client.Ready, "a:1  connected")
}

// The lists that an application's client has kept are shown for what they are.
func TestGetFromDisk(t *testing.T) {
	o := node.DefaultOptions()
	o.Name, o.DataDir, o.Port, o.Logger = "n", t.TempDir(), freePort(t), zap.NewNop()
	n, err := node.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"get", "order", "--cache-dir", t.TempDir(), "--server", net.JoinHostPort("127.0.0.1", strconv.Itoa(o.Port))}
	instance := background(t, nil, "register", "order", "10.0.0.1:8080", "--server", args[5])
	instance.says(t, "registered; Ctrl-C")
	if _, stdout, stderr := starling(nil, args...); !strings.Contains(stdout, "10.0.0.1:8080") || strings.Contains(stdout, "disk") {
		t.Errorf("%s%s", stdout, stderr)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = n.Stop(ctx)
	status, stdout, stderr := starling(nil, args...)
	if status != exitOK || !strings.Contains(stdout, "10.0.0.1:8080") || !strings.Contains(stdout, "No server has been heard yet; this list is from the disk, and ") {
		t.Errorf("status %d: %s%s", status, stdout, stderr)
	}
	var list listJSON
	if _, stdout, _ := starling(nil, append(args, "--json")...); json.Unmarshal([]byte(stdout), &list) != nil || list.Source != "disk" || list.AsOf.IsZero() {
		t.Errorf("%+v", list)
	}
	watcher := background(t, nil, append([]string{"watch"}, args[1:]...)...)
	watcher.says(t, "from the disk")
	watcher.end(t)
	instance.signals <- syscall.SIGINT
	<-instance.status
}

// What is not on the servers now says so.
func TestWorth(t *testing.T) {
	f := func(s client.Source, asOf time.Time, want string) {
		t.Helper()
		if got := worth(client.Snapshot{Source: s, AsOf: asOf}, now); got != want {
			t.Errorf("%v: %q", s, got)
		}
	}
	f(client.FromServer, before(time.Hour), "")
	f(client.FromStale, before(time.Minute), "No server confirms this list; it is 1m00s old.")
	f(client.FromDisk, before(time.Hour), "No server has been heard yet; this list is from the disk, and 1h00m old.")
	f(client.FromFailover, time.Time{}, "An operator has put this list there (failover); it is of unknown age.")
}
