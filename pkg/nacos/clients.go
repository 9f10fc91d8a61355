package nacos

import (
	"encoding/json"

	"github.com/starling-registry/starling/pkg/registry"
)

// What the HTTP API tells of clients and subscribers (http-api §5.9, §7.3,
// §8.2). The versions have other names for the same.

// A Client is one that registers or subscribes.
type Client struct {
	ID         string
	Ephemeral  bool
	Updated    int64 // milliseconds; 0: not known
	Connection bool  // it has one; else the rest is not known
	App, Agent string
	IP         string
	Port       int
}

// Encode is the answer of v2 and v3.
func (c *Client) Encode() ([]byte, error) {
	out := struct {
		ID          string  `json:"clientId"`
		Ephemeral   bool    `json:"ephemeral"`
		Updated     int64   `json:"lastUpdatedTime"`
		Type        string  `json:"clientType"`
		ConnectType *string `json:"connectType"`
		App         *string `json:"appName"`
		Version     *string `json:"version"`
		IP          *string `json:"clientIp"`
		Port        int     `json:"clientPort"`
	}{ID: c.ID, Ephemeral: c.Ephemeral, Updated: c.Updated, Type: "ipPort"}
	if c.Connection {
		out.Type, out.ConnectType, out.App, out.Version, out.IP, out.Port = "connection", new("GRPC"), &c.App, &c.Agent, &c.IP, c.Port
	}
	return json.Marshal(out)
}

// A Published is an instance that a client has registered.
type Published struct {
	Service registry.ServiceKey
	registry.InstanceKey
}

// The service of a row: v3 calls the namespace something else.
type rowV2 struct {
	Namespace string `json:"namespace"`
	Group     string `json:"group"`
	Service   string `json:"serviceName"`
}

type rowV3 struct {
	Namespace string `json:"namespaceId"`
	Group     string `json:"groupName"`
	Service   string `json:"serviceName"`
}

type publisherV2 struct {
	Client  string `json:"clientId,omitempty"`
	IP      string `json:"ip"`
	Port    int    `json:"port"`
	Cluster string `json:"cluster"`
}

type publisherV3 struct {
	Client  *string `json:"clientId"`
	IP      string  `json:"ip"`
	Port    int     `json:"port"`
	Cluster string  `json:"clusterName"`
}

type subscriberV2 struct {
	App     string `json:"app"`
	Agent   string `json:"agent"`
	Address string `json:"addr"`
}

type subscriberV3 struct {
	Client  *string `json:"clientId"`
	App     string  `json:"appName"`
	Agent   string  `json:"agent"`
	Address string  `json:"address"`
}

// EncodePublishedV2 tells what a client has registered.
func EncodePublishedV2(all []Published) ([]byte, error) {
	type row struct {
		rowV2
		Instance publisherV2 `json:"registeredInstance"`
	}
	rows := make([]row, len(all))
	for i, p := range all {
		rows[i] = row{rowV2{p.Service.Namespace, p.Service.Group, p.Service.Name}, publisherV2{IP: p.IP, Port: p.Port, Cluster: p.Cluster}}
	}
	return json.Marshal(rows)
}

// EncodePublishedV3 is EncodePublishedV2 of v3. Nacos leaves the client out of
// its rows: it is the one that was asked for.
func EncodePublishedV3(all []Published) ([]byte, error) {
	type row struct {
		rowV3
		Publisher  publisherV3   `json:"publisherInfo"`
		Subscriber *subscriberV3 `json:"subscriberInfo"`
	}
	rows := make([]row, len(all))
	for i, p := range all {
		rows[i] = row{rowV3: rowV3{p.Service.Namespace, p.Service.Group, p.Service.Name}, Publisher: publisherV3{IP: p.IP, Port: p.Port, Cluster: p.Cluster}}
	}
	return json.Marshal(rows)
}

// EncodeSubscribedV2 tells what a client subscribes to.
func EncodeSubscribedV2(c *Client, services []registry.ServiceKey) ([]byte, error) {
	type row struct {
		rowV2
		Subscriber subscriberV2 `json:"subscriberInfo"`
	}
	rows := make([]row, len(services))
	for i, s := range services {
		rows[i] = row{rowV2{s.Namespace, s.Group, s.Name}, subscriberV2{c.App, c.Agent, c.IP}}
	}
	return json.Marshal(rows)
}

// EncodeSubscribedV3 is EncodeSubscribedV2 of v3.
func EncodeSubscribedV3(c *Client, services []registry.ServiceKey) ([]byte, error) {
	type row struct {
		rowV3
		Publisher  *publisherV3 `json:"publisherInfo"`
		Subscriber subscriberV3 `json:"subscriberInfo"`
	}
	rows := make([]row, len(services))
	for i, s := range services {
		rows[i] = row{rowV3: rowV3{s.Namespace, s.Group, s.Name}, Subscriber: subscriberV3{App: c.App, Agent: c.Agent, Address: c.IP}}
	}
	return json.Marshal(rows)
}

// EncodePublishersV2 tells who has registered the instances.
func EncodePublishersV2(all []*registry.Shown) ([]byte, error) {
	rows := make([]publisherV2, len(all))
	for i, s := range all {
		rows[i] = publisherV2{s.Client, s.IP, s.Port, s.Cluster}
	}
	return json.Marshal(rows)
}

// EncodePublishersV3 is EncodePublishersV2 of v3.
func EncodePublishersV3(all []*registry.Shown) ([]byte, error) {
	rows := make([]publisherV3, len(all))
	for i, s := range all {
		rows[i] = publisherV3{&s.Client, s.IP, s.Port, s.Cluster}
	}
	return json.Marshal(rows)
}

// A Subscriber is a client with a service that it subscribes to. Nacos shows
// the port 0 for those that have a connection.
type Subscriber struct {
	Service    registry.ServiceKey
	Clusters   string
	Client     string
	App, Agent string
	IP         string
}

// EncodeSubscribingV2 tells which clients subscribe to a service.
func EncodeSubscribingV2(all []Subscriber) ([]byte, error) {
	type row struct {
		Client string `json:"clientId"`
		IP     string `json:"ip"`
		Port   int    `json:"port"`
	}
	rows := make([]row, len(all))
	for i, s := range all {
		rows[i] = row{Client: s.Client, IP: s.IP}
	}
	return json.Marshal(rows)
}

// EncodeSubscribingV3 is EncodeSubscribingV2 of v3.
func EncodeSubscribingV3(all []Subscriber) ([]byte, error) {
	rows := make([]subscriberV3, len(all))
	for i, s := range all {
		rows[i] = subscriberV3{&s.Client, s.App, s.Agent, s.IP}
	}
	return json.Marshal(rows)
}

// EncodeSubscribersV1 is a page of the subscribers of services; count is that
// of all of them.
func EncodeSubscribersV1(page []Subscriber, count int) ([]byte, error) {
	type row struct {
		Address   string `json:"addrStr"`
		Agent     string `json:"agent"`
		App       string `json:"app"`
		IP        string `json:"ip"`
		Port      int    `json:"port"`
		Namespace string `json:"namespaceId"`
		Service   string `json:"serviceName"`
		Clusters  string `json:"cluster"`
	}
	rows := make([]row, len(page))
	for i, s := range page {
		rows[i] = row{s.IP, s.Agent, s.App, s.IP, 0, s.Service.Namespace, s.Service.Grouped(), s.Clusters}
	}
	return json.Marshal(struct {
		Subscribers []row `json:"subscribers"`
		Count       int   `json:"count"`
	}{rows, count})
}

// SubscriberV3 is a line in the list of v3.
func SubscriberV3(s *Subscriber) any {
	return struct {
		Namespace string `json:"namespaceId"`
		Group     string `json:"groupName"`
		Service   string `json:"serviceName"`
		IP        string `json:"ip"`
		Port      int    `json:"port"`
		Agent     string `json:"agent"`
		App       string `json:"appName"`
		Address   string `json:"address"`
	}{s.Service.Namespace, s.Service.Group, s.Service.Name, s.IP, 0, s.Agent, s.App, s.IP + ":0"}
}
