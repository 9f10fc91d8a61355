package nacos

import (
	"encoding/json"
	"fmt"
	"testing"

	"google.golang.org/grpc/mem"

	"github.com/starling-registry/starling/pkg/registry"
)

func BenchmarkDecode(b *testing.B) {
	for _, u := range usualBodies {
		b.Run(u.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := DecodeBody([]byte(u.body), u.new()); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(u.name+"-encoding/json", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := json.Unmarshal([]byte(u.body), u.new()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkPayload(b *testing.B) {
	p := &Payload{Type: TypeInstanceRequest, ClientIP: "10.0.0.1", Headers: map[string]string{"app": "shop"}, Body: []byte(usualBodies[0].body)}
	wire, err := Codec{}.Marshal(p)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("marshal", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = Codec{}.Marshal(p)
		}
	})
	b.Run("unmarshal", func(b *testing.B) {
		b.ReportAllocs()
		data := mem.BufferSlice{mem.SliceBuffer(wire.Materialize())}
		for b.Loop() {
			_ = Codec{}.Unmarshal(data, new(Payload))
		}
	})
}

func benchSnapshot(n int) *registry.Snapshot {
	s := &registry.Snapshot{Service: registry.ServiceKey{Namespace: "public", Group: "DEFAULT_GROUP", Name: "order"}}
	for i := range n {
		s.Instances = append(s.Instances, &registry.Shown{Instance: &registry.Instance{
			InstanceKey: registry.InstanceKey{IP: fmt.Sprintf("10.0.%d.%d", i/250, i%250), Port: 8080, Cluster: "DEFAULT"},
			Weight:      1, Healthy: true, Enabled: true, Metadata: registry.NewMetadata(map[string]string{"zone": "a", "version": "1.2.3"}),
		}})
	}
	return s
}

func BenchmarkEncodeHosts(b *testing.B) {
	for _, n := range []int{1, 10, 20, 1000} {
		s := benchSnapshot(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				EncodeHosts(s, registry.Filter{})
			}
		})
	}
}

func BenchmarkQueryResponse(b *testing.B) {
	s := benchSnapshot(20)
	info := ServiceInfo{Name: "order", Group: "DEFAULT_GROUP", Clusters: new(""), LastRefTime: 1796011661000, Hosts: EncodeHosts(s, registry.Filter{})}
	b.ReportAllocs()
	for b.Loop() {
		_, _ = Codec{}.Marshal(QueryServiceResponse(info, ""))
	}
}

func BenchmarkInstanceResponse(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		_, _ = Codec{}.Marshal(OperationResponse(TypeInstanceResponse, OpRegister, ""))
	}
}
