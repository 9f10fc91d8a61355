package client

import (
	"context"
	"log/slog"
	"sync"
)

// A login has the headers that go with every request.
type login struct{}

// newLogin: extra is that of WithCredentials, or nil.
func newLogin(cfg *Config, list *servers, extra func(ctx context.Context) (map[string]string, error), log *slog.Logger) *login {
	return &login{}
}

// start keeps the token fresh until the context ends.
func (l *login) start(ctx context.Context, wg *sync.WaitGroup) {}

// headers are those for a request made now: app, accessToken, and what
// WithCredentials gives. The map belongs to the caller. It waits for a login if
// there is no token: the error is ErrUnauthorized if the servers refuse, and
// ErrNotConnected if none could be asked.
func (l *login) headers(ctx context.Context) (map[string]string, error) { return nil, nil }

// refused says that a request with these headers was answered by 403, and
// reports whether to try once more with what headers then returns.
func (l *login) refused(used map[string]string) bool { return false }
