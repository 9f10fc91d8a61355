package httpapi

import (
	"context"
	"net/http"
	"strings"

	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/nacos"
)

var defaultSwitches = nacos.DefaultSwitches()

// switches are those that count now. They are not to be changed.
func (s *Server) switches() *nacos.Switches {
	if s.opts.Operator.Switches == nil {
		return &defaultSwitches
	}
	return s.opts.Operator.Switches()
}

// showSwitches serves GET operator/switches.
func (s *Server) showSwitches(c *call) error {
	return c.encoded(s.switches().AppendJSON(nil))
}

// setSwitch serves PUT operator/switches: for the whole cluster, by the log, or
// with debug for this node until it stops or the switch is set for all. Nacos
// says "ok" to a switch that it does not know (golden scenario 18), and so do
// we: scripts for other releases set some.
func (s *Server) setSwitch(c *call) error {
	for _, param := range []string{"entry", "value"} {
		// An empty value means something in v1 (golden scenario 75).
		if _, there := c.params[param]; !there || c.get(param) == "" && (c.version != v1 || param == "entry") {
			return errMissingSwitch(param)
		}
	}
	here, err := c.flag(false, "debug")
	if err != nil {
		return err
	}
	entry := c.get("entry")
	name, value, err := nacos.ParseSwitch(entry, c.get("value"))
	switch {
	case err != nil:
		return errValue(err)
	case name == "":
		s.log.Info("an operator set a switch that is not known, or to nothing, which changes nothing", zap.String("entry", clip(entry)))
		return c.ok()
	case here:
		if s.opts.Operator.SwitchHere != nil {
			s.opts.Operator.SwitchHere(name, value)
		}
	default:
		if _, err := s.durably(c, func(ctx context.Context, d Durable) error { return d.PutSwitch(ctx, name, value) }); err != nil {
			return err
		}
		if s.opts.Operator.SwitchHere != nil {
			s.opts.Operator.SwitchHere(name, "")
		}
	}
	s.log.Info("an operator set a switch", zap.String("name", name), zap.String("value", clip(value)), zap.Bool("onThisNodeOnly", here),
		zap.String("remote", c.r.RemoteAddr))
	return c.ok()
}

// gate refuses what v1 may not do at the moment, because an operator has said
// that the server is not up (semantics M13). Versions 2 and 3 are not gated:
// there it is switched back. Other servers pass, and so does what another node
// has let in.
func (s *Server) gate(r *http.Request) error {
	status := s.switches().Status()
	if status == nacos.StatusUp || isForwarded(r) {
		return nil
	}
	agent := r.UserAgent()
	if nacos.Blank(agent) {
		agent = r.Header.Get("Client-Version")
	}
	switch {
	case strings.HasPrefix(agent, "Nacos-Server"),
		status == nacos.StatusReadOnly && r.Method == http.MethodGet,
		status == nacos.StatusWriteOnly && r.Method != http.MethodGet:
		return nil
	}
	return errStatus(status)
}
