package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/starling-registry/starling/deploy/chaos/verdict"
)

const (
	// persistent is the service whose instances must outlive everything.
	persistent = "chaos-persistent"
	// persistTimeout is above what a node waits for a leader over HTTP.
	persistTimeout = 12 * time.Second
	writeEvery     = 100 * time.Millisecond
	// keptTimeout is for all nodes to list the same at the end.
	keptTimeout = 15 * time.Second
	// removeTimeout is for all of half an hour.
	removeTimeout = 2 * time.Minute
)

// writePersistent registers persistent instances at nodes that it chooses at
// random, and deregisters every fifth of them later, until the context ends.
// Each address is written by one goroutine at a time; a request that failed is
// not repeated, since whether it was done is not known.
func (s *stage) writePersistent(ctx context.Context, rng *rand.Rand) {
	ticks := time.NewTicker(writeEvery)
	defer ticks.Stop()
	var mine []string // registered, acknowledged, to be deregistered
	for i := 0; ; i++ {
		running := s.cluster.running()
		if len(running) > 0 {
			n := running[rng.IntN(len(running))]
			w := verdict.Write{Address: persistentAddress(i), Node: n.name, FromMs: now()}
			if i%5 == 4 && len(mine) > 0 {
				w.Address, w.Deregister = mine[0], true
				mine = mine[1:]
			}
			s.writers.Go(func() {
				err := s.cluster.api.persist(context.WithoutCancel(ctx), n.http(), persistent, w.Address, w.Deregister)
				w.ToMs, w.Acked = now(), err == nil
				if err != nil {
					w.Error = err.Error()
				}
				s.rec.write(w)
			})
			if !w.Deregister && i%5 == 0 {
				// By then the registration was answered, or has failed for good.
				mine = append(mine, w.Address)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
	}
}

// persistentAddress is one at which nobody listens. Nodes check what is persistent,
// each of its own loopback: without root they would knock at a whole real network.
func persistentAddress(i int) string {
	return fmt.Sprintf("127.77.%d.%d:%d", i/250%250, 1+i%250, 1+i/62500)
}

// removePersistent takes what was written out of servers that go on afterwards,
// also what an earlier run that was killed has left.
func (c *cluster) removePersistent() error {
	ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
	defer cancel()
	running := c.running()
	if len(running) == 0 {
		return fmt.Errorf("%s: no server is there to take its instances out of", persistent)
	}
	server := running[0].http()
	hosts, err := c.api.hosts(ctx, server, persistent)
	if err != nil {
		return err
	}
	errs := make(chan error, len(hosts))
	busy := make(chan struct{}, 8)
	for _, h := range hosts {
		busy <- struct{}{}
		go func() {
			errs <- c.api.persist(ctx, server, persistent, h.address(), true)
			<-busy
		}()
	}
	for range hosts {
		if e := <-errs; err == nil {
			err = e
		}
	}
	if err != nil {
		return fmt.Errorf("%s: not all of its instances were taken out: %w", persistent, err)
	}
	return nil
}

// readKept records what the nodes list of the persistent service in the end:
// when they agree, or cannot in time.
func (s *stage) readKept(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, keptTimeout)
	defer cancel()
	for {
		var list []verdict.Kept
		agree := true
		for _, n := range s.cluster.running() {
			k := verdict.Kept{Node: n.name}
			hosts, err := s.cluster.api.hosts(ctx, n.http(), persistent)
			if err != nil {
				k.Error, agree = err.Error(), false
			}
			for _, h := range hosts {
				k.Addresses = append(k.Addresses, h.address())
			}
			slices.Sort(k.Addresses)
			agree = agree && (len(list) == 0 || slices.Equal(k.Addresses, list[0].Addresses))
			list = append(list, k)
		}
		if agree || sleep(ctx, 500*time.Millisecond) != nil {
			for _, k := range list {
				s.rec.keep(k)
			}
			return
		}
	}
}
