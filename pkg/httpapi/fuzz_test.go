package httpapi

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/starling-registry/starling/pkg/api"
)

// FuzzEndpoints: whatever comes in, there is an answer, no error of ours, and
// what it says it is.
func FuzzEndpoints(f *testing.F) {
	const all = "serviceName=demo&groupName=DEFAULT_GROUP&ip=10.0.0.7&port=80&clusterName=DEFAULT&weight=1&enabled=true&metadata=%7B%22a%22%3A%22b%22%7D&pageNo=1&pageSize=10"
	for _, e := range Endpoints() {
		method := e.Method
		if method == "" {
			method = "GET"
		}
		f.Add(method, "/nacos"+e.Path, all, "", "")
		f.Add(method, "/nacos"+e.Path, "serviceName=demo", "application/x-www-form-urlencoded", all+"&ephemeral=false")
	}
	for _, body := range []string{`{"dryRun":true}`, `{"id":"b2"}`, "{}", "[]", `{"namespace":"public","group":"DEFAULT_GROUP","service":"demo","ip":"10.0.0.7","port":80}`} {
		for _, path := range []string{"/drain", "/members/remove", "/self-preservation/end", "/instances/edit", "/instances/evict", "/instances/lift", "/namespaces"} {
			f.Add("POST", api.Path+path, "", "application/json", body)
		}
	}
	f.Add("GET", "/nacos/v1/ns/instance/list", "serviceName=%zz&serviceName=a;b&clusters=a,b", "", "")
	f.Add("PUT", "/nacos/v1/ns/instance/beat", "", "application/x-www-form-urlencoded", `serviceName=demo&beat={"ip":"10.0.0.7","port":80}`)
	f.Add("PUT", "/nacos/v1/ns/cluster", "serviceName=demo&clusterName=DEFAULT&checkPort=80&useInstancePort4Check=true", "", `healthChecker={"type":"MYSQL","pwd":"x"}`)

	var done []string
	fix := newFixture(f, threeMembers, withClients(new([]Subscribed)), func(o *Options) { o.Native = fakeNative(&done) })
	f.Fuzz(func(t *testing.T, method, path, query, contentType, body string) {
		if strings.HasPrefix(path, "/debug/pprof") {
			t.Skip("profiles take their time")
		}
		u, err := url.ParseRequestURI(path + "?" + query) // as net/http does
		if err != nil || u.Host != "" || method == "" || strings.ContainsFunc(method, func(r rune) bool { return r <= ' ' || r > '~' }) {
			t.Skip("no HTTP")
		}
		for _, broken := range []string{"node=broken", "node=panics", "node=odd", "node=b2"} {
			if strings.Contains(query, broken) {
				t.Skip("the fake is to fail")
			}
		}
		r := httptest.NewRequest("GET", "/", strings.NewReader(body))
		r.Method, r.URL, r.RequestURI = method, u, u.RequestURI()
		if contentType != "" {
			r.Header.Set("Content-Type", contentType)
		}
		w := httptest.NewRecorder()
		start := time.Now()
		fix.ServeHTTP(w, r)
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("took %v", took)
		}
		if w.Code >= 500 && w.Code != http.StatusNotImplemented || w.Code >= 300 && w.Code < 400 {
			t.Errorf("%d %.300s", w.Code, w.Body)
		}
		b := w.Body.Bytes()
		if ct := w.Header().Get("Content-Type"); strings.HasPrefix(ct, "application/json") && !json.Valid(b) || !utf8.Valid(b) && path != api.Path+"/backup" {
			t.Errorf("%s that is none: %.300q", ct, b)
		}
	})
}
