package httpapi

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/starling-registry/starling/pkg/nacos"
)

// An endpoint is a row of the table below: what it takes, so that all of it can
// be wrong.
type endpoint struct {
	route     string         // METHOD path, as in routes; any method without one
	good      string         // parameters of a request that is answered with 200
	needs     string         // those without which it is refused
	takes     string         // those that can be wrong, see badValues; "a:b" is a with values for b
	elsewhere int            // status in a namespace that nobody has used
	but       map[string]int // what is not answered with 400: status by parameter, or by parameter=value
}

const (
	ofService  = " serviceName groupName namespaceId"
	ofInstance = ofService + " clusterName ip port"
	described  = ofInstance + " weight metadata enabled healthy ephemeral"
	batch      = ofService + " instances metadata"

	// What the fixture of the test has.
	atA = "serviceName=a&ip=10.1.1.1&port=80" // of an HTTP client
	atP = "serviceName=p&ip=10.1.1.2&port=80" // persistent, nobody checks it
)

var v1SkipsPages = map[string]int{"pageNo": 200, "pageSize": 200}

var noClient = map[string]int{"clientId": 404}

var endpoints = []endpoint{
	{"POST /v1/ns/instance", atA, "serviceName ip port", described, 200, nil},
	{"DELETE /v1/ns/instance", atA, "serviceName ip port", ofInstance + " ephemeral", 200, nil},
	{"PUT /v1/ns/instance/beat", atA, "serviceName", ofInstance + " beat", 200, nil},
	{"PUT /v1/ns/instance", atA, "serviceName ip port", described, 400, nil},
	{"PATCH /v1/ns/instance", atA + "&weight=2", "serviceName ip port", described, 404, nil},
	{"GET /v1/ns/instance", atA, "serviceName ip port", ofInstance, 404, nil},
	{"GET /v1/ns/instance/list", "serviceName=a", "serviceName", ofService + " clusters clusterName:clusters udpPort", 200, nil},
	{"/v1/ns/instance/statuses", "key=DEFAULT_GROUP@@a", "key", "key", 200, nil},
	{"PUT /v1/ns/instance/metadata/batch", "serviceName=a&metadata=k=v", "serviceName metadata", batch, 200, nil},
	{"DELETE /v1/ns/instance/metadata/batch", "serviceName=a&metadata=k=v", "serviceName metadata", batch, 200, nil},
	{"/v1/ns/api/allDomNames", "", "", "", 200, nil},
	{"/v1/ns/api/srvIPXT", "dom=a", "dom", "dom:serviceName groupName namespaceId clusters udpPort", 200, nil},

	{"POST /v1/ns/service", "serviceName=new", "serviceName", ofService + " metadata protectThreshold selector", 200, nil},
	{"PUT /v1/ns/service", "serviceName=a&protectThreshold=0.5", "serviceName protectThreshold", ofService + " metadata protectThreshold selector", 400, nil},
	{"DELETE /v1/ns/service", "serviceName=described", "serviceName", ofService, 400, nil},
	{"GET /v1/ns/service", "serviceName=a", "serviceName", ofService, 400, nil},
	{"GET /v1/ns/service/list", "pageNo=1&pageSize=10", "pageNo pageSize", "groupName namespaceId pageNo pageSize", 200, v1SkipsPages},
	{"GET /v1/ns/service/selector/types", "", "", "", 200, nil},
	{"GET /v1/ns/service/subscribers", "serviceName=a", "serviceName", ofService + " pageNo pageSize aggregation:healthyOnly", 200, v1SkipsPages},
	{"/v1/ns/service/names", "expr=a", "", "namespaceId expr", 200, nil},

	{"GET /v1/ns/catalog/service", "serviceName=a", "serviceName", ofService, 404, map[string]int{"serviceName=": 404}}, // golden scenario 17
	{"GET /v1/ns/catalog/services", "pageNo=1&pageSize=10", "", "namespaceId pageNo pageSize", 200, nil},
	{"/v1/ns/catalog/instances", "serviceName=a&clusterName=DEFAULT&pageNo=1&pageSize=10", "serviceName clusterName", ofService + " clusterName pageNo pageSize", 404, nil},

	{"PUT /v1/ns/cluster", "serviceName=p&clusterName=c&checkPort=80&useInstancePort4Check=true&healthChecker={\"type\":\"TCP\"}",
		"serviceName clusterName checkPort useInstancePort4Check healthChecker", ofService + " clusterName checkPort:port healthChecker metadata", 400, nil},
	{"PUT /v1/ns/health", atP + "&healthy=true", "serviceName ip port healthy", ofInstance, 400, nil},
	{"PUT /v1/ns/health/instance", atP + "&healthy=true", "serviceName ip port healthy", ofInstance, 400, nil},
	{"GET /v1/ns/health/checkers", "", "", "", 200, nil},
	{"/v1/ns/health/server", "", "", "", 200, nil},

	{"GET /v1/ns/operator/metrics", "", "", "onlyStatus:healthyOnly", 200, nil},
	{"GET /v1/ns/ops/metrics", "onlyStatus=false", "", "onlyStatus:healthyOnly", 200, nil},
	{"GET /v1/ns/operator/switches", "", "", "", 200, nil},
	{"GET /v1/ns/ops/switches", "", "", "", 200, nil},
	{"PUT /v1/ns/operator/switches", "entry=clientBeatInterval&value=5000", "entry value", "value:millis", 200, nil},
	{"PUT /v1/ns/ops/switches", "entry=check&value=true&debug=true", "entry value", "value:bool", 200, nil},
	{"/v1/ns/operator/push/state", "", "", "detail:healthyOnly reset:healthyOnly", 200, nil},
	{"/v1/ns/ops/push/state", "detail=true", "", "detail:healthyOnly reset:healthyOnly", 200, nil},
	{"GET /v1/ns/operator/distro/client", "ip=10.1.1.1&port=80", "ip port", "ip port", 200, nil},
	{"GET /v1/ns/ops/distro/client", "ip=10.1.1.1&port=80", "ip port", "ip port", 200, nil},
	{"PUT /v1/ns/operator/log", "logName=naming-main&logLevel=INFO", "logName logLevel", "logLevel", 200, nil},
	{"PUT /v1/ns/ops/log", "logName=naming-main&logLevel=INFO", "logName logLevel", "logLevel", 200, nil},

	{"POST /v2/ns/instance", atA, "serviceName ip port", described, 200, nil},
	{"DELETE /v2/ns/instance", atA, "serviceName ip port", ofInstance + " ephemeral", 200, nil},
	{"PUT /v2/ns/instance", atA, "serviceName ip port", described, 400, nil},
	{"GET /v2/ns/instance", atA, "serviceName ip port", ofInstance, 404, nil},
	{"GET /v2/ns/instance/list", "serviceName=a", "serviceName", ofService + " clusterName:clusters port:udpPort healthyOnly", 200, nil},
	{"PATCH /v2/ns/instance", "serviceName=DEFAULT_GROUP@@a&ip=10.1.1.1&port=80&weight=2&enabled=true&metadata=k=v", "serviceName ip port weight enabled metadata",
		"serviceName:grouped namespaceId clusterName ip port weight enabled metadata", 404, nil},
	{"PUT /v2/ns/instance/beat", "serviceName=DEFAULT_GROUP@@a&ip=10.1.1.1&port=80", "serviceName", "serviceName:grouped namespaceId clusterName ip port beat", 200, nil},
	{"/v2/ns/instance/statuses/DEFAULT_GROUP@@a", "", "", "", 200, nil},
	{"PUT /v2/ns/instance/metadata/batch", "serviceName=a&metadata=k=v", "serviceName metadata", batch, 200, nil},
	{"DELETE /v2/ns/instance/metadata/batch", "serviceName=a&metadata=k=v", "serviceName metadata", batch, 200, nil},

	{"POST /v2/ns/service", "serviceName=new", "serviceName", ofService + " metadata protectThreshold selector ephemeral", 200, nil},
	{"PUT /v2/ns/service", "serviceName=a", "serviceName", ofService + " metadata protectThreshold selector", 400, nil},
	{"DELETE /v2/ns/service", "serviceName=described", "serviceName", ofService, 400, nil},
	{"GET /v2/ns/service", "serviceName=a", "serviceName", ofService, 400, nil},
	{"GET /v2/ns/service/list", "pageNo=1&pageSize=10", "", "groupName namespaceId pageNo pageSize", 200, nil},
	{"/v2/ns/catalog/instances", "serviceName=a&pageNo=1&pageSize=10", "serviceName", ofService + " pageNo pageSize healthyOnly enabledOnly:healthyOnly", 200, nil},
	{"GET /v2/ns/client", "clientId=" + connID, "clientId", "clientId", 200, noClient},
	{"GET /v2/ns/client/publish/list", "clientId=" + connID, "clientId", "clientId", 200, noClient},
	{"GET /v2/ns/client/subscribe/list", "clientId=" + connID, "clientId", "clientId", 200, noClient},
	{"GET /v2/ns/client/list", "", "", "", 200, nil},
	{"GET /v2/ns/client/service/publisher/list", "serviceName=a", "serviceName", ofService + " ip port ephemeral", 200, nil},
	{"GET /v2/ns/client/service/subscriber/list", "serviceName=a", "serviceName", ofService + " ip port ephemeral", 200, nil},
	{"PUT /v2/ns/health", atP + "&healthy=true", "serviceName ip port healthy", ofInstance + " healthy", 400, nil},
	{"PUT /v2/ns/health/instance", atP + "&healthy=true", "serviceName ip port healthy", ofInstance + " healthy", 400, nil},

	{"GET /v2/ns/operator/metrics", "", "", "onlyStatus:healthyOnly", 200, nil},
	{"GET /v2/ns/ops/metrics", "onlyStatus=false", "", "onlyStatus:healthyOnly", 200, nil},
	{"GET /v2/ns/operator/switches", "", "", "", 200, nil},
	{"GET /v2/ns/ops/switches", "", "", "", 200, nil},
	{"PUT /v2/ns/operator/switches", "entry=tcpHealthParams&value={\"max\":5000,\"min\":1000,\"factor\":0.75}", "entry value", "value:health debug:healthyOnly", 200, nil},
	{"PUT /v2/ns/ops/switches", "entry=overriddenServerStatus&value=UP", "entry value", "value:status debug:healthyOnly", 200, nil},

	{"POST /v3/client/ns/instance", atA, "serviceName ip port", described + " heartBeat", 200, nil},
	{"DELETE /v3/client/ns/instance", atA, "serviceName ip port", ofInstance + " ephemeral", 200, nil},
	{"GET /v3/client/ns/instance/list", "serviceName=a", "serviceName", ofService + " clusterName healthyOnly", 200, map[string]int{"clusterName": 200}}, // golden scenario 40

	{"POST /v3/admin/ns/instance", atA, "serviceName ip port", described, 200, nil},
	{"DELETE /v3/admin/ns/instance", atA, "serviceName ip port", ofInstance + " ephemeral", 200, nil},
	{"PUT /v3/admin/ns/instance", atA, "serviceName ip port", described, 400, nil},
	{"PUT /v3/admin/ns/instance/partial", atA + "&weight=2", "serviceName ip port", described, 404, nil},
	{"GET /v3/admin/ns/instance", atA, "serviceName ip port", ofInstance, 404, nil},
	{"GET /v3/admin/ns/instance/list", "serviceName=a", "serviceName", ofService + " clusterName healthyOnly", 404, map[string]int{"clusterName": 404}},
	{"PUT /v3/admin/ns/instance/metadata/batch", "serviceName=a&metadata=k=v", "serviceName metadata", batch, 200, nil},
	{"DELETE /v3/admin/ns/instance/metadata/batch", "serviceName=a&metadata=k=v", "serviceName metadata", batch, 200, nil},
	{"PUT /v3/admin/ns/instance/beat", atA, "serviceName", ofInstance + " beat", 200, nil},

	{"POST /v3/admin/ns/service", "serviceName=new", "serviceName", ofService + " metadata protectThreshold selector ephemeral", 200, nil},
	{"PUT /v3/admin/ns/service", "serviceName=a", "serviceName", ofService + " metadata protectThreshold selector", 400, nil},
	{"DELETE /v3/admin/ns/service", "serviceName=described", "serviceName", ofService, 400, nil},
	{"GET /v3/admin/ns/service", "serviceName=a", "serviceName", ofService, 400, nil},
	{"GET /v3/admin/ns/service/list", "pageNo=1&pageSize=10", "", "namespaceId pageNo pageSize ignoreEmptyService:healthyOnly withInstances:healthyOnly", 200, nil},
	{"GET /v3/admin/ns/service/selector/types", "", "", "", 200, nil},

	{"GET /v3/admin/ns/service/subscribers", "serviceName=a", "serviceName", ofService + " pageNo pageSize aggregation:healthyOnly", 200, nil},
	{"GET /v3/admin/ns/client", "clientId=" + connID, "clientId", "clientId", 200, noClient},
	{"GET /v3/admin/ns/client/publish/list", "clientId=" + connID, "clientId", "clientId", 200, noClient},
	{"GET /v3/admin/ns/client/subscribe/list", "clientId=" + connID, "clientId", "clientId", 200, noClient},
	{"GET /v3/admin/ns/client/list", "", "", "", 200, nil},
	{"GET /v3/admin/ns/client/service/publisher/list", "serviceName=a", "serviceName", ofService + " ip port ephemeral", 200, nil},
	{"GET /v3/admin/ns/client/service/subscriber/list", "serviceName=a", "serviceName", ofService + " ip port ephemeral", 200, nil},

	{"PUT /v3/admin/ns/cluster", "serviceName=p&clusterName=c&checkPort=80&useInstancePort4Check=true&healthChecker={\"type\":\"TCP\"}",
		"serviceName clusterName checkPort useInstancePort4Check healthChecker", ofService + " clusterName checkPort:port healthChecker metadata useInstancePort4Check:healthy", 400, nil},
	{"PUT /v3/admin/ns/health/instance", atP + "&healthy=true", "serviceName ip port healthy", ofInstance + " healthy", 400, nil},
	{"GET /v3/admin/ns/health/checkers", "", "", "", 200, nil},

	{"GET /v3/admin/ns/ops/metrics", "", "", "onlyStatus:healthyOnly", 200, nil},
	{"GET /v3/admin/ns/ops/switches", "", "", "", 200, nil},
	{"PUT /v3/admin/ns/ops/switches", "entry=limitedUrlMap&value=/a:418", "entry value", "value:urls debug:healthyOnly", 200, nil},
	{"PUT /v3/admin/ns/ops/log", "logName=naming-main&logLevel=INFO", "logName logLevel", "logLevel", 200, nil},
	{"GET /v3/admin/ns/client/distro", "ip=10.1.1.1&port=80", "ip port", "ip port", 200, nil},
}

// covered are the paths that must have a row.
var covered = regexp.MustCompile(`^/v[123]/(client/|admin/)?ns/(instance|service|client|catalog|cluster|health|api|operator|ops)(/|$)`)

// badValues of a parameter in a version.
func badValues(param string, v version) []string {
	long := func(n int) string { return strings.Repeat("x", n) }
	names := []string{long(513), "a b", "a\tb", "名字", "@@a", "g@@", "@@", "g@@a@@b", "g@@@a"}
	var bad []string
	switch param {
	case "serviceName":
		bad = names
	case "grouped", "key":
		bad = append(names, "a")
	case "groupName":
		bad = []string{long(129), "a b", "g/h", "g\x00"}
	case "namespaceId":
		bad = []string{long(65), "a b", "../x", "n.m", "ß"}
	case "clusterName":
		bad = []string{long(65), "a b", "a/b"}
	case "clusters":
		bad = []string{long(65), "a b", "a,b c", strings.Repeat("c,", 3000)}
	case "clientId":
		bad = []string{"x", "10.0.0.7:8080#false", "10.0.0.7:99999#true", "#", long(5000)}
	case "ip":
		bad = []string{long(129), "10.1.1 .1", "地址"}
	case "port":
		bad = []string{"x", "-1", "65536", "80.5", "0x50", "99999999999999999999"}
	case "udpPort":
		bad = []string{"x", "1.5", "9999999999"}
	case "weight":
		bad = []string{"heavy", "-1", "10001", "NaN", "Infinity", "1e999", "1_0"}
	case "metadata":
		bad = []string{"nonsense", `{"a":`, `{"a":{}}`, `["a"]`, "k=" + long(1024)}
	case "pageNo", "pageSize":
		bad = []string{"x", "1.5", "9999999999", "99999999999999999999"}
		if v == v3 {
			bad = append(bad, "0", "-1")
		}
	case "enabled", "healthy", "ephemeral", "heartBeat", "healthyOnly":
		if v != v1 { // there all words mean something
			bad = []string{"maybe", "2"}
		}
	case "instances":
		bad = []string{"[bad", "{}", "[1]", `[{"ip":"10.1.1.1"}]`, `[{"ip":"10.1.1.1","port":-1}]`, `[{"ip":"10.1.1 .1","port":80}]`}
	case "beat":
		bad = []string{"{bad", "[]", "1", `{"ip":"10.1.1.9","port":"x"}`, `{"ip":"10.1.1.9","port":80,"weight":-1}`, `{"ip":"10.1.1.9","port":80,"weight":"1_0"}`, `{"ip":"10.1.1.9","port":80,"cluster":"a b"}`,
			`{"ip":"10.1.1.9","port":80,"metadata":{"k":"` + long(1024) + `"}}`}
	case "protectThreshold":
		if bad = []string{"NaN", "Infinity", "1e999"}; v != v1 {
			bad = append(bad, "x", "0_1")
		}
	case "selector":
		bad = []string{"{bad", "[]", `{"type":"x"}`, `{"type":"label","expression":"x"}`}
	case "healthChecker":
		bad = []string{"{bad", "[]", "null", `{"type":"PING"}`, `{"type":"HTTP","expectedResponseCode":"x"}`}
	case "millis":
		bad = []string{"x", "-1", "1e4", "5000.0", "99999999999999999999", long(3000), long(17000)}
	case "bool":
		bad = []string{"yes", "1", "off", "\x00"}
	case "status":
		bad = []string{"up", "SIDEWAYS", "UP,DOWN"}
	case "health":
		bad = []string{"{bad", "[]", "null", "{}", `{"max":5000,"min":1000,"factor":2}`, `{"max":5000,"min":1,"factor":0.5}`, `{"max":"x"}`}
	case "urls":
		bad = []string{"/a", ":418", "/a:x", "/a:-1", "/a:418,,/b:1", long(17000)}
	case "logLevel":
		bad = []string{"loud", "INFO,DEBUG", "5"}
	case "expr":
		bad = []string{"(", "(?=a)", long(257), "(.{30}){30}"}
	default:
		panic("no bad values of " + param)
	}
	return bad
}

// A refusal is of the shape of its version and tells nothing of the server.
func checkRefusal(t *testing.T, what string, v version, w *httptest.ResponseRecorder) {
	t.Helper()
	body, ctype := w.Body.String(), strings.Join(w.Result().Header["Content-Type"], "; ")
	var members map[string]any
	if ctype == js {
		if err := json.Unmarshal(w.Body.Bytes(), &members); err != nil {
			t.Errorf("%s: %v: %s", what, err, body)
		}
	}
	code, coded := members["code"].(float64)
	switch {
	case ctype == "": // of the parameter check
		coded = strings.HasPrefix(body, "Param '") && strings.HasSuffix(body, crlf)
	case members["path"] != nil: // of the framework
		coded = members["status"] == float64(w.Code) && members["message"] != ""
	case v == v1:
		coded = ctype == text && body != ""
	default:
		coded = coded && code >= 10000 && members["message"] != "" && members["data"] != ""
	}
	if !coded {
		t.Errorf("%s: not the shape of an error: %q %.300s", what, ctype, body)
	}
	if !utf8.ValidString(body) || len(body) > 2000 {
		t.Errorf("%s: %d bytes: %.300q", what, len(body), body)
	}
	for _, leak := range []string{".go:", "goroutine", "panic", "runtime", "java.", "Exception", "httpapi", "json:", "unmarshal"} {
		if strings.Contains(body, leak) {
			t.Errorf("%s: leaks %s: %s", what, leak, body)
		}
	}
	if w.Header().Get("Location") != "" {
		t.Errorf("%s: redirected to %s", what, w.Header().Get("Location"))
	}
}

// state is all that requests can change.
func (f *fixture) state() string {
	b := fmt.Appendf(nil, "%d writes, %d clients, %+v\n", f.durable.writes, f.beats.Clients(), f.registry.Stats())
	for _, namespace := range slices.Sorted(maps.Keys(f.registry.Namespaces())) {
		for k := range f.servicesOf(namespace, "") {
			snap := f.registry.Snapshot(k)
			b = fmt.Appendf(b, "%v %d %+v\n", k, snap.Version, snap.Meta)
			b = append(nacos.AppendInstances(b, snap.Instances, k.Grouped()), '\n')
		}
	}
	return string(b)
}

// TestBadInput: whatever of a request is wrong, it is refused in the shape of
// its version, nothing of the server shows, and nothing is changed. A path that
// has no row in the table fails.
func TestBadInput(t *testing.T) {
	rows := map[string]bool{}
	for _, e := range endpoints {
		method, path, found := strings.Cut(e.route, " ")
		if !found {
			method, path = "", e.route
		}
		rows[method+" "+strings.Replace(path, "DEFAULT_GROUP@@a", "{key}", 1)] = true
		t.Run(e.route, func(t *testing.T) { badInput(t, e, method, path) })
	}
	for _, rt := range newFixture(t).routes() {
		if covered.MatchString(rt.path) && !rows[rt.method+" "+rt.path] {
			t.Errorf("%s %s has no row in the table of bad input", rt.method, rt.path)
		}
		delete(rows, rt.method+" "+rt.path)
	}
	for row := range rows {
		t.Errorf("%s has a row, but is no path", row)
	}
}

func badInput(t *testing.T, e endpoint, method, path string) {
	f, v := newFixture(t, withClients(new([]Subscribed))), versionOf(path)
	f.play(t, []step{
		ok("POST instance?" + atA),
		ok("POST service?serviceName=described"),
		ok("POST instance?ephemeral=false&" + atP),
		ok(`PUT cluster?serviceName=p&clusterName=DEFAULT&checkPort=80&useInstancePort4Check=true&healthChecker={"type":"NONE"}`),
	})
	anyMethod := method == ""
	if anyMethod {
		method = "POST"
	}
	good, err := url.ParseQuery(e.good)
	if err != nil {
		t.Fatal(err)
	}
	before := f.state()
	refused := func(what string, want int, w *httptest.ResponseRecorder) {
		t.Helper()
		if w.Code != want {
			t.Errorf("%s: %d, want %d: %.300s", what, w.Code, want, w.Body)
		}
		if w.Code >= 400 {
			checkRefusal(t, what, v, w)
		}
		if now := f.state(); now != before {
			t.Errorf("%s changed something:\n%s\n%s", what, before, now)
			before = now
		}
	}
	// Parameters go into the query or into a form; the rule is the same.
	send := func(q url.Values) []*httptest.ResponseRecorder {
		all := []*httptest.ResponseRecorder{f.do(method, "/nacos"+path+"?"+q.Encode(), "")}
		if method != "GET" {
			all = append(all, f.do(method, "/nacos"+path, q.Encode(), form))
		}
		return all
	}
	with := func(name string, values ...string) url.Values {
		q := maps.Clone(good)
		q[name] = values
		return q
	}
	status := func(name, value string) int {
		if s, there := e.but[name+"="+value]; there {
			return s
		}
		if s, there := e.but[name]; there && value != "" {
			return s
		}
		return 400
	}

	for name := range strings.FieldsSeq(e.needs) {
		for _, w := range slices.Concat(send(with(name)), send(with(name, "")), send(with(name, " "))) {
			refused("without "+name, status(name, ""), w)
			if v != v1 && !strings.Contains(w.Body.String(), `"code":10000,"message":"parameter missing"`) {
				t.Errorf("without %s: %s", name, w.Body)
			}
		}
		q := with(name)
		refused(name+" with a bad escape", status(name, ""), f.do(method, "/nacos"+path+"?"+q.Encode()+"&"+name+"=%zz", ""))
	}
	for param := range strings.FieldsSeq(e.takes) {
		name, like, _ := strings.Cut(param, ":")
		for _, value := range badValues(cmp.Or(like, name), v) {
			what := fmt.Sprintf("%s=%.40s", name, value)
			for _, w := range slices.Concat(send(with(name, value)), send(with(name, value, good.Get(name)))) {
				refused(what, status(name, value), w)
			}
		}
	}
	if e.needs != "" && method != "GET" { // golden scenario 03
		b, _ := json.Marshal(good)
		name, _, _ := strings.Cut(e.needs, " ")
		refused("JSON instead of a form", status(name, ""), f.do(method, "/nacos"+path, string(b), "Content-Type: application/json"))
	}
	if method != "GET" {
		refused("a body over the limit", 413, f.do(method, "/nacos"+path+"?"+e.good, strings.Repeat("x", f.opts.MaxRequestBytes+1), form))
	}
	var many strings.Builder
	many.WriteString(strings.Repeat("&", 2*maxParams))
	for n := range maxParams + 1 {
		fmt.Fprintf(&many, "&p%d=x", n)
	}
	refused("too many parameters", 400, f.do(method, "/nacos"+path+"?"+many.String(), ""))

	// Other methods, and paths that look like this one.
	has := map[string]bool{}
	for _, rt := range f.routes() {
		has[rt.method+" "+rt.path] = true
	}
	for _, other := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW", "get"} {
		if anyMethod || has[other+" "+path] {
			continue
		}
		w := f.do(other, "/nacos"+path+"?"+url.Values(good).Encode(), "")
		want := 405
		if v == v1 {
			want = 501
		} else if !strings.Contains(w.Header().Get("Allow"), method) {
			t.Errorf("%s: allowed is %q", other, w.Header().Get("Allow"))
		}
		refused("method "+other, want, w)
	}
	dir, last := path[:strings.LastIndex(path, "/")], path[strings.LastIndex(path, "/")+1:]
	for _, trick := range []string{
		path + "/", path + "//", dir + "//" + last, dir + "/./" + last, dir + "/x/../" + last, dir + "/%2e/" + last, dir + "/x/%2e%2e/" + last,
		dir + "/..%2f" + last, dir + "%2f" + last, dir + ";a=b/" + last, dir + "/;/" + last, strings.Replace(path, "/ns/", "/NS/", 1), path + "/..", path + "%2f..",
		path + ";a=b", dir + "/" + strings.ToUpper(last), path + "%00", path + "%20",
	} {
		if strings.Contains(last, "@@") && strings.HasPrefix(trick, dir+"/") && !strings.ContainsAny(trick[len(dir)+1:], "/") && !strings.Contains(trick, "..") {
			continue // it is another service
		}
		w := f.do(method, "/nacos"+trick+"?"+url.Values(good).Encode(), "")
		want := 404
		if v == v1 && w.Code == 501 { // what is clean and unknown
			want = 501
		}
		refused("path "+trick, want, w)
	}

	// A namespace that nobody has used is no error of itself, and reading
	// there makes nothing.
	for _, w := range send(with("namespaceId", "nowhere"))[:1] {
		if w.Code != e.elsewhere {
			t.Errorf("in an unknown namespace: %d, want %d: %s", w.Code, e.elsewhere, w.Body)
		}
		if now := f.state(); now != before && method == "GET" {
			t.Errorf("reading in an unknown namespace changed something:\n%s\n%s", before, now)
		}
	}

	// In the end what is good: of several values the first counts, and the
	// query comes before the form.
	twice, worse := maps.Clone(good), url.Values{}
	for param := range strings.FieldsSeq(e.takes) {
		name, like, _ := strings.Cut(param, ":")
		if bad := badValues(cmp.Or(like, name), v); good.Has(name) && len(bad) > 0 {
			twice[name], worse[name] = []string{good.Get(name), bad[0]}, bad[:1]
		}
	}
	if w := f.do(method, "/nacos"+path+"?"+twice.Encode(), worse.Encode(), form); w.Code != 200 {
		t.Errorf("what is good: %d %s", w.Code, w.Body)
	}
}
