package httpapi

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/starling-registry/starling/pkg/api"
	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

// Clients tells who is attached to this node, and who subscribes on it and on
// the others. Its methods are called from any goroutine; the order of what
// they return does not matter.
type Clients interface {
	// IDs are those of the clients of this node: connections, HTTP clients
	// that it keeps, and persistent instances, which all nodes have.
	IDs() []string
	// Client finds one of them.
	Client(id string) (nacos.Client, bool)
	// Published and Subscribed tell what it registers and follows.
	Published(id string) []nacos.Published
	Subscribed(id string) []registry.ServiceKey
	// Subscribers asks this node, or all members that have not left. Those
	// that do not answer while the context lasts are in the result with an
	// error, so it is to return a little before.
	Subscribers(ctx context.Context, of Subscribed) []NodeSubscribers
}

// Subscribed says of what the subscribers are wanted.
type Subscribed struct {
	Service    registry.ServiceKey
	Contains   bool // of all services of the namespace whose group and name contain these
	Everywhere bool // on all nodes, not only on this one
}

// NodeSubscribers are those of one node.
type NodeSubscribers struct {
	Node, Name  string
	Error       string // why there is no answer, for people; "" if there is one
	Truncated   bool   // there are more
	Subscribers []Subscriber
}

// A Subscriber is a client with a service that it subscribes to.
type Subscriber struct {
	Service registry.ServiceKey
	api.Subscriber
}

// noClients is a node without any.
type noClients struct{}

func (noClients) IDs() []string                                             { return nil }
func (noClients) Client(string) (c nacos.Client, ok bool)                   { return c, false }
func (noClients) Published(string) []nacos.Published                        { return nil }
func (noClients) Subscribed(string) []registry.ServiceKey                   { return nil }
func (noClients) Subscribers(context.Context, Subscribed) []NodeSubscribers { return nil }

// subscribersTimeout bounds a question that other nodes are asked for.
const subscribersTimeout = 5 * time.Second

// subscribers serves GET service/subscribers of v1 and v3: who subscribes to
// the services whose name and group contain the given ones, on all nodes, or on
// this one with aggregation=false. Whoever does not answer is left out, as in
// Nacos; the native API tells.
func (s *Server) subscribers(c *call) error {
	key, err := c.service()
	if err != nil {
		return err
	}
	if key.Name == "" {
		return errMissing("serviceName")
	}
	number, size := 0, 0
	if c.version == v1 { // what is no number is 0
		number, _ = strconv.Atoi(cmp.Or(c.get("pageNo"), "1"))
		size, _ = strconv.Atoi(cmp.Or(c.get("pageSize"), "1000"))
	} else if number, size, err = c.page(100); err != nil {
		return err
	}
	everywhere := true
	if c.version == v1 { // only the word itself means true (http-api §3.2)
		everywhere = strings.EqualFold(cmp.Or(c.get("aggregation"), "true"), "true")
	} else if everywhere, err = c.flag(true, "aggregation"); err != nil {
		return err
	}
	all := s.whoSubscribes(c.r.Context(), Subscribed{key, true, everywhere})
	page := nacos.Page(all, number, size)
	if c.version == v1 {
		return c.encoded(nacos.EncodeSubscribersV1(page, len(all)))
	}
	list := nacos.NewListPage(len(all), number, size)
	for i := range page {
		list.Items = append(list.Items, nacos.SubscriberV3(&page[i]))
	}
	return c.answerJSON(list)
}

// whoSubscribes lists subscribers in an order that pages can be cut from.
func (s *Server) whoSubscribes(ctx context.Context, of Subscribed) []nacos.Subscriber {
	ctx, cancel := context.WithTimeout(ctx, subscribersTimeout)
	defer cancel()
	var all []nacos.Subscriber
	for _, n := range s.opts.Clients.Subscribers(ctx, of) {
		for _, r := range n.Subscribers {
			all = append(all, nacos.Subscriber{Service: r.Service, Clusters: r.Clusters, Client: r.Client, App: r.App, Agent: r.Agent, IP: r.IP})
		}
	}
	slices.SortFunc(all, func(a, b nacos.Subscriber) int {
		return cmp.Or(cmp.Compare(a.Service.Group, b.Service.Group), cmp.Compare(a.Service.Name, b.Service.Name), cmp.Compare(a.IP, b.IP), cmp.Compare(a.Client, b.Client))
	})
	return all
}

// clientIDs serves GET client/list: the clients of this node.
func (s *Server) clientIDs(c *call) error {
	ids := s.opts.Clients.IDs()
	slices.Sort(ids)
	return c.answerJSON(listed(ids))
}

// client finds the one that a request is about.
func (s *Server) client(c *call) (nacos.Client, error) {
	id := c.get("clientId")
	if id == "" {
		return nacos.Client{}, errMissingDeclared("clientId")
	}
	client, ok := s.opts.Clients.Client(id)
	if !ok {
		return client, errNoClient(id)
	}
	return client, nil
}

// clientDetail serves GET client. Of HTTP clients nothing is known but when
// they were heard last; of persistent instances not even that.
func (s *Server) clientDetail(c *call) error {
	client, err := s.client(c)
	if err != nil {
		return err
	}
	return c.encoded(client.Encode())
}

// published serves GET client/publish/list.
func (s *Server) published(c *call) error {
	client, err := s.client(c)
	if err != nil {
		return err
	}
	all := s.opts.Clients.Published(client.ID)
	slices.SortFunc(all, func(a, b nacos.Published) int {
		return cmp.Or(a.Service.Compare(b.Service), a.InstanceKey.Compare(b.InstanceKey))
	})
	encode := nacos.EncodePublishedV2
	if c.version == v3 {
		encode = nacos.EncodePublishedV3
	}
	return c.encoded(encode(all))
}

// subscribed serves GET client/subscribe/list.
func (s *Server) subscribed(c *call) error {
	client, err := s.client(c)
	if err != nil {
		return err
	}
	all := s.opts.Clients.Subscribed(client.ID)
	slices.SortFunc(all, registry.ServiceKey.Compare)
	encode := nacos.EncodeSubscribedV2
	if c.version == v3 {
		encode = nacos.EncodeSubscribedV3
	}
	return c.encoded(encode(&client, all))
}

// ofService reads the service that a request is about, and an address that
// narrows it: an ip, a port, or both. A service has one kind, whatever
// "ephemeral" says; it is only looked at (http-api §3.3).
func (c *call) ofService() (key registry.ServiceKey, ip string, port int, err error) {
	if key, err = c.named(); err != nil {
		return key, "", 0, err
	}
	if _, err = c.flag(true, "ephemeral"); err != nil {
		return key, "", 0, err
	}
	ip = c.raw("ip")
	port, err = checkAddress(ip, c.raw("port"))
	return key, ip, port, err
}

// publishers serves GET client/service/publisher/list: whose instances are
// shown, whichever node the client is attached to. Without ip and port all of
// them; Nacos v2 then has none (http-api §7.3).
func (s *Server) publishers(c *call) error {
	key, ip, port, err := c.ofService()
	if err != nil {
		return err
	}
	var all []*registry.Shown
	for _, i := range s.opts.Registry.Snapshot(key).Instances {
		if (ip == "" || i.IP == ip) && (c.raw("port") == "" || i.Port == port) {
			all = append(all, i)
		}
	}
	encode := nacos.EncodePublishersV2
	if c.version == v3 {
		encode = nacos.EncodePublishersV3
	}
	return c.encoded(encode(all))
}

// subscribing serves GET client/service/subscriber/list: the clients of this
// node that subscribe to a service. All of them have a connection, and with it
// the port 0 in the Nacos API.
func (s *Server) subscribing(c *call) error {
	key, ip, port, err := c.ofService()
	if err != nil {
		return err
	}
	all := slices.DeleteFunc(s.whoSubscribes(c.r.Context(), Subscribed{Service: key}), func(r nacos.Subscriber) bool {
		return ip != "" && r.IP != ip || port != 0
	})
	encode := nacos.EncodeSubscribingV2
	if c.version == v3 {
		encode = nacos.EncodeSubscribingV3
	}
	return c.encoded(encode(all))
}
