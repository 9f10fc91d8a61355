package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime/pprof"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"

	"github.com/starling-registry/starling/cluster"
	"github.com/starling-registry/starling/distro"
	"github.com/starling-registry/starling/pkg/grpcapi"
	"github.com/starling-registry/starling/pkg/health"
	"github.com/starling-registry/starling/pkg/httpapi"
	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/pkg/push"
	"github.com/starling-registry/starling/pkg/registry"
	"github.com/starling-registry/starling/raftstore"
)

// ErrOutlived ends a node of whose present life others know more than it has
// written: its data directory is an old copy, or used twice. The next start is
// another life, and then all is well, unless the directory is still used twice.
var ErrOutlived = errors.New("other nodes know more of this node's present life than it has written: its data directory is an old copy, or used twice; give the other node that has it an empty one, then start this one again")

// A Node is a running server.
type Node struct {
	log        *zap.Logger
	http, grpc net.Addr

	undo     []step // in the order in which the steps were taken
	stopOnce sync.Once
	stopErr  error

	mu   sync.Mutex
	err  error
	done chan struct{} // closed with the first failure
}

// A step is something to undo.
type step struct {
	name string
	undo func(context.Context) error
}

// Start brings up a node and returns when it serves. The context bounds the
// start only.
//
// It is one long function on purpose: nearly every step needs what earlier
// ones made, and read from top to bottom it is the map of the server.
func Start(ctx context.Context, opts Options) (_ *Node, err error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	log := opts.Logger

	n := &Node{log: log, done: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Stop(context.WithoutCancel(ctx)))
		}
	}()

	// Identity and time.
	dir, err := Open(opts.DataDir)
	if err != nil {
		return nil, err
	}
	n.later("data directory", func(context.Context) error { return dir.Close() })
	clock := registry.NewClock(dir.Clock, opts.ClockOffset)

	// The listeners come early: a port in use is found before anything runs.
	// Both must work, or clients that find one would miss the other (cases
	// C01).
	httpListener, err := opts.Listen("tcp", net.JoinHostPort(opts.Bind, strconv.Itoa(opts.Port)))
	if err != nil {
		return nil, fmt.Errorf("cannot listen for HTTP on --bind %s, port %d (gRPC would be %d): %w", opts.Bind, opts.Port, opts.GRPCPort, err)
	}
	n.later("HTTP listener", func(context.Context) error { return closed(httpListener.Close()) })
	grpcListener, err := opts.Listen("tcp", net.JoinHostPort(opts.Bind, strconv.Itoa(opts.GRPCPort)))
	if err != nil {
		return nil, fmt.Errorf("cannot listen for gRPC on --bind %s, port %d (HTTP is %d): %w", opts.Bind, opts.GRPCPort, opts.Port, err)
	}
	n.later("gRPC listener", func(context.Context) error { return closed(grpcListener.Close()) })
	n.http, n.grpc = httpListener.Addr(), grpcListener.Addr()
	var raftListener net.Listener
	if opts.isCluster() {
		if raftListener, err = opts.Listen("tcp", net.JoinHostPort(opts.Bind, strconv.Itoa(opts.RaftPort))); err != nil {
			return nil, fmt.Errorf("cannot listen for Raft on --bind %s, --raft-port %d (it follows from --port %d): %w", opts.Bind, opts.RaftPort, opts.Port, err)
		}
		n.later("Raft listener", func(context.Context) error { return closed(raftListener.Close()) })
	}

	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	// The registry tells the push engine what changed, the replicator what
	// clients of this node wrote, and the prober what is to be checked.
	var prober *health.Prober
	overs := make(chan struct{}, 1)
	var served atomic.Bool // it was ready once
	var engine *push.Engine
	var replicator *distro.Replicator
	life := registry.Life{Node: dir.NodeID, Epoch: dir.Epoch}
	reg := registry.New(registry.Options{
		Clock:           clock,
		Life:            life,
		HideAge:         opts.TombstoneGrace.Milliseconds(),
		History:         registry.HistoryLimits{PerService: opts.HistoryPerService, Bytes: int64(opts.HistoryBytes), KeepGone: opts.HistoryKeep.Milliseconds()},
		EmptyServiceAge: opts.EmptyServiceAge.Milliseconds(),
		OverrideAge:     opts.OverrideAge.Milliseconds(),
		MaxPerClient:    opts.MaxInstancesPerConnection,
		Changed:         func(key registry.ServiceKey) { engine.Mark(key) },
		Presence:        func(key registry.ServiceKey) { engine.MarkPresence(key) },
		Wrote:           func(key registry.RecordKey) { replicator.Wrote(key) },
		Durable:         func(key registry.ServiceKey) { prober.Changed(key) },
		OverrideOver:    func(registry.Edit) { mark(overs) },
		Unserved:        func() bool { return !served.Load() },
		Refused:         func(key registry.ServiceKey, k registry.InstanceKey, client string) { logRefused(log, key, k, client) },
	})
	n.later("clock", func(context.Context) error { return dir.SaveClock(reg.HighWater()) })
	registerGauges(metrics, reg, clock, opts.Version)
	registerDisk(metrics, opts.DataDir)
	usual := nacos.DefaultSwitches()
	usual.CheckTimes = opts.CheckStrikes
	switched := newSwitches(usual, log)
	cacheMillis := func() int64 { return switched.get().PushCacheMillis }
	engine = push.New(push.Options{
		Source: reg, CacheMillis: cacheMillis,
		MinWindow: opts.PushWindow, MaxWindow: opts.PushWindowMax,
		RetryAfter: opts.PushRetry, AckTimeout: opts.PushAckTimeout,
		MaxPatterns: opts.MaxFuzzyPatterns, MaxMatches: opts.MaxFuzzyMatches, MaxPerSubscriber: opts.MaxSubscriptionsPerConnection,
		Logger: log.Named("push"), Metrics: metrics,
	})
	engine.Start()
	switched.pushed = func(on bool) { engine.Hold(!on) }
	n.later("push", func(context.Context) error { engine.Stop(); return nil })

	// Who is about to act on what has become of clients looks first whether
	// this process stood still. The parts do not run yet; they are there before
	// anybody asks. Nothing goes to other nodes before the connections that
	// have been closed meanwhile are marked.
	var beats *health.Beats
	var sdks *grpcapi.Server
	var attached *clients
	pulse := newPulse(opts.Freeze, func(d time.Duration) {
		closed := sdks.HandleClosed()
		beats.Stalled()
		prober.Stalled()
		replicator.Stalled()
		log.Warn("this process stood still; what is overdue counts from now", zap.Duration("for", d), zap.Int("closedConnections", closed))
	})

	// The cluster carries what the replicator says. A node whose ports for
	// others are closed has the replicator too: it brings back what a restart
	// would lose.
	var web *httpapi.Server
	var peers distro.Peers = alone{}
	var members *cluster.Cluster
	var store *raftstore.Store
	clusterID, err := opts.clusterID(dir)
	if err != nil {
		return nil, err
	}
	if opts.isCluster() {
		co, err := opts.clusterOptions(dir, clusterID, cluster.Handlers{
			Message:   func(from string, v cluster.Via, msg []byte) { replicator.Message(from, via(v), msg) },
			Connected: func(peer string) { replicator.Connected(peer) },
			Pull: func(ctx context.Context, from string, req []byte, send func([]byte) error) error {
				return replicator.Serve(ctx, from, req, send)
			},
			Calls: map[string]func(context.Context, string, []byte) ([]byte, error){
				"Forward":       func(ctx context.Context, _ string, body []byte) ([]byte, error) { return web.Forwarded(ctx, body) },
				"History":       func(_ context.Context, _ string, body []byte) ([]byte, error) { return answerHistory(reg, body) },
				"ServiceHashes": func(context.Context, string, []byte) ([]byte, error) { return answerHashes(reg, clock, store) },
				"Subscribers":   func(_ context.Context, _ string, body []byte) ([]byte, error) { return attached.answer(body) },
				"RaftApply": func(ctx context.Context, from string, body []byte) ([]byte, error) {
					return store.ServeApply(ctx, from, body)
				},
				"RaftState": func(ctx context.Context, from string, body []byte) ([]byte, error) {
					return store.ServeState(ctx, from, body)
				},
				"ConfirmProbe": func(ctx context.Context, _ string, body []byte) ([]byte, error) {
					return answerConfirm(ctx, prober, body)
				},
			},
			Members: func(v *cluster.View) {
				replicator.Members(distroMembers(v))
				store.Changed()
			},
			ClusterID: func(id string, founders []string) error {
				err := found(dir, id, founders)
				if err == nil {
					err = beginLog(dir, store)
				}
				if err != nil {
					n.fail(err)
				}
				return err
			},
		}, metrics)
		if err != nil {
			return nil, err
		}
		if members, err = cluster.New(co); err != nil {
			return nil, err
		}
		peers = members
	}
	do := opts.distroOptions()
	do.Registry, do.Peers, do.Life, do.Clock, do.Awake = reg, peers, life, clock, pulse.awake
	do.Load, do.Save = dir.OpenSnapshot, dir.SaveSnapshot
	for _, k := range dir.Members() {
		do.Known = do.Known || k.ID != dir.NodeID
		if k.Stable {
			do.Stable = append(do.Stable, k.ID)
		}
	}
	do.Outlived = func() { n.fail(ErrOutlived) }
	do.Logger, do.Metrics = log, metrics
	replicator = distro.New(do)

	ho := health.DefaultOptions()
	ho.Registry, ho.Interval, ho.Timeout, ho.DeleteAfter = reg, opts.BeatCheck, opts.BeatTimeout, opts.BeatDelete
	ho.Awake, ho.Life, ho.HandoverGrace = pulse.awake, life, opts.HandoverGrace
	ho.Enabled = func() bool { return switched.get().HealthCheckEnabled }
	ho.Usual = func() int64 { return switched.get().ClientBeatInterval }
	if members != nil {
		ho.Owner = func(client string) bool { return replicator.Owner(client) == dir.NodeID }
		ho.SignOfLife = replicator.SignOfLife
	}
	ho.Logger, ho.Metrics = log.Named("health"), metrics
	if err := ho.Validate(); err != nil {
		return nil, err
	}
	beats = health.NewBeats(ho)

	// The log: what must survive. It is read, and shown by the registry, before
	// anybody may ask.
	ops := &operations{opts: &opts, life: life, members: members, replicator: replicator, registry: reg, clock: clock, started: time.Now()}
	po := health.DefaultProbeOptions()
	po.Registry, po.Life, po.Now = reg, life, clock.Now
	po.Owns = func(key string) bool { return members == nil || replicator.Owner(key) == dir.NodeID }
	po.Report = func(c registry.Check) { reg.Checked(c); replicator.WriteCheck(c) }
	po.Forget, po.Confirm = replicator.ForgetCheck, ops.confirm
	po.Enabled, po.Times = ho.Enabled, func() int { return switched.get().CheckTimes }
	po.Awake, po.Interval, po.Timeout, po.Rate, po.Strikes = pulse.awake, opts.CheckInterval, opts.CheckTimeout, opts.CheckRate, opts.CheckStrikes
	po.Dial = func(ctx context.Context, _, addr string) (net.Conn, error) { return opts.Dial(ctx, addr) }
	po.Logger, po.Metrics = log.Named("health"), metrics
	if err := po.Validate(); err != nil {
		return nil, fmt.Errorf("health checks: %w", err)
	}
	prober = health.NewProber(po)
	switched.checkedAgain = func() { beats.Anew(); prober.Anew() }
	ro, err := opts.raftOptions(dir)
	if err != nil {
		return nil, err
	}
	ro.ID, ro.Projection, ro.Clock, ro.Awake = dir.NodeID, reg, clock, pulse.awake
	ro.ClusterID = func() string { return clusterID }
	ro.Members = func() []raftstore.Member { return raftMembers(ops.view()) }
	if members != nil {
		ro.ClusterID = func() string { return cmp.Or(members.ClusterID(), clusterID) } // that of members comes with its start
		ro.Listener, ro.Dial, ro.Call = encrypted(raftListener, members), opts.raftDial(members), raftCall(members)
	}
	ro.Switched = switched.tableIs
	ro.Superseded = func() { n.fail(ErrSuperseded) }
	ro.Failed = func(err error) {
		// With others its clients have a better place to be. Alone it goes on with
		// all that needs no log: instances of clients, and reads.
		if others(ops.view()) {
			n.fail(fmt.Errorf("the log of the cluster: %w", err))
		}
	}
	ro.Logger, ro.Metrics = log.Named("raft"), metrics
	if store, err = raftstore.Open(ro); err != nil {
		return nil, err
	}
	n.later("log", func(ctx context.Context) error { return store.Close(ctx) })
	ops.store = store
	if clusterID != "" {
		if err := beginLog(dir, store); err != nil {
			return nil, err
		}
	}

	loops, stopLoops := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	n.later("loops", func(context.Context) error { stopLoops(); wg.Wait(); return nil })
	every := func(name string, period time.Duration, f func()) {
		wg.Go(func() {
			pprof.Do(loops, pprof.Labels("loop", "node."+name), func(ctx context.Context) {
				t := time.NewTicker(period)
				defer t.Stop()
				for {
					select {
					case <-ctx.Done():
						return
					case <-t.C:
						f()
					}
				}
			})
		})
	}
	every("sweep", opts.SweepPeriod, reg.Sweep)
	every("log", 5*time.Second, func() {
		if store.Status().Last == 0 {
			return // nobody has taken this node in yet
		}
		if err := dir.LogBegun(); err != nil {
			log.Error("that the log has begun cannot be noted", zap.Error(err))
		}
	})
	settled := func() bool {
		pulse.awake()
		return !pulse.stalledWithin(opts.CatchUp)
	}
	wg.Go(func() {
		pprof.Do(loops, pprof.Labels("loop", "node.edits"), func(ctx context.Context) { endEdits(ctx, store, reg, overs, opts.SweepPeriod, settled, log) })
	})
	every("clock", 5*time.Second, func() {
		if err := dir.SaveClock(reg.HighWater()); err != nil {
			log.Error("the clock's high-water mark cannot be saved; after a restart with an earlier wall clock, clients may take lists for old", zap.Error(err))
		}
	})

	var serving, logless atomic.Bool
	isReady := func() (bool, string) {
		pulse.awake() // a node that stood still is not ready, also not for what was read first
		if !serving.Load() {
			return false, "the node is starting or stopping"
		}
		if members != nil {
			// Fail closed: clients of a node that should be one of several and
			// has not found them would see what it has alone.
			if members.KeptOut() {
				return false, "the nodes of --join do not take this one in, its log says why: they have another secret (--gossip-key-file), or belong to another cluster (correct --join, or start with an empty --data-dir to become one of them)"
			}
		}
		if ok, reason := replicator.Ready(); !ok {
			return false, reason
		}
		// Before its cluster has an id there is no log that it could lack. Once
		// it serves clients it does not stop when the log begins.
		if members != nil && members.ClusterID() == "" {
			logless.Store(true)
		}
		if logless.Load() {
			return true, ""
		}
		return store.CaughtUp()
	}
	ready := func() (bool, string) {
		ok, reason := isReady()
		if ok {
			served.Store(true)
		}
		return ok, reason
	}
	ops.ready = ready
	gs := grpcapi.DefaultOptions()
	gs.Registry, gs.Push = reg, engine
	gs.Persistent, gs.Explain = store, explainSDK
	gs.CacheMillis = cacheMillis
	gs.Ready = func() bool { ok, _ := ready(); return ok }
	if members != nil {
		gs.Redirect = func() ([]grpcapi.Target, bool) { return targets(members.View(), replicator.ReadyPeers()) }
		gs.Unsettled = replicator.Unsettled
		gs.MovingDone = func(since time.Time, addrs []string) bool { return replicator.MovingDone(since, addrs...) }
	}
	gs.IdleAfter, gs.DetectionAnswer, gs.IdleScan, gs.SetupWait = opts.ConnectionIdle, opts.DetectionAnswer, opts.IdleScan, opts.SetupWait
	gs.SendTimeout, gs.SetupTimeout, gs.MovingFor = opts.PushAckTimeout, opts.SetupTimeout, opts.MovingFor
	gs.ReceiveTimeout = opts.ReceiveTimeout
	gs.Awake, gs.StalledLately = pulse.awake, func() bool { return pulse.stalledWithin(opts.MovingFor) }
	gs.MaxHeaderBytes, gs.MaxStreams = opts.MaxHeaderBytes, opts.MaxStreamsPerConnection
	gs.MaxConnections, gs.MaxPerAddress = opts.MaxConnections, opts.MaxConnectionsPerAddress
	gs.MaxSetupRate, gs.MaxSetupRatePerAddress = opts.MaxSetupRate, opts.MaxSetupRatePerAddress
	gs.MaxSubscriptions, gs.MaxInstances = opts.MaxSubscriptionsPerConnection, opts.MaxInstancesPerConnection
	gs.KeepaliveTime, gs.KeepaliveTimeout, gs.KeepaliveMin = opts.KeepaliveTime, opts.KeepaliveTimeout, opts.KeepaliveMin
	gs.ResetGrace, gs.MaxRequestBytes = opts.DrainCloseDelay, opts.MaxRequestBytes
	gs.Logger, gs.Metrics = log.Named("grpc"), metrics
	sdks = grpcapi.New(gs)
	attached = &clients{operations: ops, sdks: sdks, beats: beats, engine: engine, asking: make(chan struct{}, maxAsking)}
	pulse.begin()
	wg.Go(func() { pprof.Do(loops, pprof.Labels("loop", "node.pulse"), pulse.run) })

	hs := httpapi.DefaultOptions()
	hs.Awake = pulse.awake
	hs.Registry, hs.Beats, hs.Version = reg, beats, opts.Version
	hs.Ready = ready
	hs.Durable, hs.Explain = store, ops.explain
	hs.Namespaces, hs.Accounts, hs.Core = tables{store}, tables{store}, ops.core(sdks)
	draining := &drain{operations: ops, sdks: sdks, limit: opts.DrainTimeout, log: log}
	hs.Native, hs.Router, hs.Clients = ops.native(draining), ops.router(), attached
	hs.Operator = httpapi.Operator{
		Counts: func() httpapi.Counts {
			return httpapi.Counts{Subscribers: engine.Subscribed(), Connections: sdks.Connections(), BeatClients: beats.Clients()}
		},
		Machine: new(machine).now, Pushes: pushes(engine), Responsible: ops.responsible,
		Switches: switched.get, SwitchHere: switched.setHere, SetLogLevel: opts.SetLogLevel,
	}
	hs.MaxRequestBytes = min(hs.MaxRequestBytes, opts.MaxRequestBytes)
	hs.Logger, hs.Metrics, hs.Gatherer = log.Named("http"), metrics, metrics
	if err := hs.Validate(); err != nil {
		return nil, err
	}
	web = httpapi.New(hs)
	server := httpapi.NewHTTPServer(web, log.Named("http"))
	server.MaxHeaderBytes = opts.MaxHeaderBytes
	limited := httpapi.Limit(httpListener, opts.MaxConnections, opts.MaxConnectionsPerAddress, metrics)
	n.run("HTTP server", func() error {
		if err := server.Serve(limited); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	n.later("HTTP server", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		if err := server.Shutdown(ctx); err == nil {
			return nil
		}
		log.Warn("HTTP requests that did not come to an end are cut off")
		return server.Close()
	})

	// Others may find this node before it serves clients: it is ready when it
	// has what they have.
	replicator.Start()
	n.later("replication", func(context.Context) error { replicator.Stop(); return nil })
	if members != nil {
		if err := members.Start(ctx); err != nil {
			return nil, err
		}
		n.later("membership", func(context.Context) error { return members.Stop() })
		n.later("leave the cluster", func(ctx context.Context) error {
			if n.Err() != nil {
				return nil // it fails and does not leave on purpose: it is waited for
			}
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			// No failure of the stop: whoever did not hear it finds that the
			// process is gone, as when it crashes.
			if err := members.Leave(ctx); err != nil && ctx.Err() == nil {
				log.Info("not all others heard that this node leaves; they may be stopping too", zap.Error(err))
			}
			return nil
		})
		every("keys", 10*time.Second, opts.watchKeys(members.SetKeys))
		saved := dir.Members()
		every("members", 5*time.Second, func() {
			now := known(members.View(), replicator.Stable())
			if slices.Equal(now, saved) {
				return
			}
			if err := dir.SaveMembers(now); err != nil {
				log.Error("the members cannot be saved; after a restart this node finds them by --join only", zap.Error(err))
				return
			}
			saved = now
		})
	}

	// What follows is undone first. HTTP answers longest: until the end,
	// readyz says that the node is stopping.
	n.run("gRPC server", func() error { return sdks.Serve(grpcListener) })
	n.later("gRPC server", func(ctx context.Context) error { sdks.Stop(ctx); return nil })

	// Nobody is judged for beats that cannot arrive any more.
	beats.Start()
	n.later("health", func(context.Context) error { beats.Stop(); return nil })
	prober.Start()
	n.later("health checks", func(context.Context) error { prober.Stop(); return nil })

	serving.Store(true)
	n.later("drain", func(ctx context.Context) error { draining.run(ctx); serving.Store(false); return nil })
	log.Info("node started", zap.String("name", opts.Name), zap.String("id", dir.NodeID), zap.Uint64("epoch", dir.Epoch),
		zap.Stringer("http", n.http), zap.Stringer("grpc", n.grpc), zap.String("dataDir", opts.DataDir))
	return n, nil
}

func closed(err error) error {
	if errors.Is(err, net.ErrClosed) { // by the server that used it
		return nil
	}
	return err
}

func (n *Node) later(name string, undo func(context.Context) error) {
	n.undo = append(n.undo, step{name, undo})
}

// run runs a server; its failure is the node's.
func (n *Node) run(name string, serve func() error) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := serve(); err != nil {
			n.fail(fmt.Errorf("%s: %w", name, err))
		}
	}()
	n.later(name+" loop", func(ctx context.Context) error {
		select {
		case <-ended:
			return nil
		case <-ctx.Done():
		}
		// It was told to end and needs no more than a moment.
		select {
		case <-ended:
			return nil
		case <-time.After(time.Second):
			return errors.New("does not end")
		}
	})
}

func (n *Node) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.err == nil {
		n.err = err
		close(n.done)
	}
}

// HTTPAddr is where the node serves HTTP, GRPCAddr where SDKs connect.
func (n *Node) HTTPAddr() net.Addr { return n.http }

// GRPCAddr is described at HTTPAddr.
func (n *Node) GRPCAddr() net.Addr { return n.grpc }

// Done is closed when the node cannot go on; Err then says why. The node is
// still to be stopped.
func (n *Node) Done() <-chan struct{} { return n.done }

// Err is the failure that ended the node, nil while there is none.
func (n *Node) Err() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err
}

// Stop undoes what Start did, last things first. What is not done when ctx
// ends is cut short. Calls after the first return the same as that.
func (n *Node) Stop(ctx context.Context) error {
	n.stopOnce.Do(func() {
		var errs []error
		for i := len(n.undo) - 1; i >= 0; i-- {
			if err := n.undo[i].undo(ctx); err != nil {
				errs = append(errs, fmt.Errorf("stop %s: %w", n.undo[i].name, err))
			}
		}
		n.stopErr = errors.Join(errs...)
		n.log.Info("node stopped", zap.Error(n.stopErr))
	})
	return n.stopErr
}

// registerGauges exports what the registry counts; it has no metrics of its
// own.
func registerGauges(m prometheus.Registerer, reg *registry.Registry, clock *registry.Clock, version string) {
	gauge := func(name, help string, v func(registry.Stats) int64) {
		m.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "starling", Subsystem: "registry", Name: name, Help: help},
			func() float64 { return float64(v(reg.Stats())) }))
	}
	gauge("services", "Services, empty ones that are not cleaned up yet included.", func(s registry.Stats) int64 { return s.Services })
	gauge("instances", "Instances, each once, disabled ones included.", func(s registry.Stats) int64 { return s.Instances })
	gauge("publications", "Services that clients publish instances for, counted per client.", func(s registry.Stats) int64 { return s.Publications })
	gauge("persistent_instances", "Persistent instances.", func(s registry.Stats) int64 { return s.PersistentInstances })
	gauge("history_bytes", "Estimated size of the history of all services.", func(s registry.Stats) int64 { return s.HistoryBytes })
	m.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "starling", Name: "time_seconds",
		Help: "The clock of this node's machine, to be compared with that of who asks."}, func() float64 { return float64(clock.Wall()) / 1000 }))
	info := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "starling", Name: "build_info", Help: "The version that runs; always 1.",
		ConstLabels: prometheus.Labels{"version": version}})
	info.Set(1)
	m.MustRegister(info)
}
