package compat

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// An exchange is a request as a client of another time writes it, to the byte, and what it gets.
type exchange struct {
	client  string
	request string // head and body with bare newlines, see send
	status  int
	ctype   string
	body    string // lastRefTime is 0
}

const (
	plain = "text/plain;charset=UTF-8"
	js    = "application/json"
)

func beatAnswer(code int) string {
	return fmt.Sprintf(`{"clientBeatInterval":5000,"code":%d,"lightBeatEnabled":true}`, code)
}

// listed is a list of v1 with one host at most.
func listed(name, clusters, host string) string {
	return `{"checksum":"","allIPs":false,"allIps":false,"valid":true,"hosts":[` + host +
		`],"reachProtectionThreshold":false,"name":"DEFAULT_GROUP@@` + name + `","groupName":"DEFAULT_GROUP","clusters":"` + clusters + `","lastRefTime":0,"cacheMillis":10000}`
}

// host is one of port 8080 in such a list.
func host(service, ip, cluster, weight, metadata string) string {
	if metadata == "{}" {
		metadata += `,"instanceHeartBeatInterval":5000,"instanceHeartBeatTimeOut":15000,"ipDeleteTimeout":30000,"instanceIdGenerator":"simple"`
	} else {
		metadata += `,"instanceHeartBeatInterval":5000,"instanceHeartBeatTimeOut":15000,"ipDeleteTimeout":30000`
	}
	return fmt.Sprintf(`{"instanceId":"%s#8080#%s#DEFAULT_GROUP@@%s","ip":"%s","port":8080,"weight":%s,"healthy":true,"enabled":true,"ephemeral":true,`+
		`"clusterName":"%s","serviceName":"DEFAULT_GROUP@@%s","metadata":%s}`, ip, cluster, service, ip, weight, cluster, service, metadata)
}

const (
	nodeHead   = "\nUser-Agent: Nacos-Java-Client:v1.0.0\nClient-Version: Nacos-Java-Client:v1.0.0\nAccept-Encoding: gzip,deflate,sdch\nRequest-Module: Naming\nConnection: close\n"
	goHead     = "\nUser-Agent: Nacos-Go-Client:v1.1.6\nClient-Version: Nacos-Go-Client:v1.1.6\nRequest-Module: Naming\nConnection: Keep-Alive\nContent-Type: application/x-www-form-urlencoded;charset=utf-8\n"
	javaHead   = "\nUser-Agent: Nacos-Java-Client:v1.4.2\nClient-Version: v1.4.2\nRequest-Module: Naming\nAccept-Charset: UTF-8\nContent-Type: application/x-www-form-urlencoded;charset=UTF-8\nAccept: text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2\n"
	pythonHead = "\nUser-Agent: Nacos-Python-Client:v0.1.12\nAccept-Encoding: identity\nContent-Type: application/x-www-form-urlencoded\nConnection: close\n"
	odder      = `{"a":"b","odd":"50% %41+\u0026;"}` // as Go writes it
)

// exchanges are those of http-api §14.1 and their siblings, in an order that makes sense.
var exchanges = []exchange{
	{"Node 2.6.3", "POST /nacos/v1/ns/instance?namespaceId=public&serviceName=DEFAULT_GROUP%40%40node&groupName=DEFAULT_GROUP&clusterName=DEFAULT&ip=10.0.0.7&port=8080&weight=1&enable=true&healthy=true&ephemeral=true&metadata=%7B%7D HTTP/1.1" + nodeHead + "Content-Length: 0\n\n",
		200, plain, "ok"},
	{"Node 2.6.3", "PUT /nacos/v1/ns/instance/beat?beat=%7B%22serviceName%22%3A%22DEFAULT_GROUP%40%40node%22%2C%22ip%22%3A%2210.0.0.7%22%2C%22port%22%3A8080%2C%22cluster%22%3A%22DEFAULT%22%2C%22weight%22%3A1%2C%22metadata%22%3A%7B%7D%7D&namespaceId=public&serviceName=DEFAULT_GROUP%40%40node HTTP/1.1" + nodeHead + "Content-Length: 0\n\n",
		200, js, beatAnswer(10200)},
	{"Node 2.6.3", "GET /nacos/v1/ns/instance/list?namespaceId=public&serviceName=DEFAULT_GROUP%40%40node&clusters=DEFAULT&udpPort=40123&clientIP=10.0.0.9&healthyOnly=false HTTP/1.1" + nodeHead + "\n",
		200, js, listed("node", "DEFAULT", host("node", "10.0.0.7", "DEFAULT", "1.0", "{}"))},
	{"Node 2.6.3", "DELETE /nacos/v1/ns/instance?namespaceId=public&serviceName=DEFAULT_GROUP%40%40node&clusterName=DEFAULT&ip=10.0.0.7&port=8080&ephemeral=true HTTP/1.1" + nodeHead + "\n",
		200, plain, "ok"},
	{"Node 2.6.3", "GET /nacos/v1/ns/service/list?pageNo=1&pageSize=20&namespaceId=public&groupName=no-such-group HTTP/1.1" + nodeHead + "\n",
		200, js, `{"count":0,"doms":[]}`},
	{"Node 2.6.3", "GET /nacos/v1/ns/operator/metrics?namespaceId=public HTTP/1.1" + nodeHead + "\n",
		200, js, `{"status":"UP"}`},

	// Bodies of PUT are not encoded, nor are queries.
	{"Go v1.1.6", "PUT /nacos/v1/ns/instance/beat HTTP/1.1" + goHead + "Content-Length: {length}\n\n" +
		`namespaceId=public&serviceName=DEFAULT_GROUP@@go&beat={"ip":"10.0.0.7","port":8080,"weight":1,"serviceName":"DEFAULT_GROUP@@go","cluster":"DEFAULT","metadata":` + odder + `,"scheduled":false}`,
		200, js, beatAnswer(10200)},
	{"Go v1.1.6", "GET /nacos/v1/ns/instance/list?namespaceId=&serviceName=DEFAULT_GROUP@@go&app=unknown&clusters=&udpPort=55123&healthyOnly=false&clientIP=10.0.0.9 HTTP/1.1" + goHead + "\n",
		200, js, listed("go", "", host("go", "10.0.0.7", "DEFAULT", "1.0", `{"a":"b","odd":"50% %41+&;"}`))},
	{"Go v1.1.6", "PUT /nacos/v1/ns/instance HTTP/1.1" + goHead + "Content-Length: {length}\n\n" +
		`port=8080&serviceName=DEFAULT_GROUP@@go&weight=2.5&ephemeral=true&enable=true&ip=10.0.0.7&metadata={"odd":"a+b %zz = ; {c}"}`,
		200, plain, "ok"},
	{"Go v1.1.6", "GET /nacos/v1/ns/instance/list?clientIP=10.0.0.9&healthyOnly=false&serviceName=DEFAULT_GROUP@@go&clusters=DEFAULT HTTP/1.1" + goHead + "\n",
		200, js, listed("go", "DEFAULT", host("go", "10.0.0.7", "DEFAULT", "2.5", `{"a":"b","odd":"a+b %zz = ; {c}"}`))},
	{"Go v1.1.6", "DELETE /nacos/v1/ns/instance?namespaceId=&serviceName=DEFAULT_GROUP@@go&clusterName=&ip=10.0.0.7&port=8080&ephemeral=true HTTP/1.1" + goHead + "\n",
		200, plain, "ok"},
	{"Go v2.3.5", "GET /nacos/v1/ns/service/list?&pageNo=1&pageSize=10&groupName=no-such-group&namespaceId=public HTTP/1.1" + goHead + "\n",
		200, js, `{"count":0,"doms":[]}`},

	// Half in the query, the beat in the form; then beats without it.
	{"Java 1.4.2", "PUT /nacos/v1/ns/instance/beat?app=demo&namespaceId=public&serviceName=DEFAULT_GROUP%40%40java&clusterName=DEFAULT&ip=10.0.0.7&port=8080 HTTP/1.1" + javaHead + "Content-Length: 0\n\n",
		200, js, beatAnswer(20404)},
	{"Java 1.4.2", "PUT /nacos/v1/ns/instance/beat?app=demo&namespaceId=public&serviceName=DEFAULT_GROUP%40%40java&clusterName=DEFAULT&ip=10.0.0.7&port=8080 HTTP/1.1" + javaHead + "Content-Length: {length}\n\n" +
		"beat=%7B%22port%22%3A8080%2C%22ip%22%3A%2210.0.0.7%22%2C%22weight%22%3A2.0%2C%22serviceName%22%3A%22DEFAULT_GROUP%40%40java%22%2C%22cluster%22%3A%22DEFAULT%22%2C%22metadata%22%3A%7B%22a%22%3A%22b%2Bc%22%7D%2C%22scheduled%22%3Afalse%2C%22period%22%3A5000%2C%22stopped%22%3Afalse%7D",
		200, js, beatAnswer(10200)},
	{"Java 1.4.2", "PUT /nacos/v1/ns/instance/beat?app=demo&namespaceId=public&serviceName=DEFAULT_GROUP%40%40java&clusterName=DEFAULT&ip=10.0.0.7&port=8080 HTTP/1.1" + javaHead + "Content-Length: 0\n\n",
		200, js, beatAnswer(10200)},
	{"Java 1.4.2", "GET /nacos/v1/ns/instance/list?app=demo&namespaceId=public&serviceName=DEFAULT_GROUP%40%40java&clusters=&udpPort=33123&clientIP=10.0.0.9&healthyOnly=false HTTP/1.1" + javaHead + "\n",
		200, js, listed("java", "", host("java", "10.0.0.7", "DEFAULT", "2.0", `{"a":"b+c"}`))},
	{"Java 1.4.2", "DELETE /nacos/v1/ns/instance?app=demo&namespaceId=public&serviceName=DEFAULT_GROUP%40%40java&clusterName=DEFAULT&ip=10.0.0.7&port=8080&ephemeral=true&encoding=UTF-8 HTTP/1.1" + javaHead + "\n",
		200, plain, "ok"},

	// All in the form, that of a DELETE too; None is how Python writes what is not given.
	{"Python 0.1", "POST /nacos/v1/ns/instance HTTP/1.1" + pythonHead + "Content-Length: {length}\n\n" +
		"ip=10.0.0.7&port=8080&serviceName=python&weight=1.0&enable=True&healthy=True&metadata=None&clusterName=None",
		200, plain, "ok"},
	{"Python 0.1", "GET /nacos/v1/ns/instance/list?serviceName=python&healthyOnly=False HTTP/1.1" + pythonHead + "\n",
		200, js, listed("python", "", host("python", "10.0.0.7", "None", "1.0", "{}"))},
	{"Python 0.1", "GET /nacos/v1/ns/instance?serviceName=python&ip=10.0.0.7&port=8080&cluster=None HTTP/1.1" + pythonHead + "\n",
		200, js, `{"service":"DEFAULT_GROUP@@python","ip":"10.0.0.7","port":8080,"clusterName":"None","weight":1.0,"healthy":true,"instanceId":"10.0.0.7#8080#None#DEFAULT_GROUP@@python","metadata":{}}`},
	{"Python 0.1", "PUT /nacos/v1/ns/instance HTTP/1.1" + pythonHead + "Content-Length: {length}\n\n" +
		"ip=10.0.0.7&port=8080&serviceName=python&clusterName=None&enable=True&weight=3&metadata=%7B%22a%22%3A+%22b%22%7D",
		200, plain, "ok"},
	{"Python 0.1", "GET /nacos/v1/ns/instance/list?serviceName=python&healthyOnly=True HTTP/1.1" + pythonHead + "\n",
		200, js, listed("python", "", host("python", "10.0.0.7", "None", "3.0", `{"a":"b"}`))},
	{"Python 0.1", "DELETE /nacos/v1/ns/instance HTTP/1.1" + pythonHead + "Content-Length: {length}\n\n" +
		"ip=10.0.0.7&port=8080&serviceName=python",
		200, plain, "ok"},
	{"Python 0.1", "GET /nacos/v1/ns/instance/list?serviceName=python&healthyOnly=False HTTP/1.1" + pythonHead + "\n",
		200, js, listed("python", "", "")},

	{"APISIX", "POST /nacos/v1/auth/login?username=nacos&password=nacos HTTP/1.1\nAccept: application/json\nUser-Agent: lua-resty-http/0.17.1 (Lua) ngx_lua/10026\n\n",
		200, js, `{"accessToken":"AUTH_DISABLED","tokenTtl":18000,"globalAdmin":true,"username":"nacos"}`},
	{"APISIX", "GET /nacos/v1/ns/instance/list?healthyOnly=true&serviceName=demo&accessToken=AUTH_DISABLED&namespaceId=ns&groupName=DEFAULT_GROUP HTTP/1.1\nAccept: application/json\nUser-Agent: lua-resty-http/0.17.1 (Lua) ngx_lua/10026\n\n",
		200, js, listed("demo", "", "")},
}

// TestRequests plays the exchanges with one node, and with three of which every request goes to the
// next: what a node has been told a list of another shows, and an update finds, within five seconds.
func TestRequests(t *testing.T) {
	t.Parallel()
	bin, dir := serverBinary(t), runDir(t)
	for name, nodes := range map[string][]*server{
		"one":   {startServer(t, bin, filepath.Join(dir, "one"))},
		"three": startCluster(t, bin, filepath.Join(dir, "three"), 3),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			turn := 0
			for _, x := range exchanges {
				var got string
				want := fmt.Sprintf("%d %s %s", x.status, x.ctype, x.body)
				answered := func() bool {
					got = x.send(t, nodes[turn%len(nodes)])
					turn++
					return got == want
				}
				again := strings.HasPrefix(x.request, "GET ") || strings.HasPrefix(x.request, "PUT /nacos/v1/ns/instance ")
				if !answered() && !(len(nodes) > 1 && again && eventually(5*time.Second, answered)) {
					t.Errorf("%s sends\n%s\nand gets  %s\nbut wants %s", x.client, x.request, got, want)
				}
			}
		})
	}
}

var refTime = regexp.MustCompile(`"lastRefTime":\d+`)

// send writes the bytes and returns status, content type and body. {length} is the length of the body.
func (x exchange) send(t *testing.T, to *server) string {
	t.Helper()
	head, body, _ := strings.Cut(x.request, "\n\n")
	line, headers, _ := strings.Cut(head, "\n")
	head = strings.ReplaceAll(line+"\nHost: "+to.address()+"\n"+headers, "{length}", fmt.Sprint(len(body)))
	conn, err := net.DialTimeout("tcp", to.address(), patience)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, strings.ReplaceAll(head, "\n", "\r\n")+"\r\n\r\n"+body); err != nil {
		t.Fatal(err)
	}
	method, _, _ := strings.Cut(line, " ")
	res, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	defer res.Body.Close()
	content, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return fmt.Sprintf("%d %s %s", res.StatusCode, res.Header.Get("Content-Type"), refTime.ReplaceAll(content, []byte(`"lastRefTime":0`)))
}
