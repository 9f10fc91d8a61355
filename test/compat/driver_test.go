package compat

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/starling-registry/starling/test/compat/drivers"
)

const (
	connectTimeout = 15 * time.Second
	// patience is how long a condition may take to become true. A push is due well within a second;
	// the rest is for a busy machine.
	patience = 10 * time.Second
)

// A driver is one process that holds an SDK, which the scenarios that kill a provider do not share
// with others.
type driver struct {
	*drivers.Process
	sdk *sdk

	mu            sync.Mutex
	subscriptions map[string]*subscription
	watches       map[string]*watch
}

type (
	request  = drivers.Request
	response = drivers.Response
)

// startDriver starts a process of the SDK. What the SDK writes goes below dir.
func startDriver(sdk *sdk, dir string) (*driver, error) {
	d := &driver{sdk: sdk, subscriptions: map[string]*subscription{}, watches: map[string]*watch{}}
	starting <- struct{}{}
	defer func() { <-starting }()
	var err error
	d.Process, err = drivers.Start(sdk.SDK, dir, d.receive)
	return d, err
}

// receive hands an event to whoever listens for it.
func (d *driver) receive(e drivers.Event) error {
	d.mu.Lock()
	sub, watch := d.subscriptions[e.Subscription], d.watches[e.Subscription]
	d.mu.Unlock()
	switch {
	case e.Event == "push" && sub != nil:
		sub.called(e.Hosts)
	case e.Event == "change" && watch != nil:
		watch.called(e.Change, service{e.Group, e.Service})
	default:
		return fmt.Errorf("unexpected event %+v", e)
	}
	return nil
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
		case <-d.Ended: // killed by the scenario
		default:
			if _, err := d.Call(request{Op: "close", Client: c.id}); err != nil {
				t.Error(err)
			}
		}
	})
	return c
}

func (c *client) call(r request) response {
	c.t.Helper()
	r.Client, r.Namespace = c.id, c.namespace
	res, err := c.driver.Call(r)
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

// refused says why the SDK did not register the instance.
func (c *client) refused(s service, i instance) string {
	c.t.Helper()
	_, err := c.driver.Call(request{Op: "register", Client: c.id, Namespace: c.namespace, Group: s.group, Service: s.name, Instance: &i})
	if err == nil {
		c.t.Fatalf("the SDK registered %v with %v", i, s)
	}
	return err.Error()
}

// protected says whether the service has no more healthy instances than its threshold asks for.
func (c *client) protected(s service) bool {
	c.t.Helper()
	return c.call(request{Op: "protected", Group: s.group, Service: s.name}).Protected
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
	// An SDK that asks for changes may answer from what it was told last.
	ok := eventually(patience+c.driver.sdk.Polls, func() bool {
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

// forget drops the calls so far: what is asked of the listener from here on is about later ones.
func (w *subscription) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = nil
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
	limit += w.client.driver.sdk.Polls
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
		if !slices.ContainsFunc(hosts, i.Equal) {
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
			if slices.ContainsFunc(hosts, i.Equal) {
				w.client.t.Errorf("call %d of the listener of %s%v reports %v", n+1, w.service.name, w.clusters, i)
			}
		}
	}
}
