package distro

import (
	"github.com/cespare/xxhash/v2"
)

// weight is that of a node for a key in rendezvous hashing. The function is
// part of the wire: nodes of all releases must agree who owns what.
func weight(key, node string) uint64 {
	var h xxhash.Digest
	h.Reset()
	h.WriteString(key)
	h.Write([]byte{0})
	h.WriteString(node)
	return h.Sum64()
}

// rendezvous picks one of the nodes for a key. When a node comes or goes only
// the keys move that it gets or had.
func rendezvous(key string, nodes []string) (best string) {
	top := uint64(0)
	for _, n := range nodes {
		if w := weight(key, n); best == "" || w > top || w == top && n < best {
			best, top = n, w
		}
	}
	return best
}

// Owner is the node that owns a client which has no connection: one of those
// that are ready, or of all that are alive if none is.
func (d *Replicator) Owner(client string) string {
	d.mu.Lock()
	ready, living := d.nodesLocked()
	d.mu.Unlock()
	if len(ready) == 0 {
		ready = living
	}
	return rendezvous(client, ready)
}

// nodesLocked includes this node.
func (d *Replicator) nodesLocked() (ready, living []string) {
	living = append(living, d.self.Node)
	if d.ready {
		ready = append(ready, d.self.Node)
	}
	for id, m := range d.members {
		if id == d.self.Node || m.State != Alive {
			continue
		}
		living = append(living, id)
		if p := d.peers[id]; p != nil && p.ready {
			ready = append(ready, id)
		}
	}
	return ready, living
}

// ReadyPeers are the other nodes that take clients, in no order.
func (d *Replicator) ReadyPeers() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []string
	for id, m := range d.members {
		if p := d.peers[id]; id != d.self.Node && m.State == Alive && p != nil && p.ready {
			out = append(out, id)
		}
	}
	return out
}
