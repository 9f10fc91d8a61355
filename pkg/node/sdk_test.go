package node

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/starling-registry/starling/pkg/nacos"
)

// What the parts do is tested where they are; here, that they are connected:
// a change over HTTP reaches a subscriber over gRPC, and the limits of the
// options are in force.
func TestPartsAreConnected(t *testing.T) {
	o := testOptions(t, t.TempDir())
	o.MaxSubscriptionsPerConnection, o.MaxInstancesPerConnection = 2, 1
	o.BeatCheck, o.BeatTimeout, o.BeatDelete = 20*time.Millisecond, 100*time.Millisecond, 300*time.Millisecond
	o.EmptyServiceAge, o.SweepPeriod = 50*time.Millisecond, 20*time.Millisecond
	n := start(t, o)
	defer stop(t, n)

	cc, err := grpc.NewClient(n.GRPCAddr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(nacos.Codec{})))
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	call := func(typ, body string) string {
		t.Helper()
		p := new(nacos.Payload)
		if err := cc.Invoke(t.Context(), "/Request/request", &nacos.Payload{Type: typ, Body: []byte(body)}, p); err != nil {
			t.Fatal(err)
		}
		return string(p.Body)
	}
	stream, err := cc.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/BiRequestStream/requestBiStream")
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(&nacos.Payload{Type: "ConnectionSetupRequest", Body: []byte(`{}`)}); err != nil {
		t.Fatal(err)
	}
	next := func(what string) {
		t.Helper()
		p := new(nacos.Payload)
		for !strings.Contains(string(p.Body), what) {
			if err := stream.RecvMsg(p); err != nil {
				t.Fatalf("waiting for %s: %v", what, err)
			}
		}
	}
	const order = `"serviceName":"order","groupName":"DEFAULT_GROUP"`
	call("SubscribeServiceRequest", `{`+order+`,"subscribe":true}`)
	call("NamingFuzzyWatchRequest", `{"groupKeyPattern":"public>>DEFAULT_GROUP>>*","watchType":"WATCH"}`)
	next(`"hosts":[]`)
	get(t, n, "POST", "/nacos/v1/ns/instance?serviceName=order&ip=1.1.1.1&port=80")
	next(`"serviceKey":"public@@DEFAULT_GROUP@@order","changedType":"ADD_SERVICE"`)
	next(`"healthy":false`) // nobody sends beats
	next(`"hosts":[]`)
	if got := call("SubscribeServiceRequest", `{"serviceName":"x","groupName":"g","subscribe":true}`); !strings.Contains(got, "--max-subscriptions-per-connection") {
		t.Error(got)
	}
	if got := call("BatchInstanceRequest", `{`+order+`,"type":"batchRegisterInstance","instances":[{"ip":"1","port":1},{"ip":"2","port":1}]}`); !strings.Contains(got, "--max-instances-per-connection") {
		t.Error(got)
	}
	// The empty service is swept away.
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) { // polls a condition
		if _, body := get(t, n, "GET", "/metrics"); strings.Contains(body, "starling_registry_services 0\n") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the empty service is still there")
		}
	}
}

// A node that stops says so before it goes, and takes nobody new.
func TestStoppingNodeIsNotReady(t *testing.T) {
	n := start(t, testOptions(t, t.TempDir()))
	// Undo the last step only: readiness.
	if last := n.undo[len(n.undo)-1]; last.name != "drain" {
		t.Fatalf("the first thing to end is %s", last.name)
	} else if err := last.undo(context.Background()); err != nil {
		t.Fatal(err)
	}
	if code, body := get(t, n, "GET", "/readyz"); code != 503 {
		t.Errorf("readyz: %d %s", code, body)
	}
	if c, err := net.Dial("tcp", n.GRPCAddr().String()); err == nil {
		c.Close()
		t.Error("the port of SDKs is still open")
	}
	stop(t, n)
}
