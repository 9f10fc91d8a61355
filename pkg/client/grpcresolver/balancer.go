package grpcresolver

import (
	"errors"
	"math"
	"math/rand/v2"
	"sort"
	"sync/atomic"

	"google.golang.org/grpc/attributes"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/base"
	"google.golang.org/grpc/balancer/endpointsharding"
	"google.golang.org/grpc/balancer/pickfirst"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"
)

// BalancerName is the balancer's in service configs.
const BalancerName = "starling_weighted"

// RegisterBalancer makes the balancer [BalancerName] known to grpc, whose
// registry is one for the process and not safe for concurrent use: call it once
// from main or an init function, before the first channel. Without it channels
// use round_robin, and weights other than 0 do not matter.
//
// What is registered has no state of its own: weights come with the list of the
// channel that they are for.
func RegisterBalancer() { balancer.Register(weightedBuilder{}) }

// weightKey is the attribute of an endpoint that is its weight, a float64 in
// (0, maxWeight]. It is of the endpoint and not of its address: an address with
// other attributes is another connection to grpc, and a new weight must not cost
// one.
type weightKey struct{}

// maxWeight is what an infinite weight counts as.
const maxWeight = 10_000

func withWeight(e resolver.Endpoint, weight float64) resolver.Endpoint {
	e.Attributes = attributes.New(weightKey{}, math.Min(weight, maxWeight))
	return e
}

// weightOf is 1 for endpoints of other resolvers.
func weightOf(e resolver.Endpoint) float64 {
	if w, ok := e.Attributes.Value(weightKey{}).(float64); ok {
		return w
	}
	return 1
}

type weightedBuilder struct{}

func (weightedBuilder) Name() string { return BalancerName }

// Build leaves connections to endpointsharding, as round_robin does: one
// pick_first for each endpoint. (With balancer/base it would be one subconn for
// each address as first seen, and later weights would not be.)
func (weightedBuilder) Build(cc balancer.ClientConn, opts balancer.BuildOptions) balancer.Balancer {
	w := &weightedConn{ClientConn: cc}
	return &weighted{
		Balancer: endpointsharding.NewBalancer(w, opts, balancer.Get(pickfirst.Name).Build, endpointsharding.Options{}),
		conn:     w,
	}
}

// weighted is the side of the balancer that grpc calls.
type weighted struct {
	balancer.Balancer
	conn *weightedConn
}

func (b *weighted) UpdateClientConnState(s balancer.ClientConnState) error {
	b.conn.reason.Store(nil)
	// Client-side health checks, if the service config has them.
	return b.Balancer.UpdateClientConnState(balancer.ClientConnState{ResolverState: pickfirst.EnableHealthListener(s.ResolverState)})
}

func (b *weighted) ResolverError(err error) {
	b.conn.reason.Store(&err)
	b.Balancer.ResolverError(err)
}

// weightedConn is the side that endpointsharding reports to.
type weightedConn struct {
	balancer.ClientConn
	reason atomic.Pointer[error] // the resolver's last word, if it was an error
}

// UpdateState replaces the picker, which takes turns. While no endpoint is ready
// it stays: it queues or fails calls, as it should.
func (c *weightedConn) UpdateState(s balancer.State) {
	children := endpointsharding.ChildStatesFromPicker(s.Picker)
	switch reason := c.reason.Load(); {
	case s.ConnectivityState == connectivity.Ready:
		s.Picker = newPicker(children)
	case len(children) == 0 && reason != nil:
		// Its text only: a status within would fail calls that wait for readiness.
		s.Picker = base.NewErrPicker(errors.New((*reason).Error()))
	}
	c.ClientConn.UpdateState(s)
}

// A picker chooses at random by weight: the distribution of client.Pick.
// Taking turns by weight would spread a few calls more evenly, but it needs a
// lock for each call, begins anew with every list, and then makes all channels
// begin with the same, heaviest instance.
type picker struct {
	ready []balancer.Picker
	upTo  []float64 // the sum of the weights up to and with this one
}

// newPicker takes those that are ready, at least one.
func newPicker(children []endpointsharding.ChildState) *picker {
	p := new(picker)
	sum := 0.0
	for _, c := range children {
		if c.State.ConnectivityState != connectivity.Ready {
			continue
		}
		sum += weightOf(c.Endpoint)
		p.ready = append(p.ready, c.State.Picker)
		p.upTo = append(p.upTo, sum)
	}
	return p
}

func (p *picker) Pick(info balancer.PickInfo) (balancer.PickResult, error) {
	return p.ready[p.at(rand.Float64())].Pick(info)
}

// at is which one stands at a part of the whole, in [0, 1).
func (p *picker) at(part float64) int {
	last := len(p.upTo) - 1
	point := part * p.upTo[last]
	// The product may be rounded up to the sum.
	return min(sort.Search(last, func(i int) bool { return p.upTo[i] > point }), last)
}
