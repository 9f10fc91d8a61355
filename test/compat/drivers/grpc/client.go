package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/starling-registry/starling/pkg/client/wire"
	"github.com/starling-registry/starling/pkg/nacos"
	"github.com/starling-registry/starling/test/compat/drivers"
	"github.com/starling-registry/starling/test/compat/drivers/bare"
)

const (
	dialTimeout = 3 * time.Second
	redoPause   = time.Second // before what failed is repeated
	// patience is how long a call waits to be carried out while there is no connection or requests
	// fail. What it asked for is carried out later all the same.
	patience = 15 * time.Second
	// Silence after which the server is asked whether it is there, as in the SDKs.
	healthCheckAfter = 5 * time.Second
)

// A session implements bare.Client: a client over all its connections, one at a time.
//
// What the application wants is in items; the session's only goroutine carries it out on whatever
// connection there is, again on each new one. Calls say what they want and wait for that.
type session struct {
	// constant
	bare.Options
	ctx    context.Context
	cancel context.CancelCauseFunc
	ended  chan struct{} // closed when the goroutine has ended
	wake   chan struct{} // something has changed; one waits at most

	// owned by the goroutine
	next int // server to try

	mu     sync.Mutex
	conn   *wire.Conn // nil: none
	moveTo string     // the server asks to go: to this one, or "" with move
	move   bool
	items  map[itemKey]*item
}

type itemKey struct {
	kind    kind
	service bare.Service
}

type kind string

const (
	publication  kind = "publication" // of an instance, or of a batch
	subscription kind = "subscription"
)

// An item is something wanted of the server. Its fields are guarded by the session.
type item struct {
	key     itemKey
	wanted  bool   // false: to be undone, and then forgotten
	version uint64 // counts what the application has said
	// done is the connection on which version doneVersion is carried out.
	done        *wire.Conn
	doneVersion uint64
	waiting     []waiter

	instances []bare.Host // of a publication
	batch     bool
	views     []*bare.View // of a subscription
	last      *bare.Info   // newest that came
}

type waiter struct {
	version uint64
	told    chan error
}

var errClosed = errors.New("the client is closed")

// connect returns when there is a connection.
func connect(ctx context.Context, o bare.Options) (bare.Client, error) {
	s := &session{Options: o, ended: make(chan struct{}), wake: make(chan struct{}, 1), items: map[itemKey]*item{}}
	if s.Namespace == "" {
		s.Namespace = "public"
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.next = rand.IntN(len(o.Servers))
	for {
		c, err := s.dial(ctx, s.Servers[s.next])
		if err == nil {
			s.conn = c
			go s.run()
			return s, nil
		}
		s.next = (s.next + 1) % len(s.Servers)
		select {
		case <-ctx.Done():
			s.cancel(errClosed)
			return nil, err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (s *session) dial(ctx context.Context, server string) (*wire.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	return wire.Dial(ctx, wire.Options{
		Addr: server, Tenant: s.Namespace, HealthCheckAfter: healthCheckAfter,
		Push: s.pushed, Reset: s.reset,
	})
}

// run keeps the session connected and carries out what is wanted, until it is closed.
func (s *session) run() {
	defer close(s.ended)
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		s.mu.Lock()
		c, move := s.conn, s.move
		s.mu.Unlock()
		switch {
		case s.ctx.Err() != nil:
			if c != nil {
				c.Close()
			}
			s.mu.Lock()
			for _, i := range s.items {
				i.answer(i.version, errClosed)
			}
			s.mu.Unlock()
			return
		case c == nil || c.Err() != nil || move:
			s.reconnect(c)
			continue
		}
		if !s.carryOut(c) {
			retry.Reset(redoPause)
		}
		select {
		case <-s.ctx.Done():
		case <-c.Done():
		case <-s.wake:
		case <-retry.C:
		}
	}
}

// reconnect makes a connection in place of the old one, which may be nil, and closes that after it:
// a server that asked to move keeps what is on it meanwhile.
func (s *session) reconnect(old *wire.Conn) {
	if old != nil && old.Err() != nil {
		old.Close()
		old = nil
		s.mu.Lock()
		s.conn = nil
		s.mu.Unlock()
	}
	s.mu.Lock()
	target := s.moveTo
	s.moveTo, s.move = "", false
	s.mu.Unlock()
	if target == "" {
		s.next = (s.next + 1) % len(s.Servers)
		target = s.Servers[s.next]
	}
	for failed := 1; ; failed++ {
		c, err := s.dial(s.ctx, target)
		if err == nil {
			s.next = max(0, slices.Index(s.Servers, target))
			s.mu.Lock()
			s.conn = c
			s.mu.Unlock()
			if old != nil {
				old.Close()
			}
			return
		}
		if old != nil && old.Err() != nil {
			old.Close()
			old = nil
		}
		if s.ctx.Err() != nil {
			return
		}
		s.next = (s.next + 1) % len(s.Servers)
		target = s.Servers[s.next]
		if failed%len(s.Servers) == 0 { // none of them: not at once again
			pause := time.NewTimer(min(time.Second, 100*time.Millisecond*time.Duration(failed/len(s.Servers))))
			select {
			case <-pause.C:
			case <-s.ctx.Done():
				pause.Stop()
			}
		}
	}
}

// carryOut does all that is to be done on the connection. It reports whether nothing failed.
func (s *session) carryOut(c *wire.Conn) bool {
	refused := map[*item]bool{} // that are to be repeated, later
	for {
		s.mu.Lock()
		var todo *item
		for _, i := range s.items {
			// Publications first: others wait for them.
			if !i.doneOn(c) && !refused[i] && (todo == nil || todo.key.kind == subscription && i.key.kind == publication) {
				todo = i
			}
		}
		if todo == nil {
			s.mu.Unlock()
			return len(refused) == 0
		}
		want := *todo // as it is now
		s.mu.Unlock()

		info, err := s.send(c, &want)
		if err != nil && !final(err) {
			return false // the connection has ended, or is bad
		}

		s.mu.Lock()
		switch {
		case err != nil && want.repeated():
			refused[todo] = true // by a server that has it otherwise than the one before
		case err != nil && todo.version == want.version:
			delete(s.items, todo.key) // nobody took it, so nobody is to repeat it
		default:
			todo.done, todo.doneVersion = c, want.version
			if !want.wanted && todo.version == want.version {
				delete(s.items, todo.key)
			}
		}
		todo.answer(want.version, err)
		var views []*bare.View
		if info != nil {
			views = todo.take(info)
		}
		s.mu.Unlock()
		for _, v := range views {
			v.Take(info)
		}
	}
}

// final says whether an error is the server's no to what was asked: not about the connection, nor
// of a server that takes no clients just now.
func final(err error) bool {
	refusal, ok := errors.AsType[*wire.Error](err)
	return ok && refusal.Code != nacos.CodeUnregistered && refusal.Code != nacos.CodeInvalidServerStatus
}

// repeated says whether what is wanted was carried out before, on another connection.
func (i *item) repeated() bool { return i.wanted && i.done != nil && i.doneVersion == i.version }

func (i *item) doneOn(c *wire.Conn) bool { return i.done == c && i.doneVersion == i.version }

// answer tells those who wait for this version or an older one.
func (i *item) answer(version uint64, err error) {
	i.waiting = slices.DeleteFunc(i.waiting, func(w waiter) bool {
		if w.version > version {
			return false
		}
		w.told <- err
		return true
	})
}

// take keeps a list for views that come later.
func (i *item) take(info *bare.Info) []*bare.View {
	if i.last == nil || info.LastRefTime >= i.last.LastRefTime {
		i.last = info
	}
	return slices.Clone(i.views)
}

// send does what an item wants. Of a subscription it returns the list.
func (s *session) send(c *wire.Conn, i *item) (*bare.Info, error) {
	m := s.about(i.key.service)
	switch {
	case i.key.kind == subscription:
		m["subscribe"], m["clusters"] = i.wanted, "" // a server knows one cluster filter for each service
		var answer struct {
			Info *bare.Info `json:"serviceInfo"`
		}
		err := s.request(s.ctx, c, nacos.TypeSubscribeServiceRequest, m, &answer)
		if !i.wanted {
			return nil, err
		}
		return answer.Info, err
	case i.batch:
		m["type"], m["instances"] = nacos.OpBatchRegister, i.instances
		return nil, s.request(s.ctx, c, nacos.TypeBatchInstanceRequest, m, nil)
	}
	m["type"], m["instance"] = nacos.OpRegister, i.instances[0]
	if !i.wanted {
		m["type"] = nacos.OpDeregister
	}
	return nil, s.request(s.ctx, c, nacos.TypeInstanceRequest, m, nil)
}

func (s *session) about(service bare.Service) map[string]any {
	return map[string]any{"headers": struct{}{}, "module": "naming", "namespace": s.Namespace,
		"serviceName": service.Name, "groupName": service.Group}
}

func (s *session) request(ctx context.Context, c *wire.Conn, typ string, message map[string]any, answer any) error {
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	res, err := c.Request(ctx, typ, body)
	if err != nil || answer == nil {
		return err
	}
	return json.Unmarshal(res.Body, answer)
}

// ask makes one request on the connection that there is, or will be soon.
func (s *session) ask(typ string, message map[string]any, answer any) error {
	deadline := time.Now().Add(patience)
	for {
		s.mu.Lock()
		c := s.conn
		s.mu.Unlock()
		err := errors.New("not connected")
		if c != nil && c.Err() == nil {
			err = s.request(s.ctx, c, typ, message, answer)
			if _, refused := errors.AsType[*wire.Error](err); err == nil || refused {
				return err
			}
		}
		if time.Now().After(deadline) {
			return err
		}
		select {
		case <-s.ctx.Done():
			return errClosed
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// want changes an item, makes it if there is none, and waits until it is carried out.
func (s *session) want(key itemKey, change func(*item)) error {
	told := make(chan error, 1)
	s.mu.Lock()
	i := s.items[key]
	if i == nil {
		i = &item{key: key}
		s.items[key] = i
	}
	change(i)
	i.version++
	i.waiting = append(i.waiting, waiter{i.version, told})
	s.mu.Unlock()
	s.poke()
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case err := <-told:
		return err
	case <-s.ended:
		return errClosed
	case <-late.C:
		return fmt.Errorf("the %s of %s is not carried out after %v; it will be", key.kind, key.service.Grouped(), patience)
	}
}

func (s *session) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *session) Register(service bare.Service, i drivers.Instance) error {
	if !i.Ephemeral {
		return s.persistent(service, i, nacos.OpRegister)
	}
	return s.publish(service, false, []drivers.Instance{i})
}

// persistent sends what the server keeps, so that it is said once.
func (s *session) persistent(service bare.Service, i drivers.Instance, op string) error {
	m := s.about(service)
	m["type"], m["instance"] = op, bare.NewHost(i)
	return s.ask(nacos.TypePersistentInstanceRequest, m, nil)
}

func (s *session) RegisterBatch(service bare.Service, all []drivers.Instance) error {
	return s.publish(service, true, all)
}

func (s *session) publish(service bare.Service, batch bool, all []drivers.Instance) error {
	hosts := make([]bare.Host, 0, len(all))
	for _, i := range all {
		hosts = append(hosts, bare.NewHost(i))
	}
	return s.want(itemKey{publication, service}, func(i *item) { i.wanted, i.batch, i.instances = true, batch, hosts })
}

func (s *session) Deregister(service bare.Service, instance drivers.Instance) error {
	if !instance.Ephemeral {
		return s.persistent(service, instance, nacos.OpDeregister)
	}
	return s.want(itemKey{publication, service}, func(i *item) {
		i.wanted, i.batch, i.instances = false, false, []bare.Host{bare.NewHost(instance)}
	})
}

func (s *session) List(service bare.Service, clusters []string) (*bare.Info, error) {
	m := s.about(service)
	m["cluster"], m["healthyOnly"], m["udpPort"] = "", false, 0
	var answer struct {
		Info bare.Info `json:"serviceInfo"`
	}
	if err := s.ask(nacos.TypeServiceQueryRequest, m, &answer); err != nil {
		return nil, err
	}
	if len(clusters) > 0 {
		answer.Info.Hosts = slices.DeleteFunc(answer.Info.Hosts, func(h bare.Host) bool { return !slices.Contains(clusters, h.ClusterName) })
	}
	return &answer.Info, nil
}

func (s *session) Services(group string, page, size int) ([]string, int, error) {
	m := s.about(bare.Service{Group: group})
	maps.Copy(m, map[string]any{"pageNo": page, "pageSize": size, "selector": ""})
	var answer struct {
		Names []string `json:"serviceNames"`
		Count int      `json:"count"`
	}
	err := s.ask(nacos.TypeServiceListRequest, m, &answer)
	return answer.Names, answer.Count, err
}

func (s *session) Subscribe(service bare.Service, clusters []string, told func([]drivers.Instance)) (func(), error) {
	key, view := itemKey{subscription, service}, bare.NewView(clusters, told)
	var known *bare.Info
	err := s.want(key, func(i *item) {
		i.wanted = true
		i.views = append(i.views, view)
		known = i.last
	})
	if known != nil {
		view.Take(known)
	}
	cancel := func() {
		view.Close()
		s.mu.Lock()
		i := s.items[key]
		if i == nil || !slices.Contains(i.views, view) {
			s.mu.Unlock()
			return
		}
		i.views = slices.DeleteFunc(i.views, func(v *bare.View) bool { return v == view })
		last := len(i.views) == 0
		s.mu.Unlock()
		if last {
			_ = s.want(key, func(i *item) { i.wanted = len(i.views) > 0 }) // if not now, then on the next connection
		}
	}
	if err != nil && s.ctx.Err() != nil {
		cancel()
		return nil, err
	}
	return cancel, err
}

// pushed takes what the server says unasked.
func (s *session) pushed(p *nacos.Payload) error {
	if p.Type != nacos.TypeNotifySubscriberRequest {
		return nil
	}
	var message struct {
		Info bare.Info `json:"serviceInfo"`
	}
	if err := json.Unmarshal(p.Body, &message); err != nil {
		return err
	}
	s.mu.Lock()
	var views []*bare.View
	if i := s.items[itemKey{subscription, message.Info.Service()}]; i != nil {
		views = i.take(&message.Info)
	}
	s.mu.Unlock()
	for _, v := range views {
		v.Take(&message.Info)
	}
	return nil
}

// reset is the server's wish that the client goes to another one, or to the one it names if that is
// of the list.
func (s *session) reset(host string, port int) {
	named := net.JoinHostPort(host, strconv.Itoa(port))
	s.mu.Lock()
	s.move, s.moveTo = true, ""
	if slices.Contains(s.Servers, named) {
		s.moveTo = named
	}
	s.mu.Unlock()
	s.poke()
}

func (s *session) Close() {
	s.cancel(errClosed)
	<-s.ended
}
