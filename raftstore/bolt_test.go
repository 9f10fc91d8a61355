package raftstore

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"
)

func TestBolt(t *testing.T) {
	path := filepath.Join(t.TempDir(), logFile)
	b, err := openBolt(path, boltOptions())
	if err != nil {
		t.Fatal(err)
	}
	bounds := func(first, last uint64) {
		t.Helper()
		f, err1 := b.FirstIndex()
		l, err2 := b.LastIndex()
		if f != first || l != last || err1 != nil || err2 != nil {
			t.Errorf("entries %d to %d, want %d to %d (%v, %v)", f, l, first, last, err1, err2)
		}
	}
	bounds(0, 0)
	var logs []*raft.Log
	for i := range 3000 { // many pages
		e := &raft.Log{Index: uint64(5 + i), Term: uint64(1 + i/100), Type: raft.LogCommand, Data: bytes.Repeat([]byte{byte(i)}, i%300+1)}
		switch i % 3 {
		case 1:
			e.AppendedAt = time.Unix(1_700_000_000, int64(i))
		case 2:
			e.Type, e.Data = raft.LogNoop, nil
		}
		logs = append(logs, e)
	}
	for from := 0; from < len(logs); from += 100 {
		if err := b.StoreLogs(logs[from : from+100]); err != nil {
			t.Fatal(err)
		}
	}
	bounds(5, 3004)
	all := func(want []*raft.Log) {
		t.Helper()
		for _, e := range want {
			var got raft.Log
			if err := b.GetLog(e.Index, &got); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(*e, got); d != "" {
				t.Fatalf("entry %d: %s", e.Index, d)
			}
		}
		bounds(want[0].Index, want[len(want)-1].Index)
	}
	all(logs)
	if err := b.DeleteRange(1, 1504); err != nil { // old ones
		t.Fatal(err)
	}
	all(logs[1500:])
	if err := b.DeleteRange(2505, 9999); err != nil { // overruled ones
		t.Fatal(err)
	}
	all(logs[1500:2500])
	logs[2499] = &raft.Log{Index: 2504, Term: 99, Data: []byte("another")}
	if err := b.StoreLogs(logs[2499:2500]); err != nil {
		t.Fatal(err)
	}
	var none raft.Log
	for _, index := range []uint64{0, 1504, 2505} {
		if err := b.GetLog(index, &none); !errors.Is(err, raft.ErrLogNotFound) {
			t.Errorf("entry %d: %v", index, err)
		}
	}
	if _, err := b.Get([]byte("term")); err == nil || err.Error() != "not found" {
		t.Errorf("a key that is not there: %v", err)
	}
	if err := b.Set([]byte("term"), []byte("7")); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}

	if b, err = openBolt(path, boltOptions()); err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	all(logs[1500:2500])
	if v, err := b.Get([]byte("term")); err != nil || string(v) != "7" {
		t.Errorf("%q, %v", v, err)
	}
}

// Each byte of an entry counts, and so does its place.
func TestBoltDamage(t *testing.T) {
	e := &raft.Log{Index: 9, Term: 3, Type: raft.LogCommand, Data: []byte("data"), AppendedAt: time.Unix(0, 5)}
	good := appendEntry(nil, e)
	var got raft.Log
	if err := readEntry(9, good, &got); err != nil || !cmp.Equal(*e, got) {
		t.Fatalf("%v: %+v", err, got)
	}
	if err := readEntry(8, good, &got); !errors.Is(err, ErrCorrupt) {
		t.Errorf("at another place: %v", err)
	}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 0x10
		if err := readEntry(9, bad, &got); !errors.Is(err, ErrCorrupt) {
			t.Errorf("byte %d: %v", i, err)
		}
		if err := readEntry(9, good[:i], &got); !errors.Is(err, ErrCorrupt) {
			t.Errorf("cut at %d: %v", i, err)
		}
	}
	b, err := openBolt(filepath.Join(t.TempDir(), logFile), boltOptions())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(logBucket).Put(entryKey(9), good[:3]) }); err != nil {
		t.Fatal(err)
	}
	if err := b.GetLog(9, &got); !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
}
