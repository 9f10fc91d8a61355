package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"syscall"
)

// Path is where a node has the native API.
const Path = "/starling/v1"

// DefaultPort is where a node has HTTP, unless told otherwise.
const DefaultPort = 8848

// maxAnswer bounds what is read of an answer: the hashes of two million
// services fit.
const maxAnswer = 512 << 20

// A Client asks one node. Its methods may be called from any goroutine; they
// return an [*Error] for everything that goes wrong.
type Client struct {
	server string
	http   *http.Client
}

// NewClient makes a client of the node at HOST[:PORT]. The host may be an IPv6
// address, with a port in brackets.
func NewClient(server string) (*Client, error) {
	host, port, err := SplitServer(server)
	if err != nil {
		return nil, err
	}
	return &Client{server: JoinAddress(host, port), http: &http.Client{
		// A redirect leads away from the node that was asked.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Server is the host:port of the node.
func (c *Client) Server() string { return c.server }

// SplitServer reads HOST[:PORT].
func SplitServer(server string) (host string, port int, err error) {
	host, port = server, DefaultPort
	if a, err := netip.ParseAddr(strings.Trim(server, "[]")); err == nil {
		return a.String(), port, nil
	}
	if strings.Contains(server, "/") { // a URL, most often
		return "", 0, fmt.Errorf("%q is not HOST or HOST:PORT", server)
	}
	if h, p, err := net.SplitHostPort(server); err == nil {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return "", 0, fmt.Errorf("%q: the port must be a number from 1 to 65535", server)
		}
		host, port = h, int(n)
	}
	if host == "" || strings.ContainsAny(host, " \t?#@%[]") || strings.Contains(host, ":") && !isAddr(host) {
		return "", 0, fmt.Errorf("%q is not HOST or HOST:PORT", server)
	}
	return host, port, nil
}

func isAddr(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}

// JoinAddress is net.JoinHostPort with a number.
func JoinAddress(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// Ready asks whether the node takes clients; if not, the error has
// [CodeNotReady] and says what it waits for.
func (c *Client) Ready(ctx context.Context) error { return c.probe(ctx, "readyz", "ready") }

// Alive asks whether the process of the node answers.
func (c *Client) Alive(ctx context.Context) error { return c.probe(ctx, "livez", "alive") }

// probe asks what is not below [Path], as load balancers do.
func (c *Client) probe(ctx context.Context, name, status string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, (&url.URL{Scheme: "http", Host: c.server, Path: "/" + name}).String(), nil)
	if err != nil {
		return err
	}
	answer, err := send[struct{ Status string }](c, r)
	if err == nil && answer.Status != status {
		err = &Error{Status: http.StatusOK, Code: CodeNotANode, Message: fmt.Sprintf("%s answers /%s, but not as a node of Starling does", c.server, name),
			Hint: "is it the HTTP port of a Starling node?"}
	}
	return err
}

// Members tells the members of the cluster as the node sees them.
func (c *Client) Members(ctx context.Context) (*Members, error) {
	return get[Members](ctx, c, "/members", nil)
}

// Cluster tells the state of replication as the node sees it.
func (c *Client) Cluster(ctx context.Context) (*Cluster, error) {
	return get[Cluster](ctx, c, "/cluster", nil)
}

// EndSelfPreservation lets leases run again on the node, though too many
// members are silent. It does nothing if they do.
func (c *Client) EndSelfPreservation(ctx context.Context) (*SelfPreservation, error) {
	return post[SelfPreservation](ctx, c, "/self-preservation/end", struct{}{})
}

// Hashes tells what every service looks like on the node with the given id,
// which the asked node asks in turn; "" is the asked node itself.
func (c *Client) Hashes(ctx context.Context, node string) (*Hashes, error) {
	q := url.Values{}
	if node != "" {
		q.Set("node", node)
	}
	return get[Hashes](ctx, c, "/hashes", q)
}

// History tells the past of a service, and only of the instance ip:port if that
// is not "". Namespace and group may be "", for the defaults of Nacos.
func (c *Client) History(ctx context.Context, s Service, instance string) (*History, error) {
	q := url.Values{"service": {s.Name}}
	for k, v := range map[string]string{"namespace": s.Namespace, "group": s.Group, "instance": instance} {
		if v != "" {
			q.Set(k, v)
		}
	}
	return get[History](ctx, c, "/history", q)
}

// StartDrain begins to drain the node; if that is under way already it only
// tells how far it is. A dry run only tells the plan.
func (c *Client) StartDrain(ctx context.Context, dryRun bool) (*Drain, error) {
	return post[Drain](ctx, c, "/drain", DrainRequest{DryRun: &dryRun})
}

// Drain tells how far the node is with draining.
func (c *Client) Drain(ctx context.Context) (*Drain, error) { return get[Drain](ctx, c, "/drain", nil) }

// url escapes the zone of an IPv6 address too.
func (c *Client) url(path string, q url.Values) string {
	return (&url.URL{Scheme: "http", Host: c.server, Path: Path + path, RawQuery: q.Encode()}).String()
}

func get[T any](ctx context.Context, c *Client, path string, q url.Values) (*T, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url(path, q), nil)
	if err != nil {
		return nil, err
	}
	return send[T](c, r)
}

func post[T any](ctx context.Context, c *Client, path string, body any) (*T, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url(path, nil), bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	return send[T](c, r)
}

func send[T any](c *Client, r *http.Request) (*T, error) {
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, c.unreachable(r.Context(), err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, c.unreachable(r.Context(), err)
	case len(b) > maxAnswer:
		return nil, &Error{Status: resp.StatusCode, Code: CodeUnreadable, Message: c.server + " answers with more than can be read"}
	case resp.StatusCode != http.StatusOK:
		return nil, c.refusal(resp.StatusCode, b)
	}
	answer := new(T)
	if err := json.Unmarshal(b, answer); err != nil {
		return nil, &Error{Status: resp.StatusCode, Code: CodeUnreadable, Message: fmt.Sprintf("the answer of %s cannot be read: %v", c.server, err),
			Hint: "is it the HTTP port of a Starling node, of a release like this one?"}
	}
	return answer, nil
}

// refusal reads an answer that is no success.
func (c *Client) refusal(status int, body []byte) error {
	var e struct{ Error *Error }
	// Other servers say "error" too, but not with this shape below it.
	if err := json.Unmarshal(body, &e); err != nil || e.Error == nil || e.Error.Code == "" {
		return &Error{Status: status, Code: CodeNotANode, Message: fmt.Sprintf("%s answers with HTTP status %d and does not know the native API of Starling", c.server, status),
			Hint: "is it the HTTP port of a Starling node, of this release or a later one?"}
	}
	e.Error.Status = status
	return e.Error
}

func (c *Client) unreachable(ctx context.Context, err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // without the URL
	}
	e := &Error{Code: CodeCannotReach, Message: fmt.Sprintf("%s cannot be asked: %v", c.server, err)}
	var timeout interface{ Timeout() bool }
	switch {
	case strings.Contains(err.Error(), "readLoopPeekFailLocked"), strings.Contains(err.Error(), "malformed HTTP response"):
		e.Message, e.Hint = c.server+" does not speak HTTP/1.1", "is this the HTTP port of the node? gRPC has that + 1000"
	case errors.Is(err, syscall.ECONNREFUSED):
		e.Message, e.Hint = c.server+" refuses the connection", "is the node running, and is this its HTTP port?"
	case context.Cause(ctx) != nil && !errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		e.Message = fmt.Sprintf("%s was asked in vain: %v", c.server, context.Cause(ctx))
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		e.Message, e.Hint = c.server+" does not answer in time", "is it paused, overloaded or behind a firewall?"
	}
	return e
}
