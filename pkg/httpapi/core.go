package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/nacos"
)

// A Core is what the core API of Nacos tells of the cluster, and does. Its
// functions are called from any goroutine; one that is nil the node does not
// offer.
type Core struct {
	// Members tells the members as this node sees them.
	Members func() []nacos.Member
	// HandOver makes another node lead the log, if this one does.
	HandOver func(context.Context) error
	// Leads reports whether this node leads the log, and who does: an address,
	// "" if nobody is known to.
	Leads func() (leads bool, leader string)
	// Connections are the ids of the clients on gRPC.
	Connections func() []string
}

// members are those that are known, by address.
func (s *Server) members() []nacos.Member {
	if s.opts.Core.Members == nil {
		return nil
	}
	ms := slices.Clone(s.opts.Core.Members())
	slices.SortFunc(ms, func(a, b nacos.Member) int { return strings.Compare(a.Address(), b.Address()) })
	return ms
}

func (s *Server) self() (nacos.Member, error) {
	for _, m := range s.members() {
		if m.Self {
			return m, nil
		}
	}
	return nacos.Member{}, errNoMember
}

// clusterNodes serves GET cluster/nodes and cluster/node/list; keyword and
// address are the beginning of an address.
func (s *Server) clusterNodes(c *call) error {
	of, state := c.get("keyword"), ""
	if c.version != v1 {
		of = c.get("address")
		if state = c.get("state"); state != "" {
			if !slices.Contains(nacos.MemberStates, strings.ToUpper(state)) {
				return errMemberState(state)
			}
			state = strings.ToUpper(state)
		}
	}
	list := []*nacos.Member{}
	for _, m := range s.members() {
		if strings.HasPrefix(m.Address(), of) && (state == "" || m.State == state) {
			list = append(list, &m)
		}
	}
	return c.restV1(list)
}

// clusterSelf serves GET cluster/self and cluster/node/self.
func (s *Server) clusterSelf(c *call) error {
	m, err := s.self()
	if err != nil {
		return err
	}
	return c.restV1(&m)
}

// clusterAddresses serves GET cluster/simple/nodes.
func (s *Server) clusterAddresses(c *call) error {
	list := []string{}
	for _, m := range s.members() {
		list = append(list, m.Address())
	}
	return c.restV1(list)
}

// clusterHealth serves GET cluster/health and cluster/node/self/health: the
// state of this node.
func (s *Server) clusterHealth(c *call) error {
	m, err := s.self()
	if err != nil {
		return err
	}
	return c.restV1(m.State)
}

// peersOnly serves what servers of Nacos send each other.
func (s *Server) peersOnly(c *call) error {
	return c.refuse(http.StatusNotImplemented, "servers of Nacos cannot join this cluster: its nodes speak another protocol, and find each other by --join")
}

// lookup serves the calls that change how members are found.
func (s *Server) lookup(c *call) error {
	switch kind := c.get("type"); kind {
	case "":
		return errMissingDeclared("type")
	case "file", "address-server":
		return c.refuse(http.StatusNotImplemented, "how members are found is not changed while the node runs: that is --join")
	default:
		return c.errLookup(kind)
	}
}

// leave serves the calls that take members out; Nacos has them disabled.
func (s *Server) leave(c *call) error {
	name := "/v1/core/cluster/server/leave"
	if c.version == v2 {
		name = "DELETE /v2/core/cluster/nodes"
	}
	return errDisabled(name)
}

// ids serves ops/idInfo and ops/ids: there is nothing that makes ids.
func (s *Server) ids(c *call) error {
	if c.version == v1 {
		return c.rest([]byte("{}"))
	}
	return c.rest([]byte("[]"))
}

// raftCommand serves POST ops/raft. All groups of Nacos are one log here, whose
// nodes and votes follow from who is a member: of its commands only the one to
// hand over is left.
func (s *Server) raftCommand(c *call) error {
	var in struct{ GroupID, Command, Value string }
	if err := s.body(c, &in); err != nil {
		return err
	}
	if in.GroupID != "" && !slices.Contains(nacos.RaftGroups, in.GroupID) {
		return c.refuse(http.StatusBadRequest, "not this raft group : "+clip(in.GroupID))
	}
	switch in.Command {
	case "":
		return c.refuse(http.StatusBadRequest, "command is missing")
	case "transferLeader":
	case "doSnapshot":
		return c.refuse(http.StatusNotImplemented, "snapshots of the log are made on their own; to save it: starling backup")
	case "removePeer", "removePeers", "changePeers", "resetPeers", "restRaftCluster", "resetRaftCluster":
		return c.refuse(http.StatusNotImplemented, "who keeps the log follows from who is a member; for a node that is gone for good: starling members remove, and starling recover if the quorum is")
	default:
		return c.refuse(http.StatusBadRequest, "Not support command : "+clip(in.Command))
	}
	if s.opts.Core.HandOver == nil || s.opts.Core.Leads == nil {
		return c.refuse(http.StatusNotImplemented, "this node cannot hand over the log")
	}
	if in.Value != "" {
		return c.refuse(http.StatusBadRequest, "the voter that has most of the log takes over; leave value out")
	}
	leads, leader := s.opts.Core.Leads()
	if !leads && leader == "" {
		return errRefused(Refusal{Code: NoLeader})
	}
	if !leads {
		return c.refuse(http.StatusConflict, "this node does not lead the log, ask "+leader)
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), durableLimit)
	defer cancel()
	s.opts.Logger.Info("the lead of the log is to be handed over", zap.String("peer", c.r.RemoteAddr))
	if err := s.opts.Core.HandOver(ctx); err != nil {
		return c.refuse(http.StatusServiceUnavailable, "no other voter could take over: "+err.Error())
	}
	return c.rest([]byte("null"))
}

// coreLog serves PUT ops/log of core, which v2 and v3 read as JSON. v1 answers
// with a status as text (http-api §6.1).
func (s *Server) coreLog(c *call) error {
	in := struct{ LogName, LogLevel string }{c.get("logName"), c.get("logLevel")}
	missing := errMissingDeclared
	if c.version != v1 {
		if err := s.body(c, &in); err != nil {
			return err
		}
		missing = errMissing
	}
	switch {
	case nacos.Blank(in.LogName):
		return missing("logName")
	case nacos.Blank(in.LogLevel):
		return missing("logLevel")
	}
	if err := s.changeLogLevel(c, in.LogName, in.LogLevel); err != nil {
		return err
	}
	if c.version == v1 {
		writeText(c.w, c.r, http.StatusOK, "200")
		return nil
	}
	return c.rest([]byte("null"))
}

// loaderCluster serves GET loader/cluster: how many clients each node has. That
// of others is not known here, and the answer says that it is not complete.
func (s *Server) loaderCluster(c *call) error {
	m, err := s.self()
	if err != nil {
		return err
	}
	n := 0
	if s.opts.Operator.Counts != nil {
		n = s.opts.Operator.Counts().Connections
	}
	up := 0
	for _, m := range s.members() {
		if m.State != nacos.StateDown {
			up++
		}
	}
	return c.bareV2(map[string]any{
		"detail":      []any{map[string]any{"address": m.Address(), "sdkConCount": n, "conCount": n, "cpu": "-1.0", "load": "-1.0"}},
		"memberCount": up, "metricsCount": 1, "completed": up == 1, "max": n, "min": n, "avg": n, "total": n, "threshold": threshold(n),
	})
}

// threshold is a tenth above the average, as Java prints it.
func threshold(average int) string { return fmt.Sprintf("%.1f", float64(average)*1.1) }

// loaderCurrent serves GET loader/current: the clients on gRPC, by id; GET
// client of v2 and v3 tells more of each.
func (s *Server) loaderCurrent(c *call) error {
	clients := map[string]any{}
	if s.opts.Core.Connections != nil {
		for _, id := range s.opts.Core.Connections() {
			clients[id] = map[string]any{"metaInfo": map[string]any{"connectionId": id, "connectType": "GRPC"}}
		}
	}
	return c.bareV2(clients)
}

// loaderReload serves the calls that move some clients to other nodes.
func (s *Server) loaderReload(c *call) error {
	return c.refuse(http.StatusNotImplemented, "some clients alone are not moved; starling drain moves all of a node, before it is stopped")
}

// noConfig answers the APIs of configuration.
func noConfig(http.ResponseWriter, *http.Request) error { return errNoConfig }
