package simnet

import (
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
)

// Window is how many bytes of one direction of a connection can be under way
// or unread; a writer waits for the rest.
const Window = 256 << 10

// A pipe is one direction of a connection. It is guarded by the network's
// lock.
type pipe struct {
	from, to *Host
	segs     []segment // in order
	size     int       // bytes of them
	ended    bool      // the last segment is an end
	// Nobody will read it: the reader is closed or dead. If it was closed
	// (and not just vanished) and the network lets pass, writers hear of it.
	unread, told bool
	wake         chan struct{} // closed and replaced on each change
}

type segment struct {
	data    []byte
	end     error     // io.EOF or a reset, instead of data
	at      time.Time // when it arrives, if nothing is cut then
	arrived bool      // it has; a later cut does not matter
}

func (p *pipe) wakeLocked() {
	close(p.wake)
	p.wake = make(chan struct{})
}

func (p *pipe) endLocked(err error) {
	if p.ended {
		return
	}
	p.ended = true
	p.segs = append(p.segs, segment{end: err, at: time.Now().Add(p.from.net.linkLocked(way{p.from.Name, p.to.Name}).Delay)})
	p.wakeLocked()
}

// rebootLocked resets what a dead host of that name had open: the machine is
// there again and knows nothing of it.
func (p *pipe) rebootLocked(name string) {
	anybody := &Host{net: p.from.net, Name: name}
	if p.from.Name == name && p.from.dead != alive {
		p.from = anybody
		p.endLocked(os.NewSyscallError("read", syscall.ECONNRESET))
	}
	if p.to.Name == name && p.to.dead != alive {
		p.to = anybody
		p.told = true
	}
}

type conn struct {
	host          *Host
	local, remote net.Addr
	in, out       *pipe
	peer          *conn
	closed        chan struct{}
	once          sync.Once
	read, write   deadline
}

func connectLocked(from, to *Host, at, peer netip.AddrPort) (here, there *conn) {
	out := &pipe{from: from, to: to, wake: make(chan struct{})}
	in := &pipe{from: to, to: from, wake: make(chan struct{})}
	from.net.pipes[out] = struct{}{}
	from.net.pipes[in] = struct{}{}
	a, b := net.TCPAddrFromAddrPort(at), net.TCPAddrFromAddrPort(peer)
	here = &conn{host: from, local: a, remote: b, in: in, out: out, closed: make(chan struct{}), read: makeDeadline(), write: makeDeadline()}
	there = &conn{host: to, local: b, remote: a, in: out, out: in, closed: make(chan struct{}), read: makeDeadline(), write: makeDeadline()}
	here.peer, there.peer = there, here
	from.conns[here] = struct{}{}
	to.conns[there] = struct{}{}
	return here, there
}

func (c *conn) fail(op string, err error) error { return opError(op, c.remote, err) }

func (c *conn) Read(b []byte) (int, error) {
	n := c.host.net
	for {
		if isClosed(c.closed) {
			return 0, c.fail("read", net.ErrClosed)
		}
		if isClosed(c.read.wait()) {
			return 0, c.fail("read", os.ErrDeadlineExceeded)
		}
		if len(b) == 0 {
			return 0, nil
		}
		n.mu.Lock()
		var wait time.Duration = -1 // for ever
		p := c.in
		if len(p.segs) > 0 && c.host.frozen == running {
			s := &p.segs[0]
			left := time.Until(s.at)
			switch {
			case s.arrived || left <= 0 && n.passLocked(p.from, p.to):
				s.arrived = true
				if s.end != nil {
					n.mu.Unlock()
					if s.end == io.EOF {
						return 0, io.EOF
					}
					return 0, c.fail("read", s.end)
				}
				got := copy(b, s.data)
				s.data = s.data[got:]
				p.size -= got
				if len(s.data) == 0 {
					p.segs[0] = segment{}
					p.segs = p.segs[1:]
				}
				p.wakeLocked()
				n.mu.Unlock()
				return got, nil
			case left > 0:
				wait = left
			}
		}
		wake := p.wake
		n.mu.Unlock()
		c.await(wake, wait, c.read.wait())
	}
}

func (c *conn) Write(b []byte) (int, error) {
	n := c.host.net
	written := 0
	for {
		if isClosed(c.closed) {
			return written, c.fail("write", net.ErrClosed)
		}
		if isClosed(c.write.wait()) {
			return written, c.fail("write", os.ErrDeadlineExceeded)
		}
		n.mu.Lock()
		p := c.out
		if p.unread && p.told && n.passLocked(p.from, p.to) {
			n.mu.Unlock()
			return written, c.fail("write", os.NewSyscallError("write", syscall.EPIPE))
		}
		// A stopped process writes nothing.
		if room := min(Window-p.size, len(b)-written); room > 0 && c.host.frozen == running {
			w := way{p.from.Name, p.to.Name}
			link := n.linkLocked(w)
			at := time.Now()
			if link.Bandwidth > 0 {
				if busy := n.busy[w]; busy.After(at) {
					at = busy
				}
				at = at.Add(time.Duration(room) * time.Second / time.Duration(link.Bandwidth))
				n.busy[w] = at
			}
			at = at.Add(link.Delay)
			if last := len(p.segs) - 1; last >= 0 && p.segs[last].at.After(at) {
				at = p.segs[last].at // streams keep their order
			}
			p.segs = append(p.segs, segment{data: append([]byte(nil), b[written:written+room]...), at: at})
			p.size += room
			n.trafficLocked(w).StreamBytes += room
			written += room
			p.wakeLocked()
		}
		wake := p.wake
		n.mu.Unlock()
		if written == len(b) {
			return written, nil
		}
		c.await(wake, -1, c.write.wait())
	}
}

func (c *conn) await(wake chan struct{}, d time.Duration, deadline chan struct{}) {
	var arrival <-chan time.Time
	if d >= 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		arrival = t.C
	}
	select {
	case <-wake:
	case <-arrival:
	case <-deadline:
	case <-c.closed:
	}
}

func (c *conn) Close() error {
	c.host.net.mu.Lock()
	defer c.host.net.mu.Unlock()
	c.closeLocked(io.EOF, true)
	return nil
}

// dieLocked ends it with its host. If told, the other side hears of it.
func (c *conn) dieLocked(told bool) {
	c.closeLocked(os.NewSyscallError("read", syscall.ECONNRESET), told)
}

func (c *conn) closeLocked(end error, told bool) {
	c.once.Do(func() {
		close(c.closed)
		c.in.unread, c.in.told = true, told
		c.in.wakeLocked()
		if told {
			c.out.endLocked(end)
		}
		delete(c.host.conns, c)
		if isClosed(c.peer.closed) {
			delete(c.host.net.pipes, c.in)
			delete(c.host.net.pipes, c.out)
		}
	})
}

// PeerClosed reports whether the other side has closed the connection, also if
// nobody has read that far: what the kernel knows of a socket.
func (c *conn) PeerClosed() bool {
	n := c.host.net
	n.mu.Lock()
	defer n.mu.Unlock()
	p := c.in
	if !p.ended || len(p.segs) == 0 {
		return false
	}
	end := p.segs[len(p.segs)-1]
	return end.arrived || !end.at.After(time.Now()) && n.passLocked(p.from, p.to)
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) SetDeadline(t time.Time) error {
	c.read.set(t)
	c.write.set(t)
	return nil
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.read.set(t)
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.write.set(t)
	return nil
}

// A deadline is a channel that is closed when it is over, as in net.Pipe.
type deadline struct {
	mu     sync.Mutex
	timer  *time.Timer
	cancel chan struct{}
}

func makeDeadline() deadline { return deadline{cancel: make(chan struct{})} }

func (d *deadline) wait() chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cancel
}

func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	// A new channel each time: who waits on the old one is told to look again.
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	over := isClosed(d.cancel)
	if !over {
		// Waiters of the old channel look again and find the new one.
		close(d.cancel)
	}
	d.cancel = make(chan struct{})
	if t.IsZero() {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		close(d.cancel)
		return
	}
	cancel := d.cancel
	d.timer = time.AfterFunc(left, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if !isClosed(cancel) {
			close(cancel)
		}
	})
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
