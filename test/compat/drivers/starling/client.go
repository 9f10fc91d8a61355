package main

import (
	"cmp"
	"context"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/starling-registry/starling/pkg/client"
	"github.com/starling-registry/starling/test/compat/drivers"
	"github.com/starling-registry/starling/test/compat/drivers/bare"
)

// patience bounds a call. What it asked for is wanted all the same where the
// client says so.
const patience = 15 * time.Second

// A session implements [bare.FullClient].
type session struct {
	c         *client.Client
	namespace string

	mu     sync.Mutex
	leases map[bare.Service][]held
}

// Held is a lease, with the instances that it was made for.
type held struct {
	lease     *client.Lease
	instances []drivers.Instance
}

func connect(ctx context.Context, o bare.Options, dir string) (bare.Client, error) {
	cfg := client.Config{Addrs: o.Servers, Namespace: o.Namespace, CacheDir: "off", FailoverDir: "off"}
	if dir != "" {
		cfg.CacheDir = filepath.Join(dir, "cache")
	}
	c, err := client.New(cfg)
	if err != nil {
		return nil, err
	}
	if err := c.WaitReady(ctx); err != nil {
		_ = c.Close()
		return nil, err
	}
	return &session{c: c, namespace: cmp.Or(o.Namespace, "public"), leases: map[bare.Service][]held{}}, nil
}

func bounded() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), patience)
}

func registration(i drivers.Instance) client.Registration {
	return client.Registration{IP: i.IP, Port: i.Port, Cluster: i.Cluster, Weight: i.Weight, ZeroWeight: i.Weight == 0,
		Metadata: i.Metadata, Disabled: !i.Enabled, Unhealthy: !i.Healthy, Persistent: !i.Ephemeral}
}

func instances(list []client.Instance) []drivers.Instance {
	all := make([]drivers.Instance, 0, len(list))
	for _, i := range list {
		all = append(all, drivers.Instance{IP: i.IP, Port: i.Port, Weight: i.Weight, Healthy: i.Healthy, Enabled: i.Enabled,
			Cluster: i.Cluster, Metadata: i.Metadata, Ephemeral: i.Ephemeral})
	}
	return all
}

func sameAddress(a, b drivers.Instance) bool {
	return a.IP == b.IP && a.Port == b.Port && a.Cluster == b.Cluster
}

func (s *session) Register(service bare.Service, i drivers.Instance) error {
	_, err := s.publish(service, []drivers.Instance{i})
	return err
}

func (s *session) publish(service bare.Service, all []drivers.Instance) (*client.Lease, error) {
	ctx, cancel := bounded()
	defer cancel()
	rs := make([]client.Registration, len(all))
	for k, i := range all {
		rs[k] = registration(i)
	}
	l, err := s.c.RegisterSet(ctx, service.Name, rs, client.Group(service.Group))
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leases[service] = append(s.leases[service], held{l, slices.Clone(all)})
	return l, nil
}

// RegisterBatch publishes the new instances first, so that those that stay are
// there all the time.
func (s *session) RegisterBatch(service bare.Service, all []drivers.Instance) error {
	s.mu.Lock()
	before := s.leases[service]
	s.leases[service] = nil
	s.mu.Unlock()
	if len(all) > 0 {
		if _, err := s.publish(service, all); err != nil {
			return err
		}
	}
	ctx, cancel := bounded()
	defer cancel()
	for _, h := range before {
		if err := h.lease.Deregister(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Deregister ends the newest lease of the instance; earlier ones have no effect
// any more. A persistent one may be of another client, and a lease is what ends
// it.
func (s *session) Deregister(service bare.Service, i drivers.Instance) error {
	var lease *client.Lease
	s.mu.Lock()
	s.leases[service] = slices.DeleteFunc(s.leases[service], func(h held) bool {
		is := len(h.instances) == 1 && sameAddress(h.instances[0], i)
		if is {
			lease = h.lease
		}
		return is
	})
	s.mu.Unlock()
	ctx, cancel := bounded()
	defer cancel()
	if lease == nil {
		if i.Ephemeral {
			return nil // nothing of this client
		}
		var err error
		if lease, err = s.c.Register(ctx, service.Name, registration(i), client.Group(service.Group)); err != nil {
			return err
		}
	}
	return lease.Deregister(ctx)
}

func (s *session) List(service bare.Service, clusters []string) (*bare.Info, error) {
	ctx, cancel := bounded()
	defer cancel()
	list, err := s.c.Snapshot(ctx, service.Name, client.Group(service.Group), client.Clusters(clusters...))
	if err != nil {
		return nil, err
	}
	info := &bare.Info{Name: service.Name, GroupName: service.Group, ReachProtectionThreshold: list.Protected}
	for _, i := range instances(list.Instances) {
		info.Hosts = append(info.Hosts, bare.NewHost(i))
	}
	return info, nil
}

func (s *session) Pick(service bare.Service) (drivers.Instance, error) {
	ctx, cancel := bounded()
	defer cancel()
	i, err := s.c.Pick(ctx, service.Name, client.Group(service.Group))
	if err != nil {
		return drivers.Instance{}, err
	}
	return instances([]client.Instance{i})[0], nil
}

func (s *session) Services(group string, page, size int) ([]string, int, error) {
	ctx, cancel := bounded()
	defer cancel()
	return s.c.Services(ctx, page, size, client.Group(group))
}

func (s *session) Subscribe(service bare.Service, clusters []string, told func([]drivers.Instance)) (func(), error) {
	var mu sync.Mutex // held while told runs
	closed := false
	stop, err := s.c.WatchFunc(context.Background(), service.Name, func(e client.Event) {
		mu.Lock()
		defer mu.Unlock()
		if !closed {
			told(instances(e.Snapshot.Instances))
		}
	}, client.Group(service.Group), client.Clusters(clusters...))
	if err != nil {
		return nil, err
	}
	return func() {
		stop()
		mu.Lock()
		defer mu.Unlock()
		closed = true
	}, nil
}

func (s *session) WatchServices(ctx context.Context, group, pattern string, told func(change string, service bare.Service)) ([]string, func(), error) {
	w, err := s.c.WatchServices(context.Background(), pattern, client.Group(group))
	if err != nil {
		return nil, nil, err
	}
	first, err := w.Next(ctx)
	if err != nil {
		w.Close()
		return nil, nil, err
	}
	known := make([]string, 0, len(first.Services))
	for _, id := range first.Services {
		known = append(known, s.namespace+"@@"+id.String())
		told("ADD_SERVICE", bare.Service(id))
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			e, err := w.Next(context.Background())
			if err != nil {
				return
			}
			for _, id := range e.Added {
				told("ADD_SERVICE", bare.Service(id))
			}
			for _, id := range e.Removed {
				told("DELETE_SERVICE", bare.Service(id))
			}
		}
	}()
	return known, func() { w.Close(); <-ended }, nil
}

// Close deregisters what is registered: that is how this client ends.
func (s *session) Close() { _ = s.c.Close() }
