package distro

import (
	"bytes"
	"errors"
	"flag"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/google/go-cmp/cmp"

	"github.com/starling-registry/starling/pkg/registry"
	pb "github.com/starling-registry/starling/proto"
)

var update = flag.Bool("update", false, "write the files in testdata/wire1; never for a release that is out")

func samplePublication() registry.Record {
	key := registry.InstanceKey{IP: "10.0.0.1", Port: 8080, Cluster: "DEFAULT"}
	return registry.Record{
		RecordKey: registry.RecordKey{Client: "1700000000000_10.0.0.1_40000", Service: testService},
		Kind:      registry.Connection, Clock: registry.StampAt(1_700_000_000_000) + 3, Cause: registry.CauseRegistered, Batch: true, Redo: 35,
		Instances: []registry.Published{
			{Instance: &registry.Instance{InstanceKey: key, ID: "id", Weight: 2.5, Healthy: true, Enabled: true,
				Metadata: registry.Metadata{{Key: "a", Value: "1"}, {Key: "z", Value: "ü"}}}, Since: registry.StampAt(1_700_000_000_000)},
			{Instance: &registry.Instance{InstanceKey: registry.InstanceKey{IP: "::1", Port: 1, Cluster: "c"}}, Since: registry.StampAt(1_700_000_000_001)},
		},
		Hides: []registry.Hide{{InstanceKey: key, UpTo: 7, Made: 8, Strong: true}, {InstanceKey: key, UpTo: 9, Made: 9}},
	}
}

func encodeSample(r registry.Record, version uint64) []byte {
	return encodeRecord(kindPublication, string(encodeKey(r.RecordKey)), version, r.Clock, r.Gone, encodePublication(r))
}

func sampleProbe() registry.Probe {
	return registry.Probe{Of: testLife(2, 1_700_000_000_000), Service: testService, Instance: registry.InstanceKey{IP: "10.0.0.2", Port: 9090, Cluster: "DEFAULT"},
		UpTo: registry.StampAt(1_700_000_000_000), Made: registry.StampAt(1_700_000_030_000)}
}

func sampleCheck() registry.Check {
	return registry.Check{Service: testService, InstanceKey: registry.InstanceKey{IP: "10.0.0.3", Port: 3306, Cluster: "c"}, Healthy: true,
		Made: registry.StampAt(1_700_000_070_000) + 1, Reason: "Anmeldung gelöst"}
}

func encodeSampleCheck(c registry.Check, version uint64) []byte {
	return encodeRecord(kindCheck, string(encodeCheckKey(checkKey{c.Service, c.InstanceKey})), version, c.Made, false, encodeCheck(&c))
}

// samples of the first wire version. The files have been recorded: what this
// release reads from them, and what it writes, must stay.
func samples() map[string][]byte {
	gone := samplePublication()
	gone.Gone, gone.Instances, gone.Cause, gone.Moving = true, nil, registry.CauseDeregistered, true
	probeKey, probeValue := encodeProbe(sampleProbe())
	checkKey := string(encodeCheckKey(checkKey{sampleCheck().Service, sampleCheck().InstanceKey}))
	out := map[string][]byte{
		"publication": encodeSample(samplePublication(), 5),
		"tombstone":   encodeSample(gone, 6),
		"probe":       encodeRecord(kindProbe, string(probeKey), 7, sampleProbe().Made, true, probeValue),
		"check":       encodeSampleCheck(sampleCheck(), 9),
		"check-gone":  encodeRecord(kindCheck, checkKey, 10, sampleCheck().Made+1, true, encodeCheck(&registry.Check{Made: sampleCheck().Made + 1})),
		"unknown":     encodeRecord(77, "any\x00key", 8, registry.StampAt(1), false, []byte{1, 2, 3}),
		"pull":        encode(&pb.Message{Body: &pb.Message_Pull{Pull: &pb.Pull{Life: lifeMessage(testLife(3, 9)), From: 12}}}),
		"ack":         encode(&pb.Message{Body: &pb.Message_Ack{Ack: &pb.Ack{Life: lifeMessage(testLife(3, 9)), Applied: 12}}}),
	}
	l := sampleLife(out)
	out["frame"] = l.cut(5).part(l.above(5), 0, 1, 0)
	out["whole-part"] = l.cut(0).part(l.above(0), 1, 3, 99)
	l.ownerClock, l.ownerVersion, l.state, l.deadline, l.dropped, l.back = registry.StampAt(1_700_000_000_000), 9, registry.Dropped, 1_700_000_040_000,
		registry.StampAt(1_700_000_050_000), registry.StampAt(1_700_000_060_000)
	out["heads"] = encodeHeads(&pb.Heads{Life: lifeMessage(testLife(4, 2)), Clock: uint64(registry.StampAt(1_700_000_000_000)), Ready: true, Draining: true,
		Full: true, Heads: []*pb.Head{l.head()}})
	return out
}

func sampleLife(records map[string][]byte) *life {
	l := newLife(testLife(1, 1_700_000_000_000))
	for _, name := range []string{"publication", "tombstone", "probe", "unknown"} {
		d, err := decodeRecord(records[name], nil)
		if err != nil {
			panic(err)
		}
		l.put(d.record)
	}
	l.applied, l.floor = 8, 2
	return l
}

func TestWire1(t *testing.T) {
	for name, is := range samples() {
		file := filepath.Join("testdata", "wire1", name+".bin")
		if *update {
			if err := os.WriteFile(file, is, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		was, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(was, is) {
			t.Errorf("%s is written in another way: %x, was %x", name, is, was)
		}
		switch name {
		case "publication", "tombstone", "probe", "check", "check-gone", "unknown":
			if d, err := decodeRecord(was, nil); err != nil || d.unreadable {
				t.Errorf("%s: %v", name, err)
			}
		default:
			if m, err := readMessage(was); err != nil || m.GetBody() == nil {
				t.Errorf("%s: %v", name, err)
			} else if f := m.GetFrame(); f != nil {
				if f, err := readFrame(f); err != nil || len(f.records) == 0 {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
	}
}

func TestPublicationRoundTrip(t *testing.T) {
	want := samplePublication()
	d, err := decodeRecord(encodeSample(want, 5), nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, *d.publication); diff != "" {
		t.Error(diff)
	}
	if d.version != 5 || d.clock != want.Clock || d.gone || !d.hides || d.redo != 35 || d.shows != 2 {
		t.Errorf("%+v", d.record)
	}
}

func TestProbeRoundTrip(t *testing.T) {
	key, value := encodeProbe(sampleProbe())
	d, err := decodeRecord(encodeRecord(kindProbe, string(key), 1, 1, true, value), nil)
	if err != nil || d.probe == nil || !reflect.DeepEqual(*d.probe, sampleProbe()) {
		t.Errorf("%+v, %v", d.probe, err)
	}
}

func TestCheckRoundTrip(t *testing.T) {
	want := sampleCheck()
	d, err := decodeRecord(encodeSampleCheck(want, 1), nil)
	if err != nil || d.check == nil || *d.check != want || d.gone || d.kind != kindCheck {
		t.Errorf("%+v, %v", d.check, err)
	}
	// One from the future would count for ever; the clock of a record cannot
	// be far ahead.
	key := string(encodeCheckKey(checkKey{want.Service, want.InstanceKey}))
	d, err = decodeRecord(encodeRecord(kindCheck, key, 1, want.Made-5, false, encodeCheck(&want)), nil)
	if err != nil || d.check == nil || d.check.Made != want.Made-5 {
		t.Errorf("%+v, %v", d.check, err)
	}
	if d, err = decodeRecord(encodeRecord(kindCheck, key, 1, want.Made, true, nil), nil); err != nil || d.check != nil || d.unreadable || !d.gone {
		t.Errorf("a tombstone: %+v, %v", d, err)
	}
	if d, err = decodeRecord(encodeRecord(kindCheck, key, 1, want.Made, false, []byte("\xff")), nil); err != nil || d.check != nil || !d.unreadable {
		t.Errorf("nonsense: %+v, %v", d, err)
	}
	// What is not UTF-8 comes from a checked server, or an old log.
	want.Reason, want.Service.Name = "a\xff", "s\xfe"
	if d, err = decodeRecord(encodeSampleCheck(want, 1), nil); err != nil || d.check == nil || d.check.Reason != "a\uFFFD" || d.check.Service.Name != "s\uFFFD" {
		t.Errorf("%+v, %v", d.check, err)
	}
}

// The records are written by hand; they are those of peer.proto.
func TestRecordIsTheMessage(t *testing.T) {
	for name, raw := range samples() {
		var m pb.Record
		switch name {
		case "publication", "tombstone", "probe", "check", "check-gone", "unknown":
			if err := proto.Unmarshal(raw, &m); err != nil {
				t.Fatal(err)
			}
			if again := encode(&m); !bytes.Equal(raw, again) {
				t.Errorf("%s: %x, by the library %x", name, raw, again)
			}
		}
	}
}

func TestBadRecords(t *testing.T) {
	good := encodeSample(samplePublication(), 5)
	for n := range good {
		bad := bytes.Clone(good)
		bad[n] ^= 0x40
		if _, err := decodeRecord(bad, nil); !errors.Is(err, ErrRecordHash) && !errors.Is(err, ErrRecordTruncated) {
			t.Fatalf("byte %d changed: %v", n, err)
		}
		if _, err := decodeRecord(good[:n], nil); err == nil {
			t.Fatalf("cut to %d bytes", n)
		}
	}
	if _, err := decodeRecord(encodeRecord(9, "k", 0, 1, false, nil), nil); !errors.Is(err, ErrRecordTruncated) {
		t.Errorf("version 0: %v", err)
	}
	for _, weight := range []float64{-1, math.NaN(), math.Inf(1)} {
		r := samplePublication()
		i := *r.Instances[0].Instance
		i.Weight = weight
		r.Instances = []registry.Published{{Instance: &i}}
		if d, err := decodeRecord(encodeSample(r, 1), nil); err != nil || !d.unreadable {
			t.Errorf("weight %v: %v", weight, err)
		}
	}
	// Its owner wrote nonsense: kept and handed on, and shown by nobody.
	d, err := decodeRecord(encodeRecord(kindPublication, "\xff", 1, 1, false, []byte("\xff\xff")), nil)
	if err != nil || !d.unreadable || d.publication != nil {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestNotUTF8(t *testing.T) {
	r := samplePublication()
	r.Client = "c\xff"
	i := *r.Instances[0].Instance
	i.Metadata = registry.Metadata{{Key: "k", Value: "\xfe"}}
	r.Instances = []registry.Published{{Instance: &i, Since: 1}}
	d, err := decodeRecord(encodeSample(r, 1), nil)
	if err != nil || d.publication == nil || d.publication.Instances[0].Metadata[0].Value != "\uFFFD" {
		t.Fatalf("%+v, %v", d.publication, err)
	}
}

func TestBadFrames(t *testing.T) {
	record := encodeSample(samplePublication(), 5)
	frame := func(change func(*pb.Frame)) *pb.Frame {
		f := &pb.Frame{Life: lifeMessage(testLife(1, 1)), From: 4, To: 6, Records: [][]byte{record}}
		change(f)
		return f
	}
	if _, err := readFrame(frame(func(*pb.Frame) {})); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*pb.Frame){
		"no life":           func(f *pb.Frame) { f.Life = nil },
		"bad node":          func(f *pb.Frame) { f.Life.Node = strings.Repeat("X", 32) },
		"backwards":         func(f *pb.Frame) { f.From = 7 },
		"record above it":   func(f *pb.Frame) { f.To = 4 },
		"record below it":   func(f *pb.Frame) { f.From = 5 },
		"twice":             func(f *pb.Frame) { f.Records = append(f.Records, record) },
		"part out of range": func(f *pb.Frame) { f.Part, f.Parts = 3, 3 },
		"too many parts":    func(f *pb.Frame) { f.Part, f.Parts = 3, math.MaxUint32 },
		"floor above it":    func(f *pb.Frame) { f.Floor = 7 },
		"whole from":        func(f *pb.Frame) { f.Whole = true },
		"damaged":           func(f *pb.Frame) { f.Records[0] = f.Records[0][1:] },
	} {
		if _, err := readFrame(frame(change)); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func FuzzRecord(f *testing.F) {
	for _, b := range samples() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := decodeRecord(b, nil)
		if err != nil {
			return
		}
		if d.version == 0 || !bytes.Equal(d.raw, b) {
			t.Errorf("%+v", d.record)
		}
		if d.publication != nil { // what can be read can be written
			again, err := decodeRecord(encodeSample(*d.publication, d.version), nil)
			if err != nil || again.publication == nil {
				t.Errorf("%v", err)
			}
		}
		if d.check != nil {
			again, err := decodeRecord(encodeSampleCheck(*d.check, d.version), nil)
			if err != nil || again.check == nil || *again.check != *d.check {
				t.Errorf("%+v, %v", again.check, err)
			}
		}
	})
}

// FuzzMessage hands bytes to a whole replicator: it must not panic, nor end
// with a life that breaks its invariant.
func FuzzMessage(f *testing.F) {
	for _, b := range samples() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d := alone(t)
		d.Members([]Member{{ID: testLife(1, 1).Node, Epoch: 1}, {ID: testLife(4, 1).Node, Epoch: 1}})
		for _, via := range []Via{Stream, Gossip} {
			for _, from := range []int{1, 4} {
				d.Message(testLife(from, 1).Node, via, bytes.Clone(b))
			}
		}
		d.Serve(t.Context(), testLife(4, 1).Node, b, func([]byte) error { return nil })
		d.tick()
		h := &history{}
		for _, l := range d.lives {
			h.checkLife(t, l)
		}
		d.cancel()
		d.wg.Wait()
	})
}

func FuzzSnapshot(f *testing.F) {
	l := sampleLife(samples())
	var w bytes.Buffer
	hs := &pb.Heads{Life: lifeMessage(l.id), Clock: uint64(registry.StampAt(1000)), Heads: []*pb.Head{l.head()}}
	if err := writeSnapshot(&w, hs, []cut{l.cut(0)}); err != nil {
		f.Fatal(err)
	}
	f.Add(w.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		lives, err := readSnapshot(bytes.NewReader(b), 1000, DefaultOptions().SnapshotAge)
		if err != nil && len(lives) > 0 {
			t.Error("a part of a damaged snapshot")
		}
	})
}
