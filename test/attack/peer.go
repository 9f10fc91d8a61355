package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"log"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/hashicorp/memberlist"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	grpcmd "google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/starling-registry/starling/proto"
)

const peerService = "/starling.v1.Peer/"

// peerCodec passes bytes through, so that what is sent may be wrong.
type peerCodec struct{}

func (peerCodec) Name() string { return "proto" }

func (peerCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (peerCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

func dialPeer(addr string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(), grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(peerCodec{}), grpc.MaxCallRecvMsgSize(128<<20), grpc.MaxCallSendMsgSize(128<<20)))
}

func randomID() string {
	b := make([]byte, 16)
	rand.Read(b)
	return hex.EncodeToString(b)
}

func hello(id string, epoch uint64, cluster string, wire uint32) *pb.Message {
	return &pb.Message{Body: &pb.Message_Hello{Hello: &pb.Hello{Wire: wire, Cluster: cluster, Life: &pb.Life{Node: id, Epoch: epoch}, Name: "attacker"}}}
}

func marshal(m proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

// A syncStream is one that was accepted. What comes is read and counted.
type syncStream struct {
	cc     *grpc.ClientConn
	stream grpc.ClientStream
	cancel context.CancelFunc
	peer   *pb.Hello
	ended  chan struct{}
	err    error // set when ended is closed
	frames atomic.Int64

	mu   sync.Mutex
	last map[string]*pb.Head // of the peer's newest heads, by life
}

// openSync says first and waits for the answer; unread: nothing more is read.
func openSync(addr string, first []byte, unread bool) (*syncStream, error) {
	cc, err := dialPeer(addr)
	if err != nil {
		return nil, err
	}
	s := &syncStream{cc: cc, ended: make(chan struct{}), last: map[string]*pb.Head{}}
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(context.Background())
	ok := false
	late := time.AfterFunc(callTimeout, s.cancel)
	defer func() {
		late.Stop()
		if !ok {
			s.cancel()
			cc.Close()
		}
	}()
	if s.stream, err = cc.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, peerService+"Sync"); err != nil {
		return nil, err
	}
	if err := s.stream.SendMsg(&first); err != nil && err != io.EOF {
		return nil, err
	}
	var b []byte
	if err := s.stream.RecvMsg(&b); err != nil {
		return nil, err
	}
	var m pb.Message
	if err := proto.Unmarshal(b, &m); err != nil || m.GetHello() == nil {
		return nil, fmt.Errorf("no hello came back: %v", err)
	}
	s.peer, ok = m.GetHello(), true
	if !unread {
		go s.read()
	}
	return s, nil
}

func (s *syncStream) read() {
	defer close(s.ended)
	for {
		var b []byte
		if s.err = s.stream.RecvMsg(&b); s.err != nil {
			return
		}
		var m pb.Message
		if proto.Unmarshal(b, &m) != nil {
			continue
		}
		if m.GetFrame() != nil {
			s.frames.Add(1)
		}
		s.mu.Lock()
		for _, h := range m.GetHeads().GetHeads() {
			s.last[fmt.Sprintf("%s/%d", h.GetLife().GetNode(), h.GetLife().GetEpoch())] = h
		}
		s.mu.Unlock()
	}
}

func (s *syncStream) raw(b []byte) error { return s.stream.SendMsg(&b) }

func (s *syncStream) send(m *pb.Message) error { return s.raw(marshal(m)) }

func (s *syncStream) close() {
	s.cancel()
	s.cc.Close()
}

// ask calls a unary method, or Pull, as a node.
func ask(cc *grpc.ClientConn, id, cluster, wire, method string, req []byte) (answer []byte, parts int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	ctx = grpcmd.AppendToOutgoingContext(ctx, "starling-node", id, "starling-cluster", cluster, "starling-wire", wire)
	if method != "Pull" {
		err = cc.Invoke(ctx, peerService+method, &req, &answer)
		return answer, 1, err
	}
	t, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, peerService+method)
	if err != nil {
		return nil, 0, err
	}
	if err := t.SendMsg(&req); err != nil && err != io.EOF {
		return nil, 0, err
	}
	if err := t.CloseSend(); err != nil {
		return nil, 0, err
	}
	for {
		if err := t.RecvMsg(&answer); err == io.EOF {
			return answer, parts, nil
		} else if err != nil {
			return nil, parts, err
		}
		parts++
	}
}

// encodeRecord writes a record as its owner would; spoil changes its hash.
func encodeRecord(r *pb.Record, spoil uint64) []byte {
	b := marshal(r)
	sum := xxhash.Sum64(b)
	b = protowire.AppendTag(b, 15, protowire.Fixed64Type)
	return binary.LittleEndian.AppendUint64(b, sum+spoil)
}

// publication is a record that shows n instances in a group of the attackers.
func publication(client, service string, version, clock uint64, n int) *pb.Record {
	p := &pb.Publication{ClientKind: 1, Cause: "registered"}
	for i := range n {
		p.Instances = append(p.Instances, &pb.Instance{Ip: fmt.Sprintf("10.9.%d.%d", i>>8, i&255), Port: 80, Cluster: "DEFAULT",
			Weight: 1, Healthy: true, Enabled: true, Since: clock})
	}
	return &pb.Record{Kind: 1, Key: marshal(&pb.PublicationKey{Client: client, Namespace: "public", Group: attackedGroup, Service: service}),
		Version: version, Clock: clock, Value: marshal(p)}
}

// attackedGroup is where attackers publish.
const attackedGroup = "ATTACKED"

func stamp(t time.Time) uint64 { return uint64(t.UnixMilli()) << 16 }

// A traitor is a member of the cluster with a life of its own that sends what
// it likes: the memberlist of the real nodes, and a peer port that takes their
// streams and says nothing.
type traitor struct {
	id      string
	epoch   uint64
	cluster string
	ml      *memberlist.Memberlist
	server  *grpc.Server
	unread  atomic.Bool   // its end of the streams of others is not read
	done    chan struct{} // closed by close
}

// meta is what a node announces (cluster/meta.go).
func (t *traitor) meta(ports [5]int) []byte {
	b := []byte{1, 0}
	b = binary.BigEndian.AppendUint64(b, t.epoch)
	b = binary.BigEndian.AppendUint32(b, 1)
	b = binary.BigEndian.AppendUint32(b, 1)
	for _, p := range ports {
		b = binary.BigEndian.AppendUint16(b, uint16(p))
	}
	for _, s := range []string{"traitor", "127.0.0.1", t.cluster, "0"} {
		b = append(append(b, byte(len(s))), s...)
	}
	return b
}

type traitorDelegate struct{ meta []byte }

func (d *traitorDelegate) NodeMeta(int) []byte                { return d.meta }
func (d *traitorDelegate) NotifyMsg([]byte)                   {}
func (d *traitorDelegate) GetBroadcasts(int, int) [][]byte    { return nil }
func (d *traitorDelegate) LocalState(bool) []byte             { return nil }
func (d *traitorDelegate) MergeRemoteState([]byte, bool)      {}
func (d *traitorDelegate) NotifyAlive(*memberlist.Node) error { return nil }

// newTraitor returns when all nodes take it for a living member.
func newTraitor(c *trio) (_ *traitor, err error) {
	t := &traitor{id: randomID(), epoch: uint64(time.Now().UnixMilli()), cluster: c.cluster, done: make(chan struct{})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	t.server = grpc.NewServer(grpc.ForceServerCodecV2(peerCodec{}), grpc.MaxRecvMsgSize(64<<20))
	t.server.RegisterService(&grpc.ServiceDesc{ServiceName: "starling.v1.Peer", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "Sync", ServerStreams: true, ClientStreams: true, Handler: t.serve}}}, t)
	go t.server.Serve(l)

	d := &traitorDelegate{}
	port, err := freePorts()
	if err != nil {
		return nil, err
	}
	d.meta = t.meta([5]int{port, port + 1000, l.Addr().(*net.TCPAddr).Port, port - 1000, port - 902})
	conf := memberlist.DefaultLANConfig()
	conf.Name, conf.BindAddr, conf.BindPort, conf.AdvertisePort = t.id, "127.0.0.1", port-902, port-902
	conf.Delegate, conf.Alive = d, d
	conf.EnableCompression = false
	conf.Logger = log.New(io.Discard, "", 0)
	if t.ml, err = memberlist.Create(conf); err != nil {
		t.server.Stop()
		return nil, err
	}
	if _, err := t.ml.Join([]string{c.nodes[0].gossipAddr()}); err != nil {
		t.close()
		return nil, err
	}
	for start := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		var not []string
		for n, s := range c.nodes {
			ms, _, err := s.members(context.Background())
			if err != nil {
				t.close()
				return nil, err
			}
			state := "unknown"
			for _, m := range ms {
				if m.ID == t.id {
					state = m.State
				}
			}
			if state != "alive" {
				not = append(not, fmt.Sprintf("%s to node %d", state, n))
			}
		}
		if len(not) == 0 {
			return t, nil
		}
		if time.Since(start) > 20*time.Second {
			t.close()
			return nil, fmt.Errorf("the traitor is not let in: after 20 s it is %s", strings.Join(not, ", "))
		}
	}
}

func (t *traitor) serve(_ any, s grpc.ServerStream) error {
	for first := true; ; first = false {
		var b []byte
		if err := s.RecvMsg(&b); err != nil {
			return err
		}
		if first {
			b = marshal(hello(t.id, t.epoch, t.cluster, 1))
			if err := s.SendMsg(&b); err != nil {
				return err
			}
		}
		if t.unread.Load() {
			select {
			case <-s.Context().Done():
			case <-t.done:
			}
			return nil
		}
	}
}

func (t *traitor) hello() []byte { return marshal(hello(t.id, t.epoch, t.cluster, 1)) }

// open opens a stream to a node as the traitor.
func (t *traitor) open(s *server) (*syncStream, error) {
	return openSync(s.peerAddr(), t.hello(), false)
}

func (t *traitor) life() *pb.Life { return &pb.Life{Node: t.id, Epoch: t.epoch} }

func (t *traitor) heads(clock uint64, heads ...*pb.Head) *pb.Message {
	return &pb.Message{Body: &pb.Message_Heads{Heads: &pb.Heads{Life: t.life(), Clock: clock, Full: true, Heads: heads}}}
}

func frame(f *pb.Frame) *pb.Message { return &pb.Message{Body: &pb.Message_Frame{Frame: f}} }

// user sends a user message by memberlist, reliably or in a packet.
func (t *traitor) user(s *server, reliable bool, msg []byte) error {
	host, p, err := net.SplitHostPort(s.gossipAddr())
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(p)
	if err != nil {
		return err
	}
	n := &memberlist.Node{Addr: net.ParseIP(host).To4(), Port: uint16(port)}
	if reliable {
		return t.ml.SendReliable(n, msg)
	}
	return t.ml.SendBestEffort(n, msg)
}

// close leaves without a word.
func (t *traitor) close() {
	close(t.done)
	t.server.Stop()
	if t.ml != nil {
		_ = t.ml.Shutdown()
	}
}

// contains tells whether some line has all of the words.
func containsAll(lines []string, words ...string) (n int) {
next:
	for _, l := range lines {
		for _, w := range words {
			if !bytes.Contains([]byte(l), []byte(w)) {
				continue next
			}
		}
		n++
	}
	return n
}
