package bare

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/starling-registry/starling/test/compat/drivers"
)

// A Client is one naming client. Its methods may be called from any goroutine.
type Client interface {
	// Register publishes the instance, in place of what this client has published under its
	// address. An ephemeral one is kept until it is deregistered or the client is closed.
	Register(s Service, i drivers.Instance) error
	// RegisterBatch publishes the instances in place of all that this client has published with the
	// service. It is not called if the driver lacks it.
	RegisterBatch(s Service, all []drivers.Instance) error
	Deregister(s Service, i drivers.Instance) error
	// List asks the server. No clusters are all.
	List(s Service, clusters []string) (*Info, error)
	// Services is a page of the names of a group's services, and how many there are.
	Services(group string, page, size int) ([]string, int, error)
	// Subscribe calls told with what there is and then with each change, one at a time. It is not
	// called any more when cancel returns.
	Subscribe(s Service, clusters []string, told func([]drivers.Instance)) (cancel func(), err error)
	// Close returns when nothing of the client runs any more. What it has published is deregistered,
	// or left to its fate.
	Close()
}

// A FullClient has of its own what a [Client] leaves to this package, or lacks.
type FullClient interface {
	Client
	// Pick is one healthy instance, the client's own choice.
	Pick(s Service) (drivers.Instance, error)
	// WatchServices calls told with each service that matches and is there, then returns their keys
	// (namespace@@group@@service) and calls it with each change, one at a time. It is not called any
	// more when cancel returns.
	WatchServices(ctx context.Context, group, pattern string, told func(change string, s Service)) (keys []string, cancel func(), err error)
}

// A Service is named as servers do; its group is never empty.
type Service struct{ Group, Name string }

// Grouped is how the protocols write a service in one word.
func (s Service) Grouped() string { return s.Group + "@@" + s.Name }

// Options of a client.
type Options struct {
	Servers   []string // HOST:PORT, of the main port
	Namespace string
	// Poll is the pause between two questions of a client that is not told of changes; 0 leaves it
	// to the server.
	Poll time.Duration
}

// A Connect makes a client that is connected. The context says until when to try.
type Connect func(ctx context.Context, o Options) (Client, error)

// Serve answers the requests that it reads, and returns when there are no more and all clients are
// closed. Version and lacks are for the first line.
func Serve(in io.Reader, out io.Writer, version string, lacks []string, connect Connect) error {
	d := &driver{connect: connect, lacks: lacks, out: json.NewEncoder(out), clients: map[string]Client{}, cancels: map[string]func(){}}
	ctx, cancel := context.WithCancel(context.Background())
	d.send(drivers.Event{Event: "hello", Version: version, Lacks: lacks})
	err := d.read(ctx, in)
	cancel()
	// Calls that are under way end with their client.
	d.mu.Lock()
	clients := d.clients
	d.clients = nil
	d.mu.Unlock()
	for _, c := range clients {
		d.calls.Go(c.Close)
	}
	d.calls.Wait()
	return cmp.Or(err, d.outErr)
}

type driver struct {
	// constant
	connect Connect
	lacks   []string

	calls sync.WaitGroup

	outMu  sync.Mutex
	out    *json.Encoder
	outErr error // the first; nothing is written after it

	mu      sync.Mutex
	clients map[string]Client // nil: the end
	cancels map[string]func() // of subscriptions
}

// read handles each request on its own goroutine, so that a slow call of one client does not hold
// up another.
func (d *driver) read(ctx context.Context, in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		var r drivers.Request
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("reading request %q: %w", line, err)
		}
		d.calls.Go(func() {
			res := drivers.Response{ID: r.ID, OK: true}
			if err := d.handle(ctx, &r, &res); err != nil {
				res = drivers.Response{ID: r.ID, Error: err.Error()}
			}
			d.send(res)
		})
	}
}

func (d *driver) send(v any) {
	d.outMu.Lock()
	defer d.outMu.Unlock()
	if d.outErr == nil {
		d.outErr = d.out.Encode(v)
	}
}

func (d *driver) handle(ctx context.Context, r *drivers.Request, res *drivers.Response) error {
	if r.Op == "connect" {
		return d.open(ctx, r)
	}
	d.mu.Lock()
	c := d.clients[r.Client]
	d.mu.Unlock()
	if c == nil {
		return fmt.Errorf("no client %q", r.Client)
	}
	if slices.Contains(d.lacks, r.Op) {
		return fmt.Errorf("%s is not offered", r.Op)
	}
	s := Service{cmp.Or(r.Group, "DEFAULT_GROUP"), r.Service}
	switch r.Op {
	case "close":
		d.mu.Lock()
		if d.clients != nil { // else Serve closes it
			delete(d.clients, r.Client)
		}
		d.mu.Unlock()
		c.Close()
		return nil
	case "selectHealthy", "watchServices":
		if full, ok := c.(FullClient); ok {
			return d.own(ctx, full, r, res)
		}
	}
	switch r.Op {
	case "register", "update", "deregister":
		if r.Instance == nil {
			return fmt.Errorf("%s without an instance", r.Op)
		}
		if r.Op == "deregister" {
			return c.Deregister(s, *r.Instance)
		}
		return c.Register(s, *r.Instance)
	case "batchRegister":
		return c.RegisterBatch(s, r.Instances)
	case "batchRemove":
		return c.RegisterBatch(s, r.Remaining)
	case "list", "selectHealthy", "protected":
		info, err := c.List(s, r.Clusters)
		if err != nil {
			return err
		}
		res.Protected = info.ReachProtectionThreshold
		switch r.Op {
		case "list":
			res.Hosts = info.Instances(nil)
		case "selectHealthy":
			chosen, ok := choose(info.Instances(nil))
			if !ok {
				return fmt.Errorf("%s has no healthy instance", s.Grouped())
			}
			res.Hosts = []drivers.Instance{chosen}
		}
		return nil
	case "services":
		var err error
		res.Services, res.Count, err = c.Services(s.Group, r.Page, r.Size)
		return err
	case "subscribe":
		cancel, err := c.Subscribe(s, r.Clusters, func(hosts []drivers.Instance) {
			d.send(push{"push", r.Subscription, hosts, time.Now().UnixMilli()})
		})
		if err != nil {
			return err
		}
		d.keep(r.Subscription, cancel)
		return nil
	case "unsubscribe", "unwatchServices":
		d.mu.Lock()
		cancel := d.cancels[r.Subscription]
		delete(d.cancels, r.Subscription)
		d.mu.Unlock()
		if cancel == nil {
			return fmt.Errorf("no subscription %q", r.Subscription)
		}
		cancel()
		return nil
	}
	return fmt.Errorf("unknown op %q", r.Op)
}

// keep is what ends a subscription.
func (d *driver) keep(subscription string, cancel func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cancels[subscription] = cancel
}

// own answers what the client does in its own way.
func (d *driver) own(ctx context.Context, c FullClient, r *drivers.Request, res *drivers.Response) error {
	s := Service{cmp.Or(r.Group, "DEFAULT_GROUP"), r.Service}
	if r.Op == "selectHealthy" {
		chosen, err := c.Pick(s)
		res.Hosts = []drivers.Instance{chosen}
		return err
	}
	ctx, stop := context.WithTimeout(ctx, time.Duration(r.TimeoutMs)*time.Millisecond)
	defer stop()
	keys, cancel, err := c.WatchServices(ctx, s.Group, s.Name, func(change string, about Service) {
		d.send(drivers.Event{Event: "change", Subscription: r.Subscription, Change: change, Group: about.Group, Service: about.Name})
	})
	if err != nil {
		return err
	}
	d.keep(r.Subscription, cancel)
	res.Services = keys
	return nil
}

// A push has of a drivers.Event what this kind has: there are many of them.
type push struct {
	Event        string             `json:"event"`
	Subscription string             `json:"subscription"`
	Hosts        []drivers.Instance `json:"hosts"`
	TimeMs       int64              `json:"timeMs"`
}

func (d *driver) open(ctx context.Context, r *drivers.Request) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(r.TimeoutMs)*time.Millisecond)
	defer cancel()
	o := Options{Servers: strings.Split(r.Server, ","), Namespace: r.Namespace, Poll: time.Duration(r.PollMs) * time.Millisecond}
	c, err := d.connect(ctx, o)
	if err != nil {
		return fmt.Errorf("not connected to %s in time: %w", r.Server, err)
	}
	d.mu.Lock()
	ended, old := d.clients == nil, d.clients[r.Client]
	if !ended {
		d.clients[r.Client] = c
	}
	d.mu.Unlock()
	switch {
	case ended:
		c.Close()
	case old != nil:
		old.Close()
	}
	return nil
}

// choose takes one of the healthy instances by weight.
func choose(all []drivers.Instance) (drivers.Instance, bool) {
	able := slices.DeleteFunc(slices.Clone(all), func(i drivers.Instance) bool { return !i.Healthy || !i.Enabled || i.Weight <= 0 })
	sum := 0.0
	for _, i := range able {
		sum += i.Weight
	}
	at := rand.Float64() * sum
	for _, i := range able {
		if at -= i.Weight; at < 0 {
			return i, true
		}
	}
	if len(able) == 0 {
		return drivers.Instance{}, false
	}
	return able[len(able)-1], true // what rounding left over
}
