package raftstore

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/starling-registry/starling/pkg/registry"
	pb "github.com/starling-registry/starling/proto"
)

// unread is where nobody reads what is committed.
type unread struct{}

func (unread) Commit([]registry.Change) {}

// registrations are n instances in services of 20.
func registrations(n int) []*raft.Log {
	logs := make([]*raft.Log, n)
	for i := range logs {
		id := binary.BigEndian.AppendUint64(make([]byte, 8), uint64(i+1))
		data, err := proto.Marshal(&pb.Command{Id: id, Clock: uint64(registry.StampAt(1_700_000_000_000 + int64(i))), Version: 1,
			Op: &pb.Command_PutInstance{PutInstance: &pb.PutInstance{
				Service: &pb.Service{Namespace: "public", Group: "DEFAULT_GROUP", Name: fmt.Sprintf("com.example.shop.service-%d", i/20)},
				Instance: &pb.Instance{Ip: fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255), Port: 8080, Cluster: "DEFAULT",
					Id:     fmt.Sprintf("10.%d.%d.%d#8080#DEFAULT#DEFAULT_GROUP@@com.example.shop.service-%d", i>>16, i>>8&255, i&255, i/20),
					Weight: 1, Healthy: true, Enabled: true, Metadata: []string{"preserved.register.source", "SPRING_CLOUD", "version", "1.4.2"}}}}})
		if err != nil {
			panic(err)
		}
		logs[i] = &raft.Log{Index: uint64(i + 1), Type: raft.LogCommand, Data: data}
	}
	return logs
}

func benchFSM() *fsm { return newFSM(unread{}, registry.NewClock(0, 0), zap.NewNop()) }

func applyAll(f *fsm, logs []*raft.Log, batch int) {
	for len(logs) > 0 {
		n := min(batch, len(logs))
		f.ApplyBatch(logs[:n])
		logs = logs[n:]
	}
}

func BenchmarkApply(b *testing.B) {
	for _, batch := range []int{1, 64} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			logs := registrations(20_000)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				if n++; n%len(logs) == 1 {
					b.StopTimer()
					f := benchFSM()
					b.StartTimer()
					applyAll(f, logs, batch)
					n += len(logs) - 1
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n/len(logs)*len(logs)), "ns/command")
		})
	}
}

// BenchmarkRestore reads 100,000 instances, and says what one takes in memory.
func BenchmarkRestore(b *testing.B) {
	f := benchFSM()
	applyAll(f, registrations(100_000), 512)
	var file bytes.Buffer
	if err := f.backup(&file); err != nil {
		b.Fatal(err)
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	into := benchFSM()
	if err := into.Restore(io.NopCloser(bytes.NewReader(file.Bytes()))); err != nil {
		b.Fatal(err)
	}
	perRow := float64(heap()-before) / 100_000
	runtime.KeepAlive(into)
	b.ReportAllocs()
	for b.Loop() {
		if err := benchFSM().Restore(io.NopCloser(bytes.NewReader(file.Bytes()))); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(perRow, "B/row")
	b.ReportMetric(float64(file.Len())/100_000, "B/row-file")
}

// BenchmarkSnapshot is how long nothing is applied.
func BenchmarkSnapshot(b *testing.B) {
	f := benchFSM()
	applyAll(f, registrations(100_000), 512)
	for b.Loop() {
		f.freeze()
	}
}

func BenchmarkPersist(b *testing.B) {
	f := benchFSM()
	applyAll(f, registrations(100_000), 512)
	for b.Loop() {
		if err := f.backup(io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkStoreLogs writes to the disk, twice for each batch: how long that
// takes, and what the processor does of it, per entry.
func BenchmarkStoreLogs(b *testing.B) {
	for _, batch := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			l, err := openLog(filepath.Join(b.TempDir(), logFile), false, 1<<40, func(err error) { b.Error(err) })
			if err != nil {
				b.Fatal(err)
			}
			defer l.close()
			logs := registrations(batch)
			index := uint64(0)
			var before, after syscall.Rusage
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
			b.ReportAllocs()
			for b.Loop() {
				for _, e := range logs {
					index++
					e.Index = index
				}
				if err := l.StoreLogs(logs); err != nil {
					b.Fatal(err)
				}
			}
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
			cpu := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(index), "ns/entry")
			b.ReportMetric(float64(cpu)/float64(index), "cpu-ns/entry")
		})
	}
}
