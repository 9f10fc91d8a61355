package simnet

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// A Link is the way from one host to another, one direction.
type Link struct {
	Loss      float64       // share of packets that do not arrive
	Duplicate float64       // share of packets that arrive twice
	Reorder   float64       // share of packets that arrive later than those behind them
	Delay     time.Duration // of packets and streams
	Jitter    time.Duration // at most this much more, of packets
	Bandwidth int           // bytes a second, of all streams together; 0: any
}

// DefaultLink is what is between hosts that nothing was set for.
var DefaultLink = Link{Delay: 200 * time.Microsecond}

// Traffic is what left a host for another.
type Traffic struct {
	Packets, PacketBytes int
	Streams, StreamBytes int // connections opened; bytes in this direction
}

// way is a pair of host names, one direction.
type way struct{ from, to string }

// Network holds hosts. All its methods may be called from any goroutine.
type Network struct {
	mu      sync.Mutex
	rand    *rand.Rand
	hosts   map[netip.Addr]*Host // newest of each address
	names   map[string][]netip.Addr
	lost    map[string]error // names that cannot be resolved
	links   map[way]Link
	cuts    map[way]bool
	busy    map[way]time.Time // until when the bandwidth is taken
	traffic map[way]*Traffic
	pipes   map[*pipe]struct{}
	// Closed and replaced when something changed that a dial may wait for.
	changed chan struct{}
}

// New makes a network without hosts.
func New(seed uint64) *Network {
	return &Network{
		rand:    rand.New(rand.NewPCG(seed, seed)),
		hosts:   map[netip.Addr]*Host{},
		names:   map[string][]netip.Addr{},
		lost:    map[string]error{},
		links:   map[way]Link{},
		cuts:    map[way]bool{},
		busy:    map[way]time.Time{},
		traffic: map[way]*Traffic{},
		pipes:   map[*pipe]struct{}{},
		changed: make(chan struct{}),
	}
}

// Host starts the network stack of a process. It takes over from a dead one
// of the same name. An address that a living host has is a mistake: it panics.
func (n *Network) Host(name string, addrs ...string) *Host {
	h := &Host{net: n, Name: name, listeners: map[netip.AddrPort]*listener{}, transports: map[netip.AddrPort]*Transport{},
		conns: map[*conn]struct{}{}, gone: make(chan struct{}), port: 32768}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range addrs {
		addr := netip.MustParseAddr(a)
		if old := n.hosts[addr]; old != nil && old.dead == alive {
			panic(fmt.Sprintf("simnet: %s has the address %s already", old.Name, addr))
		}
		h.Addrs = append(h.Addrs, addr)
		n.hosts[addr] = h
	}
	// A machine that boots resets what its predecessor had open.
	for p := range n.pipes {
		p.rebootLocked(name)
	}
	n.wakeLocked()
	return h
}

// SetName makes a name resolve to addresses; none: it does not exist.
func (n *Network) SetName(name string, addrs ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.names, name)
	delete(n.lost, name)
	for _, a := range addrs {
		n.names[name] = append(n.names[name], netip.MustParseAddr(a))
	}
}

// FailName makes looking a name up fail until SetName.
func (n *Network) FailName(name string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lost[name] = err
}

// Lookup resolves a name or an address literal.
func (n *Network) Lookup(_ context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.lost[host]; err != nil {
		return nil, err
	}
	if as := n.names[host]; as != nil {
		return slices.Clone(as), nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

// SetLink sets one direction between two host names.
func (n *Network) SetLink(from, to string, l Link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.links[way{from, to}] = l
}

// Cut lets nothing pass between two hosts, in both directions.
func (n *Network) Cut(a, b string) {
	n.cut(true, way{a, b}, way{b, a})
}

// CutOneWay lets nothing pass from one host to another. No connection can be
// made between them in either direction.
func (n *Network) CutOneWay(from, to string) {
	n.cut(true, way{from, to})
}

// Partition cuts every host of one side from every host of the other.
func (n *Network) Partition(side, other []string) {
	var ways []way
	for _, a := range side {
		for _, b := range other {
			ways = append(ways, way{a, b}, way{b, a})
		}
	}
	n.cut(true, ways...)
}

// Heal undoes the cuts between two hosts.
func (n *Network) Heal(a, b string) {
	n.cut(false, way{a, b}, way{b, a})
}

// HealAll undoes all cuts.
func (n *Network) HealAll() {
	n.mu.Lock()
	ways := slices.Collect(maps.Keys(n.cuts))
	n.mu.Unlock()
	n.cut(false, ways...)
}

func (n *Network) cut(cut bool, ways ...way) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.settleLocked()
	for _, w := range ways {
		if cut {
			n.cuts[w] = true
		} else {
			delete(n.cuts, w)
		}
	}
	n.wakeLocked()
}

// Traffic is what one host has sent to another so far.
func (n *Network) Traffic(from, to string) Traffic {
	n.mu.Lock()
	defer n.mu.Unlock()
	return *n.trafficLocked(way{from, to})
}

func (n *Network) trafficLocked(w way) *Traffic {
	t := n.traffic[w]
	if t == nil {
		t = &Traffic{}
		n.traffic[w] = t
	}
	return t
}

func (n *Network) linkLocked(w way) Link {
	if l, ok := n.links[w]; ok {
		return l
	}
	return DefaultLink
}

// settleLocked notes what has arrived, before something is cut or frozen.
func (n *Network) settleLocked() {
	now := time.Now()
	for p := range n.pipes {
		if !n.passLocked(p.from, p.to) {
			continue
		}
		for i := range p.segs {
			if p.segs[i].at.After(now) {
				break
			}
			p.segs[i].arrived = true
		}
	}
}

// wakeLocked lets everybody who waits look again.
func (n *Network) wakeLocked() {
	close(n.changed)
	n.changed = make(chan struct{})
	for p := range n.pipes {
		p.wakeLocked()
	}
}

// passLocked tells whether anything gets from one host to another now.
func (n *Network) passLocked(from, to *Host) bool {
	return !n.cuts[way{from.Name, to.Name}] &&
		from.frozen == running && to.frozen == running &&
		from.dead != off && to.dead != off
}

// hostLocked is who has an address, nil if nobody ever had.
func (n *Network) hostLocked(addr netip.Addr) *Host {
	return n.hosts[addr.Unmap()]
}
