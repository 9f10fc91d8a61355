package httpapi

import (
	"context"
	"fmt"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/starling-registry/starling/pkg/registry"
)

// result is an answer of v2 and v3.
func result(code int, message, data string) string {
	return fmt.Sprintf(`{"code":%d,"message":%q,"data":%s}`, code, message, data)
}

func done(call, form string) step { return step{call, form, "", 200, js, result(0, "success", `"ok"`)} }

// failed is a refusal of v2 and v3.
func failed(call, form string, code int, message, data string) step {
	return step{call, form, "", 400, js, result(code, message, fmt.Sprintf("%q", data))}
}

func TestServices(t *testing.T) { // golden scenario 12
	const selector = `%7B%22type%22:%22label%22,%22expression%22:%22CONSUMER.label.a%20=%20PROVIDER.label.a%22%7D`
	f := newFixture(t)
	f.play(t, []step{
		{"GET service?serviceName=a", "", "", 400, text, "service not found, namespace: public, serviceName: DEFAULT_GROUP@@a"},
		{"PUT service?protectThreshold=0.5&serviceName=a", "", "", 400, text, "service DEFAULT_GROUP@@a not found!"},
		{"DELETE service?serviceName=a", "", "", 400, text, "service DEFAULT_GROUP@@a not found!"},
		{"POST service", `metadata={"k":"v"}&protectThreshold=0.3&selector={"type":"none"}&serviceName=a`, "", 200, text, "ok"},
		{"GET service?serviceName=a", "", "", 200, js, `{"clusters":[],"groupName":"DEFAULT_GROUP","metadata":{"k":"v"},"name":"a","namespaceId":"public","protectThreshold":0.3,"selector":{"contextType":"NONE","type":"none"}}`},
		{"POST service?serviceName=a", "", "", 400, text, "specified service DEFAULT_GROUP@@a already exists!"},
		ok("PUT service?metadata=a=b&protectThreshold=0.7&serviceName=a"),
		{"GET service?serviceName=a", "", "", 200, js, `{"clusters":[],"groupName":"DEFAULT_GROUP","metadata":{"a":"b"},"name":"a","namespaceId":"public","protectThreshold":0.7,"selector":{"contextType":"NONE","type":"none"}}`},
		{"PUT service?serviceName=a", "", "", 400, text, "Param 'protectThreshold' is required."},
		ok("PUT service?protectThreshold=x&serviceName=a"),
		ok("PUT service?protectThreshold=1.5&serviceName=a"),
		{"PUT service?protectThreshold=NaN&serviceName=a", "", "", 400, text, `For input string: "NaN"`},
		{"PUT service?protectThreshold=1e999&serviceName=a", "", "", 400, text, `For input string: "1e999"`},
		ok("POST service?serviceName=b&selector=" + selector),
		{"GET service?serviceName=b", "", "", 200, js, `{"clusters":[],"groupName":"DEFAULT_GROUP","metadata":{},"name":"b","namespaceId":"public","protectThreshold":0.0,
			"selector":{"contextType":"CMDB","expression":"CONSUMER.label.a = PROVIDER.label.a","labels":["a"],"type":"label"}}`},
		{`POST service?serviceName=c&selector={"type":"label","expression":"nonsense"}`, "", "", 400, text, "Selector parses failed: parse expression failed!"}, // Nacos: 500
		{`POST service?serviceName=c&selector={"type":"unknown"}`, "", "", 400, text, "not match any type of selector!"},
		{`POST service?serviceName=c&selector={bad`, "", "", 400, text, "Param 'selector' is illegal, it should be a JSON object."}, // Nacos: status 101
		{`POST service?serviceName=c&metadata={bad`, "", "", 400, text, "metadata format incorrect:{bad"},                           // Nacos: 500
		{`POST service?serviceName=c&metadata=k=` + strings.Repeat("x", 1024), "", "", 400, "", "Param 'Metadata' is illegal, the param length should not exceed 1024." + crlf},
		{"POST service", "", "", 400, text, "Parameter 'serviceName' is missing"},
		{"POST service?serviceName=a%20b", "", "", 400, "", "Param 'serviceName' is illegal, illegal characters should not appear in the param." + crlf},
		{"GET service", "", "", 400, text, "Parameter 'serviceName' is missing"},
		{"PUT service?protectThreshold=0.5", "", "", 400, text, "Param 'serviceName' is required."},
		{"DELETE service", "", "", 400, text, "Parameter 'serviceName' is missing"},
		ok("POST instance?ip=10.1.1.1&port=80&serviceName=d"),
		{"DELETE service?serviceName=d", "", "", 400, text, "Service DEFAULT_GROUP@@d is not empty, can't be delete. Please unregister instance first"},
		{"POST service?serviceName=d", "", "", 400, text, "specified service DEFAULT_GROUP@@d already exists!"},
		{"GET service/list?pageNo=1&pageSize=2", "", "", 200, js, `{"count":3,"doms":["a","b"]}`},
		{"GET service/list?pageNo=x&pageSize=10", "", "", 200, js, `{"count":3,"doms":["a","b","d"]}`},
		{"GET service/list?pageNo=3&pageSize=2", "", "", 200, js, `{"count":3,"doms":[]}`},
		{"GET service/list?pageNo=1", "", "", 400, text, "Param 'pageSize' is required."},
		{"GET service/list", "", "", 400, text, "Param 'pageNo' is required."},
		{"DELETE service", "serviceName=a", "", 200, text, "ok"},
		ok("DELETE service?serviceName=b"),
		{"GET service?serviceName=a", "", "", 400, text, "service not found, namespace: public, serviceName: DEFAULT_GROUP@@a"},
		{"GET service/selector/types", "", "", 200, js, `{"code":200,"data":["label","none"],"message":null,"noRight":false}`},
	})
	if n := f.registry.Stats().Services; n != 3 { // a and b are there until they are cleaned up
		t.Errorf("%d services; refused requests made some", n)
	}
}

func TestServicesV2(t *testing.T) { // golden scenario 32
	const svc = "/v2/ns/service"
	detail := func(name, md, threshold, clusters string, ephemeral bool) string {
		return result(0, "success", fmt.Sprintf(`{"clusterMap":%s,"ephemeral":%t,"groupName":"DEFAULT_GROUP","metadata":%s,"namespace":"n","protectThreshold":%s,"selector":{"contextType":"NONE","type":"none"},"serviceName":%q}`,
			clusters, ephemeral, md, threshold, name))
	}
	newFixture(t).play(t, []step{
		failed("GET "+svc+"?namespaceId=n&serviceName=a", "", 21008, "service not exist", "service not found, namespace: n, serviceName: DEFAULT_GROUP@@a"),
		failed("PUT "+svc, "namespaceId=n&protectThreshold=0.5&serviceName=a", 21008, "service not exist", "service DEFAULT_GROUP@@a not found!"),
		failed("DELETE "+svc+"?namespaceId=n&serviceName=a", "", 21008, "service not exist", "service DEFAULT_GROUP@@a not found!"),
		done("POST "+svc, "namespaceId=n&serviceName=a"),
		failed("POST "+svc, "namespaceId=n&serviceName=a", 21007, "service already exist", "specified service DEFAULT_GROUP@@a already exists!"),
		{"GET " + svc + "?namespaceId=n&serviceName=a", "", "", 200, js, detail("a", "{}", "0.0", "{}", false)},
		done("POST "+svc, `ephemeral=true&metadata={"k":"v"}&namespaceId=n&protectThreshold=0.4&serviceName=e`),
		done("POST /v2/ns/instance", "ip=10.1.1.1&namespaceId=n&port=80&serviceName=e"),
		{"GET " + svc + "?namespaceId=n&serviceName=e", "", "", 200, js, // Nacos: 500
			detail("e", `{"k":"v"}`, "0.4", `{"DEFAULT":{"clusterName":"DEFAULT","healthChecker":{"type":"TCP"},"hosts":null,"metadata":{}}}`, true)},
		failed("DELETE "+svc+"?namespaceId=n&serviceName=e", "", 21009, "service delete failure", "Service DEFAULT_GROUP@@e is not empty, can't be delete. Please unregister instance first"),
		done("PUT "+svc, `metadata={"x":"y"}&namespaceId=n&protectThreshold=0.5&serviceName=a`),
		{"GET " + svc + "?namespaceId=n&serviceName=a", "", "", 200, js, detail("a", `{"x":"y"}`, "0.5", "{}", false)},
		done("PUT "+svc, "namespaceId=n&serviceName=a"),
		{"GET " + svc + "?namespaceId=n&serviceName=a", "", "", 200, js, detail("a", "{}", "0.0", "{}", false)},
		{"GET " + svc + "/list?namespaceId=n", "", "", 200, js, result(0, "success", `{"count":2,"services":["a","e"]}`)},
		{"GET " + svc + "/list?namespaceId=n&pageNo=0&pageSize=0", "", "", 200, js, result(0, "success", `{"count":2,"services":[]}`)},
		failed("GET "+svc+"/list?namespaceId=n&pageNo=x", "", 20002, "parameter validate error", `For input string: "x"`), // Nacos: 500
		failed("POST "+svc, "", 10000, "parameter missing", "Required parameter 'serviceName' type String is not present"),
		failed("GET "+svc, "", 10000, "parameter missing", "Required request parameter 'serviceName' for method parameter type String is not present"),
		failed("DELETE "+svc, "", 10000, "parameter missing", "Required request parameter 'serviceName' for method parameter type String is not present"),
		failed("POST "+svc, `serviceName=c&selector={"type":"unknown"}`, 21006, "selector error", "not match any type of selector!"),
		failed("POST "+svc, `serviceName=c&metadata={bad`, 21005, "service metadata error", "metadata format incorrect:{bad"), // Nacos: 500
		failed("POST "+svc, `serviceName=c&protectThreshold=x`, 20002, "parameter validate error", `For input string: "x"`),   // Nacos: 500
		failed("POST "+svc, `serviceName=c&ephemeral=maybe`, 20002, "parameter validate error", "Param 'ephemeral' is illegal, it should be true or false: maybe"),
		failed("POST "+svc, `serviceName=@@c`, 20002, "parameter validate error", "Param 'serviceName' is illegal, groupName can't be empty"), // Nacos makes a service without a name
		{"POST " + svc, "serviceName=a b", "", 400, "", "Param 'serviceName' is illegal, illegal characters should not appear in the param." + crlf},
		done("DELETE "+svc+"?namespaceId=n&serviceName=a", ""),
		{"GET " + svc + "/list?namespaceId=n", "", "", 200, js, result(0, "success", `{"count":1,"services":["e"]}`)},
	})
}

func TestServicesV3(t *testing.T) { // golden scenarios 43, 72
	const svc = "/v3/admin/ns/service"
	page := func(number, total, pages int, items string) string {
		return result(0, "success", fmt.Sprintf(`{"pageItems":[%s],"pageNumber":%d,"pagesAvailable":%d,"totalCount":%d}`, items, number, pages, total))
	}
	view := func(name, group string, clusters, n, healthy int, protected string) string {
		return fmt.Sprintf(`{"clusterCount":%d,"groupName":%q,"healthyInstanceCount":%d,"ipCount":%d,"name":%q,"triggerFlag":%q}`, clusters, group, healthy, n, name, protected)
	}
	a, e := view("a", "DEFAULT_GROUP", 0, 0, 0, "false"), view("e", "g", 2, 2, 1, "true")
	newFixture(t).play(t, []step{
		{"GET " + svc + "/list", "", "", 200, js, page(1, 0, 0, "")},
		done("POST "+svc, `metadata={"k":"v"}&protectThreshold=0.5&serviceName=a`),
		done("POST "+svc, "ephemeral=true&groupName=g&protectThreshold=0.5&serviceName=e"),
		{"GET " + svc + "?serviceName=a", "", "", 200, js, result(0, "success", `{"clusterMap":{},"ephemeral":false,"groupName":"DEFAULT_GROUP","metadata":{"k":"v"},
			"namespaceId":"public","protectThreshold":0.5,"selector":{"contextType":"NONE","type":"none"},"serviceName":"a"}`)},
		done("POST /v3/client/ns/instance", "groupName=g&ip=10.1.1.1&port=80&serviceName=e"),
		done("POST /v3/admin/ns/instance", "groupName=g&ip=10.1.1.2&port=80&serviceName=e&clusterName=c2&healthy=false&enabled=false"),
		{"GET " + svc + "?serviceName=e&groupName=g", "", "", 200, js, result(0, "success", `{"clusterMap":{
			"DEFAULT":{"clusterName":"DEFAULT","healthChecker":{"type":"TCP"},"healthyCheckPort":80,"hosts":null,"metadata":{},"useInstancePortForCheck":true},
			"c2":{"clusterName":"c2","healthChecker":{"type":"TCP"},"healthyCheckPort":80,"hosts":null,"metadata":{},"useInstancePortForCheck":true}},
			"ephemeral":true,"groupName":"g","metadata":{},"namespaceId":"public","protectThreshold":0.5,"selector":{"contextType":"NONE","type":"none"},"serviceName":"e"}`)},
		{"GET " + svc + "/list", "", "", 200, js, page(1, 2, 1, a+","+e)},
		{"GET " + svc + "/list?ignoreEmptyService=true", "", "", 200, js, page(1, 1, 1, e)},
		{"GET " + svc + "/list?groupNameParam=g", "", "", 200, js, page(1, 1, 1, e)},
		{"GET " + svc + "/list?serviceNameParam=a", "", "", 200, js, page(1, 1, 1, a)},
		{"GET " + svc + "/list?pageNo=2&pageSize=1", "", "", 200, js, page(2, 2, 2, e)},
		{"GET " + svc + "/list?pageNo=9&pageSize=10", "", "", 200, js, page(9, 2, 1, "")},
		{"GET " + svc + "/list?withInstances=true&groupNameParam=g", "", "", 200, js, page(1, 1, 1, `{"clusterMap":{
			"DEFAULT":{"clusterName":null,"healthChecker":null,"healthyCheckPort":80,"hosts":[`+host("10.1.1.1", 80, "DEFAULT", "g@@e", "1.0")+`],"metadata":null,"useInstancePortForCheck":true},
			"c2":{"clusterName":null,"healthChecker":null,"healthyCheckPort":80,"hosts":[`+strings.Replace(sick(host("10.1.1.2", 80, "c2", "g@@e", "1.0")), `"enabled":true`, `"enabled":false`, 1)+`],"metadata":null,"useInstancePortForCheck":true}},
			"ephemeral":null,"groupName":"g","metadata":{},"namespaceId":null,"protectThreshold":0.0,"selector":null,"serviceName":"e"}`)},
		failed("GET "+svc+"/list?pageNo=0", "", 20002, "parameter validate error", "Required parameter 'pageNo' should be positive integer, current is 0"),
		failed("GET "+svc+"/list?pageSize=0", "", 20002, "parameter validate error", "Required parameter 'pageSize' should be positive integer, current is 0"),
		failed("GET "+svc+"/list?pageNo=x", "", 20002, "parameter validate error", `For input string: "x"`), // Nacos: 500
		failed("DELETE "+svc, "", 10000, "parameter missing", "Required parameter 'serviceName' type String is not present"),
		{"GET " + svc + "/selector/types", "", "", 200, js, result(0, "success", `["label","none"]`)},
		done("DELETE "+svc+"?serviceName=a", ""),
		{"GET " + svc + "/list", "", "", 200, js, page(1, 1, 1, e)},
	})
}

func sick(host string) string { return strings.Replace(host, `"healthy":true`, `"healthy":false`, 1) }

func TestNames(t *testing.T) { // http-api §5.9
	f := newFixture(t)
	found := func(query string, count int, names string) step {
		return step{"GET service/names" + query, "", "", 200, js, fmt.Sprintf(`{"META-INF/services":%s,"services":%s,"count":%d}`, names, names, count)}
	}
	bad := func(expr, why string) step {
		return step{"GET service/names?expr=" + expr, "", "", 400, text, "Param 'expr' is illegal, it should be a regular expression: " + why}
	}
	f.play(t, []step{
		found("", 0, "{}"),
		ok("POST service?serviceName=order-a"),
		ok("POST service?serviceName=order-b&groupName=g"),
		ok("POST service?serviceName=pay&namespaceId=n"),
		found("", 3, `{"n":["DEFAULT_GROUP@@pay"],"public":["DEFAULT_GROUP@@order-a","g@@order-b"]}`),
		found("?namespaceId=n", 1, `{"n":["DEFAULT_GROUP@@pay"]}`),
		found("?namespaceId=none", 0, `{"none":[]}`),
		found("?expr=order", 2, `{"n":[],"public":["DEFAULT_GROUP@@order-a","g@@order-b"]}`),
		found("?expr=^g@@.*b$", 1, `{"n":[],"public":["g@@order-b"]}`),
		found("?expr=p(a|x)y&namespaceId=n", 1, `{"n":["DEFAULT_GROUP@@pay"]}`),
		{"POST service/names", "expr=a$&namespaceId=public", "", 200, js, `{"META-INF/services":{"public":["DEFAULT_GROUP@@order-a"]},"services":{"public":["DEFAULT_GROUP@@order-a"]},"count":1}`},
		bad("a(", "error parsing regexp: missing closing ): `a(`"),
		bad("(?=a)", "error parsing regexp: invalid or unsupported Perl syntax: `(?=`"),
		bad(strings.Repeat("a", 257), "it is longer than 256 bytes"),
		bad("(.{30}){30}", "it repeats too much"),
		bad("(a{999}){999}", "error parsing regexp: invalid repeat count: `{999}`"),
		{"GET service/names?namespaceId=a/b", "", "", 400, "", "Param 'namespaceId/tenant' is illegal, illegal characters should not appear in the param." + crlf},
	})
	// Who has gone, or takes too long, does not keep the server busy.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	f.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/nacos/v1/ns/service/names", nil))
	if w.Code != 400 || !strings.Contains(w.Body.String(), "takes too long") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// As many clusters as instances do not make the time grow with the square: with
// it this takes minutes.
func TestManyClusters(t *testing.T) {
	f := newFixture(t)
	const n = 40_000
	var all []*registry.Instance
	for i := range n {
		all = append(all, &registry.Instance{InstanceKey: registry.InstanceKey{IP: "10.0.0.1", Port: i, Cluster: "cluster-with-a-rather-long-name-" + strconv.Itoa(n+i%(n-1))}, Weight: 1, Healthy: true, Enabled: true})
	}
	if err := f.registry.Open("sdk", registry.Connection).Register(order(), all, true); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for _, target := range []string{"/nacos/v1/ns/service?serviceName=order", "/nacos/v2/ns/service?serviceName=order", "/nacos/v3/admin/ns/service?serviceName=order",
		"/nacos/v1/ns/catalog/service?serviceName=order", "/nacos/v1/ns/catalog/services", "/nacos/v1/ns/catalog/services?withInstances=true",
		"/nacos/v1/ns/catalog/instances?serviceName=order&clusterName=cluster-with-a-rather-long-name-40007", "/nacos/v3/admin/ns/service/list", "/nacos/v3/admin/ns/service/list?withInstances=true",
		"/nacos/v3/admin/ns/instance/list?serviceName=order&clusterName=cluster-with-a-rather-long-name-40007", "/starling/v1/services", "/starling/v1/instances?service=order"} {
		if w := f.do("GET", target, ""); w.Code != 200 || len(target) < 40 && !strings.Contains(w.Body.String(), "order") {
			t.Errorf("%s: %d %.200s", target, w.Code, w.Body)
		}
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("%s", took)
	}
	if names := clustersOf(f.registry.Snapshot(order()).Instances); len(names) != n-1 || !slices.IsSorted(names) {
		t.Errorf("%d clusters", len(names))
	}
}
