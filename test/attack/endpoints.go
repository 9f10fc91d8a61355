package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/starling-registry/starling/pkg/httpapi"
)

// secret is in what some know and nobody is told. No value that is sent
// contains it.
const secret = "Xq7-never-to-be-told-Zw9"

// nativePath is what the paths of the native API begin with.
const nativePath = "/starling/v1"

// answerLimit is how long any answer may take.
const answerLimit = 2 * time.Second

// parameterNames are those of all endpoints; each is sent to each.
var parameterNames = strings.Fields(`
	accessToken accurate address aggregation app applicationName beat blur checkNamespaceIdExist checkPort checkPort clientBeatInterval clientId clientIP
	clientVersion cluster clusterName clusters configCount consistencyType count customNamespaceId debug detail dom doms dryRun ephemeral enable
	enabled enabledOnly entry env expr group groupName groupNameParam hasIpCount healthChecker healthy healthyOnly heartBeat ignoreEmptyService
	instance instanceId instances ip ipPort key keyword limit logLevel logName metadata name namespace namespaceDesc namespaceId
	namespaceName namespaceShowName newPassword node offset onlyStatus pageNo pageSize password persist port protectThreshold qps reset role
	search selector service serviceName serviceNameParam show site state sticky tenant tid type udpPort untilGone useInstancePort4Check username
	value weight withInstances`)

// oddValues stand where anything else was expected.
var oddValues = []string{
	"", " ", "0", "1", "-1", "-0", "+1", "1.5", "1e3", "1e400", "-1e400", "NaN", "Infinity", "-inf", "0x10", "010", "1_000", "٣", "65535", "65536", "2147483648",
	"9223372036854775807", "9223372036854775808", "-9223372036854775809", strings.Repeat("9", 400), "true", "false", "TRUE", "yes", "off", "null", "None", "undefined",
	"a", "public", "PUBLIC", "DEFAULT", "DEFAULT_GROUP", "@@", "a@@", "@@a", "a@@b@@c", "DEFAULT_GROUP@@fuzz-1", "fuzz-group@@fuzz-2", "##", "fuzz##DEFAULT_GROUP@@fuzz-1", "a,b", ",", ",,", "a,,b", ":", "1.1.1.1:80", "::1", "[::1]:80", "10.9.0.1#80#DEFAULT#x",
	"\x00", "\x01\x1f\x7f", "\n", "\r\nX-Injected: 1", "\t", "\u00a0", "\u2003", "\u2028", "\ufeff", "\ufffd", "服务", "🦆", "\U0010ffff", "\xff\xfe", "\xc0\xaf", "\xed\xa0\x80", "e\u0301",
	"%", "%2", "%zz", "%00", "%25", "%u0041", "+", "&", "=", ";", "?", "#", "/", "../../etc/passwd", "..", ".", "<script>alert(1)</script>", `"`, "'", `\`, "`", "${jndi:ldap://x}", "{{7*7}}", "' OR 1=1 --",
	"{}", "[]", `""`, "{", "[", `{"a":1}`, `{"a":{"b":[1,{}]}}`, `{"a":null}`, `[null]`, `[{}]`, `{"ip":null,"port":null}`, `{"ip":"10.9.0.1","port":80}`, `{"ip":"10.9.0.1","port":"80","weight":"NaN"}`, `[{"ip":"10.9.0.1","port":80}]`, `[{"ip":"10.9.0.1","port":80,"ephemeral":false,"clusterName":"DEFAULT"}]`,
	`{"type":"none"}`, `{"type":"label","expression":"CONSUMER.label.a = PROVIDER.label.a"}`, `{"type":"NONE"}`, `{"type":"TCP"}`, `{"type":"HTTP","path":"/","headers":"a:b|c"}`, `{"type":5}`, `{"a":"b","a":"c"}`, `{"preserved.heart.beat.timeout":"9223372036854775808"}`, `{"preserved.heart.beat.interval":"-1"}`,
	"a=b", "a=b,c=d", "a=b=c", "=", "k=" + strings.Repeat("v", 2000), strings.Repeat("x", 5000), strings.Repeat("[", 2000), strings.Repeat(`{"a":`, 1000), "*", "**", ".*", "(a+)+$", "INFO", "debug", "naming-main", "ephemeral", "persistent",
}

// likely has values of parameters with which handlers go on. What they name is
// the fuzzer's own.
var likely = map[string][]string{
	"serviceName": {"fuzz-1", "fuzz-2", "DEFAULT_GROUP@@fuzz-1", "fuzz-secret"}, "service": {"fuzz-1", "fuzz-2", "fuzz-secret"}, "dom": {"fuzz-1"}, "groupName": {"DEFAULT_GROUP", "fuzz-group"}, "group": {"DEFAULT_GROUP", "fuzz-group"},
	"namespaceId": {"public", "", "fuzz"}, "namespace": {"public", "fuzz"}, "customNamespaceId": {"fuzz"}, "namespaceName": {"fuzz"}, "name": {"fuzz"}, "id": {"fuzz"},
	"ip": {"10.9.0.1", "10.9.0.2"}, "port": {"80", "8080"}, "clusterName": {"DEFAULT", "c"}, "cluster": {"DEFAULT", "c"}, "clusters": {"", "DEFAULT", "a,b"}, "weight": {"1", "0.5"}, "ephemeral": {"true", "true", "false"},
	"enabled": {"true", "false"}, "healthy": {"true", "false"}, "healthyOnly": {"true", "false"}, "metadata": {`{"a":"b"}`, "a=b"}, "pageNo": {"1", "2"}, "pageSize": {"10", "1"}, "heartBeat": {"true", "false"},
	"key": {"DEFAULT_GROUP@@fuzz-1", "10.9.0.1:80"}, "clientId": {"10.9.0.1:80#true"}, "protectThreshold": {"0", "0.8"}, "selector": {`{"type":"none"}`}, "healthChecker": {`{"type":"NONE"}`, `{"type":"TCP"}`}, "checkPort": {"80"}, "useInstancePort4Check": {"true"},
	"beat": {`{"ip":"10.9.0.1","port":80,"cluster":"DEFAULT","weight":1,"metadata":{}}`}, "instances": {`[{"ip":"10.9.0.1","port":80}]`}, "username": {"nacos", "fuzz"}, "password": {"nacos"}, "consistencyType": {"ephemeral", "persist"},
	"entry": {"defaultCacheMillis", "distroThreshold"}, "value": {"5000"}, "logName": {"naming-main"}, "logLevel": {"INFO"}, "search": {"accurate", "blur"}, "limit": {"10"}, "offset": {"0", "1"}, "untilGone": {"true"}, "sticky": {"true"},
}

// harmful are requests that may do what they are there for only to a server
// that nobody needs: they are sent with bodies that are refused.
var harmful = []string{"/drain", "/restore", "/self-preservation/end", "/members/remove"}

// A fuzzer sends requests to one server, each worker what its seed says.
type fuzzer struct {
	srv       *server
	endpoints []httpapi.Endpoint // paths whole

	mu       sync.Mutex
	statuses map[int]int
	sent     int
	slowest  time.Duration
	errs     []error
}

// everyEndpoint throws parameters at all endpoints of a server of its own, on
// which a bystander goes about its business.
func everyEndpoint(a *arena) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	srv, err := startServer(ctx, a.bin, settings...)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(srv.dir)
	f := &fuzzer{srv: srv, statuses: map[int]int{}}
	said, err := f.run(ctx, a)
	if err == nil && len(srv.bugs()) > 0 {
		err = errors.New(strings.Join(srv.bugs(), "\n"))
	}
	return said, errors.Join(err, srv.stop())
}

func (f *fuzzer) run(ctx context.Context, a *arena) (string, error) {
	for _, e := range httpapi.Endpoints() {
		f.endpoints = append(f.endpoints, httpapi.Endpoint{Method: e.Method, Path: "/nacos" + e.Path})
	}
	own, err := f.nativeEndpoints(ctx)
	if err != nil {
		return "", err
	}
	f.endpoints = append(f.endpoints, own...)
	b, err := startBystander(f.srv)
	if err != nil {
		return "", err
	}
	if err := f.plant(); err != nil {
		return "", err
	}
	time.Sleep(1500 * time.Millisecond) // the bystander's first round
	b.report()
	base, err := f.srv.vitals(true)
	if err != nil {
		return "", err
	}

	duration := a.fuzz
	if a.long {
		duration *= 10
	}
	began := time.Now()
	// The machine is the bystanders' too.
	const workers, perSecond = 4, 3000
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			g := &shooter{fuzzer: f, Rand: rand.New(rand.NewPCG(a.seed, uint64(w)))}
			defer g.hangUp()
			for n := 0; time.Since(began) < duration && f.srv.alive() && f.faults() < 20; n++ {
				time.Sleep(time.Until(began.Add(time.Duration(n) * workers * time.Second / perSecond)))
				g.fire()
			}
		})
	}
	wg.Wait()
	said := fmt.Sprintf("seed %d: %d requests to %d endpoints, slowest %d ms, statuses %v", a.seed, f.sent, len(f.endpoints), f.slowest.Milliseconds(), f.statuses)

	errs := f.errs
	witnessed, query, push, list := b.report()
	for _, e := range witnessed {
		errs = append(errs, errors.New("bystander: "+e))
	}
	said += fmt.Sprintf("; bystander %d/%d/%d ms", query.Milliseconds(), push.Milliseconds(), list.Milliseconds())
	// Persistent instances stay and are looked at, each by a connection now and
	// then; all else goes.
	late := time.Now().Add(settleTime)
	for {
		now, err := f.srv.vitals(true)
		if err != nil {
			return said, errors.Join(append(errs, err)...)
		}
		const slack = 40
		if now.goroutines <= base.goroutines+slack && now.fds <= base.fds+slack && now.heap <= base.heap+32<<20 && now.transports <= base.transports {
			break
		}
		if time.Now().After(late) {
			errs = append(errs, fmt.Errorf("afterwards: goroutines %d→%d, files %d→%d, heap %d→%d MiB, transports %d→%d", base.goroutines, now.goroutines,
				base.fds, now.fds, base.heap>>20, now.heap>>20, base.transports, now.transports))
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	time.Sleep(1500 * time.Millisecond) // another round of the bystander's
	witnessed, _, _, _ = b.report()
	for _, e := range witnessed {
		errs = append(errs, errors.New("bystander, afterwards: "+e))
	}
	b.close()
	return said, errors.Join(errs...)
}

// nativeEndpoints are those of the server's OpenAPI document.
func (f *fuzzer) nativeEndpoints(ctx context.Context) ([]httpapi.Endpoint, error) {
	status, body, err := get(ctx, "http://"+f.srv.http()+nativePath+"/openapi.json")
	if err != nil {
		return nil, err
	}
	var doc struct {
		Servers []struct{ URL string }
		Paths   map[string]map[string]json.RawMessage
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("openapi.json: status %d", status)
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return nil, fmt.Errorf("openapi.json: %w", err)
	}
	var all []httpapi.Endpoint
	for _, path := range slices.Sorted(maps.Keys(doc.Paths)) {
		full := path
		if !strings.HasPrefix(path, nativePath) {
			full = nativePath + path
		}
		for _, method := range slices.Sorted(maps.Keys(doc.Paths[path])) {
			if m := strings.ToUpper(method); slices.Contains([]string{"GET", "POST", "PUT", "DELETE", "PATCH"}, m) {
				all = append(all, httpapi.Endpoint{Method: m, Path: full})
			}
		}
	}
	if len(all) < 10 {
		return nil, fmt.Errorf("openapi.json has %d operations", len(all))
	}
	return all, nil
}

// plant gives the server what it must not tell: a password of a database that
// is checked, and of a user.
func (f *fuzzer) plant() error {
	for _, p := range []struct {
		method, path string
		form         url.Values
		optional     bool
	}{
		{"POST", "/nacos/v1/ns/service", url.Values{"serviceName": {"fuzz-secret"}}, false},
		{"PUT", "/nacos/v1/ns/cluster", url.Values{"serviceName": {"fuzz-secret"}, "clusterName": {"DEFAULT"}, "checkPort": {"3306"}, "useInstancePort4Check": {"true"},
			"healthChecker": {`{"type":"MYSQL","user":"root","pwd":"` + secret + `","cmd":"select 1"}`}}, false},
		{"POST", "/nacos/v1/auth/users", url.Values{"username": {"keeper"}, "password": {secret}}, true},
	} {
		req, err := http.NewRequest(p.method, "http://"+f.srv.http()+p.path, strings.NewReader(p.form.Encode()))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		res, err := watcher.Do(req)
		if err != nil {
			return err
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != http.StatusOK && !p.optional {
			return fmt.Errorf("%s %s: %d %s", p.method, p.path, res.StatusCode, clip(string(body)))
		}
	}
	return nil
}

func (f *fuzzer) faults() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.errs)
}

// A shooter is one worker with one connection.
type shooter struct {
	*fuzzer
	*rand.Rand
	conn net.Conn
	in   *bufio.Reader
}

func (g *shooter) hangUp() {
	if g.conn != nil {
		g.conn.Close()
		g.conn = nil
	}
}

func (g *shooter) chance(percent int) bool { return g.IntN(100) < percent }

func pickOne[T any](g *shooter, of []T) T { return of[g.IntN(len(of))] }

// fire sends one request and looks at the answer.
func (g *shooter) fire() {
	e := pickOne(g, g.endpoints)
	method := e.Method
	if method == "" || g.chance(12) {
		method = pickOne(g, []string{"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "FOO", "get"})
	}
	path := g.path(e.Path)
	params := g.params(e, method)
	danger := slices.ContainsFunc(harmful, func(p string) bool { return strings.HasPrefix(e.Path, nativePath+p) })
	query, head, body := g.dress(e, method, params, danger)

	target := path
	if query != "" {
		target += "?" + query
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: x\r\n", method, target)
	last := false // nothing can follow on this connection
	switch {
	case body == nil:
	case g.chance(4): // the length is wrong
		last = true
		n := len(body) + pickOne(g, []int{-1, 1, 1000, 1 << 30})
		fmt.Fprintf(&b, "%sContent-Length: %d\r\nConnection: close\r\n", head, n)
	case g.chance(10):
		head += "Transfer-Encoding: chunked\r\n"
		var chunks bytes.Buffer
		for rest := body; len(rest) > 0; {
			n := min(len(rest), 1+g.IntN(200))
			fmt.Fprintf(&chunks, "%x\r\n%s\r\n", n, rest[:n])
			rest = rest[n:]
		}
		chunks.WriteString("0\r\n\r\n")
		body = chunks.Bytes()
		b.WriteString(head)
	default:
		fmt.Fprintf(&b, "%sContent-Length: %d\r\n", head, len(body))
	}
	b.WriteString("\r\n")
	b.Write(body)

	start := time.Now()
	res, answer, err := g.exchange(b.Bytes(), method, last)
	took := time.Since(start)
	g.judge(e, method, b.Bytes(), res, answer, err, took, last)
}

// exchange sends a request over the connection that there is, or a new one.
func (g *shooter) exchange(request []byte, method string, last bool) (*http.Response, []byte, error) {
	if last {
		g.hangUp()
	}
	for try := 0; ; try++ {
		fresh := g.conn == nil
		if fresh {
			c, err := net.DialTimeout("tcp", g.srv.http(), callTimeout)
			if err != nil {
				return nil, nil, err
			}
			g.conn, g.in = c, bufio.NewReader(c)
		}
		_ = g.conn.SetDeadline(time.Now().Add(callTimeout))
		_, _ = g.conn.Write(request) // an answer may come all the same
		if last {
			_ = g.conn.(*net.TCPConn).CloseWrite()
		}
		res, err := http.ReadResponse(g.in, &http.Request{Method: method})
		if err == nil {
			answer, err := io.ReadAll(res.Body)
			if res.Close || last || err != nil {
				g.hangUp()
			}
			return res, answer, err
		}
		g.hangUp()
		if fresh || isTimeout(err) || try > 0 {
			return nil, nil, err
		}
	}
}

func (g *shooter) path(p string) string {
	for strings.Contains(p, "{") {
		before, rest, _ := strings.Cut(p, "{")
		_, after, _ := strings.Cut(rest, "}")
		value := "DEFAULT_GROUP@@fuzz-1"
		if g.chance(50) {
			value = pickOne(g, oddValues)
		}
		p = before + strings.ReplaceAll(url.PathEscape(value), "%2F", "_") + after
	}
	if !g.chance(6) {
		return p
	}
	return pickOne(g, []func() string{
		func() string { return p + "/" },
		func() string { return p + "//" },
		func() string { return "/" + p },
		func() string { return p + "/.." },
		func() string { return p + "/%2e%2e" },
		func() string { return p + ";jsessionid=1" },
		func() string { return p + "%00" },
		func() string { return p + "%zz" },
		func() string { return p + ".json" },
		func() string { return p + "%20" },
		func() string { return p + "/" + strings.Repeat("a", 3000) },
		func() string { return strings.ToUpper(p) },
		func() string { return strings.Replace(p, "/v", "/./v", 1) },
		func() string { return strings.Replace(p, "/ns/", "%2fns%2f", 1) },
		func() string { return p[:1+g.IntN(len(p)-1)] },
	})()
}

type param struct{ key, value string }

// params are mostly right, so that handlers get far, with some that are not.
func (g *shooter) params(e httpapi.Endpoint, method string) []param {
	var all []param
	add := func(key, value string) { all = append(all, param{key, value}) }
	right := g.chance(80)
	for _, key := range slices.Sorted(maps.Keys(likely)) {
		if right && g.chance(60) {
			add(key, pickOne(g, likely[key]))
		}
	}
	for range pickOne(g, []int{0, 1, 1, 1, 2, 2, 3, 6}) {
		key, value := pickOne(g, parameterNames), pickOne(g, oddValues)
		switch g.IntN(12) {
		case 0:
			key += "[]"
		case 1:
			key = strings.ToUpper(key)
		case 2:
			key = pickOne(g, oddValues)
		}
		i := slices.IndexFunc(all, func(p param) bool { return p.key == key })
		switch {
		case i >= 0 && g.chance(20):
			all = slices.Delete(all, i, i+1)
		case i >= 0 && g.chance(70):
			all[i].value = value
		default:
			add(key, value)
		}
	}
	if g.chance(5) {
		for range 1200 {
			add(strconv.Itoa(g.IntN(100_000)), "")
		}
	}
	g.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// dress writes parameters in one of the ways to send them.
func (g *shooter) dress(e httpapi.Endpoint, method string, params []param, danger bool) (query, head string, body []byte) {
	escape := url.QueryEscape
	if g.chance(10) { // as they are, but for what would end the line
		escape = strings.NewReplacer("\r", "%0D", "\n", "%0A", " ", "%20", "\x00", "%00", "\t", "%09", "#", "%23", "\x01", "", "\x1f", "", "\x7f", "").Replace
	}
	join := func(of []param) string {
		var parts []string
		for _, p := range of {
			parts = append(parts, escape(p.key)+"="+escape(p.value))
		}
		return strings.Join(parts, pickOne(g, []string{"&", "&", "&", "&", "&", "&&", ";"}))
	}
	object := func() []byte {
		m := map[string]any{}
		for _, p := range params {
			var v any = p.value
			switch {
			case p.value == "true", p.value == "false":
				v = p.value == "true"
			case g.chance(30) && json.Valid([]byte(p.value)):
				v = json.RawMessage(p.value)
			}
			m[p.key] = v
		}
		if strings.HasPrefix(e.Path, nativePath) && g.chance(80) { // strict about what it knows
			for key := range m {
				if !slices.Contains([]string{"namespace", "group", "service", "ip", "port", "cluster", "metadata", "sticky", "untilGone", "enabled", "weight", "id", "name"}, key) || g.chance(10) {
					delete(m, key)
				}
			}
			if g.chance(80) {
				m["port"] = 80
			}
		}
		b, _ := json.Marshal(m)
		return b
	}
	if len(params) > 0 && strings.HasPrefix(e.Path, nativePath) && method == "GET" && g.chance(80) {
		// A parameter that is not known is refused before anything else.
		params = slices.DeleteFunc(slices.Clone(params), func(p param) bool {
			return !slices.Contains([]string{"namespace", "group", "service", "cluster", "name", "limit", "offset", "instance", "node"}, p.key)
		})
		if g.chance(50) {
			return join(params[:min(len(params), g.IntN(6))]), "", nil
		}
	}
	switch way := g.IntN(10); {
	case danger && method != "GET" && method != "HEAD":
		// Never what it takes: the body is no JSON object of it, or its type is
		// one that is refused.
		return "", "Content-Type: " + pickOne(g, []string{"application/json", "application/octet-stream", "text/plain", "application/x-www-form-urlencoded", "", "\x01"}) + "\r\n",
			[]byte(pickOne(g, []string{"", "[]", "null0", "x", `{"dryRun":"no"}`, `{"dryRun":true}`, `{"dryrun":null}`, `{"id":"nobody"}`, `{"a":1}`, strings.Repeat("{", 1000)}))
	case strings.HasPrefix(e.Path, nativePath) && method != "GET" && way < 8:
		return "", "Content-Type: application/json\r\n", object()
	case way < 5 || method == "GET" && way < 9:
		return join(params), "", nil
	case way < 8:
		at := g.IntN(len(params) + 1)
		return join(params[:at]), "Content-Type: application/x-www-form-urlencoded" + pickOne(g, []string{"", ";charset=UTF-8", "; charset=x"}) + "\r\n", []byte(join(params[at:]))
	case way == 8:
		return join(params), "Content-Type: " + pickOne(g, []string{"application/json", "text/plain", "application/xml", "/", "multipart/form-data; boundary=x", "application/octet-stream"}) + "\r\n", object()
	}
	return join(params), "Content-Type: multipart/form-data; boundary=x\r\n", []byte("--x\r\nContent-Disposition: form-data; name=\"serviceName\"\r\n\r\nfuzz-1\r\n--x--\r\n")
}

// leaks are parts of texts that are for nobody outside.
var leaks = []string{secret, "goroutine ", "runtime error", "nil pointer", "strconv.", "interface conversion", "json: cannot", "invalid character", "starling-registry/", ".go:", "root:x:"}

// judge looks at an answer. None at all is right where the request was no HTTP.
func (g *shooter) judge(e httpapi.Endpoint, method string, request []byte, res *http.Response, answer []byte, err error, took time.Duration, last bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	status := 0
	if res != nil {
		status = res.StatusCode
	}
	g.sent++
	g.statuses[status]++
	g.slowest = max(g.slowest, took)
	wrong := func(format string, args ...any) {
		g.errs = append(g.errs, fmt.Errorf("%s %s: %s\n  request %q\n  answer %d %q", method, e.Path, fmt.Sprintf(format, args...), clip(string(request)), status, clip(string(answer))))
	}
	if took > answerLimit {
		wrong("took %v", took)
	}
	if res == nil {
		if !last || isTimeout(err) {
			wrong("no answer: %v", err)
		}
		return
	}
	switch {
	case err != nil && !last && !(res.Close && status == http.StatusBadRequest): // net/http does not read on where that is no HTTP
		wrong("the answer ends too soon: %v", err)
	case status == http.StatusServiceUnavailable && bytes.Contains(answer, []byte("too many passwords")): // checking one is slow on purpose
	case status >= 500 && status != http.StatusNotImplemented, status >= 300 && status < 400, status < 200:
		wrong("status")
	}
	if method == http.MethodHead {
		return
	}
	if e.Path == nativePath+"/backup" && status == http.StatusOK {
		return // has all there is, in bytes
	}
	for _, leak := range leaks {
		if bytes.Contains(answer, []byte(leak)) && !bytes.Contains(request, []byte(leak)) {
			wrong("tells %q", leak)
		}
	}
	if res.Header.Get("X-Injected") != "" {
		wrong("a value became a header")
	}
	contentType, _, _ := strings.Cut(res.Header.Get("Content-Type"), ";")
	switch {
	case !utf8.Valid(answer):
		wrong("no UTF-8")
	case contentType == "application/json" && !json.Valid(answer):
		wrong("no JSON")
	}
}
