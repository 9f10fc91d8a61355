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
// leave out the beat's body from now on, or must not (light false).
func BeatAnswer(interval int64, code int, light bool) []byte {
	b := append(make([]byte, 0, 80), `{"clientBeatInterval":`...)
	b = strconv.AppendInt(b, interval, 10)
	b = strconv.AppendInt(append(b, `,"code":`...), int64(code), 10)
	return append(appendBool(b, `,"lightBeatEnabled":`, light), '}')
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
	if b, ok := beatByHand(s); ok {
		return b, nil
	}
	return parseBeat(s)
}

func parseBeat(s string) (*Beat, error) {
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
		if b.Weight, err = ParseFloat(n, 64); err != nil {
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
	if own, ok := metadataByHand(s); ok {
		return own, nil
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

// ErrBadInstances says that a list of instances is none.
const ErrBadInstances = ParamError("Param 'instances' is illegal, it should be a JSON array of objects with ip and port.")

// ParseInstances reads the instances that a request to edit several names.
// Nothing names none.
func ParseInstances(s string) (map[registry.InstanceKey]bool, error) {
	if Blank(s) {
		return nil, nil
	}
	var raw []struct {
		IP      string          `json:"ip"`
		Port    json.RawMessage `json:"port"`
		Cluster string          `json:"clusterName"`
	}
	if json.Unmarshal([]byte(s), &raw) != nil {
		return nil, ErrBadInstances
	}
	named := make(map[registry.InstanceKey]bool, len(raw))
	for _, r := range raw {
		k := registry.InstanceKey{IP: r.IP, Cluster: r.Cluster}
		if Blank(k.IP) || len(r.Port) == 0 {
			return nil, ErrBadInstances
		}
		var err error
		if k.Port, err = strconv.Atoi(unquoted(r.Port)); err != nil {
			return nil, badPort
		}
		if err := CheckInstance(&Instance{IP: k.IP, Port: k.Port, ClusterName: k.Cluster}); err != nil {
			return nil, err
		}
		if Blank(k.Cluster) {
			k.Cluster = registry.DefaultCluster
		}
		named[k] = true
	}
	return named, nil
}

// AppendUpdated names the instances that such a request has edited. The third
// part of a name is the site, which nobody has.
func AppendUpdated(b []byte, hosts []*registry.Shown) []byte {
	b = append(b, `{"updated":[`...)
	for i, h := range hosts {
		if i > 0 {
			b = append(b, ',')
		}
		kind := ":ephemeral"
		if h.Persistent {
			kind = ":persist"
		}
		b = AppendString(b, h.IP+":"+strconv.Itoa(h.Port)+":unknown:"+h.Cluster+kind)
	}
	return append(b, "]}"...)
}

// AppendStatuses appends who is there and whether healthy.
func AppendStatuses(b []byte, hosts []*registry.Shown) []byte {
	b = append(b, `{"ips":[`...)
	for i, h := range hosts {
		if i > 0 {
			b = append(b, ',')
		}
		b = AppendString(b, h.IP+":"+strconv.Itoa(h.Port)+"_"+strconv.FormatBool(h.Healthy))
	}
	return append(b, "]}"...)
}

// AppendDomain appends a service as 1.x listed it: beside what later versions
// have, dom and some constants, and valid and marked of each host. Nobody but
// CoreDNS reads those, so they are not in the bytes that all others share.
func AppendDomain(b []byte, s *registry.Snapshot, f registry.Filter, lastRefTime, cacheMillis int64) []byte {
	hosts, protected := s.Select(f)
	grouped := s.Service.Grouped()
	b = AppendString(append(b, `{"dom":`...), s.Service.Name)
	b = AppendString(append(b, `,"name":`...), grouped)
	b = AppendString(append(b, `,"groupName":`...), s.Service.Group)
	b = AppendString(append(b, `,"clusters":`...), f.Clusters)
	b = strconv.AppendInt(append(b, `,"cacheMillis":`...), cacheMillis, 10)
	b = strconv.AppendInt(append(b, `,"lastRefTime":`...), lastRefTime, 10)
	var md registry.Metadata
	if s.Meta != nil {
		md = s.Meta.Metadata
	}
	b = AppendMetadata(append(b, `,"checksum":"","useSpecifiedURL":false,"env":"","metadata":`...), md)
	b = appendBool(b, `,"allIPs":false,"valid":true,"reachProtectionThreshold":`, protected)
	b = append(b, `,"hosts":[`...)
	for i, h := range hosts {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendHost(b, h.Instance, grouped, protected)
		b = appendBool(b[:len(b)-1], `,"valid":`, h.Healthy || protected)
		b = append(b, `,"marked":false}`...)
	}
	return append(b, "]}"...)
}
