package client

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// deregisterFor is how long Shutdown waits for servers to accept that what was
// registered has gone.
const deregisterFor = 2 * time.Second

// Shutdown ends the client (L-13): no new calls; what it has registered is
// deregistered, so that those who watch hear of it at once, for which it waits up
// to 2 s; then the connection is closed, watchers end, files are written, and all
// goroutines have ended. Persistent instances stay. The context bounds all of it:
// its error means that something still runs, such as a function of WatchFunc that
// does not return. It may be called more than once, by any goroutine but those that
// call back; all calls wait for the first.
func (c *Client) Shutdown(ctx context.Context) error {
	c.shutdown.Do(func() {
		c.mu.Lock()
		c.closing = true
		c.mu.Unlock()
		go func() { // ends when all others have
			c.deregisterAll(ctx)
			c.end()
			c.closeWatchers()
			err := c.disk.close(ctx)
			c.mu.Lock()
			c.stopped = true
			c.mu.Unlock()
			c.wg.Wait()
			c.metrics.State(Closed, "")
			c.endErr = err
			close(c.ended)
		}()
	})
	select {
	case <-c.ended:
		return c.endErr
	case <-ctx.Done():
		c.end() // nothing is waited for any more
		select {
		case <-c.ended:
			return c.endErr
		default:
		}
		return fmt.Errorf("the client has not ended completely: %w", context.Cause(ctx))
	}
}

// Close is Shutdown within 3 s.
func (c *Client) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	return c.Shutdown(ctx)
}

// closeWatchers takes them off the contexts that they were made with.
func (c *Client) closeWatchers() {
	c.services.each(func(e *svc) {
		e.mu.Lock()
		watchers := slices.Clone(e.watchers)
		e.mu.Unlock()
		for _, w := range watchers {
			w.Close()
		}
	})
	c.fuzzy.mu.Lock()
	var watchers []*ServiceWatcher
	for _, f := range c.fuzzy.all {
		f.mu.Lock()
		watchers = append(watchers, f.watchers...)
		f.mu.Unlock()
	}
	c.fuzzy.mu.Unlock()
	for _, w := range watchers {
		w.Close()
	}
}

func (c *Client) deregisterAll(ctx context.Context) {
	if c.link.session() == nil {
		return // with the connection the servers have lost it already
	}
	ctx, cancel := context.WithTimeout(ctx, deregisterFor)
	defer cancel()
	c.pubsMu.Lock()
	var wg sync.WaitGroup
	for _, p := range c.pubs {
		p.mu.Lock()
		leases := map[*Lease]bool{}
		for _, m := range p.members {
			leases[m.lease] = true
		}
		p.mu.Unlock()
		if len(leases) == 0 {
			continue
		}
		var version uint64
		for l := range leases {
			if l.end() {
				version = max(version, p.remove(l))
			}
		}
		wg.Go(func() {
			if err := p.wait(ctx, version); err != nil {
				c.log.Warn("no server has confirmed the deregistration", "service", p.id, "error", err)
			}
		})
	}
	c.pubsMu.Unlock()
	wg.Wait()
}

// ExportSnapshot writes the lists that the client has into a directory, which it
// makes, one file for each service in the form of the cache: they are what a
// failover directory takes (F-6).
func (c *Client) ExportSnapshot(dir string) error {
	lists := map[ServiceID]stored{}
	c.services.each(func(e *svc) {
		if l := e.list.Load(); l != nil {
			lists[e.id] = l.stored()
		}
	})
	return writeSnapshot(dir, lists)
}
