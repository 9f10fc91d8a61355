package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/starling-registry/starling/proto"
	"github.com/starling-registry/starling/test/simnet"
)

// frame and head are messages that only look like them.
func frameMsg(s string) []byte { return append([]byte{frameKey}, s...) }

func headMsg(s string) []byte { return append([]byte{headsKey}, s...) }

func TestSend(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		nodes := w.grow(3)
		for i := range 100 {
			for _, msg := range [][]byte{frameMsg(fmt.Sprint(i)), headMsg(fmt.Sprint(i))} {
				if err := nodes[0].Send(t.Context(), id(1), msg); err != nil {
					t.Fatal(err)
				}
			}
		}
		time.Sleep(time.Second)
		var want []string
		for i := range 100 {
			want = append(want, string(frameMsg(fmt.Sprint(i))), string(headMsg(fmt.Sprint(i))))
		}
		// Heads tell what the frames before them have brought.
		if got := nodes[1].got(Stream); !slices.Equal(got, want) {
			t.Errorf("%q", got)
		}
		if got := nodes[1].count("received_messages_total", "carrier", "stream"); got != 200 {
			t.Error(got)
		}
		if err := nodes[0].Send(t.Context(), id(9), headMsg("")); !errors.Is(err, ErrUnknown) {
			t.Error(err)
		}
		if err := nodes[0].Send(t.Context(), id(1), make([]byte, MaxMessage+1)); err == nil {
			t.Error("no limit")
		}
		if err := nodes[0].Send(t.Context(), id(1), make([]byte, MaxMessage)); err != nil {
			t.Error(err)
		}
		nodes[0].mu.Lock()
		defer nodes[0].mu.Unlock()
		nodes[1].mu.Lock()
		defer nodes[1].mu.Unlock()
		for _, m := range nodes[1].messages {
			if m.from != id(0) {
				t.Error("from", m.from)
			}
		}
		if !slices.Contains(nodes[1].connected, id(0)) || !slices.Contains(nodes[0].connected, id(1)) {
			t.Error("connected", nodes[0].connected, nodes[1].connected)
		}
	})
}

func TestGossip(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		nodes := w.grow(3, func(o *Options) { o.Keys = [][]byte{[]byte("a secret of the cluster")} })
		if nodes[0].Broadcast(make([]byte, MaxBroadcast+1)) {
			t.Error("too big a message is taken")
		}
		big := strings.Repeat("x", MaxBroadcast)
		if !nodes[0].Broadcast([]byte("small")) || !nodes[0].Broadcast([]byte(big)) {
			t.Error("not taken")
		}
		time.Sleep(10 * time.Second)
		for _, n := range nodes[1:] {
			if got := n.got(Gossip); !slices.Contains(got, "small") || !slices.Contains(got, big) {
				t.Error(len(got))
			}
		}
		taken := 0
		for range 1000 {
			taken += btoi(nodes[0].Broadcast([]byte("more")))
		}
		if taken != maxQueued {
			t.Error(taken, "taken at once")
		}
		if got := nodes[0].count("dropped_messages_total", "reason", dropBudget); got != float64(1000-taken) {
			t.Error(got)
		}
		time.Sleep(30 * time.Second)
		if nodes[0].queued.Load() != 0 || !nodes[0].Broadcast([]byte("again")) {
			t.Error("the budget does not recover:", nodes[0].queued.Load())
		}
	})
}

// Whichever way to a peer is open first, one can pull from then on.
func TestPullAtOnce(t *testing.T) {
	bubble(t, func(w *world) {
		var pulls sync.WaitGroup
		var mu sync.Mutex
		var results []error
		w.grow(3, func(o *Options) {
			o.Handlers.Pull = func(_ context.Context, _ string, req []byte, send func([]byte) error) error { return send(req) }
			n := len(w.nodes)
			o.Handlers.Connected = func(peer string) {
				pulls.Go(func() {
					err := w.nodes[n].Pull(w.t.Context(), peer, []byte("life"), func([]byte) error { return nil })
					mu.Lock()
					defer mu.Unlock()
					results = append(results, err)
				})
			}
		})
		pulls.Wait()
		if err := errors.Join(results...); err != nil || len(results) != 12 {
			w.t.Error(len(results), err)
		}
	})
}

func TestPullAndCall(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		nodes := w.grow(2, func(o *Options) {
			o.Keys = [][]byte{[]byte("a secret of the cluster")}
			o.Handlers.Pull = func(_ context.Context, from string, req []byte, send func([]byte) error) error {
				for i := range 100 {
					if err := send(fmt.Appendf(nil, "%s %s %d", from, req, i)); err != nil {
						return err
					}
				}
				if string(req) == "fail" {
					return status.Error(codes.NotFound, "no such life")
				}
				return nil
			}
			o.Handlers.Calls = map[string]func(context.Context, string, []byte) ([]byte, error){
				"Forward": func(_ context.Context, from string, req []byte) ([]byte, error) {
					return append([]byte(from), req...), nil
				},
			}
		})
		got := 0
		if err := nodes[0].Pull(t.Context(), id(1), []byte("life"), func(b []byte) error {
			if string(b) != fmt.Sprintf("%s life %d", id(0), got) {
				t.Errorf("%q", b)
			}
			got++
			return nil
		}); err != nil || got != 100 {
			t.Error(got, err)
		}
		if err := nodes[0].Pull(t.Context(), id(1), []byte("fail"), func([]byte) error { return nil }); status.Code(err) != codes.NotFound {
			t.Error(err)
		}
		if err := nodes[0].Pull(t.Context(), id(1), nil, func([]byte) error { return io.ErrShortBuffer }); err != io.ErrShortBuffer {
			t.Error(err)
		}
		if b, err := nodes[0].Call(t.Context(), id(1), "Forward", []byte("!")); string(b) != id(0)+"!" || err != nil {
			t.Errorf("%q, %v", b, err)
		}
		if _, err := nodes[0].Call(t.Context(), id(1), "Nothing", nil); status.Code(err) != codes.Unimplemented {
			t.Error(err)
		}
		if _, err := nodes[0].Call(t.Context(), id(7), "Forward", nil); !errors.Is(err, ErrUnknown) {
			t.Error(err)
		}
	})
}

// A peer that does not read takes no memory and delays nobody else, and its
// stream is closed.
func TestBackPressure(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		nodes := w.grow(3)
		hold := make(chan struct{})
		nodes[1].mu.Lock()
		nodes[1].hold = hold
		nodes[1].mu.Unlock()
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		sent := 0
		msg := frameMsg(strings.Repeat("x", 10<<10))
		for nodes[0].Send(ctx, id(1), msg) == nil {
			sent++
		}
		if d := time.Since(start); d != 5*time.Second || sent == 0 || sent > 1000 {
			t.Error(sent, "messages taken, for", d)
		}
		if err := nodes[0].Send(t.Context(), id(2), msg); err != nil || time.Since(start) > 6*time.Second {
			t.Error("another member waits", err)
		}
		// Heads are on the other stream.
		time.Sleep(20 * time.Second)
		if nodes[0].count("stalled_streams_total") == 0 {
			t.Error("the stream is still open")
		}
		close(hold)
		nodes[1].mu.Lock()
		nodes[1].hold = nil
		nodes[1].mu.Unlock()
		w.await(10*time.Second, "streams again", func() bool { return nodes[0].count("streams") == 4 })
		if err := nodes[0].Send(t.Context(), id(1), frameMsg("last")); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if got := nodes[1].got(Stream); got[len(got)-1] != string(frameMsg("last")) {
			t.Error("not received")
		}
	})
}

// With slow but steady progress a stream is not closed.
func TestSlowLink(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		w.net.SetLink("n0", "n1", simnet.Link{Delay: time.Millisecond, Bandwidth: 100 << 10})
		nodes := w.grow(2)
		start := time.Now()
		for range 2 { // grpc takes the first at once
			if err := nodes[0].Send(t.Context(), id(1), frameMsg(strings.Repeat("x", 4<<20))); err != nil {
				t.Error(err)
			}
		}
		if d := time.Since(start); d < 30*time.Second {
			t.Error("the second was taken after", d)
		}
		w.await(time.Minute, "both", func() bool { return len(nodes[1].got(Stream)) == 2 })
		if nodes[0].count("stalled_streams_total") != 0 || nodes[1].seen(start, id(0), Silent) {
			t.Error("the stream was closed")
		}
	})
}

// Without the peer port messages go as reliable ones.
func TestSendFallback(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		w.net.SetName("nodes.test", "10.0.0.1", "10.0.0.2")
		blocked := func(o *Options) {
			dial := o.Dial
			o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
				if strings.HasSuffix(addr, ":9849") {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return dial(ctx, addr)
			}
			o.Expect = 2
		}
		a, b := w.add(blocked).start(), w.add(blocked).start()
		w.await(5*time.Second, "members", func() bool { return len(a.View().Members) == 2 && len(b.View().Members) == 2 })
		for i := range 10 {
			if err := a.Send(t.Context(), id(1), headMsg(fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		if got := b.got(Reliable); len(got) != 10 || got[0] != string(headMsg("0")) {
			t.Errorf("%q", got)
		}
		if a.count("sent_messages_total", "carrier", "reliable") != 10 {
			t.Error("not counted")
		}
		if a.state(id(1)) != Alive {
			t.Error(a.state(id(1)))
		}
	})
}

// If only one side can dial, both use its stream.
func TestOneStream(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		w.net.SetName("nodes.test", "10.0.0.1", "10.0.0.2")
		a := w.add(func(o *Options) {
			dial := o.Dial
			o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
				if strings.HasSuffix(addr, ":9849") {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return dial(ctx, addr)
			}
		}).start()
		b := w.add().start()
		w.await(5*time.Second, "a stream", func() bool { return a.count("streams") == 1 && b.count("streams") == 1 })
		for _, msg := range [][]byte{frameMsg("f"), headMsg("h")} {
			if err := errors.Join(a.Send(t.Context(), id(1), msg), b.Send(t.Context(), id(0), msg)); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Second)
		if len(a.got(Stream)) != 2 || len(b.got(Stream)) != 2 {
			t.Error(a.got(Stream), b.got(Stream))
		}
	})
}

// stranger opens a Sync stream with grpc's own protobuf codec and says something.
func stranger(t *testing.T, w *world, from *simnet.Host, to string, first *pb.Message) (*pb.Message, error) {
	t.Helper()
	return strangerWith(t, insecure.NewCredentials(), from, to, first)
}

func strangerWith(t *testing.T, creds credentials.TransportCredentials, from *simnet.Host, to string, first *pb.Message) (*pb.Message, error) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+to, grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return from.Dial(ctx, addr) }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/starling.v1.Peer/Sync")
	if err != nil {
		return nil, err
	}
	if first != nil {
		if err := s.SendMsg(first); err != nil && err != io.EOF {
			return nil, err
		}
	}
	var m pb.Message
	return &m, s.RecvMsg(&m)
}

func TestHelloRefused(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		n := w.grow(2)[0]
		host := w.net.Host("stranger", "10.0.1.1")
		hello := func(change func(*pb.Hello)) *pb.Message {
			h := &pb.Hello{Wire: 1, Cluster: n.ClusterID(), Life: &pb.Life{Node: id(50), Epoch: 1}}
			change(h)
			return &pb.Message{Body: &pb.Message_Hello{Hello: h}}
		}
		w.await(5*time.Second, "a cluster id", func() bool { return n.ClusterID() != "" })
		check := func(msg *pb.Message, code codes.Code, reason string) {
			t.Helper()
			for range 2 {
				if _, err := stranger(t, w, host, "10.0.0.1:9849", msg); status.Code(err) != code {
					t.Error(err)
				}
			}
			if got := n.count("refused_hellos_total", "reason", reason); got != 2 {
				t.Error(reason, got)
			}
		}
		check(&pb.Message{Body: &pb.Message_Ack{Ack: &pb.Ack{}}}, codes.InvalidArgument, helloBroken)
		check(hello(func(h *pb.Hello) { h.Cluster = "another" }), codes.FailedPrecondition, helloCluster)
		check(hello(func(h *pb.Hello) { h.Wire = 0 }), codes.FailedPrecondition, helloWire)
		check(hello(func(h *pb.Hello) { h.Life.Node = id(0) }), codes.AlreadyExists, helloOwnID)
		check(hello(func(h *pb.Hello) { h.Life.Node, h.Life.Epoch = id(1), 0 }), codes.AlreadyExists, helloOldLife)
		if got := n.logged("peer refused"); got != 5 {
			t.Error(got, "lines, not one for each")
		}
		// Who says nothing is cut off.
		start := time.Now()
		if _, err := stranger(t, w, host, "10.0.0.1:9849", nil); err == nil || time.Since(start) > helloTime+time.Second {
			t.Error(err, time.Since(start))
		}
		// What is sent raw here is what the typed codec reads.
		m, err := stranger(t, w, host, "10.0.0.1:9849", hello(func(h *pb.Hello) { h.Wire = 2 }))
		want := &pb.Hello{Wire: 1, Cluster: n.ClusterID(), Life: &pb.Life{Node: id(0), Epoch: 1}, Name: "n0"}
		if err != nil || !proto.Equal(m.GetHello(), want) {
			t.Error(m, err)
		}
		time.Sleep(time.Second)
		if n.state(id(50)) != 255 {
			t.Error("a stranger is a member")
		}
	})
}

// With encryption a Hello is believed only of the node that the certificate
// names, and nobody gets in without one.
func TestHelloOfAnother(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		key := []byte("a secret of the cluster")
		n := w.grow(2, func(o *Options) { o.Keys = [][]byte{key} })[0]
		from := w.make("member", "10.0.1.1", id(50), 1, func(o *Options) { o.Keys = [][]byte{key} })
		c, err := New(from.opts)
		if err != nil {
			t.Fatal(err)
		}
		say := func(who int) error {
			_, err := strangerWith(t, credentials.NewTLS(c.ClientTLS(id(0), "")), from.host, "10.0.0.1:9849",
				&pb.Message{Body: &pb.Message_Hello{Hello: &pb.Hello{Wire: 1, Life: &pb.Life{Node: id(who), Epoch: 9}}}})
			return err
		}
		if err := say(50); err != nil {
			t.Error(err)
		}
		if err := say(1); status.Code(err) != codes.PermissionDenied || n.count("refused_hellos_total", "reason", helloIdentity) != 1 {
			t.Error(err)
		}
		if m, _ := n.View().Member(id(1)); m.Epoch != 1 {
			t.Error("its epoch is believed")
		}
		if _, err := stranger(t, w, from.host, "10.0.0.1:9849", &pb.Message{}); err == nil {
			t.Error("not encrypted")
		}
		if err := c.SetKeys([][]byte{[]byte("the secret of somebody else")}); err != nil {
			t.Fatal(err)
		}
		conf := c.ClientTLS(id(0), "")
		conf.VerifyConnection = nil // it does not mind who answers
		if _, err := strangerWith(t, credentials.NewTLS(conf), from.host, "10.0.0.1:9849", &pb.Message{}); status.Code(err) != codes.Unavailable {
			t.Error(err)
		}
	})
}

// Unary calls are refused like Hellos.
func TestCallerRefused(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		w.grow(2, func(o *Options) {
			o.Handlers.Calls = map[string]func(context.Context, string, []byte) ([]byte, error){
				"Forward": func(context.Context, string, []byte) ([]byte, error) { return nil, nil },
			}
		})
		host := w.net.Host("stranger", "10.0.1.1")
		conn, err := grpc.NewClient("passthrough:///10.0.0.1:9849", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return host.Dial(ctx, addr) }))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.Invoke(t.Context(), "/starling.v1.Peer/Forward", &pb.ForwardRequest{}, &pb.ForwardResponse{}); status.Code(err) != codes.Unauthenticated {
			t.Error(err)
		}
		s, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, "/starling.v1.Peer/Pull")
		if err != nil {
			t.Fatal(err)
		}
		err = errors.Join(s.SendMsg(&pb.PullRequest{}), s.CloseSend())
		if err == nil {
			err = s.RecvMsg(&pb.Message{})
		}
		if status.Code(err) != codes.Unauthenticated {
			t.Error(err)
		}
	})
}

// A node that gossip does not know is not listened to, and not for long; what
// it says of itself is not logged at any length.
func TestStrangers(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		n := w.grow(2)[0]
		host := w.net.Host("stranger", "10.0.1.1")
		conn, err := grpc.NewClient("passthrough:///10.0.0.1:9849", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return host.Dial(ctx, addr) }))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		say := func(id string) grpc.ClientStream {
			s, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/starling.v1.Peer/Sync")
			if err != nil {
				t.Fatal(err)
			}
			h := &pb.Message{Body: &pb.Message_Hello{Hello: &pb.Hello{Wire: 1, Life: &pb.Life{Node: id, Epoch: 1}}}}
			if err := errors.Join(s.SendMsg(h), s.SendMsg(&pb.Message{Body: &pb.Message_Ack{Ack: &pb.Ack{Applied: 9}}})); err != nil {
				t.Fatal(err)
			}
			return s
		}
		start := time.Now()
		var streams []grpc.ClientStream
		for i := range maxStrangers {
			streams = append(streams, say(id(100+i)))
		}
		time.Sleep(time.Second)
		if err := errors.Join(say(id(99)).RecvMsg(&pb.Message{}), say(id(98)).RecvMsg(&pb.Message{})); err != nil {
			t.Error("a Hello is answered", err)
		}
		for _, s := range streams {
			err := s.RecvMsg(&pb.Message{}) // the Hello
			if err == nil {
				err = s.RecvMsg(&pb.Message{})
			}
			if status.Code(err) != codes.FailedPrecondition {
				t.Error(err)
			}
		}
		if took := time.Since(start); took < strangerTime || took > strangerTime+time.Second {
			t.Error(took)
		}
		if got := n.count("refused_hellos_total", "reason", helloStranger); got != maxStrangers+2 {
			t.Error(got)
		}
		if len(n.got(Stream)) != 0 || n.logged("peer refused") != 1 {
			t.Error(n.got(Stream), n.logged("peer refused"))
		}
		long := strings.Repeat("x", 1<<20)
		for range 2 {
			if _, err := stranger(t, w, host, "10.0.0.1:9849", &pb.Message{Body: &pb.Message_Hello{Hello: &pb.Hello{Wire: 1, Cluster: long, Life: &pb.Life{Node: long}}}}); status.Code(err) != codes.InvalidArgument {
				t.Error(err)
			}
		}
		for _, e := range n.logs.FilterMessage("peer refused").All() {
			for _, f := range e.Context {
				if len(f.String) > 1000 {
					t.Error("a field of", len(f.String), "bytes was logged")
				}
			}
		}
	})
}

// Whoever claims to be a later start of a member is not believed while the
// member is there; a member that is gone may have started elsewhere.
func TestTwin(t *testing.T) {
	bubble(t, func(w *world) {
		t := w.t
		nodes := w.grow(2)
		n := nodes[0]
		host := w.net.Host("copy", "10.0.1.1")
		say := func() error {
			_, err := stranger(t, w, host, "10.0.0.1:9849", &pb.Message{Body: &pb.Message_Hello{Hello: &pb.Hello{Wire: 1, Life: &pb.Life{Node: id(1), Epoch: 9}}}})
			return err
		}
		for range 3 {
			if err := say(); status.Code(err) != codes.AlreadyExists {
				t.Error(err)
			}
		}
		if m, _ := n.View().Member(id(1)); m.Epoch != 1 {
			t.Error("its epoch is believed")
		}
		if n.count("refused_hellos_total", "reason", helloTwin) != 3 || n.count("conflicts_total", "kind", "id") != 3 || n.logged("peer refused") != 1 {
			t.Error(n.count("refused_hellos_total", "reason", helloTwin), n.count("conflicts_total", "kind", "id"), n.logged("peer refused"))
		}
		nodes[1].kill()
		if err := say(); err != nil {
			t.Error(err)
		}
		time.Sleep(100 * time.Millisecond)
		if m, _ := n.View().Member(id(1)); m.Epoch != 9 {
			t.Error("a member that has started again is not believed")
		}
	})
}
