package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/starling-registry/starling/pkg/nacos"
)

const preface = http2.ClientPreface

// A rawHTTP2 is an HTTP/2 connection whose frames are written one by one, also
// those that no library would write.
type rawHTTP2 struct {
	conn  net.Conn
	fr    *http2.Framer // to write with; its reader has one of its own
	enc   *hpack.Encoder
	block bytes.Buffer

	resets, answers atomic.Int64 // RST_STREAM and ends of streams received
	settings, pings atomic.Int64 // acknowledgements received
	goAway          atomic.Int64 // its code + 1
	ended           chan struct{}
	err             error // why; set when ended is closed

	mu       sync.Mutex
	credit   *sync.Cond
	window   int64
	streams  map[uint32]int64
	statuses map[string]int // grpc-status of the answers
}

// http2 connects and exchanges settings.
func (a *arena) http2() (*rawHTTP2, error) {
	c, err := net.DialTimeout("tcp", a.srv.grpc(), callTimeout)
	if err != nil {
		return nil, err
	}
	h := &rawHTTP2{conn: c, fr: http2.NewFramer(c, nil), ended: make(chan struct{}), window: 65535, streams: map[uint32]int64{}, statuses: map[string]int{}}
	h.fr.AllowIllegalWrites = true
	h.enc = hpack.NewEncoder(&h.block)
	h.credit = sync.NewCond(&h.mu)
	if _, err := io.WriteString(c, preface); err != nil {
		return nil, err
	}
	if err := h.fr.WriteSettings(); err != nil {
		return nil, err
	}
	go h.read(http2.NewFramer(c, c)) // a frame is one write, so the two do not mix
	return h, nil
}

func (h *rawHTTP2) read(fr *http2.Framer) {
	defer func() {
		h.mu.Lock()
		close(h.ended)
		h.credit.Broadcast()
		h.mu.Unlock()
	}()
	fr.SetMaxReadFrameSize(1 << 24)
	fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	for {
		f, err := fr.ReadFrame()
		if err != nil {
			h.err = err
			return
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if f.IsAck() {
				h.settings.Add(1)
			} else {
				_ = fr.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if f.IsAck() {
				h.pings.Add(1)
			} else {
				_ = fr.WritePing(true, f.Data)
			}
		case *http2.RSTStreamFrame:
			h.resets.Add(1)
		case *http2.GoAwayFrame:
			h.goAway.Store(int64(f.ErrCode) + 1)
		case *http2.WindowUpdateFrame:
			h.mu.Lock()
			if f.StreamID == 0 {
				h.window += int64(f.Increment)
			} else {
				h.streams[f.StreamID] += int64(f.Increment)
			}
			h.credit.Broadcast()
			h.mu.Unlock()
		case *http2.MetaHeadersFrame:
			if !f.StreamEnded() {
				continue
			}
			for _, field := range f.RegularFields() {
				if field.Name == "grpc-status" {
					h.mu.Lock()
					h.statuses[field.Value]++
					h.mu.Unlock()
				}
			}
			h.answers.Add(1)
		case *http2.DataFrame:
			if f.StreamEnded() {
				h.answers.Add(1)
			}
		}
	}
}

func (h *rawHTTP2) close() {
	h.conn.Close()
	<-h.ended
}

func (h *rawHTTP2) alive() bool {
	select {
	case <-h.ended:
		return false
	default:
		return true
	}
}

// why says how it ended, or that it has not.
func (h *rawHTTP2) why() string {
	s := "open"
	if !h.alive() {
		s = "closed"
	}
	if code := h.goAway.Load(); code > 0 {
		s += " with GOAWAY " + http2.ErrCode(code-1).String()
	}
	return s
}

// gone waits for the server to close.
func (h *rawHTTP2) gone(limit time.Duration) error {
	select {
	case <-h.ended:
		return nil
	case <-time.After(limit):
		return fmt.Errorf("still open after %v", limit)
	}
}

func (h *rawHTTP2) header(path string, more ...hpack.HeaderField) []byte {
	h.block.Reset()
	for _, f := range append([]hpack.HeaderField{{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: path}, {Name: ":authority", Value: "x"},
		{Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"}}, more...) {
		_ = h.enc.WriteField(f)
	}
	return bytes.Clone(h.block.Bytes())
}

// request writes the headers of a request.
func (h *rawHTTP2) request(id uint32, end bool, path string, more ...hpack.HeaderField) error {
	h.mu.Lock()
	h.streams[id] = 65535
	h.mu.Unlock()
	return h.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: h.header(path, more...), EndStream: end, EndHeaders: true})
}

// data writes a body as fast as the server gives credit for it.
func (h *rawHTTP2) data(id uint32, b []byte, end bool) error {
	for len(b) > 0 {
		h.mu.Lock()
		for h.alive() && (h.window <= 0 || h.streams[id] <= 0) {
			h.credit.Wait()
		}
		n := min(int64(len(b)), 16384, h.window, h.streams[id])
		h.window -= n
		h.streams[id] -= n
		h.mu.Unlock()
		if !h.alive() {
			return net.ErrClosed
		}
		if err := h.fr.WriteData(id, end && int(n) == len(b), b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// message is a payload with the length that gRPC puts before it.
func message(p *nacos.Payload) []byte {
	b, err := nacos.Codec{}.Marshal(p)
	if err != nil {
		panic(err)
	}
	m := b.Materialize()
	return append([]byte{0, byte(len(m) >> 24), byte(len(m) >> 16), byte(len(m) >> 8), byte(len(m))}, m...)
}

func rapidReset(a *arena) (string, error) {
	n := 20_000
	if a.long {
		n = 500_000
	}
	body := message(&nacos.Payload{Type: nacos.TypeServiceQueryRequest, Body: []byte(`{"serviceName":"bystander","groupName":"DEFAULT_GROUP"}`)})
	var said []string
	for what, withBody := range map[string]bool{"headers": false, "requests": true} {
		h, err := a.http2()
		if err != nil {
			return "", err
		}
		start := time.Now()
		sent := 0
		for i := range uint32(n) {
			id := 2*i + 1
			err := h.request(id, false, "/Request/request")
			if err == nil && withBody {
				err = h.fr.WriteData(id, true, body)
			}
			if err == nil {
				err = h.fr.WriteRSTStream(id, http2.ErrCodeCancel)
			}
			if err != nil || !h.alive() {
				break
			}
			sent++
			if time.Since(start) > 5*time.Second && !a.long {
				break
			}
		}
		said = append(said, fmt.Sprintf("%d %s reset in %.1f s, %s", sent, what, time.Since(start).Seconds(), h.why()))
		h.close()
	}
	return strings.Join(said, "; "), nil
}

func pings(a *arena) (string, error) {
	h, err := a.http2()
	if err != nil {
		return "", err
	}
	defer h.close()
	n := 0
	for ; n < 1_000_000 && h.alive() && h.fr.WritePing(false, [8]byte{1}) == nil; n++ {
	}
	err = h.gone(3 * time.Second)
	if code := h.goAway.Load(); err == nil && code != 0 && code-1 != int64(http2.ErrCodeEnhanceYourCalm) {
		err = fmt.Errorf("%s", h.why())
	}
	// Answers to pings that nobody sent.
	g, err2 := a.http2()
	if err2 != nil {
		return "", err2
	}
	defer g.close()
	for range 100_000 {
		if g.fr.WritePing(true, [8]byte{2}) != nil {
			break
		}
	}
	return fmt.Sprintf("%s after %d pings (%d answered)", h.why(), n, h.pings.Load()), err
}

func settingsFlood(a *arena) (string, error) {
	n := 50_000
	if a.long {
		n = 1_000_000
	}
	h, err := a.http2()
	if err != nil {
		return "", err
	}
	defer h.close()
	start := time.Now()
	for i := range n {
		if h.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(i)}, http2.Setting{ID: http2.SettingHeaderTableSize, Val: uint32(i) << 12}) != nil {
			break
		}
	}
	time.Sleep(200 * time.Millisecond)
	answered := h.settings.Load()
	// The same without reading the answers: they must not pile up.
	c, err := net.DialTimeout("tcp", a.srv.grpc(), callTimeout)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_, _ = io.WriteString(c, preface)
	var b bytes.Buffer
	fr := http2.NewFramer(&b, nil)
	for range 1000 {
		_ = fr.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 16384})
	}
	_ = c.SetWriteDeadline(time.Now().Add(3 * time.Second))
	written := 0
	for range n / 10 {
		if _, err := c.Write(b.Bytes()); err != nil {
			break
		}
		written += 1000
	}
	return fmt.Sprintf("%d answered in %.1f s, %s; unread: %d taken in", answered, time.Since(start).Seconds(), h.why(), written), nil
}

func headers(a *arena) (string, error) {
	var errs []error
	var said []string
	// One block beyond the limit of 64 KiB, in one frame, in continuations,
	// and in continuations that do not end.
	big := strings.Repeat("x", 16<<10)
	for what, n := range map[string]int{"80 KiB": 5, "1 MiB": 64} {
		h, err := a.http2()
		if err != nil {
			return "", err
		}
		var more []hpack.HeaderField
		for i := range n {
			more = append(more, hpack.HeaderField{Name: fmt.Sprint("x-", i), Value: big, Sensitive: true})
		}
		block := h.header("/Request/request", more...)
		for i := 0; len(block) > 0 && err == nil; i++ {
			m := min(len(block), 16384)
			if i == 0 {
				err = h.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:m], EndHeaders: false})
			} else {
				err = h.fr.WriteContinuation(1, m == len(block), block[:m])
			}
			block = block[m:]
		}
		refused := func() bool { return h.resets.Load()+h.answers.Load() > 0 || !h.alive() }
		for start := time.Now(); !refused() && time.Since(start) < 3*time.Second; time.Sleep(10 * time.Millisecond) {
		}
		if !refused() {
			errs = append(errs, fmt.Errorf("%s of headers are accepted", what))
		}
		said = append(said, what+": "+h.why())
		h.close()
	}
	h, err := a.http2()
	if err != nil {
		return "", err
	}
	sent := 0
	err = h.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: h.header("/Request/request")})
	for err == nil && sent < 256<<20 && h.alive() {
		err = h.fr.WriteContinuation(1, false, h.header("/", hpack.HeaderField{Name: "x", Value: big, Sensitive: true}))
		sent += len(big)
	}
	if err := h.gone(3 * time.Second); err != nil {
		errs = append(errs, fmt.Errorf("endless continuations: %w", err))
	}
	said = append(said, fmt.Sprintf("endless: %s after %d KiB", h.why(), sent>>10))
	h.close()
	// Empty continuations cost nothing to send.
	if h, err = a.http2(); err != nil {
		return "", err
	}
	err = h.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: h.header("/Request/request")})
	for n := 0; err == nil && n < 200_000 && h.alive(); n++ {
		err = h.fr.WriteContinuation(1, false, nil)
	}
	said = append(said, "empty: "+h.why())
	h.close()
	// A small block that the table of the compression makes big.
	if h, err = a.http2(); err != nil {
		return "", err
	}
	_ = h.enc.WriteField(hpack.HeaderField{Name: "x-big", Value: strings.Repeat("x", 4000)})
	h.block.Reset()
	var more []hpack.HeaderField
	for range 4000 {
		more = append(more, hpack.HeaderField{Name: "x-big", Value: strings.Repeat("x", 4000)})
	}
	for i := range uint32(50) {
		if h.request(2*i+1, true, "/Request/request", more...) != nil {
			break
		}
	}
	time.Sleep(200 * time.Millisecond)
	said = append(said, fmt.Sprintf("compressed: %d refused, %s", h.resets.Load()+h.answers.Load(), h.why()))
	h.close()
	// Metadata that gRPC has a meaning for.
	if h, err = a.http2(); err != nil {
		return "", err
	}
	body := message(&nacos.Payload{Type: nacos.TypeHealthCheckRequest, Body: []byte("{}")})
	odd := []hpack.HeaderField{{Name: "grpc-timeout", Value: "99999999H"}, {Name: "grpc-timeout", Value: "-1S"}, {Name: "grpc-timeout", Value: "x"}, {Name: "grpc-encoding", Value: "zip"}, {Name: "grpc-encoding", Value: "gzip"},
		{Name: "content-type", Value: "text/html"}, {Name: "x-bin", Value: "%%%"}, {Name: ":path", Value: "/again"}, {Name: "connection", Value: "close"}, {Name: "UPPER", Value: "x"}, {Name: "x", Value: "a\r\nb"}, {Name: ":unknown", Value: "x"}, {Name: "transfer-encoding", Value: "chunked"}}
	for i, f := range odd {
		id := uint32(2*i + 1)
		if h.request(id, false, "/Request/request", f) != nil || h.data(id, body, true) != nil {
			break
		}
	}
	for start := time.Now(); h.alive() && h.resets.Load()+h.answers.Load() < int64(len(odd)) && time.Since(start) < 3*time.Second; time.Sleep(10 * time.Millisecond) {
	}
	if n := h.resets.Load() + h.answers.Load(); h.alive() && n < int64(len(odd)) {
		errs = append(errs, fmt.Errorf("odd metadata: %d of %d answered", n, len(odd)))
	}
	said = append(said, fmt.Sprintf("odd metadata: %d ended, %s", h.resets.Load()+h.answers.Load(), h.why()))
	h.close()
	return strings.Join(said, "; "), errors.Join(errs...)
}

func oddFrames(a *arena) (string, error) {
	var said []string
	var errs []error
	body := message(&nacos.Payload{Type: nacos.TypeHealthCheckRequest, Body: []byte("{}")})
	floods := []struct {
		name  string
		write func(h *rawHTTP2, i int) error
	}{
		{"empty DATA", func(h *rawHTTP2, i int) error {
			if i == 0 {
				return h.request(1, false, "/Request/request")
			}
			return h.fr.WriteData(1, false, nil)
		}},
		{"PRIORITY", func(h *rawHTTP2, i int) error {
			return h.fr.WritePriority(uint32(2*i+1), http2.PriorityParam{StreamDep: uint32(2*i + 3)})
		}},
		{"WINDOW_UPDATE", func(h *rawHTTP2, i int) error { return h.fr.WriteWindowUpdate(0, 1) }},
		{"window beyond 2^31", func(h *rawHTTP2, i int) error { return h.fr.WriteWindowUpdate(0, 1<<31-1) }},
		{"window of unknown streams", func(h *rawHTTP2, i int) error { return h.fr.WriteWindowUpdate(uint32(2*i+1), 1<<20) }},
		{"RST of unknown streams", func(h *rawHTTP2, i int) error { return h.fr.WriteRSTStream(uint32(2*i+1), http2.ErrCodeCancel) }},
		{"DATA of unknown streams", func(h *rawHTTP2, i int) error { return h.fr.WriteData(uint32(2*i+1), true, body) }},
		{"DATA without credit", func(h *rawHTTP2, i int) error {
			if i == 0 {
				return h.request(1, false, "/Request/request")
			}
			return h.fr.WriteData(1, false, make([]byte, 16384))
		}},
		{"unknown frames", func(h *rawHTTP2, i int) error { return h.fr.WriteRawFrame(0x55, 0xff, uint32(i), make([]byte, 100)) }},
		{"PUSH_PROMISE", func(h *rawHTTP2, i int) error {
			return h.fr.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, BlockFragment: h.header("/"), EndHeaders: true})
		}},
		{"even streams", func(h *rawHTTP2, i int) error { return h.request(uint32(2*i+2), true, "/Request/request") }},
		{"one stream again and again", func(h *rawHTTP2, i int) error { return h.request(1, true, "/Request/request") }},
		{"GOAWAY", func(h *rawHTTP2, i int) error { return h.fr.WriteGoAway(1<<31-1, http2.ErrCodeNo, make([]byte, 100)) }},
		{"frames of 16 MiB", func(h *rawHTTP2, i int) error {
			_, err := h.conn.Write([]byte{0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1})
			return err
		}},
		{"settings out of range", func(h *rawHTTP2, i int) error {
			return h.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<32 - 1}, http2.Setting{ID: http2.SettingMaxFrameSize, Val: 0})
		}},
		{"no window for answers", func(h *rawHTTP2, i int) error {
			if i == 0 {
				return h.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			}
			id := uint32(2*i + 1)
			if err := h.request(id, false, "/Request/request"); err != nil {
				return err
			}
			return h.fr.WriteData(id, true, body)
		}},
		{"wrong message lengths", func(h *rawHTTP2, i int) error {
			id := uint32(2*i + 1)
			if err := h.request(id, false, "/Request/request"); err != nil {
				return err
			}
			b := bytes.Clone(body)
			b[i%5] = byte(i)
			return h.fr.WriteData(id, true, b)
		}},
	}
	n := 5_000
	if a.long {
		n = 200_000
	}
	for _, f := range floods {
		h, err := a.http2()
		if err != nil {
			return "", err
		}
		start := time.Now()
		for i := range n {
			if f.write(h, i) != nil || !h.alive() || time.Since(start) > 10*time.Second {
				break
			}
		}
		select {
		case <-h.ended:
		case <-time.After(50 * time.Millisecond):
		}
		if h.alive() {
			said = append(said, f.name)
		}
		h.close()
		if _, err := a.srv.vitals(false); err != nil {
			errs = append(errs, fmt.Errorf("%s: %v", f.name, err))
			break
		}
	}
	return fmt.Sprintf("%d floods; not closed for: %s", len(floods), strings.Join(said, ", ")), errors.Join(errs...)
}
