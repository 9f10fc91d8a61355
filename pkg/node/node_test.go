package node

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"
)

// loopback opens free ports instead of the configured ones.
func loopback(string, string) (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }

func testOptions(t *testing.T, dir string) Options {
	o := DefaultOptions()
	o.Name, o.DataDir, o.Listen = "test", dir, loopback
	o.Port = freePort(t) // the gossip port follows from it, and is opened as it is
	o.Logger = zaptest.NewLogger(t)
	o.DrainTimeout = 5 * time.Second
	return o
}

func start(t *testing.T, o Options) *Node {
	t.Helper()
	n, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func stop(t *testing.T, n *Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := n.Stop(ctx); err != nil {
		t.Error(err)
	}
	if err := n.Stop(ctx); err != nil { // harmless
		t.Error(err)
	}
}

func get(t *testing.T, n *Node, method, path string) (int, string) {
	t.Helper()
	return ask(t, n, method, path, "")
}

// ask sends a request with a body that is a form.
func ask(t *testing.T, n *Node, method, path, form string) (int, string) {
	t.Helper()
	tr := &http.Transport{DisableKeepAlives: true}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+n.HTTPAddr().String()+path, strings.NewReader(form))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestNodeServesAndStops(t *testing.T) {
	defer goleak.VerifyNone(t)
	n := start(t, testOptions(t, t.TempDir()))
	for _, path := range []string{"/livez", "/readyz", "/nacos/v1/ns/operator/metrics"} {
		if code, body := get(t, n, "GET", path); code != 200 {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if code, body := get(t, n, "POST", "/nacos/v1/ns/instance?serviceName=order&ip=1.1.1.1&port=80"); code != 200 || body != "ok" {
		t.Errorf("register: %d %s", code, body)
	}
	var list struct{ Hosts []struct{ IP string } }
	_, body := get(t, n, "GET", "/nacos/v1/ns/instance/list?serviceName=order")
	if err := json.Unmarshal([]byte(body), &list); err != nil || len(list.Hosts) != 1 || list.Hosts[0].IP != "1.1.1.1" {
		t.Errorf("list: %s", body)
	}
	_, body = get(t, n, "GET", "/metrics")
	for _, series := range []string{
		"starling_registry_instances 1\n", "starling_registry_services 1\n", "starling_push_sent_total 0\n",
		"starling_grpc_connections 0\n", `starling_grpc_requests_total{result="ok",type="InstanceRequest"} 0`, "starling_health_beat_clients 1\n",
	} {
		if !strings.Contains(body, series) {
			t.Errorf("/metrics lacks %q", series)
		}
	}
	c, err := net.Dial("tcp", n.GRPCAddr().String())
	if err != nil {
		t.Error(err)
	} else {
		c.Close()
	}
	stop(t, n)
	if _, err := net.Dial("tcp", n.GRPCAddr().String()); err == nil {
		t.Error("the gRPC port is open after Stop")
	}
}

func TestIdentityOutlivesTheProcess(t *testing.T) {
	dir := t.TempDir()
	read := func(name string) string {
		b, err := os.ReadFile(dir + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	stop(t, start(t, testOptions(t, dir)))
	id, epoch, clock := read("node-id"), read("epoch"), read("clock")
	o := testOptions(t, dir)
	o.ClockOffset = -time.Hour // the wall clock was set back
	stop(t, start(t, o))
	if read("node-id") != id {
		t.Error("another node id")
	}
	if len(read("epoch")) < len(epoch) || read("epoch") <= epoch {
		t.Errorf("epoch %s after %s", read("epoch"), epoch)
	}
	if len(read("clock")) < len(clock) || read("clock") <= clock {
		t.Errorf("the clock went back from %s to %s", clock, read("clock"))
	}
}

func TestFailedStartUndoesWhatItDid(t *testing.T) {
	defer goleak.VerifyNone(t)
	dir := t.TempDir()
	var opened []net.Listener
	o := testOptions(t, dir)
	o.Port = 8848 // nothing opens it
	o.Listen = func(network, addr string) (net.Listener, error) {
		if len(opened) == 1 {
			return nil, errors.New("address already in use")
		}
		l, err := loopback(network, addr)
		opened = append(opened, l)
		return l, err
	}
	_, err := Start(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "9848") || !strings.Contains(err.Error(), "8848") {
		t.Errorf("error %v, want both ports named (C01)", err)
	}
	if _, err := net.Dial("tcp", opened[0].Addr().String()); err == nil {
		t.Error("the HTTP port was left open")
	}
	stop(t, start(t, testOptions(t, dir))) // the data directory is free again
}

func TestSecondNodeInOneDirectory(t *testing.T) {
	dir := t.TempDir()
	n := start(t, testOptions(t, dir))
	defer stop(t, n)
	if _, err := Start(t.Context(), testOptions(t, dir)); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("error %v, want one that names %s", err, dir)
	}
}

func TestListenerThatFails(t *testing.T) {
	var ls []net.Listener
	o := testOptions(t, t.TempDir())
	o.Listen = func(network, addr string) (net.Listener, error) {
		l, err := loopback(network, addr)
		ls = append(ls, l)
		return l, err
	}
	n := start(t, o)
	ls[0].Close()
	select {
	case <-n.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the node does not notice")
	}
	if err := n.Err(); err == nil || !strings.Contains(err.Error(), "HTTP") {
		t.Errorf("error %v", err)
	}
	stop(t, n)
}

// One request that never ends does not hold up a stop, and meanwhile readyz
// says what is going on.
func TestStopDoesNotWaitForSlowRequests(t *testing.T) {
	n := start(t, testOptions(t, t.TempDir()))
	c, err := net.Dial("tcp", n.HTTPAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "POST /nacos/v1/ns/instance HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nserviceName="); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := n.Stop(ctx); err != nil {
		t.Errorf("stop: %v", err)
	}
	if ctx.Err() != nil {
		t.Error("the stop took all of its time")
	}
}
