package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/starling-registry/starling/pkg/client/wire"
	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/test/simnet"
)

// A trio is three nodes and a user who asks them.
type trio struct {
	*Cluster
	t    *testing.T
	user *simnet.Host
	web  *http.Client
}

func threeNodes(t *testing.T, f func(*trio)) {
	var dirs []string
	for i := range 3 {
		dirs = append(dirs, filepath.Join(t.TempDir(), fmt.Sprint("node", i)))
	}
	synctest.Test(t, func(t *testing.T) {
		c := &trio{Cluster: newCluster(Options{Seed: 1, Nodes: 3, Link: ordinary}, dirs), t: t}
		c.openShop()
		c.user = c.net.Host("user", "10.0.6.1")
		c.web = &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) { return c.user.Dial(ctx, addr) }}}
		defer c.Stop()
		defer c.user.Crash()
		for _, n := range c.nodes {
			if err := n.Start(); err != nil {
				t.Fatal(err)
			}
		}
		for i := range c.nodes {
			c.until(func() bool { status, _ := c.get(i, "/readyz"); return status == 200 })
		}
		f(c)
	})
}

// What the native API says.
type subscribers struct {
	Subscribers []struct {
		Node, Client, IP, Agent, App, Clusters string
		Port                                   int
		Acked                                  time.Time
		BehindMillis                           int64
	}
	Nodes []subscribersNode
}

type subscribersNode struct {
	Node, Name, Error string
	Truncated         bool
}

func (c *trio) get(i int, path string) (int, string) {
	c.t.Helper()
	resp, err := c.web.Get(fmt.Sprintf("http://10.0.0.%d:8848%s", i+1, path))
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func (c *trio) until(holds func() bool) {
	c.t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			c.t.Fatal("it does not come true")
		}
	}
}

// connect subscribes to a service at a node. Pushes that take answers nil for
// are acknowledged.
func (c *trio) connect(i int, takes func() error) *wire.Conn {
	c.t.Helper()
	conn, err := wire.Dial(c.t.Context(), wire.Options{Addr: fmt.Sprintf("10.0.0.%d:8848", i+1), Version: "Nacos-Go-Client:v2.3.5", Headers: map[string]string{"app": "till"}, DialContext: c.user.Dial,
		Push: func(*nacos.Payload) error { return takes() }})
	if err != nil {
		c.t.Fatal(err)
	}
	c.request(conn, "SubscribeServiceRequest", `"subscribe":true,"clusters":"a,b"`)
	return conn
}

func (c *trio) request(conn *wire.Conn, typ, body string) {
	c.t.Helper()
	if _, err := conn.Request(c.t.Context(), typ, []byte(`{"namespace":"public","groupName":"DEFAULT_GROUP","serviceName":"order",`+body+`}`)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *trio) subscribers(i int) (s subscribers) {
	c.t.Helper()
	status, body := c.get(i, "/starling/v1/subscribers?service=order")
	if err := json.Unmarshal([]byte(body), &s); err != nil || status != 200 {
		c.t.Fatal(status, body)
	}
	return s
}

func TestSubscribersOfAllNodes(t *testing.T) {
	threeNodes(t, func(c *trio) {
		fine := func() error { return nil }
		refuses := func() error { return errors.New("no") }
		a, b := c.connect(0, fine), c.connect(1, refuses)
		defer a.Close()
		defer b.Close()
		c.request(a, "InstanceRequest", `"type":"registerInstance","instance":{"ip":"10.0.6.1","port":80,"clusterName":"a"}`)
		time.Sleep(30 * time.Second)

		s := c.subscribers(2)
		if len(s.Subscribers) != 2 || len(s.Nodes) != 3 || slices.ContainsFunc(s.Nodes, func(n subscribersNode) bool { return n.Error != "" || n.Truncated }) {
			t.Fatalf("%+v", s)
		}
		names := map[string]string{}
		for _, n := range s.Nodes {
			names[n.Node] = n.Name
		}
		late, well := s.Subscribers[0], s.Subscribers[1] // the one behind is the first
		if names[late.Node] != "node1" || late.BehindMillis < 29_000 || late.BehindMillis > 31_000 || !late.Acked.IsZero() {
			t.Errorf("of who refuses: %+v", late)
		}
		if names[well.Node] != "node0" || well.BehindMillis != 0 || time.Since(well.Acked) > 31*time.Second || well.Client != a.ID() ||
			well.IP != "10.0.6.1" || well.Port == 0 || well.Agent != "Nacos-Go-Client:v2.3.5" || well.App != "till" || well.Clusters != "a,b" {
			t.Errorf("of the other: %+v", well)
		}

		// Nacos' API has the same everywhere, or what this node has.
		count := func(query string) (n int) {
			t.Helper()
			_, body := c.get(2, "/nacos/v1/ns/service/subscribers?"+query)
			if _, err := fmt.Sscanf(body[strings.LastIndex(body, `"count":`):], `"count":%d}`, &n); err != nil {
				t.Error(err, body)
			}
			return n
		}
		for query, want := range map[string]int{"serviceName=order": 2, "serviceName=rde": 2, "serviceName=r&groupName=DEF": 2, "serviceName=orders": 0,
			"serviceName=order&groupName=other": 0, "serviceName=order&namespaceId=other": 0, "serviceName=order&aggregation=false": 0} {
			if n := count(query); n != want {
				t.Errorf("%s: %d, want %d", query, n, want)
			}
		}

		// Clients are told of by the node that has them.
		has := func(i int, path, want string) {
			t.Helper()
			if status, body := c.get(i, path); status != 200 || !strings.Contains(body, want) {
				t.Errorf("node %d, %s: %d %s", i, path, status, body)
			}
		}
		has(0, "/nacos/v2/ns/client/list", `"data":["`+a.ID()+`"]`)
		has(0, "/nacos/v2/ns/client?clientId="+a.ID(), `"appName":"till","version":"Nacos-Go-Client:v2.3.5","clientIp":"10.0.6.1"`)
		has(0, "/nacos/v2/ns/client/publish/list?clientId="+a.ID(), `"serviceName":"order","registeredInstance":{"ip":"10.0.6.1","port":80,"cluster":"a"}`)
		has(0, "/nacos/v3/admin/ns/client/subscribe/list?clientId="+a.ID(), `"serviceName":"order","publisherInfo":null`)
		has(2, "/nacos/v2/ns/client/service/publisher/list?serviceName=order", `{"clientId":"`+a.ID()+`"`)
		has(2, "/nacos/v2/ns/client/service/subscriber/list?serviceName=order", `"data":[]`)
		if status, _ := c.get(1, "/nacos/v2/ns/client?clientId="+a.ID()); status != 404 {
			t.Errorf("node 1 has a client of node 0: %d", status)
		}
		c.http("/nacos/v1/ns/instance?serviceName=beats&ip=10.0.6.9&port=7")
		c.http("/nacos/v1/ns/instance?serviceName=stays&ip=10.0.6.9&port=8&ephemeral=false")
		beating, staying := 0, 0
		for i := range 3 {
			c.until(func() bool { _, body := c.get(i, "/nacos/v2/ns/client/list"); return strings.Contains(body, "#false") })
			_, body := c.get(i, "/nacos/v2/ns/client/list")
			staying += strings.Count(body, `"10.0.6.9:8#false"`)
			if strings.Contains(body, `"10.0.6.9:7#true"`) {
				beating++
				has(i, "/nacos/v2/ns/client?clientId=10.0.6.9:7%23true", `"ephemeral":true,"lastUpdatedTime":`+fmt.Sprint(time.Now().Unix()/100))
				has(i, "/nacos/v2/ns/client/publish/list?clientId=10.0.6.9:7%23true", `"serviceName":"beats"`)
			}
			has(i, "/nacos/v2/ns/client?clientId=10.0.6.9:8%23false", `"ephemeral":false,"lastUpdatedTime":0`)
			has(i, "/nacos/v2/ns/client/publish/list?clientId=10.0.6.9:8%23false", `"serviceName":"stays"`)
		}
		if beating != 1 || staying != 3 {
			t.Errorf("%d nodes keep the HTTP client, %d the persistent instance", beating, staying)
		}

		// A node that does not answer is named, at once and when it is known
		// to be gone.
		c.nodes[1].Kill()
		for range 2 {
			began := time.Now()
			s = c.subscribers(2)
			if len(s.Subscribers) != 1 || s.Subscribers[0].Client != a.ID() || time.Since(began) > 5*time.Second {
				t.Errorf("after %v: %+v", time.Since(began), s.Subscribers)
			}
			for _, n := range s.Nodes {
				if (n.Error != "") != (n.Name == "node1") {
					t.Errorf("%+v", n)
				}
			}
			if n := count("serviceName=order"); n != 1 {
				t.Errorf("%d of those that answer", n)
			}
			time.Sleep(10 * time.Second)
		}

		// One that stands still costs the others no more than their patience.
		c.nodes[0].Freeze()
		for _, patience := range []time.Duration{4500 * time.Millisecond, 1500 * time.Millisecond} {
			began := time.Now()
			s = c.subscribers(2)
			if len(s.Subscribers) != 0 || s.Nodes[slices.IndexFunc(s.Nodes, func(n subscribersNode) bool { return n.Name == "node0" })].Error == "" || time.Since(began) > patience {
				t.Errorf("after %v: %+v", time.Since(began), s)
			}
			time.Sleep(10 * time.Second)
		}
		c.nodes[0].Continue()
		time.Sleep(10 * time.Second)

		// One that has left is not missed.
		c.nodes[0].Drain()
		time.Sleep(time.Minute)
		if s = c.subscribers(2); len(s.Nodes) != 2 || slices.ContainsFunc(s.Nodes, func(n subscribersNode) bool { return n.Name == "node0" }) {
			t.Errorf("%+v", s)
		}
	})
}

// http registers over HTTP.
func (c *trio) http(path string) {
	c.t.Helper()
	resp, err := c.web.Post("http://10.0.0.1:8848"+path, "", nil)
	if err != nil {
		c.t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		c.t.Fatal(path, resp.Status)
	}
}
