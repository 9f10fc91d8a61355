package httpapi

import (
	"fmt"
	"strings"
	"testing"

	"github.com/starling-registry/starling/pkg/registry"
)

func TestMetadataBatch(t *testing.T) { // golden scenario 11
	const v1Path, v2Path, v3Path = "instance/metadata/batch", "/v2/ns/instance/metadata/batch", "/v3/admin/ns/instance/metadata/batch"
	const g = "DEFAULT_GROUP@@a"
	one, two := "10.1.1.1:80:unknown:DEFAULT:ephemeral", "10.1.1.2:80:unknown:DEFAULT:ephemeral"
	updated := func(names ...string) string {
		if len(names) == 0 {
			return `{"updated":[]}`
		}
		return `{"updated":["` + strings.Join(names, `","`) + `"]}`
	}
	edit := func(call string, names ...string) step { return step{call, "", "", 200, js, updated(names...)} }
	edited := func(call, form string, names ...string) step {
		return step{call, form, "", 200, js, result(0, "success", updated(names...))}
	}
	shown := func(md1, md2 string) step {
		hosts := []string{host("10.1.1.1", 80, "DEFAULT", g, "1.0"), host("10.1.1.2", 80, "DEFAULT", g, "1.0")}
		for i, md := range []string{md1, md2} {
			if md != "{}" {
				hosts[i] = withMetadata(hosts[i], md)
			}
		}
		return step{"GET instance/list?serviceName=a", "", "", 200, js, list("DEFAULT_GROUP", "a", "", hosts...)}
	}
	const badList = "Param 'instances' is illegal, it should be a JSON array of objects with ip and port."
	put := "PUT " + v1Path + "?serviceName=a&"
	f := newFixture(t)
	f.play(t, []step{
		edit(put + "metadata=k=v"),
		ok("POST instance?serviceName=a&ip=10.1.1.1&port=80&metadata=own=1"),
		ok("POST instance?serviceName=a&ip=10.1.1.2&port=80"),
		edit(put+"metadata=k=v", one, two),
		shown(`{"k":"v","own":"1"}`, `{"k":"v"}`),
		edit(put+`consistencyType=ephemeral&metadata={"k":"w","m":"2"}&instances=[{"ip":"10.1.1.1","port":80}]`, one),
		edit(put + `metadata=k=z&instances=[{"ip":"10.1.1.9","port":80,"clusterName":"DEFAULT","ephemeral":true}]`),
		edit(put + `metadata=k=z&instances=[{"ip":"10.1.1.1","port":80,"clusterName":"c2"}]`),
		shown(`{"k":"w","m":"2","own":"1"}`, `{"k":"v"}`),
		edit(put+"consistencyType=persist&metadata=p=1", one, two), // whatever it says
		edit(put+`metadata=own=2&instances=[{"ip":"10.1.1.1","port":"80"},{"ip":"10.1.1.1","port":80,"clusterName":null}]`, one),
		shown(`{"k":"w","m":"2","own":"2","p":"1"}`, `{"k":"v","p":"1"}`),
		{"PUT " + v1Path + "?serviceName=a", "", "", 400, text, "Param 'metadata' is required."},
		{"PUT " + v1Path + "?metadata=k=v", "", "", 400, text, "Param 'serviceName' is required."},
		edit("DELETE "+v1Path+`?serviceName=a&metadata={"k":"","own":""}`, one, two),
		shown(`{"m":"2","own":"1","p":"1"}`, `{"p":"1"}`), // what was published is seen again
		edit(put+"metadata={}", one, two),
		edit(put+"metadata=k=v&instances=[]", one, two), // all, as in Nacos
		edit("DELETE "+v1Path+`?serviceName=a&metadata={"k":"","m":"","p":""}`, one, two),
		shown(`{"own":"1"}`, "{}"),

		// Malformed lists change nothing (Nacos: 500, or taken for all).
		{put + "metadata=q=1&instances=[bad", "", "", 400, text, badList},
		{put + `metadata=q=1&instances={"ip":"10.1.1.1","port":80}`, "", "", 400, text, badList},
		{put + `metadata=q=1&instances=["10.1.1.1:80"]`, "", "", 400, text, badList},
		{put + `metadata=q=1&instances=[{"ip":"10.1.1.1"}]`, "", "", 400, text, badList},
		{put + `metadata=q=1&instances=[{"port":80}]`, "", "", 400, text, badList},
		{put + `metadata=q=1&instances=[{}]`, "", "", 400, text, badList},
		{put + `metadata=q=1&instances=[null]`, "", "", 400, text, badList},
		{put + `metadata=q=1&instances=[{"ip":"10.1.1.1","port":70000}]`, "", "", 400, "", "Param 'port' is illegal, the value should be between 0 and 65535." + crlf},
		{put + `metadata=q=1&instances=[{"ip":"10.1.1.1","port":80,"clusterName":"a%20b"}]`, "", "", 400, "", "Param 'cluster' is illegal, illegal characters should not appear in the param." + crlf},
		failed("PUT "+v2Path, "serviceName=a&metadata=q=1&instances=[bad", 20002, "parameter validate error", badList),
		shown(`{"own":"1"}`, "{}"),

		edited("PUT "+v2Path, "serviceName=a&groupName=DEFAULT_GROUP&metadata=v2=y", one, two),
		failed("PUT "+v2Path, "serviceName=a", 10000, "parameter missing", "Required parameter 'metadata' type String is not present"),
		shown(`{"own":"1","v2":"y"}`, `{"v2":"y"}`),
		edited("DELETE "+v2Path+`?serviceName=a&metadata={"v2":""}`, "", one, two),
		edited("PUT "+v3Path, `serviceName=a&metadata=v3=y&instances=[{"ip":"10.1.1.2","port":80}]`, two),
		failed("PUT "+v3Path, "serviceName=a", 10000, "parameter missing", "Required parameter 'metadata' type String is not present"),
		shown(`{"own":"1"}`, `{"v3":"y"}`),
		edited("DELETE "+v3Path+`?serviceName=a&metadata={"v3":""}`, "", one, two),
		edited("PUT "+v3Path, "serviceName=none&metadata=v3=y"),
		shown(`{"own":"1"}`, "{}"),

		// Persistent ones too.
		ok("POST instance?serviceName=p&ip=10.1.1.3&port=80&ephemeral=false"),
		edit("PUT "+v1Path+"?serviceName=p&metadata=k=v", "10.1.1.3:80:unknown:DEFAULT:persist"),
	})
	if n := f.registry.Stats().Services; n != 2 {
		t.Errorf("%d services; an edit made one", n)
	}
}

// TestMetadataBatchOfMany: all instances of a service in one call of the log,
// and nothing but their metadata.
func TestMetadataBatchOfMany(t *testing.T) {
	f := newFixture(t)
	for n := range 500 {
		f.play(t, []step{ok(fmt.Sprintf("POST instance?serviceName=a&ip=10.1.%d.%d&port=80&weight=2", n/250, n%250))})
	}
	before := f.durable.writes
	w := f.do("PUT", "/nacos/v1/ns/instance/metadata/batch?serviceName=a&metadata=k=v", "")
	if n := f.durable.writes - before; n != 1 {
		t.Errorf("%d writes", n)
	}
	if n := strings.Count(w.Body.String(), ":ephemeral"); w.Code != 200 || n != 500 {
		t.Fatalf("%d: %d instances", w.Code, n)
	}
	for _, h := range f.registry.Snapshot(registry.ServiceKey{Namespace: "public", Group: "DEFAULT_GROUP", Name: "a"}).Instances {
		if v, _ := h.Metadata.Get("k"); v != "v" || h.Weight != 2 {
			t.Fatalf("%+v", h.Instance)
		}
	}
	// What the log does not take is an error, and no list.
	f.durable.broken = refused(Invalid, "it is too much")
	if w := f.do("PUT", "/nacos/v1/ns/instance/metadata/batch?serviceName=a&metadata=k=x", ""); w.Code != 400 || !strings.Contains(w.Body.String(), "it is too much") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// Keys that are added time and again do not make an edit as long as one likes.
func TestMetadataBatchAddsUp(t *testing.T) {
	f := newFixture(t, operate)
	long := strings.Repeat("x", 500)
	for _, v := range []string{"/nacos/v1/ns", "/nacos/v2/ns", "/nacos/v3/admin/ns"} {
		name := strings.ReplaceAll(v[7:9], "/", "")
		f.register(t, "serviceName="+name+"&ip=10.1.1.1&port=80&metadata=own="+long)
		f.register(t, "serviceName="+name+"&ip=10.1.1.2&port=80")
		for i, s := range []struct {
			call   string
			status int
		}{
			{"PUT metadata=a=" + long, 200},
			{"PUT metadata=b=" + long, 200},
			{"PUT metadata=c=" + long, 400},
			{"PUT metadata=b=" + long, 200}, // again
			{"DELETE metadata=a=" + long, 200},
			{"PUT metadata=c=" + long, 200},
		} {
			method, query, _ := strings.Cut(s.call, " ")
			w := f.do(method, v+"/instance/metadata/batch?serviceName="+name+"&"+query, "")
			if w.Code != s.status || s.status == 400 && w.Body.String() != "Param 'Metadata' is illegal, the param length should not exceed 1024."+crlf {
				t.Errorf("%s step %d: %d %s", v, i, w.Code, w.Body)
			}
		}
		for _, h := range f.registry.Snapshot(registry.ServiceKey{Namespace: "public", Group: "DEFAULT_GROUP", Name: name}).Instances {
			_, a := h.Metadata.Get("a")
			_, b := h.Metadata.Get("b")
			if _, c := h.Metadata.Get("c"); a || !b || !c {
				t.Errorf("%s: %v", v, h.Metadata)
			}
		}
	}
}
