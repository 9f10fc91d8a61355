package httpapi

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

// A Namespace is one that somebody made; others work without.
type Namespace struct{ ID, Name, Description string }

// Namespaces are a table of the log of the cluster; what goes for [Durable]
// goes for them.
type Namespaces interface {
	Namespaces() []Namespace // by id
	Namespace(id string) (Namespace, bool)
	// PutNamespace keeps one; with create it must not be there yet.
	PutNamespace(ctx context.Context, n Namespace, create bool) error
	RemoveNamespace(ctx context.Context, id string) error
}

// Limits in characters, those of the columns that Nacos has (golden scenario 45).
const (
	maxNamespaceID          = 128
	maxNamespaceName        = 128
	maxNamespaceDescription = 256
)

// isDefault reports whether an id means the namespace that is always there.
func isDefault(id string) bool { return id == "" || id == registry.DefaultNamespace }

func (c *call) defaultNamespace() nacos.Namespace {
	if c.version == v3 {
		return nacos.DefaultNamespace(registry.DefaultNamespace, "Default Namespace")
	}
	return nacos.DefaultNamespace("", "")
}

// namespaceList serves the lists: those that somebody made and those that
// services are in, by id, after the default one.
func (s *Server) namespaceList(c *call) error {
	if c.version == v1 {
		switch {
		case c.get("show") == "all":
			return s.namespace(c)
		case strings.EqualFold(c.get("checkNamespaceIdExist"), "true"):
			return s.namespaceExists(c)
		}
	}
	others := map[string]nacos.Namespace{}
	for id := range s.opts.Registry.Namespaces() {
		others[id] = nacos.OtherNamespace(id, id, "")
	}
	for _, n := range s.opts.Namespaces.Namespaces() {
		others[n.ID] = nacos.OtherNamespace(n.ID, n.Name, n.Description)
	}
	delete(others, registry.DefaultNamespace)
	list := []nacos.Namespace{c.defaultNamespace()}
	for _, id := range slices.Sorted(maps.Keys(others)) {
		list = append(list, others[id])
	}
	return c.restV1(list)
}

// namespace serves GET namespace, and namespaces?show=all of v1. The default
// one has no id before v3, so that the parameter may be blank.
func (s *Server) namespace(c *call) error {
	if _, given := c.params["namespaceId"]; !given {
		return errMissingDeclared("namespaceId")
	}
	id := c.get("namespaceId")
	if isDefault(id) {
		return c.answerJSON(c.defaultNamespace())
	}
	if n, ok := s.opts.Namespaces.Namespace(id); ok {
		return c.answerJSON(nacos.OtherNamespace(n.ID, n.Name, n.Description))
	}
	if s.opts.Registry.Namespaces()[id] > 0 {
		return c.answerJSON(nacos.OtherNamespace(id, id, ""))
	}
	return errNoNamespace(id)
}

// namespaceExists serves checkNamespaceIdExist of v1, a boolean, and
// namespace/check of v3, a number.
func (s *Server) namespaceExists(c *call) error {
	param := "customNamespaceId"
	if c.version == v3 {
		param = "namespaceId"
	}
	if _, given := c.params[param]; !given {
		return errMissingDeclared(param)
	}
	id := c.get(param)
	exists := id != "" && s.isMade(id)
	if c.version == v1 {
		return c.bare(fmt.Append(nil, exists))
	}
	if exists {
		return c.answer([]byte("1"))
	}
	return c.answer([]byte("0"))
}

// isMade reports whether an id is taken. That services are in it does not
// count: who makes it then gives it a name.
func (s *Server) isMade(id string) bool {
	_, ok := s.opts.Namespaces.Namespace(id)
	return ok || isDefault(id)
}

// created is the answer to a write.
func (c *call) created(done bool) error {
	return c.answer(fmt.Append(nil, done))
}

// newNamespace reads what a namespace is to be.
func (c *call) newNamespace(idParam, nameParam string) (Namespace, error) {
	n := Namespace{ID: c.get(idParam), Name: c.get(nameParam), Description: c.get("namespaceDesc")}
	switch {
	case n.Name == "" && c.version == v1:
		return n, errMissingDeclared(nameParam)
	case n.Name == "":
		return n, errMissing(nameParam)
	case n.ID != "" && !isNamespaceID(n.ID):
		return n, errIllegalNamespace("namespaceId [" + clip(n.ID) + "] mismatch the pattern")
	case len(n.ID) > maxNamespaceID:
		return n, errIllegalNamespace(fmt.Sprintf("too long namespaceId, over %d", maxNamespaceID))
	case strings.ContainsAny(n.Name, "@#$%^&*"):
		return n, errIllegalNamespace("namespaceName [" + clip(n.Name) + "] contains illegal char")
	case utf8.RuneCountInString(n.Name) > maxNamespaceName:
		return n, errIllegalNamespace(fmt.Sprintf("too long namespaceName, over %d", maxNamespaceName))
	case utf8.RuneCountInString(n.Description) > maxNamespaceDescription:
		return n, errIllegalNamespace(fmt.Sprintf("too long namespaceDesc, over %d", maxNamespaceDescription))
	}
	return n, nil
}

// isNamespaceID: letters and digits of ASCII, - and _.
func isNamespaceID(id string) bool {
	return !strings.ContainsFunc(id, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '-' || r == '_')
	})
}

// createNamespace serves POST of all versions. In v1 no is false, and never an
// error (http-api §6.2).
func (s *Server) createNamespace(c *call) error {
	idParam := "namespaceId"
	if c.version == v1 {
		idParam = "customNamespaceId"
	}
	n, err := c.newNamespace(idParam, "namespaceName")
	if err == nil && n.ID == "" {
		n.ID = newUUID()
	}
	if err == nil && s.isMade(n.ID) {
		err = errNamespaceExists(n.ID)
	}
	if err == nil {
		var refused RefusalCode
		refused, err = s.durably(c, func(ctx context.Context, _ Durable) error { return s.opts.Namespaces.PutNamespace(ctx, n, true) })
		if refused == Exists {
			err = errNamespaceExists(n.ID)
		}
	}
	if c.version == v1 && isNamespaceRefusal(err) {
		return c.created(false)
	}
	if err != nil {
		return err
	}
	return c.created(true)
}

// updateNamespace serves PUT of all versions. One that is not there is no error
// and changes nothing (golden scenario 45); one that services are in gets a
// name.
func (s *Server) updateNamespace(c *call) error {
	idParam, nameParam := "namespaceId", "namespaceName"
	if c.version == v1 {
		idParam, nameParam = "namespace", "namespaceShowName"
	}
	if _, given := c.params[idParam]; !given {
		if c.version == v1 {
			return errMissingDeclared(idParam)
		}
		return errMissing(idParam)
	}
	n, err := c.newNamespace(idParam, nameParam)
	switch {
	case c.version == v1 && isNamespaceRefusal(err):
		return c.created(false)
	case err != nil:
		return err
	case isDefault(n.ID), !s.isMade(n.ID) && s.opts.Registry.Namespaces()[n.ID] == 0:
		return c.created(true)
	}
	if _, err := s.durably(c, func(ctx context.Context, _ Durable) error { return s.opts.Namespaces.PutNamespace(ctx, n, false) }); err != nil {
		return err
	}
	return c.created(true)
}

// removeNamespace serves DELETE of all versions. What is in the namespace stays;
// one that is not there is no error.
func (s *Server) removeNamespace(c *call) error {
	if _, given := c.params["namespaceId"]; !given {
		return errMissingDeclared("namespaceId")
	}
	id := c.get("namespaceId")
	// Another node may know one that is not known here yet, so the log is
	// asked about all that can be one.
	if isDefault(id) || !isNamespaceID(id) || len(id) > maxNamespaceID {
		return c.created(true)
	}
	refused, err := s.durably(c, func(ctx context.Context, _ Durable) error { return s.opts.Namespaces.RemoveNamespace(ctx, id) })
	if err != nil && refused != NotFound {
		return err
	}
	return c.created(true)
}

// newUUID is a random one, of version 4.
func newUUID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
