package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/starling-registry/starling/pkg/nacos"
)

// httpPatience is how long a request may take. SDKs give up after 3 s and more.
const httpPatience = 10 * time.Second

// A webConn is one connection with one request under way at a time. The client
// of net/http costs more than the servers that are measured here.
type webConn struct {
	conn net.Conn
	in   *bufio.Reader
	body []byte
	size int // of the last answer, with its head
}

func dialWeb(ctx context.Context, addr string) (*webConn, error) {
	d := net.Dialer{Timeout: httpPatience}
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &webConn{conn: c, in: bufio.NewReaderSize(c, 16<<10)}, nil
}

func (c *webConn) close() { _ = c.conn.Close() }

// do sends a whole request and returns the answer; the body is good until the
// next one. After an error the connection is of no use any more.
func (c *webConn) do(request []byte) (status int, body []byte, err error) {
	if err := c.conn.SetDeadline(time.Now().Add(httpPatience)); err != nil {
		return 0, nil, err
	}
	if _, err := c.conn.Write(request); err != nil {
		return 0, nil, err
	}
	line, err := c.line()
	if err != nil {
		return 0, nil, err
	}
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) {
		return 0, nil, fmt.Errorf("the answer begins with %q", line)
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, nil, err
	}
	c.size = len(line) + 2
	length := -1
	for {
		if line, err = c.line(); err != nil {
			return 0, nil, err
		}
		c.size += len(line) + 2
		if len(line) == 0 {
			break
		}
		const name = "Content-Length: "
		if len(line) > len(name) && bytes.EqualFold(line[:len(name)], []byte(name)) {
			if length, err = strconv.Atoi(string(line[len(name):])); err != nil {
				return 0, nil, err
			}
		}
	}
	if length < 0 {
		return 0, nil, errors.New("the answer does not tell its length")
	}
	if cap(c.body) < length {
		c.body = make([]byte, length)
	}
	c.body = c.body[:length]
	c.size += length
	_, err = io.ReadFull(c.in, c.body)
	return status, c.body, err
}

func (c *webConn) line() ([]byte, error) {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(line[:len(line)-1], []byte{'\r'}), nil
}

// want is do for an answer that is to be 200, and to contain a text.
func (c *webConn) want(request []byte, text string) error {
	status, body, err := c.do(request)
	if err == nil && (status != http.StatusOK || !bytes.Contains(body, []byte(text))) {
		err = fmt.Errorf("status %d: %.200s", status, body)
	}
	return err
}

// webRequest is a request as clients of 1.x send it. Those in Java have all
// parameters but the beat's in the query, those in Go all in the form.
func webRequest(method, path string, query, form url.Values) []byte {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	body := form.Encode()
	b := fmt.Appendf(nil, "%s /nacos/v1/ns/%s HTTP/1.1\r\nHost: starling-bench\r\nUser-Agent: Nacos-Java-Client:v1.4.6\r\nAccept: */*\r\n", method, path)
	if body != "" {
		b = append(b, "Content-Type: application/x-www-form-urlencoded\r\n"...)
	}
	if method != http.MethodGet {
		b = fmt.Appendf(b, "Content-Length: %d\r\n", len(body))
	}
	return append(append(b, "\r\n"...), body...)
}

// A webInstance is one instance of an HTTP client.
type webInstance struct {
	service, ip string
	port        int
}

func (i webInstance) params() url.Values {
	return url.Values{"namespaceId": {"public"}, "groupName": {benchGroup}, "serviceName": {benchGroup + "@@" + i.service}, "clusterName": {"DEFAULT"},
		"ip": {i.ip}, "port": {strconv.Itoa(i.port)}, "app": {"unknown"}}
}

func (i webInstance) register() []byte {
	form := i.params()
	form.Set("metadata", `{"zone":"a"}`)
	form.Set("weight", "1.0")
	form.Set("enable", "true")
	form.Set("healthy", "true")
	form.Set("ephemeral", "true")
	return webRequest(http.MethodPost, "instance", form, nil)
}

func (i webInstance) deregister() []byte {
	return webRequest(http.MethodDelete, "instance", i.params(), nil)
}

func (i webInstance) lightBeat() []byte {
	return webRequest(http.MethodPut, "instance/beat", i.params(), nil)
}

func (i webInstance) fullBeat() []byte {
	beat := fmt.Sprintf(`{"serviceName":"%s@@%s","ip":"%s","port":%d,"cluster":"DEFAULT","weight":1.0,"metadata":{"zone":"a"},"ephemeral":true,"scheduled":false,"period":5000,"stopped":false}`,
		benchGroup, i.service, i.ip, i.port)
	return webRequest(http.MethodPut, "instance/beat", i.params(), url.Values{"beat": {beat}})
}

func listRequest(service string) []byte {
	return webRequest(http.MethodGet, "instance/list", url.Values{"namespaceId": {"public"}, "serviceName": {benchGroup + "@@" + service}, "clusters": {""},
		"udpPort": {"0"}, "clientIP": {"10.0.0.1"}, "healthyOnly": {"false"}, "app": {"unknown"}}, nil)
}

// webServices is how many services are asked for in turn.
const webServices = 16

// onWeb has one connection per worker, which sends the requests in turn from a
// place of its own. Each answer is to contain a text.
func (r *benchRun) onWeb(ctx context.Context, text string, requests [][]byte) error {
	conns := make([]*webConn, r.concurrency)
	defer func() {
		for _, c := range conns {
			if c != nil {
				c.close()
			}
		}
	}()
	if err := each(ctx, len(conns), 64, func(i int) (err error) { conns[i], err = dialWeb(ctx, r.server); return err }); err != nil {
		return err
	}
	if err := conns[0].want(requests[0], text); err != nil {
		return err
	}
	r.answerBytes = conns[0].size
	return r.work(ctx, 0, func(ctx context.Context, w, n int, buf []byte) (_ []byte, err error) {
		c := conns[w]
		if c == nil {
			if c, err = dialWeb(ctx, r.server); err != nil {
				return buf, err
			}
			conns[w] = c
		}
		if err = c.want(requests[(w*7+n)%len(requests)], text); err != nil {
			c.close()
			conns[w] = nil
		}
		return buf, err
	})
}

// registered registers instances over HTTP; the function that it returns
// withdraws them, also if the run is stopped.
func (r *benchRun) registered(ctx context.Context, instances []webInstance) (withdraw func(), err error) {
	c, err := dialWeb(ctx, r.server)
	if err != nil {
		return nil, err
	}
	withdraw = func() {
		defer c.close()
		for _, i := range instances {
			if c.want(i.deregister(), "ok") != nil {
				return // what is left goes with its beats
			}
		}
	}
	for _, i := range instances {
		if err := c.want(i.register(), "ok"); err != nil {
			withdraw()
			return nil, err
		}
	}
	return withdraw, nil
}

// benchList: the instances come over gRPC and so stay without beats.
func benchList(ctx context.Context, r *benchRun) error {
	provider, err := r.dial(ctx, r.server, nil)
	if err != nil {
		return err
	}
	var requests [][]byte
	for i := range webServices {
		service := fmt.Sprintf("list-%d-%d", r.instances, i)
		if _, err := provider.Request(ctx, nacos.TypeBatchInstanceRequest, batchBody(nil, service, r.instances, 1)); err != nil {
			return err
		}
		requests = append(requests, listRequest(service))
	}
	return r.onWeb(ctx, `"hosts":[{`, requests)
}

func benchBeat(ctx context.Context, r *benchRun) error {
	return r.ofInstances(ctx, `"code":10200`, webInstance.lightBeat)
}

func benchFullBeat(ctx context.Context, r *benchRun) error {
	return r.ofInstances(ctx, `"code":10200`, webInstance.fullBeat)
}

func benchReregister(ctx context.Context, r *benchRun) error {
	return r.ofInstances(ctx, "ok", webInstance.register)
}

// ofInstances sends one kind of request for each of the instances in turn.
func (r *benchRun) ofInstances(ctx context.Context, text string, request func(webInstance) []byte) error {
	const each = 20 // of a service
	var instances []webInstance
	var requests [][]byte
	for i := range webServices * each {
		in := webInstance{"beat-" + strconv.Itoa(i/each), hostAddress(i), 8080}
		instances, requests = append(instances, in), append(requests, request(in))
	}
	withdraw, err := r.registered(ctx, instances)
	if err != nil {
		return err
	}
	defer withdraw()
	return r.onWeb(ctx, text, requests)
}
