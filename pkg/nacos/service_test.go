package nacos

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/starling-registry/starling/pkg/registry"
)

func TestParseSelector(t *testing.T) { // semantics V13
	label := func(expression string) registry.Selector {
		return registry.Selector{Type: "label", Expression: expression}
	}
	none := registry.Selector{Type: "none"}
	for _, c := range []struct {
		text string
		is   registry.Selector
		err  error
	}{
		{"", none, nil}, {" ", none, nil}, {"null", none, nil}, {`{"type":"none"}`, none, nil},
		{`{"type":"label","expression":"CONSUMER.label.a = PROVIDER.label.a"}`, label("CONSUMER.label.a = PROVIDER.label.a"), nil},
		{`{"type":"label","expression":"CONSUMER.label.a=PROVIDER.label.a & CONSUMER.label.b=PROVIDER.label.b"}`, label("CONSUMER.label.a=PROVIDER.label.a & CONSUMER.label.b=PROVIDER.label.b"), nil},
		{`{"type":"label"}`, label(""), nil},
		{`{"type":"label","expression":"nonsense"}`, none, ErrExpression},
		{`{"type":"label","expression":"CONSUMER.label.a = PROVIDER.label.b"}`, none, ErrExpression},
		{`{"type":"label","expression":"CONSUMER.label.a = PROVIDER.label.a &"}`, none, ErrExpression},
		{`{"type":"label","expression":"CONSUMER.label. = PROVIDER.label."}`, none, ErrExpression},
		{`{"type":"unknown"}`, none, ErrSelectorType}, {`{}`, none, ErrSelectorType},
		{`{bad`, none, ErrBadSelector}, {`[]`, none, ErrBadSelector}, {`"label"`, none, ErrBadSelector}, {`{"type":1}`, none, ErrBadSelector},
	} {
		if is, err := ParseSelector(c.text); is != c.is || err != c.err {
			t.Errorf("%s: %+v, %v; want %+v, %v", c.text, is, err, c.is, c.err)
		}
	}
}

func TestParseChecker(t *testing.T) { // http-api §4.5
	for _, c := range []struct {
		text string
		is   registry.Checker
		err  error
	}{
		{`{"type":"TCP"}`, registry.Checker{Type: "TCP"}, nil},
		{`{"type":"none","path":"/x"}`, registry.Checker{Type: "NONE"}, nil},
		{`{"type":"HTTP"}`, registry.Checker{Type: "HTTP", ExpectedCode: 200}, nil},
		{`{"type":"HTTP","path":"/ok","headers":"a:b|c:d","expectedResponseCode":204}`, registry.Checker{Type: "HTTP", Path: "/ok", Headers: "a:b|c:d", ExpectedCode: 204}, nil},
		{`{"type":"HTTP","expectedResponseCode":"301"}`, registry.Checker{Type: "HTTP", ExpectedCode: 301}, nil},
		{`{"type":"HTTP","expectedResponseCode":null,"path":null}`, registry.Checker{Type: "HTTP", ExpectedCode: 200}, nil},
		{`{"type":"MYSQL","user":"u","pwd":"p","cmd":"select 1"}`, registry.Checker{Type: "MYSQL", User: "u", Password: "p", Command: "select 1"}, nil},
		{`{"type":"PING"}`, registry.Checker{}, ErrCheckerType}, {`{}`, registry.Checker{}, ErrCheckerType},
		{``, registry.Checker{}, ErrBadChecker}, {`null`, registry.Checker{}, ErrBadChecker}, {`{bad`, registry.Checker{}, ErrBadChecker}, {`[]`, registry.Checker{}, ErrBadChecker},
		{`{"type":"HTTP","expectedResponseCode":"x"}`, registry.Checker{}, errExpectedCode}, {`{"type":"HTTP","expectedResponseCode":2.5}`, registry.Checker{}, errExpectedCode},
		{`{"type":"HTTP","expectedResponseCode":99}`, registry.Checker{}, errExpectedCode},
	} {
		is, err := ParseChecker(c.text)
		if err != c.err || err == nil && is != c.is {
			t.Errorf("%s: %+v, %v; want %+v, %v", c.text, is, err, c.is, c.err)
		}
	}
}

// FuzzDescribed: whatever an operator sends, what is taken reads the same when
// it is asked for and sent again. Of passwords it only tells whether there is one.
func FuzzDescribed(f *testing.F) {
	f.Add(`{"type":"label","expression":"CONSUMER.label.a = PROVIDER.label.a"}`, `{"type":"HTTP","path":"/ok","expectedResponseCode":204}`)
	f.Add(`{"type":"none"}`, `{"type":"MYSQL","user":"é","pwd":"\u0000","cmd":null}`)
	f.Add(`{bad`, `{"type":"tcp","headers":"a:b"}`)
	f.Fuzz(func(t *testing.T, selector, checker string) {
		if s, err := ParseSelector(selector); err == nil {
			b, err := json.Marshal(selectorOf(s))
			if err != nil {
				t.Fatal(err)
			}
			if again, err := ParseSelector(string(b)); err != nil || again != s {
				t.Errorf("%q became %s, read as %+v, %v", selector, b, again, err)
			}
		}
		if c, err := ParseChecker(checker); err == nil {
			b, err := json.Marshal(checkerOf(c))
			if err != nil {
				t.Fatal(err)
			}
			if c.Password != "" {
				c.Password = HiddenPassword
			}
			if again, err := ParseChecker(string(b)); err != nil || again != c {
				t.Errorf("%q became %s, read as %+v, %v", checker, b, again, err)
			}
		}
	})
}

// TestHostsOf: the array is that of the whole object, whatever is in it.
func TestHostsOf(t *testing.T) {
	key := registry.ServiceKey{Namespace: "public", Group: "g", Name: "a"}
	for _, n := range []int{0, 1, 3} {
		s := &registry.Snapshot{Service: key}
		for i := range n {
			s.Instances = append(s.Instances, &registry.Shown{Instance: &registry.Instance{InstanceKey: registry.InstanceKey{IP: "10.0.0.1", Port: i, Cluster: "DEFAULT"},
				Enabled: true, Weight: 1, Metadata: registry.Metadata{{Key: `],"reachProtectionThreshold":`, Value: `,"hosts":[`}}}})
		}
		info := ServiceInfo{Name: "a", Hosts: EncodeHosts(s, registry.Filter{})}
		var whole struct{ Hosts []any }
		var hosts []any
		if err := json.Unmarshal(info.AppendJSON(nil), &whole); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(HostsOf(info.Hosts), &hosts); err != nil {
			t.Fatalf("%v in %s", err, HostsOf(info.Hosts))
		}
		if len(hosts) != n || !reflect.DeepEqual(hosts, whole.Hosts) {
			t.Errorf("%d hosts: %v, want %v", n, hosts, whole.Hosts)
		}
	}
}

// As many clusters as instances do not make the time grow with the square.
func TestHostsOfManyClusters(t *testing.T) {
	s := Service{Key: registry.ServiceKey{Namespace: "public", Group: "g", Name: "s"}}
	const n = 40_000
	var hosts []*registry.Shown
	for i := range n {
		c := "cluster-with-a-rather-long-name-" + strconv.Itoa(n+i)
		s.Clusters = append(s.Clusters, c)
		hosts = append(hosts, &registry.Shown{Instance: &registry.Instance{InstanceKey: registry.InstanceKey{IP: "10.0.0.1", Port: i, Cluster: c}}})
	}
	for name, encode := range map[string]func([]*registry.Shown) ([]byte, error){"v3": s.EncodeV3Hosts, "catalog": s.EncodeCatalogHosts} {
		start := time.Now()
		b, err := encode(hosts)
		if hosts := strings.Count(string(b), `"10.0.0.1"`); err != nil || hosts != n {
			t.Errorf("%s: %v, %d hosts", name, err, hosts)
		}
		t.Log(name, time.Since(start))
	}
}
