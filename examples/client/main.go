// Command client shows Starling's own Go client, package pkg/client:
//
//	go run ./examples/client register order 10.0.0.1:8080   # until Ctrl-C
//	go run ./examples/client watch order                    # prints each change
//	go run ./examples/client pick order                     # one that may be called
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

	"github.com/starling-registry/starling/pkg/client"
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
	if len(args) < 2 || args[0] == "register" && len(args) < 3 {
		return fmt.Errorf("usage: register SERVICE IP:PORT | watch SERVICE | pick SERVICE (the servers are STARLING_SERVERS, HOST[:PORT],…, default 127.0.0.1:8848)")
	}
	c, err := client.New(client.Config{Addrs: strings.Split(cmp.Or(os.Getenv("STARLING_SERVERS"), "127.0.0.1:8848"), ",")})
	if err != nil {
		return err
	}
	defer c.Close() // deregisters what is registered
	service := args[1]
	switch args[0] {
	case "register":
		return register(ctx, c, service, args[2])
	case "watch":
		return watch(ctx, c, service)
	case "pick":
		i, err := c.Pick(ctx, service)
		if err != nil {
			return err
		}
		fmt.Println(net.JoinHostPort(i.IP, strconv.Itoa(i.Port)))
		return nil
	}
	return fmt.Errorf("unknown verb %q", args[0])
}

// register returns when the context ends. Until then the client sees to it that
// the instance is registered, whatever happens to the servers.
func register(ctx context.Context, c *client.Client, service, addr string) error {
	host, p, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(p)
	if err != nil {
		return err
	}
	if _, err := c.Register(ctx, service, client.Registration{IP: host, Port: port}); err != nil {
		return err
	}
	fmt.Printf("%s is registered at %s; Ctrl-C ends it\n", addr, service)
	<-ctx.Done()
	return nil
}

// watch prints the service as it is, and then what changes.
func watch(ctx context.Context, c *client.Client, service string) error {
	w, err := c.Watch(ctx, service)
	if err != nil {
		return err
	}
	defer w.Close()
	fmt.Printf("watching %s…; Ctrl-C ends it\n", service)
	for {
		e, err := w.Next(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		fmt.Printf("%s  %s: %d instances\n", time.Now().Format("15:04:05.000"), service, len(e.Snapshot.Instances))
		show("+", e.Added)
		show("-", e.Removed)
		show("~", e.Modified)
	}
}

func show(sign string, instances []client.Instance) {
	for _, i := range instances {
		health := ""
		if !i.Healthy {
			health = " (unhealthy)"
		}
		fmt.Printf("  %s %s weight %v%s\n", sign, net.JoinHostPort(i.IP, strconv.Itoa(i.Port)), i.Weight, health)
	}
}
