package distro

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/starling-registry/starling/pkg/registry"
)

func testLife(n int, epoch uint64) registry.Life {
	return registry.Life{Node: strings.Repeat(fmt.Sprintf("%x", n), 32), Epoch: epoch}
}

// unknownRecord is of a kind that this release does not know, so that its key
// and value can be anything.
func testRecord(kind uint32, key string, version uint64, gone bool, value string) *record {
	d, err := decodeRecord(encodeRecord(kind, key, version, registry.StampAt(int64(version)), gone, []byte(value)), nil)
	if err != nil {
		panic(err)
	}
	return d.record
}

// A history is what an owner wrote: every state that its life went through.
type history struct {
	rnd    *rand.Rand
	owner  *life
	frames []cut // cut at many moments, for many readers
}

func newHistory(seed uint64, writes int) *history {
	h := &history{rnd: rand.New(rand.NewPCG(seed, 1)), owner: newLife(testLife(1, 1))}
	for v := uint64(1); v <= uint64(writes); v++ {
		h.owner.put(testRecord(99, fmt.Sprintf("k%d", h.rnd.IntN(1+writes/3)), v, h.rnd.IntN(4) == 0, fmt.Sprintf("value %d", v)))
		h.owner.applied = v
		h.owner.compact()
		if h.rnd.IntN(12) == 0 {
			h.owner.forget(registry.StampAt(int64(v)-int64(writes)/4), 1<<20)
		}
		for range h.rnd.IntN(3) {
			h.frames = append(h.frames, h.owner.cut(h.rnd.Uint64N(v)))
		}
	}
	h.frames = append(h.frames, h.owner.cut(0))
	return h
}

// send takes a frame over the wire.
func send(t testing.TB, c cut) *frame {
	t.Helper()
	var whole *frame
	var s *staged
	err := c.parts(1, func(b []byte) error {
		m, err := readMessage(b)
		if err != nil {
			return err
		}
		f, err := readFrame(m.GetFrame())
		if err != nil || m.GetFrame().GetParts() <= 1 {
			whole = f
			return err
		}
		if s == nil {
			s = newStaged(0, int(m.GetFrame().GetParts()))
		}
		whole, err = s.add(f, int(m.GetFrame().GetPart()))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return whole
}

// checkLife says what must always be true of a life that was filled from a
// history.
func (h *history) checkLife(t *testing.T, l *life) {
	t.Helper()
	digest, bytes, tombs := uint64(0), 0, 0
	for k, r := range l.records {
		if r.key != k || r.version > l.applied || r.stale {
			t.Fatalf("record %q version %d, applied %d, stale %v", k, r.version, l.applied, r.stale)
		}
		bytes += len(r.raw)
		if r.gone {
			tombs += len(r.raw)
		} else {
			digest += r.hash
		}
	}
	if digest != l.digest || bytes != l.bytes || tombs != l.tombstoneBytes {
		t.Fatalf("digest %x, bytes %d, tombstones %d; counted %x, %d, %d", l.digest, l.bytes, l.tombstoneBytes, digest, bytes, tombs)
	}
	all := l.above(0)
	if len(all) != len(l.records) {
		t.Fatalf("%d records in order, %d by key", len(all), len(l.records))
	}
	for n := 1; n < len(all); n++ {
		if all[n].version <= all[n-1].version {
			t.Fatalf("version %d after %d", all[n].version, all[n-1].version)
		}
	}
}

func live(l *life) map[string]uint64 {
	out := map[string]uint64{}
	for k, r := range l.records {
		if !r.gone {
			out[k] = r.version
		}
	}
	return out
}

func sameLife(a, b *life) error {
	x, y := live(a), live(b)
	if a.applied != b.applied || a.digest != b.digest || fmt.Sprint(x) != fmt.Sprint(y) {
		return fmt.Errorf("applied %d and %d, digest %x and %x, records\n%v\n%v", a.applied, b.applied, a.digest, b.digest, x, y)
	}
	return nil
}

// Frames come late, twice, in any order, and from several senders: in the end
// everybody has what the owner has, and never a prefix that lies (F05, F19).
func TestMergeInAnyOrder(t *testing.T) {
	for seed := range uint64(60) {
		h := newHistory(seed, 60)
		truth := map[uint64]uint64{} // digest at each version that a frame ends at, by a straight reader
		for _, c := range h.frames {
			reader := newLife(h.owner.id)
			if whole := c.from == 0; whole {
				if _, _, o := reader.merge(send(t, c)); o != merged {
					t.Fatalf("whole life not merged: %v", o)
				}
				truth[c.to] = reader.digest
			}
		}
		for range 3 {
			l := newLife(h.owner.id)
			order := h.rnd.Perm(2 * len(h.frames))
			for _, n := range order {
				l.merge(send(t, h.frames[n%len(h.frames)]))
				h.checkLife(t, l)
				if want, known := truth[l.applied]; known && want != l.digest {
					t.Fatalf("seed %d: at version %d the digest is %x, want %x", seed, l.applied, l.digest, want)
				}
			}
			l.merge(send(t, h.owner.cut(l.applied)))
			if err := sameLife(l, h.owner); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	}
}

func TestMergeIsIdempotent(t *testing.T) {
	for seed := range uint64(20) {
		h := newHistory(seed, 40)
		for _, c := range h.frames {
			l := newLife(h.owner.id)
			l.merge(send(t, c))
			was := fmt.Sprint(live(l), l.applied, l.digest, l.floor)
			if _, _, o := l.merge(send(t, c)); o == merged && c.to > 0 {
				t.Fatal("the same frame was merged twice")
			}
			if is := fmt.Sprint(live(l), l.applied, l.digest, l.floor); is != was {
				t.Fatalf("%s became %s", was, is)
			}
		}
	}
}

// Two frames that both apply, in both orders.
func TestMergeCommutes(t *testing.T) {
	for seed := range uint64(20) {
		h := newHistory(seed, 30)
		for range 50 {
			a, b := h.frames[h.rnd.IntN(len(h.frames))], h.frames[h.rnd.IntN(len(h.frames))]
			if a.from != 0 || b.from != 0 {
				continue // of a prefix alone, one may need the other first
			}
			x, y := newLife(h.owner.id), newLife(h.owner.id)
			x.merge(send(t, a))
			x.merge(send(t, b))
			y.merge(send(t, b))
			y.merge(send(t, a))
			if err := sameLife(x, y); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	}
}

// Several holders at different prefixes serve one that has nothing, as they
// do after the owner's death (F06, F12).
func TestAnyHolderMayServe(t *testing.T) {
	for seed := range uint64(30) {
		h := newHistory(seed, 60)
		holders := []*life{newLife(h.owner.id), newLife(h.owner.id), newLife(h.owner.id)}
		for range 400 {
			to, from := holders[h.rnd.IntN(3)], h.rnd.IntN(4)
			switch {
			case from == 3 && h.rnd.IntN(8) == 0:
				to.merge(send(t, h.frames[h.rnd.IntN(len(h.frames))]))
			case from < 3:
				to.merge(send(t, holders[from].cut(to.applied)))
			}
			if h.rnd.IntN(20) == 0 {
				to.forget(registry.StampAt(int64(h.rnd.Uint64N(to.applied+1))), 1<<20)
			}
			h.checkLife(t, to)
		}
		for range 2 {
			for n := range holders {
				holders[n].merge(send(t, holders[(n+1)%3].cut(holders[n].applied)))
			}
		}
		for n := 1; n < 3; n++ {
			if err := sameLife(holders[0], holders[n]); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	}
}

func TestGapIsNotApplied(t *testing.T) {
	h := newHistory(1, 20)
	l := newLife(h.owner.id)
	c := cut{life: h.owner.id, from: 7, to: h.owner.applied, records: h.owner.above(7)}
	if _, _, o := l.merge(send(t, c)); o != gap || l.applied != 0 || len(l.records) != 0 {
		t.Fatalf("outcome %v, applied %d, %d records", o, l.applied, len(l.records))
	}
}

// A whole life deletes what its sender does not have, up to its version only.
func TestWholeLifeDeletesAbsentKeys(t *testing.T) {
	id := testLife(1, 1)
	sender, receiver := newLife(id), newLife(id)
	for v, key := range []string{"a", "b", "c"} {
		receiver.put(testRecord(99, key, uint64(v+1), false, ""))
	}
	receiver.applied = 3
	sender.put(testRecord(99, "a", 1, false, ""))
	sender.put(testRecord(99, "b", 4, true, ""))
	sender.put(testRecord(99, "d", 5, false, ""))
	sender.applied, sender.floor = 6, 6 // the tombstone of c at 6 was forgotten
	_, absent, o := receiver.merge(send(t, sender.cut(3)))
	if o != merged || len(absent) != 1 || absent[0].key != mapKey(99, []byte("c")) || receiver.applied != 6 || receiver.floor != 6 {
		t.Fatalf("outcome %v, absent %v, applied %d, floor %d", o, absent, receiver.applied, receiver.floor)
	}
	if err := sameLife(sender, receiver); err != nil {
		t.Fatal(err)
	}
}

// A digest that differs at the same version is mended by the owner; two
// holders of an ended life meet in the middle and do not swap for ever.
func TestRepair(t *testing.T) {
	id := testLife(1, 1)
	fill := func(corrupt string, version uint64) *life {
		l := newLife(id)
		for v := uint64(1); v <= 5; v++ {
			value := "good"
			if v == version {
				value = corrupt
			}
			if value != "missing" {
				l.put(testRecord(99, fmt.Sprint("k", v), v, false, value))
			}
		}
		l.applied = 5
		return l
	}
	owner := fill("good", 1)
	for _, bad := range []*life{fill("bad", 2), fill("missing", 3)} {
		bad.suspect = true
		f := send(t, owner.cut(0))
		f.byOwner = true
		if _, _, o := bad.merge(f); o != merged || bad.suspect {
			t.Fatalf("outcome %v", o)
		}
		if err := sameLife(owner, bad); err != nil {
			t.Fatal(err)
		}
	}
	// The owner has gone on writing meanwhile.
	busy := fill("good", 1)
	busy.put(testRecord(99, "k9", 6, false, ""))
	busy.applied = 6
	for _, bad := range []*life{fill("bad", 2), fill("missing", 3)} {
		bad.suspect = true
		f := send(t, busy.cut(0))
		f.byOwner = true
		bad.merge(f)
		if err := sameLife(busy, bad); err != nil {
			t.Fatal(err)
		}
	}
	a, b := fill("bad", 2), fill("missing", 4)
	a.suspect, b.suspect = true, true
	fromA, fromB := send(t, a.cut(0)), send(t, b.cut(0))
	a.merge(fromB)
	b.merge(fromA)
	if err := sameLife(a, b); err != nil {
		t.Fatal(err)
	}
}

// F24: 5,000 deregistrations a second for 20 minutes.
func TestTombstonesAreBounded(t *testing.T) {
	l := newLife(testLife(1, 1))
	const most = 1 << 20
	version := uint64(0)
	for second := range 120 {
		for n := range 500 {
			for _, gone := range []bool{false, true} {
				version++
				l.put(testRecord(99, fmt.Sprint("k", second, n), version, gone, "x"))
			}
		}
		l.applied = version
		l.forget(0, most)
		if l.tombstoneBytes > most || len(l.order) > 4*len(l.records)+1200 || len(l.tombstones) > len(l.order) {
			t.Fatalf("%d bytes of tombstones, %d of %d in order", l.tombstoneBytes, len(l.records), len(l.order))
		}
	}
	if l.floor == 0 || l.floor >= l.applied {
		t.Fatalf("floor %d of %d", l.floor, l.applied)
	}
	late := newLife(l.id)
	late.put(testRecord(99, "k00", 1, false, "x"))
	late.applied = 1
	if _, absent, _ := late.merge(send(t, l.cut(late.applied))); len(absent) != 1 {
		t.Fatalf("what was deregistered below the floor is still there: %v", absent)
	}
	if err := sameLife(l, late); err != nil {
		t.Fatal(err)
	}
}

func TestForgetByAge(t *testing.T) {
	l := newLife(testLife(1, 1))
	for v := uint64(1); v <= 10; v++ {
		l.put(testRecord(99, fmt.Sprint(v), v, true, ""))
	}
	l.applied = 10
	if n := l.forget(registry.StampAt(6), 1<<20); n != 5 || l.floor != 5 || len(l.records) != 5 {
		t.Fatalf("forgot %d, floor %d, %d left", n, l.floor, len(l.records))
	}
}

// A large frame goes as parts and is applied as one.
func TestParts(t *testing.T) {
	l := newLife(testLife(1, 1))
	big := strings.Repeat("x", 300_000)
	for v := uint64(1); v <= 10; v++ {
		l.put(testRecord(99, fmt.Sprint(v), v, false, big))
	}
	l.put(testRecord(99, "huge", 11, false, strings.Repeat(big, 5)))
	l.applied = 11
	var parts [][]byte
	if err := l.cut(0).parts(7, func(b []byte) error { parts = append(parts, b); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(parts) < 4 {
		t.Fatalf("%d parts", len(parts))
	}
	for n, p := range parts {
		if n < len(parts)-1 && len(p) > maxPart+1000 {
			t.Errorf("part %d has %d bytes", n, len(p))
		}
	}
	var s *staged
	for done, n := range rand.Perm(len(parts)) {
		m, err := readMessage(parts[n])
		if err != nil {
			t.Fatal(err)
		}
		if s == nil {
			s = newStaged(0, int(m.GetFrame().GetParts()))
		}
		f, err := readFrame(m.GetFrame())
		if err != nil {
			t.Fatal(err)
		}
		whole, err := s.add(f, int(m.GetFrame().GetPart()))
		if err != nil || (whole != nil) != (done == len(parts)-1) {
			t.Fatalf("after %d of %d parts: %v, %v", done+1, len(parts), whole, err)
		}
		if whole != nil {
			r := newLife(l.id)
			r.merge(whole)
			if err := sameLife(l, r); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A large batch that is written again and again stays once, or a few times.
func TestReplacedRecordsAreLetGo(t *testing.T) {
	l := newLife(testLife(1, 1))
	big := strings.Repeat("x", 300<<10)
	for v := uint64(1); v <= 50; v++ {
		l.put(testRecord(99, "batch", v, false, big))
		l.applied = v
		l.compact()
		bytes := 0
		for _, r := range l.order {
			bytes += len(r.raw)
		}
		if bytes > l.bytes+staleBytes {
			t.Fatalf("%d bytes for a life of %d", bytes, l.bytes)
		}
	}
}
