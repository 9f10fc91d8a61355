package check

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

const systemdDir = "../systemd"

// unitSettings are the lines KEY=VALUE of the unit; the last one of a key counts.
func unitSettings(t *testing.T) map[string]string {
	t.Helper()
	b, err := os.ReadFile(systemdDir + "/starling.service")
	if err != nil {
		t.Fatal(err)
	}
	u := map[string]string{}
	for line := range strings.Lines(string(b)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
			u[key] = value
		}
	}
	return u
}

func TestUnit(t *testing.T) {
	u := unitSettings(t)
	// The settings of its file, from where it will be: what that refers to is named
	// in the same way by the README.
	dir := t.TempDir()
	example, err := os.ReadFile(systemdDir + "/starling.yaml")
	if err != nil {
		t.Fatal(err)
	}
	// All that is commented out must be right, too.
	all := regexp.MustCompile(`(?m)^# ?(advertise: )`).ReplaceAll(example, []byte("$1"))
	config := filepath.Join(dir, "starling.yaml")
	if err := os.WriteFile(config, all, 0o600); err != nil {
		t.Fatal(err)
	}
	bin, args, _ := strings.Cut(u["ExecStart"], " ")
	line := strings.Fields(strings.ReplaceAll(args, "/etc/starling/starling.yaml", config))
	out := checkSettings(t, container{args: line})
	wantLine(t, out, "expect: 3 # "+config)
	wantLine(t, out, "advertise: 10.0.0.1 # "+config)
	wantLine(t, out, "data-dir: /var/lib/"+u["StateDirectory"]+" # "+config)

	// The stop: systemd must not kill what drains. 10 s is what may follow a drain.
	stop, err := strconv.Atoi(u["TimeoutStopSec"])
	if err != nil {
		t.Fatal(err)
	}
	drain := regexp.MustCompile(`(?m)^drain-timeout: (\S+)`).FindStringSubmatch(out)
	d, err := time.ParseDuration(drain[1])
	if err != nil || time.Duration(stop)*time.Second < d+10*time.Second {
		t.Errorf("killed after %d s, drains for %v (%v)", stop, d, err)
	}
	post := strings.Fields(strings.TrimPrefix(u["ExecStartPost"], "-"))
	if post[0] != bin || !strings.HasPrefix(u["ExecStartPost"], "-") {
		t.Errorf("ExecStartPost=%s", u["ExecStartPost"])
	}
	if out, err := exec.Command(binary(t), append(post[1:], "--help")...).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	within, err := time.ParseDuration(post[len(post)-1])
	start, _ := strconv.Atoi(u["TimeoutStartSec"])
	if err != nil || time.Duration(start)*time.Second <= within+10*time.Second {
		t.Errorf("the start times out after %d s, before %s are over", start, post)
	}
	// A full disk (1) may pass, wrong settings (2) do not.
	if u["Restart"] != "on-failure" || u["RestartPreventExitStatus"] != "2" || u["StartLimitIntervalSec"] != "0" {
		t.Errorf("restarts: %q", u)
	}
	if n, err := strconv.Atoi(u["LimitNOFILE"]); err != nil || n < 2*50000+1000 {
		t.Errorf("%d files are not enough for --max-connections on two ports", n)
	}

	env, err := os.ReadFile(systemdDir + "/starling.env")
	if err != nil {
		t.Fatal(err)
	}
	given := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^#?([A-Z_]+)=(.*)$`).FindAllStringSubmatch(string(env), -1) {
		given[m[1]] = m[2]
	}
	if len(given) == 0 {
		t.Error("no variables in starling.env")
	}
	checkSettings(t, container{args: line, env: given})
	users, err := os.ReadFile(systemdDir + "/sysusers.conf")
	if err != nil || !bytes.Contains(users, []byte("\nu "+u["User"]+" ")) {
		t.Errorf("sysusers.conf makes no %s: %v", u["User"], err)
	}
}

// maxExposure is the score of systemd-analyze security, from 0 to 10: what a service
// with a network needs is 1.3 of it.
const maxExposure = "15" // tenths

func TestUnitBySystemd(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip("not run for lack of systemd-analyze; to install: apt-get install systemd")
	}
	// A root with what the unit names, so that "no such file" is an error, too.
	dir := t.TempDir()
	for _, d := range []string{"etc/systemd/system", "usr/local/bin", "etc/starling"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	unit, err := os.ReadFile(systemdDir + "/starling.service")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "usr/local/bin/starling")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "starling.service")
	if err := os.WriteFile(file, bytes.ReplaceAll(unit, []byte("/usr/local/bin/starling"), []byte(program)), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(analyze, "verify", "--man=no", file).CombinedOutput()
	if err != nil || len(bytes.TrimSpace(out)) > 0 {
		t.Errorf("verify: %v\n%s", err, out)
	}
	out, err = exec.Command(analyze, "security", "--offline=true", "--threshold="+maxExposure, file).CombinedOutput()
	if err != nil {
		t.Errorf("security: %v\n%s", err, out)
	}
	t.Log(strings.TrimSpace(string(out[max(0, bytes.LastIndexByte(bytes.TrimSpace(out), '\n')):])))

	sysusers, err := exec.LookPath("systemd-sysusers")
	if err != nil {
		t.Log("there is no systemd-sysusers")
		return
	}
	conf, err := filepath.Abs(systemdDir + "/sysusers.conf")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(sysusers, "--dry-run", "--root="+t.TempDir(), conf).CombinedOutput(); err != nil {
		t.Errorf("sysusers: %v\n%s", err, out)
	}
}
