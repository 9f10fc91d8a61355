// Command beside is a process with one Go client, Starling's or the official
// one, that does what TestBeside (test/compat) asks and measures itself: a
// process of its own each, so that goroutines, sockets and memory are those of
// one client. It reads one order a line from its standard input and writes one
// answer a line to its standard output, both JSON, in the same order.
//
//	beside starling|official DIRECTORY
//
// Start reading at do.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// An Order is what the test asks for. Services are Prefix-0 … Prefix-(N-1).
type Order struct {
	Op      string
	Servers []string
	Prefix  string
	N       int
	Version string
	Wait    time.Duration
}

// An Answer has what its Op is said to answer.
type Answer struct {
	Error string
	At    time.Time
	Took  time.Duration

	Missing                   int      // services without what they should have
	Some                      []string // the first of them, for people
	Events, Duplicates        int
	Gaps                      int // services that were without their instance for some time
	LongestGap                time.Duration
	Goroutines, Sockets       int // more than before the client was made
	GoroutinesNow, SocketsNow int // the same, 20 ms after Close has returned
	Heap, Resident            int64
	Benchmarks                []Benchmark
}

// A Benchmark is one operation on a service in the cache.
type Benchmark struct {
	Name               string
	Nanoseconds        float64
	Allocations, Bytes int64
}

// A client is what both can do, with the official one's calls where they differ.
// The lists of watch are those of whole services; it is called by one goroutine
// for a service at a time.
type client interface {
	register(service string, is instance) error
	watch(service string, told func([]instance)) error
	list(service string) (int, error) // cached
	request() error                   // asks a server, whatever is cached
	operations(service string) []operation
	close()
}

type operation struct {
	name string
	call func() error
}

// An instance is what the test compares.
type instance struct {
	IP      string
	Port    int
	Version string
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: beside starling|official DIRECTORY")
		os.Exit(2)
	}
	testing.Init() // for its benchmarks
	out := json.NewEncoder(os.Stdout)
	os.Stdout = os.Stderr // whatever a client prints must not get between the answers
	p := process{kind: os.Args[1], dir: os.Args[2], services: map[string]*story{}}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var o Order
		var a Answer
		err := json.Unmarshal(lines.Bytes(), &o)
		if err == nil {
			begin := time.Now()
			err = p.do(o, &a)
			a.Took = cmp.Or(a.Took, time.Since(begin))
		}
		if err != nil {
			a.Error = o.Op + ": " + err.Error()
		}
		if err := out.Encode(a); err != nil {
			fmt.Fprintln(os.Stderr, "beside:", err)
			os.Exit(1)
		}
	}
}

type process struct {
	kind, dir           string
	client              client
	goroutines, sockets int // before it
	heap, resident      int64
	inFlight            atomic.Int64 // requests of works

	mu       sync.Mutex
	services map[string]*story
}

func (p *process) do(o Order, a *Answer) error {
	switch o.Op {
	case "open":
		return p.open(o.Servers)
	case "register": // answers Missing: what was not accepted while Wait lasted; At
		return p.register(o, a)
	case "pair": // two instances of one service
		name := service(o.Prefix, 0)
		return errors.Join(p.client.register(name, address(0, o.Version)), p.client.register(name, address(1, o.Version)))
	case "watch":
		return p.watch(o)
	case "await": // answers Missing: what was not seen in Version while Wait lasted
		p.await(o, a)
	case "mark": // forget what was told
		p.mark()
	case "story": // answers what was told since the mark
		p.tell(a)
	case "works": // answers At, when the first request worked
		return p.works(o, a)
	case "list": // answers Missing: services without an instance in the cache
		for k := range o.N {
			name := service(o.Prefix, k)
			if n, err := p.client.list(name); err != nil || n == 0 {
				a.miss(name)
			}
		}
	case "memory": // answers Heap, Resident, Goroutines
		a.Goroutines = runtime.NumGoroutine() - p.goroutines
		a.Heap, a.Resident = memory()
		a.Heap, a.Resident = a.Heap-p.heap, a.Resident-p.resident
	case "benchmark":
		return p.benchmark(o, a)
	case "close": // answers how long it took, and what is left
		p.close(o, a)
	default:
		return errors.New("unknown order")
	}
	return nil
}

func service(prefix string, k int) string { return prefix + "-" + strconv.Itoa(k) }

// address is that of the one instance of a service that a provider has.
func address(k int, version string) instance {
	return instance{IP: fmt.Sprintf("10.9.%d.%d", k/200, k%200+1), Port: 8080, Version: version}
}

func (a *Answer) miss(name string) {
	a.Missing++
	if len(a.Some) < 3 {
		a.Some = append(a.Some, name)
	}
}

func (p *process) open(servers []string) error {
	p.heap, p.resident = memory()
	p.goroutines, p.sockets = runtime.NumGoroutine(), sockets()
	var err error
	switch p.kind {
	case "starling":
		p.client, err = openStarling(servers, p.dir)
	case "official":
		p.client, err = openOfficial(servers, p.dir)
	default:
		err = fmt.Errorf("there is no client %q", p.kind)
	}
	if err != nil {
		return err
	}
	return p.firstAnswer(20 * time.Second)
}

// firstAnswer waits for a server that answers.
func (p *process) firstAnswer(wait time.Duration) error {
	for begin := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		err := p.client.request()
		if err == nil || time.Since(begin) > wait {
			return err
		}
	}
}

// register insists, as a program does that must be found.
func (p *process) register(o Order, a *Answer) error {
	var group sync.WaitGroup
	var mu sync.Mutex
	slots := make(chan struct{}, 16)
	end := time.Now().Add(o.Wait)
	for k := range o.N {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			name := service(o.Prefix, k)
			for {
				err := p.client.register(name, address(k, o.Version))
				if err == nil {
					return
				}
				if time.Now().After(end) {
					mu.Lock()
					a.miss(name + ": " + err.Error())
					mu.Unlock()
					return
				}
				time.Sleep(200 * time.Millisecond)
			}
		})
	}
	group.Wait()
	a.At = time.Now()
	return nil
}

// A story is what a watcher was told about one service.
type story struct {
	told       bool
	last       []instance
	since      time.Time // that it has none; zero: it has
	lonely     bool      // it was without for some time since the mark
	longest    time.Duration
	events     int
	duplicates int
}

func (p *process) watch(o Order) error {
	for k := range o.N {
		name := service(o.Prefix, k)
		s := &story{}
		p.mu.Lock()
		p.services[name] = s
		p.mu.Unlock()
		if err := p.client.watch(name, func(list []instance) { p.heard(s, list) }); err != nil {
			return err
		}
	}
	return nil
}

func (p *process) heard(s *story, list []instance) {
	slices.SortFunc(list, func(a, b instance) int {
		return cmp.Or(cmp.Compare(a.IP, b.IP), cmp.Compare(a.Port, b.Port))
	})
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	s.events++
	if s.told && slices.Equal(s.last, list) {
		s.duplicates++
	}
	s.told, s.last = true, list
	switch {
	case len(list) == 0 && s.since.IsZero():
		s.since, s.lonely = now, true
	case len(list) > 0 && !s.since.IsZero():
		s.longest = max(s.longest, now.Sub(s.since))
		s.since = time.Time{}
	}
}

func (p *process) await(o Order, a *Answer) {
	for end := time.Now().Add(o.Wait); ; time.Sleep(5 * time.Millisecond) {
		a.Missing, a.Some = 0, nil
		p.mu.Lock()
		for name, s := range p.services {
			if !slices.ContainsFunc(s.last, func(i instance) bool { return i.Version == o.Version }) {
				a.miss(name)
			}
		}
		p.mu.Unlock()
		if a.Missing == 0 || time.Now().After(end) {
			a.At = time.Now()
			return
		}
	}
}

func (p *process) mark() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.services {
		s.events, s.duplicates, s.longest, s.lonely = 0, 0, 0, !s.since.IsZero()
	}
}

func (p *process) tell(a *Answer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.services {
		a.Events += s.events
		a.Duplicates += s.duplicates
		if s.lonely {
			a.Gaps++
		}
		longest := s.longest
		if !s.since.IsZero() {
			longest = max(longest, time.Since(s.since))
		}
		a.LongestGap = max(a.LongestGap, longest)
	}
}

// works tries until a request is answered, 20 ms after one that has failed; beside
// one that waits, as for a node that has stopped, the next begins after 500 ms.
func (p *process) works(o Order, a *Answer) error {
	var mu sync.Mutex
	worked := make(chan struct{})
	var once sync.Once
	var failure error
	var last time.Time // that one was begun
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	end := time.After(o.Wait)
	for {
		if p.inFlight.Load() == 0 || time.Since(last) > 500*time.Millisecond {
			last = time.Now()
			p.inFlight.Add(1)
			go func() {
				defer p.inFlight.Add(-1)
				if err := p.client.request(); err != nil {
					mu.Lock()
					failure = err
					mu.Unlock()
					return
				}
				once.Do(func() {
					a.At = time.Now()
					close(worked)
				})
			}()
		}
		select {
		case <-worked:
			return nil
		case <-end:
			mu.Lock()
			defer mu.Unlock()
			return fmt.Errorf("no request worked in %v: %w", o.Wait, failure)
		case <-tick.C:
		}
	}
}

// close gives up after Wait. What is left three seconds after the client has been
// closed stays.
func (p *process) close(o Order, a *Answer) {
	for p.inFlight.Load() > 0 { // the goroutines that are counted are not these
		time.Sleep(time.Millisecond)
	}
	begin := time.Now()
	ended := make(chan struct{})
	go func() {
		p.client.close()
		close(ended)
	}()
	select {
	case <-ended:
		a.Took = time.Since(begin)
	case <-time.After(o.Wait):
		a.Took, a.Error = time.Since(begin), "it does not return"
	}
	// Goroutines of grpc-go, and the one above, are a little later than Close.
	time.Sleep(20 * time.Millisecond)
	a.GoroutinesNow, a.SocketsNow = runtime.NumGoroutine()-p.goroutines, sockets()-p.sockets
	for end := time.Now().Add(3 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		a.Goroutines, a.Sockets = runtime.NumGoroutine()-p.goroutines, sockets()-p.sockets
		if a.Goroutines <= 0 && a.Sockets <= 0 {
			return
		}
		if time.Now().After(end) {
			break
		}
	}
	stacks := make([]byte, 1<<20)
	os.WriteFile(filepath.Join(p.dir, "left.txt"), stacks[:runtime.Stack(stacks, true)], 0o644)
}

func sockets() int {
	n := 0
	files, _ := os.ReadDir("/proc/self/fd")
	for _, f := range files {
		if to, _ := os.Readlink("/proc/self/fd/" + f.Name()); strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

// memory is the heap that is in use and the memory of the process, when all that
// can be given back has been.
func memory() (heap, resident int64) {
	runtime.GC()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			resident = kb << 10
		}
	}
	return int64(m.HeapAlloc), resident
}

func (p *process) benchmark(o Order, a *Answer) error {
	for _, op := range p.client.operations(service(o.Prefix, 0)) {
		if err := op.call(); err != nil { // and now it is in the cache
			return fmt.Errorf("%s: %w", op.name, err)
		}
		var best testing.BenchmarkResult
		for range 3 {
			r := testing.Benchmark(func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := op.call(); err != nil {
						b.Fatal(err)
					}
				}
			})
			if best.N == 0 || r.NsPerOp() < best.NsPerOp() {
				best = r
			}
		}
		a.Benchmarks = append(a.Benchmarks, Benchmark{op.name, float64(best.T.Nanoseconds()) / float64(best.N), best.AllocsPerOp(), best.AllocedBytesPerOp()})
	}
	return nil
}
