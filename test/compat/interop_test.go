package compat

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	starling "github.com/starling-registry/starling/pkg/client"
)

// TestInterop has Starling's own Go client and each SDK see what the other one
// registers, with all fields, be it one instance or several of one service.
func TestInterop(t *testing.T) {
	t.Parallel()
	selected := selectedSDKs(t)
	dir := runDir(t)
	srv := startServer(t, serverBinary(t), filepath.Join(dir, "server"))
	own := newOwn(t, srv.address(), filepath.Join(dir, "cache"))
	for n, sdk := range selected {
		t.Run(sdk.Name, func(t *testing.T) {
			prepare(t, sdk)
			t.Parallel()
			d := startIn(t, sdk, filepath.Join(dir, sdk.Name))
			t.Cleanup(func() {
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			})
			other := d.connect(t, srv.address(), "")
			network := fmt.Sprintf("10.2.%d.", n)
			blue, green := "blue", "green"
			if sdk.Name == "node" { // it takes no cluster for DEFAULT
				blue, green = "DEFAULT", "DEFAULT"
			}
			all := func(last, port int) instance {
				return numbered(network, last, port).Weighing(2.5).In(blue).With("zone", "eu-1").With("name", "Größe ✓").With("odd", odd).With("empty", "")
			}

			// Ours are seen there: one, then changed, then several of one service.
			ours := service{"team-a", "interop.ours-" + sdk.Name}
			listener := other.subscribe(ours)
			a, b, c := all(1, 8080), numbered(network, 2, 0), numbered(network, 3, 65535).In(green).Unhealthy()
			lease := own.register(t, ours, a)
			listener.wait(a)
			changed := a.With("version", "2").Weighing(0.5)
			if err := lease.Update(t.Context(), func(r *starling.Registration) { *r = registrationOf(changed) }); err != nil {
				t.Fatal(err)
			}
			listener.wait(changed)
			more := own.register(t, ours, b, c)
			listener.wait(changed, b, c)
			other.waitList(ours, changed, b, c)
			if err := lease.Deregister(t.Context()); err != nil {
				t.Fatal(err)
			}
			listener.wait(b, c)
			if err := more.Deregister(t.Context()); err != nil {
				t.Fatal(err)
			}
			fixed := service{"team-a", "interop.ours-persistent-" + sdk.Name}
			p := all(4, 8080).Persistent()
			srv.describe(t, service{name: "team-a@@" + fixed.name}, "0")
			lease = own.register(t, fixed, p)
			other.waitList(fixed, p)
			if err := lease.Deregister(t.Context()); err != nil {
				t.Fatal(err)
			}

			// Theirs are seen here.
			theirs := service{"team-a", "interop.theirs-" + sdk.Name}
			w := own.watch(t, theirs)
			d1, d2 := all(11, 8080), all(12, 9090).In(green)
			other.register(theirs, d1)
			w.wait(d1)
			changed = d1.With("version", "2").Weighing(7)
			if _, ok := sdk.lacks["update"]; ok {
				other.register(theirs, changed)
			} else {
				other.update(theirs, changed)
			}
			w.wait(changed)
			second := d.connect(t, srv.address(), "")
			second.register(theirs, d2)
			w.wait(changed, d2)
			own.waitList(t, theirs, changed, d2)
			other.deregister(theirs, changed)
			w.wait(d2)
			second.deregister(theirs, d2)
			w.wait()
		})
	}
}

// numbered is an instance of a network, whose address is given without the last
// number.
func numbered(network string, last, port int) instance {
	return inst(fmt.Sprintf("%s%d:%d", network, last, port))
}

// own is Starling's client, in this process.
type own struct{ c *starling.Client }

func newOwn(t *testing.T, server, cache string) own {
	t.Helper()
	c, err := starling.New(starling.Config{Addrs: []string{server}, CacheDir: cache})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return own{c}
}

func (o own) register(t *testing.T, at service, list ...instance) *starling.Lease {
	t.Helper()
	var set []starling.Registration
	for _, i := range list {
		set = append(set, registrationOf(i))
	}
	lease, err := o.c.RegisterSet(t.Context(), at.name, set, starling.Group(at.group))
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// waitList waits until both a read of the cache and one that asks the server give
// exactly these instances.
func (o own) waitList(t *testing.T, at service, want ...instance) {
	t.Helper()
	for _, options := range [][]starling.QueryOption{{starling.Group(at.group)}, {starling.Group(at.group), starling.NoSubscribe()}} {
		var got []instance
		var err error
		if !eventually(patience, func() bool {
			var list []starling.Instance
			list, err = o.c.Instances(t.Context(), at.name, options...)
			got = instancesFrom(list)
			return err == nil && sameInstances(got, want)
		}) {
			t.Fatalf("the client lists %s (%v), want %s", describe(got), err, describe(want))
		}
	}
}

type ownWatcher struct {
	t *testing.T
	w *starling.Watcher
}

func (o own) watch(t *testing.T, at service) ownWatcher {
	t.Helper()
	w, err := o.c.Watch(t.Context(), at.name, starling.Group(at.group))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return ownWatcher{t, w}
}

// wait waits until the watcher is told exactly these instances.
func (w ownWatcher) wait(want ...instance) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	var got []instance
	for {
		e, err := w.w.Next(ctx)
		if err != nil {
			w.t.Fatalf("the watcher was last told %s (%v), want %s", describe(got), err, describe(want))
		}
		if got = instancesFrom(e.Snapshot.Instances); sameInstances(got, want) {
			return
		}
	}
}

func registrationOf(i instance) starling.Registration {
	return starling.Registration{IP: i.IP, Port: i.Port, Cluster: i.Cluster, Weight: i.Weight, Metadata: i.Metadata,
		Disabled: !i.Enabled, Unhealthy: !i.Healthy, Persistent: !i.Ephemeral}
}

func instancesFrom(list []starling.Instance) []instance {
	out := make([]instance, 0, len(list))
	for _, i := range list {
		out = append(out, instance{IP: i.IP, Port: i.Port, Weight: i.Weight, Healthy: i.Healthy, Enabled: i.Enabled, Cluster: i.Cluster,
			Metadata: i.Metadata, Ephemeral: i.Ephemeral})
	}
	return out
}
