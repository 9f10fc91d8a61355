package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/starling-registry/starling/proto"
)

func refusedHello(reason string) string {
	return `starling_cluster_refused_hellos_total{reason="` + reason + `"}`
}

func refusedMessage(reason string) string {
	return `starling_distro_refused_total{reason="` + reason + `"}`
}

func droppedMessage(reason string) string {
	return `starling_cluster_dropped_messages_total{reason="` + reason + `"}`
}

func strangeHellos(f *field) (string, error) {
	s := f.nodes[0]
	t, err := s.tally()
	if err != nil {
		return "", err
	}
	id := randomID()
	long := strings.Repeat("x", 15<<20)
	cases := []struct {
		name   string
		first  []byte
		code   codes.Code
		metric string
		times  int
	}{
		{"own id", marshal(hello(f.members[0].ID, 1, f.cluster, 1)), codes.AlreadyExists, refusedHello("own_id"), 20},
		{"another cluster", marshal(hello(id, 1, randomID(), 1)), codes.FailedPrecondition, refusedHello("other_cluster"), 20},
		{"wire 0", marshal(hello(id, 1, f.cluster, 0)), codes.FailedPrecondition, refusedHello("wire_version"), 20},
		{"no id", marshal(hello("me", 1, f.cluster, 1)), codes.InvalidArgument, refusedHello("malformed"), 20},
		{"long id", marshal(hello(long, 1, f.cluster, 1)), codes.InvalidArgument, refusedHello("malformed"), 5},
		{"long cluster", marshal(hello(id, 1, long, 1)), codes.InvalidArgument, refusedHello("malformed"), 5},
		{"heads", marshal(&pb.Message{Body: &pb.Message_Heads{Heads: &pb.Heads{}}}), codes.InvalidArgument, refusedHello("malformed"), 5},
		{"noise", []byte("\xff\xff\xff\xff\xff"), codes.InvalidArgument, refusedHello("malformed"), 5},
		{"nothing", nil, codes.InvalidArgument, refusedHello("malformed"), 5},
	}
	n := 0
	for _, c := range cases {
		was, err := t.since(c.metric)
		if err != nil {
			return "", err
		}
		for range c.times {
			n++
			st, err := openSync(s.peerAddr(), c.first, true)
			if err == nil {
				st.close()
				return "", fmt.Errorf("%s: accepted", c.name)
			}
			if status.Code(err) != c.code {
				return "", fmt.Errorf("%s: %w", c.name, err)
			}
		}
		if err := t.grown(c.metric, was+float64(c.times)); err != nil {
			return "", fmt.Errorf("%s: %w", c.name, err)
		}
	}
	lines, err := t.logged()
	if err != nil {
		return "", err
	}
	if n := containsAll(lines, "peer refused", "another cluster"); n != 1 {
		return "", fmt.Errorf("another cluster was logged %d times", n)
	}
	// A newer release says so itself if it cannot talk to this one.
	st, err := openSync(s.peerAddr(), marshal(hello(id, 1, f.cluster, 99)), false)
	if err != nil {
		return "", fmt.Errorf("newer wire version: %w", err)
	}
	st.close()
	return fmt.Sprintf("%d hellos refused", n), nil
}

// strangers say Hello with ids that nobody knows, and lie.
func strangers(f *field) (string, error) {
	s := f.nodes[0]
	before, err := s.lives(f.ctx)
	if err != nil {
		return "", err
	}
	t, err := s.tally()
	if err != nil {
		return "", err
	}
	const n = 400
	var mu sync.Mutex
	var opened []*syncStream
	refused := 0
	var errs []error
	crew(16, n, func(int) {
		id := randomID()
		st, err := openSync(s.peerAddr(), marshal(hello(id, 1, "", 1)), false)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			if status.Code(err) != codes.ResourceExhausted {
				errs = append(errs, err)
			}
			refused++
			return
		}
		opened = append(opened, st)
		of := &pb.Life{Node: id, Epoch: 1}
		now := stamp(time.Now())
		own := &pb.Life{Node: f.members[0].ID, Epoch: f.members[0].Epoch}
		for range 3 {
			_ = st.send(&pb.Message{Body: &pb.Message_Heads{Heads: &pb.Heads{Life: of, Clock: now, Ready: true, Full: true, Heads: []*pb.Head{
				{Life: of, Applied: 5, OwnerClock: now, OwnerVersion: 5},
				{Life: own, Applied: 1 << 60, OwnerClock: now, OwnerVersion: 1 << 60},
				{Life: &pb.Life{Node: f.members[0].ID, Epoch: own.Epoch + 1}, Applied: 1, OwnerClock: now},
			}}}})
			_ = st.send(frame(&pb.Frame{Life: of, To: 1, Whole: true, Records: [][]byte{encodeRecord(publication(id, "stranger", 1, now, 3), 0)}}))
			_ = st.send(frame(&pb.Frame{Life: own, From: 0, To: 1 << 60, Whole: true}))
		}
	})
	if len(errs) > 0 {
		return "", errs[0]
	}
	if len(opened) == 0 {
		return "", errors.New("no stranger could say hello; a node that gossip has not told of yet must be able to")
	}
	if err := t.grown(refusedHello("stranger"), n-64); err != nil {
		return "", err
	}
	after, err := s.lives(f.ctx)
	if err != nil {
		return "", err
	}
	for _, st := range opened {
		st.close()
	}
	if len(after) > len(before)+4 {
		return "", fmt.Errorf("%d lives, %d before", len(after), len(before))
	}
	lines, err := t.logged()
	if err != nil {
		return "", err
	}
	if n := containsAll(lines, "peer sent what is not taken"); n > 0 {
		return "", fmt.Errorf("messages of %d strangers were read", n)
	}
	return fmt.Sprintf("%d heard, %d turned away", len(opened), refused), nil
}

// impostor speaks for a member that lives.
func impostor(f *field) (string, error) {
	s, b := f.nodes[0], f.members[1]
	t, err := s.tally()
	if err != nil {
		return "", err
	}
	// Of an earlier start: it is known that there is a later one.
	if st, err := openSync(s.peerAddr(), marshal(hello(b.ID, b.Epoch-1, f.cluster, 1)), false); err == nil {
		st.close()
		return "", errors.New("an earlier life of a connected member was accepted")
	} else if status.Code(err) != codes.AlreadyExists {
		return "", fmt.Errorf("earlier life: %w", err)
	}
	if err := t.grown(refusedHello("old_life"), 1); err != nil {
		return "", err
	}
	// The present life: the real one comes back at once.
	for range 10 {
		if st, err := openSync(s.peerAddr(), marshal(hello(b.ID, b.Epoch, f.cluster, 1)), false); err == nil {
			st.close()
		}
	}
	// A later one: the member itself answers where it is known to be, so it
	// has not started again.
	for range 10 {
		st, err := openSync(s.peerAddr(), marshal(hello(b.ID, b.Epoch+1_000_000, f.cluster, 1)), false)
		if err == nil {
			now := stamp(time.Now())
			of := &pb.Life{Node: b.ID, Epoch: b.Epoch + 1_000_000}
			_ = st.send(&pb.Message{Body: &pb.Message_Heads{Heads: &pb.Heads{Life: of, Clock: now, Heads: []*pb.Head{{Life: of, Applied: 0, OwnerClock: now}}}}})
			st.close()
		}
	}
	time.Sleep(500 * time.Millisecond)
	if err := f.agree(f.ctx, 8*time.Second); err != nil {
		return "", err
	}
	return "the real one is believed", nil
}

func slowPeers(f *field) (string, error) {
	const each = 100
	addr := f.nodes[2].peerAddr()
	preface := "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	settings := "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	var closed atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	var errs []error
	var mu sync.Mutex
	for i := range 3 * each {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return "", err
		}
		wg.Go(func() {
			defer conn.Close()
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				_, _ = io.Copy(io.Discard, conn)
			}()
			say := []string{"", preface[:10], preface + settings}[i%3]
			for n := 0; time.Since(start) < 20*time.Second; n++ {
				if i%3 == 2 && n == 0 {
					_, _ = io.WriteString(conn, say)
				} else if i%3 == 1 && n < len(say) {
					_, _ = conn.Write([]byte{say[n]})
				}
				select {
				case <-gone:
					closed.Add(1)
					return
				case <-time.After(300 * time.Millisecond):
				}
			}
			mu.Lock()
			errs = append(errs, fmt.Errorf("kind %d is connected after %.0f s", i%3, time.Since(start).Seconds()))
			mu.Unlock()
		})
	}
	// A stream without a Hello.
	cc, err := dialPeer(addr)
	if err != nil {
		return "", err
	}
	defer cc.Close()
	t, err := cc.NewStream(context.Background(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, peerService+"Sync")
	if err != nil {
		return "", err
	}
	silent := make(chan error, 1)
	go func() {
		var b []byte
		silent <- t.RecvMsg(&b)
	}()
	select {
	case <-silent:
	case <-time.After(15 * time.Second):
		return "", errors.New("a stream without a Hello is open after 15 s")
	}
	wg.Wait()
	if len(errs) > 0 {
		return "", fmt.Errorf("%d of %d: %w", len(errs), 3*each, errs[0])
	}
	return fmt.Sprintf("%d closed within %.0f s", closed.Load(), time.Since(start).Seconds()), nil
}

func brokenMessages(f *field) (string, error) {
	tr, err := newTraitor(f.trio)
	if err != nil {
		return "", err
	}
	defer tr.close()
	s := f.nodes[0]
	t, err := s.tally()
	if err != nil {
		return "", err
	}
	st, err := tr.open(s)
	if err != nil {
		return "", err
	}
	defer st.close()
	now := stamp(time.Now())
	good := [][]byte{
		marshal(frame(&pb.Frame{Life: tr.life(), To: 2, Whole: true, Records: [][]byte{encodeRecord(publication("c", "broken", 1, now, 2), 0)}})),
		marshal(tr.heads(now, &pb.Head{Life: tr.life(), OwnerClock: now})),
		marshal(&pb.Message{Body: &pb.Message_Ack{Ack: &pb.Ack{Life: tr.life(), Applied: 1 << 63}}}),
		marshal(&pb.Message{Body: &pb.Message_Pull{Pull: &pb.Pull{Life: &pb.Life{Node: "x"}, From: 1 << 63}}}),
	}
	sent := 0
	for _, b := range good {
		for n := range len(b) { // what is cut is shorter than it says, or an older field
			if err := st.raw(b[:n]); err != nil {
				return "", fmt.Errorf("cut at %d of %d: %w", n, len(b), err)
			}
			sent++
		}
	}
	for range 2000 {
		b := make([]byte, 1+sent%97)
		rand.Read(b)
		if err := st.raw(b); err != nil {
			return "", err
		}
		sent++
	}
	for _, b := range [][]byte{nil, marshal(hello(tr.id, tr.epoch, f.cluster, 1)), []byte{0x7a, 0x00}, bytes.Repeat([]byte{0xff}, 15<<20)} {
		if err := st.raw(b); err != nil {
			return "", err
		}
		sent++
	}
	if err := t.grown(refusedMessage("malformed"), 500); err != nil {
		return "", err
	}
	select {
	case <-st.ended:
		return "", fmt.Errorf("the stream has ended: %w", st.err)
	default:
	}
	_ = st.raw(make([]byte, 17<<20))
	select {
	case <-st.ended:
		if status.Code(st.err) != codes.ResourceExhausted {
			return "", fmt.Errorf("oversized message: %w", st.err)
		}
	case <-time.After(5 * time.Second):
		return "", errors.New("a message of 17 MiB does not end the stream")
	}
	return fmt.Sprintf("%d messages", sent), nil
}

func badFrames(f *field) (string, error) {
	tr, err := newTraitor(f.trio)
	if err != nil {
		return "", err
	}
	defer tr.close()
	s := f.nodes[0]
	t, err := s.tally()
	if err != nil {
		return "", err
	}
	st, err := tr.open(s)
	if err != nil {
		return "", err
	}
	defer st.close()
	now := stamp(time.Now())
	rec := func(version uint64) []byte {
		return encodeRecord(publication(fmt.Sprint("c", version), "frames", version, now, 1), 0)
	}
	life := tr.life()
	begin := &pb.Frame{Life: life, To: 5, Whole: true, Records: [][]byte{rec(1), rec(3)}}
	bad := []struct {
		name, reason string
		f            *pb.Frame
	}{
		{"unknown owner", "unknown_owner", &pb.Frame{Life: &pb.Life{Node: randomID(), Epoch: 1}, To: 1, Whole: true, Records: [][]byte{rec(1)}}},
		{"no owner", "unknown_owner", &pb.Frame{To: 1, Whole: true}},
		{"a later life of a member", "early_epoch", &pb.Frame{Life: &pb.Life{Node: f.members[1].ID, Epoch: f.members[1].Epoch + 5}, To: 1, Whole: true, Records: [][]byte{rec(1)}}},
		{"gap", "gap", &pb.Frame{Life: life, From: 7, To: 9, Records: [][]byte{rec(8)}}},
		{"wrong hash", "bad_record", &pb.Frame{Life: life, From: 5, To: 9, Records: [][]byte{encodeRecord(publication("c", "frames", 6, now, 1), 1)}}},
		{"cut record", "bad_record", &pb.Frame{Life: life, From: 5, To: 9, Records: [][]byte{rec(6)[:20]}}},
		{"empty record", "bad_record", &pb.Frame{Life: life, From: 5, To: 9, Records: [][]byte{{}}}},
		{"wrong order", "bad_record", &pb.Frame{Life: life, From: 5, To: 9, Records: [][]byte{rec(8), rec(7)}}},
		{"version twice", "bad_record", &pb.Frame{Life: life, From: 5, To: 9, Records: [][]byte{rec(8), rec(8)}}},
		{"above its end", "bad_record", &pb.Frame{Life: life, From: 5, To: 9, Records: [][]byte{rec(10)}}},
		{"below its beginning", "bad_record", &pb.Frame{Life: life, From: 5, To: 9, Records: [][]byte{rec(5)}}},
		{"whole from the middle", "bad_record", &pb.Frame{Life: life, From: 5, To: 9, Whole: true}},
		{"floor above it", "bad_record", &pb.Frame{Life: life, To: 9, Whole: true, Floor: 10}},
		{"part of none", "bad_record", &pb.Frame{Life: life, From: 5, To: 9, Part: 3, Parts: 2}},
		{"too many parts", "bad_record", &pb.Frame{Life: life, From: 5, To: 9, Part: 0, Parts: 1 << 20}},
		{"clock of tomorrow", "clock", &pb.Frame{Life: life, From: 5, To: 9, Records: [][]byte{encodeRecord(publication("c", "frames", 6, stamp(time.Now().Add(26*time.Hour)), 1), 0)}}},
		{"clock of never", "clock", &pb.Frame{Life: life, From: 5, To: 9, Records: [][]byte{encodeRecord(publication("c", "frames", 6, 1<<64-1, 1), 0)}}},
	}
	if err := st.send(frame(begin)); err != nil {
		return "", err
	}
	n := 0
	for _, b := range bad {
		was, err := t.since(refusedMessage(b.reason))
		if err != nil {
			return "", err
		}
		for range 5 {
			if err := st.send(frame(b.f)); err != nil {
				return "", err
			}
			n++
		}
		if err := t.grown(refusedMessage(b.reason), was+5); err != nil {
			return "", fmt.Errorf("%s: %w", b.name, err)
		}
	}
	// Replays, of the own life and of that of another member, with other
	// content.
	was, err := t.since("starling_distro_duplicate_frames_total")
	if err != nil {
		return "", err
	}
	other := &pb.Life{Node: f.members[1].ID, Epoch: f.members[1].Epoch}
	for range 500 {
		for _, f := range []*pb.Frame{begin, {Life: other, To: 1, Whole: true, Records: [][]byte{rec(1)}}, {Life: other, From: 0, To: 1, Records: [][]byte{rec(1)}}} {
			if err := st.send(frame(f)); err != nil {
				return "", err
			}
			n++
		}
	}
	if err := t.grown("starling_distro_duplicate_frames_total", was+1400); err != nil {
		return "", err
	}
	lives, err := s.lives(f.ctx)
	if err != nil {
		return "", err
	}
	for _, l := range lives {
		if l.Node == tr.id && l.Applied != 5 {
			return "", fmt.Errorf("applied is %d after frames up to 5", l.Applied)
		}
	}
	if err := f.agree(f.ctx, 8*time.Second); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d frames", n), nil
}

func manyHeads(f *field) (string, error) {
	tr, err := newTraitor(f.trio)
	if err != nil {
		return "", err
	}
	defer tr.close()
	s := f.nodes[0]
	t, err := s.tally()
	if err != nil {
		return "", err
	}
	st, err := tr.open(s)
	if err != nil {
		return "", err
	}
	defer st.close()
	sent, messages := 0, 0
	for range 250 {
		now := stamp(time.Now())
		hs := tr.heads(now, &pb.Head{Life: tr.life(), OwnerClock: now})
		list := hs.GetHeads()
		for range 4000 {
			list.Heads = append(list.Heads, &pb.Head{Life: &pb.Life{Node: randomID(), Epoch: 1}, Applied: 1 << 40, State: 1, OwnerClock: now, Deadline: 1 << 62})
		}
		for n := range list.Heads {
			list.Heads[n].Deadline = time.Now().Add(time.Hour).UnixMilli()
		}
		if err := st.send(hs); err != nil {
			return "", err
		}
		sent += len(list.Heads)
		messages++
		time.Sleep(2 * time.Millisecond) // another clock
	}
	if err := t.grown(refusedMessage("too_many_lives"), 500_000); err != nil {
		return "", err
	}
	for _, far := range []uint64{stamp(time.Now().Add(26 * time.Hour)), stamp(time.Now().Add(-26 * time.Hour)), 0, 1<<64 - 1} {
		for range 10 {
			if err := st.send(tr.heads(far, &pb.Head{Life: tr.life()})); err != nil {
				return "", err
			}
		}
	}
	if err := t.grown(refusedMessage("clock"), 40); err != nil {
		return "", err
	}
	now := stamp(time.Now())
	replay := tr.heads(now, &pb.Head{Life: tr.life(), OwnerClock: now})
	for range 1000 {
		if err := st.send(replay); err != nil {
			return "", err
		}
	}
	for _, h := range []*pb.Head{nil, {}, {Life: &pb.Life{Node: "x", Epoch: 1}}, {Life: tr.life(), State: 99}, {Life: tr.life(), Deadline: -1 << 63}, {Life: tr.life(), Dropped: 1<<64 - 1, Back: 1<<64 - 1, State: 2}} {
		if h == nil {
			h = &pb.Head{}
		}
		now := stamp(time.Now())
		if err := st.send(tr.heads(now, h)); err != nil {
			return "", err
		}
		time.Sleep(2 * time.Millisecond)
	}
	if err := t.grown(refusedMessage("replayed"), 900); err != nil {
		return "", err
	}
	// There is room for a node that starts now.
	d, err := f.newcomer("room")
	if err != nil {
		return "", err
	}
	defer d.kill()
	if err := d.ready(f.ctx, 20*time.Second); err != nil {
		return "", err
	}
	if err := f.believed(d, 5*time.Second); err != nil {
		return "", err
	}
	if err := d.stop(); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d heads", sent), f.agree(f.ctx, 8*time.Second)
}

// newcomer starts a fourth node.
func (f *field) newcomer(name string, settings ...string) (*server, error) {
	port, err := freePorts()
	if err != nil {
		return nil, err
	}
	return f.start(name, port, append([]string{"--join=" + f.join}, settings...)...)
}

// believed waits until node 0 has the life of a node as living.
func (f *field) believed(d *server, within time.Duration) error {
	var last string
	for start := time.Now(); time.Since(start) < within; time.Sleep(50 * time.Millisecond) {
		ms, _, err := d.members(f.ctx)
		if err != nil {
			last = err.Error()
			continue
		}
		lives, err := f.nodes[0].lives(f.ctx)
		if err != nil {
			return err
		}
		for _, m := range ms {
			if m.Ports.HTTP != d.port {
				continue
			}
			last = "node 0 does not know it"
			for _, l := range lives {
				if l.Node == m.ID && l.Epoch == m.Epoch {
					last = "node 0 takes it for " + l.State
					if l.State == "living" {
						return nil
					}
				}
			}
		}
	}
	return errors.New("a node that has started is not believed: " + last)
}

func endlessParts(f *field) (string, error) {
	tr, err := newTraitor(f.trio)
	if err != nil {
		return "", err
	}
	defer tr.close()
	s := f.nodes[0]
	st, err := tr.open(s)
	if err != nil {
		return "", err
	}
	defer st.close()
	now := stamp(time.Now())
	n := 0
	// Each its own life, each a small message that promises 65,536 parts.
	for epoch := range uint64(3000) {
		of := &pb.Life{Node: tr.id, Epoch: tr.epoch - epoch}
		if err := st.send(frame(&pb.Frame{Life: of, To: 1 << 40, Whole: true, Part: 7, Parts: 1 << 16, Transfer: epoch})); err != nil {
			return "", err
		}
		n++
	}
	// Transfers that begin again and again, and one that has large parts.
	value := bytes.Repeat([]byte{'v'}, 1<<20)
	for i := range uint64(300) {
		r := encodeRecord(&pb.Record{Kind: 9, Key: fmt.Append(nil, i), Version: i + 1, Clock: now, Value: value}, 0)
		if err := st.send(frame(&pb.Frame{Life: tr.life(), To: 1 << 40, Whole: true, Records: [][]byte{r}, Part: uint32(i % 3), Parts: 1000, Transfer: i})); err != nil {
			return "", err
		}
		n++
	}
	return fmt.Sprintf("%d parts", n), nil
}

func unknownKinds(f *field) (string, error) {
	tr, err := newTraitor(f.trio)
	if err != nil {
		return "", err
	}
	defer tr.close()
	s := f.nodes[0]
	t, err := s.tally()
	if err != nil {
		return "", err
	}
	st, err := tr.open(s)
	if err != nil {
		return "", err
	}
	defer st.close()
	now := stamp(time.Now())
	records := [][]byte{
		encodeRecord(&pb.Record{Kind: 77, Key: []byte("k"), Version: 1, Clock: now, Value: []byte("of tomorrow")}, 0),
		encodeRecord(&pb.Record{Kind: 1, Key: []byte{0xff}, Version: 2, Clock: now, Value: []byte{0xff}}, 0),
		encodeRecord(&pb.Record{Kind: 2, Key: []byte{0xff}, Version: 3, Clock: now, Value: []byte{0xff}}, 0),
		encodeRecord(&pb.Record{Kind: 78, Version: 4, Clock: now, Gone: true}, 0),
	}
	var digest uint64
	for _, r := range records[:3] {
		for i := range 8 { // the hash is the end of it
			digest += uint64(r[len(r)-8+i]) << (8 * i)
		}
	}
	if err := st.send(frame(&pb.Frame{Life: tr.life(), To: 4, Whole: true, Records: records})); err != nil {
		return "", err
	}
	if err := st.send(tr.heads(now, &pb.Head{Life: tr.life(), Applied: 4, Digest: digest, OwnerClock: now, OwnerVersion: 4})); err != nil {
		return "", err
	}
	if err := t.grown(refusedMessage("unreadable_value"), 2); err != nil {
		return "", err
	}
	want := fmt.Sprintf("%016x", digest)
	for start := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		have := 0
		for _, s := range f.nodes { // the others were told by node 0
			lives, err := s.lives(f.ctx)
			if err != nil {
				return "", err
			}
			for _, l := range lives {
				if l.Node == tr.id && l.Epoch == tr.epoch && l.Applied == 4 && l.Digest == want {
					have++
				}
			}
		}
		if have == len(f.nodes) {
			return fmt.Sprintf("on all nodes after %.1f s", time.Since(start).Seconds()), nil
		}
		if time.Since(start) > 8*time.Second {
			return "", fmt.Errorf("%d of %d nodes have them", have, len(f.nodes))
		}
	}
}

// crew calls f n times on some goroutines.
func crew(workers, n int, f func(int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				f(i)
			}
		})
	}
	wg.Wait()
}

func pulls(f *field) (string, error) {
	s := f.nodes[0]
	cc, err := dialPeer(s.peerAddr())
	if err != nil {
		return "", err
	}
	defer cc.Close()
	id := f.members[1].ID
	pull := func(l *pb.Life, from uint64) []byte {
		return marshal(&pb.PullRequest{Pull: &pb.Pull{Life: l, From: from}})
	}
	own := &pb.Life{Node: f.members[0].ID, Epoch: f.members[0].Epoch}
	for _, req := range [][]byte{nil, []byte("\xff\xff"), pull(nil, 0), pull(&pb.Life{Node: randomID(), Epoch: 1}, 0), pull(&pb.Life{Node: own.Node, Epoch: own.Epoch + 1}, 5)} {
		for range 20 {
			if _, _, err := ask(cc, id, f.cluster, "1", "Pull", req); err == nil {
				return "", fmt.Errorf("an answer to %x", req)
			}
		}
	}
	for _, from := range []uint64{0, 1, 1 << 63, 1<<64 - 1} {
		if _, parts, err := ask(cc, id, f.cluster, "1", "Pull", pull(own, from)); err != nil || parts != 1 {
			return "", fmt.Errorf("pull from %d: %d parts, %v", from, parts, err)
		}
	}
	var failed atomic.Int64
	crew(32, 3000, func(int) {
		if _, _, err := ask(cc, id, f.cluster, "1", "Pull", pull(own, 0)); err != nil {
			failed.Add(1)
		}
	})
	if n := failed.Load(); n > 0 {
		return "", fmt.Errorf("%d of 3,000 pulls failed", n)
	}
	// Not read, and left.
	ctx, cancel := context.WithCancel(context.Background())
	for range 100 {
		go ask(cc, id, f.cluster, "1", "Pull", pull(own, 0))
	}
	cancel()
	_ = ctx
	return "3,000 whole lives", nil
}

func peerCalls(f *field) (string, error) {
	s := f.nodes[0]
	cc, err := dialPeer(s.peerAddr())
	if err != nil {
		return "", err
	}
	defer cc.Close()
	id := f.members[1].ID
	type who struct {
		id, cluster, wire string
		code              codes.Code
	}
	for _, w := range []who{{"", f.cluster, "1", codes.Unauthenticated}, {"x", f.cluster, "1", codes.Unauthenticated}, {f.members[0].ID, f.cluster, "1", codes.Unauthenticated},
		{id, randomID(), "1", codes.FailedPrecondition}, {id, f.cluster, "0", codes.FailedPrecondition}, {id, f.cluster, "-1", codes.FailedPrecondition}} {
		for _, method := range []string{"Pull", "Forward", "History", "ServiceHashes", "Subscribers"} {
			if _, _, err := ask(cc, w.id, w.cluster, w.wire, method, nil); status.Code(err) != w.code {
				return "", fmt.Errorf("%s as %q, wire %s: %v, want %v", method, w.id, w.wire, err, w.code)
			}
		}
	}
	if _, _, err := ask(cc, id, f.cluster, "1", "RaftVote", nil); status.Code(err) != codes.Unimplemented {
		return "", fmt.Errorf("unknown method: %w", err)
	}
	long := strings.Repeat("x", 2<<20)
	forwards := 0
	for _, method := range []string{"", "GET", "POST", "PUT", "DELETE", "CONNECT", "TRACE", "post", "A B", long} {
		for _, path := range []string{"", "/", "/v1/ns/instance/list", "/v1/ns/instance/", "//v1/ns/instance", "/v1/ns/../ns/instance", "/v1/ns/instance%2fbeat", "/starling/v1/drain", "/metrics", "/debug/pprof/heap", "\x00", long} {
			_, _, err := ask(cc, id, f.cluster, "1", "Forward", marshal(&pb.ForwardRequest{Method: method, Path: path, Query: "serviceName=forwarded&groupName=" + attackedGroup}))
			forwards++
			if err == nil {
				return "", fmt.Errorf("%s %s was carried out", clip(method), clip(path))
			}
		}
	}
	for _, q := range []string{"", "%zz", "serviceName=x&ip=nowhere&port=99999999999", "serviceName=" + long, strings.Repeat("a=b&", 100_000)} {
		for _, r := range []*pb.ForwardRequest{{Method: "PUT", Path: "/v1/ns/instance/beat"}, {Method: "POST", Path: "/v1/ns/instance"}, {Method: "DELETE", Path: "/v1/ns/instance"}} {
			r.Query, r.Remote, r.UserAgent, r.Accept, r.ContentType, r.Body = q, "\x00", "a\r\nb: c", long[:1<<20], "multipart/form-data", []byte(long[:1<<20])
			answer, _, err := ask(cc, id, f.cluster, "1", "Forward", marshal(r))
			forwards++
			if err == nil && len(answer) > 64<<10 {
				return "", fmt.Errorf("an answer of %d bytes", len(answer))
			}
		}
	}
	if _, _, err := ask(cc, id, f.cluster, "1", "Forward", make([]byte, 17<<20)); status.Code(err) != codes.ResourceExhausted {
		return "", fmt.Errorf("17 MiB: %w", err)
	}
	for _, q := range []string{"\xff\xff", "\x0a\x02\xff\xff", "\x0a\xff\xff\xff\xff\x0f"} { // broken, no UTF-8, longer than it is
		if _, _, err := ask(cc, id, f.cluster, "1", "Subscribers", []byte(q)); err == nil {
			return "", fmt.Errorf("an answer to %x", q)
		}
	}
	var failed atomic.Int64
	crew(32, 3000, func(n int) {
		method, req := "ServiceHashes", []byte(nil)
		switch n % 3 {
		case 0:
			method, req = "Subscribers", marshal(&pb.SubscribersRequest{Namespace: "public", Contains: true}) // of all services
		case 1:
			method, req = "History", marshal(&pb.HistoryRequest{Namespace: "public", Group: pulseGroup, Service: pulseService(n % 3)})
		}
		if _, _, err := ask(cc, id, f.cluster, "1", method, req); err != nil {
			failed.Add(1)
		}
	})
	if n := failed.Load(); n > 0 {
		return "", fmt.Errorf("%d of 3,000 calls failed", n)
	}
	return fmt.Sprintf("%d strange forwards, 3,000 calls", forwards), nil
}

// neverReads opens streams as a member and does not read them, nor those that
// are opened to it, while a lot is written.
func neverReads(f *field) (string, error) {
	tr, err := newTraitor(f.trio)
	if err != nil {
		return "", err
	}
	defer tr.close()
	s := f.nodes[1]
	t, err := s.tally()
	if err != nil {
		return "", err
	}
	st, err := openSync(s.peerAddr(), tr.hello(), true)
	if err != nil {
		return "", err
	}
	defer st.close()
	tr.unread.Store(true)
	c, err := connect(s.grpc(), manners{})
	if err != nil {
		return "", err
	}
	defer c.close()
	stop := time.Now().Add(18 * time.Second)
	for n := 0; time.Now().Before(stop); n++ {
		list := many(1000, fmt.Sprintf(`,"metadata":{"n":"%d"}`, n))
		if err := must(c.call("BatchInstanceRequest", fmt.Sprintf(`{"namespace":"public","serviceName":"unread","groupName":%q,"type":"batchRegisterInstance","instances":%s}`, attackedGroup, list))); err != nil {
			return "", err
		}
		if n, err := t.since("starling_cluster_stalled_streams_total"); err != nil {
			return "", err
		} else if n > 0 {
			return fmt.Sprintf("closed after %.0f s", 18-time.Until(stop).Seconds()), nil
		}
		time.Sleep(200 * time.Millisecond)
	}
	return "", errors.New("it is not closed after 18 s")
}

// ratchet tells ever later clocks, each within a day of the last.
func ratchet(f *field) (string, error) {
	tr, err := newTraitor(f.trio)
	if err != nil {
		return "", err
	}
	defer tr.close()
	s := f.nodes[0]
	t, err := s.tally()
	if err != nil {
		return "", err
	}
	st, err := tr.open(s)
	if err != nil {
		return "", err
	}
	defer st.close()
	at := time.Now()
	for range 10 {
		at = at.Add(23 * time.Hour)
		if err := st.send(tr.heads(stamp(at), &pb.Head{Life: tr.life()})); err != nil {
			return "", err
		}
	}
	version := uint64(0)
	at = time.Now()
	for range 10 {
		at = at.Add(23 * time.Hour)
		version++
		r := encodeRecord(publication("c", "ratchet", version, stamp(at), 1), 0)
		if err := st.send(frame(&pb.Frame{Life: tr.life(), From: version - 1, To: version, Whole: version == 1, Records: [][]byte{r}})); err != nil {
			return "", err
		}
	}
	if err := t.grown(refusedMessage("clock"), 10); err != nil {
		return "", err
	}
	time.Sleep(1500 * time.Millisecond)
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, h := range st.last {
		if ahead := time.Until(time.UnixMilli(int64(h.GetOwnerClock() >> 16))); ahead > 24*time.Hour {
			return "", fmt.Errorf("a clock is %v ahead", ahead)
		}
	}
	return "a day at most", nil
}
