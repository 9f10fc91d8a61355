package httpapi

import (
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/starling-registry/starling/pkg/nacos"
)

// An Operator is what the operator API of Nacos tells of this node, and does to
// it. Its functions are called from any goroutine.
type Operator struct {
	// Counts feeds metrics. Nil: zeros.
	Counts func() Counts
	// Machine tells metrics of the machine. Nil: nothing is known.
	Machine func() Machine
	// Pushes tells what became of pushes of this node, and with reset begins to
	// count anew. Nil: there are none.
	Pushes func(reset bool) nacos.PushState
	// Responsible is the address of the node that keeps the client of that id.
	// Nil: "".
	Responsible func(client string) string
	// Switches are those that count now; they are read for each request and
	// never changed. Nil: the defaults.
	Switches func() *nacos.Switches
	// SwitchHere sets a switch on this node alone, in memory; to "": what was
	// set that way does not count any more. Nil: it cannot.
	SwitchHere func(name, value string)
	// SetLogLevel changes what this node logs, until it stops. Nil: it cannot.
	SetLogLevel func(zapcore.Level)
}

// Counts are what operator/metrics tells beyond the registry's own.
type Counts struct {
	Subscribers, Connections, BeatClients int
}

// A Machine is how the machine is. Negative is not known, as Java puts it.
type Machine struct {
	CPU  float64 `json:"cpu"`  // busy share, from 0 to 1
	Load float64 `json:"load"` // average of a minute
	Mem  float64 `json:"mem"`  // used share, from 0 to 1
}

// operatorMetrics serves GET operator/metrics: for SDKs a question whether the
// server is up (http-api §5.12). A node that is not ready does not get here.
func (s *Server) operatorMetrics(c *call) error {
	only, err := c.onlyStatus()
	if err != nil {
		return err
	}
	status := s.switches().Status()
	if only {
		return c.answer(append(nacos.AppendString([]byte(`{"status":`), status), '}'))
	}
	var n Counts
	if s.opts.Operator.Counts != nil {
		n = s.opts.Operator.Counts()
	}
	stats := s.opts.Registry.Stats()
	persistent := int(stats.PersistentInstances) // in several services: several clients
	clients := n.Connections + n.BeatClients + persistent
	m := struct {
		Status               string `json:"status"`
		Services             int64  `json:"serviceCount"`
		Instances            int64  `json:"instanceCount"`
		Subscribers          int    `json:"subscribeCount"`
		ResponsibleInstances *int64 `json:"responsibleInstanceCount,omitempty"` // v1 only
		Clients              int    `json:"clientCount"`
		Connections          int    `json:"connectionBasedClientCount"`
		BeatClients          int    `json:"ephemeralIpPortClientCount"`
		PersistentClients    int    `json:"persistentIpPortClientCount"`
		ResponsibleClients   int    `json:"responsibleClientCount"`
		*Machine                    // not in v3
	}{status, stats.Services, stats.Instances, n.Subscribers, nil, clients, n.Connections, n.BeatClients, persistent, clients, nil}
	if c.version == v1 {
		m.ResponsibleInstances = &stats.Instances
	}
	if c.version != v3 {
		m.Machine = &Machine{-1, -1, -1}
		if s.opts.Operator.Machine != nil {
			*m.Machine = s.opts.Operator.Machine()
		}
	}
	return c.answerJSON(m)
}

// onlyStatus is true if nothing is said. In v1 it is false for any other word
// than true: Python and C# write it True.
func (c *call) onlyStatus() (bool, error) {
	if only := c.get("onlyStatus"); c.version == v1 {
		return only == "" || strings.EqualFold(only, "true"), nil
	}
	return c.flag(true, "onlyStatus")
}

// pushState serves operator/push/state, with any method.
func (s *Server) pushState(c *call) error {
	detail, err := c.flag(false, "detail")
	if err != nil {
		return err
	}
	reset, err := c.flag(false, "reset")
	if err != nil {
		return err
	}
	p := nacos.PushState{MeanCost: -1, MaxCost: -1}
	if s.opts.Operator.Pushes != nil {
		p = s.opts.Operator.Pushes(reset)
	}
	return c.answer(p.AppendJSON(nil, detail, reset))
}

// responsible serves GET distro/client: which node keeps an HTTP client.
func (s *Server) responsible(c *call) error {
	ip := c.raw("ip")
	port, err := checkAddress(ip, c.raw("port"))
	switch {
	case err != nil:
		return err
	case ip == "":
		return errMissingDeclared("ip")
	case c.raw("port") == "":
		return errMissingDeclared("port")
	}
	server := ""
	if s.opts.Operator.Responsible != nil {
		server = s.opts.Operator.Responsible(nacos.BeatClientID(ip, port))
	}
	return c.answer(append(nacos.AppendString([]byte(`{"responsibleServer":`), server), '}'))
}

// setLogLevel serves PUT operator/log. This server has one level for all of its
// log: the name is taken as Nacos takes one that it does not know.
func (s *Server) setLogLevel(c *call) error {
	for _, param := range []string{"logName", "logLevel"} {
		if c.get(param) == "" {
			return errMissingDeclared(param)
		}
	}
	if err := s.changeLogLevel(c, c.get("logName"), c.get("logLevel")); err != nil {
		return err
	}
	return c.ok()
}

// logLevels are those of Nacos.
var logLevels = map[string]zapcore.Level{"ALL": zap.DebugLevel, "TRACE": zap.DebugLevel, "DEBUG": zap.DebugLevel, "INFO": zap.InfoLevel,
	"WARN": zap.WarnLevel, "ERROR": zap.ErrorLevel, "OFF": zap.FatalLevel}

func (s *Server) changeLogLevel(c *call, name, level string) error {
	to, known := logLevels[strings.ToUpper(level)]
	switch {
	case !known:
		return errLogLevel(level)
	case s.opts.Operator.SetLogLevel == nil:
		return errNoLogLevel
	}
	s.log.Info("an operator changes the log level of this node", zap.String("logName", clip(name)), zap.Stringer("level", to), zap.String("remote", c.r.RemoteAddr))
	s.opts.Operator.SetLogLevel(to)
	return nil
}
