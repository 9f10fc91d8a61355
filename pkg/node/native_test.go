package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/starling-registry/starling/pkg/registry"
)

// A long question must not outlive the member that it is for.
func TestWhileAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &operations{opts: &Options{Name: "a"}, life: registry.Life{Node: "a", Epoch: 1}}
		for node, want := range map[string]bool{"a": false, "gone": true} {
			ctx, cancel := o.whileAlive(t.Context(), node)
			time.Sleep(time.Second)
			if ended := ctx.Err() != nil; ended != want {
				t.Errorf("%s: ended %v", node, ended)
			}
			cancel()
		}
	})
}
