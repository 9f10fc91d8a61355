package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-registry/starling/pkg/client/wire"
	"github.com/starling-registry/starling/pkg/nacos"
)

// A provider is a client with one ephemeral instance, which does what SDKs do: when
// its connection ends it connects to the next node and registers again.
type provider struct {
	c        *cluster
	service  string
	ip       string
	port     int
	listener net.Listener // somebody is there, whoever asks

	stop context.CancelFunc
	wg   sync.WaitGroup

	leaving atomic.Bool   // it is to deregister, which it says by false
	want    atomic.Int64  // node to connect to next
	moves   chan struct{} // tells that it is to go there now
	on      atomic.Int64  // node that it is registered on; -1: none
}

func newProvider(c *cluster, service string, at int) (*provider, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &provider{c: c, service: service, ip: "127.0.0.1", port: l.Addr().(*net.TCPAddr).Port, listener: l, moves: make(chan struct{}, 1)}
	p.want.Store(int64(at))
	p.on.Store(-1)
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	p.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	})
	p.wg.Go(func() { p.run(ctx) })
	return p, nil
}

func (p *provider) close() {
	p.stop()
	p.listener.Close()
	p.wg.Wait()
}

func (p *provider) body(op string) []byte {
	b, err := json.Marshal(map[string]any{"headers": struct{}{}, "namespace": "public", "serviceName": p.service, "groupName": "DEFAULT_GROUP", "module": "naming", "type": op,
		"instance": map[string]any{"ip": p.ip, "port": p.port, "weight": 1, "healthy": true, "enabled": true, "ephemeral": true, "clusterName": "DEFAULT", "metadata": map[string]string{}}})
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return b
}

func (p *provider) run(ctx context.Context) {
	for ctx.Err() == nil {
		at := int(p.want.Load()) % len(p.c.nodes)
		dialling, cancel := context.WithTimeout(ctx, 3*time.Second)
		conn, err := wire.Dial(dialling, wire.Options{Addr: p.c.nodes[at].http()})
		if err == nil {
			if _, err = conn.Request(dialling, nacos.TypeInstanceRequest, p.body(nacos.OpRegister)); err != nil {
				conn.Close()
			}
		}
		cancel()
		if err != nil {
			p.want.Add(1)
			time.Sleep(50 * time.Millisecond)
			continue
		}
		p.on.Store(int64(at))
		select {
		case <-ctx.Done():
		case <-p.moves:
		case <-conn.Done():
			p.want.Add(1)
		}
		p.on.Store(-1)
		if p.leaving.Load() {
			if _, err := conn.Request(ctx, nacos.TypeInstanceRequest, p.body(nacos.OpDeregister)); err == nil {
				p.leaving.Store(false)
				conn.Close()
				return
			}
		}
		conn.Close()
	}
}

// move has it connect to a node, and returns when it has registered there.
func (p *provider) move(ctx context.Context, to int) error {
	p.want.Store(int64(to))
	select {
	case p.moves <- struct{}{}:
	default:
	}
	return until(ctx, 10*time.Second, func() error {
		if p.on.Load() != int64(to) {
			return fmt.Errorf("the client has not registered on node %d", to)
		}
		return nil
	})
}

// deregister takes the instance away on purpose, and ends the client.
func (p *provider) deregister(ctx context.Context) error {
	p.leaving.Store(true)
	select {
	case p.moves <- struct{}{}:
	default:
	}
	return until(ctx, 10*time.Second, func() error {
		if p.leaving.Load() {
			return fmt.Errorf("the client has not deregistered")
		}
		return nil
	})
}

// somewhere waits until it is registered.
func (p *provider) somewhere(ctx context.Context) error {
	return until(ctx, 20*time.Second, func() error {
		if p.on.Load() < 0 {
			return fmt.Errorf("the client has not registered again")
		}
		return nil
	})
}

// listed says whether a node gives the instance to those who look for it.
func (p *provider) listed(ctx context.Context, n *node) (bool, error) {
	list, err := read[struct {
		Hosts []struct {
			IP      string `json:"ip"`
			Port    int    `json:"port"`
			Enabled bool   `json:"enabled"`
		} `json:"hosts"`
	}](ctx, n, "/nacos/v1/ns/instance/list?serviceName="+p.service)
	if err != nil {
		return false, err
	}
	for _, h := range list.Hosts {
		if h.IP == p.ip && h.Port == p.port && h.Enabled {
			return true, nil
		}
	}
	return false, nil
}

// off says whether a node has the instance and has it disabled.
func (p *provider) off(ctx context.Context, n *node) (bool, error) {
	status, body, err := get(ctx, n, "/nacos/v3/admin/ns/instance/list?serviceName="+p.service)
	if err != nil || status != http.StatusOK {
		return false, err
	}
	var list struct {
		Data []struct {
			IP      string `json:"ip"`
			Port    int    `json:"port"`
			Enabled bool   `json:"enabled"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return false, err
	}
	return slices.ContainsFunc(list.Data, func(h struct {
		IP      string `json:"ip"`
		Port    int    `json:"port"`
		Enabled bool   `json:"enabled"`
	}) bool {
		return h.IP == p.ip && h.Port == p.port && !h.Enabled
	}), nil
}
