package cluster

import (
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"github.com/starling-registry/starling/test/simnet"
)

// What a stranger promises costs nothing, and there are few who may.
func TestInboundStreams(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		n := w.grow(2)[0]
		host := w.net.Host("stranger", "10.0.1.1")
		dial := func(b []byte) net.Conn { return dialGossip(t, host, b) }
		number := func(n uint32) []byte { return binary.BigEndian.AppendUint32([]byte{0xce}, n) }
		promise := append([]byte("\x06\x83\xa5Nodes"), append(number(1<<20), "\xacUserStateLen\x00\xa4Join\xc3 and then some nodes"...)...)
		for _, b := range [][]byte{promise, []byte("\x09\x82\xa4Algo\x00")} {
			start := time.Now()
			c := dial(b)
			io.Copy(io.Discard, c)
			if time.Since(start) > time.Second {
				t.Errorf("%q is read for %v", b, time.Since(start))
			}
			c.Close()
		}
		if got := n.count("dropped_messages_total", "reason", dropBroken); got != 2 {
			t.Error(got)
		}
		for range 2 * maxInbound {
			defer dial([]byte{8}).Close()
		}
		time.Sleep(time.Second)
		if got := n.count("dropped_messages_total", "reason", dropStreams); got < maxInbound-2 {
			t.Error(got)
		}
		time.Sleep(5 * time.Second) // they say no more, and are closed
		m := w.add().start()
		w.await(10*time.Second, "a third node", func() bool { return n.state(m.opts.ID) == Alive })
	})
}

func TestModestPacket(t *testing.T) {
	for packet, modest := range map[string]bool{
		"":                                    true, // memberlist says what is wrong
		"\x00":                                true,
		"\x00ping":                            true,
		"\x09\x82\xa4Algo":                    false,
		"\x0c1234\x00ping":                    true,
		"\x0c1234\x09\x82":                    false,
		"\x0c123":                             true,
		"\x07":                                true,
		"\x07\x00":                            true,
		"\x07\x02\x00\x02\x00\x03\x00a\x08bc": true,
		"\x07\x02\x00\x02\x00\x02\x00a\x09b":  false,
		"\x07\x02\x00\x02\x00\x09\x00a\x09b":  false, // cut short
		"\x07\x01\x00\x02\x07\x01":            false,
		"\x07\x01\x00\x02\x00\x09":            true,
		"\x07\x01\x00\x00\x00\x09":            true,
		"\x07\x01\xff\xff\x00":                true,
		"\x07\xff\x00":                        true,
		"\x0c1234\x07\x01\x00\x02\x09\x00":    false,
	} {
		if got := modestPacket([]byte(packet)); got != modest {
			t.Errorf("%q: %v", packet, got)
		}
	}
}

func dialGossip(t *testing.T, host *simnet.Host, b []byte) net.Conn {
	t.Helper()
	c, err := host.Dial(t.Context(), "10.0.0.1:7946")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
	return c
}
