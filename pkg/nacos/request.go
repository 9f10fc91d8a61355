package nacos

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"

	"github.com/starling-registry/starling/pkg/registry"
)

// Type names of the messages (grpc-protocol §2.3, §3). A response's name
// follows from its request's by the table in §3.1.
const (
	TypeServerCheckRequest        = "ServerCheckRequest"
	TypeServerCheckResponse       = "ServerCheckResponse"
	TypeConnectionSetupRequest    = "ConnectionSetupRequest"
	TypeSetupAckRequest           = "SetupAckRequest"
	TypeHealthCheckRequest        = "HealthCheckRequest"
	TypeHealthCheckResponse       = "HealthCheckResponse"
	TypeClientDetectionRequest    = "ClientDetectionRequest"
	TypeClientDetectionResponse   = "ClientDetectionResponse"
	TypeConnectResetRequest       = "ConnectResetRequest"
	TypeConnectResetResponse      = "ConnectResetResponse"
	TypeErrorResponse             = "ErrorResponse"
	TypeInstanceRequest           = "InstanceRequest"
	TypePersistentInstanceRequest = "PersistentInstanceRequest"
	TypeInstanceResponse          = "InstanceResponse"
	TypeBatchInstanceRequest      = "BatchInstanceRequest"
	TypeBatchInstanceResponse     = "BatchInstanceResponse"
	TypeSubscribeServiceRequest   = "SubscribeServiceRequest"
	TypeSubscribeServiceResponse  = "SubscribeServiceResponse"
	TypeServiceQueryRequest       = "ServiceQueryRequest"
	TypeQueryServiceResponse      = "QueryServiceResponse"
	TypeServiceListRequest        = "ServiceListRequest"
	TypeServiceListResponse       = "ServiceListResponse"
	TypeNotifySubscriberRequest   = "NotifySubscriberRequest"
	TypeNotifySubscriberResponse  = "NotifySubscriberResponse"
	TypeLockOperationRequest      = "LockOperationRequest"
	TypeLockOperationResponse     = "LockOperationResponse"
)

// Operations in the field "type" of instance requests.
const (
	OpRegister      = "registerInstance"
	OpDeregister    = "deregisterInstance"
	OpBatchRegister = "batchRegisterInstance"
)

// A ServiceRef is how requests name a service. Clients may leave any part out
// or send null.
type ServiceRef struct {
	Namespace   string `json:"namespace"`
	ServiceName string `json:"serviceName"`
	GroupName   string `json:"groupName"`
	RequestID   string `json:"requestId"`
}

// Key is the service meant: no namespace and no group stand for the default
// ones (grpc-protocol §6), and a blank name is none.
func (r *ServiceRef) Key() registry.ServiceKey {
	k := registry.ServiceKey{Namespace: r.Namespace, Group: r.GroupName, Name: r.ServiceName}
	if Blank(k.Name) {
		k.Name = ""
	}
	if Blank(k.Namespace) {
		k.Namespace = registry.DefaultNamespace
	}
	if Blank(k.Group) {
		k.Group = registry.DefaultGroup
	}
	return k
}

// An InstanceRequest registers or deregisters one instance;
// PersistentInstanceRequest has the same form.
type InstanceRequest struct {
	ServiceRef
	Type     string    `json:"type"`
	Instance *Instance `json:"instance"`
}

// A BatchInstanceRequest registers several instances as one publication.
// Instances is nil when the client sent none or null, which is not the same as
// an empty list.
type BatchInstanceRequest struct {
	ServiceRef
	Type      string      `json:"type"`
	Instances []*Instance `json:"instances"`
}

// A SubscribeServiceRequest subscribes, or with Subscribe false or missing
// unsubscribes.
type SubscribeServiceRequest struct {
	ServiceRef
	Subscribe bool    `json:"subscribe"`
	Clusters  *string `json:"clusters"` // echoed: missing is not ""
}

// A ServiceQueryRequest reads a service once.
type ServiceQueryRequest struct {
	ServiceRef
	Cluster     string `json:"cluster"`
	HealthyOnly bool   `json:"healthyOnly"`
	// HealthOnly is how the Python SDK spells it (grpc-protocol §3.8).
	HealthOnly bool `json:"healthOnly"`
	UDPPort    int  `json:"udpPort"` // of 1.x clients; not used
}

// A ServiceListRequest lists the services of a group.
type ServiceListRequest struct {
	ServiceRef
	PageNo   int `json:"pageNo"`   // from 1
	PageSize int `json:"pageSize"` // ≥ 0
}

// A ConnectionSetupRequest turns a transport into a connection.
type ConnectionSetupRequest struct {
	ClientVersion string          `json:"clientVersion"`
	Labels        map[string]any  `json:"labels"`
	AbilityTable  json.RawMessage `json:"abilityTable"`
}

// WantsAck reports whether the client waits for a SetupAckRequest: if and only
// if it sent an ability table, be it an empty one (grpc-protocol §0 rule 6).
func (r *ConnectionSetupRequest) WantsAck() bool {
	return len(r.AbilityTable) > 0 && string(r.AbilityTable) != "null"
}

// An Ack is a client's answer to a message of the server.
type Ack struct {
	RequestID  string `json:"requestId"`
	ResultCode int    `json:"resultCode"` // 200 is success; the field "success" is not to be trusted (§0 rule 13)
	Message    string `json:"message"`
}

// An Instance as clients send it. Fields that are missing or null have the
// defaults of grpc-protocol §3.2.
type Instance struct {
	InstanceID  string   `json:"instanceId"`
	IP          string   `json:"ip"`
	Port        int      `json:"port"`
	Weight      float64  `json:"weight"`
	Healthy     bool     `json:"healthy"`
	Enabled     bool     `json:"enabled"`
	ClusterName string   `json:"clusterName"`
	ServiceName string   `json:"serviceName"`
	Metadata    Metadata `json:"metadata"`
}

// UnmarshalJSON sets the defaults before it decodes.
func (i *Instance) UnmarshalJSON(b []byte) error {
	type plain Instance
	p := plain{Weight: 1, Healthy: true, Enabled: true}
	if err := json.Unmarshal(b, &p); err != nil {
		return err
	}
	*i = Instance(p)
	return nil
}

// Metadata takes strings, and numbers and booleans as their text; entries that
// are null are dropped (grpc-protocol §3.2).
type Metadata map[string]string

// UnmarshalJSON refuses values that are lists or objects.
func (m *Metadata) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	*m = make(Metadata, len(raw))
	for k, v := range raw {
		switch v[0] {
		case 'n':
		case '"':
			var s string
			if err := json.Unmarshal(v, &s); err != nil {
				return err
			}
			(*m)[k] = s
		case '{', '[':
			return fmt.Errorf("metadata value of %q is not a string", k)
		default:
			(*m)[k] = string(v)
		}
	}
	return nil
}

// ErrBadJSON says that a body is not the JSON that its type asks for. The
// texts of the decoder are for our log; the client gets [MsgBadJSON].
var ErrBadJSON = errors.New("request body cannot be decoded")

// DecodeBody decodes the JSON of a received payload into v, which must be
// zero. Nothing in v is a part of body afterwards.
func DecodeBody(body []byte, v any) error {
	if decodeByHand(body, v) {
		return nil
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return fmt.Errorf("%w: it is empty", ErrBadJSON)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("%w: %v", ErrBadJSON, err)
	}
	return nil
}

// Registry turns what a client sent into the registry's instance of the given
// service: defaults filled in, and an id made where the client's metadata asks
// for a generator other than the usual one (semantics D20).
func (i *Instance) Registry(key registry.ServiceKey) (*registry.Instance, error) {
	out := &registry.Instance{
		InstanceKey: registry.InstanceKey{IP: i.IP, Port: i.Port, Cluster: i.ClusterName},
		ID:          i.InstanceID, Weight: i.Weight, Healthy: i.Healthy, Enabled: i.Enabled,
		Metadata: registry.NewMetadata(i.Metadata),
	}
	if Blank(out.Cluster) {
		out.Cluster = registry.DefaultCluster
	}
	if out.ID != "" {
		if out.ID == InstanceID(&registry.Instance{InstanceKey: out.InstanceKey}, key.Grouped()) {
			out.ID = "" // the usual one need not be kept
		}
		return out, nil
	}
	switch i.Metadata[KeyIDGenerator] {
	case "", "simple":
	case "snowflake":
		// No client parses the id. A number that follows from the address
		// keeps an identical registration identical.
		h := fnv.New64a()
		fmt.Fprint(h, InstanceID(out, key.Grouped()))
		out.ID = fmt.Sprintf("%d#%s#%s", h.Sum64()>>1, out.Cluster, key.Grouped())
	default:
		return nil, ErrGenerator
	}
	return out, nil
}

// ParseRequestID reads an id that a client sent back; 0 is none of ours.
func ParseRequestID(s string) uint64 {
	id, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0
	}
	return id
}

// Page cuts a page out of a sorted list; pages count from 1, and what lies
// before the first is the first (semantics S6, cases C42).
func Page[T any](all []T, no, size int) []T {
	before := max(no, 1) - 1
	if size <= 0 || before > len(all)/size { // also where before*size overflows
		return nil
	}
	all = all[before*size:]
	return all[:min(size, len(all))]
}
