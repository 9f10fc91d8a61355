package raftstore

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"

	"github.com/starling-registry/starling/pkg/registry"
	pb "github.com/starling-registry/starling/proto"
)

// do gives a command an id and a clock and sees it through. What of it is not
// valid is refused before it costs a place in the log.
func (s *Store) do(ctx context.Context, cmd *pb.Command, checks ...error) error {
	for _, err := range checks {
		if err != nil {
			return refusal(invalid(err))
		}
	}
	cmd.Id = make([]byte, len(commandID{}))
	rand.Read(cmd.Id) // it never fails
	cmd.Clock, cmd.Version = uint64(s.clock.Now()), max(1, cmd.Version)
	cmd.Remote = prefix(strings.ToValidUTF8(registry.WhoAsked(ctx), ""), maxRemote)
	r, err := s.apply(ctx, cmd)
	if err != nil {
		return err
	}
	return refusal(r)
}

func serviceMessage(k registry.ServiceKey) *pb.Service {
	return &pb.Service{Namespace: k.Namespace, Group: k.Group, Name: k.Name}
}

func metadataMessage(md registry.Metadata) []string {
	list := make([]string, 0, 2*len(md))
	for _, kv := range md {
		list = append(list, kv.Key, kv.Value)
	}
	return list
}

// PutInstance registers a persistent instance, or changes it: the address
// stands once in its service. Of one that is there the health stays as it is.
// ErrWrongKind: operators described the service as ephemeral.
// [registry.ErrEvicted]: they evicted the instance, as far as this node knows;
// should another know more, it stays unseen all the same.
func (s *Store) PutInstance(ctx context.Context, key registry.ServiceKey, i *registry.Instance) error {
	if o, there := s.Override(key, i.InstanceKey); there && o.Evicted {
		return registry.ErrEvicted
	}
	return s.do(ctx, &pb.Command{Op: &pb.Command_PutInstance{PutInstance: &pb.PutInstance{
		Service: serviceMessage(key),
		Instance: &pb.Instance{Ip: i.IP, Port: uint32(i.Port), Cluster: i.Cluster, Id: i.ID, Weight: i.Weight, Healthy: i.Healthy, Enabled: i.Enabled,
			Metadata: metadataMessage(i.Metadata)}}}}, checkService(key), checkInstance(i))
}

// RemoveInstance deregisters the instance of an address, and ends the
// operator's edit of it unless that is sticky. That it is not there is no
// error.
func (s *Store) RemoveInstance(ctx context.Context, key registry.ServiceKey, ip string, port int) error {
	return s.do(ctx, &pb.Command{Op: &pb.Command_RemoveInstance{RemoveInstance: &pb.RemoveInstance{
		Service: serviceMessage(key), Ip: ip, Port: uint32(port)}}}, checkService(key), checkName("ip", ip, maxIP), checkPort(port))
}

// SetHealth is an operator's word on an instance. ErrInvalid: its cluster has
// a health check; ErrNotFound: it is not there.
func (s *Store) SetHealth(ctx context.Context, key registry.ServiceKey, k registry.InstanceKey, healthy bool) error {
	return s.do(ctx, &pb.Command{Op: &pb.Command_SetHealth{SetHealth: &pb.SetHealth{
		Service: serviceMessage(key), Ip: k.IP, Port: uint32(k.Port), Cluster: k.Cluster, Healthy: healthy}}}, checkService(key), checkKey(k))
}

// CreateService describes a service that nobody has described and that has no
// persistent instances, else ErrExists. The clusters of m are not read, see
// PutCluster.
func (s *Store) CreateService(ctx context.Context, key registry.ServiceKey, m *registry.ServiceMeta) error {
	return s.putService(ctx, key, m, true)
}

// UpdateService describes a service, whether or not somebody has before. Its
// kind, if it has one, and its clusters stay as they are (semantics V14).
func (s *Store) UpdateService(ctx context.Context, key registry.ServiceKey, m *registry.ServiceMeta) error {
	return s.putService(ctx, key, m, false)
}

func (s *Store) putService(ctx context.Context, key registry.ServiceKey, m *registry.ServiceMeta, create bool) error {
	return s.do(ctx, &pb.Command{Op: &pb.Command_PutService{PutService: &pb.PutService{
		Service: serviceMessage(key), Create: create, Persistent: m.Persistent, ProtectThreshold: m.ProtectThreshold,
		SelectorType: m.Selector.Type, SelectorExpression: m.Selector.Expression, Metadata: metadataMessage(m.Metadata)}}},
		checkService(key), checkMeta(m))
}

// RemoveService ends the description of a service and all edits of its
// instances. ErrNotFound: there is neither; ErrNotEmpty: it has persistent
// instances. Of ephemeral ones the log knows nothing.
func (s *Store) RemoveService(ctx context.Context, key registry.ServiceKey) error {
	return s.do(ctx, &pb.Command{Op: &pb.Command_RemoveService{RemoveService: &pb.RemoveService{Service: serviceMessage(key)}}}, checkService(key))
}

// PutCluster says how the instances of a cluster are checked. It describes the
// service if nobody has; persistent is its kind then, unless it has one.
func (s *Store) PutCluster(ctx context.Context, key registry.ServiceKey, c *registry.ClusterMeta, persistent bool) error {
	return s.do(ctx, &pb.Command{Op: &pb.Command_PutCluster{PutCluster: &pb.PutCluster{
		Service: serviceMessage(key), Persistent: persistent, Cluster: &pb.ServiceCluster{
			Name: c.Name, Checker: c.Checker.Type, CheckPort: uint32(c.CheckPort), UseInstancePort: c.UseInstancePort, Metadata: metadataMessage(c.Metadata),
			Path: c.Checker.Path, Headers: c.Checker.Headers, ExpectedCode: uint32(c.Checker.ExpectedCode),
			User: c.Checker.User, Password: c.Checker.Password, Command: c.Checker.Command}}}}, checkService(key), checkCluster(c))
}

// PutOverride is an operator's edit of an instance, which need not be there.
// It takes the place of an earlier one; with merge the parts that are nil stay
// as they were set before, and so does stickiness. An edit without any part is
// none. An eviction stays as it is, see Evict. Evicted, StaysOut and Revision of
// o are not read.
func (s *Store) PutOverride(ctx context.Context, key registry.ServiceKey, k registry.InstanceKey, o registry.Override, merge bool) error {
	return s.do(ctx, &pb.Command{Op: &pb.Command_PutOverride{PutOverride: &pb.PutOverride{
		Service: serviceMessage(key), Ip: k.IP, Port: uint32(k.Port), Cluster: k.Cluster, Merge: merge, Enabled: o.Enabled, Weight: o.Weight,
		HasMetadata: o.Metadata != nil, Metadata: metadataMessage(o.Metadata), Sticky: o.Sticky}}}, checkService(key), checkOverride(k, &o))
}

// Evict keeps an instance from being seen, whoever registers it, until that is
// lifted; with untilGone it ends by itself when the instance is gone, though not
// by a deregistration. Of an instance that is evicted already, the last word on
// that counts. The instance need not be there. What was set before of weight,
// metadata and so on stays, as long as it would without. ErrNotUnderstood: some
// node of the cluster is too old.
func (s *Store) Evict(ctx context.Context, key registry.ServiceKey, k registry.InstanceKey, untilGone bool) error {
	return s.evict(ctx, key, k, true, !untilGone)
}

// Lift ends an eviction and leaves the rest of the edit as it is. ErrNotFound:
// the instance is not evicted.
func (s *Store) Lift(ctx context.Context, key registry.ServiceKey, k registry.InstanceKey) error {
	return s.evict(ctx, key, k, false, false)
}

func (s *Store) evict(ctx context.Context, key registry.ServiceKey, k registry.InstanceKey, evicted, staysOut bool) error {
	return s.do(ctx, &pb.Command{Version: versionEvictions, Op: &pb.Command_PutOverride{PutOverride: &pb.PutOverride{
		Service: serviceMessage(key), Ip: k.IP, Port: uint32(k.Port), Cluster: k.Cluster, Merge: true, Evicted: &evicted, StaysOut: staysOut}}},
		checkService(key), checkKey(k))
}

// EndOverrides ends of edits what does not outlast their instance
// ([registry.Override.Lasting]), unless they have been made anew since the
// revision that is named.
func (s *Store) EndOverrides(ctx context.Context, edits []registry.Edit) error {
	for part := range slices.Chunk(edits, maxEdits) {
		op := &pb.EndOverrides{}
		for _, e := range part {
			if err := checkService(e.Service); err != nil {
				return refusal(invalid(err))
			}
			if err := checkKey(e.InstanceKey); err != nil {
				return refusal(invalid(err))
			}
			op.Edits = append(op.Edits, editMessage(e))
		}
		if err := s.do(ctx, &pb.Command{Op: &pb.Command_EndOverrides{EndOverrides: op}}); err != nil {
			return err
		}
	}
	return nil
}

// EndOverride ends an edit on an operator's word, whatever it says, an eviction
// too.
func (s *Store) EndOverride(ctx context.Context, key registry.ServiceKey, k registry.InstanceKey) error {
	e := editMessage(registry.Edit{Service: key, InstanceKey: k, Cause: registry.CauseOperator})
	e.Sticky = true
	return s.do(ctx, &pb.Command{Op: &pb.Command_EndOverrides{EndOverrides: &pb.EndOverrides{Edits: []*pb.EndOverrides_Edit{e}}}},
		checkService(key), checkKey(k))
}

// EditMetadata sets and removes keys in the metadata that operators set of
// instances of a service, which need not be there: all of them, or none if one
// would not be valid. Of a key that is in both, set counts. Other keys, and the
// rest of the edits, stay as they are; an edit that is as it is to be is not
// written anew, and one that says nothing any more is over. [ErrNotUnderstood]:
// some node of the cluster is too old.
func (s *Store) EditMetadata(ctx context.Context, key registry.ServiceKey, instances []registry.InstanceKey, set registry.Metadata, remove []string) error {
	op := &pb.EditMetadata{Service: serviceMessage(key), Set: metadataMessage(set), Remove: sortedSet(remove)}
	checks := []error{checkService(key), checkMetadata(set), checkRemoved(op.Remove), checkSpread(set, len(instances))}
	// The name of a cluster is written once: there may be thousands of instances.
	instances = slices.SortedStableFunc(slices.Values(instances), func(a, b registry.InstanceKey) int { return strings.Compare(a.Cluster, b.Cluster) })
	cluster := ""
	for _, k := range instances {
		checks = append(checks, checkKey(k))
		i := &pb.EditMetadata_Instance{Ip: k.IP, Port: uint32(k.Port)}
		if k.Cluster != cluster {
			cluster = k.Cluster
			i.Cluster = cluster
		}
		op.Instances = append(op.Instances, i)
	}
	return s.do(ctx, &pb.Command{Version: versionEvictions, Op: &pb.Command_EditMetadata{EditMetadata: op}}, checks...)
}

func editMessage(e registry.Edit) *pb.EndOverrides_Edit {
	return &pb.EndOverrides_Edit{Service: serviceMessage(e.Service), Ip: e.IP, Port: uint32(e.Port), Cluster: e.Cluster,
		Revision: e.Revision, Cause: string(e.Cause)}
}

// PutNamespace keeps a namespace. With create it must not be there, else
// ErrExists.
func (s *Store) PutNamespace(ctx context.Context, n Namespace, create bool) error {
	return s.do(ctx, &pb.Command{Op: &pb.Command_PutNamespace{PutNamespace: &pb.PutNamespace{
		Create: create, Namespace: &pb.Namespace{Id: n.ID, Name: n.Name, Description: n.Description}}}}, checkNamespace(n))
}

// RemoveNamespace forgets a namespace, not what is in it (semantics S2).
// ErrNotFound: it is not there.
func (s *Store) RemoveNamespace(ctx context.Context, id string) error {
	return s.do(ctx, &pb.Command{Op: &pb.Command_RemoveNamespace{RemoveNamespace: &pb.RemoveNamespace{Id: id}}}, checkName("namespace", id, maxNamespace))
}

// PutSwitch sets a switch; "": as if it had never been set.
func (s *Store) PutSwitch(ctx context.Context, name, value string) error {
	return s.do(ctx, &pb.Command{Op: &pb.Command_PutSwitch{PutSwitch: &pb.PutSwitch{Name: name, Value: value}}}, checkSwitch(name, value))
}

// PutUser keeps a user. With create there must be none of that name, else
// ErrExists.
func (s *Store) PutUser(ctx context.Context, u User, create bool) error {
	return s.do(ctx, &pb.Command{Op: &pb.Command_PutUser{PutUser: &pb.PutUser{Name: u.Name, Password: u.Password, Create: create}}}, checkUser(u))
}

// RemoveUser forgets a user, also in the roles. ErrNotFound: there is none.
func (s *Store) RemoveUser(ctx context.Context, name string) error {
	return s.do(ctx, &pb.Command{Op: &pb.Command_RemoveUser{RemoveUser: &pb.RemoveUser{Name: name}}}, checkName("user", name, maxAccount))
}

// PutRole keeps a role, in place of one of the same name.
func (s *Store) PutRole(ctx context.Context, r Role) error {
	r.Users, r.Permissions = sortedSet(r.Users), sortedSet(r.Permissions)
	return s.do(ctx, &pb.Command{Op: &pb.Command_PutRole{PutRole: &pb.PutRole{Role: r.Name, Users: r.Users, Permissions: r.Permissions}}}, checkRole(r))
}

// RemoveRole forgets a role. ErrNotFound: there is none.
func (s *Store) RemoveRole(ctx context.Context, name string) error {
	return s.do(ctx, &pb.Command{Op: &pb.Command_RemoveRole{RemoveRole: &pb.RemoveRole{Role: name}}}, checkName("role", name, maxAccount))
}
