package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/starling-registry/starling/pkg/nacos"
)

func timeout() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), callTimeout)
}

// neverAcks subscribes, gets pushes and does not say so.
func neverAcks(a *arena) (string, error) {
	c, err := a.connect(manners{unacked: true})
	if err != nil {
		return "", err
	}
	defer c.close()
	start := time.Now()
	if err := must(c.subscribe(bystanderService)); err != nil {
		return "", err
	}
	for time.Since(start) < 8*time.Second && c.gone(200*time.Millisecond) != nil {
		_, _ = c.call(nacos.TypeHealthCheckRequest, "{}") // it lives, it only does not ack
	}
	if took := time.Since(start); took < 2500*time.Millisecond {
		return "", fmt.Errorf("closed after %v already", took)
	}
	return fmt.Sprintf("closed after %.1f s", time.Since(start).Seconds()), c.gone(0)
}

// readsNothing subscribes to something big that changes, and reads neither
// the stream nor, in the second case, the socket.
func readsNothing(a *arena) (string, error) {
	p, err := a.connect(manners{})
	if err != nil {
		return "", err
	}
	defer p.close()
	if err := must(p.batch("unread", many(2000, ""))); err != nil {
		return "", err
	}
	stream, err := a.connect(manners{unread: true})
	if err != nil {
		return "", err
	}
	defer stream.close()
	socket, err := a.connect(manners{})
	if err != nil {
		return "", err
	}
	defer socket.close()
	errs := []error{must(stream.subscribe("unread")), must(socket.subscribe("unread"))}
	start := time.Now()
	socket.sock.freeze()
	var gone time.Duration
	for i := 0; gone == 0 && time.Since(start) < 12*time.Second; i++ {
		errs = append(errs, must(p.batch("unread", many(2000+i%2, ""))))
		time.Sleep(200 * time.Millisecond)
		if v, err := a.srv.vitals(false); err != nil {
			return "", err
		} else if v.subscriptions <= 1 { // the bystander's
			gone = time.Since(start)
		}
	}
	if gone == 0 {
		errs = append(errs, errors.New("a client that does not read is still there"))
	}
	return fmt.Sprintf("both closed after %.1f s", gone.Seconds()), errors.Join(errs...)
}

func halfOpen(a *arena) (string, error) {
	before, err := a.srv.vitals(false)
	if err != nil {
		return "", err
	}
	// Frozen: idle detection and HTTP/2 pings get no answer. Its instance
	// must not stay.
	frozen, err := a.connect(manners{})
	if err != nil {
		return "", err
	}
	defer frozen.close()
	if err := must(frozen.register("frozen", inst("10.0.0.1", 80))); err != nil {
		return "", err
	}
	frozen.sock.freeze()
	start := time.Now()
	wait := func(limit time.Duration) (time.Duration, error) {
		for time.Since(start) < limit {
			if v, err := a.srv.vitals(false); err != nil || v.instances <= before.instances && v.transports <= before.transports {
				return time.Since(start), err
			}
			time.Sleep(50 * time.Millisecond)
		}
		return 0, fmt.Errorf("still there after %v", limit)
	}
	first, err := wait(10 * time.Second)
	if err != nil {
		return "", fmt.Errorf("frozen: %w", err)
	}
	// Half a connection: the client's side is shut.
	half, err := a.connect(manners{})
	if err != nil {
		return "", err
	}
	defer half.close()
	if err := must(half.register("frozen", inst("10.0.0.2", 80))); err != nil {
		return "", err
	}
	start = time.Now()
	if err := half.sock.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		return "", err
	}
	second, err := wait(2 * time.Second)
	if err != nil {
		return "", fmt.Errorf("half-closed: %w", err)
	}
	// Reset.
	reset, err := a.connect(manners{})
	if err != nil {
		return "", err
	}
	defer reset.close()
	if err := must(reset.register("frozen", inst("10.0.0.3", 80))); err != nil {
		return "", err
	}
	start = time.Now()
	_ = reset.sock.Conn.(*net.TCPConn).SetLinger(0)
	reset.sock.Close()
	third, err := wait(2 * time.Second)
	return fmt.Sprintf("frozen after %.1f s, half-closed %d ms, reset %d ms", first.Seconds(), second.Milliseconds(), third.Milliseconds()), err
}

func setups(a *arena) (string, error) {
	var acks atomic.Int32
	c, err := a.connect(manners{received: func(typ string, _ []byte) {
		if typ == nacos.TypeSetupAckRequest {
			acks.Add(1)
		}
	}})
	if err != nil {
		return "", err
	}
	defer c.close()
	victim, err := a.connect(manners{})
	if err != nil {
		return "", err
	}
	defer victim.close()
	errs := []error{must(c.register("setups", inst("10.0.0.1", 80))), must(victim.register("setups", inst("10.0.0.2", 80)))}
	// Again, and for somebody else: by every name that a field could have.
	for range 100 {
		errs = append(errs, c.send(&nacos.Payload{Type: nacos.TypeConnectionSetupRequest, ClientIP: "10.0.0.2", Headers: map[string]string{"connectionId": victim.id},
			Body: fmt.Appendf(nil, `{"clientVersion":"x","connectionId":%[1]q,"clientId":%[1]q,"requestId":%[1]q,"labels":{"module":"naming","connectionId":%[1]q},"abilityTable":{}}`, victim.id)}))
	}
	// A second stream with a setup, which ends: the first one stays.
	s, err := c.newStream()
	if err != nil {
		return "", err
	}
	errs = append(errs, s.SendMsg(&nacos.Payload{Type: nacos.TypeConnectionSetupRequest, Body: []byte(`{"abilityTable":{}}`)}), s.CloseSend())
	for s.RecvMsg(new(nacos.Payload)) == nil {
	}
	errs = append(errs, healthy(c), healthy(victim), must(c.deregister("setups", inst("10.0.0.2", 80))))
	if q, err := c.query("setups"); err != nil || len(q.hosts()) != 1 || q.hosts()[0].(map[string]any)["ip"] != "10.0.0.2" {
		errs = append(errs, fmt.Errorf("the victim's instance: %v %v", q, err))
	}
	if n := acks.Load(); n > 1 {
		errs = append(errs, fmt.Errorf("%d setup acks", n))
	}
	// Broken ones. Requests without a setup get 301, and no stall.
	n := 0
	for _, body := range []string{"", "{", "[]", `{"labels":1}`, `{"labels":[]}`, `{"clientVersion":{}}`} {
		d, err := a.connect(manners{noSetup: true})
		if err != nil {
			return "", err
		}
		if err := d.open(); err != nil {
			return "", err
		}
		errs = append(errs, d.send(&nacos.Payload{Type: nacos.TypeConnectionSetupRequest, Body: []byte(body)}))
		go d.read()
		if err := d.gone(3 * time.Second); err != nil {
			errs = append(errs, fmt.Errorf("setup %q: %v", body, err))
		}
		errs = append(errs, within(2*time.Second, func() error {
			if ans, err := d.call(nacos.TypeHealthCheckRequest, "{}"); err != nil || ans.code() != nacos.CodeUnregistered {
				return fmt.Errorf("setup %q, then: %v %v", body, ans, err)
			}
			return nil
		}))
		d.close()
		n++
	}
	for _, body := range []string{"null", "{}", `{"labels":null,"abilityTable":null,"clientVersion":null,"tenant":null}`, `{"labels":{"a":null,"b":[1],"c":{}},"abilityTable":"x"}`, `{"abilityTable":[]}`} {
		d, err := a.connect(manners{noSetup: true})
		if err != nil {
			return "", err
		}
		if err := d.setup(body); err != nil {
			errs = append(errs, fmt.Errorf("setup %s: %v", body, err))
		}
		d.close()
		n++
	}
	return fmt.Sprintf("102 further setups without effect, %d odd ones", n), errors.Join(errs...)
}

func thousandStreams(a *arena) (string, error) {
	c, err := a.connect(manners{})
	if err != nil {
		return "", err
	}
	defer c.close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var open []grpc.ClientStream
	start := time.Now()
	for range 999 { // with its own: 1,000
		s, err := c.cc.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/BiRequestStream/requestBiStream")
		if err != nil {
			return "", fmt.Errorf("stream %d: %v", len(open), err)
		}
		if err := s.SendMsg(&nacos.Payload{Type: nacos.TypeNotifySubscriberResponse, Body: []byte(`{"requestId":"1"}`)}); err != nil {
			return "", fmt.Errorf("stream %d: %v", len(open), err)
		}
		open = append(open, s)
	}
	took := time.Since(start)
	var errs []error
	// One more has to wait: the client's library keeps it back.
	brief, stop := context.WithTimeout(context.Background(), 300*time.Millisecond)
	err = c.cc.Invoke(brief, "/Request/request", &nacos.Payload{Type: nacos.TypeHealthCheckRequest, Body: []byte("{}")}, new(nacos.Payload))
	stop()
	if status.Code(err) != codes.DeadlineExceeded {
		errs = append(errs, fmt.Errorf("stream 1,001: %w", err))
	}
	// A client that does not keep back is refused.
	h, err := a.http2()
	if err != nil {
		return "", err
	}
	refused := 0
	for i := range uint32(3000) {
		if err := h.request(2*i+1, false, "/BiRequestStream/requestBiStream"); err != nil {
			break
		}
	}
	time.Sleep(300 * time.Millisecond)
	refused = int(h.resets.Load())
	if h.alive() && refused < 1900 {
		errs = append(errs, fmt.Errorf("3,000 streams by force: %d refused", refused))
	}
	h.close()
	cancel()
	errs = append(errs, within(2*time.Second, func() error { return healthy(c) }))
	return fmt.Sprintf("1,000 in %d ms; of 3,000 by force %d refused", took.Milliseconds(), refused), errors.Join(errs...)
}

func manySubscriptions(a *arena) (string, error) {
	var pushes atomic.Int64
	c, err := a.connect(manners{received: func(typ string, _ []byte) {
		if typ == nacos.TypeNotifySubscriberRequest {
			pushes.Add(1)
		}
	}})
	if err != nil {
		return "", err
	}
	defer c.close()
	start := time.Now()
	err = parallel(16, func(i int) error {
		for n := i; n < 10_000; n += 16 {
			if err := must(c.subscribe(fmt.Sprint("many", n))); err != nil {
				return fmt.Errorf("subscription %d: %v", n, err)
			}
		}
		return nil
	})
	took := time.Since(start)
	errs := []error{err}
	for range 10 {
		if ans, err := c.subscribe("many-more"); err != nil || ans.code() != nacos.CodeOverThreshold || ans.typ != nacos.TypeSubscribeServiceResponse {
			errs = append(errs, fmt.Errorf("10,001: %v %v", ans, err))
		}
	}
	for deadline := time.Now().Add(10 * time.Second); pushes.Load() < 10_000; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			errs = append(errs, fmt.Errorf("%d first pushes of 10,000", pushes.Load()))
			break
		}
	}
	// To and fro, faster than first pushes go out.
	errs = append(errs, parallel(4, func(i int) error {
		for n := range 1000 {
			body := object{"serviceName": fmt.Sprint("many", n), "groupName": "DEFAULT_GROUP", "subscribe": n%2 == i%2}
			if ans, err := c.call(nacos.TypeSubscribeServiceRequest, body); err != nil || !ans.ok() && ans.code() != nacos.CodeOverThreshold {
				return fmt.Errorf("to and fro: %v %v", ans, err)
			}
		}
		return nil
	}))
	// And one that does not read them, nor acks.
	d, err := a.connect(manners{unread: true, unacked: true})
	if err != nil {
		return "", err
	}
	defer d.close()
	errs = append(errs, parallel(16, func(i int) error {
		for n := i; n < 10_000; n += 16 {
			if _, err := d.subscribe(fmt.Sprint("many", n)); err != nil {
				return nil // closed: as it should be
			}
		}
		return nil
	}))
	return fmt.Sprintf("10,000 in %.1f s, %d pushed", took.Seconds(), pushes.Load()), errors.Join(errs...)
}

func manyConnections(a *arena) (string, error) {
	const n = 3000
	conns := make([]net.Conn, n)
	defer func() {
		for _, c := range conns {
			if c != nil {
				c.Close()
			}
		}
	}()
	start := time.Now()
	err := parallel(8, func(w int) error {
		for i := w; i < n; i += 8 {
			c, err := net.DialTimeout("tcp", a.srv.grpc(), callTimeout)
			if err != nil {
				return fmt.Errorf("connection %d: %v", i, err)
			}
			conns[i] = c
			// All talk HTTP/2, none is set up.
			if _, err := c.Write(append([]byte(preface), 0, 0, 0, 4, 0, 0, 0, 0, 0)); err != nil {
				return fmt.Errorf("connection %d: %v", i, err)
			}
		}
		return nil
	})
	dialed := time.Since(start)
	errs := []error{err}
	open := 0
	for _, c := range conns {
		if c == nil {
			continue
		}
		_ = c.SetReadDeadline(start.Add(dialed + 6*time.Second))
		if _, err := io.Copy(io.Discard, c); err != nil && errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
			open++
		}
	}
	if open > 0 {
		errs = append(errs, fmt.Errorf("%d are still open after %v", open, time.Since(start)))
	}
	return fmt.Sprintf("dialled in %.1f s, all closed after %.1f s", dialed.Seconds(), time.Since(start).Seconds()), errors.Join(errs...)
}

func comeAndGo(a *arena) (string, error) {
	n := 3000
	if a.long {
		n = 20_000
	}
	start := time.Now()
	err := parallel(8, func(w int) error {
		for i := w; i < n; i += 8 {
			c, err := net.DialTimeout("tcp", []string{a.srv.grpc(), a.srv.http()}[i/8%2], callTimeout)
			if err != nil {
				return fmt.Errorf("connection %d: %w", i, err)
			}
			if i/16%2 == 0 {
				_ = c.(*net.TCPConn).SetLinger(0)
			}
			c.Close()
		}
		return nil
	})
	return fmt.Sprintf("%d in %.1f s", n, time.Since(start).Seconds()), err
}

// noFiles takes all file descriptors that the process may have.
func noFiles(a *arena) (string, error) {
	v, err := a.srv.vitals(false)
	if err != nil {
		return "", err
	}
	c, err := a.connect(manners{})
	if err != nil {
		return "", err
	}
	defer c.close()
	limit := func(n string) error {
		if out, err := exec.Command("prlimit", "--pid", strconv.Itoa(a.srv.cmd.Process.Pid), "--nofile="+n+":").CombinedOutput(); err != nil {
			return fmt.Errorf("prlimit: %w: %s", err, out)
		}
		return nil
	}
	if _, err := exec.LookPath("prlimit"); err != nil {
		return "skipped, there is no prlimit", nil
	}
	if err := limit(strconv.Itoa(v.fds + 50)); err != nil {
		return "", err
	}
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for i := range 400 { // the kernel accepts more than the server does
		d, err := net.DialTimeout("tcp", []string{a.srv.grpc(), a.srv.http()}[i%2], callTimeout)
		if err != nil {
			break
		}
		conns = append(conns, d)
	}
	var errs []error
	for start := time.Now(); time.Since(start) < 2*time.Second; time.Sleep(50 * time.Millisecond) {
		errs = append(errs, healthy(c))
	}
	now, err := a.srv.vitals(false)
	errs = append(errs, err, limit("20000"))
	for _, d := range conns {
		d.Close()
	}
	conns = nil
	errs = append(errs, within(5*time.Second, func() error {
		d, err := a.connect(manners{})
		if err == nil {
			d.close()
		}
		return err
	}))
	return fmt.Sprintf("%d of %d files in use, then served again", now.fds, v.fds+50), errors.Join(errs...)
}

// unknownServices names services that nobody has heard of, once each.
func unknownServices(a *arena) (string, error) {
	n := 20_000
	if a.long {
		n = 200_000
	}
	start := time.Now()
	err := parallel(8, func(w int) error {
		c, err := a.connect(manners{})
		if err != nil {
			return err
		}
		defer c.close()
		for i := w; i < n; i += 8 {
			name := fmt.Sprint("unknown", i)
			switch i / 8 % 4 {
			case 0:
				_, err = c.query(name)
			case 1:
				if err = must(c.subscribe(name)); err == nil {
					err = must(c.call(nacos.TypeSubscribeServiceRequest, object{"namespace": "public", "serviceName": name, "groupName": "DEFAULT_GROUP"}))
				}
			case 2:
				if err = must(c.register(name, inst("10.0.0.1", 80))); err == nil {
					err = must(c.deregister(name, inst("10.0.0.1", 80)))
				}
			default:
				_, err = a.httpHosts("public", "DEFAULT_GROUP", name)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	return fmt.Sprintf("%d names in %.1f s", n, time.Since(start).Seconds()), err
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

// closedWithin writes bytes to the gRPC port, and wants the connection closed.
func (a *arena) closedWithin(limit time.Duration, b []byte) (got []byte, took time.Duration, err error) {
	c, err := net.DialTimeout("tcp", a.srv.grpc(), callTimeout)
	if err != nil {
		return nil, 0, err
	}
	defer c.Close()
	start := time.Now()
	_ = c.SetDeadline(start.Add(limit))
	_, _ = c.Write(b)
	got, err = io.ReadAll(c)
	if isTimeout(err) {
		return got, limit, fmt.Errorf("%q: still open after %v", clip(string(b)), limit)
	}
	return got, time.Since(start), nil
}

func notHTTP2(a *arena) (string, error) {
	var errs []error
	c, err := net.DialTimeout("tcp", a.srv.grpc(), callTimeout)
	if err != nil {
		return "", err
	}
	_ = c.SetDeadline(time.Now().Add(3 * time.Second))
	if err := tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}).Handshake(); err == nil || isTimeout(err) {
		errs = append(errs, fmt.Errorf("TLS: %w", err))
	}
	c.Close()
	noise := bytes.Repeat([]byte{0xde, 0xad, 0xbe, 0xef}, 1<<16)
	n := 0
	for _, b := range [][]byte{[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), []byte("POST /nacos/v1/ns/instance HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999\r\n\r\n"),
		[]byte("PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n"), []byte("SSH-2.0-x\r\n" + strings.Repeat(" ", 100)), noise, make([]byte, 1<<20),
		append([]byte(preface), noise...), append([]byte(preface), "GET / HTTP/1.1\r\n\r\n"...)} {
		n++
		_, _, err := a.closedWithin(3*time.Second, b)
		errs = append(errs, err)
	}
	return fmt.Sprintf("%d closed at once", n+1), errors.Join(errs...)
}

// byteByByte sends a preface and a request in single bytes.
func byteByByte(a *arena) (string, error) {
	// A preface that takes longer than it may.
	c, err := net.DialTimeout("tcp", a.srv.grpc(), callTimeout)
	if err != nil {
		return "", err
	}
	defer c.Close()
	start := time.Now()
	for i := 0; err == nil && time.Since(start) < 20*time.Second; i++ {
		_, err = c.Write([]byte{preface[i%len(preface)]})
		time.Sleep(time.Second)
	}
	if err == nil {
		return "", errors.New("a preface may take 20 s")
	}
	closed := time.Since(start)
	// A connection with patience: every byte on its own, but in time.
	d, err := a.connect(manners{dial: func(addr string) (net.Conn, error) {
		c, err := net.DialTimeout("tcp", addr, callTimeout)
		return trickle{c}, err
	}})
	if err != nil {
		return "", fmt.Errorf("in single bytes: %w", err)
	}
	defer d.close()
	if err := must(d.query("types")); err != nil {
		return "", err
	}
	// A request that begins and does not go on. Others are served meanwhile.
	start = time.Now()
	if _, err := d.cc.NewStream(context.Background(), &grpc.StreamDesc{ClientStreams: true}, "/Request/request"); err != nil {
		return "", err
	}
	for time.Since(start) < 20*time.Second && d.gone(500*time.Millisecond) != nil {
		if err := healthy(d); err != nil && time.Since(start) < 14*time.Second {
			return "", err
		}
	}
	return fmt.Sprintf("a preface is closed after %.1f s, a request after %.1f s", closed.Seconds(), time.Since(start).Seconds()), d.gone(0)
}

type trickle struct{ net.Conn }

func (t trickle) Write(b []byte) (int, error) {
	for i := range b {
		if _, err := t.Conn.Write(b[i : i+1]); err != nil {
			return i, err
		}
		time.Sleep(200 * time.Microsecond)
	}
	return len(b), nil
}

func othersInstances(a *arena) (string, error) {
	owner, err := a.connect(manners{})
	if err != nil {
		return "", err
	}
	defer owner.close()
	c, err := a.connect(manners{})
	if err != nil {
		return "", err
	}
	defer c.close()
	own := []byte(`[{"ip":"10.0.0.1","port":80},{"ip":"10.0.0.2","port":80}]`)
	errs := []error{must(owner.batch("others", own))}
	there := func(after string, want int) {
		q, err := owner.query("others")
		if err != nil || len(q.hosts()) != want {
			errs = append(errs, fmt.Errorf("after %s: %v %v", after, q, err))
		}
	}
	for _, i := range []any{inst("10.0.0.1", 80), inst("10.0.0.2", 80).with("instanceId", "10.0.0.2#80#DEFAULT#DEFAULT_GROUP@@others"), nil} {
		errs = append(errs, must(c.deregister("others", i)))
		there("a deregistration by another", 2)
	}
	errs = append(errs, must(c.batch("others", []byte("[]"))))
	there("another's empty batch", 2)
	for _, form := range []string{"&ephemeral=true", "", "&ephemeral=false"} {
		if status, _, err := a.raw("DELETE", "/nacos/v1/ns/instance?serviceName=others&ip=10.0.0.1&port=80"+form, nil, nil); err != nil || status != 200 {
			errs = append(errs, fmt.Errorf("DELETE over HTTP: %d %v", status, err))
		}
		there("DELETE over HTTP", 2)
	}
	// The same address registered by another, and withdrawn: the owner's is
	// there again, and was there all the time.
	errs = append(errs, must(c.batch("others", own)))
	there("the same registered by another", 2)
	c.close()
	for range 20 {
		there("the end of the other", 2)
		time.Sleep(10 * time.Millisecond)
	}
	return "the owner's instances stay", errors.Join(errs...)
}
