package httpapi

import (
	"context"
	"maps"
	"slices"
	"sync"
)

// memTables are the tables of a log without services, in memory.
type memTables struct {
	mu         sync.Mutex
	broken     error // of every write, if not nil
	writes     int
	namespaces map[string]Namespace
	users      map[string]User
}

func newMemTables() *memTables {
	return &memTables{namespaces: map[string]Namespace{}, users: map[string]User{}}
}

func (m *memTables) write(do func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes++
	if m.broken != nil {
		return m.broken
	}
	return do()
}

func values[V any](m map[string]V) (vs []V) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		vs = append(vs, m[k])
	}
	return vs
}

func put[V any](in map[string]V, key string, v V, create bool) error {
	if _, ok := in[key]; ok && create {
		return refused(Exists, key)
	}
	in[key] = v
	return nil
}

func remove[V any](from map[string]V, key string) error {
	if _, ok := from[key]; !ok {
		return refused(NotFound, key)
	}
	delete(from, key)
	return nil
}

func (m *memTables) Namespaces() []Namespace {
	m.mu.Lock()
	defer m.mu.Unlock()
	return values(m.namespaces)
}

func (m *memTables) Namespace(id string) (Namespace, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, ok := m.namespaces[id]
	return n, ok
}

func (m *memTables) PutNamespace(_ context.Context, n Namespace, create bool) error {
	return m.write(func() error { return put(m.namespaces, n.ID, n, create) })
}

func (m *memTables) RemoveNamespace(_ context.Context, id string) error {
	return m.write(func() error { return remove(m.namespaces, id) })
}

func (m *memTables) Users() []User {
	m.mu.Lock()
	defer m.mu.Unlock()
	return values(m.users)
}

func (m *memTables) AnyUser() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.users) > 0
}

func (m *memTables) User(name string) (User, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	u, ok := m.users[name]
	return u, ok
}

func (m *memTables) PutUser(_ context.Context, u User, create bool) error {
	return m.write(func() error { return put(m.users, u.Name, u, create) })
}

func (m *memTables) RemoveUser(_ context.Context, name string) error {
	return m.write(func() error { return remove(m.users, name) })
}
