package httpapi

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	"github.com/starling-registry/starling/pkg/api"
)

// nativeSubscribers serves GET /subscribers.
func (s *Server) nativeSubscribers(r *http.Request) (any, error) {
	q, err := query(r, "namespace", "group", "service")
	if err != nil {
		return nil, err
	}
	key, err := q.nativeService()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), subscribersTimeout)
	defer cancel()
	out := api.Subscribers{Service: nativeKey(key), Subscribers: []api.Subscriber{}, Nodes: []api.SubscribersNode{}}
	for _, n := range s.opts.Clients.Subscribers(ctx, Subscribed{Service: key, Everywhere: true}) {
		out.Nodes = append(out.Nodes, api.SubscribersNode{Node: n.Node, Name: n.Name, Error: n.Error, Truncated: n.Truncated})
		for _, one := range n.Subscribers {
			out.Subscribers = append(out.Subscribers, one.Subscriber)
		}
	}
	slices.SortFunc(out.Nodes, func(a, b api.SubscribersNode) int { return cmp.Compare(a.Node, b.Node) })
	api.SortSubscribers(out.Subscribers)
	return out, nil
}
