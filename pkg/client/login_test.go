package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// An office is a server of HTTP in memory that answers logins and keeps what it
// was asked.
type office struct {
	*site
	mu     sync.Mutex
	answer func(path string) (status int, body string)
	calls  []string // method, host, path, then query and form
	times  []time.Time
	heads  []http.Header
}

func newOffice(t *testing.T) *office {
	o := &office{}
	o.site = newSite(t, func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		o.mu.Lock()
		defer o.mu.Unlock()
		o.calls = append(o.calls, r.Method+" "+r.Host+r.URL.RequestURI()+" "+r.PostForm.Encode())
		o.times = append(o.times, time.Now())
		o.heads = append(o.heads, r.Header)
		status, body := o.answer(r.URL.Path)
		if status == 302 {
			w.Header().Set("Location", "http://elsewhere.test/")
		}
		w.WriteHeader(status)
		io.WriteString(w, body)
	})
	o.says(200, `{"accessToken":"t1","tokenTtl":1000}`)
	return o
}

func (o *office) says(status int, body string) {
	o.does(func(string) (int, string) { return status, body })
}

func (o *office) does(answer func(path string) (int, string)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answer = answer
}

func (o *office) asked() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.calls)
}

func startLogin(t *testing.T, cfg Config, dial func(context.Context, string) (net.Conn, error), extra func(context.Context) (map[string]string, error)) (*login, *logbook) {
	t.Helper()
	log, book := newLogbook()
	if cfg.Addrs == nil {
		cfg.Addrs = []string{"10.0.0.1"}
	}
	s, err := newServers(&cfg, dial, nil, log)
	if err != nil {
		t.Fatal(err)
	}
	l := newLogin(&cfg, s, extra, log)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	l.start(ctx, &wg)
	t.Cleanup(func() { cancel(); wg.Wait() })
	return l, book
}

func wantToken(t *testing.T, what string, l *login, want string) map[string]string {
	t.Helper()
	h, err := l.headers(t.Context())
	if err != nil || h[headerToken] != want {
		t.Errorf("%s: %v, %v, want the token %q", what, h, err, want)
	}
	return h
}

// N-20, N-22, N-21: who has no name logs in nowhere; app, and what the caller's
// own function says, go with every request.
func TestHeadersWithoutLogin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t)
		l, _ := startLogin(t, Config{}, o.dial, nil)
		if h, err := l.headers(t.Context()); err != nil || !maps.Equal(h, map[string]string{"app": "unknown"}) {
			t.Error(h, err)
		}
		if l.refused(map[string]string{}) {
			t.Error("a refusal without credentials is worth another try")
		}
		bad := errors.New("vault is sealed")
		var failing error
		l, _ = startLogin(t, Config{AppName: "shop"}, o.dial, func(context.Context) (map[string]string, error) {
			return map[string]string{"Spas-AccessKey": "k"}, failing
		})
		h, err := l.headers(t.Context())
		if err != nil || !maps.Equal(h, map[string]string{"app": "shop", "Spas-AccessKey": "k"}) {
			t.Error(h, err)
		}
		if !l.refused(h) {
			t.Error("what the caller's function says next is not tried")
		}
		failing = bad
		if _, err := l.headers(t.Context()); !errors.Is(err, bad) {
			t.Error(err)
		}
		if n := len(o.asked()); n > 0 {
			t.Errorf("%d logins", n)
		}
	})
}

// N-20: v3, else v1, and that is remembered; the password is in no URL.
func TestLogin(t *testing.T) {
	for what, test := range map[string]struct {
		missing string // path, of which there is none
		status  int
		paths   []string
	}{
		"v3":                       {"", 0, []string{"/nacos/v3/auth/user/login", "/nacos/v3/auth/user/login"}},
		"v1, by 404":               {"/nacos/v3/auth/user/login", 404, []string{"/nacos/v3/auth/user/login", "/nacos/v1/auth/users/login", "/nacos/v1/auth/users/login"}},
		"v1, by 501":               {"/nacos/v3/auth/user/login", 501, []string{"/nacos/v3/auth/user/login", "/nacos/v1/auth/users/login", "/nacos/v1/auth/users/login"}},
		"v3, because v1 is closed": {"/nacos/v1/auth/users/login", 410, []string{"/nacos/v3/auth/user/login", "/nacos/v3/auth/user/login"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			o := newOffice(t)
			o.does(func(path string) (int, string) {
				if path == test.missing {
					return test.status, "no such thing"
				}
				return 200, `{"accessToken":"t1","tokenTtl":100,"globalAdmin":true}`
			})
			l, _ := startLogin(t, Config{Username: "a b", Password: "p&=ä"}, o.dial, nil)
			wantToken(t, what, l, "t1")
			time.Sleep(100 * time.Second)
			var paths []string
			for _, call := range o.asked() {
				u, form, _ := strings.Cut(strings.TrimPrefix(call, "POST 10.0.0.1:8848"), " ")
				path, query, _ := strings.Cut(u, "?")
				if query != "username=a+b" || form != "password="+url.QueryEscape("p&=ä") {
					t.Errorf("%s: the query is %q, the form %q", what, query, form)
				}
				paths = append(paths, path)
			}
			if !slices.Equal(paths, test.paths) {
				t.Errorf("%s: asked %q, want %q", what, paths, test.paths)
			}
		})
	}
}

// N-20: a token is renewed at 80 to 90 % of its time, not always at the same.
func TestRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t)
		n := 0
		o.does(func(string) (int, string) { n++; return 200, fmt.Sprintf(`{"accessToken":"t%d","tokenTtl":1000}`, n) })
		l, _ := startLogin(t, Config{Username: "u"}, o.dial, nil)
		wantToken(t, "first", l, "t1")
		time.Sleep(100 * 1000 * time.Second)
		synctest.Wait()
		o.mu.Lock()
		defer o.mu.Unlock()
		seen := make(map[time.Duration]bool)
		for i := 1; i < len(o.times); i++ {
			d := o.times[i].Sub(o.times[i-1])
			if d < 800*time.Second || d > 900*time.Second {
				t.Fatalf("renewed after %v", d)
			}
			seen[d.Round(time.Second)] = true
		}
		if len(seen) < 10 {
			t.Errorf("renewed after %v", seen)
		}
	})
}

// N-20: a refresh that fails is tried again, and the token is used until it ends.
func TestRefreshFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t)
		l, book := startLogin(t, Config{Username: "u"}, o.dial, nil)
		wantToken(t, "first", l, "t1")
		o.says(500, "caused: broken")
		time.Sleep(999 * time.Second)
		wantToken(t, "nearly over", l, "t1")
		time.Sleep(2 * time.Second)
		if _, err := l.headers(t.Context()); !errors.Is(err, ErrUnauthorized) {
			t.Errorf("over: %v", err)
		}
		o.says(200, `{"accessToken":"t2","tokenTtl":1000}`)
		time.Sleep(7 * time.Second)
		wantToken(t, "again", l, "t2")
		if n := len(o.asked()); n > 3*45 {
			t.Errorf("%d logins in 200 s", n)
		}
		if w := book.warnings(); len(w) != 1 {
			t.Errorf("warnings: %q", w)
		}
	})
}

// G-29: whatever status a refusal has, it is one; and nobody asks in a loop.
func TestWrongPassword(t *testing.T) {
	for _, answer := range []struct {
		status int
		body   string
	}{
		{403, "unknown user!"}, {500, "caused: wrong password"}, {401, ""}, {400, ""}, {302, ""}, {404, ""}, {200, `{"accessToken":""}`}, {200, "<html>"}, {200, `{"accessToken":5}{`}, {200, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			o := newOffice(t)
			o.says(answer.status, answer.body)
			l, _ := startLogin(t, Config{Username: "u", Password: "secret", Addrs: []string{"10.0.0.1,10.0.0.2"}}, o.dial, nil)
			for range 1000 {
				_, err := l.headers(t.Context())
				if !errors.Is(err, ErrUnauthorized) || errors.Is(err, ErrNotConnected) || strings.Contains(err.Error(), "secret") {
					t.Fatalf("%v: %v", answer, err)
				}
				time.Sleep(10 * time.Millisecond)
			}
			for _, call := range o.asked() {
				if strings.Contains(call, "elsewhere") {
					t.Errorf("a redirect is followed: %s", call)
				}
			}
			if n := len(o.asked()); n > 3*4 { // two servers, two paths if the first is missing
				t.Errorf("%v: %d calls in 10 s", answer, n)
			}
		})
	}
}

// N-20: servers that are not there, or just start, are no refusal; the next one
// is asked, and the login succeeds soon after they are.
func TestLoginWithoutServers(t *testing.T) {
	for what, absent := range map[string]func(o *office){
		"down":     func(o *office) { o.set(true, false) },
		"mute":     func(o *office) { o.set(false, true) },
		"starting": func(o *office) { o.says(503, "server is STARTING now, please try again later!") },
	} {
		synctest.Test(t, func(t *testing.T) {
			o := newOffice(t)
			absent(o)
			l, _ := startLogin(t, Config{Username: "u", Addrs: []string{"10.0.0.1", "10.0.0.2"}}, o.dial, nil)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := l.headers(ctx)
			cancel()
			if !errors.Is(err, ErrNotConnected) || errors.Is(err, ErrUnauthorized) {
				t.Errorf("%s: %v", what, err)
			}
			_, err = l.headers(t.Context())
			if !errors.Is(err, ErrNotConnected) {
				t.Errorf("%s: %v", what, err)
			}
			time.Sleep(2 * time.Minute)
			o.set(false, false)
			o.says(200, `{"accessToken":"t1"}`)
			time.Sleep(7 * time.Second)
			wantToken(t, what, l, "t1")
			both := make(map[string]bool)
			for _, addr := range o.dialled() {
				both[addr] = true
			}
			if len(both) != 2 {
				t.Errorf("%s: asked %v", what, both)
			}
		})
	}
}

// N-20: after a 403 there is one login, for all that have had one; a second one
// not before 5 s.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t)
		n := 0
		o.does(func(string) (int, string) { n++; return 200, fmt.Sprintf(`{"accessToken":"t%d","tokenTtl":18000}`, n) })
		l, _ := startLogin(t, Config{Username: "u"}, o.dial, nil)
		used := wantToken(t, "first", l, "t1")
		if l.refused(used) {
			t.Error("just logged in, and to log in again")
		}
		time.Sleep(loginSpacing)
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if !l.refused(used) {
					t.Error("no second try")
				}
				wantToken(t, "again", l, "t2")
			})
		}
		wg.Wait()
		if got := len(o.asked()); got != 2 {
			t.Errorf("%d logins, want 2", got)
		}
		// One that comes late, with the old token, tries the new one.
		if !l.refused(used) {
			t.Error("the new token is not tried")
		}
		if l.refused(map[string]string{headerToken: "t2"}) {
			t.Error("a login for each refusal")
		}
		if got := len(o.asked()); got != 2 {
			t.Errorf("%d logins, want 2", got)
		}
	})
}

// Whoever waits for a login waits no longer than its context, and others go on.
func TestHeadersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t)
		o.set(false, true)
		l, _ := startLogin(t, Config{Username: "u"}, o.dial, nil)
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := l.headers(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrNotConnected) {
			t.Error(err)
		}
		if took := time.Since(began); took != 100*time.Millisecond {
			t.Errorf("it takes %v", took)
		}
	})
}

// After the end nobody waits for what does not come any more.
func TestLoginEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t)
		o.set(false, true)
		names := new(nameServer)
		log, _ := newLogbook()
		cfg := Config{Addrs: []string{"nodes.test."}, Username: "u"}
		s, err := newServers(&cfg, o.dial, names.resolver(), log)
		if err != nil {
			t.Fatal(err)
		}
		l := newLogin(&cfg, s, nil, log)
		ctx, cancel := context.WithCancel(t.Context())
		var wg, waiting sync.WaitGroup
		s.start(ctx, &wg)
		l.start(ctx, &wg)
		time.AfterFunc(time.Second, cancel)
		waiting.Go(func() {
			if _, err := s.forHTTP(t.Context()); !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		})
		if _, err := l.headers(t.Context()); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		waiting.Wait()
		wg.Wait()
	})
}

// N-19: with TLS the name is asked for and has to be in the certificate,
// whatever the address; the password goes to nobody else.
func TestLoginOverTLS(t *testing.T) {
	var got string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.TLS.ServerName
		io.WriteString(w, `{"accessToken":"t1"}`)
	}))
	defer server.Close()
	server.Config.ErrorLog = stdlog.New(io.Discard, "", 0)
	pool := x509.NewCertPool()
	pool.AddCert(server.Certificate())
	names := new(nameServer)
	names.set("example.com", "127.0.0.1")
	names.set("other.test", "127.0.0.1")
	port := server.Listener.Addr().(*net.TCPAddr).Port
	for name, good := range map[string]bool{"example.com": true, "127.0.0.1": true, "other.test": false} {
		got = ""
		cfg := Config{Addrs: []string{fmt.Sprintf("%s:%d", name, port)}, TLS: &tls.Config{RootCAs: pool}, GRPCPortOffset: -1, Username: "u"}
		s, _ := startServers(t, cfg, nil, names)
		l := newLogin(&cfg, s, nil, s.log)
		token, _, err := l.logIn(t.Context())
		if good != (err == nil && token == "t1") || good && strings.Contains(name, "example") && got != name {
			t.Errorf("%s: %q, %v, asked for %q", name, token, err, got)
		}
		if !good && (got != "" || !errors.Is(err, ErrNotConnected)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTokenTimes(t *testing.T) {
	for body, want := range map[string]time.Duration{
		`{"accessToken":"x","tokenTtl":18000}`:   5 * time.Hour,
		`{"accessToken":"x","tokenTtl":"60"}`:    time.Minute,
		`{"accessToken":"x","tokenTtl":0}`:       defaultTTL,
		`{"accessToken":"x","tokenTtl":-1}`:      defaultTTL,
		`{"accessToken":"x"}`:                    defaultTTL,
		`{"accessToken":"x","tokenTtl":"NaN"}`:   defaultTTL,
		`{"accessToken":"x","tokenTtl":1e300}`:   maxTTL,
		`{"accessToken":"x","tokenTtl":0.00001}`: 10 * time.Microsecond,
	} {
		if _, ttl, err := readToken([]byte(body)); err != nil || ttl != want {
			t.Errorf("%s: %v, %v, want %v", body, ttl, err, want)
		}
	}
	if d := refreshAfter(time.Microsecond); d < time.Second {
		t.Errorf("renewed each %v", d)
	}
}

// A name is connected to by its addresses, and asked for by name.
func TestHTTPByName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t)
		names := new(nameServer)
		names.set("nodes.test", "10.0.0.7")
		cfg := Config{Addrs: []string{"http://nodes.test.:80/ctx"}, Username: "u"}
		s, _ := startServers(t, cfg, o.dial, names)
		l := newLogin(&cfg, s, nil, s.log)
		if _, _, err := l.logIn(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, calls := o.dialled(), o.asked(); !slices.Equal(got, []string{"10.0.0.7:80"}) || !strings.HasPrefix(calls[0], "POST nodes.test") || !strings.Contains(calls[0], "/ctx/v3/auth/user/login") {
			t.Errorf("dialled %q, asked %q", got, calls)
		}
	})
}

// startStarling runs the server itself, if there is a binary of it, and returns
// its address.
func startStarling(t *testing.T) string {
	t.Helper()
	bin := os.Getenv("STARLING_BIN")
	if bin == "" {
		bin = filepath.Join("..", "..", "bin", "starling")
	}
	if _, err := os.Stat(bin); err != nil {
		t.Skip("there is no server: make build")
	}
	for range 20 {
		// Below those that the system gives to connections, of which one may get a
		// port of the server before the server does.
		port := 12000 + rand.IntN(18000)
		if !free(port, port+1000, port+1001, port-1000, port-902) {
			continue
		}
		cmd := exec.Command(bin, "serve", "--port", fmt.Sprint(port), "--data-dir", t.TempDir())
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		exited := make(chan struct{})
		go func() { cmd.Wait(); close(exited) }()
		addr := fmt.Sprintf("127.0.0.1:%d", port)
		up := false
		for deadline := time.Now().Add(30 * time.Second); !up && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
			resp, err := http.Get("http://" + addr + "/nacos/v3/admin/core/state/readiness")
			if err == nil {
				resp.Body.Close()
				up = resp.StatusCode == 200
			}
			select {
			case <-exited: // somebody else has one of its ports
				goto next
			default:
			}
		}
		if !up {
			cmd.Process.Kill()
			t.Fatal("the server does not start")
		}
		t.Cleanup(func() { cmd.Process.Kill(); <-exited })
		return addr
	next:
	}
	t.Fatal("no free ports")
	return ""
}

// free reports whether nobody listens at any of these ports.
func free(ports ...int) bool {
	for _, port := range ports {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return false
		}
		l.Close()
	}
	return true
}

// The same against Starling itself.
func TestLoginAtStarling(t *testing.T) {
	addr := startStarling(t)
	resp, err := http.PostForm("http://"+addr+"/nacos/v3/auth/user/admin", url.Values{"password": {"right"}})
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Fatalf("no account: %s", resp.Status)
	}
	l, _ := startLogin(t, Config{Addrs: []string{addr}, Username: "nacos", Password: "right"}, nil, nil)
	if h, err := l.headers(t.Context()); err != nil || h[headerToken] == "" {
		t.Error(h, err)
	}
	for user, password := range map[string]string{"nacos": "wrong", "nobody": "right"} {
		l, _ := startLogin(t, Config{Addrs: []string{addr}, Username: user, Password: password}, nil, nil)
		if h, err := l.headers(t.Context()); !errors.Is(err, ErrUnauthorized) {
			t.Errorf("%s with %s: %v, %v", user, password, h, err)
		}
	}
}
