package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Options of a node. Start from [DefaultOptions]; [Options.Validate] says what
// each field may be. Errors name a field by its flag, which is also its key
// in the configuration file.
type Options struct {
	// Name is shown to people; what identifies a node is the id in its data
	// directory. Flag --name; default: the host name.
	Name string
	// Bind is the address to listen on, without a port. Flag --bind. The
	// default is loopback: a node on a laptop exposes nothing (design §2).
	Bind string
	// Advertise is the address that others reach this node at, without a
	// port. Flag --advertise. Empty: Bind, and if that is every address of the
	// machine (0.0.0.0 or ::), the first one that is not loopback.
	Advertise string
	// Port is the HTTP port, from 1001 to 64534. Flag --port. The other ports
	// of a node follow from it (design §2), unless they are given: Port+1000
	// gRPC for clients (which is what the SDKs compute from Port), Port+1001
	// gRPC between nodes, Port−1000 Raft, Port−902 gossip, TCP and UDP.
	Port int
	// GRPCPort, PeerPort, RaftPort and GossipPort are the other ports; 0: what
	// follows from Port. Flags --grpc-port, --peer-port, --raft-port,
	// --gossip-port. The members of a cluster tell each other.
	GRPCPort, PeerPort, RaftPort, GossipPort int
	// DataDir is where the node keeps what must survive a restart. Flag
	// --data-dir. It is made if it is not there, see [Open].
	DataDir string

	// Join names other nodes: HOST or HOST:PORT with their main port (default:
	// this node's Port). A DNS name stands for all of its addresses, and is
	// looked up again and again. Flag --join.
	Join []string
	// Expect is how many nodes form the cluster at first: only then, and once,
	// it gets its id. 0 stands for "with Join: join a cluster that there is,
	// without: be one"; 1 with Join for "join, and if nobody is there within
	// 5s, be the first". Flag --expect.
	Expect int
	// GossipKeyFile holds the secrets that the nodes share, one in a line: the
	// first is used, all are accepted. The file is read again when it has
	// changed. A cluster on other addresses than loopback needs it, or
	// InsecureCluster. Flags --gossip-key-file and --insecure-cluster.
	GossipKeyFile   string
	InsecureCluster bool
	// PeerCert, PeerKey and PeerCA are PEM files for TLS between nodes, in
	// place of the certificates that are derived from the secret. All or none.
	// Flags --peer-cert, --peer-key, --peer-ca.
	PeerCert, PeerKey, PeerCA string

	// PushWindow: changes of one service within it are merged into one push;
	// the first after a quiet time goes out at once. From 1ms to
	// PushWindowMax, default 100ms (design §7; Nacos 500ms).
	PushWindow time.Duration
	// PushWindowMax bounds the window, which grows to three times the duration
	// of the last fan-out. From 1ms to 1m, default 2s (design §7).
	PushWindowMax time.Duration
	// PushRetry is the wait before a refused push is sent again, once. From
	// 1ms to 1m, default 1s (design §7).
	PushRetry time.Duration
	// PushAckTimeout: a connection that leaves a push unanswered for so long is
	// closed, so that its client reconnects. From 1ms to 1h, default 60s
	// (design §7).
	PushAckTimeout time.Duration

	// ConnectionIdle: a gRPC connection that has been silent for so long is
	// asked whether it still lives. From 1ms to 1h, default 20s (semantics H3;
	// SDKs send something every 5s).
	ConnectionIdle time.Duration
	// DetectionAnswer is how long the answer to that question may take before
	// the connection is closed. From 1ms to 1h, default 5s (semantics H3).
	DetectionAnswer time.Duration
	// IdleScan is the time between two looks for silent connections. From 1ms
	// to 1m, default 3s (semantics H3).
	IdleScan time.Duration
	// SetupTimeout is how long a transport may live without a set-up before it
	// is closed. From 1s to 1h, default 30s.
	SetupTimeout time.Duration
	// ReceiveTimeout is how long a request may take to arrive; after it the
	// connection is closed. From 100ms to 10m, default 15s.
	ReceiveTimeout time.Duration
	// SetupWait is how long a request waits for the set-up of its connection
	// before it is refused: the two travel on different streams. From 1ms to
	// 1m, default 1s.
	SetupWait time.Duration
	// MovingFor: what a connection published that is lost while its client is
	// expected elsewhere (the node is draining, has asked it to move, or stood
	// still) stays for so long. From 1ms to 1m, default 10s (design §6). Flag
	// --moving-for.
	MovingFor time.Duration
	// KeepaliveTime is the silence after which the server pings a gRPC
	// connection (HTTP/2). From 1s (grpc-go raises less to it) to 24h, default
	// 20s (cluster E5).
	KeepaliveTime time.Duration
	// KeepaliveTimeout is how long the answer to such a ping may take before
	// the connection is closed. From 1ms to 1h, default 10s (cluster E5).
	KeepaliveTimeout time.Duration
	// KeepaliveMin: a client that pings more often is disconnected. From 1ms
	// to 1h, default 5s (cluster E5; the Go SDK pings every 60s).
	KeepaliveMin time.Duration

	// BeatCheck is the time between two looks for HTTP clients whose beats are
	// late. From 1ms to 1m, default 5s (semantics H7).
	BeatCheck time.Duration
	// BeatTimeout: an instance without a beat for so long becomes unhealthy.
	// Instances may bring their own. From 1ms to 24h, default 15s (semantics
	// H8).
	BeatTimeout time.Duration
	// BeatDelete: an instance without a beat for so long is removed. Instances
	// may bring their own. From BeatTimeout to 24h, default 30s (semantics H8).
	BeatDelete time.Duration

	// The timers of replication and failover (design §§5, 6).

	// HeadInterval is the time between two heads to each peer. From 100ms to
	// 10s, default 1s.
	HeadInterval time.Duration
	// Detection is what memberlist needs to find a silent node dead, at the
	// usual probes. From 100ms to 1m, default 2.5s.
	Detection time.Duration
	// LeaseRefused and LeaseSilent are how long the instances of a node stay
	// that refuses connections, or says nothing; LeaseMax bounds what is added
	// for slow clients and long queues. Defaults 10s, 22.5s (a Java client
	// needs up to 20.5s to notice and 3s more to register), 60s.
	LeaseRefused, LeaseSilent, LeaseMax time.Duration
	// LeaseRestart is how long what a snapshot brought back is served when the
	// whole cluster restarts. Default 30s.
	LeaseRestart time.Duration
	// ExpiryProbe is the time between two dials of an orphan whose lease is
	// over, ExpiryProbeMax how long it may stay by answering. Defaults 5s,
	// 180s.
	ExpiryProbe, ExpiryProbeMax time.Duration
	// SelfPreservation bounds how long leases stand still while too many nodes
	// are silent. Default 3m.
	SelfPreservation time.Duration
	// StableAfter is how long a member must be alive to count for that, and
	// for pauses to be forgotten. Default 60s.
	StableAfter time.Duration
	// TombstoneGrace is how long removals are remembered, DropMemory how long
	// dropped lives are. Defaults 10m each.
	TombstoneGrace, DropMemory time.Duration
	// CatchUp bounds how long a node that starts or stood still waits for its
	// peers. Default 10s.
	CatchUp time.Duration
	// SnapshotEvery is the time between two snapshots of the registry,
	// SnapshotMaxAge how old one may be to be served after a restart. Defaults
	// 10s, 5m.
	SnapshotEvery, SnapshotMaxAge time.Duration
	// HandoverGrace is how long the old owner of an HTTP client keeps its copy
	// beside the new owner's. Default 10s.
	HandoverGrace time.Duration
	// Rejoin is the time between two looks for members that are missing, and
	// for new addresses of the names in Join. Default 10s.
	Rejoin time.Duration
	// ProbeInterval and ProbeTimeout are memberlist's. Defaults 500ms, 200ms
	// (cluster A6: nothing faster).
	ProbeInterval, ProbeTimeout time.Duration

	// The timers of the log (design §8).

	// RaftHeartbeat: a follower that has heard nothing of the leader for one to
	// two times so long wants a new one. From 20ms to 1m, default 500ms (cluster
	// C4).
	RaftHeartbeat time.Duration
	// RaftReplaceAfter is how long a voter must have been gone before another
	// node takes its place, RaftRemoveAfter how long a node that left on purpose
	// keeps its vote. From 1ms to 24h and 720h, defaults 1m and 5m.
	RaftReplaceAfter, RaftRemoveAfter time.Duration
	// RaftSnapshotEvery is the time between two looks whether the log has grown
	// enough for a snapshot: by RaftSnapshotEntries entries, or RaftSnapshotBytes.
	// From 100ms to 1h, from 16, and from 64 KiB to 1 TiB; defaults 30s, 8192,
	// 8 MiB.
	RaftSnapshotEvery                      time.Duration
	RaftSnapshotEntries, RaftSnapshotBytes int

	// MaxRestoreBytes bounds a backup that is restored. From 1 MiB to 4 TiB,
	// default 4 GiB: some ten million persistent instances.
	MaxRestoreBytes int

	// CheckInterval is the time between two health checks of a persistent
	// instance, CheckTimeout how long connecting may take, and then an answer
	// (MySQL: twice as long for each step). From 10ms to 1h and from 1ms to 1m,
	// defaults 5s, 500ms (semantics §4.3).
	CheckInterval, CheckTimeout time.Duration
	// CheckRate bounds how many checks a node begins in a second, CheckStrikes
	// is how many equal results in a row change what is shown. From 1 to
	// 1,000,000 and from 1 to 100, defaults 1,000, 3 (semantics H17).
	CheckRate, CheckStrikes int

	// EmptyServiceAge: a service that has had no instance for so long is
	// removed. From 1ms to 720h, default 60s (semantics E22).
	EmptyServiceAge time.Duration
	// OverrideAge: what an operator set on an instance ends when the instance
	// has been absent for so long. From 1ms to 720h, default 60s (design §4).
	OverrideAge time.Duration
	// SweepPeriod is the time between two looks for empty services, ended
	// overrides and old history. From 1ms to 1h, default 10s.
	SweepPeriod time.Duration

	// HistoryPerService is how many events are kept for one service. From 1 to
	// 65536, default 256 (design §4). Flag --history-per-service.
	HistoryPerService int
	// HistoryBytes bounds the memory of all history, as estimated. From 64 KiB
	// to 64 GiB, default 64 MiB (design §4). Flag --history-bytes.
	HistoryBytes int
	// HistoryKeep is how long the history of a service outlives it. From 1ms
	// to 720h, default 24h (design §4).
	HistoryKeep time.Duration

	// DrainTimeout bounds a clean stop. From 1ms to 10m, default 20s (design
	// §6).
	DrainTimeout time.Duration
	// DrainCloseDelay is the time between asking a client to move and closing
	// its connection. From 1ms to DrainTimeout, default 2s (design §6: the
	// Python and Rust SDKs move only when the transport closes).
	DrainCloseDelay time.Duration

	// Limits protect a node from a client that runs wild. The defaults are
	// meant for fleets behind one address (NAT, a proxy); what is refused is
	// told which limit it met. [Options.Limits] has flags and ranges.

	// MaxConnections bounds the SDK connections of the node, and apart from
	// them the HTTP connections. Default 50,000: about 1.5 GiB of memory.
	MaxConnections int
	// MaxConnectionsPerAddress bounds both for one remote address. Default
	// 10,000: a large site behind one NAT address.
	MaxConnectionsPerAddress int
	// MaxSetupRate bounds how many SDK connections are set up in a second,
	// MaxSetupRatePerAddress those from one remote address; twice as many may
	// come at once. Defaults 5,000 and 2,000: after a restart everybody comes
	// back within seconds.
	MaxSetupRate, MaxSetupRatePerAddress int
	// MaxSubscriptionsPerConnection bounds the services and patterns that one
	// connection follows. Default 10,000.
	MaxSubscriptionsPerConnection int
	// MaxInstancesPerConnection bounds what one connection publishes, in all
	// services together. Default 20,000.
	MaxInstancesPerConnection int
	// MaxStreamsPerConnection bounds the requests of one connection that are
	// under way at the same time. gRPC clients wait for their turn. Default
	// 1,000.
	MaxStreamsPerConnection int
	// MaxRequestBytes bounds one gRPC message, default 10 MiB (what Nacos and
	// its SDKs use, grpc-protocol §1.3), and a form of the HTTP API, which is
	// bounded by 1 MiB as well.
	MaxRequestBytes int
	// MaxHeaderBytes bounds the headers of a request, gRPC or HTTP. Default
	// 64 KiB.
	MaxHeaderBytes int
	// MaxFuzzyPatterns bounds the different patterns that are watched on the
	// node, MaxFuzzyMatches the services that a client is told of when it
	// starts to watch. Defaults 20 and 500 (as Nacos, semantics S10).
	MaxFuzzyPatterns, MaxFuzzyMatches int

	// ClockOffset is added to the wall clock: what a wrong clock does can be
	// tried without touching the machine's. Hidden flag --clock-offset.
	ClockOffset time.Duration

	// Listen and Dial open connections; nil: [net.Listen], [net.Dialer]. Gossip
	// carries memberlist's packets; nil: UDP and TCP on GossipPort. Lookup
	// resolves names; nil: the system's resolver. Tests bring their own
	// network.
	Listen func(network, addr string) (net.Listener, error)
	Dial   func(ctx context.Context, addr string) (net.Conn, error)
	Gossip memberlist.Transport
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	// NoSync leaves it to the machine when the log reaches the disk: a
	// simulation ends processes, never the machine. With it a power cut loses
	// acknowledged writes.
	NoSync bool
	// Freeze is called, with no lock held, wherever the node looks whether it
	// stood still. A simulation stops the node by not returning; nil else.
	Freeze func()
	// Logger is what components take their named loggers from; nil: nothing is
	// logged.
	Logger *zap.Logger
	// SetLogLevel changes the level of Logger; nil: it cannot be changed.
	SetLogLevel func(zapcore.Level)
	// Version is the release, as shown to clients and people.
	Version string
}

// DefaultOptions are those of a single node on loopback.
func DefaultOptions() Options {
	// Without a host name Validate asks for one: two nodes of one made-up name
	// would be worse.
	name, _ := os.Hostname()
	return Options{
		Name:    name,
		Bind:    "127.0.0.1",
		Port:    8848,
		DataDir: "./starling-data",

		PushWindow:     100 * time.Millisecond,
		PushWindowMax:  2 * time.Second,
		PushRetry:      time.Second,
		PushAckTimeout: 60 * time.Second,

		ConnectionIdle:   20 * time.Second,
		DetectionAnswer:  5 * time.Second,
		IdleScan:         3 * time.Second,
		SetupTimeout:     30 * time.Second,
		ReceiveTimeout:   15 * time.Second,
		SetupWait:        time.Second,
		MovingFor:        10 * time.Second,
		KeepaliveTime:    20 * time.Second,
		KeepaliveTimeout: 10 * time.Second,
		KeepaliveMin:     5 * time.Second,

		BeatCheck:   5 * time.Second,
		BeatTimeout: 15 * time.Second,
		BeatDelete:  30 * time.Second,

		HeadInterval: time.Second,
		Detection:    2500 * time.Millisecond,
		LeaseRefused: 10 * time.Second, LeaseSilent: 22500 * time.Millisecond, LeaseMax: 60 * time.Second, LeaseRestart: 30 * time.Second,
		ExpiryProbe: 5 * time.Second, ExpiryProbeMax: 3 * time.Minute,
		SelfPreservation: 3 * time.Minute, StableAfter: time.Minute,
		TombstoneGrace: 10 * time.Minute, DropMemory: 10 * time.Minute,
		CatchUp:       10 * time.Second,
		SnapshotEvery: 10 * time.Second, SnapshotMaxAge: 5 * time.Minute,
		HandoverGrace: 10 * time.Second,
		Rejoin:        10 * time.Second,
		ProbeInterval: 500 * time.Millisecond, ProbeTimeout: 200 * time.Millisecond,

		RaftHeartbeat: 500 * time.Millisecond, RaftReplaceAfter: time.Minute, RaftRemoveAfter: 5 * time.Minute,
		RaftSnapshotEvery: 30 * time.Second, RaftSnapshotEntries: 8192, RaftSnapshotBytes: 8 << 20, MaxRestoreBytes: 4 << 30,

		CheckInterval: 5 * time.Second, CheckTimeout: 500 * time.Millisecond, CheckRate: 1000, CheckStrikes: 3,

		EmptyServiceAge: 60 * time.Second,
		OverrideAge:     60 * time.Second,
		SweepPeriod:     10 * time.Second,

		HistoryPerService: 256,
		HistoryBytes:      64 << 20,
		HistoryKeep:       24 * time.Hour,

		DrainTimeout:    20 * time.Second,
		DrainCloseDelay: 2 * time.Second,

		MaxConnections: 50_000, MaxConnectionsPerAddress: 10_000,
		MaxSetupRate: 5_000, MaxSetupRatePerAddress: 2_000,
		MaxSubscriptionsPerConnection: 10_000, MaxInstancesPerConnection: 20_000,
		MaxStreamsPerConnection: 1_000, MaxRequestBytes: 10 << 20, MaxHeaderBytes: 64 << 10,
		MaxFuzzyPatterns: 20, MaxFuzzyMatches: 500,
	}
}

// A Timer is one duration of the options.
type Timer struct {
	Flag     string // without dashes; also the key in the configuration file
	Value    *time.Duration
	Min, Max time.Duration
	Usage    string
}

// Timers lists every timer of o. Flags are made from it and Validate checks by
// it, so a timer that is not in it cannot be set.
func (o *Options) Timers() []Timer {
	const ms, day = time.Millisecond, 24 * time.Hour
	return []Timer{
		{"push-window", &o.PushWindow, ms, time.Minute, "changes of a service within this time are one push"},
		{"push-window-max", &o.PushWindowMax, ms, time.Minute, "the window grows with the fan-out, up to this"},
		{"push-retry", &o.PushRetry, ms, time.Minute, "wait before a refused push is sent again"},
		{"push-ack-timeout", &o.PushAckTimeout, ms, time.Hour, "a connection that leaves a push unanswered for so long is closed"},
		{"connection-idle", &o.ConnectionIdle, ms, time.Hour, "a gRPC connection silent for so long is asked whether it lives"},
		{"detection-answer", &o.DetectionAnswer, ms, time.Hour, "how long its answer may take"},
		{"idle-scan", &o.IdleScan, ms, time.Minute, "time between two looks for silent connections"},
		{"setup-timeout", &o.SetupTimeout, time.Second, time.Hour, "how long a transport may live without a set-up"},
		{"receive-timeout", &o.ReceiveTimeout, 100 * ms, 10 * time.Minute, "how long a request may take to arrive"},
		{"setup-wait", &o.SetupWait, ms, time.Minute, "how long a request waits for the set-up of its connection"},
		{"moving-for", &o.MovingFor, ms, time.Minute, "how long instances of a lost connection stay whose client is expected at another node"},
		{"keepalive-time", &o.KeepaliveTime, time.Second, day, "silence after which the server pings a gRPC connection"},
		{"keepalive-timeout", &o.KeepaliveTimeout, ms, time.Hour, "how long the answer to such a ping may take"},
		{"keepalive-min", &o.KeepaliveMin, ms, time.Hour, "clients that ping more often are disconnected"},
		{"beat-check", &o.BeatCheck, ms, time.Minute, "time between two looks for late beats of HTTP clients"},
		{"beat-timeout", &o.BeatTimeout, ms, day, "without a beat for so long an instance is unhealthy"},
		{"beat-delete", &o.BeatDelete, ms, day, "without a beat for so long an instance is removed"},
		{"head-interval", &o.HeadInterval, 100 * ms, 10 * time.Second, "time between two messages that say what a node has"},
		{"detection", &o.Detection, 100 * ms, time.Minute, "what it takes to find a silent node dead; a lease starts after it"},
		{"lease-refused", &o.LeaseRefused, ms, 10 * time.Minute, "how long the instances of a node stay whose process is gone"},
		{"lease-silent", &o.LeaseSilent, ms, 10 * time.Minute, "the same of a node that does not answer"},
		{"lease-max", &o.LeaseMax, ms, time.Hour, "bound of a lease that is extended for slow clients"},
		{"lease-restart", &o.LeaseRestart, ms, time.Hour, "how long instances of the snapshot stay when the whole cluster restarts"},
		{"expiry-probe", &o.ExpiryProbe, 100 * ms, 10 * time.Minute, "time between two dials of an instance of a silent node whose lease is over"},
		{"expiry-probe-max", &o.ExpiryProbeMax, ms, time.Hour, "how long such an instance may stay by answering"},
		{"self-preservation", &o.SelfPreservation, ms, 24 * time.Hour, "how long leases stand still while too many nodes are silent"},
		{"stable-after", &o.StableAfter, ms, time.Hour, "how long a node must be alive to count for that"},
		{"tombstone-grace", &o.TombstoneGrace, time.Second, 24 * time.Hour, "how long removals are remembered"},
		{"drop-memory", &o.DropMemory, time.Second, 24 * time.Hour, "how long lives are remembered that were dropped"},
		{"catch-up", &o.CatchUp, ms, 10 * time.Minute, "how long a node that starts waits for what its peers have"},
		{"snapshot-every", &o.SnapshotEvery, 100 * ms, time.Hour, "time between two snapshots of the registry on disk"},
		{"snapshot-max-age", &o.SnapshotMaxAge, ms, 24 * time.Hour, "an older snapshot is not served after a restart"},
		{"handover-grace", &o.HandoverGrace, ms, 10 * time.Minute, "how long the old owner of an HTTP client keeps its copy"},
		{"rejoin", &o.Rejoin, 100 * ms, time.Hour, "time between two looks for missing members and for new addresses of a name"},
		{"probe-interval", &o.ProbeInterval, 50 * ms, time.Minute, "time between two probes of members"},
		{"probe-timeout", &o.ProbeTimeout, 20 * ms, time.Minute, "how long the answer to a probe may take"},
		{"raft-heartbeat", &o.RaftHeartbeat, 20 * ms, time.Minute, "without a word of the leader for once to twice so long, a new one is elected"},
		{"raft-replace-after", &o.RaftReplaceAfter, ms, day, "a voter that is gone for so long is replaced by a node that has no vote, if there is one"},
		{"raft-remove-after", &o.RaftRemoveAfter, ms, 30 * day, "a node that left on purpose loses its vote after so long"},
		{"raft-snapshot-every", &o.RaftSnapshotEvery, 100 * ms, time.Hour, "time between two looks whether the log needs a snapshot"},
		{"check-interval", &o.CheckInterval, 10 * ms, time.Hour, "time between two health checks of a persistent instance"},
		{"check-timeout", &o.CheckTimeout, ms, time.Minute, "how long connecting for a health check may take, and then an answer"},
		{"empty-service-age", &o.EmptyServiceAge, ms, 30 * day, "a service without instances for so long is removed"},
		{"override-age", &o.OverrideAge, ms, 30 * day, "an operator's edit ends when its instance is absent for so long"},
		{"sweep-period", &o.SweepPeriod, ms, time.Hour, "time between two looks for what has aged"},
		{"history-keep", &o.HistoryKeep, ms, 30 * day, "how long the history of a removed service is kept"},
		{"drain-timeout", &o.DrainTimeout, ms, 10 * time.Minute, "how long a clean stop may take"},
		{"drain-close-delay", &o.DrainCloseDelay, ms, 10 * time.Minute, "time between asking a client to move and closing its connection"},
	}
}

// A Limit is one number of the options.
type Limit struct {
	Flag     string // without dashes; also the key in the configuration file
	Value    *int
	Min, Max int
	Usage    string
}

// Limits lists every number of o that bounds something.
func (o *Options) Limits() []Limit {
	const many = 10_000_000
	return []Limit{
		{"max-connections", &o.MaxConnections, 1, many, "SDK connections of the node, and HTTP connections of the node"},
		{"max-connections-per-address", &o.MaxConnectionsPerAddress, 1, many, "the same from one remote address"},
		{"max-setup-rate", &o.MaxSetupRate, 1, many, "SDK connections set up in a second; twice as many at once"},
		{"max-setup-rate-per-address", &o.MaxSetupRatePerAddress, 1, many, "the same from one remote address"},
		{"max-subscriptions-per-connection", &o.MaxSubscriptionsPerConnection, 1, many, "services and patterns that one connection follows"},
		{"max-instances-per-connection", &o.MaxInstancesPerConnection, 1, many, "instances that one connection publishes"},
		{"max-streams-per-connection", &o.MaxStreamsPerConnection, 10, 1 << 20, "requests of one connection under way at the same time"},
		{"max-request-bytes", &o.MaxRequestBytes, 64 << 10, 1 << 30, "size of one gRPC message, and of a form over HTTP, which is also bounded by 1 MiB"},
		{"max-header-bytes", &o.MaxHeaderBytes, 4 << 10, 16 << 20, "size of the headers of one request"},
		{"max-fuzzy-patterns", &o.MaxFuzzyPatterns, 0, many, "different patterns of fuzzy watches on the node"},
		{"max-fuzzy-matches", &o.MaxFuzzyMatches, 1, many, "services that a fuzzy watch is told of at its start"},
		{"max-restore-bytes", &o.MaxRestoreBytes, 1 << 20, 1 << 42, "size of a backup that is restored"},
		{"raft-snapshot-entries", &o.RaftSnapshotEntries, 16, many, "entries of the log after which it gets a snapshot"},
		{"raft-snapshot-bytes", &o.RaftSnapshotBytes, 64 << 10, 1 << 40, "bytes of the log after which it gets a snapshot"},
		{"check-rate", &o.CheckRate, 1, 1_000_000, "health checks of persistent instances that a node begins in a second"},
		{"check-strikes", &o.CheckStrikes, 1, 100, "results in a row that change the health of an instance"},
		{"history-per-service", &o.HistoryPerService, 1, 1 << 16, "events that are kept for one service"},
		{"history-bytes", &o.HistoryBytes, 64 << 10, 64 << 30, "memory for all history, estimated"},
	}
}

// Validate checks o and fills in what follows from other fields or from the
// machine: GRPCPort, Advertise, Listen, Logger. The error names every field
// that is wrong.
func (o *Options) Validate() error {
	var errs []error
	wrong := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--"+flag+": "+format, args...))
	}

	for _, j := range o.Join {
		if err := checkJoin(j); err != nil {
			wrong("join", "%q: %w", j, err)
		}
	}
	switch {
	case o.Expect < 0:
		wrong("expect", "%d: a cluster has at least one node", o.Expect)
	case o.Expect > 1 && len(o.Join) == 0:
		wrong("expect", "%d: needs --join, or the nodes never meet", o.Expect)
	}
	if given := b2i(o.PeerCert != "") + b2i(o.PeerKey != "") + b2i(o.PeerCA != ""); given != 0 && given != 3 {
		wrong("peer-cert", "--peer-cert, --peer-key and --peer-ca belong together")
	}

	if o.Name == "" {
		wrong("name", "is empty: give the node a name; without this setting it has the name of the host, if there is one")
	} else if !isName(o.Name) {
		wrong("name", "%q: use up to 128 letters, digits, '.', '-' and '_'", o.Name)
	}
	if o.DataDir == "" {
		wrong("data-dir", "is empty")
	}
	if err := o.completeAddresses(); err != nil {
		errs = append(errs, err)
	}
	if err := o.completePorts(); err != nil {
		errs = append(errs, err)
	}

	for _, t := range o.Timers() {
		if *t.Value < t.Min || *t.Value > t.Max {
			wrong(t.Flag, "%v: must be from %v to %v", *t.Value, t.Min, t.Max)
		}
	}
	if least := o.SelfPreservation + o.LeaseMax; o.DropMemory <= least {
		wrong("drop-memory", "%v: must be above --self-preservation plus --lease-max, %v, or what was dropped comes back", o.DropMemory, least)
	}
	for _, l := range []struct {
		flag string
		is   time.Duration
	}{{"lease-refused", o.LeaseRefused}, {"lease-silent", o.LeaseSilent}} {
		if l.is > o.LeaseMax {
			wrong(l.flag, "%v: must not be above --lease-max %v", l.is, o.LeaseMax)
		}
	}
	if o.ProbeTimeout >= o.ProbeInterval {
		wrong("probe-timeout", "%v: must be below --probe-interval %v", o.ProbeTimeout, o.ProbeInterval)
	}
	if o.PushWindow > o.PushWindowMax {
		wrong("push-window", "%v: must not be above --push-window-max %v", o.PushWindow, o.PushWindowMax)
	}
	if o.BeatDelete < o.BeatTimeout {
		wrong("beat-delete", "%v: must not be below --beat-timeout %v", o.BeatDelete, o.BeatTimeout)
	}
	if !o.isCluster() && (len(o.Join) > 0 || o.Expect > 1) {
		wrong("gossip-key-file", "is missing: a cluster on other addresses than loopback needs a secret that its nodes share (head -c 32 /dev/urandom | base64 >FILE, the same for all nodes), or --insecure-cluster")
	}
	if o.DrainCloseDelay > o.DrainTimeout {
		wrong("drain-close-delay", "%v: must not be above --drain-timeout %v", o.DrainCloseDelay, o.DrainTimeout)
	}

	for _, l := range o.Limits() {
		if *l.Value < l.Min || *l.Value > l.Max {
			wrong(l.Flag, "%d: must be from %d to %d", *l.Value, l.Min, l.Max)
		}
	}

	if o.Listen == nil {
		o.Listen = net.Listen
	}
	if o.Dial == nil {
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
	}
	if o.Lookup == nil {
		o.Lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	return errors.Join(errs...)
}

func isName(s string) bool {
	return s != "" && len(s) <= 128 && strings.IndexFunc(s, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("._-", r))
	}) < 0
}

func isHost(s string) bool {
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	// The last part of a host name is no number, so 300.1.1.1 and 10.0.0 are
	// addresses with a mistake.
	_, err := strconv.ParseUint(s[strings.LastIndexByte(s, '.')+1:], 10, 64)
	return isName(s) && err != nil
}

// completeAddresses checks Bind and Advertise and fills in the latter.
func (o *Options) completeAddresses() error {
	if !isHost(o.Bind) {
		return fmt.Errorf("--bind: %q: must be an IP address or a host name, without a port or brackets", o.Bind)
	}
	if o.Advertise == "" {
		o.Advertise = o.Bind
		if bind, _ := netip.ParseAddr(o.Bind); bind.IsUnspecified() {
			addrs, err := net.InterfaceAddrs()
			if err != nil {
				return fmt.Errorf("--advertise: the addresses of this machine cannot be read, so give one: %w", err)
			}
			o.Advertise = firstAddress(addrs)
		}
		if o.Advertise == "" {
			return errors.New("--advertise: this machine has no address but loopback, so give one")
		}
	}
	if !isHost(o.Advertise) {
		return fmt.Errorf("--advertise: %q: must be an IP address or a host name, without a port or brackets", o.Advertise)
	}
	if a, _ := netip.ParseAddr(o.Advertise); a.IsUnspecified() {
		return fmt.Errorf("--advertise: %s: nobody can reach a node at the unspecified address", o.Advertise)
	}
	return nil
}

// firstAddress picks the first IPv4 address that other machines may reach, or
// else the first such IPv6 address. IPv4 comes first because not all SDKs can
// write an IPv6 address and a port in one string.
func firstAddress(addrs []net.Addr) string {
	first6 := ""
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || !p.Addr().IsGlobalUnicast() { // neither loopback nor link-local
			continue
		}
		if ip := p.Addr().Unmap(); ip.Is4() {
			return ip.String()
		} else if first6 == "" {
			first6 = ip.String()
		}
	}
	return first6
}

// completePorts checks that the five ports of a node are valid and different
// and fills in those that follow from Port.
func (o *Options) completePorts() error {
	if o.Port < 1001 || o.Port > 65535-1001 {
		return fmt.Errorf("--port: %d: must be from 1001 to %d, because the other ports follow from it (from port-1000 to port+1001)", o.Port, 65535-1001)
	}
	ports := []struct {
		flag string
		port *int
		plus int
		what string
	}{
		{"port", &o.Port, 0, "HTTP"},
		{"grpc-port", &o.GRPCPort, 1000, "gRPC for clients"},
		{"peer-port", &o.PeerPort, 1001, "gRPC between nodes"},
		{"raft-port", &o.RaftPort, -1000, "Raft"},
		{"gossip-port", &o.GossipPort, -902, "gossip"},
	}
	given := map[string]bool{}
	for _, p := range ports {
		given[p.flag] = *p.port != 0 && *p.port != o.Port+p.plus
		if *p.port == 0 {
			*p.port = o.Port + p.plus
		}
		if *p.port < 1 || *p.port > 65535 {
			return fmt.Errorf("--%s: %d: must be from 1 to 65535, or 0 for port%+d", p.flag, *p.port, p.plus)
		}
	}
	for i, p := range ports {
		for _, q := range ports[:i] {
			if *p.port == *q.port {
				if !given[p.flag] { // the fault is with the one that was chosen
					p, q = q, p
				}
				return fmt.Errorf("--%s: %d: is the port for %s (--%s)", p.flag, *p.port, q.what, q.flag)
			}
		}
	}
	return nil
}

// checkJoin checks HOST or HOST:PORT, where HOST may be an IPv6 address, in
// brackets if there is a port.
func checkJoin(s string) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		host, port = strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"), ""
	}
	if port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1001 || n > 65535 {
			return errors.New("the port must be the main port of the other node, from 1001 to 65535")
		}
	}
	if !isHost(host) {
		return errors.New("must be HOST or HOST:PORT, with a host name or an address")
	}
	return nil
}

// isCluster reports whether other nodes can belong to this one's cluster; if
// not, its ports for them stay closed. Without a secret that is so on loopback
// only: who reaches them may write.
func (o *Options) isCluster() bool {
	return o.GossipKeyFile != "" || o.InsecureCluster || o.isLoopback()
}

func (o *Options) isLoopback() bool {
	for _, host := range []string{o.Bind, o.Advertise} {
		if a, err := netip.ParseAddr(host); (err != nil || !a.IsLoopback()) && host != "localhost" {
			return false
		}
	}
	return true
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
