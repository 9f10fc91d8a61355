package node

import (
	"bytes"
	"os"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/starling-registry/starling/pkg/httpapi"
)

// A machine is what Linux tells of the machine.
type machine struct {
	mu         sync.Mutex
	idle, busy float64 // of all processors since it runs, when last asked
}

// now reads how the machine is; cpu is the share since it was last asked.
func (m *machine) now() httpapi.Machine {
	is := httpapi.Machine{CPU: -1, Load: -1, Mem: -1}
	if load := fields("/proc/loadavg", ""); len(load) > 0 {
		is.Load = load[0]
	}
	total, available := fields("/proc/meminfo", "MemTotal:"), fields("/proc/meminfo", "MemAvailable:")
	if len(total) > 0 && len(available) > 0 && total[0] > 0 {
		is.Mem = 1 - available[0]/total[0]
	}
	cpu := fields("/proc/stat", "cpu ")
	if len(cpu) < 8 {
		return is
	}
	idle := cpu[3] + cpu[4] // waiting for a disk is idle
	busy := cpu[0] + cpu[1] + cpu[2] + cpu[5] + cpu[6] + cpu[7]
	m.mu.Lock()
	defer m.mu.Unlock()
	if all := idle + busy - m.idle - m.busy; m.idle+m.busy > 0 && all > 0 {
		is.CPU = min(1, max(0, (busy-m.busy)/all))
	}
	m.idle, m.busy = idle, busy
	return is
}

// registerDisk exports the room that is left for what a node keeps on disk:
// without any it ends. Where it cannot be asked, both are 0.
func registerDisk(m prometheus.Registerer, dir string) {
	gauge := func(name, help string, of func(size, free uint64) uint64) {
		m.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "starling", Subsystem: "data_dir", Name: name, Help: help},
			func() float64 { return float64(of(disk(dir))) }))
	}
	gauge("size_bytes", "Size of the file system with the data directory.", func(size, _ uint64) uint64 { return size })
	gauge("free_bytes", "What is free of it, for users other than root.", func(_, free uint64) uint64 { return free })
}

// fields are the numbers of the first line of a file that begins so.
func fields(file, begins string) (ns []float64) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	for line := range bytes.Lines(b) {
		rest, ok := bytes.CutPrefix(line, []byte(begins))
		if !ok {
			continue
		}
		for f := range bytes.FieldsSeq(rest) {
			n, err := strconv.ParseFloat(string(f), 64)
			if err != nil {
				break
			}
			ns = append(ns, n)
		}
		break
	}
	return ns
}
