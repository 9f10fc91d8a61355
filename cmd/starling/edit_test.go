package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/starling-registry/starling/pkg/api"
)

func TestEditCommands(t *testing.T) {
	a := newAPINode(t)
	on := true
	key := api.InstanceKey{IP: "10.0.0.7", Port: 8080, Cluster: "DEFAULT"}
	is := func(edit func(*api.Standing)) *api.Standing {
		i := &api.Standing{InstanceKey: key, Weight: 2, Healthy: true, Enabled: true, Metadata: map[string]string{}}
		if edit != nil {
			edit(i)
		}
		return i
	}
	// f sends a command whose answer is given, and checks what was asked and what is said.
	f := func(path, body string, answer api.Edited, line string, says ...string) {
		t.Helper()
		answer.Service, answer.InstanceKey = aService("public", "DEFAULT_GROUP", "order"), key
		a.answers["POST /instances/"+path] = answer
		a.asked = nil
		args := strings.Split(line, " ")
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "_", " ")
		}
		status, stdout, stderr := starling([]string{"STARLING_SERVER=" + a.addr}, args...)
		if status != exitOK || stderr != "" {
			t.Errorf("%s: status %d: %s", line, status, stderr)
		}
		if d := cmp.Diff([]string{"POST /instances/" + path + " " + body}, a.asked); d != "" {
			t.Errorf("%s (-want +got):\n%s", line, d)
		}
		want(t, line, stdout, nil, says...)
		_, stdout, _ = starling([]string{"STARLING_SERVER=" + a.addr}, append(args, "--json")...)
		var back api.Edited
		if err := json.Unmarshal([]byte(stdout), &back); err != nil || back.InstanceKey != key {
			t.Errorf("%s --json: %v in %s", line, err, stdout)
		}
	}
	const ref = `"service":"order","ip":"10.0.0.7","port":8080`
	f("edit", `{`+ref+`,"enabled":false}`, api.Edited{Is: is(func(i *api.Standing) { i.Enabled = false })}, "disable order 10.0.0.7:8080",
		"10.0.0.7:8080 of order is disabled: clients do not see it.", "Undo: starling enable order 10.0.0.7:8080")
	f("edit", `{"namespace":"n","group":"g",`+ref+`,"cluster":"c","enabled":true,"sticky":true}`, api.Edited{Is: is(nil)}, "enable order 10.0.0.7:8080 --namespace n --group g --cluster c --sticky",
		"10.0.0.7:8080 of order is enabled: clients see it.", "Undo: starling disable order 10.0.0.7:8080 --cluster=c --group=g --namespace=n")
	f("edit", `{`+ref+`,"enabled":true}`, api.Edited{Is: is(func(i *api.Standing) { i.Evicted = true })}, "enable order 10.0.0.7:8080",
		"10.0.0.7:8080 of order is enabled, but evicted: clients do not see it (starling evict --lift).", "Undo: starling disable order 10.0.0.7:8080")
	f("edit", `{`+ref+`,"enabled":false,"sticky":true}`, api.Edited{}, "disable order 10.0.0.7:8080 --sticky",
		"10.0.0.7:8080 of order is disabled: clients do not see it when it comes.", "Undo: starling edits reset order 10.0.0.7:8080")
	f("edit", `{`+ref+`,"enabled":false}`, api.Edited{Before: &api.Edit{Enabled: new(false)}, Is: is(func(i *api.Standing) { i.Enabled = false })}, "disable order 10.0.0.7:8080",
		"10.0.0.7:8080 of order is still disabled: clients do not see it.", "Undo: starling enable order 10.0.0.7:8080")
	f("edit", `{`+ref+`,"weight":0.5}`, api.Edited{Was: is(nil), Is: is(nil)}, "weight order 10.0.0.7:8080 0.5",
		"10.0.0.7:8080 of order has weight 0.5, it was 2.", "Undo: starling weight order 10.0.0.7:8080 2")

	f("evict", `{`+ref+`}`, api.Edited{Is: is(nil)}, "evict order 10.0.0.7:8080",
		"10.0.0.7:8080 of order is evicted: clients do not see it, and who registers it is refused, until that is lifted.", "Undo: starling evict order 10.0.0.7:8080 --lift")
	f("evict", `{`+ref+`,"untilGone":true}`, api.Edited{Is: is(nil)}, "evict order 10.0.0.7:8080 --until-gone",
		"10.0.0.7:8080 of order is evicted: clients do not see it, and who registers it is refused, until nobody has tried for a minute.", "Undo: starling evict order 10.0.0.7:8080 --lift")
	f("evict", `{`+ref+`,"absent":true}`, api.Edited{}, "evict order 10.0.0.7:8080 --absent",
		"10.0.0.7:8080 of order is evicted: who registers it is refused until that is lifted.", "Undo: starling evict order 10.0.0.7:8080 --lift")
	f("lift", `{`+ref+`}`, api.Edited{Is: is(nil), Before: &api.Edit{Evicted: true, StaysOut: true}}, "evict order 10.0.0.7:8080 --lift",
		"10.0.0.7:8080 of order is not evicted any more, clients see it.", "Undo: starling evict order 10.0.0.7:8080")
	f("lift", `{`+ref+`}`, api.Edited{Before: &api.Edit{Evicted: true}}, "evict order 10.0.0.7:8080 --lift",
		"10.0.0.7:8080 of order is not evicted any more, clients see it when it is registered.", "Undo: starling evict order 10.0.0.7:8080 --until-gone")
	f("evict", `{`+ref+`,"untilGone":true}`, api.Edited{Is: is(nil), Before: &api.Edit{Evicted: true, StaysOut: true}}, "evict order 10.0.0.7:8080 --until-gone",
		"10.0.0.7:8080 of order is evicted: clients do not see it, and who registers it is refused, until nobody has tried for a minute.", "Undo: starling evict order 10.0.0.7:8080")
	f("lift", `{`+ref+`}`, api.Edited{Before: &api.Edit{Evicted: true, StaysOut: true}, After: &api.Edit{Weight: new(2.0)}, Is: is(nil)}, "evict order 10.0.0.7:8080 --lift",
		"10.0.0.7:8080 of order is not evicted any more, clients see it.",
		"This stays set: weight 2. To take it back: starling edits reset order 10.0.0.7:8080", "Undo: starling evict order 10.0.0.7:8080")
	f("edit", `{`+ref+`,"reset":true}`, api.Edited{Before: &api.Edit{Enabled: &on, Evicted: true}, After: &api.Edit{Evicted: true}}, "edits reset order 10.0.0.7:8080",
		"Nothing is set for 10.0.0.7:8080 of order any more; it was: evicted until gone, enabled.", "It is still evicted. To end that: starling evict order 10.0.0.7:8080 --lift")
	f("edit", `{`+ref+`,"reset":true}`, api.Edited{}, "edits reset order 10.0.0.7:8080", "Nothing was set for 10.0.0.7:8080 of order.")

	md := func(pairs ...string) map[string]string {
		m := map[string]string{}
		for _, p := range pairs {
			k, v, _ := strings.Cut(p, "=")
			m[k] = v
		}
		return m
	}
	f("edit", `{`+ref+`,"metadata":{"a":"1","b":"x y=z","c":null,"d":null,"e":"5","f":null}}`, api.Edited{
		Before: &api.Edit{Metadata: md("c=3", "e=4")}, After: &api.Edit{Metadata: md("a=1", "b=x y=z", "e=5")},
		Was: is(func(i *api.Standing) { i.Metadata = md("b=own", "c=3", "d=own", "e=4") }), Is: is(func(i *api.Standing) { i.Metadata = md("a=1", "b=x y=z", "c=own", "d=own", "e=5") }),
	}, "metadata order 10.0.0.7:8080 a=1 b=x_y=z c- d- e=5 f-",
		"10.0.0.7:8080 of order: a=1",
		"10.0.0.7:8080 of order: b=x y=z, it was own",
		"10.0.0.7:8080 of order: c is own again, as its client says",
		"10.0.0.7:8080 of order: e=5, it was 4",
		"10.0.0.7:8080 of order: f was not set",
		"10.0.0.7:8080 of order: d stays: its client registers it. KEY=VALUE gives it another value.",
		"Undo: starling metadata order 10.0.0.7:8080 a- b- c=3 e=4")
}

func TestMetadata(t *testing.T) {
	a := newAPINode(t)
	in := api.Instances{Service: aService("public", "DEFAULT_GROUP", "order"), Instances: []api.Standing{
		{InstanceKey: api.InstanceKey{IP: "10.0.0.7", Port: 80, Cluster: "c1"}, Metadata: map[string]string{"own": "1\x1b", "ours": "2"}, Edit: &api.Edit{Metadata: map[string]string{"ours": "2"}}},
		{InstanceKey: api.InstanceKey{IP: "10.0.0.8", Port: 80, Cluster: "c1"}}, {InstanceKey: api.InstanceKey{IP: "10.0.0.8", Port: 80, Cluster: "c2"}}}}
	a.answers["GET /instances?service=order"] = in
	show := func(args ...string) (int, string, string) {
		return starling([]string{"STARLING_SERVER=" + a.addr}, append([]string{"metadata", "order"}, args...)...)
	}
	_, stdout, _ := show("10.0.0.7:80")
	want(t, "metadata", stdout, nil, `KEY   VALUE  SET BY`, `ours  2      operator`, `own   1\x1b  client`)
	if status, _, stderr := show("10.0.0.8:80"); status != exitFailed || !strings.Contains(stderr, "c1, c2 (say which with --cluster)") {
		t.Errorf("status %d: %s", status, stderr)
	}
	if status, _, stderr := show("10.0.0.9:80"); status != exitFailed || !strings.Contains(stderr, "no instance 10.0.0.9:80") {
		t.Errorf("status %d: %s", status, stderr)
	}
	_, stdout, _ = show("10.0.0.7:80", "--json")
	var back api.Standing
	if err := json.Unmarshal([]byte(stdout), &back); err != nil || back.Metadata["ours"] != "2" {
		t.Errorf("%v in %s", err, stdout)
	}
	for _, args := range [][]string{{"10.0.0.7:80", "x"}, {"10.0.0.7:80", "=1"}, {"10.0.0.7:80", "-"}, {"10.0.0.7:80", "a=1", "a-"}, {"10.0.0.7", "a=1"}, {"10.0.0.7:x", "a=1"}, {"10.0.0.7:80", "--sticky"}} {
		if status, _, stderr := show(args...); status != exitUsage {
			t.Errorf("%v: status %d: %s", args, status, stderr)
		}
	}
}

func TestEdits(t *testing.T) {
	a := newAPINode(t)
	off := false
	e := api.Edits{Edits: []api.InstanceEdit{
		{Service: aService("public", "DEFAULT_GROUP", "order"), InstanceKey: api.InstanceKey{IP: "10.0.0.7", Port: 80, Cluster: "DEFAULT"}, Edit: api.Edit{Enabled: &off, Since: now}, There: true},
		{Service: aService("prod", "g", "pay"), InstanceKey: api.InstanceKey{IP: "10.0.0.8", Port: 80, Cluster: "c"}, Edit: api.Edit{Evicted: true, StaysOut: true}},
	}}
	a.answers["GET /edits"] = e
	a.answers["GET /edits?namespace=public"] = api.Edits{Edits: e.Edits[:1]}
	a.answers["GET /edits?namespace=none"] = api.Edits{Edits: []api.InstanceEdit{}}
	list := func(args ...string) string {
		t.Helper()
		status, stdout, stderr := starling([]string{"STARLING_SERVER=" + a.addr}, args...)
		if status != exitOK || stderr != "" {
			t.Errorf("%v: status %d: %s", args, status, stderr)
		}
		return stdout
	}
	want(t, "edits", list("edits", "--all-namespaces"), nil,
		`NAMESPACE  SERVICE  GROUP          INSTANCE     CLUSTER  THERE  SET       SINCE`,
		`public     order    DEFAULT_GROUP  10.0.0.7:80  DEFAULT  yes    disabled  2026-11-30 06:31:02`,
		`prod       pay      g              10.0.0.8:80  c        no     evicted   -`)
	want(t, "evictions", list("evict", "--list", "--all-namespaces"), nil,
		`NAMESPACE  SERVICE  GROUP  INSTANCE     CLUSTER  THERE  SET      SINCE`,
		`prod       pay      g      10.0.0.8:80  c        no     evicted  -`)
	want(t, "edits", list("edits"), nil,
		`SERVICE  GROUP          INSTANCE     CLUSTER  THERE  SET       SINCE`,
		`order    DEFAULT_GROUP  10.0.0.7:80  DEFAULT  yes    disabled  2026-11-30 06:31:02`)
	want(t, "evictions", list("evict", "--list"), nil, "Nothing is evicted in namespace public; --all-namespaces shows the others.")
	want(t, "edits", list("edits", "--namespace", "none"), nil, "Nothing is set for any instance in namespace none; --all-namespaces shows the others.")
	var back api.Edits
	if err := json.Unmarshal([]byte(list("evict", "--list", "--all-namespaces", "--json")), &back); err != nil || len(back.Edits) != 1 {
		t.Errorf("%v: %+v", err, back)
	}
}

func TestNamespaces(t *testing.T) {
	a := newAPINode(t)
	a.answers["GET /namespaces"] = api.Namespaces{Namespaces: []api.Namespace{{ID: "public", Name: "public", Services: 2}, {ID: "prod", Name: "Production", Description: "real", InTable: true}}}
	a.answers["POST /namespaces"] = api.Namespace{ID: "prod", Name: "Production", InTable: true}
	a.answers["POST /namespaces/remove"] = api.Namespace{ID: "prod", Name: "My production", Description: "it's real", Services: 1}
	f := func(args []string, asked string, says ...string) {
		t.Helper()
		a.asked = nil
		status, stdout, stderr := starling([]string{"STARLING_SERVER=" + a.addr}, args...)
		if status != exitOK || stderr != "" || !slices.Equal(a.asked, []string{asked}) {
			t.Errorf("%v: status %d: %s, asked %q", args, status, stderr, a.asked)
		}
		want(t, args[0], stdout, nil, says...)
		if _, stdout, _ = starling([]string{"STARLING_SERVER=" + a.addr}, append(args, "--json")...); !json.Valid([]byte(stdout)) {
			t.Errorf("%v --json: %s", args, stdout)
		}
	}
	f([]string{"namespaces"}, "GET /namespaces", `ID      NAME        SERVICES  MADE  DESCRIPTION`, `public  public      2         -     -`, `prod    Production  0         yes   real`)
	f([]string{"namespaces", "create", "prod", "--name", "Production", "--description", "real"}, `POST /namespaces {"id":"prod","name":"Production","description":"real"}`,
		"Namespace prod is made.", "Undo: starling namespaces remove prod")
	f([]string{"namespaces", "remove", "prod"}, `POST /namespaces/remove {"id":"prod"}`, "Namespace prod is removed.", "1 service is still in it, untouched: starling services --namespace prod",
		`Undo: starling namespaces create prod --name 'My production' --description 'it'\''s real'`)
}

func TestQuoted(t *testing.T) {
	for in, out := range map[string]string{"10.0.0.7:80": "10.0.0.7:80", "[fd00::7]:80": "'[fd00::7]:80'", "": "''", "a b": "'a b'", "it's": `'it'\''s'`, "$(x)": "'$(x)'", "a=1": "a=1", "ü": "'ü'"} {
		if got := quoted(in); got != out {
			t.Errorf("%q: %s, want %s", in, got, out)
		}
	}
}
