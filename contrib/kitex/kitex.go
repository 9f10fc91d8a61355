// Package kitex is the registry of Kitex on Starling, or on a server of Nacos:
// servers of Kitex register in it, and its clients find them.
//
//	c, err := client.New(client.Config{Addrs: []string{"127.0.0.1:8848"}})
//	if err != nil {
//		return err
//	}
//	defer c.Close() // after the server
//	s := order.NewServer(handler, server.WithServiceAddr(addr), server.WithRegistry(
//		kitex.NewRegistry(c, kitex.RegistryOptions{})), server.WithRegistryInfo(&registry.Info{ServiceName: "order"}))
//
// and where it is called:
//
//	cli, err := order.NewClient("order", kclient.WithResolver(kitex.NewResolver(c, kitex.ResolverOptions{})),
//		kclient.WithLoadBalancer(loadbalance.NewWeightedBalancer(), &lbcache.Options{RefreshInterval: time.Second, Cacheable: true}))
//
// Tags of a server are metadata of its instance, and tags of what a client finds.
//
// Kitex asks the resolver every RefreshInterval, which is 5 s unless it is given.
// That costs no request, as the client is told of changes: ask often.
//
// Start reading at NewRegistry and NewResolver.
package kitex

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/cloudwego/kitex/pkg/discovery"
	"github.com/cloudwego/kitex/pkg/registry"
	"github.com/cloudwego/kitex/pkg/rpcinfo"

	"github.com/starling-registry/starling/contrib/internal/provider"
	"github.com/starling-registry/starling/pkg/client"
)

// RegistryOptions are what Kitex does not say. The zero value works.
type RegistryOptions struct {
	Group   string // "" is DEFAULT_GROUP
	Cluster string // "" is DEFAULT
	// Drain is how long Deregister waits before Kitex closes its listener, so that
	// clients have heard of it and no call fails: their RefreshInterval and a little
	// more; 0: 2 s, negative: not at all.
	Drain time.Duration
	// Async: the server runs without waiting for the registry, and is registered as
	// soon as that can be reached. Otherwise it ends if that takes more than 9 s.
	Async bool
	// Logger has what is no error to Kitex; nil: slog.Default().
	Logger *slog.Logger
}

type serverRegistry struct {
	opts   RegistryOptions
	leases *provider.Leases
}

// NewRegistry makes what server.WithRegistry takes. The caller closes the client
// after the server has ended.
//
// An address that stands for all of the machine's is registered as the one from
// which the registry is reached. Weight 0 is 10.
func NewRegistry(c *client.Client, o RegistryOptions) registry.Registry {
	o.Group = cmp.Or(o.Group, client.DefaultGroup)
	o.Drain = cmp.Or(o.Drain, 2*time.Second)
	return &serverRegistry{opts: o, leases: provider.NewLeases(c, o.Logger)}
}

func (r *serverRegistry) Register(info *registry.Info) error {
	a, err := address(info)
	if err != nil {
		return err
	}
	if info.Weight < 0 {
		return fmt.Errorf("register %s: %w: weight %d", a.Service, client.ErrInvalid, info.Weight)
	}
	opts := []client.ServiceOption{client.Group(r.opts.Group)}
	if r.opts.Async {
		opts = append(opts, client.Async())
	}
	return r.leases.Register(context.Background(), a.Service, a.Addr, client.Registration{
		Cluster: r.opts.Cluster, Weight: float64(cmp.Or(info.Weight, discovery.DefaultWeight)), Metadata: maps.Clone(info.Tags),
	}, opts...)
}

// Deregister is no error if the registry cannot be reached: the server ends all the
// same.
func (r *serverRegistry) Deregister(info *registry.Info) error {
	a, err := address(info)
	if err != nil {
		return nil // it was not registered
	}
	return r.leases.Deregister(context.Background(), r.opts.Drain, a)
}

func address(info *registry.Info) (provider.Address, error) {
	if info == nil || info.ServiceName == "" || info.Addr == nil {
		return provider.Address{}, fmt.Errorf("register: %w: registry.Info needs a ServiceName and an Addr", client.ErrInvalid)
	}
	return provider.Address{Service: info.ServiceName, Addr: info.Addr.String()}, nil
}

// ResolverOptions are what Kitex does not say. The zero value works.
type ResolverOptions struct {
	Group string // "" is DEFAULT_GROUP
	// Clusters are those whose instances are found; none: all.
	Clusters []string
	// Meta are metadata that an instance must have to be found.
	Meta map[string]string
}

// resolvers counts them. Kitex keeps lists by the name of their resolver, for the
// whole process: two with the same name, of two registries, would be one to it.
var resolvers atomic.Int64

type resolver struct {
	client *client.Client
	query  []client.QueryOption
	name   string
}

// NewResolver makes what client.WithResolver takes. Use one for all clients of
// Kitex: it remembers each for ever.
func NewResolver(c *client.Client, o ResolverOptions) discovery.Resolver {
	// An old list is better than none while no server can be reached.
	q := []client.QueryOption{client.Group(cmp.Or(o.Group, client.DefaultGroup)), client.Clusters(o.Clusters...), client.StaleOK(0)}
	if len(o.Meta) > 0 {
		q = append(q, client.MetaAll(maps.Clone(o.Meta)))
	}
	return &resolver{client: c, query: q, name: "starling-" + strconv.FormatInt(resolvers.Add(1), 10)}
}

func (r *resolver) Name() string { return r.name }

// Target is the service's name.
func (r *resolver) Target(_ context.Context, target rpcinfo.EndpointInfo) string {
	return target.ServiceName()
}

// Resolve is what can be called; there may be none, which is no error. Only the
// first call for a service waits for the registry.
func (r *resolver) Resolve(ctx context.Context, service string) (discovery.Result, error) {
	instances, err := r.client.Select(ctx, service, r.query...)
	if err != nil {
		return discovery.Result{}, fmt.Errorf("service %s: %w", service, err)
	}
	result := discovery.Result{Cacheable: true, CacheKey: service, Instances: make([]discovery.Instance, 0, len(instances))}
	weights := provider.Weights(instances)
	for n, i := range instances {
		result.Instances = append(result.Instances,
			discovery.NewInstance("tcp", net.JoinHostPort(i.IP, strconv.Itoa(i.Port)), weights[n], i.Metadata))
	}
	return result, nil
}

func (r *resolver) Diff(key string, prev, next discovery.Result) (discovery.Change, bool) {
	return discovery.DefaultDiff(key, prev, next)
}
