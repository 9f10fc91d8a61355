package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"
)

const listPath = "/nacos/v1/ns/instance/list"

// raw sends one request that is written by hand: target and headers go out as
// they are. status 0 is a connection closed without an answer.
func (a *arena) raw(method, target string, head map[string]string, body []byte) (status int, answer []byte, err error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n", method, target)
	if body != nil && head["Content-Length"] == "" && head["Transfer-Encoding"] == "" {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(body))
	}
	for k, v := range head {
		fmt.Fprintf(&b, "%s: %s\r\n", k, v)
	}
	b.WriteString("\r\n")
	b.Write(body)
	return a.wire(b.Bytes())
}

// wire writes bytes and reads one answer.
func (a *arena) wire(b []byte) (status int, answer []byte, err error) {
	c, err := net.DialTimeout("tcp", a.srv.http(), callTimeout)
	if err != nil {
		return 0, nil, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(callTimeout))
	go func() { // what the server does not read must not stop us from reading
		_, _ = c.Write(b)
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		if isTimeout(err) {
			return 0, nil, err
		}
		return 0, nil, nil
	}
	defer res.Body.Close()
	answer, _ = io.ReadAll(res.Body)
	return res.StatusCode, answer, nil
}

func hugeHTTP(a *arena) (string, error) {
	var errs []error
	seen := map[int]int{}
	want := func(what string, status int, err error, allowed ...int) {
		seen[status]++
		for _, ok := range allowed {
			if err == nil && status == ok {
				return
			}
		}
		errs = append(errs, fmt.Errorf("%s: %d %v", what, status, err))
	}
	long := strings.Repeat("a", 1<<20)
	status, _, err := a.raw("GET", listPath+"?serviceName="+long, nil, nil)
	want("query of 1 MiB", status, err, 0, 414, 431)
	status, _, err = a.raw("GET", "/"+long, nil, nil)
	want("path of 1 MiB", status, err, 0, 414, 431)
	status, _, err = a.raw("GET", listPath+"?serviceName="+long[:60_000], nil, nil)
	want("query of 60 kB", status, err, 400)
	status, _, err = a.raw(long, listPath, nil, nil)
	want("method of 1 MiB", status, err, 0, 400, 414, 431)
	status, _, err = a.raw("GET", listPath+"?serviceName=x", map[string]string{"X": long}, nil)
	want("header of 1 MiB", status, err, 0, 431)
	many := map[string]string{}
	for i := range 50_000 {
		many[fmt.Sprint("X-", i)] = "x"
	}
	status, _, err = a.raw("GET", listPath+"?serviceName=x", many, nil)
	want("50,000 headers", status, err, 0, 431)
	form := map[string]string{"Content-Type": "application/x-www-form-urlencoded"}
	for _, size := range []int{1<<20 + 1, 64 << 20} {
		status, _, err = a.raw("POST", "/nacos/v1/ns/instance", form, bytes.Repeat([]byte{'a'}, size))
		want(fmt.Sprintf("form of %d bytes", size), status, err, 413, 0)
	}
	status, _, err = a.raw("POST", "/nacos/v1/ns/instance", form, []byte("serviceName=x&ip=10.0.0.1&port=80&metadata="+long[:900_000]))
	want("metadata of 900 kB", status, err, 400)
	// A body that is not read, because it is no form.
	status, _, err = a.raw("POST", "/nacos/v1/ns/instance?serviceName=huge&ip=10.0.0.1&port=80", map[string]string{"Content-Type": "application/json"}, bytes.Repeat([]byte{'a'}, 8<<20))
	want("JSON of 8 MiB", status, err, 200, 0)
	status, _, err = a.raw("DELETE", "/nacos/v1/ns/instance?serviceName=huge&ip=10.0.0.1&port=80", nil, nil)
	want("removed", status, err, 200)
	// Chunks without an end: the limit counts, or the time.
	c, err := net.DialTimeout("tcp", a.srv.http(), callTimeout)
	if err != nil {
		return "", err
	}
	defer c.Close()
	start := time.Now()
	_ = c.SetDeadline(start.Add(callTimeout))
	_, _ = io.WriteString(c, "POST /nacos/v1/ns/instance HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
	sent := 0
	for sent < 1<<30 {
		if _, err = fmt.Fprintf(c, "%x\r\n%s\r\n", 1<<16, long[:1<<16]); err != nil {
			break
		}
		sent += 1 << 16
	}
	if err == nil || isTimeout(err) {
		errs = append(errs, fmt.Errorf("endless chunks: %d MiB taken, %v", sent>>20, err))
	}
	endless := time.Since(start)
	// Chunks of one byte, with extensions, and a trailer that is too big.
	for what, b := range map[string]string{
		"tiny chunks":     strings.Repeat("1\r\na\r\n", 300_000),
		"long extensions": "1;" + long + "\r\na\r\n0\r\n\r\n",
		"big trailer":     "1\r\na\r\n0\r\nX: " + long + "\r\n\r\n",
		"bad length":      "zz\r\na\r\n",
		"negative length": "-1\r\na\r\n",
		"huge length":     "ffffffffffffffff\r\na\r\n",
	} {
		status, _, err := a.wire([]byte("POST /nacos/v1/ns/instance HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + b + "0\r\n\r\n"))
		want(what, status, err, 0, 400, 413, 431)
	}
	return fmt.Sprintf("statuses %v (0: closed); endless chunks closed after %d kB, %.1f s", seen, sent>>10, endless.Seconds()), errors.Join(errs...)
}

// escapes sends what does not decode, or decodes to something odd.
func escapes(a *arena) (string, error) {
	var errs []error
	seen := map[int]int{}
	values := []string{"%", "%2", "%zz", "%u0041", "%00", "%ff%fe", "%c0%af", "%ed%a0%80", "%f4%90%80%80", "%E2%80%83", "\xff\xfe", "\xc0\xaf", "+", "%2B", "%20", "a%0d%0aX:y", "%F0%9F%A6%86", "%25%32%35", "a;b", "%26", "%3D", "%40%40", "x%40%40", "%40%40x", "g%40%40", "%C2%A0", "%EF%BB%BF", "%E3%80%80a", "{%22a%22:%22%%22}"}
	for _, v := range values {
		for _, param := range []string{"serviceName", "groupName", "namespaceId", "clusterName", "ip", "port", "weight", "metadata", "enabled", "beat", "healthyOnly"} {
			q := "serviceName=escapes&ip=10.0.0.1&port=80"
			switch param {
			case "serviceName":
				q = "ip=10.0.0.1&port=80"
			case "ip":
				q = "serviceName=escapes&port=80"
			case "port":
				q = "serviceName=escapes&ip=10.0.0.1"
			}
			q += "&" + param + "=" + v
			registered := map[bool]bool{} // in the form
			for _, r := range []struct{ method, path string }{{"POST", "instance"}, {"PUT", "instance"}, {"PATCH", "instance"}, {"GET", "instance"}, {"GET", "instance/list"}, {"PUT", "instance/beat"}, {"DELETE", "instance"}} {
				for _, inForm := range []bool{false, true} {
					var status int
					var body []byte
					var err error
					if inForm && r.method != "GET" {
						status, body, err = a.raw(r.method, "/nacos/v1/ns/"+r.path, map[string]string{"Content-Type": "application/x-www-form-urlencoded"}, []byte(q))
					} else {
						status, body, err = a.raw(r.method, "/nacos/v1/ns/"+r.path+"?"+q, nil, nil)
					}
					seen[status]++
					if r.method == "POST" && status == 200 {
						registered[inForm] = true
					}
					switch {
					case err != nil || status >= 500 || !utf8.Valid(body):
						errs = append(errs, fmt.Errorf("%s %s?%s: %d %q %v", r.method, r.path, q, status, clip(string(body)), err))
					case r.path == "instance/list" && status == 200 && !json.Valid(body):
						errs = append(errs, fmt.Errorf("%s %s?%s: %q", r.method, r.path, q, clip(string(body))))
					case r.method == "DELETE" && registered[inForm] && status != 200:
						errs = append(errs, fmt.Errorf("%s was registered and is not removed: %d %q", q, status, clip(string(body))))
					}
				}
			}
		}
	}
	v, err := a.srv.vitals(false)
	if err == nil && v.instances > 2 {
		// What was registered by a beat has another name; it expires.
		err = nil
	}
	return fmt.Sprintf("statuses %v", seen), errors.Join(append(errs, err)...)
}

func parameters(a *arena) (string, error) {
	var errs []error
	want := func(what string, status int, body []byte, err error, code int, text string) {
		if err != nil || status != code || text != "" && !strings.Contains(string(body), text) {
			errs = append(errs, fmt.Errorf("%s: %d %q %v", what, status, clip(string(body)), err))
		}
	}
	status, body, err := a.raw("GET", listPath+"?serviceName=first&serviceName=second&serviceName[]=third&serviceName[0]=fourth&SERVICENAME=fifth", nil, nil)
	want("several names", status, body, err, 200, "first")
	status, body, err = a.raw("GET", listPath+"?serviceName[]=x", nil, nil)
	want("an array", status, body, err, 400, "serviceName")
	form := map[string]string{"Content-Type": "application/x-www-form-urlencoded"}
	status, body, err = a.raw("POST", "/nacos/v1/ns/instance?serviceName=query&ip=10.0.0.1&port=80", form, []byte("serviceName=form&ip=10.0.0.2&port=81"))
	want("in query and form", status, body, err, 200, "ok")
	status, body, err = a.raw("GET", listPath+"?serviceName=query", nil, nil)
	want("the query wins", status, body, err, 200, "10.0.0.1")
	status, body, err = a.raw("DELETE", "/nacos/v1/ns/instance?serviceName=query&ip=10.0.0.1&port=80", form, []byte("serviceName=form"))
	want("removed", status, body, err, 200, "ok")
	var many strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&many, "&p%d=%d", i, i)
	}
	status, body, err = a.raw("POST", "/nacos/v1/ns/instance", form, []byte("serviceName=x"+many.String()))
	want("5,000 parameters", status, body, err, 400, "")
	status, body, err = a.raw("POST", "/nacos/v1/ns/instance", form, []byte(strings.Repeat("&", 1<<20-1)))
	want("a million empty ones", status, body, err, 400, "")
	status, body, err = a.raw("POST", "/nacos/v1/ns/instance", form, []byte(strings.Repeat("a=b&", 1<<18-1)))
	want("the same 262,000 times", status, body, err, 400, "")
	status, body, err = a.raw("POST", "/nacos/v1/ns/instance", map[string]string{"Content-Type": "multipart/form-data; boundary=x"}, []byte("--x\r\nContent-Disposition: form-data; name=\"serviceName\"\r\n\r\nx\r\n--x--\r\n"))
	want("multipart", status, body, err, 400, "serviceName")
	return fmt.Sprintf("%d cases", 10-len(errs)), errors.Join(errs...)
}

func paths(a *arena) (string, error) {
	var errs []error
	seen := map[int]int{}
	for _, p := range []string{"/../etc/passwd", "/nacos/../metrics", "/nacos/./v1/ns/instance/list", "//nacos/v1/ns/instance/list", "/nacos//v1/ns/instance/list", "/nacos/v1/ns/instance/list/", "/nacos/v1/ns/instance/list/../list", "/nacos/v1/ns/instance/%2e%2e/instance",
		"/nacos/v1/ns/instance%2flist", "/nacos/v1/ns/instance/list%00", "/nacos/v1/ns/instance/list;jsessionid=1", "/nacos/v1/ns/instance/list#x", "/NACOS/v1/ns/instance/list", "/nacos/v1/ns/instance/list\\", "/%", "/%zz", "/\x00", "/\xff", "*", "", "nacos", "?", "//evil.example/", "///", "/metrics/", "/metrics/x", "/livez/..%2fmetrics", "/debug/pprof", "/debug/pprof/../../metrics",
		"/debug/pprof/../cmdline", "/debug/vars", "/debug/pprof/nonsense", "/actuator/env", "/nacos/", "/nacos", "/nacos/v1/ns", "/nacos/v1/ns/", "/nacos/v1/ns/raft/state", "/nacos/v1/auth/users?pageNo=1&pageSize=9", "http://127.0.0.1:1/metrics", "http://evil.example/nacos/v1/ns/instance/list?serviceName=x", "/.git/config", "/nacos/v1/console/../ns/instance/list"} {
		for _, method := range []string{"GET", "POST", "OPTIONS"} {
			status, body, err := a.raw(method, p, nil, nil)
			seen[status]++
			if err != nil || status >= 300 && status < 400 || status >= 500 && status != 501 || bytes.Contains(body, []byte("root:")) {
				errs = append(errs, fmt.Errorf("%s %q: %d %s %v", method, p, status, clip(string(body)), err))
			}
		}
	}
	// Profiles are not for others than the machine itself.
	for _, head := range []string{"X-Forwarded-For", "Forwarded", "X-Real-Ip"} {
		if status, _, err := a.raw("GET", "/debug/pprof/heap", map[string]string{head: "10.0.0.1"}, nil); err != nil || status != 404 {
			errs = append(errs, fmt.Errorf("profile through a proxy (%s): %d %v", head, status, err))
		}
	}
	return fmt.Sprintf("statuses %v", seen), errors.Join(errs...)
}

func methods(a *arena) (string, error) {
	var errs []error
	seen := map[int]int{}
	for _, path := range []string{"/nacos/v1/ns/instance", "/nacos/v1/ns/instance/list", "/nacos/v1/ns/instance/beat", "/nacos/v1/ns/operator/metrics", "/metrics", "/livez", "/readyz"} {
		for _, m := range []string{"TRACE", "CONNECT", "OPTIONS", "PROPFIND", "FOO", "get", "GET\t", "G\x00T", "", "PRI"} {
			status, body, err := a.raw(m, path, nil, nil)
			seen[status]++
			if err != nil || status == 200 || status >= 500 && status != 501 && status != 505 {
				errs = append(errs, fmt.Errorf("%q %s: %d %s %v", m, path, status, clip(string(body)), err))
			}
		}
	}
	return fmt.Sprintf("statuses %v", seen), errors.Join(errs...)
}

func framing(a *arena) (string, error) {
	var errs []error
	get := "GET " + listPath + "?serviceName=bystander HTTP/1.1\r\nHost: x\r\n\r\n"
	post := "POST /nacos/v1/ns/instance HTTP/1.1\r\nHost: x\r\n"
	// Requests that two servers in a row could read as different ones.
	for _, b := range []string{
		post + "Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd" + get,
		post + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + get,
		post + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
		post + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
		post + "Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
		post + "Content-Length: -1\r\n\r\n", post + "Content-Length: +1\r\n\r\na", post + "Content-Length: 99999999999999999999\r\n\r\n", post + "Content-Length: 1e3\r\n\r\n", post + "Content-Length: 0x1\r\n\r\na",
		"GET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", "GET / HTTP/9.9\r\nHost: x\r\n\r\n", "GET /\r\n\r\n", "GET / HTTP/1.1\nHost : x\n\n", "GET / HTTP/1.1\r\n Host: x\r\n\r\n", "\r\n\r\n\r\n\r\n", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", preface,
		"GET / HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\n\r\n", "GET / HTTP/1.1\r\nHost: x y\r\n\r\n", post + "Expect: 200-maybe\r\nContent-Length: 1\r\n\r\na",
	} {
		// The server closes, or answers with a refusal; it does not answer to
		// what is hidden in a body.
		c, err := net.DialTimeout("tcp", a.srv.http(), callTimeout)
		if err != nil {
			return "", err
		}
		_ = c.SetDeadline(time.Now().Add(callTimeout))
		_, _ = io.WriteString(c, b)
		_ = c.(*net.TCPConn).CloseWrite()
		answer, err := io.ReadAll(c)
		c.Close()
		if isTimeout(err) || bytes.Contains(answer, []byte("10.255.0.1")) && !strings.Contains(b, "Transfer-Encoding: chunked") || bytes.Contains(answer, []byte("HTTP/1.1 500")) {
			errs = append(errs, fmt.Errorf("%q: %q %v", clip(b), clip(string(answer)), err))
		}
	}
	// Less body than promised, and then the end.
	if status, _, err := a.wire([]byte(post + "Content-Type: application/x-www-form-urlencoded\r\nConnection: close\r\nContent-Length: 5\r\n\r\nserviceName=x")); err != nil || status != 400 {
		errs = append(errs, fmt.Errorf("body longer than its length: %d %v", status, err))
	}
	c, err := net.DialTimeout("tcp", a.srv.http(), callTimeout)
	if err != nil {
		return "", err
	}
	_, _ = io.WriteString(c, post+"Content-Length: 500\r\n\r\nserviceName=short&ip=10.0.0.1&port=80")
	_ = c.(*net.TCPConn).CloseWrite()
	_ = c.SetDeadline(time.Now().Add(callTimeout))
	if answer, err := io.ReadAll(c); isTimeout(err) || bytes.Contains(answer, []byte(" 200 ")) {
		errs = append(errs, fmt.Errorf("body shorter than its length: %q %v", answer, err))
	}
	c.Close()
	// A thousand requests at once: as many answers.
	if c, err = net.DialTimeout("tcp", a.srv.http(), callTimeout); err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(callTimeout))
	const n = 1000
	go io.WriteString(c, strings.Repeat(get, n))
	r := bufio.NewReader(c)
	for i := range n {
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			errs = append(errs, fmt.Errorf("pipelined request %d: %v", i, err))
			break
		}
		body, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != 200 || !bytes.Contains(body, []byte("10.255.0.1")) {
			errs = append(errs, fmt.Errorf("pipelined request %d: %s %s %v", i, res.Status, clip(string(body)), err))
			break
		}
	}
	return fmt.Sprintf("%d pipelined", n), errors.Join(errs...)
}

// slowHTTP drips: heads, bodies, and nothing at all. The server's times for
// that are fixed.
func slowHTTP(a *arena) (string, error) {
	const conns = 100
	open := func(first string) (net.Conn, error) {
		c, err := net.DialTimeout("tcp", a.srv.http(), callTimeout)
		if err == nil {
			_, err = io.WriteString(c, first)
		}
		return c, err
	}
	// closed drips into connections until the server has closed them all.
	closed := func(first, drop string, limit time.Duration) (time.Duration, error) {
		start := time.Now()
		var all []net.Conn
		defer func() {
			for _, c := range all {
				c.Close()
			}
		}()
		for range conns {
			c, err := open(first)
			if err != nil {
				return 0, err
			}
			all = append(all, c)
			go io.Copy(io.Discard, c)
		}
		for left := all; len(left) > 0; {
			if time.Since(start) > limit {
				return 0, fmt.Errorf("%q…: %d of %d are open after %v", first, len(left), conns, limit)
			}
			time.Sleep(250 * time.Millisecond)
			var still []net.Conn
			for _, c := range left {
				if _, err := io.WriteString(c, drop); err == nil {
					still = append(still, c)
				}
			}
			left = still
		}
		return time.Since(start), nil
	}
	var head, body, silent, unread time.Duration
	err := parallel(4, func(i int) (err error) {
		switch i {
		case 0:
			head, err = closed("GET "+listPath+"?serviceName=", "a", 13*time.Second)
		case 1:
			body, err = closed("POST /nacos/v1/ns/instance HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n", "a", 35*time.Second)
		case 2: // says nothing
			c, e := open("")
			if e != nil {
				return e
			}
			defer c.Close()
			start := time.Now()
			_ = c.SetReadDeadline(start.Add(13 * time.Second))
			_, e = c.Read(make([]byte, 1))
			silent = time.Since(start)
			if isTimeout(e) {
				return errors.New("a silent connection is open after 13 s")
			}
		case 3: // asks and asks, and reads nothing; that may take a minute
			if !a.long {
				return nil
			}
			c, e := open("")
			if e != nil {
				return e
			}
			defer c.Close()
			start := time.Now()
			_ = c.SetDeadline(start.Add(75 * time.Second))
			for e == nil {
				_, e = io.WriteString(c, strings.Repeat("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 100))
			}
			unread = time.Since(start)
			if isTimeout(e) {
				return errors.New("a connection whose answers are not read is open after 75 s")
			}
		}
		return err
	})
	return fmt.Sprintf("%d of each: heads closed after %.0f s, bodies %.0f s, silent %.0f s, unread %.0f s", conns, head.Seconds(), body.Seconds(), silent.Seconds(), unread.Seconds()), err
}
