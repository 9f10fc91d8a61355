package raftstore

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"
)

// A lateConn tells late what the other side has answered.
type lateConn struct{ net.Conn }

func (c lateConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	time.Sleep(20 * time.Millisecond)
	return n, err
}

// After a restart of all, a new leader has applied next to nothing until an
// entry of its own term is safe. Who is as far as that has not caught up.
func TestReadyAfterFullStop(t *testing.T) {
	bubble(t, "a b c", func(t *testing.T, g *group) {
		// Followers hear of a new leader long before that hears that its entry
		// is safe, as with slow disks.
		for _, p := range g.peers {
			p.options = func(o *Options) {
				dial := o.Dial
				o.Dial = func(ctx context.Context, id string) (net.Conn, error) {
					conn, err := dial(ctx, id)
					if err != nil {
						return nil, err
					}
					return lateConn{conn}, nil
				}
			}
		}
		g.three()
		const rows = 20
		for i := range rows {
			g.mustPut("a", fmt.Sprint("s", i), "1")
		}
		g.awaitEqual(time.Second)
		for round := range 10 {
			for id := range g.peers {
				g.kill(id)
			}
			g.start("a b c")
			ready := map[string]bool{}
			for until := time.Now().Add(9 * time.Second); len(ready) < 3; time.Sleep(time.Millisecond) {
				for id, p := range g.peers {
					if ok, _ := p.store.CaughtUp(); !ok || ready[id] {
						continue
					}
					ready[id] = true
					if n := len(p.store.Switches()); n != rows {
						t.Errorf("round %d: %s is ready and has %d of %d rows", round, id, n, rows)
					}
				}
				if time.Now().After(until) {
					t.Fatalf("round %d: only %d nodes are ready", round, len(ready))
				}
			}
		}
	})
}
