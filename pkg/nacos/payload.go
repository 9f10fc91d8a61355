package nacos

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// The two gRPC services of a Nacos server. Their names have no package
// (grpc-protocol §0 rule 1).
const (
	RequestService  = "Request"         // method "request", unary
	BiStreamService = "BiRequestStream" // method "requestBiStream"
)

// A Payload is the one message of both services: a type name and a JSON body
// (grpc-protocol §1.2).
type Payload struct {
	Type     string
	ClientIP string            // what the sender believes its address to be
	Headers  map[string]string // credentials and app name
	// The JSON on the wire is Body, Shared and Tail, one after the other. A
	// received payload has Body only. Shared may belong to many messages at
	// once and is never copied or changed.
	Body, Shared, Tail []byte
}

// Field numbers of Payload, Metadata and google.protobuf.Any.
const (
	payloadMetadata  = 2
	payloadBody      = 3
	metadataType     = 3
	metadataClientIP = 8
	metadataHeaders  = 7
	anyValue         = 2
	mapKey, mapValue = 1, 2
)

// Codec reads and writes [Payload] with protowire. Generated code would not do:
// the messages have no proto package, so ours and an official SDK's could not
// be linked into one program, and it would copy the shared bytes of a push
// for every subscriber. It serves gRPC as an encoding.CodecV2.
type Codec struct{}

// Name is the content subtype that clients send.
func (Codec) Name() string { return "proto" }

// Marshal encodes a *Payload. The Shared and Tail bytes are handed to gRPC as
// they are.
func (Codec) Marshal(v any) (mem.BufferSlice, error) {
	p, ok := v.(*Payload)
	if !ok {
		return nil, fmt.Errorf("cannot encode %T as a Nacos payload", v)
	}
	body := len(p.Body) + len(p.Shared) + len(p.Tail)
	meta := sizeBytes(metadataType, len(p.Type)) + sizeBytes(metadataClientIP, len(p.ClientIP))
	for k, v := range p.Headers {
		meta += protowire.SizeTag(metadataHeaders) + protowire.SizeBytes(sizeBytes(mapKey, len(k))+sizeBytes(mapValue, len(v)))
	}
	b := make([]byte, 0, sizeBytes(payloadMetadata, meta)+2*(1+protowire.SizeVarint(uint64(body)+8))+len(p.Body))
	b = appendLen(b, payloadMetadata, meta)
	b = appendText(b, metadataType, p.Type)
	for k, v := range p.Headers {
		b = appendLen(b, metadataHeaders, sizeBytes(mapKey, len(k))+sizeBytes(mapValue, len(v)))
		b = appendText(appendText(b, mapKey, k), mapValue, v)
	}
	b = appendText(b, metadataClientIP, p.ClientIP)
	b = appendLen(b, payloadBody, sizeBytes(anyValue, body))
	if body > 0 {
		b = appendLen(b, anyValue, body)
		b = append(b, p.Body...)
	}
	out := mem.BufferSlice{mem.SliceBuffer(b)}
	if len(p.Shared) > 0 {
		out = append(out, mem.SliceBuffer(p.Shared))
	}
	if len(p.Tail) > 0 {
		out = append(out, mem.SliceBuffer(p.Tail))
	}
	return out, nil
}

// sizeBytes is the encoded size of a bytes field; an empty one is left out.
func sizeBytes(field protowire.Number, n int) int {
	if n == 0 {
		return 0
	}
	return protowire.SizeTag(field) + protowire.SizeBytes(n)
}

func appendLen(b []byte, field protowire.Number, n int) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.BytesType), uint64(n))
}

func appendText(b []byte, field protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return append(appendLen(b, field, len(s)), s...)
}

// Unmarshal decodes into a *Payload, which owns its bytes afterwards.
func (Codec) Unmarshal(data mem.BufferSlice, v any) error {
	p, ok := v.(*Payload)
	if !ok {
		return fmt.Errorf("cannot decode a Nacos payload into %T", v)
	}
	// One copy of the message: gRPC takes its buffers back, and the payload's
	// strings and body can then share it.
	return p.decode(data.Materialize())
}

func (p *Payload) decode(b []byte) error {
	*p = Payload{}
	return eachField(b, func(num protowire.Number, v []byte) error {
		switch num {
		case payloadMetadata:
			return eachField(v, p.decodeMetadata)
		case payloadBody:
			return eachField(v, func(num protowire.Number, v []byte) error {
				if num == anyValue {
					p.Body = v
				}
				return nil
			})
		}
		return nil
	})
}

func (p *Payload) decodeMetadata(num protowire.Number, v []byte) error {
	switch num {
	case metadataType:
		p.Type = string(v)
	case metadataClientIP:
		p.ClientIP = string(v)
	case metadataHeaders:
		var key, value string
		err := eachField(v, func(num protowire.Number, v []byte) error {
			switch num {
			case mapKey:
				key = string(v)
			case mapValue:
				value = string(v)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if p.Headers == nil {
			p.Headers = map[string]string{}
		}
		p.Headers[key] = value
	}
	return nil
}

// eachField calls f for every length-delimited field of a message and skips
// the others.
func eachField(b []byte, f func(protowire.Number, []byte) error) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("broken payload: %w", protowire.ParseError(n))
		}
		b = b[n:]
		if typ != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
				return fmt.Errorf("broken payload: %w", protowire.ParseError(n))
			}
			b = b[n:]
			continue
		}
		v, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return fmt.Errorf("broken payload: %w", protowire.ParseError(n))
		}
		if err := f(num, v); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}
