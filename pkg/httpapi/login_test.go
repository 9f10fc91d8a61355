package httpapi

import (
	"fmt"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
)

func TestLogin(t *testing.T) { // golden scenario 21
	const passes = `{"accessToken":"AUTH_DISABLED","tokenTtl":18000,"globalAdmin":true,"username":"nacos"}`
	for _, c := range []struct {
		call, form string
		status     int
		body       string // {: as JSON
	}{
		{"POST /nacos/v1/auth/login?username=nacos&password=secret", "", 200, passes},
		{"POST /nacos/v1/auth/users/login?username=nacos", "password=secret", 200, passes}, // Java
		{"POST /nacos/v1/auth/users/login", "username=nacos&password=secret", 200, passes},
		{"POST /nacos/v3/auth/user/login", "username=nacos&password=secret", 200, passes},
		{"POST /nacos/v3/auth/user/login?username=nacos&password=", "", 200, passes},
		{`POST /nacos/v1/auth/login?username="<b>&password=secret`, "", 200,
			`{"accessToken":"AUTH_DISABLED","tokenTtl":18000,"globalAdmin":true,"username":"\"<b>"}`},
		{"POST /nacos/v1/auth/login?username=nacos", "", 400,
			springError(400, "Bad Request", "Required parameter 'password' is not present.", "/nacos/v1/auth/login")},
		{"POST /nacos/v1/auth/login?username=&password=secret", "", 400,
			springError(400, "Bad Request", "Required parameter 'username' is not present.", "/nacos/v1/auth/login")},
		{"POST /nacos/v3/auth/user/login", "", 400, // Nacos: 500
			springError(400, "Bad Request", "Required parameter 'username' is not present.", "/nacos/v3/auth/user/login")},
		{"GET /nacos/v1/auth/login?username=nacos&password=secret", "", 405,
			springError(405, "Method Not Allowed", "Method 'GET' is not supported.", "/nacos/v1/auth/login")},
	} {
		f := newFixture(t)
		method, target, _ := strings.Cut(c.call, " ")
		w := f.do(method, target, c.form, form)
		if ct := w.Header().Get("Content-Type"); w.Code != c.status || ct != js || !reflect.DeepEqual(decode(t, w.Body.String()), decode(t, c.body)) {
			t.Errorf("%s %s: %d %s %s", c.call, c.form, w.Code, ct, w.Body)
		}
		if token := w.Header().Get("Authorization"); (token == "Bearer AUTH_DISABLED") != (c.status == 200) {
			t.Errorf("%s: token %q", c.call, token)
		}
		if allow := w.Header().Get("Allow"); (allow == "POST") != (c.status == 405) {
			t.Errorf("%s: Allow %q", c.call, allow)
		}
		for _, l := range f.logs.All() {
			if s := fmt.Sprint(l.Level, l.Message, l.ContextMap()); strings.Contains(s, "secret") || !strings.HasPrefix(s, "debug") {
				t.Errorf("log line %s", s)
			}
		}
	}

	f := newFixture(t)
	f.reason = "stopping" // clients then ask another node
	if w := f.do("POST", "/nacos/v1/auth/login?username=a&password=b", ""); w.Code != 503 {
		t.Errorf("a node that is not ready: %d", w.Code)
	}
}

func TestPathsBesideTheAPI(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.Version = "v1.2.3" })
	const welcome = "Starling v1.2.3, a service registry for Nacos clients: API under /nacos/v1/ns, metrics at /metrics, readiness at /readyz\n"
	check := func(w *httptest.ResponseRecorder, call string, status int, body string) {
		t.Helper()
		if w.Code != status || !strings.Contains(w.Body.String(), body) {
			t.Errorf("%s: %d %s", call, w.Code, w.Body)
		}
	}
	for _, path := range []string{"/", "/nacos", "/nacos/"} {
		check(f.do("GET", path, ""), path, 200, welcome)
		check(f.do("POST", path, ""), "POST "+path, 404, "No message available")
	}
	for _, path := range []string{"/favicon.ico", "/nacos/v2", "/nacos/v3", "/v3/x", "/nacos//v3/x", "/nacos/v3/client/ns/instance/foo", "/nacos/v3/"} {
		check(f.do("GET", path, ""), path, 404, `"message":"No message available"`)
	}
	for _, route := range []string{"GET /", "GET /nacos", "GET /nacos/"} {
		check(f.do("GET", "/metrics", ""), route, 200, `starling_http_requests_total{class="2xx",route="`+route+`"} 1`)
	}
	f = newFixture(t, func(o *Options) { o.ContextPath = "" })
	check(f.do("GET", "/", ""), "/", 200, "Starling, a service registry for Nacos clients: API under /v1/ns,")
}
