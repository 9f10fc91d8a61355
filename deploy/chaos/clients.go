package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/starling-registry/starling/deploy/chaos/verdict"
	"github.com/starling-registry/starling/test/compat/drivers"
)

const (
	ownService     = "chaos" // in a cluster that nobody else uses
	connectTimeout = 15 * time.Second
	readEvery      = 150 * time.Millisecond
)

// A cast is the clients of one SDK in one process, which is one group of
// clients in a place of its own.
type cast struct {
	sdk       *drivers.SDK
	end       string // its name in the network
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
	doomedOn    string // the node they are connected to; "" is any
	// spread: subscribers take turns over nodes, else they choose.
	spread bool
}

// share is how many of n go to each SDK: as even as it can be.
func (p *plan) share(n, i int) int {
	return n*(i+1)/len(p.sdks) - n*i/len(p.sdks)
}

// each does something for all SDKs at the same time.
func each(sdks []*drivers.SDK, do func(i int, sdk *drivers.SDK) error) error {
	errs := make([]error, len(sdks))
	var wg sync.WaitGroup
	for i, sdk := range sdks {
		wg.Go(func() {
			if err := do(i, sdk); err != nil {
				errs[i] = fmt.Errorf("%s: %w", sdk.Name, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// cast starts the drivers, connects the clients, registers the providers and
// subscribes. The processes work side by side; within one the clients connect
// one after the other, so that each is known to be on the node its connection
// leads to.
func (s *stage) cast(ctx context.Context, p *plan) error {
	s.lasting = make([]*cast, len(p.sdks))
	// Registered first, and one kind after the other, so that set-up is no storm.
	err := each(p.sdks, func(i int, sdk *drivers.SDK) error {
		var err error
		if s.lasting[i], err = s.startCast(sdk, sdk.Name); err != nil {
			return err
		}
		for n := range p.share(p.providers-p.doomed, i) {
			if err := s.enlist(ctx, s.lasting[i], fmt.Sprintf("%s-%d", sdk.Name, n+1), ""); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil && p.doomed > 0 {
		err = s.castDoomed(ctx, p)
	}
	if err != nil {
		return err
	}
	return each(p.sdks, func(i int, sdk *drivers.SDK) error {
		for n := i; n < p.subscribers; n += len(p.sdks) {
			on := ""
			if all := s.cluster.all(); p.spread {
				on = all[n%len(all)].name
			}
			client, node, err := s.connect(ctx, s.lasting[i], on)
			if err != nil {
				return err
			}
			o := verdict.Observer{Name: fmt.Sprintf("%s-sub-%d", sdk.Name, n+1), SDK: sdk.Name, Group: s.lasting[i].end, Node: node,
				RedoMs: millis(sdk.Redo), PollsMs: millis(sdk.Polls)}
			if node != "" {
				o.Name += "@" + node
			}
			s.rec.addObserver(o)
			if _, err := s.lasting[i].process.Call(drivers.Request{Op: "subscribe", Client: client, Service: s.cluster.service, Subscription: o.Name}); err != nil {
				return err
			}
		}
		return nil
	})
}

// castDoomed starts processes whose providers will die with them. Those of
// before are dead already, or live on.
func (s *stage) castDoomed(ctx context.Context, p *plan) error {
	s.generation++
	doomed := make([]*cast, len(p.sdks))
	err := each(p.sdks, func(i int, sdk *drivers.SDK) error {
		share := p.share(p.doomed, i)
		if share == 0 {
			return nil
		}
		var err error
		if doomed[i], err = s.startCast(sdk, fmt.Sprintf("%s-d%d", sdk.Name, s.generation)); err != nil {
			return err
		}
		for n := range share {
			if err := s.enlist(ctx, doomed[i], fmt.Sprintf("%s-doomed-%d-%d", sdk.Name, s.generation, n+1), p.doomedOn); err != nil {
				return err
			}
		}
		return nil
	})
	s.doomed = slices.DeleteFunc(doomed, func(c *cast) bool { return c == nil })
	return err
}

// startCast starts the process of an SDK at an end of its own.
func (s *stage) startCast(sdk *drivers.SDK, end string) (*cast, error) {
	if err := s.addEnd(end); err != nil {
		return nil, err
	}
	placed := *sdk
	placed.Command = func(dir string) *exec.Cmd {
		c := sdk.Command(dir)
		there := s.network.Command(end, c.Args...)
		there.Dir, there.Env = c.Dir, append(there.Env, c.Env...)
		return there
	}
	process, err := drivers.Start(&placed, filepath.Join(s.dir, end), func(e drivers.Event) error {
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
	s.network.Started(end, process.PID())
	s.mu.Lock()
	s.closing = append(s.closing, process.Kill)
	s.mu.Unlock()
	return &cast{sdk: sdk, end: end, process: process, clients: map[string]string{}}, nil
}

// servers is what an SDK is told: the name, or all addresses.
func (s *stage) servers() string {
	if s.serverName != "" {
		return s.serverName
	}
	return strings.Join(addressesOf(s.cluster.all()), ",")
}

// connect makes a client and returns its name and the node it has chosen, ""
// if that cannot be known. An SDK chooses at random and cannot be told; where a
// certain node is needed, the client is closed and another made until it fits.
func (s *stage) connect(ctx context.Context, c *cast, on string) (client, node string, err error) {
	const tries = 40
	for range tries {
		if ctx.Err() != nil {
			return "", "", context.Cause(ctx)
		}
		before, err := c.process.Connections()
		if err != nil {
			return "", "", err
		}
		client = fmt.Sprintf("client-%d", s.lastClient.Add(1))
		if _, err := c.process.Call(drivers.Request{Op: "connect", Client: client, Server: s.servers(), TimeoutMs: connectTimeout.Milliseconds()}); err != nil {
			return "", "", err
		}
		if c.sdk.Polls > 0 { // it asks any node, each time anew
			return client, "", nil
		}
		if node, err = s.newConnection(c, before); err != nil {
			return "", "", err
		}
		if on == "" || on == node {
			if node != "" {
				c.connected++
			}
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
	after, err := c.process.Connections()
	if err != nil {
		return "", err
	}
	var found []string
	for inode, address := range after {
		if _, old := before[inode]; old {
			continue
		}
		for _, n := range s.cluster.all() {
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
		open, err := c.process.Connections()
		if err != nil {
			continue
		}
		for _, address := range open {
			for _, n := range s.cluster.all() {
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
	p := &verdict.Provider{Name: name, SDK: c.sdk.Name, Group: c.end, Node: node, RedoMs: millis(c.sdk.Redo), Beats: c.sdk.Polls > 0,
		Dialable: s.dialable}
	if p.Address, err = s.address(p.Name, c.end); err != nil {
		return err
	}
	s.rec.addProvider(p)
	c.clients[name] = client
	c.providers = append(c.providers, p)
	if _, err := c.process.Call(drivers.Request{Op: "register", Client: client, Service: s.cluster.service, Instance: instanceAt(p.Address)}); err != nil {
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

// address is where the provider can be dialled: a port at its end that accepts
// while it lives, or one of a node's own loopback where nobody listens.
func (s *stage) address(name, end string) (string, error) {
	if !s.dialable {
		n := s.lastClient.Add(1)
		return fmt.Sprintf("127.78.%d.%d:1", n/250, 1+n%250), nil
	}
	l, err := s.network.Listen(end)
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
	p.Left = true
	s.rec.died(p)
	s.hush(p.Name)
	_, err := c.process.Call(drivers.Request{Op: "deregister", Client: c.clients[p.Name], Service: s.cluster.service, Instance: instanceAt(p.Address)})
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

// addReader adds an observer that asks one node again and again.
func (s *stage) addReader(n *node) {
	o := verdict.Observer{Name: "reader@" + n.name, SDK: "reader", Group: hostEnd, Node: n.name, Reader: true, PollsMs: millis(readEvery)}
	s.rec.addObserver(o)
	s.readers.Go(func() { s.read(s.reading, n, o.Name) })
}

func (s *stage) read(ctx context.Context, n *node, name string) {
	ticks := time.NewTicker(readEvery)
	defer ticks.Stop()
	for {
		hosts, err := s.cluster.api.hosts(ctx, n.http(), s.cluster.service)
		if ctx.Err() != nil {
			return
		}
		s.rec.saw(name, now(), shown(hosts), err != nil)
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
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
		where := "on " + name
		if name == "" {
			where = "on any"
		}
		nodes = append(nodes, fmt.Sprintf("%d %s", on[name], where))
	}
	text := fmt.Sprintf("%d providers (%s; %s)", all, strings.Join(parts, ", "), strings.Join(nodes, ", "))
	if doomed > 0 {
		text += fmt.Sprintf(", %d of them doomed", doomed)
	}
	return text + fmt.Sprintf(", %d observers", s.rec.watching())
}

func millis(d time.Duration) verdict.Millis { return verdict.Millis(d.Milliseconds()) }
