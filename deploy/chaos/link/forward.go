package link

import (
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// A port is where the switch and one end meet.
type port struct {
	// Constant.
	end     string
	last    byte     // of its address
	tun     *os.File // written to by all
	address string
	space   string // its namespace, "" is that of the program

	to   [256]atomic.Pointer[pair] // by the last byte of the other end's address
	done chan struct{}             // closed when nothing is read any more
}

// A pair is one direction between two ends.
type pair struct {
	from, to *port

	// Rule and queue are changed under the router's mu and read for each packet.
	// Nil rules are zero; there is a queue while a rule delays something, and until
	// that has been delivered.
	rule  atomic.Pointer[Rule]
	queue atomic.Pointer[queue]

	passed, bytes, delayed, cut, lost, full, failed atomic.Uint64
}

// serve is the switch: it gives each packet that the end sends to the end with the
// address it is for. It returns when the file is closed, or its device gone.
func (p *port) serve(prefix [3]byte) {
	defer close(p.done)
	// A packet that is larger than it may be is cut off by the kernel where the
	// buffer ends; it is known by that.
	var buf [mtu + 1]byte
	for {
		n, err := p.tun.Read(buf[:])
		if err != nil {
			return
		}
		p.forward(buf[:n], prefix)
	}
}

func (p *port) forward(packet []byte, prefix [3]byte) {
	if last, ok := destination(packet, prefix); ok && len(packet) <= mtu {
		if pair := p.to[last].Load(); pair != nil {
			pair.send(packet)
		}
	}
}

// destination is the last byte of the address that an IPv4 packet is for, if that
// is in the network. All else there is no way for, as IPv6 and multicast.
func destination(packet []byte, prefix [3]byte) (last byte, ok bool) {
	const header, version = 20, 4 // bytes; the upper half of the first one
	if len(packet) < header || packet[0]>>4 != version || [3]byte(packet[16:19]) != prefix {
		return 0, false
	}
	return packet[19], true
}

// send does with a packet what the rule says. It is called by one goroutine, that
// of the port it comes from.
func (p *pair) send(packet []byte) {
	var r Rule
	if set := p.rule.Load(); set != nil {
		r = *set
	}
	switch {
	case r.Cut:
		p.cut.Add(1)
		return
	case r.Loss > 0 && rand.Float64() < r.Loss:
		p.lost.Add(1)
		return
	}
	// A queue that is left from the rule before is asked first, to keep the order.
	if q := p.queue.Load(); q != nil {
		switch q.push(packet, r, time.Now()) {
		case taken:
			p.delayed.Add(1)
			return
		case full:
			p.full.Add(1)
			return
		}
	}
	p.deliver(packet)
}

// deliver counts first: what has arrived anywhere has been counted.
func (p *pair) deliver(packet []byte) {
	p.passed.Add(1)
	p.bytes.Add(uint64(len(packet)))
	if _, err := p.to.tun.Write(packet); err != nil {
		p.passed.Add(^uint64(0)) // less one
		p.bytes.Add(-uint64(len(packet)))
		p.failed.Add(1)
	}
}

// set replaces the rule. What was delayed under the old one keeps its time if the
// new one delays too, vanishes in a cut, and is delivered now otherwise. The caller
// holds the router's mu.
func (p *pair) set(r Rule, goroutines *sync.WaitGroup) {
	q := p.queue.Load()
	delays := !r.Cut && (r.Delay > 0 || r.Jitter > 0 || r.Rate > 0)
	if delays && (q == nil || !q.reopen()) {
		q = newQueue(p.deliver)
		p.queue.Store(q)
		goroutines.Go(func() {
			q.run()
			p.queue.CompareAndSwap(q, nil)
		})
	}
	if r == (Rule{}) {
		p.rule.Store(nil)
	} else {
		p.rule.Store(&r)
	}
	if q == nil {
		return
	}
	if r.Cut {
		p.cut.Add(uint64(q.drop()))
	}
	if !delays {
		q.end()
	}
}

func (p *pair) count() Count {
	return Count{
		Passed:  p.passed.Load(),
		Bytes:   p.bytes.Load(),
		Delayed: p.delayed.Load(),
		Cut:     p.cut.Load(),
		Lost:    p.lost.Load(),
		Full:    p.full.Load(),
		Failed:  p.failed.Load(),
	}
}
