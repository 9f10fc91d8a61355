package grpcapi

import (
	"net"
	"syscall"

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

// peerClosed reports whether the other side has closed a connection, also if
// nobody has read that far. It does not block. What is no socket may know by
// itself, with a method PeerClosed.
func peerClosed(c net.Conn) bool {
	if known, ok := c.(interface{ PeerClosed() bool }); ok {
		return known.PeerClosed()
	}
	sc, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return true // closed by us
	}
	var closed bool
	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return
		}
		switch info.State {
		case tcpClose, tcpCloseWait, tcpLastAck, tcpClosing:
			closed = true
		}
	})
	return closed || err != nil
}
