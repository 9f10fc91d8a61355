package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/starling-registry/starling/pkg/nacos"
)

// A text is a name to try, and whether Nacos' rule for names takes it: "yes",
// "no", or "" where it is up to the server.
type text struct{ s, take string }

// absurd are texts for every part of a name. limit is the longest legal one.
func absurd(limit int) []text {
	l := []text{
		{"a", "yes"}, {strings.Repeat("a", limit), "yes"}, {strings.Repeat("a", limit+1), "no"}, {strings.Repeat("a", 65536), "no"},
		{"@@x", "no"}, {"x@@", "no"}, {"@@", "no"}, {"@", "no"}, {"a@@b@@c", "no"}, {"a b", "no"}, {"a\tb", "no"}, {"a\nb", "no"}, {"a\r\nSet-Cookie: x", "no"}, {"服务", "no"},
	}
	for _, s := range []string{" a", "a ", "\ta", "a\u00a0", "\u00a0a", "\u3000a", "a\u3000", "\u2028a", "a\u2028", "a\u0085", "\u0085a", "\ufeffa", "a\u200b", "x@", "a@b", "..", ".", "../x", "a/b", "/", `a\b`, "%2e%2e", "a%00b", "%", "a?b", "a#b", "a&b=c", "a=b", "a;b", "a,b", "a+b",
		"a\x00b", "\x00", "a\x01b", "\x1b[2Jx", "a\x7f", "{{1}}", "${jndi:ldap://x}", "<script>alert(1)</script>", "'; drop table", "a\"b", "a'b", "é", "ß", "ﬀ", "🦆", "a\u0301", "\u202eabc", "名", "ＡＢ", "%s%n", "null", "NaN", "true", "*", ".*", "a>>b", "a*",
		"providers:demo.Api:1.0.0:", strings.Repeat("🦆", limit/2), strings.Repeat("é", limit), strings.Repeat("..", 20)} {
		l = append(l, text{s, ""})
	}
	return l
}

func (a *arena) web(method, path string, form url.Values) (status int, body []byte, err error) {
	u := "http://" + a.srv.http() + "/nacos/v1/ns" + path
	req, err := http.NewRequest(method, u, nil)
	if err != nil {
		return 0, nil, err
	}
	if method == http.MethodGet {
		req.URL.RawQuery = form.Encode()
	} else {
		req.Body, req.ContentLength = io.NopCloser(strings.NewReader(form.Encode())), int64(len(form.Encode()))
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	res, err := watcher.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	body, err = io.ReadAll(res.Body)
	return res.StatusCode, body, err
}

// httpHosts lists a service over HTTP.
func (a *arena) httpHosts(namespace, group, service string) (ips []string, err error) {
	status, body, err := a.web("GET", "/instance/list", url.Values{"namespaceId": {namespace}, "groupName": {group}, "serviceName": {service}})
	if err != nil || status != 200 {
		return nil, fmt.Errorf("list %q: %d %s %v", clip(service), status, clip(string(body)), err)
	}
	var info struct{ Hosts []struct{ IP string } }
	if err := json.Unmarshal(body, &info); err != nil {
		return nil, fmt.Errorf("list %q: %v", clip(service), err)
	}
	for _, h := range info.Hosts {
		ips = append(ips, h.IP)
	}
	return ips, nil
}

// names registers under every absurd name. Whatever is accepted must be found
// under it over both protocols, stand in the list of services, and be removable
// by it (cases C28).
func names(a *arena) (string, error) {
	c, err := a.connect(manners{})
	if err != nil {
		return "", err
	}
	defer c.close()
	var errs []error
	complain := func(what string, t text, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s %q: %s", what, clip(t.s), clip(fmt.Sprintf(format, args...))))
	}
	accepted, refused := 0, 0
	grpc := func(what string, t text, namespace, group, service, cluster, ip string) {
		body := object{"namespace": namespace, "groupName": group, "serviceName": service, "type": nacos.OpRegister, "instance": inst(ip, 80).with("clusterName", cluster)}
		ans, err := c.call(nacos.TypeInstanceRequest, body)
		switch {
		case err != nil:
			complain(what, t, "%v", err)
			return
		case ans.ok() && t.take == "no", !ans.ok() && t.take == "yes":
			complain(what, t, "%v", ans)
		}
		if !ans.ok() {
			refused++
			if ans.code() != nacos.CodeInvalidParam && ans.code() != nacos.CodeServerError {
				complain(what, t, "%v", ans)
			}
			// What Java takes for nothing stands for the default.
			if hosts, err := a.httpHosts("attack", "g", "names"); err != nil || len(hosts) > 0 {
				complain(what, t, "refused, yet %v %v", hosts, err)
			}
			return
		}
		accepted++
		q, err := c.call(nacos.TypeServiceQueryRequest, object{"namespace": namespace, "groupName": group, "serviceName": service, "cluster": cluster})
		if err != nil || len(q.hosts()) != 1 {
			complain(what, t, "queried: %v %v", q, err)
		} else if h, _ := q.hosts()[0].(map[string]any); h["ip"] != ip {
			complain(what, t, "queried: %v", h)
		}
		if l, err := c.call(nacos.TypeServiceListRequest, object{"namespace": namespace, "groupName": group, "pageNo": 1, "pageSize": 10000}); err != nil || !l.ok() {
			complain(what, t, "listed: %v %v", l, err)
		} else if names, _ := l.body["serviceNames"].([]any); !slices.Contains(names, any(service)) {
			complain(what, t, "not in the list of services: %v", l)
		}
		if hosts, err := a.httpHosts(namespace, group, service); err != nil || !slices.Equal(hosts, []string{ip}) {
			complain(what, t, "over HTTP: %q %v", hosts, err)
		}
		if hosts, err := a.httpHosts(namespace, "", group+"@@"+service); err != nil || !slices.Equal(hosts, []string{ip}) {
			complain(what, t, "over HTTP as %s: %q %v", clip(group+"@@"+service), hosts, err)
		}
		if err := must(c.call(nacos.TypeInstanceRequest, body.with("type", nacos.OpDeregister))); err != nil {
			complain(what, t, "removed: %v", err)
		}
		if hosts, err := a.httpHosts(namespace, group, service); err != nil || len(hosts) > 0 {
			complain(what, t, "removed, yet %q %v", hosts, err)
		}
		// The same over HTTP: what one transport takes the other takes too.
		form := url.Values{"namespaceId": {namespace}, "groupName": {group}, "serviceName": {service}, "clusterName": {cluster}, "ip": {ip}, "port": {"80"}}
		if status, b, err := a.web("POST", "/instance", form); err != nil || status != 200 {
			complain(what, t, "accepted over gRPC, over HTTP %d %s %v", status, b, err)
			return
		}
		if q, err := c.call(nacos.TypeServiceQueryRequest, object{"namespace": namespace, "groupName": group, "serviceName": service}); err != nil || len(q.hosts()) != 1 {
			complain(what, t, "registered over HTTP, queried over gRPC: %v %v", q, err)
		}
		if status, b, err := a.web("DELETE", "/instance", form); err != nil || status != 200 {
			complain(what, t, "removed over HTTP: %d %s %v", status, b, err)
		}
		if hosts, err := a.httpHosts(namespace, group, service); err != nil || len(hosts) > 0 {
			complain(what, t, "removed over HTTP, yet %q %v", hosts, err)
		}
	}
	services := absurd(512)
	random := rand.New(rand.NewPCG(3, 4))
	n := 200
	if a.long {
		n = 10_000
	}
	for range n {
		var b strings.Builder
		for range 1 + random.IntN(8) {
			switch random.IntN(4) {
			case 0:
				b.WriteRune(rune(random.IntN(128)))
			case 1:
				b.WriteRune(rune(random.IntN(0x3100)))
			case 2:
				b.WriteString([]string{"@", "@@", " ", "\u00a0", "%", "+", "&", "=", ".", "/", "\x00", "\u2003"}[random.IntN(12)])
			default:
				b.WriteByte("abcXYZ019-_:"[random.IntN(12)])
			}
		}
		services = append(services, text{strings.ToValidUTF8(b.String(), "?"), ""})
	}
	for _, t := range services {
		grpc("service", t, "attack", "g", t.s, "c", "10.0.0.1")
	}
	for _, t := range absurd(128) {
		grpc("group", t, "attack", t.s, "names", "c", "10.0.0.1")
	}
	for _, t := range absurd(64) {
		grpc("namespace", t, t.s, "g", "names", "c", "10.0.0.1")
	}
	for _, t := range absurd(64) {
		grpc("cluster", t, "attack", "g", "names", t.s, "10.0.0.1")
	}
	for _, t := range absurd(128) {
		if strings.Contains(t.s, "@") { // an address may have that
			t.take = ""
		}
		grpc("ip", t, "attack", "g", "names", "c", t.s)
	}
	for what, body := range map[string]object{"service": {"serviceName": ""}, "blank service": {"serviceName": " "}, "group": {"groupName": ""}, "ip": {"instance": inst("", 80)}, "blank ip": {"instance": inst(" ", 80)}} {
		all := register("names", inst("10.0.0.1", 80))
		maps.Copy(all, body)
		if ans, err := c.call(nacos.TypeInstanceRequest, all); err != nil || ans.ok() {
			errs = append(errs, fmt.Errorf("no %s: %v %v", what, ans, err))
		}
	}
	return fmt.Sprintf("%d accepted, %d refused", accepted, refused), errors.Join(errs...)
}

// numbers tries ports and weights, over gRPC and HTTP.
func numbers(a *arena) (string, error) {
	c, err := a.connect(manners{})
	if err != nil {
		return "", err
	}
	defer c.close()
	var errs []error
	accepted, refused := 0, 0
	// valid checks the one host of the service, with the numbers given back.
	valid := func(what string) {
		q, err := c.query("numbers")
		if err != nil || len(q.hosts()) != 1 {
			errs = append(errs, fmt.Errorf("%s is accepted, then: %v %v", what, q, err))
			return
		}
		h, _ := q.hosts()[0].(map[string]any)
		port, ok1 := h["port"].(float64)
		weight, ok2 := h["weight"].(float64)
		if !ok1 || !ok2 || port < 0 || port > 65535 || port != float64(int(port)) || weight < 0 {
			errs = append(errs, fmt.Errorf("%s came back as %v", what, h))
		}
	}
	for _, field := range []string{"port", "weight"} {
		for value, take := range map[string]bool{"0": true, "1": true, "65535": true, "-0": true, "null": true,
			"-1": false, "1e400": false, "-1e400": false, `"NaN"`: false, `"Infinity"`: false, `"-Infinity"`: false, "NaN": false, "Infinity": false, "-Infinity": false, "0x10": false, "01": false, "+1": false, ".5": false, "1e": false} {
			errs = append(errs, number1(c, field, value, &take, &accepted, &refused, valid))
		}
	}
	for value, take := range map[string]bool{"65536": false, "2147483648": false, "-2147483649": false, "9223372036854775808": false} {
		errs = append(errs, number1(c, "port", value, &take, &accepted, &refused, valid))
	}
	for _, value := range []string{"1.5", "1e3", `"80"`, `""`} {
		errs = append(errs, number1(c, "port", value, nil, &accepted, &refused, valid))
	}
	for _, value := range []string{"1e308", "1.7976931348623157e308", "5e-324", "0.1", "10000", "10001", "1e21", "123456789.123456789"} {
		errs = append(errs, number1(c, "weight", value, nil, &accepted, &refused, valid))
	}
	for _, value := range []string{"", "0", "1", "65535", "-0", "-1", "65536", "2147483648", "1e400", "-1e400", "NaN", "Infinity", "-Infinity", "inf", "0x10", "1_000", "1e3", "١", "1.0.0", " 1", "+1", strings.Repeat("9", 10000), "0." + strings.Repeat("0", 10000) + "1"} {
		for _, field := range []string{"port", "weight"} {
			form := url.Values{"serviceName": {"numbers"}, "ip": {"10.0.0.1"}, "port": {"80"}}
			form.Set(field, value)
			status, body, err := a.web("POST", "/instance", form)
			if err != nil || status != 200 && status != 400 {
				errs = append(errs, fmt.Errorf("HTTP %s %q: %d %s %v", field, clip(value), status, clip(string(body)), err))
			}
			if status != 200 {
				refused++
				continue
			}
			accepted++
			valid("HTTP " + field + " " + clip(value))
			if status, body, err := a.web("DELETE", "/instance", form); err != nil || status != 200 {
				errs = append(errs, fmt.Errorf("HTTP %s %q cannot be removed: %d %s %v", field, clip(value), status, body, err))
			}
		}
		beat := fmt.Sprintf(`{"ip":"10.0.0.1","port":%q,"weight":%q}`, value, value)
		if status, body, err := a.web("PUT", "/instance/beat", url.Values{"serviceName": {"numbers"}, "beat": {beat}}); err != nil || status != 200 && status != 400 {
			errs = append(errs, fmt.Errorf("beat with %q: %d %s %v", clip(value), status, body, err))
		}
		if q, err := c.query("numbers"); err != nil {
			errs = append(errs, fmt.Errorf("after a beat with %q: %v", clip(value), err))
		} else {
			for _, h := range q.hosts() {
				port := fmt.Sprint(h.(map[string]any)["port"])
				if status, body, err := a.web("DELETE", "/instance", url.Values{"serviceName": {"numbers"}, "ip": {"10.0.0.1"}, "port": {port}}); err != nil || status != 200 {
					errs = append(errs, fmt.Errorf("beat with %q cannot be removed: %d %s %v", clip(value), status, body, err))
				}
			}
		}
	}
	if q, err := c.query("numbers"); err != nil || len(q.hosts()) > 0 {
		errs = append(errs, fmt.Errorf("at the end: %v %v", q, err))
	}
	return fmt.Sprintf("%d accepted, %d refused", accepted, refused), errors.Join(errs...)
}

func number1(c *client, field, value string, take *bool, accepted, refused *int, valid func(string)) error {
	body := fmt.Sprintf(`{"serviceName":"numbers","groupName":"DEFAULT_GROUP","type":"registerInstance","instance":{"ip":"10.0.0.1","%s":%s}}`, field, value)
	ans, err := c.call(nacos.TypeInstanceRequest, body)
	what := field + " " + value
	switch {
	case err != nil:
		return fmt.Errorf("%s: %v", what, err)
	case take != nil && ans.ok() != *take, !ans.ok() && ans.code() != nacos.CodeInvalidParam && ans.code() != nacos.CodeBadGateway:
		return fmt.Errorf("%s: %v", what, ans)
	case !ans.ok():
		*refused++
		return nil
	}
	*accepted++
	valid(what)
	return must(c.deregister("numbers", inst("10.0.0.1", 0)))
}

// metadata tries what may stand in metadata and in ids.
func metadata(a *arena) (string, error) {
	watched := make(chan string, 100)
	sub, err := a.connect(manners{received: func(typ string, body []byte) {
		if typ == nacos.TypeNotifySubscriberRequest {
			select {
			case watched <- string(body):
			default:
			}
		}
	}})
	if err != nil {
		return "", err
	}
	defer sub.close()
	c, err := a.connect(manners{})
	if err != nil {
		return "", err
	}
	defer c.close()
	errs := []error{must(sub.subscribe("metadata"))}
	keys := func(n int) object {
		m := object{}
		for i := range n {
			m[fmt.Sprintf("%x", i)] = ""
		}
		return m
	}
	accepted, refused := 0, 0
	try := func(what string, instance object, take string, keep map[string]string) {
		ans, err := c.register("metadata", instance)
		if err != nil || ans.ok() && take == "no" || !ans.ok() && take == "yes" || !ans.ok() && ans.code() >= 500 && ans.code() != nacos.CodeBadGateway && take != "500" {
			errs = append(errs, fmt.Errorf("%s: %v %v", what, ans, err))
			return
		}
		if !ans.ok() {
			refused++
			return
		}
		accepted++
		q, err := c.query("metadata")
		if err != nil || len(q.hosts()) != 1 {
			errs = append(errs, fmt.Errorf("%s, queried: %v %v", what, q, err))
			return
		}
		h, _ := q.hosts()[0].(map[string]any)
		if got := fmt.Sprint(h["metadata"]); keep != nil && got != fmt.Sprint(keep) {
			errs = append(errs, fmt.Errorf("%s came back as %s", what, clip(got)))
		}
		for _, k := range []string{"instanceHeartBeatInterval", "instanceHeartBeatTimeOut", "ipDeleteTimeout"} {
			if n, ok := h[k].(float64); !ok || n < 0 {
				errs = append(errs, fmt.Errorf("%s: %s is %v", what, k, h[k]))
			}
		}
		if err := must(c.deregister("metadata", instance)); err != nil {
			errs = append(errs, fmt.Errorf("%s, removed: %v", what, err))
		}
	}
	i := inst("10.0.0.1", 80)
	try("100 kB", i.with("metadata", object{"a": strings.Repeat("x", 100_000)}), "no", nil)
	try("a key of 100 kB", i.with("metadata", object{strings.Repeat("x", 100_000): ""}), "no", nil)
	try("5,000 keys", i.with("metadata", keys(5000)), "no", nil)
	try("1,024 characters", i.with("metadata", object{"a": strings.Repeat("x", 1023)}), "yes", map[string]string{"a": strings.Repeat("x", 1023)})
	try("1,025 characters", i.with("metadata", object{"a": strings.Repeat("x", 1024)}), "no", nil)
	try("1,024 in UTF-16", i.with("metadata", object{"": strings.Repeat("🦆", 512)}), "yes", map[string]string{"": strings.Repeat("🦆", 512)})
	try("1,026 in UTF-16", i.with("metadata", object{"": strings.Repeat("🦆", 513)}), "no", nil)
	for _, s := range []string{"\x00", "\x01\x1f\x7f", "\u2028\u2029", "<>&", `"\`, "\ufeff", "\ufffd", "服务", "\U0010ffff", "\n\r\t"} {
		try(fmt.Sprintf("%q", s), i.with("metadata", object{"k": s}), "yes", map[string]string{"k": s})
		try(fmt.Sprintf("key %q", s), i.with("metadata", object{s: "v"}), "yes", map[string]string{s: "v"})
	}
	for _, key := range []string{nacos.KeyBeatInterval, nacos.KeyBeatTimeout, nacos.KeyDeleteAfter, nacos.KeyIDGenerator} {
		for _, v := range []any{"", "-1", "0", "1", "9223372036854775807", "9223372036854775808", strings.Repeat("9", 400), "1e3", "NaN", "simple", "snowflake", "other", 0, 1e300, true} {
			try(fmt.Sprintf("%s=%v", key, v), i.with("metadata", object{key: v}), "500", nil)
		}
	}
	for what, md := range map[string]string{"a list": "[]", "a text": `"x"`, "a number": "1", "nested": `{"a":{"b":"c"}}`, "list in it": `{"a":[]}`} {
		try(what, i.with("metadata", json.RawMessage(md)), "no", nil)
	}
	for what, id := range map[string]any{"own id": "x", "id with #": "1#2#3", "id of 64 kB": strings.Repeat("i", 65536), "id with NUL": "a\x00b", "null id": nil} {
		try(what, i.with("instanceId", id), "", nil)
	}
	// Over HTTP, where metadata may be text as well.
	for _, s := range []string{"a=b", "a", "=", "a=", "=b", "a=b=c", ",,,", "a=b,,c=d", "{", `{"a":1}`, `{"a":{}}`, "[]", "null", "None", `{"a":null}`, strings.Repeat("k=v,", 5000), strings.Repeat("x", 100_000), "a=\x00", `{"preserved.heart.beat.timeout":"9223372036854775807"}`, `{"preserved.ip.delete.timeout":"9223372036854775807"}`} {
		form := url.Values{"serviceName": {"metadata"}, "ip": {"10.0.0.1"}, "port": {"80"}, "metadata": {s}}
		status, body, err := a.web("POST", "/instance", form)
		if err != nil || status != 200 && status != 400 {
			errs = append(errs, fmt.Errorf("HTTP metadata %q: %d %s %v", clip(s), status, clip(string(body)), err))
		}
		if q, err := c.query("metadata"); err != nil || (len(q.hosts()) == 1) != (status == 200) {
			errs = append(errs, fmt.Errorf("HTTP metadata %q, queried: %v %v", clip(s), q, err))
		}
		if status, _, err := a.web("DELETE", "/instance", form); status == 200 && err == nil {
			continue
		}
		// What is wrong with the metadata is wrong here, too.
		form.Del("metadata")
		if status, body, err := a.web("DELETE", "/instance", form); err != nil || status != 200 {
			errs = append(errs, fmt.Errorf("HTTP metadata %q cannot be removed: %d %s %v", clip(s), status, body, err))
		}
	}
	time.Sleep(300 * time.Millisecond)
	pushes := 0
	for len(watched) > 0 {
		pushes++
		var v any
		if err := json.Unmarshal([]byte(<-watched), &v); err != nil {
			errs = append(errs, fmt.Errorf("push: %w", err))
		} else if err := noNull(v); err != nil {
			errs = append(errs, fmt.Errorf("push: %w", err))
		}
	}
	return fmt.Sprintf("%d accepted, %d refused, %d pushes", accepted, refused, pushes), errors.Join(errs...)
}

func bigBatches(a *arena) (string, error) {
	c, err := a.connect(manners{})
	if err != nil {
		return "", err
	}
	defer c.close()
	seen := 0
	sub, err := a.connect(manners{received: func(typ string, body []byte) {
		if typ == nacos.TypeNotifySubscriberRequest {
			seen = max(seen, len(body))
		}
	}})
	if err != nil {
		return "", err
	}
	defer sub.close()
	errs := []error{must(sub.subscribe("batch"))}
	var took time.Duration
	hosts := func(want int) {
		q, err := c.query("batch")
		if err != nil || len(q.hosts()) != want {
			errs = append(errs, fmt.Errorf("%d hosts, want %d: %v", len(q.hosts()), want, err))
		}
		if ips, err := a.httpHosts("public", "DEFAULT_GROUP", "batch"); err != nil || len(ips) != want {
			errs = append(errs, fmt.Errorf("over HTTP %d hosts, want %d: %v", len(ips), want, err))
		}
	}
	list := many(10_000, "")
	errs = append(errs, within(2*time.Second, func() error {
		start := time.Now()
		defer func() { took = time.Since(start) }()
		return must(c.batch("batch", list))
	}))
	hosts(10_000)
	for _, l := range [][]byte{many(20_001, ""), many(200_000, ""), many(10_000, `,"weight":-1`), []byte("[null]"), []byte(`[{"ip":"10.0.0.1","port":80},{"ip":"","port":80}]`), []byte("[[]]"), []byte("null"), []byte("{}")} {
		if ans, err := c.batch("batch", l); err != nil || ans.ok() {
			errs = append(errs, fmt.Errorf("%s is accepted: %v %v", clip(string(l)), ans, err))
		}
	}
	hosts(10_000)
	errs = append(errs, within(2*time.Second, func() error { // one of the 10,000
		return must(c.deregister("batch", inst("10.0.0.7", 80)))
	}))
	hosts(9_999)
	same := []byte("[" + strings.TrimSuffix(strings.Repeat(`{"ip":"10.0.0.1","port":80},`, 10_000), ",") + "]")
	errs = append(errs, within(2*time.Second, func() error { return must(c.batch("batch", same)) }))
	hosts(1)
	// Churn of the whole: each is a new picture of 10,000.
	rounds := 5
	if a.long {
		rounds = 30
	}
	for i := range rounds {
		errs = append(errs, must(c.batch("batch", many(10_000, fmt.Sprintf(`,"metadata":{"n":"%d"}`, i)))))
	}
	errs = append(errs, must(c.batch("batch", []byte("[]"))))
	hosts(0)
	errs = append(errs, must(c.deregister("batch", inst("10.0.0.1", 80))))
	time.Sleep(300 * time.Millisecond)
	return fmt.Sprintf("10,000 in %d ms, pushed in up to %d kB", took.Milliseconds(), seen>>10), errors.Join(errs...)
}
