package grpcapi

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// States of a TCP socket (include/net/tcp_states.h) in which its peer will not
// say anything new.
const (
	tcpClose     = 7
	tcpCloseWait = 8
	tcpLastAck   = 9
	tcpClosing   = 11
)

// healthCheckEvery is the time between two signs of life of a client
// (grpc-protocol §2.6).
const healthCheckEvery = 5 * time.Second

// peerClosed reports whether the other side has closed a connection, also if
// nobody has read that far, and how long ago (0: just now, or not known). It
// does not block. What is no socket may know by itself, with a method
// PeerClosed.
func peerClosed(c net.Conn) (closed bool, ago time.Duration) {
	if known, ok := c.(interface{ PeerClosed() bool }); ok {
		return known.PeerClosed(), 0
	}
	sc, ok := c.(syscall.Conn)
	if !ok {
		return false, 0
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return true, 0 // closed by us
	}
	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return
		}
		switch info.State {
		case tcpClose, tcpCloseWait, tcpLastAck, tcpClosing:
			closed = true
			// What closed it was the last segment that came; the kernel takes
			// them while the process stands still.
			ago = time.Duration(info.Last_ack_recv) * time.Millisecond
			if info.State == tcpClose {
				// A reset is not counted as such a segment: it is up to one
				// health check of the SDKs younger.
				ago = max(0, ago-healthCheckEvery)
			}
		}
	})
	return closed || err != nil, ago
}
