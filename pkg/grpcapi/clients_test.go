package grpcapi

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

func TestClients(t *testing.T) {
	run(t, func(b *bench) {
		// setup connects with labels and an address as the client says it.
		setup := func(labels, ip string) *client {
			c := b.dial()
			c.open()
			if err := c.stream.SendMsg(&nacos.Payload{Type: "ConnectionSetupRequest", ClientIP: ip,
				Body: []byte(`{"clientVersion":"Nacos-Java-Client:v2.5.1","labels":` + labels + `}`)}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return c
		}
		subscribe := func(c *client, name, app string) {
			t.Helper()
			p := new(nacos.Payload)
			if err := c.cc.Invoke(context.Background(), "/Request/request", &nacos.Payload{Type: "SubscribeServiceRequest", Headers: map[string]string{"app": app},
				Body: []byte(`{` + ref(name) + `,"subscribe":true,"clusters":"x"}`)}, p); err != nil || p.Type != "SubscribeServiceResponse" {
				t.Fatal(p, err)
			}
		}
		labelled := setup(`{"AppName":"till"}`, "10.1.1.1")
		defer labelled.close()
		said := setup(`null`, "")
		defer said.close()
		silent := setup(`{"AppName":7}`, "10.1.1.3\xff")
		defer silent.close()
		idle := b.dial() // not set up
		idle.call("ServerCheckRequest", `{}`)
		defer idle.close()

		subscribe(labelled, "order", "other")
		subscribe(said, "order", "shelf\xff")
		subscribe(silent, "order", "")
		subscribe(silent, "stock", "")
		silent.register("order", "1.1.1.1")
		time.Sleep(3 * time.Second)

		ids := b.server.ClientIDs()
		if len(ids) != 3 {
			t.Fatalf("clients %v", ids)
		}
		order := registry.ServiceKey{Namespace: "public", Group: "DEFAULT_GROUP", Name: "order"}
		subs := b.server.Subscribers(order)
		slices.SortFunc(subs, func(a, b Subscriber) int { return cmp.Compare(a.ID, b.ID) })
		if len(subs) != 3 {
			t.Fatalf("subscribers %+v", subs)
		}
		for i, want := range []Client{{IP: "10.1.1.1", App: "till"}, {IP: "10.9.9.9", App: "shelf\uFFFD"}, {IP: "10.1.1.3\uFFFD", App: UnknownApp}} {
			s := subs[i]
			host, port, _ := strings.Cut(strings.TrimPrefix(s.ID, s.ID[:strings.IndexByte(s.ID, '_')+1]), "_")
			if s.App != want.App || s.Agent != "Nacos-Java-Client:v2.5.1" || s.Clusters != "x" || port == "" || s.Port == 0 {
				t.Errorf("%d: %+v", i, s)
			}
			if want.IP == "10.9.9.9" { // it does not say
				want.IP = host
			}
			if s.IP != want.IP || !utf8.ValidString(s.IP+s.App) {
				t.Errorf("%d: ip %q, want %q", i, s.IP, want.IP)
			}
			c, ok := b.server.Client(s.ID)
			if !ok || c != s.Client {
				t.Errorf("%+v, %v", c, ok)
			}
			if d := time.Since(c.Active); d < 2*time.Second || d > 4*time.Second {
				t.Errorf("%d: heard %v ago", i, d)
			}
		}
		last := subs[2].ID
		if got := b.server.SubscribedBy(last); len(got) != 2 {
			t.Errorf("subscribes to %v", got)
		}
		if got := b.server.PublishedBy(last); len(got) != 1 || got[0].Service != order || got[0].Instance.IP != "1.1.1.1" {
			t.Errorf("publishes %v", got)
		}
		if _, ok := b.server.Client("x"); ok || b.server.SubscribedBy("x") != nil || b.server.PublishedBy("x") != nil {
			t.Error("there is a client x")
		}
		silent.close()
		time.Sleep(time.Second)
		if _, ok := b.server.Client(last); ok || len(b.server.Subscribers(order)) != 2 || len(b.server.ClientIDs()) != 2 {
			t.Error("it is still there")
		}
	})
}
