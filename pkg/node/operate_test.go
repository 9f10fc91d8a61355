package node

import (
	"net/http"
	"testing"

	"github.com/starling-registry/starling/pkg/api"
)

// What operators do at one of three nodes is done on all, and each node tells
// of it.
func TestOperateThreeNodes(t *testing.T) {
	nodes := startNodes(t, 3)
	var clients []*api.Client
	for _, n := range nodes {
		defer stop(t, n)
		c, err := api.NewClient(n.HTTPAddr().String())
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, c)
	}
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	soonDone(t, "a persistent instance is registered", func() bool {
		code, _ := get(t, nodes[0], "POST", "/nacos/v1/ns/instance?serviceName=order&ip=10.0.0.7&port=8080&ephemeral=false")
		return code == 200
	})
	order := api.Service{Name: "order"}
	ref := api.InstanceRef{Service: "order", IP: "10.0.0.7", Port: 8080}
	// on checks how every node sees the instance.
	on := func(what string, holds func(api.Standing) bool) {
		t.Helper()
		for i, c := range clients {
			soonDone(t, what+" on "+nodes[i].HTTPAddr().String(), func() bool {
				in, err := c.Instances(t.Context(), order, "")
				return err == nil && len(in.Instances) == 1 && holds(in.Instances[0])
			})
		}
	}
	on("there", func(i api.Standing) bool { return i.Enabled && !i.Evicted && !i.Ephemeral })

	off := false
	zone := "b"
	e, err := clients[1].EditInstance(t.Context(), api.EditRequest{InstanceRef: ref, Enabled: &off, Metadata: map[string]*string{"zone": &zone}})
	if err != nil || e.Before != nil || e.After == nil || e.Is == nil || e.Is.Enabled || e.Is.Metadata["zone"] != "b" || e.Was == nil || !e.Was.Enabled {
		t.Fatalf("%+v, %v", e, err)
	}
	on("disabled", func(i api.Standing) bool { return !i.Enabled && i.Metadata["zone"] == "b" && i.Edit != nil })

	e, err = clients[2].EvictInstance(t.Context(), api.EvictRequest{InstanceRef: ref})
	if err != nil || e.After == nil || !e.After.Evicted || !e.After.StaysOut || e.After.Sticky || e.After.Since.IsZero() || e.Is == nil || !e.Is.Evicted {
		t.Fatalf("%+v, %v", e, err)
	}
	on("evicted", func(i api.Standing) bool { return i.Evicted })
	for _, c := range clients {
		s, err := c.Services(t.Context(), api.ServicesQuery{Name: "ord"})
		if err != nil || s.Total != 1 || s.Services[0].Evicted != 1 || s.Services[0].Instances != 0 {
			t.Errorf("%+v, %v", s, err)
		}
		edits, err := c.Edits(t.Context(), "public")
		if err != nil || len(edits.Edits) != 1 || !edits.Edits[0].There || !edits.Edits[0].Evicted {
			t.Errorf("%+v, %v", edits, err)
		}
	}
	if e, err = clients[0].LiftInstance(t.Context(), ref); err != nil || e.Is == nil || e.Is.Evicted {
		t.Fatalf("%+v, %v", e, err)
	}
	on("lifted", func(i api.Standing) bool { return !i.Evicted && !i.Enabled })
	if _, err := clients[0].LiftInstance(t.Context(), ref); api.CodeOf(err) != api.CodeNotFound {
		t.Error(err)
	}
	if e, err = clients[1].EditInstance(t.Context(), api.EditRequest{InstanceRef: ref, Reset: true}); err != nil || e.After != nil || e.Is == nil || !e.Is.Enabled {
		t.Fatalf("%+v, %v", e, err)
	}
	on("as registered", func(i api.Standing) bool { return i.Enabled && i.Edit == nil && len(i.Metadata) == 0 })

	if _, err := clients[1].CreateNamespace(t.Context(), api.NamespaceRequest{ID: "prod", Name: "Production"}); err != nil {
		t.Fatal(err)
	}
	if _, err := clients[2].CreateNamespace(t.Context(), api.NamespaceRequest{ID: "prod"}); api.CodeOf(err) != api.CodeConflict {
		t.Error(err)
	}
	for _, c := range clients {
		soonDone(t, "the namespace is everywhere", func() bool {
			n, err := c.Namespaces(t.Context())
			return err == nil && len(n.Namespaces) == 2 && n.Namespaces[0].Services == 1 && n.Namespaces[1] == api.Namespace{ID: "prod", Name: "Production", InTable: true}
		})
	}
	if _, err := clients[0].RemoveNamespace(t.Context(), "prod"); err != nil {
		t.Error(err)
	}
}
