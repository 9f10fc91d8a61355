package grpcapi

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/starling-registry/starling/pkg/registry"
)

// Who registers an evicted instance is refused in the type of its request:
// after an ErrorResponse the Go SDK tries twice more and then drops the
// connection, registers at the next server, and so on.
func TestEvicted(t *testing.T) {
	runPersistent(t, func(b *bench, m *memLog) {
		evict := func(name, ip string, evicted bool) {
			k := registry.InstanceKey{IP: ip, Port: 8080, Cluster: "DEFAULT"}
			b.reg.Commit([]registry.Change{{Service: registry.ServiceKey{Namespace: "public", Group: "DEFAULT_GROUP", Name: name},
				Overrides: []registry.OverrideChange{{InstanceKey: k, Is: &registry.Override{Weight: new(2.0), Evicted: evicted, StaysOut: evicted, Sticky: true}, Cause: registry.CauseOperator}}}})
		}
		const text = "instance 10.0.0.7:8080 of DEFAULT_GROUP@@s was evicted by an operator and stays out until that is lifted (starling evict --lift)"
		const refused = `{"resultCode":500,"errorCode":400,"message":"` + text + `","success":false}`
		one := func(op string) string {
			return `{` + ref("s") + `,"type":"` + op + `","instance":{"ip":"10.0.0.7","port":8080}}`
		}
		batch := func(ips ...string) string {
			return `{` + ref("s") + `,"type":"batchRegisterInstance","instances":[{"ip":"` + strings.Join(ips, `","port":8080},{"ip":"`) + `","port":8080}]}`
		}
		c, reader := b.connect(), b.connect()
		defer c.close()
		defer reader.close()
		shows := func(want string) {
			t.Helper()
			if got := parse(t, reader.call("ServiceQueryRequest", `{`+ref("s")+`}`)).ips(); got != want {
				t.Errorf("shows %q, want %q", got, want)
			}
		}
		c.call("InstanceRequest", one("registerInstance"))
		shows("10.0.0.7")
		evict("s", "10.0.0.7", true)
		shows("")
		for range 3 {
			c.expect("InstanceRequest", one("registerInstance"), `InstanceResponse `+refused)
		}
		c.expect("HealthCheckRequest", `{}`, `HealthCheckResponse {"resultCode":200,"errorCode":0,"success":true}`)
		shows("")
		evict("s", "10.0.0.8", true)
		c.expect("BatchInstanceRequest", batch("10.0.0.7", "10.0.0.8"), `BatchInstanceResponse `+
			strings.Replace(refused, text, "instance 10.0.0.7:8080 and the other 1 of the batch of DEFAULT_GROUP@@s were evicted by an operator and stay out until that is lifted (starling evict --lift)", 1))
		c.expect("BatchInstanceRequest", batch("10.0.0.7", "10.0.0.9"), `BatchInstanceResponse {"resultCode":200,"errorCode":0,"success":true,"type":"batchRegisterInstance"}`)
		shows("10.0.0.9")
		c.expect("InstanceRequest", one("deregisterInstance"), `InstanceResponse {"resultCode":200,"errorCode":0,"success":true,"type":"deregisterInstance"}`)
		c.expect("InstanceRequest", one("registerInstance"), `InstanceResponse `+refused)
		shows("")
		evict("s", "10.0.0.7", false)
		shows("10.0.0.7") // what the client says
		c.close()
		synctest.Wait()
		shows("")

		// A persistent one, by whoever keeps the log.
		m.answer = registry.ErrEvicted
		reader.expect("PersistentInstanceRequest", strings.Replace(one("registerInstance"), `"port":8080`, `"port":8080,"ephemeral":false`, 1), `InstanceResponse `+refused)
	})
}
