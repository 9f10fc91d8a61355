package raftstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/starling-registry/starling/pkg/registry"
	pb "github.com/starling-registry/starling/proto"
)

// An intruder speaks Raft as a peer that it is not. It is the stream layer of a
// transport of the library.
type intruder struct {
	p          *peer
	as         string
	generation uint64
}

func (i *intruder) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	c, err := i.p.dial(ctx, string(address))
	if err != nil {
		return nil, err
	}
	if _, err := c.Write(hello{reason: helloOK, generation: i.generation, cluster: cluster1, from: i.as, to: string(address)}.bytes()); err != nil {
		return nil, err
	}
	h, _, err := readHello(c)
	if err == nil && h.reason != helloOK {
		err = errors.New(h.reason)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (i *intruder) Accept() (net.Conn, error) { select {} }
func (i *intruder) Close() error              { return nil }
func (i *intruder) Addr() net.Addr            { return address(i.as) }

// Without a secret whoever reaches the port can speak Raft. That must not end a
// node, keep it from starting again, or end elections for good.
func TestIntruder(t *testing.T) {
	bubble(t, "a b c x", func(t *testing.T, g *group) {
		leader := g.three()
		follower := "a"
		if leader.id == "a" {
			follower = "b"
		}
		g.mustPut(follower, "x", "1")
		x := g.peers["x"]
		x.host = g.net.Host("x", x.addr)
		defer x.host.Crash()
		in := &intruder{p: x, as: leader.id, generation: leader.store.generation.Load()}
		// Nothing of it runs between calls.
		trans := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{Stream: quietLayer{in}, MaxPool: 0, Timeout: time.Second, Logger: hclog.NewNullLogger()})
		defer trans.Close()
		head := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(in.as), Addr: []byte(in.as)}
		term := leader.store.Status().Term
		last := leader.store.Status().Last
		servers := raft.EncodeConfiguration(leader.store.configuration())
		entry := func(e raft.Log) *raft.AppendEntriesRequest {
			if e.Term == 0 {
				e.Term = term
			}
			return &raft.AppendEntriesRequest{RPCHeader: head, Term: term, PrevLogEntry: last, PrevLogTerm: term, Entries: []*raft.Log{&e}, LeaderCommitIndex: last + 1}
		}
		snapshot := func(change func(*raft.InstallSnapshotRequest)) *raft.InstallSnapshotRequest {
			r := &raft.InstallSnapshotRequest{RPCHeader: head, SnapshotVersion: 1, Term: term, LastLogIndex: last + 5, LastLogTerm: term,
				Configuration: servers, ConfigurationIndex: 1, Size: 5}
			change(r)
			return r
		}
		gap := entry(raft.Log{Index: last + 7})
		gap.PrevLogEntry, gap.PrevLogTerm = 0, 0
		missing := entry(raft.Log{})
		missing.Entries = []*raft.Log{nil}
		far := entry(raft.Log{Index: last + 1})
		far.Term = math.MaxUint64
		rewritten := entry(raft.Log{Index: 2, Term: term})
		rewritten.PrevLogEntry, rewritten.PrevLogTerm = 1, 1
		rewritten.Entries[0].Term, rewritten.Term = term+1, term+1
		nobody := entry(raft.Log{Index: last + 1})
		nobody.ID, nobody.Addr = []byte("\xff"), []byte("\xff")
		for name, command := range map[string]any{
			"vote in the last term":          &raft.RequestVoteRequest{RPCHeader: head, Term: math.MaxUint64, LastLogIndex: math.MaxUint64, LastLogTerm: math.MaxUint64, LeadershipTransfer: true},
			"pre-vote":                       &raft.RequestPreVoteRequest{RPCHeader: head, Term: math.MaxUint64, LastLogIndex: math.MaxUint64, LastLogTerm: math.MaxUint64},
			"heartbeat":                      &raft.AppendEntriesRequest{RPCHeader: head, Term: math.MaxUint64},
			"entries":                        far,
			"configuration":                  entry(raft.Log{Index: last + 1, Type: raft.LogConfiguration, Data: []byte("\xff\xff")}),
			"no voter":                       entry(raft.Log{Index: last + 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(raft.Configuration{})}),
			"old peers":                      entry(raft.Log{Index: last + 1, Type: raft.LogAddPeerDeprecated, Data: []byte("\xff")}),
			"unknown type":                   entry(raft.Log{Index: last + 1, Type: 77}),
			"missing entry":                  missing,
			"gap":                            gap,
			"rewritten":                      rewritten,
			"nobody":                         nobody,
			"snapshot without configuration": snapshot(func(r *raft.InstallSnapshotRequest) { r.Configuration = []byte("\xff") }),
			"snapshot of peers":              snapshot(func(r *raft.InstallSnapshotRequest) { r.SnapshotVersion, r.Peers = 0, []byte("\xff") }),
			"huge snapshot":                  snapshot(func(r *raft.InstallSnapshotRequest) { r.Size = math.MaxInt64 }),
			"negative snapshot":              snapshot(func(r *raft.InstallSnapshotRequest) { r.Size = -1 }),
			"snapshot of the end":            snapshot(func(r *raft.InstallSnapshotRequest) { r.LastLogIndex = math.MaxUint64 }),
			"snapshot of garbage":            snapshot(func(r *raft.InstallSnapshotRequest) {}),
		} {
			var err error
			to, id := raft.ServerAddress(follower), raft.ServerID(follower)
			switch c := command.(type) {
			case *raft.RequestVoteRequest:
				err = trans.RequestVote(id, to, c, new(raft.RequestVoteResponse))
			case *raft.RequestPreVoteRequest:
				err = trans.RequestPreVote(id, to, c, new(raft.RequestPreVoteResponse))
			case *raft.AppendEntriesRequest:
				err = trans.AppendEntries(id, to, c, new(raft.AppendEntriesResponse))
			case *raft.InstallSnapshotRequest:
				err = trans.InstallSnapshot(id, to, c, new(raft.InstallSnapshotResponse), strings.NewReader("12345"))
			}
			if err == nil {
				t.Errorf("%s: it was taken", name)
			}
		}
		// A snapshot that begins like one, and then like none.
		damaged := snapshotMagic + strings.Repeat("x", 100)
		if err := trans.InstallSnapshot("", raft.ServerAddress(follower), snapshot(func(r *raft.InstallSnapshotRequest) { r.Size = int64(len(damaged)) }),
			new(raft.InstallSnapshotResponse), strings.NewReader(damaged)); err == nil {
			t.Error("a damaged snapshot was taken")
		}
		if metas, err := g.peers[follower].store.snaps.List(); err != nil || len(metas) != 0 {
			t.Errorf("%d snapshots are left, %v", len(metas), err)
		}
		if s := g.peers[follower].store.Status(); s.Term != term || s.Last < last {
			t.Errorf("term %d, %d before; last %d, %d before", s.Term, term, s.Last, last)
		}
		// A snapshot of which nothing comes holds up the node for some seconds, and
		// so does one that comes byte by byte.
		for _, every := range []time.Duration{time.Hour, 5 * time.Second} {
			half := time.Now()
			go func() {
				_ = trans.InstallSnapshot("", raft.ServerAddress(follower), snapshot(func(r *raft.InstallSnapshotRequest) { r.Size = 1 << 30 }),
					new(raft.InstallSnapshotResponse), &dripping{every: every, until: half.Add(5 * time.Minute)})
			}()
			time.Sleep(20 * time.Second)
			if err := g.peers[follower].put("y", every.String()); err != nil {
				t.Errorf("during half a snapshot: %v", err)
			}
			g.await("the follower is level", 15*time.Second, func() bool {
				return g.peers[follower].store.Status().Applied == g.awaitLeader().store.Status().Applied
			})
		}
		// A term that is within reach is none of those.
		far2 := &raft.RequestVoteRequest{RPCHeader: head, Term: term + 1<<31, LastLogIndex: math.MaxUint64, LastLogTerm: math.MaxUint64, LeadershipTransfer: true}
		if err := trans.RequestVote("", raft.ServerAddress(follower), far2, new(raft.RequestVoteResponse)); err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Second)
		g.mustPut(follower, "z", "1")
		for _, id := range []string{"a", "b", "c"} {
			g.peers[id].crash()
		}
		g.start("a b c")
		g.awaitLeader()
		g.mustPut(follower, "z", "2")
		time.Sleep(5 * time.Minute) // what drips has ended
	})
}

// quietLayer accepts nothing and ends.
type quietLayer struct{ *intruder }

func (quietLayer) Accept() (net.Conn, error) { return nil, net.ErrClosed }

// dripping gives a byte now and then.
type dripping struct {
	every time.Duration
	until time.Time
	n     int
}

func (d *dripping) Read(b []byte) (int, error) {
	time.Sleep(min(d.every, time.Until(d.until)))
	if !time.Now().Before(d.until) {
		return 0, errors.New("over")
	}
	b[0] = snapshotMagic[min(d.n, len(snapshotMagic)-1)]
	d.n++
	return 1, nil
}

// Who opens many connections does not keep the others out.
func TestManyConnections(t *testing.T) {
	bubble(t, "a b c x", func(t *testing.T, g *group) {
		leader := g.three()
		x := g.peers["x"]
		x.host = g.net.Host("x", x.addr)
		defer x.host.Crash()
		in := &intruder{p: x, as: "b", generation: leader.store.generation.Load()}
		var conns []net.Conn
		for range 300 {
			c, err := in.Dial("a", 2*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, c)
		}
		l := g.peers["a"].store.layer
		l.mu.Lock()
		n := len(l.conns)
		l.mu.Unlock()
		if most := spareConns + connsPerNode*3 + 20; n > most {
			t.Errorf("%d connections", n)
		}
		g.mustPut("a", "x", "1")
		if now := g.leader(); now != leader {
			t.Error("the leader changed")
		}
		for _, c := range conns {
			c.Close()
		}
	})
}

// A stranger that speaks of a later generation does not make a node throw its
// log away, and a node that has nothing does not, either.
func TestGenerationByHearsay(t *testing.T) {
	bubble(t, "a b c x", func(t *testing.T, g *group) {
		leader := g.three()
		x := g.peers["x"]
		x.host = g.net.Host("x", x.addr)
		in := &intruder{p: x, as: "b", generation: leader.store.generation.Load() + 5<<generationShift}
		for _, id := range []string{"a", "b", "c"} {
			if c, err := in.Dial(raft.ServerAddress(id), time.Second); err == nil {
				c.Close()
				t.Error("it was let in")
			}
		}
		time.Sleep(30 * time.Second)
		g.mustPut("a", "x", "1")
		x.host.Crash()

		// A newcomer that has heard the stranger first finds its way.
		d := g.add("d")
		if err := d.start(); err != nil {
			t.Fatal(err)
		}
		d.store.adopt(in.generation)
		g.set("d", true, false)
		g.await("d follows", time.Minute, func() bool { return d.store.Status().Applied == g.awaitLeader().store.Status().Applied })
		for id, p := range g.peers {
			p.mu.Lock()
			if p.superseded > 0 {
				t.Errorf("%s threw its log away", id)
			}
			p.mu.Unlock()
		}
	})
}

// The meter agrees with what the library writes, and bounds all else.
func TestMeter(t *testing.T) {
	var sent bytes.Buffer
	conn := &recording{to: &sent}
	trans := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{Stream: recorder{conn}, MaxPool: 0, Timeout: time.Second, Logger: hclog.NewNullLogger()})
	defer trans.Close()
	big := &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ID: []byte("x"), Addr: []byte("x")}, Term: 1 << 40}
	for n := range 512 {
		big.Entries = append(big.Entries, &raft.Log{Index: uint64(n) << 33, Term: 1 << 20, Data: make([]byte, n*2), Extensions: make([]byte, n%300), AppendedAt: time.Now()})
	}
	one := &raft.AppendEntriesRequest{Entries: []*raft.Log{{Data: make([]byte, maxCommand)}}}
	_ = trans.AppendEntries("", "a", big, new(raft.AppendEntriesResponse))
	_ = trans.AppendEntries("", "a", one, new(raft.AppendEntriesResponse))
	_ = trans.RequestVote("", "a", &raft.RequestVoteRequest{Term: math.MaxUint64}, new(raft.RequestVoteResponse))
	_ = trans.TimeoutNow("", "a", &raft.TimeoutNowRequest{}, new(raft.TimeoutNowResponse))
	_ = trans.InstallSnapshot("", "a", &raft.InstallSnapshotRequest{Size: 3}, new(raft.InstallSnapshotResponse), strings.NewReader("abc"))
	all := sent.Bytes()
	for _, size := range []int{1, 7, 4096, len(all)} {
		var m meter
		most := 0
		for rest := all; len(rest) > 0; {
			n := min(size, len(rest))
			if err := m.feed(rest[:n]); err != nil {
				t.Fatalf("%d bytes at once, %d are left: %v", size, len(rest), err)
			}
			most = max(most, m.values)
			rest = rest[n:]
		}
		if m.part != stream || m.content != 3 {
			t.Errorf("%d bytes at once: %+v", size, m)
		}
		if most > maxValues/2 && size == 1 {
			t.Errorf("%d values", most)
		}
		if m.answered(); m.part != between {
			t.Error("not between requests")
		}
	}
	for name, b := range map[string][]byte{
		"kind":    {9},
		"bytes":   {0, 0xc6, 0xff, 0xff, 0xff, 0xff},
		"array":   {0, 0xdd, 0xff, 0xff, 0xff, 0xff},
		"map":     {0, 0xdf, 0xff, 0xff, 0xff, 0xff},
		"text":    {2, 0xdb, 0x7f, 0xff, 0xff, 0xff},
		"ext":     {3, 0xc9, 0xff, 0xff, 0xff, 0xff},
		"empties": append([]byte{0, 0xdc, 0x3f, 0xff, 0xdc, 0x3f, 0xff}, bytes.Repeat([]byte{0x80}, maxValues)...),
		"nested":  append([]byte{0}, bytes.Repeat([]byte{0x91}, 2*maxValues)...),
		"endless": append([]byte{0, 0xdc, 0x3f, 0xff}, bytes.Repeat(append([]byte{0xc5, 0xff, 0xff}, make([]byte, 0xffff)...), 100)...),
	} {
		if err := new(meter).feed(b); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func FuzzMeter(f *testing.F) {
	f.Add([]byte{0, 0x81, 0xa1, 'a', 0xc4, 2, 1, 2, 1, 0x80}, 3)
	f.Fuzz(func(t *testing.T, b []byte, at int) {
		var whole, parts meter
		err := whole.feed(b)
		at = min(max(0, at), len(b))
		err2 := parts.feed(b[:at])
		if err2 == nil {
			err2 = parts.feed(b[at:])
		}
		if (err == nil) != (err2 == nil) || err == nil && (whole.part != parts.part || whole.need != parts.need || whole.skip != parts.skip || whole.content != parts.content) {
			t.Errorf("at once %+v %v, in parts %+v %v", whole, err, parts, err2)
		}
	})
}

// An answer that does not end is not kept.
func TestLongAnswer(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	go func() {
		for _, err := theirs.Write(make([]byte, 64<<10)); err == nil; _, err = theirs.Write(make([]byte, 64<<10)) {
		}
	}()
	broken := 0
	c := &tracked{Conn: ours, layer: &layer{broken: func() { broken++ }}}
	read, err := io.Copy(io.Discard, struct{ io.Reader }{c})
	if !errors.Is(err, errMeasure) || read > maxAnswer || broken == 0 {
		t.Errorf("%d bytes, %v", read, err)
	}
	ours.Close()
}

// A recording keeps what is written and answers nothing.
type recording struct {
	net.Conn
	to *bytes.Buffer
}

func (r *recording) Write(b []byte) (int, error) { return r.to.Write(b) }
func (r *recording) Read([]byte) (int, error)    { return 0, errors.New("no answer") }
func (r *recording) Close() error                { return nil }
func (r *recording) SetDeadline(time.Time) error { return nil }

type recorder struct{ conn net.Conn }

func (r recorder) Dial(raft.ServerAddress, time.Duration) (net.Conn, error) { return r.conn, nil }
func (r recorder) Accept() (net.Conn, error)                                { return nil, net.ErrClosed }
func (r recorder) Close() error                                             { return nil }
func (r recorder) Addr() net.Addr                                           { return address("x") }

// What is no backup is refused as soon as it is seen, not when it has filled the
// disk; and a command of a far future never gets into the log, where it would
// be newer than every check to come.
func TestGarbageIsRefusedEarly(t *testing.T) {
	bubble(t, "a b c", func(t *testing.T, g *group) {
		leader := g.three()
		for name, begin := range map[string]string{"zeros": "\x00", "like one": snapshotMagic} {
			endless := &endless{begin: begin}
			err := leader.store.Restore(t.Context(), endless, true)
			if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNewer) {
				t.Errorf("%s: %v", name, err)
			}
			if endless.read > 1<<20 {
				t.Errorf("%s: %d bytes were read", name, endless.read)
			}
		}
		own := g.peers["a"].store
		for clock, want := range map[registry.Stamp]pb.Result_Code{
			math.MaxUint64: pb.Result_INVALID,
			registry.StampAt(own.clock.Wall() + 49*time.Hour.Milliseconds()): pb.Result_INVALID,
			registry.StampAt(own.clock.Wall() + 47*time.Hour.Milliseconds()): pb.Result_DONE,
		} {
			cmd, err := proto.Marshal(&pb.Command{Version: 1, Id: binary.BigEndian.AppendUint64(make([]byte, 8), uint64(clock)), Clock: uint64(clock),
				Op: &pb.Command_PutSwitch{PutSwitch: &pb.PutSwitch{Name: "s", Value: "v"}}})
			if err != nil {
				t.Fatal(err)
			}
			req, err := proto.Marshal(&pb.RaftApplyRequest{Command: cmd})
			if err != nil {
				t.Fatal(err)
			}
			answer, err := leader.store.ServeApply(t.Context(), "b", req)
			var resp pb.RaftApplyResponse
			if err = errors.Join(err, proto.Unmarshal(answer, &resp)); err != nil || resp.Result.GetCode() != want {
				t.Errorf("clock %v: %v %v", clock, &resp, err)
			}
		}
		g.mustPut("a", "x", "1")
	})
}

type endless struct {
	begin string
	read  int
}

func (e *endless) Read(b []byte) (int, error) {
	n := copy(b, e.begin)
	e.begin = ""
	clear(b[n:])
	e.read += len(b)
	return len(b), nil
}
