package httpapi

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

// params are the parameters of a request: query and form, the first value of a
// key, decoded and valid UTF-8. net/http's parser would not do: it leaves out
// the body of a DELETE, pairs with ";" and a body with a stray "%" (http-api
// §3.1).
type params map[string]string

// maxParams bounds the different keys of a request; clients send a dozen.
const maxParams = 1000

// readParams reads query and form; the query wins.
//
// A body counts for every method but GET and HEAD (golden scenario 08), and
// only if it is a form: a JSON body is not read (golden scenario 03).
func readParams(w http.ResponseWriter, r *http.Request, maxBytes int64) (params, error) {
	p := params{}
	if err := p.addQuery(r.URL.RawQuery); err != nil {
		return nil, err
	}
	if r.ContentLength == 0 || r.Method == http.MethodGet || r.Method == http.MethodHead || !isForm(r.Header.Get("Content-Type")) {
		return p, nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBytes))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, errTooLarge(maxBytes)
	}
	if err != nil {
		return nil, errBody
	}
	return p, p.addForm(string(body), fromGo(r))
}

// body reads JSON, which few requests have (http-api §3.1).
func (s *Server) body(c *call, into any) error {
	if t, _, err := mime.ParseMediaType(c.r.Header.Get("Content-Type")); err != nil || t != "application/json" {
		return errMediaType
	}
	limit := int64(s.opts.MaxRequestBytes)
	b, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, limit))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return errTooLarge(limit)
	}
	if err != nil {
		return errBody
	}
	if json.Unmarshal(b, into) != nil {
		return errJSON
	}
	return nil
}

// fromGo reports whether the body may be one that the Go SDK wrote: PUT bodies
// of all its versions are as they are, JSON and all, and call themselves a
// form (http-api §3.1).
func fromGo(r *http.Request) bool {
	return r.Method == http.MethodPut && strings.HasPrefix(r.UserAgent(), "Nacos-Go-Client")
}

// isForm takes a body without a type for a form.
func isForm(contentType string) bool {
	t, _, _ := strings.Cut(contentType, ";")
	t = strings.TrimSpace(t)
	return t == "" || strings.EqualFold(t, "application/x-www-form-urlencoded")
}

// addQuery drops a pair with a malformed escape, as Nacos's container does
// (golden scenario 08).
func (p params) addQuery(query string) error {
	for pair := range strings.SplitSeq(query, "&") {
		k, v, _ := strings.Cut(pair, "=")
		key, err1 := url.QueryUnescape(k)
		value, err2 := url.QueryUnescape(v)
		if err1 != nil || err2 != nil {
			continue
		}
		if err := p.add(key, value); err != nil {
			return err
		}
	}
	return nil
}

// addForm decodes as much as is encoded. Whoever encodes leaves no brace: JSON
// that begins with one is taken as it is from the Go SDK, and from others if
// nothing else of the body is encoded. An "&" ends a value all the same; the Go
// SDK writes it as \u0026.
func (p params) addForm(body string, goSDK bool) error {
	encoded := hasEscape(body)
	for pair := range strings.SplitSeq(body, "&") {
		k, v, _ := strings.Cut(pair, "=")
		if !strings.HasPrefix(v, "{") || encoded && !goSDK {
			v = unescape(v)
		}
		if err := p.add(unescape(k), v); err != nil {
			return err
		}
	}
	return nil
}

func (p params) add(key, value string) error {
	if key == "" {
		return nil
	}
	if _, there := p[key]; there {
		return nil
	}
	if len(p) == maxParams {
		return errTooMany
	}
	// A name that JSON cannot carry could not be asked for again. Java
	// decodes what is no UTF-8 to the same character.
	p[key] = strings.ToValidUTF8(value, "\uFFFD")
	return nil
}

// hasEscape reports whether there is a valid %XX in s.
func hasEscape(s string) bool {
	for i := strings.IndexByte(s, '%'); i >= 0 && i+2 < len(s); i++ {
		if s[i] == '%' && isHex(s[i+1]) && isHex(s[i+2]) {
			return true
		}
	}
	return false
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// unescape decodes what is a valid %XX, leaves other % alone, and takes + for
// a blank.
func unescape(s string) string {
	if !strings.ContainsAny(s, "%+") {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '+':
			b = append(b, ' ')
		case c == '%' && i+2 < len(s) && isHex(s[i+1]) && isHex(s[i+2]):
			n, _ := strconv.ParseUint(s[i+1:i+3], 16, 8)
			b = append(b, byte(n))
			i += 2
		default:
			b = append(b, c)
		}
	}
	return string(b)
}

// get returns the first of the named parameters that is not blank, trimmed.
func (p params) get(names ...string) string {
	return strings.TrimSpace(p.raw(names...))
}

// raw is get without trimming: the parameter check of Nacos sees values as
// they came (golden scenario 03).
func (p params) raw(names ...string) string {
	for _, n := range names {
		if v := p[n]; !nacos.Blank(v) {
			return v
		}
	}
	return ""
}

// flag is a boolean. In v1 some words mean true, in any case, and all others
// false; later versions know words for both and nothing else (http-api §3.2).
func (c *call) flag(missing bool, names ...string) (bool, error) {
	word := strings.ToLower(c.get(names...))
	switch {
	case word == "":
		return missing, nil
	case c.version == v1:
		return slices.Contains([]string{"y", "yes", "on", "true", "t"}, word), nil
	case slices.Contains([]string{"true", "on", "yes", "1"}, word):
		return true, nil
	case slices.Contains([]string{"false", "off", "no", "0"}, word):
		return false, nil
	}
	return false, errFlag(names[0], word)
}

// optional is flag for one that need not be given: nil then.
func (c *call) optional(names ...string) (*bool, error) {
	if c.get(names...) == "" {
		return nil, nil
	}
	b, err := c.flag(false, names...)
	return &b, err
}

// metadata is nil if there is none; code is what a later version calls the
// error.
func (c *call) metadata(code int) (nacos.Metadata, error) {
	s := c.get("metadata")
	if s == "" {
		return nil, nil
	}
	m, err := nacos.ParseMetadata(s)
	if err != nil {
		return nil, errMetadata(s, code)
	}
	if err := nacos.CheckMetadata(m); err != nil {
		return nil, errParam(err)
	}
	return m, nil
}

// namespace reads the namespace of a request that names no service.
func (p params) namespace() (string, error) {
	id := p.raw("namespaceId")
	if err := nacos.CheckService(id, "", ""); err != nil {
		return "", errParam(err)
	}
	return cmp.Or(id, registry.DefaultNamespace), nil
}

// service reads the name of a service: group@@name, whose group wins, or a
// bare name and groupName. Key.Name is "" if there is none; everything else
// has been checked.
func (p params) service() (registry.ServiceKey, error) {
	key := registry.ServiceKey{Namespace: p.raw("namespaceId"), Group: p.raw("groupName"), Name: p.get("serviceName")}
	if group, name, grouped := strings.Cut(key.Name, "@@"); grouped {
		// In the order of Nacos, where trailing separators do not count.
		if strings.ReplaceAll(name, "@@", "") == "" {
			return key, errNotGrouped
		}
		if nacos.Blank(group) {
			return key, errNoGroup
		}
		key.Group, key.Name = group, name
	}
	if err := nacos.CheckService(key.Namespace, key.Name, key.Group); err != nil {
		return key, errParam(err)
	}
	if key.Namespace == "" {
		key.Namespace = registry.DefaultNamespace
	}
	if key.Group == "" {
		key.Group = registry.DefaultGroup
	}
	return key, nil
}

// instance reads what names an instance. The checks come before the question
// whether something is missing, as in Nacos.
func (p params) instance() (registry.ServiceKey, registry.InstanceKey, error) {
	at := registry.InstanceKey{Cluster: p.raw("clusterName", "cluster"), IP: p.raw("ip")}
	key, err := p.service()
	if err != nil {
		return key, at, err
	}
	if err := nacos.CheckCluster(at.Cluster); err != nil {
		return key, at, errParam(err)
	}
	if at.Port, err = checkAddress(at.IP, p.raw("port")); err != nil {
		return key, at, err
	}
	if at.Cluster == "" {
		at.Cluster = registry.DefaultCluster
	}
	switch {
	case key.Name == "":
		err = errMissing("serviceName")
	case at.IP == "":
		err = errMissing("ip")
	case p.raw("port") == "":
		err = errMissing("port")
	}
	return key, at, err
}

// checkAddress reads a port; none is 0.
func checkAddress(ip, port string) (int, error) {
	if err := nacos.CheckIP(ip); err != nil {
		return 0, errParam(err)
	}
	if port == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		n = -1 // whatever is wrong, Nacos says the same of it
	}
	if err := nacos.CheckPort(n); err != nil {
		return 0, errParam(err)
	}
	return n, nil
}

// attributes are what a request says about an instance; nil is not given.
type attributes struct {
	weight           *float64
	enabled, healthy *bool
	metadata         nacos.Metadata
}

func (c *call) attributes() (attributes, error) {
	var a attributes
	var err error
	if a.metadata, err = c.metadata(codeInstanceMetadata); err != nil {
		return a, err
	}
	if s := c.get("weight"); s != "" {
		w, err := nacos.ParseFloat(s, 64)
		if errors.Is(err, strconv.ErrSyntax) {
			return a, errNumber(s)
		}
		if err := checkWeight(w); err != nil {
			return a, err
		}
		a.weight = &w
	}
	if a.enabled, err = c.optional("enabled", "enable"); err != nil {
		return a, err
	}
	if a.healthy, err = c.optional("healthy"); err != nil {
		return a, err
	}
	_, err = c.optional("ephemeral") // whoever it matters to reads it
	return a, err
}

// maxWeight is that of Nacos.
const maxWeight = 10_000

// checkWeight refuses NaN as well, which no JSON can carry.
func checkWeight(w float64) error {
	if !(w >= 0 && w <= maxWeight) {
		return errInstance(nacos.ErrWeight)
	}
	return nil
}
