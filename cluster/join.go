package cluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
)

// A target is an entry of Options.Join.
type target struct {
	host string
	port uint16 // of gossip
}

// parseTarget reads HOST, HOST:PORT, an IPv6 address with or without brackets.
// PORT is the main port; the result has the gossip port.
func parseTarget(s string, port int) (target, error) {
	host := s
	if a, err := netip.ParseAddr(trimBrackets(s)); err == nil {
		host = a.String()
	} else if h, p, err := net.SplitHostPort(s); err == nil {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil {
			return target{}, fmt.Errorf("join %q: port %q", s, p)
		}
		host, port = h, int(n)
	}
	if host == "" || len(host) > maxHost {
		return target{}, fmt.Errorf("join %q: no host", s)
	}
	if port <= gossipOffset || port-gossipOffset > 65535 {
		return target{}, fmt.Errorf("join %q: port %d has no gossip port %d below it", s, port, gossipOffset)
	}
	return target{host, uint16(port - gossipOffset)}, nil
}

func trimBrackets(s string) string {
	if len(s) > 1 && s[0] == '[' && s[len(s)-1] == ']' {
		return s[1 : len(s)-1]
	}
	return s
}

const (
	lonelyAfter  = 3 * time.Second // others may start at the same time
	lonelyAgain  = time.Minute
	joinAtOnce   = 5 // addresses tried in a round
	firstRejoin  = time.Second
	lookupTime   = 5 * time.Second
	unseenFor    = time.Second // a member that does not dial this node for so long may not know it
	resolveAtAll = 10 * time.Second
)

// joinForever keeps this node together with all others: memberlist does not
// heal a partition by itself, and it does not know names. Rounds follow each
// other at RejoinInterval; while nobody was reached yet or somebody is
// missing, from one second on.
func (c *Cluster) joinForever() {
	wait := time.Duration(0)
	backoff := firstRejoin
	var last time.Time
	for {
		timer := time.NewTimer(jitter(wait))
		select {
		case <-c.ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-c.rejoin:
			// Something changed: look soon, but not for each of many changes.
			backoff = firstRejoin
			timer.Reset(max(0, 200*time.Millisecond-time.Since(last)))
			select {
			case <-c.ctx.Done():
				timer.Stop()
				return
			case <-timer.C:
			}
		}
		last = time.Now()
		missing := c.joinRound()
		wait = c.opts.RejoinInterval
		if missing {
			wait = min(backoff, wait)
			backoff = min(backoff*3/2, c.opts.RejoinInterval)
		} else {
			backoff = firstRejoin
		}
	}
}

// joinRound exchanges state with some of those that are not members now, and
// tells whether somebody is missing.
func (c *Cluster) joinRound() (missing bool) {
	var found []netip.AddrPort
	names := c.targets
	skip := map[netip.AddrPort]bool{}
	var unseen []netip.AddrPort
	now := time.Now()
	c.mu.Lock()
	if c.own.leaving {
		c.mu.Unlock()
		return false
	}
	skip[c.gossipAddr] = true
	alive := 0
	for _, m := range c.members {
		switch {
		case m.gossiping:
			skip[m.Gossip] = true
			alive++
			if m.State == Alive && m.out != nil && m.in == nil {
				// It is reached, and does not dial back: perhaps it has never
				// heard of this node, or only of its last address.
				missing = true
				if now.Sub(m.since) >= unseenFor {
					unseen = append(unseen, m.Gossip)
				}
			}
		case m.State != Left:
			missing = true
			found = append(found, m.Gossip)
			if _, err := netip.ParseAddr(m.Host); err != nil && m.Host != "" { // a name that may have moved
				names = append(slices.Clip(names), target{m.Host, uint16(m.GossipPort)})
			}
		}
	}
	c.mu.Unlock()
	if alive == 0 && len(names)+len(c.known) > 0 {
		missing = true
	}
	found = append(found, c.known...)

	// Names are looked up even if all are there: a new node may be behind one.
	ctx, cancel := context.WithTimeout(c.ctx, lookupTime)
	defer cancel()
	var mu sync.Mutex
	var lookups sync.WaitGroup
	for _, t := range names {
		lookups.Go(func() {
			as, err := c.lookup(ctx, t.host)
			if err != nil {
				c.metrics.lookupFailures.Inc()
				if c.once("lookup", t.host) {
					c.log.Warn("name not resolved; it is tried again", zap.String("host", t.host), zap.Error(err))
				}
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for _, a := range as {
				found = append(found, netip.AddrPortFrom(a, t.port))
			}
		})
	}
	lookups.Wait()

	var try []netip.AddrPort
	for _, a := range found {
		if !skip[a] {
			skip[a] = true
			try = append(try, a)
		}
	}
	rand.Shuffle(len(try), func(i, j int) { try[i], try[j] = try[j], try[i] })
	try = append(unseen, try...)
	try = try[:min(len(try), joinAtOnce)]
	var joins sync.WaitGroup
	failures := make([]error, len(try))
	for i, a := range try {
		joins.Go(func() {
			c.metrics.joins.Inc()
			if _, err := c.ml.Join([]string{a.String()}); err != nil {
				c.metrics.joinFailures.Inc()
				c.log.Debug("not joined", zap.Stringer("address", a), zap.Error(err))
				failures[i] = err
			}
		})
	}
	joins.Wait()
	c.lonely(now, alive == 0 && len(try) > 0 && !slices.Contains(failures, nil), failures)
	return missing
}

// lonely says now and then that nobody is reached: this node may serve clients
// who do not see what is registered elsewhere.
func (c *Cluster) lonely(now time.Time, yes bool, failures []error) {
	foreign := yes && slices.ContainsFunc(failures, func(err error) bool {
		// Made here and wrapped by memberlist, which keeps its text only.
		return err != nil && strings.Contains(err.Error(), errForeign.Error())
	})
	c.keptOut.Store(foreign)
	switch {
	case !yes:
		c.alone, c.saidAlone = time.Time{}, time.Time{}
		return
	case c.alone.IsZero():
		c.alone = now
	}
	if now.Sub(c.alone) < lonelyAfter || !c.saidAlone.IsZero() && now.Sub(c.saidAlone) < lonelyAgain {
		return
	}
	c.saidAlone = now
	var why []string
	for _, err := range failures {
		why = append(why, strings.Join(strings.Fields(err.Error()), " ")) // memberlist's have several lines
	}
	c.log.Warn("no other node is reached, this one is on its own: are --join and --gossip-key-file right, do the others run, is their gossip port open?",
		zap.Duration("for", now.Sub(c.alone)), zap.Strings("errors", why))
}

// lookup resolves a name to all its addresses.
func (c *Cluster) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a.Unmap()}, nil
	}
	as, err := c.opts.Lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	as = slices.Clone(as)
	for i := range as {
		as[i] = as[i].Unmap()
	}
	if len(as) == 0 {
		return nil, fmt.Errorf("%s has no address", host)
	}
	return as, nil
}

// resolveAdvertise finds the address of this node. A name is tried for a
// while: the record of a pod may appear after the pod.
func (c *Cluster) resolveAdvertise(ctx context.Context, host string) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveAtAll)
	defer cancel()
	for {
		as, err := c.lookup(ctx, host)
		if err == nil {
			return as[0], nil
		}
		select {
		case <-ctx.Done():
			return netip.Addr{}, fmt.Errorf("cluster: own address: %w", err)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// watchAdvertise notices when the name of this node gets other addresses.
func (c *Cluster) watchAdvertise() {
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-time.After(jitter(c.opts.RejoinInterval)):
		}
		ctx, cancel := context.WithTimeout(c.ctx, lookupTime)
		as, err := c.lookup(ctx, c.opts.Advertise)
		cancel()
		if err != nil || slices.Contains(as, c.gossipAddr.Addr()) {
			continue
		}
		if c.once("moved", as[0].String()) {
			c.log.Error("the advertised name has another address now; gossip keeps the old one until a restart",
				zap.String("name", c.opts.Advertise), zap.Stringer("was", c.gossipAddr.Addr()), zap.Stringer("is", as[0]))
		}
	}
}

// jitter is a duration ±20 %.
func jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return d*8/10 + rand.N(d*4/10+1)
}
