package httpapi

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/health"
	"github.com/starling-registry/starling/pkg/registry"
)

// A nowhere throws answers away.
type nowhere struct {
	header http.Header
	status int
	size   int
}

func (w *nowhere) Header() http.Header    { return w.header }
func (w *nowhere) WriteHeader(status int) { w.status = status }
func (w *nowhere) Write(b []byte) (int, error) {
	w.size += len(b)
	return len(b), nil
}

const benchParams = "app=unknown&clusterName=DEFAULT&groupName=DEFAULT_GROUP&ip=10.0.0.%d&namespaceId=public&port=8080&serviceName=DEFAULT_GROUP%%40%%40demo"

// benchServer has a service with 20 instances of HTTP clients.
func benchServer(b *testing.B) *Server {
	ro := registry.DefaultOptions()
	reg, metrics := registry.New(ro), prometheus.NewRegistry()
	ho := health.DefaultOptions()
	ho.Registry, ho.Logger, ho.Metrics = reg, zap.NewNop(), metrics
	o := DefaultOptions()
	o.Registry, o.Beats, o.Logger, o.Metrics, o.Gatherer = reg, health.NewBeats(ho), zap.NewNop(), metrics, metrics
	s := New(o)
	for i := range 20 {
		w := benchRequest("POST", "instance", fmt.Sprintf(benchParams, i), "").serve(s)
		if w.status != http.StatusOK {
			b.Fatal(w.status)
		}
	}
	return s
}

type benchCall struct {
	r    *http.Request
	body *strings.Reader
	form string
	w    nowhere
}

func benchRequest(method, path, query, form string) *benchCall {
	c := &benchCall{body: strings.NewReader(form), form: form, w: nowhere{header: http.Header{}}}
	c.r = &http.Request{Method: method, URL: &url.URL{Path: "/nacos/v1/ns/" + path, RawQuery: query}, Body: io.NopCloser(c.body), ContentLength: int64(len(form)), Header: http.Header{}}
	if form != "" {
		c.r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	return c
}

func (c *benchCall) serve(s *Server) *nowhere {
	c.body.Reset(c.form)
	clear(c.w.header)
	c.w.status, c.w.size = 0, 0
	s.ServeHTTP(&c.w, c.r)
	return &c.w
}

func (c *benchCall) bench(b *testing.B) {
	s := benchServer(b)
	b.ReportAllocs()
	for b.Loop() {
		if w := c.serve(s); w.status != http.StatusOK || w.size == 0 {
			b.Fatal(w.status)
		}
	}
}

func BenchmarkList(b *testing.B) {
	benchRequest("GET", "instance/list", "app=unknown&clientIP=10.0.0.1&clusters=&healthyOnly=false&namespaceId=public&serviceName=DEFAULT_GROUP%40%40demo&udpPort=0", "").bench(b)
}

func BenchmarkBeat(b *testing.B) {
	b.Run("light", func(b *testing.B) { benchRequest("PUT", "instance/beat", fmt.Sprintf(benchParams, 7), "").bench(b) })
	b.Run("full", func(b *testing.B) {
		beat := `{"serviceName":"DEFAULT_GROUP@@demo","ip":"10.0.0.7","port":8080,"cluster":"DEFAULT","weight":1.0,"metadata":{"zone":"a"},"ephemeral":true,"scheduled":false,"period":5000,"stopped":false}`
		benchRequest("PUT", "instance/beat", fmt.Sprintf(benchParams, 7), "beat="+url.QueryEscape(beat)).bench(b)
	})
}

func BenchmarkRegister(b *testing.B) {
	benchRequest("POST", "instance", fmt.Sprintf(benchParams, 7)+"&ephemeral=true&healthy=true&enable=true&weight=1.0&metadata=%7B%22zone%22%3A%22a%22%7D", "").bench(b)
}
