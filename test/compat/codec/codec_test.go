// Package codec links the official Go SDK and Starling's wire format into one program, as an
// application does that uses both. The SDK's messages have no proto package, so a second
// registration of the same names would panic before main.
package codec

import (
	"bytes"
	"maps"
	"testing"

	sdk "github.com/nacos-group/nacos-sdk-go/v2/api/grpc"
	_ "github.com/nacos-group/nacos-sdk-go/v2/clients" // the SDK as an application links it
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/starling-registry/starling/pkg/nacos"
)

// TestBothInOneProgram has passed its first half when it starts; the rest makes sure that the two
// encodings of the same message are one.
func TestBothInOneProgram(t *testing.T) {
	for _, want := range []nacos.Payload{
		{},
		{Type: "ServerCheckRequest", Body: []byte(`{}`)},
		{Type: "InstanceRequest", ClientIP: "10.0.0.1", Headers: map[string]string{"app": "order", "empty": ""},
			Body: bytes.Repeat([]byte(`{"name":"Größe"}`), 1000)},
	} {
		theirs := &sdk.Payload{
			Metadata: &sdk.Metadata{Type: want.Type, ClientIp: want.ClientIP, Headers: want.Headers},
			Body:     &anypb.Any{Value: want.Body},
		}
		b, err := proto.Marshal(theirs)
		if err != nil {
			t.Fatal(err)
		}
		var decoded nacos.Payload
		if err := (nacos.Codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, &decoded); err != nil {
			t.Errorf("decoding the SDK's %s: %v", want.Type, err)
		} else if !equal(decoded, want) {
			t.Errorf("the SDK's %+v decodes as %+v", want, decoded)
		}

		ours, err := (nacos.Codec{}).Marshal(&want)
		if err != nil {
			t.Fatal(err)
		}
		theirs.Reset()
		if err := proto.Unmarshal(ours.Materialize(), theirs); err != nil {
			t.Errorf("the SDK decoding our %s: %v", want.Type, err)
			continue
		}
		decoded = nacos.Payload{Type: theirs.GetMetadata().GetType(), ClientIP: theirs.GetMetadata().GetClientIp(),
			Headers: theirs.GetMetadata().GetHeaders(), Body: theirs.GetBody().GetValue()}
		if !equal(decoded, want) {
			t.Errorf("the SDK decodes our %+v as %+v", want, decoded)
		}
	}
}

func equal(a, b nacos.Payload) bool {
	return a.Type == b.Type && a.ClientIP == b.ClientIP && maps.Equal(a.Headers, b.Headers) && bytes.Equal(a.Body, b.Body)
}
