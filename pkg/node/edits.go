package node

import (
	"cmp"
	"context"
	"sync"

	"github.com/starling-registry/starling/pkg/registry"
)

// edits keeps operators' edits on this node alone: it takes the place of the
// log of the cluster.
type edits struct {
	registry *registry.Registry

	mu       sync.Mutex
	revision uint64
	made     map[edited]registry.Override
}

type edited struct {
	service registry.ServiceKey
	registry.InstanceKey
}

func (e *edits) put(_ context.Context, key registry.ServiceKey, k registry.InstanceKey, is registry.Override, merge bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if was := e.made[edited{key, k}]; merge {
		is.Enabled, is.Weight = cmp.Or(is.Enabled, was.Enabled), cmp.Or(is.Weight, was.Weight)
		if is.Metadata == nil {
			is.Metadata = was.Metadata
		}
	}
	e.revision++
	is.Revision = e.revision
	if e.made == nil {
		e.made = map[edited]registry.Override{}
	}
	e.made[edited{key, k}] = is
	e.commit(key, k, &is, registry.CauseOperator)
	return nil
}

// end lets go of edits that have not been made anew.
func (e *edits) end(over ...registry.Edit) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, o := range over {
		if at := (edited{o.Service, o.InstanceKey}); e.made[at].Revision == o.Revision {
			delete(e.made, at)
			e.commit(o.Service, o.InstanceKey, nil, o.Cause)
		}
	}
}

func (e *edits) commit(key registry.ServiceKey, k registry.InstanceKey, is *registry.Override, cause registry.Cause) {
	e.registry.Commit([]registry.Change{{Service: key, Overrides: []registry.OverrideChange{{InstanceKey: k, Is: is, Cause: cause}}}})
}
