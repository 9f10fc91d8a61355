package cluster

import (
	"encoding/hex"
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/zap"
)

// tune is memberlist's LAN profile with faster probes: a killed node is known
// after about 2.5 s, without false deaths under load.
func (c *Cluster) tune(advertise netip.Addr, port int) *memberlist.Config {
	o := &c.opts
	conf := memberlist.DefaultLANConfig()
	conf.Name = o.ID
	conf.Transport = c.transport
	conf.AdvertiseAddr = advertise.String()
	conf.AdvertisePort = port
	conf.BindPort = port
	conf.ProbeInterval = o.ProbeInterval
	conf.ProbeTimeout = o.ProbeTimeout
	conf.SuspicionMult = o.SuspicionMult
	// A node that is cut off has nobody to confirm its suspicions, and waits
	// for the longest time. LAN's 6 would be 11 s: too long for its clients.
	conf.SuspicionMaxTimeoutMult = 3
	conf.GossipInterval = o.GossipInterval
	conf.GossipToTheDeadTime = 15 * time.Second
	conf.TCPTimeout = tcpTimeout
	// A node that comes back with another address is taken as soon as its old
	// one is dead.
	conf.DeadNodeReclaimTime = time.Millisecond
	conf.EnableCompression = false // slower than the network
	conf.HandoffQueueDepth = 4096
	conf.UDPBufferSize = packetSize
	conf.Logger = log.New(&logBridge{log: c.log.Named("memberlist"), after: &c.end}, "", 0)
	conf.Delegate = (*delegate)(c)
	conf.Events = (*delegate)(c)
	conf.Alive = (*delegate)(c)
	conf.Merge = (*delegate)(c)
	conf.Conflict = (*delegate)(c)
	if c.keyring != nil {
		conf.Keyring = c.keyring
	}
	return conf
}

const (
	tcpTimeout = 3 * time.Second
	packetSize = 1400
	// What is left for user messages of a packet beside the frame of a
	// compound message and the encryption.
	maxUser = packetSize - 2 - 3 - 29 - 1
	// MaxBroadcast is the largest message that Broadcast takes.
	MaxBroadcast = maxUser - headerSize

	maxQueued      = 128      // broadcasts that wait
	maxQueuedBytes = 64 << 10 // and their bytes
	inboxLength    = 4096     // messages received by gossip that wait
	inboxBytes     = 64 << 20
)

// What memberlist carries for this package begins with a header: a version and
// kind in one byte, the 16 bytes of the sender's id.
const headerSize = 1 + 16

type kind byte

const (
	kindGossip   kind = 0x10 + iota // a message for Handlers
	kindReliable                    // the same, sent to this node alone
	kindLeaving                     // epoch: that life is about to leave
	kindAsk                         // id: does this member live?
	kindDead                        // id: it does not
	kindLives                       // id: it does
)

func (c *Cluster) frame(k kind, body ...[]byte) []byte {
	b := append(make([]byte, 0, maxUser), byte(k))
	b = append(b, c.rawID[:]...)
	for _, part := range body {
		b = append(b, part...)
	}
	return b
}

// A letter is a message that came by gossip, in the inbox.
type letter struct {
	kind kind
	from string
	body []byte
}

// delegate is what memberlist calls, on its own goroutines, the events and the
// decision whether a node is let in under its lock: none of them blocks or
// calls back.
type delegate Cluster

func (d *delegate) NodeMeta(limit int) []byte {
	c := (*Cluster)(d)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.own.encode()
}

func (d *delegate) NotifyMsg(b []byte) {
	c := (*Cluster)(d)
	if len(b) < headerSize {
		c.metrics.dropped[dropBroken].Inc()
		return
	}
	// b is part of a packet's buffer.
	l := letter{kind: kind(b[0]), from: hex.EncodeToString(b[1:headerSize]), body: append([]byte(nil), b[headerSize:]...)}
	if c.inboxSize.Add(int64(len(b))) > inboxBytes {
		c.inboxSize.Add(-int64(len(b)))
		c.metrics.dropped[dropFull].Inc()
		return
	}
	select {
	case c.inbox <- l:
	default:
		c.inboxSize.Add(-int64(len(b)))
		c.metrics.dropped[dropFull].Inc()
	}
}

func (d *delegate) GetBroadcasts(overhead, limit int) [][]byte {
	return (*Cluster)(d).queue.GetBroadcasts(overhead, limit)
}

func (d *delegate) LocalState(bool) []byte            { return nil }
func (d *delegate) MergeRemoteState(_ []byte, _ bool) {}

// NotifyAlive decides whether a node is let in.
func (d *delegate) NotifyAlive(n *memberlist.Node) error {
	return (*Cluster)(d).admit(n)
}

// NotifyMerge refuses to exchange state with nodes of another cluster.
func (d *delegate) NotifyMerge(nodes []*memberlist.Node) error {
	for _, n := range nodes {
		if n.State == memberlist.StateDead || n.State == memberlist.StateLeft {
			continue
		}
		if err := (*Cluster)(d).admit(n); err != nil {
			return err
		}
	}
	return nil
}

var (
	errForeign = errors.New("it belongs to another cluster")
	errWire    = errors.New("it speaks another version")
)

// compatible checks a peer's cluster and wire version against the own.
// oldest is what the peer still understands, 0 if it did not say.
func (c *Cluster) compatible(cluster string, wire, oldest uint32) error {
	if own := c.ClusterID(); own != "" && cluster != "" && own != cluster {
		return errForeign
	}
	if wire < c.opts.OldestWire || oldest > c.opts.Wire {
		return errWire
	}
	return nil
}

func (c *Cluster) admit(n *memberlist.Node) error {
	if n.Name == c.opts.ID {
		return nil // perhaps of an earlier start: memberlist corrects it
	}
	m, err := decodeMeta(n.Meta)
	if err == nil && !validID(n.Name) {
		err = errMeta
	}
	reason := keptBroken
	if err == nil {
		if err = c.compatible(m.cluster, m.wire, m.oldest); err == nil {
			return nil
		}
		reason = keptWire
		if err == errForeign {
			reason = keptCluster
		}
	}
	c.metrics.kept[reason].Inc()
	if c.once("kept", n.Name, reason) {
		hint := ""
		if err == errForeign {
			hint = "if it is to join this cluster, or this node its: start the one that joins with an empty data directory"
		}
		c.log.Warn("node kept out", zap.String("node", n.Name), zap.String("name", m.name), zap.String("address", n.Address()),
			zap.String("cluster", m.cluster), zap.Uint32("wire", m.wire), zap.Error(err), zap.String("hint", hint))
	}
	return err
}

// A fact is the newest that memberlist said of a node.
type fact struct {
	alive bool
	meta  meta
	addr  netip.AddrPort
	// Joins and deaths since the fact was taken: a node that died and came
	// back in between has come back.
	joined bool
}

func (d *delegate) note(n *memberlist.Node, alive, joined bool) {
	c := (*Cluster)(d)
	m, err := decodeMeta(n.Meta)
	if err != nil {
		return // never admitted
	}
	ip, _ := netip.AddrFromSlice(n.Addr)
	c.factsMu.Lock()
	f := c.facts[n.Name]
	f.alive, f.meta, f.addr = alive, m, netip.AddrPortFrom(ip.Unmap(), n.Port)
	f.joined = alive && (f.joined || joined)
	c.facts[n.Name] = f
	c.factsMu.Unlock()
	mark(c.wake)
}

func (d *delegate) NotifyJoin(n *memberlist.Node)   { d.note(n, true, true) }
func (d *delegate) NotifyUpdate(n *memberlist.Node) { d.note(n, true, false) }
func (d *delegate) NotifyLeave(n *memberlist.Node)  { d.note(n, false, false) }

// A node that comes back with another address collides with its own past, for
// as long as that is not dead and forgotten; two nodes collide for ever.
const (
	conflictGrace = 6 * time.Second
	conflictPause = 30 * time.Second // then it is another collision
)

type collision struct{ first, last time.Time }

// NotifyConflict is called for each alive message of a known node with another
// address.
func (d *delegate) NotifyConflict(existing, other *memberlist.Node) {
	c := (*Cluster)(d)
	key := other.Name + " " + other.Address()
	now := time.Now()
	c.mu.Lock()
	seen := c.collided[key]
	if now.Sub(seen.last) > conflictPause {
		seen.first = now
	}
	seen.last = now
	if len(c.collided) >= 1024 {
		clear(c.collided)
	}
	c.collided[key] = seen
	c.mu.Unlock()
	if now.Sub(seen.first) >= conflictGrace {
		c.conflict(other.Name, existing.Address(), other.Address())
	}
}

func (c *Cluster) conflict(id, here, there string) {
	c.metrics.conflicts["id"].Inc()
	if c.once("conflict", id, there) {
		c.log.Error("two nodes have the same id: a data directory was copied, or is used twice",
			zap.String("node", id), zap.String("address", here), zap.String("other", there))
	}
}

// A broadcast is in memberlist's queue until it was sent often enough.
type broadcast struct {
	msg    []byte
	queued *atomic.Int64 // bytes of all
	once   sync.Once
}

func (b *broadcast) Invalidates(memberlist.Broadcast) bool { return false }
func (b *broadcast) Message() []byte                       { return b.msg }
func (b *broadcast) Finished()                             { b.once.Do(func() { b.queued.Add(-int64(len(b.msg))) }) }
func (b *broadcast) UniqueBroadcast()                      {}

// Broadcast gossips a message to all members, best effort; nobody passes it
// on. It returns false if the message is larger than MaxBroadcast or there is
// no room. The message is copied.
func (c *Cluster) Broadcast(msg []byte) bool {
	switch {
	case len(msg) > MaxBroadcast:
		c.metrics.dropped[dropBig].Inc()
		return false
	case !c.running.Load():
		return false
	case c.queue.NumQueued() >= maxQueued, c.queued.Load()+int64(len(msg)) > maxQueuedBytes:
		c.metrics.dropped[dropBudget].Inc()
		return false
	}
	b := &broadcast{msg: c.frame(kindGossip, msg), queued: &c.queued}
	c.queued.Add(int64(len(b.msg)))
	c.queue.QueueBroadcast(b)
	c.metrics.send(Gossip, len(msg))
	return true
}

// boundedTransport gives every stream that memberlist opens a deadline:
// SendReliable sets none, and would wait for ever for a peer that stopped. Of
// those that others open it lets a few through at a time, and of packets those
// that a member could have sent.
type boundedTransport struct {
	memberlist.NodeAwareTransport
	packets <-chan *memberlist.Packet
	streams <-chan net.Conn
	ended   func() // nothing comes from the transport any more
}

func (t boundedTransport) PacketCh() <-chan *memberlist.Packet { return t.packets }

func (t boundedTransport) StreamCh() <-chan net.Conn { return t.streams }

func (t boundedTransport) Shutdown() error {
	defer t.ended()
	return t.NodeAwareTransport.Shutdown()
}

func (t boundedTransport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	conn, err := t.NodeAwareTransport.DialAddressTimeout(a, timeout)
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(2 * tcpTimeout))
}

// plainTransport is a Transport that does not ask for names of nodes.
type plainTransport struct{ memberlist.Transport }

func (t plainTransport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return t.WriteTo(b, a.Addr)
}

func (t plainTransport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return t.DialTimeout(a.Addr, timeout)
}

func (c *Cluster) openTransport(bind netip.Addr) error {
	t := c.opts.Transport
	if t == nil {
		conf := &memberlist.NetTransportConfig{
			BindAddrs: []string{bind.String()},
			BindPort:  c.opts.GossipPort,
			Logger:    log.New(&logBridge{log: c.log.Named("memberlist"), after: &c.end}, "", 0),
		}
		// A free port of UDP may not be one of TCP.
		var nt *memberlist.NetTransport
		var err error
		for range 10 {
			if nt, err = memberlist.NewNetTransport(conf); err == nil || c.opts.GossipPort != 0 {
				break
			}
		}
		if err != nil {
			return fmt.Errorf("cluster: gossip port: %w", err)
		}
		if c.opts.GossipPort == 0 {
			c.opts.GossipPort = nt.GetAutoBindPort()
		}
		t = nt
	}
	aware, ok := t.(memberlist.NodeAwareTransport)
	if !ok {
		aware = plainTransport{t}
	}
	streams, ended := make(chan net.Conn), make(chan struct{})
	packets := aware.PacketCh()
	if c.keyring == nil {
		admitted := make(chan *memberlist.Packet)
		packets = admitted
		c.spawn(func() { c.admitPackets(aware.PacketCh(), admitted, ended) })
	}
	c.transport = boundedTransport{aware, packets, streams, sync.OnceFunc(func() { close(ended) })}
	c.spawn(func() { c.admitStreams(aware.StreamCh(), streams, ended) })
	return nil
}

func mark(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
