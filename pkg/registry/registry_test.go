package registry

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

var order = ServiceKey{DefaultNamespace, DefaultGroup, "order"}

func inst(ip string, edit ...func(*Instance)) *Instance {
	i := &Instance{InstanceKey: InstanceKey{ip, 80, DefaultCluster}, Weight: 1, Healthy: true, Enabled: true}
	for _, e := range edit {
		e(i)
	}
	return i
}

func weight(w float64) func(*Instance) { return func(i *Instance) { i.Weight = w } }
func port(p int) func(*Instance)       { return func(i *Instance) { i.Port = p } }
func cluster(c string) func(*Instance) { return func(i *Instance) { i.Cluster = c } }
func unhealthy(i *Instance)            { i.Healthy = false }
func disabled(i *Instance)             { i.Enabled = false }
func md(kv ...string) func(i *Instance) {
	return func(i *Instance) {
		m := map[string]string{}
		for n := 0; n < len(kv); n += 2 {
			m[kv[n]] = kv[n+1]
		}
		i.Metadata = NewMetadata(m)
	}
}

// A world is a registry whose changes are counted.
type world struct {
	*Registry
	t       *testing.T
	changes int
}

func newWorld(t *testing.T, edit ...func(*Options)) *world {
	w := &world{t: t}
	opts := DefaultOptions()
	opts.Changed = func(ServiceKey) { w.changes++ }
	for _, e := range edit {
		e(&opts)
	}
	w.Registry = New(opts)
	return w
}

func (w *world) client(id string) *Client { return w.Open(id, Connection) }

// shows checks what a query without a filter sees, as "ip:port/cluster wWEIGHT"
// with the defaults left out.
func (w *world) shows(want ...string) {
	w.t.Helper()
	if diff := cmp.Diff(want, lines(w.Snapshot(order))); diff != "" {
		w.t.Errorf("wrong hosts (-want +got):\n%s", diff)
	}
}

func lines(s *Snapshot) []string {
	var got []string
	hosts, _ := s.Select(Filter{})
	for _, h := range hosts {
		var l strings.Builder
		l.WriteString(h.IP)
		if h.Port != 80 {
			l.WriteString(fmt.Sprint(":", h.Port))
		}
		if h.Cluster != DefaultCluster {
			l.WriteString("/" + h.Cluster)
		}
		if h.Weight != 1 {
			l.WriteString(fmt.Sprint(" w", h.Weight))
		}
		if !h.Healthy {
			l.WriteString(" unhealthy")
		}
		for _, kv := range h.Metadata {
			l.WriteString(" " + kv.Key + "=" + kv.Value)
		}
		got = append(got, l.String())
	}
	return got
}

func (w *world) changed(n int) {
	w.t.Helper()
	if w.changes != n {
		w.t.Errorf("%d changes announced, want %d", w.changes, n)
	}
	w.changes = 0
}

func (w *world) register(c *Client, is ...*Instance) {
	w.t.Helper()
	if err := c.Register(order, is, len(is) != 1); err != nil {
		w.t.Fatal(err)
	}
}

// commit is what the log says of the service.
func (w *world) commit(c Change) {
	c.Service = order
	w.Commit([]Change{c})
}

func (w *world) describe(m *ServiceMeta) { w.commit(Change{Described: true, Meta: m}) }

func (w *world) override(k InstanceKey, o *Override) {
	cause := CauseOperator
	if o == nil {
		cause = CauseOverrideEnded
	}
	w.commit(Change{Overrides: []OverrideChange{{InstanceKey: k, Is: o, Cause: cause}}})
}

func TestRegisterIsReadableAtOnce(t *testing.T) { // T21: no read-your-writes in Nacos
	w := newWorld(t)
	w.register(w.client("a"), inst("1.1.1.1", weight(2), md("k", "v")))
	w.shows("1.1.1.1 w2 k=v")
	w.changed(1)
}

func TestSecondRegisterReplaces(t *testing.T) { // D8, C04
	w := newWorld(t)
	a := w.client("a")
	w.register(a, inst("1.1.1.1"))
	w.register(a, inst("1.1.1.1", port(81)))
	w.shows("1.1.1.1:81")
	w.register(a, inst("1.1.1.1"), inst("1.1.1.2"), inst("1.1.1.3")) // D16
	w.shows("1.1.1.1", "1.1.1.2", "1.1.1.3")
	w.register(a, inst("1.1.1.1"), inst("1.1.1.3"))
	w.shows("1.1.1.1", "1.1.1.3")
	w.register(a, inst("1.1.1.9"))
	w.shows("1.1.1.9")
}

func TestIdenticalRegisterIsSilent(t *testing.T) { // T9
	w := newWorld(t)
	a := w.client("a")
	w.register(a, inst("1.1.1.1", md("k", "v")))
	w.changes = 0
	before := w.Snapshot(order)
	for range 1000 {
		w.register(a, inst("1.1.1.1", md("k", "v")))
	}
	w.changed(0)
	if w.Snapshot(order) != before {
		t.Error("an identical registration made a new snapshot")
	}
	w.register(a, inst("1.1.1.1", md("k", "v2")))
	w.changed(1)
}

func TestUnchangedMemberKeepsItsRegistrationClock(t *testing.T) {
	w := newWorld(t)
	a := w.client("a")
	w.register(a, inst("1.1.1.1"), inst("1.1.1.2"))
	since := w.Snapshot(order).Instances[0].Since
	w.register(a, inst("1.1.1.1"), inst("1.1.1.2", weight(3)))
	s := w.Snapshot(order).Instances
	if s[0].Since != since {
		t.Error("the registration clock of an unchanged member moved")
	}
	if s[1].Since <= since {
		t.Error("the registration clock of a changed member did not move")
	}
}

func TestSameInstanceByTwoClientsIsShownOnce(t *testing.T) { // D15: Nacos shows both
	w := newWorld(t)
	a, b := w.client("a"), w.client("b")
	w.register(a, inst("1.1.1.1", weight(1)))
	w.register(b, inst("1.1.1.1", weight(2)))
	w.shows("1.1.1.1 w2")
	w.register(a, inst("1.1.1.1", weight(1))) // the newest word counts
	w.shows("1.1.1.1")
	a.Close(CauseConnectionLost)
	w.shows("1.1.1.1 w2") // the other is the fallback
	b.Close(CauseConnectionLost)
	w.shows()
}

func TestReconnectNeverShowsAGap(t *testing.T) { // W8 of a client that moves on one node
	w := newWorld(t)
	old, new := w.client("old"), w.client("new")
	w.register(old, inst("1.1.1.1"))
	w.changes = 0
	w.register(new, inst("1.1.1.1"))
	w.shows("1.1.1.1")
	old.Close(CauseConnectionLost)
	w.shows("1.1.1.1")
	w.changed(0) // and nothing to push
}

func TestDeregisteredStaysGone(t *testing.T) {
	w := newWorld(t)
	halfOpen, back := w.client("half-open"), w.client("back")
	w.register(halfOpen, inst("1.1.1.1"))
	w.register(back, inst("1.1.1.1"))
	back.Deregister(order, InstanceKey{"1.1.1.1", 80, ""})
	w.shows() // not the older claim of the connection that nobody uses
	w.register(halfOpen, inst("1.1.1.1"))
	w.shows("1.1.1.1") // but whoever says it again after that is believed
}

func TestDeregisterDoesNotTouchAnotherKindOfClient(t *testing.T) { // C14
	w := newWorld(t)
	g, h := w.client("grpc"), w.Open("1.1.1.1:80#true", Beat)
	w.register(g, inst("1.1.1.1"))
	h.Deregister(order, InstanceKey{"1.1.1.1", 80, DefaultCluster})
	w.shows("1.1.1.1")
	w.register(h, inst("1.1.1.1"))
	h.Deregister(order, InstanceKey{"1.1.1.1", 80, DefaultCluster})
	w.shows("1.1.1.1")
}

func TestOneClientCannotDeregisterAnothers(t *testing.T) {
	w := newWorld(t)
	a, b := w.client("a"), w.client("b")
	w.register(a, inst("1.1.1.1"))
	b.Deregister(order, a.published(order)[0].InstanceKey)
	w.register(b, inst("1.1.1.2"))
	b.Deregister(order, InstanceKey{"1.1.1.1", 80, DefaultCluster})
	w.shows("1.1.1.1")
}

func (c *Client) published(key ServiceKey) []*Instance { p, _ := c.Published(key); return p }

func TestDeregisterOneOfABatch(t *testing.T) { // C40
	w := newWorld(t)
	a := w.client("a")
	w.register(a, inst("1.1.1.1"), inst("1.1.1.2"), inst("1.1.1.3"))
	a.Deregister(order, InstanceKey{IP: "1.1.1.2", Port: 80})
	w.shows("1.1.1.1", "1.1.1.3")
	a.Deregister(order, InstanceKey{IP: "9.9.9.9", Port: 80}) // no member: nothing
	w.shows("1.1.1.1", "1.1.1.3")
	a.Deregister(order, InstanceKey{IP: "1.1.1.1", Port: 80})
	w.shows("1.1.1.3")
	a.Deregister(order, InstanceKey{IP: "9.9.9.9", Port: 80}) // of a single one: whatever is named (D17)
	w.shows()
}

func TestEmptyBatchIsAPublication(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.client("a")
		w.register(a)
		time.Sleep(2 * time.Minute)
		w.Sweep()
		if got := w.Services(DefaultNamespace, DefaultGroup); len(got) != 1 {
			t.Errorf("services %v: one with an empty batch was cleaned up", got)
		}
		a.Deregister(order, InstanceKey{})
		time.Sleep(time.Minute)
		w.Sweep()
		if got := w.Services(DefaultNamespace, DefaultGroup); len(got) != 0 {
			t.Errorf("services %v, want none", got)
		}
	})
}

func TestBatchWithTheSameInstanceTwice(t *testing.T) {
	w := newWorld(t)
	w.register(w.client("a"), inst("1.1.1.1"), inst("1.1.1.1", weight(9)))
	w.shows("1.1.1.1 w9")
}

func TestClosedClientPublishesNothing(t *testing.T) { // D13
	w := newWorld(t)
	a := w.client("a")
	a.Close(CauseConnectionLost)
	if err := a.Register(order, []*Instance{inst("1.1.1.1")}, false); err != ErrClientClosed {
		t.Errorf("error %v, want ErrClientClosed", err)
	}
	w.shows()
}

func TestFilterAndProtection(t *testing.T) { // V5–V8, C15
	hosts := []*Instance{
		inst("1.1.1.1"), inst("1.1.1.2", cluster("c2"), unhealthy), inst("1.1.1.3", disabled),
		inst("1.1.1.4", cluster("c2"), weight(0)),
	}
	f := func(threshold float64, described bool, filter Filter, wantProtected bool, want ...string) {
		t.Helper()
		w := newWorld(t)
		w.register(w.client("a"), hosts...)
		if described {
			w.describe(&ServiceMeta{ProtectThreshold: threshold, Selector: Selector{Type: "label", Expression: "x"}})
		}
		got, protected := w.Snapshot(order).Select(filter)
		var ips []string
		for _, h := range got {
			ips = append(ips, h.IP[len(h.IP)-1:])
		}
		if diff := cmp.Diff(want, ips); diff != "" || protected != wantProtected {
			t.Errorf("protected %v, want %v; hosts (-want +got):\n%s", protected, wantProtected, diff)
		}
	}
	f(0, false, Filter{}, false, "1", "2", "4")
	f(0, false, Filter{HealthyOnly: true}, false, "1", "4")
	f(0, false, Filter{Clusters: "c2"}, false, "2", "4")
	f(0, false, Filter{Clusters: "c2,DEFAULT"}, false, "1", "2", "4")
	f(0, false, Filter{Clusters: "c2, DEFAULT"}, false, "2", "4") // not trimmed
	f(0, false, Filter{Clusters: "nope"}, false)
	f(1, true, Filter{Clusters: "nope"}, false) // 0 of 0 protects nothing
	f(0.6, true, Filter{}, false, "1", "2", "4")
	f(0.7, true, Filter{}, true, "1", "2", "4")
	f(0.7, true, Filter{HealthyOnly: true}, false, "1", "4") // of what is left all are healthy
	f(1, true, Filter{HealthyOnly: true}, true, "1", "4")
	f(-1, true, Filter{}, false, "1", "2", "4")

	hosts = []*Instance{inst("1.1.1.1", unhealthy), inst("1.1.1.2", unhealthy)}
	f(0, false, Filter{}, false, "1", "2") // nobody described the service: no protection
	f(0, true, Filter{}, true, "1", "2")   // V8: threshold 0 when all are unhealthy
	f(-1, true, Filter{}, true, "1", "2")
}

func TestOverride(t *testing.T) { // V9, V11
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.client("a")
		k := InstanceKey{"1.1.1.1", 80, DefaultCluster}
		w.register(a, inst("1.1.1.1", weight(5), md("a", "1", "b", "2")))
		w.changes = 0
		w.override(k, &Override{Weight: new(3.0), Metadata: NewMetadata(map[string]string{"b": "two", "c": "3"})})
		w.changed(1)
		w.shows("1.1.1.1 w3 a=1 b=two c=3")
		w.register(a, inst("1.1.1.1", weight(5), md("a", "new"))) // registering again does not remove it
		w.shows("1.1.1.1 w3 a=new b=two c=3")
		w.override(k, &Override{Enabled: new(false)})
		w.shows()
		if s, ok := w.Snapshot(order).Get(k); !ok || s.Enabled {
			t.Error("a disabled instance is not in the snapshot any more")
		}
		a.Close(CauseConnectionLost)
		w.register(w.client("b"), inst("1.1.1.1"))
		w.shows() // back: still disabled
		b := w.client("b2")
		w.register(b, inst("1.1.1.1"))
		b.Deregister(order, k) // an explicit goodbye ends it (C27)
		w.register(b, inst("1.1.1.1"))
		w.shows("1.1.1.1")
	})
}

func TestHealth(t *testing.T) {
	w := newWorld(t)
	a := w.Open("1.1.1.1:80#true", Beat)
	w.register(a, inst("1.1.1.1"))
	since := w.Snapshot(order).Instances[0].Since
	w.changes = 0
	a.SetHealthy(order, false, CauseBeatMissed)
	w.shows("1.1.1.1 unhealthy")
	a.SetHealthy(order, false, CauseBeatMissed)
	w.changed(1)
	a.SetHealthy(order, true, CauseBeatResumed)
	w.shows("1.1.1.1")
	if w.Snapshot(order).Instances[0].Since != since {
		t.Error("health moved the registration clock")
	}
	a.Remove(order, CauseBeatTimeout)
	w.shows()
	w.causes("registered", "beat missed", "beat resumed", "beat timeout")
}

func (w *world) causes(want ...Cause) {
	w.t.Helper()
	var got []Cause
	for _, e := range w.History(order) {
		got = append(got, e.Cause)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("wrong causes (-want +got):\n%s", diff)
	}
}

func TestHistorySaysWhy(t *testing.T) {
	w := newWorld(t)
	a, b := w.client("a"), w.client("b")
	w.register(a, inst("1.1.1.1"))
	w.register(a, inst("1.1.1.1", weight(2)))
	w.register(a, inst("1.1.1.2"))
	w.register(b, inst("1.1.1.2"))
	a.Close(CauseConnectionLost) // b shows the same: nothing happened
	b.Deregister(order, InstanceKey{})
	w.causes(CauseRegistered, CauseChanged, CauseReplaced, CauseRegistered, CauseDeregistered)
	h := w.History(order)
	if h[1].Before.Weight != 1 || h[1].After.Weight != 2 || h[2].After != nil || h[2].Client != "a" || h[4].Client != "b" {
		t.Errorf("wrong events %+v", h)
	}
}

func TestHistoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(o *Options) { o.History = HistoryLimits{PerService: 10, Bytes: 4000, KeepGone: 60_000} })
		for n := range 50 {
			for s := range 20 {
				w.client("a").Register(ServiceKey{"n", "g", fmt.Sprint(s)}, []*Instance{inst(fmt.Sprint(n))}, false)
			}
		}
		total := int64(0)
		for s := range 20 {
			h := w.History(ServiceKey{"n", "g", fmt.Sprint(s)})
			if len(h) == 0 || len(h) > 10 {
				t.Errorf("service %d has %d events", s, len(h))
			}
			if last := h[len(h)-1]; last.Key.IP != "49" {
				t.Errorf("the newest event is of %s", last.Key.IP)
			}
			again := history{own: w.own}
			for _, e := range h {
				again.add(&e)
			}
			total += again.bytes()
		}
		if s := w.Stats(); s.HistoryBytes != total || total > 20*400 {
			t.Errorf("%d bytes counted, %d there", s.HistoryBytes, total)
		}
	})
}

func TestHistoryIsWrittenDown(t *testing.T) {
	key := InstanceKey{"1.1.1.1", 65535, "DEFAULT"}
	long := strings.Repeat("long", 100)
	events := []Event{
		{At: 1 << 63, Cause: CauseRegistered, Client: "c", Key: key, After: &Instance{InstanceKey: key, ID: "own", Weight: 0.1, Healthy: true, Metadata: Metadata{{"a", "1"}, {"b", long}}}},
		{Key: InstanceKey{Port: -1}, Before: &Instance{InstanceKey: InstanceKey{Port: -1}, Enabled: true}},
		{At: 7, Cause: CauseChanged, Key: key, Before: &Instance{InstanceKey: key, Metadata: Metadata{{"", ""}}}, After: &Instance{InstanceKey: key}},
	}
	var h history
	for n := range 300 {
		h.add(&events[n%3])
		if n >= 3 {
			h.drop(1)
		}
	}
	if diff := cmp.Diff(events, h.events()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if cap(h.log) > 8*len(h.log) {
		t.Errorf("%d bytes are kept for %d", cap(h.log), len(h.log))
	}
}

func TestHistoryOutlivesItsService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.client("a")
		w.register(a, inst("1.1.1.1"))
		a.Close(CauseConnectionLost)
		time.Sleep(59 * time.Second)
		w.Sweep()
		if w.Stats().Services != 1 {
			t.Error("cleaned up too early")
		}
		time.Sleep(time.Second)
		w.Sweep()
		if w.Stats().Services != 0 {
			t.Error("an empty service was not cleaned up")
		}
		w.causes(CauseRegistered, CauseConnectionLost)
		time.Sleep(25 * time.Hour)
		w.Sweep()
		w.causes()
		if b := w.Stats().HistoryBytes; b != 0 {
			t.Errorf("%d bytes of history left", b)
		}
	})
}

func TestServicesAreSorted(t *testing.T) { // C42
	w := newWorld(t)
	for _, n := range []string{"c", "a", "b"} {
		w.client(n).Register(ServiceKey{"ns", "g", n}, []*Instance{inst("1")}, false)
	}
	w.client("x").Register(ServiceKey{"ns", "other", "x"}, []*Instance{inst("1")}, false)
	if diff := cmp.Diff([]string{"a", "b", "c"}, w.Services("ns", "g")); diff != "" {
		t.Error(diff)
	}
	if w.Snapshot(ServiceKey{"ns", "g", "none"}).Version != 0 || len(w.Services("ns", "g")) != 3 {
		t.Error("reading created a service") // D4
	}
}

func TestServedTimesGrow(t *testing.T) { // V3, C23
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.client("a")
		_, last := w.Serve(order) // not there yet
		seen := w.Snapshot(order)
		for n := range 50 { // within one millisecond
			w.register(a, inst("1.1.1.1", weight(float64(n+2))))
			snap, at := w.Serve(order)
			if at <= last || snap == seen {
				t.Fatalf("change %d was served at %d after %d", n, at, last)
			}
			if _, again := w.Serve(order); again != at {
				t.Errorf("the same picture was served at %d and %d in one millisecond", at, again)
			}
			seen, last = snap, at
		}
		for range 5000 { // changes that nobody reads cost no time
			w.register(a, inst("1.1.1.1", weight(rand.Float64()+1)))
		}
		if _, at := w.Serve(order); at != last+1 {
			t.Errorf("unread changes pushed the time from %d to %d", last, at)
		}
		time.Sleep(time.Second)
		if _, at := w.Serve(order); at != time.Now().UnixMilli() {
			t.Errorf("served at %d, the clock says %d", at, time.Now().UnixMilli())
		}
	})
}

func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewClock(0, 0)
		a := c.Now()
		for range 100_000 { // more than the counter holds within one millisecond
			b := c.Now()
			if b <= a {
				t.Fatal("stamps do not grow")
			}
			a = b
		}
		ahead := StampAt(time.Now().Add(time.Hour).UnixMilli())
		c.Adopt(ahead)
		if c.Now() <= ahead {
			t.Error("a stamp below the adopted one")
		}
		time.Sleep(time.Second)
		if got, want := c.Millis(), ahead.Millis()+1000; got != want {
			t.Errorf("the clock reads %d a second after %d was adopted: it must keep ticking", got, ahead.Millis())
		}
		c.Adopt(StampAt(1)) // older ones change nothing
		if got, want := c.Millis(), ahead.Millis()+1000; got != want {
			t.Errorf("adopting an old stamp moved the clock from %d to %d", want, got)
		}
		if d := NewClock(ahead, -time.Hour).Now(); d <= ahead {
			t.Error("a stamp below the floor")
		}
		if got, want := NewClock(0, time.Minute).Millis(), time.Now().Add(time.Minute).UnixMilli(); got != want {
			t.Errorf("with a skew of a minute the clock reads %d, want %d", got, want)
		}
	})
}

// Clocks that follow the same wall read the same, whenever they were made: a
// client that asks one node and then another at once is told no older time.
func TestClocksAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var clocks []*Clock
		for range 40 {
			time.Sleep(370 * time.Microsecond)
			clocks = append(clocks, NewClock(0, 0))
			for n, c := range clocks {
				if got, want := c.Millis(), time.Now().UnixMilli(); got != want {
					t.Fatalf("clock %d reads %d, the wall %d", n, got, want)
				}
			}
		}
	})
}

func TestEncodeOnce(t *testing.T) {
	w := newWorld(t)
	w.register(w.client("a"), inst("1.1.1.1"))
	snap, calls := w.Snapshot(order), 0
	enc := func(*Snapshot, Filter) []byte { calls++; return fmt.Append(nil, "x", calls) }
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() { snap.Encode(Filter{}, enc) })
	}
	wg.Wait()
	if calls != 1 {
		t.Errorf("encoded %d times", calls)
	}
	for n := range 100 {
		snap.Encode(Filter{Clusters: fmt.Sprint(n)}, enc)
	}
	if n := len(snap.memo.entries); n > maxMemo {
		t.Errorf("%d encodings kept", n)
	}
}

// TestAgainstModel plays random operations against the registry and against
// the rules written down as plainly as possible.
func TestAgainstModel(t *testing.T) {
	type said struct {
		inst   *Instance
		at     int
		hidden bool
	}
	type edit struct {
		weight   float64
		revision uint64
		sticky   bool
		over     bool
	}
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var told []Edit
		w := newWorld(t, func(o *Options) { o.OverrideOver = func(e Edit) { told = append(told, e) } })
		clients := map[string]*Client{}
		model := map[string]map[InstanceKey]*said{}
		publishes := map[string]bool{}
		kinds := map[string]Kind{}
		rows := map[InstanceKey]Persistent{}
		checks := map[InstanceKey]Check{} // the newest
		edits := map[InstanceKey]*edit{}
		var meta *ServiceMeta
		var ended []Edit // that the log is to be told of
		var log []string
		say := func(format string, args ...any) { log = append(log, fmt.Sprintf(format, args...)) }
		claimed := func() map[InstanceKey]*said {
			best := map[InstanceKey]*said{}
			for _, m := range model {
				for k, s := range m {
					if !s.hidden && (best[k] == nil || s.at > best[k].at) {
						best[k] = s
					}
				}
			}
			return best
		}
		healthy := func(k InstanceKey) bool {
			if c, ok := checks[k]; ok && c.Made > rows[k].Judged {
				return c.Healthy
			}
			return rows[k].Healthy
		}
		view := func() []string {
			var out []string
			line := func(k InstanceKey, weight float64, healthy, persistent bool) {
				if e := edits[k]; e != nil && !e.over {
					weight = e.weight
				}
				out = append(out, fmt.Sprintf("%s w%v healthy=%v persistent=%v", k.IP, weight, healthy, persistent))
			}
			for k, s := range claimed() {
				if _, ok := rows[k]; !ok {
					line(k, s.inst.Weight, true, false)
				}
			}
			for k, p := range rows {
				line(k, p.Weight, healthy(k), true)
			}
			slices.Sort(out)
			return out
		}
		visible := func(k InstanceKey, s *said) bool {
			for _, m := range model {
				if o := m[k]; o != nil && !o.hidden && o.at > s.at {
					return false
				}
			}
			return !s.hidden
		}
		kind := func() ServiceKind {
			switch {
			case len(rows) > 0 || meta != nil && meta.Persistent:
				return PersistentService
			case meta != nil || len(publishes) > 0:
				return EphemeralService
			}
			return Free
		}
		goodbye := func(k InstanceKey) {
			if _, persistent := rows[k]; persistent {
				return
			}
			if e := edits[k]; e != nil && !e.sticky && !e.over {
				e.over = true
				ended = append(ended, Edit{order, k, e.revision, CauseOverrideEnded})
			}
		}
		at := func() InstanceKey { return InstanceKey{fmt.Sprint(rng.IntN(4)), 80, DefaultCluster} }
		stamps := []Stamp{w.opts.Clock.Now()}
		now := func() Stamp {
			stamps = append(stamps, w.opts.Clock.Now())
			return stamps[len(stamps)-1]
		}
		revision := uint64(0)
		change := func() Change {
			c := Change{Service: order}
			if rng.IntN(8) == 0 {
				c.Described = true
				if rng.IntN(2) == 0 {
					c.Meta = &ServiceMeta{Persistent: rng.IntN(4) == 0, ProtectThreshold: 0.5}
				}
				meta = c.Meta
			}
			for range rng.IntN(3) {
				k := at()
				ch := PersistentChange{InstanceKey: k, Cause: CauseDeregistered, Clock: now()}
				delete(rows, k)
				if rng.IntN(3) == 0 {
					i := inst(k.IP, weight(float64(5+rng.IntN(2))))
					i.Persistent, i.Healthy = true, rng.IntN(2) == 0
					rows[k] = Persistent{i, ch.Clock, ch.Clock}
					ch.Is, ch.Cause = &Persistent{i, ch.Clock, ch.Clock}, CauseRegistered
				}
				c.Instances = append(c.Instances, ch)
			}
			for range rng.IntN(2) {
				k := at()
				ch := OverrideChange{InstanceKey: k, Cause: CauseOverrideEnded, Clock: now()}
				if was := edits[k]; was != nil && rng.IntN(3) == 0 { // the same once more, as after a snapshot
					ch.Is, ch.Cause = &Override{Weight: &was.weight, Sticky: was.sticky, Revision: was.revision}, CauseOperator
				} else if rng.IntN(3) > 0 {
					revision++
					e := &edit{weight: float64(8 + rng.IntN(2)), revision: revision, sticky: rng.IntN(3) == 0}
					edits[k] = e
					ch.Is, ch.Cause = &Override{Weight: &e.weight, Sticky: e.sticky, Revision: revision}, CauseOperator
				} else {
					delete(edits, k)
				}
				c.Overrides = append(c.Overrides, ch)
			}
			return c
		}
		for step := range 60 {
			id := fmt.Sprint("c", rng.IntN(4))
			if clients[id] == nil {
				kinds[id] = Kind(rng.IntN(2))
				clients[id] = w.Open(id, kinds[id])
			}
			c := clients[id]
			switch op := rng.IntN(14); {
			case op < 6:
				var is []*Instance
				next := map[InstanceKey]*said{}
				for range rng.IntN(4) {
					i := inst(fmt.Sprint(rng.IntN(4)), weight(float64(rng.IntN(2)+1)))
					is = append(is, i)
					next[i.InstanceKey] = &said{inst: i, at: step}
				}
				err := c.Register(order, is, true)
				say("%s publishes %d: %v", id, len(is), err)
				if want := kind() == PersistentService; (err == ErrPersistentService) != want || err != nil != want {
					t.Fatalf("seed %d: %v after\n%s", seed, err, strings.Join(log, "\n"))
				}
				if err != nil {
					break
				}
				for k, s := range next {
					if was := model[id][k]; was != nil && was.inst.equal(s.inst) && visible(k, was) {
						next[k] = was
					}
				}
				model[id], publishes[id] = next, true
			case op < 8:
				k := at()
				was := claimed()[k] != nil
				goes := []InstanceKey{k}
				if len(model[id]) < 2 {
					goes = nil
					for k := range model[id] {
						goes = append(goes, k)
					}
					delete(publishes, id)
				}
				if kinds[id] == Beat && !slices.Contains(goes, k) {
					goes = append(goes, k) // there is only one HTTP client of an address
				}
				for _, k := range goes {
					mine := model[id][k]
					if mine != nil {
						goodbye(k)
					}
					if mine == nil && kinds[id] != Beat {
						continue
					}
					delete(model[id], k)
					for o, m := range model {
						if kinds[o] == kinds[id] && m[k] != nil && (kinds[id] == Beat || m[k].at < mine.at) {
							m[k].hidden = true
						}
					}
				}
				if was && claimed()[k] == nil {
					goodbye(k) // to what another had registered, too
				}
				c.Deregister(order, k)
				say("%s deregisters %s", id, k.IP)
			case op < 9:
				c.Close(CauseConnectionLost)
				delete(clients, id)
				delete(model, id)
				delete(publishes, id)
				say("%s closes", id)
			case op < 12:
				var all []Change
				for range 1 + rng.IntN(2) {
					all = append(all, change())
				}
				w.changes = 0
				before := w.Snapshot(order)
				w.Commit(all)
				say("the log says %+v", all)
				if is := w.Snapshot(order); w.changes > 1 || (w.changes == 1) != (is.Version != before.Version) || is.Meta != meta {
					t.Fatalf("seed %d: %d changes, meta %v after\n%s", seed, w.changes, is.Meta, strings.Join(log, "\n"))
				}
			default:
				made := now()
				if rng.IntN(3) == 0 {
					made = stamps[rng.IntN(len(stamps))] // it comes late, or twice
				}
				ck := Check{Service: order, InstanceKey: at(), Healthy: rng.IntN(2) == 0, Made: made, By: Life{fmt.Sprint(rng.IntN(2)), 1}}
				if was, ok := checks[ck.InstanceKey]; !ok || ck.Made > was.Made || ck.Made == was.Made && ck.By.Node > was.By.Node {
					checks[ck.InstanceKey] = ck
				}
				w.Checked(ck)
				say("checked: %+v", ck)
			}
			var got []string
			for _, h := range w.Snapshot(order).Instances {
				got = append(got, fmt.Sprintf("%s w%v healthy=%v persistent=%v", h.IP, h.Weight, h.Healthy, h.Persistent))
			}
			if diff := cmp.Diff(view(), got); diff != "" {
				t.Fatalf("seed %d after\n%s\n(-want +got):\n%s", seed, strings.Join(log, "\n"), diff)
			}
			if n := w.Stats(); n.Instances != int64(len(got)) || n.PersistentInstances != int64(len(rows)) {
				t.Fatalf("seed %d: %+v counted, %d there, %d persistent", seed, n, len(got), len(rows))
			}
			if diff := cmp.Diff(ended, told); diff != "" {
				t.Fatalf("seed %d: edits ended after\n%s\n(-want +got):\n%s", seed, strings.Join(log, "\n"), diff)
			}
			if got, want := w.Kind(order), kind(); got != want || w.Present(order) != (want != Free) || want != Free && !w.Exists(order) {
				t.Fatalf("seed %d: kind %v, want %v, present %v after\n%s", seed, got, want, w.Present(order), strings.Join(log, "\n"))
			}
			probed := w.Persistent(order)
			for _, p := range probed {
				k := p.InstanceKey
				c, checked := checks[k]
				if p.Healthy != healthy(k) || p.Since != rows[k].Since || checked != (p.Check != nil) || checked && *p.Check != c {
					t.Fatalf("seed %d: %+v, want healthy %v after\n%s", seed, p, healthy(k), strings.Join(log, "\n"))
				}
			}
			if len(probed) != len(rows) || (len(rows) > 0) != (len(w.PersistentServices()) > 0) {
				t.Fatalf("seed %d: %d persistent, want %d", seed, len(probed), len(rows))
			}
		}
		for _, c := range clients {
			c.Close(CauseConnectionLost)
		}
		all := Change{Service: order, Described: true}
		for n := range 4 {
			k := InstanceKey{fmt.Sprint(n), 80, DefaultCluster}
			all.Instances = append(all.Instances, PersistentChange{InstanceKey: k, Cause: CauseDeregistered})
			all.Overrides = append(all.Overrides, OverrideChange{InstanceKey: k, Cause: CauseOverrideEnded})
		}
		w.Commit([]Change{all})
		if s := w.Stats(); s.Instances != 0 || s.Publications != 0 || s.PersistentInstances != 0 || w.Exists(order) {
			t.Fatalf("seed %d: %+v after all have gone", seed, s)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	w := newWorld(t)
	w.opts.Changed = nil
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(n), 2))
			for range 200 {
				c := w.client(fmt.Sprint(n))
				key := ServiceKey{"n", "g", fmt.Sprint(rng.IntN(3))}
				c.Register(key, []*Instance{inst(fmt.Sprint(rng.IntN(5)))}, false)
				snap, _ := w.Serve(key)
				snap.Encode(Filter{}, func(s *Snapshot, f Filter) []byte { return nil })
				w.Sweep()
				c.SetHealthy(key, false, CauseBeatMissed)
				c.Close(CauseConnectionLost)
			}
		})
	}
	wg.Wait()
	if s := w.Stats(); s.Instances != 0 || s.Publications != 0 {
		t.Errorf("%+v after all have gone", s)
	}
}

func BenchmarkRegister(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprint("instances=", n), func(b *testing.B) {
			r := New(DefaultOptions())
			for i := range n - 1 {
				r.Open(fmt.Sprint(i), Connection).Register(order, []*Instance{inst(fmt.Sprintf("10.0.%d.%d", i/256, i%256))}, false)
			}
			c := r.Open("x", Connection)
			flip := []*Instance{inst("10.1.0.0"), inst("10.1.0.0", weight(2))}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				c.Register(order, flip[i&1:i&1+1], false)
			}
		})
	}
}

// A replacement is one change: nobody may see a picture between the old and
// the new instances.
func TestReplacementIsOnePicture(t *testing.T) {
	w := newWorld(t)
	a := w.client("a")
	w.register(a, inst("1.1.1.1"))
	w.changes = 0
	first := w.Snapshot(order)
	w.register(a, inst("1.1.1.2"))
	w.changed(1)
	w.causes(CauseRegistered, CauseReplaced, CauseRegistered)
	h := w.History(order)
	if s := w.Snapshot(order); s.Version != h[1].At || h[1].At != h[2].At || h[1].At <= first.Version {
		t.Errorf("the old one went at %v and the new one came at %v, in version %v after %v", h[1].At, h[2].At, s.Version, first.Version)
	}
}

// --clock-offset -60s must make the clock late (cases C23 needs it).
func TestNegativeSkew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if got, want := NewClock(0, -time.Minute).Millis(), time.Now().Add(-time.Minute).UnixMilli(); got != want {
			t.Errorf("with a skew of -1m the clock reads %d, want %d (%d ms off)", got, want, got-want)
		}
	})
}

// "64 MiB in all" (design §4): services that came and went under ever new
// names keep at least one event each for 24 h, over any budget.
func TestHistoryBudgetHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(o *Options) { o.History.Bytes = 64 << 10 })
		for n := range 20_000 {
			c := w.client("a")
			c.Register(ServiceKey{"n", "g", fmt.Sprint(n)}, []*Instance{inst("1.1.1.1")}, false)
			c.Close(CauseConnectionLost)
		}
		time.Sleep(2 * time.Minute)
		w.Sweep()
		if s := w.Stats(); s.HistoryBytes > 2*64<<10 {
			t.Errorf("%d services, %d bytes of history, the limit is %d", s.Services, s.HistoryBytes, 64<<10)
		}
	})
}

// Times that ran ahead of the clock are forgotten with the service.
func TestTimesSurviveCleanUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(o *Options) { o.EmptyServiceAge = 1000 })
		a := w.client("a")
		var last int64
		for n := range 3_000 { // three seconds of times, without the time passing
			w.register(a, inst("1.1.1.1", weight(float64(n+2))))
			_, last = w.Serve(order)
		}
		if hw := w.HighWater(); hw.Millis() <= last {
			t.Errorf("the high-water mark %d is below %d that was served", hw.Millis(), last)
		}
		a.Close(CauseConnectionLost)
		time.Sleep(1100 * time.Millisecond)
		w.Sweep()
		if _, at := w.Serve(order); at <= last {
			t.Errorf("after the clean-up the service is served at %d, %d ms below what clients hold", at, last-at)
		}
	})
}

// A client that said goodbye must not take away what another, newer client
// publishes: that one will never register again by itself. (Nacos: it stays.)
func TestOldClientsGoodbyeHidesNewerClaim(t *testing.T) {
	w := newWorld(t)
	old, newer := w.client("old process"), w.client("new process")
	w.register(old, inst("1.1.1.1"))
	w.register(newer, inst("1.1.1.1", weight(2)))
	w.shows("1.1.1.1 w2")
	old.Deregister(order, InstanceKey{"1.1.1.1", 80, DefaultCluster})
	w.shows("1.1.1.1 w2")
}
