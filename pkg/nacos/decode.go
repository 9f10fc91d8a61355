package nacos

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// The requests that make up nearly all traffic are decoded here by hand:
// encoding/json takes a third of the time that it takes to serve one, and its
// deep calls grow the stack of every request's goroutine.
//
// Rule: what is read here is what encoding/json reads from it, to the last
// detail (FuzzDecodeByHand compares the two). Whatever is unusual ends the
// attempt, and encoding/json decodes the body from the start: escapes, invalid
// UTF-8, keys that come twice or differ from ours in case only, numbers with
// exponents, values of another type, and everything that is an error.

// decodeByHand decodes a body into a zero v and reports whether it has; if
// not, v is still zero. The cases repeat each other: a helper that is given
// the reading method sends the reader and the request to the heap.
func decodeByHand(body []byte, v any) bool {
	r := reader{}
	switch v := v.(type) {
	case *InstanceRequest:
		r.s = string(body)
		var req InstanceRequest
		r.instanceRequest(&req)
		if r.ended() {
			*v = req
			return true
		}
	case *BatchInstanceRequest:
		r.s = string(body)
		var req BatchInstanceRequest
		r.batchRequest(&req)
		if r.ended() {
			*v = req
			return true
		}
	case *SubscribeServiceRequest:
		r.s = string(body)
		var req SubscribeServiceRequest
		r.subscribeRequest(&req)
		if r.ended() {
			*v = req
			return true
		}
	case *ServiceQueryRequest:
		r.s = string(body)
		var req ServiceQueryRequest
		r.queryRequest(&req)
		if r.ended() {
			*v = req
			return true
		}
	case *Ack:
		r.s = string(body)
		var ack Ack
		r.ack(&ack)
		if r.ended() {
			*v = ack
			return true
		}
	}
	return false
}

var (
	refKeys       = []string{"namespace", "serviceName", "groupName", "requestId"}
	instanceKeys  = append([]string{"type", "instance"}, refKeys...)
	batchKeys     = append([]string{"type", "instances"}, refKeys...)
	subscribeKeys = append([]string{"subscribe", "clusters"}, refKeys...)
	queryKeys     = append([]string{"cluster", "healthyOnly", "healthOnly", "udpPort"}, refKeys...)
	ackKeys       = []string{"requestId", "resultCode", "message"}
	hostKeys      = []string{"instanceId", "ip", "port", "weight", "healthy", "enabled", "clusterName", "serviceName", "metadata"}
)

func (r *reader) instanceRequest(req *InstanceRequest) {
	for ok := r.begin('{', '}'); ok; ok = r.more('}') {
		switch key := r.key(); key {
		case "type":
			r.once(8)
			r.string(&req.Type)
		case "instance":
			r.once(9)
			if !r.null() {
				req.Instance = r.instance()
			}
		default:
			r.ref(&req.ServiceRef, key, instanceKeys)
		}
	}
}

func (r *reader) batchRequest(req *BatchInstanceRequest) {
	for ok := r.begin('{', '}'); ok; ok = r.more('}') {
		switch key := r.key(); key {
		case "type":
			r.once(8)
			r.string(&req.Type)
		case "instances":
			r.once(9)
			if r.null() {
				continue
			}
			req.Instances = []*Instance{}
			for ok := r.begin('[', ']'); ok; ok = r.more(']') {
				if r.null() {
					req.Instances = append(req.Instances, nil)
				} else {
					req.Instances = append(req.Instances, r.instance())
				}
			}
		default:
			r.ref(&req.ServiceRef, key, batchKeys)
		}
	}
}

func (r *reader) subscribeRequest(req *SubscribeServiceRequest) {
	for ok := r.begin('{', '}'); ok; ok = r.more('}') {
		switch key := r.key(); key {
		case "subscribe":
			r.once(8)
			r.bool(&req.Subscribe)
		case "clusters":
			r.once(9)
			if !r.null() {
				req.Clusters = new(string)
				r.string(req.Clusters)
			}
		default:
			r.ref(&req.ServiceRef, key, subscribeKeys)
		}
	}
}

func (r *reader) queryRequest(req *ServiceQueryRequest) {
	for ok := r.begin('{', '}'); ok; ok = r.more('}') {
		switch key := r.key(); key {
		case "cluster":
			r.once(8)
			r.string(&req.Cluster)
		case "healthyOnly":
			r.once(9)
			r.bool(&req.HealthyOnly)
		case "healthOnly":
			r.once(10)
			r.bool(&req.HealthOnly)
		case "udpPort":
			r.once(11)
			r.int(&req.UDPPort)
		default:
			r.ref(&req.ServiceRef, key, queryKeys)
		}
	}
}

func (r *reader) ack(ack *Ack) {
	for ok := r.begin('{', '}'); ok; ok = r.more('}') {
		switch key := r.key(); key {
		case "requestId":
			r.once(3)
			r.string(&ack.RequestID)
		case "resultCode":
			r.once(8)
			r.int(&ack.ResultCode)
		case "message":
			r.once(9)
			r.string(&ack.Message)
		case "errorCode", "success", "headers", "module":
			r.skip(0)
		default:
			r.unknown(key, ackKeys)
		}
	}
}

// ref takes a key that all requests have in common, or one that is to be
// skipped. known are all keys of the request.
func (r *reader) ref(ref *ServiceRef, key string, known []string) {
	switch key {
	case "namespace":
		r.once(0)
		r.string(&ref.Namespace)
	case "serviceName":
		r.once(1)
		r.string(&ref.ServiceName)
	case "groupName":
		r.once(2)
		r.string(&ref.GroupName)
	case "requestId":
		r.once(3)
		r.string(&ref.RequestID)
	case "headers", "module":
		r.skip(0)
	default:
		r.unknown(key, known)
	}
}

// instance reads an instance with the defaults of Instance.UnmarshalJSON. The
// registry keeps its texts, so they are copied out of the request, all into
// one piece of memory.
func (r *reader) instance() *Instance {
	outer := r.seen
	r.seen = 0
	i := &Instance{Weight: 1, Healthy: true, Enabled: true}
	var few [8]entry
	entries, hasMetadata := few[:0], false
	for ok := r.begin('{', '}'); ok; ok = r.more('}') {
		switch key := r.key(); key {
		case "instanceId":
			r.once(0)
			r.view(&i.InstanceID)
		case "ip":
			r.once(1)
			r.view(&i.IP)
		case "port":
			r.once(2)
			r.int(&i.Port)
		case "weight":
			r.once(3)
			r.float(&i.Weight)
		case "healthy":
			r.once(4)
			r.bool(&i.Healthy)
		case "enabled":
			r.once(5)
			r.bool(&i.Enabled)
		case "clusterName":
			r.once(6)
			r.view(&i.ClusterName)
		case "serviceName":
			r.once(7)
			r.view(&i.ServiceName)
		case "metadata":
			r.once(8)
			if r.null() {
				continue
			}
			hasMetadata = true
			entries = r.entries(entries)
		case "ephemeral", "instanceHeartBeatInterval", "instanceHeartBeatTimeOut", "ipDeleteTimeout", "instanceIdGenerator":
			r.skip(0)
		default:
			r.unknown(key, hostKeys)
		}
	}
	r.seen = outer
	if r.failed {
		return nil
	}

	n := 0
	texts := [...]*string{&i.InstanceID, &i.IP, &i.ClusterName, &i.ServiceName}
	for _, s := range texts {
		*s = wellKnown(*s, &n)
	}
	for e := range entries {
		n += len(entries[e].key) + len(entries[e].value)
	}
	var kept strings.Builder
	kept.Grow(n)
	keep := func(s string) string {
		at := kept.Len()
		kept.WriteString(s)
		return kept.String()[at:] // what it has room for does not move
	}
	for _, s := range texts {
		if !isWellKnown(*s) {
			*s = keep(*s)
		}
	}
	if hasMetadata {
		i.Metadata = make(Metadata, len(entries))
		for _, e := range entries {
			i.Metadata[keep(e.key)] = keep(e.value)
		}
	}
	return i
}

// An entry of metadata; its texts are a part of what is read.
type entry struct{ key, value string }

// entries reads metadata into a list of sufficient capacity.
func (r *reader) entries(into []entry) []entry {
	for ok := r.begin('{', '}'); ok; ok = r.more('}') {
		e := entry{key: r.key()}
		for _, other := range into {
			if other.key == e.key {
				r.fail()
			}
		}
		if len(into) == cap(into) || r.at() != '"' {
			r.fail() // many, or no text: left to Metadata.UnmarshalJSON
			return into
		}
		r.view(&e.value)
		into = append(into, e)
	}
	return into
}

// metadataByHand reads metadata that is an object and nothing else.
func metadataByHand(s string) (Metadata, bool) {
	r := reader{s: s}
	var few [8]entry
	entries := r.entries(few[:0])
	return ownMetadata(entries), r.ended()
}

// ownMetadata copies the texts, for the registry keeps them.
func ownMetadata(entries []entry) Metadata {
	m := make(Metadata, len(entries))
	for _, e := range entries {
		m[strings.Clone(e.key)] = strings.Clone(e.value)
	}
	return m
}

var beatKeys = []string{"ip", "port", "cluster", "weight", "metadata"}

// beatByHand reads what all SDKs but those for languages without types send.
func beatByHand(s string) (*Beat, bool) {
	r := reader{s: s}
	b := &Beat{Weight: 1}
	var few [8]entry
	entries, hasMetadata := few[:0], false
	for ok := r.begin('{', '}'); ok; ok = r.more('}') {
		switch key := r.key(); key {
		case "ip":
			r.once(0)
			r.view(&b.IP)
		case "port":
			r.once(1)
			r.int(&b.Port)
		case "cluster":
			r.once(2)
			r.view(&b.Cluster)
		case "weight":
			r.once(3)
			r.float(&b.Weight)
		case "metadata":
			r.once(4)
			if !r.null() {
				hasMetadata = true
				entries = r.entries(entries)
			}
		case "serviceName", "ephemeral", "scheduled", "period", "stopped":
			r.skip(0)
		default:
			r.unknown(key, beatKeys)
		}
	}
	if !r.ended() {
		return nil, false
	}
	n := 0
	if b.IP, b.Cluster = strings.Clone(b.IP), wellKnown(b.Cluster, &n); n > 0 {
		b.Cluster = strings.Clone(b.Cluster)
	}
	if hasMetadata {
		b.Metadata = ownMetadata(entries)
	}
	return b, true
}

// wellKnown returns a constant for a text that requests are full of, and adds
// the length of any other one to n.
func wellKnown(s string, n *int) string {
	switch s {
	case "":
		return ""
	case "DEFAULT":
		return "DEFAULT"
	}
	*n += len(s)
	return s
}

func isWellKnown(s string) bool { return s == "" || s == "DEFAULT" }

// A reader reads JSON from the start to the end. After a failure it is at the
// end, and every read fails as well.
type reader struct {
	s      string
	i      int
	failed bool
	seen   uint32 // keys of the object that is being read
}

func (r *reader) fail() {
	r.failed = true
	r.i = len(r.s)
}

// once fails if the key with this number was there before.
func (r *reader) once(number int) {
	if r.seen&(1<<number) != 0 {
		r.fail()
	}
	r.seen |= 1 << number
}

// at skips white space and returns the next byte, 0 at the end.
func (r *reader) at() byte {
	for r.i < len(r.s) {
		switch c := r.s[r.i]; c {
		case ' ', '\t', '\n', '\r':
			r.i++
		default:
			return c
		}
	}
	return 0
}

// ended reports whether all was read and nothing failed.
func (r *reader) ended() bool { return !r.failed && r.at() == 0 && r.i == len(r.s) }

// begin reads the start of an object or list and reports whether there is
// anything in it.
func (r *reader) begin(open, end byte) bool {
	if r.at() != open {
		r.fail()
		return false
	}
	r.i++
	if r.at() == end {
		r.i++
		return false
	}
	return true
}

// more reads what follows an element: whether another one does.
func (r *reader) more(end byte) bool {
	switch r.at() {
	case ',':
		r.i++
		return true
	case end:
		if !r.failed {
			r.i++
		}
		return false
	}
	r.fail()
	return false
}

// text reads a string without escapes. It is a part of the body.
func (r *reader) text() string {
	if r.at() != '"' {
		r.fail()
		return ""
	}
	start := r.i + 1
	ascii := true
	for i := start; i < len(r.s); i++ {
		switch c := r.s[i]; {
		case c == '"':
			r.i = i + 1
			if !ascii && !utf8.ValidString(r.s[start:i]) {
				break
			}
			return r.s[start:i]
		case c == '\\' || c < ' ':
			r.fail()
			return ""
		case c >= utf8.RuneSelf:
			ascii = false
			continue
		default:
			continue
		}
		break
	}
	r.fail()
	return ""
}

func (r *reader) key() string {
	key := r.text()
	if r.at() != ':' {
		r.fail()
		return ""
	}
	r.i++
	return key
}

// null reads null and reports whether it was there.
func (r *reader) null() bool {
	if r.at() == 'n' {
		r.literal("null")
		return true
	}
	return false
}

func (r *reader) literal(word string) {
	if !strings.HasPrefix(r.s[r.i:], word) {
		r.fail()
		return
	}
	r.i += len(word)
}

// view reads a string that is a part of the body; null leaves it as it is.
func (r *reader) view(s *string) {
	if !r.null() {
		*s = r.text()
	}
}

// string reads a string of its own: services and filters outlive the request
// that named them first.
func (r *reader) string(s *string) {
	if r.null() {
		return
	}
	switch t := r.text(); t {
	case "":
		*s = ""
	case "public":
		*s = "public"
	case "DEFAULT_GROUP":
		*s = "DEFAULT_GROUP"
	case OpRegister:
		*s = OpRegister
	case OpDeregister:
		*s = OpDeregister
	case OpBatchRegister:
		*s = OpBatchRegister
	default:
		*s = strings.Clone(t)
	}
}

func (r *reader) bool(b *bool) {
	switch r.at() {
	case 't':
		r.literal("true")
		*b = !r.failed || *b
	case 'f':
		r.literal("false")
		*b = r.failed && *b
	case 'n':
		r.literal("null")
	default:
		r.fail()
	}
}

// digits reads the digits of a number without leading zeros.
func (r *reader) digits() string {
	r.at()
	start := r.i
	for r.i < len(r.s) && '0' <= r.s[r.i] && r.s[r.i] <= '9' {
		r.i++
	}
	d := r.s[start:r.i]
	if d == "" || d[0] == '0' && len(d) > 1 {
		r.fail()
		return ""
	}
	return d
}

// int reads a number from 0 to 999999999.
func (r *reader) int(n *int) {
	if r.null() {
		return
	}
	d := r.digits()
	if len(d) > 9 {
		r.fail()
	}
	if r.failed || r.fraction() {
		r.fail()
		return
	}
	*n = 0
	for i := range len(d) {
		*n = *n*10 + int(d[i]-'0')
	}
}

// fraction reports whether a number goes on after its digits.
func (r *reader) fraction() bool {
	if r.i == len(r.s) {
		return false
	}
	c := r.s[r.i]
	return c == '.' || c == 'e' || c == 'E'
}

// float reads a number without sign and exponent.
func (r *reader) float(f *float64) {
	if r.null() {
		return
	}
	r.at()
	start := r.i
	r.digits()
	if !r.failed && r.i < len(r.s) && r.s[r.i] == '.' {
		r.i++
		from := r.i
		for r.i < len(r.s) && '0' <= r.s[r.i] && r.s[r.i] <= '9' {
			r.i++
		}
		if r.i == from {
			r.fail()
		}
	}
	if r.failed || r.fraction() {
		r.fail()
		return
	}
	switch text := r.s[start:r.i]; text {
	case "1.0", "1": // nearly always
		*f = 1
	default:
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			r.fail()
			return
		}
		*f = v
	}
}

// ParseFloat is that of strconv, without the underscores of Go's literals: to
// everybody else 1_0 is no number.
func ParseFloat(s string, bits int) (float64, error) {
	if strings.Contains(s, "_") {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseFloat(s, bits)
}

// unknown skips the value of a key that is none of ours. encoding/json takes
// one for ours that is like it but for the case, of Unicode's letters too.
func (r *reader) unknown(key string, known []string) {
	for i := range len(key) {
		if key[i] >= utf8.RuneSelf {
			r.fail()
			return
		}
	}
	for _, k := range known {
		if strings.EqualFold(k, key) {
			r.fail()
			return
		}
	}
	r.skip(0)
}

// maxDepth bounds the values that are skipped; encoding/json has a bound of
// its own.
const maxDepth = 32

// skip reads any value.
func (r *reader) skip(depth int) {
	if depth == maxDepth {
		r.fail()
		return
	}
	switch r.at() {
	case '"':
		r.text()
	case 't':
		r.literal("true")
	case 'f':
		r.literal("false")
	case 'n':
		r.literal("null")
	case '{':
		for ok := r.begin('{', '}'); ok; ok = r.more('}') {
			r.key()
			r.skip(depth + 1)
		}
	case '[':
		for ok := r.begin('[', ']'); ok; ok = r.more(']') {
			r.skip(depth + 1)
		}
	default:
		var f float64
		r.float(&f)
	}
}
