package client_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/starling-registry/starling/pkg/client"
)

// Register what listens, and take it away before the listener is closed.
//
// Row S003-1.
func Example() {
	ctx := context.Background()
	c, err := client.New(client.Config{Addrs: []string{"127.0.0.1:8848"}})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	listener, err := net.Listen("tcp", ":0")
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Handler: http.NotFoundHandler()}
	go server.Serve(listener)
	lease, err := c.RegisterListener(ctx, "order", listener, client.Registration{Metadata: map[string]string{"version": "2"}})
	if err != nil {
		log.Fatal(err)
	}

	// … until the process is told to end:
	if err := lease.Drain(ctx, 2*time.Second); err != nil {
		log.Print(err)
	}
	server.Shutdown(ctx)
}

// The first pick subscribes; all later ones touch no network.
//
// Row S000-33.
func ExampleClient_Pick() {
	c, err := client.New(client.Config{Addrs: []string{"127.0.0.1:8848"}})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	one, err := c.Pick(context.Background(), "order", client.Group("shop"), client.Clusters("east"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(net.JoinHostPort(one.IP, fmt.Sprint(one.Port)))
}

// The first event has all instances, each later one what has changed.
//
// Row S000-33.
func ExampleClient_Watch() {
	ctx := context.Background()
	c, err := client.New(client.Config{Addrs: []string{"127.0.0.1:8848"}})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	w, err := c.Watch(ctx, "order")
	if err != nil {
		log.Fatal(err)
	}
	for {
		event, err := w.Next(ctx)
		if err != nil {
			return
		}
		fmt.Println(len(event.Snapshot.Instances), "now;", len(event.Added), "new,", len(event.Removed), "gone")
	}
}
