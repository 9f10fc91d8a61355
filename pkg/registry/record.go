package registry

import (
	"cmp"
	"slices"
)

// gathered is what Take tells of a key that its publication, if there is one,
// does not say.
type gathered struct {
	kind  Kind
	clock Stamp
	cause Cause
	hides map[hideKey]Hide
}

type hideKey struct {
	InstanceKey
	strong bool
}

func (g *gathered) add(h Hide) {
	k := hideKey{h.InstanceKey, h.Strong}
	was := g.hides[k]
	h.UpTo, h.Made = max(h.UpTo, was.UpTo), max(h.Made, was.Made)
	if g.hides == nil {
		g.hides = map[hideKey]Hide{}
	}
	g.hides[k] = h
}

// gatherLocked notes for Take that a key was written; nil: nobody will take it.
func (r *Registry) gatherLocked(sh *shard, key ServiceKey, c *Client, cause Cause, now Stamp) *gathered {
	if r.opts.Wrote == nil {
		return nil
	}
	k := RecordKey{c.id, key}
	g := sh.gathered[k]
	if g == nil {
		g = &gathered{kind: c.kind}
		sh.gathered[k] = g
	}
	g.clock, g.cause = now, cause
	return g
}

// Take returns what an own client publishes for a service, and what it has
// hidden since the last Take of the key: every instance that it has named and
// no longer does, those named between two calls included. The registry forgets
// for whom it was, the caller keeps it in the record; what is hidden stays so.
//
// Clock 0 says that nothing is published and that there is nothing new. Other
// than that, what is taken twice is the same. The record belongs to the caller,
// but not its instances, which are shared.
func (r *Registry) Take(k RecordKey) Record {
	rec := Record{RecordKey: k, Gone: true}
	sh := r.shard(k.Service)
	sh.mu.Lock()
	if s := sh.services[k.Service]; s != nil {
		if p := sh.own[ownKey{s, k.Client}]; p != nil {
			rec.Gone, rec.Kind, rec.Clock, rec.Cause = false, p.client.kind, p.clock, p.cause
			rec.Batch, rec.Moving, rec.Redo = p.batch, p.moving, p.redo
			rec.Instances = p.instances()
		}
	}
	g := sh.gathered[k]
	delete(sh.gathered, k)
	sh.mu.Unlock()
	if g == nil {
		return rec
	}
	if g.clock > rec.Clock {
		rec.Kind, rec.Clock, rec.Cause = g.kind, g.clock, g.cause
	}
	for _, h := range g.hides {
		rec.Hides = append(rec.Hides, h)
	}
	slices.SortFunc(rec.Hides, func(a, b Hide) int { return cmp.Or(a.Compare(b.InstanceKey), cmp.Compare(a.UpTo, b.UpTo)) })
	return rec
}

func (p *publication) instances() []Published {
	out := make([]Published, len(p.claims))
	for i, cl := range p.claims {
		out[i] = Published{cl.instance, cl.since}
	}
	return out
}

// Apply lays records of another life into the services: of each key the
// newest that is known, never an older one after a newer one. Applying one
// again changes nothing. Those of the own life are ignored.
//
// Whatever the number of records, each service gets one new snapshot and is
// told of once. The registry keeps the instances.
func (r *Registry) Apply(life Life, records []Record) {
	if life == r.opts.Life || len(records) == 0 {
		return
	}
	l := r.life(life)
	var newest Stamp
	for i := range records {
		newest = max(newest, records[i].Clock)
	}
	r.opts.Clock.Adopt(newest) // what is written here from now on is newer
	if len(records) == 1 {
		r.applyTo(l, records[0].Service, []*Record{&records[0]})
		return
	}
	var order []ServiceKey
	of := map[ServiceKey][]*Record{}
	for i := range records {
		key := records[i].Service
		if of[key] == nil {
			order = append(order, key)
		}
		of[key] = append(of[key], &records[i])
	}
	for _, key := range order {
		r.applyTo(l, key, of[key])
	}
}

// applyTo applies the records of one service.
func (r *Registry) applyTo(l *life, key ServiceKey, records []*Record) {
	l.mu.Lock()
	if l.forgotten {
		l.mu.Unlock()
		return
	}
	sh := r.shard(key)
	sh.mu.Lock()
	s := sh.services[key]
	was := s != nil && s.published()
	now := r.opts.Clock.Now()
	touched := make([]touch, 0, len(records))
	// Where several touched the same instance, the newest is the reason.
	slices.SortStableFunc(records, func(a, b *Record) int { return cmp.Compare(a.Clock, b.Clock) })
	reasons := make([]why, len(records))
	for by, rec := range records {
		reasons[by] = why{rec.Cause, rec.Client, l.Life, rec.Clock}
		if rec.Gone {
			touched = r.withdrawnLocked(sh, s, l, rec, by, now, touched)
		} else {
			s = r.serviceLocked(sh, key, len(records))
			touched = r.publishedLocked(sh, s, l, rec, by, now, touched)
		}
		touched = r.hiddenLocked(sh, s, rec, by, now, touched)
	}
	var n news
	if s != nil {
		if len(touched) > 0 {
			n.changed = r.showLocked(sh, s, touched, now, reasons...)
		}
		n.presence = s.published() != was
	}
	sh.mu.Unlock()
	l.mu.Unlock()
	r.tell(key, n)
}

// withdrawnLocked removes a publication of another life. s may be nil.
func (r *Registry) withdrawnLocked(sh *shard, s *service, l *life, rec *Record, by int, now Stamp, touched []touch) []touch {
	c := l.clients[rec.Client]
	if c == nil || s == nil || s.publications[c] == nil {
		return touched
	}
	p := s.publications[c]
	for _, cl := range p.claims {
		s.dropClaim(cl, now)
	}
	s.touched = now
	r.unpublishLocked(sh, s, p)
	l.lost(c, s.key)
	return p.touchAll(touched, by)
}

// publishedLocked sets a publication of another life to what its owner says.
func (r *Registry) publishedLocked(sh *shard, s *service, l *life, rec *Record, by int, now Stamp, touched []touch) []touch {
	c := l.clients[rec.Client]
	if c == nil {
		c = &Client{registry: r, life: l, id: rec.Client, kind: rec.Kind}
		l.clients[c.id] = c
	}
	p := s.publications[c]
	if p == nil {
		p = &publication{client: c, redo: rec.Redo}
		r.publishLocked(sh, s, p)
		l.gained(c, s.key)
		s.touched = now
	}
	// Whether what is moving is shown depends on the clock, too.
	all := p.moving != rec.Moving || rec.Moving && p.clock != rec.Clock
	if p.redo != rec.Redo {
		p.redo, all = rec.Redo, true
		if s.dropLocked(p) {
			s.leftOverrides(p, now)
		}
	}
	p.wrote(rec.Batch, rec.Moving, rec.Clock, rec.Cause)

	old := p.claims
	if len(old) == 1 && len(rec.Instances) == 1 && old[0].instance.InstanceKey == rec.Instances[0].InstanceKey {
		if old[0].became(rec.Instances[0]) || all {
			touched = append(touched, touch{old[0].instance.InstanceKey, by})
			s.touched = now
		}
		return touched
	}
	if len(old) == 0 && len(rec.Instances) == 1 { // the most frequent, too
		is := rec.Instances[0]
		cl := &claim{pub: p, instance: is.Instance, since: is.Since}
		s.addClaim(cl)
		p.claims = []*claim{cl}
		s.touched = now
		return append(touched, touch{is.InstanceKey, by})
	}
	wanted := make(map[InstanceKey]Published, len(rec.Instances))
	for _, is := range rec.Instances {
		wanted[is.InstanceKey] = is
	}
	claims := make([]*claim, 0, len(wanted))
	for _, cl := range old {
		k := cl.instance.InstanceKey
		is, still := wanted[k]
		if !still {
			s.dropClaim(cl, now)
			touched = append(touched, touch{k, by})
			continue
		}
		delete(wanted, k)
		claims = append(claims, cl)
		if cl.became(is) || all {
			touched = append(touched, touch{k, by})
		}
	}
	for _, is := range rec.Instances {
		if wanted[is.InstanceKey] != is {
			continue // as it was, or a later one of the same key stands for it
		}
		delete(wanted, is.InstanceKey)
		cl := &claim{pub: p, instance: is.Instance, since: is.Since}
		s.addClaim(cl)
		claims = append(claims, cl)
		touched = append(touched, touch{is.InstanceKey, by})
	}
	p.claims = claims
	if len(touched) > 0 {
		s.touched = now
	}
	return touched
}

// became sets a claim to what its owner says, and reports whether it changed.
func (c *claim) became(is Published) bool {
	same := c.since == is.Since
	c.since = is.Since
	if !is.equal(c.instance) { // else the old one stays: one copy less
		c.instance, same = is.Instance, false
	}
	return !same
}

// hiddenLocked remembers what a record hides. s may be nil.
func (r *Registry) hiddenLocked(sh *shard, s *service, rec *Record, by int, now Stamp, touched []touch) []touch {
	for _, h := range rec.Hides {
		if r.tooOld(h.Made, now) || !r.hideLocked(sh, rec.Service, rec.Kind, h) || s == nil {
			continue
		}
		if len(s.claims[h.InstanceKey]) > 0 {
			touched = append(touched, touch{h.InstanceKey, by})
		}
	}
	return touched
}

// A Copy is what another life holds of a client's publication of a service.
type Copy struct {
	Instances []Published
	Life      Life
	Living    bool  // somebody living stands for it
	Since     Stamp // newest registration clock of its instances
}

// Copy finds the newest copy of what a client publishes for a service in the
// other lives, dropped ones left out.
func (r *Registry) Copy(k ServiceKey, client string) (newest Copy, ok bool) {
	for _, l := range *r.lives.Load() {
		if l == r.own {
			continue
		}
		if c, there := r.copyIn(l, k, client); there && (!ok || c.Since > newest.Since || c.Since == newest.Since && c.Life.compare(newest.Life) > 0) {
			newest, ok = c, true
		}
	}
	return newest, ok
}

func (r *Registry) copyIn(l *life, k ServiceKey, client string) (Copy, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sh := r.shard(k)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	c, s := l.clients[client], sh.services[k]
	if c == nil || s == nil || s.publications[c] == nil || s.publications[c].over() {
		return Copy{}, false
	}
	p := s.publications[c]
	out := Copy{Instances: p.instances(), Life: l.Life, Living: l.is() == Living && !p.moving}
	for _, is := range out.Instances {
		out.Since = max(out.Since, is.Since)
	}
	return out, true
}
