package node

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/api"
	"github.com/starling-registry/starling/pkg/grpcapi"
	"github.com/starling-registry/starling/pkg/push"
	"github.com/starling-registry/starling/pkg/registry"
)

// The answer to the call that begins a drain says that it is under way, also if
// nothing of it has been done yet: the command takes "none" for a node that was
// started anew.
func TestDrainIsUnderWayOnceItHasBegun(t *testing.T) {
	reg := registry.New(registry.DefaultOptions())
	gs := grpcapi.DefaultOptions()
	gs.Registry, gs.Logger, gs.Metrics = reg, zap.NewNop(), prometheus.NewRegistry()
	gs.Push = push.New(push.Options{Source: reg, Logger: zap.NewNop(), Metrics: prometheus.NewRegistry()})
	sdks := grpcapi.New(gs)
	defer sdks.Stop(t.Context())
	d := &drain{operations: &operations{opts: &Options{}}, sdks: sdks, log: zap.NewNop()}
	if s := d.progress().State; s != api.DrainNone {
		t.Fatalf("state %q", s)
	}
	if !d.claim() || d.claim() {
		t.Fatal("it is begun once")
	}
	if s := d.progress().State; s != api.DrainRunning {
		t.Fatalf("state %q", s)
	}
}
