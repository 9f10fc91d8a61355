package node

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/starling-registry/starling/cluster"
	"github.com/starling-registry/starling/pkg/registry"
	starlingv1 "github.com/starling-registry/starling/proto"
)

func TestAnswersAreBounded(t *testing.T) {
	var many listing
	for range maxSubscribers {
		if !many.add(&starlingv1.Subscriber{}) {
			t.Fatal("no room")
		}
	}
	if many.Truncated || many.add(&starlingv1.Subscriber{}) || !many.Truncated || len(many.Subscribers) != maxSubscribers {
		t.Errorf("%d subscribers", len(many.Subscribers))
	}
	var big listing
	for big.add(&starlingv1.Subscriber{Agent: strings.Repeat("x", 1000)}) {
	}
	if size := proto.Size(&big.SubscribersResponse); !big.Truncated || size > maxSubscribersBytes || size < maxSubscribersBytes*9/10 {
		t.Errorf("%d bytes", size)
	}
}

func TestWhyNot(t *testing.T) {
	old := status.Error(codes.Unimplemented, "unknown method Subscribers")
	for _, f := range []struct {
		state cluster.State
		err   error
		want  string
	}{
		{cluster.Alive, old, "it is of an older release, which does not tell"},
		{cluster.Alive, fmt.Errorf("ask: %w", old), "it is of an older release, which does not tell"},
		{cluster.Alive, errors.New("x"), "x"},
		{cluster.Alive, status.Error(codes.DeadlineExceeded, "x"), "no answer in time"},
		{cluster.Alive, status.Error(codes.Canceled, "x"), "the connection to it has ended"},
		{cluster.Silent, errors.New("x"), "it is silent: paused, cut off or powered off"},
		{cluster.Refused, errors.New("x"), "its ports refuse, the process is gone"},
	} {
		if got := whyNot(cluster.Member{State: f.state}, f.err); got != f.want {
			t.Errorf("%v: %q", f, got)
		}
	}
}

// An evicted instance is registered, so its client is there.
func TestClientsOfEvictedPersistentInstances(t *testing.T) {
	o := registry.DefaultOptions()
	o.Life, o.Clock = registry.Life{Node: "a", Epoch: 1}, registry.NewClock(0, 0)
	c := clients{operations: &operations{registry: registry.New(o)}}
	key := registry.ServiceKey{Namespace: "public", Group: "DEFAULT_GROUP", Name: "order"}
	change := registry.Change{Service: key}
	for _, ip := range []string{"10.0.0.1", "10.0.0.2"} {
		i := &registry.Instance{InstanceKey: registry.InstanceKey{IP: ip, Port: 80, Cluster: registry.DefaultCluster}, Weight: 1, Healthy: true, Enabled: true, Persistent: true}
		change.Instances = append(change.Instances, registry.PersistentChange{InstanceKey: i.InstanceKey, Is: &registry.Persistent{Instance: i}})
	}
	change.Overrides = []registry.OverrideChange{{InstanceKey: change.Instances[0].InstanceKey, Is: &registry.Override{Evicted: true}}}
	c.registry.Commit([]registry.Change{change})
	var seen []string
	c.eachPersistent(func(_ registry.ServiceKey, i *registry.Shown) { seen = append(seen, i.Client) })
	if slices.Sort(seen); !slices.Equal(seen, []string{"10.0.0.1:80#false", "10.0.0.2:80#false"}) {
		t.Errorf("clients %v", seen)
	}
	if p := c.persistent("10.0.0.1:80#false"); len(p) != 1 || p[0].Service != key {
		t.Errorf("the evicted one has %v", p)
	}
}
