// Command go shows Starling with the official Nacos SDK for Go, unmodified:
//
//	go run . register order 10.0.0.1:8080   # until Ctrl-C
//	go run . watch order                    # prints each change
//
// STARLING_SERVERS names the nodes, HOST:PORT,…; the default is 127.0.0.1:8848.
package main

import (
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nacos-group/nacos-sdk-go/v2/clients"
	"github.com/nacos-group/nacos-sdk-go/v2/common/constant"
	"github.com/nacos-group/nacos-sdk-go/v2/model"
	"github.com/nacos-group/nacos-sdk-go/v2/vo"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "example:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 || args[0] == "register" && len(args) < 3 {
		return fmt.Errorf("usage: register SERVICE IP:PORT | watch SERVICE (the servers are STARLING_SERVERS, HOST:PORT,…, default 127.0.0.1:8848)")
	}
	server := os.Getenv("STARLING_SERVERS")
	if server == "" {
		server = "127.0.0.1:8848"
	}
	// All nodes of a cluster: when one goes, the SDK only goes to another that
	// it was told of here.
	var servers []constant.ServerConfig
	for s := range strings.SplitSeq(server, ",") {
		host, port, err := hostPort(s)
		if err != nil {
			return fmt.Errorf("STARLING_SERVERS: %w", err)
		}
		if strings.Contains(host, ":") {
			host = "[" + host + "]" // the SDK only puts a colon between IpAddr and Port
		}
		// The SDK finds the gRPC port from this one: + 1000.
		servers = append(servers, constant.ServerConfig{IpAddr: host, Port: port})
	}
	tmp := filepath.Join(os.TempDir(), "starling-example")
	client, err := clients.NewNamingClient(vo.NacosClientParam{
		ServerConfigs: servers,
		ClientConfig: constant.NewClientConfig(constant.WithLogDir(tmp), constant.WithCacheDir(tmp),
			constant.WithLogLevel("error"), constant.WithNotLoadCacheAtStart(true), constant.WithUpdateCacheWhenEmpty(true)),
	})
	if err != nil {
		return err
	}
	defer client.CloseClient()
	failed := func(err error) error { return fmt.Errorf("%w; is Starling running at %s?", err, server) }

	service := args[1]
	switch args[0] {
	case "register":
		ip, port, err := hostPort(args[2])
		if err != nil {
			return err
		}
		done, err := client.RegisterInstance(vo.RegisterInstanceParam{
			ServiceName: service, Ip: ip, Port: port, Weight: 1, Enable: true, Healthy: true, Ephemeral: true,
		})
		switch {
		case err != nil:
			return failed(err)
		case !done: // the SDK does not pass on the reason
			return fmt.Errorf("%s refused %s; is it evicted (starling evict --list), or has %s persistent instances?", server, args[2], service)
		}
		fmt.Printf("%s is registered at %s; Ctrl-C ends it\n", args[2], service)
	case "watch":
		fmt.Printf("watching %s…; Ctrl-C ends it\n", service)
		if err := client.Subscribe(&vo.SubscribeParam{ServiceName: service, SubscribeCallback: func(instances []model.Instance, err error) {
			if err != nil {
				fmt.Println(err)
				return
			}
			var hosts []string
			for _, i := range instances {
				health := ""
				if !i.Healthy {
					health = " (unhealthy)"
				}
				hosts = append(hosts, fmt.Sprintf("%s:%d%s", i.Ip, i.Port, health))
			}
			slices.Sort(hosts)
			fmt.Printf("%s  %s: [%s]\n", time.Now().Format("15:04:05.000"), service, strings.Join(hosts, ", "))
		}}); err != nil {
			return failed(err)
		}
	default:
		return fmt.Errorf("unknown verb %q", args[0])
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt)
	<-stop
	return nil
}

func hostPort(s string) (string, uint64, error) {
	host, p, err := net.SplitHostPort(s)
	if err != nil {
		return "", 0, err
	}
	port, err := strconv.ParseUint(p, 10, 16)
	return host, port, err
}
