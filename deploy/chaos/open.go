package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/starling-registry/starling/deploy/chaos/link"
	"github.com/starling-registry/starling/deploy/chaos/names"
	"github.com/starling-registry/starling/deploy/chaos/verdict"
	starling "github.com/starling-registry/starling/pkg/api"
)

const (
	// dnsName is in a zone that is kept for tests, RFC 6761.
	dnsName = "starling.test"
	// nodePort is of nodes that have a namespace for themselves.
	nodePort = 8848
)

// open makes the place for a run: the network, the cluster in it or in front of
// it, and the name that it has, if clients are to know one.
func (o *options) open(ctx context.Context, s *stage, sc *scenario, nodes []string) error {
	byName := o.byName || sc.byName
	switch {
	case len(o.servers) > 0:
		return o.openForeign(ctx, s)
	case o.root():
		return o.openRouter(s, sc, nodes, byName)
	}
	return o.openRelay(s, nodes, byName)
}

// openRouter gives each end a network namespace, with a DNS server for all.
func (o *options) openRouter(s *stage, sc *scenario, nodes []string, byName bool) error {
	router, err := link.NewRouter()
	if err != nil {
		return err
	}
	s.network = router
	if byName {
		// Before anything starts: a process has the resolv.conf of its start.
		if err := router.Nameserver(router.Address(link.Host)); err != nil {
			return err
		}
		server, err := names.Serve(net.JoinHostPort(router.Address(link.Host), "53"))
		if err != nil {
			return err
		}
		s.closing = append(s.closing, func() { server.Close() })
		s.serverName = net.JoinHostPort(dnsName, strconv.Itoa(nodePort))
		s.point = func(nodes []*node) error {
			var addresses []string
			for _, n := range nodes {
				addresses = append(addresses, n.host)
			}
			return server.Set(dnsName, addresses...)
		}
	}
	if s.cluster, err = newCluster(o.bin, s.dir, s.rec, router, nodePort, nodes, sc.disks); err != nil {
		return err
	}
	if byName {
		s.cluster.name = dnsName
		return s.point(s.cluster.all()) // the first ones find each other by it
	}
	return nil
}

// openRelay puts a front before each node, on loopback. A name is a front that
// leads to several.
func (o *options) openRelay(s *stage, nodes []string, byName bool) error {
	relay, err := link.NewRelay(0)
	if err != nil {
		return err
	}
	s.network = relay
	if s.cluster, err = newCluster(o.bin, s.dir, s.rec, relay, relay.Port(), nodes, false); err != nil {
		return err
	}
	if byName {
		return s.nameFront(relay, relay.Port())
	}
	return nil
}

// nameFront stands for a DNS name.
func (s *stage) nameFront(relay *link.Relay, port int) error {
	front, err := relay.Front("name", "", port, port+1000)
	if err != nil {
		return err
	}
	s.serverName = net.JoinHostPort(front, strconv.Itoa(port))
	s.point = func(nodes []*node) error { return relay.Point("name", namesOf(nodes)...) }
	return nil
}

// openForeign puts a front before each server that somebody else runs, so that
// its clients can be cut off from it.
func (o *options) openForeign(ctx context.Context, s *stage) error {
	relay, err := link.NewRelay(0)
	if err != nil {
		return err
	}
	s.network = relay
	s.cluster = &cluster{bin: o.bin, dir: s.dir, rec: s.rec, net: relay, control: o.control, foreign: true, service: ownService + "-" + strings.ToLower(rand.Text()[:8])}
	port := 0
	for i, server := range o.servers {
		host, p, err := starling.SplitServer(server)
		if err != nil {
			return err
		}
		n := &node{name: string(rune('a' + i)), cluster: s.cluster, bind: host, port: p, server: server}
		if n.host, err = relay.Front(n.name, host, p, p+1000); err != nil {
			return err
		}
		s.cluster.nodes = append(s.cluster.nodes, n)
		n.is(verdict.Up)
		s.say("%s is %s", n.name, server)
		if i > 0 && p != port && o.byName {
			return fmt.Errorf("--by-name: servers of one name have one port, %s have several", strings.Join(o.servers, ", "))
		}
		port = p
	}
	if err := s.cluster.recognise(ctx); err != nil {
		return err
	}
	if o.byName {
		return s.nameFront(relay, port)
	}
	return nil
}
