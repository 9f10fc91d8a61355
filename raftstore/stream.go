package raftstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"
)

// Every connection begins with a hello of the node that dialled and one of the
// node that took it; after that it belongs to the Raft library.
//
//	"STARRAFT"  8 bytes
//	version     1 byte, 1
//	length      2 bytes, of what follows
//	reason      1 byte: 0, or why the connection is refused (answers only)
//	generation  8 bytes
//	cluster, from, to: 1 byte length and as many bytes each
//
// Numbers are big-endian.
const (
	helloMagic     = "STARRAFT"
	helloVersion   = 1
	helloTime      = 5 * time.Second // for both hellos
	maxHelloString = 255
	maxHellos      = 64 // at one time; more connections are closed at once
	// A node has some five connections to each other. The library has a buffer
	// of 256 KiB for each that comes in.
	connsPerNode = 8
	spareConns   = 32
)

type hello struct {
	reason            string
	generation        uint64
	cluster, from, to string
}

func (h hello) bytes() []byte {
	body := []byte{byte(slices.Index(helloReasons, h.reason))}
	body = binary.BigEndian.AppendUint64(body, h.generation)
	for _, s := range []string{h.cluster, h.from, h.to} {
		s = s[:min(len(s), maxHelloString)]
		body = append(append(body, byte(len(s))), s...)
	}
	b := append([]byte(helloMagic), helloVersion)
	b = binary.BigEndian.AppendUint16(b, uint16(len(body)))
	return append(b, body...)
}

// readHello takes no byte too many. The error says what the reason is.
func readHello(r io.Reader) (hello, string, error) {
	var head [len(helloMagic) + 3]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return hello{}, helloBroken, err
	}
	if string(head[:len(helloMagic)]) != helloMagic {
		return hello{}, helloBroken, errors.New("this is not the Raft port of a node")
	}
	if v := head[len(helloMagic)]; v != helloVersion {
		return hello{}, helloWire, fmt.Errorf("version %d of the connection is not understood, %d is", v, helloVersion)
	}
	body := make([]byte, binary.BigEndian.Uint16(head[len(helloMagic)+1:]))
	if _, err := io.ReadFull(r, body); err != nil {
		return hello{}, helloBroken, err
	}
	malformed := errors.New("malformed hello")
	if len(body) < 9 || int(body[0]) >= len(helloReasons) {
		return hello{}, helloBroken, malformed
	}
	h := hello{reason: helloReasons[body[0]], generation: binary.BigEndian.Uint64(body[1:])}
	rest := body[9:]
	for _, s := range []*string{&h.cluster, &h.from, &h.to} {
		if len(rest) < 1 || len(rest) < 1+int(rest[0]) {
			return hello{}, helloBroken, malformed
		}
		n := 1 + int(rest[0])
		*s, rest = string(rest[1:n]), rest[n:]
	}
	return h, "", nil // what a newer release adds behind is not read
}

// judge tells why a node does not talk to another, by their hellos.
func judge(own, other hello) string {
	switch {
	case own.cluster == "" || other.cluster == "":
		return helloUnknown
	case own.cluster != other.cluster:
		return helloCluster
	case other.to != own.from || other.from == own.from:
		return helloNode
	case own.generation != other.generation:
		return helloGeneration
	}
	return helloOK
}

// A layer is the [raft.StreamLayer]: it dials by id, and lets nobody in who
// belongs to another cluster or to another generation of this one.
type layer struct {
	id       string
	listener net.Listener // nil: nobody comes
	dial     func(ctx context.Context, id string) (net.Conn, error)
	// own is what this node says, but for "to".
	own func() hello
	// adopt joins the generation of a peer, if this node has none yet; what it
	// returns is the generation that it has then.
	adopt   func(generation uint64) uint64
	saw     func(generation uint64)
	refused func(reason string)
	broken  func()
	timeout time.Duration // of the library
	members func() int
	log     *zap.Logger
	said    *said

	accepted chan net.Conn
	ctx      context.Context
	cancel   context.CancelFunc
	goes     sync.WaitGroup // acceptLoop and hellos
	handled  sync.WaitGroup // connections that the library reads

	mu     sync.Mutex
	closed bool
	conns  map[*tracked]struct{}
	hellos int
}

// A tracked connection can be closed by the layer: the library leaves those
// open that it waits on.
type tracked struct {
	net.Conn
	layer    *layer
	incoming bool
	once     sync.Once
	used     time.Time // last; guarded by layer.mu

	mu    sync.Mutex // the library answers on the goroutine that reads, but a snapshot is read on another
	meter meter
}

// Read measures what comes in.
func (c *tracked) Read(b []byte) (int, error) {
	if !c.incoming {
		return c.Conn.Read(b)
	}
	now := time.Now()
	c.mu.Lock()
	until := c.meter.deadline(now, c.layer.timeout)
	c.mu.Unlock()
	if err := c.Conn.SetReadDeadline(until); err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(b)
	c.layer.mu.Lock()
	c.used = now
	c.layer.mu.Unlock()
	c.mu.Lock()
	wrong := c.meter.feed(b[:n])
	c.mu.Unlock()
	if wrong != nil {
		c.layer.broken()
		if missed, ok := c.layer.said.now("broken request"); ok {
			c.layer.log.Warn("closed a connection of the Raft port", zap.String("remote", c.RemoteAddr().String()), zap.Error(wrong), zap.Int("repeated", missed))
		}
		return 0, wrong
	}
	return n, err
}

func (c *tracked) Write(b []byte) (int, error) {
	if c.incoming {
		c.mu.Lock()
		c.meter.answered()
		c.mu.Unlock()
		// Who does not read its answers is no node, either.
		if err := c.Conn.SetWriteDeadline(time.Now().Add(requestTime)); err != nil {
			return 0, err
		}
	}
	return c.Conn.Write(b)
}

// Close is called by the library when it is done.
func (c *tracked) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		c.layer.mu.Lock()
		delete(c.layer.conns, c)
		c.layer.mu.Unlock()
		if c.incoming {
			c.layer.handled.Done()
		}
	})
	return err
}

func (l *layer) start() {
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.accepted = make(chan net.Conn)
	l.conns = map[*tracked]struct{}{}
	if l.listener != nil {
		l.goes.Go(l.acceptLoop)
	}
}

// track hands a connection over to the library. There may be so many of other
// nodes; for one more, the one goes that has been silent for longest. So who
// opens many cannot keep a node out that has something to say.
func (l *layer) track(c net.Conn, incoming bool) (*tracked, error) {
	most := spareConns + connsPerNode*l.members()
	var over *tracked
	defer func() {
		if over != nil {
			_ = over.Conn.Close() // the library sees that, and calls Close
		}
	}()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, net.ErrClosed
	}
	t := &tracked{Conn: c, layer: l, incoming: incoming, used: time.Now()}
	if incoming {
		n := 0
		var oldest *tracked
		for o := range l.conns {
			if !o.incoming {
				continue
			}
			n++
			if oldest == nil || o.used.Before(oldest.used) {
				oldest = o
			}
		}
		if n >= most {
			l.refused(helloFull)
			delete(l.conns, oldest)
			over = oldest
		}
		l.handled.Add(1)
	}
	l.conns[t] = struct{}{}
	return t, nil
}

func (l *layer) acceptLoop() {
	wait := 5 * time.Millisecond
	for {
		c, err := l.listener.Accept()
		if err != nil {
			if l.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			if missed, ok := l.said.now("accept"); ok {
				l.log.Warn("cannot take connections of other nodes", zap.Error(err), zap.Int("repeated", missed))
			}
			select {
			case <-time.After(wait):
			case <-l.ctx.Done():
				return
			}
			wait = min(2*wait, time.Second)
			continue
		}
		wait = 5 * time.Millisecond
		l.mu.Lock()
		full := l.hellos >= maxHellos
		if !full {
			l.hellos++
		}
		l.mu.Unlock()
		if full {
			l.refused(helloFull)
			_ = c.Close()
			continue
		}
		l.goes.Go(func() {
			l.take(c)
		})
	}
}

// take answers the hello of a node that has dialled.
func (l *layer) take(c net.Conn) {
	// Who dials and says nothing must not hold up Close.
	stop := context.AfterFunc(l.ctx, func() { _ = c.Close() })
	err := l.greet(c)
	stop()
	l.mu.Lock()
	l.hellos--
	l.mu.Unlock()
	if err != nil {
		_ = c.Close()
		return
	}
	t, err := l.track(c, true)
	if err != nil {
		_ = c.Close()
		return
	}
	select {
	case l.accepted <- t:
	case <-l.ctx.Done():
		_ = t.Close()
	}
}

func (l *layer) greet(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(helloTime)); err != nil {
		return err
	}
	theirs, reason, err := readHello(c)
	own := l.own()
	if err == nil {
		if own.generation == 0 && own.cluster != "" && own.cluster == theirs.cluster && theirs.to == l.id && theirs.generation != 0 {
			own.generation = l.adopt(theirs.generation)
		}
		reason = judge(own, theirs)
	}
	own.to = theirs.from
	own.reason = reason
	if _, werr := c.Write(own.bytes()); werr != nil && err == nil {
		err = werr
	}
	if reason == helloOK {
		if err != nil {
			return err
		}
		return c.SetDeadline(time.Time{})
	}
	l.refused(reason)
	if missed, ok := l.said.now(reason + " of " + theirs.from); ok {
		l.log.Warn("refused a node at the Raft port", zap.String("reason", reason), zap.String("from", theirs.from),
			zap.String("remote", c.RemoteAddr().String()), zap.String("cluster", theirs.cluster), zap.Error(err), zap.Int("repeated", missed))
	}
	if reason == helloGeneration {
		l.saw(theirs.generation)
	}
	return fmt.Errorf("refused: %s", reason)
}

// Dial is called by the library; the address is an id.
func (l *layer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	if l.dial == nil {
		return nil, errors.New("this node has no way to others")
	}
	if timeout <= 0 || timeout > helloTime {
		timeout = helloTime
	}
	ctx, cancel := context.WithTimeout(l.ctx, timeout)
	defer cancel()
	c, err := l.dial(ctx, string(address))
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	own := l.own()
	own.to = string(address)
	err = func() error {
		if _, err := c.Write(own.bytes()); err != nil {
			return err
		}
		theirs, reason, err := readHello(c)
		if err != nil {
			l.refused(reason)
			return err
		}
		// It answers as whoever it is: what it refuses, it judged by our hello.
		if own.cluster != "" && theirs.cluster == own.cluster && theirs.generation > own.generation && theirs.from == own.to {
			l.saw(theirs.generation)
		}
		if theirs.reason == helloOK {
			theirs.reason = judge(own, theirs)
			if theirs.from != own.to {
				theirs.reason = helloNode
			}
		}
		if theirs.reason != helloOK {
			l.refused(theirs.reason)
			return fmt.Errorf("node %s does not talk to this one: %s", address, theirs.reason)
		}
		return nil
	}()
	if err == nil {
		var t *tracked
		if t, err = l.track(c, false); err == nil {
			return t, nil
		}
	}
	_ = c.Close()
	return nil, err
}

// Accept is called by the library.
func (l *layer) Accept() (net.Conn, error) {
	select {
	case c := <-l.accepted:
		return c, nil
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Addr is what the library stores as the address of this node: its id (C5).
func (l *layer) Addr() net.Addr { return address(l.id) }

// Close lets all calls under way fail. The library calls it, too.
func (l *layer) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	conns := make([]*tracked, 0, len(l.conns))
	for c := range l.conns {
		conns = append(conns, c)
	}
	l.mu.Unlock()
	l.cancel()
	if l.listener != nil {
		_ = l.listener.Close()
	}
	for _, c := range conns {
		_ = c.Conn.Close() // whoever uses it sees that, and calls Close
	}
	return nil
}

// wait returns when nothing of the layer runs any more.
func (l *layer) wait() {
	l.goes.Wait()
	l.handled.Wait()
}

// An address is the id of a node.
type address string

func (address) Network() string  { return "raft" }
func (a address) String() string { return string(a) }
