package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestForm(t *testing.T) {
	for _, c := range []struct{ body, key, want string }{
		{"a=1&b=2", "b", "2"},
		{"a=1&a=2", "a", "1"},
		{"&&a=1&&", "a", "1"},
		{"=x&a", "a", ""},
		{"a=1=2", "a", "1=2"},
		{"a=x;y", "a", "x;y"},                       // net/http drops it
		{"a=b+c", "a", "b c"},                       // encoded
		{"a=b%2Bc%20d", "a", "b+c d"},               //
		{"%61=1", "a", "1"},                         //
		{`m={"e":"a+b"}`, "m", `{"e":"a+b"}`},       // the Go SDK, un-encoded
		{`m={"e":"100%"}`, "m", `{"e":"100%"}`},     //
		{`m={"e":"%zz%4"}`, "m", `{"e":"%zz%4"}`},   //
		{`m={"e":"a+b"}&x=%41`, "m", `{"e":"a b"}`}, // something is encoded, so all is
		{`m=%7B%22e%22%3A%22a+b%22%7D`, "m", `{"e":"a b"}`},
		{"a=%ff", "a", "\uFFFD"},
		{"a=\xff\xfe", "a", "\uFFFD"},
		{"a=%00", "a", "\x00"},
	} {
		p := params{}
		if err := p.addForm(c.body, false); err != nil {
			t.Errorf("%q: %v", c.body, err)
		}
		if p[c.key] != c.want {
			t.Errorf("%q: %s is %q, want %q", c.body, c.key, p[c.key], c.want)
		}
	}
}

// TestBodyOfTheGoSDK: what is in the metadata of its applications arrives.
func TestBodyOfTheGoSDK(t *testing.T) {
	for _, m := range []map[string]string{
		{"e": "a+b"}, {"e": "100%"}, {"e": "%41%zz%"}, {"e": "a;b"}, {"e": "a&b=c"}, {"e": "=", "x": "<>"}, {"%41+": "Größe ✓"},
	} {
		raw, _ := json.Marshal(m) // as the SDK does
		for _, c := range []struct{ method, agent, body, want string }{
			{"PUT", "Nacos-Go-Client:v1.1.6", "serviceName=g@@s&metadata=" + string(raw) + "&ip=::1", string(raw)},
			{"PUT", "Nacos-Go-Client:v9", "metadata=" + url.QueryEscape(string(raw)), string(raw)}, // should it encode one day
			{"POST", "Nacos-Go-Client:v1.1.6", "metadata=" + url.QueryEscape(string(raw)), string(raw)},
		} {
			r := httptest.NewRequest(c.method, "/", strings.NewReader(c.body))
			r.Header.Set("User-Agent", c.agent)
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded;charset=utf-8")
			p, err := readParams(httptest.NewRecorder(), r, 1000)
			if err != nil || p["metadata"] != c.want {
				t.Errorf("%s %s: metadata is %q, %v; want %q", c.method, c.body, p["metadata"], err, c.want)
			}
		}
	}
}

func TestQuery(t *testing.T) {
	for _, c := range []struct{ query, key, want string }{
		{"&a=1", "a", "1"},
		{"a=b+c%2B", "a", "b c+"},
		{`a={"x":"世"}`, "a", `{"x":"世"}`},
		{"a=%zz", "a", ""}, // the container of Nacos drops the pair
		{"a=%zz&a=1", "a", "1"},
		{"a=x;y&b=1", "a", "x;y"},
	} {
		p := params{}
		if err := p.addQuery(c.query); err != nil {
			t.Errorf("%q: %v", c.query, err)
		}
		if p[c.key] != c.want {
			t.Errorf("%q: %s is %q, want %q", c.query, c.key, p[c.key], c.want)
		}
	}
}

func TestReadParams(t *testing.T) {
	for _, c := range []struct {
		method, query, ctype, body string
		want                       string // of parameter a
	}{
		{"POST", "a=query", "application/x-www-form-urlencoded", "a=form", "query"},
		{"POST", "", "APPLICATION/X-WWW-Form-Urlencoded; charset=gbk", "a=form", "form"},
		{"PUT", "", "", "a=form", "form"},
		{"PATCH", "", "application/x-www-form-urlencoded", "a=form", "form"},
		{"DELETE", "", "application/x-www-form-urlencoded", "a=form", "form"},
		{"GET", "", "application/x-www-form-urlencoded", "a=form", ""},
		{"POST", "", "application/json", "a=form", ""},
		{"POST", "", "text/plain", "a=form", ""},
	} {
		r := httptest.NewRequest(c.method, "/?"+c.query, strings.NewReader(c.body))
		r.Header.Set("Content-Type", c.ctype)
		p, err := readParams(httptest.NewRecorder(), r, 100)
		if err != nil || p["a"] != c.want {
			t.Errorf("%+v: %q, %v", c, p["a"], err)
		}
	}
}

func TestFlag(t *testing.T) {
	for value, want := range map[string]struct{ v1, later string }{
		"": {"true", "true"}, " ": {"true", "true"}, "true": {"true", "true"}, "True": {"true", "true"}, "YES": {"true", "true"}, "on": {"true", "true"},
		"y": {"true", "error"}, "t": {"true", "error"}, "1": {"false", "true"},
		"false": {"false", "false"}, "no": {"false", "false"}, "Off": {"false", "false"}, "0": {"false", "false"}, "null": {"false", "error"}, "maybe": {"false", "error"},
	} {
		for v, want := range map[version]string{v1: want.v1, v2: want.later, v3: want.later} {
			is, err := (&call{params: params{"a": value}, version: v}).flag(true, "a")
			if got := fmt.Sprint(is); err == nil && got != want || err != nil && want != "error" {
				t.Errorf("v%d: %q is %v, %v; want %s", v, value, is, err, want)
			}
		}
	}
}

func TestTooMuch(t *testing.T) {
	f := newFixture(t)
	many := strings.Builder{}
	for i := range 2 * maxParams {
		fmt.Fprintf(&many, "p%d=x&", i)
	}
	f.play(t, []step{
		{"PUT instance", strings.Repeat("x", f.opts.MaxRequestBytes+1), "", 413, text, "request body is over the limit of 1048576 bytes: that of --max-request-bytes, and never above 1 MiB"},
		{"PUT instance", many.String(), "", 400, text, "request has too many parameters"},
		{"PUT instance?" + many.String(), "", "", 400, text, "request has too many parameters"},
		{"PUT instance", strings.Repeat("a=1&", 1000), "", 400, text, "Param 'serviceName' is required."},
	})
}

// TestPaths: what is no path of ours is refused, never redirected and never
// taken for another (cases: path tricks, wrong methods).
func TestPaths(t *testing.T) {
	f := newFixture(t)
	for target, want := range map[string]int{
		"/nacos/v1/ns/instance/":                     404,
		"/nacos/v1/ns/instance/list/":                404,
		"/nacos/v1/ns//instance/list":                404,
		"//nacos/v1/ns/instance/list":                404,
		"/nacos/v1/ns/../ns/instance/list":           404,
		"/nacos/v1/ns/./instance/list":               404,
		"/nacos/v1/ns/%2e%2e/metrics":                404,
		"/nacos/v1/ns/x/..%2f..%2f/metrics":          404,
		"/nacos/v1/ns/instance%2flist":               501,
		"/nacos/v1/ns/instance;a=b":                  501,
		"/nacos/v1/ns/INSTANCE/list":                 501,
		"/nacos/v1/ns/foo":                           501,
		"/nacos/v1/ns/%00":                           501,
		"/nacos/v1/ns/%ff%fe":                        501,
		"/nacos/v1/ns":                               404,
		"/nacos/v1/ns/":                              404,
		"/nacos/v1":                                  404,
		"/nacos":                                     200,
		"/nacos/":                                    200,
		"/":                                          200,
		"/nacos/v2":                                  404,
		"/nacos/v3":                                  404,
		"/nacos/v1/auth/login":                       405,
		"/nacos/v1/auth/login/":                      404,
		"/v1/ns/instance/list":                       404,
		"/metrics/":                                  404,
		"/debug/pprof/":                              404,
		"/debug/pprof/../../metrics":                 404,
		"/nacos/v1/ns/%69nstance/list":               400, // an escape for a letter is the letter
		"/nacos/v1/ns/" + strings.Repeat("x", 50000): 501,
	} {
		w := f.do("GET", target, "")
		if w.Code != want {
			t.Errorf("GET %.60s: %d, want %d", target, w.Code, want)
		}
		if !utf8.Valid(w.Body.Bytes()) || w.Header().Get("Location") != "" {
			t.Errorf("GET %.60s: %s", target, w.Body)
		}
	}
	for _, method := range []string{"HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "BREW", "get"} {
		w := f.do(method, "/nacos/v1/ns/instance/list?serviceName=a", "")
		want := 501
		if method == "HEAD" {
			want = 200
		}
		if w.Code != want {
			t.Errorf("%s list: %d", method, w.Code)
		}
		if w := f.do(method, "/readyz", ""); method != "HEAD" && w.Code != 404 {
			t.Errorf("%s readyz: %d", method, w.Code)
		}
	}
}

// FuzzParams: whatever comes in, parsing does not panic, values are valid
// UTF-8, and what a client encodes properly is read as it was.
func FuzzParams(f *testing.F) {
	for _, s := range []string{"a=1&b=2", "?&a=%zz", `m={"e":"a+b%"}`, "a=%ff%fe", "a=x;y&a&=&&%=%", "serviceName=%40%40x&ip= 1"} {
		f.Add(s, s, "value")
	}
	f.Fuzz(func(t *testing.T, query, body, value string) {
		p := params{}
		if err := p.addQuery(query); err != nil && err != errTooMany {
			t.Fatal(err)
		}
		for _, goSDK := range []bool{false, true} {
			if err := p.addForm(body, goSDK); err != nil && err != errTooMany {
				t.Fatal(err)
			}
		}
		for k, v := range p {
			if !utf8.ValidString(v) || k == "" {
				t.Fatalf("%q: %q", k, v)
			}
		}
		if utf8.ValidString(value) {
			for _, add := range []func(params, string) error{params.addQuery,
				func(p params, body string) error { return p.addForm(body, false) },
				func(p params, body string) error { return p.addForm(body, true) }} {
				p := params{}
				if err := add(p, "k="+url.QueryEscape(value)); err != nil || p["k"] != value {
					t.Fatalf("%q is read as %q, %v", value, p["k"], err)
				}
			}
		}
	})
}

// FuzzRequest: no request makes the server panic or fail, and a service that
// could be registered can be removed with the same name (cases C28).
func FuzzRequest(f *testing.F) {
	for _, call := range []string{
		"serviceName=a&ip=10.1.1.1&port=80",
		"serviceName=g@@a&ip=10.1.1.1&port=80&weight=1e3&metadata=a=b&clusterName=c",
		`serviceName=a&beat={"ip":"1.1.1.1","port":"80","metadata":{"a":null}}`,
		"serviceName=%C2%A0a&ip=%C2%A0&port=%2B1",
		"serviceName=g@@%01@x&namespaceId=%E2%80%83&ip=x&port=0&groupName=%0b",
	} {
		for method := range 5 {
			f.Add(method, "/v1/ns/instance", call, "")
			f.Add(method, "/v1/ns/instance/beat", call, call)
			f.Add(method, "/v1/ns/instance/list", "", call)
			f.Add(method, "/v2/ns/instance", "", call)
			f.Add(method, "/v3/client/ns/instance", call, "heartBeat=true")
			f.Add(method, "/v3/admin/ns/instance", call, "ephemeral=false")
			f.Add(method, "/v3/admin/ns/instance/list", call, "")
			f.Add(method, "/v2/ns/instance/beat", "", call)
			f.Add(method, "/v1/ns/instance/metadata/batch", call, `metadata={"k":"v"}&instances=[{"ip":"10.1.1.1","port":"80"}]`)
			f.Add(method, "/v1/ns/api/srvIPXT", "dom=a&udpPort=1", call)
		}
	}
	for _, call := range []string{
		`serviceName=a&protectThreshold=0.5&metadata=a=b&selector={"type":"label","expression":"CONSUMER.label.a = PROVIDER.label.a"}`,
		`serviceName=a&clusterName=c&checkPort=80&useInstancePort4Check=true&healthChecker={"type":"HTTP","expectedResponseCode":"204"}`,
		"pageNo=1&pageSize=100&withInstances=true&ignoreEmptyService=off&serviceNameParam=a",
		"serviceName=known&clusterName=DEFAULT&healthyOnly=true&enabledOnly=1&instance=1&expr=a(b|c){2}&key=n##g@@known",
	} {
		for method := range 4 {
			for _, path := range []string{"/v1/ns/service", "/v2/ns/service", "/v3/admin/ns/service", "/v1/ns/cluster", "/v3/admin/ns/cluster", "/v3/admin/ns/service/list", "/v2/ns/service/list",
				"/v1/ns/service/names", "/v1/ns/catalog/service", "/v1/ns/catalog/services", "/v1/ns/catalog/instances", "/v2/ns/catalog/instances", "/v1/ns/instance/statuses"} {
				f.Add(method, path, call, "")
			}
		}
	}
	f.Fuzz(func(t *testing.T, method int, path, query, body string) {
		fx := newFixture(t)
		m := []string{"GET", "POST", "PUT", "DELETE", "PATCH"}[uint(method)%5]
		do := func(m string) *httptest.ResponseRecorder {
			r := httptest.NewRequest(m, "/", strings.NewReader(body))
			r.URL = &url.URL{Path: "/nacos" + path, RawQuery: query}
			w := httptest.NewRecorder()
			fx.ServeHTTP(w, r)
			return w
		}
		fx.do("POST", "/nacos/v1/ns/service?serviceName=known", "")
		w := do(m)
		if w.Code >= 500 && w.Code != http.StatusNotImplemented {
			t.Fatalf("%s %s?%s: %d %s", m, path, query, w.Code, w.Body)
		}
		if !utf8.Valid(w.Body.Bytes()) {
			t.Fatalf("answer is no UTF-8: %q", w.Body)
		}
		if w.Header().Get("Content-Type") == js && !json.Valid(w.Body.Bytes()) {
			t.Fatalf("%s %s?%s: no JSON: %s", m, path, query, w.Body)
		}
		if w.Code == 200 && m == "POST" && strings.HasSuffix(path, "/instance") {
			if l := do("DELETE"); l.Code != 200 {
				t.Fatalf("registered but not removable: %d %s", l.Code, l.Body)
			}
			if n := fx.registry.Stats().Instances; n != 0 {
				t.Fatalf("%d instances left of %s", n, query)
			}
		}
	})
}
