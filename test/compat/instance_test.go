package compat

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
)

// An instance as the drivers send and report it. Lists are compared in all fields, so that an
// attribute lost on the way fails a scenario as a missing address does.
type instance struct {
	IP       string            `json:"ip"`
	Port     int               `json:"port"`
	Weight   float64           `json:"weight"`
	Healthy  bool              `json:"healthy"`
	Enabled  bool              `json:"enabled"`
	Cluster  string            `json:"cluster"`
	Metadata map[string]string `json:"metadata"`
}

// inst is a healthy instance of weight 1 in the default cluster. The methods below return a changed
// copy and leave the original as it is.
func inst(address string) instance {
	ip, port, err := net.SplitHostPort(address)
	if err != nil {
		panic(err)
	}
	p, err := strconv.Atoi(port)
	if err != nil {
		panic(err)
	}
	return instance{IP: ip, Port: p, Weight: 1, Healthy: true, Enabled: true, Cluster: "DEFAULT",
		Metadata: map[string]string{}}
}

// instances is n instances of one host, on the ports from first on.
func instances(ip string, first, n int) []instance {
	list := make([]instance, n)
	for i := range list {
		list[i] = inst(fmt.Sprintf("%s:%d", ip, first+i))
	}
	return list
}

func (i instance) weighing(weight float64) instance { i.Weight = weight; return i }
func (i instance) unhealthy() instance              { i.Healthy = false; return i }
func (i instance) disabled() instance               { i.Enabled = false; return i }
func (i instance) in(cluster string) instance       { i.Cluster = cluster; return i }

func (i instance) with(key, value string) instance {
	i.Metadata = maps.Clone(i.Metadata)
	i.Metadata[key] = value
	return i
}

func (i instance) String() string {
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
	for _, k := range slices.Sorted(maps.Keys(i.Metadata)) {
		fmt.Fprintf(&b, " %s=%q", k, i.Metadata[k])
	}
	return b.String()
}

func (i instance) equal(o instance) bool {
	return i.IP == o.IP && i.Port == o.Port && i.Weight == o.Weight && i.Healthy == o.Healthy &&
		i.Enabled == o.Enabled && i.Cluster == o.Cluster && maps.Equal(i.Metadata, o.Metadata)
}

// sameInstances ignores the order, which the protocol leaves open, but not duplicates.
func sameInstances(a, b []instance) bool {
	byAddress := func(x, y instance) int {
		return cmp.Or(strings.Compare(x.IP, y.IP), cmp.Compare(x.Port, y.Port), strings.Compare(x.Cluster, y.Cluster))
	}
	a, b = slices.SortedFunc(slices.Values(a), byAddress), slices.SortedFunc(slices.Values(b), byAddress)
	return slices.EqualFunc(a, b, instance.equal)
}

// describe keeps failure messages about a thousand instances readable.
func describe(list []instance) string {
	const most = 8
	if len(list) > most {
		return fmt.Sprintf("%d instances, the first %v", len(list), list[:most])
	}
	return fmt.Sprint(list)
}
