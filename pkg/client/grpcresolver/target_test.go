package grpcresolver

import (
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseTarget(t *testing.T) {
	for in, want := range map[string]Target{
		"starling:///order":                       {Service: "order"},
		"nacos:///order":                          {Service: "order"},
		"starling:///g/order":                     {Group: "g", Service: "order"},
		"starling:///order?group=g":               {Group: "g", Service: "order"},
		"starling:///a%2Fb/c%2fd":                 {Group: "a/b", Service: "c/d"},
		"starling:///com.acme:order":              {Service: "com.acme:order"},
		"starling:///%E8%AE%A2%E5%8D%95":          {Service: "订单"},
		"starling:///订单":                          {Service: "订单"},
		"starling:///o?cluster=b,a":               {Service: "o", Clusters: []string{"a", "b"}},
		"starling:///o?clusters=a&cluster=b,a":    {Service: "o", Clusters: []string{"a", "b"}},
		"starling:///o?meta.zone=z1&meta.a.b=%26": {Service: "o", Meta: map[string]string{"zone": "z1", "a.b": "&"}},
		"starling:///o?meta.zone=":                {Service: "o", Meta: map[string]string{"zone": ""}},
		"starling:///o?port_meta=gRPC_port":       {Service: "o", PortMeta: "gRPC_port"},
	} {
		got, err := ParseTarget(in)
		if err != nil {
			t.Errorf("%s: %v", in, err)
		} else if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", in, d)
		}
	}
}

// A mistake is said, with what to write instead, and not guessed away.
func TestBadTargets(t *testing.T) {
	for in, says := range map[string]string{
		"starling:///":                      "names no service",
		"starling:":                         "names no service",
		"starling:///%20":                   "names no service",
		"starling:///g/":                    "names no service",
		"starling:////order":                "the group is empty",
		"starling:///order?group=":          "the group is empty",
		"starling://order":                  "write starling:///order",
		"starling://10.0.0.1:8848/order":    "where a host would",
		"starling://u@/order":               "where a host would",
		"starling:order":                    "write starling:///order",
		"starling:///a/b/c":                 "%2F",
		"starling:///g@@order":              "@@",
		"starling:///order#1":               "fragment",
		"starling:///g/order?group=h":       "another one",
		"starling:///g/order?group=g":       "another one",
		"starling:///order?group=a&group=b": "2 times",
		"starling:///order?cluster=":        "letters, digits",
		"starling:///order?cluster=a,,b":    "letters, digits",
		"starling:///order?cluster=a_b":     "letters, digits",
		"starling:///order?claster=a":       "unknown parameter claster",
		"starling:///order?meta.=a":         "unknown parameter meta.",
		"starling:///order?port_meta=":      "port_meta is empty",
		"starling:///order?a=1;b=2":         "semicolon",
		"starling:///order?meta.a=%zz":      "%zz",
		"starling:///%zz":                   "%zz",
		"starling:///a\x00b":                "control character",
	} {
		if got, err := ParseTarget(in); err == nil {
			t.Errorf("%q is taken as %+v", in, got)
		} else if !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %q does not say %q", in, err, says)
		}
	}
}

// Names from outside cannot become anything but names.
func FuzzTarget(f *testing.F) {
	f.Add("g", "order", "k", "v", "gRPC_port")
	f.Add("", "a?cluster=b#c", "", "", "")
	f.Add("../x", "..", "group", "&group=x", "&")
	f.Add("a/b%2F", "订 单+", "=", ",;", " ")
	f.Fuzz(func(t *testing.T, group, service, key, value, port string) {
		want := Target{Group: group, Service: service, PortMeta: port}
		if key != "" {
			want.Meta = map[string]string{key: value}
		}
		got, err := ParseTarget(want.String())
		blank := func(s string) bool { return strings.TrimSpace(s) == "" }
		if blank(service) || group != "" && blank(group) || strings.Contains(group, "@@") || strings.Contains(service, "@@") {
			if err == nil {
				t.Errorf("%s is taken as %+v", want, got)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", want, d)
		}
		if u, err := url.Parse(want.String()); err != nil || u.Scheme != Scheme || u.Host != "" {
			t.Error(u, err)
		}
	})
}
