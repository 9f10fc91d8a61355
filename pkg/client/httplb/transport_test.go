package httplb

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/starling-registry/starling/pkg/client"
)

// A list stands for a client that knows some services.
type list struct {
	mu       sync.Mutex
	services map[client.ServiceID][]client.Instance
}

func (l *list) set(group, name string, instances ...client.Instance) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.services == nil {
		l.services = make(map[client.ServiceID][]client.Instance)
	}
	l.services[client.ServiceID{Group: group, Name: name}] = instances
}

func (l *list) Select(ctx context.Context, service string, opts ...client.QueryOption) ([]client.Instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	group := ""
	for _, o := range opts {
		if g, ok := o.(client.GroupOption); ok {
			group = string(g)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.services[client.ServiceID{Group: group, Name: service}]), nil
}

func (l *list) Pick(ctx context.Context, service string, opts ...client.QueryOption) (client.Instance, error) {
	all, err := l.Select(ctx, service, opts...)
	if err != nil {
		return client.Instance{}, err
	}
	return byWeight(all)
}

func instance(addr string) client.Instance {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		panic(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		panic(err)
	}
	return client.Instance{IP: host, Port: n, Weight: 1, Healthy: true, Enabled: true, Metadata: map[string]string{}}
}

// A backend is a real server that counts.
type backend struct {
	*httptest.Server
	client.Instance
	requests, conns atomic.Int32
}

func serve(t *testing.T, secure bool, handler http.HandlerFunc) *backend {
	b := new(backend)
	b.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.requests.Add(1)
		handler(w, r)
	}))
	b.Config.ErrorLog = log.New(io.Discard, "", 0)
	b.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			b.conns.Add(1)
		}
	}
	if secure {
		b.EnableHTTP2 = true
		b.StartTLS()
	} else {
		b.Start()
	}
	t.Cleanup(b.Close)
	b.Instance = instance(b.Listener.Addr().String())
	return b
}

// echo says what has come.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s %s %s", r.Method, r.URL, body)
}

// dead is the address of a server that has just gone.
func dead(t *testing.T) client.Instance {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return instance(l.Addr().String())
}

// balance makes a transport that leaves nothing behind.
func balance(t *testing.T, l *list, opts Options) (*Transport, *http.Client) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	lb, err := New(l, opts)
	if err != nil {
		t.Fatal(err)
	}
	web := &http.Client{Transport: lb, Timeout: 20 * time.Second}
	t.Cleanup(func() {
		web.CloseIdleConnections()
		goleak.VerifyNone(t, before, goleak.IgnoreAnyFunction("net/http/httptest.(*Server).goServe.func1"),
			goleak.IgnoreAnyFunction("net/http.(*conn).serve"), goleak.IgnoreAnyFunction("net/http.(*http2Server).ServeConn"))
	})
	return lb, web
}

func get(t *testing.T, web *http.Client, where string) string {
	t.Helper()
	resp, err := web.Get(where)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestServiceOfURL(t *testing.T) {
	lb, err := New(new(list), Options{Group: "own"})
	if err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{
		"http://order.starling/x":                 "own@@order",
		"https://order.starling":                  "own@@order",
		"http://Order.STARLING/":                  "own@@Order",
		"http://com.acme.order.G.starling/":       "G@@com.acme.order",
		"http://my_order.DEFAULT_GROUP.starling/": "DEFAULT_GROUP@@my_order",
		"lb://order/x":                            "own@@order",
		"lb://com.acme.order/x":                   "own@@com.acme.order",
		"lb://order.g.starling/x":                 "g@@order",
		"http://订单.starling/":                     "own@@订单",
		"http://starling/":                        "",
		"http://order.starling.example/":          "",
		"http://127.0.0.1:80/":                    "",
		"http://[fd00::1]:80/":                    "",
		"http://orderstarling/":                   "",
		"ftp://order.starling/":                   "",
		"http://.starling/":                       "invalid",
		"http://.g.starling/":                     "invalid",
		"http://order..starling/":                 "invalid",
		"http://order.starling:8080/":             "invalid",
		"lb://order:80/":                          "invalid",
		"lb:///x":                                 "invalid",
		"lb:order":                                "invalid",
	} {
		u, err := url.Parse(in)
		if err != nil {
			t.Fatal(err)
		}
		id, ours, err := lb.service(u)
		got := ""
		switch {
		case errors.Is(err, client.ErrInvalid):
			got = "invalid"
		case err != nil:
			t.Error(err)
		case ours:
			got = id.String()
		}
		if got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

func TestRequestsReachInstances(t *testing.T) {
	l := new(list)
	a, b := serve(t, false, echo), serve(t, false, echo)
	_, web := balance(t, l, Options{})
	l.set("DEFAULT_GROUP", "order", a.Instance, b.Instance)
	l.set("g", "com.acme.pay", b.Instance)

	if got := get(t, web, "http://com.acme.pay.g.starling/a%2Fb?x=1&y"); got != "GET /a%2Fb?x=1&y " {
		t.Error(got)
	}
	resp, err := web.Post("lb://order/new", "text/plain", strings.NewReader("one beer"))
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if string(body) != "POST /new one beer" {
		t.Errorf("%s", body)
	}
	if h := resp.Request.URL.Host; h != a.Listener.Addr().String() && h != b.Listener.Addr().String() {
		t.Errorf("the response does not tell its instance: %s", h)
	}
	// What is no service is left alone.
	if got := get(t, web, a.URL+"/direct"); got != "GET /direct " {
		t.Error(got)
	}
}

// One connection for each instance is used again and again.
func TestConnectionsAreReused(t *testing.T) {
	l := new(list)
	backends := []*backend{serve(t, false, echo), serve(t, false, echo), serve(t, false, echo)}
	_, web := balance(t, l, Options{})
	l.set("DEFAULT_GROUP", "order", backends[0].Instance, backends[1].Instance, backends[2].Instance)
	for range 300 {
		get(t, web, "http://order.starling/")
	}
	for i, b := range backends {
		// 100 are expected, of a binomial distribution: eight deviations are 65.
		if n := b.requests.Load(); n < 35 || n > 165 {
			t.Errorf("%d: %d requests of 300", i, n)
		}
		if n := b.conns.Load(); n != 1 {
			t.Errorf("%d: %d connections", i, n)
		}
	}
}

func TestHostHeader(t *testing.T) {
	host := func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Host) }
	l := new(list)
	a := serve(t, false, host)
	l.set("DEFAULT_GROUP", "order", a.Instance)
	for keep, want := range map[bool]string{false: a.Listener.Addr().String(), true: "order.starling"} {
		_, web := balance(t, l, Options{KeepHost: keep})
		if got := get(t, web, "http://order.starling/"); got != want {
			t.Errorf("keep %v: %s, want %s", keep, got, want)
		}
		req, _ := http.NewRequest(http.MethodGet, "http://order.starling/", nil)
		req.Host = "shop.example"
		resp, err := web.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(body) != "shop.example" {
			t.Errorf("keep %v: %s", keep, body)
		}
	}
}

// A RoundTripper must not change the request.
func TestRequestIsNotChanged(t *testing.T) {
	l := new(list)
	a := serve(t, false, echo)
	gone := dead(t)
	lb, _ := balance(t, l, Options{})
	l.set("DEFAULT_GROUP", "order", a.Instance, gone)
	for range 20 {
		req, _ := http.NewRequest(http.MethodPost, "http://order.starling/x", strings.NewReader("y"))
		req.Header.Set("A", "b")
		u, header, body := *req.URL, req.Header.Clone(), req.Body
		resp, err := lb.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if *req.URL != u || req.Host != "order.starling" || req.Body != body || !cmp.Equal(req.Header, header) {
			t.Errorf("%+v", req)
		}
	}
}

// A closing counts how often a body that can be read once is closed.
type closing struct {
	io.Reader
	closed atomic.Int32
}

func (c *closing) Close() error { c.closed.Add(1); return nil }

// Nothing was sent to an instance that cannot be reached, so that another one is
// asked; with a body only if there is another one of it.
func TestAnotherInstance(t *testing.T) {
	l := new(list)
	a := serve(t, false, echo)
	gone, lost := dead(t), dead(t)
	l.set("DEFAULT_GROUP", "order", a.Instance, gone, lost)
	for range 30 {
		_, web := balance(t, l, Options{}) // which has ejected nobody
		if got := get(t, web, "http://order.starling/x"); got != "GET /x " {
			t.Error(got)
		}
		web.Transport.(*Transport).ejected = map[string]time.Time{}
		resp, err := web.Post("http://order.starling/x", "text/plain", strings.NewReader("y"))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(body) != "POST /x y" {
			t.Errorf("%s", body)
		}
	}

	once := &closing{Reader: strings.NewReader("y")}
	l.set("DEFAULT_GROUP", "order", gone, lost)
	_, web := balance(t, l, Options{})
	req, _ := http.NewRequest(http.MethodPost, "http://order.starling/x", once)
	_, err := web.Do(req)
	if err == nil || !strings.Contains(err.Error(), "connection refused") || !strings.Contains(err.Error(), "GetBody") {
		t.Error(err)
	}
	if once.closed.Load() == 0 {
		t.Error("the body is not closed")
	}
}

// The body is closed in any case, as the contract of RoundTripper says.
func TestBodyIsClosed(t *testing.T) {
	lb, _ := balance(t, new(list), Options{})
	for where, want := range map[string]error{"http://order.starling/": client.ErrNoInstances, "lb://order:80/": client.ErrInvalid} {
		body := &closing{Reader: strings.NewReader("y")}
		req, _ := http.NewRequest(http.MethodPost, where, body)
		if _, err := lb.RoundTrip(req); !errors.Is(err, want) {
			t.Error(err)
		}
		if body.closed.Load() != 1 {
			t.Errorf("%s: closed %d times", where, body.closed.Load())
		}
	}
}

// A wire answers by address in virtual time; what it has no answer for cannot be
// dialled.
type wire struct {
	answers map[string]func(*http.Request) (*http.Response, error)
	asked   []string
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	w.asked = append(w.asked, r.URL.Host)
	closeBody(r)
	if f := w.answers[r.URL.Host]; f != nil {
		return f(r)
	}
	return nil, fmt.Errorf("wrapped: %w", &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")})
}

func ok(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
}

func do(lb *Transport) error {
	req, err := http.NewRequest(http.MethodGet, "http://order.starling/", nil)
	if err != nil {
		return err
	}
	_, err = lb.RoundTrip(req)
	return err
}

// An instance that could not be reached is left alone for a while, and no longer.
func TestEjection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := new(list)
		heavy := instance("10.0.0.2:80")
		heavy.Weight = 1e4 // picked nearly always
		l.set("DEFAULT_GROUP", "order", instance("10.0.0.1:80"), heavy)
		w := &wire{answers: map[string]func(*http.Request) (*http.Response, error){"10.0.0.1:80": ok}}
		lb, err := New(l, Options{Base: w})
		if err != nil {
			t.Fatal(err)
		}
		for range 100 * 60 { // a minute
			if err := do(lb); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		n := 0
		for _, a := range w.asked {
			if a == "10.0.0.2:80" {
				n++
			}
		}
		if n != 12 {
			t.Errorf("a dead instance was asked %d times in a minute, should be every 5 s", n)
		}

		// It is back: at once after its time.
		w.answers["10.0.0.2:80"] = ok
		time.Sleep(5 * time.Second)
		w.asked = nil
		for range 100 {
			_ = do(lb)
		}
		if !slices.Contains(w.asked, "10.0.0.2:80") {
			t.Error("an instance that came back has no requests")
		}
	})
}

// When all are ejected, all are used: it is a guess, not a verdict.
func TestNobodyIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := new(list)
		l.set("DEFAULT_GROUP", "order", instance("10.0.0.1:80"), instance("10.0.0.2:80"), instance("10.0.0.3:80"), instance("10.0.0.4:80"))
		w := &wire{}
		lb, _ := New(l, Options{Base: w})
		err := do(lb)
		if _, isDial := errors.AsType[*net.OpError](err); !isDial || len(w.asked) != 3 {
			t.Error(err, w.asked)
		}
		if a := slices.Clone(w.asked); len(slices.Compact(slices.Sorted(slices.Values(a)))) != 3 {
			t.Errorf("not three different ones: %v", w.asked)
		}
		_ = do(lb)
		w.answers = map[string]func(*http.Request) (*http.Response, error){}
		for _, a := range w.asked {
			w.answers[a] = ok
		}
		if err := do(lb); err != nil { // all four are ejected
			t.Error(err)
		}

		w.answers, w.asked = nil, nil
		lb, _ = New(l, Options{Base: w, Retries: -1, EjectFor: -1})
		if err := do(lb); err == nil || len(w.asked) != 1 || len(lb.ejected) != 0 {
			t.Error(err, w.asked, lb.ejected)
		}
		// No instance twice for one request, also without ejection.
		w.asked = nil
		lb, _ = New(l, Options{Base: w, Retries: 10, EjectFor: -1})
		if err := do(lb); err == nil || len(w.asked) != 4 || len(slices.Compact(slices.Sorted(slices.Values(w.asked)))) != 4 {
			t.Error(err, w.asked)
		}
		// One instance: its own error, not that there is no other.
		l.set("DEFAULT_GROUP", "order", instance("10.0.0.1:80"))
		lb, _ = New(l, Options{Base: w})
		if err := do(lb); err == nil || errors.Is(err, client.ErrNoInstances) {
			t.Error(err)
		}
	})
}

// Many addresses that come and go do not fill the memory.
func TestEjectionIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lb, _ := New(new(list), Options{})
		for i := range 3 * maxEjected {
			lb.eject(fmt.Sprintf("10.0.%d.%d:80", i/256, i%256))
		}
		if n := len(lb.ejected); n != maxEjected {
			t.Error(n)
		}
		time.Sleep(5 * time.Second)
		if n := lb.ejectedNow(); len(n) != 0 || len(lb.ejected) != 0 {
			t.Error(len(n), len(lb.ejected))
		}
	})
}

// What may have arrived is not sent twice, of no method; and an answer is one,
// whatever its status.
func TestNotSentTwice(t *testing.T) {
	l := new(list)
	cut := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			conn.Close()
		}
	})
	busy := serve(t, false, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(503) })
	lb, web := balance(t, l, Options{})
	l.set("DEFAULT_GROUP", "order", cut.Instance)
	if resp, err := web.Post("http://order.starling/", "text/plain", strings.NewReader("y")); err == nil {
		t.Error(resp)
	}
	if n := cut.requests.Load(); n != 1 {
		t.Errorf("sent %d times", n)
	}
	l.set("DEFAULT_GROUP", "order", busy.Instance)
	resp, err := web.Get("http://order.starling/")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 503 || busy.requests.Load() != 1 {
		t.Error(resp.Status, busy.requests.Load())
	}
	if len(lb.ejected) != 0 {
		t.Error("ejected for what is not an unreachable address")
	}
}

// The caller's time ends everything: a server that accepts and never answers, a
// dial that hangs, a pick that waits.
func TestContext(t *testing.T) {
	l := new(list)
	release := make(chan struct{})
	hung := serve(t, false, func(http.ResponseWriter, *http.Request) { <-release })
	defer close(release)
	lb, web := balance(t, l, Options{})
	l.set("DEFAULT_GROUP", "order", hung.Instance)
	ask := func(lb http.RoundTripper) error {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://order.starling/", nil)
		_, err := lb.RoundTrip(req)
		return err
	}
	if err := ask(web.Transport); !errors.Is(err, context.DeadlineExceeded) || hung.requests.Load() != 1 {
		t.Error(err, hung.requests.Load())
	}

	base := defaultBase()
	// net/http goes on dialling for the next request.
	base.DialContext = func(context.Context, string, string) (net.Conn, error) {
		<-release
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("too late")}
	}
	slow, err := New(l, Options{Base: base})
	if err != nil {
		t.Fatal(err)
	}
	if err := ask(slow); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	// It ends while a dial fails.
	late := new(wire)
	given, _ := New(l, Options{Base: late})
	gone, end := context.WithCancel(t.Context())
	late.answers = map[string]func(*http.Request) (*http.Response, error){hung.Listener.Addr().String(): func(*http.Request) (*http.Response, error) {
		end()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("operation was canceled")}
	}}
	req, _ := http.NewRequestWithContext(gone, http.MethodGet, "http://order.starling/", nil)
	if _, err := given.RoundTrip(req); err == nil || len(late.asked) != 1 || len(given.ejected) != 0 {
		t.Error(err, late.asked, given.ejected)
	}
	if len(lb.ejected)+len(slow.ejected) != 0 {
		t.Error("ejected for the caller's haste")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	req, _ = http.NewRequestWithContext(ctx, http.MethodGet, "http://order.starling/", nil)
	if _, err := lb.RoundTrip(req); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Servers come and go while requests are made; a list that is late costs none.
func TestServersComeAndGo(t *testing.T) {
	l := new(list)
	backends := []*backend{serve(t, false, echo), serve(t, false, echo), serve(t, false, echo), serve(t, false, echo)}
	_, web := balance(t, l, Options{})
	l.set("DEFAULT_GROUP", "order", backends[0].Instance, backends[1].Instance)
	round := func() {
		t.Helper()
		for range 50 {
			if got := get(t, web, "http://order.starling/x"); got != "GET /x " {
				t.Fatal(got)
			}
		}
	}
	round()
	l.set("DEFAULT_GROUP", "order", backends[1].Instance, backends[2].Instance, backends[3].Instance)
	before := backends[0].requests.Load()
	round()
	if n := backends[0].requests.Load(); n != before {
		t.Errorf("%d requests for one that has left", n-before)
	}
	backends[1].Close() // still listed
	round()
	backends[2].Close()
	round()
}

// TLS by https in the URL and by the metadata of the instance (L-12); HTTP/2 where
// the server has it.
func TestTLS(t *testing.T) {
	proto := func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto) }
	l := new(list)
	a, plain := serve(t, true, proto), serve(t, false, proto)
	secure := a.Instance
	secure.Metadata = map[string]string{"secure": "TRUE"}
	base := func() *http.Transport {
		b := defaultBase()
		pool := x509.NewCertPool()
		pool.AddCert(a.Certificate())
		b.TLSClientConfig = &tls.Config{RootCAs: pool}
		return b
	}
	_, web := balance(t, l, Options{Base: base()})
	l.set("DEFAULT_GROUP", "mixed", secure)
	l.set("DEFAULT_GROUP", "tls", a.Instance)
	l.set("DEFAULT_GROUP", "plain", plain.Instance)
	// The certificate is for 127.0.0.1 and example.com.
	for where, want := range map[string]string{
		"http://mixed.starling/": "HTTP/2.0",
		"lb://mixed/":            "HTTP/2.0",
		"https://tls.starling/":  "HTTP/2.0",
		"http://plain.starling/": "HTTP/1.1",
	} {
		if got := get(t, web, where); got != want {
			t.Errorf("%s: %s", where, got)
		}
	}
	if _, err := web.Get("https://plain.starling/"); err == nil {
		t.Error("https went in the clear")
	}

	// The name is the service's; a connection that was checked for one service is
	// not used for another at the same address.
	names := map[string]string{"tls": "example.com", "mixed": "other.example"}
	_, web = balance(t, l, Options{Base: base(), ServerName: func(id client.ServiceID, _ client.Instance) string { return names[id.Name] }})
	if got := get(t, web, "https://tls.starling/"); got != "HTTP/2.0" {
		t.Error(got)
	}
	if _, err := web.Get("http://mixed.starling/"); err == nil || !strings.Contains(err.Error(), "other.example") {
		t.Errorf("%v: the name was not checked", err)
	}
	names["mixed"] = ""
	if got := get(t, web, "http://mixed.starling/"); got != "HTTP/2.0" {
		t.Error(got)
	}

	name := func(client.ServiceID, client.Instance) string { return "" }
	if _, err := New(l, Options{Base: new(wire), ServerName: name}); !errors.Is(err, client.ErrInvalid) {
		t.Error(err)
	}
	own := &http.Transport{DialTLSContext: func(context.Context, string, string) (net.Conn, error) { return nil, nil }}
	if _, err := New(l, Options{Base: own, ServerName: name}); !errors.Is(err, client.ErrInvalid) {
		t.Error(err)
	}
}

// A redirect without a host stays with the service.
func TestRedirect(t *testing.T) {
	l := new(list)
	a := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/old" {
			w.Header().Set("Location", "/new")
			w.WriteHeader(http.StatusTemporaryRedirect)
			return
		}
		echo(w, r)
	})
	_, web := balance(t, l, Options{})
	l.set("DEFAULT_GROUP", "order", a.Instance)
	for _, where := range []string{"http://order.starling/old", "lb://order/old"} {
		resp, err := web.Post(where, "text/plain", strings.NewReader("y"))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(body) != "POST /new y" {
			t.Errorf("%s", body)
		}
	}
}

// An upgraded connection is the base's business.
func TestUpgrade(t *testing.T) {
	l := new(list)
	a := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		line, _ := bufio.NewReader(conn).ReadBytes('\n')
		_, _ = conn.Write(bytes.ToUpper(line))
	})
	lb, _ := balance(t, l, Options{})
	l.set("DEFAULT_GROUP", "order", a.Instance)
	req, _ := http.NewRequest(http.MethodGet, "http://order.starling/", nil)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "echo")
	resp, err := lb.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	conn := resp.Body.(io.ReadWriteCloser)
	defer conn.Close()
	fmt.Fprintln(conn, "hello")
	if line, err := bufio.NewReader(conn).ReadString('\n'); line != "HELLO\n" {
		t.Error(line, err)
	}
}

func TestByWeight(t *testing.T) {
	const n = 4000
	list := []client.Instance{{IP: "a", Weight: 1}, {IP: "b", Weight: 3}, {IP: "c", Weight: 0}}
	by := map[string]int{}
	for range n {
		i, err := byWeight(list)
		if err != nil {
			t.Fatal(err)
		}
		by[i.IP]++
	}
	// Eight standard deviations of the binomial distribution: never.
	if d := by["a"] - n/4; by["c"] != 0 || d*d > 64*n*3/16 {
		t.Error(by)
	}
	if _, err := byWeight(nil); !errors.Is(err, client.ErrNoInstances) {
		t.Error(err)
	}
}
