package health

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"

	"github.com/starling-registry/starling/pkg/registry"
)

// network is a checker over real sockets. Its timeout is never reached by a
// test that does not want it to be.
func network(timeout time.Duration) *checker {
	return &checker{(&net.Dialer{KeepAlive: -1}).DialContext, timeout}
}

func cluster(c registry.Checker) *registry.ClusterMeta {
	return &registry.ClusterMeta{Name: registry.DefaultCluster, Checker: c, CheckPort: 1, UseInstancePort: true}
}

// noLeaks fails the test if its goroutines stay, those of servers included:
// it is to be called first.
func noLeaks(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}

// keyOf is the instance behind a listener.
func keyOf(t testing.TB, addr net.Addr) registry.InstanceKey {
	t.Helper()
	a, ok := addr.(*net.TCPAddr)
	if !ok {
		t.Fatalf("%v is no TCP address", addr)
	}
	return registry.InstanceKey{IP: a.IP.String(), Port: a.Port, Cluster: registry.DefaultCluster}
}

// serve answers each connection with a goroutine of its own, and ends them all
// with the test.
func serve(t testing.TB, answer func(net.Conn)) registry.InstanceKey {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var running atomic.Int64
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			running.Add(1)
			go func() {
				defer running.Add(-1)
				defer conn.Close()
				conn.SetDeadline(time.Now().Add(20 * time.Second))
				answer(conn)
			}()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
		for begun := time.Now(); running.Load() > 0; time.Sleep(time.Millisecond) {
			if time.Since(begun) > 10*time.Second {
				t.Errorf("%d connections are still open", running.Load())
				return
			}
		}
	})
	return keyOf(t, l.Addr())
}

func expect(t *testing.T, is result, o outcome, reason string) {
	t.Helper()
	if is.outcome != o || !strings.Contains(is.reason, reason) {
		t.Errorf("%v, %q; want %v, %q", is.outcome, is.reason, o, reason)
	}
}

func TestTCP(t *testing.T) {
	noLeaks(t)
	tcp := cluster(registry.Checker{Type: registry.CheckTCP})
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Logf("no %s here: %v", address, err)
			continue
		}
		k := keyOf(t, l.Addr())
		expect(t, network(5*time.Second).check(t.Context(), k, tcp), passed, "tcp: connected")
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		// The socket is closed at once, with an end and no reset.
		conn.SetDeadline(time.Now().Add(10 * time.Second))
		if b, err := io.ReadAll(conn); err != nil || len(b) > 0 {
			t.Errorf("the instance reads %q, %v", b, err)
		}
		conn.Close()
		l.Close()
		expect(t, network(5*time.Second).check(t.Context(), k, tcp), down, "tcp: connection refused")
	}
}

func TestCheckAddress(t *testing.T) {
	own, fixed := cluster(registry.Checker{}), cluster(registry.Checker{})
	fixed.UseInstancePort, fixed.CheckPort = false, 9000
	for _, c := range []struct {
		ip   string
		c    *registry.ClusterMeta
		want string
	}{
		{"10.0.0.1", own, "10.0.0.1:80"},
		{"10.0.0.1", fixed, "10.0.0.1:9000"},
		{"fe80::1%eth0", own, "[fe80::1%eth0]:80"},
		{"[::1]", own, "[::1]:80"},
		{"db.example", fixed, "db.example:9000"},
	} {
		if is := checkAddress(registry.InstanceKey{IP: c.ip, Port: 80}, c.c); is != c.want {
			t.Errorf("%s: %s, want %s", c.ip, is, c.want)
		}
	}
}

func TestDialErrors(t *testing.T) {
	k := registry.InstanceKey{IP: "10.0.0.1", Port: 80}
	for _, e := range []struct {
		err    error
		want   outcome
		reason string
	}{
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}, down, "connection refused"},
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EHOSTUNREACH)}, failed, "tcp: connecting: no route to host"},
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}, own, "too many open files"},
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EADDRNOTAVAIL)}, own, "cannot assign requested address"},
		{&net.DNSError{Err: "no such host", Name: "x", IsNotFound: true}, failed, "no such host"},
		{&net.DNSError{Err: "i/o timeout", Name: "x", IsTimeout: true}, timedOut, "connecting took longer than 1s"},
		{context.DeadlineExceeded, timedOut, "longer"},
	} {
		c := &checker{func(context.Context, string, string) (net.Conn, error) { return nil, e.err }, time.Second}
		expect(t, c.check(t.Context(), k, cluster(registry.Checker{Type: registry.CheckTCP})), e.want, e.reason)
	}
	// Whatever an ended context leads to says nothing of the instance.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	expect(t, network(time.Second).check(ctx, k, cluster(registry.Checker{Type: registry.CheckTCP})), own, "")
}

// The table of semantics §4.3; but the code that is expected counts.
func TestHTTPStatus(t *testing.T) {
	noLeaks(t)
	var hits atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		var code int
		fmt.Sscanf(r.URL.Path, "/%d", &code)
		w.Header().Set("Location", "/200")
		w.WriteHeader(code)
	}))
	defer s.Close()
	k := keyOf(t, s.Listener.Addr())
	for _, c := range []struct {
		code, expected int
		want           outcome
	}{
		{200, 0, passed}, {200, 200, passed}, {204, 204, passed}, {302, 302, passed}, {503, 503, passed},
		{302, 200, failed}, {503, 0, failed},
		{204, 200, down}, {301, 200, down}, {404, 200, down}, {500, 200, down}, {200, 204, down},
	} {
		is := network(5*time.Second).check(t.Context(), k, cluster(registry.Checker{Type: registry.CheckHTTP, Path: fmt.Sprint("/", c.code), ExpectedCode: c.expected}))
		expect(t, is, c.want, fmt.Sprintf("http: status %d", c.code))
	}
	if n := hits.Load(); n != 12 {
		t.Errorf("12 probes made %d requests: redirects are not to be followed", n)
	}
	s.Close()
	expect(t, network(5*time.Second).check(t.Context(), k, cluster(registry.Checker{Type: registry.CheckHTTP})), down, "http: connection refused")
}

// head is what a server gets for the settings.
func head(t *testing.T, ch registry.Checker) (string, result) {
	t.Helper()
	got := make(chan string, 1)
	k := serve(t, func(conn net.Conn) {
		r := bufio.NewReader(conn)
		var all strings.Builder
		for {
			line, err := r.ReadString('\n')
			all.WriteString(line)
			if err != nil || line == "\r\n" {
				break
			}
		}
		got <- all.String()
		io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	})
	ch.Type = registry.CheckHTTP
	is := network(5*time.Second).check(t.Context(), k, cluster(ch))
	if is.outcome != passed {
		return "", is
	}
	return strings.ReplaceAll(<-got, fmt.Sprint(k.Port), "PORT"), is
}

func TestHTTPRequest(t *testing.T) {
	const rest = "Connection: close\r\n\r\n"
	for _, c := range []struct {
		name string
		ch   registry.Checker
		want string
	}{
		{"nothing is set", registry.Checker{}, "GET / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nUser-Agent: Starling-Health-Check\r\n" + rest},
		{"a query", registry.Checker{Path: "/health?a=b c&d=%20"}, "GET /health?a=b%20c&d=%20 HTTP/1.1\r\n"},
		{"no slash", registry.Checker{Path: "health"}, "GET /health HTTP/1.1\r\n"},
		{"another server", registry.Checker{Path: "http://10.9.9.9/x"}, "GET /http://10.9.9.9/x HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n"},
		{"another server, without scheme", registry.Checker{Path: "//10.9.9.9/x"}, "GET //10.9.9.9/x HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n"},
		{"a second line in the path", registry.Checker{Path: "/x HTTP/1.1 y"}, "GET /x%20HTTP/1.1%20y HTTP/1.1\r\n"},
		{"headers", registry.Checker{Headers: "X-A: 1|x-b:http://c:8/|Host:web.example|nonsense|:|User-Agent:me"},
			"GET / HTTP/1.1\r\nHost: web.example\r\nUser-Agent: me\r\nConnection: close\r\nX-A: 1\r\nX-B: http://c:8/\r\n\r\n"},
		{"lines in headers", registry.Checker{Headers: "X-A: 1\r\nX-Evil: 1|X\r\nY: 2|Host: a\r\nX-Evil: 2"},
			"GET / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nUser-Agent: Starling-Health-Check\r\nConnection: close\r\nX-A: 1  X-Evil: 1\r\n\r\n"},
		{"headers of the body", registry.Checker{Headers: "Content-Length: 5|Transfer-Encoding: chunked"}, "GET / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nUser-Agent: Starling-Health-Check\r\n" + rest},
	} {
		if got, is := head(t, c.ch); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %q (%v), want %q", c.name, got, is, c.want)
		}
	}
	for _, path := range []string{"/a\r\nX-Evil: 1", "/a\x00", "/%zz"} {
		if got, is := head(t, registry.Checker{Path: path}); got != "" || is.outcome != failed {
			t.Errorf("%q: %q, %v", path, got, is)
		}
	}
}

// Of what a server says no more is read than the head, for no longer than the
// timeout.
func TestHTTPAnswers(t *testing.T) {
	noLeaks(t)
	write := func(s string) func(net.Conn) {
		return func(c net.Conn) {
			io.WriteString(c, s)
			io.Copy(io.Discard, c)
		}
	}
	var sent atomic.Int64
	forever := func(begin, more string, wait time.Duration) func(net.Conn) {
		return func(c net.Conn) {
			sent.Store(0)
			for s := begin; ; s = more {
				n, err := io.WriteString(c, s)
				if sent.Add(int64(n)); err != nil {
					return
				}
				time.Sleep(wait)
			}
		}
	}
	kilo := strings.Repeat("x", 1024)
	for _, c := range []struct {
		name    string
		answer  func(net.Conn)
		timeout time.Duration
		want    outcome
	}{
		{"a body without end", forever("HTTP/1.1 200 OK\r\n\r\n", kilo, 0), 10 * time.Second, passed},
		{"a head without end", forever("HTTP/1.1 200 OK\r\n", "X-A: "+kilo+"\r\n", 0), 10 * time.Second, failed},
		{"a status line without end", forever("HTTP/1.1 200 ", kilo, 0), 10 * time.Second, failed},
		{"interim answers without end", forever("", "HTTP/1.1 103 Early Hints\r\n\r\n", 0), 10 * time.Second, failed},
		{"an interim answer", write("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"), 10 * time.Second, passed},
		{"byte by byte", forever("", "H", 20*time.Millisecond), 200 * time.Millisecond, timedOut},
		{"nothing", func(c net.Conn) { io.Copy(io.Discard, c) }, 100 * time.Millisecond, timedOut},
		{"the end", func(c net.Conn) {}, 10 * time.Second, failed},
		{"no HTTP", write("SSH-2.0-x\r\n\r\n"), 10 * time.Second, failed},
	} {
		is := network(c.timeout).check(t.Context(), serve(t, c.answer), cluster(registry.Checker{Type: registry.CheckHTTP}))
		if is.outcome != c.want {
			t.Errorf("%s: %v, %q; want %v", c.name, is.outcome, is.reason, c.want)
		}
	}
}

// The end of the prober ends a probe.
func TestCheckEndsWithItsContext(t *testing.T) {
	noLeaks(t)
	for _, kind := range []string{registry.CheckHTTP, registry.CheckMySQL} {
		ctx, cancel := context.WithCancel(t.Context())
		k := serve(t, func(c net.Conn) {
			cancel()
			io.Copy(io.Discard, c)
		})
		begun := time.Now()
		expect(t, network(time.Minute).check(ctx, k, cluster(registry.Checker{Type: kind})), own, "")
		if d := time.Since(begun); d > 30*time.Second {
			t.Errorf("%s: ended after %v", kind, d)
		}
	}
}

func TestReasonsAreFitToBeSent(t *testing.T) {
	for _, reason := range []string{"a\r\nb\x00", "\xff\xfe", strings.Repeat("ü", 300), strings.Repeat("x", maxReason-len("tcp: ")-1) + "ü"} {
		is := clean(t.Context(), result{failed, reason}, cluster(registry.Checker{Type: registry.CheckTCP}))
		if !utf8.ValidString(is.reason) || len(is.reason) > maxReason || strings.ContainsAny(is.reason, "\r\n\x00") {
			t.Errorf("%q becomes %q", reason, is.reason)
		}
	}
}
