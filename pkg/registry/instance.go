package registry

import (
	"cmp"
	"slices"
	"strings"
)

// Names that stand for "not given" (semantics S1, S3, D9).
const (
	DefaultNamespace = "public"
	DefaultGroup     = "DEFAULT_GROUP"
	DefaultCluster   = "DEFAULT"
)

// A ServiceKey identifies a service (semantics D1). Its parts are never blank
// in a registered service: callers put in the defaults above.
type ServiceKey struct{ Namespace, Group, Name string }

// Grouped is the name with its group, as instances carry it on the wire.
func (k ServiceKey) Grouped() string { return k.Group + "@@" + k.Name }

// String is for logs and errors.
func (k ServiceKey) String() string { return k.Namespace + "/" + k.Group + "/" + k.Name }

// Compare orders services by their parts.
func (k ServiceKey) Compare(o ServiceKey) int {
	return cmp.Or(strings.Compare(k.Namespace, o.Namespace), strings.Compare(k.Group, o.Group), strings.Compare(k.Name, o.Name))
}

// An InstanceKey identifies an instance within a service.
type InstanceKey struct {
	IP      string
	Port    int
	Cluster string
}

// Compare orders instances as lists have them.
func (k InstanceKey) Compare(o InstanceKey) int {
	return cmp.Or(strings.Compare(k.IP, o.IP), cmp.Compare(k.Port, o.Port), strings.Compare(k.Cluster, o.Cluster))
}

// An Instance is what a client says about one address. It is not changed
// after it was handed to the registry.
type Instance struct {
	InstanceKey
	ID       string  // "" stands for the usual ip#port#cluster#group@@name (semantics D20)
	Weight   float64 // finite, not negative; 0 takes no traffic
	Healthy  bool
	Enabled  bool // false: hidden from subscribers and queries
	Metadata Metadata
	// Persistent: it is in the log of the cluster and stays until it is
	// deregistered; else its client's lease keeps it.
	Persistent bool
}

func (i *Instance) equal(o *Instance) bool {
	return i == o || i.InstanceKey == o.InstanceKey && i.ID == o.ID && i.Weight == o.Weight &&
		i.Healthy == o.Healthy && i.Enabled == o.Enabled && i.Persistent == o.Persistent && slices.Equal(i.Metadata, o.Metadata)
}

// Metadata is a map as a slice sorted by key: smaller than a map, and always
// written in the same order.
type Metadata []KV

// A KV is one entry of [Metadata].
type KV struct{ Key, Value string }

// NewMetadata copies a map.
func NewMetadata(m map[string]string) Metadata {
	if len(m) == 0 {
		return nil
	}
	md := make(Metadata, 0, len(m))
	for k, v := range m {
		md = append(md, KV{k, v})
	}
	slices.SortFunc(md, func(a, b KV) int { return strings.Compare(a.Key, b.Key) })
	return md
}

// Get returns the value of a key and whether there is one.
func (md Metadata) Get(key string) (string, bool) {
	i, ok := slices.BinarySearchFunc(md, key, func(e KV, k string) int { return strings.Compare(e.Key, k) })
	if !ok {
		return "", false
	}
	return md[i].Value, true
}

// With lays over's entries over md's (semantics V9). Neither changes; the result
// may be one of them.
func (md Metadata) With(over Metadata) Metadata {
	switch {
	case len(over) == 0:
		return md
	case len(md) == 0:
		return over
	}
	out := make(Metadata, 0, len(md)+len(over))
	for len(md) > 0 || len(over) > 0 {
		switch {
		case len(over) == 0 || len(md) > 0 && md[0].Key < over[0].Key:
			out, md = append(out, md[0]), md[1:]
		default:
			if len(md) > 0 && md[0].Key == over[0].Key {
				md = md[1:]
			}
			out, over = append(out, over[0]), over[1:]
		}
	}
	return out
}

// An Override is an operator's edit of one instance, laid over what clients
// publish (semantics V9). A nil field leaves the published value.
type Override struct {
	Enabled  *bool
	Weight   *float64
	Metadata Metadata // wins key by key
	// Evicted: readers do not see the instance, whoever registers it.
	Evicted bool
	// StaysOut: the eviction holds until it is lifted, whatever becomes of the
	// instance. Sticky is the same of the rest of the edit.
	StaysOut, Sticky bool
	// Revision is the index of the log entry that wrote it.
	Revision uint64
}

// Sets reports whether an edit sets something, an eviction left out.
func (o *Override) Sets() bool {
	return o.Enabled != nil || o.Weight != nil || len(o.Metadata) > 0
}

// Lasting is what stays of an edit when its instance is gone; ends: that is less
// than there was.
func (o Override) Lasting() (left Override, ends bool) {
	if o.Evicted && !o.StaysOut {
		o.Evicted, ends = false, true
	}
	if o.Sets() && !o.Sticky {
		o.Enabled, o.Weight, o.Metadata, ends = nil, nil, nil, true
	}
	return o, ends
}

func (o *Override) apply(i *Instance) *Instance {
	if o == nil {
		return i
	}
	edited := *i
	if o.Enabled != nil {
		edited.Enabled = *o.Enabled
	}
	if o.Weight != nil {
		edited.Weight = *o.Weight
	}
	edited.Metadata = i.Metadata.With(o.Metadata)
	return &edited
}
