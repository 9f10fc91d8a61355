package raftstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/starling-registry/starling/pkg/registry"
	"github.com/starling-registry/starling/test/simnet"
)

// setting is a change of metadata that sets a key.
func setting(key, value string) func(registry.Metadata) registry.Metadata {
	return func(md registry.Metadata) registry.Metadata {
		next := map[string]string{}
		for _, kv := range md {
			next[kv.Key] = kv.Value
		}
		next[key] = value
		return registry.NewMetadata(next)
	}
}

// Many edits of metadata take the time of a few writes, keep what was set
// before, and of two that come together none is lost.
func TestEditMetadata(t *testing.T) {
	bubble(t, "a b c", func(t *testing.T, g *group) {
		leader := g.three()
		s := g.others(leader.id)[0].store
		ctx := t.Context()
		for from := range g.peers {
			for to := range g.peers {
				g.net.SetLink(from, to, simnet.Link{Delay: 10 * time.Millisecond})
			}
		}
		instances := make([]registry.InstanceKey, 300)
		for n := range instances {
			instances[n] = registry.InstanceKey{IP: fmt.Sprintf("10.0.1.%d", n), Port: 80, Cluster: "DEFAULT"}
		}
		if err := s.PutOverride(ctx, demo, instances[7], registry.Override{Weight: new(3.0), Metadata: registry.Metadata{{Key: "own", Value: "1"}}, Sticky: true}, false); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		var wg sync.WaitGroup
		for _, key := range []string{"k", "l"} {
			wg.Go(func() {
				if err := s.EditMetadata(ctx, demo, instances, setting(key, "v")); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(start); took > 5*time.Second { // one after the other: more than 20
			t.Errorf("600 edits took %v", took)
		}
		for n, k := range instances {
			want := registry.Metadata{{Key: "k", Value: "v"}, {Key: "l", Value: "v"}}
			if n == 7 {
				want = append(want, registry.KV{Key: "own", Value: "1"})
			}
			o, _ := s.Override(demo, k)
			if !slices.Equal(o.Metadata, want) {
				t.Fatalf("%d has %v, want %v", n, o.Metadata, want)
			}
			if n == 7 && (o.Weight == nil || *o.Weight != 3 || !o.Sticky) {
				t.Errorf("the rest of the edit is %+v", o)
			}
		}

		// What changes nothing is not written, what is not valid changes nothing.
		before, _ := s.fsm.digest()
		if err := s.EditMetadata(ctx, demo, instances, setting("k", "v")); err != nil {
			t.Error(err)
		}
		big := func(md registry.Metadata) registry.Metadata {
			if _, there := md.Get("own"); there {
				return setting("big", strings.Repeat("x", maxMetadata))(md)
			}
			return setting("big", "x")(md)
		}
		if err := s.EditMetadata(ctx, demo, instances, big); !errors.Is(err, ErrInvalid) {
			t.Errorf("%v", err)
		}
		if after, _ := s.fsm.digest(); after != before {
			t.Errorf("%d entries were written for nothing", after-before)
		}

		// Edits that nothing is left of are over; what else an edit says stays.
		none := func(registry.Metadata) registry.Metadata { return nil }
		if err := s.EditMetadata(ctx, demo, instances, none); err != nil {
			t.Error(err)
		}
		if rows := s.fsm.rows(); rows["overrides"] != 1 {
			t.Errorf("%d edits are left", rows["overrides"])
		}
		g.awaitEqual(5 * time.Second)
	})
}

// An error says that something may be written if something is.
func TestEditMetadataFails(t *testing.T) {
	bubble(t, "a b c", func(t *testing.T, g *group) {
		leader := g.three()
		instances := make([]registry.InstanceKey, 4*editsAtOnce)
		for n := range instances {
			instances[n] = registry.InstanceKey{IP: fmt.Sprintf("10.0.1.%d", n), Port: 80, Cluster: "DEFAULT"}
		}
		for _, p := range g.others(leader.id) {
			g.kill(p.id)
			g.set(p.id, false, false)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		err := leader.store.EditMetadata(ctx, demo, instances, setting("k", "v"))
		if !errors.Is(err, ErrNoLeader) && !errors.Is(err, ErrUnknownOutcome) {
			t.Errorf("without a majority: %v", err)
		}
		// Who waits for another one gives up with his context.
		leader.store.editing <- struct{}{}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := leader.store.EditMetadata(ctx, demo, instances, setting("k", "v")); !errors.Is(err, ErrNoLeader) {
			t.Errorf("while another is under way: %v", err)
		}
		<-leader.store.editing
	})
}
