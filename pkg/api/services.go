package api

import (
	"context"
	"net/url"
	"strconv"
	"time"
)

// Kinds of a service: which instances it may have.
const (
	KindEphemeral  = "ephemeral"  // their clients keep them, by a connection or by beats
	KindPersistent = "persistent" // they are in the log of the cluster, and stay until they are deregistered
	KindFree       = "free"       // it has none yet: whichever comes first
)

// A ServicesQuery says which services are asked for. The zero value asks for
// the first 1,000 of the namespace public.
type ServicesQuery struct {
	Namespace     string // "" is public
	AllNamespaces bool   // instead of one
	Group         string // "" is all groups
	Name          string // that the name of the service contains; "" is all names
	Limit, Offset int    // a page of the list; a limit of 0 is 1,000, and 10,000 is the most
}

// Services is the answer to GET /starling/v1/services: a page of the services
// that one node knows.
type Services struct {
	Node     string           `json:"node"` // id of the node that answers
	At       time.Time        `json:"at"`   // its clock when it answered; the other times are by the same clock
	Total    int              `json:"total"`
	Offset   int              `json:"offset"`   // of the first of the page
	Services []ServiceSummary `json:"services"` // the page, by namespace, group and name
}

// A ServiceSummary is a line of [Services].
type ServiceSummary struct {
	Service
	Kind      string   `json:"kind"`      // ephemeral, persistent or free
	Instances int      `json:"instances"` // disabled ones included, evicted ones not
	Healthy   int      `json:"healthy"`   // of the instances, whether enabled or not
	Enabled   int      `json:"enabled"`   // of the instances: only these are shown to clients
	Evicted   int      `json:"evicted"`   // kept away from clients by operators
	Clusters  []string `json:"clusters"`  // that the instances stand in, sorted
	// Threshold is the share of healthy instances at which protection begins:
	// then all are shown to clients as healthy. Protected: it has begun.
	Threshold float64   `json:"threshold"`
	Protected bool      `json:"protected"`
	Changed   time.Time `json:"changed,omitzero"` // when readers on this node saw the last change; zero: there was none
}

// Instances is the answer to GET /starling/v1/instances: what one node knows
// of the instances of a service.
type Instances struct {
	Service
	Node      string     `json:"node"`      // id of the node that answers
	At        time.Time  `json:"at"`        // its clock when it answered; the other times are by the same clock
	Kind      string     `json:"kind"`      // ephemeral, persistent or free
	Threshold float64    `json:"threshold"` // as in the list of services
	Protected bool       `json:"protected"` // all that follow are shown to clients as healthy
	Instances []Standing `json:"instances"` // by address and cluster, evicted ones included
}

// States of a [Standing].
const (
	StandsLiving   = "living"
	StandsOrphaned = "orphaned" // the node of its client is gone; it is shown as last seen while a lease runs
	StandsMoving   = "moving"   // the connection of its client is gone, and the client is expected at another node
)

// A Standing is an instance and who stands behind it.
type Standing struct {
	InstanceKey
	ID        string            `json:"id"` // as its client gave it; "": none
	Weight    float64           `json:"weight"`
	Healthy   bool              `json:"healthy"`
	Enabled   bool              `json:"enabled"`
	Ephemeral bool              `json:"ephemeral"`
	Metadata  map[string]string `json:"metadata"`
	State     string            `json:"state"`  // living, orphaned, moving, or a newer one
	Client    string            `json:"client"` // id of the client that registered it
	// Node is the id of the node that the client is attached to; "": it is
	// persistent, and with no node.
	Node       string    `json:"node"`
	NodeName   string    `json:"nodeName"`            // "" is not known
	Registered time.Time `json:"registered,omitzero"` // by its client, or changed by it since; zero: not known
	Evicted    bool      `json:"evicted"`             // an operator keeps it away from clients
	Edit       *Edit     `json:"edit,omitempty"`      // what operators have set; the values above are with it
}

// Services tells which services the node knows.
func (c *Client) Services(ctx context.Context, of ServicesQuery) (*Services, error) {
	q := query("namespace", of.Namespace, "group", of.Group, "name", of.Name)
	if of.AllNamespaces {
		q.Set("allNamespaces", "true")
	}
	for name, n := range map[string]int{"limit": of.Limit, "offset": of.Offset} {
		if n != 0 {
			q.Set(name, strconv.Itoa(n))
		}
	}
	return get[Services](ctx, c, "/services", q)
}

// Instances tells the instances of a service, of all clusters if cluster is "".
// Namespace and group may be "", for the defaults of Nacos.
func (c *Client) Instances(ctx context.Context, s Service, cluster string) (*Instances, error) {
	return get[Instances](ctx, c, "/instances", query("namespace", s.Namespace, "group", s.Group, "service", s.Name, "cluster", cluster))
}

// query is of names and values by turns; what is "" is left out.
func query(pairs ...string) url.Values {
	q := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	return q
}
