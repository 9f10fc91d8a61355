package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-registry/starling/pkg/client/wire"
	"github.com/starling-registry/starling/pkg/nacos"
)

// A list is what a service consists of. It is never changed: readers share it.
type list struct {
	instances   []Instance // see sortInstances; of an equal list before it, the same
	picks       *picks     // of instances
	stamp       int64      // lastRefTime: comparable only within one epoch (C-4)
	epoch       uint64     // of the session that told it; 0: none did
	asOf        time.Time
	from        Source // FromServer, FromDisk or FromFailover; staleness is found by the reader
	protected   bool
	cacheMillis int64
}

func (l *list) stored() stored {
	return stored{instances: l.instances, lastRefTime: l.stamp, cacheMillis: l.cacheMillis, protected: l.protected, asOf: l.asOf}
}

func fromFile(s stored, from Source) *list {
	return &list{instances: s.instances, picks: &picks{}, stamp: s.lastRefTime, asOf: s.asOf, from: from, protected: s.protected, cacheMillis: s.cacheMillis}
}

// A svc is all that a client has to do with one service: the list, the
// subscription that keeps it fresh, and who watches.
type svc struct {
	id  ServiceID
	c   *Client
	sub task // the subscription

	// what readers need, without a lock
	list       atomic.Pointer[list] // nil: nothing is known
	wanted     atomic.Bool          // to be subscribed; changed under mu
	subscribed atomic.Uint64        // epoch in which a server has acknowledged it; changed under mu
	used       atomic.Bool          // read since the keeper looked

	mu       sync.Mutex
	watchers []*Watcher
	attempt  *attempt  // the next one to end, if somebody waits for it
	heard    time.Time // last push or reply
	lastUsed time.Time // see used
	pollIn   time.Duration
	polls    int       // have failed since heard
	pollAt   time.Time // if polls > 0
	polling  bool
	refused  error // why the server does not let us subscribe, told to watchers once
}

// An attempt to subscribe: several readers may wait for one.
type attempt struct {
	done chan struct{}
	err  error // constant once done is closed
}

// table finds the entry of a service. Readers of what has been there for a while
// take no lock.
type table struct {
	old atomic.Pointer[map[ServiceID]*svc] // never changed

	mu     sync.Mutex
	fresh  map[ServiceID]*svc // not in old
	misses int                // found in fresh since it was merged
}

func (t *table) get(id ServiceID) *svc {
	old := t.old.Load()
	if old != nil {
		if e := (*old)[id]; e != nil {
			return e
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.old.Load(); now != old { // merged meanwhile
		return (*now)[id]
	}
	e := t.fresh[id]
	if e != nil {
		// Copying the whole is paid for by as many reads that took the lock.
		if t.misses++; t.misses > 16+t.lenLocked() {
			t.mergeLocked()
		}
	}
	return e
}

func (t *table) lenLocked() int {
	n := len(t.fresh)
	if old := t.old.Load(); old != nil {
		n += len(*old)
	}
	return n
}

func (t *table) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lenLocked()
}

func (t *table) mergeLocked() {
	all := make(map[ServiceID]*svc, t.lenLocked())
	if old := t.old.Load(); old != nil {
		maps.Copy(all, *old)
	}
	maps.Copy(all, t.fresh)
	t.fresh, t.misses = nil, 0
	t.old.Store(&all)
}

// add finds the entry or makes it.
func (t *table) add(id ServiceID, make func() *svc) *svc {
	if e := t.get(id); e != nil {
		return e
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.old.Load(); old != nil {
		if e := (*old)[id]; e != nil {
			return e
		}
	}
	e := t.fresh[id]
	if e == nil {
		e = make()
		if t.fresh == nil {
			t.fresh = map[ServiceID]*svc{}
		}
		t.fresh[id] = e
	}
	return e
}

// each is called under no lock, and may miss what is added meanwhile.
func (t *table) each(f func(*svc)) {
	t.mu.Lock()
	if len(t.fresh) > 0 {
		t.mergeLocked()
	}
	old := t.old.Load()
	t.mu.Unlock()
	if old != nil {
		for _, e := range *old {
			f(e)
		}
	}
}

func (c *Client) entry(id ServiceID) *svc {
	return c.services.add(id, func() *svc {
		e := &svc{id: id, c: c, pollIn: jitter(c.cfg.PollInterval)}
		e.sub = task{late: true, needs: e.lacks, do: e.subscribe}
		return e
	})
}

// load is given what an earlier process has kept. Such lists are not subscribed:
// the first read does that.
func (c *Client) load(lists map[ServiceID]stored) {
	for id, s := range lists {
		c.entry(id).list.Store(fromFile(s, FromDisk))
	}
}

// setFailover is called on the goroutine of the failover (F-4). What a watcher is
// told follows from the list that is current for it now and before.
func (c *Client) setFailover(on bool, lists map[ServiceID]stored) {
	before := c.over.Load()
	var now *map[ServiceID]*list
	if on {
		m := make(map[ServiceID]*list, len(lists))
		for id, s := range lists {
			if len(s.instances) > 0 {
				m[id] = fromFile(s, FromFailover)
			}
		}
		now = &m
	}
	c.over.Store(now)
	touched := map[ServiceID]bool{}
	for _, m := range []*map[ServiceID]*list{before, now} {
		if m != nil {
			for id := range *m {
				touched[id] = true
			}
		}
	}
	for id := range touched {
		if e := c.services.get(id); e != nil {
			e.tell()
		}
	}
}

// want makes the service subscribed from now on.
func (e *svc) want() {
	e.mu.Lock()
	was := e.wanted.Swap(true)
	e.mu.Unlock()
	if !was {
		e.c.work.mark(&e.sub)
	}
}

// subscription is an attempt that ends when the server has answered next, or nil
// if the service is subscribed to by now.
func (e *svc) subscription() *attempt {
	e.mu.Lock()
	if at := e.subscribed.Load(); at != 0 && at == e.c.link.epoch() && e.wanted.Load() && e.attempt == nil && e.list.Load() != nil {
		e.mu.Unlock()
		return nil
	}
	a := e.attempt
	if a == nil {
		a = &attempt{done: make(chan struct{})}
		e.attempt = a
	}
	e.wanted.Store(true)
	e.mu.Unlock()
	e.c.work.mark(&e.sub)
	return a
}

// endAttempt tells those who wait, and the watchers that have seen nothing yet.
func (e *svc) endAttempt(err error) {
	e.mu.Lock()
	a := e.attempt
	e.attempt = nil
	if final := err != nil && !repeatable(err); final {
		e.refused = err
	} else if err == nil {
		e.refused = nil
	}
	e.mu.Unlock()
	if a != nil {
		a.err = err
		close(a.done)
	}
	if err != nil {
		e.tell()
	}
}

// lacks: see task.needs.
func (e *svc) lacks(epoch uint64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	at := e.subscribed.Load()
	if e.wanted.Load() {
		return at != epoch || e.attempt != nil
	}
	return at == epoch && epoch != 0
}

// subscribe brings the server's subscription to what is wanted. The reply is a
// list like any other, apart from that of an unsubscription (S000-21).
func (e *svc) subscribe(ctx context.Context, s *session) error {
	e.mu.Lock()
	want := e.wanted.Load()
	e.mu.Unlock()
	raw, err := json.Marshal(nacos.SubscribeServiceRequest{ServiceRef: e.ref(), Subscribe: want, Clusters: new(string)})
	if err != nil {
		return err
	}
	answer, err := e.c.ask(ctx, s, nacos.TypeSubscribeServiceRequest, raw)
	var info *serviceInfo
	if err == nil && want {
		info, err = decodeInfo(answer.Body)
	}
	if err != nil {
		// Unknown if it has arrived: it is still to be done.
		if want {
			e.endAttempt(err)
			e.c.log.Warn("cannot subscribe", "service", e.id, "server", s.server, "error", err)
		}
		return fmt.Errorf("subscribe to %s: %w", e.id, err)
	}
	e.mu.Lock()
	if want && e.wanted.Load() {
		e.subscribed.Store(max(e.subscribed.Load(), s.epoch))
	} else if !want {
		e.subscribed.Store(0)
	}
	e.mu.Unlock()
	if want {
		e.apply(info, s.epoch)
		e.endAttempt(nil)
		e.tell() // also of an equal list: it may be the first that a server confirms
		e.c.keeper.raise()
	}
	return nil
}

func (e *svc) ref() nacos.ServiceRef {
	return nacos.ServiceRef{Namespace: e.c.cfg.Namespace, GroupName: e.id.Group, ServiceName: e.id.Name}
}

// serviceInfo is a list as servers send it.
type serviceInfo struct {
	Name        string  `json:"name"`
	GroupName   string  `json:"groupName"`
	Hosts       *[]host `json:"hosts"`
	LastRefTime int64   `json:"lastRefTime"`
	CacheMillis int64   `json:"cacheMillis"`
	AllIPs      bool    `json:"allIPs"` // matches both spellings
	Protected   bool    `json:"reachProtectionThreshold"`
}

type host struct {
	InstanceID  string         `json:"instanceId"`
	IP          string         `json:"ip"`
	Port        int            `json:"port"`
	Weight      float64        `json:"weight"`
	Healthy     bool           `json:"healthy"`
	Enabled     bool           `json:"enabled"`
	Ephemeral   bool           `json:"ephemeral"`
	ClusterName string         `json:"clusterName"`
	Metadata    nacos.Metadata `json:"metadata"`
}

func (h *host) UnmarshalJSON(b []byte) error {
	type plain host
	p := plain{Weight: 1, Healthy: true, Enabled: true, Ephemeral: true} // as of the protocol, where they are missing
	if err := json.Unmarshal(b, &p); err != nil {
		return err
	}
	*h = host(p)
	return nil
}

var errNoInfo = errors.New("the answer has no list")

// decodeInfo reads the field serviceInfo of an answer or a push.
func decodeInfo(body []byte) (*serviceInfo, error) {
	var m struct {
		Info *serviceInfo `json:"serviceInfo"`
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return nil, fmt.Errorf("list of a service: %w", err)
	}
	if m.Info == nil {
		return nil, errNoInfo
	}
	return m.Info, nil
}

// service is whose list it is; both spellings of the name are known (C-1).
func (i *serviceInfo) service() (ServiceID, bool) {
	group, name := i.GroupName, i.Name
	if g, n, ok := strings.Cut(name, "@@"); ok && g != "" && (group == "" || group == g) {
		group, name = g, n
	}
	if group == "" {
		group = DefaultGroup
	}
	return ServiceID{group, name}, name != ""
}

func (i *serviceInfo) instances() []Instance {
	out := make([]Instance, len(*i.Hosts))
	for n := range *i.Hosts {
		h := &(*i.Hosts)[n]
		cluster := h.ClusterName
		if cluster == "" || cluster == DefaultCluster {
			cluster = DefaultCluster
		}
		meta := map[string]string(h.Metadata)
		if meta == nil {
			meta = map[string]string{}
		}
		out[n] = Instance{ID: h.InstanceID, IP: h.IP, Port: h.Port, Cluster: cluster, Weight: h.Weight,
			Healthy: h.Healthy, Enabled: h.Enabled, Ephemeral: h.Ephemeral, Metadata: meta}
	}
	return sortInstances(out)
}

// apply takes a list that a session has told, by push, reply or poll, and reports
// whether readers see another one than before, or the first of a server.
func (e *svc) apply(info *serviceInfo, epoch uint64) (changed bool) {
	if info.Hosts == nil {
		return false // C-2
	}
	instances := info.instances()
	next := &list{instances: instances, picks: &picks{}, stamp: info.LastRefTime, epoch: epoch, asOf: time.Now(), from: FromServer,
		protected: info.Protected, cacheMillis: info.CacheMillis}

	e.mu.Lock()
	if !e.wanted.Load() {
		e.mu.Unlock()
		return false // a late word about what nobody wants any more
	}
	old := e.list.Load()
	if old != nil && (epoch < old.epoch || epoch == old.epoch && next.stamp < old.stamp) {
		e.mu.Unlock()
		return false // C-4: older; stamps of two servers cannot be compared
	}
	e.heard, e.polls = time.Now(), 0
	if e.c.cfg.KeepLast && !info.AllIPs && old != nil && good(old.instances) && !good(instances) {
		e.mu.Unlock()
		e.c.log.Warn("a list without a healthy instance is not taken (KeepLast)", "service", e.id, "instances", len(instances))
		return false // C-2, C-5
	}
	differ := old == nil || !sameInstances(old.instances, instances)
	if !differ {
		next.instances, next.picks = old.instances, old.picks // C-6: only its age is new
	}
	changed = differ || old.from != FromServer || old.protected != next.protected
	e.list.Store(next)
	e.mu.Unlock()
	if differ && (old != nil || len(instances) > 0) {
		e.c.disk.put(e.id, next.stored())
	}
	return changed
}

// good reports whether a list is worth to be kept (C-2).
func good(list []Instance) bool {
	return slices.ContainsFunc(list, func(i Instance) bool { return i.Healthy && i.Weight > 0 })
}

// sameInstances compares lists in the order of sortInstances by all that an
// instance consists of (D-3).
func sameInstances(a, b []Instance) bool { return slices.EqualFunc(a, b, sameInstance) }

func sameInstance(a, b Instance) bool {
	return a.IP == b.IP && a.Port == b.Port && a.Cluster == b.Cluster && a.ID == b.ID && a.Weight == b.Weight && a.Healthy == b.Healthy &&
		a.Enabled == b.Enabled && a.Ephemeral == b.Ephemeral && maps.Equal(a.Metadata, b.Metadata)
}

// tell wakes the watchers.
func (e *svc) tell() {
	e.mu.Lock()
	watchers := slices.Clone(e.watchers)
	e.mu.Unlock()
	for _, w := range watchers {
		w.mark()
	}
}

// takePush is called on the goroutine of a session, one message after the other.
// It stores; the acknowledgement is next, and only then do watchers hear of it
// (L-1).
func (c *Client) takePush(s *session, p *nacos.Payload) error {
	switch p.Type {
	case nacos.TypeNotifySubscriberRequest:
		at := time.Now()
		info, err := decodeInfo(p.Body)
		if err != nil {
			c.log.Warn("a push cannot be read", "server", s.server, "error", err)
			return err
		}
		id, ok := info.service()
		if !ok {
			return nil // C-1
		}
		e := c.services.get(id)
		if e == nil {
			c.log.Debug("push of a service that nobody asked for", "service", id)
			return nil
		}
		done := pushed{service: id, at: at}
		if e.apply(info, s.epoch) {
			done.tell = e.tell
		}
		if info.Hosts != nil {
			done.instances = len(*info.Hosts)
		}
		s.pushed = append(s.pushed, done)
		return nil
	case nacos.TypeFuzzyWatchSyncRequest, nacos.TypeFuzzyWatchChangeNotifyRequest:
		return c.fuzzy.take(s, p)
	}
	return wire.ErrNoHandler // N-16
}

// tellPushed is called on the same goroutine after the acknowledgement.
func (c *Client) tellPushed(s *session) {
	for i, p := range s.pushed {
		if p.tell != nil {
			p.tell()
		}
		c.metrics.Push(p.service, p.instances, time.Since(p.at))
		s.pushed[i] = pushed{}
	}
	s.pushed = s.pushed[:0]
}

const (
	maxPollsPerSecond = 20
	keepAtLeast       = 500 * time.Millisecond // between two looks at all services
)

// keep asks for services of which nothing has been heard for the poll interval
// (P-1 … P-15), and unsubscribes those that are not read any more. One
// goroutine for all services.
func (c *Client) keep() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	credit, at := float64(maxPollsPerSecond), time.Now()
	for c.ctx.Err() == nil {
		now := time.Now()
		credit = min(maxPollsPerSecond, credit+now.Sub(at).Seconds()*maxPollsPerSecond)
		at = now
		s := c.link.session()
		next := time.Hour
		c.services.each(func(e *svc) {
			if !e.wanted.Load() {
				return
			}
			if e.idle(now) {
				e.drop()
				return
			}
			if c.cfg.IdleTTL > 0 {
				next = min(next, max(c.cfg.IdleTTL/4, time.Second))
			}
			if s == nil || c.cfg.PollInterval < 0 || e.subscribed.Load() != s.epoch {
				return // P-15
			}
			e.mu.Lock()
			left := e.pollDueLocked().Sub(now)
			start := left <= 0 && !e.polling && credit >= 1
			e.polling = e.polling || start
			polling := e.polling
			e.mu.Unlock()
			if start {
				credit--
				if !c.spawn(func() { e.poll(s) }) {
					return
				}
			}
			if !polling {
				next = min(next, max(left, 0))
			}
		})
		timer.Reset(max(next, keepAtLeast))
		select {
		case <-c.ctx.Done():
			return
		case <-timer.C:
		case <-c.keeper:
			// Many may be subscribed at once: one look for all of them.
			if pause(c.ctx, keepAtLeast, nil); c.ctx.Err() != nil {
				return
			}
		}
	}
}

func (e *svc) pollDueLocked() time.Time {
	if e.polls > 0 {
		return e.pollAt
	}
	return e.heard.Add(e.pollIn)
}

// poll asks once. An empty list is a list (P-8).
func (e *svc) poll(s *session) {
	raw, err := json.Marshal(nacos.ServiceQueryRequest{ServiceRef: e.ref()})
	var info *serviceInfo
	if err == nil {
		var answer *nacos.Payload
		if answer, err = e.c.ask(e.c.ctx, s, nacos.TypeServiceQueryRequest, raw); err == nil {
			info, err = decodeInfo(answer.Body)
		}
	}
	changed := err == nil && e.apply(info, s.epoch)
	e.mu.Lock()
	e.polling = false
	if err != nil {
		e.polls++
		if refused, ok := errors.AsType[*ServerError](err); ok && refused.Code == nacos.CodeServerError {
			e.polls++ // P-8
		}
		e.pollAt = time.Now().Add(jitter(min(time.Second<<min(e.polls-1, 6), time.Minute)))
	} else if e.heard = time.Now(); true {
		e.polls, e.pollIn = 0, time.Duration(float64(e.c.cfg.PollInterval)*(0.8+0.4*rand.Float64()))
	}
	e.mu.Unlock()
	if err != nil {
		e.c.log.Debug("cannot poll", "service", e.id, "error", err)
	}
	if changed {
		e.tell()
	}
	e.c.keeper.raise()
}

// idle reports whether the subscription has nobody any more.
func (e *svc) idle(now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.idleLocked(now)
}

func (e *svc) idleLocked(now time.Time) bool {
	if e.used.Swap(false) {
		e.lastUsed = now
	}
	ttl := e.c.cfg.IdleTTL
	return len(e.watchers) == 0 && e.attempt == nil && ttl > 0 && (e.lastUsed.IsZero() || now.Sub(e.lastUsed) >= ttl)
}

// drop ends the subscription unless it is wanted again meanwhile. The list stays:
// it is better than nothing if the servers are away when it is read next.
func (e *svc) drop() {
	e.mu.Lock()
	drop := e.idleLocked(time.Now()) && e.wanted.Swap(false)
	e.mu.Unlock()
	if drop {
		e.c.work.mark(&e.sub)
	}
}
