package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/starling-registry/starling/pkg/nacos"
)

// persistents registers persistent instances with absurd parts over gRPC. What
// is accepted is in the log: all readers show it as it is, and it can be
// removed.
func persistents(a *arena) (string, error) {
	c, err := a.connect(manners{})
	if err != nil {
		return "", err
	}
	defer c.close()
	var errs []error
	accepted, refused := 0, 0
	const typ = "PersistentInstanceRequest"
	try := func(what, namespace, group, service string, instance object) {
		body := object{"namespace": namespace, "groupName": group, "serviceName": service, "type": nacos.OpRegister, "instance": instance.with("ephemeral", false)}
		complain := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("%s: %s", clip(what), clip(fmt.Sprintf(format, args...))))
		}
		ans, err := c.call(typ, body)
		if err != nil {
			complain("%v", err)
			return
		}
		if !ans.ok() {
			refused++
			if ans.code() != nacos.CodeInvalidParam && ans.code() != nacos.CodeServerError {
				complain("%v", ans)
			}
			return
		}
		accepted++
		q, err := c.call(nacos.TypeServiceQueryRequest, object{"namespace": namespace, "groupName": group, "serviceName": service})
		if err != nil || len(q.hosts()) != 1 {
			complain("queried: %v %v", q, err)
		}
		if hosts, err := a.httpHosts(namespace, group, service); err != nil || len(hosts) != 1 {
			complain("over HTTP: %q %v", hosts, err)
		}
		status, b, err := a.srv.send("GET", "/starling/v1/history", url.Values{"namespace": {namespace}, "group": {group}, "service": {service}})
		if err != nil || status != 200 || !json.Valid([]byte(b)) {
			complain("history: %d %s %v", status, b, err)
		}
		for _, path := range []string{"/nacos/v1/ns/service", "/nacos/v2/ns/service", "/nacos/v3/admin/ns/service", "/nacos/v3/admin/ns/service/list"} {
			status, b, err := a.srv.send("GET", path, url.Values{"namespaceId": {namespace}, "groupName": {group}, "serviceName": {service}, "groupNameParam": {group}, "withInstances": {"true"}})
			if err != nil || status != 200 || !json.Valid([]byte(b)) {
				complain("%s: %d %s %v", path, status, b, err)
			}
		}
		if err := must(c.call(typ, body.with("type", nacos.OpDeregister))); err != nil {
			complain("removed: %v", err)
		}
		if hosts, err := a.httpHosts(namespace, group, service); err != nil || len(hosts) > 0 {
			complain("removed, yet %q %v", hosts, err)
		}
	}
	at := inst("10.7.0.1", 80)
	for _, t := range absurd(512) {
		try("service "+t.s, "attack", "g", t.s, at)
	}
	for _, t := range absurd(64) {
		try("group "+t.s, "attack", t.s, "p", at)
		try("namespace "+t.s, t.s, "g", "p", at)
		try("cluster "+t.s, "attack", "g", "p", at.with("clusterName", t.s))
		try("ip "+t.s, "attack", "g", "p", inst(t.s, 80))
		try("metadata "+t.s, "attack", "g", "p", at.with("metadata", object{t.s: t.s}))
		try("id "+t.s, "attack", "g", "p", at.with("instanceId", t.s))
	}
	for _, md := range []object{{"k": strings.Repeat("x", 1<<20)}, {strings.Repeat("k", 1<<20): ""}, {"": ""}, {"k": nil}} {
		try("metadata", "attack", "g", "p", at.with("metadata", md))
	}
	for _, raw := range []string{"NaN", `"NaN"`, `"Infinity"`, "1e999", "-1e999", "-0.0", "1e308", "5e-324", "-1", "10001", "[]", "\"\xff\"", `"\ud800"`, "null"} {
		for _, field := range []string{"weight", "port", "ip", "clusterName", "metadata", "healthy", "enabled", "instanceId"} {
			instance := fmt.Sprintf(`{"ip":"10.7.0.1","port":80,"clusterName":"c","%s":%s}`, field, raw)
			body := func(op string) string {
				return fmt.Sprintf(`{"namespace":"attack","groupName":"g","serviceName":"raw","type":%q,"instance":%s}`, op, instance)
			}
			ans, err := c.call(typ, body(nacos.OpRegister))
			if err != nil {
				errs = append(errs, fmt.Errorf("%s %s: %v", field, raw, err))
				continue
			}
			if !ans.ok() {
				refused++
				continue
			}
			accepted++
			q, err := c.call(nacos.TypeServiceQueryRequest, object{"namespace": "attack", "groupName": "g", "serviceName": "raw"})
			if err == nil {
				err = q.check()
			}
			if err != nil || len(q.hosts()) != 1 {
				errs = append(errs, fmt.Errorf("%s %s: queried %v %v", field, raw, q, err))
			}
			if err := must(c.call(typ, body(nacos.OpDeregister))); err != nil {
				errs = append(errs, fmt.Errorf("%s %s: removed: %v", field, raw, err))
			}
		}
	}
	return fmt.Sprintf("%d accepted, %d refused", accepted, refused), errors.Join(errs...)
}

// strangeWrites sends absurd values to everything over HTTP that writes to the
// log.
func strangeWrites(a *arena) (string, error) {
	values := []string{"", " ", "\x00", "a\r\nX: y", "\xff\xfe", "@@", "a@@b@@c", "-1", "65536", "NaN", "1e999", "null", "{", "[]", "true", `{"a":null}`, `{"type":"none"}`, `{"type":"HTTP","path":"a\r\nX: y","headers":"A:b\r\nc","expectedResponseCode":"99999"}`,
		`{"type":"MYSQL","user":"\u0000","pwd":"\ud800","cmd":"x"}`, `{"type":{"type":"TCP"}}`, strings.Repeat(`{"type":`, 600), strings.Repeat("x", 9000), "服务", "%s%n"}
	type endpoint struct{ method, path string }
	var all []endpoint
	for _, v := range []string{"/nacos/v1/ns/", "/nacos/v2/ns/", "/nacos/v3/admin/ns/"} {
		for _, path := range []string{"instance", "instance/partial", "service", "cluster", "health", "health/instance"} {
			for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
				all = append(all, endpoint{method, v + path})
			}
		}
	}
	all = append(all, endpoint{"POST", "/nacos/v3/client/ns/instance"}, endpoint{"DELETE", "/nacos/v3/client/ns/instance"})
	good := url.Values{"namespaceId": {"attack"}, "serviceName": {"strange"}, "groupName": {"g"}, "ip": {"10.7.1.1"}, "port": {"80"}, "clusterName": {"c"}, "ephemeral": {"false"}, "healthy": {"true"},
		"protectThreshold": {"0.5"}, "checkPort": {"80"}, "useInstancePort4Check": {"true"}, "healthChecker": {`{"type":"NONE"}`}, "weight": {"1"}, "metadata": {`{"a":"b"}`}, "selector": {`{"type":"none"}`}, "enabled": {"true"}}
	clean := func() error {
		for _, e := range []endpoint{{"DELETE", "/nacos/v1/ns/instance"}, {"DELETE", "/nacos/v1/ns/service"}} {
			if status, body, err := a.srv.send(e.method, e.path, good); err != nil || status >= 500 {
				return fmt.Errorf("cleaning up: %d %s %v", status, body, err)
			}
		}
		return nil
	}
	var errs []error
	seen := map[int]int{}
	n, writes := 0, 0
	for _, e := range all {
		if status, body, err := a.srv.send(e.method, e.path, good); err != nil || status >= 500 && !strings.Contains(body, `"code":`) && status != 501 {
			errs = append(errs, fmt.Errorf("%s %s: %d %s %v", e.method, e.path, status, clip(body), err))
		} else if status == 404 || status == 405 || status == 501 {
			continue // there is no such endpoint
		}
		for _, param := range slices.Sorted(maps.Keys(good)) {
			for i, v := range values {
				if !a.long && (i+n)%9 != 0 { // over the endpoints, each has its turn
					n++
					continue
				}
				n++
				writes++
				q := url.Values{}
				for k := range good {
					q.Set(k, good.Get(k))
				}
				q.Set(param, v)
				status, body, err := a.srv.send(e.method, e.path, q)
				seen[status]++
				if err != nil || strings.Contains(body, "internal error") || strings.Contains(body, "not known whether") || !utf8.ValidString(body) || status >= 500 && !json.Valid([]byte(body)) {
					errs = append(errs, fmt.Errorf("%s %s %s=%q: %d %s %v", e.method, e.path, param, clip(v), status, clip(body), err))
				}
				if status == 200 && e.method == "POST" {
					// What was taken under another name is to be removed by it.
					for _, path := range []string{"instance", "service"} {
						if status, body, err := a.srv.send("DELETE", "/nacos/v1/ns/"+path, q); err != nil || status >= 500 {
							errs = append(errs, fmt.Errorf("remove %s=%q: %d %s %v", param, clip(v), status, clip(body), err))
						}
					}
				}
			}
		}
	}
	errs = append(errs, clean())
	status, body, err := a.srv.send("GET", "/starling/v1/raft", nil)
	if err != nil || status != 200 || !json.Valid([]byte(body)) {
		errs = append(errs, fmt.Errorf("raft: %d %s %v", status, clip(body), err))
	}
	return fmt.Sprintf("%d writes, statuses %v", writes, seen), errors.Join(errs...)
}

// nativeWrites are those for operators: a page of another site must not be able
// to send them.
func nativeWrites(a *arena) (string, error) {
	n := 0
	for path, body := range map[string]string{"/members/remove": `{"id":"x"}`, "/restore?force=true": "x", "/drain": "{}", "/self-preservation/end": "{}"} {
		typ := "application/json"
		if strings.HasPrefix(path, "/restore") {
			typ = "application/octet-stream"
		}
		for _, head := range []map[string]string{
			{"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}, {"Content-Type": "multipart/form-data; boundary=x"}, {},
			{"Content-Type": typ, "Origin": "http://evil.example"}, {"Content-Type": typ, "Origin": "null"}, {"Content-Type": typ, "Sec-Fetch-Site": "cross-site"}, {"Content-Type": typ, "Sec-Fetch-Site": "same-site"},
		} {
			n++
			status, answer, err := a.raw("POST", "/starling/v1"+path, head, []byte(body))
			if err != nil || status != 403 && status != 415 {
				return "", fmt.Errorf("POST %s with %v: %d %s %v", path, head, status, clip(string(answer)), err)
			}
		}
		for _, method := range []string{"GET", "PUT", "DELETE"} {
			if path == "/drain" && method == "GET" {
				continue
			}
			n++
			if status, answer, err := a.raw(method, "/starling/v1"+path, map[string]string{"Content-Type": typ}, []byte(body)); err != nil || status != 405 {
				return "", fmt.Errorf("%s %s: %d %s %v", method, path, status, clip(string(answer)), err)
			}
		}
	}
	json := map[string]string{"Content-Type": "application/json"}
	for _, body := range []string{"", "{}", "[]", `{"id":""}`, `{"id":null}`, `{"id":5}`, `{"id":"x","force":true}`, `{"id":"x"}{"id":"y"}`, `{"id":"` + strings.Repeat("x", 1<<20) + `"}`, `{"id":"\u0000\ud800"}`, strings.Repeat(`{"id":`, 20000), `{"id":"nobody"}`} {
		n++
		if status, answer, err := a.raw("POST", "/starling/v1/members/remove", json, []byte(body)); err != nil || status < 400 || status >= 500 {
			return "", fmt.Errorf("remove %s: %d %s %v", clip(body), status, clip(string(answer)), err)
		}
	}
	return fmt.Sprintf("%d refused", n), nil
}

// A pattern repeats for as long as it is read.
type pattern struct {
	begin string
	part  []byte
	every time.Duration
}

func (p *pattern) Read(b []byte) (int, error) {
	if p.begin != "" {
		n := copy(b, p.begin)
		p.begin = p.begin[n:]
		return n, nil
	}
	time.Sleep(p.every)
	n := 0
	for n < len(b) {
		n += copy(b[n:], p.part)
		if p.every > 0 {
			break
		}
	}
	return n, nil
}

// backups makes many at once, restores what is none, and at last restores a
// right one and starts the node again, on a server of its own.
func backups(a *arena) (string, error) {
	ctx, cancel := timeout()
	defer cancel()
	srv, err := startServer(ctx, a.bin, settings...)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(srv.dir)
	defer srv.kill()
	for n := range 50 {
		q := url.Values{"serviceName": {fmt.Sprint("kept-", n%5)}, "ip": {fmt.Sprintf("10.8.0.%d", n)}, "port": {"80"}, "ephemeral": {"false"}, "metadata": {"a=" + strings.Repeat("x", 500)}}
		if status, body, err := srv.send("POST", "/nacos/v1/ns/instance", q); err != nil || status != 200 {
			return "", fmt.Errorf("register: %d %s %v", status, clip(body), err)
		}
	}
	status, backup, err := get(ctx, "http://"+srv.http()+"/starling/v1/backup")
	if err != nil || status != 200 {
		return "", fmt.Errorf("backup: %d %v", status, err)
	}
	start, err := srv.memory("VmRSS")
	if err != nil {
		return "", err
	}
	srv.resetPeak()
	var whole, busy atomic.Int64
	crew(64, 600, func(n int) {
		if n%3 == 0 { // asked for and not read
			c, err := net.DialTimeout("tcp", srv.http(), callTimeout)
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "GET /starling/v1/backup HTTP/1.1\r\nHost: x\r\n\r\n")
			time.Sleep(time.Duration(n%7) * time.Millisecond)
			c.Close()
			return
		}
		switch status, b, err := get(ctx, "http://"+srv.http()+"/starling/v1/backup"); {
		case err == nil && status == 200 && bytes.HasPrefix(b, backup[:14]):
			whole.Add(1)
		case err == nil && status == 409:
			busy.Add(1)
		}
	})
	if whole.Load()+busy.Load() != 400 || whole.Load() == 0 {
		return "", fmt.Errorf("of 400 backups %d came, %d were refused", whole.Load(), busy.Load())
	}
	restore := func(body io.Reader, within time.Duration) (int, string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, "POST", "http://"+srv.http()+"/starling/v1/restore?force=true", body)
		if err != nil {
			return 0, "", err
		}
		req.Header.Set("Content-Type", "application/octet-stream")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, "", err
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		return res.StatusCode, string(b), err
	}
	damaged := bytes.Clone(backup)
	damaged[len(damaged)/2] ^= 1
	bad := map[string]io.Reader{
		"nothing": strings.NewReader(""), "noise": strings.NewReader(strings.Repeat("noise", 1000)), "half": bytes.NewReader(backup[:len(backup)/2]),
		"damaged": bytes.NewReader(damaged), "twice": bytes.NewReader(append(bytes.Clone(backup), backup...)),
		"newer":   strings.NewReader(string(backup[:14]) + "\x09\x00\x00\x00" + string(backup[18:])),
		"endless": &pattern{part: make([]byte, 1<<16)}, "endless rows": &pattern{begin: string(backup[:34]), part: []byte("\x02\x08\x01")},
		"a huge row": strings.NewReader(string(backup[:34]) + "\xff\xff\xff\xff\xff\xff\xff\xff\x7f"), "rows of nothing": strings.NewReader(string(backup[:34]) + "\x00\xff\xff\xff\xff\xff\xff\xff\xff"),
	}
	for name, body := range bad {
		began := time.Now()
		status, answer, err := restore(body, 10*time.Second)
		// An answer before the end of the body may be lost with the connection.
		if err == nil && status != 400 || time.Since(began) > 5*time.Second {
			return "", fmt.Errorf("%s: %d %s %v after %v", name, status, clip(answer), err, time.Since(began))
		}
	}
	// One that drips keeps others out, and ends with its client.
	go restore(&pattern{begin: string(backup[:40]), part: []byte{0}, every: 300 * time.Millisecond}, 1500*time.Millisecond)
	time.Sleep(500 * time.Millisecond)
	if status, answer, err := restore(bytes.NewReader(backup), 5*time.Second); err != nil || status != 409 {
		return "", fmt.Errorf("beside another: %d %s %v", status, clip(answer), err)
	}
	var last string
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		status, answer, err := restore(bytes.NewReader(backup), 5*time.Second)
		if err == nil && status == 200 {
			break
		}
		if last = fmt.Sprintf("%d %s %v", status, clip(answer), err); time.Since(began) > 5*time.Second {
			return "", errors.New("a good one: " + last)
		}
	}
	peak, _ := srv.memory("VmHWM")
	if peak-start > 192<<20 {
		return "", fmt.Errorf("memory grew by %d MiB", (peak-start)>>20)
	}
	if err := srv.stop(); err != nil {
		return "", err
	}
	again, err := launch(a.bin, srv.dir, srv.port, settings...)
	if err != nil {
		return "", err
	}
	defer again.kill()
	if err := again.ready(ctx, 15*time.Second); err != nil {
		return "", err
	}
	_, body, err := again.send("GET", listPath, url.Values{"serviceName": {"kept-1"}})
	if n := strings.Count(body, `"ip":"10.8.0.`); err != nil || n != 10 {
		return "", fmt.Errorf("after the restart: %d instances, %v", n, err)
	}
	if found := again.bugs(); len(found) > 0 {
		return "", errors.New(found[0])
	}
	return fmt.Sprintf("%d backups at once, %d refused; %d bad ones refused; %d MiB more", whole.Load(), busy.Load(), len(bad), (peak-start)>>20), again.stop()
}

// probes lets the node check instances that belong to the attacker, and looks
// at what comes: one harmless request, however the settings are written.
func probes(a *arena) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	heard := make(chan string, 1000)
	var open, most atomic.Int64
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			most.Store(max(most.Load(), open.Add(1)))
			go func() {
				defer open.Add(-1)
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(3 * time.Second))
				b := make([]byte, 16<<10)
				n, _ := c.Read(b)
				select {
				case heard <- string(b[:n]):
				default:
				}
				// An answer that does not end.
				for {
					if _, err := io.WriteString(c, "HTTP/1.1 100 Continue\r\nX: "+strings.Repeat("x", 4096)+"\r\n\r\n"); err != nil {
						return
					}
				}
			}()
		}
	}()
	port := fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
	base := url.Values{"serviceName": {"probed"}, "groupName": {"g"}, "namespaceId": {"attack"}, "ip": {"127.0.0.1"}, "port": {port}, "ephemeral": {"false"}}
	with := func(pairs ...string) url.Values {
		q := url.Values{}
		for k := range base {
			q.Set(k, base.Get(k))
		}
		for i := 0; i < len(pairs); i += 2 {
			q.Set(pairs[i], pairs[i+1])
		}
		return q
	}
	if status, body, err := a.srv.send("POST", "/nacos/v1/ns/instance", base); err != nil || status != 200 {
		return "", fmt.Errorf("register: %d %s %v", status, body, err)
	}
	clean := func() error {
		if status, body, err := a.srv.send("DELETE", "/nacos/v1/ns/instance", base); err != nil || status != 200 {
			return fmt.Errorf("deregister: %d %s %v", status, body, err)
		}
		status, body, err := a.srv.send("DELETE", "/nacos/v1/ns/service", base)
		if err != nil || status != 200 {
			return fmt.Errorf("remove: %d %s %v", status, body, err)
		}
		return nil
	}
	n, taken := 0, 0
	for _, checker := range []object{
		{"type": "HTTP", "path": "/a\r\nX-Injected: 1\r\n\r\nDELETE / HTTP/1.1", "headers": ""},
		{"type": "HTTP", "path": "http://evil.example/x", "headers": ""},
		{"type": "HTTP", "path": "//evil.example/x", "headers": "Host:evil.example\r\nX-Injected: 1"},
		{"type": "HTTP", "path": "/ok HTTP/1.1\r\nX-Injected: 1", "headers": ""},
		{"type": "HTTP", "path": "/ok", "headers": "A:b\r\nX-Injected: 1|C\r\nX-Injected:1|X-Y:\u0000\u000aX-Injected: 1|Transfer-Encoding:chunked|Content-Length:1000|Connection:keep-alive"},
		{"type": "HTTP", "path": "/\u2028\ufeff%0d%0aX-Injected:%201", "headers": strings.Repeat("A:b|", 900)},
		{"type": "MYSQL", "user": "root@tcp(evil.example:3306)/?allowAllFiles=true", "pwd": "x", "cmd": "DROP DATABASE x"},
		{"type": "TCP"},
	} {
		text, err := json.Marshal(checker)
		if err != nil {
			return "", err
		}
		n++
		status, body, err := a.srv.send("PUT", "/nacos/v1/ns/cluster", with("clusterName", "DEFAULT", "checkPort", port, "useInstancePort4Check", "true", "healthChecker", string(text)))
		if err != nil || status >= 500 {
			return "", fmt.Errorf("%s: %d %s %v", text, status, clip(body), err)
		}
		if status != 200 {
			continue
		}
		taken++
		for drained := false; !drained; {
			select {
			case <-heard:
			default:
				drained = true
			}
		}
		until := time.After(2500 * time.Millisecond) // a change is looked at soon; what is due later is the same
		for waits := true; waits; {
			select {
			case said := <-heard:
				head, rest, _ := strings.Cut(said, "\r\n\r\n")
				switch {
				case checker["type"] == "MYSQL" && said != "", checker["type"] == "TCP" && said != "" && !strings.HasPrefix(said, "GET /"):
					return "", fmt.Errorf("%s: it said %q first", text, clip(said))
				case said == "":
				case rest != "" || strings.Contains(head, "\nX-Injected") || !strings.HasPrefix(head, "GET /") || strings.Contains(strings.ToLower(head), "transfer-encoding") || strings.Contains(strings.ToLower(head), "\ncontent-length: 1000"):
					return "", fmt.Errorf("%s: it said %q", text, clip(said))
				}
				waits = checker["type"] == "TCP"
			case <-until:
				waits = false
			}
		}
	}
	if most.Load() > 4 {
		return "", fmt.Errorf("%d probes at one time", most.Load())
	}
	return fmt.Sprintf("%d of %d settings taken", taken, n), clean()
}
