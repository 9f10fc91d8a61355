package wire

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
)

// A network is a listener in memory: unlike sockets its waits are durable, so
// a server and its clients can live in a bubble of virtual time.
type network struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
	mu    sync.Mutex
	next  int
}

func newNetwork() *network { return &network{conns: make(chan net.Conn), done: make(chan struct{})} }

type pipeAddr string

func (pipeAddr) Network() string  { return "pipe" }
func (a pipeAddr) String() string { return string(a) }

type pipeConn struct {
	net.Conn
	remote net.Addr
}

func (c pipeConn) RemoteAddr() net.Addr { return c.remote }

func (n *network) Dial(ctx context.Context, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	n.mu.Lock()
	n.next++
	remote := pipeAddr("10.9.9.9:" + strconv.Itoa(40000+n.next))
	n.mu.Unlock()
	select {
	case n.conns <- pipeConn{server, remote}:
		return client, nil
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
