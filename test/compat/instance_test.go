package compat

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/starling-registry/starling/test/compat/drivers"
)

type instance = drivers.Instance

// inst is a healthy instance of weight 1 in the default cluster.
func inst(address string) instance {
	ip, port, err := net.SplitHostPort(address)
	if err != nil {
		panic(err)
	}
	p, err := strconv.Atoi(port)
	if err != nil {
		panic(err)
	}
	return drivers.NewInstance(ip, p)
}

// instances is n instances of one host, on the ports from first on.
func instances(ip string, first, n int) []instance {
	list := make([]instance, n)
	for i := range list {
		list[i] = inst(fmt.Sprintf("%s:%d", ip, first+i))
	}
	return list
}

// sameInstances ignores the order, which the protocol leaves open, but not duplicates.
func sameInstances(a, b []instance) bool {
	byAddress := func(x, y instance) int {
		return cmp.Or(strings.Compare(x.IP, y.IP), cmp.Compare(x.Port, y.Port), strings.Compare(x.Cluster, y.Cluster))
	}
	a, b = slices.SortedFunc(slices.Values(a), byAddress), slices.SortedFunc(slices.Values(b), byAddress)
	return slices.EqualFunc(a, b, instance.Equal)
}

// describe keeps failure messages about a thousand instances readable.
func describe(list []instance) string {
	const most = 8
	if len(list) > most {
		return fmt.Sprintf("%d instances, the first %v", len(list), list[:most])
	}
	return fmt.Sprint(list)
}
