package client

import "github.com/starling-registry/starling/pkg/nacos"

type fuzzyWatches struct{}

func newFuzzyWatches(c *Client) *fuzzyWatches                   { return &fuzzyWatches{} }
func (f *fuzzyWatches) take(s *session, p *nacos.Payload) error { return nil }
