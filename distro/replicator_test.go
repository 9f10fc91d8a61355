package distro

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/starling-registry/starling/pkg/registry"
	pb "github.com/starling-registry/starling/proto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// nobody is a network without other nodes.
type nobody struct{}

func (nobody) Broadcast([]byte) bool                                          { return false }
func (nobody) Send(context.Context, string, []byte) error                     { return errDown }
func (nobody) Pull(context.Context, string, []byte, func([]byte) error) error { return errDown }

// alone is a replicator of node 9 that was not started.
func alone(t testing.TB) *Replicator {
	o := DefaultOptions()
	o.Peers, o.Life, o.Clock, o.Metrics, o.Logger = nobody{}, testLife(9, 5), registry.NewClock(0, 0), prometheus.NewRegistry(), zap.NewNop()
	o.Dial = func(context.Context, string) error { return errDown }
	ro := registry.DefaultOptions()
	ro.Life, ro.Clock = o.Life, o.Clock
	o.Registry = registry.New(ro)
	return New(o)
}

func TestValidate(t *testing.T) {
	o := alone(t).opts
	for name, change := range map[string]func(*Options){
		"no registry":                   func(o *Options) { o.Registry = nil },
		"no life":                       func(o *Options) { o.Life.Node = "n1" },
		"no tick":                       func(o *Options) { o.Tick = 0 },
		"drops are forgotten too early": func(o *Options) { o.DropMemory = 3 * time.Minute },
	} {
		bad := o
		change(&bad)
		if bad.Validate() == nil {
			t.Errorf("%s: valid", name)
		}
	}
}

// Bad input is counted by reason, and changes nothing.
func TestRefused(t *testing.T) {
	at := func(l registry.Life, change func(*pb.Heads)) []byte {
		hs := &pb.Heads{Life: lifeMessage(l), Clock: uint64(registry.StampAt(time.Now().UnixMilli())), Heads: []*pb.Head{{Life: lifeMessage(l), Applied: 1}}}
		change(hs)
		return encodeHeads(hs)
	}
	frame := func(l registry.Life, from, to uint64, raw ...[]byte) []byte {
		return encode(&pb.Message{Body: &pb.Message_Frame{Frame: &pb.Frame{Life: lifeMessage(l), From: from, To: to, Records: raw}}})
	}
	peer := testLife(1, 3)
	record := encodeRecord(99, "k", 1, registry.StampAt(time.Now().UnixMilli()), false, nil)
	late := encodeRecord(99, "k", 1, registry.StampAt(time.Now().UnixMilli()+90_000_000), false, nil)
	nonsense := encodeRecord(kindPublication, "\xff", 1, 1, false, []byte("\xff"))
	for _, c := range []struct {
		name, reason string
		msg          []byte
	}{
		{"not a message", badMessage, []byte("\xff\xff")},
		{"too large", badOversized, make([]byte, maxMessage+1)},
		{"nothing", badUnknown, nil},
		{"of a newer release", badUnknown, []byte{0xfa, 0x01, 0x00}},
		{"heads of another", badOwner, at(testLife(2, 1), func(*pb.Heads) {})},
		{"heads of an older run", badEpoch, at(testLife(1, 2), func(*pb.Heads) {})},
		{"clock ahead", badClock, at(peer, func(h *pb.Heads) { h.Clock += 90_000_000 << 16 })},
		{"clock behind", badClock, at(peer, func(h *pb.Heads) { h.Clock -= 90_000_000 << 16 })},
		{"owner's clock ahead", badClock, at(peer, func(h *pb.Heads) { h.Heads[0].OwnerClock = h.Clock + 90_000_000<<16 })},
		{"head without a life", badMessage, at(peer, func(h *pb.Heads) { h.Heads[0].Life.Node = "" })},
		{"state of a newer release", badMessage, at(peer, func(h *pb.Heads) { h.Heads[0].State = 9 })},
		{"own life, above what was written", badAboveOwn, frame(testLife(9, 5), 0, 3)},
		{"own node, later run", badAboveOwn, at(peer, func(h *pb.Heads) { h.Heads[0].Life = lifeMessage(testLife(9, 6)) })},
		{"of a node that nobody knows", badOwner, frame(testLife(7, 1), 0, 1, record)},
		{"damaged record", badRecord, frame(peer, 0, 1, record[1:])},
		{"record outside of its frame", badRecord, frame(peer, 0, 0, record)},
		{"record from tomorrow", badClock, frame(peer, 0, 1, late)},
		{"unreadable value", badUnreadable, frame(peer, 0, 1, nonsense)},
		{"gap", badGap, frame(peer, 5, 6)},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := alone(t)
			outlived := 0
			d.opts.Outlived = func() { outlived++ }
			d.Members([]Member{{ID: peer.Node, Epoch: peer.Epoch}})
			own := d.own.applied
			for range 2 {
				d.Message(peer.Node, Stream, bytes.Clone(c.msg))
			}
			if got := testutil.ToFloat64(d.metrics.refused.WithLabelValues(c.reason)); got == 0 {
				t.Errorf("not counted as %s", c.reason)
			}
			if want := c.reason == badAboveOwn; want != (outlived == 1) || d.own.applied != own {
				t.Errorf("outlived %d times, own version %d", outlived, d.own.applied)
			}
			d.Stop()
		})
	}
	t.Run("replayed", func(t *testing.T) {
		d := alone(t)
		defer d.Stop()
		msg := at(peer, func(*pb.Heads) {})
		for range 2 {
			d.Message(peer.Node, Gossip, bytes.Clone(msg))
		}
		if got := testutil.ToFloat64(d.metrics.refused.WithLabelValues(badReplayed)); got != 1 {
			t.Errorf("%v", got)
		}
	})
	t.Run("too many lives", func(t *testing.T) {
		d := alone(t)
		defer d.Stop()
		d.opts.MaxLives = 10
		d.Members([]Member{{ID: peer.Node, Epoch: peer.Epoch}})
		d.Message(peer.Node, Stream, at(peer, func(h *pb.Heads) {
			for n := range 50 {
				h.Heads = append(h.Heads, &pb.Head{Life: lifeMessage(testLife(2, uint64(n+1))), Applied: 1, State: uint32(n % 3), Dropped: h.Clock})
			}
		}))
		if len(d.lives) > 10 {
			t.Errorf("%d lives", len(d.lives))
		}
	})
}

// Another node restores this one's life from a time that this process does not
// remember: it goes on under a new epoch.
func TestOutlived(t *testing.T) {
	run(t, 2, func(w *world) {
		w.startAll()
		w.client(0, "a", 80)
		time.Sleep(2 * time.Second)
		w.kill(0)
		w.nodes[0].life.Epoch-- // its disk was set back
		w.start(0)
		w.see(0, 1, Alive)
		w.connect(1, 0)
		time.Sleep(2 * time.Second)
		if w.nodes[0].outlived.Load() != 1 {
			t.Fatalf("told %d times", w.nodes[0].outlived.Load())
		}
	})
}

// Records of a kind that only a newer release knows are kept and handed on.
func TestUnknownKindIsHandedOn(t *testing.T) {
	run(t, 3, func(w *world) {
		w.gossipLoss = 100
		w.startAll()
		w.sever(0, 2, true)
		d := w.nodes[0].d
		raw := encodeRecord(77, "key", 1, w.nodes[0].clock.Now(), false, []byte("value"))
		r, err := decodeRecord(raw, nil)
		if err != nil {
			t.Fatal(err)
		}
		d.mu.Lock()
		d.own.put(r.record)
		d.own.applied = 1
		d.mu.Unlock()
		time.Sleep(1500 * time.Millisecond)
		w.kill(0)
		w.allSee(0, Refused)
		time.Sleep(2 * time.Second)
		w.expectEqual(1, 2)
		last := w.nodes[2].d
		last.mu.Lock()
		defer last.mu.Unlock()
		if got := last.lives[w.nodes[0].life].records[r.key]; got == nil || !bytes.Equal(got.raw, raw) {
			t.Fatalf("%+v", got)
		}
	})
}

// A stream that is not busy all the time sends at once, a busy one at its pace,
// and what it has saved by being quiet is bounded.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := alone(t)
		d.mu.Lock()
		p := d.peerLocked(testLife(2, 1).Node)
		p.fresh, p.headsDue = false, false
		d.mu.Unlock()
		change := func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.own.applied++
		}
		atOnce := func() (n int, pause time.Duration) {
			for {
				change()
				j, pause := d.nextJob(p)
				if j == nil {
					return n, pause
				}
				n++
			}
		}
		f := func(quiet time.Duration, want int, wantPause time.Duration) {
			t.Helper()
			time.Sleep(quiet)
			if n, pause := atOnce(); n != want || pause != wantPause {
				t.Errorf("after %v: %d at once, then a pause of %v; want %d and %v", quiet, n, pause, want, wantPause)
			}
		}
		pace := d.opts.BusyFor
		f(0, busyBurst, pace)
		f(pace/2, 0, pace/2)
		f(pace/2, 1, pace)
		f(3*pace, 3, pace)
		f(time.Minute, busyBurst, pace)

		d.mu.Lock()
		p.reliable = true // each is a connection of its own
		d.mu.Unlock()
		f(time.Minute, 1, d.opts.ReliableFor)
		f(d.opts.ReliableFor, 1, d.opts.ReliableFor)
	})
}

// An askingRegistry asks something before it shows anything new.
type askingRegistry struct {
	*registry.Registry
	ask func()
}

func (r askingRegistry) Apply(l registry.Life, records []registry.Record) {
	r.ask()
	r.Registry.Apply(l, records)
}

func TestReadiness(t *testing.T) {
	ready := func(w *world, n int, want bool, why string) {
		t.Helper()
		if ok, is := w.nodes[n].d.Ready(); ok != want || !strings.Contains(is, why) {
			w.t.Errorf("ready: %v, %q; want %v, %q", ok, is, want, why)
		}
	}
	t.Run("without join at once", func(t *testing.T) {
		run(t, 1, func(w *world) {
			w.start(0)
			ready(w, 0, true, "")
		})
	})
	t.Run("nobody reachable", func(t *testing.T) {
		run(t, 2, func(w *world) {
			w.start(0)
			time.Sleep(4900 * time.Millisecond)
			ready(w, 0, false, "first peer")
			time.Sleep(1200 * time.Millisecond)
			ready(w, 0, true, "")
		})
	})
	t.Run("after the living owners' heads", func(t *testing.T) {
		run(t, 2, func(w *world) {
			w.options = func(o *Options) { o.Joined = o.Life.Node == testLife(2, 1).Node }
			w.start(0)
			for i := range 20 {
				w.registerBig(w.nodes[0].reg.Open(fmt.Sprint("c", i), registry.Connection), 1000+i, strings.Repeat("x", 200_000))
			}
			time.Sleep(time.Second)
			w.set(func() { w.partDelay = 300 * time.Millisecond })
			w.start(1)
			w.see(0, 1, Alive)
			w.see(1, 0, Alive)
			time.Sleep(time.Second)
			ready(w, 1, false, "version 0 of 20")
			time.Sleep(2 * time.Second)
			ready(w, 1, true, "")
			w.expectEqual(0, 1)
		})
	})
	t.Run("when readers see it", func(t *testing.T) {
		run(t, 2, func(w *world) {
			asked := 0
			w.options = func(o *Options) {
				if o.Joined = o.Life.Node == testLife(2, 1).Node; o.Joined {
					o.Registry = askingRegistry{w.nodes[1].reg, func() {
						asked++
						ready(w, 1, false, "version 0 of 1")
					}}
				}
			}
			w.start(0)
			w.client(0, "a", 80)
			time.Sleep(time.Second)
			w.start(1)
			w.see(0, 1, Alive)
			w.see(1, 0, Alive)
			time.Sleep(2 * time.Second)
			ready(w, 1, true, "")
			w.expectShown("80", 1)
			if asked != 1 {
				t.Error(asked)
			}
		})
	})
	t.Run("at most 10 s", func(t *testing.T) {
		run(t, 2, func(w *world) {
			w.options = func(o *Options) { o.Joined = o.Life.Node == testLife(2, 1).Node }
			w.start(0)
			w.client(0, "a", 80)
			w.start(1)
			w.severStream(0, 1)
			w.sever(0, 1, true) // a member, but no word from it
			w.see(1, 0, Alive)
			time.Sleep(9500 * time.Millisecond)
			ready(w, 1, false, "heads of n0")
			time.Sleep(1500 * time.Millisecond)
			ready(w, 1, true, "")
		})
	})
	t.Run("all start at once", func(t *testing.T) {
		run(t, 3, func(w *world) {
			w.startAll() // checks it
		})
	})
	t.Run("whole cluster restarts", func(t *testing.T) { // F20
		run(t, 3, func(w *world) {
			w.startAll()
			w.client(0, "a", 80)
			w.client(1, "b", 90)
			time.Sleep(12 * time.Second)
			for n := range 3 {
				w.kill(n)
			}
			time.Sleep(10 * time.Second)
			w.startAll()
			for range 20 {
				w.expectShown("80 90", 0, 1, 2)
				time.Sleep(time.Second)
			}
			time.Sleep(20 * time.Second)
			w.expectShown("", 0, 1, 2)
			w.expectEqual(0, 1, 2)
		})
	})
	t.Run("draining", func(t *testing.T) {
		run(t, 1, func(w *world) {
			w.start(0)
			w.nodes[0].d.SetDraining(true)
			ready(w, 0, false, "draining")
			w.nodes[0].d.SetDraining(false)
			ready(w, 0, true, "")
		})
	})
	t.Run("stalled", func(t *testing.T) {
		run(t, 2, func(w *world) {
			w.startAll()
			w.nodes[0].d.Stalled()
			ready(w, 0, false, "heads of n1")
			time.Sleep(1500 * time.Millisecond)
			ready(w, 0, true, "")
		})
	})
}

func TestSnapshot(t *testing.T) {
	run(t, 2, func(w *world) {
		w.options = func(o *Options) { o.Joined = false }
		w.startAll()
		w.client(0, "a", 80)
		w.client(1, "b", 90)
		gone := w.client(1, "c", 91)
		time.Sleep(time.Second)
		gone.Deregister(testService, registry.InstanceKey{})
		time.Sleep(time.Second)
		w.stop(0) // writes the last one
		w.kill(1)
		good := w.nodes[0].snapshot

		restart := func(snapshot []byte, after time.Duration) {
			w.nodes[0].snapshot = snapshot
			time.Sleep(after)
			w.start(0)
		}
		restart(good, time.Second)
		w.expectShown("80 90", 0)
		for _, l := range w.nodes[0].d.Status().Lives {
			if l.Life != w.nodes[0].life && (l.State != registry.Orphaned || l.Applied == 0 || l.LeaseLeft < 29*time.Second) {
				t.Errorf("%+v", l)
			}
		}
		w.client(0, "a2", 80)
		time.Sleep(40 * time.Second)
		w.expectShown("80", 0)
		w.stop(0)

		for n := 0; n < len(good); n += 7 {
			bad := bytes.Clone(good)
			bad[n] ^= 1
			if _, err := readSnapshot(bytes.NewReader(bad), w.nodes[0].clock.Millis(), time.Hour); err == nil {
				t.Fatalf("byte %d is wrong, and it is read", n)
			}
			if _, err := readSnapshot(bytes.NewReader(good[:n]), w.nodes[0].clock.Millis(), time.Hour); !errors.Is(err, ErrSnapshot) {
				t.Fatalf("cut to %d bytes: %v", n, err)
			}
		}
		bad := bytes.Clone(good)
		bad[len(bad)/2] ^= 1
		restart(bad, 0)
		w.expectShown("", 0)
		w.expectCount(0, "failed_snapshots_total", 1)
		w.kill(0)

		restart(good, 5*time.Minute)
		w.expectShown("", 0)
		if _, err := readSnapshot(bytes.NewReader(good), w.nodes[0].clock.Millis(), 5*time.Minute); !errors.Is(err, ErrSnapshotOld) {
			t.Error(err)
		}
		newer := bytes.Clone(good)
		newer[len(snapshotMagic)]++
		if _, err := readSnapshot(bytes.NewReader(newer), 0, time.Hour); !errors.Is(err, ErrSnapshotVersion) {
			t.Error(err)
		}
	})
}

// A snapshot keeps the memory of a drop, and of what was hidden.
func TestSnapshotKeepsDrops(t *testing.T) {
	run(t, 2, func(w *world) {
		w.options = func(o *Options) { o.Joined = false }
		w.startAll()
		w.client(1, "b", 90)
		time.Sleep(time.Second)
		dead := w.nodes[1].life
		w.kill(1)
		w.see(0, 1, Refused)
		time.Sleep(20 * time.Second)
		w.expectState(0, dead, registry.Dropped)
		w.stop(0)
		w.start(0)
		w.expectState(0, dead, registry.Dropped)
		w.expectShown("", 0)
		if l, _ := w.lifeState(0, dead); l.Records != 1 {
			t.Errorf("%+v", l)
		}
	})
}

// What was written on the way to now is carried in the record's hides, for the
// grace.
func TestWriterCarriesHides(t *testing.T) {
	run(t, 1, func(w *world) {
		w.options = func(o *Options) { o.Joined = true } // who is alone needs none
		w.start(0)
		d := w.nodes[0].d
		hides := func() (ports []int) {
			d.mu.Lock()
			defer d.mu.Unlock()
			for _, r := range d.own.records {
				f, err := readFields(r.raw)
				if err != nil {
					t.Fatal(err)
				}
				for _, h := range readPublication(f, nil).Hides {
					ports = append(ports, h.Port)
				}
			}
			return ports
		}
		c := w.client(0, "a", 80)
		synctest.Wait()
		for port := 81; port < 84; port++ {
			w.register(c, port)
			time.Sleep(time.Second)
		}
		if got := hides(); len(got) != 3 {
			t.Fatalf("hides of %v", got)
		}
		before := w.applied(0)
		d.Wrote(registry.RecordKey{Client: "a", Service: testService})
		d.Wrote(registry.RecordKey{Client: "stranger", Service: testService})
		time.Sleep(time.Second)
		if w.applied(0) != before {
			t.Error("nothing has changed, and it was written")
		}
		time.Sleep(11 * time.Minute)
		w.register(c, 84)
		time.Sleep(time.Second)
		if got := hides(); len(got) != 1 || got[0] != 83 {
			t.Fatalf("after the grace: hides of %v", got)
		}
	})
}

func TestMergeHides(t *testing.T) {
	key := func(port int) registry.InstanceKey { return registry.InstanceKey{IP: "i", Port: port} }
	a := []registry.Hide{{InstanceKey: key(1), UpTo: 5, Made: 20}, {InstanceKey: key(1), UpTo: 3, Made: 21, Strong: true}, {InstanceKey: key(2), UpTo: 9, Made: 9}}
	b := []registry.Hide{{InstanceKey: key(1), UpTo: 4, Made: 30}, {InstanceKey: key(3), UpTo: 1, Made: 31}}
	got, cut := mergeHides(a, b, 10, 0)
	want := []registry.Hide{{InstanceKey: key(3), UpTo: 1, Made: 31}, {InstanceKey: key(1), UpTo: 3, Made: 21, Strong: true}, {InstanceKey: key(1), UpTo: 5, Made: 20}}
	if fmt.Sprint(got) != fmt.Sprint(want) || cut != 0 {
		t.Errorf("%v, %d", got, cut)
	}
	if got, cut := mergeHides(a, b, 10, 2); len(got) != 2 || cut != 1 || got[0].Made != 31 {
		t.Errorf("%v, %d", got, cut)
	}
}

func headsOf(l registry.Life, clock int64, heads ...*pb.Head) []byte {
	return encodeHeads(&pb.Heads{Life: lifeMessage(l), Clock: uint64(registry.StampAt(clock)), Full: true, Heads: heads})
}

// Clocks are held against the wall, not against what was adopted: else each
// step of a day would allow the next one.
func TestClockDoesNotRunAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := alone(t)
		defer d.Stop()
		peer := testLife(1, 3)
		d.Members([]Member{{ID: peer.Node, Epoch: peer.Epoch}})
		at := time.Now().UnixMilli()
		for n := range uint64(5) {
			at += 23 * 3_600_000
			d.Message(peer.Node, Stream, headsOf(peer, at, &pb.Head{Life: lifeMessage(peer), OwnerClock: uint64(registry.StampAt(at))}))
			r := encodeRecord(99, "k", n+1, registry.StampAt(at), false, nil)
			d.Message(peer.Node, Stream, encode(&pb.Message{Body: &pb.Message_Frame{Frame: &pb.Frame{Life: lifeMessage(peer), From: n, To: n + 1, Whole: n == 0, Records: [][]byte{r}}}}))
		}
		if ahead := d.now() - time.Now().UnixMilli(); ahead > 24*3_600_000 {
			t.Errorf("%v ahead", time.Duration(ahead)*time.Millisecond)
		}
		if got := testutil.ToFloat64(d.metrics.refused.WithLabelValues(badClock)); got != 5 {
			t.Errorf("%v refused", got)
		}
	})
}

// It is membership that says when a node has started again: a life that it has
// not heard of does not end the one that is there, whoever tells of it.
func TestLifeThatNeverWas(t *testing.T) {
	run(t, 3, func(w *world) {
		w.startAll()
		w.client(1, "a", 80)
		time.Sleep(2 * time.Second)
		d, b := w.nodes[0].d, w.nodes[1].life
		never := registry.Life{Node: b.Node, Epoch: b.Epoch + 7}
		for _, from := range []int{1, 2} {
			of := w.nodes[from].life
			if from == 1 {
				of = never
			}
			now := w.nodes[0].clock.Millis()
			d.Message(of.Node, Gossip, headsOf(of, now, &pb.Head{Life: lifeMessage(never), Applied: 1, OwnerClock: uint64(registry.StampAt(now))}))
			d.Message(of.Node, Gossip, encode(&pb.Message{Body: &pb.Message_Frame{Frame: &pb.Frame{Life: lifeMessage(never), To: 1, Whole: true}}}))
		}
		if got := testutil.ToFloat64(d.metrics.refused.WithLabelValues(badEarly)); got != 4 {
			t.Errorf("refused %v", got)
		}
		time.Sleep(time.Minute)
		w.expectState(0, b, registry.Living)
		w.expectEqual(0, 1, 2)
	})
}

// The lives of members that are there have room, whatever else is told.
func TestMembersHaveRoom(t *testing.T) {
	d := alone(t)
	defer d.Stop()
	d.opts.MaxLives = 10
	peer, late := testLife(1, 3), testLife(2, 5)
	d.Members([]Member{{ID: peer.Node, Epoch: peer.Epoch}})
	now := time.Now().UnixMilli()
	var strange []*pb.Head
	for n := range 50 {
		strange = append(strange, &pb.Head{Life: lifeMessage(testLife(100+n, 1)), Applied: 1, State: uint32(registry.Orphaned)})
	}
	d.Message(peer.Node, Stream, headsOf(peer, now, strange...))
	d.Members([]Member{{ID: peer.Node, Epoch: peer.Epoch}, {ID: late.Node, Epoch: late.Epoch}})
	d.Message(late.Node, Stream, headsOf(late, now, &pb.Head{Life: lifeMessage(late), OwnerClock: uint64(registry.StampAt(now))}))
	d.Message(peer.Node, Stream, headsOf(peer, now+1, &pb.Head{Life: lifeMessage(peer), OwnerClock: uint64(registry.StampAt(now))}))
	if d.lives[late] == nil || d.lives[peer] == nil || len(d.lives) > 12 {
		t.Errorf("%d lives: %v, %v", len(d.lives), d.lives[late], d.lives[peer])
	}
}

// Frames of which parts never come cost no more than what has come, and that
// is bounded.
func TestPartsThatNeverCome(t *testing.T) {
	d := alone(t)
	defer d.Stop()
	peer := testLife(1, 1000)
	d.Members([]Member{{ID: peer.Node, Epoch: peer.Epoch}})
	d.opts.StagedBytes = 100_000
	part := func(epoch, transfer uint64, part, parts uint32, records ...[]byte) {
		d.Message(peer.Node, Stream, encode(&pb.Message{Body: &pb.Message_Frame{Frame: &pb.Frame{Life: lifeMessage(testLife(1, epoch)), To: 1 << 40, Whole: true,
			Part: part, Parts: parts, Transfer: transfer, Records: records}}}))
	}
	for epoch := range uint64(500) {
		part(epoch+1, 1, 0, maxParts)
	}
	if len(d.staged) != maxStaged {
		t.Errorf("%d frames wait", len(d.staged))
	}
	for n := range uint64(10) {
		r := encodeRecord(99, fmt.Sprint(n), n+1, 1, false, make([]byte, 30_000))
		part(1000, 2, uint32(n), 1000, r)
		if d.stagedBytes > 140_000 {
			t.Fatalf("%d bytes wait", d.stagedBytes)
		}
	}
	if testutil.ToFloat64(d.metrics.refused.WithLabelValues(badTransmitted)) < 498 {
		t.Error("not counted")
	}
	d.mu.Lock()
	for k := range d.staged {
		d.unstageLocked(k)
	}
	if d.stagedBytes != 0 {
		t.Errorf("%d bytes of nothing", d.stagedBytes)
	}
	d.mu.Unlock()
}

// A node whose clock is a day off from all others' takes nothing of them, and
// so no clients either.
func TestFarClockIsNotReady(t *testing.T) {
	run(t, 4, func(w *world) {
		w.nodes[3].skew = 25 * time.Hour
		for n := range w.nodes {
			w.start(n)
		}
		for n := range w.nodes {
			for p := range w.nodes {
				w.nodes[n].state[p] = Alive
			}
			w.tell(n)
		}
		time.Sleep(time.Minute)
		for n, nd := range w.nodes {
			if ok, why := nd.d.Ready(); ok == (n == 3) || n == 3 && !strings.Contains(why, "clock") {
				t.Errorf("node %d: %v, %s", n, ok, why)
			}
		}
		w.expectEqual(0, 1, 2)
	})
}
