package grpcapi

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
)

// A network is a listener in memory: unlike sockets its waits are durable, so
// a server and its clients can live in a bubble of virtual time.
type network struct {
	conns chan net.Conn
	// hold makes the server stand still: until it is closed, nobody there
	// notices the end of a connection. Nil: it does not.
	hold atomic.Pointer[chan struct{}]
	done chan struct{}
	once sync.Once
	mu   sync.Mutex
	next int
}

func newNetwork() *network { return &network{conns: make(chan net.Conn), done: make(chan struct{})} }

type pipeAddr string

func (pipeAddr) Network() string  { return "pipe" }
func (a pipeAddr) String() string { return string(a) }

// A pipeConn is the server's side, a dialledConn the client's.
type pipeConn struct {
	net.Conn
	network *network
	remote  net.Addr
	closed  *atomic.Bool // by the client
}

func (c pipeConn) RemoteAddr() net.Addr { return c.remote }
func (c pipeConn) PeerClosed() bool     { return c.closed.Load() }

func (c pipeConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if hold := c.network.hold.Load(); hold != nil && c.closed.Load() {
		<-*hold
	}
	return n, err
}

func (n *network) freeze() (thaw func()) {
	hold := make(chan struct{})
	n.hold.Store(&hold)
	return func() { n.hold.Store(nil); close(hold) }
}

type dialledConn struct {
	net.Conn
	closed *atomic.Bool
}

func (c dialledConn) Close() error {
	c.closed.Store(true)
	return c.Conn.Close()
}

func (n *network) Dial(ctx context.Context, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	n.mu.Lock()
	n.next++
	remote := pipeAddr("10.9.9.9:" + strconv.Itoa(40000+n.next))
	n.mu.Unlock()
	closed := new(atomic.Bool)
	select {
	case n.conns <- pipeConn{server, n, remote, closed}:
		return dialledConn{client, closed}, nil
	case <-n.done:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (n *network) Accept() (net.Conn, error) {
	select {
	case c := <-n.conns:
		return c, nil
	case <-n.done:
		return nil, net.ErrClosed
	}
}

func (n *network) Close() error   { n.once.Do(func() { close(n.done) }); return nil }
func (n *network) Addr() net.Addr { return pipeAddr("10.9.9.1:9848") }
