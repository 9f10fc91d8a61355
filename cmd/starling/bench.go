package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/spf13/cobra"
)

// Bounds of a run: it ends by itself, and a slip of the finger does not empty
// the machine of ports.
const (
	benchMaxDuration    = 10 * time.Minute
	benchMaxConnections = 50_000
	benchMaxInstances   = 20_000
	benchMaxLoad        = 100_000
)

type benchOptions struct {
	servers         []string
	together        bool
	subscribeServer string
	connections     int // 0: as the scenario has it
	instances       int // of a connection; 0: as the scenario has it
	services        int // 0: as the scenario has it
	http            bool
	checks          bool
	keep            bool
	load            int // changes a second; 0: as the scenario has it
	kill            bool
	concurrency     int
	duration        time.Duration
	serverPID       int
	json            bool
}

// A benchScenario is a kind of load. Run measures it against r.servers and
// returns an error only if it cannot; operations that fail are counted.
type benchScenario struct {
	name        string
	says        string
	connections int
	concurrency func(connections int) int
	duration    time.Duration
	servers     benchServers
	instances   int // of a connection; 0: one
	run         func(context.Context, *benchRun) error
}

// benchServers says how many servers a run of a scenario is of.
type benchServers int

const (
	benchAny      benchServers = iota // one, or with --together all
	benchOne                          // and perhaps another one for subscribers
	benchTogether                     // all
	benchCluster                      // all, at least two
)

func same(n int) int { return n }

var benchScenarios = []benchScenario{
	{"register", "each connection registers in 100 services, round after round, each time with other metadata", 64, same, 5 * time.Second, benchAny, 0, benchRegister},
	{"query", "services of 20 instances are read", 64, same, 5 * time.Second, benchOne, 0, benchQuery},
	{"push", "each of --connections services has one subscriber; from the request that changes a quiet service to the subscriber", 8, same, 10 * time.Second, benchOne, 0, benchPush},
	{"client-push", "as push, between applications with Starling's own client: from the update that one asks for to the event that the other is told", 8, same, 10 * time.Second, benchOne, 0, benchClientPush},
	{"fan-out", "--connections subscribers of one service with 10 instances; from the request that changes it to each of them", 2000, func(int) int { return 1 }, 10 * time.Second, benchOne, 0, benchFanOut},
	{"idle", "each connection publishes one instance, subscribes to one service and rests for --duration: memory", 2000, func(int) int { return 64 }, 10 * time.Second, benchAny, 0, benchIdle},
	{"storm", "as idle; then all of them break, connect again and repeat what they had published and subscribed, at once", 2000, same, 5 * time.Second, benchAny, 0, benchStorm},
	{"http-list", "lists of services with --instances (20) each are read over HTTP, by clients that keep their connections", 64, same, 5 * time.Second, benchOne, 20, benchList},
	{"http-beat", "320 instances of HTTP clients beat, as fast as they can: beats without a body, as most are", 64, same, 5 * time.Second, benchOne, 0, benchBeat},
	{"http-full-beat", "the same, with everything in each beat", 64, same, 5 * time.Second, benchOne, 0, benchFullBeat},
	{"http-register", "the same instances are registered again and again, as they are", 64, same, 5 * time.Second, benchOne, 0, benchReregister},
	{"lag", "of a cluster: --load changes a second (5000) on all nodes; from a change to subscribers on the others, and how soon all digests are equal when the load stops", 64, same, 10 * time.Second, benchCluster, 0, benchLag},
	{"failover", "of a cluster: the first server is killed, its clients go to the others; until each has registered again, and whether subscribers there saw any of them missing, in --duration after that too", 5000, same, 20 * time.Second, benchCluster, 0, benchFailover},
	{"beats", "--connections HTTP clients (of 100 services) beat every 5 s or --load times a second together, at all servers in turn, and watchers at each follow all services; with --kill the first server is killed, --duration before 10 clients fall silent", 10_000, func(n int) int { return max(1, n/20) }, time.Minute, benchTogether, 0, benchBeats},
	{"persist", "each connection registers 100 persistent instances in services of 20, round after round, each time with other metadata, and removes them in the end", 64, same, 10 * time.Second, benchTogether, persistEach, benchPersist},
}

func benchCommand(p *process) *cobra.Command {
	var opts benchOptions
	names := make([]string, len(benchScenarios))
	var list strings.Builder
	for i, s := range benchScenarios {
		names[i] = s.name
		fmt.Fprintf(&list, "  %-14s %s\n                 (%d connections, %v)\n", s.name, s.says, s.connections, s.duration)
	}
	c := &cobra.Command{
		Use:   "bench SCENARIO... | all",
		Short: "Measure a server or a cluster: registrations, queries, pushes, memory, replication",
		Long: `Measure any server that speaks the gRPC protocol of Nacos, and its HTTP API. Each scenario is run
against each of --servers, one after the other, or with --together against all of
them at once; those of a cluster, beats and persist always are, and "all" leaves them out:

` + list.String() + `
RATE, P50, P99 and MAX are of operations as this client sees them: a request and
its answer, a change that has arrived at a subscriber, a connection that is set
up. CPU/OP is the CPU time of the server process per operation, MEM/CONN what it
has grown by per connection (resident, so it includes what the runtime has not
given back). All but client-push go through bare connections, so that the figures are the
servers': what a client spends on its lists is not in them. CPU and memory are known for a server on this machine under Linux: its process
is found by the port it listens on, or named with --server-pid.

Client and server on one machine share its processors: compare servers with each
other on one machine, not with figures from elsewhere. Everything is registered
in the group STARLING_BENCH and goes when the run ends, at the latest 10 minutes
after it began; persistent instances stay if the run is killed, or with --keep. Do not point it at a server that others need.`,
		Example: `  starling bench register query                        # of a node on this machine
  starling bench all --servers 10.0.0.1:8848,10.0.0.2:8848
  starling bench push --servers 10.0.0.1:8848 --subscribe-server 10.0.0.2:8848
  starling bench push --servers 10.0.0.1:8848 --load 1000   # how pushes fare beside other changes
  starling bench register --together --servers 127.0.0.1:8848,127.0.0.1:8858,127.0.0.1:8868
  starling bench lag --servers 127.0.0.1:8848,127.0.0.1:8858,127.0.0.1:8868
  starling bench idle --connections 10000 --duration 30s --json`,
		ValidArgs: append(names, "all"),
		Args:      cobra.MatchAll(cobra.MinimumNArgs(1), cobra.OnlyValidArgs),
		RunE: func(c *cobra.Command, args []string) error {
			if err := opts.validate(args); err != nil {
				return err
			}
			if err := bench(c.Context(), p, &opts, args); err != nil {
				return errFailed{err}
			}
			return nil
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringSliceVar(&opts.servers, "servers", []string{"127.0.0.1:8848"}, "HOST:PORT,… of the main ports; gRPC is found 1000 above them")
	f.BoolVar(&opts.together, "together", false, "share the connections among all --servers, as the clients of a cluster do (register, idle, storm)")
	f.StringVar(&opts.subscribeServer, "subscribe-server", "", "HOST:PORT of the node that subscribers connect to (push, client-push, fan-out; default the one that is changed)")
	f.IntVar(&opts.connections, "connections", 0, "connections (default as above)")
	f.IntVar(&opts.instances, "instances", 0, "instances of each connection (idle: default 1, more are in services that all share; persist: default 100), or of each service (http-list: default 20)")
	f.IntVar(&opts.services, "services", 0, "services that all instances are spread over (persist: default one for 20 instances; beats: for 100)")
	f.BoolVar(&opts.http, "http", false, "write over HTTP instead of gRPC (persist)")
	f.BoolVar(&opts.checks, "checks", false, "leave the health checks on that persistent instances have by default: nobody answers at the addresses that are registered here (persist)")
	f.BoolVar(&opts.keep, "keep", false, "register each instance at least once, and leave them there (persist)")
	f.IntVar(&opts.load, "load", 0, "changes a second (lag), beats a second (beats), or changes beside what is measured, of services that nobody follows (push, client-push)")
	f.BoolVar(&opts.kill, "kill", false, "kill the process of the first server, on this machine; else that is left to you (failover) or nobody dies (beats)")
	f.IntVar(&opts.concurrency, "concurrency", 0, "requests, or set-ups of connections, under way at once (default one per connection; idle 64)")
	f.DurationVar(&opts.duration, "duration", 0, "time to measure, without set-up (default as above)")
	f.IntVar(&opts.serverPID, "server-pid", 0, "process of the server on this machine (default found by its port)")
	f.BoolVar(&opts.json, "json", false, "print one JSON object per scenario and server")
	return c
}

func (o *benchOptions) validate(names []string) error {
	for _, s := range append(slices.Clone(o.servers), o.subscribeServer) {
		if s == "" && len(o.servers) > 0 {
			continue
		}
		if _, port, err := net.SplitHostPort(s); err != nil {
			return fmt.Errorf("server %q: want HOST:PORT", s)
		} else if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || n > 64535 {
			return fmt.Errorf("server %q: the port must be between 1 and 64535", s)
		}
	}
	switch {
	case o.connections < 0 || o.connections > benchMaxConnections:
		return fmt.Errorf("--connections must be between 1 and %d", benchMaxConnections)
	case o.instances < 0 || o.instances > benchMaxInstances:
		return fmt.Errorf("--instances must be between 1 and %d", benchMaxInstances)
	case o.services < 0 || o.services > benchMaxConnections:
		return fmt.Errorf("--services must be between 1 and %d", benchMaxConnections)
	case o.load < 0 || o.load > benchMaxLoad:
		return fmt.Errorf("--load must be between 1 and %d", benchMaxLoad)
	case o.concurrency < 0 || o.concurrency > benchMaxConnections:
		return fmt.Errorf("--concurrency must be between 1 and %d", benchMaxConnections)
	case o.duration < 0 || o.duration > benchMaxDuration:
		return fmt.Errorf("--duration must be at most %v", benchMaxDuration)
	case o.serverPID != 0 && len(o.servers) > 1:
		return errors.New("--server-pid is of one server; there are several --servers")
	}
	for _, s := range benchScenarios {
		switch named := slices.Contains(names, s.name); {
		case named && s.servers == benchCluster && len(o.servers) < 2:
			return fmt.Errorf("%s needs at least two --servers of one cluster", s.name)
		case o.together && s.servers == benchOne && (named || slices.Contains(names, "all")):
			return fmt.Errorf("--together: %s is of one server", s.name)
		}
	}
	return nil
}

// bench runs the named scenarios against each server and prints the results.
func bench(ctx context.Context, p *process, opts *benchOptions, names []string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, benchMaxDuration, errors.New("the run was stopped after "+benchMaxDuration.String()))
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	p.notify(signals)
	go func() {
		select {
		case <-ctx.Done():
		case s := <-signals:
			stop(fmt.Errorf("stopped by %v", s))
		}
	}()
	defer stop(nil)

	var results []*benchResult
	var failed []error
	for _, s := range benchScenarios {
		if !slices.Contains(names, s.name) && !(slices.Contains(names, "all") && s.servers <= benchOne) {
			continue
		}
		runs := slices.Collect(slices.Chunk(opts.servers, 1))
		if opts.together || s.servers > benchOne {
			runs = [][]string{opts.servers}
		}
		for _, servers := range runs {
			r := newBenchRun(&s, servers, opts)
			server := r.name()
			r.ask = func(what string) { fmt.Fprintf(p.stderr, "%s: %s\n", s.name, what) }
			if isTerminal(p.stderr) {
				r.say = func(what string) { fmt.Fprintf(p.stderr, "%s, %s: %s\n", s.name, server, what) }
			}
			err := s.run(ctx, r)
			r.closeAll()
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			if err != nil {
				return errors.Join(append(failed, fmt.Errorf("%s on %s: %w", s.name, server, err))...)
			}
			res := r.result()
			results = append(results, res)
			if res.Errors > 0 {
				failed = append(failed, fmt.Errorf("%s on %s: %d operations failed, the first: %s", s.name, server, res.Errors, res.FirstError))
			}
			if opts.json {
				if err := json.NewEncoder(p.stdout).Encode(res); err != nil {
					return err
				}
			}
		}
	}
	if !opts.json {
		if err := writeBenchTable(p.stdout, results); err != nil {
			return err
		}
	}
	return errors.Join(failed...)
}

// A benchResult is what one scenario found out about one server. Times are
// milliseconds unless the name says otherwise.
type benchResult struct {
	Scenario    string  `json:"scenario"`
	Server      string  `json:"server"`
	Connections int     `json:"connections"`
	Concurrency int     `json:"concurrency"`
	Seconds     float64 `json:"seconds"`
	Operations  int64   `json:"operations"`
	Rate        float64 `json:"ratePerSecond"`
	P50         float64 `json:"p50Millis"`
	P99         float64 `json:"p99Millis"`
	Max         float64 `json:"maxMillis"`
	// Absent where the server's process is not known, or the scenario does
	// not tell.
	CPUMicros       *float64 `json:"serverCPUMicrosPerOperation,omitempty"`
	ConnectionBytes *float64 `json:"serverBytesPerConnection,omitempty"`
	ServerUnknown   string   `json:"serverProcessUnknown,omitempty"` // why
	// Of a cluster: how long after the load, or after the last client was
	// back, all nodes told the same versions and digests; and instances that
	// subscribers saw missing.
	EqualMillis *float64     `json:"equalAfterMillis,omitempty"`
	Removals    *int64       `json:"removalsSeen,omitempty"`
	Beats       *beatsResult `json:"beats,omitempty"`
	// Of HTTP: the size of an answer with its head.
	AnswerBytes int    `json:"answerBytes,omitempty"`
	Errors      int64  `json:"errors"`
	FirstError  string `json:"firstError,omitempty"`
}

func writeBenchTable(w io.Writer, results []*benchResult) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "SCENARIO\tSERVER\tCONNS\tOPS\tRATE\tP50\tP99\tMAX\tCPU/OP\tMEM/CONN\tERRORS\t")
	notes := map[string]string{}
	for _, r := range results {
		cpu, memory := "-", "-"
		if r.CPUMicros != nil {
			cpu = fmt.Sprintf("%.1fµs", *r.CPUMicros)
		}
		if r.ConnectionBytes != nil {
			memory = fmt.Sprintf("%.1fKiB", *r.ConnectionBytes/1024)
		}
		if r.ServerUnknown != "" {
			notes[r.Server] = r.ServerUnknown
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%.0f/s\t%.2fms\t%.2fms\t%.2fms\t%s\t%s\t%d\t\n",
			r.Scenario, r.Server, r.Connections, r.Operations, r.Rate, r.P50, r.P99, r.Max, cpu, memory, r.Errors)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, r := range results {
		if r.EqualMillis != nil {
			if _, err := fmt.Fprintf(w, "%s: the digests of all nodes were equal %.0f ms later\n", r.Scenario, *r.EqualMillis); err != nil {
				return err
			}
		}
		if b := r.Beats; b != nil {
			if _, err := fmt.Fprintf(w, "%s: %d instances were seen missing or unhealthy, %d beats failed within %v of the kill, %d else, %d were unknown; silent clients went after %.1f to %.1f s\n",
				r.Scenario, b.Flaps, b.FailedAtKill, killShadow, b.Failed, b.Unknown, b.GoneFirst, b.GoneLast); err != nil {
				return err
			}
			for _, n := range b.Nodes {
				if _, err := fmt.Fprintf(w, "%s: %s: CPU %.1f%% before, %.1f%% after; memory %d MiB, %d MiB\n", r.Scenario, n.Server, n.CPUBefore, n.CPUAfter, n.ResidentBefore>>20, n.ResidentAfter>>20); err != nil {
					return err
				}
			}
		}
		if r.Removals != nil {
			if _, err := fmt.Fprintf(w, "%s: subscribers saw %d instances missing\n", r.Scenario, *r.Removals); err != nil {
				return err
			}
		}
	}
	for _, server := range slices.Sorted(maps.Keys(notes)) {
		if _, err := fmt.Fprintf(w, "CPU and memory of %s are not known: %s\n", server, notes[server]); err != nil {
			return err
		}
	}
	return nil
}

// A benchRecorder collects latencies and failures from many goroutines.
type benchRecorder struct {
	mu       sync.Mutex
	latency  *hdrhistogram.Histogram // microseconds
	errors   int64
	firstErr error
}

func newBenchRecorder() *benchRecorder {
	return &benchRecorder{latency: hdrhistogram.New(1, benchMaxDuration.Microseconds(), 3)}
}

func (r *benchRecorder) record(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// What is out of the range is longer than a run can be.
	_ = r.latency.RecordValue(max(1, d.Microseconds()))
}

func (r *benchRecorder) fail(n int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errors += n
	if r.firstErr == nil {
		r.firstErr = err
	}
}

// reset forgets the latencies of a warm-up, not its errors.
func (r *benchRecorder) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.latency.Reset()
}
