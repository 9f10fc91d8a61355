package raftstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

func TestHello(t *testing.T) {
	h := hello{reason: helloGeneration, generation: 1<<40 + 7, cluster: cluster1, from: "a", to: strings.Repeat("b", 255)}
	b := h.bytes()
	got, reason, err := readHello(bytes.NewReader(append(b, "the library's"...)))
	if got != h || reason != "" || err != nil {
		t.Errorf("%+v %s %v", got, reason, err)
	}
	for n := range b {
		if _, reason, err := readHello(bytes.NewReader(b[:n])); err == nil || reason != helloBroken {
			t.Fatalf("%d bytes: %s %v", n, reason, err)
		}
	}
	b[len(helloMagic)]++
	if _, reason, err := readHello(bytes.NewReader(b)); err == nil || reason != helloWire {
		t.Errorf("version: %s %v", reason, err)
	}
}

func FuzzHello(f *testing.F) {
	f.Add(hello{reason: helloOK, generation: 1, cluster: cluster1, from: "a", to: "b"}.bytes())
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, reason, err := readHello(bytes.NewReader(b))
		if err != nil {
			if reason == "" || reason == helloOK {
				t.Errorf("error %v without a reason", err)
			}
			return
		}
		again, _, err := readHello(bytes.NewReader(h.bytes()))
		if err != nil || again != h {
			t.Errorf("%+v became %+v, %v", h, again, err)
		}
	})
}

func TestJudge(t *testing.T) {
	own := hello{generation: 5, cluster: "c", from: "a"}
	for _, c := range []struct {
		other hello
		want  string
	}{
		{hello{generation: 5, cluster: "c", from: "b", to: "a"}, helloOK},
		{hello{generation: 5, cluster: "d", from: "b", to: "a"}, helloCluster},
		{hello{generation: 5, cluster: "", from: "b", to: "a"}, helloUnknown},
		{hello{generation: 5, cluster: "c", from: "b", to: "c"}, helloNode},
		{hello{generation: 5, cluster: "c", from: "a", to: "a"}, helloNode},
		{hello{generation: 4, cluster: "c", from: "b", to: "a"}, helloGeneration},
		{hello{generation: 6, cluster: "c", from: "b", to: "a"}, helloGeneration},
	} {
		if got := judge(own, c.other); got != c.want {
			t.Errorf("%+v: %s, want %s", c.other, got, c.want)
		}
	}
	if got := judge(hello{generation: 5, from: "a"}, hello{generation: 5, cluster: "c", from: "b", to: "a"}); got != helloUnknown {
		t.Errorf("without an own cluster: %s", got)
	}
}

// Who is not of the cluster, says nothing, or something else, gets nowhere and
// does not disturb.
func TestStrangers(t *testing.T) {
	bubble(t, "a b c x", func(t *testing.T, g *group) {
		leader := g.three()
		x := g.peers["x"]
		x.host = g.net.Host("x", x.addr)
		say := func(b []byte) (answered hello, closed bool) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			c, err := x.dial(ctx, "a")
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := c.Write(b); err != nil {
				t.Fatal(err)
			}
			_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
			answered, _, err = readHello(c)
			if err != nil {
				return hello{}, true
			}
			_, err = c.Read(make([]byte, 1))
			return answered, err != nil
		}
		generation := g.peers["a"].store.generation.Load()
		good := hello{reason: helloOK, generation: generation, cluster: cluster1, from: "x", to: "a"}
		with := func(f func(h *hello)) []byte {
			h := good
			f(&h)
			return h.bytes()
		}
		for _, c := range []struct {
			name  string
			bytes []byte
			want  string
		}{
			{"other cluster", with(func(h *hello) { h.cluster = "other" }), helloCluster},
			{"no cluster", with(func(h *hello) { h.cluster = "" }), helloUnknown},
			{"other node", with(func(h *hello) { h.to = "b" }), helloNode},
			{"old generation", with(func(h *hello) { h.generation-- }), helloGeneration},
			{"HTTP", []byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), helloBroken},
			{"version", binary.BigEndian.AppendUint16(append([]byte(helloMagic), 9), 0), helloWire},
			{"nothing", nil, helloBroken},
		} {
			before := testutil.ToFloat64(g.peers["a"].store.metrics.refused[c.want])
			begin := time.Now()
			answer, closed := say(c.bytes)
			if !closed || answer.reason == helloOK || time.Since(begin) > 6*time.Second {
				t.Errorf("%s: answer %+v, closed %v after %v", c.name, answer, closed, time.Since(begin))
			}
			if n := testutil.ToFloat64(g.peers["a"].store.metrics.refused[c.want]); n != before+1 {
				t.Errorf("%s: counted %v times", c.name, n-before)
			}
		}
		// Many that say nothing at once: those that are too many are closed.
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		for range 2 * maxHellos {
			c, err := x.dial(ctx, "a")
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
		}
		time.Sleep(100 * time.Millisecond)
		if n := testutil.ToFloat64(g.peers["a"].store.metrics.refused[helloFull]); n < maxHellos/2 {
			t.Errorf("%v were closed at once", n)
		}
		g.mustPut("a", "x", "1")
		if l := g.leader(); l != leader {
			t.Error("the leader changed")
		}
		x.host.Crash()
	})
}

// A node that does not know its cluster lets nobody in, and joins when it does.
func TestClusterUnknown(t *testing.T) {
	bubble(t, "a b", func(t *testing.T, g *group) {
		b := g.peers["b"]
		b.cluster = ""
		g.start("a b")
		if err := g.peers["a"].store.Bootstrap([]string{"a"}); err != nil {
			t.Fatal(err)
		}
		g.awaitServers("a/b", 10*time.Second)
		time.Sleep(10 * time.Second)
		if st := b.store.Status(); st.Last != 0 || st.Generation != 0 || st.Role != "joining" {
			t.Errorf("%+v", st)
		}
		g.mu.Lock()
		b.cluster = cluster1
		g.mu.Unlock()
		g.awaitServers("a b/", 30*time.Second)
	})
}

func TestBridge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, seen := observer.New(zapcore.DebugLevel)
		b := newBridge(zap.New(core))
		for range 100 { // C44
			b.Error("failed to make snapshot", "peer", "b", "error", fmt.Errorf("refused"))
			b.With("x", 1).Named("n").Error("failed to make snapshot", "peer", "c")
			time.Sleep(50 * time.Millisecond)
		}
		if n := seen.FilterMessage("failed to make snapshot").Len(); n != 2 {
			t.Errorf("%d lines for 200 warnings of two peers", n)
		}
		time.Sleep(sayAgain)
		b.Warn("failed to make snapshot", "peer", "b", "servers", hclog.Fmt("%+v", []int{1}))
		last := seen.All()[seen.Len()-1]
		if m := last.ContextMap(); m["repeated"] != int64(99) || m["servers"] != "[1]" || last.Level != zapcore.WarnLevel {
			t.Errorf("%v %v", last.Level, m)
		}
		b.Info("entering follower state")
		if last := seen.All()[seen.Len()-1]; last.Level != zapcore.DebugLevel {
			t.Errorf("information at %v", last.Level)
		}
		time.Sleep(sayAgain)
		before := seen.FilterMessage("w").Len()
		for i := range 2 * maxSaid {
			b.Warn("w", "peer", i)
		}
		if n := seen.FilterMessage("w").Len() - before; n == 0 || n > maxLines {
			t.Errorf("%d lines for as many names", n)
		}
		if n := len(b.said.last); n > maxSaid {
			t.Errorf("%d texts are remembered", n)
		}
	})
}
