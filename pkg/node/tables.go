package node

import (
	"context"

	"github.com/starling-registry/starling/pkg/httpapi"
	"github.com/starling-registry/starling/raftstore"
)

// tables are those of the log with the types of the HTTP API.
type tables struct{ store *raftstore.Store }

func (t tables) Namespaces() []httpapi.Namespace {
	made := t.store.Namespaces()
	out := make([]httpapi.Namespace, len(made))
	for i, n := range made {
		out[i] = httpapi.Namespace(n)
	}
	return out
}

func (t tables) Namespace(id string) (httpapi.Namespace, bool) {
	n, ok := t.store.Namespace(id)
	return httpapi.Namespace(n), ok
}

func (t tables) PutNamespace(ctx context.Context, n httpapi.Namespace, create bool) error {
	return t.store.PutNamespace(ctx, raftstore.Namespace(n), create)
}

func (t tables) RemoveNamespace(ctx context.Context, id string) error {
	return t.store.RemoveNamespace(ctx, id)
}

func (t tables) Users() []httpapi.User {
	users := t.store.Users()
	out := make([]httpapi.User, len(users))
	for i, u := range users {
		out[i] = httpapi.User(u)
	}
	return out
}

func (t tables) AnyUser() bool { return t.store.AnyUser() }

func (t tables) User(name string) (httpapi.User, bool) {
	u, ok := t.store.User(name)
	return httpapi.User(u), ok
}

func (t tables) PutUser(ctx context.Context, u httpapi.User, create bool) error {
	return t.store.PutUser(ctx, raftstore.User(u), create)
}

func (t tables) RemoveUser(ctx context.Context, name string) error {
	return t.store.RemoveUser(ctx, name)
}
