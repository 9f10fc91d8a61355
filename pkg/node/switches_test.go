package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/starling-registry/starling/pkg/nacos"
)

func TestSwitches(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	usual := nacos.DefaultSwitches()
	usual.CheckTimes = 7 // a setting of the node
	s := newSwitches(usual, zap.New(core))
	var acts []string
	s.checkedAgain = func() {
		acts = append(acts, fmt.Sprintf("checked again, while checks are on: %v", s.get().HealthCheckEnabled))
	}
	s.pushed = func(on bool) { acts = append(acts, fmt.Sprintf("push %v", on)) }
	want := func(interval int64, acted string) {
		t.Helper()
		if is := s.get().ClientBeatInterval; is != interval {
			t.Errorf("clientBeatInterval %d, want %d", is, interval)
		}
		if is := strings.Join(acts, ", "); is != acted {
			t.Errorf("done: %s, want %s", is, acted)
		}
		acts = nil
	}
	const beat = "clientBeatInterval"
	want(5000, "")
	s.tableIs(map[string]string{beat: "6000"}, nil)
	want(6000, "")
	s.setHere(beat, "7000")
	want(7000, "")
	s.tableIs(map[string]string{beat: "6000", "checkTimes": "2"}, nil) // another one
	want(7000, "")
	s.tableIs(map[string]string{beat: "8000"}, nil)
	want(8000, "")
	s.setHere(beat, "7000")
	s.setHere("checkTimes", "9")
	s.tableIs(map[string]string{beat: "8000"}, []string{beat}) // the same, said for all
	want(8000, "")
	if is := s.get().CheckTimes; is != 9 {
		t.Errorf("checkTimes %d, want that of this node", is)
	}
	s.setHere("checkTimes", "")
	s.setHere(beat, "7000")
	s.setHere(beat, "")
	want(8000, "")
	s.setHere(beat, "7000")
	s.tableIs(nil, nil)
	want(5000, "")
	s.setHere(beat, "7000")
	s.tableIs(nil, []string{"checkTimes"})
	want(7000, "")
	s.tableIs(nil, []string{beat}) // to what it was
	want(5000, "")
	if is := s.get().CheckTimes; is != 7 {
		t.Errorf("checkTimes %d, want that of the node", is)
	}

	s.tableIs(map[string]string{"healthCheckEnabled": "false", "pushEnabled": "false"}, nil)
	want(5000, "push false")
	s.tableIs(map[string]string{"healthCheckEnabled": "false"}, nil)
	want(5000, "push true")
	s.tableIs(map[string]string{}, nil)
	want(5000, "checked again, while checks are on: false")

	// A value of another release changes nothing, and that is said once.
	if logs.Len() > 0 {
		t.Errorf("logged %v", logs.All())
	}
	strange := map[string]string{beat: "PT5S", "pushEnabled": "false"}
	s.tableIs(strange, nil)
	s.tableIs(strange, nil)
	s.setHere("checkTimes", "4")
	want(5000, "push false")
	if n := logs.FilterMessageSnippet("ignored").Len(); n != 1 {
		t.Errorf("%d lines about it", n)
	}
	s.tableIs(map[string]string{beat: "6000", "pushEnabled": "false"}, nil)
	want(6000, "")
	s.tableIs(strange, nil)
	if n := logs.FilterMessageSnippet("ignored").Len(); n != 2 {
		t.Errorf("%d lines about two", n)
	}
}

// soon asks until the answer is the one that is waited for.
func soon(t *testing.T, n *Node, method, path, form string, is func(int, string) bool) {
	t.Helper()
	soonDone(t, method+" "+path+" "+form, func() bool { return is(ask(t, n, method, path, form)) })
}

func soonDone(t *testing.T, what string, done func() bool) {
	t.Helper()
	eventually(t, func() string {
		if done() {
			return ""
		}
		return what + " does not come to what it should"
	})
}

const switchesPath = "/nacos/v3/admin/ns/ops/switches"

func isOK(code int, body string) bool { return code == 200 && strings.Contains(body, `"ok"`) }

func shows(member string) func(int, string) bool {
	return func(code int, body string) bool { return code == 200 && strings.Contains(body, member) }
}

// A switch that is set at any node holds on all of them, and one that is set for
// one node alone does not.
func TestSwitchHoldsOnAllNodes(t *testing.T) {
	nodes := startNodes(t, 3)
	for _, n := range nodes {
		defer stop(t, n)
	}
	for i, n := range nodes { // two of them do not lead
		soon(t, n, "PUT", switchesPath, fmt.Sprintf("entry=clientBeatInterval&value=%d", 6000+i), isOK)
		for _, other := range nodes {
			soon(t, other, "GET", switchesPath, "", shows(fmt.Sprintf(`"clientBeatInterval":%d`, 6000+i)))
			soon(t, other, "PUT", "/nacos/v1/ns/instance/beat?serviceName=a&ip=10.0.0.1&port=80&beat=%7B%22ip%22:%2210.0.0.1%22,%22port%22:80%7D", "",
				shows(fmt.Sprintf(`{"clientBeatInterval":%d,"code":10200`, 6000+i)))
		}
	}
	soon(t, nodes[0], "PUT", switchesPath, "entry=clientBeatInterval&value=9000&debug=true", isOK)
	for i, want := range []int{9000, 6002, 6002} {
		if _, body := ask(t, nodes[i], "GET", switchesPath, ""); !strings.Contains(body, fmt.Sprintf(`"clientBeatInterval":%d`, want)) {
			t.Errorf("node %d does not show %d: %s", i, want, body)
		}
	}
	// All nodes say the same of who keeps a client, by the address that the others
	// reach it at.
	var keeper struct{ ResponsibleServer string }
	_, first := ask(t, nodes[0], "GET", "/nacos/v1/ns/operator/distro/client?ip=10.0.0.1&port=80", "")
	if err := json.Unmarshal([]byte(first), &keeper); err != nil {
		t.Fatal(err)
	}
	found := false
	for _, n := range nodes {
		found = found || n.HTTPAddr().String() == keeper.ResponsibleServer
		if _, body := ask(t, n, "GET", "/nacos/v1/ns/operator/distro/client?ip=10.0.0.1&port=80", ""); body != first {
			t.Errorf("%s and %s", first, body)
		}
	}
	if !found {
		t.Errorf("%s is the address of no node", first)
	}
}

// What is switched survives a restart, and what is switched on one node alone
// does not.
func TestSwitchesOutliveTheProcess(t *testing.T) {
	o := testOptions(t, t.TempDir())
	n := start(t, o)
	soon(t, n, "PUT", switchesPath, "entry=lightBeatEnabled&value=false", isOK)
	soon(t, n, "PUT", switchesPath, "entry=clientBeatInterval&value=9000&debug=true", isOK)
	stop(t, n)
	n = start(t, o)
	defer stop(t, n)
	soon(t, n, "GET", switchesPath, "", shows(`"lightBeatEnabled":false`))
	if _, body := ask(t, n, "GET", switchesPath, ""); !strings.Contains(body, `"clientBeatInterval":5000`) {
		t.Errorf("%s", body)
	}
}

// The switches reach what goes by them.
func TestSwitchesOfANode(t *testing.T) {
	o := testOptions(t, t.TempDir())
	o.BeatCheck, o.BeatTimeout, o.BeatDelete = 50*time.Millisecond, 200*time.Millisecond, 400*time.Millisecond
	level := zap.NewAtomicLevelAt(zap.InfoLevel)
	o.SetLogLevel = level.SetLevel
	n := start(t, o)
	defer stop(t, n)
	const list = "/nacos/v1/ns/instance/list?serviceName=a"
	soon(t, n, "PUT", switchesPath, "entry=check&value=false", isOK)
	if code, body := ask(t, n, "POST", "/nacos/v1/ns/instance", "serviceName=a&ip=10.0.0.1&port=80"); code != 200 {
		t.Fatal(body)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	for ctx.Err() == nil {
		if _, body := ask(t, n, "GET", list, ""); !strings.Contains(body, `"healthy":true`) {
			t.Fatalf("without checks: %s", body)
		}
		time.Sleep(20 * time.Millisecond)
	}
	soon(t, n, "PUT", switchesPath, "entry=pushCacheMillis&value=20000", isOK)
	if _, body := ask(t, n, "GET", list, ""); !strings.Contains(body, `"cacheMillis":20000`) {
		t.Errorf("%s", body)
	}
	soon(t, n, "PUT", switchesPath, "entry=check&value=true", isOK)
	soon(t, n, "GET", list, "", shows(`"hosts":[]`))

	if code, _ := ask(t, n, "PUT", "/nacos/v1/ns/operator/log", "logName=root&logLevel=ERROR"); code != 200 || level.Level() != zapcore.ErrorLevel {
		t.Errorf("%d, level %v", code, level)
	}
	if _, body := ask(t, n, "GET", "/nacos/v1/ns/operator/push/state?detail=true", ""); body != `{"succeed":0,"total":0,"ratio":0,"detail":{"avgPushCost":-1,"maxPushCost":-1},"reset":false}` {
		t.Errorf("%s", body)
	}
}

// The same for what subscribers on gRPC and health checks go by.
func TestSwitchesOfPushesAndChecks(t *testing.T) {
	var mu sync.Mutex
	refusals := 0
	o := testOptions(t, t.TempDir())
	o.CheckInterval, o.CheckStrikes = 50*time.Millisecond, 3
	o.Dial = func(context.Context, string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		refusals++
		return nil, context.DeadlineExceeded // counted, unlike a refusal
	}
	n := start(t, o)
	defer stop(t, n)
	soon(t, n, "PUT", switchesPath, "entry=pushEnabled&value=false", isOK)
	soon(t, n, "PUT", switchesPath, "entry=pushCacheMillis&value=30000", isOK)
	soon(t, n, "PUT", switchesPath, "entry=healthCheckTimes&value=6", isOK)

	cc, err := grpc.NewClient(n.GRPCAddr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(nacos.Codec{})))
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	stream, err := cc.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/BiRequestStream/requestBiStream")
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(&nacos.Payload{Type: "ConnectionSetupRequest", Body: []byte(`{}`)}); err != nil {
		t.Fatal(err)
	}
	pushes := make(chan string, 100)
	go func() {
		for {
			p := new(nacos.Payload)
			if stream.RecvMsg(p) != nil {
				return
			}
			var push struct{ RequestID string }
			_ = json.Unmarshal(p.Body, &push)
			if p.Type == "NotifySubscriberRequest" {
				_ = stream.SendMsg(&nacos.Payload{Type: "NotifySubscriberResponse", Body: fmt.Appendf(nil, `{"resultCode":200,"requestId":%q}`, push.RequestID)})
				pushes <- string(p.Body)
			}
		}
	}()
	answer := new(nacos.Payload)
	soonDone(t, "subscribe", func() bool { // until the connection is set up
		err := cc.Invoke(t.Context(), "/Request/request", &nacos.Payload{Type: "SubscribeServiceRequest", Body: []byte(`{"serviceName":"a","groupName":"DEFAULT_GROUP","subscribe":true}`)}, answer)
		return err == nil && strings.Contains(string(answer.Body), `"resultCode":200`)
	})
	if !strings.Contains(string(answer.Body), `"cacheMillis":30000`) {
		t.Errorf("answer %s", answer.Body)
	}
	if code, body := ask(t, n, "POST", "/nacos/v1/ns/instance", "serviceName=a&ip=10.0.0.1&port=80"); code != 200 {
		t.Fatal(body)
	}
	select {
	case p := <-pushes:
		t.Fatalf("pushed while that is off: %s", p)
	case <-time.After(500 * time.Millisecond):
	}
	soon(t, n, "PUT", switchesPath, "entry=pushEnabled&value=true", isOK)
	select {
	case p := <-pushes:
		if !strings.Contains(p, `"ip":"10.0.0.1"`) || !strings.Contains(p, `"cacheMillis":30000`) {
			t.Errorf("pushed %s", p)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("what was held back is not pushed")
	}
	soon(t, n, "GET", "/nacos/v1/ns/operator/push/state", "", shows(`{"succeed":1,"total":1,"ratio":1.0,"reset":false}`))

	if code, body := ask(t, n, "POST", "/nacos/v1/ns/instance", "serviceName=p&ip=10.0.0.2&port=80&ephemeral=false"); code != 200 {
		t.Fatal(body)
	}
	soon(t, n, "GET", "/nacos/v1/ns/instance?serviceName=p&ip=10.0.0.2&port=80", "", shows(`"healthy":false`))
	mu.Lock()
	defer mu.Unlock()
	if refusals < 6 {
		t.Errorf("unhealthy after %d checks, want 6", refusals)
	}
}

func TestMachine(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("not Linux")
	}
	var m machine
	m.now()
	m.idle-- // since then there was some idle time
	is := m.now()
	if is.CPU < 0 || is.CPU > 1 || is.Load < 0 || is.Mem <= 0 || is.Mem >= 1 {
		t.Errorf("%+v", is)
	}
}
