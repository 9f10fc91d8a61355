package api

import "context"

// Namespaces is the answer to GET /starling/v1/namespaces. A namespace needs no
// entry to work: it is listed when somebody has made one, when there are
// services in it, and public always.
type Namespaces struct {
	Namespaces []Namespace `json:"namespaces"` // public first, the others by id
}

// A Namespace is one of them.
type Namespace struct {
	ID          string `json:"id"`
	Name        string `json:"name"` // for people; the id where nobody has given one
	Description string `json:"description"`
	Services    int    `json:"services"` // as the answering node knows them
	InTable     bool   `json:"inTable"`  // somebody has made it; else it is there because services use it
}

// A NamespaceRequest is the body of POST /starling/v1/namespaces, which makes a
// namespace.
type NamespaceRequest struct {
	ID          string `json:"id,omitempty"` // up to 64 of A-Z a-z 0-9 _ -; absent: one is made up
	Name        string `json:"name,omitempty"`
	Description string `json:"description,omitempty"`
}

// A RemoveNamespaceRequest is the body of POST /starling/v1/namespaces/remove.
// What is in the namespace stays as it is.
type RemoveNamespaceRequest struct {
	ID string `json:"id"`
}

// Namespaces tells which namespaces there are.
func (c *Client) Namespaces(ctx context.Context) (*Namespaces, error) {
	return get[Namespaces](ctx, c, "/namespaces", nil)
}

// CreateNamespace makes a namespace; CodeConflict: it is there.
func (c *Client) CreateNamespace(ctx context.Context, r NamespaceRequest) (*Namespace, error) {
	return post[Namespace](ctx, c, "/namespaces", r)
}

// RemoveNamespace forgets a namespace and tells what it was, with the services
// that are still in it; CodeNotFound: nobody has made it.
func (c *Client) RemoveNamespace(ctx context.Context, id string) (*Namespace, error) {
	return post[Namespace](ctx, c, "/namespaces/remove", RemoveNamespaceRequest{ID: id})
}
