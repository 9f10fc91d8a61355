package cluster

import (
	"fmt"

	"google.golang.org/grpc/mem"
)

// rawCodec passes messages through as they are. On the wire that is what the
// typed service of proto would send, so it has that codec's name.
type rawCodec struct{}

// A body is a message to send, or where to put one.
type body struct{ b []byte }

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*body)
	if !ok {
		return nil, fmt.Errorf("cluster: cannot send a %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(m.b)}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*body)
	if !ok {
		return fmt.Errorf("cluster: cannot receive a %T", v)
	}
	m.b = data.Materialize()
	return nil
}
