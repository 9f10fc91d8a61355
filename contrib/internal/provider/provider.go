// Package provider is what adapters for frameworks have in common: they register
// by address, without contexts, and have whole numbers as weights.
//
// The invariant: a framework that stops is never kept from it by a registry that
// cannot be reached.
//
// Start reading at Leases.
package provider

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/starling-registry/starling/pkg/client"
)

// DeregisterTimeout is how long a framework that stops waits for a server, which
// notices the end of the process by itself if it hears nothing.
const DeregisterTimeout = 2 * time.Second

// Leases are what a framework has registered. The methods may be called from any
// goroutine.
type Leases struct {
	client *client.Client
	logger *slog.Logger

	mu sync.Mutex
	of map[string]*lease // by service and address
}

// A lease is there from before a server is asked, so that a framework that stops
// meanwhile finds it.
type lease struct {
	cancel context.CancelFunc
	done   chan struct{}
	got    *client.Lease // after done; nil: there is none
}

// NewLeases makes what is empty. The logger nil is slog.Default().
func NewLeases(c *client.Client, logger *slog.Logger) *Leases {
	if logger == nil {
		logger = slog.Default()
	}
	return &Leases{client: c, logger: logger, of: make(map[string]*lease)}
}

// Register publishes an address, host:port. A host that stands for all addresses
// of the machine becomes the one from which the server is reached. The errors are
// those of [client.Client.Register].
func (l *Leases) Register(ctx context.Context, service, addr string, r client.Registration, opts ...client.ServiceOption) error {
	host, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("register %s: %w: address %q: %w", service, client.ErrInvalid, addr, err)
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil || port == 0 {
		return fmt.Errorf("register %s: %w: address %q has no port", service, client.ErrInvalid, addr)
	}
	r.Port = int(port)
	if ip := net.ParseIP(host); host != "" && !ip.IsUnspecified() {
		r.IP = host
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	mine := &lease{cancel: cancel, done: make(chan struct{})}
	defer close(mine.done)
	key := service + " " + addr
	l.mu.Lock()
	l.of[key] = mine
	l.mu.Unlock()

	if r.IP == "" {
		mine.got, err = l.client.RegisterListener(ctx, service, wildcard{port: r.Port}, r, opts...)
	} else {
		mine.got, err = l.client.Register(ctx, service, r, opts...)
	}
	if err != nil {
		l.mu.Lock()
		if l.of[key] == mine {
			delete(l.of, key)
		}
		l.mu.Unlock()
		return fmt.Errorf("register %s at %s: %w", service, addr, err)
	}
	return nil
}

// A wildcard is the address of a listener that the framework has.
type wildcard struct {
	net.Listener // nil
	port         int
}

func (w wildcard) Addr() net.Addr { return &net.TCPAddr{Port: w.port} }

// An Address is what Register was given.
type Address struct{ Service, Addr string }

// Deregister takes addresses away, then waits so long that those who watch have
// heard of it. It is an error only if a server refuses: one that cannot be reached
// takes them away by itself. What was never registered is none.
func (l *Leases) Deregister(ctx context.Context, drain time.Duration, addrs ...Address) error {
	asked, cancel := context.WithTimeout(ctx, DeregisterTimeout)
	defer cancel()
	var errs []error
	told := false
	for _, a := range addrs {
		key := a.Service + " " + a.Addr
		l.mu.Lock()
		gone := l.of[key]
		delete(l.of, key)
		l.mu.Unlock()
		if gone == nil {
			continue
		}
		gone.cancel()
		<-gone.done
		if gone.got == nil {
			continue
		}
		err := gone.got.Deregister(asked)
		if _, refused := errors.AsType[*client.ServerError](err); refused {
			errs = append(errs, err)
		} else if err != nil {
			l.logger.Warn("not deregistered; the server does it by itself", "service", a.Service, "address", a.Addr, "error", err)
		} else {
			select {
			case <-gone.got.Registered():
				told = true
			default: // it was never in a list
			}
		}
	}
	if told && drain > 0 {
		select {
		case <-time.After(drain):
		case <-ctx.Done():
		}
	}
	return errors.Join(errs...)
}

// Usable says whether an instance may get calls.
func Usable(i client.Instance) bool { return i.Healthy && i.Enabled && i.Weight > 0 }

// Weights are those of a list as whole numbers from 1, in proportion: where some
// are fractions, all are times 100 and rounded up.
func Weights(instances []client.Instance) []int {
	times := 1.0
	for _, i := range instances {
		if i.Weight != math.Trunc(i.Weight) {
			times = 100
		}
	}
	ws := make([]int, len(instances))
	for n, i := range instances {
		ws[n] = int(min(max(math.Ceil(i.Weight*times), 1), math.MaxInt32))
	}
	return ws
}
