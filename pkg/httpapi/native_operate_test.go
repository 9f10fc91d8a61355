package httpapi

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/starling-registry/starling/pkg/api"
	"github.com/starling-registry/starling/pkg/registry"
)

// operate is the part of Native that writes to the log, on a memLog.
func operate(o *Options) {
	log := o.Durable.(*memLog)
	o.Native.Members = func() api.Members {
		return api.Members{Node: "a1", Members: []api.Member{{ID: "a1", Name: "node-a", State: api.StateAlive, Self: true}}}
	}
	o.Native.Edits = func(wanted registry.ServiceKey) (all []InstanceEdit) {
		log.mu.Lock()
		defer log.mu.Unlock()
		for key, of := range log.edits {
			for _, at := range slices.SortedFunc(maps.Keys(of), registry.InstanceKey.Compare) {
				if e := of[at]; wanted == key || wanted.Name == "" && (wanted.Namespace == "" || wanted.Namespace == key.Namespace) {
					all = append(all, InstanceEdit{Service: key, InstanceKey: at, Override: e, Since: registry.StampAt(1_000)})
				}
			}
		}
		return all
	}
}

// register registers an instance over HTTP; what is more than its address
// follows as parameters.
func (f *fixture) register(t testing.TB, params string) {
	t.Helper()
	if w := f.do("POST", "/nacos/v1/ns/instance?"+params, ""); w.Code != 200 {
		t.Fatalf("%s: %d %s", params, w.Code, w.Body)
	}
}

// inTwoClusters registers 10.0.0.2:80 of service a in c1 and c2, as one HTTP
// client could not.
func (f *fixture) inTwoClusters(t testing.TB) {
	t.Helper()
	f.register(t, "serviceName=a&ip=10.0.0.2&port=80&clusterName=c2")
	key := registry.ServiceKey{Namespace: registry.DefaultNamespace, Group: registry.DefaultGroup, Name: "a"}
	i := &registry.Instance{InstanceKey: registry.InstanceKey{IP: "10.0.0.2", Port: 80, Cluster: "c1"}, Weight: 1, Healthy: true, Enabled: true}
	if err := f.registry.Open("sdk", registry.Connection).Register(key, []*registry.Instance{i}, false); err != nil {
		t.Fatal(err)
	}
}

// read asks the native API for something.
func read[T any](t testing.TB, f *fixture, path string) *T {
	t.Helper()
	w := f.do("GET", api.Path+path, "")
	out := new(T)
	if err := json.Unmarshal(w.Body.Bytes(), out); err != nil || w.Code != 200 {
		t.Fatalf("%s: %d %v %s", path, w.Code, err, w.Body)
	}
	if strings.Contains(w.Body.String(), "null") {
		t.Errorf("%s: null in %s", path, w.Body)
	}
	return out
}

func TestNativeServices(t *testing.T) {
	f := newFixture(t, operate)
	for _, p := range []string{"serviceName=b&ip=10.0.0.1&port=80", "serviceName=b&ip=10.0.0.2&port=80&clusterName=c1&healthy=false", "serviceName=b&ip=10.0.0.3&port=80&enabled=false",
		"serviceName=abc&ip=10.0.0.1&port=80", "serviceName=g@@a&ip=10.0.0.1&port=80", "serviceName=a&namespaceId=prod&ip=10.0.0.1&port=80",
		"serviceName=db&ip=10.0.0.1&port=5432&ephemeral=false"} {
		f.register(t, p)
	}
	if w := f.do("POST", "/nacos/v1/ns/service?serviceName=planned&protectThreshold=0.5", ""); w.Code != 200 {
		t.Fatal(w.Body)
	}
	if w := f.do("PUT", "/nacos/v1/ns/service?serviceName=b&protectThreshold=0.8", ""); w.Code != 200 {
		t.Fatal(w.Body)
	}
	list := func(query string, total int, want ...string) *api.Services {
		t.Helper()
		s := read[api.Services](t, f, "/services"+query)
		got := []string{}
		for _, one := range s.Services {
			got = append(got, one.Namespace+"/"+one.Group+"/"+one.Name)
		}
		if !slices.Equal(got, want) || s.Total != total {
			t.Errorf("%s: %v of %d, want %v of %d", query, got, s.Total, want, total)
		}
		return s
	}
	const d = "public/DEFAULT_GROUP/"
	s := list("", 5, d+"abc", d+"b", d+"db", d+"planned", "public/g/a")
	if s.Node != "a1" || s.At.IsZero() || s.Services[1].Changed.IsZero() {
		t.Errorf("%+v", s)
	}
	for i, want := range []string{"abc ephemeral 1/1/1 [DEFAULT] 0 false", "b ephemeral 3/2/2 [DEFAULT c1] 0.8 true", "db persistent 1/1/1 [DEFAULT] 0 false", "planned persistent 0/0/0 [] 0.5 false"} {
		o := s.Services[i]
		if got := fmt.Sprintf("%s %s %d/%d/%d %v %v %v", o.Name, o.Kind, o.Instances, o.Healthy, o.Enabled, o.Clusters, o.Threshold, o.Protected); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	list("?namespace=prod", 1, "prod/DEFAULT_GROUP/a")
	list("?namespace=none", 0)
	list("?allNamespaces=true", 6, "prod/DEFAULT_GROUP/a", d+"abc", d+"b", d+"db", d+"planned", "public/g/a")
	list("?allNamespaces=false&group=g", 1, "public/g/a")
	list("?name=b", 3, d+"abc", d+"b", d+"db")
	list("?limit=2", 5, d+"abc", d+"b")
	list("?limit=2&offset=1", 5, d+"b", d+"db")
	list("?limit=3&offset=3", 5, d+"planned", "public/g/a")
	list("?limit=10000&offset=2147483647", 5)
	list("?name=b&limit=1&offset=1", 3, d+"b")
	list("?allNamespaces=true&limit=2&offset=4", 6, d+"planned", "public/g/a")
}

func TestNativeInstances(t *testing.T) {
	f := newFixture(t, operate)
	f.register(t, `serviceName=a&ip=10.0.0.2&port=80&clusterName=c1&metadata={"k":"v"}&weight=2`)
	f.register(t, "serviceName=a&ip=10.0.0.1&port=80")
	f.register(t, "serviceName=db&ip=10.0.0.1&port=5432&ephemeral=false")
	in := read[api.Instances](t, f, "/instances?service=a")
	if in.Service != (api.Service{Namespace: "public", Group: "DEFAULT_GROUP", Name: "a"}) || in.Kind != api.KindEphemeral || len(in.Instances) != 2 || in.Node != "a1" {
		t.Fatalf("%+v", in)
	}
	first, second := in.Instances[0], in.Instances[1]
	if first.IP != "10.0.0.1" || first.Client != "10.0.0.1:80#true" || !first.Ephemeral || !first.Healthy || !first.Enabled || first.State != api.StandsLiving || first.Registered.IsZero() ||
		first.Evicted || first.Edit != nil || len(first.Metadata) != 0 {
		t.Errorf("%+v", first)
	}
	if second.Cluster != "c1" || second.Weight != 2 || second.Metadata["k"] != "v" {
		t.Errorf("%+v", second)
	}
	if in := read[api.Instances](t, f, "/instances?service=DEFAULT_GROUP@@a&cluster=c1&namespace=public"); len(in.Instances) != 1 || in.Instances[0].IP != "10.0.0.2" {
		t.Errorf("%+v", in)
	}
	if in := read[api.Instances](t, f, "/instances?service=db"); len(in.Instances) != 1 || in.Instances[0].Ephemeral || in.Instances[0].Node != "" || in.Kind != api.KindPersistent {
		t.Errorf("%+v", in)
	}
}

// edited posts an edit, and compares what becomes of it with "before → after:
// instance".
func (f *fixture) edited(t testing.TB, path, body, want string) {
	t.Helper()
	w := f.do("POST", api.Path+"/instances/"+path, body, nativeJSON)
	var e api.Edited
	if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || w.Code != 200 {
		t.Fatalf("%s %s: %d %v %s", path, body, w.Code, err, w.Body)
	}
	edit := func(e *api.Edit) string {
		if e == nil {
			return "none"
		}
		var b strings.Builder
		if e.Enabled != nil {
			fmt.Fprintf(&b, " enabled=%v", *e.Enabled)
		}
		if e.Weight != nil {
			fmt.Fprintf(&b, " weight=%v", *e.Weight)
		}
		if len(e.Metadata) > 0 {
			fmt.Fprintf(&b, " %v", e.Metadata)
		}
		if e.Evicted {
			b.WriteString(" evicted")
		}
		if e.StaysOut {
			b.WriteString(" staysOut")
		}
		if e.Sticky {
			b.WriteString(" sticky")
		}
		return cmp.Or(strings.TrimPrefix(b.String(), " "), "empty")
	}
	instance := "none"
	if i := e.Is; i != nil {
		instance = fmt.Sprintf("%s enabled=%v weight=%v %v evicted=%v", i.Cluster, i.Enabled, i.Weight, i.Metadata, i.Evicted)
	}
	if got := edit(e.Before) + " → " + edit(e.After) + ": " + instance; got != want {
		t.Errorf("%s %s:\ngot  %s\nwant %s", path, body, got, want)
	}
}

func TestNativeEdits(t *testing.T) {
	f := newFixture(t, operate)
	f.register(t, `serviceName=a&ip=10.0.0.1&port=80&metadata={"own":"1"}`)
	f.inTwoClusters(t)
	const one = `{"service":"a","ip":"10.0.0.1","port":80`
	f.edited(t, "edit", one+`,"enabled":false}`, "none → enabled=false: DEFAULT enabled=false weight=1 map[own:1] evicted=false")
	f.edited(t, "edit", one+`,"weight":0}`, "enabled=false → enabled=false weight=0: DEFAULT enabled=false weight=0 map[own:1] evicted=false")
	f.edited(t, "edit", one+`,"metadata":{"a":"1","own":"2"}}`, "enabled=false weight=0 → enabled=false weight=0 map[a:1 own:2]: DEFAULT enabled=false weight=0 map[a:1 own:2] evicted=false")
	f.edited(t, "edit", one+`,"metadata":{"own":null,"b":""}}`, "enabled=false weight=0 map[a:1 own:2] → enabled=false weight=0 map[a:1 b:]: DEFAULT enabled=false weight=0 map[a:1 b: own:1] evicted=false")
	f.edited(t, "edit", one+`,"sticky":true}`, "enabled=false weight=0 map[a:1 b:] → enabled=false weight=0 map[a:1 b:] sticky: DEFAULT enabled=false weight=0 map[a:1 b: own:1] evicted=false")
	f.edited(t, "edit", one+`,"enabled":true}`, "enabled=false weight=0 map[a:1 b:] sticky → enabled=true weight=0 map[a:1 b:] sticky: DEFAULT enabled=true weight=0 map[a:1 b: own:1] evicted=false")
	f.edited(t, "edit", one+`,"sticky":false}`, "enabled=true weight=0 map[a:1 b:] sticky → enabled=true weight=0 map[a:1 b:]: DEFAULT enabled=true weight=0 map[a:1 b: own:1] evicted=false")
	f.edited(t, "edit", one+`,"reset":true,"weight":3,"metadata":{"c":"1"}}`, "enabled=true weight=0 map[a:1 b:] → weight=3 map[c:1]: DEFAULT enabled=true weight=3 map[c:1 own:1] evicted=false")
	f.edited(t, "edit", `{"namespace":"public","service":"DEFAULT_GROUP@@a","ip":"10.0.0.2","port":80,"cluster":"c2","enabled":false}`, "none → enabled=false: c2 enabled=false weight=1 map[] evicted=false")
	// What is not there, beforehand.
	f.edited(t, "edit", `{"service":"new","ip":"10.0.0.9","port":80,"sticky":true,"enabled":false}`, "none → enabled=false sticky: none")
	f.edited(t, "edit", `{"service":"new","ip":"10.0.0.9","port":80,"weight":2}`, "enabled=false sticky → enabled=false weight=2 sticky: none") // it has an edit

	edits := read[api.Edits](t, f, "/edits")
	if len(edits.Edits) != 3 {
		t.Fatalf("%+v", edits)
	}
	for _, e := range edits.Edits {
		if e.There != (e.Name == "a") || e.Revision == 0 || e.Since.IsZero() {
			t.Errorf("%+v", e)
		}
	}
	if e := read[api.Edits](t, f, "/edits?namespace=prod"); len(e.Edits) != 0 {
		t.Errorf("%+v", e)
	}
	if n := f.logs.FilterMessage("an instance is edited by an operator").Len(); n != 10 { // a minute's worth, the rest is sampled
		t.Errorf("%d edits are logged", n)
	}
}

// Keys go to the log key by key, also together with more; what the node that
// is asked has read of the others does not matter.
func TestNativeMetadata(t *testing.T) {
	f := newFixture(t, operate)
	f.register(t, "serviceName=a&ip=10.0.0.1&port=80")
	const one = `{"service":"a","ip":"10.0.0.1","port":80`
	at := registry.InstanceKey{IP: "10.0.0.1", Port: 80, Cluster: "DEFAULT"}
	writes := 0
	edited := func(body string, want string, n int) {
		t.Helper()
		writes = f.durable.writes
		f.edited(t, "edit", body, want)
		if is := f.durable.writes - writes; is != n {
			t.Errorf("%s: %d writes, want %d", body, is, n)
		}
	}
	edited(one+`,"metadata":{"a":"1","b":"1"}}`, "none → map[a:1 b:1]: DEFAULT enabled=true weight=1 map[a:1 b:1] evicted=false", 1)
	edited(one+`,"metadata":{"a":"1"}}`, "map[a:1 b:1] → map[a:1 b:1]: DEFAULT enabled=true weight=1 map[a:1 b:1] evicted=false", 1)
	edited(one+`,"metadata":{"a":null,"b":null}}`, "map[a:1 b:1] → none: DEFAULT enabled=true weight=1 map[] evicted=false", 1)
	// One that is made by the keys is sticky, one that they end as well stays.
	edited(one+`,"metadata":{"a":"1"},"sticky":true}`, "none → map[a:1] sticky: DEFAULT enabled=true weight=1 map[a:1] evicted=false", 2)
	edited(one+`,"metadata":{"a":null},"weight":2}`, "map[a:1] sticky → weight=2 sticky: DEFAULT enabled=true weight=2 map[] evicted=false", 2)
	edited(one+`,"metadata":{"c":"1"},"sticky":false}`, "weight=2 sticky → weight=2 map[c:1]: DEFAULT enabled=true weight=2 map[c:1] evicted=false", 1)
	edited(one+`,"metadata":{"d":"1"},"sticky":false}`, "weight=2 map[c:1] → weight=2 map[c:1 d:1]: DEFAULT enabled=true weight=2 map[c:1 d:1] evicted=false", 1)
	edited(one+`,"reset":true,"metadata":{"e":"1"}}`, "weight=2 map[c:1 d:1] → map[e:1]: DEFAULT enabled=true weight=1 map[e:1] evicted=false", 1)

	// What another node has written, and this one has not read, stays.
	edits := f.opts.Native.Edits
	stale := edits(registry.ServiceKey{})
	f.opts.Native.Edits = func(registry.ServiceKey) []InstanceEdit { return stale }
	a := registry.ServiceKey{Namespace: "public", Group: "DEFAULT_GROUP", Name: "a"}
	if err := f.durable.EditMetadata(t.Context(), a, []registry.InstanceKey{at}, registry.Metadata{{Key: "theirs", Value: "1"}}, nil); err != nil {
		t.Fatal(err)
	}
	for _, more := range []string{"", `,"weight":3`, `,"sticky":true`, `,"enabled":true,"sticky":true`} {
		if w := f.do("POST", api.Path+"/instances/edit", one+`,"metadata":{"ours":"1","e":null}`+more+`}`, nativeJSON); w.Code != 200 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		if is := edits(registry.ServiceKey{})[0].Metadata; len(is) != 2 || is[0].Key != "ours" || is[1].Key != "theirs" {
			t.Errorf("%s: %v", more, is)
		}
	}

	// The second half alone is not written.
	f.durable.broken, f.durable.after = refused(NoLeader, "has no leader"), f.durable.writes+1
	w := f.do("POST", api.Path+"/instances/edit", one+`,"metadata":{"f":"1"},"weight":4}`, nativeJSON)
	if w.Code != 504 || !strings.Contains(w.Body.String(), api.CodeUnknownOutcome) || !strings.Contains(w.Body.String(), "a part of this is written") || !strings.Contains(w.Body.String(), "has no leader") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	// What is ours is for the log alone.
	f.durable.broken, f.durable.after = errors.New("secret detail"), f.durable.writes+1
	if w := f.do("POST", api.Path+"/instances/edit", one+`,"metadata":{"f":"1"},"weight":4}`, nativeJSON); w.Code != 504 || strings.Contains(w.Body.String(), "secret") ||
		!strings.Contains(fmt.Sprint(f.logs.All()[f.logs.Len()-1].ContextMap()), "secret detail") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	f.durable.broken, f.durable.after = refused(NoLeader, "nobody leads"), 0
	if w := f.do("POST", api.Path+"/instances/edit", one+`,"metadata":{"f":"1"},"weight":4}`, nativeJSON); w.Code != 503 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestNativeEvictions(t *testing.T) {
	f := newFixture(t, operate)
	f.register(t, "serviceName=a&ip=10.0.0.1&port=80")
	f.inTwoClusters(t)
	const one, two = `{"service":"a","ip":"10.0.0.1","port":80`, `{"service":"a","ip":"10.0.0.2","port":80`
	f.edited(t, "evict", one+`}`, "none → evicted staysOut: DEFAULT enabled=true weight=1 map[] evicted=true")
	f.edited(t, "edit", one+`,"weight":5}`, "evicted staysOut → weight=5 evicted staysOut: DEFAULT enabled=true weight=5 map[] evicted=true")
	f.edited(t, "edit", one+`,"reset":true}`, "weight=5 evicted staysOut → evicted staysOut: DEFAULT enabled=true weight=1 map[] evicted=true")
	f.edited(t, "evict", two+`,"cluster":"c2","untilGone":true}`, "none → evicted: c2 enabled=true weight=1 map[] evicted=true")
	f.edited(t, "evict", `{"service":"later","ip":"10.0.0.9","port":80,"absent":true}`, "none → evicted staysOut: none")
	s := read[api.Services](t, f, "/services?name=a")
	if got := s.Services[0]; got.Instances != 1 || got.Evicted != 2 {
		t.Errorf("%+v", got)
	}
	in := read[api.Instances](t, f, "/instances?service=a")
	for i, want := range []string{"10.0.0.1 DEFAULT true", "10.0.0.2 c1 false", "10.0.0.2 c2 true"} {
		is := in.Instances[i]
		if got := fmt.Sprint(is.IP, " ", is.Cluster, " ", is.Evicted); got != want || is.Evicted != (is.Edit != nil) {
			t.Errorf("%s, want %s; %+v", got, want, is.Edit)
		}
	}
	if w := f.do("GET", "/nacos/v1/ns/instance/list?serviceName=a", ""); strings.Contains(w.Body.String(), "10.0.0.1") {
		t.Errorf("readers see it: %s", w.Body)
	}
	// What else is set lasts as it did before the eviction, and after.
	f.edited(t, "edit", one+`,"weight":5,"metadata":{"a":"1"}}`, "evicted staysOut → weight=5 map[a:1] evicted staysOut: DEFAULT enabled=true weight=5 map[a:1] evicted=true")
	f.edited(t, "edit", one+`,"sticky":true}`, "weight=5 map[a:1] evicted staysOut → weight=5 map[a:1] evicted staysOut sticky: DEFAULT enabled=true weight=5 map[a:1] evicted=true")
	f.edited(t, "evict", one+`,"untilGone":true}`, "weight=5 map[a:1] evicted staysOut sticky → weight=5 map[a:1] evicted sticky: DEFAULT enabled=true weight=5 map[a:1] evicted=true")
	f.edited(t, "evict", one+`}`, "weight=5 map[a:1] evicted sticky → weight=5 map[a:1] evicted staysOut sticky: DEFAULT enabled=true weight=5 map[a:1] evicted=true")
	f.edited(t, "edit", one+`,"reset":true}`, "weight=5 map[a:1] evicted staysOut sticky → evicted staysOut: DEFAULT enabled=true weight=1 map[] evicted=true")
	f.edited(t, "lift", two+`}`, "evicted → none: c2 enabled=true weight=1 map[] evicted=false") // the cluster is that of the one that is evicted
	f.edited(t, "lift", one+`}`, "evicted staysOut → none: DEFAULT enabled=true weight=1 map[] evicted=false")
}

func TestNativeNamespaces(t *testing.T) {
	f := newFixture(t, operate)
	f.register(t, "serviceName=a&namespaceId=used&ip=10.0.0.1&port=80")
	list := func(want ...string) {
		t.Helper()
		got := []string{}
		for _, n := range read[api.Namespaces](t, f, "/namespaces").Namespaces {
			got = append(got, fmt.Sprintf("%s %q %q %d %v", n.ID, n.Name, n.Description, n.Services, n.InTable))
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	post := func(path, body string, status int, want string) (n api.Namespace) {
		t.Helper()
		w, code, _ := f.native(t, "POST /namespaces"+path, body, nativeJSON)
		if w.Code != status || code != want {
			t.Errorf("%s %s: %d %s", path, body, w.Code, w.Body)
		}
		_ = json.Unmarshal(w.Body.Bytes(), &n)
		return n
	}
	const used, public = `used "used" "" 1 false`, `public "public" "" 0 false`
	list(public, used)
	if n := post("", `{"id":"dev","name":"Development","description":"d"}`, 200, ""); n != (api.Namespace{ID: "dev", Name: "Development", Description: "d", InTable: true}) {
		t.Errorf("%+v", n)
	}
	post("", `{"id":"dev"}`, 409, api.CodeConflict)
	if n := post("", `{"id":"used"}`, 200, ""); n.Services != 1 {
		t.Errorf("%+v", n)
	}
	list(public, `dev "Development" "d" 0 true`, `used "used" "" 1 true`)
	made := post("", `{"name":"no id"}`, 200, "")
	if len(made.ID) != 36 || made.Name != "no id" {
		t.Errorf("%+v", made)
	}
	post("/remove", `{"id":"`+made.ID+`"}`, 200, "")
	post("/remove", `{"id":"dev"}`, 200, "")
	if n := post("/remove", `{"id":"used"}`, 200, ""); n != (api.Namespace{ID: "used", Name: "used", Services: 1}) {
		t.Errorf("%+v", n)
	}
	list(public, used)
	writes := f.durable.writes
	post("/remove", `{"id":"used"}`, 404, api.CodeNotFound)
	post("/remove", `{"id":"none"}`, 404, api.CodeNotFound)
	post("/remove", `{"id":""}`, 400, api.CodeBadRequest)
	post("/remove", `{"id":"public"}`, 409, api.CodeConflict)
	post("", `{"id":"public"}`, 409, api.CodeConflict)
	for _, id := range []string{"a b", "ü", "a/b", "..", strings.Repeat("x", 65)} {
		post("", `{"id":"`+id+`"}`, 400, api.CodeBadRequest)
	}
	post("", `{"id":"x","name":"`+strings.Repeat("x", maxNamespaceName+1)+`"}`, 400, api.CodeBadRequest)
	post("", `{"id":"x","services":7}`, 400, api.CodeBadRequest)
	if f.durable.writes != writes {
		t.Error("a refused request has written something")
	}
}

// Bad input has its error and changes nothing.
func TestNativeOperatorRefusals(t *testing.T) {
	f := newFixture(t, operate, func(o *Options) { o.MaxRequestBytes = 3000 })
	f.register(t, "serviceName=a&ip=10.0.0.1&port=80")
	f.inTwoClusters(t)
	writes := f.durable.writes
	refuses := func(call, body string, status int, code, says string, headers ...string) {
		t.Helper()
		if strings.HasPrefix(call, "POST") && headers == nil {
			headers = []string{nativeJSON}
		}
		w, is, message := f.native(t, call, body, headers...)
		if w.Code != status || is != code || !strings.Contains(w.Body.String(), says) {
			t.Errorf("%s %.80s: %d %s: %s, want %d %s: %s", call, body, w.Code, is, message, status, code, says)
		}
	}
	for _, q := range []string{"namespac=x", "namespace=a%20b", "namespace=" + strings.Repeat("x", 65), "group=a%20b", "allNamespaces=yes", "allNamespaces=", "allNamespaces=true&namespace=x",
		"limit=0", "limit=10001", "limit=x", "limit=-1", "limit=", "offset=-1", "offset=x", "offset=99999999999"} {
		refuses("GET /services?"+q, "", 400, api.CodeBadRequest, "")
	}
	refuses("GET /instances", "", 400, api.CodeBadRequest, "service")
	refuses("GET /instances?service=%20", "", 400, api.CodeBadRequest, "service")
	refuses("GET /instances?service=a%20b", "", 400, api.CodeBadRequest, "serviceName")
	refuses("GET /instances?service=g@@a&group=h", "", 400, api.CodeBadRequest, "group")
	refuses("GET /instances?service=a&cluster=a%20b", "", 400, api.CodeBadRequest, "cluster")
	refuses("GET /instances?service=a&healthyOnly=true", "", 400, api.CodeBadRequest, "healthyOnly")
	refuses("GET /instances?service=none", "", 404, api.CodeNotFound, "none in group DEFAULT_GROUP, namespace public")
	refuses("GET /instances?service=a&namespace=other", "", 404, api.CodeNotFound, "other")
	refuses("GET /edits?namespace=a%20b", "", 400, api.CodeBadRequest, "namespace")
	refuses("GET /edits?service=a", "", 400, api.CodeBadRequest, "service")
	refuses("GET /namespaces?id=a", "", 400, api.CodeBadRequest, "id")
	refuses("GET /openapi.json?x=1", "", 400, api.CodeBadRequest, "x")
	refuses("GET /members?x=1", "", 400, api.CodeBadRequest, "x")

	for path, more := range map[string]string{"edit": `,"enabled":false`, "evict": "", "lift": ""} {
		call := "POST /instances/" + path
		refuses("GET /instances/"+path, "", 405, api.CodeMethod, "GET")
		refuses("DELETE /instances/"+path, "", 405, api.CodeMethod, "DELETE")
		ok := `{"service":"a","ip":"10.0.0.1","port":80` + more + "}"
		refuses(call, ok, 415, api.CodeContentType, "json", form)
		refuses(call, ok, 403, api.CodeForbidden, "site", nativeJSON, "Sec-Fetch-Site: cross-site")
		refuses(call+"?dryRun=true", ok, 400, api.CodeBadRequest, "dryRun")
		refuses(call, ok+ok, 400, api.CodeBadRequest, "more than one")
		refuses(call, strings.Repeat(" ", 3000)+ok, 413, api.CodeTooLarge, "3000")
		for _, body := range []string{"", "[]", "null", `{}`, `{"service":"a"` + more + `}`, `{"service":"a","ip":"10.0.0.1","port":"80"` + more + `}`,
			`{"service":"a","ip":"10.0.0.1","port":80.5` + more + `}`, `{"service":"a","ip":"10.0.0.1","port":-1` + more + `}`, `{"service":"a","ip":"10.0.0.1","port":65536` + more + `}`,
			`{"service":"a","ip":" ","port":80` + more + `}`, `{"service":"a","ip":"10.0 0.1","port":80` + more + `}`, `{"service":"a","ip":"10.0.0.1","port":80,"cluster":"a b"` + more + `}`,
			`{"ip":"10.0.0.1","port":80` + more + `}`, `{"service":"g@@a","group":"h","ip":"10.0.0.1","port":80` + more + `}`, `{"namespace":"a b","service":"a","ip":"10.0.0.1","port":80` + more + `}`,
			`{"service":"a","ip":"10.0.0.1","port":80,"instance":1` + more + `}`} {
			refuses(call, body, 400, api.CodeBadRequest, "")
		}
		refuses(call, `{"service":"a","ip":"10.0.0.9","port":80`+more+`}`, 404, api.CodeNotFound, "10.0.0.9:80")
		refuses(call, `{"service":"a","ip":"10.0.0.1","port":80,"cluster":"c9"`+more+`}`, 404, api.CodeNotFound, "10.0.0.1:80")
		refuses(call, `{"service":"none","ip":"10.0.0.1","port":80`+more+`}`, 404, api.CodeNotFound, "none")
		refuses(call, `{"service":"a","ip":"10.0.0.2","port":80`+more+`}`, map[bool]int{true: 404, false: 400}[path == "lift"], map[bool]string{true: api.CodeNotFound, false: api.CodeBadRequest}[path == "lift"],
			map[bool]string{true: "not evicted", false: "c1, c2"}[path == "lift"])
	}
	const one = `{"service":"a","ip":"10.0.0.1","port":80`
	for _, more := range []string{"", `,"enabled":null`, `,"enabled":"no"`, `,"weight":-1`, `,"weight":10001`, `,"weight":"1"`, `,"weight":1e999`, `,"metadata":{"a":1}`, `,"metadata":[]`, `,"sticky":"yes"`,
		`,"metadata":{"a":"` + strings.Repeat("x", 1024) + `"}`, `,"evicted":true`} {
		refuses("POST /instances/edit", one+more+"}", 400, api.CodeBadRequest, "")
	}
	refuses("POST /instances/edit", `{"service":"a","ip":"10.0.0.9","port":0,"sticky":true}`, 400, api.CodeBadRequest, "port")
	refuses("POST /instances/edit", `{"service":"a","ip":"10.0.0.9","port":80,"reset":true}`, 404, api.CodeNotFound, "10.0.0.9")
	refuses("POST /instances/evict", one+`,"absent":true,"untilGone":true}`, 400, api.CodeBadRequest, "exclude")
	refuses("POST /instances/evict", one+`,"sticky":true}`, 400, api.CodeBadRequest, "sticky")
	for _, call := range []string{"POST /services", "POST /instances", "PUT /edits", "DELETE /namespaces", "GET /namespaces/remove", "POST /openapi.json"} {
		refuses(call, "{}", 405, api.CodeMethod, strings.Fields(call)[0])
	}
	if f.durable.writes != writes {
		t.Error("a refused request has written something")
	}

	for _, c := range []struct {
		refusal RefusalCode
		status  int
		code    string
		shown   string
	}{
		{NoLeader, 503, api.CodeNoLeader, "has no leader"},
		{NoLeader, 503, api.CodeNoLeader, "ask somebody"},
		{UnknownOutcome, 504, api.CodeUnknownOutcome, "not known whether this was written: text of the log"},
		{NotUnderstood, 503, api.CodeNotUnderstood, "older release"},
		{NotFound, 404, api.CodeNotFound, "text of the log"},
		{Invalid, 400, api.CodeBadRequest, "text of the log"},
		{Exists, 409, api.CodeConflict, "text of the log"},
		{WrongKind, 409, api.CodeConflict, "text of the log"},
	} {
		f.durable.broken = &memRefusal{Refusal{Code: c.refusal, Text: "text of the log", Hint: "ask somebody"}}
		refuses("POST /instances/edit", one+`,"enabled":false}`, c.status, c.code, c.shown)
	}
}
