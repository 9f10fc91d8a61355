package httpapi

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"

	"github.com/starling-registry/starling/pkg/registry"
)

// A memLog does what the log of a cluster does, in memory.
type memLog struct {
	registry *registry.Registry
	clock    *registry.Clock
	broken   error // of every write, if not nil,
	after    int   // as soon as there were so many

	mu        sync.Mutex
	revision  uint64
	writes    int
	services  map[registry.ServiceKey]*registry.ServiceMeta
	instances map[registry.ServiceKey]map[string]*registry.Persistent // by ip:port
	edits     map[registry.ServiceKey]map[registry.InstanceKey]registry.Override
	switches  map[string]string
}

func newMemLog(clock *registry.Clock) *memLog {
	return &memLog{clock: clock, services: map[registry.ServiceKey]*registry.ServiceMeta{},
		instances: map[registry.ServiceKey]map[string]*registry.Persistent{}, edits: map[registry.ServiceKey]map[registry.InstanceKey]registry.Override{}}
}

// A memRefusal is an error of a memLog.
type memRefusal struct{ Refusal }

func (r *memRefusal) Error() string { return "memLog: " + r.Text }

func explain(err error) (Refusal, bool) {
	if r, ok := errors.AsType[*memRefusal](err); ok {
		return r.Refusal, true
	}
	return Refusal{}, false
}

func refused(code RefusalCode, text string) error {
	return &memRefusal{Refusal{Code: code, Text: text}}
}

// change is what one write does: under the lock, and told to the registry in
// the order of the writes.
func (m *memLog) change(do func() (registry.Change, error)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes++
	if m.broken != nil && m.writes > m.after {
		return m.broken
	}
	m.revision++
	c, err := do()
	if err == nil {
		m.registry.Commit([]registry.Change{c})
	}
	return err
}

func at(ip string, port int) string { return net.JoinHostPort(ip, strconv.Itoa(port)) }

func (m *memLog) PutInstance(_ context.Context, key registry.ServiceKey, i *registry.Instance) error {
	return m.change(func() (registry.Change, error) {
		if s := m.services[key]; s != nil && !s.Persistent {
			return registry.Change{}, refused(WrongKind, "ephemeral")
		}
		if m.edits[key][i.InstanceKey].Evicted {
			return registry.Change{}, refused(Evicted, "evicted")
		}
		now := m.clock.Now()
		is := &registry.Persistent{Instance: i, Since: now, Judged: now}
		c := registry.Change{Service: key}
		if was := m.instances[key][at(i.IP, i.Port)]; was != nil {
			next := *i
			next.Healthy = was.Healthy
			is = &registry.Persistent{Instance: &next, Since: was.Since, Judged: was.Judged}
			if was.InstanceKey != i.InstanceKey {
				c.Instances = append(c.Instances, registry.PersistentChange{InstanceKey: was.InstanceKey, Cause: registry.CauseReplaced})
			}
		}
		if m.instances[key] == nil {
			m.instances[key] = map[string]*registry.Persistent{}
		}
		m.instances[key][at(i.IP, i.Port)] = is
		c.Instances = append(c.Instances, registry.PersistentChange{InstanceKey: i.InstanceKey, Is: is, Cause: registry.CauseRegistered})
		return c, nil
	})
}

func (m *memLog) RemoveInstance(_ context.Context, key registry.ServiceKey, ip string, port int) error {
	return m.change(func() (registry.Change, error) {
		was := m.instances[key][at(ip, port)]
		if was == nil {
			return registry.Change{}, refused(NotFound, "instance")
		}
		delete(m.instances[key], at(ip, port))
		delete(m.edits[key], was.InstanceKey)
		return registry.Change{Service: key, Instances: []registry.PersistentChange{{InstanceKey: was.InstanceKey, Cause: registry.CauseDeregistered}},
			Overrides: []registry.OverrideChange{{InstanceKey: was.InstanceKey, Cause: registry.CauseOverrideEnded}}}, nil
	})
}

func (m *memLog) SetHealth(_ context.Context, key registry.ServiceKey, k registry.InstanceKey, healthy bool) error {
	return m.change(func() (registry.Change, error) {
		if m.services[key].Cluster(k.Cluster).Checker.Type != registry.CheckNone {
			return registry.Change{}, refused(Invalid, "checked")
		}
		was := m.instances[key][at(k.IP, k.Port)]
		if was == nil || was.InstanceKey != k {
			return registry.Change{}, refused(NotFound, "instance")
		}
		next := *was.Instance
		next.Healthy = healthy
		is := &registry.Persistent{Instance: &next, Since: was.Since, Judged: m.clock.Now()}
		m.instances[key][at(k.IP, k.Port)] = is
		return registry.Change{Service: key, Instances: []registry.PersistentChange{{InstanceKey: k, Is: is, Cause: registry.CauseOperator}}}, nil
	})
}

func (m *memLog) PutOverride(_ context.Context, key registry.ServiceKey, k registry.InstanceKey, edit registry.Override, merge bool) error {
	return m.change(func() (registry.Change, error) {
		was := m.edits[key][k]
		if merge {
			edit.Enabled, edit.Weight = cmp.Or(edit.Enabled, was.Enabled), cmp.Or(edit.Weight, was.Weight)
			if edit.Metadata == nil {
				edit.Metadata = was.Metadata
			}
		}
		edit.Evicted, edit.StaysOut = was.Evicted, was.StaysOut
		edit.Sticky = edit.Sticky || was.Sticky && merge
		return m.edit(key, k, edit, registry.CauseOperator)
	})
}

func (m *memLog) Evict(_ context.Context, key registry.ServiceKey, k registry.InstanceKey, untilGone bool) error {
	return m.change(func() (registry.Change, error) {
		edit := m.edits[key][k]
		edit.Evicted, edit.StaysOut = true, !untilGone
		return m.edit(key, k, edit, registry.CauseEvicted)
	})
}

func (m *memLog) Lift(_ context.Context, key registry.ServiceKey, k registry.InstanceKey) error {
	return m.change(func() (registry.Change, error) {
		edit := m.edits[key][k]
		if !edit.Evicted {
			return registry.Change{}, refused(NotFound, "eviction")
		}
		edit.Evicted, edit.StaysOut = false, false
		return m.edit(key, k, edit, registry.CauseLifted)
	})
}

// edit sets an edit to what is left of it.
func (m *memLog) edit(key registry.ServiceKey, k registry.InstanceKey, edit registry.Override, cause registry.Cause) (registry.Change, error) {
	edit.Sticky = edit.Sticky && edit.Sets()
	if !edit.Sets() && !edit.Evicted {
		delete(m.edits[key], k)
		return registry.Change{Service: key, Overrides: []registry.OverrideChange{{InstanceKey: k, Cause: cause}}}, nil
	}
	edit.Revision = m.revision
	if m.edits[key] == nil {
		m.edits[key] = map[registry.InstanceKey]registry.Override{}
	}
	m.edits[key][k] = edit
	return registry.Change{Service: key, Overrides: []registry.OverrideChange{{InstanceKey: k, Is: &edit, Cause: cause}}}, nil
}

// evict evicts an instance, or lifts that.
func (m *memLog) evict(key registry.ServiceKey, k registry.InstanceKey, evicted bool) {
	if evicted {
		_ = m.Evict(context.Background(), key, k, false)
	} else {
		_ = m.Lift(context.Background(), key, k)
	}
}

func (m *memLog) EditMetadata(_ context.Context, key registry.ServiceKey, at []registry.InstanceKey, set registry.Metadata, remove []string) error {
	return m.change(func() (registry.Change, error) {
		all := registry.Change{Service: key}
		for _, k := range at {
			edit := m.edits[key][k]
			was := edit.Metadata
			edit.Metadata = slices.DeleteFunc(slices.Clone(was), func(kv registry.KV) bool { return slices.Contains(remove, kv.Key) }).With(set)
			if slices.Equal(edit.Metadata, was) {
				continue
			}
			c, _ := m.edit(key, k, edit, registry.CauseOperator)
			all.Overrides = append(all.Overrides, c.Overrides...)
		}
		return all, nil
	})
}

func (m *memLog) PutSwitch(_ context.Context, name, value string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes++
	if m.broken != nil {
		return m.broken
	}
	if m.switches == nil {
		m.switches = map[string]string{}
	}
	m.switches[name] = value
	return nil
}

func (m *memLog) end(e registry.Edit) {
	_ = m.change(func() (registry.Change, error) {
		if m.edits[e.Service][e.InstanceKey].Revision != e.Revision {
			return registry.Change{}, refused(NotFound, "edit")
		}
		delete(m.edits[e.Service], e.InstanceKey)
		return registry.Change{Service: e.Service, Overrides: []registry.OverrideChange{{InstanceKey: e.InstanceKey, Cause: e.Cause}}}, nil
	})
}

func (m *memLog) describe(key registry.ServiceKey, is *registry.ServiceMeta) (registry.Change, error) {
	if is == nil {
		delete(m.services, key)
	} else {
		m.services[key] = is
	}
	return registry.Change{Service: key, Described: true, Meta: is}, nil
}

func (m *memLog) CreateService(_ context.Context, key registry.ServiceKey, is *registry.ServiceMeta) error {
	return m.change(func() (registry.Change, error) {
		if m.services[key] != nil || len(m.instances[key]) > 0 {
			return registry.Change{}, refused(Exists, "service")
		}
		return m.describe(key, is)
	})
}

func (m *memLog) UpdateService(_ context.Context, key registry.ServiceKey, is *registry.ServiceMeta) error {
	return m.change(func() (registry.Change, error) {
		if was := m.services[key]; was != nil {
			is.Persistent, is.Clusters = was.Persistent, was.Clusters
		}
		return m.describe(key, is)
	})
}

func (m *memLog) RemoveService(_ context.Context, key registry.ServiceKey) error {
	return m.change(func() (registry.Change, error) {
		switch {
		case len(m.instances[key]) > 0:
			return registry.Change{}, refused(NotEmpty, "service")
		case m.services[key] == nil:
			return registry.Change{}, refused(NotFound, "service")
		}
		return m.describe(key, nil)
	})
}

func (m *memLog) PutCluster(_ context.Context, key registry.ServiceKey, c *registry.ClusterMeta, persistent bool) error {
	return m.change(func() (registry.Change, error) {
		is := &registry.ServiceMeta{Persistent: persistent}
		if was := m.services[key]; was != nil {
			*is = *was
		}
		is.Clusters = maps.Clone(is.Clusters)
		if is.Clusters == nil {
			is.Clusters = map[string]*registry.ClusterMeta{}
		}
		is.Clusters[c.Name] = c
		return m.describe(key, is)
	})
}
