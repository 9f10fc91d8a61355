package compat

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// What a fuzzy watch reports about a service.
const (
	added   = "ADD_SERVICE"
	removed = "DELETE_SERVICE"
)

// A watch follows which services there are, by patterns of their group and name.
type watch struct {
	client   *client
	id       string
	patterns service

	mu      sync.Mutex
	present map[service]bool
	calls   []string
	changed chan struct{} // closed, and replaced, at each call
	fault   string        // the first call that tells what was already known
}

// watch starts to follow the services whose group and name match. The second result is what the SDK
// says is there once it knows all of it.
func (c *client) watch(group, name string) (*watch, []service) {
	c.t.Helper()
	w := &watch{client: c, patterns: service{group, name}, present: map[service]bool{}, changed: make(chan struct{}),
		id: fmt.Sprintf("watch-%d", lastName.Add(1))}
	c.driver.mu.Lock()
	c.driver.watches[w.id] = w
	c.driver.mu.Unlock()
	res := c.call(request{Op: "watchServices", Group: group, Service: name, Subscription: w.id,
		TimeoutMs: connectTimeout.Milliseconds()})
	var there []service
	for _, key := range res.Services {
		parts := strings.SplitN(key, "@@", 3) // namespace, group, service
		if len(parts) != 3 {
			c.t.Fatalf("the SDK lists a service as %q", key)
		}
		there = append(there, service{parts[1], parts[2]})
	}
	return w, there
}

func (w *watch) cancel() {
	w.client.t.Helper()
	w.client.call(request{Op: "unwatchServices", Group: w.patterns.group, Service: w.patterns.name, Subscription: w.id})
}

func (w *watch) called(change string, s service) {
	w.mu.Lock()
	defer w.mu.Unlock()
	call := fmt.Sprintf("%s %s@@%s", change, s.group, s.name)
	w.calls = append(w.calls, call)
	known := w.present[s]
	switch {
	case change == added && !known:
		w.present[s] = true
	case change == removed && known:
		delete(w.present, s)
	case w.fault == "":
		w.fault = call
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

// count is how often the watcher has been called.
func (w *watch) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.calls)
}

// wait waits until the calls of the watcher add up to exactly these services. Each call must tell
// something new.
func (w *watch) wait(want ...service) {
	w.client.t.Helper()
	w.waitFor(patience, want...)
}

func (w *watch) waitFor(limit time.Duration, want ...service) {
	w.client.t.Helper()
	timeout := time.After(limit)
	for {
		w.mu.Lock()
		changed, fault := w.changed, w.fault
		got := slices.Collect(maps.Keys(w.present))
		w.mu.Unlock()
		if fault != "" {
			w.client.t.Fatalf("the watcher of %v was told again %s; its calls:%s", w.patterns, fault, w.history())
		}
		if sameServices(got, want) {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			w.client.t.Fatalf("the watcher of %v knows %v after %v, want %v; its calls:%s", w.patterns, got, limit, want, w.history())
		}
	}
}

// history lists the calls for a failure message.
func (w *watch) history() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return "\n\t" + strings.Join(w.calls, "\n\t")
}

func sameServices(a, b []service) bool {
	byName := func(x, y service) int {
		return strings.Compare(x.group+"@@"+x.name, y.group+"@@"+y.name)
	}
	return slices.Equal(slices.SortedFunc(slices.Values(a), byName), slices.SortedFunc(slices.Values(b), byName))
}
