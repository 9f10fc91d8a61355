package distro

import (
	"context"
	"maps"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-registry/starling/pkg/registry"
)

// probing is how far the expiry probe of a life is; guarded by the
// replicator's mu.
type probing struct {
	early   bool // the lease is over in a moment: its addresses are dialled already
	due     bool // the lease is over
	scanned bool
	visible int // instances shown on its behalf when they were last looked at
}

// target is one address that stands for an orphan.
type target struct {
	life    registry.Life
	service registry.ServiceKey
	key     registry.InstanceKey
	since   registry.Stamp
	end     int64 // milliseconds; of its lease
}

// probeLoop dials the addresses of orphans whose lease is over, so that a cut
// between nodes removes nobody who is alive (design §6, expiry probe). Each is
// dialled by one node: the survivor that the rendezvous hash names.
func (d *Replicator) probeLoop(ctx context.Context) {
	if d.opts.ProbeEvery <= 0 {
		return
	}
	next := map[target]time.Time{}
	ticker := time.NewTicker(d.opts.Tick)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-d.probesDue:
		case <-ctx.Done():
			return
		}
		seen := map[target]time.Time{}
		d.mu.Lock()
		var due []registry.Life
		for _, l := range d.lives {
			if (l.probing.due || l.probing.early) && l.state == registry.Orphaned && !d.catchingUp {
				due = append(due, l.id)
			}
		}
		_, living := d.nodesLocked()
		d.mu.Unlock()
		var mine []target
		for _, id := range due {
			mine = append(mine, d.scan(id, living)...)
		}
		now := time.Now()
		var round []target
		for _, t := range mine {
			at, known := next[t]
			if !known || !now.Before(at) {
				round = append(round, t)
				at = now.Add(d.opts.ProbeEvery)
			}
			seen[t] = at
		}
		next = seen // of the rest nothing is shown any more, or another node has it
		if d.dialAll(ctx, round) {
			mark(d.probesDue) // fewer are shown now
		}
	}
}

// scan counts what is shown on behalf of a life, and returns what this node has
// to dial.
func (d *Replicator) scan(id registry.Life, living []string) (mine []target) {
	visible := 0
	d.mu.Lock()
	now, end, extra := d.now(), int64(0), int64(0)
	if l := d.lives[id]; l != nil {
		end, extra = l.deadline+l.paused, l.extra(d.opts.Leases)
	}
	d.mu.Unlock()
	slow := now+d.opts.ProbeTimeout.Milliseconds() >= end+extra // the lease of slow clients ends, too
	d.opts.Registry.Orphans(id, func(k registry.ServiceKey, s *registry.Shown) {
		visible++
		if s.Slow && !slow {
			return
		}
		addr := address(s.InstanceKey)
		if rendezvous(k.String()+" "+addr+" "+s.Cluster, living) == d.self.Node {
			t := target{id, k, s.InstanceKey, s.Since, end}
			if s.Slow {
				t.end += extra
			}
			mine = append(mine, t)
		}
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	if l := d.lives[id]; l != nil && l.probing.due {
		l.probing.scanned, l.probing.visible = true, visible
		if visible == 0 {
			mark(d.leaseDue)
		}
	}
	return mine
}

func address(k registry.InstanceKey) string { return net.JoinHostPort(k.IP, strconv.Itoa(k.Port)) }

// dialAll paces the dials, waits for all of them, and reports whether any was
// in vain.
func (d *Replicator) dialAll(ctx context.Context, targets []target) bool {
	var wg sync.WaitGroup
	var vain atomic.Bool
	gap := time.Second / time.Duration(max(1, d.opts.ProbeRate))
	for n, t := range targets {
		if n > 0 {
			select {
			case <-time.After(gap):
			case <-ctx.Done():
			}
		}
		wg.Go(func() {
			if d.unanswered(ctx, t) {
				vain.Store(true)
			}
		})
	}
	wg.Wait()
	return vain.Load()
}

// unanswered dials an address, and hides what is there if it does not answer
// and its lease is over: it waits for that.
func (d *Replicator) unanswered(ctx context.Context, t target) bool {
	d.metrics.dialled.Inc()
	if d.answers(ctx, address(t.key)) {
		return false
	}
	select {
	case <-time.After(time.Duration(t.end-d.now()) * time.Millisecond): // at once if it is over
	case <-ctx.Done():
		return false
	}
	d.opts.Awake()
	d.mu.Lock()
	l := d.lives[t.life]
	still := l != nil && l.state == registry.Orphaned && !d.catchingUp && d.verdictLocked(l, d.now()) == dial
	if still {
		l.probed = true
	}
	d.mu.Unlock()
	if !still {
		return false // its owner has spoken meanwhile, or its lease was raised
	}
	d.metrics.unanswered.Inc()
	p := registry.Probe{Of: t.life, Service: t.service, Instance: t.key, UpTo: t.since, Made: d.opts.Clock.Now()}
	d.opts.Registry.Unanswered(p)
	d.writeProbe(p)
	return true
}

func (d *Replicator) probedLocked(id registry.Life) {
	if l := d.lives[id]; l != nil {
		l.probed = true
	}
}

func (d *Replicator) answers(ctx context.Context, addr string) bool {
	ctx, cancel := context.WithTimeout(ctx, d.opts.ProbeTimeout)
	defer cancel()
	return d.opts.Dial(ctx, addr) == nil
}

// Unsettled says whether clients may be on their way between nodes, so that a
// lost connection says little: a member gives no answer, and a client may sit
// on it unseen; one drains; or the lease of an orphan runs, whose clients are
// coming. SDKs do not come in one step: some connect, register, connect once
// more and only then close the first connection.
func (d *Replicator) Unsettled() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.someoneSilentLocked() {
		return true
	}
	for _, p := range d.peers {
		if m := d.members[p.id]; p.draining && m.State == Alive {
			return true
		}
	}
	now := d.now()
	for _, l := range d.lives {
		if l.state == registry.Orphaned && now < l.deadline+l.paused {
			return true
		}
	}
	return false
}

// someoneSilentLocked: a member that has been silent for longer than any orphan
// stays keeps no client any more; membership may remember it for a day.
func (d *Replicator) someoneSilentLocked() bool {
	for id, m := range d.members {
		if m.State == Silent && time.Since(d.silentSince[id]) < d.opts.Leases.ProbeBound+d.opts.Leases.PauseBound {
			return true
		}
	}
	for id := range d.lives {
		if _, member := d.members[id.Node]; !member && d.saidSilentLocked(id.Node) {
			return true
		}
	}
	return false
}

// saidSilentLocked reports whether peers tell by their heads that a node is
// silent. Membership of a node that has just started does not know it.
func (d *Replicator) saidSilentLocked(node string) bool {
	for id, l := range d.lives {
		if id.Node == node && l.state != registry.Living && l.silent && !d.endedLocked(id) {
			return true
		}
	}
	return false
}

// silentLeaseRunsLocked: then no other lease and no moving record ends. If the
// silent node is killed its lease goes on to count: who had moved there, unseen,
// is on its way again.
func (d *Replicator) silentLeaseRunsLocked(but *life, now int64) bool {
	for _, l := range d.lives {
		if l != but && l.state == registry.Orphaned && l.holds && now < l.deadline+l.paused {
			return true
		}
	}
	return false
}

// MovingDone says whether a record of this node, moving since then, may be
// removed now. While somebody is silent its addresses have to be dialled for
// that, which is begun here and tells later; so it does not block, and is asked
// again until it says yes.
func (d *Replicator) MovingDone(since time.Time, addrs ...string) bool {
	d.mu.Lock()
	// The caller has wall times; only the difference counts.
	now := d.now()
	began := now - time.Since(since).Milliseconds()
	v := wait
	if !d.catchingUp {
		v = d.opts.Leases.moving(now, began, surroundings{silentLeaseRuns: d.silentLeaseRunsLocked(nil, now),
			someoneSilent: d.someoneSilentLocked(), probe: d.opts.ProbeEvery > 0})
	}
	d.mu.Unlock()
	if v != dial {
		return v == expire
	}
	silent := true
	for _, a := range addrs {
		answered, known := d.dialler.ask(a, d.opts.ProbeEvery)
		silent = known && !answered && silent // all are dialled
	}
	return silent
}

// SignOfLife tells of an HTTP client of this node, of which nothing was heard
// since then, whether its address answers. Nobody asks for that, so the answer
// is no, while all members are there: then its beats would have been handed on.
// While one is silent they may be reaching that one, and a cut between nodes is
// to remove nobody who is alive. The address is dialled, which is begun here and
// known later, so that this does not block; an answer counts for as long as it is
// fresh. When a member has just been heard of again nothing is known: the next
// beat will say which of two nodes has the client. All that ends with the bound
// of the expiry probe.
func (d *Replicator) SignOfLife(since time.Time, addr string, fresh time.Duration) (answered, known bool) {
	d.mu.Lock()
	silent, again := d.someoneSilentLocked(), d.served && len(d.members) > 1 && time.Since(d.since) < d.opts.CatchUp
	d.mu.Unlock()
	switch {
	case d.opts.ProbeEvery <= 0 || time.Since(since) >= d.opts.Leases.ProbeBound:
		return false, true
	case silent:
		return d.dialler.ask(addr, fresh)
	}
	return false, !again
}

// maxDialled bounds the addresses of moving records and of HTTP clients that are
// dialled; the others wait.
const maxDialled = 4096

// A dialler knows which addresses of this node's own clients answer.
type dialler struct {
	queue chan string // to be dialled; at most maxDialled

	mu    sync.Mutex
	known map[string]*dialled // asked for lately
}

type dialled struct {
	done     time.Time // zero: not yet
	answered bool
}

func newDialler() *dialler {
	return &dialler{queue: make(chan string, maxDialled), known: map[string]*dialled{}}
}

// ask tells whether an address answered when it was dialled, which is known if
// that was a short time ago; else it has it dialled.
func (l *dialler) ask(addr string, every time.Duration) (answered, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.known[addr]
	now := time.Now()
	if r != nil && (r.done.IsZero() || now.Sub(r.done) < every) {
		return r.answered, !r.done.IsZero()
	}
	select {
	case l.queue <- addr:
		l.known[addr] = &dialled{}
	default: // later
	}
	return false, false
}

// dialLoop dials what waits, so many a second.
func (d *Replicator) dialLoop(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	pace := time.NewTicker(time.Second / time.Duration(max(1, d.opts.ProbeRate)))
	defer pace.Stop()
	for {
		var addr string
		select {
		case <-ctx.Done():
			return
		case addr = <-d.dialler.queue:
		}
		wg.Go(func() {
			d.metrics.dialled.Inc()
			answers := d.answers(ctx, addr)
			d.dialler.mu.Lock()
			defer d.dialler.mu.Unlock()
			if r := d.dialler.known[addr]; r != nil && ctx.Err() == nil {
				r.done, r.answered = time.Now(), answers
			}
		})
		select {
		case <-ctx.Done():
			return
		case <-pace.C:
		}
	}
}

// forget lets go of what nobody has asked for any more.
func (l *dialler) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.known, func(_ string, r *dialled) bool { return !r.done.IsZero() && time.Since(r.done) > time.Minute })
}
