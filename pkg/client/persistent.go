package client

import "context"

// persistHTTP registers or deregisters a persistent instance by HTTP: v1, or v3
// at servers that have no v1 any more (E-2).
func persistHTTP(ctx context.Context, cfg *Config, list *servers, l *login, id ServiceID, r Registration, deregister bool) error {
	return nil
}
