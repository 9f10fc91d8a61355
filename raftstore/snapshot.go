package raftstore

import (
	"errors"
	"io"
)

// What can be wrong with a snapshot or a backup.
var (
	ErrDamaged = errors.New("snapshot is damaged")
	ErrNewer   = errors.New("snapshot was written by a newer release")
)

// A SnapshotInfo is what a snapshot holds.
type SnapshotInfo struct {
	Index uint64         // of the last command in it
	Rows  map[string]int // by kind
}

// CheckSnapshot reads a snapshot or a backup to its end and changes nothing.
func CheckSnapshot(r io.Reader) (SnapshotInfo, error) { return SnapshotInfo{}, nil }
