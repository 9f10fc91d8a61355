// Package kratosregistry is the registry of kratos on Starling, or on a server of
// Nacos: services of kratos register in it, and clients find them.
//
//	c, err := client.New(client.Config{Addrs: []string{"127.0.0.1:8848"}})
//	if err != nil {
//		return err
//	}
//	defer c.Close() // after the app
//	r := kratosregistry.New(c, kratosregistry.Options{})
//	app := kratos.New(kratos.Name("order"), kratos.Server(srv), kratos.Registrar(r))
//	conn, err := grpc.DialInsecure(ctx, grpc.WithEndpoint("discovery:///order.grpc"), grpc.WithDiscovery(r))
//
// Names and metadata are those of kratos' adapter for Nacos, so that programs with
// either find each other: each endpoint is an instance of a service of its own,
// NAME.SCHEME (order.grpc, order.http; with TLS order.grpcs, order.https), and has
// the metadata kind (the scheme), version, and those of the app.
//
// Start reading at New, then Registry.Register.
package kratosregistry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-kratos/kratos/v2/registry"

	"github.com/starling-registry/starling/contrib/internal/provider"
	"github.com/starling-registry/starling/pkg/client"
)

// Options are what kratos does not say. The zero value works.
type Options struct {
	Group string // of services that are registered and found; "" is DEFAULT_GROUP
	// Cluster is of the instances that are registered; "" is DEFAULT.
	Cluster string
	// Clusters are those whose instances are found; none: all.
	Clusters []string
	// Weight is registered unless the app's metadata have a weight; 0: 100.
	Weight float64
	// Kind is the scheme of found instances without the metadata kind; "": grpc.
	Kind string
	// Drain is how long Deregister waits before kratos closes the listeners, so that
	// clients have heard of it and no call fails; 0: 1 s, negative: not at all.
	Drain time.Duration
	// Async: the app starts without waiting for the registry, and is registered as
	// soon as that can be reached.
	Async bool
	// Logger has what is no error to kratos; nil: slog.Default().
	Logger *slog.Logger
}

// A Registry is kratos' Registrar and Discovery. Its methods may be called from
// any goroutine.
type Registry struct {
	client *client.Client
	opts   Options
	leases *provider.Leases
}

var (
	_ registry.Registrar = (*Registry)(nil)
	_ registry.Discovery = (*Registry)(nil)
)

// New makes a registry of a client, which the caller closes after the app has
// ended.
func New(c *client.Client, o Options) *Registry {
	o.Group = cmp.Or(o.Group, client.DefaultGroup)
	o.Weight = cmp.Or(o.Weight, 100)
	o.Kind = cmp.Or(o.Kind, "grpc")
	o.Drain = cmp.Or(o.Drain, time.Second)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return &Registry{client: c, opts: o, leases: provider.NewLeases(c, o.Logger)}
}

// Register publishes all endpoints, or none and returns the error.
func (r *Registry) Register(ctx context.Context, si *registry.ServiceInstance) error {
	addrs, kinds, err := endpoints(si)
	if err != nil {
		return err
	}
	if len(addrs) == 0 {
		r.opts.Logger.Warn("an app without endpoints is not registered", "name", si.Name)
		return nil
	}
	reg := client.Registration{Cluster: r.opts.Cluster, Weight: r.opts.Weight}
	if text, ok := si.Metadata["weight"]; ok {
		reg.Weight, err = strconv.ParseFloat(text, 64)
		if err != nil || !(reg.Weight >= 0) {
			return fmt.Errorf("register %s: %w: metadata weight=%q is no number from 0", si.Name, client.ErrInvalid, text)
		}
		reg.ZeroWeight = reg.Weight == 0
	}
	opts := []client.ServiceOption{client.Group(r.opts.Group)}
	if r.opts.Async {
		opts = append(opts, client.Async())
	}
	for n, a := range addrs {
		reg.Metadata = maps.Clone(si.Metadata) // it is the app's
		if reg.Metadata == nil {
			reg.Metadata = make(map[string]string)
		}
		reg.Metadata["kind"], reg.Metadata["version"] = kinds[n], si.Version
		if err := r.leases.Register(ctx, a.Service, a.Addr, reg, opts...); err != nil {
			// Kratos gives up, so nobody will call Deregister.
			return errors.Join(err, r.leases.Deregister(context.WithoutCancel(ctx), 0, addrs[:n]...))
		}
	}
	return nil
}

// Deregister takes away what Register published, and waits for Options.Drain. It is
// no error that the registry cannot be reached, because kratos would not stop then.
func (r *Registry) Deregister(ctx context.Context, si *registry.ServiceInstance) error {
	addrs, _, err := endpoints(si)
	if err != nil {
		return err
	}
	return r.leases.Deregister(ctx, r.opts.Drain, addrs...)
}

// endpoints are what is registered of an app, and the kinds of it.
func endpoints(si *registry.ServiceInstance) (addrs []provider.Address, kinds []string, err error) {
	if si.Name == "" {
		return nil, nil, fmt.Errorf("register: %w: the app has no name", client.ErrInvalid)
	}
	for _, e := range si.Endpoints {
		u, err := url.Parse(e)
		if err == nil && (u.Scheme == "" || u.Host == "") {
			err = errors.New("not SCHEME://HOST:PORT")
		}
		if err != nil {
			return nil, nil, fmt.Errorf("register %s: %w: endpoint %q: %w", si.Name, client.ErrInvalid, e, err)
		}
		addrs = append(addrs, provider.Address{Service: si.Name + "." + u.Scheme, Addr: u.Host})
		kinds = append(kinds, u.Scheme)
	}
	return addrs, kinds, nil
}

func (r *Registry) query() []client.QueryOption {
	// An old list is better than none while no server can be reached.
	return []client.QueryOption{client.Group(r.opts.Group), client.Clusters(r.opts.Clusters...), client.Where(provider.Usable), client.StaleOK(0)}
}

// GetService is what can be called of a service, NAME.SCHEME; there may be none.
func (r *Registry) GetService(ctx context.Context, service string) ([]*registry.ServiceInstance, error) {
	instances, err := r.client.Instances(ctx, service, r.query()...)
	if err != nil {
		return nil, fmt.Errorf("service %s: %w", service, err)
	}
	return r.found(service, instances), nil
}

// Watch follows a service, NAME.SCHEME, until the context ends.
func (r *Registry) Watch(ctx context.Context, service string) (registry.Watcher, error) {
	ctx, stop := context.WithCancel(ctx)
	w, err := r.client.Watch(ctx, service, r.query()...)
	if err != nil {
		stop()
		return nil, fmt.Errorf("service %s: %w", service, err)
	}
	return &watcher{r: r, service: service, watch: w, ctx: ctx, stop: stop}, nil
}

type watcher struct {
	r       *Registry
	service string
	watch   *client.Watcher
	ctx     context.Context
	stop    context.CancelFunc

	told bool // of Next's goroutine
}

// Next waits for a list that differs from the one before; the first has instances,
// later ones may have none. After Stop it is context.Canceled, and so it is once
// the client is closed: kratos would ask for ever.
func (w *watcher) Next() ([]*registry.ServiceInstance, error) {
	for {
		e, err := w.watch.Next(w.ctx)
		switch {
		case w.ctx.Err() != nil:
			return nil, w.ctx.Err()
		case errors.Is(err, client.ErrClosed):
			return nil, fmt.Errorf("service %s: %w: %w", w.service, err, context.Canceled)
		case err != nil:
			return nil, fmt.Errorf("service %s: %w", w.service, err)
		}
		s := e.Snapshot
		if len(s.Instances) == 0 && (!w.told || s.Source == client.FromDisk || s.Source == client.FromStale) {
			continue // an old list without instances says nothing of today
		}
		w.told = true
		return w.r.found(w.service, s.Instances), nil
	}
}

// Stop ends the watch, and a call of Next that waits.
func (w *watcher) Stop() error {
	w.stop()
	w.watch.Close()
	return nil
}

// found owns the instances. What kratos makes of them it may change.
func (r *Registry) found(service string, instances []client.Instance) []*registry.ServiceInstance {
	weights := provider.Weights(instances)
	found := make([]*registry.ServiceInstance, 0, len(instances))
	for n, i := range instances {
		kind := cmp.Or(i.Metadata["kind"], r.opts.Kind)
		meta := maps.Clone(i.Metadata)
		if meta == nil {
			meta = make(map[string]string)
		}
		meta["weight"] = strconv.Itoa(weights[n]) // kratos' balancers read it
		addr := net.JoinHostPort(i.IP, strconv.Itoa(i.Port))
		found = append(found, &registry.ServiceInstance{
			ID: cmp.Or(i.ID, addr),
			// As registered. It becomes the name that TLS expects in certificates.
			Name:      strings.TrimSuffix(service, "."+kind),
			Version:   i.Metadata["version"],
			Metadata:  meta,
			Endpoints: []string{kind + "://" + addr},
		})
	}
	return found
}
