package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-registry/starling/pkg/client/wire"
	"github.com/starling-registry/starling/pkg/nacos"
)

const (
	beatPeriod = 5 * time.Second // as the clients of Nacos have it
	// beatsSharing is how many instances a service has.
	beatsSharing = 100
	// beatsStopped is how many clients fall silent in the end, each of another
	// service.
	beatsStopped = 10
	// killShadow is how long after the death of a node beats may go wrong.
	killShadow = 2 * time.Second
)

// A beatsResult is what beats finds out beside the time of a beat.
type beatsResult struct {
	// Flaps counts living instances that a watcher has seen unhealthy or not at
	// all.
	Flaps int64 `json:"flapsSeen"`
	// Beats that were answered with another status than 200, or not at all by
	// a node that there was a connection to: within 2 s of the kill, and else.
	FailedAtKill int64 `json:"failedAtKill"`
	Failed       int64 `json:"failedElse"`
	// NotReady counts beats that a node which starts has sent away.
	NotReady int64 `json:"notReady"`
	// Unknown counts beats of which a node said that it has no such instance.
	Unknown int64 `json:"unknown"`
	// Before are those before the kill.
	P50Before float64 `json:"p50MillisBefore"`
	P99Before float64 `json:"p99MillisBefore"`
	// The first and the last that watchers see go, from the last beat.
	GoneFirst float64     `json:"goneFirstSeconds"`
	GoneLast  float64     `json:"goneLastSeconds"`
	Watchers  int         `json:"watchers"` // those that see all in the end
	Nodes     []beatsNode `json:"nodes,omitempty"`
}

// A beatsNode is what a node needs: CPU in percent of one processor. The times
// after the kill begin 5 s after it.
type beatsNode struct {
	Server         string  `json:"server"`
	Killed         bool    `json:"killed,omitempty"`
	CPUBefore      float64 `json:"cpuPercentBefore"`
	CPUAfter       float64 `json:"cpuPercentAfter"`
	ResidentBefore int64   `json:"residentBytesBefore"`
	ResidentKill   int64   `json:"residentBytesAtKill"` // 5 s after it
	ResidentAfter  int64   `json:"residentBytesAfter"`
}

// A beatsRun is HTTP clients that beat, and watchers at all nodes.
type beatsRun struct {
	*benchRun
	clients  []webInstance
	lastBeat []atomic.Int64 // Unix nanoseconds, by client; -1: it has stopped
	period   time.Duration
	want     []atomic.Int64 // living instances by service
	steady   atomic.Bool    // all are there: from now on each missing one counts
	killed   atomic.Int64   // Unix nanoseconds
	watchers []*beatsWatcher

	flaps, nearKill, failed, unknown, notReady atomic.Int64
}

func benchBeats(ctx context.Context, r *benchRun) error {
	services := cmp.Or(r.services, max(1, r.connections/beatsSharing))
	b := &beatsRun{benchRun: r, clients: make([]webInstance, r.connections), lastBeat: make([]atomic.Int64, r.connections), want: make([]atomic.Int64, services), period: beatPeriod}
	if r.rate > 0 {
		b.period = time.Duration(r.connections) * time.Second / time.Duration(r.rate)
	}
	stopped := min(beatsStopped, services, r.connections)
	for i := range b.clients {
		b.clients[i] = webInstance{"beats-" + fmt.Sprint(i%services), hostAddress(i), 8080}
		b.want[i%services].Add(1)
	}

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var watching, beating sync.WaitGroup
	defer watching.Wait()
	defer stop()
	for _, server := range r.servers {
		w := &beatsWatcher{run: b, server: server, seen: make([]int, services), goneAt: make([]time.Time, services)}
		b.watchers = append(b.watchers, w)
		watching.Go(func() { w.watch(ctx) })
	}
	r.say(fmt.Sprintf("registering %d", r.connections))
	if err := b.everywhere(ctx, webInstance.register); err != nil {
		return err
	}
	defer func() {
		b.steady.Store(false)
		r.say("removing what was registered")
		_ = b.everywhere(context.WithoutCancel(ctx), webInstance.deregister)
	}()
	loading, rest := context.WithCancel(ctx)
	defer beating.Wait()
	defer rest()
	workers := min(r.concurrency, len(b.clients))
	for w := range workers {
		beating.Go(func() { b.beat(loading, w, workers) })
	}
	if err := b.untilAllSeen(ctx, 30*time.Second); err != nil {
		return err
	}
	b.steady.Store(true)
	b.reset()

	before := min(r.duration/3, 20*time.Second)
	r.say(fmt.Sprintf("beating for %v", before))
	at0 := b.usages()
	if !sleep(ctx, before) {
		return context.Cause(ctx)
	}
	at1 := b.usages()
	res := &beatsResult{}
	r.benchRecorder.mu.Lock()
	res.P50Before, res.P99Before = float64(r.latency.ValueAtQuantile(50))/1000, float64(r.latency.ValueAtQuantile(99))/1000
	r.benchRecorder.mu.Unlock()
	b.reset()
	if r.kill {
		pid, err := findServer(r.server)
		if err != nil {
			return fmt.Errorf("--kill: %w", err)
		}
		p, err := os.FindProcess(pid)
		if err != nil {
			return fmt.Errorf("--kill: %w", err)
		}
		b.killed.Store(time.Now().UnixNano())
		if err := p.Kill(); err != nil {
			return fmt.Errorf("--kill: %w", err)
		}
	}
	r.say(fmt.Sprintf("beating for %v more", r.duration))
	began := time.Now()
	calm := min(5*time.Second, r.duration/3)
	if !sleep(ctx, calm) {
		return context.Cause(ctx)
	}
	at2 := b.usages()
	if !sleep(ctx, r.duration-calm) {
		return context.Cause(ctx)
	}
	at3 := b.usages()
	r.elapsed = time.Since(began)
	r.benchRecorder.mu.Lock()
	r.operations = r.latency.TotalCount()
	r.benchRecorder.mu.Unlock()

	r.say(fmt.Sprintf("%d clients fall silent", stopped))
	for i := range stopped {
		b.want[i].Add(-1)
	}
	last := make([]time.Time, stopped)
	for i := range stopped {
		last[i] = time.Unix(0, b.lastBeat[i].Swap(-1))
	}
	if err := b.untilGone(ctx, res, last); err != nil {
		r.fail(1, err)
	}
	rest()
	beating.Wait()

	for _, w := range b.watchers {
		if w.sawAll() {
			res.Watchers++
		}
	}
	for i, server := range r.servers {
		if at0[i] == nil || at1[i] == nil {
			continue
		}
		n := beatsNode{Server: server, Killed: i == 0 && r.kill, CPUBefore: cpuPercent(at0[i], at1[i]), ResidentBefore: at0[i].resident, ResidentAfter: at1[i].resident}
		if at2[i] != nil && at3[i] != nil {
			n.CPUAfter, n.ResidentKill, n.ResidentAfter = cpuPercent(at2[i], at3[i]), at2[i].resident, at3[i].resident
		}
		res.Nodes = append(res.Nodes, n)
	}
	res.Flaps, res.FailedAtKill, res.Failed, res.Unknown = b.flaps.Load(), b.nearKill.Load(), b.failed.Load(), b.unknown.Load()
	res.NotReady = b.notReady.Load()
	if res.Flaps > 0 {
		r.fail(res.Flaps, errors.New("living instances were seen unhealthy or missing"))
	}
	if res.Failed+res.Unknown > 0 {
		r.fail(res.Failed+res.Unknown, fmt.Errorf("beats failed, and not because a node was killed within %v, or were of instances that a node did not know", killShadow))
	}
	r.beats = res
	return context.Cause(ctx)
}

// everywhere sends a request of each client, at the nodes in turn; a node that
// is not there is left out.
func (b *beatsRun) everywhere(ctx context.Context, request func(webInstance) []byte) error {
	const workers = 32
	return each(ctx, workers, workers, func(w int) error {
		c := &beatsConns{servers: b.servers, conns: make([]*webConn, len(b.servers))}
		defer c.close()
		for i := w; i < len(b.clients); i += workers {
			var err error
			for try := range 2 * len(b.servers) {
				var status int
				if status, _, _, err = c.send(ctx, (i+try)%len(b.servers), request(b.clients[i])); err == nil && status == http.StatusOK {
					break
				}
				if err == nil {
					err = fmt.Errorf("status %d", status)
				}
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// beatsConns are a worker's connections, one to each node.
type beatsConns struct {
	servers []string
	conns   []*webConn
}

func (c *beatsConns) close() {
	for _, conn := range c.conns {
		if conn != nil {
			conn.close()
		}
	}
}

// send sends a request to the i-th server; sent is false if there is no
// connection to it.
func (c *beatsConns) send(ctx context.Context, i int, request []byte) (status int, body []byte, sent bool, err error) {
	if c.conns[i] == nil {
		if c.conns[i], err = dialWeb(ctx, c.servers[i]); err != nil {
			c.conns[i] = nil
			return 0, nil, false, err
		}
	}
	if status, body, err = c.conns[i].do(request); err != nil {
		c.conns[i].close()
		c.conns[i] = nil
	}
	return status, body, true, err
}

// beat has every workers-th client beat, evenly spread over the period, each
// time at the next node. A node that does not take a beat is followed by the
// next one at once, as SDKs do it.
func (b *beatsRun) beat(ctx context.Context, w, workers int) {
	c := &beatsConns{servers: b.servers, conns: make([]*webConn, len(b.servers))}
	defer c.close()
	var mine []int
	var requests [][]byte
	for i := w; i < len(b.clients); i += workers {
		mine, requests = append(mine, i), append(requests, b.clients[i].lightBeat())
	}
	every := b.period / time.Duration(len(mine))
	due := time.Now().Add(rand.N(every + 1))
	for n := 0; sleep(ctx, time.Until(due)); n++ {
		due = due.Add(every)
		k := n % len(mine)
		i := mine[k]
		if b.lastBeat[i].Load() < 0 {
			continue
		}
		start := time.Now()
		took, tries := false, 3*len(b.servers)
		for try := 0; try < tries && !took; try++ {
			if try > 0 && try%len(b.servers) == 0 && !sleep(ctx, 200*time.Millisecond) {
				return
			}
			status, body, sent, err := c.send(context.WithoutCancel(ctx), (i+n/len(mine)+try)%len(b.servers), requests[k])
			switch {
			case !sent:
			case status == http.StatusServiceUnavailable && bytes.Contains(body, []byte("server is DOWN")):
				b.notReady.Add(1)
			case err != nil || status != http.StatusOK:
				if killed := b.killed.Load(); killed > 0 && time.Since(time.Unix(0, killed)) < killShadow {
					b.nearKill.Add(1)
				} else if n := b.failed.Add(1); n == 1 {
					b.ask(fmt.Sprintf("a beat fails: status %d %.200s %v", status, body, err))
				}
			case !bytes.Contains(body, []byte(`"code":10200`)):
				b.unknown.Add(1)
				_, _, _, _ = c.send(context.WithoutCancel(ctx), (i+n/len(mine)+try)%len(b.servers), b.clients[i].register())
				took = true
			default:
				took = true
			}
		}
		if !took {
			b.fail(1, errors.New("no node took a beat"))
			continue
		}
		b.record(time.Since(start))
		if was := b.lastBeat[i].Load(); was >= 0 {
			b.lastBeat[i].CompareAndSwap(was, time.Now().UnixNano())
		}
	}
}

// A processUse is what a process has used at a time.
type processUse struct {
	at       time.Time
	cpu      time.Duration
	resident int64
}

func cpuPercent(a, b *processUse) float64 {
	return 100 * float64(b.cpu-a.cpu) / float64(b.at.Sub(a.at))
}

// usages are of all servers; nil where the process is not known.
func (b *beatsRun) usages() []*processUse {
	all := make([]*processUse, len(b.servers))
	for i := range b.pids {
		if cpu, resident, err := processUsage(b.pids[i]); err == nil {
			all[i] = &processUse{time.Now(), cpu, resident}
		}
	}
	return all
}

// A beatsWatcher follows all services at one node, and comes back when it is
// cut off.
type beatsWatcher struct {
	run    *beatsRun
	server string

	mu     sync.Mutex
	up     bool // it is connected and has asked for all services
	seen   []int
	goneAt []time.Time // since when no more than the living are seen
}

func (w *beatsWatcher) watch(ctx context.Context) {
	for {
		if c, err := wire.Dial(ctx, wire.Options{Addr: w.server, RequestTimeout: 10 * time.Second, SetupTimeout: 10 * time.Second,
			Push: func(p *nacos.Payload) error { w.saw(p.Body); return nil }}); err == nil {
			for s := range w.run.want {
				var answer *nacos.Payload
				if answer, err = c.Request(ctx, nacos.TypeSubscribeServiceRequest, subscribeBody(fmt.Sprint("beats-", s))); err != nil {
					break
				}
				w.saw(answer.Body)
			}
			if err == nil {
				w.set(true)
				select {
				case <-c.Done():
				case <-ctx.Done():
				}
				w.set(false)
			}
			c.Close()
		}
		if !sleep(ctx, 100*time.Millisecond) {
			return
		}
	}
}

func (w *beatsWatcher) set(up bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.up = up
	if !up {
		clear(w.seen)
		clear(w.goneAt)
	}
}

// saw takes a list: living instances that are not in it count, if they had all
// been there before.
func (w *beatsWatcher) saw(body []byte) {
	s, hosts, healthy := listOf(body, "beats-")
	if s < 0 || s >= len(w.seen) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	want := int(w.run.want[s].Load())
	if w.run.steady.Load() && healthy < want {
		if w.run.flaps.Add(int64(want-healthy)) == int64(want-healthy) {
			w.run.ask(fmt.Sprintf("%s shows %d of %d instances, %d of them healthy", w.server, hosts, want, healthy))
		}
	}
	w.seen[s] = healthy
	if hosts > want {
		w.goneAt[s] = time.Time{}
	} else if w.goneAt[s].IsZero() {
		w.goneAt[s] = time.Now()
	}
}

func (w *beatsWatcher) sawAll() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.up {
		return false
	}
	for s, n := range w.seen {
		if n < int(w.run.want[s].Load()) {
			return false
		}
	}
	return true
}

// untilAllSeen waits for the watchers of all nodes that are there.
func (b *beatsRun) untilAllSeen(ctx context.Context, patience time.Duration) error {
	for deadline := time.Now().Add(patience); ; {
		all, up := true, 0
		for _, w := range b.watchers {
			w.mu.Lock()
			is := w.up
			w.mu.Unlock()
			if is {
				up++
				all = all && w.sawAll()
			}
		}
		switch {
		case all && up > 0:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("after %v the watchers do not see all instances", patience)
		case !sleep(ctx, 50*time.Millisecond):
			return context.Cause(ctx)
		}
	}
}

// untilGone waits until no living node shows the clients that have stopped;
// they beat last at the times given.
func (b *beatsRun) untilGone(ctx context.Context, res *beatsResult, last []time.Time) error {
	const patience = time.Minute
	for deadline := time.Now().Add(patience); ; {
		left := 0
		var first, latest time.Duration
		for _, w := range b.watchers {
			w.mu.Lock()
			for s := range last {
				switch {
				case !w.up:
				case w.goneAt[s].Before(last[s]):
					left++
				default:
					took := w.goneAt[s].Sub(last[s])
					if first == 0 || took < first {
						first = took
					}
					latest = max(latest, took)
				}
			}
			w.mu.Unlock()
		}
		switch {
		case left == 0:
			res.GoneFirst, res.GoneLast = first.Seconds(), latest.Seconds()
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("%v after their last beats clients are still shown, %d times", patience, left)
		case !sleep(ctx, 20*time.Millisecond):
			return context.Cause(ctx)
		}
	}
}
