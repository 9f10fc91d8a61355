package distro

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/starling-registry/starling/pkg/registry"
	pb "github.com/starling-registry/starling/proto"
)

// A pull of one life runs; guarded by the replicator's mu. There is one per
// life at a time.
type pull struct {
	from     string
	progress int64 // milliseconds, of its last part; or when it began
	cancel   context.CancelCauseFunc
}

// pullPatience is how long a pull may bring nothing (milliseconds) before it
// gives way to another peer that has the same: where only one direction is cut,
// a peer is heard that cannot be asked.
const pullPatience = 2000

// pullLocked fetches what a peer has more of a life.
func (d *Replicator) pullLocked(l *life, from string, via Via, now int64) {
	if pl := d.pulling[l.id]; pl != nil {
		if pl.from != from && now-pl.progress >= pullPatience {
			pl.cancel(errPullStalled) // the next head asks this one
		}
		return
	}
	p := d.peerLocked(from)
	if now < p.pullAgain {
		return
	}
	delay := time.Duration(0)
	if via == Gossip && from == l.id.Node && !p.reliable {
		delay = d.opts.PullDelay // its stream may bring it any moment
	}
	d.startPullLocked(l, p, delay)
}

// repairPause bounds the price of a digest that no transfer mends.
const repairPause = 10_000 // milliseconds

// repairLocked fetches the whole life because its digest differs.
func (d *Replicator) repairLocked(l *life, from string, now int64) {
	p := d.peerLocked(from)
	if d.pulling[l.id] != nil || now < p.pullAgain || now < l.repaired+repairPause {
		return
	}
	l.suspect, l.repaired = true, now
	d.metrics.repairs.Inc()
	d.startPullLocked(l, p, 0)
}

func (d *Replicator) startPullLocked(l *life, p *peer, delay time.Duration) {
	if d.stopped {
		return
	}
	id := l.id
	pl := &pull{from: p.id, progress: d.now()}
	var ctx context.Context
	ctx, pl.cancel = context.WithCancelCause(d.ctx)
	d.pulling[id] = pl
	d.goLoopLocked(ctx, "pull", func(ctx context.Context) {
		defer pl.cancel(nil)
		err := error(nil)
		if delay > 0 {
			err = sleep(ctx, delay)
		}
		if err == nil {
			err = d.pull(ctx, id, pl)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.pulling, id)
		if err == nil {
			p.pullFailures = 0
			return
		}
		// The message is one more way; its answer comes like any frame.
		d.metrics.pullsFailed.Inc()
		p.pullFailures++
		p.pullAgain = d.now() + min(int64(200)<<min(p.pullFailures, 5), 5000)
		if l := d.lives[id]; l != nil {
			p.pulls[id] = l.applied
			if l.suspect {
				p.pulls[id] = 0
			}
			p.poke()
		}
	})
}

// pull asks for the difference to what is applied here when it is sent.
func (d *Replicator) pull(ctx context.Context, id registry.Life, pl *pull) error {
	from := pl.from
	d.mu.Lock()
	l := d.lives[id]
	if l == nil {
		d.mu.Unlock()
		return nil
	}
	applied := l.applied
	if l.suspect {
		applied = 0
	} else if l.id.Node == from && l.lag() == 0 && l.ownerVersion > 0 && l.state == registry.Living {
		d.mu.Unlock()
		return nil // the stream was faster
	}
	d.mu.Unlock()

	d.metrics.pulls.Inc()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(d.opts.PullTimeout, func() { cancel(errPullStalled) })
	defer late.Stop()
	req := encode(&pb.PullRequest{Pull: &pb.Pull{Life: lifeMessage(id), From: applied}})
	err := d.opts.Peers.Pull(ctx, from, req, func(msg []byte) error {
		late.Reset(d.opts.PullTimeout)
		d.mu.Lock()
		pl.progress = d.now()
		d.mu.Unlock()
		m, err := readMessage(msg)
		if err != nil {
			d.refuse(from, badMessage, err)
			return err
		}
		f := m.GetFrame()
		if f == nil || readLife(f.GetLife()) != id {
			d.refuse(from, badUnknown, errors.New("answer to a pull is no frame of the life"))
			return fmt.Errorf("%w: not of %v", ErrFrame, id)
		}
		if whole := d.collect(from, pulled, f); whole != nil {
			d.apply(whole, from, pulled)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("pull %v from %s: %w", id, from, err)
	}
	return nil
}

var errPullStalled = errors.New("pull makes no progress")

// ErrUnknownLife says that a peer asked for what this node does not have (any
// more).
var ErrUnknownLife = errors.New("life is not known")

// Serve answers a Pull of a peer: one frame of a life, in parts. send blocks
// on the peer's flow control.
func (d *Replicator) Serve(ctx context.Context, from string, req []byte, send func([]byte) error) error {
	var m pb.PullRequest
	if err := proto.Unmarshal(req, &m); err != nil {
		d.refuse(from, badMessage, err)
		return fmt.Errorf("pull request: %w", err)
	}
	d.opts.Awake()
	id := readLife(m.GetPull().GetLife())
	d.mu.Lock()
	l := d.lives[id]
	if l == nil {
		d.mu.Unlock()
		return fmt.Errorf("%w: %v", ErrUnknownLife, id)
	}
	c := l.cut(m.GetPull().GetFrom())
	d.mu.Unlock()
	d.metrics.framesSent.Inc()
	d.metrics.bytesSent.Add(float64(c.bytes))
	return c.parts(d.transfer(), func(b []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return send(b)
	})
}
