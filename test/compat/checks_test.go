package compat

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// How long it may take until a persistent instance is seen to be down or back, from
// pkg/health/DESIGN.md for the default settings. Any node is asked to confirm by another first.
const (
	// due is the time until the next probe begins: of a new instance seven seconds, later 5.5 s.
	due     = 7 * time.Second
	probe   = 500 * time.Millisecond // for connecting, and again for an HTTP answer
	again   = 2 * 1100 * time.Millisecond
	confirm = probe + time.Second

	atOnce  = due + probe + confirm // refused, another status, an error of the database
	counted = due + again + 3*probe + confirm
	silent  = due + again + 3*(probe+time.Second) + 5*probe + time.Second // a database that says nothing
	back    = due + again
	// slack is for a machine that is busy with other things.
	slack = 5 * time.Second
)

const readOnly = "show global variables where variable_name='read_only'"

// TestHealthChecks breaks and mends real servers and follows what a node alone and a cluster of three
// say of them: without an SDK, as an operator would look.
func TestHealthChecks(t *testing.T) {
	bin, dir := serverBinary(t), runDir(t)
	nodes := startCluster(t, bin, filepath.Join(dir, "three"), 3)
	// Those of all clusters are meant to agree.
	clusters := [][]*server{{startServer(t, bin, filepath.Join(dir, "one"))}, nodes}

	play := func(name string, f func(t *testing.T, w *watched)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, &watched{t: t, clusters: clusters, service: service{name: slug(t.Name())}})
		})
	}

	play("TCP", func(t *testing.T, w *watched) {
		i, l := closableTarget(t)
		w.describe(`{"type":"TCP"}`, 0)
		w.register(i)
		l.Close()
		w.wait(atOnce, false)
		listen(t, l.Addr().String())
		w.wait(back, true)
	})

	play("TCP at another port", func(t *testing.T, w *watched) {
		_, l := closableTarget(t)
		port := l.Addr().(*net.TCPAddr).Port
		w.describe(`{"type":"TCP"}`, port)
		i, never := closableTarget(t)
		never.Close() // where the instance itself is
		w.register(i)
		l.Close()
		w.wait(atOnce, false)
		listen(t, l.Addr().String())
		w.wait(back, true)
	})

	for _, c := range []struct {
		name     string
		expected int // 0: not set
		good     int
		bad      int
		least    int // probes that it takes
		most     int // with the one that confirms
		limit    time.Duration
	}{
		{"HTTP 503", 0, 200, 503, 3, 4, counted},
		{"HTTP 302", 0, 200, 302, 3, 4, counted},
		{"HTTP 404", 0, 200, 404, 1, 2, atOnce},
		{"HTTP 200 where 204 is expected", 204, 204, 200, 1, 2, atOnce},
		{"HTTP without an answer", 0, 200, 0, 3, 4, counted + 3*probe},
	} {
		play(c.name, func(t *testing.T, w *watched) {
			page := newPage(t, c.good)
			w.describe(fmt.Sprintf(`{"type":"HTTP","path":"/health?of=CLUSTER","headers":"X-Probe:yes","expectedResponseCode":%d}`, cmp.Or(c.expected, 200)), 0)
			w.register(page.instance)
			page.wait(len(w.clusters)) // it is asked, and answers
			page.turn(c.bad)
			w.each(c.limit, false, func(cluster int) {
				if n := page.asked(cluster); n < c.least || n > c.most {
					t.Errorf("cluster %d finds it unhealthy after %d probes, want %d to %d", cluster, n, c.least, c.most)
				}
			})
			page.turn(c.good)
			w.each(back, true, func(cluster int) {
				if n := page.asked(cluster); n != 3 {
					t.Errorf("cluster %d finds it healthy after %d probes, want 3", cluster, n)
				}
			})
		})
	}

	play("MariaDB read-only", func(t *testing.T, w *watched) {
		db := startMariaDB(t)
		w.describe(mysqlCheck("secret", readOnly), 0)
		w.register(db.instance)
		// Any command but that one only has to succeed, whoever is the master.
		select1 := w.sibling("select")
		select1.describe(mysqlCheck("secret", "select 1"), 0)
		select1.register(db.instance)
		wrong := w.sibling("password")
		wrong.describe(mysqlCheck("wrong", readOnly), 0)
		wrong.register(db.instance)
		broken := w.sibling("command")
		broken.describe(mysqlCheck("secret", "selec 1"), 0)
		broken.register(db.instance)

		wrong.wait(atOnce+2*time.Second, false)
		broken.wait(atOnce+2*time.Second, false)
		db.sql("SET GLOBAL read_only = 1")
		wrong.check(mysqlCheck("secret", "select 1"))
		w.wait(counted+3*time.Second, false)
		wrong.wait(back, true)
		db.sql("SET GLOBAL read_only = 0")
		w.wait(back, true)
		select1.never(false)
		db.sql("ALTER USER probe@'127.0.0.1' IDENTIFIED BY 'changed'")
		w.wait(atOnce+2*time.Second, false)
		select1.wait(atOnce+2*time.Second, false)
		wrong.wait(atOnce+2*time.Second, false)
	})

	play("MariaDB stopped", func(t *testing.T, w *watched) {
		db := startMariaDB(t)
		w.describe(mysqlCheck("secret", readOnly), 0)
		w.register(db.instance)
		db.signal(syscall.SIGSTOP)
		w.wait(silent, false)
		db.signal(syscall.SIGCONT)
		w.wait(back, true)
		db.stop()
		w.wait(atOnce, false)
		db.start()
		w.wait(back, true)
	})

	play("By hand", func(t *testing.T, w *watched) {
		i := inst("10.0.0.1:8080").Persistent() // where nothing is
		w.register(i)
		for _, n := range w.last() {
			if status, body := w.setHealth(n, "v1", true); status != http.StatusBadRequest || !strings.Contains(body, "health check is still working") {
				t.Errorf("v1 at a service that is checked: %d %s", status, body)
			}
		}
		w.check(`{"type":"NONE"}`)
		healthy := true
		for _, version := range []string{"v1", "v2", "v3", "v1", "v2", "v3"} {
			healthy = !healthy
			for _, n := range w.last() {
				if status, body := w.setHealth(n, version, healthy); status != http.StatusOK {
					t.Errorf("%s: %d %s", version, status, body)
				}
			}
			w.wait(0, healthy)
		}
	})

	play("By hand, over a restart", func(t *testing.T, w *watched) {
		srv := startServer(t, bin, filepath.Join(dir, "restarted"))
		w.clusters = [][]*server{{srv}}
		w.describe(`{"type":"NONE"}`, 0)
		w.register(inst("10.0.0.1:8080").Persistent())
		if status, body := w.setHealth(srv, "v3", false); status != http.StatusOK {
			t.Fatal(status, body)
		}
		w.wait(0, false)
		if err := errors.Join(srv.kill(), srv.start()); err != nil {
			t.Fatal(err)
		}
		if got, err := w.healthy(srv); got || err != nil {
			t.Errorf("a node that is ready again says that the instance is healthy: %v, %v", got, err)
		}
	})

	play("Its node killed", func(t *testing.T, w *watched) {
		nodes := startCluster(t, bin, filepath.Join(dir, "killed"), 3)
		w.clusters = [][]*server{nodes}
		i, l := closableTarget(t)
		w.describe(`{"type":"TCP"}`, 0)
		w.register(i)
		l.Close()
		w.wait(atOnce, false)
		doomed := w.prober(nodes)
		if err := doomed.kill(); err != nil {
			t.Fatal(err)
		}
		w.clusters[0] = slices.DeleteFunc(slices.Clone(nodes), func(n *server) bool { return n == doomed })
		// The last result stays as long as nobody has another: here until something listens again.
		w.stays(2*due, false)
		l = listen(t, l.Addr().String())
		// The successor knows that it is one 2.5 s after the death (setting detection).
		w.wait(back+3*time.Second, true)
		if heir := w.prober(nodes); heir == doomed {
			t.Error("the health of the instance still comes from the node that was killed")
		}
		l.Close()
		w.wait(atOnce, false)
		if err := doomed.start(); err != nil {
			t.Fatal(err)
		}
		w.clusters[0] = nodes
		w.wait(0, false)
		listen(t, l.Addr().String())
		w.wait(back, true)
	})
}

// watched is one persistent instance that each of several clusters checks.
type watched struct {
	t        *testing.T
	clusters [][]*server
	service  service
	instance instance
}

// sibling is another service of the same clusters.
func (w *watched) sibling(name string) *watched {
	return &watched{t: w.t, clusters: w.clusters, service: service{name: w.service.name + "." + name}}
}

// last is one node of each cluster, which is not always its leader or its prober.
func (w *watched) last() []*server {
	var list []*server
	for _, nodes := range w.clusters {
		list = append(list, nodes[len(nodes)-1])
	}
	return list
}

// describe makes the service with its check, of the instance's own port or another. CLUSTER stands
// for the number of the cluster.
func (w *watched) describe(checker string, port int) {
	w.t.Helper()
	for c, n := range w.last() {
		checker := strings.ReplaceAll(checker, "CLUSTER", strconv.Itoa(c))
		n.order(w.t, http.MethodPost, "/service", w.service)
		n.order(w.t, http.MethodPut, "/cluster", w.service, "clusterName", "DEFAULT", "checkPort", strconv.Itoa(port),
			"useInstancePort4Check", strconv.FormatBool(port == 0), "healthChecker", checker)
	}
}

// check changes how the service is checked.
func (w *watched) check(checker string) {
	w.t.Helper()
	for _, n := range w.last() {
		n.order(w.t, http.MethodPut, "/cluster", w.service, "clusterName", "DEFAULT", "checkPort", "80",
			"useInstancePort4Check", "true", "healthChecker", checker)
	}
}

// register registers the instance as a healthy one.
func (w *watched) register(i instance) {
	w.t.Helper()
	w.instance = i
	for _, n := range w.last() {
		n.order(w.t, http.MethodPost, "/instance", w.service, "ip", i.IP, "port", strconv.Itoa(i.Port), "ephemeral", "false")
	}
}

// setHealth says by hand how the instance is, in one of the versions of the API.
func (w *watched) setHealth(n *server, version string, healthy bool) (int, string) {
	w.t.Helper()
	path := map[string]string{"v1": "/v1/ns/health/instance", "v2": "/v2/ns/health", "v3": "/v3/admin/ns/health/instance"}[version]
	form := url.Values{"serviceName": {w.service.name}, "ip": {w.instance.IP}, "port": {strconv.Itoa(w.instance.Port)}, "healthy": {strconv.FormatBool(healthy)}}
	req, err := http.NewRequest(http.MethodPut, "http://"+n.address()+"/nacos"+path, strings.NewReader(form.Encode()))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	status, body, err := do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	return status, body
}

// healthy asks one node. Unlike a list, the detail of an instance says the truth whatever the
// protection threshold is.
func (w *watched) healthy(n *server) (bool, error) {
	req, err := http.NewRequest(http.MethodGet, "http://"+n.address()+"/nacos/v1/ns/instance?"+url.Values{
		"serviceName": {w.service.name}, "ip": {w.instance.IP}, "port": {strconv.Itoa(w.instance.Port)}}.Encode(), nil)
	if err != nil {
		return false, err
	}
	status, body, err := do(req)
	if err != nil || status != http.StatusOK {
		return false, fmt.Errorf("%d %s %w", status, body, err)
	}
	var i struct{ Healthy bool }
	err = json.Unmarshal([]byte(body), &i)
	return i.Healthy, err
}

// wait waits until all nodes say that the instance is healthy, or that it is not.
func (w *watched) wait(limit time.Duration, want bool) {
	w.t.Helper()
	w.each(limit, want, func(int) {})
}

// each is wait, and tells of each cluster as soon as its nodes agree.
func (w *watched) each(limit time.Duration, want bool, agrees func(cluster int)) {
	w.t.Helper()
	start := time.Now()
	done := make([]bool, len(w.clusters))
	var wrong []string
	if !eventually(limit+slack, func() bool {
		wrong = nil
		for c, nodes := range w.clusters {
			before := len(wrong)
			for k, n := range nodes {
				if got, err := w.healthy(n); err != nil || got != want {
					wrong = append(wrong, fmt.Sprintf("node %d of cluster %d: %v, %v", k+1, c, got, err))
				}
			}
			if len(wrong) == before && !done[c] {
				done[c] = true
				agrees(c)
			}
		}
		return len(wrong) == 0
	}) {
		w.t.Fatalf("%s: %v is not healthy=%v everywhere after %v: %v", w.service.name, w.instance, want, limit+slack, wrong)
	}
	w.t.Logf("%s: healthy=%v after %.1f s of %v", w.service.name, want, time.Since(start).Seconds(), limit)
}

// stays fails the test if a node says something else in the given time.
func (w *watched) stays(long time.Duration, want bool) {
	w.t.Helper()
	eventually(long, func() bool {
		for _, nodes := range w.clusters {
			for k, n := range nodes {
				if got, err := w.healthy(n); err != nil || got != want {
					w.t.Fatalf("node %d: healthy=%v, %v; want %v all the time", k+1, got, err, want)
				}
			}
		}
		return false
	})
}

// never fails the test if the history of the service has such a conclusion of a check.
func (w *watched) never(healthy bool) {
	w.t.Helper()
	for _, n := range w.last() {
		for _, c := range w.history(n) {
			if c.Cause == cause(healthy) {
				w.t.Errorf("%s: %s at %v", w.service.name, c.Cause, c.When)
			}
		}
	}
}

func cause(healthy bool) string {
	if healthy {
		return "check passed"
	}
	return "check failed"
}

type change struct {
	When  time.Time `json:"when"`
	Cause string    `json:"cause"`
	Name  string    `json:"nodeName"`
}

// history is what a cluster knows of the service, oldest first.
func (w *watched) history(n *server) []change {
	w.t.Helper()
	var h struct {
		Changes []change `json:"changes"`
	}
	w.ask(n, "/starling/v1/history?service="+url.QueryEscape(w.service.name), &h)
	return h.Changes
}

func (w *watched) ask(n *server, path string, into any) {
	w.t.Helper()
	req, err := http.NewRequest(http.MethodGet, "http://"+n.address()+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	status, body, err := do(req)
	if err == nil {
		err = json.Unmarshal([]byte(body), into)
	}
	if err != nil || status != http.StatusOK {
		w.t.Fatalf("%s: %d %s, %v", path, status, body, err)
	}
}

// prober is the node whose check has changed the instance last.
func (w *watched) prober(nodes []*server) *server {
	w.t.Helper()
	var name string
	for _, c := range w.history(w.last()[0]) {
		if c.Cause == cause(true) || c.Cause == cause(false) {
			name = c.Name
		}
	}
	for _, n := range nodes {
		if filepath.Base(n.dir) == name {
			return n
		}
	}
	w.t.Fatalf("no node has the name %q, where the last check was made", name)
	return nil
}

// do makes a request on a connection of its own: nodes are killed.
func do(req *http.Request) (int, string, error) {
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return res.StatusCode, string(body), err
}

// A page is a real HTTP server with one page, which counts its answers.
type page struct {
	t        *testing.T
	instance instance

	mu     sync.Mutex
	status int            // 0: it does not answer
	counts map[string]int // by cluster, since it last turned
}

func newPage(t *testing.T, status int) *page {
	p := &page{t: t, status: status, counts: map[string]int{}}
	over := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/health" || !r.URL.Query().Has("of") || r.Header.Get("X-Probe") != "yes" {
			t.Errorf("a probe asks for %s with %v", r.URL, r.Header)
		}
		p.mu.Lock()
		status := p.status
		p.counts[r.URL.Query().Get("of")]++
		p.mu.Unlock()
		switch status {
		case 0:
			select {
			case <-over:
			case <-r.Context().Done():
			}
			return
		case http.StatusFound:
			w.Header().Set("Location", "/elsewhere")
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(srv.Close)
	t.Cleanup(func() { close(over) })
	p.instance = inst(srv.Listener.Addr().String()).Persistent()
	return p
}

func (p *page) turn(status int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status = status
	clear(p.counts)
}

// asked is how often a cluster has asked since the page last turned.
func (p *page) asked(cluster int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[strconv.Itoa(cluster)]
}

// wait waits until so many clusters have asked.
func (p *page) wait(clusters int) {
	p.t.Helper()
	for c := range clusters {
		if !eventually(due+slack, func() bool { return p.asked(c) > 0 }) {
			p.t.Fatalf("cluster %d has not asked after %v", c, due+slack)
		}
	}
}
