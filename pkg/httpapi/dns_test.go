package httpapi

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestCoreDNS(t *testing.T) { // http-api §13
	f := newFixture(t)
	f.play(t, []step{
		{"GET api/allDomNames", "", "", 200, js, `{"count":0,"doms":{}}`},
		{"GET api/allDomNames", "", "Client-Version: Nacos-DNS:v1.0.1", 200, js, `{"count":0,"doms":[]}`},
		ok("POST instance?serviceName=a&ip=10.1.1.1&port=80&weight=2.5"),
		ok("POST instance?serviceName=a&ip=10.1.1.2&port=80&healthy=false&clusterName=c2"),
		ok("POST instance?serviceName=a&ip=10.1.1.3&port=80&enabled=false"),
		ok("POST instance?serviceName=a&groupName=g&ip=10.1.1.4&port=80"),
		ok("POST instance?serviceName=b&groupName=g&ip=10.1.1.4&port=80"),
		ok("POST instance?serviceName=c&namespaceId=n&ip=10.1.1.4&port=80"),
		{"GET api/allDomNames?udpPort=-1", "", "", 200, js, `{"count":3,"doms":{"n":["c"],"public":["a","b"]}}`},
		{"POST api/allDomNames", "", "Client-Version: Nacos-DNS:v1.0.2", 200, js, `{"count":3,"doms":{"n":["c"],"public":["a","b"]}}`},
		{"GET api/allDomNames", "", "Client-Version: Nacos-DNS:v1.0.1", 200, js, `{"count":2,"doms":["a","b"]}`},
		{"GET api/allDomNames", "", "User-Agent: Nacos-DNS:v0.9", 200, js, `{"count":2,"doms":["a","b"]}`},
		{"GET api/srvIPXT", "", "", 400, text, "Param 'dom' is required."},
		{"GET api/srvIPXT?dom=a&udpPort=x", "", "", 400, text, `For input string: "x"`},
		{"GET api/srvIPXT?dom=a&clusters=a%20b", "", "", 400, "", "Param 'cluster' is illegal, illegal characters should not appear in the param." + crlf},
	})
	// As the plugin reads it: names of members in any case.
	type domain struct {
		Name      string `json:"dom"`
		Clusters  string
		Env       string
		Instances []struct {
			IP     string
			Port   int
			Weight float64
			Valid  bool
		} `json:"hosts"`
		CacheMillis int64
	}
	for query, hosts := range map[string]string{
		"dom=a&clientIP=10.9.9.9&udpPort=40000": `[{"IP":"10.1.1.1","Port":80,"Weight":2.5,"Valid":true},{"IP":"10.1.1.2","Port":80,"Weight":1,"Valid":false}]`,
		"dom=a&clusters=c2":                     `[{"IP":"10.1.1.2","Port":80,"Weight":1,"Valid":false}]`,
		"dom=a&healthyOnly=true":                `[{"IP":"10.1.1.1","Port":80,"Weight":2.5,"Valid":true}]`,
		"dom=g@@a":                              `[{"IP":"10.1.1.4","Port":80,"Weight":1,"Valid":true}]`,
		"dom=c&namespaceId=n":                   `[{"IP":"10.1.1.4","Port":80,"Weight":1,"Valid":true}]`,
		"dom=none":                              `[]`,
	} {
		w := f.do("GET", "/nacos/v1/ns/api/srvIPXT?"+query, "")
		var d domain
		if err := json.Unmarshal(w.Body.Bytes(), &d); err != nil || w.Code != 200 {
			t.Fatalf("%s: %d %s: %v", query, w.Code, w.Body, err)
		}
		is, _ := json.Marshal(d.Instances)
		if string(is) != hosts || d.CacheMillis != 10000 || d.Name == "" || strings.Contains(d.Name, "@@") {
			t.Errorf("%s: %s, %+v", query, w.Body, d)
		}
	}
	// Protection makes hosts valid as it makes them healthy.
	f.play(t, []step{
		ok("POST service?serviceName=p"),
		ok("POST instance?serviceName=p&ip=10.1.1.5&port=80&ephemeral=false&healthy=false"),
	})
	if w := f.do("GET", "/nacos/v1/ns/api/srvIPXT?dom=p", ""); !strings.Contains(w.Body.String(), `"valid":true,"marked":false`) {
		t.Errorf("%s", w.Body)
	}
}

// TestPushOverUDP: who asks for it is told that there is none (cases C24).
func TestPushOverUDP(t *testing.T) {
	f := newFixture(t)
	for target, want := range map[string]string{
		"/v1/ns/instance/list?serviceName=a&udpPort=34567&clientIP=10.9.9.9": "none; poll every 10 s",
		"/v1/ns/instance/list?serviceName=a":                                 "",
		"/v1/ns/instance/list?serviceName=a&udpPort=0":                       "",
		"/v1/ns/instance/list?serviceName=a&udpPort=-1":                      "",
		"/v2/ns/instance/list?serviceName=a&port=34567&ip=10.9.9.9":          "none; poll every 10 s",
		"/v2/ns/instance/list?serviceName=a&port=0":                          "",
		"/v1/ns/api/srvIPXT?dom=a&udpPort=34567":                             "none; poll every 10 s",
	} {
		w := f.do("GET", "/nacos"+target, "")
		if is := w.Header().Get("Starling-Push"); is != want || w.Code != 200 || !strings.Contains(w.Body.String(), `"cacheMillis":10000`) {
			t.Errorf("%s: %d, %q, %s", target, w.Code, is, w.Body)
		}
	}
}

// TestRemoved: what Nacos had once is answered as what it never had.
func TestRemoved(t *testing.T) { // http-api §13
	f := newFixture(t)
	for _, call := range []string{
		"GET api/hello", "GET api/clientBeat", "GET catalog/rt/service", "GET operator/servers", "GET operator/distro/server", "GET operator/distro/status",
		"POST operator/server/status", "GET operator/cluster/state", "GET operator/cluster/states", "GET raft/leader", "GET raft/state", "POST raft/vote",
		"PUT distro/datum", "GET distro/datums", "PUT distro/checksum", "POST service/status", "PUT service/checksum", "GET service/statuses",
		"GET upgrade/ops/metrics", "POST upgrade/ops/instance",
	} {
		method, path, _ := strings.Cut(call, " ")
		path = "/nacos/v1/ns/" + path
		f.play(t, []step{{call, "", "", 501, js, springError(501, "Not Implemented", "no such api:"+method+":"+path, path)}})
	}
}
