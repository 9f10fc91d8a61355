package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

// persistent is host for one that is not ephemeral.
func persistent(host string) string {
	return strings.Replace(host, `"ephemeral":true`, `"ephemeral":false`, 1)
}

func TestPersistent(t *testing.T) { // golden scenario 14
	const at = "ip=10.1.1.1&port=9101&serviceName=p"
	const refusedText = "errCode: 400, errMsg: Current service DEFAULT_GROUP@@p is persistent service, can't register ephemeral instance. "
	p := persistent(host("10.1.1.1", 9101, "DEFAULT", "DEFAULT_GROUP@@p", "2.0"))
	detail := func(healthy bool, weight, md string) string {
		return fmt.Sprintf(`{"clusterName":"DEFAULT","healthy":%t,"instanceId":"10.1.1.1#9101#DEFAULT#DEFAULT_GROUP@@p","ip":"10.1.1.1","metadata":%s,"port":9101,"service":"DEFAULT_GROUP@@p","weight":%s}`,
			healthy, md, weight)
	}
	f := newFixture(t)
	f.play(t, []step{
		ok("POST instance?ephemeral=false&weight=2&metadata=a=1&" + at),
		{"GET instance/list?serviceName=p", "", "", 200, js, list("DEFAULT_GROUP", "p", "", withMetadata(p, `{"a":"1"}`))},
		{"GET instance?" + at, "", "", 200, js, detail(true, "2.0", `{"a":"1"}`)},
		{"GET service?serviceName=p", "", "", 200, js, `{"clusters":[{"healthChecker":{"type":"TCP"},"metadata":{},"name":"DEFAULT"}],"groupName":"DEFAULT_GROUP",
			"metadata":{},"name":"p","namespaceId":"public","protectThreshold":0.0,"selector":{"contextType":"NONE","type":"none"}}`},
		{"POST instance?ip=10.1.1.2&port=80&serviceName=p", "", "", 400, text, refusedText},
		{`PUT instance/beat?beat={"ip":"10.1.1.2","port":80}&serviceName=p`, "", "", 400, text, refusedText},
		{"PUT instance/beat?" + at, "", "", 200, js, `{"clientBeatInterval":5000,"code":20404,"lightBeatEnabled":true}`},
		ok("PUT instance?ephemeral=false&weight=4&metadata=b=2&" + at),
		{"GET instance/list?serviceName=p", "", "", 200, js, list("DEFAULT_GROUP", "p", "", withMetadata(strings.Replace(p, `"weight":2.0`, `"weight":4.0`, 1), `{"a":"1","b":"2"}`))},
		ok("POST instance?ephemeral=false&weight=2&metadata=a=1&" + at), // the edit stays
		{"GET instance?" + at, "", "", 200, js, detail(true, "4.0", `{"a":"1","b":"2"}`)},
		ok("POST instance?ephemeral=false&clusterName=c2&" + at), // it moves
		{"GET instance/list?serviceName=p", "", "", 200, js, list("DEFAULT_GROUP", "p", "", persistent(host("10.1.1.1", 9101, "c2", "DEFAULT_GROUP@@p", "1.0")))},
		ok("DELETE instance?" + at),
		{"GET instance?clusterName=c2&" + at, "", "", 200, js, strings.Replace(strings.Replace(detail(true, "1.0", "{}"), `"DEFAULT"`, `"c2"`, 1), "#DEFAULT#", "#c2#", 1)},
		{"DELETE service?serviceName=p", "", "", 400, text, "Service DEFAULT_GROUP@@p is not empty, can't be delete. Please unregister instance first"},
		ok("DELETE instance?ephemeral=false&" + at),
		{"GET instance/list?serviceName=p", "", "", 200, js, list("DEFAULT_GROUP", "p", "")},
		ok("DELETE instance?ephemeral=false&" + at),
		ok("DELETE instance?ephemeral=false&ip=10.1.1.1&port=9101&serviceName=none"),
		ok("DELETE service?serviceName=p"),
	})
}

// TestKinds: the kind belongs to the service, whichever API names it (golden
// scenario 15, cases C08).
func TestKinds(t *testing.T) {
	const notPersistent = "errCode: 400, errMsg: Current service DEFAULT_GROUP@@e is ephemeral service, can't register persistent instance. "
	const notEphemeral = "errCode: 400, errMsg: Current service DEFAULT_GROUP@@p is persistent service, can't register ephemeral instance. "
	f := newFixture(t)
	steps := []step{
		ok("POST instance?ip=10.1.1.1&port=80&serviceName=e"),
		ok("POST service?serviceName=p"),
		{"POST instance?ephemeral=false&ip=10.1.1.2&port=80&serviceName=e", "", "", 400, text, notPersistent},
		{"POST instance?ip=10.1.1.2&port=80&serviceName=p", "", "", 400, text, notEphemeral},
	}
	for _, path := range []string{"/v2/ns/instance", "/v3/client/ns/instance", "/v3/admin/ns/instance"} {
		steps = append(steps,
			failed("POST "+path, "ephemeral=false&ip=10.1.1.2&port=80&serviceName=e", 30000, "server error", notPersistent),
			failed("POST "+path, "ip=10.1.1.2&port=80&serviceName=p", 30000, "server error", notEphemeral))
	}
	f.play(t, append(steps,
		ok("PUT instance?ephemeral=false&ip=10.1.1.1&port=80&serviceName=e&weight=3"), // an edit has no kind
		ok("POST instance?ephemeral=false&ip=10.1.1.2&port=80&serviceName=p"),
		ok("DELETE instance?ephemeral=false&ip=10.1.1.2&port=80&serviceName=p"),
		ok("DELETE service?serviceName=p"),
		ok("POST instance?ip=10.1.1.2&port=80&serviceName=p"), // it is free again
		step{"POST instance?ephemeral=false&ip=10.1.1.2&port=80&serviceName=p", "", "", 400, text, strings.Replace(notPersistent, "@@e", "@@p", 1)},
	))
}

func TestHealthByHand(t *testing.T) { // golden scenario 16
	const at = "ip=10.1.1.1&port=9102&serviceName=h"
	const working = "health check is still working, service: DEFAULT_GROUP@@h, cluster: DEFAULT"
	const checker = `&healthChecker={"type":"NONE"}`
	h := persistent(host("10.1.1.1", 9102, "DEFAULT", "DEFAULT_GROUP@@h", "1.0"))
	protected := strings.Replace(list("DEFAULT_GROUP", "h", "", h), `"reachProtectionThreshold":false`, `"reachProtectionThreshold":true`, 1)
	newFixture(t).play(t, []step{
		ok("POST instance?ephemeral=false&" + at),
		{"PUT health/instance?healthy=false&" + at, "", "", 400, text, working},
		failed("PUT /v2/ns/health", "healthy=false&"+at, 30000, "server error", working),
		failed("PUT /v3/admin/ns/health/instance", "healthy=false&"+at, 30000, "server error", working),
		ok("PUT cluster?checkPort=80&clusterName=DEFAULT&metadata=m=1&serviceName=h&useInstancePort4Check=true" + checker),
		{"GET service?serviceName=h", "", "", 200, js, `{"clusters":[{"healthChecker":{"type":"NONE"},"metadata":{"m":"1"},"name":"DEFAULT"}],"groupName":"DEFAULT_GROUP",
			"metadata":{},"name":"h","namespaceId":"public","protectThreshold":0.0,"selector":{"contextType":"NONE","type":"none"}}`},
		ok("PUT health/instance?healthy=false&" + at), // Nacos refuses this always
		{"GET instance/list?healthyOnly=true&serviceName=h", "", "", 200, js, list("DEFAULT_GROUP", "h", "")},
		{"GET instance/list?serviceName=h", "", "", 200, js, protected},
		done("PUT /v2/ns/health/instance", "healthy=true&"+at),
		{"GET instance/list?healthyOnly=true&serviceName=h", "", "", 200, js, list("DEFAULT_GROUP", "h", "", h)},
		ok("PUT health?valid=false&" + at), // 1.x
		done("PUT /v3/admin/ns/health/instance", "healthy=true&"+at),
		ok("PUT health?healthy=true&ip=10.1.1.9&port=9102&serviceName=h"),
		{"PUT health?" + at, "", "", 400, text, "Param 'healthy' is required."},
		failed("PUT /v2/ns/health", at, 10000, "parameter missing", "Required parameter 'healthy' type Boolean is not present"),
		failed("PUT /v3/admin/ns/health/instance", "healthy=x&"+at, 20002, "parameter validate error", "Param 'healthy' is illegal, it should be true or false: x"),
		{"PUT health?healthy=true&ip=10.1.1.1&port=9102&serviceName=none", "", "", 400, text, strings.Replace(working, "@@h", "@@none", 1)},
		{"PUT cluster?checkPort=80&clusterName=DEFAULT&serviceName=h&useInstancePort4Check=true", "", "", 400, text, "Param 'healthChecker' is required."},
		{"PUT cluster?checkPort=x&clusterName=DEFAULT&serviceName=h&useInstancePort4Check=true" + checker, "", "", 400, "", "Param 'port' is illegal, the value should be between 0 and 65535." + crlf},
		{"PUT cluster?checkPort=80&clusterName=DEFAULT&serviceName=none&useInstancePort4Check=true" + checker, "", "", 400, text, "service not found groupName: DEFAULT_GROUP,serviceName: none"},
		{`PUT cluster?checkPort=80&clusterName=DEFAULT&serviceName=h&useInstancePort4Check=true&healthChecker={"type":"PING"}`, "", "", 400, text, "Param 'healthChecker' is illegal, the type should be one of TCP, HTTP, MYSQL, NONE."},
		{`PUT cluster?checkPort=80&clusterName=DEFAULT&serviceName=h&useInstancePort4Check=true&healthChecker={bad`, "", "", 400, text, "Param 'healthChecker' is illegal, it should be a JSON object."},
		{"PUT cluster?checkPort=80&clusterName=a%20b&serviceName=h&useInstancePort4Check=true" + checker, "", "", 400, "", "Param 'cluster' is illegal, illegal characters should not appear in the param." + crlf},
		done("PUT /v3/admin/ns/cluster", `checkPort=81&clusterName=c2&healthChecker={"expectedResponseCode":204,"headers":"","path":"/ok","type":"HTTP"}&serviceName=h&useInstancePort4Check=false`),
		failed("PUT /v3/admin/ns/cluster", "serviceName=h", 10000, "parameter missing", "Required parameter 'clusterName' type String is not present"),
		failed("PUT /v3/admin/ns/cluster", "clusterName=c&serviceName=h", 10000, "parameter missing", "Required parameter 'checkPort' type Integer is not present"),
		failed("PUT /v3/admin/ns/cluster", "checkPort=1&clusterName=c&serviceName=h", 10000, "parameter missing", "Required parameter 'useInstancePort4Check' type Boolean is not present"),
		ok("POST instance?ephemeral=false&clusterName=c2&ip=10.1.1.2&port=1&serviceName=h"),
		{"GET /v3/admin/ns/service?serviceName=h", "", "", 200, js, result(0, "success", `{"clusterMap":{
			"DEFAULT":{"clusterName":"DEFAULT","healthChecker":{"type":"NONE"},"healthyCheckPort":80,"hosts":null,"metadata":{"m":"1"},"useInstancePortForCheck":true},
			"c2":{"clusterName":"c2","healthChecker":{"type":"HTTP","path":"/ok","headers":"","expectedResponseCode":204},"healthyCheckPort":81,"hosts":null,"metadata":{},"useInstancePortForCheck":false}},
			"ephemeral":false,"groupName":"DEFAULT_GROUP","metadata":{},"namespaceId":"public","protectThreshold":0.0,"selector":{"contextType":"NONE","type":"none"},"serviceName":"h"}`)},
		{"GET health/checkers", "", "", 200, js, `{"HTTP":{"expectedResponseCode":200,"headers":"","path":""},"MYSQL":{"cmd":null,"pwd":null,"user":null},"NONE":{},"TCP":{}}`},
		{"GET /v3/admin/ns/health/checkers", "", "", 200, js, result(0, "success", `{"HTTP":{"expectedResponseCode":200,"headers":"","path":""},"MYSQL":{"cmd":null,"pwd":null,"user":null},"NONE":{},"TCP":{}}`)},
		{"POST health/server", "", "", 200, js, `{"msg":"Hello! I am Nacos-Naming and healthy! total services: 1, local port:0"}`},
	})
}

// TestDeregisterMatrix: what is stored × what is asked for × over what it was
// registered (cases C14).
func TestDeregisterMatrix(t *testing.T) {
	const at = "ip=10.1.1.1&port=80&serviceName=a"
	key := registry.ServiceKey{Namespace: "public", Group: "DEFAULT_GROUP", Name: "a"}
	for _, stored := range []string{"http", "grpc", "persistent"} {
		for _, ephemeral := range []string{"true", "false"} {
			for _, path := range []string{"/v1/ns/instance", "/v2/ns/instance", "/v3/client/ns/instance", "/v3/admin/ns/instance"} {
				f := newFixture(t)
				switch stored {
				case "http":
					f.do("POST", "/nacos/v1/ns/instance?"+at, "")
				case "persistent":
					f.do("POST", "/nacos/v1/ns/instance?ephemeral=false&"+at, "")
				default:
					i := &registry.Instance{InstanceKey: registry.InstanceKey{IP: "10.1.1.1", Port: 80, Cluster: "DEFAULT"}, Weight: 1, Healthy: true, Enabled: true}
					if err := f.registry.Open("sdk", registry.Connection).Register(key, []*registry.Instance{i}, false); err != nil {
						t.Fatal(err)
					}
				}
				name := fmt.Sprintf("%s instance, DELETE %s ephemeral=%s", stored, path, ephemeral)
				if w := f.do("DELETE", "/nacos"+path+"?clusterName=other&ephemeral="+ephemeral+"&"+at, ""); w.Code != 200 || !strings.Contains(w.Body.String(), "ok") {
					t.Errorf("%s: %d %s", name, w.Code, w.Body)
				}
				goes := stored == "http" && ephemeral == "true" || stored == "persistent" && ephemeral == "false"
				if gone := len(f.registry.Snapshot(key).Instances) == 0; gone != goes {
					t.Errorf("%s: gone is %v", name, gone)
				}
				if n := f.logs.FilterLevelExact(zap.WarnLevel).Len(); (n == 0) != goes {
					t.Errorf("%s: %d warnings", name, n)
				}
				if w := f.do("DELETE", "/nacos/v1/ns/service?serviceName=a", ""); (w.Code == 200) != goes {
					t.Errorf("%s: then DELETE service: %d %s", name, w.Code, w.Body)
				}
			}
		}
	}
}

// durableWrites are requests that go through the log.
var durableWrites = []string{
	"POST /v1/ns/instance?ephemeral=false&ip=10.1.1.1&port=80&serviceName=p",
	"DELETE /v1/ns/instance?ephemeral=false&ip=10.1.1.1&port=80&serviceName=p",
	"PUT /v1/ns/instance?ip=10.1.1.1&port=80&serviceName=p&weight=2",
	"PATCH /v1/ns/instance?ip=10.1.1.1&port=80&serviceName=p&weight=2",
	"POST /v1/ns/service?serviceName=new",
	"PUT /v1/ns/service?serviceName=p&protectThreshold=0",
	"DELETE /v1/ns/service?serviceName=empty",
	`PUT /v1/ns/cluster?checkPort=80&clusterName=DEFAULT&serviceName=p&useInstancePort4Check=true&healthChecker={"type":"TCP"}`,
	"PUT /v1/ns/health?healthy=true&ip=10.1.1.1&port=80&serviceName=p",
	"POST /v2/ns/instance?ephemeral=false&ip=10.1.1.1&port=80&serviceName=p",
	"POST /v3/client/ns/instance?ephemeral=false&ip=10.1.1.1&port=80&serviceName=p",
	"PUT /v3/admin/ns/instance/partial?ip=10.1.1.1&port=80&serviceName=p&weight=2",
	"POST /v3/admin/ns/service?serviceName=new",
}

// TestDurableRefusals: what the log does not take is an error in the shape of
// the version, and the rest of the node goes on (cases C06).
func TestDurableRefusals(t *testing.T) {
	f := newFixture(t)
	f.do("POST", "/nacos/v1/ns/instance?ephemeral=false&ip=10.1.1.1&port=80&serviceName=p", "")
	for _, c := range []struct {
		err    error
		status int
		text   string
	}{
		{refused(NoLeader, "no leader"), 500, "errCode: 500, errMsg: The Raft Group [naming_persistent_service_v2] did not find the Leader node "},
		{refused(UnknownOutcome, "lost the leader"), 500, "errCode: 500, errMsg: it is not known whether this was written, look before you write again: lost the leader "},
		{refused(NotUnderstood, "node b"), 503, "some nodes of the cluster are of an older release and cannot carry this out yet: node b"},
		{errors.New("secret"), 500, "caused: internal error;"},
	} {
		f.durable.broken = c.err
		for _, call := range durableWrites {
			method, target, _ := strings.Cut(call, " ")
			writes := f.durable.writes
			w := f.do(method, "/nacos"+target, "")
			body, want := w.Body.String(), c.text
			if !strings.HasPrefix(target, "/v1/") {
				want = string(nacos.AppendString([]byte(`{"code":30000,"message":"server error","data":`), c.text)) + "}"
			}
			if w.Code != c.status || body != want || f.durable.writes != writes+1 {
				t.Errorf("%s, %v: %d %s, %d writes; want %d %s", call, c.err, w.Code, body, f.durable.writes-writes, c.status, want)
			}
		}
		f.play(t, []step{
			ok("POST instance?ip=10.1.1.9&port=80&serviceName=e"),
			{"GET instance?ip=10.1.1.1&port=80&serviceName=p", "", "", 200, js, `{"clusterName":"DEFAULT","healthy":true,"instanceId":"10.1.1.1#80#DEFAULT#DEFAULT_GROUP@@p","ip":"10.1.1.1","metadata":{},"port":80,"service":"DEFAULT_GROUP@@p","weight":1.0}`},
		})
	}
	f.durable.broken = refused(Invalid, "the path is longer than 4096 bytes")
	f.play(t, []step{
		{"PUT service?protectThreshold=0&serviceName=p", "", "", 400, text, "the path is longer than 4096 bytes"},
		failed("POST /v3/admin/ns/service", "serviceName=new", 20002, "parameter validate error", "the path is longer than 4096 bytes"),
	})
	// Another node knows what this one does not know yet.
	f.durable.broken = refused(WrongKind, "ephemeral")
	f.play(t, []step{{"POST instance?ephemeral=false&ip=10.1.1.1&port=80&serviceName=p", "", "", 400, text,
		"errCode: 400, errMsg: Current service DEFAULT_GROUP@@p is ephemeral service, can't register persistent instance. "}})
	f.durable.broken = refused(Exists, "")
	f.play(t, []step{{"POST service?serviceName=new", "", "", 400, text, "specified service DEFAULT_GROUP@@new already exists!"}})
	f.durable.broken = refused(NotEmpty, "")
	f.play(t, []step{{"DELETE service?serviceName=new", "", "", 400, text, "Service DEFAULT_GROUP@@new is not empty, can't be delete. Please unregister instance first"}})
}

// slowLog takes no write before its context ends.
type slowLog struct{ Durable }

func (slowLog) PutInstance(ctx context.Context, _ registry.ServiceKey, _ *registry.Instance) error {
	<-ctx.Done()
	return refused(NoLeader, ctx.Err().Error())
}

func TestDurableBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.Durable = slowLog{} })
		began := time.Now()
		w := f.do("POST", "/nacos/v1/ns/instance?ephemeral=false&ip=10.1.1.1&port=80&serviceName=p", "")
		if took := time.Since(began); w.Code != 500 || took != durableLimit {
			t.Errorf("%d after %v: %s", w.Code, took, w.Body)
		}
	})
}

// TestDurableIsNotRouted: the log finds its leader by itself; a node that keeps
// HTTP clients has nothing to do with it.
func TestDurableIsNotRouted(t *testing.T) {
	for _, call := range durableWrites {
		here, there, l := newLinked(t)
		here.do("POST", "/nacos/v1/ns/instance?ephemeral=false&ip=10.1.1.1&port=80&serviceName=p", "")
		method, target, _ := strings.Cut(call, " ")
		here.do(method, "/nacos"+target, "")
		if here.durable.writes != 2 || l.crossed.Load() != 0 || there.durable.writes != 0 {
			t.Errorf("%s: %d writes here, %d there, %d requests crossed", call, here.durable.writes, there.durable.writes, l.crossed.Load())
		}
	}
	here, there, l := newLinked(t)
	// What HTTP clients write is routed in all versions: Nacos loses it in v2
	// and v3 (http-api §9).
	for i, path := range []string{"/v2/ns/instance", "/v3/client/ns/instance", "/v3/admin/ns/instance"} {
		target := fmt.Sprintf("/nacos%s?ip=10.1.1.%d&port=80&serviceName=e", path, i)
		for _, method := range []string{"POST", "DELETE"} {
			w := here.do(method, target, "")
			if w.Body.String() != result(0, "success", `"ok"`) {
				t.Errorf("%s %s: %d %s", method, path, w.Code, w.Body)
			}
			want := map[string]int64{"POST": 1, "DELETE": 0}[method]
			if n := there.registry.Stats().Instances; n != want || here.registry.Stats().Publications != 0 {
				t.Errorf("after %s %s: %d instances there, want %d", method, path, n, want)
			}
		}
	}
	if n := l.crossed.Load(); n != 6 {
		t.Errorf("%d requests crossed, want 6", n)
	}
}

// A client that has closed its half of the connection is told what became of
// its write: the log does not know of it.
func TestClientThatIsGone(t *testing.T) {
	seen := &contexts{}
	f := newFixture(t, func(o *Options) {
		seen.Durable = o.Durable
		o.Durable = seen
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	f.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "POST", "/nacos/v1/ns/instance?ephemeral=false&ip=10.1.1.1&port=80&serviceName=p", nil))
	if w.Code != 200 || len(seen.errs) != 1 || seen.errs[0] != nil {
		t.Errorf("%d %s, contexts %v", w.Code, w.Body, seen.errs)
	}
}

// contexts keeps what the contexts of writes say.
type contexts struct {
	Durable
	errs []error
}

func (c *contexts) PutInstance(ctx context.Context, k registry.ServiceKey, i *registry.Instance) error {
	c.errs = append(c.errs, ctx.Err())
	return c.Durable.PutInstance(ctx, k, i)
}

// The password of a health check is told to nobody, and stays where a cluster
// is written back as it was read.
func TestCheckerPassword(t *testing.T) {
	f := newFixture(t)
	checker := func(pwd, cmd string) string {
		return url.QueryEscape(`{"type":"MYSQL","user":"u","pwd":"` + pwd + `","cmd":"` + cmd + `"}`)
	}
	key := registry.ServiceKey{Namespace: "public", Group: "DEFAULT_GROUP", Name: "db"}
	is := func(pwd, cmd string) {
		t.Helper()
		if c := f.registry.Snapshot(key).Meta.Cluster("DEFAULT").Checker; c.Password != pwd || c.Command != cmd {
			t.Errorf("the check is %+v", c)
		}
		for _, path := range []string{"/v1/ns/service", "/v2/ns/service", "/v3/admin/ns/service"} {
			w := f.do("GET", "/nacos"+path+"?serviceName=db", "")
			if b := w.Body.String(); w.Code != 200 || strings.Contains(b, "secret") || strings.Contains(b, "******") != (pwd != "") {
				t.Errorf("%s: %d %s", path, w.Code, b)
			}
		}
	}
	put := func(checker string) {
		t.Helper()
		w := f.do("PUT", "/nacos/v1/ns/cluster?serviceName=db&clusterName=DEFAULT&checkPort=80&useInstancePort4Check=true&healthChecker="+checker, "")
		if w.Code != 200 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	if w := f.do("POST", "/nacos/v1/ns/instance?serviceName=db&ip=10.0.0.1&port=80&ephemeral=false", ""); w.Code != 200 {
		t.Fatal(w.Body)
	}
	put(checker("secret-1", "a"))
	is("secret-1", "a")
	put(checker("******", "b"))
	is("secret-1", "b")
	put(checker("secret-2", "b"))
	is("secret-2", "b")
	put(checker("", "b"))
	is("", "b")
}
