package raftstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"
)

var (
	logBucket  = []byte("logs") // entries by index, see appendEntry
	confBucket = []byte("conf") // term and vote of the library, by its names
)

// errNoKey: the library compares the text.
var errNoKey = errors.New("not found")

// A bolt is what the library keeps, in a file of bbolt. Each call is a
// transaction.
type bolt struct {
	db *bbolt.DB
}

// openBolt makes the file if it is not there, unless it is only to be read.
func openBolt(path string, o *bbolt.Options) (*bolt, error) {
	db, err := bbolt.Open(path, 0o600, o)
	if err != nil || o.ReadOnly {
		return &bolt{db}, err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		_, err1 := tx.CreateBucketIfNotExists(logBucket)
		_, err2 := tx.CreateBucketIfNotExists(confBucket)
		return errors.Join(err1, err2)
	})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &bolt{db}, nil
}

func (b *bolt) Close() error { return b.db.Close() }

// Before the data of an entry stand, big-endian: the hash of all that follows
// and of the index, term, when it was appended (ns, 0: unknown) and type.
const entryHead = 8 + 8 + 8 + 1

// appendEntry encodes an entry. The hash is there because neither bbolt nor the
// library would notice a byte that has changed, and a node would apply
// something else than the others.
func appendEntry(b []byte, e *raft.Log) []byte {
	at := len(b)
	b = binary.BigEndian.AppendUint64(b, 0)
	b = binary.BigEndian.AppendUint64(b, e.Term)
	appended := int64(0)
	if !e.AppendedAt.IsZero() {
		appended = e.AppendedAt.UnixNano()
	}
	b = binary.BigEndian.AppendUint64(b, uint64(appended))
	b = append(append(b, byte(e.Type)), e.Data...)
	binary.BigEndian.PutUint64(b[at:], entryHash(e.Index, b[at:]))
	return b
}

// entryHash is of an encoded entry.
func entryHash(index uint64, b []byte) uint64 {
	var x xxhash.Digest
	x.Reset()
	_, _ = x.Write(binary.BigEndian.AppendUint64(nil, index))
	_, _ = x.Write(b[8:])
	return x.Sum64()
}

// readEntry decodes an entry and checks it. e keeps nothing of b.
func readEntry(index uint64, b []byte, e *raft.Log) error {
	if len(b) < entryHead || binary.BigEndian.Uint64(b) != entryHash(index, b) {
		return fmt.Errorf("%w: entry %d is not what was written", ErrCorrupt, index)
	}
	*e = raft.Log{Index: index, Term: binary.BigEndian.Uint64(b[8:]), Type: raft.LogType(b[24])}
	if appended := binary.BigEndian.Uint64(b[16:]); appended != 0 {
		e.AppendedAt = time.Unix(0, int64(appended))
	}
	if len(b) > entryHead {
		e.Data = append([]byte(nil), b[entryHead:]...)
	}
	return nil
}

func entryKey(index uint64) []byte { return binary.BigEndian.AppendUint64(nil, index) }

func (b *bolt) end(which func(*bbolt.Cursor) (key, value []byte)) (index uint64, err error) {
	err = b.db.View(func(tx *bbolt.Tx) error {
		if key, _ := which(tx.Bucket(logBucket).Cursor()); key != nil {
			index = binary.BigEndian.Uint64(key)
		}
		return nil
	})
	return index, err
}

// FirstIndex is 0 if the log is empty, and so is LastIndex.
func (b *bolt) FirstIndex() (uint64, error) { return b.end((*bbolt.Cursor).First) }

func (b *bolt) LastIndex() (uint64, error) { return b.end((*bbolt.Cursor).Last) }

func (b *bolt) GetLog(index uint64, e *raft.Log) error {
	return b.db.View(func(tx *bbolt.Tx) error {
		v := tx.Bucket(logBucket).Get(entryKey(index))
		if v == nil {
			return raft.ErrLogNotFound
		}
		return readEntry(index, v, e)
	})
}

func (b *bolt) StoreLogs(entries []*raft.Log) error {
	return b.db.Update(func(tx *bbolt.Tx) error {
		logs := tx.Bucket(logBucket)
		logs.FillPercent = 1 // nothing is ever put between
		for _, e := range entries {
			if err := logs.Put(entryKey(e.Index), appendEntry(make([]byte, 0, entryHead+len(e.Data)), e)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (b *bolt) DeleteRange(from, to uint64) error {
	return b.db.Update(func(tx *bbolt.Tx) error {
		c := tx.Bucket(logBucket).Cursor()
		for k, _ := c.Seek(entryKey(from)); k != nil && binary.BigEndian.Uint64(k) <= to; k, _ = c.Next() {
			if err := c.Delete(); err != nil {
				return err
			}
		}
		return nil
	})
}

func (b *bolt) Set(k, v []byte) error {
	return b.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(confBucket).Put(k, v) })
}

func (b *bolt) Get(k []byte) (v []byte, err error) {
	err = b.db.View(func(tx *bbolt.Tx) error {
		is := tx.Bucket(confBucket).Get(k)
		if is == nil {
			return errNoKey
		}
		v = append(v, is...)
		return nil
	})
	return v, err
}
