package grpcapi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

// A memLog keeps persistent instances as the log of a cluster does.
type memLog struct {
	bench   *bench
	is      map[string]*registry.Persistent
	answer  error // of every write, unless nil
	waits   bool  // until its context ends
	written int
}

var errNotThere, errEphemeral, errNoLeader = errors.New("not there"), errors.New("ephemeral"), errors.New("raftstore: nobody leads")

func explain(err error) Refusal {
	switch err {
	case errNotThere:
		return Refusal{NotFound: true}
	case errEphemeral:
		return Refusal{WrongKind: true}
	case registry.ErrEvicted:
		return Refusal{Evicted: true}
	case errNoLeader:
		return Refusal{Code: nacos.CodeServerError, Text: nacos.NoLeader}
	}
	return Refusal{}
}

func (m *memLog) write(ctx context.Context) error {
	m.written++
	if m.waits {
		<-ctx.Done()
		return errNoLeader
	}
	return m.answer
}

func (m *memLog) commit(key registry.ServiceKey, k registry.InstanceKey, is *registry.Persistent) {
	m.bench.reg.Commit([]registry.Change{{Service: key, Instances: []registry.PersistentChange{{InstanceKey: k, Is: is, Cause: registry.CauseRegistered}}}})
}

func (m *memLog) PutInstance(ctx context.Context, key registry.ServiceKey, i *registry.Instance) error {
	if err := m.write(ctx); err != nil {
		return err
	}
	at := fmt.Sprint(key, i.IP, i.Port)
	if was := m.is[at]; was != nil && was.InstanceKey != i.InstanceKey {
		m.commit(key, was.InstanceKey, nil)
	}
	m.is[at] = &registry.Persistent{Instance: i, Since: 1, Judged: 1}
	m.commit(key, i.InstanceKey, m.is[at])
	return nil
}

func (m *memLog) RemoveInstance(ctx context.Context, key registry.ServiceKey, ip string, port int) error {
	if err := m.write(ctx); err != nil {
		return err
	}
	at := fmt.Sprint(key, ip, port)
	was := m.is[at]
	if was == nil {
		return errNotThere
	}
	delete(m.is, at)
	m.commit(key, was.InstanceKey, nil)
	return nil
}

func runPersistent(t *testing.T, f func(*bench, *memLog)) {
	t.Helper()
	m := &memLog{is: map[string]*registry.Persistent{}}
	run(t, func(b *bench) { m.bench = b; f(b, m) }, func(o *Options) { o.Persistent, o.Explain = m, explain })
}

func TestPersistent(t *testing.T) { // golden scenarios 15, 57
	runPersistent(t, func(b *bench, m *memLog) {
		a, c := b.connect(), b.connect()
		defer c.close()
		p := func(op, instance string) string {
			return `{` + ref("p") + `,"type":"` + op + `","instance":` + instance + `}`
		}
		const done = `InstanceResponse {"resultCode":200,"errorCode":0,"success":true,"type":"%s"}`
		registered, deregistered := fmt.Sprintf(done, "registerInstance"), fmt.Sprintf(done, "deregisterInstance")
		bad := func(code int, msg string) string {
			return fmt.Sprintf(`ErrorResponse {"resultCode":%d,"errorCode":%d,"message":%q,"success":false}`, code, code, msg)
		}
		const typ = "PersistentInstanceRequest"

		a.expect(typ, p("registerInstance", `{"ip":"127.0.0.1","port":9103,"ephemeral":false,"metadata":{"a":"1","preserved.heart.beat.timeout":"1"}}`), registered)
		got := c.call("ServiceQueryRequest", `{`+ref("p")+`}`)
		if !strings.Contains(got, `"ip":"127.0.0.1","port":9103,"weight":1.0,"healthy":true,"enabled":true,"ephemeral":false,"clusterName":"DEFAULT"`) {
			t.Error(got)
		}
		a.close()
		synctest.Wait()
		time.Sleep(time.Minute)
		if got := parse(t, c.call("ServiceQueryRequest", `{`+ref("p")+`}`)).ips(); got != "127.0.0.1" {
			t.Errorf("after the connection has ended: %q", got)
		}

		c.expect(typ, p("deregisterInstance", `{"ip":"127.0.0.9","port":9103,"ephemeral":false}`), deregistered)
		c.expect(typ, p("nonsense", `{"ip":"127.0.0.1","port":9103}`), bad(400, "Unsupported request type nonsense"))
		c.expect(typ, `{`+ref("p")+`,"type":"registerInstance"}`, bad(400, "Instance can not be null."))
		c.expect(typ, `{`+ref("p")+`,"type":"deregisterInstance"}`, bad(400, "Instance can not be null."))
		written := m.written
		for _, i := range []string{`{"ip":"127.0.0.1","port":-1}`, `{"ip":"127.0.0.1","port":1,"weight":-1}`, `{"port":1}`, `{"ip":"127.0.0.1","port":1,"clusterName":"a,b"}`} {
			if got := c.call(typ, p("registerInstance", i)); !strings.HasPrefix(got, `InstanceResponse {"resultCode":500,"errorCode":400,`) {
				t.Errorf("%s: %s", i, got)
			}
		}
		if m.written != written {
			t.Error("what is refused was written")
		}
		c.expect(typ, p("registerInstance", `{"ip":"127.0.0.1","port":9103,"clusterName":"a_b"}`), registered) // it moves
		if got := c.call("ServiceQueryRequest", `{`+ref("p")+`}`); strings.Count(got, `"ip":`) != 1 || !strings.Contains(got, `"clusterName":"a_b"`) {
			t.Error(got)
		}

		// Kinds.
		one := `{"ip":"1.1.1.1","port":80}`
		c.expect("InstanceRequest", p("registerInstance", one), bad(400, "errCode: 400, errMsg: Current service DEFAULT_GROUP@@p is persistent service, can't register ephemeral instance. "))
		c.expect("BatchInstanceRequest", `{`+ref("p")+`,"type":"batchRegisterInstance","instances":[`+one+`]}`,
			bad(400, "errCode: 400, errMsg: Current service DEFAULT_GROUP@@p is persistent service, can't batch register ephemeral instance. "))
		c.expect("InstanceRequest", p("deregisterInstance", one), deregistered)
		c.expect("InstanceRequest", `{`+ref("e")+`,"type":"registerInstance","instance":`+one+`}`, registered)
		written = m.written
		notPersistent := bad(400, "errCode: 400, errMsg: Current service DEFAULT_GROUP@@e is ephemeral service, can't register persistent instance. ")
		c.expect(typ, `{`+ref("e")+`,"type":"registerInstance","instance":`+one+`}`, notPersistent)
		c.expect(typ, `{`+ref("e")+`,"type":"deregisterInstance","instance":`+one+`}`, deregistered)
		if m.written != written || parse(t, c.call("ServiceQueryRequest", `{`+ref("e")+`}`)).ips() != "1.1.1.1" {
			t.Error("a request of the other kind did something")
		}

		c.expect(typ, p("deregisterInstance", `{"ip":"127.0.0.1","port":9103}`), deregistered) // whatever its cluster
		if got := parse(t, c.call("ServiceQueryRequest", `{`+ref("p")+`}`)).ips(); got != "" {
			t.Errorf("after deregistration: %q", got)
		}
		c.expect("InstanceRequest", p("registerInstance", one), registered) // free again

		m.answer = errEphemeral // another node knows
		c.expect(typ, `{`+ref("f")+`,"type":"registerInstance","instance":`+one+`}`, strings.Replace(notPersistent, "@@e", "@@f", 1))
	})
}

// TestPersistentWithoutLeader: the answer comes while the SDK still waits, and
// everything else goes on (cases C06).
func TestPersistentWithoutLeader(t *testing.T) {
	runPersistent(t, func(b *bench, m *memLog) {
		c := b.connect()
		defer c.close()
		m.waits = true
		began := time.Now()
		noLeader := `ErrorResponse {"resultCode":500,"errorCode":500,"message":"The Raft Group [naming_persistent_service_v2] did not find the Leader node","success":false}`
		for _, op := range []string{"registerInstance", "deregisterInstance"} {
			c.expect("PersistentInstanceRequest", `{`+ref("p")+`,"type":"`+op+`","instance":{"ip":"1.1.1.1","port":80}}`, noLeader)
		}
		if took := time.Since(began); took != 2*persistentLimit {
			t.Errorf("two answers took %v", took)
		}
		c.expect("InstanceRequest", `{`+ref("e")+`,"type":"registerInstance","instance":{"ip":"1.1.1.1","port":80}}`,
			`InstanceResponse {"resultCode":200,"errorCode":0,"success":true,"type":"registerInstance"}`)
		m.waits, m.answer = false, errors.New("disk full")
		c.expect("PersistentInstanceRequest", `{`+ref("p")+`,"type":"registerInstance","instance":{"ip":"1.1.1.1","port":80}}`,
			`ErrorResponse {"resultCode":500,"errorCode":500,"message":"disk full","success":false}`)
	})
}

func TestPersistentIsAnnounced(t *testing.T) {
	runPersistent(t, func(b *bench, _ *memLog) {
		c := b.dial()
		defer c.close()
		c.open()
		c.send("ConnectionSetupRequest", `{"abilityTable":{},"labels":{"module":"naming"}}`)
		if p := <-c.pushes; string(p.Body) != `{"headers":{},"abilityTable":{"fuzzyWatch":true,"supportPersistentInstanceByGrpc":true},"module":"internal"}` {
			t.Errorf("%s %s", p.Type, p.Body)
		}
	})
}
