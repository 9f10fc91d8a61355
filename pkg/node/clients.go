package node

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/starling-registry/starling/cluster"
	"github.com/starling-registry/starling/pkg/api"
	"github.com/starling-registry/starling/pkg/grpcapi"
	"github.com/starling-registry/starling/pkg/health"
	"github.com/starling-registry/starling/pkg/httpapi"
	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/push"
	"github.com/starling-registry/starling/pkg/registry"
	starlingv1 "github.com/starling-registry/starling/proto"
)

// Bounds of an answer about subscribers, of one node and of all together, and
// of the questions to all of them that are answered at the same time.
const (
	maxSubscribers      = 100_000
	maxSubscribersBytes = 8 << 20 // half of what a message between nodes may have
	maxAsking           = 4
)

// A clients tells who is attached to this node, and asks the others
// (httpapi.Clients).
type clients struct {
	*operations
	sdks   *grpcapi.Server
	beats  *health.Beats
	engine *push.Engine
	asking chan struct{} // one for each question under way
}

func (c *clients) IDs() []string {
	ids := append(c.sdks.ClientIDs(), c.beats.ClientIDs()...)
	persistent := map[string]bool{} // one address may be in several services
	c.eachPersistent(func(_ registry.ServiceKey, i *registry.Shown) { persistent[i.Client] = true })
	for id := range persistent {
		ids = append(ids, id)
	}
	return ids
}

func (c *clients) Client(id string) (nacos.Client, bool) {
	if is, ok := c.sdks.Client(id); ok {
		return nacos.Client{ID: id, Ephemeral: true, Updated: is.Active.UnixMilli(), Connection: true, App: is.App, Agent: is.Agent, IP: is.IP, Port: is.Port}, true
	}
	if heard, _, ok := c.beats.Client(id); ok {
		return nacos.Client{ID: id, Ephemeral: true, Updated: heard.UnixMilli()}, true
	}
	return nacos.Client{ID: id}, len(c.persistent(id)) > 0
}

func (c *clients) Published(id string) (all []nacos.Published) {
	for _, p := range c.sdks.PublishedBy(id) {
		all = append(all, nacos.Published{Service: p.Service, InstanceKey: p.Instance.InstanceKey})
	}
	if _, registered, ok := c.beats.Client(id); ok {
		for key, i := range registered {
			all = append(all, nacos.Published{Service: key, InstanceKey: i.InstanceKey})
		}
	}
	return append(all, c.persistent(id)...)
}

// persistent finds the persistent instances of an address.
func (c *clients) persistent(id string) (all []nacos.Published) {
	if _, _, ephemeral, ok := nacos.ParseClientID(id); !ok || ephemeral {
		return nil
	}
	c.eachPersistent(func(key registry.ServiceKey, i *registry.Shown) {
		if i.Client == id {
			all = append(all, nacos.Published{Service: key, InstanceKey: i.InstanceKey})
		}
	})
	return all
}

// eachPersistent visits persistent instances, evicted ones too: like those of
// other clients they are registered.
func (c *clients) eachPersistent(visit func(registry.ServiceKey, *registry.Shown)) {
	for _, key := range c.registry.PersistentServices() {
		snap := c.registry.Snapshot(key)
		for _, list := range [...][]*registry.Shown{snap.Instances, snap.Evicted} {
			for _, i := range list {
				if i.Persistent {
					visit(key, i)
				}
			}
		}
	}
}

func (c *clients) Subscribed(id string) []registry.ServiceKey { return c.sdks.SubscribedBy(id) }

func (c *clients) Subscribers(ctx context.Context, of httpapi.Subscribed) []httpapi.NodeSubscribers {
	ctx, cancel := context.WithTimeout(ctx, peerAnswer)
	defer cancel()
	var members []cluster.Member
	for _, m := range c.view().Members {
		if m.Self || of.Everywhere && m.State != cluster.Left {
			members = append(members, m)
		}
	}
	all := make([]httpapi.NodeSubscribers, len(members))
	for i, m := range members {
		all[i].Node, all[i].Name = m.ID, m.Name
	}
	select {
	case c.asking <- struct{}{}:
		defer func() { <-c.asking }()
	case <-ctx.Done():
		for i := range all {
			all[i].Error = "too many are asking this at the same time"
		}
		return all
	}
	req := &starlingv1.SubscribersRequest{Namespace: of.Service.Namespace, Group: of.Service.Group, Service: of.Service.Name, Contains: of.Contains}
	var wg sync.WaitGroup
	for i, m := range members {
		wg.Go(func() {
			r := new(starlingv1.SubscribersResponse)
			if m.Self {
				r = c.local(req)
			} else if err := c.call(ctx, m.ID, "Subscribers", req, r); err != nil {
				all[i].Error = whyNot(m, err)
				return
			}
			all[i].Truncated = r.Truncated
			all[i].Subscribers = make([]httpapi.Subscriber, len(r.Subscribers))
			for n, s := range r.Subscribers {
				all[i].Subscribers[n] = subscriber(m.ID, s)
			}
		})
	}
	wg.Wait()
	room := maxSubscribers
	for i := range all {
		if n := &all[i]; len(n.Subscribers) > room {
			n.Subscribers, n.Truncated = n.Subscribers[:room], true
		}
		room -= len(all[i].Subscribers)
	}
	return all
}

// whyNot tells people why a member has not answered.
func whyNot(m cluster.Member, err error) string {
	code := status.Code(err)
	switch {
	case code == codes.Unimplemented:
		return "it is of an older release, which does not tell"
	case m.State == cluster.Refused:
		return "its ports refuse, the process is gone"
	case m.State == cluster.Silent:
		return "it is silent: paused, cut off or powered off"
	case code == codes.DeadlineExceeded:
		return "no answer in time"
	case code == codes.Canceled, code == codes.Unavailable:
		return "the connection to it has ended"
	}
	return err.Error()
}

// answer is what another node is told.
func (c *clients) answer(body []byte) ([]byte, error) {
	req := new(starlingv1.SubscribersRequest)
	if err := proto.Unmarshal(body, req); err != nil {
		return nil, fmt.Errorf("subscribers: %w", err)
	}
	return proto.Marshal(c.local(req))
}

// local lists the subscribers on this node, as many as an answer has room for:
// of a single service the longest behind.
func (c *clients) local(req *starlingv1.SubscribersRequest) *starlingv1.SubscribersResponse {
	var l listing
	services := []registry.ServiceKey{{Namespace: req.Namespace, Group: req.Group, Name: req.Service}}
	if req.Contains {
		services = slices.DeleteFunc(c.engine.Followed(req.Namespace), func(k registry.ServiceKey) bool {
			return !strings.Contains(k.Group, req.Group) || !strings.Contains(k.Name, req.Service)
		})
	}
	now := time.Now()
	for _, key := range services {
		subs := c.sdks.Subscribers(key)
		slices.SortFunc(subs, func(a, b grpcapi.Subscriber) int { return cmp.Compare(b.BehindFor(now), a.BehindFor(now)) })
		for _, s := range subs {
			if !l.add(&starlingv1.Subscriber{Namespace: key.Namespace, Group: key.Group, Service: key.Name, Clusters: s.Clusters,
				Client: s.ID, Ip: s.IP, Port: uint32(s.Port), Agent: s.Agent, App: s.App,
				Acked: uint64(s.AckedTime), BehindMillis: uint64(s.BehindFor(now).Milliseconds())}) {
				return &l.SubscribersResponse
			}
		}
	}
	return &l.SubscribersResponse
}

// A listing is an answer in the making.
type listing struct {
	starlingv1.SubscribersResponse
	bytes int
}

// add reports false when there is no room for one more.
func (l *listing) add(s *starlingv1.Subscriber) bool {
	l.bytes += proto.Size(s) + 5 // its tag and length take no more
	if len(l.Subscribers) == maxSubscribers || l.bytes > maxSubscribersBytes {
		l.Truncated = true
		return false
	}
	l.Subscribers = append(l.Subscribers, s)
	return true
}

// subscriber reads what a node says of one.
func subscriber(node string, s *starlingv1.Subscriber) httpapi.Subscriber {
	out := httpapi.Subscriber{Service: registry.ServiceKey{Namespace: s.Namespace, Group: s.Group, Name: s.Service},
		Subscriber: api.Subscriber{Node: node, Client: s.Client, IP: s.Ip, Port: int(s.Port), Agent: s.Agent, App: s.App, Clusters: s.Clusters,
			BehindMillis: int64(s.BehindMillis)}}
	if s.Acked != 0 {
		out.Acked = time.UnixMilli(int64(s.Acked)).UTC()
	}
	return out
}
