package compat

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	// callTimeout is above what any SDK allows itself for one call, retries included, so that a
	// slow call fails with the SDK's own message.
	callTimeout    = 40 * time.Second
	connectTimeout = 15 * time.Second
	// patience is how long a condition may take to become true. A push is due well within a second;
	// the rest is for a busy machine.
	patience = 10 * time.Second
)

// A driver is one process that holds an SDK. Its clients share nothing but the process, which the
// scenarios that kill a provider do not share with others.
type driver struct {
	sdk     *sdk
	version string   // of the SDK, as the process reports it
	lacks   []string // operations that the SDK does not have, likewise
	cmd     *exec.Cmd
	stderr  string        // path of its log
	ended   chan struct{} // closed when its output has ended
	endErr  error         // why; read it after ended is closed

	inMu sync.Mutex
	in   io.WriteCloser

	mu            sync.Mutex
	lastID        int
	waiting       map[int]chan response
	subscriptions map[string]*subscription
	watches       map[string]*watch
}

type request struct {
	ID        int    `json:"id"`
	Op        string `json:"op"`
	Client    string `json:"client"`
	Server    string `json:"server,omitempty"`
	Namespace string `json:"namespace"`
	TimeoutMs int64  `json:"timeoutMs,omitempty"`

	Service      string     `json:"service,omitempty"`
	Group        string     `json:"group,omitempty"`
	Clusters     []string   `json:"clusters,omitempty"`
	Instance     *instance  `json:"instance,omitempty"`
	Instances    []instance `json:"instances,omitempty"`
	Remaining    []instance `json:"remaining,omitempty"`
	Subscription string     `json:"subscription,omitempty"`
	Page         int        `json:"page,omitempty"`
	Size         int        `json:"size,omitempty"`
}

type response struct {
	ID       int        `json:"id"`
	OK       bool       `json:"ok"`
	Error    string     `json:"error"`
	Hosts    []instance `json:"hosts"`
	Services []string   `json:"services"`
	Count    int        `json:"count"`
}

// A message is a line from a driver: the response to a request, or an event.
type message struct {
	response
	Event        string   `json:"event"`
	Version      string   `json:"version"`
	Lacks        []string `json:"lacks"`
	Subscription string   `json:"subscription"`
	Change       string   `json:"change"`
	Group        string   `json:"group"`
	Service      string   `json:"service"`
}

// startDriver starts a process of the SDK. What the SDK writes goes below dir.
func startDriver(sdk *sdk, dir string) (*driver, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	stderr, err := os.Create(filepath.Join(dir, "driver.log"))
	if err != nil {
		return nil, err
	}
	defer stderr.Close() // the process has its own handle
	d := &driver{
		sdk:           sdk,
		cmd:           sdk.command(dir),
		stderr:        stderr.Name(),
		ended:         make(chan struct{}),
		waiting:       map[int]chan response{},
		subscriptions: map[string]*subscription{},
		watches:       map[string]*watch{},
	}
	d.cmd.Stderr = stderr
	if d.in, err = d.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the %s driver: %w", sdk.name, err)
	}
	hello := make(chan message, 1)
	go d.read(out, hello)
	select {
	case m := <-hello:
		d.version, d.lacks = m.Version, m.Lacks
		return d, nil
	case <-d.ended:
		return nil, fmt.Errorf("the %s driver ended at once: %w", sdk.name, d.endErr)
	case <-time.After(callTimeout):
		d.kill()
		return nil, fmt.Errorf("the %s driver said nothing for %v, see %s", sdk.name, callTimeout, d.stderr)
	}
}

// read hands what the process says to whoever waits for it, until its output ends.
func (d *driver) read(out io.Reader, hello chan<- message) {
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		if err == nil {
			err = d.receive(line, hello)
		}
		if err != nil {
			d.cmd.Process.Kill() // also after a line that is none of ours; harmless after the end
			d.cmd.Wait()
			d.endErr = fmt.Errorf("%w (%v), see %s", err, d.cmd.ProcessState, d.stderr)
			close(d.ended)
			return
		}
	}
}

func (d *driver) receive(line []byte, hello chan<- message) error {
	var m message
	if err := json.Unmarshal(line, &m); err != nil {
		return fmt.Errorf("reading %q: %w", bytes.TrimSpace(line), err)
	}
	d.mu.Lock()
	waiting, sub, watch := d.waiting[m.ID], d.subscriptions[m.Subscription], d.watches[m.Subscription]
	delete(d.waiting, m.ID)
	d.mu.Unlock()
	switch {
	case m.Event == "hello":
		hello <- m
	case m.Event == "push" && sub != nil:
		sub.called(m.Hosts)
	case m.Event == "change" && watch != nil:
		watch.called(m.Change, service{m.Group, m.Service})
	case m.Event == "" && waiting != nil:
		waiting <- m.response
	case m.Event != "" || m.ID == 0:
		return fmt.Errorf("unexpected line %q", bytes.TrimSpace(line))
	}
	return nil
}

// call does one operation. Its error is the SDK's, or says that the process is gone.
func (d *driver) call(r request) (response, error) {
	answer := make(chan response, 1)
	d.mu.Lock()
	d.lastID++
	r.ID = d.lastID
	d.waiting[r.ID] = answer
	d.mu.Unlock()

	line, err := json.Marshal(r)
	if err != nil {
		return response{}, err
	}
	d.inMu.Lock()
	_, err = d.in.Write(append(line, '\n'))
	d.inMu.Unlock()
	if err != nil {
		return response{}, fmt.Errorf("%s: writing to the %s driver: %w, see %s", r.Op, d.sdk.name, err, d.stderr)
	}
	select {
	case res := <-answer:
		if !res.OK {
			return res, fmt.Errorf("%s: %s", r.Op, res.Error)
		}
		return res, nil
	case <-d.ended:
		return response{}, fmt.Errorf("%s: the %s driver is gone: %w", r.Op, d.sdk.name, d.endErr)
	case <-time.After(callTimeout):
		return response{}, fmt.Errorf("%s: no answer from the %s driver after %v, see %s", r.Op, d.sdk.name, callTimeout, d.stderr)
	}
}

// close ends the process by ending its input.
func (d *driver) close() error {
	d.in.Close()
	select {
	case <-d.ended:
	case <-time.After(10 * time.Second):
		d.kill()
		return fmt.Errorf("the %s driver did not end with its input, see %s", d.sdk.name, d.stderr)
	}
	if !d.cmd.ProcessState.Success() {
		return fmt.Errorf("the %s driver ended badly: %w", d.sdk.name, d.endErr)
	}
	return nil
}

// kill ends the process as "kill -9" does and returns when it is gone.
func (d *driver) kill() {
	d.cmd.Process.Kill()
	<-d.ended
}

// A service as an application names it; no group means the default one.
type service struct{ group, name string }

// A client is one naming client of an SDK. Its methods fail the test when the SDK reports an error.
type client struct {
	t         testing.TB
	driver    *driver
	id        string
	namespace string
}

// lastName numbers clients and subscriptions over all drivers, which makes logs easy to search.
var lastName atomic.Int64

// connect returns a client that is connected to the server, and closes it when the test ends.
func (d *driver) connect(t testing.TB, server, namespace string) *client {
	t.Helper()
	c := &client{t: t, driver: d, namespace: namespace, id: fmt.Sprintf("client-%d", lastName.Add(1))}
	c.call(request{Op: "connect", Server: server, TimeoutMs: connectTimeout.Milliseconds()})
	t.Cleanup(func() {
		select {
		case <-d.ended: // killed by the scenario
		default:
			if _, err := d.call(request{Op: "close", Client: c.id}); err != nil {
				t.Error(err)
			}
		}
	})
	return c
}

func (c *client) call(r request) response {
	c.t.Helper()
	r.Client, r.Namespace = c.id, c.namespace
	res, err := c.driver.call(r)
	if err != nil {
		c.t.Fatal(err)
	}
	return res
}

func (c *client) register(s service, i instance) {
	c.t.Helper()
	c.call(request{Op: "register", Group: s.group, Service: s.name, Instance: &i})
}

// update changes the attributes of the instance that this client has registered.
func (c *client) update(s service, i instance) {
	c.t.Helper()
	c.call(request{Op: "update", Group: s.group, Service: s.name, Instance: &i})
}

func (c *client) deregister(s service, i instance) {
	c.t.Helper()
	c.call(request{Op: "deregister", Group: s.group, Service: s.name, Instance: &i})
}

func (c *client) registerBatch(s service, batch ...instance) {
	c.t.Helper()
	c.call(request{Op: "batchRegister", Group: s.group, Service: s.name, Instances: batch})
}

// removeFromBatch removes one instance of a registered batch. It names those that remain as well,
// for SDKs without a call for it.
func (c *client) removeFromBatch(s service, removed instance, remaining ...instance) {
	c.t.Helper()
	c.call(request{Op: "batchRemove", Group: s.group, Service: s.name,
		Instances: []instance{removed}, Remaining: remaining})
}

// list asks the SDK for all instances of the service, or of some of its clusters.
func (c *client) list(s service, clusters ...string) []instance {
	c.t.Helper()
	return c.call(request{Op: "list", Group: s.group, Service: s.name, Clusters: clusters}).Hosts
}

func (c *client) selectHealthy(s service) instance {
	c.t.Helper()
	hosts := c.call(request{Op: "selectHealthy", Group: s.group, Service: s.name}).Hosts
	if len(hosts) != 1 {
		c.t.Fatalf("selecting one healthy instance of %v gave %s", s, describe(hosts))
	}
	return hosts[0]
}

// services lists one page of the names of the group, and says how many there are on all pages.
func (c *client) services(group string, page, size int) (names []string, count int) {
	c.t.Helper()
	res := c.call(request{Op: "services", Group: group, Page: page, Size: size})
	return res.Services, res.Count
}

// waitList waits until the SDK lists exactly these instances.
func (c *client) waitList(s service, want ...instance) {
	c.t.Helper()
	c.waitCluster(s, nil, want...)
}

// waitCluster waits until the SDK lists exactly these instances for the clusters.
func (c *client) waitCluster(s service, clusters []string, want ...instance) {
	c.t.Helper()
	var got []instance
	ok := eventually(patience, func() bool {
		got = c.list(s, clusters...)
		return sameInstances(got, want)
	})
	if !ok {
		c.t.Fatalf("%s%v lists %s, want %s", s.name, clusters, describe(got), describe(want))
	}
}

// eventually tries until the condition holds or the time is over.
func eventually(limit time.Duration, holds func() bool) bool {
	for deadline := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
		if holds() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

// A subscription records the calls of one listener.
type subscription struct {
	client   *client
	id       string
	service  service
	clusters []string

	mu      sync.Mutex
	calls   [][]instance
	changed chan struct{} // closed, and replaced, at each call
}

// subscribe adds a listener to the service, or to some of its clusters.
func (c *client) subscribe(s service, clusters ...string) *subscription {
	c.t.Helper()
	w := &subscription{client: c, service: s, clusters: clusters, changed: make(chan struct{}),
		id: fmt.Sprintf("subscription-%d", lastName.Add(1))}
	c.driver.mu.Lock()
	c.driver.subscriptions[w.id] = w
	c.driver.mu.Unlock()
	c.call(request{Op: "subscribe", Group: s.group, Service: s.name, Clusters: clusters, Subscription: w.id})
	return w
}

func (w *subscription) unsubscribe() {
	w.client.t.Helper()
	w.client.call(request{Op: "unsubscribe", Group: w.service.group, Service: w.service.name,
		Clusters: w.clusters, Subscription: w.id})
}

func (w *subscription) called(hosts []instance) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, hosts)
	close(w.changed)
	w.changed = make(chan struct{})
}

// count is how often the listener has been called.
func (w *subscription) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.calls)
}

// wait waits until the listener's latest call reported exactly these instances.
func (w *subscription) wait(want ...instance) {
	w.client.t.Helper()
	w.waitFor(patience, want...)
}

func (w *subscription) waitFor(limit time.Duration, want ...instance) {
	w.client.t.Helper()
	limit += w.client.driver.sdk.polls
	timeout := time.After(limit)
	for {
		w.mu.Lock()
		changed, calls := w.changed, w.calls
		w.mu.Unlock()
		if n := len(calls); n > 0 && sameInstances(calls[n-1], want) {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			w.client.t.Fatalf("the listener of %s%v has not heard of %s after %v; its calls:%s",
				w.service.name, w.clusters, describe(want), limit, w.history())
		}
	}
}

// history lists the calls for a failure message.
func (w *subscription) history() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var b strings.Builder
	for n, hosts := range w.calls {
		fmt.Fprintf(&b, "\n\t%d: %s", n+1, describe(hosts))
	}
	return b.String()
}

// alwaysHeardOf fails the test if a call of the listener so far has not reported the instance.
func (w *subscription) alwaysHeardOf(i instance) {
	w.client.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for n, hosts := range w.calls {
		if !slices.ContainsFunc(hosts, i.equal) {
			w.client.t.Errorf("call %d of the listener of %s%v reports %s, not %v", n+1, w.service.name, w.clusters, describe(hosts), i)
		}
	}
}

// neverHeardOf fails the test if a call of the listener so far has reported one of the instances.
func (w *subscription) neverHeardOf(unwanted ...instance) {
	w.client.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for n, hosts := range w.calls {
		for _, i := range unwanted {
			if slices.ContainsFunc(hosts, i.equal) {
				w.client.t.Errorf("call %d of the listener of %s%v reports %v", n+1, w.service.name, w.clusters, i)
			}
		}
	}
}
