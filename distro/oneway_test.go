package distro

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/starling-registry/starling/pkg/registry"
)

// Links are cut in one direction, in random order, and membership, which takes
// ways around, sees it or does not. All that is written is everywhere in the end,
// and as long as there is a way round, soon.
func TestRandomOneWayCuts(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			run(t, 3, func(w *world) {
				w.rnd = rand.New(rand.NewPCG(seed, 8))
				w.startAll()
				clients := map[int]*registry.Client{}
				for range 60 {
					a, b := w.intn(3), w.intn(3)
					if a != b {
						switch w.intn(4) {
						case 0:
							w.set(func() { w.cut[[2]int{a, b}] = true })
						case 1:
							w.set(func() { w.cut[[2]int{a, b}] = false })
						case 2:
							w.see(a, b, Silent)
						case 3:
							w.see(a, b, Alive)
						}
					}
					port := 1000*(a+1) + w.intn(10)
					if c := clients[port]; c == nil {
						clients[port] = w.client(a, fmt.Sprint("c", seed, "-", port, "-", w.intn(1e6)), port)
					} else {
						c.Close(registry.CauseConnectionLost)
						delete(clients, port)
					}
					time.Sleep(time.Duration(w.intn(6000)) * time.Millisecond)
				}
				w.set(func() { clear(w.cut) })
				for n := range 3 {
					for p := range 3 {
						if n != p {
							w.see(n, p, Alive)
						}
					}
				}
				time.Sleep(4 * time.Second)
				var want strings.Builder
				for port := range 4000 {
					if clients[port] != nil {
						want.WriteString(fmt.Sprint(" ", port))
					}
				}
				w.expectShown(want.String()[min(1, len(want.String())):], 0, 1, 2)
				w.expectEqual(0, 1, 2)
				for n := range 3 {
					w.expectCount(n, "repairs_total", 0)
				}
			})
		})
	}
}
