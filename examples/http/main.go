// Command http shows net/http with Starling: servers that register, and a client
// whose URLs have names of services.
//
//	go run ./examples/http serve shop                   # several times, each in a terminal
//	go run ./examples/http get http://shop.starling/    # says who answers
//
// STARLING_SERVERS names the nodes, HOST[:PORT],…; the default is 127.0.0.1:8848.
package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/starling-registry/starling/pkg/client"
	"github.com/starling-registry/starling/pkg/client/httplb"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "example:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("usage: serve SERVICE | get URL")
	}
	c, err := client.New(client.Config{Addrs: strings.Split(cmp.Or(os.Getenv("STARLING_SERVERS"), "127.0.0.1:8848"), ",")})
	if err != nil {
		return err
	}
	defer c.Close()
	switch args[0] {
	case "serve":
		return serve(ctx, c, args[1])
	case "get":
		return get(ctx, c, args[1])
	}
	return fmt.Errorf("unknown verb %q", args[0])
}

func serve(ctx context.Context, c *client.Client, service string) error {
	listener, err := net.Listen("tcp", ":0")
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s from %s\n", r.URL.Path, listener.Addr())
	})}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(listener) }()
	defer srv.Close()

	// Once it listens: nobody is told of a server that does not answer yet.
	lease, err := c.RegisterListener(ctx, service, listener, client.Registration{})
	if err != nil {
		return err
	}
	fmt.Printf("%s serves %s; Ctrl-C ends it\n", listener.Addr(), service)
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	// First out of the lists, then out of order.
	last, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := lease.Drain(last, time.Second); err != nil {
		return err
	}
	return srv.Shutdown(last)
}

func get(ctx context.Context, c *client.Client, url string) error {
	balanced, err := httplb.New(c, httplb.Options{})
	if err != nil {
		return err
	}
	web := &http.Client{Transport: balanced, Timeout: 5 * time.Second}
	for ctx.Err() == nil {
		if err := once(ctx, web, url); err != nil && ctx.Err() == nil {
			fmt.Println(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
	return nil
}

func once(ctx context.Context, web *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := web.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(os.Stdout, resp.Body)
	return err
}
