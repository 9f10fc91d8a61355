package names

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/starling-registry/starling/test/compat/drivers"
)

const (
	registry = "registry.test"
	// giveUp is when a client that has not come back counts as one that does
	// not.
	giveUp = 2 * time.Minute
	// connectWithin is for a client that is new.
	connectWithin = 30 * time.Second
	// From a change of the records until something happens: above the TTL, and
	// above what a Java virtual machine remembers by default.
	atOnce = 2 * time.Second
	cached = 32 * time.Second
)

// What official SDKs make of a name whose records change. This measures and
// prints; README.md has the results. It takes some minutes for each SDK:
//
//	NAMES_SDKS=go,java2,java3,python go test -count=1 -v -timeout 1h -run SDK ./names
func TestSDKsBehindAName(t *testing.T) {
	if os.Getenv("NAMES_SDKS") == "" {
		t.Skip("takes minutes: set NAMES_SDKS to names of SDKs (go,java2,java3,python)")
	}
	place := drivers.Place("../../../test/compat")
	all := map[string]*drivers.SDK{
		"go": place.Go("go", place.NewestGo()), "java2": place.Java("java2", drivers.Java2),
		"java3": place.Java("java3", drivers.Java3), "python": place.Python("python", drivers.Python),
	}
	for name := range strings.SplitSeq(os.Getenv("NAMES_SDKS"), ",") {
		sdk := all[name]
		if sdk == nil {
			t.Fatalf("NAMES_SDKS: %q is none of %v", name, slices.Sorted(maps.Keys(all)))
		}
		if missing := sdk.Missing(); len(missing) > 0 {
			t.Fatalf("%s needs %v", name, missing)
		}
		if err := sdk.Build(); err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) {
			for _, f := range []struct {
				name string
				do   func(*testing.T, *drivers.SDK)
			}{
				{"DeadAddress", deadAddress},
				{"OneOfThreeKilled", oneOfThree},
				{"MovedAndKilledAtOnce", func(t *testing.T, sdk *drivers.SDK) { moved(t, sdk, syscall.SIGKILL, atOnce) }},
				{"MovedAndKilled", func(t *testing.T, sdk *drivers.SDK) { moved(t, sdk, syscall.SIGKILL, cached) }},
				{"MovedAndStopped", func(t *testing.T, sdk *drivers.SDK) { moved(t, sdk, syscall.SIGTERM, cached) }},
				{"MovedAndPaused", func(t *testing.T, sdk *drivers.SDK) { moved(t, sdk, syscall.SIGSTOP, cached) }},
				{"MovedAndDrained", func(t *testing.T, sdk *drivers.SDK) { drained(t, sdk, true) }},
				{"DrainedOnly", func(t *testing.T, sdk *drivers.SDK) { drained(t, sdk, false) }},
			} {
				t.Run(f.name, func(t *testing.T) { f.do(t, sdk) })
			}
		})
	}
}

// A client is one of an SDK in a process of its own, that knows the name only.
type client struct {
	s *space
	p *drivers.Process

	mu   sync.Mutex
	seen map[string]bool // ips of the last list that was pushed
}

func (s *space) client(sdk *drivers.SDK) *client {
	s.t.Helper()
	c := &client{s: s}
	inside := *sdk
	inside.Command = func(dir string) *exec.Cmd { return s.in(sdk.Command(dir)) }
	var err error
	c.p, err = drivers.Start(&inside, s.t.TempDir(), func(e drivers.Event) error {
		if e.Event != "push" {
			return fmt.Errorf("unexpected event %+v", e)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.seen = map[string]bool{}
		for _, h := range e.Hosts {
			c.seen[h.IP] = true
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.p.Kill)
	return c
}

// connect returns how long it took, or the error of the SDK.
func (c *client) connect() (time.Duration, error) {
	start := time.Now()
	_, err := c.p.Call(drivers.Request{Op: "connect", Client: "c", Server: registry + ":8848", TimeoutMs: connectWithin.Milliseconds()})
	return time.Since(start), err
}

func (c *client) call(r drivers.Request) {
	c.s.t.Helper()
	r.Client = "c"
	if _, err := c.p.Call(r); err != nil {
		c.s.t.Fatal(err)
	}
}

// provide registers one provider and subscribes to the same service.
func (c *client) provide() {
	c.s.t.Helper()
	i := drivers.NewInstance("192.0.2.1", 8080)
	c.call(drivers.Request{Op: "register", Service: "names", Instance: &i})
	c.call(drivers.Request{Op: "subscribe", Service: "names", Subscription: "s"})
	c.s.eventually(within, func() error { return c.sees("192.0.2.1") })
}

func (c *client) sees(ip string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.seen[ip] {
		return fmt.Errorf("the subscriber sees %v", c.seen)
	}
	return nil
}

// on are the nodes to whose gRPC ports it has connections.
func (c *client) on() (nodes []string) {
	open, err := c.p.Connections()
	if err != nil {
		return nil // it is ending
	}
	for _, address := range open {
		if host, port, _ := net.SplitHostPort(address); port == "9848" {
			nodes = append(nodes, host)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// lookups says how often the name was asked for since, and when first.
func lookups(s *Server, since time.Time) string {
	var after []time.Time
	for _, q := range s.Queries() {
		if q.Name == registry && q.Type == "A" && q.At.After(since) {
			after = append(after, q.At)
		}
	}
	if len(after) == 0 {
		return "it did not look the name up"
	}
	if since.IsZero() {
		return fmt.Sprintf("it looked the name up %d times", len(after))
	}
	return fmt.Sprintf("it looked the name up %d times, first after %.1f s", len(after), after[0].Sub(since).Seconds())
}

// cluster starts nodes that know each other's addresses, so that all questions
// for the name are the client's.
func (s *space) cluster(n int) (nodes []*node) {
	s.t.Helper()
	var join []string
	for i := range n {
		join = append(join, s.address(i))
	}
	for range n {
		nodes = append(nodes, s.start("--join", strings.Join(join, ","), "--expect", strconv.Itoa(n)))
	}
	for _, node := range nodes {
		s.eventually(within, func() error { return node.sees(n) })
	}
	return nodes
}

// deadAddress: two nodes and an address where nobody listens, and then one that
// does not exist, are behind the name. Each client that starts must connect.
func deadAddress(t *testing.T, sdk *drivers.SDK) {
	s := newSpace(t)
	nodes := s.cluster(2)
	for _, dead := range []struct{ what, ip string }{{"that refuses", s.prefix + "2"}, {"that does not exist", s.prefix + "250"}} {
		set(t, s.dns, registry, dead.ip, nodes[0].ip, nodes[1].ip)
		var text []string
		for range 3 { // each gets another one first
			c := s.client(sdk)
			took, err := c.connect()
			if err != nil {
				text = append(text, fmt.Sprintf("not connected after %.1f s: %v", took.Seconds(), err))
			} else {
				text = append(text, fmt.Sprintf("connected after %.1f s", took.Seconds()))
			}
			c.p.Kill()
		}
		t.Logf("RESULT %s: one of three addresses is one %s: %s", sdk.Name, dead.what, strings.Join(text, "; "))
	}
}

// oneOfThree: of three nodes behind the name that of the client is killed. The
// records stay as they are.
func oneOfThree(t *testing.T, sdk *drivers.SDK) {
	s := newSpace(t)
	nodes := s.cluster(3)
	set(t, s.dns, registry, nodes[0].ip, nodes[1].ip, nodes[2].ip)
	c := s.client(sdk)
	took, err := c.connect()
	if err != nil {
		t.Fatal(err)
	}
	c.provide()
	on := c.on()
	if len(on) != 1 {
		t.Fatalf("the client has connections to %v", on)
	}
	t.Logf("RESULT %s: connected after %.1f s to %v; %s", sdk.Name, took.Seconds(), on, lookups(s.dns, time.Time{}))
	mark := time.Now()
	for _, n := range nodes {
		if n.ip == on[0] {
			n.Kill()
		}
	}
	back, where := c.back(on[0])
	t.Logf("RESULT %s: its node of three is killed: back %s, on %v; %s", sdk.Name, back, where, lookups(s.dns, mark))
}

// moved: the name leads to one node and then to another one; the first goes.
// So only who looks up the name again comes back.
func moved(t *testing.T, sdk *drivers.SDK, sig syscall.Signal, after time.Duration) {
	s := newSpace(t)
	nodes := s.cluster(2)
	from, to := nodes[0], nodes[1]
	c := s.clientOn(sdk, from)
	set(t, s.dns, registry, to.ip)
	time.Sleep(after)
	mark := time.Now()
	absence := to.absence()
	from.Signal(sig)
	back, where := c.back(from.ip)
	what := map[syscall.Signal]string{syscall.SIGKILL: "killed", syscall.SIGTERM: "stopped", syscall.SIGSTOP: "paused"}[sig]
	t.Logf("RESULT %s: the records have changed, %v later its node is %s: back %s; %s", sdk.Name, after, what, back, lookups(s.dns, mark))
	if where == nil {
		t.Logf("RESULT %s: %s", sdk.Name, absence())
		return
	}
	c.isBack(to, absence)
}

// drained: a node is drained, and after a while stopped. Its address is not
// behind the name any more, or still is, beside that of the other one.
func drained(t *testing.T, sdk *drivers.SDK, gone bool) {
	s := newSpace(t)
	nodes := s.cluster(2)
	from, to := nodes[0], nodes[1]
	c := s.clientOn(sdk, from)
	records := "the records have changed"
	if gone {
		set(t, s.dns, registry, to.ip)
	} else {
		set(t, s.dns, registry, from.ip, to.ip)
		records = "both addresses are in the records"
	}
	time.Sleep(cached)
	mark := time.Now()
	absence := to.absence()
	drain := s.in(exec.Command(s.bin, "drain", "--server", from.ip))
	if err := drain.Start(); err != nil {
		t.Fatal(err)
	}
	defer drain.Wait()
	const patience = 40 * time.Second
	for !slices.Contains(c.on(), to.ip) && time.Since(mark) < patience {
		time.Sleep(20 * time.Millisecond)
	}
	took, on := time.Since(mark), c.on()
	if slices.Contains(on, to.ip) {
		t.Logf("RESULT %s: %s, then its node is drained: on the other one after %.1f s; %s", sdk.Name, records, took.Seconds(), lookups(s.dns, mark))
		c.isBack(to, absence)
		return
	}
	t.Logf("RESULT %s: %s, then its node is drained: after %v it is connected to %v; %s", sdk.Name, records, patience, on, lookups(s.dns, mark))
	mark = time.Now()
	from.Signal(syscall.SIGTERM)
	back, where := c.back(from.ip)
	t.Logf("RESULT %s: then the drained node is stopped: back %s; %s", sdk.Name, back, lookups(s.dns, mark))
	if where == nil {
		t.Logf("RESULT %s: %s", sdk.Name, absence())
		return
	}
	c.isBack(to, absence)
}

// clientOn is a client with a provider and a subscription on a node, the only
// one behind the name.
func (s *space) clientOn(sdk *drivers.SDK, n *node) *client {
	s.t.Helper()
	set(s.t, s.dns, registry, n.ip)
	c := s.client(sdk)
	if _, err := c.connect(); err != nil {
		s.t.Fatal(err)
	}
	c.provide()
	if on := c.on(); !slices.Equal(on, []string{n.ip}) {
		s.t.Fatalf("the client has connections to %v", on)
	}
	return c
}

// isBack measures until the client hears what is new on a node. What it
// provides must be there then.
func (c *client) isBack(on *node, absence func() string) {
	c.s.t.Helper()
	start := time.Now()
	c.s.eventually(giveUp, func() error {
		_, err := on.Do(http.MethodPost, "/nacos/v1/ns/instance", url.Values{"serviceName": {"names"}, "ip": {"192.0.2.2"}, "port": {"80"}})
		if err != nil {
			return err
		}
		return c.sees("192.0.2.2")
	})
	c.s.t.Logf("RESULT %s: its subscription works %.1f s later; %s", c.p.SDK.Name, time.Since(start).Seconds(), absence())
	if err := c.sees("192.0.2.1"); err != nil {
		c.s.t.Errorf("what it provides is not there: %v", err)
	}
}

// absence asks a node for the client's provider until the result is called,
// which says for how long it was not listed.
func (n *node) absence() func() string {
	stop := make(chan struct{})
	var longest time.Duration
	var polls sync.WaitGroup
	polls.Go(func() {
		last := time.Now() // seen
		for {
			body, err := n.Do(http.MethodGet, "/nacos/v1/ns/instance/list?serviceName=names", nil)
			switch {
			case err != nil || strings.Contains(body, `"ip":"192.0.2.1"`):
				last = time.Now()
			default:
				longest = max(longest, time.Since(last))
			}
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	return func() string {
		close(stop)
		polls.Wait()
		if longest == 0 {
			return "its provider was always listed"
		}
		return fmt.Sprintf("its provider was not listed for %.1f s", longest.Seconds())
	}
}

// back waits until the client is connected elsewhere.
func (c *client) back(than string) (after string, nodes []string) {
	start := time.Now()
	for time.Since(start) < giveUp {
		nodes = slices.DeleteFunc(c.on(), func(n string) bool { return n == than })
		if len(nodes) > 0 {
			return fmt.Sprintf("after %.1f s", time.Since(start).Seconds()), nodes
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Sprintf("not within %v", giveUp), nil
}
