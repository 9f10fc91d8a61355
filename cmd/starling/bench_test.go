package main

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

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
	if len(lines) != len(benchScenarios) {
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
	f(exitUsage, "--server-pid", "push", "--servers", "a:1,b:1", "--server-pid", "1")
	f(exitFailed, "push on 127.0.0.1:1", "push", "--servers", "127.0.0.1:1", "--connections", "1")
}
