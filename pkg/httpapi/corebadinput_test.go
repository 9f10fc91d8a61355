package httpapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

var ofCore = regexp.MustCompile(`^/(v[123](/admin)?/(core|console|auth)/|prometheus|serverlist|actuator)`)

// TestCoreBadInput gives every endpoint beside naming parameters that are wrong
// in every way: none makes the server fail, nothing is repeated that breaks an
// answer, and what is refused changes nothing.
func TestCoreBadInput(t *testing.T) {
	good := url.Values{"namespaceId": {"n"}, "customNamespaceId": {"n"}, "namespace": {"n"}, "namespaceName": {"N"}, "namespaceShowName": {"N"}, "namespaceDesc": {"d"}, "show": {""},
		"username": {"u"}, "password": {"p"}, "newPassword": {"p"}, "pageNo": {"1"}, "pageSize": {"5"}, "search": {""}, "type": {""}, "state": {""}, "address": {""}, "keyword": {""}}
	bad := []string{"", " ", "\x00", "a\nb", "\xff\xfe", "💥", `"</script>`, "%s%d", "-1", "0", "1e9", "99999999999999999999", "true", "all", "../..", strings.Repeat("x", 5000), strings.Repeat("é", 200), "*", "null", "None"}
	f := newFixture(t, threeMembers)
	f.passwords.rounds = 1
	state := func() string { return fmt.Sprint(f.tables.Namespaces(), len(f.tables.Users()), f.registry.Stats()) }
	routes := 0
	for _, rt := range f.routes() {
		if !ofCore.MatchString(rt.path) || rt.path == "/actuator/prometheus" {
			continue
		}
		routes++
		method := rt.method
		if method == "" {
			method = "GET"
		}
		path := "/nacos" + strings.NewReplacer("{namespaceId}", "n", "{service}", "s").Replace(rt.path)
		check := func(what, method, target, body string, headers ...string) {
			t.Helper()
			before := state()
			w := f.do(method, target, body, headers...)
			if w.Code >= 500 && w.Code != 501 {
				t.Errorf("%s %s: %d %.200s", method, what, w.Code, w.Body)
			}
			if w.Code >= 400 && state() != before {
				t.Errorf("%s %s: %d, and it has changed something", method, what, w.Code)
			}
			if b := w.Body.Bytes(); !utf8.Valid(b) || len(b) > 50_000 || w.Header().Get("Content-Type") == js && !json.Valid(b) {
				t.Errorf("%s %s: %d bytes %.200q", method, what, len(b), b)
			}
		}
		for param := range good {
			for i, value := range bad {
				q := maps.Clone(good)
				q[param] = []string{value}
				what := fmt.Sprintf("%s with %s=%.20q", path, param, value)
				switch {
				case i%3 == 0:
					q.Add(param, good.Get(param)) // the first one counts
					check(what+" twice", method, path+"?"+q.Encode(), "")
				case i%3 == 1 && method != "GET":
					check(what+" in a form", method, path, q.Encode(), form)
				default:
					check(what, method, path+"?"+q.Encode(), "")
				}
			}
		}
		for _, body := range []string{"", "{", "[]", "null", `"x"`, `{"command":7}`, `{"command":"transferLeader","groupId":null}`, strings.Repeat("[", 100_000), strings.Repeat("x", 2<<20)} {
			check(path+" with JSON", method, path, body, "Content-Type: application/json")
			check(path+" with a body without a type", method, path, body)
		}
		check(path+" without anything", method, path, "")
		check(path+" with a wrong method", "PATCH", path, "")
		check(path+" with many parameters", method, path+"?"+strings.Repeat("a=b&", 2000), "")
		var many strings.Builder
		for i := range 2000 {
			fmt.Fprintf(&many, "&p%d=x", i)
		}
		check(path+" with many parameters", method, path+"?"+many.String(), "")
	}
	if routes < 60 {
		t.Errorf("only %d endpoints", routes)
	}
	if w := f.do("GET", "/metrics", ""); !strings.Contains(w.Body.String(), "starling_http_panics_total 0\n") {
		t.Error("a handler panicked")
	}
}
