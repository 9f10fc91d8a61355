package registry

import (
	"slices"
	"sync"
	"sync/atomic"
)

// A service is guarded by the lock of its shard, except where a field says
// otherwise.
type service struct {
	key          ServiceKey
	publications map[*Client]*publication
	claims       map[InstanceKey][]*claim // of all publications, in no order
	overrides    map[InstanceKey]*override
	meta         *ServiceMeta
	history      *history // the shard's, once there is one: it stays for as long as the service does
	touched      Stamp    // last register, deregister or change

	snapshot atomic.Pointer[Snapshot] // read without a lock

	serve         sync.Mutex // guards the next two
	served        int64      // newest lastRefTime handed out, milliseconds
	servedVersion Stamp      // and the picture it went out with
}

// A publication is what one client publishes for one service.
type publication struct {
	batch  bool
	claims []*claim // each key once
}

// A claim is one client's word that an instance is there.
type claim struct {
	client   *Client
	instance *Instance
	since    Stamp // registration clock
	// hidden: a client that claimed this very instance later has explicitly
	// deregistered it. So a half-open old connection of a client that
	// came back and then deregistered does not show its instance again.
	hidden bool
}

type override struct {
	Override
	seen Stamp // when its instance was last there
}

// winner is the claim that readers see: the newest that is not hidden.
func (s *service) winner(k InstanceKey) *claim { return winner(s.claims[k]) }

func winner(claims []*claim) *claim {
	var best *claim
	for _, c := range claims {
		if !c.hidden && (best == nil || c.since > best.since) {
			best = c
		}
	}
	return best
}

func (s *service) addClaim(c *claim) {
	k := c.instance.InstanceKey
	s.claims[k] = append(s.claims[k], c)
}

func (s *service) dropClaim(c *claim, now Stamp) {
	k := c.instance.InstanceKey
	left := slices.DeleteFunc(s.claims[k], func(o *claim) bool { return o == c })
	if len(left) == 0 {
		delete(s.claims, k)
		if o := s.overrides[k]; o != nil {
			o.seen = now
		}
	} else {
		s.claims[k] = left
	}
}

// publish makes the next snapshot readable.
func (s *service) publish(instances []*Shown, now Stamp) {
	s.snapshot.Store(&Snapshot{Service: s.key, Version: now, Instances: instances, Meta: s.meta})
}

// showLocked brings the snapshot up to date after the claims or overrides of
// the given keys changed, and records what became visible with its cause. It
// reports whether anything did. The cost is one pass over the old picture,
// however many keys changed.
func (r *Registry) showLocked(sh *shard, s *service, keys []InstanceKey, now Stamp, cause Cause, client string) bool {
	slices.SortFunc(keys, InstanceKey.compare)
	keys = slices.Compact(keys)
	old := s.snapshot.Load().Instances
	var events []Event
	next := make([]*Shown, 0, len(old)+len(keys))
	rest := old
	for _, k := range keys {
		i, there := slices.BinarySearchFunc(rest, k, func(e *Shown, k InstanceKey) int { return e.compare(k) })
		next = append(next, rest[:i]...)
		e := Event{At: now, Cause: cause, Client: client, Key: k}
		var was *Shown
		if rest = rest[i:]; there {
			was, rest = rest[0], rest[1:]
			e.Before = was.Instance
		}
		win := s.winner(k)
		if win == nil {
			if there {
				if cause == CauseRegistered {
					e.Cause = CauseReplaced // its client publishes something else
				}
				e.Client = was.Client
				events = append(events, e)
			}
			continue
		}
		is := &Shown{Instance: win.instance, Since: win.since, Client: win.client.id, Life: r.opts.Life}
		if o := s.overrides[k]; o != nil {
			is.Instance = o.apply(win.instance)
		}
		if there && is.equal(was.Instance) {
			if is.Since == was.Since && is.Client == was.Client {
				is = was
			}
			// Else there is nothing to see, but another claim stands behind it.
		} else {
			if there && cause == CauseRegistered {
				e.Cause = CauseChanged
			}
			e.Client, e.After = is.Client, is.Instance
			events = append(events, e)
		}
		next = append(next, is)
	}
	next = append(next, rest...)
	if len(events) == 0 {
		// Who stands behind an instance may have changed all the same.
		if !slices.Equal(old, next) {
			s.snapshot.Store(&Snapshot{Service: s.key, Version: s.snapshot.Load().Version, Instances: next, Meta: s.meta})
		}
		return false
	}
	s.publish(next, now)
	r.instances.Add(int64(len(next) - len(old)))
	if s.history == nil {
		if s.history = sh.history[s.key]; s.history == nil {
			s.history = &history{}
			sh.history[s.key] = s.history
		}
	}
	r.record(s.history, events)
	return true
}
