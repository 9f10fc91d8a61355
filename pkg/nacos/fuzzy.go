package nacos

import (
	"strconv"
	"strings"

	"github.com/starling-registry/starling/pkg/registry"
)

// Fuzzy watch: a 3.x client follows which services there are, by a pattern
// (grpc-protocol §3.9, semantics S9–S16).

// Type names and values of fuzzy watch.
const (
	TypeFuzzyWatchRequest             = "NamingFuzzyWatchRequest"
	TypeFuzzyWatchResponse            = "NamingFuzzyWatchResponse"
	TypeFuzzyWatchSyncRequest         = "NamingFuzzyWatchSyncRequest"
	TypeFuzzyWatchChangeNotifyRequest = "NamingFuzzyWatchChangeNotifyRequest"

	WatchStart  = "WATCH"
	WatchCancel = "CANCEL_WATCH"

	SyncInit   = "FUZZY_WATCH_INIT_NOTIFY"
	SyncDiff   = "FUZZY_WATCH_DIFF_SYNC_NOTIFY"
	SyncFinish = "FINISH_FUZZY_WATCH_INIT_NOTIFY"

	CodePatternOverLimit = 50310
	CodeMatchOverLimit   = 50311
	MsgPatternOverLimit  = "fuzzy watch pattern over limit"
	MsgMatchOverLimit    = "fuzzy watch pattern matched count over limit"
)

// A FuzzyWatchRequest starts or ends a watch, or compares notes: the client
// says which services it knows.
type FuzzyWatchRequest struct {
	RequestID         string   `json:"requestId"`
	Namespace         string   `json:"namespace"`
	GroupKeyPattern   string   `json:"groupKeyPattern"`
	ReceivedGroupKeys []string `json:"receivedGroupKeys"`
	WatchType         string   `json:"watchType"`
	Initializing      bool     `json:"initializing"` // until it has got SyncFinish
}

// A Pattern chooses services: those of one namespace whose group and name
// match. It is comparable.
type Pattern struct{ Namespace, Group, Service string }

// ErrPattern says that a text is no pattern.
const ErrPattern = ParamError("Param 'groupKeyPattern' is illegal, it should be format as 'namespace>>groupPattern>>servicePattern'.")

// ParsePattern reads "namespace>>group>>service". A blank namespace is the
// default one.
func ParsePattern(s string) (Pattern, error) {
	if err := check("groupKeyPattern", s, "1024", maxPattern, func(string) bool { return true }); err != nil {
		return Pattern{}, err
	}
	parts := strings.Split(s, ">>")
	if len(parts) != 3 || parts[1] == "" || parts[2] == "" {
		return Pattern{}, ErrPattern
	}
	if Blank(parts[0]) {
		parts[0] = registry.DefaultNamespace
	}
	return Pattern{parts[0], parts[1], parts[2]}, nil
}

// Match reports whether a service is chosen.
func (p Pattern) Match(k registry.ServiceKey) bool {
	return p.Namespace == k.Namespace && wildcard(p.Group, k.Group) && wildcard(p.Service, k.Name)
}

// wildcard matches exactly, or with a star at the start, the end or both
// (semantics S9). A star elsewhere matches nothing but itself. ".*" is what
// Java's shortest call sends for "all".
func wildcard(pattern, s string) bool {
	if pattern == "*" || pattern == ".*" {
		return true
	}
	rest, front := strings.CutPrefix(pattern, "*")
	rest, back := strings.CutSuffix(rest, "*")
	switch {
	case front && back:
		return strings.Contains(s, rest)
	case front:
		return strings.HasSuffix(s, rest)
	case back:
		return strings.HasPrefix(s, rest)
	}
	return pattern == s
}

// FuzzyKey is how fuzzy watch writes a service.
func FuzzyKey(k registry.ServiceKey) string {
	return k.Namespace + "@@" + k.Group + "@@" + k.Name
}

// A FuzzyChange says that a service is there, or not any more.
type FuzzyChange struct {
	Key  string // see FuzzyKey
	Gone bool
}

func (c FuzzyChange) changedType() string {
	if c.Gone {
		return "DELETE_SERVICE"
	}
	return "ADD_SERVICE"
}

// FuzzyWatchResponse accepts a watch or its end.
func FuzzyWatchResponse(requestID string) *Payload {
	return &Payload{Type: TypeFuzzyWatchResponse, Body: append(begin(8, requestID), '}')}
}

// A FuzzySync is one part of the comparison between server and client.
type FuzzySync struct {
	Type           string // SyncInit, SyncDiff or SyncFinish
	Pattern        string // as the client wrote it
	Changes        []FuzzyChange
	Current, Total int // from 1
}

// Payload writes the message with its request id.
func (f *FuzzySync) Payload(requestID uint64) *Payload {
	b := strconv.AppendUint([]byte(`{"headers":{},"requestId":"`), requestID, 10)
	b = AppendString(append(b, `","syncType":`...), f.Type)
	b = AppendString(append(b, `,"groupKeyPattern":`...), f.Pattern)
	b = append(b, `,"contexts":[`...)
	for i, c := range f.Changes {
		if i > 0 {
			b = append(b, ',')
		}
		b = AppendString(append(b, `{"serviceKey":`...), c.Key)
		b = AppendString(append(b, `,"changedType":`...), c.changedType())
		b = append(b, '}')
	}
	b = strconv.AppendInt(append(b, `],"totalBatch":`...), int64(f.Total), 10)
	b = strconv.AppendInt(append(b, `,"currentBatch":`...), int64(f.Current), 10)
	return &Payload{Type: TypeFuzzyWatchSyncRequest, Body: append(b, `,"module":"naming"}`...)}
}

// Payload writes a change that happened while the client was watching.
func (c FuzzyChange) Payload(requestID uint64) *Payload {
	b := strconv.AppendUint([]byte(`{"headers":{},"requestId":"`), requestID, 10)
	b = append(b, `","syncType":"FUZZY_WATCH_RESOURCE_CHANGED"`...)
	b = AppendString(append(b, `,"serviceKey":`...), c.Key)
	b = AppendString(append(b, `,"changedType":`...), c.changedType())
	return &Payload{Type: TypeFuzzyWatchChangeNotifyRequest, Body: append(b, `,"module":"naming"}`...)}
}
