package nacos

import (
	"encoding/json"
	"maps"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/starling-registry/starling/pkg/registry"
)

// FuzzNames: what the check lets through is not changed by anything that a
// name goes through on its way (cases C28).
func FuzzNames(f *testing.F) {
	for _, s := range []string{"order", "@@x", "x@@", " a", "a\u00a0", "providers:demo.Api:1.0.0:", "\x00", "世a", "\u2028a", "a@b"} {
		f.Add("public", s, "DEFAULT_GROUP", "DEFAULT", "10.0.0.1")
	}
	f.Fuzz(func(t *testing.T, namespace, service, group, cluster, ip string) {
		if CheckService(namespace, service, group) != nil || CheckCluster(cluster) != nil || CheckIP(ip) != nil || Blank(service) || Blank(group) {
			return
		}
		if strings.TrimSpace(service) != service || strings.Contains(service, "@@") || strings.Contains(group, "@") {
			t.Fatalf("%q in %q is a service", service, group)
		}
		if g, s, _ := strings.Cut(group+"@@"+service, "@@"); g != group || s != service {
			t.Fatalf("%q in %q is read as %q in %q", service, group, s, g)
		}
		for _, s := range []string{namespace, service, group, cluster, ip} {
			var back string
			if err := json.Unmarshal(AppendString(nil, s), &back); err != nil || utf8.ValidString(s) && back != s {
				t.Fatalf("%q came back as %q, %v", s, back, err)
			}
		}
	})
}

// FuzzSetup: a setup can be decoded whatever the client's labels are, and its
// ack is asked for by an ability table and nothing else.
func FuzzSetup(f *testing.F) {
	for _, s := range []string{`{"clientVersion":"Nacos-Java-Client:v3.0.3","tenant":null,"labels":{"module":"naming","tls.enable":false},"abilityTable":{"fuzzyWatch":true}}`, `{"abilityTable":null,"labels":null}`,
		`{"abilityTable":{}}`, `null`, `{"labels":{"a":[{"b":null}]}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var r ConnectionSetupRequest
		if DecodeBody(b, &r) != nil {
			return
		}
		var again struct{ AbilityTable any }
		if err := json.Unmarshal(b, &again); err != nil || r.WantsAck() != (again.AbilityTable != nil) {
			t.Fatalf("%s: wants an ack: %v, %v", b, r.WantsAck(), err)
		}
	})
}

// FuzzAck: an id that is not one of ours is 0.
func FuzzAck(f *testing.F) {
	for _, s := range []string{`{"requestId":"7","resultCode":200,"success":true}`, `{"requestId":null}`, `{"requestId":"18446744073709551616"}`, `{"requestId":"+1"}`, `{"requestId":"007"}`, `{}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var a Ack
		if DecodeBody(b, &a) != nil {
			return
		}
		if id := ParseRequestID(a.RequestID); id != 0 && strings.Trim(a.RequestID, "0123456789") != "" {
			t.Fatalf("%q is %d", a.RequestID, id)
		}
	})
}

// FuzzPattern: a pattern is bounded, and without stars it chooses the one
// service that it names.
func FuzzPattern(f *testing.F) {
	for _, s := range []string{"public>>DEFAULT_GROUP>>*", ">>g>>.*", "a>>*b*>>c*", ">>>>", ">>>>>>", "**>>**>>**", "n>>g>>>s"} {
		f.Add(s, "DEFAULT_GROUP", "order")
	}
	f.Fuzz(func(t *testing.T, s, group, service string) {
		p, err := ParsePattern(s)
		if err != nil {
			return
		}
		if utf16Len(s) > maxPattern || p.Namespace == "" || p.Group == "" || p.Service == "" {
			t.Fatalf("%q is %+v", s, p)
		}
		p.Match(registry.ServiceKey{Namespace: p.Namespace, Group: group, Name: service})
		if !strings.Contains(p.Group+p.Service, "*") && !p.Match(registry.ServiceKey{Namespace: p.Namespace, Group: p.Group, Name: p.Service}) {
			t.Fatalf("%+v does not match itself", p)
		}
	})
}

// FuzzText: beats and metadata of HTTP clients. What is read comes back as
// JSON, and reading by hand finds what encoding/json does.
func FuzzText(f *testing.F) {
	for _, s := range []string{`{"ip":"1.1.1.1","port":80,"weight":1.0,"cluster":"c","serviceName":"g@@s","metadata":{"a":"b"},"ephemeral":true,"period":5000,"stopped":false}`,
		`{"ip":null,"port":null,"weight":null,"metadata":null}`, `{"a":"b","c":""}`, `{}`, ` { "ip" : "1" } `, `{"ip":"1","IP":"2"}`, `{"ip":"1","ip":"2"}`, `{"ip":"1","x":[{}]}`, `{"port":-1}`, `{"port":1e2}`, `{"weight":0.5}`, `{"metadata":{"a":null}}`, `{"metadata":{"a":"1","a":"2"}}`,
		`{"ip":"1.1.1.1","port":"80","weight":"1.0","metadata":{"a":1}}`, "a=b,c=d", "null", "None", `{"port":"1e400"}`, `{"weight":NaN}`, "a==b", ",,,"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		s = strings.ToValidUTF8(s, "?") // as the parameters are
		if m, err := ParseMetadata(s); err == nil {
			if b := AppendMetadata(nil, registry.NewMetadata(m)); !json.Valid(b) {
				t.Fatalf("%q came back as %s", s, b)
			}
		}
		if byHand, ok := metadataByHand(s); ok {
			var m Metadata
			if err := json.Unmarshal([]byte(s), &m); err != nil || !maps.Equal(m, byHand) {
				t.Fatalf("%q by hand is %v, else %v %v", s, byHand, m, err)
			}
		}
		b, err := ParseBeat(s)
		if slow, err2 := parseBeat(s); err != err2 || !reflect.DeepEqual(b, slow) {
			t.Fatalf("%q by hand is %+v %v, else %+v %v", s, b, err, slow, err2)
		}
		if err != nil || b == nil {
			return
		}
		i := &Instance{IP: b.IP, Port: b.Port, ClusterName: b.Cluster, Weight: b.Weight, Metadata: b.Metadata}
		if CheckInstance(i) != nil || CheckRegister(i, false) != nil {
			return
		}
		if r, err := i.Registry(registry.ServiceKey{Namespace: "n", Group: "g", Name: "s"}); err == nil {
			if h := appendHost(nil, r, "g@@s", false); !json.Valid(h) {
				t.Fatalf("%q came back as %s", s, h)
			}
		}
	})
}
