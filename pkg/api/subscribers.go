package api

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"time"
)

// Subscribers is the answer to GET /starling/v1/subscribers: who is told of
// the changes of a service, and who is behind, over the whole cluster.
type Subscribers struct {
	Service
	Subscribers []Subscriber      `json:"subscribers"` // the longest behind first
	Nodes       []SubscribersNode `json:"nodes"`       // that were asked, by id
}

// A Subscriber is a client that subscribes to a service.
type Subscriber struct {
	Node   string `json:"node"`   // id of the node that the client is connected to
	Client string `json:"client"` // id of its connection
	IP     string `json:"ip"`     // as the client says; else where it connects from
	Port   int    `json:"port"`   // that it connects from
	Agent  string `json:"agent"`  // as Nacos-Java-Client:v2.5.1
	App    string `json:"app"`    // as the client calls itself; most do not, and are "unknown"
	// Clusters are those that it wants to see, as it wrote them; "": all.
	Clusters string `json:"clusters"`
	// Acked is the time (lastRefTime) of the newest list that the client has
	// acknowledged; zero: none.
	Acked time.Time `json:"acked,omitzero"`
	// BehindMillis is for how long there has been something newer that it has
	// not acknowledged; 0: it has everything. A push under way counts, so a
	// few milliseconds are nothing to worry about.
	BehindMillis int64 `json:"behindMillis"`
}

// A SubscribersNode is what a node contributed to [Subscribers].
type SubscribersNode struct {
	Node string `json:"node"`
	Name string `json:"name"`
	// Error says why it did not answer; "": it did. Its subscribers are then
	// missing.
	Error string `json:"error,omitempty"`
	// Truncated: it has more subscribers than an answer has room for.
	Truncated bool `json:"truncated,omitempty"`
}

// SortSubscribers puts the longest behind first, and gives the others an order
// that stays.
func SortSubscribers(all []Subscriber) {
	slices.SortFunc(all, func(a, b Subscriber) int {
		return cmp.Or(cmp.Compare(b.BehindMillis, a.BehindMillis), cmp.Compare(a.Node, b.Node), cmp.Compare(a.IP, b.IP), cmp.Compare(a.Client, b.Client))
	})
}

// Subscribers tells who subscribes to a service. Namespace and group may be
// "", for the defaults of Nacos.
func (c *Client) Subscribers(ctx context.Context, s Service) (*Subscribers, error) {
	q := url.Values{"service": {s.Name}}
	for k, v := range map[string]string{"namespace": s.Namespace, "group": s.Group} {
		if v != "" {
			q.Set(k, v)
		}
	}
	return get[Subscribers](ctx, c, "/subscribers", q)
}
