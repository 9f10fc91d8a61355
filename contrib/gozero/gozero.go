// Package gozero lets zrpc of go-zero find its servers on Starling, or on a server
// of Nacos, and register in it.
//
//	c, err := client.New(client.Config{Addrs: []string{"127.0.0.1:8848"}})
//	if err != nil {
//		return err
//	}
//	defer c.Close()
//
// A server registers in the function that registers its handlers: it listens then.
//
//	s := zrpc.MustNewServer(conf, func(s *grpc.Server) {
//		order.RegisterOrderServer(s, handlers)
//		logx.Must(gozero.RegisterService(c, conf, gozero.ServiceOptions{}))
//	})
//
// A client has the service's name as target in its configuration, Target:
// starling:///order, and nothing of etcd:
//
//	cli, err := zrpc.NewClient(conf, gozero.WithResolver(c))
//
// See package grpcresolver for all that a target can say. One client serves any
// number of servers and zrpc clients of a process.
//
// # Weights
//
// The balancer is what conf.BalancerName says. That of go-zero, p2c_ewma, looks at
// load and latency and not at weights, except that an instance of weight 0 gets no
// calls; starling_weighted follows them, and needs grpcresolver.RegisterBalancer in
// main.
//
// Start reading at RegisterService and WithResolver.
package gozero

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"

	"github.com/zeromicro/go-zero/core/proc"
	"github.com/zeromicro/go-zero/zrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"

	"github.com/starling-registry/starling/contrib/internal/provider"
	"github.com/starling-registry/starling/pkg/client"
	"github.com/starling-registry/starling/pkg/client/grpcresolver"
)

// PortMeta is the metadata that has the port of gRPC where an instance has another
// as its own, as in the adapter of go-zero for Nacos.
const PortMeta = "gRPC_port"

// ServiceOptions are what go-zero's configuration does not say. The zero value
// works.
type ServiceOptions struct {
	Group    string  // "" is DEFAULT_GROUP
	Cluster  string  // "" is DEFAULT
	Weight   float64 // 0: 1
	Metadata map[string]string
	// Async: the server runs without waiting for the registry, and is registered as
	// soon as that can be reached. Otherwise that takes up to 9 s, and then is an
	// error.
	Async bool
	// Logger has what is no error; nil: slog.Default().
	Logger *slog.Logger
}

// RegisterService publishes the server's ListenOn as the service Name. When the
// process is told to end (SIGTERM, SIGINT), it is deregistered at once, and go-zero
// closes the listener a second later, when clients have heard of it.
//
// For a host that stands for all addresses of the machine the environment's POD_IP
// is published, or else the address from which the registry is reached. The errors
// are those of [client.Client.Register].
func RegisterService(c *client.Client, conf zrpc.RpcServerConf, o ServiceOptions) error {
	host, port, err := net.SplitHostPort(conf.ListenOn)
	if err != nil {
		return fmt.Errorf("%w: ListenOn %q: %w", client.ErrInvalid, conf.ListenOn, err)
	}
	if ip := net.ParseIP(host); host == "" || ip.IsUnspecified() {
		host = os.Getenv("POD_IP") // "": the client finds it
	}
	leases := provider.NewLeases(c, o.Logger)
	addr := provider.Address{Service: conf.Name, Addr: net.JoinHostPort(host, port)}
	opts := []client.ServiceOption{client.Group(cmp.Or(o.Group, client.DefaultGroup))}
	if o.Async {
		opts = append(opts, client.Async())
	}
	// Before the registration, which may take long.
	proc.AddWrapUpListener(func() {
		if err := leases.Deregister(context.Background(), 0, addr); err != nil {
			cmp.Or(o.Logger, slog.Default()).Warn("not deregistered", "service", conf.Name, "error", err)
		}
	})
	return leases.Register(context.Background(), addr.Service, addr.Addr,
		client.Registration{Cluster: o.Cluster, Weight: o.Weight, Metadata: o.Metadata}, opts...)
}

// WithResolver is the option with which zrpc.NewClient finds the servers of targets
// starling:///[GROUP/]SERVICE. Instances with the metadata gRPC_port are called at
// that port, unless the target has a port_meta of its own. The balancer is that of
// the configuration.
func WithResolver(c *client.Client, opts ...grpcresolver.Option) zrpc.ClientOption {
	opts = append([]grpcresolver.Option{grpcresolver.WithServiceConfig("")}, opts...)
	return zrpc.WithDialOption(grpc.WithResolvers(builder{grpcresolver.NewBuilder(c, opts...)}))
}

// A builder adds the port_meta to targets.
type builder struct{ resolver.Builder }

func (b builder) Build(target resolver.Target, cc resolver.ClientConn, opts resolver.BuildOptions) (resolver.Resolver, error) {
	// A query with a mistake is refused below.
	if q, err := url.ParseQuery(target.URL.RawQuery); err == nil && !q.Has("port_meta") {
		q.Set("port_meta", PortMeta)
		target.URL.RawQuery = q.Encode()
	}
	return b.Builder.Build(target, cc, opts)
}

// OverrideAuthority is optional in grpc, so that it is not embedded.
func (b builder) OverrideAuthority(target resolver.Target) string {
	return b.Builder.(resolver.AuthorityOverrider).OverrideAuthority(target)
}
