package grpcapi

import (
	"cmp"
	"time"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/push"
	"github.com/starling-registry/starling/pkg/registry"
)

// A Client is a connection of an SDK, as operators see it.
type Client struct {
	ID     string
	IP     string    // as the client says; else where it connects from
	Port   int       // that it connects from
	Agent  string    // as Nacos-Java-Client:v2.5.1
	App    string    // name of the application; "unknown" is what most SDKs say
	Active time.Time // when its last message came
}

// UnknownApp is the application of whoever does not tell.
const UnknownApp = "unknown"

// A Subscriber is a client with one of its subscriptions.
type Subscriber struct {
	Client
	push.Subscription
}

// A Published is one instance that a client has registered.
type Published struct {
	Service  registry.ServiceKey
	Instance *registry.Instance
}

// ClientIDs lists the clients of this node, in no order.
func (s *Server) ClientIDs() []string {
	all := s.registered()
	ids := make([]string, len(all))
	for i, c := range all {
		ids[i] = c.id
	}
	return ids
}

// Client finds a client of this node.
func (s *Server) Client(id string) (Client, bool) {
	c := s.find(id)
	if c == nil {
		return Client{}, false
	}
	return c.tell(), true
}

// Subscribers lists the subscriptions of a service on this node, in no order.
func (s *Server) Subscribers(key registry.ServiceKey) []Subscriber {
	subs := s.opts.Push.Subscriptions(key)
	all := make([]Subscriber, 0, len(subs))
	for _, sub := range subs {
		if c, ok := sub.Conn.(*conn); ok {
			all = append(all, Subscriber{c.tell(), sub})
		}
	}
	return all
}

// SubscribedBy lists the services that a client of this node subscribes to, in
// no order.
func (s *Server) SubscribedBy(id string) []registry.ServiceKey {
	c := s.find(id)
	if c == nil {
		return nil
	}
	var keys []registry.ServiceKey
	for _, sub := range c.subscriber.Subscriptions() {
		keys = append(keys, sub.Service)
	}
	return keys
}

// PublishedBy lists what a client of this node has registered, in no order.
func (s *Server) PublishedBy(id string) []Published {
	c := s.find(id)
	if c == nil {
		return nil
	}
	var all []Published
	for _, key := range c.client.Services() {
		instances, _ := c.client.Published(key)
		for _, i := range instances {
			all = append(all, Published{key, i})
		}
	}
	return all
}

func (s *Server) find(id string) *conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if c.id == id {
			return c
		}
	}
	return nil
}

// tell is for connections that are set up.
func (c *conn) tell() Client {
	app := c.labelled
	if said := c.app.Load(); app == "" && said != nil {
		app = *said
	}
	ip := c.clientIP
	if nacos.Blank(ip) {
		ip = c.host
	}
	return Client{ID: c.id, IP: ip, Port: c.port, Agent: c.clientVersion, App: cmp.Or(app, UnknownApp), Active: time.Now().Add(-c.idle())}
}
