package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"

	"github.com/starling-registry/starling/pkg/nacos"
)

// A client is an SDK that does only what it is told: no retries, no redo.
type client struct {
	cc    *grpc.ClientConn
	sock  *socket
	id    string
	how   manners
	acks  atomic.Int64
	ended chan struct{} // closed when the stream has ended
	err   error         // why

	mu     sync.Mutex // sending on the stream
	stream grpc.ClientStream
}

// Manners are what is unusual about a client.
type manners struct {
	unacked  bool                          // does not acknowledge pushes, nor answer detections
	unread   bool                          // does not read its stream
	noSetup  bool                          // connects and no more
	received func(typ string, body []byte) // is told what the server sends
	dial     func(addr string) (net.Conn, error)
}

// A socket can be frozen: from then on nothing is read or written any more,
// and the other side is not told.
type socket struct {
	net.Conn
	once   sync.Once
	frozen chan struct{}
	closed chan struct{}
	shut   sync.Once
}

func (s *socket) freeze() { s.once.Do(func() { close(s.frozen) }) }

func (s *socket) Read(b []byte) (int, error) {
	select {
	case <-s.frozen:
		<-s.closed
		return 0, net.ErrClosed
	default:
	}
	n, err := s.Conn.Read(b)
	select {
	case <-s.frozen:
		<-s.closed
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

func (s *socket) Write(b []byte) (int, error) {
	select {
	case <-s.frozen:
		return len(b), nil // as into a cable that is cut
	default:
		return s.Conn.Write(b)
	}
}

func (s *socket) Close() error {
	s.shut.Do(func() { close(s.closed) })
	return s.Conn.Close()
}

// A rawMessage goes out as it is, in place of a payload.
type rawMessage []byte

type codec struct{ nacos.Codec }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	if b, ok := v.(rawMessage); ok {
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	return nacos.Codec{}.Marshal(v)
}

const callTimeout = 10 * time.Second

// connect dials and sets a client up.
func (a *arena) connect(how manners) (*client, error) { return connect(a.srv.grpc(), how) }

func connect(addr string, how manners) (*client, error) {
	c := &client{how: how, ended: make(chan struct{})}
	dialed := false
	var err error
	c.cc, err = grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{}), grpc.MaxCallRecvMsgSize(128<<20), grpc.MaxCallSendMsgSize(128<<20)),
		grpc.WithIdleTimeout(0), grpc.WithDisableRetry(), grpc.WithNoProxy(),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			if dialed {
				return nil, errors.New("a client connects once")
			}
			dialed = true
			dial := how.dial
			if dial == nil {
				dial = func(addr string) (net.Conn, error) { return net.DialTimeout("tcp", addr, callTimeout) }
			}
			conn, err := dial(addr)
			if err != nil {
				return nil, err
			}
			c.sock = &socket{Conn: conn, frozen: make(chan struct{}), closed: make(chan struct{})}
			return c.sock, nil
		}))
	if err != nil {
		return nil, err
	}
	check, err := c.call(nacos.TypeServerCheckRequest, `{"module":"internal"}`)
	if err == nil && check.text("connectionId") == "" {
		err = fmt.Errorf("server check: %v", check)
	}
	if err != nil {
		c.close()
		return nil, err
	}
	c.id = check.text("connectionId")
	if how.noSetup {
		return c, nil
	}
	if err := c.setup(`{"clientVersion":"attack","labels":{"module":"naming","source":"sdk"},"abilityTable":{}}`); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// open opens a stream and starts to read it.
func (c *client) open() error {
	stream, err := c.newStream()
	if err != nil {
		return err
	}
	c.stream = stream
	return nil
}

func (c *client) newStream() (grpc.ClientStream, error) {
	return c.cc.NewStream(context.Background(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/"+nacos.BiStreamService+"/requestBiStream")
}

// setup registers the connection and waits until it is.
func (c *client) setup(body string) error {
	if err := c.open(); err != nil {
		return err
	}
	if err := c.send(&nacos.Payload{Type: nacos.TypeConnectionSetupRequest, Body: []byte(body)}); err != nil {
		return err
	}
	if !c.how.unread {
		go c.read()
	}
	if a, err := c.call(nacos.TypeHealthCheckRequest, "{}"); err != nil || !a.ok() {
		return fmt.Errorf("setup: %v, %v", a, err)
	}
	return nil
}

func (c *client) read() {
	defer close(c.ended)
	for {
		p := new(nacos.Payload)
		if c.err = c.stream.RecvMsg(p); c.err != nil {
			return
		}
		if c.how.received != nil {
			c.how.received(p.Type, p.Body)
		}
		answer := map[string]string{
			nacos.TypeNotifySubscriberRequest: nacos.TypeNotifySubscriberResponse, nacos.TypeClientDetectionRequest: nacos.TypeClientDetectionResponse,
			nacos.TypeFuzzyWatchSyncRequest: "NamingFuzzyWatchChangeNotifyResponse", nacos.TypeFuzzyWatchChangeNotifyRequest: "NamingFuzzyWatchChangeNotifyResponse",
		}[p.Type]
		if answer == "" || c.how.unacked {
			continue
		}
		var id struct{ RequestID string }
		if json.Unmarshal(p.Body, &id) == nil {
			_ = c.ack(answer, id.RequestID)
		}
	}
}

func (c *client) ack(typ, id string) error {
	c.acks.Add(1)
	return c.send(&nacos.Payload{Type: typ, Body: fmt.Appendf(nil, `{"requestId":%q,"resultCode":200,"errorCode":0,"success":true}`, id)})
}

func (c *client) send(m any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stream.SendMsg(m)
}

// gone waits until the server has ended the stream.
func (c *client) gone(within time.Duration) error {
	start := time.Now()
	select {
	case <-c.ended:
		return nil
	default:
	}
	select {
	case <-c.ended:
		return nil
	case <-time.After(within):
		return fmt.Errorf("the connection is still there after %.1f s", time.Since(start).Seconds())
	}
}

func (c *client) close() { c.cc.Close() }

// An answer to a unary request.
type answer struct {
	typ  string
	raw  []byte
	body map[string]any
}

func (a *answer) String() string {
	if a == nil {
		return "no answer"
	}
	return a.typ + " " + clip(string(a.raw))
}

func (a *answer) text(key string) string { s, _ := a.body[key].(string); return s }
func (a *answer) ok() bool               { return a != nil && a.body["success"] == true }
func (a *answer) code() int              { n, _ := a.body["errorCode"].(float64); return int(n) }

// hosts of the serviceInfo in it.
func (a *answer) hosts() []any {
	info, _ := a.body["serviceInfo"].(map[string]any)
	hosts, _ := info["hosts"].([]any)
	return hosts
}

// call makes a unary request. body is JSON as text, or something to marshal.
// An answer that an SDK could not take is an error.
func (c *client) call(typ string, body any, opts ...grpc.CallOption) (*answer, error) {
	var b []byte
	switch body := body.(type) {
	case string:
		b = []byte(body)
	case []byte:
		b = body
	default:
		var err error
		if b, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	return c.exchange(&nacos.Payload{Type: typ, Body: b}, opts...)
}

func (c *client) exchange(m any, opts ...grpc.CallOption) (*answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	p := new(nacos.Payload)
	if err := c.cc.Invoke(ctx, "/"+nacos.RequestService+"/request", m, p, opts...); err != nil {
		return nil, err
	}
	a := &answer{typ: p.Type, raw: p.Body}
	return a, a.check()
}

// check sees whether every SDK can take an answer: JSON without null, with a
// result that is the same in all three places (cases C37).
func (a *answer) check() error {
	if err := json.Unmarshal(a.raw, &a.body); err != nil {
		return fmt.Errorf("answer is no JSON object: %v: %v", err, a)
	}
	if err := noNull(a.body); err != nil {
		return fmt.Errorf("%v in %v", err, a)
	}
	result, ok1 := a.body["resultCode"].(float64)
	code, ok2 := a.body["errorCode"].(float64)
	success, ok3 := a.body["success"].(bool)
	failed := result != 200
	switch {
	case !ok1 || !ok2 || !ok3:
		return fmt.Errorf("a result is missing in %v", a)
	case failed == success, !failed && code != 0, failed && code == 0 && a.typ != nacos.TypeLockOperationResponse:
		return fmt.Errorf("results contradict each other in %v", a)
	case !strings.HasSuffix(a.typ, "Response"):
		return fmt.Errorf("no response: %v", a)
	}
	return nil
}

func noNull(v any) error {
	switch v := v.(type) {
	case nil:
		return errors.New("null")
	case []any:
		for _, e := range v {
			if err := noNull(e); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if err := noNull(v[k]); err != nil {
				return fmt.Errorf("%v at %s", err, k)
			}
		}
	}
	return nil
}

// An object is JSON in the making.
type object map[string]any

func (o object) with(key string, value any) object {
	o = maps.Clone(o)
	o[key] = value
	return o
}

func (o object) without(key string) object {
	o = maps.Clone(o)
	delete(o, key)
	return o
}

func inst(ip string, port int) object {
	return object{"ip": ip, "port": port, "weight": 1, "healthy": true, "enabled": true, "ephemeral": true, "clusterName": "DEFAULT", "metadata": object{}}
}

func register(service string, instance any) object {
	return object{"namespace": "public", "serviceName": service, "groupName": "DEFAULT_GROUP", "type": nacos.OpRegister, "instance": instance}
}

func (c *client) register(service string, instance any) (*answer, error) {
	return c.call(nacos.TypeInstanceRequest, register(service, instance))
}

func (c *client) deregister(service string, instance any) (*answer, error) {
	return c.call(nacos.TypeInstanceRequest, register(service, instance).with("type", nacos.OpDeregister))
}

func (c *client) subscribe(service string) (*answer, error) {
	return c.call(nacos.TypeSubscribeServiceRequest, object{"namespace": "public", "serviceName": service, "groupName": "DEFAULT_GROUP", "subscribe": true})
}

func (c *client) query(service string) (*answer, error) {
	return c.call(nacos.TypeServiceQueryRequest, object{"namespace": "public", "serviceName": service, "groupName": "DEFAULT_GROUP"})
}

// batch publishes a list of instances that is JSON already.
func (c *client) batch(service string, instances []byte) (*answer, error) {
	return c.call(nacos.TypeBatchInstanceRequest, fmt.Sprintf(`{"namespace":"public","serviceName":%q,"groupName":"DEFAULT_GROUP","type":"batchRegisterInstance","instances":%s}`, service, instances))
}

// many makes a list of n instances.
func many(n int, extra string) []byte {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, `,{"ip":"10.%d.%d.%d","port":80%s}`, i>>16, i>>8&255, i&255, extra)
	}
	return append(append([]byte{'['}, bytes.TrimPrefix(b.Bytes(), []byte{','})...), ']')
}

// must turns an answer that is no success into an error.
func must(a *answer, err error) error {
	if err == nil && !a.ok() {
		err = fmt.Errorf("not accepted: %v", a)
	}
	return err
}
