package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/zap"
)

func TestCatalog(t *testing.T) { // golden scenario 17
	const g, in2 = "DEFAULT_GROUP@@a", "/v2/ns/catalog/instances"
	one := withMetadata(host("10.1.1.1", 80, "DEFAULT", g, "1.0"), `{"a":"1"}`)
	two := strings.Replace(host("10.1.1.2", 80, "DEFAULT", g, "1.0"), `"enabled":true`, `"enabled":false`, 1)
	three := sick(host("10.1.1.3", 80, "c2", g, "1.0"))
	view := func(name, group string, clusters, n, healthy int) string {
		return fmt.Sprintf(`{"clusterCount":%d,"groupName":%q,"healthyInstanceCount":%d,"ipCount":%d,"name":%q,"triggerFlag":"false"}`, clusters, group, healthy, n, name)
	}
	a, empty := view("a", "DEFAULT_GROUP", 2, 3, 2), view("empty", "g", 0, 0, 0)
	services := func(query string, count int, views ...string) step {
		return step{"GET catalog/services?namespaceId=n" + query, "", "", 200, js, fmt.Sprintf(`{"count":%d,"serviceList":[%s]}`, count, strings.Join(views, ","))}
	}
	instances := func(query string, count int, hosts ...string) step {
		return step{"GET catalog/instances?namespaceId=n&serviceName=a&clusterName=" + query, "", "", 200, js, fmt.Sprintf(`{"count":%d,"list":[%s]}`, count, strings.Join(hosts, ","))}
	}
	instancesV2 := func(query string, count int, hosts ...string) step {
		data := fmt.Sprintf(`{"count":%d,"instances":[%s]}`, count, strings.Join(hosts, ","))
		if len(hosts) == 0 {
			data = fmt.Sprintf(`{"count":%d}`, count)
		}
		return step{"GET " + in2 + "?namespaceId=n&" + query, "", "", 200, js, result(0, "success", data)}
	}
	detail := func(name, group, threshold, clusters string, ephemeral bool) string {
		return fmt.Sprintf(`{"clusterMap":%s,"ephemeral":%t,"groupName":%q,"metadata":{},"namespace":"n","protectThreshold":%s,"selector":{"contextType":"NONE","type":"none"},"serviceName":%q}`,
			clusters, ephemeral, group, threshold, name)
	}
	cluster := func(name, hosts string) string {
		return fmt.Sprintf(`%q:{"clusterName":%q,"healthChecker":{"type":"TCP"},"hosts":[%s],"metadata":{}}`, name, name, hosts)
	}
	short := func(ip, md string, valid, enabled bool) string {
		return fmt.Sprintf(`{"enabled":%t,"ip":%q,"metadata":%s,"port":80,"valid":%t,"weight":1.0}`, enabled, ip, md, valid)
	}
	clusterOf := func(name string) string {
		return fmt.Sprintf(`{"defaultCheckPort":80,"defaultPort":80,"healthChecker":{"type":"TCP"},"metadata":{},"name":%q,"serviceName":"DEFAULT_GROUP@@a","useIpPort4Check":true}`, name)
	}
	f := newFixture(t)
	f.play(t, []step{
		services("&pageNo=1&pageSize=10", 0),
		ok("POST instance?namespaceId=n&serviceName=a&ip=10.1.1.1&port=80&metadata=a=1"),
		ok("POST instance?namespaceId=n&serviceName=a&ip=10.1.1.2&port=80&enabled=false"),
		ok("POST instance?namespaceId=n&serviceName=a&ip=10.1.1.3&port=80&healthy=false&clusterName=c2"),
		ok("POST service?namespaceId=n&serviceName=empty&groupName=g&protectThreshold=0.4"),
		services("&pageNo=1&pageSize=10&serviceNameParam=a", 1, a),
		services("&pageNo=1&pageSize=10", 2, a, empty),
		services("&pageNo=2&pageSize=1", 2, empty),
		services("&pageNo=9&pageSize=1", 2),
		services("&pageNo=1&pageSize=0", 2),
		services("&pageNo=1&pageSize=10&hasIpCount=true", 1, a),
		services("&pageNo=1&pageSize=10&serviceNameParam=empty", 1, empty),
		services("&pageNo=1&pageSize=10&groupNameParam=g", 1, empty),
		services("&pageNo=1&pageSize=10&instance=10.1.1.1:80", 1, a),
		services("&pageNo=1&pageSize=10&instance=10.1.1.", 1, a),
		services("&pageNo=1&pageSize=10&instance=10.1.1.1:81", 0),
		services("", 2, a, empty),
		{"GET catalog/services?pageNo=x", "", "", 400, text, `For input string: "x"`},
		{"GET catalog/services?pageSize=9999999999", "", "", 400, text, `For input string: "9999999999"`},
		{"GET catalog/service?namespaceId=n&serviceName=a", "", "", 200, js, `{"clusters":[` + clusterOf("DEFAULT") + "," + clusterOf("c2") + `],
			"service":{"groupName":"DEFAULT_GROUP","metadata":{},"name":"a","protectThreshold":0.0,"selector":{"contextType":"NONE","type":"none"}}}`},
		{"GET catalog/service?namespaceId=n&serviceName=empty&groupName=g", "", "", 200, js,
			`{"clusters":[],"service":{"groupName":"g","metadata":{},"name":"empty","protectThreshold":0.4,"selector":{"contextType":"NONE","type":"none"}}}`},
		{"GET catalog/service?namespaceId=n&serviceName=none", "", "", 404, text, "service DEFAULT_GROUP@@none is not found!"},
		{"GET catalog/service", "", "", 404, text, "service @@ is not found!"},
		instances("DEFAULT&pageNo=1&pageSize=10", 2, one, two),
		instances("DEFAULT&pageNo=2&pageSize=1", 2, two),
		instances("DEFAULT&pageNo=5&pageSize=10", 2),
		instances("c2", 1, three),
		{"POST catalog/instances", "namespaceId=n&serviceName=a&clusterName=c2", "", 200, js, `{"count":1,"list":[` + three + `]}`},
		{"GET catalog/instances?namespaceId=n&serviceName=a&clusterName=nope", "", "", 404, text, "cluster nope is not found!"},
		{"GET catalog/instances?namespaceId=n&serviceName=none&clusterName=DEFAULT", "", "", 404, text, "service DEFAULT_GROUP@@none is not found!"},
		{"GET catalog/instances?namespaceId=n&serviceName=a", "", "", 400, text, "Parameter 'clusterName' is missing"},
		{"GET catalog/instances?namespaceId=n&clusterName=DEFAULT", "", "", 400, text, "Parameter 'serviceName' is missing"},
		instancesV2("serviceName=a&pageNo=1&pageSize=10", 3, one, two, three),
		instancesV2("serviceName="+g+"&pageNo=1&pageSize=10", 3, one, two, three),
		instancesV2("serviceName=a&pageNo=2&pageSize=2", 3, three),
		instancesV2("serviceName=a&pageNo=5&pageSize=2", 3),
		instancesV2("serviceName=a&healthyOnly=true", 2, one, two),
		instancesV2("serviceName=a&enabledOnly=true", 2, one, three),
		instancesV2("serviceName=a&healthyOnly=true&enabledOnly=true&pageNo=1&pageSize=10", 1, one),
		instancesV2("serviceName=none&pageNo=1&pageSize=10", 0),
		failed("GET "+in2+"?serviceName=a&pageNo=x", "", 20002, "parameter validate error", `For input string: "x"`),
		failed("GET "+in2, "", 10000, "parameter missing", "Required request parameter 'serviceName' for method parameter type String is not present"),
	})
	want := "[" + detail("a", "DEFAULT_GROUP", "0.0", "{"+cluster("DEFAULT", short("10.1.1.1", `{"a":"1"}`, true, true)+","+short("10.1.1.2", "{}", true, false))+","+cluster("c2", short("10.1.1.3", "{}", false, true))+"}", true) +
		"," + detail("empty", "g", "0.4", "{}", false) + "]"
	is := f.do("GET", "/nacos/v1/ns/catalog/services?namespaceId=n&withInstances=true", "").Body.String()
	if fmt.Sprint(decode(t, `{"all":`+is+"}")) != fmt.Sprint(decode(t, `{"all":`+want+"}")) {
		t.Errorf("with instances:\n  is   %s\n  want %s", is, want)
	}
	if is := f.do("GET", "/nacos/v1/ns/catalog/services?namespaceId=none&withInstances=true", "").Body.String(); is != "[]" {
		t.Errorf("of an empty namespace: %s", is)
	}
	if n := f.registry.Stats().Services; n != 2 {
		t.Errorf("%d services; reading made one", n)
	}
}

// TestCatalogIPv6: an address is found as it is listed, and as it is dialled.
func TestCatalogIPv6(t *testing.T) {
	f := newFixture(t)
	f.play(t, []step{ok("POST instance?serviceName=a&ip=fd00::1&port=80")})
	for like, n := range map[string]string{"fd00::1:80": "1", "[fd00::1]:80": "1", "[fd00::1]:81": "0"} {
		if is := f.do("GET", "/nacos/v1/ns/catalog/services?instance="+like, "").Body.String(); !strings.HasPrefix(is, `{"count":`+n+",") {
			t.Errorf("%s: %s", like, is)
		}
	}
}

// A pieceWriter tells how much of an answer was written at once.
type pieceWriter struct {
	*httptest.ResponseRecorder
	longest int
	failing bool
}

func (w *pieceWriter) Write(b []byte) (int, error) {
	w.longest = max(w.longest, len(b))
	if w.failing {
		return 0, errors.New("the client has gone")
	}
	return w.ResponseRecorder.Write(b)
}

// Of a list that is asked for without an end, only a little is in memory.
func TestLongListsInPieces(t *testing.T) {
	f := newFixture(t)
	for n := range 1000 {
		f.register(t, fmt.Sprintf("serviceName=s%04d&ip=10.0.0.1&port=80&metadata=k=%s", n, strings.Repeat("x", 200)))
	}
	for _, c := range []struct{ target, head, tail string }{
		{"/v1/ns/catalog/services?pageNo=1&pageSize=2147483647", `{"count":1000,"serviceList":[{`, "}]}"},
		{"/v1/ns/catalog/services?withInstances=true&pageSize=100000", `[{`, "}]"},
		{"/v3/admin/ns/service/list?pageSize=100000", `{"code":0,"message":"success","data":{"totalCount":1000,"pageNumber":1,"pagesAvailable":1,"pageItems":[{`, "}]}}"},
		{"/v3/admin/ns/service/list?pageSize=100000&withInstances=true", `{"code":0,"message":"success","data":{"totalCount":1000,"pageNumber":1,"pagesAvailable":1,"pageItems":[{`, "}]}}"},
	} {
		w := &pieceWriter{ResponseRecorder: httptest.NewRecorder()}
		f.ServeHTTP(w, httptest.NewRequest("GET", "/nacos"+c.target, nil))
		b := w.Body.String()
		if w.Code != 200 || !json.Valid(w.Body.Bytes()) || !strings.HasPrefix(b, c.head) || !strings.HasSuffix(b, c.tail) || strings.Count(b, `me":"s0`) < 1000 || w.Header().Get("Content-Type") != js {
			t.Errorf("%s: %d %.100s … %s", c.target, w.Code, b, b[max(0, len(b)-20):])
		}
		if w.longest > 32<<10 {
			t.Errorf("%s: %d bytes at once", c.target, w.longest)
		}
		w = &pieceWriter{ResponseRecorder: httptest.NewRecorder(), failing: true}
		f.ServeHTTP(w, httptest.NewRequest("GET", "/nacos"+c.target, nil))
		if w.Body.Len() != 0 || f.logs.FilterLevelExact(zap.ErrorLevel).Len() > 0 {
			t.Errorf("%s: a client that has gone: %v", c.target, f.logs.All())
		}
	}
}
