package raftstore

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/starling-registry/starling/pkg/registry"
	pb "github.com/starling-registry/starling/proto"
)

// Limits of what is kept, in bytes. They are there so that no entry can harm a
// node, and are above what the APIs let through (semantics S17 counts
// characters). What they refuse is part of what a log means: another limit
// needs another Command.version.
const (
	maxNamespace = 512
	maxGroup     = 1024
	maxService   = 4096
	maxCluster   = 512
	maxIP        = 512
	maxID        = 8192
	maxMetadata  = 64 << 10 // all keys and values
	maxSetting   = 4096     // a path, an expression, a description
	maxSwitch    = 128
	maxValue     = 16 << 10 // of a switch
	maxAccount   = 256
	maxList      = 64 << 10 // all users, or permissions, of a role
	maxDescribed = 1 << 20  // a service with all its clusters
	maxEdits     = 512      // of one EndOverrides
	maxText      = 8192     // of a result
	maxRemote    = 128      // of who asked
	maxSpread    = 32 << 20 // what one EditMetadata sets, of all instances
)

// checkText checks a text that may be empty.
func checkText(what, s string, longest int) error {
	switch {
	case len(s) > longest:
		return fmt.Errorf("%s is longer than %d bytes", what, longest)
	case !utf8.ValidString(s):
		return fmt.Errorf("%s is not UTF-8", what)
	}
	return nil
}

// checkName checks a text that must be there.
func checkName(what, s string, longest int) error {
	if s == "" {
		return fmt.Errorf("%s is missing", what)
	}
	return checkText(what, s, longest)
}

func checkPort(port int) error {
	if port < 0 || port > math.MaxUint16 {
		return fmt.Errorf("port %d is not between 0 and 65535", port)
	}
	return nil
}

// checkWeight: readers divide by weights, and JSON knows no other numbers.
func checkWeight(w float64) error {
	if !(w >= 0) || math.IsInf(w, 1) {
		return fmt.Errorf("weight %v is not a number from 0 on", w)
	}
	return nil
}

func checkService(k registry.ServiceKey) error {
	if err := checkName("namespace", k.Namespace, maxNamespace); err != nil {
		return err
	}
	if err := checkName("group", k.Group, maxGroup); err != nil {
		return err
	}
	return checkName("service name", k.Name, maxService)
}

func checkKey(k registry.InstanceKey) error {
	if err := checkName("ip", k.IP, maxIP); err != nil {
		return err
	}
	if err := checkPort(k.Port); err != nil {
		return err
	}
	return checkName("cluster", k.Cluster, maxCluster)
}

func checkMetadata(md registry.Metadata) error {
	size := 0
	for i, kv := range md {
		if i > 0 && md[i-1].Key >= kv.Key {
			return errors.New("metadata is not sorted by key")
		}
		if !utf8.ValidString(kv.Key) || !utf8.ValidString(kv.Value) {
			return errors.New("metadata is not UTF-8")
		}
		size += len(kv.Key) + len(kv.Value)
	}
	if size > maxMetadata {
		return fmt.Errorf("metadata is longer than %d bytes", maxMetadata)
	}
	return nil
}

// checkRemoved checks the keys that an EditMetadata removes.
func checkRemoved(keys []string) error {
	size := 0
	for i, k := range keys {
		if i > 0 && keys[i-1] >= k {
			return errors.New("keys to be removed are not sorted")
		}
		if !utf8.ValidString(k) {
			return errors.New("metadata is not UTF-8")
		}
		size += len(k)
	}
	if size > maxMetadata {
		return fmt.Errorf("keys to be removed are longer than %d bytes", maxMetadata)
	}
	return nil
}

// checkSpread bounds what one command adds to the tables, which may be much more
// than it has itself.
func checkSpread(set registry.Metadata, instances int) error {
	size := 0
	for _, kv := range set {
		size += len(kv.Key) + len(kv.Value)
	}
	if size > maxSpread/max(1, instances) {
		return fmt.Errorf("%d bytes of metadata for %d instances are more than %d together", size, instances, maxSpread)
	}
	return nil
}

func checkInstance(i *registry.Instance) error {
	if err := checkKey(i.InstanceKey); err != nil {
		return err
	}
	if err := checkText("instance id", i.ID, maxID); err != nil {
		return err
	}
	if err := checkWeight(i.Weight); err != nil {
		return err
	}
	return checkMetadata(i.Metadata)
}

// checkMeta leaves the clusters to checkCluster.
func checkMeta(m *registry.ServiceMeta) error {
	// Nacos takes any number; readers treat those outside 0…1 like the nearest.
	if math.IsNaN(m.ProtectThreshold) || math.IsInf(m.ProtectThreshold, 0) {
		return fmt.Errorf("protection threshold %v is not a number", m.ProtectThreshold)
	}
	if err := checkText("selector type", m.Selector.Type, maxSetting); err != nil {
		return err
	}
	if err := checkText("selector expression", m.Selector.Expression, maxSetting); err != nil {
		return err
	}
	return checkMetadata(m.Metadata)
}

func checkCluster(c *registry.ClusterMeta) error {
	if err := checkName("cluster", c.Name, maxCluster); err != nil {
		return err
	}
	if err := checkPort(c.CheckPort); err != nil {
		return err
	}
	if code := c.Checker.ExpectedCode; code < 0 || code > 999 {
		return fmt.Errorf("expected status %d is not between 0 and 999", code)
	}
	for _, s := range [...]struct{ what, is string }{
		{"checker type", c.Checker.Type}, {"path", c.Checker.Path}, {"headers", c.Checker.Headers},
		{"user", c.Checker.User}, {"password", c.Checker.Password}, {"command", c.Checker.Command},
	} {
		if err := checkText(s.what, s.is, maxSetting); err != nil {
			return err
		}
	}
	return checkMetadata(c.Metadata)
}

func checkOverride(k registry.InstanceKey, o *registry.Override) error {
	if err := checkKey(k); err != nil {
		return err
	}
	if o.Weight != nil {
		if err := checkWeight(*o.Weight); err != nil {
			return err
		}
	}
	return checkMetadata(o.Metadata)
}

func checkNamespace(n Namespace) error {
	if err := checkName("namespace", n.ID, maxNamespace); err != nil {
		return err
	}
	if err := checkText("name of the namespace", n.Name, maxSetting); err != nil {
		return err
	}
	return checkText("description", n.Description, maxSetting)
}

func checkSwitch(name, value string) error {
	if err := checkName("name of the switch", name, maxSwitch); err != nil {
		return err
	}
	return checkText("value", value, maxValue)
}

func checkUser(u User) error {
	if err := checkName("user", u.Name, maxAccount); err != nil {
		return err
	}
	if len(u.Password) == 0 || len(u.Password) > maxSetting {
		return fmt.Errorf("hash of a password has %d bytes", len(u.Password))
	}
	return nil
}

func checkRole(r Role) error {
	if err := checkName("role", r.Name, maxAccount); err != nil {
		return err
	}
	for what, list := range map[string][]string{"users": r.Users, "permissions": r.Permissions} {
		size := 0
		for i, s := range list {
			if s == "" || !utf8.ValidString(s) || i > 0 && list[i-1] >= s {
				return errors.New("lists of a role must be sorted, without empty texts, in UTF-8")
			}
			size += len(s)
		}
		if size > maxList {
			return fmt.Errorf("%s of the role are longer than %d bytes", what, maxList)
		}
	}
	return nil
}

// What follows turns messages into what the tables hold, checked.

func (t *tables) serviceKey(m *pb.Service) (registry.ServiceKey, error) {
	k := registry.ServiceKey{Namespace: m.GetNamespace(), Group: m.GetGroup(), Name: m.GetName()}
	return k, checkService(k)
}

func (t *tables) instanceKey(ip string, port uint32, cluster string) (registry.InstanceKey, error) {
	k := registry.InstanceKey{IP: ip, Port: int(port), Cluster: cluster}
	if err := checkKey(k); err != nil {
		return k, err
	}
	k.Cluster = t.names.get(cluster)
	return k, nil
}

func (t *tables) instance(m *pb.Instance) (*registry.Instance, error) {
	if m == nil {
		return nil, errors.New("instance is missing")
	}
	k, err := t.instanceKey(m.GetIp(), m.GetPort(), m.GetCluster())
	if err != nil {
		return nil, err
	}
	i := &registry.Instance{InstanceKey: k, ID: m.GetId(), Weight: noSign(m.GetWeight()), Healthy: m.GetHealthy(), Enabled: m.GetEnabled(), Persistent: true}
	if i.Metadata, err = t.metadata(m.GetMetadata()); err != nil {
		return nil, err
	}
	return i, checkInstance(i)
}

// noSign makes one zero of the two, which differ as bytes.
func noSign(f float64) float64 {
	if f == 0 {
		return 0
	}
	return f
}

func (t *tables) metadata(list []string) (registry.Metadata, error) {
	if len(list)%2 != 0 {
		return nil, errors.New("metadata has a key without a value")
	}
	if len(list) == 0 {
		return nil, nil
	}
	md := make(registry.Metadata, 0, len(list)/2)
	for kv := range slices.Chunk(list, 2) {
		md = append(md, registry.KV{Key: kv[0], Value: kv[1]})
	}
	if err := checkMetadata(md); err != nil {
		return nil, err
	}
	for i := range md {
		md[i].Key = t.names.get(md[i].Key)
	}
	return md, nil
}

func (t *tables) cluster(m *pb.ServiceCluster) (*registry.ClusterMeta, error) {
	c := &registry.ClusterMeta{Name: m.GetName(), CheckPort: int(m.GetCheckPort()), UseInstancePort: m.GetUseInstancePort(),
		Checker: registry.Checker{Type: m.GetChecker(), Path: m.GetPath(), Headers: m.GetHeaders(), ExpectedCode: int(m.GetExpectedCode()),
			User: m.GetUser(), Password: m.GetPassword(), Command: m.GetCommand()}}
	var err error
	if c.Metadata, err = t.metadata(m.GetMetadata()); err != nil {
		return nil, err
	}
	return c, checkCluster(c)
}

// edit does not set a revision.
func (t *tables) edit(m *pb.PutOverride) (registry.InstanceKey, registry.Override, error) {
	o := registry.Override{Sticky: m.GetSticky(), Evicted: m.GetEvicted(), StaysOut: m.GetEvicted() && m.GetStaysOut()}
	if m != nil && m.Enabled != nil {
		o.Enabled = new(m.GetEnabled())
	}
	if m != nil && m.Weight != nil {
		o.Weight = new(noSign(m.GetWeight()))
	}
	k, err := t.instanceKey(m.GetIp(), m.GetPort(), m.GetCluster())
	if err != nil {
		return k, o, err
	}
	if o.Metadata, err = t.metadata(m.GetMetadata()); err != nil {
		return k, o, err
	}
	return k, o, checkOverride(k, &o)
}

// empty reports whether an edit changes nothing.
func (o *override) empty() bool { return !o.Sets() && !o.Evicted }

// sortedSet is a list without order or repetitions as the tables keep it.
func sortedSet(list []string) []string {
	list = slices.Clone(list)
	slices.Sort(list)
	return slices.Compact(list)
}

// shorten keeps a text within a limit.
func shorten(s string) string { return prefix(s, maxText) }

func prefix(s string, longest int) string {
	if len(s) <= longest {
		return s
	}
	return strings.ToValidUTF8(s[:longest], "")
}
