package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// persist runs it against an office; the calls are those but for logins.
func persist(t *testing.T, o *office, cfg Config, r Registration, deregister bool) ([]string, error) {
	t.Helper()
	l, _ := startLogin(t, cfg, o.dial, nil)
	before := len(o.asked())
	if cfg.Username != "" {
		if _, err := l.headers(t.Context()); err != nil {
			return nil, err
		}
		before = len(o.asked())
	}
	err := persistHTTP(t.Context(), &cfg, l.list, l, ServiceID{"g", "order"}, r, deregister)
	return o.asked()[before:], err
}

// split takes a call apart.
func split(t *testing.T, call string) (method, path string, query, form url.Values) {
	t.Helper()
	method, rest, _ := strings.Cut(call, " ")
	rest, f, _ := strings.Cut(rest, " ")
	u, err := url.Parse("http://" + rest)
	if err != nil {
		t.Fatal(err)
	}
	form, err = url.ParseQuery(f)
	if err != nil {
		t.Fatal(err)
	}
	return method, u.Path, u.Query(), form
}

// E-2: what v1 is told, and v3 if there is no v1.
//
// Row S003-5.
func TestPersistentOverHTTP(t *testing.T) {
	full := Registration{IP: "fd00::1", Port: 80, Cluster: "c-1", Weight: 0.5, Metadata: map[string]string{"k": "v ä&="}, Disabled: true, Unhealthy: true, Persistent: true}
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t)
		o.says(200, "ok")
		calls, err := persist(t, o, Config{Namespace: "dev", AppName: "shop"}, full, false)
		if err != nil || len(calls) != 1 {
			t.Fatal(calls, err)
		}
		method, path, query, form := split(t, calls[0])
		want := url.Values{
			"namespaceId": {"dev"}, "serviceName": {"g@@order"}, "groupName": {"g"}, "clusterName": {"c-1"}, "ip": {"fd00::1"}, "port": {"80"}, "weight": {"0.5"},
			"enable": {"false"}, "enabled": {"false"}, "healthy": {"false"}, "ephemeral": {"false"}, "metadata": {`{"k":"v ä\u0026="}`},
		}
		if method != "POST" || path != "/nacos/v1/ns/instance" || len(query) > 0 || form.Encode() != want.Encode() {
			t.Errorf("%s %s %v\n%v, want\n%v", method, path, query, form, want)
		}
		if h := o.heads[0]; h.Get("app") != "shop" {
			t.Errorf("headers %v", h)
		}

		calls, err = persist(t, o, Config{}, Registration{IP: "10.0.0.1", Port: 1}, true)
		if err != nil || len(calls) != 1 {
			t.Fatal(calls, err)
		}
		method, path, query, form = split(t, calls[0])
		want = url.Values{"namespaceId": {"public"}, "serviceName": {"g@@order"}, "groupName": {"g"}, "clusterName": {"DEFAULT"}, "ip": {"10.0.0.1"}, "port": {"1"}, "ephemeral": {"false"}}
		if method != "DELETE" || path != "/nacos/v1/ns/instance" || len(form) > 0 || query.Encode() != want.Encode() {
			t.Errorf("%s %s %v\n%v, want\n%v", method, path, form, query, want)
		}

		for _, r := range []Registration{{IP: "a"}, {IP: "a", ZeroWeight: true}} {
			calls, err := persist(t, o, Config{}, r, false)
			if err != nil {
				t.Fatal(err)
			}
			_, _, _, form := split(t, calls[0])
			if want := map[bool]string{false: "1", true: "0"}[r.ZeroWeight]; form.Get("weight") != want || form.Get("enabled") != "true" || form.Get("healthy") != "true" || form.Has("metadata") {
				t.Errorf("%+v: %v", r, form)
			}
		}

		for _, status := range []int{404, 410, 501} {
			for _, deregister := range []bool{false, true} {
				o.does(func(path string) (int, string) {
					if strings.Contains(path, "/v1/") {
						return status, "closed"
					}
					return 200, `{"code":0,"message":"success","data":"ok"}`
				})
				calls, err := persist(t, o, Config{}, full, deregister)
				if err != nil || len(calls) != 2 {
					t.Fatal(calls, err)
				}
				_, path, query, form := split(t, calls[1])
				if name := query.Get("serviceName") + form.Get("serviceName"); path != "/nacos/v3/client/ns/instance" || name != "order" {
					t.Errorf("status %d: %s for %s", status, path, name)
				}
			}
		}
	})
}

// E-3, A-1: what a refusal is.
//
// Row S002-9.
func TestPersistentRefused(t *testing.T) {
	for _, test := range []struct {
		status int
		body   string
		is     error
		code   int
	}{
		{400, "caused: Param 'ip' is required.", ErrInvalid, 400},
		{500, "caused: errCode: 400, errMsg: Current service DEFAULT_GROUP@@a is ephemeral service, can't register persistent instance. ;", ErrInvalid, 400},
		{500, "caused: disk full", nil, 500},
		{200, `{"code":20004,"message":"parameter validate error","data":"no ip"}`, ErrInvalid, 20004},
		{400, `{"code":10000,"message":"parameter missing","data":"no ip"}`, ErrInvalid, 10000},
		{403, `{"timestamp":"x","status":403,"error":"Forbidden","message":"authorization failed!","path":"/"}`, ErrUnauthorized, 403},
		{403, `{"code":10001,"message":"access denied"}`, ErrUnauthorized, 403},
		{401, "", ErrUnauthorized, 401},
		{404, "nothing", ErrUnsupported, 404},
		{302, "elsewhere", ErrUnsupported, 302},
		{500, strings.Repeat("x", 5000), nil, 500},
		{200, `{"code":`, nil, 0}, // a success: v1 says anything
		{200, "ok", nil, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			o := newOffice(t)
			o.says(test.status, test.body)
			calls, err := persist(t, o, Config{Addrs: []string{"10.0.0.1,10.0.0.2"}}, Registration{IP: "a"}, false)
			refusal, _ := errors.AsType[*ServerError](err)
			if test.code == 0 {
				if err != nil {
					t.Errorf("%v: %v", test, err)
				}
				return
			}
			if refusal == nil || refusal.Code != test.code || refusal.Message != strings.TrimSpace(refusal.Message) || len(refusal.Message) > 1000 {
				t.Fatalf("%v: %v", test, err)
			}
			for _, e := range []error{ErrInvalid, ErrUnauthorized, ErrUnsupported, ErrNotConnected} {
				if errors.Is(err, e) != (e == test.is) {
					t.Errorf("%v is %v: %v", test, e, errors.Is(err, e))
				}
			}
			if n := len(calls); n > 2 || n == 2 && test.status != 404 {
				t.Errorf("%v: asked %d times", test, n)
			}
		})
	}
}

// N-3, N-11, N-20: another server if one is not there; one login for a 403; the
// token is a parameter.
func TestPersistentTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t)
		two := Config{Addrs: []string{"10.0.0.1,10.0.0.2"}, Username: "u"}
		logins, refusals := 0, 1
		o.does(func(path string) (int, string) {
			switch {
			case strings.Contains(path, "login"):
				logins++
				return 200, `{"accessToken":"t` + string(rune('0'+logins)) + `","tokenTtl":18000}`
			case refusals > 0:
				refusals--
				return 403, "token expired!"
			}
			return 200, "ok"
		})
		l, _ := startLogin(t, two, o.dial, nil)
		if _, err := l.headers(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		for _, deregister := range []bool{false, true} {
			if err := persistHTTP(t.Context(), &two, l.list, l, ServiceID{"g", "order"}, Registration{IP: "a"}, deregister); err != nil {
				t.Fatal(err)
			}
		}
		var tokens []string
		for _, call := range o.asked() {
			if _, path, query, form := split(t, call); !strings.Contains(path, "login") {
				tokens = append(tokens, query.Get("accessToken")+form.Get("accessToken"))
			}
		}
		if !slices.Equal(tokens, []string{"t1", "t2", "t2"}) {
			t.Errorf("tokens %q", tokens)
		}
		refusals = 1000
		time.Sleep(time.Minute)
		before := len(o.asked())
		if err := persistHTTP(t.Context(), &two, l.list, l, ServiceID{"g", "order"}, Registration{IP: "a"}, false); !errors.Is(err, ErrUnauthorized) {
			t.Error(err)
		}
		if n := len(o.asked()) - before; n != 3 {
			t.Errorf("%d calls, want two and a login", n)
		}

		// Credentials of the caller: no login, and one more try.
		before = len(o.asked())
		cfg := Config{}
		s, err := newServers(&Config{Addrs: []string{"10.0.0.1"}}, o.dial, nil, l.log)
		if err != nil {
			t.Fatal(err)
		}
		own := newLogin(&cfg, s, func(context.Context) (map[string]string, error) {
			return map[string]string{"accessToken": "mine", "X": "y"}, nil
		}, l.log)
		if err := persistHTTP(t.Context(), &cfg, s, own, ServiceID{"g", "order"}, Registration{IP: "a"}, false); !errors.Is(err, ErrUnauthorized) {
			t.Error(err)
		}
		if n := len(o.asked()) - before; n != 2 {
			t.Errorf("%d calls, want two", n)
		}
		o.mu.Lock()
		if h := o.heads[before]; h.Get("X") != "y" || h.Get("accessToken") != "" || !strings.Contains(o.calls[before], "accessToken=mine") {
			t.Errorf("headers %v, call %s", h, o.calls[before])
		}
		o.mu.Unlock()

		// Nobody there.
		o.set(true, false)
		one := Config{}
		if _, err := persist(t, o, one, Registration{IP: "a"}, false); !errors.Is(err, ErrNotConnected) {
			t.Error(err)
		}
		o.set(false, false)
		o.says(503, "starting")
		if calls, err := persist(t, o, one, Registration{IP: "a"}, false); !errors.Is(err, ErrNotConnected) || len(calls) != 3 {
			t.Error(calls, err)
		}
		o.set(false, true)
		log, _ := newLogbook()
		s, err = newServers(&Config{Addrs: []string{"10.0.0.1"}}, o.dial, nil, log)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := persistHTTP(ctx, &one, s, newLogin(&one, s, nil, log), ServiceID{"g", "order"}, Registration{IP: "a"}, false); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

// The same at Starling: registered, told with all that was said, deregistered.
func TestPersistentAtStarling(t *testing.T) {
	addr := startStarling(t)
	cfg := Config{Addrs: []string{addr}}
	l, _ := startLogin(t, cfg, nil, nil)
	id := ServiceID{"g", "stays"}
	r := Registration{IP: "127.0.0.1", Port: 1, Cluster: "c-1", Weight: 2.5, Metadata: map[string]string{"k": "v ä&= \"q\"", "long": strings.Repeat("x", 900)}}
	hosts := func() []*foundHost {
		resp, err := http.Get("http://" + addr + "/nacos/v1/ns/instance/list?groupName=g&serviceName=stays")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		var found foundJSON
		if err := json.Unmarshal(body, &found); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		return found.Hosts
	}
	if err := persistHTTP(t.Context(), &cfg, l.list, l, id, r, false); err != nil {
		t.Fatal(err)
	}
	got := instancesOf(hosts())
	if len(got) != 1 || got[0].Ephemeral || got[0].Weight != 2.5 || got[0].Cluster != "c-1" || got[0].Metadata["k"] != r.Metadata["k"] || len(got[0].Metadata["long"]) != 900 {
		t.Errorf("%+v", got)
	}
	if err := persistHTTP(t.Context(), &cfg, l.list, l, id, r, true); err != nil {
		t.Fatal(err)
	}
	if got := hosts(); len(got) != 0 {
		t.Errorf("%d are left", len(got))
	}
	r.IP = ""
	if err := persistHTTP(t.Context(), &cfg, l.list, l, id, r, false); !errors.Is(err, ErrInvalid) {
		t.Errorf("without an address: %v", err)
	}
}

func FuzzAnswers(f *testing.F) {
	f.Add(500, []byte("caused: errCode: 400, errMsg: x"))
	f.Add(200, []byte(`{"code":20004,"message":"m","data":"d"}`))
	f.Add(403, []byte(`{"status":403,"message":null}`))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		if e := httpRefusal(status, body); e == nil && status != 200 || e != nil && len(e.Message) > 1000 {
			t.Errorf("status %d: %v", status, e)
		}
		if token, ttl, err := readToken(body); err == nil && (token == "" || ttl <= 0 || ttl > maxTTL) {
			t.Errorf("token %q for %v", token, ttl)
		}
	})
}
