package httpapi

import (
	"bufio"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestConnectionLimits(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := Limit(tcp, 3, 2, prometheus.NewRegistry())
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {})}
	go srv.Serve(l)
	defer srv.Close()
	// dial opens a connection from a loopback address and returns the answer
	// to a request on it.
	dial := func(from string) (net.Conn, string) {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := d.Dial("tcp", tcp.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if _, err := c.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
			return c, err.Error()
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b := new(strings.Builder)
		bufio.NewReader(resp.Body).WriteTo(b)
		return c, resp.Status + b.String()
	}
	first, got := dial("127.0.0.1")
	if got != "200 OK" {
		t.Fatal(got)
	}
	dial("127.0.0.1")
	if _, got := dial("127.0.0.1"); got != "503 Service Unavailableover the limit of 2 HTTP connections from 127.0.0.1 (--max-connections-per-address)" {
		t.Error(got)
	}
	if _, got := dial("127.0.0.2"); got != "200 OK" { // others do not notice
		t.Error(got)
	}
	if _, got := dial("127.0.0.3"); !strings.Contains(got, "over the limit of 3 HTTP connections of this node (--max-connections)") {
		t.Error(got)
	}
	first.Close()
	for { // the server closes its side when it has seen the end of ours
		if _, got := dial("127.0.0.3"); got == "200 OK" {
			break
		}
	}
}
