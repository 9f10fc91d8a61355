package grpcapi

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/push"
	"github.com/starling-registry/starling/pkg/registry"
)

// newUnserved makes a server without a listener, for requests that come from
// nowhere. Its engine does not push.
func newUnserved(tb testing.TB) *Server {
	var engine *push.Engine
	ropts := registry.DefaultOptions()
	ropts.Changed = func(k registry.ServiceKey) { engine.Mark(k) }
	ropts.Presence = func(k registry.ServiceKey) { engine.MarkPresence(k) }
	reg := registry.New(ropts)
	popts := push.DefaultOptions()
	popts.Source, popts.Logger, popts.Metrics = reg, zap.NewNop(), prometheus.NewRegistry()
	engine = push.New(popts)
	opts := DefaultOptions()
	opts.Registry, opts.Push, opts.Logger, opts.Metrics = reg, engine, zap.NewNop(), prometheus.NewRegistry()
	s := New(opts)
	tb.Cleanup(func() { s.Stop(context.Background()) })
	return s
}

func (s *Server) tag() context.Context {
	return connTagger{s}.TagConn(context.Background(), &stats.ConnTagInfo{RemoteAddr: &net.TCPAddr{IP: net.IPv4(1, 1, 1, 1), Port: 1}})
}

// FuzzRequest: every message gets an answer that SDKs can take, and no handler
// panics.
func FuzzRequest(f *testing.F) {
	const order = `"namespace":"public","serviceName":"order","groupName":"g","requestId":"1"`
	for _, r := range [][2]string{
		{nacos.TypeInstanceRequest, `{` + order + `,"type":"registerInstance","instance":{"ip":"10.0.0.1","port":80,"weight":1,"metadata":{"a":"b","preserved.heart.beat.interval":"1"},"instanceId":"x"}}`},
		{nacos.TypeInstanceRequest, `{` + order + `,"type":"deregisterInstance","instance":null}`},
		{nacos.TypeBatchInstanceRequest, `{` + order + `,"type":"batchRegisterInstance","instances":[{"ip":"10.0.0.1"},{"ip":"10.0.0.2","clusterName":"a_b"}]}`},
		{nacos.TypeSubscribeServiceRequest, `{` + order + `,"subscribe":true,"clusters":"a,b"}`},
		{nacos.TypeServiceQueryRequest, `{` + order + `,"cluster":"","healthyOnly":true,"udpPort":1}`},
		{nacos.TypeServiceListRequest, `{` + order + `,"pageNo":9223372036854775807,"pageSize":9223372036854775807}`},
		{nacos.TypeFuzzyWatchRequest, `{"groupKeyPattern":"public>>g>>*","receivedGroupKeys":["public@@g@@x",""],"watchType":"WATCH","initializing":true}`},
		{nacos.TypeFuzzyWatchRequest, `{"groupKeyPattern":"public>>g>>*","watchType":"CANCEL_WATCH"}`},
		{nacos.TypeLockOperationRequest, `{}`}, {"ConfigQueryRequest", ``}, {"", "null"},
	} {
		f.Add(r[0], []byte(r[1]))
	}
	s := newUnserved(f)
	f.Fuzz(func(t *testing.T, typ string, body []byte) {
		ctx := s.tag()
		c := connOf(ctx)
		c.setup(fakeStream{}, &nacos.ConnectionSetupRequest{}, "")
		defer connTagger{s}.HandleConn(ctx, &stats.ConnEnd{})
		for range 2 {
			p := s.request(ctx, &nacos.Payload{Type: typ, Body: body})
			b := append(append(append([]byte{}, p.Body...), p.Shared...), p.Tail...)
			var answer struct {
				ResultCode, ErrorCode *int
				Success               *bool
				Message               string
			}
			switch err := json.Unmarshal(b, &answer); {
			case err != nil || answer.ResultCode == nil || answer.ErrorCode == nil || answer.Success == nil:
				t.Fatalf("%q %q is answered with %s: %v", typ, body, b, err)
			case (*answer.ResultCode == nacos.ResultOK) != *answer.Success, strings.HasPrefix(answer.Message, "internal error"):
				t.Fatalf("%q %q is answered with %s", typ, body, b)
			}
			noNulls(t, &nacos.Payload{Type: p.Type, Body: b})
		}
	})
}

// A recording is a stream that has messages to receive.
type recording struct {
	grpc.ServerStream
	ctx      context.Context
	messages []*nacos.Payload
}

func (r *recording) Context() context.Context     { return r.ctx }
func (r *recording) SendHeader(metadata.MD) error { return nil }
func (r *recording) SendMsg(any) error            { return nil }

func (r *recording) RecvMsg(m any) error {
	if len(r.messages) == 0 {
		return io.EOF
	}
	*m.(*nacos.Payload) = *r.messages[0]
	r.messages = r.messages[1:]
	return nil
}

// FuzzStream: no sequence of messages on a stream makes it panic, and however
// it ends nothing of it stays.
func FuzzStream(f *testing.F) {
	f.Add(nacos.TypeConnectionSetupRequest, []byte(`{"clientVersion":"x","labels":{"module":"naming"},"abilityTable":{}}`), nacos.TypeNotifySubscriberResponse, []byte(`{"requestId":"1","resultCode":200}`))
	f.Add(nacos.TypeConnectionSetupRequest, []byte(`{}`), nacos.TypeConnectionSetupRequest, []byte(`{}`))
	f.Add(nacos.TypeErrorResponse, []byte(`{"requestId":null}`), "Response", []byte(`{`))
	s := newUnserved(f)
	f.Fuzz(func(t *testing.T, typ1 string, body1 []byte, typ2 string, body2 []byte) {
		ctx := s.tag()
		err := s.stream(&recording{ctx: ctx, messages: []*nacos.Payload{{Type: typ1, Body: body1}, {Type: typ2, Body: body2}, {Type: typ1, Body: body1}}})
		if err == nil || strings.Contains(err.Error(), "internal error") {
			t.Fatalf("%q %q, %q %q: %v", typ1, body1, typ2, body2, err)
		}
		if n := s.Connections(); n != 0 {
			t.Fatalf("%d connections after the stream's end", n)
		}
		connTagger{s}.HandleConn(ctx, &stats.ConnEnd{})
	})
}
