package registry

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// A Snapshot is the picture of one service at one moment. It is immutable;
// readers may keep it.
type Snapshot struct {
	Service ServiceKey
	// Version is the stamp of the last visible change on this node; 0: nothing
	// was ever visible, or the service is not there.
	Version Stamp
	// Instances is sorted by key and holds each key once, disabled ones too.
	Instances []*Shown
	// Evicted are those that would be among Instances if no operator had
	// evicted them, sorted in the same way. Nil: there are none.
	Evicted []*Shown
	Meta    *ServiceMeta // nil: nobody has described the service

	memo memo
	sum  atomic.Uint64 // see Hash; 0: not known yet
}

// A Shown is one line of a snapshot, immutable as well.
type Shown struct {
	*Instance // with the operator's override laid over it
	// Since is the registration clock: when the client registered or
	// changed the instance. Overrides and health do not move it.
	Since  Stamp
	Client string // id of the client whose claim is shown; of a persistent instance ip:port#false
	Life   Life   // that the client belongs to; zero of a persistent instance
	State  LifeState
	Moving bool // the client's connection is gone, it is expected elsewhere
	Slow   bool // the client is known to need long to register again, see Client.Redo
}

// ServiceMeta is what an operator says about a service. It is immutable.
type ServiceMeta struct {
	Persistent       bool    // its instances are; else they are ephemeral
	ProtectThreshold float64 // 0…1: protection starts at this share of healthy hosts
	Selector         Selector
	Metadata         Metadata
	Clusters         map[string]*ClusterMeta // by name; of those that are not there, the defaults hold
}

// ClusterMeta is what an operator says about a cluster of a service: how its
// persistent instances are checked. It is immutable.
type ClusterMeta struct {
	Name            string
	Checker         Checker
	CheckPort       int  // unless UseInstancePort
	UseInstancePort bool // check the port that the instance has
	Metadata        Metadata
}

// Types of a [Checker]. An instance with another one is never checked.
const (
	CheckTCP   = "TCP"
	CheckHTTP  = "HTTP"
	CheckMySQL = "MYSQL"
	CheckNone  = "NONE" // health is what it was registered with, or an operator says
)

// A Checker is a kind of health check with its settings.
type Checker struct {
	Type          string
	Path, Headers string // of HTTP; headers as name:value|name:value
	ExpectedCode  int    // of HTTP
	// Of MySQL.
	User, Password, Command string
}

// DefaultClusterMeta holds for a cluster that nobody has described (semantics V14).
func DefaultClusterMeta(name string) *ClusterMeta {
	return &ClusterMeta{Name: name, Checker: Checker{Type: CheckTCP}, CheckPort: 80, UseInstancePort: true}
}

// Cluster is what holds for a cluster. m may be nil.
func (m *ServiceMeta) Cluster(name string) *ClusterMeta {
	if m != nil && m.Clusters[name] != nil {
		return m.Clusters[name]
	}
	return DefaultClusterMeta(name)
}

// A Filter is what a reader asks of a service. The zero Filter asks for all
// enabled instances.
type Filter struct {
	Clusters    string // comma list, matched exactly, without trimming; "" is all
	HealthyOnly bool
}

// Get finds an instance by ip, port and cluster, whether enabled or not.
func (s *Snapshot) Get(k InstanceKey) (*Shown, bool) {
	i, ok := slices.BinarySearchFunc(s.Instances, k, func(e *Shown, k InstanceKey) int { return e.Compare(k) })
	if !ok {
		return nil, false
	}
	return s.Instances[i], true
}

// Find is Get for evicted instances, too.
func (s *Snapshot) Find(k InstanceKey) (*Shown, bool) {
	if e, ok := s.Get(k); ok || len(s.Evicted) == 0 {
		return e, ok
	}
	i, ok := slices.BinarySearchFunc(s.Evicted, k, func(e *Shown, k InstanceKey) int { return e.Compare(k) })
	if !ok {
		return nil, false
	}
	return s.Evicted[i], true
}

// Select returns the hosts a reader gets, in the order of Instances, and
// whether the protection threshold is reached: then all of them are to be
// shown healthy, whatever their Healthy says. Order of the rules: cluster,
// enabled and health filter, selector, protection (semantics V5–V8): so a
// reader that asks for healthy hosts only is never given unhealthy ones by
// the protection.
func (s *Snapshot) Select(f Filter) (hosts []*Shown, protected bool) {
	hosts = make([]*Shown, 0, len(s.Instances))
	healthy, listed := 0, inList(f.Clusters)
	for _, h := range s.Instances {
		if !h.Enabled || f.HealthyOnly && !h.Healthy || !listed(h.Cluster) {
			continue
		}
		hosts = append(hosts, h)
		if h.Healthy {
			healthy++
		}
	}
	if s.Meta == nil || len(hosts) == 0 {
		return hosts, false
	}
	// Selectors compare labels of a CMDB; without one they choose all
	// (semantics V13), so there is nothing to narrow here.
	return hosts, float64(healthy)/float64(len(hosts)) <= max(0, s.Meta.ProtectThreshold)
}

// inList returns what tells whether a comma list has a name. Lists may be long,
// and so may be what is looked for in them.
func inList(list string) func(name string) bool {
	switch n := strings.Count(list, ","); {
	case list == "":
		return func(string) bool { return true }
	case n == 0:
		return func(name string) bool { return name == list }
	default:
		names := make(map[string]struct{}, n+1)
		for e := range strings.SplitSeq(list, ",") {
			names[e] = struct{}{}
		}
		return func(name string) bool { _, ok := names[name]; return ok }
	}
}

// An Encoding is what a reader made of a snapshot under one filter.
type Encoding struct {
	Bytes []byte // not to be changed
	Hash  uint64 // of Bytes; comparable within this process only
}

// maxMemo bounds the filtered encodings that a snapshot keeps: whoever
// subscribes with ever new cluster lists pays for encoding, not memory.
const maxMemo = 16

type memo struct {
	mu      sync.Mutex
	entries map[Filter]*Encoding
}

var hashSeed = maphash.MakeSeed()

// Encode returns encode(f) and remembers it for as long as the snapshot
// lives, so that a change is encoded once for all its readers. All callers
// must pass the same function. Readers who come while the bytes are made wait
// for them.
func (s *Snapshot) Encode(f Filter, encode func(*Snapshot, Filter) []byte) *Encoding {
	encoded := func() *Encoding {
		e := &Encoding{Bytes: encode(s, f)}
		e.Hash = maphash.Bytes(hashSeed, e.Bytes)
		return e
	}
	s.memo.mu.Lock()
	if s.memo.entries[f] == nil && f != (Filter{}) && len(s.memo.entries) >= maxMemo {
		s.memo.mu.Unlock()
		return encoded() // nobody else waits for these bytes
	}
	defer s.memo.mu.Unlock()
	if e := s.memo.entries[f]; e != nil {
		return e
	}
	e := encoded()
	if s.memo.entries == nil {
		s.memo.entries = make(map[Filter]*Encoding, 1)
	}
	s.memo.entries[f] = e
	return e
}
