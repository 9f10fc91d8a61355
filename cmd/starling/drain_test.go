package main

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/starling-registry/starling/pkg/api"
)

var aPlan = api.DrainPlan{Clients: 200, Instances: 1, Targets: []api.DrainTarget{{Node: idB, Name: "node-b", Clients: 199}, {Node: idC, Clients: 1}}, Seconds: 6.5}

func drainOf(state, step string, left int) api.Drain {
	return api.Drain{Node: idA, Name: "node-a", State: state, Step: step, Plan: aPlan, ClientsLeft: left, InstancesLeft: left}
}

func TestDrain(t *testing.T) {
	a := newAPINode(t)
	a.answers["POST /drain"] = drainOf(api.DrainPlanned, "", 200)
	plan := []string{"node-a has 200 clients with 1 instance.", "  199 clients to node-b", "  1 client to c3333333", "It takes about 6.5s."}
	status, stdout, stderr := starling(nil, "drain", "--dry-run", "--server", a.addr)
	if status != exitOK || stderr != "" {
		t.Errorf("status %d: %s", status, stderr)
	}
	want(t, "plan", stdout, nil, plan...)
	if d := cmp.Diff([]string{`POST /drain {"dryRun":true}`}, a.asked); d != "" {
		t.Error(d)
	}

	a.answers["POST /drain"] = drainOf(api.DrainDone, "", 0)
	status, stdout, _ = starling(nil, "drain", "--server", a.addr)
	if status != exitOK {
		t.Errorf("status %d", status)
	}
	want(t, "done", stdout, nil, append(plan, "drained: the node may be stopped")...)
	if last := a.asked[len(a.asked)-1]; last != `POST /drain {"dryRun":false}` {
		t.Error(last)
	}

	d := drainOf(api.DrainFailed, "", 3)
	d.Plan.Targets, d.Error = nil, "no other node\x1b is ready"
	a.answers["POST /drain"] = d
	status, stdout, stderr = starling(nil, "drain", "--server", a.addr)
	if status != exitFailed || stderr != "starling: the node is not drained: no other node\\x1b is ready\n" {
		t.Errorf("status %d: %s", status, stderr)
	}
	want(t, "failed", stdout, nil, "node-a has 200 clients with 1 instance.",
		"No other node is ready, so nobody is moved: what they have registered goes when the node stops.", "not drained, 3 clients with 3 instances left")
	status, stdout, _ = starling(nil, "drain", "--server", a.addr, "--json")
	var back api.Drain
	if err := json.Unmarshal([]byte(stdout), &back); err != nil || status != exitFailed || back.State != api.DrainFailed || strings.Count(stdout, "\n") != 1 {
		t.Errorf("status %d, %v: %s", status, err, stdout)
	}
	status, stdout, _ = starling(nil, "drain", "--server", a.addr, "--json", "--dry-run")
	if err := json.Unmarshal([]byte(stdout), &back); err != nil || status != exitOK {
		t.Errorf("status %d, %v: %s", status, err, stdout)
	}
}

func TestWatchDrain(t *testing.T) {
	gone := &api.Error{Code: api.CodeCannotReach, Message: "gone"}
	running := func(step string, left int) any { return drainOf(api.DrainRunning, step, left) }
	done := drainOf(api.DrainDone, "", 0)
	f := func(name, outcome string, took time.Duration, said []string, answers ...any) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var lines []string
				first := drainOf(api.DrainRunning, "moving clients", 200)
				i := 0
				err := watchDrain(t.Context(), &first, func(context.Context) (*api.Drain, error) {
					a := answers[min(i, len(answers)-1)] // the last one for ever
					i++
					if err, ok := a.(*api.Error); ok {
						return nil, err
					}
					d := a.(api.Drain)
					return &d, nil
				}, func(d *api.Drain) { lines = append(lines, drainLine(d)) })
				got := "drained"
				if err != nil {
					got = err.Error()
				}
				if got != outcome || time.Since(start) != took {
					t.Errorf("%s after %v, want %s after %v", got, time.Since(start), outcome, took)
				}
				if d := cmp.Diff(said, lines); d != "" {
					t.Errorf("said (-want +got):\n%s", d)
				}
			})
		})
	}
	const moving = "moving clients: 200 clients with 200 instances left"
	const drained = "drained: the node may be stopped"
	f("step by step", "drained", 4*drainPoll, []string{moving, "moving clients: 1 client with 1 instance left", "waiting for peers: 0 clients with 0 instances left", drained},
		running("moving clients", 200), running("moving clients", 1), running("waiting for peers", 0), done)
	f("deaf for a moment", "drained", 4*drainPoll, []string{moving, drained}, gone, gone, gone, done)
	f("gone too early", "the node did not end to drain before it stopped answering: gone", drainSilence, []string{moving}, gone)
	f("gone when empty", "drained", 2*drainPoll, []string{moving, "leaving: 0 clients with 0 instances left", "the node has stopped: 0 clients with 0 instances left"}, running("leaving", 0), gone)
	f("refused", "the node did not end to drain before it stopped answering: no", drainPoll, []string{moving}, &api.Error{Code: api.CodeInternal, Message: "no"})
	f("started anew", "the node does not drain any more: was it started anew?", drainPoll, []string{moving, "draining: 0 clients with 0 instances left"}, drainOf(api.DrainNone, "", 0))
	f("never over", "it is still not over after 1m13s; starling cluster --server shows whether the other nodes can be reached", 73500*time.Millisecond, []string{moving}, running("moving clients", 200))
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("interrupted"))
		defer cancel()
		d := drainOf(api.DrainRunning, "", 1)
		if err := watchDrain(ctx, &d, func(context.Context) (*api.Drain, error) { return &d, nil }, func(*api.Drain) {}); err == nil || err.Error() != "interrupted" {
			t.Error(err)
		}
	})
}
