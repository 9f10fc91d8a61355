package registry

import (
	"errors"
	"maps"
	"slices"
	"sync"
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
	id       string
	kind     Kind

	mu       sync.Mutex
	closed   bool
	services map[ServiceKey]int // in which it has a publication: how many instances
	total    int                // of those
}

// Open makes a client that publishes nothing yet. The id appears in snapshots
// and history; it should be unique among the clients of the cluster.
func (r *Registry) Open(id string, kind Kind) *Client {
	return &Client{registry: r, id: id, kind: kind, services: map[ServiceKey]int{}}
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
// With more than [Options.MaxPerClient] instances in all services together the
// client gets [ErrTooMany], and nothing changes.
//
// The registry keeps the instances; the caller must not change them.
func (c *Client) Register(key ServiceKey, instances []*Instance, batch bool) error {
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
	if n != had {
		c.total += n - had
		c.services[key] = n
	}
	sh := r.shard(key)
	sh.mu.Lock()
	s := r.serviceLocked(sh, key)
	first := len(s.publications) == 0
	tell := news{changed: r.registerLocked(sh, s, c, instances, batch), presence: first}
	sh.mu.Unlock()
	c.mu.Unlock()
	r.tell(key, tell)
	return nil
}

func (r *Registry) registerLocked(sh *shard, s *service, c *Client, instances []*Instance, batch bool) bool {
	old := s.publications[c]
	if old == nil {
		old = &publication{}
		r.publications.Add(1)
	} else if len(old.claims) == 1 && len(instances) == 1 && old.claims[0].instance.InstanceKey == instances[0].InstanceKey {
		return r.renewLocked(sh, s, c, old, instances[0], batch)
	}
	wanted := make(map[InstanceKey]*Instance, len(instances))
	for _, i := range instances {
		wanted[i.InstanceKey] = i
	}
	pub := &publication{batch: batch, claims: make([]*claim, 0, len(wanted))}
	now := r.opts.Clock.Now()
	var came, went []InstanceKey
	for _, was := range old.claims {
		k := was.instance.InstanceKey
		is, still := wanted[k]
		switch {
		case !still:
			s.dropClaim(was, now)
			went = append(went, k)
		case is.equal(was.instance) && s.winner(k) == was:
			pub.claims = append(pub.claims, was)
			delete(wanted, k)
		default: // changed, or not visible: hidden, or another client's is newer
			s.dropClaim(was, now)
		}
	}
	for _, i := range instances {
		if wanted[i.InstanceKey] != i {
			continue // a later one of the same key stands for it, or it is as it was
		}
		cl := &claim{client: c, instance: i, since: now}
		s.addClaim(cl)
		pub.claims = append(pub.claims, cl)
		came = append(came, i.InstanceKey)
	}
	s.publications[c] = pub
	if len(came) == 0 && len(went) == 0 {
		return false
	}
	s.touched = now
	// One picture: a reader must not see the service without either.
	return r.showLocked(sh, s, append(went, came...), now, CauseRegistered, c.id)
}

// renewLocked is registerLocked for the usual case that a client says
// something else, or the same, about the one instance that it has registered:
// what it published is changed where it stands.
func (r *Registry) renewLocked(sh *shard, s *service, c *Client, pub *publication, is *Instance, batch bool) bool {
	was := pub.claims[0]
	pub.batch = batch
	claims := s.claims[is.InstanceKey]
	if is.equal(was.instance) && winner(claims) == was {
		return false
	}
	now := r.opts.Clock.Now()
	cl := &claim{client: c, instance: is, since: now}
	pub.claims[0] = cl
	claims[slices.Index(claims, was)] = cl
	s.touched = now
	return r.showLocked(sh, s, []InstanceKey{is.InstanceKey}, now, CauseRegistered, c.id)
}

// Deregister withdraws what the client publishes for the service. Of a batch
// of several only the member with the ip and port of named goes, and nothing
// if there is none (cases C40); any other publication goes whatever named
// says (semantics D17). What went is not shown again from an older claim of
// the same kind of client, and an operator's override of it ends.
// Deregistering what is not there succeeds and changes nothing (D18).
func (c *Client) Deregister(key ServiceKey, named InstanceKey) {
	c.withdraw(key, CauseDeregistered, func(p *publication) []*claim {
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
	c.withdraw(key, cause, func(p *publication) []*claim { return p.claims })
}

func (c *Client) withdraw(key ServiceKey, cause Cause, which func(*publication) []*claim) {
	c.mu.Lock()
	n := c.withdrawLocked(key, cause, which)
	c.mu.Unlock()
	c.registry.tell(key, n)
}

func (c *Client) withdrawLocked(key ServiceKey, cause Cause, which func(*publication) []*claim) news {
	r := c.registry
	sh := r.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s := sh.services[key]
	if s == nil || s.publications[c] == nil {
		return news{}
	}
	pub := s.publications[c]
	going := which(pub)
	if len(going) == 0 && len(pub.claims) > 0 {
		return news{}
	}
	now := r.opts.Clock.Now()
	s.touched = now
	keys := make([]InstanceKey, 0, len(going))
	for _, cl := range going {
		k := cl.instance.InstanceKey
		keys = append(keys, k)
		s.dropClaim(cl, now)
		if cause == CauseDeregistered {
			delete(s.overrides, k)
			for _, other := range s.claims[k] {
				other.hidden = other.hidden || other.client.kind == c.kind && other.since < cl.since
			}
		}
	}
	var left []*claim
	if len(going) < len(pub.claims) {
		left = slices.DeleteFunc(slices.Clone(pub.claims), func(cl *claim) bool { return slices.Contains(going, cl) })
	}
	if len(left) == 0 {
		delete(s.publications, c)
		c.total -= c.services[key]
		delete(c.services, key)
		r.publications.Add(-1)
	} else {
		c.total -= c.services[key] - len(left)
		c.services[key] = len(left)
		s.publications[c] = &publication{batch: pub.batch, claims: left}
	}
	return news{changed: r.showLocked(sh, s, keys, now, cause, c.id), presence: len(s.publications) == 0}
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
	var keys []InstanceKey
	for _, cl := range s.publications[c].claims {
		if cl.instance.Healthy != healthy {
			i := *cl.instance
			i.Healthy = healthy
			cl.instance = &i
			keys = append(keys, i.InstanceKey)
		}
	}
	now := r.opts.Clock.Now()
	s.touched = now
	changed := r.showLocked(sh, s, keys, now, cause, c.id)
	sh.mu.Unlock()
	if changed {
		r.changed(key)
	}
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
		all[key] = c.withdrawLocked(key, cause, func(p *publication) []*claim { return p.claims })
	}
	c.mu.Unlock()
	for key, n := range all {
		c.registry.tell(key, n)
	}
}
