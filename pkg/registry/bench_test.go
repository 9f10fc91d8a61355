package registry

import "testing"

func BenchmarkRegisterUnchanged(b *testing.B) {
	r := New(DefaultOptions())
	c := r.Open("c", Connection)
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Register(order, []*Instance{inst("10.0.0.1")}, false); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkServe(b *testing.B) {
	r := New(DefaultOptions())
	if err := r.Open("c", Connection).Register(order, []*Instance{inst("10.0.0.1")}, false); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		r.Serve(order)
	}
}
