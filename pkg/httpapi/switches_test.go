package httpapi

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"

	"go.uber.org/zap/zapcore"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

// switchable is a fixture whose switches have an effect, as on a node: those of
// the log, and over them those of this node alone.
func switchable(t *testing.T, change ...func(*Options)) (*fixture, map[string]string) {
	here := map[string]string{}
	var f *fixture
	f = newFixture(t, append(change, func(o *Options) {
		o.Operator.Switches = func() *nacos.Switches {
			s := nacos.DefaultSwitches()
			for _, kept := range []map[string]string{f.durable.switches, here} {
				for name, value := range kept {
					if err := s.Set(name, value); err != nil {
						t.Error(err)
					}
				}
			}
			return &s
		}
		o.Operator.SwitchHere = func(name, value string) {
			if here[name] = value; value == "" {
				delete(here, name)
			}
		}
	})...)
	return f, here
}

// The answers to what is wrong are the same with and without debug, and nothing
// changes then.
func TestSetSwitch(t *testing.T) { // golden scenario 18
	f, here := switchable(t)
	const clientBeat = "operator/switches?entry=clientBeatInterval&value="
	for _, debug := range []string{"", "&debug=true"} {
		f.play(t, []step{
			ok("PUT operator/switches?entry=noSuchSwitch&value=1" + debug),
			{"PUT operator/switches?entry=&value=1" + debug, "", "", 400, text, "Parameter 'entry' is missing"},
			ok("PUT operator/switches?entry=limitedUrlMap&value=" + debug),
			{"PUT " + clientBeat + "x" + debug, "", "", 400, text, `For input string: "x"`},
			{"PUT operator/switches?entry=pushCacheMillis&value=1" + debug, "", "", 400, text, "min cache time for http or tcp is too small(<10000)"},
			{"PUT operator/switches?entry=distroThreshold" + debug, "", "", 400, text, "Parameter 'value' is missing"},
			{"PUT operator/switches?value=1" + debug, "", "", 400, text, "Parameter 'entry' is missing"},
			{"PUT operator/switches?entry=batch&value=%7B%7D" + debug, "", "", 400, text, "entry batch is not offered, set one switch after the other"},
			{"PUT operator/switches?entry=overriddenServerStatus&value=" + strings.Repeat("x", 5000) + debug, "", "", 400, text,
				clip("the value of overriddenServerStatus is UP, DOWN, STARTING, PAUSED, READ_ONLY, WRITE_ONLY or null, not " + strings.Repeat("x", 5000))},
			failed("PUT /v2/ns/operator/switches", "entry=clientBeatInterval&value=x"+debug, 20002, "parameter validate error", `For input string: "x"`),
			failed("PUT /v3/admin/ns/ops/switches", "entry=clientBeatInterval&value=x"+debug, 20002, "parameter validate error", `For input string: "x"`),
			failed("PUT /v3/admin/ns/ops/switches", "x=1"+debug, 10000, "parameter missing", "Required parameter 'entry' type String is not present"),
			failed("PUT /v2/ns/ops/switches", "entry=check&value="+debug, 10000, "parameter missing", "Required parameter 'value' type String is not present"),
		})
	}
	f.play(t, []step{
		failed("PUT /v2/ns/ops/switches", "entry=check&value=false&debug=perhaps", 20002, "parameter validate error", "Param 'debug' is illegal, it should be true or false: perhaps"),
		{"POST operator/switches?entry=check&value=false", "", "", 501, js, springError(501, "Not Implemented", "no such api:POST:/nacos/v1/ns/operator/switches", "/nacos/v1/ns/operator/switches")},
	})
	if len(f.durable.switches)+len(here) > 0 {
		t.Errorf("bad input changed %v, here %v", f.durable.switches, here)
	}

	// Everywhere, by all paths.
	wantSwitches := func(want, wantHere string) {
		t.Helper()
		if is, isHere := fmt.Sprint(f.durable.switches), fmt.Sprint(here); is != want || isHere != wantHere {
			t.Errorf("kept: %s, here %s; want %s, here %s", is, isHere, want, wantHere)
		}
	}
	for n, s := range []step{ok("PUT " + clientBeat + "1000"), ok("PUT ops/switches?entry=clientBeatInterval&value=1001"),
		done("PUT /v2/ns/operator/switches", "entry=clientBeatInterval&value=1002"), done("PUT /v2/ns/ops/switches", "entry=clientBeatInterval&value=1003"),
		done("PUT /v3/admin/ns/ops/switches", "entry=clientBeatInterval&value=1004")} {
		f.play(t, []step{s})
		wantSwitches(fmt.Sprintf("map[clientBeatInterval:%d]", 1000+n), "map[]")
	}
	// Here, until it is set everywhere.
	f.play(t, []step{ok("PUT " + clientBeat + "2000&debug=true"), done("PUT /v3/admin/ns/ops/switches", "entry=pushEnabled&value=false&debug=1")})
	wantSwitches("map[clientBeatInterval:1004]", "map[clientBeatInterval:2000 pushEnabled:false]")
	f.play(t, []step{ok("PUT " + clientBeat + "1004")})
	wantSwitches("map[clientBeatInterval:1004]", "map[pushEnabled:false]")

	// What the log does not take.
	kept := maps.Clone(f.durable.switches)
	f.durable.broken = refused(NoLeader, "no leader")
	f.play(t, []step{{"PUT " + clientBeat + "3000", "", "", 500, text, "errCode: 500, errMsg: " + nacos.NoLeader + " "}})
	f.durable.broken = errors.New("bug")
	f.play(t, []step{{"PUT " + clientBeat + "3000", "", "", 500, text, "caused: internal error;"}})
	if !reflect.DeepEqual(kept, f.durable.switches) {
		t.Errorf("kept: %v", f.durable.switches)
	}
}

const switchDomain = `{"adWeightMap":{},"autoChangeHealthCheckEnabled":true,"checkTimes":3,"checksum":null,"clientBeatInterval":5000,"defaultCacheMillis":3000,
	"defaultInstanceEphemeral":true,"defaultPushCacheMillis":10000,"disableAddIP":false,"distroEnabled":true,"distroServerExpiredMillis":10000,"distroThreshold":0.7,
	"enableAuthentication":false,"enableStandalone":true,"healthCheckEnabled":true,"healthCheckWhiteList":[],"httpHealthParams":{"factor":0.85,"max":5000,"min":500},
	"incrementalList":[],"lightBeatEnabled":true,"limitedUrlMap":{},"masters":null,"mysqlHealthParams":{"factor":0.65,"max":3000,"min":2000},
	"name":"00-00---000-NACOS_SWITCH_DOMAIN-000---00-00","overriddenServerStatus":null,"pushEnabled":true,"pushVersionOfC":"1.0.12","pushVersionOfCsharp":"0.9.0",
	"pushVersionOfGo":"0.1.0","pushVersionOfJava":"0.1.0","pushVersionOfPython":"0.4.3","sendBeatOnly":false,"serverStatusSynchronizationPeriodMillis":2000,
	"serviceStatusSynchronizationPeriodMillis":5000,"tcpHealthParams":{"factor":0.75,"max":5000,"min":1000}}`

func TestShowSwitches(t *testing.T) { // golden scenario 18
	f, _ := switchable(t)
	f.play(t, []step{
		{"GET operator/switches", "", "", 200, js, switchDomain},
		{"GET ops/switches", "", "", 200, js, switchDomain},
		{"GET /v2/ns/operator/switches", "", "", 200, js, result(0, "success", switchDomain)},
		{"GET /v2/ns/ops/switches", "", "", 200, js, result(0, "success", switchDomain)},
		{"GET /v3/admin/ns/ops/switches", "", "", 200, js, result(0, "success", switchDomain)},
		ok("PUT operator/switches?entry=limitedUrlMap&value=/a:418"),
		ok("PUT operator/switches?entry=overriddenServerStatus&value=null"),
		{"GET operator/switches", "", "", 200, js, strings.NewReplacer(`"limitedUrlMap":{}`, `"limitedUrlMap":{"/a":418}`, `"overriddenServerStatus":null`, `"overriddenServerStatus":""`).Replace(switchDomain)},
		{"GET /a", "", "", 404, js, springError(404, "Not Found", "No message available", "/nacos/a")}, // not 418
	})
	plain := newFixture(t) // without any
	plain.play(t, []step{{"GET operator/switches", "", "", 200, js, switchDomain}, ok("PUT operator/switches?entry=check&value=false&debug=true")})
}

func TestBeatSwitches(t *testing.T) { // golden scenario 75
	f, _ := switchable(t)
	beat := func(interval, light string) step {
		return step{"PUT instance/beat?serviceName=a&ip=10.1.1.1&port=80&beat=" + `%7B%22ip%22:%2210.1.1.1%22,%22port%22:80%7D`, "", "", 200, js,
			`{"clientBeatInterval":` + interval + `,"code":10200,"lightBeatEnabled":` + light + `}`}
	}
	f.play(t, []step{
		beat("5000", "true"),
		ok("PUT operator/switches?entry=lightBeatEnabled&value=false"),
		ok("PUT operator/switches?entry=clientBeatInterval&value=7000"),
		beat("7000", "false"),
		{"PUT instance/beat?serviceName=b&ip=10.1.1.1&port=80", "", "", 200, js, `{"clientBeatInterval":7000,"code":20404,"lightBeatEnabled":false}`},
		// What an instance says of itself comes first.
		ok("POST instance?serviceName=c&ip=10.1.1.1&port=80&metadata=preserved.heart.beat.interval=3000"),
		{"PUT instance/beat?serviceName=c&ip=10.1.1.1&port=80", "", "", 200, js, `{"clientBeatInterval":3000,"code":10200,"lightBeatEnabled":false}`},
	})
}

func TestCacheMillisSwitch(t *testing.T) {
	f, _ := switchable(t)
	is := strings.Replace(list("DEFAULT_GROUP", "a", ""), "10000", "20000", 1)
	f.play(t, []step{
		ok("PUT operator/switches?entry=defaultCacheMillis&value=4000"), // of Nacos 1.x
		{"GET instance/list?serviceName=a", "", "", 200, js, list("DEFAULT_GROUP", "a", "")},
		ok("PUT operator/switches?entry=pushCacheMillis&value=20000"),
		{"GET instance/list?serviceName=a", "", "", 200, js, is},
		{"GET /v2/ns/instance/list?serviceName=a", "", "", 200, js, result(0, "success", is)},
	})
}

func TestDefaultInstanceEphemeral(t *testing.T) { // golden scenario 75
	f, _ := switchable(t)
	kind := func(name string) registry.ServiceKind {
		return f.registry.Kind(registry.ServiceKey{Namespace: "public", Group: "DEFAULT_GROUP", Name: name})
	}
	f.play(t, []step{
		ok("PUT operator/switches?entry=defaultInstanceEphemeral&value=false"),
		ok("POST instance?serviceName=p1&ip=10.1.1.1&port=80"),
		done("POST /v2/ns/instance", "serviceName=p2&ip=10.1.1.1&port=80"),
		done("POST /v3/client/ns/instance", "serviceName=p3&ip=10.1.1.1&port=80"),
		done("POST /v3/admin/ns/instance", "serviceName=p4&ip=10.1.1.1&port=80"),
		ok("POST instance?serviceName=e1&ip=10.1.1.1&port=80&ephemeral=true"),
		done("POST /v3/client/ns/instance", "serviceName=e2&ip=10.1.1.1&port=80&ephemeral=true"),
	})
	for name, want := range map[string]registry.ServiceKind{"p1": registry.PersistentService, "p2": registry.PersistentService, "p3": registry.PersistentService,
		"p4": registry.PersistentService, "e1": registry.EphemeralService, "e2": registry.EphemeralService} {
		if is := kind(name); is != want {
			t.Errorf("%s is of kind %v, want %v", name, is, want)
		}
	}
	// A deregistration means the same kind.
	f.play(t, []step{
		ok("DELETE instance?serviceName=p1&ip=10.1.1.1&port=80"),
		{"GET instance/list?serviceName=p1", "", "", 200, js, list("DEFAULT_GROUP", "p1", "")},
		ok("PUT operator/switches?entry=defaultInstanceEphemeral&value=true"),
		ok("POST instance?serviceName=e3&ip=10.1.1.1&port=80"),
		ok("DELETE instance?serviceName=e3&ip=10.1.1.1&port=80"),
		{"GET instance/list?serviceName=e3", "", "", 200, js, list("DEFAULT_GROUP", "e3", "")},
		{"GET instance?serviceName=p2&ip=10.1.1.1&port=80", "", "", 200, js, `{"clusterName":"DEFAULT","healthy":true,"instanceId":"10.1.1.1#80#DEFAULT#DEFAULT_GROUP@@p2",
			"ip":"10.1.1.1","metadata":{},"port":80,"service":"DEFAULT_GROUP@@p2","weight":1.0}`},
	})
}

func TestOverriddenStatus(t *testing.T) { // golden scenario 75, semantics M13
	f, _ := switchable(t)
	f.play(t, []step{ok("POST instance?serviceName=a&ip=10.1.1.1&port=80")})
	const peer = "User-Agent: Nacos-Server:v3.1.0"
	for _, c := range []struct {
		status       string
		reads, write bool
	}{{"UP", true, true}, {"null", true, true}, {"DOWN", false, false}, {"STARTING", false, false}, {"PAUSED", false, false}, {"READ_ONLY", true, false}, {"WRITE_ONLY", false, true}} {
		name := c.status
		if name == "null" {
			name = "UP"
		}
		f.play(t, []step{done("PUT /v2/ns/operator/switches", "entry=overriddenServerStatus&value="+c.status)})
		read := step{"GET operator/metrics", "", "", 200, js, `{"status":"` + name + `"}`}
		write := ok("POST instance?serviceName=a&ip=10.1.1.1&port=80")
		unknown := step{"GET operator/servers", "", "", 501, js, springError(501, "Not Implemented", "no such api:GET:/nacos/v1/ns/operator/servers", "/nacos/v1/ns/operator/servers")}
		gated := func(s step, passes bool) step {
			if !passes {
				s.status, s.ctype, s.body = 503, "", "server is "+name+"now, please try again later!"
			}
			return s
		}
		byPeer := func(s step, header string) step { s.header = header; return s }
		f.play(t, []step{
			gated(read, c.reads), gated(write, c.write), gated(unknown, c.reads),
			byPeer(read, peer), byPeer(write, peer), byPeer(read, "Client-Version: Nacos-Server:v2.0.0"),
			// Versions 2 and 3 go on, and so do logins.
			done("POST /v2/ns/instance", "serviceName=a&ip=10.1.1.2&port=80"), done("POST /v3/client/ns/instance", "serviceName=a&ip=10.1.1.3&port=80"),
			{"GET /v2/ns/operator/metrics", "", "", 200, js, result(0, "success", `{"status":"`+name+`"}`)},
			{"GET /v3/admin/ns/ops/metrics", "", "", 200, js, result(0, "success", `{"status":"`+name+`"}`)},
		})
		if w := f.do("POST", "/nacos/v1/auth/login", "username=a&password=b", form); w.Code == 503 {
			t.Errorf("%s: a login is refused", c.status)
		}
	}
	// Probes are told.
	is := step{"GET /v3/admin/core/state/readiness", "", "", 200, js, result(30000, "naming not in readiness", "null")}
	console := is
	console.call, console.status = "GET /v3/console/health/readiness", 500
	f.play(t, []step{is, {"GET /v2/console/health/readiness", "", "", 200, js, is.body}, {"GET /v1/console/health/readiness", "", "", 500, text, "naming not in readiness"}, console})
	// Nobody can make a node ready that is not.
	f.reason = "it has only just started"
	f.durable.switches["overriddenServerStatus"] = "UP"
	if w := f.do("GET", "/nacos/v1/ns/operator/metrics", ""); w.Code != 503 {
		t.Errorf("a node that is not ready: %d", w.Code)
	}
}

func TestPushState(t *testing.T) {
	state, resets := nacos.PushState{Succeeded: 3, Total: 4, MeanCost: 2, MaxCost: 5}, 0
	f := newFixture(t, func(o *Options) {
		o.Operator.Pushes = func(reset bool) nacos.PushState {
			if reset {
				resets++
			}
			return state
		}
	})
	const is = `{"succeed":3,"total":4,"ratio":0.75,"reset":false}`
	f.play(t, []step{
		{"GET operator/push/state", "", "", 200, js, is}, {"POST operator/push/state", "", "", 200, js, is}, {"PUT ops/push/state", "", "", 200, js, is},
		{"GET operator/push/state?detail=true", "", "", 200, js, `{"succeed":3,"total":4,"ratio":0.75,"detail":{"avgPushCost":2,"maxPushCost":5},"reset":false}`},
		{"GET operator/push/state?detail=x&reset=x", "", "", 200, js, is},
	})
	if resets != 0 {
		t.Error("reset without being asked")
	}
	f.play(t, []step{{"GET operator/push/state?reset=true", "", "", 200, js, strings.Replace(is, `"reset":false`, `"reset":true`, 1)}})
	if resets != 1 {
		t.Errorf("%d resets", resets)
	}
}

func TestResponsible(t *testing.T) { // golden scenario 18
	f := newFixture(t, func(o *Options) {
		o.Operator.Responsible = func(client string) string { return "keeper of " + client }
	})
	const is = `{"responsibleServer":"keeper of 10.0.0.1:80#true"}`
	illegal := nacos.CheckPort(-1).Error() + crlf
	f.play(t, []step{
		{"GET operator/distro/client?ip=10.0.0.1&port=80", "", "", 200, js, is},
		{"GET ops/distro/client?ip=10.0.0.1&port=80", "", "", 200, js, is},
		{"GET /v3/admin/ns/client/distro?ip=10.0.0.1&port=80", "", "", 200, js, result(0, "success", is)},
		{"GET operator/distro/client?ip=10.0.0.1", "", "", 400, text, "Parameter 'port' is missing"},
		{"GET operator/distro/client?port=80", "", "", 400, text, "Parameter 'ip' is missing"},
		{"GET operator/distro/client?ip=10.0.0.1&port=x", "", "", 400, "", illegal},
		{"GET operator/distro/client?ip=10.0.0.1&port=65536", "", "", 400, "", illegal},
		{"GET /v3/admin/ns/client/distro?port=80", "", "", 400, js, result(10000, "parameter missing", `"Required request parameter 'ip' for method parameter type String is not present"`)},
	})
}

func TestLogLevel(t *testing.T) { // golden scenario 18
	var level []zapcore.Level
	f := newFixture(t, func(o *Options) { o.Operator.SetLogLevel = func(l zapcore.Level) { level = append(level, l) } })
	const wrong = "Param 'logLevel' is illegal, it should be TRACE, DEBUG, INFO, WARN, ERROR or OFF: loud"
	f.play(t, []step{
		{"PUT operator/log", "", "", 400, text, "Parameter 'logName' is missing"},
		{"PUT ops/log?logName=naming-main", "", "", 400, text, "Parameter 'logLevel' is missing"},
		{"PUT operator/log?logName=naming-main&logLevel=loud", "", "", 400, text, wrong},
		failed("PUT /v3/admin/ns/ops/log", "x=1", 10000, "parameter missing", "Required request parameter 'logName' for method parameter type String is not present"),
		failed("PUT /v3/admin/ns/ops/log", "logName=a&logLevel=loud", 20002, "parameter validate error", wrong),
	})
	if len(level) > 0 {
		t.Errorf("bad input set %v", level)
	}
	f.play(t, []step{
		ok("PUT operator/log?logName=naming-main&logLevel=debug"), ok("PUT ops/log?logName=naming-main&logLevel=TRACE"),
		done("PUT /v3/admin/ns/ops/log", "logName=root&logLevel=ERROR"), ok("PUT operator/log?logName=root&logLevel=OFF"),
	})
	if want := []zapcore.Level{zapcore.DebugLevel, zapcore.DebugLevel, zapcore.ErrorLevel, zapcore.FatalLevel}; !reflect.DeepEqual(level, want) {
		t.Errorf("set %v, want %v", level, want)
	}
	newFixture(t, func(o *Options) { o.Operator.SetLogLevel = nil }).play(t, []step{{"PUT operator/log?logName=a&logLevel=INFO", "", "", 501, text, "the log level of this node cannot be changed while it runs"}})
}
