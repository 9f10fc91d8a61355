package httpapi

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

func namespace(id, name, description string, kind int) string {
	if description == "" {
		description = "null"
	} else {
		description = fmt.Sprintf("%q", description)
	}
	return fmt.Sprintf(`{"namespace":%q,"namespaceShowName":%q,"namespaceDesc":%s,"quota":200,"configCount":0,"type":%d}`, id, name, description, kind)
}

func TestNamespaces(t *testing.T) { // golden scenarios 19, 45
	const at = "/v1/console/namespaces"
	says := func(call, form, body string) step { return step{call + " " + at, form, "", 200, js, body} }
	public := namespace("", "public", "", 0)
	f := newFixture(t)
	f.play(t, []step{
		get(at, restOf("["+public+"]")),
		says("POST", "customNamespaceId=dev&namespaceName=Dev+1&namespaceDesc=for+us", "true"),
		says("POST", "customNamespaceId=dev&namespaceName=Dev", "false"),
		says("POST", "customNamespaceId=public&namespaceName=Dev", "false"),
		says("POST", "customNamespaceId=a.b&namespaceName=Dev", "false"),
		says("POST", "customNamespaceId="+strings.Repeat("x", 129)+"&namespaceName=Dev", "false"),
		says("POST", "customNamespaceId=x&namespaceName=a%25", "false"),
		says("POST", "customNamespaceId=x&namespaceName="+strings.Repeat("x", 129), "false"),
		says("POST", "customNamespaceId=x&namespaceName=x&namespaceDesc="+strings.Repeat("x", 257), "false"),
		{"POST " + at, "customNamespaceId=x", "", 400, text, "Parameter 'namespaceName' is missing"},
		ok("POST instance?serviceName=a&namespaceId=used&ip=10.1.1.1&port=80"),
		ok("POST instance?serviceName=a&ip=10.1.1.1&port=80"),
		get(at, restOf("["+public+","+namespace("dev", "Dev 1", "for us", 1)+","+namespace("used", "used", "", 1)+"]")),
		get(at+"?show=all&namespaceId=dev", namespace("dev", "Dev 1", "for us", 1)),
		get(at+"?show=all&namespaceId=used", namespace("used", "used", "", 1)),
		get(at+"?show=all&namespaceId=", public),
		{"GET " + at + "?show=all", "", "", 400, text, "Parameter 'namespaceId' is missing"},
		{"GET " + at + "?show=all&namespaceId=none", "", "", 404, text, "namespaceId [ none ] not exist"},
		get(at+"?checkNamespaceIdExist=true&customNamespaceId=dev", "true"),
		get(at+"?checkNamespaceIdExist=true&customNamespaceId=public", "true"),
		get(at+"?checkNamespaceIdExist=true&customNamespaceId=used", "false"),
		get(at+"?checkNamespaceIdExist=true&customNamespaceId=", "false"),
		{"GET " + at + "?checkNamespaceIdExist=true", "", "", 400, text, "Parameter 'customNamespaceId' is missing"},
		says("PUT", "namespace=dev&namespaceShowName=Two", "true"),
		says("PUT", "namespace=used&namespaceShowName=Used", "true"),
		says("PUT", "namespace=none&namespaceShowName=None", "true"),
		says("PUT", "namespace=&namespaceShowName=None", "true"),
		says("PUT", "namespace=dev&namespaceShowName=*", "false"),
		{"PUT " + at, "namespace=dev", "", 400, text, "Parameter 'namespaceShowName' is missing"},
		{"PUT " + at, "namespaceShowName=x", "", 400, text, "Parameter 'namespace' is missing"},
		get(at, restOf("["+public+","+namespace("dev", "Two", "", 1)+","+namespace("used", "Used", "", 1)+"]")),
		{"DELETE " + at + "?namespaceId=used", "", "", 200, js, "true"},
		{"DELETE " + at, "namespaceId=dev", "", 200, js, "true"},
		{"DELETE " + at + "?namespaceId=none", "", "", 200, js, "true"},
		{"DELETE " + at + "?namespaceId=public", "", "", 200, js, "true"},
		{"DELETE " + at + "?namespaceId=a.b", "", "", 200, js, "true"},
		{"DELETE " + at, "", "", 400, text, "Parameter 'namespaceId' is missing"},
		get(at, restOf("["+public+","+namespace("used", "used", "", 1)+"]")),
		{"PATCH " + at, "", "", 405, js, springError(405, "Method Not Allowed", "Method 'PATCH' is not supported.", "/nacos"+at)},
	})
	if n := f.registry.Namespaces()["used"]; n != 1 {
		t.Errorf("%d services; deleting a namespace does not touch what is in it", n)
	}
	// Without an id one is made up.
	if w := f.do("POST", "/nacos"+at, "namespaceName=made&customNamespaceId=", form); w.Body.String() != "true" {
		t.Errorf("without an id: %s", w.Body)
	}
	made := f.tables.Namespaces()
	if len(made) != 1 || !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(made[0].ID) {
		t.Errorf("made %v", made)
	}
	// What the log does not take is no "false".
	f.tables.broken = refused(NoLeader, "")
	for _, call := range []string{"POST /nacos" + at + "?customNamespaceId=x&namespaceName=x", "PUT /nacos" + at + "?namespace=used&namespaceShowName=x", "DELETE /nacos" + at + "?namespaceId=x"} {
		method, target, _ := strings.Cut(call, " ")
		if w := f.do(method, target, ""); w.Code != 500 || !strings.Contains(w.Body.String(), "did not find the Leader node") {
			t.Errorf("%s: %d %s", call, w.Code, w.Body)
		}
	}
	f.tables.broken = refused(Exists, "another node knows it")
	if w := f.do("POST", "/nacos"+at+"?customNamespaceId=x&namespaceName=x", ""); w.Code != 200 || w.Body.String() != "false" {
		t.Errorf("what only the log knows: %d %s", w.Code, w.Body)
	}
}

func TestNamespacesV2V3(t *testing.T) {
	for at, public := range map[string]string{"/v2/console/namespace": namespace("", "public", "", 0), "/v3/admin/core/namespace": namespace("public", "public", "Default Namespace", 0)} {
		yes := result(0, "success", "true")
		says := func(call, form string) step { return step{call + " " + at, form, "", 200, js, yes} }
		illegal := func(form, says string) step { return failed("POST "+at, form, 22000, "illegal namespace", says) }
		f := newFixture(t)
		f.play(t, []step{
			get(at+"/list", result(0, "success", "["+public+"]")),
			says("POST", "namespaceId=dev&namespaceName=Dev&namespaceDesc=d"),
			failed("POST "+at, "namespaceId=dev&namespaceName=Dev", 22002, "namespace already exist", "namespaceId [dev] already exist."),
			failed("POST "+at, "namespaceId=public&namespaceName=Dev", 22002, "namespace already exist", "namespaceId [public] already exist."),
			illegal("namespaceId=a.b&namespaceName=Dev", "namespaceId [a.b] mismatch the pattern"),
			illegal("namespaceId="+strings.Repeat("x", 129)+"&namespaceName=Dev", "too long namespaceId, over 128"),
			illegal("namespaceId=x&namespaceName=$", "namespaceName [$] contains illegal char"),
			failed("POST "+at, "namespaceId=x", 10000, "parameter missing", "Required parameter 'namespaceName' type String is not present"),
			says("PUT", "namespaceId=dev&namespaceName=Two"),
			says("PUT", "namespaceId=none&namespaceName=None"),
			failed("PUT "+at, "namespaceName=Two", 10000, "parameter missing", "Required parameter 'namespaceId' type String is not present"),
			failed("PUT "+at, "namespaceId=dev&namespaceName=a@b", 22000, "illegal namespace", "namespaceName [a@b] contains illegal char"),
			get(at+"?namespaceId=dev", result(0, "success", namespace("dev", "Two", "", 1))),
			get(at+"?namespaceId=public", result(0, "success", public)),
			{"GET " + at + "?namespaceId=none", "", "", 404, js, result(22001, "namespace not exist", `"namespaceId [ none ] not exist"`)},
			failed("GET "+at, "", 10000, "parameter missing", "Required request parameter 'namespaceId' for method parameter type String is not present"),
			get(at+"/list", result(0, "success", "["+public+","+namespace("dev", "Two", "", 1)+"]")),
			{"DELETE " + at + "?namespaceId=dev", "", "", 200, js, yes},
			{"DELETE " + at + "?namespaceId=none", "", "", 200, js, yes},
			failed("DELETE "+at, "", 10000, "parameter missing", "Required request parameter 'namespaceId' for method parameter type String is not present"),
			get(at+"/list", result(0, "success", "["+public+"]")),
		})
	}
	const check = "/v3/admin/core/namespace/check"
	f := newFixture(t)
	f.tables.namespaces["dev"] = Namespace{ID: "dev", Name: "d"}
	f.play(t, []step{
		get(check+"?namespaceId=dev", result(0, "success", "1")),
		get(check+"?namespaceId=none", result(0, "success", "0")),
		get(check+"?namespaceId=public", result(0, "success", "1")),
		failed("GET "+check, "", 10000, "parameter missing", "Required request parameter 'namespaceId' for method parameter type String is not present"),
	})
}
