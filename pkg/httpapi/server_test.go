package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest"
	"go.uber.org/zap/zaptest/observer"

	"github.com/starling-registry/starling/pkg/health"
	"github.com/starling-registry/starling/pkg/registry"
)

type fixture struct {
	*Server
	registry *registry.Registry
	beats    *health.Beats
	durable  *memLog
	tables   *memTables
	metrics  *prometheus.Registry
	logs     *observer.ObservedLogs
	reason   string // why the node is not ready; "": it is
}

func newFixture(t testing.TB, change ...func(*Options)) *fixture {
	ro := registry.DefaultOptions()
	f := &fixture{metrics: prometheus.NewRegistry(), durable: newMemLog(ro.Clock), tables: newMemTables()}
	ro.OverrideOver = f.durable.end
	f.registry = registry.New(ro)
	f.durable.registry = f.registry
	core, logs := observer.New(zap.DebugLevel)
	f.logs = logs
	ho := health.DefaultOptions()
	ho.Registry, ho.Logger, ho.Metrics = f.registry, zaptest.NewLogger(t), f.metrics
	f.beats = health.NewBeats(ho)
	o := DefaultOptions()
	o.Registry, o.Beats, o.Logger, o.Metrics, o.Gatherer = f.registry, f.beats, zap.New(core), f.metrics, f.metrics
	o.Ready = func() (bool, string) { return f.reason == "", f.reason }
	o.Durable, o.Explain = f.durable, explain
	o.Namespaces, o.Accounts = f.tables, f.tables
	o.Operator.SetLogLevel = func(zapcore.Level) {}
	for _, c := range change {
		c(&o)
	}
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	f.Server = New(o)
	f.passwords.rounds = 10
	return f
}

// do sends one request. Headers are "Name: value".
func (f *fixture) do(method, target, body string, headers ...string) *httptest.ResponseRecorder {
	u, err := url.ParseRequestURI(target) // as net/http does
	if err != nil {
		panic(err)
	}
	r := httptest.NewRequest("GET", "/", strings.NewReader(body))
	r.Method, r.RequestURI, r.URL = method, target, u
	for _, h := range headers {
		k, v, _ := strings.Cut(h, ": ")
		r.Header.Set(k, v)
	}
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r)
	return w
}

// A step is a request and the recorded answer to it. Lists and errors of the
// framework are compared as JSON without their times.
type step struct {
	call   string // "METHOD path?query", below /nacos/v1/ns unless it begins with a slash
	form   string // sent as a form
	header string
	status int
	ctype  string
	body   string
}

const (
	text = "text/plain;charset=UTF-8"
	js   = "application/json"
	form = "Content-Type: application/x-www-form-urlencoded"
	crlf = "\r\n"
)

var isoTime = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00$`)

func (f *fixture) play(t *testing.T, steps []step) {
	t.Helper()
	for i, s := range steps {
		method, target, _ := strings.Cut(s.call, " ")
		var headers []string
		if s.form != "" {
			headers = append(headers, form)
		}
		if s.header != "" {
			headers = append(headers, s.header)
		}
		if target[0] != '/' {
			target = "/v1/ns/" + target
		}
		w := f.do(method, "/nacos"+target, s.form, headers...)
		name := fmt.Sprintf("step %d, %.120s %s %s", i, s.call, s.form, s.header)
		if w.Code != s.status {
			t.Errorf("%s: status %d, want %d (%s)", name, w.Code, s.status, w.Body)
		}
		if ct := strings.Join(w.Result().Header["Content-Type"], "; "); ct != s.ctype {
			t.Errorf("%s: content type %q, want %q", name, ct, s.ctype)
		}
		if strings.HasPrefix(s.body, "{") {
			is, want := decode(t, w.Body.String()), decode(t, s.body)
			if !reflect.DeepEqual(is, want) {
				t.Errorf("%s:\n  is   %s\n  want %s", name, w.Body, s.body)
			}
		} else if w.Body.String() != s.body {
			t.Errorf("%s: body %q, want %q", name, w.Body, s.body)
		}
	}
}

func decode(t *testing.T, s string) map[string]any {
	t.Helper()
	var m map[string]any
	d := json.NewDecoder(strings.NewReader(s))
	d.UseNumber() // 1 is not 1.0
	if err := d.Decode(&m); err != nil {
		t.Fatalf("%q: %v", s, err)
	}
	info := m
	if data, ok := m["data"].(map[string]any); ok {
		info = data
	}
	if n, ok := info["lastRefTime"].(json.Number); ok {
		if ms, err := n.Int64(); err != nil || ms < 1e12 || ms > 1e14 {
			t.Errorf("lastRefTime %v", n)
		}
		delete(info, "lastRefTime")
	}
	if ts, ok := m["timestamp"].(string); ok {
		if !isoTime.MatchString(ts) {
			t.Errorf("timestamp %q", ts)
		}
		delete(m, "timestamp")
	}
	return m
}

// list is the recorded answer to a list request, plus the spelling of allIPs
// of the 2.x clients.
func list(group, name, clusters string, hosts ...string) string {
	return fmt.Sprintf(`{"allIPs":false,"allIps":false,"cacheMillis":10000,"checksum":"","clusters":%q,"groupName":%q,"hosts":[%s],"name":%q,"reachProtectionThreshold":false,"valid":true}`,
		clusters, group, strings.Join(hosts, ","), group+"@@"+name)
}

// host is the recorded form of one without metadata.
func host(ip string, port int, cluster, grouped, weight string) string {
	return fmt.Sprintf(`{"clusterName":%q,"enabled":true,"ephemeral":true,"healthy":true,"instanceHeartBeatInterval":5000,"instanceHeartBeatTimeOut":15000,`+
		`"instanceId":"%s#%d#%s#%s","instanceIdGenerator":"simple","ip":%q,"ipDeleteTimeout":30000,"metadata":{},"port":%d,"serviceName":%q,"weight":%s}`,
		cluster, ip, port, cluster, grouped, ip, port, grouped, weight)
}

// withMetadata is host with metadata, whose generator is then left out.
func withMetadata(host, md string) string {
	return strings.Replace(strings.Replace(host, `"instanceIdGenerator":"simple",`, "", 1), `"metadata":{}`, `"metadata":`+md, 1)
}

func springError(status int, reason, message, path string) string {
	return fmt.Sprintf(`{"error":%q,"message":%q,"path":%q,"status":%d}`, reason, message, path, status)
}

func ok(call string) step { return step{call: call, status: 200, ctype: text, body: "ok"} }

func TestRegister(t *testing.T) { // golden scenario 01
	const d = "DEFAULT_GROUP"
	newFixture(t).play(t, []step{
		ok("POST instance?serviceName=a&ip=10.1.1.1&port=8080"),
		{"GET instance/list?serviceName=a", "", "", 200, js, list(d, "a", "", host("10.1.1.1", 8080, "DEFAULT", d+"@@a", "1.0"))},
		{"GET instance?serviceName=a&ip=10.1.1.1&port=8080", "", "", 200, js,
			`{"clusterName":"DEFAULT","healthy":true,"instanceId":"10.1.1.1#8080#DEFAULT#DEFAULT_GROUP@@a","ip":"10.1.1.1","metadata":{},"port":8080,"service":"DEFAULT_GROUP@@a","weight":1.0}`},
		ok("POST instance?serviceName=a&ip=10.1.1.1&port=8080"),
		{"POST instance", "serviceName=a&ip=10.1.1.2&port=8080", "", 200, text, "ok"},
		{"POST instance?serviceName=a", "ip=10.1.1.3&port=8080", "", 200, text, "ok"},
		{"POST instance?serviceName=a&ip=10.1.1.4&port=8080&weight=3", "weight=7", "", 200, text, "ok"},
		{"GET instance/list?serviceName=a", "", "", 200, js, list(d, "a", "",
			host("10.1.1.1", 8080, "DEFAULT", d+"@@a", "1.0"), host("10.1.1.2", 8080, "DEFAULT", d+"@@a", "1.0"),
			host("10.1.1.3", 8080, "DEFAULT", d+"@@a", "1.0"), host("10.1.1.4", 8080, "DEFAULT", d+"@@a", "3.0"))},
		ok("DELETE instance?serviceName=a&ip=10.1.1.1&port=8080"),
		{"DELETE instance", "serviceName=a&ip=10.1.1.2&port=8080", "", 200, text, "ok"}, // early Python SDKs
		ok("DELETE instance?serviceName=a&ip=10.1.1.3&port=8080&clusterName=other"),     // http-api §5.2
		ok("DELETE instance?serviceName=a&ip=10.9.9.9&port=8080"),
		ok("DELETE instance?serviceName=none&ip=10.9.9.9&port=8080"),
		{"GET instance/list?serviceName=a", "", "", 200, js, list(d, "a", "", host("10.1.1.4", 8080, "DEFAULT", d+"@@a", "3.0"))},
	})
}

func TestRegisterErrors(t *testing.T) { // golden scenario 03
	const in = "POST instance?serviceName=a&ip=10.1.1.1&port=80"
	long := func(n int) string { return strings.Repeat("x", n) }
	illegal := func(p string) string {
		return "Param '" + p + "' is illegal, illegal characters should not appear in the param." + crlf
	}
	tooLong := func(p, n string) string {
		return "Param '" + p + "' is illegal, the param length should not exceed " + n + "." + crlf
	}
	const badPort = "Param 'port' is illegal, the value should be between 0 and 65535." + crlf
	const weights = "instance format invalid: The weights range from 0.0 to 10000.0"
	filter := func(reason string) string {
		return springError(400, "Bad Request", "Service name filter error,caused: Param 'serviceName' is illegal, "+reason+";", "/nacos/v1/ns/instance")
	}
	f := newFixture(t)
	f.play(t, []step{
		{"POST instance", "", "", 400, text, "Param 'serviceName' is required."},
		{"POST instance?ip=10.1.1.1&port=80", "", "", 400, text, "Param 'serviceName' is required."},
		{"POST instance?serviceName=&ip=10.1.1.1&port=80", "", "", 400, text, "Param 'serviceName' is required."},
		{"POST instance?serviceName=a&port=80", "", "", 400, text, "Param 'ip' is required."},
		{"POST instance?serviceName=a&ip=&port=80", "", "", 400, text, "Param 'ip' is required."},
		{"POST instance?serviceName=a&ip=10.1.1.1", "", "", 400, text, "Param 'port' is required."},
		{"POST instance?serviceName=a&ip=10.1.1.1&port=abc", "", "", 400, "", badPort},
		{"POST instance?serviceName=a&ip=10.1.1.1&port=70000", "", "", 400, "", badPort},
		{"POST instance?serviceName=a&ip=10.1.1.1&port=-1", "", "", 400, "", badPort},
		{"POST instance?serviceName=a&ip=10.1.1.1&port=80.5", "", "", 400, "", badPort},
		{"POST instance?serviceName=a&ip=10.1.1.1&port=99999999999", "", "", 400, "", badPort},
		{"POST instance?serviceName=a&ip=10.1.1.1&port=99999999999999999999", "", "", 400, "", badPort},
		{in + "&weight=-1", "", "", 400, text, weights},
		{in + "&weight=10000.5", "", "", 400, text, weights},
		{in + "&weight=heavy", "", "", 400, text, `For input string: "heavy"`},
		{in + "&weight=NaN", "", "", 400, text, weights}, // Nacos takes it and shows 1.0
		{in + "&weight=1e999", "", "", 400, text, weights},
		{in + "&metadata=nonsense", "", "", 400, text, "metadata format incorrect:nonsense"}, // Nacos: 500
		{in + `&metadata={"a":`, "", "", 400, text, `metadata format incorrect:{"a":`},
		{in + `&metadata={"a":{"b":1}}`, "", "", 400, text, `metadata format incorrect:{"a":{"b":1}}`},
		{in + `&metadata=` + long(3000), "", "", 400, text, "metadata format incorrect:" + long(1024) + "…"},
		{in + `&metadata={"big":"` + long(2000) + `"}`, "", "", 400, "", tooLong("Metadata", "1024")},
		{"POST instance?serviceName=a%20b&ip=10.1.1.1&port=80", "", "", 400, "", illegal("serviceName")},
		{"POST instance?serviceName=a世&ip=10.1.1.1&port=80", "", "", 400, "", illegal("serviceName")},
		{"POST instance?serviceName=@a&ip=10.1.1.1&port=80", "", "", 400, "", illegal("serviceName")},
		{"POST instance?serviceName=g@@%20a&ip=10.1.1.1&port=80", "", "", 400, "", illegal("serviceName")},
		{"POST instance?serviceName=@@a&ip=10.1.1.1&port=80", "", "", 400, js, filter("groupName can't be empty")},
		{"POST instance?serviceName=%C2%A0@@a&ip=10.1.1.1&port=80", "", "", 400, js, filter("groupName can't be empty")},
		{"POST instance?serviceName=g@@&ip=10.1.1.1&port=80", "", "", 400, js, filter("it should be format as 'groupName@@serviceName'")},
		{"POST instance?serviceName=@@&ip=10.1.1.1&port=80", "", "", 400, js, filter("it should be format as 'groupName@@serviceName'")},
		{"POST instance?serviceName=g@@@@&ip=10.1.1.1&port=80", "", "", 400, js, filter("it should be format as 'groupName@@serviceName'")},
		{"POST instance?serviceName=g@@a@@c&ip=10.1.1.1&port=80", "", "", 400, "", illegal("serviceName")},
		{"POST instance?serviceName=" + long(521) + "&ip=10.1.1.1&port=80", "", "", 400, "", tooLong("serviceName", "512")},
		{in + "&groupName=a%20b", "", "", 400, "", illegal("group")},
		{in + "&groupName=" + long(129), "", "", 400, "", tooLong("group", "128")},
		{in + "&namespaceId=a%20b", "", "", 400, "", illegal("namespaceId/tenant")},
		{in + "&namespaceId=" + long(65), "", "", 400, "", tooLong("namespaceId/tenant", "64")},
		{in + "&clusterName=a,b", "", "", 400, "", illegal("cluster")},
		{in + "&clusterName=a_b", "", "", 400, text, "Instance 'clusterName' should be characters with only 0-9a-zA-Z-. (current: a_b)"},
		{in + "&clusterName=" + long(65), "", "", 400, "", tooLong("cluster", "64")},
		{"POST instance?serviceName=a&port=80&ip=a%20b", "", "", 400, "", illegal("ip")},
		{"POST instance?serviceName=a&port=80&ip=%2010.0.0.1%20", "", "", 400, "", illegal("ip")},
		{"POST instance?serviceName=a&port=80&ip=" + long(129), "", "", 400, "", tooLong("ip", "128")},
		{in + `&metadata={"preserved.heart.beat.interval":"5000","preserved.heart.beat.timeout":"1000"}`, "", "", 400, text,
			"Instance 'heart beat interval' must less than 'heart beat timeout' and 'ip delete timeout'."},
		{in + `&metadata=preserved.instance.id.generator=x`, "", "", 400, text, "The InstanceIdGenerator type is not found "},
		{"POST instance?serviceName=a&port=80", "", "Accept: application/json", 400, js, "Param 'ip' is required."},
		{"POST instance?serviceName=a&port=80", "", "Accept: text/html,application/json", 400, text, "Param 'ip' is required."},
	})
	w := f.do("POST", "/nacos/v1/ns/instance", `{"serviceName":"a","ip":"10.1.1.1","port":80}`, "Content-Type: application/json")
	if w.Code != 400 || w.Body.String() != "Param 'serviceName' is required." {
		t.Errorf("a JSON body: %d %s", w.Code, w.Body)
	}
	if n := f.registry.Stats(); n.Services != 0 {
		t.Errorf("refused requests made %d services", n.Services)
	}
	f.play(t, []step{
		{in, "", "Accept: application/json", 200, js, "ok"},
		ok(in + "&weight=10000&metadata=k=v,k2=v2"),
		ok(in + "&metadata=None&clusterName=None"), // early Python SDKs
		{"GET instance/list?serviceName=a", "", "", 200, js, list("DEFAULT_GROUP", "a", "", host("10.1.1.1", 80, "None", "DEFAULT_GROUP@@a", "1.0"))},
	})
}

func TestGroupedNames(t *testing.T) { // golden scenario 04
	two, three := host("10.1.1.2", 80, "DEFAULT", "g@@a", "1.0"), host("10.1.1.3", 80, "DEFAULT", "g@@a", "1.0")
	newFixture(t).play(t, []step{
		ok("POST instance?serviceName=g@@a&ip=10.1.1.1&port=80"),
		ok("POST instance?serviceName=g@@a&groupName=other&ip=10.1.1.2&port=80"),
		ok("POST instance?serviceName=a&groupName=g&ip=10.1.1.3&port=80"),
		{"GET instance/list?serviceName=g@@a", "", "", 200, js, list("g", "a", "", host("10.1.1.1", 80, "DEFAULT", "g@@a", "1.0"), two, three)},
		{"GET instance/list?serviceName=a&groupName=g", "", "", 200, js, list("g", "a", "", host("10.1.1.1", 80, "DEFAULT", "g@@a", "1.0"), two, three)},
		{"GET instance/list?serviceName=a", "", "", 200, js, list("DEFAULT_GROUP", "a", "")},
		{"GET instance?serviceName=g@@a&groupName=g&ip=10.1.1.1&port=80", "", "", 200, js,
			`{"clusterName":"DEFAULT","healthy":true,"instanceId":"10.1.1.1#80#DEFAULT#g@@a","ip":"10.1.1.1","metadata":{},"port":80,"service":"g@@a","weight":1.0}`},
		{"GET instance/list?serviceName=a@b&groupName=g", "", "", 200, js, list("g", "a@b", "")},
		{"GET instance/list?serviceName=providers:com.example.Api:1.0.0:&groupName=g", "", "", 200, js, list("g", "providers:com.example.Api:1.0.0:", "")},
		{"GET instance/list?serviceName=@@a", "", "", 400, js,
			springError(400, "Bad Request", "Service name filter error,caused: Param 'serviceName' is illegal, groupName can't be empty;", "/nacos/v1/ns/instance/list")},
		ok("DELETE instance?serviceName=g@@a&ip=10.1.1.1&port=80"),
		{"GET instance/list?serviceName=g@@a", "", "", 200, js, list("g", "a", "", two, three)},
	})
}

func TestUpdateAndPatch(t *testing.T) { // golden scenario 06
	const q = "?serviceName=a&ip=10.1.1.1&port=80"
	const d = "DEFAULT_GROUP"
	lst := func(weight, md string) step {
		return step{"GET instance/list?serviceName=a", "", "", 200, js, list(d, "a", "", withMetadata(host("10.1.1.1", 80, "DEFAULT", d+"@@a", weight), md))}
	}
	det := func(weight, md string) step {
		return step{"GET instance" + q, "", "", 200, js,
			`{"clusterName":"DEFAULT","healthy":true,"instanceId":"10.1.1.1#80#DEFAULT#DEFAULT_GROUP@@a","ip":"10.1.1.1","metadata":` + md + `,"port":80,"service":"DEFAULT_GROUP@@a","weight":` + weight + `}`}
	}
	f := newFixture(t)
	f.play(t, []step{
		{"PUT instance" + q, "", "", 400, text, "service not found, namespace: public, service: Service{namespace='public', group='DEFAULT_GROUP', name='a', ephemeral=true, revision=0}"},
		{"PATCH instance" + q + "&weight=2", "", "", 404, text, "no ips found for cluster DEFAULT in service DEFAULT_GROUP@@a"},
		ok("POST instance" + q + `&weight=5&metadata={"a":"1","b":"2"}`),
		lst("5.0", `{"a":"1","b":"2"}`),
		ok("PUT instance" + q + `&weight=3&metadata={"b":"two","c":"3"}`),
		lst("3.0", `{"a":"1","b":"two","c":"3"}`),
		det("3.0", `{"a":"1","b":"two","c":"3"}`),
		ok("PUT instance" + q + "&enabled=false"),
		{"GET instance/list?serviceName=a", "", "", 200, js, list(d, "a", "")},
		det("1.0", `{"a":"1","b":"2"}`),
		ok("PATCH instance" + q + "&enabled=true"),
		lst("1.0", `{"a":"1","b":"2"}`),
		{"PATCH instance", `serviceName=a&ip=10.1.1.1&port=80&weight=9&metadata=%7B%22d%22%3A%224%22%7D`, "", 200, text, "ok"},
		lst("9.0", `{"a":"1","b":"2","d":"4"}`),
		{"PATCH instance?serviceName=a&ip=10.1.1.9&port=80&weight=2", "", "", 404, text, "no matched ip found!"},
		{"PATCH instance" + q + "&cluster=nope&weight=2", "", "", 404, text, "no matched ip found!"},
		ok("PATCH instance" + q),
		{"PATCH instance?serviceName=a&ip=10.1.1.1", "", "", 400, text, "Param 'port' is required."},
		{"PATCH instance?serviceName=a&port=80", "", "", 400, text, "Param 'ip' is required."},
		{"PATCH instance" + q + "&weight=x", "", "", 400, text, `For input string: "x"`},
		ok("PUT instance?serviceName=a&ip=10.1.1.9&port=80&weight=2"),
		{"PUT instance?serviceName=a&port=80", "", "", 400, text, "Param 'ip' is required."},
		{"PUT instance" + q + "&weight=20000", "", "", 400, text, "instance format invalid: The weights range from 0.0 to 10000.0"},
		lst("9.0", `{"a":"1","b":"2","d":"4"}`),
		ok("POST instance" + q + `&weight=5&metadata={"a":"new"}`),
		lst("9.0", `{"a":"new","d":"4"}`),
		ok("PATCH instance" + q + `&metadata={}`), // the edit's own map is replaced
		lst("9.0", `{"a":"new"}`),
		ok("PATCH instance" + q + `&healthy=false`), // no effect (http-api §5.4)
		lst("9.0", `{"a":"new"}`),
		// The Go SDK's body; Nacos fails on the percent sign.
		{"PUT instance", `serviceName=a&ip=10.1.1.1&port=80&weight=4&metadata={"e":"a+b%"}`, "", 200, text, "ok"},
		lst("4.0", `{"a":"new","e":"a+b%"}`),

		ok("POST instance?serviceName=w&ip=10.1.1.1&port=80&weight=5"),
		ok(`PATCH instance?serviceName=w&ip=10.1.1.1&port=80&metadata={"x":"1"}`),
		// Nacos resets the weight to 1.0; what is not given is not touched.
		{"GET instance/list?serviceName=w", "", "", 200, js, list(d, "w", "", withMetadata(host("10.1.1.1", 80, "DEFAULT", d+"@@w", "5.0"), `{"x":"1"}`))},

		// The other kind, golden scenario 15.
		ok("PUT instance" + q + "&weight=3&ephemeral=false"),
		lst("3.0", `{"a":"new"}`),
	})
}

func TestDetail(t *testing.T) { // golden scenario 07
	const found = `{"clusterName":"c1","healthy":true,"instanceId":"10.1.1.1#80#c1#DEFAULT_GROUP@@a","ip":"10.1.1.1","metadata":{"z":"1"},"port":80,"service":"DEFAULT_GROUP@@a","weight":1.0}`
	newFixture(t).play(t, []step{
		{"GET instance?serviceName=a&ip=10.1.1.1&port=80", "", "", 404, text, "no ips found for cluster DEFAULT in service DEFAULT_GROUP@@a"},
		ok(`POST instance?serviceName=a&ip=10.1.1.1&port=80&clusterName=c1&metadata={"z":"1"}`),
		{"GET instance?serviceName=a&ip=10.1.1.1&port=80&clusterName=c1", "", "", 200, js, found},
		{"GET instance?serviceName=a&ip=10.1.1.1&port=80&cluster=c1", "", "", 200, js, found}, // Nacos: 404 (http-api §5.5)
		{"GET instance?serviceName=a&ip=10.1.1.1&port=80", "", "", 404, text, "no matched ip found!"},
		{"GET instance?serviceName=a&ip=10.1.1.1&port=81&clusterName=c1", "", "", 404, text, "no matched ip found!"},
		{"GET instance?serviceName=a&ip=10.1.1.1&clusterName=c1", "", "", 400, text, "Param 'port' is required."},
		{"GET instance?serviceName=a&port=80&clusterName=c1", "", "", 400, text, "Param 'ip' is required."},
		{"GET instance?ip=10.1.1.1&port=80", "", "", 400, text, "Param 'serviceName' is required."},
		{"GET instance?serviceName=a&ip=10.1.1.1&port=x&clusterName=c1", "", "", 400, "", "Param 'port' is illegal, the value should be between 0 and 65535." + crlf},
		{"GET instance?serviceName=a&ip=10.1.1.1&port=80&clusterName=c1&healthyOnly=true", "", "", 200, js, found},
	})
}

func TestList(t *testing.T) { // golden scenario 08
	const d, g = "DEFAULT_GROUP", "DEFAULT_GROUP@@a"
	c1, c2 := host("10.1.1.1", 80, "c1", g, "1.0"), host("10.1.1.2", 80, "c2", g, "1.0")
	c3 := strings.Replace(host("10.1.1.3", 80, "c3", g, "1.0"), `"healthy":true`, `"healthy":false`, 1)
	all := list(d, "a", "", c1, c2, c3)
	lst := func(query, body string) step { return step{"GET instance/list?" + query, "", "", 200, js, body} }
	const badCluster = "Param 'cluster' is illegal, illegal characters should not appear in the param." + crlf
	f := newFixture(t)
	f.play(t, []step{
		lst("serviceName=a", list(d, "a", "")),
		lst("serviceName=a&clusters=c1,c2", list(d, "a", "c1,c2")),
		ok("POST instance?serviceName=a&ip=10.1.1.1&port=80&clusterName=c1"),
		ok("POST instance?serviceName=a&ip=10.1.1.2&port=80&clusterName=c2"),
		ok("POST instance?serviceName=a&ip=10.1.1.3&port=80&clusterName=c3&healthy=false"),
		ok("POST instance?serviceName=a&ip=10.1.1.4&port=80&namespaceId=ns"),
		lst("serviceName=a", all),
		lst("serviceName=a&clusters=c1", list(d, "a", "c1", c1)),
		lst("serviceName=a&clusters=c2,c1", list(d, "a", "c2,c1", c1, c2)),
		{"GET instance/list?serviceName=a&clusters=c1,%20c2", "", "", 400, "", badCluster},
		lst("serviceName=a&clusters=c1,c1", list(d, "a", "c1,c1", c1)),
		lst("serviceName=a&clusters=none", list(d, "a", "none")),
		{"GET instance/list?serviceName=a&clusters=a@b", "", "", 400, "", badCluster},
		lst("serviceName=a&clusterName=c1", list(d, "a", "c1", c1)), // Nacos: all (http-api §5.6)
		lst("serviceName=a&healthyOnly=true", list(d, "a", "", c1, c2)),
		lst("serviceName=a&healthyOnly=True", list(d, "a", "", c1, c2)), // Python
		lst("serviceName=a&healthyOnly=yes", all),
		lst("serviceName=a&clusters=c3&healthyOnly=true", list(d, "a", "c3")),
		lst("serviceName=a&clusters=c3", list(d, "a", "c3", c3)),
		lst("serviceName=a&namespaceId=ns", list(d, "a", "", host("10.1.1.4", 80, "DEFAULT", g, "1.0"))),
		lst("serviceName=a&namespaceId=", all), // cases C21
		lst("serviceName=a&namespaceId=public&clusters=", all),
		lst("serviceName=a&tenant=t&tid=x&env=e&isCheck=false&app=demo", all),
		lst("serviceName=a&username=nacos&password=wrong&accessToken=junk", all),
		{"GET instance/list", "", "", 400, text, "Param 'serviceName' is required."},
		{"GET instance/list?serviceName=", "", "", 400, text, "Param 'serviceName' is required."},
		{"GET instance/list?serviceName=a&udpPort=x", "", "", 400, text, `For input string: "x"`},
		lst("serviceName=a&udpPort=70000", all),
		lst("serviceName=a&udpPort=34567&clientIP=127.0.0.1", all), // cases C24
		{"GET instance/list?serviceName=a%20b", "", "", 400, "", "Param 'serviceName' is illegal, illegal characters should not appear in the param." + crlf},
		lst("serviceName=a&clusters=c1&clusters=c2", list(d, "a", "c1", c1)),
		{"GET instance/list?serviceName=%zz", "", "", 400, text, "Param 'serviceName' is required."},
		{"GET instance/list", "serviceName=a&clusters=c1", "", 400, text, "Param 'serviceName' is required."},
		{"GET instance/list?serviceName=a&clusters=c1", "", "User-Agent: Nacos-Java-Client:v1.4.2", 200, js, list(d, "a", "c1", c1)},
		{"GET instance/list?serviceName=a&clusters=c1", "", "Accept: text/html", 200, js, list(d, "a", "c1", c1)}, // Nacos: 500
	})
	// The Go SDK starts its query with ?& (http-api §3.1).
	if w := f.do("GET", "/nacos/v1/ns/instance/list?&serviceName=a", ""); w.Code != 200 {
		t.Errorf("?&: %d %s", w.Code, w.Body)
	}
	// Without a change the bytes are the same, but for the time.
	first := f.do("GET", "/nacos/v1/ns/instance/list?serviceName=a", "").Body.String()
	second := f.do("GET", "/nacos/v1/ns/instance/list?serviceName=a", "")
	cut := func(s string) string { return regexp.MustCompile(`"lastRefTime":\d+`).ReplaceAllString(s, "") }
	if cut(first) != cut(second.Body.String()) {
		t.Errorf("two lists differ:\n%s\n%s", first, second.Body)
	}
	if cl := second.Header().Get("Content-Length"); cl != fmt.Sprint(second.Body.Len()) {
		t.Errorf("Content-Length %s, body %d", cl, second.Body.Len())
	}
	if n := f.registry.Stats().Services; n != 2 { // cases C41: reading makes none
		t.Errorf("%d services, want 2", n)
	}
}

func TestBeat(t *testing.T) { // golden scenario 09
	const renewed, unknown = `{"clientBeatInterval":5000,"code":10200,"lightBeatEnabled":true}`, `{"clientBeatInterval":5000,"code":20404,"lightBeatEnabled":true}`
	const d, g = "DEFAULT_GROUP", "DEFAULT_GROUP@@a"
	beat := func(query, body string) step {
		return step{"PUT instance/beat?serviceName=a&" + query, "", "", 200, js, body}
	}
	const badPort = "Param 'port' is illegal, the value should be between 0 and 65535." + crlf
	one := withMetadata(host("10.1.1.1", 80, "c1", g, "2.0"), `{"a":"1"}`)
	f := newFixture(t)
	f.play(t, []step{
		beat("ip=10.1.1.1&port=80", unknown),
		beat("", unknown),
		{"GET instance/list?serviceName=a", "", "", 200, js, list(d, "a", "")},
		beat(`beat={"serviceName":"DEFAULT_GROUP@@a","ip":"10.1.1.1","port":80,"cluster":"c1","weight":2,"metadata":{"a":"1"},"scheduled":false}`, renewed),
		{"GET instance/list?serviceName=a", "", "", 200, js, list(d, "a", "", one)},
		beat("ip=10.1.1.1&port=80&clusterName=c1", renewed),
		beat("ip=10.1.1.1&port=80", renewed),
		{"PUT instance/beat?serviceName=a", `beat=%7B%22serviceName%22%3A%22DEFAULT_GROUP%40%40a%22%2C%22ip%22%3A%2210.1.1.1%22%2C%22port%22%3A80%2C%22cluster%22%3A%22c1%22%2C%22weight%22%3A9%2C%22metadata%22%3A%7B%22a%22%3A%22changed%22%7D%7D`, "", 200, js, renewed},
		{"GET instance/list?serviceName=a", "", "", 200, js, list(d, "a", "", one)},
		beat(`beat={"ip":"10.1.1.2","port":80}`, renewed),
		beat(`clusterName=c2&beat={"ip":"10.1.1.3","port":80,"serviceName":"a"}`, renewed),
		{"PUT instance/beat", `namespaceId=public&serviceName=DEFAULT_GROUP@@a&beat={"ip":"10.1.1.4","port":80,"weight":1,"serviceName":"DEFAULT_GROUP@@a","cluster":"DEFAULT","metadata":{"a":"b"},"scheduled":false}`, "", 200, js, renewed},
		{"GET instance/list?serviceName=a", "", "", 200, js, list(d, "a", "", one,
			host("10.1.1.2", 80, "DEFAULT", g, "1.0"), host("10.1.1.3", 80, "c2", g, "1.0"), // Nacos: weight 0.0 (http-api §15 no. 7)
			withMetadata(host("10.1.1.4", 80, "DEFAULT", g, "1.0"), `{"a":"b"}`))},
		{"PUT instance/beat?serviceName=a&beat={bad", "", "", 400, text, "Param 'beat' is illegal, it should be a JSON object."}, // Nacos: 500
		{"PUT instance/beat?serviceName=a&beat={}", "", "", 400, text, "Param 'ip' is required."},                                // Nacos registers a host without ip
		{`PUT instance/beat?serviceName=a&beat={"port":80}`, "", "", 400, text, "Param 'ip' is required."},
		{"PUT instance/beat?ip=10.1.1.1&port=80", "", "", 400, text, "Param 'serviceName' is required."},
		{"PUT instance/beat?serviceName=a&ip=10.1.1.1&port=abc", "", "", 400, "", badPort},
		{`PUT instance/beat?serviceName=a&beat={"ip":"10.1.1.5","port":70000}`, "", "", 400, "", badPort},
		{`PUT instance/beat?serviceName=a&beat={"ip":"10.1.1.5","port":"x"}`, "", "", 400, "", badPort},
		{`PUT instance/beat?serviceName=a&beat={"ip":"10.1.1.5","port":80,"weight":-1}`, "", "", 400, text, "instance format invalid: The weights range from 0.0 to 10000.0"},
		{`PUT instance/beat?serviceName=a&beat={"ip":"10.1.1.5","port":80,"weight":"NaN"}`, "", "", 400, text, "instance format invalid: The weights range from 0.0 to 10000.0"},
		{`PUT instance/beat?serviceName=a&beat={"ip":"10.1.1.5","port":80,"cluster":"a_b"}`, "", "", 400, text, "Instance 'clusterName' should be characters with only 0-9a-zA-Z-. (current: a_b)"},
		{"POST instance/beat?serviceName=a&ip=10.1.1.1&port=80", "", "", 501, js,
			springError(501, "Not Implemented", "no such api:POST:/nacos/v1/ns/instance/beat", "/nacos/v1/ns/instance/beat")},
		{`POST instance?serviceName=i&ip=10.1.1.1&port=80&metadata={"preserved.heart.beat.interval":"2000"}`, "", "", 200, text, "ok"},
		{"PUT instance/beat?serviceName=i&ip=10.1.1.1&port=80", "", "", 200, js, `{"clientBeatInterval":2000,"code":10200,"lightBeatEnabled":true}`},
		beat(`groupName=g&beat={"ip":"10.1.1.6","port":80,"serviceName":"a"}`, renewed), // cases C07
		{"GET instance/list?serviceName=a&groupName=g", "", "", 200, js, list("g", "a", "", host("10.1.1.6", 80, "DEFAULT", "g@@a", "1.0"))},
		beat("beat=null&ip=10.1.1.1&port=80", renewed),
		beat(`beat={"ip":"10.1.1.7","port":"80","weight":"3","cluster":null,"metadata":null}`, renewed), // strings, null
	})
	snap := f.registry.Snapshot(registry.ServiceKey{Namespace: "public", Group: d, Name: "a"})
	if n := len(snap.Instances); n != 5 {
		t.Errorf("%d instances in the end, want 5", n)
	}
}

func TestBeatInnerName(t *testing.T) { // cases C07
	f := newFixture(t)
	f.play(t, []step{ok("POST instance?serviceName=a&groupName=g&ip=10.1.1.1&port=80&healthy=false")})
	for _, inner := range []string{`"serviceName":"a",`, ``, `"serviceName":"g@@a",`, `"serviceName":"other@@x",`, `"ephemeral":false,`} {
		f.play(t, []step{
			ok("POST instance?serviceName=a&groupName=g&ip=10.1.1.1&port=80&healthy=false"),
			{`PUT instance/beat?serviceName=a&groupName=g&beat={` + inner + `"ip":"10.1.1.1","port":80,"cluster":"elsewhere"}`, "", "", 200, js,
				`{"clientBeatInterval":5000,"code":10200,"lightBeatEnabled":true}`},
			{"GET instance/list?serviceName=g@@a", "", "", 200, js, list("g", "a", "", host("10.1.1.1", 80, "DEFAULT", "g@@a", "1.0"))},
		})
	}
	if n := f.registry.Stats().Services; n != 1 {
		t.Errorf("%d services, want 1", n)
	}
}

func TestIntervalOfOverride(t *testing.T) { // semantics H9
	newFixture(t).play(t, []step{
		ok("POST instance?serviceName=a&ip=10.1.1.1&port=80"),
		ok(`PATCH instance?serviceName=a&ip=10.1.1.1&port=80&metadata={"preserved.heart.beat.interval":"3000"}`),
		{"PUT instance/beat?serviceName=a&ip=10.1.1.1&port=80", "", "", 200, js, `{"clientBeatInterval":3000,"code":10200,"lightBeatEnabled":true}`},
	})
}

func TestDeleteLeavesOthers(t *testing.T) { // cases C14
	f := newFixture(t)
	k := registry.ServiceKey{Namespace: "public", Group: "DEFAULT_GROUP", Name: "a"}
	conn := f.registry.Open("connection", registry.Connection)
	err := conn.Register(k, []*registry.Instance{{InstanceKey: registry.InstanceKey{IP: "10.1.1.1", Port: 80, Cluster: "DEFAULT"}, Weight: 1, Healthy: true, Enabled: true}}, false)
	if err != nil {
		t.Fatal(err)
	}
	is := list("DEFAULT_GROUP", "a", "", host("10.1.1.1", 80, "DEFAULT", "DEFAULT_GROUP@@a", "1.0"), host("10.1.1.2", 80, "DEFAULT", "DEFAULT_GROUP@@a", "1.0"))
	f.play(t, []step{
		ok("POST instance?serviceName=a&ip=10.1.1.2&port=80"),
		ok("DELETE instance?serviceName=a&ip=10.1.1.1&port=80"),
		ok("DELETE instance?serviceName=a&ip=10.1.1.2&port=80&ephemeral=false"),
		{"GET instance/list?serviceName=a", "", "", 200, js, is},
	})
	warnings := f.logs.FilterLevelExact(zap.WarnLevel).All()
	if len(warnings) != 2 {
		t.Fatalf("%d warnings, want one for each instance that stays", len(warnings))
	}
	for i, why := range []string{"over gRPC", "leave out ephemeral"} {
		if is := fmt.Sprint(warnings[i].ContextMap()["why"]); !strings.Contains(is, why) {
			t.Errorf("warning %d does not say %q: %s", i, why, is)
		}
	}
	for range 100 {
		f.do("DELETE", "/nacos/v1/ns/instance?serviceName=a&ip=10.1.1.1&port=80", "")
	}
	if n := f.logs.Len(); n > 10 {
		t.Errorf("%d log lines: a client can fill the log", n)
	}
}

func TestNodeRequests(t *testing.T) { // http-api §14.1: empty bodies, Content-Length 0, no type
	f := newFixture(t)
	for _, call := range []string{
		"POST instance?namespaceId=public&serviceName=DEFAULT_GROUP%40%40demo&groupName=DEFAULT_GROUP&clusterName=DEFAULT&ip=10.0.0.7&port=8080&weight=1&enable=true&healthy=true&ephemeral=true&metadata=%7B%7D",
		"PUT instance/beat?beat=%7B%22serviceName%22%3A%22DEFAULT_GROUP%40%40demo%22%2C%22ip%22%3A%2210.0.0.7%22%2C%22port%22%3A8080%2C%22cluster%22%3A%22DEFAULT%22%2C%22weight%22%3A1%2C%22metadata%22%3A%7B%7D%7D&namespaceId=public&serviceName=DEFAULT_GROUP%40%40demo",
		"GET instance/list?namespaceId=public&serviceName=DEFAULT_GROUP%40%40demo&clusters=DEFAULT&udpPort=40123&clientIP=10.0.0.9&healthyOnly=false",
		"DELETE instance?namespaceId=public&serviceName=DEFAULT_GROUP%40%40demo&clusterName=DEFAULT&ip=10.0.0.7&port=8080&ephemeral=true",
		"GET operator/metrics?namespaceId=public",
	} {
		method, target, _ := strings.Cut(call, " ")
		if w := f.do(method, "/nacos/v1/ns/"+target, ""); w.Code != 200 {
			t.Errorf("%s: %d %s", call, w.Code, w.Body)
		}
	}
	// Java 1.4: half in the query, the beat in the form.
	w := f.do("PUT", "/nacos/v1/ns/instance/beat?app=demo&namespaceId=public&serviceName=DEFAULT_GROUP%40%40demo&clusterName=DEFAULT&ip=10.0.0.7&port=8080",
		"beat=%7B%22port%22%3A8080%2C%22ip%22%3A%2210.0.0.7%22%7D", "Content-Type: application/x-www-form-urlencoded;charset=UTF-8")
	if !strings.Contains(w.Body.String(), "10200") {
		t.Errorf("Java's full beat: %s", w.Body)
	}
	// Python 0.1: everything in the form.
	f.do("POST", "/nacos/v1/ns/instance", "ip=10.0.0.8&port=8080&serviceName=py&weight=1.0&enable=True&healthy=True&metadata=None&clusterName=None", form)
	if n := f.registry.Stats().Instances; n != 2 {
		t.Errorf("%d instances, want 2", n)
	}
}

func TestNotReady(t *testing.T) {
	f := newFixture(t)
	f.reason = "waiting for the first peer"
	for _, call := range []string{"POST instance?serviceName=a&ip=10.1.1.1&port=80", "GET instance/list?serviceName=a", "GET operator/metrics", "GET ops/metrics"} {
		f.play(t, []step{{call, "", "", 503, "", "server is DOWN now, detailed error message: waiting for the first peer"}})
	}
	if n := f.registry.Stats().Services; n != 0 {
		t.Error("a node that is not ready registered something")
	}
	w := f.do("GET", "/readyz", "")
	if want := `{"error":{"code":"not_ready","message":"waiting for the first peer","hint":"the node does not take requests of clients until this is over; they use another one"}}`; w.Code != 503 || w.Body.String() != want {
		t.Errorf("readyz: %d %s", w.Code, w.Body)
	}
	if w := f.do("GET", "/livez", ""); w.Code != 200 {
		t.Errorf("livez: %d %s", w.Code, w.Body)
	}
	gauge := func(want string) {
		t.Helper()
		if body := f.do("GET", "/metrics", "").Body.String(); !strings.Contains(body, "\nstarling_ready "+want+"\n") {
			t.Errorf("/metrics lacks starling_ready %s", want)
		}
	}
	gauge("0")
	f.reason = ""
	gauge("1")
	if w := f.do("GET", "/readyz", ""); w.Code != 200 || w.Body.String() != `{"status":"ready"}` {
		t.Errorf("readyz: %d %s", w.Code, w.Body)
	}
}

// brokenBeats fails in ways that the real ones do not.
type brokenBeats struct{ Beats }

func (brokenBeats) Register(registry.ServiceKey, *registry.Instance) error {
	return errors.New("secret detail")
}
func (brokenBeats) Beat(registry.ServiceKey, string, int) (*registry.Instance, bool) { panic("oops") }

func TestInternalErrors(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.Beats = brokenBeats{} })
	f.play(t, []step{
		{"POST instance?serviceName=a&ip=10.1.1.1&port=80", "", "", 500, text, "caused: internal error;"},
		{"PUT instance/beat?serviceName=a&ip=10.1.1.1&port=80&password=hidden", "", "", 500, text, "caused: internal error;"},
	})
	logs := f.logs.All()
	if len(logs) != 2 {
		t.Fatalf("%d log lines, want 2", len(logs))
	}
	if s := fmt.Sprint(logs[0].ContextMap()); !strings.Contains(s, "secret detail") {
		t.Errorf("log without the cause: %s", s)
	}
	if s := fmt.Sprint(logs[1].ContextMap()); !strings.Contains(s, "oops") || !strings.Contains(s, "brokenBeats.Beat") || strings.Contains(s, "hidden") {
		t.Errorf("log of a panic: %s", s)
	}
	metrics := f.do("GET", "/metrics", "").Body.String()
	for _, line := range []string{
		"starling_http_panics_total 1",
		`starling_http_requests_total{class="5xx",route="POST /nacos/v1/ns/instance"} 1`,
		`starling_http_requests_total{class="5xx",route="PUT /nacos/v1/ns/instance/beat"} 1`,
		`starling_http_requests_total{class="2xx",route="GET /nacos/v1/ns/instance/list"} 0`,
		`starling_http_request_seconds_count{api="v1",kind="write"} 2`,
	} {
		if !strings.Contains(metrics, line+"\n") {
			t.Errorf("/metrics lacks %s", line)
		}
	}
}

// A series that is there twice would take all of /metrics with it.
func TestSeriesOfRoutesAreUnique(t *testing.T) {
	for _, contextPath := range []string{"/nacos", "", "/v1"} {
		f := newFixture(t, func(o *Options) { o.ContextPath = contextPath })
		if _, err := f.metrics.Gather(); err != nil {
			t.Errorf("context path %q: %v", contextPath, err)
		}
	}
}

func TestPanicAfterAnswerBegan(t *testing.T) {
	f := newFixture(t)
	h := f.instrument("test", noVersion, func(w http.ResponseWriter, _ *http.Request) error {
		_, _ = w.Write([]byte("half"))
		panic("oops")
	})
	srv := httptest.NewServer(h)
	defer srv.Close()
	if resp, err := http.Get(srv.URL); err == nil {
		resp.Body.Close()
		t.Error("half an answer looks whole")
	}
}

func TestContextPath(t *testing.T) {
	for _, path := range []string{"", "/x", "/x/y"} {
		f := newFixture(t, func(o *Options) { o.ContextPath = path })
		if w := f.do("GET", path+"/v1/ns/operator/metrics", ""); w.Code != 200 {
			t.Errorf("%q: %d %s", path, w.Code, w.Body)
		}
	}
	for _, path := range []string{"/", "x", "/x/", "/{x}", "/a//b"} {
		o := DefaultOptions()
		o.ContextPath = path
		if o.Validate() == nil {
			t.Errorf("context path %q passes", path)
		}
	}
}

// A page that an operator looks at must not write to a server that only the
// operator reaches: what browsers send for other sites is refused everywhere.
func TestOtherSites(t *testing.T) {
	f := newFixture(t)
	for _, rt := range f.routes() {
		if rt.method == "" || rt.method == http.MethodGet {
			continue
		}
		path := "/nacos" + strings.Replace(rt.path, "{key}", "a", 1)
		for _, header := range []string{"Sec-Fetch-Site: cross-site", "Origin: http://elsewhere.example"} {
			if w := f.do(rt.method, path+"?serviceName=a&ip=10.0.0.1&port=80", "", header); w.Code != 403 || !strings.Contains(w.Body.String(), "another site") {
				t.Errorf("%s %s with %s: %d %s", rt.method, path, header, w.Code, w.Body)
			}
		}
	}
	f.play(t, []step{
		{"GET instance/list?serviceName=a", "", "Sec-Fetch-Site: cross-site", 200, js, list("DEFAULT_GROUP", "a", "")},
		{"POST instance?serviceName=a&ip=10.0.0.1&port=80", "", "Sec-Fetch-Site: same-origin", 200, text, "ok"},
	})
}
