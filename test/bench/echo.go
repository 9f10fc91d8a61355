package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	_ "net/http/pprof" // serves profiles
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

// An echoServer knows the types of requests and no bodies, except where
// somebody has subscribed: then it must know whom to push to.
type echoServer struct {
	instance, batch, query, subscribed *nacos.Payload
	push1, push10                      []byte // bodies to mark

	subscriptions atomic.Int64

	mu      sync.RWMutex
	streams map[string]*echoStream   // by the address of the client
	topics  map[string][]*echoStream // by the name of the service
}

type echoStream struct {
	grpc.ServerStream
	mu sync.Mutex
}

// senders is the number of goroutines that share a fan-out; more are not
// faster on a few processors.
const senders = 4

// echo serves until the process is killed: gRPC on the second address, HTTP
// and profiles on the first.
func echo(web, addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	webAnswers()
	go func() { fmt.Fprintln(os.Stderr, http.ListenAndServe(web, nil)) }()
	s := &echoServer{
		instance:   nacos.OperationResponse(nacos.TypeInstanceResponse, nacos.OpRegister, ""),
		batch:      nacos.OperationResponse(nacos.TypeBatchInstanceResponse, nacos.OpBatchRegister, ""),
		query:      whole(nacos.QueryServiceResponse(list("query-0", 20), "")),
		subscribed: whole(nacos.SubscribeServiceResponse(list("idle-1000", 1), "")),
		push1:      whole(nacos.NotifySubscriberRequest(list("push-0", 1), 1)).Shared,
		push10:     whole(nacos.NotifySubscriberRequest(list("fan-out", 10), 1)).Shared,
		streams:    map[string]*echoStream{},
		topics:     map[string][]*echoStream{},
	}
	srv := grpc.NewServer(grpc.ForceServerCodecV2(nacos.Codec{}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}))
	srv.RegisterService(&grpc.ServiceDesc{ServiceName: nacos.RequestService, HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
		MethodName: "request",
		Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			p := new(nacos.Payload)
			if err := decode(p); err != nil {
				return nil, err
			}
			return s.request(ctx, p)
		},
	}}}, s)
	srv.RegisterService(&grpc.ServiceDesc{ServiceName: nacos.BiStreamService, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
		StreamName: "requestBiStream", ServerStreams: true, ClientStreams: true,
		Handler: func(_ any, stream grpc.ServerStream) error { return s.stream(stream) },
	}}}, s)
	return srv.Serve(l)
}

func (s *echoServer) request(ctx context.Context, p *nacos.Payload) (*nacos.Payload, error) {
	switch p.Type {
	case nacos.TypeServerCheckRequest:
		return nacos.ServerCheckResponse("1796011661000_127.0.0.1_50000"), nil
	case nacos.TypeInstanceRequest:
		s.push(p.Body, s.push1)
		return s.instance, nil
	case nacos.TypeBatchInstanceRequest:
		s.push(p.Body, s.push10)
		return s.batch, nil
	case nacos.TypeServiceQueryRequest:
		return s.query, nil
	case nacos.TypeSubscribeServiceRequest:
		s.subscribe(ctx, p.Body)
		return s.subscribed, nil
	case nacos.TypeHealthCheckRequest:
		return nacos.HealthCheckResponse(), nil
	}
	return nil, status.Error(codes.Unimplemented, p.Type)
}

func remote(ctx context.Context) string {
	p, _ := peer.FromContext(ctx)
	return p.Addr.String()
}

func (s *echoServer) stream(stream grpc.ServerStream) error {
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	es := &echoStream{ServerStream: stream}
	s.mu.Lock()
	s.streams[remote(stream.Context())] = es
	s.mu.Unlock()
	for {
		p := new(nacos.Payload)
		if err := stream.RecvMsg(p); err != nil {
			return status.Error(codes.Unavailable, "connection closed")
		}
		if p.Type == nacos.TypeConnectionSetupRequest {
			es.send(nacos.SetupAckRequest(nil))
		}
	}
}

func (e *echoStream) send(p *nacos.Payload) {
	e.mu.Lock()
	defer e.mu.Unlock()
	_ = e.SendMsg(p) // who has gone gets nothing
}

// between returns what stands between two texts.
func between(body []byte, before, after string) []byte {
	_, rest, _ := bytes.Cut(body, []byte(before))
	found, _, _ := bytes.Cut(rest, []byte(after))
	return found
}

// subscribe is followed by a push, as a node's is.
func (s *echoServer) subscribe(ctx context.Context, body []byte) {
	name := string(between(body, `"serviceName":"`, `"`))
	s.mu.Lock()
	defer s.mu.Unlock()
	es := s.streams[remote(ctx)]
	s.topics[name] = append(s.topics[name], es)
	s.subscriptions.Add(1)
	time.AfterFunc(100*time.Millisecond, func() { es.send(&nacos.Payload{Type: nacos.TypeNotifySubscriberRequest, Shared: s.push1}) })
}

// push sends prepared bytes with the mark of the request to those who have
// subscribed.
func (s *echoServer) push(request, prepared []byte) {
	if s.subscriptions.Load() == 0 {
		return
	}
	s.mu.RLock()
	to := s.topics[string(between(request, `"serviceName":"`, `"`))]
	s.mu.RUnlock()
	const mark = `"seq":"`
	body := bytes.Clone(prepared)
	copy(body[bytes.Index(body, []byte(mark))+len(mark):], between(request, mark, `"`))
	p := &nacos.Payload{Type: nacos.TypeNotifySubscriberRequest, Shared: body}
	if len(to) < 100 {
		for _, es := range to {
			es.send(p)
		}
		return
	}
	for i := range senders {
		go func() {
			for j := i; j < len(to); j += senders {
				to[j].send(p)
			}
		}()
	}
}

// list is the answer of a node for a service of n instances like those that
// the client registers.
func list(service string, n int) nacos.ServiceInfo {
	key := registry.ServiceKey{Namespace: registry.DefaultNamespace, Group: "STARLING_BENCH", Name: service}
	snap := &registry.Snapshot{Service: key}
	for i := range n {
		md := registry.Metadata{{Key: "zone", Value: "a"}}
		if i == 0 {
			md = append(registry.Metadata{{Key: "seq", Value: "000000000000"}}, md...)
		}
		snap.Instances = append(snap.Instances, &registry.Shown{Instance: &registry.Instance{
			InstanceKey: registry.InstanceKey{IP: "10.0.0.1" + string(rune('0'+i%10)), Port: 8080, Cluster: registry.DefaultCluster},
			Weight:      1, Healthy: true, Enabled: true, Metadata: md,
		}})
	}
	return nacos.ServiceInfo{Name: service, Group: key.Group, Clusters: new(""), LastRefTime: 1796011661000,
		Hosts: nacos.EncodeHosts(snap, registry.Filter{})}
}

// whole joins the parts of a payload; sending it copies and makes nothing.
func whole(p *nacos.Payload) *nacos.Payload {
	return &nacos.Payload{Type: p.Type, Shared: bytes.Join([][]byte{p.Body, p.Shared, p.Tail}, nil)}
}

// webAnswers answers what clients of 1.x send over HTTP, without looking at
// more than is needed to know which answer it is. Parameters are not parsed,
// and bodies are net/http's to throw away.
func webAnswers() {
	grouped := func(service string, n int) []byte { // as HTTP has it
		info := list(service, n)
		info.Name = info.Group + "@@" + info.Name
		return info.AppendJSON(nil)
	}
	list20, list1 := grouped("list-20-0", 20), grouped("list-1-0", 1)
	beat := nacos.BeatAnswer(nacos.DefaultBeatInterval, nacos.CodeBeatOK, true)
	answer := func(w http.ResponseWriter, contentType string, body []byte) {
		h := w.Header()
		h.Set("Content-Type", contentType)
		h.Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body)
	}
	http.HandleFunc("/nacos/v1/ns/instance/list", func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.RawQuery, "list-1-") {
			answer(w, "application/json", list1)
			return
		}
		answer(w, "application/json", list20)
	})
	http.HandleFunc("/nacos/v1/ns/instance/beat", func(w http.ResponseWriter, r *http.Request) {
		answer(w, "application/json", beat)
	})
	http.HandleFunc("/nacos/v1/ns/instance", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		answer(w, "text/plain;charset=UTF-8", []byte("ok"))
	})
}
