package compat

import (
	"cmp"
	"net"
	"strings"
	"testing"
	"time"
)

// Names of the scenarios that an SDK's notes refer to.
const (
	persistent        = "Persistent instance"
	persistentChange  = "Persistent instance changed and removed"
	otherKind         = "Instances of the other kind refused"
	threeNodes        = "Persistent instances on three nodes"
	beatsOnThreeNodes = "Instances with beats on three nodes"
	editRestarted     = "Operator's edit after a restart of the server"
)

// checkPatience is how long it may take until a listener hears that a persistent instance went away
// without a word: six seconds at most until the server knows (pkg/health/DESIGN.md), if it is not busy.
const checkPatience = 6*time.Second + patience

// The server checks persistent instances, by default that something listens there: see target.
var persistentScenarios = []scenario{
	{persistent, "A persistent instance is listed and pushed with all its attributes, as one that is not ephemeral.",
		func(s *scene) {
			order, a := s.service("order"), target(s.t).Weighing(2.5).With("zone", "eu-1").With("name", "Größe ✓")
			w := s.client().subscribe(order)
			s.client().register(order, a)
			w.wait(a)
			s.client().waitList(order, a)
		}, ""},

	{persistentChange, "Changes of a persistent instance's metadata, weight and state, and its removal, reach lists and listeners.",
		func(s *scene) {
			order, a, b := s.service("order"), target(s.t).With("version", "1"), target(s.t)
			p, c := s.client(), s.client()
			p.register(order, a)
			p.register(order, b)
			w := c.subscribe(order)
			w.wait(a, b)

			changed := a.With("version", "2").Weighing(7)
			p.update(order, changed)
			w.wait(changed, b)
			s.client().waitList(order, changed, b)
			p.update(order, changed.Disabled())
			w.wait(b)
			s.client().update(order, changed) // whoever asks: it belongs to no client
			w.wait(changed, b)
			s.client().deregister(order, a)
			w.wait(b)
			s.client().waitList(order, b)
		}, ""},

	{"Persistent instance without its provider", "A persistent instance stays, healthy, after its provider's process was killed, and another client can remove it.",
		func(s *scene) {
			order, a, b := s.service("order"), target(s.t).With("version", "1"), target(s.t)
			doomed := s.ownDriver()
			doomed.connect(s.t, s.server.address(), "").register(order, a)
			c := s.client()
			w := c.subscribe(order)
			w.wait(a)

			// What an ephemeral instance of the same process is worth shows that the server has noticed.
			other, e := s.service("other"), inst("10.0.0.1:8080")
			doomed.connect(s.t, s.server.address(), "").register(other, e)
			c.waitList(other, e)
			doomed.Kill()
			if s.sdk.Polls == 0 {
				c.waitList(other)
			}
			p := s.client()
			p.register(order, b)
			w.wait(a, b)
			w.alwaysHeardOf(a)
			p.deregister(order, a)
			w.wait(b)
		}, ""},

	{"Persistent instance after a kill of the server", "A persistent instance is there, as it was, when a server that was killed is ready again, and its provider is gone.",
		func(s *scene) {
			srv := s.ownServer()
			order, a, b, gone := s.service("order"), target(s.t).With("version", "1").Weighing(2), target(s.t), target(s.t)
			doomed := s.ownDriver()
			p := doomed.connect(s.t, srv.address(), "")
			for _, i := range []instance{a.With("version", "0"), gone, b} {
				p.register(order, i)
			}
			p.update(order, a)
			p.deregister(order, gone)
			s.clientOf(srv).waitList(order, a, b)

			s.again(srv, (*server).kill, doomed)
			if got := s.clientOf(srv).list(order); !sameInstances(got, []instance{a, b}) {
				s.t.Errorf("a server that is ready lists %s, want %s", describe(got), describe([]instance{a, b}))
			}
			w := s.clientOf(srv).subscribe(order)
			w.wait(a, b)
			s.clientOf(srv).deregister(order, b)
			w.wait(a)
			w.neverHeardOf(gone)
		}, ""},

	{"Persistent instance checked", "Listeners hear that nothing listens any more where a persistent instance is, and when it is back.",
		func(s *scene) {
			order, a := s.service("order"), target(s.t)
			b, l := closableTarget(s.t)
			p := s.client()
			p.register(order, a)
			p.register(order, b)
			w := s.client().subscribe(order)
			w.wait(a, b)

			l.Close()
			w.waitFor(checkPatience, a, b.Unhealthy())
			s.client().waitList(order, a, b.Unhealthy())
			listen(s.t, l.Addr().String())
			w.waitFor(checkPatience, a, b)
		}, ""},

	{threeNodes, "Listeners of all SDKs see the persistent instances of all SDKs, change them when the leader of three nodes was killed, and find and remove them at that node when it is back.",
		nil, ""},

	{beatsOnThreeNodes, "Instances of SDKs that speak HTTP stay, healthy, in every list of two nodes after the third was killed; those of a process that was killed with it go.",
		nil, ""},

	{otherKind, "An ephemeral instance is refused by a service that has persistent ones, a persistent one by a service that has ephemeral ones, and the SDK says so.",
		func(s *scene) {
			lasting, fleeting := s.service("lasting"), s.service("fleeting")
			a, b := target(s.t), inst("10.0.0.1:8080")
			p, c := s.client(), s.client()
			p.register(lasting, a)
			p.register(fleeting, b)
			c.waitList(lasting, a)
			c.waitList(fleeting, b)

			says(s.t, p.refused(fleeting, target(s.t)),
				cmp.Or(s.sdk.refusesPersistent, "is ephemeral service, can't register persistent instance"))
			says(s.t, s.client().refused(lasting, inst("10.0.0.2:8080")),
				cmp.Or(s.sdk.refusesEphemeral, "is persistent service, can't register ephemeral instance"))
			s.fence(c)
			c.waitList(lasting, a)
			c.waitList(fleeting, b)
		}, ""},

	{"Protection threshold", "While no more than a threshold of the instances are healthy all are listed as healthy; a change of health or threshold is pushed.",
		func(s *scene) {
			order, a, b := s.service("order"), inst("10.0.0.1:8080").Persistent(), inst("10.0.0.2:8080").Persistent()
			s.server.describe(s.t, order, "0.4")
			p := s.client()
			p.register(order, a)
			p.register(order, b)
			c := s.client()
			w := c.subscribe(order)
			w.wait(a, b)

			s.server.setHealth(s.t, order, b, false)
			w.wait(a, b.Unhealthy())
			s.server.setThreshold(s.t, order, "0.5")
			w.wait(a, b)
			c.waitList(order, a, b)
			s.server.setThreshold(s.t, order, "0.4")
			w.wait(a, b.Unhealthy())
			s.server.setHealth(s.t, order, a, false)
			w.wait(a, b)
			s.server.setHealth(s.t, order, b, true)
			w.wait(a.Unhealthy(), b)
			c.waitList(order, a.Unhealthy(), b)
		}, ""},

	{"Protection threshold reported", "The SDK tells whether the threshold is reached, when only that changes too.",
		func(s *scene) {
			order, a, b := s.service("order"), inst("10.0.0.1:8080").Persistent(), inst("10.0.0.2:8080").Persistent()
			s.server.describe(s.t, order, "0.5")
			p := s.client()
			p.register(order, a)
			p.register(order, b)
			c := s.client()
			w := c.subscribe(order)
			w.wait(a, b)
			s.waitProtected(c, order, false)

			s.server.setHealth(s.t, order, b, false)
			s.waitProtected(c, order, true)
			s.server.setHealth(s.t, order, b, true)
			s.waitProtected(c, order, false)
		}, "protected"},

	{"Operator's edit", "An instance that an operator disables stays hidden when its provider reconnects, until the operator enables it.",
		func(s *scene) {
			order, a, b, c := s.service("order"), inst("10.0.0.1:8080").With("version", "1"), inst("10.0.0.2:8080"), inst("10.0.0.3:8080")
			doomed := s.ownDriver()
			doomed.connect(s.t, s.server.address(), "").register(order, a)
			s.client().register(order, b)
			w := s.client().subscribe(order)
			w.wait(a, b)

			s.server.edit(s.t, order, a.Disabled())
			w.wait(b)
			v := s.client().subscribe(order)
			v.wait(b)
			doomed.Kill()
			s.client().register(order, a)
			s.client().register(order, c)
			v.wait(b, c)
			w.wait(b, c)
			v.neverHeardOf(a)
			s.server.edit(s.t, order, a.Weighing(5))
			w.wait(a.Weighing(5), b, c)
			s.client().waitList(order, a.Weighing(5), b, c)
		}, ""},

	{editRestarted, "What an operator has set is so after a restart of the server too, for ephemeral and persistent instances.",
		func(s *scene) {
			srv := s.ownServer()
			order, a, b := s.service("order"), inst("10.0.0.1:8080"), inst("10.0.0.2:8080")
			stock, d, e := s.service("stock"), target(s.t), target(s.t)
			p, q := s.clientOf(srv), s.clientOf(srv)
			p.register(order, a)
			q.register(order, b)
			p.register(stock, d)
			p.register(stock, e)
			c := s.clientOf(srv)
			c.waitList(order, a, b)
			srv.edit(s.t, order, a.Disabled())
			srv.edit(s.t, stock, e.Weighing(9))
			c.waitList(order, b)
			c.waitList(stock, d, e.Weighing(9))

			s.again(srv, (*server).kill)
			v, w := s.clientOf(srv).subscribe(order), s.clientOf(srv).subscribe(stock)
			w.wait(d, e.Weighing(9))
			v.waitFor(s.back(), b)
			v.neverHeardOf(a)
			srv.edit(s.t, order, a)
			v.waitFor(s.back(), a, b)
		}, ""},
}

func (s *scene) waitProtected(c *client, at service, want bool) {
	s.t.Helper()
	if !eventually(patience+s.sdk.Polls, func() bool { return c.protected(at) == want }) {
		s.t.Fatalf("the SDK says that the threshold is reached: %v, want %v", !want, want)
	}
}

// target is a persistent instance where something listens until the test ends.
func target(t testing.TB) instance {
	t.Helper()
	i, _ := closableTarget(t)
	return i
}

func closableTarget(t testing.TB) (instance, net.Listener) {
	t.Helper()
	l := listen(t, "127.0.0.1:0")
	return inst(l.Addr().String()).Persistent(), l
}

// listen accepts connections and closes them, until the listener is closed or the test ends.
func listen(t testing.TB, address string) net.Listener {
	t.Helper()
	var l net.Listener
	var err error
	// The port may serve somebody's outgoing connection for a moment.
	if !eventually(patience, func() bool { l, err = net.Listen("tcp", address); return err == nil }) {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	return l
}

// says fails the test if the SDK said something else.
func says(t testing.TB, got, want string) {
	t.Helper()
	if !strings.Contains(got, want) {
		t.Errorf("the SDK says %q, want %q", got, want)
	}
}
