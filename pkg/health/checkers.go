package health

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/starling-registry/starling/pkg/registry"
)

// An outcome is what one probe says of an instance (table of semantics §4.3).
type outcome uint8

const (
	passed   outcome = iota
	failed           // so many in a row, and it is unhealthy
	timedOut         // likewise; and the probe took all the time it had
	down             // it is unhealthy, at once
	own              // this node could not probe; that says nothing of the instance
)

var outcomes = [...]string{passed: "passed", failed: "failed", timedOut: "timeout", down: "down", own: "own_error"}

func (o outcome) String() string { return outcomes[o] }

// A result is an outcome with its reason, for people.
type result struct {
	outcome
	reason string
}

// checked reports whether instances of a cluster are ever probed.
func checked(c *registry.ClusterMeta) bool {
	switch c.Checker.Type {
	case registry.CheckTCP, registry.CheckHTTP, registry.CheckMySQL:
		return true
	}
	return false
}

// A dialFunc connects, within ctx.
type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// A checker makes probes. Each has its own connection, which is closed when
// the probe is over, in the usual way: a reset would leave nothing in TIME_WAIT
// here, but an error in the log of the instance for every probe.
type checker struct {
	dial dialFunc
	// timeout is for connecting; then so much again for the answer of an HTTP
	// server, and twice as much each for the login and the query of MySQL.
	timeout time.Duration
}

// longest is how long a probe may take.
func (c *checker) longest() time.Duration { return 5 * c.timeout }

// checkAddress is what is dialled for an instance. An ip may be the name of a
// host: that is resolved anew each time.
func checkAddress(k registry.InstanceKey, c *registry.ClusterMeta) string {
	host := k.IP
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
	}
	port := k.Port
	if !c.UseInstancePort {
		port = c.CheckPort
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// check makes one probe. It ends with ctx, at the latest after c.longest().
func (c *checker) check(ctx context.Context, k registry.InstanceKey, cm *registry.ClusterMeta) result {
	addr := checkAddress(k, cm)
	dialing, cancel := context.WithTimeout(ctx, c.timeout)
	conn, err := c.dial(dialing, "tcp", addr)
	cancel()
	if err != nil {
		return clean(ctx, c.of("connecting", c.timeout, err), cm)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	r := result{passed, "connected"}
	switch cm.Checker.Type {
	case registry.CheckHTTP:
		r = c.http(conn, addr, &cm.Checker)
	case registry.CheckMySQL:
		r = c.mysql(conn, addr, &cm.Checker)
	}
	return clean(ctx, r, cm)
}

// maxReason bounds what is written and sent of a reason, in bytes. Some of it
// may be the server's own words.
const maxReason = 200

// clean makes a result fit to be passed on.
func clean(ctx context.Context, r result, cm *registry.ClusterMeta) result {
	if ctx.Err() != nil { // not the server's fault
		r.outcome = own
	}
	text := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToLower(cm.Checker.Type)+": "+strings.ToValidUTF8(r.reason, "?"))
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "")
	}
	r.reason = text
	return r
}

// of is what an error of the network says.
func (c *checker) of(doing string, limit time.Duration, err error) result {
	if errors.Is(err, syscall.ECONNREFUSED) {
		return result{down, "connection refused"}
	}
	for _, e := range [...]syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL} {
		if errors.Is(err, e) {
			return result{own, e.Error()}
		}
	}
	if timeout(err) {
		return result{timedOut, fmt.Sprintf("%s took longer than %v", doing, limit)}
	}
	return result{failed, doing + ": " + rootText(err)}
}

func timeout(err error) bool {
	if t, ok := errors.AsType[net.Error](err); ok && t.Timeout() {
		return true
	}
	return errors.Is(err, context.DeadlineExceeded)
}

// rootText leaves out addresses, the ports of which differ each time.
func rootText(err error) string {
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return e.Error()
	}
	if e, ok := errors.AsType[*net.DNSError](err); ok {
		return e.Err
	}
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}

// maxHead bounds what is read of an HTTP answer. Its body is never read.
const maxHead = 64 << 10

// http asks for one page. Whatever the settings say, the request goes to the
// instance, and nothing in them ends a line of it. Redirects are not followed.
func (c *checker) http(conn net.Conn, addr string, ch *registry.Checker) result {
	req, err := request(addr, ch)
	if err != nil {
		return result{failed, "path: " + rootText(err)}
	}
	conn.SetDeadline(time.Now().Add(c.timeout))
	if err := req.Write(conn); err != nil {
		return c.of("asking", c.timeout, err)
	}
	from := &noting{Reader: conn}
	head := bufio.NewReader(io.LimitReader(from, maxHead))
	for range 8 {
		resp, err := http.ReadResponse(head, req)
		if err != nil {
			if from.err != nil {
				err = from.err // half a line is "malformed", whyever the rest is missing
			}
			return c.of("the answer", c.timeout, err)
		}
		code := resp.StatusCode
		if code < 200 && code != http.StatusSwitchingProtocols {
			continue // interim; one without a body
		}
		expected := ch.ExpectedCode
		if expected == 0 {
			expected = http.StatusOK
		}
		switch code {
		case expected:
			return result{passed, fmt.Sprintf("status %d", code)}
		case http.StatusServiceUnavailable, http.StatusFound: // overloaded, or starting
			return result{failed, fmt.Sprintf("status %d instead of %d", code, expected)}
		}
		return result{down, fmt.Sprintf("status %d instead of %d", code, expected)}
	}
	return result{failed, "no final answer"}
}

// noting keeps the error that ended a stream.
type noting struct {
	io.Reader
	err error
}

func (n *noting) Read(b []byte) (int, error) {
	got, err := n.Reader.Read(b)
	if err != nil {
		n.err = err
	}
	return got, err
}

// request makes the request of a check. Request.Write leaves out headers whose
// names are none, and makes spaces of line ends in values.
func request(addr string, ch *registry.Checker) (*http.Request, error) {
	path := ch.Path
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	u, err := url.ParseRequestURI(path) // refuses control characters
	if err != nil {
		return nil, err
	}
	u.RawQuery = strings.ReplaceAll(u.RawQuery, " ", "%20")
	u.Scheme, u.Host = "http", addr
	req := &http.Request{Method: http.MethodGet, URL: u, Header: http.Header{"User-Agent": {"Starling-Health-Check"}}, Close: true}
	for line := range strings.SplitSeq(ch.Headers, "|") {
		name, value, found := strings.Cut(line, ":")
		name, value = http.CanonicalHeaderKey(strings.TrimSpace(name)), strings.TrimSpace(value)
		switch {
		case !found || name == "":
		case name == "Host":
			if !strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '/' }) {
				req.Host = value
			}
		case name == "User-Agent":
			req.Header.Set(name, value)
		default:
			req.Header.Add(name, value)
		}
	}
	return req, nil
}
