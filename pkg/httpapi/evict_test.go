package httpapi

import (
	"context"
	"testing"

	"github.com/starling-registry/starling/pkg/registry"
)

const evictedText = "instance 10.1.1.1:80 of DEFAULT_GROUP@@a was evicted by an operator and stays out until that is lifted (starling evict --lift)"

// An evicted instance is not there for readers, its client lives, and is told
// so when it registers.
func TestEvicted(t *testing.T) {
	const at, g = "serviceName=a&ip=10.1.1.1&port=80", "DEFAULT_GROUP@@a"
	const renewed, unknown = `{"clientBeatInterval":5000,"code":10200,"lightBeatEnabled":true}`, `{"clientBeatInterval":5000,"code":20404,"lightBeatEnabled":true}`
	full := `PUT instance/beat?serviceName=a&beat={"ip":"10.1.1.1","port":80}`
	a := registry.ServiceKey{Namespace: "public", Group: "DEFAULT_GROUP", Name: "a"}
	k := registry.InstanceKey{IP: "10.1.1.1", Port: 80, Cluster: "DEFAULT"}
	empty := step{"GET instance/list?serviceName=a", "", "", 200, js, list("DEFAULT_GROUP", "a", "")}

	f := newFixture(t)
	f.play(t, []step{ok("POST instance?" + at + `&metadata={"preserved.heart.beat.interval":"2000"}`)})
	f.durable.evict(a, k, true)
	f.play(t, []step{
		empty,
		{"GET instance?" + at, "", "", 404, text, "no ips found for cluster DEFAULT in service DEFAULT_GROUP@@a"},
		{"PUT instance/beat?" + at, "", "", 200, js, `{"clientBeatInterval":2000,"code":10200,"lightBeatEnabled":true}`}, // its own word counts
		{"POST instance?" + at, "", "", 400, text, evictedText},
		{"PUT instance/beat?" + at, "", "", 200, js, renewed},
		{full, "", "", 200, js, renewed},
		failed("POST /v2/ns/instance", at, 21004, "instance error", evictedText),
		failed("POST /v3/client/ns/instance", at, 21004, "instance error", evictedText),
		done("POST /v3/client/ns/instance", "heartBeat=true&"+at),
		{"PUT /v3/admin/ns/instance/beat", at, "", 200, js, renewed},
		failed("POST /v3/admin/ns/instance", at, 21004, "instance error", evictedText),
		{"PATCH instance?enabled=true&" + at, "", "", 404, text, "no ips found for cluster DEFAULT in service DEFAULT_GROUP@@a"},
		ok("PUT instance?weight=3&" + at), // an edit of the rest, as of one that is not there
		empty,
		{"DELETE service?serviceName=a", "", "", 400, text, "Service DEFAULT_GROUP@@a is not empty, can't be delete. Please unregister instance first"},
		ok("POST instance?serviceName=a&ip=10.1.1.1&port=81"), // another instance
		{"GET instance?" + at, "", "", 404, text, "no matched ip found!"},
		ok("DELETE instance?serviceName=a&ip=10.1.1.1&port=81"),
	})
	f.durable.evict(a, k, false)
	f.play(t, []step{ // what its client says shows at once
		{"GET instance/list?serviceName=a", "", "", 200, js, list("DEFAULT_GROUP", "a", "", host("10.1.1.1", 80, "DEFAULT", g, "3.0"))},
		ok("POST instance?" + at),
	})
	f.durable.evict(a, k, true)
	f.play(t, []step{ // a goodbye does not lift it
		ok("DELETE instance?" + at),
		{"PUT instance/beat?" + at, "", "", 200, js, unknown},
		{full, "", "", 200, js, renewed},
		{"PUT instance/beat?" + at, "", "", 200, js, renewed},
		empty,
		ok("DELETE instance?" + at),
		{"POST instance?" + at, "", "", 400, text, evictedText},
		empty,
	})
}

func TestPersistentEvicted(t *testing.T) {
	const at = "ephemeral=false&serviceName=a&ip=10.1.1.1&port=80"
	a := registry.ServiceKey{Namespace: "public", Group: "DEFAULT_GROUP", Name: "a"}
	k := registry.InstanceKey{IP: "10.1.1.1", Port: 80, Cluster: "DEFAULT"}
	f := newFixture(t)
	f.play(t, []step{ok("POST instance?" + at)})
	f.durable.evict(a, k, true)
	f.play(t, []step{
		{"GET instance/list?serviceName=a", "", "", 200, js, list("DEFAULT_GROUP", "a", "")},
		{"POST instance?weight=2&" + at, "", "", 400, text, evictedText},
		failed("POST /v2/ns/instance", at, 21004, "instance error", evictedText),
	})
	f.durable.evict(a, k, false)
	f.play(t, []step{
		{"GET instance/list?serviceName=a", "", "", 200, js, list("DEFAULT_GROUP", "a", "", persistent(host("10.1.1.1", 80, "DEFAULT", "DEFAULT_GROUP@@a", "1.0")))},
		ok("POST instance?" + at),
		ok("DELETE instance?" + at),
	})
}

// A write to the log says who asked for it.
func TestWhoAsked(t *testing.T) {
	asked := &askedLog{memLog: nil}
	f := newFixture(t, func(o *Options) {
		asked.memLog = o.Durable.(*memLog)
		o.Durable = asked
	})
	f.play(t, []step{ok("POST instance?ephemeral=false&serviceName=a&ip=10.1.1.1&port=80")})
	if asked.who != "192.0.2.1" { // of httptest
		t.Errorf("asked by %q", asked.who)
	}
}

type askedLog struct {
	*memLog
	who string
}

func (l *askedLog) PutInstance(ctx context.Context, key registry.ServiceKey, i *registry.Instance) error {
	l.who = registry.WhoAsked(ctx)
	return l.memLog.PutInstance(ctx, key, i)
}
