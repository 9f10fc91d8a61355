package drivers

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
)

// An Instance as drivers send and report it. Lists are compared in all fields, so that an
// attribute lost on the way fails a scenario as a missing address does.
type Instance struct {
	IP       string            `json:"ip"`
	Port     int               `json:"port"`
	Weight   float64           `json:"weight"`
	Healthy  bool              `json:"healthy"`
	Enabled  bool              `json:"enabled"`
	Cluster  string            `json:"cluster"`
	Metadata map[string]string `json:"metadata"`
	// Ephemeral: it belongs to its client and goes with it. Else the server keeps and checks it.
	Ephemeral bool `json:"ephemeral"`
}

// NewInstance is a healthy ephemeral instance of weight 1 in the default cluster.
func NewInstance(ip string, port int) Instance {
	return Instance{IP: ip, Port: port, Weight: 1, Healthy: true, Enabled: true, Cluster: "DEFAULT",
		Metadata: map[string]string{}, Ephemeral: true}
}

// The methods below return a changed copy and leave the original as it is.

func (i Instance) Weighing(weight float64) Instance { i.Weight = weight; return i }
func (i Instance) Unhealthy() Instance              { i.Healthy = false; return i }
func (i Instance) Disabled() Instance               { i.Enabled = false; return i }
func (i Instance) Persistent() Instance             { i.Ephemeral = false; return i }
func (i Instance) In(cluster string) Instance       { i.Cluster = cluster; return i }

func (i Instance) With(key, value string) Instance {
	i.Metadata = maps.Clone(i.Metadata)
	i.Metadata[key] = value
	return i
}

func (i Instance) String() string {
	var b strings.Builder
	b.WriteString(net.JoinHostPort(i.IP, strconv.Itoa(i.Port)))
	if i.Cluster != "DEFAULT" {
		b.WriteString(" in " + i.Cluster)
	}
	if i.Weight != 1 {
		fmt.Fprintf(&b, " weighing %v", i.Weight)
	}
	if !i.Healthy {
		b.WriteString(" unhealthy")
	}
	if !i.Enabled {
		b.WriteString(" disabled")
	}
	if !i.Ephemeral {
		b.WriteString(" persistent")
	}
	for _, k := range slices.Sorted(maps.Keys(i.Metadata)) {
		fmt.Fprintf(&b, " %s=%q", k, i.Metadata[k])
	}
	return b.String()
}

func (i Instance) Equal(o Instance) bool {
	return i.IP == o.IP && i.Port == o.Port && i.Weight == o.Weight && i.Healthy == o.Healthy &&
		i.Enabled == o.Enabled && i.Cluster == o.Cluster && i.Ephemeral == o.Ephemeral && maps.Equal(i.Metadata, o.Metadata)
}
