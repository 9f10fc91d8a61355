package bare

import (
	"slices"
	"strings"
	"sync"

	"github.com/starling-registry/starling/test/compat/drivers"
)

// An Info is what servers say of a service, over HTTP and gRPC alike.
type Info struct {
	Name                     string `json:"name"` // gRPC: with or without the group
	GroupName                string `json:"groupName"`
	Hosts                    []Host `json:"hosts"`
	LastRefTime              int64  `json:"lastRefTime"` // when it was made; 0 where the answer has none
	CacheMillis              int64  `json:"cacheMillis"`
	ReachProtectionThreshold bool   `json:"reachProtectionThreshold"`
}

// A Host is an instance in it.
type Host struct {
	IP          string            `json:"ip"`
	Port        int               `json:"port"`
	Weight      float64           `json:"weight"`
	Healthy     bool              `json:"healthy"`
	Enabled     bool              `json:"enabled"`
	Ephemeral   bool              `json:"ephemeral"`
	ClusterName string            `json:"clusterName"`
	Metadata    map[string]string `json:"metadata"`
}

// NewHost is the opposite of [Info.Instances].
func NewHost(i drivers.Instance) Host {
	return Host{i.IP, i.Port, i.Weight, i.Healthy, i.Enabled, i.Ephemeral, i.Cluster, i.Metadata}
}

// Service is the one that it is about.
func (i *Info) Service() Service {
	if group, name, ok := strings.Cut(i.Name, "@@"); ok {
		return Service{group, name}
	}
	return Service{i.GroupName, i.Name}
}

// Instances are those of some clusters, or all if none is named.
func (i *Info) Instances(clusters []string) []drivers.Instance {
	list := make([]drivers.Instance, 0, len(i.Hosts))
	for _, h := range i.Hosts {
		if len(clusters) > 0 && !slices.Contains(clusters, h.ClusterName) {
			continue
		}
		metadata := h.Metadata
		if metadata == nil {
			metadata = map[string]string{}
		}
		list = append(list, drivers.Instance{IP: h.IP, Port: h.Port, Weight: h.Weight, Healthy: h.Healthy, Enabled: h.Enabled,
			Cluster: h.ClusterName, Metadata: metadata, Ephemeral: h.Ephemeral})
	}
	return list
}

// A View is the list of one subscription. As in the SDKs, one that is older than what the client has
// is not believed, from whichever server it comes, and one that says the same is not told.
type View struct {
	clusters []string
	told     func([]drivers.Instance)

	mu     sync.Mutex // held while told runs
	have   []drivers.Instance
	at     int64 // its lastRefTime
	begun  bool  // there was a first list
	closed bool
}

func NewView(clusters []string, told func([]drivers.Instance)) *View {
	return &View{clusters: clusters, told: told}
}

// Take looks at a list that has come.
func (v *View) Take(info *Info) {
	hosts := info.Instances(v.clusters)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed || info.LastRefTime < v.at {
		return
	}
	v.at = info.LastRefTime
	if v.begun && same(v.have, hosts) {
		return
	}
	v.begun, v.have = true, hosts
	v.told(hosts)
}

// Close returns when nobody is told anything any more.
func (v *View) Close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed = true
}

// same compares without regard to order, which servers do not promise.
func same(a, b []drivers.Instance) bool {
	if len(a) != len(b) {
		return false
	}
	if slices.EqualFunc(a, b, drivers.Instance.Equal) {
		return true
	}
	type address struct {
		ip      string
		port    int
		cluster string
	}
	seen := make(map[address][]drivers.Instance, len(a))
	for _, i := range a {
		at := address{i.IP, i.Port, i.Cluster}
		seen[at] = append(seen[at], i)
	}
	for _, i := range b {
		at := address{i.IP, i.Port, i.Cluster}
		n := slices.IndexFunc(seen[at], i.Equal)
		if n < 0 {
			return false
		}
		seen[at] = slices.Delete(seen[at], n, n+1)
	}
	return true
}
