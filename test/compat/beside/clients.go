package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/nacos-group/nacos-sdk-go/v2/clients"
	"github.com/nacos-group/nacos-sdk-go/v2/clients/naming_client"
	"github.com/nacos-group/nacos-sdk-go/v2/common/constant"
	"github.com/nacos-group/nacos-sdk-go/v2/model"
	"github.com/nacos-group/nacos-sdk-go/v2/vo"

	starling "github.com/starling-registry/starling/pkg/client"
)

// ours is Starling's client with its defaults.
type ours struct {
	c *starling.Client

	mu     sync.Mutex
	leases map[string]*starling.Lease // by service and IP
}

func openStarling(servers []string, dir string) (client, error) {
	c, err := starling.New(starling.Config{Addrs: servers, CacheDir: filepath.Join(dir, "cache")}, starling.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))))
	if err != nil {
		return nil, err
	}
	return &ours{c: c, leases: map[string]*starling.Lease{}}, nil
}

func (o *ours) register(service string, i instance) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	o.mu.Lock()
	lease := o.leases[service+" "+i.IP]
	o.mu.Unlock()
	if lease != nil {
		return lease.Update(ctx, func(r *starling.Registration) { r.Metadata = map[string]string{"version": i.Version} })
	}
	lease, err := o.c.Register(ctx, service, starling.Registration{IP: i.IP, Port: i.Port, Metadata: map[string]string{"version": i.Version}})
	if err == nil {
		o.mu.Lock()
		o.leases[service+" "+i.IP] = lease
		o.mu.Unlock()
	}
	return err
}

func (o *ours) watch(service string, told func([]instance)) error {
	_, err := o.c.WatchFunc(context.Background(), service, func(e starling.Event) {
		list := make([]instance, 0, len(e.Snapshot.Instances))
		for _, i := range e.Snapshot.Instances {
			list = append(list, instance{i.IP, i.Port, i.Metadata["version"]})
		}
		told(list)
	})
	return err
}

func (o *ours) list(service string) (int, error) {
	list, err := o.c.Instances(context.Background(), service)
	return len(list), err
}

func (o *ours) request() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, _, err := o.c.Services(ctx, 1, 1)
	return err
}

func (o *ours) operations(service string) []operation {
	ctx := context.Background()
	return []operation{
		{"all", func() error { _, err := o.c.Instances(ctx, service); return err }},
		{"healthy", func() error { _, err := o.c.Select(ctx, service); return err }},
		{"one", func() error { _, err := o.c.Pick(ctx, service); return err }},
		{"view", func() error { return o.c.View(ctx, service, func(starling.Snapshot) {}) }},
	}
}

func (o *ours) close() { o.c.Close() }

// official is nacos-sdk-go, configured as the driver of the compatibility suite
// does it: it is told to believe empty lists. It logs warnings only, since a line
// for every read would be most of what a read costs.
type official struct {
	c naming_client.INamingClient
}

func openOfficial(servers []string, dir string) (client, error) {
	var list []constant.ServerConfig
	for _, address := range servers {
		host, text, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return nil, err
		}
		list = append(list, constant.ServerConfig{IpAddr: host, Port: port})
	}
	c, err := clients.NewNamingClient(vo.NacosClientParam{
		ServerConfigs: list,
		ClientConfig: &constant.ClientConfig{
			TimeoutMs: 10_000, LogDir: filepath.Join(dir, "log"), CacheDir: filepath.Join(dir, "cache"), LogLevel: "warn",
			NotLoadCacheAtStart: true, UpdateCacheWhenEmpty: true,
		},
	})
	if err != nil {
		return nil, err
	}
	return &official{c}, nil
}

func (o *official) register(service string, i instance) error {
	ok, err := o.c.RegisterInstance(vo.RegisterInstanceParam{ServiceName: service, Ip: i.IP, Port: uint64(i.Port), Weight: 1,
		Healthy: true, Enable: true, Ephemeral: true, Metadata: map[string]string{"version": i.Version}})
	if err == nil && !ok {
		return errors.New("rejected by the server")
	}
	return err
}

func (o *official) watch(service string, told func([]instance)) error {
	return o.c.Subscribe(&vo.SubscribeParam{ServiceName: service, SubscribeCallback: func(hosts []model.Instance, err error) {
		list := make([]instance, 0, len(hosts))
		for _, h := range hosts {
			list = append(list, instance{h.Ip, int(h.Port), h.Metadata["version"]})
		}
		told(list)
	}})
}

func (o *official) list(service string) (int, error) {
	list, err := o.c.SelectAllInstances(vo.SelectAllInstancesParam{ServiceName: service})
	return len(list), err
}

func (o *official) request() error {
	_, err := o.c.GetAllServicesInfo(vo.GetAllServiceInfoParam{PageNo: 1, PageSize: 1})
	return err
}

func (o *official) operations(service string) []operation {
	return []operation{
		{"all", func() error {
			_, err := o.c.SelectAllInstances(vo.SelectAllInstancesParam{ServiceName: service})
			return err
		}},
		{"healthy", func() error {
			_, err := o.c.SelectInstances(vo.SelectInstancesParam{ServiceName: service, HealthyOnly: true})
			return err
		}},
		{"one", func() error {
			_, err := o.c.SelectOneHealthyInstance(vo.SelectOneHealthInstanceParam{ServiceName: service})
			return err
		}},
		{"view", func() error { // the nearest that it has
			_, err := o.c.GetService(vo.GetServiceParam{ServiceName: service})
			return err
		}},
	}
}

func (o *official) close() { o.c.CloseClient() }
