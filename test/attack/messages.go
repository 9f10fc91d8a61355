package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"

	"github.com/starling-registry/starling/pkg/nacos"
)

// requests has a good body of every type that an SDK sends, and the type of
// its answer. They leave nothing behind that lasts.
var requests = map[string]struct {
	answer string
	body   object
}{
	nacos.TypeServerCheckRequest:        {nacos.TypeServerCheckResponse, object{}},
	nacos.TypeHealthCheckRequest:        {nacos.TypeHealthCheckResponse, object{}},
	nacos.TypeInstanceRequest:           {nacos.TypeInstanceResponse, register("types", inst("10.0.0.1", 80).with("instanceId", "").with("serviceName", "types"))},
	nacos.TypePersistentInstanceRequest: {nacos.TypeInstanceResponse, register("persistent", inst("10.0.0.1", 80)).with("type", nacos.OpDeregister)},
	nacos.TypeBatchInstanceRequest:      {nacos.TypeBatchInstanceResponse, register("types", nil).without("instance").with("type", nacos.OpBatchRegister).with("instances", []any{inst("10.0.0.1", 80)})},
	nacos.TypeSubscribeServiceRequest:   {nacos.TypeSubscribeServiceResponse, object{"namespace": "public", "serviceName": "types", "groupName": "DEFAULT_GROUP", "subscribe": true, "clusters": ""}},
	nacos.TypeServiceQueryRequest:       {nacos.TypeQueryServiceResponse, object{"namespace": "public", "serviceName": "types", "groupName": "DEFAULT_GROUP", "cluster": "", "healthyOnly": false, "udpPort": 0}},
	nacos.TypeServiceListRequest:        {nacos.TypeServiceListResponse, object{"namespace": "public", "serviceName": "", "groupName": "DEFAULT_GROUP", "pageNo": 1, "pageSize": 10, "selector": ""}},
	nacos.TypeFuzzyWatchRequest: {nacos.TypeFuzzyWatchResponse, object{"namespace": "public", "groupKeyPattern": "public>>g>>types*", "receivedGroupKeys": []any{"public@@g@@types"},
		"watchType": nacos.WatchStart, "initializing": true}},
	nacos.TypeLockOperationRequest: {nacos.TypeLockOperationResponse, object{}},
}

func requestTypes() []string { return slices.Sorted(maps.Keys(requests)) }

// decoded reports whether the server reads the body of a request at all.
func decoded(typ string) bool {
	switch typ {
	case nacos.TypeServerCheckRequest, nacos.TypeHealthCheckRequest, nacos.TypeLockOperationRequest:
		return false
	}
	return true
}

// typeOnly is the protobuf of a payload without an Any.
func typeOnly(typ string) rawMessage {
	b := append([]byte{3<<3 | 2, byte(len(typ))}, typ...)
	return append([]byte{2<<3 | 2, byte(len(b))}, b...)
}

func healthy(c *client) error {
	if err := must(c.call(nacos.TypeHealthCheckRequest, "{}")); err != nil {
		return fmt.Errorf("afterwards: %w", err)
	}
	return nil
}

func emptyBodies(a *arena) (string, error) {
	c, err := a.connect(manners{})
	if err != nil {
		return "", err
	}
	defer c.close()
	var errs []error
	refused := 0
	for _, typ := range requestTypes() {
		for what, m := range map[string]any{"empty": &nacos.Payload{Type: typ}, "no Any": typeOnly(typ), "blank": &nacos.Payload{Type: typ, Body: []byte(" \n")}} {
			switch ans, err := c.exchange(m); {
			case err != nil:
				errs = append(errs, fmt.Errorf("%s, %s: %v", typ, what, err))
			case decoded(typ) && (ans.typ != nacos.TypeErrorResponse || ans.code() != nacos.CodeBadGateway):
				errs = append(errs, fmt.Errorf("%s, %s: %v", typ, what, ans))
			case !ans.ok():
				refused++
			}
		}
	}
	for what, m := range map[string]any{"nothing": rawMessage(nil), "no metadata": rawMessage{3<<3 | 2, 0}} {
		if ans, err := c.exchange(m); err != nil || ans.code() != nacos.CodeNoHandler {
			errs = append(errs, fmt.Errorf("%s: %v, %v", what, ans, err))
		}
	}
	return fmt.Sprintf("%d refused", refused), errors.Join(append(errs, healthy(c))...)
}

func brokenProtobuf(a *arena) (string, error) {
	c, err := a.connect(manners{})
	if err != nil {
		return "", err
	}
	defer c.close()
	good, err := nacos.Codec{}.Marshal(&nacos.Payload{Type: nacos.TypeServiceQueryRequest, ClientIP: "10.0.0.1", Headers: map[string]string{"a": "b"}, Body: []byte(`{"serviceName":"types","groupName":"g"}`)})
	if err != nil {
		return "", err
	}
	wire := good.Materialize()
	var messages []rawMessage
	for i := range wire {
		messages = append(messages, wire[:i])
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		b := slices.Clone(wire)
		for range 1 + random.IntN(4) {
			b[random.IntN(len(b))] = byte(random.Uint32())
		}
		messages = append(messages, b)
	}
	messages = append(messages,
		rawMessage{0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, // a length of 2^63
		rawMessage{0x13}, rawMessage{0x0b, 0x0b, 0x0b}, // groups that do not end
		rawMessage(strings.Repeat("\x0b", 1<<20)), rawMessage(strings.Repeat("\x12\x00", 1<<20)))
	answered, internal := 0, 0
	var errs []error
	for _, m := range messages {
		switch _, err := c.exchange(m); {
		case err == nil:
			answered++
		case status.Code(err) == codes.Internal:
			internal++
		default:
			errs = append(errs, fmt.Errorf("%x: %v", clip(string(m)), err))
		}
	}
	errs = append(errs, healthy(c))
	// On the stream there is no answer to give: it ends, and the connection
	// with it.
	if err := c.send(rawMessage{0x12, 0xff}); err != nil {
		errs = append(errs, err)
	}
	errs = append(errs, c.gone(5*time.Second))
	return fmt.Sprintf("%d answered, %d Internal; on the stream: %v", answered, internal, status.Code(c.err)), errors.Join(errs...)
}

func brokenJSON(a *arena) (string, error) {
	c, err := a.connect(manners{})
	if err != nil {
		return "", err
	}
	defer c.close()
	var errs []error
	n := 0
	for _, typ := range requestTypes() {
		if !decoded(typ) {
			continue
		}
		good, err := json.Marshal(requests[typ].body)
		if err != nil {
			return "", err
		}
		bodies := [][]byte{[]byte("\xef\xbb\xbf{}"), []byte("{}{}"), []byte("{'a':1}"), []byte("[]"), []byte(`"x"`), []byte("1"), []byte("\x00"), []byte("nul"), []byte("{\"requestId\":\"\x01\"}"), []byte(`{"requestId":"\ud8"}`), []byte("{\"requestId\":\"\xff\"")}
		for i := range good {
			bodies = append(bodies, good[:i])
		}
		for _, b := range bodies {
			n++
			if ans, err := c.call(typ, b); err != nil || ans.typ != nacos.TypeErrorResponse || ans.code() != nacos.CodeBadGateway {
				errs = append(errs, fmt.Errorf("%s %q: %v, %v", typ, clip(string(b)), ans, err))
			}
		}
	}
	return fmt.Sprintf("%d bodies refused with 502", n-len(errs)), errors.Join(append(errs, healthy(c))...)
}

func deepJSON(a *arena) (string, error) {
	c, err := a.connect(manners{})
	if err != nil {
		return "", err
	}
	defer c.close()
	var errs []error
	codes := map[int]int{}
	for _, depth := range []int{100, 9_900, 10_000, 100_000, 1_000_000} {
		for _, deep := range []string{
			strings.Repeat("[", depth) + strings.Repeat("]", depth), strings.Repeat("[", depth),
			strings.Repeat(`{"a":`, depth) + "1" + strings.Repeat("}", depth), strings.Repeat(`{"a":`, depth),
		} {
			for _, body := range []string{deep, `{"x":` + deep + `,"namespace":"public","serviceName":"types","groupName":"g"}`,
				`{"serviceName":"types","groupName":"g","type":"registerInstance","instance":{"ip":"10.0.0.1","port":80,"metadata":` + deep + `}}`,
				`{"serviceName":"types","groupName":"g","type":"registerInstance","instance":{"ip":"10.0.0.1","port":80,"metadata":{"a":` + deep + `}}}`} {
				for _, typ := range []string{nacos.TypeInstanceRequest, nacos.TypeServiceQueryRequest} {
					errs = append(errs, within(time.Second, func() error {
						ans, err := c.call(typ, body)
						if err != nil {
							return err
						}
						codes[ans.code()]++
						if !ans.ok() && ans.code() != nacos.CodeBadGateway && ans.code() != nacos.CodeInvalidParam && !strings.HasSuffix(ans.text("message"), "is blank") {
							return fmt.Errorf("depth %d: %v", depth, ans)
						}
						return nil
					}))
				}
			}
		}
	}
	return fmt.Sprintf("codes %v", codes), errors.Join(append(errs, healthy(c))...)
}

// odd are values that no field expects all of.
var odd = []string{"null", "true", "0", "-1", "1.5", "65536", "1e400", "-1e400", "99999999999999999999", `""`, `" "`, `"x"`, `"1"`, `"NaN"`, `"Infinity"`, `"\u0000"`, `"\ud800"`, "[]", `["x"]`, "[null]", "[[]]", "{}", `{"a":null}`, `{"a":[1]}`, `{"":""}`}

func wrongTypes(a *arena) (string, error) {
	c, err := a.connect(manners{})
	if err != nil {
		return "", err
	}
	defer c.close()
	var errs []error
	codes := map[int]int{}
	try := func(typ, what string, body []byte) {
		ans, err := c.call(typ, body)
		switch {
		case err != nil:
		case ans.typ != requests[typ].answer && ans.typ != nacos.TypeErrorResponse:
			err = fmt.Errorf("answered with %v", ans)
		case strings.Contains(ans.text("message"), "internal error"):
			err = fmt.Errorf("%v", ans)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s with %s: %v", typ, what, err))
			return
		}
		codes[ans.code()]++
	}
	for _, typ := range requestTypes() {
		good := requests[typ].body.with("requestId", "1").with("module", "naming").with("headers", object{})
		for key, value := range good {
			for _, v := range odd {
				body, err := json.Marshal(good.with(key, json.RawMessage(v)))
				if err != nil { // not valid as Go sees it, such as 1e400 never is
					return "", err
				}
				try(typ, key+"="+v, body)
				// The same in the instance, and in the members of a list.
				fields, where := object{}, func(i object) object { return good.with(key, i) }
				if i, ok := value.(object); ok {
					fields = i
				} else if l, ok := value.([]any); ok && len(l) == 1 {
					fields, _ = l[0].(object)
					where = func(i object) object { return good.with(key, []any{i, nil}) }
				}
				for f := range fields {
					body, err := json.Marshal(where(fields.with(f, json.RawMessage(v))))
					if err != nil {
						return "", err
					}
					try(typ, key+"."+f+"="+v, body)
				}
			}
		}
	}
	// A list that all can still read.
	for _, group := range []string{"DEFAULT_GROUP", "x", "1"} {
		try(nacos.TypeServiceListRequest, "afterwards", fmt.Appendf(nil, `{"groupName":%q,"pageNo":1,"pageSize":1000}`, group))
	}
	return fmt.Sprintf("codes %v", codes), errors.Join(append(errs, healthy(c))...)
}

func nullsAndDoubles(a *arena) (string, error) {
	c, err := a.connect(manners{})
	if err != nil {
		return "", err
	}
	defer c.close()
	var errs []error
	n := 0
	for _, typ := range requestTypes() {
		good := requests[typ].body
		all := object{}
		for key := range good {
			all[key] = nil
			for _, body := range []object{good.with(key, nil), good.without(key)} {
				n++
				if ans, err := c.call(typ, body); err != nil || ans.code() == nacos.CodeBadGateway {
					errs = append(errs, fmt.Errorf("%s, %s null or missing: %v, %v", typ, key, ans, err))
				}
			}
			if i, ok := good[key].(object); ok {
				for f := range i {
					for _, body := range []object{good.with(key, i.with(f, nil)), good.with(key, i.without(f))} {
						n++
						if ans, err := c.call(typ, body); err != nil || ans.code() == nacos.CodeBadGateway {
							errs = append(errs, fmt.Errorf("%s, %s.%s null or missing: %v, %v", typ, key, f, ans, err))
						}
					}
				}
			}
		}
		if ans, err := c.call(typ, all); err != nil || ans.code() == nacos.CodeBadGateway {
			errs = append(errs, fmt.Errorf("%s, all null: %v, %v", typ, ans, err))
		}
	}
	// null for the whole body is as good as {}.
	if ans, err := c.call(nacos.TypeInstanceRequest, "null"); err != nil || ans.ok() {
		errs = append(errs, fmt.Errorf("body null: %v, %v", ans, err))
	}
	double := `{"serviceName":"no","serviceName":"double","groupName":"g","type":"registerInstance","instance":{"ip":"10.0.0.2"},"instance":{"ip":"10.0.0.1","port":1,"port":81,"weight":null,"metadata":{"a":"1","a":"2","b":null}}}`
	if err := must(c.call(nacos.TypeInstanceRequest, double)); err != nil {
		errs = append(errs, err)
	}
	ans, err := c.call(nacos.TypeServiceQueryRequest, `{"serviceName":"double","groupName":"g"}`)
	if err != nil || len(ans.hosts()) != 1 {
		errs = append(errs, fmt.Errorf("doubles: %v, %v", ans, err))
	} else if h, _ := ans.hosts()[0].(map[string]any); h["ip"] != "10.0.0.1" || h["port"] != 81.0 || h["weight"] != 1.0 || fmt.Sprint(h["metadata"]) != "map[a:2]" {
		errs = append(errs, fmt.Errorf("doubles: %v", h))
	}
	return fmt.Sprintf("%d requests", n), errors.Join(append(errs, healthy(c))...)
}

func unknownTypes(a *arena) (string, error) {
	c, err := a.connect(manners{})
	if err != nil {
		return "", err
	}
	defer c.close()
	var errs []error
	n := 0
	for _, typ := range []string{"", "X", "x\x00", "\xff\xfe", "instanceRequest", "InstanceRequest ", "com.alibaba.nacos.api.naming.remote.request.InstanceRequest", strings.Repeat("A", 1<<20),
		"ConfigQueryRequest", "ConfigPublishRequest", "QueryMcpServerRequest", "PushAckRequest",
		"ErrorResponse", "InstanceResponse", "ConnectionSetupRequest", "DistroDataRequest", "MemberReportRequest", "ServerLoaderInfoRequest", "ServerReloadRequest", "ConfigChangeClusterSyncRequest"} {
		n++
		if ans, err := c.call(typ, "{}"); err != nil || ans.typ != nacos.TypeErrorResponse || ans.code() != nacos.CodeNoHandler && ans.code() != nacos.CodeBadGateway {
			errs = append(errs, fmt.Errorf("type %q: %v, %v", clip(typ), ans, err))
		}
		if err := c.send(&nacos.Payload{Type: typ, Body: []byte("{}")}); err != nil && typ != "ConnectionSetupRequest" {
			errs = append(errs, fmt.Errorf("type %q on the stream: %v", clip(typ), err))
		}
	}
	for _, module := range []string{"", "config", "ai", "lock", "internal", strings.Repeat("m", 1<<16)} {
		n++
		if err := must(c.call(nacos.TypeServiceQueryRequest, object{"module": module, "serviceName": "types", "groupName": "g"})); err != nil {
			errs = append(errs, fmt.Errorf("module %q: %v", clip(module), err))
		}
	}
	for _, path := range []string{"/", "/Request", "/Request/", "/Request/other", "/BiRequestStream/request", "/com.alibaba.Request/request", "/Request/request/", "//", "/grpc.health.v1.Health/Check"} {
		n++
		ctx, cancel := timeout()
		err := c.cc.Invoke(ctx, path, &nacos.Payload{Type: "X"}, new(nacos.Payload))
		cancel()
		if code := status.Code(err); code != codes.Unimplemented && code != codes.Internal {
			errs = append(errs, fmt.Errorf("method %s: %v", path, err))
		}
	}
	// The unary method used as a stream, and the other way round.
	for path, body := range map[string]int{"/Request/request": 3, "/BiRequestStream/requestBiStream": 0} {
		ctx, cancel := timeout()
		s, err := c.cc.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, path)
		if err == nil {
			for range body {
				_ = s.SendMsg(&nacos.Payload{Type: nacos.TypeHealthCheckRequest, Body: []byte("{}")})
			}
			_ = s.CloseSend()
			for err == nil {
				err = s.RecvMsg(new(nacos.Payload))
			}
		}
		if ctx.Err() != nil {
			errs = append(errs, fmt.Errorf("%s used otherwise: %v", path, err))
		}
		cancel()
	}
	return fmt.Sprintf("%d refused", n-len(errs)), errors.Join(append(errs, healthy(c))...)
}

func serversMessages(a *arena) (string, error) {
	c, err := a.connect(manners{})
	if err != nil {
		return "", err
	}
	defer c.close()
	var errs []error
	types := []string{nacos.TypeSetupAckRequest, nacos.TypeClientDetectionRequest, nacos.TypeConnectResetRequest, nacos.TypeNotifySubscriberRequest, nacos.TypeFuzzyWatchSyncRequest, nacos.TypeFuzzyWatchChangeNotifyRequest,
		nacos.TypeInstanceRequest, nacos.TypeSubscribeServiceRequest, nacos.TypeHealthCheckRequest, nacos.TypeServerCheckRequest} // the last four belong into unary calls
	for i, typ := range types {
		for _, body := range []string{"", "{}", "null", `{"requestId":"1","serviceInfo":{"hosts":null}}`, "{"} {
			if i < 6 {
				if ans, err := c.call(typ, body); err != nil || ans.code() != nacos.CodeNoHandler {
					errs = append(errs, fmt.Errorf("%s: %v, %v", typ, ans, err))
				}
			}
			if err := c.send(&nacos.Payload{Type: typ, Body: []byte(body)}); err != nil {
				errs = append(errs, fmt.Errorf("%s on the stream: %v", typ, err))
			}
		}
	}
	return fmt.Sprintf("%d types ignored", len(types)), errors.Join(append(errs, healthy(c))...)
}

func bigBodies(a *arena) (string, error) {
	c, err := a.connect(manners{})
	if err != nil {
		return "", err
	}
	defer c.close()
	var errs []error
	body := func(size int) string {
		head, tail := `{"serviceName":"types","groupName":"g","padding":"`, `"}`
		return head + strings.Repeat("x", size-len(head)-len(tail)) + tail
	}
	const limit = 10 << 20
	if err := must(c.call(nacos.TypeServiceQueryRequest, body(limit-100))); err != nil {
		errs = append(errs, fmt.Errorf("10 MiB: %w", err))
	}
	for _, size := range []int{limit + 1, 11 << 20, 64 << 20} {
		if _, err := c.call(nacos.TypeServiceQueryRequest, body(size)); status.Code(err) != codes.ResourceExhausted {
			errs = append(errs, fmt.Errorf("%d bytes: %v", size, err))
		}
		errs = append(errs, healthy(c))
	}
	// On the stream, where it ends the connection.
	if err := c.send(&nacos.Payload{Type: nacos.TypeNotifySubscriberResponse, Body: []byte(body(11 << 20))}); err != nil {
		errs = append(errs, err)
	}
	errs = append(errs, c.gone(5*time.Second))
	return "RESOURCE_EXHAUSTED", errors.Join(errs...)
}

// gzipBombs sends messages of some kilobytes that become 64 MiB.
func gzipBombs(a *arena) (string, error) {
	c, err := a.connect(manners{})
	if err != nil {
		return "", err
	}
	defer c.close()
	if err := must(c.call(nacos.TypeServiceQueryRequest, `{"serviceName":"types","groupName":"g","padding":"`+strings.Repeat("x", 9<<20)+`"}`, grpc.UseCompressor("gzip"))); err != nil {
		return "", fmt.Errorf("9 MiB: %w", err)
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write(message(&nacos.Payload{Type: nacos.TypeServiceQueryRequest, Body: make([]byte, 64<<20)})[5:])
	_ = z.Close()
	bombs := [][]byte{b.Bytes(), b.Bytes()[:b.Len()/2], append(bytes.Clone(b.Bytes()), b.Bytes()...)} // one that does not end, one in two parts
	conns, seen := 3, map[string]int{}
	if a.long {
		conns = 100
	}
	const n = 10 // for each
	for range conns {
		h, err := a.http2()
		if err != nil {
			return "", err
		}
		for i := range n {
			bomb := bombs[i%len(bombs)]
			id := uint32(2*i + 1)
			head := []byte{1, byte(len(bomb) >> 24), byte(len(bomb) >> 16), byte(len(bomb) >> 8), byte(len(bomb))}
			if err = h.request(id, false, "/Request/request", hpack.HeaderField{Name: "grpc-encoding", Value: "gzip"}); err == nil {
				err = h.data(id, append(head, bomb...), true)
			}
			if err != nil {
				break
			}
		}
		for start := time.Now(); h.alive() && h.answers.Load() < n && time.Since(start) < 10*time.Second; time.Sleep(10 * time.Millisecond) {
		}
		h.close()
		for code, k := range h.statuses {
			seen[code] += k
		}
	}
	if got := seen[strconv.Itoa(int(codes.ResourceExhausted))]; got < n*conns {
		err = fmt.Errorf("of %d bombs %d are RESOURCE_EXHAUSTED: %v", n*conns, got, seen)
	}
	return fmt.Sprintf("%d bombs of %d kB, statuses %v", n*conns, b.Len()>>10, seen), errors.Join(err, healthy(c))
}

// halfMessages sends the beginnings of many big messages and never their
// ends. What a connection makes the server hold must be bounded.
func halfMessages(a *arena) (string, error) {
	h, err := a.http2()
	if err != nil {
		return "", err
	}
	defer h.close()
	const size, streams = 10<<20 - 1024, 200
	var sent atomic.Int64
	done := make(chan struct{})
	stop := time.AfterFunc(8*time.Second, func() { h.conn.Close() })
	defer stop.Stop()
	go func() {
		defer close(done)
		for i := range uint32(streams) {
			id := 2*i + 1
			if h.request(id, false, "/Request/request") != nil {
				return
			}
			head := []byte{0, size >> 24, size >> 16 & 255, size >> 8 & 255, size & 255}
			if h.data(id, append(head, make([]byte, size-64<<10)...), false) != nil {
				return
			}
			sent.Add(size - 64<<10)
		}
	}()
	select {
	case <-done:
	case <-h.ended:
	}
	return fmt.Sprintf("%d MiB of half messages taken in; then: %v", sent.Load()>>20, h.why()), nil
}

func strangeAcks(a *arena) (string, error) {
	var victimIDs sync.Map
	victim, err := a.connect(manners{unacked: true, received: func(typ string, body []byte) {
		var id struct{ RequestID string }
		if json.Unmarshal(body, &id) == nil && typ == nacos.TypeNotifySubscriberRequest {
			victimIDs.Store(id.RequestID, true)
		}
	}})
	if err != nil {
		return "", err
	}
	defer victim.close()
	c, err := a.connect(manners{})
	if err != nil {
		return "", err
	}
	defer c.close()
	var errs []error
	errs = append(errs, must(c.subscribe(bystanderService)), must(victim.subscribe(bystanderService)))
	n := 0
	ack := func(typ, body string) {
		n++
		if err := c.send(&nacos.Payload{Type: typ, Body: []byte(body)}); err != nil && len(errs) < 10 {
			errs = append(errs, err)
		}
	}
	types := []string{nacos.TypeNotifySubscriberResponse, nacos.TypeErrorResponse, nacos.TypeClientDetectionResponse, nacos.TypeConnectResetResponse, "NamingFuzzyWatchChangeNotifyResponse", "Response", "XResponse"}
	for _, typ := range types {
		for _, body := range []string{"", "{}", "null", "[]", "{", `{"requestId":null}`, `{"requestId":1}`, `{"requestId":""}`, `{"requestId":"-1"}`, `{"requestId":"0"}`, `{"requestId":"18446744073709551616"}`,
			`{"requestId":"x"}`, `{"requestId":"1","resultCode":"200"}`, `{"requestId":"1","resultCode":1e400}`, `{"requestId":"1"}`, `{"requestId":"1","resultCode":500}`} {
			ack(typ, body)
		}
		for id := range 2000 { // the ids of everybody, twice
			body := fmt.Sprintf(`{"requestId":"%d","resultCode":%d}`, id, 200+300*(id%2))
			ack(typ, body)
			ack(typ, body)
		}
	}
	// The victim's pushes are acknowledged by somebody else for as long as it
	// may be silent: that must not help it.
	start := time.Now()
	for victimGone := false; !victimGone && time.Since(start) < 8*time.Second; {
		victimIDs.Range(func(id, _ any) bool {
			ack(nacos.TypeNotifySubscriberResponse, fmt.Sprintf(`{"requestId":"%s","resultCode":200}`, id))
			return true
		})
		select {
		case <-victim.ended:
			victimGone = true
		case <-time.After(50 * time.Millisecond):
		}
	}
	errs = append(errs, victim.gone(0), healthy(c))
	return fmt.Sprintf("%d acks; who did not answer was closed after %.1f s although another did", n, time.Since(start).Seconds()), errors.Join(errs...)
}

// echoes sends long texts where they are repeated in answers or kept for as
// long as the connection lives: neither may grow without bound.
func echoes(a *arena) (string, error) {
	long := strings.Repeat("x", 9<<20)
	clusters := strings.Repeat("cluster,", 9<<17)
	c, err := a.connect(manners{})
	if err != nil {
		return "", err
	}
	defer c.close()
	var errs []error
	worst := 0
	try := func(what, typ string, body any) {
		ans, err := c.call(typ, body)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %v", what, err))
			return
		}
		worst = max(worst, len(ans.raw))
		if len(ans.raw) > 64<<10 {
			errs = append(errs, fmt.Errorf("%s: an answer of %d bytes", what, len(ans.raw)))
		}
	}
	for _, typ := range requestTypes() {
		try("requestId of "+typ, typ, requests[typ].body.with("requestId", long))
	}
	try("operation", nacos.TypeInstanceRequest, register("types", inst("10.0.0.1", 80)).with("type", long))
	try("operation of a batch", nacos.TypeBatchInstanceRequest, register("types", nil).with("type", long))
	try("watchType", nacos.TypeFuzzyWatchRequest, object{"watchType": long})
	try("instanceId", nacos.TypeInstanceRequest, register("types", inst("10.0.0.1", 80).with("instanceId", long)))
	try("instance.serviceName", nacos.TypeInstanceRequest, register("types", inst("10.0.0.1", 80).with("serviceName", long)))
	try("query with clusters", nacos.TypeServiceQueryRequest, object{"serviceName": "types", "groupName": "DEFAULT_GROUP", "cluster": clusters})
	try("service", nacos.TypeServiceQueryRequest, object{"serviceName": long, "groupName": "g"})
	try("group", nacos.TypeServiceQueryRequest, object{"serviceName": "x", "groupName": long})
	try("namespace", nacos.TypeServiceQueryRequest, object{"serviceName": "x", "groupName": "g", "namespace": long})
	try("blank names", nacos.TypeServiceQueryRequest, object{"serviceName": strings.Repeat(" ", 9<<20), "groupName": "g"})
	try("blank group", nacos.TypeServiceQueryRequest, object{"serviceName": "x", "groupName": strings.Repeat(" ", 9<<20)})
	try("blank clusters", nacos.TypeSubscribeServiceRequest, object{"serviceName": "types", "groupName": "g", "subscribe": true, "clusters": strings.Repeat(" ", 9<<20)})
	// Kept: 12 of each would be 108 MiB if they were.
	before, err := a.srv.vitals(true)
	if err != nil {
		return "", err
	}
	for i := range 12 {
		try("subscription with clusters", nacos.TypeSubscribeServiceRequest, object{"serviceName": fmt.Sprint("types", i), "groupName": "g", "subscribe": true, "clusters": clusters})
		try("pattern", nacos.TypeFuzzyWatchRequest, object{"watchType": nacos.WatchStart, "groupKeyPattern": strings.Repeat(" ", 9<<20+i) + ">>g>>x*"})
		try("pattern", nacos.TypeFuzzyWatchRequest, object{"watchType": nacos.WatchStart, "groupKeyPattern": fmt.Sprintf("public>>g>>%d%s", i%3, long)})
	}
	known := make([]string, 0, 500_000)
	for i := range cap(known) {
		known = append(known, fmt.Sprintf("p@@g@@%x", i))
	}
	for i := range 3 {
		try("known services", nacos.TypeFuzzyWatchRequest, object{"watchType": nacos.WatchStart, "groupKeyPattern": fmt.Sprintf("public>>g>>k%d*", i), "receivedGroupKeys": known})
	}
	var held []*client
	defer func() {
		for _, c := range held {
			c.close()
		}
	}()
	for range 12 {
		d, err := a.connect(manners{noSetup: true})
		if err != nil {
			return "", err
		}
		held = append(held, d)
		if err := d.setup(fmt.Sprintf(`{"clientVersion":"%[1]s","labels":{"module":"naming"}}`, long)); err != nil {
			errs = append(errs, fmt.Errorf("long clientVersion: %w", err))
		}
	}
	after, err := a.srv.vitals(true)
	if err != nil {
		return "", err
	}
	if grown := (after.heap - before.heap) >> 20; grown > 32 {
		errs = append(errs, fmt.Errorf("the server keeps %d MiB of it", grown))
	}
	return fmt.Sprintf("answers up to %d bytes, %d MiB kept", worst, (after.heap-before.heap)>>20), errors.Join(append(errs, healthy(c))...)
}
