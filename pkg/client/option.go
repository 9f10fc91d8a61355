package client

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/starling-registry/starling/pkg/nacos"
)

// A ServiceOption is of calls that publish or list services.
type ServiceOption interface {
	service(serviceOptions) serviceOptions
}

// A QueryOption says which instances of a service are meant, and how to get them.
type QueryOption interface{ query(query) query }

type serviceOptions struct {
	group string
	async bool
}

// A query is what the options of a read come to. Options take and return it by
// value, so that a read without any allocates nothing.
type query struct {
	group                             string
	clusters                          []string
	all, any                          map[string]string
	where                             []func(Instance) bool
	noSubscribe, allHealth, unhealthy bool
	hasAny, stale                     bool
	maxAge                            time.Duration // of stale; 0: any
}

// A GroupOption is both a [ServiceOption] and a [QueryOption].
type GroupOption string

// Group is the service's group; without it, it is DEFAULT_GROUP.
func Group(name string) GroupOption { return GroupOption(name) }

func (g GroupOption) service(o serviceOptions) serviceOptions { o.group = string(g); return o }
func (g GroupOption) query(q query) query                     { q.group = string(g); return q }

type serviceOption func(serviceOptions) serviceOptions

func (f serviceOption) service(o serviceOptions) serviceOptions { return f(o) }

type queryOption func(query) query

func (f queryOption) query(q query) query { return f(q) }

// Async makes Register return at once: the client keeps trying until the server
// accepts, and [Lease.Registered] and [Lease.Err] tell how it goes.
func Async() ServiceOption {
	return serviceOption(func(o serviceOptions) serviceOptions { o.async = true; return o })
}

// Clusters keeps the instances of these clusters; none keeps all. The client
// always has the whole service, so that queries with different clusters do
// not disturb each other.
func Clusters(names ...string) QueryOption {
	names = slices.Clone(names)
	return queryOption(func(q query) query {
		q.clusters = append(q.clusters[:len(q.clusters):len(q.clusters)], names...)
		return q
	})
}

// Where keeps the instances for which it is true. It must not change the
// metadata. It is called under no lock, on the goroutine that reads or, for a
// watcher, that takes the event.
func Where(keep func(Instance) bool) QueryOption {
	return queryOption(func(q query) query { q.where = append(q.where[:len(q.where):len(q.where)], keep); return q })
}

// MetaAll keeps the instances that have all of these metadata.
func MetaAll(want map[string]string) QueryOption {
	return queryOption(func(q query) query { q.all = want; return q })
}

// MetaAny keeps the instances that have at least one of these metadata.
func MetaAny(want map[string]string) QueryOption {
	return queryOption(func(q query) query { q.any, q.hasAny = want, true; return q })
}

// NoSubscribe makes a read ask a server each time, and keeps nothing; Watch
// refuses it. A list that an operator has put into the failover directory comes
// first all the same.
func NoSubscribe() QueryOption {
	return queryOption(func(q query) query { q.noSubscribe = true; return q })
}

// AllHealth makes Select and Pick take unhealthy instances too.
func AllHealth() QueryOption {
	return queryOption(func(q query) query { q.allHealth = true; return q })
}

// UnhealthyOnly makes Select and Pick take only unhealthy instances.
func UnhealthyOnly() QueryOption {
	return queryOption(func(q query) query { q.unhealthy = true; return q })
}

// StaleOK takes an older list at once: one that is not subscribed now, or from the
// disk, if its AsOf is no longer ago than this (0: whatever its age). Without it a
// read tries to subscribe first, and a watcher waits for a server.
func StaleOK(d time.Duration) QueryOption {
	return queryOption(func(q query) query { q.stale, q.maxAge = true, d; return q })
}

func queryOf(opts []QueryOption) query {
	var q query
	for _, o := range opts {
		q = o.query(q)
	}
	return q
}

func serviceOf(opts []ServiceOption) serviceOptions {
	var s serviceOptions
	for _, o := range opts {
		s = o.service(s)
	}
	return s
}

func (q *query) check() error {
	for _, name := range q.clusters {
		if err := nacos.CheckCluster(name); err != nil || nacos.Blank(name) {
			return fmt.Errorf("%w: cluster %q", ErrInvalid, name)
		}
	}
	return nil
}

// all reports whether nothing is filtered.
func (q *query) keepsAll() bool {
	return len(q.clusters) == 0 && len(q.all) == 0 && !q.hasAny && len(q.where) == 0
}

// match reports whether an instance is meant, whatever its health.
func (q *query) match(i *Instance) bool {
	if len(q.clusters) > 0 && !slices.Contains(q.clusters, i.Cluster) {
		return false
	}
	for k, v := range q.all {
		if got, ok := i.Metadata[k]; !ok || got != v {
			return false
		}
	}
	if q.hasAny {
		found := false
		for k, v := range q.any {
			if got, ok := i.Metadata[k]; ok && got == v {
				found = true
				break
			}
		}
		if !found {
			return false
		}
	}
	for _, keep := range q.where {
		if !keep(*i) {
			return false
		}
	}
	return true
}

// usable is the filter of Select: enabled, with a weight, and of the health
// that is wanted.
func (q *query) usable(i *Instance) bool {
	if !i.Enabled || !(i.Weight > 0) || math.IsNaN(i.Weight) {
		return false
	}
	switch {
	case q.unhealthy:
		return !i.Healthy
	case q.allHealth:
		return true
	}
	return i.Healthy
}
