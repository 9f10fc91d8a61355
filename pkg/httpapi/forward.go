package httpapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/starling-registry/starling/pkg/nacos"
	starlingv1 "github.com/starling-registry/starling/proto"
)

// A Router finds the node that keeps an HTTP client, and reaches it.
type Router struct {
	// Owner names the node that keeps the client of that id (see
	// [nacos.BeatClientID]); self: it is this one. It must not block.
	Owner func(client string) (node string, self bool)
	// Forward has a request carried out by [Server.Forwarded] of another node.
	Forward func(ctx context.Context, node string, req *starlingv1.ForwardRequest) (*starlingv1.ForwardResponse, error)
}

const (
	// forwardLimit bounds what a client waits for another node: SDKs give up
	// after 3 s and more.
	forwardLimit = 3 * time.Second
	// forwardTry bounds one attempt. A node that is silent is known as such
	// before forwardLimit is over, and then another one owns the client.
	forwardTry = time.Second
	// forwardAgain is the time between two.
	forwardAgain = 100 * time.Millisecond
)

// forwardedKey marks the context of a request that another node has sent: it
// is carried out here, whoever owns the client by now (one hop, never two).
type forwardedKey struct{}

func isForwarded(r *http.Request) bool { return r.Context().Value(forwardedKey{}) != nil }

// atOwner carries out a write of an HTTP client at the node that keeps the
// client: here, or there by a request that says the same. If that node cannot
// be reached, it tries again, because in a moment another one may keep the
// client, or this one.
func (s *Server) atOwner(c *call, ip string, port int, here func() error) error {
	if s.opts.Router == nil || isForwarded(c.r) {
		return here()
	}
	client := nacos.BeatClientID(ip, port)
	owner, self := s.opts.Router.Owner(client)
	if self {
		return here()
	}
	r := c.r
	// The path as it was matched: a client may escape more of it than it must.
	// A header may have any bytes, a message between nodes has UTF-8.
	req := &starlingv1.ForwardRequest{Method: r.Method, Path: strings.TrimPrefix(r.URL.Path, s.opts.ContextPath), Query: c.encode(),
		Remote: r.RemoteAddr, UserAgent: strings.ToValidUTF8(r.UserAgent(), "\uFFFD"), Accept: strings.ToValidUTF8(r.Header.Get("Accept"), "\uFFFD")}
	ctx, cancel := context.WithTimeout(r.Context(), forwardLimit)
	defer cancel()
	for {
		answer, err := s.forward(ctx, owner, req)
		if err == nil {
			s.metrics.forwarded.Inc()
			writeAnswer(c.w, answer)
			return nil
		}
		failed := owner
		if owner, self = s.opts.Router.Owner(client); self {
			s.metrics.tookOver.Inc()
			s.log.Info("the node that keeps an HTTP client cannot be reached and does not keep it any more; its request is carried out here",
				zap.String("client", client), zap.String("node", failed), zap.Error(err))
			return here()
		}
		select {
		case <-ctx.Done():
			s.metrics.unreachable.Inc()
			s.log.Warn("the node that keeps an HTTP client cannot be reached", zap.String("client", client), zap.String("node", failed), zap.Error(err))
			return errUnreachable(failed)
		case <-time.After(forwardAgain):
		}
	}
}

func (s *Server) forward(ctx context.Context, node string, req *starlingv1.ForwardRequest) (*starlingv1.ForwardResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, forwardTry)
	defer cancel()
	return s.opts.Router.Forward(ctx, node, req)
}

// soonLimit bounds what a write waits for replication, which takes milliseconds
// unless a machine is very busy.
const soonLimit = time.Second

// soon reports whether something is there, or comes while replication may take.
// Clients go from node to node: what one has just registered over another node
// must not be unknown to the next thing that it says.
func (s *Server) soon(ctx context.Context, there func() bool) bool {
	if there() {
		return true
	}
	if s.opts.Router == nil { // nothing comes from other nodes
		return false
	}
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	late := time.NewTimer(soonLimit)
	defer late.Stop()
	for {
		select {
		case <-look.C:
			if there() {
				return true
			}
		case <-late.C:
			return there()
		case <-ctx.Done():
			return false
		}
	}
}

// encode writes parameters as a query that readParams reads as the same.
func (p params) encode() string {
	v := make(url.Values, len(p))
	for key, value := range p {
		v.Set(key, value)
	}
	return v.Encode()
}

func writeAnswer(w http.ResponseWriter, a *starlingv1.ForwardResponse) {
	w.Header()["Content-Type"] = nil // net/http would guess one
	if a.ContentType != "" {
		w.Header().Set("Content-Type", a.ContentType)
		w.Header().Set("X-Content-Type-Options", "nosniff") // a text may repeat what came in
	}
	w.WriteHeader(int(a.Status))
	_, _ = w.Write(a.Body)
}

// Forwarded carries out a request that another node has sent here, an encoded
// ForwardRequest, and returns the encoded ForwardResponse. It never forwards,
// and it does not ask whether this node is ready: the other one takes it for
// the owner, and two that wait for each other help nobody. An error means that
// nothing was carried out. The body is only read.
func (s *Server) Forwarded(ctx context.Context, body []byte) ([]byte, error) {
	var req starlingv1.ForwardRequest
	if err := proto.Unmarshal(body, &req); err != nil {
		return nil, fmt.Errorf("forwarded request: %w", err)
	}
	if !s.forwardable[req.Method+" "+req.Path] {
		return nil, fmt.Errorf("forwarded request: %s %s is not for forwarding", req.Method, clip(req.Path))
	}
	ctx = context.WithValue(ctx, forwardedKey{}, true)
	r, err := http.NewRequestWithContext(ctx, req.Method, "/", bytes.NewReader(req.Body))
	if err != nil {
		return nil, fmt.Errorf("forwarded request: %w", err)
	}
	r.URL = &url.URL{Path: s.opts.ContextPath + req.Path, RawQuery: req.Query}
	r.RequestURI = r.URL.RequestURI()
	r.RemoteAddr = req.Remote
	for name, value := range map[string]string{"Content-Type": req.ContentType, "User-Agent": req.UserAgent, "Accept": req.Accept} {
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	w := &answerWriter{header: http.Header{}}
	s.ServeHTTP(w, r)
	if w.status == 0 {
		return nil, errors.New("forwarded request: no answer")
	}
	return proto.Marshal(&starlingv1.ForwardResponse{Status: uint32(w.status), ContentType: w.header.Get("Content-Type"), Body: w.body.Bytes()})
}

// An answerWriter keeps an answer.
type answerWriter struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (w *answerWriter) Header() http.Header { return w.header }

func (w *answerWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
}

func (w *answerWriter) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(b)
}
