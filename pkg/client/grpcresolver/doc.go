// Package grpcresolver lets grpc-go find the servers of a channel in the
// registry: targets are names of services, not addresses.
//
//	c, err := client.New(client.Config{Addrs: []string{"127.0.0.1:8848"}})
//	if err != nil {
//		return err
//	}
//	defer c.Close() // after the channels
//	conn, err := grpc.NewClient("starling:///order",
//		grpc.WithResolvers(grpcresolver.NewBuilder(c)),
//		grpc.WithTransportCredentials(insecure.NewCredentials()))
//
// A target is starling:///[group/]service?param=value&…, with the parameters
//
//	group=G       instead of a group in the path
//	cluster=a,b   only instances of these clusters
//	meta.K=V      only instances with this metadata; several must all match
//	port_meta=K   the port is this metadata's instead of the instance's own:
//	              for instances that also speak HTTP, usually gRPC_port
//
// Names and values are escaped as in a URL; [Target] does it. A target with a
// mistake is refused when the channel leaves idleness: by Connect, or as the
// error of the first call. [ParseTarget] says it before.
//
// One client serves any number of channels; each of them watches its service and
// costs two goroutines. Nothing is registered with grpc by importing this package.
//
// # Weights
//
// The service config that comes with the list asks for the balancer
// [BalancerName] and, where nobody has called [RegisterBalancer], for
// round_robin. Either way an instance that is unhealthy, disabled or of weight 0
// gets no calls.
//
// Start reading at NewBuilder, then watching.run.
package grpcresolver
