package node

import (
	"cmp"
	"context"
	"sync"

	"github.com/starling-registry/starling/pkg/registry"
)

// edits keeps operators' edits on this node alone: it takes the place of the
// log of the cluster.
func edits(reg *registry.Registry) func(context.Context, registry.ServiceKey, registry.InstanceKey, registry.Override, bool) error {
	type at struct {
		registry.ServiceKey
		registry.InstanceKey
	}
	var mu sync.Mutex
	revision := uint64(0)
	made := map[at]registry.Override{}
	return func(_ context.Context, key registry.ServiceKey, k registry.InstanceKey, edit registry.Override, merge bool) error {
		mu.Lock()
		defer mu.Unlock()
		if was := made[at{key, k}]; merge {
			edit.Enabled, edit.Weight = cmp.Or(edit.Enabled, was.Enabled), cmp.Or(edit.Weight, was.Weight)
			if edit.Metadata == nil {
				edit.Metadata = was.Metadata
			}
		}
		revision++
		edit.Revision = revision
		made[at{key, k}] = edit
		reg.Commit([]registry.Change{{Service: key, Overrides: []registry.OverrideChange{{InstanceKey: k, Is: &edit, Cause: registry.CauseOperator}}}})
		return nil
	}
}
