package nacos

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/starling-registry/starling/pkg/registry"
)

func FuzzAppendString(f *testing.F) {
	f.Add("plain")
	f.Add("\x00\x1f\"\\\n\r\t\u2028é世\xff\xc3")
	f.Fuzz(func(t *testing.T, s string) {
		b := AppendString(nil, s)
		var got string
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatalf("%q: %v", b, err)
		}
		if want := strings.ToValidUTF8(s, "\ufffd"); utf8.ValidString(s) && got != want {
			t.Errorf("%q came back as %q", s, got)
		}
	})
}

func TestAppendFloat(t *testing.T) {
	f := func(v float64, want string) {
		t.Helper()
		if got := string(appendFloat(nil, v)); got != want {
			t.Errorf("%v is written %s, want %s", v, got, want)
		}
		var back float64
		if err := json.Unmarshal(appendFloat(nil, v), &back); err != nil || back != v {
			t.Errorf("%v came back as %v, %v", v, back, err)
		}
	}
	f(0, "0.0")
	f(1, "1.0")
	f(2.5, "2.5")
	f(10000, "10000.0")
	f(0.1, "0.1")
	f(1e-7, "1e-07")
	f(math.MaxFloat64, "1.7976931348623157e+308")
}

func TestParameterCheck(t *testing.T) { // §5.1, C28
	long := func(n int) string { return strings.Repeat("x", n) }
	f := func(err error, want string) {
		t.Helper()
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	tooLong := func(p string, n int) string {
		return fmt.Sprintf("Param '%s' is illegal, the param length should not exceed %d.", p, n)
	}
	bad := func(p string) string {
		return fmt.Sprintf("Param '%s' is illegal, illegal characters should not appear in the param.", p)
	}
	service := func(s string) error { return CheckService("", s, "") }
	for _, ok := range []string{"", "  ", "a", "providers:demo.Api:1.0.0:", "{{1}}", "a@b", "世a", "ü", "a\u00a0b", long(512), "a/b", "é世"[:2]} {
		f(service(ok), "")
	}
	f(service(long(513)), tooLong("serviceName", 512))
	f(service(strings.Repeat("😀", 257)), tooLong("serviceName", 512)) // two UTF-16 units each
	for _, s := range []string{"@a", "@@x", "a@@b", "x@@", "a b", "a\tb", "a世", "\na", " a", "a ", "\u00a0a", "a\u00a0", "\u3000a", "a\u2028"} {
		f(service(s), bad("serviceName"))
	}
	f(CheckService("a-Z_0", "", ""), "")
	f(CheckService("a.b", "", ""), bad("namespaceId/tenant"))
	f(CheckService(long(65), "", ""), tooLong("namespaceId/tenant", 64))
	f(CheckService("", "", "a-Z_0:."), "")
	f(CheckService("", "", "a b"), bad("group"))
	f(CheckService("", "", long(129)), tooLong("group", 128))
	f(CheckClusters("a,b_c,"), "")
	f(CheckClusters("a, b"), bad("cluster"))
	f(CheckClusters(strings.Repeat("a,", 2048)), "")
	f(CheckClusters(strings.Repeat("a,", 2048)+"a"), tooLong("cluster", 4096))
	f(CheckClusters(strings.Repeat(" ", 4097)), tooLong("cluster", 4096))
	f(CheckCluster("a,b"), bad("cluster"))
	f(CheckInstance(&Instance{InstanceID: long(1024)}), "")
	f(CheckInstance(&Instance{InstanceID: long(1025)}), tooLong("instanceId", 1024))
	f(CheckCluster(long(65)), tooLong("cluster", 64))
	f(CheckIP("host.name"), "")
	f(CheckIP("a b"), bad("ip"))
	f(CheckIP(long(129)), tooLong("ip", 128))
	f(CheckPort(0), "")
	f(CheckPort(65535), "")
	f(CheckPort(65536), string(badPort))
	f(CheckPort(-1), string(badPort))
	f(CheckMetadata(map[string]string{"k": long(1023)}), "")
	f(CheckMetadata(map[string]string{"k": long(1024)}), tooLong("Metadata", 1024))
}

func TestRegisterCheck(t *testing.T) { // §5.2
	f := func(edit func(*Instance), batch bool, want error) {
		t.Helper()
		i := &Instance{IP: "1.1.1.1", Port: 80, Weight: 1}
		edit(i)
		if got := CheckRegister(i, batch); got != want {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	f(func(i *Instance) {}, false, nil)
	f(func(i *Instance) { i.IP = " " }, false, ErrNoIP)
	f(func(i *Instance) { i.Weight = math.NaN() }, false, ErrWeight)
	f(func(i *Instance) { i.Weight = math.Inf(1) }, false, ErrWeight)
	f(func(i *Instance) { i.Weight = -0.1 }, true, ErrWeight)
	f(func(i *Instance) { i.Weight = 0 }, false, nil)
	f(func(i *Instance) { i.Metadata = Metadata{KeyBeatInterval: "16000"} }, false, ErrBeatTimes)
	f(func(i *Instance) { i.Metadata = Metadata{KeyDeleteAfter: "1000"} }, false, ErrBeatTimes)
	f(func(i *Instance) { i.Metadata = Metadata{KeyDeleteAfter: "soon"} }, false, nil)
	f(func(i *Instance) { i.ClusterName = "a_b" }, true, nil)
	f(func(i *Instance) { i.ClusterName = "a_b" }, false, ParamError("Instance 'clusterName' should be characters with only 0-9a-zA-Z-. (current: a_b)"))
}

func TestInstanceDefaults(t *testing.T) { // §3.2
	f := func(body string, want Instance) {
		t.Helper()
		var r InstanceRequest
		if err := DecodeBody([]byte(body), &r); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(&want, r.Instance); diff != "" {
			t.Errorf("%s (-want +got):\n%s", body, diff)
		}
	}
	f(`{"instance":{}}`, Instance{Weight: 1, Healthy: true, Enabled: true})
	f(`{"instance":{"weight":null,"healthy":null,"enabled":null,"metadata":null,"clusterName":null,"port":null,"ip":null}}`, Instance{Weight: 1, Healthy: true, Enabled: true})
	f(`{"instance":{"weight":0,"healthy":false,"enabled":false,"metadata":{"a":1.50,"b":true,"c":null,"d":"x"},"unknown":[{}]}}`, Instance{Metadata: Metadata{"a": "1.50", "b": "true", "d": "x"}})
	for _, bad := range []string{``, ` `, `null x`, `[]`, `{"instance":[]}`, `{"instance":{"metadata":{"a":[1]}}}`, `{"instance":{"metadata":{"a":{}}}}`, `{"instance":{"port":"x"}}`} {
		if err := DecodeBody([]byte(bad), new(InstanceRequest)); err == nil {
			t.Errorf("%s was accepted", bad)
		}
	}
}

func TestInstanceID(t *testing.T) { // D20
	key := registry.ServiceKey{Namespace: "public", Group: "g", Name: "s"}
	f := func(i Instance, want string) {
		t.Helper()
		i.IP, i.Port = "1.1.1.1", 80
		r, err := i.Registry(key)
		if err != nil {
			t.Fatal(err)
		}
		if got := InstanceID(r, key.Grouped()); got != want {
			t.Errorf("id %q, want %q", got, want)
		}
	}
	f(Instance{}, "1.1.1.1#80#DEFAULT#g@@s")
	f(Instance{ClusterName: "c1"}, "1.1.1.1#80#c1#g@@s")
	f(Instance{InstanceID: "own"}, "own")
	r, _ := (&Instance{IP: "1.1.1.1", Metadata: Metadata{KeyIDGenerator: "snowflake"}}).Registry(key)
	again, _ := (&Instance{IP: "1.1.1.1", Metadata: Metadata{KeyIDGenerator: "snowflake"}}).Registry(key)
	if r.ID != again.ID || !strings.HasSuffix(r.ID, "#DEFAULT#g@@s") {
		t.Errorf("snowflake ids %q and %q", r.ID, again.ID)
	}
	if _, err := (&Instance{Metadata: Metadata{KeyIDGenerator: "x"}}).Registry(key); err != ErrGenerator {
		t.Errorf("unknown generator: %v", err)
	}
}

func TestPage(t *testing.T) { // C42
	all := []string{"a", "b", "c", "d", "e"}
	f := func(no, size int, want string) {
		t.Helper()
		if got := strings.Join(Page(all, no, size), ""); got != want {
			t.Errorf("page %d of %d: %q, want %q", no, size, got, want)
		}
	}
	f(1, 2, "ab")
	f(2, 2, "cd")
	f(3, 2, "e")
	f(4, 2, "")
	f(0, 2, "ab")
	f(-5, 2, "ab")
	f(1, 0, "")
	f(1, -1, "")
	f(1, math.MaxInt, "abcde")
	f(math.MaxInt, math.MaxInt, "")
	f(math.MaxInt, 2, "")
	f(2, 5, "")
}

// Every field of a pushed list, as all SDK generations read it (§3.3, §3.10).
func TestNotifySubscriberRequest(t *testing.T) {
	r := registry.New(registry.DefaultOptions())
	key := registry.ServiceKey{Namespace: "public", Group: "g", Name: "s"}
	c := r.Open("c", registry.Connection)
	i, err := (&Instance{IP: "1.1.1.1", Port: 80, Weight: 1, Healthy: true, Enabled: true, Metadata: Metadata{KeyBeatInterval: "1000", "a": "b"}}).Registry(key)
	if err != nil {
		t.Fatal(err)
	}
	c.Register(key, []*registry.Instance{i}, false)
	clusters := "c1,c2"
	p := NotifySubscriberRequest(ServiceInfo{Name: "s", Group: "g", Clusters: &clusters, LastRefTime: 12345,
		Hosts: r.Snapshot(key).Encode(registry.Filter{}, EncodeHosts).Bytes}, 7)
	got := string(p.Body) + string(p.Shared) + string(p.Tail)
	want := `{"headers":{},"requestId":"7","module":"naming","serviceInfo":{"checksum":"","allIPs":false,"allIps":false,"valid":true,"hosts":[` +
		`{"instanceId":"1.1.1.1#80#DEFAULT#g@@s","ip":"1.1.1.1","port":80,"weight":1.0,"healthy":true,"enabled":true,"ephemeral":true,"clusterName":"DEFAULT","serviceName":"g@@s",` +
		`"metadata":{"a":"b","preserved.heart.beat.interval":"1000"},"instanceHeartBeatInterval":1000,"instanceHeartBeatTimeOut":15000,"ipDeleteTimeout":30000}],` +
		`"reachProtectionThreshold":false,"name":"s","groupName":"g","clusters":"c1,c2","lastRefTime":12345,"cacheMillis":10000}}`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A persistent host differs in one word (golden scenario 14).
func TestPersistentHost(t *testing.T) {
	r := registry.New(registry.DefaultOptions())
	key := registry.ServiceKey{Namespace: "public", Group: "g", Name: "s"}
	k := registry.InstanceKey{IP: "1.1.1.1", Port: 80, Cluster: "DEFAULT"}
	i := &registry.Instance{InstanceKey: k, Weight: 2, Enabled: true, Persistent: true, Metadata: registry.Metadata{{Key: "a", Value: "1"}}}
	r.Commit([]registry.Change{{Service: key, Instances: []registry.PersistentChange{{InstanceKey: k, Is: &registry.Persistent{Instance: i}}}}})
	r.Checked(registry.Check{Service: key, InstanceKey: k, Healthy: true, Made: 1})
	got := string(EncodeHosts(r.Snapshot(key), registry.Filter{}))
	want := `"checksum":"","allIPs":false,"allIps":false,"valid":true,"hosts":[{"instanceId":"1.1.1.1#80#DEFAULT#g@@s","ip":"1.1.1.1","port":80,` +
		`"weight":2.0,"healthy":true,"enabled":true,"ephemeral":false,"clusterName":"DEFAULT","serviceName":"g@@s","metadata":{"a":"1"},"instanceHeartBeatInterval":5000,` +
		`"instanceHeartBeatTimeOut":15000,"ipDeleteTimeout":30000}],"reachProtectionThreshold":false`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func FuzzDecodeBody(f *testing.F) {
	f.Add([]byte(`{"namespace":"public","type":"registerInstance","instance":{"ip":"1","port":80,"metadata":{"a":1}}}`))
	f.Add([]byte(`{"instances":[{"weight":1e308}],"clusters":null}`))
	key := registry.ServiceKey{Namespace: "public", Group: "g", Name: "s"}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, v := range []any{new(InstanceRequest), new(BatchInstanceRequest), new(SubscribeServiceRequest), new(ServiceQueryRequest), new(ServiceListRequest), new(ConnectionSetupRequest), new(Ack)} {
			if DecodeBody(b, v) != nil {
				continue
			}
			// What is accepted comes back as JSON.
			if r, ok := v.(*InstanceRequest); ok && r.Instance != nil && CheckInstance(r.Instance) == nil && CheckRegister(r.Instance, false) == nil {
				i, err := r.Instance.Registry(key)
				if err != nil {
					continue
				}
				if j := appendHost(nil, i, key.Grouped(), false); !json.Valid(j) {
					t.Errorf("%s came out as %s", b, j)
				}
			}
		}
	})
}

func TestPattern(t *testing.T) { // S9
	f := func(pattern, service string, want bool) {
		t.Helper()
		p, err := ParsePattern("ns>>g-*>>" + pattern)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Match(registry.ServiceKey{Namespace: "ns", Group: "g-1", Name: service}); got != want {
			t.Errorf("%s matches %s: %v", pattern, service, got)
		}
	}
	f("order", "order", true)
	f("order", "orders", false)
	f("*", "x", true)
	f(".*", "x", true) // what Java's shortest call sends
	f("or*", "order", true)
	f("or*", "or", true)
	f("or*", "for", false)
	f("*er", "order", true)
	f("*er", "errand", false)
	f("*rde*", "order", true)
	f("*x*", "order", false)
	f("o*r", "order", false) // a star in the middle matches nothing
	f("**", "order", true)
	other := Pattern{"ns", "g-*", "*"}
	for _, k := range []registry.ServiceKey{{Namespace: "other", Group: "g-1", Name: "x"}, {Namespace: "ns", Group: "h", Name: "x"}} {
		if other.Match(k) {
			t.Errorf("%v matches %v", other, k)
		}
	}
	if p, err := ParsePattern(">>g>>s"); err != nil || p.Namespace != "public" {
		t.Errorf("%v, %v", p, err)
	}
	for _, bad := range []string{"", "a", "a>>b", "a>>b>>", "a>>>>c", "a>>b>>c>>d"} {
		if _, err := ParsePattern(bad); err == nil {
			t.Errorf("%q is a pattern", bad)
		}
	}
	if _, err := ParsePattern(strings.Repeat(" ", 1024) + ">>g>>s"); err == nil {
		t.Error("a pattern may be longer than 1,024 characters")
	}
	if got := FuzzyKey(registry.ServiceKey{Namespace: "ns", Group: "g", Name: "s"}); got != "ns@@g@@s" {
		t.Error(got)
	}
}
