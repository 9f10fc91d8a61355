package api

import (
	"context"
	"time"
)

// An Edit is what operators have set for an instance, laid over what its client
// says. What is absent is as the client says. What is set ends when the instance
// is deregistered, or has not been there for a minute (a setting), unless it is
// sticky. An eviction holds until it is lifted or, unless the instance stays out,
// until it has not been there for a minute; as long as it holds, a
// deregistration ends nothing.
type Edit struct {
	Enabled  *bool             `json:"enabled,omitempty"`
	Weight   *float64          `json:"weight,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"` // key by key; other keys are as the client says
	Evicted  bool              `json:"evicted"`            // clients do not see the instance, whoever registers it
	StaysOut bool              `json:"staysOut"`           // the eviction holds until it is lifted, whatever becomes of the instance
	Sticky   bool              `json:"sticky"`             // what is set stays until an operator takes it back; not the eviction
	Revision uint64            `json:"revision"`           // the entry of the log that wrote it last
	Since    time.Time         `json:"since,omitzero"`     // when that was; zero: not known
}

// Edits is the answer to GET /starling/v1/edits.
type Edits struct {
	Edits []InstanceEdit `json:"edits"` // by service, address and cluster
}

// An InstanceEdit is an edit with the instance that it is of.
type InstanceEdit struct {
	Service
	InstanceKey
	Edit
	There bool `json:"there"` // the instance is there, as the answering node sees it
}

// An InstanceRef names an instance in the body of a request. Namespace and group
// may be absent, for the defaults of Nacos, and the service may be GROUP@@NAME.
// The cluster may be absent where the address stands in one cluster only.
type InstanceRef struct {
	Namespace string `json:"namespace,omitempty"`
	Group     string `json:"group,omitempty"`
	Service   string `json:"service"`
	IP        string `json:"ip"`
	Port      int    `json:"port"`
	Cluster   string `json:"cluster,omitempty"`
}

// An EditRequest is the body of POST /starling/v1/instances/edit. What is absent
// stays as it was set before.
type EditRequest struct {
	InstanceRef
	// Reset takes back what was set before, an eviction left out. The rest of
	// the request holds then.
	Reset   bool     `json:"reset,omitempty"`
	Enabled *bool    `json:"enabled,omitempty"`
	Weight  *float64 `json:"weight,omitempty"` // 0 to 10,000
	// Metadata sets keys; null takes back what was set for one. A key that the
	// client has registered cannot be hidden.
	Metadata map[string]*string `json:"metadata,omitempty"`
	// Sticky: what is set holds whatever becomes of the instance, which need
	// not be there. An eviction has its own, see untilGone. Absent: as it was; at
	// first false.
	Sticky *bool `json:"sticky,omitempty"`
}

// An EvictRequest is the body of POST /starling/v1/instances/evict.
type EvictRequest struct {
	InstanceRef
	// UntilGone: the eviction ends when nobody has registered the instance for
	// a minute (a setting). Else it stays until it is lifted. Of an instance that
	// is evicted already, the last word counts.
	UntilGone bool `json:"untilGone,omitempty"`
	// Absent: the instance need not be there, it is kept away when it comes.
	// Without it a mistyped address is refused.
	Absent bool `json:"absent,omitempty"`
}

// Edited is the answer to the requests that edit, evict and lift.
type Edited struct {
	Service
	InstanceKey
	Before *Edit `json:"before,omitempty"` // absent: there was none
	After  *Edit `json:"after,omitempty"`  // absent: there is none any more
	// Was and Is are the instance on the node that answers, before and now;
	// absent: it was not there, or is not.
	Was *Standing `json:"was,omitempty"`
	Is  *Standing `json:"is,omitempty"`
}

// Edits tells what operators have set, in one namespace or, if that is "", in
// all.
func (c *Client) Edits(ctx context.Context, namespace string) (*Edits, error) {
	return get[Edits](ctx, c, "/edits", query("namespace", namespace))
}

// EditInstance lays something over what the client of an instance says.
func (c *Client) EditInstance(ctx context.Context, r EditRequest) (*Edited, error) {
	return post[Edited](ctx, c, "/instances/edit", r)
}

// EvictInstance keeps an instance away from clients, whoever registers it.
func (c *Client) EvictInstance(ctx context.Context, r EvictRequest) (*Edited, error) {
	return post[Edited](ctx, c, "/instances/evict", r)
}

// LiftInstance ends an eviction; other edits of the instance stay.
func (c *Client) LiftInstance(ctx context.Context, r InstanceRef) (*Edited, error) {
	return post[Edited](ctx, c, "/instances/lift", r)
}
