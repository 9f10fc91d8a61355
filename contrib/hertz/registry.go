// Package hertz is the registry of Hertz on Starling, or on a server of Nacos:
// servers of Hertz register in it, and its clients find them.
//
//	c, err := client.New(client.Config{Addrs: []string{"127.0.0.1:8848"}})
//	if err != nil {
//		return err
//	}
//	defer c.Close() // after the server
//	h := server.Default(server.WithHostPorts(":8888"), server.WithRegistry(
//		hertz.NewRegistry(c, hertz.RegistryOptions{}), &registry.Info{ServiceName: "order", Addr: utils.NewNetAddr("tcp", ":8888"), Weight: 10}))
//
// and where it is called:
//
//	cli.Use(sd.Discovery(hertz.NewResolver(c, hertz.ResolverOptions{}), sd.WithLoadBalanceOptions(
//		loadbalance.NewWeightedBalancer(), loadbalance.Options{RefreshInterval: time.Second})))
//	status, body, err := cli.Get(ctx, nil, "http://order/v1/orders", config.WithSD(true))
//
// Tags of a server are metadata of its instance; tags of a request are metadata
// that instances must have to be called.
//
// Hertz asks the resolver every RefreshInterval, which is 5 s unless it is given.
// That costs no request, as the client is told of changes: ask often.
//
// Start reading at NewRegistry and NewResolver.
package hertz

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cloudwego/hertz/pkg/app/client/discovery"
	"github.com/cloudwego/hertz/pkg/app/server/registry"

	"github.com/starling-registry/starling/contrib/internal/provider"
	"github.com/starling-registry/starling/pkg/client"
)

// RegistryOptions are what Hertz does not say. The zero value works.
type RegistryOptions struct {
	Group   string // "" is DEFAULT_GROUP
	Cluster string // "" is DEFAULT
	// Drain is how long Deregister waits before Hertz closes its listener, so that
	// clients have heard of it and no request fails: their RefreshInterval and a
	// little more, and less than the server's ExitWaitTime; 0: 2 s, negative: not at
	// all.
	Drain time.Duration
	// Async: the server runs without waiting for the registry, and is registered as
	// soon as that can be reached. Otherwise it ends if that takes more than 9 s.
	Async bool
	// Logger has what is no error to Hertz; nil: slog.Default().
	Logger *slog.Logger
}

type serverRegistry struct {
	opts   RegistryOptions
	leases *provider.Leases
}

// NewRegistry makes what server.WithRegistry takes. The caller closes the client
// after the server has ended.
//
// An address without a host, or with one that stands for all addresses of the
// machine, is registered as the one from which the registry is reached. Weight 0
// is 10.
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
		Cluster: r.opts.Cluster, Weight: float64(cmp.Or(info.Weight, registry.DefaultWeight)), Metadata: maps.Clone(info.Tags),
	}, opts...)
}

// Deregister is no error if the registry cannot be reached: Hertz would not close
// its connections in order then.
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

// ResolverOptions are what Hertz does not say. The zero value works.
type ResolverOptions struct {
	Group string // "" is DEFAULT_GROUP
	// Clusters are those whose instances are found; none: all.
	Clusters []string
}

// resolvers counts them. Hertz keeps lists by the name of their resolver, for the
// whole process: two with the same name, of two registries, would be one to it.
var resolvers atomic.Int64

type resolver struct {
	client *client.Client
	opts   ResolverOptions
	name   string
}

// NewResolver makes what sd.Discovery takes. Use one for all clients of Hertz: it
// remembers each for ever.
func NewResolver(c *client.Client, o ResolverOptions) discovery.Resolver {
	o.Group = cmp.Or(o.Group, client.DefaultGroup)
	return &resolver{client: c, opts: o, name: "starling-" + strconv.FormatInt(resolvers.Add(1), 10)}
}

func (r *resolver) Name() string { return r.name }

// Target is SERVICE or SERVICE?TAG=VALUE&…, escaped and in the order of the tags:
// the same for the same request.
func (r *resolver) Target(_ context.Context, target *discovery.TargetInfo) string {
	desc := url.QueryEscape(target.Host)
	if len(target.Tags) > 0 {
		tags := make(url.Values, len(target.Tags))
		for k, v := range target.Tags {
			tags.Set(k, v)
		}
		desc += "?" + tags.Encode()
	}
	return desc
}

// Resolve is what can be called; there may be none, which is no error. Only the
// first call for a service waits for the registry.
func (r *resolver) Resolve(ctx context.Context, desc string) (discovery.Result, error) {
	service, tags, err := parse(desc)
	if err != nil {
		return discovery.Result{}, err
	}
	// An old list is better than none while no server can be reached.
	o := []client.QueryOption{client.Group(r.opts.Group), client.Clusters(r.opts.Clusters...), client.StaleOK(0)}
	if len(tags) > 0 {
		o = append(o, client.MetaAll(tags))
	}
	instances, err := r.client.Select(ctx, service, o...)
	if err != nil {
		return discovery.Result{}, fmt.Errorf("service %s: %w", service, err)
	}
	result := discovery.Result{CacheKey: desc, Instances: make([]discovery.Instance, 0, len(instances))}
	weights := provider.Weights(instances)
	for n, i := range instances {
		result.Instances = append(result.Instances,
			discovery.NewInstance("tcp", net.JoinHostPort(i.IP, strconv.Itoa(i.Port)), weights[n], i.Metadata))
	}
	return result, nil
}

func parse(desc string) (service string, tags map[string]string, err error) {
	name, query, _ := strings.Cut(desc, "?")
	service, err = url.QueryUnescape(name)
	var values url.Values
	if err == nil {
		values, err = url.ParseQuery(query)
	}
	if err != nil {
		return "", nil, fmt.Errorf("%w: target %q: %w", client.ErrInvalid, desc, err)
	}
	tags = make(map[string]string, len(values))
	for k := range values {
		tags[k] = values.Get(k)
	}
	return service, tags, nil
}
