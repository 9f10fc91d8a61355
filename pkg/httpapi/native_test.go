package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/starling-registry/starling/pkg/api"
)

const nativeJSON = "Content-Type: application/json"

// fakeNative has something for everything, and writes down what was done.
func fakeNative(done *[]string) Native {
	did := func(what string) { *done = append(*done, what) }
	when := time.Date(2026, 11, 30, 6, 31, 2, 123e6, time.UTC)
	return Native{
		Members: func() api.Members {
			return api.Members{Cluster: "cc", Node: "a1", At: when, Members: []api.Member{{ID: "a1", Name: "node-a", State: api.StateAlive, Self: true}, {ID: "b2", Name: "node-b", State: api.StateSilent}}}
		},
		Cluster: func() api.Cluster {
			return api.Cluster{Node: "a1", Lives: []api.Life{{Node: "b2", State: api.LifeOrphaned}}}
		},
		EndSelfPreservation: func() api.SelfPreservation { did("end"); return api.SelfPreservation{PausedMillis: 7} },
		Hashes: func(ctx context.Context, node string) (api.Hashes, error) {
			switch node {
			case "":
				return api.Hashes{Node: "a1"}, nil
			case "b2":
				<-ctx.Done() // as a peer that does not answer, with the caller gone
				return api.Hashes{}, context.DeadlineExceeded
			case "broken":
				return api.Hashes{}, errors.New("a secret")
			case "panics":
				panic("oops")
			case "odd":
				return api.Hashes{}, &api.Error{Status: 200, Code: "odd", Message: "x: y", Hint: "z"}
			}
			return api.Hashes{}, &api.Error{Status: 404, Code: api.CodeNotFound, Message: "no member has the id " + node, Hint: "starling members lists them"}
		},
		History: func(_ context.Context, s api.Service) ([]api.NodeHistory, error) {
			did("history " + s.Namespace + "/" + s.Group + "/" + s.Name)
			e := api.Event{At: 1001 << 16, Node: "b2", Epoch: 1, Clock: 1000 << 16, Cause: "connection lost", Client: "c",
				InstanceKey: api.InstanceKey{IP: "fd00::7", Port: 80, Cluster: "DEFAULT"}, Before: &api.Instance{Weight: 1}}
			o := e
			o.Port = 81
			return []api.NodeHistory{{Node: "a1", Name: "node-a", Events: []api.Event{e, o}}, {Node: "b2", Error: "silent"}}, nil
		},
		DrainPlan: func(context.Context) (api.DrainPlan, error) {
			return api.DrainPlan{Clients: 2, Instances: 3, Targets: []api.DrainTarget{{Node: "b2", Name: "node-b", Clients: 2}}, Seconds: 1.5}, nil
		},
		Drain: func(context.Context) (api.Drain, error) {
			did("drain")
			return api.Drain{Node: "a1", State: api.DrainRunning}, nil
		},
		DrainProgress: func() api.Drain { return api.Drain{Node: "a1", State: api.DrainDone} },
		Raft:          func() api.Raft { return api.Raft{Node: "a1", Role: api.RoleJoining} },
		Backup: func(_ context.Context, w io.Writer) error {
			did("backup")
			_, err := io.WriteString(w, "some rows")
			return err
		},
		RestoreLimit: 1 << 30,
		Restore: func(_ context.Context, backup io.Reader, force bool) (api.Restored, error) {
			b, err := io.ReadAll(backup)
			if err != nil {
				return api.Restored{}, fmt.Errorf("backup: %w", err)
			}
			did(fmt.Sprintf("restore %d %v", len(b), force))
			return api.Restored{Node: "a1", Applied: 7}, nil
		},
		RemoveMember: func(_ context.Context, id string) (api.Removed, error) {
			if id == "none" {
				return api.Removed{}, &api.Error{Status: 404, Code: api.CodeNotFound, Message: "the log does not know none"}
			}
			did("remove " + id)
			return api.Removed{ID: id, Voters: 2}, nil
		},
	}
}

// native sends a request and reads its answer; code is that of an error.
func (f *fixture) native(t *testing.T, call, body string, headers ...string) (w *httptest.ResponseRecorder, code, message string) {
	t.Helper()
	method, path, _ := strings.Cut(call, " ")
	w = f.do(method, "/starling/v1"+path, body, headers...)
	if ct := w.Header().Get("Content-Type"); ct != js {
		t.Errorf("%s: content type %q", call, ct)
	}
	var e struct {
		Error *struct{ Code, Message, Hint *string }
	}
	if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil {
		t.Fatalf("%s: %v in %s", call, err, w.Body)
	}
	if (e.Error != nil) != (w.Code != 200) {
		t.Fatalf("%s: status %d with %s", call, w.Code, w.Body)
	}
	if e.Error == nil {
		return w, "", ""
	}
	if e.Error.Code == nil || e.Error.Message == nil || e.Error.Hint == nil {
		t.Fatalf("%s: an error lacks something: %s", call, w.Body)
	}
	return w, *e.Error.Code, *e.Error.Message
}

func TestNativeReads(t *testing.T) {
	var done []string
	f := newFixture(t, func(o *Options) { o.Native = fakeNative(&done) })
	f.reason = "it waits for heads" // the native API answers all the same
	get := func(path, want string) {
		t.Helper()
		w, _, _ := f.native(t, "GET "+path, "")
		if got := strings.TrimSpace(w.Body.String()); w.Code != 200 || got != want {
			t.Errorf("%s: %d\ngot  %s\nwant %s", path, w.Code, got, want)
		}
		if w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s may be kept by a proxy", path)
		}
	}
	const ports = `"ports":{"http":0,"grpc":0,"peer":0,"raft":0,"gossip":0},"version":"","wire":0,"clockOffsetMillis":0,"clockOff":false}`
	get("/members", `{"clusterId":"cc","node":"a1","at":"2026-11-30T06:31:02.123Z","members":[`+
		`{"id":"a1","name":"node-a","epoch":0,"state":"alive","self":true,"ready":false,"draining":false,"host":"",`+ports+
		`,{"id":"b2","name":"node-b","epoch":0,"state":"silent","self":false,"ready":false,"draining":false,"host":"",`+ports+`]}`)
	get("/cluster", `{"clusterId":"","node":"a1","name":"","epoch":0,"at":"0001-01-01T00:00:00Z","ready":false,"draining":false,`+
		`"selfPreservation":{"active":false,"leftMillis":0,"pausedMillis":0},"lives":[{"node":"b2","name":"","epoch":0,"state":"orphaned","applied":0,"ownerVersion":0,`+
		`"lagVersions":0,"lagMillis":0,"records":0,"orphans":0,"leaseLeftMillis":0,"digest":""}],"peers":[]}`)
	get("/hashes", `{"clusterId":"","node":"a1","name":"","services":[],"raftApplied":0,"raftDigest":""}`)
	get("/raft", `{"clusterId":"","node":"a1","name":"","at":"0001-01-01T00:00:00Z","role":"joining","leader":"","leaderName":"","leaderServer":"","term":0,"commit":0,`+
		`"applied":0,"last":0,"digest":"","generation":0,"servers":[],"votersWanted":0,"quorum":0,"aliveVoters":0,"stale":false,"logBytes":0,"snapshot":{"bytes":0}}`)
	get("/drain", `{"node":"a1","name":"","state":"done","plan":{"clients":0,"instances":0,"targets":[],"seconds":0},"clientsLeft":0,"instancesLeft":0}`)
	get("/history?service=s&instance=[fd00::7]:80", `{"namespace":"public","group":"DEFAULT_GROUP","service":"s","instance":"[fd00::7]:80","changes":[`+
		`{"when":"1970-01-01T00:00:01.001Z","ip":"fd00::7","port":80,"cluster":"DEFAULT","kind":"went","cause":"connection lost",`+
		`"explanation":"The connection of its client ended without a deregistration: the process was killed, crashed or lost its network.",`+
		`"node":"b2","nodeName":"node-b","epoch":1,"client":"c","before":{"weight":1,"healthy":false,"enabled":false},"seenBy":["a1"]}],`+
		`"nodes":[{"node":"a1","name":"node-a"},{"node":"b2","name":"","error":"silent"}]}`)
	f.native(t, "GET /history?service=g@@s&namespace=n", "")
	f.native(t, "GET /history?service=s&group=g", "")
	if got := strings.Join(done, ", "); got != "history public/DEFAULT_GROUP/s, history n/g/s, history public/g/s" {
		t.Errorf("asked for %s", got)
	}
}

func TestNativeErrors(t *testing.T) {
	var done []string
	f := newFixture(t, func(o *Options) { o.Native = fakeNative(&done) })
	refused := func(call string, status int, code, says string) {
		t.Helper()
		w, is, message := f.native(t, call, "")
		if w.Code != status || is != code || !strings.Contains(message, says) {
			t.Errorf("%s: %d %s: %s", call, w.Code, is, message)
		}
	}
	refused("GET ", 404, api.CodeNotFound, "/starling/v1")
	refused("GET /", 404, api.CodeNotFound, "/starling/v1/")
	refused("GET /nothing", 404, api.CodeNotFound, "/nothing")
	refused("GET /members/more", 404, api.CodeNotFound, "/members/more")
	refused("DELETE /members", 405, api.CodeMethod, "DELETE")
	refused("GET /self-preservation/end", 405, api.CodeMethod, "GET")
	refused("PUT /drain", 405, api.CodeMethod, "PUT")
	refused("POST /raft", 405, api.CodeMethod, "POST")
	refused("DELETE /backup", 405, api.CodeMethod, "DELETE")
	refused("HEAD /backup", 405, api.CodeMethod, "vain")
	refused("GET /restore", 405, api.CodeMethod, "GET")
	refused("GET /members/remove", 405, api.CodeMethod, "GET")
	refused("GET /backup?node=b2", 400, api.CodeBadRequest, "node")
	refused("GET /history", 400, api.CodeBadRequest, "service")
	refused("GET /history?service=%20", 400, api.CodeBadRequest, "service")
	refused("GET /history?service=a%20b", 400, api.CodeBadRequest, "serviceName")
	refused("GET /history?service=g@@s&group=h", 400, api.CodeBadRequest, "group")
	refused("GET /history?service=@@s", 400, api.CodeBadRequest, "no group")
	refused("GET /history?service=s&instanc=10.0.0.7:80", 400, api.CodeBadRequest, "instanc")
	refused("GET /history?service=s&namespace=%zz", 400, api.CodeBadRequest, "cannot be read") // not public
	refused("GET /history?service=s&namespace=prod;x", 400, api.CodeBadRequest, "cannot be read")
	refused("GET /history?service=s&namespace=a&namespace=b", 400, api.CodeBadRequest, "more than one parameter namespace")
	for _, at := range []string{"10.0.0.7", "10.0.0.7:", ":80", "10.0.0.7:x", "10.0.0.7:65536", "fd00::7:80"} {
		refused("GET /history?service=s&instance="+at, 400, api.CodeBadRequest, at)
	}
	refused("GET /hashes?node=none", 404, api.CodeNotFound, "none")
	refused("GET /hashes?node=broken", 500, api.CodeInternal, "went wrong")
	refused("GET /hashes?node=panics", 500, api.CodeInternal, "went wrong")
	refused("GET /hashes?node=odd", 500, "odd", "x: y") // a status of success would be taken for one
	if n := f.logs.FilterMessage("request failed").Len(); n != 1 {
		t.Errorf("%d errors are logged, want that of the node only", n)
	}
	if w := f.do("DELETE", "/starling/v1/drain", ""); w.Header().Get("Allow") != "GET, HEAD, POST" {
		t.Errorf("Allow: %q", w.Header().Get("Allow"))
	}
	if w := f.do("GET", "/nacos/v1/ns/instance/list?serviceName=a", ""); w.Code != 200 {
		t.Errorf("the Nacos API: %d", w.Code)
	}
	// The peer does not answer in time.
	r := httptest.NewRequest("GET", "/starling/v1/hashes?node=b2", nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r.WithContext(ctx))
	if w.Code != 504 || !strings.Contains(w.Body.String(), api.CodeTimeout) {
		t.Errorf("timeout: %d %s", w.Code, w.Body)
	}
}

func TestNativeNotOffered(t *testing.T) {
	f := newFixture(t)
	for _, call := range []string{"GET /members", "GET /cluster", "POST /self-preservation/end", "GET /hashes", "GET /history?service=s", "POST /drain", "GET /drain",
		"GET /raft", "GET /backup", "POST /restore", "POST /members/remove", "GET /edits", "POST /instances/edit", "POST /instances/evict", "POST /instances/lift"} {
		if w, code, _ := f.native(t, call, `{"dryRun":true}`, nativeJSON); w.Code != 501 || code != api.CodeNotOffered {
			t.Errorf("%s: %d %s", call, w.Code, code)
		}
	}
}

func TestNativeWrites(t *testing.T) {
	var done []string
	f := newFixture(t, func(o *Options) { o.Native, o.MaxRequestBytes = fakeNative(&done), 1000 })
	post := func(path, body string, status int, code string, headers ...string) {
		t.Helper()
		w, is, message := f.native(t, "POST "+path, body, headers...)
		if w.Code != status || is != code {
			t.Errorf("%s %.50s %v: %d %s %s, want %d %s", path, body, headers, w.Code, is, message, status, code)
		}
	}
	const dry, real = `{"dryRun":true}`, `{"dryRun":false}`
	post("/drain", dry, 200, "", nativeJSON)
	post("/drain", dry, 200, "", nativeJSON+"; charset=utf-8")
	// Nothing of the following may drain a node.
	post("/drain", real, 415, api.CodeContentType)
	post("/drain", real, 415, api.CodeContentType, form)
	post("/drain", real, 415, api.CodeContentType, "Content-Type: text/plain")
	post("/drain", real, 403, api.CodeForbidden, nativeJSON, "Sec-Fetch-Site: cross-site")
	post("/drain", real, 403, api.CodeForbidden, nativeJSON, "Sec-Fetch-Site: same-site")
	post("/drain", real, 403, api.CodeForbidden, nativeJSON, "Origin: http://evil.example")
	for _, body := range []string{"", "{}", "[]", "null", `{"dryRun":null}`, `{"dryRun":"false"}`, `{"dry_run":true}`, `{"dryRun":false,"x":1}`, real + real, real + "x", "dryRun=false"} {
		post("/drain", body, 400, api.CodeBadRequest, nativeJSON)
	}
	for body, says := range map[string]string{"": "it is empty", "[]": "it is of the type array, not an object", `{"dryRun":"x"}`: `"dryRun" cannot be of the type string`, `{"x":1}`: `unknown field "x"`, "{": "it is not JSON", "x": "it is not JSON"} {
		if _, _, message := f.native(t, "POST /drain", body, nativeJSON); message != "the body is not what this takes: "+says {
			t.Errorf("%s: %s", body, message)
		}
	}
	if says := jsonFault(json.Unmarshal([]byte(`{"port":"80"}`), new(api.EditRequest))); says != `"port" cannot be of the type string` {
		t.Error(says) // of a type that is embedded
	}
	f.opts.MaxRequestBytes = 1 << 20
	if w, _, _ := f.native(t, "POST /drain", `{"`+strings.Repeat("x", 100_000)+`":1}`, nativeJSON); w.Code != 400 || w.Body.Len() > 2000 {
		t.Errorf("a long name: %d, %d bytes", w.Code, w.Body.Len())
	}
	f.opts.MaxRequestBytes = 1000
	post("/drain", `{"dryRun":false`+strings.Repeat(" ", 1000)+"}", 413, api.CodeTooLarge, nativeJSON)
	post("/self-preservation/end", "", 400, api.CodeBadRequest, nativeJSON)
	post("/self-preservation/end", "{}", 403, api.CodeForbidden, nativeJSON, "Sec-Fetch-Site: cross-site")
	if len(done) != 0 {
		t.Fatalf("done: %v", done)
	}

	post("/drain", real, 200, "", nativeJSON)
	post("/drain", real, 200, "", nativeJSON, "Sec-Fetch-Site: same-origin", "Origin: http://example.com")
	post("/self-preservation/end", "{}", 200, "", nativeJSON)
	if got := strings.Join(done, " "); got != "drain drain end" {
		t.Errorf("done: %s", got)
	}
	w, _, _ := f.native(t, "POST /drain", dry, nativeJSON)
	if want := `{"node":"a1","name":"node-a","state":"planned","plan":{"clients":2,"instances":3,"targets":[{"node":"b2","name":"node-b","clients":2}],"seconds":1.5},"clientsLeft":2,"instancesLeft":3}`; strings.TrimSpace(w.Body.String()) != want {
		t.Errorf("plan: %s", w.Body)
	}
}

// Whatever cause the registry gives, the history says what it means.
func TestCausesAreExplained(t *testing.T) {
	src, err := os.ReadFile("../registry/history.go")
	if err != nil {
		t.Fatal(err)
	}
	causes := regexp.MustCompile(`(?m)^\tCause\w+\s+Cause = "([^"]+)"`).FindAllStringSubmatch(string(src), -1)
	if len(causes) < 10 {
		t.Fatalf("found only %q", causes)
	}
	for _, c := range causes {
		changes := api.MergeHistory([]api.NodeHistory{{Node: "a", Events: []api.Event{{Cause: c[1], After: &api.Instance{}}}}}, nil)
		if changes[0].Explanation == "" {
			t.Errorf("%q is not explained", c[1])
		}
	}
}

// The client and the server understand each other, errors too.
func TestNativeClient(t *testing.T) {
	var done []string
	f := newFixture(t, func(o *Options) { o.Native = fakeNative(&done) })
	srv := httptest.NewServer(http.Handler(f))
	defer srv.Close()
	c, err := api.NewClient(strings.TrimPrefix(srv.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	if m, err := c.Members(t.Context()); err != nil || len(m.Members) != 2 {
		t.Error(m, err)
	}
	if d, err := c.StartDrain(t.Context(), true); err != nil || d.State != api.DrainPlanned {
		t.Error(d, err)
	}
	if d, err := c.StartDrain(t.Context(), false); err != nil || d.State != api.DrainRunning {
		t.Error(d, err)
	}
	if s, err := c.EndSelfPreservation(t.Context()); err != nil || s.PausedMillis != 7 {
		t.Error(s, err)
	}
	if h, err := c.History(t.Context(), api.Service{Name: "s"}, "[fd00::7]:81"); err != nil || len(h.Changes) != 1 {
		t.Error(h, err)
	}
	_, err = c.Hashes(t.Context(), "none")
	if e, ok := errors.AsType[*api.Error](err); !ok || e.Status != 404 || e.Code != api.CodeNotFound || e.Hint == "" {
		t.Error(err)
	}
}
