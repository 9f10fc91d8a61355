package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

// named reads the name of the service that a request is about; one that lacks
// it is told so as the version does (golden scenarios 12, 32, 43).
func (c *call) named() (registry.ServiceKey, error) {
	key, err := c.service()
	if err != nil || key.Name != "" {
		return key, err
	}
	declared := false // the framework asks for it
	switch c.r.Method {
	case http.MethodPost:
		declared = c.version == v1
	case http.MethodGet, http.MethodHead, http.MethodDelete:
		declared = c.version != v3
	}
	if declared {
		return key, errMissingDeclared("serviceName")
	}
	return key, errMissing("serviceName")
}

// described reads what an operator says of a service; what is not given has
// its default (http-api §5.9).
func (c *call) described() (*registry.ServiceMeta, error) {
	m := new(registry.ServiceMeta)
	md, err := c.metadata(codeServiceMetadata)
	if err != nil {
		return nil, err
	}
	m.Metadata = registry.NewMetadata(md)
	if s := c.get("protectThreshold"); s != "" {
		f, err := nacos.ParseFloat(s, 64)
		switch {
		case errors.Is(err, strconv.ErrSyntax) && c.version == v1: // counts as 0
		case err != nil, math.IsNaN(f), math.IsInf(f, 0):
			return nil, errNumber(s)
		default:
			m.ProtectThreshold = f
		}
	}
	if m.Selector, err = nacos.ParseSelector(c.get("selector")); err != nil {
		return nil, errSelector(err)
	}
	return m, nil
}

// createService serves POST service. In v1 it is always a persistent one.
func (s *Server) createService(c *call) error {
	key, err := c.named()
	if err != nil {
		return err
	}
	m, err := c.described()
	if err != nil {
		return err
	}
	ephemeral, err := c.flag(false, "ephemeral")
	if err != nil {
		return err
	}
	m.Persistent = !ephemeral || c.version == v1
	if s.opts.Registry.Exists(key) {
		return errServiceExists(key)
	}
	refused, err := s.durably(c, func(ctx context.Context, d Durable) error { return d.CreateService(ctx, key, m) })
	switch {
	case refused == Exists, refused == WrongKind: // other nodes know more
		return errServiceExists(key)
	case err != nil:
		return err
	}
	return c.ok()
}

// updateService serves PUT service: all that is said of it is replaced, its
// kind stays (semantics V14).
func (s *Server) updateService(c *call) error {
	key, err := c.named()
	if err != nil {
		return err
	}
	if c.version == v1 && c.get("protectThreshold") == "" {
		return errMissing("protectThreshold")
	}
	m, err := c.described()
	if err != nil {
		return err
	}
	if !s.soon(c.r.Context(), func() bool { return s.opts.Registry.Exists(key) }) {
		return errServiceUnknown(key)
	}
	m.Persistent = s.opts.Registry.Kind(key) == registry.PersistentService
	refused, err := s.durably(c, func(ctx context.Context, d Durable) error { return d.UpdateService(ctx, key, m) })
	switch {
	case refused == NotFound:
		return errServiceUnknown(key)
	case err != nil:
		return err
	}
	return c.ok()
}

// removeService serves DELETE service. One that nobody has described is only
// waiting to be cleaned up when it is empty: that is a success too.
func (s *Server) removeService(c *call) error {
	key, err := c.named()
	if err != nil {
		return err
	}
	exists := s.opts.Registry.Exists(key)
	// Evictions end with their service: instances that are only evicted would be
	// back at once.
	if snap := s.opts.Registry.Snapshot(key); len(snap.Instances)+len(snap.Evicted) > 0 {
		return errServiceNotEmpty(key)
	}
	refused, err := s.durably(c, func(ctx context.Context, d Durable) error { return d.RemoveService(ctx, key) })
	switch {
	case refused == NotEmpty:
		return errServiceNotEmpty(key)
	case refused == NotFound && !exists:
		return errServiceUnknown(key)
	case refused == NotFound:
	case err != nil:
		return err
	}
	return c.ok()
}

// service serves GET service.
func (s *Server) service(c *call) error {
	key, err := c.named()
	if err != nil {
		return err
	}
	if !s.opts.Registry.Exists(key) {
		return errServiceNotFound(key)
	}
	snap := s.opts.Registry.Snapshot(key)
	d := nacos.Service{Key: key, Meta: snap.Meta, Clusters: clustersOf(snap.Instances), Ephemeral: s.opts.Registry.Kind(key) != registry.PersistentService}
	encode := map[version]func() ([]byte, error){v1: d.EncodeV1, v2: d.EncodeV2, v3: d.EncodeV3}[c.version]
	return c.encoded(encode())
}

// clustersOf names the clusters that have instances, sorted: as in Nacos,
// others are not shown (golden scenario 16).
func clustersOf(hosts []*registry.Shown) []string {
	names := make([]string, 0, 1)
	for _, h := range hosts {
		if n := len(names); n == 0 || names[n-1] != h.Cluster {
			names = append(names, h.Cluster)
		}
	}
	slices.Sort(names) // there may be as many as instances
	return slices.Compact(names)
}

// serviceNames serves GET service/list of v1 and v2: a page of the services of
// a group. A selector is not looked at, as in Nacos since 2.0.
func (s *Server) serviceNames(c *call) error {
	key, err := c.service()
	if err != nil {
		return err
	}
	items := "services"
	number, size, err := c.page(20)
	if err != nil {
		return err
	}
	if c.version == v1 {
		items = "doms"
	} else {
		size = min(size, 500)
	}
	names := s.opts.Registry.Services(key.Namespace, key.Group)
	page := nacos.Page(names, number, size)
	if page == nil {
		page = []string{}
	}
	return c.answerJSON(map[string]any{"count": len(names), items: page})
}

// selectorTypes serves GET service/selector/types.
func (s *Server) selectorTypes(c *call) error {
	const types = `["label","none"]`
	if c.version == v1 {
		return c.bare([]byte(`{"code":200,"message":null,"data":` + types + `,"noRight":false}`))
	}
	return c.answer([]byte(types))
}

// serviceViews serves GET service/list of v3: the services of a namespace whose
// name and group contain the given texts, with counts or with their instances.
func (s *Server) serviceViews(c *call) error {
	namespace, err := c.namespace()
	if err != nil {
		return err
	}
	number, size, err := c.page(100)
	if err != nil {
		return err
	}
	skipEmpty, err := c.flag(false, "ignoreEmptyService")
	if err != nil {
		return err
	}
	withHosts, err := c.flag(false, "withInstances")
	if err != nil {
		return err
	}
	page, total := s.servicesLike(c, namespace, number, size, skipEmpty, nil)
	of := nacos.NewListPage(total, number, size)
	head := fmt.Sprintf(`{"totalCount":%d,"pageNumber":%d,"pagesAvailable":%d,"pageItems":[`, of.Total, of.Number, of.Available)
	return stream(c, head, page, func(k registry.ServiceKey) ([]byte, error) {
		snap := s.opts.Registry.Snapshot(k)
		if !withHosts {
			return json.Marshal(view(snap))
		}
		d := nacos.Service{Key: k, Meta: snap.Meta, Clusters: clustersOf(snap.Instances)}
		return d.EncodeV3Hosts(snap.Instances)
	}, "]}")
}

// servicesLike are a page (cut as [nacos.Page] does) and the number of those
// services of a namespace whose name and group contain the wanted texts, and
// whose instances are wanted (nil: any are). There may be a million; only the
// page is kept.
func (s *Server) servicesLike(c *call, namespace string, number, size int, skipEmpty bool, wanted func([]*registry.Shown) bool) (page []registry.ServiceKey, total int) {
	name, groupName := c.get("serviceNameParam"), c.get("groupNameParam")
	from := (max(number, 1) - 1) * size // both have 31 bits
	reg := s.opts.Registry
	for _, group := range reg.Groups(namespace) {
		if !strings.Contains(group, groupName) {
			continue
		}
		for _, n := range reg.Services(namespace, group) {
			if !strings.Contains(n, name) {
				continue
			}
			k := registry.ServiceKey{Namespace: namespace, Group: group, Name: n}
			if skipEmpty || wanted != nil {
				hosts := reg.Snapshot(k).Instances
				if skipEmpty && len(hosts) == 0 || wanted != nil && !wanted(hosts) {
					continue
				}
			}
			if total >= from && len(page) < size {
				page = append(page, k)
			}
			total++
		}
	}
	return page, total
}

// searchNames serves service/names of v1, with any method: the services of a
// namespace, or of all, whose grouped name an expression is found in. Nacos
// since 2.2 has the names under a key that a slip gave them, before it was
// services: both are there.
func (s *Server) searchNames(c *call) error {
	if err := nacos.CheckService(c.raw("namespaceId"), "", ""); err != nil {
		return errParam(err)
	}
	expr, err := parseExpression(c.get("expr"))
	if err != nil {
		return errExpression(err)
	}
	spaces := []string{c.raw("namespaceId")}
	if spaces[0] == "" {
		spaces = slices.Sorted(maps.Keys(s.opts.Registry.Namespaces()))
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), searchLimit)
	defer cancel()
	reg, count := s.opts.Registry, 0
	found, name := []byte{'{'}, []byte(nil)
	for i, namespace := range spaces {
		if i > 0 {
			found = append(found, ',')
		}
		found = append(nacos.AppendString(found, namespace), ":["...)
		first := true
		for _, group := range reg.Groups(namespace) {
			for _, n := range reg.Services(namespace, group) {
				if ctx.Err() != nil {
					return errExpression(errors.New("the search takes too long"))
				}
				if name = append(append(append(name[:0], group...), "@@"...), n...); !expr.Match(name) {
					continue
				}
				if !first {
					found = append(found, ',')
				}
				found = nacos.AppendString(found, string(name))
				first = false
				count++
			}
		}
		found = append(found, ']')
	}
	found = append(found, '}')
	return c.answer([]byte(`{"META-INF/services":`), found, fmt.Appendf(nil, `,"count":%d,"services":`, count), found, []byte{'}'})
}

// Bounds of an expression. Matching takes time in proportion to its steps and
// to the length of what is searched, never more; {n} makes many steps of few
// characters.
const (
	maxExpression = 256
	maxSteps      = 300
	// searchLimit is for all names together.
	searchLimit = 3 * time.Second
)

func parseExpression(expr string) (*regexp.Regexp, error) {
	if len(expr) > maxExpression {
		return nil, fmt.Errorf("it is longer than %d bytes", maxExpression)
	}
	tree, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return nil, err
	}
	prog, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return nil, err
	}
	if len(prog.Inst) > maxSteps {
		return nil, errors.New("it repeats too much")
	}
	return regexp.Compile(expr)
}

func view(snap *registry.Snapshot) nacos.ServiceView {
	v := nacos.ServiceView{Name: snap.Service.Name, Group: snap.Service.Group, Clusters: len(clustersOf(snap.Instances)), Instances: len(snap.Instances)}
	for _, h := range snap.Instances {
		if h.Healthy {
			v.Healthy++
		}
	}
	threshold := 0.0
	if snap.Meta != nil {
		threshold = snap.Meta.ProtectThreshold
	}
	v.Protected = v.Instances > 0 && float64(v.Healthy)/float64(v.Instances) <= threshold
	return v
}

// page reads which page of a list is wanted. v1 has no default, and takes what
// is no number for 0, as it does one that Java's int does not hold; in v1 and v2
// a page of size 0 is empty.
func (c *call) page(defaultSize int) (number, size int, err error) {
	n := [2]int{1, defaultSize}
	for i, name := range []string{"pageNo", "pageSize"} {
		s := c.get(name)
		if s == "" {
			if c.version == v1 {
				return 0, 0, errMissing(name)
			}
			continue
		}
		is, err := strconv.ParseInt(s, 10, 32)
		switch {
		case err != nil && c.version != v1:
			return 0, 0, errNumber(s)
		case err != nil:
			is = 0
		case is < 1 && c.version == v3:
			return 0, 0, errPage(name, int(is))
		}
		n[i] = int(is)
	}
	return n[0], n[1], nil
}
