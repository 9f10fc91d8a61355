package distro

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/starling-registry/starling/pkg/registry"
)

// Nodes are isolated, frozen, killed and started in random order, while clients
// come and go. When all is healed the nodes are equal, show what the clients
// say and nothing else, and no digest was ever wrong.
func TestRandomFailures(t *testing.T) {
	for seed := range uint64(25) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			run(t, 3, func(w *world) {
				w.rnd = rand.New(rand.NewPCG(seed, 7))
				w.repeat = 10
				w.startAll()
				time.Sleep(time.Duration(w.intn(90)) * time.Second)
				clients := map[int]*registry.Client{} // by port
				on := map[int]int{}
				isolated, frozen := -1, -1
				isolate := func(n int, cut bool) {
					for p := range 3 {
						if p != n {
							w.sever(n, p, cut)
						}
					}
					if cut {
						time.Sleep(2500 * time.Millisecond)
					}
					for p := range 3 {
						for _, pair := range [][2]int{{n, p}, {p, n}} {
							if p == n || !w.nodes[pair[0]].up || pair[0] == frozen {
								continue
							}
							if s := map[bool]MemberState{true: Silent, false: Alive}[cut || !w.nodes[pair[1]].up || pair[1] == frozen]; w.nodes[pair[0]].state[pair[1]] != Refused {
								w.see(pair[0], pair[1], s)
							}
						}
					}
				}
				thaw := func() {
					n := frozen
					frozen = -1
					w.thaw(n)
					for p := range 3 {
						if p != n && w.nodes[p].up && isolated != p && isolated != n {
							w.see(p, n, Alive)
						}
					}
				}
				revive := func(n int) {
					w.start(n)
					for p := range 3 {
						if p != n && w.nodes[p].up && p != frozen && isolated != p && isolated != n {
							w.see(n, p, Alive)
							w.see(p, n, Alive)
						}
					}
				}
				for range 40 {
					n := w.intn(3)
					switch e := w.intn(12); {
					case e == 0 && isolated < 0 && frozen < 0:
						isolated = n
						isolate(n, true)
					case e == 1 && isolated >= 0 && frozen < 0:
						n, isolated = isolated, -1
						isolate(n, false)
					case e == 2 && frozen < 0 && isolated < 0 && w.nodes[n].up:
						frozen = n
						w.freeze(n)
						time.Sleep(2500 * time.Millisecond)
						for p := range 3 {
							if p != n && w.nodes[p].up {
								w.see(p, n, Silent)
							}
						}
					case e == 3 && frozen >= 0:
						thaw()
					case e == 4 && w.nodes[n].up && n != frozen && n != isolated:
						w.kill(n)
						for p := range 3 {
							if p != n && w.nodes[p].up && p != frozen && p != isolated {
								w.see(p, n, Refused)
							}
						}
						for port, at := range on {
							if at == n {
								delete(clients, port)
								delete(on, port)
							}
						}
					case e == 5 && !w.nodes[n].up && isolated < 0 && frozen < 0:
						revive(n)
					case w.nodes[n].up && n != frozen:
						port := 1000*(n+1) + w.intn(10)
						if c := clients[port]; c == nil {
							clients[port], on[port] = w.client(n, fmt.Sprint("c", seed, "-", port, "-", w.intn(1e6)), port), n
						} else {
							c.Close(registry.CauseConnectionLost)
							delete(clients, port)
							delete(on, port)
						}
					}
					time.Sleep(time.Duration(w.intn(8000)) * time.Millisecond)
				}
				if frozen >= 0 {
					thaw()
				}
				if isolated >= 0 {
					n := isolated
					isolated = -1
					isolate(n, false)
				}
				for n := range 3 {
					if !w.nodes[n].up {
						revive(n)
					}
				}
				for n := range 3 {
					for p := range 3 {
						if n != p {
							w.see(n, p, Alive)
						}
					}
				}
				time.Sleep(4 * time.Minute) // leases, pauses and probes are over
				want := ""
				for port := range 4000 {
					if clients[port] != nil {
						want += fmt.Sprint(" ", port)
					}
				}
				if want != "" {
					want = want[1:]
				}
				w.expectShown(want, 0, 1, 2)
				w.expectEqual(0, 1, 2)
				for n := range 3 {
					if ok, why := w.nodes[n].d.Ready(); !ok {
						t.Errorf("node %d is not ready: %s", n, why)
					}
					w.expectCount(n, "repairs_total", 0)
				}
			})
		})
	}
}
