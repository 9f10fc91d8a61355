package registry

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// A Kind says how a client keeps its publications alive.
type Kind uint8

const (
	// Connection: an SDK on gRPC; its connection is the lease.
	Connection Kind = iota
	// Beat: an HTTP client, known by the ip:port of its instance.
	Beat
)

// A Client publishes instances. Its methods may be called from any goroutine;
// those of one client run one after the other.
type Client struct {
	registry *Registry
	life     *life
	id       string
	kind     Kind
	redo     atomic.Int64

	mu       sync.Mutex // of a client of another life: unused, see life.mu
	closed   bool
	services map[ServiceKey]int // in which it has a publication: how many instances; of an own client only
	total    int                // of those; of a client of another life: how many publications
}

// Open makes a client of the own life that publishes nothing yet. The id
// appears in snapshots and history; it should be unique among the clients of
// the cluster, except that an HTTP client that moves to another node keeps its
// own.
func (r *Registry) Open(id string, kind Kind) *Client {
	return &Client{registry: r, life: r.own, id: id, kind: kind, services: map[ServiceKey]int{}}
}

// Redo says how many seconds the client may take to register again after it
// has lost its connection, where that is known; it travels with what the
// client publishes, so it is to be called before the first registration.
func (c *Client) Redo(seconds int) { c.redo.Store(int64(seconds)) }

// RedoOf says the same of what the client publishes for one service, whenever
// that changes: an HTTP client sends beats of each by itself.
func (c *Client) RedoOf(key ServiceKey, seconds int) {
	r := c.registry
	sh := r.shard(key)
	sh.mu.Lock()
	s := sh.services[key]
	if s == nil || s.publications[c] == nil || s.publications[c].redo == seconds {
		sh.mu.Unlock()
		return
	}
	p := s.publications[c]
	p.redo = seconds
	now := r.opts.Clock.Now()
	p.wrote(p.batch, p.moving, now, p.cause)
	n := news{changed: r.showLocked(sh, s, p.touchAll(nil, 0), now, r.ownWhy(p.cause, c.id, now)), wrote: c}
	sh.mu.Unlock()
	r.tell(key, n)
}

// ID is the id given to Open.
func (c *Client) ID() string { return c.id }

// Services returns the services in which the client has a publication, in no
// order.
func (c *Client) Services() []ServiceKey {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.services))
}

// ErrTooMany says that a client has reached its number of instances.
var ErrTooMany = errors.New("too many instances of one client")

// ErrClientClosed says that a client has gone meanwhile (semantics D13).
var ErrClientClosed = errors.New("client is closed")

// Register publishes the instances as the client's one publication of the
// service; what it published there before is replaced (semantics D8, D14,
// D16). A batch may be empty and still counts as a publication. An instance
// that stands in the list twice counts once, the later one wins.
//
// Registering again what is already registered and visible changes nothing:
// no new snapshot, no call of Changed. Otherwise the registration clock of
// what is new or different becomes now; the rest keeps its own.
//
// In a service that is persistent the client gets [ErrPersistentService]
// (semantics D12), with more than [Options.MaxPerClient] instances in all
// services together [ErrTooMany]; nothing changes then. If all of them are
// evicted it gets [ErrEvicted], each time; unlike the others that does not say
// that nothing was registered.
//
// The registry keeps the instances; the caller must not change them.
func (c *Client) Register(key ServiceKey, instances []*Instance, batch bool) error {
	return c.register(key, instances, batch, restamp{})
}

// Adopt is Register of one instance with its registration clock given: one
// step above that of the copy in another life that it takes over, so that the
// removal of that copy does not hide it (design §3, HTTP clients whose owner
// changes); 0: now. Unlike an identical registration it changes the clock of
// an instance that is shown as this client's already; it never sets one back.
// An evicted one is adopted without a word: its client has not asked for it.
func (c *Client) Adopt(key ServiceKey, i *Instance, since Stamp) error {
	c.registry.opts.Clock.Adopt(since) // what is registered later is newer
	return c.register(key, []*Instance{i}, false, restamp{true, since})
}

// A restamp is Adopt's registration clock. The zero one is of a usual
// registration.
type restamp struct {
	given bool
	since Stamp // 0: now
}

// outdates reports whether an instance registered at was gets a new clock
// although nothing else changes.
func (a restamp) outdates(was Stamp) bool { return a.given && (a.since == 0 || a.since > was) }

// clock is what the instance gets in place of was (0: it is new).
func (a restamp) clock(was, now Stamp) Stamp {
	if a.since == 0 {
		return now
	}
	return max(a.since, was)
}

func (c *Client) register(key ServiceKey, instances []*Instance, batch bool, at restamp) error {
	r := c.registry
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return ErrClientClosed
	}
	// An empty batch counts as one, or there could be any number of them.
	n, had := max(1, len(instances)), c.services[key]
	if limit := r.opts.MaxPerClient; limit > 0 && c.total-had+n > limit {
		c.mu.Unlock()
		return ErrTooMany
	}
	sh := r.shard(key)
	sh.mu.Lock()
	s := r.serviceLocked(sh, key, 1)
	if s.refuses { // then it was there before
		sh.mu.Unlock()
		c.mu.Unlock()
		return ErrPersistentService
	}
	if n != had {
		c.total += n - had
		c.services[key] = n
	}
	first := !s.published()
	tell := r.registerLocked(sh, s, c, instances, batch, at)
	tell.presence = first
	var err error
	if len(s.overrides) > 0 && !at.given {
		err = r.refuseLocked(sh, s, c, instances, &tell)
	}
	sh.mu.Unlock()
	c.mu.Unlock()
	r.tell(key, tell)
	return err
}

func (r *Registry) registerLocked(sh *shard, s *service, c *Client, instances []*Instance, batch bool, at restamp) news {
	pub := s.publications[c]
	first := pub == nil
	if first {
		pub = &publication{client: c, redo: int(c.redo.Load())}
		r.publishLocked(sh, s, pub)
	} else if len(pub.claims) == 1 && len(instances) == 1 && pub.claims[0].instance.InstanceKey == instances[0].InstanceKey {
		return r.renewLocked(sh, s, pub, instances[0], batch, at)
	}
	wanted := make(map[InstanceKey]*Instance, len(instances))
	for _, i := range instances {
		wanted[i.InstanceKey] = i
	}
	old := pub.claims
	now := r.opts.Clock.Now()
	by := r.ownWhy(CauseRegistered, c.id, now)
	claims := make([]*claim, 0, len(wanted))
	var since map[InstanceKey]Stamp // of what changed
	var touched []touch
	for _, was := range old {
		k := was.instance.InstanceKey
		is, still := wanted[k]
		switch {
		case !still:
			s.dropClaim(was, now)
			r.hideOwnLocked(sh, s.key, c, CauseRegistered, Hide{InstanceKey: k, UpTo: was.since, Made: now, Strong: s.lastBeat(c, k)})
			touched = append(touched, touch{k, 0})
		case is.equal(was.instance) && !pub.moving && !at.outdates(was.since) && s.winner(k) == was:
			claims = append(claims, was)
			delete(wanted, k)
		default: // changed, or not visible: hidden, or another client's is newer
			s.dropClaim(was, now)
			if since == nil {
				since = map[InstanceKey]Stamp{}
			}
			since[k] = was.since
		}
	}
	for _, i := range instances {
		if wanted[i.InstanceKey] != i {
			continue // a later one of the same key stands for it, or it is as it was
		}
		delete(wanted, i.InstanceKey)
		cl := &claim{pub: pub, instance: i, since: at.clock(since[i.InstanceKey], now)}
		s.addClaim(cl)
		claims = append(claims, cl)
		touched = append(touched, touch{i.InstanceKey, 0})
	}
	pub.claims = claims
	if len(touched) == 0 && !first && pub.batch == batch && !pub.moving {
		return news{}
	}
	pub.wrote(batch, false, now, CauseRegistered)
	s.touched = now
	// One picture: a reader must not see the service without either.
	return news{changed: r.showLocked(sh, s, touched, now, by), wrote: c}
}

// renewLocked is registerLocked for the usual case that a client says
// something else, or the same, about the one instance that it has registered:
// what it published is changed where it stands.
func (r *Registry) renewLocked(sh *shard, s *service, pub *publication, is *Instance, batch bool, at restamp) news {
	was := pub.claims[0]
	claims := s.claims[is.InstanceKey]
	if is.equal(was.instance) && !pub.moving && !at.outdates(was.since) && pick(claims, s.hides[is.InstanceKey]) == was {
		if pub.batch == batch {
			return news{}
		}
		pub.wrote(batch, false, r.opts.Clock.Now(), CauseRegistered)
		return news{wrote: pub.client}
	}
	now := r.opts.Clock.Now()
	cl := &claim{pub: pub, instance: is, since: at.clock(was.since, now)}
	pub.claims[0] = cl
	claims[slices.Index(claims, was)] = cl
	pub.wrote(batch, false, now, CauseRegistered)
	s.touched = now
	by := r.ownWhy(CauseRegistered, pub.client.id, now)
	return news{changed: r.showLocked(sh, s, []touch{{is.InstanceKey, 0}}, now, by), wrote: pub.client}
}

// Deregister withdraws what the client publishes for the service. Of a batch
// of several only the member with the ip and port of named goes, and nothing
// if there is none (cases C40); any other publication goes whatever named
// says (semantics D17). What went is not shown again from an older claim of
// the same kind of client, on any node, and an operator's edit of it ends,
// unless it is sticky.
//
// An instance that the client has not registered here is not shown again on
// behalf of a node that is gone: so a client that came here and says goodbye
// before it has registered again goes at once (failover F22). Else
// deregistering what is not there succeeds and changes nothing (D18).
func (c *Client) Deregister(key ServiceKey, named InstanceKey) {
	c.withdraw(key, CauseDeregistered, named, func(p *publication) []*claim {
		if !p.batch || len(p.claims) < 2 {
			return p.claims
		}
		var members []*claim
		for _, cl := range p.claims {
			if i := cl.instance; i.IP == named.IP && i.Port == named.Port {
				members = append(members, cl)
			}
		}
		if len(members) > 1 { // the same address in several clusters
			members = slices.DeleteFunc(members, func(cl *claim) bool { return cl.instance.Cluster != named.Cluster })
		}
		return members
	})
}

// Remove withdraws the client's whole publication of a service, for a reason
// other than its own wish.
func (c *Client) Remove(key ServiceKey, cause Cause) {
	c.withdraw(key, cause, InstanceKey{}, func(p *publication) []*claim { return p.claims })
}

func (c *Client) withdraw(key ServiceKey, cause Cause, named InstanceKey, which func(*publication) []*claim) {
	c.mu.Lock()
	n := c.withdrawLocked(key, cause, named, which)
	c.mu.Unlock()
	c.registry.tell(key, n)
}

// withdrawLocked withdraws some of a publication. What is named and was not
// withdrawn is hidden (zero: nothing is named).
func (c *Client) withdrawLocked(key ServiceKey, cause Cause, named InstanceKey, which func(*publication) []*claim) news {
	r := c.registry
	sh := r.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s := sh.services[key]
	var pub *publication
	var going []*claim
	if s != nil && s.publications[c] != nil {
		pub = s.publications[c]
		going = which(pub)
	}
	now := r.opts.Clock.Now()
	by := r.ownWhy(cause, c.id, now)
	touched := make([]touch, 0, len(going)+1)
	var n news
	for _, cl := range going {
		k := cl.instance.InstanceKey
		touched = append(touched, touch{k, 0})
		s.dropClaim(cl, now)
		weak := Hide{InstanceKey: k, UpTo: cl.since, Made: now}
		strong := weak
		strong.Strong = true
		if cause == CauseDeregistered {
			s.endOverride(&n, k)
			// Who registered it after this client is another one, if it is
			// there; of HTTP clients there is only one.
			weak.UpTo = now
			if c.kind == Beat {
				strong.UpTo = now
			}
		}
		if cause == CauseDeregistered || s.lastBeat(c, k) {
			r.hideOwnLocked(sh, key, c, cause, strong)
		}
		r.hideOwnLocked(sh, key, c, cause, weak)
		if named.IP == k.IP && named.Port == k.Port {
			named = InstanceKey{}
		}
	}
	if named.IP != "" {
		if named.Cluster == "" {
			named.Cluster = DefaultCluster
		}
		touched = append(touched, touch{named, 0})
		if r.hideOwnLocked(sh, key, c, cause, Hide{InstanceKey: named, UpTo: now, Made: now, Strong: c.kind == Beat}) {
			n.wrote = c
		}
		if s != nil && s.shown(named) == nil {
			if _, was := s.snapshot.Load().Get(named); was {
				s.endOverride(&n, named)
			}
		}
	}
	if whole := pub != nil && len(going) == len(pub.claims); whole {
		r.unpublishLocked(sh, s, pub)
		r.gatherLocked(sh, key, c, cause, now)
		c.total -= c.services[key]
		delete(c.services, key)
		s.touched = now
		n.wrote, n.presence = c, !s.published()
	} else if len(going) > 0 {
		pub.claims = slices.DeleteFunc(pub.claims, func(cl *claim) bool { return slices.Contains(going, cl) })
		c.total -= c.services[key] - len(pub.claims)
		c.services[key] = len(pub.claims)
		pub.wrote(pub.batch, pub.moving, now, cause)
		s.touched = now
		n.wrote = c
	}
	if len(touched) > 0 && s != nil {
		n.changed = r.showLocked(sh, s, touched, now, by)
	}
	return n
}

// Move says that the client's connection is gone and that the client is
// expected on another node: for what it publishes the rules of orphans hold,
// here and on all other nodes (design §6). Registration clocks stay. Whoever
// says so closes the client later; what it registers again here does not move
// any more.
func (c *Client) Move() {
	r := c.registry
	c.mu.Lock()
	keys := slices.Collect(maps.Keys(c.services))
	all := make([]news, len(keys))
	for i, key := range keys {
		sh := r.shard(key)
		sh.mu.Lock()
		s := sh.services[key]
		if pub := s.publications[c]; !pub.moving {
			now := r.opts.Clock.Now()
			by := r.ownWhy(CauseMoving, c.id, now)
			pub.wrote(pub.batch, true, now, CauseMoving)
			all[i] = news{changed: r.showLocked(sh, s, pub.touchAll(nil, 0), now, by), wrote: c}
		}
		sh.mu.Unlock()
	}
	c.mu.Unlock()
	for i, n := range all {
		r.tell(keys[i], n)
	}
}

// SetHealthy changes the health of everything the client publishes for a
// service, without touching its registration clock.
func (c *Client) SetHealthy(key ServiceKey, healthy bool, cause Cause) {
	r := c.registry
	sh := r.shard(key)
	sh.mu.Lock()
	s := sh.services[key]
	if s == nil || s.publications[c] == nil {
		sh.mu.Unlock()
		return
	}
	pub := s.publications[c]
	now := r.opts.Clock.Now()
	by := r.ownWhy(cause, c.id, now)
	var touched []touch
	for _, cl := range pub.claims {
		if cl.instance.Healthy != healthy {
			i := *cl.instance
			i.Healthy = healthy
			cl.instance = &i
			touched = append(touched, touch{i.InstanceKey, 0})
		}
	}
	s.touched = now
	var n news
	if len(touched) > 0 {
		pub.wrote(pub.batch, pub.moving, now, cause)
		n = news{changed: r.showLocked(sh, s, touched, now, by), wrote: c}
	}
	sh.mu.Unlock()
	r.tell(key, n)
}

// Published returns what the client publishes for a service and whether it
// publishes anything, an empty batch included.
func (c *Client) Published(key ServiceKey) ([]*Instance, bool) {
	sh := c.registry.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s := sh.services[key]
	if s == nil || s.publications[c] == nil {
		return nil, false
	}
	var out []*Instance
	for _, cl := range s.publications[c].claims {
		out = append(out, cl.instance)
	}
	return out, true
}

// Close withdraws everything the client publishes; later calls of Register
// fail. Closing twice is harmless.
func (c *Client) Close(cause Cause) {
	all := map[ServiceKey]news{}
	c.mu.Lock()
	c.closed = true
	for _, key := range slices.Collect(maps.Keys(c.services)) {
		all[key] = c.withdrawLocked(key, cause, InstanceKey{}, func(p *publication) []*claim { return p.claims })
	}
	c.mu.Unlock()
	for key, n := range all {
		c.registry.tell(key, n)
	}
}
