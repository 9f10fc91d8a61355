package nacos

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

func wire(t testing.TB, p *Payload) []byte {
	t.Helper()
	b, err := Codec{}.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return b.Materialize()
}

func TestPayloadRoundTrip(t *testing.T) {
	for _, p := range []*Payload{
		{},
		{Type: "HealthCheckRequest"},
		{Type: "InstanceRequest", ClientIP: "10.0.0.1", Headers: map[string]string{"app": "shop", "": "", "k": ""}, Body: []byte(`{"a":1}`)},
		{Type: "x", Body: bytes.Repeat([]byte("long"), 100_000)},
	} {
		got := new(Payload)
		if err := (Codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(wire(t, p))}, got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(p, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// What is sent in parts is one body to the receiver, and the shared part is
// not copied.
func TestPayloadInParts(t *testing.T) {
	shared := []byte("shared")
	p := &Payload{Type: "T", Body: []byte("{"), Shared: shared, Tail: []byte("}")}
	out, err := Codec{}.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	if &out[1].ReadOnlyData()[0] != &shared[0] {
		t.Error("the shared bytes were copied")
	}
	got := new(Payload)
	if err := (Codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(out.Materialize())}, got); err != nil || string(got.Body) != "{shared}" {
		t.Errorf("%q, %v", got.Body, err)
	}
}

// payloadType is the message of grpc-protocol §1.2, built from its
// description: a second opinion on the codec.
func payloadType(t testing.TB) protoreflect.MessageDescriptor {
	t.Helper()
	str := descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum()
	msg := descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum()
	raw := descriptorpb.FieldDescriptorProto_TYPE_BYTES.Enum()
	opt, rep := descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(), descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
	field := func(name string, n int32, typ *descriptorpb.FieldDescriptorProto_Type, label *descriptorpb.FieldDescriptorProto_Label, of string) *descriptorpb.FieldDescriptorProto {
		f := &descriptorpb.FieldDescriptorProto{Name: &name, Number: &n, Type: typ, Label: label}
		if of != "" {
			f.TypeName = &of
		}
		return f
	}
	fd, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: new("t.proto"), Package: new("t"), Syntax: new("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{
			{Name: new("Any"), Field: []*descriptorpb.FieldDescriptorProto{field("type_url", 1, str, opt, ""), field("value", 2, raw, opt, "")}},
			{Name: new("Metadata"), Field: []*descriptorpb.FieldDescriptorProto{field("type", 3, str, opt, ""), field("clientIp", 8, str, opt, ""), field("headers", 7, msg, rep, ".t.Metadata.HeadersEntry")},
				NestedType: []*descriptorpb.DescriptorProto{{Name: new("HeadersEntry"), Options: &descriptorpb.MessageOptions{MapEntry: new(true)},
					Field: []*descriptorpb.FieldDescriptorProto{field("key", 1, str, opt, ""), field("value", 2, str, opt, "")}}}},
			{Name: new("Payload"), Field: []*descriptorpb.FieldDescriptorProto{field("metadata", 2, msg, opt, ".t.Metadata"), field("body", 3, msg, opt, ".t.Any")}},
		}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return fd.Messages().ByName("Payload")
}

func TestPayloadAgreesWithProtobuf(t *testing.T) {
	md := payloadType(t)
	p := &Payload{Type: "InstanceRequest", ClientIP: "10.0.0.1", Headers: map[string]string{"app": "shop"}, Body: []byte(`{}`)}
	m := dynamicpb.NewMessage(md)
	if err := proto.Unmarshal(wire(t, p), m); err != nil {
		t.Fatal(err)
	}
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	got := new(Payload)
	if err := (Codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(p, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func FuzzPayload(f *testing.F) {
	f.Add(wire(f, &Payload{Type: "T", ClientIP: "1", Headers: map[string]string{"a": "b"}, Body: []byte("{}")}))
	f.Add([]byte{0x12, 0xff})
	f.Add(protowire.AppendVarint(nil, 1<<60))
	md := payloadType(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		p := new(Payload)
		err := (Codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(bytes.Clone(b))}, p)
		m := dynamicpb.NewMessage(md)
		if proto.Unmarshal(b, m) == nil && err != nil {
			t.Fatalf("refused what protobuf accepts: %v", err)
		}
		if err != nil {
			return
		}
		again := new(Payload)
		if err := (Codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(wire(t, p))}, again); err != nil {
			t.Fatal(err)
		}
		if len(p.Body) == 0 {
			p.Body = nil // an empty body is left out
		}
		if diff := cmp.Diff(p, again); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
