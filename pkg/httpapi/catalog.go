package httpapi

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

// The catalog is what the console of Nacos shows, and dashboards read (http-api
// §5.10, §7.4).

// catalogSize is how long a page is if the request does not say. In Nacos it
// must (golden scenario 17).
const catalogSize = 100

// catalogPage reads which page is wanted.
func (c *call) catalogPage() (number, size int, err error) {
	n := [2]int{1, catalogSize}
	for i, name := range []string{"pageNo", "pageSize"} {
		if s := c.get(name); s != "" {
			long, err := strconv.ParseInt(s, 10, 32)
			if err != nil {
				return 0, 0, errNumber(s)
			}
			n[i] = int(long)
		}
	}
	return n[0], n[1], nil
}

// catalogService serves GET catalog/service of v1. Without a name it looks for
// a service without one, as Nacos does.
func (s *Server) catalogService(c *call) error {
	key, err := c.service()
	if err != nil {
		return err
	}
	if key.Name == "" {
		return errServiceMissing(registry.ServiceKey{})
	}
	if !s.opts.Registry.Exists(key) {
		return errServiceMissing(key)
	}
	snap := s.opts.Registry.Snapshot(key)
	d := nacos.Service{Key: key, Meta: snap.Meta, Clusters: clustersOf(snap.Instances)}
	return c.encoded(d.EncodeCatalog())
}

// catalogInstances serves catalog/instances of v1: a page of the instances of
// one cluster, disabled ones too.
func (s *Server) catalogInstances(c *call) error {
	key, err := c.service()
	if err != nil {
		return err
	}
	cluster := c.raw("clusterName")
	if err := nacos.CheckCluster(cluster); err != nil {
		return errParam(err)
	}
	switch {
	case key.Name == "":
		return errMissingDeclared("serviceName")
	case cluster == "":
		return errMissingDeclared("clusterName")
	}
	number, size, err := c.catalogPage()
	if err != nil {
		return err
	}
	if !s.opts.Registry.Exists(key) {
		return errServiceMissing(key)
	}
	hosts := s.opts.Registry.Snapshot(key).Instances
	if !slices.Contains(clustersOf(hosts), cluster) {
		return errClusterMissing(cluster)
	}
	hosts = slices.DeleteFunc(slices.Clone(hosts), func(h *registry.Shown) bool { return h.Cluster != cluster })
	b := nacos.AppendInstances([]byte(`{"list":`), nacos.Page(hosts, number, size), key.Grouped())
	return c.answer(append(strconv.AppendInt(append(b, `,"count":`...), int64(len(hosts)), 10), '}'))
}

// catalogInstancesV2 serves catalog/instances of v2: of all clusters, those that
// are wanted. A page that is empty has no list.
func (s *Server) catalogInstancesV2(c *call) error {
	key, err := c.service()
	if err != nil {
		return err
	}
	if key.Name == "" {
		return errMissingDeclared("serviceName")
	}
	healthyOnly, err := c.flag(false, "healthyOnly")
	if err != nil {
		return err
	}
	enabledOnly, err := c.flag(false, "enabledOnly")
	if err != nil {
		return err
	}
	number, size, err := c.catalogPage()
	if err != nil {
		return err
	}
	hosts := slices.DeleteFunc(slices.Clone(s.opts.Registry.Snapshot(key).Instances), func(h *registry.Shown) bool {
		return healthyOnly && !h.Healthy || enabledOnly && !h.Enabled
	})
	b := []byte{'{'}
	if page := nacos.Page(hosts, number, size); len(page) > 0 {
		b = append(nacos.AppendInstances(append(b, `"instances":`...), page, key.Grouped()), ',')
	}
	return c.answer(append(strconv.AppendInt(append(b, `"count":`...), int64(len(hosts)), 10), '}'))
}

// catalogServices serves GET catalog/services of v1: a page of the services of
// a namespace, with counts or with their instances.
func (s *Server) catalogServices(c *call) error {
	namespace, err := c.namespace()
	if err != nil {
		return err
	}
	number, size, err := c.catalogPage()
	if err != nil {
		return err
	}
	skipEmpty, err := c.flag(false, "hasIpCount")
	if err != nil {
		return err
	}
	withHosts, err := c.flag(false, "withInstances")
	if err != nil {
		return err
	}
	var wanted func([]*registry.Shown) bool
	if like := c.get("instance"); like != "" {
		wanted = func(hosts []*registry.Shown) bool {
			return slices.ContainsFunc(hosts, func(h *registry.Shown) bool {
				return strings.Contains(h.IP+":"+strconv.Itoa(h.Port), like) || strings.Contains(net.JoinHostPort(h.IP, strconv.Itoa(h.Port)), like)
			})
		}
	}
	page, total := s.servicesLike(c, namespace, number, size, skipEmpty, wanted)
	if !withHosts {
		return stream(c, fmt.Sprintf(`{"count":%d,"serviceList":[`, total), page, func(k registry.ServiceKey) ([]byte, error) {
			return json.Marshal(view(s.opts.Registry.Snapshot(k)))
		}, "]}")
	}
	return stream(c, "[", page, func(k registry.ServiceKey) ([]byte, error) {
		snap := s.opts.Registry.Snapshot(k)
		d := nacos.Service{Key: k, Meta: snap.Meta, Clusters: clustersOf(snap.Instances), Ephemeral: s.opts.Registry.Kind(k) != registry.PersistentService}
		return d.EncodeCatalogHosts(snap.Instances)
	}, "]")
}
