package client

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/starling-registry/starling/pkg/nacos"
)

// diskWait is how long the first read of a list from the disk waits for a
// connection before it takes that.
const diskWait = time.Second

// Instances are all instances of a service, healthy or not, that its server
// shows; servers leave disabled ones out. They are the caller's own copies. A
// service that nobody knows has none, which is no error.
//
// The first read of a service subscribes to it and waits for the answer, at most
// for the configured RequestTimeout if the context has no deadline; all later
// reads touch no network, also while the servers are away: then [Client.Snapshot]
// tells how old the list is. The errors are [ErrNotConnected], [ErrInvalid],
// [ErrClosed] and [ServerError].
func (c *Client) Instances(ctx context.Context, service string, opts ...QueryOption) ([]Instance, error) {
	q := queryOf(opts)
	l, _, err := c.read(ctx, service, &q)
	if err != nil {
		return nil, err
	}
	return copies(l.instances, q.keepsAll(), q.match), nil
}

// Select are the instances of Instances that may be used: healthy, enabled, and
// with a weight above 0.
func (c *Client) Select(ctx context.Context, service string, opts ...QueryOption) ([]Instance, error) {
	q := queryOf(opts)
	l, _, err := c.read(ctx, service, &q)
	if err != nil {
		return nil, err
	}
	return copies(l.instances, false, func(i *Instance) bool { return q.usable(i) && q.match(i) }), nil
}

// Pick is one of the instances of Select, at random by weight. The error is
// [ErrNoInstances] if there is none.
func (c *Client) Pick(ctx context.Context, service string, opts ...QueryOption) (Instance, error) {
	q := queryOf(opts)
	l, id, err := c.read(ctx, service, &q)
	if err != nil {
		return Instance{}, err
	}
	var p *picks
	if q.keepsAll() && !q.allHealth && !q.unhealthy {
		p = l.picks
		p.once.Do(func() { p.fill(l.instances, q.usable) })
	} else {
		p = &picks{}
		p.fill(l.instances, func(i *Instance) bool { return q.usable(i) && q.match(i) })
	}
	if n := p.pick(rand.Float64()); n >= 0 {
		return l.instances[n].Clone(), nil
	}
	return Instance{}, fmt.Errorf("%w: %s", ErrNoInstances, id)
}

// Snapshot is the list of Instances, with what it is worth: where it is from and how
// old it is. It is the caller's own copy, like all that Instances returns;
// [Client.View] makes none.
func (c *Client) Snapshot(ctx context.Context, service string, opts ...QueryOption) (Snapshot, error) {
	q := queryOf(opts)
	l, id, err := c.read(ctx, service, &q)
	if err != nil {
		return Snapshot{}, err
	}
	s := c.snapshot(id, l)
	s.Instances = copies(l.instances, q.keepsAll(), q.match)
	return s, nil
}

// View calls f once, before it returns, with the list of Snapshot as the client
// itself has it, for those to whom even a copy is too dear. Neither the instances
// nor their metadata may be changed; they may be kept.
func (c *Client) View(ctx context.Context, service string, f func(Snapshot), opts ...QueryOption) error {
	q := queryOf(opts)
	l, id, err := c.read(ctx, service, &q)
	if err != nil {
		return err
	}
	s := c.snapshot(id, l)
	if s.Instances = l.instances; !q.keepsAll() {
		s.Instances = filtered(l.instances, &q)
	}
	f(s)
	return nil
}

// copies returns copies of what is kept, never nil. It changes nothing that is
// shared (Q-6a, G-17).
func copies(list []Instance, all bool, keep func(*Instance) bool) []Instance {
	n := len(list)
	if !all {
		n = 0
		for i := range list {
			if keep(&list[i]) {
				n++
			}
		}
	}
	out := make([]Instance, 0, n)
	for i := range list {
		if all || len(out) < n && keep(&list[i]) {
			out = append(out, list[i].Clone())
		}
	}
	return out
}

func filtered(list []Instance, q *query) []Instance {
	if q.keepsAll() {
		return list
	}
	var out []Instance
	for i := range list {
		if q.match(&list[i]) {
			out = append(out, list[i])
		}
	}
	return out
}

// snapshot has all but the instances.
func (c *Client) snapshot(id ServiceID, l *list) Snapshot {
	s := Snapshot{Service: id, Source: l.from, AsOf: l.asOf, Protected: l.protected}
	if l.from == FromServer && l.epoch != 0 {
		e := c.services.get(id)
		if e == nil || e.subscribed.Load() != c.link.epoch() || !e.wanted.Load() {
			s.Source = FromStale
		}
	}
	return s
}

// read finds the list for a query, in this order: that of an operator, the
// subscribed one, that of a server asked now.
func (c *Client) read(ctx context.Context, service string, q *query) (*list, ServiceID, error) {
	// The usual case needs no lock and no check: what is in the table is named
	// as it should be.
	id := ServiceID{Group: q.group, Name: service}
	if id.Group == "" {
		id.Group = DefaultGroup
	}
	if e := c.services.get(id); e != nil && !q.noSubscribe && len(q.clusters) == 0 && c.over.Load() == nil && c.ctx.Err() == nil {
		if l := e.list.Load(); l != nil && e.wanted.Load() {
			if !e.used.Load() {
				e.used.Store(true)
			}
			return l, id, nil
		}
	}

	if err := c.open(); err != nil {
		return nil, id, err
	}
	id, err := identify(service, q.group)
	if err != nil {
		return nil, id, err
	}
	if err := q.check(); err != nil {
		return nil, id, err
	}
	if l := c.overriding(id, q); l != nil {
		return l, id, nil
	}
	ctx, cancel := bound(ctx, c.cfg.RequestTimeout)
	defer cancel()
	if q.noSubscribe {
		l, err := c.queryOnce(ctx, id, q)
		return l, id, err
	}
	l, err := c.subscribed(ctx, id, q)
	return l, id, err
}

// overriding is the list of an operator, if it has an instance in the clusters
// that are asked for.
func (c *Client) overriding(id ServiceID, q *query) *list {
	over := c.over.Load()
	if over == nil {
		return nil
	}
	l := (*over)[id]
	if l == nil || len(q.clusters) > 0 && !slices.ContainsFunc(l.instances, func(i Instance) bool { return slices.Contains(q.clusters, i.Cluster) }) {
		return nil
	}
	return l
}

// subscribed is the list of a service that is subscribed to, or will be now.
func (c *Client) subscribed(ctx context.Context, id ServiceID, q *query) (*list, error) {
	e := c.entry(id)
	e.used.Store(true)
	l := e.list.Load()
	if l != nil && (e.wanted.Load() || q.stale && q.fresh(l)) {
		e.want()
		return l, nil
	}

	// Nothing is known, or only a list from before: ask.
	var last error
	for {
		a := e.subscription()
		if a == nil {
			if l := e.list.Load(); l != nil {
				return l, nil
			}
			continue
		}
		done, err := c.waitFor(ctx, a, l != nil)
		if l := e.list.Load(); l != nil {
			if err != nil {
				c.log.Warn("no server confirms a list; the one from before is used", "service", id, "error", err)
			}
			return l, nil
		}
		if err != nil {
			last = err
		}
		switch {
		case c.isOver(ctx):
			return nil, c.gaveUp(ctx, last)
		case done && err != nil && !repeatable(err):
			return nil, err
		case done && err == nil:
			return nil, fmt.Errorf("%w: the server has no list of %s", ErrNotConnected, id)
		case done: // with an error that may pass
			pause(ctx, jitter(100*time.Millisecond), nil)
		}
	}
}

// waitFor waits for an attempt, or until there is no connection to make one on
// and hasOld something else to take.
func (c *Client) waitFor(ctx context.Context, a *attempt, hasOld bool) (done bool, err error) {
	var enough <-chan time.Time
	if hasOld {
		t := time.NewTimer(diskWait)
		defer t.Stop()
		enough = t.C
	}
	for {
		failing, changed := c.link.failing()
		if hasOld && failing {
			return false, ErrNotConnected
		}
		if !hasOld {
			changed = nil
		}
		select {
		case <-a.done:
			return true, a.err
		case <-enough:
			return false, ErrNotConnected
		case <-changed:
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-c.ctx.Done():
			return false, ErrClosed
		}
	}
}

// fresh reports whether a list is as young as StaleOK asks.
func (q *query) fresh(l *list) bool { return q.maxAge <= 0 || time.Since(l.asOf) <= q.maxAge }

// queryOnce asks a server; nothing of it is kept.
func (c *Client) queryOnce(ctx context.Context, id ServiceID, q *query) (*list, error) {
	clusters := slices.Compact(slices.Sorted(slices.Values(q.clusters)))
	answer, _, err := c.request(ctx, nacos.TypeServiceQueryRequest, nacos.ServiceQueryRequest{
		ServiceRef: nacos.ServiceRef{Namespace: c.cfg.Namespace, GroupName: id.Group, ServiceName: id.Name}, Cluster: strings.Join(clusters, ",")})
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", id, err)
	}
	info, err := decodeInfo(answer.Body)
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", id, err)
	}
	l := &list{picks: &picks{}, asOf: time.Now(), from: FromServer, protected: info.Protected}
	if info.Hosts != nil {
		l.instances = info.instances()
	}
	return l, nil
}

// picks chooses among instances by weight.
type picks struct {
	once sync.Once
	// constant once filled
	index []int     // of the candidates
	sums  []float64 // of the weights up to and with each
}

// maxWeight stands for an infinite weight, and bounds the others so that a sum is
// finite.
const maxWeight = 10000

func (p *picks) fill(list []Instance, keep func(*Instance) bool) {
	sum := 0.0
	for i := range list {
		if keep(&list[i]) {
			sum += min(list[i].Weight, maxWeight)
			p.index = append(p.index, i)
			p.sums = append(p.sums, sum)
		}
	}
}

// pick is the position of the chosen instance for r in [0, 1), -1 if there is
// none.
func (p *picks) pick(r float64) int {
	n := len(p.sums)
	if n == 0 {
		return -1
	}
	r *= p.sums[n-1]
	i := sort.Search(n, func(i int) bool { return p.sums[i] > r })
	return p.index[min(i, n-1)]
}

// Services are the names of a group's services, a page of them from 1 on, and how
// many there are in all. A page has up to size names, or fewer if the server has a
// limit of its own. The errors are those of Instances.
func (c *Client) Services(ctx context.Context, page, size int, opts ...ServiceOption) (names []string, total int, err error) {
	if err := c.open(); err != nil {
		return nil, 0, err
	}
	o := serviceOf(opts)
	group := o.group
	if group == "" {
		group = DefaultGroup
	}
	if page < 1 || size < 1 {
		return nil, 0, fmt.Errorf("%w: page %d of size %d", ErrInvalid, page, size)
	}
	if err := nacos.CheckService("", "", group); err != nil {
		return nil, 0, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	ctx, cancel := bound(ctx, c.cfg.RequestTimeout)
	defer cancel()
	answer, _, err := c.request(ctx, nacos.TypeServiceListRequest, nacos.ServiceListRequest{
		ServiceRef: nacos.ServiceRef{Namespace: c.cfg.Namespace, GroupName: group}, PageNo: page, PageSize: size})
	if err != nil {
		return nil, 0, fmt.Errorf("services of %s: %w", group, err)
	}
	var list struct {
		Count int      `json:"count"`
		Names []string `json:"serviceNames"`
	}
	if err := json.Unmarshal(answer.Body, &list); err != nil {
		return nil, 0, fmt.Errorf("services of %s: %w", group, err)
	}
	for i, name := range list.Names { // some servers put the group before it
		list.Names[i] = strings.TrimPrefix(name, group+"@@")
	}
	return list.Names, list.Count, nil
}
