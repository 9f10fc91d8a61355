package main

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/starling-registry/starling/pkg/client"
)

// client makes a client as applications have, connected, for what is measured as
// an application sees it.
//
// All other scenarios go through bare connections ([benchRun.dial]). They compare
// servers, also with one that does nothing but gRPC (make bench): what a client
// spends on its lists, and the pause before it comes back, would be in each figure
// and make them look alike, and on one machine be taken from the servers.
func (r *benchRun) client(ctx context.Context, addr string) (*client.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c, err := client.New(client.Config{Addrs: []string{addr}, CacheDir: "off", FailoverDir: "off", PollInterval: -1},
		client.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.clients = append(r.clients, c)
	r.mu.Unlock()
	return c, c.WaitReady(ctx)
}

// marked is the metadata of the change with that mark.
func marked(mark int) map[string]string {
	return map[string]string{"seq": fmt.Sprintf("%0*d", benchDigits, mark), "zone": "a"}
}

// markOfEvent is the mark in a list that a client is told, 0 if there is none.
func markOfEvent(e client.Event) int {
	for _, i := range e.Snapshot.Instances {
		if n, err := strconv.Atoi(i.Metadata["seq"]); err == nil {
			return n
		}
	}
	return 0
}

// benchClientPush is benchPush between applications.
func benchClientPush(ctx context.Context, r *benchRun) error {
	type pair struct {
		lease   *client.Lease
		arrived chan int // marks
	}
	pairs := make([]pair, r.connections)
	err := each(ctx, len(pairs), r.concurrency, func(i int) error {
		service := "client-push-" + strconv.Itoa(i)
		arrived := make(chan int, 64)
		pairs[i].arrived = arrived
		sub, err := r.client(ctx, r.subscribeServer)
		if err != nil {
			return err
		}
		if _, err := sub.WatchFunc(ctx, service, func(e client.Event) {
			select {
			case arrived <- markOfEvent(e):
			default: // nobody waits for events beyond these
			}
		}, client.Group(benchGroup)); err != nil {
			return err
		}
		provider, err := r.client(ctx, r.server)
		if err != nil {
			return err
		}
		pairs[i].lease, err = provider.Register(ctx, service, client.Registration{IP: hostAddress(i), Port: 8080, Metadata: marked(0)}, client.Group(benchGroup))
		return err
	})
	if err != nil {
		return err
	}
	// As in benchPush, whose figures these stand beside.
	if !sleep(ctx, time.Second) {
		return context.Cause(ctx)
	}
	stopLoad, err := r.background(ctx)
	if err != nil {
		return err
	}
	defer stopLoad()
	r.say(fmt.Sprintf("measuring for %v", r.duration))
	return r.measure(func() error {
		ending, cancel := context.WithTimeout(ctx, r.duration)
		defer cancel()
		var wg sync.WaitGroup
		for _, p := range pairs {
			wg.Go(func() {
				for n := 1; sleep(ending, 150*time.Millisecond+rand.N(50*time.Millisecond)); n++ {
					start := time.Now()
					if err := p.lease.Update(ctx, func(r *client.Registration) { r.Metadata = marked(n) }); err != nil {
						r.fail(1, err)
						return
					}
					for late, mark := time.After(pushPatience), 0; mark != n; {
						select {
						case mark = <-p.arrived:
						case <-late:
							r.fail(1, fmt.Errorf("a change has not arrived within %v", pushPatience))
							return
						case <-ctx.Done():
							return
						}
					}
					r.record(time.Since(start))
				}
			})
		}
		wg.Wait()
		return nil
	})
}
