package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-registry/starling/pkg/client"
	"github.com/starling-registry/starling/pkg/client/wire"
	"github.com/starling-registry/starling/pkg/nacos"
)

// A benchRun is one scenario against one server, or several at once.
type benchRun struct {
	*benchRecorder
	scenario        *benchScenario
	servers         []string
	server          string // the first
	subscribeServer string
	connections     int
	concurrency     int
	instances       int
	services        int // 0: as the scenario has it
	http, checks    bool
	keep            bool
	rate            int // changes a second; 0: as the scenario has it
	kill            bool
	duration        time.Duration
	pids            []int  // of the servers; nil: not known
	pidUnknown      string // why
	say             func(string)
	ask             func(string) // for a person to do

	mu      sync.Mutex
	conns   []*wire.Conn
	clients []*client.Client // of applications

	// What was measured.
	elapsed    time.Duration
	operations int64 // 0: as many as there are latencies
	cpu        time.Duration
	bytesEach  float64
	hasCPU     bool
	hasBytes   bool
	equal      *float64
	removals   *int64

	answerBytes int
	beats       *beatsResult
}

func newBenchRun(s *benchScenario, servers []string, opts *benchOptions) *benchRun {
	r := &benchRun{benchRecorder: newBenchRecorder(), scenario: s, servers: servers, server: servers[0], subscribeServer: servers[0],
		connections: s.connections, instances: cmp.Or(opts.instances, s.instances, 1), services: opts.services, http: opts.http, checks: opts.checks, keep: opts.keep, rate: opts.load, kill: opts.kill, duration: s.duration,
		say: func(string) {}, ask: func(string) {}}
	if opts.connections != 0 {
		r.connections = opts.connections
	}
	if opts.duration != 0 {
		r.duration = opts.duration
	}
	r.concurrency = min(s.concurrency(r.connections), r.connections)
	if opts.concurrency != 0 {
		r.concurrency = opts.concurrency
	}
	if opts.subscribeServer != "" {
		r.subscribeServer = opts.subscribeServer
	}
	if opts.serverPID != 0 {
		r.pids = []int{opts.serverPID}
		return r
	}
	for _, server := range servers {
		pid, err := findServer(server)
		if err != nil {
			r.pids, r.pidUnknown = nil, err.Error()
			break
		}
		r.pids = append(r.pids, pid)
	}
	return r
}

func (r *benchRun) name() string { return strings.Join(r.servers, ",") }

// at is the server of the i-th connection.
func (r *benchRun) at(i int) string { return r.servers[i%len(r.servers)] }

func (r *benchRun) result() *benchResult {
	h := r.latency
	millis := func(micros int64) float64 { return float64(micros) / 1000 }
	res := &benchResult{
		Scenario: r.scenario.name, Server: r.name(), Connections: r.connections, Concurrency: r.concurrency,
		Seconds: r.elapsed.Seconds(), Operations: cmp.Or(r.operations, h.TotalCount()),
		P50: millis(h.ValueAtQuantile(50)), P99: millis(h.ValueAtQuantile(99)), Max: millis(h.Max()),
		Errors: r.errors, ServerUnknown: r.pidUnknown, EqualMillis: r.equal, Removals: r.removals, AnswerBytes: r.answerBytes, Beats: r.beats,
	}
	res.Rate = float64(res.Operations) / max(r.elapsed.Seconds(), 1e-9)
	if r.firstErr != nil {
		res.FirstError = r.firstErr.Error()
	}
	if r.hasCPU && res.Operations > 0 {
		res.CPUMicros = new(float64(r.cpu.Microseconds()) / float64(res.Operations))
	}
	if r.hasBytes {
		res.ConnectionBytes = new(r.bytesEach)
	}
	return res
}

// measure runs f and takes the time and the server's CPU time meanwhile.
func (r *benchRun) measure(f func() error) error {
	before, _, beforeErr := r.usage()
	start := time.Now()
	err := f()
	r.elapsed = time.Since(start)
	after, _, afterErr := r.usage()
	if beforeErr == nil && afterErr == nil {
		r.cpu, r.hasCPU = after-before, true
	}
	return err
}

// usage is of all servers together.
func (r *benchRun) usage() (cpu time.Duration, resident int64, err error) {
	if r.pids == nil {
		return 0, 0, errors.New(r.pidUnknown)
	}
	for _, pid := range r.pids {
		c, m, err := processUsage(pid)
		if err != nil {
			r.pidUnknown = err.Error()
			return 0, 0, err
		}
		cpu, resident = cpu+c, resident+m
	}
	return cpu, resident, nil
}

// dial connects; push may be nil.
func (r *benchRun) dial(ctx context.Context, addr string, push func(*nacos.Payload) error) (*wire.Conn, error) {
	// A storm is slow because all connect at once, not because nobody answers.
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c, err := wire.Dial(ctx, wire.Options{Addr: addr, Push: push, RequestTimeout: 30 * time.Second, SetupTimeout: 30 * time.Second})
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.conns = append(r.conns, c)
	r.mu.Unlock()
	return c, nil
}

// closeAll closes all connections and clients.
func (r *benchRun) closeAll() {
	r.mu.Lock()
	conns, clients := r.conns, r.clients
	r.conns, r.clients = nil, nil
	r.mu.Unlock()
	_ = each(context.Background(), len(conns), 64, func(i int) error { conns[i].Close(); return nil })
	_ = each(context.Background(), len(clients), 64, func(i int) error { _ = clients[i].Close(); return nil })
}

// each calls f(0) … f(n-1), so many at once, until one fails or ctx ends.
func each(ctx context.Context, n, atOnce int, f func(i int) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(n, atOnce) {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := f(i); err != nil {
					stop(err)
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// dialAll connects r.connections times, to the servers in turn.
func (r *benchRun) dialAll(ctx context.Context, at func(i int) string, push func(i int) func(*nacos.Payload) error) ([]*wire.Conn, error) {
	r.say(fmt.Sprintf("connecting %d", r.connections))
	conns := make([]*wire.Conn, r.connections)
	err := each(ctx, r.connections, 64, func(i int) (err error) {
		var f func(*nacos.Payload) error
		if push != nil {
			f = push(i)
		}
		conns[i], err = r.dial(ctx, at(i), f)
		return err
	})
	return conns, err
}

// load keeps r.concurrency requests under way, see work. next makes the n-th
// request of a worker, on buf.
func (r *benchRun) load(ctx context.Context, conns []*wire.Conn, typ string, next func(worker, n int, buf []byte) []byte) error {
	return r.work(ctx, 0, func(ctx context.Context, w, n int, buf []byte) ([]byte, error) {
		buf = next(w, n, buf)
		_, err := conns[w%len(conns)].Request(ctx, typ, buf)
		return buf, err
	})
}

// work has r.concurrency workers for r.duration, after a warm-up of up to a
// second. do is the n-th operation of a worker, and returns buf to be used
// again; each worker does atLeast of them.
func (r *benchRun) work(ctx context.Context, atLeast int, do func(ctx context.Context, worker, n int, buf []byte) ([]byte, error)) error {
	loading, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for w := range r.concurrency {
		wg.Go(func() {
			var buf []byte
			for n := 0; loading.Err() == nil || n < atLeast && ctx.Err() == nil; n++ {
				start := time.Now()
				// The last request of each worker is finished: one that is
				// cut off would count as failed.
				var err error
				if buf, err = do(context.WithoutCancel(ctx), w, n, buf[:0]); err != nil {
					r.fail(1, err)
					if !sleep(loading, 100*time.Millisecond) {
						return
					}
					continue
				}
				r.record(time.Since(start))
			}
		})
	}
	sleep(ctx, min(time.Second, r.duration))
	r.say(fmt.Sprintf("measuring for %v", r.duration))
	r.reset()
	err := r.measure(func() error { sleep(ctx, r.duration); return nil })
	stop()
	wg.Wait()
	return err
}

// sleep reports whether ctx has not ended meanwhile.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// Names and bodies as the Java SDK sends them.
const benchGroup = "STARLING_BENCH"

func appendRef(b []byte, service string) []byte {
	b = append(b, `{"headers":{},"namespace":"public","serviceName":"`...)
	b = append(b, service...)
	return append(b, `","groupName":"`+benchGroup+`"`...)
}

// The metadata entry that tells one change from the next, and from which a
// subscriber knows what it was sent.
const (
	benchMark   = `"seq":"`
	benchDigits = 12
)

func appendInstance(b []byte, ip string, port, seq int, ephemeral bool) []byte {
	b = append(append(b, `{"ip":"`...), ip...)
	b = strconv.AppendInt(append(b, `","port":`...), int64(port), 10)
	b = append(b, `,"weight":1.0,"healthy":true,"enabled":true,"ephemeral":`...)
	b = append(strconv.AppendBool(b, ephemeral), `,"clusterName":"DEFAULT","metadata":{`...)
	if seq > 0 {
		b = fmt.Appendf(b, benchMark+`%0*d",`, benchDigits, seq)
	}
	return append(b, `"zone":"a"},"instanceHeartBeatInterval":5000,"instanceHeartBeatTimeOut":15000,"ipDeleteTimeout":30000,"instanceIdGenerator":"simple"}`...)
}

func registerBody(b []byte, service, ip string, port, seq int) []byte {
	b = append(appendRef(b, service), `,"type":"registerInstance","instance":`...)
	return append(appendInstance(b, ip, port, seq, true), `,"module":"naming"}`...)
}

// batchBody publishes n instances; the first one is marked.
func batchBody(b []byte, service string, n, seq int) []byte {
	b = append(appendRef(b, service), `,"type":"batchRegisterInstance","instances":[`...)
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendInstance(b, "10.0.0."+strconv.Itoa(10+i), 8080, seq, true)
		seq = 0
	}
	return append(b, `],"module":"naming"}`...)
}

func subscribeBody(service string) []byte {
	return append(appendRef(nil, service), `,"subscribe":true,"clusters":"","module":"naming"}`...)
}

// markOf is the mark in a pushed list, 0 if there is none.
func markOf(body []byte) int {
	i := bytes.Index(body, []byte(benchMark))
	if i < 0 || len(body) < i+len(benchMark)+benchDigits {
		return 0
	}
	n, err := strconv.Atoi(string(body[i+len(benchMark) : i+len(benchMark)+benchDigits]))
	if err != nil {
		return 0
	}
	return n
}

func hostAddress(i int) string { return fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255) }

// benchRegister: eight connections share their services, so that a service
// has several instances.
func benchRegister(ctx context.Context, r *benchRun) error {
	conns, err := r.dialAll(ctx, r.at, nil)
	if err != nil {
		return err
	}
	const services, sharing = 100, 8
	return r.load(ctx, conns, nacos.TypeInstanceRequest, func(w, n int, buf []byte) []byte {
		service := "register-" + strconv.Itoa(w/sharing) + "-" + strconv.Itoa(n%services)
		return registerBody(buf, service, hostAddress(w%len(conns)), 8080, n+1)
	})
}

func benchQuery(ctx context.Context, r *benchRun) error {
	const services = 16
	provider, err := r.dial(ctx, r.server, nil)
	if err != nil {
		return err
	}
	for i := range services {
		if _, err := provider.Request(ctx, nacos.TypeBatchInstanceRequest, batchBody(nil, "query-"+strconv.Itoa(i), 20, 1)); err != nil {
			return err
		}
	}
	conns, err := r.dialAll(ctx, r.at, nil)
	if err != nil {
		return err
	}
	return r.load(ctx, conns, nacos.TypeServiceQueryRequest, func(w, n int, buf []byte) []byte {
		buf = appendRef(buf, "query-"+strconv.Itoa((w+n)%services))
		return append(buf, `,"cluster":"","healthyOnly":false,"udpPort":0,"module":"naming"}`...)
	})
}

// pushPatience is how long a change may take to arrive at its subscribers.
const pushPatience = 10 * time.Second

func benchPush(ctx context.Context, r *benchRun) error {
	type pair struct {
		provider *wire.Conn
		arrived  chan int // marks
	}
	pairs := make([]pair, r.connections)
	service := func(i int) string { return "push-" + strconv.Itoa(i) }
	err := each(ctx, len(pairs), r.concurrency, func(i int) (err error) {
		arrived := make(chan int, 64)
		pairs[i].arrived = arrived
		if pairs[i].provider, err = r.dial(ctx, r.server, nil); err != nil {
			return err
		}
		sub, err := r.dial(ctx, r.subscribeServer, func(p *nacos.Payload) error {
			select {
			case arrived <- markOf(p.Body):
			default: // nobody waits for pushes beyond these
			}
			return nil
		})
		if err != nil {
			return err
		}
		_, err = sub.Request(ctx, nacos.TypeSubscribeServiceRequest, subscribeBody(service(i)))
		return err
	})
	if err != nil {
		return err
	}
	// The first subscribe is followed by a push of its own.
	if !sleep(ctx, time.Second) {
		return context.Cause(ctx)
	}
	stopLoad, err := r.background(ctx)
	if err != nil {
		return err
	}
	defer stopLoad()
	r.say(fmt.Sprintf("measuring for %v", r.duration))
	return r.measure(func() error {
		ending, cancel := context.WithTimeout(ctx, r.duration)
		defer cancel()
		var wg sync.WaitGroup
		for i, p := range pairs {
			wg.Go(func() {
				// Longer than the window in which a server may merge
				// changes, and not in step with the others.
				for n := 1; sleep(ending, 150*time.Millisecond+rand.N(50*time.Millisecond)); n++ {
					body := registerBody(nil, service(i), hostAddress(i), 8080, n)
					start := time.Now()
					if _, err := p.provider.Request(ctx, nacos.TypeInstanceRequest, body); err != nil {
						r.fail(1, err)
						return
					}
					for late, mark := time.After(pushPatience), 0; mark != n; {
						select {
						case mark = <-p.arrived:
						case <-late:
							r.fail(1, fmt.Errorf("a change has not arrived within %v", pushPatience))
							return
						case <-ctx.Done():
							return
						}
					}
					r.record(time.Since(start))
				}
			})
		}
		wg.Wait()
		return nil
	})
}

func benchFanOut(ctx context.Context, r *benchRun) error {
	const service, instances = "fan-out", 10
	// One change at a time: those who have got it are counted down.
	var change struct {
		sync.Mutex
		mark  int
		start time.Time
		left  int
		all   chan struct{}
	}
	provider, err := r.dial(ctx, r.server, nil)
	if err != nil {
		return err
	}
	subs, err := r.dialAll(ctx, func(int) string { return r.subscribeServer }, func(int) func(*nacos.Payload) error {
		seen := 0
		return func(p *nacos.Payload) error {
			now := time.Now()
			mark := markOf(p.Body)
			change.Lock()
			defer change.Unlock()
			if mark != change.mark || mark == seen {
				return nil
			}
			seen = mark
			r.record(now.Sub(change.start))
			if change.left--; change.left == 0 {
				close(change.all)
			}
			return nil
		}
	})
	if err != nil {
		return err
	}
	r.say("subscribing")
	if err := each(ctx, len(subs), 64, func(i int) error {
		_, err := subs[i].Request(ctx, nacos.TypeSubscribeServiceRequest, subscribeBody(service))
		return err
	}); err != nil {
		return err
	}
	n := 0
	one := func() (time.Duration, error) {
		n++
		body := batchBody(nil, service, instances, n)
		change.Lock()
		change.mark, change.left, change.all, change.start = n, len(subs), make(chan struct{}), time.Now()
		all, start := change.all, change.start
		change.Unlock()
		if _, err := provider.Request(ctx, nacos.TypeBatchInstanceRequest, body); err != nil {
			return 0, err
		}
		select {
		case <-all:
		case <-time.After(pushPatience):
			change.Lock()
			missing := change.left
			change.mark = 0
			change.Unlock()
			r.fail(int64(missing), fmt.Errorf("a change has not arrived everywhere within %v", pushPatience))
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
		return time.Since(start), nil
	}
	// Servers may merge changes for as long as the last fan-out took several
	// times over, and clients have acknowledgements to send.
	pause := func(took time.Duration) bool { return sleep(ctx, max(300*time.Millisecond, 4*took)) }
	pause(time.Second)
	for range 2 {
		took, err := one()
		if err != nil {
			return err
		}
		pause(took)
	}
	r.reset()
	r.say(fmt.Sprintf("measuring for %v", r.duration))
	return r.measure(func() error {
		for end := time.Now().Add(r.duration); time.Now().Before(end); {
			took, err := one()
			if err != nil {
				return err
			}
			if !pause(took) {
				return context.Cause(ctx)
			}
		}
		return nil
	})
}

// background keeps up r.rate changes a second of services that nobody follows,
// until it is stopped.
func (r *benchRun) background(ctx context.Context) (stop func(), err error) {
	if r.rate == 0 {
		return func() {}, nil
	}
	conns := make([]*wire.Conn, min(16, r.rate))
	if err := each(ctx, len(conns), len(conns), func(i int) (err error) {
		conns[i], err = r.dial(ctx, r.server, nil)
		return err
	}); err != nil {
		return nil, err
	}
	loading, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		r.pace(loading, conns, r.rate, func(w, n int, buf []byte) []byte {
			return registerBody(buf, "load-"+strconv.Itoa(w)+"-"+strconv.Itoa(n%100), hostAddress(w), 8080, n+1)
		})
	})
	sleep(ctx, min(time.Second, r.duration))
	return func() { cancel(); wg.Wait() }, nil
}

// pace makes so many changes a second, spread over the connections, until ctx
// ends, or fewer where the servers cannot do it, for a connection makes one at
// a time. change makes the n-th of a connection, on buf.
func (r *benchRun) pace(ctx context.Context, conns []*wire.Conn, rate int, change func(conn, n int, buf []byte) []byte) {
	var wg sync.WaitGroup
	every := time.Duration(len(conns)) * time.Second / time.Duration(rate)
	for w, c := range conns {
		wg.Go(func() {
			var buf []byte
			due := time.Now().Add(rand.N(every))
			for n := 0; sleep(ctx, time.Until(due)); n++ {
				buf = change(w, n, buf[:0])
				if _, err := c.Request(context.WithoutCancel(ctx), nacos.TypeInstanceRequest, buf); err != nil {
					r.fail(1, err)
					return
				}
				due = due.Add(every)
			}
		})
	}
	wg.Wait()
}

// benchClient is a connection with its instances and one subscription.
func (r *benchRun) benchClient(ctx context.Context, i int) error {
	c, err := r.dial(ctx, r.at(i), nil)
	if err != nil {
		return err
	}
	service := "idle-" + strconv.Itoa(i)
	for k := range r.instances {
		in := service
		if r.instances > 1 {
			in = "shared-" + strconv.Itoa(k)
		}
		if _, err := c.Request(ctx, nacos.TypeInstanceRequest, registerBody(nil, in, hostAddress(i), 8080, 1)); err != nil {
			return err
		}
	}
	_, err = c.Request(ctx, nacos.TypeSubscribeServiceRequest, subscribeBody(service))
	return err
}

func benchIdle(ctx context.Context, r *benchRun) error {
	_, before, beforeErr := r.usage()
	r.say(fmt.Sprintf("connecting %d", r.connections))
	err := r.measure(func() error {
		return each(ctx, r.connections, r.concurrency, func(i int) error {
			start := time.Now()
			if err := r.benchClient(ctx, i); err != nil {
				return err
			}
			r.record(time.Since(start))
			return nil
		})
	})
	if err != nil {
		return err
	}
	r.say(fmt.Sprintf("resting for %v", r.duration))
	if !sleep(ctx, r.duration) {
		return context.Cause(ctx)
	}
	if _, after, err := r.usage(); err == nil && beforeErr == nil {
		r.bytesEach, r.hasBytes = float64(after-before)/float64(r.connections), true
	}
	for _, c := range r.conns {
		if err := c.Err(); err != nil {
			r.fail(1, err)
		}
	}
	return nil
}

func benchStorm(ctx context.Context, r *benchRun) error {
	r.say(fmt.Sprintf("connecting %d", r.connections))
	if err := each(ctx, r.connections, 64, func(i int) error { return r.benchClient(ctx, i) }); err != nil {
		return err
	}
	if !sleep(ctx, min(2*time.Second, r.duration)) {
		return context.Cause(ctx)
	}
	r.say("breaking and connecting again")
	return r.measure(func() error {
		r.closeAll()
		start := time.Now()
		return each(ctx, r.connections, r.concurrency, func(i int) error {
			if err := r.benchClient(ctx, i); err != nil {
				r.fail(1, err)
				return nil
			}
			r.record(time.Since(start))
			return nil
		})
	})
}
