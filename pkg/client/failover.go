package client

import (
	"context"
	"log/slog"
)

// A failover watches the lists that operators have put into a directory.
type failover struct{}

// newFailover has the directory of Config.FailoverDir, where "" stands for one
// below that of the cache; nil if it is off, or both are.
func newFailover(cfg *Config, cache *diskCache, log *slog.Logger) *failover { return nil }

// run looks at once and every 5 s until the context ends (F-2), and tells what
// has changed: changed is called on this goroutine, never twice with the same.
// Lists are nil while off, and belong to the callee. A nil failover returns.
func (f *failover) run(ctx context.Context, changed func(on bool, lists map[ServiceID]stored)) {}
