package compat

import (
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

// TestThreeNodes has all SDKs work on one service of persistent instances of a cluster of three, whose
// leader is killed and started again. It plays the scenario threeNodes for all of them at once.
func TestThreeNodes(t *testing.T) {
	t.Parallel()
	selected := selectedSDKs(t)
	dir := runDir(t)
	nodes := startCluster(t, serverBinary(t), dir, 3)
	leader := waitLeader(t, nodes)
	others := slices.DeleteFunc(slices.Clone(nodes), func(n *server) bool { return n == leader })
	stock := service{name: "three-nodes.stock"}

	var cast []*member
	for n, sdk := range selected {
		m := &member{sdk: sdk, ok: true}
		t.Run("start/"+sdk.Name, func(t *testing.T) {
			prepare(t, sdk)
			var err error
			if m.driver, err = startDriver(sdk, filepath.Join(dir, sdk.Name)); err != nil {
				t.Fatal(err)
			}
		})
		if m.driver == nil {
			continue
		}
		t.Cleanup(func() {
			if err := m.driver.Close(); err != nil {
				t.Error(err)
			}
		})
		// Which node a client is at is not what this is about: it keeps its own all the time.
		m.node = others[n%len(others)]
		m.client = m.driver.connect(t, m.node.address(), "")
		m.instance = target(t).With("sdk", sdk.Name).With("version", "1")
		cast = append(cast, m)
	}
	// One that stays to the end: not every SDK tells that a service is empty.
	last := target(t)
	all := func() []instance {
		list := []instance{last}
		for _, m := range cast {
			list = append(list, m.instance)
		}
		return list
	}
	act := func(name string, f func(t *testing.T, m *member)) {
		t.Run(name, func(t *testing.T) {
			for _, m := range cast {
				t.Run(m.sdk.Name, func(t *testing.T) {
					t.Parallel()
					defer func() { m.ok = m.ok && !t.Failed() }()
					m.client.t = t
					f(t, m)
				})
			}
		})
	}
	leader.order(t, "POST", "/instance", stock, "ip", last.IP, "port", strconv.Itoa(last.Port), "ephemeral", "false")

	act("register", func(_ *testing.T, m *member) {
		m.listener = m.client.subscribe(stock)
		m.client.register(stock, m.instance)
	})
	act("see", func(_ *testing.T, m *member) { m.listener.wait(all()...) })

	if err := leader.kill(); err != nil {
		t.Fatal(err)
	}
	waitLeader(t, others)
	for _, m := range cast {
		m.instance = m.instance.With("version", "2").Weighing(2)
	}
	act("change without the leader", func(_ *testing.T, m *member) { m.client.update(stock, m.instance) })
	act("see the changes", func(_ *testing.T, m *member) {
		m.listener.wait(all()...)
		m.client.waitList(stock, all()...)
	})

	if err := leader.start(); err != nil {
		t.Fatal(err)
	}
	act("see it all at the node that was killed", func(t *testing.T, m *member) {
		if got := m.driver.connect(t, leader.address(), "").list(stock); !sameInstances(got, all()) {
			t.Errorf("a node that is ready lists %s, want %s", describe(got), describe(all()))
		}
	})
	act("remove there", func(t *testing.T, m *member) {
		m.driver.connect(t, leader.address(), "").deregister(stock, m.instance)
	})
	act("see them go", func(_ *testing.T, m *member) { m.listener.wait(last) })
	for _, m := range cast {
		cell := passes
		if !m.ok {
			cell = fails
		}
		results.record(m.sdk, threeNodes, cell)
	}
}

// A member of the cast is one SDK with its part.
type member struct {
	sdk      *sdk
	driver   *driver
	node     *server  // that client is connected to
	client   *client  // lives to the end; fails the step that is under way
	instance instance // that it registers
	listener *subscription
	ok       bool
}

// waitLeader returns the node that leads the log.
func waitLeader(t testing.TB, nodes []*server) *server {
	t.Helper()
	var leader *server
	if !eventually(patience, func() bool {
		n := slices.IndexFunc(nodes, (*server).leads)
		if n >= 0 {
			leader = nodes[n]
		}
		return n >= 0
	}) {
		t.Fatalf("none of %d nodes leads the log after %v", len(nodes), patience)
	}
	return leader
}
