package registry

import (
	"encoding/binary"
	"hash/fnv"
	"math"
)

// A Hash stands for what readers see of a service on this node.
type Hash struct {
	// Sum is of key, id, weight, health, enabling, kind and metadata of all
	// instances: the same on all nodes that show the same, whoever stands
	// behind it. 0: there is no instance.
	Sum       uint64
	Changed   Stamp // last visible change on this node
	Instances int
}

// Hashes visits all services, those without instances too: that one has just
// lost its last is a change as well. No lock is held meanwhile.
func (r *Registry) Hashes(visit func(ServiceKey, Hash)) {
	var snaps []*Snapshot
	for i := range r.shards {
		sh := &r.shards[i]
		snaps = snaps[:0]
		sh.mu.Lock()
		for _, s := range sh.services {
			snaps = append(snaps, s.snapshot.Load())
		}
		sh.mu.Unlock()
		for _, s := range snaps {
			visit(s.Service, Hash{s.hash(), s.Version, len(s.Instances)})
		}
	}
}

func (s *Snapshot) hash() uint64 {
	if len(s.Instances) == 0 {
		return 0
	}
	if sum := s.sum.Load(); sum != 0 {
		return sum
	}
	h := fnv.New64a()
	var b []byte
	for _, i := range s.Instances {
		b = appendText(b[:0], i.IP)
		b = binary.AppendVarint(b, int64(i.Port))
		b = appendText(appendText(b, i.Cluster), i.ID)
		flags := byte(0)
		if i.Healthy {
			flags |= 1
		}
		if i.Enabled {
			flags |= 2
		}
		if i.Persistent {
			flags |= 4
		}
		b = append(b, flags)
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(i.Weight))
		b = binary.AppendUvarint(b, uint64(len(i.Metadata)))
		for _, kv := range i.Metadata {
			b = appendText(appendText(b, kv.Key), kv.Value)
		}
		h.Write(b)
	}
	sum := max(1, h.Sum64())
	s.sum.Store(sum)
	return sum
}
