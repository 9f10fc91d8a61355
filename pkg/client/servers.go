package client

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"
)

// A server is one address that a client can connect to.
type server struct {
	host string // an address, without brackets
	main int    // its HTTP port
	grpc int
	name string // as it was configured: a name, or the address; TLS and HTTP ask for it
	base string // URL of the HTTP API, by name, with the context path and no slash behind it
}

func (s server) String() string { return s.name }

// servers is the list of them: what was configured, resolved again and again.
type servers struct{}

// newServers checks the configuration and asks nobody; its errors are
// [ErrInvalid]. Both of resolver and dial may be nil.
func newServers(cfg *Config, dial func(ctx context.Context, addr string) (net.Conn, error), resolver *net.Resolver, log *slog.Logger) (*servers, error) {
	return &servers{}, nil
}

// start resolves names and asks the endpoint, at once and from then on, until
// the context ends.
func (s *servers) start(ctx context.Context, wg *sync.WaitGroup) {}

// next is the server to try now and what to wait before (0 for the first try
// after a connection that was good for some time). The error says why there is
// none; then waiting for changed is worth it.
func (s *servers) next() (server, time.Duration, error) { return server{}, 0, nil }

// connected says that a server has accepted a connection: delays start anew
// when the next one is asked for 5 s later or more.
func (s *servers) connected() {}

// recommended finds the server that another one has named (N-13).
func (s *servers) recommended(host string, port int) (server, bool) { return server{}, false }

// contains reports whether a connection to the server may stay.
func (s *servers) contains(server) bool { return false }

// changed is closed when contains or next may answer otherwise than before; ask
// for it before asking them.
func (s *servers) changed() <-chan struct{} { return nil }
