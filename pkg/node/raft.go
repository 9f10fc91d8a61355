package node

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/starling-registry/starling/cluster"
	"github.com/starling-registry/starling/pkg/health"
	"github.com/starling-registry/starling/pkg/registry"
	starlingv1 "github.com/starling-registry/starling/proto"
	"github.com/starling-registry/starling/raftstore"
)

// ErrSuperseded ends a node whose log is from before a recovery.
var ErrSuperseded = errors.New("the cluster went on without this node's log (starling recover): the log is set aside; start this node again, it gets what the others have")

// raftOptions has everything but what Start must fill in.
func (o *Options) raftOptions() raftstore.Options {
	r := raftstore.DefaultOptions()
	r.Heartbeat, r.Election, r.Lease = o.RaftHeartbeat, o.RaftHeartbeat, o.RaftHeartbeat/2
	r.ReplaceAfter, r.RemoveLeftAfter = o.RaftReplaceAfter, o.RaftRemoveAfter
	r.SnapshotEvery, r.SnapshotEntries, r.SnapshotBytes = o.RaftSnapshotEvery, uint64(o.RaftSnapshotEntries), int64(o.RaftSnapshotBytes)
	r.CaughtUpWithin = o.CatchUp
	r.NoSync = o.NoSync
	return r
}

// raftListener is the port for Raft, encrypted as all that nodes say to each
// other.
func raftListener(l net.Listener, members *cluster.Cluster) net.Listener {
	if c := members.ServerTLS(); c != nil {
		return tls.NewListener(l, c)
	}
	return l
}

// raftDial reaches a node by its id, wherever it is now (cluster C5).
func (o *Options) raftDial(members *cluster.Cluster) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, id string) (net.Conn, error) {
		v := members.View()
		if v == nil {
			return nil, errors.New("membership has not begun yet")
		}
		m, ok := v.Member(id)
		if !ok {
			return nil, errors.New("no member has the id " + id)
		}
		conn, err := o.Dial(ctx, net.JoinHostPort(m.Host, strconv.Itoa(m.RaftPort)))
		if err != nil {
			return nil, err
		}
		config := members.ClientTLS(id, m.Host)
		if config == nil {
			return conn, nil
		}
		secret := tls.Client(conn, config)
		if err := secret.HandshakeContext(ctx); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		return secret, nil
	}
}

func raftMembers(v *cluster.View) []raftstore.Member {
	if v == nil {
		return nil
	}
	ms := make([]raftstore.Member, len(v.Members))
	for i, m := range v.Members {
		ms[i] = raftstore.Member{ID: m.ID, Alive: m.State == cluster.Alive, Left: m.State == cluster.Left, Since: m.Since, Commands: m.Commands}
	}
	return ms
}

// beginLog begins the log of a new cluster.
func beginLog(dir *DataDir, store *raftstore.Store, founders []string) error {
	if err := store.Bootstrap(founders); err != nil {
		return err
	}
	return dir.LogBegun()
}

// mostEnded bounds the ends of operators' edits that wait for the log. Beyond it
// they are not told: such an edit ends when its instance has been absent for
// long enough.
const mostEnded = 10_000

// endEdits tells the log which edits of operators are over: at once what clients
// on this node have deregistered, and on the leader what has been absent for
// long (design §4: one decision, not one timer for each node).
func endEdits(ctx context.Context, store *raftstore.Store, reg *registry.Registry, over <-chan registry.Edit, period time.Duration, log *zap.Logger) {
	sweep := time.NewTicker(period)
	defer sweep.Stop()
	var waiting []registry.Edit
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-over:
			waiting = append(waiting, e)
			for more := true; more && len(waiting) < mostEnded; {
				select {
				case e := <-over:
					waiting = append(waiting, e)
				default:
					more = false
				}
			}
		case <-sweep.C:
			if store.Leads() {
				waiting = append(waiting, reg.AbsentOverrides()...)
			}
		}
		for len(waiting) > 0 {
			some := waiting[:min(len(waiting), 500)]
			if err := store.EndOverrides(ctx, some); err != nil {
				// With the next sweep.
				log.Debug("edits that are over are not ended in the log yet", zap.Int("edits", len(waiting)), zap.Error(err))
				waiting = slices.Clip(waiting[:min(len(waiting), mostEnded)])
				break
			}
			waiting = waiting[len(some):]
		}
	}
}

// confirm asks another node whether it finds an instance healthy, if there are
// three or more (semantics §4.3): one node's view of the network is not
// enough to take an instance from everybody.
func (o *operations) confirm(ctx context.Context, key registry.ServiceKey, ik registry.InstanceKey) (healthy, asked bool) {
	if o.members == nil {
		return false, false
	}
	var others []string
	for _, id := range o.replicator.ReadyPeers() {
		if m, ok := o.view().Member(id); ok && m.State == cluster.Alive {
			others = append(others, id)
		}
	}
	if len(others) < 2 {
		return false, false
	}
	for _, id := range others {
		answer, err := o.call(ctx, id, "ConfirmProbe", &starlingv1.ConfirmProbeRequest{
			Service: &starlingv1.Service{Namespace: key.Namespace, Group: key.Group, Name: key.Name}, Ip: ik.IP, Port: uint32(ik.Port), Cluster: ik.Cluster})
		var r starlingv1.ConfirmProbeResponse
		if err != nil || proto.Unmarshal(answer, &r) != nil || !r.Known {
			continue
		}
		return r.Healthy, true
	}
	return false, false
}

// answerConfirm is what the other node does.
func answerConfirm(ctx context.Context, prober *health.Prober, body []byte) ([]byte, error) {
	var req starlingv1.ConfirmProbeRequest
	if err := proto.Unmarshal(body, &req); err != nil {
		return nil, err
	}
	s := req.GetService()
	var r starlingv1.ConfirmProbeResponse
	r.Known, r.Healthy, r.Reason = prober.Ask(ctx, registry.ServiceKey{Namespace: s.GetNamespace(), Group: s.GetGroup(), Name: s.GetName()},
		registry.InstanceKey{IP: req.Ip, Port: int(req.Port), Cluster: req.Cluster})
	return proto.Marshal(&r)
}

var _ = http.StatusOK
