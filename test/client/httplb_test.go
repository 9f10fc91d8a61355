package client

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/client"
	"github.com/starling-registry/starling/pkg/client/httplb"
	"github.com/starling-registry/starling/pkg/node"
)

var _ httplb.Source = (*client.Client)(nil)

// A backend is a real server that counts requests.
type backend struct {
	*httptest.Server
	requests atomic.Int32
}

func serve(t *testing.T) *backend {
	b := &backend{}
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.requests.Add(1)
		if r.URL.Path != "/x" {
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(b.Server.Close)
	return b
}

// The whole chain: servers that register, a node, a client that calls them by
// their name while they come and go.
func TestServicesOverHTTP(t *testing.T) {
	o := node.DefaultOptions()
	o.Name, o.DataDir, o.Logger, o.DrainTimeout = "test", t.TempDir(), zap.NewNop(), 5*time.Second
	l, err := net.Listen("tcp", "127.0.0.1:0") // the gossip port follows from this one
	if err != nil {
		t.Fatal(err)
	}
	o.Port = l.Addr().(*net.TCPAddr).Port
	l.Close()
	o.Listen = func(string, string) (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }
	n, err := node.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := n.Stop(ctx); err != nil {
			t.Error(err)
		}
	}()
	at, rpc := n.HTTPAddr().(*net.TCPAddr), n.GRPCAddr().(*net.TCPAddr)
	c, err := client.New(client.Config{
		Addrs: []string{at.String()}, GRPCPortOffset: rpc.Port - at.Port, CacheDir: "off", FailoverDir: "off",
	}, client.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	backends := []*backend{serve(t), serve(t), serve(t)}
	var leases []*client.Lease
	register := func(b *backend, cluster string) {
		t.Helper()
		lease, err := c.Register(ctx, "com.acme.order", client.Registration{IP: "127.0.0.1", Port: b.Listener.Addr().(*net.TCPAddr).Port, Cluster: cluster}, client.Group("shop"))
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, lease)
	}
	register(backends[0], "a")
	register(backends[1], "b")

	lb, err := httplb.New(c, httplb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	web := &http.Client{Transport: lb}
	defer web.CloseIdleConnections()
	const where = "http://com.acme.order.shop.starling/x"
	// round says who has answered 40 requests, none of which may fail.
	round := func() (by [3]int32) {
		t.Helper()
		var before [3]int32
		for i, b := range backends {
			before[i] = b.requests.Load()
		}
		for range 40 {
			resp, err := web.Get(where)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Fatal(resp.Status)
			}
		}
		for i, b := range backends {
			by[i] = b.requests.Load() - before[i]
		}
		return by
	}
	until := func(good func([3]int32) bool) {
		t.Helper()
		var by [3]int32
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if by = round(); good(by) {
				return
			}
		}
		t.Errorf("answered by %v", by)
	}
	until(func(by [3]int32) bool { return by[0] > 0 && by[1] > 0 })
	register(backends[2], "a")
	until(func(by [3]int32) bool { return by[2] > 0 })
	if err := leases[0].Deregister(ctx); err != nil {
		t.Fatal(err)
	}
	until(func(by [3]int32) bool { return by[0] == 0 })
	backends[1].Close() // nobody has told the registry
	until(func(by [3]int32) bool { return by == [3]int32{2: 40} })

	narrow, err := httplb.New(c, httplb.Options{Group: "shop", Query: []client.QueryOption{client.Clusters("none")}})
	if err != nil {
		t.Fatal(err)
	}
	web.Transport = narrow
	if _, err := web.Get("lb://com.acme.order/x"); !errors.Is(err, client.ErrNoInstances) {
		t.Error(err)
	}
	web.Transport = lb
	if _, err := web.Get("http://nobody.starling/x"); !errors.Is(err, client.ErrNoInstances) {
		t.Error(err)
	}
}
