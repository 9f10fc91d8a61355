package nacos

import (
	"encoding/json"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/starling-registry/starling/pkg/registry"
)

// What an operator says of services and clusters, and the texts for two kinds
// of service (http-api §4.5).

// RefusedEphemeral is what a client is told that registers an ephemeral
// instance in a persistent service (semantics D12). The blank at its end is
// Nacos's.
func RefusedEphemeral(key registry.ServiceKey, batch bool) string {
	what := "register"
	if batch {
		what = "batch register"
	}
	return "errCode: 400, errMsg: Current service " + key.Grouped() + " is persistent service, can't " + what + " ephemeral instance. "
}

// RefusedPersistent is RefusedEphemeral the other way round.
func RefusedPersistent(key registry.ServiceKey) string {
	return "errCode: 400, errMsg: Current service " + key.Grouped() + " is ephemeral service, can't register persistent instance. "
}

// RefusedEvicted is what a client is told that registers an instance, the first
// of so many, which an operator has evicted.
func RefusedEvicted(key registry.ServiceKey, first registry.InstanceKey, instances int) string {
	what := "instance " + net.JoinHostPort(first.IP, strconv.Itoa(first.Port))
	was, stays := "was", "stays"
	if instances > 1 {
		what += " and the other " + strconv.Itoa(instances-1) + " of the batch"
		was, stays = "were", "stay"
	}
	return what + " of " + key.Grouped() + " " + was + " evicted by an operator and " + stays + " out until that is lifted (starling evict --lift)"
}

// NoLeader is what a client is told when nothing can be written to the log,
// because no node leads it (semantics R8).
const NoLeader = "The Raft Group [naming_persistent_service_v2] did not find the Leader node"

// Errors of selectors and checkers.
const (
	ErrSelectorType = ParamError("not match any type of selector!")
	ErrExpression   = ParamError("Selector parses failed: parse expression failed!")
	ErrBadSelector  = ParamError("Param 'selector' is illegal, it should be a JSON object.")
	ErrBadChecker   = ParamError("Param 'healthChecker' is illegal, it should be a JSON object.")
	errExpectedCode = ParamError("Param 'healthChecker' is illegal, expectedResponseCode should be a status of HTTP.")
	ErrCheckerType  = ParamError("Param 'healthChecker' is illegal, the type should be one of TCP, HTTP, MYSQL, NONE.")
)

// ParseSelector reads a selector: JSON with a type and, for labels, an
// expression. Nothing is none.
func ParseSelector(s string) (registry.Selector, error) {
	none := registry.Selector{Type: "none"}
	if Blank(s) {
		return none, nil
	}
	var raw *struct{ Type, Expression string }
	switch {
	case json.Unmarshal([]byte(s), &raw) != nil:
		return none, ErrBadSelector
	case raw == nil, raw.Type == "none":
		return none, nil
	case raw.Type != "label":
		return none, ErrSelectorType
	}
	if _, err := labels(raw.Expression); err != nil {
		return none, err
	}
	return registry.Selector{Type: raw.Type, Expression: raw.Expression}, nil
}

// labels are the names in a label expression, sorted: terms of the form
// CONSUMER.label.x = PROVIDER.label.x, joined by &.
func labels(expression string) ([]string, error) {
	names := []string{}
	if Blank(expression) {
		return names, nil
	}
	expression = strings.Join(strings.Fields(expression), "")
	for term := range strings.SplitSeq(expression, "&") {
		consumer, provider, _ := strings.Cut(term, "=")
		name, ok := strings.CutPrefix(consumer, "CONSUMER.label.")
		if !ok || name == "" || provider != "PROVIDER.label."+name {
			return nil, ErrExpression
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// ParseChecker reads the settings of a health check: JSON with a type.
func ParseChecker(s string) (registry.Checker, error) {
	var raw *struct {
		Type         string          `json:"type"`
		Path         string          `json:"path"`
		Headers      string          `json:"headers"`
		ExpectedCode json.RawMessage `json:"expectedResponseCode"`
		User         string          `json:"user"`
		Password     string          `json:"pwd"`
		Command      string          `json:"cmd"`
	}
	if json.Unmarshal([]byte(s), &raw) != nil || raw == nil {
		return registry.Checker{}, ErrBadChecker
	}
	// Nacos takes any other type for none: a slip would end all checks.
	c := registry.Checker{Type: strings.ToUpper(raw.Type)}
	switch c.Type {
	case registry.CheckTCP, registry.CheckNone:
	case registry.CheckHTTP:
		c.Path, c.Headers, c.ExpectedCode = raw.Path, raw.Headers, 200
		if n := unquoted(raw.ExpectedCode); n != "" {
			code, err := strconv.Atoi(n)
			if err != nil || code < 100 || code > 999 {
				return c, errExpectedCode
			}
			c.ExpectedCode = code
		}
	case registry.CheckMySQL:
		c.User, c.Password, c.Command = raw.User, raw.Password, raw.Command
	default:
		return c, ErrCheckerType
	}
	return c, nil
}

// HiddenPassword is what readers are told in place of the password of a health
// check. Who writes it back means the one that there is.
const HiddenPassword = "******"

// Checkers is the answer to the question which health checks there are.
const Checkers = `{"TCP":{},"HTTP":{"path":"","headers":"","expectedResponseCode":200},"MYSQL":{"user":null,"pwd":null,"cmd":null},"NONE":{}}`

// A double is a number as Java writes it.
type double float64

func (d double) MarshalJSON() ([]byte, error) { return appendFloat(nil, float64(d)), nil }

type selectorJSON struct {
	Type        string   `json:"type"`
	ContextType string   `json:"contextType"`
	Expression  *string  `json:"expression,omitempty"`
	Labels      []string `json:"labels,omitzero"`
}

func selectorOf(s registry.Selector) selectorJSON {
	if s.Type != "label" {
		return selectorJSON{Type: "none", ContextType: "NONE"}
	}
	names, _ := labels(s.Expression) // checked when it came in
	return selectorJSON{Type: "label", ContextType: "CMDB", Expression: &s.Expression, Labels: names}
}

type checkerJSON struct {
	Type         string  `json:"type"`
	Path         *string `json:"path,omitempty"`
	Headers      *string `json:"headers,omitempty"`
	ExpectedCode *int    `json:"expectedResponseCode,omitempty"`
	User         *string `json:"user,omitempty"`
	Password     *string `json:"pwd,omitempty"`
	Command      *string `json:"cmd,omitempty"`
}

func checkerOf(c registry.Checker) *checkerJSON {
	switch c.Type {
	case registry.CheckHTTP:
		return &checkerJSON{Type: c.Type, Path: &c.Path, Headers: &c.Headers, ExpectedCode: &c.ExpectedCode}
	case registry.CheckMySQL:
		password := ""
		if c.Password != "" {
			password = HiddenPassword
		}
		return &checkerJSON{Type: c.Type, User: &c.User, Password: &password, Command: &c.Command}
	}
	return &checkerJSON{Type: c.Type}
}

func metadataOf(md registry.Metadata) json.RawMessage { return AppendMetadata(nil, md) }

// A Service is what the APIs tell of a service.
type Service struct {
	Key       registry.ServiceKey
	Meta      *registry.ServiceMeta // nil: nobody has described it
	Clusters  []string              // those that have instances, sorted
	Ephemeral bool
}

func (s *Service) meta() *registry.ServiceMeta {
	if s.Meta == nil {
		return &registry.ServiceMeta{}
	}
	return s.Meta
}

// EncodeV1 is the answer of v1.
func (s *Service) EncodeV1() ([]byte, error) {
	type cluster struct {
		Name     string          `json:"name"`
		Checker  *checkerJSON    `json:"healthChecker"`
		Metadata json.RawMessage `json:"metadata"`
	}
	m := s.meta()
	clusters := make([]cluster, len(s.Clusters))
	for i, name := range s.Clusters {
		c := m.Cluster(name)
		clusters[i] = cluster{name, checkerOf(c.Checker), metadataOf(c.Metadata)}
	}
	return json.Marshal(struct {
		Namespace string          `json:"namespaceId"`
		Group     string          `json:"groupName"`
		Name      string          `json:"name"`
		Threshold double          `json:"protectThreshold"`
		Metadata  json.RawMessage `json:"metadata"`
		Selector  selectorJSON    `json:"selector"`
		Clusters  []cluster       `json:"clusters"`
	}{s.Key.Namespace, s.Key.Group, s.Key.Name, double(m.ProtectThreshold), metadataOf(m.Metadata), selectorOf(m.Selector), clusters})
}

// A detail is a service in v2 and v3, which have a namespace each under
// another name. Null is what lists of v3 leave out (golden scenario 43).
type detail struct {
	Namespace   string                    `json:"namespace,omitempty"`
	NamespaceID json.RawMessage           `json:"namespaceId,omitempty"`
	Group       string                    `json:"groupName"`
	Name        string                    `json:"serviceName"`
	Threshold   double                    `json:"protectThreshold"`
	Metadata    json.RawMessage           `json:"metadata"`
	Selector    *selectorJSON             `json:"selector"`
	Ephemeral   *bool                     `json:"ephemeral"`
	Clusters    map[string]*clusterDetail `json:"clusterMap"`
}

type clusterDetail struct {
	Name            *string         `json:"clusterName"`
	Checker         *checkerJSON    `json:"healthChecker"`
	Metadata        json.RawMessage `json:"metadata"`
	Hosts           json.RawMessage `json:"hosts"`
	CheckPort       *int            `json:"healthyCheckPort,omitempty"`        // v3
	UseInstancePort *bool           `json:"useInstancePortForCheck,omitempty"` // v3
}

// EncodeV2 is the answer of v2.
func (s *Service) EncodeV2() ([]byte, error) {
	d := s.detail()
	d.Namespace = s.Key.Namespace
	for _, c := range d.Clusters {
		c.CheckPort, c.UseInstancePort = nil, nil
	}
	return json.Marshal(d)
}

// EncodeV3 is the answer of v3.
func (s *Service) EncodeV3() ([]byte, error) {
	d := s.detail()
	d.NamespaceID = AppendString(nil, s.Key.Namespace)
	return json.Marshal(d)
}

func (s *Service) detail() *detail {
	m := s.meta()
	d := &detail{Group: s.Key.Group, Name: s.Key.Name, Threshold: double(m.ProtectThreshold), Metadata: metadataOf(m.Metadata),
		Selector: new(selectorOf(m.Selector)), Ephemeral: &s.Ephemeral, Clusters: make(map[string]*clusterDetail, len(s.Clusters))}
	for _, name := range s.Clusters {
		c := m.Cluster(name)
		d.Clusters[name] = &clusterDetail{Name: &name, Checker: checkerOf(c.Checker), Metadata: metadataOf(c.Metadata),
			CheckPort: &c.CheckPort, UseInstancePort: &c.UseInstancePort}
	}
	return d
}

// byCluster keeps the order. There may be as many clusters as instances.
func byCluster(hosts []*registry.Shown) map[string][]*registry.Shown {
	of := map[string][]*registry.Shown{}
	for _, h := range hosts {
		of[h.Cluster] = append(of[h.Cluster], h)
	}
	return of
}

// EncodeV3Hosts is a line in the list of v3 with instances. What Nacos leaves
// empty there is left empty (golden scenario 43).
func (s *Service) EncodeV3Hosts(hosts []*registry.Shown) ([]byte, error) {
	d := &detail{NamespaceID: json.RawMessage("null"), Group: s.Key.Group, Name: s.Key.Name, Metadata: metadataOf(s.meta().Metadata),
		Clusters: make(map[string]*clusterDetail, len(s.Clusters))}
	defaults := registry.DefaultClusterMeta("")
	of := byCluster(hosts)
	for _, name := range s.Clusters {
		d.Clusters[name] = &clusterDetail{Hosts: AppendInstances(nil, of[name], s.Key.Grouped()), CheckPort: &defaults.CheckPort, UseInstancePort: &defaults.UseInstancePort}
	}
	return json.Marshal(d)
}

// EncodeCatalog is what the catalog of v1 tells of a service.
func (s *Service) EncodeCatalog() ([]byte, error) {
	type service struct {
		Name      string          `json:"name"`
		Group     string          `json:"groupName"`
		Threshold double          `json:"protectThreshold"`
		Selector  selectorJSON    `json:"selector"`
		Metadata  json.RawMessage `json:"metadata"`
	}
	type cluster struct {
		Service         string          `json:"serviceName"`
		Name            string          `json:"name"`
		Checker         *checkerJSON    `json:"healthChecker"`
		Port            int             `json:"defaultPort"`
		CheckPort       int             `json:"defaultCheckPort"`
		UseInstancePort bool            `json:"useIpPort4Check"`
		Metadata        json.RawMessage `json:"metadata"`
	}
	m := s.meta()
	clusters := make([]cluster, len(s.Clusters))
	for i, name := range s.Clusters {
		c := m.Cluster(name)
		clusters[i] = cluster{s.Key.Grouped(), name, checkerOf(c.Checker), 80, c.CheckPort, c.UseInstancePort, metadataOf(c.Metadata)}
	}
	return json.Marshal(struct {
		Service  service   `json:"service"`
		Clusters []cluster `json:"clusters"`
	}{service{s.Key.Name, s.Key.Group, double(m.ProtectThreshold), selectorOf(m.Selector), metadataOf(m.Metadata)}, clusters})
}

// EncodeCatalogHosts is a line in the list of the catalog of v1 with instances
// (http-api §5.10).
func (s *Service) EncodeCatalogHosts(hosts []*registry.Shown) ([]byte, error) {
	type host struct {
		Valid    bool            `json:"valid"`
		Metadata json.RawMessage `json:"metadata"`
		Port     int             `json:"port"`
		IP       string          `json:"ip"`
		Weight   double          `json:"weight"`
		Enabled  bool            `json:"enabled"`
	}
	d := s.detail()
	d.Namespace = s.Key.Namespace
	of := byCluster(hosts)
	for name, c := range d.Clusters {
		in := []host{}
		for _, h := range of[name] {
			in = append(in, host{h.Healthy, metadataOf(h.Metadata), h.Port, h.IP, double(h.Weight), h.Enabled})
		}
		b, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		c.Hosts, c.CheckPort, c.UseInstancePort = b, nil, nil
	}
	return json.Marshal(d)
}

// AppendInstance appends one instance as it is: no protection hides its health.
func AppendInstance(b []byte, i *registry.Instance, grouped string) []byte {
	return appendHost(b, i, grouped, false)
}

// AppendInstances appends an array of them.
func AppendInstances(b []byte, hosts []*registry.Shown, grouped string) []byte {
	b = append(b, '[')
	for i, h := range hosts {
		if i > 0 {
			b = append(b, ',')
		}
		b = AppendInstance(b, h.Instance, grouped)
	}
	return append(b, ']')
}

// A ServiceView is a line in the list of services of an operator.
type ServiceView struct {
	Name      string `json:"name"`
	Group     string `json:"groupName"`
	Clusters  int    `json:"clusterCount"`
	Instances int    `json:"ipCount"`
	Healthy   int    `json:"healthyInstanceCount"`
	Protected bool   `json:"triggerFlag,string"`
}

// A ListPage is one page of a list of v3.
type ListPage struct {
	Total     int   `json:"totalCount"`
	Number    int   `json:"pageNumber"` // from 1
	Available int   `json:"pagesAvailable"`
	Items     []any `json:"pageItems"`
}

// NewListPage is a page without its items yet; number and size are positive.
func NewListPage(total, number, size int) ListPage {
	p := ListPage{Total: total, Number: number, Items: []any{}}
	if total > 0 {
		p.Available = (total-1)/size + 1
	}
	return p
}
