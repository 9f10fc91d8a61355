package httpapi

import (
	"context"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/starling-registry/starling/pkg/api"
	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

// fakeClients are a connection, an HTTP client and a persistent instance, and
// three subscribers on two nodes; a third does not answer.
type fakeClients struct{ asked *[]Subscribed }

const (
	connID = "1724059023123_10.0.0.9_40001"
	beatID = "10.0.0.7:8080#true"
	durID  = "10.0.0.8:8080#false"
)

func inDefault(name string) registry.ServiceKey {
	return registry.ServiceKey{Namespace: "public", Group: "DEFAULT_GROUP", Name: name}
}

func (fakeClients) IDs() []string { return []string{connID, beatID, durID} }

func (fakeClients) Client(id string) (nacos.Client, bool) {
	switch id {
	case connID:
		return nacos.Client{ID: id, Ephemeral: true, Updated: 1_796_020_000_000, Connection: true, App: "till", Agent: "Nacos-Go-Client:v2.3.5", IP: "10.0.0.9", Port: 40001}, true
	case beatID:
		return nacos.Client{ID: id, Ephemeral: true, Updated: 1_796_020_000_001}, true
	case durID:
		return nacos.Client{ID: id}, true
	}
	return nacos.Client{}, false
}

func (fakeClients) Published(id string) []nacos.Published {
	if id != connID {
		return nil
	}
	return []nacos.Published{{Service: inDefault("b"), InstanceKey: registry.InstanceKey{IP: "10.0.0.9", Port: 80, Cluster: "c"}},
		{Service: inDefault("a"), InstanceKey: registry.InstanceKey{IP: "10.0.0.9", Port: 81, Cluster: "DEFAULT"}}}
}

func (fakeClients) Subscribed(id string) []registry.ServiceKey {
	if id != connID {
		return nil
	}
	return []registry.ServiceKey{inDefault("y"), inDefault("x")}
}

func (f fakeClients) Subscribers(_ context.Context, of Subscribed) []NodeSubscribers {
	*f.asked = append(*f.asked, of)
	sub := func(service, client, ip, node string, behind int64) Subscriber {
		return Subscriber{inDefault(service), api.Subscriber{Node: node, Client: client, IP: ip, Port: 40001, Agent: "Nacos-Go-Client:v2.3.5", App: "unknown", Clusters: "c1,c2",
			Acked: time.UnixMilli(1_796_020_000_000).UTC(), BehindMillis: behind}}
	}
	all := []NodeSubscribers{{Node: "b2", Name: "node-b", Truncated: true, Subscribers: []Subscriber{sub("a", "c3", "10.0.0.3", "b2", 7), sub("ab", "c1", "10.0.0.1", "b2", 0)}},
		{Node: "a1", Name: "node-a", Subscribers: []Subscriber{sub("a", "c2", "10.0.0.2", "a1", 0)}}, {Node: "c3", Error: "it is silent"}}
	if !of.Everywhere {
		all = all[1:2]
	}
	if !of.Contains {
		for i := range all {
			all[i].Subscribers = slices.DeleteFunc(all[i].Subscribers, func(s Subscriber) bool { return s.Service != of.Service })
		}
	}
	return all
}

func withClients(asked *[]Subscribed) func(*Options) {
	return func(o *Options) { o.Clients = fakeClients{asked} }
}

func TestSubscribers(t *testing.T) { // http-api §5.9, §8.2
	var asked []Subscribed
	f := newFixture(t, withClients(&asked))
	row := func(service, ip string) string {
		return `{"addrStr":"` + ip + `","agent":"Nacos-Go-Client:v2.3.5","app":"unknown","ip":"` + ip + `","port":0,"namespaceId":"public","serviceName":"DEFAULT_GROUP@@` + service + `","cluster":"c1,c2"}`
	}
	r1, r2, r3 := row("a", "10.0.0.2"), row("a", "10.0.0.3"), row("ab", "10.0.0.1")
	get := func(query, body string) step { return step{"GET service/subscribers" + query, "", "", 200, js, body} }
	row3 := func(service, ip string) string {
		return `{"namespaceId":"public","groupName":"DEFAULT_GROUP","serviceName":"` + service + `","ip":"` + ip + `","port":0,"agent":"Nacos-Go-Client:v2.3.5","appName":"unknown","address":"` + ip + `:0"}`
	}
	const admin = "GET /v3/admin/ns/service/subscribers"
	page := func(query, head, rows string) step {
		return step{admin + query, "", "", 200, js, result(0, "success", `{`+head+`,"pageItems":[`+rows+`]}`)}
	}
	f.play(t, []step{
		get("?serviceName=a", `{"subscribers":[`+r1+`,`+r2+`,`+r3+`],"count":3}`),
		get("?serviceName=a&aggregation=TRUE&pageNo=2&pageSize=2", `{"subscribers":[`+r3+`],"count":3}`),
		get("?serviceName=a&aggregation=false", `{"subscribers":[`+r1+`],"count":1}`),
		get("?serviceName=a&aggregation=yes", `{"subscribers":[`+r1+`],"count":1}`),
		get("?serviceName=a&pageNo=9", `{"subscribers":[],"count":3}`),
		get("?serviceName=a&pageNo=-1&pageSize=1", `{"subscribers":[`+r1+`],"count":3}`),
		get("?serviceName=a&pageNo=x&pageSize=x", `{"subscribers":[],"count":3}`),
		get("?serviceName=a&pageNo=2&pageSize=9223372036854775807", `{"subscribers":[],"count":3}`),
		{"GET service/subscribers", "", "", 400, text, "Param 'serviceName' is required."},
		{"GET service/subscribers?serviceName=g@@", "", "", 400, js, `{"timestamp":"2026-11-30T00:00:00.000+00:00","status":400,"error":"Bad Request","message":"Service name filter error,caused: Param 'serviceName' is illegal, it should be format as 'groupName@@serviceName';","path":"/nacos/v1/ns/service/subscribers"}`},
		{"GET service/subscribers?serviceName=a%20b", "", "", 400, "", "Param 'serviceName' is illegal, illegal characters should not appear in the param." + crlf},
		{"POST service/subscribers?serviceName=a", "", "", 501, js, `{"timestamp":"2026-11-30T00:00:00.000+00:00","status":501,"error":"Not Implemented","message":"no such api:POST:/nacos/v1/ns/service/subscribers","path":"/nacos/v1/ns/service/subscribers"}`},

		page("?serviceName=a", `"totalCount":3,"pageNumber":1,"pagesAvailable":1`, row3("a", "10.0.0.2")+","+row3("a", "10.0.0.3")+","+row3("ab", "10.0.0.1")),
		page("?serviceName=a&pageNo=2&pageSize=2", `"totalCount":3,"pageNumber":2,"pagesAvailable":2`, row3("ab", "10.0.0.1")),
		page("?serviceName=a&aggregation=false", `"totalCount":1,"pageNumber":1,"pagesAvailable":1`, row3("a", "10.0.0.2")),
		{admin, "", "", 400, js, result(10000, "parameter missing", `"Required parameter 'serviceName' type String is not present"`)},
		{admin + "?serviceName=a&pageNo=0", "", "", 400, js, result(20002, "parameter validate error", `"Required parameter 'pageNo' should be positive integer, current is 0"`)},
		{admin + "?serviceName=a&pageSize=x", "", "", 400, js, result(20002, "parameter validate error", `"For input string: \"x\""`)},
		{admin + "?serviceName=a&aggregation=x", "", "", 400, js, result(20002, "parameter validate error", `"Param 'aggregation' is illegal, it should be true or false: x"`)},
	})
	if want := (Subscribed{inDefault("a"), true, true}); asked[0] != want {
		t.Errorf("asked for %+v", asked[0])
	}
	asked = nil
	f.do("GET", "/nacos/v1/ns/service/subscribers?namespaceId=n&groupName=g&serviceName=s&aggregation=False", "")
	if want := (Subscribed{registry.ServiceKey{Namespace: "n", Group: "g", Name: "s"}, true, false}); len(asked) != 1 || asked[0] != want {
		t.Errorf("asked for %+v", asked)
	}
}

func TestClients(t *testing.T) { // http-api §7.3, §8.2
	var asked []Subscribed
	f := newFixture(t, withClients(&asked))
	f.play(t, []step{
		ok("POST instance?ip=10.1.1.1&port=80&serviceName=order"),
		ok("POST instance?ip=10.1.1.2&port=80&serviceName=order&clusterName=c"),
	})
	const missing = `"Required request parameter 'clientId' for method parameter type String is not present"`
	for _, v := range []struct {
		base, published, subscribed, subscribers string
		row                                      func(ip, cluster string) string
	}{
		{"/v2/ns/client", `[{"namespace":"public","group":"DEFAULT_GROUP","serviceName":"a","registeredInstance":{"ip":"10.0.0.9","port":81,"cluster":"DEFAULT"}},` +
			`{"namespace":"public","group":"DEFAULT_GROUP","serviceName":"b","registeredInstance":{"ip":"10.0.0.9","port":80,"cluster":"c"}}]`,
			`[{"namespace":"public","group":"DEFAULT_GROUP","serviceName":"x","subscriberInfo":{"app":"till","agent":"Nacos-Go-Client:v2.3.5","addr":"10.0.0.9"}},` +
				`{"namespace":"public","group":"DEFAULT_GROUP","serviceName":"y","subscriberInfo":{"app":"till","agent":"Nacos-Go-Client:v2.3.5","addr":"10.0.0.9"}}]`,
			`[{"clientId":"c2","ip":"10.0.0.2","port":0}]`,
			func(ip, cluster string) string {
				return `{"clientId":"` + ip + `:80#true","ip":"` + ip + `","port":80,"cluster":"` + cluster + `"}`
			}},
		{"/v3/admin/ns/client", `[{"namespaceId":"public","groupName":"DEFAULT_GROUP","serviceName":"a","publisherInfo":{"clientId":null,"ip":"10.0.0.9","port":81,"clusterName":"DEFAULT"},"subscriberInfo":null},` +
			`{"namespaceId":"public","groupName":"DEFAULT_GROUP","serviceName":"b","publisherInfo":{"clientId":null,"ip":"10.0.0.9","port":80,"clusterName":"c"},"subscriberInfo":null}]`,
			`[{"namespaceId":"public","groupName":"DEFAULT_GROUP","serviceName":"x","publisherInfo":null,"subscriberInfo":{"clientId":null,"appName":"till","agent":"Nacos-Go-Client:v2.3.5","address":"10.0.0.9"}},` +
				`{"namespaceId":"public","groupName":"DEFAULT_GROUP","serviceName":"y","publisherInfo":null,"subscriberInfo":{"clientId":null,"appName":"till","agent":"Nacos-Go-Client:v2.3.5","address":"10.0.0.9"}}]`,
			`[{"clientId":"c2","appName":"unknown","agent":"Nacos-Go-Client:v2.3.5","address":"10.0.0.2"}]`,
			func(ip, cluster string) string {
				return `{"clientId":"` + ip + `:80#true","ip":"` + ip + `","port":80,"clusterName":"` + cluster + `"}`
			}},
	} {
		get := func(path, data string) step {
			return step{"GET " + v.base + path, "", "", 200, js, result(0, "success", data)}
		}
		bad := func(path string, status, code int, message, data string) step {
			return step{"GET " + v.base + path, "", "", status, js, result(code, message, data)}
		}
		r1, r2 := v.row("10.1.1.1", "DEFAULT"), v.row("10.1.1.2", "c")
		steps := []step{
			get("/list", `["10.0.0.7:8080#true","10.0.0.8:8080#false","1724059023123_10.0.0.9_40001"]`),
			get("?clientId="+connID, `{"clientId":"1724059023123_10.0.0.9_40001","ephemeral":true,"lastUpdatedTime":1796020000000,"clientType":"connection","connectType":"GRPC","appName":"till",`+
				`"version":"Nacos-Go-Client:v2.3.5","clientIp":"10.0.0.9","clientPort":40001}`),
			get("?clientId=10.0.0.7:8080%23true", `{"clientId":"10.0.0.7:8080#true","ephemeral":true,"lastUpdatedTime":1796020000001,"clientType":"ipPort","connectType":null,"appName":null,"version":null,"clientIp":null,"clientPort":0}`),
			get("?clientId=10.0.0.8:8080%23false", `{"clientId":"10.0.0.8:8080#false","ephemeral":false,"lastUpdatedTime":0,"clientType":"ipPort","connectType":null,"appName":null,"version":null,"clientIp":null,"clientPort":0}`),
			get("/publish/list?clientId="+connID, v.published),
			get("/publish/list?clientId=10.0.0.7:8080%23true", `[]`),
			get("/subscribe/list?clientId="+connID, v.subscribed),
			get("/subscribe/list?clientId=10.0.0.7:8080%23true", `[]`),
			get("/service/publisher/list?serviceName=order", `[`+r1+`,`+r2+`]`),
			get("/service/publisher/list?serviceName=order&ephemeral=false&ip=10.1.1.2", `[`+r2+`]`),
			get("/service/publisher/list?serviceName=order&port=80", `[`+r1+`,`+r2+`]`),
			get("/service/publisher/list?serviceName=order&ip=10.1.1.1&port=81", `[]`),
			get("/service/publisher/list?serviceName=order&port=0", `[]`),
			get("/service/publisher/list?serviceName=none", `[]`),
			get("/service/subscriber/list?serviceName=a", v.subscribers),
			get("/service/subscriber/list?serviceName=a&ip=10.0.0.2&port=0", v.subscribers),
			get("/service/subscriber/list?serviceName=a&ip=10.0.0.3", `[]`),
			get("/service/subscriber/list?serviceName=a&port=40001", `[]`),
			bad("/service/publisher/list?serviceName=order&ephemeral=x", 400, 20002, "parameter validate error", `"Param 'ephemeral' is illegal, it should be true or false: x"`),
			{"GET " + v.base + "/service/subscriber/list?serviceName=order&port=x", "", "", 400, "", "Param 'port' is illegal, the value should be between 0 and 65535." + crlf},
		}
		for _, path := range []string{"", "/publish/list", "/subscribe/list"} {
			steps = append(steps, bad(path+"?clientId=x", 404, 20004, "resource not found", `"clientId [ x ] not exist"`),
				bad(path, 400, 10000, "parameter missing", missing))
		}
		named := `"Required request parameter 'serviceName' for method parameter type String is not present"`
		if strings.HasPrefix(v.base, "/v3") {
			named = `"Required parameter 'serviceName' type String is not present"`
		}
		for _, path := range []string{"/service/publisher/list", "/service/subscriber/list"} {
			steps = append(steps, bad(path, 400, 10000, "parameter missing", named))
		}
		f.play(t, steps)
	}
	if want := (Subscribed{Service: inDefault("a")}); asked[0] != want {
		t.Errorf("asked for %+v", asked[0])
	}
}

// A node whose clients nobody can tell has none.
func TestWithoutClients(t *testing.T) {
	f := newFixture(t)
	f.play(t, []step{
		{"GET service/subscribers?serviceName=a", "", "", 200, js, `{"subscribers":[],"count":0}`},
		{"GET /v2/ns/client/list", "", "", 200, js, result(0, "success", "[]")},
		{"GET /v3/admin/ns/client?clientId=x", "", "", 404, js, result(20004, "resource not found", `"clientId [ x ] not exist"`)},
	})
	if w, code, _ := f.native(t, "GET /subscribers?service=s", ""); code != api.CodeNotOffered {
		t.Errorf("%d %s", w.Code, code)
	}
}

func TestNativeSubscribers(t *testing.T) {
	var asked []Subscribed
	f := newFixture(t, withClients(&asked))
	f.reason = "it waits for heads" // it answers all the same
	row := func(node, client, ip, behind string) string {
		return `{"node":"` + node + `","client":"` + client + `","ip":"` + ip + `","port":40001,"agent":"Nacos-Go-Client:v2.3.5","app":"unknown","clusters":"c1,c2","acked":"2026-11-30T06:26:40Z","behindMillis":` + behind + `}`
	}
	want := `{"namespace":"public","group":"DEFAULT_GROUP","service":"a","subscribers":[` + row("b2", "c3", "10.0.0.3", "7") + `,` + row("a1", "c2", "10.0.0.2", "0") +
		`],"nodes":[{"node":"a1","name":"node-a"},{"node":"b2","name":"node-b","truncated":true},{"node":"c3","name":"","error":"it is silent"}]}`
	w, _, _ := f.native(t, "GET /subscribers?service=a", "")
	if got := strings.TrimSpace(w.Body.String()); got != want || w.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	w, _, _ = f.native(t, "GET /subscribers?service=g@@s&namespace=n", "")
	if got := strings.TrimSpace(w.Body.String()); !strings.HasPrefix(got, `{"namespace":"n","group":"g","service":"s","subscribers":[],"nodes":[{`) {
		t.Errorf("%s", got)
	}
	if want := []Subscribed{{inDefault("a"), false, true}, {registry.ServiceKey{Namespace: "n", Group: "g", Name: "s"}, false, true}}; !slices.Equal(asked, want) {
		t.Errorf("asked for %+v", asked)
	}
	for call, code := range map[string]string{"GET /subscribers": api.CodeBadRequest, "GET /subscribers?service=a&x=1": api.CodeBadRequest, "GET /subscribers?service=a%20b": api.CodeBadRequest,
		"GET /subscribers?service=g@@s&group=h": api.CodeBadRequest, "POST /subscribers?service=a": api.CodeMethod} {
		if _, is, _ := f.native(t, call, ""); is != code {
			t.Errorf("%s: %s, want %s", call, is, code)
		}
	}

	srv := httptest.NewServer(f)
	defer srv.Close()
	c, err := api.NewClient(strings.TrimPrefix(srv.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	if s, err := c.Subscribers(t.Context(), api.Service{Name: "a"}); err != nil || len(s.Subscribers) != 2 || s.Subscribers[0].BehindMillis != 7 {
		t.Error(s, err)
	}
}
