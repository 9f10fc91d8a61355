package simnet

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"
)

type death uint8

const (
	alive   death = iota
	crashed       // the machine answers, the process is gone
	off           // nothing answers
)

type freeze uint8

const (
	running freeze = iota
	frozen         // the process is stopped, its kernel is not
	paused         // the whole machine is stopped
)

// Backlog is how many connections wait to be accepted; more are not answered.
const Backlog = 128

// A Host is the network stack of one process.
type Host struct {
	net   *Network
	Name  string
	Addrs []netip.Addr

	// Guarded by net.mu.
	dead       death
	frozen     freeze
	listeners  map[netip.AddrPort]*listener  // an unspecified address stands for all
	transports map[netip.AddrPort]*Transport // who gets packets
	conns      map[*conn]struct{}
	held       []func() // packets that wait for the end of the freeze
	port       int      // last ephemeral port
	gone       chan struct{}
}

// Freeze stops the process: connections to it are still established, nothing
// else moves.
func (h *Host) Freeze() { h.freeze(frozen) }

// Pause stops the machine.
func (h *Host) Pause() { h.freeze(paused) }

// Thaw ends Freeze and Pause. What stood still goes on.
func (h *Host) Thaw() { h.freeze(running) }

func (h *Host) freeze(f freeze) {
	h.net.mu.Lock()
	h.net.settleLocked()
	h.frozen = f
	var held []func()
	if f == running {
		held, h.held = h.held, nil
	}
	h.net.wakeLocked()
	h.net.mu.Unlock()
	for _, deliver := range held {
		deliver()
	}
}

// Crash ends the process: peers see resets, and dials are refused.
func (h *Host) Crash() { h.die(crashed) }

// PowerOff ends the machine: peers see nothing.
func (h *Host) PowerOff() { h.die(off) }

func (h *Host) die(d death) {
	n := h.net
	n.mu.Lock()
	defer n.mu.Unlock()
	if h.dead == alive {
		close(h.gone)
	}
	n.settleLocked()
	h.dead = d
	for c := range h.conns {
		c.dieLocked(d == crashed)
	}
	clear(h.conns)
	for _, l := range h.listeners {
		l.closeLocked()
	}
	for _, t := range h.transports {
		t.closeLocked()
	}
	h.held = nil
	h.frozen = running // a killed process does not stay stopped
	n.wakeLocked()
}

func opError(op string, addr net.Addr, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Addr: addr, Err: err}
}

// Listen is like net.Listen for TCP; addr is an address literal or nothing,
// and a port.
func (h *Host) Listen(network, addr string) (net.Listener, error) {
	return h.listen(addr)
}

func (h *Host) listen(addr string) (*listener, error) {
	at, err := h.parse(addr)
	if err != nil {
		return nil, err
	}
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	if h.dead != alive {
		return nil, opError("listen", nil, net.ErrClosed)
	}
	if at.Port() == 0 {
		at = netip.AddrPortFrom(at.Addr(), h.nextPortLocked())
	}
	for other := range h.listeners {
		if other.Port() == at.Port() && (other.Addr() == at.Addr() || other.Addr().IsUnspecified() || at.Addr().IsUnspecified()) {
			return nil, opError("listen", net.TCPAddrFromAddrPort(at), os.NewSyscallError("bind", syscall.EADDRINUSE))
		}
	}
	l := &listener{host: h, at: at, backlog: make(chan *conn, Backlog), done: make(chan struct{})}
	h.listeners[at] = l
	return l, nil
}

func (h *Host) parse(addr string) (netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return netip.AddrPort{}, err
	}
	p, err := net.LookupPort("tcp", port)
	if err != nil {
		return netip.AddrPort{}, err
	}
	ip := netip.IPv6Unspecified()
	if host != "" {
		if ip, err = netip.ParseAddr(host); err != nil {
			return netip.AddrPort{}, err
		}
		if !ip.IsUnspecified() && !slices.Contains(h.Addrs, ip) {
			return netip.AddrPort{}, opError("listen", nil, os.NewSyscallError("bind", syscall.EADDRNOTAVAIL))
		}
		if ip.IsUnspecified() {
			ip = netip.IPv6Unspecified()
		}
	}
	return netip.AddrPortFrom(ip, uint16(p)), nil
}

func (h *Host) nextPortLocked() uint16 {
	h.port++
	if h.port > 65535 {
		h.port = 32769
	}
	return uint16(h.port)
}

// listenerLocked is who listens at an address of this host.
func (h *Host) listenerLocked(at netip.AddrPort) *listener {
	if l := h.listeners[at]; l != nil {
		return l
	}
	return h.listeners[netip.AddrPortFrom(netip.IPv6Unspecified(), at.Port())]
}

// Lookup resolves a name as all hosts do.
func (h *Host) Lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	return h.net.Lookup(ctx, host)
}

// Dial connects to an address, or to the first one of a name. It hangs until
// the context ends if nothing answers.
func (h *Host) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := h.dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (h *Host) dial(ctx context.Context, addr string) (*conn, error) {
	name, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	p, err := net.LookupPort("tcp", port)
	if err != nil {
		return nil, err
	}
	ips, err := h.net.Lookup(ctx, name)
	if err != nil {
		return nil, err
	}
	to := netip.AddrPortFrom(ips[0].Unmap(), uint16(p))
	target := net.TCPAddrFromAddrPort(to)
	n := h.net
	for {
		n.mu.Lock()
		if h.dead != alive {
			n.mu.Unlock()
			return nil, opError("dial", target, net.ErrClosed)
		}
		other := n.hostLocked(to.Addr())
		answers := h.answeredLocked(other)
		changed := n.changed
		var rtt time.Duration
		if answers {
			rtt = n.linkLocked(way{h.Name, other.Name}).Delay + n.linkLocked(way{other.Name, h.Name}).Delay
		}
		n.mu.Unlock()

		if answers {
			if err := h.sleep(ctx, rtt); err != nil {
				return nil, opError("dial", target, err)
			}
			n.mu.Lock()
			if h.dead != alive || n.hostLocked(to.Addr()) != other || !h.answeredLocked(other) {
				n.mu.Unlock()
				continue
			}
			var l *listener
			if other.dead == alive {
				l = other.listenerLocked(to)
			}
			if l == nil {
				n.mu.Unlock()
				return nil, opError("dial", target, os.NewSyscallError("connect", syscall.ECONNREFUSED))
			}
			if len(l.backlog) < cap(l.backlog) {
				from := h.Addrs[0]
				for _, a := range h.Addrs {
					if a.Is4() == to.Addr().Is4() {
						from = a
						break
					}
				}
				here, there := connectLocked(h, other, netip.AddrPortFrom(from, h.nextPortLocked()), to)
				n.trafficLocked(way{h.Name, other.Name}).Streams++
				l.backlog <- there // room was checked, and this lock is held by whoever fills it
				n.mu.Unlock()
				return here, nil
			}
			n.mu.Unlock()
			if err := h.sleep(ctx, time.Second); err != nil { // as a lost SYN
				return nil, opError("dial", target, err)
			}
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, opError("dial", target, ctxError(ctx))
		case <-h.gone:
		}
	}
}

// answeredLocked tells whether the kernel of another host answers this one.
func (h *Host) answeredLocked(other *Host) bool {
	return other != nil && other.dead != off && other.frozen != paused && h.frozen == running &&
		!h.net.cuts[way{h.Name, other.Name}] && !h.net.cuts[way{other.Name, h.Name}]
}

func ctxError(ctx context.Context) error {
	if ctx.Err() == context.DeadlineExceeded {
		return os.ErrDeadlineExceeded
	}
	return ctx.Err()
}

func (h *Host) sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-h.gone:
		return net.ErrClosed
	case <-ctx.Done():
		return ctxError(ctx)
	}
}

type listener struct {
	host    *Host
	at      netip.AddrPort
	backlog chan *conn
	done    chan struct{}
	closed  bool // guarded by the network's lock
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		l.host.net.mu.Lock()
		frozen := l.host.frozen != running
		changed := l.host.net.changed
		l.host.net.mu.Unlock()
		if frozen {
			select {
			case <-changed:
			case <-l.done:
				return nil, opError("accept", l.Addr(), net.ErrClosed)
			}
			continue
		}
		select {
		case c := <-l.backlog:
			return c, nil
		case <-changed:
		case <-l.done:
			return nil, opError("accept", l.Addr(), net.ErrClosed)
		}
	}
}

func (l *listener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.at) }

func (l *listener) Close() error {
	l.host.net.mu.Lock()
	defer l.host.net.mu.Unlock()
	if l.closed {
		return fmt.Errorf("close %v: %w", l.at, net.ErrClosed)
	}
	l.closeLocked()
	l.host.net.wakeLocked()
	return nil
}

func (l *listener) closeLocked() {
	if l.closed {
		return
	}
	l.closed = true
	close(l.done)
	delete(l.host.listeners, l.at)
	for {
		select {
		case c := <-l.backlog:
			c.dieLocked(true)
			delete(l.host.conns, c)
			continue
		default:
		}
		return
	}
}
