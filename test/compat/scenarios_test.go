package compat

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// Names of the scenarios that an SDK's notes refer to.
const (
	metadataChange  = "Metadata and weight change"
	deregister      = "Deregister"
	batchRegister   = "Batch registration and removal of one"
	selectHealthy   = "Select one healthy instance"
	subscribe       = "Subscribe and unsubscribe"
	providerKilled  = "Provider killed"
	serverRestarted = "Server restarted"
	serverKilled    = "Server killed and started again"
	batchRestarted  = "Batch after restarts of the server"
	quiet           = "Quiet provider stays"
	namespaces      = "Two namespaces isolated"
	watchGroup      = "Fuzzy watch by group"
	watchPattern    = "Fuzzy watch by pattern"
	watchRestarted  = "Fuzzy watch after a restart of the server"
)

// A scenario is run once for each SDK. All run at the same time and share a server and, for each
// SDK, a driver process, unless they ask for their own; so each uses services of its own.
type scenario struct {
	name   string
	proves string       // one sentence for the report
	run    func(*scene) // nil: a test of its own plays it
	needs  string       // an operation that not every SDK has
}

// odd is a value that a form, a URL or JSON has to quote, and that some SDKs send as it is.
const odd = `50% + %41 & a=b; "c" \ <d> #`

var scenarios = slices.Concat(clientScenarios, persistentScenarios)

var clientScenarios = []scenario{
	{"Connect", "A client connects and reports that it is connected.",
		func(s *scene) {
			c := s.client()
			c.waitList(s.service("unknown")) // and the connection carries requests
		}, ""},

	{"Register", "A registered instance is listed by other clients with all its attributes.",
		func(s *scene) {
			order, a := s.service("order"), inst("10.0.0.1:8080").Weighing(2.5).With("zone", "eu-1").With("name", "Größe ✓").With("odd", odd)
			s.client().register(order, a)
			s.client().waitList(order, a)
		}, ""},

	{metadataChange, "A change of an instance's metadata and weight reaches lists and listeners.",
		func(s *scene) {
			order, a := s.service("order"), inst("10.0.0.1:8080").With("version", "1")
			p := s.client()
			p.register(order, a)
			c := s.client()
			w := c.subscribe(order)
			w.wait(a)

			changed := a.With("version", "2").With("odd", odd).Weighing(7)
			p.update(order, changed)
			w.wait(changed)
			c.waitList(order, changed)
			s.client().waitList(order, changed)
		}, ""},

	{deregister, "A deregistered instance leaves lists and listeners, the last one too.",
		func(s *scene) {
			order, a, b := s.service("order"), inst("10.0.0.1:8080"), inst("10.0.0.2:8080")
			p, q := s.client(), s.client()
			p.register(order, a)
			q.register(order, b)
			c := s.client()
			w := c.subscribe(order)
			w.wait(a, b)

			q.deregister(order, b)
			w.wait(a)
			p.deregister(order, a)
			w.wait()
			s.client().waitList(order)
		}, ""},

	{batchRegister, "One client registers several instances of a service at once and removes one of them.",
		func(s *scene) {
			order, batch := s.service("order"), instances("10.0.0.1", 8080, 3)
			batch[1] = batch[1].With("version", "2").Weighing(3)
			p := s.client()
			p.registerBatch(order, batch...)
			w := s.client().subscribe(order)
			w.wait(batch...)

			p.removeFromBatch(order, batch[0], batch[1:]...)
			w.wait(batch[1:]...)
			s.client().waitList(order, batch[1:]...)
		}, "batchRemove"},

	{"Cluster filter", "Lists and listeners of a cluster see the instances of that cluster only.",
		func(s *scene) {
			order := s.service("order")
			blue, green := inst("10.0.0.1:8080").In("blue"), inst("10.0.0.2:8080").In("green")
			s.client().register(order, blue)
			s.client().register(order, green)
			c := s.client()
			c.waitList(order, blue, green)
			c.waitCluster(order, []string{"blue"}, blue)
			c.waitCluster(order, []string{"green"}, green)
			c.waitCluster(order, []string{"blue", "green"}, blue, green)
			c.waitCluster(order, []string{"red"})

			w := s.client().subscribe(order, "blue")
			w.wait(blue)
			blue2, green2 := inst("10.0.0.3:8080").In("blue"), inst("10.0.0.4:8080").In("green")
			s.client().register(order, green2)
			s.client().register(order, blue2)
			w.wait(blue, blue2)
			w.neverHeardOf(green, green2)
		}, ""},

	{"Disabled instance hidden", "A disabled instance is not listed until it is enabled, and not after it is disabled again.",
		func(s *scene) {
			order, a, b := s.service("order"), inst("10.0.0.1:8080"), inst("10.0.0.2:8080")
			q := s.client()
			q.register(order, b.Disabled())
			s.client().register(order, a)
			w := s.client().subscribe(order)
			w.wait(a)
			s.client().waitList(order, a)
			w.neverHeardOf(b, b.Disabled())

			q.update(order, b)
			w.wait(a, b)
			q.update(order, b.Disabled())
			w.wait(a)
			w.neverHeardOf(b.Disabled())
		}, ""},

	{selectHealthy, "The SDK's choice falls on a healthy instance with a weight.",
		func(s *scene) {
			order := s.service("order")
			healthy, sick, idle := inst("10.0.0.1:8080"), inst("10.0.0.2:8080").Unhealthy(), inst("10.0.0.3:8080").Weighing(0)
			for _, i := range []instance{sick, idle, healthy} {
				s.client().register(order, i)
			}
			c := s.client()
			c.waitList(order, healthy, sick, idle)
			for range 20 {
				if got := c.selectHealthy(order); !got.Equal(healthy) {
					s.t.Fatalf("selected %v, want %v", got, healthy)
				}
			}
		}, ""},

	{"List services", "The names of a group's services are listed page by page, each once, with their number.",
		func(s *scene) {
			group := s.sdk.Name + "-paging"
			p := s.client()
			var want []string
			for n := range 5 {
				name := fmt.Sprintf("service-%d", n)
				p.register(service{group, name}, inst(fmt.Sprintf("10.0.0.1:808%d", n)))
				want = append(want, name)
			}
			c := s.client()
			var count int
			if !eventually(patience, func() bool { _, count = c.services(group, 1, 10); return count == len(want) }) {
				s.t.Fatalf("%d services in group %s, want %d", count, group, len(want))
			}
			var got []string
			for page, size := range []int{2, 2, 1, 0} {
				names, count := c.services(group, page+1, 2)
				if len(names) != size || count != len(want) {
					s.t.Errorf("page %d has the names %v of %d services, want %d names of %d", page+1, names, count, size, len(want))
				}
				got = append(got, names...)
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				s.t.Errorf("all pages together have %v, want %v", got, want)
			}
			// The same group in another namespace has services of its own.
			other := s.clientIn(s.namespace("paging"))
			other.register(service{group, "other"}, inst("10.0.0.1:8080"))
			if !eventually(patience, func() bool { got, _ = other.services(group, 1, 10); return slices.Equal(got, []string{"other"}) }) {
				s.t.Errorf("the other namespace lists %v", got)
			}
			if _, count := c.services(group, 1, 10); count != len(want) {
				s.t.Errorf("%d services after one was registered in another namespace, want %d", count, len(want))
			}
		}, "services"},

	{subscribe, "A listener is called once for each change, and no more after it is removed.",
		func(s *scene) {
			order, a, b := s.service("order"), inst("10.0.0.1:8080"), inst("10.0.0.2:8080")
			p, q, c := s.client(), s.client(), s.client()
			p.register(order, a)
			witness := s.client().subscribe(order)
			w := c.subscribe(order)
			w.wait(a)
			q.register(order, b)
			w.wait(a, b)
			a2 := a.With("version", "2")
			p.update(order, a2)
			w.wait(a2, b)
			q.deregister(order, b)
			w.wait(a2)
			s.fence(c)
			if w.count() != 4 {
				s.t.Errorf("%d calls of the listener for 4 lists:%s", w.count(), w.history())
			}

			calls := w.count()
			w.unsubscribe()
			q.register(order, b)
			witness.wait(a2, b)
			s.fence(c)
			if w.count() != calls {
				s.t.Errorf("%d calls of the listener after it was removed:%s", w.count()-calls, w.history())
			}

			again := c.subscribe(order)
			again.wait(a2, b)
		}, ""},

	{"Service of 1,000 instances", "A thousand instances, registered by two clients, are listed and pushed completely.",
		func(s *scene) {
			order, all := s.service("order"), instances("10.0.0.1", 10000, 1000)
			p, q := s.client(), s.client()
			p.registerBatch(order, all[:600]...)
			q.registerBatch(order, all[600:]...)
			w := s.client().subscribe(order)
			w.wait(all...)
			s.client().waitList(order, all...)

			p.removeFromBatch(order, all[0], all[1:600]...)
			w.wait(all[1:]...)
		}, "batchRemove"},

	{providerKilled, "When a provider's process is killed, subscribers hear at once that its instances are gone.",
		func(s *scene) {
			order, a, b := s.service("order"), inst("10.0.0.1:8080"), inst("10.0.0.2:8080")
			doomed := s.ownDriver()
			doomed.connect(s.t, s.server.address(), "").register(order, a)
			s.client().register(order, b)
			c := s.client()
			w := c.subscribe(order)
			w.wait(a, b)

			doomed.Kill()
			w.waitFor(patience/2, b)
			c.waitList(order, b)
		}, ""},

	{serverRestarted, "After an orderly restart of the server, providers are registered again by themselves and listeners have missed nothing.",
		func(s *scene) { s.serverComesBack((*server).stop) }, ""},

	{serverKilled, "The same after the server's process was killed.",
		func(s *scene) { s.serverComesBack((*server).kill) }, ""},

	{batchRestarted, "A batch is registered again completely, after an orderly restart of the server and after a kill.",
		func(s *scene) {
			srv := s.ownServer()
			stock, batch := s.service("stock"), instances("10.0.0.1", 8080, 3)
			s.clientOf(srv).registerBatch(stock, batch...)
			w := s.clientOf(srv).subscribe(stock)
			w.wait(batch...)
			for n, end := range []func(*server) error{(*server).stop, (*server).kill} {
				s.again(srv, end)
				s.clientOf(srv).subscribe(stock).waitFor(s.back(), batch...)
				// The listener may have been told nothing, if it was all there when it asked again.
				extra := inst(fmt.Sprintf("10.0.0.%d:8080", n+2))
				q := s.clientOf(srv)
				q.register(stock, extra)
				w.waitFor(s.back(), append(batch[:len(batch):len(batch)], extra)...)
				q.deregister(stock, extra)
				w.wait(batch...)
			}
		}, "batchRegister"},

	{quiet, "An instance stays registered and healthy while its provider is idle, in any group, for longer than it takes one without a provider to be removed.",
		func(s *scene) {
			order, a, orphan := s.service("order"), inst("10.0.0.1:8080"), inst("10.0.0.2:8080")
			grouped, b := service{"other-group", order.name}, inst("10.0.0.1:8081") // cases C07
			s.client().register(order, a)
			s.client().register(grouped, b)
			w, v := s.client().subscribe(order), s.client().subscribe(grouped)
			w.wait(a)
			v.wait(b)
			// This one is removed 30 seconds after its last beat, which is its registration; a server
			// that stood still for want of CPU lets it have them again. A connection without a sign of
			// life is closed after 28 seconds at most.
			s.server.registerOnce(s.t, order, orphan)
			w.wait(a, orphan)
			w.waitFor(2*30*time.Second+patience, a)
			w.alwaysHeardOf(a)
			v.alwaysHeardOf(b)
			s.client().waitList(order, a)
			s.client().waitList(grouped, b)
		}, ""},

	{namespaces, "Clients of one namespace see neither services nor changes of another.",
		func(s *scene) {
			order, other := s.service("order"), service{"", s.service("other").name}
			here, there := s.namespace("here"), s.namespace("there")
			a, b, b2 := inst("10.0.0.1:8080"), inst("10.0.0.2:8080"), inst("10.0.0.3:8080")
			s.clientIn(here).register(order, a)
			s.clientIn(there).register(order, b)
			s.clientIn(there).register(other, b)
			c, d := s.clientIn(here), s.clientIn(there)
			w, v := c.subscribe(order), d.subscribe(order)
			w.wait(a)
			v.wait(b)

			s.clientIn(there).register(order, b2)
			v.wait(b, b2)
			s.fence(c)
			w.neverHeardOf(b, b2)
			v.neverHeardOf(a)
			c.waitList(order, a)
			c.waitList(other)
			s.client().waitList(order) // the default namespace
		}, ""},

	{watchGroup, "A watcher of a group is told which services it has, of each that comes and of each that goes.",
		func(s *scene) {
			group := slug(s.t.Name())
			p := s.client()
			var there []service
			for n := range 25 {
				there = append(there, service{group, fmt.Sprintf("service-%d", n)})
				p.register(there[n], inst("10.0.0.1:8080"))
			}
			p.register(service{group + "-other", "service"}, inst("10.0.0.1:8080"))
			w, initial := s.client().watch(group, "*")
			if !sameServices(initial, there) {
				s.t.Errorf("the SDK says that %v are there, want %v", initial, there)
			}
			w.wait(there...)

			late := service{group, "late"}
			p.register(service{group + "-other", "late"}, inst("10.0.0.1:8080"))
			p.register(late, inst("10.0.0.1:8080"))
			w.wait(append(there, late)...)
			p.deregister(there[0], inst("10.0.0.1:8080"))
			w.wait(append(there[1:], late)...)
			p.register(there[0], inst("10.0.0.1:8080"))
			w.wait(append(there, late)...)
		}, "watchServices"},

	{watchPattern, "Watchers of a part of services' names are told of those in all groups, and only of those.",
		func(s *scene) {
			name := s.service("order").name
			order := func(group, version string) service { return service{group, name + version} }
			p := s.client()
			for _, o := range []service{order("blue", "-v1"), order("green", "-v1"), order("green", "-v2")} {
				p.register(o, inst("10.0.0.1:8080"))
			}
			c := s.client()
			all, _ := c.watch("*", name+"*")
			all.wait(order("blue", "-v1"), order("green", "-v1"), order("green", "-v2"))
			first, _ := c.watch("*", "*"+strings.TrimPrefix(name, s.sdk.Name)+"-v1")
			first.wait(order("blue", "-v1"), order("green", "-v1"))
			greens, _ := c.watch("gre*", "*"+name+"*")
			greens.wait(order("green", "-v1"), order("green", "-v2"))

			p.deregister(order("green", "-v1"), inst("10.0.0.1:8080"))
			p.register(order("red", "-v2"), inst("10.0.0.1:8080"))
			all.wait(order("blue", "-v1"), order("green", "-v2"), order("red", "-v2"))
			first.wait(order("blue", "-v1"))
			greens.wait(order("green", "-v2"))
			s.fence(c)
			all.wait(order("blue", "-v1"), order("green", "-v2"), order("red", "-v2"))
			first.wait(order("blue", "-v1"))
			greens.wait(order("green", "-v2"))
		}, "watchServices"},

	{"Fuzzy watch cancelled", "A watcher is told nothing more after it is removed, and everything if it is added again.",
		func(s *scene) {
			group, i := slug(s.t.Name()), inst("10.0.0.1:8080")
			a, b := service{group, "a"}, service{group, "b"}
			p, c := s.client(), s.client()
			p.register(a, i)
			w, _ := c.watch(group, "*")
			w.wait(a)
			witness, _ := s.client().watch(group, "*")
			witness.wait(a)

			w.cancel()
			p.register(b, i)
			witness.wait(a, b)
			p.deregister(a, i)
			witness.wait(b)
			s.fence(c)
			if w.count() != 1 {
				s.t.Errorf("the watcher was called after it was removed:%s", w.history())
			}
			again, _ := c.watch(group, "*")
			again.wait(b)
		}, "watchServices"},

	{watchRestarted, "A watcher hears of services that came while the server was away, and of all later changes.",
		func(s *scene) {
			srv := s.ownServer()
			group, i := slug(s.t.Name()), inst("10.0.0.1:8080")
			a, b, late, later := service{group, "a"}, service{group, "b"}, service{group, "late"}, service{group, "later"}
			q := s.clientOf(srv)
			q.register(a, i)
			q.register(b, i)
			w, _ := s.clientOf(srv).watch(group, "*")
			w.wait(a, b)

			s.again(srv, (*server).kill)
			p := s.clientOf(srv)
			p.register(late, i)
			w.waitFor(s.back(), a, b, late)
			p.register(later, i)
			w.wait(a, b, late, later)
			p.deregister(later, i)
			w.wait(a, b, late)
			s.clientOf(srv).waitList(a, i) // registered again, not just never missed
			q.deregister(a, i)
			w.wait(b, late)
		}, "watchServices"},
}

// serverComesBack ends the server in one of two ways and starts it again with the same ports. While
// it is away, one provider dies: its absence is a change that no message announces, which the
// listener has to hear of all the same.
func (s *scene) serverComesBack(end func(*server) error) {
	srv := s.ownServer()
	order := s.service("order")
	a, b, c := inst("10.0.0.1:8080").With("version", "1").With("odd", odd).Weighing(2), inst("10.0.0.2:8080"), inst("10.0.0.3:8080")
	doomed := s.ownDriver()
	doomed.connect(s.t, srv.address(), "").register(order, b)
	s.clientOf(srv).register(order, a)
	w := s.clientOf(srv).subscribe(order)
	w.wait(a, b)

	s.again(srv, end, doomed)
	w.waitFor(s.back(), a)

	// The subscription itself is back too: later changes reach the same listener.
	s.clientOf(srv).register(order, c)
	w.waitFor(s.back(), a, c)
	s.clientOf(srv).waitList(order, a, c)
}

// again ends the server and starts it again, and kills providers while it is away.
func (s *scene) again(srv *server, end func(*server) error, doomed ...*driver) {
	s.t.Helper()
	if err := end(srv); err != nil {
		s.t.Fatal(err)
	}
	for _, d := range doomed {
		d.Kill()
	}
	if err := srv.start(); err != nil {
		s.t.Fatal(err)
	}
}

// back is how long it may take until everything is again as it was before a restart: before the SDK
// repeats anything it has to notice and to connect, with pauses of its own.
func (s *scene) back() time.Duration { return s.sdk.Redo + 2*patience }

// A scene is where one scenario plays for one SDK.
type scene struct {
	t      *testing.T
	sdk    *sdk
	server *server // shared by all scenarios
	driver *driver // shared by the scenarios of this SDK
	dir    string  // for what this scenario starts itself
	fences int
}

// service names a service of this scenario in the default group.
func (s *scene) service(name string) service {
	return service{name: slug(s.t.Name()) + "." + name}
}

// namespace names a namespace of this SDK.
func (s *scene) namespace(name string) string {
	return strings.ReplaceAll(s.sdk.Name, ".", "_") + "-" + name
}

// client connects to the shared server in the default namespace.
func (s *scene) client() *client { s.t.Helper(); return s.clientIn("") }

func (s *scene) clientIn(namespace string) *client {
	s.t.Helper()
	return s.driver.connect(s.t, s.server.address(), namespace)
}

func (s *scene) clientOf(srv *server) *client {
	s.t.Helper()
	return s.driver.connect(s.t, srv.address(), "")
}

// ownServer starts a server that the scenario may end.
func (s *scene) ownServer() *server {
	s.t.Helper()
	return startServer(s.t, s.server.bin, s.dir)
}

// ownDriver starts a process of the SDK that the scenario may kill.
func (s *scene) ownDriver() *driver {
	s.t.Helper()
	d, err := startDriver(s.sdk, s.dir)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(d.Kill)
	return d
}

// fence returns when everything that the server had to tell this client before has reached its
// listeners. It waits for two changes of another service, one after the other: the server may merge
// what changes shortly after a push, so that the first of them alone could overtake. They come from
// two clients, because the Go SDK sends its first registration twice, and the second time it can
// overtake, and undo, a change that follows at once.
func (s *scene) fence(c *client) {
	s.t.Helper()
	s.fences++
	beat, i, j := s.service(fmt.Sprintf("fence-%d", s.fences)), inst("10.9.9.9:8"), inst("10.9.9.9:9")
	w := c.subscribe(beat)
	p, q := s.clientIn(c.namespace), s.clientIn(c.namespace)
	p.register(beat, i)
	w.wait(i)
	q.register(beat, j)
	w.wait(i, j)
}
