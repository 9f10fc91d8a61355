package raftstore

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/starling-registry/starling/pkg/registry"
	pb "github.com/starling-registry/starling/proto"
)

// A Namespace is one that somebody made; others work without (semantics S1).
type Namespace struct{ ID, Name, Description string }

// A User may log in.
type User struct {
	Name     string
	Password []byte // a salted hash
}

// A Role is what some users may do.
type Role struct {
	Name        string
	Users       []string // sorted
	Permissions []string // "resource action", sorted
}

// tables are what the log comes to. Rows are never changed once they are in,
// but replaced, so that they can be handed out.
type tables struct {
	// epoch grows with each snapshot. A service of an older one belongs to a
	// snapshot, too, and is copied before it is changed.
	epoch      uint64
	services   map[registry.ServiceKey]*service
	edited     map[registry.ServiceKey]struct{} // those with edits
	namespaces map[string]Namespace
	switches   map[string]string
	users      map[string]User
	roles      map[string]Role
	done       done

	index  uint64         // of the last command
	newest registry.Stamp // of all commands
	// sum is the wrapping sum of the hashes of all rows, as they stand in a
	// snapshot: no order, and a change costs the hashing of one row.
	sum uint64

	names   names
	scratch []byte // for the encoding of a row
}

// A service is all that is kept of one. One that holds nothing is not kept.
type service struct {
	epoch     uint64
	key       registry.ServiceKey
	meta      *registry.ServiceMeta // nil: nobody has described it; of one with instances, it is persistent
	instances []*instance           // by address
	overrides []*override           // by key
}

// An instance is a row. 100,000 of them are common: what they have in common
// is shared (names), and so are they with the registry.
type instance struct {
	registry.Persistent
	hash uint64
}

type override struct {
	registry.InstanceKey
	registry.Override
	clock registry.Stamp
}

func newTables() *tables {
	return &tables{
		services:   map[registry.ServiceKey]*service{},
		edited:     map[registry.ServiceKey]struct{}{},
		namespaces: map[string]Namespace{},
		switches:   map[string]string{},
		users:      map[string]User{},
		roles:      map[string]Role{},
		done:       done{at: map[commandID]uint32{}},
		names:      names{},
	}
}

// writable finds or makes a service in order to change it.
func (t *tables) writable(key registry.ServiceKey) *service {
	s := t.services[key]
	switch {
	case s == nil:
		key.Namespace, key.Group = t.names.get(key.Namespace), t.names.get(key.Group)
		s = &service{key: key}
	case s.epoch == t.epoch:
		return s
	default:
		was := s
		s = &service{key: was.key, meta: was.meta, instances: slices.Clone(was.instances), overrides: slices.Clone(was.overrides)}
	}
	s.epoch = t.epoch
	t.services[s.key] = s
	return s
}

// tidy forgets a service of which nothing is left.
func (t *tables) tidy(s *service) {
	if s.meta == nil && len(s.instances) == 0 && len(s.overrides) == 0 {
		delete(t.services, s.key)
	}
}

// instance finds the place of an address. s may be nil.
func (s *service) instance(ip string, port int) (int, bool) {
	if s == nil {
		return 0, false
	}
	return slices.BinarySearchFunc(s.instances, ip, func(i *instance, ip string) int {
		return cmp.Or(strings.Compare(i.IP, ip), cmp.Compare(i.Port, port))
	})
}

// override finds the place of an edit. s may be nil.
func (s *service) override(k registry.InstanceKey) (int, bool) {
	if s == nil {
		return 0, false
	}
	return slices.BinarySearchFunc(s.overrides, k, func(o *override, k registry.InstanceKey) int { return o.Compare(k) })
}

// hashOf hashes the row that f appends.
func (t *tables) hashOf(f func([]byte) []byte) uint64 {
	t.scratch = f(t.scratch[:0])
	return xxhash.Sum64(t.scratch)
}

func (t *tables) hashInstance(key registry.ServiceKey, p *registry.Persistent) uint64 {
	t.scratch = appendInstanceRow(t.scratch[:0], key, p)
	return xxhash.Sum64(t.scratch)
}

// setInstance puts a row in its place, replacing the one that is there.
func (t *tables) setInstance(s *service, row *instance) {
	at, there := s.instance(row.IP, row.Port)
	if there {
		t.sum -= s.instances[at].hash
		s.instances[at] = row
	} else {
		s.instances = slices.Insert(s.instances, at, row)
	}
	t.sum += row.hash
}

func (t *tables) dropInstance(s *service, at int) {
	t.sum -= s.instances[at].hash
	s.instances = slices.Delete(s.instances, at, at+1)
}

// setMeta describes a service; nil: not any more.
func (t *tables) setMeta(s *service, meta *registry.ServiceMeta) {
	if s.meta != nil {
		t.sum -= t.hashOf(func(b []byte) []byte { return appendServiceRow(b, s.key, s.meta) })
	}
	s.meta = meta
	if meta != nil {
		t.sum += t.hashOf(func(b []byte) []byte { return appendServiceRow(b, s.key, meta) })
	}
}

func (t *tables) setOverride(s *service, row *override) {
	at, there := s.override(row.InstanceKey)
	if there {
		t.sum -= t.hashOf(func(b []byte) []byte { return appendOverrideRow(b, s.key, s.overrides[at]) })
		s.overrides[at] = row
	} else {
		s.overrides = slices.Insert(s.overrides, at, row)
		t.edited[s.key] = struct{}{}
	}
	t.sum += t.hashOf(func(b []byte) []byte { return appendOverrideRow(b, s.key, row) })
}

func (t *tables) dropOverride(s *service, at int) {
	t.sum -= t.hashOf(func(b []byte) []byte { return appendOverrideRow(b, s.key, s.overrides[at]) })
	if s.overrides = slices.Delete(s.overrides, at, at+1); len(s.overrides) == 0 {
		delete(t.edited, s.key)
	}
}

// set and unset keep the sum of the tables that are plain maps.
func set[R any](t *tables, of map[string]R, key string, row R, appendRow func([]byte, R) []byte) {
	unset(t, of, key, appendRow)
	of[key] = row
	t.sum += t.hashOf(func(b []byte) []byte { return appendRow(b, row) })
}

func unset[R any](t *tables, of map[string]R, key string, appendRow func([]byte, R) []byte) (there bool) {
	was, there := of[key]
	if there {
		delete(of, key)
		t.sum -= t.hashOf(func(b []byte) []byte { return appendRow(b, was) })
	}
	return there
}

func (t *tables) setSwitch(name, value string) {
	row := func(b []byte, value string) []byte { return appendSwitchRow(b, name, value) }
	if value == "" {
		unset(t, t.switches, name, row)
		return
	}
	set(t, t.switches, name, value, row)
}

// rows counts the rows by kind.
func (t *tables) rows() map[string]int {
	n := map[string]int{"namespaces": len(t.namespaces), "switches": len(t.switches), "users": len(t.users), "roles": len(t.roles),
		"instances": 0, "services": 0, "overrides": 0}
	for _, s := range t.services {
		n["instances"] += len(s.instances)
		n["overrides"] += len(s.overrides)
		if s.meta != nil {
			n["services"]++
		}
	}
	return n
}

// Results of commands are kept for that many commands: more than what can be
// on its way when a leader goes and its callers try again.
const maxDone = 1 << 16

// maxDoneTexts bounds (bytes) the texts of failed commands that are kept. A
// repetition of one that comes when there are more gets the code alone.
const maxDoneTexts = 4 << 20

type commandID [16]byte

// done are the last commands, in the order of the log.
type done struct {
	at    map[commandID]uint32 // place in ring
	ring  []doneRow
	next  int // the oldest, once the ring is full
	texts int // bytes
}

type doneRow struct {
	id    commandID
	code  pb.Result_Code
	index uint64
	text  string
}

// find returns what came of a command, nil if it is not known.
func (d *done) find(id commandID) *pb.Result {
	at, there := d.at[id]
	if !there {
		return nil
	}
	r := &d.ring[at]
	return &pb.Result{Code: r.code, Text: r.text, Index: r.index}
}

// keep remembers a command, and forgets the oldest if there are too many.
func (t *tables) keep(r doneRow) {
	d := &t.done
	if d.texts+len(r.text) > maxDoneTexts {
		r.text = ""
	}
	if len(d.ring) < maxDone {
		d.at[r.id] = uint32(len(d.ring))
		d.ring = append(d.ring, r)
	} else {
		was := &d.ring[d.next]
		delete(d.at, was.id)
		d.texts -= len(was.text)
		t.sum -= t.hashDone(was)
		d.at[r.id] = uint32(d.next)
		*was = r
		d.next = (d.next + 1) % maxDone
	}
	d.texts += len(r.text)
	t.sum += t.hashDone(&r)
}

func (t *tables) hashDone(r *doneRow) uint64 {
	t.scratch = appendDoneRow(t.scratch[:0], r)
	return xxhash.Sum64(t.scratch)
}

// names share the strings that rows have in common: clusters, groups, keys of
// metadata.
type names map[string]string

// Names are bounded; when there are too many they are learnt anew.
const (
	mostNames   = 4096
	longestName = 64
)

func (n names) get(s string) string {
	if is, ok := n[s]; ok {
		return is
	}
	return n.learn(s)
}

func (n names) of(b []byte) string {
	if is, ok := n[string(b)]; ok {
		return is
	}
	return n.learn(string(b))
}

func (n names) learn(s string) string {
	if len(s) > longestName {
		return s
	}
	if len(n) >= mostNames {
		clear(n)
	}
	n[s] = s
	return s
}

// Instance is what this node knows of a persistent instance.
func (s *Store) Instance(key registry.ServiceKey, ip string, port int) (registry.Persistent, bool) {
	s.fsm.mu.RLock()
	defer s.fsm.mu.RUnlock()
	of := s.fsm.tables.services[key]
	at, there := of.instance(ip, port)
	if !there {
		return registry.Persistent{}, false
	}
	return of.instances[at].Persistent, true
}

// Service is how a service is described. It is not there if nobody did.
func (s *Store) Service(key registry.ServiceKey) (*registry.ServiceMeta, bool) {
	s.fsm.mu.RLock()
	defer s.fsm.mu.RUnlock()
	of := s.fsm.tables.services[key]
	if of == nil || of.meta == nil {
		return nil, false
	}
	return of.meta, true
}

// Override is the operator's edit of an instance.
func (s *Store) Override(key registry.ServiceKey, ik registry.InstanceKey) (registry.Override, bool) {
	s.fsm.mu.RLock()
	defer s.fsm.mu.RUnlock()
	of := s.fsm.tables.services[key]
	at, there := of.override(ik)
	if !there {
		return registry.Override{}, false
	}
	return of.overrides[at].Override, true
}

// An Edit is what an operator has set of one instance.
type Edit struct {
	Service registry.ServiceKey
	registry.InstanceKey
	registry.Override
	Clock registry.Stamp // when it was made, on the node that was asked
}

// Edits are the edits of operators in a namespace, evictions among them, sorted
// by service and instance; "": of all namespaces.
func (s *Store) Edits(namespace string) (all []Edit) {
	s.fsm.mu.RLock()
	for key := range s.fsm.tables.edited {
		if namespace != "" && key.Namespace != namespace {
			continue
		}
		of := s.fsm.tables.services[key]
		for _, o := range of.overrides {
			all = append(all, Edit{of.key, o.InstanceKey, o.Override, o.clock})
		}
	}
	s.fsm.mu.RUnlock()
	slices.SortFunc(all, func(a, b Edit) int {
		return cmp.Or(a.Service.Compare(b.Service), a.InstanceKey.Compare(b.InstanceKey))
	})
	return all
}

// EditsOf are the edits of one service, sorted by instance.
func (s *Store) EditsOf(key registry.ServiceKey) (all []Edit) {
	s.fsm.mu.RLock()
	defer s.fsm.mu.RUnlock()
	if of := s.fsm.tables.services[key]; of != nil {
		for _, o := range of.overrides {
			all = append(all, Edit{of.key, o.InstanceKey, o.Override, o.clock})
		}
	}
	return all
}

// Namespaces are those that were made, by id.
func (s *Store) Namespaces() []Namespace {
	s.fsm.mu.RLock()
	defer s.fsm.mu.RUnlock()
	return sorted(s.fsm.tables.namespaces)
}

// Namespace finds one that was made.
func (s *Store) Namespace(id string) (Namespace, bool) {
	s.fsm.mu.RLock()
	defer s.fsm.mu.RUnlock()
	n, there := s.fsm.tables.namespaces[id]
	return n, there
}

// Switches are those that were set.
func (s *Store) Switches() map[string]string {
	s.fsm.mu.RLock()
	defer s.fsm.mu.RUnlock()
	return maps.Clone(s.fsm.tables.switches)
}

// Users are all users, by name.
func (s *Store) Users() []User {
	s.fsm.mu.RLock()
	defer s.fsm.mu.RUnlock()
	users := sorted(s.fsm.tables.users)
	for i := range users {
		users[i].Password = bytes.Clone(users[i].Password)
	}
	return users
}

// AnyUser reports whether there is a user at all.
func (s *Store) AnyUser() bool {
	s.fsm.mu.RLock()
	defer s.fsm.mu.RUnlock()
	return len(s.fsm.tables.users) > 0
}

// User finds one.
func (s *Store) User(name string) (User, bool) {
	s.fsm.mu.RLock()
	defer s.fsm.mu.RUnlock()
	u, there := s.fsm.tables.users[name]
	u.Password = bytes.Clone(u.Password)
	return u, there
}

// Roles are all roles, by name.
func (s *Store) Roles() []Role {
	s.fsm.mu.RLock()
	defer s.fsm.mu.RUnlock()
	roles := sorted(s.fsm.tables.roles)
	for i, r := range roles {
		roles[i].Users, roles[i].Permissions = slices.Clone(r.Users), slices.Clone(r.Permissions)
	}
	return roles
}

// sorted are the values of a table by key.
func sorted[R any](of map[string]R) []R {
	rows := make([]R, 0, len(of))
	for _, key := range slices.Sorted(maps.Keys(of)) {
		rows = append(rows, of[key])
	}
	return rows
}
