package httpapi

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestOperatorMetrics(t *testing.T) { // golden scenario 18
	f := newFixture(t, func(o *Options) {
		o.Operator.Counts = func() Counts { return Counts{Subscribers: 3, Connections: 2, BeatClients: 1} }
	})
	f.play(t, []step{
		ok("POST instance?serviceName=a&ip=10.1.1.1&port=80"),
		{"GET operator/metrics", "", "", 200, js, `{"status":"UP"}`},
		{"GET ops/metrics", "", "", 200, js, `{"status":"UP"}`},
		{"GET operator/metrics?onlyStatus=false", "", "", 200, js, `{"status":"UP","serviceCount":1,"instanceCount":1,"subscribeCount":3,
			"responsibleInstanceCount":1,"clientCount":3,"connectionBasedClientCount":2,"ephemeralIpPortClientCount":1,
			"persistentIpPortClientCount":0,"responsibleClientCount":3,"cpu":-1,"load":-1,"mem":-1}`},
		ok("POST instance?serviceName=p&ip=10.1.1.1&port=80&ephemeral=false"),
		{"GET operator/metrics?onlyStatus=false", "", "", 200, js, `{"status":"UP","serviceCount":2,"instanceCount":2,"subscribeCount":3,
			"responsibleInstanceCount":2,"clientCount":4,"connectionBasedClientCount":2,"ephemeralIpPortClientCount":1,
			"persistentIpPortClientCount":1,"responsibleClientCount":4,"cpu":-1,"load":-1,"mem":-1}`},
		{"GET operator/metrics?onlyStatus=True", "", "", 200, js, `{"status":"UP"}`},
		{"GET operator/metrics?onlyStatus=1", "", "", 200, js, fullMetrics(1, `"responsibleInstanceCount":2,"cpu":-1,"load":-1,"mem":-1`)},
		{"GET /v2/ns/operator/metrics", "", "", 200, js, result(0, "success", `{"status":"UP"}`)},
		{"GET /v2/ns/ops/metrics?onlyStatus=false", "", "", 200, js, result(0, "success", fullMetrics(1, `"cpu":-1,"load":-1,"mem":-1`))},
		{"GET /v3/admin/ns/ops/metrics", "", "", 200, js, result(0, "success", `{"status":"UP"}`)},
		{"GET /v3/admin/ns/ops/metrics?onlyStatus=0", "", "", 200, js, result(0, "success", fullMetrics(1, ""))},
		failed("GET /v3/admin/ns/ops/metrics?onlyStatus=x", "", 20002, "parameter validate error", "Param 'onlyStatus' is illegal, it should be true or false: x"),
		{"GET operator/servers", "", "", 501, js, springError(501, "Not Implemented", "no such api:GET:/nacos/v1/ns/operator/servers", "/nacos/v1/ns/operator/servers")},
		{"GET raft/leader", "", "", 501, js, springError(501, "Not Implemented", "no such api:GET:/nacos/v1/ns/raft/leader", "/nacos/v1/ns/raft/leader")},
	})
}

// fullMetrics are the members that all versions have, and more.
func fullMetrics(persistent int, more string) string {
	if more != "" {
		more = "," + more
	}
	return fmt.Sprintf(`{"status":"UP","serviceCount":2,"instanceCount":2,"subscribeCount":3,"clientCount":4,"connectionBasedClientCount":2,
		"ephemeralIpPortClientCount":1,"persistentIpPortClientCount":%d,"responsibleClientCount":4%s}`, persistent, more)
}

func TestMachine(t *testing.T) {
	f := newFixture(t, func(o *Options) {
		o.Operator.Machine = func() Machine { return Machine{CPU: 0.5, Load: 1.5, Mem: 0.25} }
	})
	if w := f.do("GET", "/nacos/v1/ns/operator/metrics?onlyStatus=false", ""); !strings.HasSuffix(w.Body.String(), `"cpu":0.5,"load":1.5,"mem":0.25}`) {
		t.Errorf("%s", w.Body)
	}
}

func TestProfiles(t *testing.T) {
	f := newFixture(t)
	srv := httptest.NewServer(f)
	defer srv.Close()
	get := func(path string, header ...string) int {
		r, _ := http.NewRequest("GET", srv.URL+path, nil)
		if len(header) > 0 {
			r.Header.Set(header[0], header[1])
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/cmdline", "/debug/pprof/symbol", "/debug/pprof/goroutine?debug=1"} {
		if is := get(path); is != 200 {
			t.Errorf("%s from the machine itself: %d", path, is)
		}
	}
	if is := get("/debug/pprof/", "X-Forwarded-For", "127.0.0.1"); is != 404 {
		t.Errorf("through a proxy: %d", is)
	}
	if is := get("/debug/pprof"); is != 404 {
		t.Errorf("without the slash: %d", is)
	}

	for _, c := range []struct {
		local, peer string
		want        int
	}{
		{"127.0.0.1:8848", "127.0.0.1:5000", 200},
		{"[::1]:8848", "[::1]:5000", 200},
		{"[::ffff:127.0.0.1]:8848", "[::ffff:127.0.0.1]:5000", 200},
		{"10.0.0.1:8848", "127.0.0.1:5000", 404},
		{"127.0.0.1:8848", "10.0.0.2:5000", 404},
		{"", "127.0.0.1:5000", 404},
		{"127.0.0.1:8848", "", 404},
		{"127.0.0.1:8848", "localhost:5000", 404},
	} {
		r := httptest.NewRequest("GET", "/debug/pprof/cmdline", nil)
		r.RemoteAddr = c.peer
		if c.local != "" {
			a, err := net.ResolveTCPAddr("tcp", c.local)
			if err != nil {
				t.Fatal(err)
			}
			r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(a)))
		}
		w := httptest.NewRecorder()
		f.ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("%s asks %s: %d, want %d", c.peer, c.local, w.Code, c.want)
		}
	}
}

func TestHTTPServer(t *testing.T) {
	f := newFixture(t)
	hs := NewHTTPServer(f, f.log)
	if hs.ReadHeaderTimeout == 0 || hs.ReadTimeout == 0 || hs.WriteTimeout == 0 || hs.IdleTimeout == 0 || hs.MaxHeaderBytes == 0 {
		t.Error("a slow or endless peer is not bounded")
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = hs.Serve(ln) }()
	defer hs.Close()
	conn, err := net.DialTimeout("tcp", ln.Addr().String(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	go func() {
		_, _ = io.WriteString(conn, "GET /nacos/v1/ns/instance/list?serviceName=")
		for range 1000 {
			if _, err := conn.Write(make([]byte, 1024)); err != nil {
				return
			}
		}
	}()
	head := make([]byte, 12)
	if _, err := io.ReadFull(conn, head); err != nil || string(head) != "HTTP/1.1 431" {
		t.Errorf("a huge URL: %q, %v", head, err)
	}
}
