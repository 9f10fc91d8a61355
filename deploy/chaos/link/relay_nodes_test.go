package link

import (
	"context"
	"encoding/json"
	"net/url"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/starling-registry/starling/deploy/chaos/nodetest"
)

// A cluster of real nodes lives behind a relay, and gets over what it does.
func TestNodesBehindRelay(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	bin := nodetest.Binary(t)
	t.Cleanup(nodetest.Remove)
	names := []string{"a", "b", "c"}
	r := newTestRelay(t, names...)
	dir := t.TempDir()
	var join []string
	for _, n := range names {
		join = append(join, r.via(n))
	}
	nodes := map[string]*nodetest.Node{}
	started := func(name string) {
		t.Helper()
		r.Started(name, nodes[name].PID())
		must(t, r.Up(name))
	}
	call := func(method, node, path string) (string, error) { return nodes[node].Do(method, path, nil) }
	tool := func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		out, err := exec.CommandContext(ctx, bin, args...).CombinedOutput()
		return string(out), err
	}
	// As the node sees the others: name and state.
	states := func(node string) map[string]string {
		out, err := tool("members", "--server", r.via(node), "--json")
		seen := map[string]string{}
		if err != nil {
			return seen
		}
		var answer struct {
			Members []struct{ Name, State string }
		}
		if err := json.Unmarshal([]byte(out), &answer); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for _, m := range answer.Members {
			seen[m.Name] = m.State
		}
		return seen
	}
	allAlive := func() bool {
		for _, n := range names {
			if s := states(n); s["a"] != "alive" || s["b"] != "alive" || s["c"] != "alive" {
				return false
			}
		}
		return true
	}
	register := func(node string, port int) {
		t.Helper()
		q := url.Values{"serviceName": {"chaos"}, "ip": {"10.0.0.1"}, "port": {strconv.Itoa(port)}, "ephemeral": {"false"}, "healthCheck": {"none"}}
		if _, err := call("POST", node, "/nacos/v1/ns/instance?"+q.Encode()); err != nil {
			t.Fatalf("registering at %s: %v", node, err)
		}
	}
	shows := func(node string, port int) bool {
		body, err := call("GET", node, "/nacos/v1/ns/instance/list?serviceName=chaos")
		return err == nil && strings.Contains(body, `"port":`+strconv.Itoa(port))
	}
	good := func(when string) {
		t.Helper()
		began := time.Now()
		relayEventually(t, when+": all see all alive", allAlive)
		t.Logf("%s: all see all alive after %v", when, time.Since(began).Round(10*time.Millisecond))
		if out, err := tool("verify", "--within", "30s", "--server", r.via("a")); err != nil {
			t.Fatalf("%s: %v: %s", when, err, out)
		} else {
			t.Logf("%s: verify: %s", when, strings.TrimSpace(out))
		}
		for _, n := range names {
			if out, err := tool("raft", "--server", r.via(n)); err != nil {
				t.Fatalf("%s: raft at %s: %v: %s", when, n, err, out)
			}
		}
	}

	for _, n := range names {
		nodes[n] = nodetest.Start(t, r.via(n), func() *exec.Cmd {
			return r.Command(n, bin, "serve", "--name", n, "--port", strconv.Itoa(r.Port()),
				"--bind", r.Bind(n), "--advertise", r.Address(n), "--data-dir", filepath.Join(dir, n),
				"--join", strings.Join(join, ","), "--expect", "3", "--log-format", "console")
		})
		started(n)
	}
	for _, n := range names {
		nodes[n].WaitReady()
	}
	register("a", 1000)
	for _, n := range names {
		relayEventually(t, n+" shows it", func() bool { return shows(n, 1000) })
	}
	good("at the start")
	out, err := tool("members", "--server", r.via("a"))
	t.Logf("members, %v:\n%s", err, out)
	out, err = tool("raft", "--server", r.via("a"))
	t.Logf("raft, %v:\n%s", err, out)
	for pair, c := range r.Counters() {
		if strings.Contains(pair, ">") && !strings.Contains(pair, Host) && pair[0] != pair[2] && c.Passed == 0 {
			t.Errorf("nothing of %s went through the relay: %+v", pair, c)
		}
	}

	cut := func(from, to string, on bool) {
		must(t, r.Set(from, to, Rule{Cut: on}))
	}
	for i, way := range []struct {
		what      string
		out, into bool
	}{{"b does not hear a and c", false, true}, {"a and c do not hear b", true, false}, {"b cut off", true, true}} {
		set := func(on bool) {
			for _, other := range []string{"a", "c"} {
				if way.out {
					cut("b", other, on)
				}
				if way.into {
					cut(other, "b", on)
				}
			}
		}
		set(true)
		time.Sleep(10 * time.Second)
		t.Logf("%s for 10 s: a sees %v, b sees %v", way.what, states("a"), states("b"))
		// What has a majority takes writes, and clients reach all.
		port := 2000 + i
		relayEventually(t, "a takes a write", func() bool {
			q := url.Values{"serviceName": {"chaos"}, "ip": {"10.0.0.1"}, "port": {strconv.Itoa(port)}, "ephemeral": {"false"}, "healthCheck": {"none"}}
			_, err := call("POST", "a", "/nacos/v1/ns/instance?"+q.Encode())
			return err == nil
		})
		relayEventually(t, "c shows it", func() bool { return shows("c", port) })
		if shows("b", port) && way.out && way.into {
			t.Errorf("%s, and it shows what was written to a", way.what)
		}
		if !shows("b", 1000) {
			t.Errorf("%s, and it does not show what it had", way.what)
		}
		healed := time.Now()
		set(false)
		relayEventually(t, "b shows it after healing", func() bool { return shows("b", port) })
		t.Logf("b shows what was written meanwhile %v after healing", time.Since(healed).Round(10*time.Millisecond))
		good(way.what + ", healed")
	}

	// A bad network is one in which the cluster stays whole.
	for _, from := range names {
		for _, to := range names {
			if from != to {
				must(t, r.Set(from, to, Rule{Loss: 0.02, Delay: 20 * time.Millisecond, Jitter: 5 * time.Millisecond}))
			}
		}
	}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Second) {
		if s := states("a"); s["a"] != "alive" || s["b"] != "alive" || s["c"] != "alive" {
			t.Errorf("with loss and delay a sees %v", s)
		}
	}
	good("with 2 % loss and 20 ms")
	for _, from := range names {
		for _, to := range names {
			if from != to {
				must(t, r.Set(from, to, Rule{}))
			}
		}
	}

	// Killed and started again.
	nodes["b"].Kill()
	must(t, r.Down("b"))
	if _, err := call("GET", "b", "/readyz"); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("asking a node that was killed: %v", err)
	}
	killed := time.Now()
	relayEventually(t, "b is known to be gone", func() bool { return states("a")["b"] == "refused" })
	t.Logf("a sees that b refuses %v after the kill", time.Since(killed).Round(10*time.Millisecond))
	nodes["b"].Start()
	started("b")
	nodes["b"].WaitReady()
	good("after a kill and a start of b")
	for pair, c := range r.Counters() {
		t.Logf("%s %+v", pair, c)
	}
	var usage syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	t.Logf("the relay and this test took %v of CPU", time.Duration(usage.Utime.Nano()+usage.Stime.Nano()))
}
