package grpcapi

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func (c *client) watch(pattern, known string, initializing bool) string {
	return c.call("NamingFuzzyWatchRequest", fmt.Sprintf(`{"namespace":"public","groupKeyPattern":%q,"receivedGroupKeys":[%s],"watchType":"WATCH","initializing":%v}`, pattern, known, initializing))
}

const watchOK = `NamingFuzzyWatchResponse {"resultCode":200,"errorCode":0,"success":true}`

// told returns what a watching client was sent since the last call, one line a
// message: its sync type, batch and the services with + or -.
func (c *client) told(wait time.Duration) []string {
	c.b.t.Helper()
	time.Sleep(wait)
	synctest.Wait()
	var lines []string
	for len(c.pushes) > 0 {
		p := <-c.pushes
		if !strings.HasPrefix(p.Type, "NamingFuzzyWatch") {
			continue
		}
		noNulls(c.b.t, p)
		var m struct {
			SyncType, ServiceKey, ChangedType string
			TotalBatch, CurrentBatch          int
			Contexts                          []struct{ ServiceKey, ChangedType string }
		}
		if err := json.Unmarshal(p.Body, &m); err != nil {
			c.b.t.Fatal(err)
		}
		sign := map[string]string{"ADD_SERVICE": "+", "DELETE_SERVICE": "-"}
		var line strings.Builder
		line.WriteString(strings.TrimSuffix(strings.TrimPrefix(m.SyncType, "FUZZY_WATCH_"), "_NOTIFY"))
		if m.TotalBatch > 0 {
			line.WriteString(fmt.Sprintf(" %d/%d", m.CurrentBatch, m.TotalBatch))
		} else {
			line.WriteString(" " + sign[m.ChangedType] + m.ServiceKey)
		}
		for _, x := range m.Contexts {
			line.WriteString(" " + sign[x.ChangedType] + strings.TrimPrefix(x.ServiceKey, "public@@DEFAULT_GROUP@@"))
		}
		lines = append(lines, line.String())
	}
	return lines
}

func (c *client) wantTold(wait time.Duration, want ...string) {
	c.b.t.Helper()
	if diff := cmp.Diff(want, c.told(wait)); diff != "" {
		c.b.t.Errorf("told (-want +got):\n%s", diff)
	}
}

func TestFuzzyWatch(t *testing.T) { // grpc-protocol §3.9
	run(t, func(b *bench) {
		p, w := b.connect(), b.connect()
		defer p.close()
		defer w.close()
		for n := range 12 {
			p.register(fmt.Sprintf("order-%02d", n), "1.1.1.1")
		}
		p.register("stock", "1.1.1.1")
		p.register("order-gone", "1.1.1.1")
		p.deregister("order-gone", "1.1.1.1") // still listed, but not there

		if got := w.watch("public>>DEFAULT_GROUP>>order-*", "", true); got != watchOK {
			t.Error(got)
		}
		w.wantTold(100*time.Millisecond,
			"INIT 1/2 +order-00 +order-01 +order-02 +order-03 +order-04 +order-05 +order-06 +order-07 +order-08 +order-09",
			"INIT 2/2 +order-10 +order-11",
			"FINISH_FUZZY_WATCH_INIT 1/1") // after the acks of the others

		p.register("order-new", "1.1.1.1")
		w.wantTold(0, "RESOURCE_CHANGED +public@@DEFAULT_GROUP@@order-new")
		other := b.connect()
		defer other.close()
		other.register("order-new", "1.1.1.2") // it was there already
		p.deregister("order-new", "1.1.1.1")   // and still is
		p.register("stock-2", "1.1.1.1")
		w.wantTold(time.Second)
		other.deregister("order-new", "1.1.1.2")
		w.wantTold(0, "RESOURCE_CHANGED -public@@DEFAULT_GROUP@@order-new")

		// Comparing notes: the client lacks 01 and knows one in vain.
		var known []string
		for n := range 12 {
			if n != 1 {
				known = append(known, fmt.Sprintf(`"public@@DEFAULT_GROUP@@order-%02d"`, n))
			}
		}
		w.watch("public>>DEFAULT_GROUP>>order-*", strings.Join(append(known, `"public@@DEFAULT_GROUP@@order-dead"`), ","), false)
		w.wantTold(100*time.Millisecond, "DIFF_SYNC 1/1 +order-01 -order-dead")
		w.watch("public>>DEFAULT_GROUP>>order-*", strings.Join(append(known, `"public@@DEFAULT_GROUP@@order-01"`), ","), false)
		w.wantTold(time.Second) // no difference, no message

		// A refused message is sent again, once.
		w.refuseAll.Store(2)
		p.register("order-refused", "1.1.1.1")
		w.wantTold(0, "RESOURCE_CHANGED +public@@DEFAULT_GROUP@@order-refused")
		w.wantTold(time.Second, "RESOURCE_CHANGED +public@@DEFAULT_GROUP@@order-refused")
		w.wantTold(time.Minute)

		w.expect("NamingFuzzyWatchRequest", `{"groupKeyPattern":"public>>DEFAULT_GROUP>>order-*","watchType":"CANCEL_WATCH"}`, watchOK)
		p.register("order-late", "1.1.1.1")
		w.wantTold(time.Second)

		// Nothing matches: the initial comparison is complete at once.
		w.watch("public>>none>>*", "", true)
		w.wantTold(100*time.Millisecond, "FINISH_FUZZY_WATCH_INIT 1/1")
		w.expect("NamingFuzzyWatchRequest", `{"groupKeyPattern":"nonsense","watchType":"CANCEL_WATCH"}`, watchOK)
		w.expect("NamingFuzzyWatchRequest", `{"groupKeyPattern":"nonsense","watchType":"WATCH"}`,
			`NamingFuzzyWatchResponse {"resultCode":500,"errorCode":400,"message":"Param check invalid:Param 'groupKeyPattern' is illegal, it should be format as 'namespace>>groupPattern>>servicePattern'.","success":false}`)
		w.expect("NamingFuzzyWatchRequest", `{"groupKeyPattern":"a>>b>>c","watchType":"x"}`, `ErrorResponse {"resultCode":400,"errorCode":400,"message":"Unsupported request type x","success":false}`)
	})
}

func TestFuzzyWatchLimits(t *testing.T) { // S10: 20 patterns, 500 services
	run(t, func(b *bench) {
		p, w := b.connect(), b.connect()
		defer p.close()
		for n := range 501 {
			p.register(fmt.Sprintf("s-%03d", n), "1.1.1.1")
		}
		w.call("HealthCheckRequest", `{}`)
		if got, want := w.watch("public>>DEFAULT_GROUP>>s-*", "", true), `NamingFuzzyWatchResponse {"resultCode":500,"errorCode":50311,"message":"fuzzy watch pattern matched count over limit","success":false}`; got != want {
			t.Error(got)
		}
		told := w.told(time.Second) // it watches all the same
		if len(told) != 51 || told[50] != "FINISH_FUZZY_WATCH_INIT 1/1" {
			t.Errorf("%d messages, the last %q", len(told), told[len(told)-1])
		}
		p.deregister("s-500", "1.1.1.1")
		w.wantTold(0, "RESOURCE_CHANGED -public@@DEFAULT_GROUP@@s-500")

		for n := range 19 {
			if got := w.watch(fmt.Sprintf("public>>g>>p-%d", n), "", true); got != watchOK {
				t.Error(got)
			}
		}
		over := `NamingFuzzyWatchResponse {"resultCode":500,"errorCode":50310,"message":"fuzzy watch pattern over limit","success":false}`
		if got := w.watch("public>>g>>one-more", "", true); got != over {
			t.Error(got)
		}
		x := b.connect()
		defer x.close()
		if got := x.watch("public>>g>>p-3", "", true); got != watchOK { // one that is there already
			t.Error(got)
		}
		w.close() // and takes 19 patterns along
		if got := x.watch("public>>g>>one-more", "", true); got != watchOK {
			t.Error(got)
		}
	})
}

func TestLimits(t *testing.T) {
	run(t, func(b *bench) {
		c := b.connect()
		defer c.close()
		over := func(typ, what, flag string) string {
			return fmt.Sprintf(`%s {"resultCode":500,"errorCode":503,"message":"over the limit of 3 %s of one connection (--%s)","success":false}`, typ, what, flag)
		}
		for n := range 3 {
			c.subscribe(fmt.Sprint("s", n), "")
			c.register(fmt.Sprint("s", n), "1.1.1.1")
		}
		c.subscribe("s0", "c1") // one that is there already
		c.register("s0", "1.1.1.2")
		c.expect("SubscribeServiceRequest", `{`+ref("s9")+`,"subscribe":true}`, over("SubscribeServiceResponse", "subscriptions and watches", "max-subscriptions-per-connection"))
		if got := c.watch("public>>g>>*", "", true); got != over("NamingFuzzyWatchResponse", "subscriptions and watches", "max-subscriptions-per-connection") {
			t.Error(got)
		}
		c.expect("InstanceRequest", `{`+ref("s9")+`,"type":"registerInstance","instance":{"ip":"1.1.1.1","port":80}}`, over("InstanceResponse", "instances", "max-instances-per-connection"))
		c.expect("BatchInstanceRequest", `{`+ref("s0")+`,"type":"batchRegisterInstance","instances":[{"ip":"1.1.1.1","port":80},{"ip":"1.1.1.2","port":80}]}`, over("BatchInstanceResponse", "instances", "max-instances-per-connection"))
		if s := b.reg.Stats(); s.Services != 3 || s.Instances != 3 {
			t.Errorf("%+v: a refused request has changed something", s)
		}
		c.call("SubscribeServiceRequest", `{`+ref("s0")+`,"subscribe":false}`)
		c.deregister("s0", "1.1.1.1")
		c.register("s9", "1.1.1.1")
		if got := c.subscribe("s9", ""); !strings.HasPrefix(got, `SubscribeServiceResponse {"resultCode":200`) {
			t.Error(got)
		}
	}, func(o *Options) { o.MaxSubscriptions, o.MaxInstances = 3, 3 })
}

func TestConnectionLimit(t *testing.T) {
	run(t, func(b *bench) {
		a, x := b.connect(), b.connect()
		defer a.close()
		c := b.dial()
		defer c.close()
		c.expect("ServerCheckRequest", `{}`, `ErrorResponse {"resultCode":500,"errorCode":503,"message":"over the limit of 2 connections from 10.9.9.9 (--max-connections-per-address)","success":false}`)
		c.open()
		c.send("ConnectionSetupRequest", goSetup)
		if err := <-c.ended; !strings.Contains(err.Error(), "--max-connections-per-address") {
			t.Errorf("the stream ended with %v", err)
		}
		a.expect("HealthCheckRequest", `{}`, `HealthCheckResponse {"resultCode":200,"errorCode":0,"success":true}`)
		c.close()
		x.close()
		time.Sleep(2 * time.Second)
		d := b.connect() // there is room again
		defer d.close()
		d.expect("HealthCheckRequest", `{}`, `HealthCheckResponse {"resultCode":200,"errorCode":0,"success":true}`)
	}, func(o *Options) { o.MaxPerAddress = 2 })
}

// A flood from one address does not use up what there is for the others.
func TestAdmission(t *testing.T) {
	a := newAdmission(Options{MaxConnections: 10, MaxPerAddress: 3})
	refused := 0
	for range 1000 {
		if a.connected("flood") != nil {
			refused++
		}
	}
	if refused != 997 || a.total != 3 {
		t.Errorf("%d refused, %d counted", refused, a.total)
	}
	for _, host := range []string{"a", "b", "c", "a", "b", "c", "a"} {
		if err := a.connected(host); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
	if err := a.connected("d"); err == nil || !strings.Contains(err.Error(), "--max-connections)") {
		t.Errorf("the eleventh: %v", err)
	}
	for _, host := range []string{"flood", "flood", "flood", "a", "a", "a", "b", "b", "c", "c"} {
		a.disconnected(host)
	}
	if a.total != 0 || len(a.addresses) != 0 {
		t.Errorf("%d connections of %d addresses left", a.total, len(a.addresses))
	}
}

func TestBucket(t *testing.T) {
	var b bucket
	now := time.Unix(1000, 0)
	take := func(tries int) (n int) {
		for range tries {
			if b.take(now, 5) {
				n++
			}
		}
		return n
	}
	if n := take(100); n != 10 {
		t.Errorf("%d at once, want twice the rate", n)
	}
	now = now.Add(time.Second)
	if n := take(100); n != 5 {
		t.Errorf("%d a second later", n)
	}
	now = now.Add(time.Hour)
	if n := take(100); n != 10 {
		t.Errorf("%d after a rest", n)
	}
}

func TestSetupRate(t *testing.T) {
	run(t, func(b *bench) {
		connected := 0
		var all []*client
		for range 10 {
			c := b.connect()
			all = append(all, c)
			if strings.HasPrefix(c.call("ServerCheckRequest", `{}`), "ServerCheckResponse") && b.server.Connections() > connected {
				connected++
			}
		}
		if connected != 4 { // twice the rate at once
			t.Errorf("%d connections set up at once", connected)
		}
		time.Sleep(time.Second)
		for range 10 {
			all = append(all, b.connect())
		}
		if n := b.server.Connections(); n != 6 {
			t.Errorf("%d connections a second later, want 6", n)
		}
		for _, c := range all {
			c.close()
		}
	}, func(o *Options) { o.MaxSetupRatePerAddress = 2 })
}

func TestTransportWithoutSetupIsClosed(t *testing.T) {
	run(t, func(b *bench) {
		c := b.dial()
		defer c.close()
		c.call("ServerCheckRequest", `{}`)
		if n := b.server.metrics.transports.Load(); n != 1 {
			t.Fatalf("%d transports", n)
		}
		time.Sleep(31 * time.Second)
		synctest.Wait()
		if n := b.server.metrics.transports.Load(); n != 0 {
			t.Errorf("%d transports left", n)
		}
	})
}

func TestRequestsKeepAConnectionFromBeingIdle(t *testing.T) { // H4
	run(t, func(b *bench) {
		c := b.connect()
		defer c.close()
		c.mute.Store(true)
		for range 20 {
			time.Sleep(5 * time.Second)
			c.call("HealthCheckRequest", `{}`)
		}
		if len(c.pushes) != 0 {
			t.Errorf("asked whether it lives: %s", (<-c.pushes).Type)
		}
	})
}

func TestOtherStreamsDoNotMatter(t *testing.T) {
	run(t, func(b *bench) {
		c := b.connect()
		defer c.close()
		c.register("order", "1.1.1.1")
		second := &client{b: b, cc: c.cc, pushes: c.pushes, ended: make(chan error, 1)}
		second.open()
		second.send("ConnectionSetupRequest", goSetup) // somebody else's, or a second one
		synctest.Wait()
		second.cancel()
		<-second.ended
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if n := b.reg.Stats().Instances; n != 1 {
			t.Errorf("%d instances after another stream has ended", n)
		}
	})
}

func TestConnectionIDsAreUnique(t *testing.T) { // C12
	run(t, func(b *bench) {
		seen := map[string]bool{}
		for range 1000 { // within one millisecond, from one address
			id := b.server.newID(pipeAddr("10.0.0.1:1"))
			if seen[id] {
				t.Fatalf("%s twice", id)
			}
			seen[id] = true
		}
	})
}

// A panicRegistry stands for a bug in whatever a handler calls.
type panicRegistry struct{ Registry }

func (panicRegistry) Services(string, string) []string { panic("a bug") }

func TestPanicIsAnswered(t *testing.T) {
	run(t, func(b *bench) {
		c := b.connect()
		defer c.close()
		c.expect("ServiceListRequest", `{`+ref("")+`,"pageNo":1,"pageSize":1}`,
			`ErrorResponse {"resultCode":500,"errorCode":500,"message":"internal error, see the server's log","success":false}`)
		c.register("order", "1.1.1.1") // and life goes on
	}, func(o *Options) { o.Registry = panicRegistry{o.Registry} })
}
