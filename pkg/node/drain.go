package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/starling-registry/starling/cluster"
	"github.com/starling-registry/starling/distro"
	"github.com/starling-registry/starling/pkg/api"
	"github.com/starling-registry/starling/pkg/grpcapi"
)

// ackWait bounds how long a draining node waits for its peers to have
// everything (design §6).
const ackWait = 5 * time.Second

// A drain moves the clients of this node to others, once: because an operator
// asks for it, and at the latest when the node stops. The node goes on
// afterwards, without clients, until it is stopped.
type drain struct {
	*operations
	sdks  *grpcapi.Server
	limit time.Duration
	log   *zap.Logger

	mu    sync.Mutex
	state api.Drain
	done  chan struct{} // nil: it has not begun
}

func (d *drain) planLocked() api.DrainPlan {
	p := d.sdks.Plan(0, d.limit)
	plan := api.DrainPlan{Clients: p.Clients, Instances: p.Instances, Seconds: p.Duration.Seconds(), Targets: []api.DrainTarget{}}
	for _, t := range p.Targets {
		for _, m := range d.view().Members {
			if m.Host == t.Host && m.HTTPPort == t.Port {
				plan.Targets = append(plan.Targets, api.DrainTarget{Node: m.ID, Name: m.Name, Clients: t.Clients})
			}
		}
	}
	return plan
}

func (d *drain) plan(context.Context) (api.DrainPlan, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.planLocked(), nil
}

// begin starts the drain for an operator and returns.
func (d *drain) begin(context.Context) (api.Drain, error) {
	if d.members == nil || !d.hasPeer() {
		return api.Drain{}, &api.Error{Status: 409, Code: api.CodeConflict, Message: "there is no other node that could take the clients",
			Hint: "a node that is alone is simply stopped"}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.done == nil {
		if ts, _ := targets(d.view(), d.replicator.ReadyPeers()); len(ts) == 0 {
			return api.Drain{}, &api.Error{Status: 409, Code: api.CodeConflict, Message: "no other node is ready to take the clients",
				Hint: "starling members shows when one is; a node that must go anyway is simply stopped"}
		}
		d.startLocked()
		go d.move(context.Background()) // ends within limit; a stop of the node waits for it
	}
	return d.progressLocked(), nil
}

func (d *drain) hasPeer() bool {
	return others(d.view())
}

func (d *drain) progress() api.Drain {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.progressLocked()
}

func (d *drain) progressLocked() api.Drain {
	s := d.state
	s.Node, s.Name = d.life.Node, d.opts.Name
	if s.State == "" {
		s.State, s.Plan = api.DrainNone, d.planLocked()
	}
	now := d.sdks.Plan(0, d.limit)
	s.ClientsLeft, s.InstancesLeft = now.Clients, now.Instances
	return s
}

// run drains, or waits for the drain that is under way, at most until ctx
// ends.
func (d *drain) run(ctx context.Context) {
	d.mu.Lock()
	if d.done != nil {
		done := d.done
		d.mu.Unlock()
		select {
		case <-done:
		case <-ctx.Done():
		}
		d.handOver(ctx) // it may have been elected since
		return
	}
	d.startLocked()
	d.mu.Unlock()
	d.move(ctx)
}

func (d *drain) startLocked() {
	d.done = make(chan struct{})
	d.state = api.Drain{State: api.DrainRunning, Step: "clients are asked to move to other nodes", Plan: d.planLocked(), Since: time.Now().UTC()}
}

// move is what was started.
func (d *drain) move(ctx context.Context) {
	defer close(d.done)
	ctx, cancel := context.WithTimeout(ctx, d.limit)
	defer cancel()
	d.replicator.SetDraining(true) // the others send nobody here
	d.handOver(ctx)
	err := d.sdks.Drain(ctx, 0)
	if errors.Is(err, grpcapi.ErrNoTarget) { // they stay attached until the node ends
		err = nil
		if d.hasPeer() {
			err = errors.New("no other node is ready: the clients stay until this node ends")
		}
	}
	if d.hasPeer() {
		d.step("the other nodes take the last changes")
		acked, cancel := context.WithTimeout(ctx, ackWait)
		if ackErr := d.replicator.Acked(acked); ackErr != nil {
			err = errors.Join(err, fmt.Errorf("not all nodes have the last changes: %w", ackErr))
		}
		cancel()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state.State, d.state.Step = api.DrainDone, ""
	if err != nil {
		d.state.State, d.state.Error = api.DrainFailed, err.Error()
		d.log.Warn("the drain did not come to its end", zap.Error(err))
	}
}

// handOver makes another node lead the log, if this one does: nobody has to wait
// for an election.
func (d *drain) handOver(ctx context.Context) {
	if !d.store.Leads() || !d.hasPeer() {
		return
	}
	if err := d.store.TransferLeadership(ctx); err != nil {
		d.log.Warn("another node will have to be elected to lead the log", zap.Error(err))
	}
}

func (d *drain) step(s string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state.Step = s
}

var _ distro.Peers = (*cluster.Cluster)(nil)
