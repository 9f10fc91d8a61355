package health

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/starling-registry/starling/pkg/registry"
)

func TestClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		a := registry.ServiceKey{Namespace: "public", Group: "g", Name: "a"}
		b := registry.ServiceKey{Namespace: "public", Group: "g", Name: "b"}
		at := func(ip string) *registry.Instance {
			return &registry.Instance{InstanceKey: registry.InstanceKey{IP: ip, Port: 80, Cluster: "DEFAULT"}, Enabled: true, Healthy: true}
		}
		f.register(a, at("10.0.0.1"))
		f.register(b, at("10.0.0.1"))
		f.register(a, at("fd00::7"))
		time.Sleep(7 * time.Second)
		f.Beat(b, "10.0.0.1", 80)
		time.Sleep(2 * time.Second)

		ids := f.ClientIDs()
		slices.Sort(ids)
		if want := []string{"10.0.0.1:80#true", "fd00::7:80#true"}; !slices.Equal(ids, want) {
			t.Errorf("clients %v", ids)
		}
		for id, since := range map[string]time.Duration{ids[0]: 2 * time.Second, ids[1]: 9 * time.Second} {
			heard, registered, ok := f.Client(id)
			if !ok || time.Since(heard) != since {
				t.Errorf("%s: heard %v ago, %v", id, time.Since(heard), ok)
			}
			if id == ids[0] && (len(registered) != 2 || registered[b].IP != "10.0.0.1") || id == ids[1] && (len(registered) != 1 || registered[a].IP != "fd00::7") {
				t.Errorf("%s: %v", id, registered)
			}
		}
		for _, id := range []string{"", "10.0.0.1:80", "10.0.0.1:80#false", "10.0.0.1:81#true", "10.0.0.1:x#true", "1_10.0.0.1_80"} {
			if _, _, ok := f.Client(id); ok {
				t.Errorf("there is a client %q", id)
			}
		}
		f.Deregister(a, at("fd00::7").InstanceKey)
		if _, _, ok := f.Client(ids[1]); ok || len(f.ClientIDs()) != 1 {
			t.Error("it is still there")
		}
		// Whoever asks changes nothing.
		time.Sleep(30 * time.Second)
		f.sweep(t.Context(), time.Now())
		if got := f.ClientIDs(); len(got) != 0 {
			t.Errorf("left: %v", got)
		}
	})
}
