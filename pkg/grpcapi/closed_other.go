//go:build !linux

package grpcapi

import (
	"net"
	"time"
)

// peerClosed is only known here if the connection knows it by itself: the end
// of a socket is then handled when it is read, which may be after this node
// has spoken to others.
func peerClosed(c net.Conn) (closed bool, ago time.Duration) {
	known, ok := c.(interface{ PeerClosed() bool })
	return ok && known.PeerClosed(), 0
}
