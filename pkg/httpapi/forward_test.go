package httpapi

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/starling-registry/starling/pkg/registry"
	starlingv1 "github.com/starling-registry/starling/proto"
)

// A link is how one node reaches the other, which owns all clients.
type link struct {
	to      *fixture
	owner   atomic.Pointer[string] // "": the node itself
	down    atomic.Bool            // refuses
	silent  atomic.Bool            // says nothing
	crossed atomic.Int64
}

func (l *link) own(node string) { l.owner.Store(&node) }

func (l *link) router() *Router {
	return &Router{
		Owner: func(string) (string, bool) { o := *l.owner.Load(); return o, o == "" },
		Forward: func(ctx context.Context, node string, req *starlingv1.ForwardRequest) (*starlingv1.ForwardResponse, error) {
			if l.silent.Load() {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			if l.down.Load() || node != "other" {
				return nil, errors.New("connection refused")
			}
			b, err := proto.Marshal(req)
			if err != nil {
				return nil, err
			}
			if b, err = l.to.Forwarded(ctx, b); err != nil {
				return nil, err
			}
			l.crossed.Add(1)
			a := new(starlingv1.ForwardResponse)
			return a, proto.Unmarshal(b, a)
		},
	}
}

func newLinked(t *testing.T) (here, there *fixture, l *link) {
	l = &link{}
	l.own("other")
	l.to = newFixture(t, func(o *Options) {
		o.Router = &Router{
			Owner: func(string) (string, bool) { return "a third one", false },
			Forward: func(context.Context, string, *starlingv1.ForwardRequest) (*starlingv1.ForwardResponse, error) {
				t.Error("a forwarded request is forwarded again")
				return nil, errors.New("never")
			},
		}
	})
	return newFixture(t, func(o *Options) { o.Router = l.router() }), l.to, l
}

func order() registry.ServiceKey {
	return registry.ServiceKey{Namespace: "public", Group: "DEFAULT_GROUP", Name: "order"}
}

const ns = "/nacos/v1/ns/"

// What a client says and hears is the same, whichever node it asks.
func TestForwardedAnswers(t *testing.T) {
	here, there, l := newLinked(t)
	alone := newFixture(t)
	for i, c := range []struct {
		method, target, body string
		headers              []string
	}{
		{"POST", "instance?serviceName=order&ip=1.1.1.1&port=80", "", nil},
		{"POST", "instance", "serviceName=g%40%40order&ip=1.1.1.1&port=80&metadata=%7B%22a+b%22%3A%22c%26d%3D%25%C3%A9%22%7D&weight=2.5&enabled=false", []string{form}},
		{"POST", "instance?serviceName=order&ip=1.1.1.1", "port=80&clusterName=c1&healthy=false&metadata=a=1,b=2", []string{form}},
		{"POST", "instance?serviceName=order&ip=1.1.1.1&port=81", "", []string{"Accept: application/json"}},
		{"POST", "instance?serviceName=order&ip=1.1.1.1&port=82&weight=20000", "", nil},
		{"POST", "instance?serviceName=order&ip=1.1.1.1&port=83", "", []string{"User-Agent: caf\xe9", "Accept: \xff"}}, // no UTF-8
		{"POST", "%69nstance?serviceName=order&ip=1.1.1.1&port=84", "", nil},
		{"PUT", "instance/be%61t?serviceName=order&ip=1.1.1.1&port=84", "", nil},
		{"POST", "instance?serviceName=order&ip=1.1.1.1&port=82&metadata=%7Bx", "", nil},
		{"PUT", "instance/beat?serviceName=order&ip=1.1.1.1&port=80", "", nil},
		{"PUT", "instance/beat?serviceName=order&ip=1.1.1.2&port=80", "", nil},
		{"PUT", "instance/beat", `namespaceId=public&serviceName=DEFAULT_GROUP@@order&beat={"ip":"1.1.1.4","port":80,"weight":1,"cluster":"DEFAULT","metadata":{"k":"v w"}}`, []string{form}},
		{"PUT", "instance/beat?serviceName=order&beat=%7B%22ip%22%3A%221.1.1.5%22%2C%22port%22%3A80%2C%22weight%22%3A-1%7D", "", nil},
		{"DELETE", "instance?serviceName=order&ip=1.1.1.1&port=80", "", nil},
		{"DELETE", "instance?serviceName=order&ip=9.9.9.9&port=80&ephemeral=true", "", nil},
		{"DELETE", "instance?serviceName=order&ip=9.9.9.9", "", nil},
	} {
		want := alone.do(c.method, ns+c.target, c.body, c.headers...)
		got := here.do(c.method, ns+c.target, c.body, c.headers...)
		if got.Code != want.Code || got.Body.String() != want.Body.String() || strings.Join(got.Header()["Content-Type"], ";") != strings.Join(want.Header()["Content-Type"], ";") {
			t.Errorf("step %d: %d %q %s, want %d %q %s", i, got.Code, got.Header(), got.Body, want.Code, want.Header(), want.Body)
		}
	}
	for _, k := range []registry.ServiceKey{order(), {Namespace: "public", Group: "g", Name: "order"}} {
		is := there.do("GET", ns+"instance/list?serviceName="+k.Grouped(), "").Body.String()
		want := alone.do("GET", ns+"instance/list?serviceName="+k.Grouped(), "").Body.String()
		if a, b := decode(t, is), decode(t, want); !equal(a["hosts"], b["hosts"]) {
			t.Errorf("the other node has\n  %s\nwant\n  %s", is, want)
		}
	}
	if n := here.registry.Stats().Publications; n != 0 {
		t.Errorf("%d publications here", n)
	}
	if n := l.crossed.Load(); n < 8 {
		t.Errorf("only %d requests were forwarded", n)
	}
	// What is not a write of an HTTP client stays here.
	before := l.crossed.Load()
	here.do("DELETE", ns+"instance?serviceName=order&ip=1.1.1.1&port=80&ephemeral=false", "")
	here.do("PUT", ns+"instance?serviceName=order&ip=1.1.1.1&port=80&enabled=false", "")
	here.do("PATCH", ns+"instance?serviceName=order&ip=1.1.1.1&port=80&enabled=false", "")
	here.do("GET", ns+"instance?serviceName=order&ip=1.1.1.1&port=80", "")
	if n := l.crossed.Load(); n != before {
		t.Errorf("%d requests too many were forwarded", n-before)
	}
}

func equal(a, b any) bool {
	x, y := a.([]any), b.([]any)
	if len(x) != len(y) {
		return false
	}
	for i := range x {
		for k, v := range x[i].(map[string]any) {
			if w := y[i].(map[string]any)[k]; k != "metadata" && v != w {
				return false
			}
		}
	}
	return true
}

func TestOwnerCannotBeReached(t *testing.T) {
	register := ns + "instance?serviceName=order&ip=1.1.1.1&port=80"
	for _, c := range []struct {
		name     string
		prepare  func(l *link)
		status   int
		least    time.Duration
		atMost   time.Duration
		here     int64
		answered string // the label of the metric
	}{
		{"it refuses", func(l *link) { l.down.Store(true) }, 503, 2900 * time.Millisecond, 3 * time.Second, 0, "unreachable"},
		{"it is silent", func(l *link) { l.silent.Store(true) }, 503, 2900 * time.Millisecond, 3 * time.Second, 0, "unreachable"},
		{"it refuses and is known to be gone", func(l *link) {
			l.down.Store(true)
			go func() { time.Sleep(500 * time.Millisecond); l.own("") }()
		}, 200, 400 * time.Millisecond, time.Second, 1, "here"},
		{"it is silent and is known to be gone", func(l *link) {
			l.silent.Store(true)
			go func() { time.Sleep(1800 * time.Millisecond); l.own("") }()
		}, 200, 1800 * time.Millisecond, 2500 * time.Millisecond, 1, "here"},
		{"a third one owns the client now", func(l *link) {
			l.own("gone")
			go func() { time.Sleep(500 * time.Millisecond); l.own("other") }()
		}, 200, 400 * time.Millisecond, time.Second, 0, "answered"},
	} {
		synctest.Test(t, func(t *testing.T) {
			here, _, l := newLinked(t)
			c.prepare(l)
			began := time.Now()
			w := here.do("POST", register, "")
			took := time.Since(began)
			if w.Code != c.status || took < c.least || took > c.atMost {
				t.Errorf("%s: %d %q after %v", c.name, w.Code, w.Body, took)
			}
			if w.Code == 503 && !strings.Contains(w.Body.String(), "cannot be reached") {
				t.Errorf("%s: %q", c.name, w.Body)
			}
			if n := here.registry.Stats().Publications; n != c.here {
				t.Errorf("%s: %d publications here", c.name, n)
			}
			if s := here.do("GET", "/metrics", "").Body.String(); !strings.Contains(s, `starling_http_forwarded_requests_total{result="`+c.answered+`"} 1`) {
				t.Errorf("%s: is not counted", c.name)
			}
		})
	}
}

// A node that is not ready takes what others send it, and nothing else.
func TestForwardedToWhoIsNotReady(t *testing.T) {
	here, there, _ := newLinked(t)
	there.reason = "catching up"
	if w := here.do("POST", ns+"instance?serviceName=order&ip=1.1.1.1&port=80", ""); w.Code != 200 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if n := len(there.registry.Snapshot(order()).Instances); n != 1 {
		t.Errorf("%d instances", n)
	}
	if w := there.do("POST", ns+"instance?serviceName=order&ip=1.1.1.1&port=80", ""); w.Code != 503 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	here.reason = "catching up"
	if w := here.do("POST", ns+"instance?serviceName=order&ip=1.1.1.2&port=80", ""); w.Code != 503 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// Only what is for forwarding can be had in this way.
func TestForwardedRefuses(t *testing.T) {
	f := newFixture(t)
	for _, r := range []*starlingv1.ForwardRequest{
		{Method: "GET", Path: "/v1/ns/instance/list"}, {Method: "POST", Path: "/v1/auth/login"}, {Method: "PUT", Path: "/v1/ns/instance"},
		{Method: "GET", Path: "/../debug/pprof/heap"}, {},
	} {
		b, err := proto.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if a, err := f.Forwarded(t.Context(), b); err == nil {
			t.Errorf("%v: answered %q", r, a)
		}
	}
	if _, err := f.Forwarded(t.Context(), []byte("\xff\xff")); err == nil {
		t.Error("nonsense is answered")
	}
}

// The stall of this process is handled before a request is taken.
func TestAwakeBeforeReady(t *testing.T) {
	ready := true
	f := newFixture(t, func(o *Options) {
		o.Ready = func() (bool, string) { return ready, "catching up" }
		o.Awake = func() { ready = false }
	})
	r := httptest.NewRequest(http.MethodPost, ns+"instance?serviceName=order&ip=1.1.1.1&port=80", nil)
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r)
	if w.Code != 503 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// What a client has registered over another node may not be here yet when the
// next thing that it says is: that waits for it, and not for ever.
func TestWritesWaitForReplication(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, _, _ := newLinked(t)
		for _, call := range []string{"PUT instance?serviceName=a&ip=10.0.0.1&port=80", "PATCH instance?serviceName=b&ip=10.0.0.1&port=80&weight=2", "PUT service?serviceName=c&protectThreshold=0.5"} {
			method, target, _ := strings.Cut(call, " ")
			began := time.Now()
			if w := here.do(method, ns+target, ""); w.Code < 400 || time.Since(began) != soonLimit {
				t.Errorf("%s of what is not there: %d after %v", call, w.Code, time.Since(began))
			}
			time.AfterFunc(300*time.Millisecond, func() {
				_, name, _ := strings.Cut(target, "=")
				key := registry.ServiceKey{Namespace: "public", Group: "DEFAULT_GROUP", Name: name[:1]}
				inst := &registry.Instance{InstanceKey: registry.InstanceKey{IP: "10.0.0.1", Port: 80, Cluster: "DEFAULT"}, Weight: 1, Healthy: true, Enabled: true}
				if err := here.registry.Open("other", registry.Connection).Register(key, []*registry.Instance{inst}, false); err != nil {
					t.Error(err)
				}
			})
			began = time.Now()
			if w := here.do(method, ns+target, ""); w.Code != 200 || time.Since(began) < 300*time.Millisecond || time.Since(began) > 320*time.Millisecond {
				t.Errorf("%s of what comes: %d %s after %v", call, w.Code, w.Body, time.Since(began))
			}
		}
	})
}
