package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/starling-registry/starling/pkg/api"
)

func aService(namespace, group, name string) api.Service {
	return api.Service{Namespace: namespace, Group: group, Name: name}
}

func TestServices(t *testing.T) {
	a := newAPINode(t)
	s := api.Services{Node: idA, At: now, Total: 7, Services: []api.ServiceSummary{
		{Service: aService("public", "DEFAULT_GROUP", "order"), Kind: api.KindEphemeral, Instances: 3, Healthy: 2, Enabled: 2, Evicted: 1, Clusters: []string{"DEFAULT", "c1"}, Threshold: 0.8, Protected: true, Changed: before(12 * time.Second)},
		{Service: aService("public", "g", "\x1b[2J"), Kind: api.KindFree, Clusters: []string{"a", "b", "c", "d", "e"}},
	}}
	a.answers["GET /services?limit=1000"] = s
	status, stdout, stderr := starling(nil, "services", "--server", a.addr)
	if status != exitOK || stderr != "" {
		t.Errorf("status %d: %s", status, stderr)
	}
	want(t, "services", stdout, nil,
		`SERVICE  GROUP          KIND       HEALTHY  CLUSTERS            CHANGED  NOTES`,
		`order    DEFAULT_GROUP  ephemeral  2/3      DEFAULT, c1         12s      1 disabled, 1 evicted, protected`,
		`\x1b[2J  g              free       0/0      a, b, c and 2 more  -        -`,
		`5 services are more: name a part of the name, or raise --limit.`)

	s.Total = 2
	a.answers["GET /services?allNamespaces=true&group=g&limit=5&name=o"] = s
	_, stdout, _ = starling(nil, "services", "g@@o", "--all-namespaces", "--limit", "5", "--server", a.addr)
	if lines := strings.Split(stdout, "\n"); len(lines) != 4 || !strings.HasPrefix(lines[0], "NAMESPACE  SERVICE") || !strings.HasPrefix(lines[1], "public     order") {
		t.Errorf("%s", stdout)
	}
	_, stdout, _ = starling(nil, "services", "--json", "--server", a.addr)
	var back api.Services
	if err := json.Unmarshal([]byte(stdout), &back); err != nil || len(back.Services) != 2 {
		t.Errorf("%v in %s", err, stdout)
	}

	// Nothing there is no failure, and says where to look.
	none := api.Services{At: now, Services: []api.ServiceSummary{}}
	for call, args := range map[string][]string{"?limit=1000&name=x": {"x"}, "?limit=1000&namespace=prod": {"--namespace", "prod"}, "?allNamespaces=true&limit=1000": {"--all-namespaces"}} {
		a.answers["GET /services"+call] = none
		status, stdout, _ := starling(nil, append([]string{"services", "--server", a.addr}, args...)...)
		if status != exitOK || !strings.HasPrefix(stdout, "No service is in ") || strings.Count(stdout, "\n") != 2 {
			t.Errorf("%v: status %d: %s", args, status, stdout)
		}
	}
}

func TestInstances(t *testing.T) {
	a := newAPINode(t)
	off, heavy := false, 2.5
	at := func(ip string) api.InstanceKey { return api.InstanceKey{IP: ip, Port: 8080, Cluster: "DEFAULT"} }
	in := api.Instances{Service: aService("public", "DEFAULT_GROUP", "order"), Node: idA, At: now, Kind: api.KindEphemeral, Threshold: 0.85, Protected: true, Instances: []api.Standing{
		{InstanceKey: at("10.0.0.7"), Weight: 1, Healthy: true, Enabled: true, Ephemeral: true, State: api.StandsLiving, Node: idA, NodeName: "node-a", Registered: before(time.Minute), Metadata: map[string]string{"zone": "a", "v": "1"}},
		{InstanceKey: at("10.0.0.8"), Weight: 2.5, Enabled: false, Ephemeral: true, State: api.StandsMoving, Node: idB, Registered: before(time.Hour),
			Edit: &api.Edit{Enabled: &off, Weight: &heavy, Metadata: map[string]string{"k": "v"}, Sticky: true}},
		{InstanceKey: at("fd00::7"), Weight: 1, Healthy: true, Enabled: true, State: api.StandsLiving, Evicted: true, Edit: &api.Edit{Evicted: true, StaysOut: true}, Metadata: map[string]string{"long": strings.Repeat("x", 100)}},
	}}
	a.answers["GET /instances?service=order"] = in
	status, stdout, stderr := starling(nil, "instances", "order", "--server", a.addr)
	if status != exitOK || stderr != "" {
		t.Errorf("status %d: %s", status, stderr)
	}
	want(t, "instances", stdout, nil,
		`INSTANCE        CLUSTER  STATE                        WEIGHT  NODE        REGISTERED  METADATA                                                      EDIT`,
		`10.0.0.7:8080   DEFAULT  healthy                      1       node-a      1m00s       v=1 zone=a                                                    -`,
		`10.0.0.8:8080   DEFAULT  unhealthy, disabled, moving  2.5     b2222222    1h00m       -                                                             disabled, weight 2.5, k=v, sticky`,
		`[fd00::7]:8080  DEFAULT  healthy, evicted             1       persistent  -           long=`+strings.Repeat("x", 54)+`…  evicted`,
		`At most 85 % of the instances are healthy (protection threshold): clients are shown all as healthy.`)

	in.Instances = []api.Standing{}
	a.answers["GET /instances?cluster=c1&group=g&namespace=n&service=order"] = in
	_, stdout, _ = starling(nil, "instances", "order", "--namespace", "n", "--group", "g", "--cluster", "c1", "--server", a.addr)
	want(t, "none", stdout, nil, "Service order in group DEFAULT_GROUP, namespace public has no instances.", "starling history order tells which it had, and why they went.")
	a.answers["GET /instances?service=gone"] = &api.Error{Status: 404, Code: api.CodeNotFound, Message: "there is no service gone", Hint: "look"}
	if status, _, stderr := starling(nil, "instances", "gone", "--server", a.addr); status != exitFailed || stderr != "starling: there is no service gone (look)\n" {
		t.Errorf("status %d: %s", status, stderr)
	}
}

// The shell is offered what there is, and nothing that it would take for a
// command.
func TestCompletion(t *testing.T) {
	a := newAPINode(t)
	a.answers["GET /services?name=or&namespace=n"] = api.Services{Services: []api.ServiceSummary{{Service: aService("n", "g", "order")}, {Service: aService("n", "h", "order")}, {Service: aService("n", "g", "vendor")},
		{Service: aService("n", "g", "or$(x)")}, {Service: aService("n", "g", "or\x1b")}}}
	a.answers["GET /instances?namespace=n&service=order"] = api.Instances{Instances: []api.Standing{{InstanceKey: api.InstanceKey{IP: "10.0.0.7", Port: 80}}, {InstanceKey: api.InstanceKey{IP: "20.0.0.7", Port: 80}}}}
	f := func(want string, args ...string) {
		t.Helper()
		if _, out, _ := starling([]string{"STARLING_SERVER=" + a.addr}, append([]string{"__complete"}, args...)...); out != want {
			t.Errorf("%v: %q, want %q", args, out, want)
		}
	}
	for _, command := range []string{"services", "instances", "subscribers", "history", "enable", "disable", "metadata", "weight", "evict"} {
		f("order\n:4\n", command, "--namespace", "n", "or")
	}
	f("10.0.0.7:80\n:4\n", "disable", "--namespace", "n", "order", "10")
	f("10.0.0.7:80\n20.0.0.7:80\n:4\n", "edits", "reset", "--namespace", "n", "order", "")
	f(":4\n", "disable", "order", "10.0.0.7:80", "")
	f(":4\n", "services", "none")
	a.answers["GET /namespaces"] = api.Namespaces{Namespaces: []api.Namespace{{ID: "public"}, {ID: "prod", InTable: true}, {ID: "dev", InTable: true}}}
	f("public\nprod\n:4\n", "services", "--namespace", "p")
	f("prod\ndev\n:4\n", "namespaces", "remove", "")
	f(":4\n", "namespaces", "create", "")
}
