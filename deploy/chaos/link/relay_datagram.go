package link

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"
)

// maxFlight bounds the bytes of datagrams that wait in a direction, and those
// that wait for its rate. What is more vanishes.
const maxFlight = 1 << 20

// flight is what datagrams of a direction are delayed; guarded by its mu. A
// goroutine delivers them while there are any.
type flight struct {
	waiting []datagram // in the order in which they came
	bytes   int
}

type datagram struct {
	data []byte
	send func([]byte) error
	due  time.Time
	by   *ruling // that worked it out
}

// relayDatagrams hands on what comes to the front of an end, until it is closed.
func (r *Relay) relayDatagrams(to *relayEnd) {
	target := netip.AddrPortFrom(netip.MustParseAddr(to.bind), uint16(r.port+gossipOffset))
	buffer := make([]byte, 64<<10)
	for {
		n, source, err := to.gossip.ReadFromUDPAddrPort(buffer)
		if err != nil {
			return
		}
		r.mu.Lock()
		from := r.byBind[source.Addr().Unmap()]
		r.mu.Unlock()
		if from == nil {
			// There is no front for an answer to come to.
			r.direction(Host, to.name).failed.Add(1)
			continue
		}
		// From the sender's front, where it can be answered.
		r.direction(from.name, to.name).pass(r, buffer[:n], func(b []byte) error {
			_, err := from.gossip.WriteToUDPAddrPort(b, target)
			return err
		})
	}
}

// pass sends a datagram, now or later or never. It keeps nothing of data.
func (d *direction) pass(r *Relay, data []byte, send func([]byte) error) {
	g := d.rule.Load()
	if g.Cut {
		d.cut.Add(1)
		return
	}
	if g.Loss > 0 && rand.Float64() < g.Loss {
		d.lost.Add(1)
		return
	}
	held := g.Delay + g.jitter()
	d.mu.Lock()
	if held == 0 && g.Rate == 0 && len(d.flight.waiting) == 0 {
		// Only the caller's goroutine comes here for this direction, so this one
		// overtakes none.
		d.mu.Unlock()
		d.sent(len(data), send(data))
		return
	}
	defer d.mu.Unlock()
	f := &d.flight
	if f.bytes+len(data) > maxFlight || g.Rate > 0 && g.backlog() > maxFlight {
		d.full.Add(1)
		return
	}
	due := time.Now()
	if g.Rate > 0 {
		due = g.through(len(data))
	}
	f.waiting = append(f.waiting, datagram{slices.Clone(data), send, due.Add(held), g})
	f.bytes += len(data)
	d.delayed.Add(1)
	if len(f.waiting) == 1 {
		r.running.Go(func() { d.deliver(r.quit) })
	}
}

// deliver sends what waits, in the order in which it came, until nothing does.
func (d *direction) deliver(quit <-chan struct{}) {
	for {
		d.mu.Lock()
		first := d.flight.waiting[0]
		d.mu.Unlock()
		if !d.pause(first.due, first.by, quit) {
			return
		}
		if d.rule.Load().Cut {
			d.cut.Add(1)
		} else {
			d.sent(len(first.data), first.send(first.data))
		}
		d.mu.Lock()
		d.flight.waiting[0] = datagram{}
		d.flight.waiting = d.flight.waiting[1:]
		d.flight.bytes -= len(first.data)
		done := len(d.flight.waiting) == 0
		if done {
			d.flight.waiting = nil
		}
		d.mu.Unlock()
		if done {
			return
		}
	}
}

func (d *direction) sent(n int, err error) {
	if err != nil {
		d.failed.Add(1)
		return
	}
	d.passed.Add(1)
	d.bytes.Add(uint64(n))
}
