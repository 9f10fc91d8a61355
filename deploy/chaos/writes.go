package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-registry/starling/deploy/chaos/verdict"
)

const (
	// persistTimeout is above what a node waits for a leader over HTTP.
	persistTimeout = 12 * time.Second
	writeEvery     = 100 * time.Millisecond
	// removeTimeout is for all of them to be taken back from servers of somebody
	// else, by removers at the same time.
	removeTimeout = 2 * time.Minute
	removers      = 16
	// keptTimeout is for all nodes to list the same at the end.
	keptTimeout = 15 * time.Second
)

// persistent is the service whose instances must outlive everything.
func (c *cluster) persistent() string { return c.service + "-persistent" }

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
				err := s.cluster.api.persist(context.WithoutCancel(ctx), n.http(), s.cluster.persistent(), w.Address, w.Deregister)
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
			hosts, err := s.cluster.api.hosts(ctx, n.http(), s.cluster.persistent())
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

// removeWritten takes back what servers of somebody else would keep for good.
func (s *stage) removeWritten(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	addresses := make(chan string)
	var wg sync.WaitGroup
	var failed atomic.Int64
	for range removers {
		wg.Go(func() {
			for address := range addresses {
				if err := s.removeOne(ctx, address); err != nil {
					failed.Add(1)
				}
			}
		})
	}
	for _, address := range s.rec.written() {
		addresses <- address
	}
	close(addresses)
	wg.Wait()
	if n := failed.Load(); n > 0 {
		return fmt.Errorf("%d persistent instances of the service %s could not be removed again", n, s.cluster.persistent())
	}
	return nil
}

// removeOne asks one node after the other.
func (s *stage) removeOne(ctx context.Context, address string) error {
	err := errors.New("no node runs")
	for _, n := range s.cluster.running() {
		if err = s.cluster.api.persist(ctx, n.http(), s.cluster.persistent(), address, true); err == nil {
			return nil
		}
	}
	return err
}
