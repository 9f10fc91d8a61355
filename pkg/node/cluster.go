package node

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/starling-registry/starling/cluster"
	"github.com/starling-registry/starling/distro"
	"github.com/starling-registry/starling/pkg/grpcapi"
	"github.com/starling-registry/starling/raftstore"
)

// clusterOptions says how this node is a member. handlers are filled in by
// Start.
func (o *Options) clusterOptions(dir *DataDir, id string, handlers cluster.Handlers, metrics prometheus.Registerer) (cluster.Options, error) {
	keys, err := o.readKeys()
	if err != nil {
		return cluster.Options{}, err
	}
	var addrs []string
	for _, k := range dir.Members() {
		addrs = append(addrs, k.Gossip)
	}
	return cluster.Options{
		ID: dir.NodeID, Name: o.Name, Epoch: dir.Epoch, ClusterID: id, Version: o.Version, Wire: distro.Wire, Commands: raftstore.CommandVersion,
		Bind: o.Bind, Advertise: o.Advertise,
		HTTPPort: o.Port, GRPCPort: o.GRPCPort, PeerPort: o.PeerPort, RaftPort: o.RaftPort, GossipPort: o.GossipPort,
		Join: o.Join, Port: o.Port, Expect: o.expected(), Known: addrs,
		Keys: keys, CertFile: o.PeerCert, KeyFile: o.PeerKey, CAFile: o.PeerCA,
		Lookup: o.Lookup, Listen: o.Listen, Dial: o.Dial, Transport: o.Gossip,
		ProbeInterval: o.ProbeInterval, ProbeTimeout: o.ProbeTimeout, RejoinInterval: o.Rejoin,
		Handlers: handlers, Logger: o.Logger.Named("cluster"), Metrics: metrics,
	}, nil
}

// expected is Expect, or what it stands for if it is not given.
func (o *Options) expected() int {
	if o.Expect == 0 && len(o.Join) == 0 {
		return 1
	}
	return o.Expect
}

func (o *Options) readKeys() ([][]byte, error) {
	if o.GossipKeyFile == "" {
		return nil, nil
	}
	b, err := os.ReadFile(o.GossipKeyFile)
	if err != nil {
		return nil, fmt.Errorf("--gossip-key-file: %w", err)
	}
	keys, err := cluster.ParseKeys(b)
	if err != nil {
		return nil, fmt.Errorf("--gossip-key-file: %s: %w", o.GossipKeyFile, err)
	}
	return keys, nil
}

// watchKeys takes a file of secrets that has changed. It is called now and
// then, on one goroutine.
func (o *Options) watchKeys(set func([][]byte) error) func() {
	if o.GossipKeyFile == "" {
		return func() {}
	}
	modified := func() (t time.Time) {
		if info, err := os.Stat(o.GossipKeyFile); err == nil {
			t = info.ModTime()
		}
		return t
	}
	last := modified()
	return func() {
		now := modified()
		if now.Equal(last) {
			return
		}
		last = now
		keys, err := o.readKeys()
		if err == nil {
			err = set(keys)
		}
		if err != nil {
			o.Logger.Error("the file of secrets has changed and cannot be used, the old ones stay", zap.Error(err))
			return
		}
		o.Logger.Info("the secrets of the cluster have changed", zap.Int("secrets", len(keys)))
	}
}

// distroOptions has everything but what Start must fill in.
func (o *Options) distroOptions() distro.Options {
	d := distro.DefaultOptions()
	d.Leases.Detection, d.Leases.Refused, d.Leases.Silent, d.Leases.Cap = o.Detection, o.LeaseRefused, o.LeaseSilent, o.LeaseMax
	d.Leases.Restart, d.Leases.MovingFor = o.LeaseRestart, o.MovingFor
	d.Leases.ProbeBound, d.Leases.PauseBound = o.ExpiryProbeMax, o.SelfPreservation
	d.Tick, d.Leases.Heads, d.ProbeEvery, d.StableAfter = o.HeadInterval, o.HeadInterval, o.ExpiryProbe, o.StableAfter
	d.Grace, d.DropMemory, d.CatchUp = o.TombstoneGrace, o.DropMemory, o.CatchUp
	d.SnapshotEvery, d.SnapshotAge = o.SnapshotEvery, o.SnapshotMaxAge
	d.Joined = len(o.Join) > 0
	d.Dial = func(ctx context.Context, addr string) error {
		c, err := o.Dial(ctx, addr)
		if err != nil {
			return err
		}
		return c.Close()
	}
	return d
}

// alone carries nothing: the node's ports for others are closed.
type alone struct{}

func (alone) Broadcast([]byte) bool                      { return false }
func (alone) Send(context.Context, string, []byte) error { return cluster.ErrUnreachable }
func (alone) Pull(context.Context, string, []byte, func([]byte) error) error {
	return cluster.ErrUnreachable
}

func distroMembers(v *cluster.View) []distro.Member {
	ms := make([]distro.Member, len(v.Members))
	for i, m := range v.Members {
		ms[i] = distro.Member{ID: m.ID, Epoch: m.Epoch, Name: m.Name}
		switch m.State {
		case cluster.Alive:
			ms[i].State = distro.Alive
		case cluster.Silent:
			ms[i].State = distro.Silent
		case cluster.Refused:
			ms[i].State = distro.Refused
		case cluster.Left:
			ms[i].State = distro.Left
		}
	}
	return ms
}

func via(v cluster.Via) distro.Via {
	switch v {
	case cluster.Stream:
		return distro.Stream
	case cluster.Reliable:
		return distro.Reliable
	}
	return distro.Gossip
}

// others reports whether another node is there.
func others(v *cluster.View) bool {
	return slices.ContainsFunc(v.Members, func(m cluster.Member) bool { return !m.Self && m.State == cluster.Alive })
}

// targets are the nodes that a client may be sent to; others: there are some
// that may become ready.
func targets(v *cluster.View, ready []string) (ts []grpcapi.Target, others bool) {
	for _, m := range v.Members {
		if m.Self || m.State != cluster.Alive || m.Leaving {
			continue
		}
		others = true
		// Clients compute the gRPC port, so a node that has another cannot be
		// named to them.
		if slices.Contains(ready, m.ID) && m.GRPCPort == m.HTTPPort+1000 {
			ts = append(ts, grpcapi.Target{Host: m.Host, Port: m.HTTPPort})
		}
	}
	return ts, others
}

// known is what a restart of this node should know of the others.
func known(v *cluster.View, stable []string) (ks []Known) {
	for _, m := range v.Members {
		if !m.Self && m.State != cluster.Left && m.Gossip.IsValid() {
			ks = append(ks, Known{m.ID, m.Gossip.String(), slices.Contains(stable, m.ID)})
		}
	}
	return ks
}
