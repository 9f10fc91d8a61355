package simnet

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"
)

// PacketQueue is how many packets wait at a receiver; more are dropped.
const PacketQueue = 4096

// A Transport is a memberlist.Transport of a host.
type Transport struct {
	host     *Host
	at       netip.AddrPort
	listener *listener
	packets  chan *memberlist.Packet
	streams  chan net.Conn
	closed   bool // guarded by the network's lock
	done     chan struct{}
	accepted chan struct{} // closed when its goroutine has ended
}

// Transport listens for packets and streams on a port of all addresses.
// Shutdown ends it; so does the death of the host.
func (h *Host) Transport(port int) (*Transport, error) {
	l, err := h.listen(fmt.Sprintf("[::]:%d", port))
	if err != nil {
		return nil, err
	}
	t := &Transport{
		host:     h,
		at:       l.at,
		listener: l,
		packets:  make(chan *memberlist.Packet, PacketQueue),
		streams:  make(chan net.Conn),
		done:     make(chan struct{}),
		accepted: make(chan struct{}),
	}
	h.net.mu.Lock()
	h.transports[t.at] = t
	h.net.mu.Unlock()
	go t.accept()
	return t, nil
}

func (t *Transport) accept() {
	defer close(t.accepted)
	for {
		c, err := t.listener.Accept()
		if err != nil {
			return
		}
		select {
		case t.streams <- c:
		case <-t.done:
			c.Close()
			return
		}
	}
}

// FinalAdvertiseAddr gives what was configured, or the first address.
func (t *Transport) FinalAdvertiseAddr(ip string, port int) (net.IP, int, error) {
	if port == 0 {
		port = int(t.at.Port())
	}
	addr := t.host.Addrs[0]
	if ip != "" {
		var err error
		if addr, err = netip.ParseAddr(ip); err != nil {
			return nil, 0, err
		}
	}
	return net.IP(addr.AsSlice()), port, nil
}

// WriteTo sends a packet, or loses it. While the host is frozen it waits.
func (t *Transport) WriteTo(b []byte, addr string) (time.Time, error) {
	now := time.Now()
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return now, err
	}
	n := t.host.net
	n.mu.Lock()
	for t.host.frozen != running && !t.closed { // a stopped process sends nothing
		changed := n.changed
		n.mu.Unlock()
		select {
		case <-changed:
		case <-t.done:
		}
		n.mu.Lock()
	}
	defer n.mu.Unlock()
	if t.closed {
		return now, net.ErrClosed
	}
	other := n.hostLocked(to.Addr())
	if other == nil {
		return now, nil
	}
	w := way{t.host.Name, other.Name}
	link := n.linkLocked(w)
	traffic := n.trafficLocked(w)
	traffic.Packets++
	traffic.PacketBytes += len(b)
	if n.rand.Float64() < link.Loss {
		return now, nil
	}
	copies := 1
	if n.rand.Float64() < link.Duplicate {
		copies = 2
	}
	from := t.host.Addrs[0]
	for _, a := range t.host.Addrs {
		if a.Is4() == to.Addr().Unmap().Is4() {
			from = a
			break
		}
	}
	packet := memberlist.Packet{Buf: append([]byte(nil), b...), From: net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, t.at.Port()))}
	for range copies {
		delay := link.Delay
		if link.Jitter > 0 {
			delay += time.Duration(n.rand.Int64N(int64(link.Jitter)))
		}
		if n.rand.Float64() < link.Reorder {
			delay += time.Duration(1+n.rand.IntN(50)) * time.Millisecond
		}
		time.AfterFunc(delay, func() { t.deliver(other, to.Port(), packet) })
	}
	return now, nil
}

// deliver hands a packet over, if nothing is cut when it arrives.
func (t *Transport) deliver(other *Host, port uint16, packet memberlist.Packet) {
	n := t.host.net
	n.mu.Lock()
	defer n.mu.Unlock()
	// Both freeze with what is under way, up to what sockets buffer.
	for _, h := range []*Host{t.host, other} {
		if h.frozen != running {
			if len(h.held) < PacketQueue {
				h.held = append(h.held, func() { t.deliver(other, port, packet) })
			}
			return
		}
	}
	if !n.passLocked(t.host, other) || other.dead != alive {
		return
	}
	receiver := other.transports[netip.AddrPortFrom(netip.IPv6Unspecified(), port)]
	if receiver == nil {
		return
	}
	packet.Buf = append([]byte(nil), packet.Buf...) // memberlist decodes in place
	packet.Timestamp = time.Now()
	select {
	case receiver.packets <- &packet:
	default:
	}
}

// PacketCh is where packets arrive.
func (t *Transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh is where streams arrive.
func (t *Transport) StreamCh() <-chan net.Conn { return t.streams }

// DialTimeout opens a stream.
func (t *Transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return t.host.Dial(ctx, addr)
}

// Shutdown ends it and waits for its goroutine.
func (t *Transport) Shutdown() error {
	n := t.host.net
	n.mu.Lock()
	t.closeLocked()
	n.wakeLocked()
	n.mu.Unlock()
	<-t.accepted
	return nil
}

func (t *Transport) closeLocked() {
	if t.closed {
		return
	}
	t.closed = true
	close(t.done)
	delete(t.host.transports, t.at)
	t.listener.closeLocked()
}
