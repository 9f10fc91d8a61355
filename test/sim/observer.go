package sim

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/starling-registry/starling/pkg/client/wire"
	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/test/simnet"
)

// A view is a list of the service: instance → value.
type view struct {
	stamp int64 // lastRefTime
	hosts map[int]int
}

func (v view) String() string {
	var b strings.Builder
	for _, i := range slices.Sorted(maps.Keys(v.hosts)) {
		fmt.Fprintf(&b, " %d:%d", i, v.hosts[i])
	}
	return "[" + strings.TrimPrefix(b.String(), " ") + "]"
}

func parseView(body []byte) (view, error) {
	var m struct {
		Info struct {
			LastRefTime int64 `json:"lastRefTime"`
			Hosts       []struct {
				IP       string            `json:"ip"`
				Port     int               `json:"port"`
				Metadata map[string]string `json:"metadata"`
			} `json:"hosts"`
		} `json:"serviceInfo"`
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return view{}, fmt.Errorf("a list that cannot be read: %w", err)
	}
	v := view{m.Info.LastRefTime, map[int]int{}}
	for _, h := range m.Info.Hosts {
		i := h.Port - portOf(0)
		if _, twice := v.hosts[i]; twice {
			return view{}, fmt.Errorf("a list with %s:%d twice", h.IP, h.Port)
		}
		v.hosts[i] = number(h.Metadata["value"])
	}
	return v, nil
}

// An observer is a subscriber that knows one node only. It has no patience of
// its own: what it sees is what the node shows. Its path is never cut.
type observer struct {
	c    *Cluster
	node *Node
	host *simnet.Host
}

func (c *Cluster) newObserver(n *Node) *observer {
	o := &observer{c: c, node: n, host: c.net.Host(fmt.Sprint("watch", n.id), fmt.Sprintf("10.0.2.%d", n.id+1))}
	c.wg.Go(o.run)
	return o
}

func (o *observer) run() {
	for o.c.ctx.Err() == nil {
		if up, frozen, run := o.node.state(); up && !frozen {
			o.follow(run)
		}
		t := time.NewTimer(200 * time.Millisecond)
		select {
		case <-o.c.ctx.Done():
		case <-t.C:
		}
		t.Stop()
	}
	o.host.Crash()
}

// follow subscribes at one process of the node until the connection ends. It
// asks every second besides: an answer and a push are made in different ways.
func (o *observer) follow(run int) {
	conn, err := wire.Dial(o.c.ctx, wire.Options{
		Addr: net.JoinHostPort(o.node.addr(), strconv.Itoa(port)), Version: "sim:v1.0.0", HealthCheckAfter: 1000 * time.Hour,
		DialContext: o.host.Dial,
		Push: func(p *nacos.Payload) error {
			if p.Type == nacos.TypeNotifySubscriberRequest {
				o.saw(p, run, "push")
			}
			return nil
		},
	})
	if err != nil {
		return
	}
	defer conn.Close()
	ask := func(typ, body, how string) bool {
		p, err := conn.Request(o.c.ctx, typ, []byte(`{"namespace":"public","groupName":"DEFAULT_GROUP","serviceName":"`+serviceName+`"`+body+`}`))
		if err == nil {
			o.saw(p, run, how)
		}
		return conn.Err() == nil
	}
	if !ask(nacos.TypeSubscribeServiceRequest, `,"subscribe":true`, "list") {
		return
	}
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-o.c.ctx.Done():
			return
		case <-conn.Done():
			return
		case <-t.C:
			if !ask(nacos.TypeServiceQueryRequest, "", "query") {
				return
			}
		}
	}
}

func (o *observer) saw(p *nacos.Payload, run int, how string) {
	v, err := parseView(p.Body)
	if err != nil {
		o.c.check.fail("harness", "%s: %v", o.node.name, err)
		return
	}
	o.c.check.saw(o.node.id, run, v, how)
}
