package compat

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	starling "github.com/starling-registry/starling/pkg/client"
)

// TestBeside has Starling's Go client and the official one do the same side by
// side, in processes of their own (package beside), while nodes are killed,
// paused and ended. It fails for what Starling's does not do; that of the other
// is measured. BESIDE_REPORT is a file whose table is replaced: then each fault
// strikes more often, and memory and cached reads are measured too.
func TestBeside(t *testing.T) {
	t.Parallel()
	report := os.Getenv("BESIDE_REPORT")
	b := &beside{t: t, bin: serverBinary(t), dir: runDir(t), services: 20, long: report != ""}
	if b.long {
		b.services = 100
	}
	b.program = filepath.Join(b.dir, "program")
	building.Lock()
	out, err := exec.Command("go", "build", "-o", b.program, "./beside").CombinedOutput()
	building.Unlock()
	if err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}

	before := loadAverage()
	begin := time.Now()
	if b.long {
		b.measureReads()
		b.measureMemory()
		b.pair()
	}
	one, three := b.gather(1), b.gather(3)
	b.strike(three)
	// What a node alone knows when it is killed is what it has written by then.
	time.Sleep(time.Until(one.since.Add(settle)))
	b.strike(one)
	for _, row := range b.rows {
		t.Logf("%s: %s | %s", row[0], row[1], row[2])
	}
	if !b.long || t.Failed() {
		return
	}
	var text strings.Builder
	fmt.Fprintf(&text, "Measured %s at commit %s with %s and nacos-sdk-go %s on %d cores, %s/%s. The run took %v; load average of the machine %s before and %s after it.\n\n",
		time.Now().UTC().Format(time.DateOnly), cmp.Or(os.Getenv("BESIDE_COMMIT"), "unknown"), runtime.Version(), suite.NewestGo(),
		runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, time.Since(begin).Round(time.Second), before, loadAverage())
	text.WriteString("| What | `pkg/client` | nacos-sdk-go |\n|---|---|---|\n")
	for _, row := range b.rows {
		fmt.Fprintf(&text, "| %s | %s | %s |\n", row[0], row[1], row[2])
	}
	if err := replaceTable(report, text.String()); err != nil {
		t.Fatal(err)
	}
}

// The kinds of clients, ours first.
var besideKinds = []string{"starling", "official"}

type beside struct {
	t                 *testing.T
	bin, dir, program string
	services          int
	long              bool
	rows              [][3]string
	started           int
}

func (b *beside) row(what string, ours, theirs any) {
	b.rows = append(b.rows, [3]string{what, fmt.Sprint(ours), fmt.Sprint(theirs)})
}

// An order and an answer are those of package beside.
type (
	besideOrder struct {
		Op      string
		Servers []string
		Prefix  string
		N       int
		Version string
		Wait    time.Duration
	}
	besideAnswer struct {
		Error                     string
		At                        time.Time
		Took                      time.Duration
		Missing                   int
		Some                      []string
		Events, Duplicates        int
		Gaps                      int
		LongestGap                time.Duration
		Goroutines, Sockets       int
		GoroutinesNow, SocketsNow int
		Heap, Resident            int64
		Benchmarks                []struct {
			Name               string
			Nanoseconds        float64
			Allocations, Bytes int64
		}
	}
)

// A twin is a process with one client.
type twin struct {
	kind, role string
	dir        string
	in         io.WriteCloser
	out        *bufio.Scanner
}

func (b *beside) start(kind, role string) *twin {
	b.t.Helper()
	b.started++
	w := &twin{kind: kind, role: role, dir: filepath.Join(b.dir, fmt.Sprintf("%d-%s-%s", b.started, kind, role))}
	if err := os.MkdirAll(w.dir, 0o755); err != nil {
		b.t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(w.dir, "stderr.txt"))
	if err != nil {
		b.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(b.program, kind, w.dir)
	cmd.Stderr = log
	if w.in, err = cmd.StdinPipe(); err != nil {
		b.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	w.out = bufio.NewScanner(out)
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		w.in.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	return w
}

// ask is for one goroutine at a time.
func (w *twin) ask(o besideOrder) (a besideAnswer, err error) {
	line, err := json.Marshal(o)
	if err != nil {
		return a, err
	}
	if _, err := w.in.Write(append(line, '\n')); err != nil {
		return a, err
	}
	if !w.out.Scan() {
		return a, fmt.Errorf("%s: the %s %s has ended, see %s", o.Op, w.kind, w.role, w.dir)
	}
	if err := json.Unmarshal(w.out.Bytes(), &a); err != nil {
		return a, err
	}
	if a.Error != "" {
		err = fmt.Errorf("the %s %s: %s", w.kind, w.role, a.Error)
	}
	return a, err
}

func (b *beside) must(w *twin, o besideOrder) besideAnswer {
	b.t.Helper()
	a, err := w.ask(o)
	if err != nil {
		b.t.Fatal(err)
	}
	return a
}

// together asks all of them at once.
func together(twins []*twin, order func(w *twin) besideOrder) (answers []besideAnswer, errs []error) {
	answers, errs = make([]besideAnswer, len(twins)), make([]error, len(twins))
	var group sync.WaitGroup
	for n, w := range twins {
		group.Go(func() { answers[n], errs[n] = w.ask(order(w)) })
	}
	group.Wait()
	return answers, errs
}

func (w *twin) prefix() string { return "beside-" + w.kind }

// What a client had to do with one kind of fault.
type toll struct {
	works, back, seen         []time.Duration
	missing, duplicates, gaps int
	gone                      int // registrations that did not come back
	refused                   int // changes that no server took while it lasted
	longest                   time.Duration
}

// settle is how long it takes until a node where nothing changes any more has
// written that.
const settle = 13 * time.Second

// A stage is nodes with two providers and two subscribers, ours first.
type stage struct {
	nodes                  []*server
	servers                []string
	providers, subscribers []*twin
	since                  time.Time
}

func (b *beside) gather(size int) *stage {
	t, g := b.t, &stage{}
	dir := filepath.Join(b.dir, fmt.Sprintf("nodes-%d", size))
	if size == 1 {
		g.nodes = []*server{startServer(t, b.bin, dir)}
	} else {
		g.nodes = startCluster(t, b.bin, dir, size)
	}
	for _, n := range g.nodes {
		g.servers = append(g.servers, n.address())
	}
	for _, kind := range besideKinds {
		p, s := b.start(kind, "provider"), b.start(kind, "subscriber")
		b.must(p, besideOrder{Op: "open", Servers: g.servers})
		b.must(s, besideOrder{Op: "open", Servers: g.servers})
		b.must(p, besideOrder{Op: "register", Prefix: p.prefix(), N: b.services, Version: "0", Wait: 10 * time.Second})
		b.must(s, besideOrder{Op: "watch", Prefix: p.prefix(), N: b.services})
		if a := b.must(s, besideOrder{Op: "await", Version: "0", Wait: patience}); a.Missing > 0 {
			t.Fatalf("the %s subscriber does not see %d services of its provider: %v", kind, a.Missing, a.Some)
		}
		g.providers, g.subscribers = append(g.providers, p), append(g.subscribers, s)
	}
	g.since = time.Now()
	return g
}

// strike breaks the nodes.
func (b *beside) strike(g *stage) {
	t, nodes, size := b.t, g.nodes, len(g.nodes)
	// Each strikes all nodes in turn, so that every client is struck.
	faults := []string{"killed", "paused", "ended"}
	if !b.long {
		faults = faults[:1]
	}
	version := 0
	for _, fault := range faults {
		tolls := map[string]*toll{}
		for _, kind := range besideKinds {
			tolls[kind] = &toll{}
		}
		victims := nodes
		if size > 1 && !b.long { // the one where ours is
			victims = nodes[:0:0]
			for _, n := range nodes {
				if slices.ContainsFunc(b.publishers(nodes, g.providers[0]), func(id string) bool { return slices.Contains(n.clientIDs(), id) }) {
					victims = append(victims, n)
				}
			}
		}
		if size == 1 && b.long {
			victims = []*server{nodes[0], nodes[0], nodes[0]}
		}
		for _, victim := range victims {
			version++
			b.blow(fault, victim, g, tolls, fmt.Sprint(version))
		}
		b.judge(fault, size, tolls)
	}
	for n, role := range []string{"subscriber", "provider"} {
		twins := [][]*twin{g.subscribers, g.providers}[n]
		b.close(nodesText(size)+": "+role+", `Close`", twins)
	}
	if size > 1 {
		return
	}

	// Close when there is nobody to say goodbye to.
	var last []*twin
	for _, kind := range besideKinds {
		w := b.start(kind, "last")
		b.must(w, besideOrder{Op: "open", Servers: g.servers})
		b.must(w, besideOrder{Op: "register", Prefix: w.prefix(), N: b.services, Version: "0", Wait: patience})
		b.must(w, besideOrder{Op: "watch", Prefix: w.prefix(), N: b.services})
		last = append(last, w)
	}
	if err := nodes[0].kill(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second) // both know
	b.close("`Close` while the only node is away", last)
}

func nodesText(size int) string {
	if size == 1 {
		return "one node"
	}
	return fmt.Sprint(size, " nodes")
}

// blow strikes one node and asks everybody what came of it.
func (b *beside) blow(fault string, victim *server, g *stage, tolls map[string]*toll, version string) {
	t, nodes, providers, subscribers := b.t, g.nodes, g.providers, g.subscribers
	all := append(slices.Clone(providers), subscribers...)
	connected := victim.clientIDs()
	var struck []*twin
	for _, w := range all {
		ids := b.publishers(nodes, w)
		if w.role == "subscriber" {
			ids = victim.subscribers(service{name: w.prefix() + "-0"})
		}
		if slices.ContainsFunc(ids, func(id string) bool { return slices.Contains(connected, id) }) {
			struck = append(struck, w)
		}
	}
	ask(t, subscribers, func(*twin) besideOrder { return besideOrder{Op: "mark"} })

	others := slices.DeleteFunc(slices.Clone(nodes), func(n *server) bool { return n == victim })
	var ended sync.WaitGroup
	begin := time.Now()
	var restore func() error
	switch fault {
	case "killed":
		restore = victim.start
		if err := victim.kill(); err != nil {
			t.Fatal(err)
		}
	case "paused":
		restore = func() error { return victim.cmd.Process.Signal(syscall.SIGCONT) }
		if err := victim.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	case "ended":
		ended.Go(func() {
			if err := victim.stop(); err != nil {
				t.Error(err)
			}
		})
		restore = victim.start
	}
	if len(others) == 0 {
		ended.Wait()
		if fault == "paused" { // so long that clients must notice
			time.Sleep(12 * time.Second)
		} else {
			time.Sleep(time.Second)
		}
		if err := restore(); err != nil {
			t.Fatal(err)
		}
		begin, others = time.Now(), nodes
	}

	var back sync.WaitGroup
	came := make(map[*twin]time.Duration)
	for _, w := range struck {
		if w.role == "provider" {
			came[w] = 0
		}
	}
	var mu sync.Mutex
	for w := range came {
		back.Go(func() {
			took, ok := b.untilBack(w, others, begin)
			mu.Lock()
			defer mu.Unlock()
			if came[w] = took; !ok {
				came[w] = -1
			}
		})
	}
	answers, errs := together(struck, func(*twin) besideOrder { return besideOrder{Op: "works", Wait: 30 * time.Second} })
	back.Wait()
	for n, w := range struck {
		if errs[n] != nil {
			b.blame(w, "after the node was %s: %v", fault, errs[n])
		} else {
			tolls[w.kind].works = append(tolls[w.kind].works, answers[n].At.Sub(begin))
		}
	}
	for w, took := range came {
		if took < 0 {
			tolls[w.kind].gone++
			b.blame(w, "its registrations did not come back in 30 s after the node was %s", fault)
		} else {
			tolls[w.kind].back = append(tolls[w.kind].back, took)
		}
	}

	// A change, while the node is still away. It is awaited meanwhile.
	var changed, seen []besideAnswer
	var both sync.WaitGroup
	both.Go(func() {
		changed, errs = together(providers, func(w *twin) besideOrder {
			return besideOrder{Op: "register", Prefix: w.prefix(), N: b.services, Version: version, Wait: 20 * time.Second}
		})
	})
	var errsSeen []error
	both.Go(func() {
		seen, errsSeen = together(subscribers, func(*twin) besideOrder {
			return besideOrder{Op: "await", Version: version, Wait: 40 * time.Second}
		})
	})
	both.Wait()
	if err := errors.Join(errsSeen...); err != nil {
		t.Fatal(err)
	}
	for n, w := range providers {
		tolls[w.kind].refused += changed[n].Missing
		if errs[n] != nil || changed[n].Missing > 0 {
			b.blame(w, "a change while the node was %s: %v, %d were refused: %v", fault, errs[n], changed[n].Missing, changed[n].Some)
		}
	}
	for n, w := range subscribers {
		tolls[w.kind].missing += max(0, seen[n].Missing-changed[n].Missing)
		if seen[n].Missing > 0 {
			b.blame(w, "it was not told of a change of %d services after the node was %s: %v", seen[n].Missing, fault, seen[n].Some)
		} else {
			tolls[w.kind].seen = append(tolls[w.kind].seen, max(0, seen[n].At.Sub(changed[n].At)))
		}
	}
	if len(nodes) > 1 {
		ended.Wait()
		if err := restore(); err != nil {
			t.Fatal(err)
		}
		if err := victim.waitReady(); err != nil {
			t.Fatal(err)
		}
	}
	// What comes late, of leases that ran out meanwhile, must show too.
	if b.long {
		time.Sleep(15 * time.Second)
	}
	told := ask(t, subscribers, func(*twin) besideOrder { return besideOrder{Op: "story"} })
	for n, w := range subscribers {
		toll := tolls[w.kind]
		toll.gaps += told[n].Gaps
		toll.longest = max(toll.longest, told[n].LongestGap)
		toll.duplicates += told[n].Duplicates
		if told[n].Gaps > 0 || told[n].Duplicates > 0 {
			b.blame(w, "%d of %d services were without their instance for up to %v, and %d of %d events changed nothing, when the node was %s",
				told[n].Gaps, b.services, told[n].LongestGap, told[n].Duplicates, told[n].Events, fault)
		}
	}
}

// blame fails the test for our client, and keeps what the other one did.
func (b *beside) blame(w *twin, format string, args ...any) {
	b.t.Helper()
	text := fmt.Sprintf("the %s %s: ", w.kind, w.role) + fmt.Sprintf(format, args...)
	if w.kind == besideKinds[0] {
		b.t.Error(text)
	} else {
		b.t.Log(text)
	}
}

// ask is together for what cannot fail.
func ask(t *testing.T, twins []*twin, order func(w *twin) besideOrder) []besideAnswer {
	t.Helper()
	answers, errs := together(twins, order)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return answers
}

// judge writes the rows of one kind of fault.
func (b *beside) judge(fault string, size int, tolls map[string]*toll) {
	where := fmt.Sprintf("%s, %s", nodesText(size), fault)
	row := func(what string, text func(*toll) string) {
		b.row(where+": "+what, text(tolls[besideKinds[0]]), text(tolls[besideKinds[1]]))
	}
	row("first request that works", func(o *toll) string { return spread(o.works) })
	row("all registrations on a connection that lives", func(o *toll) string {
		if o.gone > 0 {
			return fmt.Sprintf("%s; %d × not in 30 s", spread(o.back), o.gone)
		}
		return spread(o.back)
	})
	row("services without their living instance (the longest)", func(o *toll) string {
		if o.gaps == 0 {
			return "0"
		}
		return fmt.Sprintf("%d (%v)", o.gaps, round(o.longest))
	})
	row("changes not accepted in 20 s, accepted and not told, events without a change", func(o *toll) string {
		return fmt.Sprintf("%d, %d, %d", o.refused, o.missing, o.duplicates)
	})
	row("a change of all services until all watchers know", func(o *toll) string { return spread(o.seen) })
}

// close closes clients at the same time. Nothing of ours may be left.
func (b *beside) close(what string, twins []*twin) {
	answers, errs := together(twins, func(*twin) besideOrder { return besideOrder{Op: "close", Wait: 20 * time.Second} })
	var cells []any
	for n, w := range twins {
		a := answers[n]
		if errs[n] != nil {
			b.blame(w, "%s: %v", what, errs[n])
		}
		if a.Goroutines > 0 || a.Sockets > 0 || a.GoroutinesNow > 0 || a.SocketsNow > 0 {
			b.blame(w, "%s left %d goroutines and %d sockets, and after three seconds %d and %d: %s", what,
				a.GoroutinesNow, a.SocketsNow, a.Goroutines, a.Sockets, filepath.Join(w.dir, "left.txt"))
		}
		took := round(a.Took).String()
		if errs[n] != nil {
			took = "not in " + took
		}
		cells = append(cells, fmt.Sprintf("%s; %d and %d, %d and %d", took, max(0, a.GoroutinesNow), max(0, a.SocketsNow), max(0, a.Goroutines), max(0, a.Sockets)))
	}
	b.row(what+"; goroutines and sockets left after 20 ms, and after 3 s", cells[0], cells[1])
}

// publishers are the connections that the node's list of the first service names.
func (b *beside) publishers(nodes []*server, w *twin) (ids []string) {
	for _, n := range nodes {
		if ids, err := n.clientsOf("publisher", service{name: w.prefix() + "-0"}); err == nil {
			return ids
		}
	}
	return nil
}

// untilBack waits until each service is published by a connection that one of the
// nodes has.
func (b *beside) untilBack(w *twin, nodes []*server, begin time.Time) (time.Duration, bool) {
	k := 0
	for time.Since(begin) < 30*time.Second {
		var live []string
		for _, n := range nodes {
			live = append(live, n.clientIDs()...)
		}
		for k < b.services {
			ids, err := nodes[0].clientsOf("publisher", service{name: fmt.Sprintf("%s-%d", w.prefix(), k)})
			if err != nil || !slices.ContainsFunc(ids, func(id string) bool { return slices.Contains(live, id) }) {
				break
			}
			k++
		}
		if k == b.services {
			return time.Since(begin), true
		}
		time.Sleep(5 * time.Millisecond)
	}
	return 0, false
}

// clientIDs are the clients that are attached to the node; none if it is away.
func (s *server) clientIDs() (ids []string) {
	s.show("client/list", &ids)
	return ids
}

// subscribers are those clients of the node that subscribe to the service.
func (s *server) subscribers(of service) []string {
	ids, _ := s.clientsOf("subscriber", of)
	return ids
}

func (s *server) clientsOf(kind string, of service) (ids []string, err error) {
	var list []struct{ ClientID string }
	err = s.show("client/service/"+kind+"/list?serviceName="+of.name, &list)
	for _, c := range list {
		ids = append(ids, c.ClientID)
	}
	return ids, err
}

// show asks the node, which may be away, through the API v2 for operators.
func (s *server) show(path string, data any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.address()+"/nacos/v2/ns/"+path, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	return json.NewDecoder(res.Body).Decode(&struct{ Data any }{data})
}

// measureReads measures reads of a service of 20 instances that is in the cache.
func (b *beside) measureReads() {
	srv := startServer(b.t, b.bin, filepath.Join(b.dir, "reads"))
	c := b.fill(srv, "reads", 1, 20)
	defer c.Close()
	var both []besideAnswer
	for _, kind := range besideKinds {
		w := b.start(kind, "reader")
		b.must(w, besideOrder{Op: "open", Servers: []string{srv.address()}})
		both = append(both, b.must(w, besideOrder{Op: "benchmark", Prefix: "reads"}))
	}
	for n, what := range []string{
		"`Instances`, `SelectAllInstances` of 20, cached", "`Select`, `SelectInstances`", "`Pick`, `SelectOneHealthyInstance`", "`View`, `GetService`",
	} {
		cell := func(a besideAnswer) string {
			m := a.Benchmarks[n]
			return fmt.Sprintf("%.0f ns, %d allocations, %d B", m.Nanoseconds, m.Allocations, m.Bytes)
		}
		b.row(what, cell(both[0]), cell(both[1]))
	}
}

// fill registers instances with a client of its own.
func (b *beside) fill(srv *server, prefix string, services, instances int) *starling.Client {
	c, err := starling.New(starling.Config{Addrs: []string{srv.address()}, CacheDir: "off"})
	if err != nil {
		b.t.Fatal(err)
	}
	for k := range services {
		var set []starling.Registration
		for i := range instances {
			set = append(set, starling.Registration{IP: fmt.Sprintf("10.8.%d.%d", k%250, i+1), Port: 8080, Metadata: map[string]string{"version": "0", "zone": "z1"}})
		}
		if _, err := c.RegisterSet(b.t.Context(), fmt.Sprintf("%s-%d", prefix, k), set); err != nil {
			b.t.Fatal(err)
		}
	}
	return c
}

// measureMemory measures what 1,000 watched services cost.
func (b *beside) measureMemory() {
	const services, instances = 1000, 5
	srv := startServer(b.t, b.bin, filepath.Join(b.dir, "memory"))
	c := b.fill(srv, "memory", services, instances)
	defer c.Close()
	var took, heap, resident, goroutines []any
	for _, kind := range besideKinds {
		w := b.start(kind, "watcher of many")
		b.must(w, besideOrder{Op: "open", Servers: []string{srv.address()}})
		a := b.must(w, besideOrder{Op: "watch", Prefix: "memory", N: services})
		all := b.must(w, besideOrder{Op: "await", Version: "0", Wait: 30 * time.Second})
		if all.Missing > 0 {
			b.blame(w, "it does not see %d of %d services: %v", all.Missing, services, all.Some)
		}
		m := b.must(w, besideOrder{Op: "memory"})
		took = append(took, round(a.Took+all.Took))
		heap = append(heap, mebibytes(m.Heap))
		resident = append(resident, mebibytes(m.Resident))
		goroutines = append(goroutines, m.Goroutines)
	}
	b.row("1,000 services of 5 instances: from the first `Watch` until all are told", took[0], took[1])
	b.row("… heap in use", heap[0], heap[1])
	b.row("… resident memory beyond that of the process before", resident[0], resident[1])
	b.row("… goroutines", goroutines[0], goroutines[1])
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// pair registers two instances of one service with one client.
func (b *beside) pair() {
	srv := startServer(b.t, b.bin, filepath.Join(b.dir, "pair"))
	var left []any
	for _, kind := range besideKinds {
		w := b.start(kind, "pair")
		b.must(w, besideOrder{Op: "open", Servers: []string{srv.address()}})
		b.must(w, besideOrder{Op: "pair", Prefix: "pair-" + kind, Version: "0"})
		ids, err := srv.clientsOf("publisher", service{name: "pair-" + kind + "-0"})
		if err != nil {
			b.t.Fatal(err)
		}
		left = append(left, len(ids))
		b.must(w, besideOrder{Op: "close", Wait: 20 * time.Second})
	}
	if left[0] != 2 {
		b.t.Errorf("of two instances of one service %v are there", left[0])
	}
	b.row("two instances of one service registered by one client, one after the other: there are then", left[0], left[1])
}

// spread is the median, and the smallest and largest where there are several.
func spread(list []time.Duration) string {
	if len(list) == 0 {
		return "–"
	}
	list = slices.Sorted(slices.Values(list))
	median := round(list[len(list)/2])
	if len(list) == 1 {
		return median.String()
	}
	return fmt.Sprintf("%v (%v–%v)", median, round(list[0]), round(list[len(list)-1]))
}

func round(d time.Duration) time.Duration {
	switch {
	case d < 10*time.Millisecond:
		return d.Round(100 * time.Microsecond)
	case d < time.Second:
		return d.Round(time.Millisecond)
	}
	return d.Round(10 * time.Millisecond)
}

func loadAverage() string {
	b, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(b), " ")
	return cmp.Or(first, "unknown")
}

// replaceTable leaves what people wrote around the table as it is.
func replaceTable(file, text string) error {
	const first, last = "<!-- clients: begin; written by make bench-client -->\n", "<!-- clients: end -->\n"
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, ok := bytes.Cut(old, []byte(first))
	_, after, more := bytes.Cut(rest, []byte(last))
	if !ok || !more {
		return fmt.Errorf("%s has no place for the table", file)
	}
	return os.WriteFile(file, slices.Concat(before, []byte(first+text+last), after), 0o644)
}
