package httpapi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.uber.org/zap/zapcore"

	"github.com/starling-registry/starling/pkg/nacos"
)

// restOf is an answer of v1's core and accounts.
func restOf(data string) string {
	return `{"code":200,"message":null,"noRight":false,"data":` + data + `}`
}

func restError(code int, message string) string {
	return fmt.Sprintf(`{"code":%d,"message":%q,"noRight":false,"data":null}`, code, message)
}

func get(target, body string) step { return step{"GET " + target, "", "", 200, js, body} }

// threeMembers are one that answers, one that is silent and one that is gone.
func threeMembers(o *Options) {
	o.Core.Members = func() []nacos.Member {
		return []nacos.Member{
			{Host: "10.0.0.3", Port: 8848, State: nacos.StateDown},
			{Host: "10.0.0.1", Port: 8848, State: nacos.StateUp, Self: true},
			{Host: "10.0.0.2", Port: 8848, State: nacos.StateSuspicious},
		}
	}
	o.Operator.Counts = func() Counts { return Counts{Connections: 7} }
	o.Core.Connections = func() []string { return []string{"1_10.0.0.9_40001"} }
}

func TestClusterMembers(t *testing.T) { // golden scenario 19
	f := newFixture(t, threeMembers)
	f.reason = "waiting" // that is when people ask
	addresses := func(target string) (list []string) {
		t.Helper()
		w := f.do("GET", "/nacos"+target, "")
		if w.Code != 200 {
			t.Errorf("%s: %d %s", target, w.Code, w.Body)
			return nil
		}
		data, _ := decode(t, w.Body.String())["data"].([]any)
		for _, m := range data {
			if m, ok := m.(map[string]any); ok {
				list = append(list, fmt.Sprint(m["address"], " ", m["state"]))
			}
		}
		return list
	}
	const a, b, c = "10.0.0.1:8848 UP", "10.0.0.2:8848 SUSPICIOUS", "10.0.0.3:8848 DOWN"
	for target, want := range map[string][]string{
		"/v1/core/cluster/nodes":                                    {a, b, c},
		"/v1/core/cluster/nodes?keyword=10.0.0.2":                   {b},
		"/v1/core/cluster/nodes?keyword=0.0":                        nil,
		"/v2/core/cluster/node/list":                                {a, b, c},
		"/v2/core/cluster/nodes":                                    {a, b, c}, // 2.0.4
		"/v2/core/cluster/node/list?state=down":                     {c},
		"/v2/core/cluster/node/list?state=STARTING":                 nil,
		"/v2/core/cluster/node/list?state=UP&address=10":            {a},
		"/v3/admin/core/cluster/node/list?address=10.0.0.3&state=":  {c},
		"/v3/admin/core/cluster/node/list?state=UP&address=9.9.9.9": nil,
	} {
		if is := addresses(target); fmt.Sprint(is) != fmt.Sprint(want) {
			t.Errorf("%s: %q, want %q", target, is, want)
		}
	}
	for _, target := range []string{"/v1/core/cluster/self", "/v2/core/cluster/node/self", "/v2/core/cluster/nodes/self", "/v3/admin/core/cluster/node/self"} {
		if body := f.do("GET", "/nacos"+target, "").Body.String(); !strings.Contains(body, `"address":"10.0.0.1:8848"`) {
			t.Errorf("%s: %s", target, body)
		}
	}
	f.play(t, []step{
		get("/v1/core/cluster/nodes?keyword=x", restOf("[]")),
		get("/v1/core/cluster/simple/nodes", restOf(`["10.0.0.1:8848","10.0.0.2:8848","10.0.0.3:8848"]`)),
		get("/v1/core/cluster/health", restOf(`"UP"`)),
		get("/v2/core/cluster/node/self/health", result(0, "success", `"UP"`)),
		failed("GET /v2/core/cluster/node/list?state=nonsense", "", 23000, "illegal state", "Illegal state: nonsense"),
		failed("GET /v3/admin/core/cluster/node/list?state=nonsense", "", 23000, "illegal state", "Illegal state: nonsense"),
		get("/v1/core/ops/idInfo", restOf("{}")),
		get("/v2/core/ops/ids", restOf("[]")),
		get("/v3/admin/core/ops/ids", result(0, "success", "[]")),
		{"POST /v1/core/cluster/server/leave", `["a"]`, "Content-Type: application/json", 200, js, restError(405, "/v1/core/cluster/server/leave API not allow to use temporarily.")},
		{"DELETE /v2/core/cluster/nodes?addresses=x", "", "", 200, js, restError(405, "DELETE /v2/core/cluster/nodes API not allow to use temporarily.")},
		{"POST /v1/core/cluster/switch/lookup?type=nonsense", "", "", 200, js, restError(500, "The addressing mode exists : nonsense, just support : [[file, address-server]]")},
		{"POST /v1/core/cluster/switch/lookup", "", "", 400, text, "Parameter 'type' is missing"},
		{"POST /v1/core/cluster/switch/lookup?type=file", "", "", 501, js, restError(501, "how members are found is not changed while the node runs: that is --join")},
		failed("PUT /v2/core/cluster/lookup?type=x", "", 20002, "parameter validate error", "The addressing mode exists : x, just support : [[file, address-server]]"),
		failed("PUT /v3/admin/core/cluster/lookup", "", 10000, "parameter missing", "Required request parameter 'type' for method parameter type String is not present"),
		{"GET /v1/core/cluster/leave", "", "", 404, js, springError(404, "Not Found", "No message available", "/nacos/v1/core/cluster/leave")},
		{"DELETE /v1/core/cluster/nodes", "", "", 405, js, springError(405, "Method Not Allowed", "Method 'DELETE' is not supported.", "/nacos/v1/core/cluster/nodes")},
		get("/v2/core/loader/cluster", `{"detail":[{"address":"10.0.0.1:8848","conCount":7,"sdkConCount":7,"cpu":"-1.0","load":"-1.0"}],"avg":7,"max":7,"min":7,"total":7,"threshold":"7.7","memberCount":2,"metricsCount":1,"completed":false}`),
		get("/v2/core/loader/current", `{"1_10.0.0.9_40001":{"metaInfo":{"connectionId":"1_10.0.0.9_40001","connectType":"GRPC"}}}`),
		get("/v3/admin/core/loader/current", result(0, "success", `{"1_10.0.0.9_40001":{"metaInfo":{"connectionId":"1_10.0.0.9_40001","connectType":"GRPC"}}}`)),
		{"GET /v2/core/loader/reloadCurrent?count=1", "", "", 501, js, result(30000, "server error", `"some clients alone are not moved; starling drain moves all of a node, before it is stopped"`)},
	})
	for _, call := range []string{"POST /nacos/v1/core/cluster/report", "PUT /nacos/v2/core/cluster/node/list", "PUT /nacos/v3/admin/core/cluster/node/list",
		"POST /nacos/v3/admin/core/loader/reloadClient", "PUT /nacos/v3/admin/core/cluster/lookup?type=address-server"} {
		method, target, _ := strings.Cut(call, " ")
		if w := f.do(method, target, "{}", "Content-Type: application/json"); w.Code != 501 || w.Header().Get("Content-Type") != js {
			t.Errorf("%s: %d %s", call, w.Code, w.Body)
		}
	}

	f = newFixture(t) // before membership begins
	for target, status := range map[string]int{"/v1/core/cluster/self": 503, "/v1/core/cluster/health": 503, "/v1/core/cluster/nodes": 200, "/v3/admin/core/state": 503, "/serverlist": 200} {
		if w := f.do("GET", "/nacos"+target, ""); w.Code != status {
			t.Errorf("%s: %d %s", target, w.Code, w.Body)
		}
	}
}

func TestRaftCommands(t *testing.T) {
	leads, leader, handed, broken := true, "", 0, error(nil)
	f := newFixture(t, func(o *Options) {
		o.Core.Leads = func() (bool, string) { return leads, leader }
		o.Core.HandOver = func(context.Context) error { handed++; return broken }
	})
	call := func(path, body, header string, status, handsOver int, says string) {
		t.Helper()
		handed = 0
		w := f.do("POST", "/nacos"+path, body, header)
		if w.Code != status || handed != handsOver || !strings.Contains(w.Body.String(), says) {
			t.Errorf("%s %s: %d %s, handed over %d times", path, body, w.Code, w.Body, handed)
		}
	}
	const isJSON = "Content-Type: application/json; charset=utf-8"
	const v1, v2, v3 = "/v1/core/ops/raft", "/v2/core/ops/raft", "/v3/admin/core/ops/raft"
	call(v1, `{"groupId":"naming_persistent_service_v2","command":"transferLeader","value":""}`, isJSON, 200, 1, restError(200, "")[:11])
	call(v2, `{"command":"transferLeader"}`, isJSON, 200, 1, `"noRight":false`)
	call(v3, `{"command":"transferLeader"}`, isJSON, 200, 1, `{"code":0,"message":"success","data":null}`)
	call(v1, `{"command":"transferLeader","value":"10.0.0.1:7848"}`, isJSON, 400, 0, `"code":400`)
	call(v1, `{"command":"transferLeader","groupId":"x"}`, isJSON, 400, 0, "not this raft group : x")
	call(v1, `{"command":"doSnapshot"}`, isJSON, 501, 0, `"code":501`)
	call(v3, `{"command":"removePeer","value":"a"}`, isJSON, 501, 0, "starling members remove")
	call(v3, `{"command":"nonsense"}`, isJSON, 400, 0, `{"code":20002,"message":"parameter validate error","data":"Not support command : nonsense"}`)
	call(v1, `{}`, isJSON, 400, 0, "command is missing")
	call(v1, `{"command":`, isJSON, 400, 0, "")
	call(v2, `[1]`, isJSON, 400, 0, "request body is not the JSON")
	call(v2, `{"command":"transferLeader"}`, "Content-Type: text/plain", 415, 0, `"code":20003`)
	call(v1, `{"command":"transferLeader"}`, "X: y", 415, 0, "Content-Type must be application/json")
	call(v1, `{"command":"`+strings.Repeat("x", 2<<20)+`"}`, isJSON, 413, 0, "over the limit")
	broken = errors.New("none is alive")
	call(v3, `{"command":"transferLeader"}`, isJSON, 503, 1, "none is alive")
	leads, leader = false, "10.0.0.2:8848"
	call(v3, `{"command":"transferLeader"}`, isJSON, 409, 0, "ask 10.0.0.2:8848")
	leader = ""
	call(v3, `{"command":"transferLeader"}`, isJSON, 500, 0, "did not find the Leader node")
}

func TestCoreLog(t *testing.T) {
	var levels []zapcore.Level
	f := newFixture(t, func(o *Options) { o.Operator.SetLogLevel = func(l zapcore.Level) { levels = append(levels, l) } })
	const asJSON = "Content-Type: application/json"
	const v2, v3 = "PUT /v2/core/ops/log", "PUT /v3/admin/core/ops/log"
	missing := func(param string) string {
		return result(10000, "parameter missing", fmt.Sprintf("%q", "Required parameter '"+param+"' type String is not present"))
	}
	f.play(t, []step{
		{"PUT /v1/core/ops/log?logName=core-raft&logLevel=debug", "", "", 200, text, "200"},
		{v2, `{"logName":"core-raft","logLevel":"WARN"}`, asJSON, 200, js, `{"code":200,"message":null,"data":null,"noRight":false}`},
		{v3, `{"logName":"core-raft","logLevel":"ERROR"}`, asJSON, 200, js, result(0, "success", "null")},
		{"PUT /v1/core/ops/log?logName=core-raft", "", "", 400, text, "Parameter 'logLevel' is missing"},
		{v2, `{"logName":" ","logLevel":"WARN"}`, asJSON, 400, js, missing("logName")},
		{v3, `{"logName":"x"}`, asJSON, 400, js, missing("logLevel")},
		{v3, `{"logName":"x","logLevel":7}`, asJSON, 400, js, result(20002, "parameter validate error", `"request body is not the JSON that this takes"`)},
		{v3, `{"logName":"x","logLevel":"LOUD"}`, asJSON, 400, js, result(20002, "parameter validate error", `"Param 'logLevel' is illegal, it should be TRACE, DEBUG, INFO, WARN, ERROR or OFF: LOUD"`)},
		{v2, "logName=x&logLevel=WARN", "", 415, js, result(20003, "media type error", `"Content-Type must be application/json"`)},
	})
	if is := fmt.Sprint(levels); is != "[debug warn error]" {
		t.Errorf("levels %s", is)
	}
}

func TestProbes(t *testing.T) {
	f := newFixture(t, threeMembers)
	state := func(target string) string {
		w := f.do("GET", target, "")
		return fmt.Sprint(w.Code, " ", w.Body)
	}
	const ready = `200 {"code":0,"message":"success","data":"ok"}`
	for _, prefix := range []string{"/nacos", ""} {
		for target, want := range map[string]string{
			"/v1/console/health/liveness": "200 OK", "/v1/console/health/readiness": "200 OK",
			"/v2/console/health/liveness": ready, "/v2/console/health/readiness": ready,
			"/v3/console/health/liveness": ready, "/v3/console/health/readiness": ready,
		} {
			if is := state(prefix + target); is != want {
				t.Errorf("%s%s: %s", prefix, target, is)
			}
		}
	}
	for target, want := range map[string]string{
		"/nacos/v3/admin/core/state/liveness": ready, "/nacos/v3/admin/core/state/readiness": ready,
		"/nacos/actuator/health": `200 {"status":"UP"}`,
	} {
		if is := state(target); is != want {
			t.Errorf("%s: %s", target, is)
		}
	}
	if is := state("/v3/admin/core/state/liveness"); !strings.HasPrefix(is, "404") {
		t.Errorf("an API without the context path: %s", is)
	}
	f.reason = "it waits for a quorum"
	const notReady = ` {"code":30000,"message":"it waits for a quorum","data":null}`
	for target, want := range map[string]string{
		"/v1/console/health/liveness": "200 OK", "/nacos/v1/console/health/readiness": "500 naming not in readiness: it waits for a quorum",
		"/nacos/v2/console/health/liveness": ready, "/nacos/v2/console/health/readiness": "200" + notReady,
		"/nacos/v3/admin/core/state/liveness": ready, "/nacos/v3/admin/core/state/readiness": "200" + notReady,
		"/v3/console/health/liveness": ready, "/v3/console/health/readiness": "500" + notReady,
		"/nacos/actuator/health": `503 {"status":"DOWN"}`,
	} {
		if is := state(target); is != want {
			t.Errorf("not ready, %s: %s", target, is)
		}
	}
	if body := state("/nacos/actuator/prometheus"); !strings.HasPrefix(body, "200") || !strings.Contains(body, "starling_ready 0") {
		t.Errorf("metrics: %s", body)
	}
	for _, target := range []string{"/nacos/v1/console/server/state", "/nacos/v3/admin/core/state"} {
		if body := state(target); !strings.HasPrefix(body, "200") || !strings.Contains(body, `"server_port":"8848"`) || !strings.Contains(body, `"startup_mode":"cluster"`) {
			t.Errorf("%s: %s", target, body)
		}
	}
	for target, want := range map[string]string{"/serverlist": "503", "/prometheus": "503", "/v1/console/namespaces": "503", "/index.html": "200 Starling"} {
		if is := state("/nacos" + target); !strings.HasPrefix(is, want) {
			t.Errorf("not ready, %s: %s", target, is)
		}
	}
}

func TestConfigurationIsNotOffered(t *testing.T) {
	f := newFixture(t)
	for _, call := range []string{"GET /v1/cs/configs?dataId=a&group=b", "POST /v1/cs/configs/listener", "GET /v1/cs", "GET /v2/cs/config", "GET /v3/client/cs/config", "DELETE /v3/admin/cs/config", "PROPFIND /v1/cs/"} {
		method, target, _ := strings.Cut(call, " ")
		w := f.do(method, "/nacos"+target, "a=b")
		if w.Code != 501 || !strings.Contains(w.Body.String(), "naming server") || (w.Header().Get("Content-Type") == js) != !strings.Contains(call, " /v1/") {
			t.Errorf("%s: %d %s %s", call, w.Code, w.Header(), w.Body)
		}
	}
}

func TestServerListAndTargets(t *testing.T) {
	f := newFixture(t, threeMembers)
	f.play(t, []step{
		{"GET /serverlist", "", "", 200, text, "10.0.0.1:8848\r\n"},
		{"GET /serverlist?namespace=x", "", "", 200, text, "10.0.0.1:8848\r\n"},
		{"GET /prometheus", "", "", 200, "application/json; charset=UTF-8", "[]"},
		ok("POST instance?serviceName=a&ip=10.1.1.1&port=80&metadata=zone=a"),
		ok("POST instance?serviceName=a&groupName=g&ip=10.1.1.2&port=80&enabled=false"),
		ok("POST instance?serviceName=b&namespaceId=n&ip=10.1.1.3&port=80"),
	})
	target := func(ip, ns, group, name, more string) string {
		return fmt.Sprintf(`{"targets":["%s:80"],"labels":{"__meta_clusterName":"DEFAULT","__meta_nacos_namespace":%q,"__meta_nacos_group":%q,"__meta_nacos_service":%q%s}}`, ip, ns, group, name, more)
	}
	a, g, n := target("10.1.1.1", "public", "DEFAULT_GROUP", "a", `,"zone":"a"`), target("10.1.1.2", "public", "g", "a", ""), target("10.1.1.3", "n", "DEFAULT_GROUP", "b", "")
	for path, want := range map[string]string{
		"":                                "[" + n + "," + a + "," + g + "]",
		"/namespaceId/public":             "[" + a + "," + g + "]",
		"/namespaceId/n":                  "[" + n + "]",
		"/namespaceId/none":               "[]",
		"/namespaceId/public/service/a":   "[" + a + "," + g + "]",
		"/namespaceId/public/service/b":   "[]",
		"/namespaceId/n/service/b":        "[" + n + "]",
		"/namespaceId/a%20b":              "",
		"/namespaceId/n/service/a%40%40b": "",
	} {
		w := f.do("GET", "/nacos/prometheus"+path, "")
		if want == "" {
			if w.Code != 400 {
				t.Errorf("%s: %d %s", path, w.Code, w.Body)
			}
		} else if w.Code != 200 || w.Body.String() != want {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	if stats := f.registry.Stats(); stats.Services != 3 {
		t.Errorf("%d services; questions made some", stats.Services)
	}
}
