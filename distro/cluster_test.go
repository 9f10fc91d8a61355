package distro

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/starling-registry/starling/pkg/registry"
	pb "github.com/starling-registry/starling/proto"
)

// Whatever the carriers do, all nodes end with the same.
func TestConvergence(t *testing.T) {
	for _, c := range []struct {
		name       string
		noStreams  bool
		noGossip   bool
		loss, same int
	}{
		{name: "all carriers", loss: 30, same: 30},
		{name: "streams cut for good", noStreams: true, loss: 30, same: 30},
		{name: "gossip frames off", noGossip: true, same: 20},
		{name: "reliable messages only", noStreams: true, noGossip: true, loss: 90, same: 30},
	} {
		t.Run(c.name, func(t *testing.T) {
			run(t, 3, func(w *world) {
				w.gossipLoss, w.repeat = c.loss, c.same
				w.options = func(o *Options) { o.GossipFrames = !c.noGossip }
				if c.noStreams {
					w.severStream(0, 1)
					w.severStream(1, 2)
					w.severStream(0, 2)
				}
				w.startAll()
				clients := make([][]*registry.Client, 3)
				for n := range 3 {
					for i := range 20 {
						clients[n] = append(clients[n], w.client(n, fmt.Sprint("c", n, "-", i), 1000*(n+1)+i))
					}
				}
				for range 600 {
					n, i := w.intn(3), w.intn(20)
					switch w.intn(4) {
					case 0:
						clients[n][i].Deregister(testService, registry.InstanceKey{})
					default:
						w.register(clients[n][i], 1000*(n+1)+w.intn(20))
					}
					time.Sleep(time.Duration(w.intn(10)) * time.Millisecond)
				}
				time.Sleep(2 * time.Second)
				w.expectEqual(0, 1, 2)
				if w.shown(0) == "" {
					t.Fatal("nothing is shown")
				}
				if pulls := w.count(1, "pulls_total"); !c.noStreams && pulls > 12 {
					t.Errorf("%v pulls, though the streams stand", pulls)
				}
				w.expectCount(0, "repairs_total", 0)
			})
		})
	}
}

func TestChangeTravelsAtOnce(t *testing.T) {
	run(t, 2, func(w *world) {
		w.gossipLoss = 100
		w.startAll()
		w.client(0, "c", 80)
		time.Sleep(15 * time.Millisecond)
		w.expectShown("80", 0, 1)
	})
}

// F05: keys are written again while a peer lags.
func TestF05LaggingPeer(t *testing.T) {
	run(t, 3, func(w *world) {
		w.startAll()
		c := w.client(0, "c", 80)
		d := w.client(0, "d", 90)
		time.Sleep(time.Second)
		w.freeze(1)
		for i := range 6 {
			w.registerBig(c, 80, fmt.Sprint(i))
			w.registerBig(d, 90, fmt.Sprint(i))
			time.Sleep(150 * time.Millisecond)
		}
		w.thaw(1)
		for i := range 6 {
			w.registerBig(c, 80, fmt.Sprint(10+i))
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(2 * time.Second)
		w.expectEqual(0, 1, 2)
		w.expectCount(1, "repairs_total", 0)
	})
}

// F06: the sender of a large difference dies after its first part. The
// survivors are at different prefixes.
func TestF06SenderDiesWithinATransfer(t *testing.T) {
	run(t, 3, func(w *world) {
		w.gossipLoss = 100
		w.startAll()
		w.sever(0, 1, true)
		for i := range 20 {
			w.registerBig(w.nodes[0].reg.Open(fmt.Sprint("c", i), registry.Connection), 1000+i, strings.Repeat("x", 200_000))
		}
		time.Sleep(500 * time.Millisecond)
		w.sever(1, 2, true) // only A has the end of it
		w.sever(0, 2, true)
		w.registerBig(w.nodes[0].reg.Open("last", registry.Connection), 2000, "")
		w.set(func() { w.partDelay = 300 * time.Millisecond })
		w.sever(0, 1, false)
		w.connect(0, 1)
		time.Sleep(800 * time.Millisecond)
		w.kill(0)
		w.sever(0, 1, true)
		w.sever(1, 2, false)
		w.connect(1, 2)
		w.connect(2, 1)
		w.allSee(0, Refused)
		time.Sleep(9 * time.Second)
		w.expectEqual(1, 2)
		if l, _ := w.lifeState(1, w.nodes[0].life); l.Records < 19 {
			t.Fatalf("survivors have %d records", l.Records)
		}
		if n := w.count(1, "pulls_total") + w.count(2, "pulls_total"); n > 20 {
			t.Errorf("%v pulls", n)
		}
	})
}

// F11: A is isolated for 40 s and dropped; then only C reaches it.
func TestF11BackThroughAnother(t *testing.T) {
	for _, listening := range []bool{false, true} {
		run(t, 3, func(w *world) {
			w.startAll()
			w.client(0, "a", 80)
			w.client(1, "b", 90)
			w.set(func() { w.dialable["10.0.0.1:80"] = listening })
			time.Sleep(2 * time.Minute) // they are stable
			w.sever(0, 1, true)
			w.sever(0, 2, true)
			time.Sleep(2500 * time.Millisecond)
			w.allSee(0, Silent)
			w.see(0, 1, Silent)
			w.see(0, 2, Silent)
			if !w.nodes[0].d.Status().SelfPreservation.Active || w.nodes[1].d.Status().SelfPreservation.Active {
				t.Fatal("A, and only A, is cut off from a majority")
			}
			time.Sleep(37500 * time.Millisecond)
			if want := "80 90"; listening {
				w.expectShown(want, 0, 1, 2)
			} else {
				w.expectShown("90", 1, 2)
				w.expectShown(want, 0)
				w.expectState(1, w.nodes[0].life, registry.Dropped)
			}
			w.sever(0, 2, false)
			for _, p := range [][2]int{{0, 1}, {0, 2}, {1, 0}, {2, 0}} { // by way of C all are alive
				w.see(p[0], p[1], Alive)
			}
			time.Sleep(3 * time.Second)
			w.expectShown("80 90", 0, 1, 2)
			w.expectEqual(0, 1, 2)
			w.expectState(1, w.nodes[0].life, registry.Living)
		})
	}
}

// F12: only C hears A's last word.
func TestF12LastWord(t *testing.T) {
	run(t, 3, func(w *world) {
		w.startAll()
		c := w.client(0, "c", 80)
		time.Sleep(1100 * time.Millisecond)
		w.sever(0, 1, true)
		w.register(c, 81)
		time.Sleep(20 * time.Millisecond)
		w.kill(0)
		w.allSee(0, Refused)
		time.Sleep(3 * time.Second)
		w.expectShown("81", 1, 2)
		w.expectEqual(1, 2)
	})
}

// F13: B comes back with a snapshot that holds what was dropped meanwhile; A
// third node that restarts too must not get it from B.
func TestF13SnapshotOfTheDropped(t *testing.T) {
	run(t, 4, func(w *world) {
		w.startAll()
		w.client(3, "d", 80)
		w.client(0, "a", 90)
		time.Sleep(15 * time.Second) // in all snapshots
		w.kill(1)
		w.allSee(1, Refused)
		dead := w.nodes[3].life
		w.kill(3)
		w.allSee(3, Refused)
		time.Sleep(time.Minute)
		w.expectState(0, dead, registry.Dropped)
		w.expectShown("90", 0, 2)
		w.kill(2) // it has saved the drop; with an old snapshot it is worse
		w.nodes[2].snapshot = w.nodes[1].snapshot
		w.see(0, 2, Refused)
		w.start(1)
		w.start(2)
		for _, p := range [][2]int{{1, 2}, {2, 1}} { // they meet before the ready one
			w.see(p[0], p[1], Alive)
		}
		for _, p := range [][2]int{{0, 1}, {0, 2}, {1, 0}, {2, 0}} {
			w.see(p[0], p[1], Alive)
		}
		for range 60 {
			time.Sleep(time.Second)
			w.expectShown("90", 0)
			for n := 1; n <= 2; n++ {
				if ok, _ := w.nodes[n].d.Ready(); ok {
					w.expectShown("90", n)
				}
				if l, ok := w.lifeState(n, dead); ok && l.State == registry.Living {
					t.Fatalf("node %d takes the dead for living", n)
				}
			}
		}
		w.expectState(1, dead, registry.Dropped)
		w.expectState(2, dead, registry.Dropped)
		w.expectEqual(0, 1, 2)
		time.Sleep(10 * time.Minute)
		if _, known := w.lifeState(1, dead); known {
			t.Fatal("the drop is remembered for ever")
		}
		w.expectEqual(0, 1, 2)
	})
}

// F14: heads are late during a silent lease.
func TestF14LateHeads(t *testing.T) {
	for _, late := range []time.Duration{200 * time.Millisecond, time.Second, 8 * time.Second} {
		t.Run(late.String(), func(t *testing.T) {
			run(t, 3, func(w *world) {
				w.startAll()
				w.client(0, "a", 80)
				w.set(func() { w.headDelay = late })
				time.Sleep(30 * time.Second)
				w.freeze(0)
				began := time.Now()
				time.Sleep(2500 * time.Millisecond)
				w.see(1, 0, Silent)
				time.Sleep(700 * time.Millisecond)
				w.see(2, 0, Silent)
				gone := map[int]time.Duration{}
				for len(gone) < 2 && time.Since(began) < time.Minute {
					time.Sleep(100 * time.Millisecond)
					for n := 1; n <= 2; n++ {
						if _, done := gone[n]; !done && w.shown(n) == "" {
							gone[n] = time.Since(began)
						}
					}
				}
				if apart := gone[1] - gone[2]; len(gone) < 2 || apart > 1500*time.Millisecond || apart < -1500*time.Millisecond {
					t.Fatalf("gone after %v", gone)
				}
				if gone[1] < 22*time.Second || gone[1] > 30*time.Second {
					t.Fatalf("gone after %v", gone)
				}
			})
		})
	}
}

// F15: a node that flaps into silence does not keep its ghosts for ever.
func TestF15Flapping(t *testing.T) {
	run(t, 3, func(w *world) {
		w.startAll()
		w.client(2, "dead", 80)
		time.Sleep(70 * time.Second)
		w.kill(2)
		w.allSee(2, Refused)
		w.freeze(1)
		w.see(0, 1, Silent)
		w.thaw(1)
		w.see(0, 1, Alive)
		began := time.Now()
		for time.Since(began) < 10*time.Minute && w.shown(0) != "" {
			w.freeze(1)
			time.Sleep(3 * time.Second)
			w.see(0, 1, Silent)
			time.Sleep(7 * time.Second)
			w.thaw(1)
			w.see(0, 1, Alive)
			time.Sleep(10 * time.Second)
		}
		if w.shown(0) != "" {
			t.Fatal("a ghost stays")
		}
	})
	run(t, 2, func(w *world) {
		w.startAll()
		w.client(1, "dead", 80)
		time.Sleep(70 * time.Second)
		w.kill(1)
		w.see(0, 1, Silent)
		if !w.nodes[0].d.Status().SelfPreservation.Active {
			t.Fatal("one of two is silent")
		}
		time.Sleep(2 * time.Minute)
		w.expectShown("80", 0)
		time.Sleep(2 * time.Minute)
		w.expectShown("", 0)
	})
}

func TestOperatorEndsSelfPreservation(t *testing.T) {
	run(t, 2, func(w *world) {
		w.startAll()
		w.client(1, "dead", 80)
		time.Sleep(70 * time.Second)
		w.kill(1)
		w.see(0, 1, Silent)
		time.Sleep(40 * time.Second)
		w.expectShown("80", 0)
		w.nodes[0].d.EndSelfPreservation()
		time.Sleep(40 * time.Second)
		w.expectShown("", 0)
	})
}

// F16: a newer head of dead A, relayed by D, comes to B after A's death.
func TestF16LateHeadOfTheDead(t *testing.T) {
	run(t, 3, func(w *world) {
		w.startAll()
		w.client(0, "a", 80)
		time.Sleep(3 * time.Second)
		w.sever(1, 2, true)
		w.sever(0, 1, true) // B hears nothing more
		time.Sleep(5 * time.Second)
		w.kill(0)
		w.see(1, 0, Refused) // C has not noticed
		time.Sleep(100 * time.Millisecond)
		w.expectState(1, w.nodes[0].life, registry.Orphaned)
		w.sever(1, 2, false)
		w.connect(1, 2)
		w.connect(2, 1)
		time.Sleep(1500 * time.Millisecond)
		w.expectState(1, w.nodes[0].life, registry.Orphaned)
		w.see(2, 0, Refused)
		time.Sleep(15 * time.Second)
		w.expectShown("", 1, 2)
	})
}

// F19: a whole life of version 100 is under way while another peer sends more.
func TestF19WholeLifeOvertaken(t *testing.T) {
	owner := newLife(testLife(1, 1))
	for v := uint64(1); v <= 100; v++ {
		owner.put(testRecord(99, fmt.Sprint("k", v%40), v, v%7 == 0, "old"))
	}
	owner.applied = 100
	owner.forget(registry.StampAt(90), 1<<20)
	reader := newLife(owner.id)
	early := newLife(owner.id)
	for v := uint64(1); v <= 8; v++ {
		early.put(testRecord(99, fmt.Sprint("k", v%40), v, v%7 == 0, "old"))
	}
	early.applied = 8
	reader.merge(send(t, early.cut(0)))
	slow := send(t, owner.cut(8))
	if !slow.whole {
		t.Fatal("the reader is below the floor")
	}
	for v := uint64(101); v <= 120; v++ {
		owner.put(testRecord(99, fmt.Sprint("k", v%40), v, false, "new"))
	}
	owner.applied = 120
	reader.merge(send(t, owner.cut(8)))
	reader.merge(slow)
	if err := sameLife(owner, reader); err != nil {
		t.Fatal(err)
	}
}

// F21: two nodes without streams, and one message is lost.
func TestF21OneMessageLost(t *testing.T) {
	run(t, 2, func(w *world) {
		w.gossipLoss = 100
		w.severStream(0, 1)
		w.startAll()
		a, b := w.client(0, "a", 80), w.client(1, "b", 90)
		time.Sleep(2 * time.Second)
		w.expectEqual(0, 1)
		w.mu.Lock()
		w.loseNext[0] = true
		w.mu.Unlock()
		w.register(a, 81)
		time.Sleep(200 * time.Millisecond)
		w.register(a, 82)
		w.register(b, 91)
		time.Sleep(2500 * time.Millisecond)
		w.expectShown("82 91", 0, 1)
		w.expectEqual(0, 1)
	})
}

// F24 in small, through a registry: hides and tombstones are forgotten.
func TestF24ManyDeregistrations(t *testing.T) {
	run(t, 2, func(w *world) {
		w.options = func(o *Options) { o.TombstoneBytes = 20_000 }
		w.startAll()
		for second := range 120 {
			for i := range 20 {
				c := w.client(0, fmt.Sprint("c", second, "-", i), 1000+i)
				c.Close(registry.CauseConnectionLost)
			}
			time.Sleep(time.Second)
		}
		time.Sleep(2 * time.Second)
		for n := range 2 {
			l, _ := w.lifeState(n, w.nodes[0].life)
			if l.TombstoneBytes > 30_000 || l.Floor == 0 {
				t.Fatalf("node %d: %d bytes of tombstones, floor %d", n, l.TombstoneBytes, l.Floor)
			}
		}
		w.expectEqual(0, 1)
		time.Sleep(11 * time.Minute)
		if l, _ := w.lifeState(1, w.nodes[0].life); l.Tombstones != 0 || l.Bytes != 0 {
			t.Fatalf("%d tombstones after the grace", l.Tombstones)
		}
	})
}

// A node that dies is gone after the lease of a refusal; its life is
// remembered, then forgotten.
func TestRefusedNode(t *testing.T) {
	run(t, 3, func(w *world) {
		w.startAll()
		w.client(0, "a", 80)
		time.Sleep(3 * time.Second)
		w.kill(0)
		w.allSee(0, Refused)
		time.Sleep(9 * time.Second)
		w.expectShown("80", 1, 2)
		time.Sleep(6 * time.Second)
		w.expectShown("", 1, 2)
		w.expectState(1, w.nodes[0].life, registry.Dropped)
		time.Sleep(11 * time.Minute)
		if _, known := w.lifeState(1, w.nodes[0].life); known {
			t.Fatal("the drop is remembered for ever")
		}
	})
}

// A node restarts: the old life stands beside the new one until its lease
// ends, and the client that has come back is never missing.
func TestRestart(t *testing.T) {
	run(t, 3, func(w *world) {
		w.startAll()
		w.client(0, "a", 80)
		w.client(0, "gone", 81)
		time.Sleep(12 * time.Second)
		old := w.nodes[0].life
		w.kill(0)
		w.allSee(0, Refused)
		w.start(0)
		for p := 1; p < 3; p++ {
			w.see(0, p, Alive)
			w.see(p, 0, Alive)
		}
		time.Sleep(time.Second)
		w.expectState(1, old, registry.Orphaned)
		w.expectShown("80 81", 0, 1, 2)
		w.client(0, "a2", 80)
		time.Sleep(14 * time.Second)
		w.expectState(1, old, registry.Dropped)
		w.expectShown("80", 0, 1, 2)
		w.expectEqual(0, 1, 2)
	})
}

// A node is killed and started again before anybody has noticed: who died with it
// goes as if somebody had, not with the lease that snapshots have.
func TestRestartUnnoticed(t *testing.T) {
	run(t, 3, func(w *world) {
		w.startAll()
		w.client(0, "a", 80)
		w.client(0, "gone", 81)
		time.Sleep(12 * time.Second)
		old := w.nodes[0].life
		w.kill(0)
		w.start(0)
		w.see(0, 1, Alive)
		time.Sleep(10 * time.Millisecond)
		// What a peer says before its membership has heard of the restart.
		peer, now := w.nodes[1].life, w.nodes[1].clock.Millis()
		w.nodes[0].d.Message(peer.Node, Gossip, encodeHeads(&pb.Heads{Life: lifeMessage(peer), Clock: uint64(registry.StampAt(now)), Ready: true, Full: true,
			Heads: []*pb.Head{{Life: lifeMessage(old), State: uint32(registry.Living), Applied: 1, OwnerClock: uint64(registry.StampAt(now - 500))}}}))
		for p := 1; p < 3; p++ {
			w.see(0, p, Alive)
			w.see(p, 0, Alive)
		}
		time.Sleep(2 * time.Second)
		w.expectState(1, old, registry.Orphaned)
		w.expectShown("80 81", 0, 1, 2)
		w.client(0, "a2", 80)
		time.Sleep(11 * time.Second)
		w.expectShown("80", 0, 1, 2)
		w.expectState(1, old, registry.Dropped)
		w.expectEqual(0, 1, 2)
	})
}

// In a rolling restart a node begins with a snapshot that has the next one's life,
// which is there. When that one stops, who died with it has no longer lease.
func TestRollingRestart(t *testing.T) {
	run(t, 3, func(w *world) {
		w.startAll()
		w.client(1, "gone", 81)
		time.Sleep(12 * time.Second) // in all snapshots
		restart := func(n int) {
			w.stop(n)
			w.allSee(n, Left)
			w.start(n)
			for p := range 3 {
				if p != n {
					w.see(n, p, Alive)
					w.see(p, n, Alive)
				}
			}
			time.Sleep(3 * time.Second)
		}
		restart(0)
		old := w.nodes[1].life
		w.expectState(0, old, registry.Living)
		restart(1)
		w.expectShown("81", 0, 1, 2)
		time.Sleep(12 * time.Second)
		w.expectState(0, old, registry.Dropped)
		w.expectShown("", 0, 1, 2)
		w.expectEqual(0, 1, 2)
	})
}

// While the node is silent its orphans are dialled before they go, by one
// survivor each.
func TestExpiryProbe(t *testing.T) {
	run(t, 3, func(w *world) {
		w.startAll()
		w.client(0, "alive", 80)
		w.client(0, "dead", 81)
		w.set(func() { w.dialable["10.0.0.1:80"] = true })
		time.Sleep(70 * time.Second)
		w.freeze(0)
		time.Sleep(2500 * time.Millisecond)
		w.allSee(0, Silent)
		time.Sleep(19 * time.Second)
		w.expectShown("80 81", 1, 2)
		if len(w.dialled()) != 0 {
			t.Fatalf("dialled before the lease was nearly over: %v", w.dialled())
		}
		time.Sleep(2300 * time.Millisecond) // 23.8 s; the lease is over 25 s after the last head
		w.expectShown("80 81", 1, 2)
		time.Sleep(1500 * time.Millisecond)
		w.expectShown("80", 1, 2)
		if w.dialled()["10.0.0.1:81"] != 1 {
			t.Fatalf("dials: %v", w.dialled())
		}
		time.Sleep(time.Minute)
		w.expectShown("80", 1, 2)
		w.expectEqual(1, 2)
		time.Sleep(100 * time.Second)
		w.expectShown("", 1, 2)
		w.expectState(1, w.nodes[0].life, registry.Dropped)

		w.thaw(0) // and comes back
		w.allSee(0, Alive)
		time.Sleep(3 * time.Second)
		w.expectState(1, w.nodes[0].life, registry.Living)
		w.expectShown("80 81", 0, 1, 2)
		w.expectEqual(0, 1, 2)
	})
}

func TestSignOfLife(t *testing.T) {
	run(t, 3, func(w *world) {
		w.startAll()
		d := w.nodes[0].d
		since := time.Now()
		w.set(func() { w.dialable["10.0.0.1:80"] = true })
		want := func(addr string, answered, known bool) {
			t.Helper()
			if a, k := d.SignOfLife(since, addr, 10*time.Second); a != answered || k != known {
				t.Fatalf("after %v, %s: answered %v, known %v; want %v, %v", time.Since(since), addr, a, k, answered, known)
			}
		}
		time.Sleep(20 * time.Second)
		want("10.0.0.1:80", false, true) // all are there: nobody needs to ask
		w.freeze(1)
		w.see(0, 1, Silent)
		want("10.0.0.1:80", false, false)
		want("10.0.0.1:81", false, false)
		time.Sleep(2 * time.Second)
		want("10.0.0.1:80", true, true)
		want("10.0.0.1:81", false, true)
		w.set(func() { w.dialable["10.0.0.1:80"] = false })
		time.Sleep(7 * time.Second)
		want("10.0.0.1:80", true, true) // fresh enough
		time.Sleep(5 * time.Second)
		want("10.0.0.1:80", false, false)
		time.Sleep(2 * time.Second)
		want("10.0.0.1:80", false, true)
		w.set(func() { w.dialable["10.0.0.1:80"] = true })
		w.thaw(1)
		w.see(0, 1, Alive)
		time.Sleep(time.Second)
		want("10.0.0.1:80", false, false) // its beats are on their way
		time.Sleep(10 * time.Second)
		want("10.0.0.1:80", false, true)
		w.freeze(1)
		w.see(0, 1, Silent)
		time.Sleep(3*time.Minute - time.Since(since))
		want("10.0.0.1:80", false, true) // the bound of the expiry probe
	})
}

func TestMovingDone(t *testing.T) {
	run(t, 3, func(w *world) {
		w.startAll()
		d := w.nodes[0].d
		since := time.Now()
		time.Sleep(9 * time.Second)
		if d.MovingDone(since) {
			t.Fatal("after 9 s")
		}
		time.Sleep(time.Second)
		if !d.MovingDone(since) {
			t.Fatal("not after 10 s")
		}
		w.freeze(1)
		w.see(0, 1, Silent)
		if !d.Unsettled() {
			t.Fatal("node 1 is")
		}
		time.Sleep(13 * time.Second)
		if d.MovingDone(since) {
			t.Fatal("a silent lease runs")
		}
		time.Sleep(20 * time.Second)
		w.set(func() { w.dialable["10.0.0.1:80"] = true })
		for range 3 {
			if d.MovingDone(since, "10.0.0.1:80") {
				t.Fatal("its address answers")
			}
			time.Sleep(2 * time.Second)
		}
		if d.MovingDone(since, "10.0.0.1:81") {
			t.Fatal("its address was not dialled")
		}
		time.Sleep(2 * time.Second)
		if !d.MovingDone(since, "10.0.0.1:81") {
			t.Fatal("its address does not answer")
		}
		if d.MovingDone(since, "10.0.0.1:80", "10.0.0.1:81") {
			t.Fatal("one of two answers")
		}
		// A machine that stays off does not make every lost connection a
		// moving one for ever.
		time.Sleep(5 * time.Minute)
		if !d.Unsettled() {
			t.Fatal("the silence is forgotten while an orphan may be left")
		}
		time.Sleep(time.Minute)
		if d.Unsettled() {
			t.Fatal("unsettled for ever")
		}
	})
}

func TestAcked(t *testing.T) {
	run(t, 2, func(w *world) {
		w.gossipLoss = 100
		w.startAll()
		w.client(0, "a", 80)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := w.nodes[0].d.Acked(ctx); err != nil {
			t.Fatal(err)
		}
		w.sever(0, 1, true)
		w.client(0, "b", 81)
		ctx, cancel = context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := w.nodes[0].d.Acked(ctx); err == nil {
			t.Fatal("the peer cannot have it")
		}
		if p := w.nodes[0].d.Status().Peers; len(p) != 1 || p[0].QueuedBytes == 0 && p[0].Acked == 2 {
			t.Fatalf("%+v", p)
		}
	})
}

func TestOwner(t *testing.T) {
	run(t, 3, func(w *world) {
		w.startAll()
		owners := map[string]int{}
		for i := range 300 {
			key := fmt.Sprint("10.0.0.1:", i)
			o := w.nodes[0].d.Owner(key)
			owners[o]++
			if p := w.nodes[1].d.Owner(key); p != o {
				t.Fatalf("%s: %s and %s", key, o, p)
			}
		}
		if len(owners) != 3 {
			t.Fatalf("owners: %v", owners)
		}
		w.nodes[2].d.SetDraining(true)
		time.Sleep(100 * time.Millisecond)
		for i := range 300 {
			if o := w.nodes[0].d.Owner(fmt.Sprint("10.0.0.1:", i)); o == w.nodes[2].life.Node {
				t.Fatal("a draining node owns nothing")
			}
		}
		if p := w.nodes[0].d.ReadyPeers(); len(p) != 1 || p[0] != w.nodes[1].life.Node {
			t.Fatalf("ready: %v", p)
		}
	})
}

// A stall: not ready, then caught up, and nobody is missing.
func TestStall(t *testing.T) {
	run(t, 3, func(w *world) {
		w.startAll()
		w.client(0, "a", 80)
		w.client(1, "b", 90)
		time.Sleep(5 * time.Second)
		for n := range 3 {
			w.freeze(n)
		}
		time.Sleep(15 * time.Second)
		for n := range 3 {
			w.thaw(n)
		}
		time.Sleep(5 * time.Second)
		w.expectShown("80 90", 0, 1, 2)
		for n := range 3 {
			if ok, why := w.nodes[n].d.Ready(); !ok {
				t.Fatalf("node %d is not ready: %s", n, why)
			}
		}
	})
}

// A digest that differs is counted, and mended by a transfer of the whole life.
func TestDigestRepair(t *testing.T) {
	run(t, 2, func(w *world) {
		w.startAll()
		for i := range 5 {
			w.client(0, fmt.Sprint("c", i), 80+i)
		}
		time.Sleep(1500 * time.Millisecond)
		w.expectEqual(0, 1)
		d := w.nodes[1].d
		d.mu.Lock()
		l := d.lives[w.nodes[0].life]
		for _, r := range l.above(0)[:2] {
			l.remove(r)
		}
		d.mu.Unlock()
		time.Sleep(1500 * time.Millisecond)
		a, _ := w.lifeState(0, w.nodes[0].life)
		b, _ := w.lifeState(1, w.nodes[0].life)
		if a.Digest != b.Digest || b.Records != 5 || w.count(1, "digest_mismatches_total") == 0 || w.count(1, "repairs_total") != 1 {
			t.Fatalf("%+v\n%+v, %v repairs", a, b, w.count(1, "repairs_total"))
		}
	})
}

// More lives than fit into a packet are gossiped in turn.
func TestGossipedHeadsFit(t *testing.T) {
	d := alone(t)
	defer d.Stop()
	d.served = true
	for n := range 40 {
		l := newLife(testLife(2, uint64(n+1)))
		l.ownerClock, l.deadline = d.opts.Clock.Now(), d.now()
		d.lives[l.id] = l
	}
	seen := map[uint64]bool{}
	for range 40 {
		b := d.gossipHeadsLocked()
		m, err := readMessage(b)
		if err != nil || len(b) > maxGossip || m.GetHeads().GetFull() {
			t.Fatalf("%d bytes, full %v, %v", len(b), m.GetHeads().GetFull(), err)
		}
		if readLife(m.GetHeads().GetHeads()[0].GetLife()) != d.self {
			t.Fatal("the own life is not told first")
		}
		for _, h := range m.GetHeads().GetHeads()[1:] {
			seen[h.GetLife().GetEpoch()] = true
		}
	}
	if len(seen) != 40 {
		t.Fatalf("%d of 40 lives were told", len(seen))
	}
}

// A node is silent for A only, and A dials what it cannot hear of: when the
// owner is heard again, by way of another, the result is void.
func TestProbeResultIsVoidAfterALaterHead(t *testing.T) {
	run(t, 3, func(w *world) {
		w.startAll()
		w.client(0, "a", 80)
		time.Sleep(70 * time.Second)
		w.sever(0, 1, true)
		w.sever(0, 2, true)
		w.allSee(0, Silent)
		time.Sleep(30 * time.Second)
		w.expectShown("", 1, 2)
		w.expectShown("80", 0)
		w.sever(0, 2, false)
		w.see(2, 0, Alive)
		w.see(0, 2, Alive)
		time.Sleep(3 * time.Second)
		w.expectShown("80", 0, 2)
		w.see(1, 0, Alive)
		time.Sleep(3 * time.Second)
		w.expectShown("80", 0, 1, 2)
	})
}

// Its member alive is not enough: a dropped life needs a later head of its
// owner, and what the owner had then.
func TestDroppedNeedsAHead(t *testing.T) {
	run(t, 2, func(w *world) {
		w.startAll()
		c := w.client(0, "a", 80)
		time.Sleep(2 * time.Second)
		w.sever(0, 1, true)
		w.see(1, 0, Silent)
		w.see(0, 1, Silent)
		time.Sleep(40 * time.Second)
		w.expectState(1, w.nodes[0].life, registry.Dropped)
		w.register(c, 81)
		w.see(1, 0, Alive)
		time.Sleep(3 * time.Second)
		w.expectState(1, w.nodes[0].life, registry.Dropped)
		w.expectShown("", 1)
		w.sever(0, 1, false)
		w.see(0, 1, Alive)
		w.connect(1, 0)
		time.Sleep(2500 * time.Millisecond)
		w.expectState(1, w.nodes[0].life, registry.Living)
		w.expectShown("81", 0, 1)
	})
}

// What was lost is asked for when the next frame shows the gap, not only with
// the next head.
func TestGapIsAskedFor(t *testing.T) {
	run(t, 2, func(w *world) {
		w.gossipLoss = 100
		w.severStream(0, 1)
		w.startAll()
		a, b := w.client(0, "a", 80), w.client(0, "b", 90)
		time.Sleep(2100 * time.Millisecond)
		w.set(func() { w.loseNext[0] = true })
		w.register(a, 81)
		time.Sleep(60 * time.Millisecond)
		w.register(b, 91)
		time.Sleep(200 * time.Millisecond)
		w.expectShown("81 91", 0, 1)
	})
}

// A silent member is back: no lease ends until this node has heard what it and
// the others have to say.
func TestCatchUpWhenASilentMemberIsBack(t *testing.T) {
	run(t, 3, func(w *world) {
		w.startAll()
		w.client(2, "c", 80)
		time.Sleep(15 * time.Second)
		w.sever(0, 1, true)
		w.see(0, 1, Silent)
		w.kill(2)
		w.allSee(2, Refused)
		time.Sleep(11 * time.Second)
		w.see(0, 1, Alive) // by gossip of its heads, which do not come yet
		if s := w.nodes[0].d.Status(); !s.CatchingUp || !s.Ready {
			t.Fatalf("catching up %v, ready %v", s.CatchingUp, s.Ready)
		}
		if w.nodes[0].d.MovingDone(time.Now().Add(-time.Hour)) {
			t.Fatal("a moving record may go while catching up")
		}
		time.Sleep(8 * time.Second)
		w.expectShown("80", 0)
		time.Sleep(8 * time.Second) // the lease of node 1's life, whose head is not there, ends as well
		w.expectShown("", 0)
	})
}

// The lease of all but the slow clients is over: that another node falls silent
// then does not bring them back.
func TestWanedStaysWaned(t *testing.T) {
	run(t, 3, func(w *world) {
		w.startAll()
		w.client(0, "quick", 80)
		slow := w.nodes[0].reg.Open("slow", registry.Connection)
		slow.Redo(35)
		w.register(slow, 90)
		time.Sleep(2 * time.Second)
		w.kill(0)
		w.allSee(0, Refused)
		time.Sleep(15 * time.Second)
		w.expectShown("90", 1, 2)
		w.sever(1, 2, true)
		w.see(1, 2, Silent)
		for range 60 {
			time.Sleep(time.Second)
			if got := w.shown(1); got != "90" && got != "" {
				t.Fatalf("shows [%s]", got)
			}
		}
	})
}

// apart is for how long two nodes show different things at most while a time
// passes.
func (w *world) apart(a, b int, during time.Duration) (longest time.Duration) {
	last := time.Now()
	for end := last.Add(during); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if w.shown(a) == w.shown(b) {
			last = time.Now()
		}
		longest = max(longest, time.Since(last))
	}
	return longest
}

// A lease that a node gave anew when it began alone ends everywhere at the same
// time, that of slow clients too (simulation, seed 82).
func TestLeaseOfARestartIsShared(t *testing.T) {
	run(t, 3, func(w *world) {
		w.startAll()
		w.client(0, "quick", 80)
		slow := w.nodes[0].reg.Open("slow", registry.Connection)
		slow.Redo(35)
		w.register(slow, 90)
		time.Sleep(12 * time.Second) // a snapshot
		for n := range 3 {
			w.kill(n)
		}
		w.start(1)
		w.nodes[1].state[0], w.nodes[1].state[2] = Refused, Refused
		w.tell(1)
		time.Sleep(10 * time.Second)
		if ok, why := w.nodes[1].d.Ready(); !ok {
			t.Fatal("not ready: ", why)
		}
		w.nodes[2].snapshot = nil
		w.start(2)
		w.nodes[2].state[0] = Refused
		w.see(2, 1, Alive)
		w.see(1, 2, Alive)
		time.Sleep(2 * time.Second)
		w.expectShown("80 90", 1, 2)
		if longest := w.apart(1, 2, time.Minute); longest > 1500*time.Millisecond {
			t.Fatalf("apart for %v", longest)
		}
		w.expectShown("", 1, 2)
	})
}

// What one side of a partition has paused the other has not. When they are
// together again, leases end for both, also where slow clients keep the life
// (simulation, seed 743).
func TestWaneIsToldAfterAPause(t *testing.T) {
	run(t, 3, func(w *world) {
		w.startAll()
		w.client(0, "quick", 80)
		slow := w.nodes[0].reg.Open("slow", registry.Connection)
		slow.Redo(50)
		w.register(slow, 90)
		time.Sleep(70 * time.Second)
		w.kill(0)
		w.sever(1, 2, true)
		time.Sleep(200 * time.Millisecond) // nothing of it is on its way any more
		w.see(2, 0, Refused)
		w.see(1, 0, Silent)
		w.see(1, 2, Silent)
		time.Sleep(9 * time.Second)
		w.sever(1, 2, false)
		w.see(1, 0, Refused)
		w.see(1, 2, Alive)
		time.Sleep(time.Second)
		if l, _ := w.lifeState(1, w.nodes[0].life); l.Paused < 8*time.Second {
			t.Fatalf("node 1 has paused for %v", l.Paused)
		}
		w.expectShown("80 90", 1, 2)
		waned := false
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end) && !waned; {
			if longest := w.apart(1, 2, time.Second); longest > time.Second {
				t.Fatalf("apart for %v", longest)
			}
			waned = w.shown(2) == "90"
		}
		if longest := w.apart(1, 2, 40*time.Second); !waned || longest > 1500*time.Millisecond {
			t.Fatalf("apart for %v, waned: %v", longest, waned)
		}
	})
}

// A node goes on after its lease was over, and finds a moment later that a client
// has left. Whether that is shown does not depend on which of its heads another
// node hears first (simulation, F17 with seed 3).
func TestBackFromAStallIsTheSameForAll(t *testing.T) {
	run(t, 3, func(w *world) {
		w.startAll()
		c := w.client(0, "c", 80)
		time.Sleep(5 * time.Second)
		w.freeze(0)
		w.allSee(0, Silent)
		time.Sleep(70 * time.Second)
		w.expectShown("", 1, 2)
		w.expectState(1, w.nodes[0].life, registry.Dropped)
		w.thaw(0)
		w.see(1, 0, Alive)
		time.Sleep(500 * time.Millisecond)
		w.expectState(1, w.nodes[0].life, registry.Living)
		c.Move()
		time.Sleep(time.Second)
		w.see(2, 0, Alive)
		time.Sleep(3 * time.Second)
		w.expectState(2, w.nodes[0].life, registry.Living)
		w.expectShown("80", 0, 1, 2)
	})
}

// A lateRegistry calls before with each Apply.
type lateRegistry struct {
	Registry
	before func()
}

func (r lateRegistry) Apply(l registry.Life, records []registry.Record) {
	r.before()
	r.Registry.Apply(l, records)
}

// Ready is who shows what the others had, not who has received it: of a million
// instances the registry has a second to do.
func TestReadyWhenItIsShown(t *testing.T) {
	run(t, 2, func(w *world) {
		second := testLife(2, 1).Node
		applied := 0
		w.options = func(o *Options) {
			if o.Joined = o.Life.Node == second; o.Joined {
				o.Registry = lateRegistry{o.Registry, func() {
					applied++
					if ok, _ := w.nodes[1].d.Ready(); ok && applied == 1 {
						t.Error("ready before the first instance is shown")
					}
				}}
			}
		}
		w.start(0)
		w.client(0, "a", 80)
		time.Sleep(time.Second)
		w.start(1)
		w.see(0, 1, Alive)
		w.see(1, 0, Alive)
		time.Sleep(2500 * time.Millisecond)
		if ok, why := w.nodes[1].d.Ready(); !ok || applied == 0 {
			t.Fatal(why)
		}
	})
}

// What comes takes longer than the catching up usually may: a node that starts
// does not serve a part of it.
func TestReadyWithAllOfALargeLife(t *testing.T) {
	run(t, 2, func(w *world) {
		second := testLife(2, 1).Node
		w.options = func(o *Options) { o.Joined = o.Life.Node == second }
		w.start(0)
		for port := 1; port <= 12; port++ {
			w.registerBig(w.nodes[0].reg.Open(fmt.Sprint(port), registry.Connection), port, strings.Repeat("x", 600<<10))
		}
		time.Sleep(time.Second)
		w.set(func() { w.partDelay = 3 * time.Second })
		w.start(1)
		w.see(0, 1, Alive)
		w.see(1, 0, Alive)
		for range 60 {
			time.Sleep(time.Second)
			if ok, _ := w.nodes[1].d.Ready(); ok {
				break
			}
		}
		if took := time.Since(w.nodes[1].d.since); took < 12*time.Second || took > 50*time.Second {
			t.Errorf("ready after %v: the transfer is not as slow as meant", took)
		}
		if got := len(strings.Fields(w.shown(1))); got != 12 {
			t.Errorf("ready with %d of 12", got)
		}
	})
}

// A node stood still for longer than its peers remember a drop, and still has
// what they have forgotten.
func TestForgottenLifeIsNotImported(t *testing.T) {
	run(t, 3, func(w *world) {
		w.startAll()
		w.client(1, "a", 80)
		time.Sleep(2 * time.Second)
		w.expectShown("80", 0, 2)
		w.freeze(2)
		time.Sleep(2500 * time.Millisecond)
		w.see(0, 2, Silent)
		w.see(1, 2, Silent)
		w.kill(1)
		w.see(0, 1, Refused)
		time.Sleep(14 * time.Minute)
		w.nodes[0].reg.Sweep()
		if _, known := w.lifeState(0, w.nodes[1].life); known {
			t.Fatal("not forgotten")
		}
		w.thaw(2)
		w.see(0, 2, Alive)
		w.connect(2, 0)
		for n := range 6000 {
			time.Sleep(10 * time.Millisecond)
			w.expectShown("", 0)
			if n == 500 {
				w.see(2, 1, Refused)
			}
		}
		w.expectShown("", 0, 2)
		w.expectEqual(2, 0)
		w.expectEqual(0, 2)
	})
}

// A node joins whose clock is an hour ahead: all follow it, but no lease is
// shorter for that.
func TestClockJumpEndsNoLease(t *testing.T) {
	run(t, 3, func(w *world) {
		w.start(0)
		w.start(1)
		w.see(0, 1, Alive)
		w.see(1, 0, Alive)
		w.client(1, "a", 80)
		time.Sleep(3 * time.Second)
		w.kill(1)
		w.see(0, 1, Silent)
		time.Sleep(5 * time.Second)
		w.nodes[2].skew = time.Hour
		w.start(2)
		w.nodes[2].state[1] = Silent
		w.see(0, 2, Alive)
		w.see(2, 0, Alive)
		time.Sleep(10 * time.Second)
		w.expectShown("80", 0, 2)
		time.Sleep(15 * time.Second)
		w.expectShown("", 0, 2)
	})
}

// A member that is silent here is heard nevertheless: that must not begin the
// catching up of a stalled node anew.
func TestReadyAlthoughASilentMemberIsHeard(t *testing.T) {
	run(t, 3, func(w *world) {
		w.startAll()
		time.Sleep(20300 * time.Millisecond)
		w.sever(0, 1, true) // a member, but no word from it
		w.see(0, 2, Silent)
		time.Sleep(15 * time.Second)
		w.nodes[0].d.Stalled()
		time.Sleep(9 * time.Second)
		if ok, _ := w.nodes[0].d.Ready(); ok {
			t.Fatal("it has not heard of node 1")
		}
		c := w.client(2, "c", 80)
		for n := range 25 { // each is a message
			w.register(c, 81+n)
			time.Sleep(100 * time.Millisecond)
		}
		if ok, why := w.nodes[0].d.Ready(); !ok {
			t.Fatal(why)
		}
	})
}

// What a node writes is known here by gossip, but it cannot be asked for it; a
// third one can.
func TestPullFromWhoAnswers(t *testing.T) {
	run(t, 3, func(w *world) {
		w.gossipLoss = 0
		w.options = func(o *Options) { o.GossipFrames = false }
		w.startAll()
		w.set(func() { w.hung[[2]int{0, 1}], w.hung[[2]int{1, 0}] = true, true })
		c := w.client(0, "a", 80)
		for n := range 120 {
			w.register(c, 81+n)
			time.Sleep(time.Second)
			if l, _ := w.lifeState(1, w.nodes[0].life); l.Applied+5 < w.applied(0) {
				t.Fatalf("node 1 has %d of %d versions", l.Applied, w.applied(0))
			}
		}
	})
}

// Who has died for good does not count for majorities when membership has
// forgotten it: else a cluster whose nodes are replaced would in the end never
// find that it is cut off.
func TestForgottenMembersAreNotStable(t *testing.T) {
	run(t, 5, func(w *world) {
		w.startAll()
		time.Sleep(70 * time.Second)
		for _, p := range []int{3, 4} {
			w.kill(p)
			w.allSee(p, Silent)
			time.Sleep(5 * time.Minute)
			for n := range 3 {
				delete(w.nodes[n].state, p)
				w.tell(n)
			}
		}
		if got := len(w.nodes[0].d.Stable()); got != 3 {
			t.Errorf("%d stable members", got)
		}
		w.see(0, 1, Silent)
		w.see(0, 2, Silent)
		if !w.nodes[0].d.Status().SelfPreservation.Active {
			t.Error("it does not find that it is cut off")
		}
	})
}

// A node comes when the lease of all but the slow clients of an orphan is over:
// from the first moment it shows what the others show.
func TestReadyWithoutWhatHasWaned(t *testing.T) {
	run(t, 3, func(w *world) {
		w.startAll()
		w.client(0, "quick", 80)
		slow := w.nodes[0].reg.Open("slow", registry.Connection)
		slow.Redo(35)
		w.register(slow, 90)
		time.Sleep(12 * time.Second) // a snapshot
		w.kill(0)
		w.allSee(0, Refused)
		w.kill(1)
		w.see(2, 1, Refused)
		time.Sleep(15300 * time.Millisecond)
		w.expectShown("90", 2)
		w.start(1)
		w.nodes[1].state[0] = Refused
		w.see(1, 2, Alive)
		w.see(2, 1, Alive)
		for range 1200 {
			time.Sleep(10 * time.Millisecond)
			if ok, _ := w.nodes[1].d.Ready(); ok {
				w.expectShown("90", 1)
				return
			}
		}
		t.Fatal("never ready")
	})
}

// F24: the tombstone of a removal is forgotten before a peer has seen it. What was
// removed does not come back there from an older copy either.
func TestAbsentKeysHide(t *testing.T) {
	run(t, 3, func(w *world) {
		w.options = func(o *Options) { o.TombstoneBytes = 1 }
		w.startAll()
		w.client(2, "old", 80)
		time.Sleep(100 * time.Millisecond)
		c := w.client(0, "new", 80)
		time.Sleep(2 * time.Second)
		w.sever(0, 1, true)
		w.kill(2)
		w.allSee(2, Refused)
		time.Sleep(500 * time.Millisecond)
		c.Close(registry.CauseConnectionLost)
		time.Sleep(3 * time.Second)
		w.expectShown("", 0)
		w.sever(0, 1, false)
		time.Sleep(3 * time.Second)
		w.expectShown("", 0, 1)
	})
}

// A node joins whose clock is an hour ahead. It knows the life of a member from
// a third node only, and from before the clocks jumped: that is no sign that
// its lease is over.
func TestClockJumpHidesNoLife(t *testing.T) {
	run(t, 3, func(w *world) {
		w.start(0)
		w.start(1)
		w.see(0, 1, Alive)
		w.see(1, 0, Alive)
		w.client(1, "a", 80)
		time.Sleep(3 * time.Second)
		w.sever(0, 1, true) // and nobody has noticed
		w.sever(1, 2, true)
		w.nodes[2].skew = time.Hour
		w.start(2)
		w.nodes[2].state[1] = Alive
		w.see(2, 0, Alive)
		time.Sleep(100 * time.Millisecond) // its clock is known before anything is told to it
		w.see(0, 2, Alive)
		time.Sleep(2 * time.Second)
		w.expectShown("80", 0, 2)
		w.expectState(2, w.nodes[1].life, registry.Living)
	})
}

// A node that nobody else could have older copies from keeps no tombstones and
// no hides.
func TestAloneKeepsNoTombstones(t *testing.T) {
	comeAndGo := func(w *world, c *registry.Client) LifeStatus {
		for port := 100; port < 120; port++ {
			i := registry.Instance{InstanceKey: registry.InstanceKey{IP: "10.0.0.2", Port: port, Cluster: "DEFAULT"}, Weight: 1, Healthy: true, Enabled: true}
			k := registry.ServiceKey{Namespace: "public", Group: "g", Name: fmt.Sprint(port)}
			if err := c.Register(k, []*registry.Instance{&i}, false); err != nil {
				w.t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
			c.Deregister(k, i.InstanceKey)
		}
		time.Sleep(3 * time.Second)
		w.nodes[0].reg.Sweep()
		l, _ := w.lifeState(0, w.nodes[0].life)
		return l
	}
	first := testLife(1, 0).Node
	options := func(change func(*Options)) func(*Options) {
		return func(o *Options) {
			o.Joined = o.Life.Node != first
			if !o.Joined {
				change(o)
			}
		}
	}
	t.Run("alone, and then not", func(t *testing.T) {
		run(t, 2, func(w *world) {
			w.options = options(func(*Options) {})
			w.start(0)
			w.tell(0)
			c := w.client(0, "a", 80)
			if l := comeAndGo(w, c); l.Records != 1 || l.Tombstones != 0 || l.Floor == 0 || w.nodes[0].reg.Stats().Hides != 0 {
				t.Errorf("alone: %+v, %d hides", l, w.nodes[0].reg.Stats().Hides)
			}
			w.start(1)
			w.see(0, 1, Alive)
			w.see(1, 0, Alive)
			time.Sleep(3 * time.Second)
			w.expectShown("80", 0, 1)
			if l := comeAndGo(w, c); l.Tombstones != 20 || w.nodes[0].reg.Stats().Hides != 20 {
				t.Errorf("not alone: %+v, %d hides", l, w.nodes[0].reg.Stats().Hides)
			}
			w.expectEqual(0, 1)
			w.kill(1)
			delete(w.nodes[0].state, 1)
			w.tell(0) // forgotten by membership, but it may come back
			time.Sleep(time.Minute)
			if l := comeAndGo(w, c); l.Tombstones != 20 {
				t.Errorf("left alone: %+v", l)
			}
		})
	})
	for name, change := range map[string]func(*Options){
		"joined":                      func(o *Options) { o.Joined = true },
		"not alone in an earlier run": func(o *Options) { o.Known = true },
	} {
		t.Run(name, func(t *testing.T) {
			run(t, 1, func(w *world) {
				w.options = options(change)
				w.start(0)
				if l := comeAndGo(w, w.client(0, "a", 80)); l.Tombstones != 20 || w.nodes[0].reg.Stats().Hides != 20 {
					t.Errorf("%+v, %d hides", l, w.nodes[0].reg.Stats().Hides)
				}
			})
		})
	}
	t.Run("after a restart", func(t *testing.T) {
		run(t, 1, func(w *world) {
			w.options = options(func(*Options) {})
			w.start(0)
			w.client(0, "a", 80)
			time.Sleep(time.Second)
			w.stop(0)
			w.start(0)
			c := w.client(0, "b", 80)
			if l := comeAndGo(w, c); l.Tombstones != 20 { // the earlier life's instances are there
				t.Errorf("%+v", l)
			}
			time.Sleep(12 * time.Minute) // it is dropped and forgotten
			if l := comeAndGo(w, c); l.Tombstones != 0 {
				t.Errorf("%+v", l)
			}
		})
	})
}
