package httpapi

import (
	"strings"
	"testing"
)

// TestInstancesV2 is what golden scenario 30 has of the paths that there are.
func TestInstancesV2(t *testing.T) {
	const in = "/v2/ns/instance"
	g := "DEFAULT_GROUP@@a"
	first := host("10.1.1.1", 8080, "DEFAULT", g, "1.0")
	second := withMetadata(sick(host("10.1.1.2", 80, "c1", g, "2.5")), `{"a":"1"}`)
	lst := func(clusters string, hosts ...string) string {
		return result(0, "success", list("DEFAULT_GROUP", "a", clusters, hosts...))
	}
	notFound := func(call, text string) step {
		return step{call, "", "", 404, js, result(20004, "resource not found", `"`+text+`"`)}
	}
	newFixture(t).play(t, []step{
		done("POST "+in, "ip=10.1.1.1&port=8080&serviceName=a"),
		{"GET " + in + "?ip=10.1.1.1&port=8080&serviceName=a", "", "", 200, js, result(0, "success",
			`{"clusterName":"DEFAULT","healthy":true,"instanceId":"10.1.1.1#8080#DEFAULT#DEFAULT_GROUP@@a","ip":"10.1.1.1","metadata":{},"port":8080,"serviceName":"DEFAULT_GROUP@@a","weight":1.0}`)},
		done("POST "+in+`?clusterName=c1&enabled=true&ephemeral=true&healthy=false&ip=10.1.1.2&metadata={"a":"1"}&port=80&serviceName=a&weight=2.5`, ""),
		done("POST "+in, "enabled=off&ip=10.1.1.3&port=80&serviceName=a"),
		{"GET " + in + "/list?serviceName=a", "", "", 200, js, lst("", first, second)},
		{"GET " + in + "/list?clusterName=c1&serviceName=a", "", "", 200, js, lst("c1", second)},
		{"GET " + in + "/list?clusterName=c1,DEFAULT&healthyOnly=true&serviceName=a", "", "", 200, js, lst("c1,DEFAULT", first)},
		{"GET " + in + "/list?clusters=c1&serviceName=a", "", "", 200, js, lst("", first, second)}, // the name in v1
		{"GET " + in + "/list?serviceName=none", "", "", 200, js, result(0, "success", list("DEFAULT_GROUP", "none", ""))},
		done("PUT "+in, `ip=10.1.1.1&metadata={"b":"2"}&port=8080&serviceName=a&weight=3`),
		{"GET " + in + "/list?clusterName=DEFAULT&serviceName=a", "", "", 200, js, lst("DEFAULT", withMetadata(host("10.1.1.1", 8080, "DEFAULT", g, "3.0"), `{"b":"2"}`))},
		failed("PUT "+in, "ip=10.1.1.1&port=8080&serviceName=none", 21004, "instance error",
			"service not found, namespace: public, service: Service{namespace='public', group='DEFAULT_GROUP', name='none', ephemeral=true, revision=0}"),
		notFound("GET "+in+"?ip=10.1.1.9&port=8080&serviceName=a", "no matched ip found!"),
		notFound("GET "+in+"?clusterName=c9&ip=10.1.1.1&port=8080&serviceName=a", "no matched ip found!"),
		notFound("GET "+in+"?ip=10.1.1.9&port=8080&serviceName=none", "no ips found for cluster DEFAULT in service DEFAULT_GROUP@@none"),
		failed("GET "+in+"/list", "", 10000, "parameter missing", "Required parameter 'serviceName' type String is not present"),
		done("DELETE "+in+"?ip=10.1.1.1&port=8080&serviceName=a", ""),
		done("DELETE "+in, "ip=10.1.1.2&port=80&serviceName=a"),
		done("DELETE "+in+"?ip=10.1.1.9&port=80&serviceName=none", ""),
		{"GET " + in + "/list?serviceName=a", "", "", 200, js, lst("")},
	})
}

func TestClientsOfV3(t *testing.T) { // golden scenario 40
	const in = "/v3/client/ns/instance"
	g := "DEFAULT_GROUP@@a"
	one, two := host("10.1.1.1", 8080, "DEFAULT", g, "1.0"), withMetadata(sick(host("10.1.1.2", 80, "c1", g, "2.5")), `{"a":"1"}`)
	four := sick(host("10.1.1.4", 80, "DEFAULT", g, "1.0"))
	lst := func(query string, hosts ...string) step {
		return step{"GET " + in + "/list?serviceName=a" + query, "", "", 200, js, result(0, "success", "["+strings.Join(hosts, ",")+"]")}
	}
	missing := func(call, param, typ string) step {
		return failed(call, "", 10000, "parameter missing", "Required parameter '"+param+"' type "+typ+" is not present")
	}
	f := newFixture(t)
	f.play(t, []step{
		{"POST " + in, "heartBeat=true&ip=10.1.1.1&port=8080&serviceName=a", "", 200, js, result(21003, "instance not found", "null")},
		done("POST "+in, "ip=10.1.1.1&port=8080&serviceName=a"),
		lst("", one),
		done("POST "+in, "heartBeat=true&ip=10.1.1.1&port=8080&serviceName=a"),
		done("POST "+in+`?heartBeat=true&ip=10.1.1.1&metadata={"x":"1"}&port=8080&serviceName=a&weight=9`, ""), // changes nothing
		done("POST "+in, `clusterName=c1&healthy=false&ip=10.1.1.2&metadata={"a":"1"}&port=80&serviceName=a&weight=2.5`),
		done("POST "+in, "enabled=false&ip=10.1.1.3&port=80&serviceName=a"),
		done("POST "+in, "healthy=false&ip=10.1.1.4&port=80&serviceName=a"),
		lst("", one, four),
		lst("&clusterName=c1", two),
		lst("&clusterName=c1,DEFAULT", one, two, four),
		lst("&clusterName=&groupName=&namespaceId=", one, four),
		lst("&healthyOnly=true", one), // Nacos does not look at it
		lst("&clusterName=a@b"),
		{"GET " + in + "/list?serviceName=none", "", "", 200, js, result(0, "success", "[]")},
		missing("POST "+in, "serviceName", "String"),
		missing("POST "+in+"?port=80&serviceName=a", "ip", "String"),
		missing("POST "+in+"?ip=10.1.1.1&serviceName=a", "port", "Integer"),
		missing("POST "+in+"?heartBeat=true&ip=10.1.1.1&serviceName=a", "port", "Integer"),
		missing("GET "+in+"/list", "serviceName", "String"),
		missing("DELETE "+in+"?port=80&serviceName=a", "ip", "String"),
		{"POST " + in, "ip=10.1.1.1&port=abc&serviceName=a", "", 400, "", "Param 'port' is illegal, the value should be between 0 and 65535." + crlf},
		failed("POST "+in, "ip=10.1.1.1&port=80&serviceName=a&weight=-1", 21001, "weight error", "instance format invalid: The weights range from 0.0 to 10000.0"),
		failed("POST "+in, "ip=10.1.1.1&port=80&serviceName=a&weight=heavy", 20002, "parameter validate error", `For input string: "heavy"`),              // Nacos: 500
		failed("POST "+in, "ip=10.1.1.1&port=80&serviceName=a&metadata=nonsense", 21002, "instance metadata error", "metadata format incorrect:nonsense"), // Nacos: 500
		failed("POST "+in, "heartBeat=maybe&ip=10.1.1.1&port=80&serviceName=a", 20002, "parameter validate error", "Param 'heartBeat' is illegal, it should be true or false: maybe"),
		failed("POST "+in, "clusterName=a_b&ip=10.1.1.1&port=80&serviceName=a", 21004, "instance error", "Instance 'clusterName' should be characters with only 0-9a-zA-Z-. (current: a_b)"),
		done("DELETE "+in+"?ip=10.1.1.1&port=8080&serviceName=a", ""),
		done("DELETE "+in, "ip=10.1.1.4&port=80&serviceName=a"),
		done("DELETE "+in+"?ip=10.1.1.99&port=80&serviceName=none", ""),
		lst(""),
	})
}

// TestListedAsProtected: clients are given what the protection makes of a
// service, operators what there is (golden scenario 72).
func TestListedAsProtected(t *testing.T) {
	g := "DEFAULT_GROUP@@a"
	one, two := host("10.1.1.1", 80, "DEFAULT", g, "1.0"), host("10.1.1.2", 80, "DEFAULT", g, "1.0")
	newFixture(t).play(t, []step{
		done("POST /v2/ns/service", "ephemeral=true&protectThreshold=0.5&serviceName=a"),
		done("POST /v2/ns/instance", "ip=10.1.1.1&port=80&serviceName=a"),
		done("POST /v2/ns/instance", "ip=10.1.1.2&port=80&serviceName=a&healthy=false"),
		{"GET /v3/client/ns/instance/list?serviceName=a", "", "", 200, js, result(0, "success", "["+one+","+two+"]")},
		{"GET /v3/admin/ns/instance/list?serviceName=a", "", "", 200, js, result(0, "success", "["+one+","+sick(two)+"]")},
		done("PUT /v2/ns/service", "protectThreshold=0.1&serviceName=a"),
		{"GET /v3/client/ns/instance/list?serviceName=a", "", "", 200, js, result(0, "success", "["+one+","+sick(two)+"]")},
		{"GET instance/list?serviceName=a", "", "", 200, js, list("DEFAULT_GROUP", "a", "", one, sick(two))},
	})
}

func TestOperatorsOfV3(t *testing.T) { // golden scenario 42
	const in = "/v3/admin/ns/instance"
	g := "DEFAULT_GROUP@@a"
	one := func(weight, md string) string { return withMetadata(host("10.1.1.1", 80, "DEFAULT", g, weight), md) }
	two := strings.Replace(sick(host("10.1.1.2", 80, "c1", g, "1.0")), `"enabled":true`, `"enabled":false`, 1)
	notFound := func(call, form string, code int, message, text string) step {
		return step{call, form, "", 404, js, result(code, message, `"`+text+`"`)}
	}
	at := "?ip=10.1.1.1&port=80&serviceName=a"
	newFixture(t).play(t, []step{
		notFound("GET "+in+"/list?serviceName=a", "", 30000, "server error", "service DEFAULT_GROUP@@a is not found!"),
		done("POST "+in, `ip=10.1.1.1&metadata={"a":"1"}&port=80&serviceName=a&weight=5`),
		done("POST "+in, "clusterName=c1&enabled=false&healthy=false&ip=10.1.1.2&port=80&serviceName=a"),
		{"GET " + in + "/list?serviceName=a", "", "", 200, js, result(0, "success", "["+one("5.0", `{"a":"1"}`)+"]")},
		{"GET " + in + "/list?clusterName=c1&serviceName=a", "", "", 200, js, result(0, "success", "["+two+"]")},
		{"GET " + in + "/list?clusterName=c1&healthyOnly=true&serviceName=a", "", "", 200, js, result(0, "success", "[]")},
		notFound("GET "+in+"/list?clusterName=c1,DEFAULT&serviceName=a", "", 30000, "server error", "cluster c1,DEFAULT is not found!"),
		{"GET " + in + at, "", "", 200, js, result(0, "success", one("5.0", `{"a":"1"}`))},
		{"GET " + in + "?clusterName=c1&ip=10.1.1.2&port=80&serviceName=a", "", "", 200, js, result(0, "success", two)},
		notFound("GET "+in+"?ip=10.1.1.9&port=80&serviceName=a", "", 20004, "resource not found", "no matched ip found!"),
		done("PUT "+in+"/partial", `ip=10.1.1.1&metadata={"b":"2"}&port=80&serviceName=a`),
		{"GET " + in + at, "", "", 200, js, result(0, "success", one("5.0", `{"a":"1","b":"2"}`))}, // Nacos: weight 1
		done("PUT "+in, "enabled=false&ip=10.1.1.1&port=80&serviceName=a&weight=7"),
		{"GET " + in + at, "", "", 200, js, result(0, "success", strings.Replace(one("7.0", `{"a":"1"}`), `"enabled":true`, `"enabled":false`, 1))},
		notFound("PUT "+in+"/partial", "ip=10.1.1.1&port=80&serviceName=none&weight=7", 20004, "resource not found", "no ips found for cluster DEFAULT in service DEFAULT_GROUP@@none"),
		notFound("PUT "+in+"/partial", "ip=10.1.1.9&port=80&serviceName=a&weight=7", 20004, "resource not found", "no matched ip found!"),
		failed("PUT "+in, "ip=10.1.1.1&port=80&serviceName=a&weight=99999", 21001, "weight error", "instance format invalid: The weights range from 0.0 to 10000.0"),
		done("POST "+in, "heartBeat=true&ip=10.1.1.1&port=80&serviceName=a"), // no beat here
		done("DELETE "+in+"?ip=10.1.1.2&port=80&serviceName=a", ""),
	})
}

func TestStatuses(t *testing.T) { // golden scenarios 07, 30
	const notGrouped = "Param 'serviceName' is illegal, it should be format as 'groupName@@serviceName'"
	const both = `{"ips":["10.1.1.1:80_true","10.1.1.2:80_false","10.1.1.3:80_true"]}`
	const v2Path = "/v2/ns/instance/statuses/"
	newFixture(t).play(t, []step{
		ok("POST instance?serviceName=a/b&groupName=g&ip=10.1.1.1&port=80"),
		ok("POST instance?serviceName=a/b&groupName=g&ip=10.1.1.2&port=80&healthy=false&clusterName=c2"),
		ok("POST instance?serviceName=a/b&groupName=g&ip=10.1.1.3&port=80&enabled=false"),
		ok("POST instance?serviceName=a/b&groupName=g&namespaceId=n&ip=10.1.1.4&port=80"),
		{"GET instance/statuses?key=g@@a/b", "", "", 200, js, both},
		{"POST instance/statuses", "key=public%23%23g@@a/b", "", 200, js, both},
		{"GET instance/statuses?key=n%23%23g@@a/b", "", "", 200, js, `{"ips":["10.1.1.4:80_true"]}`},
		{"GET instance/statuses?key=g@@none", "", "", 200, js, `{"ips":[]}`},
		{"GET instance/statuses?key=a", "", "", 400, text, notGrouped},
		{"GET instance/statuses?key=n%23%23a", "", "", 400, text, notGrouped},
		{"GET instance/statuses?key=g@@a%20b", "", "", 400, "", "Param 'serviceName' is illegal, illegal characters should not appear in the param." + crlf},
		{"GET instance/statuses?key=n/n%23%23g@@a", "", "", 400, "", "Param 'namespaceId/tenant' is illegal, illegal characters should not appear in the param." + crlf},
		{"GET instance/statuses", "", "", 400, text, "Parameter 'key' is missing"},
		{"GET " + v2Path + "g@@a%2Fb", "", "", 200, js, both},
		{"PUT " + v2Path + "n%23%23g%40%40a%2fb", "", "", 200, js, `{"ips":["10.1.1.4:80_true"]}`},
		failed("GET "+v2Path+"a", "", 20002, "parameter validate error", notGrouped),
		{"GET " + v2Path + "g@@a/b", "", "", 404, js, springError(404, "Not Found", "No message available", "/nacos"+v2Path+"g@@a/b")},
	})
}

func TestPatchAndBeatV2(t *testing.T) { // golden scenario 30
	const in, at = "/v2/ns/instance", "ip=10.1.1.1&port=8080&serviceName=DEFAULT_GROUP@@a"
	const notGrouped = "Param 'serviceName' is illegal, it should be format as 'groupName@@serviceName'"
	const renewed, unknown = `{"clientBeatInterval":5000,"code":10200,"lightBeatEnabled":true}`, `{"clientBeatInterval":5000,"code":20404,"lightBeatEnabled":true}`
	declared := func(param, typ string) string {
		return "Required request parameter '" + param + "' for method parameter type " + typ + " is not present"
	}
	one := func(weight, md string) string {
		return withMetadata(host("10.1.1.1", 8080, "DEFAULT", "DEFAULT_GROUP@@a", weight), md)
	}
	newFixture(t).play(t, []step{
		done("POST "+in, "ip=10.1.1.1&port=8080&serviceName=a"),
		{"PATCH " + in + "?enabled=true&metadata=c=3&weight=4&" + at, "", "", 200, text, "ok"},
		{"GET " + in + "/list?serviceName=a", "", "", 200, js, result(0, "success", list("DEFAULT_GROUP", "a", "", one("4.0", `{"c":"3"}`)))},
		failed("PATCH "+in+"?enabled=true&metadata=c=3&weight=4&ip=10.1.1.1&port=8080&serviceName=a", "", 20002, "parameter validate error", notGrouped),
		failed("PATCH "+in+"?metadata=c=3&weight=4&"+at, "", 10000, "parameter missing", declared("enabled", "Boolean")),
		failed("PATCH "+in+"?enabled=true&metadata=c=3&"+at, "", 10000, "parameter missing", declared("weight", "Double")),
		failed("PATCH "+in+"?enabled=true&weight=4&"+at, "", 10000, "parameter missing", declared("metadata", "String")),
		failed("PATCH "+in+"?enabled=maybe&metadata=c=3&weight=4&"+at, "", 20002, "parameter validate error", "Param 'enabled' is illegal, it should be true or false: maybe"),
		{"PATCH " + in + "?enabled=true&metadata=c=3&weight=4&cluster=c9&" + at, "", "", 404, js, result(20004, "resource not found", `"no matched ip found!"`)},
		{"PUT " + in + "/beat?" + at, "", "", 200, js, renewed},
		{"PUT " + in + "/beat?ip=10.1.1.9&port=8080&serviceName=DEFAULT_GROUP@@a", "", "", 200, js, unknown},
		failed("PUT "+in+"/beat?ip=10.1.1.1&port=8080&serviceName=a", "", 20002, "parameter validate error", notGrouped),
		failed("PUT "+in+"/beat?ip=10.1.1.1&port=8080", "", 10000, "parameter missing", "Required parameter 'serviceName' type String is not present"),
		// PHP asks v3 for it, with a bare name.
		{"PUT /v3/admin/ns/instance/beat", "ip=10.1.1.1&port=8080&serviceName=a", "", 200, js, renewed},
		{"PUT /v3/admin/ns/instance/beat", `serviceName=b&groupName=g&beat={"ip":"10.1.1.2","port":80}`, "", 200, js, renewed},
		{"GET /v3/client/ns/instance/list?serviceName=b&groupName=g", "", "", 200, js, result(0, "success", "["+host("10.1.1.2", 80, "DEFAULT", "g@@b", "1.0")+"]")},
	})
}
