package registry

import (
	"fmt"
	"strconv"
	"testing"
)

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

// BenchmarkApply is per instance, of what a node pulls at its start.
func BenchmarkApply(b *testing.B) {
	life := Life{"other", 1}
	var records []Record
	for n := range 10_000 {
		key := ServiceKey{DefaultNamespace, DefaultGroup, fmt.Sprint(n / 20)}
		is := inst(fmt.Sprintf("10.0.%d.%d", n/256, n%256))
		records = append(records, Record{RecordKey: RecordKey{fmt.Sprint(n), key}, Clock: Stamp(n), Cause: CauseRegistered, Instances: []Published{{is, Stamp(n)}}})
	}
	b.ReportAllocs()
	for b.Loop() {
		r := New(DefaultOptions())
		r.Apply(life, records)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(records)), "ns/instance")
}

// BenchmarkReconnect is a client that registers and loses its connection, each
// time another one.
func BenchmarkReconnect(b *testing.B) {
	opts := DefaultOptions()
	var r *Registry
	opts.Wrote = func(k RecordKey) { r.Take(k) }
	r = New(opts)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		c := r.Open("c", Connection)
		c.Register(order, []*Instance{inst(strconv.Itoa(n))}, false)
		c.Close(CauseConnectionLost)
		if n++; n%10_000 == 0 {
			r.Sweep()
		}
	}
}
