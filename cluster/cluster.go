package cluster

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// Cluster is this node among the others.
type Cluster struct {
	end      end // of Stop, for what memberlist logs
	opts     Options
	log      *zap.Logger
	metrics  *metrics
	rawID    [16]byte
	targets  []target
	known    []netip.AddrPort
	identity atomic.Pointer[identity]
	keyring  *memberlist.Keyring // nil: gossip is plain

	// Set by Start, before anything else runs.
	ctx        context.Context
	cancel     context.CancelFunc
	transport  memberlist.NodeAwareTransport
	ml         *memberlist.Memberlist
	grpc       *grpc.Server
	started    time.Time
	gossipAddr netip.AddrPort // announced

	running atomic.Bool // between Start and Stop
	view    atomic.Pointer[View]
	alive   atomic.Int64 // members for the broadcast queue, which must not ask memberlist
	queue   *memberlist.TransmitLimitedQueue
	queued  atomic.Int64 // bytes in queue

	wake   chan struct{} // of run
	rejoin chan struct{} // of joinForever

	inbox     chan letter
	inboxSize atomic.Int64

	factsMu sync.Mutex
	facts   map[string]fact // newest of each node, not taken yet

	// mu is never held while calling memberlist or anything that waits:
	// memberlist calls the delegate under its own lock.
	mu      sync.Mutex
	own     meta
	members map[string]*member
	paths   map[string]*path
	conns   map[string]*countedConn // of the peer port, by remote address
	keptOut atomic.Bool             // nobody is reached but nodes of another cluster

	// Of joinForever: since when nobody is reached, and when that was said.
	alone, saidAlone time.Time

	said     map[string]bool
	collided map[string]collision
	stopping bool
	left     chan struct{} // closed when Leave has ended; nil: not called

	strangers atomic.Int64 // streams of nodes that gossip does not know

	goes sync.WaitGroup // all goroutines; added to with mu held while not stopping
}

// New checks the options. Nothing runs before Start.
func New(o Options) (*Cluster, error) {
	o.setDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	c := &Cluster{
		opts:     o,
		log:      o.Logger,
		wake:     make(chan struct{}, 1),
		rejoin:   make(chan struct{}, 1),
		inbox:    make(chan letter, inboxLength),
		facts:    map[string]fact{},
		members:  map[string]*member{},
		paths:    map[string]*path{},
		conns:    map[string]*countedConn{},
		said:     map[string]bool{},
		collided: map[string]collision{},
	}
	id, err := hex.DecodeString(o.ID)
	if err != nil {
		return nil, err
	}
	copy(c.rawID[:], id)
	for _, j := range o.Join {
		t, err := parseTarget(j, o.Port)
		if err != nil {
			return nil, err
		}
		c.targets = append(c.targets, t)
	}
	for _, k := range o.Known {
		if a, err := netip.ParseAddrPort(k); err == nil { // a file of another release is no reason to fail
			c.known = append(c.known, netip.AddrPortFrom(a.Addr().Unmap(), a.Port()))
		}
	}
	i, err := newIdentity(&c.opts, o.Keys)
	if err != nil {
		return nil, err
	}
	c.identity.Store(i)
	if len(i.gossip) > 0 {
		if c.keyring, err = memberlist.NewKeyring(i.gossip, i.gossip[0]); err != nil {
			return nil, fmt.Errorf("cluster: gossip keys: %w", err)
		}
	}
	c.alive.Store(1)
	c.queue = &memberlist.TransmitLimitedQueue{
		NumNodes:       func() int { return int(c.alive.Load()) },
		RetransmitMult: memberlist.DefaultLANConfig().RetransmitMult,
	}
	c.metrics = newMetrics(o.Metrics, c)
	return c, nil
}

// Start listens, announces this node, and begins to join. It returns when the
// node can be found; others are found later. ctx bounds the start.
func (c *Cluster) Start(ctx context.Context) (err error) {
	o := &c.opts
	if c.ctx != nil {
		return errors.New("cluster: started already")
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	var undo []func()
	defer func() {
		if err != nil {
			c.cancel()
			for i := len(undo) - 1; i >= 0; i-- {
				undo[i]()
			}
		}
	}()

	bind, listenOn := netip.IPv4Unspecified(), "" // which is IPv6 as well, where there is any
	if o.Bind != "" {
		if bind, err = c.resolveAdvertise(ctx, o.Bind); err != nil {
			return err
		}
		listenOn = bind.String()
	}
	listener, err := o.Listen("tcp", net.JoinHostPort(listenOn, strconv.Itoa(o.PeerPort)))
	if err != nil {
		return fmt.Errorf("cluster: peer port: %w", err)
	}
	undo = append(undo, func() { listener.Close() })
	if a, ok := listener.Addr().(*net.TCPAddr); ok && o.PeerPort == 0 {
		o.PeerPort = a.Port
	}
	if err := c.openTransport(bind); err != nil {
		return err
	}
	undo = append(undo, func() { c.transport.Shutdown() })

	advertise := ""
	host := o.Advertise
	if host == "" && !bind.IsUnspecified() {
		host = bind.String()
	}
	if host != "" {
		a, err := c.resolveAdvertise(ctx, host) // memberlist takes only addresses
		if err != nil {
			return err
		}
		advertise = a.String()
	}
	ip, port, err := c.transport.FinalAdvertiseAddr(advertise, o.GossipPort)
	if err != nil {
		return fmt.Errorf("cluster: address to advertise: %w", err)
	}
	addr, _ := netip.AddrFromSlice(ip)
	c.gossipAddr = netip.AddrPortFrom(addr.Unmap(), uint16(port))
	if host == "" {
		host = addr.Unmap().String()
	}
	c.started = time.Now()
	c.own = meta{
		epoch: o.Epoch, wire: o.Wire, oldest: o.OldestWire, name: o.Name, host: host, cluster: o.ClusterID, version: o.Version, commands: o.Commands,
		ports: [5]uint16{uint16(o.HTTPPort), uint16(o.GRPCPort), uint16(o.PeerPort), uint16(o.RaftPort), uint16(port)},
	}
	if c.ml, err = memberlist.Create(c.tune(addr.Unmap(), port)); err != nil {
		return fmt.Errorf("cluster: gossip: %w", err)
	}
	undo = append(undo, func() { c.ml.Shutdown() })

	c.grpc = c.server()
	c.running.Store(true)
	c.publish()
	c.spawn(func() {
		if err := c.grpc.Serve(&countingListener{listener, c}); err != nil && c.ctx.Err() == nil {
			c.log.Error("peer port is not served any more", zap.Error(err))
		}
	})
	c.spawn(c.run)
	c.spawn(c.read)
	c.spawn(c.joinForever)
	if o.Advertise != "" {
		if _, err := netip.ParseAddr(o.Advertise); err != nil {
			c.spawn(c.watchAdvertise)
		}
	}
	return nil
}

// spawn starts a goroutine that Stop waits for, unless it is too late.
func (c *Cluster) spawn(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping {
		return false
	}
	c.goes.Go(f)
	return true
}

// View is the newest view. It is nil before Start.
func (c *Cluster) View() *View { return c.view.Load() }

// ClusterID is the id of the cluster, "" if it is not known yet.
func (c *Cluster) ClusterID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.own.cluster
}

// KeptOut reports that this node is on its own, and that who it was told to
// join is there and does not take it in: another secret, another cluster.
func (c *Cluster) KeptOut() bool { return c.keptOut.Load() }

// HealthScore tells how badly this node meets the deadlines of failure
// detection: 0 is well, from 2 on it does not trust itself.
func (c *Cluster) HealthScore() int {
	if !c.running.Load() {
		return 0
	}
	return c.ml.GetHealthScore()
}

// SetKeys rotates the secrets: all are accepted from now on, the first is
// used. First add the new one behind the old on all nodes, then put it first
// on all nodes, then remove the old one. Connections that are up stay up.
func (c *Cluster) SetKeys(keys [][]byte) error {
	if (len(keys) == 0) != (c.keyring == nil) {
		return errors.New("cluster: encryption cannot be switched on or off while running")
	}
	i, err := newIdentity(&c.opts, keys)
	if err != nil {
		return err
	}
	c.identity.Store(i)
	if c.keyring == nil {
		return nil
	}
	for _, k := range i.gossip {
		if err := c.keyring.AddKey(k); err != nil {
			return fmt.Errorf("cluster: gossip key: %w", err)
		}
	}
	if err := c.keyring.UseKey(i.gossip[0]); err != nil {
		return fmt.Errorf("cluster: gossip key: %w", err)
	}
	accepted := map[string]bool{}
	for _, k := range i.gossip {
		accepted[string(k)] = true
	}
	for _, k := range append([][]byte(nil), c.keyring.GetKeys()...) {
		if !accepted[string(k)] {
			if err := c.keyring.RemoveKey(k); err != nil {
				return fmt.Errorf("cluster: gossip key: %w", err)
			}
		}
	}
	c.metrics.rotations.Inc()
	c.log.Info("keys set", zap.Int("accepted", len(keys)))
	return nil
}

// leaveTime bounds each step of Leave.
const leaveTime = time.Second

// Leave tells the others that this node goes, so that they do not take it for
// failed, and leaves gossip. Streams stay up until Stop. It takes at most a
// few seconds, less if the context ends.
func (c *Cluster) Leave(ctx context.Context) error {
	if !c.running.Load() {
		return ErrStopped
	}
	if err := ctx.Err(); err != nil {
		return err // as in a crash, nobody is told
	}
	left := make(chan struct{})
	c.mu.Lock()
	if c.left != nil {
		c.mu.Unlock()
		return nil
	}
	c.own.leaving, c.left = true, left
	c.mu.Unlock()
	mark(c.wake)
	// By gossip to all, and to each by itself: memberlist's own word for it
	// cannot be told from a failure.
	c.toAll(c.frame(kindLeaving, binary.BigEndian.AppendUint64(nil, c.opts.Epoch)))
	done := make(chan error, 1)
	if !c.spawn(func() {
		defer close(left)
		err := c.ml.UpdateNode(leaveTime)
		done <- errors.Join(err, c.ml.Leave(leaveTime))
	}) {
		close(left)
		return ErrStopped
	}
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("cluster: leave: %w", err)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Stop ends everything and waits for it. It can be called again.
func (c *Cluster) Stop() error {
	if c.grpc == nil { // never started
		return nil
	}
	c.mu.Lock()
	c.stopping = true
	left := c.left
	var streams []*stream
	for _, p := range c.paths {
		streams = append(streams, p.in, p.out)
	}
	c.mu.Unlock()
	c.running.Store(false)
	c.cancel()
	for _, s := range streams {
		if s != nil {
			s.end(ErrStopped)
		}
	}
	c.grpc.Stop()
	if left != nil {
		<-left // memberlist panics if it leaves after its end
	}
	err := c.ml.Shutdown()
	c.goes.Wait()
	c.end.Lock()
	c.end.over = true
	c.end.Unlock()
	return err
}
