package node

import (
	"context"
	"errors"
	"net"
	"strconv"

	"github.com/starling-registry/starling/cluster"
	"github.com/starling-registry/starling/pkg/grpcapi"
	"github.com/starling-registry/starling/pkg/httpapi"
	"github.com/starling-registry/starling/pkg/nacos"
)

// core has what the core API of Nacos tells of the cluster.
func (o *operations) core(sdks *grpcapi.Server) httpapi.Core {
	return httpapi.Core{
		Members: o.nacosMembers, Connections: sdks.ClientIDs,
		HandOver: func(ctx context.Context) error {
			if o.store.Status().AliveVoters < 2 { // nothing would happen, without an error
				return errors.New("there is no other voter")
			}
			return o.store.TransferLeadership(ctx)
		},
		Leads: func() (bool, string) {
			if o.store.Leads() {
				return true, ""
			}
			_, server := o.nameAndServer(o.store.Status().Leader)
			return false, server
		},
	}
}

// nacosMembers are the members as Nacos shows its own. Of several that had one
// address only the newest is shown: addresses are what members are known by
// there.
func (o *operations) nacosMembers() []nacos.Member {
	view, said := o.view(), o.said()
	log := o.store.Status()
	group := nacos.RaftGroup{Term: log.Term, Leader: o.raftAddress(view, log.Leader)}
	for _, server := range log.Servers {
		if a := o.raftAddress(view, server.ID); a != "" {
			group.Members = append(group.Members, a)
		}
	}
	var out []nacos.Member
	since := map[string]int{} // place in out, by address
	newest := map[string]cluster.Member{}
	for _, m := range view.Members {
		p := said[m.ID]
		nm := nacos.Member{Host: m.Host, Port: m.HTTPPort, RaftPort: m.RaftPort, Release: m.Version, Self: m.Self, Raft: group, LastHeard: m.Since.UnixMilli(),
			State: memberState(m, p.Ready, p.Draining)}
		if !p.LastHeard.IsZero() {
			nm.LastHeard = p.LastHeard.UnixMilli()
		}
		if m.Self {
			nm.RaftPort = o.opts.RaftPort
		}
		address := nm.Address()
		at, twice := since[address]
		switch {
		case !twice:
			since[address], newest[address] = len(out), m
			out = append(out, nm)
		case newer(m, newest[address]):
			newest[address], out[at] = m, nm
		}
	}
	return out
}

// newer tells which of two members with one address is the one that is there.
func newer(a, b cluster.Member) bool {
	if (a.State == cluster.Alive) != (b.State == cluster.Alive) {
		return a.State == cluster.Alive
	}
	return a.Since.After(b.Since)
}

// memberState is the state that Nacos has for it: STARTING answers and takes no
// clients yet, ISOLATION sends its clients away, SUSPICIOUS stopped answering,
// and DOWN is gone, whether or not it said so.
func memberState(m cluster.Member, ready, draining bool) string {
	switch {
	case m.State == cluster.Silent:
		return nacos.StateSuspicious
	case m.State != cluster.Alive:
		return nacos.StateDown
	case draining || m.Leaving:
		return nacos.StateIsolation
	case !ready:
		return nacos.StateStarting
	}
	return nacos.StateUp
}

// raftAddress is "" for a node that is not known.
func (o *operations) raftAddress(v *cluster.View, id string) string {
	m, ok := v.Member(id)
	if !ok {
		return ""
	}
	if m.Self {
		m.RaftPort = o.opts.RaftPort // also if nobody else can reach it
	}
	return net.JoinHostPort(m.Host, strconv.Itoa(m.RaftPort))
}
