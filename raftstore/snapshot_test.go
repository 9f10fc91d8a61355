package raftstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/cespare/xxhash/v2"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/starling-registry/starling/pkg/registry"
	pb "github.com/starling-registry/starling/proto"
)

var update = flag.Bool("update", false, "write the files in testdata/format1; never for a release that is out")

// everything is a log that leaves rows of all kinds, and one of each command.
func everything() []*pb.Command {
	long := &pb.Service{Namespace: "dev", Group: "g", Name: strings.Repeat("long-", 30)}
	commands := []*pb.Command{
		putInstance(nil),
		putInstance(func(i *pb.Instance) {
			i.Port, i.Id, i.Weight, i.Healthy, i.Enabled, i.Metadata = 65535, "id", 0, false, false, []string{"", "", "ü", "€"}
		}),
		putService(func(op *pb.PutService) {
			op.Persistent, op.ProtectThreshold, op.SelectorType, op.SelectorExpression, op.Metadata = true, 0.25, "label", "CONSUMER.label.a = PROVIDER.label.a", []string{"k", "v"}
		}),
		putCluster(nil),
		putCluster(func(op *pb.PutCluster) {
			op.Cluster = &pb.ServiceCluster{Name: "c", Checker: "HTTP", CheckPort: 8080, UseInstancePort: true, Metadata: []string{"k", ""}, Path: "/p",
				Headers: "a:b|c:d", ExpectedCode: 204, User: "u", Password: "p", Command: "select 1"}
		}),
		setHealth(false),
		putOverride(func(op *pb.PutOverride) {
			op.Enabled, op.Weight, op.HasMetadata, op.Metadata, op.Sticky = new(false), new(0.0), true, []string{"k", "v"}, true
		}),
		putOverride(func(op *pb.PutOverride) { op.Cluster, op.Enabled = "other", new(true) }),
		{Op: &pb.Command_PutInstance{PutInstance: &pb.PutInstance{Service: long, Instance: &pb.Instance{Ip: "::1", Cluster: "c", Weight: 1e9}}}},
		{Op: &pb.Command_PutService{PutService: &pb.PutService{Service: &pb.Service{Namespace: "public", Group: "z", Name: "e"}, Create: true}}},
		{Op: &pb.Command_PutNamespace{PutNamespace: &pb.PutNamespace{Namespace: &pb.Namespace{Id: "dev", Name: "n", Description: "d"}}}},
		{Op: &pb.Command_PutNamespace{PutNamespace: &pb.PutNamespace{Namespace: &pb.Namespace{Id: "a"}, Create: true}}},
		{Op: &pb.Command_PutSwitch{PutSwitch: &pb.PutSwitch{Name: "s", Value: "1"}}},
		{Op: &pb.Command_PutUser{PutUser: &pb.PutUser{Name: "ann", Password: []byte{0, 255}, Create: true}}},
		{Op: &pb.Command_PutRole{PutRole: &pb.PutRole{Role: "r", Users: []string{"ann", "bob"}, Permissions: []string{"* r", "a w"}}}},
		{Op: &pb.Command_PutRole{PutRole: &pb.PutRole{Role: "empty"}}},
		// These leave only their results.
		removeService(),
		{Op: &pb.Command_RemoveInstance{RemoveInstance: &pb.RemoveInstance{Service: long, Ip: "::2", Port: 1}}},
		endOverrides(func(e *pb.EndOverrides_Edit) { e.Cluster, e.Revision, e.Sticky, e.Cause = "other", 1, true, "operator" }),
		{Op: &pb.Command_RemoveNamespace{RemoveNamespace: &pb.RemoveNamespace{Id: "b"}}},
		{Op: &pb.Command_RemoveUser{RemoveUser: &pb.RemoveUser{Name: "bob"}}},
		{Op: &pb.Command_RemoveRole{RemoveRole: &pb.RemoveRole{Role: "x"}}},
	}
	for n, cmd := range commands {
		cmd.Id, cmd.Clock, cmd.Version, cmd.Remote = fmt.Appendf(nil, "command %08d", n), uint64(stamp(uint64(n)))+uint64(n), 1, "10.0.0.9"
	}
	return commands
}

// What is on disk is read by all later releases, and comes to the same bytes:
// nodes of several releases compare their digests.
func TestFormat1(t *testing.T) {
	dir := filepath.Join("testdata", "format1")
	golden := func(name string, is []byte) []byte {
		t.Helper()
		if *update {
			if err := os.MkdirAll(dir, 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), is, 0o666); err != nil {
				t.Fatal(err)
			}
		}
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	var log []byte
	for _, cmd := range everything() {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(cmd)
		if err != nil {
			t.Fatal(err)
		}
		log = protowire.AppendBytes(log, b)
	}
	m := newMachine()
	rest := golden("log.bin", log)
	for n := 1; len(rest) > 0; n++ {
		b, size := protowire.ConsumeBytes(rest)
		if size < 0 {
			t.Fatal("log.bin is damaged")
		}
		rest = rest[size:]
		m.Apply(entry(uint64(n), b))
	}
	m.check(t)
	file := m.bytes(t)
	want := golden("snapshot.bin", file)
	if !bytes.Equal(file, want) {
		t.Error("the log of version 1 comes to other bytes")
	}
	tables, err := readTables(bytes.NewReader(want))
	if err != nil {
		t.Fatal(err)
	}
	if sum := fmt.Sprintf("%016x\n", tables.sum); sum != string(golden("digest.txt", []byte(sum))) {
		t.Errorf("digest %s", sum)
	}
	rows := map[string]int{"instances": 3, "services": 2, "overrides": 2, "namespaces": 2, "switches": 1, "users": 1, "roles": 2}
	if diff := cmp.Diff(rows, tables.rows()); diff != "" {
		t.Error(diff)
	}
	var again bytes.Buffer
	if err := tables.freeze().write(&again); err != nil || !bytes.Equal(again.Bytes(), want) {
		t.Error("a snapshot of version 1 is written in another way")
	}
}

// An eviction is written as the library would, and those without are as in
// version 1.
func TestFormatOfEvictions(t *testing.T) {
	o := &override{InstanceKey: demoKey, Override: registry.Override{Weight: new(2.0), Sticky: true, Evicted: true, StaysOut: true, Revision: 7}, clock: stamp(1)}
	got := appendOverrideRow(nil, demo, o)
	want, err := proto.MarshalOptions{Deterministic: true}.Marshal(&pb.Row{Row: &pb.Row_Override{Override: &pb.OverrideRow{
		Edit:     &pb.PutOverride{Service: serviceMessage(demo), Ip: demoKey.IP, Port: uint32(demoKey.Port), Cluster: demoKey.Cluster, Weight: new(2.0), Sticky: true, Evicted: new(true), StaysOut: true},
		Revision: 7, Clock: uint64(stamp(1))}}})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%x\nwant\n%x", got, want)
	}
	bare := *o
	bare.Evicted, bare.StaysOut = false, false
	if n := len(appendOverrideRow(nil, demo, &bare)); n != len(got)-4 {
		t.Errorf("%d bytes without, %d with", n, len(got))
	}
}

// everyRow is a snapshot with rows of all kinds.
func everyRow(t testing.TB) []byte {
	m := newMachine()
	for n, cmd := range everything() {
		m.Apply(entry(uint64(n+1), encode(t, cmd)))
	}
	return m.bytes(t)
}

// split takes the rows of a sound snapshot out.
func split(file []byte) (rows [][]byte) {
	for rest := file[snapshotHead:]; ; {
		row, n := protowire.ConsumeBytes(rest)
		if len(row) == 0 {
			return rows
		}
		rows, rest = append(rows, row), rest[n:]
	}
}

// join makes a snapshot of rows, sound or not, with the right checksum.
func join(rows ...[]byte) []byte {
	b := binary.LittleEndian.AppendUint32([]byte(snapshotMagic), snapshotVersion)
	b = binary.LittleEndian.AppendUint64(b, 1000)
	b = binary.LittleEndian.AppendUint64(b, uint64(stamp(1000)))
	for _, row := range rows {
		b = protowire.AppendBytes(b, row)
	}
	b = binary.LittleEndian.AppendUint64(append(b, 0), uint64(len(rows)))
	return binary.LittleEndian.AppendUint64(b, xxhash.Sum64(b))
}

// Rows are what the protobuf library would write, and any reader of the proto
// file can read them.
func TestRowsAreProtobuf(t *testing.T) {
	for _, row := range split(everyRow(t)) {
		var m pb.Row
		if err := proto.Unmarshal(row, &m); err != nil {
			t.Fatal(err)
		}
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(&m)
		if err != nil {
			t.Fatal(err)
		}
		if len(m.ProtoReflect().GetUnknown()) > 0 || !bytes.Equal(b, row) {
			t.Errorf("%v\nis %x,\nof protobuf %x", &m, row, b)
		}
	}
}

// A file that is damaged in any way is said to be, and nothing of it is taken.
func TestDamagedSnapshot(t *testing.T) {
	file := everyRow(t)
	m := newMachine()
	m.Apply(entry(1, encode(t, everything()[0])))
	_, sum := m.digest()
	commits := m.shown.commits
	broken := func(what string, b []byte) {
		t.Helper()
		err := m.Restore(io.NopCloser(bytes.NewReader(b)))
		if !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", what, err)
		}
		if _, is := m.digest(); is != sum || m.shown.commits != commits {
			t.Fatalf("%s: a part of it was taken", what)
		}
	}
	for n := range len(file) {
		broken(fmt.Sprintf("cut after %d bytes", n), file[:n])
	}
	for n := range file {
		b := bytes.Clone(file)
		b[n] ^= 0x10
		if n >= len(snapshotMagic) && n < len(snapshotMagic)+4 {
			if err := m.Restore(io.NopCloser(bytes.NewReader(b))); !errors.Is(err, ErrNewer) || errors.Is(err, ErrDamaged) {
				t.Errorf("another version: %v", err)
			}
			continue
		}
		broken(fmt.Sprintf("byte %d changed", n), b)
	}
	broken("longer", append(bytes.Clone(file), 0))

	rows := split(file)
	kinds := map[byte][]byte{}
	for n, row := range rows {
		kinds[row[0]>>3] = row
		broken("a row twice", join(rows[n], rows[n]))
		if n > 0 && row[0]>>3 <= 3 && rows[n-1][0]>>3 <= 3 {
			broken("rows out of order", join(rows[n], rows[n-1]))
		}
	}
	if len(kinds) != 8 {
		t.Fatalf("rows of %d kinds", len(kinds))
	}
	broken("a row of an unknown kind", join(protowire.AppendBytes(protowire.AppendTag(nil, 9, protowire.BytesType), nil)))
	broken("an empty instance", join([]byte{1<<3 | 2, 0}))
	broken("a row that is too long", append(bytes.Clone(file[:snapshotHead]), protowire.AppendVarint(nil, maxRow+1)...))
	row := func(m *pb.Row) []byte {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	ephemeral := row(&pb.Row{Row: &pb.Row_Service{Service: &pb.ServiceRow{Service: serviceMessage(demo)}}})
	broken("a persistent instance of an ephemeral service", join(ephemeral,
		row(&pb.Row{Row: &pb.Row_Instance{Instance: &pb.InstanceRow{Service: serviceMessage(demo), Instance: putInstance(nil).GetPutInstance().GetInstance()}}})))
	broken("an edit that says nothing", join(row(&pb.Row{Row: &pb.Row_Override{Override: &pb.OverrideRow{Edit: putOverride(nil).GetPutOverride()}}})))
	broken("an instance without a service", join(row(&pb.Row{Row: &pb.Row_Instance{Instance: &pb.InstanceRow{Instance: putInstance(nil).GetPutInstance().GetInstance()}}})))

	// That the disk fails is something else.
	fails := errors.New("input/output error")
	if err := m.Restore(io.NopCloser(io.MultiReader(bytes.NewReader(file[:100]), iotest.ErrReader(fails)))); !errors.Is(err, fails) || errors.Is(err, ErrDamaged) {
		t.Errorf("%v", err)
	}
	if err := m.Restore(io.NopCloser(bytes.NewReader(file))); err != nil {
		t.Errorf("the sound one: %v", err)
	}
	m.check(t)
	if info, err := CheckSnapshot(bytes.NewReader(file)); err != nil || info.Index != uint64(len(everything())) || info.Rows["instances"] != 3 {
		t.Errorf("%+v, %v", info, err)
	}
}

type sink struct {
	bytes.Buffer
	full           bool
	closed, cancel int
}

var errFull = errors.New("no space left on device")

func (s *sink) Write(b []byte) (int, error) {
	if s.full {
		return 0, errFull
	}
	return s.Buffer.Write(b)
}
func (s *sink) ID() string    { return "1" }
func (s *sink) Close() error  { s.closed++; return nil }
func (s *sink) Cancel() error { s.cancel++; return nil }

func TestPersist(t *testing.T) {
	m := newMachine()
	m.Apply(entry(1, encode(t, everything()[0])))
	want := m.bytes(t)
	snapshot, err := m.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	m.Apply(entry(2, encode(t, everything()[1]))) // beside it
	var s sink
	if err := snapshot.Persist(&s); err != nil || s.closed != 1 || s.cancel != 0 || !bytes.Equal(s.Bytes(), want) {
		t.Errorf("%v, closed %d times, cancelled %d times", err, s.closed, s.cancel)
	}
	s = sink{full: true}
	if err := snapshot.Persist(&s); !errors.Is(err, errFull) || s.closed != 0 || s.cancel != 1 {
		t.Errorf("%v, closed %d times, cancelled %d times", err, s.closed, s.cancel)
	}
	snapshot.Release()
}

// A backup of a long log is restored into a cluster whose log is short: the
// revisions of edits grow all the same.
func TestRevisionsGrowAfterARestore(t *testing.T) {
	m := newMachine()
	m.Apply(entry(5000, encode(t, everything()[6])))
	other := newMachine()
	if err := other.Restore(io.NopCloser(bytes.NewReader(m.bytes(t)))); err != nil {
		t.Fatal(err)
	}
	if r := other.Apply(entry(7, encode(t, everything()[7]))).(*pb.Result); r.GetIndex() != 5001 {
		t.Errorf("%v", r)
	}
	var revisions []uint64
	for _, o := range other.tables.services[demo].overrides {
		revisions = append(revisions, o.Revision)
	}
	if diff := cmp.Diff([]uint64{5000, 5001}, revisions); diff != "" {
		t.Error(diff)
	}
}

// No entry stops the state machine, whatever its bytes are, and none leaves
// tables that could not be read back.
func FuzzCommand(f *testing.F) {
	for _, cmd := range everything() {
		f.Add(encode(f, cmd))
	}
	g := &generator{Rand: rand.New(rand.NewPCG(1, 2))}
	for range 50 {
		f.Add(g.next(f))
	}
	start := everyRow(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		empty, full := newMachine(), newMachine()
		if err := full.Restore(io.NopCloser(bytes.NewReader(start))); err != nil {
			t.Fatal(err)
		}
		for _, m := range []*machine{empty, full} {
			for range 2 {
				r, ok := m.Apply(entry(1<<20, data)).(*pb.Result)
				if !ok || r.GetIndex() == 0 {
					t.Fatalf("came to %v", r)
				}
				m.check(t)
			}
		}
	})
}

// A snapshot is read whole or not at all; whatever was read can be written and
// read again, and applied to.
func FuzzSnapshot(f *testing.F) {
	file := everyRow(f)
	f.Add(file[snapshotHead:len(file)-17], true)
	for _, row := range split(file) {
		f.Add(protowire.AppendBytes(nil, row), true)
	}
	f.Add(file, false)
	var next [][]byte
	for _, cmd := range everything() {
		next = append(next, encode(f, cmd))
	}
	f.Fuzz(func(t *testing.T, data []byte, rows bool) {
		if rows { // else no input would get behind the checksum
			var list [][]byte
			for len(data) > 0 {
				row, n := protowire.ConsumeBytes(data)
				if n < 0 || len(row) == 0 {
					return
				}
				list, data = append(list, row), data[n:]
			}
			data = join(list...)
		}
		m := newMachine()
		if err := m.Restore(io.NopCloser(bytes.NewReader(data))); err != nil {
			if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNewer) {
				t.Fatal(err)
			}
			return
		}
		m.check(t)
		for _, b := range next {
			m.Apply(entry(1, b))
		}
		m.check(t)
	})
}
