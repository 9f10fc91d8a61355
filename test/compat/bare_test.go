package compat

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/starling-registry/starling/test/compat/drivers"
)

// bare are the drivers of many clients in one process: Starling's own client, which lacks nothing,
// and those without an SDK. They are no columns of the report, which is about the SDKs of Nacos: this
// is to show that they are clients like those.
func bare() []*sdk {
	const noList = "the client API of v3 has no such list"
	overHTTP := func(s *drivers.SDK) *sdk {
		return &sdk{
			SDK:    s,
			lacks:  map[string]string{"batchRegister": noBatch, "batchRemove": noBatch, "watchServices": noWatch},
			cannot: map[string]string{selectHealthy: alwaysWell, providerKilled: noConnection},
		}
	}
	v3 := overHTTP(suite.HTTP3("http3"))
	v3.lacks["services"], v3.lacks["protected"] = noList, noList
	v3.cannot["Cluster filter"] = "a list of v3 is that of one cluster, by default of DEFAULT"
	return []*sdk{
		overHTTP(suite.HTTP("http")),
		v3,
		{SDK: suite.Starling("starling")},
	}
}

// TestBare runs every scenario by these clients.
func TestBare(t *testing.T) {
	t.Parallel()
	dir := runDir(t)
	srv := startServer(t, serverBinary(t), filepath.Join(dir, "server"))
	for _, sdk := range bare() {
		t.Run(sdk.Name, func(t *testing.T) {
			prepare(t, sdk)
			t.Parallel()
			runScenarios(t, sdk, srv, filepath.Join(dir, sdk.Name))
		})
	}
}

// TestBareOnThreeNodes kills a node that these clients are at, and ends another as a
// service manager does: none of their instances goes, and their listeners do not hear otherwise.
func TestBareOnThreeNodes(t *testing.T) {
	t.Parallel()
	const (
		providers = 6 // at three nodes, chosen at random
		// gone is when the instances of a killed node are gone for sure unless their clients have come
		// to another: the lease is 11 s.
		gone = 14 * time.Second
	)
	dir := runDir(t)
	nodes := startCluster(t, serverBinary(t), dir, 3)
	order := service{"bare", "three-nodes.order"}
	var living []instance
	var listeners []*subscription
	for n, sdk := range bare() {
		prepare(t, sdk)
		d := startIn(t, sdk, filepath.Join(dir, sdk.Name))
		t.Cleanup(func() { // before its clients are closed: also their end is tried
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		for k := range providers {
			i := inst(fmt.Sprintf("10.1.%d.%d:8080", n+1, k+1)).With("sdk", sdk.Name)
			d.connect(t, addressesFrom(nodes, k), "").register(order, i)
			living = append(living, i)
		}
		listeners = append(listeners, d.connect(t, addressesFrom(nodes, n), "").subscribe(order))
	}
	for _, w := range listeners {
		w.wait(living...)
		w.forget()
	}
	during := func(what string, left []*server, end func() error) {
		t.Helper()
		watch := startWatch(left, order, living)
		if err := end(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(gone) // the watch looks all the time
		for _, fault := range watch.stop() {
			t.Errorf("%s: %s", what, fault)
		}
	}
	during("after a node was killed", nodes[1:], nodes[0].kill)
	if err := nodes[0].start(); err != nil {
		t.Fatal(err)
	}
	during("after a node was stopped", []*server{nodes[0], nodes[2]}, nodes[1].stop)
	for _, w := range listeners {
		for _, i := range living {
			w.alwaysHeardOf(i)
		}
	}
	// They still listen.
	last := inst("10.1.0.1:8080")
	listeners[0].client.register(order, last)
	for _, w := range listeners {
		w.wait(append(slices.Clone(living), last)...)
	}
}
