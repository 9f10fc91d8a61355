// Command grpc shows grpc-go with Starling: servers that register, and a channel
// that finds them by the name of their service and spreads calls by weight.
//
//	go run ./examples/grpc serve greeter      # several times, each in a terminal
//	go run ./examples/grpc serve greeter 3    # with three times the calls
//	go run ./examples/grpc call greeter       # says who answers
//
// STARLING_SERVERS names the nodes, HOST[:PORT],…; the default is 127.0.0.1:8848.
package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"

	"github.com/starling-registry/starling/pkg/client"
	"github.com/starling-registry/starling/pkg/client/grpcresolver"
)

func main() {
	// For the whole process and before the first channel; without it channels use
	// round_robin.
	grpcresolver.RegisterBalancer()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "example:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("usage: serve SERVICE [WEIGHT] | call SERVICE")
	}
	// One client for all channels and registrations of the process.
	c, err := client.New(client.Config{Addrs: strings.Split(cmp.Or(os.Getenv("STARLING_SERVERS"), "127.0.0.1:8848"), ",")})
	if err != nil {
		return err
	}
	defer c.Close()
	switch args[0] {
	case "serve":
		weight := 1.0
		if len(args) > 2 {
			if weight, err = strconv.ParseFloat(args[2], 64); err != nil {
				return err
			}
		}
		return serve(ctx, c, args[1], weight)
	case "call":
		return call(ctx, c, args[1])
	}
	return fmt.Errorf("unknown verb %q", args[0])
}

func serve(ctx context.Context, c *client.Client, service string, weight float64) error {
	listener, err := net.Listen("tcp", ":0")
	if err != nil {
		return err
	}
	srv := grpc.NewServer()
	healthpb.RegisterHealthServer(srv, health.NewServer())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(listener) }()
	defer srv.Stop()

	// Once it listens: nobody is told of a server that does not answer yet.
	lease, err := c.RegisterListener(ctx, service, listener, client.Registration{Weight: weight})
	if err != nil {
		return err
	}
	fmt.Printf("%s serves %s with weight %v; Ctrl-C ends it\n", listener.Addr(), service, weight)
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	// First out of the lists, then out of order.
	last, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err = lease.Drain(last, time.Second)
	srv.GracefulStop()
	return err
}

func call(ctx context.Context, c *client.Client, service string) error {
	// Target escapes what must be: the name comes from outside.
	target := grpcresolver.Target{Service: service}
	conn, err := grpc.NewClient(target.String(),
		grpc.WithResolvers(grpcresolver.NewBuilder(c)),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	for ctx.Err() == nil {
		var server peer.Peer
		limited, cancel := context.WithTimeout(ctx, time.Second)
		_, err := healthpb.NewHealthClient(conn).Check(limited, &healthpb.HealthCheckRequest{}, grpc.Peer(&server))
		cancel()
		switch {
		case ctx.Err() != nil:
		case err != nil:
			fmt.Println(err)
		default:
			fmt.Println("answered by", server.Addr)
		}
		select {
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
	return nil
}
