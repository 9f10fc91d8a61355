package grpcapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip" // a client may compress (grpc-protocol §1.3)
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/push"
	"github.com/starling-registry/starling/pkg/registry"
)

// A Registry is what handlers need of *registry.Registry.
type Registry interface {
	Open(id string, kind registry.Kind) *registry.Client
	Serve(registry.ServiceKey) (*registry.Snapshot, int64)
	Services(namespace, group string) []string
	Kind(registry.ServiceKey) registry.ServiceKind
}

// Options of a server.
type Options struct {
	Registry Registry
	Push     *push.Engine
	// Persistent keeps persistent instances. Nil: they are refused, and not
	// announced, so that SDKs use HTTP for them.
	Persistent Persistent
	// Explain tells what an error of Persistent means for the client.
	Explain func(error) Refusal
	// Ready reports whether the node takes SDK connections; until it does,
	// clients are told to try another server. Nil: always.
	Ready func() bool
	// Redirect names the other nodes that are ready to take clients, and says
	// whether there are others that may become so. Nil:
	// there are no other nodes, and nobody is ever moved.
	Redirect func() (ready []Target, others bool)
	// CacheMillis is what clients are told in the member of that name. It must
	// not block. Nil: [nacos.CacheMillis].
	CacheMillis func() int64

	// Awake is called, with no lock held, before a connection is set up, a
	// request changes something, or anything is removed. It returns when the
	// node has handled that this process stood still, if it did; for that it
	// calls HandleClosed. Nil: it never stands still.
	Awake func()
	// StalledLately reports whether this process stood still a moment ago
	// (10 s: longer than DetectionAnswer). Nothing is concluded then from the
	// silence of clients, and those that have gone come back. Nil: never.
	StalledLately func() bool
	// Unsettled reports whether clients are on their way between nodes: one
	// does not answer, drains or has gone. The client of a lost connection may
	// be at another then. Nil: never.
	Unsettled func() bool
	// MovingDone reports whether what was published at these addresses (ip:port)
	// may be removed, whose client has lost its connection at that time and is
	// expected elsewhere (design §6). It is asked each second and must not
	// block. Nil: after MovingFor.
	MovingDone func(since time.Time, addrs []string) bool
	// MovingFor is what MovingDone stands for where it is nil.
	MovingFor time.Duration

	// IdleAfter is the silence after which a client is asked whether it
	// lives, DetectionAnswer how long it may take to answer, IdleScan how
	// often silent ones are looked for (semantics H3).
	IdleAfter, DetectionAnswer, IdleScan time.Duration
	// SendTimeout is how long a client may leave the server without credit to
	// send, before its connection is closed.
	SendTimeout time.Duration
	// SetupWait is how long a request may wait for the setup that it has
	// overtaken (grpc-protocol §0 rule 15).
	SetupWait time.Duration
	// KeepaliveTime and KeepaliveTimeout are the HTTP/2 pings of the server,
	// KeepaliveMin how often clients may send theirs (cluster E5).
	KeepaliveTime, KeepaliveTimeout, KeepaliveMin time.Duration
	// ResetGrace is how long a client that was asked to move keeps its
	// transport: some SDKs move only when it is closed (grpc-protocol §2.7).
	ResetGrace time.Duration
	// SetupTimeout is how long a transport may live without a setup.
	SetupTimeout time.Duration
	// ReceiveTimeout is how long a request may take to arrive.
	ReceiveTimeout time.Duration

	// MaxRequestBytes bounds one message (semantics H5), MaxHeaderBytes the
	// headers of a call, MaxStreams the calls of a transport under way.
	MaxRequestBytes, MaxHeaderBytes, MaxStreams int
	// MaxConnections and MaxPerAddress bound transports, all and those from
	// one address. MaxSetupRate and MaxSetupRatePerAddress bound setups per
	// second; twice as many may come at once.
	MaxConnections, MaxPerAddress        int
	MaxSetupRate, MaxSetupRatePerAddress int
	// MaxSubscriptions and MaxInstances are the limits that the push engine
	// and the registry enforce, for the texts of refusals.
	MaxSubscriptions, MaxInstances int

	Logger  *zap.Logger
	Metrics prometheus.Registerer
}

// DefaultOptions has the times of Nacos and of design §6 and §9. Registry,
// Push, Logger and Metrics are the caller's.
func DefaultOptions() Options {
	return Options{
		IdleAfter: 20 * time.Second, DetectionAnswer: 5 * time.Second, IdleScan: 3 * time.Second,
		SendTimeout: time.Minute, MovingFor: 10 * time.Second, SetupWait: time.Second,
		KeepaliveTime: 20 * time.Second, KeepaliveTimeout: 10 * time.Second, KeepaliveMin: 5 * time.Second,
		ResetGrace: 2 * time.Second, SetupTimeout: 30 * time.Second, ReceiveTimeout: 15 * time.Second,
		MaxRequestBytes: 10 << 20, MaxHeaderBytes: 64 << 10, MaxStreams: 1_000,
		MaxConnections: 50_000, MaxPerAddress: 10_000, MaxSetupRate: 5_000, MaxSetupRatePerAddress: 2_000,
		MaxSubscriptions: 10_000, MaxInstances: 20_000,
	}
}

// A Server serves SDKs. Its methods may be called from any goroutine.
type Server struct {
	opts    Options
	log     *zap.Logger // sampled: what it says, a client can make it say again
	grpc    *grpc.Server
	metrics *metrics
	start   time.Time // lastActive counts from here

	lastMillis atomic.Int64 // of the newest connection id
	admission  admission
	draining   atomic.Bool
	listener   atomic.Pointer[net.Listener] // of Serve
	stopped    atomic.Bool                  // nothing is withdrawn any more
	asked      atomic.Int64                 // clients to move
	moved      atomic.Int64                 // those of them that have gone

	mu     sync.Mutex
	conns  map[*conn]struct{} // registered ones
	moving []*departed        // the longest away first; at most MaxConnections

	stop    context.CancelFunc
	wg      sync.WaitGroup
	senders sync.WaitGroup
}

// New makes a server; Serve starts it.
func New(opts Options) *Server {
	s := &Server{start: time.Now(), conns: map[*conn]struct{}{}}
	opts.complete()
	s.opts = opts
	s.log = opts.Logger.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(c, time.Minute, 10, 0)
	}))
	s.admission = newAdmission(opts)
	s.metrics = newMetrics(opts.Metrics, s)
	s.grpc = grpc.NewServer(
		grpc.ForceServerCodecV2(nacos.Codec{}),
		grpc.Creds(newTransportCredentials()),
		grpc.StatsHandler(connTagger{s}),
		grpc.MaxRecvMsgSize(opts.MaxRequestBytes),
		grpc.MaxHeaderListSize(uint32(opts.MaxHeaderBytes)),
		grpc.MaxConcurrentStreams(uint32(opts.MaxStreams)),
		// What nobody asks for stays with the client: a stream gets credit
		// beyond this only while its message is read, see conn.receive.
		grpc.StaticStreamWindowSize(64<<10),
		grpc.StaticConnWindowSize(1<<20),
		grpc.ConnectionTimeout(10*time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: opts.KeepaliveTime, Timeout: opts.KeepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: opts.KeepaliveMin, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	)
	s.grpc.RegisterService(&grpc.ServiceDesc{
		ServiceName: nacos.RequestService,
		HandlerType: (*any)(nil),
		// A unary call, but as a stream: of those it is us who decide when a
		// message is received.
		Streams: []grpc.StreamDesc{{
			StreamName: "request", ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error {
				p, err := connOf(stream.Context()).receive(stream)
				if err != nil {
					return err
				}
				return stream.SendMsg(s.request(stream.Context(), p))
			},
		}},
	}, s)
	s.grpc.RegisterService(&grpc.ServiceDesc{
		ServiceName: nacos.BiStreamService,
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName: "requestBiStream", ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error { return s.stream(stream) },
		}},
	}, s)
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	s.wg.Go(func() { pprof.Do(ctx, pprof.Labels("loop", "grpc.idle"), s.idleLoop) })
	s.wg.Go(func() { pprof.Do(ctx, pprof.Labels("loop", "grpc.moving"), s.movingLoop) })
	return s
}

// Serve accepts connections until Drain or Stop, and then returns nil.
func (s *Server) Serve(l net.Listener) error {
	s.listener.Store(&l)
	if s.draining.Load() {
		return l.Close()
	}
	if err := s.grpc.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) && !s.draining.Load() {
		return fmt.Errorf("serve SDKs on %s: %w", l.Addr(), err)
	}
	return nil
}

// Stop drains, as long as ctx lasts, and then closes the connections that are
// left. What their clients publish, and what those publish that have moved, is
// not withdrawn any more: it goes because the node stops (cases C05). Stop
// returns when all handlers have, at the latest when ctx ends plus the time to
// close everything.
func (s *Server) Stop(ctx context.Context) {
	_ = s.Drain(ctx, 0) // whoever cannot be moved goes with the node
	s.stopped.Store(true)
	s.stop()
	s.wg.Wait()
	s.grpc.Stop()
	s.senders.Wait() // no new ones: all connections have ended
}

func (s *Server) ready() bool { return !s.draining.Load() && s.opts.Ready() }

// complete puts in what functions mean that are not given.
func (o *Options) complete() {
	never := func() bool { return false }
	if o.Ready == nil {
		o.Ready = func() bool { return true }
	}
	if o.CacheMillis == nil {
		o.CacheMillis = func() int64 { return nacos.CacheMillis }
	}
	if o.Redirect == nil {
		o.Redirect = func() ([]Target, bool) { return nil, false }
	}
	if o.Awake == nil {
		o.Awake = func() {}
	}
	if o.StalledLately == nil {
		o.StalledLately = never
	}
	if o.Unsettled == nil {
		o.Unsettled = never
	}
	if o.MovingDone == nil {
		movingFor := o.MovingFor
		o.MovingDone = func(since time.Time, _ []string) bool { return time.Since(since) >= movingFor }
	}
}

// clusterOnly are the types that only Nacos servers send, on another port
// (grpc-protocol §2.4).
var clusterOnly = map[string]bool{
	"DistroDataRequest": true, "MemberReportRequest": true, "ServerLoaderInfoRequest": true,
	"ServerReloadRequest": true, "ConfigChangeClusterSyncRequest": true,
}

// request answers a unary call. It never returns a gRPC error: SDKs expect
// every refusal as a payload (grpc-protocol §0 rule 2). The order of the checks
// is that of §2.4.
func (s *Server) request(ctx context.Context, p *nacos.Payload) (answer *nacos.Payload) {
	began := time.Now()
	h, known := handlers[p.Type]
	defer func() {
		if bug := recover(); bug != nil {
			s.opts.Logger.Error("BUG: handler panicked", zap.String("type", p.Type), zap.Any("panic", bug), zap.ByteString("stack", debug.Stack()))
			answer = nacos.ErrorResponse(nacos.CodeServerError, nacos.CodeServerError, "internal error, see the server's log")
		}
		s.metrics.request(p.Type, known, answer.Type == nacos.TypeErrorResponse, time.Since(began))
	}()
	c := connOf(ctx)
	if h.changes {
		s.opts.Awake()
	}
	switch {
	case clusterOnly[p.Type]:
		return nacos.ErrorResponse(nacos.ResultFail, nacos.CodeBadGateway, " invoke "+p.Type+" from sdk is forbidden")
	case !s.ready() && !c.isRegistered():
		return nacos.ErrorResponse(nacos.ResultFail, nacos.CodeInvalidServerStatus, nacos.MsgStarting)
	case c.refused != nil:
		// The first request of a client tells it why it is not served; the
		// transport is closed a moment later.
		return nacos.ErrorResponse(nacos.ResultFail, nacos.CodeOverThreshold, c.refused.Error())
	case p.Type == nacos.TypeServerCheckRequest:
		known = true
		return nacos.ServerCheckResponse(c.id)
	case !known:
		return nacos.ErrorResponse(nacos.ResultFail, nacos.CodeNoHandler, nacos.MsgNoHandler)
	case !c.waitRegistered(ctx, s.opts.SetupWait):
		return nacos.ErrorResponse(nacos.ResultFail, nacos.CodeUnregistered, nacos.MsgUnregistered)
	}
	c.touch()
	answer, err := h.handle(ctx, s, c, p)
	if err == nil {
		return answer
	}
	var refusal *refusal
	var limit *limitError
	switch {
	case errors.Is(err, push.ErrTooMany):
		limit = &limitError{"max-subscriptions-per-connection", s.opts.MaxSubscriptions, "subscriptions and watches of one connection"}
	case errors.Is(err, registry.ErrTooMany):
		limit = &limitError{"max-instances-per-connection", s.opts.MaxInstances, "instances of one connection"}
	}
	switch {
	case limit != nil:
		s.refuse(limit)
		return nacos.Failure(h.response, nacos.ResultFail, nacos.CodeOverThreshold, limit.Error())
	case errors.As(err, &refusal) && refusal.typed:
		return nacos.Failure(h.response, nacos.ResultFail, refusal.code, refusal.text)
	case errors.As(err, &refusal):
		return nacos.ErrorResponse(refusal.code, refusal.code, refusal.text)
	case errors.Is(err, nacos.ErrBadJSON):
		s.opts.Logger.Debug("malformed request", zap.String("type", p.Type), zap.String("connection", c.id), zap.Error(err))
		return nacos.ErrorResponse(nacos.ResultFail, nacos.CodeBadGateway, nacos.MsgBadJSON)
	case errors.Is(err, registry.ErrClientClosed):
		return nacos.ErrorResponse(nacos.CodeClientDisconnected, nacos.CodeClientDisconnected,
			fmt.Sprintf("errCode: -401, errMsg: Client [%s] connection already disconnect, can't register ephemeral instance. ", c.id))
	}
	return nacos.ErrorResponse(nacos.CodeServerError, nacos.CodeServerError, err.Error())
}

// stream serves the bidirectional stream: the setup first, acks later.
func (s *Server) stream(stream grpc.ServerStream) (err error) {
	// Some clients notice the end of a stream only after its headers, and
	// tonic waits for them.
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	c := connOf(stream.Context())
	defer c.streamEnded(stream) // however it ends
	defer func() {
		if bug := recover(); bug != nil {
			s.opts.Logger.Error("BUG: stream panicked", zap.String("connection", c.id), zap.Any("panic", bug), zap.ByteString("stack", debug.Stack()))
			err = status.Error(codes.Internal, "internal error, see the server's log")
		}
	}()
	for {
		p := new(nacos.Payload)
		if err := stream.RecvMsg(p); err != nil {
			// Never end with OK: Python would not notice (grpc-protocol §0
			// rule 12).
			return status.Error(codes.Unavailable, "connection closed")
		}
		c.touch()
		switch {
		case p.Type == nacos.TypeConnectionSetupRequest:
			var setup nacos.ConnectionSetupRequest
			if err := nacos.DecodeBody(p.Body, &setup); err != nil {
				s.log.Warn("connection setup cannot be decoded", zap.String("connection", c.id), zap.Error(err))
				return status.Error(codes.InvalidArgument, err.Error())
			}
			s.opts.Awake()
			if !s.ready() {
				c.closeTransport()
				return status.Error(codes.Unavailable, nacos.MsgStarting)
			}
			if err := s.admission.setup(c); err != nil {
				s.refuse(err)
				return status.Error(codes.ResourceExhausted, err.Error())
			}
			c.setup(stream, &setup, p.ClientIP)
		case p.Type == nacos.TypeErrorResponse || strings.HasSuffix(p.Type, "Response"):
			var ack nacos.Ack
			if err := nacos.DecodeBody(p.Body, &ack); err != nil {
				s.opts.Logger.Debug("ack cannot be decoded", zap.String("connection", c.id), zap.String("type", p.Type), zap.Error(err))
				continue
			}
			c.acked(&ack)
		default:
			s.opts.Logger.Debug("ignored on the stream", zap.String("connection", c.id), zap.String("type", p.Type))
		}
	}
}

// idleLoop asks silent clients whether they live, and drops those that do not
// read.
func (s *Server) idleLoop(ctx context.Context) {
	t := time.NewTicker(s.opts.IdleScan)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		s.opts.Awake()
		stalled := s.opts.StalledLately()
		for _, c := range s.registered() {
			switch {
			case c.stuck() >= s.opts.SendTimeout && !stalled:
				c.Drop(registry.CauseNoAck)
			case c.idle() >= s.opts.IdleAfter:
				c.detect()
			}
		}
	}
}

// Connections counts the registered connections.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

func (s *Server) registered() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		all = append(all, c)
	}
	return all
}
