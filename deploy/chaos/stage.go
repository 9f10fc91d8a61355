package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-registry/starling/deploy/chaos/verdict"
	"github.com/starling-registry/starling/test/compat/drivers"
)

const (
	service        = "failover"
	connectTimeout = 15 * time.Second
	readEvery      = 150 * time.Millisecond
	// setUpTimeout is for everybody to see everybody, on a machine that may have
	// more to do.
	setUpTimeout = time.Minute
	// fenceTimeout is for a change after all is over to reach everybody.
	fenceTimeout = 10 * time.Second
)

// A stage is where one scenario plays: a cluster of its own, drivers of all
// SDKs with providers and subscribers, and the recorder.
type stage struct {
	cluster *cluster
	network *network // of scenarios that cut links
	rec     *recorder
	out     io.Writer
	dir     string
	// dialable: the addresses of providers accept connections while they live.
	dialable bool
	started  time.Time // the nodes

	lasting, doomed []*cast // doomed ones die with their processes

	mu        sync.Mutex
	listeners map[string]net.Listener // by provider
	closing   []func()

	readers     sync.WaitGroup
	stopReaders context.CancelFunc
	lastClient  atomic.Int64
	faults      []string // what went wrong beside what observers saw
	notes       []string
}

// A cast is the clients of one SDK in one process.
type cast struct {
	sdk       *drivers.SDK
	process   *drivers.Process
	providers []*verdict.Provider
	clients   map[string]string // that registered a provider, by its name
	connected int               // clients that are
}

// A plan says how many play which part.
type plan struct {
	sdks        []*drivers.SDK
	providers   int
	subscribers int
	doomed      int    // of the providers
	doomedOn    string // the node they are connected to
}

// share is how many of n go to each SDK: as even as it can be.
func (p *plan) share(n, i int) int {
	return n*(i+1)/len(p.sdks) - n*i/len(p.sdks)
}

func (s *stage) say(format string, args ...any) {
	fmt.Fprintf(s.out, "   "+format+"\n", args...)
}

// act announces what is done now, with its time.
func (s *stage) act(format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	s.rec.mark(what)
	fmt.Fprintf(s.out, "%8v   %s\n", s.rec.since(), what)
}

func (s *stage) fault(format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	s.faults = append(s.faults, what)
	fmt.Fprintf(s.out, "%8v   FAULT: %s\n", s.rec.since(), what)
}

func (s *stage) note(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
	s.say("%s", s.notes[len(s.notes)-1])
}

// setUp starts the nodes, connects and registers everybody, and returns when
// every observer sees every provider.
func (s *stage) setUp(ctx context.Context, p *plan) error {
	start := time.Now()
	s.started = start
	for _, n := range s.cluster.nodes {
		if err := n.start(); err != nil {
			return err
		}
	}
	for _, n := range s.cluster.nodes {
		if err := n.waitReady(ctx); err != nil {
			return err
		}
	}
	s.say("nodes: %s ready after %.1f s", s.cluster.servers(), time.Since(start).Seconds())
	if len(s.cluster.nodes) > 1 && !s.cluster.joined {
		s.note("this binary makes no clusters: the nodes do not know each other")
	}

	start = time.Now()
	if err := s.cast(ctx, p); err != nil {
		return err
	}
	ctxReaders, cancel := context.WithCancel(ctx)
	s.stopReaders = cancel
	for _, n := range s.cluster.nodes {
		o := verdict.Observer{Name: "http@" + n.name, SDK: "http", Node: n.name}
		s.rec.addObserver(o)
		s.readers.Go(func() { s.read(ctxReaders, n, o.Name) })
	}
	if err := s.wait(ctx, setUpTimeout, func(now state) bool { return len(now.lacking) == 0 }); err != nil {
		now, _ := s.rec.state()
		return fmt.Errorf("not everybody sees everybody, %w: %s", err, &now)
	}
	s.say("clients: %s; ready after %.1f s", s.population(), time.Since(start).Seconds())
	return nil
}

// cast starts the drivers, connects the clients, registers the providers and
// subscribes. The processes work side by side; within one the clients connect
// one after the other, so that each is known to be on the node its connection
// leads to.
func (s *stage) cast(ctx context.Context, p *plan) error {
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	each := func(do func(i int, sdk *drivers.SDK) error) error {
		for i, sdk := range p.sdks {
			wg.Go(func() {
				if err := do(i, sdk); err != nil {
					mu.Lock()
					errs = append(errs, fmt.Errorf("%s: %w", sdk.Name, err))
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		return errors.Join(errs...)
	}
	s.lasting = make([]*cast, len(p.sdks))
	if p.doomed > 0 {
		s.doomed = make([]*cast, len(p.sdks))
	}
	// Registered first, and one kind after the other, so that set-up is no storm.
	err := each(func(i int, sdk *drivers.SDK) error {
		var err error
		if s.lasting[i], err = s.startCast(sdk, "lasting"); err != nil {
			return err
		}
		for n := range p.share(p.providers-p.doomed, i) {
			if err := s.enlist(ctx, s.lasting[i], fmt.Sprintf("%s-%d", sdk.Name, n+1), ""); err != nil {
				return err
			}
		}
		if p.doomed == 0 {
			return nil
		}
		if s.doomed[i], err = s.startCast(sdk, "doomed"); err != nil {
			return err
		}
		for n := range p.share(p.doomed, i) {
			if err := s.enlist(ctx, s.doomed[i], fmt.Sprintf("%s-doomed-%d", sdk.Name, n+1), p.doomedOn); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	// Subscribers take turns over SDKs and nodes.
	return each(func(i int, sdk *drivers.SDK) error {
		for n := i; n < p.subscribers; n += len(p.sdks) {
			on := s.cluster.nodes[n%len(s.cluster.nodes)].name
			client, node, err := s.connect(ctx, s.lasting[i], on)
			if err != nil {
				return err
			}
			o := verdict.Observer{Name: fmt.Sprintf("%s-sub-%d@%s", sdk.Name, n+1, node), SDK: sdk.Name, Node: node}
			s.rec.addObserver(o)
			if _, err := s.lasting[i].process.Call(drivers.Request{Op: "subscribe", Client: client, Service: service, Subscription: o.Name}); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *stage) startCast(sdk *drivers.SDK, kind string) (*cast, error) {
	process, err := drivers.Start(sdk, filepath.Join(s.dir, sdk.Name+"-"+kind), func(e drivers.Event) error {
		if e.Event != "push" {
			return fmt.Errorf("unexpected event %+v", e)
		}
		var addresses []string
		for _, h := range e.Hosts {
			if h.Healthy && h.Enabled {
				addresses = append(addresses, net.JoinHostPort(h.IP, strconv.Itoa(h.Port)))
			}
		}
		s.rec.saw(e.Subscription, verdict.Millis(e.TimeMs), addresses, false)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if process.Version != sdk.Version {
		process.Kill()
		return nil, fmt.Errorf("the driver runs version %s of the SDK, want %s", process.Version, sdk.Version)
	}
	s.mu.Lock()
	s.closing = append(s.closing, process.Kill)
	s.mu.Unlock()
	return &cast{sdk: sdk, process: process, clients: map[string]string{}}, nil
}

// connect makes a client and returns its name and the node it has chosen. An
// SDK chooses at random and cannot be told; where a certain node is needed, the
// client is closed and another made until it fits.
func (s *stage) connect(ctx context.Context, c *cast, on string) (client, node string, err error) {
	const tries = 40
	for range tries {
		if ctx.Err() != nil {
			return "", "", context.Cause(ctx)
		}
		before, err := connections(c.process.PID())
		if err != nil {
			return "", "", err
		}
		client = fmt.Sprintf("client-%d", s.lastClient.Add(1))
		if _, err := c.process.Call(drivers.Request{Op: "connect", Client: client, Server: s.cluster.servers(), TimeoutMs: connectTimeout.Milliseconds()}); err != nil {
			return "", "", err
		}
		if node, err = s.newConnection(c, before); err != nil {
			return "", "", err
		}
		if node != "" && (on == "" || on == node) {
			c.connected++
			return client, node, nil
		}
		if _, err := c.process.Call(drivers.Request{Op: "close", Client: client}); err != nil {
			return "", "", err
		}
	}
	return "", "", fmt.Errorf("no client chose node %s in %d tries", on, tries)
}

// newConnection is the node that the process has a connection to which it had
// not before; "" if there is not exactly one.
func (s *stage) newConnection(c *cast, before map[string]string) (string, error) {
	after, err := connections(c.process.PID())
	if err != nil {
		return "", err
	}
	var found []string
	for inode, address := range after {
		if _, old := before[inode]; old {
			continue
		}
		for _, n := range s.cluster.nodes {
			if n.grpc() == address {
				found = append(found, n.name)
			}
		}
	}
	if len(found) != 1 {
		return "", nil
	}
	return found[0], nil
}

// connectedClients counts the connections of all lasting clients.
func (s *stage) connectedClients() (connected, all int) {
	for _, c := range s.lasting {
		all += c.connected
		open, err := connections(c.process.PID())
		if err != nil {
			continue
		}
		for _, address := range open {
			for _, n := range s.cluster.nodes {
				if n.grpc() == address {
					connected++
				}
			}
		}
	}
	return connected, all
}

// enlist connects a client and registers one provider by it.
func (s *stage) enlist(ctx context.Context, c *cast, name, on string) error {
	client, node, err := s.connect(ctx, c, on)
	if err != nil {
		return err
	}
	p := &verdict.Provider{Name: name, SDK: c.sdk.Name, Node: node}
	if p.Address, err = s.address(p.Name); err != nil {
		return err
	}
	s.rec.addProvider(p)
	c.clients[name] = client
	c.providers = append(c.providers, p)
	if _, err := c.process.Call(drivers.Request{Op: "register", Client: client, Service: service, Instance: instanceAt(p.Address)}); err != nil {
		return err
	}
	s.rec.up(p)
	return nil
}

func instanceAt(address string) *drivers.Instance {
	ip, port, _ := net.SplitHostPort(address)
	number, _ := strconv.Atoi(port)
	i := drivers.NewInstance(ip, number)
	return &i
}

// address is where the provider can be dialled: a port that accepts while it
// lives, or one of a network for documentation, which leads nowhere.
func (s *stage) address(name string) (string, error) {
	if !s.dialable {
		n := s.lastClient.Add(1)
		return fmt.Sprintf("192.0.2.%d:%d", 1+n%250, 8080+n/250), nil
	}
	host := "127.0.0.1"
	if s.network != nil {
		host = s.network.host()
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listeners == nil {
		s.listeners = map[string]net.Listener{}
	}
	s.listeners[name] = l
	go func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	return l.Addr().String(), nil
}

// hush closes the port of a provider that is dead.
func (s *stage) hush(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.listeners[name]; l != nil {
		l.Close()
	}
}

// killDoomed kills the processes of the doomed providers, and with them what
// listens at their addresses.
func (s *stage) killDoomed() {
	var wg sync.WaitGroup
	for _, c := range s.doomed {
		s.rec.died(c.providers...)
		for _, p := range c.providers {
			s.hush(p.Name)
		}
		wg.Go(c.process.Kill)
	}
	wg.Wait()
}

// deregister ends a lasting provider politely.
func (s *stage) deregister(c *cast, p *verdict.Provider) error {
	s.rec.died(p)
	s.hush(p.Name)
	_, err := c.process.Call(drivers.Request{Op: "deregister", Client: c.clients[p.Name], Service: service, Instance: instanceAt(p.Address)})
	return err
}

// lastingOn finds a provider that lives and is on the node.
func (s *stage) lastingOn(node string) (*cast, *verdict.Provider) {
	for _, c := range s.lasting {
		for _, p := range c.providers {
			if p.Node == node && p.DiedMs == nil {
				return c, p
			}
		}
	}
	return nil, nil
}

// read is a client that asks one node again and again.
func (s *stage) read(ctx context.Context, n *node, name string) {
	ticks := time.NewTicker(readEvery)
	defer ticks.Stop()
	for {
		hosts, err := n.list(ctx, service)
		if ctx.Err() != nil {
			return
		}
		var addresses []string
		for _, h := range hosts {
			if h.Healthy && h.Enabled {
				addresses = append(addresses, net.JoinHostPort(h.IP, strconv.Itoa(h.Port)))
			}
		}
		s.rec.saw(name, now(), addresses, err != nil)
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
	}
}

// wait returns when the condition holds, or says for how long it did not.
func (s *stage) wait(ctx context.Context, limit time.Duration, holds func(state) bool) error {
	timeout := time.After(limit)
	for {
		now, changed := s.rec.state()
		if holds(now) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timeout:
			return fmt.Errorf("after %v", limit)
		}
	}
}

// watch lets the time pass and says what observers see whenever that changes.
func (s *stage) watch(ctx context.Context, d time.Duration) error {
	end := time.After(d)
	ticks := time.NewTicker(500 * time.Millisecond)
	defer ticks.Stop()
	said := ""
	for {
		now, _ := s.rec.state()
		if text := now.String(); text != said {
			fmt.Fprintf(s.out, "%8v   %s\n", s.rec.since(), text)
			said = text
		}
		select {
		case <-end:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticks.C:
		}
	}
}

// restart starts a node again and returns when it is ready.
func (s *stage) restart(ctx context.Context, n *node) error {
	if err := n.start(); err != nil {
		return err
	}
	start := time.Now()
	if err := n.waitReady(ctx); err != nil {
		return err
	}
	s.act("%s is ready again, %.1f s after its start", n.name, time.Since(start).Seconds())
	return nil
}

// fence ends a scenario: a registration after all is over must reach every
// subscriber, so none has been forgotten. What is said of it does not count as
// views any more.
func (s *stage) fence(ctx context.Context) {
	c := s.lasting[0]
	if err := s.enlist(ctx, c, "fence", ""); err != nil {
		s.fault("a provider could not register at the end: %v", err)
		return
	}
	if err := s.wait(ctx, fenceTimeout, func(now state) bool { return now.missing == 0 }); err != nil {
		now, _ := s.rec.state()
		s.fault("a provider that registered at the end is not seen by all %v: %s", err, &now)
	}
}

// check looks whether the nodes that should run do.
func (s *stage) check(ctx context.Context) {
	for _, n := range s.cluster.nodes {
		switch {
		case !n.up.Load():
		case !n.running():
			s.fault("node %s ended by itself (%v), see %s", n.name, n.cmd.ProcessState, n.log())
		default:
			if err := n.waitReady(ctx); err != nil {
				s.fault("%v", err)
			}
		}
	}
}

func (s *stage) population() string {
	counts, on := map[string]int{}, map[string]int{}
	doomed := 0
	for _, c := range slices.Concat(s.lasting, s.doomed) {
		counts[c.sdk.Name+" "+c.sdk.Version] += len(c.providers)
		for _, p := range c.providers {
			on[p.Node]++
		}
	}
	for _, c := range s.doomed {
		doomed += len(c.providers)
	}
	var parts, nodes []string
	all := 0
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s: %d", name, counts[name]))
		all += counts[name]
	}
	for _, name := range slices.Sorted(maps.Keys(on)) {
		nodes = append(nodes, fmt.Sprintf("%d on %s", on[name], name))
	}
	text := fmt.Sprintf("%d providers (%s; %s)", all, strings.Join(parts, ", "), strings.Join(nodes, ", "))
	if doomed > 0 {
		text += fmt.Sprintf(", %d of them doomed", doomed)
	}
	return text + fmt.Sprintf(", %d subscribers, %d readers", len(s.rec.observers)-len(s.cluster.nodes), len(s.cluster.nodes))
}

// close ends everything of the stage.
func (s *stage) close() {
	if s.stopReaders != nil {
		s.stopReaders()
	}
	s.readers.Wait()
	var wg sync.WaitGroup
	for _, end := range s.closing {
		wg.Go(end)
	}
	wg.Wait()
	for _, l := range s.listeners {
		l.Close()
	}
	s.cluster.close()
}
