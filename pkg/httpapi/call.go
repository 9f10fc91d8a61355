package httpapi

import (
	"encoding/json"
	"net"
	"net/http"
	"strconv"
	"strings"
)

// A version is a generation of the API of Nacos. They differ in how they take
// parameters (params.go) and dress answers (here, and errors.go), hardly in
// what is done.
type version uint8

const (
	noVersion version = iota // not of the Nacos API
	v1
	v2
	v3
)

// versionOf tells the version of a path below the context path.
func versionOf(path string) version {
	switch {
	case strings.HasPrefix(path, "/v1/"):
		return v1
	case strings.HasPrefix(path, "/v2/"):
		return v2
	case strings.HasPrefix(path, "/v3/"):
		return v3
	}
	return noVersion
}

// A call is one request of the Nacos API.
type call struct {
	params
	version version
	w       http.ResponseWriter
	r       *http.Request

	bareOK bool // the success of this write is that of v1
}

// peer is the address that a request comes from, without its port.
func peer(r *http.Request) string {
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	return host
}

// Around the answers of v2 and v3 (http-api §3.6).
const (
	resultHead = `{"code":0,"message":"success","data":`
	resultTail = `}`
)

// ok is the success of a write: in v1 exactly "ok" (http-api §15 no. 9).
func (c *call) ok() error {
	if c.version == v1 || c.bareOK {
		writeText(c.w, c.r, http.StatusOK, "ok")
		return nil
	}
	return c.answer([]byte(`"ok"`))
}

// answer writes JSON that comes in pieces, with what the version puts around
// it. Nobody copies a long list.
func (c *call) answer(pieces ...[]byte) error {
	head, tail := "", ""
	if c.version != v1 {
		head, tail = resultHead, resultTail
	}
	size := len(head) + len(tail)
	for _, b := range pieces {
		size += len(b)
	}
	h := c.w.Header()
	h["Content-Type"] = contentTypeJSON
	h["Content-Length"] = []string{strconv.Itoa(size)}
	c.w.WriteHeader(http.StatusOK)
	if head != "" {
		_, _ = c.w.Write([]byte(head))
	}
	for _, b := range pieces {
		if _, err := c.w.Write(b); err != nil {
			return nil // the client has gone
		}
	}
	_, _ = c.w.Write([]byte(tail))
	return nil
}

// stream answers with JSON that has a list in it, which is written while it is
// made: nobody knows how long it is, and all of it at once may be gigabytes.
func stream[T any](c *call, head string, list []T, encode func(T) ([]byte, error), tail string) error {
	const enough = 24 << 10
	buf, begun := make([]byte, 0, 1024), false
	if c.version != v1 {
		head, tail = resultHead+head, tail+resultTail
	}
	buf = append(buf, head...)
	for i, each := range list {
		b, err := encode(each)
		switch {
		case err != nil && begun:
			panic("BUG: " + err.Error()) // is logged, and ends the connection
		case err != nil:
			return err
		}
		if i > 0 {
			buf = append(buf, ',')
		}
		if buf = append(buf, b...); len(buf) < enough {
			continue
		}
		if !begun {
			c.w.Header()["Content-Type"] = contentTypeJSON
		}
		if _, err := c.w.Write(buf); err != nil {
			return nil // the client has gone
		}
		buf, begun = buf[:0], true
	}
	buf = append(buf, tail...)
	if begun {
		_, _ = c.w.Write(buf)
		return nil
	}
	return c.bare(buf)
}

// bare writes JSON without anything around it, in all versions.
func (c *call) bare(b []byte) error {
	writeJSON(c.w, http.StatusOK, b)
	return nil
}

// encoded is answer for what an encoder returns.
func (c *call) encoded(b []byte, err error) error {
	if err != nil {
		return err
	}
	return c.answer(b)
}

// answerJSON is answer for any value.
func (c *call) answerJSON(v any) error { return c.encoded(json.Marshal(v)) }

// bareV2 is answerJSON for what v2 puts nothing around either.
func (c *call) bareV2(v any) error {
	b, err := json.Marshal(v)
	if err == nil && c.version == v2 {
		return c.bare(b)
	}
	return c.encoded(b, err)
}

// rest answers with JSON in what v1 puts around most answers that are not about
// naming, and v2 around a few; v3 has one form for all.
func (c *call) rest(b []byte) error {
	if c.version == v3 {
		return c.answer(b)
	}
	return c.bare(restResult(http.StatusOK, "", b))
}

// restV1 is rest for what v2 answers in the form of v3.
func (c *call) restV1(v any) error {
	b, err := json.Marshal(v)
	if err == nil && c.version == v1 {
		return c.rest(b)
	}
	return c.encoded(b, err)
}
