package httpapi

import (
	"context"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

// putCluster serves PUT cluster: how the persistent instances of a cluster are
// checked (http-api §5.11, §8.2).
func (s *Server) putCluster(c *call) error {
	key, err := c.service()
	if err != nil {
		return err
	}
	m := registry.DefaultClusterMeta(c.get("clusterName"))
	if err := nacos.CheckCluster(m.Name); err != nil {
		return errParam(err)
	}
	if m.CheckPort, err = checkAddress("", c.raw("checkPort")); err != nil {
		return err
	}
	if key.Name == "" {
		return errMissing("serviceName")
	}
	for _, name := range []string{"clusterName", "checkPort", "useInstancePort4Check", "healthChecker"} {
		if c.get(name) == "" {
			return errMissing(name)
		}
	}
	if m.UseInstancePort, err = c.flag(true, "useInstancePort4Check"); err != nil {
		return err
	}
	if m.Checker, err = nacos.ParseChecker(c.get("healthChecker")); err != nil {
		return errValue(err)
	}
	md, err := c.metadata(codeServiceMetadata)
	if err != nil {
		return err
	}
	m.Metadata = registry.NewMetadata(md)
	if !s.opts.Registry.Exists(key) {
		return errNoServiceOfCluster(key)
	}
	if m.Checker.Password == nacos.HiddenPassword {
		m.Checker.Password = s.opts.Registry.Snapshot(key).Meta.Cluster(m.Name).Checker.Password
	}
	_, err = s.durably(c, func(ctx context.Context, d Durable) error {
		return d.PutCluster(ctx, key, m, s.opts.Registry.Kind(key) == registry.PersistentService)
	})
	if err != nil {
		return err
	}
	return c.ok()
}
