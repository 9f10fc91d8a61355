package link

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxQueue bounds the bytes of one direction of a connection that wait here.
	// With more, no more is read, and the sender's kernel makes it wait.
	maxQueue = 1 << 20

	// chunkSize is what is read at once; lossyChunk while packets are lost, each
	// of which delays the whole chunk.
	chunkSize, lossyChunk = 64 << 10, 16 << 10

	// patience is how long a reset waits for data before it that its receiver does
	// not take. A kernel delivers a reset whether or not there is room for data.
	patience = 100 * time.Millisecond

	// aliveCheck is the time between two looks whether the client of a connection
	// that waits in a cut is still there.
	aliveCheck = 200 * time.Millisecond

	// dialLimit is about as long as a kernel tries.
	dialLimit = 2 * time.Minute
)

// A stream is one TCP connection through a front: the client's half and, after
// the dial, the target's.
type stream struct {
	front  *relayEnd
	relay  *Relay
	client *net.TCPConn

	quit chan struct{} // closed when it is over
	once sync.Once

	mu     sync.Mutex
	target *net.TCPConn

	there, back *pipe // nil before the dial; then constant
	finished    atomic.Int32
}

// accept serves the connections of a port of a front until the listener is
// closed.
func (r *Relay) accept(e *relayEnd, l net.Listener, port int) {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of file descriptors, or the client is gone again
			select {
			case <-time.After(10 * time.Millisecond):
			case <-r.quit:
			}
			continue
		}
		s := &stream{front: e, relay: r, client: conn.(*net.TCPConn), quit: make(chan struct{})}
		r.mu.Lock()
		known := r.ends[e.name] == e && !r.closed
		if known {
			e.streams[s] = struct{}{}
		}
		r.mu.Unlock()
		if !known {
			s.abort()
			continue
		}
		r.running.Go(func() { s.serve(port) })
	}
}

// serve finds out who dialled, dials in its turn and then hands on bytes until
// both sides have ended.
func (s *stream) serve(port int) {
	r := s.relay
	from, err := r.owners.of(s.client.RemoteAddr().(*net.TCPAddr), s.client.LocalAddr().(*net.TCPAddr))
	if err != nil {
		s.abort()
		return
	}
	to, address, ok := r.destination(s.front)
	if !ok {
		s.abort()
		return
	}
	there, back := r.direction(from, to), r.direction(to, from)
	if !s.arrive(there, back) {
		s.abort()
		return
	}
	dialer := net.Dialer{
		// The server sees the address that it would see without a relay.
		LocalAddr: &net.TCPAddr{IP: s.client.RemoteAddr().(*net.TCPAddr).IP},
		Control:   outgoing,
		KeepAlive: -1,
		Timeout:   dialLimit,
	}
	if !dialer.LocalAddr.(*net.TCPAddr).IP.IsLoopback() || !isLoopback(address) {
		dialer.LocalAddr = nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		select {
		case <-s.quit:
			cancel()
		case <-ctx.Done():
		}
	}()
	conn, err := dialer.DialContext(ctx, "tcp4", net.JoinHostPort(address, strconv.Itoa(port)))
	cancel()
	<-stop
	if err != nil {
		there.failed.Add(1)
		s.abort()
		return
	}
	s.mu.Lock()
	s.target = conn.(*net.TCPConn)
	s.mu.Unlock()
	select {
	case <-s.quit:
		// abort may have come before there was a target.
		reset(s.target)
		return
	default:
	}
	// The answer to the packet that opens a connection takes its time too.
	g := back.rule.Load()
	held, _ := g.held(1, dialTimeout)
	if !back.pause(time.Now().Add(held), g, s.quit) {
		return
	}
	s.there = &pipe{stream: s, way: there, src: s.client, dst: s.target, room: make(chan struct{}, 1), work: make(chan struct{}, 1)}
	s.back = &pipe{stream: s, way: back, src: s.target, dst: s.client, room: make(chan struct{}, 1), work: make(chan struct{}, 1)}
	s.there.other, s.back.other = s.back, s.there
	var pumps sync.WaitGroup
	for _, p := range []*pipe{s.there, s.back} {
		p.way.join(p)
		pumps.Go(p.read)
		pumps.Go(p.write)
	}
	pumps.Wait()
	s.there.way.leave(s.there)
	s.back.way.leave(s.back)
}

// arrive waits as the packet that opens a connection would be under way. It is
// false when the client has gone or the stream was ended. What a cut holds back,
// on the way there or back, reaches nobody.
func (s *stream) arrive(there, back *direction) bool {
	waited := false
	for {
		g, answer := there.rule.Load(), back.rule.Load()
		if g.stopped() || answer.stopped() {
			waited = true
			timer := time.NewTimer(aliveCheck)
			select {
			case <-g.changed:
			case <-answer.changed:
			case <-timer.C:
			case <-s.quit:
			}
			timer.Stop()
			if ended(s.quit) || !s.clientHere() {
				there.cut.Add(1)
				return false
			}
			continue
		}
		held, lost := g.held(1, dialTimeout)
		there.lost.Add(lost)
		if !there.pause(time.Now().Add(held), g, s.quit) {
			return false
		}
		if there.rule.Load().stopped() || back.rule.Load().stopped() {
			continue
		}
		if waited && !s.clientHere() {
			there.cut.Add(1)
			return false
		}
		return true
	}
}

// destination is the end that a new connection to a front goes to, and its
// address.
func (r *Relay) destination(e *relayEnd) (name, address string, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.bind != "" {
		return e.name, e.bind, true
	}
	if len(e.targets) == 0 {
		return "", "", false
	}
	target := e.targets[e.turn%len(e.targets)]
	e.turn++
	if known := r.ends[target]; known != nil {
		return target, known.bind, known.bind != ""
	}
	// Either an address, or an end that is gone.
	return e.name, target, net.ParseIP(target) != nil
}

// close ends the stream. Bytes that the kernel has taken are still delivered.
func (s *stream) close() {
	s.once.Do(func() {
		close(s.quit)
		s.mu.Lock()
		target := s.target
		s.mu.Unlock()
		s.client.Close()
		if target != nil {
			target.Close()
		}
		s.relay.mu.Lock()
		delete(s.front.streams, s)
		s.relay.mu.Unlock()
	})
}

// abort ends it with a reset to both sides.
func (s *stream) abort() {
	s.client.SetLinger(0)
	s.mu.Lock()
	if s.target != nil {
		s.target.SetLinger(0)
	}
	s.mu.Unlock()
	s.close()
}

// A pipe is one direction of a stream: a goroutine that reads into a bounded
// queue and one that writes when it is time.
type pipe struct {
	stream   *stream
	way      *direction
	other    *pipe // the other direction of the same stream
	src, dst *net.TCPConn

	room, work chan struct{} // wake the reader and the writer; hold one token

	until time.Time // how long the writer tries after a reset; its own

	mu    sync.Mutex
	queue []chunk
	bytes int // of memory in queue
	end   ending
}

// An ending is what comes after the last byte.
type ending struct {
	kind int // none, fin or rst
	due  time.Time
	by   *ruling
}

const (
	none = iota
	fin  // the source sends no more
	rst  // the source is gone; goes before a fin
)

type chunk struct {
	data []byte
	due  time.Time
	by   *ruling
	// whole is the buffer that data lies in, if it came from buffers.
	whole *[chunkSize]byte
}

var chunks = sync.Pool{New: func() any { return new([chunkSize]byte) }}

func (p *pipe) read() {
	raw, err := p.src.SyscallConn()
	if err != nil {
		return // closed already
	}
	for {
		g, ok := p.way.open(p.stream.quit)
		if !ok || !p.waitForRoom() {
			return
		}
		limit := chunkSize
		if g.Loss > 0 {
			limit = lossyChunk
		}
		c, err := receive(raw, limit)
		if ended(p.stream.quit) {
			return
		}
		// The rule may have changed while there was nothing to read.
		g = p.way.rule.Load()
		held, lost := time.Duration(0), uint64(0)
		if !g.stopped() {
			held, lost = g.held(len(c.data), dataTimeout)
		}
		p.way.lost.Add(lost)
		// What came before may be due later; it is written before all the same.
		due := time.Now().Add(held)
		switch {
		case err != nil:
			p.finish(ending{rst, due, g})
			return
		case len(c.data) == 0:
			p.finish(ending{fin, due, g})
			return
		}
		c.due, c.by = due, g
		if held > 0 {
			p.way.delayed.Add(1)
		}
		p.mu.Lock()
		p.queue = append(p.queue, c)
		p.bytes += cap(c.data)
		p.mu.Unlock()
		wake(p.work)
	}
}

// receive waits without a buffer, since most connections are silent most of the
// time. No data and no error is the end.
func receive(raw syscall.RawConn, limit int) (c chunk, err error) {
	var n int
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		b := chunks.Get().(*[chunkSize]byte)
		for {
			n, failed = unix.Read(int(fd), b[:limit])
			if failed != unix.EINTR {
				break
			}
		}
		if failed != nil || n <= chunkSize/2 {
			// A small one does not hold a large buffer for as long as it waits.
			c.data = append([]byte(nil), b[:max(n, 0)]...)
			chunks.Put(b)
		} else {
			c.data, c.whole = b[:n], b
		}
		return failed != unix.EAGAIN
	})
	return c, errors.Join(err, failed)
}

func (p *pipe) waitForRoom() bool {
	for {
		p.mu.Lock()
		full := p.bytes >= maxQueue
		p.mu.Unlock()
		if !full {
			return true
		}
		select {
		case <-p.room:
		case <-p.stream.quit:
			return false
		}
	}
}

// finish says what comes after the queue. A reset is told by whoever notices:
// the reader, or the writer of the other direction. It also ends a wait for a
// receiver that takes nothing.
func (p *pipe) finish(e ending) {
	p.mu.Lock()
	if e.kind > p.end.kind {
		p.end = e
	}
	p.mu.Unlock()
	if e.kind == rst {
		p.interrupt()
	}
	wake(p.work)
}

// interrupt makes the writer look again at what it is to do.
func (p *pipe) interrupt() { p.dst.SetWriteDeadline(time.Unix(1, 0)) }

func (p *pipe) write() {
	quit := p.stream.quit
	broken := false // nothing can be written any more
	closed := false // the end is passed on
	for {
		p.mu.Lock()
		var c *chunk
		if len(p.queue) > 0 {
			c = &p.queue[0]
		}
		end := p.end
		p.mu.Unlock()
		switch {
		case c != nil:
			if !broken {
				err := p.deliver(*c)
				if ended(quit) {
					return
				}
				if errors.Is(err, errStalled) {
					broken = true // the reset that follows makes it so
				} else if err != nil {
					broken = true
					p.way.failed.Add(1)
					// Who is there no more answers by a reset.
					g := p.other.way.rule.Load()
					p.other.finish(ending{rst, time.Now().Add(g.Delay), g})
				}
			}
			p.mu.Lock()
			p.bytes -= cap(p.queue[0].data)
			if b := p.queue[0].whole; b != nil {
				chunks.Put(b)
			}
			p.queue[0] = chunk{}
			p.queue = p.queue[1:]
			if len(p.queue) == 0 {
				p.queue = nil
			}
			p.mu.Unlock()
			wake(p.room)
		case end.kind == rst:
			if p.passes(end) {
				p.stream.abort()
			}
			return
		case end.kind == fin && !closed:
			if !p.passes(end) {
				return
			}
			closed = true
			p.dst.CloseWrite() // fails when the receiver is gone, which its own pipe tells
			if p.stream.finished.Add(1) == 2 {
				p.stream.close()
				return
			}
		default:
			select {
			case <-p.work:
			case <-quit:
				return
			}
		}
	}
}

// passes waits until an ending reaches the other side. It is false when the
// stream is over.
func (p *pipe) passes(e ending) bool {
	if !p.way.pause(e.due, e.by, p.stream.quit) {
		return false
	}
	_, ok := p.way.open(p.stream.quit)
	return ok
}

// errStalled: the source is gone and the receiver takes nothing.
var errStalled = errors.New("no room for what came before a reset")

// deliver writes a chunk when it is due and as fast as the rule allows.
func (p *pipe) deliver(c chunk) error {
	quit := p.stream.quit
	if !p.way.pause(c.due, c.by, quit) {
		return net.ErrClosed
	}
	for data := c.data; len(data) > 0; {
		g, ok := p.way.open(quit)
		if !ok {
			return net.ErrClosed
		}
		piece := data
		if g.Rate > 0 {
			piece = data[:g.piece(len(data))]
			if !p.way.pause(g.through(len(piece)), g, quit) {
				return net.ErrClosed
			}
			if p.way.rule.Load() != g {
				continue
			}
		}
		n, err := p.dst.Write(piece)
		data = data[n:]
		p.way.bytes.Add(uint64(n))
		if err == nil {
			p.way.passed.Add(1)
			continue
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		// Somebody has interrupted, because of another rule or a reset. Both are
		// looked at after the deadline is taken back, or set before: no interruption
		// is lost.
		p.mu.Lock()
		gone := p.end.kind == rst
		p.mu.Unlock()
		if gone && p.until.IsZero() {
			p.until = time.Now().Add(patience)
		}
		if gone && !time.Now().Before(p.until) {
			return errStalled
		}
		p.dst.SetWriteDeadline(p.until)
	}
	return nil
}

func (d *direction) join(p *pipe) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pipes[p] = struct{}{}
}

func (d *direction) leave(p *pipe) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.pipes, p)
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func ended(quit <-chan struct{}) bool {
	select {
	case <-quit:
		return true
	default:
		return false
	}
}

func isLoopback(address string) bool {
	ip := net.ParseIP(address)
	return ip != nil && ip.IsLoopback()
}

// reset closes a connection so that the other side sees a reset.
func reset(c *net.TCPConn) {
	c.SetLinger(0)
	c.Close()
}

// clientHere: somebody still has the client's half open, and at most has closed
// his direction of it. Data that waits to be read hides nothing.
func (s *stream) clientHere() bool {
	raw, err := s.client.SyscallConn()
	if err != nil {
		return false
	}
	const stateEstablished, stateCloseWait = 1, 8 // as in /proc/net/tcp
	state := uint8(0)
	raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			state = info.State
		}
	})
	switch state {
	case stateEstablished:
		return true
	case stateCloseWait:
		_, err := s.relay.owners.of(s.client.RemoteAddr().(*net.TCPAddr), s.client.LocalAddr().(*net.TCPAddr))
		return err == nil
	}
	return false
}

// outgoing prepares a socket for a dial. Its port is chosen with the target
// known, so that thousands of connections from one address find one.
func outgoing(network, address string, c syscall.RawConn) error {
	var err error
	e := c.Control(func(fd uintptr) {
		err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1))
	})
	return errors.Join(e, err, boundBuffers(network, address, c))
}
