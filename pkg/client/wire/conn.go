package wire

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/starling-registry/starling/pkg/nacos"
)

// grpcPortOffset is what the gRPC port of a Nacos server lies above its main
// port.
const grpcPortOffset = 1000

// Version is how the client introduces itself. Servers of Nacos parse the form
// Name:vX.Y.Z.
const Version = "Starling-Go-Client:v0.1.0"

// Options of a connection. Only Addr must be set.
type Options struct {
	// Addr is host:port of the server's main (HTTP) port; gRPC is found
	// 1000 above it, unless GRPCPort is set.
	Addr     string
	GRPCPort int

	// TLS encrypts, where it is not nil; without a ServerName the host of Addr
	// must be in the server's certificate.
	TLS *tls.Config

	// Version, Tenant and Labels introduce the client; they change nothing
	// that a naming server does. Labels are added to the usual ones.
	Version string // default Version
	Tenant  string // a namespace
	Labels  map[string]string
	// Abilities are what the client understands beyond the usual, as
	// "fuzzyWatch"; see [Conn.Has] for the server's.
	Abilities map[string]bool

	// Headers go with every request: credentials, app name.
	Headers map[string]string

	// Push takes a message of the server that is not about the connection
	// itself: NotifySubscriberRequest and types that this package does not
	// know. It is called on the goroutine that reads the stream, for one
	// message at a time and in their order; what it needs, later messages and
	// the acknowledgement wait for, and a server closes a connection that
	// acknowledges nothing for long. The message is acknowledged when it
	// returns, as a success if with nil, and with [ErrNoHandler] as something
	// that the client does not know. The payload and its bytes belong to it. It
	// must not call Close. Nil: messages are acknowledged and dropped.
	Push func(*nacos.Payload) error
	// Pushed is called on the same goroutine after the acknowledgement of what
	// Push took has been sent, or could not be.
	Pushed func()
	// Reset says that the server asks to connect to another one, or (host
	// empty) to any other. Port is that server's main port. It is called as
	// Pushed is; the connection goes on until it is closed by either side.
	Reset func(host string, port int)

	// HealthCheckAfter is the silence after which the server is asked
	// whether it still knows the connection; default 5s, must be below the
	// 20s after which servers ask.
	HealthCheckAfter time.Duration
	// HealthChecks is how many in a row must go unanswered to end the connection;
	// default 1. A refusal ends it at once.
	HealthChecks int
	// RequestTimeout bounds a request whose context has no deadline; default
	// 3s, as of other SDKs.
	RequestTimeout time.Duration
	// SetupTimeout is how long to wait for the server's word that it has
	// registered the connection; default 5s.
	SetupTimeout time.Duration

	// DialContext opens the transport; default by a net.Dialer. A wrapped
	// net.Conn costs gRPC a buffer of 32 KiB for each connection.
	DialContext func(ctx context.Context, addr string) (net.Conn, error)
	Logger      *slog.Logger // default: nothing is logged
}

func (o Options) withDefaults() (Options, error) {
	host, port, err := net.SplitHostPort(o.Addr)
	if err != nil {
		return o, fmt.Errorf("server address %q: %w", o.Addr, err)
	}
	if o.GRPCPort == 0 {
		main, err := strconv.ParseUint(port, 10, 16)
		if err != nil || main == 0 || main+grpcPortOffset > 65535 {
			return o, fmt.Errorf("server address %q: the port must be between 1 and %d", o.Addr, 65535-grpcPortOffset)
		}
		o.GRPCPort = int(main) + grpcPortOffset
	}
	o.Addr = net.JoinHostPort(host, strconv.Itoa(o.GRPCPort))
	o.Version = cmp.Or(o.Version, Version)
	o.HealthCheckAfter = cmp.Or(o.HealthCheckAfter, 5*time.Second)
	o.HealthChecks = max(o.HealthChecks, 1)
	o.RequestTimeout = cmp.Or(o.RequestTimeout, 3*time.Second)
	o.SetupTimeout = cmp.Or(o.SetupTimeout, 5*time.Second)
	if o.DialContext == nil {
		o.DialContext = func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, nil
}

var (
	// ErrClosed is the reason of a connection that was closed by [Conn.Close].
	ErrClosed = errors.New("connection closed by this side")
	// ErrNoHandler is what Options.Push says of a type that it does not know: the
	// server gets an ErrorResponse.
	ErrNoHandler = errors.New("no handler for this type of request")
)

// An Error is a refusal of the server.
type Error struct {
	Type       string // of the response; ErrorResponse or the request's own
	ResultCode int
	Code       int
	Message    string
}

func (e *Error) Error() string {
	return fmt.Sprintf("server refused: %s (code %d, %s)", e.Message, e.Code, e.Type)
}

// A Conn is a connection that the server has registered. Its methods may be
// called from any goroutine.
type Conn struct {
	// constant
	opts   Options
	cc     *grpc.ClientConn
	stream grpc.ClientStream
	id     string
	ctx    context.Context // ends with the connection; its cause says why
	end    context.CancelCauseFunc

	acked     chan struct{} // closed when the server says that it has set up the connection
	ackedOnce sync.Once
	abilities map[string]bool        // of the server; constant when acked is closed
	local     atomic.Pointer[string] // this side's address, once the transport stands
	active    atomic.Int64           // time of the last word from the server, nanoseconds since start
	start     time.Time
	suspect   chan struct{} // a request was left unanswered; of capacity 1

	sendMu sync.Mutex // one sender on the stream at a time; held while it has no credit

	wg sync.WaitGroup
}

// Dial connects and returns when requests can be made. The context bounds the
// dialling only. The error is an [Error] if the server has refused.
func Dial(ctx context.Context, opts Options) (*Conn, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Conn{opts: opts, start: time.Now(), acked: make(chan struct{}), suspect: make(chan struct{}, 1)}
	c.ctx, c.end = context.WithCancelCause(context.Background())
	if err := c.connect(ctx); err != nil {
		err = fmt.Errorf("connect to %s: %w", opts.Addr, err)
		c.shutDown(err)
		return nil, err
	}
	return c, nil
}

func (c *Conn) connect(ctx context.Context) error {
	var dialled atomic.Bool
	var err error
	security := insecure.NewCredentials()
	if c.opts.TLS != nil {
		security = credentials.NewTLS(c.opts.TLS)
	}
	c.cc, err = grpc.NewClient("passthrough:///"+c.opts.Addr,
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			if dialled.Swap(true) {
				return nil, errors.New("the connection has ended")
			}
			transport, err := c.opts.DialContext(ctx, addr)
			if err == nil {
				if host, _, err := net.SplitHostPort(transport.LocalAddr().String()); err == nil {
					c.local.Store(&host)
				}
			}
			return transport, err
		}),
		grpc.WithTransportCredentials(security),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(nacos.Codec{}), grpc.MaxCallRecvMsgSize(64<<20)),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithIdleTimeout(0), grpc.WithNoProxy(),
	)
	if err != nil {
		return err
	}

	var check struct {
		ConnectionID string `json:"connectionId"`
		Negotiates   bool   `json:"supportAbilityNegotiation"`
	}
	answer, err := c.request(ctx, nacos.TypeServerCheckRequest, c.opts.Headers, []byte(`{"headers":{},"module":"internal"}`))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(answer.Body, &check); err != nil {
		return fmt.Errorf("answer to the server check: %w", err)
	}
	c.id = check.ConnectionID

	c.stream, err = c.cc.NewStream(c.ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/"+nacos.BiStreamService+"/requestBiStream")
	if err != nil {
		return err
	}
	c.wg.Go(c.receive)
	if err := c.send(&nacos.Payload{Type: nacos.TypeConnectionSetupRequest, Headers: c.opts.Headers, Body: c.setup()}); err != nil {
		return err
	}
	if err := c.waitSetup(ctx, check.Negotiates); err != nil {
		return err
	}
	c.wg.Go(c.healthLoop)
	return nil
}

func (c *Conn) setup() []byte {
	labels := map[string]string{"source": "sdk", "module": "naming"}
	maps.Copy(labels, c.opts.Labels)
	abilities := map[string]bool{}
	maps.Copy(abilities, c.opts.Abilities)
	// The ability table asks for a SetupAckRequest, be it an empty one.
	body, err := json.Marshal(map[string]any{
		"headers": struct{}{}, "clientVersion": c.opts.Version, "tenant": c.opts.Tenant, "labels": labels, "abilityTable": abilities, "module": "internal",
	})
	if err != nil {
		panic("BUG: strings cannot be encoded: " + err.Error())
	}
	return body
}

// waitSetup waits until the server has registered the connection. One that
// does not negotiate says nothing: it is asked until it knows us.
func (c *Conn) waitSetup(ctx context.Context, negotiates bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.opts.SetupTimeout, errors.New("the server has not confirmed the connection"))
	defer cancel()
	poll := make(<-chan time.Time)
	if !negotiates {
		t := time.NewTicker(50 * time.Millisecond)
		defer t.Stop()
		poll = t.C
	}
	for {
		select {
		case <-c.acked:
			return nil
		case <-c.ctx.Done():
			return c.Err()
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-poll:
			if _, err := c.request(ctx, nacos.TypeHealthCheckRequest, c.opts.Headers, healthCheck); err == nil {
				return nil
			}
		}
	}
}

// ID is the server's name for the connection.
func (c *Conn) ID() string { return c.id }

// LocalIP is this side's address as the transport has it, "" if it has none.
func (c *Conn) LocalIP() string {
	if ip := c.local.Load(); ip != nil {
		return *ip
	}
	return ""
}

// Has reports whether the server has announced an ability, as "fuzzyWatch" or
// "supportPersistentInstanceByGrpc". Servers before 2.3 announce none.
func (c *Conn) Has(ability string) bool {
	select {
	case <-c.acked:
		return c.abilities[ability]
	default:
		return false
	}
}

// Done is closed when the connection has ended; Err then says why.
func (c *Conn) Done() <-chan struct{} { return c.ctx.Done() }

// Err is the reason why the connection has ended, [ErrClosed] after Close, and
// nil while it lives.
func (c *Conn) Err() error { return context.Cause(c.ctx) }

// Close ends the connection and with it all that it has published and
// subscribed to. It returns when no callback runs any more, and must not be
// called by one.
func (c *Conn) Close() { c.shutDown(ErrClosed) }

func (c *Conn) shutDown(why error) {
	c.end(why)
	if c.cc != nil {
		c.cc.Close()
	}
	c.wg.Wait()
}

// fail ends the connection for a reason that was found by one of its own
// goroutines, which Close will wait for.
func (c *Conn) fail(why error) {
	if c.ctx.Err() != nil {
		return
	}
	c.opts.Logger.Info("connection ended", "server", c.opts.Addr, "connection", c.id, "reason", why)
	c.end(why)
	c.cc.Close()
}

// Request sends a request and returns the response. The error is an [Error]
// if the server has refused; then the connection goes on, unless the refusal
// says that the server does not know it. The body must not be changed before
// Request returns; the response and its bytes belong to the caller.
func (c *Conn) Request(ctx context.Context, typ string, body []byte) (*nacos.Payload, error) {
	return c.RequestWith(ctx, c.opts.Headers, typ, body)
}

// RequestWith is Request with these headers instead of those of the options.
func (c *Conn) RequestWith(ctx context.Context, headers map[string]string, typ string, body []byte) (*nacos.Payload, error) {
	p, err := c.request(ctx, typ, headers, body)
	if refused, ok := errors.AsType[*Error](err); ok && refused.Code == nacos.CodeUnregistered {
		c.fail(err)
	}
	return p, err
}

func (c *Conn) request(ctx context.Context, typ string, headers map[string]string, body []byte) (*nacos.Payload, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.opts.RequestTimeout)
		defer cancel()
	}
	begin := time.Since(c.start)
	answer := new(nacos.Payload)
	if err := c.cc.Invoke(ctx, "/"+nacos.RequestService+"/request", &nacos.Payload{Type: typ, ClientIP: c.LocalIP(), Headers: headers, Body: body}, answer); err != nil {
		if why := c.Err(); why != nil {
			err = why
		}
		if status.Code(err) == codes.DeadlineExceeded {
			c.unanswered(begin)
		}
		return nil, fmt.Errorf("%s: %w", typ, err)
	}
	c.touch()
	if err := refusal(answer); err != nil {
		return nil, fmt.Errorf("%s: %w", typ, err)
	}
	return answer, nil
}

// refusal is the error that a response stands for.
func refusal(p *nacos.Payload) error {
	// A list of hosts is not decoded for its head; servers write it first.
	if p.Type != nacos.TypeErrorResponse && bytes.HasPrefix(p.Body, []byte(`{"resultCode":200,`)) {
		return nil
	}
	var r struct {
		ResultCode int    `json:"resultCode"`
		ErrorCode  int    `json:"errorCode"`
		Message    string `json:"message"`
	}
	if err := json.Unmarshal(p.Body, &r); err != nil {
		return fmt.Errorf("response %s cannot be decoded: %w", p.Type, err)
	}
	if p.Type != nacos.TypeErrorResponse && r.ResultCode == nacos.ResultOK {
		return nil
	}
	return &Error{p.Type, r.ResultCode, r.ErrorCode, r.Message}
}

// unanswered has the server asked soon, if a request has waited for it for as long
// as a health check does, and it has not said anything since.
func (c *Conn) unanswered(begin time.Duration) {
	if c.active.Load() > int64(begin) || time.Since(c.start)-begin < c.opts.RequestTimeout {
		return
	}
	select {
	case c.suspect <- struct{}{}:
	default:
	}
}

func (c *Conn) touch() { c.active.Store(int64(time.Since(c.start))) }

func (c *Conn) send(p *nacos.Payload) error {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	return c.stream.SendMsg(p)
}

// receive reads the stream until it ends, and with it the connection.
func (c *Conn) receive() {
	for {
		p := new(nacos.Payload)
		if err := c.stream.RecvMsg(p); err != nil {
			c.fail(fmt.Errorf("stream of %s ended: %w", c.opts.Addr, err))
			return
		}
		c.touch()
		id := requestID(p.Body)
		var err error
		var then func() // after the acknowledgement
		switch p.Type {
		case nacos.TypeSetupAckRequest: // is not answered
			c.ackedOnce.Do(func() {
				var ack struct {
					Abilities map[string]bool `json:"abilityTable"`
				}
				if err := json.Unmarshal(p.Body, &ack); err != nil {
					c.opts.Logger.Debug("abilities of the server cannot be decoded", "server", c.opts.Addr, "error", err)
				}
				c.abilities = ack.Abilities
				close(c.acked)
			})
			continue
		case nacos.TypeClientDetectionRequest:
		case nacos.TypeConnectResetRequest:
			if c.opts.Reset != nil {
				var to struct {
					IP   string `json:"serverIp"`
					Port string `json:"serverPort"`
				}
				err = json.Unmarshal(p.Body, &to)
				if err == nil {
					port, _ := strconv.Atoi(to.Port) // none: 0
					then = func() { c.opts.Reset(to.IP, port) }
				}
			}
		default:
			if !strings.HasSuffix(p.Type, "Request") {
				c.opts.Logger.Debug("ignored on the stream", "type", p.Type)
				continue
			}
			if c.opts.Push != nil {
				err = c.opts.Push(p)
			}
			then = c.opts.Pushed
		}
		err = c.send(acknowledgement(p.Type, id, err))
		if then != nil {
			then()
		}
		if err != nil {
			c.fail(fmt.Errorf("acknowledge %s: %w", p.Type, err))
			return
		}
	}
}

// acknowledgement answers a message of the server. The server finds the
// message by its id alone.
func acknowledgement(typ, id string, failed error) *nacos.Payload {
	b := append(make([]byte, 0, 80+len(id)), `{"resultCode":200,"errorCode":0`...)
	answer := strings.TrimSuffix(typ, "Request") + "Response"
	switch {
	case typ == nacos.TypeFuzzyWatchSyncRequest: // a server of Nacos knows no other answer to it
		answer = strings.TrimSuffix(nacos.TypeFuzzyWatchChangeNotifyRequest, "Request") + "Response"
	case errors.Is(failed, ErrNoHandler):
		answer = nacos.TypeErrorResponse
	}
	if failed != nil {
		b = append(b[:0], `{"resultCode":500,"errorCode":500,"message":`...)
		b = nacos.AppendString(b, failed.Error())
	}
	b = nacos.AppendString(append(b, `,"requestId":`...), id)
	b = strconv.AppendBool(append(b, `,"success":`...), failed == nil)
	return &nacos.Payload{Type: answer, Body: append(b, '}')}
}

// requestID finds the id of a message. It stands near the beginning, so that a
// long list of hosts need not be decoded for it; where it does not, or looks
// unusual, the decoder finds it.
func requestID(body []byte) string {
	const key = `"requestId":"`
	for _, head := range []string{`{`, `{"headers":{},`} {
		if rest, ok := bytes.CutPrefix(body, []byte(head+key)); ok {
			if n := bytes.IndexByte(rest, '"'); n >= 0 && bytes.IndexByte(rest[:n], '\\') < 0 {
				return string(rest[:n])
			}
		}
	}
	var m struct {
		RequestID string `json:"requestId"`
	}
	_ = json.Unmarshal(body, &m) // nothing else can be acknowledged
	return m.RequestID
}

var healthCheck = []byte(`{"headers":{},"module":"internal"}`)

// healthLoop asks the server after each silence, and when it has not answered
// somebody else (which counts as one question), whether it knows the connection,
// and ends the connection if it does not answer.
func (c *Conn) healthLoop() {
	t := time.NewTimer(c.opts.HealthCheckAfter)
	defer t.Stop()
	for {
		first, after := 1, c.opts.HealthCheckAfter
		select {
		case <-c.ctx.Done():
			return
		case <-t.C:
		case <-c.suspect:
			first, after = 2, c.opts.RequestTimeout
		}
		idle := time.Since(c.start) - time.Duration(c.active.Load())
		if idle < after { // it has said something meanwhile
			t.Reset(max(0, c.opts.HealthCheckAfter-idle))
			continue
		}
		for n := first; ; n++ {
			_, err := c.request(c.ctx, nacos.TypeHealthCheckRequest, c.opts.Headers, healthCheck)
			if err == nil {
				break
			}
			if _, refused := errors.AsType[*Error](err); refused || n >= c.opts.HealthChecks || c.ctx.Err() != nil {
				c.fail(fmt.Errorf("health check: %w", err))
				return
			}
		}
		t.Reset(c.opts.HealthCheckAfter)
	}
}
