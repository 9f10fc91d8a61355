package grpcapi

import (
	"context"
	"errors"
	"strings"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/push"
	"github.com/starling-registry/starling/pkg/registry"
)

// A handler answers one type of request. An error becomes a failure of the
// type response if it is a typed refusal, and an ErrorResponse otherwise.
type handler struct {
	response string
	changes  bool // what is registered
	handle   handle
}

// handlers is the whole unary protocol but for the server check, which needs
// no registration.
var handlers = map[string]handler{
	nacos.TypeHealthCheckRequest:        {nacos.TypeHealthCheckResponse, false, healthCheck},
	nacos.TypeInstanceRequest:           {nacos.TypeInstanceResponse, true, decoded(instance)},
	nacos.TypeBatchInstanceRequest:      {nacos.TypeBatchInstanceResponse, true, decoded(batch)},
	nacos.TypePersistentInstanceRequest: {nacos.TypeInstanceResponse, true, waiting(persistent)},
	nacos.TypeSubscribeServiceRequest:   {nacos.TypeSubscribeServiceResponse, false, fromApp(decoded(subscribe))},
	nacos.TypeServiceQueryRequest:       {nacos.TypeQueryServiceResponse, false, decoded(query)},
	nacos.TypeServiceListRequest:        {nacos.TypeServiceListResponse, false, decoded(list)},
	nacos.TypeFuzzyWatchRequest:         {nacos.TypeFuzzyWatchResponse, false, decoded(fuzzyWatch)},
	nacos.TypeLockOperationRequest:      {nacos.TypeLockOperationResponse, false, lock},
}

// A refusal is an application error with the code and text that clients get.
type refusal struct {
	typed bool // in the request's own response type: the last word, no retry
	code  int
	text  string
}

func (r *refusal) Error() string { return r.text }

// invalid is the answer of the parameter check (grpc-protocol §5.1).
func invalid(err error) error {
	return &refusal{typed: true, code: nacos.CodeInvalidParam, text: "Param check invalid:" + err.Error()}
}

func refuse(code int, text string) error { return &refusal{code: code, text: text} }

func unsupported(op string) error {
	return refuse(nacos.CodeInvalidParam, "Unsupported request type "+clip(op))
}

// clip bounds what of a request is kept or repeated; it keeps nothing of the
// rest.
func clip(s string) string {
	const most = 256
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

type handle = func(context.Context, *Server, *conn, *nacos.Payload) (*nacos.Payload, error)

func decoded[T any](f func(*Server, *conn, *T) (*nacos.Payload, error)) handle {
	return waiting(func(_ context.Context, s *Server, c *conn, req *T) (*nacos.Payload, error) { return f(s, c, req) })
}

// waiting is decoded for what waits for other nodes.
func waiting[T any](f func(context.Context, *Server, *conn, *T) (*nacos.Payload, error)) handle {
	return func(ctx context.Context, s *Server, c *conn, p *nacos.Payload) (*nacos.Payload, error) {
		req := new(T)
		if err := nacos.DecodeBody(p.Body, req); err != nil {
			return nil, err
		}
		return f(ctx, s, c, req)
	}
}

// fromApp notes which application asks: some SDKs say it with each subscription
// and not among their labels (grpc-protocol §4).
func fromApp(h handle) handle {
	return func(ctx context.Context, s *Server, c *conn, p *nacos.Payload) (*nacos.Payload, error) {
		if app := p.Headers["app"]; app != "" && c.app.Load() == nil {
			c.app.Store(new(clip(strings.ToValidUTF8(app, "\uFFFD"))))
		}
		return h(ctx, s, c, p)
	}
}

func healthCheck(context.Context, *Server, *conn, *nacos.Payload) (*nacos.Payload, error) {
	return nacos.HealthCheckResponse(), nil
}

func lock(context.Context, *Server, *conn, *nacos.Payload) (*nacos.Payload, error) {
	return nacos.LockOperationResponse(), nil
}

// named is the service that a changing request is about.
func named(r *nacos.ServiceRef) (registry.ServiceKey, error) {
	switch {
	case nacos.Blank(r.ServiceName):
		return registry.ServiceKey{}, refuse(nacos.CodeServerError, "Param 'serviceName' is illegal, serviceName is blank")
	case nacos.Blank(r.GroupName):
		return registry.ServiceKey{}, refuse(nacos.CodeServerError, "Param 'groupName' is illegal, groupName is blank")
	}
	return r.Key(), nil
}

// instance registers or deregisters what the connection publishes for a
// service (grpc-protocol §3.4).
func instance(_ *Server, c *conn, req *nacos.InstanceRequest) (*nacos.Payload, error) {
	if err := nacos.CheckService(req.Namespace, req.ServiceName, req.GroupName); err != nil {
		return nil, invalid(err)
	}
	if err := nacos.CheckInstance(req.Instance); err != nil {
		return nil, invalid(err)
	}
	key, err := named(&req.ServiceRef)
	if err != nil {
		return nil, err
	}
	switch req.Type {
	case nacos.OpRegister:
		if req.Instance == nil {
			return nil, refuse(nacos.CodeInvalidParam, nacos.ErrNoInstance.Error())
		}
		i, err := publishable(req.Instance, key, false)
		if err != nil {
			return nil, err
		}
		if err := c.register(key, []*registry.Instance{i}, false); err != nil {
			return nil, unregistered(err, key, i, 1, false)
		}
	case nacos.OpDeregister:
		var which registry.InstanceKey
		if i := req.Instance; i != nil {
			which = registry.InstanceKey{IP: i.IP, Port: i.Port, Cluster: i.ClusterName}
			if nacos.Blank(which.Cluster) {
				which.Cluster = registry.DefaultCluster
			}
		}
		c.client.Deregister(key, which)
	default:
		return nil, unsupported(req.Type)
	}
	return nacos.OperationResponse(nacos.TypeInstanceResponse, req.Type, req.RequestID), nil
}

// unregistered words the error of a registration: in a persistent service
// (grpc-protocol §5.3), or of instances that are evicted.
func unregistered(err error, key registry.ServiceKey, first *registry.Instance, instances int, batch bool) error {
	switch {
	case errors.Is(err, registry.ErrPersistentService):
		return refuse(nacos.CodeInvalidParam, nacos.RefusedEphemeral(key, batch))
	case errors.Is(err, registry.ErrEvicted):
		return evicted(key, first.InstanceKey, instances)
	}
	return err
}

// evicted is typed: after an ErrorResponse the Go SDK goes to another server,
// registers there, is refused there as well, and so on without an end.
func evicted(key registry.ServiceKey, first registry.InstanceKey, instances int) error {
	return &refusal{typed: true, code: nacos.CodeInvalidParam, text: nacos.RefusedEvicted(key, first, instances)}
}

// publishable checks an instance and turns it into the registry's.
func publishable(i *nacos.Instance, key registry.ServiceKey, batch bool) (*registry.Instance, error) {
	return converted(i, key, nacos.CheckRegister(i, batch))
}

// converted turns a checked instance into the registry's, or words what the
// check found.
func converted(i *nacos.Instance, key registry.ServiceKey, found error) (*registry.Instance, error) {
	switch found {
	case nil:
	case nacos.ErrNoIP, nacos.ErrWeight:
		// Nacos lets these in, and then others cannot read the service.
		return nil, &refusal{typed: true, code: nacos.CodeInvalidParam, text: found.Error()}
	default:
		return nil, refuse(nacos.CodeInvalidParam, found.Error())
	}
	out, err := i.Registry(key)
	if err != nil {
		return nil, refuse(nacos.CodeServerError, err.Error())
	}
	return out, nil
}

// batch replaces what the connection publishes for a service by a list
// (grpc-protocol §3.5).
func batch(_ *Server, c *conn, req *nacos.BatchInstanceRequest) (*nacos.Payload, error) {
	if err := nacos.CheckService(req.Namespace, req.ServiceName, req.GroupName); err != nil {
		return nil, invalid(err)
	}
	for _, i := range req.Instances {
		if err := nacos.CheckInstance(i); err != nil {
			return nil, invalid(err)
		}
	}
	key, err := named(&req.ServiceRef)
	switch {
	case err != nil:
		return nil, err
	case req.Type != nacos.OpBatchRegister:
		return nil, unsupported(req.Type)
	case req.Instances == nil:
		return nil, refuse(nacos.CodeInvalidParam, "Instances can not be null.")
	}
	instances := make([]*registry.Instance, len(req.Instances))
	for n, i := range req.Instances {
		if i == nil {
			return nil, refuse(nacos.CodeInvalidParam, nacos.ErrNoInstance.Error())
		}
		if instances[n], err = publishable(i, key, true); err != nil {
			return nil, err
		}
	}
	if err := c.register(key, instances, true); err != nil {
		return nil, unregistered(err, key, instances[0], len(instances), true)
	}
	return nacos.OperationResponse(nacos.TypeBatchInstanceResponse, req.Type, req.RequestID), nil
}

// subscribe adds or ends a subscription; both are answered with the list
// (grpc-protocol §3.7).
func subscribe(s *Server, c *conn, req *nacos.SubscribeServiceRequest) (*nacos.Payload, error) {
	if err := nacos.CheckService(req.Namespace, req.ServiceName, req.GroupName); err != nil {
		return nil, invalid(err)
	}
	clusters := ""
	if req.Clusters != nil {
		clusters = *req.Clusters
	}
	if err := nacos.CheckClusters(clusters); err != nil {
		return nil, invalid(err)
	}
	if !req.Subscribe && nacos.Blank(req.GroupName) {
		req.GroupName = registry.DefaultGroup // as the Go SDK sends it
	}
	key, err := named(&req.ServiceRef)
	if err != nil {
		return nil, err
	}
	if req.Subscribe {
		if err := c.subscriber.Subscribe(key, clusters); err != nil { // before the list is read
			return nil, err
		}
	} else {
		c.subscriber.Unsubscribe(key)
	}
	info := s.serviceInfo(c, key, registry.Filter{Clusters: clusters})
	info.Clusters = req.Clusters
	return nacos.SubscribeServiceResponse(info, req.RequestID), nil
}

// query reads a service once (grpc-protocol §3.8).
func query(s *Server, c *conn, req *nacos.ServiceQueryRequest) (*nacos.Payload, error) {
	if err := nacos.CheckService(req.Namespace, req.ServiceName, req.GroupName); err != nil {
		return nil, invalid(err)
	}
	if err := nacos.CheckClusters(req.Cluster); err != nil {
		return nil, invalid(err)
	}
	if err := nacos.CheckPort(req.UDPPort); err != nil {
		return nil, invalid(err)
	}
	key := req.Key()
	if nacos.Blank(req.GroupName) {
		key.Group = "" // unlike elsewhere, no group finds nothing (FINDINGS 55)
	}
	info := s.serviceInfo(c, key, registry.Filter{Clusters: req.Cluster, HealthyOnly: req.HealthyOnly || req.HealthOnly})
	info.Clusters = &req.Cluster
	return nacos.QueryServiceResponse(info, req.RequestID), nil
}

func (s *Server) serviceInfo(c *conn, key registry.ServiceKey, f registry.Filter) nacos.ServiceInfo {
	snap, at := s.opts.Registry.Serve(key)
	content := snap.Encode(f, nacos.EncodeHosts)
	c.subscriber.Answered(key, snap, content)
	return nacos.ServiceInfo{Name: key.Name, Group: key.Group, LastRefTime: at, CacheMillis: s.opts.CacheMillis(), Hosts: content.Bytes}
}

// fuzzyWatch starts or ends a watch of which services there are, or compares
// what the client knows of them (grpc-protocol §3.9).
func fuzzyWatch(_ *Server, c *conn, req *nacos.FuzzyWatchRequest) (*nacos.Payload, error) {
	switch req.WatchType {
	case nacos.WatchStart:
		p, err := nacos.ParsePattern(req.GroupKeyPattern)
		if err != nil {
			return nil, invalid(err)
		}
		switch err := c.subscriber.Watch(req.GroupKeyPattern, p, req.ReceivedGroupKeys, req.Initializing); err {
		case nil:
		case push.ErrTooMany:
			return nil, err
		case push.ErrTooManyPatterns:
			return nil, &refusal{typed: true, code: nacos.CodePatternOverLimit, text: err.Error()}
		default: // it is watched all the same
			return nil, &refusal{typed: true, code: nacos.CodeMatchOverLimit, text: err.Error()}
		}
	case nacos.WatchCancel:
		c.subscriber.Unwatch(req.GroupKeyPattern)
	default:
		return nil, unsupported(req.WatchType)
	}
	return nacos.FuzzyWatchResponse(req.RequestID), nil
}

// list pages through the services of a group, sorted by name (semantics S6,
// but stable).
func list(s *Server, _ *conn, req *nacos.ServiceListRequest) (*nacos.Payload, error) {
	if err := nacos.CheckService(req.Namespace, req.ServiceName, req.GroupName); err != nil {
		return nil, invalid(err)
	}
	if req.PageSize < 0 {
		return nil, &refusal{typed: true, code: nacos.CodeInvalidParam, text: "Param 'pageSize' is illegal, the value should not be negative."}
	}
	key := req.Key()
	names := s.opts.Registry.Services(key.Namespace, key.Group)
	return nacos.ServiceListResponse(len(names), nacos.Page(names, req.PageNo, req.PageSize), req.RequestID), nil
}
