package httpapi

import (
	"context"
	"fmt"
	"net"
	"net/http"

	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/nacos"
)

// setHealth serves PUT health and health/instance: an operator says how a
// persistent instance is. That is for clusters that nobody checks; whether this
// is one, the tables of the log decide (semantics H21). An instance that is not
// there is no error (golden scenario 16).
func (s *Server) setHealth(c *call) error {
	key, at, err := c.instance()
	if err != nil {
		return err
	}
	if c.get("healthy", "valid") == "" {
		return errMissing("healthy")
	}
	healthy, err := c.flag(true, "healthy", "valid")
	if err != nil {
		return err
	}
	refused, err := s.durably(c, func(ctx context.Context, d Durable) error { return d.SetHealth(ctx, key, at, healthy) })
	switch {
	case refused == Invalid, refused == WrongKind:
		return errChecked(key, at.Cluster)
	case refused == NotFound:
		s.log.Warn("the health of an instance that is not there was set by hand, which changes nothing",
			zap.Stringer("service", key), zap.String("ip", at.IP), zap.Int("port", at.Port), zap.String("cluster", at.Cluster))
	case err != nil:
		return err
	}
	return c.ok()
}

// checkers serves GET health/checkers.
func (s *Server) checkers(c *call) error { return c.answer([]byte(nacos.Checkers)) }

// healthServer serves health/server, with any method.
func (s *Server) healthServer(c *call) error {
	port := 0
	if a, ok := c.r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		port = a.Port
	}
	return c.bare(append(nacos.AppendString([]byte(`{"msg":`), fmt.Sprintf(
		"Hello! I am Nacos-Naming and healthy! total services: %d, local port:%d", s.opts.Registry.Stats().Services, port)), '}'))
}
