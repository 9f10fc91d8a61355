package nacos

import (
	"bytes"
	"cmp"
	"strconv"
	"strings"

	"github.com/starling-registry/starling/pkg/registry"
)

// Metadata keys with a meaning (semantics H9, D20).
const (
	KeyBeatInterval = "preserved.heart.beat.interval"
	KeyBeatTimeout  = "preserved.heart.beat.timeout"
	KeyDeleteAfter  = "preserved.ip.delete.timeout"
	KeyIDGenerator  = "preserved.instance.id.generator"
)

// Times in milliseconds that hold where the metadata does not say otherwise.
const (
	DefaultBeatInterval = 5000
	DefaultBeatTimeout  = 15000
	DefaultDeleteAfter  = 30000
	CacheMillis         = 10000
)

// BeatClientID is the id of the client that an HTTP client counts as: all that
// is registered under its address over HTTP, in all services and namespaces.
func BeatClientID(ip string, port int) string { return ip + ":" + strconv.Itoa(port) + "#true" }

// ParseClientID reads the id of a client that has no connection: that of
// [BeatClientID], or with #false that of a persistent instance (http-api §10).
func ParseClientID(id string) (ip string, port int, ephemeral, ok bool) {
	addr, kind, _ := strings.Cut(id, "#")
	colon := strings.LastIndexByte(addr, ':') // an address of IPv6 has more of them
	if colon < 0 || kind != "true" && kind != "false" {
		return "", 0, false, false
	}
	n, err := strconv.ParseUint(addr[colon+1:], 10, 16)
	if err != nil {
		return "", 0, false, false
	}
	return addr[:colon], int(n), kind == "true", true
}

// A ServiceInfo is one service as one reader gets it (grpc-protocol §3.3). The
// bulk of it, made by [EncodeHosts], is shared between readers; the rest is
// written per message.
type ServiceInfo struct {
	Name, Group string  // Group "" leaves the key out
	Clusters    *string // the reader's own filter; nil leaves the key out
	LastRefTime int64   // milliseconds
	CacheMillis int64   // how long a reader that is not pushed to may rely on it; 0: the constant of that name
	Hosts       []byte  // from EncodeHosts
}

func (s *ServiceInfo) payload(typ string, head []byte, closing string) *Payload {
	return &Payload{Type: typ, Body: head, Shared: s.Hosts, Tail: append(s.appendRest(nil), closing...)}
}

// AppendJSON appends the whole object.
func (s *ServiceInfo) AppendJSON(b []byte) []byte {
	return s.appendRest(append(append(b, '{'), s.Hosts...))
}

// appendRest writes what follows the hosts and closes the object.
func (s *ServiceInfo) appendRest(b []byte) []byte {
	if b == nil {
		b = make([]byte, 0, 120+len(s.Name)+len(s.Group))
	}
	b = AppendString(append(b, `,"name":`...), s.Name)
	if s.Group != "" {
		b = AppendString(append(b, `,"groupName":`...), s.Group)
	}
	if s.Clusters != nil {
		b = AppendString(append(b, `,"clusters":`...), *s.Clusters)
	}
	b = strconv.AppendInt(append(b, `,"lastRefTime":`...), s.LastRefTime, 10)
	b = strconv.AppendInt(append(b, `,"cacheMillis":`...), cmp.Or(s.CacheMillis, CacheMillis), 10)
	return append(b, '}')
}

// EncodeHosts writes the part of a ServiceInfo that is the same for all readers
// with one filter. It is meant for [registry.Snapshot.Encode].
//
// Both spellings of allIPs are there: 2.x clients read one, 3.x the other
// (grpc-protocol §0 rule 7).
func EncodeHosts(s *registry.Snapshot, f registry.Filter) []byte {
	hosts, protected := s.Select(f)
	b := make([]byte, 0, 160+len(hosts)*360)
	b = append(b, `"checksum":"","allIPs":false,"allIps":false,"valid":true`+hostsKey...)
	grouped := s.Service.Grouped()
	for i, h := range hosts {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendHost(b, h.Instance, grouped, protected)
	}
	return appendBool(b, protectionKey, protected)
}

const (
	hostsKey      = `,"hosts":[`
	protectionKey = `],"reachProtectionThreshold":`
)

func appendHost(b []byte, i *registry.Instance, grouped string, forceHealthy bool) []byte {
	b = AppendString(append(b, `{"instanceId":`...), InstanceID(i, grouped))
	b = AppendString(append(b, `,"ip":`...), i.IP)
	b = strconv.AppendInt(append(b, `,"port":`...), int64(i.Port), 10)
	b = appendFloat(append(b, `,"weight":`...), i.Weight)
	b = appendBool(b, `,"healthy":`, i.Healthy || forceHealthy)
	b = appendBool(b, `,"enabled":`, i.Enabled)
	b = appendBool(b, `,"ephemeral":`, !i.Persistent)
	b = AppendString(append(b, `,"clusterName":`...), i.Cluster)
	b = AppendString(append(b, `,"serviceName":`...), grouped)
	b = AppendMetadata(append(b, `,"metadata":`...), i.Metadata)
	b = strconv.AppendInt(append(b, `,"instanceHeartBeatInterval":`...), MetadataMillis(i.Metadata, KeyBeatInterval, DefaultBeatInterval), 10)
	b = strconv.AppendInt(append(b, `,"instanceHeartBeatTimeOut":`...), MetadataMillis(i.Metadata, KeyBeatTimeout, DefaultBeatTimeout), 10)
	b = strconv.AppendInt(append(b, `,"ipDeleteTimeout":`...), MetadataMillis(i.Metadata, KeyDeleteAfter, DefaultDeleteAfter), 10)
	generator := "simple"
	if len(i.Metadata) > 0 {
		generator, _ = i.Metadata.Get(KeyIDGenerator)
	}
	if generator != "" {
		b = AppendString(append(b, `,"instanceIdGenerator":`...), generator)
	}
	return append(b, '}')
}

// InstanceID is the id a client gave its instance, or the usual one
// (semantics D20).
func InstanceID(i *registry.Instance, grouped string) string {
	if i.ID != "" {
		return i.ID
	}
	return i.IP + "#" + strconv.Itoa(i.Port) + "#" + i.Cluster + "#" + grouped
}

// AppendMetadata appends metadata as a JSON object.
func AppendMetadata(b []byte, md registry.Metadata) []byte {
	b = append(b, '{')
	for i, kv := range md {
		if i > 0 {
			b = append(b, ',')
		}
		b = AppendString(append(AppendString(b, kv.Key), ':'), kv.Value)
	}
	return append(b, '}')
}

// MetadataMillis reads a time from metadata; what is not all digits counts as
// missing (grpc-protocol §3.2).
func MetadataMillis(md registry.Metadata, key string, missing int64) int64 {
	v, _ := md.Get(key)
	return millis(v, missing)
}

func millis(v string, missing int64) int64 {
	if v == "" { // without the error that ParseUint would make
		return missing
	}
	if n, err := strconv.ParseUint(v, 10, 63); err == nil {
		return int64(n)
	}
	return missing
}

// HostsOf cuts the array of hosts out of what [EncodeHosts] made.
func HostsOf(encoded []byte) []byte {
	from := bytes.Index(encoded, []byte(hostsKey))
	to := bytes.LastIndex(encoded, []byte(protectionKey))
	return encoded[from+len(hostsKey)-1 : to+1]
}
