package health

import (
	"time"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

// Who there is, for operators.

// ClientIDs lists the HTTP clients of this node, in no order.
func (b *Beats) ClientIDs() []string {
	b.mu.RLock()
	defer b.mu.RUnlock()
	ids := make([]string, 0, len(b.clients))
	for _, c := range b.clients {
		ids = append(ids, c.registry.ID())
	}
	return ids
}

// Client tells what a client of this node has registered, and when its last
// beat came: registering counts as one.
func (b *Beats) Client(id string) (heard time.Time, registered map[registry.ServiceKey]*registry.Instance, known bool) {
	ip, port, ephemeral, ok := nacos.ParseClientID(id)
	if !ok || !ephemeral {
		return heard, nil, false
	}
	c := b.lock(address{ip, port}, false)
	if c == nil {
		return heard, nil, false
	}
	defer c.mu.Unlock()
	registered = make(map[registry.ServiceKey]*registry.Instance, len(c.leases))
	for key, l := range c.leases {
		registered[key] = l.instance
		heard = later(heard, l.beat)
	}
	return heard, registered, true
}
