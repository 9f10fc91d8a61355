package node

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/httpapi"
	"github.com/starling-registry/starling/pkg/registry"
	"github.com/starling-registry/starling/raftstore"
)

// Edits tells what operators have set of a service, in a namespace or in all.
func (o *operations) Edits(of registry.ServiceKey) []httpapi.InstanceEdit {
	edits := []raftstore.Edit(nil)
	if of.Name != "" {
		edits = o.store.EditsOf(of)
	} else {
		edits = o.store.Edits(of.Namespace)
	}
	out := make([]httpapi.InstanceEdit, len(edits))
	for i, e := range edits {
		out[i] = httpapi.InstanceEdit{Service: e.Service, InstanceKey: e.InstanceKey, Override: e.Override, Since: e.Clock}
	}
	return out
}

// endEdits tells the log which edits of operators are over: at once what clients
// on this node have deregistered, and on the leader what has been absent for
// long (design §4: one decision, not one timer for each node). What the log does
// not take comes again with the next sweep. A node that stood still lately does
// not know yet what has come back meanwhile: settled is false.
func endEdits(ctx context.Context, store *raftstore.Store, reg *registry.Registry, over <-chan struct{}, period time.Duration, settled func() bool, log *zap.Logger) {
	sweep := time.NewTicker(period)
	defer sweep.Stop()
	for {
		var ended []registry.Edit
		select {
		case <-ctx.Done():
			return
		case <-over:
			ended = reg.EndedOverrides()
		case <-sweep.C:
			ended = reg.EndedOverrides()
			if settled() && store.Leads() {
				ended = append(ended, reg.AbsentOverrides()...)
			}
		}
		for some := range slices.Chunk(ended, 500) {
			within, cancel := context.WithTimeout(ctx, period)
			err := store.EndOverrides(within, some)
			cancel()
			if err != nil {
				log.Debug("edits that are over are not ended in the log yet", zap.Int("edits", len(ended)), zap.Error(err))
				break
			}
		}
	}
}

// logRefused tells of a client that has registered what an operator evicted;
// the registry says so once for each.
func logRefused(log *zap.Logger, key registry.ServiceKey, k registry.InstanceKey, client string) {
	log.Info("a client registered an evicted instance, which stays out until the eviction is lifted",
		zap.Stringer("service", key), zap.String("ip", k.IP), zap.Int("port", k.Port), zap.String("cluster", k.Cluster), zap.String("client", client))
}

// mark wakes endEdits. It does not block.
func mark(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
