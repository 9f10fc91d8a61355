package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	pb "github.com/starling-registry/starling/proto"
)

const (
	service   = "starling.v1.Peer"
	helloTime = 5 * time.Second
	// maxHello is far above what a node says of itself; what it is refused
	// with is logged.
	maxHello = 4 << 10

	// A node may dial before gossip has told of it. It is not listened to
	// until then.
	strangerTime = 10 * time.Second
	maxStrangers = 64
	// twinTime bounds the question to a member whether it is still there.
	twinTime = time.Second
	// idleTime is how long a connection without a stream or a call stays.
	idleTime = 10 * time.Second
	// maxStreams on one connection: a member has one Sync, and calls and pulls
	// beside it.
	maxStreams = 1024

	// Of unary calls and pulls, where there is no Hello.
	nodeHeader    = "starling-node"
	clusterHeader = "starling-cluster"
	wireHeader    = "starling-wire"

	redialMin    = 25 * time.Millisecond
	redialMax    = time.Second     // to a member that may be alive
	redialGone   = 5 * time.Second // to one whose process is gone
	redialLater  = 5 * time.Second // to one that refused the Hello
	refusedTwice = 2
)

// server serves starling.v1.Peer, whose messages it does not know.
func (c *Cluster) server() *grpc.Server {
	creds := insecure.NewCredentials()
	if conf := c.ServerTLS(); conf != nil {
		creds = credentials.NewTLS(conf)
	}
	s := grpc.NewServer(
		grpc.Creds(creds),
		grpc.ForceServerCodecV2(rawCodec{}),
		grpc.MaxRecvMsgSize(MaxMessage),
		grpc.MaxSendMsgSize(MaxMessage),
		grpc.ConnectionTimeout(helloTime),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleTime, Time: 5 * time.Second, Timeout: 5 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	)
	desc := &grpc.ServiceDesc{
		ServiceName: service,
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{
			{StreamName: "Sync", ServerStreams: true, ClientStreams: true, Handler: c.serveSync},
			{StreamName: "Pull", ServerStreams: true, Handler: c.servePull},
		},
		Metadata: "peer.proto",
	}
	for name, call := range c.opts.Handlers.Calls {
		desc.Methods = append(desc.Methods, grpc.MethodDesc{MethodName: name,
			Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				from, err := c.caller(ctx)
				if err != nil {
					return nil, err
				}
				var req body
				if err := decode(&req); err != nil {
					return nil, err
				}
				b, err := call(ctx, from, req.b)
				return &body{b}, err
			}})
	}
	s.RegisterService(desc, c)
	return s
}

// certified gives the check of a peer's certificate against its id.
func (c *Cluster) certified(ctx context.Context) func(id string) bool {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return func(string) bool { return false }
	}
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
		i := c.identity.Load()
		return func(id string) bool { return i.certifies(info.State, id) }
	}
	return func(string) bool { return c.identity.Load().plain() }
}

// accepted is the connection that a request came on.
func (c *Cluster) accepted(ctx context.Context) (*countedConn, string) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil, ""
	}
	addr := p.Addr.String()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conns[addr], addr
}

func (c *Cluster) serveSync(_ any, t grpc.ServerStream) error {
	ctx := t.Context()
	conn, addr := c.accepted(ctx)
	if conn == nil {
		return status.Error(codes.Unavailable, "the connection is closed")
	}
	// Who opens a stream and says nothing is cut off.
	slow := time.AfterFunc(helloTime, func() { conn.Close() })
	defer slow.Stop()
	var first body
	if err := t.RecvMsg(&first); err != nil {
		return err
	}
	h := parseHello(first.b)
	r := c.check(h, c.certified(ctx))
	if r == nil && c.twin(ctx, h.Life.Node, h.Life.Epoch) {
		r = &refusal{helloTwin, codes.AlreadyExists, "an earlier start of this node is still running"}
	}
	if r != nil {
		c.refuse(r, h, addr)
		return r
	}
	if err := t.SendMsg(c.hello()); err != nil {
		return err
	}
	slow.Stop()
	if r := c.acquainted(ctx, h.Life.Node); r != nil {
		c.refuse(r, h, addr)
		return r
	}
	c.sawHello(h.Life.Node, h.Life.Epoch)
	s := &stream{peer: h.Life.Node, epoch: h.Life.Epoch, sends: make(chan outgoing), done: make(chan struct{}), stop: func() {}}
	// pump's reader ends with the context, which ends when this returns: so it
	// runs beside, and is waited for by Stop.
	ended := make(chan error, 1)
	if !c.spawn(func() { ended <- c.pump(s, t, conn, false) }) {
		return status.Error(codes.Unavailable, "stopping")
	}
	select {
	case <-s.done:
	case err := <-ended:
		return err
	case <-ctx.Done():
		s.end(ctx.Err())
	}
	return status.Error(codes.Unavailable, "stream ended: "+s.err.Error())
}

// acquainted waits until gossip has told of a node that has dialled. Whoever
// is no member is not listened to: until then only what fits into the window
// of its stream is taken.
func (c *Cluster) acquainted(ctx context.Context, id string) *refusal {
	if c.knows(id) {
		return nil
	}
	if c.strangers.Add(1) > maxStrangers {
		c.strangers.Add(-1)
		return &refusal{helloStranger, codes.ResourceExhausted, "too many nodes that are no members"}
	}
	defer c.strangers.Add(-1)
	late := time.NewTimer(strangerTime)
	defer late.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
		case <-late.C:
		case <-look.C:
			if !c.knows(id) {
				continue
			}
			return nil
		}
		return &refusal{helloStranger, codes.FailedPrecondition, "gossip does not know this node"}
	}
}

func (c *Cluster) knows(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.members[id] != nil
}

// twin tells whether a later life of a member than the known one cannot be,
// because the known one is still there: it answers on the connection that this
// node has to it.
func (c *Cluster) twin(ctx context.Context, id string, epoch uint64) bool {
	c.mu.Lock()
	var conn *grpc.ClientConn
	if m := c.members[id]; m != nil && m.gossiping && m.out != nil && m.out.epoch < epoch && m.link != nil {
		conn = m.link.conn
	}
	c.mu.Unlock()
	if conn == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, twinTime)
	defer cancel()
	// Any answer will do.
	err := conn.Invoke(c.asCaller(ctx), "/"+service+"/Alive", &body{}, &body{})
	return status.Code(err) == codes.Unimplemented
}

// caller identifies who calls a unary method or pulls.
func (c *Cluster) caller(ctx context.Context) (string, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	get := func(key string) string {
		if v := md.Get(key); len(v) == 1 {
			return v[0]
		}
		return ""
	}
	id := get(nodeHeader)
	wire, _ := strconv.ParseUint(get(wireHeader), 10, 32)
	switch {
	case !validID(id) || id == c.opts.ID:
		return "", status.Error(codes.Unauthenticated, "starling: who calls?")
	case !c.certified(ctx)(id):
		return "", status.Error(codes.PermissionDenied, "starling: the certificate is of another node")
	}
	if err := c.compatible(get(clusterHeader), uint32(wire), 0); err != nil {
		return "", status.Error(codes.FailedPrecondition, "starling: "+err.Error())
	}
	return id, nil
}

func (c *Cluster) servePull(_ any, t grpc.ServerStream) error {
	ctx := t.Context()
	from, err := c.caller(ctx)
	if err != nil {
		return err
	}
	if c.opts.Handlers.Pull == nil {
		return status.Error(codes.Unimplemented, "starling: no pull")
	}
	var req body
	if err := t.RecvMsg(&req); err != nil {
		return err
	}
	conn, _ := c.accepted(ctx)
	if conn == nil {
		return status.Error(codes.Unavailable, "the connection is closed")
	}
	return c.opts.Handlers.Pull(ctx, from, req.b, func(b []byte) error {
		return conn.watched(c.opts.StallTimeout, func() {
			c.metrics.stalled.Inc()
			conn.Close()
		}, func() error { return t.SendMsg(&body{b}) })
	})
}

// asCaller adds who this node is.
func (c *Cluster) asCaller(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, nodeHeader, c.opts.ID, clusterHeader, c.ClusterID(),
		wireHeader, strconv.FormatUint(uint64(c.opts.Wire), 10))
}

// connTo is the connection that this node has opened to a member.
func (c *Cluster) connTo(id string) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.members[id]
	switch {
	case c.stopping:
		return nil, ErrStopped
	case m == nil:
		return nil, ErrUnknown
	case m.link == nil || m.out == nil || m.link.conn == nil:
		return nil, ErrUnreachable
	}
	return m.link.conn, nil
}

// linkPatience is how long Pull waits for the connection that this node opens.
// The one that the peer opens may be up first, or gossip faster than both, and
// what comes that way is a reason to pull.
const linkPatience = 300 * time.Millisecond

// connSoon is connTo for who can wait a moment.
func (c *Cluster) connSoon(ctx context.Context, id string) (*grpc.ClientConn, error) {
	for begun := time.Now(); ; {
		conn, err := c.connTo(id)
		if err != ErrUnreachable || time.Since(begun) >= linkPatience {
			return conn, err
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Pull asks a member for something that it answers in parts. If part fails,
// Pull ends and returns its error.
func (c *Cluster) Pull(ctx context.Context, from string, req []byte, part func([]byte) error) error {
	conn, err := c.connSoon(ctx, from)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(c.asCaller(ctx))
	defer cancel()
	t, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/"+service+"/Pull")
	if err != nil {
		return err
	}
	if err := t.SendMsg(&body{req}); err != nil && err != io.EOF { // EOF: RecvMsg knows why
		return err
	}
	if err := t.CloseSend(); err != nil {
		return err
	}
	for {
		var m body
		if err := t.RecvMsg(&m); err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		if err := part(m.b); err != nil {
			return err
		}
	}
}

// Call calls a unary method of a member.
func (c *Cluster) Call(ctx context.Context, to, method string, req []byte) ([]byte, error) {
	conn, err := c.connTo(to)
	if err != nil {
		return nil, err
	}
	var res body
	if err := conn.Invoke(c.asCaller(ctx), "/"+service+"/"+method, &body{req}, &res); err != nil {
		return nil, err
	}
	return res.b, nil
}

// A link dials one member for ever and keeps this node's Sync stream to it.
type link struct {
	c      *Cluster
	id     string
	ctx    context.Context
	cancel context.CancelFunc
	now    chan struct{} // dial at once

	conn *grpc.ClientConn // guarded by Cluster.mu; set while a stream is up
}

// newLink starts one. It is called with Cluster.mu held.
func (c *Cluster) newLink(id string) *link {
	ctx, cancel := context.WithCancel(c.ctx)
	l := &link{c: c, id: id, ctx: ctx, cancel: cancel, now: make(chan struct{}, 1)}
	if c.stopping {
		cancel()
		return l
	}
	c.goes.Go(l.run)
	return l
}

// kick makes it look at the member again.
func (l *link) kick() { mark(l.now) }

// address is where a link dials.
type address struct {
	host   string
	port   int
	gossip netip.AddrPort
}

func (l *link) target() (a address, s State, ok bool) {
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	m := l.c.members[l.id]
	if m == nil {
		return address{}, Left, false
	}
	return address{m.Host, m.PeerPort, m.Gossip}, m.State, true
}

func (l *link) run() {
	defer l.cancel()
	delay := time.Duration(0)
	refusals := 0
	for {
		timer := time.NewTimer(jitter(delay))
		select {
		case <-l.ctx.Done():
			timer.Stop()
			return
		case <-l.now:
			timer.Stop()
		case <-timer.C:
		}
		a, state, ok := l.target()
		if !ok {
			return
		}
		began := time.Now()
		err := l.once(a)
		if l.ctx.Err() != nil {
			return
		}
		delay = min(max(2*delay, redialMin), redialMax)
		var r *refusal
		switch {
		case err == nil: // it was up
			refusals = 0
			if time.Since(began) > redialMax {
				delay = redialMin
			}
		case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, errOtherNode):
			// The gossip port as well, unless another node has the address: a
			// process that is starting has one of them.
			if errors.Is(err, errOtherNode) || l.refuses(a.gossip) {
				if refusals++; refusals >= refusedTwice {
					l.c.sawRefusal(l.id)
				}
				if state == Refused && refusals > 10 {
					delay = redialGone
				}
				break
			}
			refusals = 0
			l.c.sawSilence(l.id, began)
		case errors.As(err, &r), status.Code(err) == codes.FailedPrecondition, status.Code(err) == codes.AlreadyExists:
			refusals, delay = 0, redialLater
			l.c.sawSilence(l.id, began)
		default:
			refusals = 0
			l.c.sawSilence(l.id, began)
		}
		if err != nil {
			l.c.log.Debug("peer not reached", zap.String("node", l.id), zap.String("host", a.host), zap.Int("port", a.port), zap.Error(err))
		}
	}
}

// refuses tells whether a port refuses.
func (l *link) refuses(a netip.AddrPort) bool {
	ctx, cancel := context.WithTimeout(l.ctx, l.c.opts.DialTimeout)
	defer cancel()
	conn, err := l.c.opts.Dial(ctx, a.String())
	if err == nil {
		conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// dial connects to the first address of the host that answers. If none does,
// and one refused, that is the error.
func (l *link) dial(a address) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(l.ctx, l.c.opts.DialTimeout)
	defer cancel()
	addrs, err := l.c.lookup(ctx, a.host)
	if err != nil {
		return nil, err
	}
	var failed error
	for i, addr := range addrs {
		// Those that remain share the time.
		ctx, cancel := context.WithTimeout(ctx, l.c.opts.DialTimeout/time.Duration(len(addrs)-i))
		conn, err := l.c.opts.Dial(ctx, netip.AddrPortFrom(addr, uint16(a.port)).String())
		cancel()
		if err == nil {
			return conn, nil
		}
		if failed == nil || errors.Is(err, syscall.ECONNREFUSED) {
			failed = err
		}
	}
	return nil, failed
}

// once dials the member and runs the stream until it ends. It returns nil if
// the stream was up.
func (l *link) once(a address) error {
	c := l.c
	raw, err := l.dial(a)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	conn := &countedConn{Conn: raw, closed: cancel}
	defer conn.Close()

	// grpc gets this one connection; when it is gone, so is everything on it.
	var mu sync.Mutex
	given := false
	var wrong error // of the certificate
	creds := insecure.NewCredentials()
	if conf := c.ClientTLS(l.id, a.host); conf != nil {
		verify := conf.VerifyConnection
		conf.VerifyConnection = func(state tls.ConnectionState) error {
			err := verify(state)
			mu.Lock()
			wrong = err
			mu.Unlock()
			return err
		}
		creds = credentials.NewTLS(conf)
	}
	client, err := grpc.NewClient("passthrough:///"+l.id,
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			if given {
				return nil, net.ErrClosed
			}
			given = true
			return conn, nil
		}),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{}), grpc.MaxCallRecvMsgSize(MaxMessage), grpc.MaxCallSendMsgSize(MaxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}),
		grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy(),
	)
	if err != nil {
		return err
	}
	defer client.Close()

	slow := time.AfterFunc(helloTime, cancel)
	defer slow.Stop()
	t, err := client.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/"+service+"/Sync")
	if err == nil {
		if err = t.SendMsg(c.hello()); err == nil || err == io.EOF {
			var first body
			if err = t.RecvMsg(&first); err == nil {
				err = l.greet(parseHello(first.b), a)
				if err == nil {
					slow.Stop()
					return l.keep(a, t, parseHello(first.b).Life.Epoch, client, conn, cancel)
				}
			}
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if wrong != nil {
		if !errors.Is(wrong, errOtherNode) && c.once("certificate", l.id) {
			c.log.Warn("the certificate of a member is not accepted", zap.String("node", l.id), zap.String("host", a.host), zap.Error(wrong),
				zap.String("hint", "have both the same secrets (--gossip-key-file), or certificates of an authority in --peer-ca?"))
		}
		return wrong
	}
	switch status.Code(err) {
	case codes.FailedPrecondition, codes.AlreadyExists, codes.PermissionDenied, codes.InvalidArgument:
		if c.once("refused by", l.id, status.Convert(err).Message()) {
			c.log.Warn("a member refuses this node", zap.String("node", l.id), zap.String("host", a.host), zap.Error(err))
		}
	}
	return err
}

// greet judges the Hello of the node that was dialled.
func (l *link) greet(h *pb.Hello, a address) error {
	r := l.c.check(h, func(string) bool { return true })
	if h != nil && h.GetLife().GetNode() != l.id {
		return errOtherNode
	}
	if r != nil && r.reason != helloOldLife {
		l.c.refuse(r, h, net.JoinHostPort(a.host, strconv.Itoa(a.port)))
		return r
	}
	return nil
}

// keep runs the stream, and ends it when the member has another address.
func (l *link) keep(a address, t transport, epoch uint64, client *grpc.ClientConn, conn *countedConn, cancel func()) error {
	c := l.c
	s := &stream{peer: l.id, epoch: epoch, sends: make(chan outgoing), done: make(chan struct{}), stop: cancel}
	c.mu.Lock()
	l.conn = client
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		l.conn = nil
		c.mu.Unlock()
	}()
	c.sawHello(l.id, epoch)
	var watch sync.WaitGroup
	defer watch.Wait()
	watch.Go(func() {
		for {
			select {
			case <-s.done:
				return
			case <-l.ctx.Done():
				s.end(l.ctx.Err())
				return
			case <-l.now:
				if now, _, ok := l.target(); !ok || now != a {
					s.end(errors.New("the member has another address"))
					return
				}
			}
		}
	})
	defer s.end(io.EOF)
	err := c.pump(s, t, conn, true)
	c.log.Debug("stream ended", zap.String("node", l.id), zap.Error(err))
	return nil
}

// A countingListener remembers the connections of the peer port, because grpc
// has no way to close one.
type countingListener struct {
	net.Listener
	c *Cluster
}

func (l *countingListener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	addr := raw.RemoteAddr().String()
	conn := &countedConn{Conn: raw}
	conn.closed = func() {
		l.c.mu.Lock()
		defer l.c.mu.Unlock()
		if l.c.conns[addr] == conn {
			delete(l.c.conns, addr)
		}
	}
	l.c.mu.Lock()
	l.c.conns[addr] = conn
	l.c.mu.Unlock()
	return conn, nil
}
