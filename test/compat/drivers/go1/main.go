// Command go1 drives version 1 of the official Go SDK, which speaks HTTP, for the compatibility
// suite: it reads one JSON request a line from its standard input and writes one JSON response or
// listener event a line to its standard output. The protocol is described in test/compat/README.md.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nacos-group/nacos-sdk-go/clients"
	"github.com/nacos-group/nacos-sdk-go/clients/naming_client"
	"github.com/nacos-group/nacos-sdk-go/common/constant"
	"github.com/nacos-group/nacos-sdk-go/model"
	"github.com/nacos-group/nacos-sdk-go/vo"
)

const sdkModule = "github.com/nacos-group/nacos-sdk-go"

// Operations, with a part of the name of the call that each needs; a version of the SDK that has one
// will have to be driven.
var optional = map[string]string{
	"batchRegister": "BatchRegister",
	"batchRemove":   "BatchDeregister",
	"watchServices": "Fuzzy",
}

type instance struct {
	IP       string            `json:"ip"`
	Port     uint64            `json:"port"`
	Weight   float64           `json:"weight"`
	Healthy  bool              `json:"healthy"`
	Enabled  bool              `json:"enabled"`
	Cluster  string            `json:"cluster"`
	Metadata map[string]string `json:"metadata"`

	Ephemeral bool `json:"ephemeral"`
}

type request struct {
	ID        int    `json:"id"`
	Op        string `json:"op"`
	Client    string `json:"client"`
	Server    string `json:"server"`
	Namespace string `json:"namespace"`
	TimeoutMs int64  `json:"timeoutMs"`

	Service      string   `json:"service"`
	Group        string   `json:"group"`
	Clusters     []string `json:"clusters"`
	Instance     instance `json:"instance"`
	Subscription string   `json:"subscription"`
	Page         uint32   `json:"page"`
	Size         uint32   `json:"size"`
}

type response struct {
	ID       int        `json:"id"`
	OK       bool       `json:"ok"`
	Error    string     `json:"error,omitempty"`
	Hosts    []instance `json:"hosts,omitempty"`
	Services []string   `json:"services,omitempty"`
	Count    int64      `json:"count,omitempty"`
}

type driver struct {
	dir string // where the SDK may write its logs and caches

	outMu sync.Mutex
	out   *json.Encoder

	// connecting serialises creating clients: the SDK sets a package-level logger without a lock.
	connecting sync.Mutex

	mu      sync.Mutex
	clients map[string]naming_client.INamingClient
	// subscriptions keeps the parameter of each subscribe, because the SDK recognises a listener
	// by the address of the field that holds it.
	subscriptions map[string]*vo.SubscribeParam
}

func main() {
	dir := flag.String("dir", "", "directory for the SDK's logs and caches")
	flag.Parse()
	out := json.NewEncoder(os.Stdout)
	os.Stdout = os.Stderr // whatever the SDK prints must not get between the protocol's lines
	d := &driver{
		dir:           *dir,
		out:           out,
		clients:       map[string]naming_client.INamingClient{},
		subscriptions: map[string]*vo.SubscribeParam{},
	}
	d.send(map[string]any{"event": "hello", "version": sdkVersion(), "lacks": lacks()})
	if err := d.serve(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "driver:", err)
		os.Exit(1)
	}
}

func sdkVersion() string {
	info, _ := debug.ReadBuildInfo()
	for _, m := range info.Deps {
		if m.Path == sdkModule {
			return m.Version
		}
	}
	return "unknown"
}

// lacks are the operations that this driver does not have, because the SDK does not.
func lacks() []string {
	var calls []string
	for m := range reflect.TypeFor[naming_client.INamingClient]().Methods() {
		calls = append(calls, m.Name)
	}
	var list []string
	for op, call := range optional {
		if !slices.ContainsFunc(calls, func(name string) bool { return strings.Contains(name, call) }) {
			list = append(list, op)
		}
	}
	if _, told := reflect.TypeFor[model.Service]().FieldByName("ReachProtectionThreshold"); !told {
		list = append(list, "protected")
	}
	return list
}

// serve answers requests until the input ends. Each runs on its own goroutine, so that a slow call
// of one client does not hold up another.
func (d *driver) serve(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		var r request
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("reading request %q: %w", line, err)
		}
		go func() {
			res := response{ID: r.ID, OK: true}
			if err := d.handle(r, &res); err != nil {
				res = response{ID: r.ID, Error: err.Error()}
			}
			d.send(res)
		}()
	}
}

func (d *driver) send(v any) {
	d.outMu.Lock()
	defer d.outMu.Unlock()
	if err := d.out.Encode(v); err != nil {
		fmt.Fprintln(os.Stderr, "driver: writing:", err)
		os.Exit(1)
	}
}

func (d *driver) handle(r request, res *response) error {
	if r.Op == "connect" {
		return d.connect(r)
	}
	d.mu.Lock()
	c := d.clients[r.Client]
	d.mu.Unlock()
	if c == nil {
		return fmt.Errorf("no client %q", r.Client)
	}
	switch r.Op {
	case "close":
		return nil // the SDK has no call for it: beats and questions go on until the process ends
	case "register":
		return accepted(c.RegisterInstance(registration(r, r.Instance)))
	case "update":
		return accepted(c.UpdateInstance(vo.UpdateInstanceParam{
			ServiceName: r.Service, GroupName: r.Group,
			Ip: r.Instance.IP, Port: r.Instance.Port, ClusterName: r.Instance.Cluster, Ephemeral: r.Instance.Ephemeral,
			Weight: r.Instance.Weight, Enable: r.Instance.Enabled, Metadata: r.Instance.Metadata,
		}))
	case "deregister":
		return accepted(c.DeregisterInstance(vo.DeregisterInstanceParam{
			ServiceName: r.Service, GroupName: r.Group,
			Ip: r.Instance.IP, Port: r.Instance.Port, Cluster: r.Instance.Cluster, Ephemeral: r.Instance.Ephemeral,
		}))
	case "list":
		hosts, err := c.SelectAllInstances(vo.SelectAllInstancesParam{
			ServiceName: r.Service, GroupName: r.Group, Clusters: r.Clusters})
		res.Hosts = fromSDK(hosts)
		return err
	case "selectHealthy":
		host, err := c.SelectOneHealthyInstance(vo.SelectOneHealthInstanceParam{
			ServiceName: r.Service, GroupName: r.Group, Clusters: r.Clusters})
		if err != nil {
			return err
		}
		res.Hosts = fromSDK([]model.Instance{*host})
		return nil
	case "services":
		list, err := c.GetAllServicesInfo(vo.GetAllServiceInfoParam{
			NameSpace: r.Namespace, GroupName: r.Group, PageNo: r.Page, PageSize: r.Size})
		res.Services, res.Count = list.Doms, list.Count
		return err
	case "subscribe":
		p := &vo.SubscribeParam{ServiceName: r.Service, GroupName: r.Group, Clusters: r.Clusters}
		// The SDK tells a new listener twice what there is, the others of the service once more.
		var mu sync.Mutex
		var told []instance
		p.SubscribeCallback = func(hosts []model.SubscribeService, err error) {
			// The SDK calls it an error that a service has no instances left.
			if err != nil && !strings.Contains(err.Error(), "hosts is empty") {
				fmt.Fprintln(os.Stderr, "driver: listener:", err)
				return
			}
			list, err := toldOf(c, r, hosts)
			if err != nil {
				fmt.Fprintln(os.Stderr, "driver: listener:", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if told != nil && reflect.DeepEqual(told, list) {
				return
			}
			told = list
			d.send(map[string]any{"event": "push", "subscription": r.Subscription, "timeMs": time.Now().UnixMilli(), "hosts": list})
		}
		d.mu.Lock()
		d.subscriptions[r.Subscription] = p
		d.mu.Unlock()
		return c.Subscribe(p)
	case "unsubscribe":
		d.mu.Lock()
		p := d.subscriptions[r.Subscription]
		d.mu.Unlock()
		return c.Unsubscribe(p)
	}
	return fmt.Errorf("unknown op %q", r.Op)
}

func (d *driver) connect(r request) error {
	var servers []constant.ServerConfig
	for address := range strings.SplitSeq(r.Server, ",") {
		host, portText, err := net.SplitHostPort(address)
		if err != nil {
			return err
		}
		port, err := strconv.ParseUint(portText, 10, 16)
		if err != nil {
			return err
		}
		servers = append(servers, constant.ServerConfig{IpAddr: host, Port: port})
	}
	d.connecting.Lock()
	defer d.connecting.Unlock()
	deadline := time.Now().Add(time.Duration(r.TimeoutMs) * time.Millisecond)
	c, err := clients.NewNamingClient(vo.NacosClientParam{
		ServerConfigs: servers,
		ClientConfig: &constant.ClientConfig{
			NamespaceId:         r.Namespace,
			TimeoutMs:           10_000,
			LogDir:              filepath.Join(d.dir, "log"),
			CacheDir:            filepath.Join(d.dir, "cache", r.Client),
			LogLevel:            "info",
			NotLoadCacheAtStart: true,
			// By default the SDK keeps the old list when the server reports an empty one.
			UpdateCacheWhenEmpty: true,
		},
	})
	if err != nil {
		return err
	}
	for !connected(c) {
		if time.Now().After(deadline) {
			return fmt.Errorf("not connected to %s in time", r.Server)
		}
		time.Sleep(20 * time.Millisecond)
	}
	d.mu.Lock()
	d.clients[r.Client] = c
	d.mu.Unlock()
	return nil
}

// connected: the SDK does not tell; an answer does.
func connected(c naming_client.INamingClient) bool {
	_, err := c.GetAllServicesInfo(vo.GetAllServiceInfoParam{PageNo: 1, PageSize: 1})
	return err == nil
}

// accepted turns the SDK's two ways to say no into one: it reports a rejection by the server as
// false without an error.
func accepted(ok bool, err error) error {
	if err == nil && !ok {
		return errors.New("rejected by the server")
	}
	return err
}

func registration(r request, i instance) vo.RegisterInstanceParam {
	return vo.RegisterInstanceParam{
		ServiceName: r.Service, GroupName: r.Group,
		Ip: i.IP, Port: i.Port, Weight: i.Weight, Healthy: i.Healthy, Enable: i.Enabled,
		ClusterName: i.Cluster, Metadata: i.Metadata, Ephemeral: i.Ephemeral,
	}
}

// toldOf is what a listener was told. That leaves out whether an instance is ephemeral, which the
// SDK's list of the same answer says.
func toldOf(c naming_client.INamingClient, r request, hosts []model.SubscribeService) ([]instance, error) {
	service, err := c.GetService(vo.GetServiceParam{ServiceName: r.Service, GroupName: r.Group, Clusters: r.Clusters})
	if err != nil {
		return nil, err
	}
	ephemeral := map[string]bool{}
	for _, h := range service.Hosts {
		ephemeral[h.InstanceId] = h.Ephemeral
	}
	list := make([]instance, 0, len(hosts))
	for _, h := range hosts {
		list = append(list, instance{
			IP: h.Ip, Port: h.Port, Weight: h.Weight, Healthy: h.Healthy, Enabled: h.Enable,
			Cluster: h.ClusterName, Metadata: h.Metadata, Ephemeral: ephemeral[h.InstanceId],
		})
	}
	return list, nil
}

func fromSDK(hosts []model.Instance) []instance {
	list := make([]instance, 0, len(hosts))
	for _, h := range hosts {
		list = append(list, instance{
			IP: h.Ip, Port: h.Port, Weight: h.Weight, Healthy: h.Healthy, Enabled: h.Enable,
			Cluster: h.ClusterName, Metadata: h.Metadata, Ephemeral: h.Ephemeral,
		})
	}
	return list
}
