package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-registry/starling/deploy/chaos/link"
	"github.com/starling-registry/starling/deploy/chaos/verdict"
)

const (
	// setUpTimeout is for everybody to see everybody, on a machine that may have
	// more to do.
	setUpTimeout = time.Minute
	// fenceTimeout is for a change after all is over to reach everybody.
	fenceTimeout = 15 * time.Second
	// hostEnd is where readers are, and this program.
	hostEnd = link.Host
)

// A stage is where one run plays: a cluster, drivers of all SDKs with providers
// and subscribers, and the recorder.
type stage struct {
	cluster *cluster
	network network
	rec     *recorder
	plan    *plan
	out     io.Writer
	dir     string
	// dialable: the addresses of providers accept connections while they live.
	dialable bool
	started  time.Time // the nodes
	// serverName is what clients know the servers by, with the port; "" if they
	// know all addresses. point changes what it stands for.
	serverName string
	point      func(nodes []*node) error

	lasting, doomed []*cast // doomed ones die with their processes
	generation      int     // of doomed ones

	linksMu sync.Mutex
	rules   map[direction][]link.Rule // that faults have laid and not yet lifted

	mu        sync.Mutex
	ends      []string                // of clients
	listeners map[string]net.Listener // by provider
	closing   []func()
	faults    []string // what went wrong beside what observers saw

	readers, writers         sync.WaitGroup
	reading, writing         context.Context // until readers, until writers end
	stopReading, stopWriting context.CancelFunc
	lastClient               atomic.Int64
}

func (s *stage) say(format string, args ...any) {
	fmt.Fprintf(s.out, "   "+format+"\n", args...)
}

// act announces what is done now, with its time.
func (s *stage) act(format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	s.rec.mark(what)
	fmt.Fprintf(s.out, "%8v   %s\n", s.rec.since(), what)
}

func (s *stage) fault(format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	s.mu.Lock()
	s.faults = append(s.faults, what)
	s.mu.Unlock()
	fmt.Fprintf(s.out, "%8v   FAULT: %s\n", s.rec.since(), what)
}

// setUp starts the nodes, connects and registers everybody, and returns when
// every observer sees every provider.
func (s *stage) setUp(ctx context.Context) error {
	start := time.Now()
	s.started = start
	all := s.cluster.all()
	if !s.cluster.foreign {
		for _, n := range all {
			if err := n.start(ctx); err != nil {
				return err
			}
		}
	}
	for _, n := range all {
		if err := n.waitReady(ctx); err != nil {
			return err
		}
	}
	if !s.cluster.foreign {
		// Ready nodes may still elect their first leader, which is no fault to be
		// tried here.
		if _, err := s.cluster.leader(ctx); err != nil {
			return err
		}
	}
	s.say("nodes: %s ready after %.1f s", strings.Join(addressesOf(all), ", "), time.Since(start).Seconds())
	if err := s.name(all...); err != nil {
		return err
	}
	start = time.Now()
	if err := s.cast(ctx, s.plan); err != nil {
		return err
	}
	s.reading, s.stopReading = context.WithCancel(ctx)
	s.writing, s.stopWriting = context.WithCancel(ctx)
	for _, n := range all {
		s.addReader(n)
	}
	if err := s.wait(ctx, setUpTimeout, func(now state) bool { return len(now.lacking) == 0 }); err != nil {
		now, _ := s.rec.state()
		return fmt.Errorf("not everybody sees everybody, %w: %s", err, &now)
	}
	s.say("clients: %s; ready after %.1f s", s.population(), time.Since(start).Seconds())
	return nil
}

// playGroup does what one group of a schedule says, and returns when all is well
// again.
func (s *stage) playGroup(ctx context.Context, which string, g group) error {
	if slices.ContainsFunc(g, func(st *step) bool { return st.fault.beside }) {
		if err := s.castDoomed(ctx, s.plan); err != nil {
			return err
		}
		if err := s.calm(ctx); err != nil {
			return err
		}
	}
	s.act("%s: %s", which, g)
	errs := make([]error, len(g))
	var wg sync.WaitGroup
	for i, st := range g {
		wg.Go(func() {
			over := s.rec.step(st)
			defer over()
			if err := st.fault.do(ctx, s, st); err != nil {
				errs[i] = fmt.Errorf("%s: %w", st, err)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return s.calm(ctx)
}

// calmTimeout is above every lease, self-preservation's three minutes and the
// time that an SDK takes to register again.
const calmTimeout = 4 * time.Minute

// calm waits until all views have been right for a while. If they do not come
// to that, the verdict says so, and the schedule goes on.
func (s *stage) calm(ctx context.Context) error {
	const quiet = 2 * time.Second
	begun, since := time.Now(), time.Time{}
	ticks := time.NewTicker(100 * time.Millisecond)
	defer ticks.Stop()
	said := ""
	for {
		now, _ := s.rec.state()
		if text := now.String(); text != said {
			fmt.Fprintf(s.out, "%8v   %s\n", s.rec.since(), text)
			said = text
		}
		switch right := len(now.lacking) == 0 && now.dead == 0; {
		case !right:
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) >= quiet:
			return nil
		}
		if time.Since(begun) > calmTimeout {
			s.fault("not all is well %v after the fault was over: %s", calmTimeout, &now)
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticks.C:
		}
	}
}

// settle watches until no lease runs any more that follows from what was done: one
// may end wrongly only when it ends.
func (s *stage) settle(ctx context.Context, l verdict.Limits) error {
	const most = 5 * time.Minute
	until := verdict.Derive(s.rec.finish(), l).Settled() + 200
	left := min(time.Duration(until-s.rec.since())*time.Millisecond, most)
	if left <= 0 {
		return nil
	}
	s.act("the last fault is over; watching for another %.0f s, until all leases are", left.Seconds())
	return s.watch(ctx, left)
}

// wait returns when the condition holds, or says for how long it did not.
func (s *stage) wait(ctx context.Context, limit time.Duration, holds func(state) bool) error {
	timeout := time.After(limit)
	for {
		now, changed := s.rec.state()
		if holds(now) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timeout:
			return fmt.Errorf("after %v", limit)
		}
	}
}

// watch lets the time pass and says what observers see whenever that changes.
func (s *stage) watch(ctx context.Context, d time.Duration) error {
	end := time.After(d)
	ticks := time.NewTicker(500 * time.Millisecond)
	defer ticks.Stop()
	said := ""
	for {
		now, _ := s.rec.state()
		if text := now.String(); text != said {
			fmt.Fprintf(s.out, "%8v   %s\n", s.rec.since(), text)
			said = text
		}
		select {
		case <-end:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticks.C:
		}
	}
}

// add starts another node, which joins, and puts it behind the name when it is
// ready.
func (s *stage) add(ctx context.Context) (*node, error) {
	n, err := s.cluster.prepare(s.cluster.nextName())
	if err != nil {
		return nil, err
	}
	if err := s.start(ctx, n); err != nil {
		return nil, err
	}
	s.addReader(n)
	return n, s.name(s.cluster.running()...)
}

// remove takes a node from behind the name, ends it politely and takes it out
// of the log.
func (s *stage) remove(ctx context.Context, n *node) error {
	if err := s.name(s.cluster.nodesBut(n)...); err != nil {
		return err
	}
	if s.point != nil {
		// Or clients would go on to dial it, those that are new in vain.
		s.act("waiting %v until what clients remember of the name is old", s.remembers())
		if err := s.watch(ctx, s.remembers()); err != nil {
			return err
		}
	}
	s.act("SIGTERM to %s, which is not coming back", n.name)
	if err := n.stop(ctx); err != nil {
		return err
	}
	n.left.Store(true)
	return s.cluster.forget(ctx, n)
}

// name makes the name stand for these nodes, if there is one.
func (s *stage) name(nodes ...*node) error {
	if s.point == nil {
		return nil
	}
	s.act("%s stands for %s", s.serverName, strings.Join(namesOf(nodes), ", "))
	return s.point(nodes)
}

// remembers is how long a client may go on with what it was told that the name
// stands for: a JVM 30 s, others as long as the record says, which is a second.
func (s *stage) remembers() time.Duration {
	for _, c := range s.lasting {
		if strings.HasPrefix(c.sdk.Name, "java") {
			return 31 * time.Second
		}
	}
	return 2 * time.Second
}

// lay puts a rule on links, beside those that other faults have put there.
func (s *stage) lay(links []direction, r link.Rule) error {
	return s.changeLinks(links, func(rules []link.Rule) []link.Rule { return append(rules, r) })
}

// lift takes one such rule back; those of other faults stay.
func (s *stage) lift(links []direction, r link.Rule) error {
	return s.changeLinks(links, func(rules []link.Rule) []link.Rule {
		if i := slices.Index(rules, r); i >= 0 {
			return slices.Delete(rules, i, i+1)
		}
		return rules
	})
}

func (s *stage) changeLinks(links []direction, change func([]link.Rule) []link.Rule) error {
	s.linksMu.Lock()
	defer s.linksMu.Unlock()
	if s.rules == nil {
		s.rules = map[direction][]link.Rule{}
	}
	for _, d := range links {
		s.rules[d] = change(s.rules[d])
		r := together(s.rules[d])
		if err := s.network.Set(d.from, d.to, r); err != nil {
			return err
		}
		s.rec.link(d.from, d.to, r)
	}
	return nil
}

// together is what several rules do to one packet.
func together(rules []link.Rule) link.Rule {
	var all link.Rule
	for _, r := range rules {
		all.Cut = all.Cut || r.Cut
		all.Loss += r.Loss - all.Loss*r.Loss
		all.Delay += r.Delay
		all.Jitter += r.Jitter
		if r.Rate > 0 && (all.Rate == 0 || r.Rate < all.Rate) {
			all.Rate = r.Rate
		}
	}
	return all
}

// addEnd makes a place for a group of clients.
func (s *stage) addEnd(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ends = append(s.ends, name)
	return s.network.Add(name)
}

// clientEnds are the places of clients, readers among them.
func (s *stage) clientEnds() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append(slices.Clone(s.ends), hostEnd)
}

// fence ends a run: a registration after all is over must reach every
// subscriber, so none has been forgotten. What is said of it does not count as
// views any more.
func (s *stage) fence(ctx context.Context) {
	if err := s.enlist(ctx, s.lasting[0], "fence", ""); err != nil {
		s.fault("a provider could not register at the end: %v", err)
		return
	}
	if err := s.wait(ctx, fenceTimeout, func(now state) bool { return now.missing == 0 }); err != nil {
		now, _ := s.rec.state()
		s.fault("a provider that registered at the end is not seen by all %v: %s", err, &now)
	}
}

// check looks whether the nodes that should run do.
func (s *stage) check(ctx context.Context) {
	for _, n := range s.cluster.running() {
		if !n.isRunning() {
			s.fault("node %s ended by itself (%v), %s", n.name, n.cmd.ProcessState, n.where())
		} else if err := n.waitReady(ctx); err != nil {
			s.fault("%v", err)
		}
	}
}

// quiesce ends the readers.
func (s *stage) quiesce() {
	if s.stopReading != nil {
		s.stopReading()
	}
	s.readers.Wait()
}

// endWrites ends the writers; those that wait for an answer get it.
func (s *stage) endWrites() {
	if s.stopWriting != nil {
		s.stopWriting()
	}
	s.writers.Wait()
}

// close ends everything of the stage, as far as it has been set up.
func (s *stage) close() error {
	s.endWrites()
	s.quiesce()
	var errs []error
	if s.cluster != nil && s.cluster.foreign {
		errs = append(errs, s.removeWritten(context.Background()))
	}
	var wg sync.WaitGroup
	for _, end := range s.closing {
		wg.Go(end)
	}
	wg.Wait()
	for _, l := range s.listeners {
		l.Close()
	}
	if s.cluster != nil {
		errs = append(errs, s.cluster.close())
	}
	if s.network != nil {
		errs = append(errs, s.network.Close())
	}
	return errors.Join(errs...)
}
