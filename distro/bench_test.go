package distro

import (
	"fmt"
	"testing"

	"github.com/starling-registry/starling/pkg/registry"
)

func benchLife(n int) *life {
	l := newLife(testLife(1, 1))
	r := samplePublication()
	r.Instances, r.Hides = r.Instances[:1], nil
	for v := uint64(1); v <= uint64(n); v++ {
		r.Client = fmt.Sprint("client", v)
		d, err := decodeRecord(encodeSample(r, v), nil)
		if err != nil {
			panic(err)
		}
		l.put(d.record)
	}
	l.applied = uint64(n)
	return l
}

func BenchmarkEncodeRecord(b *testing.B) {
	r := samplePublication()
	r.Instances, r.Hides = r.Instances[:1], nil
	b.ReportAllocs()
	for b.Loop() {
		encodeSample(r, 1)
	}
}

// A frame of 10,000 records, from the bytes to the life.
func BenchmarkApplyFrame(b *testing.B) {
	c := benchLife(10_000).cut(0)
	b.ReportAllocs()
	for b.Loop() {
		l := newLife(c.life)
		if _, _, o := l.merge(send(b, c)); o != merged {
			b.Fatal(o)
		}
	}
}

// The digest is kept with each write.
func BenchmarkPut(b *testing.B) {
	l := benchLife(10_000)
	all := l.above(0)
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		r := *all[n%len(all)]
		r.version, r.stale = uint64(10_001+n), false
		l.put(&r)
		l.compact()
		n++
	}
}

func BenchmarkCutSmall(b *testing.B) {
	l := benchLife(10_000)
	for b.Loop() {
		c := l.cut(l.applied - 10)
		c.part(c.records, 0, 1, 0)
	}
}

func BenchmarkCutWhole(b *testing.B) {
	l := benchLife(10_000)
	b.ReportAllocs()
	for b.Loop() {
		l.cut(0).parts(1, func([]byte) error { return nil })
	}
}

func BenchmarkHeads(b *testing.B) {
	d := alone(b)
	for n := range 10 {
		l := benchLife(10)
		l.id = registry.Life{Node: testLife(2, 1).Node, Epoch: uint64(n + 1)}
		d.lives[l.id] = l
	}
	d.served = true
	for b.Loop() {
		encodeHeads(d.headsLocked(nil))
	}
}
