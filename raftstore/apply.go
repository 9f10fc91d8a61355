package raftstore

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/starling-registry/starling/pkg/registry"
	pb "github.com/starling-registry/starling/proto"
)

// carryOut does what a command says and returns what came of it; nil: it was
// done, or there was nothing to do. It looks at nothing but the tables and the
// command, so that it comes to the same on every node.
func (t *tables) carryOut(cmd *pb.Command, b *batch) *pb.Result {
	clock := registry.Stamp(cmd.GetClock())
	b.clock, b.asked = clock, prefix(cmd.GetRemote(), maxRemote)
	switch op := cmd.GetOp().(type) {
	case *pb.Command_PutInstance:
		return t.putInstance(op.PutInstance, clock, b)
	case *pb.Command_RemoveInstance:
		return t.removeInstance(op.RemoveInstance, b)
	case *pb.Command_SetHealth:
		return t.setHealth(op.SetHealth, clock, b)
	case *pb.Command_PutService:
		return t.putService(op.PutService, b)
	case *pb.Command_RemoveService:
		return t.removeService(op.RemoveService, b)
	case *pb.Command_PutCluster:
		return t.putCluster(op.PutCluster, b)
	case *pb.Command_PutOverride:
		if cmd.GetVersion() < versionEvictions {
			op.PutOverride.Evicted = nil // as for releases that do not know it
		}
		return t.putOverride(op.PutOverride, clock, b)
	case *pb.Command_EditMetadata:
		if cmd.GetVersion() < versionEvictions {
			break // as for releases that do not know it
		}
		return t.editMetadata(op.EditMetadata, clock, b)
	case *pb.Command_EndOverrides:
		return t.endOverrides(op.EndOverrides, b)
	case *pb.Command_PutNamespace:
		return t.putNamespace(op.PutNamespace)
	case *pb.Command_RemoveNamespace:
		return removed(unset(t, t.namespaces, op.RemoveNamespace.GetId(), appendNamespaceRow), "namespace", op.RemoveNamespace.GetId())
	case *pb.Command_PutSwitch:
		if err := checkSwitch(op.PutSwitch.GetName(), op.PutSwitch.GetValue()); err != nil {
			return invalid(err)
		}
		t.setSwitch(op.PutSwitch.GetName(), op.PutSwitch.GetValue())
		b.switched = append(b.switched, op.PutSwitch.GetName())
		return nil
	case *pb.Command_PutUser:
		return t.putUser(op.PutUser)
	case *pb.Command_RemoveUser:
		return t.removeUser(op.RemoveUser.GetName())
	case *pb.Command_PutRole:
		r := Role{op.PutRole.GetRole(), sortedSet(op.PutRole.GetUsers()), sortedSet(op.PutRole.GetPermissions())}
		if err := checkRole(r); err != nil {
			return invalid(err)
		}
		set(t, t.roles, r.Name, r, appendRoleRow)
		return nil
	case *pb.Command_RemoveRole:
		return removed(unset(t, t.roles, op.RemoveRole.GetRole(), appendRoleRow), "role", op.RemoveRole.GetRole())
	}
	return invalid(errors.New("the command says nothing"))
}

// refuse: the text is kept with the command, and is part of the digest. Another
// wording needs another Command.version, as other limits do (valid.go).
func refuse(code pb.Result_Code, format string, args ...any) *pb.Result {
	return &pb.Result{Code: code, Text: shorten(fmt.Sprintf(format, args...))}
}

func invalid(err error) *pb.Result { return refuse(pb.Result_INVALID, "%v", err) }

func removed(there bool, what, name string) *pb.Result {
	if there {
		return nil
	}
	return refuse(pb.Result_NOT_FOUND, "%s %.200q not found", what, name)
}

func (t *tables) putInstance(op *pb.PutInstance, clock registry.Stamp, b *batch) *pb.Result {
	key, err := t.serviceKey(op.GetService())
	if err != nil {
		return invalid(err)
	}
	in, err := t.instance(op.GetInstance())
	if err != nil {
		return invalid(err)
	}
	s := t.services[key]
	if s != nil && s.meta != nil && !s.meta.Persistent {
		return refuse(pb.Result_WRONG_KIND, "Current service %s is ephemeral service, can't register persistent instance.", key.Grouped()) // D12
	}
	row := &instance{Persistent: registry.Persistent{Instance: in, Since: clock, Judged: clock}}
	var was *instance
	cause := registry.CauseRegistered
	if at, there := s.instance(in.IP, in.Port); there {
		was = s.instances[at]
		in.IP = was.IP                                // one copy less
		in.Healthy = was.Healthy                      // the prober's business, or an operator's
		row.Since, row.Judged = was.Since, was.Judged // it is the same one
		if was.Cluster == in.Cluster {
			cause = registry.CauseChanged
		}
	}
	if row.hash = t.hashInstance(key, &row.Persistent); was != nil && row.hash == was.hash {
		return nil
	}
	s = t.writable(key)
	t.setInstance(s, row)
	if was != nil && was.Cluster != in.Cluster {
		b.instance(s.key, was.InstanceKey, nil, registry.CauseReplaced)
	}
	b.instance(s.key, in.InstanceKey, &row.Persistent, cause)
	return nil
}

func (t *tables) removeInstance(op *pb.RemoveInstance, b *batch) *pb.Result {
	key, err := t.serviceKey(op.GetService())
	if err != nil {
		return invalid(err)
	}
	s := t.services[key]
	at, there := s.instance(op.GetIp(), int(op.GetPort()))
	if !there {
		return nil // D18
	}
	s = t.writable(key)
	was := s.instances[at]
	t.dropInstance(s, at)
	b.instance(s.key, was.InstanceKey, nil, registry.CauseDeregistered)
	if at, there := s.override(was.InstanceKey); there && !s.overrides[at].Sticky && !s.overrides[at].Evicted {
		t.dropOverride(s, at) // a stranger on the same address must not inherit it
		b.override(s.key, was.InstanceKey, nil, registry.CauseOverrideEnded)
	}
	t.tidy(s)
	return nil
}

func (t *tables) setHealth(op *pb.SetHealth, clock registry.Stamp, b *batch) *pb.Result {
	key, err := t.serviceKey(op.GetService())
	if err != nil {
		return invalid(err)
	}
	k, err := t.instanceKey(op.GetIp(), op.GetPort(), op.GetCluster())
	if err != nil {
		return invalid(err)
	}
	s := t.services[key]
	var meta *registry.ServiceMeta
	if s != nil {
		meta = s.meta
	}
	if meta.Cluster(k.Cluster).Checker.Type != registry.CheckNone { // H21
		return refuse(pb.Result_INVALID, "health check is still working, service: %s, cluster: %s", key.Grouped(), k.Cluster)
	}
	at, there := s.instance(k.IP, k.Port)
	if !there || s.instances[at].Cluster != k.Cluster {
		return refuse(pb.Result_NOT_FOUND, "instance %s:%d of cluster %s in service %s not found", k.IP, k.Port, k.Cluster, key.Grouped())
	}
	s = t.writable(key)
	was := s.instances[at]
	in := *was.Instance
	in.Healthy = op.GetHealthy()
	// Checks made before do not count, so it is news even if it says the same.
	row := &instance{Persistent: registry.Persistent{Instance: &in, Since: was.Since, Judged: max(clock, was.Judged+1)}}
	row.hash = t.hashInstance(key, &row.Persistent)
	t.setInstance(s, row)
	b.instance(s.key, k, &row.Persistent, registry.CauseOperator)
	return nil
}

func (t *tables) putService(op *pb.PutService, b *batch) *pb.Result {
	key, err := t.serviceKey(op.GetService())
	if err != nil {
		return invalid(err)
	}
	meta := &registry.ServiceMeta{Persistent: op.GetPersistent(), ProtectThreshold: noSign(op.GetProtectThreshold()),
		Selector: registry.Selector{Type: op.GetSelectorType(), Expression: op.GetSelectorExpression()}}
	if meta.Metadata, err = t.metadata(op.GetMetadata()); err != nil {
		return invalid(err)
	}
	if err := checkMeta(meta); err != nil {
		return invalid(err)
	}
	if s := t.services[key]; s != nil {
		if op.GetCreate() && (s.meta != nil || len(s.instances) > 0) {
			return refuse(pb.Result_EXISTS, "specified service %s already exists!", key.Grouped()) // S4
		}
		meta.Persistent = meta.Persistent && s.meta == nil || s.persistent()
		if s.meta != nil {
			meta.Clusters = s.meta.Clusters // V14
		}
	}
	return t.describe(key, meta, b)
}

// persistent reports whether the service is known to be.
func (s *service) persistent() bool {
	return s != nil && (len(s.instances) > 0 || s.meta != nil && s.meta.Persistent)
}

// describe takes a description as it is.
func (t *tables) describe(key registry.ServiceKey, meta *registry.ServiceMeta, b *batch) *pb.Result {
	row := appendServiceRow(nil, key, meta)
	if len(row) > maxDescribed {
		return invalid(fmt.Errorf("service %s has more than %d bytes of settings", key.Grouped(), maxDescribed))
	}
	if s := t.services[key]; s != nil && s.meta != nil && bytes.Equal(appendServiceRow(nil, key, s.meta), row) {
		return nil
	}
	s := t.writable(key)
	t.setMeta(s, meta)
	b.described(s.key, meta)
	return nil
}

func (t *tables) removeService(op *pb.RemoveService, b *batch) *pb.Result {
	key, err := t.serviceKey(op.GetService())
	if err != nil {
		return invalid(err)
	}
	s := t.services[key]
	switch {
	case s == nil:
		b.described(key, nil)                                                      // one that only waits to be cleaned up goes from the lists
		return refuse(pb.Result_NOT_FOUND, "service %s not found!", key.Grouped()) // S5
	case len(s.instances) > 0:
		return refuse(pb.Result_NOT_EMPTY, "Service %s is not empty, can't be delete. Please unregister instance first", key.Grouped())
	}
	s = t.writable(key)
	if s.meta != nil {
		t.setMeta(s, nil)
		b.described(s.key, nil)
	}
	for n := len(s.overrides); n > 0; n-- { // sticky ones, too: there is nothing left that they stick to
		k := s.overrides[n-1].InstanceKey
		t.dropOverride(s, n-1)
		b.override(s.key, k, nil, registry.CauseOperator)
	}
	t.tidy(s)
	return nil
}

func (t *tables) putCluster(op *pb.PutCluster, b *batch) *pb.Result {
	key, err := t.serviceKey(op.GetService())
	if err != nil {
		return invalid(err)
	}
	c, err := t.cluster(op.GetCluster())
	if err != nil {
		return invalid(err)
	}
	meta := &registry.ServiceMeta{Persistent: op.GetPersistent()}
	s := t.services[key]
	if s != nil && s.meta != nil {
		is := *s.meta
		meta = &is
	} else {
		meta.Persistent = meta.Persistent || s.persistent()
	}
	clusters := make(map[string]*registry.ClusterMeta, len(meta.Clusters)+1)
	maps.Copy(clusters, meta.Clusters)
	clusters[c.Name] = c
	meta.Clusters = clusters
	return t.describe(key, meta, b)
}

func (t *tables) putOverride(op *pb.PutOverride, clock registry.Stamp, b *batch) *pb.Result {
	key, err := t.serviceKey(op.GetService())
	if err != nil {
		return invalid(err)
	}
	row := &override{clock: clock}
	if row.InstanceKey, row.Override, err = t.edit(op); err != nil {
		return invalid(err)
	}
	s := t.services[key]
	at, there := s.override(row.InstanceKey)
	if there && op.GetMerge() {
		was := s.overrides[at]
		if row.Enabled == nil {
			row.Enabled = was.Enabled
		}
		if row.Weight == nil {
			row.Weight = was.Weight
		}
		if !op.GetHasMetadata() {
			row.Metadata = was.Metadata
		}
		row.Sticky = row.Sticky || was.Sticky
	}
	evicted := there && s.overrides[at].Evicted
	switch {
	case op.Evicted == nil && evicted: // only who says so ends it
		row.Evicted, row.StaysOut = true, s.overrides[at].StaysOut
	case op.Evicted != nil && !row.Evicted && !evicted:
		return refuse(pb.Result_NOT_FOUND, "instance %s:%d of cluster %s in service %s is not evicted", row.IP, row.Port, row.Cluster, key.Grouped())
	}
	// Even one that says the same as before is newer: whoever is about to end
	// that must not end this.
	t.amend(key, row, registry.CauseOperator, b)
	return nil
}

// amend makes an edit what it is from now on. One that says nothing is over.
func (t *tables) amend(key registry.ServiceKey, row *override, cause registry.Cause, b *batch) {
	if at, there := t.services[key].override(row.InstanceKey); row.empty() {
		if there {
			s := t.writable(key)
			k := s.overrides[at].InstanceKey
			t.dropOverride(s, at)
			b.override(s.key, k, nil, cause)
			t.tidy(s)
		}
		return
	}
	row.Sticky = row.Sticky && row.Sets() // else what is set later would be
	row.Revision = t.index
	s := t.writable(key)
	t.setOverride(s, row)
	b.override(s.key, row.InstanceKey, &row.Override, cause)
}

// editMetadata looks at all instances before it changes one.
func (t *tables) editMetadata(op *pb.EditMetadata, clock registry.Stamp, b *batch) *pb.Result {
	key, err := t.serviceKey(op.GetService())
	if err != nil {
		return invalid(err)
	}
	set, err := t.metadata(op.GetSet())
	if err != nil {
		return invalid(err)
	}
	if err := checkRemoved(op.GetRemove()); err != nil {
		return invalid(err)
	}
	if err := checkSpread(set, len(op.GetInstances())); err != nil {
		return invalid(err)
	}
	s := t.services[key]
	var rows []*override
	cluster := ""
	for _, i := range op.GetInstances() {
		cluster = cmp.Or(i.GetCluster(), cluster) // or that of the one before
		k, err := t.instanceKey(i.GetIp(), i.GetPort(), cluster)
		if err != nil {
			return invalid(err)
		}
		row := &override{InstanceKey: k, clock: clock}
		if at, there := s.override(k); there {
			row.InstanceKey, row.Override = s.overrides[at].InstanceKey, s.overrides[at].Override
		}
		was := row.Metadata
		if row.Metadata = without(was, op.GetRemove()).With(set); slices.Equal(row.Metadata, was) {
			continue
		}
		if err := checkMetadata(row.Metadata); err != nil {
			return invalid(fmt.Errorf("instance %s:%d of cluster %s: %w", k.IP, k.Port, k.Cluster, err))
		}
		rows = append(rows, row)
	}
	for _, row := range rows {
		t.amend(key, row, registry.CauseOperator, b)
	}
	return nil
}

// without is metadata without some keys, which are sorted; nil if none is left.
func without(md registry.Metadata, keys []string) registry.Metadata {
	gone := func(kv registry.KV) bool { _, there := slices.BinarySearch(keys, kv.Key); return there }
	if !slices.ContainsFunc(md, gone) {
		return md
	}
	if md = slices.DeleteFunc(slices.Clone(md), gone); len(md) == 0 {
		return nil
	}
	return md
}

func (t *tables) endOverrides(op *pb.EndOverrides, b *batch) *pb.Result {
	if len(op.GetEdits()) > maxEdits {
		return invalid(fmt.Errorf("%d edits in one command, at most %d", len(op.GetEdits()), maxEdits))
	}
	for _, e := range op.GetEdits() {
		// Whatever a key looks like: nothing is kept under one that is not valid.
		key := registry.ServiceKey{Namespace: e.GetService().GetNamespace(), Group: e.GetService().GetGroup(), Name: e.GetService().GetName()}
		k := registry.InstanceKey{IP: e.GetIp(), Port: int(e.GetPort()), Cluster: e.GetCluster()}
		s := t.services[key]
		at, there := s.override(k)
		if !there || e.GetRevision() != 0 && s.overrides[at].Revision != e.GetRevision() {
			continue
		}
		was := s.overrides[at]
		left, ends := was.Lasting()
		switch {
		case e.GetSticky():
			left = registry.Override{}
		case !ends:
			continue
		}
		cause := registry.CauseOverrideEnded
		if e.GetCause() != "" {
			cause = registry.Cause(shorten(e.GetCause()))
		}
		// What is left was said when all was.
		t.amend(key, &override{was.InstanceKey, left, was.clock}, cause, b)
	}
	return nil
}

func (t *tables) putNamespace(op *pb.PutNamespace) *pb.Result {
	n := Namespace{op.GetNamespace().GetId(), op.GetNamespace().GetName(), op.GetNamespace().GetDescription()}
	if err := checkNamespace(n); err != nil {
		return invalid(err)
	}
	if _, there := t.namespaces[n.ID]; there && op.GetCreate() {
		return refuse(pb.Result_EXISTS, "namespaceId [%s] already exist.", n.ID) // S2
	}
	set(t, t.namespaces, n.ID, n, appendNamespaceRow)
	return nil
}

func (t *tables) putUser(op *pb.PutUser) *pb.Result {
	u := User{op.GetName(), op.GetPassword()}
	if err := checkUser(u); err != nil {
		return invalid(err)
	}
	if _, there := t.users[u.Name]; there && op.GetCreate() {
		return refuse(pb.Result_EXISTS, "user %q exists already", u.Name)
	}
	set(t, t.users, u.Name, u, appendUserRow)
	return nil
}

// removeUser takes the roles along: a later user of the same name is another.
func (t *tables) removeUser(name string) *pb.Result {
	for _, r := range t.roles {
		if at, there := slices.BinarySearch(r.Users, name); there {
			r.Users = slices.Delete(slices.Clone(r.Users), at, at+1)
			set(t, t.roles, r.Name, r, appendRoleRow)
		}
	}
	return removed(unset(t, t.users, name, appendUserRow), "user", name)
}

// A batch gathers what a batch of commands has changed, one Change for each
// service and in it the last state of each instance and edit: readers get one
// new picture of a service whatever the number of commands.
type batch struct {
	clock   registry.Stamp // of the command that is carried out
	asked   string         // for it; "": not known
	changes []registry.Change
	of      map[registry.ServiceKey]int // place in changes
	at      map[changed]int             // place in Instances or Overrides of the service's change

	switched []string // the switches that were set
}

type changed struct {
	service  int
	override bool
	registry.InstanceKey
}

func (b *batch) change(key registry.ServiceKey) int {
	n, there := b.of[key]
	if !there {
		if b.of == nil {
			b.of, b.at = map[registry.ServiceKey]int{}, map[changed]int{}
		}
		n = len(b.changes)
		b.of[key] = n
		b.changes = append(b.changes, registry.Change{Service: key})
	}
	return n
}

func (b *batch) instance(key registry.ServiceKey, k registry.InstanceKey, is *registry.Persistent, cause registry.Cause) {
	n := b.change(key)
	c := &b.changes[n]
	what := changed{n, false, k}
	at, there := b.at[what]
	if !there {
		at = len(c.Instances)
		b.at[what] = at
		c.Instances = append(c.Instances, registry.PersistentChange{})
	}
	c.Instances[at] = registry.PersistentChange{InstanceKey: k, Is: is, Cause: cause, Clock: b.clock, By: b.asked}
}

func (b *batch) override(key registry.ServiceKey, k registry.InstanceKey, is *registry.Override, cause registry.Cause) {
	n := b.change(key)
	c := &b.changes[n]
	what := changed{n, true, k}
	at, there := b.at[what]
	if !there {
		at = len(c.Overrides)
		b.at[what] = at
		c.Overrides = append(c.Overrides, registry.OverrideChange{})
	}
	c.Overrides[at] = registry.OverrideChange{InstanceKey: k, Is: is, Cause: cause, Clock: b.clock, By: b.asked}
}

func (b *batch) described(key registry.ServiceKey, meta *registry.ServiceMeta) {
	c := &b.changes[b.change(key)]
	c.Described, c.Meta = true, meta
}

// difference is what has to be told of the step from old tables to others.
// Rows that are the same in both are those of the old ones afterwards: their
// readers keep them.
func difference(old, next *tables) (changes []registry.Change) {
	add := func(was, is *service) {
		if c := differ(was, is); c.Described || len(c.Instances) > 0 || len(c.Overrides) > 0 {
			changes = append(changes, c)
		}
	}
	for key, was := range old.services {
		if next.services[key] == nil {
			add(was, &service{key: key})
		}
	}
	for key, is := range next.services {
		was := old.services[key]
		if was == nil {
			was = &service{key: key}
		}
		add(was, is)
	}
	return changes
}

func differ(was, is *service) registry.Change {
	key := is.key
	c := registry.Change{Service: key}
	switch {
	case was.meta == nil && is.meta == nil:
	case was.meta != nil && is.meta != nil && bytes.Equal(appendServiceRow(nil, key, was.meta), appendServiceRow(nil, key, is.meta)):
		is.meta = was.meta
	default:
		c.Described, c.Meta = true, is.meta
	}
	instance := func(k registry.InstanceKey, is *registry.Persistent, cause registry.Cause) {
		c.Instances = append(c.Instances, registry.PersistentChange{InstanceKey: k, Is: is, Cause: cause})
	}
	for _, i := range was.instances {
		if at, there := is.instance(i.IP, i.Port); !there {
			instance(i.InstanceKey, nil, registry.CauseDeregistered)
		} else if is.instances[at].Cluster != i.Cluster {
			instance(i.InstanceKey, nil, registry.CauseReplaced)
		}
	}
	for n, i := range is.instances {
		cause := registry.CauseRegistered
		if at, there := was.instance(i.IP, i.Port); there {
			if was.instances[at].hash == i.hash {
				is.instances[n] = was.instances[at]
				continue
			}
			if was.instances[at].Cluster == i.Cluster {
				cause = registry.CauseChanged
			}
		}
		instance(i.InstanceKey, &i.Persistent, cause)
	}
	override := func(k registry.InstanceKey, is *registry.Override, cause registry.Cause, clock registry.Stamp) {
		c.Overrides = append(c.Overrides, registry.OverrideChange{InstanceKey: k, Is: is, Cause: cause, Clock: clock})
	}
	for _, o := range was.overrides {
		if _, there := is.override(o.InstanceKey); !there {
			override(o.InstanceKey, nil, registry.CauseOverrideEnded, 0)
		}
	}
	for n, o := range is.overrides {
		if at, there := was.override(o.InstanceKey); there && bytes.Equal(appendOverrideRow(nil, key, was.overrides[at]), appendOverrideRow(nil, key, o)) {
			is.overrides[n] = was.overrides[at]
			continue
		}
		override(o.InstanceKey, &o.Override, registry.CauseOperator, o.clock)
	}
	return c
}
