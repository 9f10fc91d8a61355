package cluster

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/starling-registry/starling/proto"
)

// MaxMessage is the largest message of a stream.
const MaxMessage = 16 << 20

// Errors that callers branch on.
var (
	// ErrUnknown: nobody of that id is a member.
	ErrUnknown = errors.New("not a member")
	// ErrUnreachable: there is no way to that member now.
	ErrUnreachable = errors.New("no connection to that member")
	ErrStopped     = errors.New("membership has stopped")
)

var (
	errDead     = errors.New("the member is not alive")
	errStalled  = errors.New("the peer takes nothing")
	errReplaced = errors.New("the peer has opened a new stream")
)

// A stream is one Sync stream that is up: both sides have said Hello.
type stream struct {
	peer  string
	epoch uint64
	sends chan outgoing // taken by the one goroutine that sends
	done  chan struct{} // closed by end

	mu   sync.Mutex
	err  error // why it ended
	stop func()
}

type outgoing struct {
	msg  []byte
	sent chan<- error // room for one
}

// end ends the stream. It does not wait.
func (s *stream) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	s.err = err
	close(s.done)
	s.stop()
}

// transport is what grpc's streams of both sides have in common.
type transport interface {
	SendMsg(any) error
	RecvMsg(any) error
}

// pump runs a stream whose Hellos are exchanged until it ends; conn is what it
// runs over. It blocks.
func (c *Cluster) pump(s *stream, t transport, conn *countedConn, dialled bool) error {
	old, ok := c.enlist(s, dialled)
	if !ok {
		return ErrStopped
	}
	if old != nil {
		old.end(errReplaced)
	}
	defer func() {
		c.unlist(s)
		mark(c.wake)
	}()
	var loops sync.WaitGroup
	defer loops.Wait()
	loops.Go(func() {
		for {
			select {
			case o := <-s.sends:
				err := conn.watched(c.opts.StallTimeout, func() {
					c.metrics.stalled.Inc()
					c.log.Warn("stream closed", zap.String("node", s.peer), zap.Error(errStalled))
					s.end(errStalled)
					conn.Close()
				}, func() error { return t.SendMsg(&body{o.msg}) })
				if err == nil {
					c.metrics.send(Stream, len(o.msg))
				}
				o.sent <- err
				if err != nil {
					s.end(err)
					return
				}
			case <-s.done:
				return
			}
		}
	})
	if c.opts.Handlers.Connected != nil {
		c.opts.Handlers.Connected(s.peer)
	}
	loops.Go(func() {
		for {
			var m body
			if err := t.RecvMsg(&m); err != nil {
				s.end(err)
				return
			}
			select {
			case <-s.done: // replaced: what comes now is of the past
				return
			default:
			}
			c.metrics.receive(Stream, len(m.b))
			if c.opts.Handlers.Message != nil {
				c.opts.Handlers.Message(s.peer, Stream, m.b)
			}
		}
	})
	<-s.done
	return s.err
}

// enlist makes a stream usable and gives the one it replaces.
func (c *Cluster) enlist(s *stream, dialled bool) (old *stream, ok bool) {
	defer mark(c.wake)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping {
		return nil, false
	}
	p := c.pathLocked(s.peer)
	if dialled {
		old, p.out = p.out, s
	} else {
		old, p.in = p.in, s
	}
	c.pathsLocked(s.peer)
	return old, true
}

// A path is the streams between this node and another, member or not yet.
type path struct{ in, out *stream }

func (c *Cluster) pathLocked(id string) *path {
	p := c.paths[id]
	if p == nil {
		p = &path{}
		c.paths[id] = p
	}
	return p
}

// pathsLocked copies what is known of streams to the member.
func (c *Cluster) pathsLocked(id string) {
	p := c.paths[id]
	if m := c.members[id]; m != nil && p != nil {
		m.in, m.out = p.in, p.out
	}
	if p != nil && p.in == nil && p.out == nil {
		delete(c.paths, id)
	}
}

// hello is what this node says first on a stream.
func (c *Cluster) hello() *body {
	c.mu.Lock()
	h := &pb.Hello{Wire: c.opts.Wire, Cluster: c.own.cluster, Life: &pb.Life{Node: c.opts.ID, Epoch: c.opts.Epoch}, Name: c.own.name}
	c.mu.Unlock()
	b, err := proto.Marshal(&pb.Message{Body: &pb.Message_Hello{Hello: h}})
	if err != nil {
		panic("BUG: hello: " + err.Error())
	}
	return &body{b}
}

func parseHello(b []byte) *pb.Hello {
	var m pb.Message
	if len(b) > maxHello || proto.Unmarshal(b, &m) != nil {
		return nil
	}
	return m.GetHello()
}

// A refusal is why a Hello is not accepted.
type refusal struct {
	reason string
	code   codes.Code
	text   string
}

func (r *refusal) Error() string { return r.text }

func (r *refusal) GRPCStatus() *status.Status { return status.New(r.code, "starling: "+r.text) }

// check judges a Hello. certified tells whether the peer may be that node.
func (c *Cluster) check(h *pb.Hello, certified func(id string) bool) *refusal {
	id := h.GetLife().GetNode()
	switch {
	case h == nil || !validID(id):
		return &refusal{helloBroken, codes.InvalidArgument, "the first message is not a hello"}
	case !certified(id):
		return &refusal{helloIdentity, codes.PermissionDenied, "the certificate is of another node"}
	case id == c.opts.ID:
		return &refusal{helloOwnID, codes.AlreadyExists, "this is the id of the node that was called"}
	}
	switch c.compatible(h.Cluster, h.Wire, 0) {
	case errForeign:
		return &refusal{helloCluster, codes.FailedPrecondition, "this is another cluster"}
	case errWire:
		return &refusal{helloWire, codes.FailedPrecondition, "this wire version is not understood"}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.paths[id]; p != nil && p.in != nil && p.in.epoch > h.Life.Epoch {
		return &refusal{helloOldLife, codes.AlreadyExists, "a later start of this node is connected"}
	}
	return nil
}

// refuse counts a refusal and says it once.
func (c *Cluster) refuse(r *refusal, h *pb.Hello, addr string) {
	c.metrics.refused[r.reason].Inc()
	id := h.GetLife().GetNode()
	c.mu.Lock()
	m := c.members[id]
	here := c.gossipAddr.String()
	if m != nil {
		here = m.Gossip.String()
	}
	c.mu.Unlock()
	if r.reason == helloOwnID || r.reason == helloTwin {
		c.conflict(id, here, hostOf(addr))
	}
	who := id
	if m == nil { // it may say another one each time
		who = ""
	}
	if c.once("hello", r.reason, who, hostOf(addr)) {
		c.log.Warn("peer refused", zap.String("node", id), zap.String("name", h.GetName()), zap.String("address", addr),
			zap.String("cluster", h.GetCluster()), zap.Uint32("wire", h.GetWire()), zap.Error(r))
	}
}

func hostOf(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	return host
}

// The first byte of a proto Message is the key of its body. Of the four that
// follow a Hello, only frames are large, and heads tell what the frames before
// them have brought.
const (
	headsKey = 2<<3 | 2
	frameKey = 3<<3 | 2
)

// Send sends a message to a member: on a stream, waiting for the peer's
// credit, or as memberlist's reliable message if there is no stream. It
// returns when the message was handed to the network, or when the context
// ends; msg must not be changed afterwards either way. No error does not mean
// that it arrived.
//
// Frames and heads go in their order on the stream that the peer opened,
// everything else on the one that this node opened, so that acks and pulls do
// not wait behind frames. If one is down, the other carries all.
func (c *Cluster) Send(ctx context.Context, to string, msg []byte) error {
	if len(msg) > MaxMessage {
		c.metrics.dropped[dropBig].Inc()
		return errors.New("cluster: message too big")
	}
	for {
		c.mu.Lock()
		if !c.running.Load() {
			c.mu.Unlock()
			return ErrStopped
		}
		var s *stream
		if p := c.paths[to]; p != nil {
			if s = p.out; s == nil || p.in != nil && len(msg) > 0 && (msg[0] == frameKey || msg[0] == headsKey) {
				s = p.in
			}
		}
		c.mu.Unlock()
		if s == nil {
			return c.sendReliable(ctx, to, msg)
		}
		sent := make(chan error, 1)
		select {
		case s.sends <- outgoing{msg, sent}:
		case <-s.done:
			// Not yet taken: another way may be open.
			c.unlist(s)
			continue
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case err := <-sent:
			if err != nil {
				c.metrics.dropped[dropFailed].Inc()
			}
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// unlist makes sure that an ended stream is not used again.
func (c *Cluster) unlist(s *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.paths[s.peer]; p != nil {
		if p.in == s {
			p.in = nil
		}
		if p.out == s {
			p.out = nil
		}
		c.pathsLocked(s.peer)
	}
}

// Connected reports whether a stream to or from a member is up.
func (c *Cluster) Connected(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.paths[id]
	return p != nil && (p.in != nil || p.out != nil)
}

// sendReliable sends by memberlist: a connection for each message. At most one
// is under way to a member.
func (c *Cluster) sendReliable(ctx context.Context, to string, msg []byte) error {
	c.mu.Lock()
	m := c.members[to]
	if m == nil {
		c.mu.Unlock()
		return ErrUnknown
	}
	if !m.gossiping || m.refused {
		c.mu.Unlock()
		return ErrUnreachable
	}
	node, slot := m.nodeLocked(), m.reliable
	c.mu.Unlock()
	select {
	case slot <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-c.ctx.Done():
		return ErrStopped
	}
	// memberlist knows no context; its connections have a deadline.
	sent := make(chan error, 1)
	if !c.spawn(func() {
		defer func() { <-slot }()
		err := c.ml.SendReliable(node, c.frame(kindReliable, msg))
		if err != nil {
			c.metrics.dropped[dropFailed].Inc()
		} else {
			c.metrics.send(Reliable, len(msg))
		}
		sent <- err
	}) {
		<-slot
		return ErrStopped
	}
	select {
	case err := <-sent:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A countedConn knows whether it makes progress.
type countedConn struct {
	net.Conn
	written atomic.Int64
	closed  func()
	once    sync.Once
}

func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.written.Add(int64(n))
	return n, err
}

func (c *countedConn) Close() error {
	c.once.Do(c.closed)
	return c.Conn.Close()
}

// progress is how many bytes a stalled connection may still carry: pings and
// acks of the other direction are no progress.
const progress = 4 << 10

// watched calls f, and stalled from another goroutine if the connection
// carries nothing for a time meanwhile.
func (c *countedConn) watched(patience time.Duration, stalled func(), f func() error) error {
	var mu sync.Mutex
	var timer *time.Timer // nil: f has returned
	last := c.written.Load()
	mu.Lock()
	timer = time.AfterFunc(patience, func() {
		mu.Lock()
		defer mu.Unlock()
		now := c.written.Load()
		switch {
		case timer == nil:
		case now-last < progress:
			go stalled() // f returns by it
		default:
			last = now
			timer.Reset(patience)
		}
	})
	mu.Unlock()
	err := f()
	mu.Lock()
	timer.Stop()
	timer = nil
	mu.Unlock()
	return err
}
