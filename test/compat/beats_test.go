package compat

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	// held is for how long an instance without beats is listed at least, healthy or not: a node that
	// is killed leaves its clients ten seconds, less what a busy machine adds, to beat elsewhere.
	held = 8 * time.Second
	// expired is when an instance without beats is gone at the latest, also if the node that kept it
	// was killed just then: the other that takes it over grants it the 30 s anew (cases C11).
	expired = 50 * time.Second
)

// TestBeatsOnThreeNodes has all SDKs that speak HTTP use three nodes as they like, all with one
// service of ephemeral instances, and kills a node that keeps some of them. It plays the scenario
// beatsOnThreeNodes. One SDK that speaks gRPC looks on.
func TestBeatsOnThreeNodes(t *testing.T) {
	t.Parallel()
	selected := slices.DeleteFunc(selectedSDKs(t), func(s *sdk) bool { return s.Polls == 0 })
	if len(selected) == 0 {
		t.Skip("no SDK that speaks HTTP is selected")
	}
	dir := runDir(t)
	nodes := startCluster(t, serverBinary(t), dir, 3, "--beat-check", "1s")
	order := service{"three-nodes", "beats.order"} // not the default group: cases C07, C30

	// Each has a client that prefers each of the nodes, if it is an SDK that goes on with one node as
	// long as that answers. What the others do is up to them.
	var cast []*player
	var living, dead []instance
	for n, sdk := range selected {
		p := &player{sdk: sdk, ok: true}
		t.Run("start/"+sdk.Name, func(t *testing.T) {
			prepare(t, sdk)
			p.driver, p.doomed = startIn(t, sdk, filepath.Join(dir, sdk.Name)), startIn(t, sdk, filepath.Join(dir, sdk.Name+"-doomed"))
		})
		if p.driver == nil || p.doomed == nil {
			continue
		}
		cast = append(cast, p)
		for k := range nodes {
			addresses := addressesFrom(nodes, k)
			p.clients = append(p.clients, p.driver.connect(t, addresses, ""))
			i := inst(fmt.Sprintf("10.1.%d.%d:8080", n+1, k+1)).With("sdk", sdk.Name)
			p.instances = append(p.instances, i)
			living = append(living, i)
			p.lost = append(p.lost, inst(fmt.Sprintf("10.2.%d.%d:8080", n+1, k+1)))
			p.doomed.connect(t, addresses, "").register(order, p.lost[k])
		}
		dead = append(dead, p.lost...)
	}
	act := func(name string, f func(t *testing.T, p *player)) {
		t.Run(name, func(t *testing.T) {
			for _, p := range cast {
				t.Run(p.sdk.Name, func(t *testing.T) {
					t.Parallel()
					defer func() { p.ok = p.ok && !t.Failed() }()
					for _, c := range p.clients {
						c.t = t
					}
					f(t, p)
				})
			}
		})
	}

	act("register", func(_ *testing.T, p *player) {
		for k, i := range p.instances {
			p.clients[k].register(order, i)
		}
	})
	for _, n := range nodes {
		n.waitList(t, order, slices.Concat(living, dead)...)
	}
	// A node without clients would be no loss.
	victim := slices.MaxFunc(nodes, func(a, b *server) int { return a.beatClients(t) - b.beatClients(t) })
	t.Logf("the node that is killed keeps %d of %d HTTP clients", victim.beatClients(t), len(living)+len(dead))
	others := slices.DeleteFunc(slices.Clone(nodes), func(n *server) bool { return n == victim })

	witness := startWitness(t, filepath.Join(dir, "witness"), others[0])
	w := witness.subscribe(order)
	w.wait(slices.Concat(living, dead)...)
	witness.register(order, inst("10.3.0.1:8080"))
	living = append(living, inst("10.3.0.1:8080"))
	act("see", func(_ *testing.T, p *player) {
		p.listener = p.clients[0].subscribe(order)
		p.listener.wait(slices.Concat(living, dead)...)
		p.listener.forget()
	})
	w.wait(slices.Concat(living, dead)...)
	w.forget()

	watch := startWatch(others, order, living)
	killed := time.Now()
	if err := victim.kill(); err != nil {
		t.Fatal(err)
	}
	for _, p := range cast {
		p.doomed.Kill()
	}
	act("read without the node", func(t *testing.T, p *player) {
		for time.Since(killed) < held {
			for k, c := range p.clients {
				hosts := c.list(order)
				missing := lacking(hosts, living)
				for n := range hosts {
					hosts[n].Healthy = true
				}
				if missing = append(missing, lacking(hosts, dead)...); len(missing) > 0 {
					t.Fatalf("client %d does not list %s %v after a node was killed", k+1, describe(missing), time.Since(killed).Round(time.Millisecond))
				}
			}
			time.Sleep(500 * time.Millisecond) // the pace of the reads
		}
	})
	for _, n := range others {
		n.waitListFor(t, time.Until(killed.Add(expired)), order, living...)
	}
	t.Logf("who died is gone after %v", time.Since(killed).Round(time.Second))
	act("see them go", func(_ *testing.T, p *player) {
		p.listener.wait(living...)
		for _, i := range living {
			p.listener.alwaysHeardOf(i)
		}
		p.clients[1].waitList(order, living...)
	})
	w.wait(living...)
	for _, i := range living {
		w.alwaysHeardOf(i)
	}
	for _, fault := range watch.stop() {
		t.Error(fault)
	}

	if err := victim.start(); err != nil {
		t.Fatal(err)
	}
	if got := victim.list(t, order).Hosts; !sameInstances(got, living) {
		t.Errorf("a node that is ready lists %s, want %s", describe(got), describe(living))
	}
	act("change and remove through any node", func(_ *testing.T, p *player) {
		p.clients[0].update(order, p.instances[0].With("version", "2").Weighing(3))
		p.clients[1].deregister(order, p.instances[1])
	})
	want := []instance{inst("10.3.0.1:8080")}
	for _, p := range cast {
		want = append(want, p.instances[0].With("version", "2").Weighing(3), p.instances[2])
	}
	for _, n := range nodes {
		n.waitList(t, order, want...)
	}
	for _, p := range cast {
		cell := passes
		if !p.ok || t.Failed() {
			cell = fails
		}
		results.record(p.sdk, beatsOnThreeNodes, cell)
	}
}

// A player is one SDK with its part in TestBeatsOnThreeNodes.
type player struct {
	sdk             *sdk
	driver, doomed  *driver
	clients         []*client
	instances, lost []instance // of clients, and of those of the process that is killed
	listener        *subscription
	ok              bool
}

func startIn(t *testing.T, sdk *sdk, dir string) *driver {
	t.Helper()
	d, err := startDriver(sdk, dir)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// startWitness connects an SDK that speaks gRPC: the Go one, because whoever runs this has Go.
func startWitness(t *testing.T, dir string, at *server) *client {
	t.Helper()
	s := goSDK("go", suite.NewestGo())
	prepare(t, s)
	d := startIn(t, s, dir)
	t.Cleanup(d.Kill)
	return d.connect(t, at.address(), "")
}

// addressesFrom are the addresses of all nodes, the n-th first.
func addressesFrom(nodes []*server, n int) string {
	var list []string
	for k := range nodes {
		list = append(list, nodes[(n+k)%len(nodes)].address())
	}
	return strings.Join(list, ",")
}

// lacking are those of want that are not in got as they are.
func lacking(got, want []instance) []instance {
	return slices.DeleteFunc(slices.Clone(want), func(i instance) bool { return slices.ContainsFunc(got, i.Equal) })
}

// A watch of lists asks nodes in turn, several times a second, for all that lives, and that
// lastRefTime does not go back from one to the next: an SDK would not believe the later list.
type listWatch struct {
	ending, ended chan struct{}
	faults        []string // read it after ended
}

func startWatch(nodes []*server, at service, living []instance) *listWatch {
	w := &listWatch{ending: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(w.ended)
		var last int64
		for start := time.Now(); ; {
			for _, n := range nodes {
				select {
				case <-w.ending:
					return
				case <-time.After(100 * time.Millisecond):
				}
				list, err := n.ask(at)
				switch missing := lacking(list.Hosts, living); {
				case err != nil:
					w.fault("%s, after %v: %v", n.address(), time.Since(start), err)
				case len(missing) > 0:
					w.fault("%s, after %v: %s are missing or unhealthy", n.address(), time.Since(start), describe(missing))
				case list.LastRefTime < last:
					w.fault("%s, after %v: lastRefTime is %d after %d", n.address(), time.Since(start), list.LastRefTime, last)
				}
				last = max(last, list.LastRefTime)
			}
		}
	}()
	return w
}

func (w *listWatch) fault(format string, args ...any) {
	if len(w.faults) < 5 { // the first say it all
		w.faults = append(w.faults, fmt.Sprintf(format, args...))
	}
}

// stop ends the watch and says what was wrong.
func (w *listWatch) stop() []string {
	close(w.ending)
	<-w.ended
	return w.faults
}

// A list is what GET instance/list of the v1 API answers.
type list struct {
	Hosts       []instance
	LastRefTime int64
}

func (s *server) ask(at service) (list, error) {
	query := url.Values{"serviceName": {at.name}, "groupName": {at.group}}
	res, err := (&http.Client{Timeout: 2 * time.Second}).Get("http://" + s.address() + "/nacos/v1/ns/instance/list?" + query.Encode())
	if err != nil {
		return list{}, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		return list{}, fmt.Errorf("%s: %s (%v)", res.Status, body, err)
	}
	var answer struct {
		LastRefTime int64
		Hosts       []struct {
			instance
			Cluster string `json:"clusterName"`
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return list{}, fmt.Errorf("%q: %w", body, err)
	}
	l := list{LastRefTime: answer.LastRefTime}
	for _, h := range answer.Hosts {
		h.instance.Cluster = h.Cluster
		l.Hosts = append(l.Hosts, h.instance)
	}
	return l, nil
}

func (s *server) list(t testing.TB, at service) list {
	t.Helper()
	l, err := s.ask(at)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// waitList waits until the node lists exactly these instances.
func (s *server) waitList(t testing.TB, at service, want ...instance) {
	t.Helper()
	s.waitListFor(t, patience, at, want...)
}

func (s *server) waitListFor(t testing.TB, limit time.Duration, at service, want ...instance) {
	t.Helper()
	var got []instance
	if !eventually(limit, func() bool { got = s.list(t, at).Hosts; return sameInstances(got, want) }) {
		t.Fatalf("%s lists %s after %v, want %s", s.address(), describe(got), limit.Round(time.Second), describe(want))
	}
}

// beatClients is how many HTTP clients the node keeps.
func (s *server) beatClients(t testing.TB) int {
	t.Helper()
	res, err := http.Get("http://" + s.address() + "/nacos/v1/ns/operator/metrics?onlyStatus=false")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var answer struct{ EphemeralIPPortClientCount int }
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	return answer.EphemeralIPPortClientCount
}
