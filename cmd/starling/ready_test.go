package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/starling-registry/starling/pkg/api"
)

func TestReady(t *testing.T) {
	a := newAPINode(t)
	check := func(wantStatus int, wantOut, wantErr string, args ...string) {
		t.Helper()
		status, stdout, stderr := starling([]string{"STARLING_SERVER=" + a.addr}, append([]string{"ready"}, args...)...)
		stderr = strings.ReplaceAll(stderr, a.addr, "A")
		if status != wantStatus || stdout != wantOut || stderr != wantErr {
			t.Errorf("ready %v: status %d, %q, %q", args, status, stdout, stderr)
		}
	}
	a.answers["GET /livez"] = map[string]string{"status": "alive"}
	a.answers["GET /readyz"] = map[string]string{"status": "ready"}
	check(exitOK, "ready\n", "")
	check(exitOK, "alive\n", "", "--live")
	check(exitOK, "{\n  \"status\": \"ready\"\n}\n", "", "--json")

	// A node that catches up lives.
	a.answers["GET /readyz"] = &api.Error{Status: 503, Code: api.CodeNotReady, Message: "waiting for \x1bnode-b", Hint: "use another"}
	check(exitFailed, "", "starling: A is not ready: waiting for \\x1bnode-b (use another)\n")
	check(exitOK, "alive\n", "", "--live")

	asked := 0
	a.answers["GET /readyz"] = func() any {
		if asked++; asked < 3 {
			return &api.Error{Status: 503, Code: api.CodeNotReady, Message: "waiting"}
		}
		return map[string]string{"status": "ready"}
	}
	check(exitOK, "ready\n", "", "--within", "30s")
	if asked != 3 {
		t.Errorf("asked %d times", asked)
	}

	// What answers 200 without being a node is not ready.
	a.answers["GET /readyz"] = map[string]string{"status": "UP"}
	check(exitFailed, "", "starling: A answers /readyz, but not as a node of Starling does (is it the HTTP port of a Starling node?)\n")
	check(exitUsage, "", "starling: --within must not be negative\nSee 'starling ready --help'.\n", "--within", "-1s")
	if status, _, stderr := starling(nil, "ready", "--server", "127.0.0.1:1"); status != exitFailed || !strings.Contains(stderr, "refuses the connection") {
		t.Errorf("status %d: %s", status, stderr)
	}
}

// Asking ends when the time is over, with the reason, and when nobody waits.
func TestAskUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		no := errors.New("no")
		start, asked := time.Now(), 0
		err := askUntil(t.Context(), time.Second, func(context.Context) error { asked++; return no })
		if took := time.Since(start); err != no || asked != 6 || took != time.Second {
			t.Errorf("%v after %v and %d questions", err, took, asked)
		}
		ctx, cancel := context.WithCancel(t.Context())
		if err := askUntil(ctx, time.Hour, func(context.Context) error { cancel(); return no }); err != no {
			t.Error(err)
		}
		// A node that is paused accepts and does not answer.
		start = time.Now()
		err = askUntil(t.Context(), 0, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		if took := time.Since(start); err == nil || took != readyTimeout {
			t.Errorf("%v after %v", err, took)
		}
	})
}
