package node

import (
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"
)

var update = flag.Bool("update", false, "write the table of metrics in docs/operations.md anew")

// value is that of a series of a node, as /metrics writes it.
func value(t *testing.T, n *Node, series string) float64 {
	t.Helper()
	_, body := get(t, n, "GET", "/metrics")
	for line := range strings.Lines(body) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				t.Fatal(line, err)
			}
			return v
		}
	}
	t.Fatalf("/metrics lacks %s", series)
	return 0
}

// What alerts are made of is there, and true.
func TestAlertingMetrics(t *testing.T) {
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	a, b := testOptions(t, t.TempDir()), testOptions(t, t.TempDir())
	b.ClockOffset = -5 * time.Second
	var nodes []*Node
	for _, o := range []*Options{&a, &b} {
		o.Listen = DefaultOptions().Listen
		o.GRPCPort, o.PeerPort, o.RaftPort, o.GossipPort = o.Port+1000, o.Port+1001, o.Port-1000, o.Port-902
		o.Expect, o.Logger = 2, zaptest.NewLogger(t)
		o.Join = []string{fmt.Sprint("127.0.0.1:", a.Port), fmt.Sprint("127.0.0.1:", b.Port)}
		nodes = append(nodes, start(t, *o))
	}
	stopped := false
	defer func() {
		stop(t, nodes[0])
		if !stopped {
			stop(t, nodes[1])
		}
	}()
	is := func(n *Node, series string, holds func(float64) bool) {
		t.Helper()
		soonDone(t, series, func() bool { return holds(value(t, n, series)) })
	}
	exactly := func(want float64) func(float64) bool { return func(v float64) bool { return v == want } }
	for _, n := range nodes {
		is(n, "starling_ready", exactly(1))
		is(n, "starling_raft_has_leader", exactly(1))
		is(n, "starling_raft_voters", exactly(2))
		is(n, "starling_raft_alive_voters", exactly(2))
		is(n, `starling_cluster_members{state="alive"}`, exactly(2))
		is(n, "starling_distro_queued_bytes", exactly(0))
		is(n, "starling_distro_draining", exactly(0))
		is(n, "starling_cluster_certificate_expiry_timestamp_seconds", exactly(0)) // on loopback without a secret
		is(n, "starling_http_connections", exactly(1))
		is(n, "starling_http_connections_limit", exactly(float64(a.MaxConnections)))
		is(n, "starling_grpc_transports_limit", exactly(float64(a.MaxConnections)))
		if size, free := value(t, n, "starling_data_dir_size_bytes"), value(t, n, "starling_data_dir_free_bytes"); size < free || size == 0 {
			t.Errorf("%v bytes are free of %v", free, size)
		}
	}
	a0, b0 := value(t, nodes[0], "starling_time_seconds"), value(t, nodes[1], "starling_time_seconds")
	if off := a0 - b0; off < 4 || off > 6 {
		t.Errorf("the clock that is 5 s behind is %v behind", off)
	}
	// Both follow the clock that is ahead; the one that is behind shows it.
	is(nodes[0], "starling_distro_clock_offset_seconds", func(v float64) bool { return v < 1 })
	is(nodes[1], "starling_distro_clock_offset_seconds", func(v float64) bool { return v > 4 && v < 6 })
	stopped = true
	stop(t, nodes[1])
	is(nodes[0], `starling_cluster_members{state="left"}`, exactly(1))
	is(nodes[0], "starling_raft_alive_voters", exactly(1))
	is(nodes[0], "starling_raft_has_leader", exactly(0)) // one of two is no majority
	is(nodes[0], "starling_ready", exactly(1))
}

// The table of docs/operations.md has every metric of a node, with its labels,
// and no other. After a change:
//
//	go test ./pkg/node -run TestMetricsAreDocumented -update
func TestMetricsAreDocumented(t *testing.T) {
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	n := startNodes(t, 1)[0]
	defer stop(t, n)
	_, body := get(t, n, "GET", "/metrics")
	table := metricsTable(t, body)

	const file, begin, end = "../../docs/operations.md", "<!-- metrics: begin; written by go test ./pkg/node -run TestMetricsAreDocumented -update -->\n", "<!-- metrics: end -->"
	doc, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok1 := strings.Cut(string(doc), begin)
	old, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatalf("%s has no place for the table", file)
	}
	if *update {
		if err := os.WriteFile(file, []byte(before+begin+table+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if old != table {
		t.Errorf("the table of metrics in %s is not what a node has; write it anew with -update and look at what changes:\nhas:\n%s\nwants:\n%s", file, old, table)
	}
}

var labels = regexp.MustCompile(`([a-z_]+)="[^"]*"`)

// metricsTable is made of what /metrics answers. That of the Go runtime and of
// the process is not ours to describe.
func metricsTable(t *testing.T, exposition string) string {
	t.Helper()
	type metric struct {
		help, kind string
		labels     map[string]bool
	}
	all := map[string]*metric{}
	var now *metric
	for line := range strings.Lines(exposition) {
		line = strings.TrimSuffix(line, "\n")
		if rest, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, help, _ := strings.Cut(rest, " ")
			now = &metric{help: strings.ReplaceAll(help, "|", `\|`), labels: map[string]bool{}}
			if strings.HasPrefix(name, "starling_") {
				all[name] = now
			}
		} else if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			_, now.kind, _ = strings.Cut(rest, " ")
		} else {
			for _, l := range labels.FindAllStringSubmatch(line, -1) {
				if l[1] != "le" {
					now.labels[l[1]] = true
				}
			}
		}
	}
	if len(all) < 100 {
		t.Fatalf("%d metrics only", len(all))
	}
	b := new(strings.Builder)
	fmt.Fprintf(b, "| Metric | Kind | What it is |\n|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(all)) {
		m := all[name]
		if m.help == "" {
			t.Errorf("%s has no help", name)
		}
		of := ""
		if len(m.labels) > 0 {
			of = "{" + strings.Join(slices.Sorted(maps.Keys(m.labels)), ",") + "}"
		}
		fmt.Fprintf(b, "| `%s%s` | %s | %s |\n", name, of, m.kind, m.help)
	}
	return b.String()
}
