package simnet

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// pair connects two hosts and gives both ends.
func pair(t *testing.T, n *Network, from, to *Host) (net.Conn, net.Conn) {
	t.Helper()
	l, err := to.Listen("tcp", ":80")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := from.Dial(t.Context(), net.JoinHostPort(to.Addrs[0].String(), "80"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return a, b
}

func read(t *testing.T, c net.Conn) string {
	t.Helper()
	b := make([]byte, 100)
	n, err := c.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

func TestStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(1)
		h, g := n.Host("h", "10.0.0.1"), n.Host("g", "10.0.0.2")
		n.SetLink("h", "g", Link{Delay: 10 * time.Millisecond, Bandwidth: 1000})
		a, b := pair(t, n, h, g)
		start := time.Now()
		a.Write([]byte("hello"))
		if got := read(t, b); got != "hello" || time.Since(start) != 15*time.Millisecond {
			t.Errorf("%q after %v", got, time.Since(start))
		}
		b.SetReadDeadline(time.Now().Add(time.Second))
		if _, err := b.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		b.SetReadDeadline(time.Time{})

		// A deadline that is set meanwhile counts for who waits already.
		go func() {
			time.Sleep(time.Second)
			b.SetReadDeadline(time.Now())
		}()
		if _, err := b.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		b.SetReadDeadline(time.Time{})

		// Nobody reads: the writer waits for room.
		a.SetWriteDeadline(time.Now().Add(time.Hour))
		if wrote, err := a.Write(make([]byte, 2*Window)); !errors.Is(err, os.ErrDeadlineExceeded) || wrote != Window {
			t.Error(wrote, err)
		}
		a.Close()
		if got, err := io.Copy(io.Discard, b); got != Window || err != nil {
			t.Error(got, err)
		}
		time.Sleep(time.Second)
		if _, err := b.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Error(err)
		}
		b.Close()
		if len(n.pipes) != 0 {
			t.Error(len(n.pipes), "pipes are left")
		}
	})
}

func TestCutAndFreeze(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(1)
		h, g := n.Host("h", "10.0.0.1"), n.Host("g", "10.0.0.2")
		a, b := pair(t, n, h, g)
		stands := func(stop, goOn func()) {
			t.Helper()
			a.Write([]byte("before"))
			time.Sleep(time.Second)
			stop()
			go a.Write([]byte("after")) // a stopped process waits with it
			go func() {
				time.Sleep(time.Minute)
				goOn()
			}()
			start := time.Now()
			if got := read(t, b); got == "before" {
				if got = read(t, b); got != "after" {
					t.Error(got)
				}
			}
			if d := time.Since(start).Round(time.Millisecond); d != time.Minute {
				t.Error(d)
			}
		}
		stands(func() { n.CutOneWay("h", "g") }, n.HealAll)
		stands(g.Freeze, g.Thaw)
		stands(h.Pause, h.Thaw)

		dial := func(d time.Duration, want error) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			c, err := h.Dial(ctx, "10.0.0.2:81")
			if !errors.Is(err, want) {
				t.Error(err)
			}
			if err == nil {
				c.Close()
			}
		}
		dial(time.Second, syscall.ECONNREFUSED)
		l, _ := g.Listen("tcp", "10.0.0.2:81")
		dial(time.Second, nil)
		g.Freeze()
		dial(time.Second, nil) // by the kernel
		g.Thaw()
		g.Pause()
		dial(time.Second, os.ErrDeadlineExceeded)
		g.Thaw()
		n.CutOneWay("g", "h")
		dial(time.Second, os.ErrDeadlineExceeded)
		time.AfterFunc(2*time.Second, n.HealAll)
		dial(3*time.Second, nil)
		l.Close()
		a.Close()
		b.Close()
	})
}

func TestDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(1)
		h, g := n.Host("h", "10.0.0.1"), n.Host("g", "10.0.0.2")
		a, _ := pair(t, n, h, g)
		g.Crash()
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Error(err)
		}
		if _, err := h.Dial(t.Context(), "10.0.0.2:80"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Error(err)
		}
		if _, err := g.Listen("tcp", ":80"); err == nil {
			t.Error("a dead host listens")
		}
		a.Close()

		g = n.Host("g", "10.0.0.2")
		a, b := pair(t, n, h, g)
		closed := func(want bool) {
			t.Helper()
			if got := a.(interface{ PeerClosed() bool }).PeerClosed(); got != want {
				t.Errorf("closed by its peer: %v", got)
			}
		}
		h.Freeze()
		closed(false)
		b.Close()
		time.Sleep(time.Second)
		closed(false)
		h.Thaw()
		closed(true)
		a.Close()
		a, _ = pair(t, n, h, g)
		g.PowerOff()
		a.SetReadDeadline(time.Now().Add(time.Hour))
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		a.SetReadDeadline(time.Time{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := h.Dial(ctx, "10.0.0.2:80"); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		n.Host("g", "10.0.0.2")
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Error(err)
		}
		a.Close()
	})
}

func TestPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(1)
		h, g := n.Host("h", "10.0.0.1"), n.Host("g", "10.0.0.2", "fd00::2")
		a, err := h.Transport(7946)
		if err != nil {
			t.Fatal(err)
		}
		b, err := g.Transport(7946)
		if err != nil {
			t.Fatal(err)
		}
		count := func() (got int) {
			time.Sleep(time.Second)
			for {
				select {
				case <-b.PacketCh():
					got++
				default:
					return got
				}
			}
		}
		send := func() {
			for range 1000 {
				if _, err := a.WriteTo([]byte("p"), "[fd00::2]:7946"); err != nil {
					t.Error(err)
				}
			}
		}
		send()
		if got := count(); got != 1000 {
			t.Error(got)
		}
		n.SetLink("h", "g", Link{Loss: 0.5})
		send()
		if got := count(); got < 400 || got > 600 {
			t.Error(got)
		}
		n.SetLink("h", "g", Link{Duplicate: 0.5, Reorder: 0.1, Jitter: time.Millisecond})
		send()
		if got := count(); got < 1400 || got > 1600 {
			t.Error(got)
		}
		n.Cut("h", "g")
		send()
		n.HealAll()
		n.Cut("h", "g")
		if got := count(); got != 0 {
			t.Error(got)
		}
		n.HealAll()
		n.SetLink("h", "g", Link{})
		g.Freeze()
		send()
		if got := count(); got != 0 {
			t.Error(got)
		}
		g.Thaw()
		if got := count(); got != 1000 {
			t.Error(got)
		}
		a.Shutdown()
		g.Crash()
		b.Shutdown()
	})
}
