package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/starling-registry/starling/cluster"
	"github.com/starling-registry/starling/distro"
	"github.com/starling-registry/starling/pkg/api"
	"github.com/starling-registry/starling/pkg/httpapi"
	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/push"
	"github.com/starling-registry/starling/pkg/registry"
	starlingv1 "github.com/starling-registry/starling/proto"
	"github.com/starling-registry/starling/raftstore"
)

// An operations has what the native API tells and does.
type operations struct {
	opts       *Options
	life       registry.Life
	members    *cluster.Cluster // nil: the ports for other nodes are closed
	replicator *distro.Replicator
	store      *raftstore.Store
	registry   *registry.Registry
	clock      *registry.Clock
	ready      func() (bool, string)
	started    time.Time
}

func (o *operations) native(d *drain) httpapi.Native {
	return httpapi.Native{
		Members: o.Members, Cluster: o.Cluster, Hashes: o.Hashes, History: o.History,
		EndSelfPreservation: func() api.SelfPreservation {
			o.replicator.EndSelfPreservation()
			return selfPreservation(o.replicator.Status())
		},
		RestoreLimit: int64(o.opts.MaxRestoreBytes), Raft: o.Raft, Backup: o.Backup, Restore: o.Restore, RemoveMember: o.RemoveMember,
		Edits:     o.Edits,
		DrainPlan: d.plan, Drain: d.begin, DrainProgress: d.progress,
	}
}

// view is the members: none before membership begins; a node without a cluster
// is its only one.
func (o *operations) view() *cluster.View {
	if o.members != nil {
		if v := o.members.View(); v != nil {
			return v
		}
		return &cluster.View{}
	}
	return &cluster.View{Members: []cluster.Member{{ID: o.life.Node, Name: o.opts.Name, Epoch: o.life.Epoch, Since: o.started, Self: true, Host: o.opts.Advertise,
		HTTPPort: o.opts.Port, GRPCPort: o.opts.GRPCPort, Version: o.opts.Version, Wire: distro.Wire, Commands: raftstore.CommandVersion}}}
}

func (o *operations) clusterID() string {
	if o.members == nil {
		return ""
	}
	return o.members.ClusterID()
}

// said is what members say of themselves, by id; this node is one of them.
func (o *operations) said() map[string]distro.PeerStatus {
	status := o.replicator.Status()
	said := map[string]distro.PeerStatus{}
	for _, p := range status.Peers {
		said[p.ID] = p
	}
	ready, _ := o.ready()
	said[o.life.Node] = distro.PeerStatus{ID: o.life.Node, Ready: ready, Draining: status.Draining, LastHeard: time.Now()}
	return said
}

func (o *operations) Members() api.Members {
	said := o.said()
	out := api.Members{Cluster: o.clusterID(), Node: o.life.Node, At: time.Now().UTC()}
	for _, m := range o.view().Members {
		p := said[m.ID]
		am := api.Member{ID: m.ID, Name: m.Name, Epoch: m.Epoch, State: m.State.String(), Since: m.Since.UTC(), Self: m.Self, Ready: p.Ready, Draining: p.Draining,
			Host: m.Host, Ports: api.Ports{HTTP: m.HTTPPort, GRPC: m.GRPCPort, Peer: m.PeerPort, Raft: m.RaftPort, Gossip: m.GossipPort},
			Version: m.Version, Wire: m.Wire, ClockOffsetMillis: p.ClockOff.Milliseconds(), ClockOff: p.ClockBad}
		out.Members = append(out.Members, am)
	}
	slices.SortFunc(out.Members, func(a, b api.Member) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID)) })
	return out
}

func (o *operations) Cluster() api.Cluster {
	status := o.replicator.Status()
	ready, reason := o.ready()
	names := map[string]string{}
	for _, m := range o.view().Members {
		names[m.ID] = m.Name
	}
	c := api.Cluster{Cluster: o.clusterID(), Node: o.life.Node, Name: o.opts.Name, Epoch: o.life.Epoch, At: time.Now().UTC(),
		Ready: ready, Reason: reason, Draining: status.Draining, SelfPreservation: selfPreservation(status)}
	for _, l := range status.Lives {
		al := api.Life{Node: l.Life.Node, Name: names[l.Life.Node], Epoch: l.Life.Epoch, State: l.State.String(),
			Applied: l.Applied, OwnerVersion: l.OwnerVersion, LagVersions: l.LagVersions, LagMillis: l.Lag.Milliseconds(),
			Records: l.Records + l.Tombstones, LeaseLeftMillis: l.LeaseLeft.Milliseconds(), Digest: hex64(l.Digest), LastDigestMatch: utc(l.DigestMatched)}
		if l.State == registry.Orphaned {
			al.Deadline = utc(l.Expire)
			o.registry.Orphans(l.Life, func(registry.ServiceKey, *registry.Shown) { al.Orphans++ })
		}
		c.Lives = append(c.Lives, al)
	}
	for _, p := range status.Peers {
		c.Peers = append(c.Peers, api.Peer{Node: p.ID, Name: p.Name, StreamUp: o.members != nil && o.members.Connected(p.ID),
			BytesQueued: int64(p.QueuedBytes), LastHeard: utc(p.LastHeard)})
	}
	return c
}

func selfPreservation(s distro.Status) api.SelfPreservation {
	p := api.SelfPreservation{Active: s.SelfPreservation.Active}
	if p.Active {
		p.Since, p.LeftMillis = utc(s.SelfPreservation.Since), s.SelfPreservation.Left.Milliseconds()
	}
	for _, l := range s.Lives {
		p.PausedMillis = max(p.PausedMillis, l.Paused.Milliseconds())
	}
	return p
}

// Hashes asks the node with that id, or this one.
func (o *operations) Hashes(ctx context.Context, node string) (api.Hashes, error) {
	h := api.Hashes{Cluster: o.clusterID(), Node: o.life.Node, Name: o.opts.Name}
	r := new(starlingv1.ServiceHashesResponse)
	if node == "" || node == o.life.Node {
		r = hashesOf(o.registry, o.clock, o.store)
	} else {
		m, ok := o.view().Member(node)
		if !ok {
			return h, &api.Error{Status: http.StatusNotFound, Code: api.CodeNotFound, Message: "no member has the id " + node, Hint: "starling members shows them"}
		}
		h.Node, h.Name = node, m.Name
		ctx, cancel := o.whileAlive(ctx, node)
		defer cancel()
		if err := o.call(ctx, node, "ServiceHashes", &starlingv1.ServiceHashesRequest{}, r); err != nil {
			return h, &api.Error{Status: http.StatusBadGateway, Code: api.CodeUnreachable, Message: "node " + h.Name + " cannot be asked: " + whyNot(m, err), Hint: "ask it yourself with --servers"}
		}
	}
	h.Services = make([]api.ServiceHash, len(r.Services))
	if r.RaftApplied != 0 || r.RaftDigest != 0 { // an early release does not tell
		h.RaftApplied, h.RaftDigest = r.RaftApplied, hex64(r.RaftDigest)
	}
	for i, s := range r.Services {
		h.Services[i] = api.ServiceHash{Service: api.Service{Namespace: s.Namespace, Group: s.Group, Name: s.Service},
			Hash: hex64(s.Hash), Instances: int(s.Instances), UnchangedMillis: int64(s.UnchangedMillis)}
	}
	return h, nil
}

// whileAlive ends a long question to a node that has stopped to answer
// meanwhile.
func (o *operations) whileAlive(ctx context.Context, node string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		look := time.NewTicker(500 * time.Millisecond)
		defer look.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-look.C:
			}
			if m, ok := o.view().Member(node); !ok || m.State != cluster.Alive {
				cancel()
				return
			}
		}
	}()
	return ctx, cancel
}

func answerHashes(reg *registry.Registry, clock *registry.Clock, store *raftstore.Store) ([]byte, error) {
	return proto.Marshal(hashesOf(reg, clock, store))
}

// hashesOf is what this node tells others, and itself.
func hashesOf(reg *registry.Registry, clock *registry.Clock, store *raftstore.Store) *starlingv1.ServiceHashesResponse {
	log := store.Status()
	r := &starlingv1.ServiceHashesResponse{RaftApplied: log.Applied, RaftDigest: log.Digest}
	reg.Hashes(func(k registry.ServiceKey, h registry.Hash) {
		r.Services = append(r.Services, &starlingv1.ServiceHash{Namespace: k.Namespace, Group: k.Group, Service: k.Name,
			Hash: h.Sum, Instances: uint32(h.Instances), UnchangedMillis: uint64(max(0, clock.Millis()-h.Changed.Millis()))})
	})
	return r
}

// peerAnswer bounds what one node waits for another's history: a little less
// than the one who asked waits.
const peerAnswer = 4 * time.Second

// History asks all members that have not left.
func (o *operations) History(ctx context.Context, s api.Service) ([]api.NodeHistory, error) {
	ctx, cancel := context.WithTimeout(ctx, peerAnswer)
	defer cancel()
	var all []*api.NodeHistory
	var wg sync.WaitGroup
	for _, m := range o.view().Members {
		if m.State == cluster.Left {
			continue
		}
		h := &api.NodeHistory{Node: m.ID, Name: m.Name}
		all = append(all, h)
		wg.Go(func() {
			req, r := &starlingv1.HistoryRequest{Namespace: s.Namespace, Group: s.Group, Service: s.Name}, new(starlingv1.HistoryResponse)
			if m.Self {
				r = historyOf(o.registry, req)
			} else if err := o.call(ctx, m.ID, "History", req, r); err != nil {
				h.Error = whyNot(m, err)
				return
			}
			h.Forgotten = r.Truncated
			for _, e := range r.Events {
				h.Events = append(h.Events, event(e))
			}
		})
	}
	wg.Wait()
	out := make([]api.NodeHistory, len(all))
	for i, h := range all {
		out[i] = *h
	}
	return out, nil
}

// call asks another node.
func (o *operations) call(ctx context.Context, node, method string, req, answer proto.Message) error {
	if o.members == nil {
		return errors.New("this node has no cluster")
	}
	body, err := proto.Marshal(req)
	if err != nil {
		return err
	}
	b, err := o.members.Call(ctx, node, method, body)
	if err != nil {
		return err
	}
	return proto.Unmarshal(b, answer)
}

func answerHistory(reg *registry.Registry, body []byte) ([]byte, error) {
	req := new(starlingv1.HistoryRequest)
	if err := proto.Unmarshal(body, req); err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	return proto.Marshal(historyOf(reg, req))
}

func historyOf(reg *registry.Registry, req *starlingv1.HistoryRequest) *starlingv1.HistoryResponse {
	key := registry.ServiceKey{Namespace: req.Namespace, Group: req.Group, Name: req.Service}
	r := &starlingv1.HistoryResponse{Truncated: reg.Forgotten(key)}
	for _, e := range reg.History(key) {
		r.Events = append(r.Events, &starlingv1.Event{At: uint64(e.At), Origin: &starlingv1.Life{Node: e.Origin.Node, Epoch: e.Origin.Epoch}, Clock: uint64(e.Clock),
			Cause: string(e.Cause), Client: e.Client, Before: message(e.Key, e.Before), After: message(e.Key, e.After), Key: message(e.Key, &registry.Instance{})})
	}
	return r
}

func message(k registry.InstanceKey, i *registry.Instance) *starlingv1.Instance {
	if i == nil {
		return nil
	}
	m := &starlingv1.Instance{Ip: k.IP, Port: uint32(k.Port), Cluster: k.Cluster, Id: i.ID, Weight: i.Weight, Healthy: i.Healthy, Enabled: i.Enabled}
	for _, kv := range i.Metadata {
		m.Metadata = append(m.Metadata, kv.Key, kv.Value)
	}
	return m
}

func event(e *starlingv1.Event) api.Event {
	out := api.Event{At: e.At, Node: e.GetOrigin().GetNode(), Epoch: e.GetOrigin().GetEpoch(), Clock: e.Clock, Cause: e.Cause, Client: e.Client,
		Before: instance(e.Before), After: instance(e.After)}
	out.InstanceKey = api.InstanceKey{IP: e.Key.GetIp(), Port: int(e.Key.GetPort()), Cluster: e.Key.GetCluster()}
	return out
}

func instance(m *starlingv1.Instance) *api.Instance {
	if m == nil {
		return nil
	}
	i := &api.Instance{ID: m.Id, Weight: m.Weight, Healthy: m.Healthy, Enabled: m.Enabled}
	for k := 0; k+1 < len(m.Metadata); k += 2 {
		if i.Metadata == nil {
			i.Metadata = map[string]string{}
		}
		i.Metadata[m.Metadata[k]] = m.Metadata[k+1]
	}
	return i
}

// router finds the nodes that keep HTTP clients.
func (o *operations) router() *httpapi.Router {
	if o.members == nil {
		return nil
	}
	return &httpapi.Router{
		Owner: func(client string) (string, bool) {
			owner := o.replicator.Owner(client)
			return owner, owner == o.life.Node
		},
		Forward: func(ctx context.Context, node string, req *starlingv1.ForwardRequest) (*starlingv1.ForwardResponse, error) {
			r := &starlingv1.ForwardResponse{}
			return r, o.call(ctx, node, "Forward", req, r)
		},
	}
}

// responsible is the address of the node that keeps an HTTP client.
func (o *operations) responsible(client string) string {
	owner := o.life.Node
	if o.members != nil {
		owner = o.replicator.Owner(client)
	}
	_, server := o.nameAndServer(owner)
	return server
}

// pushes tells what became of pushes.
func pushes(e *push.Engine) func(bool) nacos.PushState {
	return func(reset bool) nacos.PushState {
		r := e.Results(reset)
		p := nacos.PushState{Succeeded: r.Succeeded, Total: r.Succeeded + r.Failed, MeanCost: -1, MaxCost: -1}
		if r.Longest > 0 {
			p.MeanCost, p.MaxCost = r.Mean.Milliseconds(), r.Longest.Milliseconds()
		}
		return p
	}
}

func hex64(v uint64) string { return fmt.Sprintf("%016s", strconv.FormatUint(v, 16)) }

func utc(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC()
}
