package node

import (
	"errors"
	"net/http"

	"github.com/starling-registry/starling/pkg/api"
	"github.com/starling-registry/starling/pkg/httpapi"
	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/registry"
	"github.com/starling-registry/starling/raftstore"
)

// Edits tells what operators have set of a service, in a namespace or in all.
func (o *operations) Edits(of registry.ServiceKey) []httpapi.InstanceEdit {
	edits := []raftstore.Edit(nil)
	if of.Name != "" {
		edits = o.store.EditsOf(of)
	} else {
		edits = o.store.Edits(of.Namespace)
	}
	out := make([]httpapi.InstanceEdit, len(edits))
	for i, e := range edits {
		out[i] = httpapi.InstanceEdit{Service: e.Service, InstanceKey: e.InstanceKey, Override: e.Override, Since: e.Clock}
	}
	return out
}

// writeError is an error of a write to the log, wherever that is led, for
// somebody who wrote over the native API.
func (o *operations) writeError(err error) error {
	s := o.store.Status()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raftstore.ErrNoLeader):
		return &api.Error{Status: http.StatusServiceUnavailable, Code: api.CodeNoLeader, Message: "the log of the cluster has no leader: " + nacos.NoLeader,
			Hint: noLeaderHint(s.Role, s.Last)}
	case errors.Is(err, raftstore.ErrUnknownOutcome):
		return &api.Error{Status: http.StatusGatewayTimeout, Code: api.CodeUnknownOutcome, Message: "it is not known whether this was written: " + cause(forPeople{err}),
			Hint: "look before you write again"}
	case errors.Is(err, raftstore.ErrNotUnderstood):
		return &api.Error{Status: http.StatusServiceUnavailable, Code: api.CodeNotUnderstood, Message: "some nodes of the cluster are of an older release and cannot carry this out yet",
			Hint: "starling members shows their releases"}
	}
	for is, as := range map[error]api.Error{
		raftstore.ErrExists:    {Status: http.StatusConflict, Code: api.CodeConflict},
		raftstore.ErrNotFound:  {Status: http.StatusNotFound, Code: api.CodeNotFound},
		raftstore.ErrWrongKind: {Status: http.StatusConflict, Code: api.CodeConflict},
		raftstore.ErrInvalid:   {Status: http.StatusBadRequest, Code: api.CodeBadRequest},
	} {
		if errors.Is(err, is) {
			as.Message = forPeople{err}.Error()
			return &as
		}
	}
	return err
}
