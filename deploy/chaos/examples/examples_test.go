// Package examples holds scripts by which the chaos program controls servers
// that it has not started: see README.md of the folder above. It has no code
// but this test of them.
//
// Those for processes are tried with real servers, the others with programs
// that write down how they are called.
package examples

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestShellcheck(t *testing.T) {
	if _, err := exec.LookPath("shellcheck"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	if out, err := exec.Command("shellcheck", scripts(t)...).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func scripts(t *testing.T) []string {
	t.Helper()
	list, err := filepath.Glob("control-*.sh")
	if err != nil || len(list) != 4 {
		t.Fatalf("there are the scripts %v (%v)", list, err)
	}
	return list
}

func TestUsage(t *testing.T) {
	for _, script := range scripts(t) {
		t.Setenv("CONTROL_DIR", t.TempDir())
		if status, out := run(t, script, "--help"); status != 0 || !strings.HasPrefix(out, "usage: "+script) {
			t.Errorf("%s --help ends with %d and says %s", script, status, out)
		}
		for _, args := range [][]string{{"kill"}, {"kill", "127.0.0.1"}} {
			if status, out := run(t, script, args...); status != 2 || !strings.Contains(out, "usage:") {
				t.Errorf("%s %v ends with %d and says %s", script, args, status, out)
			}
		}
	}
}

// run returns the status and what was said, to whichever output.
func run(t *testing.T, script string, args ...string) (int, string) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "./"+script, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		t.Fatalf("%s %v: %v", script, args, err)
	}
	return cmd.ProcessState.ExitCode(), out.String()
}

// do runs what must succeed.
func do(t *testing.T, script string, args ...string) {
	t.Helper()
	if status, out := run(t, script, args...); status != 0 {
		t.Fatalf("%s %v ends with %d: %s", script, args, status, out)
	}
}

func TestProcesses(t *testing.T) {
	const script = "control-processes.sh"
	bin := os.Getenv("STARLING_BIN")
	if bin == "" {
		bin = "../../../bin/starling"
	}
	bin, err := filepath.Abs(bin)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(bin); err != nil {
		t.Skipf("no server (%v): make build", err)
	}
	dir := t.TempDir()
	nodes := freeNodes(t)
	t.Setenv("CONTROL_DIR", dir)
	t.Setenv("CONTROL_START", bin+" serve --port $PORT --bind $HOST\n  --data-dir $CONTROL_DIR/$PORT --expect 3 --join "+strings.Join(nodes, ","))
	t.Cleanup(func() {
		for _, n := range nodes {
			if pid, err := os.ReadFile(filepath.Join(dir, n+".pid")); err == nil {
				_ = exec.Command("kill", "-KILL", strings.TrimSpace(string(pid))).Run() // gone already is well
			}
		}
	})
	for _, n := range nodes {
		do(t, script, "start", n)
	}
	for _, n := range nodes {
		wait(t, n, "ready", func() bool { return ready(n) == nil })
	}

	b := nodes[1]
	do(t, script, "kill", b)
	if err := ready(b); err == nil {
		t.Error("a node that was killed is ready")
	}
	if status, out := run(t, script, "kill", b); status != 1 || !strings.Contains(out, "does not run") {
		t.Errorf("killed twice: %d, %s", status, out)
	}
	do(t, script, "start", b)
	if status, out := run(t, script, "start", b); status != 1 || !strings.Contains(out, "runs already") {
		t.Errorf("started twice: %d, %s", status, out)
	}
	wait(t, b, "ready", func() bool { return ready(b) == nil })

	do(t, script, "stop", b)
	if err := ready(b); err == nil {
		t.Error("a node that is frozen answers")
	}
	do(t, script, "continue", b)
	wait(t, b, "ready", func() bool { return ready(b) == nil })

	do(t, script, "stop", b)
	do(t, script, "kill", b)
	do(t, script, "start", b)
	for _, n := range nodes {
		do(t, script, "terminate", n)
	}
	if status, out := run(t, script, "stop", "127.0.0.1:1"); status != 1 || !strings.Contains(out, "no process id") {
		t.Errorf("an unknown node: %d, %s", status, out)
	}
	t.Setenv("CONTROL_START", "false")
	if status, out := run(t, script, "start", b); status != 1 || !strings.Contains(out, "ended at once") {
		t.Errorf("a command that fails: %d, %s", status, out)
	}
}

func ready(node string) error {
	web := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := web.Get("http://" + node + "/readyz")
	if err != nil {
		return err
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return errors.New(res.Status)
	}
	return nil
}

func wait(t *testing.T, node, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			log, _ := os.ReadFile(filepath.Join(os.Getenv("CONTROL_DIR"), node+".log"))
			t.Fatalf("%s is not %s; its log:\n%s", node, what, log)
		}
	}
}

// freeNodes are three addresses of which all five ports are free, below those that the kernel gives
// to connections.
func freeNodes(t *testing.T) []string {
	t.Helper()
	for range 200 {
		base := 20000 + rand.IntN(8000)
		var list []string
		for p := base; p < base+30; p += 10 { // these and the four that follow from each do not collide
			free := true
			for _, q := range []int{p, p + 1000, p + 1001, p - 1000, p - 902} {
				l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(q))
				if err != nil {
					free = false
					break
				}
				l.Close()
			}
			if free {
				list = append(list, fmt.Sprintf("127.0.0.1:%d", p))
			}
		}
		if len(list) == 3 {
			return list
		}
	}
	t.Fatal("found no free ports")
	return nil
}

// recorder is a program that writes down its arguments, one a line, and fails with status 3.
const recorder = `#!/usr/bin/env bash
printf '%s\n' "$@" >"$RECORD"
exit 3
`

func TestCommands(t *testing.T) {
	dir := t.TempDir()
	program, record := filepath.Join(dir, "program"), filepath.Join(dir, "record")
	if err := os.WriteFile(program, []byte(recorder), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("RECORD", record)
	t.Setenv("CONTROL_SSH", program+" -q")
	t.Setenv("KUBECTL", program+" --context=test")
	t.Setenv("CONTROL_UNIT", "starling@PORT")
	for _, test := range []struct{ script, action, node, want string }{
		{"control-systemd.sh", "kill", "10.0.0.1:8848",
			"-q 10.0.0.1 sudo -n systemctl kill --signal=KILL starling@8848 && sudo -n systemctl stop starling@8848"},
		{"control-systemd.sh", "stop", "node-b:8858", "-q node-b sudo -n systemctl kill --signal=STOP starling@8858"},
		{"control-systemd.sh", "continue", "[fd00::1]:8848", "-q fd00::1 sudo -n systemctl kill --signal=CONT starling@8848"},
		{"control-systemd.sh", "terminate", "10.0.0.1:8848", "-q 10.0.0.1 sudo -n systemctl stop starling@8848"},
		{"control-systemd.sh", "start", "10.0.0.1:8848",
			"-q 10.0.0.1 sudo -n systemctl reset-failed starling@8848; sudo -n systemctl start starling@8848"},
		{"control-kubernetes.sh", "kill", "starling-0.starling:8848", "--context=test delete pod starling-0 --grace-period=0 --force"},
		{"control-kubernetes.sh", "terminate", "starling-1.starling.default.svc:8848",
			"--context=test delete pod starling-1 --wait --timeout=120s"},
		{"control-kubernetes.sh", "stop", "starling-0:8848",
			"--context=test debug starling-0 --quiet --stdin --image=busybox --profile=general -- sh -c kill -STOP $(pidof starling)"},
		{"control-kubernetes.sh", "continue", "starling-0:8848",
			"--context=test debug starling-0 --quiet --stdin --image=busybox --profile=general -- sh -c kill -CONT $(pidof starling)"},
	} {
		status, out := run(t, test.script, test.action, test.node)
		got, _ := os.ReadFile(record)
		if status != 3 || strings.Join(strings.Split(strings.TrimSpace(string(got)), "\n"), " ") != test.want {
			t.Errorf("%s %s %s ends with %d, says %s and calls\n%s, not\n%s", test.script, test.action, test.node, status, out, got, test.want)
		}
	}
	t.Setenv("CONTROL_WAIT", "2")
	t.Setenv("CONTROL_NAMESPACE", "discovery")
	if status, out := run(t, "control-kubernetes.sh", "start", "starling-0:8848"); status != 1 || !strings.Contains(out, "not ready after 2 s") {
		t.Errorf("a pod that does not become ready: %d, %s", status, out)
	}
	got, _ := os.ReadFile(record)
	if got := strings.Join(strings.Fields(string(got)), " "); !strings.HasPrefix(got, "--context=test --namespace discovery wait pod starling-0 --for=condition=Ready --timeout=") {
		t.Errorf("start calls %s", got)
	}
}
