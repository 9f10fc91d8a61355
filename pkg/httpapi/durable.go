package httpapi

import (
	"context"
	"errors"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/registry"
)

// A Durable writes what outlives nodes and clients: it goes through the log of
// the cluster, whose tables decide. Methods return when it is carried out, and
// what changed reaches the Registry on its own. Their errors are those that
// [Options.Explain] knows.
type Durable interface {
	PutInstance(context.Context, registry.ServiceKey, *registry.Instance) error
	// RemoveInstance removes the instance of an address, whatever its cluster.
	RemoveInstance(ctx context.Context, key registry.ServiceKey, ip string, port int) error
	// SetHealth says by hand how a persistent instance is.
	SetHealth(context.Context, registry.ServiceKey, registry.InstanceKey, bool) error
	// PutOverride lays an edit over an instance; merge: what is nil stays as
	// it was.
	PutOverride(ctx context.Context, key registry.ServiceKey, at registry.InstanceKey, edit registry.Override, merge bool) error
	// Evict keeps an instance away from readers until that is lifted, or also,
	// with untilGone, until it has been gone for long. Lift ends it.
	Evict(ctx context.Context, key registry.ServiceKey, at registry.InstanceKey, untilGone bool) error
	Lift(ctx context.Context, key registry.ServiceKey, at registry.InstanceKey) error

	// EditMetadata sets and removes keys in the metadata of edits of several
	// instances of a service, of all or of none.
	EditMetadata(ctx context.Context, key registry.ServiceKey, at []registry.InstanceKey, set registry.Metadata, remove []string) error

	CreateService(context.Context, registry.ServiceKey, *registry.ServiceMeta) error
	// UpdateService keeps the kind and the clusters of a service that is
	// described already.
	UpdateService(context.Context, registry.ServiceKey, *registry.ServiceMeta) error
	RemoveService(context.Context, registry.ServiceKey) error
	// PutCluster describes a cluster; persistent is the kind of the service if
	// nobody has described that yet.
	PutCluster(ctx context.Context, key registry.ServiceKey, c *registry.ClusterMeta, persistent bool) error

	// PutSwitch sets a switch; see [nacos.ParseSwitch].
	PutSwitch(ctx context.Context, name, value string) error
}

// A Refusal is why the log has not taken a write.
type Refusal struct {
	Code RefusalCode
	Text string // for people; of Invalid also for clients
	Hint string // of NoLeader: what an operator can do about it
}

// A RefusalCode is what a handler needs to know of a [Refusal].
type RefusalCode uint8

const (
	NoLeader       RefusalCode = iota + 1 // nothing can have been written
	UnknownOutcome                        // it may have been written, now or later
	NotUnderstood                         // some nodes are too old for it
	Exists
	NotFound
	NotEmpty
	WrongKind
	Invalid
	Evicted // an operator evicted the instance
)

// durableLimit bounds a write. The log tries again as long as there can be a
// leader; without a majority of nodes it gives up sooner.
const durableLimit = 10 * time.Second

// durably writes to the log of the cluster, whichever node leads it: such
// writes are not routed to the owner of a client. It returns an error for every
// refusal; those that mean something else to each handler have their code.
func (s *Server) durably(c *call, write func(context.Context, Durable) error) (RefusalCode, error) {
	refusal, err := s.toLog(c.r, durableLimit, func(ctx context.Context) error { return write(ctx, s.opts.Durable) })
	if refusal.Code != 0 {
		err = errRefused(refusal)
	}
	return refusal.Code, err
}

// operatorWrites is durably for the native API.
func (s *Server) operatorWrites(r *http.Request, write func(context.Context) error) (RefusalCode, error) {
	refusal, err := s.toLog(r, writeTimeout, write)
	_, half := errors.AsType[*halfWritten](err)
	if refusal.Code != 0 {
		err = errNativeRefused(refusal)
	}
	if half {
		if refusal.Code == 0 { // nobody else logs it
			s.log.Error("the second of two writes failed", zap.Error(err))
		}
		err = errHalfWritten(err)
	}
	return refusal.Code, err
}

func (s *Server) toLog(r *http.Request, limit time.Duration, write func(context.Context) error) (refusal Refusal, err error) {
	// A client that is gone, or that only has said all it will, does not end
	// it: the log decides whether it is written, and that is what is answered.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), limit)
	defer cancel()
	if err = write(registry.AskedBy(ctx, peer(r))); err != nil {
		refusal, _ = s.opts.Explain(err)
	}
	return refusal, err
}
