package grpcapi

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/push"
	"github.com/starling-registry/starling/pkg/registry"
)

// A conn is one transport of an SDK.
type conn struct {
	// constant
	server     *Server
	id         string
	host       string // the remote address without the port
	port       int    // of the remote address; 0: it has none
	transport  net.Conn
	refused    error         // why it is not served; it is closed soon
	registered chan struct{} // closed by setup
	closed     chan struct{} // closed when it is unregistered
	setupTimer *time.Timer
	receivers  chan struct{} // one entry for each request that is being received

	lastActive atomic.Int64 // nanoseconds since server.start
	sendBegan  atomic.Int64 // likewise, of the message that is being sent; 0: none
	detecting  atomic.Bool
	app        atomic.Pointer[string] // name of the application, as subscriptions say; nil: none has

	// constant after setup
	client        *registry.Client
	subscriber    *push.Subscriber
	clientVersion string
	clientIP      string // as the client says
	labelled      string // the name of the application, among the labels; "": not there

	mu         sync.Mutex
	stream     grpc.ServerStream // the one that was set up; nil before
	ended      bool
	outbox     []*nacos.Payload // besides pushes: setup ack, detection, reset; at most one of each
	sending    bool             // there is a sender
	resetTimer *time.Timer
}

// transportInfo carries the accepted connection from the handshake to
// TagConn. gRPC has no other way to close one transport, and wrapping the
// connection in the listener would cost each of them a 32 KiB read buffer
// (cluster E1).
type transportInfo struct {
	credentials.CommonAuthInfo
	conn net.Conn
}

func (transportInfo) AuthType() string { return "insecure" }

type transportCredentials struct {
	credentials.TransportCredentials
}

func newTransportCredentials() credentials.TransportCredentials {
	return transportCredentials{insecure.NewCredentials()}
}

func (t transportCredentials) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return c, transportInfo{credentials.CommonAuthInfo{SecurityLevel: credentials.NoSecurity}, c}, nil
}

func (t transportCredentials) Clone() credentials.TransportCredentials { return t }

// connTagger makes a conn for each transport and ends it with it.
type connTagger struct{ server *Server }

type connKey struct{}

func connOf(ctx context.Context) *conn { return ctx.Value(connKey{}).(*conn) }

func (t connTagger) TagConn(ctx context.Context, info *stats.ConnTagInfo) context.Context {
	c := &conn{server: t.server, id: t.server.newID(info.RemoteAddr), host: hostOf(info.RemoteAddr), port: portOf(info.RemoteAddr), registered: make(chan struct{}), closed: make(chan struct{}), receivers: make(chan struct{}, maxReceiving)}
	if p, ok := peer.FromContext(ctx); ok {
		if ti, ok := p.AuthInfo.(transportInfo); ok {
			c.transport = ti.conn
		}
	}
	c.touch()
	// Whoever is refused hears why with the first answer, for which there is
	// a second; and nobody keeps a transport without setting it up.
	limit := t.server.opts.SetupTimeout
	if c.refused = t.server.admission.connected(c.host); c.refused != nil {
		t.server.refuse(c.refused)
		limit = time.Second
	}
	c.setupTimer = time.AfterFunc(limit, c.closeTransport)
	return context.WithValue(ctx, connKey{}, c)
}

func (t connTagger) HandleConn(ctx context.Context, s stats.ConnStats) {
	switch s.(type) {
	case *stats.ConnBegin:
		t.server.metrics.transports.Add(1)
	case *stats.ConnEnd:
		t.server.metrics.transports.Add(-1)
		c := connOf(ctx)
		c.setupTimer.Stop()
		if c.refused == nil {
			t.server.admission.disconnected(c.host)
		}
		t.server.opts.Awake()
		c.finish(registry.CauseConnectionLost, nil)
	}
}

func (connTagger) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }
func (connTagger) HandleRPC(context.Context, stats.RPCStats)                       {}

// newID makes a connection id in the form of Nacos, <millis>_<ip>_<port>. The
// milliseconds are never used twice: behind a proxy two connections may come
// from one address at the same time (cases C12).
func (s *Server) newID(remote net.Addr) string {
	now := time.Now().UnixMilli()
	for {
		last := s.lastMillis.Load()
		now = max(now, last+1)
		if s.lastMillis.CompareAndSwap(last, now) {
			break
		}
	}
	return strconv.FormatInt(now, 10) + "_" + hostOf(remote) + "_" + strconv.Itoa(portOf(remote))
}

// portOf is 0 for what is no host and port.
func portOf(a net.Addr) int {
	_, p, _ := net.SplitHostPort(a.String())
	port, _ := strconv.ParseUint(p, 10, 16)
	return int(port)
}

func (c *conn) touch() { c.lastActive.Store(int64(time.Since(c.server.start))) }

func (c *conn) idle() time.Duration {
	return time.Since(c.server.start) - time.Duration(c.lastActive.Load())
}

func (c *conn) isRegistered() bool {
	select {
	case <-c.closed:
		return false
	case <-c.registered:
		return true
	default:
		return false
	}
}

// stuck is for how long the sender has been waiting for credit.
func (c *conn) stuck() time.Duration {
	if began := c.sendBegan.Load(); began != 0 {
		return time.Since(c.server.start) - time.Duration(began)
	}
	return 0
}

// maxReceiving bounds the requests of a connection that are being received at
// the same time. The others wait with no more than their first 64 KiB: else one
// connection could make this process hold a thousand messages of 10 MiB by not
// sending their last byte. It does not bound how many are answered at once.
const maxReceiving = 16

// receive takes the one message of a unary call. A client that does not send
// it in time loses its connection.
func (c *conn) receive(stream grpc.ServerStream) (*nacos.Payload, error) {
	ctx := stream.Context()
	select {
	case c.receivers <- struct{}{}:
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	defer func() { <-c.receivers }()
	late := time.AfterFunc(c.server.opts.ReceiveTimeout, func() {
		c.server.log.Warn("a request did not arrive in time, its connection is closed", zap.String("connection", c.id), zap.Duration("after", c.server.opts.ReceiveTimeout))
		c.Drop(registry.CauseConnectionLost)
	})
	defer late.Stop()
	p := new(nacos.Payload)
	if err := stream.RecvMsg(p); err == io.EOF {
		return nil, status.Error(codes.Internal, "a call without a message")
	} else if err != nil {
		return nil, err
	}
	return p, nil
}

// waitRegistered waits for a setup that the request may have overtaken.
func (c *conn) waitRegistered(ctx context.Context, limit time.Duration) bool {
	if c.isRegistered() {
		return true
	}
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-c.registered:
	case <-c.closed:
	case <-t.C:
	case <-ctx.Done():
	}
	return c.isRegistered()
}

// setup registers the connection. A second setup changes nothing.
func (c *conn) setup(stream grpc.ServerStream, setup *nacos.ConnectionSetupRequest, clientIP string) {
	c.mu.Lock()
	if c.stream != nil || c.ended {
		c.mu.Unlock()
		return
	}
	c.setupTimer.Stop()
	c.stream = stream
	c.clientVersion, c.clientIP = clip(setup.ClientVersion), clip(strings.ToValidUTF8(clientIP, "\uFFFD"))
	if app, ok := setup.Labels["AppName"].(string); ok {
		c.labelled = clip(app)
	}
	c.client = c.server.opts.Registry.Open(c.id, registry.Connection)
	if redo := redoSeconds(c.clientVersion); redo > 0 {
		c.client.Redo(redo)
	}
	c.subscriber = c.server.opts.Push.Attach(c.id, c)
	// Under the lock: end must not take the connection out of the table
	// before it is in.
	c.server.mu.Lock()
	c.server.conns[c] = struct{}{}
	c.server.mu.Unlock()
	c.mu.Unlock()
	close(c.registered)
	c.server.opts.Logger.Debug("client connected", zap.String("connection", c.id), zap.String("version", c.clientVersion), zap.Any("labels", setup.Labels))
	// After the registration: the client sends requests as soon as it has the
	// ack (grpc-protocol §2.2).
	if setup.WantsAck() {
		c.queue(nacos.SetupAckRequest(c.server.abilities()))
	}
}

// register publishes for the client. If the connection has ended meanwhile, as
// moving, this came too late to stand for a client that is there.
func (c *conn) register(key registry.ServiceKey, instances []*registry.Instance, batch bool) error {
	err := c.client.Register(key, instances, batch)
	if err != nil && !errors.Is(err, registry.ErrEvicted) { // then it is registered, unseen
		return err
	}
	select {
	case <-c.closed:
		c.client.Move()
	default:
	}
	return err
}

// abilities are what this server can do of the keys that SDKs know
// (grpc-protocol §2.3).
func (s *Server) abilities() []string {
	if s.opts.Persistent == nil {
		return []string{"fuzzyWatch"}
	}
	return []string{"fuzzyWatch", "supportPersistentInstanceByGrpc"}
}

// queue sends a message before the pushes that wait.
func (c *conn) queue(p *nacos.Payload) {
	c.mu.Lock()
	c.outbox = append(c.outbox, p)
	c.wakeLocked()
	c.mu.Unlock()
}

// Wake implements push.Conn: it makes sure that there is a sender.
func (c *conn) Wake() {
	c.mu.Lock()
	c.wakeLocked()
	c.mu.Unlock()
}

func (c *conn) wakeLocked() {
	if c.stream != nil && !c.ended && !c.sending {
		c.sending = true
		c.server.senders.Go(c.send)
	}
}

// send is the only one who sends on the stream. It lives while there is
// something to send, and blocks while the stream has no credit; what comes
// meanwhile waits in the outbox and in the subscriber's dirty set, which are
// bounded. If it blocks for too long, idleLoop closes the transport.
func (c *conn) send() {
	for {
		c.mu.Lock()
		var p *nacos.Payload
		if len(c.outbox) > 0 {
			p, c.outbox = c.outbox[0], c.outbox[1:]
		} else if c.ended || !c.subscriber.Pending() {
			c.sending = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		isPush := p == nil
		if isPush {
			if p = c.subscriber.Next(); p == nil {
				continue
			}
		}
		c.sendBegan.Store(int64(time.Since(c.server.start)))
		err := c.stream.SendMsg(p)
		c.sendBegan.Store(0)
		if isPush {
			c.subscriber.Sent(err == nil)
		}
		if err != nil {
			c.mu.Lock()
			c.sending = false
			c.mu.Unlock()
			c.Drop(registry.CauseConnectionLost)
			return
		}
	}
}

// acked takes an answer of the client: to a push, a detection or a reset.
func (c *conn) acked(a *nacos.Ack) {
	if !c.isRegistered() {
		return
	}
	if id := nacos.ParseRequestID(a.RequestID); id != 0 {
		// Answers to a detection need no look: any message is a sign of
		// life. Nor do those to a reset: the client moves or does not.
		c.subscriber.Acked(id, a.ResultCode == nacos.ResultOK)
	}
}

// detect asks a silent client whether it lives, and closes the connection if
// there is no sign of life in time (semantics H3).
func (c *conn) detect() {
	if !c.detecting.CompareAndSwap(false, true) {
		return
	}
	c.server.metrics.detections.Inc()
	asked := c.lastActive.Load()
	time.AfterFunc(c.server.opts.DetectionAnswer, func() {
		c.detecting.Store(false)
		// After a stall of this process the answer may lie unread in the
		// socket. A later scan asks again.
		c.server.opts.Awake()
		if c.lastActive.Load() == asked && !c.server.opts.StalledLately() {
			c.Drop(registry.CauseIdle)
		}
	})
	c.queue(nacos.ClientDetectionRequest(c.server.opts.Push.NextID()))
}

// reset asks the client to connect to another node, once, and closes the
// transport a while later whatever it did (grpc-protocol §2.7).
func (c *conn) reset(host string, port int) bool {
	c.mu.Lock()
	if c.ended || c.resetTimer != nil {
		c.mu.Unlock()
		return false
	}
	c.resetTimer = time.AfterFunc(c.server.opts.ResetGrace, func() { c.Drop(registry.CauseShutdown) })
	c.mu.Unlock()
	c.server.asked.Add(1)
	c.server.metrics.resets.Inc()
	c.queue(nacos.ConnectResetRequest(c.server.opts.Push.NextID(), c.id, host, port))
	return true
}

// streamEnded ends the connection with the stream that it was set up on; other
// streams of the transport do not matter.
func (c *conn) streamEnded(stream grpc.ServerStream) {
	c.mu.Lock()
	mine := c.stream == stream
	c.mu.Unlock()
	if mine {
		c.Drop(registry.CauseConnectionLost)
	}
}

// Drop implements push.Conn: it unregisters the connection and closes its
// transport, so that the client notices and connects again. For a missing ack
// it does so only if this process did not stand still: the ack may lie unread
// in the socket, and the push engine looks again.
func (c *conn) Drop(cause registry.Cause) {
	c.server.opts.Awake()
	if cause == registry.CauseNoAck && c.server.opts.StalledLately() {
		return
	}
	c.finish(cause, nil)
	c.closeTransport()
}

func (c *conn) closeTransport() {
	if c.transport != nil {
		c.transport.Close()
	}
}

// finish unregisters the connection, once. Callers have called Awake before, but
// for the one whom that calls, and who knows that this process was stalled, and
// for how long the client has been gone by then; nil: it was not stalled.
func (c *conn) finish(cause registry.Cause, stalled *time.Duration) {
	s := c.server
	var ago time.Duration
	if stalled != nil {
		ago = *stalled
	}
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return
	}
	c.ended = true
	c.outbox = nil
	wasSetUp := c.stream != nil
	asked := c.resetTimer != nil
	if asked {
		c.resetTimer.Stop()
	}
	c.mu.Unlock()
	close(c.closed)
	if !wasSetUp {
		return
	}
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	c.subscriber.Close()
	s.metrics.closed(cause)
	if asked {
		s.moved.Add(1)
	}
	c.withdraw(cause, situation{stopped: s.stopped.Load(), draining: s.draining.Load(), asked: asked,
		stalled: stalled != nil || s.opts.StalledLately(), unsettled: s.opts.Unsettled(), ago: ago})
}

// withdraw takes back what the client publishes, now or later or not at all.
func (c *conn) withdraw(cause registry.Cause, is situation) {
	s, fate := c.server, is.fate()
	publishes := c.client.Services()
	log := s.opts.Logger.Debug // a client without instances concerns nobody else
	if len(publishes) > 0 || cause != registry.CauseConnectionLost {
		log = s.log.Info
	}
	log("client disconnected", zap.String("connection", c.id), zap.String("version", c.clientVersion), zap.String("cause", string(cause)),
		zap.Int("services", len(publishes)), zap.Stringers("publishes", publishes[:min(len(publishes), 5)]), zap.Bool("stays a while", fate != goes))
	switch {
	case fate == stays:
	case fate == moves && len(publishes) > 0:
		s.depart(c, cause, publishes, is.ago)
	default:
		c.client.Close(cause)
	}
}
