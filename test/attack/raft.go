package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/starling-registry/starling/proto"
)

func (s *server) raftAddr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port-1000)) }

func refusedRaft(reason string) string {
	return `starling_raft_refused_hellos_total{reason="` + reason + `"}`
}

// A raftHello is how a connection of the Raft port begins (raftstore/stream.go).
type raftHello struct {
	generation        uint64
	cluster, from, to string
}

const raftMagic = "STARRAFT"

func (h raftHello) bytes() []byte {
	body := binary.BigEndian.AppendUint64([]byte{0}, h.generation)
	for _, s := range []string{h.cluster, h.from, h.to} {
		body = append(append(body, byte(len(s))), s...)
	}
	return append(binary.BigEndian.AppendUint16(append([]byte(raftMagic), 1), uint16(len(body))), body...)
}

// greet says something and reads the hello that comes back: the reason (0: let
// in) and the generation of the other side.
func greet(addr string, say []byte) (_ net.Conn, reason byte, generation uint64, err error) {
	c, err := net.DialTimeout("tcp", addr, callTimeout)
	if err != nil {
		return nil, 0, 0, err
	}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	_ = c.SetDeadline(time.Now().Add(7 * time.Second))
	if _, err = c.Write(say); err != nil {
		return nil, 0, 0, err
	}
	head := make([]byte, len(raftMagic)+3)
	if _, err = io.ReadFull(c, head); err != nil {
		return nil, 0, 0, err
	}
	body := make([]byte, binary.BigEndian.Uint16(head[len(raftMagic)+1:]))
	if _, err = io.ReadFull(c, body); err != nil || len(body) < 9 {
		return nil, 0, 0, errors.Join(err, errors.New("half a hello came back"))
	}
	_ = c.SetDeadline(time.Time{})
	return c, body[0], binary.BigEndian.Uint64(body[1:]), nil
}

// An intruder has read the cluster's id and generation off the wire and speaks
// Raft as a member that it is not. It is the stream layer of the transport that
// nodes use.
type intruder struct {
	f          *field
	as         string
	generation uint64
}

func (f *field) intruder(as int) (*intruder, error) {
	s := f.nodes[0]
	var err error
	for range 20 { // nodes have so many places for strangers, and the attack before may still have them
		var c net.Conn
		var generation uint64
		if c, _, generation, err = greet(s.raftAddr(), raftHello{1, f.cluster, randomID(), f.members[0].ID}.bytes()); err == nil {
			c.Close()
			return &intruder{f, f.members[as].ID, generation}, nil
		}
		time.Sleep(500 * time.Millisecond)
	}
	return nil, fmt.Errorf("the Raft port of the first node does not answer a hello: %w", err)
}

// open is a connection that was let in, to a node.
func (i *intruder) open(n int) (net.Conn, error) {
	as := i.as
	if as == i.f.members[n].ID {
		as = i.f.members[(n+1)%3].ID
	}
	c, reason, _, err := greet(i.f.nodes[n].raftAddr(), raftHello{i.generation, i.f.cluster, as, i.f.members[n].ID}.bytes())
	if err == nil && reason != 0 {
		c.Close()
		err = fmt.Errorf("refused with reason %d", reason)
	}
	return c, err
}

func (i *intruder) Dial(to raft.ServerAddress, _ time.Duration) (net.Conn, error) {
	for n, m := range i.f.members {
		if m.ID == string(to) {
			return i.open(n)
		}
	}
	return nil, errors.New("no such member")
}
func (i *intruder) Accept() (net.Conn, error) { return nil, net.ErrClosed }
func (i *intruder) Close() error              { return nil }
func (i *intruder) Addr() net.Addr            { return &net.TCPAddr{} }

func (i *intruder) transport() *raft.NetworkTransport {
	return raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{Stream: i, MaxPool: 0, Timeout: 3 * time.Second, Logger: hclog.NewNullLogger()})
}

// raftStatus is what the native API tells of the log.
type raftStatus struct {
	Role    string `json:"role"`
	Leader  string `json:"leader"`
	Term    uint64 `json:"term"`
	Commit  uint64 `json:"commit"`
	Applied uint64 `json:"applied"`
	Last    uint64 `json:"last"`
	Digest  string `json:"digest"`
	Servers []struct {
		ID    string `json:"id"`
		Voter bool   `json:"voter"`
	} `json:"servers"`
}

func (s *server) raft(ctx context.Context) (st raftStatus, err error) {
	code, body, err := get(ctx, "http://"+s.http()+"/starling/v1/raft")
	if err != nil || code != http.StatusOK {
		return st, fmt.Errorf("raft: status %d, %w", code, err)
	}
	return st, json.Unmarshal(body, &st)
}

// send sends a request of HTTP with parameters, whatever the method.
func (s *server) send(method, path string, q url.Values) (status int, body string, err error) {
	req, err := http.NewRequest(method, "http://"+s.http()+path+"?"+q.Encode(), nil)
	if err != nil {
		return 0, "", err
	}
	res, err := watcher.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

// writes writes to the log at every node, waits until all have carried out the
// same, and takes it back.
func (f *field) writes(within time.Duration) (took time.Duration, err error) {
	start := time.Now()
	var last error
	for time.Since(start) < within {
		if last = f.writeOnce(); last == nil {
			return time.Since(start), nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return 0, last
}

func (f *field) writeOnce() error {
	for _, method := range []string{"POST", "DELETE"} {
		for i, s := range f.nodes {
			q := url.Values{"serviceName": {"logged"}, "groupName": {attackedGroup}, "ip": {fmt.Sprintf("10.9.255.%d", i)}, "port": {"80"}, "ephemeral": {"false"}}
			if code, body, err := s.send(method, "/nacos/v1/ns/instance", q); err != nil || code != 200 {
				return fmt.Errorf("%s at node %d: %d %s %v", method, i, code, clip(body), err)
			}
		}
	}
	var last error
	for start := time.Now(); time.Since(start) < 2*time.Second; time.Sleep(20 * time.Millisecond) {
		last = nil
		var first raftStatus
		for i, s := range f.nodes {
			st, err := s.raft(f.ctx)
			switch {
			case err != nil:
				return err
			case i == 0:
				first = st
			case st.Applied != first.Applied:
				last = fmt.Errorf("node %d has applied %d, node 0 %d", i, st.Applied, first.Applied)
			case st.Digest != first.Digest:
				return fmt.Errorf("node %d has other tables at entry %d", i, st.Applied)
			}
			if st.Leader == "" || len(st.Servers) < len(f.nodes) {
				last = fmt.Errorf("node %d: leader %q, servers %v", i, st.Leader, st.Servers)
			}
		}
		if last == nil {
			break
		}
	}
	return last
}

func raftHellos(f *field) (string, error) {
	in, err := f.intruder(1)
	if err != nil {
		return "", err
	}
	s, me := f.nodes[0], f.members[0].ID
	t, err := s.tally()
	if err != nil {
		return "", err
	}
	right := raftHello{in.generation, f.cluster, in.as, me}
	with := func(change func(*raftHello)) []byte {
		h := right
		change(&h)
		return h.bytes()
	}
	n := 0
	for _, c := range []struct {
		name, reason string
		say          []byte
	}{
		{"another cluster", "other_cluster", with(func(h *raftHello) { h.cluster = randomID() })},
		{"no cluster", "cluster_unknown", with(func(h *raftHello) { h.cluster = "" })},
		{"another node", "other_node", with(func(h *raftHello) { h.to = f.members[2].ID })},
		{"its own id", "other_node", with(func(h *raftHello) { h.from = me })},
		{"generation 0", "generation", with(func(h *raftHello) { h.generation = 0 })},
		{"a later generation", "generation", with(func(h *raftHello) { h.generation += 7 << 32 })},
		{"the last generation", "generation", with(func(h *raftHello) { h.generation = math.MaxUint64 })},
		{"a long name", "other_cluster", with(func(h *raftHello) { h.cluster, h.from = strings.Repeat("\x00", 255), strings.Repeat("\xff", 255) })},
		{"HTTP", "malformed", []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")},
		{"version", "wire_version", append([]byte(raftMagic), 9, 0, 0)},
		{"64 kB", "cluster_unknown", append(append([]byte(raftMagic), 1, 0xff, 0xff), make([]byte, 0xffff)...)},
	} {
		was, err := t.since(refusedRaft(c.reason))
		if err != nil {
			return "", err
		}
		for range 20 {
			n++
			conn, reason, _, err := greet(s.raftAddr(), c.say)
			if err == nil {
				conn.Close()
				if reason == 0 {
					return "", fmt.Errorf("%s: let in", c.name)
				}
			}
		}
		if err := t.grown(refusedRaft(c.reason), was+20); err != nil {
			return "", fmt.Errorf("%s: %w", c.name, err)
		}
	}
	// Half ones and silent ones are closed after 5 s; some nodes get in beside.
	start := time.Now()
	var late atomic.Int64
	err = parallel(200, func(i int) error {
		c, err := net.DialTimeout("tcp", f.nodes[i%3].raftAddr(), callTimeout)
		if err != nil {
			return err
		}
		defer c.Close()
		_, _ = c.Write(right.bytes()[:i%len(right.bytes())])
		_ = c.SetReadDeadline(start.Add(9 * time.Second))
		if _, err := io.Copy(io.Discard, c); isTimeout(err) {
			late.Add(1)
		}
		return nil
	})
	if err != nil || late.Load() > 0 {
		return "", fmt.Errorf("%d half hellos are not closed, %v", late.Load(), err)
	}
	took, err := f.writes(10 * time.Second)
	return fmt.Sprintf("%d refused, 200 half ones closed; writes after %.1f s", n, took.Seconds()), err
}

// raftGarbage is let in, and then sends what is no request.
func raftGarbage(f *field) (string, error) {
	in, err := f.intruder(1)
	if err != nil {
		return "", err
	}
	noise := make([]byte, 1<<20)
	rand.Read(noise)
	cases := map[string][]byte{
		"noise":         noise,
		"4 GiB":         {0, 0x81, 0xa4, 'D', 'a', 't', 'a', 0xc6, 0xff, 0xff, 0xff, 0xff},
		"4 billion":     {0, 0x81, 0xa7, 'E', 'n', 't', 'r', 'i', 'e', 's', 0xdd, 0xff, 0xff, 0xff, 0xff},
		"empty entries": append([]byte{0, 0x81, 0xa7, 'E', 'n', 't', 'r', 'i', 'e', 's', 0xdd, 0, 0x7f, 0xff, 0xff}, bytes.Repeat([]byte{0x80}, 8<<20)...),
		"deep":          append([]byte{1}, bytes.Repeat([]byte{0x91}, 16<<20)...),
		"big field":     append([]byte{0, 0x81, 0xa6, 'L', 'e', 'a', 'd', 'e', 'r', 0xc6, 4, 0, 0, 0}, make([]byte, 64<<20)...),
		"big snapshot":  append([]byte{2, 0x81, 0xad, 'C', 'o', 'n', 'f', 'i', 'g', 'u', 'r', 'a', 't', 'i', 'o', 'n', 0xc6, 4, 0, 0, 0}, make([]byte, 64<<20)...),
	}
	var errs []error
	for name, say := range cases {
		errs = append(errs, parallel(12, func(i int) error {
			c, err := in.open(i % 3)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(15 * time.Second))
			go func() { _, _ = c.Write(say) }()
			if _, err := io.Copy(io.Discard, c); isTimeout(err) {
				return fmt.Errorf("%s: it is not closed", name)
			}
			return nil
		}))
	}
	took, err := f.writes(10 * time.Second)
	return fmt.Sprintf("%d kinds closed; writes after %.1f s", len(cases), took.Seconds()), errors.Join(append(errs, err)...)
}

// raftConnections opens a lot that are let in and say nothing, or half of
// something, while nodes connect anew.
func raftConnections(f *field) (string, error) {
	in, err := f.intruder(2)
	if err != nil {
		return "", err
	}
	before := 0
	for _, s := range f.nodes {
		v, err := s.vitals(false)
		if err != nil {
			return "", err
		}
		before = max(before, v.fds)
	}
	var conns [1200]net.Conn
	var opened, refused atomic.Int64
	err = parallel(12, func(w int) error {
		for i := w; i < len(conns); i += 12 {
			c, err := in.open(i % 3)
			if err != nil {
				refused.Add(1)
				continue
			}
			opened.Add(1)
			if i%2 == 0 {
				_, _ = c.Write([]byte{0, 0x81, 0xa4})
			}
			conns[i] = c
		}
		return nil
	})
	defer func() {
		for _, c := range conns {
			if c != nil {
				c.Close()
			}
		}
	}()
	if err != nil {
		return "", err
	}
	took, err := f.writes(10 * time.Second)
	if err != nil {
		return "", err
	}
	most := 0
	for _, s := range f.nodes {
		v, err := s.vitals(false)
		if err != nil {
			return "", err
		}
		most = max(most, v.fds)
	}
	if most > before+150 { // each node has been sent 400
		return "", fmt.Errorf("a node has %d open files, %d at most before", most, before)
	}
	return fmt.Sprintf("%d were let in, %d not; %d files at most; writes after %.1f s", opened.Load(), refused.Load(), most, took.Seconds()), nil
}

// raftRequests speaks as a member and says what no member says.
func raftRequests(f *field) (string, error) {
	in, err := f.intruder(1)
	if err != nil {
		return "", err
	}
	trans := in.transport()
	defer trans.Close()
	n := 0
	for target := range f.nodes {
		if f.members[target].ID == in.as {
			continue
		}
		st, err := f.nodes[target].raft(f.ctx)
		if err != nil {
			return "", err
		}
		head := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(in.as), Addr: []byte(in.as)}
		to, id := raft.ServerAddress(f.members[target].ID), raft.ServerID(f.members[target].ID)
		var servers raft.Configuration
		for _, m := range f.members {
			servers.Servers = append(servers.Servers, raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(m.ID), Address: raft.ServerAddress(m.ID)})
		}
		appended := func(prev uint64, entries ...*raft.Log) error {
			r := &raft.AppendEntriesRequest{RPCHeader: head, Term: st.Term, PrevLogEntry: prev, PrevLogTerm: st.Term, Entries: entries, LeaderCommitIndex: math.MaxUint64}
			if prev == 0 {
				r.PrevLogTerm = 0
			}
			return trans.AppendEntries(id, to, r, new(raft.AppendEntriesResponse))
		}
		installed := func(content string, change func(*raft.InstallSnapshotRequest)) error {
			r := &raft.InstallSnapshotRequest{RPCHeader: head, SnapshotVersion: 1, Term: st.Term, LastLogIndex: st.Last + 100, LastLogTerm: st.Term,
				Configuration: raft.EncodeConfiguration(servers), ConfigurationIndex: 1, Size: int64(len(content))}
			change(r)
			return trans.InstallSnapshot(id, to, r, new(raft.InstallSnapshotResponse), strings.NewReader(content))
		}
		last := st.Last
		for name, do := range map[string]func() error{
			"vote": func() error {
				return trans.RequestVote(id, to, &raft.RequestVoteRequest{RPCHeader: head, Term: math.MaxUint64, LastLogIndex: math.MaxUint64, LastLogTerm: math.MaxUint64, LeadershipTransfer: true}, new(raft.RequestVoteResponse))
			},
			"pre-vote": func() error {
				return trans.RequestPreVote(id, to, &raft.RequestPreVoteRequest{RPCHeader: head, Term: math.MaxUint64, LastLogIndex: math.MaxUint64, LastLogTerm: math.MaxUint64}, new(raft.RequestPreVoteResponse))
			},
			"heartbeat": func() error {
				return trans.AppendEntries(id, to, &raft.AppendEntriesRequest{RPCHeader: head, Term: math.MaxUint64 - 1}, new(raft.AppendEntriesResponse))
			},
			"no entry": func() error { return appended(last, nil) },
			"configuration": func() error {
				return appended(last, &raft.Log{Index: last + 1, Term: st.Term, Type: raft.LogConfiguration, Data: []byte("\xff\xff")})
			},
			"nobody votes": func() error {
				return appended(last, &raft.Log{Index: last + 1, Term: st.Term, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(raft.Configuration{})})
			},
			"kind":      func() error { return appended(last, &raft.Log{Index: last + 1, Term: st.Term, Type: 200}) },
			"gap":       func() error { return appended(0, &raft.Log{Index: last + 1000, Term: st.Term}) },
			"end":       func() error { return appended(last, &raft.Log{Index: math.MaxUint64, Term: st.Term}) },
			"rewritten": func() error { return appended(1, &raft.Log{Index: 2, Term: st.Term + 1}) },
			"size":      func() error { return installed("x", func(r *raft.InstallSnapshotRequest) { r.Size = math.MaxInt64 }) },
			"negative":  func() error { return installed("x", func(r *raft.InstallSnapshotRequest) { r.Size = math.MinInt64 }) },
			"servers": func() error {
				return installed("x", func(r *raft.InstallSnapshotRequest) { r.Configuration = []byte{0xc1} })
			},
			"peers": func() error { return installed("x", func(r *raft.InstallSnapshotRequest) { r.SnapshotVersion = 0 }) },
			"no snapshot": func() error {
				return installed(strings.Repeat("x", 1<<20), func(*raft.InstallSnapshotRequest) {})
			},
			"like a snapshot": func() error {
				return installed("starling raft\n\x01\x00\x00\x00"+strings.Repeat("\xff", 1<<20), func(*raft.InstallSnapshotRequest) {})
			},
		} {
			n++
			if err := do(); err == nil {
				return "", fmt.Errorf("%s: node %d has taken it", name, target)
			} else if s := f.nodes[target]; !s.alive() {
				return "", fmt.Errorf("%s: node %d has ended: %v", name, target, s.exit)
			}
		}
	}
	took, err := f.writes(15 * time.Second)
	if err != nil {
		return "", err
	}
	// What a member could say: elections, and a leader that is none.
	for target := range f.nodes {
		st, err := f.nodes[target].raft(f.ctx)
		if err != nil {
			return "", err
		}
		if f.members[target].ID == in.as {
			continue
		}
		head := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(in.as), Addr: []byte(in.as)}
		to, id := raft.ServerAddress(f.members[target].ID), raft.ServerID(f.members[target].ID)
		for range 50 { // replayed
			_ = trans.AppendEntries(id, to, &raft.AppendEntriesRequest{RPCHeader: head, Term: st.Term}, new(raft.AppendEntriesResponse))
			_ = trans.AppendEntries(id, to, &raft.AppendEntriesRequest{RPCHeader: head, Term: st.Term - 1}, new(raft.AppendEntriesResponse))
			_ = trans.TimeoutNow(id, to, &raft.TimeoutNowRequest{RPCHeader: head}, new(raft.TimeoutNowResponse))
		}
		_ = trans.RequestVote(id, to, &raft.RequestVoteRequest{RPCHeader: head, Term: st.Term + 1<<20, LeadershipTransfer: true}, new(raft.RequestVoteResponse))
	}
	healed, err := f.writes(20 * time.Second)
	return fmt.Sprintf("%d refused, writes after %.1f s; a storm of elections, writes after %.1f s", n, took.Seconds(), healed.Seconds()), err
}

// halfSnapshot begins one, at a follower, that does not end.
func halfSnapshot(f *field) (string, error) {
	st, err := f.nodes[0].raft(f.ctx)
	if err != nil {
		return "", err
	}
	as, target := 0, -1
	for n, m := range f.members {
		if m.ID == st.Leader {
			as = n
		} else {
			target = n
		}
	}
	in, err := f.intruder(as)
	if err != nil {
		return "", err
	}
	trans := in.transport()
	defer trans.Close()
	r, w := io.Pipe()
	defer w.Close()
	go func() {
		_, _ = io.WriteString(w, "starling raft\n")
	}()
	var servers raft.Configuration
	for _, m := range f.members {
		servers.Servers = append(servers.Servers, raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(m.ID), Address: raft.ServerAddress(m.ID)})
	}
	go func() {
		_ = trans.InstallSnapshot(raft.ServerID(f.members[target].ID), raft.ServerAddress(f.members[target].ID), &raft.InstallSnapshotRequest{
			RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(in.as), Addr: []byte(in.as)}, SnapshotVersion: 1, Term: st.Term,
			LastLogIndex: st.Last + 100, LastLogTerm: st.Term, Configuration: raft.EncodeConfiguration(servers), ConfigurationIndex: 1, Size: 8 << 30},
			new(raft.InstallSnapshotResponse), r)
	}()
	time.Sleep(200 * time.Millisecond)
	took, err := f.writes(25 * time.Second)
	return fmt.Sprintf("all are level after %.1f s", took.Seconds()), err
}

// raftCalls are those of the peer service.
func raftCalls(f *field) (string, error) {
	st, err := f.nodes[0].raft(f.ctx)
	if err != nil {
		return "", err
	}
	leader, other := 0, 1
	for n, m := range f.members {
		if m.ID == st.Leader {
			leader, other = n, (n+1)%3
		}
	}
	s, id := f.nodes[leader], f.members[other].ID
	cc, err := dialPeer(s.peerAddr())
	if err != nil {
		return "", err
	}
	defer cc.Close()
	for _, w := range []string{"", "x", f.members[leader].ID} {
		for _, method := range []string{"RaftApply", "RaftState", "ConfirmProbe"} {
			if _, _, err := ask(cc, w, f.cluster, "1", method, nil); status.Code(err) != codes.Unauthenticated {
				return "", fmt.Errorf("%s as %q: %v", method, w, err)
			}
		}
	}
	noise := make([]byte, 15<<20)
	rand.Read(noise)
	for _, method := range []string{"RaftApply", "ConfirmProbe", "RaftState"} {
		for _, b := range [][]byte{nil, []byte("\xff\xff\xff"), noise, make([]byte, 17<<20)} {
			start := time.Now()
			answer, _, err := ask(cc, id, f.cluster, "1", method, b)
			if len(answer) > 4<<10 || time.Since(start) > 3*time.Second {
				return "", fmt.Errorf("%s of %d bytes: %d bytes came back after %v, %v", method, len(b), len(answer), time.Since(start), err)
			}
		}
	}
	apply := func(c *pb.Command) (*pb.Result, error) {
		answer, _, err := ask(cc, id, f.cluster, "1", "RaftApply", marshal(&pb.RaftApplyRequest{Command: marshal(c)}))
		var r pb.RaftApplyResponse
		if err = errors.Join(err, proto.Unmarshal(answer, &r)); err != nil {
			return nil, err
		}
		return r.Result, nil
	}
	command := func(value string) *pb.Command {
		b := make([]byte, 16)
		rand.Read(b)
		return &pb.Command{Id: b, Clock: stamp(time.Now()), Version: 1, Op: &pb.Command_PutSwitch{PutSwitch: &pb.PutSwitch{Name: "attacked", Value: value}}}
	}
	service := &pb.Service{Namespace: "public", Group: attackedGroup, Name: "logged"}
	bad := map[string]func(*pb.Command){
		"version":    func(c *pb.Command) { c.Version = 99 },
		"no version": func(c *pb.Command) { c.Version = math.MaxUint32 },
		"clock":      func(c *pb.Command) { c.Clock = math.MaxUint64 },
		"50 hours":   func(c *pb.Command) { c.Clock = stamp(time.Now().Add(50 * time.Hour)) },
		"no clock":   func(c *pb.Command) { c.Clock = 0 },
		"no id":      func(c *pb.Command) { c.Id = nil },
		"long id":    func(c *pb.Command) { c.Id = make([]byte, 1<<20) },
		"no op":      func(c *pb.Command) { c.Op = nil },
		"long value": func(c *pb.Command) {
			c.Op = &pb.Command_PutSwitch{PutSwitch: &pb.PutSwitch{Name: "x", Value: strings.Repeat("x", 600<<10)}}
		},
		"NaN": func(c *pb.Command) {
			c.Op = &pb.Command_PutInstance{PutInstance: &pb.PutInstance{Service: service, Instance: &pb.Instance{Ip: "10.9.9.9", Port: 80, Cluster: "DEFAULT", Weight: math.NaN()}}}
		},
		"port": func(c *pb.Command) {
			c.Op = &pb.Command_PutInstance{PutInstance: &pb.PutInstance{Service: service, Instance: &pb.Instance{Ip: "10.9.9.9", Port: math.MaxUint32, Cluster: "DEFAULT", Weight: 1}}}
		},
		"no service": func(c *pb.Command) {
			c.Op = &pb.Command_PutInstance{PutInstance: &pb.PutInstance{Instance: &pb.Instance{Ip: "10.9.9.9", Port: 80, Cluster: "DEFAULT", Weight: 1}}}
		},
		"no cluster": func(c *pb.Command) { c.Op = &pb.Command_PutCluster{PutCluster: &pb.PutCluster{Service: service}} },
	}
	for name, change := range bad {
		c := command("bad")
		change(c)
		r, err := apply(c)
		if err != nil || r.GetCode() != pb.Result_INVALID && r.GetCode() != pb.Result_NOT_UNDERSTOOD {
			return "", fmt.Errorf("%s: %v %v", name, r, err)
		}
	}
	// An id counts once, whatever else comes under it.
	one := command("first")
	first, err := apply(one)
	if err != nil || first.GetCode() != pb.Result_DONE {
		return "", fmt.Errorf("a good command: %v %v", first, err)
	}
	one.Op = &pb.Command_PutSwitch{PutSwitch: &pb.PutSwitch{Name: "attacked", Value: strings.Repeat("y", 1000)}}
	for range 50 {
		if again, err := apply(one); err != nil || again.GetCode() != first.GetCode() || again.GetIndex() != first.GetIndex() {
			return "", fmt.Errorf("again: %v, first %v, %v", again, first, err)
		}
	}
	// Nobody can have ports looked at that no instance has.
	target, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer target.Close()
	var dialled atomic.Int64
	go func() {
		for {
			c, err := target.Accept()
			if err != nil {
				return
			}
			dialled.Add(1)
			c.Close()
		}
	}()
	port := uint32(target.Addr().(*net.TCPAddr).Port)
	for n := range 300 {
		req := &pb.ConfirmProbeRequest{Service: service, Ip: "127.0.0.1", Port: port, Cluster: "DEFAULT"}
		switch n % 3 {
		case 1:
			req.Service = nil
		case 2:
			req.Ip, req.Port = "127.0.0.1:"+fmt.Sprint(port)+"/", math.MaxUint32
		}
		answer, _, err := ask(cc, id, f.cluster, "1", "ConfirmProbe", marshal(req))
		var r pb.ConfirmProbeResponse
		if err := errors.Join(err, proto.Unmarshal(answer, &r)); err != nil || r.Known || r.Healthy {
			return "", fmt.Errorf("ConfirmProbe: %v %v", &r, err)
		}
	}
	if n := dialled.Load(); n > 0 {
		return "", fmt.Errorf("a made-up instance was dialled %d times", n)
	}
	var failed atomic.Int64
	crew(32, 3000, func(int) {
		if _, _, err := ask(cc, id, f.cluster, "1", "RaftState", nil); err != nil {
			failed.Add(1)
		}
	})
	if n := failed.Load(); n > 0 {
		return "", fmt.Errorf("%d of 3,000 RaftState failed", n)
	}
	_, err = f.writes(10 * time.Second)
	return fmt.Sprintf("%d bad commands refused, 300 probes of nothing, 3,000 states", len(bad)), err
}
