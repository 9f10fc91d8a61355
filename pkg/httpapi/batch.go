package httpapi

import (
	"context"
	"maps"
	"net/http"
	"slices"

	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
)

// putMetadata serves PUT instance/metadata/batch: keys are added or replaced in
// the operators' edits of several instances (http-api §5.8).
func (s *Server) putMetadata(c *call) error {
	return s.editMetadata(c, func(given nacos.Metadata) (set registry.Metadata, remove []string) {
		return registry.NewMetadata(given), nil
	})
}

// removeMetadata serves DELETE of the same: keys are taken out of the edits.
// What a client has published stays, and is seen again (semantics V9).
func (s *Server) removeMetadata(c *call) error {
	return s.editMetadata(c, func(given nacos.Metadata) (set registry.Metadata, remove []string) {
		return nil, slices.Collect(maps.Keys(given))
	})
}

// editMetadata answers with the instances that were meant and that are there.
// consistencyType does not matter: an edit has no kind (golden scenario 11).
func (s *Server) editMetadata(c *call, edit func(nacos.Metadata) (registry.Metadata, []string)) error {
	key, err := c.service()
	if err != nil {
		return err
	}
	meant, err := nacos.ParseInstances(c.get("instances"))
	switch {
	case err == nacos.ErrBadInstances:
		return errValue(err)
	case err != nil:
		return errParam(err)
	}
	given, err := c.metadata(codeInstanceMetadata)
	switch {
	case err != nil:
		return err
	case key.Name == "":
		return errMissing("serviceName")
	case given == nil:
		return errMissing("metadata")
	}
	hosts := s.opts.Registry.Snapshot(key).Instances
	if len(meant) > 0 { // else all are
		hosts = slices.DeleteFunc(slices.Clone(hosts), func(h *registry.Shown) bool { return !meant[h.InstanceKey] })
	}
	at := make([]registry.InstanceKey, len(hosts))
	for i, h := range hosts {
		at[i] = h.InstanceKey
	}
	if c.r.Method == http.MethodPut {
		if err := s.checkSum(key, at, given); err != nil {
			return err
		}
	}
	if len(at) > 0 && len(given) > 0 {
		set, remove := edit(given)
		_, err := s.durably(c, func(ctx context.Context, d Durable) error {
			return d.EditMetadata(ctx, key, at, set, remove)
		})
		if err != nil {
			return err
		}
	}
	return c.answer(nacos.AppendUpdated(nil, hosts))
}

// checkSum bounds what the edits of instances come to: keys that are added time
// and again are in all that readers are sent.
func (s *Server) checkSum(key registry.ServiceKey, at []registry.InstanceKey, given nacos.Metadata) error {
	edits := s.editsOf(key)
	for _, k := range at {
		e := edits[k]
		if e == nil {
			continue
		}
		sum := nativeMetadata(e.Metadata)
		maps.Copy(sum, given)
		if err := nacos.CheckMetadata(sum); err != nil {
			return errParam(err)
		}
	}
	return nil
}
