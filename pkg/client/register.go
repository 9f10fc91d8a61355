package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/starling-registry/starling/pkg/nacos"
)

// A publication is what a client publishes of one service: a server keeps one for
// each connection and service, so that several instances of one service must be
// told together.
type publication struct {
	c    *Client
	id   ServiceID
	task task

	mu      sync.Mutex
	members []*member
	version uint64 // of members; grows with each change
	// What the server has acknowledged, and when.
	acked      uint64
	ackedEpoch uint64
	batched    uint64       // epoch in which the server was told a batch
	present    bool         // a server may know of something that we have told
	last       wireInstance // told then; a deregistration names it
	failed     uint64       // version of the last attempt that was refused
	failure    error
	changed    chan struct{} // closed and replaced when an attempt has ended
}

type member struct {
	Registration
	lease *Lease
}

func sameAddress(a, b *Registration) bool { return a.IP == b.IP && a.Port == b.Port }

// A Lease is what one call of Register or RegisterSet has published. It holds as
// long as the client lives: whenever a connection comes, the server is told again.
type Lease struct {
	c          *Client
	id         ServiceID
	pub        *publication // nil if persistent
	registered chan struct{}
	once       sync.Once

	// guarded by mu
	mu         sync.Mutex
	persistent []Registration
	closed     bool
	err        error
	cancel     context.CancelFunc // of attempts of Async; nil if none
}

// Register publishes one instance and returns when a server has accepted it.
//
// Several instances of one service may be registered by one client, each with a
// lease of its own; one with the same address replaces the earlier one, whose
// lease then has no effect any more.
//
// The context is waited for, or three times the RequestTimeout if it has no
// deadline. After an error nothing is registered: what a server may have accepted
// unseen is taken back. The errors are [ErrInvalid], [ErrUnauthorized],
// [ErrNotConnected] and other [ServerError]s.
func (c *Client) Register(ctx context.Context, service string, r Registration, opts ...ServiceOption) (*Lease, error) {
	return c.RegisterSet(ctx, service, []Registration{r}, opts...)
}

// RegisterSet publishes several instances of a service as Register does one. They
// have different addresses, and are all persistent or none.
func (c *Client) RegisterSet(ctx context.Context, service string, rs []Registration, opts ...ServiceOption) (*Lease, error) {
	if err := c.open(); err != nil {
		return nil, err
	}
	o := serviceOf(opts)
	id, err := identify(service, o.group)
	if err != nil {
		return nil, err
	}
	rs = slices.Clone(rs)
	if err := checkSet(rs); err != nil {
		return nil, err
	}
	l := &Lease{c: c, id: id, registered: make(chan struct{})}
	ctx, cancel := bound(ctx, attempts*c.cfg.RequestTimeout)
	defer cancel()
	if rs[0].Persistent {
		return l.registerPersistent(ctx, rs, o.async)
	}
	l.pub = c.publication(id)
	version, _ := l.pub.put(l, rs)
	if o.async {
		return l, nil
	}
	if err := l.pub.wait(ctx, version); err != nil {
		l.withdraw()
		return nil, fmt.Errorf("register %s: %w", id, err)
	}
	return l, nil
}

// RegisterListener registers the address that a listener has, so that an instance
// is told only once it can be reached (L-15). An address that stands for all of
// the machine's becomes the one from which the server is reached. Fields of r that
// are set win over the listener's. The errors are those of Register.
func (c *Client) RegisterListener(ctx context.Context, service string, ln net.Listener, r Registration, opts ...ServiceOption) (*Lease, error) {
	addr, ok := ln.Addr().(*net.TCPAddr)
	if !ok {
		return nil, fmt.Errorf("%w: a listener of %s has no port", ErrInvalid, ln.Addr().Network())
	}
	if r.Port = cmp.Or(r.Port, addr.Port); r.Port == 0 {
		return nil, fmt.Errorf("%w: the listener has no port", ErrInvalid)
	}
	if r.IP == "" && !addr.IP.IsUnspecified() && addr.IP != nil {
		r.IP = addr.IP.String()
	}
	if r.IP == "" {
		waitCtx, cancel := bound(ctx, attempts*c.cfg.RequestTimeout)
		defer cancel()
		s, err := c.link.await(waitCtx)
		if err != nil {
			return nil, err
		}
		if r.IP = s.conn.LocalIP(); r.IP == "" {
			return nil, fmt.Errorf("%w: the listener has no address, and the connection to the server neither", ErrInvalid)
		}
	}
	return c.Register(ctx, service, r, opts...)
}

// checkSet checks and completes registrations in place.
func checkSet(rs []Registration) error {
	if len(rs) == 0 {
		return fmt.Errorf("%w: nothing to register", ErrInvalid)
	}
	for i := range rs {
		r := &rs[i]
		r.Cluster = cmp.Or(r.Cluster, DefaultCluster)
		if r.ZeroWeight {
			r.Weight = 0
		} else {
			r.Weight = cmp.Or(r.Weight, 1)
		}
		r.Metadata = maps.Clone(r.Metadata)
		if r.Persistent != rs[0].Persistent {
			return fmt.Errorf("%w: persistent and other instances cannot be registered together", ErrInvalid)
		}
		n := &nacos.Instance{IP: r.IP, Port: r.Port, Weight: r.Weight, ClusterName: r.Cluster, Metadata: r.Metadata}
		if err := errors.Join(nacos.CheckInstance(n), nacos.CheckRegister(n, false)); err != nil {
			return fmt.Errorf("%w: instance %s: %w", ErrInvalid, net.JoinHostPort(r.IP, fmt.Sprint(r.Port)), err)
		}
		for k := range i {
			if sameAddress(r, &rs[k]) {
				return fmt.Errorf("%w: %s twice", ErrInvalid, net.JoinHostPort(r.IP, fmt.Sprint(r.Port)))
			}
		}
	}
	return nil
}

// wireInstance is an instance as requests have it.
type wireInstance struct {
	IP          string            `json:"ip"`
	Port        int               `json:"port"`
	Weight      float64           `json:"weight"`
	Healthy     bool              `json:"healthy"`
	Enabled     bool              `json:"enabled"`
	Ephemeral   bool              `json:"ephemeral"`
	ClusterName string            `json:"clusterName"`
	Metadata    map[string]string `json:"metadata"`
}

// wire is the instance as it is sent. Its service is that of the request: where
// an instance names one too, which the official clients do not do, r-nacos takes
// that, with the group before it, for the name.
func (r *Registration) wire() wireInstance {
	meta := r.Metadata
	if meta == nil {
		meta = map[string]string{}
	}
	return wireInstance{IP: r.IP, Port: r.Port, Weight: r.Weight, Healthy: !r.Unhealthy, Enabled: !r.Disabled, Ephemeral: !r.Persistent,
		ClusterName: r.Cluster, Metadata: meta}
}

type instanceRequest struct {
	nacos.ServiceRef
	Type     string       `json:"type"`
	Instance wireInstance `json:"instance"`
}

type batchRequest struct {
	nacos.ServiceRef
	Type      string         `json:"type"`
	Instances []wireInstance `json:"instances"`
}

func (c *Client) publication(id ServiceID) *publication {
	c.pubsMu.Lock()
	defer c.pubsMu.Unlock()
	p := c.pubs[id]
	if p == nil {
		p = &publication{c: c, id: id, changed: make(chan struct{})}
		p.task = task{needs: p.lacks, do: p.publish}
		c.pubs[id] = p
	}
	return p
}

// put makes these the lease's instances, unless it has ended, and returns the
// version that has them.
func (p *publication) put(l *Lease, rs []Registration) (version uint64, ok bool) {
	p.mu.Lock()
	l.mu.Lock() // after p.mu
	ended := l.closed
	l.mu.Unlock()
	if ended {
		p.mu.Unlock()
		return 0, false
	}
	p.members = slices.DeleteFunc(p.members, func(m *member) bool { return m.lease == l })
	for _, r := range rs {
		p.members = slices.DeleteFunc(p.members, func(m *member) bool { return sameAddress(&m.Registration, &r) })
	}
	for _, r := range rs {
		p.members = append(p.members, &member{r, l})
	}
	p.version++
	version = p.version
	p.mu.Unlock()
	p.c.work.mark(&p.task)
	return version, true
}

// remove takes the lease's instances away, and returns the version without them,
// 0 if there is nothing to wait for. Of the others none must go with them: see
// publish.
func (p *publication) remove(l *Lease) uint64 {
	p.mu.Lock()
	n := len(p.members)
	p.members = slices.DeleteFunc(p.members, func(m *member) bool { return m.lease == l })
	if len(p.members) != n {
		p.version++
	}
	v := p.version
	if !p.present { // no server has heard of any
		v = 0
	}
	p.mu.Unlock()
	p.c.work.mark(&p.task)
	return v
}

// registrations of a lease.
func (p *publication) registrations(l *Lease) []Registration {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []Registration
	for _, m := range p.members {
		if m.lease == l {
			out = append(out, m.Registration)
		}
	}
	return out
}

// lacks: see task.needs. What is to go is deregistered also at a server that has
// never been told of it: the connection that it was published on may have been
// lost to another one, which keeps it for a while.
func (p *publication) lacks(epoch uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.members) == 0 {
		return p.present
	}
	return p.acked != p.version || p.ackedEpoch != epoch
}

// publish tells the server the whole set. A batch stays one while anything is
// left: a server takes the deregistration of one instance for that of all.
func (p *publication) publish(ctx context.Context, s *session) error {
	p.mu.Lock()
	version := p.version
	members := slices.Clone(p.members)
	if len(members) > 0 {
		p.present = true
		p.last = members[0].wire()
	}
	last, batch := p.last, len(members) > 1 || len(members) == 1 && p.batched == s.epoch
	if batch {
		p.batched = s.epoch
	}
	p.mu.Unlock()

	ref := nacos.ServiceRef{Namespace: p.c.cfg.Namespace, GroupName: p.id.Group, ServiceName: p.id.Name}
	var typ string
	var body any
	switch {
	case batch:
		r := batchRequest{ServiceRef: ref, Type: nacos.OpBatchRegister}
		for _, m := range members {
			r.Instances = append(r.Instances, m.wire())
		}
		typ, body = nacos.TypeBatchInstanceRequest, r
	case len(members) == 1:
		typ, body = nacos.TypeInstanceRequest, instanceRequest{ref, nacos.OpRegister, last}
	default:
		typ, body = nacos.TypeInstanceRequest, instanceRequest{ref, nacos.OpDeregister, last}
	}
	raw, err := json.Marshal(body)
	if err == nil {
		_, err = p.c.ask(ctx, s, typ, raw)
	}

	p.mu.Lock()
	if err == nil {
		p.acked, p.ackedEpoch, p.failure = version, s.epoch, nil
		if len(members) == 0 && len(p.members) == 0 {
			p.present = false
		}
	} else if p.failure, p.failed = err, 0; !repeatable(err) {
		p.failed = version
	}
	close(p.changed)
	p.changed = make(chan struct{})
	p.mu.Unlock()
	for _, m := range members {
		m.lease.note(err)
	}
	if err != nil {
		p.c.log.Warn("cannot publish", "service", p.id, "instances", len(members), "server", s.server, "error", err)
		return fmt.Errorf("publish %s: %w", p.id, err)
	}
	return nil
}

// wait returns when a server has accepted this version or a later one, or has
// refused it.
func (p *publication) wait(ctx context.Context, version uint64) error {
	for {
		p.mu.Lock()
		acked, failed, failure, changed := p.acked, p.failed, p.failure, p.changed
		p.mu.Unlock()
		switch {
		case acked >= version:
			return nil
		case failed >= version:
			return failure
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return p.c.gaveUp(ctx, failure)
		case <-p.c.ctx.Done():
			return ErrClosed
		}
	}
}

func (l *Lease) note(err error) {
	l.mu.Lock()
	if !l.closed {
		l.err = err
	}
	l.mu.Unlock()
	if err == nil {
		l.once.Do(func() { close(l.registered) })
	}
}

// Registered is closed when a server has accepted the registration for the first
// time.
func (l *Lease) Registered() <-chan struct{} { return l.registered }

// Err is why the last attempt to tell a server has failed; nil if it has not, and
// [ErrClosed] once the lease has ended. The client tries again by itself.
func (l *Lease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// end marks the lease as ended, and reports whether it was not.
func (l *Lease) end() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.closed, l.err = true, ErrClosed
	if l.cancel != nil {
		l.cancel()
	}
	return true
}

// withdraw ends the lease without waiting for a server.
func (l *Lease) withdraw() {
	if l.end() && l.pub != nil {
		l.pub.remove(l)
	}
}

// Update changes what is published; f is called once for each instance of the
// lease, before Update returns. After a refusal ([ServerError], [ErrInvalid]) what
// was published before stands; after another error the change is still wanted,
// and made as soon as a server can be reached. It is [ErrClosed] if the lease has
// ended, or other leases have replaced all that it had.
func (l *Lease) Update(ctx context.Context, f func(*Registration)) error {
	if err := l.c.open(); err != nil {
		return err
	}
	l.mu.Lock()
	closed, rs := l.closed, slices.Clone(l.persistent)
	l.mu.Unlock()
	if closed {
		return ErrClosed
	}
	if l.pub != nil {
		rs = l.pub.registrations(l)
	}
	if len(rs) == 0 {
		return ErrClosed // replaced by another lease
	}
	before := slices.Clone(rs)
	for i := range rs {
		rs[i].Metadata = maps.Clone(rs[i].Metadata)
		if rs[i].Metadata == nil {
			rs[i].Metadata = map[string]string{}
		}
		f(&rs[i])
	}
	if err := checkSet(rs); err != nil {
		return err
	}
	if rs[0].Persistent != before[0].Persistent {
		return fmt.Errorf("%w: an instance stays persistent, or not", ErrInvalid)
	}
	ctx, cancel := bound(ctx, attempts*l.c.cfg.RequestTimeout)
	defer cancel()
	if l.pub == nil {
		return l.updatePersistent(ctx, before, rs)
	}
	version, ok := l.pub.put(l, rs)
	if !ok {
		return ErrClosed
	}
	err := l.pub.wait(ctx, version)
	if err == nil {
		return nil
	}
	if _, refused := errors.AsType[*ServerError](err); refused && !repeatable(err) {
		l.pub.put(l, before)
	}
	return fmt.Errorf("update %s: %w", l.id, err)
}

// Deregister ends the lease: its instances, and no others of the service, are
// taken away. It returns when a server has accepted that. After an error it is
// still wanted, and the server hears of it as soon as it can be reached. Of a lease
// that has ended it does nothing.
func (l *Lease) Deregister(ctx context.Context) error {
	if !l.end() {
		return nil
	}
	ctx, cancel := bound(ctx, attempts*l.c.cfg.RequestTimeout)
	defer cancel()
	var err error
	if l.pub == nil {
		err = l.removePersistent(ctx)
	} else {
		err = l.pub.wait(ctx, l.pub.remove(l))
	}
	if err != nil {
		return fmt.Errorf("deregister %s: %w", l.id, err)
	}
	return nil
}

// Drain deregisters and then waits, at least one second, so that those who watch
// the service have heard of it and no requests come any more when the caller
// closes its listener (L-14). The error is that of Deregister, or of the context.
func (l *Lease) Drain(ctx context.Context, wait time.Duration) error {
	err := l.Deregister(ctx)
	pause(ctx, max(wait, time.Second), nil)
	return cmp.Or(err, ctx.Err())
}

// Persistent instances are not of a connection: the server keeps them, and
// nothing is told again (E-3).

// persist asks by gRPC if the connected server can, else by HTTP (E-1).
func (l *Lease) persist(ctx context.Context, r Registration, remove bool) error {
	s, err := l.c.link.await(ctx)
	if err != nil {
		return err
	}
	if s.conn.Has(abilityPersistent) {
		op := nacos.OpRegister
		if remove {
			op = nacos.OpDeregister
		}
		ref := nacos.ServiceRef{Namespace: l.c.cfg.Namespace, GroupName: l.id.Group, ServiceName: l.id.Name}
		_, _, err := l.c.request(ctx, nacos.TypePersistentInstanceRequest, instanceRequest{ref, op, r.wire()})
		if refused, ok := errors.AsType[*ServerError](err); !ok || refused.Code != nacos.CodeNoHandler {
			return err
		}
	}
	return persistHTTP(ctx, &l.c.cfg, l.c.list, l.c.login, l.id, r, remove)
}

func (l *Lease) persistAll(ctx context.Context, rs []Registration) error {
	for _, r := range rs {
		if err := l.persist(ctx, r, false); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lease) registerPersistent(ctx context.Context, rs []Registration, async bool) (*Lease, error) {
	l.persistent = rs
	if !async {
		if err := l.persistAll(ctx, rs); err != nil {
			l.withdraw()
			return nil, fmt.Errorf("register %s: %w", l.id, err)
		}
		l.note(nil)
		return l, nil
	}
	ctx, cancel := context.WithCancel(l.c.ctx)
	l.cancel = cancel
	started := l.c.spawn(func() {
		defer cancel()
		for wait := time.Second; ctx.Err() == nil; wait = min(2*wait, maxBackoff) {
			attempt, done := context.WithTimeout(ctx, attempts*l.c.cfg.RequestTimeout)
			err := l.persistAll(attempt, rs)
			done()
			if l.note(err); err == nil {
				return
			}
			pause(ctx, jitter(wait), nil)
		}
	})
	if !started {
		cancel()
		return nil, ErrClosed
	}
	return l, nil
}

func (l *Lease) updatePersistent(ctx context.Context, before, rs []Registration) error {
	if err := l.persistAll(ctx, rs); err != nil {
		return fmt.Errorf("update %s: %w", l.id, err)
	}
	l.mu.Lock()
	l.persistent = rs
	l.mu.Unlock()
	for _, old := range before { // those that have moved
		if !slices.ContainsFunc(rs, func(r Registration) bool { return sameAddress(&r, &old) && r.Cluster == old.Cluster }) {
			if err := l.persist(ctx, old, true); err != nil {
				return fmt.Errorf("update %s: %w", l.id, err)
			}
		}
	}
	return nil
}

func (l *Lease) removePersistent(ctx context.Context) error {
	l.mu.Lock()
	rs := l.persistent
	l.mu.Unlock()
	var errs []error
	for _, r := range rs {
		errs = append(errs, l.persist(ctx, r, true))
	}
	return errors.Join(errs...)
}
