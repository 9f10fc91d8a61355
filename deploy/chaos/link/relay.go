package link

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// The parts of the prefix that ends get: they listen from .11 on and are
	// reached from .111 on; fronts of foreign servers and names come after.
	firstBind, firstFront, firstForeign, lastForeign = 11, 111, 211, 254

	// claimPort on the first address of a prefix is held by the Relay that uses it.
	claimPort = 4848

	// kernelBuffer is asked for on each side of a connection. What is in there when
	// a direction is cut still arrives, so it is not left to grow by itself.
	kernelBuffer = 256 << 10
)

// portOffsets lead from the main port of a node to all that it opens. The last
// is gossip, which is UDP too.
var portOffsets = []int{0, 1000, 1001, -1000, gossipOffset}

const gossipOffset = -902

// A Relay is the network between processes on loopback, without root. See the
// package comment for what it can not do.
//
// Its methods may be called from any goroutine.
type Relay struct {
	prefix string // of all addresses, "127.1.2."
	port   int
	claim  net.Listener
	owners owners

	quit    chan struct{} // closed by Close
	running sync.WaitGroup

	// opening serialises what opens and closes listeners. It is taken before mu.
	opening sync.Mutex

	mu         sync.Mutex
	closed     bool
	ends       map[string]*relayEnd
	byBind     map[netip.Addr]*relayEnd
	directions map[string]*direction // by Pair
	given      int                   // ends so far; an address is not given twice
	foreign    int                   // fronts so far
}

// A relayEnd is a front and what is behind it.
type relayEnd struct {
	name   string
	bind   string // address of what is behind; "" of a name front
	front  string
	ports  []int
	gossip *net.UDPConn // nil of a foreign front

	// Guarded by Relay.opening.
	listeners []net.Listener

	// Guarded by Relay.mu.
	up      bool
	targets []string // of a name front
	turn    int
	streams map[*stream]struct{}
}

// NewRelay takes a part of 127.0.0.0/8 for itself. The port is the main one of
// the nodes, 0 means a free one.
func NewRelay(port int) (*Relay, error) {
	for range 200 {
		prefix := fmt.Sprintf("127.%d.%d.", 16+rand.IntN(200), rand.IntN(256))
		claim, err := net.Listen("tcp4", net.JoinHostPort(prefix+"1", strconv.Itoa(claimPort)))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("taking addresses of loopback: %w", err)
		}
		main := port
		if main == 0 {
			// Below where the kernel takes the ports of outgoing connections from.
			main = 20000 + rand.IntN(10000)
		}
		if err := portsFree(prefix+"1", main); err != nil {
			claim.Close()
			if port != 0 {
				return nil, err
			}
			continue
		}
		return &Relay{
			prefix: prefix, port: main, claim: claim,
			owners:     owners{mark: "CHAOS_END=" + prefix, processes: map[int]process{}},
			quit:       make(chan struct{}),
			ends:       map[string]*relayEnd{},
			byBind:     map[netip.Addr]*relayEnd{},
			directions: map[string]*direction{},
		}, nil
	}
	return nil, errors.New("found no free addresses and ports on loopback")
}

// portsFree fails when somebody has one of a node's ports on all addresses.
func portsFree(ip string, port int) error {
	for _, o := range portOffsets {
		l, err := net.Listen("tcp4", net.JoinHostPort(ip, strconv.Itoa(port+o)))
		if err != nil {
			return err
		}
		l.Close()
	}
	p, err := net.ListenPacket("udp4", net.JoinHostPort(ip, strconv.Itoa(port+gossipOffset)))
	if err != nil {
		return err
	}
	return p.Close()
}

// Port is the main port that all nodes have, in Bind and in Address.
func (r *Relay) Port() int { return r.port }

// Add makes a node or a group of clients known. Its front is open at once, as
// after Up.
func (r *Relay) Add(name string) error {
	r.mu.Lock()
	n := r.given
	r.given++
	r.mu.Unlock()
	if firstBind+n >= firstFront {
		return fmt.Errorf("adding %s: there were %d ends already, more addresses are not set apart", name, n)
	}
	e := &relayEnd{name: name, bind: r.prefix + strconv.Itoa(firstBind+n), front: r.prefix + strconv.Itoa(firstFront+n)}
	for _, o := range portOffsets {
		e.ports = append(e.ports, r.port+o)
	}
	gossip, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(e.front), Port: r.port + gossipOffset})
	if err != nil {
		return fmt.Errorf("adding %s: %w", name, err)
	}
	e.gossip = gossip
	if err := r.add(e); err != nil {
		gossip.Close()
		return err
	}
	return nil
}

// Front puts a front, with an address of its own, before the ports of a server
// that this program did not start. The name is the server's end in rules. With
// no target it is a name front: Point says where its connections go.
// It returns the front's address.
func (r *Relay) Front(name, target string, ports ...int) (string, error) {
	if target != "" {
		ip, err := net.ResolveIPAddr("ip4", target)
		if err != nil {
			return "", fmt.Errorf("putting a front before %s: %w", target, err)
		}
		target = ip.String()
	}
	r.mu.Lock()
	n := r.foreign
	r.foreign++
	r.mu.Unlock()
	if firstForeign+n > lastForeign {
		return "", fmt.Errorf("adding %s: there were %d fronts already, more addresses are not set apart", name, n)
	}
	e := &relayEnd{name: name, bind: target, front: r.prefix + strconv.Itoa(firstForeign+n), ports: slices.Clone(ports)}
	return e.front, r.add(e)
}

func (r *Relay) add(e *relayEnd) error {
	e.up = true
	e.streams = map[*stream]struct{}{}
	err := func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		switch {
		case r.closed:
			return net.ErrClosed
		case r.ends[e.name] != nil || e.name == Host || e.name == "":
			return errors.New("the name is taken")
		}
		r.ends[e.name] = e
		if e.gossip != nil {
			r.byBind[netip.MustParseAddr(e.bind)] = e
			r.running.Go(func() { r.relayDatagrams(e) })
		}
		return nil
	}()
	if err != nil {
		return fmt.Errorf("adding %s: %w", e.name, err)
	}
	if err := r.adjust(e); err != nil {
		return errors.Join(err, r.Remove(e.name))
	}
	return nil
}

// Remove takes an end away, with all connections through its front and the
// rules that name it.
func (r *Relay) Remove(name string) error {
	r.mu.Lock()
	e := r.ends[name]
	if e == nil {
		r.mu.Unlock()
		return unknownEnd(name)
	}
	delete(r.ends, name)
	if e.gossip != nil {
		delete(r.byBind, netip.MustParseAddr(e.bind))
	}
	e.up = false
	for _, d := range r.directions {
		if d.from == name || d.to == name {
			d.set(Rule{})
		}
	}
	r.mu.Unlock()
	err := r.adjust(e)
	r.drop(e)
	if e.gossip != nil {
		err = errors.Join(err, e.gossip.Close())
	}
	r.owners.ended(name)
	return err
}

// Bind is the address that a process of the end listens on.
func (r *Relay) Bind(name string) string {
	if e := r.end(name); e != nil {
		return e.bind
	}
	return ""
}

// Address is where others reach it.
func (r *Relay) Address(name string) string {
	if e := r.end(name); e != nil {
		return e.front
	}
	return ""
}

// Command is to be started for an end. Its environment says of which, since the
// process may have dialled before Started is told of it; more may be appended.
func (r *Relay) Command(name string, argv ...string) *exec.Cmd {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), r.owners.mark+name)
	return cmd
}

// Started says that a process belongs to an end from now on, with its children.
// It spares a look through all processes of the machine, and is what counts for
// one that was not started by Command.
func (r *Relay) Started(name string, pid int) { r.owners.started(name, pid) }

// Set puts a rule in place of the one before. See the package comment for what
// it does to connections.
func (r *Relay) Set(from, to string, rule Rule) error {
	if err := rule.Validate(); err != nil {
		return fmt.Errorf("from %s to %s: %w", from, to, err)
	}
	var affected []*relayEnd
	r.mu.Lock()
	for _, name := range []string{from, to} {
		e := r.ends[name]
		if e == nil && name != Host {
			r.mu.Unlock()
			return unknownEnd(name)
		}
		if e != nil {
			affected = append(affected, e)
		}
	}
	// Under the lock, because Remove ends rules for good.
	r.directionLocked(from, to).set(rule)
	r.mu.Unlock()
	var errs []error
	for _, e := range affected {
		errs = append(errs, r.adjust(e))
	}
	return errors.Join(errs...)
}

// Down closes the end's front, because its process is gone: dials are refused,
// as the process' machine would. Connections are left to what the process
// itself did to them.
func (r *Relay) Down(name string) error { return r.setUp(name, false) }

// Up opens it again.
func (r *Relay) Up(name string) error { return r.setUp(name, true) }

func (r *Relay) setUp(name string, up bool) error {
	r.mu.Lock()
	e := r.ends[name]
	if e == nil {
		r.mu.Unlock()
		return unknownEnd(name)
	}
	e.up = up
	r.mu.Unlock()
	return r.adjust(e)
}

// Point sends the connections that a name front gets from now on to these ends,
// other fronts or addresses, in turn. None: they are reset.
func (r *Relay) Point(name string, targets ...string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.ends[name]
	if e == nil || e.bind != "" {
		return fmt.Errorf("%s is no name front", name)
	}
	for _, t := range targets {
		if known := r.ends[t]; known != nil && known.bind != "" {
			continue
		}
		if _, err := netip.ParseAddr(t); err != nil {
			return fmt.Errorf("pointing %s to %s: neither an end nor an address", name, t)
		}
	}
	e.targets = slices.Clone(targets)
	return nil
}

// drop resets the connections through a front, for the clients as for what is
// behind.
func (r *Relay) drop(e *relayEnd) {
	r.mu.Lock()
	var streams []*stream
	for s := range e.streams {
		streams = append(streams, s)
	}
	r.mu.Unlock()
	for _, s := range streams {
		s.abort()
	}
}

// Counters say what became of what was sent, by Pair. Of a connection each
// piece that was handed on counts as a packet, and a connection that waited in
// a cut before it reached anybody as one that vanished.
func (r *Relay) Counters() map[string]Count {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := map[string]Count{}
	for pair, d := range r.directions {
		counts[pair] = d.count()
	}
	return counts
}

// Close ends everything and waits for it. Connections are reset.
func (r *Relay) Close() error {
	r.mu.Lock()
	already := r.closed
	r.closed = true
	var names []string
	for name := range r.ends {
		names = append(names, name)
	}
	r.mu.Unlock()
	if already {
		return nil
	}
	close(r.quit)
	var errs []error
	for _, name := range names {
		errs = append(errs, r.Remove(name))
	}
	r.running.Wait()
	r.owners.scanners.Wait()
	return errors.Join(append(errs, r.claim.Close())...)
}

func (r *Relay) end(name string) *relayEnd {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ends[name]
}

func (r *Relay) direction(from, to string) *direction {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.directionLocked(from, to)
}

func (r *Relay) directionLocked(from, to string) *direction {
	d := r.directions[Pair(from, to)]
	if d == nil {
		d = newDirection(from, to)
		r.directions[Pair(from, to)] = d
	}
	return d
}

func unknownEnd(name string) error { return fmt.Errorf("there is no end %s", name) }

// adjust opens or closes the listeners of a front, as it shall be.
func (r *Relay) adjust(e *relayEnd) error {
	r.opening.Lock()
	defer r.opening.Unlock()
	r.mu.Lock()
	open := e.up
	if r.ends[e.name] == e {
		// Who is cut off from a dead process' machine is not told that it is dead. So
		// the front takes connections and tells those who are not cut off by a reset.
		for _, d := range r.directions {
			if (d.from == e.name || d.to == e.name) && d.rule.Load().stopped() {
				open = true
			}
		}
	}
	open = open && !r.closed
	r.mu.Unlock()
	if open == (e.listeners != nil) {
		return nil
	}
	if !open {
		var errs []error
		for _, l := range e.listeners {
			errs = append(errs, l.Close())
		}
		e.listeners = nil
		return errors.Join(errs...)
	}
	var listeners []net.Listener
	config := net.ListenConfig{Control: boundBuffers, KeepAlive: -1}
	for _, port := range e.ports {
		l, err := config.Listen(context.Background(), "tcp4", net.JoinHostPort(e.front, strconv.Itoa(port)))
		if err != nil {
			for _, l := range listeners {
				l.Close()
			}
			return fmt.Errorf("opening the front of %s: %w", e.name, err)
		}
		listeners = append(listeners, l)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		for _, l := range listeners {
			l.Close()
		}
		return net.ErrClosed
	}
	e.listeners = listeners
	for i, l := range listeners {
		r.running.Go(func() { r.accept(e, l, e.ports[i]) })
	}
	return nil
}

func boundBuffers(_, _ string, c syscall.RawConn) error {
	var err error
	e := c.Control(func(fd uintptr) {
		err = errors.Join(
			os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, kernelBuffer)),
			os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, kernelBuffer)))
	})
	return errors.Join(e, err)
}
