package grpcapi

import (
	"context"
	"time"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

// Persistent keeps persistent instances in the log of the cluster, whichever
// node leads it. Methods return when the write is carried out; their errors are
// those that [Options.Explain] knows.
type Persistent interface {
	PutInstance(context.Context, registry.ServiceKey, *registry.Instance) error
	// RemoveInstance removes the instance of an address, whatever its cluster.
	RemoveInstance(ctx context.Context, key registry.ServiceKey, ip string, port int) error
}

// A Refusal is what a client is told of a write that the log has not taken. The
// zero one is that of a failure inside.
type Refusal struct {
	Code      int    // of package nacos; 0: CodeServerError
	Text      string // "": that of the error
	WrongKind bool   // the service is ephemeral; the rest is not used
	NotFound  bool   // there is nothing to remove, which is no failure
	Evicted   bool   // an operator evicted the instance; the rest is not used
}

// persistentLimit bounds a write: SDKs give up after 3 s.
const persistentLimit = 2500 * time.Millisecond

// persistent registers or deregisters a persistent instance (grpc-protocol
// §3.6). It is not tied to the connection.
func persistent(ctx context.Context, s *Server, _ *conn, req *nacos.InstanceRequest) (*nacos.Payload, error) {
	if s.opts.Persistent == nil {
		return nil, &refusal{typed: true, code: nacos.CodeNotImplemented, text: "this server keeps no persistent instances"}
	}
	if err := nacos.CheckService(req.Namespace, req.ServiceName, req.GroupName); err != nil {
		return nil, invalid(err)
	}
	if err := nacos.CheckInstance(req.Instance); err != nil {
		return nil, invalid(err)
	}
	key, err := named(&req.ServiceRef)
	switch {
	case err != nil:
		return nil, err
	case req.Type != nacos.OpRegister && req.Type != nacos.OpDeregister:
		return nil, unsupported(req.Type)
	case req.Instance == nil:
		return nil, refuse(nacos.CodeInvalidParam, nacos.ErrNoInstance.Error())
	}
	i, err := converted(req.Instance, key, nacos.CheckShown(req.Instance))
	if err != nil {
		return nil, err
	}
	i.Persistent = true
	done := nacos.OperationResponse(nacos.TypeInstanceResponse, req.Type, req.RequestID)
	// What clients publish is not in the log: this node's view decides.
	if s.opts.Registry.Kind(key) == registry.EphemeralService {
		if req.Type == nacos.OpDeregister {
			return done, nil // semantics D18
		}
		return nil, refuse(nacos.CodeInvalidParam, nacos.RefusedPersistent(key))
	}

	ctx, cancel := context.WithTimeout(ctx, persistentLimit)
	defer cancel()
	if req.Type == nacos.OpRegister {
		err = s.opts.Persistent.PutInstance(ctx, key, i)
	} else {
		err = s.opts.Persistent.RemoveInstance(ctx, key, i.IP, i.Port)
	}
	if err == nil {
		return done, nil
	}
	r := s.opts.Explain(err)
	switch {
	case r.NotFound && req.Type == nacos.OpDeregister:
		return done, nil
	case r.Evicted:
		return nil, evicted(key, i.InstanceKey, 1)
	case r.WrongKind:
		return nil, refuse(nacos.CodeInvalidParam, nacos.RefusedPersistent(key))
	case r.Code != 0:
		return nil, refuse(r.Code, r.Text)
	}
	return nil, err
}
