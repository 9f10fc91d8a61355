package provider

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/starling-registry/starling/pkg/client"
)

func TestWeights(t *testing.T) {
	f := func(want []int, weights ...float64) {
		t.Helper()
		var is []client.Instance
		for _, w := range weights {
			is = append(is, client.Instance{Weight: w})
		}
		if got := Weights(is); !slices.Equal(got, want) {
			t.Errorf("%v: %v, not %v", weights, got, want)
		}
	}
	f([]int{})
	f([]int{1, 3, 10000}, 1, 3, 10000)
	f([]int{100, 50}, 1, 0.5)
	f([]int{1, 300}, 0.001, 3)     // rounded up, not to none
	f([]int{334, 1000}, 3.333, 10) // in proportion
	f([]int{1}, 0)
	f([]int{math.MaxInt32}, math.Inf(1))
}

func unreachable(t *testing.T) (*client.Client, *Leases) {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	c, err := client.New(client.Config{Addrs: []string{"127.0.0.1:1"}, CacheDir: "off", FailoverDir: "off"}, client.WithLogger(quiet))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, NewLeases(c, quiet)
}

func TestBadAddresses(t *testing.T) {
	_, l := unreachable(t)
	for _, addr := range []string{"", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:70000", "127.0.0.1:http", ":0", "/tmp/socket"} {
		if err := l.Register(t.Context(), "order", addr, client.Registration{}); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("%q: %v", addr, err)
		}
	}
	if len(l.of) != 0 {
		t.Errorf("%d leases of what was refused", len(l.of))
	}
}

// Who stops before a server has answered neither waits for it, nor is registered
// after all.
func TestDeregisterWhileRegistering(t *testing.T) {
	_, l := unreachable(t)
	for _, addr := range []string{"10.0.0.1:80", ":80"} {
		registered := make(chan error, 1)
		go func() { registered <- l.Register(context.Background(), "order", addr, client.Registration{}) }()
		for waits := false; !waits; time.Sleep(time.Millisecond) {
			l.mu.Lock()
			waits = len(l.of) == 1
			l.mu.Unlock()
		}
		start := time.Now()
		if err := l.Deregister(t.Context(), time.Minute, Address{"order", addr}); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("%s: took %v", addr, took)
		}
		select {
		case err := <-registered:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", addr, err)
			}
		case <-time.After(5 * time.Second):
			t.Fatalf("%s: still registers", addr)
		}
	}
}

// The registry is away: that is no reason not to stop.
func TestDeregisterUnreachable(t *testing.T) {
	_, l := unreachable(t)
	if err := l.Register(t.Context(), "order", "10.0.0.1:80", client.Registration{}, client.Async()); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := l.Deregister(t.Context(), time.Minute, Address{"order", "10.0.0.1:80"}, Address{"order", "never"}); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > DeregisterTimeout+3*time.Second {
		t.Errorf("took %v", took)
	}
}
