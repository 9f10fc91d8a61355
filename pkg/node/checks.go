package node

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/starling-registry/starling/cluster"
	"github.com/starling-registry/starling/pkg/health"
	"github.com/starling-registry/starling/pkg/registry"
	starlingv1 "github.com/starling-registry/starling/proto"
)

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
	for n, id := range others {
		// One that stands still must not use up the time of the next.
		within, cancel := ctx, func() {}
		if end, ok := ctx.Deadline(); ok {
			within, cancel = context.WithTimeout(ctx, time.Until(end)/time.Duration(len(others)-n))
		}
		var r starlingv1.ConfirmProbeResponse
		err := o.call(within, id, "ConfirmProbe", &starlingv1.ConfirmProbeRequest{
			Service: &starlingv1.Service{Namespace: key.Namespace, Group: key.Group, Name: key.Name}, Ip: ik.IP, Port: uint32(ik.Port), Cluster: ik.Cluster}, &r)
		cancel()
		if err != nil || !r.Known {
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
