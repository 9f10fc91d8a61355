package nacos

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/starling-registry/starling/pkg/registry"
)

// What the HTTP API of 1.x has and gRPC has not.

// Codes in the answer to a beat (http-api §5.7); the HTTP status is 200 for
// both.
const (
	CodeBeatOK      = 10200
	CodeBeatUnknown = 20404 // the client is to register
)

// BeatAnswer tells a client its next period (milliseconds) and that it may
// leave out the beat's body from now on.
func BeatAnswer(interval int64, code int) []byte {
	b := strconv.AppendInt([]byte(`{"clientBeatInterval":`), interval, 10)
	b = strconv.AppendInt(append(b, `,"code":`...), int64(code), 10)
	return append(b, `,"lightBeatEnabled":true}`...)
}

// A Beat is what the body of a full beat says of its instance. The service
// that stands in it is not read: the request's own parameters name it (cases
// C07).
type Beat struct {
	IP       string
	Port     int
	Cluster  string
	Weight   float64 // 1 when missing (http-api §15 no. 7)
	Metadata Metadata
}

// ErrBadBeat says that a beat's body is not a JSON object of this form.
const ErrBadBeat = ParamError("Param 'beat' is illegal, it should be a JSON object.")

// ParseBeat decodes a beat. "null" is a beat without a body: nil. Numbers may
// be strings: the SDKs for languages without types pass on what they were
// given, and Nacos takes it.
func ParseBeat(s string) (*Beat, error) {
	var raw *struct {
		IP       string          `json:"ip"`
		Port     json.RawMessage `json:"port"`
		Cluster  string          `json:"cluster"`
		Weight   json.RawMessage `json:"weight"`
		Metadata Metadata        `json:"metadata"`
	}
	if json.Unmarshal([]byte(s), &raw) != nil {
		return nil, ErrBadBeat
	}
	if raw == nil {
		return nil, nil
	}
	b := &Beat{IP: raw.IP, Cluster: raw.Cluster, Weight: 1, Metadata: raw.Metadata}
	var err error
	if n := unquoted(raw.Port); n != "" {
		if b.Port, err = strconv.Atoi(n); err != nil {
			return nil, badPort
		}
	}
	if n := unquoted(raw.Weight); n != "" {
		if b.Weight, err = strconv.ParseFloat(n, 64); err != nil {
			return nil, ErrWeight
		}
	}
	return b, nil
}

// unquoted is the text of a JSON number, or of a string that holds one; null
// and nothing are "".
func unquoted(raw json.RawMessage) string {
	if s := string(raw); s != "null" {
		return strings.Trim(s, `"`)
	}
	return ""
}

// ErrBadMetadata says that a text is no metadata.
var ErrBadMetadata = errors.New("metadata format incorrect")

// ParseMetadata reads the metadata parameter of the HTTP APIs: a JSON object
// or k=v,k2=v2 (http-api §3.2). "None" is what old Python SDKs send for none.
func ParseMetadata(s string) (Metadata, error) {
	m := Metadata{}
	if Blank(s) || s == "None" || s == "null" {
		return m, nil
	}
	if json.Unmarshal([]byte(s), &m) == nil {
		return m, nil
	}
	m = Metadata{}
	for pair := range strings.SplitSeq(strings.TrimRight(s, ","), ",") {
		k, v, ok := strings.Cut(pair, "=")
		if !ok || v == "" || strings.Contains(v, "=") {
			return nil, ErrBadMetadata
		}
		m[k] = v
	}
	return m, nil
}

// AppendDetail appends the answer to a request of v1 or v2 for one instance
// (http-api §5.5, §7.1); they name the service by different keys.
func AppendDetail(b []byte, serviceKey string, i *registry.Instance, grouped string) []byte {
	b = AppendString(append(AppendString(append(b, '{'), serviceKey), ':'), grouped)
	b = AppendString(append(b, `,"ip":`...), i.IP)
	b = strconv.AppendInt(append(b, `,"port":`...), int64(i.Port), 10)
	b = AppendString(append(b, `,"clusterName":`...), i.Cluster)
	b = appendFloat(append(b, `,"weight":`...), i.Weight)
	b = appendBool(b, `,"healthy":`, i.Healthy)
	b = AppendString(append(b, `,"instanceId":`...), InstanceID(i, grouped))
	b = AppendMetadata(append(b, `,"metadata":`...), i.Metadata)
	return append(b, '}')
}

// Chunks returns the whole object in pieces to be written one after the other,
// so that nobody copies the shared bytes of a long list.
func (s *ServiceInfo) Chunks() (head, shared, tail []byte) {
	return []byte{'{'}, s.Hosts, s.appendRest(nil)
}
